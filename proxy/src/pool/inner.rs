//! The state of one server's connections, and every decision about them. This module reads no clock
//! and waits for nothing. The caller provides the time, and the function that checks if a
//! connection has ended.

mod dispatch;
mod growth;
mod room_searches;
mod snapshot;
mod state;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::{sync::oneshot, time::Instant};

pub use self::snapshot::Waits;
pub(crate) use self::state::Suspicion;
use self::{room_searches::RoomSearches, state::PoolState};
use super::{
    CheckOutError, Overload, PoolLimits, Renewal,
    demand::{Demand, Need},
    latency::Latency,
    queue::{Granted, Ticket, WaitQueue, Waiter},
    slots::{LimitReset, RESERVE, ResetCause, Slot, Slots, Update, Usage},
    user::User,
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityId};
use seawall_transport::connection::{Connection, Generation};

/// Maximum number of users for which one call of [`Inner::tick`] requests new connections. The
/// number is limited, because the pool is locked during the call. The connections are established
/// after it.
const MAX_USERS_GROWN: usize = 64;

/// The result of [`Inner::check_out`].
pub(super) enum Start {
    Ready(Box<Connection>, Slot),
    Wait(Ticket, ResultReceiver),
    Refused(CheckOutError),
}

pub(super) type ResultReceiver = oneshot::Receiver<Granted>;

/// A connection that is checked in, or that was just established.
pub(super) struct Returned {
    pub(super) connection: Box<Connection>,
    /// The slot of the checkout; `None` if the connection was just established.
    pub(super) slot: Option<Slot>,
    pub(super) usage: Usage,
    /// The reason to close the connection; `None` to keep it.
    pub(super) perished: Option<CloseReason>,
}

impl Returned {
    /// A connection that was checked out and not used.
    pub(super) fn unused(connection: Box<Connection>, slot: Slot) -> Self {
        Self {
            connection,
            slot: Some(slot),
            usage: Usage::default(),
            perished: None,
        }
    }
}

/// A connection and a slot that a waiter gets.
pub(super) struct HandOver {
    pub(super) identity: Arc<Identity>,
    pub(super) grant: oneshot::Sender<Granted>,
    pub(super) connection: Box<Connection>,
    pub(super) slot: Slot,
}

/// The work that a method of [`Inner`] leaves to its caller. The caller does this work after it has
/// released the pool's lock, so that no other thread waits for the lock during the work.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) hand_over: Vec<HandOver>,
    pub(super) fail: Vec<(oneshot::Sender<Granted>, CheckOutError)>,
    /// The caller closes these connections by dropping them.
    pub(super) close: Vec<(Box<Connection>, CloseReason)>,
    pub(super) establish: Vec<(Arc<Identity>, Generation)>,
    /// True if the earliest deadline of all waiters is now earlier than before. The task that calls
    /// [`Inner::expire`] must then check the deadlines again.
    pub(super) must_wake_expiry: bool,
    /// True if the regular calls of [`Inner::tick`] had stopped and must start again.
    pub(super) must_wake_ticks: bool,
    /// A reset of the concurrency limit, if there was one. The caller counts and logs the reset.
    pub(super) limit_reset: Option<LimitReset>,
}

