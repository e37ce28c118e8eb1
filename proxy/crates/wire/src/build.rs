//! Encodes Seawall's own messages: its commands to servers, and its replies to clients.

use super::{
    header::{HEADER_BYTES, Header, OpCode},
    op_msg::{CHECKSUM_PRESENT, checksum},
};

/// Encodes an `OP_MSG` with one body section.
pub(crate) fn encode_op_msg(request_id: i32, response_to: i32, body: &[u8]) -> Vec<u8> {
    encode_op_msg_like(0, request_id, response_to, body)
}

/// Encodes a reply: an `OP_MSG` with one body section. Like a server's reply, it has a checksum if
/// the request had one.
pub fn encode_op_msg_like(
    request_flags: u32,
    request_id: i32,
    response_to: i32,
    body: &[u8],
) -> Vec<u8> {
    let flags = request_flags & CHECKSUM_PRESENT;
    let checksum_bytes = if flags == 0 { 0 } else { 4 };
    let message_length = HEADER_BYTES + 4 + 1 + body.len() + checksum_bytes;
    let header = Header {
        message_length,
        request_id,
        response_to,
        op_code: OpCode::Msg,
    };
    let mut message = Vec::with_capacity(message_length);
    message.extend_from_slice(&header.to_bytes());
    message.extend_from_slice(&flags.to_le_bytes());
    message.push(0);
    message.extend_from_slice(body);
    if checksum_bytes != 0 {
        let sum = checksum([message.as_slice()]);
        message.extend_from_slice(&sum.to_le_bytes());
    }
    message
}

/// Encodes a request: an `OP_MSG` with one body section. `responseTo` is 0: if the first message on
/// a connection has another value, a mongod mistakes the message for TLS and closes the connection.
pub fn encode_request(request_id: i32, body: &[u8]) -> Vec<u8> {
    encode_op_msg(request_id, 0, body)
}

/// Encodes an `OP_REPLY` with one document. A command that arrives as `OP_QUERY` gets such a reply.
pub fn encode_op_reply(
    response_flags: u32,
    request_id: i32,
    response_to: i32,
    document: &[u8],
) -> Vec<u8> {
    let message_length = HEADER_BYTES + 20 + document.len();
    let header = Header {
        message_length,
        request_id,
        response_to,
        op_code: OpCode::Reply,
    };
    let mut message = Vec::with_capacity(message_length);
    message.extend_from_slice(&header.to_bytes());
    message.extend_from_slice(&response_flags.to_le_bytes());
    message.extend_from_slice(&0i64.to_le_bytes()); // cursorId
    message.extend_from_slice(&0i32.to_le_bytes()); // startingFrom
    message.extend_from_slice(&1i32.to_le_bytes()); // numberReturned
    message.extend_from_slice(document);
    message
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::{EXHAUST_ALLOWED, MORE_TO_COME, OpMsg};

    #[test]
    fn encoded_messages_parse_with_and_without_a_checksum() {
        let body = doc! {"ok": 1}.to_vec().unwrap();
        for flags in [0, CHECKSUM_PRESENT] {
            let message = encode_op_msg_like(flags, 3, 4, &body);
            let head = message.first_chunk::<16>().unwrap();
            let header = Header::parse(head, 1000).unwrap();
            assert_eq!((header.request_id, header.response_to), (3, 4));
            assert_eq!(header.message_length, message.len());
            assert_eq!(OpMsg::parse(&message).unwrap().body, body);
        }
    }

    #[test]
    fn a_reply_copies_only_the_checksum_flag_of_its_request() {
        let body = doc! {"ok": 1}.to_vec().unwrap();
        let others = MORE_TO_COME | EXHAUST_ALLOWED;
        for checksum in [0, CHECKSUM_PRESENT] {
            for request_flags in [checksum, checksum | others] {
                let message = encode_op_msg_like(request_flags, 3, 4, &body);
                assert_eq!(OpMsg::parse(&message).unwrap().flags, checksum);
            }
        }
    }
}
