//! Captures: recordings of the operations of selected clients.
//!
//! ```text
//! client/operation ──► RecordedCommand ──► queue (bounded) ──► writer (a thread) ──► files
//!                        selection: which clients
//! ```
//!
//! One capture runs at a time. While no capture runs, and Seawall does not wait for an event that
//! begins a capture, this module costs an operation one relaxed atomic load. An operation never
//! waits for the queue or the disk. But while a capture runs, a large command of a client that may
//! be captured is read as a whole before it is forwarded. If the queue is full or the rate limit is
//! reached, operations are omitted, and the file and the metrics report their number. If a write
//! fails or the limit of bytes on disk is reached, the capture ends. A capture never contains
//! logins, commands that may contain secrets, unknown commands, or the replies to these commands.
//! If redaction is on, the writer thread replaces the values in commands and replies before it
//! writes, so no original value reaches the disk. This module does not use HTTP and does not select
//! servers.

mod directory;
mod latest;
mod member;
mod queue;
mod redaction;
mod selection;
mod state;
mod tap;
#[cfg(test)]
mod tests;
mod writer;
mod written;

use std::{
    collections::VecDeque,
    fmt,
    fs::File,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use seawall_capture::record::{EndReason, Event, Redaction, ReplyDetail, Server};
use seawall_locks::Mutex;
use seawall_stats::CaptureCounts;
use tokio::time::Instant;

pub use self::{
    directory::CaptureId,
    member::{Arrived, CapturedClient, OperationEnd, RecordedCommand, ReplyCopy, ReplyMessage},
    redaction::RedactionKey,
    selection::{Described, Selection},
    state::CaptureState,
    tap::CapturePlan,
};
pub(crate) use self::{
    directory::CaptureParts,
    redaction::{redaction_name, redaction_named},
    selection::MAX_NAMES,
};
use self::{
    directory::{Directory, Expired, StoredCapture},
    latest::Latest,
    queue::{
        AllCounts, Counts, ENDS, LeadLimits, Queue, QueueLimits, REASONS, end_name, reason_name,
    },
    redaction::Redacting,
    tap::Tap,
    writer::{FileLimits, PartFiles},
    written::{Beginning, Written},
};

/// Maximum time for which a request to stop a capture waits until the files are complete. The disk
/// may be slow or may hang.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Time between two searches for expired captures.
const CLEANING_INTERVAL: Duration = Duration::from_secs(60);

/// The settings of captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSettings {
    /// The directory in which captures are kept.
    pub directory: PathBuf,
    /// Maximum size of all captures in the directory together, in bytes.
    pub max_bytes: u64,
    /// Size in bytes at which a file of a capture ends and the capture continues in a new file.
    pub max_part_bytes: u64,
    /// Maximum bytes of commands and replies that are recorded per second; `None` for no limit.
    pub max_bytes_per_second: Option<u64>,
    /// Maximum memory of records that wait for the writer, in bytes.
    pub queue_bytes: usize,
    /// Age after which Seawall deletes a capture; `None` if captures do not expire.
    pub retention: Option<Duration>,
    /// Maximum duration of a capture.
    pub max_duration: Duration,
    /// The events that begin a capture.
    pub on: Vec<EventKind>,
    /// A capture that an event begins also contains the operations of this period before the event.
    pub lead: Duration,
    /// Maximum memory, in bytes, of the records that Seawall keeps while it waits for an event that
    /// begins a capture.
    pub lead_bytes: usize,
    /// The mode of redaction, unless a request chooses a stronger mode.
    pub redaction: Redaction,
    /// The secret key from which redaction computes the pseudonyms that replace values. `None` if
    /// each capture has a random key.
    pub redaction_key: Option<RedactionKey>,
}

/// An event that can begin a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A reconnect storm began: a sudden rise in the number of short-lived client connections.
    Storm,
    /// A stall was detected: a period in which operations took far longer than usual.
    Stall,
    /// The detector of changes reported a change: operations became slower or faster, or operations
    /// of a new shape (a command without its values) appeared.
    Change,
}

