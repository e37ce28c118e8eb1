//! The lane: limits how many connections are used by operations that wait for data.
//!
//! A `getMore` on a change stream or a tailable cursor uses its server connection until data
//! arrives or its `maxTimeMS` expires. Seawall cannot end this wait earlier: `killOp` does not end
//! it. So only a part of the connections may be used for such waits, and each wait is split into
//! slices. Each slice needs a permit. The more operations wait for a permit, the shorter the slices
//! are.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::limits::{Turn, Turns};
use seawall_transport::Sharer;

/// The lane limits how many operations wait for data at the server: it has a number of permits for
/// them. This number is the maximum number of connections of one user to the server, divided by
/// `SHARE`, but at least 1.
const SHARE: usize = 4;

/// Length of a slice (a part of the time for which an operation waits for data at the server) while
/// permits are left.
const LONG_SLICE: Duration = Duration::from_secs(1);

/// Length of a slice while all permits are in use.
const SHORT_SLICE: Duration = Duration::from_millis(100);

/// Length of a slice while more operations wait for a permit than there are permits.
const SHORTEST_SLICE: Duration = Duration::from_millis(25);

/// The requester of a permit: the number that identifies the user, and the client's group (for
/// example all clients of one address). The lane serves the users in turn, and the groups of each
/// user in turn.
pub type LaneKey = (u64, Sharer);

/// The permits of one server for operations that wait for data.
#[derive(Debug)]
pub struct Lane {
    turns: Turns<LaneKey>,
    permits: AtomicUsize,
    waiting: AtomicUsize,
}

/// A permit of the lane, for one slice of a wait. Dropping it releases the permit.
#[derive(Debug)]
#[must_use]
pub struct LanePermit {
    /// Length of the slice: how long the server may wait for data.
    pub slice: Duration,
    _turn: Turn<LaneKey>,
}

/// Counts one operation that waits for a permit. The count ends when this guard is dropped, so it
/// also ends if the wait is cancelled.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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
        }
    }

    /// Changes the number of permits to the number for a pool in which one user has at most
    /// `max_pool_size` connections.
    pub(super) fn set_permits(&self, max_pool_size: usize) {
        let permits = permits_of(max_pool_size);
        self.permits.store(permits, Ordering::Relaxed);
        self.turns.set_count(permits);
    }

    /// Waits for a permit. Cancel safe.
    pub async fn enter(&self, from: LaneKey) -> LanePermit {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting);
        let turn = self.turns.take(from).await;
        drop(waiting);
        let still_waiting = self.waiting.load(Ordering::Relaxed);
        let slice = if still_waiting > self.permits.load(Ordering::Relaxed) {
            SHORTEST_SLICE
        } else if still_waiting > 0 || self.turns.free() == 0 {
            SHORT_SLICE
        } else {
            LONG_SLICE
        };
        LanePermit { slice, _turn: turn }
    }

    /// Returns the number of permits in use, and the number of operations that wait for a permit.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.turns.taken(), self.waiting.load(Ordering::Relaxed))
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
    async fn slices_are_shortest_while_more_operations_wait_for_a_permit_than_the_lane_has_permits()
    {
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
    async fn permits_to_wait_for_data_go_in_turn_to_users_and_to_each_user_s_client_addresses() {
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
        let mut crowd = crowd.into_iter();
        drop(crowd.next().unwrap().await);
        for permit in others {
            let permit = permit.now_or_never();
            assert!(
                permit.is_some(),
                "users and their addresses are served in turn"
            );
        }
    }
}
