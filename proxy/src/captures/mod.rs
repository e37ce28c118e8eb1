//! Captures of the traffic of whole clients.
//!
//! ```text
//! client/operation ──► Recording ──► queue (bounded) ──► writer (a thread) ──► files
//!                        selection: which clients
//! ```
//!
//! One capture runs at a time. While none runs, an operation costs one relaxed load. A capture
//! never delays an operation: if the queue, the rate or the disk has no room, operations are
//! omitted, and both the file and the metrics say how many. Logins, commands that may contain
//! secrets and unknown commands are never recorded, nor are their replies. This module knows no
//! HTTP, and selects no servers.

mod directory;
mod member;
mod queue;
mod selection;
mod session;
mod state;
#[cfg(test)]
mod tests;
mod writer;

use std::{
    fmt, io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use seawall_capture::record::{EndReason, Server};
use tokio::time::Instant;

pub(crate) use self::selection::MAX_NAMES;
pub use self::{
    directory::CaptureId,
    member::{Arrived, CapturedClient, Ended, Recording, ReplyCopy, ReplyMessage},
    selection::{Described, Selection},
    session::Plan,
    state::{CaptureFigures, CaptureState},
};
use self::{
    directory::Directory,
    queue::{Queue, QueueLimits, REASONS, Totals, reason_name},
    session::{Beginning, Session},
    writer::{FileLimits, Files},
};

/// How long a request to stop waits for the end of the file.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Time between two searches for expired captures.
const CLEANING_INTERVAL: Duration = Duration::from_secs(60);

/// The settings of captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSettings {
    /// The directory in which captures are kept.
    pub directory: PathBuf,
    /// Maximum bytes of all captures in the directory.
    pub max_bytes: u64,
    /// Bytes after which a new file begins.
    pub max_part_bytes: u64,
    /// Maximum bytes of messages per second; `None` for no limit.
    pub max_bytes_per_second: Option<u64>,
    /// Maximum memory of records that wait for the writer, in bytes.
    pub queue_bytes: usize,
    /// Age after which a capture is deleted; `None` if captures are kept.
    pub retention: Option<Duration>,
    /// Maximum duration of a capture.
    pub max_duration: Duration,
}

