//! The least progress that a peer has to make with a message while others wait for what it holds.
//!
//! Only the time counts in which the peer owes bytes, or has to take some, and Seawall itself is ready. The rate is an average
//! over [`RATE_WINDOW`] of that time. Who enforces it does so only while others wait. [`MESSAGE_LIMIT`] holds in any case.

use std::time::Duration;

use tokio::time::Instant;

/// Bytes a second that a peer has to bring or take on average.
pub(super) const LEAST_BYTES_PER_SECOND: usize = 8 * 1024;

/// What that average is taken over.
pub(super) const RATE_WINDOW: Duration = Duration::from_secs(30);

/// How long a message may take to come, or to go, also while no other waits.
pub const MESSAGE_LIMIT: Duration = Duration::from_secs(3600);

/// How fast a peer brings or takes the bytes of messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Since when the peer has owed the next byte.
    owing_since: Option<Instant>,
    /// Owed time in this window, without the current wait.
    owed: Duration,
    /// Bytes in this window.
    bytes: usize,
    /// Whether the window before was below the least rate.
    was_slow: bool,
}

impl Progress {
    /// The peer owes bytes from now on, if it has not done so before.
    pub fn owes(&mut self, now: Instant) {
        self.owing_since.get_or_insert(now);
    }

    /// Seawall is not ready for its bytes.
    pub fn pause(&mut self, now: Instant) {
        self.owed = self.owed_by(now);
        self.owing_since = None;
    }

    /// The peer brought or took bytes.
    pub fn moved(&mut self, bytes: usize, now: Instant) {
        self.pause(now);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.owed >= RATE_WINDOW {
            self.was_slow = self.is_below_rate(now);
            self.owed = Duration::ZERO;
            self.bytes = 0;
        }
    }

    /// Whether the peer has been slower than the least rate for a whole window.
    pub fn is_slow(&self, now: Instant) -> bool {
        let waits = self
            .owing_since
            .map(|since| now.saturating_duration_since(since));
        if waits.is_some_and(|waits| waits >= RATE_WINDOW) {
            return true;
        }
        let is_judged = self.was_slow || self.owed_by(now) >= RATE_WINDOW;
        is_judged && self.is_below_rate(now)
    }

    /// Whether the peer owes bytes.
    pub fn is_owing(&self) -> bool {
        self.owing_since.is_some()
    }

    fn owed_by(&self, now: Instant) -> Duration {
        let waits = self
            .owing_since
            .map(|since| now.saturating_duration_since(since));
        self.owed + waits.unwrap_or_default()
    }

    fn is_below_rate(&self, now: Instant) -> bool {
        let milliseconds = self.owed_by(now).as_millis();
        let least = usize::try_from(milliseconds / 1000).unwrap_or(usize::MAX);
        self.bytes < least.saturating_mul(LEAST_BYTES_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A peer that moves this many bytes in each second. Gives the seconds in which it is slow, at the end of each.
    fn slow_seconds(bytes_per_second: impl Fn(u64) -> usize, seconds: u64) -> Vec<u64> {
        let began = Instant::now();
        let mut progress = Progress::default();
        (0..seconds)
            .filter(|second| {
                let now = began + SECOND * u32::try_from(*second).unwrap();
                progress.owes(now);
                let is_slow = progress.is_slow(now + SECOND);
                match bytes_per_second(*second) {
                    0 => {}
                    bytes => progress.moved(bytes, now + SECOND),
                }
                is_slow
            })
            .collect()
    }

    #[test]
    fn a_peer_is_slow_after_a_window_below_the_rate() {
        let after_a_window: Vec<_> = (29..100).collect();
        assert_eq!(slow_seconds(|_| 0, 100), after_a_window);
        assert_eq!(
            slow_seconds(|_| 1, 100).len(),
            71,
            "also right after a byte"
        );
        assert!(slow_seconds(|_| 9 * 1024, 100).is_empty());
        // The average counts, not each second.
        let bursts = |second| match second % 5 {
            0 => 8 * LEAST_BYTES_PER_SECOND,
            _ => 0,
        };
        assert!(slow_seconds(bursts, 100).is_empty());
    }

    #[test]
    fn a_peer_that_becomes_fast_enough_is_slow_no_more() {
        let rate = |second| {
            if second < 30 {
                1
            } else {
                2 * LEAST_BYTES_PER_SECOND
            }
        };
        assert_eq!(slow_seconds(rate, 100), [29, 30]);
    }

    #[test]
    fn time_in_which_seawall_is_not_ready_counts_for_nothing() {
        let began = Instant::now();
        let mut progress = Progress::default();
        progress.owes(began);
        progress.pause(began + 20 * SECOND);
        assert!(!progress.is_slow(began + 1000 * SECOND));
        progress.owes(began + 1000 * SECOND);
        assert!(!progress.is_slow(began + 1009 * SECOND));
        assert!(progress.is_slow(began + 1010 * SECOND));
    }
}
