//! Forwards a request's bytes to a server and the reply back. A request changes only by the edits
//! listed here.
//!
//! The edits: `moreToCome` and `exhaustAllowed` are cleared (one request has one reply), `$client`
//! is added, `maxTimeMS` is set to its remainder, and a checksum is recomputed if there was one.
//! Each side has its own compression. A reply of up to [`HELD_REPLY_BYTES`] is held until it is
//! complete, so that Seawall can act on an error in it. A larger reply is forwarded as it arrives.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::{Instant, timeout},
};

use super::backlog::{Forwarded, forward_large, room_for_reply};
use crate::{
    command::{Command, MaxTime, ReplyFacts, ReplyForm},
    connection::Connection,
    limits::{Heavy, Limits},
    observe::Observation,
    stats::Phase,
    wire::{
        COMPRESSED_HEAD_BYTES, CompressedHead, Compressor, EXHAUST_ALLOWED, HEADER_BYTES, Header,
        InflateError, MAX_MESSAGE_BYTES, MORE_TO_COME, MemoryBudget, MemoryShare, Message,
        MessageReader, OpCode, OpMsg, Sharer, Stream, checksum, deflate, with_scratch,
    },
};

/// Replies up to this size are held until they are complete.
const HELD_REPLY_BYTES: usize = 64 * 1024;

/// Bytes of an `OP_MSG` reply before its document: header, flags, section kind.
pub(super) const REPLY_HEAD_BYTES: usize = HEADER_BYTES + 4 + 1;

/// Largest number of pieces of an edited request.
const MAX_PIECES: usize = 10;

/// Size of an element `maxTimeMS` of type int32: type, name, value.
const MAX_TIME_ELEMENT_BYTES: usize = 1 + 10 + 4;

/// A request as sent to a server: borrowed pieces of the client's message between edits.
pub(super) struct Outgoing<'m> {
    head: [u8; HEADER_BYTES + 4],
    body_length: [u8; 4],
    max_time: [u8; 8],
    /// Set for a command that has no `maxTimeMS` of its own.
    added_max_time: Option<[u8; MAX_TIME_ELEMENT_BYTES]>,
    checksum: Option<[u8; 4]>,
    /// False for commands that carry credentials (compression specification) and for streamed
    /// requests.
    may_be_compressed: bool,
    /// True if `$client` was left out because the message would have been too long for the server.
    omits_client: bool,
    layout: Layout<'m>,
}

/// Compresses a message. If that fails, returns it plain, which is always allowed.
pub(super) async fn pack(plain: Vec<u8>, compressor: Compressor, heavy: Heavy<'_>) -> Vec<u8> {
    let plain_bytes = plain.len();
    let pack = move || {
        deflate(&plain, compressor).unwrap_or_else(|error| {
            tracing::warn!(%error, "message not compressed");
            plain
        })
    };
    heavy.run(plain_bytes, pack).await
}

/// Parts of the client's message between the edits.
struct Layout<'m> {
    before_body: &'m [u8],
    body_front: &'m [u8],
    max_time_bytes: usize,
    body_back: &'m [u8],
    client: &'m [u8],
    after_body: &'m [u8],
}

