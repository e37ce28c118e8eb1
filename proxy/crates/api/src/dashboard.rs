//! The replies that only the dashboard uses: `/api/v1/live`, `/api/v1/session` and
//! `/api/v1/sparklines`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{as_integer, deployment::Connections, figures::Bucket};

/// The most important numbers of the proxy. The dashboard receives them once a second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Tick {
    /// When the numbers were read, in seconds since the epoch.
    pub at: f64,
    /// Number of connected clients.
    pub clients: u64,
    /// The sum of the servers' concurrency limits. `None` if any server has no limit.
    pub concurrency_limit: Option<u64>,
    /// True during a drain.
    pub draining: bool,
    /// True if Seawall keeps a history of its statistics.
    pub history: bool,
    /// Number of operations that run on servers.
    pub in_progress: u64,
    /// The latest second in the history of the statistics. `None` if there is none.
    pub second: Option<TickSecond>,
    /// The server connections by state.
    pub server_connections: Connections,
    /// True while a reconnect storm lasts.
    pub storm: bool,
    /// The time since Seawall started.
    #[serde(serialize_with = "as_integer")]
    pub uptime_seconds: f64,
    /// Number of operations that wait because no server connection is free for them, or because the
    /// concurrency limit is reached.
    pub wait_queue: u64,
    /// Number of operations in `wait_queue` that will count toward the concurrency limit when they
    /// run. Some of them wait because the limit is reached, others only because no connection is
    /// free.
    pub waiting: u64,
}

/// The operations of one second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TickSecond {
    /// The start of the second, in seconds since the epoch.
    #[serde(serialize_with = "as_integer")]
    pub at: f64,
    /// Number of operations that ended in the second.
    pub count: u64,
    /// The distribution of the durations. Present if the request has `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Number of operations that failed in the second.
    pub errors: u64,
    /// The longest duration. Present together with the distribution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<f64>,
    /// The median duration.
    pub p50_ms: f64,
    /// The 99th percentile of the durations.
    pub p99_ms: f64,
}

/// The reply of `/api/v1/session`: the rights of the caller, and the addresses of the other
/// instances.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DashboardSession {
    /// The addresses of the other instances. Their figures can be merged with the figures of this
    /// instance.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// `act` if the caller may also run actions, such as a reload or a drain; `read` if not.
    pub role: String,
    /// True if requests need a token.
    pub token_required: bool,
}

/// The load of each shape in each step of a period. The load is the total duration of the shape's
/// operations and of the `getMore`s on their cursors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sparklines {
    /// The start of the first step, in seconds since the epoch.
    #[serde(serialize_with = "as_integer")]
    pub from: f64,
    /// For each shape's id: the load in each step, in milliseconds. The load of a step without data
    /// is 0.
    pub shapes: BTreeMap<String, Vec<f64>>,
    /// The length of each step.
    #[serde(serialize_with = "as_integer")]
    pub step_seconds: f64,
}
