//! The state of one server's connections, and every decision about them. No I/O, no clock.

mod growth;
mod snapshot;
mod state;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::{sync::oneshot, time::Instant};

use self::state::PoolState;
pub use self::{snapshot::Waits, state::Suspicion};
use super::{
    CheckOutError, Limits, Overload,
    demand::{Demand, Need},
    queue::{Granted, Ticket, WaitQueue, Waiter},
    slots::{Slot, Slots, Update, Usage},
    user::User,
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityId, IdentityStatus};
use seawall_transport::{
    Sharer,
    connection::{Connection, Generation},
};

/// Maximum number of users that are examined to find one that may exceed the limit.
const MAX_USERS_TRIED: usize = 8;

/// Maximum number of users for which connections are established after the limit has changed.
const MAX_USERS_GROWN: usize = 64;

/// The result of the start of a checkout.
pub(super) enum Start {
    Ready(Connection, Slot),
    Wait(Ticket, ResultReceiver),
    Refused(CheckOutError),
}

pub(super) type ResultReceiver = oneshot::Receiver<Granted>;

/// A connection that is checked in.
pub(super) struct Returned {
    pub(super) connection: Connection,
    /// `None` if it was just established.
    pub(super) slot: Option<Slot>,
    pub(super) usage: Usage,
    /// The reason to close it, if there is one.
    pub(super) perished: Option<CloseReason>,
}

impl Returned {
    /// A connection that was checked out and not used.
    pub(super) fn unused(connection: Connection, slot: Slot) -> Self {
        Self {
            connection,
            slot: Some(slot),
            usage: Usage::default(),
            perished: None,
        }
    }
}

/// A connection and a slot for a waiter.
pub(super) struct HandOver {
    pub(super) identity: Arc<Identity>,
    pub(super) answer: oneshot::Sender<Granted>,
    pub(super) connection: Connection,
    pub(super) slot: Slot,
}

/// The actions that the caller carries out after it has released the lock.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) hand_over: Vec<HandOver>,
    pub(super) fail: Vec<(oneshot::Sender<Granted>, CheckOutError)>,
    /// The caller closes these connections by dropping them.
    pub(super) close: Vec<(Connection, CloseReason)>,
    pub(super) establish: Vec<(Arc<Identity>, Generation)>,
    /// True if the first deadline of a waiter is earlier than before, so that the task which calls
    /// [`Inner::expire`] must look again.
    pub(super) must_wake_expiry: bool,
    /// True if [`Inner::tick`] must be called regularly again.
    pub(super) must_wake_ticks: bool,
}

pub(super) struct Inner {
    limits: Limits,
    state: PoolState,
    generation: Generation,
    users: HashMap<IdentityId, User>,
    slots: Slots,
    /// Number of connections of all users, in any state.
    total: usize,
    /// The users with waiters, in the order in which connections are established for them. Users
    /// whose waiters have left are skipped.
    turns: VecDeque<IdentityId>,
    /// For each need, the users with waiters and available connections, in the order in which slots
    /// pass to them. Users whose waiters have left are skipped.
    ready: [VecDeque<IdentityId>; Need::ALL.len()],
    /// True if the last slot went to an operation that may unblock others.
    was_urgent: bool,
    /// Number of all users' waiters.
    waiting: usize,
    /// Number of all users' connections that are in use.
    in_use: usize,
    /// Number of users with connections in use.
    holders: usize,
    next_ticket: u64,
    /// No waiter's deadline is earlier. `None` only if no operation waits. The waiter that had this
    /// deadline may have been served or have left.
    expires_at: Option<Instant>,
    /// When the last suspicion began; `None` if there was none.
    last_suspected: Option<Instant>,
    /// True if an available connection has ended.
    has_ended: fn(&mut Connection) -> bool,
}

