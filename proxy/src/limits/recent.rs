//! A bounded map that drops the entries that were not written recently.
//!
//! The map has two generations. New entries are written into the younger generation. When the
//! younger generation reaches half of the bound, the older generation is dropped as a whole, and
//! the younger generation becomes the older generation. So the map makes room without a search,
//! even if a client invents many keys. An entry that is written often stays.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
};

/// A map with a bounded number of entries. The entries that were written last stay.
#[derive(Debug)]
pub(crate) struct RecentMap<K, V> {
    younger: HashMap<K, V>,
    older: HashMap<K, V>,
    max_younger: usize,
}

/// Entries that were removed to make room. The caller of [`RecentMap::insert`] drops them after it
/// has released its lock on the map, because the drop of many entries takes long.
#[derive(Debug)]
#[must_use = "drop this value after the lock is released"]
pub(crate) struct Retired<K, V>(#[expect(dead_code, reason = "dropped, never read")] HashMap<K, V>);

impl<K: Eq + Hash, V> RecentMap<K, V> {
    /// Creates a map of at most `max_entries` entries. A number below two counts as two.
    pub(crate) fn new(max_entries: usize) -> Self {
        Self {
            younger: HashMap::new(),
            older: HashMap::new(),
            max_younger: (max_entries / 2).max(1),
        }
    }

    /// Changes the bound. Excess entries are dropped by the next writes.
    pub(crate) fn set_max(&mut self, max_entries: usize) {
        self.max_younger = (max_entries / 2).max(1);
    }

    /// The value of a key; `None` if the map has no entry for the key.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.younger.get(key).or_else(|| self.older.get(key))
    }

    /// Like [`Self::get`], but the caller can change the value. A change does not count as a write.
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let older = &mut self.older;
        self.younger.get_mut(key).or_else(|| older.get_mut(key))
    }

    /// Writes an entry, which becomes the most recent one.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Retired<K, V> {
        self.older.remove(&key);
        self.younger.insert(key, value);
        let is_full = self.younger.len() >= self.max_younger;
        Retired(match is_full {
            true => std::mem::replace(&mut self.older, std::mem::take(&mut self.younger)),
            false => HashMap::new(),
        })
    }

    /// Removes the entry of a key, and returns its value. `None` if there is no entry.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let older = self.older.remove(key);
        self.younger.remove(key).or(older)
    }

    /// All values, which the caller can change. A change does not count as a write.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.younger.values_mut().chain(self.older.values_mut())
    }

    /// Number of entries.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.younger.len() + self.older.len()
    }
}

/// A hash of names that a client has chosen. It replaces the names in tables, whose size must not
/// depend on the length of the names. The hash uses a secret key of this process, so that no client
/// can find two names with the same hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameHash(u64);

/// Computes [`NameHash`]es.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameHasher(RandomState);

impl NameHasher {
    /// Returns the hash of a name or of several names.
    pub(crate) fn hash(&self, names: impl Hash) -> NameHash {
        NameHash(self.0.hash_one(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_recent_map_drops_old_entries_but_keeps_an_entry_that_is_written_often() {
        let mut map = RecentMap::new(10);
        for n in 0..1000 {
            drop(map.insert(n, n));
            drop(map.insert(-1, n));
            assert!(map.len() <= 10, "{}", map.len());
            assert_eq!(map.get(&-1), Some(&n));
            assert_eq!(map.get(&n), Some(&n));
        }
        assert_eq!(map.get(&0), None);
    }

    /// A recent map has a younger and an older generation of entries. Here, both are in use.
    #[test]
    fn each_entry_of_a_recent_map_can_be_changed_and_removed() {
        let mut map = RecentMap::new(4);
        for n in 0..3 {
            drop(map.insert(n, 0));
        }
        assert!(map.len() > 0);
        for n in 0..3 {
            *map.get_mut(&n).unwrap() += n;
            assert_eq!(map.get(&n), Some(&n));
            assert_eq!(map.remove(&n), Some(n));
        }
        assert!(map.len() == 0);
    }

    #[test]
    fn different_names_have_different_hashes() {
        let hasher = NameHasher::default();
        assert_eq!(hasher.hash(("a", "b")), hasher.hash(("a", "b")));
        assert_ne!(hasher.hash(("a", "b")), hasher.hash(("ab", "")));
    }
}
