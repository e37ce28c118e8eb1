//! Insight into the past: keeps the history and annotations, and detects reconnect storms, stalls
//! and changes of shapes. In a storm, there are far more short-lived client connections than usual.
//! In a stall, operations take far longer than usual for some seconds.
//!
//! The crate gets a [`Second`] every second: the figures of the operations, connections and servers
//! in that second. It knows neither the code that counts operations nor the code that samples
//! servers. The detectors are pure: they read no clock and get the time as an argument. Everything
//! runs on threads that handle no operations (the control plane), so no operation waits for it.
//! Queries of the HTTP API run on threads that may block.

mod annotations;
mod baseline;
mod cadence;
mod changes;
mod clock;
mod comparison;
mod packed;
#[cfg(test)]
mod random;
mod second;
mod stalls;
mod store;
mod storms;
#[cfg(test)]
mod tests;
mod tiers;

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use seawall_locks::{Mutex, MutexGuard};
use seawall_stats::{Against, Gauges, Label, Names, Period};

use self::{
    annotations::Annotations,
    baseline::spans,
    cadence::Cadence,
    stalls::Stalls,
    store::{Store, StoredHistory},
    storms::Storms,
    tiers::MAX_GAP_SECONDS,
};
pub use self::{
    annotations::{Annotation, AnnotationKind, MAX_ANNOTATION_BYTES},
    baseline::{BaselineWindow, SpanError},
    changes::{Change, ChangeKind, Ranks, compare, ranks},
    clock::Clock,
    comparison::{Changes, Compared, Incomparable, Side, incomparable, whole},
    second::Second,
    stalls::{Episode, Moved, Recurrence, RecurringStall, Stall, WaitingShape},
    store::StoreError,
    storms::{Storm, StormChange},
    tiers::{Delta, Frame, History, Selection, TIERS, Timeline},
};

/// Interval at which the history file is written.
const WRITE_INTERVAL_SECONDS: u64 = 10;

/// Maximum number of due writes of the history file that are skipped between two attempts, after
/// failed writes. So after the disk has space again, the history is written within a minute.
const MAX_SKIPPED_WRITES: u64 = 5;

/// A clock that is set back shows some seconds again. If it is set back by at most this time, the
/// figures of the repeated seconds are added to the next second. If it is set back further, the
/// steps of the history after the new time are dropped, because one second must not get the figures
/// of many seconds.
const MAX_REPEATED_SECONDS: u64 = 2;

/// Interval at which periods are compared to annotate changes, and the length of these periods.
const CHANGE_INTERVAL_SECONDS: u64 = 600;

/// Maximum number of changes that get an annotation in one comparison. It is small, because one
/// deploy can change many shapes.
const ANNOTATED_CHANGES: usize = 3;

/// Interval at which the recurring stalls are counted. They are not counted every second, because
/// the count takes some milliseconds for each server with many stalls.
const RECURRING_INTERVAL_SECONDS: u64 = 10;

/// Keeps the history and annotations, and detects reconnect storms, stalls and changes of shapes.
pub struct Insight {
    clock: Clock,
    history: Mutex<History>,
    /// The history file. The lock is held while the file is written, which may take long.
    store: Mutex<Option<Store>>,
    /// Changes of the history that are not in the file yet; `None` without a file.
    unwritten: Mutex<Option<Delta>>,
    stalls: Mutex<Stalls>,
    storms: Mutex<Storms>,
    annotations: Mutex<Annotations>,
    /// The number that identifies the annotation of the current storm; `None` if there is no storm.
    storm: Mutex<Option<u64>>,
    /// Locked while the figures of a second are added to the history.
    added: Mutex<Added>,
    writes: Mutex<Writes>,
    comparisons: Cadence,
    /// Locked while [`Insight::annotate_changes`] runs.
    comparing: Mutex<()>,
    file_writes: Cadence,
    recurring_counts: Cadence,
    is_on: bool,
}

/// The progress of adding seconds to the history.
#[derive(Debug, Default)]
struct Added {
    /// The last second that was added to the history.
    last: Option<u64>,
    /// Figures that could not be added yet, because the clock was set back and showed a second
    /// again that was already added. They are added to the next second.
    left: Option<Second>,
}

/// The failed writes of the history file.
#[derive(Debug, Default)]
struct Writes {
    /// Number of all failed writes.
    failed: u64,
    /// Number of failed writes since the last successful write.
    failed_in_a_row: u64,
    /// Number of due writes that are skipped before the next attempt.
    to_skip: u64,
}

