//! The slow log: a JSON line for an operation that took long.
//!
//! Whether an operation is wanted, and whether there is room for its line, is decided without a lock and without
//! a system call, before anything of the line is made: what is left out, because the queue is full or the
//! line one too many in its second, costs next to nothing. It is counted, and told by the next line, or by a line
//! of its own when a second brings no other. A line is made by the caller and written by a thread of its own,
//! so that no operation waits for a disk. Values of commands are in it only if that was asked for, and never those that
//! may be secrets. When an operation is slow is not measured here.

mod line;
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
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub use self::line::Entry;
use self::{
    line::Values,
    writer::{Destination, Queued},
};
use crate::shape::Input;

/// Lines that wait to be written: a second's worth of a full disk's hesitation at 1,000 lines a second. It
/// bounds the memory too, since a line is bounded by its shape's text and `max_command_bytes`.
const QUEUED_LINES: usize = 1_024;

/// When no line has come for so long, what was left out is told by a line of its own.
const QUIET: Duration = Duration::from_secs(1);

/// How long a flush is waited for: a disk that hangs must not keep a process from ending.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

/// Which operations are logged, and where.
#[derive(Clone, Debug)]
pub struct SlowLogSettings {
    /// Operations that take so long are logged; 0 is every operation.
    pub threshold: Duration,
    /// Shapes with a threshold of their own, in any order.
    pub shape_thresholds: Vec<(u64, Duration)>,
    /// How many of the operations over their threshold are logged, 0 to 100.
    pub sample_percent: f64,
    /// Where lines are appended; `None` is standard error.
    pub file: Option<PathBuf>,
    /// Lines a second at most; `None` is no limit.
    pub max_lines_per_second: Option<NonZeroU32>,
    /// Whether values stay out of the lines.
    pub redact: bool,
    /// Where the values of a command are cut.
    pub max_command_bytes: usize,
}

/// Writes lines as long as it lives; what is queued when it is dropped is still written.
pub struct SlowLog {
    choice: Choice,
    rate: Rate,
    redact: bool,
    max_command_bytes: usize,
    accounts: Arc<Accounts>,
    /// `None` once the thread has been told to end.
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
    /// If the file cannot be opened, or the thread not be started.
    pub fn start(settings: SlowLogSettings) -> io::Result<Self> {
        let destination = Destination::open(settings.file.clone())?;
        Self::start_with(&settings, destination, QUIET)
    }

