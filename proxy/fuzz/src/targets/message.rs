//! One whole message with its header. The target parses it as `OP_MSG` with its sections and as
//! `OP_QUERY`. It also parses the sections in pieces. Seawall does this for a large message,
//! because it forwards the message before its end has arrived.
//!
//! Input: one byte that selects how the message is split, then the message.

use seawall_wire::{
    CHECKSUM_PRESENT, DocumentWalk, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MORE_TO_COME,
    MessageError, OpMsg, OpQuery, SectionWalk, checksum, document_at, encode_op_msg_like,
};

use crate::choices::{Choices, Pieces};

/// Offset of the first section in an `OP_MSG`, in bytes.
const SECTIONS_OFFSET: usize = HEADER_BYTES + 4;

/// Longest identifier of a document sequence that [`SectionWalk`] accepts.
const MAX_IDENTIFIER_BYTES: usize = 256;

/// Checks that the sections of a parsed message add up to its length, and that a message that is
/// built from them has the same sections. Checks that a head (the first bytes of a message) has the
/// same sections as the whole message, up to the end of the head. Checks that reading the message
/// in pieces gives the same number of documents, or the same error, as reading it whole.
pub fn message(data: &[u8]) {
    let mut choices = Choices::new(data);
    let pieces = choices.byte();
    let message = choices.rest();
    check_header(message);
    check_whole(message);
    check_whole(&with_right_checksum(message));
    check_heads(message, pieces);
    check_section_walk(message, Pieces::new(pieces));
    if let Some(query) = OpQuery::parse(message) {
        check_query(&query, message);
    }
}

fn check_header(message: &[u8]) {
    let Some(head) = message.first_chunk::<HEADER_BYTES>() else {
        return;
    };
    if let Ok(header) = Header::parse(head, MAX_MESSAGE_BYTES) {
        assert_eq!(header.to_bytes(), *head);
        assert!((HEADER_BYTES..=MAX_MESSAGE_BYTES).contains(&header.message_length));
    }
}

fn check_whole(message: &[u8]) {
    let parsed = match OpMsg::parse(message) {
        Ok(parsed) => parsed,
        Err(error) => {
            assert!(!error.reason().is_empty());
            assert_ne!(error.code(), Some(0));
            return;
        }
    };
    let body = message.get(parsed.body_offset..).unwrap_or_default();
    assert!(body.starts_with(parsed.body));
    assert_eq!(document_at(parsed.body), Ok(parsed.body));
    let sequences = parsed.sequences();
    let sequences = sequences.map(|s| 1 + 4 + s.identifier.len() + 1 + s.documents.len());
    let checksum_bytes = if parsed.has_checksum() { 4 } else { 0 };
    let length =
        SECTIONS_OFFSET + 1 + parsed.body.len() + sequences.sum::<usize>() + checksum_bytes;
    assert_eq!(length, message.len(), "the parts add up to the message");

    let built = encode_op_msg_like(parsed.flags, 1, 0, parsed.body);
    let again = OpMsg::parse(&built).expect("a built message can be parsed");
    assert_eq!(again.body, parsed.body);
    assert_eq!(again.flags, parsed.flags & CHECKSUM_PRESENT);
    let built = rebuilt(&parsed);
    let again = OpMsg::parse(&built).expect("a rebuilt message can be parsed");
    assert_eq!(again.flags, parsed.flags);
    assert_eq!(again.body, parsed.body);
    assert!(again.sequences().eq(parsed.sequences()));
}

/// Builds a message from the parts of a parsed message. The body becomes the first section.
fn rebuilt(parsed: &OpMsg<'_>) -> Vec<u8> {
    let mut message = encode_op_msg_like(0, 1, 0, parsed.body);
    for sequence in parsed.sequences() {
        let size = 4 + sequence.identifier.len() + 1 + sequence.documents.len();
        let size = i32::try_from(size).expect("a sequence is shorter than its message");
        message.push(1);
        message.extend_from_slice(&size.to_le_bytes());
        message.extend_from_slice(sequence.identifier);
        message.push(0);
        message.extend_from_slice(sequence.documents);
    }
    if let Some(flags) = message.get_mut(HEADER_BYTES..SECTIONS_OFFSET) {
        flags.copy_from_slice(&parsed.flags.to_le_bytes());
    }
    if parsed.has_checksum() {
        let sum = checksum([message.as_slice()]);
        message.extend_from_slice(&sum.to_le_bytes());
    }
    message
}

