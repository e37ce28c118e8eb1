//! Threads of low priority, for TLS handshakes, which must not take CPU time from operations.
//!
//! There are two kinds of these threads. *Idle threads* have the policy `SCHED_IDLE`: they run only
//! while a core has nothing else to do, and any other thread usually interrupts them at once.
//! *Fallback threads* have only a raised nice value: they run until the end of a time slice of some
//! milliseconds, but they make progress on busy cores, too.
//!
//! While other threads, of this process or of others, use all cores, an idle thread may wait for
//! many seconds, even in the middle of a step of a handshake. So an idle thread measures how long
//! it waits for a core: after each step, and before a step if no short wait was measured in the
//! last 100 ms. After a long wait, all steps run on the fallback threads for a second. If the idle
//! threads make no progress, the steps that wait for them move to the fallback threads. A long
//! queue alone does not move steps. A step that is interrupted on an idle thread cannot move, so it
//! may be slow.

use std::{
    fmt,
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
    task::{JoinHandle, yield_now},
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{idle_time::IdleTime, turns::Turns};
use crate::runtime::{Plane, become_idle, become_nice};
use seawall_locks::Mutex;
use seawall_transport::Sharer;

/// If the idle threads make no progress within this time, steps that have not begun move to the
/// fallback threads.
const PATIENCE: Duration = Duration::from_millis(50);

/// The idle threads make progress if at least this number of steps begin in [`PATIENCE`]. The first
/// step of a handshake is up to 1 ms of cryptography. So with fewer steps, the threads had less
/// than about a tenth of the CPU time of a core.
const LEAST_STEPS: u64 = 5;

/// Number of times that an idle thread lets other threads run, to measure its wait for a core
/// before a step.
const PROBE_YIELDS: usize = 4;

/// Threads of low priority. The threads start with the first step, and end when the last clone of
/// this value is dropped.
#[derive(Clone, Debug)]
pub(super) struct LowPriority(Arc<ThreadGroups>);

#[derive(Debug)]
struct ThreadGroups {
    idle: Threads,
    fallback: Threads,
    idle_time: Arc<IdleTime>,
}

/// The position of a step in its handshake. First steps and later steps have separate turns, so
/// handshakes that begin do not delay the handshakes that have begun.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandshakeStep {
    First,
    Later,
}

impl LowPriority {
    /// Prepares `count` idle threads and `count` fallback threads. No thread starts yet.
    pub(super) fn new(count: usize) -> Self {
        let idle = Threads::new(count, become_idle);
        Self::with(idle, Threads::new(count, become_nice))
    }

    fn with(idle: Threads, fallback: Threads) -> Self {
        Self(Arc::new(ThreadGroups {
            idle,
            fallback,
            idle_time: Arc::new(IdleTime::new()),
        }))
    }