impl Writes {
    /// Counts a failed write. Logs only the first failure after a successful write.
    fn fail(&mut self, error: &StoreError) {
        self.failed += 1;
        self.failed_in_a_row += 1;
        self.to_skip = (self.failed_in_a_row - 1).min(MAX_SKIPPED_WRITES);
        if self.failed_in_a_row == 1 {
            tracing::error!(%error, "could not write the history; it stays in memory until it can be written");
        }
    }

    /// True if a due write must be attempted. After several failures in a row, some due writes are
    /// skipped, because each attempt reads the whole file.
    fn attempts_due_write(&mut self) -> bool {
        let is_skipped = self.to_skip > 0;
        self.to_skip = self.to_skip.saturating_sub(1);
        !is_skipped
    }

    fn succeed(&mut self) {
        let failed = std::mem::take(&mut self.failed_in_a_row);
        if failed > 0 {
            tracing::info!(failed, "history written again");
        }
    }
}

impl fmt::Debug for Insight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insight").finish_non_exhaustive()
    }
}

/// Settings of the history.
#[derive(Clone, Copy, Debug)]
pub struct InsightSettings<'a> {
    /// True if Seawall keeps a history.
    pub is_on: bool,
    /// Directory of the history file; `None` keeps the history only in memory, so a restart loses
    /// it.
    pub directory: Option<&'a Path>,
    /// Limit of the history's memory in bytes.
    pub max_bytes: usize,
    /// Maximum number of shapes that have their own figures in each second. All other shapes are
    /// counted together.
    pub max_shapes: usize,
}

/// Memory use of the history, and the numbers of its dropped steps and failed writes. A step
/// contains the figures of an interval of 1 s to 10 minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Size of the history in memory, in bytes.
    pub bytes: usize,
    /// Steps dropped before the end of their retention, because the memory limit was reached.
    pub dropped_early: u64,
    /// Failed writes of the history file.
    pub failed_writes: u64,
}

impl Insight {
    /// Opens the history file, if one is configured, and loads it.
    ///
    /// # Errors
    /// If the file cannot be opened or created.
    pub fn open(settings: InsightSettings<'_>, clock: Clock) -> Result<Self, StoreError> {
        let now = clock.now();
        let mut history = History::new(settings.max_bytes, settings.max_shapes);
        let (mut store, mut unwritten) = (None, None);
        let mut annotations = Annotations::default();
        if let Some(directory) = settings.directory.filter(|_| settings.is_on) {
            let (mut opened, found) = Store::open(directory)?;
            copy_if_clock_is_behind(&mut opened, &found, seconds(now));
            if let Some(aside) = found.put_aside {
                tracing::warn!(file = %aside.display(), "history file renamed because it could not be read");
            }
            annotations.restore(found.annotations);
            let skipped = history.restore(found.labels, found.frames, seconds(now));
            if skipped.damaged > 0 {
                tracing::warn!(
                    frames = skipped.damaged,
                    "history steps skipped because they could not be read"
                );
            }
            if skipped.future > 0 {
                tracing::warn!(
                    frames = skipped.future,
                    "history steps skipped because they are in the future"
                );
            }
            store = Some(opened);
            unwritten = Some(history.take_delta());
        }
        // After a quick restart, the history file may already have figures of the current second.
        // `last` is then the current second, so the further figures of this second are added to the
        // next second.
        let added = Added {
            last: Some(seconds(now)).filter(|running| history.has_second(*running)),
            left: None,
        };
        Ok(Self {
            clock,
            history: Mutex::new(history),
            store: Mutex::new(store),
            unwritten: Mutex::new(unwritten),
            stalls: Mutex::default(),
            storms: Mutex::default(),
            annotations: Mutex::new(annotations),
            storm: Mutex::default(),
            added: Mutex::new(added),
            writes: Mutex::default(),
            comparisons: Cadence::every(CHANGE_INTERVAL_SECONDS),
            comparing: Mutex::default(),
            file_writes: Cadence::every(WRITE_INTERVAL_SECONDS),
            recurring_counts: Cadence::every(RECURRING_INTERVAL_SECONDS),
            is_on: settings.is_on,
        })
    }

    /// The current time of the history's clock.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Adds the figures of the second that has just ended to the history and to the detectors. Must
    /// be called soon after the start of each second. Returns the change if a storm began or ended
    /// in this second.
    pub fn add(&self, mut second: Second, now: SystemTime) -> Option<StormChange> {
        let traffic = std::mem::take(&mut second.traffic);
        let change = self.storms.lock().second(&traffic, now);
        if self.is_on {
            self.remember(second, now);
        }
        let (change, storm) = change?;
        log(change, &storm);
        self.annotate_storm(change, &storm);
        Some(change)
    }