impl EventKind {
    /// The name in captures and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Storm => "storm",
            Self::Stall => "stall",
            Self::Change => "change",
        }
    }
}

/// The reason why a capture could not be started, stopped, listed, read or deleted.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Captures are off.
    #[error("captures are off: set capture.directory")]
    Off,
    /// In relay mode, each client has its own server connection, and no client is captured.
    #[error("relayed clients are not captured: captures need deployment.mode \"pooled\"")]
    Relayed,
    /// Another capture runs.
    #[error("capture {0} is running")]
    Running(String),
    /// A capture of another process runs in the same directory.
    #[error("another process writes a capture into capture.directory")]
    InUse,
    /// The duration is not allowed.
    #[error("the duration must be above 0 and at most {} ms (capture.max_duration_ms)", .0.as_millis())]
    Duration(Duration),
    /// The requested redaction is weaker than the configured redaction.
    #[error(
        "redaction cannot be {:?}, because capture.redact is {:?}, which is stronger",
        redaction_name(*.wanted),
        redaction_name(*.configured)
    )]
    WeakerRedaction {
        /// The requested mode.
        wanted: Redaction,
        /// The configured mode.
        configured: Redaction,
    },
    /// The redaction mode `ordered` (pseudonyms keep the order of numbers and dates) needs a key.
    #[error("ordered redaction needs a key: set capture.redact_key_file")]
    NoRedactionKey,
    /// The captures in the directory have reached the limit of bytes.
    #[error("captures use {bytes} bytes, and capture.max_bytes is {max_bytes}: delete captures")]
    Full {
        /// Size of all captures together, in bytes.
        bytes: u64,
        /// The limit in bytes (`capture.max_bytes`).
        max_bytes: u64,
    },
    /// There is no such capture.
    #[error("no such capture")]
    Unknown,
    /// The capture to stop does not run: it has ended, or it does not exist.
    #[error("no capture with this id is running")]
    NotRunning,
    /// A file of a capture, or the directory of captures, cannot be used.
    #[error("capture.directory: {0}")]
    Io(#[from] io::Error),
    /// The capture was stopped, but its files were not complete in time. This happens if the disk
    /// is slow.
    #[error("the capture was stopped, but its files are not complete yet")]
    StillRunning,
}

/// The running capture of this process, and the captures in its directory.
pub struct Captures {
    running: Arc<ActiveTap>,
    latest: Latest,
    totals: Arc<AllCounts>,
    settings: ArcSwapOption<CaptureSettings>,
    /// True in relay mode: each client has its own server connection, and no client is captured.
    relays_clients: bool,
    kept: Arc<KeptBytes>,
    /// Describes the servers of the deployment at the start of a capture.
    servers: Box<dyn Fn() -> Vec<Server> + Send + Sync>,
    /// When a thread last searched for expired captures; `None` before the first search.
    cleaned_at: Mutex<Option<Instant>>,
    /// Number of [`Tap`]s (recorders of operations) that were created since the start of the
    /// process. This mutex is held while a capture starts or is deleted.
    starts: Mutex<u64>,
}

/// The running capture, or the [`Tap`] that keeps operations in memory until an event begins a
/// capture.
#[derive(Debug, Default)]
struct ActiveTap {
    /// The number of the tap. 0 if there is no tap: the tasks of clients then record nothing, and
    /// read no other field of this struct.
    number: AtomicU64,
    /// True if the tap waits for an event.
    is_armed: AtomicBool,
    tap: ArcSwapOption<Tap>,
    /// The running capture; `None` if the tap waits for an event, or if there is no tap.
    written: ArcSwapOption<Written>,
}

impl ActiveTap {
    fn set_written(&self, written: Arc<Written>) {
        self.is_armed.store(false, Ordering::Relaxed);
        let tap = Arc::clone(&written.tap);
        self.written.store(Some(written));
        self.set_tap(Some(tap));
    }