pub(super) struct Inner {
    limits: PoolLimits,
    state: PoolState,
    generation: Generation,
    users: HashMap<IdentityId, User, RandomState>,
    slots: Slots,
    latency: Latency,
    /// Number of connections of all users, in any state.
    total: usize,
    /// The users in the order in which connections are established for them. Every user with
    /// waiters is in this list. A user whose waiters were served or have left may still be in the
    /// list: such a user gets no connection.
    turns: VecDeque<IdentityId>,
    /// The users that had fewer than [`PoolLimits::min_pool_size`] connections at the last call of
    /// [`Self::maintain`], in the order in which connections are established for them. A user that
    /// no longer needs a connection may still be in the list.
    short: VecDeque<IdentityId>,
    /// For each need, a list of users in the order in which they get slots. A user is added if a
    /// waiter with this need may use an available connection of the user. A user whose waiters were
    /// served or have left may still be in the list: such a user gets no slot. The lists of needs
    /// without a slot are always empty.
    ready: [VecDeque<IdentityId>; Need::ALL.len()],
    /// True if the waiter that last got a free slot was an operation that other operations may wait
    /// for. The next free slot then goes to an operation with [`Need::Slot`], if one waits.
    was_urgent: bool,
    /// While all slots are taken, [`Slots::may_exceed`] still allows some users to run an
    /// operation. The next search for such users in a list of `ready` begins at this position. All
    /// lists share this position.
    examined: usize,
    /// Number of waiters of all users.
    waiting: usize,
    /// Number of connections of all users that are in use.
    in_use: usize,
    /// Number of connections that urgent operations of all users use. Urgent operations may use the
    /// reserve (see [`super::reserve`]).
    urgent: usize,
    /// Number of connections of all users that are being established.
    pending: usize,
    next_ticket: u64,
    /// A time at or before the earliest deadline of all waiters. It may be too early, because the
    /// waiter with this deadline may have been served or have left. `None` only if no operation
    /// waits.
    expires_at: Option<Instant>,
    /// When the pool last became suspect ([`PoolState::Suspect`]); `None` if the pool was never
    /// suspect.
    last_suspected: Option<Instant>,
    /// Returns true if an available connection has ended.
    has_ended: fn(&mut Connection) -> bool,
    /// Number of searches for an available connection to close for another user.
    #[cfg(test)]
    pub(super) room_searches: usize,
}

