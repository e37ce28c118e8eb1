//! Merges heat maps and annotations.

use super::{Merge, merge_by};
use crate::{Annotations, Heatmap, HeatmapColumn};

impl Merge for Heatmap {
    /// Adds the counts of equal buckets in equal steps. If the steps of one instance are longer,
    /// those of the other are combined to the same length.
    fn merge(&mut self, other: Self) {
        let step = self.step_seconds.max(other.step_seconds);
        let mut bounds = [&*self.bounds_seconds, &*other.bounds_seconds].concat();
        bounds.sort_by(|a, b| a.0.total_cmp(&b.0));
        bounds.dedup();
        let mut columns = columns(std::mem::take(self), &bounds, step);
        let others = self::columns(other, &bounds, step);
        merge_by(
            &mut columns,
            others,
            |of| of.at.to_bits(),
            |sum, of| {
                add_counts(sum, of.counts);
                sum.seconds = sum.seconds.max(of.seconds);
            },
        );
        columns.sort_by(|a, b| a.at.total_cmp(&b.at));
        *self = Self {
            bounds_seconds: bounds,
            columns,
            step_seconds: step,
        };
    }
}

/// The columns of one instance, in steps of `step` seconds, with indexes into `bounds`.
fn columns(of: Heatmap, bounds: &[(f64, f64)], step: f64) -> Vec<HeatmapColumn> {
    let place = |bucket: &(f64, f64)| bounds.iter().position(|one| one == bucket);
    let places: Vec<_> = of.bounds_seconds.iter().map(place).collect();
    let place = |index: u64| {
        let place = places.get(usize::try_from(index).ok()?)?;
        u64::try_from((*place)?).ok()
    };
    let columns = of.columns.into_iter().map(|column| HeatmapColumn {
        at: match step > 0.0 {
            true => (column.at / step).floor() * step,
            false => column.at,
        },
        counts: column
            .counts
            .into_iter()
            .filter_map(|(index, count)| Some((place(index)?, count)))
            .collect(),
        ..column
    });
    let mut combined = Vec::new();
    merge_by(
        &mut combined,
        columns.collect(),
        |of| of.at.to_bits(),
        |sum, of| {
            add_counts(sum, of.counts);
            sum.seconds += of.seconds;
        },
    );
    combined
}

/// Adds counts by bucket. The buckets stay in ascending order.
fn add_counts(column: &mut HeatmapColumn, others: Vec<(u64, u64)>) {
    merge_by(
        &mut column.counts,
        others,
        |of| of.0,
        |sum, of| sum.1 += of.1,
    );
    column.counts.sort_unstable();
}

impl Merge for Annotations {
    /// Lists the events of both instances. An event that both have seen is listed twice.
    fn merge(&mut self, other: Self) {
        self.annotations.extend(other.annotations);
        self.annotations.sort_by(|a, b| a.at.total_cmp(&b.at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Column<'a> = (f64, f64, &'a [(u64, u64)]);

    fn heatmap(step: f64, bounds: &[(f64, f64)], columns: &[Column<'_>]) -> Heatmap {
        let columns = columns.iter().map(|(at, seconds, counts)| HeatmapColumn {
            at: *at,
            counts: counts.to_vec(),
            seconds: *seconds,
        });
        Heatmap {
            bounds_seconds: bounds.to_vec(),
            columns: columns.collect(),
            step_seconds: step,
        }
    }

    fn columns(of: &Heatmap) -> Vec<Column<'_>> {
        let columns = of.columns.iter();
        columns.map(|of| (of.at, of.seconds, &*of.counts)).collect()
    }

    #[test]
    fn counts_of_equal_buckets_and_steps_are_added() {
        let mut merged = heatmap(
            1.0,
            &[(1.0, 2.0), (4.0, 8.0)],
            &[(5.0, 1.0, &[(0, 3), (1, 1)]), (6.0, 1.0, &[(1, 2)])],
        );
        merged.merge(heatmap(
            1.0,
            &[(2.0, 4.0), (4.0, 8.0)],
            &[(4.0, 1.0, &[(0, 9)]), (6.0, 1.0, &[(0, 7), (1, 5)])],
        ));
        assert_eq!(merged.bounds_seconds, [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0)]);
        let expected: [Column<'_>; 3] = [
            (4.0, 1.0, &[(1, 9)]),
            (5.0, 1.0, &[(0, 3), (2, 1)]),
            (6.0, 1.0, &[(1, 7), (2, 7)]),
        ];
        assert_eq!(columns(&merged), expected);
    }

    #[test]
    fn shorter_steps_are_combined_to_the_length_of_the_longer_ones() {
        let one = [(1.0, 2.0)];
        let mut merged = heatmap(1.0, &one, &[(19.0, 1.0, &[(0, 1)]), (20.0, 1.0, &[(0, 2)])]);
        merged.merge(heatmap(10.0, &one, &[(10.0, 10.0, &[(0, 4)])]));
        assert_eq!(merged.step_seconds, 10.0);
        let expected: [Column<'_>; 2] = [(10.0, 10.0, &[(0, 5)]), (20.0, 1.0, &[(0, 2)])];
        assert_eq!(columns(&merged), expected);
    }

    #[test]
    fn heat_map_without_columns_changes_nothing() {
        let mut merged = heatmap(1.0, &[(1.0, 2.0)], &[(5.0, 1.0, &[(0, 3)])]);
        let before = format!("{merged:?}");
        merged.merge(Heatmap::default());
        assert_eq!(format!("{merged:?}"), before);
    }
}
