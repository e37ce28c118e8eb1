//! The result of one update of the controller: the limit, the reason for it, and the measurements
//! that led to it.

use std::{fmt, time::Duration};

/// The kind of load: what bounds the number of completed operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// No operation waited, so the limit had no effect.
    Idle,
    /// Operations waited during only a part of the window. Operations complete at the rate at which
    /// they arrive.
    ArrivalsBound,
    /// Operations waited all the time. The server completes as many operations per second as it can
    /// at this limit.
    ServerBound,
    /// Operations are in progress, and none completes.
    Stalled,
}

impl Load {
    /// The value of the field `load` in log lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::ArrivalsBound => "arrivals_bound",
            Self::ServerBound => "server_bound",
            Self::Stalled => "stalled",
        }
    }
}

/// The reason why an update kept or changed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The update ignored the sample, because the window of the sample began before the last reset
    /// of the controller.
    EarlierEpoch,
    /// No operation waits.
    NothingWaits,
    /// The measurement at the current limit needs more samples.
    Measuring,
    /// Connections for the raised limit are being established.
    WaitingForConnections,
    /// Another limit is compared with the current limit.
    Trying,
    /// The raised limit is kept: the server completed more work.
    RaisedForThroughput,
    /// The raised limit is kept: operations took less time, including their wait.
    RaisedForLatency,
    /// The lowered limit is kept: the server completed more work.
    LoweredForThroughput,
    /// The tried limit was not better by more than the noise, so the earlier limit is used again.
    NoGain,
    /// Operations wait, but fewer operations than the limit allows are in progress. So something
    /// else bounds this number, for example the number of connections, and another limit would have
    /// no effect.
    BoundElsewhere,
    /// The search for the best limit has ended. The limit stays until the next trial of another
    /// limit.
    Settled,
    /// The rate of completed operations has changed much since the search for the best limit ended,
    /// so this search begins again.
    RateChanged,
    /// No operation completes. The limit stays until the server replies.
    Stalled,
    /// The server replies again after a stall. The controller does not use the first samples after
    /// the stall to compare limits.
    Recovering,
    /// Almost every reply arrives too late (the operation has exceeded its time limit, or its
    /// client has left). The trial of another limit ends, and the limit is halved when enough
    /// replies were counted.
    NothingInTime,
    /// Operations take many times as long as on the unloaded server, so the limit is lowered step
    /// by step.
    Crowded,
    /// Lowering the limit of a crowded server cost throughput, so the earlier limit is used again.
    NotCrowded,
    /// The caller has reset the controller ([`Controller::reset`](crate::Controller::reset)).
    /// [`Controller::update`](crate::Controller::update) never returns this reason.
    Reset,
}

impl Reason {
    /// The value of the label `reason` in metrics. [`Display`](fmt::Display) gives a sentence.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EarlierEpoch => "earlier_epoch",
            Self::NothingWaits => "nothing_waits",
            Self::Measuring => "measuring",
            Self::WaitingForConnections => "waiting_for_connections",
            Self::Trying => "trying",
            Self::RaisedForThroughput => "raised_for_throughput",
            Self::RaisedForLatency => "raised_for_latency",
            Self::LoweredForThroughput => "lowered_for_throughput",
            Self::NoGain => "no_gain",
            Self::BoundElsewhere => "bound_elsewhere",
            Self::Settled => "settled",
            Self::RateChanged => "rate_changed",
            Self::Stalled => "stalled",
            Self::Recovering => "recovering",
            Self::NothingInTime => "nothing_in_time",
            Self::Crowded => "crowded",
            Self::NotCrowded => "not_crowded",
            Self::Reset => "reset",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EarlierEpoch => "ignored: the sample began before the last reset",
            Self::NothingWaits => "no operation waits",
            Self::Measuring => "measuring at the current limit",
            Self::WaitingForConnections => "establishing connections for the raised limit",
            Self::Trying => "trying another limit",
            Self::RaisedForThroughput => "raised: the server completed more work",
            Self::RaisedForLatency => "raised: operations took less time",
            Self::LoweredForThroughput => "lowered: the server completed more work",
            Self::NoGain => "restored: the tried limit was no better",
            Self::BoundElsewhere => "something else limits the operations in progress",
            Self::Settled => "settled at the current limit",
            Self::RateChanged => "searching again: the rate of completed operations changed",
            Self::Stalled => "the server completes no operations",
            Self::Recovering => "the server completes operations again",
            Self::NothingInTime => "almost every operation ends too late",
            Self::Crowded => "operations take many times as long as without load",
            Self::NotCrowded => "restored: the lower limit reduced throughput",
            Self::Reset => "reset: earlier measurements no longer apply",
        })
    }
}

