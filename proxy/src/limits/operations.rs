//! Permits for operations in flight.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::sync::oneshot;

use super::fair::UserQueue;
use seawall_locks::Mutex;
use seawall_transport::{Sharer, is_within_share};

/// Number of extra permits. They are reserved for operations that other operations may wait for,
/// such as the commit of a transaction. Without these permits, the operations that wait for a
/// commit could hold all permits, so that the commit could not begin.
const RESERVE: usize = 8;

/// A bounded number of permits for operations in flight. Waiting users are served round-robin, and
/// so are the groups of clients ([`Sharer`]) of each user. A user with more than its share of the
/// permits gets no further permit.
#[derive(Clone, Debug)]
pub struct OperationPermits {
    common: Arc<SharedPermits>,
    /// The [`RESERVE`] permits for operations that other operations may wait for.
    reserve: Arc<SharedPermits>,
}

#[derive(Debug)]
struct SharedPermits {
    all: AtomicUsize,
    /// True for [`OperationPermits::common`]: each user gets at most its share, and each permit is
    /// counted in [`Operator::in_flight`]. False for the reserve: an operation may get any free
    /// permit, and the permits are not counted there.
    has_shares: bool,
    /// Number of permits that are taken. May exceed `all` after `all` was reduced.
    taken: AtomicUsize,
    waiters: Mutex<UserQueue<PermitWaiter>>,
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct PermitWaiter {
    in_flight: Arc<AtomicUsize>,
    permit: oneshot::Sender<OperationPermit>,
}

/// The user and the client of an operation that needs a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operator<'a> {
    /// The number that identifies the user.
    pub user: u64,
    /// The group of clients to which the client belongs, for example all clients of one address.
    pub sharer: Sharer,
    /// Number of the user's operations in flight, without operations that hold a permit of the
    /// reserve (`RESERVE`). Only [`OperationPermits`] changes this number.
    pub in_flight: &'a Arc<AtomicUsize>,
    /// True if other operations may wait for this operation.
    pub may_unblock_others: bool,
}

/// The permit of one operation. Dropping it frees the permit.
#[derive(Debug)]
#[must_use]
pub(crate) struct OperationPermit {
    permits: Arc<SharedPermits>,
    in_flight: Arc<AtomicUsize>,
}

impl OperationPermits {
    /// Creates permits for `max_operations` operations at a time. In addition, there is a reserve
    /// for operations that other operations may wait for.
    pub(crate) fn new(max_operations: usize) -> Self {
        Self {
            common: SharedPermits::new(max_operations, true),
            reserve: SharedPermits::new(RESERVE, false),
        }
    }

    /// Number of operations that have a permit now.
    pub(crate) fn in_flight(&self) -> usize {
        let taken = |permits: &SharedPermits| permits.taken.load(Ordering::Relaxed);
        taken(&self.common) + taken(&self.reserve)
    }

    /// Changes the number of permits. If it falls, operations keep the permits that they have. The
    /// reserve does not change.
    pub(crate) fn set_max(&self, max_operations: usize) {
        self.common.all.store(max_operations, Ordering::SeqCst);
        self.common.serve_waiters();
    }

    /// Returns a permit without waiting, if one is free and the user's share allows it. Otherwise,
    /// an operation that other operations may wait for gets a permit of the reserve, if one is
    /// free. `None` if the operation can get neither permit now.
    pub(crate) fn try_admit(&self, operator: Operator<'_>) -> Option<OperationPermit> {
        let permit = self.common.try_admit(operator.in_flight);
        if permit.is_some() || !operator.may_unblock_others {
            return permit;
        }
        self.reserve.try_admit(operator.in_flight)
    }

    /// Waits for a permit. Waiting users are served round-robin. Cancel safe: an operation that is
    /// dropped leaves the queue.
    pub(crate) async fn admit(&self, operator: Operator<'_>) -> OperationPermit {
        if !operator.may_unblock_others {
            return self.common.admit(operator).await;
        }
        tokio::select! {
            biased;
            permit = self.common.admit(operator) => permit,
            permit = self.reserve.admit(operator) => permit,
        }
    }
}

