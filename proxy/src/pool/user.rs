//! One user's connections to a server, and its waiting operations.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{PoolLimits, demand::Need, queue::WaitQueue, slots::RESERVE};
use seawall_auth::{Identity, IdentityStatus};
use seawall_transport::connection::Connection;

/// After a command of Seawall itself has waited for this time, a connection of the reserve (see
/// [`super::reserve`]) may be established for the command.
const LATE: Duration = Duration::from_millis(100);

/// How many slots and connections of a server one user may still use.
#[derive(Clone, Copy, Debug)]
pub(super) struct UserRoom {
    /// Number of free slots.
    pub(super) free: usize,
    /// Number of slots of the user's share that the user does not hold.
    pub(super) missing: usize,
    /// Number of connections that the user's operations with [`Need::Slot`] may use in addition to
    /// the connections that are in use.
    pub(super) left: usize,
}

impl UserRoom {
    /// The room for operations that begin now: only the free slots count, not the slots that the
    /// user could get later (`missing`).
    pub(super) fn now(self) -> Self {
        Self { missing: 0, ..self }
    }
}

/// Connections and waiters of one user. In a ready pool, a user can have waiters and available
/// connections at the same time for these reasons:
///
/// - The waiters still need a slot.
/// - The waiters are not urgent (see [`super::reserve`]), and other operations of the user that are
///   not urgent already use `max_pool_size` connections.
/// - The waiters have [`Need::Slot`], and operations of all users that are not urgent already use
///   all connections to the server that are not reserved.
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
    /// Number of the user's connections that urgent operations use. Urgent operations may use the
    /// reserve (see [`super::reserve`]).
    pub(super) urgent: usize,
    pub(super) pending: usize,
    pub(super) waiters: WaitQueue,
    /// True if the user is in `Inner::turns`, the order in which connections are established for
    /// users with waiters.
    pub(super) has_turn: bool,
    /// For each need, true if the user is in the list for this need in `Inner::ready`. This list
    /// contains the users that have a waiter with this need, and an available connection that this
    /// waiter may use.
    pub(super) is_listed: [bool; Need::ALL.len()],
    /// True if a command of Seawall itself has waited for at least [`LATE`].
    has_late_command: bool,
    /// Set when a connection could not be established. Until this time, Seawall establishes
    /// connections only for waiters, and none for `min_pool_size`. `None` if the last attempt
    /// succeeded, or if there was none.
    pub(super) refill_after: Option<Instant>,
    /// True if no connection could be established at the last attempt because of the login. Either
    /// the server refused the user's keys, or the server requires a login and the user is the
    /// anonymous one.
    pub(super) is_refused: bool,
}

impl User {
    pub(super) fn new(identity: &Arc<Identity>) -> Self {
        Self {
            identity: Arc::clone(identity),
            available: Vec::new(),
            in_use: 0,
            urgent: 0,
            pending: 0,
            waiters: WaitQueue::default(),
            has_turn: false,
            is_listed: Default::default(),
            has_late_command: false,
            refill_after: None,
            is_refused: false,
        }
    }

    pub(super) fn total(&self) -> usize {
        self.available.len() + self.in_use + self.pending
    }

    /// Number of the user's connections that ordinary operations use. Ordinary operations are all
    /// operations that are not urgent (see [`super::reserve`]).
    pub(super) fn ordinary(&self) -> usize {
        self.in_use - self.urgent
    }

    /// True if the user no longer exists. Its connections must not be used any more.
    pub(super) fn is_gone(&self) -> bool {
        self.identity.status() == IdentityStatus::Gone
    }

    /// True if no client can use the user's connections any more: the user no longer exists, or a
    /// server has refused the user's keys and none of the user's operations waits.
    pub(super) fn is_ended(&self) -> bool {
        match self.identity.status() {
            IdentityStatus::Good => false,
            IdentityStatus::Gone => true,
            IdentityStatus::Refused => self.waiters.is_empty(),
        }
    }

    /// True if the user's waiters need another connection and the user's own limits allow one.
    /// [`PoolLimits::max_server_connections`] is not checked here.
    pub(super) fn wants_more(&self, limits: &PoolLimits, room: UserRoom) -> bool {
        let needed = self.needed(limits, room) - self.commands_without_login();
        let missing = needed.saturating_sub(self.available.len());
        let max = match self.lacks_urgent_connection() {
            true => limits.max_with_reserve(),
            false => limits.max_pool_size,
        };
        self.pending < limits.max_connecting && self.pending < missing && self.total() < max
    }

