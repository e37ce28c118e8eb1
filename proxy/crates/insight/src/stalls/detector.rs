//! Detects stalls: periods in which operations take far longer than usual.
//!
//! [`StallDetector`] gets one second at a time. An operation is counted in the second in which it
//! *ended*. If a server stops for 2 s, no operation ends in these seconds. Operations that took up
//! to 2 s end in the next second. So the start of an episode (a detected stall) is computed from
//! the first slow second: the end of this second minus the longest duration.
//!
//! The usual values are learned from the seconds outside of episodes: the median of the 99th
//! percentiles of these seconds, and the spread above this median. If operations stay slow for
//! minutes, the episode ends, and the slow values become the usual ones.

use std::{collections::VecDeque, time::Duration};

use super::super::tiers::MAX_GAP_SECONDS;
use seawall_stats::{Distribution, PerPhase, Phase, PhaseTimes, float, float_usize};

#[cfg(test)]
pub(super) mod tests;

/// The operations that ended in one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct EndedOperations {
    /// The durations of the operations.
    pub(super) durations: Distribution,
    /// The total time of the operations in each phase.
    pub(super) phases: PhaseTimes,
    /// The end of the second, in seconds since the epoch.
    pub(super) at: u64,
}

/// A period in which operations of one series took far longer than usual.
#[derive(Clone, Debug, PartialEq)]
pub struct Episode {
    /// Start, in seconds since the epoch: the time at which the first of the slow operations began.
    /// It is computed from the end and the duration of this operation. It may be up to one second
    /// late, because the end of an operation is known only to the second. An operation of far
    /// longer duration than all others is ignored.
    pub started_at: f64,
    /// Time from the start to the end of the last second with slow operations.
    pub length: Duration,
    /// Number of operations that took far longer than usual.
    pub operations: u64,
    /// Sum of the durations of the operations that took far longer than usual, with an error of at
    /// most 4.4 %.
    pub waited: Duration,
    /// The phase in which the operations spent the most time in addition to the usual time.
    pub phase: Phase,
    /// The usual 99th percentile of durations.
    pub usual: Duration,
    /// The duration of the longest operation.
    pub worst: Duration,
}

/// Detects the stalls of one series. [`Self::second`] must be called once a second.
#[derive(Clone, Debug, Default)]
pub(super) struct StallDetector {
    /// For each of the last calm seconds (seconds outside of episodes) in which operations ended:
    /// the logarithm of the 99th percentile of the durations, in seconds.
    p99s: VecDeque<f64>,
    /// Number of operations in each of the last calm seconds.
    counts: VecDeque<u64>,
    /// Number of operations in each of the last seconds, including the seconds of episodes.
    recent: VecDeque<u64>,
    /// Usual time of an operation in each phase, in seconds.
    phases: PerPhase<f64>,
    open: Option<OpenEpisode>,
    /// The end of the last examined second, in seconds since the epoch.
    last_at: u64,
}

/// Number of calm seconds (seconds outside of episodes) from which the usual values are computed.
const MEMORY: usize = 120;

/// Minimum number of calm seconds with operations before stalls are detected.
const LEARNING: usize = 20;

/// Number of past seconds whose operation counts are kept, to detect that fewer operations ended
/// than usual (see [`FALLEN_SHARE`]).
const RECENT: usize = 60;

/// Minimum duration of a slow operation, as a multiple of the usual 99th percentile. The conditions
/// of [`SPREADS`] and [`FLOOR_SECONDS`] must also hold.
const FACTOR: f64 = 5.0;

/// Minimum distance of a slow operation's duration from the usual 99th percentile. The unit is the
/// standard deviation of the 99th percentiles of the calm seconds (seconds outside of episodes).
/// Durations and percentiles are compared as logarithms.
const SPREADS: f64 = 4.0;

/// Minimum duration of a slow operation, in seconds.
const FLOOR_SECONDS: f64 = 0.02;

/// During an episode (a detected stall), the limit above which an operation is slow is multiplied
/// by this factor, but is never less than [`FLOOR_SECONDS`]. So an episode does not end only
/// because durations fall to just below the usual limit.
const CALM_SHARE: f64 = 0.5;

/// A second with at least this many slow operations may be part of a stall.
const SEVERAL: u64 = 5;

