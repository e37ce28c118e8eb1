//! The slow log: a JSON line for an operation that took long.
//!
//! Whether an operation is wanted is decided without a lock and without a system call. The line is made by the
//! caller and written by a thread of its own, so that no operation waits for a disk; a line that finds the
//! queue full, or is one too many in its second, is left out and counted. Values of commands are in it only
//! if that was asked for. When an operation is slow is not measured here.

mod line;
mod writer;

use std::{
    io,
    num::NonZeroU32,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bson::RawDocument;
use parking_lot::Mutex;

pub use self::line::Entry;
use self::{
    line::{Values, values_of},
    writer::Destination,
};

/// Lines that wait to be written: a second's worth of a full disk's hesitation at 1,000 lines a second. It
/// bounds the memory too, since a line is bounded by its shape's text and `max_command_bytes`.
const QUEUED_LINES: usize = 1_024;

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
    rate: Mutex<Rate>,
    redact: bool,
    max_command_bytes: usize,
    left_out: Arc<LeftOut>,
    /// `None` once the thread has been told to end.
    queue: Option<SyncSender<Vec<u8>>>,
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
        Self::start_with(settings, destination)
    }

    fn start_with(settings: SlowLogSettings, mut destination: Destination) -> io::Result<Self> {
        let (queue, lines) = sync_channel(QUEUED_LINES);
        let left_out = Arc::<LeftOut>::default();
        let told = Arc::clone(&left_out);
        let thread = thread::Builder::new()
            .name("slow-log".to_owned())
            .spawn(move || writer::write_all(&lines, &mut destination, &told))?;
        Ok(Self {
            choice: Choice::new(&settings),
            rate: Mutex::new(Rate::new(settings.max_lines_per_second)),
            redact: settings.redact,
            max_command_bytes: settings.max_command_bytes,
            left_out,
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Whether this operation is to be logged: over its threshold, and in the sample.
    pub fn wants(&self, shape: u64, total: Duration) -> bool {
        self.choice.takes(shape, total)
    }

    /// The values of a command for [`Entry::command_json`], in time and space bounded by where they are cut;
    /// `None` where they are to stay out, and for commands that carry secrets.
    pub fn values(&self, name: &str, command: &RawDocument) -> Option<String> {
        let is_shown = !self.redact && !is_secret(name);
        // One byte more than is shown tells that something is cut.
        is_shown.then(|| values_of(command, self.max_command_bytes.saturating_add(1)))
    }

    /// Has a line written. Never waits; what cannot be written is counted.
    pub fn write(&self, entry: &Entry<'_>) {
        if !self.rate.lock().admits(entry.at) {
            self.left_out.add(1);
            return;
        }
        let values = match entry.command_json.as_deref() {
            Some(json) if !self.redact && !is_secret(entry.command) => {
                Some(Values::cut(json, self.max_command_bytes))
            }
            _ => None,
        };
        let is_queued = match (line::line(entry, values), &self.queue) {
            (Some(line), Some(queue)) => queue.try_send(line).is_ok(),
            _ => false,
        };
        if !is_queued {
            self.left_out.add(1);
        }
    }

    /// Lines that were left out since the start: over the rate, or more than the queue holds, or not to be written.
    pub fn left_out(&self) -> u64 {
        self.left_out.all()
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
    /// Since the epoch.
    second: u64,
    lines: u32,
}

impl Rate {
    fn new(max_lines: Option<NonZeroU32>) -> Self {
        Self {
            max_lines,
            second: 0,
            lines: 0,
        }
    }

    /// Whether one more line may be written for something that ended then. A clock that was set back begins a
    /// new second.
    fn admits(&mut self, at: SystemTime) -> bool {
        let Some(max_lines) = self.max_lines else {
            return true;
        };
        let second = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if second != self.second {
            (self.second, self.lines) = (second, 0);
        }
        let is_admitted = self.lines < max_lines.get();
        self.lines += u32::from(is_admitted);
        is_admitted
    }
}

/// Whether a command's values are secrets in themselves; a server's own log leaves these out too.
fn is_secret(command: &str) -> bool {
    SECRET_COMMANDS
        .iter()
        .any(|secret| secret.eq_ignore_ascii_case(command))
}

const SECRET_COMMANDS: [&str; 10] = [
    "authenticate",
    "copydb",
    "copydbgetnonce",
    "copydbsaslstart",
    "createUser",
    "getnonce",
    "hello",
    "saslContinue",
    "saslStart",
    "updateUser",
];

#[cfg(test)]
mod tests;
