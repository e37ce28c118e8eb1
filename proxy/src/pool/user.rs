//! One user's part of a server's connections.

use std::{collections::VecDeque, sync::Arc};

use tokio::{sync::oneshot, time::Instant};

use super::{CheckOutError, Limits, inner::Ticket};
use crate::{auth::Identity, connection::Connection};

/// An operation that waits for a connection.
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) since: Instant,
    pub(super) answer: oneshot::Sender<Result<Connection, CheckOutError>>,
}

/// Connections and waiters of one user. While there are waiters, nothing is available.
pub(super) struct User {
    pub(super) identity: Arc<Identity>,
    /// Last in, first out: those at the bottom grow idle.
    pub(super) available: Vec<Connection>,
    pub(super) in_use: usize,
    pub(super) pending: usize,
    pub(super) waiters: VecDeque<Waiter>,
}

impl User {
    pub(super) fn new(identity: &Arc<Identity>) -> Self {
        Self {
            identity: Arc::clone(identity),
            available: Vec::new(),
            in_use: 0,
            pending: 0,
            waiters: VecDeque::new(),
        }
    }

    pub(super) fn total(&self) -> usize {
        self.available.len() + self.in_use + self.pending
    }

    /// Whether one more connection should be established, if the server's bound lets it.
    pub(super) fn wants_more(&self, limits: &Limits) -> bool {
        let wanted = self
            .waiters
            .len()
            .max(limits.min_pool_size.saturating_sub(self.total()));
        self.pending < limits.max_connecting
            && self.pending < wanted
            && self.total() < limits.max_pool_size
    }

    pub(super) fn is_unused(&self) -> bool {
        self.total() == 0 && self.waiters.is_empty()
    }
}
