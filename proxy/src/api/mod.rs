//! The replies of the admin API: what the handlers return, and `top` and `report` read.
//!
//! The handlers' JSON has its members in alphabetical order, so the fields of a type that is
//! written are declared in this order. A reader gives a missing or null member its default and
//! ignores unknown members: the proxy may have another version.

mod deployment;
mod found;
mod storms;

use std::time::Duration;

use serde::{Deserialize, Serializer, de::DeserializeOwned};
use serde_json::{Value, json};

pub(crate) use self::{
    deployment::{
        Client, Clients, Connections, HistoryStatus, Pool, PoolUser, Pools, Status, Topology,
        TopologyServer,
    },
    found::{Change, Changes, Episode, Moved, Pulse, Rates, Recurring, Span, Stalls},
    storms::{Named, Storm, Storms},
};

/// Writes a whole number of seconds, or of anything else, as an integer. Readers accept both forms.
fn as_integer<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = Duration::try_from_secs_f64(*number).unwrap_or_default();
    serializer.serialize_u64(whole.as_secs())
}

/// Parses a response.
pub(crate) fn read<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
    serde_json::from_value(without_nulls(value))
}

/// Removes members that are null, so that they take their defaults.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(members.map(|(key, v)| (key, without_nulls(v))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

/// A whole report.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub(crate) made_at: f64,
    pub(crate) since_seconds: f64,
    pub(crate) status: Status,
    pub(crate) shapes: Shapes,
    pub(crate) timeline: Timeline,
    pub(crate) servers: Vec<Server>,
    pub(crate) storms: Storms,
    pub(crate) stalls: Stalls,
    pub(crate) changes: Changes,
    pub(crate) pools: Pools,
}

impl Report {
    /// The version of the report format.
    const VERSION: u64 = 1;

    /// Parses a report.
    pub(crate) fn read(mut value: Value) -> Result<Self, String> {
        // A list is either an array or an object, as the endpoint of that list returns it.
        let of = |value: &Value, key| value.get(key).cloned().unwrap_or_default();
        let (since, other) = (of(&value, "since_seconds"), of(&value, "other"));
        for key in ["shapes", "pools"] {
            if let Some(list @ Value::Array(_)) = value.get_mut(key) {
                *list = json!({ key: list.take(), "since_seconds": since, "other": other });
            }
        }
        match value.get("seawall_report").and_then(Value::as_u64) {
            Some(Self::VERSION) => read(value).map_err(|error| error.to_string()),
            Some(other) => Err(format!("unknown report version {other}")),
            None => Err("not a Seawall report".to_owned()),
        }
    }

    /// The seconds of the period for which there is data.
    pub(crate) fn covered_seconds(&self) -> f64 {
        covered(self.since_seconds, self.status.uptime_seconds)
    }

    /// The server load of all shapes, listed or not.
    pub(crate) fn load_ms(&self) -> f64 {
        self.shapes.load_ms()
    }

    /// The number of operations of all shapes, listed or not.
    pub(crate) fn operations(&self) -> u64 {
        self.shapes.operations()
    }

    /// The number of operations of shapes that are not listed.
    pub(crate) fn unlisted(&self) -> u64 {
        self.shapes.other.count
    }

    /// The number of errors of all shapes, listed or not.
    pub(crate) fn errors(&self) -> u64 {
        self.shapes.errors()
    }
}

/// The length of a period. Without a length the figures cover the time since the start.
fn covered(since_seconds: f64, uptime_seconds: f64) -> f64 {
    match since_seconds > 0.0 {
        true => since_seconds,
        false => uptime_seconds.max(1.0),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Phases {
    permit: f64,
    checkout: f64,
    forward: f64,
    server: f64,
    receive: f64,
    send: f64,
}

impl Phases {
    /// The name and milliseconds of each phase, in the order in which they happen.
    pub(crate) fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("permit", self.permit),
            ("checkout", self.checkout),
            ("forward", self.forward),
            ("server", self.server),
            ("receive", self.receive),
            ("send", self.send),
        ]
    }

    pub(crate) fn total(&self) -> f64 {
        self.named().iter().map(|(_, ms)| ms).sum()
    }
}

/// `getMore`s on the cursors of a shape.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct More {
    pub(crate) count: u64,
    pub(crate) total_time_ms: f64,
}

/// One bucket of a distribution: durations over `gt_seconds` and up to `le_seconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Bucket {
    pub(crate) gt_seconds: f64,
    pub(crate) le_seconds: f64,
    pub(crate) count: u64,
}

/// The names and the figures of a shape.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Shape {
    pub(crate) id: String,
    pub(crate) command: String,
    pub(crate) db: String,
    pub(crate) collection: String,
    #[serde(alias = "text")]
    pub(crate) shape: String,
    /// The level of detail: the row covers one shape or several. Empty if not reported.
    pub(crate) level: String,
    pub(crate) count: u64,
    pub(crate) errors: u64,
    pub(crate) total_time_ms: f64,
    pub(crate) latency_ms: Latency,
    pub(crate) phases_ms: Phases,
    pub(crate) request_bytes: u64,
    pub(crate) reply_bytes: u64,
    pub(crate) documents: u64,
    pub(crate) more: More,
    pub(crate) distribution: Vec<Bucket>,
    pub(crate) timeline: Vec<Point>,
    /// In an episode of a stall: the number of operations of this shape that waited.
    pub(crate) operations: u64,
}

