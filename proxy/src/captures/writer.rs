//! The thread that redacts, compresses and writes the records of a capture, and ends the capture.
//!
//! A capture ends when its duration is over, when it is stopped, or when the process ends. It also
//! ends when the limit of bytes on disk is reached, or when a write fails. This thread never delays
//! an operation: if the thread is too slow, the queue omits records.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    mem,
    panic::{self, AssertUnwindSafe},
    sync::atomic::Ordering,
    time::Duration,
};

use seawall_capture::{
    WriteError, Writer,
    record::{Content, End, EndReason, Event, OmissionReason, Server},
};
use seawall_redact::Records;
use tokio::time::Instant;

use super::{
    directory::{CaptureId, Directory},
    queue::Batch,
    tap::Tap,
    written::Written,
};

/// Maximum time for which the thread waits for records. Records that arrive in this time are
/// compressed together.
const WAIT: Duration = Duration::from_millis(100);

/// Time after which a compressed block is written even if the block is not full. So a crash loses
/// only the records of about a second.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// After this time without records, the thread writes an event `quiet`. So a program that downloads
/// a running capture gets some bytes before its HTTP connection counts as idle.
pub(super) const QUIET: Duration = Duration::from_secs(30);

/// Limits for the files of one capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileLimits {
    /// Size in bytes at which a part ends and the next part begins.
    pub(super) max_part_bytes: u64,
    /// Total size of all parts, in bytes, at which the capture ends.
    pub(super) max_bytes: u64,
    /// After this time without records, the thread writes an event `quiet`.
    pub(super) quiet: Duration,
}

/// Creates the parts of a capture: files, or substitutes in tests.
pub(super) trait PartStore {
    type Part: Write;

    /// Creates a part.
    fn create(&mut self, part: u32) -> io::Result<Self::Part>;
}

/// Parts in the directory of a capture.
#[derive(Debug)]
pub(super) struct PartFiles {
    pub(super) directory: Directory,
    pub(super) id: CaptureId,
}

impl PartStore for PartFiles {
    type Part = File;

    fn create(&mut self, part: u32) -> io::Result<File> {
        self.directory.create_part(&self.id, part)
    }
}

/// Writes records until the capture ends. Returns the reason for the end. A panic counts as a
/// failed write.
pub(super) fn write_all(
    capture: &Written,
    parts: impl PartStore,
    limits: FileLimits,
    servers: Vec<Server>,
) -> EndReason {
    let mut output = Output {
        capture,
        parts,
        limits,
        servers,
        redactor: capture.redacting.redactor.clone().map(Records::new),
        writer: None,
        next_part: 0,
        ended_bytes: 0,
        reported_bytes: 0,
        pending_operations: 0,
    };
    // Without `catch_unwind`, a capture whose thread panicked would seem to run until the process
    // ends.
    let written = panic::catch_unwind(AssertUnwindSafe(|| output.write_until_end()));
    let reason = written.unwrap_or(EndReason::WriteFailed);
    let Tap { queue, totals, .. } = &*capture.tap;
    queue.discard(reason, VecDeque::new(), totals);
    reason
}

struct Output<'s, P: PartStore> {
    capture: &'s Written,
    parts: P,
    limits: FileLimits,
    servers: Vec<Server>,
    /// Replaces values by pseudonyms; `None` if values are recorded as they are.
    redactor: Option<Records>,
    /// The current part; `None` before the first part.
    writer: Option<Writer<P::Part>>,
    next_part: u32,
    /// Size of the parts that have ended, in bytes.
    ended_bytes: u64,
    /// Number of bytes that the metrics have already counted.
    reported_bytes: u64,
    /// Number of operations whose records are in the current compressed block, which is not written
    /// yet.
    pending_operations: u64,
}

