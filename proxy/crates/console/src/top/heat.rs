//! The latency heat map as a grid. Each cell covers whole time steps and whole latency buckets, and
//! contains the number of operations in them. This module computes the grid but does not draw it.

use super::histogram::{PER_OCTAVE, eighth};
use crate::figures::{clock, float, float_usize, moment, whole};
use seawall_api::Heatmap;

const SECONDS_A_DAY: f64 = 86_400.0;

/// Number of shades that show how many operations a cell has. The characters of the cells show only
/// half as many levels: two shades share each character and differ only in color.
pub(super) const SHADES: usize = 8;

/// A heat map as a grid of cells. Every operation is in exactly one cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Grid {
    /// The start of the first column, in seconds since the epoch.
    pub(super) from: f64,
    /// The time that a column covers, in seconds.
    pub(super) cell_seconds: f64,
    /// Number of columns.
    pub(super) columns: usize,
    /// The rows, from the shortest latency to the longest latency.
    pub(super) rows: Vec<GridRow>,
    /// The highest number of operations in one cell.
    pub(super) most: u64,
    /// Number of operations in all cells.
    pub(super) total: u64,
}

/// The operations with latencies over `low` and up to `high` seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GridRow {
    pub(super) low: f64,
    pub(super) high: f64,
    /// Number of operations in each column.
    pub(super) counts: Vec<u64>,
}

/// The period of a heat map, in seconds since the epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Period {
    pub(super) from: f64,
    pub(super) until: f64,
}

impl Period {
    /// The period that a heat map of the last `since` seconds shows. Without `since`, it is the
    /// period that has data. The period ends with the last column, because the clock of this
    /// machine may differ from the clock of the proxy. `None` if the heat map has no columns.
    pub(super) fn of(heatmap: &Heatmap, since: Option<f64>) -> Option<Self> {
        let (first, last) = heatmap.columns.first().zip(heatmap.columns.last())?;
        let until = last.at + heatmap.step_seconds;
        let from = since.map_or(first.at, |since| first.at.min(until - since));
        Some(Self { from, until })
    }
}

impl Grid {
    /// Groups whole steps into at most `columns` columns, and whole buckets into at most `rows`
    /// rows. Latencies below and above one second are never in the same row, so there may be two
    /// rows even if `rows` is 1. `None` if the heat map has no operations.
    pub(super) fn new(
        heatmap: &Heatmap,
        period: Period,
        columns: usize,
        rows: usize,
    ) -> Option<Self> {
        let step = heatmap.step_seconds.max(1.0);
        let (from, cell_seconds, columns) = time_cells(period, step, columns.max(1));
        let numbers: Vec<f64> = heatmap
            .bounds_seconds
            .iter()
            .map(|(_, le)| eighth(*le) - 1.0)
            .collect();
        let first = numbers.iter().copied().fold(f64::INFINITY, f64::min);
        let last = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !(first.is_finite() && last.is_finite()) {
            return None;
        }
        let most_rows = float_usize(rows.max(1));
        let mut width = 1.0;
        while (last / width).floor() - (first / width).floor() >= most_rows {
            // Each row has `width` buckets and begins at a multiple of `width`. So latencies below
            // and above one second are in two rows, even if the rows are wide. If `rows` is 1 and
            // there are latencies of both kinds, only the condition below ends the loop.
            if width > 2.0 * (last.abs() + first.abs()) {
                break;
            }
            width += 1.0;
        }
        let lowest = (first / width).floor();
        let groups = whole((last / width).floor() - lowest);
        let mut grid = Self {
            from,
            cell_seconds,
            columns,
            rows: (0..=groups)
                .map(|place| {
                    let group = lowest + float(place);
                    GridRow {
                        low: (group * width / PER_OCTAVE).exp2(),
                        high: ((group + 1.0) * width / PER_OCTAVE).exp2(),
                        counts: vec![0; columns],
                    }
                })
                .collect(),
            ..Self::default()
        };
        let row_of = |index: u64| {
            let number = numbers.get(usize::try_from(index).ok()?)?;
            usize::try_from(whole((number / width).floor() - lowest)).ok()
        };
        for column in &heatmap.columns {
            let place = usize::try_from(whole((column.at - from) / cell_seconds));
            for (index, count) in &column.counts {
                let row = row_of(*index).and_then(|row| grid.rows.get_mut(row));
                let place = place.ok().map(|place| place.min(columns - 1));
                if let Some(cell) = row.zip(place).and_then(|(row, at)| row.counts.get_mut(at)) {
                    *cell += count;
                    grid.total += count;
                }
            }
        }
        let counts = grid.rows.iter().flat_map(|row| &row.counts);
        grid.most = counts.copied().max().unwrap_or(0);
        Some(grid)
    }

