//! Axes: the position of a value on an axis, and the ticks with their labels.

use crate::figures::{clock, count, float, millis, moment, whole};

const SECONDS_A_DAY: f64 = 86_400.0;

/// The type of a vertical axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Axis {
    /// A linear axis for counts. It begins at 0.
    Linear,
    /// A logarithmic axis for milliseconds, with one tick per decade.
    Logarithmic,
}

/// An axis with its range and ticks.
pub(super) struct Scale {
    axis: Axis,
    low: f64,
    high: f64,
    pub(super) ticks: Vec<(f64, String)>,
}

impl Scale {
    pub(super) fn new(axis: Axis, least: f64, most: f64) -> Self {
        match axis {
            Axis::Linear => {
                let most = if most > 0.0 { most } else { 1.0 };
                let step = round_step(most / 3.0);
                let steps = (most / step).ceil().max(1.0);
                let places = (0..=whole(steps)).map(|place| float(place) * step);
                Self {
                    axis,
                    low: 0.0,
                    high: steps * step,
                    ticks: places.map(|at| (at, count(at))).collect(),
                }
            }
            Axis::Logarithmic => {
                let (least, most) = match least.is_finite() && most > 0.0 {
                    true => (least.max(1e-4), most),
                    false => (1.0, 10.0),
                };
                let low = least.log10().floor();
                let high = most.log10().ceil().max(low + 1.0);
                let decades = (0..=whole(high - low)).map(|decade| low + float(decade));
                let decades = decades.map(|decade| 10f64.powf(decade));
                Self {
                    axis,
                    low: 10f64.powf(low),
                    high: 10f64.powf(high),
                    ticks: decades.map(|at| (at, millis(at))).collect(),
                }
            }
        }
    }

    /// The height of a value, from 0 to 1.
    pub(super) fn height(&self, value: f64) -> f64 {
        let height = match self.axis {
            Axis::Linear => (value - self.low) / (self.high - self.low),
            Axis::Logarithmic => {
                (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
            }
        };
        height.clamp(0.0, 1.0)
    }
}

/// Rounds up to the next number of the series 1, 2, 5, 10, 20, 50 and so on.
fn round_step(least: f64) -> f64 {
    let decade = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|step| step * decade);
    let enough = steps.into_iter().find(|step| *step >= least * 0.9999);
    enough.unwrap_or(decade * 10.0)
}

/// Returns about six round moments in a period, each with its label.
pub(super) fn time_ticks(from: f64, to: f64) -> Vec<(f64, String)> {
    const MINUTE: f64 = 60.0;
    const HOUR: f64 = 3600.0;
    let seconds = [1.0, 2.0, 5.0, 10.0, 15.0, 30.0].into_iter();
    let minutes = [1.0, 2.0, 5.0, 10.0, 30.0].map(|minutes| minutes * MINUTE);
    let hours = [1.0, 2.0, 3.0, 6.0, 12.0, 24.0].map(|hours| hours * HOUR);
    let mut steps = seconds.chain(minutes).chain(hours);
    let length = to - from;
    let step = steps.find(|step| length / step <= 7.0);
    let step = step.unwrap_or(SECONDS_A_DAY);
    let first = (from / step).ceil() * step;
    let ticks = (0..=whole((to - first) / step).min(30)).map(|tick| first + float(tick) * step);
    let label = |at: f64| {
        // The label of midnight is its date without the year. With steps of minutes or more, labels
        // have no seconds.
        let is_midnight = at % SECONDS_A_DAY == 0.0;
        match step {
            MINUTE.. if is_midnight && length > SECONDS_A_DAY => {
                moment(at).chars().skip(5).take(5).collect()
            }
            MINUTE.. => clock(at).chars().take(5).collect(),
            _ => clock(at),
        }
    };
    let ticks = ticks.filter(|at| *at <= to).map(|at| (at, label(at)));
    ticks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axis_starts_at_zero_and_ends_at_a_round_value() {
        let scale = Scale::new(Axis::Linear, 800.0, 1_234.0);
        let labels: Vec<_> = scale
            .ticks
            .iter()
            .map(|(_, label)| label.as_str())
            .collect();
        assert_eq!(labels, ["0", "500", "1k", "1.5k"]);
        assert_eq!((scale.height(0.0), scale.height(750.0)), (0.0, 0.5));
        assert_eq!(Scale::new(Axis::Linear, 0.0, 0.0).high, 1.0);
    }

    #[test]
    fn logarithmic_axis_has_a_labelled_tick_per_decade() {
        let scale = Scale::new(Axis::Logarithmic, 0.3, 2_600.0);
        let labels: Vec<_> = scale
            .ticks
            .iter()
            .map(|(_, label)| label.as_str())
            .collect();
        assert_eq!(labels, ["100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
        assert!((scale.height(1.0) - 0.2).abs() < 1e-9);
        assert_eq!(scale.height(0.0), 0.0);
        let nothing = Scale::new(Axis::Logarithmic, f64::INFINITY, f64::NEG_INFINITY);
        assert!(nothing.ticks.len() == 2);
    }

    #[test]
    fn time_ticks_are_few_and_at_round_moments() {
        let labels = |from, to| -> Vec<String> {
            time_ticks(from, to)
                .into_iter()
                .map(|(_, label)| label)
                .collect()
        };
        assert_eq!(
            labels(3.0, 600.0),
            ["00:02", "00:04", "00:06", "00:08", "00:10"]
        );
        assert_eq!(
            labels(0.0, 10.0),
            [
                "00:00:00", "00:00:02", "00:00:04", "00:00:06", "00:00:08", "00:00:10"
            ]
        );
        assert_eq!(labels(0.0, 7.0 * 86_400.0).len(), 8);
        assert_eq!(
            labels(0.0, 86_400.0 * 3.5)[..3],
            ["01-01", "12:00", "01-02"]
        );
        assert!(labels(0.0, 1e9).len() < 40);
    }
}
