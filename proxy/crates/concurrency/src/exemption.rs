//! The exemption of long operations: an exempt operation no longer counts toward the limit.
//!
//! An operation that runs much longer than the recent median of the server times mostly waits: for
//! a lock, a disk, other servers or its own deadline. If it still counted, a few such operations
//! would block all others. Exempt operations have a separate bound. While the server completes
//! nothing, operations become exempt one at a time, at a fixed interval: in a stall all operations
//! are long, and each exemption sends one more operation to the server. If the server has not
//! stalled, the operation that begins in place of the exempt one completes, and then others can
//! become exempt.

use std::time::Duration;

/// An operation is long if it has run for this many times the recent median of the server times.
/// Operations that share the cores of one server end within a few medians. If the times are
/// distributed exponentially, 1 in 256 operations takes longer than eight medians.
const LONG: f64 = 8.0;

/// An operation is not long before it has run for this time, even if the median is short. A shorter
/// operation delays the waiting operations only a little, so the limit continues to count it.
const MIN_LONG: Duration = Duration::from_millis(10);

/// While no operation completes, one long operation per interval becomes exempt: the limit no
/// longer counts it.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);

/// Number of buckets for server times: four per octave (factor of two), from 1 µs to 18 minutes.
const BUCKETS: usize = 120;

/// Maximum number of counted server times. When it is reached, the counts of all buckets are
/// halved, so that old times lose weight.
const MAX_COUNT: u64 = 1 << 14;

/// The recent server times of one server. Recording a time costs a few instructions and no memory.
#[derive(Clone, Debug)]
pub struct ServerTimes {
    buckets: [u32; BUCKETS],
    count: u64,
}

impl Default for ServerTimes {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            count: 0,
        }
    }
}

impl ServerTimes {
    /// Adds the server time of one completed operation.
    pub fn record(&mut self, server_time: Duration) {
        if let Some(bucket) = self.buckets.get_mut(bucket_of(server_time)) {
            *bucket = bucket.saturating_add(1);
            self.count += 1;
        }
        if self.count >= MAX_COUNT {
            self.buckets.iter_mut().for_each(|bucket| *bucket /= 2);
            self.count = self.buckets.iter().map(|bucket| u64::from(*bucket)).sum();
        }
    }

    /// The recent median, rounded up to a bound of a bucket. For a median from 1 µs to 17 minutes,
    /// the result is at most 25 % plus 1 µs higher. `None` before the first operation.
    pub fn median(&self) -> Option<Duration> {
        let mut seen = 0;
        let half = self.count.div_ceil(2);
        let bucket = self.buckets.iter().position(|count| {
            seen += u64::from(*count);
            seen >= half && seen > 0
        });
        bucket.map(upper_bound)
    }
}

/// The bucket of a duration. A bucket is a quarter of an octave of microseconds. An octave is a
/// factor of two.
fn bucket_of(duration: Duration) -> usize {
    let us = u64::try_from(duration.as_micros())
        .unwrap_or(u64::MAX)
        .max(1);
    let octave = us.ilog2();
    // The quarter of the octave in which the duration lies: 0 to 3.
    let quarter = match octave {
        0 | 1 => (us << (2 - octave)) & 3,
        _ => (us >> (octave - 2)) & 3,
    };
    let bucket = u64::from(octave) * 4 + quarter;
    usize::try_from(bucket)
        .unwrap_or(usize::MAX)
        .min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> Duration {
    let bucket = u32::try_from(bucket).unwrap_or(u32::MAX);
    let quarters = u64::from(bucket % 4) + 5;
    Duration::from_micros((quarters << (bucket / 4)).div_ceil(4))
}

/// The conditions under which running operations become exempt: the limit no longer counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exemption {
    /// An operation is long if it has run for at least this time.
    pub threshold: Duration,
    /// Maximum number of exempt operations.
    pub bound: u32,
    /// The limit of the operations that are not exempt.
    pub limit: u32,
    /// True if long operations may become exempt while other operations complete. False before the
    /// first operation has completed, and while
    /// [`Decision::may_exempt`](crate::Decision::may_exempt) is false. If false, long operations
    /// become exempt only while no operation completes, one per fixed interval.
    pub is_open: bool,
}

impl Exemption {
    /// The conditions under which operations become exempt from `limit`. `bound` is the maximum
    /// number of exempt operations. `may_exempt` is the value in the last decision
    /// ([`Decision::may_exempt`](crate::Decision::may_exempt)).
    pub fn new(times: &ServerTimes, may_exempt: bool, limit: u32, bound: u32) -> Self {
        let median = times.median();
        let threshold = median.map(|median| median.mul_f64(LONG).max(MIN_LONG));
        Self {
            threshold: threshold.unwrap_or(PROBE_INTERVAL),
            bound,
            limit,
            is_open: median.is_some() && may_exempt,
        }
    }

