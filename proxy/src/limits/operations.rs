//! Places for operations in flight.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::fair::TurnQueue;
use seawall_transport::{Sharer, is_within_share};

/// The most users that are examined when a place becomes free.
const MAX_USERS_TRIED: usize = 8;

/// A bounded number of places for operations in flight. A user with more than its share waits while
/// others get places. Waiting users are served in turn.
#[derive(Clone, Debug)]
pub struct OperationPlaces(Arc<SharedPlaces>);

#[derive(Debug)]
struct SharedPlaces {
    all: usize,
    free: AtomicUsize,
    waiters: Mutex<TurnQueue<(u64, Sharer), Waiter>>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct Waiter {
    in_flight: Arc<AtomicUsize>,
    place: oneshot::Sender<OperationPlace>,
}

/// The user and the client whose operation asks for a place.
#[derive(Clone, Copy, Debug)]
pub struct Operator<'a> {
    /// The user's number.
    pub user: u64,
    /// The client's address, or its user if several users share the address.
    pub sharer: Sharer,
    /// How many operations of the user are in flight. Only [`OperationPlaces`] changes it.
    pub in_flight: &'a Arc<AtomicUsize>,
}

/// The place of one operation; freed on drop.
#[derive(Debug)]
#[must_use]
pub struct OperationPlace {
    places: Arc<SharedPlaces>,
    in_flight: Arc<AtomicUsize>,
}

impl OperationPlaces {
    /// Places for `max_operations` operations at a time.
    pub fn new(max_operations: usize) -> Self {
        Self(Arc::new(SharedPlaces {
            all: max_operations,
            free: AtomicUsize::new(max_operations),
            waiters: Mutex::default(),
            waiting: AtomicUsize::new(0),
        }))
    }

    /// The number of operations that have a place now.
    pub fn in_flight(&self) -> usize {
        self.0.all - self.0.free.load(Ordering::Relaxed)
    }

    /// Takes a place without waiting, if the user's share allows it.
    pub fn try_admit(&self, operator: Operator<'_>) -> Option<OperationPlace> {
        self.0.take(operator.in_flight)
    }

    /// Waits for a place. Waiting users are served in turn. Cancel safe: an operation that is
    /// dropped leaves the queue.
    pub async fn admit(&self, operator: Operator<'_>) -> OperationPlace {
        loop {
            let (place, given) = oneshot::channel();
            let waiter = Waiter {
                in_flight: Arc::clone(operator.in_flight),
                place,
            };
            {
                let mut waiters = self.0.waiters.lock();
                // Remove waiters that left before they far outnumber those that still wait.
                if waiters.len() > 2 * self.0.waiting.load(Ordering::Relaxed) + 16 {
                    waiters.retain(|waiter| !waiter.place.is_closed());
                }
                waiters.push((operator.user, operator.sharer), waiter);
            }
            let _waiting = Waiting::begin(&self.0.waiting);
            // A place may have become free before this waiter was queued.
            self.0.serve_waiters();
            if let Ok(place) = given.await {
                return place;
            }
        }
    }
}

/// Counts one waiting operation until it is dropped.
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

impl SharedPlaces {
    fn take(self: &Arc<Self>, in_flight: &Arc<AtomicUsize>) -> Option<OperationPlace> {
        let held = in_flight.load(Ordering::Relaxed);
        let taken = self
            .free
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| {
                is_within_share(held, free).then(|| free - 1)
            });
        taken.ok()?;
        in_flight.fetch_add(1, Ordering::Relaxed);
        Some(OperationPlace {
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
                // Another operation took the place, and its drop will serve the waiters again. This
                // waiter is dropped, so its operation enters the queue again.
                return;
            };
            drop(waiters);
            // If the operation has left, its place is dropped, which serves the next waiter.
            drop(waiter.place.send(place));
        }
    }
}

impl Drop for OperationPlace {
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

        fn take_all(&self, places: &OperationPlaces) -> Vec<OperationPlace> {
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
    fn queue_holds_few_operations_that_left() {
        let places = OperationPlaces::new(1);
        let user = User::new(1);
        let held = user.take_all(&places);
        let arrive = |count: usize| -> Vec<_> {
            let waits = |_| {
                let mut operation = Box::pin(places.admit(user.operator()));
                assert!(operation.as_mut().now_or_never().is_none());
                operation
            };
            (0..count).map(waits).collect()
        };
        let queued = || places.0.waiters.lock().len();
        let waiting = arrive(10);
        for _ in 0..100 {
            drop(arrive(1));
            assert!(queued() <= 40, "{}", queued());
        }
        // Many operations that leave at once are removed when the next operation arrives.
        drop(arrive(100));
        drop(arrive(1));
        assert_eq!(queued(), 11);
        drop(held);
        for operation in waiting {
            assert!(operation.now_or_never().is_some());
        }
    }
}
