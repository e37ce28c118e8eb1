//! The queue between the clients and the thread that writes a capture. The memory of the queue is
//! limited, and so are the bytes of messages that clients may add to it per second. A client never
//! waits for the queue: if a limit is reached, the message is not recorded, and the queue counts it
//! as omitted.
//!
//! The queue reserves memory for the records of new clients, commands and omitted commands, and for
//! the messages of replies. It adds all other records even if it is full: they are small, and their
//! number is limited. Each of them belongs to a client or command for which memory was reserved, or
//! it reports all omissions for one reason since the last such report.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use seawall_capture::record::{
    ClientBegan, ClientEnded, Command, Content, EndReason, Event, OmissionReason, Omitted, Reply,
};
use seawall_locks::{Condvar, Mutex, MutexGuard};
use tokio::time::Instant;

/// Memory of a record without its message, in bytes.
const RECORD_BYTES: usize = 256;

/// Number of queued bytes at which the queue wakes the writer. While fewer bytes are queued, the
/// writer wakes only at intervals, so most operations need no system call to wake it.
const WAKE_BYTES: usize = 1024 * 1024;

/// Limits of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueLimits {
    /// Maximum memory of the queued records, in bytes.
    pub(super) max_bytes: usize,
    /// Maximum bytes of commands and replies that are recorded per second; `None` for no limit.
    pub(super) max_bytes_per_second: Option<u64>,
}

/// Counts over all captures since the start of the process.
#[derive(Debug, Default)]
pub(super) struct AllCounts {
    /// Number of operations that were written.
    pub(super) operations: AtomicU64,
    pub(super) omitted: [AtomicU64; REASONS.len()],
    pub(super) written_bytes: AtomicU64,
    /// For each reason in [`ENDS`], the number of captures that have ended for this reason.
    pub(super) ended: [AtomicU64; ENDS.len()],
}

impl AllCounts {
    /// Counts the end of a capture.
    pub(super) fn count_end(&self, reason: EndReason) {
        let mut counts = ENDS.iter().zip(&self.ended);
        if let Some((_, count)) = counts.find(|(end, _)| **end == reason) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The reasons for omissions, in the order of [`AllCounts::omitted`].
pub(super) const REASONS: [OmissionReason; 5] = [
    OmissionReason::Secret,
    OmissionReason::QueueFull,
    OmissionReason::RateLimit,
    OmissionReason::TooLarge,
    OmissionReason::NotRedactable,
];

/// The name of the reason for an omission, in metrics and in the API.
pub(super) fn reason_name(reason: OmissionReason) -> &'static str {
    match reason {
        OmissionReason::Secret => "secret",
        OmissionReason::QueueFull => "queue_full",
        OmissionReason::RateLimit => "rate_limit",
        OmissionReason::TooLarge => "too_large",
        OmissionReason::NotRedactable => "not_redactable",
    }
}

/// The reasons for which captures end, in the order of [`AllCounts::ended`].
pub(super) const ENDS: [EndReason; 5] = [
    EndReason::Duration,
    EndReason::Stopped,
    EndReason::DiskLimit,
    EndReason::WriteFailed,
    EndReason::Shutdown,
];

/// The name of the reason for which a capture ended, in the API and in metrics.
pub(super) fn end_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::NextPart => "next_part",
        EndReason::Duration => "duration",
        EndReason::Stopped => "stopped",
        EndReason::DiskLimit => "disk_limit",
        EndReason::WriteFailed => "write_failed",
        EndReason::Shutdown => "shutdown",
    }
}

fn index_of(reason: OmissionReason) -> usize {
    match reason {
        OmissionReason::Secret => 0,
        OmissionReason::QueueFull => 1,
        OmissionReason::RateLimit => 2,
        OmissionReason::TooLarge => 3,
        OmissionReason::NotRedactable => 4,
    }
}