impl<'m> Outgoing<'m> {
    /// Prepares a message. `client` is an element to add to the body; `max_time_ms` replaces the
    /// client's `maxTimeMS`.
    pub(super) fn new(
        message: &'m Message,
        parsed: &OpMsg<'m>,
        command: &Command<'m>,
        client: Option<&'m [u8]>,
        max_time_ms: Option<u64>,
    ) -> Self {
        let wanted = client.filter(|_| !command.has_client);
        let added =
            |client: &[u8]| client.len() + max_time_ms.map_or(0, |_| MAX_TIME_ELEMENT_BYTES);
        let message_bytes = message.header.message_length;
        // A server closes the connection on a longer message, which would look like a server
        // failure.
        let fits = |c: &&[u8]| {
            command.has_room_for(c.len()) && message_bytes + added(c) <= MAX_MESSAGE_BYTES
        };
        let client = wanted.filter(fits).unwrap_or_default();
        let omits_client = wanted.is_some() && client.is_empty();
        let body_end = parsed.body_offset + parsed.body.len();
        let bytes = message.bytes.as_slice();
        let end = bytes.len() - if parsed.has_checksum() { 4 } else { 0 };
        let part = |from: usize, to: usize| bytes.get(from..to).unwrap_or_default();
        let inside = |from: usize, to: usize| parsed.body.get(from..to).unwrap_or_default();
        let last = parsed.body.len() - 1;
        let (split, max_time, max_time_bytes) = match (command.max_time, max_time_ms) {
            (Some(place), Some(left)) => max_time_bytes(place, left),
            (_, None) | (None, Some(_)) => (last, [0; 8], 0),
        };
        let added_max_time = match (command.max_time, max_time_ms) {
            (None, Some(left)) => Some(max_time_element(left)),
            (_, None) | (Some(_), Some(_)) => None,
        };
        let added = client.len() + added_max_time.map_or(0, |element| element.len());
        let layout = Layout {
            before_body: part(HEADER_BYTES + 4, parsed.body_offset),
            body_front: inside(4, split),
            max_time_bytes,
            body_back: inside(split + max_time_bytes, last),
            client,
            after_body: part(body_end, end),
        };
        let header = Header {
            message_length: message.header.message_length + added,
            // Always 0: with another value, mongod mistakes the first request on a connection for
            // TLS.
            response_to: 0,
            ..message.header
        };
        let flags = parsed.flags & !(MORE_TO_COME | EXHAUST_ALLOWED);
        let mut head = [0; HEADER_BYTES + 4];
        let (front, back) = head.split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&header.to_bytes());
        back.copy_from_slice(&flags.to_le_bytes());
        let body_length = i32::try_from(parsed.body.len() + added).unwrap_or(i32::MAX);
        let body_length = body_length.to_le_bytes();
        let mut outgoing = Self {
            head,
            body_length,
            max_time,
            added_max_time,
            checksum: None,
            // A streamed request cannot be compressed: its rest is still to come.
            may_be_compressed: !message.is_head() && command.spec.may_be_compressed,
            omits_client,
            layout,
        };
        if parsed.has_checksum() {
            let sum = checksum(outgoing.pieces());
            outgoing.checksum = Some(sum.to_le_bytes());
        }
        outgoing
    }

    fn pieces(&self) -> [&[u8]; MAX_PIECES] {
        let Layout {
            before_body,
            body_front,
            max_time_bytes,
            body_back,
            client,
            after_body,
        } = self.layout;
        [
            &self.head,
            before_body,
            &self.body_length,
            body_front,
            self.max_time.get(..max_time_bytes).unwrap_or_default(),
            body_back,
            client,
            self.added_max_time.as_ref().map_or(&[][..], |e| &e[..]),
            // The body's closing NUL, after the added elements.
            NUL,
            after_body,
        ]
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.pieces().concat();
        bytes.extend(self.checksum.iter().flatten());
        bytes
    }

    /// True if `$client` was left out because the message would have been too long for the server.
    pub(super) fn omits_client(&self) -> bool {
        self.omits_client
    }

    /// Size on the wire, uncompressed.
    pub(super) fn len(&self) -> usize {
        let checksum_bytes = self.checksum.map_or(0, |c| c.len());
        self.pieces().iter().map(|piece| piece.len()).sum::<usize>() + checksum_bytes
    }

    /// Writes the whole request, compressed if the connection allows it.
    pub(super) async fn write(
        &self,
        connection: &mut Connection,
        heavy: Heavy<'_>,
    ) -> io::Result<()> {
        let compressor = connection.compressor.filter(|_| self.may_be_compressed);
        let stream = &mut connection.stream;
        if let Some(compressor) = compressor {
            let plain = heavy.walk(self.len(), || self.to_bytes()).await;
            let packed = pack(plain, compressor, heavy).await;
            stream.write_all(&packed).await?;
            return stream.flush().await;
        }
        let mut written = 0;
        let length = self.len();
        while written < length {
            let step = poll_fn(|cx| self.poll_write(cx, stream, written)).await?;
            if step == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            written += step;
        }
        if stream.is_encrypted() {
            poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await?;
        }
        Ok(())
    }

    fn poll_write(
        &self,
        cx: &mut Context<'_>,
        stream: &mut Stream,
        skip: usize,
    ) -> Poll<io::Result<usize>> {
        let mut skip = skip;
        let mut slices = [IoSlice::new(&[]); MAX_PIECES + 1];
        let mut count = 0;
        let checksum = self.checksum.as_ref().map_or(&[][..], |c| &c[..]);
        for piece in self.pieces().into_iter().chain([checksum]) {
            let rest = piece.get(skip.min(piece.len())..).unwrap_or_default();
            skip -= piece.len() - rest.len();
            if let (false, Some(place)) = (rest.is_empty(), slices.get_mut(count)) {
                *place = IoSlice::new(rest);
                count += 1;
            }
        }
        let slices = slices.get(..count).unwrap_or_default();
        Pin::new(stream).poll_write_vectored(cx, slices)
    }
}

