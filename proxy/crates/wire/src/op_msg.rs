//! Parses `OP_MSG`: its flags, sections and checksum.

use super::{
    bson::{BsonError, document_at},
    header::HEADER_BYTES,
};

/// Flag bit `checksumPresent`: the last four bytes are a CRC-32C of all bytes before them.
pub const CHECKSUM_PRESENT: u32 = 1;
/// Flag bit `moreToCome`. In a request, the sender wants no reply. In a reply, another reply
/// follows.
pub const MORE_TO_COME: u32 = 1 << 1;
/// Flag bit `exhaustAllowed`: the sender accepts several replies.
pub const EXHAUST_ALLOWED: u32 = 1 << 16;

/// The required flag bits: bits 0 to 15. A receiver must refuse a message that has an unknown bit
/// among them, and may ignore unknown bits from 16 to 31.
const REQUIRED_FLAGS: u32 = 0xffff;
const KNOWN_REQUIRED_FLAGS: u32 = CHECKSUM_PRESENT | MORE_TO_COME;

/// Maximum number of document sequences in one message. A server (mongod 6.0.5) closes the
/// connection if a message has three.
pub const MAX_SEQUENCES: usize = 2;

/// A section of kind 1: an identifier, and documents that follow one another without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// The name of the command's field that these documents belong to.
    pub identifier: &'a [u8],
    /// The bytes of the documents, which have not been checked yet.
    pub documents: &'a [u8],
}

/// A parsed message. It borrows the message's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpMsg<'a> {
    /// The flag bits, `flagBits`.
    pub flags: u32,
    /// The document of the section of kind 0.
    pub body: &'a [u8],
    /// Offset of `body` from the message's first byte.
    pub body_offset: usize,
    sequences: [Option<Sequence<'a>>; MAX_SEQUENCES],
}

/// The reason why a message is invalid. Depending on the reason, a server (mongod 6.0.5) replies
/// with an error or closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message has no section.
    #[error("OP_MSG without sections")]
    Empty,
    /// An unknown required flag bit is set.
    #[error("unknown required flag bits {0:#x}")]
    UnknownRequiredFlags(u32),
    /// The checksum does not match the bytes.
    #[error("checksum mismatch")]
    ChecksumMismatch,
    /// The message has more document sequences than a server accepts.
    #[error("more than {MAX_SEQUENCES} document sequences")]
    TooManySequences,
    /// The message has two sections of kind 0.
    #[error("Multiple body sections in message")]
    TwoBodies,
    /// The message has no section of kind 0.
    #[error("OP_MSG messages must have a body")]
    NoBody,
    /// The message has a section of kind 2 (security token).
    #[error("Unsupported Security Token provided")]
    SecurityToken,
    /// A section has an unknown kind.
    #[error("Unknown section kind {0}")]
    UnknownSection(u8),
    /// Two sequences have the same identifier.
    #[error("Duplicate document sequence")]
    DuplicateSequence,
    /// The declared size of a sequence exceeds the rest of the message, or is too small for the
    /// sequence's identifier. Also returned if the message ends within the size field.
    #[error("document sequence size does not fit the message")]
    SequenceSize,
    /// The body is not a BSON document.
    #[error("invalid BSON in the body: {0}")]
    Body(BsonError),
}

impl MessageError {
    /// The code of a server's error reply; `None` if a server closes the connection without a
    /// reply.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Empty
            | Self::UnknownRequiredFlags(_)
            | Self::ChecksumMismatch
            | Self::TooManySequences => None,
            Self::TwoBodies => Some(40430),
            Self::NoBody => Some(40587),
            Self::SecurityToken => Some(13),
            Self::UnknownSection(_) => Some(40432),
            Self::DuplicateSequence => Some(40431),
            Self::SequenceSize => Some(15),
            Self::Body(_) => Some(22),
        }
    }

    /// The value that the label `reason` has for this error in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Empty => "empty_message",
            Self::UnknownRequiredFlags(_) => "unknown_flags",
            Self::ChecksumMismatch => "checksum",
            Self::TooManySequences => "too_many_sequences",
            Self::TwoBodies => "two_bodies",
            Self::NoBody => "no_body",
            Self::SecurityToken | Self::UnknownSection(_) => "unknown_section",
            Self::DuplicateSequence => "duplicate_sequence",
            Self::SequenceSize => "sequence_size",
            Self::Body(_) => "invalid_bson",
        }
    }
}

