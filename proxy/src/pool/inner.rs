//! The state of one server's connections, and every decision about them. No I/O, no clock.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    CheckOutError, Limits, Snapshot, UserSnapshot,
    queue::{Asker, Ticket, Waiter},
    user::User,
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityId, Standing};
use seawall_transport::{
    Sharer,
    connection::{Connection, Generation},
};

/// Two time limits at the server's bound: a busy user keeps each connection at least this long, and
/// another user's operation waits at least this long before a connection is closed for it. Such a
/// change costs a connect and a login at the server.
const GIVE_WAY_AFTER: Duration = Duration::from_millis(100);

/// Minimum time between two suspicions that pause the hand-out: a client that repeatedly makes a
/// server close its connections must not block all clients.
const MIN_TIME_BETWEEN_PAUSES: Duration = Duration::from_millis(100);

/// The most users that are examined, in their turn, when room becomes free.
const MAX_USERS_TRIED: usize = 8;

/// The states of the specification, and one more between ready and paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolState {
    Paused,
    Ready,
    /// A connection ended during an operation, and it is not known yet whether the server failed.
    /// No connection is handed out or established, and none is closed.
    Suspect {
        since: Instant,
        user: IdentityId,
    },
    Closed,
}

/// The conclusion from the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// Nothing new: the pool has been cleared since, or is closed.
    Outdated,
    /// The server may have failed: a probe has to find out.
    Probe,
    /// The server has failed.
    Failed,
}

/// The longest current waits for a connection.
#[derive(Debug, Default)]
pub struct Waits {
    /// The wait of each user that has `max_pool_size` connections: it waits for its own
    /// connections.
    pub for_own: Vec<(Arc<Identity>, Duration)>,
    /// The longest wait of all other users: they wait for the server, or for other users'
    /// connections.
    pub for_others: Duration,
}

/// The first result of a checkout.
pub(super) enum Start {
    Ready(Connection),
    Wait(Ticket, Receiver),
    Refused(CheckOutError),
}

type Answer = oneshot::Sender<Result<Connection, CheckOutError>>;

type Receiver = oneshot::Receiver<Result<Connection, CheckOutError>>;

/// The actions to carry out outside the lock.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) hand_over: Vec<(Arc<Identity>, Answer, Connection)>,
    pub(super) fail: Vec<(Answer, CheckOutError)>,
    /// Connections are closed by being dropped, outside the lock.
    pub(super) close: Vec<(Connection, CloseReason)>,
    pub(super) establish: Vec<(Arc<Identity>, Generation)>,
}

pub(super) struct Inner {
    limits: Limits,
    state: PoolState,
    generation: Generation,
    users: HashMap<IdentityId, User>,
    /// Connections of all users, in any state.
    total: usize,
    /// Users with waiters in the order in which they get room; those without waiters are skipped.
    turns: VecDeque<IdentityId>,
    waiting: usize,
    /// Connections in use, of all users.
    in_use: usize,
    next_ticket: u64,
    /// When the last suspicion began.
    last_suspected: Option<Instant>,
}

