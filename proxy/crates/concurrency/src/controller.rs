//! The controller. In each window (about 100 ms), the controller checks for three problems. First,
//! the server has stalled. Second, replies are late: they arrive after the time limit of the
//! operation, or after its client has left. Third, the server is crowded: operations take many
//! times as long as without load. If the window has none of these problems, the controller
//! continues the trial of another limit. The *base limit* is the best limit found so far. A *slice*
//! is a number of consecutive windows at one limit. The *value* of a slice is its throughput or its
//! latency, as a logarithm. The *noise* is how much the values of slices at the same limit differ.

use std::time::Duration;

use crate::{
    crowd::{Action, Crowd, Highest},
    decision::{Decision, Inputs, Load, Reason},
    float,
    like::Like,
    random::Random,
    sample::{Epoch, Sample},
    search::{Direction, Search},
    slice::Slice,
    trial::{Metric, Trial, Verdict},
};

/// The limit at the start and after a reset. In measurements of mongod, this limit was good with
/// one core and with many cores.
const START: u32 = 32;

/// The lowest limit. One server may have a thousand proxies, and each proxy has its own limit, so
/// the lowest limit is 1.
const FLOOR: u32 = 1;

/// Minimum lengths of a [`Slice`]: during the search for the best limit, after this search, and
/// while the rate of arriving operations limits the throughput. In the last case, operation times
/// vary with bursts of arrivals, so the slice must be longer.
const SEARCH_SLICE: Duration = Duration::from_millis(100);
const SETTLED_SLICE: Duration = Duration::from_millis(200);
const LATENCY_SLICE: Duration = Duration::from_millis(500);

/// Maximum numbers of slices ([`Slice`]) at the tried limit in one [`Trial`]: during the search for
/// the best limit, and after this search.
const SEARCH_ROUNDS: usize = 3;
const SETTLED_ROUNDS: usize = 5;

/// The first trial begins after this number of slices ([`Slice`]) at the base limit (the best limit
/// found so far). From these slices, the controller learns the noise.
const FIRST_SLICES: u32 = 2;

/// The noise that is assumed at the start, and the minimum of the noise. The noise is the standard
/// deviation of the values of slices at the same limit. The value of a slice is its throughput or
/// its latency, as a logarithm.
const FIRST_NOISE: f64 = 0.03;
const LEAST_NOISE: f64 = 0.005;

/// If operations are shorter than this, a change of the limit counts as effective immediately.
/// Otherwise, a change takes effect after twice the time of an operation, but after `MAX_TRANSIT`
/// at the latest.
const SHORT: Duration = Duration::from_millis(5);
const MAX_TRANSIT: Duration = Duration::from_secs(1);

/// A limit is in effect if, while operations wait, the number of operations in progress is at least
/// this share of the limit.
const IN_EFFECT: f64 = 0.9;

/// Maximum time to wait for the connections that a raised limit needs. Establishing a connection
/// takes some milliseconds.
const MAX_GROWTH_TIME: Duration = Duration::from_secs(3);

/// The server has stalled if no operation has completed for at least this time. The time must also
/// be at least `STALL_MEANS` times the mean time of an operation in progress.
const STALL: Duration = Duration::from_millis(300);
const STALL_MEANS: f64 = 5.0;

/// The load of the server has ended if, for this time, there was no window in which operations
/// waited all the time.
const LOAD_END: Duration = Duration::from_secs(10);

/// For this time after a stall, the controller makes no trials of other limits.
const RECOVERY: Duration = Duration::from_secs(1);

/// Late replies ([`Sample::late`]) and timely replies are counted for at least this time. The count
/// continues until the number of replies is at least the base limit (the best limit found so far).
/// If at least nine of ten replies were late, the base limit is then halved. In any case, the
/// counts begin again at 0.
const LATE: Duration = Duration::from_millis(500);
const MOST: u64 = 9;

