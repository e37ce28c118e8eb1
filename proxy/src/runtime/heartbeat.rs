//! Checks that the tokio runtimes of the data plane and the control plane run their tasks.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::runtime::Handle;

/// Spawns small tasks on both runtimes (data plane and control plane), and checks if these tasks
/// have run. A runtime that does not run such a task makes no progress.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    runtimes: [Beats; 2],
}

/// Counts the heartbeat tasks that were spawned on one runtime, and those that have run. At most
/// one task has not run yet.
#[derive(Debug)]
struct Beats {
    runtime: Handle,
    requested: u64,
    run: Arc<AtomicU64>,
}

impl Heartbeat {
    /// Creates a heartbeat that watches the runtimes of the data plane and the control plane.
    pub(crate) fn of(data: Handle, control: Handle) -> Self {
        let beats = |runtime| Beats {
            runtime,
            requested: 0,
            run: Arc::default(),
        };
        Self {
            runtimes: [beats(data), beats(control)],
        }
    }

    /// Spawns a new task on each runtime that has run its previous task. Returns true if both
    /// runtimes have run the tasks that earlier calls spawned.
    pub(crate) fn beat(&mut self) -> bool {
        let mut has_progressed = true;
        for beats in &mut self.runtimes {
            let has_run = beats.run.load(Ordering::Relaxed) == beats.requested;
            has_progressed &= has_run;
            if has_run {
                beats.requested += 1;
                let run = Arc::clone(&beats.run);
                drop(beats.runtime.spawn(async move {
                    run.fetch_add(1, Ordering::Relaxed);
                }));
            }
        }
        has_progressed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn the_heartbeat_reports_no_progress_while_a_runtime_is_blocked() {
        let runtime = || {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1).build().unwrap()
        };
        let (data, control) = (runtime(), runtime());
        let (release, released) = mpsc::channel::<()>();
        let (blocking, is_blocked) = mpsc::channel();
        data.spawn(async move {
            blocking.send(()).unwrap();
            released.recv().ok();
        });
        is_blocked.recv().unwrap();
        let mut heartbeat = Heartbeat::of(data.handle().clone(), control.handle().clone());
        assert!(heartbeat.beat());
        for _ in 0..100 {
            assert!(!heartbeat.beat());
        }
        drop(release);
        while !heartbeat.beat() {
            std::thread::yield_now();
        }
    }
}
