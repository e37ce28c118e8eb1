//! Whole messages from a stream, with no buffer held while nothing is under way.
//!
//! A read goes into a scratch buffer of the thread and what arrived is copied out in its exact size; nearly
//! every request is one read and one small allocation. A message over [`LARGE_MESSAGE_BYTES`] is read straight
//! into a buffer of its declared length, for which room in the budget of all connections is awaited first. Of one
//! over [`STREAMED_MESSAGE_BYTES`] first only a head is given out: the rest can then be taken piece by piece, or
//! the message be completed.

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::BufMut;
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::{Instant, timeout},
};
use tokio_util::io::poll_read_buf;

use super::{
    compressed::{COMPRESSED_HEAD_BYTES, CompressedHead, Compressor, InflateError},
    header::{FrameError, HEADER_BYTES, Header, OpCode},
};

/// Messages over this size count against the memory budget and are read without the scratch buffer.
pub const LARGE_MESSAGE_BYTES: usize = SCRATCH_BYTES;

const SCRATCH_BYTES: usize = 64 * 1024;

/// Of `OP_MSG` messages over this size a head is given out first.
pub const STREAMED_MESSAGE_BYTES: usize = 1024 * 1024;

/// Of a message over [`STREAMED_MESSAGE_BYTES`] at least so much is its head.
const HEAD_BYTES: usize = SCRATCH_BYTES;

/// Bytes of a message's rest that are taken at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// How long each such piece may take to come: a connection to a server waits for it.
const PIECE_LIMIT: Duration = Duration::from_secs(10);

/// What a message takes that is streamed: its head, what is read ahead of its pieces, and one of them.
const STREAM_SHARE_BYTES: usize = 2 * HEAD_BYTES + READ_AHEAD_BYTES + PIECE_BYTES;

/// What a client may have sent ahead while its operation runs; beyond it we stop reading.
const READ_AHEAD_BYTES: usize = SCRATCH_BYTES;

/// How long the rest of a begun message may bring no byte: a sender that is this slow is gone.
const PARTIAL_MESSAGE_IDLE: Duration = Duration::from_secs(60);

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into_boxed_slice());
}

/// Lends the thread's scratch buffer. Not to be nested: `use_it` must not lend it again.
pub fn with_scratch<R>(use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    SCRATCH.with_borrow_mut(|scratch| use_it(scratch))
}

/// Memory for large messages of all connections together.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    kibibytes: Arc<Semaphore>,
    all: u32,
}

