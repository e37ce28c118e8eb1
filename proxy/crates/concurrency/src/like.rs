//! Makes operations of different lengths comparable. For each group of operations, measures the
//! usual server time and the server time without load.
//!
//! Completed operations are counted as *work*. The weight of an operation is the mean server time
//! that its group had at the moment when the weights were last set. If a group of long operations
//! becomes more frequent, fewer operations complete, but the amount of work stays the same.

use crate::{
    float,
    sample::{GROUPS, GroupSample, Sample},
};

/// Weight of a new window in the mean server time of a group.
const SMOOTHING: f64 = 0.1;

/// A mean of fewer operations than this is too noisy to be compared.
const MIN_OPERATIONS: f64 = 16.0;

/// The server time without load is measured with operations that began at low load
/// ([`Sample::LOW_LOAD`]). At least this number of such operations is needed. The number is low,
/// because many proxies may start in front of a busy server. Perhaps only the first two operations
/// of each proxy then begin at low load.
const MIN_LOW_LOAD: f64 = 2.0;

/// Weights of a new mean time of operations that began at low load. The first weight applies if
/// this time is shorter than the known server time without load, and the second if it is longer.
/// Other clients' load can make a time longer, but never shorter, so a shorter time has more
/// weight. A longer time is ignored if this proxy's own load may be the reason. With a limit of at
/// most 2, every operation begins at low load, even while other operations wait. With such a limit,
/// a longer time counts only if no operation waited.
const SHORTER: f64 = 0.25;
const LONGER: f64 = 0.02;

/// The logarithms of the known server times without load grow by this amount per second: the times
/// double in 12 minutes. So a value that was wrongly learned as too short does not stay forever.
const AGEING_PER_SECOND: f64 = 0.0014;

/// The measurements of one group. Times are in seconds, and logarithms are binary.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    /// The recent mean server time.
    mean: Option<f64>,
    /// The work that one completed operation of this group counts as, in seconds.
    weight: Option<f64>,
    /// Mean logarithm of the server time without load.
    unloaded: Option<f64>,
    low_load_count: f64,
    low_load_log_sum: f64,
    /// The operations that have completed since their mean was last compared with `unloaded`.
    completed_count: f64,
    completed_log_sum: f64,
}

impl Group {
    /// Learns the server time without load. `is_unloaded` is false if this proxy's own load may
    /// have slowed down the operations that `low_load_completed` counts.
    fn learn_unloaded(&mut self, seen: &GroupSample, is_unloaded: bool, ageing: f64) {
        self.low_load_count += float(seen.low_load_completed);
        self.low_load_log_sum += seen.low_load_log_sum;
        let mut unloaded = self.unloaded.map(|before| before + ageing);
        if self.low_load_count >= MIN_LOW_LOAD {
            let low_load = self.low_load_log_sum / self.low_load_count;
            (self.low_load_count, self.low_load_log_sum) = (0.0, 0.0);
            unloaded = Some(match unloaded {
                Some(before) if low_load > before && is_unloaded => {
                    before + LONGER * (low_load - before)
                }
                Some(before) if low_load > before => before,
                Some(before) => before + SHORTER * (low_load - before),
                None => low_load,
            });
        }
        // If all operations of the group run under load, `unloaded` only ages, and would grow
        // forever. So the mean of the completed operations limits it. A group of rare operations
        // needs several samples for this mean.
        self.completed_count += float(seen.completed);
        self.completed_log_sum += seen.log_sum;
        if self.completed_count >= 4.0 * MIN_OPERATIONS {
            let mean = self.completed_log_sum / self.completed_count;
            (self.completed_count, self.completed_log_sum) = (0.0, 0.0);
            unloaded = Some(unloaded.map_or(mean, |before| before.min(mean)));
        }
        self.unloaded = unloaded;
    }
}

/// An amount of completed work.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// The sum of the weights of the completed operations, in seconds. The weight of an operation
    /// is the usual server time of its group.
    pub(crate) amount: f64,
    /// The sum of the squared weights.
    squares: f64,
}

impl Work {
    pub(crate) fn add(&mut self, other: Self) {
        self.amount += other.amount;
        self.squares += other.squares;
    }