/// Counts one waiting operation until this guard is dropped. A cancelled wait drops the guard too.
pub(crate) struct CountedWait<'a>(&'a AtomicUsize);

impl<'a> CountedWait<'a> {
    pub(crate) fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SharedPermits {
    fn new(all: usize, has_shares: bool) -> Arc<Self> {
        Arc::new(Self {
            all: AtomicUsize::new(all),
            has_shares,
            taken: AtomicUsize::new(0),
            waiters: Mutex::default(),
            waiting: AtomicUsize::new(0),
        })
    }

    /// True if a user with `held` operations in flight may get one of `free` permits.
    fn allows(&self, held: usize, free: usize) -> bool {
        match self.has_shares {
            true => is_within_share(held, free),
            false => free > 0,
        }
    }

    /// Waits for a permit. Cancel safe.
    async fn admit(self: &Arc<Self>, operator: Operator<'_>) -> OperationPermit {
        loop {
            let (permit, given) = oneshot::channel();
            let waiter = PermitWaiter {
                in_flight: Arc::clone(operator.in_flight),
                permit,
            };
            {
                let mut waiters = self.waiters.lock();
                // Remove the waiters whose operation was dropped, if their number exceeds the
                // number of other waiters by more than 16.
                if waiters.len() > 2 * self.waiting.load(Ordering::Relaxed) + 16 {
                    waiters.retain(|waiter| !waiter.permit.is_closed());
                }
                waiters.push((operator.user, operator.sharer), waiter);
            }
            let _waiting = CountedWait::begin(&self.waiting);
            // A permit may have become free before this waiter was queued.
            self.serve_waiters();
            if let Ok(permit) = given.await {
                return permit;
            }
        }
    }

    fn try_admit(self: &Arc<Self>, in_flight: &Arc<AtomicUsize>) -> Option<OperationPermit> {
        let held = in_flight.load(Ordering::Relaxed);
        let all = self.all.load(Ordering::Relaxed);
        let admitted = self
            .taken
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |taken| {
                let free = all.saturating_sub(taken);
                self.allows(held, free).then(|| taken + 1)
            });
        admitted.ok()?;
        if self.has_shares {
            in_flight.fetch_add(1, Ordering::Relaxed);
        }
        Some(OperationPermit {
            permits: Arc::clone(self),
            in_flight: Arc::clone(in_flight),
        })
    }

    /// Gives the free permits to waiters. As long as a permit is free, examines the next waiting
    /// user, until all are examined. Otherwise the permit could stay unused until an operation
    /// ends. Each user that is not allowed to get a permit holds at least eight permits, so the
    /// number of such users is limited.
    fn serve_waiters(self: &Arc<Self>) {
        loop {
            let mut waiters = self.waiters.lock();
            let all = self.all.load(Ordering::SeqCst);
            let free = all.saturating_sub(self.taken.load(Ordering::SeqCst));
            if free == 0 {
                return;
            }
            let is_ready = |waiter: &PermitWaiter| {
                let held = waiter.in_flight.load(Ordering::Relaxed);
                self.allows(held, free)
            };
            let is_present = |waiter: &PermitWaiter| !waiter.permit.is_closed();
            let Some(waiter) = waiters.pop_if(is_present, is_ready) else {
                return;
            };
            let Some(permit) = self.try_admit(&waiter.in_flight) else {
                // Another operation has got the permit. The waiter is dropped here, so its
                // operation enters the queue again. If other permits are still free, other users
                // may get them.
                continue;
            };
            drop(waiters);
            // If the waiter's operation was dropped, the send fails and drops the permit, which
            // serves the next waiter.
            drop(waiter.permit.send(permit));
        }
    }
}

