//! Large replies, forwarded as they arrive.
//!
//! - A fast client reads as fast as its server sends. Seawall reads each piece of the reply into a
//!   buffer of the thread and writes the piece to the client at once. Only the last piece is held
//!   back until Seawall has recorded the facts of the reply, such as its cursor: a client that has
//!   the whole reply may use this cursor in its next command.
//! - For a slow client, Seawall stops reading ahead at [`SMALL_BACKLOG_BYTES`] while no other
//!   operation waits for a connection to the same server. If another operation waits, Seawall
//!   reserves memory in the memory budget of all connections (the budget). It reads the rest of the
//!   reply into this memory, and checks the connection in.
//! - If the budget has no room for the rest of a slow client's reply, Seawall closes this client as
//!   soon as another operation waits for a connection to the same server.
//! - If other clients need the memory of a client that reads nothing or reads slowly
//!   ([`Progress`]), this client is closed.

use std::{
    cell::RefCell,
    collections::VecDeque,
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    client_end::ClientEnd,
    reply::{Awaited, REPLY_HEAD_BYTES, RelayError, Unread},
};
use crate::{captures::ReplyCopy, limits::StepwiseTurn};
use seawall_command::{ReplyFacts, ReplyScanner};
use seawall_transport::{Evicted, MESSAGE_LIMIT, MemoryShare, Progress, Stream};

/// Number of bytes of memory that are reserved at a time for a client that reads more slowly than
/// its server sends. Without reserved memory, at most this number of bytes is read at a time.
const PIECE_BYTES: usize = 64 * 1024;

/// Number of bytes that are read at a time for a client that has read everything so far. Each read
/// and each write wakes the peer, so large pieces cost less CPU time. The memory budget must have
/// room for these bytes, because the client may stop reading at any time.
const LARGE_PIECE_BYTES: usize = 256 * 1024;

thread_local! {
    static PIECE: RefCell<Box<[u8]>> = RefCell::new(vec![0; LARGE_PIECE_BYTES].into_boxed_slice());
}

/// When the backlog of a client has this number of bytes, Seawall stops reading ahead for the
/// client while no other operation waits for a connection to the same server.
const SMALL_BACKLOG_BYTES: usize = 256 * 1024;

/// A client that reads nothing for this long is closed if two conditions hold: the memory budget
/// has no room for the client's reply, and other operations wait for a connection to the same
/// server.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// A reply waits at most this long for room in the memory budget while other operations wait for a
/// connection to the same server. Within this time, Seawall can close clients that use memory of
/// the budget and read nothing. The reply waits only for [`SILENT_AFTER`] if no sharer (address or
/// user) holds more memory of the budget than the sharer of the reply's client. The reason is that
/// Seawall closes a client that reads nothing only for a sharer that holds less memory.
const ROOM_LIMIT: Duration = Duration::from_secs(4);

/// Result of a request for memory for the next piece of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceGrant {
    /// The next piece may be read.
    Given,
    /// The budget has no room now.
    Refused,
    /// No memory was requested for the next piece. The backlog has reached [`SMALL_BACKLOG_BYTES`],
    /// and no other operation waits for a connection to the same server.
    NotRequested,
}

/// Number of bytes that a task may move in one turn (see [`ForwardingTurns`]). Then the task lets
/// other tasks run.
const TURN_BYTES: usize = 256 * 1024;

/// The right of one task to move bytes of a large reply. The number of tasks that have a turn at
/// the same time is limited, so that a short operation never waits behind many large replies.
struct ForwardingTurns<'t> {
    turn: StepwiseTurn<'t>,
    /// Number of bytes that the task has moved in this turn.
    moved: usize,
}

impl<'t> ForwardingTurns<'t> {
    fn new(turn: StepwiseTurn<'t>) -> Self {
        Self { turn, moved: 0 }
    }

    /// Ready when this task has its turn.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.turn.poll_take(cx)
    }

    /// Calls `move_bytes`. If no bytes can be moved now, releases the turn for other tasks.
    fn poll<T>(&mut self, move_bytes: impl FnOnce() -> Poll<T>) -> Poll<T> {
        let moved = move_bytes();
        if moved.is_pending() {
            self.release();
        }
        moved
    }

    /// Counts moved bytes. After [`TURN_BYTES`], lets other tasks run and releases the turn.
    async fn count_moved(&mut self, bytes: usize) {
        self.moved += bytes;
        if self.moved >= TURN_BYTES {
            yield_now().await;
            self.release();
        }
    }

    fn release(&mut self) {
        self.turn.release();
        self.moved = 0;
    }

    /// True while this task waits for its turn.
    fn is_waiting(&self) -> bool {
        self.turn.is_waiting()
    }
}