impl Shape {
    pub(crate) fn bytes(&self) -> u64 {
        self.request_bytes.saturating_add(self.reply_bytes)
    }

    /// The server load: the time of its operations and of the `getMore`s on its cursors.
    pub(crate) fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

/// A step of one shape's timeline.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Point {
    pub(crate) at: f64,
    pub(crate) count: u64,
    pub(crate) p99_ms: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Shapes {
    pub(crate) since_seconds: f64,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) other: Other,
}

impl Shapes {
    pub(crate) fn load_ms(&self) -> f64 {
        let listed = self.shapes.iter().map(Shape::load_ms);
        listed.sum::<f64>() + self.other.load_ms()
    }

    pub(crate) fn operations(&self) -> u64 {
        self.shapes.iter().map(|s| s.count).sum::<u64>() + self.other.count
    }

    pub(crate) fn errors(&self) -> u64 {
        self.shapes.iter().map(|s| s.errors).sum::<u64>() + self.other.errors
    }

    /// The seconds that the figures cover.
    pub(crate) fn covered_seconds(&self, uptime_seconds: f64) -> f64 {
        covered(self.since_seconds, uptime_seconds)
    }
}

/// The sums of the shapes that are not listed.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Other {
    pub(crate) count: u64,
    pub(crate) errors: u64,
    pub(crate) total_time_ms: f64,
    pub(crate) more: More,
    pub(crate) request_bytes: u64,
    pub(crate) reply_bytes: u64,
    pub(crate) documents: u64,
}

impl Other {
    pub(crate) fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Timeline {
    pub(crate) step_seconds: f64,
    pub(crate) steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Step {
    pub(crate) at: f64,
    /// The seconds of the step for which there is data.
    pub(crate) seconds: f64,
    pub(crate) count: u64,
    pub(crate) errors: u64,
    pub(crate) request_bytes: u64,
    pub(crate) reply_bytes: u64,
    pub(crate) documents: u64,
    pub(crate) total_time_ms: f64,
    pub(crate) latency_ms: Latency,
    pub(crate) phases_ms: Phases,
    pub(crate) distribution: Vec<Bucket>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Server {
    pub(crate) address: String,
    pub(crate) count: u64,
    pub(crate) errors: u64,
    /// The durations of whole operations.
    pub(crate) latency_ms: Latency,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_members_take_defaults_and_unknown_ones_are_ignored() {
        let step: Step = read(json!({
            "at": 5, "latency_ms": { "p50": null, "p99": 1.5 }, "phases_ms": null, "novelty": [1],
        }))
        .unwrap();
        assert_eq!(
            (step.at, step.latency_ms.p50, step.latency_ms.p99),
            (5.0, 0.0, 1.5)
        );
        let episode: Episode =
            read(json!({ "server": null, "shapes": [{ "text": "{}" }] })).unwrap();
        assert_eq!(episode.server, None);
        assert_eq!(episode.shapes[0].shape, "{}");
    }

    #[test]
    fn load_of_a_shape_includes_its_get_mores() {
        let shapes = json!({
            "shapes": [{ "total_time_ms": 5, "more": { "count": 9, "total_time_ms": 90 } }, { "total_time_ms": 3 }],
            "other": { "total_time_ms": 1, "more": { "total_time_ms": 1 } },
        });
        let shapes: Shapes = read(shapes).unwrap();
        assert_eq!(shapes.shapes[0].load_ms(), 95.0);
        assert_eq!(shapes.load_ms(), 100.0);
    }

    #[test]
    fn report_with_an_unknown_version_is_refused() {
        assert!(Report::read(json!({ "shapes": [] })).is_err());
        assert!(Report::read(json!({ "seawall_report": 2 })).is_err());
        let bare = json!({ "seawall_report": 1, "shapes": [{ "count": 3 }], "pools": [{}, {}] });
        let report = Report::read(bare).unwrap();
        assert_eq!((report.operations(), report.pools.pools.len()), (3, 2));
        let wrapped = json!({
            "seawall_report": 1,
            "shapes": { "shapes": [{ "count": 3 }], "other": { "count": 4 } },
        });
        assert_eq!(Report::read(wrapped).unwrap().operations(), 7);
    }

    #[test]
    fn period_without_a_length_is_the_uptime() {
        assert_eq!(covered(90.0, 7_200.0), 90.0);
        assert_eq!(covered(600.0, 30.0), 600.0);
        assert_eq!(covered(0.0, 9_000.0), 9_000.0);
        assert_eq!(covered(0.0, 0.0), 1.0);
    }
}
