//! Measures if idle threads get CPU time. These threads have the policy `SCHED_IDLE`, so they run
//! only while a core has nothing else to do.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// If an idle thread waits for a core at least this long, other threads use all cores. The wait
/// usually takes hundreds of milliseconds in this case, and less than a millisecond while a core is
/// free.
const LONG_WAIT: Duration = Duration::from_millis(20);

/// After a wait that is shorter than [`LONG_WAIT`], Seawall assumes for this time that the idle
/// threads get CPU time.
const PROOF_TIME: Duration = Duration::from_millis(100);

/// Time for which the idle threads get no work after a shortage of CPU time.
const SHORTAGE_TIME: Duration = Duration::from_secs(1);

/// The waits of idle threads for a core. The fields are atomic, because the threads that serve
/// clients read them. If a lock protected the fields, these threads could wait for an idle thread
/// that holds the lock and gets no core. Times are in microseconds since `origin`.
#[derive(Debug)]
pub(super) struct IdleTime {
    origin: Instant,
    proven_until: AtomicU64,
    short_until: AtomicU64,
}

impl IdleTime {
    pub(super) fn new() -> Self {
        Self {
            origin: Instant::now(),
            proven_until: AtomicU64::new(0),
            short_until: AtomicU64::new(0),
        }
    }

    /// True for a second after a shortage of CPU time.
    pub(super) fn is_short(&self) -> bool {
        self.micros(Instant::now()) < self.short_until.load(Ordering::Relaxed)
    }

    /// True if an idle thread has just got a core without a long wait.
    pub(super) fn is_proven(&self) -> bool {
        self.micros(Instant::now()) < self.proven_until.load(Ordering::Relaxed)
    }

    /// Records that an idle thread has a core now, and was ready at the time `ready`.
    pub(super) fn record_wait(&self, ready: Instant) {
        let now = Instant::now();
        if now.duration_since(ready) < LONG_WAIT {
            let until = self.micros(now + PROOF_TIME);
            self.proven_until.store(until, Ordering::Relaxed);
        } else {
            self.record_shortage();
        }
    }

    /// Records that the idle threads get too little CPU time.
    pub(super) fn record_shortage(&self) {
        let until = self.micros(Instant::now() + SHORTAGE_TIME);
        self.short_until.store(until, Ordering::Relaxed);
        self.proven_until.store(0, Ordering::Relaxed);
    }

    fn micros(&self, at: Instant) -> u64 {
        let since = at.duration_since(self.origin).as_micros();
        u64::try_from(since).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn a_short_wait_for_a_core_proves_for_100_ms_that_idle_threads_run() {
        let idle_time = IdleTime::new();
        assert!(!idle_time.is_proven() && !idle_time.is_short());
        let ready = Instant::now();
        advance(LONG_WAIT - MS).await;
        idle_time.record_wait(ready);
        advance(PROOF_TIME - MS).await;
        assert!(idle_time.is_proven());
        advance(MS).await;
        assert!(!idle_time.is_proven() && !idle_time.is_short());
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_long_wait_for_a_core_idle_threads_get_no_work_for_a_second() {
        let idle_time = IdleTime::new();
        idle_time.record_wait(Instant::now());
        let ready = Instant::now();
        advance(LONG_WAIT).await;
        idle_time.record_wait(ready);
        assert!(!idle_time.is_proven());
        advance(SHORTAGE_TIME - MS).await;
        assert!(idle_time.is_short());
        advance(MS).await;
        assert!(!idle_time.is_short());
    }
}
