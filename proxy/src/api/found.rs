//! Responses about stalls and changes.

use serde::{Deserialize, Serialize};

use super::{Shape, as_integer};

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Stalls {
    pub(crate) pulse: Pulse,
    pub(crate) episodes: Vec<Episode>,
    pub(crate) recurring: Vec<Recurring>,
}

/// The sampling of the servers' `serverStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Pulse {
    /// `on`, or `off: ` and the reason.
    pub(crate) state: String,
    pub(crate) answered: u64,
    pub(crate) unanswered: u64,
    pub(crate) refused: u64,
    pub(crate) mean_ms: f64,
    /// The limits of the sampling in this deployment; empty if there are none.
    pub(crate) note: String,
}

/// A period in which latency was far above the usual.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Episode {
    /// `None` means all servers.
    pub(crate) server: Option<String>,
    pub(crate) started_at: f64,
    pub(crate) seconds: f64,
    pub(crate) operations: u64,
    pub(crate) waited_ms: f64,
    pub(crate) phase: String,
    pub(crate) usual_p99_ms: f64,
    pub(crate) worst_ms: f64,
    pub(crate) shapes: Vec<Shape>,
    pub(crate) moved: Vec<Moved>,
    pub(crate) unanswered_pulses: u64,
}

/// A server counter whose value during a stall differs from its usual value.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Moved {
    pub(crate) counter: String,
    pub(crate) during: f64,
    pub(crate) otherwise: f64,
    /// The distance between the two in standard deviations.
    pub(crate) score: f64,
}

/// A stall that recurs periodically.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recurring {
    /// The server counter that moves most with it.
    pub(crate) counter: Option<String>,
    /// `None` if the proxy does not report it.
    pub(crate) current: Option<bool>,
    /// The start of the last one, in seconds since the epoch.
    pub(crate) last_at: f64,
    pub(crate) length_seconds: f64,
    pub(crate) period_seconds: f64,
    pub(crate) phase: String,
    /// `None` means all servers.
    pub(crate) server: Option<String>,
    pub(crate) times: u64,
    pub(crate) unanswered: bool,
}

impl Recurring {
    /// True if the stall still recurs. Assumed if the proxy does not report it.
    pub(crate) fn is_current(&self) -> bool {
        self.current.unwrap_or(true)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Changes {
    /// The name of the baseline.
    pub(crate) against: String,
    /// `None` if the proxy does not report it.
    pub(crate) comparable: Option<bool>,
    /// The reason why the periods are not comparable.
    pub(crate) reason: String,
    pub(crate) baseline: Span,
    pub(crate) now: Span,
    pub(crate) changes: Vec<Change>,
}

impl Changes {
    /// The reason why the periods were not compared. `None` if they were.
    pub(crate) fn incomparable(&self) -> Option<&str> {
        (self.comparable == Some(false)).then_some(&self.reason)
    }
}

/// One of the two periods that are compared.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Span {
    pub(crate) count: u64,
    /// In seconds since the epoch; 0 if not reported.
    #[serde(serialize_with = "as_integer")]
    pub(crate) from: f64,
    /// The seconds of the span for which there is data.
    #[serde(serialize_with = "as_integer")]
    pub(crate) seconds: f64,
    /// In seconds since the epoch; 0 if not reported.
    #[serde(serialize_with = "as_integer")]
    pub(crate) to: f64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Change {
    pub(crate) kind: String,
    pub(crate) shape: Shape,
    pub(crate) before: Rates,
    pub(crate) now: Rates,
    /// `None` if the divisor is 0.
    pub(crate) ratio: Option<f64>,
    pub(crate) effect: f64,
    pub(crate) cost_ms_per_second: f64,
}

/// The figures of one side of a change.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Rates {
    pub(crate) bytes_per_operation: f64,
    pub(crate) count: u64,
    pub(crate) documents_per_operation: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) per_second: f64,
    pub(crate) total_time_ms_per_second: f64,
}

impl Change {
    /// The effect as a share of pairs of operations, one from each period. `None` for a shape that
    /// exists in only one period.
    pub(crate) fn share_of_pairs(&self) -> Option<f64> {
        self.times().map(|_| self.effect)
    }

    /// The factor of the change. `None` for a shape that exists in only one period.
    pub(crate) fn times(&self) -> Option<f64> {
        let is_on_both_sides = self.before.per_second > 0.0 && self.now.per_second > 0.0;
        self.ratio.filter(|_| is_on_both_sides)
    }
}
