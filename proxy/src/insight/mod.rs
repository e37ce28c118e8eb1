//! Insight into the past: keeps the history, and detects storms, stalls and changes.
//!
//! It gets one [`Second`] a second and knows neither what counts operations nor what samples
//! servers. The detectors are pure: they read no clock, and get the time as an argument. This code
//! runs in the control plane and never delays an operation. Results for HTTP requests are computed
//! where blocking is allowed.

mod baseline;
mod changes;
mod clock;
mod comparison;
mod packed;
mod second;
mod stalls;
mod store;
mod storms;
#[cfg(test)]
mod tests;
mod tiers;

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use crate::stats::{Against, Label, Names, Period};

use self::{baseline::spans, stalls::Stalls, storms::Storms};
pub use self::{
    baseline::{SpanError, Window},
    changes::{Change, ChangeKind, compare},
    clock::Clock,
    comparison::{Changes, Compared, Incomparable, Side, incomparable, whole},
    packed::Damaged,
    second::Second,
    stalls::{Episode, Moved, Recurrence, RecurringStall, Stall, WaitingShape},
    store::{Store, StoreError, StoredHistory},
    storms::{Storm, StormTurn},
    tiers::{Delta, Frame, History, Selection, TIERS},
};

/// The file is written once per interval.
const WRITE_INTERVAL_SECONDS: u64 = 10;

/// After a pause of at most this length, the missed seconds become seconds without operations.
/// After a longer one (for example when the machine slept) they are unknown.
const MAX_GAP_SECONDS: u64 = 60;

/// Keeps the history, and detects storms and stalls.
pub struct Insight {
    clock: Clock,
    history: Mutex<History>,
    /// The file of the history. Locked while it is written, which may take long.
    store: Mutex<Option<Store>>,
    /// Changes that have not been written to the store; `None` without a store.
    unwritten: Mutex<Option<Delta>>,
    stalls: Mutex<Stalls>,
    storms: Mutex<Storms>,
    /// Locked while a second is added.
    added: Mutex<Added>,
    is_on: bool,
}

/// The seconds that were added to the history.
#[derive(Debug, Default)]
struct Added {
    /// The last second.
    last: Option<u64>,
    /// The figures measured since, if the clock repeated that second.
    left: Option<Second>,
}

impl fmt::Debug for Insight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insight").finish_non_exhaustive()
    }
}

/// Settings of the history.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// True if the history is kept.
    pub is_on: bool,
    /// Directory for the history across restarts; `None` keeps it in memory only.
    pub directory: Option<&'a Path>,
    /// Memory limit of the history.
    pub max_bytes: usize,
    /// Shapes with a series of their own in each second.
    pub max_shapes: usize,
}

/// Memory use of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Bytes in memory.
    pub bytes: usize,
    /// Steps dropped before their retention ended, because the memory limit was reached.
    pub dropped_early: u64,
}

impl Insight {
    /// Opens the history and loads an existing file.
    ///
    /// # Errors
    /// If the file cannot be opened or created.
    pub fn open(settings: Settings<'_>, clock: Clock) -> Result<Self, StoreError> {
        let now = clock.now();
        let mut history = History::new(settings.max_bytes, settings.max_shapes);
        let (mut store, mut unwritten) = (None, None);
        if let Some(directory) = settings.directory.filter(|_| settings.is_on) {
            let (opened, found) = Store::open(directory)?;
            if let Some(aside) = found.put_aside {
                tracing::warn!(file = %aside.display(), "history could not be read and was put aside");
            }
            let left_out = history.restore(found.labels, found.frames, seconds(now));
            if left_out > 0 {
                tracing::warn!(frames = left_out, "parts of the history could not be read");
            }
            store = Some(opened);
            unwritten = Some(history.take_delta());
        }
        Ok(Self {
            clock,
            history: Mutex::new(history),
            store: Mutex::new(store),
            unwritten: Mutex::new(unwritten),
            stalls: Mutex::default(),
            storms: Mutex::default(),
            added: Mutex::default(),
            is_on: settings.is_on,
        })
    }

    /// The current time.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Adds the second that just ended. Called soon after each second of the clock begins. Returns
    /// whether a storm began or ended with it.
    pub fn add(&self, mut second: Second, now: SystemTime) -> Option<StormTurn> {
        let traffic = std::mem::take(&mut second.traffic);
        let turn = self.storms.lock().second(&traffic, now);
        if self.is_on {
            self.remember(second, now);
        }
        let (turn, storm) = turn?;
        log(turn, &storm);
        Some(turn)
    }

