//! Reads messages from a stream. A reader holds no buffer while it waits for a message.
//!
//! A read fills the thread's scratch buffer. The reader then copies the bytes that have arrived
//! into a buffer of their exact size. So nearly every command costs one read and one small
//! allocation. The scratch buffer is then zeroed, because the bytes may belong to a login.
//!
//! If a message is incomplete after its first read, its bytes are charged to the memory budget that
//! all connections share. If a client has sent bytes after a complete message (bytes sent ahead),
//! these bytes are charged before that message is returned. In addition to charged bytes, a reader
//! holds at most [`FREE_BYTES`]. While it waits for memory, it may also hold the bytes of one read.
//!
//! A message over [`LARGE_MESSAGE_BYTES`] is read into a buffer of its declared length. For a
//! message over [`STREAMED_MESSAGE_BYTES`], the reader first returns only the message's head. The
//! caller can then read the rest in pieces, or complete the message.

mod message;
mod rest;

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use self::rest::PIECE_BYTES;
pub use self::{
    message::{Inflating, Message},
    rest::RestOfMessage,
};
use tokio_util::io::poll_read_buf;

use seawall_wire::{FrameError, HEADER_BYTES, Header, OpCode};

use super::{
    budget::{Evicted, MemoryBudget, MemoryShare},
    progress::MESSAGE_LIMIT,
    sharer::Sharer,
};
use bytes::BufMut;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    task::yield_now,
    time::{Instant, timeout},
};

/// Messages over this size, in bytes, are large. Only their first bytes are read through the
/// thread's scratch buffer; the rest is read directly into the buffer of the message. A large
/// message stays charged to the memory budget until the caller drops the [`Message`].
pub const LARGE_MESSAGE_BYTES: usize = SCRATCH_BYTES;

const SCRATCH_BYTES: usize = 64 * 1024;

/// For `OP_MSG` messages over this size, in bytes, the reader first returns only the head: the
/// first part of the message. The caller can then read the rest in pieces, or complete the message.
pub const STREAMED_MESSAGE_BYTES: usize = 1024 * 1024;

/// Minimum size of the head (the first part) of a message over [`STREAMED_MESSAGE_BYTES`].
const HEAD_BYTES: usize = SCRATCH_BYTES;

/// Number of bytes of memory for a message that is read in pieces. The memory holds the head (the
/// first part) of the message, the bytes that the reader reads ahead, and one piece. The buffer of
/// the head may be almost twice as large as [`HEAD_BYTES`], because a `Vec` that grows doubles its
/// capacity.
const STREAM_SHARE_BYTES: usize = 2 * HEAD_BYTES + READ_AHEAD_BYTES + PIECE_BYTES;

/// Maximum number of bytes that each reader may hold without charging them to the memory budget:
/// the beginning of an incomplete message, or bytes that the client has sent after a complete
/// message. Nearly all commands are smaller, and the readers of 18,000 connections together hold at
/// most about 70 MiB without a charge.
pub(crate) const FREE_BYTES: usize = 4 * 1024;

/// Maximum number of bytes that one read adds to a large message.
const CHUNK_BYTES: usize = 256 * 1024;

/// Maximum number of bytes that Seawall reads ahead while an operation of the client runs.
const READ_AHEAD_BYTES: usize = FREE_BYTES;

/// Maximum time without a byte inside a message, except while the reader waits for memory. After
/// that, reading fails with [`ReadError::Stalled`].
const PARTIAL_MESSAGE_IDLE: Duration = Duration::from_secs(60);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

/// Calls `use_it` with the thread's scratch buffer.
///
/// # Panics
/// If `use_it` calls this function again.
pub fn with_scratch<R>(use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| use_it(scratch))
}

/// The reason why no message could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading from the stream failed.
    #[error("cannot read from the connection: {0}")]
    Io(#[from] io::Error),
    /// A header is invalid.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream ended inside a message.
    #[error("the stream ended inside a message")]
    Truncated,
    /// A message was not complete in time: its rest did not arrive, arrived too slowly, or waited
    /// too long for memory.
    #[error("the rest of a message arrived too slowly or not at all")]
    Stalled,
    /// The message was evicted, because other messages needed its memory. Usually its sender was
    /// silent or too slow.
    #[error("the message was evicted, because other messages needed its memory")]
    Evicted,
}

