//! Measures how much the times at which commands were sent differ from the times at which they were
//! due.

use std::time::Duration;

use seawall_stats::Distribution;
use tokio::time::Instant;

/// The times at which a command was due, and at which it was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub due: Instant,
    pub at: Instant,
}

impl Sent {
    /// Compares this command with an earlier command (`before`) on the same connection. Returns how
    /// much the time between the two sends differs from the time between the two due times.
    fn interval_error(self, before: Self) -> Duration {
        let passed = self.at.saturating_duration_since(before.at);
        let captured = self.due.saturating_duration_since(before.due);
        passed.abs_diff(captured)
    }
}

/// The lag of all commands (how long after its due time a command was sent), and the interval
/// errors: how much the interval between two commands of a connection differed from the interval
/// between their due times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timing {
    pub lag: Distribution,
    pub interval_error: Distribution,
}

impl Timing {
    /// Adds a command. `before` is the command that was sent before it on the same connection.
    pub(crate) fn add(&mut self, before: Option<Sent>, sent: Sent) {
        self.lag.record(sent.at.saturating_duration_since(sent.due));
        if let Some(before) = before {
            self.interval_error.record(sent.interval_error(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An *interval* is the time between two commands that are sent on one connection.
    #[test]
    fn the_interval_error_is_the_difference_between_the_planned_and_the_actual_interval() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let sent = |due_ms, at_ms| Sent {
            due: at(due_ms),
            at: at(at_ms),
        };
        let mut timing = Timing::default();
        timing.add(None, sent(100, 107));
        timing.add(Some(sent(100, 107)), sent(200, 207));
        assert_eq!(timing.interval_error.max(), Duration::ZERO);
        timing.add(Some(sent(200, 207)), sent(300, 303));
        assert_eq!(timing.interval_error.max(), Duration::from_millis(4));
        timing.add(Some(sent(300, 303)), sent(400, 410));
        assert_eq!(timing.interval_error.max(), Duration::from_millis(7));
        assert_eq!(timing.interval_error.count(), 3);
        assert_eq!(
            (timing.lag.count(), timing.lag.max()),
            (4, Duration::from_millis(10))
        );
    }
}
