//! Messages that a test builds, valid or invalid, and received replies with their unparsed bytes.

use std::io::Cursor;

use bson::{Bson, Document};

/// The header of a message: its first 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole message in bytes, including this header.
    pub message_length: i32,
    /// The message's identifier, chosen by its sender.
    pub request_id: i32,
    /// The `request_id` of the message to which this message replies; 0 if this message is not a
    /// reply.
    pub response_to: i32,
    /// The opcode: 2013 (OP_MSG), 2012 (OP_COMPRESSED), 2004 (OP_QUERY) or 1 (OP_REPLY).
    pub op_code: i32,
}

impl Header {
    /// The header at the start of `bytes`; `None` if there are fewer than 16 bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes.chunks_exact(4).map_while(int32);
        Some(Self {
            message_length: fields.next()?,
            request_id: fields.next()?,
            response_to: fields.next()?,
            op_code: fields.next()?,
        })
    }

    /// The four fields in wire format.
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let fields = [
            self.message_length,
            self.request_id,
            self.response_to,
            self.op_code,
        ];
        for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }
}

/// A part of an [`OpMsg`].
#[derive(Clone, Debug)]
pub enum Section {
    /// Kind 0: the command or reply.
    Body(Document),
    /// Kind 1: a document sequence, which belongs to a field of the body.
    Sequence {
        /// The field's name, such as `documents`.
        identifier: String,
        /// The documents of the sequence, in order.
        documents: Vec<Document>,
    },
    /// Bytes that are sent unchanged, including the section's kind, to build invalid sections.
    Bytes(Vec<u8>),
}

impl Section {
    fn append_to(&self, message: &mut Vec<u8>) {
        match self {
            Self::Body(body) => {
                message.push(0);
                message.extend(encoded(body));
            }
            Self::Sequence {
                identifier,
                documents,
            } => {
                let mut content = identifier.clone().into_bytes();
                content.push(0);
                content.extend(documents.iter().flat_map(encoded));
                message.push(1);
                message.extend(length_of(content.len() + 4).to_le_bytes());
                message.extend(content);
            }
            Self::Bytes(bytes) => message.extend(bytes),
        }
    }
}

/// An OP_MSG to send.
#[derive(Clone, Debug)]
pub struct OpMsg {
    /// The message's identifier. With 0, [`RawClient`](super::RawClient) chooses one.
    pub request_id: i32,
    /// The `request_id` of the message to which this message replies; 0 in all messages from
    /// clients.
    pub response_to: i32,
    /// The flag bits except `checksumPresent`. [`OpMsg::has_checksum`] sets this bit.
    pub flags: u32,
    /// The sections, in the order in which they are sent.
    pub sections: Vec<Section>,
    /// True if [`OpMsg::to_bytes`] appends a CRC-32C checksum and sets the flag bit
    /// `checksumPresent`.
    pub has_checksum: bool,
}

impl OpMsg {
    /// A message whose only section is the body. The body must have a `$db`.
    pub fn new(body: Document) -> Self {
        Self {
            request_id: 0,
            response_to: 0,
            flags: 0,
            sections: vec![Section::Body(body)],
            has_checksum: false,
        }
    }

    /// Appends a section of kind 1, which is a document sequence.
    #[must_use]
    pub fn sequence(mut self, identifier: &str, documents: Vec<Document>) -> Self {
        self.sections.push(Section::Sequence {
            identifier: identifier.to_owned(),
            documents,
        });
        self
    }

    /// Sets these flag bits, in addition to those already set.
    #[must_use]
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// Appends a CRC-32C checksum to the message.
    #[must_use]
    pub fn checksum(mut self) -> Self {
        self.has_checksum = true;
        self
    }

    /// The message in wire format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let flag = if self.has_checksum {
            CHECKSUM_PRESENT
        } else {
            0
        };
        let mut content = (self.flags | flag).to_le_bytes().to_vec();
        for section in &self.sections {
            section.append_to(&mut content);
        }
        let checksum_bytes = if self.has_checksum { 4 } else { 0 };
        let header = Header {
            message_length: length_of(HEADER_BYTES + content.len() + checksum_bytes),
            request_id: self.request_id,
            response_to: self.response_to,
            op_code: OP_MSG,
        };
        let mut message = [header.to_bytes().as_slice(), &content].concat();
        if self.has_checksum {
            let checksum = crc32c(&message);
            message.extend(checksum.to_le_bytes());
        }
        message
    }
}

