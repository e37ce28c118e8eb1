//! A map with a maximum number of entries. It forgets the entries that were used least recently.

use std::{collections::HashMap, hash::Hash, mem};

use foldhash::fast::RandomState;

/// A map with at most twice `limit` entries. It has two generations. New and used entries are in
/// the young generation. When the young generation is full, the entries of the old generation are
/// forgotten, and the young generation becomes the old one.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V, RandomState>,
    old: HashMap<K, V, RandomState>,
    limit: usize,
}

impl<K: Eq + Hash, V> Recent<K, V> {
    /// Creates an empty map. `limit` is the size of a generation in entries.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            young: HashMap::default(),
            old: HashMap::default(),
            limit,
        }
    }

    /// Adds or replaces an entry.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.limit && !self.young.contains_key(&key) {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Returns the value of a key, and marks the entry as used.
    pub(crate) fn find(&mut self, key: K) -> Option<&mut V>
    where
        K: Copy,
    {
        if let Some(value) = self.old.remove(&key) {
            self.insert(key, value);
        }
        self.young.get_mut(&key)
    }

    /// All keys, in any order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &K> {
        self.young.keys().chain(self.old.keys())
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let old = self.old.remove(key);
        self.young.remove(key).or(old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_used_entries_are_kept_and_other_entries_are_forgotten() {
        let mut map = Recent::new(10);
        for key in 0..1000 {
            map.insert(key, key);
            assert_eq!(map.find(0), Some(&mut 0), "{key}");
        }
        assert_eq!(map.find(1), None);
        assert_eq!(map.find(999), Some(&mut 999));
        assert!(map.young.len() + map.old.len() <= 20);
    }

    /// New entries are in the young generation. Entries that were not used for some time are in the
    /// old generation.
    #[test]
    fn a_removed_entry_is_found_in_neither_of_the_two_generations_of_the_map() {
        let mut map = Recent::new(1);
        map.insert(1, "a");
        map.insert(2, "b");
        assert_eq!(map.remove(&1), Some("a"));
        assert_eq!(map.find(1), None);
        map.insert(2, "c");
        assert_eq!((map.remove(&2), map.find(2)), (Some("c"), None));
    }
}