    fn set_armed(&self, tap: Arc<Tap>) {
        self.is_armed.store(true, Ordering::Relaxed);
        self.set_tap(Some(tap));
    }

    fn clear(&self) {
        // A [`Tap`] without `written` counts as waiting for an event. So the tap is removed first:
        // otherwise another thread could find the tap of the ended capture without `written`.
        self.set_tap(None);
        self.written.store(None);
    }

    fn set_tap(&self, tap: Option<Arc<Tap>>) {
        let number = tap.as_ref().map_or(0, |tap| tap.number);
        let former = self.tap.swap(tap);
        self.number.store(number, Ordering::Release);
        // Drop the records of the former tap now, because idle clients keep references to the
        // former tap for a long time.
        if let Some(former) = former.filter(|former| former.number != number) {
            let Tap { queue, totals, .. } = &*former;
            queue.discard(EndReason::Stopped, VecDeque::new(), totals);
        }
    }

    /// The id of the running capture; `None` if no capture runs.
    fn id(&self) -> Option<CaptureId> {
        let written = self.written.load();
        written.as_ref().map(|written| written.id.clone())
    }

    /// The tap that waits for an event; `None` if a capture runs or there is no tap.
    fn armed(&self) -> Option<Arc<Tap>> {
        match self.written.load().is_some() {
            true => None,
            false => self.tap.load_full(),
        }
    }
}

/// The size of the captures that have ended.
#[derive(Debug, Default)]
struct KeptBytes {
    bytes: AtomicU64,
    /// Locked while a thread measures the captures on disk, so that an earlier measurement never
    /// replaces a later measurement.
    measuring: Mutex<()>,
}

