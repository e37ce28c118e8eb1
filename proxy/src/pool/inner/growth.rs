//! Decides when connections are established, adopted (taken over from outside the pool), or closed
//! to make room for other connections.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    super::{CheckOutError, demand::Need, slots::Usage, user::User, user::UserRoom},
    Inner, PoolState, Returned, Todo,
    room_searches::RoomSearches,
};
use crate::observe::CloseReason;
use seawall_auth::{Identity, IdentityId};
use seawall_transport::connection::{Connection, Generation};

/// If a limit of the connections to the server is reached (see [`Inner::decide_to_give_way`]),
/// Seawall may close a connection of a user with waiters to make room for another user. Two times
/// must be at least this long: the time since the login of the connection ended, and the time that
/// an operation of the other user has waited. The reason is that each new connection costs the
/// server a login.
const MIN_TIME_PER_USER: Duration = Duration::from_millis(100);

/// After a connection of a user could not be established, Seawall establishes no connections for
/// the user's `min_pool_size` for this time. The next attempt would probably fail too. Connections
/// for waiters are still established.
const REFILL_PAUSE: Duration = Duration::from_secs(30);

/// Connections for `min_pool_size` are established only while fewer than this number of connections
/// to the server are pending. Connections begin in the order in which they are requested, and about
/// this number may begin at the same time ([`super::super::pace`]). With more pending connections,
/// a connection for an operation would have to wait.
const MAX_PENDING_FOR_REFILL: usize = 8;

/// Maximum number of users with waiters that are examined to find the user for a new connection.
/// During the search, the pool is locked.
const MAX_USERS_TRIED: usize = 8;

impl Inner {
    /// Decides if `connection` of user `id`, which was returned or just established, is closed so
    /// that another user can get a connection. Rotates `turns` to this other user. `need` is the
    /// need of the operation that had checked out `connection`; `None` if the connection was just
    /// established. The connection is closed only if one of these conditions is true, and even then
    /// not always:
    ///
    /// - The server has `max_server_connections` connections.
    /// - User `id` has waiters, and ordinary operations use at least
    ///   [`PoolLimits::max_for_slots`] - 1 connections (see [`Self::ordinary`]).
    pub(super) fn decide_to_give_way(
        &mut self,
        id: IdentityId,
        connection: &Connection,
        need: Option<Need>,
        now: Instant,
    ) -> bool {
        let is_full = self.total >= self.limits.max_server_connections;
        if !is_full && self.ordinary() + 1 < self.limits.max_for_slots() {
            return false;
        }
        let Some(user) = self.users.get(&id) else {
            return false;
        };
        // The user's total no longer includes `connection`, so 1 is added.
        let (own, is_needed_here) = (user.total() + 1, !user.waiters.is_empty());
        let has_less = |total: usize| total == 0 || total + 1 < own;
        // Operations with a permit of the lane may use the reserve: the last connections of
        // `max_server_connections`. While they do, each ordinary operation that ends may lose its
        // connection to an urgent operation of another user, even if that user has more connections
        // than user `id`.
        let is_of_reserve = need.is_some_and(|need| !need.may_use_reserve())
            && self.ordinary() >= self.limits.max_for_slots();
        // Arrival time of the other user's oldest waiter for which the connection may be closed.
        let waits_since = |other: &User| {
            let is_first = !is_needed_here || has_less(other.total());
            let is_urgent = is_of_reserve && other.lacks_urgent_connection();
            other.waiters.oldest_of(|need| match need {
                Need::Nothing | Need::SlotOrReserve => is_first || is_urgent,
                Need::LanePermit => is_first,
                Need::Slot => is_first && !is_of_reserve,
            })
        };
        let other = self.next_to_grow(|other| match other.identity.id() == id {
            true => None,
            false => waits_since(other),
        });
        let Some((other, since)) = other else {
            return false;
        };
        let is_over = |since: Instant| now.saturating_duration_since(since) >= MIN_TIME_PER_USER;
        let is_old = is_over(connection.created_at);
        match is_needed_here {
            true => is_old && is_over(since),
            false => is_full && (is_old || self.can_use_now(other)),
        }
    }

