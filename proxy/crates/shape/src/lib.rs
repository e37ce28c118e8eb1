//! Computes fingerprints of commands. A fingerprint identifies a command without its values.
//!
//! A fingerprint consists of an operation, a database, a collection and a *shape*: the command with
//! `?` in place of its values. Commands that differ only in values usually have the same shape, so
//! there are few shapes, and statistics per shape are meaningful. The rules have the version `fp1`.
//! The order of some parts does not matter to the server: conjuncts of a filter, sibling operators,
//! branches of an `$or`. These parts are sorted, and duplicates are removed. The order of sort
//! keys, stages and arguments matters, and is kept. The length of a list of values is not part of
//! the shape. Field names that are data (ids, dates, array indexes) become `*`.
//!
//! Each command has a fine and a coarse shape. The coarse shape lacks parts that do not select
//! documents, such as a projection. If an application has too many fine shapes, they are counted
//! under their coarse shape.
//!
//! [`fingerprint`] hashes both shapes in one pass, without heap memory and in bounded time.
//! [`describe`] returns both shapes as text; callers need the text only once per new hash. Both
//! functions use the same walk over the command, which builds either hashes or text (the `Form`
//! trait). So two texts, before they are cut to the maximum length, are equal if and only if their
//! hashes are equal.
//!
//! ```text
//! bytes ─► bson ─► command ─► clause ─► filter, update, pipeline ─► Form ┬► Digest ─► Fingerprint
//!                     ▲                  └► expression, projection       └► Text ──► Description
//!                  legacy ◄─ legacy opcodes
//! ```
//!
//! The fields of each command come from the table of commands.
//!
//! Redaction uses the same rules: a [`Place`] says which elements of a message are values of users.
//!
//! This crate keeps no statistics and knows no cursors: every `getMore` on a collection has the
//! same shape here. It does not validate commands: invalid bytes are read as the end of the
//! document that contains them. Invariants: no input causes a panic or a read past the end. Texts
//! contain no values, except words from fixed lists, and collations. Hashes never change within one
//! version of the rules.

mod bson;
mod clause;
mod command;
mod command_name;
mod digest;
mod expression;
mod filter;
mod form;
mod hash;
mod hidden;
mod learned;
mod legacy;
mod name;
mod pipeline;
mod place;
mod text;
mod update;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt;

use seawall_command::CommandBytes;

use self::bson::Document;
use self::command::ShapedCommand;
use self::hash::Digest;
use self::learned::Names;
use self::text::Text;
use self::walk::Walk;

pub use self::clause::MAX_STATEMENTS;
pub use self::filter::has_literal_prefix;
pub use self::hidden::NameKey;
pub use self::learned::{ChildName, LearnedNames, Prefix};
pub use self::legacy::{Legacy, Query};
pub use self::place::{Place, Treatment};

/// The operation and the namespace of a command, and the hashes of its shapes, for statistics.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Fingerprint<'a> {
    /// The hash of the operation, database, collection and shape.
    pub shape: ShapeId,
    /// The hash of the operation, database, collection and coarse shape (the shape without the
    /// parts that select no documents, such as a projection). Equal to `shape` if the shape has no
    /// such parts.
    pub coarse: ShapeId,
    /// The canonical name of the command, or `<unknown>`.
    pub op: &'static str,
    /// The database; empty if the command has none.
    pub db: &'a [u8],
    /// The collection of the command.
    pub collection: Collection<'a>,
}

/// The collection of a command: the bytes that the client sent, or a placeholder such as
/// `$cmd.aggregate`. Empty if the command has no collection.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Collection<'a>(&'a [u8]);

impl<'a> Collection<'a> {
    /// The value for commands without a collection.
    pub const NONE: Self = Self(b"");

    fn new(name: &'a [u8]) -> Self {
        Self(name)
    }

    /// The bytes of the name. They may be invalid UTF-8, because clients can send any bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// The hash of an operation, a database, a collection and a shape. The rules that turn a command
/// into a shape have a version: `fp1`. The hash is the same on every platform, and in every release
/// with this version of the rules. So it may be stored, and compared between instances of Seawall.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug)]
pub struct ShapeId(u64);

impl ShapeId {
    /// The id under which statistics count together several shapes that have the same coarse shape.
    /// `self` is the hash of this coarse shape. The result differs from `self`, because statistics
    /// may already count one single shape under `self`: the shape that equals its own coarse shape.
    /// Different coarse shapes give different ids.
    pub const fn of_coarse_row(self) -> Self {
        Self(self.0.wrapping_mul(ODD).rotate_left(32))
    }

    /// The id under which statistics count together the remaining shapes of a command on a
    /// collection: all shapes that are not counted under an id of their own.
    pub fn of_other_row(op: &str, db: &str, collection: &str) -> Self {
        let name = |text: &str| Digest::of_bytes(text.as_bytes());
        let names = name(op).then(name(db).then(name(collection)));
        Self(name("rest").then(names).as_u64())
    }