/// A share of a memory budget, given back when dropped.
#[derive(Debug)]
#[must_use]
pub struct MemoryShare(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

impl MemoryBudget {
    /// A budget of so many bytes, rounded down to whole KiB.
    pub fn of_bytes(bytes: usize) -> Self {
        let all = u32::try_from((bytes / 1024).min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        Self {
            kibibytes: Arc::new(Semaphore::new(usize::try_from(all).unwrap_or(usize::MAX))),
            all,
        }
    }

    /// A share, waited for in order of arrival. What is larger than the whole budget gets all of it.
    pub async fn reserve(&self, bytes: usize) -> MemoryShare {
        let kibibytes = self.kibibytes_of(bytes);
        let permit = Arc::clone(&self.kibibytes)
            .acquire_many_owned(kibibytes)
            .await;
        MemoryShare(permit.expect("the budget's semaphore is never closed"))
    }

    /// A share, if there is one now.
    pub fn try_reserve(&self, bytes: usize) -> Option<MemoryShare> {
        let kibibytes = self.kibibytes_of(bytes);
        let permit = Arc::clone(&self.kibibytes).try_acquire_many_owned(kibibytes);
        permit.ok().map(MemoryShare)
    }

    /// Bytes of it that are in use.
    pub fn used_bytes(&self) -> usize {
        let all = usize::try_from(self.all).unwrap_or(usize::MAX);
        all.saturating_sub(self.kibibytes.available_permits()) * 1024
    }

    fn kibibytes_of(&self, bytes: usize) -> u32 {
        let kibibytes = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        kibibytes.min(self.all)
    }
}

/// One message as it came, header included.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// All its bytes, or its head's.
    pub bytes: Vec<u8>,
    /// When its first bytes came, if this is only a head.
    pub head_since: Option<Instant>,
    /// How it was compressed, if it came so.
    pub compressor: Option<Compressor>,
    /// Its share of the budget, given back with the message.
    share: Option<MemoryShare>,
}

/// Inflating more than this takes long enough to be left to a thread of its own.
const INFLATE_ELSEWHERE_BYTES: usize = 256 * 1024;

impl Message {
    /// Whether this is only a head, whose rest is still with the reader.
    pub fn is_head(&self) -> bool {
        self.bytes.len() < self.header.message_length
    }

    /// The message that is inside a compressed one.
    ///
    /// # Errors
    /// See [`InflateError`]; the stream must be closed.
    pub async fn inflate(
        self,
        max_message_bytes: usize,
        budget: &MemoryBudget,
    ) -> Result<Self, InflateError> {
        let mut inflated =
            Self::inflated(self.bytes, self.share.is_some(), max_message_bytes, budget).await?;
        inflated.share = inflated.share.or(self.share);
        Ok(inflated)
    }

    /// A look into a compressed message, which stays as it is.
    ///
    /// # Errors
    /// See [`InflateError`].
    pub async fn look_inside(
        &self,
        max_message_bytes: usize,
        budget: &MemoryBudget,
    ) -> Result<Self, InflateError> {
        Self::inflated(
            self.bytes.clone(),
            self.share.is_some(),
            max_message_bytes,
            budget,
        )
        .await
    }

    async fn inflated(
        bytes: Vec<u8>,
        has_share: bool,
        max_message_bytes: usize,
        budget: &MemoryBudget,
    ) -> Result<Self, InflateError> {
        let head = CompressedHead::parse(&bytes, max_message_bytes)?;
        let length = head.inner.message_length;
        // A large message's share was for both from the start: waiting for more while holding some could last
        // for ever.
        let share = match length > LARGE_MESSAGE_BYTES && !has_share {
            true => Some(budget.reserve(length).await),
            false => None,
        };
        let bytes = if length > INFLATE_ELSEWHERE_BYTES {
            let inflating = spawn_blocking(move || head.inflate(&bytes)).await;
            inflating.map_err(io::Error::other)??
        } else {
            head.inflate(&bytes)?
        };
        Ok(Self {
            header: head.inner,
            bytes,
            head_since: None,
            compressor: Some(head.compressor),
            share,
        })
    }
}

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The stream broke.
    #[error("reading: {0}")]
    Io(#[from] io::Error),
    /// The framing is wrong.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The stream ended inside a message.
    #[error("stream ended inside a message")]
    Truncated,
    /// The rest of a message did not come.
    #[error("no byte of a begun message for {} s", PARTIAL_MESSAGE_IDLE.as_secs())]
    Stalled,
}

/// Reads messages; keeps what came beyond the current one.
#[derive(Debug, Default)]
pub struct MessageReader {
    buffer: Vec<u8>,
    share: Option<MemoryShare>,
    ended: bool,
    /// Bytes still to come of a message whose head was given out.
    rest_bytes: usize,
    /// The current message is to be read whole, whatever its size.
    reads_whole: bool,
    /// When the head that is being read began to come.
    head_since: Option<Instant>,
}

impl MessageReader {
    /// The next message, or the head of a large one, or `None` where the stream ended between messages. What was not
    /// taken of the message before is passed over.
    ///
    /// Cancel safe: bytes read stay with the reader.
    ///
    /// # Errors
    /// See [`ReadError`]; after one, the stream must be closed.
    pub async fn next<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        max_message_bytes: usize,
        budget: &MemoryBudget,
    ) -> Result<Option<Message>, ReadError> {
        if self.rest_bytes > 0 {
            Box::pin(self.pass_over(stream)).await?;
        }
        loop {
            let (expected, share_bytes) = match self.buffer.first_chunk::<HEADER_BYTES>() {
                None => (HEADER_BYTES, 0),
                Some(head) => {
                    let header = Header::parse(head, max_message_bytes)?;
                    if self.buffer.len() >= header.message_length {
                        return Ok(Some(self.take(header)));
                    }
                    let is_headed = self.is_headed(header);
                    let is_there = is_headed && self.buffer.len() >= HEAD_BYTES;
                    if is_there && self.share.is_some() {
                        return Ok(Some(self.take_head(header)));
                    }
                    match is_headed {
                        true => (HEAD_BYTES, STREAM_SHARE_BYTES),
                        false => self.expected(header, max_message_bytes),
                    }
                }
            };
            if share_bytes > 0 && self.share.is_none() {
                self.share = Some(budget.reserve(share_bytes).await);
                continue;
            }
            let read = if self.buffer.is_empty() {
                poll_fn(|cx| self.poll_fill(cx, stream, expected)).await?
            } else {
                let rest = poll_fn(|cx| self.poll_fill(cx, stream, expected));
                timeout(PARTIAL_MESSAGE_IDLE, rest)
                    .await
                    .map_err(|_| ReadError::Stalled)??
            };
            match (read, self.buffer.is_empty()) {
                (0, true) => return Ok(None),
                (0, false) => return Err(ReadError::Truncated),
                _ => {}
            }
        }
    }

    /// How far to read next, of a compressed message first what says how large it will become; and its part of
    /// the budget, if it is large.
    fn expected(&self, header: Header, max_message_bytes: usize) -> (usize, usize) {
        let is_unknown = self.buffer.len() < COMPRESSED_HEAD_BYTES;
        let length = header.message_length;
        let expected = match header.op_code {
            OpCode::Compressed if is_unknown => length.min(COMPRESSED_HEAD_BYTES),
            _ => length,
        };
        if expected <= LARGE_MESSAGE_BYTES {
            return (expected, 0);
        }
        (expected, expected + self.inflated_bytes(max_message_bytes))
    }

    /// Whether a head of the message is given out first.
    fn is_headed(&mut self, header: Header) -> bool {
        let is_headed = !self.reads_whole
            && header.op_code == OpCode::Msg
            && header.message_length > STREAMED_MESSAGE_BYTES;
        if is_headed {
            self.head_since.get_or_insert_with(Instant::now);
        }
        is_headed
    }

    /// Reads the rest of a message whose head was given out last, so that it is whole.
    ///
    /// # Errors
    /// See [`ReadError`]; after one, the stream must be closed.
    pub async fn complete<S: AsyncRead + Unpin>(
        &mut self,
        head: Message,
        stream: &mut S,
        budget: &MemoryBudget,
    ) -> Result<Message, ReadError> {
        let ahead = std::mem::replace(&mut self.buffer, head.bytes);
        self.buffer.extend(ahead);
        self.rest_bytes = 0;
        self.reads_whole = true;
        // Its head's share goes first: waiting for more while holding some could last for ever.
        drop(head.share);
        let read = self.next(stream, head.header.message_length, budget).await;
        read?.ok_or(ReadError::Truncated)
    }

    /// Reads the next piece of a message whose head was given out last; an empty one at its end.
    ///
    /// # Errors
    /// See [`ReadError`]; after one, the stream must be closed.
    pub async fn read_piece<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        piece: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        piece.clear();
        let wanted = self.rest_bytes.min(PIECE_BYTES);
        piece.reserve_exact(wanted);
        timeout(PIECE_LIMIT, self.fill(stream, piece, wanted))
            .await
            .map_err(|_| ReadError::Stalled)??;
        self.rest_bytes -= wanted;
        Ok(())
    }

    async fn fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        piece: &mut Vec<u8>,
        wanted: usize,
    ) -> Result<(), ReadError> {
        let ahead = self.buffer.len().min(wanted);
        piece.extend(self.buffer.drain(..ahead));
        if self.buffer.is_empty() {
            self.buffer = Vec::new();
        }
        while piece.len() < wanted {
            if self.ended {
                return Err(ReadError::Truncated);
            }
            let missing = wanted - piece.len();
            let mut room = (&mut *piece).limit(missing);
            let read = poll_fn(|cx| poll_read_buf(Pin::new(&mut *stream), cx, &mut room)).await?;
            self.ended = read == 0;
        }
        Ok(())
    }

    async fn pass_over<S: AsyncRead + Unpin>(&mut self, stream: &mut S) -> Result<(), ReadError> {
        while self.rest_bytes > 0 {
            let there = self.buffer.len().min(self.rest_bytes);
            if there > 0 {
                self.buffer.drain(..there);
                self.rest_bytes -= there;
                continue;
            }
            self.buffer = Vec::new();
            let more = poll_fn(|cx| self.poll_fill(cx, stream, HEADER_BYTES));
            let more = timeout(PARTIAL_MESSAGE_IDLE, more).await;
            if more.map_err(|_| ReadError::Stalled)?? == 0 {
                return Err(ReadError::Truncated);
            }
        }
        Ok(())
    }

    /// What the message that is being read takes besides its own length.
    fn inflated_bytes(&self, max_message_bytes: usize) -> usize {
        let is_compressed = self
            .buffer
            .first_chunk::<HEADER_BYTES>()
            .and_then(|head| Header::parse(head, max_message_bytes).ok())
            .is_some_and(|header| header.op_code == OpCode::Compressed);
        if !is_compressed {
            return 0;
        }
        // One that is wrong is refused when it is complete.
        CompressedHead::parse(&self.buffer, max_message_bytes)
            .map_or(0, |head| head.inner.message_length)
    }

    /// The header of the next message, before anything is made of it.
    ///
    /// # Errors
    /// If the stream breaks, or ends before.
    pub async fn peek_header<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
    ) -> io::Result<[u8; HEADER_BYTES]> {
        loop {
            if let Some(head) = self.buffer.first_chunk::<HEADER_BYTES>() {
                return Ok(*head);
            }
            if poll_fn(|cx| self.poll_fill(cx, stream, HEADER_BYTES)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Takes a whole TLS record, whose first bytes have been seen: type, version, length, content.
    ///
    /// # Errors
    /// If the stream breaks, or ends before.
    pub async fn take_record<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
    ) -> io::Result<Vec<u8>> {
        let length = match self.buffer.first_chunk::<5>() {
            Some([_, _, _, high, low]) => 5 + usize::from(u16::from_be_bytes([*high, *low])),
            None => return Err(io::ErrorKind::InvalidData.into()),
        };
        while self.buffer.len() < length {
            if poll_fn(|cx| self.poll_fill(cx, stream, HEADER_BYTES)).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let behind = self.buffer.split_off(length);
        Ok(std::mem::replace(&mut self.buffer, behind))
    }

    /// What has been read and not yet been given out.
    pub fn buffered(&self) -> &[u8] {
        &self.buffer
    }

    /// Ready when the peer has hung up. To be polled while its operation runs; bytes that come meanwhile (a
    /// request sent ahead) are kept, up to a bound.
    pub fn poll_gone<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
    ) -> Poll<()> {
        while self.buffer.len() < READ_AHEAD_BYTES && !self.ended {
            match ready!(self.poll_fill(cx, stream, HEADER_BYTES)) {
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

    fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        expected: usize,
    ) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Ok(0));
        }
        let missing = expected.saturating_sub(self.buffer.len());
        if expected > LARGE_MESSAGE_BYTES {
            // Never beyond this message: one byte more would grow, and so copy, the whole buffer.
            self.buffer.reserve_exact(missing);
            let mut rest = (&mut self.buffer).limit(missing);
            return poll_read_buf(Pin::new(stream), cx, &mut rest);
        }
        with_scratch(|scratch| {
            let mut room = ReadBuf::new(scratch);
            ready!(Pin::new(stream).poll_read(cx, &mut room))?;
            self.buffer.extend_from_slice(room.filled());
            Poll::Ready(Ok(room.filled().len()))
        })
    }

    /// Takes the complete first message; without a message sent ahead, its buffer goes along uncopied.
    fn take(&mut self, header: Header) -> Message {
        let ahead = self.buffer.split_off(header.message_length);
        let bytes = std::mem::replace(&mut self.buffer, ahead);
        self.reads_whole = false;
        Message {
            header,
            bytes,
            head_since: None,
            compressor: None,
            share: self.share.take(),
        }
    }

    fn take_head(&mut self, header: Header) -> Message {
        let bytes = std::mem::take(&mut self.buffer);
        self.rest_bytes = header.message_length - bytes.len();
        Message {
            header,
            bytes,
            head_since: self.head_since.take(),
            compressor: None,
            share: self.share.take(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::wire::{MAX_MESSAGE_BYTES, encode_request};

    fn budget() -> MemoryBudget {
        MemoryBudget::of_bytes(64 << 20)
    }

    fn request(id: i32, size: usize) -> Vec<u8> {
        encode_request(id, &vec![7; size])
    }

    #[tokio::test]
    async fn any_split_of_the_bytes_gives_the_same_messages() {
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
    async fn a_large_message_is_read_into_a_buffer_of_its_own_length() {
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
    async fn the_rest_of_a_head_comes_in_pieces_or_is_passed_over() {
        let large = request(1, 3 << 20);
        for pieces in [0, 1, 2, usize::MAX] {
            let (mut near, mut far) = tokio::io::duplex(1 << 16);
            let sent = [large.clone(), request(2, 1)].concat();
            // It stays open: the end comes with the task's output.
            let _writer = tokio::spawn(async move { far.write_all(&sent).await.map(|()| far) });
            let mut reader = MessageReader::default();
            let head = reader
                .next(&mut near, MAX_MESSAGE_BYTES, &budget())
                .await
                .unwrap()
                .unwrap();
            let mut read = head.bytes.clone();
            let mut piece = Vec::new();
            for _ in 0..pieces {
                // What a client sends ahead is looked for between pieces.
                let gone = poll_fn(|cx| Poll::Ready(reader.poll_gone(cx, &mut near))).await;
                assert!(gone.is_pending());
                reader.read_piece(&mut near, &mut piece).await.unwrap();
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
    async fn a_message_whose_rest_never_comes_is_given_up() {
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
    async fn a_peer_that_hangs_up_is_noticed_behind_a_request_sent_ahead() {
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