/// Counts what a capture has recorded and omitted so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) clients: u64,
    pub(super) operations: u64,
    /// For each reason in [`REASONS`], the number of omitted operations plus the number of omitted
    /// messages of replies.
    pub(super) omitted: [u64; REASONS.len()],
}

impl Counts {
    /// Number of omissions for all reasons.
    pub(super) fn all_omitted(&self) -> u64 {
        self.omitted.iter().sum()
    }
}

/// The records that were added to the queue since the last call of [`Queue::take`].
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) records: VecDeque<Content>,
    /// Memory of the records in bytes. After writing them, the writer returns this memory with
    /// [`Queue::release`].
    pub(super) bytes: usize,
    /// Set if the capture was asked to end. No record follows this batch.
    pub(super) end: Option<EndReason>,
}

/// The queue of one capture.
#[derive(Debug)]
pub(super) struct Queue {
    limits: QueueLimits,
    /// Reserved memory in bytes: for the queued records, for the records that the writer is
    /// processing, and for replies that are being copied.
    used_bytes: AtomicUsize,
    /// True while the queue keeps only the latest records, because no writer takes them.
    is_ring: AtomicBool,
    state: Mutex<QueueState>,
    is_ready: Condvar,
}

#[derive(Debug)]
struct QueueState {
    records: VecDeque<Content>,
    /// Memory of `records` in bytes.
    bytes: usize,
    counts: Counts,
    /// The last numbers that were given to a client and to an operation.
    numbered: Numbered,
    /// Set while the queue keeps only the latest records.
    ring: Option<Ring>,
    /// The queue has dropped the commands of all operations whose number is lower than this number.
    /// Replies to those operations are dropped too.
    first_operation: u64,
    /// For each reason in [`REASONS`], the omitted operations and the omitted messages of replies
    /// that no [`Omitted`] record in the queue reports yet.
    gaps: [Gap; REASONS.len()],
    rate: ByteAllowance,
    end: Option<EndReason>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Numbered {
    clients: u64,
    operations: u64,
}

/// The state of a queue that keeps only the latest records (a ring). A capture that an event begins
/// starts with these records.
#[derive(Debug)]
struct Ring {
    lead: LeadLimits,
    /// The clients that have records in the queue or may still get records. The key is the client's
    /// number.
    clients: BTreeMap<u64, ClientBegan>,
}

/// Limits of the records that are kept before an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LeadLimits {
    /// Maximum age of the kept records.
    pub(super) duration: Duration,
    /// Maximum memory of the kept records, in bytes.
    pub(super) bytes: usize,
}

