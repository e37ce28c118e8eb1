//! The replies of the admin API, and a client that requests them: the handlers return them, and
//! `top`, `report` and the tests read them.
//!
//! A reply has its members in alphabetical order, so the fields of each type are declared in this
//! order. A reader gives a missing or null member its default and ignores unknown members: the
//! proxy may have another version. Numbers of seconds are read as floats or integers; each type
//! writes the one that the API has always had.

mod changes;
mod client;
mod deployment;
mod figures;
mod report;
mod shapes;
mod stalls;
mod storms;
mod tables;
mod timeline;

use std::time::Duration;

use serde::{Serializer, de::DeserializeOwned};
use serde_json::Value;

pub use self::{
    changes::{Change, Changes, Rates, SeriesName, Span},
    client::{AdminClient, ClientError, percent_encode},
    deployment::{
        Client, Clients, Connections, HistoryStatus, Pool, PoolUser, Pools, Status, Topology,
        TopologyServer,
    },
    figures::{Bucket, Latency, More, Phases, buckets, millis},
    report::{Report, ReportError},
    shapes::{Cursors, Moment, Other, Shape, Shapes, SinceStart},
    stalls::{Episode, Moved, Pulse, Recurring, Stalls, WaitingShape},
    storms::{Named, Storm, Storms},
    tables::{Namespace, Namespaces, Server, Servers},
    timeline::{Step, Timeline},
};

/// Writes a whole number of seconds, or of anything else, as an integer. Readers accept both forms.
fn as_integer<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = Duration::try_from_secs_f64(*number).unwrap_or_default();
    serializer.serialize_u64(whole.as_secs())
}

/// As [`as_integer`], for a number that may be absent.
fn as_integer_if_some<S: Serializer>(
    number: &Option<f64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match number {
        Some(number) => as_integer(number, serializer),
        None => serializer.serialize_none(),
    }
}

/// Parses a reply. Members that are null or missing take their defaults.
///
/// # Errors
/// If a member has an unexpected type.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, serde_json::Error> {
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

/// The length of a period. Without a length the figures cover the time since the start.
fn covered(since_seconds: f64, uptime_seconds: f64) -> f64 {
    match since_seconds > 0.0 {
        true => since_seconds,
        false => uptime_seconds.max(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed<T: DeserializeOwned>(text: &str) -> T {
        read(serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn missing_members_take_defaults_and_unknown_ones_are_ignored() {
        let step: Step = parsed(
            r#"{ "at": 5, "latency_ms": { "p50": null, "p99": 1.5 }, "phases_ms": null, "new": [1] }"#,
        );
        assert_eq!(
            (step.at, step.latency_ms.p50, step.latency_ms.p99),
            (5.0, 0.0, 1.5)
        );
        let episode: Episode = parsed(r#"{ "server": null, "shapes": [{ "text": "{}" }] }"#);
        assert_eq!(episode.server, None);
        assert_eq!(episode.shapes[0].text, "{}");
    }

    #[test]
    fn period_without_a_length_is_the_uptime() {
        assert_eq!(covered(90.0, 7_200.0), 90.0);
        assert_eq!(covered(600.0, 30.0), 600.0);
        assert_eq!(covered(0.0, 9_000.0), 9_000.0);
        assert_eq!(covered(0.0, 0.0), 1.0);
    }
}
