//! The figures of operations, grouped by shape: `/api/v1/shapes` and `/api/v1/shapes/{id}`. A shape
//! is the form of a command without its values. The "shape table" has the counters since Seawall
//! started. Each row counts the operations of one shape, or of several rare shapes together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    as_integer_if_some, covered,
    figures::{Bucket, Latency, More, Phases},
    storms::Named,
    timeline::TimelineStep,
};

/// The shapes of a period, sorted as requested.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shapes {
    /// The figures of all shapes that are not listed, together.
    pub other: Other,
    /// The listed shapes.
    pub shapes: Vec<Shape>,
    /// Number of seconds in the period that have data. Absent if the figures cover the time since
    /// Seawall started.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_integer_if_some"
    )]
    pub since_seconds: Option<f64>,
}

impl Shapes {
    /// The server load of all shapes: the time of their operations and `getMore`s, in milliseconds.
    pub fn load_ms(&self) -> f64 {
        load_ms(&self.shapes, &self.other)
    }

    /// The number of seconds that the figures cover. If the figures cover the time since Seawall
    /// started, the result is the uptime, but at least 1 s.
    pub fn covered_seconds(&self, uptime_seconds: f64) -> f64 {
        covered(self.since_seconds.unwrap_or_default(), uptime_seconds)
    }
}

/// The server load of listed and other shapes: the time of their operations and `getMore`s, in
/// milliseconds.
pub(super) fn load_ms(listed: &[Shape], other: &Other) -> f64 {
    listed.iter().map(Shape::load_ms).sum::<f64>() + other.load_ms()
}

/// The name and the figures of a shape. The figures of a period come from the history of the
/// statistics. The figures since Seawall started come from the shape table, which has counters in
/// memory. The counters of a shape begin when the shape gets its own row in this table. Its earlier
/// operations are counted in a row for several shapes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Shape {
    /// The operations and `getMore`s since Seawall started, by application: at most eight
    /// applications, and `other` for the remaining applications. Clients without an application
    /// name are counted under the empty name. A list of shapes does not have this member. The reply
    /// about one shape has it if the shape table has a row for this shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applications: Option<Vec<Named>>,
    /// The collection; empty if there is none.
    pub collection: String,
    /// The command's name.
    pub command: String,
    /// Number of operations that ended. `getMore`s are not included.
    pub count: u64,
    /// The shape's cursors that were read to their end. Present only in the figures since Seawall
    /// started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursors: Option<Cursors>,
    /// The database.
    pub db: String,
    /// The distribution of the operations' durations. A list of shapes has it only if the request
    /// has `distributions=true`. The reply about one shape, and a report on a period
    /// (`/api/v1/report`), always have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Number of documents that the operations and `getMore`s returned, wrote or counted.
    pub documents: u64,
    /// Number of operations that failed, `getMore`s included.
    pub errors: u64,
    /// The operations and `getMore`s with an error since Seawall started, by code. An operation
    /// with several codes counts for each code. A list of shapes does not have this member. The
    /// reply about one shape has it if the shape table has a row for this shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors_by_code: Option<Vec<CodeCount>>,
    /// When Seawall saw the first operation that the shape's row in the shape table counts. If the
    /// shape table has no row for the shape: when the shape was first seen in the period. Absent in
    /// [`Changes`](crate::Changes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_seen: Option<Moment>,
    /// The shape's id: 16 hexadecimal digits.
    pub id: String,
    /// When the shape was last seen, according to its row in the shape table. If the shape table
    /// has no row for the shape: when the shape was last seen in the period. Absent in
    /// [`Changes`](crate::Changes).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Moment>,
    /// The operations' durations.
    pub latency_ms: Latency,
    /// `fine` if the figures are of one shape, `coarse` if they are of several similar shapes
    /// together. `rest` if they are of the remaining shapes of a namespace together. Empty if not
    /// reported.
    pub level: String,
    /// The server load: the time of the operations and of the `getMore`s on their cursors.
    pub load_ms: f64,
    /// The `getMore`s on cursors of the shape.
    pub more: More,
    /// Operations by outcome, `getMore`s included. Present only in the figures since Seawall
    /// started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<BTreeMap<String, u64>>,
    /// The operations' time by phase.
    pub phases_ms: Phases,
    /// Total size of the replies in bytes, `getMore`s included.
    pub reply_bytes: u64,
    /// Total size of the commands in bytes, `getMore`s included.
    pub request_bytes: u64,
    /// The shape's text, without values.
    pub shape: String,
    /// Number of seconds in the period that have data. Absent in a list of shapes. Also absent if
    /// the figures cover the time since Seawall started.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_integer_if_some"
    )]
    pub since_seconds: Option<f64>,
    /// The figures since Seawall started. Absent in each of these cases: in a list of shapes; if
    /// the other members of the reply already are the figures since the start; if Seawall does not
    /// keep these figures for the shape.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_start: Option<Box<SinceStart>>,
    /// Number of statements in the write commands. Each document to insert, each update and each
    /// delete is one statement. Present only in the figures since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statements: Option<u64>,
    /// Operations whose command Seawall forwarded before all of its bytes had arrived. Present only
    /// in the figures since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streamed: Option<u64>,
    /// The figures of each step of the period. Absent in a list of shapes. Also absent if the shape
    /// had no operations in the period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Vec<TimelineStep>>,
    /// The operations' time, without `getMore`s.
    pub total_time_ms: f64,
}

