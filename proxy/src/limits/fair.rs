//! Who is next of those that wait: in turn by address, then by user, and the newest first of each.
//!
//! An address with a thousand waiters has as many turns as one with a single waiter, and so has a user among those of its
//! address. Of the same user the newest goes first, since clients with little patience are the ones that come again, and
//! one in four is the oldest, so that patience is rewarded.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    hash::Hash,
    net::IpAddr,
};

use super::recent::NameHash;

/// Where a waiter comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its address, as [`super::network_of`] has it; `None` over a unix socket.
    pub network: Option<IpAddr>,
    /// The user that it claims to be, if it claims one.
    pub user: Option<NameHash>,
}

/// One in so many is the oldest.
const OLDEST_EVERY: u64 = 4;

/// A queue of waiters.
trait Queue: Default {
    type Key: Copy;
    type Waiter;

    fn push(&mut self, key: Self::Key, waiter: Self::Waiter);

    /// The next one; `None` if it is empty.
    fn pop(&mut self) -> Option<Self::Waiter>;

    fn retain(&mut self, keep: &impl Fn(&Self::Waiter) -> bool);

    fn len(&self) -> usize;
}

/// The waiters of one user.
#[derive(Debug)]
struct Newest<T> {
    waiters: VecDeque<T>,
    popped: u64,
}

impl<T> Default for Newest<T> {
    fn default() -> Self {
        Self {
            waiters: VecDeque::new(),
            popped: 0,
        }
    }
}

impl<T> Queue for Newest<T> {
    type Key = ();
    type Waiter = T;

    fn push(&mut self, (): (), waiter: T) {
        self.waiters.push_back(waiter);
    }

    fn pop(&mut self) -> Option<T> {
        let is_oldest = self.popped.is_multiple_of(OLDEST_EVERY);
        self.popped += 1;
        match is_oldest {
            true => self.waiters.pop_front(),
            false => self.waiters.pop_back(),
        }
    }

    fn retain(&mut self, keep: &impl Fn(&T) -> bool) {
        self.waiters.retain(keep);
    }

    fn len(&self) -> usize {
        self.waiters.len()
    }
}

/// Queues that are served in turn.
#[derive(Debug)]
struct InTurn<K, Q> {
    queues: HashMap<K, Q>,
    /// Keys of the queues, the next one first. None of them is empty.
    turns: VecDeque<K>,
    len: usize,
}

impl<K, Q> Default for InTurn<K, Q> {
    fn default() -> Self {
        Self {
            queues: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
        }
    }
}

impl<K: Copy + Eq + Hash, Q: Queue> Queue for InTurn<K, Q> {
    type Key = (K, Q::Key);
    type Waiter = Q::Waiter;

    fn push(&mut self, (key, rest): Self::Key, waiter: Q::Waiter) {
        if let Entry::Vacant(vacant) = self.queues.entry(key) {
            vacant.insert(Q::default());
            self.turns.push_back(key);
        }
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.push(rest, waiter);
            self.len += 1;
        }
    }

    fn pop(&mut self) -> Option<Q::Waiter> {
        let key = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&key)?;
        let waiter = queue.pop();
        self.len -= usize::from(waiter.is_some());
        match queue.len() {
            0 => drop(self.queues.remove(&key)),
            _ => self.turns.push_back(key),
        }
        waiter
    }

    fn retain(&mut self, keep: &impl Fn(&Q::Waiter) -> bool) {
        self.queues.retain(|_, queue| {
            queue.retain(keep);
            queue.len() > 0
        });
        self.turns.retain(|key| self.queues.contains_key(key));
        self.len = self.queues.values().map(Queue::len).sum();
    }

    fn len(&self) -> usize {
        self.len
    }
}

/// All that wait.
#[derive(Debug)]
pub(super) struct Waiters<T>(InTurn<Option<IpAddr>, InTurn<Option<NameHash>, Newest<T>>>);

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self(InTurn::default())
    }
}

impl<T> Waiters<T> {
    pub(super) fn push(&mut self, from: Origin, waiter: T) {
        self.0.push((from.network, (from.user, ())), waiter);
    }

    /// The next one.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Removes those that are not to be kept.
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

#[cfg(test)]
mod tests {
    use super::{super::recent::NameHasher, *};

    fn drained<T>(waiters: &mut Waiters<T>) -> Vec<T> {
        std::iter::from_fn(|| waiters.pop()).collect()
    }

    #[test]
    fn of_one_user_the_newest_goes_first_and_one_in_four_is_the_oldest() {
        let mut waiters = Waiters::default();
        (0..10).for_each(|n| waiters.push(Origin::default(), n));
        assert_eq!(drained(&mut waiters), [0, 9, 8, 7, 1, 6, 5, 4, 2, 3]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn addresses_and_then_users_are_served_in_turn() {
        let names = NameHasher::default();
        let from = |address: u8, user: &str| Origin {
            network: Some(IpAddr::from([192, 0, 2, address])),
            user: Some(names.hash(user)),
        };
        let mut waiters = Waiters::default();
        // One address claims a hundred users, another has a crowd of one user and a single client of another.
        for n in 0..100 {
            waiters.push(from(1, &n.to_string()), "many names");
            waiters.push(from(2, "app"), "crowd");
        }
        waiters.push(from(2, "other"), "single");
        waiters.push(from(3, "app"), "third address");
        let first: Vec<_> = (0..6).filter_map(|_| waiters.pop()).collect();
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