impl KeptBytes {
    /// Measures the captures that `list` returns, except the capture that is running. If `list`
    /// fails, the last measured size stays.
    fn measure(&self, list: impl FnOnce() -> io::Result<Vec<StoredCapture>>, running: &ActiveTap) {
        let _measuring = self.measuring.lock();
        let Ok(kept) = list() else { return };
        // Read the id after the list, because a capture may have begun while `list` ran.
        let running = running.id();
        let ended = kept
            .iter()
            .filter(|kept| Some(&kept.id) != running.as_ref());
        let bytes = ended.map(|kept| kept.bytes).sum();
        self.bytes.store(bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Captures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captures")
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

impl Captures {
    /// Creates the value that manages the captures of this process. Does not start a capture.
    /// `settings` is `None` if captures are off. `servers` describes the servers of the deployment.
    pub fn new(
        settings: Option<CaptureSettings>,
        servers: Box<dyn Fn() -> Vec<Server> + Send + Sync>,
    ) -> Self {
        let captures = Self {
            running: Arc::default(),
            latest: Latest::default(),
            totals: Arc::default(),
            settings: ArcSwapOption::from_pointee(settings),
            relays_clients: false,
            kept: Arc::default(),
            servers,
            cleaned_at: Mutex::default(),
            starts: Mutex::default(),
        };
        captures.measure();
        captures
    }

    /// Like [`Self::new`], for a process in relay mode (each client has its own server connection):
    /// no capture can start, but earlier captures can be read and deleted.
    pub(crate) fn without_clients(
        settings: Option<CaptureSettings>,
        servers: Box<dyn Fn() -> Vec<Server> + Send + Sync>,
    ) -> Self {
        let mut captures = Self::new(settings, servers);
        captures.relays_clients = true;
        captures
    }

    /// The reason why the settings allow no captures at all; `None` if they allow captures.
    pub(crate) fn obstacle(&self) -> Option<CaptureError> {
        match (self.relays_clients, &*self.settings.load()) {
            (true, _) => Some(CaptureError::Relayed),
            (false, None) => Some(CaptureError::Off),
            (false, Some(_)) => None,
        }
    }

    /// Applies changed settings. A running capture keeps its settings.
    pub(crate) fn configure(&self, settings: Option<CaptureSettings>) {
        self.settings.store(settings.map(Arc::new));
    }

    /// Starts a capture. Blocks for some file operations.
    ///
    /// # Errors
    /// Fails in any of these cases: captures are off; Seawall runs in relay mode; another capture
    /// of this process runs, or a capture of another process in the same directory; the duration or
    /// the redaction is not allowed; the redaction needs a key and there is none; the directory is
    /// full; the directory cannot be used.
    pub fn start(&self, plan: CapturePlan) -> Result<CaptureState, CaptureError> {
        if let Some(obstacle) = self.obstacle() {
            return Err(obstacle);
        }
        let settings = self.settings.load_full().ok_or(CaptureError::Off)?;
        if plan.duration.is_zero() || plan.duration > settings.max_duration {
            return Err(CaptureError::Duration(settings.max_duration));
        }
        let redacting = Redacting::choose(&settings, plan.redaction)?;
        let mut starts = self.starts.lock();
        if let Some(running) = self.running.written.load_full() {
            return Err(CaptureError::Running(running.id.as_str().to_owned()));
        }
        let room = room(&settings)?;
        let now = Instant::now();
        let queue = Queue::new(limits_of(&settings), now);
        let tap = self.tap(&mut starts, plan.selection, plan.replies, queue, now);
        let written = Arc::new(Written::new(
            tap,
            Beginning {
                offset_us: 0,
                began_at: SystemTime::now(),
                until: now + plan.duration,
                trigger: plan.trigger,
                redacting,
            },
        ));
        create(&settings, &written)?;
        self.write(&written, &settings, room)?;
        Ok(CaptureState::of_running(&written))
    }

    /// If the settings name events that begin captures, starts to keep the latest operations in
    /// memory. So a capture that an event begins also contains the operations before the event. If
    /// the settings name no such events any more, drops the kept operations. Must be called once a
    /// second.
    pub(crate) fn prepare(&self) {
        // The lock is held while a capture starts or is deleted. Do not wait for the lock, because
        // the call in the next second is early enough.
        let Some(mut starts) = self.starts.try_lock() else {
            return;
        };
        let settings = self.settings.load_full();
        let waits = settings.filter(|settings| !settings.on.is_empty());
        let armed = self.running.armed();
        let Some(settings) = waits else {
            if armed.is_some() {
                self.running.clear();
            }
            return;
        };
        let limits = limits_of(&settings);
        let lead = LeadLimits {
            duration: settings.lead,
            bytes: settings.lead_bytes,
        };
        // Start a [`Tap`] if the limits have changed, or if there is neither a tap nor a running
        // capture, for example after a capture. No new tap is needed after a capture whose files
        // could not be created: that capture has left its tap in place.
        let is_due = match armed {
            Some(armed) => !armed.queue.is_ring_of(limits, lead),
            None => self.running.written.load().is_none(),
        };
        if is_due {
            let now = Instant::now();
            let queue = Queue::ring(limits, lead, now);
            let all = Selection::default();
            let tap = self.tap(&mut starts, all, ReplyDetail::Facts, queue, now);
            self.running.set_armed(tap);
        }
    }

    /// Begins a capture because of an event. Does nothing if the settings do not name this kind of
    /// event, or if a capture runs. Also does nothing if [`Self::prepare`] has not yet started to
    /// keep operations in memory. `text` describes the event. Blocks for some file operations.
    pub(crate) fn begin_on(&self, kind: EventKind, text: &str) {
        let settings = self.settings.load_full();
        let Some(settings) = settings.filter(|settings| settings.on.contains(&kind)) else {
            return;
        };
        let _starts = self.starts.lock();
        let Some(tap) = self.running.armed() else {
            return;
        };
        let begun = room(&settings).and_then(|room| {
            let redacting = Redacting::choose(&settings, None)?;
            let now = Instant::now();
            let at_us = tap.at_us(now);
            let event = Event {
                at_us,
                kind: kind.as_str().to_owned(),
                text: text.to_owned(),
            };
            let beginning = Beginning {
                offset_us: at_us,
                began_at: SystemTime::now(),
                until: now + settings.max_duration,
                trigger: kind.as_str(),
                redacting,
            };
            let mut written = Written::new(tap, beginning);
            // Create the files before `begin`: if this fails, the queue keeps its records for the
            // next event. So the first summary has the time of the event as the beginning of the
            // capture. The last summary has the time of the oldest kept operation.
            create(&settings, &written)?;
            written.offset_us = written.tap.queue.begin(event, &self.totals);
            written.began_at -= Duration::from_micros(at_us.saturating_sub(written.offset_us));
            let written = Arc::new(written);
            self.write(&written, &settings, room)?;
            Ok(written)
        });
        let kind = kind.as_str();
        match begun {
            Ok(written) => {
                tracing::info!(
                    capture = written.id.as_str(),
                    kind,
                    "capture begun by an event"
                );
            }
            Err(error) => {
                tracing::warn!(%error, kind, "could not begin a capture after an event");
            }
        }
    }

    fn tap(
        &self,
        starts: &mut u64,
        selection: Selection,
        replies: ReplyDetail,
        queue: Queue,
        now: Instant,
    ) -> Arc<Tap> {
        *starts += 1;
        Arc::new(Tap {
            number: *starts,
            selection,
            replies,
            seed: rand::random(),
            began: now,
            queue,
            totals: Arc::clone(&self.totals),
        })
    }

    /// Starts the thread that writes the capture `written`. From then on this capture is the
    /// running capture, and operations of clients are recorded in it. [`create`] must have created
    /// the directory of the capture. If the thread cannot be started, deletes this directory.
    fn write(
        &self,
        written: &Arc<Written>,
        settings: &CaptureSettings,
        room: DirectoryRoom,
    ) -> Result<(), CaptureError> {
        self.write_on(written, settings, room, |work| {
            let thread = thread::Builder::new().name("capture-writer".to_owned());
            thread.spawn(work).map(drop)
        })
    }

    /// Like [`Self::write`]. `spawn` starts the thread.
    fn write_on(
        &self,
        written: &Arc<Written>,
        settings: &CaptureSettings,
        room: DirectoryRoom,
        spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
    ) -> Result<(), CaptureError> {
        let directory = Directory::new(settings.directory.clone());
        let limits = FileLimits {
            max_part_bytes: settings.max_part_bytes,
            max_bytes: room.max_bytes,
            quiet: writer::QUIET,
        };
        let servers = (self.servers)();
        let running = Arc::clone(&self.running);
        let kept = Arc::clone(&self.kept);
        let capture = Arc::clone(written);
        let of_writer = directory.clone();
        let work = move || {
            let files = PartFiles {
                directory: of_writer.clone(),
                id: capture.id.clone(),
            };
            let reason = writer::write_all(&capture, files, limits, servers);
            capture.summarize(&of_writer, reason);
            capture.tap.totals.count_end(reason);
            // The next capture needs the lock.
            drop(room.lock);
            running.clear();
            kept.measure(|| of_writer.list(), &running);
            capture.update(|progress| progress.has_ended = true);
        };
        self.latest.set(written.id.clone(), directory.clone());
        self.running.set_written(Arc::clone(written));
        let spawned = spawn(Box::new(work));
        if spawned.is_err() {
            self.running.clear();
            drop(directory.delete(&written.id));
        }
        Ok(spawned?)
    }

    /// Stops a capture, and waits until its files are complete. Blocks.
    ///
    /// # Errors
    /// If no capture with this id runs, or it does not end within five seconds.
    pub fn stop(&self, id: &CaptureId) -> Result<(), CaptureError> {
        let running = self.running.written.load_full();
        let running = running.filter(|running| running.id == *id);
        let running = running.ok_or(CaptureError::NotRunning)?;
        running.tap.queue.end(EndReason::Stopped);
        match running.wait_for_end(STOP_LIMIT) {
            true => Ok(()),
            false => Err(CaptureError::StillRunning),
        }
    }

    /// Deletes a capture that has ended. Blocks for some file operations.
    ///
    /// # Errors
    /// If the capture runs, does not exist, or cannot be deleted.
    pub fn delete(&self, id: &CaptureId) -> Result<(), CaptureError> {
        let _starts = self.starts.lock();
        if self.running_id().as_ref() == Some(id) {
            return Err(CaptureError::Running(id.as_str().to_owned()));
        }
        let directory = self.directory_of(id)?;
        match directory.delete(id) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CaptureError::Unknown);
            }
            deleted => deleted?,
        }
        self.measure();
        Ok(())
    }

