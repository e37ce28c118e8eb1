//! One running capture: what it records, and when it ends.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use seawall_capture::record::{EndReason, Header, Redaction, ReplyDetail, Server};
use tokio::time::Instant;

use super::{
    directory::{CaptureId, Summary},
    queue::{Counts, Queue, REASONS, Totals, reason_name},
    selection::Selection,
};

/// The parameters of a capture.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The clients that are captured.
    pub selection: Selection,
    /// The part of each reply that is recorded.
    pub replies: ReplyDetail,
    /// How long the capture runs.
    pub duration: Duration,
    /// Why the capture began: `operator`, or the kind of an event.
    pub trigger: &'static str,
}

/// A running capture. Clients push records, and the writer's thread takes them.
#[derive(Debug)]
pub(super) struct Session {
    /// Differs between all captures of the process, and is never 0.
    pub(super) number: u64,
    pub(super) id: CaptureId,
    pub(super) plan: Plan,
    /// Makes the samples of two captures independent.
    pub(super) seed: u64,
    pub(super) began: Instant,
    pub(super) began_at: SystemTime,
    pub(super) queue: Queue,
    pub(super) totals: Arc<Totals>,
    /// Bytes of all parts so far, and true when the last file is complete.
    progress: Mutex<Progress>,
    has_ended: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Bytes of all parts.
    pub(super) bytes: u64,
    /// Number of parts.
    pub(super) parts: u32,
    /// True when nothing more will be written.
    pub(super) has_ended: bool,
}

/// The parts of a session that its creator sets.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) number: u64,
    pub(super) seed: u64,
    pub(super) plan: Plan,
    pub(super) now: Instant,
    pub(super) at: SystemTime,
}

impl Session {
    pub(super) fn new(beginning: Beginning, queue: Queue, totals: Arc<Totals>) -> Self {
        let Beginning {
            number,
            seed,
            plan,
            now,
            at,
        } = beginning;
        let [a, b, c, d, ..] = seed.to_le_bytes();
        Self {
            number,
            id: CaptureId::new(at, u32::from_le_bytes([a, b, c, d])),
            plan,
            seed,
            began: now,
            began_at: at,
            queue,
            totals,
            progress: Mutex::default(),
            has_ended: Condvar::new(),
        }
    }

    /// Microseconds since the capture began.
    pub(super) fn at_us(&self, now: Instant) -> u64 {
        microseconds(now.saturating_duration_since(self.began))
    }

    /// The header of a part.
    pub(super) fn header(&self, part: u32, servers: &[Server]) -> Header {
        Header {
            capture: Bytes::copy_from_slice(self.id.as_str().as_bytes()),
            part,
            began_at_us: since_epoch_us(self.began_at),
            program: concat!("seawall ", env!("CARGO_PKG_VERSION")).to_owned(),
            servers: servers.to_vec(),
            reply_detail: self.plan.replies.into(),
            redaction: Redaction::None.into(),
            selection: Some(self.plan.selection.to_record()),
        }
    }

    pub(super) fn progress(&self) -> Progress {
        *self.progress.lock()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = self.progress.lock();
        change(&mut progress);
        if progress.has_ended {
            self.has_ended.notify_all();
        }
    }

    /// Waits at most `limit` until nothing more will be written. Returns true if that is so.
    pub(super) fn wait_for_end(&self, limit: Duration) -> bool {
        let mut progress = self.progress.lock();
        let is_running = |progress: &mut Progress| !progress.has_ended;
        let waited = self
            .has_ended
            .wait_while_for(&mut progress, is_running, limit);
        !waited.timed_out()
    }

    /// The description of the capture after its end.
    pub(super) fn summary(&self, counts: Counts, end: EndReason, at: SystemTime) -> Summary {
        let summary = Summary {
            began_at_us: since_epoch_us(self.began_at),
            ended_at_us: since_epoch_us(at),
            end: end_name(end).to_owned(),
            trigger: self.plan.trigger.to_owned(),
            clients: counts.clients,
            operations: counts.operations,
            omitted: by_reason(&counts),
            whole_replies: self.plan.replies == ReplyDetail::Whole,
            ..Summary::default()
        };
        summary.with_selection(&self.plan.selection)
    }
}

/// The number of omissions for each reason that occurred.
pub(super) fn by_reason(counts: &Counts) -> BTreeMap<String, u64> {
    let counted = REASONS.into_iter().zip(counts.omitted);
    let counted = counted.filter(|(_, count)| *count > 0);
    counted
        .map(|(reason, count)| (reason_name(reason).to_owned(), count))
        .collect()
}

/// The name of an end's reason in the API.
fn end_name(reason: EndReason) -> &'static str {
    match reason {
        EndReason::NextPart => "next_part",
        EndReason::Duration => "duration",
        EndReason::Stopped => "stopped",
        EndReason::DiskLimit => "disk_limit",
        EndReason::WriteFailed => "write_failed",
        EndReason::Shutdown => "shutdown",
    }
}

pub(super) fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn since_epoch_us(at: SystemTime) -> u64 {
    microseconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}