/// Constants of a [`Trial`] while the rate of arriving operations limits the throughput. The first
/// two are the factor by which the trial raises the limit, and the maximum number of slices at the
/// tried limit. The others are the initial and the maximum time between two trials. Operation times
/// vary in this state, so a trial takes long. Therefore the time between trials doubles after each
/// trial that shows no gain.
const LATENCY_STEP: f64 = 1.19;
const LATENCY_ROUNDS: usize = 2;
const LATENCY_INTERVAL: Duration = Duration::from_secs(8);
const MAX_LATENCY_INTERVAL: Duration = Duration::from_secs(120);

/// Tolerance when the start of a window is compared with the moment at which the limit changed.
const TOLERANCE: Duration = Duration::from_millis(1);

/// The rate of completed work has changed if it differs by about this share or more from its
/// average since the limit settled. If it has changed in `CHANGED_SLICES` consecutive slices, the
/// search for the best limit begins again. The share is not exact, because the controller compares
/// the logarithms of the rates.
const RATE_CHANGE: f64 = 0.25;
const CHANGED_SLICES: u32 = 8;

/// [`Decision::may_exempt`] is false while operations wait all the time and the rate of completed
/// operations is below this share of the usual rate.
const FALLING: f64 = 0.5;

/// Finds the concurrency limit of one server. The [crate's documentation](crate) describes the
/// method.
#[derive(Clone, Debug)]
pub struct Controller {
    /// The limit in effect: the base limit, or the limit of a trial.
    limit: u32,
    base: u32,
    ceiling: u32,
    epoch: Epoch,
    random: Random,
    like: Like,
    crowd: Crowd,
    search: Search,
    trial: Option<Trial>,
    slice: Slice,
    /// The time at which `limit` last changed since the last reset; if it has not changed, the
    /// start of the first window after the reset. `None` until the first sample after the reset.
    changed_at: Option<Duration>,
    /// The metric and the value of the last slice at the base limit; `None` if there is none since
    /// the base limit was last set.
    last_value: Option<(Metric, f64)>,
    base_slices: u32,
    /// Variance of a slice's value, by metric.
    throughput_variance: f64,
    latency_variance: f64,
    /// The earliest time of the next trial while the rate of arriving operations limits the
    /// throughput.
    latency_trial_at: Duration,
    latency_interval: Duration,
    /// The sum of the server times in seconds, and the sum of their squares in square seconds. The
    /// server time lasts from sending a command to the end of its reply. Older windows have less
    /// weight in both sums.
    times: f64,
    squares: f64,
    /// Smoothed number of completed operations per second.
    usual_rate: f64,
    rate_reference: RateReference,
    completed_at: Duration,
    /// The end of the last window in which operations waited all the time.
    bound_at: Duration,
    replies: Replies,
    has_stalled: bool,
    recovering_until: Duration,
    last_gain: f64,
    last_error: f64,
}

/// The knowledge that a reset of a [`Controller`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// Nothing. For example, a restarted server has a cold cache, so its operations take longer
    /// than before, also without load.
    Nothing,
    /// The known server times without load. The server process is the same, so these times still
    /// show if the server is crowded. They cannot be measured again while many proxies load the
    /// server.
    UnloadedTimes,
}

/// Numbers of late and timely replies since `since`. See [`LATE`].
#[derive(Clone, Copy, Debug, Default)]
struct Replies {
    since: Duration,
    late: u64,
    in_time: u64,
}

/// The average rate of completed work since the limit settled (the reference). `value` is the
/// logarithm of this rate. `off` is the number of consecutive slices whose rates differ much from
/// the reference.
#[derive(Clone, Copy, Debug, Default)]
struct RateReference {
    value: Option<f64>,
    off: u32,
}