    /// True if a waiter of this user could use another connection now.
    fn can_use_now(&self, id: IdentityId) -> bool {
        let room = self.room(id).now();
        let user = self.users.get(&id);
        user.is_some_and(|user| user.wants_more(&self.limits, room))
    }

    /// Returns the next user in `turns` that needs another connection and whose own limits allow
    /// one. Skips users for which `waits_since` returns `None`. Also returns the result of
    /// `waits_since` for the user: the arrival time of one of its waiters.
    fn next_to_grow(
        &mut self,
        waits_since: impl Fn(&User) -> Option<Instant>,
    ) -> Option<(IdentityId, Instant)> {
        for _ in 0..self.turns.len().min(MAX_USERS_TRIED) {
            let id = self.turns.pop_front()?;
            let room = self.room(id);
            let Some(user) = self.users.get_mut(&id) else {
                continue;
            };
            if user.waiters.is_empty() {
                user.has_turn = false;
                continue;
            }
            if user.wants_more(&self.limits, room)
                && let Some(since) = waits_since(user)
            {
                self.turns.push_front(id);
                return Some((id, since));
            }
            self.turns.push_back(id);
        }
        None
    }

    fn room(&self, id: IdentityId) -> UserRoom {
        let share = self.slots.share_of(id);
        // Pending connections of other users count as used, because they will soon be in use.
        let own = self.users.get(&id).map_or(0, |user| user.pending);
        let used = self.ordinary() + self.pending - own;
        UserRoom {
            free: self.slots.free(),
            missing: share.saturating_sub(self.slots.held_by(id)),
            left: self.limits.max_for_slots().saturating_sub(used),
        }
    }

    /// Establishes connections if there is room, for example after a connection was closed: first
    /// for the next user in `turns` that needs one, then for user `id`.
    pub(super) fn use_room(&mut self, id: IdentityId, todo: &mut Todo) {
        self.use_room_in(&mut RoomSearches::default(), id, todo);
    }

    /// Like [`Self::use_room`], in a pass over many users.
    pub(super) fn use_room_in(
        &mut self,
        searches: &mut RoomSearches,
        id: IdentityId,
        todo: &mut Todo,
    ) {
        if let Some((next, _)) = self.next_to_grow(|user| user.waiters.oldest()) {
            self.grow_in(searches, next, todo);
            self.turns.rotate_left(1);
        }
        self.grow_in(searches, id, todo);
    }

    /// Establishes the connections that a user's waiters need, as far as the limits allow.
    pub(super) fn grow(&mut self, id: IdentityId, todo: &mut Todo) {
        self.grow_in(&mut RoomSearches::default(), id, todo);
    }

    /// Like [`Self::grow`], in a pass over many users.
    pub(super) fn grow_in(&mut self, searches: &mut RoomSearches, id: IdentityId, todo: &mut Todo) {
        if self.state != PoolState::Ready {
            return;
        }
        let room = self.room(id);
        while self
            .users
            .get(&id)
            .is_some_and(|user| user.wants_more(&self.limits, room))
        {
            let is_full = self.total >= self.limits.max_server_connections;
            if is_full && !self.make_room(searches, id, todo) {
                return;
            }
            self.begin_connection(id, todo);
        }
    }

