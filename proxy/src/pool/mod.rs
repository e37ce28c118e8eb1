//! The connections to one server: one pool for each user, all under one bound.
//!
//! Words and rules are those of the connection monitoring and pooling specification (CMAP):
//! pending, available, in use, perished; paused, ready, closed; generations. `Inner` is plain data
//! behind a mutex: it takes `now`, decides what to do and does no I/O. This module does the I/O. A
//! user never gets another user's connection.
//!
//! Source:
//! <https://github.com/mongodb/specifications/blob/master/source/connection-monitoring-and-pooling/connection-monitoring-and-pooling.md>.

mod checkout;
mod ending;
#[cfg(test)]
mod ending_tests;
mod inner;
mod lane;
mod latency;
mod pace;
mod queue;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
pub(crate) mod tests;
mod user;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    num::NonZeroU32,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, futures::Notified, oneshot},
    time::{Instant, sleep_until, timeout_at},
};

use crate::observe::{CloseReason, ServerMetrics};
use seawall_auth::{Identity, IdentityId};
use seawall_transport::{
    Sharer,
    connection::{Connection, Connector, EstablishError, Generation, ServerAddress},
};

pub use self::{
    checkout::Checkout,
    ending::EndRequest,
    inner::{Suspicion, Waits},
    lane::{Lane, LaneKey, LanePlace},
};
use self::{
    ending::EndQueue,
    inner::{Inner, Start, Todo},
    latency::Latency,
    pace::Pace,
    queue::Asker,
    queue::Ticket,
};

/// A pool's limits; the same for every server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections of one user to one server.
    pub max_pool_size: usize,
    /// Connections of one user to one server that are kept open without use.
    pub min_pool_size: usize,
    /// Connections to one server, of all users together.
    pub max_server_connections: usize,
    /// Connections of one user to one server being established at a time.
    pub max_connecting: usize,
    /// Connections to one server that may be begun per second, of all users; `None` for no limit.
    pub connections_per_second: Option<NonZeroU32>,
    /// How long a connection may stay unused.
    pub max_idle_time: Option<Duration>,
    /// How long a connection may live. Each is closed up to a fifth earlier, so that they do not
    /// end together.
    pub max_life_time: Option<Duration>,
    /// How long an operation waits for a connection.
    pub wait_queue_timeout: Duration,
    /// Operations that may wait for one server.
    pub wait_queue_size: usize,
}

/// Why no connection was checked out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckOutError {
    /// The pool waits until its server has recovered.
    #[error("the server's pool is paused")]
    Paused,
    /// The pool is closed: the server left the deployment, or Seawall is shutting down.
    #[error("the server's pool is closed")]
    Closed,
    /// Too many operations wait already.
    #[error("the wait queue is full")]
    QueueFull,
    /// No connection came free in time.
    #[error("no connection came free in time")]
    TimedOut,
    /// No connection could be established.
    #[error("{error}")]
    Establish {
        /// What went wrong.
        error: Arc<EstablishError>,
        /// The generation of the attempt.
        generation: Generation,
        /// The [`Identity::login_version`] of the keys.
        login_version: u64,
    },
}

/// The estimated cost of one more operation at a server, to choose between two servers.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    load: usize,
    latency_seconds: f64,
}

impl Cost {
    /// True if the other server is the better choice. Latencies that differ by a factor of at most
    /// two count as equal, so that chance alone starves no server.
    pub fn exceeds(self, other: Self) -> bool {
        let weight = |cost: Self| {
            cost.latency_seconds * f64::from(u32::try_from(cost.load + 1).unwrap_or(u32::MAX))
        };
        let is_clear = self.latency_seconds > other.latency_seconds * 2.0
            || other.latency_seconds > self.latency_seconds * 2.0;
        match is_clear {
            true => weight(self) > weight(other),
            false => self.is_busier(other),
        }
    }

    /// True if the other server has fewer operations in flight or waiting.
    pub fn is_busier(self, other: Self) -> bool {
        self.load > other.load
    }
}