    fn remember(&self, mut second: Second, now: SystemTime) {
        let over = seconds(now).saturating_sub(1);
        let mut added = self.added.lock();
        if let Some(mut left) = added.left.take() {
            left.merge(second);
            second = left;
        }
        let first = match added.last {
            // The clock was set back a little: this second or a later one was already added. The
            // figures are kept, to be added to the next second.
            Some(last) if last >= over && last - over < MAX_REPEATED_SECONDS => {
                added.left = Some(second);
                return;
            }
            Some(last) if last >= over => {
                tracing::warn!(
                    seconds = last - over,
                    "the clock was set back: steps of the history after the new time are dropped"
                );
                self.history.lock().rewind(over);
                self.stalls.lock().rewind(over);
                over
            }
            Some(last) if over - last <= MAX_GAP_SECONDS => last + 1,
            Some(_) | None => over,
        };
        added.last = Some(over);
        let Second {
            series,
            whole,
            gauges,
            samples,
            ..
        } = second;
        let servers = series.iter().filter_map(|(label, (figures, _))| {
            let is_server = matches!(**label, Label::Server(_));
            is_server.then(|| (Arc::clone(label), figures.clone()))
        });
        let servers = Period {
            length: Duration::from_secs(1),
            series: servers.collect(),
        };
        let mut history = self.history.lock();
        for missed in first..over {
            history.add(missed, BTreeMap::new(), Gauges::default());
        }
        history.add(over, series, gauges);
        let delta = history.take_delta();
        drop(history);
        if let Some(unwritten) = &mut *self.unwritten.lock() {
            unwritten.merge(delta);
        }
        let select = |from, to| self.history.lock().select_begun(from, to);
        let mut stalls = self.stalls.lock();
        let ended = stalls.second(over, &whole, &servers, samples, &select);
        drop(stalls);
        for (server, from, to) in ended {
            let mut annotations = self.annotations.lock();
            annotations.add_stall(server.as_deref(), from, to);
            self.note(annotations);
        }
    }

    /// Adds an annotation. The next write of the history file stores it.
    pub fn annotate(&self, annotation: Annotation) {
        let mut annotations = self.annotations.lock();
        annotations.add(annotation);
        self.note(annotations);
    }

    /// The annotations between two times, the earliest first.
    pub fn annotations(&self, from: SystemTime, to: SystemTime) -> Vec<Annotation> {
        let ongoing = *self.storm.lock();
        self.annotations.lock().list(from, to, ongoing)
    }

    /// The annotations that the caller has not received yet, the earliest first. `seen` stores the
    /// caller's position: it is 0 before the first call, which returns all annotations, and each
    /// call updates it.
    pub fn annotations_since(&self, seen: &mut u64) -> Vec<Annotation> {
        let annotations = self.annotations.lock();
        let (added, next) = annotations.since(*seen);
        *seen = next;
        added
    }

    /// Adds the changes of the annotations to `unwritten`, so that the next write stores them in
    /// the history file.
    fn note(&self, mut annotations: MutexGuard<'_, Annotations>) {
        let changes = annotations.take_changes();
        if let Some(unwritten) = &mut *self.unwritten.lock() {
            unwritten.annotations.extend(changes);
        }
    }

    fn annotate_storm(&self, change: StormChange, storm: &Storm) {
        let peak = storm.peak_arrivals;
        let text = format!("up to {peak} client connections in a second");
        let (kind, begin, end) = (AnnotationKind::Storm, storm.started_at, storm.ended_at);
        let annotation = Annotation::new(kind, begin, end, &text);
        let mut current = self.storm.lock();
        let mut annotations = self.annotations.lock();
        match change {
            StormChange::Began => *current = Some(annotations.add(annotation)),
            // The peak may have changed since the storm began, so the text is replaced.
            StormChange::Ended => {
                if let Some(number) = current.take() {
                    annotations.replace(number, annotation);
                }
            }
        }
        self.note(annotations);
    }

