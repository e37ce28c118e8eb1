//! The slow log: one JSON line for each slow operation.
//!
//! Two questions are decided without a lock or a system call, before a line is made: is the
//! operation wanted, and is there room for its line. So a line costs next to nothing if it is left
//! out because the queue is full or its second has too many lines. Left-out lines are counted, and
//! the next line reports the count; if no line comes for a second, a line of its own does. The
//! caller makes a line and a separate thread writes it, so that no operation waits for a disk.
//! Lines contain the values of commands only if this is configured, and never values that may be
//! secrets. This module does not measure operations.

mod line;
mod rate;
mod secrets;
mod writer;

use std::{
    io,
    num::NonZeroU32,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

pub use self::line::Entry;
use self::{
    line::Values,
    rate::Rate,
    writer::{Destination, Queued},
};
use seawall_command::CommandBytes;

/// Maximum number of lines that wait to be written: enough for a disk that hesitates for one second
/// at 1,000 lines a second. This also limits the memory, since a line is bounded by its shape's
/// text and `max_command_bytes`.
const QUEUED_LINES: usize = 1_024;

/// If no line comes for this time, left-out lines are reported by a line of their own.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum time to wait for a flush: a disk that hangs must not keep the process from ending.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Which operations are logged, and where.
#[derive(Clone, Debug)]
pub struct SlowLogSettings {
    /// Operations that take at least this long are logged; 0 logs every operation.
    pub threshold: Duration,
    /// Shapes with a threshold of their own, by shape id, in any order.
    pub shape_thresholds: Vec<(u64, Duration)>,
    /// Percentage of the operations over their threshold that are logged, 0 to 100.
    pub sample_percent: f64,
    /// Where lines are appended; `None` is standard error.
    pub file: Option<PathBuf>,
    /// Maximum number of lines per second; `None` is no limit.
    pub max_lines_per_second: Option<NonZeroU32>,
    /// True if values are left out of the lines.
    pub redact: bool,
    /// Maximum length of a command's values; longer values are cut.
    pub max_command_bytes: usize,
}

/// Writes lines until it is dropped; lines queued by then are still written.
pub struct SlowLog {
    choice: Choice,
    rate: Rate,
    redact: bool,
    max_command_bytes: usize,
    counts: Arc<QueueCounts>,
    /// `None` after the thread was asked to end.
    queue: Option<SyncSender<Queued>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for SlowLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlowLog")
            .field("choice", &self.choice)
            .finish_non_exhaustive()
    }
}

impl SlowLog {
    /// Opens the file and starts the thread.
    ///
    /// # Errors
    /// If the file cannot be opened, or the thread cannot be started.
    pub fn start(settings: SlowLogSettings) -> io::Result<Self> {
        let destination = Destination::open(settings.file.clone())?;
        Self::start_with(&settings, destination, QUIET)
    }

    fn start_with(
        settings: &SlowLogSettings,
        destination: Destination,
        quiet: Duration,
    ) -> io::Result<Self> {
        // One place more than lines, so that a flush always has one.
        let (queue, queued) = sync_channel(QUEUED_LINES + 1);
        let counts = Arc::<QueueCounts>::default();
        let writers = Arc::clone(&counts);
        let thread = thread::Builder::new()
            .name("slow-log".to_owned())
            .spawn(move || writer::write_all(&queued, destination, &writers, quiet))?;
        Ok(Self {
            choice: Choice::new(settings),
            rate: Rate::new(settings.max_lines_per_second),
            redact: settings.redact,
            max_command_bytes: settings.max_command_bytes,
            counts,
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// True if this operation is to be logged: over its threshold, and in the sample.
    pub(super) fn wants(&self, shape: u64, total: Duration) -> bool {
        self.choice.takes(shape, total)
    }

    /// Reserves a place for the line of a user's wanted operation that ended at `at`. If there is
    /// none, the line is counted as left out.
    pub(super) fn admit(&self, user: u64, at: SystemTime) -> Option<LinePermit<'_>> {
        let is_admitted = self.rate.admits(user, at) && self.counts.reserve_place();
        if !is_admitted {
            self.counts.left_out.add(1);
        }
        // Made only if admitted: dropping an unused permit would count the line again.
        is_admitted.then(|| LinePermit {
            log: self,
            is_queued: false,
        })
    }

    /// The values of a command, unless they must not be shown.
    fn values(&self, command: &CommandBytes<'_>) -> Option<Values> {
        let is_shown = !self.redact && secrets::may_be_shown(command);
        is_shown.then(|| Values::of(command, self.max_command_bytes))
    }

    fn queue(&self, entry: &Entry<'_>) -> bool {
        let values = entry.values.and_then(|command| self.values(&command));
        match (line::line(entry, values.as_ref()), &self.queue) {
            (Some(line), Some(queue)) => queue.try_send(Queued::Line(line)).is_ok(),
            _ => false,
        }
    }

    /// Waits for at most `FLUSH_LIMIT` until all queued lines are written and left-out lines are
    /// reported.
    pub(super) fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        let flush = Queued::Flush(done);
        let queued = self.queue.as_ref().map(|queue| queue.try_send(flush));
        if let Some(Ok(())) = queued {
            is_done.recv_timeout(FLUSH_LIMIT).ok();
        }
    }

    /// Number of lines left out since the start: over the rate, beyond the queue's size, or not
    /// writable.
    pub(super) fn left_out(&self) -> u64 {
        self.counts.left_out.all()
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            drop(thread.join());
        }
    }
}