/// A second with several slow operations is part of a stall only in two cases: at least
/// `1 / SEVERAL_OF` of the second's operations are slow, or few operations ended (see
/// [`FALLEN_SHARE`]).
const SEVERAL_OF: u64 = 50;

/// "Few operations ended" means: less than this share of the usual number of operations ended since
/// the slowest operation began.
const FALLEN_SHARE: f64 = 0.7;

/// In a second with at least [`SEVERAL`] slow operations, the longest operation is an outlier if it
/// took more than this many times as long as the second longest. An outlier began before the stall,
/// so the start of the stall is computed from the second longest operation. An index build is an
/// example: when it ends after hours, other operations may have waited for a second.
const OUTLIER_FACTOR: f64 = 5.0;

/// Minimum duration of the longest operation in a stall of fewer than [`SEVERAL`] slow operations.
/// [`NOTABLE_FACTOR`], [`NOTABLE_LIMITS`] and [`FEW_OF`] must also be satisfied.
const NOTABLE_SECONDS: f64 = 0.25;

/// Minimum ratio of the longest operation's duration to the usual 99th percentile, in a stall of
/// few slow operations.
const NOTABLE_FACTOR: f64 = 10.0;

/// Minimum duration of the longest operation in a stall of few slow operations, as a multiple of
/// the limit above which an operation is slow.
const NOTABLE_LIMITS: f64 = 2.0;

/// In a stall of few slow operations, at least `1 / FEW_OF` of the operations must be slow. All
/// operations that ended since the slowest operation began are counted. One slow operation among
/// hundreds is an outlier, not a stall.
const FEW_OF: u64 = 10;

/// An episode (a detected stall) ends after this many consecutive seconds that are not part of a
/// stall.
const SECONDS_AFTER_STALL: u32 = 5;

/// Maximum number of silent seconds (seconds in which no operation ends) in an episode. They may
/// belong to a stop of the server, so they do not count as seconds after the stall. Further silent
/// seconds do count, so that an episode also ends if clients send no more operations.
const MAX_SILENT_SECONDS: u32 = 30;

/// Maximum length of an episode (a detected stall), without its seconds in which no operation ended
/// (see [`MAX_SILENT_SECONDS`]). When an episode exceeds this length, it ends, and the usual values
/// are learned again from the seconds after it.
const LASTING_SECONDS: f64 = 120.0;

impl StallDetector {
    /// Examines the operations that ended in one second. Returns an episode (a detected stall) that
    /// ended in this second. An episode also ends if more than [`MAX_GAP_SECONDS`] are missing
    /// before this second: the machine slept, or the clock was set forward.
    pub(super) fn second(&mut self, beat: &EndedOperations) -> Option<Episode> {
        push(&mut self.recent, beat.durations.count(), RECENT);
        let since = beat.at.saturating_sub(self.last_at);
        self.last_at = beat.at;
        let Some(usual) = self.usual() else {
            self.learn(beat);
            return None;
        };
        let before_gap = self.open.take_if(|_| since > MAX_GAP_SECONDS);
        let before_gap = before_gap.and_then(|open| open.episode(&usual));
        let limit = match self.open {
            None => usual.limit,
            Some(_) => FLOOR_SECONDS.max(usual.limit * CALM_SHARE),
        };
        match (self.slow(beat, &usual, limit), &mut self.open) {
            (None, None) => {
                self.learn(beat);
                return before_gap;
            }
            (Some(slow), open) => {
                open.get_or_insert_with(|| OpenEpisode::at(beat))
                    .add(beat, &slow, &self.phases)
            }
            // A second without operations may be part of a stop of the server.
            (None, Some(open))
                if beat.durations.count() == 0
                    && usual.operations > 0.0
                    && open.silent_seconds < MAX_SILENT_SECONDS =>
            {
                open.silent_seconds += 1;
            }
            (None, Some(open)) => open.normal_seconds += 1,
        }
        // One call returns at most one episode. If it returns `before_gap`, an episode that begins
        // in this second can end only in a later second, even if it already has its maximum length.
        before_gap.or_else(|| self.end(beat, &usual))
    }