impl Shape {
    /// Bytes of requests and replies.
    pub fn bytes(&self) -> u64 {
        self.request_bytes.saturating_add(self.reply_bytes)
    }

    /// The distribution of the operations' durations. Empty if not reported.
    pub fn buckets(&self) -> &[Bucket] {
        self.distribution.as_deref().unwrap_or_default()
    }

    /// The server load: the time of the operations and of the `getMore`s on their cursors. It is
    /// computed, because older proxies do not report [`Shape::load_ms`].
    pub fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

/// An error code, and the number of operations with this code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CodeCount {
    /// The code; `other` for all codes that are not counted separately.
    pub code: String,
    /// Number of operations with this code.
    pub count: u64,
}

/// The figures of a shape since Seawall started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SinceStart {
    /// Number of operations that ended. `getMore`s are not included.
    pub count: u64,
    /// The shape's cursors that were read to their end.
    pub cursors: Cursors,
    /// The distribution of the operations' durations. Present if the request has
    /// `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Number of documents that the operations and `getMore`s returned, wrote or counted.
    pub documents: u64,
    /// Number of operations that failed, `getMore`s included.
    pub errors: u64,
    /// The operations' durations.
    pub latency_ms: Latency,
    /// The server load: the time of the operations and of the `getMore`s on their cursors.
    pub load_ms: f64,
    /// The `getMore`s on cursors of the shape.
    pub more: More,
    /// Operations by outcome, `getMore`s included.
    pub outcomes: BTreeMap<String, u64>,
    /// The operations' time by phase.
    pub phases_ms: Phases,
    /// Total size of the replies in bytes, `getMore`s included.
    pub reply_bytes: u64,
    /// Total size of the commands in bytes, `getMore`s included.
    pub request_bytes: u64,
    /// Number of statements in the write commands. Each document to insert, each update and each
    /// delete is one statement.
    pub statements: u64,
    /// Operations whose command Seawall forwarded before all of its bytes had arrived.
    pub streamed: u64,
    /// The operations' time, without `getMore`s.
    pub total_time_ms: f64,
}

/// The cursors of a shape that were read to their end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Cursors {
    /// The distribution of `open_ms`. Present if the request has `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Number of cursors that were read to their end.
    pub exhausted: u64,
    /// How long the cursors had been open when they were read to their end.
    pub open_ms: Latency,
}

/// The figures of all shapes that are not listed, together. As in [`Shape`], the numbers of
/// documents, errors and bytes include the `getMore`s, but `count` does not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Other {
    /// Number of operations that ended.
    pub count: u64,
    /// The distribution of the operations' durations. Present if the request has
    /// `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Number of documents that the operations returned, wrote or counted.
    pub documents: u64,
    /// Number of operations that failed.
    pub errors: u64,
    /// The operations' durations.
    pub latency_ms: Latency,
    /// The server load: the time of the operations and of the `getMore`s on their cursors.
    pub load_ms: f64,
    /// The `getMore`s on the operations' cursors.
    pub more: More,
    /// The operations' time by phase.
    pub phases_ms: Phases,
    /// Total size of the replies in bytes.
    pub reply_bytes: u64,
    /// Total size of the commands in bytes.
    pub request_bytes: u64,
    /// The operations' time, without `getMore`s.
    pub total_time_ms: f64,
}

impl Other {
    /// The server load: the time of the operations and of the `getMore`s on their cursors. It is
    /// computed, because older proxies do not report [`Other::load_ms`].
    pub fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

/// A time in seconds since the epoch. The history of the statistics keeps whole seconds, which are
/// written as an integer. The counters since Seawall started (the shape table) have times with a
/// fraction, which are written as a float.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Moment {
    /// Whole seconds, from the history of the statistics.
    Whole(u64),
    /// Seconds with a fraction, from the counters since Seawall started.
    Exact(f64),
}

impl Moment {
    /// The time in seconds since the epoch.
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
    fn a_timestamp_read_as_an_integer_or_float_is_written_in_the_same_form() {
        for text in ["1795200000", "1795200000.0", "1795200000.25"] {
            let moment: Moment = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&moment).unwrap(), text);
        }
        assert_eq!(Moment::Whole(3).seconds(), Moment::Exact(3.0).seconds());
    }

    #[test]
    fn server_load_of_a_query_shape_includes_the_time_of_the_get_mores_on_its_cursors() {
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