impl ReadError {
    /// The reason why Seawall closes the connection after this error, as the value of the label
    /// `reason` in metrics. `None` if the peer has closed the connection, or if reading failed.
    pub fn refusal(&self) -> Option<&'static str> {
        match self {
            Self::Io(_) | Self::Truncated => None,
            Self::Frame(_) => Some("message_length"),
            Self::Stalled => Some("message_stalled"),
            Self::Evicted => Some("message_evicted"),
        }
    }

    /// True if the peer has reset the connection.
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::ConnectionReset)
    }
}

impl From<Evicted> for ReadError {
    fn from(Evicted: Evicted) -> Self {
        Self::Evicted
    }
}

/// The result of an attempt to read.
enum Filled {
    /// Number of bytes that were read; 0 at the end of the stream.
    Read(usize),
    /// No bytes were read, because the budget has no free memory.
    WaitsForMemory,
}

/// The result of [`MessageReader::poll_small`].
#[derive(Debug)]
pub enum Polled {
    /// A whole message.
    Message(Message),
    /// The stream ended between two messages.
    End,
    /// The next message is large, has arrived only in part, or needs memory of the budget. Or other
    /// messages wait for memory, or the rest of the previous message is still unread. The caller
    /// must call [`MessageReader::next`].
    Unfinished,
}

/// Reads the messages of one stream. It keeps bytes that arrive after the current message.
#[derive(Debug, Default)]
pub struct MessageReader {
    buffer: Vec<u8>,
    share: Option<MemoryShare>,
    ended: bool,
    /// After the reader has returned the head (the first part) of a large message: number of bytes
    /// of this message that the reader has neither returned nor skipped yet. Otherwise 0.
    rest_bytes: usize,
    /// True if the current message must be returned whole, even if it is large.
    reads_whole: bool,
    /// When the current head (the first part of a large message) began to arrive; `None` if no head
    /// is being read.
    head_since: Option<Instant>,
    /// The address or user that is charged for memory.
    sharer: Sharer,
    /// When the reader began to wait for the rest of the current, incomplete message; `None` if no
    /// message is incomplete.
    partial_since: Option<Instant>,
    /// True if the last attempt to read found no free memory in the budget.
    waits_for_memory: bool,
}

impl MessageReader {
    /// Creates a reader for a stream. Memory is charged to `sharer`: an address or a user.
    pub fn new(sharer: Sharer) -> Self {
        Self {
            sharer,
            ..Self::default()
        }
    }

    /// Charges memory to another address or user from now on.
    pub fn set_sharer(&mut self, sharer: Sharer) {
        self.sharer = sharer;
    }

    /// The address or user that is charged for memory.
    pub fn sharer(&self) -> Sharer {
        self.sharer
    }

