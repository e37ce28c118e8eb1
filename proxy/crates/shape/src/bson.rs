//! Reads the fields of documents. A [`Value`] distinguishes only the types and values that make a
//! difference in a shape or in redaction.
//!
//! [`RawElement`] finds the fields. Invalid bytes are a length past the end, an unknown type, or a
//! name without its NUL. They end the iteration over the document that contains them, as if it had
//! no more fields. Only the server validates commands.

use seawall_wire::{RawElement, kind};

/// One field of a document, or one element of an array. The name of an array element is its index,
/// which is not part of a shape.
#[derive(Copy, Clone, Debug)]
pub(super) struct Field<'a> {
    pub(super) name: &'a [u8],
    /// The first eight bytes of the name, see [`seawall_wire::head_of`].
    pub(super) head: u64,
    pub(super) value: Value<'a>,
}

/// A value, reduced to what makes a difference in a shape or in redaction. The content of each
/// variant is eight bytes or a slice, so the compiler copies a value in whole words. With narrower
/// content, it would copy a value in several small moves, and later reads of the value would be
/// slower.
#[derive(Copy, Clone, Debug)]
pub(super) enum Value<'a> {
    Document(Document<'a>),
    Array(Array<'a>),
    String(&'a [u8]),
    Regex(Regex<'a>),
    /// Null, or the deprecated type undefined. Both look the same in a shape.
    Null,
    True,
    False,
    /// An int32 or an int64. Both look the same in a shape.
    Integer(i64),
    Double(f64),
    /// A Decimal128 in the wire's byte order.
    Decimal(&'a [u8; 16]),
    /// A value of any other type. A shape never depends on its content.
    Other,
}

/// The classes of numbers that look different in a shape, or that redaction treats differently.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Number {
    Zero,
    One,
    MinusOne,
    Positive,
    Negative,
    Nan,
}

impl Field<'_> {
    /// True if the field has this name. The caller must have checked that the first eight bytes of
    /// the two names are equal.
    #[inline]
    pub(super) fn has_rest_of(&self, name: &str) -> bool {
        let is_all_head = name.len() <= size_of_val(&self.head);
        self.name.len() == name.len() && (is_all_head || self.name == name.as_bytes())
    }
}

impl Value<'_> {
    /// The class of the number, or `None` if the value is not a number.
    pub(super) fn number(&self) -> Option<Number> {
        match *self {
            Self::Integer(number) => Some(Number::of_integer(number)),
            Self::Double(number) => Some(Number::of_double(number)),
            Self::Decimal(bytes) => Some(Number::of_decimal(u128::from_le_bytes(*bytes))),
            _ => None,
        }
    }

    /// The value as a boolean, as servers read it: false, null, undefined and zero are false, and
    /// all other values are true.
    pub(super) fn truth(&self) -> bool {
        match *self {
            Self::Null | Self::False => false,
            Self::True => true,
            _ => self.number() != Some(Number::Zero),
        }
    }
}

impl<'a> Value<'a> {
    /// Converts a boolean to a value.
    pub(super) fn boolean(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }

    /// Reads the value of an element. `None` if its bytes are too short for its type.
    #[inline(always)]
    pub(super) fn of(element: RawElement<'a>) -> Option<Self> {
        let RawElement { kind, value, .. } = element;
        Some(match kind {
            kind::STRING => Self::String(value.get(4..value.len().checked_sub(1)?)?),
            kind::DOCUMENT => Self::Document(Document::whole(value)?),
            kind::ARRAY => Self::Array(Array {
                elements: Document::whole(value)?.fields,
            }),
            kind::BOOL => Self::boolean(*value.first()? != 0),
            kind::INT32 => Self::Integer(i32::from_le_bytes(*value.first_chunk()?).into()),
            kind::INT64 => Self::Integer(i64::from_le_bytes(*value.first_chunk()?)),
            kind::DOUBLE => Self::Double(f64::from_le_bytes(*value.first_chunk()?)),
            kind::DECIMAL => Self::Decimal(value.first_chunk()?),
            kind::UNDEFINED | kind::NULL => Self::Null,
            kind::REGEX => Self::Regex(Regex { bytes: value }),
            _ => Self::Other,
        })
    }
}

/// A document whose length is valid.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Document<'a> {
    /// The bytes of the fields, without the document's length and final NUL.
    fields: &'a [u8],
}

