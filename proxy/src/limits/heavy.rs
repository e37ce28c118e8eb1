//! Heavy work: compressing and decompressing large messages. It would keep a thread from serving
//! clients, so it runs on other threads.

use tokio::task::spawn_blocking;

use super::turns::Turns;
use crate::wire::Sharer;

/// Work on more bytes than this runs on another thread.
const HEAVY_BYTES: usize = 128 * 1024;

/// Runs heavy work on other threads than those that serve clients, on at most half of the cores.
/// Waiting sharers are served in turn.
#[derive(Clone, Debug)]
pub struct HeavyWork(Turns);

/// Heavy work for one sharer.
#[derive(Clone, Copy, Debug)]
pub struct Heavy<'a> {
    work: &'a HeavyWork,
    sharer: Sharer,
}

impl HeavyWork {
    /// For a process with this many threads that serve clients.
    pub(super) fn new(workers: usize) -> Self {
        Self(Turns::new((workers / 2).max(1)))
    }

    /// The heavy work of one sharer.
    pub fn of(&self, sharer: Sharer) -> Heavy<'_> {
        Heavy { work: self, sharer }
    }
}

impl Heavy<'_> {
    /// Runs `work`, which processes `bytes` bytes: on this thread if they are at most 128 KiB, else
    /// on another thread when it is the sharer's turn.
    ///
    /// # Panics
    /// If `work` panics.
    pub async fn run<T: Send + 'static>(
        self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if bytes <= HEAVY_BYTES {
            return work();
        }
        let turn = self.work.0.take(self.sharer).await;
        // The thread holds the turn, because the work continues if this future is dropped.
        let running = spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        running.await.expect("heavy work does not panic")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Barrier,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use futures_util::future::join_all;

    use super::*;

    #[tokio::test]
    async fn work_on_more_than_128_kib_runs_on_another_thread() {
        let here = thread::current().id();
        let work = HeavyWork::new(1);
        for (bytes, is_here) in [(131_072, true), (131_073, false)] {
            let ran_on = work.of(Sharer::Local).run(bytes, || thread::current().id());
            assert_eq!(ran_on.await == here, is_here, "{bytes}");
        }
    }

    #[tokio::test]
    async fn heavy_work_runs_on_half_of_the_cores() {
        let work = HeavyWork::new(4);
        let [running, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        // Each run waits for another one, so that two overlap.
        let overlap = Arc::new(Barrier::new(2));
        let runs = (0..50).map(|n| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            let overlap = Arc::clone(&overlap);
            work.of(Sharer::Local).run(HEAVY_BYTES + 1, move || {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now, Ordering::SeqCst);
                overlap.wait();
                running.fetch_sub(1, Ordering::SeqCst);
                n
            })
        });
        assert_eq!(join_all(runs).await, (0..50).collect::<Vec<_>>());
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }
}
