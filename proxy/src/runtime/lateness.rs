//! The lateness of a runtime: the time between the moment when a task is due and its start.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use super::activity::Activity;

/// The lateness of one runtime. A task of that runtime measures it at each tick, and other tasks
/// read it.
#[derive(Debug)]
pub struct Lateness {
    base: Instant,
    /// When the next tick is due, in microseconds since `base`.
    due_us: AtomicU64,
    /// The lateness of the last tick, in microseconds.
    last_us: AtomicU64,
}

impl Lateness {
    /// Creates a lateness without a measurement.
    pub fn new(now: Instant) -> Self {
        Self {
            base: now,
            due_us: AtomicU64::new(u64::MAX),
            last_us: AtomicU64::new(0),
        }
    }

    /// Records when the next tick is due.
    fn expect(&self, due: Instant) {
        self.due_us
            .store(microseconds(due - self.base), Ordering::Relaxed);
    }

    /// Records the lateness of a tick. The next tick is not due before the next call of `expect`.
    fn record(&self, late: Duration) {
        self.last_us.store(microseconds(late), Ordering::Relaxed);
        self.due_us.store(u64::MAX, Ordering::Relaxed);
    }

    /// The lateness of the last tick. If the next tick is already overdue by more, the lateness of
    /// that next tick so far.
    pub fn now(&self, now: Instant) -> Duration {
        let since = microseconds(now - self.base);
        let overdue = since.saturating_sub(self.due_us.load(Ordering::Relaxed));
        let last = self.last_us.load(Ordering::Relaxed);
        Duration::from_micros(last.max(overdue))
    }
}

/// Measures the lateness of the runtime on which this future runs, forever. Passes each measurement
/// to `record`. `is_active` returns true while operations run.
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
        lateness.record(tick.late);
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overdue_tick_counts_before_it_arrives() {
        let begin = Instant::now();
        let lateness = Lateness::new(begin);
        let ms = Duration::from_millis;
        assert_eq!(lateness.now(begin + ms(500)), Duration::ZERO);
        lateness.expect(begin + ms(20));
        assert_eq!(lateness.now(begin + ms(20)), Duration::ZERO);
        assert_eq!(lateness.now(begin + ms(90)), ms(70));
        lateness.record(ms(70));
        lateness.expect(begin + ms(110));
        assert_eq!(lateness.now(begin + ms(110)), ms(70));
        assert_eq!(lateness.now(begin + ms(200)), ms(90));
        lateness.record(Duration::ZERO);
        assert_eq!(lateness.now(begin + ms(200)), Duration::ZERO);
    }
}
