//! How late the data plane is: the time from when a task wants to run to when it does.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// How often the data plane is asked.
pub const BEAT: Duration = Duration::from_millis(20);

/// Told by a task of the data plane, read by others.
#[derive(Debug)]
pub struct Lateness {
    base: Instant,
    /// When the next beat is due, and how late the last one was, in microseconds.
    due_us: AtomicU64,
    last_us: AtomicU64,
}

impl Lateness {
    /// Begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            base: now,
            due_us: AtomicU64::new(microseconds(BEAT)),
            last_us: AtomicU64::new(0),
        }
    }

    /// A beat: returns when the next one is due.
    pub fn beat(&self, late: Duration, now: Instant) -> Instant {
        let next = now + BEAT;
        self.last_us.store(microseconds(late), Ordering::Relaxed);
        self.due_us
            .store(microseconds(next - self.base), Ordering::Relaxed);
        next
    }

    /// How late the last beat was, or the next one is already.
    pub fn now(&self, now: Instant) -> Duration {
        let due = self.base + Duration::from_micros(self.due_us.load(Ordering::Relaxed));
        let last = Duration::from_micros(self.last_us.load(Ordering::Relaxed));
        last.max(now.saturating_duration_since(due))
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_beat_that_does_not_come_is_late_too() {
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