    /// Number of waiting commands of Seawall itself for which Seawall must not establish a
    /// connection, because the login would fail. A failed login would disconnect all clients of the
    /// user, although the user's open connections stay logged in. So the commands wait for one of
    /// these connections.
    fn commands_without_login(&self) -> usize {
        let commands = self.waiters.len_of(Need::Nothing);
        let must_wait = commands > 0 && self.total() > 0 && !self.identity.can_log_in();
        if must_wait { commands } else { 0 }
    }

    /// True if Seawall must establish a connection to reach `min_pool_size`: the user has fewer
    /// connections, `refill_after` has passed, and Seawall has what it needs to log in as the user.
    /// After a refused login, a user without connections and waiters gets no connection: the user
    /// may have been dropped or may have a new password. [`PoolLimits::max_connecting`] is not
    /// checked here.
    pub(super) fn is_short(&self, limits: &PoolLimits, now: Instant) -> bool {
        let is_given_up = self.is_refused && self.total() == 0 && self.waiters.is_empty();
        self.total() < limits.min_pool_size.min(limits.max_pool_size)
            && !is_given_up
            && self.refill_after.is_none_or(|at| at <= now)
            && self.identity.can_log_in()
    }

    /// Number of connections that the waiters could use. A waiter that has to wait for a slot does
    /// not need a connection yet. But a user with fewer slots than its share needs connections
    /// before it can get more slots.
    pub(super) fn needed(&self, limits: &PoolLimits, room: UserRoom) -> usize {
        let [nothing, lane, urgent, slot] = Need::ALL.map(|need| self.waiters.len_of(need));
        let slots = room.free.max(room.missing);
        let urgent_slots = slots.max(RESERVE);
        let ordinary = lane + slot.min(slots).min(room.left);
        let left = limits.max_pool_size.saturating_sub(self.ordinary());
        nothing + urgent.min(urgent_slots) + ordinary.min(left)
    }

    /// True if the user has more waiting urgent operations than available and pending connections.
    /// Then a connection of the reserve may be established. Waiting commands of Seawall itself
    /// count here only if one of them is late.
    pub(super) fn lacks_urgent_connection(&self) -> bool {
        let own = match self.has_late_command {
            true => self.waiters.len_of(Need::Nothing),
            false => 0,
        };
        let urgent = self.waiters.len_of(Need::SlotOrReserve) + own;
        urgent > self.available.len() + self.pending
    }

    /// Records whether a command of Seawall itself has waited for at least [`LATE`]. Usually a
    /// command of Seawall itself waits for a shorter time: an operation of the user ends, and the
    /// command gets the connection of this operation. So no further connection is needed.
    pub(super) fn note_late_command(&mut self, now: Instant) {
        let next = self.waiters.peek(Need::Nothing);
        self.has_late_command =
            next.is_some_and(|waiter| now.saturating_duration_since(waiter.since) >= LATE);
    }

    /// True if an operation with this need may use one more connection of the user.
    /// [`PoolLimits::max_server_connections`] is not checked here.
    pub(super) fn may_use(&self, need: Need, limits: &PoolLimits) -> bool {
        need.may_use_reserve() || self.ordinary() < limits.max_pool_size
    }

    /// True if a connection is available for a waiter with this need, and the user's limit allows
    /// its use.
    pub(super) fn is_ready(&self, need: Need, limits: &PoolLimits) -> bool {
        !self.available.is_empty() && self.waiters.len_of(need) > 0 && self.may_use(need, limits)
    }

    /// Removes the available connections that have been idle for [`PoolLimits::max_idle_time`],
    /// starting with the connection that has been idle for the longest time. Leaves the user at
    /// least [`PoolLimits::min_pool_size`] connections.
    pub(super) fn extract_idle(
        &mut self,
        limits: &PoolLimits,
        now: Instant,
    ) -> impl Iterator<Item = Box<Connection>> {
        let idle = |c: &Connection| now.saturating_duration_since(c.last_used_at);
        let is_idle = |c: &Connection| limits.max_idle_time.is_some_and(|limit| idle(c) >= limit);
        let surplus = self.total().saturating_sub(limits.min_pool_size);
        // The connection that was checked in last is at the end.
        let candidates = self.available.iter().take(surplus);
        let count = candidates.take_while(|c| is_idle(c)).count();
        self.available.drain(..count)
    }

    /// True if the pool can remove the user: it has no connections and no waiters, is not in
    /// `Inner::turns`, and its `refill_after` has passed.
    pub(super) fn is_unused(&self, now: Instant) -> bool {
        let is_paused = self.refill_after.is_some_and(|at| now < at);
        self.total() == 0 && self.waiters.is_empty() && !self.has_turn && !is_paused
    }
}
