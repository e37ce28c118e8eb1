//! The lateness of a runtime: the time from when a task is due until it runs.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// Time between two measurements, called beats.
const BEAT: Duration = Duration::from_millis(20);

/// Written by a task of the measured runtime; read by other tasks.
#[derive(Debug)]
pub struct Lateness {
    base: Instant,
    /// When the next beat is due, in microseconds since `base`, and how late the last one was, in
    /// microseconds.
    due_us: AtomicU64,
    last_us: AtomicU64,
}

impl Lateness {
    /// Begins at `now`. The first beat is due 20 ms later.
    pub fn new(now: Instant) -> Self {
        Self {
            base: now,
            due_us: AtomicU64::new(microseconds(BEAT)),
            last_us: AtomicU64::new(0),
        }
    }

    /// Records a beat that was `late`. Returns when the next one is due.
    fn beat(&self, late: Duration, now: Instant) -> Instant {
        let next = now + BEAT;
        self.last_us.store(microseconds(late), Ordering::Relaxed);
        self.due_us
            .store(microseconds(next - self.base), Ordering::Relaxed);
        next
    }

    /// The lateness of the last beat, or that of the next one if it is larger already.
    pub fn now(&self, now: Instant) -> Duration {
        let due = self.base + Duration::from_micros(self.due_us.load(Ordering::Relaxed));
        let last = Duration::from_micros(self.last_us.load(Ordering::Relaxed));
        last.max(now.saturating_duration_since(due))
    }
}

/// Measures how late the runtime of this task wakes its tasks. Passes each measurement to `record`.
/// Never returns.
pub async fn measure_lateness(lateness: &Lateness, record: impl Fn(Duration)) {
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
    async fn missing_beat_counts_as_late() {
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