    /// Establishes connections up to [`PoolLimits::min_pool_size`] for the users in `short`,
    /// round-robin, a few at a time. Closes no connections of other users for this purpose: if the
    /// minimums of all users together exceeded `max_server_connections`, users would close each
    /// other's connections again and again.
    pub(super) fn refill(&mut self, now: Instant, todo: &mut Todo) {
        // Number of consecutive users that already have `max_connecting` pending connections.
        let mut skipped = 0;
        while self.state == PoolState::Ready
            && self.pending < MAX_PENDING_FOR_REFILL
            && self.total < self.limits.max_server_connections
            && skipped < self.short.len()
            && let Some(id) = self.short.pop_front()
        {
            let user = self.users.get(&id);
            let Some(user) = user.filter(|user| user.is_short(&self.limits, now)) else {
                continue;
            };
            self.short.push_back(id);
            if user.pending < self.limits.max_connecting {
                self.begin_connection(id, todo);
                skipped = 0;
            } else {
                skipped += 1;
            }
        }
    }

    fn begin_connection(&mut self, id: IdentityId, todo: &mut Todo) {
        let Some(user) = self.users.get_mut(&id) else {
            return;
        };
        user.pending += 1;
        self.pending += 1;
        self.total += 1;
        todo.establish
            .push((Arc::clone(&user.identity), self.generation));
    }

    /// Makes room for a connection of user `id`: closes an available connection of another user.
    /// That user must have more available connections than its own waiters can use, now or later.
    /// If there are several such connections, closes the one that has been unused for the longest
    /// time. Returns false if there is no such connection.
    ///
    /// User `id` may need the connection for an urgent operation, such as a commit. Then the other
    /// user keeps only the connections that its waiters can use now. The waiters that cannot use a
    /// connection until later may themselves have to wait until the urgent operation ends.
    fn make_room(&mut self, searches: &mut RoomSearches, id: IdentityId, todo: &mut Todo) -> bool {
        let user = self.users.get(&id);
        let is_urgent = user.is_some_and(User::lacks_urgent_connection);
        let has_failed = searches.failure_mut(is_urgent);
        if *has_failed {
            return false;
        }
        #[cfg(test)]
        {
            self.room_searches += 1;
        }
        let mut is_found = false;
        let others = self.users.values().filter(|user| {
            let can_spare = self.can_spare(user, is_urgent);
            is_found |= can_spare;
            can_spare && user.identity.id() != id
        });
        let longest = others.min_by_key(|user| user.available.first().map(|c| c.last_used_at));
        let longest = longest.map(|user| user.identity.id());
        *has_failed = !is_found;
        let Some(user) = longest.and_then(|id| self.users.get_mut(&id)) else {
            return false;
        };
        todo.close
            .push((user.available.remove(0), CloseReason::GaveWay));
        self.total -= 1;
        true
    }

    /// True if a user has more available connections than its waiters can use, see
    /// [`Self::make_room`].
    fn can_spare(&self, user: &User, is_urgent: bool) -> bool {
        if user.available.is_empty() {
            return false;
        }
        let room = self.room(user.identity.id());
        let room = match is_urgent {
            true => room.now(),
            false => UserRoom {
                left: usize::MAX,
                ..room
            },
        };
        user.available.len() > user.needed(&self.limits, room)
    }

    /// True if the pool is not closed and was not cleared since `generation`. A connection of
    /// another generation would be closed when it is established.
    pub(in super::super) fn may_establish(&self, generation: Generation) -> bool {
        self.state != PoolState::Closed && self.generation == generation
    }

    /// Records that Seawall gave up establishing a connection, because [`Self::may_establish`]
    /// became false.
    pub(in super::super) fn gave_up(&mut self, identity: &Arc<Identity>, now: Instant) -> Todo {
        let mut todo = Todo::default();
        self.total -= 1;
        if let Some(user) = self.users.get_mut(&identity.id()) {
            user.pending -= 1;
            self.pending -= 1;
        }
        self.use_room(identity.id(), &mut todo);
        self.refill(now, &mut todo);
        todo
    }

