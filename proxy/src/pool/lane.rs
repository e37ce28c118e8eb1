//! The lane: limits how many connections are used by operations that wait for data.
//!
//! A `getMore` on a change stream or a tailable cursor uses its server connection until data
//! arrives or its `maxTimeMS` expires. Seawall cannot end this wait earlier: `killOp` does not end
//! it. So only a part of the connections may be used for such waits, and each wait is split into
//! slices. Each slice needs a permit. The more operations wait for a permit, the shorter the slices
//! are.
//!
//! A slice can use its connection for much longer than its length. `maxTimeMS` does not limit how
//! long a server searches for data, and a client can read a large reply slowly. So a permit has two
//! turns: one of the server, and one of its user. The turn of the server ends with the first byte
//! of the reply. It also ends a short time after the end of the slice, if enough connections to the
//! server are left for other operations. Then other users can wait for data. The turn of the user
//! ends when the connection is checked in. So a user never uses more connections for waits than the
//! lane has permits.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::time::timeout;

use super::ServerPool;
use crate::limits::{CountedWait, Turn, Turns};
use seawall_locks::Mutex;
use seawall_transport::Sharer;

/// Operations need a permit to wait for data at the server. The number of permits is the maximum
/// number of connections of one user to the server, divided by this number, but at least 1.
const SHARE: usize = 4;

/// Length of a slice (a part of the time for which an operation waits for data at the server) while
/// the operation's user could get a further permit at once.
const LONG_SLICE: Duration = Duration::from_secs(1);

/// Length of a slice while the operation's user can get no further permit at once.
const SHORT_SLICE: Duration = Duration::from_millis(100);

/// Length of a slice while more operations wait for a permit than there are permits.
const SHORTEST_SLICE: Duration = Duration::from_millis(25);

/// Additional time for the reply to begin, after twice the length of the slice. Then the turn of
/// the server ends if enough connections are left for other operations. If too few are left, the
/// turn continues, and Seawall checks again each time this time has passed.
const GRACE: Duration = Duration::from_secs(1);

/// Users without permits and without waiting operations are removed only if at least this number of
/// users is known.
const CLEAN_AT: usize = 64;

/// The requester of a permit: the number that identifies the user, and the client's group (for
/// example all clients of one address). The lane serves the users round-robin, and the groups of
/// each user round-robin.
pub type LaneKey = (u64, Sharer);

/// The permits of one server for operations that wait for data.
#[derive(Debug)]
pub struct Lane {
    turns: Turns<LaneKey>,
    permits: AtomicUsize,
    /// Number of operations that wait for a turn of the server.
    waiting: AtomicUsize,
    users: Mutex<Users>,
}

/// The users that have permits or waiting operations, by their numbers. Users without permits and
/// without waiting operations are removed later.
#[derive(Debug, Default)]
struct Users {
    by_number: HashMap<u64, Arc<UserTurns>, RandomState>,
    /// When this number of users is known, users without permits and without waiting operations are
    /// removed.
    clean_at: usize,
}

/// The turns of one user: each permit of the user includes one.
#[derive(Debug)]
struct UserTurns {
    turns: Turns,
    /// Number of operations that wait for a turn of the user.
    waiting: AtomicUsize,
}

/// A permit of the lane, for one slice of a wait. Dropping it releases the permit.
#[derive(Debug)]
#[must_use]
pub struct LanePermit {
    /// Length of the slice: how long the server may wait for data.
    pub slice: Duration,
    /// The turn of the server; `None` after it has ended.
    turn: Option<Turn<LaneKey>>,
    _own_turn: Turn,
    _user: Arc<UserTurns>,
}

impl LanePermit {
    /// Ends the turn of the server. The turn of the user continues.
    fn release(&mut self) {
        self.turn = None;
    }
}

/// The permit of a checkout during its exchange with the server.
#[derive(Debug)]
pub(crate) struct HeldPermit<'a> {
    pub(super) permit: &'a mut LanePermit,
    pub(super) pool: &'a ServerPool,
}

