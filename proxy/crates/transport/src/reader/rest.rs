//! Reads the rest of a large message in pieces, after the reader has returned the message's head
//! (its first part).

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::BufMut;
use tokio::{
    io::AsyncRead,
    time::{Instant, timeout},
};
use tokio_util::io::poll_read_buf;

use super::{MemoryShare, Message, MessageReader, PARTIAL_MESSAGE_IDLE, ReadError};
use crate::progress::{MESSAGE_LIMIT, Progress};

/// Maximum size of the piece that one call of [`RestOfMessage::next_piece`] reads, in bytes.
pub(super) const PIECE_BYTES: usize = 256 * 1024;

/// Interval between two calls of [`RestOfMessage::check`] while no byte arrives.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The rest of a message. While the rest is read, the message holds memory and another resource,
/// usually a server connection.
pub struct RestOfMessage<'a> {
    share: Option<&'a MemoryShare>,
    /// Returns true if other clients wait for the resource that the message holds.
    is_wanted: &'a (dyn Fn() -> bool + Send + Sync),
    progress: Progress,
    moved_at: Instant,
    overdue_at: Instant,
}

impl<'a> RestOfMessage<'a> {
    /// Prepares to read the rest of the message that begins with `head`. `head` must be the message
    /// that the reader returned last. `is_wanted` returns true if other clients wait for the
    /// resource that the message holds.
    pub fn of(head: &'a Message, is_wanted: &'a (dyn Fn() -> bool + Send + Sync)) -> Self {
        let now = Instant::now();
        Self {
            share: head.share.as_ref(),
            is_wanted,
            progress: Progress::default(),
            moved_at: now,
            overdue_at: head.head_since.unwrap_or(now) + MESSAGE_LIMIT,
        }
    }

    /// Reads the next bytes of the message into `piece`. After the end of the message, `piece` is
    /// empty. If the future is dropped, `piece` keeps the bytes that were read, and later calls do
    /// not return these bytes. The reader still knows where the next message begins.
    ///
    /// # Errors
    /// [`ReadError::Stalled`] or [`ReadError::Evicted`] if the sender is silent, or if the sender
    /// is too slow while other clients wait. [`ReadError::Stalled`] also if the message is
    /// incomplete after its time limit. For other errors see [`ReadError`]. After an error, the
    /// caller must close the stream.
    pub async fn next_piece<S: AsyncRead + Unpin>(
        &mut self,
        reader: &mut MessageReader,
        stream: &mut S,
        piece: &mut Vec<u8>,
    ) -> Result<(), ReadError> {
        piece.clear();
        let wanted = reader.rest_bytes.min(PIECE_BYTES);
        piece.reserve_exact(wanted);
        piece.extend(reader.buffer.drain(..reader.buffer.len().min(wanted)));
        reader.rest_bytes -= piece.len();
        if reader.buffer.is_empty() {
            reader.buffer = Vec::new();
        }
        self.moved_at = Instant::now();
        while piece.len() < wanted {
            if reader.ended {
                return Err(ReadError::Truncated);
            }
            let missing = wanted - piece.len();
            let mut room = (&mut *piece).limit(missing);
            let reading = poll_fn(|cx| self.poll_read(cx, stream, &mut room));
            match timeout(CHECK_INTERVAL, reading).await {
                Ok(read) => {
                    let read = read?;
                    reader.ended = read == 0;
                    reader.rest_bytes -= read;
                }
                Err(_) => self.check(Instant::now())?,
            }
        }
        Ok(())
    }