/// A snapshot of a pool, for display.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// `paused`, `ready`, `suspect` or `closed`.
    pub state: &'static str,
    /// Connections that are being established.
    pub pending: usize,
    /// Connections that are ready for use.
    pub available: usize,
    /// Connections in use.
    pub in_use: usize,
    /// Operations that wait for a connection.
    pub wait_queue: usize,
    /// The same numbers for each user.
    pub users: Vec<UserSnapshot>,
}

/// One user's part of a pool.
#[derive(Clone, Debug)]
pub struct UserSnapshot {
    /// The user's name; empty if clients do not log in.
    pub name: String,
    /// The database that the user is defined in.
    pub source: String,
    /// Connections that are being established.
    pub pending: usize,
    /// Connections that are ready for use.
    pub available: usize,
    /// Connections in use.
    pub in_use: usize,
    /// Operations that wait for a connection.
    pub wait_queue: usize,
}

/// A random number from 0 to 1, different in each process and pool.
fn chance() -> f64 {
    let bits = RandomState::new().hash_one(0_u8) >> 32;
    f64::from(u32::try_from(bits).unwrap_or(0)) / f64::from(u32::MAX)
}

/// All connections to one server.
pub struct ServerPool {
    address: ServerAddress,
    inner: Mutex<Inner>,
    /// The pace of new connections.
    pace: Mutex<Pace>,
    /// Abandoned reads that are to be ended.
    end_queue: EndQueue,
    lane: Lane,
    hung: Notify,
    latency: Latency,
    connector: Connector,
    metrics: ServerMetrics,
    wait_queue_timeout: Duration,
    /// The data plane's runtime, on which connections are established and live.
    runtime: Handle,
    /// For the tasks that establish connections: they must not keep a removed server's pool alive.
    me: Weak<Self>,
}

impl fmt::Debug for ServerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPool")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A place in the wait queue. Its drop leaves the queue, and checks in a connection that was handed
/// over but not taken.
struct Waiting<'a> {
    pool: &'a ServerPool,
    identity: &'a Arc<Identity>,
    ticket: Ticket,
    answer: oneshot::Receiver<Result<Connection, CheckOutError>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pool
            .inner
            .lock()
            .leave(self.identity.id(), self.ticket);
        self.answer.close();
        if let Ok(Ok(connection)) = self.answer.try_recv() {
            self.pool.check_in(self.identity, connection, None);
        }
    }
}

