//! The ratios of all shapes. For each shape, also the drift and the spread of the ratios of all
//! other shapes. The drift is the change that the shapes have in common. The spread is a standard
//! deviation.
//!
//! The values are sorted once for all shapes. Sorting them again for each shape would take too
//! long, because a period may have ten thousand shapes.

use std::collections::{BTreeMap, HashMap};

/// Minimum number of other shapes needed to compute the drift: the change that all shapes have in
/// common.
pub(super) const MIN_OTHERS: usize = 3;

/// For each shape, by its index, the logarithm of a ratio: the later value divided by the earlier
/// value.
#[derive(Default)]
pub(super) struct Ratios {
    by_shape: BTreeMap<usize, f64>,
    sorted: Sorted,
}

impl Ratios {
    pub(super) fn of(by_shape: BTreeMap<usize, f64>) -> Self {
        let sorted = Sorted::of(by_shape.values().copied());
        Self { by_shape, sorted }
    }

    /// The indexes of the shapes that have a ratio.
    pub(super) fn shapes(&self) -> impl Iterator<Item = usize> {
        self.by_shape.keys().copied()
    }

    /// The drift: the change that all shapes have in common. The drift is the median of the ratios
    /// (as logarithms). `None` if there are at most [`MIN_OTHERS`] shapes: then each shape has too
    /// few other shapes to compute a drift, so each change of a shape is reported separately.
    pub(super) fn drift(&self) -> Option<f64> {
        let is_enough = self.by_shape.len() > MIN_OTHERS;
        is_enough.then(|| self.sorted.median()).flatten()
    }

    /// The drift of all shapes except the shape with the index `but`. `None` if they are fewer than
    /// [`MIN_OTHERS`].
    pub(super) fn drift_without(&self, but: usize) -> Option<f64> {
        self.drift_without_ratio(self.by_shape.get(&but).copied())
    }

    fn drift_without_ratio(&self, ratio: Option<f64>) -> Option<f64> {
        let others = self.by_shape.len() - usize::from(ratio.is_some());
        let is_enough = others >= MIN_OTHERS;
        is_enough
            .then(|| self.sorted.median_without(ratio))
            .flatten()
    }
}

/// For each shape, the standard deviation of the ratios (as logarithms) of all other shapes.
pub(super) struct Spreads {
    by_shape: BTreeMap<usize, f64>,
    of_all: f64,
}

impl Spreads {
    pub(super) fn of(ratios: &Ratios) -> Self {
        // The drift without one shape has at most three different values: the median of the other
        // shapes depends only on the side of the middle from which the shape was removed. So the
        // deviations are sorted at most four times.
        let mut sorted: HashMap<u64, Sorted> = HashMap::new();
        let mut spread = |ratio: Option<f64>| {
            let Some(drift) = ratios.drift_without_ratio(ratio) else {
                return 0.0;
            };
            let deviation = |ratio: f64| (ratio - drift).abs();
            let deviations = sorted
                .entry(drift.to_bits())
                .or_insert_with(|| Sorted::of(ratios.by_shape.values().copied().map(deviation)));
            let middle = deviations.median_without(ratio.map(deviation));
            // For normally distributed values, the standard deviation is 1.4826 times the median
            // absolute deviation.
            middle.unwrap_or(0.0) * 1.4826
        };
        let of_all = spread(None);
        let by_shape = ratios.by_shape.iter();
        let by_shape = by_shape.map(|(shape, ratio)| (*shape, spread(Some(*ratio))));
        Self {
            by_shape: by_shape.collect(),
            of_all,
        }
    }

    /// The standard deviation of the ratios of all shapes except the shape with the index `but`. It
    /// is estimated from the median absolute deviation. Zero if these shapes are fewer than
    /// [`MIN_OTHERS`].
    pub(super) fn without(&self, but: usize) -> f64 {
        self.by_shape.get(&but).copied().unwrap_or(self.of_all)
    }
}

/// Values in ascending order.
#[derive(Default)]
pub(super) struct Sorted(Vec<f64>);

impl Sorted {
    pub(super) fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// The median; `None` if there are no values. For an even number of values, the median is the
    /// mean of the two middle values.
    pub(super) fn median(&self) -> Option<f64> {
        self.median_without(None)
    }

    /// The median of all values, without the value `one` if it is given. The list must contain
    /// `one`.
    fn median_without(&self, one: Option<f64>) -> Option<f64> {
        let Self(values) = self;
        let count = values.len().checked_sub(usize::from(one.is_some()))?;
        let removed = one.map_or(values.len(), |one| {
            values.partition_point(|value| value.total_cmp(&one).is_lt())
        });
        let at = |index: usize| values.get(index + usize::from(index >= removed));
        let lower = count.checked_sub(1)? / 2;
        Some((at(lower)? + at(count / 2)?) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Drift and spread are medians. The test computes the expected values from a list of the other
    /// ratios.
    #[test]
    fn each_shape_gets_the_drift_and_spread_of_all_other_shapes() {
        fn median(mut values: Vec<f64>) -> f64 {
            values.sort_by(f64::total_cmp);
            let count = values.len();
            f64::midpoint(values[(count - 1) / 2], values[count / 2])
        }
        let mut random = Random::of(1);
        for count in 4..40 {
            // Some ratios are equal.
            let ratio = |shape: usize| match shape % 3 {
                0 => 0.5,
                _ => random.normal(),
            };
            let shapes: Vec<usize> = (0..count).collect();
            let values: Vec<f64> = shapes.iter().copied().map(ratio).collect();
            let of_shape = shapes.iter().copied().zip(values.iter().copied());
            let ratios = Ratios::of(of_shape.collect());
            let spreads = Spreads::of(&ratios);
            assert_eq!(ratios.drift(), Some(median(values.clone())));
            // The last number is the index of a shape without a ratio.
            for but in 0..=count {
                let others = (0..count).filter(|shape| *shape != but);
                let others: Vec<f64> = others.map(|shape| values[shape]).collect();
                let drift = median(others.clone());
                let deviations = others.iter().map(|ratio| (ratio - drift).abs());
                let spread = median(deviations.collect()) * 1.4826;
                let found = ratios.drift_without(but).unwrap();
                assert!((found - drift).abs() < 1e-12, "{count} {but}");
                assert!(
                    (spreads.without(but) - spread).abs() < 1e-12,
                    "{count} {but}"
                );
            }
        }
    }

    #[test]
    fn three_shapes_have_no_drift_and_no_spread() {
        let ratios = Ratios::of((0..3).zip([0.1, 0.2, 0.4]).collect());
        assert_eq!(ratios.drift(), None);
        assert_eq!(ratios.drift_without(1), None);
        assert!(Spreads::of(&ratios).without(1) < 1e-12);
        // A shape without a ratio has three others.
        assert_eq!(ratios.drift_without(3), Some(0.2));
    }
}
