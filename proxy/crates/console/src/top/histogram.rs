//! A distribution as bins to draw: logarithmic, or linear over a chosen range.

use crate::figures::{float, float_usize, whole};
use seawall_api::Bucket;

/// Number of buckets per octave, that is, per doubling of the duration.
pub(super) const PER_OCTAVE: f64 = 8.0;

/// The scale on which bins divide the durations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Scale {
    /// Bins whose bounds grow by a constant factor.
    #[default]
    Logarithmic,
    /// Bins of equal width. Without a range, the bins cover 0 to about the 99th percentile.
    Linear(Option<Range>),
}

/// A range of durations in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) low: f64,
    pub(super) high: f64,
}

/// A move of the lower or the upper end of a range, up or down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    LowDown,
    LowUp,
    HighDown,
    HighUp,
}

impl Range {
    /// Returns the range from 0 to the next round number above a duration.
    pub(super) fn up_to(seconds: f64) -> Self {
        Self {
            low: 0.0,
            high: round_up(seconds),
        }
    }

    /// Returns the range with one end moved by a tenth of the width. The two ends never meet.
    pub(super) fn moved(self, by: Move) -> Self {
        let step = (self.high - self.low) / 10.0;
        let Self { low, high } = self;
        match by {
            Move::LowDown => Self {
                low: (low - step).max(0.0),
                high,
            },
            Move::LowUp => Self {
                low: low + step,
                high,
            },
            Move::HighDown => Self {
                low,
                high: high - step,
            },
            Move::HighUp => Self {
                low,
                high: high + step,
            },
        }
    }
}

/// Rounds up to the next number of the series 1, 2, 5, 10, 20, 50 and so on. The result is at least
/// a microsecond.
fn round_up(seconds: f64) -> f64 {
    let decade = 10f64.powf(seconds.max(1e-6).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    let enough = steps.into_iter().find(|step| *step >= seconds * 0.9999);
    enough.unwrap_or(decade * 10.0)
}

/// The number of durations over `low` and up to `high` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bin {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) count: f64,
}

/// The bins that are drawn, and the counts below and above them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Histogram {
    pub(super) bins: Vec<Bin>,
    pub(super) below: f64,
    pub(super) above: f64,
}

impl Histogram {
    /// The highest count of a bin.
    pub(super) fn most(&self) -> f64 {
        self.bins.iter().map(|bin| bin.count).fold(0.0, f64::max)
    }

    /// The sum of all counts, also of those outside the bins.
    pub(super) fn total(&self) -> f64 {
        self.below + self.above + self.bins.iter().map(|bin| bin.count).sum::<f64>()
    }
}

/// Groups whole buckets into at most `most_bins` bins, which are as narrow as possible. Durations
/// below and above one second are never in the same bin, so there may be two bins even if
/// `most_bins` is 1.
pub(super) fn logarithmic(buckets: &[Bucket], most_bins: usize) -> Histogram {
    let numbers = || buckets.iter().map(|bucket| eighth(bucket.le_seconds) - 1.0);
    let (first, last) = (
        numbers().fold(f64::INFINITY, f64::min),
        numbers().fold(f64::NEG_INFINITY, f64::max),
    );
    if !(first.is_finite() && last.is_finite()) {
        return Histogram::default();
    }
    let most_bins = float_usize(most_bins).max(1.0);
    let mut width = 1.0;
    // Widths are powers of two and bins start at multiples of the width, so bounds align with
    // octaves.
    while width < 1024.0 && (last / width).floor() - (first / width).floor() >= most_bins {
        width *= 2.0;
    }
    let (first, last) = ((first / width).floor(), (last / width).floor());
    let bins = (0..=whole(last - first)).map(|place| {
        let group = first + float(place);
        let inside = buckets
            .iter()
            .filter(|b| ((eighth(b.le_seconds) - 1.0) / width).floor() == group);
        Bin {
            low: (group * width / PER_OCTAVE).exp2(),
            high: ((group + 1.0) * width / PER_OCTAVE).exp2(),
            count: inside.fold(0.0, |sum, bucket| sum + float(bucket.count)),
        }
    });
    Histogram {
        bins: bins.collect(),
        ..Histogram::default()
    }
}

/// Returns the logarithm of a duration, in eighths of an octave (a doubling): 0 for one second, 8
/// for two seconds, -8 for half a second.
pub(super) fn eighth(seconds: f64) -> f64 {
    (seconds.max(1e-12).log2() * PER_OCTAVE).round()
}

