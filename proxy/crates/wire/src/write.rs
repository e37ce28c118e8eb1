//! Writes documents as [`RawElement`] reads them: element by element, without decoding values.

use super::bson::{RawElement, head_of};

impl<'a> RawElement<'a> {
    /// Creates an element. `value` must be a value of the type `kind`.
    pub fn new(kind: u8, name: &'a [u8], value: &'a [u8]) -> Self {
        Self {
            kind,
            name,
            head: head_of(name),
            value,
        }
    }

    /// Appends the element to `output`.
    pub fn write(&self, output: &mut Vec<u8>) {
        self.write_name(output);
        output.extend_from_slice(self.value);
    }

    /// Appends the type and the name of the element. The caller writes the value.
    pub fn write_name(&self, output: &mut Vec<u8>) {
        output.push(self.kind);
        output.extend_from_slice(self.name);
        output.push(0);
    }
}

/// The value of a string: its length, `bytes` and a NUL.
pub fn string_value(bytes: &[u8]) -> Vec<u8> {
    [&length(bytes.len() + 1)[..], bytes, &[0]].concat()
}

/// Appends the length field of a document, or of another part that begins with its length. Returns
/// the offset of the field, at which [`set_length`] later writes the length.
pub fn reserve_length(output: &mut Vec<u8>) -> usize {
    let start = output.len();
    output.extend_from_slice(&[0; 4]);
    start
}

/// Sets the length field at the offset `start` to the number of bytes from `start` to the end of
/// `output`.
pub fn set_length(output: &mut [u8], start: usize) {
    let part = output.get_mut(start..).unwrap_or_default();
    let length = length(part.len());
    if let Some(field) = part.first_chunk_mut() {
        *field = length;
    }
}

/// Encodes a length in bytes. Messages and documents are much shorter than `i32::MAX`, so their
/// lengths fit in an `i32`.
fn length(bytes: usize) -> [u8; 4] {
    i32::try_from(bytes).unwrap_or(i32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::kind;

    #[test]
    fn a_document_that_is_written_element_by_element_equals_the_document_of_the_bson_crate() {
        let mut output = b"front".to_vec();
        let start = reserve_length(&mut output);
        let value = 7_i32.to_le_bytes();
        let number = RawElement::new(kind::INT32, b"number", &value);
        number.write(&mut output);
        RawElement::new(kind::STRING, b"text", &string_value(b"abc")).write(&mut output);
        RawElement::new(kind::DOCUMENT, b"inner", &[]).write_name(&mut output);
        let inner = reserve_length(&mut output);
        output.push(0);
        set_length(&mut output, inner);
        output.push(0);
        set_length(&mut output, start);
        let expected = doc! {"number": 7, "text": "abc", "inner": {}};
        let expected = expected.to_vec().unwrap();
        assert_eq!(output, [&b"front"[..], &expected].concat());
        let first = RawElement::all(&expected).next().unwrap().unwrap();
        assert_eq!(first.head, number.head);
    }
}
