//! Detects recurring episodes (stalls): a chain of episodes that start at multiples of one period.
//!
//! Three starts are often evenly spaced by chance. So a chain counts only if most episodes since
//! its first episode belong to it. A short chain must also follow a time without episodes, and its
//! episodes must have similar lengths.

use std::time::Duration;

use super::detector::{Episode, rank, seconds};
use seawall_stats::{PerPhase, Phase, float, float_usize};

/// A series of episodes at a regular interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    /// The regular interval at which the episodes start, fitted to the starts of all episodes. If
    /// an expected episode is missing, the time between two episodes is two intervals.
    pub period: Duration,
    /// Median length of the episodes.
    pub length: Duration,
    /// Number of episodes in the series.
    pub times: usize,
    /// Start of the last episode, in seconds since the epoch.
    pub last_at: f64,
    /// The most frequent phase of these episodes. The phase of an episode is the one in which its
    /// operations spent the most time beyond the usual time.
    pub phase: Phase,
    /// True if another episode can be expected, because at most three periods have passed since the
    /// end of the last episode.
    pub is_current: bool,
}

/// Maximum number of examined episodes. If there are more, the latest are examined.
const MAX_EPISODES: usize = 64;

/// Minimum number of episodes (stalls) that form a chain, a series at a regular interval.
const MIN_TIMES: u64 = 3;

/// Minimum period. The starts are known only to the second, so shorter periods cannot be detected.
const MIN_PERIOD_SECONDS: f64 = 5.0;

/// Maximum distance of a start from its expected time. The starts are known only to the second, and
/// the causes are not exactly periodic.
const MAX_DEVIATION_SECONDS: f64 = 0.8;

/// Maximum distance of a start from its expected time, as a share of the period.
const MAX_DEVIATION_SHARE: f64 = 1.0 / 25.0;

/// Maximum distance of a start from its expected time in a chain of three episodes. The distance is
/// smaller than in longer chains, because three starts are often evenly spaced by chance.
const MAX_DEVIATION_OF_THREE_SECONDS: f64 = 0.7;

/// For each expected episode that is missing, a [`Chain`] must have at least this number of
/// episodes.
const ONE_MISSING_IN: u64 = 3;

/// Chains with fewer episodes than this must have episodes of similar lengths.
const LONG_CHAIN: u64 = 5;

/// If there are *other* episodes, the number of episodes in the chain must exceed the number of
/// other episodes by at least this difference. The other episodes do not belong to the chain, but
/// started after the chain began or shortly before. For a chain of three episodes, "shortly" means
/// at most [`ALONE_PERIODS`] periods. For a longer chain, it means fewer periods.
const FEWER_OTHERS: u64 = 4;

/// Maximum number of other episodes (see [`FEWER_OTHERS`]), as a share of the other episodes and
/// the episodes of the chain together.
const MAX_OTHERS: f64 = 0.4;

/// Minimum number of periods without an episode before a chain of three episodes. Longer chains
/// need fewer such periods.
const ALONE_PERIODS: f64 = 12.0;

/// Two lengths are similar if the longer one is at most this many times the shorter one, or if they
/// differ by at most [`ALIKE_SECONDS`].
const ALIKE_FACTOR: f64 = 2.0;

/// Two lengths are similar if they differ by at most this many seconds.
const ALIKE_SECONDS: f64 = 1.0;

/// Number of periods without an episode after which a recurrence is over: one episode may be
/// missing, and the next may be late.
const CURRENT_PERIODS: f64 = 3.0;

/// Selects recurrences by the end of their last episode. Times are in seconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The last episode must end at this time or later.
    pub(super) from: f64,
    /// True if a recurrence that is current is selected in any case.
    pub(super) or_is_current: bool,
}

impl Ends {
    /// Selects all recurrences.
    pub(super) const ANY: Self = Self {
        from: 0.0,
        or_is_current: true,
    };
}

/// The best of the selected recurrences among the episodes, if there is one. A recurrence that is
/// current at `now` (in seconds since the epoch) is better than a past one. Otherwise, a longer
/// chain is better than a shorter one, and of equally long chains the latest is the best.
pub(super) fn recurrence(episodes: &[Episode], ends: Ends, now: f64) -> Option<Recurrence> {
    let mut episodes: Vec<&Episode> = episodes.iter().collect();
    episodes.sort_by(|a, b| a.started_at.total_cmp(&b.started_at));
    let oldest = episodes.len().saturating_sub(MAX_EPISODES);
    let episodes = episodes.get(oldest..).unwrap_or_default();
    let pairs = (0..episodes.len())
        .flat_map(|first| (first + 1..episodes.len()).map(move |second| (first, second)));
    let chains = pairs.flat_map(|(first, second)| {
        [1, 2].map(|steps| Chain::from_pair(episodes, first, second, steps))
    });
    let best = chains
        .flatten()
        .filter(|chain| {
            let is_current = || ends.or_is_current && chain.is_current(episodes, now);
            let is_selected = chain.end(episodes) >= ends.from || is_current();
            is_selected && chain.is_convincing(episodes)
        })
        .reduce(
            |best, chain| match chain.rank(episodes, now) > best.rank(episodes, now) {
                true => chain,
                false => best,
            },
        )?;
    Some(best.recurrence(episodes, now))
}

