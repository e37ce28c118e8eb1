//! The figures of operations over time, step by step: `/api/v1/timeline`, and the timeline of a
//! shape.

use serde::{Deserialize, Serialize};

use super::{
    as_integer,
    figures::{Bucket, Latency, More, Phases},
};

/// The steps of a period. The request selects operations, for example the operations on one server.
/// Each step has the figures of all selected operations together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeline {
    /// The length of each step.
    #[serde(serialize_with = "as_integer")]
    pub step_seconds: f64,
    /// The steps with data, in ascending order of time.
    pub steps: Vec<TimelineStep>,
}

/// The figures of one step. In the timeline of a shape, `more` counts the `getMore`s on the shape's
/// cursors, and `count`, `latency_ms`, `phases_ms` and `total_time_ms` do not contain them. In all
/// other timelines, a `getMore` counts as an operation, and `more` is 0. Timelines of a server and
/// of all operations do not count operations that wait for an event.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineStep {
    /// The step's start, in seconds since the epoch.
    #[serde(serialize_with = "as_integer")]
    pub at: f64,
    /// Operations that ended.
    pub count: u64,
    /// The distribution of the operations' durations. Always present in the reply of
    /// `/api/v1/timeline` and in a report on a period (`/api/v1/report`). The timeline of a shape
    /// has it only if the request has `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Documents that the operations returned, wrote or counted.
    pub documents: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The operations' durations.
    pub latency_ms: Latency,
    /// The server load: the time of the operations and of the `getMore`s on their cursors.
    pub load_ms: f64,
    /// The maximum of `latency_ms`.
    pub max_ms: f64,
    /// The `getMore`s on the operations' cursors.
    pub more: More,
    /// The median of `latency_ms`.
    pub p50_ms: f64,
    /// The 99th percentile of `latency_ms`.
    pub p99_ms: f64,
    /// The operations' time by phase.
    pub phases_ms: Phases,
    /// Total size of the replies in bytes.
    pub reply_bytes: u64,
    /// Total size of the commands in bytes.
    pub request_bytes: u64,
    /// Number of seconds in the step that have data.
    #[serde(serialize_with = "as_integer")]
    pub seconds: f64,
    /// The operations' time.
    pub total_time_ms: f64,
}

impl TimelineStep {
    /// The distribution of the operations' durations. Empty if not reported.
    pub fn buckets(&self) -> &[Bucket] {
        self.distribution.as_deref().unwrap_or_default()
    }
}
