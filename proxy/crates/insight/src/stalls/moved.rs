//! Finds server counters whose values were unusual while operations waited.
//!
//! A counter's average during an episode (a stall) is compared with its averages over calm times
//! (times without a stall) of the same length. The caller must convert cumulative counters to
//! rates.

use std::collections::BTreeMap;

use super::detector::rank;
use seawall_stats::float;

/// One sample of a server's counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// When the sample was taken, in seconds since the epoch.
    pub(super) at: f64,
    /// True if the server replied.
    pub(super) has_reply: bool,
    /// Values by counter name. The value of a cumulative counter is its rate.
    pub(super) values: BTreeMap<&'static str, f64>,
}

/// A counter whose values during episodes differ significantly from its usual values.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The name of the counter.
    pub counter: &'static str,
    /// The counter's average during the episode. For several episodes, the median of these
    /// averages.
    pub during: f64,
    /// The counter's usual value: the median of its averages over calm times (times without a
    /// stall). Each of these times is as long as the episode.
    pub otherwise: f64,
    /// Distance between `during` and `otherwise` in standard deviations, at most 100.
    pub score: f64,
}

/// A sample belongs to an episode (a stall) if it is at most this far before the start or after the
/// end.
const MARGIN_SECONDS: f64 = 1.0;

/// Minimum number of averages over calm times (times without a stall) that a comparison needs.
const MIN_CALM: usize = 10;

/// Minimum score of a counter that is reported.
const MIN_SCORE: f64 = 5.0;

/// Maximum score. It bounds the score of a counter that never changes in calm times: its standard
/// deviation is zero.
const MAX_SCORE: f64 = 100.0;

/// Minimum difference between the average during an episode and the usual value, as a share of the
/// usual value. This minimum is low, because the average during an episode shows only part of the
/// real difference: it includes the calm time within [`MARGIN_SECONDS`] of the episode.
const MIN_CHANGE: f64 = 0.3;

/// Lower limit of the standard deviation from which the score is computed, as a share of the usual
/// value.
const MIN_DEVIATION: f64 = 0.05;

/// Decides if a counter is reported: its average during the episode must be unusual. At most one in
/// `AS_EXTREME_OF` averages over calm times (times without a stall) may differ as much or more from
/// the usual value.
const AS_EXTREME_OF: usize = 20;

/// The counters with unusual values during the episodes. `episodes` has the start and the end of
/// each episode. The highest score is first. Empty if at least half of the episodes are silent (see
/// [`is_silent`]). The rates in a silent episode are unknown, because the first reply after it
/// gives only averages over the whole time since the last reply.
pub(super) fn moved(samples: &[Sample], episodes: &[(f64, f64)]) -> Vec<Moved> {
    let is_seen = |episode: &&(f64, f64)| samples.iter().any(|s| is_within(s, **episode));
    let seen: Vec<_> = episodes.iter().filter(is_seen).copied().collect();
    let spoken = (seen.iter()).filter(|episode| !is_silent(samples, **episode));
    let during: Vec<Vec<&Sample>> = spoken
        .map(|episode| with_reply(samples.iter().filter(|s| is_within(s, *episode))))
        .collect();
    if during.is_empty() || during.len() * 2 <= seen.len() {
        return Vec::new();
    }
    let calm = with_reply(samples.iter().filter(|s| is_calm(s, episodes)));
    let mut lengths: Vec<usize> = during.iter().map(Vec::len).collect();
    lengths.sort_unstable();
    let typical = lengths.get(lengths.len() / 2).copied();
    let window = typical.unwrap_or_default().max(1);
    let names = calm.iter().flat_map(|sample| sample.values.keys());
    let mut names: Vec<&'static str> = names.copied().collect();
    names.sort_unstable();
    names.dedup();
    let mut moved: Vec<Moved> = names
        .into_iter()
        .filter_map(|counter| compare(counter, &during, &calm, window))
        .collect();
    moved.sort_by(|a, b| (b.score.total_cmp(&a.score)).then_with(|| a.counter.cmp(b.counter)));
    moved
}

