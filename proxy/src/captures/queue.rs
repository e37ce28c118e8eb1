//! The queue between the clients and the writer of a capture. It is bounded by bytes, and limits
//! the bytes per second. It never blocks: a record without room is omitted and counted.
//!
//! Commands and whole replies need room. The other records are small, and each belongs to a command
//! or client that had room: so their number is limited too.

use std::{
    mem,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use seawall_capture::record::{
    ClientBegan, ClientEnded, Command, Content, EndReason, OmissionReason, Omitted, Reply,
};
use tokio::time::Instant;

/// Memory of a record without its message, in bytes.
const RECORD_BYTES: usize = 256;

/// Number of queued bytes at which the writer is woken. For fewer bytes it wakes by itself, so that
/// most operations need no system call.
const WAKE_BYTES: usize = 1024 * 1024;

/// Limits of a queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueLimits {
    /// Maximum memory of the queued records, in bytes.
    pub(super) max_bytes: usize,
    /// Maximum bytes of messages per second; `None` for no limit.
    pub(super) max_bytes_per_second: Option<u64>,
}

/// Counts over all captures since the start of the process.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) operations: AtomicU64,
    pub(super) omitted: [AtomicU64; REASONS.len()],
    pub(super) written_bytes: AtomicU64,
}

/// Every reason, in the order of [`Totals::omitted`].
pub(super) const REASONS: [OmissionReason; 4] = [
    OmissionReason::Secret,
    OmissionReason::QueueFull,
    OmissionReason::RateLimit,
    OmissionReason::TooLarge,
];

/// The label of a reason in metrics and in the API.
pub(super) fn reason_name(reason: OmissionReason) -> &'static str {
    match reason {
        OmissionReason::Secret => "secret",
        OmissionReason::QueueFull => "queue_full",
        OmissionReason::RateLimit => "rate_limit",
        OmissionReason::TooLarge => "too_large",
    }
}

fn index_of(reason: OmissionReason) -> usize {
    match reason {
        OmissionReason::Secret => 0,
        OmissionReason::QueueFull => 1,
        OmissionReason::RateLimit => 2,
        OmissionReason::TooLarge => 3,
    }
}

/// What a capture has recorded so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) clients: u64,
    pub(super) operations: u64,
    /// Number of omitted operations and omitted messages of replies, in the order of [`REASONS`].
    pub(super) omitted: [u64; REASONS.len()],
}

impl Counts {
    /// Number of omissions for all reasons.
    pub(super) fn all_omitted(&self) -> u64 {
        self.omitted.iter().sum()
    }
}

/// The queued records since the last call of [`Queue::take`].
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) records: Vec<Content>,
    /// Memory of the records, which [`Queue::release`] returns.
    pub(super) bytes: usize,
    /// Set if the capture was asked to end. No record follows this batch.
    pub(super) end: Option<EndReason>,
}

/// The queue of one capture.
#[derive(Debug)]
pub(super) struct Queue {
    limits: QueueLimits,
    /// Memory of the records that are queued or in the hands of the writer.
    used_bytes: AtomicUsize,
    state: Mutex<State>,
    is_ready: Condvar,
}

#[derive(Debug)]
struct State {
    records: Vec<Content>,
    /// Memory of `records`.
    bytes: usize,
    counts: Counts,
    /// Omissions that no record reports yet.
    gaps: [Gap; REASONS.len()],
    rate: Rate,
    end: Option<EndReason>,
}

/// Omitted operations that no record reports yet.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    began_at_us: u64,
    operations: u64,
    bytes: u64,
}

impl Queue {
    pub(super) fn new(limits: QueueLimits, now: Instant) -> Self {
        Self {
            limits,
            used_bytes: AtomicUsize::new(0),
            state: Mutex::new(State {
                records: Vec::new(),
                bytes: 0,
                counts: Counts::default(),
                gaps: Default::default(),
                rate: Rate::new(limits.max_bytes_per_second, now),
                end: None,
            }),
            is_ready: Condvar::new(),
        }
    }

