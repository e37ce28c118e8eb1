//! Names that are data without looking like it: user names, product codes, words.
//!
//! The rules for names miss such data, but their number shows it. Below one prefix of a path, a
//! collection has either a few names, or as many names as it has data. The caller counts them, and
//! passes prefixes with too many names to [`LearnedNames::learn`]. From then on, the names directly
//! below these prefixes print `*` (rule R5 of `fp1`). A prefix belongs to one collection. The first
//! component of a path has no prefix: a collection may well have a hundred fields, and without
//! their names its shapes could not be distinguished.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
};

use super::{Collection, NameKey, hash::Digest};

/// Maximum number of names that are collected from one command. Only contrived commands have more.
const MAX_MET: usize = 256;

/// The beginning of a path in a collection, as a hash.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Prefix(u64);

/// A name directly below a prefix, as a hash.
pub type ChildName = u64;

/// Prefixes below which names are data.
#[derive(Clone, Debug, Default)]
pub struct LearnedNames {
    prefixes: HashSet<Prefix>,
}

impl LearnedNames {
    /// Treats the names directly below the prefix as data from now on.
    pub fn learn(&mut self, prefix: Prefix) {
        self.prefixes.insert(prefix);
    }

    /// The number of learned prefixes.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// True if no prefix has been learned.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }
}

/// The learned names and the key, for one walk over a command.
#[derive(Debug)]
pub(super) struct Names<'n> {
    learned: &'n LearnedNames,
    /// The key that hides names, if any.
    key: Option<&'n NameKey>,
    /// The names found below prefixes, if they are collected.
    met: Option<RefCell<Vec<(Prefix, ChildName)>>>,
    /// The collection that the paths belong to: a hash of database and collection.
    scope: Cell<Prefix>,
}

impl<'n> Names<'n> {
    /// With a key, names print as hashes.
    pub(super) fn new(learned: &'n LearnedNames, key: Option<&'n NameKey>) -> Self {
        Self {
            learned,
            key,
            met: None,
            scope: Cell::new(Prefix(0)),
        }
    }

    /// Collects the names below prefixes during the walk.
    pub(super) fn collecting(learned: &'n LearnedNames) -> Self {
        Self {
            met: Some(RefCell::default()),
            ..Self::new(learned, None)
        }
    }

    /// The collected names.
    pub(super) fn into_met(self) -> Vec<(Prefix, ChildName)> {
        self.met.map(RefCell::into_inner).unwrap_or_default()
    }

    /// The key that hides names, if any.
    pub(super) fn key(&self) -> Option<&'n NameKey> {
        self.key
    }

    /// Sets the collection of all names that follow.
    pub(super) fn enter_collection(&self, db: &[u8], collection: Collection<'_>) {
        let scope = Digest::of_bytes(db).then(Digest::of_bytes(collection.as_bytes()));
        self.scope.set(Prefix(scope.as_u64()));
    }

    /// True if the name below the prefix is data. Operators, such as the `$[]` of an update, never
    /// are.
    pub(super) fn is_data(&self, prefix: Prefix, name: &[u8]) -> bool {
        is_name(name) && self.learned.prefixes.contains(&prefix)
    }

    /// Extends the prefix by one component, as it prints. Without a prefix, the component is the
    /// first of its path. If names are collected, it adds the component to them.
    pub(super) fn descend(&self, prefix: Option<Prefix>, printed: &[u8]) -> Prefix {
        let child = Digest::of_bytes(printed).as_u64();
        if let (Some(prefix), Some(met)) = (prefix, &self.met)
            && is_name(printed)
            && printed != b"*"
        {
            let mut met = met.borrow_mut();
            if met.len() < MAX_MET && !met.contains(&(prefix, child)) {
                met.push((prefix, child));
            }
        }
        let Prefix(above) = prefix.unwrap_or(self.scope.get());
        Prefix(
            Digest::of_number(above)
                .then(Digest::of_number(child))
                .as_u64(),
        )
    }
}

fn is_name(component: &[u8]) -> bool {
    component.first().is_some_and(|first| *first != b'$')
}
