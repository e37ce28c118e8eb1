//! BSON documents for targets: from the grammar of the fingerprint's own tests, and checked against the `bson` crate.

use bson::{Document, RawBsonRef, RawDocument};
use seawall::wire::{ElementKind, Elements, document_at};

#[path = "../../src/shape/tests/corpus.rs"]
#[expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "written for tests, where both are allowed"
)]
mod grammar;

/// A command by the grammar. The same choices with another salt give the same command with other values.
pub(crate) fn command(choices: &[u8], salt: u32, is_shuffled: bool) -> Document {
    let mut dice = grammar::Dice::new(choices);
    dice.salt = salt;
    dice.is_shuffled = is_shuffled;
    dice.command()
}

/// What every value of such a command contains, and no name.
pub(crate) fn planted() -> &'static str {
    grammar::PLANTED
}

/// The bytes of a document.
pub(crate) fn encode(document: &Document) -> Vec<u8> {
    document.to_vec().expect("the document can be encoded")
}

/// Walks a document and holds the walk against the `bson` crate: what that accepts is walked to its end, with the same
/// names and values. True if the crate accepts it, embedded documents aside.
pub(crate) fn check_walk(document: &[u8]) -> bool {
    let own: Vec<_> = Elements::of(document).collect();
    let failed = own.iter().filter(|element| element.is_err()).count();
    assert!(failed <= 1, "the walk ends after its first error");
    for element in own.iter().flatten() {
        assert!(element.value_offset <= document.len(), "{element:?}");
        if let ElementKind::Document(inner) | ElementKind::Array(inner) = element.value {
            assert_eq!(document_at(inner), Ok(inner));
        }
    }
    let Ok(raw) = RawDocument::from_bytes(document) else {
        return false;
    };
    let theirs: Result<Vec<_>, _> = raw.iter().collect();
    let Ok(theirs) = theirs else { return false };
    assert_eq!(own.len(), theirs.len(), "{own:?}");
    for (own, (name, value)) in own.iter().zip(theirs) {
        let own = own
            .as_ref()
            .expect("what bson accepts is walked to its end");
        assert_eq!(own.name, name.as_str().as_bytes());
        assert!(is_same(own.value, value), "{own:?} is {value:?}");
    }
    true
}

fn is_same(own: ElementKind<'_>, theirs: RawBsonRef<'_>) -> bool {
    match (own, theirs) {
        (ElementKind::Double(a), RawBsonRef::Double(b)) => a.to_bits() == b.to_bits(),
        (ElementKind::String(a), RawBsonRef::String(b)) => a == b.as_bytes(),
        (ElementKind::Document(a), RawBsonRef::Document(b)) => a == b.as_bytes(),
        (ElementKind::Array(a), RawBsonRef::Array(b)) => a == b.as_bytes(),
        (ElementKind::Binary(kind, _), RawBsonRef::Binary(b)) => kind == u8::from(b.subtype),
        (ElementKind::Bool(a), RawBsonRef::Boolean(b)) => a == b,
        (ElementKind::Int32(a), RawBsonRef::Int32(b)) => a == b,
        (ElementKind::Int64(a), RawBsonRef::Int64(b)) => a == b,
        (ElementKind::Null, RawBsonRef::Null) => true,
        (ElementKind::Other(kind), other) => Some(kind) == other_kind(other),
        _ => false,
    }
}

/// The type byte of what the walk does not tell apart.
fn other_kind(value: RawBsonRef<'_>) -> Option<u8> {
    Some(match value {
        RawBsonRef::Undefined => 0x06,
        RawBsonRef::ObjectId(_) => 0x07,
        RawBsonRef::DateTime(_) => 0x09,
        RawBsonRef::RegularExpression(_) => 0x0b,
        RawBsonRef::DbPointer(_) => 0x0c,
        RawBsonRef::JavaScriptCode(_) => 0x0d,
        RawBsonRef::Symbol(_) => 0x0e,
        RawBsonRef::JavaScriptCodeWithScope(_) => 0x0f,
        RawBsonRef::Timestamp(_) => 0x11,
        RawBsonRef::Decimal128(_) => 0x13,
        RawBsonRef::MaxKey => 0x7f,
        RawBsonRef::MinKey => 0xff,
        _ => return None,
    })
}
