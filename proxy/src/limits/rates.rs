//! How often something may happen for each address or user, over time.
//!
//! The generic cell rate algorithm: for each key the time at which what has been let through so far is paid for. A key may
//! run ahead of it by one second's worth, so that a burst is no excess. Source: ITU-T I.371, annex A.

use std::{collections::HashMap, hash::Hash, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Keys that are remembered; those whose time has passed are forgotten first.
const MAX_KEYS: usize = 10_000;

/// How far a key may run ahead.
const BURST: Duration = Duration::from_secs(1);

/// The longest wait for a turn: beyond it nobody could stay away long enough to hold up the others of a key.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A rate for each key.
#[derive(Debug)]
pub(super) struct Rates<K> {
    /// Between two at the full rate.
    interval: Duration,
    paid_until: Mutex<HashMap<K, Instant>>,
}

impl<K: Clone + Eq + Hash> Rates<K> {
    /// So many a second for each key.
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second.max(1),
            paid_until: Mutex::default(),
        }
    }

    /// Whether one more may pass now; if not, nothing is counted.
    pub(super) fn admit(&self, key: &K, now: Instant) -> bool {
        let mut paid_until = self.paid_until.lock();
        let paid = paid_until.get(key).map_or(now, |paid| (*paid).max(now));
        if paid + self.interval > now + BURST {
            return false;
        }
        Self::pay(&mut paid_until, key, paid + self.interval, now);
        true
    }

    /// When one more may pass that cannot be turned away: now, or in its turn.
    pub(super) fn turn(&self, key: &K, now: Instant) -> Instant {
        let mut paid_until = self.paid_until.lock();
        let paid = paid_until.get(key).map_or(now, |paid| (*paid).max(now)) + self.interval;
        let paid = paid.min(now + BURST + LONGEST_WAIT);
        Self::pay(&mut paid_until, key, paid, now);
        now.max(paid.checked_sub(BURST).unwrap_or(now))
    }

    fn pay(paid_until: &mut HashMap<K, Instant>, key: &K, until: Instant, now: Instant) {
        if paid_until.len() >= MAX_KEYS && !paid_until.contains_key(key) {
            paid_until.retain(|_, paid| *paid > now);
            while paid_until.len() >= MAX_KEYS {
                let Some(any) = paid_until.keys().next().cloned() else {
                    return;
                };
                paid_until.remove(&any);
            }
        }
        paid_until.insert(key.clone(), until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_then_the_rate_holds() {
        let (rates, now) = (Rates::new(10), Instant::now());
        let admitted =
            |at: Instant, times: usize| (0..times).filter(|_| rates.admit(&"a", at)).count();
        assert_eq!(admitted(now, 50), 10);
        assert_eq!(admitted(now + Duration::from_millis(99), 50), 0);
        assert_eq!(admitted(now + Duration::from_millis(100), 50), 1);
        assert_eq!(admitted(now + Duration::from_secs(60), 50), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_takes_nothing_from_another() {
        let (rates, now) = (Rates::new(1), Instant::now());
        assert!(rates.admit(&"a", now) && !rates.admit(&"a", now));
        assert!(rates.admit(&"b", now));
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_turned_away_waits_in_turn() {
        let (rates, now) = (Rates::new(10), Instant::now());
        let turns: Vec<_> = (0..15).map(|_| rates.turn(&"a", now) - now).collect();
        assert!(turns.iter().take(10).all(Duration::is_zero), "{turns:?}");
        let later = turns.get(10..).unwrap();
        let expected: Vec<_> = (1..=5).map(|n| Duration::from_millis(100 * n)).collect();
        assert_eq!(later, expected);
        let last = (0..1000).map(|_| rates.turn(&"a", now) - now).last();
        assert_eq!(last, Some(LONGEST_WAIT));
    }

    #[tokio::test(start_paused = true)]
    async fn the_table_stays_within_its_bound() {
        let (rates, now) = (Rates::new(1), Instant::now());
        for key in 0..MAX_KEYS * 2 {
            assert!(rates.admit(&key, now));
        }
        assert_eq!(rates.paid_until.lock().len(), MAX_KEYS);
    }
}