impl HeldPermit<'_> {
    /// Runs `wait`, the wait for the server. Releases the permit for other users if the wait lasts
    /// longer than twice the slice plus [`GRACE`]. But the permit is kept while waits for data
    /// could otherwise use more than half of the connections to the server.
    pub(crate) async fn hold_during<T>(&mut self, wait: impl Future<Output = T>) -> T {
        let mut wait = pin!(wait);
        let mut limit = self.permit.slice * 2 + GRACE;
        while self.permit.turn.is_some() {
            if let Ok(done) = timeout(limit, wait.as_mut()).await {
                return done;
            }
            if self.pool.has_room_for_waits() {
                self.permit.release();
            }
            limit = GRACE;
        }
        wait.await
    }

    /// Releases the permit for other users. Must be called when the reply begins, because the wait
    /// for data has then ended.
    pub(crate) fn release(self) {
        self.permit.release();
    }
}

impl Lane {
    /// Creates the lane of a pool in which one user has at most `max_pool_size` connections.
    pub(super) fn new(max_pool_size: usize) -> Self {
        let permits = permits_of(max_pool_size);
        Self {
            turns: Turns::by_user(permits),
            permits: AtomicUsize::new(permits),
            waiting: AtomicUsize::new(0),
            users: Mutex::default(),
        }
    }

    /// Changes the number of permits to the number for a pool in which one user has at most
    /// `max_pool_size` connections.
    pub(super) fn set_permits(&self, max_pool_size: usize) {
        let permits = permits_of(max_pool_size);
        self.permits.store(permits, Ordering::Relaxed);
        self.turns.set_count(permits);
        for user in self.users.lock().by_number.values() {
            user.turns.set_count(permits);
        }
    }

    /// Waits for a permit: first for a turn of the user, then for a turn of the server. Cancel
    /// safe.
    pub async fn enter(&self, from: LaneKey) -> LanePermit {
        let (number, sharer) = from;
        let user = self.user(number);
        let waiting = CountedWait::begin(&user.waiting);
        let own_turn = user.turns.take(sharer).await;
        drop(waiting);
        let waiting = CountedWait::begin(&self.waiting);
        let turn = self.turns.take(from).await;
        drop(waiting);
        LanePermit {
            slice: self.slice(&user),
            turn: Some(turn),
            _own_turn: own_turn,
            _user: user,
        }
    }

    /// Number of permits.
    pub(super) fn permits(&self) -> usize {
        self.permits.load(Ordering::Relaxed)
    }

    /// The length of the slice of an operation of this user. A waiting operation of another user
    /// counts only if it already has a turn of its user.
    fn slice(&self, user: &UserTurns) -> Duration {
        let of_server = self.waiting.load(Ordering::Relaxed);
        let still_waiting = of_server + user.waiting.load(Ordering::Relaxed);
        if still_waiting > self.permits() {
            SHORTEST_SLICE
        } else if still_waiting > 0 || self.turns.free() == 0 || user.turns.free() == 0 {
            SHORT_SLICE
        } else {
            LONG_SLICE
        }
    }

    /// The turns of the user with this number.
    fn user(&self, number: u64) -> Arc<UserTurns> {
        let mut users = self.users.lock();
        if let Some(user) = users.by_number.get(&number) {
            return Arc::clone(user);
        }
        if users.by_number.len() >= users.clean_at {
            users
                .by_number
                .retain(|_, user| Arc::strong_count(user) > 1);
            users.clean_at = CLEAN_AT.max(2 * users.by_number.len());
        }
        let user = Arc::new(UserTurns {
            turns: Turns::new(self.permits()),
            waiting: AtomicUsize::new(0),
        });
        users.by_number.insert(number, Arc::clone(&user));
        user
    }

    /// True if operations of the user with this number wait for a turn of the user.
    pub(crate) fn has_waiting_of(&self, number: u64) -> bool {
        let users = self.users.lock();
        let user = users.by_number.get(&number);
        user.is_some_and(|user| user.waiting.load(Ordering::Relaxed) > 0)
    }

    /// Returns the number of operations that have a permit or a connection for their wait, and the
    /// number of operations that wait for a permit.
    pub(super) fn counts(&self) -> (usize, usize) {
        let of_server = self.waiting.load(Ordering::Relaxed);
        let (mut taken, mut waiting) = (0_usize, of_server);
        for user in self.users.lock().by_number.values() {
            taken += user.turns.taken();
            waiting += user.waiting.load(Ordering::Relaxed);
        }
        (taken.saturating_sub(of_server), waiting)
    }
}