/// Number of samples without a reply during the episodes.
pub(super) fn without_reply(samples: &[Sample], episodes: &[(f64, f64)]) -> usize {
    let silent = samples.iter().filter(|sample| !sample.has_reply);
    silent.filter(|sample| !is_calm(sample, episodes)).count()
}

fn compare(
    counter: &'static str,
    during: &[Vec<&Sample>],
    calm: &[&Sample],
    window: usize,
) -> Option<Moved> {
    let averages: Vec<f64> = (during.iter())
        .filter_map(|samples| average(counter, samples))
        .collect();
    let usual: Vec<f64> = (calm.windows(window))
        .filter_map(|samples| average(counter, samples))
        .collect();
    if averages.is_empty() || usual.len() < MIN_CALM {
        return None;
    }
    let (during, otherwise) = (rank(&averages, 1, 2), rank(&usual, 1, 2));
    let difference = (during - otherwise).abs();
    let deviations: Vec<f64> = usual
        .iter()
        .map(|value| (value - otherwise).abs())
        .collect();
    let as_extreme = deviations.iter().filter(|d| **d >= difference).count();
    let deviation = (rank(&deviations, 1, 2) * 1.4826)
        .max(MIN_DEVIATION * otherwise.abs())
        .max(difference / MAX_SCORE);
    // Comparisons with NaN are false, so a counter whose average is NaN is never reported.
    let has_moved = difference > 0.0
        && difference >= MIN_CHANGE * otherwise.abs()
        && difference >= MIN_SCORE * deviation
        && as_extreme * AS_EXTREME_OF <= usual.len();
    has_moved.then(|| Moved {
        counter,
        during,
        otherwise,
        score: difference / deviation,
    })
}

fn average(counter: &str, samples: &[&Sample]) -> Option<f64> {
    let values = samples.iter().filter_map(|s| s.values.get(counter));
    let (sum, count) = values.fold((0.0, 0_u64), |(sum, count), v| (sum + v, count + 1));
    (count > 0).then(|| sum / float(count))
}

fn with_reply<'a>(samples: impl Iterator<Item = &'a Sample>) -> Vec<&'a Sample> {
    samples.filter(|sample| sample.has_reply).collect()
}

fn is_within(sample: &Sample, (start, end): (f64, f64)) -> bool {
    sample.at >= start - MARGIN_SECONDS && sample.at <= end + MARGIN_SECONDS
}

fn is_calm(sample: &Sample, episodes: &[(f64, f64)]) -> bool {
    !episodes.iter().any(|episode| is_within(sample, *episode))
}

