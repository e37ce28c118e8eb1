//! One user's connections to a server, and its waiting operations.

use std::sync::Arc;

use super::{Limits, queue::WaitQueue};
use seawall_auth::Identity;
use seawall_transport::connection::Connection;

/// Connections and waiters of one user. In a ready pool, no connection is available while
/// operations wait.
pub(super) struct User {
    pub(super) identity: Arc<Identity>,
    /// The available connections. The last one is handed out first, so the first ones become idle.
    pub(super) available: Vec<Connection>,
    pub(super) in_use: usize,
    pub(super) pending: usize,
    pub(super) waiters: WaitQueue,
    /// True if the user is in `Inner::turns`.
    pub(super) has_turn: bool,
}

impl User {
    pub(super) fn new(identity: &Arc<Identity>) -> Self {
        Self {
            identity: Arc::clone(identity),
            available: Vec::new(),
            in_use: 0,
            pending: 0,
            waiters: WaitQueue::default(),
            has_turn: false,
        }
    }

    pub(super) fn total(&self) -> usize {
        self.available.len() + self.in_use + self.pending
    }

    /// True if the user needs another connection and its own limits allow one. The limit of the
    /// server is not checked here.
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
        self.total() == 0 && self.waiters.is_empty() && !self.has_turn
    }
}
