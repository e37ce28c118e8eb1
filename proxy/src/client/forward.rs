//! Forwards a server's reply to the client.
//!
//! The connections of the client and the server negotiate compression separately. A reply of up to
//! [`HELD_REPLY_BYTES`] is held until it is complete, so that Seawall can handle an error reply
//! before the client receives it. A larger reply is also held if the server has compressed it, or
//! if Seawall compresses it for the client. Other larger replies are forwarded as they arrive.

use std::{future::poll_fn, io, task::Poll};

use tokio::time::Instant;

use super::{
    backlog::{Forwarded, forward_large, room_for_reply},
    client_end::ClientEnd,
    reply::{
        Awaited, HeldReply, REPLY_HEAD_BYTES, RelayError, Unread, check_flags, parse_head,
        poll_read_into,
    },
};
use crate::{observe::Observation, pool::HeldPermit};
use seawall_command::{ReplyFacts, ReplyForm};
use seawall_stats::Phase;
use seawall_transport::{Stream, connection::Interrupt};
use seawall_wire::{
    COMPRESSED_HEAD_BYTES, CompressedHead, InflateError, MAX_MESSAGE_BYTES, OpCode,
};

/// A reply of at most this size is always held until it is complete. It needs no memory of the
/// budget, unless its inflated size is larger.
pub(super) const HELD_REPLY_BYTES: usize = 64 * 1024;

/// A reply that was read completely from the server.
pub(super) enum Reply {
    /// The reply is held, and the client has not received any byte of it. The `Instant` is the time
    /// at which the last byte of the reply arrived.
    Held(HeldReply, ReplyFacts, Instant),
    /// The reply was forwarded as it arrived. Only the bytes that the client has not read yet (the
    /// backlog) must still be sent.
    Forwarded(Forwarded),
}

/// Reads the awaited reply. A large reply is forwarded as it arrives, if neither the server nor
/// Seawall compresses it. If the server counts as hung before Seawall has begun to forward the
/// reply, the result is [`RelayError::Server`]. If the server counts as hung later, the result is
/// [`RelayError::MidReply`]. An operation that waits for data has a `permit`, which is released for
/// other users when the reply begins.
pub(super) async fn relay_reply(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    mut permit: Option<HeldPermit<'_>>,
    awaited: Awaited<'_>,
    observation: &mut Observation<'_>,
) -> Result<Reply, RelayError> {
    let mut held = Vec::new();
    let read = read_or_gone(client, server, awaited.interrupt, &mut held);
    let read = match &mut permit {
        None => read.await,
        Some(permit) => Box::pin(permit.hold_during(read)).await,
    };
    match read {
        Some(Ok(0)) => return Err(RelayError::Server(io::ErrorKind::UnexpectedEof.into())),
        Some(Err(error)) => return Err(RelayError::Server(error)),
        None => {
            let unread = Unread::Whole;
            return Err(RelayError::ClientGone { unread });
        }
        Some(Ok(_)) => observation.enter(Phase::Receive, Instant::now()),
    }
    if let Some(permit) = permit {
        permit.release();
    }
    let mut arrived_at = observation.phase_began();
    let header = loop {
        if let Some(header) = parse_head(&held, awaited.request_id)? {
            break header;
        }
        read_more(client, server, awaited.interrupt, &mut held, None).await?;
        arrived_at = Instant::now();
    };
    let length = header.message_length;
    if held.len() > length {
        return Err(RelayError::Foreign("bytes after the reply"));
    }
    // The futures for rare replies are boxed, so that they do not enlarge the future of every
    // operation.
    if header.op_code == OpCode::Compressed {
        return Box::pin(inflate_reply(client, server, held, length, awaited)).await;
    }
    let forward =
        |client, server, held| Box::pin(forward_reply(client, server, held, length, awaited));
    let share = match length {
        _ if length <= HELD_REPLY_BYTES => None,
        // The reservation covers the reply and its compressed form.
        _ if awaited.must_compress => {
            match awaited.budget.try_reserve(awaited.sharer, 2 * length) {
                Some(share) => Some(share),
                // The budget has no memory for compression, so the reply is forwarded uncompressed.
                // The protocol always allows this.
                None => return forward(client, server, held).await,
            }
        }
        _ => return forward(client, server, held).await,
    };
    if held.len() < length {
        read_whole(client, server, awaited.interrupt, &mut held, length).await?;
        arrived_at = Instant::now();
    }
    let facts = facts_of(&held, awaited.form);
    let reply = HeldReply { bytes: held, share };
    Ok(Reply::Held(reply, facts, arrived_at))
}

