//! The measurements of one run of a scenario.

use seawall_concurrency::Decision;

use super::world::World;

/// The measurements of one run of a scenario.
pub(crate) struct Outcome {
    /// Operations completed in time, per second.
    pub(crate) throughput: f64,
    /// 99th percentile of the time from arrival to reply, in ms.
    pub(crate) p99_ms: f64,
    /// Operations completed in time, in each tenth of a second since the start.
    pub(crate) completed: Vec<u64>,
    /// Operations completed in time, by user.
    pub(crate) by_user: Vec<u64>,
    /// The decisions: time in seconds, number of the limiter, decision.
    pub(crate) decisions: Vec<(f64, usize, Decision)>,
    /// The limit of each limiter at the end of the run.
    pub(crate) limits: Vec<u32>,
}

impl Outcome {
    pub(crate) fn new(mut world: World, from: f64, to: f64) -> Self {
        let total: u64 = world.record.by_user.iter().sum();
        Self {
            throughput: total as f64 / (to - from),
            p99_ms: percentile(&mut world.record.latencies, 0.99) / 1e3,
            completed: world.record.completed,
            by_user: world.record.by_user,
            decisions: world
                .decisions
                .into_iter()
                .map(|(us, limiter, decision)| (us / 1e6, limiter, decision))
                .collect(),
            limits: world.limiters.iter().map(|limiter| limiter.limit).collect(),
        }
    }

    /// The largest settling time and the largest swing of all limiters ([`settling`]).
    pub(crate) fn worst_settling(&self, begin: f64, settled_at: f64, to: f64) -> (f64, f64) {
        let mut by_limiter = vec![Vec::new(); self.limits.len()];
        for (at, limiter, decision) in &self.decisions {
            by_limiter[*limiter].push((*at, decision.limit));
        }
        by_limiter
            .iter()
            .map(|limits| settling(limits, begin, settled_at, to))
            .fold((0.0, 0.0), |worst, (settling_s, swing)| {
                (settling_s.max(worst.0), swing.max(worst.1))
            })
    }

    /// Operations completed in time between `from` and `to` (in seconds), per second.
    pub(crate) fn throughput_during(&self, from: f64, to: f64) -> f64 {
        let [first, end] = [from, to].map(|s| (s * 10.0).round() as usize);
        let tenths = self.completed.iter().skip(first).take(end - first);
        tenths.sum::<u64>() as f64 / (to - from)
    }

    /// Seconds from `recovered_at` until the throughput reaches 90 % of `usual`, the usual number
    /// of operations per second.
    pub(crate) fn recovery(&self, recovered_at: f64, usual: f64) -> f64 {
        let first = (recovered_at * 10.0).round() as usize;
        let after = self.completed.iter().skip(first);
        let tenths = after.take_while(|completed| (**completed as f64) < usual * 0.09);
        tenths.count() as f64 / 10.0
    }
}

/// Returns the settling time and the swing of one limiter. `limits` has the time of each decision,
/// in seconds, and the limit that the decision set. Each limit is compared with the median of the
/// limits from `settled_at` to `to`. A limit is far from this median if the difference is more than
/// 20 % and more than 1. The settling time is the time in seconds from `begin` until a limit was
/// far from the median for the last time; infinity if the last limit before `to` is far from the
/// median. The swing is the largest relative difference from `settled_at` on; differences of up to
/// 1 do not count.
fn settling(limits: &[(f64, u32)], begin: f64, settled_at: f64, to: f64) -> (f64, f64) {
    let limits = limits.iter().map(|(at, limit)| (*at, f64::from(*limit)));
    let limits = limits.filter(|(at, _)| *at >= begin && *at < to);
    let settled = limits.clone().filter(|(at, _)| *at >= settled_at);
    let median = median(settled.map(|(_, limit)| limit));
    let (mut settling_s, mut swing) = (0.0, 0.0f64);
    let mut is_off = false;
    for (at, limit) in limits {
        let distance = (limit - median).abs();
        is_off = distance > 1.0 && distance > 0.2 * median;
        if is_off {
            settling_s = at - begin;
        }
        if at >= settled_at && distance > 1.0 {
            swing = swing.max(distance / median);
        }
    }
    if is_off {
        settling_s = f64::INFINITY;
    }
    (settling_s, swing)
}

