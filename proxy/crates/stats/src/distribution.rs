//! Base-2 exponential histograms of durations. [`Distribution`] is sparse: empty buckets take no
//! memory. [`DenseDistribution`] has a counter for each bucket, and records faster.
//!
//! An octave is the range from one power of two to the next, in seconds. The upper bound of a
//! bucket is inclusive. With 8 buckets per octave, the bounds are 2^(i/8) seconds for whole numbers
//! i, and a quantile is within 4.4 % of the recorded value. This is scale 3 of Prometheus' native
//! histograms and of OpenTelemetry's exponential histograms. With 32 buckets per octave (scale 5),
//! a quantile is within 1.1 %. A bucket of scale 3 covers exactly four buckets of scale 5. Sums are
//! exact and kept per octave, so the classic histogram of octaves can be exported with exact sums.
//!
//! Source: <https://opentelemetry.io/docs/specs/otel/metrics/data-model/#exponentialhistogram>.

use std::{sync::OnceLock, time::Duration};

/// Number of octaves. An octave is a range of durations from one power of two to the next, in
/// seconds. The first octave also counts all shorter durations, and the last octave all longer
/// durations.
pub const OCTAVES: usize = 32;

/// The largest number of buckets per octave that a distribution can have.
const FINEST: usize = 32;

/// The first octave begins at 2^`FIRST_OCTAVE` s and ends at 2^-20 s (just under 1 µs). The last
/// octave ends at 2^11 s (34 minutes).
const FIRST_OCTAVE: i32 = -21;

/// A sparse histogram of durations. `PER_OCTAVE`, a divisor of 32, is the number of buckets per
/// octave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution<const PER_OCTAVE: usize = 8> {
    /// Indexes of the buckets that are not empty, ascending. `counts` has the count of each.
    buckets: Vec<u16>,
    counts: Vec<u64>,
    /// Indexes of the octaves that are not empty, ascending. For each of them, `sums_ns` has the
    /// sum of its durations in nanoseconds.
    octaves: Vec<u8>,
    sums_ns: Vec<u64>,
    max_ns: u64,
}

/// A distribution with quantiles within 1.1 % of the recorded values.
pub type FineDistribution = Distribution<32>;

/// A duration and its bucket, for callers that record one duration in several distributions.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    ns: u64,
    /// Index of the duration's bucket in a distribution with [`FINEST`] buckets per octave.
    bucket: usize,
}

impl From<Duration> for Measured {
    fn from(duration: Duration) -> Self {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self {
            ns,
            bucket: finest_bucket_of(ns),
        }
    }
}

impl<const PER_OCTAVE: usize> Distribution<PER_OCTAVE> {
    /// Number of buckets.
    pub const BUCKETS: usize = OCTAVES * PER_OCTAVE;

    /// The scale of the exponential histogram with the same buckets: there are 2^scale buckets per
    /// octave.
    pub const SCALE: i32 = PER_OCTAVE.ilog2().cast_signed();

    /// The upper bound of a bucket as an exponent. If the result is i, the bucket ends at
    /// 2^(i/`PER_OCTAVE`) seconds.
    pub fn upper_exponent(bucket: usize) -> i32 {
        let number = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        number(bucket) + 1 + FIRST_OCTAVE * number(PER_OCTAVE)
    }

    /// Adds one duration.
    pub fn record(&mut self, duration: impl Into<Measured>) {
        let Measured { ns, bucket } = duration.into();
        let bucket = bucket / (FINEST / PER_OCTAVE);
        self.add(bucket, 1);
        add_at(
            &mut self.octaves,
            &mut self.sums_ns,
            short(bucket / PER_OCTAVE),
            ns,
        );
        self.max_ns = self.max_ns.max(ns);
    }

    fn add(&mut self, bucket: usize, count: u64) {
        add_at(&mut self.buckets, &mut self.counts, short(bucket), count);
    }