impl Drop for OperationPermit {
    fn drop(&mut self) {
        if self.permits.has_shares {
            self.in_flight.fetch_sub(1, Ordering::Relaxed);
        }
        self.permits.taken.fetch_sub(1, Ordering::SeqCst);
        if self.permits.waiting.load(Ordering::SeqCst) > 0 {
            self.permits.serve_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    struct CountedUser(u64, Arc<AtomicUsize>);

    impl CountedUser {
        fn new(number: u64) -> Self {
            Self(number, Arc::default())
        }

        fn operator(&self) -> Operator<'_> {
            Operator {
                user: self.0,
                sharer: Sharer::Local,
                in_flight: &self.1,
                may_unblock_others: false,
            }
        }

        fn admit_all(&self, permits: &OperationPermits) -> Vec<OperationPermit> {
            std::iter::from_fn(|| permits.try_admit(self.operator())).collect()
        }
    }

    #[test]
    fn one_user_gets_at_most_its_share_of_operation_permits_and_others_get_the_rest() {
        let permits = OperationPermits::new(90);
        let [greedy, other] = [1, 2].map(CountedUser::new);
        let held = greedy.admit_all(&permits);
        assert_eq!((held.len(), permits.in_flight()), (80, 80));
        assert!(permits.try_admit(other.operator()).is_some());
        drop(held);
        assert_eq!(permits.in_flight(), 0);
        assert_eq!(greedy.1.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_number_of_operation_permits_can_change_while_permits_are_held() {
        let permits = OperationPermits::new(2);
        let user = CountedUser::new(1);
        let mut held = user.admit_all(&permits);
        let mut waiting = Box::pin(permits.admit(user.operator()));
        assert!(waiting.as_mut().now_or_never().is_none());
        permits.set_max(1);
        drop(held.pop());
        assert!(waiting.as_mut().now_or_never().is_none());
        permits.set_max(2);
        let served = waiting.now_or_never();
        assert!(served.is_some());
        assert_eq!(permits.in_flight(), 2);
    }

    #[test]
    fn waiting_users_get_operation_permits_in_turn() {
        let permits = OperationPermits::new(4);
        let [greedy, other] = [1, 2].map(CountedUser::new);
        let mut held = greedy.admit_all(&permits);
        assert_eq!(held.len(), 4);
        let mut first = Box::pin(permits.admit(greedy.operator()));
        let mut second = Box::pin(permits.admit(greedy.operator()));
        let mut others = Box::pin(permits.admit(other.operator()));
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
    fn a_free_operation_permit_goes_to_a_user_behind_many_users_with_full_shares() {
        let permits = OperationPermits::new(20 * 8 + 1);
        let full: Vec<_> = (1..=20).map(CountedUser::new).collect();
        let [holder, late] = [21, 22].map(CountedUser::new);
        let mut held = Vec::new();
        for user in &full {
            held.extend((0..8).map(|_| permits.try_admit(user.operator()).unwrap()));
        }
        let last = permits.try_admit(holder.operator()).unwrap();
        let mut crowd: Vec<_> = full
            .iter()
            .map(|user| Box::pin(permits.admit(user.operator())))
            .collect();
        for operation in &mut crowd {
            assert!(operation.as_mut().now_or_never().is_none());
        }
        let mut waits = Box::pin(permits.admit(late.operator()));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(last);
        assert!(waits.now_or_never().is_some());
        assert_eq!(permits.in_flight(), 20 * 8);
    }

    #[test]
    fn a_user_with_many_addresses_gets_no_more_permits_than_a_user_with_one_address() {
        let permits = OperationPermits::new(4);
        let [greedy, other] = [1, 2].map(CountedUser::new);
        let mut held = greedy.admit_all(&permits);
        let from = |address: u8| Operator {
            sharer: Sharer::at(Some([192, 0, 2, address].into())),
            ..greedy.operator()
        };
        let mut crowd: Vec<_> = (1..=9)
            .map(|address| Box::pin(permits.admit(from(address))))
            .collect();
        for operation in &mut crowd {
            assert!(operation.as_mut().now_or_never().is_none());
        }
        let mut others = [(); 2].map(|()| Box::pin(permits.admit(other.operator())));
        for operation in &mut others {
            assert!(operation.as_mut().now_or_never().is_none());
        }
        // The user with many addresses keeps two permits, so each user may get a permit.
        held.truncate(2);
        let served = crowd
            .iter_mut()
            .filter_map(|operation| operation.as_mut().now_or_never());
        let served: Vec<_> = served.collect();
        let [first, _second] = others;
        assert!(first.now_or_never().is_some());
        assert_eq!(served.len(), 1);
    }

    /// The commit of a transaction is an operation that other operations may wait for.
    #[test]
    fn operations_that_other_operations_may_wait_for_have_a_reserve_of_permits() {
        let permits = OperationPermits::new(2);
        let user = CountedUser::new(1);
        let mut held = user.admit_all(&permits);
        let commit = Operator {
            may_unblock_others: true,
            ..user.operator()
        };
        let mut reserved: Vec<_> = std::iter::from_fn(|| permits.try_admit(commit)).collect();
        assert_eq!((held.len(), reserved.len()), (2, RESERVE));
        assert_eq!(permits.in_flight(), 2 + RESERVE);
        let [mut first, mut second] = [commit, commit].map(|of| Box::pin(permits.admit(of)));
        let mut other = Box::pin(permits.admit(user.operator()));
        assert!(first.as_mut().now_or_never().is_none());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(other.as_mut().now_or_never().is_none());
        drop(reserved.pop());
        let first = first.now_or_never().unwrap();
        assert!(other.as_mut().now_or_never().is_none());
        // A waiting commit also gets a permit outside the reserve when an operation releases it.
        drop(held.pop());
        let second = second.now_or_never().unwrap();
        assert!(other.as_mut().now_or_never().is_none());
        drop((held, reserved, first, second));
        assert!(other.now_or_never().is_some());
        assert_eq!(permits.in_flight(), 0);
    }

    /// A waiting operation is dropped when its client disconnects, or when its wait was too long.
    #[test]
    fn operations_that_were_dropped_while_they_waited_use_no_turn_of_their_user() {
        let permits = OperationPermits::new(2);
        let [holder, crowd, other] = [1, 2, 3].map(CountedUser::new);
        let mut held = holder.admit_all(&permits);
        assert_eq!(held.len(), 2);
        let mut of_crowd: Vec<_> = (0..4)
            .map(|_| Box::pin(permits.admit(crowd.operator())))
            .collect();
        let mut of_other = Box::pin(permits.admit(other.operator()));
        for operation in of_crowd.iter_mut().chain([&mut of_other]) {
            assert!(operation.as_mut().now_or_never().is_none());
        }
        let stays = of_crowd.pop().unwrap();
        drop(of_crowd);
        held.truncate(1);
        assert!(of_other.as_mut().now_or_never().is_none());
        assert!(stays.now_or_never().is_some());
    }

    #[test]
    fn an_operation_that_was_dropped_while_it_waited_gets_no_permit() {
        let permits = OperationPermits::new(1);
        let user = CountedUser::new(1);
        let held = user.admit_all(&permits);
        for _ in 0..100 {
            let mut left = Box::pin(permits.admit(user.operator()));
            assert!(left.as_mut().now_or_never().is_none());
        }
        assert!(
            permits.common.waiters.lock().len() <= 18,
            "waiters that left are removed"
        );
        let mut waits = Box::pin(permits.admit(user.operator()));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(held);
        assert!(waits.now_or_never().is_some());
        assert_eq!(permits.in_flight(), 0);
    }

    #[test]
    fn operations_that_were_dropped_while_they_waited_are_removed_from_the_queue() {
        let permits = OperationPermits::new(1);
        let user = CountedUser::new(1);
        let held = user.admit_all(&permits);
        let arrive = |count: usize| -> Vec<_> {
            let waits = |_| {
                let mut operation = Box::pin(permits.admit(user.operator()));
                assert!(operation.as_mut().now_or_never().is_none());
                operation
            };
            (0..count).map(waits).collect()
        };
        let queued = || permits.common.waiters.lock().len();
        let waiting = arrive(10);
        for _ in 0..100 {
            drop(arrive(1));
            assert!(queued() <= 40, "{}", queued());
        }
        // If many operations are dropped at the same time, they are removed from the queue when the
        // next operation arrives.
        drop(arrive(100));
        drop(arrive(1));
        assert_eq!(queued(), 11);
        drop(held);
        for operation in waiting {
            assert!(operation.now_or_never().is_some());
        }
    }
}
