//! A skipping reader of BSON: it walks the fields of one document and skips every value by its
//! length.
//!
//! The reader copies nothing. It checks only the bytes that it needs. Invalid bytes (a length past
//! the end, an unknown type, a name without its NUL) end the walk of that document, as if the
//! document had no more fields. Only the server validates commands.

use crate::command_table::head_of;

/// One field of a document, or one element of an array. The field name of an element is its index;
/// it is not used.
#[derive(Copy, Clone, Debug)]
pub(super) struct Field<'a> {
    pub(super) name: &'a [u8],
    /// The first eight bytes of the name, see [`head_of`].
    pub(super) head: u64,
    pub(super) value: Value<'a>,
}

/// A value, as precisely as the rules of shapes distinguish values. Every payload is eight bytes or
/// a slice, so a value is copied in whole words. Narrower payloads would be copied in pieces, which
/// slows the reads that follow.
#[derive(Copy, Clone, Debug)]
pub(super) enum Value<'a> {
    Document(Document<'a>),
    Array(Array<'a>),
    String(&'a [u8]),
    Regex(Regex<'a>),
    /// Null, and the deprecated type undefined: the rules treat them alike.
    Null,
    True,
    False,
    /// An int32 or an int64: the rules treat them alike.
    Integer(i64),
    Double(f64),
    /// A Decimal128 in the wire's byte order.
    Decimal(&'a [u8; 16]),
    /// Any type whose content no rule uses.
    Other,
}

/// The classes of numbers that the rules of shapes distinguish.
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
    /// True if the field has this name. The caller must have compared the first eight bytes.
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

    /// The value as a flag, read as the server reads it: false for false, null, undefined and zero,
    /// otherwise true.
    pub(super) fn truth(&self) -> bool {
        match *self {
            Self::Null | Self::False => false,
            Self::True => true,
            _ => self.number() != Some(Number::Zero),
        }
    }
}

impl<'a> Value<'a> {
    /// The value of a boolean.
    pub(super) fn boolean(value: bool) -> Self {
        if value { Self::True } else { Self::False }
    }

    /// Splits a value of type `kind` off the front of `bytes`.
    #[inline(always)]
    fn split(kind: u8, bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let skip = |length: usize| Some((Self::Other, bytes.get(length..)?));
        match kind {
            0x02 => split_string(bytes).map(|(string, rest)| (Self::String(string), rest)),
            0x03 => Document::split(bytes).map(|(document, rest)| (Self::Document(document), rest)),
            0x04 => Document::split(bytes)
                .map(|(Document { fields }, rest)| (Self::Array(Array { elements: fields }), rest)),
            0x07 => skip(12),
            0x08 => bytes
                .split_first()
                .map(|(&flag, rest)| (Self::boolean(flag != 0), rest)),
            0x10 => bytes
                .split_first_chunk()
                .map(|(integer, rest)| (Self::Integer(i32::from_le_bytes(*integer).into()), rest)),
            0x12 => bytes
                .split_first_chunk()
                .map(|(integer, rest)| (Self::Integer(i64::from_le_bytes(*integer)), rest)),
            0x01 => bytes
                .split_first_chunk()
                .map(|(double, rest)| (Self::Double(f64::from_le_bytes(*double)), rest)),
            0x13 => bytes
                .split_first_chunk()
                .map(|(decimal, rest)| (Self::Decimal(decimal), rest)),
            0x05 => skip(length_at(bytes)?.checked_add(5)?),
            0x06 | 0x0A => Some((Self::Null, bytes)),
            0x09 | 0x11 => skip(8),
            0x0B => {
                let (_, options) = split_cstring(bytes)?;
                let (_, rest) = split_cstring(options)?;
                Some((Self::Regex(Regex { bytes }), rest))
            }
            0x0C => split_string(bytes).and_then(|(_, rest)| Some((Self::Other, rest.get(12..)?))),
            0x0D | 0x0E => split_string(bytes).map(|(_, rest)| (Self::Other, rest)),
            0x0F => length_at(bytes)
                .filter(|&length| length >= 4)
                .and_then(skip),
            0x7F | 0xFF => Some((Self::Other, bytes)),
            _ => None,
        }
    }
}

/// A document whose length is valid.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct Document<'a> {
    /// The bytes of the fields, without the document's length and final NUL.
    fields: &'a [u8],
}

impl<'a> Document<'a> {
    /// The document at the front of `bytes`; an empty document if there is none.
    pub(super) fn at(bytes: &'a [u8]) -> Self {
        Self::split(bytes)
            .map(|(document, _)| document)
            .unwrap_or_default()
    }

    /// The document at the front of `bytes`, and the bytes after it.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (document, rest) = bytes.split_at_checked(length_at(bytes)?)?;
        let fields = document.get(4..document.len().checked_sub(1)?)?;
        Some((Self { fields }, rest))
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

    /// The first field.
    pub(super) fn first(self) -> Option<Field<'a>> {
        self.fields().next()
    }

    /// The value of the field `name`, if it is among the first [`MAX_FIELDS`] fields.
    pub(super) fn value_of(self, name: &[u8]) -> Option<Value<'a>> {
        self.fields()
            .find(|field| field.name == name)
            .map(|field| field.value)
    }

    /// True for an operator document (rule F4): its first name begins with `$`. A reference to
    /// another document (`$ref` with `$id`) is not one.
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

    /// The first element.
    pub(super) fn first(self) -> Option<Value<'a>> {
        self.elements().next().map(|element| element.value)
    }
}