/// The part of a reply that its client has not read yet.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pieces: VecDeque<Vec<u8>>,
    /// Number of bytes of the first piece that have been written to the client.
    written: usize,
    /// Number of bytes of all pieces. The written part of the first piece counts, because its
    /// memory is still in use.
    bytes: usize,
    /// Memory reserved in the budget; `None` if none has been reserved yet.
    share: Option<MemoryShare>,
    /// True while `share` waits for more memory, because the memory budget has no room.
    waits_for_memory: bool,
}

impl Backlog {
    /// Creates a backlog of a whole reply. `share` is the memory that was reserved for the reply.
    pub(super) fn of(bytes: Vec<u8>, share: Option<MemoryShare>) -> Self {
        let mut backlog = Self {
            share,
            ..Self::default()
        };
        backlog.push(bytes);
        backlog
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn push(&mut self, piece: Vec<u8>) {
        if piece.is_empty() {
            return;
        }
        self.bytes += piece.len();
        self.pieces.push_back(piece);
    }

    fn advance(&mut self, taken: usize) {
        self.written += taken;
        if self
            .pieces
            .front()
            .is_some_and(|first| self.written >= first.len())
        {
            self.written = 0;
            if let Some(written) = self.pieces.pop_front() {
                self.bytes -= written.len();
            }
        }
    }

    /// Writes as much as the client's socket accepts.
    fn poll_write(&mut self, cx: &mut Context<'_>, client: &mut Stream) -> Poll<io::Result<usize>> {
        let Some(first) = self.pieces.front() else {
            return Poll::Ready(Ok(0));
        };
        let rest = first.get(self.written..).unwrap_or_default();
        let written = match Pin::new(client).poll_write(cx, rest) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(written)) => written,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {
                if let Some(share) = &mut self.share {
                    share.settle(self.bytes, 0, Some(cx.waker()));
                }
                return Poll::Pending;
            }
        };
        self.advance(written);
        self.settle(written);
        Poll::Ready(Ok(written))
    }

    /// Records that the client has read `written` bytes, and releases memory that is not in use.
    fn settle(&mut self, written: usize) {
        if let Some(share) = &mut self.share {
            share.settle(self.bytes, written, None);
        }
    }

    /// The reply's share of the memory budget. The first call opens the share.
    fn share(&mut self, awaited: &Awaited<'_>) -> &mut MemoryShare {
        let Awaited { budget, sharer, .. } = *awaited;
        self.share.get_or_insert_with(|| budget.open(sharer))
    }

    /// True if the budget has reclaimed the backlog's memory for other clients.
    fn is_evicted(&self) -> bool {
        self.share.as_ref().is_some_and(MemoryShare::is_evicted)
    }

    /// Records that Seawall waits for the client to read.
    fn record_stall(&self, cx: &Context<'_>) {
        if let Some(share) = &self.share {
            share.record_progress(0, Some(cx.waker()));
        }
    }

    /// Records that the client waits for Seawall, because this task may not move bytes before its
    /// next turn (see [`ForwardingTurns`]). This time does not count as slowness of the client.
    fn pause(&self) {
        if let Some(share) = &self.share {
            share.pause();
        }
    }

    /// Decides if the next piece of the reply may be read. Reserves memory for this piece if the
    /// backlog is not empty. `left` is the number of bytes of the reply that the server still has
    /// to send.
    fn poll_room(
        &mut self,
        cx: &mut Context<'_>,
        awaited: &Awaited<'_>,
        left: usize,
    ) -> PieceGrant {
        if self.is_empty() {
            if self.waits_for_memory {
                // A request for 0 bytes is granted at once, and ends the share's wait for memory.
                self.waits_for_memory = self.share(awaited).poll_grow(cx, 0, left).is_pending();
            }
            return PieceGrant::Given;
        }
        if self.bytes >= SMALL_BACKLOG_BYTES && !(awaited.is_wanted)() {
            return PieceGrant::NotRequested;
        }
        let wanted = self.bytes + PIECE_BYTES.min(left);
        let grown = self.share(awaited).poll_grow(cx, wanted, left);
        self.waits_for_memory = grown.is_pending();
        match grown {
            Poll::Ready(Ok(())) => PieceGrant::Given,
            Poll::Ready(Err(Evicted)) | Poll::Pending => PieceGrant::Refused,
        }
    }

    /// Sends the whole backlog.
    ///
    /// # Errors
    /// Fails in any of these cases:
    ///
    /// - The client has left.
    /// - The client reads no byte for `ClientEnd::write_idle`.
    /// - The client needs longer than [`MESSAGE_LIMIT`] for the whole backlog.
    /// - The budget has reclaimed the backlog's memory.
    pub(super) async fn send(
        mut self,
        client: &mut ClientEnd<'_>,
        turn: StepwiseTurn<'_>,
    ) -> io::Result<()> {
        if !client.is_awaiting {
            return Ok(());
        }
        let mut turns = ForwardingTurns::new(turn);
        let overdue_at = Instant::now() + MESSAGE_LIMIT;
        while !self.is_empty() {
            let until = overdue_at.min(Instant::now() + client.write_idle);
            let written = poll_fn(|cx| {
                if self.is_evicted() {
                    return Poll::Ready(Err(client.give_up()));
                }
                if turns.poll_turn(cx).is_pending() {
                    self.pause();
                    return client
                        .poll_gone(cx)
                        .map(|()| Err(io::ErrorKind::BrokenPipe.into()));
                }
                turns.poll(|| self.poll_write(cx, client.stream))
            });
            match timeout_at(until, written).await {
                Ok(written) => turns.count_moved(written?).await,
                // The timeout is not the client's fault, because this task was waiting for its turn
                // to move bytes.
                Err(_) if turns.is_waiting() && Instant::now() < overdue_at => {}
                Err(_) => return Err(client.give_up()),
            }
        }
        // The client determines how long a flush takes, so the turn is released first.
        drop(turns);
        client.flush().await
    }
}