/// A set of episodes that start at multiples of one period.
#[derive(Debug)]
struct Chain {
    /// The index of each episode, and its distance from the first episode in periods.
    links: Vec<(usize, u64)>,
    period: f64,
    /// Expected start of the first episode, fitted to the starts of all episodes.
    origin: f64,
}

impl Chain {
    /// Builds a chain that begins with two episodes. The second one starts `steps` periods after
    /// the first.
    fn from_pair(episodes: &[&Episode], first: usize, second: usize, steps: u64) -> Option<Self> {
        let (origin, next) = (start(episodes, first)?, start(episodes, second)?);
        let mut chain = Self {
            links: vec![(first, 0), (second, steps)],
            period: (next - origin) / float(steps),
            origin,
        };
        if chain.period < MIN_PERIOD_SECONDS {
            return None;
        }
        while let Some(link) = chain.next(episodes) {
            chain.links.push(link);
            chain.fit(episodes);
        }
        // The fitted starts are more exact than the starts that were used while the chain grew, so
        // each episode is checked again.
        let (tolerance, before) = (chain.tolerance(), chain.links.clone());
        let keep = |(index, number): &(usize, u64)| {
            let expected = chain.origin + chain.period * float(*number);
            start(episodes, *index).is_some_and(|at| (at - expected).abs() <= tolerance)
        };
        chain.links = before.into_iter().filter(keep).collect();
        if chain.times() < MIN_TIMES {
            return None;
        }
        chain.fit(episodes);
        Some(chain)
    }

    /// The episode closest to the next expected start. If no episode is near that start, the
    /// episode closest to the expected start one period later.
    fn next(&self, episodes: &[&Episode]) -> Option<(usize, u64)> {
        let (index, number) = *self.links.last()?;
        [number + 1, number + 2].into_iter().find_map(|number| {
            let expected = self.origin + self.period * float(number);
            let later = (index + 1..episodes.len()).filter_map(|later| {
                let distance = (start(episodes, later)? - expected).abs();
                // The next fit reduces the distance. In a chain of three starts, each start is then
                // off by at most a third of the distance that the third start had before. So a
                // distance of three tolerances becomes at most one tolerance.
                (distance <= 3.0 * self.tolerance()).then_some((later, distance))
            });
            let nearest = later.min_by(|a, b| a.1.total_cmp(&b.1))?;
            Some((nearest.0, number))
        })
    }

    fn tolerance(&self) -> f64 {
        let most = match self.times() <= MIN_TIMES {
            true => MAX_DEVIATION_OF_THREE_SECONDS,
            false => MAX_DEVIATION_SECONDS,
        };
        most.min(self.period * MAX_DEVIATION_SHARE)
    }

    /// Fits `period` and `origin` to the starts of the episodes by the method of least squares.
    fn fit(&mut self, episodes: &[&Episode]) {
        let count = float_usize(self.links.len());
        let points = || {
            (self.links.iter())
                .filter_map(|(index, number)| Some((float(*number), start(episodes, *index)?)))
        };
        let mean_number = points().map(|(number, _)| number).sum::<f64>() / count;
        let mean_start = points().map(|(_, start)| start).sum::<f64>() / count;
        let (products, squares) =
            points().fold((0.0, 0.0), |(products, squares), (number, start)| {
                let distance = number - mean_number;
                (
                    products + distance * (start - mean_start),
                    squares + distance * distance,
                )
            });
        self.period = products / squares;
        self.origin = mean_start - self.period * mean_number;
    }

    fn times(&self) -> u64 {
        u64::try_from(self.links.len()).unwrap_or(u64::MAX)
    }

