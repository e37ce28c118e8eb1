//! Rate limits for each address or user.
//!
//! The generic cell rate algorithm: each key has a time until which it has paid, and each event
//! moves that time forward. It may be up to one second ahead of now, so a burst of one second's
//! worth is allowed. Source: ITU-T I.371, annex A.

use std::{hash::Hash, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::recent::{RecentMap, Retired};

/// The most keys that are remembered; the latest ones stay.
const MAX_KEYS: usize = 10_000;

/// How far a key's paid time may be ahead of now.
const BURST: Duration = Duration::from_secs(1);

/// The longest wait for a turn: a burst delays later events of its key by no more than this.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A rate for each key.
#[derive(Debug)]
pub(super) struct Rates<K> {
    /// Time between two events at the full rate.
    interval: Duration,
    paid_until: Mutex<RecentMap<K, Instant>>,
}

impl<K: Copy + Eq + Hash> Rates<K> {
    /// Allows `per_second` events a second for each key.
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            paid_until: Mutex::new(RecentMap::new(MAX_KEYS)),
        }
    }

    /// True if one more event may happen now. It is counted only then.
    pub(super) fn admit(&self, key: K, now: Instant) -> bool {
        let mut paid_until = self.paid_until.lock();
        let paid = paid_until.get(&key).map_or(now, |paid| (*paid).max(now)) + self.interval;
        if paid > now + BURST {
            return false;
        }
        let retired = paid_until.insert(key, paid);
        drop_after_lock(paid_until, retired);
        true
    }

    /// Counts one more event, which is delayed instead of refused. Returns when it may happen.
    pub(super) fn turn(&self, key: K, now: Instant) -> Instant {
        let mut paid_until = self.paid_until.lock();
        let paid = paid_until.get(&key).map_or(now, |paid| (*paid).max(now)) + self.interval;
        let paid = paid.min(now + BURST + LONGEST_WAIT);
        let retired = paid_until.insert(key, paid);
        drop_after_lock(paid_until, retired);
        now.max(paid.checked_sub(BURST).unwrap_or(now))
    }
}

fn drop_after_lock<K>(
    lock: parking_lot::MutexGuard<'_, RecentMap<K, Instant>>,
    retired: Retired<K, Instant>,
) {
    drop(lock);
    drop(retired);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_the_rate_holds() {
        let (rates, now) = (Rates::new(10), Instant::now());
        let admitted =
            |at: Instant, times: usize| (0..times).filter(|_| rates.admit("a", at)).count();
        assert_eq!(admitted(now, 50), 10);
        assert_eq!(admitted(now + Duration::from_millis(99), 50), 0);
        assert_eq!(admitted(now + Duration::from_millis(100), 50), 1);
        assert_eq!(admitted(now + Duration::from_secs(60), 50), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_does_not_use_the_rate_of_another() {
        let (rates, now) = (Rates::new(1), Instant::now());
        assert!(rates.admit("a", now) && !rates.admit("a", now));
        assert!(rates.admit("b", now));
    }

    #[tokio::test(start_paused = true)]
    async fn turns_are_spaced_at_the_rate_up_to_the_longest_wait() {
        let (rates, now) = (Rates::new(10), Instant::now());
        let turns: Vec<_> = (0..15).map(|_| rates.turn("a", now) - now).collect();
        assert!(turns.iter().take(10).all(Duration::is_zero), "{turns:?}");
        let later = turns.get(10..).unwrap();
        let expected: Vec<_> = (1..=5).map(|n| Duration::from_millis(100 * n)).collect();
        assert_eq!(later, expected);
        let last = (0..1000).map(|_| rates.turn("a", now) - now).last();
        assert_eq!(last, Some(LONGEST_WAIT));
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_stays_within_its_bound() {
        let (rates, now) = (Rates::new(1), Instant::now());
        for key in 0..MAX_KEYS * 2 {
            assert!(rates.admit(key, now));
        }
        assert!(rates.paid_until.lock().len() <= MAX_KEYS);
    }
}
