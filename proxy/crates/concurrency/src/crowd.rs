//! Lowers the limit while other clients crowd the server (*yielding*).
//!
//! Several proxies in front of one server cannot find the best limit from their own throughput:
//! each proxy gains if it uses more of the server than the others. Therefore a proxy also lowers
//! its limit while operations take many times as long as on the unloaded server. All proxies
//! measure these long times, so all of them lower their limits, and none loses throughput. If a
//! proxy loses throughput, either the other clients do not yield, or the server has become slower
//! for another reason. In both cases the proxy restores its limit.

use std::time::Duration;

use crate::{like::Slowdown, random::Random, rounded};

/// The server is crowded if operations take more than this many times as long as without load. A
/// server works best with several operations per core: while one operation waits until a sleeping
/// thread wakes up, its core can run another operation. On two cores, mongod works best with 16 to
/// 32 operations, which take 6 to 8 times as long as a single operation.
const CROWDED: f64 = 8.0;

/// The server has room if operations take less than this many times as long as without load. The
/// reason may be that other clients have left, or that other proxies have lowered their limits
/// after this proxy. If this proxy lowered its limit because the server was crowded, the proxy then
/// raises the highest limit that it may try, step by step. If all proxies raised their limits in
/// one large step, the server would be crowded again.
const ROOMY: f64 = 3.0;

/// After yielding (lowering the limit of a crowded server): the factor by which one step raises the
/// highest limit that may be tried, and the mean time between two such steps. In this time, the
/// effect of a step becomes visible to all proxies.
const CAP_STEP: f64 = std::f64::consts::SQRT_2;
const CAP_STEP_TIME: Duration = Duration::from_secs(1);

/// Time for which the server must be crowded before the limit is lowered. The time is five windows
/// long, so a short stall does not lower the limit.
const PATIENCE: Duration = Duration::from_millis(500);

/// While the controller yields (lowers the limit of a crowded server): the mean time between two
/// reductions of the limit, and the bounds of the factor by which one reduction multiplies the
/// limit. Within these bounds, the factor is `CROWDED` divided by the crowding
/// ([`Crowd::crowding`]).
const STEP_TIME: Duration = Duration::from_millis(400);
const LEAST_STEP: f64 = 0.85;
const LARGEST_STEP: f64 = 0.5;

/// While the controller yields (lowers the limit of a crowded server), it checks the throughput. A
/// check is due when the limit has fallen to `CHECK_AT` times its value at the last check. It is
/// also due when the server is no longer crowded. The controller restores an earlier limit if the
/// throughput has fallen below `KEPT` times the throughput at the last check. The throughput does
/// not fall that much if all clients of the server yield, or if this proxy alone fills the server.
/// Otherwise the throughput falls with the limit, to about `CHECK_AT` times its earlier value:
/// other clients use the capacity that this proxy frees, or the server is slow for another reason.
const CHECK_AT: f64 = 0.5;
const KEPT: f64 = 0.7;

/// The controller yields when it lowers the limit of a crowded server. A limit that was found by
/// yielding restricts the controller for this time, and no longer, even if the server is still
/// crowded.
const CAP_TIME: Duration = Duration::from_secs(600);

/// If yielding (lowering the limit of a crowded server) did not help, it is not tried again for
/// this time. The time doubles with each failure, up to `MAX_BACKOFF`.
const MIN_BACKOFF: Duration = Duration::from_secs(20);
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// Weight of the operations of earlier windows in the crowding ([`Crowd::crowding`]). With this
/// weight, the crowding is a mean of about three windows. A window with few operations has little
/// weight.
const KEPT_WEIGHT: f64 = 0.7;

/// Weight of a new window in the smoothed rate of completed work. With this weight, the smoothed
/// rate is a mean over almost a second. A mean over a shorter time would vary too much, because
/// several proxies do not lower their limits at the same moment.
const RATE_SMOOTHING: f64 = 0.15;

/// The highest limit that may be tried for some time after yielding (lowering the limit of a
/// crowded server).
#[derive(Clone, Copy, Debug)]
struct Cap {
    limit: u32,
    /// `limit` is not raised before this time.
    raise_at: Duration,
    until: Duration,
}

