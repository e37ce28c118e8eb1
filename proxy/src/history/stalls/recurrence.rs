//! Whether episodes recur: a chain of starts at multiples of one period.
//!
//! Three starts are soon evenly spaced by chance. So a chain counts only if it is most of what there was: few other
//! episodes since it began, and a short chain stands alone, after a time without any, and its episodes are alike.

use std::time::Duration;

use super::{Episode, PHASES, float, rank, seconds};

/// Episodes that come back.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrence {
    /// From start to start.
    pub period: Duration,
    /// The median.
    pub length: Duration,
    /// Episodes seen of it.
    pub times: usize,
    /// When the last of them started, in seconds since the epoch.
    pub last_at: f64,
    /// The phase that took most of the time in most of them.
    pub phase: usize,
    /// Whether it may be expected to come again: few of its periods have gone by without it.
    pub is_current: bool,
}

impl Recurrence {
    /// When the last episode ended, by their usual length, in seconds since the epoch.
    pub fn last_end(&self) -> f64 {
        self.last_at + self.length.as_secs_f64()
    }
}

/// The latest episodes are looked at; the rest is history.
const MOST_EPISODES: usize = 64;

/// Episodes without which nothing recurs.
const LEAST_TIMES: u64 = 3;

/// A shorter period cannot be told from seconds.
const LEAST_PERIOD_SECONDS: f64 = 5.0;

/// How far a start may be from where it should be: starts are known to a second, and causes are not clocks.
const MOST_DEVIATION_SECONDS: f64 = 0.8;

/// The same as a share of the period.
const MOST_DEVIATION_SHARE: f64 = 1.0 / 25.0;

/// The same of a chain of three.
const MOST_DEVIATION_OF_THREE_SECONDS: f64 = 0.7;

/// One in so many of those expected may be missing.
const ONE_MISSING_IN: u64 = 3;

/// The episodes of a shorter chain are alike.
const LONG_CHAIN: u64 = 5;

/// Other episodes are so many fewer than a chain's, if there are any.
const FEWER_OTHERS: u64 = 4;

/// Of all episodes since a chain began, others are at the most this share: one in three, and some that it lost.
const MOST_OTHERS: f64 = 0.4;

/// For how many periods before a chain of three nothing else may have happened; fewer before a longer one.
const ALONE_PERIODS: f64 = 12.0;

/// Of alike episodes, the longest is so many times the shortest at the most, …
const ALIKE_FACTOR: f64 = 2.0;

/// … or so much longer.
const ALIKE_SECONDS: f64 = 1.0;

/// Periods without an episode after which it is over: one may be missing, and another be late.
const CURRENT_PERIODS: f64 = 3.0;

/// The recurrence that most of the episodes belong to, if there is one; one that is current at `now` (in seconds since the
/// epoch) before one that is over, then the longest chain, of equals the latest.
pub fn recurrence(episodes: &[Episode], now: f64) -> Option<Recurrence> {
    let mut episodes: Vec<&Episode> = episodes.iter().collect();
    episodes.sort_by(|a, b| a.started_at.total_cmp(&b.started_at));
    let oldest = episodes.len().saturating_sub(MOST_EPISODES);
    let episodes = episodes.get(oldest..).unwrap_or_default();
    let pairs = (0..episodes.len())
        .flat_map(|first| (first + 1..episodes.len()).map(move |second| (first, second)));
    let chains = pairs.flat_map(|(first, second)| {
        [1, 2].map(|steps| Chain::from_pair(episodes, first, second, steps))
    });
    let best = chains
        .flatten()
        .filter(|chain| chain.is_convincing(episodes))
        .reduce(
            |best, chain| match chain.rank(episodes, now) > best.rank(episodes, now) {
                true => chain,
                false => best,
            },
        )?;
    Some(best.recurrence(episodes, now))
}

/// Episodes of one period.
#[derive(Debug)]
struct Chain {
    /// Index of each, and its number: how many periods it is after the first.
    links: Vec<(usize, u64)>,
    period: f64,
    /// The start of the first, as all of them tell it.
    origin: f64,
}

impl Chain {
    /// Follows the period that two episodes suggest.
    fn from_pair(episodes: &[&Episode], first: usize, second: usize, steps: u64) -> Option<Self> {
        let (origin, next) = (start(episodes, first)?, start(episodes, second)?);
        let mut chain = Self {
            links: vec![(first, 0), (second, steps)],
            period: (next - origin) / float(steps),
            origin,
        };
        if chain.period < LEAST_PERIOD_SECONDS {
            return None;
        }
        while let Some(link) = chain.next(episodes) {
            chain.links.push(link);
            chain.fit(episodes);
        }
        // While it grew, it was not known as well as now where each should be.
        let (tolerance, before) = (chain.tolerance(), chain.links.clone());
        let keep = |(index, number): &(usize, u64)| {
            let expected = chain.origin + chain.period * float(*number);
            start(episodes, *index).is_some_and(|at| (at - expected).abs() <= tolerance)
        };
        chain.links = before.into_iter().filter(keep).collect();
        if chain.times() < LEAST_TIMES {
            return None;
        }
        chain.fit(episodes);
        Some(chain)
    }