    /// Records that a connection was established.
    pub(in super::super) fn established(
        &mut self,
        identity: &Arc<Identity>,
        connection: Box<Connection>,
        now: Instant,
    ) -> Todo {
        let id = identity.id();
        if let Some(user) = self.users.get_mut(&id) {
            user.pending -= 1;
            self.pending -= 1;
        }
        let mut todo = self.add(id, connection, now);
        let has_waiters = |user: &User| !user.waiters.is_empty();
        if self.users.get(&id).is_some_and(has_waiters) {
            self.grow(id, &mut todo);
        }
        self.refill(now, &mut todo);
        todo
    }

    /// Adds an open connection that is already counted in `total`.
    fn add(&mut self, id: IdentityId, mut connection: Box<Connection>, now: Instant) -> Todo {
        // Until now, `created_at` was the start of the login. With that value, a connection with a
        // slow login could be closed for another user (`MIN_TIME_PER_USER`) before its first
        // operation.
        connection.created_at = now;
        let life_share = connection.id().life_share();
        let life_time = self.limits.max_life_time;
        connection.expires_at = life_time.map(|limit| now + limit.mul_f64(life_share));
        if let Some(user) = self.users.get_mut(&id) {
            user.refill_after = None;
            user.is_refused = false;
            user.in_use += 1;
            self.in_use += 1;
        }
        let returned = Returned {
            connection,
            slot: None,
            usage: Usage::default(),
            perished: None,
        };
        self.check_in(id, returned, now)
    }

    /// Records that a connection of a user could not be established. The cause decides how many
    /// waiters of this user fail:
    ///
    /// - All waiters fail if the login failed because of the user's SCRAM keys. All waiters also
    ///   fail if the server requires a login, but the connection is for anonymous clients.
    /// - Otherwise, no waiter fails if the pool was cleared after the attempt began.
    /// - In all other cases, one waiter fails.
    pub(in super::super) fn not_established(
        &mut self,
        identity: &Arc<Identity>,
        error: &CheckOutError,
        now: Instant,
    ) -> Todo {
        let mut todo = Todo::default();
        self.total -= 1;
        if let Some(user) = self.users.get_mut(&identity.id()) {
            user.pending -= 1;
            self.pending -= 1;
            user.refill_after = Some(now + REFILL_PAUSE);
            user.is_refused = matches!(
                error,
                CheckOutError::Establish { error, .. }
                    if error.refuses_keys() || error.requires_authentication()
            );
            let failing = match error {
                _ if user.is_refused => user.waiters.len(),
                // The attempt began before the pool was cleared, and the waiters arrived later. So
                // the failure of the attempt says nothing about the waiters' connections.
                CheckOutError::Establish { generation, .. } if *generation != self.generation => 0,
                _ => 1,
            };
            let waiters: Vec<_> = (0..failing)
                .filter_map(|_| user.waiters.pop_any())
                .collect();
            self.fail(waiters, error, now, &mut todo);
        }
        self.use_room(identity.id(), &mut todo);
        self.refill(now, &mut todo);
        todo
    }

    /// Adds a connection that was established outside the pool, if the limits allow it.
    pub(in super::super) fn adopt(
        &mut self,
        identity: &Arc<Identity>,
        mut connection: Box<Connection>,
        now: Instant,
    ) -> Todo {
        let mut todo = Todo::default();
        let user = self
            .users
            .entry(identity.id())
            .or_insert_with(|| User::new(identity));
        let has_room = user.total() < self.limits.max_pool_size;
        let is_open = matches!(self.state, PoolState::Ready | PoolState::Suspect { .. });
        let may_adopt = is_open
            && has_room
            && (self.total < self.limits.max_server_connections
                || self.make_room(&mut RoomSearches::default(), identity.id(), &mut todo));
        if !may_adopt {
            todo.close.push((connection, CloseReason::GaveWay));
            return todo;
        }
        connection.generation = self.generation;
        self.total += 1;
        let mut more = self.add(identity.id(), connection, now);
        more.close.append(&mut todo.close);
        more
    }
}