/// The state while the controller yields: it lowers the limit step by step, because the server is
/// crowded.
#[derive(Clone, Copy, Debug)]
struct Yielding {
    /// The limit that the controller restores if throughput is lost: the limit at the check before
    /// the last check, or the limit before the first step if there were fewer than two checks. The
    /// limit at the last check may be too low, because the smoothed rate showed only a part of the
    /// loss at that check.
    earlier_limit: u32,
    /// The limit and the rate at the last check. Before the first check: the limit and the rate
    /// before the first step.
    from_limit: u32,
    from_rate: f64,
    next_at: Duration,
    /// True if throughput was lost at the last check. The check is then repeated once, because
    /// other clients may lower their limits a moment later.
    has_lost: bool,
}

/// The next action of the controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    /// Leave the limit unchanged, for one of these reasons: the server is not crowded, or became
    /// crowded only a moment ago; too few operations completed in the window; the limit is 1
    /// already; a lower limit recently did not help.
    None,
    /// The controller yields, and waits for one of these reasons: the last step has not taken
    /// effect yet; too few operations completed in the window; the throughput must be checked
    /// again.
    Wait,
    /// Set this lower limit.
    Lower(u32),
    /// The limit is low enough now.
    Done,
    /// Set this earlier limit again: lower limits cost throughput.
    Restore(u32),
}

/// The highest limit that may be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Highest {
    /// Any limit may be tried. Either yielding (lowering the limit of a crowded server) has set no
    /// highest limit, or the time for which the highest limit applies is over.
    Any,
    /// The highest limit after yielding.
    Cap(u32),
    /// The highest limit after yielding. It has just been raised.
    RaisedCap(u32),
}

/// Measures how crowded the server is, and decides when the controller yields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crowd {
    /// The slowdown of recent operations.
    recent: Slowdown,
    /// True if the last window changed `recent`.
    is_fresh: bool,
    /// Smoothed work per second. Work is the number of completed operations, weighted by their
    /// usual server times.
    rate: f64,
    /// The time until a change of limit has taken effect.
    transit: Duration,
    crowded_since: Option<Duration>,
    yielding: Option<Yielding>,
    cap: Option<Cap>,
    /// Until this moment, the limit is not lowered even if the server is crowded: the last time, a
    /// lower limit did not help.
    not_before: Duration,
    backoff: Duration,
}

impl Crowd {
    /// The smoothed server time of operations, as a multiple of their server time without load; 0
    /// if it is unknown.
    pub(crate) fn crowding(&self) -> f64 {
        self.recent.crowding().unwrap_or(0.0)
    }

    /// The highest limit that may be tried. It rises step by step while the server has room.
    pub(crate) fn highest(&mut self, base: u32, now: Duration, random: &mut Random) -> Highest {
        let is_roomy = self
            .recent
            .crowding()
            .is_some_and(|crowding| crowding < ROOMY);
        let Some(cap) = self.cap.as_mut().filter(|cap| now < cap.until) else {
            return Highest::Any;
        };
        let next = rounded(f64::from(base) * CAP_STEP).max(base.saturating_add(1));
        if !is_roomy || now < cap.raise_at || next <= cap.limit {
            return Highest::Cap(cap.limit);
        }
        cap.limit = next;
        cap.raise_at = now + random.jittered(CAP_STEP_TIME);
        Highest::RaisedCap(next)
    }

    /// True if the server is crowded. If the server stays crowded, the limit will be lowered soon.
    pub(crate) fn is_about_to_yield(&self) -> bool {
        self.crowded_since.is_some()
    }

    /// True if operations take at least [`ROOMY`] times as long as on the unloaded server.
    pub(crate) fn is_slow(&self) -> bool {
        self.crowding() >= ROOMY
    }

    /// Adds the slowdown of a window's operations. `slowdown` is `None` if the window has too few
    /// operations to measure a slowdown.
    pub(crate) fn observe(&mut self, slowdown: Option<Slowdown>) {
        self.is_fresh = slowdown.is_some();
        if let Some(slowdown) = slowdown {
            self.recent.add(slowdown, KEPT_WEIGHT);
        }
    }

    /// Forgets the smoothed rate and that the server was crowded, and ends yielding (lowering the
    /// limit of a crowded server). The controller calls this function when the load has ended.
    /// Returns true if the controller was yielding.
    pub(crate) fn end_load(&mut self) -> bool {
        self.rate = 0.0;
        self.crowded_since = None;
        let was_yielding = self.yielding.is_some();
        if was_yielding {
            self.interrupt();
        }
        was_yielding
    }

