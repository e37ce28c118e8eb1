//! Fingerprints: what a command is when its values are taken away.
//!
//! A command becomes an operation, a database, a collection and a *shape*, which is the command
//! with every value as `?`. Commands that the server plans alike get one shape, so that statistics
//! per shape mean something and stay few. The rules are version `fp1`: what the server treats as a
//! set (a filter's conjuncts, sibling operators, the branches of an `$or`) is sorted and loses its
//! doubles, what it treats as a sequence (sort keys, stages, arguments) keeps its order, lists of
//! values have no length, and names that are data (ids, dates, array indexes) become `*`. Each
//! command has two shapes: the coarse one leaves out what only widens an operation, such as a
//! projection, and is where a client that makes too many fine shapes is counted.
//!
//! [`fingerprint`] hashes both shapes in one pass without any heap, in bounded time; [`describe`]
//! prints them, once per new hash. Both are the same walk over the command, once building hashes
//! and once building text (the `Form` trait), so equal texts have equal hashes and the other way
//! round.
//!
//! ```text
//! bytes ─► bson ─► command ─► clause ─► filter, update, pipeline ─► Form ┬► Digest ─► Fingerprint
//!                     ▲                  └► expression, projection       └► Text ──► Description
//!                  legacy ◄─ old opcodes
//! ```
//!
//! It keeps no statistics and knows no cursors: a `getMore` is only a `getMore` here. It judges no
//! command: bytes that lie end the walk of the document they stand in. Invariants: no input makes
//! it panic or read past the end, no value reaches a text (but words from fixed lists, and
//! collations), and no hash ever changes under one version.

mod bson;
mod clause;
mod command;
mod command_name;
mod digest;
mod expression;
mod filter;
mod form;
mod hidden;
mod learned;
mod legacy;
mod name;
mod pipeline;
mod text;
mod update;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt;

use self::bson::Document;
use self::command::Shaped;
use self::digest::Digest;
use self::text::Text;
use self::walk::Walk;

pub use self::clause::MAX_STATEMENTS;
pub use self::command_name::canonical_name;
pub use self::hidden::NameKey;
pub use self::learned::{ChildName, LearnedNames, Prefix};
pub use self::legacy::{Legacy, Query};

/// One command of OP_MSG.
#[derive(Copy, Clone, Debug)]
pub struct Input<'a> {
    /// The body section: one BSON document.
    pub body: &'a [u8],
    /// The document sequences, in any order.
    pub sequences: &'a [Sequence<'a>],
}

/// A kind-1 section.
#[derive(Copy, Clone, Debug)]
pub struct Sequence<'a> {
    /// The name of the array that it stands for, without a NUL.
    pub identifier: &'a [u8],
    /// Its documents, back to back.
    pub documents: &'a [u8],
}

/// What a command is, for statistics.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub struct Fingerprint<'a> {
    /// The operation, database, collection and shape as one number.
    pub shape: ShapeId,
    /// The same with the coarse shape. It is equal to `shape` if the coarse shape is.
    pub coarse: ShapeId,
    /// The canonical name of the command, or `<unknown>`.
    pub op: &'static str,
    /// The database; empty if the command names none.
    pub db: &'a [u8],
    /// What the command works on.
    pub collection: Collection<'a>,
}

/// The collection of a command: the client's bytes, a stand-in such as `$cmd.aggregate`, or empty.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct Collection<'a>(&'a [u8]);

impl<'a> Collection<'a> {
    /// For commands that take no collection.
    pub const NONE: Self = Self(b"");

    fn new(name: &'a [u8]) -> Self {
        Self(name)
    }

    /// The name; not always UTF-8, since clients send what they like.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// The hash of an operation, a database, a collection and a shape. It is the same on every platform
/// and in every release that speaks `fp1`, so it may be stored and compared between instances.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd, Debug)]
pub struct ShapeId(u64);

impl ShapeId {
    /// The id of what stands for the shapes of a coarse shape. It differs from that of the coarse shape itself, which may
    /// be a fine one too, and no two coarse shapes get the same.
    pub const fn of_coarse_row(self) -> Self {
        Self(self.0.wrapping_mul(ODD).rotate_left(32))
    }

    /// The id of what stands for the other shapes of a command on a collection.
    pub fn of_rest(op: &str, db: &str, collection: &str) -> Self {
        let name = |text: &str| Digest::of_bytes(text.as_bytes());
        let names = name(op).then(name(db).then(name(collection)));
        Self(name("rest").then(names).as_u64())
    }

    /// The hash as a number. All bits are equally random.
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Reads what `Display` writes: exactly 16 hexadecimal digits.
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

/// A fingerprint in words.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct Description {
    /// The canonical name of the command, or `<unknown>`.
    pub op: &'static str,
    /// The database; bytes that are not UTF-8 print as `\xhh`.
    pub db: String,
    /// What the command works on, printed likewise.
    pub collection: String,
    /// The shape, at most 4,096 bytes; a longer one is cut and ends in `...`.
    pub shape: String,
    /// The coarse shape, bounded likewise.
    pub coarse: String,
}

/// The fingerprint of a command. It takes no memory from the heap and looks at a bounded number of
/// fields; values are stepped over whatever their size.
pub fn fingerprint<'a>(input: &Input<'a>) -> Fingerprint<'a> {
    let body = Document::at(input.body);
    Fingerprint::of(&Walk::<Digest>::new().command(body, input.sequences, b""))
}

/// The text of a command's fingerprint. It allocates: call it once for every new hash.
pub fn describe(input: &Input<'_>) -> Description {
    let body = Document::at(input.body);
    Description::of(Walk::<Text>::new().command(body, input.sequences, b""))
}

/// The fingerprint of a message of an old opcode: that of the command it stands for.
pub fn fingerprint_legacy<'a>(message: &Legacy<'a>) -> Fingerprint<'a> {
    Fingerprint::of(&Walk::<Digest>::new().legacy(message))
}

/// The text of the fingerprint of a message of an old opcode. It allocates.
pub fn describe_legacy(message: &Legacy<'_>) -> Description {
    Description::of(Walk::<Text>::new().legacy(message))
}

impl<'a> Fingerprint<'a> {
    /// The database's name as [`Description`] has it.
    pub fn readable_db(&self) -> String {
        text::readable(self.db)
    }

    /// The collection's name as [`Description`] has it.
    pub fn readable_collection(&self) -> String {
        text::readable(self.collection.as_bytes())
    }

    fn of(shaped: &Shaped<'a, Digest>) -> Self {
        let Shaped {
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
    fn of(shaped: Shaped<'_, Text>) -> Self {
        let Shaped {
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

/// Multiplying by an odd number maps no two numbers to one.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Part of every hash: a changed rule is a new version.
const VERSION: &[u8] = b"fp1";