impl<'a> OpMsg<'a> {
    /// Parses a whole message, including its header. Sections may have any order.
    ///
    /// # Errors
    /// See [`MessageError`]. The elements of the body are not checked here.
    pub fn parse(message: &'a [u8]) -> Result<Self, MessageError> {
        let after_header = message.get(HEADER_BYTES..).ok_or(MessageError::Empty)?;
        let head = after_header.first_chunk::<4>().ok_or(MessageError::Empty)?;
        let flags = u32::from_le_bytes(*head);
        let unknown = flags & REQUIRED_FLAGS & !KNOWN_REQUIRED_FLAGS;
        if unknown != 0 {
            return Err(MessageError::UnknownRequiredFlags(unknown));
        }
        let mut end = message.len();
        if flags & CHECKSUM_PRESENT != 0 {
            end = verify_checksum(message)?;
        }
        let mut parsed = Self {
            flags,
            body: &[],
            body_offset: 0,
            sequences: [None; MAX_SEQUENCES],
        };
        let mut position = HEADER_BYTES + 4;
        if position >= end {
            return Err(MessageError::Empty);
        }
        while position < end {
            position = parsed.section(message, position, end)?;
        }
        if parsed.body_offset == 0 {
            Err(MessageError::NoBody)
        } else {
            Ok(parsed)
        }
    }

    /// Parses the first bytes of a message whose end has not arrived yet. The body must be the
    /// first section and be complete. The returned sequences contain only documents that have
    /// arrived completely.
    ///
    /// # Errors
    /// If the first section is not a complete body, if two sequences have the same identifier, or
    /// if there are too many sequences. Also if the message has a checksum or an unknown required
    /// flag. The caller must then read the whole message.
    pub fn parse_head(head: &'a [u8]) -> Result<Self, MessageError> {
        let flags = head.get(HEADER_BYTES..).and_then(|r| r.first_chunk::<4>());
        let flags = flags.map(|bytes| u32::from_le_bytes(*bytes));
        let flags = flags.filter(|flags| flags & REQUIRED_FLAGS & !MORE_TO_COME == 0);
        let mut parsed = Self {
            flags: flags.ok_or(MessageError::Empty)?,
            body: &[],
            body_offset: 0,
            sequences: [None; MAX_SEQUENCES],
        };
        let mut position = parsed.section(head, HEADER_BYTES + 4, head.len())?;
        if parsed.body_offset == 0 {
            return Err(MessageError::Empty);
        }
        while let Some((sequence, size)) = head.get(position..).and_then(parse_sequence_head) {
            parsed.add(sequence)?;
            position += size;
        }
        Ok(parsed)
    }

    fn section(
        &mut self,
        message: &'a [u8],
        position: usize,
        end: usize,
    ) -> Result<usize, MessageError> {
        let rest = message
            .get(position..end)
            .ok_or(MessageError::SequenceSize)?;
        let (&kind, rest) = rest.split_first().ok_or(MessageError::Empty)?;
        match kind {
            0 if self.body_offset != 0 => Err(MessageError::TwoBodies),
            0 => {
                self.body = document_at(rest).map_err(MessageError::Body)?;
                self.body_offset = position + 1;
                Ok(position + 1 + self.body.len())
            }
            1 => {
                let (sequence, size) = parse_sequence(rest)?;
                self.add(sequence)?;
                Ok(position + 1 + size)
            }
            2 => Err(MessageError::SecurityToken),
            other => Err(MessageError::UnknownSection(other)),
        }
    }