    /// Adds all counts and sums of another distribution, without loss of precision.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.buckets.iter().zip(&other.counts) {
            add_at(&mut self.buckets, &mut self.counts, *bucket, *count);
        }
        for (octave, sum) in other.octaves.iter().zip(&other.sums_ns) {
            add_at(&mut self.octaves, &mut self.sums_ns, *octave, *sum);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// The distribution without the durations of `part`. This distribution must contain all of
    /// them. The result keeps the maximum, because the maximum of the remaining durations is
    /// unknown.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        let mut rest = Self {
            max_ns: self.max_ns,
            ..Self::default()
        };
        for (bucket, count) in self.buckets.iter().zip(&self.counts) {
            let of_part = at(&part.buckets, &part.counts, bucket);
            if let Some(left @ 1..) = count.checked_sub(of_part) {
                add_at(&mut rest.buckets, &mut rest.counts, *bucket, left);
            }
        }
        for (octave, sum) in self.octaves.iter().zip(&self.sums_ns) {
            let of_part = at(&part.octaves, &part.sums_ns, octave);
            // A saturated sum no longer rises, but the sum of `part` does. So a subtraction would
            // make the result fall, and a receiver of this counter would assume a restart.
            let left = match *sum {
                u64::MAX => u64::MAX,
                sum => sum.saturating_sub(of_part),
            };
            add_at(&mut rest.octaves, &mut rest.sums_ns, *octave, left);
        }
        rest
    }

    /// Converts the distribution to 8 buckets per octave.
    pub fn coarse(&self) -> Distribution {
        let mut coarse = Distribution {
            octaves: self.octaves.clone(),
            sums_ns: self.sums_ns.clone(),
            max_ns: self.max_ns,
            ..Distribution::default()
        };
        for (bucket, count) in self.buckets() {
            coarse.add(bucket * 8 / PER_OCTAVE, count);
        }
        coarse
    }

    /// Builds a distribution from the index and the count of each bucket, a total sum and a
    /// maximum. The sums of the octaves are unknown, so the octave of `max` gets the whole sum.
    pub fn from_parts(
        buckets: impl IntoIterator<Item = (usize, u64)>,
        sum: Duration,
        max: Duration,
    ) -> Self {
        let ns = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let mut whole = Self {
            max_ns: ns(max),
            ..Self::default()
        };
        for (bucket, count) in buckets {
            whole.add(bucket.min(Self::BUCKETS - 1), count);
        }
        let octave = finest_bucket_of(whole.max_ns) / FINEST;
        add_at(
            &mut whole.octaves,
            &mut whole.sums_ns,
            short(octave),
            ns(sum),
        );
        whole
    }

    /// Number of recorded durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of the recorded durations.
    pub fn sum(&self) -> Duration {
        let sums = self.sums_ns.iter();
        Duration::from_nanos(sums.fold(0, |sum, octave| sum.saturating_add(*octave)))
    }

    /// The longest recorded duration.
    pub fn max(&self) -> Duration {
        Duration::from_nanos(self.max_ns)
    }

    /// The quantile `q` (0 to 1) of the recorded durations, by nearest rank; zero if nothing was
    /// recorded. The result is the geometric middle of the bucket that contains this rank, but at
    /// most the maximum. So its error is at most half a bucket, except in the first bucket, which
    /// also counts all shorter durations. The last bucket has no end, so its result is the maximum.
    #[expect(
        clippy::as_conversions,
        reason = "ranks are below 2^53, and the definition rounds them up"
    )]
    pub fn quantile(&self, q: f64) -> Duration {
        let count = self.count();
        if count == 0 {
            return Duration::ZERO;
        }
        let rank = ((q * count as f64).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (bucket, in_bucket) in self.buckets() {
            seen += in_bucket;
            if seen >= rank && bucket + 1 < Self::BUCKETS {
                return Duration::from_nanos(middle_ns::<PER_OCTAVE>(bucket).min(self.max_ns));
            }
        }
        self.max()
    }

    /// Number of recorded durations in buckets above the bucket of `duration`.
    pub fn longer_than(&self, duration: Duration) -> u64 {
        let bucket = Measured::from(duration).bucket / (FINEST / PER_OCTAVE);
        let longer = self.buckets().filter(|(other, _)| *other > bucket);
        longer.map(|(_, count)| count).sum()
    }

    /// Index and count of each bucket that is not empty, ascending.
    pub fn buckets(&self) -> impl ExactSizeIterator<Item = (usize, u64)> + '_ {
        let pairs = self.buckets.iter().zip(&self.counts);
        pairs.map(|(bucket, count)| (usize::from(*bucket), *count))
    }

    /// Index, count and sum of each octave that is not empty, ascending.
    pub fn octaves(&self) -> impl Iterator<Item = (usize, u64, Duration)> + '_ {
        let sums = self.octaves.iter().zip(&self.sums_ns);
        sums.map(|(octave, sum)| {
            let octave = usize::from(*octave);
            let in_octave = self
                .buckets()
                .filter(|(bucket, _)| bucket / PER_OCTAVE == octave);
            let count = in_octave.map(|(_, count)| count).sum();
            (octave, count, Duration::from_nanos(*sum))
        })
    }

    /// Memory of the counts and sums in bytes, without the size of this type.
    pub fn heap_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u16>()
            + self.octaves.capacity() * size_of::<u8>()
            + (self.counts.capacity() + self.sums_ns.capacity()) * size_of::<u64>()
    }

    /// The bounds of a bucket in seconds: the lower is exclusive, the upper inclusive. The first
    /// bucket also counts durations of zero, and the last bucket also counts all longer durations.
    pub fn bounds_seconds(bucket: usize) -> (f64, f64) {
        let at = |bucket: usize| exponent::<PER_OCTAVE>(bucket, 0.0).exp2();
        let lower = if bucket == 0 { 0.0 } else { at(bucket) };
        (lower, at(bucket + 1))
    }
}