const NUL: &[u8] = &[0];

fn max_time_element(milliseconds: u64) -> [u8; MAX_TIME_ELEMENT_BYTES] {
    let mut element = *b"\x10maxTimeMS\0....";
    let milliseconds = i32::try_from(milliseconds).unwrap_or(i32::MAX);
    let (_, value) = element.split_at_mut(MAX_TIME_ELEMENT_BYTES - 4);
    value.copy_from_slice(&milliseconds.to_le_bytes());
    element
}

fn max_time_bytes(place: MaxTime, left_ms: u64) -> (usize, [u8; 8], usize) {
    let mut bytes = [0; 8];
    let left = u32::try_from(left_ms)
        .unwrap_or(u32::MAX)
        .min(i32::MAX.unsigned_abs());
    let length = match place.bson_type {
        16 => {
            let (front, _) = bytes.split_at_mut(4);
            front.copy_from_slice(&left.to_le_bytes());
            4
        }
        1 => {
            bytes = f64::from(left).to_le_bytes();
            8
        }
        _ => {
            bytes = u64::from(left).to_le_bytes();
            8
        }
    };
    (place.offset, bytes, length)
}

/// Why no reply reached the client.
#[derive(Debug, thiserror::Error)]
pub(super) enum RelayError {
    /// The server failed before the first byte of its reply. The client can still get an error.
    #[error("server failed before its reply: {0}")]
    Server(io::Error),
    /// The server failed in mid-reply. The client cannot get an error any more.
    #[error("server failed in mid-reply: {0}")]
    MidReply(io::Error),
    /// The reply belongs to another request, or is malformed.
    #[error("reply does not match the request: {0}")]
    Foreign(&'static str),
    /// The client has left.
    #[error("client left")]
    ClientGone {
        /// The part of the reply that is still unread.
        unread: Unread,
    },
}

/// The unread part of a reply on a server connection whose client has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// All of it: no byte has been read.
    Whole,
    /// This many bytes. The header has been read.
    Rest(usize),
    /// A part of the header was read. The end of the reply is unknown, so the connection must be
    /// closed.
    InHeader,
}

/// A whole reply, not yet sent.
pub(super) struct HeldReply {
    pub(super) bytes: Vec<u8>,
    /// Its share of the reply budget, if it is large.
    pub(super) share: Option<MemoryShare>,
}

/// A held reply, or the facts about a forwarded one.
pub(super) enum Reply {
    /// Complete, and not yet sent.
    Held(HeldReply, ReplyFacts),
    /// Sent as it arrived, except its backlog.
    Forwarded(Forwarded),
}

/// The client's end of an exchange.
pub(super) struct ClientEnd<'c> {
    pub(super) stream: &'c mut Stream,
    pub(super) reader: &'c mut MessageReader,
    /// How long the client may stall while reading a reply.
    pub(super) write_idle: Duration,
    /// True if the client waits for a reply. If not (`moreToCome`), it is sent nothing, and the
    /// operation continues when it leaves: many clients leave right after their last unacknowledged
    /// write, which a server would carry out.
    pub(super) is_awaiting: bool,
}

impl ClientEnd<'_> {
    /// Runs `work` until it is done or the client has left.
    pub(super) async fn unless_gone<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            self.poll_gone(cx).map(|()| None)
        })
        .await
    }

    /// Ready when a client that waits for a reply has left.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_awaiting {
            self.reader.poll_gone(cx, self.stream)
        } else {
            Poll::Pending
        }
    }

    /// Sends bytes to the client, if it waits for a reply.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_awaiting {
            return Ok(());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let write = poll_fn(|cx| Pin::new(&mut *self.stream).poll_write(cx, rest));
            // The first attempt usually writes everything. Only the rest needs a timer.
            let step = match poll_once(write).await {
                Ok(step) => step?,
                Err(write) => match timeout(self.write_idle, write).await {
                    Ok(step) => step?,
                    Err(_) => return Err(io::ErrorKind::TimedOut.into()),
                },
            };
            if step == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(step..).unwrap_or_default();
        }
        self.flush().await
    }

    /// Flushes TLS. The client has to accept the bytes within `write_idle`.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.stream.is_encrypted() {
            return Ok(());
        }
        let flush = poll_fn(|cx| Pin::new(&mut *self.stream).poll_flush(cx));
        match poll_once(flush).await {
            Ok(flushed) => flushed,
            Err(flush) => timeout(self.write_idle, flush).await?,
        }
    }
}