    /// Runs `work`: one step of a handshake of this sharer. Waiting sharers are served round-robin.
    /// A sharer's newest waiting step is usually served first, because clients that have waited for
    /// long often give up and retry. If this future is dropped, work that has not begun does not
    /// begin.
    ///
    /// # Panics
    /// If `work` panics.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        sharer: Sharer,
        step: HandshakeStep,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let mut work = Arc::new(Unstarted::new(work));
        if !self.0.idle_time.is_short() {
            match self.run_on_idle_thread(sharer, step, work).await {
                Ok(done) => return done,
                Err(moved) => work = Arc::new(Unstarted::new(moved)),
            }
        }
        match self.0.fallback.run(sharer, step, work, AnyTime).await {
            Some(done) => done,
            // The runtime has ended, because the process is ending. So no result is needed.
            None => pending().await,
        }
    }

    /// Runs a step on an idle thread.
    ///
    /// # Errors
    /// The idle threads make no progress, or one of them has measured a shortage of CPU time. The
    /// error is the step's work, which has not begun.
    async fn run_on_idle_thread<T: Send + 'static, W>(
        &self,
        sharer: Sharer,
        step: HandshakeStep,
        work: Arc<Unstarted<W>>,
    ) -> Result<T, W>
    where
        W: FnOnce() -> T + Send + 'static,
    {
        let ThreadGroups {
            idle, idle_time, ..
        } = &*self.0;
        let measured = WhileIdle(Arc::clone(idle_time));
        let mut running = Box::pin(idle.run(sharer, step, Arc::clone(&work), measured));
        let mut begun = idle.begun.load(Ordering::Relaxed);
        let mut was_claimed = false;
        loop {
            match timeout(PATIENCE, running.as_mut()).await {
                Ok(Some(done)) => return Ok(done),
                // An idle thread has measured a shortage of CPU time.
                Ok(None) => break,
                Err(_) => {}
            }
            // A step that was claimed during the last [`PATIENCE`] may be running. A step that was
            // claimed earlier has been interrupted, because a step needs only a few milliseconds.
            let is_interrupted = was_claimed;
            was_claimed = work.is_claimed();
            let before = std::mem::replace(&mut begun, idle.begun.load(Ordering::Relaxed));
            if is_interrupted || (!was_claimed && begun - before < LEAST_STEPS) {
                idle_time.record_shortage();
                break;
            }
        }
        match work.claim() {
            Some(work) => Err(work),
            None => match running.await {
                Some(done) => Ok(done),
                None => pending().await,
            },
        }
    }
}

/// Decides when a thread runs steps.
trait Schedule: Send + 'static {
    /// Runs before a step. False if this thread must not run the step.
    fn allows_step(&self) -> bool;

    /// Runs after a step.
    fn end_step(self);
}

/// The schedule of fallback threads.
struct AnyTime;

impl Schedule for AnyTime {
    fn allows_step(&self) -> bool {
        true
    }

    fn end_step(self) {}
}

/// The schedule of idle threads: they run steps only while they get CPU time.
struct WhileIdle(Arc<IdleTime>);

impl Schedule for WhileIdle {
    fn allows_step(&self) -> bool {
        if !self.0.is_proven() {
            let ready = Instant::now();
            (0..PROBE_YIELDS).for_each(|_| thread::yield_now());
            self.0.record_wait(ready);
        }
        !self.0.is_short()
    }

    /// Lets other threads run.
    ///
    /// When another thread wakes up, Linux (6.18, for example) does not always interrupt an idle
    /// thread at once. Sometimes the other thread waits for milliseconds, probably until the next
    /// tick of the scheduler. After a yield, the other thread runs. So the other thread waits only
    /// for one step of a handshake.
    fn end_step(self) {
        let ready = Instant::now();
        thread::yield_now();
        self.0.record_wait(ready);
    }
}

/// Work that has not begun. The first thread that claims it gets it.
struct Unstarted<W> {
    is_claimed: AtomicBool,
    /// Only the thread that has claimed the work locks this mutex.
    work: Mutex<Option<W>>,
}

impl<W> Unstarted<W> {
    fn new(work: W) -> Self {
        Self {
            is_claimed: AtomicBool::new(false),
            work: Mutex::new(Some(work)),
        }
    }

    /// Returns the work; `None` if it was claimed before.
    fn claim(&self) -> Option<W> {
        match self.is_claimed.swap(true, Ordering::Relaxed) {
            true => None,
            false => self.work.lock().take(),
        }
    }

    fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Relaxed)
    }
}

