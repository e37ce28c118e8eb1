//! Changes the state of a pool (paused, ready, suspect or closed) and carries out the consequences.
//! Also lets tasks wait until the pool is paused, or is no longer paused.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::{Inner, ServerPool, Suspicion};
use seawall_auth::Identity;
use seawall_locks::MutexGuard;
use seawall_transport::connection::{Connection, Generation};

impl ServerPool {
    /// Clears the pool after a failure in `generation`. All connections become stale. Waiting
    /// operations fail, so that they select a server again. Connections that are being established
    /// are given up, and no connection is established until the pool is ready again. Returns true
    /// if the pool was cleared. Ignores a failure of an earlier generation.
    pub fn clear(&self, generation: Generation) -> bool {
        let mut inner = self.inner.lock();
        let todo = inner.clear(generation, Instant::now());
        self.note_state(inner);
        let is_cleared = todo.is_some();
        if is_cleared {
            self.metrics.count_pool_clear();
            self.give_up_establishing();
        }
        self.perform(todo.unwrap_or_default());
        is_cleared
    }

    /// Records that the server is available: a paused pool becomes ready.
    pub fn ready(&self) {
        let mut inner = self.inner.lock();
        inner.ready();
        self.note_state(inner);
    }

    /// Records that a connection of `generation` ended during an operation of `identity`. If the
    /// result is [`Suspicion::Failed`], the caller must call [`ServerPool::clear`]. If it is
    /// [`Suspicion::Probe`], the caller must send a probe, and then call [`ServerPool::recover`] or
    /// [`ServerPool::clear`]. Until then, the pool hands out no connection. But a ready pool that
    /// last became suspect less than 100 ms ago stays ready.
    pub(crate) fn suspect(&self, generation: Generation, identity: &Identity) -> Suspicion {
        let has_ended = |connection: &mut Connection| connection.stream.has_ended();
        let mut inner = self.inner.lock();
        inner.suspect(generation, identity.id(), Instant::now(), has_ended)
    }

    /// Records that the server replied to a probe that was sent at `asked_at`. A paused pool
    /// becomes ready. A suspect pool becomes ready too, unless it became suspect after `asked_at`.
    pub(crate) fn recover(&self, asked_at: Instant) {
        let mut inner = self.inner.lock();
        let todo = inner.recover(asked_at, Instant::now());
        self.note_state(inner);
        self.perform(todo);
    }

    /// Returns how long the server has been suspected of a failure; `None` if it is not suspected.
    pub(crate) fn suspected_for(&self, now: Instant) -> Option<Duration> {
        self.inner.lock().suspected_for(now)
    }

    /// Discards what was learned about the server's concurrency limit, because the server has
    /// changed its type, for example from secondary to primary.
    pub(crate) fn reset_limit(&self) {
        let todo = self.inner.lock().reset_limit(Instant::now());
        self.perform(todo);
    }

    /// Closes the pool. Available connections are closed now. Connections in use are closed when
    /// they are checked in.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        let todo = inner.close(Instant::now());
        self.is_closed.store(true, Ordering::Relaxed);
        self.note_state(inner);
        self.give_up_establishing();
        self.perform(todo);
        self.end_queue.close();
    }

    /// Publishes whether the pool is paused. Holds the pool's lock until then. So if several
    /// threads change the state, the last state is also published last.
    fn note_state(&self, inner: MutexGuard<'_, Inner>) {
        let is_paused = inner.is_paused();
        (self.paused).send_if_modified(|paused| std::mem::replace(paused, is_paused) != is_paused);
    }

    /// Waits until the pool is not paused. Returns at once if the pool is closed. Cancel safe.
    pub(crate) async fn until_open(&self) {
        // The wait cannot fail, because the sender exists as long as the pool. So the result is
        // ignored.
        drop(
            self.paused
                .subscribe()
                .wait_for(|is_paused| !is_paused)
                .await,
        );
    }

    /// Waits until the pool is paused. Cancel safe.
    pub(crate) async fn until_paused(&self) {
        drop(
            self.paused
                .subscribe()
                .wait_for(|is_paused| *is_paused)
                .await,
        );
    }

    /// True if the pool is paused.
    pub(crate) fn is_paused(&self) -> bool {
        *self.paused.borrow()
    }
}
