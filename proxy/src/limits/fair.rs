//! Queues that serve addresses round-robin.
//!
//! An address with a thousand waiters gets as many turns as an address with one waiter.
//!
//! [`Waiters`], the queue of logins and of new clients, also serves the users of an address
//! round-robin. In most turns of a user, it serves the user's newest waiter, because clients that
//! have waited for long often give up and retry. In every fourth turn of the user, it serves the
//! user's oldest waiter, so that old waiters are served too. All new clients of an address count as
//! one user.
//!
//! [`TurnQueue`], which is used for operations of one user, serves the waiters of each key (for
//! example of each address) in order of arrival. [`UserQueue`] serves users round-robin, and the
//! addresses of each user round-robin.
//!
//! A waiter may leave, for example because its client has disconnected. A waiter that has left may
//! stay in its queue, but it uses no turn.

use std::{
    cmp::Ordering,
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
};

use foldhash::fast::RandomState;

use super::recent::NameHash;
use seawall_transport::Sharer;

/// The address and the user of a waiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The waiter's address, or the waiter's user if many clients share the address.
    pub sharer: Sharer,
    /// The user that the waiter claims to be; `None` for a client that has not begun a login.
    pub user: Option<NameHash>,
}

/// In one of `OLDEST_EVERY` turns, a [`NewestFirst`] queue serves its oldest waiter.
const OLDEST_EVERY: u64 = 4;

/// A queue of waiters.
pub(super) trait WaiterQueue {
    type Key: Copy;
    type Waiter;

    fn push(&mut self, key: Self::Key, waiter: Self::Waiter);

    /// Removes and returns the next waiter for which `is_present` is true. Waiters for which it is
    /// false have left. Those that come before the next waiter are removed too, and use no turn.
    /// `None` if all waiters have left; the queue is then empty.
    fn pop_present(&mut self, is_present: &dyn Fn(&Self::Waiter) -> bool) -> Option<Self::Waiter>;

    /// Removes and returns the next waiter; `None` if the queue is empty.
    fn pop(&mut self) -> Option<Self::Waiter> {
        self.pop_present(&|_| true)
    }

    fn retain(&mut self, keep: &dyn Fn(&Self::Waiter) -> bool);

    fn len(&self) -> usize;
}

/// A queue that serves its waiters in order of arrival.
#[derive(Debug)]
pub(super) struct OldestFirst<T>(VecDeque<T>);

impl<T> Default for OldestFirst<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> WaiterQueue for OldestFirst<T> {
    type Key = ();
    type Waiter = T;

    fn push(&mut self, (): (), waiter: T) {
        self.0.push_back(waiter);
    }

    fn pop_present(&mut self, is_present: &dyn Fn(&T) -> bool) -> Option<T> {
        loop {
            let next = self.0.pop_front()?;
            if is_present(&next) {
                return Some(next);
            }
        }
    }

