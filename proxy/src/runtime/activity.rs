//! Periodic work that becomes rare while the proxy is idle, so that the process then uses almost no
//! CPU time.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

/// Time between two ticks while clients arrive or operations run.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// Time between two ticks while the proxy is idle.
const IDLE_TICK: Duration = Duration::from_millis(500);

/// The proxy is idle when no client has arrived and no operation has run for this time.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Counts the arrivals of clients. After an idle time, the first arrival makes periodic tasks run
/// frequently again.
#[derive(Debug, Default)]
pub struct Activity {
    arrivals: AtomicU64,
    arrived: Notify,
}

/// The ticks of one periodic task.
#[derive(Debug)]
pub(crate) struct Ticks<'a> {
    activity: &'a Activity,
    arrivals: u64,
    active_at: Instant,
    last: Instant,
}

/// One tick of a periodic task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tick {
    /// Time between the previous tick and this tick.
    pub(crate) elapsed: Duration,
    /// Time between the moment when this tick was due and the moment when the task was woken.
    pub(crate) late: Duration,
    /// The moment when the task was woken.
    pub(crate) now: Instant,
}

impl Activity {
    /// Records the arrival of a client.
    pub(crate) fn record_arrival(&self) {
        self.arrivals.fetch_add(1, Ordering::Relaxed);
        self.arrived.notify_waiters();
    }

    /// Starts the ticks of a periodic task. The first tick is due after [`TICK`].
    pub(crate) fn ticks(&self) -> Ticks<'_> {
        let now = Instant::now();
        Ticks {
            activity: self,
            arrivals: self.arrivals.load(Ordering::Relaxed),
            active_at: now,
            last: now,
        }
    }
}

impl Ticks<'_> {
    /// Waits for the next tick. `is_active` is true if the task has work, for example because
    /// operations run. `plan` may move the tick to an earlier time: it gets the time at which the
    /// tick is due, and returns the same or an earlier time. If a client arrives while the proxy is
    /// idle, the tick must come at most [`TICK`] after the arrival. So `next` calls `plan` a second
    /// time, with the time of the arrival plus [`TICK`]. The tick then comes at the earlier of the
    /// two times that the two calls of `plan` returned.
    pub(crate) async fn next(
        &mut self,
        is_active: bool,
        plan: impl Fn(Instant) -> Instant,
    ) -> Tick {
        let began = Instant::now();
        let arrived = self.activity.arrived.notified();
        let arrivals = self.activity.arrivals.load(Ordering::Relaxed);
        if is_active || arrivals != self.arrivals {
            self.active_at = began;
        }
        self.arrivals = arrivals;
        let mut due;
        if began - self.active_at >= IDLE_AFTER {
            due = plan(began + IDLE_TICK);
            if timeout_at(due, arrived).await.is_ok() {
                due = plan(Instant::now() + TICK).min(due);
            }
        } else {
            due = plan(began + TICK);
        }
        sleep_until(due).await;
        let now = Instant::now();
        let elapsed = now - std::mem::replace(&mut self.last, now);
        let late = now - due;
        Tick { elapsed, late, now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn periodic_tasks_run_rarely_while_the_proxy_is_idle() {
        let activity = Activity::default();
        let mut ticks = activity.ticks();
        let begin = Instant::now();
        while ticks.next(false, |due| due).await.elapsed == TICK {}
        assert_eq!(begin.elapsed(), IDLE_AFTER + IDLE_TICK);
        assert_eq!(ticks.next(false, |due| due).await.elapsed, IDLE_TICK);
        assert_eq!(ticks.next(true, |due| due).await.elapsed, TICK);
    }

    #[tokio::test(start_paused = true)]
    async fn periodic_tasks_run_often_again_as_soon_as_a_client_arrives() {
        let activity = Activity::default();
        let mut ticks = activity.ticks();
        while ticks.next(false, |due| due).await.elapsed == TICK {}
        let arrive = async {
            tokio::time::advance(TICK).await;
            activity.record_arrival();
        };
        let (tick, ()) = tokio::join!(ticks.next(false, |due| due), arrive);
        assert_eq!((tick.elapsed, tick.late), (2 * TICK, Duration::ZERO));
        assert_eq!(ticks.next(false, |due| due).await.elapsed, TICK);
    }
}