    /// The *effective count*: if all operations had the same weight, this number of operations
    /// would give the same statistical accuracy as the counted operations. It is small if a few
    /// operations have most of the weight.
    pub(crate) fn effective_count(&self) -> f64 {
        if self.squares > 0.0 {
            self.amount * self.amount / self.squares
        } else {
            0.0
        }
    }
}

/// How much longer operations take than without load. The *relative time* of an operation is its
/// server time, divided by the server time that its group has without load.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slowdown {
    /// The number of operations. After [`Self::add`], earlier operations count less than newer
    /// ones.
    count: f64,
    /// The sum of the binary logarithms of the operations' relative times, weighted like `count`.
    log_sum: f64,
}

impl Slowdown {
    #[cfg(test)]
    pub(crate) fn new(count: f64, crowding: f64) -> Self {
        Self {
            count,
            log_sum: count * crowding.log2(),
        }
    }

    /// Adds newer operations. Reduces the weight of the earlier operations to the share `kept`.
    pub(crate) fn add(&mut self, newer: Self, kept: f64) {
        self.count = self.count * kept + newer.count;
        self.log_sum = self.log_sum * kept + newer.log_sum;
    }

    /// The server time as a multiple of the server time without load: the geometric mean over the
    /// operations. `None` without operations.
    pub(crate) fn crowding(&self) -> Option<f64> {
        (self.count > 0.0).then(|| (self.log_sum / self.count).exp2())
    }
}

/// The usual server times and the server times without load, of all groups at one server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Like {
    groups: [Group; GROUPS],
    recent: Slowdown,
}

impl Like {
    /// Learns the usual and the unloaded server times from a window that ran with this limit.
    pub(crate) fn learn(&mut self, sample: &Sample, limit: u32) {
        let is_unloaded = u64::from(limit) > Sample::LOW_LOAD || sample.time_with_waiting.is_zero();
        let ageing = AGEING_PER_SECOND * sample.window.as_secs_f64();
        for (group, seen) in self.groups.iter_mut().zip(&sample.groups) {
            group.learn_unloaded(seen, is_unloaded, ageing);
            if seen.completed == 0 {
                continue;
            }
            let mean = seen.server_time.as_secs_f64() / float(seen.completed);
            group.mean = Some(match group.mean {
                Some(before) => before + SMOOTHING * (mean - before),
                None => mean,
            });
            group.weight = group.weight.or(group.mean);
        }
    }

    /// A new value that knows only the server times without load.
    pub(crate) fn with_unloaded_times_only(&self) -> Self {
        let groups = self.groups.map(|group| Group {
            unloaded: group.unloaded,
            ..Group::default()
        });
        Self {
            groups,
            recent: Slowdown::default(),
        }
    }

    /// Sets the weight of each group to its recent mean server time. Work before and after this
    /// call cannot be compared.
    pub(crate) fn fix_weights(&mut self) {
        for group in &mut self.groups {
            group.weight = group.mean;
        }
    }

    pub(crate) fn work(&self, sample: &Sample) -> Work {
        let mut work = Work::default();
        for (group, seen) in self.groups.iter().zip(&sample.groups) {
            let (count, weight) = (float(seen.completed), group.weight.unwrap_or(0.0));
            work.amount += count * weight;
            work.squares += count * weight * weight;
        }
        work
    }

