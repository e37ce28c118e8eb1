//! One server's connections, a pool for each user, under one bound.
//!
//! The words and rules are those of the connection monitoring and pooling specification (CMAP): pending,
//! available, in use, perished; paused, ready, closed; generations. `Inner` is plain data behind a mutex: it
//! takes `now`, says what to do and does no I/O; this module does it. A checkout never crosses users.
//!
//! Source: <https://github.com/mongodb/specifications/blob/master/source/connection-monitoring-and-pooling/connection-monitoring-and-pooling.md>.

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

use crate::{
    auth::{Identity, IdentityId},
    connection::{Connection, Connector, EstablishError, Generation, ServerAddress},
    observe::{CloseReason, ServerMetrics},
    wire::Sharer,
};

pub use self::{
    checkout::Checkout,
    ending::EndRequest,
    inner::{Suspicion, Waits},
    lane::{Lane, LanePlace},
};
use self::{
    ending::Ending,
    inner::{Inner, Start, Ticket, Todo},
    latency::Latency,
    pace::Pace,
    queue::Asker,
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
    /// Connections begun to one server in a second, of all users; `None` for no limit.
    pub connections_per_second: Option<NonZeroU32>,
    /// How long a connection may go unused.
    pub max_idle_time: Option<Duration>,
    /// How long a connection may live; each ends up to a fifth earlier, so that they do not end together.
    pub max_life_time: Option<Duration>,
    /// How long an operation waits for a connection.
    pub wait_queue_timeout: Duration,
    /// Operations that may wait for one server.
    pub wait_queue_size: usize,
}

/// Why no connection was checked out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckOutError {
    /// The pool waits for its server to be found well again.
    #[error("the server's pool is paused")]
    Paused,
    /// The pool is closed: the server left the deployment, or Seawall ends.
    #[error("the server's pool is closed")]
    Closed,
    /// Too many wait already.
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
        /// The generation in which it did.
        generation: Generation,
        /// The [`Identity::login_version`] of the keys.
        login_version: u64,
    },
}

/// What one more operation would cost at a server, to choose between two.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    under_way: usize,
    latency: f64,
}

impl Cost {
    /// Whether another server is the better choice. Latencies that differ by less than half are taken for
    /// equal, so that chance alone starves no server.
    pub fn exceeds(self, other: Self) -> bool {
        let weight = |cost: Self| {
            cost.latency * f64::from(u32::try_from(cost.under_way + 1).unwrap_or(u32::MAX))
        };
        let is_clear = self.latency > other.latency * 2.0 || other.latency > self.latency * 2.0;
        match is_clear {
            true => weight(self) > weight(other),
            false => self.is_busier(other),
        }
    }

    /// Whether another server has fewer operations under way.
    pub fn is_busier(self, other: Self) -> bool {
        self.under_way > other.under_way
    }
}

/// What a pool holds, for people.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// `paused`, `ready`, `suspect` or `closed`.
    pub state: &'static str,
    /// Being established.
    pub pending: usize,
    /// Ready for use.
    pub available: usize,
    /// In use.
    pub in_use: usize,
    /// Operations that wait.
    pub wait_queue: usize,
    /// The same by user: name, source, pending, available, in use, waiting.
    pub users: Vec<UserSnapshot>,
}

/// What a pool holds of one user.
#[derive(Clone, Debug)]
pub struct UserSnapshot {
    /// The user's name; empty where the deployment asks nobody.
    pub name: String,
    /// The database it is defined in.
    pub source: String,
    /// Being established.
    pub pending: usize,
    /// Ready for use.
    pub available: usize,
    /// In use.
    pub in_use: usize,
    /// Operations that wait.
    pub wait_queue: usize,
}

/// From 0 to 1, another one in each process and pool.
fn chance() -> f64 {
    let bits = RandomState::new().hash_one(0_u8) >> 32;
    f64::from(u32::try_from(bits).unwrap_or(0)) / f64::from(u32::MAX)
}

/// All connections to one server.
pub struct ServerPool {
    address: ServerAddress,
    inner: Mutex<Inner>,
    /// Of connections to come.
    pace: Mutex<Pace>,
    /// Reads to be ended.
    ending: Ending,
    lane: Lane,
    hung: Notify,
    latency: Latency,
    connector: Connector,
    metrics: ServerMetrics,
    wait_queue_timeout: Duration,
    /// Where connections are made and live: the data plane's runtime.
    runtime: Handle,
    /// For the tasks that establish; they must not keep a removed server's pool alive.
    me: Weak<Self>,
}

