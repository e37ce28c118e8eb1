//! Large replies, forwarded as they arrive.
//!
//! A client that reads as fast as its server sends costs one piece of memory. For a slower client,
//! the server waits while no other operation wants the server connection. If one does, Seawall
//! reads the rest into the memory budget and returns the connection to its pool. When others need
//! that memory, a client that reads nothing or is slow ([`Progress`]) is closed. Without room in
//! the budget, such a client is closed while other operations wait for the connection.

use std::{
    collections::VecDeque,
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::AsyncWrite as _,
    task::yield_now,
    time::{Instant, timeout, timeout_at},
};

use super::{
    client_end::ClientEnd,
    reply::{Awaited, REPLY_HEAD_BYTES, RelayError, Unread, check_flags, poll_read_into},
};
use crate::limits::StepwiseTurn;
use seawall_command::{ReplyFacts, ReplyScanner};
use seawall_transport::{Evicted, MESSAGE_LIMIT, MemoryShare, Progress, Stream};

/// Memory reserved at a time for a client that is behind.
const PIECE_BYTES: usize = 64 * 1024;

/// Memory that a client that is behind may use while no other operation waits for its server
/// connection.
const SMALL_BACKLOG_BYTES: usize = 256 * 1024;

/// A client that reads nothing for this long is closed if the budget has no room for it and other
/// operations wait for its server connection.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// How long a reply waits for room in the budget while other operations wait for its server
/// connection. By then, holders that read nothing have been closed. A reply whose sharer holds most
/// of the budget waits only [`SILENT_AFTER`].
const ROOM_LIMIT: Duration = Duration::from_secs(4);

/// Result of a request for one more piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Given,
    /// The budget has no room now.
    Refused,
    /// The backlog is as large as it may be while no other operation waits.
    NotAsked,
}

/// Bytes moved in one turn. A task that has moved them lets others run first.
const TURN_BYTES: usize = 256 * 1024;

/// Moves bytes of large replies in turns, so that short operations never wait behind many of them.
struct Steps<'t> {
    turn: StepwiseTurn<'t>,
    /// Bytes moved in this turn.
    moved: usize,
}

impl<'t> Steps<'t> {
    fn new(turn: StepwiseTurn<'t>) -> Self {
        Self { turn, moved: 0 }
    }

    /// Ready when it is its turn.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.turn.poll_take(cx)
    }

    /// Runs one step. If nothing can be moved, the turn passes to others.
    fn poll<T>(&mut self, step: impl FnOnce() -> Poll<T>) -> Poll<T> {
        let moved = step();
        if moved.is_pending() {
            self.release();
        }
        moved
    }

    /// Counts moved bytes. After [`TURN_BYTES`], lets other tasks run and releases the turn.
    async fn moved(&mut self, bytes: usize) {
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

    /// True while it waits for its turn.
    fn is_waiting(&self) -> bool {
        self.turn.is_waiting()
    }
}

/// The part of a reply that its client has not read yet.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pieces: VecDeque<Vec<u8>>,
    /// Bytes of the first piece that are written.
    written: usize,
    /// Bytes of all pieces, including the written part of the first: that memory is in use too.
    bytes: usize,
    /// Buffer of a written piece, for the next one.
    spare: Vec<u8>,
    share: Option<MemoryShare>,
}

impl Backlog {
    /// Creates a backlog of a whole reply, with its share of the budget.
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
            if let Some(mut written) = self.pieces.pop_front() {
                self.bytes -= written.len();
                written.clear();
                self.spare = written;
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
        if let Some(share) = &mut self.share {
            share.settle(self.bytes, written, None);
        }
        Poll::Ready(Ok(written))
    }

    /// True if its memory was reclaimed for others.
    fn is_evicted(&self) -> bool {
        self.share.as_ref().is_some_and(MemoryShare::is_evicted)
    }

    /// Notes that the client has to read before more is read for it.
    fn owes(&self, cx: &Context<'_>) {
        if let Some(share) = &self.share {
            share.record_progress(0, Some(cx.waker()));
        }
    }

    /// Notes that Seawall itself is not ready: it waits for a turn.
    fn pause(&self) {
        if let Some(share) = &self.share {
            share.pause();
        }
    }

