//! The state of one server's connections, and every decision about them. No I/O, no clock.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::oneshot, time::Instant};

use super::{
    CheckOutError, Limits, Overload, Snapshot, UserSnapshot,
    queue::{Asker, Ticket, WaitQueue, Waiter},
    user::User,
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityId, IdentityStatus};
use seawall_transport::{
    Sharer,
    connection::{Connection, Generation},
};

/// At `max_server_connections`, a connection of a user with waiters is closed to make room for
/// another user only if the connection is at least this old and an operation of the other user has
/// waited at least this long. The limit exists because each new connection costs the server a
/// login.
const MIN_TIME_PER_USER: Duration = Duration::from_millis(100);

/// Minimum time between two suspicions that pause the hand-out of connections. Without it, a client
/// that repeatedly makes a server close its connections could block all clients.
const MIN_TIME_BETWEEN_PAUSES: Duration = Duration::from_millis(100);

/// Maximum number of users with waiters that are examined to find the user for a new connection.
const MAX_USERS_TRIED: usize = 8;

/// The pool's states in the CMAP specification, and `Suspect`, which is between ready and paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoolState {
    Paused,
    Ready,
    /// A connection ended during an operation, and it is not known yet if the server has failed.
    /// The pool hands out and establishes no connection in this state.
    Suspect {
        since: Instant,
        user: IdentityId,
    },
    Closed,
}

/// The conclusion about the server after the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// No conclusion, because the pool was cleared after the connection was established, or is
    /// closed.
    Outdated,
    /// The server may have failed. The caller has to send a probe.
    Probe,
    /// The server has failed.
    Failed,
}

/// The longest current waits for a connection.
#[derive(Debug, Default)]
pub struct Waits {
    /// For each user with `max_pool_size` connections, the longest wait of its operations. They
    /// wait for the user's own connections.
    pub for_own: Vec<(Arc<Identity>, Duration)>,
    /// The longest wait of all other users' operations. They wait for the server, or for
    /// connections of other users to be closed.
    pub for_others: Duration,
}

/// The result of the start of a checkout.
pub(super) enum Start {
    Ready(Connection),
    Wait(Ticket, ResultReceiver),
    Refused(CheckOutError),
}

type ResultSender = oneshot::Sender<Result<Connection, CheckOutError>>;

pub(super) type ResultReceiver = oneshot::Receiver<Result<Connection, CheckOutError>>;

/// The actions that the caller carries out after it has released the lock.
#[derive(Default)]
pub(super) struct Todo {
    pub(super) hand_over: Vec<(Arc<Identity>, ResultSender, Connection)>,
    pub(super) fail: Vec<(ResultSender, CheckOutError)>,
    /// The caller closes these connections by dropping them.
    pub(super) close: Vec<(Connection, CloseReason)>,
    pub(super) establish: Vec<(Arc<Identity>, Generation)>,
    /// True if the first deadline of a waiter is earlier than before, so that the task which calls
    /// [`Inner::expire`] must look again.
    pub(super) must_wake_expiry: bool,
}

