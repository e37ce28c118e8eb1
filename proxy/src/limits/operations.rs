//! Places of operations in flight.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::fair::TurnQueue;
use crate::wire::{Sharer, is_within_share};

/// Users that are tried in turn when a place comes free.
const MAX_USERS_TRIED: usize = 8;

/// Bounded places of operations in flight. A user that has more than its share waits while others get places; waiting users
/// are served in turn.
#[derive(Clone, Debug)]
pub struct OperationPlaces(Arc<Places>);

#[derive(Debug)]
struct Places {
    all: usize,
    free: AtomicUsize,
    waiters: Mutex<TurnQueue<(u64, Sharer), Waiter>>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct Waiter {
    in_flight: Arc<AtomicUsize>,
    place: oneshot::Sender<Place>,
}

/// Whose operation asks for a place.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    /// The user's number.
    pub user: u64,
    /// The client's address, or its user behind a shared address.
    pub sharer: Sharer,
    /// How many operations of the user are in flight. Only [`OperationPlaces`] changes it.
    pub in_flight: &'a Arc<AtomicUsize>,
}

/// An operation's place, free again on drop.
#[derive(Debug)]
#[must_use]
pub struct Place {
    places: Arc<Places>,
    in_flight: Arc<AtomicUsize>,
}

impl OperationPlaces {
    /// So many at a time.
    pub fn new(max_operations: usize) -> Self {
        Self(Arc::new(Places {
            all: max_operations,
            free: AtomicUsize::new(max_operations),
            waiters: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// Operations that have a place now.
    pub fn in_flight(&self) -> usize {
        self.0.all - self.0.free.load(Ordering::Relaxed)
    }

    /// A place at once, if the user's share allows it.
    pub fn try_admit(&self, operator: Operator<'_>) -> Option<Place> {
        self.0.take(operator.in_flight)
    }

    /// A place when there is one: waiting users are served in turn. Cancel safe: an operation that is dropped waits no more.
    pub async fn admit(&self, operator: Operator<'_>) -> Place {
        loop {
            let (place, given) = oneshot::channel();
            let waiter = Waiter {
                in_flight: Arc::clone(operator.in_flight),
                place,
            };
            {
                let mut waiters = self.0.waiters.lock();
                // Those that left are removed before they are more than those that wait.
                if waiters.len() > 2 * self.0.waiting.load(Ordering::Relaxed) + 16 {
                    waiters.retain(|waiter| !waiter.place.is_closed());
                }
                waiters.push((operator.user, operator.sharer), waiter);
            }
            let _waiting = Waiting::begin(&self.0.waiting);
            // A place may have come free before this one waited.
            self.0.serve_waiters();
            if let Ok(place) = given.await {
                return place;
            }
        }
    }
}

/// Counts one that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Places {
    fn take(self: &Arc<Self>, in_flight: &Arc<AtomicUsize>) -> Option<Place> {
        let held = in_flight.load(Ordering::Relaxed);
        let taken = self
            .free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| {
                is_within_share(held, free).then(|| free - 1)
            });
        taken.ok()?;
        in_flight.fetch_add(1, Ordering::Relaxed);
        Some(Place {
            places: Arc::clone(self),
            in_flight: Arc::clone(in_flight),
        })
    }

    fn serve_waiters(self: &Arc<Self>) {
        loop {
            let mut waiters = self.waiters.lock();
            let is_ready = |waiter: &Waiter| {
                let held = waiter.in_flight.load(Ordering::Relaxed);
                is_within_share(held, self.free.load(Ordering::SeqCst))
            };
            let Some(waiter) = waiters.pop_if(MAX_USERS_TRIED, is_ready) else {
                return;
            };
            if waiter.place.is_closed() {
                continue;
            }
            let Some(place) = self.take(&waiter.in_flight) else {
                // Taken meanwhile; its drop serves the waiters again. This one asks once more.
                return;
            };
            drop(waiters);
            // If the operation has left, its place is dropped, which serves the next.
            drop(waiter.place.send(place));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.places.free.fetch_add(1, Ordering::SeqCst);
        if self.places.waiting.load(Ordering::SeqCst) > 0 {
            self.places.serve_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    struct User(u64, Arc<AtomicUsize>);

    impl User {
        fn new(number: u64) -> Self {
            Self(number, Arc::default())
        }

        fn operator(&self) -> Operator<'_> {
            Operator {
                user: self.0,
                sharer: Sharer::Local,
                in_flight: &self.1,
            }
        }

        fn take_all(&self, places: &OperationPlaces) -> Vec<Place> {
            std::iter::from_fn(|| places.try_admit(self.operator())).collect()
        }
    }

    #[test]
    fn a_user_leaves_places_to_others() {
        let places = OperationPlaces::new(90);
        let [greedy, other] = [1, 2].map(User::new);
        let held = greedy.take_all(&places);
        assert_eq!((held.len(), places.in_flight()), (80, 80));
        assert!(places.try_admit(other.operator()).is_some());
        drop(held);
        assert_eq!(places.in_flight(), 0);
        assert_eq!(greedy.1.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn users_that_wait_are_served_in_turn() {
        let places = OperationPlaces::new(4);
        let [greedy, other] = [1, 2].map(User::new);
        let mut held = greedy.take_all(&places);
        assert_eq!(held.len(), 4);
        let mut first = Box::pin(places.admit(greedy.operator()));
        let mut second = Box::pin(places.admit(greedy.operator()));
        let mut others = Box::pin(places.admit(other.operator()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(others.as_mut().now_or_never().is_none());
        held.truncate(2);
        let _first = first.now_or_never().unwrap();
        let _others = others.now_or_never().unwrap();
        assert!(second.as_mut().now_or_never().is_none());
        drop(held);
        assert!(second.now_or_never().is_some());
    }

    #[test]
    fn an_operation_that_left_takes_no_place() {
        let places = OperationPlaces::new(1);
        let user = User::new(1);
        let held = user.take_all(&places);
        for _ in 0..100 {
            let mut left = Box::pin(places.admit(user.operator()));
            assert!(left.as_mut().now_or_never().is_none());
        }
        assert!(places.0.waiters.lock().len() <= 18, "they are removed");
        let mut waits = Box::pin(places.admit(user.operator()));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(held);
        assert!(waits.now_or_never().is_some());
        assert_eq!(places.in_flight(), 0);
    }

    #[test]
    fn operations_that_left_are_not_many_more_than_those_that_wait() {
        let places = OperationPlaces::new(1);
        let user = User::new(1);
        let held = user.take_all(&places);
        let come = |count: usize| -> Vec<_> {
            let waits = |_| {
                let mut operation = Box::pin(places.admit(user.operator()));
                assert!(operation.as_mut().now_or_never().is_none());
                operation
            };
            (0..count).map(waits).collect()
        };
        let queued = || places.0.waiters.lock().len();
        let waiting = come(10);
        for _ in 0..100 {
            drop(come(1));
            assert!(queued() <= 40, "{}", queued());
        }
        // A crowd that leaves at once is gone when the next operation comes.
        drop(come(100));
        drop(come(1));
        assert_eq!(queued(), 11);
        drop(held);
        for operation in waiting {
            assert!(operation.now_or_never().is_some());
        }
    }
}