/// The text for a settling time: "never" if it is infinite.
pub(crate) fn settling_text(settling_s: f64) -> String {
    match settling_s.is_finite() {
        true => format!("{settling_s:.1} s"),
        false => "never".to_owned(),
    }
}

/// The text for [`Row::during`](super::comparison::Row::during): "–" if there is no value.
pub(crate) fn during_text(during: Option<f64>) -> String {
    during.map_or("–".to_owned(), |during| format!("{during:.2}"))
}

/// The quantile `q`: the smallest value that is at least as large as the share `q` of all values. 0
/// if there are no values.
pub(crate) fn percentile(values: &mut [f32], q: f64) -> f64 {
    values.sort_unstable_by(f32::total_cmp);
    let rank = (q * values.len() as f64).ceil() as usize;
    values
        .get(rank.saturating_sub(1))
        .copied()
        .map_or(0.0, f64::from)
}

/// The median. With an even number of values, it is the mean of the two middle values. 0 if there
/// are no values.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable_by(f64::total_cmp);
    let (lower, upper) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    f64::midpoint(lower, upper)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use seawall_concurrency::{Controller, Sample};

    use super::*;

    /// The settling time is the time until a limit stays near its median. The swing is the largest
    /// relative difference from the median after the time that a limit gets to settle.
    #[test]
    fn settling_time_and_swing_of_a_run_are_the_largest_values_of_all_limiters() {
        let sample = Sample {
            window: Duration::from_millis(100),
            ..Sample::default()
        };
        let decision = Controller::new(512, 1).update(&sample, sample.window);
        let steady = [32; 20];
        let mut late = [32; 20];
        late[..9].fill(64);
        let mut swinging = [32; 20];
        swinging[15] = 36;
        let mut decisions = Vec::new();
        for second in 0..20u32 {
            for (limiter, limits) in [steady, late, swinging].iter().enumerate() {
                let limit = limits[second as usize];
                let decision = Decision { limit, ..decision };
                decisions.push((f64::from(second), limiter, decision));
            }
        }
        let outcome = Outcome {
            throughput: 0.0,
            p99_ms: 0.0,
            completed: Vec::new(),
            by_user: Vec::new(),
            decisions,
            limits: vec![32; 3],
        };
        assert_eq!(outcome.worst_settling(0.0, 10.0, 20.0), (8.0, 0.125));
    }

    #[test]
    fn a_limit_that_ends_more_than_20_percent_from_its_median_has_never_settled() {
        let with_last = |last: u32| {
            let mut limits: Vec<_> = (0..20u32).map(|second| (f64::from(second), 32)).collect();
            limits[19].1 = last;
            settling(&limits, 0.0, 10.0, 20.0).0
        };
        assert_eq!(with_last(38), 0.0);
        assert_eq!(with_last(39), f64::INFINITY);
        assert_eq!(settling_text(with_last(38)), "0.0 s");
        assert_eq!(settling_text(with_last(39)), "never");
    }

    #[test]
    fn median_of_an_even_number_of_values_is_the_mean_of_the_two_middle_values() {
        let cases: [(&[f64], f64); 5] = [
            (&[], 0.0),
            (&[3.0], 3.0),
            (&[4.0, 1.0], 2.5),
            (&[9.0, 1.0, 2.0], 2.0),
            (&[8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0], 4.5),
        ];
        for (values, expected) in cases {
            assert_eq!(median(values.iter().copied()), expected, "{values:?}");
        }
    }
}
