//! The figures that many replies share: latencies, phases, distributions.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use seawall_stats::{Distribution, Phase, PhaseTimes};

/// A duration in milliseconds.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Quantiles (nearest rank) and the maximum of durations, in milliseconds. All are 0 if there was
/// no operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// The longest duration, exact.
    pub max: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

impl<const PER_OCTAVE: usize> From<&Distribution<PER_OCTAVE>> for Latency {
    fn from(durations: &Distribution<PER_OCTAVE>) -> Self {
        let quantile = |q| millis(durations.quantile(q));
        Self {
            max: millis(durations.max()),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
        }
    }
}

/// The time of operations in each phase, in milliseconds. The phases add up to the total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases {
    /// Time to select a server and to check out a connection to this server. Includes the time of a
    /// first attempt that failed.
    pub checkout: f64,
    /// Time from the end of the checkout until the last byte of the command is written to the
    /// server.
    pub forward: f64,
    /// Time of the wait for a permit. Permits limit the number of operations in flight.
    pub permit: f64,
    /// Time from the first to the last byte of the reply.
    pub receive: f64,
    /// Time from the arrival of the last byte of the reply until the whole reply is written to the
    /// client.
    pub send: f64,
    /// Time from the last written byte of the command to the first byte of the reply.
    pub server: f64,
}

impl Phases {
    /// The time in one phase.
    pub fn of(&self, phase: Phase) -> f64 {
        match phase {
            Phase::Permit => self.permit,
            Phase::Checkout => self.checkout,
            Phase::Forward => self.forward,
            Phase::Server => self.server,
            Phase::Receive => self.receive,
            Phase::Send => self.send,
        }
    }

    /// Each phase with its time, in the order in which the phases happen.
    pub fn named(&self) -> [(Phase, f64); Phase::ALL.len()] {
        Phase::ALL.map(|phase| (phase, self.of(phase)))
    }

    /// The time in all phases.
    pub fn total(&self) -> f64 {
        self.named().iter().map(|(_, ms)| ms).sum()
    }
}

impl From<&PhaseTimes> for Phases {
    fn from(times: &PhaseTimes) -> Self {
        Self {
            checkout: millis(times[Phase::Checkout]),
            forward: millis(times[Phase::Forward]),
            permit: millis(times[Phase::Permit]),
            receive: millis(times[Phase::Receive]),
            send: millis(times[Phase::Send]),
            server: millis(times[Phase::Server]),
        }
    }
}

/// The `getMore`s on the cursors of a group of operations, such as the operations of one query
/// shape: their number and their time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct More {
    /// Time of the `getMore`s that waited for new data, as on a change stream. Present only if the
    /// figures cover the whole time since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaited_time_ms: Option<f64>,
    /// Number of `getMore`s.
    pub count: u64,
    /// Number of documents that the `getMore`s returned. Present only if the figures cover the
    /// whole time since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub documents: Option<u64>,
    /// Time of the `getMore`s, except the `getMore`s that waited for new data.
    pub total_time_ms: f64,
}

/// One bucket of a distribution: durations over `gt_seconds` and up to `le_seconds`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bucket {
    /// Number of durations; never 0.
    pub count: u64,
    /// The lower bound, exclusive.
    pub gt_seconds: f64,
    /// The upper bound, inclusive.
    pub le_seconds: f64,
}

/// The non-empty buckets of a distribution, in ascending order.
pub fn buckets(distribution: &Distribution) -> Vec<Bucket> {
    let buckets = distribution.buckets().map(|(bucket, count)| {
        let (gt_seconds, le_seconds) = Distribution::<8>::bounds_seconds(bucket);
        Bucket {
            count,
            gt_seconds,
            le_seconds,
        }
    });
    buckets.collect()
}

/// The distribution that these buckets represent. `total_ms` is the sum of the durations, and
/// `max_ms` is the longest duration.
pub fn distribution(buckets: &[Bucket], total_ms: f64, max_ms: f64) -> Distribution {
    let numbered = buckets.iter().map(|bucket| (number(bucket), bucket.count));
    Distribution::from_parts(numbered, from_millis(total_ms), from_millis(max_ms))
}

/// The index of a bucket in a [`Distribution`], found by the upper bound of the bucket. JSON may
/// contain a rounded bound, but this bound is still closer to the exact bound of its bucket than to
/// any other bound.
fn number(bucket: &Bucket) -> usize {
    bucket_number(bucket.le_seconds)
}

/// Returns the index that a bucket has in a [`Distribution`]. `le_seconds` is the upper bound of
/// the bucket, which may be rounded. A rounding error of less than 1 % does not change the result.
pub(super) fn bucket_number(le_seconds: f64) -> usize {
    let bound = le_seconds * 0.99;
    let numbers = 0..Distribution::<8>::BUCKETS;
    let mut numbers =
        numbers.skip_while(|number| Distribution::<8>::bounds_seconds(*number).1 < bound);
    numbers.next().unwrap_or(Distribution::<8>::BUCKETS - 1)
}

/// The duration of a number of milliseconds; zero if the number is negative, too large for a
/// [`Duration`], or not a number.
pub(crate) fn from_millis(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_of_an_operation_are_listed_in_the_order_in_which_they_happen() {
        let times = [1, 2, 3, 4, 5, 6].map(Duration::from_millis);
        let phases = Phases::from(&PhaseTimes::from(times));
        let expected = Phase::ALL.into_iter().zip([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(phases.named().into_iter().eq(expected));
        assert_eq!(phases.total(), 21.0);
    }

    #[test]
    fn bucket_number_is_found_from_bounds_with_rounding_errors() {
        for bucket in 0..Distribution::<8>::BUCKETS {
            let (gt_seconds, le_seconds) = Distribution::<8>::bounds_seconds(bucket);
            // Each upper bound is also tried with an error of 0.01 %, as if it had been written to
            // JSON with only a few digits.
            for le_seconds in [le_seconds, le_seconds * 0.9999, le_seconds * 1.0001] {
                let rounded = Bucket {
                    gt_seconds,
                    le_seconds,
                    count: 1,
                };
                assert_eq!(number(&rounded), bucket);
            }
        }
    }

    #[test]
    fn an_empty_list_of_buckets_gives_an_empty_distribution() {
        assert_eq!(distribution(&[], 0.0, 0.0).count(), 0);
        assert_eq!(distribution(&[], 0.0, 0.0).quantile(0.5), Duration::ZERO);
    }
}
