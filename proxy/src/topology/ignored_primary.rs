//! A primary that the official driver ignores.
//!
//! The driver (3.9) compares the versions of a replica set's configuration before the ids of its
//! elections. For servers from 6.0 on, the specification "Server Discovery and Monitoring" requires
//! the opposite order. If a primary is lost before it has replicated a new configuration, the
//! driver considers each later primary outdated. A new client of the driver accepts the later
//! primary.

use std::time::Duration;

use tokio::time::Instant;

use seawall_transport::connection::ServerAddress;

/// Seawall restarts the monitoring after probes have found a primary for this time while the driver
/// knows none. The driver usually notices a new primary within one heartbeat.
const IGNORED_FOR: Duration = Duration::from_secs(20);

/// Minimum time between two restarts of the monitoring because of an ignored primary.
const PAUSE: Duration = Duration::from_secs(60);

/// The primary that probes have found while the driver knows none, and the last restart of the
/// monitoring.
#[derive(Debug, Default)]
pub(super) struct IgnoredPrimary {
    found: Option<(ServerAddress, Instant)>,
    last_restart: Option<Instant>,
}

impl IgnoredPrimary {
    /// Records that the driver knows a primary.
    pub(super) fn clear(&mut self) {
        self.found = None;
    }

    /// Records the reply of a server to a probe, while the driver knows no primary. Returns true if
    /// Seawall must restart the monitoring.
    pub(super) fn see(&mut self, server: &ServerAddress, is_primary: bool, now: Instant) -> bool {
        let known = self.found.as_ref().filter(|(found, _)| found == server);
        let since = known.map(|(_, since)| *since);
        if !is_primary {
            if since.is_some() {
                self.found = None;
            }
            return false;
        }
        let since = since.unwrap_or(now);
        self.found = Some((server.clone(), since));
        let is_paused = self.last_restart.is_some_and(|last| now - last < PAUSE);
        let is_due = now - since >= IGNORED_FOR && !is_paused;
        if is_due {
            self.last_restart = Some(now);
            self.found = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitoring_restarts_at_most_once_a_minute_if_the_driver_ignores_a_primary_for_20_s() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let [a, b]: [ServerAddress; 2] = ["a:1", "b:1"].map(|server| server.parse().unwrap());
        let mut ignored = IgnoredPrimary::default();
        let dues = [0, 10, 20, 30, 50, 79, 80].map(|seconds| ignored.see(&a, true, at(seconds)));
        assert_eq!(dues, [false, false, true, false, false, false, true]);
        // The wait of 20 s starts again for another primary, after a step-down, and after the
        // driver has known a primary.
        assert!(!ignored.see(&a, true, at(200)));
        assert!(!ignored.see(&b, true, at(220)));
        assert!(!ignored.see(&a, false, at(230)));
        assert!(!ignored.see(&b, false, at(235)));
        assert!(!ignored.see(&b, true, at(240)));
        ignored.clear();
        assert!(!ignored.see(&b, true, at(260)));
        assert!(ignored.see(&b, true, at(280)));
    }
}
