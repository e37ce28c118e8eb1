//! The connections to one server: one pool for each user, and one limit for all users.
//!
//! The terms are those of the connection monitoring and pooling specification (CMAP): a connection
//! is pending, available, in use or perished; a pool is paused, ready or closed; a pool has a
//! generation. `Inner` is plain data behind a mutex: it gets `now` as an argument, makes every
//! decision, and does no I/O. This module does the I/O. A user never gets another user's
//! connection.
//!
//! Source:
//! <https://github.com/mongodb/specifications/blob/master/source/connection-monitoring-and-pooling/connection-monitoring-and-pooling.md>.

mod checkout;
mod demand;
mod ending;
#[cfg(test)]
mod ending_tests;
mod establish;
#[cfg(test)]
mod growth_tests;
mod holdings;
mod inner;
mod lane;
mod latency;
mod lifecycle;
mod pace;
mod queue;
mod reserve;
#[cfg(test)]
mod reserve_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod server_tests;
mod slots;
#[cfg(test)]
mod slots_tests;
#[cfg(test)]
pub(crate) mod tests;
mod user;
#[cfg(test)]
mod walk_tests;

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    num::NonZeroU32,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::observe::{CloseReason, ServerMetrics};
use seawall_auth::{Identity, IdentityId};
use seawall_concurrency::Reason;
use seawall_locks::Mutex;
use seawall_transport::connection::{
    Connection, Connector, EstablishError, Generation, Interrupts, ServerAddress, TlsVersion,
};

pub use self::{
    checkout::Checkout,
    demand::{Demand, Need},
    inner::Waits,
    lane::{Lane, LaneKey, LanePermit},
    slots::{Concurrency, ConcurrencySnapshot},
};
use self::{
    ending::EndQueue,
    inner::{HandOver, Inner, ResultReceiver, Returned, Start, Todo},
    pace::Pace,
    queue::Ticket,
    slots::{LimitReset, Slot, WINDOW},
};
pub(crate) use self::{inner::Suspicion, lane::HeldPermit};

/// Limits of the connections to one server. All servers have the same limits.
#[derive(Clone, Debug)]
pub struct PoolLimits {
    /// Maximum number of connections of one user to one server. A few more are allowed for
    /// operations that other operations may wait for, for example a commit (see `reserve`).
    pub max_pool_size: usize,
    /// Number of connections of one user to one server that are kept open even if they are unused.
    pub min_pool_size: usize,
    /// Maximum number of connections of all users to one server. A few of them are reserved for
    /// operations that other operations may wait for.
    pub max_server_connections: usize,
    /// Maximum number of pending connections of one user to one server.
    pub max_connecting: usize,
    /// Maximum number of new connections to one server per second, for all users together; `None`
    /// for no limit.
    pub connections_per_second: Option<NonZeroU32>,
    /// How the maximum number of operations that run on one server at a time is determined.
    pub concurrency: Concurrency,
    /// Maximum number of long operations per server that do not count towards `concurrency`; `None`
    /// if the maximum equals the current limit of `concurrency`.
    pub max_exempt_operations: Option<NonZeroU32>,
    /// Maximum time that a connection may stay unused; `None` for no limit.
    pub max_idle_time: Option<Duration>,
    /// Maximum age of a connection; `None` for no limit. Each connection is closed earlier by up to
    /// a fifth of this time, so that not all connections end at the same time.
    pub max_life_time: Option<Duration>,
    /// Maximum time that an operation waits for a connection and a slot.
    pub wait_queue_timeout: Duration,
    /// Maximum number of operations that wait for a connection to one server, or for a slot. Only
    /// operations of clients are refused at this maximum, not commands of Seawall itself.
    pub wait_queue_size: usize,
    /// The last change of the TLS configuration, after which connections are replaced; `None`
    /// before the first change.
    pub renewal: Option<Renewal>,
}

/// A change of the TLS configuration. Connections of earlier configurations are replaced over ten
/// seconds. A connection in use is replaced after its operation has ended.
#[derive(Clone, Copy, Debug)]
pub struct Renewal {
    /// The version of the new TLS configuration.
    pub version: TlsVersion,
    /// The time of the change.
    pub began: Instant,
}

/// After a change of the TLS configuration, connections are replaced over this time. So the logins
/// on the new connections are spread over this time.
const RENEWAL_TIME: Duration = Duration::from_secs(10);

