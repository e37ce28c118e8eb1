//! A request's bytes to a server, unchanged but for the few edits that are listed here, and the reply back.
//!
//! The edits: `moreToCome` and `exhaustAllowed` cleared (one request has one reply), `$client` added, the
//! remainder of `maxTimeMS`, a new checksum where there was one. A reply of up to [`HELD_REPLY_BYTES`] is held
//! until it is complete, so that an error in it can be acted upon; a larger one is forwarded as it comes.

use std::{
    future::poll_fn,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, timeout},
};

use crate::{
    command::{Command, MaxTime, ReplyFacts, ReplyScanner},
    observe::{Observation, Phase},
    wire::{
        EXHAUST_ALLOWED, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MORE_TO_COME, Message,
        MessageReader, OpCode, OpMsg, Stream, checksum, with_scratch,
    },
};

/// Replies up to this size are held until they are complete.
const HELD_REPLY_BYTES: usize = 64 * 1024;

/// Bytes of an `OP_MSG` reply before its document: header, flags, section kind.
const REPLY_HEAD_BYTES: usize = HEADER_BYTES + 4 + 1;

/// Pieces of an edited request at most.
const MAX_PIECES: usize = 9;

/// A request as it goes to a server: borrowed pieces of the client's message between edits.
pub(super) struct Outgoing<'m> {
    head: [u8; HEADER_BYTES + 4],
    body_length: [u8; 4],
    max_time: [u8; 8],
    checksum: Option<[u8; 4]>,
    layout: Layout<'m>,
}

/// Where the edits fall in the client's message.
struct Layout<'m> {
    before_body: &'m [u8],
    body_front: &'m [u8],
    max_time_bytes: usize,
    body_back: &'m [u8],
    client: &'m [u8],
    after_body: &'m [u8],
}

impl<'m> Outgoing<'m> {
    /// Prepares a message; `client` is an element to add to the body, `remaining` what is left of `maxTimeMS`.
    pub(super) fn new(
        message: &'m Message,
        parsed: &OpMsg<'m>,
        command: &Command<'m>,
        client: Option<&'m [u8]>,
        remaining: Option<(MaxTime, u64)>,
    ) -> Self {
        let client = client.filter(|c| !command.has_client && command.has_room_for(c.len()));
        let client = client.unwrap_or_default();
        let body_end = parsed.body_offset + parsed.body.len();
        let bytes = message.bytes.as_slice();
        let end = bytes.len() - if parsed.has_checksum() { 4 } else { 0 };
        let part = |from: usize, to: usize| bytes.get(from..to).unwrap_or_default();
        let inside = |from: usize, to: usize| parsed.body.get(from..to).unwrap_or_default();
        let last = parsed.body.len() - 1;
        let (split, max_time, max_time_bytes) = match remaining {
            Some((place, left)) => max_time_bytes(place, left),
            None => (last, [0; 8], 0),
        };
        let layout = Layout {
            before_body: part(HEADER_BYTES + 4, parsed.body_offset),
            body_front: inside(4, split),
            max_time_bytes,
            body_back: inside(split + max_time_bytes, last),
            client,
            after_body: part(body_end, end),
        };
        let header = Header {
            message_length: bytes.len() + client.len(),
            // 0, since mongod takes the first request on a connection with another value for TLS.
            response_to: 0,
            ..message.header
        };
        let flags = parsed.flags & !(MORE_TO_COME | EXHAUST_ALLOWED);
        let mut head = [0; HEADER_BYTES + 4];
        let (front, back) = head.split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&header.to_bytes());
        back.copy_from_slice(&flags.to_le_bytes());
        let body_length = i32::try_from(parsed.body.len() + client.len()).unwrap_or(i32::MAX);
        let body_length = body_length.to_le_bytes();
        let mut outgoing = Self {
            head,
            body_length,
            max_time,
            checksum: None,
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
            // The body's own closing NUL, after what was added.
            // Joined with what follows by the caller's vectored write.
            NUL,
            after_body,
        ]
    }

    /// Its size on the wire.
    pub(super) fn len(&self) -> usize {
        let checksum_bytes = self.checksum.map_or(0, |c| c.len());
        self.pieces().iter().map(|piece| piece.len()).sum::<usize>() + checksum_bytes
    }

    /// Writes it whole.
    pub(super) async fn write(&self, stream: &mut Stream) -> io::Result<()> {
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
    /// The server failed before its reply's first byte: something can still be said to the client.
    #[error("server failed before it answered: {0}")]
    Server(io::Error),
    /// It failed after it: nothing truthful can be said any more.
    #[error("server failed in mid-reply: {0}")]
    MidReply(io::Error),
    /// The reply is not the request's, or not of a form that can be followed.
    #[error("reply does not answer the request: {0}")]
    Foreign(&'static str),
    /// The client has left; so many bytes of the reply are still to come, if that is known.
    #[error("client left")]
    ClientGone {
        /// `None` before the reply's header has been read.
        unread_bytes: Option<usize>,
    },
}

/// A reply that was held, or what a forwarded one said.
pub(super) enum Reply {
    /// Complete, and not yet sent.
    Held(Vec<u8>, ReplyFacts),
    /// Sent as it came.
    Forwarded { facts: ReplyFacts, bytes: usize },
}

/// The client's end of an exchange.
pub(super) struct ClientEnd<'c> {
    pub(super) stream: &'c mut Stream,
    pub(super) reader: &'c mut MessageReader,
    /// How long the client may take no byte.
    pub(super) write_idle: Duration,
    /// Whether the client waits for a reply. If not (`moreToCome`), it is sent nothing, and its leaving ends
    /// nothing: many leave right after their last unacknowledged write, which a server would carry out.
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

    /// Ready when the client has left and that matters.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_awaiting {
            self.reader.poll_gone(cx, self.stream)
        } else {
            Poll::Pending
        }
    }

    /// Sends bytes to the client, if it waits for any.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_awaiting {
            return Ok(());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let write = poll_fn(|cx| Pin::new(&mut *self.stream).poll_write(cx, rest));
            // The first try usually takes all; only what is left over is worth a timer.
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
        if self.stream.is_encrypted() {
            poll_fn(|cx| Pin::new(&mut *self.stream).poll_flush(cx)).await?;
        }
        Ok(())
    }
}