    /// Returns the next message, or the head of a large message. Returns `None` if the stream ended
    /// between two messages. Skips the unread rest of the previous message.
    ///
    /// Cancel safe: the reader keeps all bytes that it has read.
    ///
    /// # Errors
    /// See [`ReadError`]. The caller must close the stream after any error except
    /// [`ReadError::Frame`]. After [`ReadError::Frame`], the caller may instead call `next` again
    /// with another limit.
    pub async fn next<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        max_message_bytes: usize,
        budget: &MemoryBudget,
    ) -> Result<Option<Message>, ReadError> {
        if self.rest_bytes > 0 {
            Box::pin(self.skip_rest(stream)).await?;
        }
        loop {
            let expected = match self.buffer.first_chunk::<HEADER_BYTES>() {
                None => HEADER_BYTES,
                Some(head) => {
                    let header = Header::parse(head, max_message_bytes)?;
                    if let Some(ahead) = self.buffer.len().checked_sub(header.message_length) {
                        if ahead > FREE_BYTES {
                            let grown = self.share(budget).grow(ahead, ahead);
                            // The future is boxed, so that idle connections use no memory for it.
                            let grown = Box::pin(timeout(MESSAGE_LIMIT, grown)).await;
                            grown.map_err(|_| ReadError::Stalled)??;
                        }
                        return Ok(Some(self.take(header)));
                    }
                    let is_headed = self.is_headed(header);
                    if is_headed {
                        self.head_since.get_or_insert_with(Instant::now);
                    }
                    if is_headed && self.buffer.len() >= HEAD_BYTES {
                        // `left` is the memory that this share still needs, not the number of
                        // missing bytes: the caller can read the rest of the message in pieces, and
                        // the share has memory for only one piece.
                        let left = STREAM_SHARE_BYTES - HEAD_BYTES;
                        let share = self.share(budget);
                        Box::pin(share.grow(STREAM_SHARE_BYTES, left)).await?;
                        return Ok(Some(self.take_head(header)));
                    }
                    match is_headed {
                        true => HEAD_BYTES,
                        false => header.message_length,
                    }
                }
            };
            let read = self.fill_within(stream, expected, budget).await?;
            match (read, self.buffer.is_empty()) {
                (0, true) => return Ok(None),
                (0, false) => return Err(ReadError::Truncated),
                _ => {}
            }
        }
    }

    /// Returns the next message if one read is enough to receive it. [`Self::next`] would return
    /// the same message, but its future uses memory while the caller waits. This function needs no
    /// future.
    ///
    /// Cancel safe: the reader keeps all bytes that it has read.
    ///
    /// # Errors
    /// See [`Self::next`].
    pub fn poll_small<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        max_message_bytes: usize,
        budget: &MemoryBudget,
    ) -> Poll<Result<Polled, ReadError>> {
        if self.rest_bytes > 0 {
            return Poll::Ready(Ok(Polled::Unfinished));
        }
        if self.buffer.is_empty() {
            if budget.is_short() {
                return Poll::Ready(Ok(Polled::Unfinished));
            }
            if ready!(self.poll_fill(cx, stream, HEADER_BYTES, SCRATCH_BYTES))? == 0 {
                return Poll::Ready(Ok(Polled::End));
            }
        }
        let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() else {
            return Poll::Ready(Ok(Polled::Unfinished));
        };
        let header = Header::parse(head, max_message_bytes)?;
        let ahead = self.buffer.len().checked_sub(header.message_length);
        Poll::Ready(Ok(match ahead {
            Some(..=FREE_BYTES) => Polled::Message(self.take(header)),
            _ => Polled::Unfinished,
        }))
    }

    fn share(&mut self, budget: &MemoryBudget) -> &mut MemoryShare {
        let sharer = self.sharer;
        self.share.get_or_insert_with(|| budget.open(sharer))
    }

    /// Reads some bytes, within the budget. Between two messages, the wait has no limit. Inside a
    /// message, the next byte must arrive within [`PARTIAL_MESSAGE_IDLE`], unless the reader waits
    /// for memory.
    async fn fill_within<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        expected: usize,
        budget: &MemoryBudget,
    ) -> Result<usize, ReadError> {
        loop {
            let waited_for_memory = self.waits_for_memory;
            let limit = match (self.buffer.is_empty(), waited_for_memory) {
                (true, _) => None,
                (false, true) => Some(MemoryShare::RETRY_AFTER),
                (false, false) => Some(PARTIAL_MESSAGE_IDLE),
            };
            if limit.is_some() {
                let since = self.partial_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= MESSAGE_LIMIT {
                    return Err(ReadError::Stalled);
                }
            }
            let filling = poll_fn(|cx| self.poll_fill_within(cx, stream, expected, budget));
            let filled = match limit {
                None => filling.await?,
                Some(limit) => match Box::pin(timeout(limit, filling)).await {
                    Ok(filled) => filled?,
                    // When this timeout began, the reader waited for memory. The reader may have
                    // got the memory only a moment ago, so the sender has not stalled.
                    Err(_) if waited_for_memory => Filled::WaitsForMemory,
                    Err(_) => return Err(ReadError::Stalled),
                },
            };
            if let Filled::Read(bytes) = filled {
                if expected > LARGE_MESSAGE_BYTES {
                    // The yield lets other clients be served between the chunks of a large message.
                    yield_now().await;
                }
                return Ok(bytes);
            }
        }
    }

    fn poll_fill_within<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        expected: usize,
        budget: &MemoryBudget,
    ) -> Poll<Result<Filled, ReadError>> {
        let held = self.buffer.len();
        if held == 0 && !budget.is_short() {
            let read = ready!(self.poll_fill(cx, stream, expected, SCRATCH_BYTES))?;
            return Poll::Ready(Ok(Filled::Read(read)));
        }
        let most = match expected > LARGE_MESSAGE_BYTES {
            true => CHUNK_BYTES,
            false => SCRATCH_BYTES,
        };
        let left = expected.saturating_sub(held);
        let chunk = left.clamp(1, most);
        let free = FREE_BYTES.saturating_sub(held);
        let room = if chunk <= free {
            free
        } else {
            match self.share(budget).poll_grow(cx, held + chunk, left) {
                Poll::Ready(grown) => {
                    grown?;
                    chunk
                }
                Poll::Pending => free,
            }
        };
        let waited = std::mem::replace(&mut self.waits_for_memory, room == 0);
        if room == 0 {
            return match waited {
                true => Poll::Pending,
                false => Poll::Ready(Ok(Filled::WaitsForMemory)),
            };
        }
        let read = self.poll_fill(cx, stream, expected, room);
        let now_held = self.buffer.len();
        if let Some(share) = &mut self.share {
            let waker = read.is_pending().then(|| cx.waker());
            share.settle(now_held, now_held - held, waker);
        }
        Poll::Ready(Ok(Filled::Read(ready!(read)?)))
    }

    /// True if the reader returns the head (the first part) of this message before the rest has
    /// arrived. The caller then reads the rest separately.
    fn is_headed(&self, header: Header) -> bool {
        !self.reads_whole
            && header.op_code == OpCode::Msg
            && header.message_length > STREAMED_MESSAGE_BYTES
    }

    /// Reads the rest of the message that begins with `head`, and returns the whole message. `head`
    /// must be the value that [`Self::next`] returned last.
    ///
    /// # Errors
    /// See [`ReadError`]. After an error, the caller must close the stream.
    pub async fn complete<S: AsyncRead + Unpin>(
        &mut self,
        mut head: Message,
        stream: &mut S,
        budget: &MemoryBudget,
    ) -> Result<Message, ReadError> {
        let bytes = std::mem::take(&mut head.bytes);
        let ahead = std::mem::replace(&mut self.buffer, bytes);
        self.buffer.extend(ahead);
        self.rest_bytes = 0;
        self.reads_whole = true;
        self.share = head.share.take();
        let held = self.buffer.len();
        if let Some(share) = &mut self.share {
            share.settle(held, 0, None);
        }
        let read = self.next(stream, head.header.message_length, budget).await;
        read?.ok_or(ReadError::Truncated)
    }

    /// Skips the rest of the message whose head was returned last. Cancel safe: the next call
    /// continues, and [`MESSAGE_LIMIT`] counts from the first call.
    async fn skip_rest<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> Result<(), ReadError> {
        while self.rest_bytes > 0 {
            let there = self.buffer.len().min(self.rest_bytes);
            if there > 0 {
                self.buffer.drain(..there);
                self.rest_bytes -= there;
                continue;
            }
            self.buffer = Vec::new();
            let since = self.partial_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= MESSAGE_LIMIT {
                return Err(ReadError::Stalled);
            }
            let more = poll_fn(|cx| self.poll_fill(cx, stream, HEADER_BYTES, FREE_BYTES));
            let more = timeout(PARTIAL_MESSAGE_IDLE, more).await;
            if more.map_err(|_| ReadError::Stalled)?? == 0 {
                return Err(ReadError::Truncated);
            }
        }
        self.partial_since = None;
        Ok(())
    }

    /// Reads the header of the next message without consuming it.
    ///
    /// # Errors
    /// If reading fails, or the stream ends before the header is complete.
    pub async fn peek_header<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
    ) -> io::Result<[u8; HEADER_BYTES]> {
        loop {
            if let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() {
                return Ok(*head);
            }
            self.fill_free(stream).await?;
        }
    }

    /// Forwards one whole TLS record (type, version, length, content) whose first bytes
    /// [`Self::peek_header`] has read.
    ///
    /// # Errors
    /// If reading or writing fails, or `stream` ends before the record is complete.
    pub async fn forward_record<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> io::Result<()> {
        let mut left = match self.buffer.first_chunk::<5>() {
            Some([_, _, _, high, low]) => 5 + usize::from(u16::from_be_bytes([*high, *low])),
            None => return Err(io::ErrorKind::InvalidData.into()),
        };
        loop {
            let behind = self.buffer.split_off(left.min(self.buffer.len()));
            let piece = std::mem::replace(&mut self.buffer, behind);
            to.write_all(&piece).await?;
            left -= piece.len();
            if left == 0 {
                return Ok(());
            }
            self.fill_free(stream).await?;
        }
    }

    /// Reads available bytes, at most as many as the reader may hold without charging them to the
    /// memory budget.
    async fn fill_free<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> io::Result<()> {
        let room = FREE_BYTES.saturating_sub(self.buffer.len());
        match poll_fn(|cx| self.poll_fill(cx, stream, HEADER_BYTES, room)).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// The bytes that have been read but not returned yet.
    pub fn buffered(&self) -> &[u8] {
        &self.buffer
    }

    /// Ready when the peer has closed the stream, or reading has failed. Callers poll this function
    /// while an operation of the client runs. The reader keeps up to 4 KiB that arrive during the
    /// operation. While it holds 4 KiB, it does not notice that the peer has closed the stream.
    pub fn poll_gone<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<()> {
        while self.buffer.len() < READ_AHEAD_BYTES && !self.ended {
            let room = READ_AHEAD_BYTES - self.buffer.len();
            match ready!(self.poll_fill(cx, stream, HEADER_BYTES, room)) {
                Ok(0) | Err(_) => self.ended = true,
                Ok(_) => {}
            }
        }
        if self.ended {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Reads at most `room` bytes. `expected` is the number of bytes that the buffer must contain
    /// before the reader can take the next step: parse a header, return a message, or return the
    /// head (the first part) of a large message.
    fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        expected: usize,
        room: usize,
    ) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Ok(0));
        }
        let missing = expected.saturating_sub(self.buffer.len());
        if expected > LARGE_MESSAGE_BYTES {
            // The read stops at the end of this message. Further bytes would make the buffer grow,
            // which copies the whole message.
            self.buffer.reserve_exact(missing);
            let mut rest = (&mut self.buffer).limit(missing.min(room));
            return poll_read_buf(Pin::new(stream), cx, &mut rest);
        }
        with_scratch(|scratch| {
            let room = room.min(scratch.len());
            let mut room = ReadBuf::new(scratch.get_mut(..room).unwrap_or_default());
            ready!(Pin::new(stream).poll_read(cx, &mut room))?;
            let filled = room.filled_mut();
            self.buffer.extend_from_slice(filled);
            // The bytes may belong to a login, so they are zeroed. `fill` is much faster than
            // volatile writes. The compiler does not remove it, because the buffer is used again.
            filled.fill(0);
            Poll::Ready(Ok(filled.len()))
        })
    }

    /// Removes the first message, which is complete, from the buffer and returns it. If the buffer
    /// contains no bytes after this message, the buffer is moved and not copied.
    fn take(&mut self, header: Header) -> Message {
        let ahead = self.buffer.split_off(header.message_length);
        let bytes = std::mem::replace(&mut self.buffer, ahead);
        self.reads_whole = false;
        self.waits_for_memory = false;
        self.partial_since = None;
        let is_large = header.message_length > LARGE_MESSAGE_BYTES;
        let share = self.share.take_if(|_| is_large);
        self.settle_ahead();
        Message::new(header, bytes, share)
    }

    /// Releases all memory except for the bytes that the client has sent after the returned
    /// message.
    fn settle_ahead(&mut self) {
        match (self.buffer.len(), &mut self.share) {
            (ahead, Some(share)) if ahead > FREE_BYTES => share.settle(ahead, 0, None),
            (_, share) => *share = None,
        }
    }

    fn take_head(&mut self, header: Header) -> Message {
        let bytes = std::mem::take(&mut self.buffer);
        self.partial_since = None;
        self.rest_bytes = header.message_length - bytes.len();
        let mut head = Message::new(header, bytes, self.share.take());
        head.head_since = self.head_since.take();
        head
    }
}