/// A large reply that the server has sent completely. Its backlog must still be sent to the client.
#[derive(Debug)]
pub(super) struct Forwarded {
    pub(super) facts: ReplyFacts,
    /// Number of bytes of the whole reply.
    pub(super) bytes: usize,
    pub(super) backlog: Backlog,
    /// A copy of the reply, if a capture records the reply whole; else `None`.
    pub(super) copy: Option<ReplyCopy>,
}

/// Waits until the budget has room for a reply that must be in memory as a whole before Seawall
/// forwards it. Returns `None` if the client has left, or if the wait took too long while other
/// operations waited for a connection to the same server.
pub(super) async fn room_for_reply(
    client: &mut ClientEnd<'_>,
    awaited: &Awaited<'_>,
    bytes: usize,
) -> Option<MemoryShare> {
    let mut reserved = pin!(awaited.budget.reserve(awaited.sharer, bytes));
    let began = Instant::now();
    loop {
        let given = poll_fn(|cx| match reserved.as_mut().poll(cx) {
            Poll::Ready(share) => Poll::Ready(Some(share)),
            Poll::Pending => client.poll_gone(cx).map(|()| None),
        });
        match timeout(SILENT_AFTER, given).await {
            Ok(given) => return given,
            Err(_) if !(awaited.is_wanted)() => {}
            Err(_)
                if awaited.budget.holds_most(awaited.sharer) || began.elapsed() >= ROOM_LIMIT =>
            {
                client.gave_up = true;
                return None;
            }
            Err(_) => {}
        }
    }
}

/// A reply on its way from a server to a client.
struct Transfer<'a> {
    awaited: Awaited<'a>,
    /// Number of bytes of the whole reply.
    length: usize,
    /// Number of bytes that have been read from the server.
    seen: usize,
    scanner: ReplyScanner,
    backlog: Backlog,
    copy: Option<ReplyCopy>,
    /// The last time at which the client read a byte, or at which Seawall had no bytes for the
    /// client.
    client_read_at: Instant,
    /// Tracks how fast the client reads.
    progress: Progress,
    /// Deadline for forwarding the whole reply. The client is closed if the reply has not been
    /// forwarded by then.
    overdue_at: Instant,
    /// Result of the last request for memory.
    room: PieceGrant,
}