    /// Evaluates a window in which operations waited all the time, and returns the next action. The
    /// caller passes the slowdown of the window to [`Self::observe`] before this call. `rate` is
    /// the work per second of the window.
    pub(crate) fn update(
        &mut self,
        rate: f64,
        limit: u32,
        transit: Duration,
        now: Duration,
        random: &mut Random,
    ) -> Action {
        self.transit = transit;
        self.rate = match self.rate > 0.0 {
            true => self.rate + RATE_SMOOTHING * (rate - self.rate),
            false => rate,
        };
        if !self.is_fresh {
            return match self.yielding {
                Some(_) => Action::Wait,
                None => Action::None,
            };
        }
        let is_crowded = self.crowding() > CROWDED;
        match self.yielding {
            Some(yielding) if now < yielding.next_at => Action::Wait,
            Some(yielding) => self.step(yielding, is_crowded, limit, now, random),
            None if !is_crowded || limit <= 1 || now < self.not_before => {
                self.crowded_since = None;
                Action::None
            }
            None if now - *self.crowded_since.get_or_insert(now) < PATIENCE => Action::None,
            None => {
                let yielding = Yielding {
                    earlier_limit: limit,
                    from_limit: limit,
                    from_rate: self.rate,
                    next_at: now,
                    has_lost: false,
                };
                self.lower(yielding, limit, now, random)
            }
        }
    }