#[cfg(test)]
mod edge_tests;

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use seawall_wire::{MAX_MESSAGE_BYTES, encode_request};

    fn budget() -> MemoryBudget {
        MemoryBudget::of_bytes(64 << 20)
    }

    fn request(id: i32, size: usize) -> Vec<u8> {
        encode_request(id, &vec![7; size])
    }

    #[tokio::test]
    async fn the_reader_returns_the_same_messages_for_any_split_of_the_bytes() {
        let sent = [request(1, 10), request(2, 1000), request(3, 0)];
        let stream = sent.concat();
        for piece in [1, 2, 15, 16, 17, 100, stream.len()] {
            let (mut near, mut far) = tokio::io::duplex(64);
            let bytes = stream.clone();
            let writer = tokio::spawn(async move {
                for chunk in bytes.chunks(piece) {
                    far.write_all(chunk).await.unwrap();
                }
            });
            let mut reader = MessageReader::default();
            for message in &sent {
                let read = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget()).await;
                assert_eq!(&read.unwrap().unwrap().bytes, message);
            }
            let end = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget()).await;
            assert!(end.unwrap().is_none());
            assert_eq!(
                reader.buffer.capacity(),
                0,
                "an idle reader holds no buffer"
            );
            writer.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_large_message_is_read_into_a_buffer_that_is_not_much_larger_than_the_message() {
        let large = request(1, 3 << 20);
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        let sent = [large.clone(), request(2, 1)].concat();
        tokio::spawn(async move { far.write_all(&sent).await });
        let mut reader = MessageReader::default();
        let head = reader
            .next(&mut near, MAX_MESSAGE_BYTES, &budget())
            .await
            .unwrap()
            .unwrap();
        assert!(head.is_head() && large.starts_with(&head.bytes));
        let first = reader.complete(head, &mut near, &budget()).await.unwrap();
        assert_eq!(first.bytes, large);
        assert!(first.bytes.capacity() <= large.len() + SCRATCH_BYTES);
        let second = reader
            .next(&mut near, MAX_MESSAGE_BYTES, &budget())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(second.header.request_id, 2);
    }

    #[tokio::test]
    async fn the_rest_of_a_large_message_is_read_in_pieces_or_skipped_after_its_first_part() {
        let large = request(1, 3 << 20);
        for pieces in [0, 1, 2, usize::MAX] {
            let (mut near, mut far) = tokio::io::duplex(1 << 16);
            let sent = [large.clone(), request(2, 1)].concat();
            // The stream stays open: the task returns `far`, and `_writer` keeps the task's output.
            let _writer = tokio::spawn(async move { far.write_all(&sent).await.map(|()| far) });
            let mut reader = MessageReader::default();
            let head = reader
                .next(&mut near, MAX_MESSAGE_BYTES, &budget())
                .await
                .unwrap()
                .unwrap();
            let mut read = head.bytes.clone();
            let mut piece = Vec::new();
            let mut rest = RestOfMessage::of(&head, &|| false);
            for _ in 0..pieces {
                // Between two pieces, `poll_gone` may read more bytes of the message. The next
                // piece must contain them.
                let gone = poll_fn(|cx| Poll::Ready(reader.poll_gone(cx, &mut near))).await;
                assert!(gone.is_pending());
                let next = rest.next_piece(&mut reader, &mut near, &mut piece);
                next.await.unwrap();
                assert!(piece.capacity() <= PIECE_BYTES);
                if piece.is_empty() {
                    break;
                }
                read.extend(&piece);
            }
            assert!(large.starts_with(&read) && (pieces != usize::MAX || read == large));
            let next = reader
                .next(&mut near, MAX_MESSAGE_BYTES, &budget())
                .await
                .unwrap()
                .unwrap();
            assert_eq!(next.bytes, request(2, 1));
        }
    }

    #[tokio::test]
    async fn a_message_over_the_limit_is_refused_before_its_body_is_read() {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        far.write_all(&request(1, 20_000)[..16]).await.unwrap();
        let error = MessageReader::default()
            .next(&mut near, 16_384, &budget())
            .await
            .unwrap_err();
        assert!(matches!(
            error,
            ReadError::Frame(FrameError::LengthOutOfRange { .. })
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_whose_rest_never_arrives_times_out() {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        far.write_all(&request(1, 20_000)[..100]).await.unwrap();
        let mut reader = MessageReader::default();
        let error = reader
            .next(&mut near, MAX_MESSAGE_BYTES, &budget())
            .await
            .unwrap_err();
        assert!(matches!(error, ReadError::Stalled));
        drop(far);
        let error = reader
            .next(&mut near, MAX_MESSAGE_BYTES, &budget())
            .await
            .unwrap_err();
        assert!(matches!(error, ReadError::Truncated));
    }

    #[tokio::test]
    async fn only_arrived_bytes_of_a_message_count_towards_the_memory_budget() {
        let budget = budget();
        let large = request(1, 3 << 20);
        for sent in [16, 5_000, 20_000, 60_000] {
            let (mut near, mut far) = tokio::io::duplex(1 << 20);
            let mut reader = MessageReader::default();
            // Only the bytes that have arrived are charged, although the header declares megabytes.
            for chunk in large[..sent].chunks(5_000) {
                far.write_all(chunk).await.unwrap();
                let mut next = Box::pin(reader.next(&mut near, MAX_MESSAGE_BYTES, &budget));
                let polled = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
                assert!(polled.is_pending());
            }
            assert_eq!(budget.used_bytes(), sent, "{sent}");
            assert_eq!(reader.buffer.len(), sent);
        }
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test]
    async fn small_messages_are_read_while_the_memory_budget_is_exhausted() {
        let budget = MemoryBudget::of_bytes(1 << 20);
        let mut full = budget.open(Sharer::Local);
        full.grow(1 << 20, 1).await.unwrap();
        let (mut near, mut far) = tokio::io::duplex(1 << 20);
        let mut reader = MessageReader::default();
        for bytes in [100, 2_000, 3_000] {
            far.write_all(&request(1, bytes)).await.unwrap();
            let read = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget).await;
            assert_eq!(read.unwrap().unwrap().bytes, request(1, bytes));
        }
    }

    #[tokio::test]
    async fn poll_gone_detects_a_closed_stream_even_if_a_request_has_arrived_and_is_not_read_yet() {
        let (mut near, mut far) = tokio::io::duplex(1 << 16);
        far.write_all(&request(5, 30)).await.unwrap();
        let mut reader = MessageReader::default();
        let pending = poll_fn(|cx| Poll::Ready(reader.poll_gone(cx, &mut near).is_pending())).await;
        assert!(pending);
        drop(far);
        poll_fn(|cx| reader.poll_gone(cx, &mut near)).await;
        let ahead = reader
            .next(&mut near, MAX_MESSAGE_BYTES, &budget())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(ahead.header.request_id, 5);
        assert!(
            reader
                .next(&mut near, MAX_MESSAGE_BYTES, &budget())
                .await
                .unwrap()
                .is_none()
        );
    }
}