    fn retain(&mut self, keep: &dyn Fn(&T) -> bool) {
        self.0.retain(keep);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl<T> OldestFirst<T> {
    /// Removes all waiters for which `is_removed` is true, and appends them to `removed`.
    fn remove_if(&mut self, is_removed: &impl Fn(&T) -> bool, removed: &mut Vec<T>) {
        for waiter in std::mem::take(&mut self.0) {
            match is_removed(&waiter) {
                true => removed.push(waiter),
                false => self.0.push_back(waiter),
            }
        }
    }
}

/// A queue that usually serves its newest waiter. In one of [`OLDEST_EVERY`] turns, it serves its
/// oldest waiter.
#[derive(Debug)]
pub(super) struct NewestFirst<T> {
    waiters: VecDeque<T>,
    popped: u64,
}

impl<T> Default for NewestFirst<T> {
    fn default() -> Self {
        Self {
            waiters: VecDeque::new(),
            popped: 0,
        }
    }
}

impl<T> WaiterQueue for NewestFirst<T> {
    type Key = ();
    type Waiter = T;

    fn push(&mut self, (): (), waiter: T) {
        self.waiters.push_back(waiter);
    }

    fn pop_present(&mut self, is_present: &dyn Fn(&T) -> bool) -> Option<T> {
        let is_oldest = self.popped.is_multiple_of(OLDEST_EVERY);
        self.popped += 1;
        loop {
            let next = match is_oldest {
                true => self.waiters.pop_front(),
                false => self.waiters.pop_back(),
            };
            let next = next?;
            if is_present(&next) {
                return Some(next);
            }
        }
    }

    fn retain(&mut self, keep: &dyn Fn(&T) -> bool) {
        self.waiters.retain(keep);
    }

    fn len(&self) -> usize {
        self.waiters.len()
    }
}

/// Several queues that are served round-robin.
#[derive(Debug)]
pub(super) struct RoundRobin<K, Q> {
    queues: HashMap<K, Q, RandomState>,
    /// Keys of the queues in the order of their turns. No queue is empty.
    turns: VecDeque<K>,
    len: usize,
}

impl<K, Q> Default for RoundRobin<K, Q> {
    fn default() -> Self {
        Self {
            queues: HashMap::default(),
            turns: VecDeque::new(),
            len: 0,
        }
    }
}

impl<K: Copy + Eq + Hash, Q: WaiterQueue> RoundRobin<K, Q> {
    /// Like [`WaiterQueue::pop_present`], but only for the waiters of the key whose turn is next.
    /// If all of them have left, removes the key and returns `None`.
    fn pop_of_next_key(&mut self, is_present: &dyn Fn(&Q::Waiter) -> bool) -> Option<Q::Waiter> {
        let key = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&key)?;
        let before = queue.len();
        let waiter = queue.pop_present(is_present);
        let left = queue.len();
        self.len -= before - left;
        match left {
            0 => drop(self.queues.remove(&key)),
            _ => self.turns.push_back(key),
        }
        waiter
    }

    /// Changes each queue, and removes the queues that are empty after the change.
    fn change_each(&mut self, mut change: impl FnMut(&mut Q)) {
        self.queues.retain(|_, queue| {
            change(queue);
            queue.len() > 0
        });
        self.turns.retain(|key| self.queues.contains_key(key));
        self.len = self.queues.values().map(WaiterQueue::len).sum();
    }

    /// Records that a waiter was removed from the queue of `key`, and removes that queue if it is
    /// empty.
    fn record_removed_waiter(&mut self, key: K) {
        self.len -= 1;
        if self.queues.get(&key).is_some_and(|queue| queue.len() == 0) {
            self.queues.remove(&key);
            self.turns.retain(|other| *other != key);
        }
    }
}

impl<K: Copy + Eq + Hash, Q: WaiterQueue + Default> WaiterQueue for RoundRobin<K, Q> {
    type Key = (K, Q::Key);
    type Waiter = Q::Waiter;

    fn push(&mut self, (key, rest): Self::Key, waiter: Q::Waiter) {
        let queue = match self.queues.entry(key) {
            Entry::Occupied(occupied) => occupied.into_mut(),
            Entry::Vacant(vacant) => {
                self.turns.push_back(key);
                vacant.insert(Q::default())
            }
        };
        queue.push(rest, waiter);
        self.len += 1;
    }

    fn pop_present(&mut self, is_present: &dyn Fn(&Q::Waiter) -> bool) -> Option<Q::Waiter> {
        while !self.turns.is_empty() {
            let waiter = self.pop_of_next_key(is_present);
            if waiter.is_some() {
                return waiter;
            }
        }
        None
    }