/// The upper bound of an octave, in seconds.
pub fn octave_bound_seconds(octave: usize) -> f64 {
    let octave = i32::try_from(octave).unwrap_or(i32::MAX);
    f64::from(FIRST_OCTAVE.saturating_add(octave + 1)).exp2()
}

/// The value at `key`; 0 if there is none. The two vectors are parallel and sorted by key.
fn at<K: Ord>(keys: &[K], values: &[u64], key: &K) -> u64 {
    let position = keys.binary_search(key).ok();
    let value = position.and_then(|position| values.get(position));
    value.copied().unwrap_or(0)
}

/// Adds `more` to the value at `key`. The two vectors are parallel and sorted by key.
fn add_at<K: Ord>(keys: &mut Vec<K>, values: &mut Vec<u64>, key: K, more: u64) {
    match keys.binary_search(&key) {
        Ok(at) => {
            if let Some(value) = values.get_mut(at) {
                *value = value.saturating_add(more);
            }
        }
        Err(at) => {
            keys.insert(at, key);
            values.insert(at, more);
        }
    }
}

fn short<N: TryFrom<usize>>(number: usize) -> N {
    let number = N::try_from(number);
    number
        .ok()
        .expect("there are at most 1,024 buckets and 32 octaves")
}

fn exponent<const PER_OCTAVE: usize>(bucket: usize, part: f64) -> f64 {
    let wide = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    f64::from(FIRST_OCTAVE) + (wide(bucket) + part) / wide(PER_OCTAVE)
}

fn middle_ns<const PER_OCTAVE: usize>(bucket: usize) -> u64 {
    float_ns(exponent::<PER_OCTAVE>(bucket, 0.5).exp2() * 1e9)
}

#[expect(clippy::as_conversions, reason = "positive and far under 2^63")]
fn float_ns(ns: f64) -> u64 {
    ns as u64
}

