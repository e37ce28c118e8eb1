//! Threads of low priority, for work that must not take CPU time from operations.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, task::spawn_blocking};

/// The niceness of the threads. While operations use all cores, the threads together get about a
/// tenth of the CPU time of one thread that serves clients. While cores are free, they get all the
/// CPU time that they need.
const NICE: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// Some threads of low priority. They start with the first work and end when the last clone is
/// dropped.
#[derive(Clone)]
pub(super) struct LowPriority {
    count: usize,
    jobs: Arc<OnceLock<SyncSender<Job>>>,
}

impl fmt::Debug for LowPriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LowPriority")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

impl LowPriority {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            jobs: Arc::default(),
        }
    }

    /// Runs `work` on one of the threads. The queue of the threads is bounded. While it is full,
    /// work runs on a thread of the runtime instead, with that thread's priority.
    ///
    /// # Panics
    /// If `work` panics.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, result) = oneshot::channel::<Result<T, Box<dyn Any + Send>>>();
        let job: Job = Box::new(move || {
            // If the caller no longer waits, the result is dropped.
            drop(sender.send(catch_unwind(AssertUnwindSafe(work))));
        });
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) =
            self.jobs().try_send(job)
        {
            drop(spawn_blocking(job));
        }
        match result.await.expect("each job sends its result") {
            Ok(done) => done,
            Err(panic) => resume_unwind(panic),
        }
    }

    fn jobs(&self) -> &SyncSender<Job> {
        self.jobs.get_or_init(|| {
            let (sender, receiver) = sync_channel(self.count);
            let receiver = Arc::new(Mutex::new(receiver));
            for _ in 0..self.count {
                let receiver = Arc::clone(&receiver);
                let thread = thread::Builder::new().name("handshakes".to_owned());
                // If no thread can be started, the work runs on threads of the runtime.
                drop(thread.spawn(move || run_jobs(&receiver)));
            }
            sender
        })
    }
}

fn run_jobs(jobs: &Mutex<Receiver<Job>>) {
    lower_priority();
    loop {
        // The lock is released before the job runs.
        let job = jobs.lock().recv();
        let Ok(job) = job else { return };
        job();
    }
}

/// Lowers the priority of this thread.
#[cfg(target_os = "linux")]
fn lower_priority() {
    // On Linux, this call changes only the priority of this thread. It fails if the process already
    // has a lower priority.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "could not lower the priority of a thread");
    }
}

/// Does nothing: on other systems, niceness belongs to the whole process.
#[cfg(not(target_os = "linux"))]
fn lower_priority() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use futures_util::FutureExt as _;
    use rustix::process::getpriority_process;

    use super::*;

    #[tokio::test]
    async fn work_runs_with_low_priority_and_other_threads_keep_their_priority() {
        let threads = LowPriority::new(2);
        let before = getpriority_process(None).unwrap();
        let low = threads.run(|| getpriority_process(None).unwrap()).await;
        assert_eq!(low, before.max(NICE));
        assert_eq!(getpriority_process(None).unwrap(), before);
    }

    #[tokio::test]
    async fn a_panic_in_low_priority_work_reaches_the_caller_and_the_threads_continue() {
        let threads = LowPriority::new(1);
        for _ in 0..3 {
            let failing = threads.run(|| panic!("as the test intends"));
            assert!(AssertUnwindSafe(failing).catch_unwind().await.is_err());
        }
        assert_eq!(threads.run(|| 7).await, 7);
    }

    #[tokio::test]
    async fn work_runs_on_a_thread_of_the_runtime_if_the_queue_is_full() {
        let threads = LowPriority::new(1);
        let ((begun, has_begun), (go, wait)) = (oneshot::channel(), sync_channel::<()>(0));
        let blocked = threads.run(move || {
            begun.send(()).unwrap();
            wait.recv().is_ok()
        });
        let others = async {
            has_begun.await.unwrap();
            // The queue has room for one job. This job takes it.
            let waiting = threads.run(|| ());
            let third = async {
                threads.run(|| ()).await;
                go.send(()).unwrap();
            };
            tokio::join!(waiting, third)
        };
        let (was_blocked, _) = tokio::join!(blocked, others);
        assert!(was_blocked);
    }
}