/// Iterates over the fields of one document. It ends at the end of the document, at the first
/// invalid field, or at the limit.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Fields<'a> {
    /// True if the document has more fields than the limit. Only valid at the end of a walk.
    pub(super) fn is_cut(&self) -> bool {
        let mut rest = Self { left: 1, ..*self };
        self.left == 0 && rest.next().is_some()
    }

    /// The same as `next`, but inlined: the field stays in registers. Use it only in loops where
    /// the speed is worth the larger code.
    #[inline(always)]
    pub(super) fn advance(&mut self) -> Option<Field<'a>> {
        self.left = self.left.checked_sub(1)?;
        let (&kind, rest) = self.rest.split_first()?;
        self.rest = &[];
        let (name, head, rest) = split_name(rest)?;
        let (value, rest) = Value::split(kind, rest)?;
        self.rest = rest;
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

    /// A Decimal128 in binary integer encoding (IEEE 754-2008): sign, 14 bits of exponent, 113 bits
    /// of coefficient.
    fn of_decimal(bits: u128) -> Self {
        const NAN: u128 = 0b11111;
        const INFINITY: u128 = 0b11110;
        const EXPONENT_BIAS: u128 = 6176;
        const MAX_COEFFICIENT: u128 = 10u128.pow(34) - 1;
        let negative = bits >> 127 == 1;
        match (bits >> 122) & 0b11111 {
            NAN => return Self::Nan,
            INFINITY => return Self::signed(negative),
            // The long form of the coefficient encodes only values above the maximum, which count
            // as zero.
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

/// A length field, or `None` if it is negative or cut off.
#[inline]
fn length_at(bytes: &[u8]) -> Option<usize> {
    usize::try_from(i32::from_le_bytes(*bytes.first_chunk()?)).ok()
}

fn split_cstring(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let (string, rest) = bytes.split_at_checked(end)?;
    Some((string, rest.get(1..)?))
}

/// Splits off a field's name, and returns its first eight bytes too. The search for the NUL takes
/// much of the time of a walk, so it checks eight bytes at once.
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

/// The length of a name of eight or more bytes.
#[inline(never)]
fn long_name_bytes(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&byte| byte == 0)
}

/// The length and the first bytes of a name when fewer than eight bytes are left.
#[inline(never)]
fn short_name(bytes: &[u8]) -> Option<(usize, u64)> {
    let length = bytes.iter().position(|&byte| byte == 0)?;
    Some((length, head_of(bytes.get(..length)?)))
}

/// A mask with the high bit of the first zero byte set, and perhaps bits of later bytes. The mask
/// is 0 if there is no zero byte.
#[inline]
const fn zero_bytes(word: u64) -> u64 {
    const LOW_BITS: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGH_BITS: u64 = u64::from_le_bytes([0x80; 8]);
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// Splits off a string value, without its length and its final NUL. The length in the bytes
/// includes the NUL.
fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = length_at(bytes)?;
    let (string, rest) = bytes.get(4..)?.split_at_checked(length)?;
    Some((string.get(..length.checked_sub(1)?)?, rest))
}

/// Maximum number of fields read in one document. It limits the work that one hostile document can
/// cause.
const MAX_FIELDS: usize = 256;
/// Maximum number of elements read in one array. It limits the work that one hostile array can
/// cause.
pub(super) const MAX_ELEMENTS: usize = 64;