impl Inner {
    /// Creates a paused pool. `has_ended` is true for a connection that has ended while it was
    /// available. `seed` makes the times of the limit's trials different for each proxy and server.
    pub(super) fn new(
        limits: Limits,
        has_ended: fn(&mut Connection) -> bool,
        seed: u64,
        now: Instant,
    ) -> Self {
        let ceiling = u32::try_from(limits.max_server_connections).unwrap_or(u32::MAX);
        Self {
            slots: Slots::new(limits.concurrency, ceiling, seed, now),
            limits,
            state: PoolState::Paused,
            generation: Generation::default(),
            users: HashMap::new(),
            total: 0,
            turns: VecDeque::new(),
            ready: Default::default(),
            was_urgent: false,
            waiting: 0,
            in_use: 0,
            holders: 0,
            next_ticket: 0,
            expires_at: None,
            last_suspected: None,
            has_ended,
        }
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Begins a checkout. A wait ends at `deadline`, if [`Self::expire`] is called then.
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
        let may_begin =
            self.state == PoolState::Ready && self.may_begin(identity, demand, now, &mut todo);
        let user = self
            .users
            .entry(identity.id())
            .or_insert_with(|| User::new(identity));
        while let Some(connection) = user.available.pop_if(|_| may_begin) {
            match self.limits.perished(&connection, self.generation, now) {
                Some(reason) => {
                    self.total -= 1;
                    todo.close.push((connection, reason));
                }
                None => {
                    self.holders += usize::from(user.in_use == 0);
                    user.in_use += 1;
                    self.in_use += 1;
                    let slot = self.slots.take(&demand, None, now);
                    return (Start::Ready(connection, slot), todo);
                }
            }
        }
        if demand.need != Need::Nothing && self.waiting >= self.limits.wait_queue_size {
            let full = CheckOutError::Overload(Overload::QueueFull);
            let Some(waiter) = self.make_room_in_queue(identity.id(), demand.from) else {
                return (Start::Refused(full), todo);
            };
            self.fail(vec![waiter], &full, now, &mut todo);
        }
        let (ticket, receiver) = self.enqueue(identity, demand, now, deadline);
        todo.must_wake_expiry = self.expires_at.is_none_or(|at| deadline < at);
        if todo.must_wake_expiry {
            self.expires_at = Some(deadline);
        }
        self.list(identity.id());
        self.grow(identity.id(), &mut todo);
        (Start::Wait(ticket, receiver), todo)
    }

