//! Builds the hash of a shape without heap memory.
//!
//! The hash covers the text of the shape, part by part. The hash of a name or word covers its bytes
//! and, if they are quoted, the quotes. The hash of an entry (`key:value`) covers key and value.
//! The hash of a list or document covers its items and their number. The hash of each part covers
//! its length or number of items, so two different texts never give the same input to the hash
//! function. Equal texts always give equal hashes.

use super::form::{Bracket, Form, MAX_SET_ENTRIES, MemberStorage, Word};
use super::hash::{Digest, Path, QUOTED, SET, close, combine, hash_bytes};
use super::name::Name;

impl Digest {
    /// The hash of a name that is not simple (see [`Name::as_simple`]). Such a name may consist of
    /// several components, need quotes, be in brackets, or contain data that is printed as `*`.
    #[inline(never)]
    fn of_rare_name(name: Name<'_>) -> Self {
        let brackets = name.brackets();
        let mut path = Path::EMPTY;
        let is_quoted = name.each_component(|component, is_last| {
            let start = if path.components == 0 { brackets } else { 0 };
            let end = component
                .len()
                .saturating_sub(if is_last { brackets } else { 0 });
            path.push(component.get(start..end).unwrap_or_default());
        });
        let mut digest = path.digest();
        let mut brackets = brackets;
        if is_quoted {
            digest = digest.then(QUOTED);
        } else if brackets > 0 && digest == const { Self::of_text(b"") } {
            digest = const { Self::of_text(b"[]") };
            brackets -= 1;
        }
        for _ in 0..brackets {
            digest = Self::list_of_one(digest);
        }
        digest
    }
}

impl Form for Digest {
    type MemberStorage = StackStorage;
    type Unordered = Unordered;
    type Ordered = Ordered;

    #[inline]
    fn word(word: Word) -> Self {
        word.digest
    }

    fn leaf(text: &[u8]) -> Self {
        Self::of_text(text)
    }

    #[inline]
    fn name(name: Name<'_>) -> Self {
        match name.as_simple() {
            Some(component) => Self(hash_bytes(component)),
            None => Self::of_rare_name(name),
        }
    }

    #[inline]
    fn entry(key: &Self, value: &Self) -> Self {
        key.then(*value)
    }

    #[inline]
    fn add(entries: &mut Unordered, entry: &Self) {
        entries.sum = entries.sum.wrapping_add(entry.0);
        entries.xor ^= entry.0;
        entries.count = entries.count.saturating_add(1);
    }

    #[inline]
    fn close_set(entries: Unordered, bracket: Bracket) -> Self {
        let Unordered { sum, xor, count } = entries;
        // A set with one member prints like a sequence with one item, so both must have the same
        // hash.
        let folded = if count <= 1 {
            sum
        } else {
            combine(combine(sum, xor), SET)
        };
        Self(close(folded, count, bracket))
    }

    #[inline]
    fn append(items: &mut Ordered, item: &Self) {
        items.folded = if items.count == 0 {
            item.0
        } else {
            combine(items.folded, item.0)
        };
        items.count = items.count.saturating_add(1);
    }

    #[inline]
    fn close_sequence(items: &Ordered, bracket: Bracket) -> Self {
        Self(close(items.folded, items.count, bracket))
    }
}

/// The hash of the members added to a set so far. The hash does not depend on the order of the
/// members, because the operations that add a member are commutative. The caller must drop equal
/// members.
#[derive(Default, Debug)]
pub(super) struct Unordered {
    sum: u64,
    xor: u64,
    count: u64,
}

/// The hash of the items added to a sequence so far. The hash depends on the order of the items.
#[derive(Clone, Default, Debug)]
pub(super) struct Ordered {
    folded: u64,
    count: u64,
}

/// Storage on the stack for the members of a set.
#[derive(Clone, Debug)]
pub(super) struct StackStorage([Digest; MAX_SET_ENTRIES]);

impl Default for StackStorage {
    #[inline]
    fn default() -> Self {
        Self([Digest(0); MAX_SET_ENTRIES])
    }
}

impl MemberStorage<Digest> for StackStorage {
    #[inline]
    fn members(&self, count: usize) -> &[Digest] {
        self.0.get(..count).unwrap_or(&self.0)
    }

    #[inline]
    fn put(&mut self, count: usize, member: Digest) {
        if let Some(slot) = self.0.get_mut(count) {
            *slot = member;
        }
    }
}
