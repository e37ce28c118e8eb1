//! A trial: uses two limits alternately, and compares the throughput or the latency.
//!
//! ```text
//!   base   trial   base   trial   base          values: a0 b0 a1 b1 a2
//!    a0     b0      a1     b1      a2           gain:   mean of b - (a before + a after) / 2
//! ```
//!
//! Each value at the tried limit is compared with the base values before and after it. This cancels
//! a steady change of the server, such as a cache that becomes warm. Values are natural logarithms,
//! so a difference of 0.05 is 5 %.

/// A difference counts if it is at least this many standard errors. With 2.5, one comparison in 160
/// passes by chance alone.
const STANDARD_ERRORS: f64 = 2.5;

/// The minimum gain for which a tried limit is kept. Real servers vary by more than 1 % from minute
/// to minute. So a smaller gain may disappear before it makes up for the cost of the trial.
const MIN_GAIN: f64 = 0.01;

/// The minimum gain for which a tried limit is kept, as a share of the change of the limit (both as
/// natural logarithms): a doubling of the limit must gain 3.5 %. Each connection costs memory on
/// the server. So a much higher limit needs a larger gain than a slightly higher limit.
const MIN_ELASTICITY: f64 = 0.05;

/// A gain of this size cannot come from a steady change of the server. So the controller keeps the
/// tried limit immediately, without another measurement at the base limit. There are two
/// exceptions, in which the gain has another reason than the tried limit. In the first, operations
/// did not wait all the time at the tried limit: for example, other clients have lowered their
/// load. In the second, the gain is more than `LARGEST_ELASTICITY` times the change of the limit
/// (both as logarithms).
const OBVIOUS_GAIN: f64 = 0.3;
const LARGEST_ELASTICITY: f64 = 1.2;

/// A gain is steep if it is at least this share of the change of the limit (both as logarithms).
/// After a steep gain, the best limit is probably some steps beyond the tried limit.
const STEEP: f64 = 0.2;

/// If two consecutive values at the base limit differ by more than this, and by more than six times
/// the noise, the server has changed. The trial then begins again with the second of these values.
const UNSTEADY: f64 = 0.15;

/// At this number of changes of the server during a trial, the trial ends and the tried limit is
/// dropped. After each earlier change, the trial begins again.
const CHANGES_TO_DROP: u32 = 2;

/// The quantity that a trial compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Work per second. More is better.
    Throughput,
    /// Wait and server time per unit of work. Less is better, so the logarithm is negated.
    Latency,
}

/// The result of a trial so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The trial needs another measurement.
    Continue,
    /// The tried limit is better.
    Keep,
    /// The tried limit is not better by more than the noise.
    Drop,
}

/// The gain of a trial (the logarithm of the improvement), relative to the logarithm of the factor
/// between the two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gain {
    /// The gain is below the share [`STEEP`] of the change of the limit. The tried limit may be the
    /// best limit.
    Small,
    /// The gain is at least the share [`STEEP`] of the change of the limit. The best limit is
    /// probably some steps away.
    Steep,
    /// Even after the subtraction of [`STANDARD_ERRORS`] standard errors, the gain is at least half
    /// of the change of the limit. So the best limit must be far away.
    Obvious,
}

/// The comparison of two limits.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// The limit in use before the trial.
    pub(crate) base: u32,
    /// The limit that is compared with `base`.
    pub(crate) tried: u32,
    pub(crate) metric: Metric,
    /// The measured values, alternately at the base limit and at the tried limit. The first value
    /// is at the base limit.
    values: Vec<f64>,
    rounds: usize,
    restarts: u32,
    /// The gain of the tried limit according to `values`, and its standard error. Both are 0 until
    /// there is a value at the tried limit.
    pub(crate) gain: f64,
    pub(crate) error: f64,
}

impl Trial {
    /// Creates a trial. `rounds` is the maximum number of values at the tried limit.
    pub(crate) fn new(base: u32, tried: u32, metric: Metric, first: f64, rounds: usize) -> Self {
        Self {
            base,
            tried,
            metric,
            values: vec![first],
            rounds,
            restarts: 0,
            gain: 0.0,
            error: 0.0,
        }
    }

    /// True if the next value must be measured at the tried limit.
    pub(crate) fn is_at_tried(&self) -> bool {
        self.values.len() % 2 == 1
    }

    /// The size of the measured gain, relative to the change of the limit.
    pub(crate) fn gain_size(&self) -> Gain {
        let step = self.step();
        if self.gain - STANDARD_ERRORS * self.error >= 0.5 * step {
            Gain::Obvious
        } else if self.gain >= STEEP * step {
            Gain::Steep
        } else {
            Gain::Small
        }
    }

    /// The more likely verdict. It is used if there is no time for more values.
    pub(crate) fn early_verdict(&self) -> Verdict {
        match self.gain > self.least_gain().max(self.error) {
            true => Verdict::Keep,
            false => Verdict::Drop,
        }
    }

    /// The logarithm of the factor between the limits.
    fn step(&self) -> f64 {
        (f64::from(self.tried) / f64::from(self.base)).ln().abs()
    }

    pub(crate) fn is_up(&self) -> bool {
        self.tried > self.base
    }