impl Controller {
    /// Creates a controller. `ceiling` is the highest limit. The initial limit is 32, or `ceiling`
    /// if that is lower. Trials of several controllers at the same time would disturb each other.
    /// So `seed` must differ between proxies, and between the servers of a proxy: after the search
    /// for the best limit, controllers with different seeds begin their trials at different times.
    /// During the search, the seed has no such effect, because trials follow each other
    /// immediately.
    pub fn new(ceiling: u32, seed: u64) -> Self {
        let ceiling = ceiling.max(FLOOR);
        let start = START.min(ceiling);
        Self {
            limit: start,
            base: start,
            ceiling,
            epoch: Epoch::default(),
            random: Random::new(seed),
            like: Like::default(),
            crowd: Crowd::default(),
            search: Search::new(),
            trial: None,
            slice: Slice::default(),
            changed_at: None,
            last_value: None,
            base_slices: 0,
            throughput_variance: FIRST_NOISE * FIRST_NOISE,
            latency_variance: FIRST_NOISE * FIRST_NOISE,
            latency_trial_at: Duration::ZERO,
            latency_interval: LATENCY_INTERVAL,
            times: 0.0,
            squares: 0.0,
            usual_rate: 0.0,
            rate_reference: RateReference::default(),
            completed_at: Duration::ZERO,
            bound_at: Duration::ZERO,
            replies: Replies::default(),
            has_stalled: false,
            recovering_until: Duration::ZERO,
            last_gain: 0.0,
            last_error: 0.0,
        }
    }

    /// The limit in effect.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The current epoch. A new epoch begins at each [`Self::reset`]. A sample belongs to the epoch
    /// in which its window began.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Starts again with the initial limit (see [`Self::new`]), and forgets everything learned
    /// about the server except what `kept` names. The caller does this in three cases: after the
    /// connection pool of the server was cleared; after the server changed its type (for example
    /// from secondary to primary); after the configured kind of limit changed (for example from
    /// fixed to automatic). The controller then ignores samples of windows that began before the
    /// reset.
    pub fn reset(&mut self, kept: Kept) {
        let epoch = Epoch(self.epoch.0.wrapping_add(1));
        let random = self.random.clone();
        let like = match kept {
            Kept::Nothing => Like::default(),
            Kept::UnloadedTimes => self.like.with_unloaded_times_only(),
        };
        *self = Self {
            epoch,
            random,
            like,
            ..Self::new(self.ceiling, 0)
        };
    }

    /// Changes the highest limit. If the limit in effect or the base limit ([`Self::settled`]) is
    /// above the new highest limit, resets the controller at `now`. Otherwise, a trial of a limit
    /// above the new highest limit ends without a result.
    pub fn set_ceiling(&mut self, ceiling: u32, now: Duration) {
        self.ceiling = ceiling.max(FLOOR);
        let tried = self.trial.as_ref().map(|trial| trial.tried);
        if self.limit.max(self.base) > self.ceiling {
            self.reset(Kept::Nothing);
            self.resume(now);
        } else if tried.is_some_and(|tried| tried > self.ceiling) {
            self.return_to_base(now);
        }
    }

    /// The best limit found so far (the base limit). It is in effect while no trial of another
    /// limit runs.
    pub fn settled(&self) -> u32 {
        self.base
    }

    /// Continues after a time without samples, in which no operation ran. Without this call, that
    /// time would look like a stall.
    pub fn resume(&mut self, now: Duration) {
        self.completed_at = now;
        self.replies = Replies {
            since: now,
            ..Replies::default()
        };
    }

    /// Evaluates a window. `now` is the end of the window, as the time since any fixed moment.
    pub fn update(&mut self, sample: &Sample, now: Duration) -> Decision {
        let previous = self.limit;
        let (load, reason) = if sample.epoch == self.epoch {
            self.changed_at
                .get_or_insert(now.saturating_sub(sample.window));
            self.learn(sample);
            let load = self.load(sample, now);
            (load, self.apply_rules(sample, load, now))
        } else {
            (Load::Idle, Reason::EarlierEpoch)
        };
        Decision {
            limit: self.limit,
            previous,
            settled: self.base,
            reason,
            may_exempt: self.decide_exemption(sample, load, now),
            inputs: self.inputs(sample, load),
        }
    }

    fn learn(&mut self, sample: &Sample) {
        self.like.learn(sample, self.limit);
        let time = sample.server_time().as_secs_f64();
        if time > 0.0 {
            // Both sums reduce the weight of older windows by the same factor, so their quotient is
            // a mean over the operations of recent windows.
            self.times = self.times * 0.9 + time;
            self.squares = self.squares * 0.9 + sample.server_time_squares;
        }
    }

