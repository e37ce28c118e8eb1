//! The rank test of Mann and Whitney, applied to the buckets of two distributions.
//!
//! Durations in the same bucket are ties. The variance is corrected for ties.
//!
//! Sources: Mann and Whitney, "On a Test of Whether one of Two Random Variables is Stochastically
//! Larger than the Other", Annals of Mathematical Statistics 18 (1947); the correction: Kruskal and
//! Wallis, "Use of Ranks in One-Criterion Variance Analysis", Journal of the American Statistical
//! Association 47 (1952).

use std::collections::BTreeMap;

use seawall_stats::{Distribution, float};

/// The result of the rank test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranks {
    /// Share of pairs (an earlier and a later duration) in which the later duration is longer. A
    /// pair in the same bucket counts half.
    pub effect: f64,
    /// `effect` minus one half, in standard deviations. Positive if the later durations tend to be
    /// longer, negative if they tend to be shorter.
    pub z: f64,
}

/// Compares two distributions, after shifting the buckets of `before` up by `shift`. A shift by 8
/// doubles the durations of `before`.
pub fn ranks(before: &Distribution, now: &Distribution, shift: i64) -> Ranks {
    let mut buckets: BTreeMap<i64, (f64, f64)> = BTreeMap::new();
    let key = |bucket: usize| i64::try_from(bucket).unwrap_or(i64::MAX / 2);
    for (bucket, count) in before.buckets() {
        buckets.entry(key(bucket) + shift).or_default().0 += float(count);
    }
    for (bucket, count) in now.buckets() {
        buckets.entry(key(bucket)).or_default().1 += float(count);
    }
    let (mut below, mut n_now, mut longer, mut ties) = (0.0, 0.0, 0.0, 0.0);
    for (b, n) in buckets.into_values() {
        longer += n * (below + b / 2.0);
        below += b;
        n_now += n;
        ties += (b + n).powi(3) - (b + n);
    }
    let (pairs, all) = (below * n_now, below + n_now);
    if pairs == 0.0 {
        return Ranks {
            effect: 0.5,
            z: 0.0,
        };
    }
    let variance = pairs / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    let z = match variance > 0.0 {
        true => (longer - pairs / 2.0) / variance.sqrt(),
        false => 0.0,
    };
    Ranks {
        effect: longer / pairs,
        z,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::tests::alike, *};
    use crate::random::Random;

    /// The *effect* is the share of pairs in which the later duration is longer.
    #[test]
    fn effect_of_the_rank_test_equals_the_result_of_comparing_all_pairs() {
        let mut random = Random::of(1);
        for _ in 0..20 {
            let mut sample = |n| -> (Vec<usize>, Distribution) {
                let mut distribution = Distribution::default();
                let buckets = (0..n).map(|_| {
                    let mut one = Distribution::default();
                    one.record(Duration::from_secs_f64(1e-3 * random.normal().exp()));
                    distribution.merge(&one);
                    one.buckets().next().unwrap().0
                });
                (buckets.collect(), distribution)
            };
            let ((a, before), (b, now)) = (sample(40), sample(60));
            let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
            let longer: f64 = pairs
                .map(|(a, b)| f64::from(u8::from(b > a)) + f64::from(u8::from(b == a)) / 2.0)
                .sum();
            let ranks = ranks(&before, &now, 0);
            assert!((ranks.effect - longer / 2_400.0).abs() < 1e-12);
        }
    }

    #[test]
    fn the_z_value_of_the_rank_test_is_corrected_for_equal_durations() {
        // 1 1 2 against 1 2 2 2 (bucket numbers): U = 8.5 of 12. There are ties of 3 and of 4 among
        // 7 values, so the variance is 12 / 12 · (8 - (24 + 60) / (7 · 6)) = 6.
        let of = |short, long| {
            let mut of = alike(short, 1.0).durations;
            of.merge(&alike(long, 2.0).durations);
            of
        };
        let (before, now) = (of(2, 1), of(1, 3));
        let plain = ranks(&before, &now, 0);
        assert!((plain.effect - 8.5 / 12.0).abs() < 1e-12);
        assert!((plain.z - 2.5 / 6_f64.sqrt()).abs() < 1e-12);
        // With `before` shifted up by 8 buckets, no later duration is longer, and each "1" before
        // is equal to each "2" now.
        assert!(ranks(&before, &now, 8).effect < 0.5);
    }
}
