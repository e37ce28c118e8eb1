//! Selects the limit to try next.

use std::time::Duration;

use crate::{random::Random, rounded, trial::Gain};

/// The factors by which the trials of a search change the limit, in this order. Doubling from 32
/// visits the powers of two; the smaller steps find an optimum between them.
const STEPS: [f64; 3] = [2.0, std::f64::consts::SQRT_2, 1.19];

/// A search ends after this time, with the best limit that it found. With few or very different
/// operations, a more certain result would take a long time.
const MAX_SEARCH: Duration = Duration::from_secs(8);

/// The factor by which a trial changes the limit after the limit has settled. The highest and the
/// lowest tried limit differ by about 20 %.
const SMALL_STEP: f64 = 1.1;

/// Mean time between trials after the limit has settled: the first value and the maximum. A trial
/// with five slices (each is some consecutive windows) at the tried limit takes about 2 s. It
/// changes the limit by only a tenth, and such a small change has little effect on the throughput.
/// So the trials cost well under 1 % of the throughput.
const FIRST_INTERVAL: Duration = Duration::from_secs(4);
const MAX_INTERVAL: Duration = Duration::from_secs(16);

/// A direction in which a limit can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Up,
    Down,
}

impl Direction {
    fn opposite(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }
}

/// The state of the search for the best limit.
#[derive(Clone, Debug)]
pub(crate) enum Search {
    /// Trials follow each other, with steps that become smaller.
    Searching {
        step: usize,
        up_failed: bool,
        down_failed: bool,
        /// Number of consecutive trials whose limit was kept.
        kept: u32,
        /// The end of the first window in which operations waited all the time. Windows before this
        /// search, or before the current load, do not count. `None` until there is such a window.
        since: Option<Duration>,
    },
    /// Trials with a small step, from time to time.
    Settled {
        next_at: Duration,
        interval: Duration,
        direction: Direction,
    },
}

impl Search {
    pub(crate) fn new() -> Self {
        Self::with_step(0)
    }

    /// A search that begins with smaller steps than the first search.
    pub(crate) fn again() -> Self {
        Self::with_step(1)
    }

    fn with_step(step: usize) -> Self {
        Self::Searching {
            step,
            up_failed: false,
            down_failed: false,
            kept: 0,
            since: None,
        }
    }

    pub(crate) fn settled(now: Duration, random: &mut Random) -> Self {
        Self::Settled {
            next_at: now + random.jittered(FIRST_INTERVAL),
            interval: FIRST_INTERVAL,
            direction: match random.coin() {
                true => Direction::Up,
                false => Direction::Down,
            },
        }
    }

    /// Records that operations wait all the time. The first call starts the time limit of the
    /// search.
    pub(crate) fn begin(&mut self, now: Duration) {
        if let Self::Searching { since, .. } = self {
            since.get_or_insert(now);
        }
    }

    /// Stops the time limit of the search, until operations wait all the time again.
    pub(crate) fn pause(&mut self) {
        if let Self::Searching { since, .. } = self {
            *since = None;
        }
    }

    /// True if the search has taken longer than its time limit.
    pub(crate) fn is_overdue(&self, now: Duration) -> bool {
        match self {
            Self::Searching {
                since: Some(since), ..
            } => now.saturating_sub(*since) >= MAX_SEARCH,
            Self::Searching { since: None, .. } | Self::Settled { .. } => false,
        }
    }