    /// Compares the last ten minutes with the ten minutes before them. Adds annotations for the
    /// costliest changes of three kinds: slower, faster and new. Must be called at most once in ten
    /// minutes. Takes several hundred milliseconds. Does nothing if the last call still runs.
    pub fn annotate_changes(&self) {
        let Some(_comparing) = self.comparing.try_lock() else {
            return;
        };
        let length = Duration::from_secs(CHANGE_INTERVAL_SECONDS);
        let window = BaselineWindow::AtMost(length);
        let compared = self.changes(Against::Ago(length), window, self.now());
        // `changes` fails only if a period is invalid, and these two periods are always valid.
        // Without enough data, there are no changes.
        let Ok(compared) = compared else { return };
        let at = UNIX_EPOCH + Duration::from_secs(compared.now.from);
        let end = UNIX_EPOCH + Duration::from_secs(compared.now.to);
        let changes = compared.changes.iter();
        let mut changes: Vec<_> = changes
            .filter_map(|of| Some((of, described(of)?)))
            .collect();
        changes.sort_by_key(|(change, _)| Reverse(change.cost_per_second));
        for (_, text) in changes.into_iter().take(ANNOTATED_CHANGES) {
            let annotation = Annotation::new(AnnotationKind::Change, at, Some(end), &text);
            self.annotate(annotation);
        }
    }

    /// True if [`Self::annotate_changes`] must be called in this second. If it is called twice in a
    /// second, only the first call returns true.
    pub fn compares_in(&self, now: SystemTime) -> bool {
        self.is_on && self.comparisons.is_due(seconds(now))
    }

    /// True if the history file must be written in this second. If it is called twice in a second,
    /// only the first call returns true.
    pub fn is_due(&self, now: SystemTime) -> bool {
        let is_unwritten = self.unwritten.lock().is_some();
        let is_due = self.file_writes.is_due(seconds(now)) && is_unwritten;
        is_due && self.writes.lock().attempts_due_write()
    }

    /// Writes the changes since the last write, unless a write is in progress. Blocks on the disk.
    pub fn write(&self) {
        if let Some(mut store) = self.store.try_lock() {
            self.write_to(store.as_mut());
        }
    }

    fn write_to(&self, store: Option<&mut Store>) {
        let delta = self.unwritten.lock().as_mut().map(std::mem::take);
        let (Some(store), Some(mut delta)) = (store, delta) else {
            return;
        };
        match store.write(&delta) {
            Ok(()) => self.writes.lock().succeed(),
            Err(error) => {
                self.writes.lock().fail(&error);
                // The changes are kept for the next write. `unwritten` may already have newer
                // changes, so these are merged into `delta`.
                if let Some(unwritten) = &mut *self.unwritten.lock() {
                    delta.merge(std::mem::take(unwritten));
                    *unwritten = delta;
                }
            }
        }
    }

    /// Writes the remaining changes and closes the file. Nothing is written after this call.
    pub fn close(&self) {
        let mut store = self.store.lock();
        self.write_to(store.as_mut());
        *store = None;
        *self.unwritten.lock() = None;
    }

    /// Selects the frames between two times. A frame contains the packed figures of one step of the
    /// history. The first frame may begin before `from`, and the last frame may end after `to`. The
    /// caller unpacks the selected frames.
    pub fn select(&self, from: SystemTime, to: SystemTime) -> Selection {
        let (from, to) = (seconds(from), seconds(to));
        self.history.lock().select(from, to, 1)
    }

    /// The figures of all series between two times.
    pub fn period(&self, from: SystemTime, to: SystemTime) -> Period {
        self.select(from, to).period()
    }

    /// The figures of the series that `is_wanted` accepts, in steps of `step` or longer
    /// ([`Timeline::step`]). Each item has the start and the figures of one step.
    /// [`Period::length`] is the part of the step for which there is data.
    pub fn timeline(
        &self,
        from: SystemTime,
        to: SystemTime,
        step: Duration,
        is_wanted: &dyn Fn(&Label) -> bool,
    ) -> Timeline<(u64, Period)> {
        let selection = self.select_steps(from, to, step);
        let step = selection.step(step.as_secs());
        Timeline {
            step: Duration::from_secs(step),
            steps: selection.timeline_of(step, is_wanted),
        }
    }

    /// The gauges in steps of `step` or longer ([`Timeline::step`]). Each item has the start of a
    /// step, the number of seconds of this step that have data, and the gauges.
    pub fn gauges(
        &self,
        from: SystemTime,
        to: SystemTime,
        step: Duration,
    ) -> Timeline<(u64, u64, Gauges)> {
        let selection = self.select_steps(from, to, step);
        let step = selection.step(step.as_secs());
        Timeline {
            step: Duration::from_secs(step),
            steps: selection.gauge_timeline(step),
        }
    }

    fn select_steps(&self, from: SystemTime, to: SystemTime, step: Duration) -> Selection {
        let (from, to) = (seconds(from), seconds(to));
        self.history.lock().select(from, to, step.as_secs())
    }