fn permits_of(max_pool_size: usize) -> usize {
    (max_pool_size / SHARE).max(1)
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, poll};

    use super::*;

    const USER: LaneKey = (1, Sharer::Local);

    /// A *slice* is a part of the time for which a change stream waits for data at the server.
    #[tokio::test(start_paused = true)]
    async fn slices_get_shorter_as_more_change_streams_wait_for_data() {
        let lane = Lane::new(12);
        let first = lane.enter(USER).await;
        assert_eq!(first.slice, LONG_SLICE);
        let second = lane.enter(USER).await;
        assert_eq!(second.slice, LONG_SLICE);
        let third = lane.enter(USER).await;
        assert_eq!(third.slice, SHORT_SLICE);
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(lane.enter(USER))).collect();
        for permit in &mut waiting {
            assert!(poll!(permit).is_pending());
        }
        assert_eq!(lane.counts(), (3, 5));
        drop(first);
        let mut waiting = waiting.into_iter();
        let next = waiting.next().unwrap().await;
        assert_eq!(next.slice, SHORTEST_SLICE);
        // Waiters that were dropped are not counted.
        drop(waiting);
        assert_eq!(lane.counts(), (3, 0));
    }

    /// A change stream waits for data in parts (*slices*), and needs a permit for each slice.
    #[tokio::test(start_paused = true)]
    async fn slices_are_shortest_while_more_operations_wait_than_there_are_permits() {
        let lane = Lane::new(12);
        let held = [
            lane.enter(USER).await,
            lane.enter(USER).await,
            lane.enter(USER).await,
        ];
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(lane.enter(USER))).collect();
        for permit in &mut waiting {
            assert!(poll!(permit).is_pending());
        }
        drop(held);
        let mut waiting = waiting.into_iter();
        let while_four_wait = waiting.next().unwrap().await;
        assert_eq!(while_four_wait.slice, SHORTEST_SLICE);
        let while_three_wait = waiting.next().unwrap().await;
        assert_eq!(while_three_wait.slice, SHORT_SLICE);
    }

    #[tokio::test(start_paused = true)]
    async fn permits_to_wait_for_data_go_round_robin_to_users_and_to_their_addresses() {
        let lane = Lane::new(4);
        let held = lane.enter(USER).await;
        let elsewhere = (1, Sharer::at(Some([192, 0, 2, 1].into())));
        let wait = |from| Box::pin(lane.enter(from));
        let mut crowd: Vec<_> = (0..9).map(|_| wait(USER)).collect();
        for permit in &mut crowd {
            assert!(poll!(permit).is_pending());
        }
        let mut others = [wait((2, Sharer::Local)), wait(elsewhere)];
        for permit in &mut others {
            assert!(poll!(permit).is_pending());
        }
        drop(held);
        let [other_user, other_address] = others;
        let permit = other_user.now_or_never();
        assert!(permit.is_some(), "users are served round-robin");
        drop(permit);
        let mut crowd = crowd.into_iter();
        drop(crowd.next().unwrap().await);
        let permit = other_address.now_or_never();
        assert!(
            permit.is_some(),
            "addresses of a user are served round-robin"
        );
    }

    /// A wait can be long because the server searches for a long time, or the client reads slowly.
    #[tokio::test(start_paused = true)]
    async fn a_user_with_long_waits_gets_no_further_permits_but_other_users_get_permits() {
        let lane = Lane::new(8);
        let mut long = [lane.enter(USER).await, lane.enter(USER).await];
        assert!(lane.enter((2, Sharer::Local)).now_or_never().is_none());
        for permit in &mut long {
            permit.release();
        }
        assert_eq!(lane.counts(), (2, 0));
        let mut further = Box::pin(lane.enter(USER));
        assert!(poll!(&mut further).is_pending());
        assert!(lane.has_waiting_of(USER.0));
        drop(further);
        assert!(!lane.has_waiting_of(USER.0));
        let other = lane.enter((2, Sharer::Local)).await;
        assert_eq!(other.slice, LONG_SLICE);
        assert_eq!(lane.counts(), (3, 0));
        drop(long);
        assert!(lane.enter(USER).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_lane_removes_users_without_permits_and_without_waiting_operations() {
        let lane = Lane::new(4);
        for number in 0..1_000 {
            drop(lane.enter((number, Sharer::Local)).await);
        }
        assert!(lane.users.lock().by_number.len() <= CLEAN_AT);
    }
}