    /// True if an operation may become exempt. `running` is the time for which the operation has
    /// run, and `exempt` is the number of exempt operations. `completed_since` is the number of
    /// other operations that have completed since this operation began. In a stall, this number
    /// stays low even before a sample shows the stall. `unchanged_for` is the time for which no
    /// operation has completed or become exempt. After `PROBE_INTERVAL`, one operation may become
    /// exempt even over the bound. Therefore, long operations cannot block all others for a long
    /// time. There is no second bound, because the long operations may wait for another operation
    /// that the limit still delays: for example, `createIndexes` can wait until the command
    /// `setIndexCommitQuorum` is run. With a second bound, that other operation might never
    /// begin. Only the number of server connections bounds the exempt operations.
    pub fn applies(
        &self,
        running: Duration,
        exempt: u32,
        completed_since: u64,
        unchanged_for: Duration,
    ) -> bool {
        let is_overtaken = self.is_open
            && exempt < self.bound
            && completed_since >= u64::from(self.limit.div_ceil(2));
        running >= self.threshold && (is_overtaken || unchanged_for >= PROBE_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(values_us: impl IntoIterator<Item = u64>) -> ServerTimes {
        let mut times = ServerTimes::default();
        for us in values_us {
            times.record(Duration::from_micros(us));
        }
        times
    }

    #[test]
    fn median_is_at_least_the_exact_median_and_at_most_25_percent_plus_1_us_higher() {
        assert_eq!(times([]).median(), None);
        for us in [1, 2, 3, 5, 45, 99, 1_000, 12_345, 5_000_000, 900_000_000] {
            let median = times([us]).median().unwrap();
            let exact = Duration::from_micros(us);
            assert!(
                median >= exact && median <= exact.mul_f64(1.25) + Duration::from_micros(1),
                "{us}: {median:?}"
            );
        }
    }

    #[test]
    fn median_follows_a_lasting_change_of_the_server_times() {
        let mut times = times(std::iter::repeat_n(100, 100_000));
        for _ in 0..20_000 {
            times.record(Duration::from_millis(50));
        }
        assert!(times.median().unwrap() >= Duration::from_millis(50));
    }

    #[test]
    fn median_stays_the_same_if_a_tenth_of_the_operations_is_long() {
        let times = times((0..1_000).map(|i| if i % 10 == 0 { 200_000 } else { 1_000 }));
        assert!(times.median().unwrap() <= Duration::from_micros(1_250));
    }

    const RULE: Exemption = Exemption {
        threshold: Duration::from_millis(10),
        bound: 32,
        limit: 32,
        is_open: true,
    };

    /// An exempt operation no longer counts toward the limit for operations in progress.
    #[test]
    fn a_long_operation_becomes_exempt_if_many_others_completed_and_few_are_exempt() {
        let none = Duration::ZERO;
        let applies =
            |ms, exempt, since| RULE.applies(Duration::from_millis(ms), exempt, since, none);
        assert!(applies(10, 31, 16));
        assert!(!applies(9, 0, 1_000), "the operation is not long");
        assert!(!applies(1_000, 32, 1_000), "too many operations are exempt");
        assert!(
            !applies(3_000, 0, 15),
            "too few other operations have completed"
        );
        let closed = Exemption {
            is_open: false,
            ..RULE
        };
        assert!(!closed.applies(Duration::from_secs(1), 0, 1_000, none));
    }

    /// The *bound* is the maximum number of exempt operations, which no longer count toward the
    /// limit. Even without a bound, enough other operations must complete before an operation
    /// becomes exempt.
    #[test]
    fn without_a_bound_an_operation_still_becomes_exempt_only_after_16_completed_operations() {
        let unbounded = Exemption {
            bound: u32::MAX,
            ..RULE
        };
        let none = Duration::ZERO;
        assert!(unbounded.applies(Duration::from_secs(1), 1_000, 16, none));
        assert!(!unbounded.applies(Duration::from_secs(1), 1_000, 15, none));
        assert!(!RULE.applies(Duration::from_secs(1), 32, 16, none));
    }

    /// An exempt operation no longer counts toward the limit for operations in progress.
    #[test]
    fn one_long_operation_per_interval_becomes_exempt_while_no_operation_completes() {
        let closed = Exemption {
            is_open: false,
            ..RULE
        };
        let after = |unchanged_for| closed.applies(Duration::from_secs(1), 31, 0, unchanged_for);
        assert!(!after(PROBE_INTERVAL - Duration::from_millis(1)));
        assert!(after(PROBE_INTERVAL));
        assert!(!closed.applies(Duration::from_millis(9), 0, 0, PROBE_INTERVAL));
        for exempt in [32, 64, 1_000] {
            let applies = closed.applies(Duration::from_secs(1), exempt, 0, PROBE_INTERVAL);
            assert!(applies, "{exempt} operations are exempt");
        }
    }
}