/// Polls a future once; gives it back if it is not ready.
async fn poll_once<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}

/// Reads the reply to `request_id` and, if it is large, forwards it.
pub(super) async fn relay_reply(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    request_id: i32,
    observation: &mut Observation<'_>,
) -> Result<Reply, RelayError> {
    let mut held = Vec::new();
    let read = poll_fn(|cx| poll_read_or_gone(cx, client, server, &mut held)).await;
    match read {
        Some(Ok(0)) => return Err(RelayError::Server(io::ErrorKind::UnexpectedEof.into())),
        Some(Err(error)) => return Err(RelayError::Server(error)),
        None => return Err(RelayError::ClientGone { unread_bytes: None }),
        Some(Ok(_)) => observation.enter(Phase::Receive, Instant::now()),
    }
    let length = loop {
        if let Some(head) = held.first_chunk::<HEADER_BYTES>() {
            break check_header(head, request_id)?;
        }
        read_more(client, server, &mut held, None).await?;
    };
    if held.len() > length {
        return Err(RelayError::Foreign("bytes after the reply"));
    }
    if length <= HELD_REPLY_BYTES {
        while held.len() < length {
            read_more(client, server, &mut held, Some(length)).await?;
        }
        let facts = scan(&held)?;
        return Ok(Reply::Held(held, facts));
    }
    forward_large(client, server, held, length).await
}

fn check_header(head: &[u8; HEADER_BYTES], request_id: i32) -> Result<usize, RelayError> {
    let header = Header::parse(head, MAX_MESSAGE_BYTES)
        .map_err(|_| RelayError::Foreign("length out of range"))?;
    if header.response_to != request_id {
        return Err(RelayError::Foreign("answers another request"));
    }
    if header.op_code != OpCode::Msg || header.message_length < REPLY_HEAD_BYTES {
        return Err(RelayError::Foreign("not OP_MSG"));
    }
    Ok(header.message_length)
}

fn scan(reply: &[u8]) -> Result<ReplyFacts, RelayError> {
    check_flags(reply)?;
    let mut scanner = ReplyScanner::default();
    scanner.feed(reply.get(REPLY_HEAD_BYTES..).unwrap_or_default());
    Ok(*scanner.facts())
}

/// A reply to a request that allowed no more has no other after it; one that says otherwise would leave
/// another client's bytes on the connection.
fn check_flags(reply: &[u8]) -> Result<(), RelayError> {
    let flags = reply
        .get(HEADER_BYTES..)
        .and_then(|rest| rest.first_chunk::<4>());
    let flags = flags
        .map(|bytes| u32::from_le_bytes(*bytes))
        .unwrap_or_default();
    if flags & MORE_TO_COME != 0 {
        return Err(RelayError::Foreign("another reply is said to follow"));
    }
    Ok(())
}

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
            let unread_bytes = length.map(|length| length - held.len());
            Err(RelayError::ClientGone { unread_bytes })
        }
    }
}

/// Reads what the server has; `None` if the client has left meanwhile.
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

fn poll_read_into(
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

/// Forwards a reply as it comes, one bounded piece at a time: what the client does not take, the server is
/// not asked for.
async fn forward_large(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    mut held: Vec<u8>,
    length: usize,
) -> Result<Reply, RelayError> {
    let mut scanner = ReplyScanner::default();
    let mut seen = 0;
    loop {
        if seen < REPLY_HEAD_BYTES && held.len() < REPLY_HEAD_BYTES {
            read_more(client, server, &mut held, Some(length)).await?;
            continue;
        }
        let before = REPLY_HEAD_BYTES.saturating_sub(seen);
        if seen == 0 {
            check_flags(&held)?;
        }
        scanner.feed(held.get(before..).unwrap_or_default());
        seen += held.len();
        if client.send(&held).await.is_err() {
            return Err(RelayError::ClientGone {
                unread_bytes: Some(length - seen),
            });
        }
        if seen == length {
            return Ok(Reply::Forwarded {
                facts: *scanner.facts(),
                bytes: length,
            });
        }
        held.clear();
        let left = length - seen;
        read_more(client, server, &mut held, Some(left)).await?;
    }
}

/// Reads the rest of a reply that nobody waits for any more, so that its connection can be used again.
pub(super) async fn drain_reply(
    server: &mut Stream,
    request_id: i32,
    unread_bytes: Option<usize>,
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
    let mut left = match unread_bytes {
        Some(left) => left,
        None => {
            let length = loop {
                if let Some(head) = held.first_chunk::<HEADER_BYTES>() {
                    break check_header(head, request_id)?;
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
        return Err(RelayError::Foreign("too much to read for nobody"));
    }
    while left > 0 {
        held.clear();
        let result = poll_fn(|cx| poll_read_into(cx, server, &mut held)).await;
        left = read(&mut held, left, result)?;
    }
    Ok(())
}

/// Whether an idle connection is still open and silent: an end or stray bytes that have arrived are seen
/// without a system call when there are none.
pub(super) async fn is_quiet(stream: &mut Stream) -> bool {
    let mut byte = [0];
    let mut room = ReadBuf::new(&mut byte);
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_read(cx, &mut room).is_pending())).await
}
