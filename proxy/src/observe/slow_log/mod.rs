//! The slow log: one JSON line for each slow operation.
//!
//! Two conditions are checked before a line is built: the operation passes the filter, and the
//! queue accepts the line. The checks need no lock and no system call. A line is dropped if the
//! queue is full or the limit of lines per second is reached. A dropped line costs almost no CPU
//! time. The log counts dropped lines and reports the count in the next line. If no line follows
//! within a second, it reports the count in a separate line. The caller builds the line, and a
//! separate thread writes it, so no operation waits for a disk. Lines contain values of commands
//! only if the configuration allows it, and never values that may be secrets. This module does not
//! measure operations.

mod line;
mod rate;
mod writer;

use std::{
    io,
    num::NonZeroU32,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

pub(crate) use self::line::SlowLogEntry;
pub(super) use self::rate::LineRate;
use self::{
    line::Values,
    writer::{LogDestination, Queued},
};
use seawall_command::{CommandBytes, command_may_be_shown};

/// Maximum number of lines in the queue: enough for a disk that is blocked for one second at 1,000
/// lines per second. This number limits the memory too, because the size of a line is limited: a
/// shape's text has a maximum length, and `max_command_bytes` limits the values.
const QUEUED_LINES: usize = 1_024;

/// The next written line reports the lines that were dropped before it. If the queue gets no line
/// during this time, a separate line reports the dropped lines.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum time to wait for a flush. A disk that is blocked must not prevent the end of the
/// process.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// The settings of the slow log: which operations are logged, where, and how.
#[derive(Clone, Debug)]
pub(crate) struct SlowLogSettings {
    /// Minimum duration of a logged operation; 0 logs every operation.
    pub threshold: Duration,
    /// Thresholds that apply to single shapes, by shape id, in any order.
    pub shape_thresholds: Vec<(u64, Duration)>,
    /// How many of the operations that reach their threshold are logged, in percent (0 to 100).
    pub sample_percent: f64,
    /// The file to which lines are appended; `None` means standard error.
    pub file: Option<PathBuf>,
    /// Maximum number of lines per second; `None` means no limit.
    pub max_lines_per_second: Option<NonZeroU32>,
    /// True if lines contain no values of commands.
    pub redact: bool,
    /// Maximum length, in bytes, of the JSON text that contains the values of one command. A longer
    /// text is cut.
    pub max_command_bytes: usize,
}

/// The slow log. Dropping it ends the writing thread. The drop waits at most `FLUSH_LIMIT` until
/// the queued lines are written, except after a call of `do_not_wait`.
pub struct SlowLog {
    filter: Filter,
    rate: LineRate,
    redact: bool,
    max_command_bytes: usize,
    counts: Arc<QueueCounts>,
    /// True if the drop waits for the writing thread.
    waits: AtomicBool,
    /// The queue of the writing thread; `None` once that thread was asked to end.
    queue: Option<SyncSender<Queued>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for SlowLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlowLog")
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

impl SlowLog {
    /// Opens the file and starts the writing thread.
    ///
    /// # Errors
    /// If the file cannot be opened, or the thread cannot be started.
    pub(crate) fn start(settings: SlowLogSettings) -> io::Result<Self> {
        let destination = LogDestination::open(settings.file.clone())?;
        Self::start_with(&settings, destination, QUIET)
    }

    fn start_with(
        settings: &SlowLogSettings,
        destination: LogDestination,
        quiet: Duration,
    ) -> io::Result<Self> {
        // The queue has one entry more than its maximum number of lines. So a request to flush fits
        // even if the queue is full of lines.
        let (queue, queued) = sync_channel(QUEUED_LINES + 1);
        let counts = Arc::<QueueCounts>::default();
        let writers = Arc::clone(&counts);
        let thread = thread::Builder::new()
            .name("slow-log".to_owned())
            .spawn(move || writer::write_all(&queued, destination, &writers, quiet))?;
        Ok(Self {
            filter: Filter::new(settings),
            rate: LineRate::new(settings.max_lines_per_second),
            redact: settings.redact,
            max_command_bytes: settings.max_command_bytes,
            counts,
            waits: AtomicBool::new(true),
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Returns the threshold of this shape: its operations are logged only if they take at least
    /// this time.
    pub(super) fn threshold_of(&self, shape: u64) -> Duration {
        self.filter.threshold_of(shape)
    }

    /// Returns the threshold of all shapes that have no threshold of their own.
    pub(super) fn threshold(&self) -> Duration {
        self.filter.threshold
    }

    /// True if the next operation that reaches its threshold is in the sample.
    pub(super) fn samples(&self) -> bool {
        self.filter.samples()
    }

    /// Reserves a queue entry for the line of an operation that ended at `at`. Returns `None`, and
    /// counts the line as dropped, if the queue is full or the limit of lines per second is
    /// reached. Also returns `None`, and counts the line, if the user's share of this limit is used
    /// up.
    pub(super) fn admit(&self, user: u64, at: SystemTime) -> Option<LinePermit<'_>> {
        let is_admitted = self.rate.admits(user, at) && self.counts.reserve_entry();
        if !is_admitted {
            self.counts.left_out.add(1);
        }
        // The permit is created only if the line is admitted: dropping an unused permit would count
        // the line twice.
        is_admitted.then(|| LinePermit {
            log: self,
            is_queued: false,
        })
    }

    /// The command's values, or `None` if the line must not contain them.
    fn values(&self, command: &CommandBytes<'_>) -> Option<Values> {
        let is_shown = !self.redact && command_may_be_shown(command);
        is_shown.then(|| Values::of(command, self.max_command_bytes))
    }

    fn queue(&self, entry: &SlowLogEntry<'_>) -> bool {
        let values = entry.values.and_then(|command| self.values(&command));
        match (line::line(entry, values.as_ref()), &self.queue) {
            (Some(line), Some(queue)) => queue.try_send(Queued::Line(line)).is_ok(),
            _ => false,
        }
    }

    /// Asks the writing thread to write all queued lines and to report the dropped lines. Waits at
    /// most `FLUSH_LIMIT` until this is done. Returns false if it was not done in time, or if the
    /// request did not fit into the queue.
    pub(super) fn flush(&self) -> bool {
        let (done, is_done) = sync_channel(1);
        let flush = Queued::Flush(done);
        let queued = self.queue.as_ref().map(|queue| queue.try_send(flush));
        queued.is_some_and(|queued| queued.is_ok()) && is_done.recv_timeout(FLUSH_LIMIT).is_ok()
    }

    /// After this call, the drop of the log does not wait for the writing thread. The owner of the
    /// log calls this function if the owner must not wait for a disk. The writing thread still
    /// writes the queued lines, and then ends.
    pub(super) fn do_not_wait(&self) {
        self.waits.store(false, Ordering::Relaxed);
    }

    /// Number of lines dropped since this log was opened: because of the limit of lines per second,
    /// a full queue or a failed write.
    pub(super) fn left_out(&self) -> u64 {
        self.counts.left_out.all()
    }
}

impl Drop for SlowLog {
    fn drop(&mut self) {
        let is_written = *self.waits.get_mut() && self.flush();
        drop(self.queue.take());
        // A thread that could not write in time may be blocked by its disk, so do not wait for the
        // thread. The thread ends after its last line, because its queue is closed.
        if let Some(thread) = self.thread.take().filter(|_| is_written) {
            // Ignore a panic of the thread: it was printed when it happened.
            drop(thread.join());
        }
    }
}

/// A reserved queue entry. If the permit is dropped before its line is queued, the line counts as
/// dropped.
#[derive(Debug)]
#[must_use]
pub(super) struct LinePermit<'a> {
    log: &'a SlowLog,
    is_queued: bool,
}

impl LinePermit<'_> {
    /// Builds the line and queues it. Never waits.
    pub(super) fn write(mut self, entry: &SlowLogEntry<'_>) {
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

/// Counters that the operations and the writing thread share.
#[derive(Debug, Default)]
struct QueueCounts {
    /// Number of queue entries that are used or reserved.
    waiting: AtomicUsize,
    left_out: LeftOutCount,
}

impl QueueCounts {
    fn reserve_entry(&self) -> bool {
        let one_more = |waiting| (waiting < QUEUED_LINES).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

/// Number of dropped lines, and how many of them the log has reported.
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

    /// Number of dropped lines that the log has not reported yet. Only the writing thread may call
    /// this function.
    fn unreported(&self) -> u64 {
        self.all()
            .saturating_sub(self.reported.load(Ordering::Relaxed))
    }

    fn mark_reported(&self, lines: u64) {
        self.reported.fetch_add(lines, Ordering::Relaxed);
    }
}

/// The filter: decides which operations are logged.
#[derive(Debug)]
struct Filter {
    threshold: Duration,
    /// The thresholds that apply to single shapes, sorted by shape id.
    shape_thresholds: Box<[(u64, Duration)]>,
    share: f64,
    /// Number of operations that have reached their threshold. Stays 0 if the sample contains all
    /// of these operations.
    numbered: AtomicU64,
}

impl Filter {
    fn new(settings: &SlowLogSettings) -> Self {
        let mut shape_thresholds = settings.shape_thresholds.clone();
        shape_thresholds.sort_unstable();
        Self {
            threshold: settings.threshold,
            shape_thresholds: shape_thresholds.into_boxed_slice(),
            share: settings.sample_percent / 100.0,
            numbered: AtomicU64::new(0),
        }
    }

    fn threshold_of(&self, shape: u64) -> Duration {
        let own = self
            .shape_thresholds
            .binary_search_by_key(&shape, |(shape, _)| *shape);
        let own = own.ok().and_then(|index| self.shape_thresholds.get(index));
        own.map_or(self.threshold, |(_, threshold)| *threshold)
    }

    /// True if the next operation is in the sample. A hash of the operation's number decides. If,
    /// for example, all operations with an even number were logged instead, two alternating kinds
    /// of operations would be sampled unequally.
    fn samples(&self) -> bool {
        if self.share >= 1.0 {
            return true;
        }
        let number = self.numbered.fetch_add(1, Ordering::Relaxed);
        let high_half = u32::try_from(split_mix_64(number) >> 32).unwrap_or(u32::MAX);
        f64::from(high_half) / 2_f64.powi(32) < self.share
    }
}

/// SplitMix64: the `number`-th output from seed 0. (Steele, Lea and Flood: "Fast splittable
/// pseudorandom number generators", 2014; the constants are those of Vigna's public-domain
/// `splitmix64.c`.)
fn split_mix_64(number: u64) -> u64 {
    let z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
pub(super) mod tests;