/// A legacy OP_QUERY to send. Servers since 5.1 accept it only for handshakes.
#[derive(Clone, Debug)]
pub struct OpQuery {
    /// The message's identifier. With 0, [`RawClient`](super::RawClient) chooses one.
    pub request_id: i32,
    /// The flag bits. Some drivers set 4, which allows a secondary to reply.
    pub flags: u32,
    /// The full collection name; `admin.$cmd` for commands.
    pub collection: String,
    /// The number of documents to skip.
    pub skip_count: i32,
    /// `numberToReturn`; -1 or 1 for commands.
    pub return_count: i32,
    /// The command, without `$db`.
    pub query: Document,
}

impl OpQuery {
    /// A command on the database `admin`.
    pub fn new(query: Document) -> Self {
        Self {
            request_id: 0,
            flags: 0,
            collection: "admin.$cmd".to_owned(),
            skip_count: 0,
            return_count: -1,
            query,
        }
    }

    /// The message in wire format.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut content = self.flags.to_le_bytes().to_vec();
        content.extend(self.collection.as_bytes());
        content.push(0);
        content.extend(self.skip_count.to_le_bytes());
        content.extend(self.return_count.to_le_bytes());
        content.extend(encoded(&self.query));
        let header = Header {
            message_length: length_of(HEADER_BYTES + content.len()),
            request_id: self.request_id,
            response_to: 0,
            op_code: OP_QUERY,
        };
        [header.to_bytes().as_slice(), &content].concat()
    }
}

/// A received OP_MSG or OP_REPLY.
#[derive(Clone, Debug)]
pub struct RawReply {
    /// The header of the reply.
    pub header: Header,
    /// The flag bits of an OP_MSG, or the response flags of an OP_REPLY.
    pub flags: u32,
    /// The section of kind 0, or the first document of an OP_REPLY.
    pub body: Document,
    /// All bytes of the message.
    pub raw: Vec<u8>,
}

impl RawReply {
    /// Parses a whole message. `None` if the message is malformed, or is neither OP_MSG nor
    /// OP_REPLY.
    ///
    /// Parses only the first section, in which servers send the body. A test that expects document
    /// sequences must read `raw`.
    pub fn parse(raw: Vec<u8>) -> Option<Self> {
        let header = Header::parse(&raw)?;
        let (_, content) = raw.split_at_checked(HEADER_BYTES)?;
        let (flags, rest) = content.split_at_checked(4)?;
        let document = match header.op_code {
            OP_MSG => rest.strip_prefix(&[0])?,
            // Skips the cursor's id, `startingFrom` and the number of documents.
            OP_REPLY => rest.split_at_checked(8 + 4 + 4)?.1,
            _ => return None,
        };
        Some(Self {
            header,
            flags: u32::from_le_bytes(flags.try_into().ok()?),
            body: Document::from_reader(Cursor::new(document)).ok()?,
            raw,
        })
    }

    /// True if `ok` is 1 in the reply. Some writes of the command may still have failed.
    pub fn is_ok(&self) -> bool {
        match self.body.get("ok") {
            Some(Bson::Double(ok)) => *ok == 1.0,
            Some(Bson::Int32(ok)) => *ok == 1,
            Some(Bson::Int64(ok)) => *ok == 1,
            Some(Bson::Boolean(ok)) => *ok,
            Some(_) | None => false,
        }
    }

    /// The error code at the top level of the reply; `None` if there is no such code. The codes of
    /// failed writes in `writeErrors` are not at the top level, so they are ignored.
    pub fn code(&self) -> Option<i32> {
        self.body.get_i32("code").ok()
    }

    /// The `errorLabels` of the reply. Drivers use them to decide whether to retry. Empty if the
    /// reply has no labels.
    pub fn error_labels(&self) -> Vec<&str> {
        let labels = self
            .body
            .get_array("errorLabels")
            .map(Vec::as_slice)
            .unwrap_or_default();
        labels.iter().filter_map(Bson::as_str).collect()
    }

    /// The id of the cursor that the reply opens or continues; 0 if the cursor is exhausted. `None`
    /// if the reply has no cursor.
    pub fn cursor_id(&self) -> Option<i64> {
        self.body.get_document("cursor").ok()?.get_i64("id").ok()
    }