/// Distributes the buckets over bins of equal width. A bucket ends 9 % above its start. The count
/// of a bucket that covers several bins is spread evenly over them.
pub(super) fn linear(buckets: &[Bucket], range: Range, bins: usize) -> Histogram {
    let bins = u64::try_from(bins.max(1)).unwrap_or(1);
    let width = (range.high - range.low) / float(bins);
    let bounds = (0..bins).map(|bin| {
        let low = range.low + float(bin) * width;
        (low, low + width)
    });
    let within = |low: f64, high: f64| buckets.iter().fold(0.0, |sum, b| sum + share(b, low, high));
    Histogram {
        bins: bounds
            .map(|(low, high)| Bin {
                low,
                high,
                count: within(low, high),
            })
            .collect(),
        below: within(f64::NEG_INFINITY, range.low),
        above: within(range.high, f64::INFINITY),
    }
}

/// The part of a bucket's count that falls between two bounds.
fn share(bucket: &Bucket, low: f64, high: f64) -> f64 {
    let width = bucket.le_seconds - bucket.gt_seconds;
    let inside = high.min(bucket.le_seconds) - low.max(bucket.gt_seconds);
    if width <= 0.0 || inside <= 0.0 {
        return 0.0;
    }
    float(bucket.count) * (inside / width).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(number: i32, count: u64) -> Bucket {
        Bucket {
            gt_seconds: (f64::from(number) / 8.0).exp2(),
            le_seconds: (f64::from(number + 1) / 8.0).exp2(),
            count,
        }
    }

    /// Two peaks, at about 18 ms and 30 ms.
    fn peaks() -> Vec<Bucket> {
        vec![
            bucket(-48, 10),
            bucket(-47, 30),
            bucket(-41, 20),
            bucket(-40, 5),
        ]
    }

    #[test]
    fn grouping_buckets_into_logarithmic_bins_loses_no_count_and_does_not_merge_the_two_peaks() {
        let fine = logarithmic(&peaks(), 100);
        let counts: Vec<f64> = fine.bins.iter().map(|bin| bin.count).collect();
        assert_eq!(counts, [10.0, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 20.0, 5.0]);
        assert_eq!(fine.bins[0].low, (-6f64).exp2());
        let coarse = logarithmic(&peaks(), 4);
        let counts: Vec<f64> = coarse.bins.iter().map(|bin| bin.count).collect();
        assert_eq!(counts, [40.0, 20.0, 5.0]);
        assert_eq!((fine.total(), coarse.total()), (65.0, 65.0));
        assert_eq!(fine.most(), 30.0);
        assert_eq!(logarithmic(&[], 4), Histogram::default());
    }

    /// Durations below and above one second are never in the same bin, so the histogram may need
    /// two bins even if only one is requested.
    #[test]
    fn a_logarithmic_histogram_has_at_most_the_requested_number_of_bins_or_two_bins() {
        let wide: Vec<Bucket> = (-160..80).map(|number| bucket(number, 1)).collect();
        for most in [1, 2, 7, 30, 500] {
            let histogram = logarithmic(&wide, most);
            assert!(histogram.bins.len() <= most.max(2), "{most}");
            assert_eq!(histogram.total(), 240.0);
            let pairs = histogram.bins.iter().zip(histogram.bins.iter().skip(1));
            pairs.for_each(|(bin, next)| assert_eq!(bin.high, next.low));
        }
    }

    #[test]
    fn linear_histogram_counts_values_inside_below_and_above_its_range() {
        let range = Range {
            low: 0.016,
            high: 0.030,
        };
        let histogram = linear(&peaks(), range, 28);
        assert_eq!(histogram.bins.len(), 28);
        assert!((histogram.total() - 65.0).abs() < 1e-9);
        let bounds = ((-48f64 / 8.0).exp2(), (-47f64 / 8.0).exp2());
        let below = 10.0 * (0.016 - bounds.0) / (bounds.1 - bounds.0);
        assert!((histogram.below - below).abs() < 1e-9);
        assert!(histogram.above > 5.0 && histogram.above < 25.0);
        assert!((histogram.bins[0].high - 0.0165).abs() < 1e-12);
    }

    #[test]
    fn default_range_of_an_axis_ends_at_a_round_number_and_its_two_ends_never_meet_when_moved() {
        assert_eq!(Range::up_to(0.037).high, 0.05);
        assert!((Range::up_to(0.0021).high - 0.005).abs() < 1e-12);
        assert!(Range::up_to(0.0).high > 0.0);
        let mut range = Range::up_to(0.05);
        for by in [Move::LowUp, Move::HighDown].repeat(40) {
            range = range.moved(by);
            assert!(range.low < range.high && range.low >= 0.0, "{range:?}");
        }
        let widened = Range::up_to(0.05).moved(Move::HighUp).moved(Move::LowDown);
        assert!(widened.high > 0.05 && widened.low == 0.0);
    }
}
