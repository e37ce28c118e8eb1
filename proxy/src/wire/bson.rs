//! Iterates over the elements of one BSON document. It borrows the bytes, skips each value by its
//! length, and does not decode nested documents.
//!
//! Source: <https://bsonspec.org/spec.html>.

use std::str;

/// The reason why bytes are not valid BSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BsonError {
    /// A length exceeds the remaining bytes, or is below the minimum for its type.
    #[error("BSON length out of range")]
    BadLength,
    /// BSON does not define this type byte.
    #[error("unknown BSON type {0:#04x}")]
    UnknownType(u8),
    /// An element name has no closing NUL.
    #[error("unterminated element name")]
    UnterminatedName,
}

/// One element's value. Types that no caller needs are all `Other`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ElementKind<'a> {
    /// A 64-bit float.
    Double(f64),
    /// A string without its length and NUL. It may be invalid UTF-8.
    String(&'a [u8]),
    /// All bytes of an embedded document.
    Document(&'a [u8]),
    /// All bytes of an array, which is encoded as a document.
    Array(&'a [u8]),
    /// The subtype of binary data, and the data.
    Binary(u8, &'a [u8]),
    /// A boolean.
    Bool(bool),
    /// A 32-bit integer.
    Int32(i32),
    /// A 64-bit integer.
    Int64(i64),
    /// Null.
    Null,
    /// The type byte of any other type.
    Other(u8),
}

/// One element: its name, the offset of its value in the document, and the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Element<'a> {
    /// The name without its NUL. It may be invalid UTF-8.
    pub name: &'a [u8],
    /// Offset of the value's first byte from the document's first byte.
    pub value_offset: usize,
    /// The value.
    pub value: ElementKind<'a>,
}

impl<'a> ElementKind<'a> {
    /// The value as an integer, if it is a number without a fraction.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Int32(value) => Some(i64::from(value)),
            Self::Int64(value) => Some(value),
            Self::Double(value) => double_to_i64(value),
            _ => None,
        }
    }

    /// The value as a boolean, by MongoDB's rules: false, null and zero are false, and all other
    /// values are true.
    pub fn is_truthy(&self) -> bool {
        match *self {
            Self::Bool(value) => value,
            Self::Int32(value) => value != 0,
            Self::Int64(value) => value != 0,
            Self::Double(value) => value != 0.0,
            Self::Null => false,
            _ => true,
        }
    }

    /// The value as text, if it is a string in UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Self::String(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The value's bytes, if it is a document.
    pub fn as_document(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Document(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The number as an integer, if it has no fraction and a double represents all integers up to its
/// size exactly (2^53).
#[expect(
    clippy::as_conversions,
    reason = "guarded: a whole number within 2^53 converts exactly"
)]
pub fn double_to_i64(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// The document at the start of `bytes`, without the bytes after it.
///
/// # Errors
/// [`BsonError::BadLength`] if the length is below 5 or past the end, or if the last byte is not
/// NUL.
pub fn document_at(bytes: &[u8]) -> Result<&[u8], BsonError> {
    let length = read_length(bytes)?;
    let document = bytes.get(..length).ok_or(BsonError::BadLength)?;
    match (length >= 5, document.last()) {
        (true, Some(0)) => Ok(document),
        _ => Err(BsonError::BadLength),
    }
}

fn read_length(bytes: &[u8]) -> Result<usize, BsonError> {
    let head = bytes.first_chunk::<4>().ok_or(BsonError::BadLength)?;
    usize::try_from(i32::from_le_bytes(*head)).map_err(|_| BsonError::BadLength)
}

/// Iterates over a document's elements in order. The iterator ends after the first error.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    document: &'a [u8],
    position: usize,
}

impl<'a> Elements<'a> {
    /// Iterates over a whole document, as [`document_at`] returns it.
    pub fn of(document: &'a [u8]) -> Self {
        Self {
            document,
            position: 4,
        }
    }

    /// The first element named `name`, if all elements before it are valid.
    pub fn find(document: &'a [u8], name: &str) -> Option<Element<'a>> {
        Self::of(document).find_map(|e| e.ok().filter(|e| e.name == name.as_bytes()))
    }

    fn step(&mut self) -> Result<Option<Element<'a>>, BsonError> {
        // The last byte is the closing NUL of the document.
        let end = self.document.len().saturating_sub(1);
        if self.position >= end {
            return Ok(None);
        }
        let rest = self
            .document
            .get(self.position..end)
            .ok_or(BsonError::BadLength)?;
        let (&kind, rest) = rest.split_first().ok_or(BsonError::BadLength)?;
        let name_length = rest
            .iter()
            .position(|&b| b == 0)
            .ok_or(BsonError::UnterminatedName)?;
        let (name, rest) = rest
            .split_at_checked(name_length)
            .ok_or(BsonError::BadLength)?;
        let rest = rest.get(1..).ok_or(BsonError::BadLength)?;
        let value_offset = self.position + 2 + name_length;
        let (value, length) = read_value(kind, rest)?;
        self.position = value_offset + length;
        Ok(Some(Element {
            name,
            value_offset,
            value,
        }))
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, BsonError>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.step();
        if step.is_err() {
            self.position = usize::MAX;
        }
        step.transpose()
    }
}

/// The value at the start of `bytes`, and its length in bytes.
fn read_value(kind: u8, bytes: &[u8]) -> Result<(ElementKind<'_>, usize), BsonError> {
    let fixed = |length: usize| bytes.get(..length).ok_or(BsonError::BadLength);
    let value = match kind {
        0x01 => (ElementKind::Double(f64::from_le_bytes(chunk(bytes)?)), 8),
        0x02 | 0x0d | 0x0e => {
            let length = read_length(bytes)?;
            let text = bytes.get(4..4 + length).ok_or(BsonError::BadLength)?;
            let (&nul, text) = text.split_last().ok_or(BsonError::BadLength)?;
            if nul != 0 {
                return Err(BsonError::BadLength);
            }
            let value = if kind == 0x02 {
                ElementKind::String(text)
            } else {
                ElementKind::Other(kind)
            };
            (value, 4 + length)
        }
        0x03 => document_at(bytes).map(|d| (ElementKind::Document(d), d.len()))?,
        0x04 => document_at(bytes).map(|d| (ElementKind::Array(d), d.len()))?,
        0x05 => {
            let length = read_length(bytes)?;
            let &subtype = bytes.get(4).ok_or(BsonError::BadLength)?;
            let data = bytes.get(5..5 + length).ok_or(BsonError::BadLength)?;
            (ElementKind::Binary(subtype, data), 5 + length)
        }
        0x06 | 0x7f | 0xff => (ElementKind::Other(kind), 0),
        0x07 => (ElementKind::Other(kind), fixed(12)?.len()),
        0x08 => match bytes.first().ok_or(BsonError::BadLength)? {
            flag @ 0..=1 => (ElementKind::Bool(*flag == 1), 1),
            _ => return Err(BsonError::BadLength),
        },
        0x09 | 0x11 => (ElementKind::Other(kind), fixed(8)?.len()),
        0x0a => (ElementKind::Null, 0),
        0x0b => (ElementKind::Other(kind), regex_length(bytes)?),
        0x0c => {
            let length = read_length(bytes)?;
            (
                ElementKind::Other(kind),
                fixed(length.saturating_add(4 + 12))?.len(),
            )
        }
        0x0f => (ElementKind::Other(kind), document_like_length(bytes)?),
        0x10 => (ElementKind::Int32(i32::from_le_bytes(chunk(bytes)?)), 4),
        0x12 => (ElementKind::Int64(i64::from_le_bytes(chunk(bytes)?)), 8),
        0x13 => (ElementKind::Other(kind), fixed(16)?.len()),
        unknown => return Err(BsonError::UnknownType(unknown)),
    };
    Ok(value)
}

fn chunk<const N: usize>(bytes: &[u8]) -> Result<[u8; N], BsonError> {
    bytes
        .first_chunk::<N>()
        .copied()
        .ok_or(BsonError::BadLength)
}

fn regex_length(bytes: &[u8]) -> Result<usize, BsonError> {
    let nul = |from: usize| {
        let rest = bytes.get(from..).ok_or(BsonError::BadLength)?;
        rest.iter()
            .position(|&b| b == 0)
            .map(|n| from + n + 1)
            .ok_or(BsonError::BadLength)
    };
    nul(nul(0)?)
}

fn document_like_length(bytes: &[u8]) -> Result<usize, BsonError> {
    let length = read_length(bytes)?;
    if length < 14 {
        return Err(BsonError::BadLength);
    }
    bytes
        .get(..length)
        .map(<[u8]>::len)
        .ok_or(BsonError::BadLength)
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc, oid::ObjectId, spec::BinarySubtype};

    use super::*;

    fn every_type() -> Vec<u8> {
        let document = doc! {
            "double": 1.5, "string": "s", "document": {"a": 1}, "array": [1, 2],
            "binary": bson::Binary { subtype: BinarySubtype::Generic, bytes: vec![1, 2] },
            "id": ObjectId::new(), "bool": true, "date": bson::DateTime::now(), "null": Bson::Null,
            "regex": bson::Regex { pattern: bson::raw::CString::try_from("a").unwrap(), options: bson::raw::CString::try_from("i").unwrap() },
            "code": Bson::JavaScriptCode("x".into()),
            "scoped": bson::JavaScriptCodeWithScope { code: "x".into(), scope: doc! {"y": 1} },
            "int32": 7, "timestamp": bson::Timestamp { time: 1, increment: 2 }, "int64": 8i64,
            "decimal": bson::Decimal128::from_bytes([0; 16]), "min": Bson::MinKey, "max": Bson::MaxKey,
            "last": "end",
        };
        document.to_vec().unwrap()
    }

    #[test]
    fn elements_of_every_type_are_found_after_each_other() {
        let bytes = every_type();
        let elements: Vec<_> = Elements::of(&bytes).map(Result::unwrap).collect();
        assert_eq!(elements.len(), 19);
        assert_eq!(elements.last().unwrap().value, ElementKind::String(b"end"));
        assert_eq!(
            Elements::find(&bytes, "int64").unwrap().value.as_i64(),
            Some(8)
        );
    }

    #[test]
    fn truncated_or_altered_bytes_never_panic() {
        let bytes = every_type();
        for cut in 0..bytes.len() {
            if let Ok(document) = document_at(&bytes[..cut]) {
                Elements::of(document).for_each(drop);
            }
            Elements::of(&bytes[..cut]).for_each(drop);
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut altered = bytes.clone();
                altered[at] = value;
                Elements::of(&altered).for_each(drop);
            }
        }
    }

    #[test]
    fn values_convert_to_booleans_and_integers_as_on_a_server() {
        assert!(!ElementKind::Null.is_truthy());
        assert!(!ElementKind::Double(0.0).is_truthy());
        assert!(ElementKind::String(b"").is_truthy());
        for (number, is_true) in [(0, false), (1, true), (-2, true)] {
            assert_eq!(ElementKind::Int32(number).is_truthy(), is_true);
            assert_eq!(ElementKind::Int64(number.into()).is_truthy(), is_true);
            let same = Some(i64::from(number));
            assert_eq!(ElementKind::Int32(number).as_i64(), same);
        }
        for flag in [false, true] {
            assert_eq!(ElementKind::Bool(flag).is_truthy(), flag);
        }
        assert_eq!(ElementKind::Double(3.0).as_i64(), Some(3));
        assert_eq!(ElementKind::Double(3.5).as_i64(), None);
    }

    #[test]
    fn every_value_is_read_as_it_was_written() {
        let bytes = every_type();
        let value = |name: &str| Elements::find(&bytes, name).unwrap().value;
        assert_eq!(value("binary"), ElementKind::Binary(0, &[1, 2]));
        assert_eq!(value("bool"), ElementKind::Bool(true));
        assert_eq!(value("int32"), ElementKind::Int32(7));
        let bytes = doc! {"bool": false}.to_vec().unwrap();
        let element = Elements::find(&bytes, "bool").unwrap();
        assert_eq!(element.value, ElementKind::Bool(false));
    }

    /// A document that contains `element` and then a null.
    fn with_null(element: &[u8]) -> Vec<u8> {
        let null = b"\x0anull\0";
        let length = i32::try_from(4 + element.len() + null.len() + 1).unwrap();
        [&length.to_le_bytes()[..], element, null, &[0]].concat()
    }

    fn names(document: &[u8]) -> Vec<&[u8]> {
        Elements::of(document).map(|e| e.unwrap().name).collect()
    }

    #[test]
    fn a_db_pointer_is_skipped_by_its_length() {
        let pointer = [&b"\x0cp\0\x02\0\0\0x\0"[..], &[7; 12]].concat();
        assert_eq!(names(&with_null(&pointer)), [&b"p"[..], b"null"]);
    }

    #[test]
    fn code_with_scope_has_a_minimum_length() {
        let scoped = |length: u8| {
            let (code, scope) = ([1_u8, 0, 0, 0, 0], [5_u8, 0, 0, 0, 0]);
            with_null(&[&b"\x0fs\0"[..], &[length, 0, 0, 0], &code, &scope].concat())
        };
        assert_eq!(names(&scoped(14)), [&b"s"[..], b"null"]);
        let short = scoped(13);
        let first = Elements::of(&short).next();
        assert_eq!(first, Some(Err(BsonError::BadLength)));
    }
}
