//! Log lines about refused clients and refused operations. Seawall may refuse thousands of them in
//! a second, so each reason is logged at most once a minute, with the number of refusals.

use std::collections::BTreeMap;

use tokio::time::Instant;

use crate::{
    observe::{RefusalTarget, RefusedCounts},
    runtime::OccasionalLog,
};

/// What was refused, and the reason.
type RefusalKey = (RefusalTarget, &'static str);

/// The refusals that have not been logged yet, by reason.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(BTreeMap<RefusalKey, OccasionalLog>);

impl RefusalLog {
    /// Adds new refusals, and writes the log lines that are due. Must be called once a second.
    pub(super) fn add(&mut self, fresh: &RefusedCounts, now: Instant) {
        for (key, refused) in self.due(fresh, now) {
            log(key, refused);
        }
    }

    /// Adds new refusals, and logs all refusals that have not been logged yet.
    pub(super) fn end(&mut self, fresh: &RefusedCounts, now: Instant) {
        self.add(fresh, now);
        for (key, reason) in std::mem::take(&mut self.0) {
            let refused = reason.unlogged();
            if refused > 0 {
                log(key, refused);
            }
        }
    }

    /// Adds new refusals. Returns the reasons for which a log line is due, with the number of
    /// refusals since the previous line.
    fn due(&mut self, fresh: &RefusedCounts, now: Instant) -> RefusedCounts {
        for key in fresh.keys() {
            self.0.entry(*key).or_default();
        }
        let due = self.0.iter().filter_map(|(key, reason)| {
            let refused = fresh.get(key).copied().unwrap_or_default();
            Some((*key, reason.add(refused, now)?))
        });
        due.collect()
    }
}

fn log((what, reason): RefusalKey, refused: u64) {
    match what {
        RefusalTarget::Client => tracing::warn!(reason, refused, "clients refused"),
        RefusalTarget::Operation => tracing::warn!(reason, refused, "operations refused"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_reason_is_logged_at_most_once_a_minute_with_the_number_of_refusals() {
        let mut log = RefusalLog::default();
        let began = Instant::now();
        let clients = (RefusalTarget::Client, "max_client_connections");
        let operations = (RefusalTarget::Operation, "wait_queue_timeout");
        let mut due = |seconds, fresh: &[(RefusalKey, u64)]| {
            let now = began + Duration::from_secs(seconds);
            let due = log.due(&fresh.iter().copied().collect(), now);
            due.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(due(0, &[]), []);
        assert_eq!(due(1, &[(clients, 3)]), [(clients, 3)]);
        assert_eq!(due(2, &[(clients, 2), (operations, 1)]), [(operations, 1)]);
        assert_eq!(due(60, &[(clients, 5)]), []);
        // A line about earlier refusals needs no further refusal.
        assert_eq!(due(61, &[]), [(clients, 7)]);
    }
}
