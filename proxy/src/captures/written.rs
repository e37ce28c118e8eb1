//! A capture that is being written: its name, its progress and its end.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use seawall_capture::record::{EndReason, Header, ReplyDetail, Server};
use seawall_locks::{Condvar, Mutex};
use tokio::time::Instant;

use super::{
    Captures,
    directory::{CaptureId, Directory, Summary},
    queue::{Counts, REASONS, end_name, microseconds, reason_name},
    redaction::{Redacting, redaction_name},
    tap::Tap,
};

/// A capture that a thread writes.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) id: CaptureId,
    pub(super) tap: Arc<Tap>,
    /// Time from the creation of the [`Tap`] (the recorder of operations) to the beginning of the
    /// capture. The times of queued records count from the creation of the tap, and times in the
    /// files count from the beginning of the capture.
    pub(super) offset_us: u64,
    /// The beginning of the capture. If an event began the capture: the time of the oldest record
    /// that was kept in memory, or the time of the event if no record was kept.
    pub(super) began_at: SystemTime,
    /// When the capture ends at the latest.
    pub(super) until: Instant,
    pub(super) trigger: &'static str,
    pub(super) redacting: Redacting,
    progress: Mutex<Progress>,
    has_ended: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Number of bytes that were written to all parts together. The last record of each part is not
    /// included.
    pub(super) bytes: u64,
    /// Number of parts.
    pub(super) parts: u32,
    /// True as soon as nothing more will be written to the capture.
    pub(super) has_ended: bool,
}

/// The parameters of a capture that begins.
#[derive(Debug)]
pub(super) struct Beginning {
    pub(super) offset_us: u64,
    pub(super) began_at: SystemTime,
    pub(super) until: Instant,
    pub(super) trigger: &'static str,
    pub(super) redacting: Redacting,
}

impl Captures {
    /// Asks the running capture to end if its time is over. Must be called once a second.
    pub(crate) fn end_if_over(&self) {
        if let Some(running) = self.running.written.load_full() {
            running.end_if_over(Instant::now());
        }
    }
}

impl Written {
    /// Asks the capture to end if its time is over at `now`. The thread that writes the capture
    /// calls this too, but not while it is busy or waits for the disk.
    pub(super) fn end_if_over(&self, now: Instant) {
        if now >= self.until {
            self.tap.queue.end(EndReason::Duration);
        }
    }

    pub(super) fn new(tap: Arc<Tap>, beginning: Beginning) -> Self {
        let Beginning {
            offset_us,
            began_at,
            until,
            trigger,
            redacting,
        } = beginning;
        Self {
            id: CaptureId::new(SystemTime::now(), rand::random()),
            tap,
            offset_us,
            began_at,
            until,
            trigger,
            redacting,
            progress: Mutex::default(),
            has_ended: Condvar::new(),
        }
    }

    /// Microseconds since the capture began.
    pub(super) fn at_us(&self, now: Instant) -> u64 {
        self.tap.at_us(now).saturating_sub(self.offset_us)
    }

    /// The header of a part.
    pub(super) fn header(&self, part: u32, servers: &[Server]) -> Header {
        Header {
            capture: Bytes::copy_from_slice(self.id.as_str().as_bytes()),
            part,
            began_at_us: since_epoch_us(self.began_at),
            program: concat!("seawall ", env!("CARGO_PKG_VERSION")).to_owned(),
            servers: servers.to_vec(),
            reply_detail: self.tap.replies.into(),
            redaction: self.redacting.mode.into(),
            selection: Some(self.tap.selection.to_record()),
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

    /// Waits until nothing more will be written, but at most for `limit`. Returns false if the
    /// limit is reached.
    pub(super) fn wait_for_end(&self, limit: Duration) -> bool {
        let mut progress = self.progress.lock();
        let is_running = |progress: &mut Progress| !progress.has_ended;
        let waited = self
            .has_ended
            .wait_while_for(&mut progress, is_running, limit);
        !waited.timed_out()
    }

    /// The description of the capture. `end` is `None` while it runs.
    pub(super) fn summary(&self, counts: Counts, end: Option<(EndReason, SystemTime)>) -> Summary {
        let summary = Summary {
            began_at_us: since_epoch_us(self.began_at),
            ended_at_us: end.map_or(0, |(_, at)| since_epoch_us(at)),
            end: end.map_or_else(String::new, |(reason, _)| end_name(reason).to_owned()),
            trigger: self.trigger.to_owned(),
            clients: counts.clients,
            operations: counts.operations,
            omitted: by_reason(&counts),
            whole_replies: self.tap.replies == ReplyDetail::Whole,
            redaction: Some(redaction_name(self.redacting.mode).to_owned()),
            ..Summary::default()
        };
        summary.with_selection(&self.tap.selection)
    }

    /// Logs the end of the capture, and completes its summary in `directory`.
    pub(super) fn summarize(&self, directory: &Directory, reason: EndReason) {
        let counts = self.tap.queue.counts();
        let summary = self.summary(counts, Some((reason, SystemTime::now())));
        let id = self.id.as_str();
        tracing::info!(
            capture = id,
            reason = summary.end,
            operations = summary.operations,
            omitted = counts.all_omitted(),
            "capture ended"
        );
        if let Err(error) = directory.end_summary(&self.id, &summary) {
            tracing::warn!(%error, capture = id, "could not write the summary of a capture");
        }
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

fn since_epoch_us(at: SystemTime) -> u64 {
    microseconds(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}
