//! Checks that the tokio runtimes of the data plane and the control plane run their tasks.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use seawall_locks::Mutex;
use tokio::{runtime::Handle, time::Instant};

/// Spawns small tasks on both runtimes (data plane and control plane), and checks if these tasks
/// have run. A runtime that does not run such a task makes no progress.
#[derive(Debug)]
pub(crate) struct ProgressCheck {
    runtimes: [CheckTasks; 2],
}

/// Counts the tasks that were spawned on one runtime for checks, and those that have run. At most
/// one task has not run yet.
#[derive(Debug)]
struct CheckTasks {
    runtime: Handle,
    requested: u64,
    run: Arc<AtomicU64>,
}

impl ProgressCheck {
    /// Creates a check of the runtimes of the data plane and the control plane.
    pub(crate) fn of(data: Handle, control: Handle) -> Self {
        let tasks = |runtime| CheckTasks {
            runtime,
            requested: 0,
            run: Arc::default(),
        };
        Self {
            runtimes: [tasks(data), tasks(control)],
        }
    }

    /// Spawns a new task on each runtime that has run its previous task. Returns true if both
    /// runtimes have run the tasks that earlier calls spawned.
    pub(crate) fn check(&mut self) -> bool {
        let mut has_progressed = true;
        for tasks in &mut self.runtimes {
            let has_run = tasks.run.load(Ordering::Relaxed) == tasks.requested;
            has_progressed &= has_run;
            if has_run {
                tasks.requested += 1;
                let run = Arc::clone(&tasks.run);
                drop(tasks.runtime.spawn(async move {
                    run.fetch_add(1, Ordering::Relaxed);
                }));
            }
        }
        has_progressed
    }
}

/// The health check of the process: checks that both runtimes make progress.
#[derive(Debug)]
pub struct Liveness {
    check: Mutex<ProgressCheck>,
    /// The time of the last check that found progress of both runtimes.
    progressed_at: Mutex<Instant>,
}

impl Liveness {
    /// Time without progress after which a health check fails. A storm of clients delays tasks for
    /// less time.
    const LIMIT: Duration = Duration::from_secs(10);

    /// Creates the health check of the runtimes of the data plane and the control plane.
    pub fn of(data: Handle, control: Handle) -> Self {
        Self {
            check: Mutex::new(ProgressCheck::of(data, control)),
            progressed_at: Mutex::new(Instant::now()),
        }
    }

    /// Checks both runtimes. Returns false if no check in the last [`Self::LIMIT`] has found
    /// progress of both runtimes.
    pub(crate) fn check(&self, now: Instant) -> bool {
        let mut progressed_at = self.progressed_at.lock();
        if self.check.lock().check() {
            *progressed_at = now;
        }
        now.saturating_duration_since(*progressed_at) < Self::LIMIT
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime() -> Runtime {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).build().unwrap()
    }

    /// Blocks the only thread of a runtime until the returned sender is dropped.
    fn block(runtime: &Runtime) -> mpsc::Sender<()> {
        let (release, released) = mpsc::channel();
        let (blocking, is_blocked) = mpsc::channel();
        runtime.spawn(async move {
            blocking.send(()).unwrap();
            released.recv().ok();
        });
        is_blocked.recv().unwrap();
        release
    }

    #[test]
    fn a_check_finds_no_progress_while_a_runtime_is_blocked() {
        let (data, control) = (runtime(), runtime());
        let release = block(&data);
        let mut progress = ProgressCheck::of(data.handle().clone(), control.handle().clone());
        assert!(progress.check());
        for _ in 0..100 {
            assert!(!progress.check());
        }
        drop(release);
        while !progress.check() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_is_not_alive_after_ten_seconds_without_progress_until_it_makes_progress() {
        let (data, control) = (runtime(), runtime());
        let release = block(&data);
        let liveness = Liveness::of(data.handle().clone(), control.handle().clone());
        let began = Instant::now();
        let checks = [0, 5, 9, 10, 20];
        let alive = checks.map(|at| liveness.check(began + Duration::from_secs(at)));
        assert_eq!(alive, [true, true, true, false, false]);
        drop(release);
        while !liveness.check(began + Duration::from_secs(30)) {
            std::thread::yield_now();
        }
    }
}