    /// The captures in the configured directory, the latest first. If the latest capture of this
    /// process is in another directory, it is the first in the list. If captures are off, the list
    /// has only this capture. Blocks for some file operations.
    ///
    /// # Errors
    /// If the configured directory cannot be read. If captures are off, and this process has
    /// started no capture or cannot read its latest capture, for example because it was deleted.
    pub fn list(&self) -> Result<Vec<CaptureState>, CaptureError> {
        let running = self.running.written.load_full();
        let directory = self.directory();
        // A reload may have changed the directory since the latest capture began.
        let elsewhere = self.latest.kept_outside(directory.as_ref().ok());
        let mut kept = match directory {
            Err(CaptureError::Off) if elsewhere.is_some() => Vec::new(),
            directory => directory?.list()?,
        };
        if let Some(elsewhere) = elsewhere {
            kept.insert(0, elsewhere);
        }
        let states = kept.into_iter().map(|kept| match &running {
            Some(running) if running.id == kept.id => CaptureState::of_running(running),
            _ => CaptureState::of_kept(kept),
        });
        Ok(states.collect())
    }

    /// The parts of a capture.
    ///
    /// # Errors
    /// If captures are off, or the capture does not exist.
    pub(crate) fn parts(&self, id: &CaptureId) -> Result<CaptureParts, CaptureError> {
        let directory = self.directory_of(id)?;
        match directory.contains(id) {
            true => Ok(directory.parts(id.clone())),
            false => Err(CaptureError::Unknown),
        }
    }

