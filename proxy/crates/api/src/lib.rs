//! The replies of the admin API as types, and a client that requests these replies. The handlers of
//! the API write values of these types as JSON. The commands `seawall top` and `seawall report`,
//! and the tests, parse the JSON as the same types.
//!
//! The members of a reply are in alphabetical order, so each type declares its fields in this
//! order. The proxy may have another version than the parser. So when a reply is parsed, a missing
//! or null member gets its default, and an unknown member is ignored. A number of seconds can be
//! parsed from a float or an integer. If earlier versions of the API wrote a member as an integer,
//! it is still written as an integer.

mod annotations;
mod captures;
mod changes;
mod client;
mod comparison;
mod configuration;
mod dashboard;
mod deployment;
mod figures;
mod gauges;
mod heatmap;
mod instances;
mod merge;
mod period;
mod report;
mod shapes;
mod slow;
mod sort;
mod stalls;
mod storms;
mod tables;
mod timeline;
mod topic;

use std::time::Duration;

use serde::{Serializer, de::DeserializeOwned};
use serde_json::Value;

pub use self::{
    annotations::{Annotation, Annotations, NewAnnotation},
    captures::{Capture, Captures, NewCapture},
    changes::{Change, Changes, Rates, SeriesName, Span, SpanFigures},
    client::{AdminClient, ClientError, INSTANCE_HEADER, percent_encode},
    comparison::{between, compare_merged, rates},
    configuration::{Configuration, ConfigurationChange, ConfigurationValue, Reload},
    dashboard::{DashboardSession, Sparklines, Tick, TickSecond},
    deployment::{
        Certificate, Client, Clients, Concurrency, Connections, HistoryStatus, Pool, PoolUser,
        Pools, Status, Topology, TopologyServer,
    },
    figures::{Bucket, Latency, More, Phases, buckets, distribution, millis},
    gauges::{GaugeStep, GaugeTimeline, GaugeValues},
    heatmap::{Heatmap, HeatmapColumn, HeatmapShape, HeatmapShapes},
    instances::{InstanceState, Merged},
    merge::{Listed, Merge, add_reply, with_address, with_distributions},
    period::{all_operations, operations_per_second, period_of, totals, whole_period},
    report::{Instance, Report, ReportError},
    shapes::{CodeCount, Cursors, Moment, Other, Shape, Shapes, SinceStart},
    slow::{SlowOperation, SlowOperations},
    sort::{Sort, UnknownSort},
    stalls::{Episode, Moved, Pulse, Recurring, Stalls, WaitingShape},
    storms::{Named, Storm, Storms},
    tables::{Namespace, Namespaces, Server, Servers},
    timeline::{Timeline, TimelineStep},
    topic::Topic,
};

/// Writes a number, such as a number of seconds, as an integer: the fraction is dropped, and a
/// negative number becomes 0. When a reply is parsed, such a number may be an integer or a float.
fn as_integer<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let whole = Duration::try_from_secs_f64(*number).unwrap_or_default();
    serializer.serialize_u64(whole.as_secs())
}

/// Like [`as_integer`], but writes `None` as null.
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

/// The number of seconds that figures cover. If `since_seconds` is 0, the figures cover the time
/// since the proxy's start. The result is then the uptime, but at least 1 s.
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
    fn missing_json_members_take_defaults_and_unknown_json_members_are_ignored() {
        let step: TimelineStep = parsed(
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
    fn concurrency_limit_is_none_if_an_earlier_version_of_seawall_does_not_report_it() {
        let pool: Pool = parsed(r#"{ "in_use": 3, "wait_queue": 1 }"#);
        let concurrency = pool.concurrency;
        assert_eq!((pool.in_use, concurrency.limit), (3, None));
        assert!(concurrency.mode.is_empty());
        let text = r#"{ "concurrency": { "limit": 8, "mode": "auto", "new": 1, "reason": null } }"#;
        let pool: Pool = parsed(text);
        let concurrency = pool.concurrency;
        assert_eq!((concurrency.limit, concurrency.settled), (Some(8), None));
        assert_eq!(
            (concurrency.mode.as_str(), concurrency.reason),
            ("auto", None)
        );
    }

    /// The arguments of `covered` are `since_seconds` and the uptime in seconds.
    #[test]
    fn statistics_with_since_seconds_0_cover_the_time_since_the_start_of_the_proxy() {
        assert_eq!(covered(90.0, 7_200.0), 90.0);
        assert_eq!(covered(600.0, 30.0), 600.0);
        assert_eq!(covered(0.0, 9_000.0), 9_000.0);
        assert_eq!(covered(0.0, 0.0), 1.0);
    }
}