    fn load(&mut self, sample: &Sample, now: Duration) -> Load {
        let replies = sample.completed() + sample.late + sample.uncompared;
        if replies > 0 || (sample.in_progress == 0 && sample.exempt == 0) {
            self.completed_at = now;
        }
        let silence = now.saturating_sub(self.completed_at);
        if silence >= STALL.max(self.time_in_progress().mul_f64(STALL_MEANS)) {
            return Load::Stalled;
        }
        let mut window = Slice::default();
        window.add(sample, &self.like);
        if window.is_server_bound() {
            Load::ServerBound
        } else if sample.time_with_waiting > Duration::ZERO || sample.waiting > 0 {
            Load::ArrivalsBound
        } else {
            Load::Idle
        }
    }

    /// Checks if the load of the server has ended. If so, drops the measurements of this load, so
    /// that they are not compared with those of a later load.
    fn note_load(&mut self, is_bound: bool, window: Duration, now: Duration) {
        let pause = now.saturating_sub(self.bound_at + window);
        if is_bound {
            self.bound_at = now;
        }
        if pause < LOAD_END {
            return;
        }
        let metric = self.trial.as_ref().map(|trial| trial.metric);
        if metric == Some(Metric::Throughput) {
            self.return_to_base(now);
        }
        self.search.pause();
        if self.crowd.end_load() {
            self.search = Search::again();
        }
    }

    fn apply_rules(&mut self, sample: &Sample, load: Load, now: Duration) -> Reason {
        let is_bound = load == Load::ServerBound;
        self.note_load(is_bound, sample.window, now);
        if load == Load::Stalled {
            self.has_stalled = true;
            self.crowd.interrupt();
            self.return_to_base(now);
            return Reason::Stalled;
        }
        if self.has_stalled {
            self.has_stalled = false;
            // Operations that began before or during the stall are late at any limit, so they are
            // not counted.
            self.replies = Replies {
                since: now,
                ..Replies::default()
            };
            self.recovering_until = now + RECOVERY;
        }
        if let Some(reason) = self.lower_if_late(sample, now) {
            return reason;
        }
        if now < self.recovering_until {
            return Reason::Recovering;
        }
        let slowdown = self.like.slowdown(sample);
        self.crowd.observe(slowdown);
        if is_bound {
            self.search.begin(now);
            if let Some(reason) = self.yield_if_crowded(sample, now) {
                return reason;
            }
        }
        self.measure(sample, load, now)
    }

    /// Halves the limit while almost all replies arrive too late. Only replies in time count as
    /// throughput, so the throughput is then near zero at all similar limits. A trial of a lower
    /// limit could not show that the lower limit is better.
    fn lower_if_late(&mut self, sample: &Sample, now: Duration) -> Option<Reason> {
        let replies = &mut self.replies;
        replies.late += sample.late;
        replies.in_time += sample.completed();
        let are_late = replies.late > 0 && replies.late >= MOST * replies.in_time;
        let is_enough =
            now - replies.since >= LATE && replies.late + replies.in_time >= u64::from(self.base);
        if is_enough {
            *replies = Replies {
                since: now,
                ..Replies::default()
            };
        }
        if is_enough && are_late {
            self.search = Search::new();
            self.set_base((self.base / 2).max(FLOOR), now);
            return Some(Reason::NothingInTime);
        }
        if !are_late || sample.completed() > 0 {
            return None;
        }
        match self.trial.take() {
            Some(trial) if self.limit == trial.tried => {
                self.finish(&trial, Verdict::Drop, now);
            }
            Some(_) | None => self.return_to_base(now),
        }
        Some(Reason::NothingInTime)
    }

    fn yield_if_crowded(&mut self, sample: &Sample, now: Duration) -> Option<Reason> {
        let seconds = sample.window.as_secs_f64().max(1e-3);
        let rate = self.like.work(sample).amount / seconds;
        let action = self
            .crowd
            .update(rate, self.base, self.transit(), now, &mut self.random);
        match action {
            Action::None => None,
            Action::Wait => Some(Reason::Crowded),
            Action::Lower(limit) => {
                self.set_base(limit, now);
                Some(Reason::Crowded)
            }
            Action::Done => {
                self.search = Search::again();
                self.set_base(self.base, now);
                Some(Reason::Crowded)
            }
            Action::Restore(limit) => {
                self.search = Search::again();
                // The highest limit may have fallen since this limit was in effect.
                self.set_base(limit.min(self.ceiling), now);
                Some(Reason::NotCrowded)
            }
        }
    }