/// Polls a future once; returns it if it is not ready.
async fn poll_once<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}

/// The awaited reply, and how to handle a large one.
#[derive(Clone, Copy)]
pub(super) struct Awaited<'a> {
    pub(super) request_id: i32,
    pub(super) form: ReplyForm,
    /// True if the reply must be compressed for the client. It must then be held whole.
    pub(super) must_compress: bool,
    pub(super) budget: &'a MemoryBudget,
    pub(super) limits: &'a Limits,
    /// The client's address, or its user behind a shared address. Its share of the budget and of
    /// turns is used.
    pub(super) sharer: Sharer,
    /// Returns true if other operations wait for the server connection.
    pub(super) is_wanted: &'a (dyn Fn() -> bool + Send + Sync),
}

/// Reads the awaited reply. A large reply that is plain on both sides is forwarded as it arrives.
/// The server counts as failed if `given_up` resolves before the first byte.
pub(super) async fn relay_reply(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    awaited: Awaited<'_>,
    mut given_up: Pin<&mut impl Future<Output = ()>>,
    observation: &mut Observation<'_>,
) -> Result<Reply, RelayError> {
    let mut held = Vec::new();
    let read = poll_fn(|cx| {
        if let Poll::Ready(read) = poll_read_or_gone(cx, client, server, &mut held) {
            return Poll::Ready(read);
        }
        let given_up = given_up.as_mut().poll(cx);
        given_up.map(|()| Some(Err(io::ErrorKind::TimedOut.into())))
    })
    .await;
    match read {
        Some(Ok(0)) => return Err(RelayError::Server(io::ErrorKind::UnexpectedEof.into())),
        Some(Err(error)) => return Err(RelayError::Server(error)),
        None => {
            let unread = Unread::Whole;
            return Err(RelayError::ClientGone { unread });
        }
        Some(Ok(_)) => observation.enter(Phase::Receive, Instant::now()),
    }
    let header = loop {
        if let Some(head) = held.first_chunk::<HEADER_BYTES>() {
            break check_header(head, awaited.request_id)?;
        }
        read_more(client, server, &mut held, None).await?;
    };
    let length = header.message_length;
    if held.len() > length {
        return Err(RelayError::Foreign("bytes after the reply"));
    }
    if header.op_code == OpCode::Compressed {
        return inflate_reply(client, server, held, length, awaited).await;
    }
    let share = match length {
        _ if length <= HELD_REPLY_BYTES => None,
        // Room for the reply and for its compressed form.
        _ if awaited.must_compress => {
            match awaited.budget.try_reserve(awaited.sharer, 2 * length) {
                Some(share) => Some(share),
                // No room: it is forwarded plain, which is always allowed.
                None => return forward_from_head(client, server, held, length, awaited).await,
            }
        }
        _ => return forward_from_head(client, server, held, length, awaited).await,
    };
    read_whole(client, server, &mut held, length).await?;
    let facts = scan(&held, awaited.form)?;
    Ok(Reply::Held(HeldReply { bytes: held, share }, facts))
}

/// Completes the head of a large reply, then forwards it.
async fn forward_from_head(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    mut held: Vec<u8>,
    length: usize,
    awaited: Awaited<'_>,
) -> Result<Reply, RelayError> {
    while held.len() < REPLY_HEAD_BYTES {
        read_more(client, server, &mut held, Some(length)).await?;
    }
    forward_large(client, server, held, length, awaited).await
}

async fn read_whole(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    held: &mut Vec<u8>,
    length: usize,
) -> Result<(), RelayError> {
    held.reserve_exact(length - held.len());
    while held.len() < length {
        read_more(client, server, held, Some(length)).await?;
    }
    Ok(())
}

