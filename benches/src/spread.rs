//! How much a measured value varies between the rounds of a bench.

use serde::Serialize;

/// Minimum, median and maximum of some values.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// Number of values, usually one per round.
    pub count: usize,
    /// The smallest value; NaN if there is none.
    pub least: f64,
    /// The median; the mean of the two middle values if `count` is even.
    pub median: f64,
    /// The largest value; NaN if there is none.
    pub most: f64,
}

impl Spread {
    /// The spread of `values`.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = [values.len().saturating_sub(1) / 2, values.len() / 2];
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            count: values.len(),
            least: at(0),
            median: middle.map(at).iter().sum::<f64>() / 2.0,
            most: at(values.len().saturating_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_of_values_is_the_mean_of_the_middle_values() {
        let spread = Spread::of([4.0, 1.0, 2.0, 9.0].into_iter());
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 3.0, 9.0));
        assert_eq!(Spread::of([7.0].into_iter()).median, 7.0);
    }
}