    /// True if the server will send another reply without another command.
    pub fn has_more_to_come(&self) -> bool {
        self.header.op_code == OP_MSG && self.flags & MORE_TO_COME != 0
    }

    /// True if the checksum is correct; `None` if there is no checksum.
    pub fn checksum_fits(&self) -> Option<bool> {
        if self.header.op_code != OP_MSG || self.flags & CHECKSUM_PRESENT == 0 {
            return None;
        }
        let (message, checksum) = self.raw.split_at_checked(self.raw.len().checked_sub(4)?)?;
        Some(crc32c(message).to_le_bytes() == checksum)
    }
}

/// The complete messages at the start of `stream`. An incomplete message at the end is ignored.
pub fn split_messages(stream: &[u8]) -> Vec<&[u8]> {
    let mut messages = Vec::new();
    let mut rest = stream;
    while let Some(header) = Header::parse(rest) {
        let length = usize::try_from(header.message_length).unwrap_or_default();
        let Some((message, after)) = rest.split_at_checked(length) else {
            break;
        };
        // The length includes the header. With a length of 0, this loop would never end.
        if message.len() < HEADER_BYTES {
            break;
        }
        messages.push(message);
        rest = after;
    }
    messages
}

/// The CRC-32C (Castagnoli) of `bytes`, computed without a lookup table.
pub fn crc32c(bytes: &[u8]) -> u32 {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let polynomial = if crc & 1 == 1 { CASTAGNOLI_REVERSED } else { 0 };
            (crc >> 1) ^ polynomial
        })
    });
    !crc
}

fn int32(bytes: &[u8]) -> Option<i32> {
    bytes.try_into().ok().map(i32::from_le_bytes)
}

fn encoded(document: &Document) -> Vec<u8> {
    document
        .to_vec()
        .expect("a document that a test has built can be encoded")
}

fn length_of(length: usize) -> i32 {
    i32::try_from(length).expect("a message that a test has built fits into memory")
}

/// The opcode of all messages except legacy handshakes and compressed messages.
pub const OP_MSG: i32 = 2013;
/// The opcode of a client's message in a legacy handshake.
pub const OP_QUERY: i32 = 2004;
/// The opcode of a reply in a legacy handshake.
pub const OP_REPLY: i32 = 1;
/// Length of a header in bytes.
pub const HEADER_BYTES: usize = 16;
/// Flag bit 0 of an OP_MSG: a checksum follows the sections.
pub const CHECKSUM_PRESENT: u32 = 1;
/// Flag bit 1. From a client: the client expects no reply. From a server: another reply follows.
pub const MORE_TO_COME: u32 = 2;
/// Flag bit 16: the client accepts several replies to this message.
pub const EXHAUST_ALLOWED: u32 = 1 << 16;

const CASTAGNOLI_REVERSED: u32 = 0x82F6_3B78;

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    #[test]
    fn crc32c_of_the_published_test_input_has_the_published_value() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn a_parsed_message_equals_the_built_message() {
        let message = OpMsg {
            request_id: 7,
            response_to: 5,
            ..OpMsg::new(doc! { "ok": 1.0 })
                .flags(MORE_TO_COME)
                .checksum()
        };
        let reply = RawReply::parse(message.to_bytes()).unwrap();
        assert_eq!((reply.header.request_id, reply.header.response_to), (7, 5));
        assert_eq!(reply.body, doc! { "ok": 1.0 });
        assert!(reply.is_ok() && reply.has_more_to_come());
        assert_eq!(reply.checksum_fits(), Some(true));
    }

    #[test]
    fn the_size_of_a_sequence_includes_its_size_field() {
        let message = OpMsg::new(doc! {})
            .sequence("x", vec![doc! {}, doc! {}])
            .to_bytes();
        let (_, section) = message.split_at(HEADER_BYTES + 4 + 1 + 5);
        assert_eq!(section, b"\x01\x10\0\0\0x\0\x05\0\0\0\0\x05\0\0\0\0");
    }

    #[test]
    fn a_byte_stream_is_split_into_its_complete_messages() {
        let one = OpMsg::new(doc! { "ping": 1 }).to_bytes();
        let two = OpQuery::new(doc! { "isMaster": 1 }).to_bytes();
        let (cut, _) = one.split_at(20);
        let stream = [one.as_slice(), &two, cut].concat();
        assert_eq!(split_messages(&stream), [one.as_slice(), &two]);
        assert!(split_messages(&[0; 64]).is_empty());
    }
}