/// Forwards a reply of `length` bytes. `first` contains the first bytes of the reply, including its
/// head. Waits until the server has sent the whole reply. The returned backlog has the part that
/// the client has not read yet.
pub(super) async fn forward_large(
    client: &mut ClientEnd<'_>,
    server: &mut Stream,
    first: Vec<u8>,
    length: usize,
    awaited: Awaited<'_>,
) -> Result<Forwarded, RelayError> {
    let mut transfer = Transfer {
        awaited,
        length,
        seen: 0,
        scanner: ReplyScanner::new(awaited.form),
        backlog: Backlog::default(),
        copy: (awaited.recording).and_then(|recording| recording.copy_of_reply(length)),
        client_read_at: Instant::now(),
        progress: Progress::default(),
        overdue_at: Instant::now() + MESSAGE_LIMIT,
        room: PieceGrant::Given,
    };
    let turn = awaited.limits.forwarding().stepwise(awaited.sharer);
    let mut turns = ForwardingTurns::new(turn);
    transfer.scan(&first)?;
    // A client that sent `moreToCome` expects no reply, so the bytes of this reply are dropped.
    if client.is_awaiting {
        transfer.backlog.push(first);
    }
    while transfer.seen < length {
        let check_again_at = transfer.check_again_at();
        let moving = poll_fn(|cx| {
            if transfer.backlog.is_evicted() {
                client.gave_up = true;
                return Poll::Ready(Err(transfer.client_gone()));
            }
            if turns.poll_turn(cx).is_pending() {
                transfer.pause();
                return client.poll_gone(cx).map(|()| Err(transfer.client_gone()));
            }
            turns.poll(|| transfer.poll_move(cx, client, server))
        });
        let moved = match timeout_at(check_again_at, moving).await {
            Ok(moved) => moved?,
            // The timeout is not the client's fault, because this task was waiting for its turn to
            // move bytes.
            Err(_) if turns.is_waiting() && Instant::now() < transfer.overdue_at => continue,
            // The client has read everything, so the server has needed too much time.
            Err(_) if transfer.backlog.is_empty() && !turns.is_waiting() => {
                return Err(RelayError::MidReply(io::ErrorKind::TimedOut.into()));
            }
            Err(_) => 0,
        };
        // After the whole reply has been read, the loop ends at once, without a check and without a
        // pause. So the server connection is released early.
        if transfer.seen < length {
            transfer.check_pace(client)?;
            turns.count_moved(moved).await;
        }
    }
    Ok(Forwarded {
        facts: *transfer.scanner.facts(),
        bytes: length,
        backlog: transfer.backlog,
        copy: transfer.copy,
    })
}