/// The measurements that led to a decision, for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inputs {
    /// The kind of load: what bounds the number of completed operations.
    pub load: Load,
    /// Completed operations per second in the window, without those in `late`.
    pub completed_per_second: f64,
    /// Number of replies in the window that arrived too late to be useful
    /// ([`Sample::late`](crate::Sample::late)).
    pub late: u64,
    /// Sum of the waits of the operations that began in the window, divided by the number of
    /// completed operations.
    pub mean_wait: Duration,
    /// Mean server time of the completed operations: from sending the command to the end of the
    /// reply.
    pub mean_server_time: Duration,
    /// Smoothed server time of operations, as a multiple of their server time without load. 0 if it
    /// is unknown.
    pub crowding: f64,
    /// Relative gain that the last trial has measured so far, as a natural logarithm. For example,
    /// 0.05 means that the server completed 5 % more work or, if the load is
    /// [`Load::ArrivalsBound`], that operations took 5 % less time.
    pub gain: f64,
    /// Standard error of `gain`.
    pub noise: f64,
    /// Mean number of operations in progress during the window, without exempt operations.
    pub mean_in_progress: f64,
    /// Number of operations that wait at the end of the window.
    pub waiting: u64,
    /// Number of exempt operations (long operations that the limit does not count) at the end of
    /// the window.
    pub exempt: u64,
}

/// The result of one update.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Decision {
    /// Maximum number of operations in progress. Exempt operations (long operations that the limit
    /// does not count) are not included. At least 1.
    pub limit: u32,
    /// The limit before this update.
    pub previous: u32,
    /// The limit without the current trial: the best limit that the controller has found.
    pub settled: u32,
    /// The reason for the limit.
    pub reason: Reason,
    /// True if long operations may become exempt from the limit while other operations complete
    /// ([`Exemption`](crate::Exemption)). If false, long operations become exempt only while no
    /// operation completes, one per fixed interval.
    pub may_exempt: bool,
    /// The measurements that led to the decision.
    pub inputs: Inputs,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const REASONS: [Reason; 18] = [
        Reason::EarlierEpoch,
        Reason::NothingWaits,
        Reason::Measuring,
        Reason::WaitingForConnections,
        Reason::Trying,
        Reason::RaisedForThroughput,
        Reason::RaisedForLatency,
        Reason::LoweredForThroughput,
        Reason::NoGain,
        Reason::BoundElsewhere,
        Reason::Settled,
        Reason::RateChanged,
        Reason::Stalled,
        Reason::Recovering,
        Reason::NothingInTime,
        Reason::Crowded,
        Reason::NotCrowded,
        Reason::Reset,
    ];

    #[test]
    fn each_reason_of_a_decision_has_a_unique_name_and_a_unique_sentence() {
        let names = BTreeSet::from(REASONS.map(Reason::as_str));
        assert_eq!(names.len(), REASONS.len());
        let sentences = BTreeSet::from(REASONS.map(|reason| reason.to_string()));
        assert_eq!(sentences.len(), REASONS.len());
        for name in names {
            let is_snake_case = name.chars().all(|c| c == '_' || c.is_ascii_lowercase());
            assert!(is_snake_case, "{name}");
        }
    }
}
