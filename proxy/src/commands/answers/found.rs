//! Responses about storms, stalls, changes and pools.

use serde::Deserialize;

use super::Shape;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Storms {
    pub(in crate::commands) active: bool,
    pub(in crate::commands) learning: bool,
    pub(in crate::commands) storms: Vec<Storm>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Storm {
    pub(in crate::commands) started_at: f64,
    pub(in crate::commands) ended_at: Option<f64>,
    pub(in crate::commands) arrivals: u64,
    pub(in crate::commands) peak_arrivals_per_second: f64,
    pub(in crate::commands) usual_short_lived_per_second: f64,
    pub(in crate::commands) applications: Vec<Named>,
    pub(in crate::commands) networks: Vec<Named>,
    pub(in crate::commands) client_authentications: u64,
    pub(in crate::commands) server_connections_created: u64,
    pub(in crate::commands) server_connections_absorbed: u64,
    pub(in crate::commands) server_authentications_absorbed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Named {
    pub(in crate::commands) name: String,
    pub(in crate::commands) count: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Stalls {
    pub(in crate::commands) pulse: Pulse,
    pub(in crate::commands) episodes: Vec<Episode>,
    pub(in crate::commands) recurring: Vec<Recurring>,
}

/// The sampling of the servers' `serverStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Pulse {
    /// `on`, or `off: ` and the reason.
    pub(in crate::commands) state: String,
    pub(in crate::commands) answered: u64,
    pub(in crate::commands) unanswered: u64,
    pub(in crate::commands) refused: u64,
    pub(in crate::commands) mean_ms: f64,
    /// The limits of the sampling in this deployment; empty if there are none.
    pub(in crate::commands) note: String,
}

/// A period in which latency was far above the usual.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Episode {
    /// `None` means all servers.
    pub(in crate::commands) server: Option<String>,
    pub(in crate::commands) started_at: f64,
    pub(in crate::commands) seconds: f64,
    pub(in crate::commands) operations: u64,
    pub(in crate::commands) waited_ms: f64,
    pub(in crate::commands) phase: String,
    pub(in crate::commands) usual_p99_ms: f64,
    pub(in crate::commands) worst_ms: f64,
    pub(in crate::commands) shapes: Vec<Shape>,
    pub(in crate::commands) moved: Vec<Moved>,
    pub(in crate::commands) unanswered_pulses: u64,
}

/// A server counter whose value during a stall differs from its usual value.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Moved {
    pub(in crate::commands) counter: String,
    pub(in crate::commands) during: f64,
    pub(in crate::commands) otherwise: f64,
}

/// A stall that recurs periodically.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Recurring {
    pub(in crate::commands) server: Option<String>,
    pub(in crate::commands) period_seconds: f64,
    pub(in crate::commands) length_seconds: f64,
    pub(in crate::commands) times: u64,
    pub(in crate::commands) last_at: f64,
    /// `None` if the proxy does not report it.
    pub(in crate::commands) current: Option<bool>,
    pub(in crate::commands) phase: String,
    pub(in crate::commands) counter: Option<String>,
    pub(in crate::commands) unanswered: bool,
}

impl Recurring {
    /// True if the stall still recurs. Assumed if the proxy does not report it.
    pub(in crate::commands) fn is_current(&self) -> bool {
        self.current.unwrap_or(true)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Changes {
    /// The name of the baseline.
    pub(in crate::commands) against: String,
    /// `None` if the proxy does not report it.
    pub(in crate::commands) comparable: Option<bool>,
    /// The reason why the periods are not comparable.
    pub(in crate::commands) reason: String,
    pub(in crate::commands) baseline: Span,
    pub(in crate::commands) now: Span,
    pub(in crate::commands) changes: Vec<Change>,
}

impl Changes {
    /// The reason why the periods were not compared. `None` if they were.
    pub(in crate::commands) fn incomparable(&self) -> Option<&str> {
        (self.comparable == Some(false)).then_some(&self.reason)
    }
}

/// One of the two periods that are compared.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Span {
    /// In seconds since the epoch; 0 if not reported.
    pub(in crate::commands) from: f64,
    pub(in crate::commands) to: f64,
    /// The seconds of the span for which there is data.
    pub(in crate::commands) seconds: f64,
    pub(in crate::commands) count: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Change {
    pub(in crate::commands) kind: String,
    pub(in crate::commands) shape: Shape,
    pub(in crate::commands) before: Rates,
    pub(in crate::commands) now: Rates,
    /// `None` if the divisor is 0.
    pub(in crate::commands) ratio: Option<f64>,
    pub(in crate::commands) effect: f64,
    pub(in crate::commands) cost_ms_per_second: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Rates {
    pub(in crate::commands) count: u64,
    pub(in crate::commands) per_second: f64,
    pub(in crate::commands) p50_ms: f64,
    pub(in crate::commands) p99_ms: f64,
    pub(in crate::commands) total_time_ms_per_second: f64,
    pub(in crate::commands) bytes_per_operation: f64,
    pub(in crate::commands) documents_per_operation: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Pools {
    pub(in crate::commands) pools: Vec<Pool>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Pool {
    pub(in crate::commands) server: String,
    pub(in crate::commands) state: String,
    pub(in crate::commands) pending: u64,
    pub(in crate::commands) available: u64,
    pub(in crate::commands) in_use: u64,
    pub(in crate::commands) wait_queue: u64,
    pub(in crate::commands) users: Vec<PoolUser>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct PoolUser {
    pub(in crate::commands) name: String,
    pub(in crate::commands) source: String,
    pub(in crate::commands) pending: u64,
    pub(in crate::commands) available: u64,
    pub(in crate::commands) in_use: u64,
    pub(in crate::commands) wait_queue: u64,
}

impl Change {
    /// The effect as a share of pairs of operations, one from each period. `None` for a shape that
    /// exists in only one period.
    pub(in crate::commands) fn share_of_pairs(&self) -> Option<f64> {
        self.times().map(|_| self.effect)
    }

    /// The factor of the change. `None` for a shape that exists in only one period.
    pub(in crate::commands) fn times(&self) -> Option<f64> {
        let is_on_both_sides = self.before.per_second > 0.0 && self.now.per_second > 0.0;
        self.ratio.filter(|_| is_on_both_sides)
    }
}