impl Transfer<'_> {
    /// Returns the time of the next check for slowness. If the client has read everything so far,
    /// this time is the deadline of the whole reply.
    fn check_again_at(&self) -> Instant {
        match self.backlog.is_empty() {
            true => self.overdue_at,
            false => self.overdue_at.min(Instant::now() + SILENT_AFTER),
        }
    }

    fn client_gone(&self) -> RelayError {
        RelayError::ClientGone {
            unread: Unread::Rest(self.length - self.seen),
        }
    }

    /// Parses the next piece of the reply. If a capture records the reply, also copies the piece.
    fn scan(&mut self, piece: &[u8]) -> Result<(), RelayError> {
        if self.seen + piece.len() > self.length {
            return Err(RelayError::Foreign("bytes after the reply"));
        }
        let before = REPLY_HEAD_BYTES.saturating_sub(self.seen);
        self.scanner.feed(piece.get(before..).unwrap_or_default());
        self.seen += piece.len();
        if let Some(copy) = &mut self.copy {
            copy.add(piece);
        }
        Ok(())
    }

    fn record_written(&mut self, bytes: usize) {
        self.client_read_at = Instant::now();
        self.progress.record_bytes(bytes, self.client_read_at);
    }

    fn pause(&mut self) {
        self.progress.pause(Instant::now());
        self.backlog.pause();
    }

    /// Writes the bytes that the client's socket accepts, and reads from the server if there is
    /// memory. Ready with the number of moved bytes as soon as any byte was moved. Fails if the
    /// server counts as hung and its next bytes are awaited.
    fn poll_move(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientEnd<'_>,
        server: &mut Stream,
    ) -> Poll<Result<usize, RelayError>> {
        let mut moved = 0;
        let mut is_behind = false;
        while !self.backlog.is_empty() && moved < TURN_BYTES {
            match self.backlog.poll_write(cx, client.stream) {
                Poll::Ready(Ok(bytes)) => {
                    moved += bytes;
                    self.record_written(bytes);
                }
                Poll::Ready(Err(_)) => return Poll::Ready(Err(self.client_gone())),
                Poll::Pending => {
                    self.progress.mark_owing(Instant::now());
                    is_behind = true;
                    break;
                }
            }
        }
        if self.backlog.is_empty() {
            self.client_read_at = Instant::now();
            if client.is_awaiting && client.stream.is_encrypted() {
                // If this flush is incomplete, a later flush completes it: the flush after the next
                // piece, or the flush at the end of the reply.
                let flushed = Pin::new(&mut *client.stream).poll_flush(cx);
                if matches!(flushed, Poll::Ready(Err(_))) {
                    return Poll::Ready(Err(self.client_gone()));
                }
            }
        }
        let left = self.length - self.seen;
        self.room = self.backlog.poll_room(cx, &self.awaited, left);
        if is_behind {
            self.backlog.record_stall(cx);
        }
        if self.room == PieceGrant::Given
            && let Poll::Ready(passed) = self.poll_pass(cx, client, server)
        {
            return Poll::Ready(passed.map(|passed| moved + passed));
        }
        if moved > 0 {
            return Poll::Ready(Ok(moved));
        }
        if client.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(self.client_gone()));
        }
        if self.room != PieceGrant::Given {
            return Poll::Pending;
        }
        // There is room for more bytes, but the server has not sent them yet.
        let interrupted = self.awaited.interrupt.poll_raised(cx);
        interrupted.map(|()| Err(RelayError::MidReply(io::ErrorKind::TimedOut.into())))
    }

    /// Reads a piece of the reply and passes it to the client. Ready with the number of bytes read.
    fn poll_pass(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientEnd<'_>,
        server: &mut Stream,
    ) -> Poll<Result<usize, RelayError>> {
        let limit = self.piece_limit();
        PIECE.with_borrow_mut(|buffer| {
            let mut room = ReadBuf::new(buffer.get_mut(..limit).unwrap_or_default());
            match Pin::new(server).poll_read(cx, &mut room) {
                Poll::Ready(read) => read.map_err(RelayError::MidReply)?,
                Poll::Pending => {
                    // No piece was read, so the memory that was reserved for it is released.
                    if self.backlog.is_empty() {
                        self.backlog.settle(0);
                    }
                    return Poll::Pending;
                }
            }
            let piece = room.filled();
            if piece.is_empty() {
                let ended = io::ErrorKind::UnexpectedEof.into();
                return Poll::Ready(Err(RelayError::MidReply(ended)));
            }
            self.scan(piece)?;
            if client.is_awaiting {
                self.pass_on(cx, client, piece)?;
            }
            Poll::Ready(Ok(piece.len()))
        })
    }

    /// Returns the maximum size of the next piece. If the client has read everything so far and the
    /// budget has room, reserves memory for a piece larger than [`PIECE_BYTES`]. Otherwise returns
    /// [`PIECE_BYTES`].
    fn piece_limit(&mut self) -> usize {
        let left = self.length - self.seen;
        if left <= PIECE_BYTES || !self.backlog.is_empty() {
            return PIECE_BYTES;
        }
        // The read may get one byte more than the rest of the reply, so that Seawall notices bytes
        // after the reply.
        let wanted = (left + 1).min(LARGE_PIECE_BYTES);
        match self.backlog.share(&self.awaited).try_grow(wanted) {
            true => wanted,
            false => PIECE_BYTES,
        }
    }

    /// Writes a piece to the client. The backlog gets the bytes that the client's socket does not
    /// accept. It also gets the end of the reply, at most [`PIECE_BYTES`], because the client must
    /// not have the whole reply before Seawall has inspected it.
    fn pass_on(
        &mut self,
        cx: &mut Context<'_>,
        client: &mut ClientEnd<'_>,
        piece: &[u8],
    ) -> Result<(), RelayError> {
        let is_end = self.seen == self.length;
        let kept = if is_end { PIECE_BYTES } else { 0 };
        let wanted = piece.len().saturating_sub(kept);
        let mut written = 0;
        while self.backlog.is_empty() && written < wanted {
            let rest = piece.get(written..wanted).unwrap_or_default();
            match Pin::new(&mut *client.stream).poll_write(cx, rest) {
                Poll::Ready(Ok(0) | Err(_)) => return Err(self.client_gone()),
                Poll::Ready(Ok(bytes)) => {
                    self.record_written(bytes);
                    written += bytes;
                }
                Poll::Pending => break,
            }
        }
        let was_empty = self.backlog.is_empty();
        self.backlog
            .push(piece.get(written..).unwrap_or_default().to_vec());
        if was_empty {
            self.backlog.settle(written);
        }
        Ok(())
    }

    /// Fails in any of these cases:
    ///
    /// - The client has read nothing for `write_idle`.
    /// - The whole reply takes longer than [`MESSAGE_LIMIT`].
    /// - The client is slow, the budget has no room for the reply, and other operations wait for a
    ///   connection to the same server.
    fn check_pace(&self, client: &mut ClientEnd<'_>) -> Result<(), RelayError> {
        let now = Instant::now();
        let silent = now.saturating_duration_since(self.client_read_at);
        let is_over = silent >= client.write_idle || now >= self.overdue_at;
        let is_too_slow = silent >= SILENT_AFTER || self.progress.is_slow(now);
        let delays_others =
            self.room == PieceGrant::Refused && is_too_slow && (self.awaited.is_wanted)();
        match is_over || delays_others {
            true => {
                client.gave_up = true;
                Err(self.client_gone())
            }
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