    fn poll_read<S: AsyncRead + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut S,
        room: &mut impl BufMut,
    ) -> Poll<Result<usize, ReadError>> {
        let read = poll_read_buf(Pin::new(stream), cx, room);
        let now = Instant::now();
        let moved = match &read {
            Poll::Ready(Ok(bytes)) => *bytes,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        if let Some(share) = self.share {
            share.record_progress(moved, read.is_pending().then(|| cx.waker()));
        }
        if read.is_pending() {
            self.progress.mark_owing(now);
        }
        self.check(now)?;
        if moved > 0 {
            self.progress.record_bytes(moved, now);
            self.moved_at = now;
        }
        read.map_err(|error: io::Error| error.into())
    }

    /// Fails if the memory share was evicted, or if the sender is slow while other clients wait.
    /// Also fails if the sender has been silent for [`PARTIAL_MESSAGE_IDLE`], or if the message is
    /// incomplete after its time limit.
    fn check(&self, now: Instant) -> Result<(), ReadError> {
        if self.share.is_some_and(MemoryShare::is_evicted) {
            return Err(ReadError::Evicted);
        }
        let is_silent = now.saturating_duration_since(self.moved_at) >= PARTIAL_MESSAGE_IDLE;
        let blocks_others = || self.progress.is_slow(now) && (self.is_wanted)();
        match is_silent || now >= self.overdue_at || blocks_others() {
            true => Err(ReadError::Stalled),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::{
        io::{AsyncWriteExt, DuplexStream, duplex},
        time::sleep,
    };

    use super::*;
    use crate::{MemoryBudget, Sharer};
    use seawall_wire::{MAX_MESSAGE_BYTES, encode_request};

    const MESSAGE_BYTES: usize = 4 << 20;

    /// Sends `bytes` bytes per second, forever.
    async fn trickle(mut far: DuplexStream, bytes: usize) {
        while far.write_all(&vec![0; bytes]).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Reads the rest of a message that arrives at a constant rate. Returns how many seconds this
    /// took, and the result of the last read.
    async fn rest_at(
        bytes_per_second: usize,
        budget: &MemoryBudget,
        is_wanted: &(dyn Fn() -> bool + Send + Sync),
    ) -> (u64, Result<(), ReadError>) {
        let (mut near, mut far) = duplex(1 << 20);
        let message = encode_request(1, &vec![7; MESSAGE_BYTES]);
        far.write_all(&message[..70_000]).await.unwrap();
        let mut reader = MessageReader::new(Sharer::Local);
        let head = reader.next(&mut near, MAX_MESSAGE_BYTES, budget).await;
        let head = head.unwrap().unwrap();
        assert!(head.is_head());
        let _sender = tokio::spawn(trickle(far, bytes_per_second));
        let began = Instant::now();
        let mut rest = RestOfMessage::of(&head, is_wanted);
        let mut piece = Vec::new();
        loop {
            let read = rest.next_piece(&mut reader, &mut near, &mut piece).await;
            if read.is_err() || piece.is_empty() {
                return (began.elapsed().as_secs(), read);
            }
        }
    }

    fn budget() -> MemoryBudget {
        MemoryBudget::of_bytes(64 << 20)
    }

    #[tokio::test(start_paused = true)]
    async fn reading_from_a_slow_sender_fails_only_while_other_clients_wait() {
        let (seconds, read) = rest_at(2_000, &budget(), &|| false).await;
        assert!(read.is_ok() && seconds > 1_900, "{seconds} {read:?}");
        let (seconds, read) = rest_at(2_000, &budget(), &|| true).await;
        assert!(matches!(read, Err(ReadError::Stalled)), "{read:?}");
        assert!((30..=32).contains(&seconds), "{seconds}");
        let (_, read) = rest_at(10_000, &budget(), &|| true).await;
        assert!(read.is_ok(), "{read:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_message_is_found_after_a_cancelled_read_of_the_rest_of_a_message() {
        let (mut near, mut far) = duplex(4 << 20);
        let message = encode_request(1, &vec![7; 2 << 20]);
        let next = encode_request(2, &[8; 100]);
        // Only `first` is sent before the reads. So the second piece is incomplete when the timeout
        // drops its future.
        let (first, second) = message.split_at(400_000);
        far.write_all(first).await.unwrap();
        let (mut reader, budget) = (MessageReader::new(Sharer::Local), budget());
        let head = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget).await;
        let head = head.unwrap().unwrap();
        assert!(head.is_head());
        let mut rest = RestOfMessage::of(&head, &|| false);
        let mut piece = Vec::new();
        let mut pieces = 0;
        loop {
            let reading = rest.next_piece(&mut reader, &mut near, &mut piece);
            if timeout(Duration::from_millis(10), reading).await.is_err() {
                break;
            }
            pieces += 1;
        }
        assert!(pieces == 1 && !piece.is_empty(), "{pieces} pieces");
        far.write_all(second).await.unwrap();
        far.write_all(&next).await.unwrap();
        let found = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget).await;
        assert_eq!(found.unwrap().unwrap().bytes, next);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_takes_longer_than_the_time_limit_is_refused() {
        let (seconds, read) = rest_at(10, &budget(), &|| false).await;
        assert!(matches!(read, Err(ReadError::Stalled)), "{read:?}");
        assert_eq!(seconds, MESSAGE_LIMIT.as_secs());
    }

    /// The reader skips the rest of a request that was refused after its head had arrived. A caller
    /// may cancel the call, and call again.
    #[tokio::test(start_paused = true)]
    async fn a_message_whose_rest_is_skipped_for_longer_than_the_time_limit_is_refused() {
        let (mut near, mut far) = duplex(1 << 20);
        let message = encode_request(1, &vec![7; MESSAGE_BYTES]);
        far.write_all(&message[..70_000]).await.unwrap();
        let (mut reader, budget) = (MessageReader::new(Sharer::Local), budget());
        let head = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget).await;
        assert!(head.unwrap().unwrap().is_head());
        let _sender = tokio::spawn(trickle(far, 10));
        let began = Instant::now();
        let skipped = loop {
            let next = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget);
            if let Ok(skipped) = timeout(Duration::from_secs(7), next).await {
                break skipped;
            }
        };
        assert!(matches!(skipped, Err(ReadError::Stalled)), "{skipped:?}");
        assert_eq!(began.elapsed().as_secs(), MESSAGE_LIMIT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_after_a_skipped_rest_has_a_time_limit_of_its_own() {
        let (mut near, mut far) = duplex(1 << 20);
        let next = encode_request(2, &vec![8; 1_000_000]);
        let sent = [encode_request(1, &vec![7; 2 << 20]), next.clone()].concat();
        let _sender = tokio::spawn(async move {
            for part in sent.chunks(20_000) {
                far.write_all(part).await.unwrap();
                sleep(PARTIAL_MESSAGE_IDLE / 2).await;
            }
        });
        let (mut reader, budget) = (MessageReader::new(Sharer::Local), budget());
        let began = Instant::now();
        let head = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget).await;
        assert!(head.unwrap().unwrap().is_head());
        let found = reader.next(&mut near, MAX_MESSAGE_BYTES, &budget).await;
        assert_eq!(found.unwrap().unwrap().bytes, next);
        assert!(
            began.elapsed() > MESSAGE_LIMIT,
            "both take longer than the limit together"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_sender_is_evicted_while_other_messages_wait_for_memory() {
        let budget = MemoryBudget::of_bytes(2 << 20);
        let has_room = AtomicBool::new(false);
        let waiter = async {
            sleep(Duration::from_secs(60)).await;
            // The waiter has the same address as the sender, so the sender is evicted only if it is
            // slow.
            let share = budget.reserve(Sharer::Local, 2 << 20);
            let _share = share.await;
            has_room.store(true, Ordering::SeqCst);
        };
        let (_, (seconds, read)) = tokio::join!(waiter, rest_at(2_000, &budget, &|| false));
        assert!(matches!(read, Err(ReadError::Evicted)), "{read:?}");
        assert!((60..=62).contains(&seconds), "{seconds}");
        assert!(has_room.into_inner());
    }
}