    /// Adds a client and returns its number, or `None` if the queue is full or the capture has
    /// ended.
    pub(super) fn begin_client(&self, began: ClientBegan) -> Option<u64> {
        self.reserve(RECORD_BYTES)?;
        let mut state = self.state.lock();
        if state.end.is_some() {
            self.release(RECORD_BYTES);
            return None;
        }
        state.counts.clients += 1;
        let client = state.counts.clients;
        let began = ClientBegan { client, ..began };
        self.push(&mut state, Content::ClientBegan(began), RECORD_BYTES);
        Some(client)
    }

    pub(super) fn end_client(&self, ended: ClientEnded) {
        self.used_bytes.fetch_add(RECORD_BYTES, Ordering::Relaxed);
        let mut state = self.state.lock();
        self.push(&mut state, Content::ClientEnded(ended), RECORD_BYTES);
    }

    /// Adds a command and returns the operation's number. `None` if the command was omitted, which
    /// is counted, or if the capture has ended.
    pub(super) fn command(
        &self,
        client: u64,
        at_us: u64,
        message: &[u8],
        now: Instant,
        totals: &Totals,
    ) -> Option<u64> {
        let bytes = RECORD_BYTES + message.len();
        if self.reserve(bytes).is_none() {
            self.omit(OmissionReason::QueueFull, 1, message.len(), at_us, totals);
            return None;
        }
        // The bytes are copied without the lock, because a message may have 48 MB.
        let message = Bytes::copy_from_slice(message);
        let mut state = self.state.lock();
        if state.end.is_some() {
            self.release(bytes);
            return None;
        }
        if !state.rate.admits(message.len(), now) {
            state.omit(OmissionReason::RateLimit, 1, message.len(), at_us, totals);
            drop(state);
            self.release(bytes);
            return None;
        }
        state.counts.operations += 1;
        totals.operations.fetch_add(1, Ordering::Relaxed);
        let operation = state.counts.operations;
        let command = Command {
            client,
            operation,
            at_us,
            message,
        };
        self.push(&mut state, Content::Command(command), bytes);
        Some(operation)
    }

    /// Reserves room for the message of a reply. Returns false if there is none, which is counted.
    /// [`Self::reply`] or [`Self::release`] uses the room.
    pub(super) fn reserve_message(
        &self,
        bytes: usize,
        at_us: u64,
        now: Instant,
        totals: &Totals,
    ) -> bool {
        let reason = match self.reserve(bytes) {
            None => OmissionReason::QueueFull,
            Some(()) if self.state.lock().rate.admits(bytes, now) => return true,
            Some(()) => {
                self.release(bytes);
                OmissionReason::RateLimit
            }
        };
        self.omit(reason, 0, bytes, at_us, totals);
        false
    }

    /// Adds a reply. Room for its message, if it has one, was reserved before.
    pub(super) fn reply(&self, reply: Reply) {
        let bytes = RECORD_BYTES + reply.message.len();
        self.used_bytes.fetch_add(RECORD_BYTES, Ordering::Relaxed);
        let mut state = self.state.lock();
        self.push(&mut state, Content::Reply(reply), bytes);
    }

    /// Counts operations that are not recorded, or the message of a reply (`operations` is 0). A
    /// later record reports them.
    pub(super) fn omit(
        &self,
        reason: OmissionReason,
        operations: u64,
        bytes: usize,
        at_us: u64,
        totals: &Totals,
    ) {
        let mut state = self.state.lock();
        state.omit(reason, operations, bytes, at_us, totals);
    }

    /// Like [`Self::omit`], for one operation of a client. The position of its record shows where
    /// the operation is missing.
    pub(super) fn omit_command(
        &self,
        client: u64,
        reason: OmissionReason,
        bytes: usize,
        at_us: u64,
        totals: &Totals,
    ) {
        let has_room = self.reserve(RECORD_BYTES).is_some();
        let mut state = self.state.lock();
        if !has_room {
            state.omit(reason, 1, bytes, at_us, totals);
            return;
        }
        state.count_omission(reason, totals);
        let omitted = Omitted {
            client,
            at_us,
            operations: 1,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            reason: reason.into(),
        };
        self.push(&mut state, Content::Omitted(omitted), RECORD_BYTES);
    }

