//! The limit of lines per second, and each user's share of the lines.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

/// Number of groups of users. Lines are counted for each group; users with the same hash share a
/// group.
const GROUPS: usize = 1 << GROUP_BITS;
const GROUP_BITS: u32 = 8;

/// A user may write another line only if `own < SHARE * left`. Here, `own` is the number of lines
/// that the user's group has written in this second. `left` is the number of lines that all users
/// together may still write in this second. So one user can write only about eight ninths of the
/// lines of a second.
const SHARE: u64 = 8;

/// Limits the number of lines per second, of all users together and of each group of users.
/// Counting needs no lock.
#[derive(Debug)]
pub(in crate::observe) struct LineRate {
    max_lines: Option<NonZeroU32>,
    all: Lines,
    by_group: Box<[Lines]>,
}

impl LineRate {
    /// Creates a limit; `None` means no limit.
    pub(in crate::observe) fn new(max_lines: Option<NonZeroU32>) -> Self {
        let groups = max_lines.map_or(0, |_| GROUPS);
        Self {
            max_lines,
            all: Lines::default(),
            by_group: (0..groups).map(|_| Lines::default()).collect(),
        }
    }

    /// True if a line is allowed for an operation of this user that ended at `at`. An allowed line
    /// is counted.
    ///
    /// Each counter (`Lines`) counts the lines of one second: the counter's current second. If `at`
    /// is in the current second or in the second before it, the line counts in the current second.
    /// Any other `at` begins a new current second, and counting starts again from 0: either time
    /// has passed, or the clock was set back.
    pub(in crate::observe) fn admits(&self, user: u64, at: SystemTime) -> bool {
        let Some(max_lines) = self.max_lines else {
            return true;
        };
        let max_lines = u64::from(max_lines.get());
        let second = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let second = second & u64::from(u32::MAX);
        let left = max_lines.saturating_sub(self.all.count(second));
        let Some(own) = self.by_group.get(group_of(user)) else {
            return true;
        };
        let is_within_share = own.count(second) < SHARE * left;
        is_within_share && self.all.add(second, max_lines) && own.add(second, max_lines)
    }
}

fn group_of(user: u64) -> usize {
    // Fibonacci hashing: the high bits of the product are mixed best.
    let hash = user.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - GROUP_BITS);
    usize::try_from(hash).unwrap_or_default()
}

/// Counts the lines of one second: the current second. The upper 32 bits are the current second, in
/// seconds since 1970. The lower 32 bits are the number of lines that were counted in this second.
#[derive(Debug, Default)]
struct Lines(AtomicU64);

impl Lines {
    /// Returns the number of lines counted in the current second, if `second` is the current second
    /// or the second before it. Otherwise returns 0, because [`Self::add`] then starts counting
    /// again from 0.
    fn count(&self, second: u64) -> u64 {
        let (current, lines) = halves(self.0.load(Ordering::Relaxed));
        match is_same(second, current) {
            true => lines,
            false => 0,
        }
    }

    /// Counts one more line, unless `max` lines are already counted in the current second. Returns
    /// true if the line was counted.
    fn add(&self, second: u64, max: u64) -> bool {
        let one_more = |state: u64| {
            let (current, lines) = halves(state);
            if !is_same(second, current) {
                return Some((second << 32) | 1);
            }
            (lines < max).then_some(state + 1)
        };
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

fn halves(state: u64) -> (u64, u64) {
    (state >> 32, state & u64::from(u32::MAX))
}

fn is_same(second: u64, current: u64) -> bool {
    second == current || second + 1 == current
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, thread, time::Duration};

    use super::*;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn the_limit_of_log_lines_per_second_holds_when_many_threads_log() {
        let rate = LineRate::new(NonZeroU32::new(100));
        let admitted = AtomicUsize::new(0);
        thread::scope(|scope| {
            for thread in 0..4 {
                let (rate, admitted) = (&rate, &admitted);
                // Half of the threads use second 1,000, and the others use second 999.
                let second = 1_000 - thread % 2;
                scope.spawn(move || {
                    for user in 0..1_000 {
                        let is_admitted = rate.admits(user, at(second));
                        admitted.fetch_add(is_admitted.into(), Ordering::Relaxed);
                    }
                });
            }
        });
        // 100 lines are allowed per second. Threads may have used all lines of second 999 before
        // another thread began second 1,000, so up to 200 lines are allowed in total.
        let admitted = admitted.into_inner();
        assert!((100..=200).contains(&admitted), "{admitted}");
        assert!(!rate.admits(1, at(1_000)) && !rate.admits(1, at(999)));
        assert!(rate.admits(1, at(1_001)));
    }

    #[test]
    fn one_user_cannot_use_the_whole_limit_of_lines_per_second() {
        let rate = LineRate::new(NonZeroU32::new(90));
        let lines = |user, times| (0..times).filter(|_| rate.admits(user, at(1_000))).count();
        assert_eq!(
            lines(1, 1_000),
            80,
            "one user gets eight ninths of the lines"
        );
        assert_eq!(lines(2, 5), 5);
        assert_eq!(lines(1, 1_000), 0);
        assert_eq!(
            lines(2, 1_000) + lines(3, 1_000),
            5,
            "others get the remaining lines"
        );
    }
}