    fn remember(&self, mut second: Second, now: SystemTime) {
        let over = seconds(now).saturating_sub(1);
        let mut added = self.added.lock();
        if let Some(mut left) = added.left.take() {
            left.merge(second);
            second = left;
        }
        let first = match added.last {
            // A repeated second, or a small correction of the clock: keep the counts for the next
            // second.
            Some(last) if last >= over && last - over <= MAX_GAP_SECONDS => {
                added.left = Some(second);
                return;
            }
            Some(last) if last >= over => {
                self.history.lock().rewind(over);
                over
            }
            Some(last) if over - last <= MAX_GAP_SECONDS => last + 1,
            Some(_) | None => over,
        };
        added.last = Some(over);
        let Second {
            series,
            working,
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
            history.add(missed, BTreeMap::new());
        }
        history.add(over, series);
        let delta = history.take_delta();
        drop(history);
        if let Some(unwritten) = &mut *self.unwritten.lock() {
            unwritten.merge(delta);
        }
        let select = |from, to| self.history.lock().select(from, to, 1);
        let mut stalls = self.stalls.lock();
        stalls.second(over, &working, &servers, samples, &select);
    }

    /// True if the file must be written now.
    pub fn is_due(&self, now: SystemTime) -> bool {
        self.unwritten.lock().is_some() && seconds(now).is_multiple_of(WRITE_INTERVAL_SECONDS)
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
        if let Err(error) = store.write(&delta) {
            tracing::error!(%error, "history not written");
            // Keep the changes for the next write.
            if let Some(unwritten) = &mut *self.unwritten.lock() {
                delta.merge(std::mem::take(unwritten));
                *unwritten = delta;
            }
        }
    }

    /// Writes the remaining changes, and closes the file. Later data is not written.
    pub fn close(&self) {
        let mut store = self.store.lock();
        self.write_to(store.as_mut());
        *store = None;
        *self.unwritten.lock() = None;
    }

    /// Selects the frames between two times. The caller unpacks them.
    pub fn select(&self, from: SystemTime, to: SystemTime) -> Selection {
        let (from, to) = (seconds(from), seconds(to));
        self.history.lock().select(from, to, 1)
    }

    /// Sums of all series between two times.
    pub fn period(&self, from: SystemTime, to: SystemTime) -> Period {
        self.select(from, to).period()
    }

    /// Sums of the series that `is_wanted` accepts, in steps of `step`.
    pub fn timeline(
        &self,
        from: SystemTime,
        to: SystemTime,
        step: Duration,
        is_wanted: &dyn Fn(&Label) -> bool,
    ) -> Vec<(u64, Period)> {
        let step = step.as_secs().max(1);
        let from = seconds(from) - seconds(from) % step;
        let selection = self.history.lock().select(from, seconds(to), step);
        selection.timeline_of(step, is_wanted)
    }

    /// Compares the present with a baseline.
    ///
    /// # Errors
    /// If there are no two periods to compare.
    pub fn changes(&self, against: Against, window: Window) -> Result<Changes, SpanError> {
        let spans = spans(against, window, self.now())?;
        let compared = |(from, to)| {
            let selection = self.history.lock().select(from, to, 1);
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

    /// Stalls, the latest first, and the recurring ones among them. Covers the time since `since`,
    /// or since the start.
    pub fn stalls(&self, since: Option<SystemTime>) -> (Vec<Stall>, Vec<RecurringStall>) {
        self.stalls.lock().list(self.now(), since)
    }

    /// The current storm, if any, then past storms, the latest first.
    pub fn storms(&self) -> Vec<Storm> {
        self.storms.lock().list()
    }

    /// True while too little was seen since the start to detect a storm.
    pub fn learns_what_is_usual(&self) -> bool {
        self.storms.lock().is_learning()
    }

    /// True if the history is kept.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Memory use of the history.
    pub fn size(&self) -> Size {
        let history = self.history.lock();
        Size {
            bytes: history.bytes(),
            dropped_early: history.dropped_early(),
        }
    }
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

fn log(turn: StormTurn, storm: &Storm) {
    let traffic = &storm.traffic;
    let first = |names: &Names| names.ranked().first().map(|(name, _)| (*name).to_owned());
    let (network, application) = (first(&traffic.networks), first(&traffic.applications));
    match turn {
        StormTurn::Began => tracing::warn!(
            arrivals = traffic.arrivals,
            peak = storm.peak_arrivals,
            usual = storm.usual,
            network,
            application,
            "storm began"
        ),
        StormTurn::Ended => tracing::warn!(
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