    fn start_with(
        settings: &SlowLogSettings,
        destination: Destination,
        quiet: Duration,
    ) -> io::Result<Self> {
        // A flush finds a place behind all lines.
        let (queue, queued) = sync_channel(QUEUED_LINES + 1);
        let accounts = Arc::<Accounts>::default();
        let writers = Arc::clone(&accounts);
        let thread = thread::Builder::new()
            .name("slow-log".to_owned())
            .spawn(move || writer::write_all(&queued, destination, &writers, quiet))?;
        Ok(Self {
            choice: Choice::new(settings),
            rate: Rate::new(settings.max_lines_per_second),
            redact: settings.redact,
            max_command_bytes: settings.max_command_bytes,
            accounts,
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Whether this operation is to be logged: over its threshold, and in the sample.
    pub(super) fn wants(&self, shape: u64, total: Duration) -> bool {
        self.choice.takes(shape, total)
    }

    /// A place for the line of an operation that is wanted and ended `at` this time; without one it is counted as left
    /// out.
    pub(super) fn admit(&self, at: SystemTime) -> Option<Turn<'_>> {
        let is_admitted = self.rate.admits(at) && self.accounts.take_place();
        if !is_admitted {
            self.accounts.left_out.add(1);
        }
        // A turn that is not taken would be counted when it is dropped.
        is_admitted.then(|| Turn {
            log: self,
            is_queued: false,
        })
    }

    /// The values of a command, unless they are to stay out.
    fn values(&self, command: &Input<'_>) -> Option<Values> {
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

    /// Waits a moment until all that is queued is written, and what was left out is told.
    pub(super) fn flush(&self) {
        let (done, is_done) = sync_channel(1);
        let flush = Queued::Flush(done);
        let queued = self.queue.as_ref().map(|queue| queue.try_send(flush));
        if let Some(Ok(())) = queued {
            is_done.recv_timeout(FLUSH_LIMIT).ok();
        }
    }

    /// Lines that were left out since the start: over the rate, or more than the queue holds, or not to be written.
    pub(super) fn left_out(&self) -> u64 {
        self.accounts.left_out.all()
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

/// A place in the queue. A line that does not come to it is left out.
#[derive(Debug)]
#[must_use]
pub(super) struct Turn<'a> {
    log: &'a SlowLog,
    is_queued: bool,
}

impl Turn<'_> {
    /// Has the line written. Never waits.
    pub(super) fn write(mut self, entry: &Entry<'_>) {
        self.is_queued = self.log.queue(entry);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_queued {
            let accounts = &self.log.accounts;
            accounts.waiting.fetch_sub(1, Ordering::Relaxed);
            accounts.left_out.add(1);
        }
    }
}

/// What operations and the writing thread have in common.
#[derive(Debug, Default)]
struct Accounts {
    /// Places in the queue that are taken, by lines or for them.
    waiting: AtomicUsize,
    left_out: LeftOut,
}

impl Accounts {
    fn take_place(&self) -> bool {
        let one_more = |waiting| (waiting < QUEUED_LINES).then_some(waiting + 1);
        self.waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

/// Lines that were left out, and how many of them a line has told of.
#[derive(Debug, Default)]
struct LeftOut {
    all: AtomicU64,
    told: AtomicU64,
}

impl LeftOut {
    fn add(&self, lines: u64) {
        self.all.fetch_add(lines, Ordering::Relaxed);
    }

    fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// What nobody has been told of yet; only the writing thread asks.
    fn untold(&self) -> u64 {
        self.all().saturating_sub(self.told.load(Ordering::Relaxed))
    }

    fn tell(&self, lines: u64) {
        self.told.fetch_add(lines, Ordering::Relaxed);
    }
}

/// Which operations are logged.
#[derive(Debug)]
struct Choice {
    threshold: Duration,
    /// By shape.
    shape_thresholds: Box<[(u64, Duration)]>,
    share: f64,
    /// Operations over their threshold so far.
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

    /// Whether the next operation is in the sample. Scattered by a hash of its turn, since operations that take
    /// turns themselves would not be hit alike if every second one were taken.
    fn samples(&self) -> bool {
        if self.share >= 1.0 {
            return true;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let high_half = u32::try_from(scattered(turn) >> 32).unwrap_or(u32::MAX);
        f64::from(high_half) / 2_f64.powi(32) < self.share
    }
}

/// SplitMix64: the number after `turn` steps from 0. (Steele, Lea and Flood: "Fast splittable pseudorandom number
/// generators", 2014; the constants are those of Vigna's public-domain `splitmix64.c`.)
fn scattered(turn: u64) -> u64 {
    let z = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// How many lines a second has seen.
#[derive(Debug)]
struct Rate {
    max_lines: Option<NonZeroU32>,
    /// The last second that had a line, since the epoch, in the upper half; its lines in the lower.
    second_and_lines: AtomicU64,
}

impl Rate {
    fn new(max_lines: Option<NonZeroU32>) -> Self {
        Self {
            max_lines,
            second_and_lines: AtomicU64::new(0),
        }
    }

    /// Whether one more line may be written for something that ended then. What comes a little late counts in the second
    /// that has begun meanwhile; a clock that was set back further begins a new one.
    fn admits(&self, at: SystemTime) -> bool {
        let Some(max_lines) = self.max_lines else {
            return true;
        };
        let max_lines = u64::from(max_lines.get());
        let second = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let second = second & u64::from(u32::MAX);
        let one_more = |state: u64| {
            let (current, lines) = (state >> 32, state & u64::from(u32::MAX));
            if second != current && second + 1 != current {
                return Some((second << 32) | 1);
            }
            (lines < max_lines).then_some(state + 1)
        };
        self.second_and_lines
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
            .is_ok()
    }
}

#[cfg(test)]
pub(super) mod tests;
