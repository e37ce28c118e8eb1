//! A server's reply: its expected properties, the checks of its header and flags, and the reasons
//! why no reply reached the client.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead as _, ReadBuf};

use crate::{captures::RecordedCommand, limits::Limits};
use seawall_command::ReplyForm;
use seawall_transport::{
    MemoryBudget, MemoryShare, Sharer, Stream, connection::Interrupt, with_scratch,
};
use seawall_wire::{HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MORE_TO_COME, OpCode};

/// Number of bytes of an `OP_MSG` reply before its document: header, flags, section kind.
pub(super) const REPLY_HEAD_BYTES: usize = HEADER_BYTES + 4 + 1;

/// The reason why no complete reply reached the client.
#[derive(Debug, thiserror::Error)]
pub(super) enum RelayError {
    /// The server failed before Seawall forwarded a byte of its reply. The client can still get
    /// another reply.
    #[error("server failed before its reply: {0}")]
    Server(io::Error),
    /// The server failed after Seawall had begun to forward or to drop its reply. The client can no
    /// longer get another reply.
    #[error("server failed during its reply: {0}")]
    MidReply(io::Error),
    /// The reply belongs to another request, or is malformed.
    #[error("reply does not match the request: {0}")]
    Foreign(&'static str),
    /// The client has left.
    #[error("client left")]
    ClientGone {
        /// The part of the reply that is still to be read from the server.
        unread: Unread,
    },
}

/// The part of a reply that Seawall has not read from the server when the client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// No byte of the reply has been read.
    Whole,
    /// The head has been read and checked ([`parse_head`]). This number of bytes is unread.
    Rest(usize),
    /// A part of the head has been read and dropped. So Seawall can no longer check the head, and
    /// the connection must be closed.
    InHead,
}

/// A whole reply that has not been sent to the client yet.
pub(super) struct HeldReply {
    pub(super) bytes: Vec<u8>,
    /// Memory that the reply has reserved in the budget; `None` for a small reply, which needs no
    /// reservation.
    pub(super) share: Option<MemoryShare>,
}

/// The reply that Seawall awaits, and the values that Seawall needs to forward a large reply.
#[derive(Clone, Copy)]
pub(super) struct Awaited<'a> {
    pub(super) request_id: i32,
    pub(super) form: ReplyForm,
    /// True if Seawall compresses the reply for the client. For this, the reply must first be in
    /// memory as a whole. If the budget has no memory for a large reply that the server has not
    /// compressed, Seawall forwards this reply uncompressed.
    pub(super) must_compress: bool,
    pub(super) budget: &'a MemoryBudget,
    pub(super) limits: &'a Limits,
    /// The address or user towards which the memory of the reply and the work to forward it count.
    pub(super) sharer: Sharer,
    /// Raised if the server counts as hung. It ends each wait for the server's next bytes.
    pub(super) interrupt: &'a Interrupt,
    /// Returns true if other operations wait for a connection to the server. If this operation
    /// waits for data, also returns true if other operations of its user wait for a permit of the
    /// lane.
    pub(super) is_wanted: &'a (dyn Fn() -> bool + Send + Sync),
    /// Set if the operation is recorded in a capture (a recording of some clients' messages).
    pub(super) recording: Option<&'a RecordedCommand>,
}

/// Parses the header of a reply whose first bytes are `held`. Checks that the reply belongs to the
/// request and that no other reply follows, because only then can the connection be used again.
/// `None` if the head of the reply is incomplete. The flags of a compressed reply are not checked
/// here, because they are compressed.
pub(super) fn parse_head(held: &[u8], request_id: i32) -> Result<Option<Header>, RelayError> {
    let Some(head) = held.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let header = check_header(head, request_id)?;
    if held.len() < REPLY_HEAD_BYTES {
        return Ok(None);
    }
    if header.op_code == OpCode::Msg {
        check_flags(held)?;
    }
    Ok(Some(header))
}

/// Parses the header of a reply, and checks that the reply belongs to the request.
fn check_header(head: &[u8; HEADER_BYTES], request_id: i32) -> Result<Header, RelayError> {
    let header = Header::parse(head, MAX_MESSAGE_BYTES)
        .map_err(|_| RelayError::Foreign("length out of range"))?;
    if header.response_to != request_id {
        return Err(RelayError::Foreign("it belongs to another request"));
    }
    let is_reply = matches!(header.op_code, OpCode::Msg | OpCode::Compressed);
    if !is_reply || header.message_length < REPLY_HEAD_BYTES {
        return Err(RelayError::Foreign("not OP_MSG"));
    }
    Ok(header)
}

/// Refuses a reply with `moreToCome`. Seawall's request allowed only one reply, and a second one
/// would reach the next client that uses the connection.
pub(super) fn check_flags(reply: &[u8]) -> Result<(), RelayError> {
    let flags = reply
        .get(HEADER_BYTES..)
        .and_then(|rest| rest.first_chunk::<4>());
    let flags = flags
        .map(|bytes| u32::from_le_bytes(*bytes))
        .unwrap_or_default();
    if flags & MORE_TO_COME != 0 {
        return Err(RelayError::Foreign("moreToCome is set"));
    }
    Ok(())
}

/// Reads some bytes into `held`. Ready with the number of bytes read, which is 0 at the end of the
/// stream.
pub(super) fn poll_read_into(
    cx: &mut Context<'_>,
    stream: &mut Stream,
    held: &mut Vec<u8>,
) -> Poll<io::Result<usize>> {
    with_scratch(|scratch| {
        let mut room = ReadBuf::new(scratch);
        ready!(Pin::new(stream).poll_read(cx, &mut room))?;
        held.extend_from_slice(room.filled());
        Poll::Ready(Ok(room.filled().len()))
    })
}

/// Reads and drops the rest of a reply whose client has left, so that the server connection can be
/// used again. Fails if `unread` is [`Unread::InHead`], if more than `max_bytes` bytes are unread,
/// if the server ends the connection, if the reply is not the awaited one, or if another reply
/// follows.
pub(super) async fn drain_reply(
    server: &mut Stream,
    request_id: i32,
    unread: Unread,
    max_bytes: usize,
) -> Result<(), RelayError> {
    let mut held = Vec::new();
    let read = |held: &mut Vec<u8>, left: usize, result: io::Result<usize>| match result {
        Ok(0) => Err(RelayError::MidReply(io::ErrorKind::UnexpectedEof.into())),
        Ok(n) if n > left => Err(RelayError::Foreign("bytes after the reply")),
        Ok(n) => {
            held.clear();
            Ok(left - n)
        }
        Err(error) => Err(RelayError::MidReply(error)),
    };
    let mut left = match unread {
        Unread::InHead => return Err(RelayError::Foreign("the head was read only in part")),
        Unread::Rest(left) => left,
        Unread::Whole => {
            let length = loop {
                if let Some(header) = parse_head(&held, request_id)? {
                    break header.message_length;
                }
                if poll_fn(|cx| poll_read_into(cx, server, &mut held))
                    .await
                    .unwrap_or(0)
                    == 0
                {
                    return Err(RelayError::MidReply(io::ErrorKind::UnexpectedEof.into()));
                }
            };
            length
                .checked_sub(held.len())
                .ok_or(RelayError::Foreign("bytes after the reply"))?
        }
    };
    if left > max_bytes {
        return Err(RelayError::Foreign("the rest is too long to be dropped"));
    }
    while left > 0 {
        held.clear();
        let result = poll_fn(|cx| poll_read_into(cx, server, &mut held)).await;
        left = read(&mut held, left, result)?;
    }
    Ok(())
}