impl ServerPool {
    /// A paused pool. Its connections will live on `runtime`.
    pub fn new(
        address: ServerAddress,
        limits: Limits,
        connector: Connector,
        metrics: ServerMetrics,
        runtime: Handle,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            address,
            wait_queue_timeout: limits.wait_queue_timeout,
            latency: Latency::default(),
            hung: Notify::new(),
            lane: Lane::new(limits.max_pool_size.min(limits.max_server_connections)),
            pace: Mutex::new(Pace::new(limits.connections_per_second, chance())),
            inner: Mutex::new(Inner::new(limits)),
            end_queue: EndQueue::default(),
            connector,
            metrics,
            runtime,
            me: me.clone(),
        })
    }

    /// The server's address.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The lane of awaiting operations, such as `getMore` on a change stream.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Completes when the server is given up as hung: operations would wait for it in vain,
    /// although no connection has ended.
    pub fn given_up(&self) -> Notified<'_> {
        self.hung.notified()
    }

    /// Gives the server up as hung: it does not even reply to probes. Operations that wait for it
    /// fail now, so that they can be retried elsewhere.
    pub fn give_up(&self) {
        self.hung.notify_waiters();
    }

    /// The server's metrics.
    pub fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    /// Checks out a connection authenticated as `identity` for a client at `from`. Waits until
    /// `deadline`, but at most [`Limits::wait_queue_timeout`]. Among one user's waiters, addresses
    /// are served in turn, and each address in order of arrival. When the wait queue is full, a
    /// waiter of the user or address with the most waiters is refused.
    ///
    /// Cancel safe: a waiter that is dropped leaves the queue, and no connection is lost.
    ///
    /// # Errors
    /// See [`CheckOutError`].
    pub async fn check_out(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        from: Sharer,
        deadline: Instant,
    ) -> Result<Checkout, CheckOutError> {
        let asker = Asker::Client(from);
        self.check_out_for(asker, identity, deadline).await
    }

    /// Checks out a connection for a command of Seawall itself, before all clients of that user.
    ///
    /// # Errors
    /// See [`CheckOutError`].
    pub async fn check_out_first(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        deadline: Instant,
    ) -> Result<Checkout, CheckOutError> {
        let asker = Asker::Seawall;
        self.check_out_for(asker, identity, deadline).await
    }

    async fn check_out_for(
        self: &Arc<Self>,
        asker: Asker,
        identity: &Arc<Identity>,
        deadline: Instant,
    ) -> Result<Checkout, CheckOutError> {
        let now = Instant::now();
        let connection = match self.begin_check_out(identity, asker, now) {
            Start::Ready(connection) => connection,
            Start::Refused(error) => return Err(error),
            Start::Wait(ticket, answer) => {
                let mut waiting = Waiting {
                    pool: self,
                    identity,
                    ticket,
                    answer,
                };
                let deadline = deadline.min(now + self.wait_queue_timeout);
                let answer = timeout_at(deadline, &mut waiting.answer).await;
                let answer = answer.map_err(|_| CheckOutError::TimedOut)?;
                answer.map_err(|_| CheckOutError::Closed)??
            }
        };
        self.metrics.checked_out(now.elapsed());
        Ok(Checkout::new(
            Arc::clone(self),
            Arc::clone(identity),
            connection,
        ))
    }

    /// Connections that ended while they were unused are skipped.
    fn begin_check_out(&self, identity: &Arc<Identity>, asker: Asker, now: Instant) -> Start {
        loop {
            let (start, todo) = self.inner.lock().check_out(identity, asker, now);
            self.perform(todo);
            let Start::Ready(mut connection) = start else {
                return start;
            };
            if !connection.stream.has_ended() {
                return Start::Ready(connection);
            }
            self.check_in(identity, connection, Some(CloseReason::Ended));
        }
    }

    /// Adds a connection that was authenticated elsewhere, if there is room for it.
    pub fn adopt(&self, identity: &Arc<Identity>, connection: Connection) {
        self.metrics.connection_created();
        let todo = self
            .inner
            .lock()
            .adopt(identity, connection, Instant::now());
        self.perform(todo);
    }

    /// The generation of connections established now.
    pub fn generation(&self) -> Generation {
        self.inner.lock().generation()
    }

    /// Clears the pool after a failure in `generation`: its connections are stale, waiters fail so
    /// that they select a server again, and nothing is established until [`ServerPool::ready`].
    /// Returns true if the pool was cleared. A failure of an earlier generation is ignored.
    pub fn clear(&self, generation: Generation) -> bool {
        let todo = self.inner.lock().clear(generation);
        let is_cleared = todo.is_some();
        self.perform(todo.unwrap_or_default());
        is_cleared
    }

    /// Records that the server is available: a paused pool becomes ready.
    pub fn ready(&self) {
        self.inner.lock().ready();
    }

    /// Records that a connection of `generation` ended during an operation of `identity`. No
    /// connection is handed out until a probe has found out whether the server failed, and
    /// [`ServerPool::recover`] or [`ServerPool::clear`] is called.
    pub fn suspect(&self, generation: Generation, identity: &Identity) -> Suspicion {
        let has_ended = |connection: &mut Connection| connection.stream.has_ended();
        let mut inner = self.inner.lock();
        inner.suspect(generation, identity.id(), Instant::now(), has_ended)
    }

    /// Records that the server replied to a probe sent at `asked_at`: a paused pool becomes ready,
    /// and a suspicion older than the probe ends.
    pub fn recover(&self, asked_at: Instant) {
        let todo = self.inner.lock().recover(asked_at);
        self.perform(todo);
    }

    /// How long the server has been suspected; `None` if it is not.
    pub fn suspected_for(&self, now: Instant) -> Option<Duration> {
        self.inner.lock().suspected_for(now)
    }

    /// Closes the pool: available connections now, connections in use when they are checked in.
    pub fn close(&self) {
        let todo = self.inner.lock().close();
        self.perform(todo);
        self.end_queue.close();
    }

    /// Closes the available connections of a user that no longer exists.
    pub fn forget(&self, identity: IdentityId) {
        let todo = self.inner.lock().forget(identity);
        self.perform(todo);
    }

    /// Closes connections that are too old, were unused for too long or have ended, and establishes
    /// connections up to the minimum. Called once a second.
    pub fn maintain(&self) {
        let has_ended = |connection: &mut Connection| connection.stream.has_ended();
        let todo = self.inner.lock().maintain(Instant::now(), has_ended);
        self.perform(todo);
    }

    /// True if operations wait for a connection.
    pub fn has_waiting(&self) -> bool {
        self.inner.lock().has_waiting()
    }

    /// How long operations have been waiting for a connection.
    pub fn waits(&self, now: Instant) -> Waits {
        self.inner.lock().waits(now)
    }

    /// Records how long an operation took at this server, without its wait for a connection.
    pub fn observe_latency(&self, took: Duration, now: Instant) {
        self.latency.observe(took, now);
    }

    /// The estimated cost of one more operation: the recent latency, and the number of operations
    /// in flight or waiting.
    pub fn cost(&self, now: Instant) -> Cost {
        Cost {
            load: self.inner.lock().load(),
            latency_seconds: self.latency.seconds(now),
        }
    }

    /// A snapshot of the pool. Also updates the gauges.
    pub fn snapshot(&self) -> Snapshot {
        let snapshot = self.inner.lock().snapshot();
        let Snapshot {
            pending,
            available,
            in_use,
            wait_queue,
            ..
        } = snapshot;
        self.metrics.show(pending, available, in_use, wait_queue);
        let (awaiting, queued) = self.lane.counts();
        self.metrics.show_lane(awaiting, queued);
        snapshot
    }

    fn check_in(
        &self,
        identity: &Arc<Identity>,
        connection: Connection,
        perished: Option<CloseReason>,
    ) {
        let now = Instant::now();
        let todo = self
            .inner
            .lock()
            .check_in(identity.id(), connection, perished, now);
        self.perform(todo);
    }

    /// Carries out the decisions of `Inner`, outside its lock.
    fn perform(&self, todo: Todo) {
        for (_, reason) in todo.close {
            self.metrics.connection_closed(reason);
        }
        for (waiter, error) in todo.fail {
            // A waiter that has left needs no result.
            drop(waiter.send(Err(error)));
        }
        for (identity, waiter, connection) in todo.hand_over {
            if let Err(Ok(connection)) = waiter.send(Ok(connection)) {
                self.check_in(&identity, connection, None);
            }
        }
        for (identity, generation) in todo.establish {
            self.establish(identity, generation);
        }
    }

    /// Establishes a connection that is authenticated as `identity`, and counts the login at the
    /// server. The connection does not belong to the pool.
    ///
    /// # Errors
    /// See [`EstablishError`].
    pub async fn establish_outside(
        &self,
        identity: &Identity,
    ) -> Result<Connection, EstablishError> {
        let mechanism = identity.login().mechanism();
        let result = self.connector.establish(&self.address, identity).await;
        let reached_login = match &result {
            Ok(_) => true,
            Err(error) => error.failed_authentication(),
        };
        if let Some(mechanism) = mechanism.filter(|_| reached_login) {
            self.metrics.authenticated(mechanism.name(), result.is_ok());
        }
        result
    }

    fn establish(&self, identity: Arc<Identity>, generation: Generation) {
        let me = self.me.clone();
        self.runtime.spawn(async move {
            let Some(pool) = me.upgrade() else { return };
            let turn = pool.pace.lock().turn(Instant::now());
            sleep_until(turn).await;
            let login_version = identity.login_version();
            let result = pool.establish_outside(&identity).await;
            let todo = match result {
                Ok(mut connection) => {
                    pool.metrics.connection_created();
                    connection.generation = generation;
                    pool.inner
                        .lock()
                        .established(&identity, connection, Instant::now())
                }
                Err(error) => {
                    tracing::debug!(server = %pool.address, %error, "connection not established");
                    let error = CheckOutError::Establish {
                        error: Arc::new(error),
                        generation,
                        login_version,
                    };
                    pool.inner.lock().not_established(&identity, &error)
                }
            };
            pool.perform(todo);
        });
    }
}
