//! Large requests, forwarded as they arrive.
//!
//! A request of up to a megabyte is read whole. So a slow client holds no server connection, and
//! the operation can be sent again. A larger request would use too much memory. So Seawall checks
//! out a connection as soon as the head has arrived, and forwards the rest in pieces. A request
//! that was forwarded in pieces cannot be sent again. A larger request is still read whole, within
//! the memory budget, in these cases:
//!
//! - The command is never forwarded in pieces ([`Streaming::Never`]).
//! - The head lacks the body, or a part from which the command's fingerprint is computed.
//! - The request has a checksum or is compressed.
//! - A capture may record the request.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use seawall_command::table::{self, Streaming};
use seawall_shape::MAX_STATEMENTS;
use seawall_transport::{Message, MessageReader, ReadError, RestOfMessage};
use seawall_wire::{Elements, HEADER_BYTES, MessageError, OpMsg, SectionWalk, document_at};

/// True if a message can be forwarded before its end has arrived, because its head contains
/// everything that Seawall needs.
pub(super) fn can_be_streamed(head: &Message) -> bool {
    let Ok(parsed) = OpMsg::parse_head(&head.bytes) else {
        return false;
    };
    let first = Elements::of(parsed.body).next().and_then(Result::ok);
    let statements = || parsed.sequences().map(|s| statements(s.documents)).max();
    first.is_some_and(|first| match table::find(first.name).streaming {
        Streaming::Never => false,
        Streaming::AfterBody => true,
        Streaming::AfterStatements => statements() >= Some(MAX_STATEMENTS),
    })
}

/// Number of complete documents in `documents`. Stops counting at [`MAX_STATEMENTS`].
fn statements(documents: &[u8]) -> usize {
    let mut rest = documents;
    let mut count = 0;
    while let (Ok(document), true) = (document_at(rest), count < MAX_STATEMENTS) {
        rest = rest.get(document.len()..).unwrap_or_default();
        count += 1;
    }
    count
}

/// The reason why the rest of a request did not reach the server.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    /// The server failed while it received the request.
    #[error("server failed while receiving the request: {0}")]
    Server(io::Error),
    /// The client left or was too slow.
    #[error("client did not send the rest of the request: {0}")]
    Client(ReadError),
    /// The sections of the request are malformed, or do not end where the message ends.
    #[error("malformed request: {0}")]
    Malformed(MessageError),
}

/// Forwards the rest of a request whose head has been written, and checks its sections. Returns the
/// number of statements in the request's document sequence, including the statements in the head.
/// `is_wanted` returns true if other operations wait for a connection to the server.
pub(super) async fn forward_rest(
    reader: &mut MessageReader,
    client: &mut (impl AsyncRead + Unpin),
    server: &mut (impl AsyncWrite + Unpin),
    head: &Message,
    parsed: &OpMsg<'_>,
    is_wanted: &(dyn Fn() -> bool + Send + Sync),
) -> Result<u64, StreamError> {
    let first = Elements::of(parsed.body).next().and_then(Result::ok);
    let counted = first.and_then(|first| table::find(first.name).statements.field());
    let after_body = parsed.body_offset + parsed.body.len();
    debug_assert!(
        parsed.body_offset > HEADER_BYTES,
        "the head of a request contains its body"
    );
    let mut walk = SectionWalk::new(head.header.message_length - after_body, counted);
    walk.feed(head.bytes.get(after_body..).unwrap_or_default())
        .map_err(StreamError::Malformed)?;
    let mut rest = RestOfMessage::of(head, is_wanted);
    let mut piece = Vec::new();
    loop {
        let read = rest.next_piece(reader, client, &mut piece).await;
        read.map_err(StreamError::Client)?;
        if piece.is_empty() {
            server.flush().await.map_err(StreamError::Server)?;
            return Ok(walk.documents());
        }
        walk.feed(&piece).map_err(StreamError::Malformed)?;
        server
            .write_all(&piece)
            .await
            .map_err(StreamError::Server)?;
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;
    use seawall_command::CommandBytes;
    use seawall_shape::fingerprint;
    use seawall_transport::MemoryBudget;
    use seawall_wire::Sequence;
    use seawall_wire::{Header, MAX_MESSAGE_BYTES, OpCode};

    fn request(body: &Document, identifier: &str, documents: &[Document]) -> Vec<u8> {
        let documents: Vec<u8> = documents.iter().flat_map(|d| d.to_vec().unwrap()).collect();
        let size = i32::try_from(4 + identifier.len() + 1 + documents.len()).unwrap();
        let body = body.to_vec().unwrap();
        let sections = [
            &[0; 5][..],
            &body,
            &[1],
            &size.to_le_bytes(),
            identifier.as_bytes(),
            &[0],
            &documents,
        ];
        let sections = sections.concat();
        let header = Header {
            message_length: HEADER_BYTES + sections.len(),
            request_id: 1,
            response_to: 0,
            op_code: OpCode::Msg,
        };
        [&header.to_bytes()[..], &sections].concat()
    }

    async fn head(message: &[u8]) -> Message {
        let budget = MemoryBudget::of_bytes(64 << 20);
        let read = MessageReader::default()
            .next(&mut &message[..], MAX_MESSAGE_BYTES, &budget)
            .await;
        read.unwrap().unwrap()
    }

    fn shape(parsed: &OpMsg<'_>) -> seawall_shape::ShapeId {
        let sequences: Vec<_> = parsed
            .sequences()
            .map(|s| Sequence {
                identifier: s.identifier,
                documents: s.documents,
            })
            .collect();
        let input = CommandBytes {
            body: parsed.body,
            sequences: &sequences,
        };
        fingerprint(&input).shape
    }

    /// Seawall can begin to forward a large request when only its head has arrived.
    #[tokio::test]
    async fn the_head_of_a_large_request_has_the_same_query_shape_as_the_whole_request() {
        let pad = "x".repeat(2000);
        let documents: Vec<_> = (0..1000).map(|n| doc! {"_id": n, "pad": &pad}).collect();
        let updates: Vec<_> = (0..1000)
            .map(|n| doc! {"q": {format!("f{}", n % 3): n}, "u": {"$set": {"pad": &pad}}})
            .collect();
        let large: Vec<_> = (0..20)
            .map(|n| doc! {"q": {format!("f{}", n % 3): n}, "u": {"$set": {"pad": pad.repeat(50)}}})
            .collect();
        let insert = doc! {"insert": "c", "$db": "d"};
        let update = doc! {"update": "c", "$db": "d"};
        let cases = [
            (request(&insert, "documents", &documents), true),
            (request(&update, "updates", &updates), true),
            (request(&update, "updates", &large), false),
            (
                request(&doc! {"bulkWrite": 1, "$db": "admin"}, "ops", &documents),
                false,
            ),
            (
                request(
                    &doc! {"insert": "c", "x": "y".repeat(70_000), "$db": "d"},
                    "documents",
                    &documents,
                ),
                false,
            ),
        ];
        for (message, is_streamed) in cases {
            let head = head(&message).await;
            assert!(head.is_head());
            assert_eq!(can_be_streamed(&head), is_streamed);
            if is_streamed {
                let (part, whole) = (OpMsg::parse_head(&head.bytes), OpMsg::parse(&message));
                assert_eq!(shape(&part.unwrap()), shape(&whole.unwrap()));
            }
        }
    }
}
