//! A connection in use: a guard that checks it in on drop.

use std::{fmt, sync::Arc};

use super::ServerPool;
use crate::observe::CloseReason;
use seawall_auth::Identity;
use seawall_transport::connection::Connection;

/// A checked-out connection. It is dirty from the first byte written until the last reply has been
/// read. A dirty connection is closed on drop, so cancellation is safe at any point.
#[must_use]
pub struct Checkout {
    pool: Arc<ServerPool>,
    identity: Arc<Identity>,
    /// `None` only while being dropped.
    connection: Option<Connection>,
    perished: Option<CloseReason>,
}

impl fmt::Debug for Checkout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkout")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Checkout {
    pub(super) fn new(
        pool: Arc<ServerPool>,
        identity: Arc<Identity>,
        connection: Connection,
    ) -> Self {
        Self {
            pool,
            identity,
            connection: Some(connection),
            perished: None,
        }
    }

    /// Begins an exchange: marks the connection dirty and returns it.
    pub fn begin(&mut self) -> &mut Connection {
        self.perished = Some(CloseReason::Broken);
        self.connection.as_mut().expect("taken only in drop")
    }

    /// The connection during an exchange that [`Checkout::begin`] has begun.
    pub fn connection(&mut self) -> &mut Connection {
        debug_assert!(
            self.perished.is_some(),
            "`begin` is called before `connection`"
        );
        self.connection.as_mut().expect("taken only in drop")
    }

    /// Ends an exchange whose last reply has been read completely: the connection is clean again.
    pub fn finish(&mut self) {
        self.perished = None;
    }

    /// Marks the connection as unusable, although its exchange is complete.
    pub fn discard(&mut self, reason: CloseReason) {
        self.perished = Some(reason);
    }

    /// The pool that the connection returns to.
    pub fn pool(&self) -> &Arc<ServerPool> {
        &self.pool
    }

    /// The identity that the connection is authenticated as.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool
                .check_in(&self.identity, connection, self.perished);
        }
    }
}