    /// The end of the last column.
    pub(super) fn until(&self) -> f64 {
        self.from + self.cell_seconds * float_usize(self.columns)
    }

    /// The shade of a count, from 0 to [`SHADES`] - 1. The scale is logarithmic: a single slow
    /// operation must be visible beside thousands of fast operations.
    pub(super) fn shade(&self, count: u64) -> usize {
        let share = match self.most {
            0 | 1 => 1.0,
            most => float(count).ln() / float(most).ln(),
        };
        let shades = float_usize(SHADES);
        let shade = usize::try_from(whole(share * shades)).unwrap_or(SHADES);
        shade.min(SHADES - 1)
    }

    /// The shades in use, in ascending order, each with the lowest count that has this shade.
    pub(super) fn lowest_counts(&self) -> Vec<(usize, u64)> {
        let mut lowest: Vec<(usize, u64)> = Vec::new();
        for shade in 0..SHADES {
            let share = float_usize(shade) / 8.0;
            // `powf` is not exact, so `about` can differ by one or two from the lowest count of the
            // shade. The search therefore tries four counts.
            let about = whole(float(self.most).powf(share)).saturating_sub(1).max(1);
            let near = about..=about.saturating_add(3).min(self.most);
            let mut near = near.filter(|count| self.shade(*count) == shade);
            lowest.extend(near.next().map(|count| (shade, count)));
        }
        lowest
    }
}

/// The columns of a period: the start of the first column, the length of a column in seconds, and
/// the number of columns. Columns begin at multiples of their length, so that earlier columns stay
/// the same when the heat map is drawn again.
fn time_cells(period: Period, step: f64, most: usize) -> (f64, f64, usize) {
    let length = (period.until - period.from).max(step);
    let most = float_usize(most);
    let mut steps = (length / step / most).ceil().max(1.0);
    loop {
        let cell = step * steps;
        let from = (period.from / cell).floor() * cell;
        let columns = ((period.until - from) / cell).ceil().max(1.0);
        // Make the cells longer until all columns fit. If the bound between two cells is in the
        // period, there are two columns even if the cells are very long. So the number of steps in
        // a cell has a limit.
        if columns <= most || steps > 2.0 * length {
            let columns = usize::try_from(whole(columns)).unwrap_or(1);
            return (
                from,
                cell,
                columns.min(usize::try_from(whole(most)).unwrap_or(1)),
            );
        }
        steps += 1.0;
    }
}

/// The latencies that get a label on a logarithmic axis, in seconds: round numbers above `low`
/// and up to `high`. The fewer decades the axis has, the more labels each decade gets.
pub(super) fn latency_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = (high / low).log10();
    let factors: &[f64] = match decades {
        1.5.. => &[1.0],
        0.6.. => &[1.0, 2.0, 5.0],
        _ => &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    };
    // The powers of ten are in seconds: from a nanosecond to about a day.
    let powers = (-9..=5).map(|power| 10f64.powi(power));
    let ticks = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
    ticks.filter(|tick| *tick > low && *tick <= high).collect()
}