    /// Adds the window to the slice, and evaluates the slice when it is complete.
    fn measure(&mut self, sample: &Sample, load: Load, now: Duration) -> Reason {
        let begins = now.saturating_sub(sample.window);
        let changed = self.changed_at.unwrap_or(begins);
        if begins + TOLERANCE < changed + self.transit() {
            return self.waiting_reason();
        }
        let is_full = sample.mean_in_progress >= IN_EFFECT * f64::from(self.limit);
        if load == Load::ServerBound && !is_full {
            if now - changed < MAX_GROWTH_TIME {
                return Reason::WaitingForConnections;
            }
            if let Some(trial) = self.trial.take() {
                self.finish(&trial, Verdict::Drop, now);
            }
            return Reason::BoundElsewhere;
        }
        let metric = self.trial.as_ref().map(|trial| trial.metric);
        if load == Load::Idle && self.trial.as_ref().is_none_or(|trial| !trial.is_at_tried()) {
            self.return_to_base(now);
            return Reason::NothingWaits;
        }
        self.slice.add(sample, &self.like);
        if !self.slice.is_complete(self.slice_length(metric, load)) {
            return self.waiting_reason();
        }
        let slice = std::mem::take(&mut self.slice);
        match self.trial.take() {
            Some(trial) => self.continue_trial(trial, &slice, now),
            None => self.base_slice(&slice, now),
        }
    }

    /// The mean time of an operation that is in progress at a random moment. It is more than the
    /// mean of all operations, because long operations are in progress for longer.
    fn time_in_progress(&self) -> Duration {
        match self.times > 0.0 {
            true => Duration::from_secs_f64((self.squares / self.times).clamp(0.0, 1e3)),
            false => Duration::ZERO,
        }
    }

    /// The time until a change of limit has taken effect.
    fn transit(&self) -> Duration {
        match self.time_in_progress() {
            short if short < SHORT => Duration::ZERO,
            long => (2 * long).min(MAX_TRANSIT),
        }
    }

    fn slice_length(&self, metric: Option<Metric>, load: Load) -> Duration {
        let least = match (metric, load) {
            (Some(Metric::Latency), _) | (None, Load::ArrivalsBound) => LATENCY_SLICE,
            _ if self.search.is_settled() => SETTLED_SLICE,
            _ => SEARCH_SLICE,
        };
        // Half of `transit` is the time of an operation. If a slice were shorter than an operation,
        // the values of consecutive slices would depend on each other.
        least.max(self.transit() / 2)
    }

    fn waiting_reason(&self) -> Reason {
        match &self.trial {
            Some(_) => Reason::Trying,
            None => Reason::Measuring,
        }
    }

    fn noise(&self, metric: Metric, slice: &Slice) -> f64 {
        let variance = match metric {
            Metric::Throughput => self.throughput_variance,
            Metric::Latency => self.latency_variance,
        };
        variance.sqrt().max(LEAST_NOISE).max(slice.least_noise())
    }

    /// Updates the noise of a metric: how much the values of slices at the same limit differ.
    /// `before` and `value` are two consecutive values at the same limit.
    fn learn_noise(&mut self, metric: Metric, before: f64, value: f64) {
        let difference = value - before;
        let variance = match metric {
            Metric::Throughput => &mut self.throughput_variance,
            Metric::Latency => &mut self.latency_variance,
        };
        // A jump of the rate is not noise, so a difference counts as at most three times the usual
        // difference.
        let square =
            (difference * difference / 2.0).min(9.0 * variance.max(LEAST_NOISE * LEAST_NOISE));
        *variance += 0.15 * (square - *variance);
    }

