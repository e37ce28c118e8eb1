//! Answers about what was found: storms, stalls, changes; and the pools.

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

/// How the servers' state is asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Pulse {
    /// `on`, or `off: ` and why.
    pub(in crate::commands) state: String,
    pub(in crate::commands) answered: u64,
    pub(in crate::commands) unanswered: u64,
    pub(in crate::commands) refused: u64,
    pub(in crate::commands) mean_ms: f64,
    /// What it cannot tell, if there is something.
    pub(in crate::commands) note: String,
}

/// A time in which latency left its normal.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Episode {
    /// None: all servers.
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

/// A counter of the server that moved during a stall.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Moved {
    pub(in crate::commands) counter: String,
    pub(in crate::commands) during: f64,
    pub(in crate::commands) otherwise: f64,
}

/// A stall that comes again and again.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Recurring {
    pub(in crate::commands) server: Option<String>,
    pub(in crate::commands) period_seconds: f64,
    pub(in crate::commands) length_seconds: f64,
    pub(in crate::commands) times: u64,
    pub(in crate::commands) last_at: f64,
    /// None: a proxy that does not say.
    pub(in crate::commands) current: Option<bool>,
    pub(in crate::commands) phase: String,
    pub(in crate::commands) counter: Option<String>,
    pub(in crate::commands) unanswered: bool,
}

impl Recurring {
    /// Whether it is to be expected again.
    pub(in crate::commands) fn is_current(&self) -> bool {
        self.current.unwrap_or(true)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Changes {
    /// What now is held against, by name.
    pub(in crate::commands) against: String,
    /// None: a proxy that does not say.
    pub(in crate::commands) comparable: Option<bool>,
    /// Why not.
    pub(in crate::commands) reason: String,
    pub(in crate::commands) baseline: Span,
    pub(in crate::commands) now: Span,
    pub(in crate::commands) changes: Vec<Change>,
}

impl Changes {
    /// Why nothing is said of changes, where that is so.
    pub(in crate::commands) fn incomparable(&self) -> Option<&str> {
        (self.comparable == Some(false)).then_some(&self.reason)
    }
}

/// One of the two periods that are compared.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Span {
    /// In seconds since the epoch; 0: not told.
    pub(in crate::commands) from: f64,
    pub(in crate::commands) to: f64,
    /// How much of it is known.
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
    /// None where there is nothing to divide by.
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
    /// How much of it there is in pairs of operations; what is only on one side has no pairs.
    pub(in crate::commands) fn share_of_pairs(&self) -> Option<f64> {
        self.times().map(|_| self.effect)
    }

    /// How many times more or less; of what is only on one side there is nothing to say.
    pub(in crate::commands) fn times(&self) -> Option<f64> {
        let is_on_both_sides = self.before.per_second > 0.0 && self.now.per_second > 0.0;
        self.ratio.filter(|_| is_on_both_sides)
    }
}
