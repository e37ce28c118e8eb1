//! The lateness of a runtime: the time between the moment when a task is due and its start.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// Time between two measurements. A measurement is called a beat.
const BEAT: Duration = Duration::from_millis(20);

/// The lateness of one runtime. A task of that runtime measures it, and other tasks read it.
#[derive(Debug)]
pub struct Lateness {
    base: Instant,
    /// When the next beat is due, in microseconds since `base`.
    due_us: AtomicU64,
    /// The lateness of the last beat, in microseconds.
    last_us: AtomicU64,
}

impl Lateness {
    /// Creates a lateness whose first beat is due 20 ms after `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            base: now,
            due_us: AtomicU64::new(microseconds(BEAT)),
            last_us: AtomicU64::new(0),
        }
    }

    /// Records a beat and its lateness. Returns when the next beat is due.
    fn beat(&self, late: Duration, now: Instant) -> Instant {
        let next = now + BEAT;
        self.last_us.store(microseconds(late), Ordering::Relaxed);
        self.due_us
            .store(microseconds(next - self.base), Ordering::Relaxed);
        next
    }

    /// The lateness of the last beat. If the next beat is already overdue by more, the lateness of
    /// that next beat so far.
    pub fn now(&self, now: Instant) -> Duration {
        let due = self.base + Duration::from_micros(self.due_us.load(Ordering::Relaxed));
        let last = Duration::from_micros(self.last_us.load(Ordering::Relaxed));
        last.max(now.saturating_duration_since(due))
    }
}

/// Measures the lateness of the runtime on which this future runs, forever. Passes each measurement
/// to `record`.
pub(crate) async fn measure_lateness(lateness: &Lateness, record: impl Fn(Duration)) {
    let mut due = Instant::now() + BEAT;
    loop {
        sleep_until(due).await;
        let late = due.elapsed();
        record(late);
        due = lateness.beat(late, Instant::now());
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn overdue_beat_counts_before_it_arrives() {
        let begin = Instant::now();
        let lateness = Lateness::new(begin);
        let ms = Duration::from_millis;
        assert_eq!(lateness.now(begin + BEAT), Duration::ZERO);
        assert_eq!(lateness.now(begin + BEAT + ms(70)), ms(70));
        let next = lateness.beat(ms(70), begin + BEAT + ms(70));
        assert_eq!(lateness.now(next), ms(70));
        assert_eq!(lateness.now(next + ms(90)), ms(90));
        lateness.beat(Duration::ZERO, next);
        assert_eq!(lateness.now(next), Duration::ZERO);
    }
}