    /// Lets the search try a higher limit again, because a higher limit has become possible. If the
    /// search has already settled, its next trial is due now and tries a higher limit.
    pub(crate) fn try_higher(&mut self, now: Duration) {
        match self {
            Self::Searching { up_failed, .. } => *up_failed = false,
            Self::Settled {
                next_at, direction, ..
            } => {
                *next_at = now;
                *direction = Direction::Up;
            }
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        matches!(self, Self::Settled { .. })
    }

    /// The next limit to try from `base`, within `range`. `None` if no trial is due. The search
    /// tries the direction `first` before the other direction. The search settles when it has tried
    /// both directions at each step size.
    pub(crate) fn next(
        &mut self,
        base: u32,
        range: (u32, u32),
        first: Direction,
        now: Duration,
        random: &mut Random,
    ) -> Option<u32> {
        if self.is_overdue(now) {
            *self = Self::settled(now, random);
        }
        loop {
            let (factor, direction) = match self {
                Self::Settled {
                    next_at, direction, ..
                } => {
                    if now < *next_at {
                        return None;
                    }
                    (SMALL_STEP, *direction)
                }
                Self::Searching {
                    step,
                    up_failed,
                    down_failed,
                    ..
                } => match (STEPS.get(*step), *up_failed, *down_failed) {
                    (Some(factor), false, false) => (*factor, first),
                    (Some(factor), false, true) => (*factor, Direction::Up),
                    (Some(factor), true, false) => (*factor, Direction::Down),
                    (Some(_), true, true) => {
                        *step += 1;
                        (*up_failed, *down_failed) = (false, false);
                        continue;
                    }
                    (None, ..) => {
                        *self = Self::settled(now, random);
                        return None;
                    }
                },
            };
            let next = |direction| stepped(base, factor, direction).clamp(range.0, range.1);
            if next(direction) != base {
                return Some(next(direction));
            }
            if let Self::Settled { direction, .. } = self {
                *direction = direction.opposite();
                return Some(next(*direction)).filter(|next| *next != base);
            }
            self.record_dropped(direction, now, random);
        }
    }

    /// Records that the limit of a trial was kept, because it has gained this much throughput.
    pub(crate) fn record_kept(
        &mut self,
        direction: Direction,
        gain: Gain,
        now: Duration,
        random: &mut Random,
    ) {
        match self {
            // The earlier limit was worse, so the direction back to it counts as tried.
            Self::Searching {
                step,
                up_failed,
                down_failed,
                kept,
                ..
            } => {
                *up_failed = direction == Direction::Down;
                *down_failed = direction == Direction::Up;
                *kept += 1;
                if *kept >= 2 {
                    *step = step.saturating_sub(1);
                }
            }
            Self::Settled { .. } if gain == Gain::Obvious => *self = Self::new(),
            Self::Settled {
                next_at,
                interval,
                direction: next_direction,
            } => {
                *interval = FIRST_INTERVAL;
                // After a steep gain, the best limit is some steps away, so the next trial follows
                // immediately.
                *next_at = match gain {
                    Gain::Small => now + random.jittered(FIRST_INTERVAL),
                    Gain::Steep | Gain::Obvious => now,
                };
                *next_direction = direction;
            }
        }
    }

    /// Records that the tried limit was not kept.
    pub(crate) fn record_dropped(
        &mut self,
        direction: Direction,
        now: Duration,
        random: &mut Random,
    ) {
        match self {
            Self::Searching {
                up_failed,
                down_failed,
                kept,
                ..
            } => {
                *kept = 0;
                match direction {
                    Direction::Up => *up_failed = true,
                    Direction::Down => *down_failed = true,
                }
            }
            Self::Settled {
                next_at,
                interval,
                direction: next_direction,
            } => {
                *next_at = now + random.jittered(*interval);
                *interval = interval.mul_f64(1.5).min(MAX_INTERVAL);
                *next_direction = direction.opposite();
            }
        }
    }
}

/// The limit one step from `base`: at least one operation more or less.
fn stepped(base: u32, factor: f64, direction: Direction) -> u32 {
    let limit = f64::from(base);
    match direction {
        Direction::Up => rounded(limit * factor).max(base.saturating_add(1)),
        Direction::Down => rounded(limit / factor).min(base.saturating_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn if_no_tried_limit_is_better_the_search_tries_higher_and_lower_limits_and_then_ends() {
        let (mut search, mut random) = (Search::new(), Random::new(1));
        let mut tried = Vec::new();
        while let Some(next) = search.next(32, (1, 256), Direction::Up, Duration::ZERO, &mut random)
        {
            tried.push(next);
            let direction = if next > 32 {
                Direction::Up
            } else {
                Direction::Down
            };
            search.record_dropped(direction, Duration::ZERO, &mut random);
        }
        assert_eq!(tried, [64, 16, 45, 23, 38, 27]);
        assert!(search.is_settled());
    }

    #[test]
    fn for_each_step_size_the_search_tries_up_and_down_and_begins_with_the_given_direction() {
        let (mut search, mut random) = (Search::new(), Random::new(1));
        let mut next = |first, failed| {
            if let Some(failed) = failed {
                search.record_dropped(failed, Duration::ZERO, &mut random);
            }
            search.next(32, (1, 256), first, Duration::ZERO, &mut random)
        };
        assert_eq!(next(Direction::Down, None), Some(16));
        assert_eq!(next(Direction::Down, Some(Direction::Down)), Some(64));
        assert_eq!(next(Direction::Up, Some(Direction::Up)), Some(45));
    }

    #[test]
    fn search_from_the_minimum_doubles_the_limit_at_each_step() {
        let (mut search, mut random) = (Search::new(), Random::new(1));
        let mut limit = 1;
        for expected in [2, 4, 8, 16] {
            limit = search
                .next(limit, (1, 16), Direction::Up, Duration::ZERO, &mut random)
                .unwrap();
            assert_eq!(limit, expected);
            search.record_kept(Direction::Up, Gain::Obvious, Duration::ZERO, &mut random);
        }
    }

    /// A settled search tries another limit only from time to time. A *steep* gain is large
    /// compared with the change of the limit.
    #[test]
    fn after_a_steep_gain_a_settled_search_immediately_tries_the_same_direction_again() {
        let mut random = Random::new(1);
        let mut next_after = |gain| {
            let mut search = Search::settled(Duration::ZERO, &mut random);
            search.record_kept(Direction::Down, gain, Duration::ZERO, &mut random);
            search.next(100, (1, 256), Direction::Up, Duration::ZERO, &mut random)
        };
        assert_eq!(next_after(Gain::Steep), Some(91));
        assert_eq!(next_after(Gain::Small), None);
    }

    #[test]
    fn after_the_search_has_settled_the_times_of_further_trials_depend_on_the_random_seed() {
        let times = |seed| match Search::settled(Duration::ZERO, &mut Random::new(seed)) {
            Search::Settled { next_at, .. } => next_at,
            Search::Searching { .. } => Duration::ZERO,
        };
        assert_eq!(times(1), times(1));
        assert_ne!(times(1), times(2));
    }
}
