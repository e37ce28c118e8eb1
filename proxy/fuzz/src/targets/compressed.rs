//! Compressed messages: messages that Seawall receives, and messages that Seawall compresses.
//!
//! Input, in this order:
//!
//! - two bytes that select the compressor;
//! - one byte that selects whether a message is received or compressed;
//! - for a received message: the message;
//! - for a message to compress: one length byte, then that many bytes, which select changes to the
//!   compressed bytes, then the content of the message.

use seawall_wire::{
    COMPRESSED_HEAD_BYTES, CompressedHead, Compressor, HEADER_BYTES, Header, InflateError,
    MAX_MESSAGE_BYTES, OpCode, deflate, encode_request,
};

use crate::choices::{Choices, altered};

/// The limit of message sizes. It is small, so that a wrong declared size costs little memory.
const MAX_BYTES: usize = 64 * 1024;

/// Checks that a received message inflates to exactly its declared size, within the limit, or is
/// refused. Checks that a message that Seawall compresses inflates to the original.
pub fn compressed(data: &[u8]) {
    let mut choices = Choices::new(data);
    let compressor = *Compressor::ALL
        .get(choices.index(Compressor::ALL.len()))
        .expect("the index is below the length");
    assert_eq!(Compressor::parse(compressor.name()), Some(compressor));
    if choices.bool() {
        check_received(choices.rest());
        check_content(compressor, choices.rest());
    } else {
        let mut alterations = Choices::new(choices.short());
        check_round_trip(compressor, choices.rest(), &mut alterations);
    }
}

/// Inflates a received message, and checks the result. Returns false if the message was refused.
fn check_received(message: &[u8]) -> bool {
    let head = match CompressedHead::parse(message, MAX_BYTES) {
        Ok(head) => head,
        Err(error) => {
            assert!(!matches!(error, InflateError::Bytes(_)), "{error}");
            return false;
        }
    };
    assert!((HEADER_BYTES..=MAX_BYTES).contains(&head.inner.message_length));
    let Ok(inflated) = head.inflate(message) else {
        return false;
    };
    assert_eq!(inflated.len(), head.inner.message_length);
    assert!(inflated.capacity() <= MAX_BYTES);
    let inner = inflated
        .first_chunk()
        .map(|head| Header::parse(head, MAX_BYTES));
    assert_eq!(inner, Some(Ok(head.inner)));
    assert_ne!(head.inner.op_code, OpCode::Compressed);
    true
}

/// Checks `content` as the compressed content of a message with a valid head. Without a valid head,
/// nearly all random messages are refused before their content is inflated.
fn check_content(compressor: Compressor, content: &[u8]) {
    let valid = deflate(&encode_request(7, content), compressor).expect("there is enough memory");
    let head = valid.get(..COMPRESSED_HEAD_BYTES).unwrap_or_default();
    check_received(&[head, content].concat());
}

fn check_round_trip(compressor: Compressor, content: &[u8], alterations: &mut Choices<'_>) {
    let message = encode_request(7, content);
    let deflated = deflate(&message, compressor).expect("there is enough memory");
    let head = CompressedHead::parse(&deflated, message.len());
    let head = head.expect("a message that Seawall compressed has a valid head");
    assert_eq!(head.compressor, compressor);
    assert_eq!(head.inflate(&deflated).ok(), Some(message.clone()));
    let outer = deflated
        .first_chunk()
        .map(|head| Header::parse(head, MAX_MESSAGE_BYTES));
    let outer = outer
        .and_then(Result::ok)
        .expect("the compressed message has a valid header");
    assert_eq!(outer.message_length, deflated.len());
    let tight = CompressedHead::parse(&deflated, message.len() - 1);
    assert!(matches!(tight, Err(InflateError::Size(_))));
    check_received(&altered(&deflated, alterations, 4));
}