impl<'a> Document<'a> {
    /// The document at the front of `bytes`; an empty document if the bytes are not valid.
    pub(super) fn at(bytes: &'a [u8]) -> Self {
        Self::split(bytes)
            .map(|(document, _)| document)
            .unwrap_or_default()
    }

    /// The document at the front of `bytes`, and the bytes after it; `None` if the bytes are not
    /// valid.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (document, rest) = bytes.split_at_checked(length_at(bytes)?)?;
        Some((Self::whole(document)?, rest))
    }

    /// The document that consists of all these bytes; `None` if they are too few for a document.
    #[inline]
    fn whole(bytes: &'a [u8]) -> Option<Self> {
        let fields = bytes.get(4..bytes.len().checked_sub(1)?)?;
        Some(Self { fields })
    }

    /// The fields, at most [`MAX_FIELDS`].
    pub(super) fn fields(self) -> Fields<'a> {
        Fields {
            rest: self.fields,
            left: MAX_FIELDS,
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.fields.is_empty()
    }

    /// The first field; `None` if there is none.
    pub(super) fn first(self) -> Option<Field<'a>> {
        self.fields().next()
    }

    /// The value of the field `name`, if it is among the first [`MAX_FIELDS`] fields.
    pub(super) fn value_of(self, name: &[u8]) -> Option<Value<'a>> {
        self.fields()
            .find(|field| field.name == name)
            .map(|field| field.value)
    }

    /// True if the name of the first field is a top-level operator of a filter.
    pub(super) fn begins_filter(self) -> bool {
        let first = self.first().map(|first| first.name);
        matches!(first, Some(b"$and" | b"$or" | b"$nor" | b"$where"))
    }

    /// True for an operator document: the name of its first field begins with `$`. A reference to
    /// another document (`$ref` with `$id`) is not an operator document.
    pub(super) fn is_operator_document(self) -> bool {
        let (mut names_ref, mut names_id) = (false, false);
        let mut is_empty = true;
        let mut fields = self.fields();
        while let Some(Field { name, .. }) = fields.advance() {
            if is_empty && name.first() != Some(&b'$') {
                return false;
            }
            is_empty = false;
            names_ref |= name == b"$ref";
            names_id |= name == b"$id";
        }
        let is_reference = names_ref && names_id;
        !is_empty && !is_reference
    }
}

/// An array. BSON stores it as a document; the field names are ignored.
#[derive(Copy, Clone, Debug)]
pub(super) struct Array<'a> {
    elements: &'a [u8],
}

impl<'a> From<Document<'a>> for Array<'a> {
    fn from(document: Document<'a>) -> Self {
        Self {
            elements: document.fields,
        }
    }
}

impl<'a> Array<'a> {
    pub(super) fn is_empty(self) -> bool {
        self.elements.is_empty()
    }

    /// The elements, at most [`MAX_ELEMENTS`].
    pub(super) fn elements(self) -> Fields<'a> {
        Fields {
            rest: self.elements,
            left: MAX_ELEMENTS,
        }
    }

    /// The value of the first element; `None` if there is none.
    pub(super) fn first(self) -> Option<Value<'a>> {
        self.elements().next().map(|element| element.value)
    }
}

/// Iterates over the fields of one document. The iteration ends at the end of the document, at the
/// first invalid field, or after the maximum number of fields.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Fields<'a> {
    /// True if the document has more than the maximum number of fields. The result is valid only
    /// after `next` has returned `None`.
    pub(super) fn is_cut(&self) -> bool {
        let mut rest = Self { left: 1, ..*self };
        self.left == 0 && rest.next().is_some()
    }

    /// The same as `next`, but inlined: the field stays in registers. Use it only in loops where
    /// the speed is worth the larger code.
    #[inline(always)]
    pub(super) fn advance(&mut self) -> Option<Field<'a>> {
        self.left = self.left.checked_sub(1)?;
        let split = RawElement::split(self.rest);
        self.rest = &[];
        let (element, rest) = split.ok()?;
        let value = Value::of(element)?;
        self.rest = rest;
        let RawElement { name, head, .. } = element;
        Some(Field { name, head, value })
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    #[inline(never)]
    fn next(&mut self) -> Option<Field<'a>> {
        self.advance()
    }
}