impl Renewal {
    fn has_replaced(self, connection: &Connection, now: Instant) -> bool {
        let is_due = || now >= self.began + RENEWAL_TIME.mul_f64(connection.id().spread());
        connection.tls_version < self.version && is_due()
    }
}

/// The reason why an overloaded server had no connection or slot for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Overload {
    /// Too many operations already wait.
    #[error("the wait queue is full")]
    QueueFull,
    /// At the deadline, either no connection was available, or too many operations were running.
    #[error("timed out because no connection was free or too many operations were running")]
    TimedOut,
}

impl Overload {
    /// The name of the reason in metrics.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::TimedOut => "wait_queue_timeout",
        }
    }
}

/// The reason why no connection was checked out.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CheckOutError {
    /// The pool is paused until its server has recovered.
    #[error("the server's pool is paused")]
    Paused,
    /// The pool is closed: the server left the deployment, or Seawall is shutting down.
    #[error("the server's pool is closed")]
    Closed,
    /// The operation got no connection or slot: the wait queue was full, or the wait took too long.
    #[error(transparent)]
    Overload(#[from] Overload),
    /// No connection could be established.
    #[error("{error}")]
    Establish {
        /// The reason why the connection was not established.
        error: Arc<EstablishError>,
        /// The pool's generation at the start of the attempt.
        generation: Generation,
        /// The [`Identity::login_version`] of the login that the attempt used.
        login_version: u64,
    },
}

impl CheckOutError {
    /// True if the server requires a login, but the connection is for anonymous clients.
    pub(crate) fn requires_authentication(&self) -> bool {
        matches!(self, Self::Establish { error, .. } if error.requires_authentication())
    }
}

/// The estimated cost of one more operation at a server. Server selection compares the costs of two
/// servers.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    load: usize,
    latency_seconds: f64,
}