/// Tables with which [`finest_bucket_of`] finds the bucket of a duration without a logarithm.
struct Scale {
    /// Upper bounds in whole nanoseconds, rounded down. Bounds are inclusive, so an integer is
    /// within the exact bound if and only if it is within the rounded bound.
    bounds_ns: [u64; OCTAVES * FINEST],
    /// Element i is the number of buckets, rounded down, that fit between p and (1 + i/64) · p.
    /// Here p is any power of two: the number is the same for all of them.
    steps: [usize; 64],
}

fn scale() -> &'static Scale {
    static SCALE: OnceLock<Scale> = OnceLock::new();
    SCALE.get_or_init(|| Scale {
        bounds_ns: std::array::from_fn(|bucket| {
            float_ns(exponent::<FINEST>(bucket, 1.0).exp2() * 1e9)
        }),
        steps: std::array::from_fn(|part| {
            let part = f64::from(u32::try_from(part).unwrap_or(u32::MAX)) / 64.0;
            usize::try_from(float_ns((1.0 + part).log2() * 32.0)).unwrap_or(0)
        }),
    })
}

/// Number of buckets that would fit between 1 ns and the lower bound of the first bucket, with
/// [`FINEST`] buckets per octave. The number is rounded up: 32 · (-21 - log2 10^-9) = 284.7.
const BUCKETS_BELOW: usize = 285;

fn finest_bucket_of(ns: u64) -> usize {
    let Scale { bounds_ns, steps } = scale();
    if ns == 0 {
        return 0;
    }
    // `guess` is computed from the highest bit of `ns` and the six bits after it, so it is at most
    // two buckets off. The comparisons with the bounds correct it.
    let zeros = ns.leading_zeros();
    let part = usize::try_from((ns << zeros) >> 57 & 63).unwrap_or(0);
    let octave = usize::try_from(63 - zeros).unwrap_or(0);
    let step = steps.get(part).copied().unwrap_or(0);
    let guess = (octave * FINEST + step).saturating_sub(BUCKETS_BELOW);
    let last = bounds_ns.len() - 1;
    let mut bucket = guess.min(last);
    let bound = |bucket: usize| bounds_ns.get(bucket).copied().unwrap_or(u64::MAX);
    while bucket > 0 && ns <= bound(bucket - 1) {
        bucket -= 1;
    }
    while bucket < last && ns > bound(bucket) {
        bucket += 1;
    }
    bucket
}

/// A distribution with a counter for each bucket, so adding a duration needs no search. After the
/// first duration, it uses about 2 KiB of memory with 8 buckets per octave, and about 8 KiB with
/// 32.
#[derive(Clone, Debug, Default)]
pub struct DenseDistribution<const PER_OCTAVE: usize = 8> {
    /// The count of each bucket; empty until the first duration.
    counts: Vec<u64>,
    sums_ns: [u64; OCTAVES],
    max_ns: u64,
}

impl<const PER_OCTAVE: usize> DenseDistribution<PER_OCTAVE> {
    /// Adds one duration.
    pub fn record(&mut self, duration: impl Into<Measured>) {
        if self.counts.is_empty() {
            self.counts = vec![0; Distribution::<PER_OCTAVE>::BUCKETS];
        }
        let Measured { ns, bucket } = duration.into();
        if let Some(count) = self.counts.get_mut(bucket / (FINEST / PER_OCTAVE)) {
            *count += 1;
        }
        if let Some(sum) = self.sums_ns.get_mut(bucket / FINEST) {
            *sum = sum.saturating_add(ns);
        }
        self.max_ns = self.max_ns.max(ns);
    }

