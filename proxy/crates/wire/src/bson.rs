//! Iterates over the elements of one BSON document. The iterator borrows the bytes, skips each
//! value by its length, and does not decode nested documents.
//!
//! Source: <https://bsonspec.org/spec.html>.

use std::{iter, str};

use super::kind;

/// The reason why bytes are not valid BSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BsonError {
    /// A length exceeds the remaining bytes, or is below the minimum for its type. Also returned if
    /// a string, a regular expression or a document does not end with NUL, or if a boolean is
    /// neither 0 nor 1.
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
    /// The bytes of a string, without its length field and its NUL. They may be invalid UTF-8.
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
    /// The null value.
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
    /// The decoded value.
    pub value: ElementKind<'a>,
}

impl<'a> ElementKind<'a> {
    /// Decodes the value of a [`RawElement`].
    #[inline(always)]
    fn decode(kind: u8, value: &'a [u8]) -> Result<Self, BsonError> {
        Ok(match kind {
            kind::DOUBLE => Self::Double(f64::from_le_bytes(chunk(value)?)),
            kind::STRING => Self::String(text(value)?),
            kind::DOCUMENT => Self::Document(ending_in_nul(value)?),
            kind::ARRAY => Self::Array(ending_in_nul(value)?),
            kind::BINARY => {
                let (&subtype, data) = value
                    .get(4..)
                    .and_then(<[u8]>::split_first)
                    .ok_or(BsonError::BadLength)?;
                Self::Binary(subtype, data)
            }
            kind::BOOL => match value {
                [flag @ 0..=1] => Self::Bool(*flag == 1),
                _ => return Err(BsonError::BadLength),
            },
            kind::NULL => Self::Null,
            kind::CODE | kind::SYMBOL => ending_in_nul(value).map(|_| Self::Other(kind))?,
            kind::INT32 => Self::Int32(i32::from_le_bytes(chunk(value)?)),
            kind::INT64 => Self::Int64(i64::from_le_bytes(chunk(value)?)),
            _ => Self::Other(kind),
        })
    }

    /// The value as an integer; `None` if it is neither an integer nor a double, or if it is a
    /// double with a fraction or with an absolute value over 2^53.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Int32(value) => Some(i64::from(value)),
            Self::Int64(value) => Some(value),
            Self::Double(value) => double_to_i64(value),
            _ => None,
        }
    }

    /// The value as a boolean, as servers read it: false, null and zero are false, and all other
    /// values are true. There are two differences: a value of the deprecated BSON type `undefined`
    /// and a zero of the type Decimal128 are true here, but false on a server.
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

/// The number as an integer; `None` if it has a fraction or its absolute value is over 2^53. A
/// double represents all integers up to 2^53 exactly.
#[expect(
    clippy::as_conversions,
    reason = "only whole numbers up to 2^53 are returned, and they convert exactly"
)]
pub fn double_to_i64(value: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    (value.fract() == 0.0 && value.abs() <= EXACT).then_some(value as i64)
}

/// The document at the start of `bytes`, without the bytes after it.
///
/// # Errors
/// [`BsonError::BadLength`] if the declared length is below 5 or exceeds the length of `bytes`, or
/// if the last byte of the document is not NUL.
pub fn document_at(bytes: &[u8]) -> Result<&[u8], BsonError> {
    let length = read_length(bytes)?;
    let document = bytes.get(..length).ok_or(BsonError::BadLength)?;
    match (length >= 5, document.last()) {
        (true, Some(0)) => Ok(document),
        _ => Err(BsonError::BadLength),
    }
}

/// One element as bytes. All code that iterates over a whole BSON document uses this type to find
/// where each element begins and ends.
#[derive(Clone, Copy, Debug)]
pub struct RawElement<'a> {
    /// The type byte: the BSON type of the value, see [`kind`].
    pub kind: u8,
    /// The name, without its NUL; not necessarily UTF-8.
    pub name: &'a [u8],
    /// The first eight bytes of the name as a number: see [`head_of`].
    pub head: u64,
    /// All bytes of the value. Their number is valid for the type; their content is not checked.
    pub value: &'a [u8],
}