impl Cost {
    /// True if the server with the cost `other` is the better choice. The load of a server is the
    /// number of its operations in flight or waiting. If the latencies differ by a factor of at
    /// most two, only the loads are compared, because a small difference in latency may be random.
    /// Otherwise the products `latency * (load + 1)` are compared.
    pub(crate) fn exceeds(self, other: Self) -> bool {
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

    /// True if the server with the cost `self` has more operations in flight or waiting than the
    /// server with the cost `other`.
    pub(crate) fn is_busier(self, other: Self) -> bool {
        self.load > other.load
    }
}

/// A snapshot of a pool, for the admin API.
#[derive(Clone, Debug)]
pub struct PoolSnapshot {
    /// The pool's state: `paused`, `ready`, `suspect` or `closed`.
    pub state: &'static str,
    /// Number of connections that are being established.
    pub pending: usize,
    /// Number of connections that can be checked out.
    pub available: usize,
    /// Number of connections in use.
    pub in_use: usize,
    /// Number of operations that wait for a connection or a slot.
    pub wait_queue: usize,
    /// The concurrency limit, and the number of operations in each state.
    pub concurrency: ConcurrencySnapshot,
    /// For each user of the pool, the numbers of its connections and of its waiting operations.
    pub users: Vec<UserSnapshot>,
}

/// One user's connections and waiting operations in a pool.
#[derive(Clone, Debug)]
pub struct UserSnapshot {
    /// The user's name; empty if clients do not log in.
    pub name: String,
    /// The database that the user is defined in.
    pub source: String,
    /// Number of connections that are being established.
    pub pending: usize,
    /// Number of connections that can be checked out.
    pub available: usize,
    /// Number of connections in use.
    pub in_use: usize,
    /// Number of the user's operations that wait for a connection or a slot.
    pub wait_queue: usize,
}

/// Minimum time between two searches for waiters whose deadline has passed, if the first search has
/// found some. Each search examines all waiters. So a wait may end later than its deadline, by at
/// most this time.
const MIN_EXPIRY_INTERVAL: Duration = Duration::from_millis(10);

/// Maximum number of connections of one user to the server. The [`Lane`] computes its number of
/// permits from this number.
fn lane_size(limits: &PoolLimits) -> usize {
    limits.max_pool_size.min(limits.max_server_connections)
}

/// Returns a new random number at each call, so that processes and pools differ.
fn random() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// Returns a new random number from 0 to 1 at each call, so that processes and pools differ.
fn chance() -> f64 {
    f64::from(u32::try_from(random() >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

/// All connections to one server.
pub struct ServerPool {
    address: ServerAddress,
    inner: Mutex<Inner>,
    /// Spreads new connections over time.
    pace: Mutex<Pace>,
    /// Notified when the pace has changed. Connections whose establishment has not begun then get
    /// new start times.
    pace_changed: Notify,
    /// Notified when the pool was cleared or closed, so that connections that are being established
    /// are given up.
    emptied: Notify,
    /// True while the pool is paused.
    paused: watch::Sender<bool>,
    /// True once the pool is closed. It changes only while `inner` is locked.
    is_closed: AtomicBool,
    /// Read operations whose client has disconnected, and which Seawall must end at the server.
    end_queue: EndQueue,
    lane: Lane,
    /// Ends the waits for replies of the server when the server counts as hung.
    interrupts: Interrupts,
    /// Notified when a waiter arrives whose deadline is earlier than all other deadlines, and when
    /// the pool is dropped.
    expiry_changed: Arc<Notify>,
    /// Notified when regular updates of the concurrency limit must begin again after a time without
    /// operations, and when the pool is dropped.
    ticks_wanted: Arc<Notify>,
    connector: Connector,
    metrics: ServerMetrics,
    /// The data plane's runtime, on which the tasks of connections run.
    runtime: Handle,
    /// A weak reference to this pool for the tasks that establish connections. So these tasks do
    /// not keep the pool of a removed server alive.
    me: Weak<Self>,
}

impl Drop for ServerPool {
    fn drop(&mut self) {
        self.metrics.show_removed();
        self.expiry_changed.notify_one();
        self.ticks_wanted.notify_one();
    }
}

impl fmt::Debug for ServerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerPool")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// A checkout that has begun.
#[derive(Debug)]
pub(crate) enum Begun {
    Ready(Checkout),
    Waits(QueuedOperation),
}

/// An operation in the wait queue. Dropping it removes the operation from the queue. If the
/// operation was handed a connection but has not received it yet, the drop checks the connection
/// in.
#[must_use]
pub(crate) struct QueuedOperation {
    pool: Arc<ServerPool>,
    identity: Arc<Identity>,
    began: Instant,
    ticket: Ticket,
    result: ResultReceiver,
}

impl fmt::Debug for QueuedOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuedOperation")
            .field("ticket", &self.ticket)
            .finish_non_exhaustive()
    }
}

impl QueuedOperation {
    /// Waits for the connection. Cancel safe: a waiter that is dropped leaves the queue, and no
    /// connection is lost.
    ///
    /// # Errors
    /// See [`CheckOutError`].
    pub(crate) async fn finish(mut self) -> Result<Checkout, CheckOutError> {
        let result = (&mut self.result).await;
        let held = result.unwrap_or(Err(CheckOutError::Closed))?;
        Ok(self.pool.checked_out(&self.identity, held, self.began))
    }
}

impl Drop for QueuedOperation {
    fn drop(&mut self) {
        // An operation that has received its result is no longer in the queue.
        if self.result.is_terminated() {
            return;
        }
        let (id, now) = (self.identity.id(), Instant::now());
        self.pool.inner.lock().leave(id, self.ticket, now);
        self.result.close();
        if let Ok(Ok((connection, slot))) = self.result.try_recv() {
            let returned = Returned::unused(connection, slot);
            self.pool.check_in(&self.identity, returned, now);
        }
    }
}

impl ServerPool {
    /// Creates a paused pool. The tasks of its connections run on `runtime`.
    pub fn new(
        address: ServerAddress,
        limits: PoolLimits,
        connector: Connector,
        metrics: ServerMetrics,
        runtime: Handle,
    ) -> Arc<Self> {
        let expiry_changed = Arc::new(Notify::new());
        let ticks_wanted = Arc::new(Notify::new());
        let has_ended = |connection: &mut Connection| connection.stream.has_ended();
        let pool = Arc::new_cyclic(|me| Self {
            address,
            expiry_changed: Arc::clone(&expiry_changed),
            ticks_wanted: Arc::clone(&ticks_wanted),
            interrupts: Interrupts::default(),
            lane: Lane::new(lane_size(&limits)),
            pace: Mutex::new(Pace::new(limits.connections_per_second, chance())),
            pace_changed: Notify::new(),
            emptied: Notify::new(),
            paused: watch::Sender::new(true),
            is_closed: AtomicBool::new(false),
            inner: Mutex::new(Inner::new(limits, has_ended, random(), Instant::now())),
            end_queue: EndQueue::default(),
            connector,
            metrics,
            runtime,
            me: me.clone(),
        });
        let expiry = expire_waiters(Arc::downgrade(&pool), expiry_changed);
        pool.runtime.spawn(expiry);
        let ticks = adjust_limit(Arc::downgrade(&pool), ticks_wanted);
        pool.runtime.spawn(ticks);
        pool
    }

    /// The server's address.
    pub fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// The lane: the permits of operations that wait for data, such as `getMore` on a change
    /// stream.
    pub(crate) fn lane(&self) -> &Lane {
        &self.lane
    }

    /// Records that the server hangs: probes on new connections got no reply in time, or no new
    /// connection could be established in time. The operations that wait for replies of this server
    /// fail, so that they can be retried at another server.
    pub(crate) fn give_up(&self) {
        self.interrupts.raise();
    }

    /// The metrics of this server.
    pub fn metrics(&self) -> &ServerMetrics {
        &self.metrics
    }

    /// Applies changed limits. Connections keep the maximum age with which they were established.
    pub(crate) fn set_limits(&self, limits: &PoolLimits) {
        self.lane.set_permits(lane_size(limits));
        if self.pace.lock().set_rate(limits.connections_per_second) {
            self.pace_changed.notify_waiters();
        }
        let todo = self.inner.lock().set_limits(limits.clone(), Instant::now());
        self.perform(todo);
    }

    /// Checks out a connection authenticated as `identity`, and a slot or a reserved slot if
    /// `demand` needs one. Waits until `deadline`, but at most [`PoolLimits::wait_queue_timeout`].
    /// Free slots go to the users round-robin. Among one user's waiters, the addresses are served
    /// round-robin, and the waiters of each address in order of arrival. If the wait queue is full,
    /// one operation is refused: a waiting operation that this operation may replace (see
    /// `Inner::make_room_in_queue`), or else this operation.
    ///
    /// Cancel safe: a waiter that is dropped leaves the queue, and no connection is lost.
    ///
    /// # Errors
    /// See [`CheckOutError`].
    pub async fn check_out(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        demand: Demand,
        deadline: Instant,
    ) -> Result<Checkout, CheckOutError> {
        match self.begin_check_out(identity, demand, Instant::now(), deadline)? {
            Begun::Ready(checkout) => Ok(checkout),
            Begun::Waits(waiting) => waiting.finish().await,
        }
    }

    /// Begins a checkout that the operation requested at `began`. If the connection has ended while
    /// it was available, closes it and tries the next one.
    pub(crate) fn begin_check_out(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        demand: Demand,
        began: Instant,
        deadline: Instant,
    ) -> Result<Begun, CheckOutError> {
        loop {
            let mut inner = self.inner.lock();
            let (start, todo) = inner.check_out(identity, demand, began, deadline);
            drop(inner);
            self.perform(todo);
            let (mut connection, slot) = match start {
                Start::Ready(connection, slot) => (connection, slot),
                Start::Refused(error) => return Err(error),
                Start::Wait(ticket, result) => {
                    return Ok(Begun::Waits(QueuedOperation {
                        pool: Arc::clone(self),
                        identity: Arc::clone(identity),
                        began,
                        ticket,
                        result,
                    }));
                }
            };
            if connection.stream.has_ended() {
                let mut returned = Returned::unused(connection, slot);
                returned.perished = Some(CloseReason::Ended);
                self.check_in(identity, returned, began);
                continue;
            }
            let checkout = self.checked_out(identity, (connection, slot), began);
            return Ok(Begun::Ready(checkout));
        }
    }

    /// Completes a checkout that the operation requested at `began`.
    fn checked_out(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        (connection, slot): (Box<Connection>, Slot),
        began: Instant,
    ) -> Checkout {
        let now = Instant::now();
        self.metrics.record_checkout(now - began);
        let (pool, identity) = (Arc::clone(self), Arc::clone(identity));
        Checkout::new(pool, identity, connection, slot, now)
    }

    /// Adds a connection that was established outside the pool. At `max_server_connections`, this
    /// may close an available connection of another user. Closes the new connection instead if
    /// there is no room for it, or if the pool is paused or closed.
    pub fn adopt(&self, identity: &Arc<Identity>, connection: Connection) {
        let connection = self.created(connection);
        let todo = self
            .inner
            .lock()
            .adopt(identity, connection, Instant::now());
        self.perform(todo);
    }

    /// Counts a new connection, and registers it so that [`Self::give_up`] can end waits for
    /// replies on this connection.
    fn created(&self, connection: Connection) -> Box<Connection> {
        self.metrics.count_created_connection();
        self.interrupts.add(&connection.interrupt);
        Box::new(connection)
    }

    /// The current generation of the pool.
    pub(crate) fn generation(&self) -> Generation {
        self.inner.lock().generation()
    }

    /// Closes the available connections of a user that no longer exists, or whose keys a server has
    /// refused.
    pub fn forget(&self, identity: IdentityId) {
        let todo = self.inner.lock().forget(identity);
        self.perform(todo);
    }

    /// Closes available connections that must not be used any more. For example, they are too old,
    /// have been unused for too long, or have ended. Establishes connections for waiters, and for
    /// users that have fewer than [`PoolLimits::min_pool_size`]. Called once a second.
    pub(crate) fn maintain(&self) {
        let has_ended = |connection: &mut Connection| connection.stream.has_ended();
        let todo = self.inner.lock().maintain(Instant::now(), has_ended);
        self.perform(todo);
    }

    /// Number of available connections of a user; `None` if the pool does not know the user.
    pub(crate) fn available_of(&self, identity: IdentityId) -> Option<usize> {
        self.inner.lock().available_of(identity)
    }

    /// True if operations wait for a connection or a slot.
    pub(crate) fn has_waiting(&self) -> bool {
        self.inner.lock().has_waiting()
    }

    /// True if the waits for data leave at least half of the connections to the server for other
    /// operations, even if the lane now gives all its permits to further waits.
    pub(crate) fn has_room_for_waits(&self) -> bool {
        let (waits, _) = self.lane.counts();
        let max = self.inner.lock().max_server_connections();
        waits + self.lane.permits() <= max / 2
    }

    /// Returns the longest current waits for a connection or a slot.
    pub fn waits(&self, now: Instant) -> Waits {
        self.inner.lock().waits(now)
    }

    /// Records that an operation took at least this long at the server: its client left before the
    /// reply.
    pub(crate) fn observe_latency_of_at_least(&self, took: Duration) {
        let mut inner = self.inner.lock();
        inner.observe_latency_of_at_least(took, Instant::now());
    }

    /// The estimated cost of one more operation, from the recent latency and the number of
    /// operations in flight or waiting.
    pub fn cost(&self, now: Instant) -> Cost {
        let inner = self.inner.lock();
        Cost {
            load: inner.load(),
            latency_seconds: inner.latency_seconds(now),
        }
    }

    /// Returns a snapshot of the pool, and updates the gauges of the metrics.
    pub fn snapshot(&self) -> PoolSnapshot {
        let lane = self.lane.counts();
        // The lock is held until the gauges are set, so that the gauges show the last change.
        let inner = self.inner.lock();
        let snapshot = inner.snapshot();
        let PoolSnapshot {
            pending,
            available,
            in_use,
            wait_queue,
            ..
        } = snapshot;
        self.metrics.show(pending, available, in_use, wait_queue);
        let slots = snapshot.concurrency;
        // In a closed pool, nothing updates the gauges of the waits for data when these waits end,
        // after at most one slice. So these gauges become 0 now.
        let (limit, (awaiting, queued)) = match self.is_closed.load(Ordering::Relaxed) {
            true => (self.metrics.removed_limit(), (0, 0)),
            false => (slots.limit, lane),
        };
        self.metrics.show_lane(awaiting, queued);
        self.metrics.show_concurrency(
            limit,
            slots.in_progress,
            slots.reserved,
            slots.exempt,
            slots.waiting,
        );
        snapshot
    }

    fn check_in(&self, identity: &Arc<Identity>, returned: Returned, now: Instant) {
        let todo = self.inner.lock().check_in(identity.id(), returned, now);
        self.perform(todo);
    }

    /// Carries out the decisions of `Inner`. Its lock has been released, so no other thread waits
    /// for the lock during this work.
    fn perform(&self, todo: Todo) {
        for (_, reason) in todo.close {
            self.metrics.count_closed_connection(reason);
        }
        for (waiter, error) in todo.fail {
            // If sending fails, the waiter has left and needs no result.
            drop(waiter.send(Err(error)));
        }
        for hand_over in todo.hand_over {
            let HandOver {
                identity,
                grant,
                connection,
                slot,
            } = hand_over;
            if let Err(Ok((connection, slot))) = grant.send(Ok((connection, slot))) {
                let returned = Returned::unused(connection, slot);
                self.check_in(&identity, returned, Instant::now());
            }
        }
        for (identity, generation) in todo.establish {
            self.establish(identity, generation);
        }
        if todo.must_wake_expiry {
            self.expiry_changed.notify_one();
        }
        if todo.must_wake_ticks {
            self.ticks_wanted.notify_one();
        }
        if let Some(reset) = todo.limit_reset {
            self.report_reset(reset);
        }
        // A closed pool is in no later snapshot of the topology, and a cursor can keep the pool
        // alive for long. So the pool's gauges are updated here.
        if self.is_closed.load(Ordering::Relaxed) {
            drop(self.snapshot());
        }
    }

    /// Counts and logs a reset of the concurrency limit.
    fn report_reset(&self, reset: LimitReset) {
        self.metrics.count_limit_change(Reason::Reset.as_str());
        tracing::debug!(
            server = %self.address,
            limit = reset.limit,
            previous = reset.previous,
            reason = %Reason::Reset,
            cause = reset.cause.as_str(),
            "decision on the concurrency limit"
        );
    }

    /// Updates the concurrency limit, and then serves waiters. Returns false if no update is needed
    /// for now.
    fn tick(&self) -> bool {
        let update = self.inner.lock().tick(Instant::now());
        let Some((update, todo)) = update else {
            return false;
        };
        self.perform(todo);
        let Some(decision) = update.decision else {
            return true;
        };
        if update.is_change {
            self.metrics.count_limit_change(decision.reason.as_str());
        }
        if decision.reason != Reason::NothingWaits {
            let inputs = decision.inputs;
            tracing::debug!(
                server = %self.address,
                limit = decision.limit,
                previous = decision.previous,
                settled = decision.settled,
                reason = %decision.reason,
                load = inputs.load.as_str(),
                completed_per_second = inputs.completed_per_second,
                late = inputs.late,
                mean_wait_seconds = inputs.mean_wait.as_secs_f64(),
                mean_server_time_seconds = inputs.mean_server_time.as_secs_f64(),
                crowding = inputs.crowding,
                gain = inputs.gain,
                noise = inputs.noise,
                mean_in_progress = inputs.mean_in_progress,
                waiting = inputs.waiting,
                exempt = inputs.exempt,
                "decision on the concurrency limit"
            );
        }
        true
    }
}

/// Fails the waiters of a pool at their deadlines, until the pool is dropped. One timer for each
/// pool costs far less than a timer for each waiter.
async fn expire_waiters(pool: Weak<ServerPool>, changed: Arc<Notify>) {
    let mut next: Option<Instant> = None;
    let mut pause_end = Instant::now();
    loop {
        match next {
            None => changed.notified().await,
            // The deadline and a notification have the same effect, so the result is ignored.
            Some(deadline) => drop(timeout_at(deadline, changed.notified()).await),
        }
        sleep_until(pause_end).await;
        let Some(pool) = pool.upgrade() else { return };
        let now = Instant::now();
        let (deadline, todo) = pool.inner.lock().expire(now);
        let has_expired = !todo.fail.is_empty();
        pool.perform(todo);
        // If waiters have expired, the next search comes after a pause. A search goes through all
        // waiters, so one search should end several waits.
        if has_expired {
            pause_end = now + MIN_EXPIRY_INTERVAL;
        }
        next = deadline;
    }
}

/// Updates the concurrency limit of a pool regularly while operations run, until the pool is
/// dropped.
async fn adjust_limit(pool: Weak<ServerPool>, wanted: Arc<Notify>) {
    loop {
        wanted.notified().await;
        loop {
            sleep(WINDOW).await;
            let Some(pool) = pool.upgrade() else { return };
            if !pool.tick() {
                break;
            }
        }
    }
}