    /// The slowdown of the operations that have completed since this function last returned a
    /// slowdown. `None` until enough operations have completed.
    pub(crate) fn slowdown(&mut self, sample: &Sample) -> Option<Slowdown> {
        for (group, seen) in self.groups.iter().zip(&sample.groups) {
            if let Some(unloaded) = group.unloaded {
                let count = float(seen.completed);
                self.recent.count += count;
                self.recent.log_sum += seen.log_sum - count * unloaded;
            }
        }
        let is_enough = self.recent.count >= MIN_OPERATIONS;
        is_enough.then(|| std::mem::take(&mut self.recent))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn sample(groups: &[(u64, u64)]) -> Sample {
        let mut sample = Sample {
            window: Duration::from_millis(100),
            ..Sample::default()
        };
        for (group, (completed, ms)) in groups.iter().enumerate() {
            for _ in 0..*completed {
                sample.record(group, Duration::from_millis(*ms), false);
            }
        }
        sample
    }

    /// 20 operations that began at low load and took this long.
    fn low_load(ms: u64) -> Sample {
        let mut sample = Sample::default();
        (0..20).for_each(|_| sample.record(0, Duration::from_millis(ms), true));
        sample
    }

    /// *Work* is the number of completed operations, weighted by their usual server times.
    #[test]
    fn two_mixes_of_operations_are_equal_work_if_their_total_server_times_are_equal() {
        let mut like = Like::default();
        like.learn(&sample(&[(100, 1), (10, 10)]), 32);
        let (before, after) = (sample(&[(180, 1), (2, 10)]), sample(&[(20, 1), (18, 10)]));
        let work = |sample| like.work(sample).amount;
        assert!((work(&before) - work(&after)).abs() < 1e-9);
    }

    /// The *effective count*: if all operations had the same length, this number of operations
    /// would give the same statistical accuracy as the measured operations.
    #[test]
    fn a_few_long_operations_among_many_short_operations_lower_the_effective_count() {
        let mut like = Like::default();
        like.learn(&sample(&[(1_000, 1), (10, 1_000)]), 32);
        let even = like.work(&sample(&[(1_000, 1)])).effective_count();
        let heavy = like
            .work(&sample(&[(1_000, 1), (10, 1_000)]))
            .effective_count();
        assert!(
            (even - 1_000.0).abs() < 1.0 && heavy < 13.0,
            "{even} {heavy}"
        );
    }

    #[test]
    fn crowding_is_the_server_time_divided_by_the_server_time_without_load() {
        let mut like = Like::default();
        assert!(like.slowdown(&sample(&[(100, 10)])).is_none());
        like.learn(&low_load(1), 32);
        let slowdown = like.slowdown(&sample(&[(100, 10)])).unwrap();
        let crowding = slowdown.crowding().unwrap();
        assert!((crowding - 10.0).abs() < 0.1, "{crowding}");
    }

    #[test]
    fn crowding_is_known_at_full_load_after_a_reset_that_keeps_only_the_unloaded_times() {
        let mut like = Like::default();
        like.learn(&low_load(1), 32);
        let mut kept = like.with_unloaded_times_only();
        let busy = sample(&[(100, 10)]);
        assert!(kept.work(&busy).amount < 1e-9);
        let crowding = kept.slowdown(&busy).unwrap().crowding().unwrap();
        assert!((crowding - 10.0).abs() < 0.1, "{crowding}");
    }

    /// The known server time without load grows with time, so that a wrong value does not stay.
    #[test]
    fn after_a_day_the_time_without_load_is_at_most_the_mean_time_of_rare_operations() {
        let mut like = Like::default();
        like.learn(&low_load(1), 32);
        let rare = sample(&[(2, 10)]);
        (0..24 * 3_600 * 10).for_each(|_| like.learn(&rare, 32));
        let slowdown = like.slowdown(&sample(&[(100, 10)])).unwrap();
        let crowding = slowdown.crowding().unwrap();
        assert!(crowding > 0.9, "{crowding}");
    }

    /// The *server time without load* is measured with operations that began at low load.
    #[test]
    fn slow_operations_do_not_increase_the_server_time_without_load_while_operations_wait() {
        // With a limit of 2, every operation begins at low load, even on a crowded server.
        let low_load = |ms, time_with_waiting| Sample {
            time_with_waiting,
            ..low_load(ms)
        };
        let crowding_after = |time_with_waiting| {
            let mut like = Like::default();
            like.learn(&low_load(1, Duration::ZERO), 2);
            (0..200).for_each(|_| like.learn(&low_load(10, time_with_waiting), 2));
            let slowdown = like.slowdown(&low_load(10, time_with_waiting)).unwrap();
            slowdown.crowding().unwrap()
        };
        assert!(crowding_after(Duration::from_millis(100)) > 9.0);
        assert!(crowding_after(Duration::ZERO) < 2.0);
    }
}
