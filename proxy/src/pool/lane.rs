//! A separate lane for awaiting operations.
//!
//! A `getMore` on a change stream or a tailable cursor holds its server connection until data
//! arrives or its `maxTimeMS` expires. Nothing makes a server release the connection earlier. So
//! only a part of the connections may wait like that, in time slices. The more operations wait, the
//! shorter the slices.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::limits::{Turn, Turns};
use seawall_transport::Sharer;

/// One in this many of a user's connections may be awaiting at a time.
const SHARE: usize = 4;

/// Slice while there are places left.
const LONG_SLICE: Duration = Duration::from_secs(1);

/// Slice while all places are taken.
const SHORT_SLICE: Duration = Duration::from_millis(100);

/// Slice while more operations wait for a place than there are places.
const SHORTEST_SLICE: Duration = Duration::from_millis(25);

/// The user and the client that want a place: users, and the addresses of a user, are served in
/// turn.
pub type LaneKey = (u64, Sharer);

/// Places for awaiting operations.
#[derive(Debug)]
pub struct Lane {
    turns: Turns<LaneKey>,
    places: usize,
    waiting: AtomicUsize,
}

/// A place in the lane, and how long it may be used.
#[derive(Debug)]
#[must_use]
pub struct LanePlace {
    /// How long the server may be asked to wait.
    pub slice: Duration,
    _turn: Turn<LaneKey>,
}

/// Counts one waiter for a place until it is dropped, also when it is cancelled.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Lane {
    /// A lane for pools of `max_pool_size` connections.
    pub(super) fn new(max_pool_size: usize) -> Self {
        let places = (max_pool_size / SHARE).max(1);
        Self {
            turns: Turns::new(places),
            places,
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for a place. Cancel safe.
    pub async fn enter(&self, from: LaneKey) -> LanePlace {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting);
        let turn = self.turns.take(from).await;
        drop(waiting);
        let still_waiting = self.waiting.load(Ordering::Relaxed);
        let slice = if still_waiting > self.places {
            SHORTEST_SLICE
        } else if still_waiting > 0 || self.turns.free() == 0 {
            SHORT_SLICE
        } else {
            LONG_SLICE
        };
        LanePlace { slice, _turn: turn }
    }

    /// The number of operations in the lane, and of those that wait for a place in it.
    pub(super) fn counts(&self) -> (usize, usize) {
        let running = self.places.saturating_sub(self.turns.free());
        (running, self.waiting.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, poll};

    use super::*;

    const USER: LaneKey = (1, Sharer::Local);

    #[tokio::test(start_paused = true)]
    async fn slices_shorten_as_the_lane_fills() {
        let lane = Lane::new(12);
        let first = lane.enter(USER).await;
        assert_eq!(first.slice, LONG_SLICE);
        let second = lane.enter(USER).await;
        assert_eq!(second.slice, LONG_SLICE);
        let third = lane.enter(USER).await;
        assert_eq!(third.slice, SHORT_SLICE);
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(lane.enter(USER))).collect();
        for place in &mut waiting {
            assert!(poll!(place).is_pending());
        }
        assert_eq!(lane.counts(), (3, 5));
        drop(first);
        let mut waiting = waiting.into_iter();
        let next = waiting.next().unwrap().await;
        assert_eq!(next.slice, SHORTEST_SLICE);
        // Waiters that leave the queue no longer count.
        drop(waiting);
        assert_eq!(lane.counts(), (3, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn slices_are_shortest_while_more_wait_than_there_are_places() {
        let lane = Lane::new(12);
        let held = [
            lane.enter(USER).await,
            lane.enter(USER).await,
            lane.enter(USER).await,
        ];
        let mut waiting: Vec<_> = (0..5).map(|_| Box::pin(lane.enter(USER))).collect();
        for place in &mut waiting {
            assert!(poll!(place).is_pending());
        }
        drop(held);
        let mut waiting = waiting.into_iter();
        let while_four_wait = waiting.next().unwrap().await;
        assert_eq!(while_four_wait.slice, SHORTEST_SLICE);
        let while_three_wait = waiting.next().unwrap().await;
        assert_eq!(while_three_wait.slice, SHORT_SLICE);
    }

    #[tokio::test(start_paused = true)]
    async fn users_and_their_addresses_are_served_in_turn() {
        let lane = Lane::new(4);
        let held = lane.enter(USER).await;
        let elsewhere = (1, Sharer::at(Some([192, 0, 2, 1].into())));
        let wait = |from| Box::pin(lane.enter(from));
        let mut crowd: Vec<_> = (0..9).map(|_| wait(USER)).collect();
        for place in &mut crowd {
            assert!(poll!(place).is_pending());
        }
        let mut others = [wait((2, Sharer::Local)), wait(elsewhere)];
        for place in &mut others {
            assert!(poll!(place).is_pending());
        }
        drop(held);
        let mut crowd = crowd.into_iter();
        drop(crowd.next().unwrap().await);
        for place in others {
            let place = place.now_or_never();
            assert!(place.is_some(), "it goes before the rest of the crowd");
        }
    }
}
