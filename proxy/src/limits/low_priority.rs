//! Threads of low priority, for TLS handshakes, which must not take CPU time from operations.
//!
//! The threads have the policy `SCHED_IDLE` and are called *idle threads*: they run only while a
//! core has nothing else to do, and any other thread usually interrupts them at once. A thread with
//! only a raised nice value would run until the end of its time slice of some milliseconds. While
//! operations use all cores, idle threads make little or no progress. If they do not progress, new
//! handshakes run on fallback threads, which have only a raised nice value. A long queue alone does
//! not move handshakes to the fallback threads.

use std::{
    fmt,
    future::{pending, poll_fn},
    panic::resume_unwind,
    pin::pin,
    sync::{Arc, OnceLock},
    thread::yield_now,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::turns::Turns;
use crate::runtime::{Plane, become_idle, become_nice};
use seawall_locks::Mutex;

/// If the idle threads make no progress within this time, tasks that have not begun move to the
/// fallback threads.
const PATIENCE: Duration = Duration::from_millis(50);

/// The idle threads make progress if at least this number of tasks take their first turn in
/// [`PATIENCE`]. The first step of a handshake is up to 1 ms of cryptography. So with fewer turns,
/// the threads had less than about a tenth of the CPU time of a core.
const LEAST_TURNS: u64 = 5;

/// Time for which all new tasks run on the fallback threads after a task has moved to them. Without
/// this rule, each task would first wait for [`PATIENCE`].
const BUSY_TIME: Duration = Duration::from_secs(1);

/// Number of tasks that a thread runs between two checks for events of sockets. The number is
/// small, because tasks take long here: a thread must notice that a client has disconnected before
/// it spends time on this client's handshake.
const EVENT_INTERVAL: u32 = 4;

/// Threads of low priority. The threads start with the first task, and end when the last clone of
/// this value is dropped.
#[derive(Clone, Debug)]
pub(super) struct LowPriority(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    idle: Threads,
    nice: Threads,
    /// Until this time, all new tasks run on the fallback threads. `None` if no task has moved to
    /// the fallback threads yet.
    busy_until: Mutex<Option<Instant>>,
}

impl LowPriority {
    /// Prepares threads that run `count` tasks at a time. No thread starts yet.
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Inner {
            idle: Threads::new(count, become_idle),
            nice: Threads::new(count, become_nice),
            busy_until: Mutex::default(),
        }))
    }

    /// Runs the task that `begin` returns. `begin` gets the turns of the threads on which the task
    /// runs: the task may use much CPU time only while it has a turn. If this future is dropped,
    /// the task is cancelled.
    ///
    /// # Panics
    /// If the task panics.
    pub(super) async fn run<F>(
        &self,
        begin: impl FnOnce(StepTurns) -> F + Send + 'static,
    ) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let Inner { idle, nice, .. } = &*self.0;
        if self.is_busy() {
            return joined(nice.spawn(begin(nice.turns.clone()))).await;
        }
        let unstarted = Arc::new(Mutex::new(Some(begin)));
        let (slot, turns) = (Arc::clone(&unstarted), idle.turns.clone());
        let mut running = Box::pin(joined(idle.spawn(async move {
            let begin = slot.lock().take();
            match begin {
                Some(begin) => yielding(begin(turns)).await,
                // The task was moved to the fallback threads, and this future is about to be
                // dropped.
                None => pending().await,
            }
        })));
        let mut taken = idle.turns.first.ever_taken();
        loop {
            if let Ok(done) = timeout(PATIENCE, running.as_mut()).await {
                return done;
            }
            let before = std::mem::replace(&mut taken, idle.turns.first.ever_taken());
            if unstarted.lock().is_none() || taken - before < LEAST_TURNS {
                break;
            }
        }
        let begin = unstarted.lock().take();
        match begin {
            None => running.await,
            Some(begin) => {
                drop(running);
                *self.0.busy_until.lock() = Some(Instant::now() + BUSY_TIME);
                joined(nice.spawn(begin(nice.turns.clone()))).await
            }
        }
    }

    fn is_busy(&self) -> bool {
        let busy_until = *self.0.busy_until.lock();
        busy_until.is_some_and(|until| Instant::now() < until)
    }
}

/// Runs a task, and lets this thread yield after each poll.
///
/// When another thread wakes up, Linux (6.18, for example) does not always interrupt a thread with
/// the policy `SCHED_IDLE` at once. Sometimes the other thread waits for milliseconds, probably
/// until the next tick of the scheduler. After a yield, the other thread runs. So the other thread
/// waits only for one step of a handshake.
async fn yielding<F: Future>(task: F) -> F::Output {
    let mut task = pin!(task);
    poll_fn(|cx| {
        let polled = task.as_mut().poll(cx);
        yield_now();
        polled
    })
    .await
}

/// Waits for the result of a task. If this future is dropped, the task is cancelled.
async fn joined<T>(task: JoinHandle<T>) -> T {
    match AbortOnDropHandle::new(task).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime has ended, because the process is ending. So no result is needed.
            Err(_) => pending().await,
        },
    }
}

/// The turns of tasks that consist of steps. First steps and later steps have separate turns, so
/// tasks that begin do not delay the tasks that have begun.
#[derive(Clone, Debug)]
pub(crate) struct StepTurns {
    pub(crate) first: Turns,
    pub(crate) later: Turns,
}