/// Forwards a large reply. `held` contains its first bytes, including its head.
async fn forward_reply(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    held: Vec<u8>,
    length: usize,
    awaited: Awaited<'_>,
) -> Result<Reply, RelayError> {
    let forwarded = forward_large(client, server, held, length, awaited).await?;
    Ok(Reply::Forwarded(forwarded))
}

/// Reads a reply of `length` bytes to its end.
async fn read_whole(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    interrupt: &Interrupt,
    held: &mut Vec<u8>,
    length: usize,
) -> Result<(), RelayError> {
    held.reserve_exact(length - held.len());
    while held.len() < length {
        read_more(client, server, interrupt, held, Some(length)).await?;
    }
    Ok(())
}

/// Reads a compressed reply to its end and inflates it, because Seawall can parse only an inflated
/// reply.
async fn inflate_reply(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    mut held: Vec<u8>,
    length: usize,
    awaited: Awaited<'_>,
) -> Result<Reply, RelayError> {
    while held.len() < COMPRESSED_HEAD_BYTES.min(length) {
        read_more(client, server, awaited.interrupt, &mut held, Some(length)).await?;
    }
    let wrong = |error: InflateError| {
        tracing::debug!(%error, "malformed compressed reply");
        RelayError::Foreign("malformed compressed message")
    };
    let head = CompressedHead::parse(&held, MAX_MESSAGE_BYTES).map_err(wrong)?;
    let inflated_length = head.inner.message_length;
    if head.inner.op_code != OpCode::Msg || inflated_length < REPLY_HEAD_BYTES {
        return Err(RelayError::Foreign("not OP_MSG"));
    }
    let bytes = length + inflated_length * if awaited.must_compress { 2 } else { 1 };
    let larger = length.max(inflated_length);
    let share = match larger > HELD_REPLY_BYTES {
        true => {
            let room = room_for_reply(client, &awaited, bytes).await;
            let unread = Unread::Rest(length - held.len());
            Some(room.ok_or(RelayError::ClientGone { unread })?)
        }
        false => None,
    };
    read_whole(client, server, awaited.interrupt, &mut held, length).await?;
    let arrived_at = Instant::now();
    let heavy = awaited.limits.heavy(awaited.sharer);
    let inflate = move || head.inflate(&held);
    let bytes = heavy.run(larger, inflate).await.map_err(wrong)?;
    check_flags(&bytes)?;
    let facts = facts_of(&bytes, awaited.form);
    let reply = HeldReply { bytes, share };
    Ok(Reply::Held(reply, facts, arrived_at))
}

fn facts_of(reply: &[u8], form: ReplyForm) -> ReplyFacts {
    ReplyFacts::of(form, reply.get(REPLY_HEAD_BYTES..).unwrap_or_default())
}

/// Reads some bytes into `held`. `length` is the length of the reply; `None` while the head is
/// incomplete. Fails if the server has ended the connection or counts as hung, if it has sent bytes
/// after the reply, or if the client has left.
async fn read_more(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    interrupt: &Interrupt,
    held: &mut Vec<u8>,
    length: Option<usize>,
) -> Result<(), RelayError> {
    match read_or_gone(client, server, interrupt, held).await {
        // No byte of the reply has been forwarded, so the client can still get another reply.
        Some(Ok(0)) => Err(RelayError::Server(io::ErrorKind::UnexpectedEof.into())),
        Some(Ok(_)) if length.is_some_and(|length| held.len() > length) => {
            Err(RelayError::Foreign("bytes after the reply"))
        }
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(RelayError::Server(error)),
        None => {
            let rest = length.map(|length| Unread::Rest(length - held.len()));
            let unread = rest.unwrap_or(Unread::InHead);
            Err(RelayError::ClientGone { unread })
        }
    }
}

/// Reads some bytes from the server into `held`; `None` if the client has left. Fails if the
/// interrupt is raised.
async fn read_or_gone(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    interrupt: &Interrupt,
    held: &mut Vec<u8>,
) -> Option<io::Result<usize>> {
    poll_fn(|cx| {
        if let Poll::Ready(read) = poll_read_into(cx, server, held) {
            return Poll::Ready(Some(read));
        }
        if client.poll_gone(cx).is_ready() {
            return Poll::Ready(None);
        }
        let interrupted = interrupt.poll_raised(cx);
        interrupted.map(|()| Some(Err(io::ErrorKind::TimedOut.into())))
    })
    .await
}

#[cfg(test)]
mod tests;