    /// The episode nearest to where the next one should be, or else the one after.
    fn next(&self, episodes: &[&Episode]) -> Option<(usize, u64)> {
        let (index, number) = *self.links.last()?;
        [number + 1, number + 2].into_iter().find_map(|number| {
            let expected = self.origin + self.period * float(number);
            let later = (index + 1..episodes.len()).filter_map(|later| {
                let distance = (start(episodes, later)? - expected).abs();
                // Of three that deviate by a tolerance from their fit, the third is so far from where two see it.
                (distance <= 3.0 * self.tolerance()).then_some((later, distance))
            });
            let nearest = later.min_by(|a, b| a.1.total_cmp(&b.1))?;
            Some((nearest.0, number))
        })
    }

    fn tolerance(&self) -> f64 {
        let most = match self.times() <= LEAST_TIMES {
            true => MOST_DEVIATION_OF_THREE_SECONDS,
            false => MOST_DEVIATION_SECONDS,
        };
        most.min(self.period * MOST_DEVIATION_SHARE)
    }

    /// Least squares.
    fn fit(&mut self, episodes: &[&Episode]) {
        let count = float(u64::try_from(self.links.len()).unwrap_or(u64::MAX));
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
        // The shorter the chain, the more of the time before it has to be free of others.
        let alone = self.period * ALONE_PERIODS / float((times - LEAST_TIMES + 1).pow(2));
        let first = self.links.first().and_then(|link| start(episodes, link.0));
        let since = first.unwrap_or(f64::INFINITY) - alone;
        let all = episodes.iter().filter(|e| e.started_at >= since).count();
        let others = u64::try_from(all).unwrap_or(u64::MAX) - times;
        let is_most = others == 0
            || (others + FEWER_OTHERS <= times
                && float(others) <= MOST_OTHERS * float(others + times));
        is_most && (times >= LONG_CHAIN || self.is_of_a_kind(episodes))
    }

    fn is_of_a_kind(&self, episodes: &[&Episode]) -> bool {
        let lengths = self.lengths(episodes);
        let longest = lengths.iter().copied().fold(0.0, f64::max);
        let shortest = lengths.iter().copied().fold(f64::INFINITY, f64::min);
        longest <= shortest * ALIKE_FACTOR || longest <= shortest + ALIKE_SECONDS
    }

    /// The greater, the better.
    fn rank(&self, episodes: &[&Episode], now: f64) -> (bool, usize, Option<usize>) {
        let last = self.links.last().map(|link| link.0);
        (self.is_current(episodes, now), self.links.len(), last)
    }

    fn is_current(&self, episodes: &[&Episode], now: f64) -> bool {
        let last = self.links.last().and_then(|link| episodes.get(link.0));
        let end = last.map_or(self.origin, |last| {
            last.started_at + last.length.as_secs_f64()
        });
        now - end <= CURRENT_PERIODS * self.period
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
        let mut phases = [0_u64; PHASES];
        let members = self.members(episodes);
        for member in &members {
            if let Some(count) = phases.get_mut(member.phase) {
                *count += 1;
            }
        }
        // Of equals the last is the maximum, hence the reversal.
        let phase = (0..PHASES).rev().max_by_key(|phase| phases.get(*phase));
        Recurrence {
            period: seconds(self.period),
            length: seconds(rank(&self.lengths(episodes), 1, 2)),
            times: members.len(),
            last_at: members.last().map_or(self.origin, |last| last.started_at),
            phase: phase.unwrap_or_default(),
            is_current: self.is_current(episodes, now),
        }
    }
}