pub(super) struct Inner {
    limits: Limits,
    state: PoolState,
    generation: Generation,
    users: HashMap<IdentityId, User>,
    /// Number of connections of all users, in any state.
    total: usize,
    /// The users with waiters, in the order in which connections are established for them. Users
    /// whose waiters have left are skipped.
    turns: VecDeque<IdentityId>,
    /// Number of all users' waiters.
    waiting: usize,
    /// Number of all users' connections that are in use.
    in_use: usize,
    next_ticket: u64,
    /// No waiter's deadline is earlier. `None` only if no operation waits. The waiter that had this
    /// deadline may have been served or have left.
    expires_at: Option<Instant>,
    /// When the last suspicion began; `None` if there was none.
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
            expires_at: None,
            last_suspected: None,
        }
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Begins a checkout. A wait ends at `deadline`, if [`Self::expire`] is called then.
    pub(super) fn check_out(
        &mut self,
        identity: &Arc<Identity>,
        asker: Asker,
        now: Instant,
        deadline: Instant,
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
                return (
                    Start::Refused(CheckOutError::Overload(Overload::QueueFull)),
                    todo,
                );
            };
            self.waiting -= 1;
            todo.fail
                .push((waiter.answer, CheckOutError::Overload(Overload::QueueFull)));
        }
        let (ticket, receiver) = self.enqueue(identity, asker, now, deadline);
        todo.must_wake_expiry = self.expires_at.is_none_or(|at| deadline < at);
        if todo.must_wake_expiry {
            self.expires_at = Some(deadline);
        }
        self.grow(identity.id(), &mut todo);
        (Start::Wait(ticket, receiver), todo)
    }

    fn enqueue(
        &mut self,
        identity: &Arc<Identity>,
        asker: Asker,
        now: Instant,
        deadline: Instant,
    ) -> (Ticket, ResultReceiver) {
        let ticket = Ticket {
            asker,
            number: self.next_ticket,
        };
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
        if !user.has_turn {
            user.has_turn = true;
            match asker {
                Asker::Client(_) => self.turns.push_back(identity.id()),
                Asker::Seawall => self.turns.push_front(identity.id()),
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

    pub(super) fn check_in(
        &mut self,
        id: IdentityId,
        mut connection: Connection,
        perished: Option<CloseReason>,
        now: Instant,
    ) -> Todo {
        let mut todo = Todo::default();
        let is_for_other = self.must_close_for_other_user(id, &connection, now);
        let Some(user) = self.users.get_mut(&id) else {
            // This is impossible: a checked-out connection is counted as in use, and a user with
            // connections in use is not removed.
            debug_assert!(false, "checked in to an unknown user");
            return todo;
        };
        user.in_use -= 1;
        self.in_use -= 1;
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

    /// True if the connection of user `id` must be closed, so that another user can get a
    /// connection. This happens only at `max_server_connections`.
    fn must_close_for_other_user(
        &mut self,
        id: IdentityId,
        connection: &Connection,
        now: Instant,
    ) -> bool {
        if self.total < self.limits.max_server_connections {
            return false;
        }
        let Some(user) = self.users.get(&id) else {
            return false;
        };
        let (own, is_needed_here) = (user.total(), !user.waiters.is_empty());
        let has_less = |total: usize| total == 0 || total + 1 < own;
        let Some((_, since)) =
            self.next_to_grow(|other, total| other != id && (!is_needed_here || has_less(total)))
        else {
            return false;
        };
        let is_over = |since: Instant| now.saturating_duration_since(since) >= MIN_TIME_PER_USER;
        !is_needed_here || (is_over(since) && is_over(connection.created_at))
    }

    /// Returns the next user in `turns` that needs another connection, may have one by its own
    /// limits, and is eligible. Also returns the arrival time of this user's next waiter.
    /// `is_eligible` gets the user and its number of connections.
    fn next_to_grow(
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

    /// Returns how long operations have been waiting for a connection.
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

    /// Establishes connections after the number of connections has fallen: first for the next user
    /// in turn, then for user `id`.
    fn use_room(&mut self, id: IdentityId, todo: &mut Todo) {
        if let Some((next, _)) = self.next_to_grow(|_, _| true) {
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

    /// Makes room for a connection of user `id`: of the other users' available connections, closes
    /// one that has been unused for longest. Returns false if there is none.
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
        if let Some(user) = self.users.get_mut(&id)
            && user.waiters.remove(ticket).is_some()
        {
            self.waiting -= 1;
        }
    }

    /// Fails all waits whose deadline has passed. Returns when the next deadline may pass; `None`
    /// if no operation waits.
    pub(super) fn expire(&mut self, now: Instant) -> (Option<Instant>, Todo) {
        let mut todo = Todo::default();
        if self.expires_at.is_some_and(|at| at <= now) {
            for user in self.users.values_mut() {
                for waiter in user.waiters.remove_expired(now) {
                    self.waiting -= 1;
                    todo.fail
                        .push((waiter.answer, CheckOutError::Overload(Overload::TimedOut)));
                }
            }
            let waiters = self.users.values().map(|user| &user.waiters);
            self.expires_at = waiters.filter_map(WaitQueue::earliest_deadline).min();
        }
        (self.expires_at, todo)
    }

    /// Clears the pool. Returns `None` and does nothing if `generation` is not the current one, or
    /// if the pool is already paused or closed.
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

    /// Records that a connection of `generation` ended during an operation of `user`. The first end
    /// of a connection pauses the hand-out of connections until the server replies to a probe. The
    /// server counts as failed if an available connection has ended too, or if a connection of
    /// another user ends during the pause.
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

    /// Records that the server replied to a probe that was sent at `asked_at`. This ends a
    /// suspicion that began earlier, but not one that began later.
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

    /// Returns how long the server has been suspected; `None` if it is not suspected.
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

    /// Checks the invariants that hold between calls.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        let total: usize = self.users.values().map(User::total).sum();
        assert_eq!(total, self.total, "the total is the sum over users");
        assert!(
            total <= self.limits.max_server_connections,
            "total is at most max_server_connections"
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
        assert_eq!(
            turns.len(),
            self.turns.len(),
            "turns contains no user twice"
        );
        for (id, user) in &self.users {
            assert_eq!(user.has_turn, turns.binary_search(&id).is_ok());
            assert!(
                user.has_turn || user.waiters.is_empty(),
                "turns contains every user with waiters"
            );
            assert!(
                user.total() <= self.limits.max_pool_size,
                "a user has at most max_pool_size connections"
            );
            assert!(
                user.pending <= self.limits.max_connecting,
                "a user has at most max_connecting pending connections"
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