    /// Requests room for one more piece.
    fn poll_room(&mut self, cx: &mut Context<'_>, awaited: &Awaited<'_>, left: usize) -> Room {
        if self.is_empty() {
            return Room::Given;
        }
        if self.bytes >= SMALL_BACKLOG_BYTES && !(awaited.is_wanted)() {
            return Room::NotAsked;
        }
        let share = self
            .share
            .get_or_insert_with(|| awaited.budget.open(awaited.sharer));
        let wanted = self.bytes + PIECE_BYTES.min(left);
        match share.poll_grow(cx, wanted, left) {
            Poll::Ready(Ok(())) => Room::Given,
            Poll::Ready(Err(Evicted)) | Poll::Pending => Room::Refused,
        }
    }

    /// Sends everything. The client may be slow, but must read a byte within `write_idle`.
    pub(super) async fn send(
        mut self,
        client: &mut ClientEnd<'_>,
        turn: StepwiseTurn<'_>,
    ) -> io::Result<()> {
        if !client.is_awaiting {
            return Ok(());
        }
        let mut steps = Steps::new(turn);
        let overdue_at = Instant::now() + MESSAGE_LIMIT;
        while !self.is_empty() {
            let until = overdue_at.min(Instant::now() + client.write_idle);
            let written = poll_fn(|cx| {
                if self.is_evicted() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                if steps.poll_turn(cx).is_pending() {
                    self.pause();
                    return client
                        .poll_gone(cx)
                        .map(|()| Err(io::ErrorKind::BrokenPipe.into()));
                }
                steps.poll(|| self.poll_write(cx, client.stream))
            });
            match timeout_at(until, written).await {
                Ok(written) => steps.moved(written?).await,
                // Seawall itself was not ready.
                Err(_) if steps.is_waiting() && Instant::now() < overdue_at => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
        // A flush can take as long as the client likes, so the turn is released first.
        drop(steps);
        client.flush().await
    }
}

/// A reply that its server has sent completely. The backlog is still to be sent to the client.
#[derive(Debug)]
pub(super) struct Forwarded {
    pub(super) facts: ReplyFacts,
    /// Bytes of the whole reply.
    pub(super) bytes: usize,
    pub(super) backlog: Backlog,
}

/// Waits for room for a reply that has to be held whole. `None` if the client has left, or if other
/// operations wait for its server connection and there was no room in time.
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
            Err(_) if awaited.budget.holds_most(awaited.sharer) => return None,
            Err(_) if began.elapsed() >= ROOM_LIMIT => return None,
            Err(_) => {}
        }
    }
}

/// A reply on its way from a server to a client.
struct Transfer<'a> {
    awaited: Awaited<'a>,
    length: usize,
    /// Bytes that have been read.
    seen: usize,
    scanner: ReplyScanner,
    backlog: Backlog,
    /// When the client last read a byte or had nothing to read.
    taken_at: Instant,
    progress: Progress,
    overdue_at: Instant,
    /// Result of the last request for room.
    room: Room,
}

/// Forwards a reply. `first` holds its first bytes, including its head. Returns when the server has
/// sent everything; the backlog holds what the client has not read yet.
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
        taken_at: Instant::now(),
        progress: Progress::default(),
        overdue_at: Instant::now() + MESSAGE_LIMIT,
        room: Room::Given,
    };
    let mut steps = Steps::new(awaited.limits.forwarding().stepwise(awaited.sharer));
    transfer.take_in(client, first)?;
    while transfer.seen < length {
        let check_again_at = transfer.check_again_at();
        let moving = poll_fn(|cx| {
            if transfer.backlog.is_evicted() {
                return Poll::Ready(Err(transfer.client_gone()));
            }
            if steps.poll_turn(cx).is_pending() {
                transfer.pause();
                return client.poll_gone(cx).map(|()| Err(transfer.client_gone()));
            }
            steps.poll(|| transfer.poll_move(cx, client, server))
        });
        let moved = match check_again_at {
            None => moving.await?,
            Some(until) => match timeout_at(until, moving).await {
                Ok(moved) => moved?,
                // Seawall itself was not ready.
                Err(_) if steps.is_waiting() => continue,
                Err(_) => 0,
            },
        };
        transfer.check_pace(client)?;
        steps.moved(moved).await;
    }
    Ok(Forwarded {
        facts: *transfer.scanner.facts(),
        bytes: length,
        backlog: transfer.backlog,
    })
}