impl<'a> RawElement<'a> {
    /// Splits an element off the front of `bytes`, which must not be empty. Also returns the bytes
    /// after the element.
    ///
    /// # Errors
    /// See [`BsonError`].
    #[inline(always)]
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), BsonError> {
        let (&kind, rest) = bytes.split_first().ok_or(BsonError::BadLength)?;
        let (name, head, rest) = split_name(rest).ok_or(BsonError::UnterminatedName)?;
        let length = value_length(kind, rest)?;
        let (value, rest) = rest.split_at_checked(length).ok_or(BsonError::BadLength)?;
        let element = Self {
            kind,
            name,
            head,
            value,
        };
        Ok((element, rest))
    }

    /// Returns the elements of a document in their order. If an element is invalid, its error is
    /// the last item. The declared length of the document is not checked.
    pub fn all(document: &'a [u8]) -> impl Iterator<Item = Result<Self, BsonError>> {
        let end = document.len().saturating_sub(1);
        let mut rest = document.get(4..end).ok_or(BsonError::BadLength);
        iter::from_fn(move || {
            if let Ok([]) = rest {
                return None;
            }
            let split = rest.and_then(Self::split);
            rest = Ok(split.as_ref().map_or(&[], |(_, after)| *after));
            Some(split.map(|(element, _)| element))
        })
    }
}

/// The length of the value at the start of `bytes`, by its type and its length field. `bytes` may
/// be shorter than the value.
#[inline(always)]
fn value_length(kind: u8, bytes: &[u8]) -> Result<usize, BsonError> {
    let with_prefix = |least: usize, more: usize| {
        let length = read_length(bytes)?;
        match length.checked_add(more) {
            Some(whole) if length >= least => Ok(whole),
            _ => Err(BsonError::BadLength),
        }
    };
    match kind {
        kind::STRING | kind::CODE | kind::SYMBOL => with_prefix(1, 4),
        kind::DOCUMENT | kind::ARRAY => with_prefix(5, 0),
        kind::INT32 => Ok(4),
        kind::DOUBLE | kind::DATE | kind::TIMESTAMP | kind::INT64 => Ok(8),
        kind::UNDEFINED | kind::NULL | kind::MAX_KEY | kind::MIN_KEY => Ok(0),
        kind::BOOL => Ok(1),
        kind::OBJECT_ID => Ok(12),
        kind::DECIMAL => Ok(16),
        kind::BINARY => with_prefix(0, 5),
        kind::REGEX => regex_length(bytes),
        kind::DB_POINTER => with_prefix(1, 4 + 12),
        // The minimum of a code-with-scope value is its length field (4 bytes), an empty string (5
        // bytes) and an empty document (5 bytes).
        kind::CODE_WITH_SCOPE => with_prefix(14, 0),
        unknown => Err(BsonError::UnknownType(unknown)),
    }
}

#[inline]
fn read_length(bytes: &[u8]) -> Result<usize, BsonError> {
    let head = bytes.first_chunk::<4>().ok_or(BsonError::BadLength)?;
    usize::try_from(i32::from_le_bytes(*head)).map_err(|_| BsonError::BadLength)
}

/// Splits off the name of an element. Returns the name, its head (see [`head_of`]) and the bytes
/// after the NUL. Iteration spends much of its time on the search for the NUL, so the first eight
/// bytes are checked in one step.
#[inline]
fn split_name(bytes: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let (length, head) = match bytes.first_chunk() {
        Some(first) => {
            let word = u64::from_le_bytes(*first);
            let zeros = zero_bytes(word);
            // The lowest set bit belongs to the first zero byte.
            let bits = zeros.trailing_zeros() & !7;
            match u64::MAX.checked_shl(bits) {
                Some(mask) => (usize::try_from(bits / 8).ok()?, word & !mask),
                None => (long_name_bytes(bytes)?, word),
            }
        }
        None => short_name(bytes)?,
    };
    let (name, rest) = bytes.split_at_checked(length)?;
    Some((name, head, rest.get(1..)?))
}

/// The length of the name of an element, without its NUL. `bytes` begins at the name. Returns
/// `None` if there is no NUL.
#[inline]
pub fn name_length(bytes: &[u8]) -> Option<usize> {
    split_name(bytes).map(|(name, _, _)| name.len())
}

/// The length of a name of eight bytes or more. Returns `None` if there is no NUL after the name.
#[inline(never)]
fn long_name_bytes(bytes: &[u8]) -> Option<usize> {
    let rest = bytes.get(size_of::<u64>()..)?;
    let length = rest.iter().position(|&byte| byte == 0)?;
    Some(size_of::<u64>() + length)
}

/// The length and the head of the name at the start of `bytes`, which has fewer than eight bytes.
/// Returns `None` if there is no NUL after the name.
#[inline(never)]
fn short_name(bytes: &[u8]) -> Option<(usize, u64)> {
    let length = bytes.iter().position(|&byte| byte == 0)?;
    Some((length, head_of(bytes.get(..length)?)))
}