/// A capture was not started, stopped or found.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// Captures are off.
    #[error("captures are off: set capture.directory")]
    Off,
    /// Another capture runs.
    #[error("capture {0} is running")]
    Running(String),
    /// The duration is not allowed.
    #[error("the duration must be above 0 and at most {} ms (capture.max_duration_ms)", .0.as_millis())]
    Duration(Duration),
    /// The captures in the directory have reached the limit of bytes.
    #[error("the captures have {bytes} bytes, and capture.max_bytes is {max_bytes}: delete some")]
    Full {
        /// Bytes of all captures.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// There is no such capture.
    #[error("no such capture")]
    Unknown,
    /// The file or the directory cannot be used.
    #[error("capture.directory: {0}")]
    Io(#[from] io::Error),
    /// The capture did not end in time, because the disk is slow.
    #[error("the capture has not ended yet")]
    StillRunning,
}

/// The captures of this process and in its directory.
pub struct Captures {
    running: Arc<Running>,
    totals: Arc<Totals>,
    settings: ArcSwapOption<CaptureSettings>,
    /// Bytes of captures that have ended.
    kept_bytes: Arc<AtomicU64>,
    /// Describes the servers of the deployment at the start of a capture.
    servers: Box<dyn Fn() -> Vec<Server> + Send + Sync>,
    /// When expired captures were last looked for; `None` before the first time.
    cleaned_at: Mutex<Option<Instant>>,
    /// Locked while a capture starts or is deleted. The number of captures since the start.
    starts: Mutex<u64>,
}

/// The running capture.
#[derive(Debug, Default)]
struct Running {
    /// The number of the running capture; 0 if none runs. Operations read only this.
    number: AtomicU64,
    session: ArcSwapOption<Session>,
}

impl Running {
    fn set(&self, session: Option<Arc<Session>>) {
        let number = session.as_ref().map_or(0, |session| session.number);
        self.session.store(session);
        self.number.store(number, Ordering::Release);
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
    /// Creates the handle; `settings` is `None` if captures are off. `servers` describes the
    /// deployment.
    pub fn new(
        settings: Option<CaptureSettings>,
        servers: Box<dyn Fn() -> Vec<Server> + Send + Sync>,
    ) -> Self {
        let captures = Self {
            running: Arc::default(),
            totals: Arc::default(),
            settings: ArcSwapOption::from_pointee(settings),
            kept_bytes: Arc::default(),
            servers,
            cleaned_at: Mutex::default(),
            starts: Mutex::default(),
        };
        captures.measure();
        captures
    }

    /// Applies changed settings. A running capture keeps its own.
    pub fn configure(&self, settings: Option<CaptureSettings>) {
        self.settings.store(settings.map(Arc::new));
    }

    /// Starts a capture. Blocks for some file operations.
    ///
    /// # Errors
    /// If captures are off, one runs, the duration is not allowed, or the directory is full or
    /// cannot be used.
    pub fn start(&self, plan: Plan) -> Result<CaptureState, CaptureError> {
        let settings = self.settings.load_full().ok_or(CaptureError::Off)?;
        if plan.duration.is_zero() || plan.duration > settings.max_duration {
            return Err(CaptureError::Duration(settings.max_duration));
        }
        let mut starts = self.starts.lock();
        if let Some(session) = self.running.session.load_full() {
            return Err(CaptureError::Running(session.id.as_str().to_owned()));
        }
        let directory = Directory::new(settings.directory.clone());
        let (bytes, max_bytes) = (directory.bytes()?, settings.max_bytes);
        if bytes >= max_bytes {
            return Err(CaptureError::Full { bytes, max_bytes });
        }
        *starts += 1;
        let now = Instant::now();
        let limits = QueueLimits {
            max_bytes: settings.queue_bytes,
            max_bytes_per_second: settings.max_bytes_per_second,
        };
        let beginning = Beginning {
            number: *starts,
            seed: rand::random(),
            plan,
            now,
            at: SystemTime::now(),
        };
        let queue = Queue::new(limits, now);
        let session = Arc::new(Session::new(beginning, queue, Arc::clone(&self.totals)));
        directory.create(&session.id)?;
        let limits = FileLimits {
            max_part_bytes: settings.max_part_bytes,
            max_bytes: max_bytes - bytes,
        };
        self.spawn_writer(&session, directory, limits)?;
        Ok(CaptureState::of_running(&session))
    }

    /// Starts the thread that writes the capture, and makes the capture visible to clients.
    fn spawn_writer(
        &self,
        session: &Arc<Session>,
        directory: Directory,
        limits: FileLimits,
    ) -> io::Result<()> {
        let running = Arc::clone(&self.running);
        let kept_bytes = Arc::clone(&self.kept_bytes);
        let servers = (self.servers)();
        let written = Arc::clone(session);
        self.running.set(Some(Arc::clone(session)));
        let spawned = thread::Builder::new()
            .name("capture-writer".to_owned())
            .spawn(move || {
                let files = Files {
                    directory: directory.clone(),
                    id: written.id.clone(),
                };
                let reason = writer::write_all(&written, files, limits, servers);
                let counts = written.queue.counts();
                let summary = written.summary(counts, reason, SystemTime::now());
                tracing::info!(
                    capture = written.id.as_str(),
                    reason = summary.end,
                    operations = summary.operations,
                    omitted = counts.all_omitted(),
                    "capture ended"
                );
                if let Err(error) = directory.summarize(&written.id, &summary) {
                    let capture = written.id.as_str();
                    tracing::warn!(%error, capture, "could not write the summary of a capture");
                }
                running.set(None);
                kept_bytes.store(directory.bytes().unwrap_or(0), Ordering::Relaxed);
                written.update(|progress| progress.has_ended = true);
            });
        if spawned.is_err() {
            self.running.set(None);
        }
        spawned.map(drop)
    }

    /// Stops a capture, and waits until its files are complete. Blocks.
    ///
    /// # Errors
    /// If no capture with this id runs, or it does not end within five seconds.
    pub fn stop(&self, id: &CaptureId) -> Result<(), CaptureError> {
        let session = self.running.session.load_full();
        let session = session.filter(|session| session.id == *id);
        let session = session.ok_or(CaptureError::Unknown)?;
        session.queue.end(EndReason::Stopped);
        match session.wait_for_end(STOP_LIMIT) {
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
        let directory = self.directory()?;
        match directory.delete(id) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(CaptureError::Unknown);
            }
            deleted => deleted?,
        }
        self.measure();
        Ok(())
    }

    /// The captures, the latest first. Blocks for some file operations.
    ///
    /// # Errors
    /// If captures are off, or the directory cannot be read.
    pub fn list(&self) -> Result<Vec<CaptureState>, CaptureError> {
        let running = self.running.session.load_full();
        let kept = self.directory()?.list()?.into_iter();
        let states = kept.map(|kept| match &running {
            Some(session) if session.id == kept.id => CaptureState::of_running(session),
            _ => CaptureState::of_kept(kept),
        });
        Ok(states.collect())
    }

    /// The path of a part; `None` if the capture has no such part. If the capture runs, the part
    /// may grow, and further parts may follow.
    ///
    /// # Errors
    /// If captures are off, or the capture does not exist.
    pub fn part(&self, id: &CaptureId, part: u32) -> Result<Option<PathBuf>, CaptureError> {
        let directory = self.directory()?;
        if !directory.contains(id) {
            return Err(CaptureError::Unknown);
        }
        let path = directory.part(id, part);
        Ok(path.exists().then_some(path))
    }

    /// True while files of this capture may still grow.
    pub fn is_running(&self, id: &CaptureId) -> bool {
        self.running_id().as_ref() == Some(id)
    }

    /// True once per [`CLEANING_INTERVAL`] while captures are on: the caller then deletes expired
    /// captures.
    pub(crate) fn is_cleaning_due(&self) -> bool {
        let now = Instant::now();
        let mut cleaned_at = self.cleaned_at.lock();
        let is_due = cleaned_at.is_none_or(|at| now - at >= CLEANING_INTERVAL);
        if is_due {
            *cleaned_at = Some(now);
        }
        is_due && self.settings.load().is_some()
    }

    /// Deletes captures that are older than the retention. Blocks for some file operations.
    pub(crate) fn delete_expired(&self) {
        let settings = self.settings.load_full();
        let retention = settings.as_ref().and_then(|settings| settings.retention);
        let (Some(retention), Ok(directory)) = (retention, self.directory()) else {
            return;
        };
        let _starts = self.starts.lock();
        let running = self.running_id();
        match directory.delete_expired(retention, SystemTime::now(), running.as_ref()) {
            Ok(deleted) => {
                for id in &deleted {
                    tracing::info!(capture = id.as_str(), "expired capture deleted");
                }
            }
            Err(error) => tracing::warn!(%error, "could not delete expired captures"),
        }
        self.measure();
    }

    /// Ends a running capture because the process ends, and waits until its files are complete.
    pub fn close(&self) {
        if let Some(session) = self.running.session.load_full() {
            session.queue.end(EndReason::Shutdown);
            session.wait_for_end(STOP_LIMIT);
        }
    }

    /// The counts for the metrics.
    pub fn figures(&self) -> CaptureFigures {
        let session = self.running.session.load_full();
        let running_bytes = session
            .as_ref()
            .map_or(0, |session| session.progress().bytes);
        let omitted = REASONS.into_iter().zip(&self.totals.omitted);
        let omitted =
            omitted.map(|(reason, count)| (reason_name(reason), count.load(Ordering::Relaxed)));
        CaptureFigures {
            is_running: session.is_some(),
            operations: self.totals.operations.load(Ordering::Relaxed),
            omitted: omitted.collect(),
            written_bytes: self.totals.written_bytes.load(Ordering::Relaxed),
            kept_bytes: self.kept_bytes.load(Ordering::Relaxed) + running_bytes,
        }
    }

    fn running_id(&self) -> Option<CaptureId> {
        let session = self.running.session.load();
        session.as_ref().map(|session| session.id.clone())
    }

    fn directory(&self) -> Result<Directory, CaptureError> {
        let settings = self.settings.load();
        let settings = settings.as_ref().ok_or(CaptureError::Off)?;
        Ok(Directory::new(settings.directory.clone()))
    }

    /// Measures the captures on disk, except the running one.
    fn measure(&self) {
        let Ok(directory) = self.directory() else {
            return;
        };
        let running = self.running_id();
        let kept = directory.list().unwrap_or_default();
        let ended = kept
            .iter()
            .filter(|kept| Some(&kept.id) != running.as_ref());
        let bytes = ended.map(|kept| kept.bytes).sum();
        self.kept_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl Drop for Captures {
    fn drop(&mut self) {
        self.close();
    }
}
