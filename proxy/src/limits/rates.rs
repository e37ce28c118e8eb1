//! Rate limits for each address or user.
//!
//! The algorithm is the generic cell rate algorithm. Each key has a time, `paid_until`. Each event
//! moves this time forward by the time between two events at the allowed rate. An event is refused
//! or delayed if it would move this time more than one second ahead of now. So a burst may have as
//! many events as the rate allows in one second. Source: ITU-T I.371, annex A.

use std::{hash::Hash, time::Duration};

use tokio::time::Instant;

use super::recent::{RecentMap, Retired};
use seawall_locks::Mutex;

/// Maximum number of keys that are remembered, which bounds memory. The keys with the most recent
/// events stay.
const MAX_KEYS: usize = 10_000;

/// Each event of a key moves the key's time `paid_until` forward. The event may happen if
/// `paid_until` is then at most this far in the future.
const BURST: Duration = Duration::from_secs(1);

/// Longest delay of an event. So even after a large burst, later events of the same key are delayed
/// by at most this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// A rate limit for each key.
#[derive(Debug)]
pub(super) struct Rates<K> {
    per_second: u32,
    /// Time between two events at the highest allowed rate.
    interval: Duration,
    /// For each key, the time until which its events have used up the rate. Each counted event
    /// moves this time forward by `interval`.
    paid_until: Mutex<RecentMap<K, Instant>>,
}

impl<K: Copy + Eq + Hash> Rates<K> {
    /// Allows `per_second` events a second for each key.
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            per_second,
            interval: Duration::from_secs(1) / per_second.max(1),
            paid_until: Mutex::new(RecentMap::new(MAX_KEYS)),
        }
    }

    /// The number of events a second that this rate allows for each key.
    pub(super) fn per_second(&self) -> u32 {
        self.per_second
    }

    /// Returns true if one more event may happen now. In this case, counts the event.
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

    /// Counts one more event and returns when it may happen. Events are delayed, but not refused.
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
    lock: seawall_locks::MutexGuard<'_, RecentMap<K, Instant>>,
    retired: Retired<K, Instant>,
) {
    drop(lock);
    drop(retired);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At 10 events per second, 10 events may come at the same time, then one event in each 100 ms.
    #[tokio::test(start_paused = true)]
    async fn a_burst_may_have_as_many_events_as_one_second_allows_and_then_the_rate_applies() {
        let (rates, now) = (Rates::new(10), Instant::now());
        let admitted =
            |at: Instant, times: usize| (0..times).filter(|_| rates.admit("a", at)).count();
        assert_eq!(admitted(now, 50), 10);
        assert_eq!(admitted(now + Duration::from_millis(99), 50), 0);
        assert_eq!(admitted(now + Duration::from_millis(100), 50), 1);
        assert_eq!(admitted(now + Duration::from_secs(60), 50), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_one_key_do_not_use_up_the_rate_of_another_key() {
        let (rates, now) = (Rates::new(1), Instant::now());
        assert!(rates.admit("a", now) && !rates.admit("a", now));
        assert!(rates.admit("b", now));
    }

    #[tokio::test(start_paused = true)]
    async fn events_over_the_rate_are_spaced_evenly_up_to_the_longest_wait() {
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
    async fn a_rate_limit_remembers_at_most_the_maximum_number_of_keys() {
        let (rates, now) = (Rates::new(1), Instant::now());
        for key in 0..MAX_KEYS * 2 {
            assert!(rates.admit(key, now));
        }
        assert!(rates.paid_until.lock().len() <= MAX_KEYS);
    }
}
