//! The order of shapes: the parameter `sort` of `/api/v1/shapes`.

use std::{fmt, str::FromStr};

use seawall_stats::float;

use super::Shape;

/// The figure by which shapes (commands without their values) are sorted, in descending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// The server load ([`Shape::load_ms`]).
    #[default]
    TotalTime,
    /// The number of operations.
    Count,
    /// The 99th percentile of the durations.
    P99,
    /// The bytes of commands and replies.
    Bytes,
    /// The number of operations that ended with an error.
    Errors,
    /// The number of returned or written documents.
    Documents,
}

/// The text does not name a [`Sort`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sort by total_time, count, errors, bytes, documents or p99")]
pub struct UnknownSort;

impl Sort {
    /// All orders.
    pub const ALL: [Self; 6] = [
        Self::TotalTime,
        Self::Count,
        Self::P99,
        Self::Bytes,
        Self::Errors,
        Self::Documents,
    ];

    /// The value of the parameter `sort`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TotalTime => "total_time",
            Self::Count => "count",
            Self::P99 => "p99",
            Self::Bytes => "bytes",
            Self::Errors => "errors",
            Self::Documents => "documents",
        }
    }

    /// The figure of a shape by which it is sorted.
    pub fn figure(self, shape: &Shape) -> f64 {
        match self {
            Self::TotalTime => shape.load_ms(),
            Self::Count => float(shape.count),
            Self::P99 => shape.latency_ms.p99,
            Self::Bytes => float(shape.bytes()),
            Self::Errors => float(shape.errors),
            Self::Documents => float(shape.documents),
        }
    }
}

impl fmt::Display for Sort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Sort {
    type Err = UnknownSort;

    fn from_str(text: &str) -> Result<Self, UnknownSort> {
        let found = Self::ALL.into_iter().find(|sort| sort.as_str() == text);
        found.ok_or(UnknownSort)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_is_parsed_from_its_text_and_the_error_names_all_orders() {
        for sort in Sort::ALL {
            assert_eq!(sort.to_string().parse(), Ok(sort));
            assert!(UnknownSort.to_string().contains(sort.as_str()));
        }
        assert_eq!("name".parse::<Sort>(), Err(UnknownSort));
    }
}
