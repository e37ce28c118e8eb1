//! Bounded resources that several holders share. A holder gets a further unit only while it holds
//! fewer units than eight times the free units ([`is_within_share`]). So if a resource has nine
//! units or more, a single holder cannot get all of them.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use seawall_locks::Mutex;
use seawall_transport::is_within_share;

/// A bounded resource, shared by holders.
#[derive(Debug)]
pub struct Shares<K> {
    max: AtomicUsize,
    taken: Mutex<Taken<K>>,
}

#[derive(Debug)]
struct Taken<K> {
    total: usize,
    by_holder: HashMap<K, usize>,
}

/// One unit of a resource. Dropping it frees the unit.
#[derive(Debug)]
#[must_use]
pub struct Share<K: Copy + Eq + Hash> {
    shares: Arc<Shares<K>>,
    holder: K,
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// Creates a resource of `max` units.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        let taken = Mutex::new(Taken {
            total: 0,
            by_holder: HashMap::new(),
        });
        let max = AtomicUsize::new(max);
        Arc::new(Self { max, taken })
    }

    /// Changes the number of units. If it falls, holders keep the units that they have.
    pub(crate) fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
    }

    /// Returns one unit, if the holder's share allows it.
    pub fn take(self: &Arc<Self>, holder: K) -> Option<Share<K>> {
        let mut taken = self.taken.lock();
        let held = taken.by_holder.get(&holder).copied().unwrap_or_default();
        let max = self.max.load(Ordering::Relaxed);
        if !is_within_share(held, max.saturating_sub(taken.total)) {
            return None;
        }
        taken.by_holder.insert(holder, held + 1);
        taken.total += 1;
        drop(taken);
        let shares = Arc::clone(self);
        Some(Share { shares, holder })
    }
}

impl<K: Copy + Eq + Hash> Share<K> {
    /// The holder of this unit.
    pub(crate) fn holder(&self) -> K {
        self.holder
    }
}

impl<K: Copy + Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
        taken.total -= 1;
        if let Entry::Occupied(mut held) = taken.by_holder.entry(self.holder) {
            *held.get_mut() -= 1;
            if *held.get() == 0 {
                held.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(shares: &Arc<Shares<u8>>, holder: u8) -> Vec<Share<u8>> {
        std::iter::from_fn(|| shares.take(holder)).collect()
    }

    #[test]
    fn one_holder_gets_at_most_eight_ninths_of_a_shared_resource() {
        let shares = Shares::new(900);
        let first = take_all(&shares, 1);
        assert_eq!(first.len(), 800);
        let second = take_all(&shares, 2);
        assert!((80..100).contains(&second.len()), "{}", second.len());
        assert!(shares.take(3).is_some());
        drop((first, second));
        assert!(shares.taken.lock().by_holder.is_empty());
        assert_eq!(take_all(&shares, 2).len(), 800);
    }

    #[test]
    fn one_holder_may_take_all_units_of_a_resource_with_fewer_than_nine_units() {
        for max in 0..9 {
            assert_eq!(take_all(&Shares::new(max), 1).len(), max);
        }
    }
}
