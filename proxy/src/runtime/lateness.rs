//! The lateness of a runtime: the time between the moment when a task is due to run and the moment
//! when the runtime runs the task.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::activity::{Activity, TICK};

/// The lateness of one runtime. A task of that runtime measures it at each tick (see
/// `super::activity::Ticks`), and other tasks read it.
#[derive(Debug)]
pub struct Lateness {
    base: Instant,
    /// When the next tick is due, in microseconds since `base`.
    due_us: AtomicU64,
    /// When the last tick came, in microseconds since `base`.
    last_us: AtomicU64,
    /// The lateness of the last tick, in microseconds.
    late_us: AtomicU64,
}

impl Lateness {
    /// Creates the lateness of a runtime that has not been measured yet.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            base: now,
            due_us: AtomicU64::new(u64::MAX),
            last_us: AtomicU64::new(0),
            late_us: AtomicU64::new(0),
        }
    }

    /// Records that a tick is due at `due`, unless a tick at an earlier time is already recorded.
    /// Returns the time at which the next tick is due: the earlier of these two times.
    fn expect(&self, due: Instant) -> Instant {
        let due_us = self.since_base(due);
        let due_us = self.due_us.fetch_min(due_us, Ordering::Relaxed).min(due_us);
        self.base + Duration::from_micros(due_us)
    }

    /// Records that a client arrives at `now`. The runtime must then tick soon, even after an idle
    /// time. If no tick follows soon, the runtime is late.
    pub(crate) fn expect_soon(&self, now: Instant) {
        self.expect(now + TICK);
    }

    /// Records the lateness of a tick at `now`. After that, no tick is due until the next call of
    /// `expect`.
    fn record(&self, late: Duration, now: Instant) {
        self.late_us.store(microseconds(late), Ordering::Relaxed);
        self.last_us.store(self.since_base(now), Ordering::Relaxed);
        self.due_us.store(u64::MAX, Ordering::Relaxed);
    }

    /// Returns the longer of two times: the lateness of the last tick (0 if that tick is not
    /// recent), and the time by which the next tick is already overdue (0 if it is not due yet).
    pub fn now(&self, now: Instant) -> Duration {
        let now = self.since_base(now);
        let overdue = now.saturating_sub(self.due_us.load(Ordering::Relaxed));
        let age = now.saturating_sub(self.last_us.load(Ordering::Relaxed));
        let late = match age <= microseconds(TICK * 2) {
            true => self.late_us.load(Ordering::Relaxed),
            // In an idle time, ticks are rare. So the last tick may be too old to show the current
            // lateness.
            false => 0,
        };
        Duration::from_micros(late.max(overdue))
    }

    fn since_base(&self, at: Instant) -> u64 {
        microseconds(at.saturating_duration_since(self.base))
    }
}

/// Measures the lateness of the runtime on which this future runs, and passes each measurement to
/// `record`. Never returns. `is_active` returns true while operations run.
pub(crate) async fn measure_lateness(
    activity: &Activity,
    lateness: &Lateness,
    is_active: impl Fn() -> bool,
    record: impl Fn(Duration),
) {
    let mut ticks = activity.ticks();
    loop {
        let tick = ticks.next(is_active(), |due| lateness.expect(due)).await;
        record(tick.late);
        lateness.record(tick.late, tick.now);
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// A *tick* is one run of the periodic task that measures the lateness of the runtime.
    #[test]
    fn an_overdue_tick_of_the_runtime_counts_as_late_even_before_it_runs() {
        let begin = Instant::now();
        let lateness = Lateness::new(begin);
        assert_eq!(lateness.now(begin + 500 * MS), Duration::ZERO);
        lateness.expect(begin + 20 * MS);
        assert_eq!(lateness.now(begin + 20 * MS), Duration::ZERO);
        assert_eq!(lateness.now(begin + 90 * MS), 70 * MS);
        lateness.record(70 * MS, begin + 90 * MS);
        lateness.expect(begin + 110 * MS);
        assert_eq!(lateness.now(begin + 110 * MS), 70 * MS);
        assert_eq!(lateness.now(begin + 200 * MS), 90 * MS);
        lateness.record(Duration::ZERO, begin + 200 * MS);
        assert_eq!(lateness.now(begin + 200 * MS), Duration::ZERO);
    }

    /// In an idle time, ticks are rare. So a tick that came more than 40 ms ago does not show the
    /// current lateness.
    #[test]
    fn the_lateness_of_a_tick_is_reported_for_at_most_40_ms_while_the_proxy_is_idle() {
        let begin = Instant::now();
        let lateness = Lateness::new(begin);
        lateness.record(70 * MS, begin);
        lateness.expect(begin + 500 * MS);
        assert_eq!(lateness.now(begin + 40 * MS), 70 * MS);
        assert_eq!(lateness.now(begin + 41 * MS), Duration::ZERO);
    }

    #[test]
    fn a_runtime_is_late_if_its_periodic_task_does_not_run_soon_after_a_client_arrives() {
        let begin = Instant::now();
        let lateness = Lateness::new(begin);
        lateness.expect(begin + 500 * MS);
        lateness.expect_soon(begin + 100 * MS);
        lateness.expect_soon(begin + 110 * MS);
        assert_eq!(lateness.now(begin + 120 * MS), Duration::ZERO);
        assert_eq!(lateness.now(begin + 200 * MS), 80 * MS);
        assert_eq!(lateness.expect(begin + 220 * MS), begin + 120 * MS);
    }
}