impl Transfer<'_> {
    /// When to check a client that is behind; `None` if it is not behind.
    fn check_again_at(&self) -> Option<Instant> {
        let is_behind = !self.backlog.is_empty();
        is_behind.then(|| Instant::now() + SILENT_AFTER)
    }

    fn client_gone(&self) -> RelayError {
        RelayError::ClientGone {
            unread: Unread::Rest(self.length - self.seen),
        }
    }

    fn take_in(&mut self, client: &ClientEnd<'_>, piece: Vec<u8>) -> Result<(), RelayError> {
        if self.seen + piece.len() > self.length {
            return Err(RelayError::Foreign("bytes after the reply"));
        }
        if self.seen == 0 {
            check_flags(&piece)?;
        }
        let before = REPLY_HEAD_BYTES.saturating_sub(self.seen);
        self.scanner.feed(piece.get(before..).unwrap_or_default());
        self.seen += piece.len();
        // A client that expects no reply gets none.
        if client.is_awaiting {
            self.backlog.push(piece);
        }
        Ok(())
    }

    fn pause(&mut self) {
        self.progress.pause(Instant::now());
        self.backlog.pause();
    }

    /// Writes what the client accepts and reads what there is room for. Ready with the bytes moved,
    /// when either made progress.
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
                    self.taken_at = Instant::now();
                    self.progress.record_bytes(bytes, self.taken_at);
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
            self.taken_at = Instant::now();
            if moved > 0 && client.stream.is_encrypted() {
                // The rest is flushed with the next piece, or at the end.
                let flushed = Pin::new(&mut *client.stream).poll_flush(cx);
                if matches!(flushed, Poll::Ready(Err(_))) {
                    return Poll::Ready(Err(self.client_gone()));
                }
            }
        }
        let left = self.length - self.seen;
        self.room = self.backlog.poll_room(cx, &self.awaited, left);
        if is_behind {
            self.backlog.owes(cx);
        }
        if self.room == Room::Given {
            let mut piece = mem::take(&mut self.backlog.spare);
            match poll_read_into(cx, server, &mut piece) {
                Poll::Ready(Ok(0)) => {
                    let ended = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(RelayError::MidReply(ended)));
                }
                Poll::Ready(Ok(read)) => {
                    let taken_in = self.take_in(client, piece);
                    return Poll::Ready(taken_in.map(|()| moved + read));
                }
                Poll::Ready(Err(error)) => {
                    return Poll::Ready(Err(RelayError::MidReply(error)));
                }
                Poll::Pending => self.backlog.spare = piece,
            }
        }
        if moved > 0 {
            return Poll::Ready(Ok(moved));
        }
        client.poll_gone(cx).map(|()| Err(self.client_gone()))
    }

    /// Fails if the client has read nothing for `write_idle`, if the reply takes longer than
    /// [`MESSAGE_LIMIT`], or if the client is slow while the budget has no room for it and other
    /// operations wait for its server connection.
    fn check_pace(&self, client: &ClientEnd<'_>) -> Result<(), RelayError> {
        let now = Instant::now();
        let silent = now.saturating_duration_since(self.taken_at);
        let is_over = silent >= client.write_idle || now >= self.overdue_at;
        let is_too_slow = silent >= SILENT_AFTER || self.progress.is_slow(now);
        let is_in_the_way = self.room == Room::Refused && is_too_slow && (self.awaited.is_wanted)();
        match is_over || is_in_the_way {
            true => Err(self.client_gone()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::limits::Turns;
    use seawall_transport::Sharer;

    #[tokio::test]
    async fn a_task_moves_a_full_turn_of_bytes_before_another_runs() {
        const STEP_BYTES: usize = TURN_BYTES / 4;
        let turns = Turns::new(1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..3)
            .map(|task| {
                let (turns, order) = (turns.clone(), Arc::clone(&order));
                tokio::spawn(async move {
                    let mut steps = Steps::new(turns.stepwise(Sharer::Local));
                    for _ in 0..8 {
                        poll_fn(|cx| steps.poll_turn(cx)).await;
                        assert!(steps.poll(|| Poll::Ready(())).is_ready());
                        order.lock().push(task);
                        steps.moved(STEP_BYTES).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let expected = [0, 1, 2, 0, 1, 2].map(|task| [task; 4]);
        assert_eq!(*order.lock(), expected.as_flattened());
    }

    #[test]
    fn a_piece_counts_until_all_of_it_is_written() {
        let mut backlog = Backlog::of(vec![1; 100], None);
        backlog.push(vec![2; 50]);
        backlog.push(Vec::new());
        backlog.advance(99);
        assert_eq!((backlog.bytes, backlog.pieces.len()), (150, 2));
        backlog.advance(1);
        assert_eq!((backlog.bytes, backlog.pieces.len()), (50, 1));
        assert!(backlog.spare.is_empty() && backlog.spare.capacity() >= 100);
        backlog.advance(50);
        assert!(backlog.is_empty());
        assert_eq!(backlog.bytes, 0);
    }
}