/// A regular expression: two C strings, the pattern and the options. More bytes may follow.
#[derive(Copy, Clone, Debug)]
pub(super) struct Regex<'a> {
    bytes: &'a [u8],
}

impl<'a> Regex<'a> {
    /// The pattern, and the option letters in the order in which the client sent them.
    pub(super) fn pattern_and_options(self) -> (&'a [u8], &'a [u8]) {
        let (pattern, rest) = split_cstring(self.bytes).unwrap_or_default();
        let (options, _) = split_cstring(rest).unwrap_or_default();
        (pattern, options)
    }
}

impl Number {
    fn of_integer(number: i64) -> Self {
        match number {
            0 => Self::Zero,
            1 => Self::One,
            -1 => Self::MinusOne,
            2.. => Self::Positive,
            _ => Self::Negative,
        }
    }

    fn of_double(number: f64) -> Self {
        if number.is_nan() {
            Self::Nan
        } else if number == 0.0 {
            Self::Zero
        } else if number.abs() == 1.0 {
            Self::unit(number < 0.0)
        } else {
            Self::signed(number < 0.0)
        }
    }

    /// The class of a Decimal128. `bits` is in binary integer encoding (IEEE 754-2008): sign, 14
    /// bits of exponent, 113 bits of coefficient.
    fn of_decimal(bits: u128) -> Self {
        const NAN: u128 = 0b11111;
        const INFINITY: u128 = 0b11110;
        const EXPONENT_BIAS: u128 = 6176;
        const MAX_COEFFICIENT: u128 = 10u128.pow(34) - 1;
        let negative = bits >> 127 == 1;
        match (bits >> 122) & 0b11111 {
            NAN => return Self::Nan,
            INFINITY => return Self::signed(negative),
            // These bits mark the second encoding of the coefficient. All its values are above the
            // maximum, so the number counts as zero.
            0b11000.. => return Self::Zero,
            _ => {}
        }
        let coefficient = bits & ((1 << 113) - 1);
        if coefficient == 0 || coefficient > MAX_COEFFICIENT {
            return Self::Zero;
        }
        // One is 1E0, 10E-1, 100E-2 and so on: the coefficient is a power of ten, and the exponent
        // cancels it.
        let exponent = (bits >> 113) & 0x3FFF;
        let is_unit = EXPONENT_BIAS
            .checked_sub(exponent)
            .and_then(|digits| u32::try_from(digits).ok())
            .and_then(|digits| 10u128.checked_pow(digits))
            == Some(coefficient);
        if is_unit {
            Self::unit(negative)
        } else {
            Self::signed(negative)
        }
    }

    fn unit(negative: bool) -> Self {
        if negative { Self::MinusOne } else { Self::One }
    }

    fn signed(negative: bool) -> Self {
        if negative {
            Self::Negative
        } else {
            Self::Positive
        }
    }
}

/// The documents of a document sequence (a kind-1 section), one directly after the other.
#[derive(Clone, Debug)]
pub(super) struct Documents<'a> {
    rest: &'a [u8],
}

impl<'a> Documents<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }
}

impl<'a> Iterator for Documents<'a> {
    type Item = Document<'a>;

    fn next(&mut self) -> Option<Document<'a>> {
        let (document, rest) = Document::split(self.rest)?;
        self.rest = rest;
        Some(document)
    }
}

/// The length in the first four bytes; `None` if it is negative or cut off.
#[inline]
fn length_at(bytes: &[u8]) -> Option<usize> {
    usize::try_from(i32::from_le_bytes(*bytes.first_chunk()?)).ok()
}

fn split_cstring(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let (string, rest) = bytes.split_at_checked(end)?;
    Some((string, rest.get(1..)?))
}

/// Maximum number of fields read in one document. It limits the work that one hostile document can
/// cause.
const MAX_FIELDS: usize = 256;
/// Maximum number of elements read in one array. It limits the work that one hostile array can
/// cause.
pub(super) const MAX_ELEMENTS: usize = 64;