/// A runtime with its own threads, which all have the same priority.
struct Threads {
    count: usize,
    first: Turns,
    later: Turns,
    /// Number of steps that have begun.
    begun: Arc<AtomicU64>,
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
            first: Turns::newest_first(count),
            later: Turns::newest_first(count),
            begun: Arc::default(),
            prepare,
            runtime: OnceLock::new(),
        }
    }

    /// Runs `work` on one of these threads when it gets a turn. If this future is dropped, work
    /// that has not begun does not begin. Returns `None` if the schedule does not allow the step
    /// now, if another thread has claimed the work, or if the process is ending.
    ///
    /// # Panics
    /// If the work panics.
    async fn run<T: Send + 'static>(
        &self,
        sharer: Sharer,
        step: HandshakeStep,
        work: Arc<Unstarted<impl FnOnce() -> T + Send + 'static>>,
        schedule: impl Schedule,
    ) -> Option<T> {
        let turns = match step {
            HandshakeStep::First => self.first.clone(),
            HandshakeStep::Later => self.later.clone(),
        };
        let begun = Arc::clone(&self.begun);
        let (deliver, delivered) = oneshot::channel();
        let task = self.spawn(async move {
            let turn = turns.take(sharer).await;
            if !schedule.allows_step() {
                return;
            }
            let Some(work) = work.claim() else {
                return;
            };
            begun.fetch_add(1, Ordering::Relaxed);
            // The result is delivered before `end_step`, because there an idle thread may wait for
            // a core. The delivery fails if the client has disconnected.
            drop(deliver.send(catch_unwind(AssertUnwindSafe(work))));
            schedule.end_step();
            // There are as many turns as threads. Without the yield, the next step that runs on
            // this thread would get this turn, even if another step should come first. During the
            // yield, the steps that are ready enter the queue. So the turn passes to the first step
            // of the queue.
            yield_now().await;
            drop(turn);
        });
        let task = AbortOnDropHandle::new(task);
        let done = delivered.await.ok()?;
        // The task must not be aborted: it still has to run `end_step` and to give its turn back.
        drop(task.detach());
        Some(done.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    /// Starts a task. If the threads cannot be started, the task runs on the caller's runtime.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        match self.runtime.get_or_init(|| self.start()) {
            Some(runtime) => runtime.spawn(task),
            None => Handle::current().spawn(task),
        }
    }

    fn start(&self) -> Option<Plane> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(self.count)
            .thread_name("seawall-tls")
            .on_thread_start(self.prepare)
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
    use std::sync::{
        atomic::AtomicUsize,
        mpsc::{Receiver, SyncSender, sync_channel},
    };

    use futures_util::{FutureExt as _, future::join_all};
    use rustix::process::getpriority_process;
    use thread_priority::{
        NormalThreadSchedulePolicy::{Idle, Other},
        ThreadSchedulePolicy, thread_schedule_policy,
    };

    use super::*;
    use crate::runtime::NICE;

    const LOCAL: Sharer = Sharer::Local;
    const LIMIT: Duration = Duration::from_secs(20);

    fn policy() -> ThreadSchedulePolicy {
        thread_schedule_policy().expect("Linux has scheduling policies")
    }

    fn work<T>(work: impl FnOnce() -> T) -> Arc<Unstarted<impl FnOnce() -> T>> {
        Arc::new(Unstarted::new(work))
    }

    /// Returns threads whose idle thread has the usual policy, so that other tests cannot take all
    /// CPU time from it.
    fn with_usual_thread() -> LowPriority {
        LowPriority::with(Threads::new(1, || {}), Threads::new(1, become_nice))
    }

    /// Occupies the only idle thread until the test sends through the returned sender.
    async fn block_idle_thread(threads: &LowPriority) -> SyncSender<()> {
        let (begun, has_begun) = oneshot::channel();
        let (end, ends): (_, Receiver<()>) = sync_channel(0);
        drop(threads.0.idle.spawn(async move {
            begun.send(()).expect("the test waits");
            ends.recv().expect("the test ends the block");
        }));
        has_begun.await.expect("the idle thread runs");
        end
    }

    #[tokio::test]
    async fn idle_threads_have_the_policy_sched_idle_and_fallback_threads_have_a_nice_value() {
        let threads = LowPriority::new(2);
        let ThreadGroups { idle, fallback, .. } = &*threads.0;
        let before = getpriority_process(None).unwrap();
        let low = idle.run(LOCAL, HandshakeStep::First, work(policy), AnyTime);
        assert_eq!(low.await, Some(ThreadSchedulePolicy::Normal(Idle)));
        let both = || (policy(), getpriority_process(None).unwrap());
        let low = fallback.run(LOCAL, HandshakeStep::First, work(both), AnyTime);
        let expected = (ThreadSchedulePolicy::Normal(Other), before.max(NICE));
        assert_eq!(low.await, Some(expected));
        assert_eq!(policy(), ThreadSchedulePolicy::Normal(Other));
    }

    /// A later step of a handshake moves, too, although the first step ran on the idle thread.
    #[tokio::test]
    async fn steps_move_to_the_fallback_threads_while_the_idle_threads_are_blocked() {
        for step in [HandshakeStep::First, HandshakeStep::Later] {
            let threads = with_usual_thread();
            let end = block_idle_thread(&threads).await;
            let nice = || getpriority_process(None).unwrap();
            let before = nice();
            assert_eq!(threads.run(LOCAL, step, nice).await, before.max(NICE));
            assert_eq!(threads.0.fallback.begun.load(Ordering::Relaxed), 1);
            end.send(()).unwrap();
        }
    }

    #[tokio::test]
    async fn steps_run_on_the_fallback_threads_after_a_shortage_of_cpu_time() {
        let threads = with_usual_thread();
        threads.0.idle_time.record_shortage();
        threads.run(LOCAL, HandshakeStep::First, || {}).await;
        assert!(threads.0.idle.runtime.get().is_none());
        assert_eq!(threads.0.fallback.begun.load(Ordering::Relaxed), 1);
    }

    /// The step waits for its turn on the idle thread until the shortage is recorded. If other
    /// tests use all cores, it may have moved to the fallback thread before.
    #[tokio::test]
    async fn an_idle_thread_begins_no_step_during_a_shortage_of_cpu_time() {
        let threads = with_usual_thread();
        let ThreadGroups { idle, fallback, .. } = &*threads.0;
        let turn = idle.first.take(LOCAL).await;
        let running = threads.run(LOCAL, HandshakeStep::First, || {});
        let shortage = async {
            while idle.first.waiting() + fallback.first.taken() == 0 {
                yield_now().await;
            }
            threads.0.idle_time.record_shortage();
            drop(turn);
        };
        timeout(LIMIT, async { tokio::join!(running, shortage) })
            .await
            .unwrap();
        let begun = [idle, fallback].map(|threads| threads.begun.load(Ordering::Relaxed));
        assert_eq!(begun, [0, 1]);
    }

    /// A step does not move to the fallback threads only because it waits for a long time.
    #[tokio::test]
    async fn steps_stay_on_the_idle_threads_as_long_as_these_threads_make_progress() {
        let threads = with_usual_thread();
        let idle = &threads.0.idle;
        let turn = idle.first.take(LOCAL).await;
        let mut turn = Some(turn);
        // Other steps begin all the time, and the idle threads always get a core.
        let advancing = async {
            let began = Instant::now();
            loop {
                idle.begun.fetch_add(1, Ordering::Relaxed);
                threads.0.idle_time.record_wait(Instant::now());
                if began.elapsed() > 4 * PATIENCE {
                    turn = None;
                }
                yield_now().await;
            }
        };
        let waiting = threads.run(LOCAL, HandshakeStep::First, || 7);
        tokio::select! {
            done = waiting => assert_eq!(done, 7),
            () = advancing => {}
        }
        assert!(threads.0.fallback.runtime.get().is_none());
    }

    #[tokio::test]
    async fn waiting_steps_of_one_address_delay_a_step_of_another_address_by_at_most_two_steps() {
        let threads = Arc::new(Threads::new(1, || {}));
        let turn = threads.first.take(LOCAL).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let steps = [1; 20].into_iter().chain([2]).map(|address| {
            let sharer = Sharer::at(Some([192, 0, 2, address].into()));
            let (threads, order) = (Arc::clone(&threads), Arc::clone(&order));
            let work = work(move || order.lock().push(address));
            async move {
                threads
                    .run(sharer, HandshakeStep::First, work, AnyTime)
                    .await
            }
        });
        let begin = async {
            while threads.first.waiting() < 21 {
                yield_now().await;
            }
            drop(turn);
        };
        let all = async { tokio::join!(join_all(steps), begin) };
        timeout(LIMIT, all).await.unwrap();
        let place = order.lock().iter().position(|address| *address == 2);
        assert!(place.is_some_and(|place| place <= 2), "{order:?}");
    }

    /// There is one more thread than there are turns, so only the turns limit the number of steps.
    /// If a step began without a turn, it would not wait in the queue, and the test would fail.
    #[tokio::test]
    async fn at_most_as_many_steps_run_at_the_same_time_as_there_are_turns() {
        const STEPS: usize = 6;
        let threads = Threads {
            count: 3,
            ..Threads::new(2, || {})
        };
        let [begun, running, most] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let (end, ends) = sync_channel::<()>(STEPS);
        let ends = Arc::new(Mutex::new(ends));
        let steps = (0..STEPS).map(|_| {
            let [begun, running, most] = [&begun, &running, &most].map(Arc::clone);
            let ends = Arc::clone(&ends);
            let work = work(move || {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                begun.fetch_add(1, Ordering::SeqCst);
                let ended = ends.lock().recv_timeout(LIMIT);
                running.fetch_sub(1, Ordering::SeqCst);
                ended
            });
            threads.run(LOCAL, HandshakeStep::First, work, AnyTime)
        });
        let end_one_by_one = async {
            for expected in 2..=STEPS {
                while begun.load(Ordering::SeqCst) != expected
                    || threads.first.waiting() != STEPS - expected
                {
                    yield_now().await;
                }
                end.send(()).unwrap();
            }
            end.send(()).unwrap();
        };
        let all = async { tokio::join!(join_all(steps), end_one_by_one) };
        let (done, ()) = timeout(LIMIT, all).await.unwrap();
        assert_eq!(done, [Some(Ok(())); STEPS]);
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn handshakes_that_begin_do_not_delay_a_handshake_that_has_begun() {
        let threads = Threads::new(1, || {});
        let _begins = threads.first.take(LOCAL).await;
        let later = threads.run(LOCAL, HandshakeStep::Later, work(|| 7), AnyTime);
        assert_eq!(timeout(LIMIT, later).await, Ok(Some(7)));
    }

    /// After each step, waits until the test sends. This simulates an idle thread that waits for a
    /// core.
    struct Interrupted(Receiver<()>);

    impl Schedule for Interrupted {
        fn allows_step(&self) -> bool {
            true
        }

        fn end_step(self) {
            self.0.recv_timeout(LIMIT).expect("the result has arrived");
        }
    }

    #[tokio::test]
    async fn the_result_of_a_step_arrives_while_its_thread_waits_for_a_core() {
        let threads = Threads::new(1, || {});
        let (arrived, has_arrived) = sync_channel(0);
        let schedule = Interrupted(has_arrived);
        let done = threads
            .run(LOCAL, HandshakeStep::First, work(|| 7), schedule)
            .await;
        assert_eq!(done, Some(7));
        arrived.send(()).unwrap();
    }

    #[tokio::test]
    async fn a_panic_in_a_step_reaches_the_caller_and_the_threads_continue() {
        let threads = LowPriority::new(1);
        for _ in 0..3 {
            let failing = threads.run(LOCAL, HandshakeStep::First, || {
                panic!("as the test intends")
            });
            assert!(AssertUnwindSafe(failing).catch_unwind().await.is_err());
        }
        assert_eq!(threads.run(LOCAL, HandshakeStep::First, || 7).await, 7);
    }

    #[tokio::test]
    async fn a_step_does_not_begin_if_its_future_is_dropped() {
        let threads = with_usual_thread();
        let end = block_idle_thread(&threads).await;
        let (held, dropped) = oneshot::channel::<()>();
        let mut waiting = Box::pin(threads.run(LOCAL, HandshakeStep::First, move || {
            held.send(()).unwrap();
        }));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        end.send(()).unwrap();
        // The receiver fails if the work was dropped, and succeeds if the work began.
        assert!(dropped.await.is_err());
    }
}
