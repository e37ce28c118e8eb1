//! One user's connections to a server, and its waiting operations.

use std::sync::Arc;

use super::{Limits, demand::Need, queue::WaitQueue, slots::RESERVE};
use seawall_auth::{Identity, IdentityStatus};
use seawall_transport::connection::Connection;

/// How many of the server's slots a user may use now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Number of free slots.
    pub(super) free: usize,
    /// Number of slots of the user's share that the user does not hold.
    pub(super) missing: usize,
}

/// Connections and waiters of one user. If a ready pool has available connections although
/// operations wait, these operations wait for a slot.
pub(super) struct User {
    pub(super) identity: Arc<Identity>,
    /// The available connections. The last connection is handed out first, so that the first
    /// connections stay unused and can expire.
    #[expect(
        clippy::vec_box,
        reason = "each operation moves its connection several times"
    )]
    pub(super) available: Vec<Box<Connection>>,
    pub(super) in_use: usize,
    pub(super) pending: usize,
    pub(super) waiters: WaitQueue,
    /// True if the user is in `Inner::turns`.
    pub(super) has_turn: bool,
    /// For each need, true if the user is in the list of `Inner::ready` for this need.
    pub(super) is_listed: [bool; Need::ALL.len()],
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
            is_listed: Default::default(),
        }
    }

    pub(super) fn total(&self) -> usize {
        self.available.len() + self.in_use + self.pending
    }

    /// True if the user no longer exists. Its connections must not be used any more.
    pub(super) fn is_gone(&self) -> bool {
        self.identity.status() == IdentityStatus::Gone
    }

    /// True if the user needs another connection and its own limits allow one. The limit of the
    /// server is not checked here.
    pub(super) fn wants_more(&self, limits: &Limits, room: Room) -> bool {
        let spare = limits.min_pool_size.saturating_sub(self.total());
        let missing = self.needed(room).saturating_sub(self.available.len());
        self.pending < limits.max_connecting
            && self.pending < missing.max(spare)
            && self.total() < limits.max_pool_size
    }

    /// Number of connections that the waiters could use. A waiter that has to wait for a slot does
    /// not need a connection yet. But a user with fewer slots than its share needs connections
    /// before slots can pass to it.
    pub(super) fn needed(&self, room: Room) -> usize {
        let [nothing, lane, urgent, slot] = Need::ALL.map(|need| self.waiters.len_of(need));
        let slots = room.free.max(room.missing);
        let urgent_slots = slots.max(RESERVE);
        nothing + lane + urgent.min(urgent_slots) + slot.min(slots)
    }

    /// True if a connection is available for a waiter with this need.
    pub(super) fn is_ready(&self, need: Need) -> bool {
        !self.available.is_empty() && self.waiters.len_of(need) > 0
    }

    pub(super) fn is_unused(&self) -> bool {
        self.total() == 0 && self.waiters.is_empty() && !self.has_turn
    }
}