impl Inner {
    /// Creates a paused pool. `has_ended` returns true for a connection that has ended while it was
    /// available. `seed` differs for each proxy and server, so that different pools try out new
    /// concurrency limits at different times.
    pub(super) fn new(
        limits: PoolLimits,
        has_ended: fn(&mut Connection) -> bool,
        seed: u64,
        now: Instant,
    ) -> Self {
        Self {
            slots: Slots::new(&limits, seed, now),
            limits,
            latency: Latency::default(),
            state: PoolState::Paused,
            generation: Generation::default(),
            users: HashMap::default(),
            total: 0,
            turns: VecDeque::new(),
            short: VecDeque::new(),
            ready: Default::default(),
            was_urgent: false,
            examined: 0,
            waiting: 0,
            in_use: 0,
            urgent: 0,
            pending: 0,
            next_ticket: 0,
            expires_at: None,
            last_suspected: None,
            has_ended,
            #[cfg(test)]
            room_searches: 0,
        }
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Records that an operation took at least this long at the server.
    pub(super) fn observe_latency_of_at_least(&mut self, took: Duration, now: Instant) {
        self.latency.observe_at_least(took, now);
    }

    /// The server's current latency in seconds.
    pub(super) fn latency_seconds(&self, now: Instant) -> f64 {
        self.latency.seconds(now)
    }

    /// Begins a checkout. A waiter fails at `deadline` or after [`PoolLimits::wait_queue_timeout`],
    /// whichever is earlier. At that time, the caller must call [`Self::expire`], which fails the
    /// waiter.
    pub(super) fn check_out(
        &mut self,
        identity: &Arc<Identity>,
        demand: Demand,
        now: Instant,
        deadline: Instant,
    ) -> (Start, Todo) {
        let mut todo = Todo::default();
        match self.state {
            PoolState::Paused => return (Start::Refused(CheckOutError::Paused), todo),
            PoolState::Closed => return (Start::Refused(CheckOutError::Closed), todo),
            PoolState::Ready | PoolState::Suspect { .. } => {}
        }
        todo.must_wake_ticks = self.slots.wake(now);
        let may_begin = self.admit(identity.id(), demand.need, now, &mut todo);
        let user = self
            .users
            .entry(identity.id())
            .or_insert_with(|| User::new(identity));
        let may_begin = may_begin && user.may_use(demand.need, &self.limits);
        while let Some(connection) = user.available.pop_if(|_| may_begin) {
            match self.limits.perished(&connection, self.generation, now) {
                Some(reason) => {
                    self.total -= 1;
                    todo.close.push((connection, reason));
                }
                None => {
                    user.in_use += 1;
                    self.in_use += 1;
                    if demand.need.may_use_reserve() {
                        user.urgent += 1;
                        self.urgent += 1;
                    }
                    let slot = self.slots.take(identity.id(), &demand, None, now);
                    return (Start::Ready(connection, slot), todo);
                }
            }
        }
        if demand.need != Need::Nothing && self.waiting >= self.limits.wait_queue_size {
            let full = CheckOutError::Overload(Overload::QueueFull);
            let Some(waiter) = self.make_room_in_queue(identity.id(), demand) else {
                return (Start::Refused(full), todo);
            };
            self.fail(vec![waiter], &full, now, &mut todo);
        }
        let deadline = deadline.min(now + self.limits.wait_queue_timeout);
        let (ticket, receiver) = self.enqueue(identity, demand, now, deadline);
        todo.must_wake_expiry = self.expires_at.is_none_or(|at| deadline < at);
        if todo.must_wake_expiry {
            self.expires_at = Some(deadline);
        }
        self.list(identity.id());
        self.grow(identity.id(), &mut todo);
        (Start::Wait(ticket, receiver), todo)
    }

    fn enqueue(
        &mut self,
        identity: &Arc<Identity>,
        demand: Demand,
        now: Instant,
        deadline: Instant,
    ) -> (Ticket, ResultReceiver) {
        let number = self.next_ticket;
        let ticket = Ticket { demand, number };
        self.next_ticket += 1;
        let (grant, receiver) = oneshot::channel();
        let users = self.users.entry(identity.id());
        let user = users.or_insert_with(|| User::new(identity));
        let waiter = Waiter {
            user: identity.id(),
            ticket,
            since: demand.waits_since.unwrap_or(now),
            deadline,
            grant,
        };
        user.waiters.push(waiter);
        self.waiting += 1;
        self.slots.begin_wait(identity.id(), demand.need, now);
        if !user.has_turn {
            user.has_turn = true;
            match demand.need {
                Need::Nothing => self.turns.push_front(identity.id()),
                Need::LanePermit | Need::SlotOrReserve | Need::Slot => {
                    self.turns.push_back(identity.id());
                }
            }
        }
        (ticket, receiver)
    }

    /// Removes a waiter from the full wait queue to make room for a new waiter of user `id` with
    /// this demand. `None` if no waiter may be removed; the new waiter is then refused.
    ///
    /// First case: user `id` has less than an equal share of the queue, and another user has at
    /// least two waiters more than `id`. Then a waiter of the user with the most waiters is
    /// removed.
    ///
    /// Second case, otherwise: a waiter of user `id` itself is removed.
    ///
    /// - If the new waiter has [`Need::SlotOrReserve`], a waiter with [`Need::Slot`] is removed.
    ///   But a client address can replace waiters of other addresses only while fewer than
    ///   [`RESERVE`] of its own waiters have [`Need::SlotOrReserve`]. From this number on, a waiter
    ///   with [`Need::Slot`] and the same address is removed.
    /// - If the new waiter has another need, or if there is no such waiter,
    ///   [`WaitQueue::make_room`](super::queue::WaitQueue::make_room) selects the waiter.
    fn make_room_in_queue(&mut self, id: IdentityId, demand: Demand) -> Option<Waiter> {
        let own = self.users.get(&id).map_or(0, |user| user.waiters.len());
        // Other users are examined only while user `id` has less than an equal share of the queue.
        // A user with its full share must not remove waiters of other users.
        if own.saturating_mul(self.turns.len()) < self.limits.wait_queue_size {
            let users = self.users.values_mut();
            let greediest = users.max_by_key(|user| user.waiters.len())?;
            if greediest.waiters.len() > own + 1 {
                return greediest.waiters.shed();
            }
        }
        let waiters = &mut self.users.get_mut(&id)?.waiters;
        let Demand { need, from, .. } = demand;
        let shed = match need {
            Need::SlotOrReserve if waiters.len_from(from, need) < RESERVE => {
                waiters.shed_of(Need::Slot)
            }
            Need::SlotOrReserve => waiters.shed_from(from, Need::Slot),
            Need::Nothing | Need::LanePermit | Need::Slot => None,
        };
        shed.or_else(|| waiters.make_room(from))
    }

    /// Ends the waits of these waiters: each waiter gets `error`. The caller has already removed
    /// the waiters from their queues.
    fn fail(&mut self, waiters: Vec<Waiter>, error: &CheckOutError, now: Instant, todo: &mut Todo) {
        for waiter in waiters {
            self.waiting -= 1;
            self.slots
                .end_wait(waiter.user, waiter.ticket.demand.need, now);
            todo.fail.push((waiter.grant, error.clone()));
        }
    }

    pub(super) fn check_in(&mut self, id: IdentityId, returned: Returned, now: Instant) -> Todo {
        let mut todo = Todo::default();
        let Returned {
            mut connection,
            slot,
            usage,
            perished,
        } = returned;
        let need = slot.map(|slot| self.slots.release(slot, usage, now));
        if let Some(latency) = usage.latency {
            self.latency.observe(latency, now);
        }
        let Some(user) = self.users.get_mut(&id) else {
            // This is impossible: a checked-out connection is counted as in use, and a user with
            // connections in use is not removed.
            debug_assert!(false, "check-in for an unknown user");
            return todo;
        };
        let is_ended = user.is_ended();
        let is_excess = user.total() > self.limits.max_with_reserve()
            || self.total > self.limits.max_server_connections;
        user.in_use -= 1;
        self.in_use -= 1;
        if need.is_some_and(Need::may_use_reserve) {
            user.urgent -= 1;
            self.urgent -= 1;
        }
        let is_for_other = self.decide_to_give_way(id, &connection, need, now);
        let is_closed = self.state == PoolState::Closed;
        let reason = perished
            .or_else(|| is_closed.then_some(CloseReason::PoolClosed))
            .or_else(|| is_ended.then_some(CloseReason::Unauthorized))
            .or_else(|| self.limits.perished(&connection, self.generation, now))
            .or_else(|| (is_for_other || is_excess).then_some(CloseReason::GaveWay));
        if let Some(reason) = reason {
            self.total -= 1;
            todo.close.push((connection, reason));
        } else if let Some(user) = self.users.get_mut(&id) {
            connection.last_used_at = now;
            user.available.push(connection);
        }
        self.hand_over(id, now, &mut todo);
        let is_slot_unused = self.slots.free() > 0 && self.slots.has_waiting();
        if is_slot_unused || reason.is_some() {
            self.use_room(id, &mut todo);
        }
        todo
    }

    /// Number of available connections of a user; `None` if the pool does not know the user.
    pub(super) fn available_of(&self, id: IdentityId) -> Option<usize> {
        self.users.get(&id).map(|user| user.available.len())
    }

    /// Removes a waiter whose checkout was cancelled.
    pub(super) fn leave(&mut self, id: IdentityId, ticket: Ticket, now: Instant) {
        if let Some(user) = self.users.get_mut(&id)
            && user.waiters.remove(ticket).is_some()
        {
            self.waiting -= 1;
            self.slots.end_wait(id, ticket.demand.need, now);
        }
    }

    /// Fails all waiters whose deadline has passed. Returns a time at or before the earliest
    /// remaining deadline; `None` if no operation waits.
    pub(super) fn expire(&mut self, now: Instant) -> (Option<Instant>, Todo) {
        let mut todo = Todo::default();
        if self.expires_at.is_some_and(|at| at <= now) {
            let users = self.users.values_mut();
            let expired = users.flat_map(|user| user.waiters.remove_expired(now));
            let expired: Vec<_> = expired.collect();
            let error = CheckOutError::Overload(Overload::TimedOut);
            self.fail(expired, &error, now, &mut todo);
            let waiters = self.users.values().map(|user| &user.waiters);
            self.expires_at = waiters.filter_map(WaitQueue::earliest_deadline).min();
        }
        (self.expires_at, todo)
    }

    /// Updates the concurrency limit. Then gives free slots to waiters, and establishes connections
    /// for waiters. Returns `None` if there is no limit, or if [`Slots::is_idle`] is true. In both
    /// cases, no update is needed until [`Todo::must_wake_ticks`] is true.
    pub(super) fn tick(&mut self, now: Instant) -> Option<(Update, Todo)> {
        if self.slots.is_idle() {
            self.slots.sleep();
            return None;
        }
        let update = self.slots.tick(now)?;
        let mut todo = Todo::default();
        if self.state == PoolState::Ready && self.waiting > 0 {
            self.fill_slots(now, &mut todo);
            let count = self.turns.len().min(MAX_USERS_GROWN);
            let ids: Vec<_> = self.turns.iter().copied().take(count).collect();
            self.turns.rotate_left(count);
            let mut searches = RoomSearches::default();
            for id in ids {
                if let Some(user) = self.users.get_mut(&id) {
                    user.note_late_command(now);
                }
                self.grow_in(&mut searches, id, &mut todo);
            }
        }
        Some((update, todo))
    }

    /// Applies changed limits. Available connections over a new maximum are closed at once, and
    /// connections in use are closed at check-in. But at check-in, a user keeps as many connections
    /// over [`PoolLimits::max_pool_size`] as the reserve has (see [`super::reserve`]). Connections
    /// keep the maximum age with which they were established.
    pub(super) fn set_limits(&mut self, limits: PoolLimits, now: Instant) -> Todo {
        let limit_reset = self.slots.configure(&limits, now);
        let is_smaller = limits.max_pool_size < self.limits.max_pool_size;
        self.limits = limits;
        let mut todo = Todo {
            must_wake_ticks: self.waiting > 0 && self.slots.wake(now),
            limit_reset,
            ..Todo::default()
        };
        if is_smaller {
            self.close_excess_of_users(&mut todo);
        }
        self.close_excess_of_server(&mut todo);
        self.serve_all_users(now, &mut todo);
        todo
    }

    /// Hands available connections to the waiters of all users, and then establishes the
    /// connections that the waiters still need, as far as the limits allow.
    fn serve_all_users(&mut self, now: Instant, todo: &mut Todo) {
        let ids: Vec<_> = self.users.keys().copied().collect();
        for id in &ids {
            self.hand_over(*id, now, todo);
        }
        let mut searches = RoomSearches::default();
        for id in ids {
            self.use_room_in(&mut searches, id, todo);
        }
    }

    /// Closes available connections over `max_pool_size`. The connections that have been unused for
    /// the longest time are closed first.
    fn close_excess_of_users(&mut self, todo: &mut Todo) {
        for user in self.users.values_mut() {
            let excess = user.total().saturating_sub(self.limits.max_pool_size);
            let count = excess.min(user.available.len());
            self.total -= count;
            let closed = user.available.drain(..count);
            todo.close.extend(closed.map(|c| (c, CloseReason::GaveWay)));
        }
    }

    /// Closes available connections over `max_server_connections`. The connections that have been
    /// unused for the longest time are closed first.
    fn close_excess_of_server(&mut self, todo: &mut Todo) {
        let max = self.limits.max_server_connections;
        let excess = self.total.saturating_sub(max);
        if excess == 0 {
            return;
        }
        let unused_since = |user: &User| {
            let id = user.identity.id();
            let times = user.available.iter().map(move |c| (c.last_used_at, id));
            times.collect::<Vec<_>>()
        };
        let mut unused: Vec<_> = self.users.values().flat_map(unused_since).collect();
        unused.sort_unstable();
        for (_, id) in unused.into_iter().take(excess) {
            if let Some(user) = self.users.get_mut(&id) {
                // The first connection of a user has been unused for longest.
                let closed = user.available.remove(0);
                todo.close.push((closed, CloseReason::GaveWay));
                self.total -= 1;
            }
        }
    }

    /// Discards what was learned about the server's concurrency limit, because the server has
    /// changed its type, for example from secondary to primary.
    pub(super) fn reset_limit(&mut self, now: Instant) -> Todo {
        Todo {
            limit_reset: self.slots.reset(ResetCause::ServerType, now),
            ..Todo::default()
        }
    }

    /// Closes the available connections of a user that no longer exists, or whose keys a server has
    /// refused.
    pub(super) fn forget(&mut self, id: IdentityId) -> Todo {
        let mut todo = Todo::default();
        if let Some(user) = self.users.get_mut(&id) {
            self.total -= user.available.len();
            let closed = user.available.drain(..);
            todo.close
                .extend(closed.map(|c| (c, CloseReason::Unauthorized)));
        }
        self.use_room(id, &mut todo);
        todo
    }

    /// Closes available connections that must not be handed out any more, removes unused users, and
    /// establishes connections for waiters and for [`PoolLimits::min_pool_size`]. Called once a
    /// second.
    pub(super) fn maintain(
        &mut self,
        now: Instant,
        has_ended: impl Fn(&mut Connection) -> bool,
    ) -> Todo {
        let mut todo = Todo::default();
        for user in self.users.values_mut() {
            user.note_late_command(now);
            let before = user.available.len();
            let is_ended = user.is_ended();
            let perished = |c: &mut Connection| {
                let reason = is_ended.then_some(CloseReason::Unauthorized);
                let reason = reason.or_else(|| self.limits.perished(c, self.generation, now));
                reason.or_else(|| has_ended(c).then_some(CloseReason::Ended))
            };
            let available = user.available.drain(..);
            let (keep, close): (Vec<_>, Vec<_>) = available
                .map(|mut c| (perished(&mut c), c))
                .partition(|(reason, _)| reason.is_none());
            user.available.extend(keep.into_iter().map(|(_, c)| c));
            todo.close.extend(
                close
                    .into_iter()
                    .filter_map(|(reason, c)| Some((c, reason?))),
            );
            let idle = user.extract_idle(&self.limits, now);
            todo.close.extend(idle.map(|c| (c, CloseReason::Idle)));
            self.total -= before - user.available.len();
        }
        self.turns.retain(|id| {
            let user = self.users.get_mut(id);
            user.is_some_and(|user| {
                user.has_turn = !user.waiters.is_empty();
                user.has_turn
            })
        });
        for (need, list) in Need::ALL.into_iter().zip(&mut self.ready) {
            list.retain(|id| {
                let Some(user) = self.users.get_mut(id) else {
                    return false;
                };
                let is_ready = user.is_ready(need, &self.limits);
                if let Some(is_listed) = user.is_listed.get_mut(need.index()) {
                    *is_listed = is_ready;
                }
                is_ready
            });
        }
        let ids: Vec<_> = self.users.keys().copied().collect();
        let mut searches = RoomSearches::default();
        for id in ids {
            self.list(id);
            self.use_room_in(&mut searches, id, &mut todo);
        }
        let short = self.users.iter();
        let short = short.filter(|(_, user)| user.is_short(&self.limits, now));
        self.short = short.map(|(id, _)| *id).collect();
        self.refill(now, &mut todo);
        // A clear closes all connections. The users without connections are kept, because they get
        // their minimum when the pool is ready again, a few users at a time.
        let awaits_ready = self.limits.min_pool_size > 0 && self.state != PoolState::Ready;
        let has_room = self.total < self.limits.max_server_connections;
        self.users.retain(|_, user| {
            !user.is_unused(now)
                || (awaits_ready && !user.is_refused)
                || (has_room && user.is_short(&self.limits, now))
        });
        todo
    }
}

impl PoolLimits {
    /// Returns the reason why a connection must not be handed out any more; `None` if it may be
    /// handed out.
    fn perished(
        &self,
        connection: &Connection,
        generation: Generation,
        now: Instant,
    ) -> Option<CloseReason> {
        if connection.generation != generation {
            return Some(CloseReason::Stale);
        }
        let is_replaced = |renewal: Renewal| renewal.has_replaced(connection, now);
        if connection.expires_at.is_some_and(|at| now >= at)
            || connection.stream.is_worn_out()
            || self.renewal.is_some_and(is_replaced)
        {
            return Some(CloseReason::Expired);
        }
        None
    }
}