    /// True while files of this capture may still grow.
    pub fn is_running(&self, id: &CaptureId) -> bool {
        self.running_id().as_ref() == Some(id)
    }

    /// Returns true once per [`CLEANING_INTERVAL`] while captures are on: the caller then calls
    /// [`Self::clean`]. Returns false while captures are deleted or a capture starts. If the
    /// directory does not respond, the deletion or the start does not end, and each further thread
    /// would hang too.
    pub(crate) fn take_cleaning_turn(&self) -> bool {
        if self.starts.try_lock().is_none() {
            return false;
        }
        let now = Instant::now();
        let mut cleaned_at = self.cleaned_at.lock();
        let is_due = cleaned_at.is_none_or(|at| now - at >= CLEANING_INTERVAL);
        if is_due {
            *cleaned_at = Some(now);
        }
        is_due && self.settings.load().is_some()
    }

    /// Deletes captures that are older than the retention. Then measures the captures on disk, even
    /// if it has deleted none, because an operator may have deleted files. Blocks while it reads
    /// and deletes files.
    pub(crate) fn clean(&self) {
        let Some(settings) = self.settings.load_full() else {
            return;
        };
        let _starts = self.starts.lock();
        if let Some(retention) = settings.retention {
            self.delete_expired(&Directory::new(settings.directory.clone()), retention);
        }
        self.measure();
    }

    fn delete_expired(&self, directory: &Directory, retention: Duration) {
        let running = self.running_id();
        let delete = |id: &CaptureId| directory.delete(id);
        match directory.delete_expired(retention, SystemTime::now(), running.as_ref(), delete) {
            Ok(Expired { deleted, failed }) => {
                for id in &deleted {
                    tracing::info!(capture = id.as_str(), "expired capture deleted");
                }
                if let Some((id, error)) = failed {
                    let capture = id.as_str();
                    tracing::warn!(%error, capture, "could not delete an expired capture");
                }
            }
            Err(error) => tracing::warn!(%error, "could not list captures, so none was deleted"),
        }
    }

