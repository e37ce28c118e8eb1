//! Runs heavy work so that the other clients of the same thread do not wait for it. Heavy work is
//! the compression and decompression of large messages, passes over all bytes of a large message,
//! and TLS handshakes. Handshakes have a lower priority than everything else, because clients that
//! have not logged in may begin thousands of handshakes at the same time.

use std::{
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::Notify,
    task::{block_in_place, spawn_blocking, yield_now},
};

use super::{
    low_priority::{LowPriority, StepTurns},
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

/// Lets one handshake wait for turns, together with the other handshakes of its sharer: an address
/// or a user.
#[derive(Debug)]
pub(crate) struct HandshakeLine {
    turns: StepTurns,
    sharer: Sharer,
}

impl HandshakeLine {
    /// Creates the line of one handshake of this sharer. The handshake waits for one of `turns`:
    /// the permits to use CPU time.
    pub(crate) fn new(turns: StepTurns, sharer: Sharer) -> Self {
        Self { turns, sharer }
    }

    /// Runs `task`. Each poll waits for a turn, because it may compute cryptography for up to some
    /// milliseconds. Waiting sharers are served round-robin. A sharer's newest waiting handshake is
    /// usually served first, because clients that have waited for long often give up and retry.
    pub(crate) async fn run<F: Future>(&self, task: F) -> F::Output {
        let mut task = pin!(task);
        let wakeup = Arc::new(Wakeup::default());
        let waker = Waker::from(Arc::clone(&wakeup));
        let mut turns = &self.turns.first;
        loop {
            let turn = turns.take(self.sharer).await;
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            // There is a turn for each thread. Without the yield, the next handshake on this thread
            // would get this turn, even if another handshake should come first. During the yield,
            // all handshakes that are ready begin to wait, so the turn passes to the first one in
            // the queue.
            yield_now().await;
            drop(turn);
            match polled {
                Poll::Ready(done) => return done,
                Poll::Pending => wakeup.0.notified().await,
            }
            turns = &self.turns.later;
        }
    }
}

/// Wakes a task that waits for an event. If the task is woken before it waits, remembers this.
#[derive(Debug, Default)]
struct Wakeup(Notify);

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl HeavyWork {
    /// Allows `workers / 2` jobs on messages at a time. Handshakes get the same number of
    /// low-priority threads, and the same number of fallback threads. The number is at least 1.
    /// `workers` is the number of threads that serve clients.
    pub(super) fn new(workers: usize) -> Self {
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

    /// Runs a TLS handshake on threads of low priority. `begin` gets the line in which the
    /// handshake waits for a turn before each step. If this future is dropped, the handshake ends.
    ///
    /// # Panics
    /// If the handshake panics.
    pub(crate) async fn handshake<F>(
        self,
        begin: impl FnOnce(HandshakeLine) -> F + Send + 'static,
    ) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let sharer = self.sharer;
        let handshake = self
            .work
            .handshakes
            .run(move |turns| begin(HandshakeLine::new(turns, sharer)));
        handshake.await
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
    /// false, the caller may run the pass directly. Then the result of the pass is not moved
    /// through a future.
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
            Barrier,
            atomic::{AtomicUsize, Ordering},
            mpsc,
        },
        thread,
        time::Duration,
    };

    use futures_util::future::join_all;
    use seawall_locks::Mutex;

    use super::*;

    #[tokio::test]
    async fn ready_handshakes_of_one_address_do_not_delay_a_handshake_of_another_address() {
        let (turns, order) = (StepTurns::new(1), Arc::new(Mutex::new(Vec::new())));
        let crowd = [1; 20].into_iter().chain([2]);
        let handshakes: Vec<_> = crowd
            .map(|address| {
                let sharer = Sharer::at(Some([192, 0, 2, address].into()));
                let line = HandshakeLine::new(turns.clone(), sharer);
                let order = Arc::clone(&order);
                tokio::spawn(async move { line.run(async { order.lock().push(address) }).await })
            })
            .collect();
        for handshake in join_all(handshakes).await {
            handshake.unwrap();
        }
        let place = order.lock().iter().position(|address| *address == 2);
        assert!(place.is_some_and(|place| place <= 2), "{order:?}");
    }

    #[tokio::test]
    async fn handshakes_that_begin_do_not_delay_a_handshake_that_has_begun() {
        let turns = StepTurns::new(1);
        let line = HandshakeLine::new(turns.clone(), Sharer::Local);
        let (begun, next) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let steps = {
            let (begun, next) = (Arc::clone(&begun), Arc::clone(&next));
            async move {
                begun.notify_one();
                next.notified().await;
            }
        };
        let handshake = tokio::spawn(async move { line.run(steps).await });
        begun.notified().await;
        let _other = turns.first.take(Sharer::Local).await;
        next.notify_one();
        handshake.await.unwrap();
    }

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
