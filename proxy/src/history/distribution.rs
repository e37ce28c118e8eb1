//! A base-2 exponential distribution of durations.
//!
//! Eight buckets an octave (scale 3 of Prometheus' native histograms and OpenTelemetry's exponential ones:
//! bounds are 2^(i/8) seconds, upper bound inclusive), so a quantile is within 4.4 % of the recorded value. Sums
//! are kept an octave, exact, so that the classic histogram of octaves can be exported without inventing a sum.
//!
//! Source: <https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram>.

use std::{sync::OnceLock, time::Duration};

/// Octaves covered; the first also takes all below, the last all above.
pub const OCTAVES: usize = 32;

/// Buckets in all.
pub const BUCKETS: usize = OCTAVES * BUCKETS_PER_OCTAVE;

const BUCKETS_PER_OCTAVE: usize = 8;

/// The first octave ends at 2^-20 s (just under 1 µs), the last at 2^11 s (34 minutes).
const FIRST_OCTAVE: i32 = -21;

/// How often each duration was seen, and how much it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    counts: Box<[u64; BUCKETS]>,
    sums_ns: [u64; OCTAVES],
    max_ns: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            counts: Box::new([0; BUCKETS]),
            sums_ns: [0; OCTAVES],
            max_ns: 0,
        }
    }
}

impl Distribution {
    /// Adds one duration.
    pub fn record(&mut self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = bucket_of(ns);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        if let Some(sum) = self.sums_ns.get_mut(bucket / BUCKETS_PER_OCTAVE) {
            *sum = sum.saturating_add(ns);
        }
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds another distribution to this one; nothing is lost by it.
    pub fn merge(&mut self, other: &Self) {
        let pairs = self.counts.iter_mut().zip(other.counts.iter());
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        let pairs = self.sums_ns.iter_mut().zip(&other.sums_ns);
        pairs.for_each(|(mine, theirs)| *mine = mine.saturating_add(*theirs));
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Durations recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(
            self.sums_ns
                .iter()
                .fold(0, |sum, octave| sum.saturating_add(*octave)),
        )
    }

    /// The longest.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The duration that a share `q` (0 to 1) of those recorded does not exceed (nearest rank), to within 4.4 %:
    /// the geometric middle of its bucket. Zero if nothing was recorded.
    #[expect(
        clippy::as_conversions,
        reason = "ranks within 2^53; a rounded rank is the definition"
    )]
    pub fn quantile(&self, q: f64) -> Duration {
        let count = self.count();
        if count == 0 {
            return Duration::ZERO;
        }
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (bucket, in_bucket) in self.counts.iter().enumerate() {
            seen += in_bucket;
            if seen >= rank {
                return Duration::from_nanos(middle_ns(bucket).min(self.max_ns));
            }
        }
        self.max()
    }

    /// Count and sum of each octave, in order of duration.
    pub fn octaves(&self) -> impl Iterator<Item = (u64, Duration)> + '_ {
        let counts = self
            .counts
            .chunks_exact(BUCKETS_PER_OCTAVE)
            .map(|octave| octave.iter().sum());
        counts.zip(self.sums_ns.iter().map(|ns| Duration::from_nanos(*ns)))
    }
}

/// The upper bound of an octave in seconds, inclusive.
pub fn octave_bound_seconds(octave: usize) -> f64 {
    let exponent = i32::try_from(octave)
        .unwrap_or(i32::MAX)
        .saturating_add(FIRST_OCTAVE + 1);
    2f64.powi(exponent)
}

/// Upper bounds of the buckets in whole nanoseconds, rounded down: a bound is inclusive, so an integer is
/// under the exact bound just when it is not over the rounded one.
fn bounds_ns() -> &'static [u64; BUCKETS] {
    static BOUNDS: OnceLock<[u64; BUCKETS]> = OnceLock::new();
    BOUNDS.get_or_init(|| {
        std::array::from_fn(|bucket| {
            let eighths = f64::from(u32::try_from(bucket + 1).unwrap_or(u32::MAX)) / 8.0;
            float_ns((f64::from(FIRST_OCTAVE) + eighths).exp2() * 1e9)
        })
    })
}

#[expect(clippy::as_conversions, reason = "positive and far under 2^63")]
fn float_ns(ns: f64) -> u64 {
    ns as u64
}

fn bucket_of(ns: u64) -> usize {
    let bounds = bounds_ns();
    // An octave by the position of the highest bit, good to one octave; the bounds settle the rest.
    let bits = usize::try_from(64 - ns.leading_zeros()).unwrap_or(64);
    // 2^9 ns is under the first octave's end of 2^-20 s = 953 ns.
    let guess = bits.saturating_sub(10) * BUCKETS_PER_OCTAVE;
    let mut bucket = guess.min(BUCKETS - 1);
    while bucket > 0 && bounds.get(bucket - 1).is_some_and(|bound| ns <= *bound) {
        bucket -= 1;
    }
    while bucket < BUCKETS - 1 && bounds.get(bucket).is_some_and(|bound| ns > *bound) {
        bucket += 1;
    }
    bucket
}

fn middle_ns(bucket: usize) -> u64 {
    let eighths = (f64::from(u32::try_from(bucket).unwrap_or(u32::MAX)) + 0.5) / 8.0;
    float_ns((f64::from(FIRST_OCTAVE) + eighths).exp2() * 1e9)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[u64]) -> Distribution {
        let mut distribution = Distribution::default();
        values
            .iter()
            .for_each(|ns| distribution.record(Duration::from_nanos(*ns)));
        distribution
    }

    #[test]
    fn a_bound_belongs_to_the_bucket_that_it_ends() {
        let bounds = bounds_ns();
        for (bucket, bound) in bounds.iter().enumerate().take(BUCKETS - 1) {
            assert_eq!(bucket_of(*bound), bucket);
            assert_eq!(bucket_of(bound + 1), bucket + 1);
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn octaves_have_exact_counts_and_sums() {
        let distribution = of(&[500, 1_000_000_000, 1_000_000_001]);
        let octaves: Vec<_> = distribution.octaves().collect();
        let one_second = (0..OCTAVES)
            .find(|o| octave_bound_seconds(*o) >= 1.0)
            .unwrap();
        assert_eq!(octaves[one_second], (1, Duration::from_secs(1)));
        assert_eq!(
            octaves[one_second + 1],
            (1, Duration::from_nanos(1_000_000_001))
        );
        assert_eq!(octaves[0], (1, Duration::from_nanos(500)));
    }

    proptest! {
        #[expect(clippy::as_conversions, reason = "small numbers")]
        #[test]
        fn quantiles_are_within_the_stated_error(
            mut values in prop::collection::vec(2_000u64..600_000_000_000, 1..200), q in 0.01f64..1.0,
        ) {
            let distribution = of(&values);
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1] as f64;
            let error = (distribution.quantile(q).as_nanos() as f64 / exact - 1.0).abs();
            prop_assert!(error <= 0.0443, "{error}");
        }

        #[test]
        fn merging_is_recording_together(
            a in prop::collection::vec(any::<u32>(), 0..50), b in prop::collection::vec(any::<u32>(), 0..50),
        ) {
            let wide = |v: &[u32]| v.iter().map(|n| u64::from(*n)).collect::<Vec<_>>();
            let mut merged = of(&wide(&a));
            merged.merge(&of(&wide(&b)));
            prop_assert_eq!(merged, of(&wide(&[a, b].concat())));
        }
    }
}