    /// Ends a running capture because the process ends. Waits until the files of the capture are
    /// complete, but at most five seconds.
    pub fn close(&self) {
        if let Some(running) = self.running.written.load_full() {
            running.tap.queue.end(EndReason::Shutdown);
            running.wait_for_end(STOP_LIMIT);
        }
    }

    /// The counts for the metrics.
    pub fn figures(&self) -> CaptureCounts {
        let running = self.running.written.load_full();
        let running_bytes = running
            .as_ref()
            .map_or(0, |running| running.progress().bytes);
        let omitted = REASONS.into_iter().zip(&self.totals.omitted);
        let omitted =
            omitted.map(|(reason, count)| (reason_name(reason), count.load(Ordering::Relaxed)));
        let ended = ENDS.into_iter().zip(&self.totals.ended);
        let ended = ended.map(|(end, count)| (end_name(end), count.load(Ordering::Relaxed)));
        CaptureCounts {
            is_running: running.is_some(),
            operations: self.totals.operations.load(Ordering::Relaxed),
            omitted: omitted.collect(),
            ended: ended.collect(),
            written_bytes: self.totals.written_bytes.load(Ordering::Relaxed),
            kept_bytes: self.kept.bytes.load(Ordering::Relaxed) + running_bytes,
        }
    }

    fn running_id(&self) -> Option<CaptureId> {
        self.running.id()
    }

    /// The directory of a capture.
    fn directory_of(&self, id: &CaptureId) -> Result<Directory, CaptureError> {
        let latest = self.latest.directory_of(id);
        latest.map_or_else(|| self.directory(), Ok)
    }

    /// The directory of captures that begin now.
    fn directory(&self) -> Result<Directory, CaptureError> {
        let settings = self.settings.load();
        let settings = settings.as_ref().ok_or(CaptureError::Off)?;
        Ok(Directory::new(settings.directory.clone()))
    }

    /// Measures the captures on disk, except the capture that is running.
    fn measure(&self) {
        if let Ok(directory) = self.directory() {
            self.kept.measure(|| directory.list(), &self.running);
        }
    }
}

/// The room for a new capture in the directory.
struct DirectoryRoom {
    /// Maximum size of the capture, in bytes: the limit minus the size of the captures on disk.
    max_bytes: u64,
    /// While this file is open, no other process captures into the directory, so the room does not
    /// shrink.
    lock: File,
}

fn room(settings: &CaptureSettings) -> Result<DirectoryRoom, CaptureError> {
    let directory = Directory::new(settings.directory.clone());
    let lock = directory.lock()?.ok_or(CaptureError::InUse)?;
    let (bytes, max_bytes) = (directory.bytes()?, settings.max_bytes);
    match max_bytes.checked_sub(bytes) {
        None | Some(0) => Err(CaptureError::Full { bytes, max_bytes }),
        Some(max_bytes) => Ok(DirectoryRoom { max_bytes, lock }),
    }
}

fn limits_of(settings: &CaptureSettings) -> QueueLimits {
    QueueLimits {
        max_bytes: settings.queue_bytes,
        max_bytes_per_second: settings.max_bytes_per_second,
    }
}

/// Creates the directory of a capture, and writes the first summary into it. If this fails, no
/// directory is left.
fn create(settings: &CaptureSettings, capture: &Written) -> io::Result<()> {
    let directory = Directory::new(settings.directory.clone());
    let id = &capture.id;
    directory.create(id)?;
    let begun = directory.begin_summary(id, &capture.summary(Counts::default(), None));
    if begun.is_err() {
        drop(directory.delete(id));
    }
    begun
}

impl Drop for Captures {
    fn drop(&mut self) {
        self.close();
    }
}