    fn is_convincing(&self, episodes: &[&Episode]) -> bool {
        let times = self.times();
        let numbers = self.links.first().zip(self.links.last());
        let expected = numbers.map_or(0, |((_, first), (_, last))| last - first + 1);
        if (expected - times) * ONE_MISSING_IN > times {
            return false;
        }
        // A short chain needs a longer time without episodes before it than a long chain.
        let alone = self.period * ALONE_PERIODS / float((times - MIN_TIMES + 1).pow(2));
        let first = self.links.first().and_then(|link| start(episodes, link.0));
        let since = first.unwrap_or(f64::INFINITY) - alone;
        let all = episodes.iter().filter(|e| e.started_at >= since).count();
        let others = u64::try_from(all).unwrap_or(u64::MAX) - times;
        let is_most = others == 0
            || (others + FEWER_OTHERS <= times
                && float(others) <= MAX_OTHERS * float(others + times));
        is_most && (times >= LONG_CHAIN || self.has_similar_lengths(episodes))
    }

    fn has_similar_lengths(&self, episodes: &[&Episode]) -> bool {
        let lengths = self.lengths(episodes);
        let longest = lengths.iter().copied().fold(0.0, f64::max);
        let shortest = lengths.iter().copied().fold(f64::INFINITY, f64::min);
        longest <= shortest * ALIKE_FACTOR || longest <= shortest + ALIKE_SECONDS
    }

    /// The sort key of the chain; the chain with the greatest key is the best.
    fn rank(&self, episodes: &[&Episode], now: f64) -> (bool, usize, Option<usize>) {
        let last = self.links.last().map(|link| link.0);
        (self.is_current(episodes, now), self.links.len(), last)
    }

    fn is_current(&self, episodes: &[&Episode], now: f64) -> bool {
        now - self.end(episodes) <= CURRENT_PERIODS * self.period
    }

    /// End of the last episode.
    fn end(&self, episodes: &[&Episode]) -> f64 {
        let last = self.links.last().and_then(|link| episodes.get(link.0));
        last.map_or(self.origin, |last| {
            last.started_at + last.length.as_secs_f64()
        })
    }

    fn members<'a>(&self, episodes: &[&'a Episode]) -> Vec<&'a Episode> {
        let members = self.links.iter().filter_map(|link| episodes.get(link.0));
        members.copied().collect()
    }

    fn lengths(&self, episodes: &[&Episode]) -> Vec<f64> {
        let members = self.members(episodes).into_iter();
        members
            .map(|episode| episode.length.as_secs_f64())
            .collect()
    }

    fn recurrence(&self, episodes: &[&Episode], now: f64) -> Recurrence {
        let mut phases = PerPhase::<u64>::default();
        let members = self.members(episodes);
        for member in &members {
            phases[member.phase] += 1;
        }
        // `max_by_key` returns the last of several maxima. The reversal makes it return the first
        // phase.
        let phase = phases.iter().rev().max_by_key(|(_, count)| **count);
        Recurrence {
            period: seconds(self.period),
            length: seconds(rank(&self.lengths(episodes), 1, 2)),
            times: members.len(),
            last_at: members.last().map_or(self.origin, |last| last.started_at),
            phase: phase.map_or(Phase::Permit, |(phase, _)| phase),
            is_current: self.is_current(episodes, now),
        }
    }
}