    fn add(&mut self, sequence: Sequence<'a>) -> Result<(), MessageError> {
        for slot in &mut self.sequences {
            match slot {
                Some(earlier) if earlier.identifier == sequence.identifier => {
                    return Err(MessageError::DuplicateSequence);
                }
                Some(_) => {}
                None => {
                    *slot = Some(sequence);
                    return Ok(());
                }
            }
        }
        Err(MessageError::TooManySequences)
    }

    /// The document sequences, in the order of the message.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence<'a>> + '_ {
        self.sequences.iter().filter_map(|s| *s)
    }

    /// True if the sender wants no reply (in a request) or sends another reply (in a reply).
    pub fn more_to_come(&self) -> bool {
        self.flags & MORE_TO_COME != 0
    }

    /// True if the message ended with a checksum.
    pub fn has_checksum(&self) -> bool {
        self.flags & CHECKSUM_PRESENT != 0
    }
}

/// Parses a section whose end may be missing. Returns the sequence with only its complete
/// documents, and the number of bytes in `section` that belong to the section. Returns `None` if
/// the section is not a sequence, or if the identifier is incomplete.
fn parse_sequence_head(section: &[u8]) -> Option<(Sequence<'_>, usize)> {
    let (&kind, rest) = section.split_first()?;
    if let Ok((sequence, size)) = parse_sequence(rest) {
        return (kind == 1).then_some((sequence, 1 + size));
    }
    let inside = rest.get(4..)?;
    let nul = inside.iter().position(|&b| b == 0)?;
    let (identifier, documents) = inside.split_at_checked(nul)?;
    let documents = documents.get(1..)?;
    let mut complete = 0;
    while let Some(Ok(document)) = documents.get(complete..).map(document_at) {
        complete += document.len();
    }
    let sequence = Sequence {
        identifier,
        documents: documents.get(..complete)?,
    };
    (kind == 1).then_some((sequence, section.len()))
}

fn parse_sequence(rest: &[u8]) -> Result<(Sequence<'_>, usize), MessageError> {
    let head = rest.first_chunk::<4>().ok_or(MessageError::SequenceSize)?;
    let size =
        usize::try_from(i32::from_le_bytes(*head)).map_err(|_| MessageError::SequenceSize)?;
    let inside = rest.get(4..size).ok_or(MessageError::SequenceSize)?;
    let nul = inside
        .iter()
        .position(|&b| b == 0)
        .ok_or(MessageError::SequenceSize)?;
    let (identifier, documents) = inside
        .split_at_checked(nul)
        .ok_or(MessageError::SequenceSize)?;
    let documents = documents.get(1..).ok_or(MessageError::SequenceSize)?;
    Ok((
        Sequence {
            identifier,
            documents,
        },
        size,
    ))
}

/// Verifies the checksum in the last four bytes. Returns the offset of the checksum.
fn verify_checksum(message: &[u8]) -> Result<usize, MessageError> {
    let (covered, sent) = message
        .split_last_chunk::<4>()
        .ok_or(MessageError::ChecksumMismatch)?;
    if checksum([covered]) == u32::from_le_bytes(*sent) {
        Ok(covered.len())
    } else {
        Err(MessageError::ChecksumMismatch)
    }
}