/// Returns round moments in a period, each with its label, in UTC. The interval between two moments
/// is the shortest round interval that fits into the period at most `most` times. If even 48 hours
/// are too short, the interval is 7 days, and at most 101 moments are returned.
pub(super) fn time_ticks(from: f64, until: f64, most: usize) -> Vec<(f64, String)> {
    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 3600.0;
    let seconds = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0].into_iter();
    let minutes = [1.0, 2.0, 5.0, 10.0, 30.0].map(|minutes| minutes * MINUTE);
    let hours = [1.0, 2.0, 3.0, 6.0, 12.0, 24.0, 48.0].map(|hours| hours * HOUR);
    let mut steps = seconds.chain(minutes).chain(hours);
    let length = until - from;
    let most = float_usize(most.max(1));
    let step = steps.find(|step| length / step <= most);
    let step = step.unwrap_or(7.0 * SECONDS_A_DAY);
    let first = (from / step).ceil() * step;
    let ticks = (0..=whole((until - first) / step).min(100)).map(|tick| first + float(tick) * step);
    let label = |at: f64| {
        // In a period longer than a day, the label of midnight is its date without the year. With
        // steps of minutes or more, labels have no seconds.
        let is_midnight = at % SECONDS_A_DAY == 0.0;
        match step {
            MINUTE.. if is_midnight && length > SECONDS_A_DAY => {
                moment(at).chars().skip(5).take(5).collect()
            }
            MINUTE.. => clock(at).chars().take(5).collect(),
            _ => clock(at),
        }
    };
    let ticks = ticks.filter(|at| *at <= until).map(|at| (at, label(at)));
    ticks.collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use seawall_api::HeatmapColumn;

    fn bounds(number: i32) -> (f64, f64) {
        let bound = |number: i32| (f64::from(number) / 8.0).exp2();
        (bound(number), bound(number + 1))
    }

    /// Ten minutes in steps of 5 s, from second 1000 on. Each step has 100 operations of about 1
    /// ms. Every twelfth step also has one operation of about 2 s.
    pub(in crate::top) fn heatmap() -> Heatmap {
        let columns = (0..120u32).map(|step| HeatmapColumn {
            at: f64::from(1_000 + 5 * step),
            counts: match step % 12 {
                0 => vec![(0, 60), (1, 40), (2, 1)],
                _ => vec![(0, 60), (1, 40)],
            },
            seconds: 5.0,
        });
        Heatmap {
            bounds_seconds: vec![bounds(-80), bounds(-79), bounds(8)],
            columns: columns.collect(),
            step_seconds: 5.0,
        }
    }

    const TOTAL: u64 = 120 * 100 + 10;

    fn period() -> Period {
        Period::of(&heatmap(), Some(600.0)).unwrap()
    }

    #[test]
    fn every_operation_is_in_exactly_one_cell_of_a_grid_of_any_size() {
        for columns in [1, 2, 3, 7, 59, 60, 61, 119, 120, 121, 400] {
            for rows in [1, 2, 5, 20, 89, 200] {
                let grid = Grid::new(&heatmap(), period(), columns, rows).unwrap();
                let counts = grid.rows.iter().flat_map(|row| &row.counts);
                assert_eq!(counts.sum::<u64>(), TOTAL, "{columns} {rows}");
                assert_eq!(grid.total, TOTAL);
                assert!(grid.columns <= columns, "{} {columns}", grid.columns);
                assert!(grid.rows.len() <= rows.max(2), "{} {rows}", grid.rows.len());
                assert_eq!(grid.cell_seconds % 5.0, 0.0);
            }
        }
    }

    #[test]
    fn each_cell_counts_the_operations_of_its_time_steps_and_latency_buckets() {
        let grid = Grid::new(&heatmap(), period(), 120, 100).unwrap();
        assert_eq!(
            (grid.from, grid.cell_seconds, grid.columns),
            (1_000.0, 5.0, 120)
        );
        assert_eq!((grid.rows.len(), grid.most), (89, 60));
        assert_eq!(grid.rows[0].counts[7], 60);
        assert_eq!(grid.rows[1].counts[7], 40);
        assert_eq!((grid.rows[88].counts[12], grid.rows[88].counts[13]), (1, 0));
        let coarse = Grid::new(&heatmap(), period(), 60, 12).unwrap();
        assert_eq!((coarse.cell_seconds, coarse.columns), (10.0, 60));
        assert_eq!((coarse.rows[0].counts[3], coarse.most), (200, 200));
        let last = coarse.rows.last().unwrap();
        assert_eq!((last.counts[6], last.counts[7]), (1, 0));
        assert!(last.low <= 2.0 && last.high > 2.18);
        assert!(Grid::new(&Heatmap::default(), period(), 60, 12).is_none());
    }

    #[test]
    fn a_heat_map_period_ends_with_the_last_column() {
        let of = |since| {
            let period = Period::of(&heatmap(), since);
            period.map(|period| (period.from, period.until))
        };
        assert_eq!(of(Some(600.0)), Some((1_000.0, 1_600.0)));
        // The proxy has no data for the beginning of the period.
        assert_eq!(of(Some(3_600.0)), Some((-2_000.0, 1_600.0)));
        // The first column begins before the period.
        assert_eq!(of(Some(598.0)), Some((1_000.0, 1_600.0)));
        assert_eq!(of(None), Some((1_000.0, 1_600.0)));
        assert_eq!(Period::of(&Heatmap::default(), Some(600.0)), None);
    }

    #[test]
    fn shades_are_logarithmic_and_the_legend_gets_the_lowest_count_of_each_shade_in_use() {
        let of = |most| Grid {
            most,
            ..Grid::default()
        };
        let grid = of(256);
        assert_eq!(
            [1, 2, 4, 255, 256].map(|count| grid.shade(count)),
            [0, 1, 2, 7, 7]
        );
        for most in [1, 2, 3, 10, 256, 1_000_000, 1_000_000_000_000] {
            let grid = of(most);
            let lowest = grid.lowest_counts();
            assert_eq!(lowest[0].1, 1, "{most}");
            assert_eq!(lowest.last().unwrap().0, SHADES - 1, "{most}");
            for (shade, count) in lowest {
                assert_eq!(grid.shade(count), shade);
                assert!(
                    count == 1 || grid.shade(count - 1) < shade,
                    "{most} {count}"
                );
            }
        }
    }

    #[test]
    fn latency_ticks_are_round_and_more_frequent_on_a_short_axis() {
        assert_eq!(latency_ticks(9e-5, 1.5), [1e-4, 1e-3, 1e-2, 0.1, 1.0]);
        let close = |ticks: Vec<f64>, expected: &[f64]| {
            assert_eq!(ticks.len(), expected.len(), "{ticks:?}");
            let pairs = ticks.iter().zip(expected);
            pairs.for_each(|(a, b)| assert!((a / b - 1.0).abs() < 1e-9, "{ticks:?}"));
        };
        close(latency_ticks(1e-3, 1e-2), &[2e-3, 5e-3, 1e-2]);
        close(latency_ticks(1e-3, 3e-3), &[2e-3, 3e-3]);
    }

    #[test]
    fn time_ticks_are_few_and_at_round_moments() {
        let labels = |from, until, most| -> Vec<String> {
            let ticks = time_ticks(from, until, most).into_iter();
            ticks.map(|(_, label)| label).collect()
        };
        assert_eq!(
            labels(3.0, 600.0, 7),
            ["00:02", "00:04", "00:06", "00:08", "00:10"]
        );
        assert_eq!(
            labels(0.0, 10.0, 5),
            [
                "00:00:00", "00:00:02", "00:00:04", "00:00:06", "00:00:08", "00:00:10"
            ]
        );
        assert_eq!(labels(0.0, 7.0 * 86_400.0, 7).len(), 8);
        assert_eq!(
            labels(0.0, 86_400.0 * 3.5, 7)[..3],
            ["01-01", "12:00", "01-02"]
        );
        assert!(labels(0.0, 1e9, 7).len() <= 101);
    }
}