    /// True if an operation that has just arrived may begin, if a connection is available. Waiters
    /// are served first from slots that long operations have just left.
    fn may_begin(
        &mut self,
        identity: &Arc<Identity>,
        demand: Demand,
        now: Instant,
        todo: &mut Todo,
    ) -> bool {
        let free = self.slots.free();
        if self.slots.has_room(demand.need, now) && self.slots.free() == free {
            return true;
        }
        if self.slots.free() > free && self.slots.has_waiting() {
            self.fill_slots(now, todo);
            self.use_room(identity.id(), todo);
        }
        self.slots.has_room(demand.need, now) || self.may_exceed(identity.id())
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
        let (answer, receiver) = oneshot::channel();
        let users = self.users.entry(identity.id());
        let user = users.or_insert_with(|| User::new(identity));
        let waiter = Waiter {
            ticket,
            since: now,
            deadline,
            answer,
        };
        user.waiters.push(waiter);
        self.waiting += 1;
        self.slots.begin_wait(demand.need, now);
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

    /// Removes a waiter from the full wait queue to make room for a waiter of user `id` at `from`.
    /// The removed waiter belongs to the user with the most waiters if this user has at least two
    /// waiters more than `id`. Otherwise it belongs to the address of `id` with the most waiters if
    /// this address has at least two waiters more than `from`. Returns `None` if neither is the
    /// case.
    fn make_room_in_queue(&mut self, id: IdentityId, from: Sharer) -> Option<Waiter> {
        let own = self.users.get(&id).map_or(0, |user| user.waiters.len());
        // No other user loses a waiter to a user that already has its share of the queue. So the
        // other users are not examined.
        if own.saturating_mul(self.turns.len()) < self.limits.wait_queue_size {
            let users = self.users.values_mut();
            let greediest = users.max_by_key(|user| user.waiters.len())?;
            if greediest.waiters.len() > own + 1 {
                return greediest.waiters.shed();
            }
        }
        self.users.get_mut(&id)?.waiters.make_room(from)
    }

    /// Ends the waits of removed waiters with an error.
    fn fail(&mut self, waiters: Vec<Waiter>, error: &CheckOutError, now: Instant, todo: &mut Todo) {
        for waiter in waiters {
            self.waiting -= 1;
            self.slots.end_wait(waiter.ticket.demand.need, now);
            todo.fail.push((waiter.answer, error.clone()));
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
        if let Some(slot) = slot {
            self.slots.release(slot, usage, now);
        }
        let is_for_other = self.must_close_for_other_user(id, &connection, now);
        let Some(user) = self.users.get_mut(&id) else {
            // This is impossible: a checked-out connection is counted as in use, and a user with
            // connections in use is not removed.
            debug_assert!(false, "checked in to an unknown user");
            return todo;
        };
        user.in_use -= 1;
        self.in_use -= 1;
        self.holders -= usize::from(user.in_use == 0);
        let is_closed = self.state == PoolState::Closed;
        let reason = perished
            .or_else(|| is_closed.then_some(CloseReason::PoolClosed))
            .or_else(|| {
                (user.identity.status() == IdentityStatus::Gone)
                    .then_some(CloseReason::Unauthorized)
            })
            .or_else(|| self.limits.perished(&connection, self.generation, now))
            .or_else(|| is_for_other.then_some(CloseReason::GaveWay));
        if let Some(reason) = reason {
            self.total -= 1;
            todo.close.push((connection, reason));
            self.use_room(id, &mut todo);
        } else {
            connection.last_used_at = now;
            user.available.push(connection);
        }
        self.hand_over(id, now, &mut todo);
        let is_slot_unused = self.slots.free() > 0 && self.slots.has_waiting();
        if is_slot_unused && reason.is_none() && todo.hand_over.is_empty() {
            self.use_room(id, &mut todo);
        }
        todo
    }

    /// Hands available connections to waiters: those of user `id` to its waiters that need no slot,
    /// and those of all users to waiters that need a slot, as long as slots are free.
    fn hand_over(&mut self, id: IdentityId, now: Instant, todo: &mut Todo) {
        if self.state != PoolState::Ready || self.waiting == 0 {
            return;
        }
        while let Some(need) = self.next_without_slot(id, now) {
            self.serve(id, need, now, todo);
        }
        self.list(id);
        self.fill_slots(now, todo);
    }

    /// True if user `id` may run an operation although all slots are taken: it has less than its
    /// share, and others have more than theirs. Without this rule, long operations of one user
    /// could block all others. The limit is exceeded until operations of the others end, and is
    /// never more than doubled.
    fn may_exceed(&self, id: IdentityId) -> bool {
        let own = self.users.get(&id).map_or(0, |user| user.in_use);
        let holders = self.holders + usize::from(own == 0);
        let share = self.slots.share(self.turns.len().max(holders));
        own < share && self.in_use > share.saturating_mul(self.holders) && !self.slots.is_doubled()
    }

    /// True if a user has more than its share of the slots, and the limit is not doubled yet.
    fn is_unequal(&self) -> bool {
        let share = self.slots.share(self.turns.len().max(self.holders + 1));
        self.in_use > share.saturating_mul(self.holders) && !self.slots.is_doubled()
    }

    /// The need of the user's next waiter that needs no slot, if a connection is available for it.
    /// An older waiter of the same user is served first if a slot is free.
    fn next_without_slot(&mut self, id: IdentityId, now: Instant) -> Option<Need> {
        let has_slot = self.slots.has_room(Need::Slot, now);
        let user = self.users.get(&id)?;
        if user.is_ready(Need::Nothing) {
            return Some(Need::Nothing);
        }
        if !user.is_ready(Need::LanePermit) {
            return None;
        }
        let number = |need| user.waiters.peek(need).map(|waiter| waiter.ticket.number);
        let is_first = number(Need::Slot).is_none_or(|slot| number(Need::LanePermit) < Some(slot));
        match is_first || !has_slot {
            true => Some(Need::LanePermit),
            false => Some(Need::Slot),
        }
    }

    /// Adds a user to the lists of `ready`, if it has waiters for slots and available connections.
    fn list(&mut self, id: IdentityId) {
        let Some(user) = self.users.get_mut(&id) else {
            return;
        };
        for need in [Need::SlotOrReserve, Need::Slot] {
            let index = need.index();
            if user.is_ready(need)
                && let Some(is_listed) = user.is_listed.get_mut(index)
                && !std::mem::replace(is_listed, true)
                && let Some(list) = self.ready.get_mut(index)
            {
                list.push_back(id);
            }
        }
    }

    /// Gives free slots to the ready users in turn, and lets users exceed the limit that may.
    fn fill_slots(&mut self, now: Instant, todo: &mut Todo) {
        while let Some(need) = self.next_need(now) {
            self.serve_ready(need, 0, now, todo);
        }
        let list = self.ready.get(Need::Slot.index());
        let mut tries = list.map_or(0, VecDeque::len).min(MAX_USERS_TRIED);
        while tries > 0
            && self.is_unequal()
            && let Some(list) = self.ready.get(Need::Slot.index())
            && let mut first = list.iter().take(MAX_USERS_TRIED)
            && let Some(position) = first.position(|id| self.may_exceed(*id))
        {
            self.serve_ready(Need::Slot, position, now, todo);
            tries -= 1;
        }
    }

    /// The need of the next waiter that can get a slot or a part of the reserve. While both kinds
    /// of operations wait for slots, they are served in turn.
    fn next_need(&mut self, now: Instant) -> Option<Need> {
        let [urgent, other] = [Need::SlotOrReserve, Need::Slot].map(|need| {
            let list = self.ready.get(need.index());
            list.is_some_and(|list| !list.is_empty())
        });
        if !urgent && !other {
            return None;
        }
        if self.slots.has_room(Need::Slot, now) {
            self.was_urgent = urgent && !(other && self.was_urgent);
            return Some(match self.was_urgent {
                true => Need::SlotOrReserve,
                false => Need::Slot,
            });
        }
        let has_room = urgent && self.slots.has_room(Need::SlotOrReserve, now);
        has_room.then_some(Need::SlotOrReserve)
    }

    /// Serves the user at this position of the list for a need.
    fn serve_ready(&mut self, need: Need, position: usize, now: Instant, todo: &mut Todo) {
        let index = need.index();
        let list = self.ready.get_mut(index);
        let Some(id) = list.and_then(|list| list.remove(position)) else {
            return;
        };
        if let Some(user) = self.users.get_mut(&id)
            && let Some(is_listed) = user.is_listed.get_mut(index)
        {
            *is_listed = false;
        }
        self.serve(id, need, now, todo);
        self.list(id);
    }

    /// Hands a connection of a user to its next waiter with this need, if it has both.
    fn serve(&mut self, id: IdentityId, need: Need, now: Instant, todo: &mut Todo) {
        let Some(user) = self.users.get_mut(&id) else {
            return;
        };
        while user.is_ready(need)
            && let Some(mut connection) = user.available.pop()
        {
            let mut reason = self.limits.perished(&connection, self.generation, now);
            if connection.last_used_at != now && (self.has_ended)(&mut connection) {
                reason = Some(CloseReason::Ended);
            }
            if let Some(reason) = reason {
                self.total -= 1;
                todo.close.push((connection, reason));
                continue;
            }
            let Some(waiter) = user.waiters.pop(need) else {
                return;
            };
            self.holders += usize::from(user.in_use == 0);
            user.in_use += 1;
            self.in_use += 1;
            self.waiting -= 1;
            let waited = now.saturating_duration_since(waiter.since);
            let slot = self.slots.take(&waiter.ticket.demand, Some(waited), now);
            todo.hand_over.push(HandOver {
                identity: Arc::clone(&user.identity),
                answer: waiter.answer,
                connection,
                slot,
            });
            return;
        }
        // All available connections had ended.
        self.grow(id, todo);
    }

    /// Removes a waiter that has left.
    pub(super) fn leave(&mut self, id: IdentityId, ticket: Ticket, now: Instant) {
        if let Some(user) = self.users.get_mut(&id)
            && user.waiters.remove(ticket).is_some()
        {
            self.waiting -= 1;
            self.slots.end_wait(ticket.demand.need, now);
        }
    }

    /// Fails all waits whose deadline has passed. Returns when the next deadline may pass; `None`
    /// if no operation waits.
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

    /// Updates the concurrency limit. Returns `None` if there is no limit, or if nothing has
    /// happened since the last update. Then no update is needed before [`Todo::must_wake_ticks`] is
    /// true.
    pub(super) fn tick(&mut self, now: Instant) -> Option<(Update, Todo)> {
        if self.slots.is_idle() {
            self.slots.sleep();
            return None;
        }
        let update = self.slots.tick(now)?;
        let mut todo = Todo::default();
        if self.state == PoolState::Ready && self.waiting > 0 {
            self.fill_slots(now, &mut todo);
            let turns = self.turns.iter().copied();
            let ids: Vec<_> = turns.take(MAX_USERS_GROWN).collect();
            ids.into_iter().for_each(|id| self.grow(id, &mut todo));
        }
        Some((update, todo))
    }

    /// Forgets what was learned of the server, because it has another role now.
    pub(super) fn reset_limit(&mut self, now: Instant) {
        self.slots.reset(now);
    }

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

    pub(super) fn maintain(
        &mut self,
        now: Instant,
        has_ended: impl Fn(&mut Connection) -> bool,
    ) -> Todo {
        let mut todo = Todo::default();
        for user in self.users.values_mut() {
            let before = user.available.len();
            let perished = |c: &mut Connection| {
                let reason = self.limits.perished(c, self.generation, now);
                reason.or_else(|| has_ended(c).then_some(CloseReason::Ended))
            };
            let (keep, close): (Vec<_>, Vec<_>) = user
                .available
                .drain(..)
                .map(|mut c| (perished(&mut c), c))
                .partition(|(r, _)| r.is_none());
            user.available
                .extend(keep.into_iter().map(|(_, connection)| connection));
            todo.close.extend(
                close
                    .into_iter()
                    .filter_map(|(reason, c)| Some((c, reason?))),
            );
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
                let is_ready = user.is_ready(need);
                if let Some(is_listed) = user.is_listed.get_mut(need.index()) {
                    *is_listed = is_ready;
                }
                is_ready
            });
        }
        self.users.retain(|_, user| !user.is_unused());
        let ids: Vec<_> = self.users.keys().copied().collect();
        for id in ids {
            self.list(id);
            self.use_room(id, &mut todo);
        }
        todo
    }
}

impl Limits {
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
        let age = now.saturating_duration_since(connection.created_at);
        if self
            .max_life_time
            .is_some_and(|limit| age >= limit.mul_f64(connection.id().life_share()))
        {
            return Some(CloseReason::Expired);
        }
        let idle = now.saturating_duration_since(connection.last_used_at);
        self.max_idle_time
            .is_some_and(|limit| idle >= limit)
            .then_some(CloseReason::Idle)
    }
}