    /// The next action while the controller yields (lowers the limit of a crowded server): lower
    /// the limit further, wait, or stop yielding.
    fn step(
        &mut self,
        mut yielding: Yielding,
        is_crowded: bool,
        limit: u32,
        now: Duration,
        random: &mut Random,
    ) -> Action {
        let is_enough = !is_crowded || limit <= 1;
        if is_enough || f64::from(limit) <= CHECK_AT * f64::from(yielding.from_limit) {
            if self.rate < KEPT * yielding.from_rate {
                if !yielding.has_lost {
                    yielding.has_lost = true;
                    yielding.next_at = now + random.jittered(2 * STEP_TIME.max(self.transit));
                    self.yielding = Some(yielding);
                    return Action::Wait;
                }
                self.interrupt();
                self.backoff = (self.backoff * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
                self.not_before = now + random.jittered(self.backoff);
                return Action::Restore(yielding.earlier_limit);
            }
            yielding.has_lost = false;
            yielding.earlier_limit = yielding.from_limit;
            yielding.from_limit = limit;
            yielding.from_rate = self.rate;
        }
        if is_enough {
            self.interrupt();
            self.cap = Some(Cap {
                limit,
                raise_at: now + random.jittered(CAP_STEP_TIME),
                until: now + CAP_TIME,
            });
            return Action::Done;
        }
        self.lower(yielding, limit, now, random)
    }

    fn lower(
        &mut self,
        mut yielding: Yielding,
        limit: u32,
        now: Duration,
        random: &mut Random,
    ) -> Action {
        yielding.next_at = now + random.jittered(STEP_TIME.max(self.transit));
        self.yielding = Some(yielding);
        let step = (CROWDED / self.crowding().max(CROWDED)).clamp(LARGEST_STEP, LEAST_STEP);
        Action::Lower(rounded(f64::from(limit) * step).min(limit - 1).max(1))
    }

    /// Ends yielding (lowering the limit of a crowded server), and forgets the recent slowdown. The
    /// controller also calls this function in a stall, because the slowdown in a stall shows
    /// nothing about the limit.
    pub(crate) fn interrupt(&mut self) {
        self.recent = Slowdown::default();
        self.crowded_since = None;
        self.yielding = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(100);

    /// Simulates a server for `seconds`. `crowding` returns, for a limit, the time of operations as
    /// a multiple of their time without load. Returns the limit at the end, or the first limit that
    /// is restored.
    fn run(crowd: &mut Crowd, mut limit: u32, seconds: u64, crowding: impl Fn(u32) -> f64) -> u32 {
        let mut random = Random::new(1);
        for window in 0..seconds * 10 {
            let now = WINDOW * u32::try_from(window).unwrap();
            let rate = f64::from(limit) / crowding(limit);
            crowd.observe(Some(Slowdown::new(100.0, crowding(limit))));
            match crowd.update(rate, limit, Duration::ZERO, now, &mut random) {
                Action::Lower(lower) => limit = lower,
                Action::Restore(earlier) => return earlier,
                Action::None | Action::Wait | Action::Done => {}
            }
        }
        limit
    }

    /// The limit bounds the operations in progress. A server is crowded if operations take more
    /// than eight times as long as without load.
    #[test]
    fn limit_is_lowered_until_the_server_is_no_longer_crowded() {
        let mut crowd = Crowd::default();
        let limit = run(&mut crowd, 100, 20, |limit| f64::from(limit) / 2.0);
        assert!((12..=16).contains(&limit), "{limit}");
        assert_eq!(
            crowd.highest(1, Duration::from_secs(10), &mut Random::new(1)),
            Highest::Cap(limit)
        );
    }

    #[test]
    fn limit_is_restored_if_a_lower_limit_does_not_make_the_server_faster() {
        let mut crowd = Crowd::default();
        assert_eq!(run(&mut crowd, 100, 20, |_| 50.0), 100);
        assert_eq!(
            crowd.highest(100, Duration::from_secs(20), &mut Random::new(1)),
            Highest::Any
        );
    }

    #[test]
    fn a_single_window_with_slow_operations_is_ignored() {
        let mut crowd = Crowd::default();
        let mut random = Random::new(1);
        for window in 0..20 {
            let crowding = if window == 10 { 20.0 } else { 2.0 };
            crowd.observe(Some(Slowdown::new(100.0, crowding)));
            let action = crowd.update(1.0, 32, Duration::ZERO, WINDOW * window, &mut random);
            assert_eq!(action, Action::None);
        }
    }

    /// The limit bounds the operations in progress. A server is crowded if operations take more
    /// than eight times as long as without load.
    #[test]
    fn limit_is_lowered_after_the_server_was_crowded_for_half_a_second() {
        let mut crowd = Crowd::default();
        let mut random = Random::new(1);
        for window in 0..5 {
            crowd.observe(Some(Slowdown::new(100.0, 20.0)));
            let now = WINDOW * window;
            let action = crowd.update(1.0, 32, Duration::ZERO, now, &mut random);
            assert_eq!(action, Action::None);
            assert!(crowd.is_about_to_yield());
        }
        let action = crowd.update(1.0, 32, Duration::ZERO, WINDOW * 5, &mut random);
        assert_eq!(action, Action::Lower(16));
    }

    #[test]
    fn a_single_window_with_few_but_long_operations_does_not_lower_the_limit() {
        let mut crowd = Crowd::default();
        let mut random = Random::new(1);
        for window in 0..20 {
            let slowdown = match window {
                10 => Slowdown::new(30.0, 200.0),
                _ => Slowdown::new(500.0, 2.0),
            };
            crowd.observe(Some(slowdown));
            let now = WINDOW * window;
            crowd.observe(Some(slowdown));
            let action = crowd.update(1.0, 32, Duration::ZERO, now, &mut random);
            assert_eq!(action, Action::None);
            assert!(crowd.crowding() < CROWDED, "{}", crowd.crowding());
        }
    }

    /// After the limit of a crowded server was lowered, there is a highest limit that may be tried.
    #[test]
    fn the_highest_limit_that_may_be_tried_rises_step_by_step_while_operations_are_fast() {
        let mut crowd = Crowd::default();
        let mut random = Random::new(1);
        let limit = run(&mut crowd, 100, 20, |limit| f64::from(limit) / 2.0);
        let mut highest = |crowding: f64, base, seconds| {
            crowd.recent = Slowdown::new(1.0, crowding);
            crowd.highest(base, Duration::from_secs(seconds), &mut random)
        };
        assert_eq!(highest(4.0, limit, 30), Highest::Cap(limit));
        let raised = rounded(f64::from(limit) * CAP_STEP);
        assert_eq!(highest(2.0, limit, 30), Highest::RaisedCap(raised));
        assert_eq!(highest(2.0, raised, 30), Highest::Cap(raised));
        assert_eq!(highest(2.0, limit, 40), Highest::Cap(raised));
        let next = rounded(f64::from(raised) * CAP_STEP);
        assert_eq!(highest(2.0, raised, 40), Highest::RaisedCap(next));
    }
}
