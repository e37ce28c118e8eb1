//! Runs heavy work so that the other clients of the same thread do not wait for it. Heavy work is
//! the compression and decompression of large messages, passes over all bytes of a large message,
//! and TLS handshakes. Handshakes have a lower priority than everything else, because clients that
//! have not logged in may begin thousands of handshakes at the same time.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::{block_in_place, spawn_blocking},
};

use super::{
    low_priority::{HandshakeStep, LowPriority},
    turns::{Turn, Turns},
};
use seawall_transport::Sharer;

/// Compression or decompression of more bytes than this runs on another thread.
const HEAVY_BYTES: usize = 128 * 1024;

/// Before a pass over more bytes than this, the thread gives its other tasks to another thread. A
/// pass over fewer bytes takes at most a few milliseconds, even if each BSON element has only three
/// bytes.
const LONG_WALK_BYTES: usize = 1024 * 1024;

/// Runs heavy work. Work on messages uses at most half as many threads as serve clients, but at
/// least one. Handshakes have threads of their own. Waiting sharers (addresses or users) are served
/// round-robin.
#[derive(Clone, Debug)]
pub(crate) struct HeavyWork {
    messages: Turns,
    handshakes: LowPriority,
}

/// Runs the heavy work of one sharer: an address or a user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heavy<'a> {
    work: &'a HeavyWork,
    sharer: Sharer,
}

impl HeavyWork {
    /// Allows `workers / 2` jobs on messages at a time. Handshakes get the same number of idle
    /// threads, and the same number of fallback threads. The number is at least 1.
    /// `workers` is the number of threads that serve clients.
    pub(crate) fn new(workers: usize) -> Self {
        let count = (workers / 2).max(1);
        Self {
            messages: Turns::new(count),
            handshakes: LowPriority::new(count),
        }
    }

    /// Returns the runner for the heavy work of one sharer: an address or a user.
    pub(crate) fn of(&self, sharer: Sharer) -> Heavy<'_> {
        Heavy { work: self, sharer }
    }
}

impl Heavy<'_> {
    /// Runs `work`, which processes `bytes` bytes. Work on at most 128 KiB runs on this thread.
    /// Larger work waits for the sharer's turn and runs on another thread.
    ///
    /// # Panics
    /// If `work` panics.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        if bytes <= HEAVY_BYTES {
            return work();
        }
        let turn = self.work.messages.take(self.sharer).await;
        Self::run_elsewhere(turn, work).await
    }

    /// Runs `work`: one step of a TLS handshake, or the verification of a certificate. It runs on a
    /// thread of low priority, and computes cryptography for a few milliseconds at most. It must
    /// not use a socket: the thread of low priority would then hold a lock of the runtime, and
    /// other threads would wait for this lock. If this future is dropped, work that has not begun
    /// does not begin.
    ///
    /// # Panics
    /// If `work` panics.
    pub(crate) async fn handshake_step<T: Send + 'static>(
        self,
        step: HandshakeStep,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        self.work.handshakes.run(self.sharer, step, work).await
    }

    async fn run_elsewhere<T: Send + 'static>(
        turn: Turn,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        // The turn moves to the other thread, because the work continues there even if this future
        // is dropped.
        let running = spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        running.await.expect("heavy work does not panic")
    }

    /// True if a pass over this number of bytes may have to wait for a turn in [`Self::walk`]. If
    /// false, the caller may run the pass directly, without a future. This avoids a move of the
    /// result out of the future.
    pub(crate) fn is_long_walk(bytes: usize) -> bool {
        bytes > LONG_WALK_BYTES
    }

    /// Runs `walk`: a pass over `bytes` bytes, which `walk` borrows. A pass over more than 1 MiB
    /// waits for the sharer's turn. Then this thread gives its other tasks to another thread and
    /// runs `walk`.
    pub(crate) async fn walk<T>(self, bytes: usize, walk: impl FnOnce() -> T) -> T {
        if !Self::is_long_walk(bytes) {
            return walk();
        }
        let _turn = self.work.messages.take(self.sharer).await;
        match Handle::current().runtime_flavor() {
            RuntimeFlavor::MultiThread => block_in_place(walk),
            // The runtime has only one thread, so no other thread could run the other tasks of the
            // runtime. Only unit tests have such a runtime.
            _ => walk(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Barrier,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
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

    /// A walk is a pass over all bytes of a message.
    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn another_thread_runs_the_other_tasks_during_a_walk_of_more_than_1_mib() {
        let walks = async {
            let work = HeavyWork::new(1);
            let (ran, other) = mpsc::channel();
            let spawned = tokio::spawn(async move { ran.send(()) });
            let long = work.of(Sharer::Local).walk(LONG_WALK_BYTES + 1, move || {
                other.recv_timeout(Duration::from_secs(10)).is_ok()
            });
            assert!(long.await, "the only worker ran no other task");
            spawned.await.unwrap().unwrap();
            let here = thread::current().id();
            let short = work.of(Sharer::Local);
            let ran_on = short.walk(LONG_WALK_BYTES, || thread::current().id());
            assert_eq!(ran_on.await, here);
        };
        // The walks run on the worker, not on the thread of the test.
        tokio::spawn(walks).await.unwrap();
    }

    #[tokio::test]
    async fn work_on_large_messages_uses_at_most_half_as_many_threads_as_workers() {
        let work = HeavyWork::new(4);
        let [running, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        // Each run waits for a second run, so that two runs overlap.
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