    /// Evaluates a slice at the base limit, and begins a trial if one is due.
    fn base_slice(&mut self, slice: &Slice, now: Duration) -> Reason {
        let metric = match slice.is_server_bound() {
            true => Metric::Throughput,
            false => Metric::Latency,
        };
        let Some(value) = slice.value(metric) else {
            return Reason::Measuring;
        };
        if let Some((_, before)) = self.last_value.filter(|(of, _)| *of == metric) {
            self.learn_noise(metric, before, value);
        }
        self.last_value = Some((metric, value));
        self.base_slices = self.base_slices.saturating_add(1);
        if metric == Metric::Throughput && self.update_rate_reference(value) {
            self.search = Search::again();
            self.like.fix_weights();
            self.set_base(self.base, now);
            return Reason::RateChanged;
        }
        if self.base_slices < FIRST_SLICES || self.crowd.is_about_to_yield() {
            return Reason::Measuring;
        }
        self.begin_trial(metric, value, slice.has_long_waits(), now)
    }

    /// Updates the average rate of completed work since the limit settled (`rate_reference`).
    /// `value` is the logarithm of this rate in one slice. Returns true if each of the last
    /// `CHANGED_SLICES` values differed from that average by at least `RATE_CHANGE` and by at least
    /// five times the noise.
    fn update_rate_reference(&mut self, value: f64) -> bool {
        if !self.search.is_settled() {
            self.rate_reference = RateReference::default();
            return false;
        }
        let noise = self.throughput_variance.sqrt();
        let reference = self.rate_reference.value.get_or_insert(value);
        if (value - *reference).abs() < RATE_CHANGE.max(5.0 * noise) {
            *reference += 0.05 * (value - *reference);
            self.rate_reference.off = 0;
            return false;
        }
        self.rate_reference.off += 1;
        self.rate_reference.off >= CHANGED_SLICES
    }

    fn begin_trial(
        &mut self,
        metric: Metric,
        value: f64,
        has_long_waits: bool,
        now: Duration,
    ) -> Reason {
        let highest = match self.crowd.highest(self.base, now, &mut self.random) {
            Highest::Any => self.ceiling,
            Highest::Cap(cap) => cap,
            Highest::RaisedCap(cap) => {
                self.search.try_higher(now);
                cap
            }
        };
        let highest = highest.clamp(FLOOR, self.ceiling);
        let tried = match metric {
            Metric::Throughput => {
                let range = (FLOOR, highest);
                // If load has slowed down the server, a lower limit is more likely to be better.
                let first = match self.crowd.is_slow() {
                    true => Direction::Down,
                    false => Direction::Up,
                };
                self.search
                    .next(self.base, range, first, now, &mut self.random)
            }
            // While the rate of arriving operations limits the throughput, the server keeps up with
            // them, so the limit does not change the throughput. A lower limit could only make
            // operations wait. If load has slowed down the server, a higher limit only moves the
            // wait to the server.
            Metric::Latency
                if has_long_waits && !self.crowd.is_slow() && now >= self.latency_trial_at =>
            {
                let higher = crate::rounded(f64::from(self.base) * LATENCY_STEP);
                Some(higher.max(self.base + 1).min(highest))
            }
            Metric::Latency => None,
        };
        match tried.filter(|tried| *tried != self.base) {
            Some(tried) => {
                let rounds = match metric {
                    Metric::Latency => LATENCY_ROUNDS,
                    Metric::Throughput if self.search.is_settled() => SETTLED_ROUNDS,
                    Metric::Throughput => SEARCH_ROUNDS,
                };
                self.trial = Some(Trial::new(self.base, tried, metric, value, rounds));
                self.set_limit(tried, now);
                Reason::Trying
            }
            None if self.search.is_settled() => Reason::Settled,
            None => Reason::Measuring,
        }
    }

