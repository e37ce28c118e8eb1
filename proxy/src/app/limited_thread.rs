//! Runs work that may hang, such as opening a file on a network file system, on a separate thread.

use std::time::Duration;

use tokio::{
    sync::oneshot,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};

/// Time limit for the work, including the wait for earlier work.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs work that may hang. At most one thread runs such work at a time, so at most one thread can
/// hang.
#[derive(Debug, Default)]
pub(crate) struct LimitedThread {
    /// The latest work, which may still run; `None` before the first work.
    running: Option<JoinHandle<()>>,
}

/// The reason why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoResult {
    /// The work, or earlier work for which it had to wait, did not end in time.
    #[error("a file could not be opened or read within {} s", LIMIT.as_secs())]
    Late,
    /// The work panicked.
    #[error("reading a file failed unexpectedly")]
    Panicked,
}

impl LimitedThread {
    /// True while earlier work has not ended.
    pub(crate) fn is_hanging(&self) -> bool {
        (self.running.as_ref()).is_some_and(|running| !running.is_finished())
    }

    /// Runs `work` and returns its result. If earlier work still runs, waits for its end first. The
    /// whole call takes at most 10 s. After that, the work may still run, but its result is
    /// dropped.
    ///
    /// # Errors
    /// See [`NoResult`].
    pub(crate) async fn run<T, F>(&mut self, work: F) -> Result<T, NoResult>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        self.run_within(LIMIT, work).await
    }

    async fn run_within<T, F>(&mut self, limit: Duration, work: F) -> Result<T, NoResult>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let done = timeout(limit, async {
            if let Some(earlier) = &mut self.running {
                // Ignore a panic of the earlier work, because it does not affect this work.
                drop(earlier.await);
            }
            let (result, done) = oneshot::channel();
            self.running = Some(spawn_blocking(move || drop(result.send(work()))));
            done.await
        });
        done.await
            .map_err(|_| NoResult::Late)?
            .map_err(|_| NoResult::Panicked)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn hanging_work_is_reported_as_late_and_later_work_does_not_start_a_second_thread() {
        let mut thread = LimitedThread::default();
        let (release, released) = mpsc::channel::<()>();
        let hanging = thread.run_within(Duration::ZERO, move || released.recv().is_err());
        assert_eq!(hanging.await, Err(NoResult::Late));
        assert!(thread.is_hanging());
        let (ran, runs) = mpsc::channel();
        let next = thread.run_within(Duration::ZERO, move || ran.send(()).is_ok());
        assert_eq!(next.await, Err(NoResult::Late));
        assert!(runs.try_recv().is_err(), "a second thread was started");
        drop(release);
        assert_eq!(thread.run(|| 7).await, Ok(7));
        let panicked = thread.run(|| panic!("for the test"));
        assert_eq!(panicked.await, Err::<(), _>(NoResult::Panicked));
    }
}