impl<P: PartStore> Output<'_, P> {
    fn write_until_end(&mut self) -> EndReason {
        let queue = &self.capture.tap.queue;
        let until = self.capture.until;
        let mut flushed_at = Instant::now();
        let mut recorded_at = flushed_at;
        loop {
            let now = Instant::now();
            self.capture.end_if_over(now);
            let Batch {
                mut records,
                bytes,
                end,
            } = queue.take(WAIT.min(until.saturating_duration_since(now)));
            if records.is_empty() && recorded_at.elapsed() >= self.limits.quiet {
                records.push_back(self.quiet());
            }
            if !records.is_empty() {
                recorded_at = Instant::now();
            }
            let is_due = flushed_at.elapsed() >= FLUSH_INTERVAL;
            if is_due {
                flushed_at = Instant::now();
            }
            let ended = self.advance(&mut records, end, is_due);
            if let Err(error) = &ended {
                let capture = self.capture.id.as_str();
                tracing::warn!(%error, capture, "could not write a capture");
                let totals = &self.capture.tap.totals;
                queue.lose(mem::take(&mut self.pending_operations), totals);
                queue.discard(EndReason::WriteFailed, records, totals);
            }
            queue.release(bytes);
            self.report();
            match ended {
                Err(_) => return EndReason::WriteFailed,
                Ok(Some(reason)) => return reason,
                Ok(None) => {}
            }
        }
    }

    /// Writes `records`, and ends the capture if `end` is set or the limit of bytes is reached.
    /// Otherwise, if `is_due`, also writes the current compressed block. Returns the reason for the
    /// end; `None` if the capture continues. After an error, `records` contains the records that
    /// were not written.
    fn advance(
        &mut self,
        records: &mut VecDeque<Content>,
        end: Option<EndReason>,
        is_due: bool,
    ) -> Result<Option<EndReason>, WriteError> {
        let end = match self.write(records)? {
            true => {
                let Tap { queue, totals, .. } = &*self.capture.tap;
                let rest = mem::take(records);
                for mut omitted in queue.discard(EndReason::DiskLimit, rest, totals) {
                    shift(&mut omitted, self.capture.offset_us);
                    self.push(omitted)?;
                }
                Some(EndReason::DiskLimit)
            }
            false => end,
        };
        match end {
            Some(reason) => self.finish(reason)?,
            None if is_due => self.flush()?,
            None => {}
        }
        Ok(end)
    }

    fn quiet(&self) -> Content {
        Content::Event(Event {
            at_us: self.capture.tap.at_us(Instant::now()),
            kind: "quiet".to_owned(),
            text: String::new(),
        })
    }

    /// Writes records until none is left or the capture reaches its limit of bytes. Returns true if
    /// the limit is reached.
    fn write(&mut self, records: &mut VecDeque<Content>) -> Result<bool, WriteError> {
        loop {
            self.flush_near_limit()?;
            if self.bytes() >= self.limits.max_bytes {
                return Ok(true);
            }
            let Some(mut content) = records.pop_front() else {
                return Ok(false);
            };
            shift(&mut content, self.capture.offset_us);
            match &mut self.redactor {
                None => self.push(content)?,
                Some(redactor) => {
                    for redacted in redactor.redact(content) {
                        self.count(&redacted);
                        self.push(redacted)?;
                    }
                }
            }
            let is_full = |writer: &Writer<_>| writer.written_bytes() >= self.limits.max_part_bytes;
            if self.writer.as_ref().is_some_and(is_full) {
                self.end_part(EndReason::NextPart)?;
            }
        }
    }

    /// Writes the current block if the capture could reach its limit of bytes with this block. The
    /// compressed size of a block is known only after the write.
    fn flush_near_limit(&mut self) -> Result<(), WriteError> {
        let pending = self.writer.as_ref().map_or(0, Writer::pending_bytes);
        if pending > 0 && self.bytes() + pending >= self.limits.max_bytes {
            self.flush()?;
        }
        Ok(())
    }

    fn push(&mut self, content: Content) -> Result<(), WriteError> {
        let operations = u64::from(matches!(content, Content::Command(_)));
        self.pending_operations += operations;
        let bytes_before = self.bytes();
        match self.part()?.push(&content.into()) {
            Err(WriteError::RecordTooLarge { bytes }) => self.omit(bytes),
            other => other?,
        }
        if self.bytes() > bytes_before {
            // A block was written. It contains the earlier records, but this record is in the next
            // block. So do not count the operation of this record yet.
            self.pending_operations -= operations;
            self.count_written();
            self.pending_operations += operations;
        }
        Ok(())
    }

    /// If `record` reports a command or a reply that could not be redacted, counts this omission.
    fn count(&self, record: &Content) {
        if let Content::Omitted(omitted) = record
            && omitted.reason() == OmissionReason::NotRedactable
        {
            let tap = &self.capture.tap;
            tap.queue.count_not_redactable(omitted, &tap.totals);
        }
    }

    /// Counts a record as omitted, because it is too large for the format. This is not expected to
    /// happen, because messages of clients are never that large.
    fn omit(&self, bytes: usize) {
        let tap = &self.capture.tap;
        let at_us = tap.at_us(Instant::now());
        let reason = OmissionReason::TooLarge;
        tap.queue.omit(reason, 1, bytes, at_us, &tap.totals);
    }

    /// The current part. Creates it if there is none.
    fn part(&mut self) -> Result<&mut Writer<P::Part>, WriteError> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let header = self.capture.header(self.next_part, &self.servers);
                let file = self.parts.create(self.next_part)?;
                self.next_part += 1;
                Writer::new(file, header)?
            }
        };
        Ok(self.writer.insert(writer))
    }

    /// Counts the operations of a block that was written.
    fn count_written(&mut self) {
        let operations = mem::take(&mut self.pending_operations);
        let total = &self.capture.tap.totals.operations;
        total.fetch_add(operations, Ordering::Relaxed);
    }

    fn flush(&mut self) -> Result<(), WriteError> {
        self.part()?.flush()?;
        self.count_written();
        Ok(())
    }

    fn finish(&mut self, reason: EndReason) -> Result<(), WriteError> {
        // Create a part even if the capture has no operations.
        self.part()?;
        self.end_part(reason)
    }

    fn end_part(&mut self, reason: EndReason) -> Result<(), WriteError> {
        let Some(mut writer) = self.writer.take() else {
            return Ok(());
        };
        let counts = self.capture.tap.queue.counts();
        writer.flush()?;
        self.count_written();
        self.ended_bytes += writer.written_bytes();
        writer.finish(End {
            at_us: self.capture.at_us(Instant::now()),
            clients: counts.clients,
            operations: counts.operations,
            omitted: counts.all_omitted(),
            reason: reason.into(),
        })?;
        Ok(())
    }

    /// Size of all parts together, in bytes. The last record of each part is not included.
    fn bytes(&self) -> u64 {
        let current = self.writer.as_ref().map_or(0, Writer::written_bytes);
        self.ended_bytes + current
    }

    fn report(&mut self) {
        let (bytes, parts) = (self.bytes(), self.next_part);
        let new = bytes.saturating_sub(self.reported_bytes);
        self.reported_bytes = bytes;
        let totals = &self.capture.tap.totals;
        totals.written_bytes.fetch_add(new, Ordering::Relaxed);
        self.capture.update(|progress| {
            progress.bytes = bytes;
            progress.parts = parts;
        });
    }
}

/// Converts the time of a record. The given time counts from the creation of the [`Tap`] (the
/// recorder of operations), and the new time counts from the beginning of the capture. The capture
/// begins `offset_us` after the creation of the tap.
fn shift(content: &mut Content, offset_us: u64) {
    let at_us = match content {
        Content::ClientBegan(client) => &mut client.at_us,
        Content::ClientEnded(client) => &mut client.at_us,
        Content::Command(command) => &mut command.at_us,
        Content::Reply(reply) => &mut reply.at_us,
        Content::Omitted(omitted) => &mut omitted.at_us,
        Content::Event(event) => &mut event.at_us,
        // The writer creates these records itself, so their times need no conversion.
        Content::Header(_) | Content::End(_) => return,
    };
    *at_us = at_us.saturating_sub(offset_us);
}