    fn continue_trial(&mut self, mut trial: Trial, slice: &Slice, now: Duration) -> Reason {
        let was_at_tried = trial.is_at_tried();
        let is_comparable =
            was_at_tried || slice.is_server_bound() == (trial.metric == Metric::Throughput);
        let Some(value) = slice.value(trial.metric).filter(|_| is_comparable) else {
            // The kind of load has changed, or no operation completed: the trial has no result.
            self.return_to_base(now);
            return Reason::Measuring;
        };
        if !was_at_tried && let Some((_, before)) = self.last_value {
            self.learn_noise(trial.metric, before, value);
        }
        if !was_at_tried {
            self.last_value = Some((trial.metric, value));
        }
        let noise = self.noise(trial.metric, slice);
        let is_bound = slice.is_server_bound();
        let mut verdict = trial.add(value, noise, is_bound);
        if verdict == Verdict::Continue && self.search.is_overdue(now) {
            verdict = trial.early_verdict();
        }
        (self.last_gain, self.last_error) = (trial.gain, trial.error);
        if verdict == Verdict::Continue {
            let next = match trial.is_at_tried() {
                true => trial.tried,
                false => trial.base,
            };
            self.trial = Some(trial);
            self.set_limit(next, now);
            return Reason::Trying;
        }
        let reason = self.finish(&trial, verdict, now);
        let is_at_new_base = was_at_tried == (verdict == Verdict::Keep);
        if is_at_new_base && is_bound && !self.search.is_settled() {
            // The last value was already measured at the new base limit, so the next trial begins
            // now.
            self.last_value = Some((trial.metric, value));
            self.begin_trial(trial.metric, value, false, now);
        }
        reason
    }

    /// Ends a trial and sets the better limit.
    fn finish(&mut self, trial: &Trial, verdict: Verdict, now: Duration) -> Reason {
        let direction = match trial.is_up() {
            true => Direction::Up,
            false => Direction::Down,
        };
        let is_kept = verdict == Verdict::Keep;
        match trial.metric {
            Metric::Latency => {
                self.latency_interval = match is_kept {
                    true => LATENCY_INTERVAL,
                    false => (2 * self.latency_interval).min(MAX_LATENCY_INTERVAL),
                };
                self.latency_trial_at = now + self.random.jittered(self.latency_interval);
            }
            Metric::Throughput if is_kept => {
                self.search
                    .record_kept(direction, trial.gain_size(), now, &mut self.random);
            }
            Metric::Throughput => self.search.record_dropped(direction, now, &mut self.random),
        }
        self.set_base(if is_kept { trial.tried } else { trial.base }, now);
        match (is_kept, trial.metric, direction) {
            (false, ..) => Reason::NoGain,
            (true, Metric::Latency, _) => Reason::RaisedForLatency,
            (true, Metric::Throughput, Direction::Up) => Reason::RaisedForThroughput,
            (true, Metric::Throughput, Direction::Down) => Reason::LoweredForThroughput,
        }
    }

    /// Sets the base limit again. Ends the trial, if one runs, without a result.
    fn return_to_base(&mut self, now: Duration) {
        self.set_base(self.base, now);
    }

    fn set_base(&mut self, base: u32, now: Duration) {
        if base != self.base {
            self.rate_reference = RateReference::default();
        }
        self.base = base;
        self.trial = None;
        self.last_value = None;
        self.set_limit(base, now);
    }

    fn set_limit(&mut self, limit: u32, now: Duration) {
        self.slice = Slice::default();
        if limit != self.limit {
            self.limit = limit;
            self.changed_at = Some(now);
        }
    }

    fn decide_exemption(&mut self, sample: &Sample, load: Load, now: Duration) -> bool {
        let seconds = sample.window.as_secs_f64().max(1e-3);
        let rate = float(sample.completed()) / seconds;
        let is_falling = rate < FALLING * self.usual_rate && load == Load::ServerBound;
        // The usual rate is an average over about 2 s, so it follows a slow fall but not a stall.
        self.usual_rate += (0.5 * seconds).min(1.0) * (rate - self.usual_rate);
        load != Load::Stalled && now >= self.recovering_until && !is_falling
    }

    fn inputs(&self, sample: &Sample, load: Load) -> Inputs {
        let completed = float(sample.completed());
        let per_operation = |sum: Duration| sum.div_f64(completed.max(1.0));
        Inputs {
            load,
            completed_per_second: completed / sample.window.as_secs_f64().max(1e-3),
            late: sample.late,
            mean_wait: per_operation(sample.wait_time),
            mean_server_time: per_operation(sample.server_time()),
            crowding: self.crowd.crowding(),
            gain: self.last_gain,
            noise: self.last_error,
            mean_in_progress: sample.mean_in_progress,
            waiting: sample.waiting,
            exempt: sample.exempt,
        }
    }
}