    /// Compares the period that ends at `end` with an earlier period (the baseline).
    ///
    /// # Errors
    /// If the two periods cannot be determined.
    pub fn changes(
        &self,
        against: Against,
        window: BaselineWindow,
        end: SystemTime,
    ) -> Result<Changes, SpanError> {
        let spans = spans(against, window, end, self.now())?;
        let compared = |(from, to)| {
            let selection = self.history.lock().select_begun(from, to);
            let period = selection.period();
            Compared { from, to, period }
        };
        let (before, now) = (compared(spans.before), compared(spans.now));
        let incomparable = incomparable(&before.period, &now.period, now.to - now.from);
        let changes = match incomparable {
            None => compare(&before.period, &now.period),
            Some(_) => Vec::new(),
        };
        Ok(Changes {
            before,
            now,
            changes,
            incomparable,
        })
    }

    /// The kept stalls that overlap with `period` (its start and its end), the latest first;
    /// without a period, all kept stalls. Also returns the best series of recurring stalls of each
    /// server. If no server has a series that still recurs, the series of the whole deployment can
    /// be added. Only series with a stall in the period are returned, and series that still recur
    /// if the period includes the present. Stalls that began after the period are ignored.
    pub fn stalls(
        &self,
        period: Option<(SystemTime, SystemTime)>,
    ) -> (Vec<Stall>, Vec<RecurringStall>) {
        self.stalls.lock().list(self.now(), period)
    }

    /// The number of servers whose stalls recur now. The whole deployment counts as one server if
    /// its stalls recur and no single server has recurring stalls. Takes some milliseconds for each
    /// server with many stalls.
    pub fn count_recurring_stalls(&self) -> usize {
        self.stalls.lock().count_recurring(self.now())
    }

    /// True if [`Self::count_recurring_stalls`] must be called in this second. If it is called
    /// twice in a second, only the first call returns true.
    pub fn counts_recurring_stalls_in(&self, now: SystemTime) -> bool {
        self.is_on && self.recurring_counts.is_due(seconds(now))
    }

    /// The current storm, if any, followed by past storms, the latest first.
    pub fn storms(&self) -> Vec<Storm> {
        self.storms.lock().list()
    }

    /// True while the storm detector still learns the normal churn: the usual number of short-lived
    /// connections.
    pub fn is_learning_churn(&self) -> bool {
        self.storms.lock().is_learning()
    }

    /// True if the history is kept.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The memory use of the history, and the numbers of its dropped steps and failed writes.
    pub fn size(&self) -> Size {
        let history = self.history.lock();
        Size {
            bytes: history.bytes(),
            dropped_early: history.dropped_early(),
            failed_writes: self.writes.lock().failed,
        }
    }
}

/// The text of an annotation about a change; `None` if a change of this kind gets no annotation.
fn described(change: &Change) -> Option<String> {
    let kind = match change.kind {
        ChangeKind::Slower => "slower",
        ChangeKind::Faster => "faster",
        ChangeKind::New => "new",
        _ => return None,
    };
    let ratio = match change.kind {
        ChangeKind::New => String::new(),
        _ => format!(" ({:.1} times)", change.ratio),
    };
    match &*change.label {
        Label::Shape {
            command,
            db,
            collection,
            text,
            ..
        } => Some(format!("{kind}{ratio}: {command} {db}.{collection} {text}")),
        _ => Some(format!("{kind}{ratio}: all operations")),
    }
}

/// Copies the file if its latest step is more than a minute in the future: the clock may be behind
/// until it is synchronized, and the next write to the file removes all steps in the future.
fn copy_if_clock_is_behind(store: &mut Store, found: &StoredHistory, now: u64) {
    let starts = found.frames.iter().map(|frame| frame.start);
    let Some(latest) = starts.max().filter(|latest| *latest > now + 60) else {
        return;
    };
    match store.copy(latest) {
        Ok(copy) => tracing::warn!(
            file = %copy.display(),
            "history file copied because its latest steps are in the future"
        ),
        Err(error) => tracing::warn!(%error, "could not copy the history file"),
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn log(change: StormChange, storm: &Storm) {
    let traffic = &storm.traffic;
    let first = |names: &Names| names.ranked().first().map(|(name, _)| (*name).to_owned());
    let (network, application) = (first(&traffic.networks), first(&traffic.applications));
    match change {
        StormChange::Began => tracing::warn!(
            arrivals = traffic.arrivals,
            peak = storm.peak_arrivals,
            usual = storm.usual,
            network,
            application,
            "storm began"
        ),
        StormChange::Ended => tracing::warn!(
            arrivals = traffic.arrivals,
            peak = storm.peak_arrivals,
            connections_absorbed = storm.connections_absorbed(),
            authentications_absorbed = storm.authentications_absorbed(),
            network,
            application,
            "storm ended"
        ),
    }
}