/// True if too many requests for samples got no reply: at least half of the requests within the
/// episode, or more than half of the requests from [`MARGIN_SECONDS`] before the episode to
/// [`MARGIN_SECONDS`] after it.
fn is_silent(samples: &[Sample], episode: (f64, f64)) -> bool {
    let within = samples.iter().filter(|s| is_within(s, episode));
    let proper = |s: &&Sample| s.at >= episode.0 && s.at <= episode.1;
    let count = |samples: Vec<&Sample>| {
        let without_reply = samples.iter().filter(|s| !s.has_reply).count();
        (without_reply, samples.len())
    };
    let (missing, all) = count(within.clone().collect());
    let (missing_proper, all_proper) = count(within.filter(proper).collect());
    missing * 2 > all || (missing_proper > 0 && missing_proper * 2 >= all_proper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const SEEDS: u64 = 100;

    const COUNTERS: [&str; 6] = [
        "checkpoint_bytes",
        "tickets",
        "inserts",
        "connections_created",
        "evictions",
        "cache_bytes",
    ];

    /// Three minutes with one sample per second and three episodes of 3 s. `change` modifies the
    /// samples during the episodes.
    fn samples(seed: u64, change: impl Fn(&mut Sample)) -> Vec<Sample> {
        let mut random = Random::of(seed);
        let sample = |second: u32| {
            let at = f64::from(second);
            // Evictions come in bursts, which are independent of the episodes.
            let burst = if random.unit() < 0.05 { 900.0 } else { 0.0 };
            let values = [
                0.0,
                128.0,
                random.between(900.0, 1_100.0),
                random.between(0.0, 3.0).floor(),
                burst,
                1e9 + 1e5 * at,
            ];
            let mut sample = Sample {
                at,
                has_reply: true,
                values: COUNTERS.into_iter().zip(values).collect(),
            };
            let is_during = |(start, end): &(f64, f64)| at >= *start && at <= *end;
            if episodes().iter().any(is_during) {
                change(&mut sample);
            }
            sample
        };
        (0..180).map(sample).collect()
    }

    fn episodes() -> Vec<(f64, f64)> {
        [30.5, 90.2, 150.8].map(|at| (at, at + 3.0)).to_vec()
    }

    fn set(sample: &mut Sample, counter: &'static str, value: f64) {
        sample.values.insert(counter, value);
    }

    #[test]
    fn counters_that_change_independently_of_stalls_are_not_reported() {
        for seed in 0..SEEDS {
            assert_eq!(moved(&samples(seed, |_| {}), &episodes()), [], "{seed}");
        }
    }

    #[test]
    fn counters_that_change_during_stalls_are_reported_with_the_largest_deviation_first() {
        for seed in 0..SEEDS {
            let samples = samples(seed, |sample| {
                set(sample, "checkpoint_bytes", 36e6);
                set(sample, "inserts", 200.0);
            });
            let moved = moved(&samples, &episodes());
            let names: Vec<_> = moved.iter().map(|m| m.counter).collect();
            assert_eq!(names, ["checkpoint_bytes", "inserts"], "seed {seed}");
            assert!(moved[0].during > 10e6 && moved[0].otherwise.abs() < 1e-9);
            assert!(moved[1].during < 700.0 && moved[1].otherwise > 900.0);
        }
    }

    #[test]
    fn counters_that_changed_during_a_single_stall_are_reported() {
        let samples = samples(1, |sample| set(sample, "checkpoint_bytes", 36e6));
        // The other two episodes are not passed to `moved`. Their samples count as calm, but are
        // only a small part of the calm samples.
        assert_eq!(moved(&samples, &episodes()[..1]).len(), 1);
    }

    #[test]
    fn no_changed_counters_are_reported_for_a_server_that_does_not_reply() {
        let samples = samples(1, |sample| {
            set(sample, "checkpoint_bytes", 36e6);
            sample.has_reply = false;
        });
        assert_eq!(moved(&samples, &episodes()), []);
        assert_eq!(without_reply(&samples, &episodes()), 9);
        assert_eq!(without_reply(&samples, &episodes()[..1]), 3);
    }

    #[test]
    fn no_changed_counters_are_reported_for_a_two_second_stop_without_replies() {
        // The server sends no replies from second 60.3 to second 62.3. So the samples during this
        // stop, and the first sample after it, have unusual rates. The detector may report the
        // start of the stop up to a second late.
        let mut samples = samples(2, |_| {});
        for sample in &mut samples[60..=63] {
            sample.has_reply = sample.at > 62.5 || sample.at < 60.5;
            set(sample, "inserts", 5_000.0);
        }
        for started_at in [60.3, 60.8, 61.2] {
            assert_eq!(moved(&samples, &[(started_at, started_at + 2.0)]), []);
        }
    }

    #[test]
    fn no_changed_counters_are_reported_without_stalls_or_with_too_few_samples() {
        assert_eq!(moved(&[], &episodes()), []);
        assert_eq!(moved(&samples(1, |_| {}), &[]), []);
        assert_eq!(without_reply(&[], &episodes()), 0);
        let few = samples(1, |sample| set(sample, "checkpoint_bytes", 36e6));
        assert_eq!(moved(&few[27..38], &episodes()), []);
    }
}