    /// Asks the capture to end. Only the first reason counts. Records that follow are dropped.
    pub(super) fn end(&self, reason: EndReason) {
        self.state.lock().end.get_or_insert(reason);
        self.is_ready.notify_all();
    }

    pub(super) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Waits at most `limit` for records or for the end, and takes all records.
    pub(super) fn take(&self, limit: Duration) -> Batch {
        let mut state = self.state.lock();
        if state.end.is_none() && state.bytes < WAKE_BYTES {
            self.is_ready.wait_for(&mut state, limit);
        }
        state.report_gaps();
        Batch {
            records: mem::take(&mut state.records),
            bytes: mem::take(&mut state.bytes),
            end: state.end,
        }
    }

    /// Returns the memory of written records.
    pub(super) fn release(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn reserve(&self, bytes: usize) -> Option<()> {
        let max = self.limits.max_bytes;
        let add = |used: usize| used.checked_add(bytes).filter(|used| *used <= max);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used_bytes.fetch_update(set, get, add).ok().map(drop)
    }

    fn push(&self, state: &mut State, content: Content, bytes: usize) {
        if state.end.is_some() {
            self.release(bytes);
            return;
        }
        state.report_gaps();
        state.records.push(content);
        let was_small = state.bytes < WAKE_BYTES;
        state.bytes += bytes;
        if was_small && state.bytes >= WAKE_BYTES {
            self.is_ready.notify_one();
        }
    }
}

impl State {
    fn omit(
        &mut self,
        reason: OmissionReason,
        operations: u64,
        bytes: usize,
        at_us: u64,
        totals: &Totals,
    ) {
        self.count_omission(reason, totals);
        if let Some(gap) = self.gaps.get_mut(index_of(reason)) {
            if gap.bytes == 0 {
                gap.began_at_us = at_us;
            }
            gap.operations += operations;
            gap.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        }
    }

    fn count_omission(&mut self, reason: OmissionReason, totals: &Totals) {
        if self.end.is_some() {
            return;
        }
        let index = index_of(reason);
        if let Some(total) = totals.omitted.get(index) {
            total.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(count) = self.counts.omitted.get_mut(index) {
            *count += 1;
        }
    }

    /// Adds a record for each gap. Their number is limited by that of the other records.
    fn report_gaps(&mut self) {
        for (reason, gap) in REASONS.into_iter().zip(&mut self.gaps) {
            if gap.bytes > 0 {
                let gap = mem::take(gap);
                self.records.push(Content::Omitted(Omitted {
                    client: 0,
                    at_us: gap.began_at_us,
                    operations: gap.operations,
                    bytes: gap.bytes,
                    reason: reason.into(),
                }));
            }
        }
    }
}

/// The limit of bytes per second. It admits a record while it has allowance left. So a record may
/// be larger than the allowance of a second, and it takes longer until the next one is admitted.
#[derive(Debug)]
struct Rate {
    bytes_per_second: Option<u64>,
    /// Bytes that may be recorded now; negative after a large record.
    allowance: f64,
    refilled_at: Instant,
}

impl Rate {
    fn new(bytes_per_second: Option<u64>, now: Instant) -> Self {
        Self {
            bytes_per_second,
            allowance: bytes_per_second.map_or(0.0, seawall_stats::float),
            refilled_at: now,
        }
    }

