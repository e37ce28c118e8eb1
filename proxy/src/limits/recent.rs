//! A bounded map that forgets what was not written lately.
//!
//! Two generations: entries are written into the younger one, and when that is half of the bound, the older one is dropped
//! whole. So room is made without a search, however many entries a client invents, and an entry that is written again and
//! again stays.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
};

/// At most so many entries, the latest ones.
#[derive(Debug)]
pub struct RecentMap<K, V> {
    younger: HashMap<K, V>,
    older: HashMap<K, V>,
    max_younger: usize,
}

/// Entries that had to make room. To be dropped after the lock of the map's owner has been given back: there may be many.
#[derive(Debug)]
#[must_use = "drop it after the lock"]
pub struct Retired<K, V>(#[expect(dead_code, reason = "held for its drop")] HashMap<K, V>);

impl<K: Eq + Hash, V> RecentMap<K, V> {
    /// For at most `max_entries`, two at least.
    pub fn new(max_entries: usize) -> Self {
        Self {
            younger: HashMap::new(),
            older: HashMap::new(),
            max_younger: (max_entries / 2).max(1),
        }
    }

    /// An entry.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.younger.get(key).or_else(|| self.older.get(key))
    }

    /// An entry, to be changed in place.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let older = &mut self.older;
        self.younger.get_mut(key).or_else(|| older.get_mut(key))
    }

    /// Writes an entry; it is the latest then.
    pub fn insert(&mut self, key: K, value: V) -> Retired<K, V> {
        self.older.remove(&key);
        self.younger.insert(key, value);
        let is_full = self.younger.len() >= self.max_younger;
        Retired(match is_full {
            true => std::mem::replace(&mut self.older, std::mem::take(&mut self.younger)),
            false => HashMap::new(),
        })
    }

    /// Removes an entry.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let older = self.older.remove(key);
        self.younger.remove(key).or(older)
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.younger.len() + self.older.len()
    }

    /// True without an entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Stands for names that a client chose, in tables that must not grow with them: a hash under a key of this process, so
/// that no client can find two names of one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NameHash(u64);

/// Makes [`NameHash`]es.
#[derive(Clone, Debug, Default)]
pub struct NameHasher(RandomState);

impl NameHasher {
    /// The hash of a name, or of several.
    pub fn hash(&self, names: impl Hash) -> NameHash {
        NameHash(self.0.hash_one(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_what_is_written_again_stays() {
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

    #[test]
    fn entries_are_changed_and_removed_in_either_generation() {
        let mut map = RecentMap::new(4);
        for n in 0..3 {
            drop(map.insert(n, 0));
        }
        assert!(!map.is_empty());
        for n in 0..3 {
            *map.get_mut(&n).unwrap() += n;
            assert_eq!(map.get(&n), Some(&n));
            assert_eq!(map.remove(&n), Some(n));
        }
        assert!(map.is_empty());
    }

    #[test]
    fn hashes_tell_names_apart() {
        let hasher = NameHasher::default();
        assert_eq!(hasher.hash(("a", "b")), hasher.hash(("a", "b")));
        assert_ne!(hasher.hash(("a", "b")), hasher.hash(("ab", "")));
    }
}
