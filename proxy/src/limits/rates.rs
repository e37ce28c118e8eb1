//! How often something may happen for each address or user, over time.
//!
//! The generic cell rate algorithm: each key has a time until which it has paid, and may run ahead of it by one second's
//! worth, so that a burst is no excess. Source: ITU-T I.371, annex A.

use std::{hash::Hash, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::recent::{RecentMap, Retired};

/// Keys that are remembered, the latest ones.
const MAX_KEYS: usize = 10_000;

/// How far a key may run ahead.
const BURST: Duration = Duration::from_secs(1);

/// The longest wait for a turn: a burst holds up later ones of its key for no longer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A rate for each key.
#[derive(Debug)]
pub(super) struct Rates<K> {
    /// Between two at the full rate.
    interval: Duration,
    paid_until: Mutex<RecentMap<K, Instant>>,
}

impl<K: Copy + Eq + Hash> Rates<K> {
    /// So many a second for each key.
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            paid_until: Mutex::new(RecentMap::new(MAX_KEYS)),
        }
    }

    /// Whether one more may pass now; if not, nothing is counted.
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

    /// When one more may pass that is not refused: now, or in its turn.
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
    async fn one_key_takes_nothing_from_another() {
        let (rates, now) = (Rates::new(1), Instant::now());
        assert!(rates.admit("a", now) && !rates.admit("a", now));
        assert!(rates.admit("b", now));
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_turned_away_waits_in_turn() {
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