/// Computes the CRC-32C (Castagnoli) of the concatenated pieces.
pub fn checksum<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    pieces.into_iter().fold(0, crc32c::crc32c_append)
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::{Header, OpCode};

    fn message(flags: u32, sections: &[u8]) -> Vec<u8> {
        let header = Header {
            message_length: 20 + sections.len(),
            request_id: 1,
            response_to: 0,
            op_code: OpCode::Msg,
        };
        [&header.to_bytes()[..], &flags.to_le_bytes(), sections].concat()
    }

    fn body(document: &bson::Document) -> Vec<u8> {
        [&[0][..], &document.to_vec().unwrap()].concat()
    }

    fn sequence(identifier: &str, documents: &[u8]) -> Vec<u8> {
        let size = i32::try_from(4 + identifier.len() + 1 + documents.len()).unwrap();
        [
            &[1][..],
            &size.to_le_bytes(),
            identifier.as_bytes(),
            &[0],
            documents,
        ]
        .concat()
    }

    #[test]
    fn sections_of_a_message_are_found_in_any_order() {
        let ping = body(&doc! {"ping": 1, "$db": "admin"});
        for sections in [
            [ping.clone(), sequence("a", b"xx"), sequence("b", b"")].concat(),
            [sequence("a", b"xx"), ping.clone(), sequence("b", b"")].concat(),
        ] {
            let message = message(0, &sections);
            let parsed = OpMsg::parse(&message).unwrap();
            assert_eq!(parsed.body, &ping[1..]);
            assert_eq!(
                &message[parsed.body_offset..][..parsed.body.len()],
                parsed.body
            );
            let names: Vec<_> = parsed.sequences().map(|s| s.identifier).collect();
            assert_eq!(names, [b"a", b"b"]);
        }
    }

    #[test]
    fn each_message_error_has_the_same_code_as_on_a_server() {
        let ping = body(&doc! {"ping": 1});
        let mut bad_length = ping.clone();
        bad_length[1] = 0xff;
        let mut oversize = sequence("a", b"xx");
        oversize[1] = 99;
        let cases: [(u32, Vec<u8>, MessageError, Option<i32>); 11] = [
            (0, vec![], MessageError::Empty, None),
            (4, ping.clone(), MessageError::UnknownRequiredFlags(4), None),
            (
                CHECKSUM_PRESENT,
                ping.clone(),
                MessageError::ChecksumMismatch,
                None,
            ),
            (
                0,
                [sequence("a", b""), sequence("b", b""), sequence("c", b"")].concat(),
                MessageError::TooManySequences,
                None,
            ),
            (
                0,
                [ping.clone(), ping.clone()].concat(),
                MessageError::TwoBodies,
                Some(40430),
            ),
            (0, sequence("a", b""), MessageError::NoBody, Some(40587)),
            (
                0,
                [ping.clone(), vec![2]].concat(),
                MessageError::SecurityToken,
                Some(13),
            ),
            (
                0,
                [ping.clone(), vec![9]].concat(),
                MessageError::UnknownSection(9),
                Some(40432),
            ),
            (
                0,
                [sequence("a", b""), sequence("a", b"")].concat(),
                MessageError::DuplicateSequence,
                Some(40431),
            ),
            (
                0,
                [ping, oversize].concat(),
                MessageError::SequenceSize,
                Some(15),
            ),
            (
                0,
                bad_length,
                MessageError::Body(BsonError::BadLength),
                Some(22),
            ),
        ];
        for (flags, sections, error, code) in cases {
            let message = message(flags, &sections);
            assert_eq!(OpMsg::parse(&message), Err(error));
            assert_eq!(error.code(), code, "{error}");
        }
    }

    #[test]
    fn parse_head_of_an_incomplete_message_returns_only_its_complete_documents() {
        let one = doc! {"_id": 1}.to_vec().unwrap();
        let insert = body(&doc! {"insert": "c", "$db": "d"});
        let documents = sequence("documents", &one.repeat(3));
        let whole = message(0, &[insert.clone(), documents.clone()].concat());
        for cut in 0..=whole.len() {
            let parsed = OpMsg::parse_head(&whole[..cut]);
            let documents_at = whole.len() - 3 * one.len();
            if cut < 20 + insert.len() {
                assert!(parsed.is_err(), "{cut}");
                continue;
            }
            let parsed = parsed.unwrap();
            assert_eq!(parsed.body, &insert[1..]);
            let found: Vec<_> = parsed.sequences().map(|s| s.documents.len()).collect();
            match cut.checked_sub(documents_at) {
                Some(there) => assert_eq!(found, [there / one.len() * one.len()], "{cut}"),
                None => assert!(found.is_empty(), "{cut}"),
            }
        }
        let unusual = [
            message(CHECKSUM_PRESENT, &insert),
            message(0, &[documents, insert].concat()),
        ];
        for head in unusual {
            assert!(OpMsg::parse_head(&head).is_err());
        }
    }

    #[test]
    fn unknown_optional_flags_of_a_message_are_ignored() {
        let message = message(1 << 30 | EXHAUST_ALLOWED, &body(&doc! {"ping": 1}));
        assert!(OpMsg::parse(&message).is_ok());
    }

    #[test]
    fn a_checksum_is_verified_and_not_parsed_as_a_section() {
        let mut message = message(CHECKSUM_PRESENT, &body(&doc! {"ping": 1}));
        let length = i32::try_from(message.len() + 4).unwrap();
        message[..4].copy_from_slice(&length.to_le_bytes());
        message.extend(checksum([&message[..]]).to_le_bytes());
        assert!(OpMsg::parse(&message).unwrap().has_checksum());
    }

    #[test]
    fn the_checksum_is_crc_32c() {
        // The expected value for 32 zero bytes is in RFC 3720, appendix B.4.
        assert_eq!(checksum([&[0u8; 16][..], &[0u8; 16]]), 0x8a91_36aa);
    }

    #[test]
    fn each_message_error_has_its_label_in_metrics() {
        for (error, reason) in [
            (MessageError::Empty, "empty_message"),
            (MessageError::UnknownRequiredFlags(4), "unknown_flags"),
            (MessageError::ChecksumMismatch, "checksum"),
            (MessageError::TooManySequences, "too_many_sequences"),
            (MessageError::TwoBodies, "two_bodies"),
            (MessageError::NoBody, "no_body"),
            (MessageError::SecurityToken, "unknown_section"),
            (MessageError::UnknownSection(9), "unknown_section"),
            (MessageError::DuplicateSequence, "duplicate_sequence"),
            (MessageError::SequenceSize, "sequence_size"),
            (MessageError::Body(BsonError::BadLength), "invalid_bson"),
        ] {
            assert_eq!(error.reason(), reason);
        }
    }

    #[test]
    fn parse_head_returns_all_sequences() {
        let one = doc! {"_id": 1}.to_vec().unwrap();
        let update = body(&doc! {"update": "c", "$db": "d"});
        let sections = [update, sequence("a", &one), sequence("b", &one)].concat();
        let head = message(0, &sections);
        let parsed = OpMsg::parse_head(&head).unwrap();
        let names: Vec<_> = parsed.sequences().map(|s| s.identifier).collect();
        assert_eq!(names, [b"a", b"b"]);
        assert!(parsed.sequences().all(|s| s.documents == one));
    }

    #[test]
    fn op_msg_flags_have_the_bits_of_the_specification() {
        let flags = [CHECKSUM_PRESENT, MORE_TO_COME, EXHAUST_ALLOWED];
        assert_eq!(flags, [1, 2, 65_536]);
    }

    #[test]
    fn more_to_come_and_has_checksum_ignore_the_other_flag_bits() {
        for (flags, more_to_come) in [
            (0, false),
            (EXHAUST_ALLOWED, false),
            (MORE_TO_COME, true),
            (MORE_TO_COME | EXHAUST_ALLOWED, true),
        ] {
            let message = message(flags, &body(&doc! {"ping": 1}));
            let parsed = OpMsg::parse(&message).unwrap();
            assert_eq!(parsed.more_to_come(), more_to_come, "{flags}");
            assert!(!parsed.has_checksum(), "{flags}");
        }
    }
}