    /// Adds the next value. `noise` is the standard deviation of a value. `is_bound` is true if
    /// operations waited all the time, so the limit determined the value.
    pub(crate) fn add(&mut self, value: f64, noise: f64, is_bound: bool) -> Verdict {
        self.values.push(value);
        if let [.., before, _, last] = self.values.as_slice()
            && !self.is_at_base_only()
            && self.is_at_tried()
            && (before - last).abs() > UNSTEADY.max(6.0 * noise)
        {
            let last = *last;
            self.values = vec![last];
            (self.gain, self.error) = (0.0, 0.0);
            self.restarts += 1;
            return match self.restarts {
                CHANGES_TO_DROP.. => Verdict::Drop,
                _ => Verdict::Continue,
            };
        }
        self.verdict(noise, is_bound)
    }

    fn is_at_base_only(&self) -> bool {
        self.values.len() < 2
    }

    fn verdict(&mut self, noise: f64, is_bound: bool) -> Verdict {
        let at_tried = self.values.iter().skip(1).step_by(2);
        let tried = self.values.len() / 2;
        let mut sum = 0.0;
        for (index, value) in at_tried.enumerate() {
            let before = self.values.get(2 * index).copied().unwrap_or(*value);
            let after = self.values.get(2 * index + 2).copied().unwrap_or(before);
            sum += value - (before + after) / 2.0;
        }
        let (tried, base) = (count(tried), count(self.values.len().div_ceil(2)));
        self.gain = sum / tried;
        self.error = noise * (1.0 / tried + 1.0 / base).sqrt();
        let least = self.least_gain();
        let margin = STANDARD_ERRORS * self.error;
        let is_complete = self.is_at_tried();
        let is_last = is_complete && self.values.len() > 2 * self.rounds;
        let is_obvious = is_bound
            && self.gain > OBVIOUS_GAIN + margin
            && self.gain < LARGEST_ELASTICITY * self.step() + margin;
        if self.gain > least.max(margin) && (is_complete || is_obvious) {
            Verdict::Keep
        } else if is_last || self.gain + margin < least {
            Verdict::Drop
        } else {
            Verdict::Continue
        }
    }

    /// The smallest gain for which the tried limit is kept.
    fn least_gain(&self) -> f64 {
        MIN_GAIN.max(MIN_ELASTICITY * self.step())
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(tried: u32, noise: f64, values: &[f64]) -> (Verdict, usize) {
        let mut trial = Trial::new(32, tried, Metric::Throughput, values[0], 3);
        for (index, value) in values.iter().enumerate().skip(1) {
            let verdict = trial.add(*value, noise, true);
            if verdict != Verdict::Continue {
                return (verdict, index);
            }
        }
        (Verdict::Continue, values.len())
    }

    /// A trial compares the throughput at the base limit with the throughput at another limit.
    #[test]
    fn one_measurement_at_the_tried_limit_is_enough_for_a_clear_loss_or_an_obvious_gain() {
        assert_eq!(run(64, 0.01, &[0.0, -0.2]), (Verdict::Drop, 1));
        assert_eq!(run(64, 0.01, &[0.0, 0.6]), (Verdict::Keep, 1));
    }

    /// If operations do not wait all the time, the gain may come from a change of the load.
    #[test]
    fn an_obvious_gain_needs_another_measurement_if_operations_waited_only_part_of_the_time() {
        let mut trial = Trial::new(32, 64, Metric::Throughput, 0.0, 3);
        assert_eq!(trial.add(0.6, 0.01, false), Verdict::Continue);
        assert_eq!(trial.add(0.0, 0.01, true), Verdict::Keep);
    }

    #[test]
    fn a_steady_rise_of_throughput_does_not_count_as_a_gain_of_the_tried_limit() {
        let warming = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6];
        assert_eq!(run(64, 0.05, &warming).0, Verdict::Drop);
    }

    #[test]
    fn a_limit_whose_gain_is_within_the_noise_is_dropped() {
        let values = [0.0, 0.02, 0.0, 0.02, 0.0, 0.02, 0.0];
        assert_eq!(run(38, 0.03, &values), (Verdict::Drop, 6));
        assert_eq!(run(38, 0.005, &values), (Verdict::Keep, 2));
    }

    /// The gain that a tried limit needs grows with its distance from the base limit.
    #[test]
    fn a_limit_with_a_small_gain_is_dropped_if_far_from_the_base_limit_and_kept_if_near_it() {
        assert_eq!(run(64, 0.001, &[0.0, 0.02, 0.0]).0, Verdict::Drop);
        assert_eq!(run(35, 0.001, &[0.0, 0.02, 0.0]).0, Verdict::Keep);
    }

    #[test]
    fn a_trial_is_not_decided_while_the_server_fails() {
        // The server fails while the last value is measured at the base limit. Compared with this
        // value, the value at the tried limit looks good.
        let mut trial = Trial::new(32, 64, Metric::Throughput, 0.0, 3);
        for value in [0.05, -2.0] {
            assert_eq!(trial.add(value, 0.01, true), Verdict::Continue);
        }
        assert_eq!(trial.early_verdict(), Verdict::Drop);
    }
}