impl fmt::Debug for ServerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPool")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A place in the wait queue; left on drop, and a connection that came meanwhile is given back.
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
    /// A pool in state paused; `runtime` is where its connections will live.
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
            ending: Ending::default(),
            connector,
            metrics,
            runtime,
            me: me.clone(),
        })
    }

    /// The server.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The lane of operations that wait for something to happen.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Ready when the server is given up as hung: what waits for it then waits in vain, though no connection has ended.
    pub fn given_up(&self) -> Notified<'_> {
        self.hung.notified()
    }

    /// The server answers nobody, not even a probe: operations that wait for it fail now, so that they can be repeated
    /// elsewhere.
    pub fn give_up(&self) {
        self.hung.notify_waiters();
    }

    /// Figures of the server.
    pub fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    /// Checks out a connection authenticated as `identity` for a client of `from`, by `deadline` or the pool's own
    /// limit, whichever comes first. Of one user's waiters, addresses are served in turn, and those of one address in
    /// order of arrival. When the wait queue is full, the user or address with most waiters gives way.
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

    /// The same for a question of Seawall's own, before all clients of that user.
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

    /// Takes in a connection that was authenticated outside, if there is room for it.
    pub fn adopt(&self, identity: &Arc<Identity>, connection: Connection) {
        self.metrics.connection_created();
        let todo = self
            .inner
            .lock()
            .adopt(identity, connection, Instant::now());
        self.perform(todo);
    }

    /// The generation of connections made now.
    pub fn generation(&self) -> Generation {
        self.inner.lock().generation()
    }

    /// Clears the pool after a failure seen in `generation`: connections of it are stale, waiters are told to
    /// select again, and nothing is established until [`ServerPool::ready`]. A failure of an earlier
    /// generation says nothing new.
    pub fn clear(&self, generation: Generation) -> bool {
        let todo = self.inner.lock().clear(generation);
        let is_cleared = todo.is_some();
        self.perform(todo.unwrap_or_default());
        is_cleared
    }

    /// The server is known to be there: a pool that is paused begins to serve.
    pub fn ready(&self) {
        self.inner.lock().ready();
    }

    /// A connection made in `generation` ended under an operation of `identity`. Until a probe has found out whether the
    /// server failed, nothing is handed out: [`ServerPool::recover`] or [`ServerPool::clear`] ends that.
    pub fn suspect(&self, generation: Generation, identity: &Identity) -> Suspicion {
        let has_ended = |connection: &mut Connection| connection.stream.has_ended();
        let mut inner = self.inner.lock();
        inner.suspect(generation, identity.id(), Instant::now(), has_ended)
    }

    /// The server answered a probe that was sent at `asked_at`: a paused pool begins to serve, and a suspicion that is
    /// older than the probe ends.
    pub fn recover(&self, asked_at: Instant) {
        let todo = self.inner.lock().recover(asked_at);
        self.perform(todo);
    }

    /// How long the server has been suspected, if it is.
    pub fn suspected_for(&self, now: Instant) -> Option<Duration> {
        self.inner.lock().suspected_for(now)
    }

    /// Ends the pool: what is available is closed, what is in use will be when it is given back.
    pub fn close(&self) {
        let todo = self.inner.lock().close();
        self.perform(todo);
        self.ending.close();
    }

    /// Closes what is available to a user that is no more.
    pub fn forget(&self, identity: IdentityId) {
        let todo = self.inner.lock().forget(identity);
        self.perform(todo);
    }

    /// Closes what is too old or unused for too long, lets go of what has ended by itself, and fills up to the minimum.
    /// Called once a second.
    pub fn maintain(&self) {
        let has_ended = |connection: &mut Connection| connection.stream.has_ended();
        let todo = self.inner.lock().maintain(Instant::now(), has_ended);
        self.perform(todo);
    }

    /// Whether operations wait for a connection.
    pub fn has_waiting(&self) -> bool {
        self.inner.lock().has_waiting()
    }

    /// How long operations have been waiting for a connection.
    pub fn waits(&self, now: Instant) -> Waits {
        self.inner.lock().waits(now)
    }

    /// An operation took so long here, a connection's wait left out.
    pub fn observe_latency(&self, took: Duration, now: Instant) {
        self.latency.observe(took, now);
    }

    /// How long one more operation would probably take: the latency of those before it, times those under way.
    pub fn cost(&self, now: Instant) -> Cost {
        Cost {
            under_way: self.inner.lock().load(),
            latency: self.latency.seconds(now),
        }
    }

    /// What it holds now; also brings the gauges up to date.
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

    /// Does what `Inner` decided, outside its lock.
    fn perform(&self, todo: Todo) {
        for (_, reason) in todo.close {
            self.metrics.connection_closed(reason);
        }
        for (waiter, error) in todo.fail {
            // A waiter that has left meanwhile needs no answer.
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

    fn establish(&self, identity: Arc<Identity>, generation: Generation) {
        let me = self.me.clone();
        let (connector, address) = (self.connector.clone(), self.address.clone());
        self.runtime.spawn(async move {
            let Some(pool) = me.upgrade() else { return };
            let turn = pool.pace.lock().turn(Instant::now());
            sleep_until(turn).await;
            let login_version = identity.login_version();
            let result = connector
                .establish(&address, &identity, &pool.metrics)
                .await;
            let todo = match result {
                Ok(mut connection) => {
                    pool.metrics.connection_created();
                    connection.generation = generation;
                    pool.inner
                        .lock()
                        .established(&identity, connection, Instant::now())
                }
                Err(error) => {
                    tracing::debug!(server = %address, %error, "connection not established");
                    let error = CheckOutError::Establish {
                        error: Arc::new(error),
                        generation,
                        login_version,
                    };
                    pool.inner
                        .lock()
                        .not_established(&identity, &error, Instant::now())
                }
            };
            pool.perform(todo);
        });
    }
}
