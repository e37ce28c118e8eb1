//! Stalls: `/api/v1/stalls`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The stalls of a period, and those that recur.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stalls {
    /// The stalls, the latest first.
    pub episodes: Vec<Episode>,
    /// The sampling of the servers.
    pub pulse: Pulse,
    /// The stalls that recur.
    pub recurring: Vec<Recurring>,
}

/// The sampling of the servers' `serverStatus`. The counts are absent if it is off.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pulse {
    /// Samples that got a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
    /// The longest time until a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_ms: Option<f64>,
    /// The mean time until a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// The limits of the sampling in this deployment. Absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The last refusal of each server that refuses samples, by address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<BTreeMap<String, String>>,
    /// Samples that a server refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// `on`, or `off: ` and the reason. Empty if not reported.
    pub state: String,
    /// Samples without a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u64>,
}

/// A period in which latency was far above the usual.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Episode {
    /// The server's counters that differed most from their usual values.
    pub moved: Vec<Moved>,
    /// Operations that waited.
    pub operations: u64,
    /// The phase in which they waited longest.
    pub phase: String,
    /// Its length.
    pub seconds: f64,
    /// The server's address. `None` means all servers.
    pub server: Option<String>,
    /// The shapes with the most operations that waited, in descending order.
    pub shapes: Vec<WaitingShape>,
    /// Its start, in seconds since the epoch.
    pub started_at: f64,
    /// Samples of the server without a reply.
    pub unanswered_pulses: u64,
    /// The usual 99th percentile of durations.
    pub usual_p99_ms: f64,
    /// The time that operations waited, in total.
    pub waited_ms: f64,
    /// The longest duration.
    pub worst_ms: f64,
}

/// A shape with operations that waited in a stall.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitingShape {
    /// The collection; empty if there is none.
    pub collection: String,
    /// The command's name.
    pub command: String,
    /// The database.
    pub db: String,
    /// 16 hexadecimal digits.
    pub id: String,
    /// `fine` for one shape, `coarse` or `rest` for several.
    pub level: String,
    /// Its operations that took more than twice the usual time.
    pub operations: u64,
    /// The shape's text, without values.
    pub text: String,
}

/// A server counter whose value during a stall differs from its usual value.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Moved {
    /// Its name in `serverStatus`.
    pub counter: String,
    /// Its value during the stall.
    pub during: f64,
    /// Its usual value.
    pub otherwise: f64,
    /// The distance between the two in standard deviations.
    pub score: f64,
}

/// A stall that recurs periodically.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Recurring {
    /// The server counter that moves most with it.
    pub counter: Option<String>,
    /// True if it still recurs. `None` if the proxy does not report it.
    pub current: Option<bool>,
    /// The start of the last one, in seconds since the epoch.
    pub last_at: f64,
    /// The length of one.
    pub length_seconds: f64,
    /// The time from one start to the next.
    pub period_seconds: f64,
    /// The phase in which operations wait longest.
    pub phase: String,
    /// The server's address. `None` means all servers.
    pub server: Option<String>,
    /// Number of stalls.
    pub times: u64,
    /// True if the server replied to no sample during most of them.
    pub unanswered: bool,
}

impl Recurring {
    /// True if the stall still recurs. Assumed if the proxy does not report it.
    pub fn is_current(&self) -> bool {
        self.current.unwrap_or(true)
    }
}
