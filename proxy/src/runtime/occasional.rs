//! Limits how often Seawall logs events that may occur often.

use std::time::Duration;

use tokio::time::Instant;

use seawall_locks::Mutex;

/// Shortest time between two log lines about the same kind of event.
const INTERVAL: Duration = Duration::from_secs(60);

/// Decides when an event that may occur often is logged: at most once a minute.
#[derive(Debug, Default)]
pub struct OccasionalLog(Mutex<Unlogged>);

#[derive(Debug, Default)]
struct Unlogged {
    /// The number of events since the last log line.
    events: u64,
    logged_at: Option<Instant>,
}

impl OccasionalLog {
    /// Counts an event. If a log line is due, returns the number of events since the last line,
    /// including this event.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        self.add(1, now)
    }

    /// Counts several events or none. If a log line is due, returns the number of events since the
    /// last line. No line is due if there was no event.
    pub(crate) fn add(&self, events: u64, now: Instant) -> Option<u64> {
        let mut unlogged = self.0.lock();
        unlogged.events += events;
        let is_recent = |at: Instant| now.duration_since(at) < INTERVAL;
        if unlogged.events == 0 || unlogged.logged_at.is_some_and(is_recent) {
            return None;
        }
        unlogged.logged_at = Some(now);
        Some(std::mem::take(&mut unlogged.events))
    }

    /// Number of events since the last log line.
    pub(crate) fn unlogged(&self) -> u64 {
        self.0.lock().events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_events_are_all_counted_but_logged_at_most_once_a_minute() {
        let log = OccasionalLog::default();
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let due = [0, 1, 59, 60, 61, 130].map(|seconds| log.count(at(seconds)));
        assert_eq!(due, [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
