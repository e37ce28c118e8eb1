//! Messages built byte by byte: documents with keys in any order, duplicate keys, and types that no
//! library writes.

use seawall_tests::raw::{
    Header,
    message::{CHECKSUM_PRESENT, HEADER_BYTES, OP_MSG, OP_QUERY, crc32c},
};

/// A BSON document as the bytes of its elements.
#[derive(Clone, Debug, Default)]
pub(super) struct Body(Vec<u8>);

impl Body {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Appends a field whose value bytes are written unchanged.
    #[must_use]
    pub(super) fn element(mut self, kind: u8, name: impl AsRef<[u8]>, value: &[u8]) -> Self {
        self.0.push(kind);
        self.0.extend(name.as_ref());
        self.0.push(0);
        self.0.extend(value);
        self
    }

    #[must_use]
    pub(super) fn int(self, name: impl AsRef<[u8]>, value: i32) -> Self {
        self.element(INT32, name, &value.to_le_bytes())
    }

    #[must_use]
    pub(super) fn text(self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.element(STRING, name, &string(value))
    }

    #[must_use]
    pub(super) fn document(self, name: impl AsRef<[u8]>, value: &Self) -> Self {
        self.element(DOCUMENT, name, &value.to_bytes())
    }

    /// Appends an array whose elements are named by the keys of `value`, not by numbers.
    #[must_use]
    pub(super) fn array(self, name: impl AsRef<[u8]>, value: &Self) -> Self {
        self.element(ARRAY, name, &value.to_bytes())
    }

    /// Appends the fields of another document.
    #[must_use]
    pub(super) fn and(mut self, other: &Self) -> Self {
        self.0.extend(&other.0);
        self
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let length = length_of(4 + self.0.len() + 1);
        [&length.to_le_bytes(), self.0.as_slice(), &[0]].concat()
    }
}

/// The BSON value of a string: its length, its bytes and a NUL.
pub(super) fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    let length = length_of(text.len() + 1);
    [&length.to_le_bytes(), text, &[0]].concat()
}

/// Encodes a section of kind 0: the body of a message.
pub(super) fn body_section(body: &[u8]) -> Vec<u8> {
    [&[0], body].concat()
}

/// Encodes a section of kind 1: a document sequence.
pub(super) fn sequence(identifier: impl AsRef<[u8]>, documents: &[u8]) -> Vec<u8> {
    let identifier = identifier.as_ref();
    let size = length_of(4 + identifier.len() + 1 + documents.len());
    [&[1], &size.to_le_bytes()[..], identifier, &[0], documents].concat()
}

/// An OP_MSG. If `flags` has the checksum bit, a correct checksum is appended.
pub(super) fn op_msg(request_id: i32, flags: u32, sections: &[u8]) -> Vec<u8> {
    let has_checksum = flags & CHECKSUM_PRESENT != 0;
    let checksum_bytes = if has_checksum { 4 } else { 0 };
    let content = [&flags.to_le_bytes(), sections].concat();
    let mut message = framed(request_id, OP_MSG, &content, checksum_bytes);
    if has_checksum {
        let checksum = crc32c(&message);
        message.extend(checksum.to_le_bytes());
    }
    message
}

/// The fields of an OP_QUERY except its document.
#[derive(Clone, Debug)]
pub(super) struct Query {
    pub(super) flags: u32,
    pub(super) namespace: Vec<u8>,
    pub(super) return_count: i32,
    /// Bytes after the document: the optional field selector. Usually empty.
    pub(super) tail: Vec<u8>,
}

impl Query {
    pub(super) fn admin() -> Self {
        Self {
            flags: 0,
            namespace: b"admin.$cmd".to_vec(),
            return_count: -1,
            tail: Vec::new(),
        }
    }

    pub(super) fn to_bytes(&self, request_id: i32, query: &[u8]) -> Vec<u8> {
        let skip_count = 0_i32;
        let content = [
            &self.flags.to_le_bytes(),
            self.namespace.as_slice(),
            &[0],
            &skip_count.to_le_bytes(),
            &self.return_count.to_le_bytes(),
            query,
            &self.tail,
        ];
        framed(request_id, OP_QUERY, &content.concat(), 0)
    }
}

/// A message whose last `bytes_to_come` bytes are missing. The length in the header includes the
/// missing bytes.
fn framed(request_id: i32, op_code: i32, content: &[u8], bytes_to_come: usize) -> Vec<u8> {
    let header = Header {
        message_length: length_of(HEADER_BYTES + content.len() + bytes_to_come),
        request_id,
        response_to: 0,
        op_code,
    };
    [header.to_bytes().as_slice(), content].concat()
}

fn length_of(length: usize) -> i32 {
    i32::try_from(length).unwrap()
}

pub(super) const STRING: u8 = 0x02;
pub(super) const DOCUMENT: u8 = 0x03;
pub(super) const ARRAY: u8 = 0x04;
pub(super) const INT32: u8 = 0x10;