/// Holds a compressed reply whole and inflates it: it cannot be examined before.
async fn inflate_reply(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    mut held: Vec<u8>,
    length: usize,
    awaited: Awaited<'_>,
) -> Result<Reply, RelayError> {
    while held.len() < COMPRESSED_HEAD_BYTES.min(length) {
        read_more(client, server, &mut held, Some(length)).await?;
    }
    let wrong = |error: InflateError| {
        tracing::warn!(%error, "malformed compressed reply");
        RelayError::Foreign("malformed compressed message")
    };
    let head = CompressedHead::parse(&held, MAX_MESSAGE_BYTES).map_err(wrong)?;
    let inflated_length = head.inner.message_length;
    if head.inner.op_code != OpCode::Msg || inflated_length < REPLY_HEAD_BYTES {
        return Err(RelayError::Foreign("not OP_MSG"));
    }
    let bytes = length + inflated_length * if awaited.must_compress { 2 } else { 1 };
    let share = match length.max(inflated_length) > HELD_REPLY_BYTES {
        true => {
            let room = room_for_reply(client, &awaited, bytes).await;
            let unread = Unread::Rest(length - held.len());
            Some(room.ok_or(RelayError::ClientGone { unread })?)
        }
        false => None,
    };
    read_whole(client, server, &mut held, length).await?;
    let heavy = awaited.limits.heavy(awaited.sharer);
    let inflate = move || head.inflate(&held);
    let bytes = heavy.run(inflated_length, inflate).await.map_err(wrong)?;
    let facts = scan(&bytes, awaited.form)?;
    Ok(Reply::Held(HeldReply { bytes, share }, facts))
}

fn check_header(head: &[u8; HEADER_BYTES], request_id: i32) -> Result<Header, RelayError> {
    let header = Header::parse(head, MAX_MESSAGE_BYTES)
        .map_err(|_| RelayError::Foreign("length out of range"))?;
    if header.response_to != request_id {
        return Err(RelayError::Foreign("responds to another request"));
    }
    let is_reply = matches!(header.op_code, OpCode::Msg | OpCode::Compressed);
    if !is_reply || header.message_length < REPLY_HEAD_BYTES {
        return Err(RelayError::Foreign("not OP_MSG"));
    }
    Ok(header)
}

fn scan(reply: &[u8], form: ReplyForm) -> Result<ReplyFacts, RelayError> {
    check_flags(reply)?;
    let document = reply.get(REPLY_HEAD_BYTES..).unwrap_or_default();
    Ok(ReplyFacts::of(form, document))
}

/// Refuses a reply with `moreToCome`. The request allowed only one reply; a second one would reach
/// the next client that uses the connection.
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

/// Reads once more. `length` is the reply's length, or `None` until its header is complete.
async fn read_more(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    held: &mut Vec<u8>,
    length: Option<usize>,
) -> Result<(), RelayError> {
    match poll_fn(|cx| poll_read_or_gone(cx, client, server, held)).await {
        Some(Ok(0)) => Err(RelayError::MidReply(io::ErrorKind::UnexpectedEof.into())),
        Some(Ok(_)) if length.is_some_and(|length| held.len() > length) => {
            Err(RelayError::Foreign("bytes after the reply"))
        }
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(RelayError::MidReply(error)),
        None => {
            let rest = length.map(|length| Unread::Rest(length - held.len()));
            let unread = rest.unwrap_or(Unread::InHeader);
            Err(RelayError::ClientGone { unread })
        }
    }
}

/// Reads from the server; `None` if the client has left.
fn poll_read_or_gone(
    cx: &mut Context<'_>,
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    held: &mut Vec<u8>,
) -> Poll<Option<io::Result<usize>>> {
    if let Poll::Ready(read) = poll_read_into(cx, server, held) {
        return Poll::Ready(Some(read));
    }
    client.poll_gone(cx).map(|()| None)
}

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
/// used again.
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
        Unread::InHeader => return Err(RelayError::Foreign("header partly read")),
        Unread::Rest(left) => left,
        Unread::Whole => {
            let length = loop {
                if let Some(head) = held.first_chunk::<HEADER_BYTES>() {
                    break check_header(head, request_id)?.message_length;
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
        return Err(RelayError::Foreign("too long to drain"));
    }
    while left > 0 {
        held.clear();
        let result = poll_fn(|cx| poll_read_into(cx, server, &mut held)).await;
        left = read(&mut held, left, result)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