fn start(episodes: &[&Episode], index: usize) -> Option<f64> {
    episodes.get(index).map(|episode| episode.started_at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The recurrence of the episodes, at the time of the last episode.
    fn recurrence(episodes: &[Episode]) -> Option<Recurrence> {
        let last = episodes.iter().map(|episode| episode.started_at);
        super::recurrence(episodes, Ends::ANY, last.fold(0.0, f64::max))
    }

    const SEEDS: u64 = 300;

    fn episode(started_at: f64, length: f64, phase: Phase) -> Episode {
        Episode {
            started_at,
            length: seconds(length),
            operations: 100,
            waited: Duration::from_secs(100),
            phase,
            usual: Duration::from_millis(5),
            worst: seconds(length),
        }
    }

    fn at(starts: &[f64]) -> Vec<Episode> {
        starts
            .iter()
            .map(|at| episode(*at, 2.0, Phase::Server))
            .collect()
    }

    /// A start as the detector reports it: late by up to a second.
    fn late(random: &mut Random, start: f64) -> f64 {
        start + random.between(0.0, 0.9)
    }

    #[test]
    fn three_stalls_at_a_regular_interval_are_a_recurrence_but_two_are_not() {
        assert_eq!(recurrence(&[]), None);
        assert_eq!(recurrence(&at(&[0.0, 60.0])), None);
        let found = recurrence(&at(&[0.0, 60.3, 119.9])).unwrap();
        assert!((found.period.as_secs_f64() - 60.0).abs() < 0.5);
        assert_eq!((found.times, found.phase), (3, Phase::Server));
        assert_eq!(found.last_at, 119.9);
    }

    #[test]
    fn a_recurrence_is_found_even_if_one_stall_of_the_regular_series_is_missing() {
        for starts in [[0.0, 60.0, 180.0], [0.0, 120.0, 180.0]] {
            let found = recurrence(&at(&starts)).unwrap();
            assert_eq!(found.period, Duration::from_mins(1), "{starts:?}");
        }
    }

    #[test]
    fn six_episodes_15_s_apart_form_one_recurrence_with_a_period_of_15_s() {
        let found = recurrence(&at(&[0.0, 15.0, 30.0, 45.0, 60.0, 75.0])).unwrap();
        assert_eq!((found.period, found.times), (Duration::from_secs(15), 6));
    }

    #[test]
    fn a_recurrence_has_the_median_length_and_the_most_frequent_phase_of_its_episodes() {
        let mut episodes = at(&[0.0, 20.0, 40.0, 60.0, 80.0]);
        episodes[2] = episode(40.0, 9.0, Phase::Checkout);
        let found = recurrence(&episodes).unwrap();
        let usual = (Duration::from_secs(2), Phase::Server);
        assert_eq!((found.length, found.phase), usual);
    }

    #[test]
    fn a_recurrence_ends_after_three_periods_without_an_episode() {
        let episodes = at(&[0.0, 60.0, 120.0]);
        for (now, is_current) in [(122.0, true), (301.0, true), (303.0, false), (9e9, false)] {
            let found = super::recurrence(&episodes, Ends::ANY, now).unwrap();
            assert_eq!(found.is_current, is_current, "{now}");
            assert_eq!(found.period, Duration::from_mins(1));
        }
    }

    #[test]
    fn a_current_recurrence_is_preferred_to_a_past_recurrence_with_more_stalls() {
        let past = (0..20_u32).map(|n| 60.0 * f64::from(n));
        let since = (0..4_u32).map(|n| 9_000.0 + 200.0 * f64::from(n));
        let episodes = at(&past.chain(since).collect::<Vec<_>>());
        let found = super::recurrence(&episodes, Ends::ANY, 9_610.0).unwrap();
        assert!(found.is_current);
        assert_eq!((found.period, found.times), (Duration::from_secs(200), 4));
        let found = super::recurrence(&episodes, Ends::ANY, 20_000.0).unwrap();
        assert_eq!((found.is_current, found.times), (false, 20));
    }

    #[test]
    fn unrelated_episodes_do_not_hide_a_recurrence() {
        for seed in 0..SEEDS {
            let mut random = Random::of(seed);
            let period = random.between(15.0, 120.0);
            let mut episodes: Vec<Episode> = (0..12_u32)
                .map(|n| {
                    episode(
                        late(&mut random, period * f64::from(n)),
                        random.between(1.0, 3.0),
                        Phase::Server,
                    )
                })
                .collect();
            let others = (0..6).map(|_| {
                episode(
                    random.between(0.0, 12.0 * period),
                    random.unit(),
                    Phase::Checkout,
                )
            });
            episodes.extend(others.collect::<Vec<_>>());
            let found = recurrence(&episodes).unwrap();
            let found = found.period.as_secs_f64();
            assert!((found - period).abs() < 1.0, "seed {seed} {period} {found}");
        }
    }

    #[test]
    fn three_evenly_spaced_episodes_are_a_recurrence_at_any_period() {
        for seed in 0..SEEDS {
            let mut random = Random::of(seed);
            let period = random.between(15.0, 300.0);
            // The detector knows a start only to the second, so each start is rounded up to a whole
            // second.
            let first = random.between(0.0, 1.0);
            let starts: Vec<f64> = (0..3_u32)
                .map(|n| (first + period * f64::from(n) + 1.0).ceil() - 1.0)
                .collect();
            let found = recurrence(&at(&starts)).unwrap();
            let found = found.period.as_secs_f64();
            assert!((found - period).abs() < 1.0, "seed {seed} {period} {found}");
        }
    }

    /// Three random episodes are sometimes evenly spaced by chance. The rate of false detections
    /// must stay low.
    #[test]
    fn random_episodes_rarely_have_a_recurrence() {
        let (mut looks, mut wrong) = (0, 0);
        for seed in 0..SEEDS / 3 {
            let mut random = Random::of(seed);
            let gap = random.between(10.0, 200.0);
            let mut now = 0.0;
            let episodes: Vec<Episode> = (0..30)
                .map(|_| {
                    now += 3.0 - gap * (1.0 - random.unit()).ln();
                    episode(now, random.between(0.3, 8.0), Phase::Server)
                })
                .collect();
            assert_eq!(recurrence(&episodes), None, "seed {seed}");
            looks += episodes.len();
            let prefixes = (0..episodes.len()).filter_map(|end| recurrence(&episodes[..end]));
            wrong += prefixes.count();
        }
        assert!(wrong * 200 <= looks, "{wrong} of {looks}");
    }
}
