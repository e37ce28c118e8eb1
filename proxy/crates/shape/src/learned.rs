//! Field names that are data but do not look like data: user names, product codes, words.
//!
//! The rules for names do not recognize these names as data, but the number of names shows that
//! they are data. Below one prefix of a path, a collection has either a few names, or a number of
//! names that grows with its data. The caller counts the names and passes prefixes with too many
//! names to [`LearnedNames::learn`]. From then on, the names directly below these prefixes are
//! printed as `*`. A prefix belongs to one collection. The first component of a path has no prefix,
//! so the names of top-level fields are never learned: a collection may have a hundred of them, and
//! its shapes would be useless without these names.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
};

use super::{Collection, NameKey, hash::Digest};

/// Maximum number of names collected from one command. Only artificial commands have more.
const MAX_COLLECTED: usize = 256;

/// A hash of a database, a collection and the first components of a field path: `a.b` is a prefix
/// of the path `a.b.c`.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Prefix(u64);

/// A hash of the name that follows a prefix in a field path: `c` in the path `a.b.c` with the
/// prefix `a.b`.
pub type ChildName = u64;

/// The prefixes of field paths after which every name counts as data, and is printed as `*`.
#[derive(Clone, Debug, Default)]
pub struct LearnedNames {
    prefixes: HashSet<Prefix>,
}

impl LearnedNames {
    /// Learns a prefix: from now on, the names that follow it directly count as data, and are
    /// printed as `*`.
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

/// The learned prefixes and the key for hashing names. Each pass over a command (a walk) has its
/// own value of this type.
#[derive(Debug)]
pub(super) struct Names<'n> {
    learned: &'n LearnedNames,
    /// The key for hashing names; `None` if names are not hashed.
    key: Option<&'n NameKey>,
    /// Pairs of a prefix and a name that follows it in a path of the command; `None` if names are
    /// not collected.
    collected: Option<RefCell<Vec<(Prefix, ChildName)>>>,
    /// A hash of the database and the collection to which the paths belong.
    scope: Cell<Prefix>,
}

impl<'n> Names<'n> {
    /// Creates the value for a pass over a command (a walk) that prints names or, if there is a
    /// key, hashes of names.
    pub(super) fn new(learned: &'n LearnedNames, key: Option<&'n NameKey>) -> Self {
        Self {
            learned,
            key,
            collected: None,
            scope: Cell::new(Prefix(0)),
        }
    }

    /// Creates the value for a pass over a command (a walk) that collects each name that follows a
    /// prefix in a path.
    pub(super) fn collecting(learned: &'n LearnedNames) -> Self {
        Self {
            collected: Some(RefCell::default()),
            ..Self::new(learned, None)
        }
    }

    /// The collected names.
    pub(super) fn into_collected(self) -> Vec<(Prefix, ChildName)> {
        self.collected.map(RefCell::into_inner).unwrap_or_default()
    }

    /// The key for hashing names; `None` if names are not hashed.
    pub(super) fn key(&self) -> Option<&'n NameKey> {
        self.key
    }

    /// Sets the collection to which all following names belong.
    pub(super) fn enter_collection(&self, db: &[u8], collection: Collection<'_>) {
        let scope = Digest::of_bytes(db).then(Digest::of_bytes(collection.as_bytes()));
        self.scope.set(Prefix(scope.as_u64()));
    }

    /// True if the name after this prefix counts as data: the prefix is learned, and the name is
    /// not an operator, such as the `$[]` of an update.
    pub(super) fn is_data(&self, prefix: Prefix, name: &[u8]) -> bool {
        is_name(name) && self.learned.prefixes.contains(&prefix)
    }

    /// Extends a prefix by the next component of the path. `printed` is the component as the shape
    /// prints it, without the `$` of an expression. `prefix` is `None` for the first component of a
    /// path. Also adds the component to the collected names, if names are collected.
    pub(super) fn descend(&self, prefix: Option<Prefix>, printed: &[u8]) -> Prefix {
        let child = Digest::of_bytes(printed).as_u64();
        if let (Some(prefix), Some(collected)) = (prefix, &self.collected)
            && is_name(printed)
            && printed != b"*"
        {
            let mut collected = collected.borrow_mut();
            if collected.len() < MAX_COLLECTED && !collected.contains(&(prefix, child)) {
                collected.push((prefix, child));
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