/// The operations and the messages of replies that were omitted for one reason, and that no
/// [`Omitted`] record in the queue reports yet.
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
            is_ring: AtomicBool::new(false),
            state: Mutex::new(QueueState {
                records: VecDeque::new(),
                bytes: 0,
                counts: Counts::default(),
                numbered: Numbered::default(),
                ring: None,
                first_operation: 0,
                gaps: Default::default(),
                rate: ByteAllowance::new(limits.max_bytes_per_second, now),
                end: None,
            }),
            is_ready: Condvar::new(),
        }
    }

    /// Creates a queue that keeps only the latest records until [`Self::begin`].
    pub(super) fn ring(limits: QueueLimits, lead: LeadLimits, now: Instant) -> Self {
        let queue = Self::new(limits, now);
        queue.is_ring.store(true, Ordering::Relaxed);
        queue.state.lock().ring = Some(Ring {
            lead,
            clients: BTreeMap::new(),
        });
        queue
    }

    /// True if the queue keeps only the latest records, within these limits.
    pub(super) fn is_ring_of(&self, limits: QueueLimits, lead: LeadLimits) -> bool {
        let state = self.state.lock();
        let has_lead = |ring: &Ring| ring.lead == lead;
        self.limits == limits && state.ring.as_ref().is_some_and(has_lead)
    }

    /// Begins the capture: no old records are dropped any more, because a writer now takes the
    /// records. The first records are `event`, then the clients, then the kept records. Returns the
    /// time at which the capture begins: the time of the oldest kept record or of the event.
    pub(super) fn begin(&self, event: Event, totals: &AllCounts) -> u64 {
        // Declared before `state`, so that the dropped records are freed without the lock.
        let mut dropped = Vec::new();
        let mut state = self.state.lock();
        // Drop old records now: if no operation came just before the event, some records are too
        // old.
        let freed = state.drop_old(event.at_us, &mut dropped);
        self.release(freed);
        let Some(ring) = state.ring.take() else {
            return event.at_us;
        };
        // Report the latest omissions now, so that `count_kept_omissions` below counts them too.
        state.report_gaps();
        self.is_ring.store(false, Ordering::Relaxed);
        let commands = state.records.iter().filter_map(|record| match record {
            Content::Command(command) => Some(command.operation),
            _ => None,
        });
        let next = state.numbered.operations + 1;
        let (first, kept) = commands.fold((next, 0), |(first, kept), operation| {
            (first.min(operation), kept + 1)
        });
        state.first_operation = first;
        // Drop the replies whose commands were dropped.
        let has_command = |record: &Content| match record {
            Content::Reply(reply) => reply.operation >= first,
            _ => true,
        };
        let records = mem::take(&mut state.records).into_iter();
        let (kept_records, without_command): (VecDeque<_>, VecDeque<_>) =
            records.partition(has_command);
        let bytes: usize = without_command.iter().map(memory_of).sum();
        self.release(bytes);
        state.records = kept_records;
        state.bytes -= bytes;
        dropped.extend(without_command);
        let front = state.records.front().map_or(event.at_us, time_of);
        let began_at_us = front.min(event.at_us);
        state.counts.clients = u64::try_from(ring.clients.len()).unwrap_or(u64::MAX);
        state.counts.operations = kept;
        state.count_kept_omissions(totals);
        for began in ring.clients.into_values().rev() {
            let began = ClientBegan {
                was_active: began.was_active || began.at_us < began_at_us,
                at_us: began.at_us.max(began_at_us),
                ..began
            };
            state.records.push_front(Content::ClientBegan(began));
            state.bytes += RECORD_BYTES;
        }
        state.records.push_front(Content::Event(event));
        state.bytes += RECORD_BYTES;
        self.used_bytes.fetch_add(RECORD_BYTES, Ordering::Relaxed);
        began_at_us
    }

    /// Adds a client. `command_bytes` is the size of its first command. Returns the client's
    /// number. `None` if the capture has ended, or if the queue is full. If the queue is full, the
    /// command is omitted and counted.
    pub(super) fn begin_client(
        &self,
        began: ClientBegan,
        command_bytes: usize,
        totals: &AllCounts,
    ) -> Option<u64> {
        if self.reserve(RECORD_BYTES).is_none() {
            self.omit(
                OmissionReason::QueueFull,
                1,
                command_bytes,
                began.at_us,
                totals,
            );
            return None;
        }
        let mut state = self.state.lock();
        if state.end.is_some() {
            self.release(RECORD_BYTES);
            return None;
        }
        state.numbered.clients += 1;
        let client = state.numbered.clients;
        let began = ClientBegan { client, ..began };
        match &mut state.ring {
            Some(ring) => drop(ring.clients.insert(client, began)),
            None => {
                state.counts.clients += 1;
                self.push(state, Content::ClientBegan(began), RECORD_BYTES);
            }
        }
        Some(client)
    }

    pub(super) fn end_client(&self, ended: ClientEnded) {
        self.used_bytes.fetch_add(RECORD_BYTES, Ordering::Relaxed);
        self.push(self.state.lock(), Content::ClientEnded(ended), RECORD_BYTES);
    }

    /// Adds a command and returns the operation's number. `None` if the capture has ended, or if
    /// the command was omitted. An omitted command is counted.
    pub(super) fn command(
        &self,
        client: u64,
        at_us: u64,
        message: &[u8],
        now: Instant,
        totals: &AllCounts,
    ) -> Option<u64> {
        let bytes = RECORD_BYTES + message.len();
        if self.reserve(bytes).is_none() {
            self.omit(OmissionReason::QueueFull, 1, message.len(), at_us, totals);
            return None;
        }
        // Copy the bytes before the lock is taken: a message may have 48 MB, and all captured
        // clients use this lock.
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
        state.numbered.operations += 1;
        let operation = state.numbered.operations;
        if state.ring.is_none() {
            state.counts.operations += 1;
        }
        let command = Command {
            client,
            operation,
            at_us,
            message,
        };
        self.push(state, Content::Command(command), bytes);
        Some(operation)
    }

    /// Reserves memory for the message of a reply. The caller must then use this memory with
    /// [`Self::reply`] or return it with [`Self::release`]. If the queue is full or the limit of
    /// bytes per second is reached, counts an omission and returns false.
    pub(super) fn reserve_message(
        &self,
        bytes: usize,
        at_us: u64,
        now: Instant,
        totals: &AllCounts,
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

    /// Adds a reply. If the reply has a message, [`Self::reserve_message`] must have reserved
    /// memory for it.
    pub(super) fn reply(&self, reply: Reply) {
        let bytes = RECORD_BYTES + reply.message.len();
        self.used_bytes.fetch_add(RECORD_BYTES, Ordering::Relaxed);
        let state = self.state.lock();
        if reply.operation < state.first_operation {
            self.release(bytes);
            return;
        }
        self.push(state, Content::Reply(reply), bytes);
    }

    /// Counts omitted operations. If `operations` is 0, counts one omitted message of a reply. A
    /// later record reports the omission.
    pub(super) fn omit(
        &self,
        reason: OmissionReason,
        operations: u64,
        bytes: usize,
        at_us: u64,
        totals: &AllCounts,
    ) {
        let mut state = self.state.lock();
        state.omit(reason, operations, bytes, at_us, totals);
    }

    /// Like [`Self::omit`], for one operation of a client. If the queue is not full, adds a record
    /// whose position shows where the operation is missing.
    pub(super) fn omit_command(
        &self,
        client: u64,
        reason: OmissionReason,
        bytes: usize,
        at_us: u64,
        totals: &AllCounts,
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
        self.push(state, Content::Omitted(omitted), RECORD_BYTES);
    }

    /// Counts a command or a reply that the writer could not redact. `omitted` is the record that
    /// replaces it in the capture.
    pub(super) fn count_not_redactable(&self, omitted: &Omitted, totals: &AllCounts) {
        let mut state = self.state.lock();
        let recorded = &mut state.counts.operations;
        *recorded = recorded.saturating_sub(omitted.operations);
        state.count(OmissionReason::NotRedactable, 1, totals);
    }

    /// Ends the capture, and drops all records that are not written yet: the queued records and
    /// `rest`, which the writer has already taken. Their operations count as omitted. The returned
    /// records report these omissions, and also earlier omissions that no written record reports.
    /// If the queue still waits for an event, counts nothing as omitted, and returns no records.
    pub(super) fn discard(
        &self,
        reason: EndReason,
        rest: VecDeque<Content>,
        totals: &AllCounts,
    ) -> VecDeque<Content> {
        let mut state = self.state.lock();
        state.end.get_or_insert(reason);
        let queued = mem::take(&mut state.records);
        self.release(mem::take(&mut state.bytes));
        if let Some(ring) = state.ring.take() {
            // The records of a ring are in no capture, so they do not count as omitted.
            self.is_ring.store(false, Ordering::Relaxed);
            self.release(ring.clients.len() * RECORD_BYTES);
            drop(state);
            return VecDeque::new();
        }
        for record in rest.iter().chain(&queued) {
            state.skip(record, totals);
        }
        state.report_gaps();
        let omitted = mem::take(&mut state.records);
        drop(state);
        drop((rest, queued));
        omitted
    }

    /// Corrects the counts: moves `operations` from the recorded operations to the omitted
    /// operations. Called if the compressed block with their records was not written.
    pub(super) fn lose(&self, operations: u64, totals: &AllCounts) {
        self.state.lock().lose(operations, totals);
    }

    /// Asks the capture to end. Only the first reason counts. Records that are added after this
    /// call are dropped.
    pub(super) fn end(&self, reason: EndReason) {
        self.state.lock().end.get_or_insert(reason);
        self.is_ready.notify_all();
    }

    pub(super) fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Waits until [`WAKE_BYTES`] are queued or the capture ends, but at most for `limit`. Then
    /// takes all records.
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

    /// Returns reserved memory to the queue, for example the memory of written records.
    pub(super) fn release(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reserved memory in bytes.
    #[cfg(test)]
    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn reserve(&self, bytes: usize) -> Option<()> {
        // A ring is never full, because `push` drops its oldest records.
        if self.is_ring.load(Ordering::Relaxed) {
            self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            return Some(());
        }
        let max = self.limits.max_bytes;
        let add = |used: usize| used.checked_add(bytes).filter(|used| *used <= max);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used_bytes.fetch_update(set, get, add).ok().map(drop)
    }

    /// Adds a record, and then releases the lock of the queue (`state`). Dropped records are freed
    /// after that, because freeing many or large records takes long, and all captured clients use
    /// this lock.
    fn push(&self, mut state: MutexGuard<'_, QueueState>, content: Content, bytes: usize) {
        if state.end.is_some() {
            drop(state);
            self.release(bytes);
            return;
        }
        state.report_gaps();
        let now_us = time_of(&content);
        state.records.push_back(content);
        if state.ring.is_some() {
            state.bytes += bytes;
            let mut too_old = Vec::new();
            let freed = state.drop_old(now_us, &mut too_old);
            drop(state);
            self.release(freed);
            return;
        }
        let was_small = state.bytes < WAKE_BYTES;
        state.bytes += bytes;
        if was_small && state.bytes >= WAKE_BYTES {
            self.is_ready.notify_one();
        }
    }
}

impl QueueState {
    fn omit(
        &mut self,
        reason: OmissionReason,
        operations: u64,
        bytes: usize,
        at_us: u64,
        totals: &AllCounts,
    ) {
        if self.end.is_some() {
            return;
        }
        self.count_omission(reason, totals);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.widen_gap(reason, operations, bytes, at_us);
    }

    /// Adds the operations of a dropped record to `gaps`, so that a later [`Omitted`] record
    /// contains their number.
    fn skip(&mut self, record: &Content, totals: &AllCounts) {
        let (reason, at_us, operations, bytes) = match record {
            Content::Command(command) => {
                self.lose(1, totals);
                let bytes = u64::try_from(command.message.len()).unwrap_or(u64::MAX);
                (OmissionReason::QueueFull, command.at_us, 1, bytes)
            }
            Content::Omitted(omitted) => {
                let (operations, bytes) = (omitted.operations, omitted.bytes);
                (omitted.reason(), omitted.at_us, operations, bytes)
            }
            _ => return,
        };
        self.widen_gap(reason, operations, bytes, at_us);
    }

    /// Corrects the counts: moves `operations` from the recorded operations to the omitted
    /// operations. Their records were added to the queue, but will not be written.
    fn lose(&mut self, operations: u64, totals: &AllCounts) {
        self.counts.operations = self.counts.operations.saturating_sub(operations);
        self.count(OmissionReason::QueueFull, operations, totals);
    }

    fn widen_gap(&mut self, reason: OmissionReason, operations: u64, bytes: u64, at_us: u64) {
        if let Some(gap) = self.gaps.get_mut(index_of(reason)) {
            if gap.bytes == 0 {
                gap.began_at_us = at_us;
            }
            gap.operations += operations;
            gap.bytes += bytes;
        }
    }

    fn count_omission(&mut self, reason: OmissionReason, totals: &AllCounts) {
        if self.end.is_none() && self.ring.is_none() {
            self.count(reason, 1, totals);
        }
    }

    fn count(&mut self, reason: OmissionReason, count: u64, totals: &AllCounts) {
        let index = index_of(reason);
        if let Some(total) = totals.omitted.get(index) {
            total.fetch_add(count, Ordering::Relaxed);
        }
        if let Some(counted) = self.counts.omitted.get_mut(index) {
            *counted += count;
        }
    }

    /// Counts the omissions from the time before the event that begins the capture. They were not
    /// counted at that time, because no capture was running. Each [`Omitted`] record in the queue
    /// contains the number of its omitted operations. Omitted messages of replies do not add to
    /// this number. If the number is 0, the record counts as 1.
    fn count_kept_omissions(&mut self, totals: &AllCounts) {
        let omitted = self.records.iter().filter_map(|record| match record {
            Content::Omitted(omitted) => Some((omitted.reason(), omitted.operations.max(1))),
            _ => None,
        });
        for (reason, count) in omitted.collect::<Vec<_>>() {
            self.count(reason, count, totals);
        }
    }

    /// Drops records of a ring that are too old or exceed its memory limit. Returns the memory of
    /// the dropped records, and adds the records to `too_old`, so that the caller can free them
    /// without the lock.
    fn drop_old(&mut self, now_us: u64, too_old: &mut Vec<Content>) -> usize {
        let Some(ring) = &mut self.ring else {
            return 0;
        };
        let oldest_us = now_us.saturating_sub(microseconds(ring.lead.duration));
        let mut dropped = 0;
        while let Some(front) = self.records.front()
            && (self.bytes > ring.lead.bytes || time_of(front) < oldest_us)
        {
            let bytes = memory_of(front);
            if let Content::ClientEnded(ended) = front
                && ring.clients.remove(&ended.client).is_some()
            {
                dropped += RECORD_BYTES;
            }
            dropped += bytes;
            self.bytes -= bytes;
            too_old.extend(self.records.pop_front());
        }
        dropped
    }

    /// Adds an [`Omitted`] record for each reason for which operations or messages of replies were
    /// omitted since the last call. The record tells a reader of the capture that they are missing.
    fn report_gaps(&mut self) {
        for (reason, gap) in REASONS.into_iter().zip(&mut self.gaps) {
            if gap.bytes > 0 {
                let gap = mem::take(gap);
                self.records.push_back(Content::Omitted(Omitted {
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

/// The memory, in bytes, that the queue reserves for a record.
fn memory_of(content: &Content) -> usize {
    match content {
        Content::Command(command) => RECORD_BYTES + command.message.len(),
        Content::Reply(reply) => RECORD_BYTES + reply.message.len(),
        // A record with the client number 0 reports a gap. `report_gaps` adds such a record without
        // reserving memory.
        Content::Omitted(omitted) if omitted.client == 0 => 0,
        _ => RECORD_BYTES,
    }
}

/// A duration in whole microseconds, the unit of times in records.
pub(super) fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The time of a record, in microseconds since the creation of the [`Tap`](super::tap::Tap) that
/// owns this queue.
fn time_of(content: &Content) -> u64 {
    match content {
        Content::ClientBegan(client) => client.at_us,
        Content::ClientEnded(client) => client.at_us,
        Content::Command(command) => command.at_us,
        Content::Reply(reply) => reply.at_us,
        Content::Omitted(omitted) => omitted.at_us,
        Content::Event(event) => event.at_us,
        Content::Header(_) | Content::End(_) => 0,
    }
}

/// The limit of bytes per second: an allowance that grows with time, and from which the bytes of
/// each record are subtracted. A record is admitted while the allowance is above 0, so a record may
/// be larger than the allowance of one second. The next records are then omitted until the
/// allowance is above 0 again.
#[derive(Debug)]
struct ByteAllowance {
    bytes_per_second: Option<u64>,
    /// Bytes that may be recorded now; negative after a large record.
    allowance: f64,
    refilled_at: Instant,
}

impl ByteAllowance {
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
mod tests;
