//! The operations by shape: `/api/v1/shapes` and `shapes/{id}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    as_integer_if_some, covered,
    figures::{Bucket, Latency, More, Phases},
    timeline::Step,
};

/// The shapes of a period, sorted as requested.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shapes {
    /// The sums of the shapes that are not listed.
    pub other: Other,
    /// The listed shapes.
    pub shapes: Vec<Shape>,
    /// The seconds of the period for which there is data. Absent if the figures cover the time
    /// since the start.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_integer_if_some"
    )]
    pub since_seconds: Option<f64>,
}

impl Shapes {
    /// The server load of all shapes in milliseconds.
    pub fn load_ms(&self) -> f64 {
        load_ms(&self.shapes, &self.other)
    }

    /// The seconds that the figures cover.
    pub fn covered_seconds(&self, uptime_seconds: f64) -> f64 {
        covered(self.since_seconds.unwrap_or_default(), uptime_seconds)
    }
}

/// The server load of listed and other shapes in milliseconds.
pub(super) fn load_ms(listed: &[Shape], other: &Other) -> f64 {
    listed.iter().map(Shape::load_ms).sum::<f64>() + other.load_ms()
}

/// The names and the figures of a shape.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shape {
    /// The collection; empty if there is none.
    pub collection: String,
    /// The command's name.
    pub command: String,
    /// Operations that ended.
    pub count: u64,
    /// Its exhausted cursors. Absent in figures of the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursors: Option<Cursors>,
    /// The database.
    pub db: String,
    /// The distribution of its durations. Absent in a list, except that of a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Documents that its operations returned, wrote or counted.
    pub documents: u64,
    /// Operations that failed.
    pub errors: u64,
    /// When it was first seen: since the start, or in the period if it has no row any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen: Option<Moment>,
    /// 16 hexadecimal digits.
    pub id: String,
    /// When it was last seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Moment>,
    /// The durations of its operations.
    pub latency_ms: Latency,
    /// The level of detail: `fine` for one shape, `coarse` or `rest` for several. Empty if not
    /// reported.
    pub level: String,
    /// The server load: the time of its operations and of the `getMore`s on its cursors.
    pub load_ms: f64,
    /// The `getMore`s on its cursors.
    pub more: More,
    /// Operations by outcome, `getMore`s included. Absent in figures of the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<BTreeMap<String, u64>>,
    /// The time of its operations by phase.
    pub phases_ms: Phases,
    /// Bytes of its replies.
    pub reply_bytes: u64,
    /// Bytes of its requests.
    pub request_bytes: u64,
    /// Its text, without values.
    pub shape: String,
    /// The seconds of the period for which there is data. Absent in a list, and if the figures
    /// cover the time since the start.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_integer_if_some"
    )]
    pub since_seconds: Option<f64>,
    /// The figures since the start. Absent in a list, if the other figures cover this time, and if
    /// the shape has no row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_start: Option<Box<SinceStart>>,
    /// Documents to insert, updates and deletes of its writes. Absent in figures of the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statements: Option<u64>,
    /// Operations whose command was forwarded while it arrived. Absent in figures of the history.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streamed: Option<u64>,
    /// The steps of the period. Absent in a list, and if the period does not have the shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Vec<Step>>,
    /// The time of its operations, without `getMore`s.
    pub total_time_ms: f64,
}

impl Shape {
    /// Bytes of requests and replies.
    pub fn bytes(&self) -> u64 {
        self.request_bytes.saturating_add(self.reply_bytes)
    }

    /// The distribution of its durations. Empty if not reported.
    pub fn buckets(&self) -> &[Bucket] {
        self.distribution.as_deref().unwrap_or_default()
    }

    /// The server load: the time of its operations and of the `getMore`s on its cursors. Computed,
    /// because older proxies do not report [`Shape::load_ms`].
    pub fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

/// The figures of a shape since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SinceStart {
    /// Operations that ended.
    pub count: u64,
    /// Its exhausted cursors.
    pub cursors: Cursors,
    /// Documents that its operations returned, wrote or counted.
    pub documents: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The durations of its operations.
    pub latency_ms: Latency,
    /// The server load: the time of its operations and of the `getMore`s on its cursors.
    pub load_ms: f64,
    /// The `getMore`s on its cursors.
    pub more: More,
    /// Operations by outcome, `getMore`s included.
    pub outcomes: BTreeMap<String, u64>,
    /// The time of its operations by phase.
    pub phases_ms: Phases,
    /// Bytes of its replies.
    pub reply_bytes: u64,
    /// Bytes of its requests.
    pub request_bytes: u64,
    /// Documents to insert, updates and deletes of its writes.
    pub statements: u64,
    /// Operations whose command was forwarded while it arrived.
    pub streamed: u64,
    /// The time of its operations, without `getMore`s.
    pub total_time_ms: f64,
}

/// The cursors of a shape that were read to their end.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cursors {
    /// Number of these cursors.
    pub exhausted: u64,
    /// How long they had been open.
    pub open_ms: Latency,
}

/// The sums of the shapes that are not listed.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Other {
    /// Operations that ended.
    pub count: u64,
    /// Documents that they returned, wrote or counted.
    pub documents: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Their durations.
    pub latency_ms: Latency,
    /// Their server load, with that of the `getMore`s on their cursors.
    pub load_ms: f64,
    /// The `getMore`s on their cursors.
    pub more: More,
    /// Their time by phase.
    pub phases_ms: Phases,
    /// Bytes of their replies.
    pub reply_bytes: u64,
    /// Bytes of their requests.
    pub request_bytes: u64,
    /// Their time, without `getMore`s.
    pub total_time_ms: f64,
}

impl Other {
    /// Their server load, with that of the `getMore`s on their cursors. Computed, because older
    /// proxies do not report [`Other::load_ms`].
    pub fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

/// A time in seconds since the epoch. The history knows whole seconds and writes integers; rows
/// know fractions and write floats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Moment {
    /// A time in the history.
    Whole(u64),
    /// A time in a row.
    Exact(f64),
}

impl Moment {
    /// In seconds since the epoch.
    pub fn seconds(self) -> f64 {
        match self {
            Self::Whole(seconds) => seawall_stats::float(seconds),
            Self::Exact(seconds) => seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_keep_their_form() {
        for text in ["1795200000", "1795200000.0", "1795200000.25"] {
            let moment: Moment = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&moment).unwrap(), text);
        }
        assert_eq!(Moment::Whole(3).seconds(), Moment::Exact(3.0).seconds());
    }

    #[test]
    fn load_of_a_shape_includes_its_get_mores() {
        let shape = |total_time_ms, more_ms| Shape {
            total_time_ms,
            more: More {
                total_time_ms: more_ms,
                ..More::default()
            },
            ..Shape::default()
        };
        let shapes = Shapes {
            shapes: vec![shape(5.0, 90.0), shape(3.0, 0.0)],
            other: Other {
                total_time_ms: 1.0,
                more: shape(0.0, 1.0).more,
                ..Other::default()
            },
            since_seconds: None,
        };
        assert_eq!(shapes.shapes[0].load_ms(), 95.0);
        assert_eq!(shapes.load_ms(), 100.0);
    }
}