    /// Removes and returns everything that was recorded.
    pub fn take(&mut self) -> Distribution<PER_OCTAVE> {
        let mut taken = Distribution {
            max_ns: std::mem::take(&mut self.max_ns),
            ..Distribution::default()
        };
        for (bucket, count) in self.counts.iter_mut().enumerate() {
            if *count == 0 {
                continue;
            }
            taken.buckets.push(short(bucket));
            taken.counts.push(std::mem::take(count));
            let octave = bucket / PER_OCTAVE;
            if taken.octaves.last() != Some(&short(octave)) {
                taken.octaves.push(short(octave));
                let sum = self.sums_ns.get_mut(octave).map(std::mem::take);
                taken.sums_ns.push(sum.unwrap_or(0));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of<const PER_OCTAVE: usize>(values: &[u64]) -> Distribution<PER_OCTAVE> {
        let mut distribution = Distribution::default();
        values
            .iter()
            .for_each(|ns| distribution.record(Duration::from_nanos(*ns)));
        distribution
    }

    #[test]
    fn subtracting_a_distribution_removes_its_durations() {
        let record = |times: &[u64]| {
            let mut distribution = FineDistribution::default();
            let durations = times.iter().copied().map(Duration::from_micros);
            durations.for_each(|duration| distribution.record(duration));
            distribution
        };
        let all = record(&[3, 3, 40, 500, 500]);
        let rest = all.without(&record(&[3, 500, 500]));
        let expected = record(&[3, 40]);
        let buckets = |of: &FineDistribution| of.buckets().collect::<Vec<_>>();
        assert_eq!(buckets(&rest), buckets(&expected));
        assert_eq!(rest.sum(), expected.sum());
        assert_eq!(all.without(&FineDistribution::default()), all);
    }

    #[test]
    fn subtracting_a_growing_part_does_not_lower_a_saturated_sum() {
        const HOUR: u64 = 3_600_000_000_000;
        let all = of::<32>(&[u64::MAX, HOUR, HOUR]);
        let rest = |part: &[u64]| all.without(&of(part)).sum();
        assert_eq!(rest(&[HOUR]), Duration::from_nanos(u64::MAX));
        assert_eq!(rest(&[HOUR, HOUR]), rest(&[HOUR]));
    }

    #[test]
    fn the_exponent_of_a_bucket_gives_its_upper_bound() {
        for bucket in [0, 1, 167, 168, 255] {
            let (_, upper) = Distribution::<8>::bounds_seconds(bucket);
            let exponent = Distribution::<8>::upper_exponent(bucket);
            assert_eq!((f64::from(exponent) / 8.0).exp2(), upper);
        }
        assert_eq!((Distribution::<8>::SCALE, FineDistribution::SCALE), (3, 5));
    }

    #[test]
    fn upper_bound_of_a_bucket_belongs_to_that_bucket() {
        let bounds = &scale().bounds_ns;
        for (bucket, bound) in bounds.iter().enumerate().take(bounds.len() - 1) {
            assert_eq!(finest_bucket_of(*bound), bucket);
            assert_eq!(finest_bucket_of(bound + 1), bucket + 1);
        }
        assert_eq!(
            (finest_bucket_of(0), finest_bucket_of(u64::MAX)),
            (0, bounds.len() - 1)
        );
    }

    #[test]
    fn first_guess_of_a_bucket_differs_from_the_right_bucket_by_at_most_two() {
        let Scale { bounds_ns, steps } = scale();
        for ns in bounds_ns.iter().flat_map(|bound| [*bound, bound + 1]) {
            let zeros = ns.leading_zeros();
            let part = usize::try_from((ns << zeros) >> 57 & 63).unwrap();
            let octave = usize::try_from(63 - zeros).unwrap();
            let guess = (octave * FINEST + steps[part]).saturating_sub(BUCKETS_BELOW);
            assert!(guess.abs_diff(finest_bucket_of(ns)) <= 2, "{ns}");
        }
    }

    #[test]
    fn quantile_of_durations_that_exceed_all_bounds_is_the_maximum() {
        const HOUR: u64 = 3_600_000_000_000;
        let hours = of::<8>(&[1_000_000, HOUR, 3 * HOUR]);
        let quantiles = [0.3, 0.5, 0.99].map(|q| hours.quantile(q).as_secs());
        assert_eq!(quantiles, [0, 3 * 3_600, 3 * 3_600]);
        let hour = of::<32>(&[HOUR]);
        assert_eq!(hour.quantile(0.5), Duration::from_secs(3_600));
    }

    #[test]
    fn octaves_have_exact_counts_and_sums() {
        let distribution = of::<8>(&[500, 1_000_000_000, 1_000_000_001]);
        let octaves: Vec<_> = distribution.octaves().collect();
        let one_second = (0..OCTAVES)
            .find(|o| octave_bound_seconds(*o) >= 1.0)
            .unwrap();
        let expected = [
            (0, 1, Duration::from_nanos(500)),
            (one_second, 1, Duration::from_secs(1)),
            (one_second + 1, 1, Duration::from_nanos(1_000_000_001)),
        ];
        assert_eq!(octaves, expected);
    }

    proptest! {
        #[expect(clippy::as_conversions, reason = "small numbers")]
        #[test]
        fn quantiles_differ_from_exact_values_by_at_most_half_a_bucket(
            mut values in prop::collection::vec(2_000u64..600_000_000_000, 1..200), q in 0.01f64..1.0,
        ) {
            let (coarse, fine) = (of::<8>(&values), of::<32>(&values));
            values.sort_unstable();
            let rank = ((q * values.len() as f64).ceil() as usize).clamp(1, values.len());
            let exact = values[rank - 1] as f64;
            let error = |found: Duration| (found.as_nanos() as f64 / exact - 1.0).abs();
            prop_assert!(error(coarse.quantile(q)) <= 0.0443);
            prop_assert!(error(fine.quantile(q)) <= 0.011);
        }

        #[test]
        fn merged_distribution_equals_the_distribution_of_all_values(
            a in prop::collection::vec(any::<u32>(), 0..50), b in prop::collection::vec(any::<u32>(), 0..50),
        ) {
            let wide = |v: &[u32]| v.iter().map(|n| u64::from(*n)).collect::<Vec<_>>();
            let mut merged = of::<8>(&wide(&a));
            merged.merge(&of(&wide(&b)));
            prop_assert_eq!(merged, of(&wide(&[a, b].concat())));
        }

        /// An octave is the range from one power of two to the next.
        #[test]
        fn reducing_32_buckets_per_octave_to_8_gives_the_same_result_as_recording_with_8(
            values in prop::collection::vec(any::<u32>(), 0..50),
        ) {
            let wide = values.iter().map(|n| u64::from(*n)).collect::<Vec<_>>();
            prop_assert_eq!(of::<32>(&wide).coarse(), of::<8>(&wide));
        }

        /// A dense distribution has a counter for each bucket. A sparse distribution stores only
        /// buckets that are not empty.
        #[test]
        fn dense_and_sparse_distributions_of_the_same_durations_are_equal(
            first in prop::collection::vec(any::<u64>(), 0..50), second in prop::collection::vec(any::<u32>(), 0..50),
        ) {
            let second = second.iter().map(|n| u64::from(*n)).collect::<Vec<_>>();
            let mut dense = DenseDistribution::<8>::default();
            let mut fine = DenseDistribution::<32>::default();
            for values in [first, second] {
                for ns in &values {
                    dense.record(Duration::from_nanos(*ns));
                    fine.record(Duration::from_nanos(*ns));
                }
                prop_assert_eq!(dense.take(), of::<8>(&values));
                prop_assert_eq!(fine.take(), of::<32>(&values));
            }
        }

        #[test]
        fn from_parts_restores_buckets_sum_max_and_quantiles(
            values in prop::collection::vec(any::<u32>(), 1..50),
        ) {
            let wide = values.iter().map(|n| u64::from(*n)).collect::<Vec<_>>();
            let whole = of::<8>(&wide);
            let again = Distribution::<8>::from_parts(whole.buckets(), whole.sum(), whole.max());
            prop_assert_eq!(again.buckets().collect::<Vec<_>>(), whole.buckets().collect::<Vec<_>>());
            prop_assert_eq!((again.sum(), again.max(), again.quantile(0.5)), (whole.sum(), whole.max(), whole.quantile(0.5)));
        }
    }
}