impl StepTurns {
    /// Allows `count` first steps and `count` later steps at a time.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            first: Turns::newest_first(count),
            later: Turns::newest_first(count),
        }
    }
}

/// A runtime with its own threads, which all have one priority.
struct Threads {
    count: usize,
    turns: StepTurns,
    /// Gives the current thread its priority.
    prepare: fn(),
    /// The runtime of the threads; `None` if the threads could not be started.
    runtime: OnceLock<Option<Plane>>,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl Threads {
    fn new(count: usize, prepare: fn()) -> Self {
        Self {
            count,
            turns: StepTurns::new(count),
            prepare,
            runtime: OnceLock::new(),
        }
    }

    /// Starts a task. If the threads cannot be started, the task runs on the caller's runtime.
    fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        match self.runtime.get_or_init(|| self.start()) {
            Some(runtime) => runtime.spawn(task),
            None => Handle::current().spawn(task),
        }
    }

    fn start(&self) -> Option<Plane> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(self.count)
            .event_interval(EVENT_INTERVAL)
            .thread_name("seawall-tls")
            .on_thread_start(self.prepare)
            .enable_all()
            .build();
        match runtime {
            Ok(runtime) => Some(Plane::new(runtime)),
            Err(error) => {
                tracing::warn!(%error, "could not start the threads of TLS handshakes");
                None
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{panic::AssertUnwindSafe, sync::mpsc::sync_channel};

    use futures_util::FutureExt as _;
    use rustix::process::getpriority_process;
    use seawall_transport::Sharer;
    use thread_priority::{
        NormalThreadSchedulePolicy::{Idle, Other},
        ThreadSchedulePolicy, thread_schedule_policy,
    };
    use tokio::sync::oneshot;

    use super::*;
    use crate::runtime::NICE;

    fn policy() -> ThreadSchedulePolicy {
        thread_schedule_policy().expect("Linux has scheduling policies")
    }

    #[tokio::test]
    async fn low_priority_tasks_run_with_sched_idle_and_other_threads_keep_their_policy() {
        let threads = LowPriority::new(2);
        let low = threads.run(|_| async { policy() }).await;
        assert_eq!(low, ThreadSchedulePolicy::Normal(Idle));
        assert_eq!(policy(), ThreadSchedulePolicy::Normal(Other));
    }

    #[tokio::test]
    async fn low_priority_tasks_run_on_fallback_threads_while_the_idle_threads_are_blocked() {
        let threads = LowPriority::new(1);
        let ((begun, has_begun), (go, wait)) = (oneshot::channel(), sync_channel::<()>(0));
        // The task occupies the only idle thread. The test does not start the task with `run`: if
        // other tests used all cores, `run` would move the task to the fallback thread.
        let blocked = threads.0.idle.spawn(async move {
            begun.send(()).unwrap();
            wait.recv().is_ok()
        });
        let others = async {
            has_begun.await.unwrap();
            let before = getpriority_process(None).unwrap();
            for _ in 0..2 {
                let low = threads.run(|_| async { (policy(), getpriority_process(None).unwrap()) });
                let expected = (ThreadSchedulePolicy::Normal(Other), before.max(NICE));
                assert_eq!(low.await, expected);
                assert!(threads.is_busy());
            }
            go.send(()).unwrap();
        };
        let (was_blocked, ()) = tokio::join!(blocked, others);
        assert!(was_blocked.unwrap());
    }

    /// A task does not move to the threads with a nice value only because it waits for a long time.
    #[tokio::test]
    async fn tasks_stay_on_the_sched_idle_threads_as_long_as_these_threads_make_progress() {
        // These threads have the usual policy, so other tests cannot take all CPU time from them.
        let threads = LowPriority(Arc::new(Inner {
            idle: Threads::new(1, || {}),
            nice: Threads::new(1, || {}),
            busy_until: Mutex::default(),
        }));
        let (begun, has_begun) = oneshot::channel();
        // The task occupies the only idle thread, and takes turns all the time.
        let advancing = threads.run(|turns| async move {
            begun.send(()).unwrap();
            let began = Instant::now();
            while began.elapsed() < 4 * PATIENCE {
                drop(turns.first.take(Sharer::Local).await);
            }
        });
        let waiting = async {
            has_begun.await.unwrap();
            threads.run(|_| async { 7 }).await
        };
        let ((), done) = tokio::join!(advancing, waiting);
        assert_eq!(done, 7);
        assert!(threads.0.nice.runtime.get().is_none());
    }

    #[tokio::test]
    async fn a_panic_in_a_task_reaches_the_caller_and_the_threads_continue() {
        let threads = LowPriority::new(1);
        for _ in 0..3 {
            let failing = threads.run(|_| async { panic!("as the test intends") });
            assert!(AssertUnwindSafe(failing).catch_unwind().await.is_err());
        }
        assert_eq!(threads.run(|_| async { 7 }).await, 7);
    }

    #[tokio::test]
    async fn a_task_is_cancelled_if_its_future_is_dropped() {
        let threads = LowPriority::new(1);
        let (begun, has_begun) = oneshot::channel();
        let (held, dropped) = oneshot::channel::<()>();
        let endless = threads.run(|_| async move {
            begun.send(()).unwrap();
            let _held = held;
            pending::<()>().await;
        });
        tokio::select! {
            () = endless => panic!("the task ended"),
            begun = has_begun => begun.unwrap(),
        }
        // The receiver fails once the task is dropped.
        assert!(dropped.await.is_err());
    }
}