/// The first eight bytes of a name as a little-endian number. A shorter name is padded with zeros.
/// Two different names usually have different heads, and numbers are compared faster than names.
#[inline]
pub const fn head_of(name: &[u8]) -> u64 {
    if let Some(head) = name.first_chunk() {
        return u64::from_le_bytes(*head);
    }
    if let (Some(&[a, b, c, d]), Some(&[w, x, y, z])) = (name.first_chunk(), name.last_chunk()) {
        // The first four and the last four bytes of the name may overlap. The overlapping bytes are
        // equal, so `|` does not change them.
        let front = u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0]);
        let back = u64::from_le_bytes([w, x, y, z, 0, 0, 0, 0]);
        return front | back << (8 * (name.len() - 4));
    }
    let [a, b, c] = match *name {
        [a, b, c, ..] => [a, b, c],
        [a, b] => [a, b, 0],
        [a] => [a, 0, 0],
        [] => [0; 3],
    };
    u64::from_le_bytes([a, b, c, 0, 0, 0, 0, 0])
}

/// A mask in which the high bit of the first zero byte is set. High bits of later bytes may also be
/// set. The mask is 0 if there is no zero byte.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    const LOW_BITS: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
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

    #[inline(always)]
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
        let (element, after) = RawElement::split(rest)?;
        self.position = end - after.len();
        let value_offset = self.position - element.value.len();
        Ok(Some(Element {
            name: element.name,
            value_offset,
            value: ElementKind::decode(element.kind, element.value)?,
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

fn chunk<const N: usize>(bytes: &[u8]) -> Result<[u8; N], BsonError> {
    bytes
        .first_chunk::<N>()
        .copied()
        .ok_or(BsonError::BadLength)
}

/// The text of a string value, without its length field and its NUL.
#[inline(always)]
fn text(value: &[u8]) -> Result<&[u8], BsonError> {
    match value {
        [_, _, _, _, text @ .., 0] => Ok(text),
        _ => Err(BsonError::BadLength),
    }
}

#[inline(always)]
fn ending_in_nul(value: &[u8]) -> Result<&[u8], BsonError> {
    match value.last() {
        Some(0) => Ok(value),
        _ => Err(BsonError::BadLength),
    }
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

#[cfg(test)]
mod tests {
    use bson::{Bson, doc, oid::ObjectId, spec::BinarySubtype};

    use super::*;

    #[test]
    fn iteration_over_raw_elements_ends_after_the_first_error() {
        let document = doc! {"a": 1, "b": "text"}.to_vec().unwrap();
        let names = |document: &[u8]| {
            let elements = RawElement::all(document);
            let names = elements.map(|element| element.map(|of| of.name.to_vec()));
            names.collect::<Vec<_>>()
        };
        let [a, b] = [b"a".to_vec(), b"b".to_vec()];
        assert_eq!(names(&document), [Ok(a.clone()), Ok(b)]);
        let cut = document.len() - 3;
        assert_eq!(names(&document[..cut]), [Ok(a), Err(BsonError::BadLength)]);
        assert_eq!(names(&doc! {}.to_vec().unwrap()), []);
        assert_eq!(names(&[5, 0, 0, 0]), [Err(BsonError::BadLength)]);
    }

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
    fn iteration_continues_after_a_value_of_any_bson_type() {
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
    fn parsing_truncated_or_altered_bson_never_panics() {
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
    fn binary_boolean_and_integer_values_are_decoded() {
        let bytes = every_type();
        let value = |name: &str| Elements::find(&bytes, name).unwrap().value;
        assert_eq!(value("binary"), ElementKind::Binary(0, &[1, 2]));
        assert_eq!(value("bool"), ElementKind::Bool(true));
        assert_eq!(value("int32"), ElementKind::Int32(7));
        let bytes = doc! {"bool": false}.to_vec().unwrap();
        let element = Elements::find(&bytes, "bool").unwrap();
        assert_eq!(element.value, ElementKind::Bool(false));
    }

    /// A document that contains `element` and then an element `null` with the null value.
    fn with_null(element: &[u8]) -> Vec<u8> {
        let null = b"\x0anull\0";
        let length = i32::try_from(4 + element.len() + null.len() + 1).unwrap();
        [&length.to_le_bytes()[..], element, null, &[0]].concat()
    }

    fn names(document: &[u8]) -> Vec<&[u8]> {
        Elements::of(document).map(|e| e.unwrap().name).collect()
    }

    #[test]
    fn iteration_continues_after_a_db_pointer() {
        let pointer = [&b"\x0cp\0\x02\0\0\0x\0"[..], &[7; 12]].concat();
        assert_eq!(names(&with_null(&pointer)), [&b"p"[..], b"null"]);
    }

    #[test]
    fn a_value_of_the_type_code_with_scope_is_refused_if_it_is_shorter_than_the_minimum() {
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
