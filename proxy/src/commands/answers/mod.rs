//! The responses of the admin API, as `top` and `report` read them.
//!
//! A missing or null member takes its default and unknown members are ignored: the proxy may have
//! another version.

mod found;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

pub(super) use self::found::{
    Change, Changes, Episode, Named, Pools, Pulse, Rates, Recurring, Span, Stalls, Storm, Storms,
};

/// Parses a response.
pub(super) fn read<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
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
pub(super) struct Report {
    pub(super) made_at: f64,
    pub(super) since_seconds: f64,
    pub(super) status: Status,
    pub(super) shapes: Shapes,
    pub(super) timeline: Timeline,
    pub(super) servers: Vec<Server>,
    pub(super) storms: Storms,
    pub(super) stalls: Stalls,
    pub(super) changes: Changes,
    pub(super) pools: Pools,
}

impl Report {
    /// The version of the report format.
    const VERSION: u64 = 1;

    /// Parses a report.
    pub(super) fn read(mut value: Value) -> Result<Self, String> {
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
    pub(super) fn covered_seconds(&self) -> f64 {
        covered(self.since_seconds, self.status.uptime_seconds)
    }

    /// The server load of all shapes, listed or not.
    pub(super) fn load_ms(&self) -> f64 {
        self.shapes.load_ms()
    }

    /// The number of operations of all shapes, listed or not.
    pub(super) fn operations(&self) -> u64 {
        self.shapes.operations()
    }

    /// The number of operations of shapes that are not listed.
    pub(super) fn unlisted(&self) -> u64 {
        self.shapes.other.count
    }

    /// The number of errors of all shapes, listed or not.
    pub(super) fn errors(&self) -> u64 {
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

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) version: String,
    pub(super) uptime_seconds: f64,
    pub(super) mode: String,
    pub(super) injects_faults: bool,
    pub(super) draining: bool,
    pub(super) deployment: String,
    pub(super) clients: u64,
    pub(super) operations: u64,
    pub(super) server_connections: Connections,
    pub(super) wait_queue: u64,
    pub(super) history: HistoryStatus,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct HistoryStatus {
    /// `None` if the proxy does not report it.
    pub(super) on: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Connections {
    pub(super) pending: u64,
    pub(super) available: u64,
    pub(super) in_use: u64,
}

impl Connections {
    pub(super) fn total(self) -> u64 {
        self.pending + self.available + self.in_use
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Latency {
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Phases {
    permit: f64,
    checkout: f64,
    forward: f64,
    server: f64,
    receive: f64,
    send: f64,
}

impl Phases {
    /// The name and milliseconds of each phase, in the order in which they happen.
    pub(super) fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("permit", self.permit),
            ("checkout", self.checkout),
            ("forward", self.forward),
            ("server", self.server),
            ("receive", self.receive),
            ("send", self.send),
        ]
    }

    pub(super) fn total(&self) -> f64 {
        self.named().iter().map(|(_, ms)| ms).sum()
    }
}

/// `getMore`s on the cursors of a shape.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct More {
    pub(super) count: u64,
    pub(super) total_time_ms: f64,
}

/// One bucket of a distribution: durations over `gt_seconds` and up to `le_seconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Bucket {
    pub(super) gt_seconds: f64,
    pub(super) le_seconds: f64,
    pub(super) count: u64,
}

/// The names and the figures of a shape.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shape {
    pub(super) id: String,
    pub(super) command: String,
    pub(super) db: String,
    pub(super) collection: String,
    #[serde(alias = "text")]
    pub(super) shape: String,
    /// The level of detail: the row covers one shape or several. Empty if not reported.
    pub(super) level: String,
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) total_time_ms: f64,
    pub(super) latency_ms: Latency,
    pub(super) phases_ms: Phases,
    pub(super) request_bytes: u64,
    pub(super) reply_bytes: u64,
    pub(super) documents: u64,
    pub(super) more: More,
    pub(super) distribution: Vec<Bucket>,
    pub(super) timeline: Vec<Point>,
    /// In an episode of a stall: the number of operations of this shape that waited.
    pub(super) operations: u64,
}

impl Shape {
    pub(super) fn bytes(&self) -> u64 {
        self.request_bytes.saturating_add(self.reply_bytes)
    }

    /// The server load: the time of its operations and of the `getMore`s on its cursors.
    pub(super) fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

/// A step of one shape's timeline.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Point {
    pub(super) at: f64,
    pub(super) count: u64,
    pub(super) p99_ms: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Shapes {
    pub(super) since_seconds: f64,
    pub(super) shapes: Vec<Shape>,
    pub(super) other: Other,
}

impl Shapes {
    pub(super) fn load_ms(&self) -> f64 {
        let listed = self.shapes.iter().map(Shape::load_ms);
        listed.sum::<f64>() + self.other.load_ms()
    }

    pub(super) fn operations(&self) -> u64 {
        self.shapes.iter().map(|s| s.count).sum::<u64>() + self.other.count
    }

    pub(super) fn errors(&self) -> u64 {
        self.shapes.iter().map(|s| s.errors).sum::<u64>() + self.other.errors
    }

    /// The seconds that the figures cover.
    pub(super) fn covered_seconds(&self, uptime_seconds: f64) -> f64 {
        covered(self.since_seconds, uptime_seconds)
    }
}

/// The sums of the shapes that are not listed.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Other {
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) total_time_ms: f64,
    pub(super) more: More,
    pub(super) request_bytes: u64,
    pub(super) reply_bytes: u64,
    pub(super) documents: u64,
}

impl Other {
    pub(super) fn load_ms(&self) -> f64 {
        self.total_time_ms + self.more.total_time_ms
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Timeline {
    pub(super) step_seconds: f64,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Step {
    pub(super) at: f64,
    /// The seconds of the step for which there is data.
    pub(super) seconds: f64,
    pub(super) count: u64,
    pub(super) errors: u64,
    pub(super) request_bytes: u64,
    pub(super) reply_bytes: u64,
    pub(super) documents: u64,
    pub(super) total_time_ms: f64,
    pub(super) latency_ms: Latency,
    pub(super) phases_ms: Phases,
    pub(super) distribution: Vec<Bucket>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Server {
    pub(super) address: String,
    pub(super) count: u64,
    pub(super) errors: u64,
    /// The durations of whole operations.
    pub(super) latency_ms: Latency,
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
