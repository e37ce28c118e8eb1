//! A connection in use, as a guard: dropping the guard checks the connection in, that is, returns
//! it to its pool.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    LanePermit, ServerPool,
    inner::Returned,
    lane::HeldPermit,
    slots::{Slot, Usage},
};
use crate::observe::CloseReason;
use seawall_auth::Identity;
use seawall_transport::connection::{Connection, Generation};

/// A checked-out connection. Dropping the checkout checks the connection in. The connection is
/// dirty during an exchange (a command and its replies), from [`Checkout::begin`] to
/// [`Checkout::finish`]. A dirty connection is closed at check-in, so an operation may be cancelled
/// at any point.
#[must_use]
pub struct Checkout {
    pool: Arc<ServerPool>,
    identity: Arc<Identity>,
    /// The connection and its slot (see [`super::slots`]); `None` only while the checkout is being
    /// dropped.
    held: Option<(Box<Connection>, Slot)>,
    perished: Option<CloseReason>,
    checked_out_at: Instant,
    /// When the last exchange ended; `None` during an exchange and before the first exchange.
    finished_at: Option<Instant>,
    latency: Option<Duration>,
    is_late: bool,
    has_expired: bool,
    is_streamed: bool,
    /// The permit of an operation that waits for data, for example on a change stream. Permits
    /// limit how many connections such operations use. During the exchange, the permit may be
    /// released for other users ([`HeldPermit`]). For the user of the operation, the permit is
    /// released only at check-in, because the connection is in use until then.
    permit: Option<Box<LanePermit>>,
}

impl fmt::Debug for Checkout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout")
            .field("connection", &self.held.as_ref().map(|held| &held.0))
            .finish_non_exhaustive()
    }
}

impl Checkout {
    pub(super) fn new(
        pool: Arc<ServerPool>,
        identity: Arc<Identity>,
        connection: Box<Connection>,
        slot: Slot,
        now: Instant,
    ) -> Self {
        Self {
            pool,
            identity,
            held: Some((connection, slot)),
            perished: None,
            checked_out_at: now,
            finished_at: None,
            latency: None,
            is_late: false,
            has_expired: false,
            is_streamed: false,
            permit: None,
        }
    }

    /// Stores the permit of an operation that waits for data. The check-in of the connection
    /// releases the permit.
    pub(crate) fn keep_permit(&mut self, permit: LanePermit) {
        self.permit = Some(Box::new(permit));
    }

    /// When the connection was checked out.
    pub(crate) fn checked_out_at(&self) -> Instant {
        self.checked_out_at
    }

    /// Begins an exchange: marks the connection dirty and returns it.
    pub fn begin(&mut self) -> &mut Connection {
        self.perished = Some(CloseReason::Broken);
        self.finished_at = None;
        &mut self.held.as_mut().expect("a checkout has a connection").0
    }

    /// Returns the connection during an exchange, after [`Checkout::begin`].
    pub fn connection(&mut self) -> &mut Connection {
        self.connection_and_pool().0
    }

    /// Returns the connection and its pool during an exchange, after [`Checkout::begin`].
    pub(crate) fn connection_and_pool(&mut self) -> (&mut Connection, &ServerPool) {
        let (connection, pool, _) = self.exchange();
        (connection, pool)
    }

    /// Returns the connection, its pool and the permit to wait for data during an exchange, after
    /// [`Checkout::begin`]. The permit is `None` if the operation does not wait for data.
    pub(crate) fn exchange(&mut self) -> (&mut Connection, &ServerPool, Option<HeldPermit<'_>>) {
        debug_assert!(self.perished.is_some(), "`begin` was called first");
        let (connection, _) = self.held.as_mut().expect("a checkout has a connection");
        let pool = &*self.pool;
        let permit = self.permit.as_deref_mut();
        let permit = permit.map(|permit| HeldPermit { permit, pool });
        (connection, pool, permit)
    }

    /// Ends an exchange whose last reply has been read completely: the connection is clean again.
    pub fn finish(&mut self) {
        self.finish_at(Instant::now());
    }

    /// Like [`Checkout::finish`], for a reply that was forwarded while it arrived.
    pub(crate) fn finish_streamed(&mut self) {
        self.mark_streamed();
        self.finish();
    }

    /// Like [`Checkout::finish`], for an exchange that ended at `now`.
    pub(crate) fn finish_at(&mut self, now: Instant) {
        self.perished = None;
        self.finished_at = Some(now);
    }

    /// Records how long the server took, from the last byte of the command to the last byte of the
    /// reply.
    pub(crate) fn set_latency(&mut self, latency: Duration) {
        self.latency = Some(latency);
    }

    /// Marks the connection to be closed at check-in for this reason, even if its exchange is
    /// complete.
    pub(crate) fn discard(&mut self, reason: CloseReason) {
        self.perished = Some(reason);
    }

    /// Records that the reply came too late to be useful, because the client has left.
    pub(crate) fn mark_late(&mut self) {
        self.is_late = true;
    }

    /// Records that the operation exceeded its time limit.
    pub(crate) fn mark_expired(&mut self) {
        self.has_expired = true;
    }

    /// Records that the operation is streamed: the command or the reply is forwarded while it
    /// arrives, so the client's speed determines how long the operation takes.
    pub(crate) fn mark_streamed(&mut self) {
        self.is_streamed = true;
    }

    /// The pool that the connection returns to.
    pub fn pool(&self) -> &Arc<ServerPool> {
        &self.pool
    }

    /// The generation that the pool had when it created the connection.
    pub(crate) fn generation(&self) -> Generation {
        let (connection, _) = self.held.as_ref().expect("a checkout has a connection");
        connection.generation
    }

    /// The identity that the connection is authenticated as.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let Some((connection, slot)) = self.held.take() else {
            return;
        };
        let now = self.finished_at.unwrap_or_else(Instant::now);
        let server_time = self
            .finished_at
            .map(|finished| finished - self.checked_out_at);
        let returned = Returned {
            connection,
            slot: Some(slot),
            usage: Usage {
                server_time,
                latency: self.latency,
                is_late: self.is_late,
                has_expired: self.has_expired,
                is_streamed: self.is_streamed,
            },
            perished: self.perished,
        };
        self.pool.check_in(&self.identity, returned, now);
        self.permit = None;
    }
}