/// A reserved place in the queue. If it is dropped without a queued line, a line is counted as left
/// out.
#[derive(Debug)]
#[must_use]
pub(super) struct LinePermit<'a> {
    log: &'a SlowLog,
    is_queued: bool,
}

impl LinePermit<'_> {
    /// Makes the line and queues it. Never waits.
    pub(super) fn write(mut self, entry: &Entry<'_>) {
        self.is_queued = self.log.queue(entry);
    }
}

impl Drop for LinePermit<'_> {
    fn drop(&mut self) {
        if !self.is_queued {
            let counts = &self.log.counts;
            counts.waiting.fetch_sub(1, Ordering::Relaxed);
            counts.left_out.add(1);
        }
    }
}

/// Counts shared by the operations and the writing thread.
#[derive(Debug, Default)]
struct QueueCounts {
    /// Number of places in the queue that are taken or reserved.
    waiting: AtomicUsize,
    left_out: LeftOutCount,
}

impl QueueCounts {
    fn reserve_place(&self) -> bool {
        let one_more = |waiting| (waiting < QUEUED_LINES).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

/// Number of lines left out, and how many of them were reported.
#[derive(Debug, Default)]
struct LeftOutCount {
    all: AtomicU64,
    reported: AtomicU64,
}

impl LeftOutCount {
    fn add(&self, lines: u64) {
        self.all.fetch_add(lines, Ordering::Relaxed);
    }

    fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Number of lines not reported yet; only the writing thread calls this.
    fn unreported(&self) -> u64 {
        self.all()
            .saturating_sub(self.reported.load(Ordering::Relaxed))
    }

    fn mark_reported(&self, lines: u64) {
        self.reported.fetch_add(lines, Ordering::Relaxed);
    }
}

/// Decides which operations are logged.
#[derive(Debug)]
struct Choice {
    threshold: Duration,
    /// Sorted by shape.
    shape_thresholds: Box<[(u64, Duration)]>,
    share: f64,
    /// Number of operations over their threshold so far.
    turn: AtomicU64,
}

impl Choice {
    fn new(settings: &SlowLogSettings) -> Self {
        let mut shape_thresholds = settings.shape_thresholds.clone();
        shape_thresholds.sort_unstable();
        Self {
            threshold: settings.threshold,
            shape_thresholds: shape_thresholds.into_boxed_slice(),
            share: settings.sample_percent / 100.0,
            turn: AtomicU64::new(0),
        }
    }

    fn takes(&self, shape: u64, total: Duration) -> bool {
        total >= self.threshold_of(shape) && self.samples()
    }

    fn threshold_of(&self, shape: u64) -> Duration {
        let own = self
            .shape_thresholds
            .binary_search_by_key(&shape, |(shape, _)| *shape);
        let own = own.ok().and_then(|index| self.shape_thresholds.get(index));
        own.map_or(self.threshold, |(_, threshold)| *threshold)
    }

    /// True if the next operation is in the sample. A hash of the operation's number decides: if
    /// every second operation were taken, operations that alternate would not be sampled equally.
    fn samples(&self) -> bool {
        if self.share >= 1.0 {
            return true;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let high_half = u32::try_from(scattered(turn) >> 32).unwrap_or(u32::MAX);
        f64::from(high_half) / 2_f64.powi(32) < self.share
    }
}

/// SplitMix64: the number after `turn` steps from 0. (Steele, Lea and Flood: "Fast splittable
/// pseudorandom number generators", 2014; the constants are those of Vigna's public-domain
/// `splitmix64.c`.)
fn scattered(turn: u64) -> u64 {
    let z = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
pub(super) mod tests;
