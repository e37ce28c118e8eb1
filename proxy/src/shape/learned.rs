//! Names that are data without looking like it: user names, product codes, words.
//!
//! What the rules for names miss is noticed by its number: under one prefix of a path a collection has a few names, or
//! as many as there is data. Who counts tells prefixes with too many names to [`LearnedNames::learn`], and from then on
//! the names right below them print `*` (rule R5 of `fp1`). A prefix is that of one collection. The beginning of a path
//! has none: a collection may well have a hundred fields, and without their names nothing would be told apart.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
};

use super::{
    Collection, Description, Fingerprint, Input, NameKey, bson::Document, digest::Digest,
    text::Text, walk::Walk,
};

/// Names that one command can be asked for. It has fewer, unless it is made to have more.
const MAX_MET: usize = 256;

/// The beginning of a path in a collection, by its hash.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Prefix(u64);

/// A name below a prefix, by its hash.
pub type ChildName = u64;

/// Prefixes below which names are data.
#[derive(Clone, Debug, Default)]
pub struct LearnedNames {
    prefixes: HashSet<Prefix>,
}

impl LearnedNames {
    /// From now on the names below the prefix are data.
    pub fn learn(&mut self, prefix: Prefix) {
        self.prefixes.insert(prefix);
    }

    /// How many prefixes there are.
    pub fn len(&self) -> usize {
        self.prefixes.len()
    }

    /// Whether nothing has been learned.
    pub fn is_empty(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// The same as [`super::fingerprint`], with what has been learned.
    pub fn fingerprint<'a>(&self, input: &Input<'a>) -> Fingerprint<'a> {
        let names = Names::of(self, None);
        let body = Document::at(input.body);
        Fingerprint::of(&Walk::<Digest>::with(&names).command(body, input.sequences, b""))
    }

    /// The same as [`super::describe`], with what has been learned, and names as hashes if there is a key. It allocates.
    pub fn describe(&self, input: &Input<'_>, key: Option<&NameKey>) -> Description {
        let names = Names {
            key,
            ..Names::of(self, None)
        };
        let body = Document::at(input.body);
        Description::of(Walk::<Text>::with(&names).command(body, input.sequences, b""))
    }

    /// The names below prefixes in a command, but for those that are known to be data. It allocates.
    pub fn met(&self, input: &Input<'_>) -> Vec<(Prefix, ChildName)> {
        let names = Names::of(self, Some(RefCell::default()));
        let body = Document::at(input.body);
        Walk::<Digest>::with(&names).command(body, input.sequences, b"");
        names.met.map(RefCell::into_inner).unwrap_or_default()
    }
}

/// What is known of names, for one walk over a command.
#[derive(Debug)]
pub(super) struct Names<'n> {
    learned: &'n LearnedNames,
    /// What names are hidden with, if they are.
    key: Option<&'n NameKey>,
    /// If names are asked for.
    met: Option<RefCell<Vec<(Prefix, ChildName)>>>,
    /// The collection.
    scope: Cell<Prefix>,
}

impl<'n> Names<'n> {
    fn of(learned: &'n LearnedNames, met: Option<RefCell<Vec<(Prefix, ChildName)>>>) -> Self {
        Self {
            learned,
            key: None,
            met,
            scope: Cell::new(Prefix(0)),
        }
    }

    /// What names are hidden with, if they are.
    pub(super) fn key(&self) -> Option<&'n NameKey> {
        self.key
    }

    /// Names are those of this collection from now on.
    pub(super) fn enter(&self, db: &[u8], collection: Collection<'_>) {
        let scope = Digest::of_bytes(db).then(Digest::of_bytes(collection.as_bytes()));
        self.scope.set(Prefix(scope.as_u64()));
    }

    /// Whether the name below the prefix is data. Operators, such as the `$[]` of an update, never are.
    pub(super) fn is_data(&self, prefix: Prefix, name: &[u8]) -> bool {
        is_name(name) && self.learned.prefixes.contains(&prefix)
    }

    /// The prefix with one more component, as it prints; without one, it is the first of the path.
    pub(super) fn below(&self, prefix: Option<Prefix>, printed: &[u8]) -> Prefix {
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
