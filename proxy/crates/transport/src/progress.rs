//! The minimum rate at which a peer must send or read a message while other clients wait for the
//! resources that the message holds.
//!
//! Time counts only while Seawall waits for the peer to send or read bytes. The rate is an average
//! over [`RATE_WINDOW`] of this time. Callers enforce the rate only while other clients wait.
//! [`MESSAGE_LIMIT`] always applies.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum number of bytes that a peer must send or read per second, on average.
pub(super) const LEAST_BYTES_PER_SECOND: usize = 8 * 1024;

/// How long Seawall waits for a peer, in total, before the average rate of the peer is computed.
pub(super) const RATE_WINDOW: Duration = Duration::from_secs(30);

/// Maximum time to receive or send one message, even if no other client waits.
pub const MESSAGE_LIMIT: Duration = Duration::from_secs(3600);

/// Measures how fast a peer sends or reads the bytes of messages. The peer is *owing* while Seawall
/// waits for the peer to send or read bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// When the current wait for the peer began; `None` if Seawall does not wait for the peer.
    owing_since: Option<Instant>,
    /// How long Seawall has waited for the peer in the current [`RATE_WINDOW`], without the current
    /// wait.
    waited: Duration,
    /// Number of bytes that the peer has sent or read in the current [`RATE_WINDOW`].
    bytes: usize,
    /// True if the peer's rate in the previous [`RATE_WINDOW`] was below the minimum rate.
    was_slow: bool,
}

impl Progress {
    /// Records that Seawall waits for the peer from now on. No effect if it already waits.
    pub fn mark_owing(&mut self, now: Instant) {
        self.owing_since.get_or_insert(now);
    }

    /// Records that Seawall does not wait for the peer now, because Seawall itself is not ready.
    pub fn pause(&mut self, now: Instant) {
        self.waited = self.waited_until(now);
        self.owing_since = None;
    }

    /// Records that the peer has sent or read bytes, and that Seawall does not wait for the peer
    /// now.
    pub fn record_bytes(&mut self, bytes: usize, now: Instant) {
        self.pause(now);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.waited >= RATE_WINDOW {
            self.was_slow = self.is_below_rate(now);
            self.waited = Duration::ZERO;
            self.bytes = 0;
        }
    }

    /// True if the peer's average rate in the current `RATE_WINDOW` is below the minimum rate. This
    /// rate counts only if the window is complete, or if the rate was too low in the previous
    /// window. The result is also true if the current wait alone lasts a whole window.
    pub fn is_slow(&self, now: Instant) -> bool {
        let waits = self
            .owing_since
            .map(|since| now.saturating_duration_since(since));
        if waits.is_some_and(|waits| waits >= RATE_WINDOW) {
            return true;
        }
        let is_measured = self.was_slow || self.waited_until(now) >= RATE_WINDOW;
        is_measured && self.is_below_rate(now)
    }

    /// True if Seawall waits for the peer.
    pub(crate) fn is_owing(&self) -> bool {
        self.owing_since.is_some()
    }

    fn waited_until(&self, now: Instant) -> Duration {
        let waits = self
            .owing_since
            .map(|since| now.saturating_duration_since(since));
        self.waited + waits.unwrap_or_default()
    }

    fn is_below_rate(&self, now: Instant) -> bool {
        let milliseconds = self.waited_until(now).as_millis();
        let least = usize::try_from(milliseconds / 1000).unwrap_or(usize::MAX);
        self.bytes < least.saturating_mul(LEAST_BYTES_PER_SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Simulates a peer that sends `bytes_per_second(second)` bytes in each second. Returns the
    /// seconds at whose end the peer is slow.
    fn slow_seconds(bytes_per_second: impl Fn(u64) -> usize, seconds: u64) -> Vec<u64> {
        let began = Instant::now();
        let mut progress = Progress::default();
        (0..seconds)
            .filter(|second| {
                let now = began + SECOND * u32::try_from(*second).unwrap();
                progress.mark_owing(now);
                let is_slow = progress.is_slow(now + SECOND);
                match bytes_per_second(*second) {
                    0 => {}
                    bytes => progress.record_bytes(bytes, now + SECOND),
                }
                is_slow
            })
            .collect()
    }

    #[test]
    fn a_peer_is_slow_if_its_average_rate_over_30_s_is_below_the_minimum_rate() {
        let after_a_window: Vec<_> = (29..100).collect();
        assert_eq!(slow_seconds(|_| 0, 100), after_a_window);
        assert_eq!(
            slow_seconds(|_| 1, 100).len(),
            71,
            "a peer that sends one byte per second stays slow"
        );
        assert!(slow_seconds(|_| 9 * 1024, 100).is_empty());
        // The average over the window counts, not the rate of each second.
        let bursts = |second| match second % 5 {
            0 => 8 * LEAST_BYTES_PER_SECOND,
            _ => 0,
        };
        assert!(slow_seconds(bursts, 100).is_empty());
    }

    #[test]
    fn a_peer_that_speeds_up_is_no_longer_slow() {
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
    fn time_in_which_seawall_does_not_wait_for_a_peer_does_not_count_for_its_rate() {
        let began = Instant::now();
        let mut progress = Progress::default();
        progress.mark_owing(began);
        progress.pause(began + 20 * SECOND);
        assert!(!progress.is_slow(began + 1000 * SECOND));
        progress.mark_owing(began + 1000 * SECOND);
        assert!(!progress.is_slow(began + 1009 * SECOND));
        assert!(progress.is_slow(began + 1010 * SECOND));
    }
}
