//! A primary that the official driver ignores.
//!
//! The driver (3.9) compares the versions of a replica set's configuration before the ids of its
//! elections, also for servers from 6.0 on. The specification "Server Discovery and Monitoring"
//! compares the election ids first for these servers. If a primary is lost before it has replicated
//! a new configuration, the driver considers each later primary outdated. A new client of the driver
//! accepts it.

use std::time::Duration;

use tokio::time::Instant;

/// How long probes must find a primary, while the driver knows none, before monitoring begins
/// again. The driver usually notices a new primary within one heartbeat.
const IGNORED_FOR: Duration = Duration::from_secs(20);

/// Minimum time between two new beginnings of monitoring because of an ignored primary.
const PAUSE: Duration = Duration::from_secs(60);

/// Since when the driver has ignored a primary.
#[derive(Debug, Default)]
pub(super) struct IgnoredPrimary {
    since: Option<Instant>,
    last_restart: Option<Instant>,
}

impl IgnoredPrimary {
    /// Records that the driver knows a primary.
    pub(super) fn clear(&mut self) {
        self.since = None;
    }

    /// Records that a probe has found a primary, while the driver knows none. Returns true if
    /// monitoring must begin again.
    pub(super) fn see(&mut self, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_paused = self.last_restart.is_some_and(|last| now - last < PAUSE);
        let is_due = now - since >= IGNORED_FOR && !is_paused;
        if is_due {
            self.last_restart = Some(now);
            self.since = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitoring_begins_again_if_the_driver_ignores_a_primary_for_20_s_but_once_a_minute() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut ignored = IgnoredPrimary::default();
        let dues = [0, 10, 20, 30, 50, 79, 80].map(|seconds| ignored.see(at(seconds)));
        assert_eq!(dues, [false, false, true, false, false, false, true]);
        ignored.clear();
        assert!(!ignored.see(at(200)));
        assert!(ignored.see(at(220)));
    }
}