    fn retain(&mut self, keep: &dyn Fn(&Q::Waiter) -> bool) {
        self.change_each(|queue| queue.retain(keep));
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// A [`RoundRobin`] with the key `K` instead of `(K, ())`.
#[derive(Debug)]
pub(super) struct Keyed<K, Q>(RoundRobin<K, Q>);

impl<K, Q> Default for Keyed<K, Q> {
    fn default() -> Self {
        Self(RoundRobin::default())
    }
}

impl<K: Copy + Eq + Hash, Q: WaiterQueue<Key = ()> + Default> WaiterQueue for Keyed<K, Q> {
    type Key = K;
    type Waiter = Q::Waiter;

    fn push(&mut self, key: K, waiter: Q::Waiter) {
        self.0.push((key, ()), waiter);
    }

    fn pop_present(&mut self, is_present: &dyn Fn(&Q::Waiter) -> bool) -> Option<Q::Waiter> {
        self.0.pop_present(is_present)
    }

    fn retain(&mut self, keep: &dyn Fn(&Q::Waiter) -> bool) {
        self.0.retain(keep);
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// Serves users round-robin, and the sharers (for example addresses) of each user round-robin. A
/// user is identified by a number.
pub(super) type UserRoundRobin<T> = RoundRobin<u64, Keyed<Sharer, OldestFirst<T>>>;

/// All waiters at a gate. Addresses are served round-robin, and so are the users of each address.
#[derive(Debug)]
pub(super) struct Waiters<T>(RoundRobin<Sharer, RoundRobin<Option<NameHash>, NewestFirst<T>>>);

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self(RoundRobin::default())
    }
}

impl<T> Waiters<T> {
    pub(super) fn push(&mut self, from: Origin, waiter: T) {
        self.0.push((from.sharer, (from.user, ())), waiter);
    }

    /// Removes and returns the next waiter for which `is_present` is true. Waiters for which it is
    /// false have left, and use no turn.
    pub(super) fn pop_present(&mut self, is_present: impl Fn(&T) -> bool) -> Option<T> {
        self.0.pop_present(&is_present)
    }

    /// Removes all waiters for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.0.retain(&keep);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A queue that serves its keys, such as addresses, round-robin. It serves the waiters of one key
/// in order of arrival.
#[derive(Debug)]
pub(crate) struct TurnQueue<K, T>(RoundRobin<K, OldestFirst<T>>);

impl<K, T> Default for TurnQueue<K, T> {
    fn default() -> Self {
        Self(RoundRobin::default())
    }
}

impl<K: Copy + Eq + Hash, T> TurnQueue<K, T> {
    /// Adds a waiter.
    pub(crate) fn push(&mut self, from: K, waiter: T) {
        self.0.push((from, ()), waiter);
    }

    /// Removes and returns the next waiter.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// All waiters, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.queues.values().flat_map(|queue| &queue.0)
    }

    /// The oldest waiter of each key.
    pub(crate) fn oldest(&self) -> impl Iterator<Item = &T> {
        let queues = self.0.queues.values();
        queues.filter_map(|queue| queue.0.front())
    }

    /// The waiter that [`Self::pop`] would return.
    pub(crate) fn peek(&self) -> Option<&T> {
        let next = self.0.turns.front()?;
        self.0.queues.get(next)?.0.front()
    }

    /// Number of waiters of a key.
    pub(crate) fn len_of(&self, key: K) -> usize {
        self.0.queues.get(&key).map_or(0, WaiterQueue::len)
    }

    /// Number of waiters of the key with the most waiters.
    pub(crate) fn longest(&self) -> usize {
        self.0
            .queues
            .values()
            .map(WaiterQueue::len)
            .max()
            .unwrap_or(0)
    }

    /// Removes and returns the newest waiter of the key with the most waiters.
    pub(crate) fn shed(&mut self) -> Option<T> {
        let queues = self.0.queues.iter();
        let (&from, _) = queues.max_by_key(|(_, queue)| queue.len())?;
        self.shed_from(from)
    }

    /// Removes and returns the newest waiter of the key `from`.
    pub(crate) fn shed_from(&mut self, from: K) -> Option<T> {
        let newest = self.0.queues.get_mut(&from)?.0.pop_back()?;
        self.0.record_removed_waiter(from);
        Some(newest)
    }

    /// Removes and returns one waiter of the key `from`. `order` compares the arrival of a waiter
    /// with the arrival of the waiter to remove. The search takes logarithmic time. The removal
    /// takes time in proportion to the distance of the waiter from the nearer end of the key's
    /// queue.
    pub(crate) fn remove(&mut self, from: K, order: impl FnMut(&T) -> Ordering) -> Option<T> {
        let queue = self.0.queues.get_mut(&from)?;
        let index = queue.0.binary_search_by(order).ok()?;
        let removed = queue.0.remove(index)?;
        self.0.record_removed_waiter(from);
        Some(removed)
    }

    /// Removes and returns all waiters for which `is_removed` is true.
    pub(crate) fn remove_if(&mut self, is_removed: impl Fn(&T) -> bool) -> Vec<T> {
        let mut removed = Vec::new();
        self.0
            .change_each(|queue| queue.remove_if(&is_removed, &mut removed));
        removed
    }

    /// Number of waiters.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no waiters.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A queue that serves users round-robin, and the sharers (for example addresses) of each user too.
#[derive(Debug)]
pub(super) struct UserQueue<T>(UserRoundRobin<T>);

impl<T> Default for UserQueue<T> {
    fn default() -> Self {
        Self(RoundRobin::default())
    }
}

impl<T> UserQueue<T> {
    /// Adds a waiter of a user and a sharer.
    pub(super) fn push(&mut self, from: (u64, Sharer), waiter: T) {
        self.0.push(from, waiter);
    }

    /// Examines the next waiter of each user, in the order of the users' turns. Removes and returns
    /// the next waiter of the first user whose waiter is ready. Waiters for which `is_present` is
    /// false have left. They are never returned, and use no turn. `is_ready` must have the same
    /// result for all waiters of a user.
    pub(super) fn pop_if(
        &mut self,
        is_present: impl Fn(&T) -> bool,
        is_ready: impl Fn(&T) -> bool,
    ) -> Option<T> {
        for _ in 0..self.0.turns.len() {
            if !self.peek().is_some_and(&is_ready) {
                self.0.turns.rotate_left(1);
                continue;
            }
            let waiter = self.0.pop_of_next_key(&is_present);
            if waiter.is_some() {
                return waiter;
            }
        }
        None
    }

    /// The next waiter of the next user.
    fn peek(&self) -> Option<&T> {
        let user = self.0.turns.front()?;
        let of_user = &self.0.queues.get(user)?.0;
        let sharer = of_user.turns.front()?;
        of_user.queues.get(sharer)?.0.front()
    }

    /// Removes all waiters for which `keep` is false.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        self.0.retain(&keep);
    }

    /// Number of waiters.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{super::recent::NameHasher, *};

    fn drained<T>(waiters: &mut Waiters<T>) -> Vec<T> {
        std::iter::from_fn(|| waiters.pop_present(|_| true)).collect()
    }

    #[test]
    fn the_oldest_waiter_of_a_user_is_served_at_every_fourth_turn_and_otherwise_the_newest() {
        let mut waiters = Waiters::default();
        (0..10).for_each(|n| waiters.push(Origin::default(), n));
        assert!(!waiters.is_empty());
        assert_eq!(drained(&mut waiters), [0, 9, 8, 7, 1, 6, 5, 4, 2, 3]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_turn_queue_serves_addresses_round_robin_and_their_waiters_in_order() {
        let from = |address: u8| Sharer::at(Some([192, 0, 2, address].into()));
        let mut queue = TurnQueue::default();
        (0..4).for_each(|n| queue.push(from(1), n));
        (4..6).for_each(|n| queue.push(from(2), n));
        queue.push(Sharer::Local, 6);
        let mut oldest: Vec<_> = queue.oldest().copied().collect();
        oldest.sort_unstable();
        assert_eq!(oldest, [0, 4, 6]);
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [0, 4, 6, 1, 5, 2, 3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn removing_a_waiter_keeps_the_order_of_the_other_waiters() {
        let mut queue = TurnQueue::default();
        (0..6).for_each(|n| queue.push(n % 2, n));
        assert_eq!(queue.remove(0, |n| n.cmp(&2)), Some(2));
        assert_eq!(queue.remove(0, |n| n.cmp(&2)), None);
        assert_eq!(queue.remove(2, |n| n.cmp(&2)), None);
        let mut even = queue.remove_if(|n| *n == 5 || *n == 0);
        even.sort_unstable();
        assert_eq!((even, queue.len()), (vec![0, 5], 3));
        assert_eq!(queue.remove(0, |n| n.cmp(&4)), Some(4));
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(left, [1, 3]);
    }

    #[test]
    fn pop_if_examines_only_the_oldest_waiter_of_each_user() {
        let mut queue = UserQueue::default();
        (0..6_u64).for_each(|n| queue.push((n % 3, Sharer::Local), n));
        let mut pop_if = |is_ready: fn(&u64) -> bool| queue.pop_if(|_| true, is_ready);
        assert_eq!(pop_if(|n| *n > 2), None);
        assert_eq!(pop_if(|n| *n == 1), Some(1));
        assert_eq!(pop_if(|n| *n > 2), Some(4));
        assert_eq!(pop_if(|n| *n == 2), Some(2));
        assert_eq!(queue.len(), 3);
    }

    /// In this test, a waiter is a user and a number. Waiters with the number 0 have left.
    #[test]
    fn pop_if_skips_waiters_that_have_left_and_users_whose_waiters_have_all_left() {
        let mut queue = UserQueue::default();
        for waiter in [(1, 0), (1, 0), (1, 1), (2, 0), (3, 1), (3, 0), (3, 2)] {
            queue.push((waiter.0, Sharer::Local), waiter);
        }
        let pop = || queue.pop_if(|(_, number)| *number > 0, |_| true);
        let order: Vec<_> = std::iter::from_fn(pop).collect();
        assert_eq!(order, [(1, 1), (3, 1), (3, 2)]);
        assert_eq!(queue.len(), 0);
    }

    /// The first waiter of a user is the oldest one, the next three are the newest ones, and the
    /// fifth is the oldest one again. In this test, odd numbers are waiters that have left.
    #[test]
    fn waiters_that_have_left_use_no_turn_of_their_user() {
        let mut waiters = Waiters::default();
        for n in [1, 3, 5, 0, 2, 4, 6, 8, 7] {
            waiters.push(Origin::default(), n);
        }
        let pop = || waiters.pop_present(|n| n % 2 == 0);
        let order: Vec<_> = std::iter::from_fn(pop).collect();
        assert_eq!(order, [0, 8, 6, 4, 2]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn shed_removes_the_newest_waiter_of_the_key_with_the_most_waiters() {
        let mut queue = TurnQueue::default();
        for (key, waiter) in [(1, 10), (1, 11), (2, 20), (1, 12)] {
            queue.push(key, waiter);
        }
        assert_eq!(
            (queue.longest(), queue.len_of(2), queue.len_of(3)),
            (3, 1, 0)
        );
        assert_eq!(queue.shed(), Some(12));
        assert_eq!(queue.shed(), Some(11));
        assert_eq!((queue.longest(), queue.len()), (1, 2));
        let left: Vec<_> = std::iter::from_fn(|| queue.shed()).collect();
        assert_eq!(left.len(), 2);
        assert!(queue.is_empty() && queue.pop().is_none() && queue.longest() == 0);
    }

    #[test]
    fn the_order_of_turns_is_kept_when_the_last_waiter_of_a_key_is_shed() {
        let mut queue = TurnQueue::default();
        (1..=3).for_each(|n| queue.push(n, n));
        let shed = queue.shed().unwrap();
        assert!(!queue.is_empty());
        let left: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        let expected: Vec<_> = (1..=3).filter(|n| *n != shed).collect();
        assert_eq!(left, expected);
        assert!(queue.is_empty());
    }

    #[test]
    fn addresses_and_the_users_of_each_address_are_served_round_robin() {
        let names = NameHasher::default();
        let from = |address: u8, user: &str| Origin {
            sharer: Sharer::at(Some([192, 0, 2, address].into())),
            user: Some(names.hash(user)),
        };
        let mut waiters = Waiters::default();
        // The clients at address 1 claim to be a hundred users. Address 2 has a hundred clients of
        // the user `app` and one client of the user `other`.
        for n in 0..100 {
            waiters.push(from(1, &n.to_string()), "many names");
            waiters.push(from(2, "app"), "crowd");
        }
        waiters.push(from(2, "other"), "single");
        waiters.push(from(3, "app"), "third address");
        let pop = |_| waiters.pop_present(|_| true);
        let first: Vec<_> = (0..6).filter_map(pop).collect();
        let expected = [
            "many names",
            "crowd",
            "third address",
            "many names",
            "single",
            "many names",
        ];
        assert_eq!(first, expected);
        assert_eq!(waiters.len(), 202 - 6);
        waiters.retain(|waiter| *waiter == "crowd");
        assert_eq!(drained(&mut waiters), ["crowd"; 99]);
    }
}
