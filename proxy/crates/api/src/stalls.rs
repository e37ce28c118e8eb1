//! Stalls, periods in which operations took far longer than usual: `/api/v1/stalls`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The stalls of a period, and the stalls that recur.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stalls {
    /// The stalls, the latest first.
    pub episodes: Vec<Episode>,
    /// The state of the sampling: Seawall regularly reads `serverStatus` from each server.
    pub pulse: Pulse,
    /// The stalls that recur.
    pub recurring: Vec<Recurring>,
}

/// The sampling of the servers' `serverStatus`. If the sampling is off, all members except `state`
/// and `note` are absent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pulse {
    /// Number of samples to which the server replied with its counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answered: Option<u64>,
    /// The longest round-trip time of the samples that `answered` counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_ms: Option<f64>,
    /// The mean round-trip time of the samples that `answered` counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_ms: Option<f64>,
    /// A note about data that the samples lack in this deployment. Absent if there is nothing to
    /// note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The error text of each server that refused its last sample, by server address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<BTreeMap<String, String>>,
    /// Number of samples that a server refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// The state of the sampling: `on`, or `off: ` and the reason. Empty if not reported.
    pub state: String,
    /// Number of samples that got no reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unanswered: Option<u64>,
}

/// A stall: a period in which latency was far above its usual value.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Episode {
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The server's counters that differed most from their usual values.
    pub moved: Vec<Moved>,
    /// Number of operations that took far longer than usual.
    pub operations: u64,
    /// The phase that was prolonged most: the phase whose time exceeds its usual time the most.
    pub phase: String,
    /// The length of the stall.
    pub seconds: f64,
    /// The address of the stalled server. `None` in two cases: the stall affected the whole
    /// deployment, or it delayed operations for which no server had been selected yet.
    pub server: Option<String>,
    /// The shapes that have the highest numbers of delayed operations, in descending order of this
    /// number.
    pub shapes: Vec<WaitingShape>,
    /// The start of the stall, in seconds since the epoch.
    pub started_at: f64,
    /// Number of Seawall's regular reads of the server's `serverStatus` that got no reply during
    /// the stall.
    pub unanswered_pulses: u64,
    /// The usual 99th percentile of the operations' durations.
    pub usual_p99_ms: f64,
    /// The sum of the durations of the operations that `operations` counts.
    pub waited_ms: f64,
    /// The duration of the longest operation.
    pub worst_ms: f64,
}

/// A shape with operations that a stall delayed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitingShape {
    /// The collection; empty if there is none.
    pub collection: String,
    /// The command's name.
    pub command: String,
    /// The database.
    pub db: String,
    /// The shape's id: 16 hexadecimal digits.
    pub id: String,
    /// `fine` if one shape is counted, `coarse` if several similar shapes are counted together,
    /// `rest` if the remaining shapes of a namespace are counted together.
    pub level: String,
    /// Number of the shape's operations that took more than twice [`Episode::usual_p99_ms`].
    pub operations: u64,
    /// The shape's text, without values.
    pub text: String,
}

/// A server counter whose value during a stall differs from its usual value.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Moved {
    /// The counter's name in `serverStatus`.
    pub counter: String,
    /// The counter's value during the stall.
    pub during: f64,
    /// The counter's usual value.
    pub otherwise: f64,
    /// The difference between `during` and `otherwise`, in standard deviations.
    pub score: f64,
}

/// A stall that recurs periodically.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Recurring {
    /// The server counter whose value during the stalls differs most from its usual value.
    pub counter: Option<String>,
    /// True if the stall still recurs. `None` if the proxy does not report this member.
    pub current: Option<bool>,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The start of the last stall, in seconds since the epoch.
    pub last_at: f64,
    /// The median length of the stalls.
    pub length_seconds: f64,
    /// The regular interval at which the stalls start, fitted to the starts of all stalls.
    pub period_seconds: f64,
    /// The most frequent [`Episode::phase`] of the stalls.
    pub phase: String,
    /// The address of the stalled server; `None` in the same two cases as [`Episode::server`].
    pub server: Option<String>,
    /// Number of stalls.
    pub times: u64,
    /// True if, in most of the stalls, at least one of Seawall's regular reads of the server's
    /// `serverStatus` got no reply.
    pub unanswered: bool,
}

impl Recurring {
    /// True if the stall still recurs. Also true if the proxy does not report [`Self::current`].
    pub fn is_current(&self) -> bool {
        self.current.unwrap_or(true)
    }
}
