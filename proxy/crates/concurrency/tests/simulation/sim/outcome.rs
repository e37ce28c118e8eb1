//! The measurements of one run.

use seawall_concurrency::Decision;

use super::world::World;

/// The measurements of one run.
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
    /// The limits at the end.
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

    /// For each decision of the first limiter: the time in seconds, and the limit that it set.
    fn limits_over_time(&self) -> impl Iterator<Item = (f64, u32)> + '_ {
        let first = self
            .decisions
            .iter()
            .filter(|(_, limiter, _)| *limiter == 0);
        first.map(|(at, _, decision)| (*at, decision.limit))
    }

    /// The median limit from `from` to `to` seconds.
    fn median_limit(&self, from: f64, to: f64) -> f64 {
        let within = self
            .limits_over_time()
            .filter(|(at, _)| *at >= from && *at < to);
        median(within.map(|(_, limit)| f64::from(limit)))
    }

    /// Compares the limit with its median from `settled_at` to `to`. Returns the seconds from
    /// `begin` until the limit last differed from the median by more than 20 % and by more than 1.
    /// Also returns the largest relative difference after `settled_at`; differences of up to 1 do
    /// not count.
    pub(crate) fn settling(&self, begin: f64, settled_at: f64, to: f64) -> (f64, f64) {
        let median = self.median_limit(settled_at, to);
        let (mut last_off, mut swing) = (begin, 0.0f64);
        for (at, limit) in self
            .limits_over_time()
            .filter(|(at, _)| *at >= begin && *at < to)
        {
            let distance = (f64::from(limit) - median).abs();
            if distance > 1.0 && distance > 0.2 * median {
                last_off = at;
            }
            if at >= settled_at && distance > 1.0 {
                swing = swing.max(distance / median);
            }
        }
        (last_off - begin, swing)
    }

    /// Seconds from `recovered_at` until the throughput reaches 90 % of `usual` per second.
    pub(crate) fn recovery(&self, recovered_at: f64, usual: f64) -> f64 {
        let first = (recovered_at * 10.0).round() as usize;
        let after = self.completed.iter().skip(first);
        let tenths = after.take_while(|completed| (**completed as f64) < usual * 0.09);
        tenths.count() as f64 / 10.0
    }
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
    use super::*;

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