impl Inner {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: PoolState::Paused,
            generation: Generation::default(),
            users: HashMap::new(),
            total: 0,
            turns: VecDeque::new(),
            waiting: 0,
            in_use: 0,
            next_ticket: 0,
            last_suspected: None,
        }
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn check_out(
        &mut self,
        identity: &Arc<Identity>,
        asker: Asker,
        now: Instant,
    ) -> (Start, Todo) {
        let mut todo = Todo::default();
        match self.state {
            PoolState::Paused => return (Start::Refused(CheckOutError::Paused), todo),
            PoolState::Closed => return (Start::Refused(CheckOutError::Closed), todo),
            PoolState::Ready | PoolState::Suspect { .. } => {}
        }
        let hands_out = self.state == PoolState::Ready;
        let user = self
            .users
            .entry(identity.id())
            .or_insert_with(|| User::new(identity));
        while let Some(connection) = user.available.pop_if(|_| hands_out) {
            match self.limits.perished(&connection, self.generation, now) {
                Some(reason) => {
                    self.total -= 1;
                    todo.close.push((connection, reason));
                }
                None => {
                    user.in_use += 1;
                    self.in_use += 1;
                    return (Start::Ready(connection), todo);
                }
            }
        }
        if let Asker::Client(from) = asker
            && self.waiting >= self.limits.wait_queue_size
        {
            let Some(waiter) = self.make_room_in_queue(identity.id(), from) else {
                return (Start::Refused(CheckOutError::QueueFull), todo);
            };
            self.waiting -= 1;
            todo.fail.push((waiter.answer, CheckOutError::QueueFull));
        }
        let (ticket, receiver) = self.enqueue(identity, asker, now);
        self.grow(identity.id(), &mut todo);
        (Start::Wait(ticket, receiver), todo)
    }

    fn enqueue(
        &mut self,
        identity: &Arc<Identity>,
        asker: Asker,
        now: Instant,
    ) -> (Ticket, Receiver) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        let (answer, receiver) = oneshot::channel();
        let users = self.users.entry(identity.id());
        let user = users.or_insert_with(|| User::new(identity));
        let waiter = Waiter {
            ticket,
            since: now,
            answer,
        };
        user.waiters.push(asker, waiter);
        self.waiting += 1;
        if !user.has_turn {
            user.has_turn = true;
            match asker {
                Asker::Client(_) => self.turns.push_back(identity.id()),
                Asker::Seawall => self.turns.push_front(identity.id()),
            }
        }
        (ticket, receiver)
    }

    /// Removes a waiter from the full wait queue to make room for one of user `id`: a waiter of the
    /// user with the most waiters, or of another address of the same user. `None` if no other user
    /// or address has enough more.
    fn make_room_in_queue(&mut self, id: IdentityId, from: Sharer) -> Option<Waiter> {
        let own = self.users.get(&id).map_or(0, |user| user.waiters.len());
        // A user above its share has no claim, so the other users need not be examined.
        if own.saturating_mul(self.turns.len()) < self.limits.wait_queue_size {
            let users = self.users.values_mut();
            let greediest = users.max_by_key(|user| user.waiters.len())?;
            if greediest.waiters.len() > own + 1 {
                return greediest.waiters.shed();
            }
        }
        self.users.get_mut(&id)?.waiters.make_room(from)
    }

    pub(super) fn check_in(
        &mut self,
        id: IdentityId,
        mut connection: Connection,
        perished: Option<CloseReason>,
        now: Instant,
    ) -> Todo {
        let mut todo = Todo::default();
        let gives_way = self.gives_way(id, &connection, now);
        let Some(user) = self.users.get_mut(&id) else {
            // Only a connection that was counted can be checked in, and its user stays while it is
            // in use.
            debug_assert!(false, "checked in to an unknown user");
            return todo;
        };
        user.in_use -= 1;
        self.in_use -= 1;
        let is_closed = self.state == PoolState::Closed;
        let reason = perished
            .or_else(|| is_closed.then_some(CloseReason::PoolClosed))
            .or_else(|| {
                (user.identity.standing() == Standing::Gone).then_some(CloseReason::Unauthorized)
            })
            .or_else(|| self.limits.perished(&connection, self.generation, now))
            .or_else(|| gives_way.then_some(CloseReason::GaveWay));
        if let Some(reason) = reason {
            self.total -= 1;
            todo.close.push((connection, reason));
            self.use_room(id, &mut todo);
            return todo;
        }
        connection.last_used_at = now;
        user.available.push(connection);
        if self.state == PoolState::Ready {
            self.hand_over(id, &mut todo);
        }
        todo
    }

    /// Hands a user's available connections to its waiting operations.
    fn hand_over(&mut self, id: IdentityId, todo: &mut Todo) {
        let Some(user) = self.users.get_mut(&id) else {
            return;
        };
        while !user.available.is_empty()
            && let Some(waiter) = user.waiters.pop()
            && let Some(connection) = user.available.pop()
        {
            user.in_use += 1;
            self.in_use += 1;
            self.waiting -= 1;
            todo.hand_over
                .push((Arc::clone(&user.identity), waiter.answer, connection));
        }
    }

    /// True if `id`'s connection is to be closed for another user that only the server's bound
    /// holds up.
    fn gives_way(&mut self, id: IdentityId, connection: &Connection, now: Instant) -> bool {
        if self.total < self.limits.max_server_connections {
            return false;
        }
        let Some(user) = self.users.get(&id) else {
            return false;
        };
        let (own, is_needed_here) = (user.total(), !user.waiters.is_empty());
        let has_less = |total: usize| total == 0 || total + 1 < own;
        let Some((_, since)) =
            self.next_held_up(|other, total| other != id && (!is_needed_here || has_less(total)))
        else {
            return false;
        };
        let is_over = |since: Instant| now.saturating_duration_since(since) >= GIVE_WAY_AFTER;
        !is_needed_here || (is_over(since) && is_over(connection.created_at))
    }

    /// The next user, in turn, that only the server's bound holds up and that is eligible by its
    /// number of connections. Also returns when its next waiter arrived.
    fn next_held_up(
        &mut self,
        is_eligible: impl Fn(IdentityId, usize) -> bool,
    ) -> Option<(IdentityId, Instant)> {
        for _ in 0..self.turns.len().min(MAX_USERS_TRIED) {
            let id = self.turns.pop_front()?;
            let Some(user) = self.users.get_mut(&id) else {
                continue;
            };
            let Some(since) = user.waiters.next_since() else {
                user.has_turn = false;
                continue;
            };
            if user.wants_more(&self.limits) && is_eligible(id, user.total()) {
                self.turns.push_front(id);
                return Some((id, since));
            }
            self.turns.push_back(id);
        }
        None
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// How long operations have been waiting for a connection.
    pub(super) fn waits(&self, now: Instant) -> Waits {
        let mut waits = Waits::default();
        for user in self.users.values() {
            let Some(oldest) = user.waiters.oldest() else {
                continue;
            };
            let wait = now.saturating_duration_since(oldest);
            if user.total() >= self.limits.max_pool_size {
                waits.for_own.push((Arc::clone(&user.identity), wait));
            } else {
                waits.for_others = waits.for_others.max(wait);
            }
        }
        waits
    }

    /// Uses room that became free: first for the user whose turn it is, then for `id`.
    fn use_room(&mut self, id: IdentityId, todo: &mut Todo) {
        if let Some((next, _)) = self.next_held_up(|_, _| true) {
            self.grow(next, todo);
            self.turns.rotate_left(1);
        }
        self.grow(id, todo);
    }

    /// Establishes the connections that a user needs, as far as the limits allow.
    fn grow(&mut self, id: IdentityId, todo: &mut Todo) {
        if self.state != PoolState::Ready {
            return;
        }
        while self
            .users
            .get(&id)
            .is_some_and(|user| user.wants_more(&self.limits))
        {
            if self.total >= self.limits.max_server_connections && !self.make_room(id, todo) {
                return;
            }
            let Some(user) = self.users.get_mut(&id) else {
                return;
            };
            user.pending += 1;
            self.total += 1;
            todo.establish
                .push((Arc::clone(&user.identity), self.generation));
        }
    }

    /// Closes the available connection of another user that has been unused longest. False if there
    /// is none.
    fn make_room(&mut self, id: IdentityId, todo: &mut Todo) -> bool {
        let others = self
            .users
            .values_mut()
            .filter(|user| user.identity.id() != id);
        let idle = others.filter(|user| !user.available.is_empty());
        let longest = idle.min_by_key(|user| user.available.first().map(|c| c.last_used_at));
        let Some(user) = longest else { return false };
        todo.close
            .push((user.available.remove(0), CloseReason::GaveWay));
        self.total -= 1;
        true
    }

    pub(super) fn established(
        &mut self,
        identity: &Arc<Identity>,
        connection: Connection,
        now: Instant,
    ) -> Todo {
        if let Some(user) = self.users.get_mut(&identity.id()) {
            user.pending -= 1;
            user.in_use += 1;
            self.in_use += 1;
        }
        self.check_in(identity.id(), connection, None, now)
    }

    pub(super) fn not_established(
        &mut self,
        identity: &Arc<Identity>,
        error: &CheckOutError,
    ) -> Todo {
        let mut todo = Todo::default();
        self.total -= 1;
        if let Some(user) = self.users.get_mut(&identity.id()) {
            user.pending -= 1;
            let is_for_all = matches!(
                error, CheckOutError::Establish { error, .. }
                    if error.refuses_keys() || error.requires_authentication()
            );
            let failing = match is_for_all {
                true => user.waiters.len(),
                false => user.waiters.len().min(1),
            };
            self.waiting -= failing;
            let waiters = (0..failing).filter_map(|_| user.waiters.pop());
            todo.fail.extend(waiters.map(|w| (w.answer, error.clone())));
        }
        self.use_room(identity.id(), &mut todo);
        todo
    }

    pub(super) fn adopt(
        &mut self,
        identity: &Arc<Identity>,
        mut connection: Connection,
        now: Instant,
    ) -> Todo {
        let mut todo = Todo::default();
        let user = self
            .users
            .entry(identity.id())
            .or_insert_with(|| User::new(identity));
        let has_room = user.total() < self.limits.max_pool_size;
        let server_has_room = self.total < self.limits.max_server_connections
            || self.make_room(identity.id(), &mut todo);
        let is_open = matches!(self.state, PoolState::Ready | PoolState::Suspect { .. });
        if !is_open || !has_room || !server_has_room {
            todo.close.push((connection, CloseReason::GaveWay));
            return todo;
        }
        connection.generation = self.generation;
        self.total += 1;
        if let Some(user) = self.users.get_mut(&identity.id()) {
            user.in_use += 1;
            self.in_use += 1;
        }
        let mut more = self.check_in(identity.id(), connection, None, now);
        more.close.append(&mut todo.close);
        more
    }

    pub(super) fn leave(&mut self, id: IdentityId, ticket: Ticket) {
        if let Some(user) = self.users.get_mut(&id) {
            let before = user.waiters.len();
            user.waiters.remove(ticket);
            self.waiting -= before - user.waiters.len();
        }
    }

    /// `None` if `generation` is not the current one, or if the pool is already paused or closed.
    pub(super) fn clear(&mut self, generation: Generation) -> Option<Todo> {
        let is_open = matches!(self.state, PoolState::Ready | PoolState::Suspect { .. });
        if generation != self.generation || !is_open {
            return None;
        }
        self.generation = generation.next();
        self.state = PoolState::Paused;
        Some(self.empty(CloseReason::Stale, &CheckOutError::Paused))
    }

    pub(super) fn ready(&mut self) {
        if self.state == PoolState::Paused {
            self.state = PoolState::Ready;
        }
    }

    /// A connection of `generation` ended during an operation of `user`. This alone pauses the
    /// hand-out until the server replies to a probe. If an unused connection or one of another user
    /// has ended too, the server has failed.
    pub(super) fn suspect(
        &mut self,
        generation: Generation,
        user: IdentityId,
        now: Instant,
        has_ended: impl Fn(&mut Connection) -> bool,
    ) -> Suspicion {
        if generation != self.generation {
            return Suspicion::Outdated;
        }
        let mut available = self.users.values_mut().flat_map(|u| &mut u.available);
        let another_ended = available.any(has_ended);
        match self.state {
            PoolState::Paused | PoolState::Closed => Suspicion::Outdated,
            PoolState::Suspect { user: other, .. } if other != user => Suspicion::Failed,
            PoolState::Ready | PoolState::Suspect { .. } if another_ended => Suspicion::Failed,
            PoolState::Suspect { .. } => Suspicion::Probe,
            PoolState::Ready => {
                let is_soon = self.last_suspected.is_some_and(|last| {
                    now.saturating_duration_since(last) < MIN_TIME_BETWEEN_PAUSES
                });
                if !is_soon {
                    self.state = PoolState::Suspect { since: now, user };
                    self.last_suspected = Some(now);
                }
                Suspicion::Probe
            }
        }
    }

    /// The server replied to a probe that was sent at `asked_at`. A suspicion that began later
    /// stays.
    pub(super) fn recover(&mut self, asked_at: Instant) -> Todo {
        let mut todo = Todo::default();
        let was_suspect = match self.state {
            PoolState::Paused => false,
            PoolState::Suspect { since, .. } if since <= asked_at => true,
            PoolState::Suspect { .. } | PoolState::Ready | PoolState::Closed => return todo,
        };
        self.state = PoolState::Ready;
        let ids: Vec<_> = self.users.keys().copied().collect();
        for id in ids.into_iter().filter(|_| was_suspect) {
            self.hand_over(id, &mut todo);
            self.use_room(id, &mut todo);
        }
        todo
    }

    /// How long the server has been suspected; `None` if it is not.
    pub(super) fn suspected_for(&self, now: Instant) -> Option<Duration> {
        match self.state {
            PoolState::Suspect { since, .. } => Some(now.saturating_duration_since(since)),
            PoolState::Paused | PoolState::Ready | PoolState::Closed => None,
        }
    }

    pub(super) fn close(&mut self) -> Todo {
        self.state = PoolState::Closed;
        self.empty(CloseReason::PoolClosed, &CheckOutError::Closed)
    }

    fn empty(&mut self, reason: CloseReason, error: &CheckOutError) -> Todo {
        let mut todo = Todo::default();
        for user in self.users.values_mut() {
            self.total -= user.available.len();
            todo.close
                .extend(user.available.drain(..).map(|c| (c, reason)));
            user.has_turn = false;
            let waiters = std::iter::from_fn(|| user.waiters.pop());
            todo.fail.extend(waiters.map(|w| (w.answer, error.clone())));
        }
        self.waiting = 0;
        self.turns.clear();
        todo
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
        self.users.retain(|_, user| !user.is_unused());
        let ids: Vec<_> = self.users.keys().copied().collect();
        ids.into_iter().for_each(|id| self.use_room(id, &mut todo));
        todo
    }

    pub(super) fn load(&self) -> usize {
        self.waiting + self.in_use
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let users: Vec<_> = self.users.values().map(UserSnapshot::of).collect();
        Snapshot {
            state: match self.state {
                PoolState::Paused => "paused",
                PoolState::Ready => "ready",
                PoolState::Suspect { .. } => "suspect",
                PoolState::Closed => "closed",
            },
            pending: users.iter().map(|u| u.pending).sum(),
            available: users.iter().map(|u| u.available).sum(),
            in_use: self.in_use,
            wait_queue: self.waiting,
            users,
        }
    }

    /// Checks what must hold between calls.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        let total: usize = self.users.values().map(User::total).sum();
        assert_eq!(total, self.total, "the total is the sum over users");
        assert!(
            total <= self.limits.max_server_connections,
            "the server's bound holds"
        );
        let waiting: usize = self.users.values().map(|u| u.waiters.len()).sum();
        let in_use: usize = self.users.values().map(|u| u.in_use).sum();
        assert_eq!(
            in_use, self.in_use,
            "connections in use are the sum over users"
        );
        assert_eq!(
            waiting, self.waiting,
            "the queue's length is the sum over users"
        );
        let mut turns: Vec<_> = self.turns.iter().collect();
        turns.sort_unstable();
        turns.dedup();
        assert_eq!(turns.len(), self.turns.len(), "no user has two turns");
        for (id, user) in &self.users {
            assert_eq!(user.has_turn, turns.binary_search(&id).is_ok());
            assert!(
                user.has_turn || user.waiters.is_empty(),
                "every user with waiters has a turn"
            );
            assert!(
                user.total() <= self.limits.max_pool_size,
                "a user's bound holds"
            );
            assert!(
                user.pending <= self.limits.max_connecting,
                "max_connecting holds"
            );
            let may_hold_back = self.state != PoolState::Ready;
            assert!(
                may_hold_back || user.waiters.is_empty() || user.available.is_empty(),
                "no operation waits while its user has a connection available"
            );
        }
    }
}

impl Limits {
    /// The reason why a connection must no longer be handed out, if there is one.
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

impl UserSnapshot {
    fn of(user: &User) -> Self {
        Self {
            name: user.identity.name().to_owned(),
            source: user.identity.source().to_owned(),
            pending: user.pending,
            available: user.available.len(),
            in_use: user.in_use,
            wait_queue: user.waiters.len(),
        }
    }
}