/// Sets the flag for a checksum, and appends the correct checksum. Random bytes almost never end
/// with a correct checksum.
fn with_right_checksum(message: &[u8]) -> Vec<u8> {
    let mut message = message.to_vec();
    if let Some(flags) = message.get_mut(HEADER_BYTES) {
        *flags |= 1;
    }
    let sum = checksum([message.as_slice()]);
    message.extend_from_slice(&sum.to_le_bytes());
    message
}

/// A head is the first bytes of a message. Checks that the parts of a head equal the parts of the
/// whole message, up to the end of the head.
fn check_heads(message: &[u8], pieces: u8) {
    let whole = OpMsg::parse(message);
    let cut = usize::from(pieces) * message.len() / 256;
    for length in [cut, message.len()] {
        let Ok(head) = OpMsg::parse_head(message.get(..length).unwrap_or_default()) else {
            continue;
        };
        assert!(!head.has_checksum());
        let Ok(whole) = &whole else { continue };
        assert_eq!(head.body, whole.body);
        assert_eq!(head.flags, whole.flags);
        for (part, whole) in head.sequences().zip(whole.sequences()) {
            assert_eq!(part.identifier, whole.identifier);
            assert!(whole.documents.starts_with(part.documents));
        }
        assert!(head.sequences().count() <= whole.sequences().count());
    }
}

/// Checks that [`SectionWalk`], which reads a message in pieces, agrees with [`OpMsg::parse`],
/// which reads the whole message.
fn check_section_walk(message: &[u8], pieces: Pieces) {
    let flags = message.get(HEADER_BYTES..).and_then(|r| r.first_chunk());
    let flags = flags.map(|bytes| u32::from_le_bytes(*bytes));
    let has_known_flags = flags.is_some_and(|flags| flags & 0xffff & !MORE_TO_COME == 0);
    let first = message.get(SECTIONS_OFFSET..).unwrap_or_default();
    let (true, Some((0, body))) = (has_known_flags, first.split_first()) else {
        return;
    };
    let Ok(body) = document_at(body) else { return };
    let rest = message.get(SECTIONS_OFFSET + 1 + body.len()..);
    let rest = rest.unwrap_or_default();

    let mut walk = SectionWalk::new(rest.len(), Some("documents"));
    let mut walked = Ok(());
    for piece in pieces.split(rest) {
        walked = walk.feed(piece);
        if walked.is_err() {
            break;
        }
    }
    match (OpMsg::parse(message), walked) {
        (Ok(parsed), Ok(())) => {
            let mut sequences = parsed.sequences();
            let counted = sequences.find(|s| s.identifier == b"documents");
            let mut whole = DocumentWalk::default();
            whole.feed(counted.map_or(&[], |s| s.documents));
            assert_eq!(walk.documents(), whole.count());
        }
        (Ok(parsed), Err(error)) => {
            let mut sequences = parsed.sequences();
            let is_long = sequences.any(|s| s.identifier.len() > MAX_IDENTIFIER_BYTES);
            assert!(is_long && error == MessageError::SequenceSize, "{error}");
        }
        (Err(error), Ok(())) => panic!("the walk accepts a message that OpMsg refuses: {error}"),
        (Err(parsed), Err(walked)) => {
            // If an identifier is too long, the walk returns `SequenceSize`, even if the parser
            // returns another error.
            let mut runs = rest.split(|byte| *byte == 0);
            let is_long = runs.any(|run| run.len() > MAX_IDENTIFIER_BYTES);
            let is_same = parsed == walked || is_long && walked == MessageError::SequenceSize;
            assert!(is_same, "whole: {parsed}, in pieces: {walked}");
        }
    }
}

fn check_query(query: &OpQuery<'_>, message: &[u8]) {
    assert_eq!(document_at(query.query), Ok(query.query));
    let length = SECTIONS_OFFSET + query.namespace.len() + 1 + 8 + query.query.len();
    assert!(length <= message.len());
    if let Some(db) = query.command_database() {
        assert_eq!([db, b".$cmd"].concat(), query.namespace);
    }
}