    /// True while the usual values are not known yet, because too few seconds have been examined.
    pub(super) fn is_learning(&self) -> bool {
        self.p99s.len() < LEARNING
    }

    fn end(&mut self, beat: &EndedOperations, usual: &Usual) -> Option<Episode> {
        let open = self.open.as_ref()?;
        let silent = f64::from(open.silent_seconds);
        let is_lasting = float(beat.at) - open.started_at - silent > LASTING_SECONDS;
        if open.normal_seconds < SECONDS_AFTER_STALL && !is_lasting {
            return None;
        }
        let episode = open.episode(usual);
        self.open = None;
        if is_lasting {
            self.p99s.clear();
            self.counts.clear();
        }
        episode
    }

    fn usual(&self) -> Option<Usual> {
        if self.is_learning() {
            return None;
        }
        let p99s: Vec<f64> = self.p99s.iter().copied().collect();
        let median = rank(&p99s, 2, 4);
        // Only the spread above the median is used. The spread below it can be much smaller,
        // because durations have a long upper tail. For normally distributed values, the standard
        // deviation is 1.4826 times the distance from the median to the upper quartile.
        let deviation = (rank(&p99s, 3, 4) - median) * 1.4826;
        let factor = FACTOR.max((SPREADS * deviation).exp());
        let counts: Vec<f64> = self.counts.iter().map(|count| float(*count)).collect();
        Some(Usual {
            p99: median.exp(),
            limit: FLOOR_SECONDS.max(median.exp() * factor),
            operations: rank(&counts, 2, 4),
        })
    }

    /// The slow operations of a second; `None` if they are not part of a stall.
    fn slow(&self, beat: &EndedOperations, usual: &Usual, limit: f64) -> Option<Slow> {
        let worst = beat.durations.max().as_secs_f64();
        if worst < limit {
            return None;
        }
        let slow = Slow::over(limit, &beat.durations);
        let seconds = beat.durations.max().as_millis().div_ceil(1000).max(1);
        let seconds = usize::try_from(seconds).unwrap_or(RECENT).min(RECENT);
        let ended = self.recent.iter().rev().take(seconds).sum::<u64>();
        let expected = usual.operations * float_usize(seconds);
        let has_fallen = float(ended) < FALLEN_SHARE * expected;
        let is_several = slow.operations >= SEVERAL
            && (slow.operations * SEVERAL_OF >= beat.durations.count() || has_fallen);
        let is_notable = worst >= NOTABLE_SECONDS
            && worst >= NOTABLE_FACTOR * usual.p99
            && worst >= NOTABLE_LIMITS * limit
            && slow.operations * FEW_OF >= ended;
        (is_several || is_notable).then_some(slow)
    }

    fn learn(&mut self, beat: &EndedOperations) {
        let count = beat.durations.count();
        push(&mut self.counts, count, MEMORY);
        if count == 0 {
            return;
        }
        let p99 = beat.durations.quantile(0.99).max(Duration::from_nanos(1));
        push(&mut self.p99s, p99.as_secs_f64().ln(), MEMORY);
        // If one of several operations took most of the time, the times of this second are not
        // usual. For example, an index build of an hour would make the usual times too long for
        // minutes.
        if count >= SEVERAL && beat.durations.max() * 2 > beat.durations.sum() {
            return;
        }
        let known = float_usize(self.p99s.len());
        for (usual, phase) in self.phases.values_mut().zip(beat.phases.values()) {
            *usual += (phase.as_secs_f64() / float(count) - *usual) / known;
        }
    }
}

/// The usual values, computed from calm seconds (seconds outside of episodes).
struct Usual {
    /// The 99th percentile of durations, in seconds.
    p99: f64,
    /// The limit in seconds above which an operation is slow.
    limit: f64,
    /// The usual number of operations per second.
    operations: f64,
}

/// The slow operations of one second.
struct Slow {
    operations: u64,
    /// Sum of the durations in seconds, estimated from the buckets.
    waited: f64,
    /// The longest duration in seconds, without an outlier (see [`OUTLIER_FACTOR`]).
    longest: f64,
}

