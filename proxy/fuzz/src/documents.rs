//! Generates BSON documents from the grammar of the fingerprint tests, alters documents, and
//! compares how [`Elements`] and the `bson` crate read a document.

use bson::{Bson, Document, RawBsonRef, RawDocument, doc, oid::ObjectId, spec::BinarySubtype};
use seawall_wire::{ElementKind, Elements, document_at};

use crate::choices::Choices;

#[path = "../../crates/shape/src/tests/corpus.rs"]
#[expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this module was written for tests, which may panic"
)]
mod grammar;

/// Generates a command from the grammar. The same choices with another salt give the same command
/// with other values. With `is_shuffled`, the members of sets, such as the fields of a filter, have
/// another order.
pub(crate) fn command(choices: &[u8], salt: u32, is_shuffled: bool) -> Document {
    let mut dice = grammar::Dice::new(choices);
    dice.salt = salt;
    dice.is_shuffled = is_shuffled;
    dice.command()
}

/// Returns a text that every string value of a generated command contains. The shape of a command
/// (the command without its values) prints names, such as collection names. These names never
/// contain the text.
pub(crate) fn planted() -> &'static str {
    grammar::PLANTED
}

pub(crate) fn encode(document: &Document) -> Vec<u8> {
    document.to_vec().expect("the document can be encoded")
}

/// Returns a document with a value of each BSON type.
pub(crate) fn every_type() -> Document {
    let text = |text: &str| bson::raw::CString::try_from(text).expect("the text has no NUL");
    let scope = bson::JavaScriptCodeWithScope {
        code: "f()".to_owned(),
        scope: doc! { "y": 1 },
    };
    doc! {
        "double": 1.5, "string": "s", "document": { "a": 1 }, "array": [1, "b", null],
        "binary": bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2] },
        "undefined": Bson::Undefined, "id": ObjectId::from_bytes([9; 12]), "bool": true,
        "date": bson::DateTime::from_millis(1), "null": Bson::Null,
        "regex": bson::Regex { pattern: text("^a"), options: text("i") },
        "code": Bson::JavaScriptCode("x".to_owned()), "symbol": Bson::Symbol("y".to_owned()),
        "scoped": scope, "int32": 7, "timestamp": bson::Timestamp { time: 1, increment: 2 },
        "int64": 8_i64, "decimal": bson::Decimal128::from_bytes([0; 16]),
        "min": Bson::MinKey, "max": Bson::MaxKey,
    }
}

/// Corrects the declared length and the closing NUL of a document that was changed, so that it is
/// still read as a document.
pub(crate) fn repaired(bytes: &[u8]) -> Vec<u8> {
    let mut repaired = bytes.to_vec();
    let length = i32::try_from(repaired.len()).unwrap_or(i32::MAX);
    if let Some(head) = repaired.first_chunk_mut() {
        *head = length.to_le_bytes();
    }
    if let Some(last) = repaired.last_mut() {
        *last = 0;
    }
    repaired
}

/// Removes, replaces, adds or moves one to three fields. All lengths stay correct. Returns `None`
/// if the bytes are not a document.
pub(crate) fn altered(bytes: &[u8], choices: &mut Choices<'_>) -> Option<Vec<u8>> {
    let mut document = Document::from_reader(bytes).ok()?;
    for _ in 0..1 + choices.byte() % 3 {
        alter(&mut document, choices);
    }
    document.to_vec().ok()
}

fn alter(document: &mut Document, choices: &mut Choices<'_>) {
    let index = choices.index(document.len() + 1);
    let name = document.keys().nth(index).cloned();
    let name = name.unwrap_or_else(|| "added".to_owned());
    let alters_inner = choices.bool();
    match document.get_mut(&name) {
        Some(Bson::Document(inner)) if alters_inner => return alter(inner, choices),
        Some(Bson::Array(items)) if alters_inner => return alter_array(items, choices),
        _ => {}
    }
    match choices.byte() % 3 {
        0 => {
            document.remove(&name);
        }
        1 => {
            document.insert(name, value(choices));
        }
        _ => {
            let moved = document.remove(&name).unwrap_or(Bson::Null);
            document.insert(name, moved);
        }
    }
}

fn alter_array(items: &mut Vec<Bson>, choices: &mut Choices<'_>) {
    let index = choices.index(items.len() + 1);
    match items.get_mut(index) {
        Some(Bson::Document(inner)) => alter(inner, choices),
        Some(Bson::Array(inner)) => alter_array(inner, choices),
        Some(item) => *item = value(choices),
        None if choices.bool() => items.push(value(choices)),
        None => items.clear(),
    }
}

fn value(choices: &mut Choices<'_>) -> Bson {
    let types = every_type();
    let values = types.len();
    let number = choices.index(values + 4);
    let chosen = types.into_iter().nth(number).map(|(_, value)| value);
    let byte = choices.byte();
    chosen.unwrap_or_else(|| match number - values {
        0 => Bson::Int32(byte.into()),
        1 => Bson::Int64(-i64::from(byte)),
        2 => Bson::Double(f64::from(byte) / 4.0),
        _ => Bson::String(char::from(byte).to_string().repeat(byte.into())),
    })
}

/// Reads a document with [`Elements`] and with the `bson` crate. If the `bson` crate accepts the
/// document, [`Elements`] must read it to its end, with the same names and values. Returns true if
/// the `bson` crate accepts the document. The elements of embedded documents are not compared.
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
            .expect("the walk ends without error if bson accepts the document");
        assert_eq!(own.name, name.as_str().as_bytes());
        assert!(is_same(own.value, value), "{own:?} should be {value:?}");
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

/// Returns the type byte of a value. Returns `None` if the value's type has a variant of its own in
/// [`ElementKind`].
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
