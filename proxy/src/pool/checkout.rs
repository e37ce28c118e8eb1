//! A connection in use: a guard that gives it back.

use std::{fmt, sync::Arc};

use super::ServerPool;
use crate::{auth::Identity, connection::Connection, observe::CloseReason};

/// A checked-out connection. Dirty from the first byte written until the last reply has been read, and a
/// dirty one is closed on drop: so being cancelled anywhere is safe.
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

    /// The connection, for an exchange: dirty from now on.
    pub fn begin(&mut self) -> &mut Connection {
        self.perished = Some(CloseReason::Broken);
        self.connection.as_mut().expect("taken only in drop")
    }

    /// The connection in the middle of an exchange that [`Checkout::begin`] opened.
    pub fn connection(&mut self) -> &mut Connection {
        debug_assert!(
            self.perished.is_some(),
            "an exchange is begun before its bytes are touched"
        );
        self.connection.as_mut().expect("taken only in drop")
    }

    /// The last reply has been read whole: the connection is clean again.
    pub fn finish(&mut self) {
        self.perished = None;
    }

    /// The connection must not be used again, though its exchange is complete.
    pub fn discard(&mut self, reason: CloseReason) {
        self.perished = Some(reason);
    }

    /// The pool that it goes back to.
    pub fn pool(&self) -> &Arc<ServerPool> {
        &self.pool
    }

    /// Whose it is.
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