    /// The hash as a number. All bits are equally random.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Parses the output of `Display`: exactly 16 hexadecimal digits. `None` for any other text.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let is_hex = hex.len() == 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_hex {
            return None;
        }
        u64::from_str_radix(hex, 16).ok().map(Self)
    }
}

impl fmt::Display for ShapeId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// A fingerprint as text, for people.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Description {
    /// The canonical name of the command, or `<unknown>`.
    pub op: &'static str,
    /// The database; bytes that are not UTF-8 are printed as `\xhh`.
    pub db: String,
    /// The collection; bytes that are not UTF-8 are printed as `\xhh`.
    pub collection: String,
    /// The shape, at most 4,096 bytes. A longer shape is cut and ends in `...`.
    pub shape: String,
    /// The coarse shape, with the same limit.
    pub coarse: String,
}

/// Computes the fingerprint of a command. Uses no heap memory. The time is bounded: the number of
/// fields read is limited, and values are skipped by their length.
pub fn fingerprint<'a>(input: &CommandBytes<'a>) -> Fingerprint<'a> {
    let body = Document::at(input.body);
    Fingerprint::of(&Walk::<Digest>::new().command(body, input.sequences, b""))
}

/// Prints the fingerprint of a command. This function allocates memory. So callers use it only once
/// for each new hash, and not for each operation.
pub fn describe(input: &CommandBytes<'_>) -> Description {
    let body = Document::at(input.body);
    Description::of(Walk::<Text>::new().command(body, input.sequences, b""))
}

impl LearnedNames {
    /// Like [`fingerprint`](fn@fingerprint), but names directly after a learned prefix of a field
    /// path (see [`Self::learn`]) count as data, and become `*`.
    pub fn fingerprint<'a>(&self, input: &CommandBytes<'a>) -> Fingerprint<'a> {
        let names = Names::new(self, None);
        let body = Document::at(input.body);
        Fingerprint::of(&Walk::<Digest>::with_names(&names).command(body, input.sequences, b""))
    }

    /// Like [`describe`](fn@describe), but names directly after a learned prefix of a field path
    /// (see [`Self::learn`]) count as data, and become `*`. If there is a key, the other names of
    /// fields and variables, and the names of indexes, are printed as hashes.
    pub fn describe(&self, input: &CommandBytes<'_>, key: Option<&NameKey>) -> Description {
        let names = Names::new(self, key);
        let body = Document::at(input.body);
        Description::of(Walk::<Text>::with_names(&names).command(body, input.sequences, b""))
    }

    /// Finds the names that follow a prefix in the field paths of a command. Returns each name with
    /// its prefix. Names that already count as data are omitted.
    pub fn child_names(&self, input: &CommandBytes<'_>) -> Vec<(Prefix, ChildName)> {
        let names = Names::collecting(self);
        let body = Document::at(input.body);
        Walk::<Digest>::with_names(&names).command(body, input.sequences, b"");
        names.into_collected()
    }
}

/// Computes the fingerprint of a legacy message. It equals the fingerprint of the equivalent
/// command.
pub fn fingerprint_legacy<'a>(message: &Legacy<'a>) -> Fingerprint<'a> {
    Fingerprint::of(&Walk::<Digest>::new().legacy(message))
}

/// Prints the fingerprint of a legacy message. Allocates memory.
pub fn describe_legacy(message: &Legacy<'_>) -> Description {
    Description::of(Walk::<Text>::new().legacy(message))
}

impl<'a> Fingerprint<'a> {
    /// The name of the database, printed as in [`Description`].
    pub fn readable_db(&self) -> String {
        text::readable(self.db)
    }

    /// The name of the collection, printed as in [`Description`].
    pub fn readable_collection(&self) -> String {
        text::readable(self.collection.as_bytes())
    }

    fn of(shaped: &ShapedCommand<'a, Digest>) -> Self {
        let ShapedCommand {
            op,
            db,
            collection,
            shape,
        } = shaped;
        let target = const { Digest::of_bytes(VERSION) }
            .then(op.digest)
            .then(Digest::of_bytes(db).then(Digest::of_bytes(collection.as_bytes())));
        Self {
            shape: ShapeId(target.then(shape.fine).as_u64()),
            coarse: ShapeId(target.then(shape.coarse).as_u64()),
            op: op.text,
            db,
            collection: *collection,
        }
    }
}

impl Description {
    fn of(shaped: ShapedCommand<'_, Text>) -> Self {
        let ShapedCommand {
            op,
            db,
            collection,
            shape,
        } = shaped;
        Self {
            op: op.text,
            db: text::readable(db),
            collection: text::readable(collection.as_bytes()),
            shape: shape.fine.into_string(),
            coarse: shape.coarse.into_string(),
        }
    }
}

/// The multiplier in [`ShapeId::of_coarse_row`]. It is odd, so no two ids have the same product
/// modulo 2^64.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The version of the rules that turn a command into a shape. Every hash covers the version. After
/// a change of a rule, the version must change too, so that old and new hashes never match. A
/// correction that only removes values from shapes keeps the version, so that all other ids stay.
const VERSION: &[u8] = b"fp1";