fn start(episodes: &[&Episode], index: usize) -> Option<f64> {
    episodes.get(index).map(|episode| episode.started_at)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::Random, *};

    /// While it goes on.
    fn recurrence(episodes: &[Episode]) -> Option<Recurrence> {
        let last = episodes.iter().map(|episode| episode.started_at);
        super::recurrence(episodes, last.fold(0.0, f64::max))
    }

    const SEEDS: u64 = 300;

    fn episode(started_at: f64, length: f64, phase: usize) -> Episode {
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
        starts.iter().map(|at| episode(*at, 2.0, 3)).collect()
    }

    /// Starts as they are told: late, by up to a second.
    fn late(random: &mut Random, start: f64) -> f64 {
        start + random.between(0.0, 0.9)
    }

    #[test]
    fn a_period_needs_three() {
        assert_eq!(recurrence(&[]), None);
        assert_eq!(recurrence(&at(&[0.0, 60.0])), None);
        let found = recurrence(&at(&[0.0, 60.3, 119.9])).unwrap();
        assert!((found.period.as_secs_f64() - 60.0).abs() < 0.5);
        assert_eq!((found.times, found.phase), (3, 3));
        assert!((found.last_at - 119.9).abs() < 1e-9);
    }

    #[test]
    fn one_may_be_missing() {
        for starts in [[0.0, 60.0, 180.0], [0.0, 120.0, 180.0]] {
            let found = recurrence(&at(&starts)).unwrap();
            assert_eq!(found.period, Duration::from_mins(1), "{starts:?}");
        }
    }

    #[test]
    fn the_period_is_the_longest_that_fits() {
        let found = recurrence(&at(&[0.0, 15.0, 30.0, 45.0, 60.0, 75.0])).unwrap();
        assert_eq!((found.period, found.times), (Duration::from_secs(15), 6));
    }

    #[test]
    fn length_and_phase_are_the_usual_ones() {
        let mut episodes = at(&[0.0, 20.0, 40.0, 60.0, 80.0]);
        episodes[2] = episode(40.0, 9.0, 1);
        let found = recurrence(&episodes).unwrap();
        assert_eq!((found.length, found.phase), (Duration::from_secs(2), 3));
    }

    #[test]
    fn it_is_over_when_some_of_its_periods_have_gone_by() {
        let episodes = at(&[0.0, 60.0, 120.0]);
        for (now, is_current) in [(122.0, true), (301.0, true), (303.0, false), (9e9, false)] {
            let found = super::recurrence(&episodes, now).unwrap();
            assert_eq!(found.is_current, is_current, "{now}");
            assert_eq!(found.period, Duration::from_mins(1));
        }
    }

    #[test]
    fn what_is_over_does_not_hide_what_goes_on() {
        let past = (0..20_u32).map(|n| 60.0 * f64::from(n));
        let since = (0..4_u32).map(|n| 9_000.0 + 200.0 * f64::from(n));
        let episodes = at(&past.chain(since).collect::<Vec<_>>());
        let found = super::recurrence(&episodes, 9_610.0).unwrap();
        assert!(found.is_current);
        assert_eq!((found.period, found.times), (Duration::from_secs(200), 4));
        let found = super::recurrence(&episodes, 20_000.0).unwrap();
        assert_eq!((found.is_current, found.times), (false, 20));
    }

    #[test]
    fn others_in_between_do_not_hide_it() {
        for seed in 0..SEEDS {
            let mut random = Random::of(seed);
            let period = random.between(15.0, 120.0);
            let mut episodes: Vec<Episode> = (0..12_u32)
                .map(|n| {
                    episode(
                        late(&mut random, period * f64::from(n)),
                        random.between(1.0, 3.0),
                        3,
                    )
                })
                .collect();
            let others =
                (0..6).map(|_| episode(random.between(0.0, 12.0 * period), random.unit(), 1));
            episodes.extend(others.collect::<Vec<_>>());
            let found = recurrence(&episodes).unwrap();
            let found = found.period.as_secs_f64();
            assert!((found - period).abs() < 1.0, "seed {seed} {period} {found}");
        }
    }

    #[test]
    fn three_of_any_period_are_enough() {
        for seed in 0..SEEDS {
            let mut random = Random::of(seed);
            let period = random.between(15.0, 300.0);
            // The phase within the second is that of the period: it creeps, or stands.
            let first = random.between(0.0, 1.0);
            let starts: Vec<f64> = (0..3_u32)
                .map(|n| (first + period * f64::from(n) + 1.0).ceil() - 1.0)
                .collect();
            let found = recurrence(&at(&starts)).unwrap();
            let found = found.period.as_secs_f64();
            assert!((found - period).abs() < 1.0, "seed {seed} {period} {found}");
        }
    }

    /// By chance, three are evenly spaced now and then: nearly all such series must be seen through at any time.
    #[test]
    fn random_episodes_show_none() {
        let (mut looks, mut wrong) = (0, 0);
        for seed in 0..SEEDS / 3 {
            let mut random = Random::of(seed);
            let gap = random.between(10.0, 200.0);
            let mut now = 0.0;
            let episodes: Vec<Episode> = (0..30)
                .map(|_| {
                    now += 3.0 - gap * (1.0 - random.unit()).ln();
                    episode(now, random.between(0.3, 8.0), 3)
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