impl Slow {
    fn over(limit: f64, durations: &Distribution) -> Self {
        let worst = durations.max().as_secs_f64();
        let mut slow = Self {
            operations: 0,
            waited: 0.0,
            longest: worst,
        };
        for (bucket, count) in durations.buckets() {
            let (lower, upper) = Distribution::<8>::bounds_seconds(bucket);
            let middle = (lower * upper).sqrt().min(worst);
            if middle >= limit || (upper >= worst && worst >= limit) {
                slow.operations += count;
                slow.waited += middle * float(count);
            }
        }
        let buckets: Vec<_> = durations.buckets().collect();
        if let [.., (bucket, _), (_, 1)] = *buckets
            && slow.operations >= SEVERAL
        {
            let (_, second_longest) = Distribution::<8>::bounds_seconds(bucket);
            if worst > OUTLIER_FACTOR * second_longest {
                slow.longest = second_longest;
            }
        }
        slow
    }
}

/// An episode (a detected stall) that has not ended yet.
#[derive(Clone, Debug)]
struct OpenEpisode {
    /// Start, in seconds since the epoch (see [`Episode::started_at`]).
    started_at: f64,
    /// End of the last second with slow operations, in seconds since the epoch.
    ended_at: f64,
    operations: u64,
    /// Sum of the durations of the slow operations, in seconds.
    waited: f64,
    worst: Duration,
    /// Time in each phase beyond the usual time, in seconds.
    excess: PerPhase<f64>,
    slow_seconds: u32,
    /// Number of consecutive seconds up to now that are not part of the stall.
    normal_seconds: u32,
    /// Number of seconds in which no operation ended, at most [`MAX_SILENT_SECONDS`]. They do not
    /// count as `normal_seconds`.
    silent_seconds: u32,
}

impl OpenEpisode {
    fn at(beat: &EndedOperations) -> Self {
        Self {
            started_at: f64::INFINITY,
            ended_at: float(beat.at),
            operations: 0,
            waited: 0.0,
            worst: Duration::ZERO,
            excess: PerPhase::default(),
            slow_seconds: 0,
            normal_seconds: 0,
            silent_seconds: 0,
        }
    }

    fn add(&mut self, beat: &EndedOperations, slow: &Slow, usual: &PerPhase<f64>) {
        let end = float(beat.at);
        self.started_at = self.started_at.min(end - slow.longest);
        self.ended_at = end;
        self.operations += slow.operations;
        self.waited += slow.waited;
        self.worst = self.worst.max(beat.durations.max());
        self.slow_seconds += 1;
        self.normal_seconds = 0;
        let count = float(beat.durations.count());
        let phases = beat.phases.values().zip(usual.values());
        for (excess, (phase, usual)) in self.excess.values_mut().zip(phases) {
            *excess += phase.as_secs_f64() - usual * count;
        }
    }

    /// The episode. `None` if it has only one slow second, and all operations in it were shorter
    /// than [`NOTABLE_SECONDS`]. Every machine has such short delays, and they are not reported.
    fn episode(&self, usual: &Usual) -> Option<Episode> {
        if self.slow_seconds == 1 && self.worst.as_secs_f64() < NOTABLE_SECONDS {
            return None;
        }
        let first = (Phase::Permit, f64::NEG_INFINITY);
        let phases = self.excess.iter();
        let (phase, _) = phases.fold(first, |most, (phase, excess)| {
            if *excess > most.1 {
                (phase, *excess)
            } else {
                most
            }
        });
        Some(Episode {
            started_at: self.started_at,
            length: seconds(self.ended_at - self.started_at),
            operations: self.operations,
            waited: seconds(self.waited),
            phase,
            usual: seconds(usual.p99),
            worst: self.worst,
        })
    }
}

fn push<T>(values: &mut VecDeque<T>, value: T, most: usize) {
    if values.len() == most {
        values.pop_front();
    }
    values.push_back(value);
}

/// The quantile `numerator / denominator` of `values`, which may be in any order; zero if there are
/// no values.
pub(super) fn rank(values: &[f64], numerator: usize, denominator: usize) -> f64 {
    let mut values = values.to_vec();
    let index = values.len().saturating_sub(1) * numerator / denominator;
    if index >= values.len() {
        return 0.0;
    }
    *values.select_nth_unstable_by(index, f64::total_cmp).1
}

/// The duration of a number of seconds; zero if the number is negative, too large for a
/// [`Duration`], or not a number.
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