    fn admits(&mut self, bytes: usize, now: Instant) -> bool {
        let Some(rate) = self.bytes_per_second.map(seawall_stats::float) else {
            return true;
        };
        let elapsed = now.saturating_duration_since(self.refilled_at);
        self.refilled_at = self.refilled_at.max(now);
        self.allowance = (self.allowance + elapsed.as_secs_f64() * rate).min(rate);
        let is_admitted = self.allowance > 0.0;
        if is_admitted {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            self.allowance -= seawall_stats::float(bytes);
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue(max_bytes: usize, max_bytes_per_second: Option<u64>) -> (Queue, Totals, Instant) {
        let now = Instant::now();
        let limits = QueueLimits {
            max_bytes,
            max_bytes_per_second,
        };
        (Queue::new(limits, now), Totals::default(), now)
    }

    fn taken(queue: &Queue) -> Vec<Content> {
        let batch = queue.take(Duration::ZERO);
        queue.release(batch.bytes);
        batch.records
    }

    fn omitted(reason: OmissionReason, operations: u64, bytes: u64) -> Content {
        Content::Omitted(Omitted {
            client: 0,
            at_us: 5,
            operations,
            bytes,
            reason: reason.into(),
        })
    }

    #[test]
    fn full_queue_omits_commands_and_reports_them_before_the_next_record() {
        let (queue, totals, now) = queue(2 * RECORD_BYTES, None);
        assert_eq!(queue.command(1, 4, &[7; 200], now, &totals), Some(1));
        for _ in 0..3 {
            assert_eq!(queue.command(1, 5, &[7; 100], now, &totals), None);
        }
        let [Content::Command(command), gap] = &*taken(&queue) else {
            panic!("unexpected records");
        };
        assert_eq!(command.message.len(), 200);
        assert_eq!(*gap, omitted(OmissionReason::QueueFull, 3, 300));
        // The writer has released its memory, so there is room again.
        assert_eq!(queue.command(1, 6, &[7; 200], now, &totals), Some(2));
        assert_eq!(taken(&queue).len(), 1);
        assert_eq!(queue.used_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(queue.counts().omitted, [0, 3, 0, 0]);
        assert_eq!(totals.omitted[1].load(Ordering::Relaxed), 3);
    }

    #[test]
    fn reply_without_room_keeps_its_facts() {
        let (queue, totals, now) = queue(4 * RECORD_BYTES, None);
        let reply = Reply {
            operation: 1,
            at_us: 5,
            ..Reply::default()
        };
        let gap = omitted(OmissionReason::QueueFull, 0, 4000);
        assert!(!queue.reserve_message(4000, 5, now, &totals));
        queue.reply(reply.clone());
        assert_eq!(taken(&queue), [gap, Content::Reply(reply.clone())]);
        assert!(queue.reserve_message(40, 5, now, &totals));
        let message = Bytes::copy_from_slice(&[1; 40]);
        let whole = Reply { message, ..reply };
        queue.reply(whole.clone());
        assert_eq!(taken(&queue), [Content::Reply(whole)]);
        assert_eq!(queue.used_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn rate_limit_omits_commands_until_time_has_passed() {
        let (queue, totals, now) = queue(1 << 20, Some(1_000));
        assert!(queue.command(1, 0, &[7; 1_500], now, &totals).is_some());
        assert_eq!(queue.command(1, 5, &[7; 10], now, &totals), None);
        assert_eq!(
            queue.command(1, 5, &[7; 10], now + SECOND / 4, &totals),
            None
        );
        let later = now + SECOND;
        assert!(queue.command(1, 0, &[7; 10], later, &totals).is_some());
        let records = taken(&queue);
        assert_eq!(records[1], omitted(OmissionReason::RateLimit, 2, 20));
        assert_eq!(queue.used_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn records_after_the_end_are_dropped() {
        let (queue, totals, now) = queue(1 << 20, None);
        queue.omit_command(1, OmissionReason::Secret, 10, 0, &totals);
        assert_eq!(queue.begin_client(ClientBegan::default()), Some(1));
        queue.end(EndReason::Stopped);
        queue.end(EndReason::Shutdown);
        assert_eq!(queue.begin_client(ClientBegan::default()), None);
        assert_eq!(queue.command(1, 0, &[7; 10], now, &totals), None);
        queue.reply(Reply::default());
        queue.omit_command(1, OmissionReason::Secret, 10, 0, &totals);
        let batch = queue.take(SECOND);
        assert_eq!(batch.records.len(), 2);
        assert_eq!(queue.counts().omitted, [1, 0, 0, 0]);
        assert_eq!(batch.end, Some(EndReason::Stopped));
        assert_eq!(queue.counts().operations, 0);
    }
}
