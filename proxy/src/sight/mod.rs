//! Insight into the past: keeps the history and finds stalls and changes in it.
//!
//! Each second, one tick takes the counts from [`observe`](crate::observe), adds them to the
//! [`history`](crate::history) and passes them to the stall detectors. This code runs in the
//! control plane and never delays an operation. Results for HTTP requests are computed where
//! blocking is allowed.

mod against;
mod stalls;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;

use crate::{
    history::{Change, Delta, History, Selection, Store, StoreError, compare},
    observe::Observer,
    pulse::{Cost, Pulse},
    stats::{Figures, Label, Period},
};

use self::stalls::Stalls;
pub use self::{
    against::{Against, SpanError, TimeError, Window, parse_time},
    stalls::{RecurringStall, Stall, WaitingShape},
};

/// The file is written once per interval.
const WRITE_INTERVAL_SECONDS: u64 = 10;

/// After a pause of at most this length, the missed seconds become seconds without operations.
/// After a longer one (for example when the machine slept) they are unknown.
const MAX_GAP_SECONDS: u64 = 60;

/// Minimum known time of a period for a comparison. For a short period, half of its length is
/// enough.
const MIN_KNOWN_SECONDS: u64 = 30;

/// A source of the time.
pub struct Clock(Box<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// A clock that reads the time from `now`.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Box::new(now))
    }
}

impl Default for Clock {
    /// The system clock.
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").finish_non_exhaustive()
    }
}

/// Keeps the history and detects stalls.
pub struct Sight {
    clock: Clock,
    observer: Arc<Observer>,
    history: Mutex<History>,
    /// The file of the history. Locked while it is written, which may take long.
    store: Mutex<Option<Store>>,
    /// Changes that have not been written to the store; `None` without a store.
    unwritten: Mutex<Option<Delta>>,
    stalls: Mutex<Stalls>,
    pulse: Option<Pulse>,
    /// The last second that was added. Locked during a whole tick.
    last_second: Mutex<Option<u64>>,
    is_on: bool,
}

impl fmt::Debug for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sight").finish_non_exhaustive()
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

impl Sight {
    /// Opens the history and loads an existing file.
    ///
    /// # Errors
    /// If the file cannot be opened or created.
    pub fn open(
        observer: Arc<Observer>,
        settings: Settings<'_>,
        pulse: Option<Pulse>,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let now = (clock.0)();
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
            observer,
            history: Mutex::new(history),
            store: Mutex::new(store),
            unwritten: Mutex::new(unwritten),
            stalls: Mutex::default(),
            pulse,
            last_second: Mutex::new(None),
            is_on: settings.is_on,
        })
    }

    /// The current time.
    pub fn now(&self) -> SystemTime {
        (self.clock.0)()
    }

    /// Adds the second that just ended. Called soon after each second of the clock begins.
    pub fn tick(&self, now: SystemTime) {
        if !self.is_on {
            return;
        }
        let over = seconds(now).saturating_sub(1);
        let mut last = self.last_second.lock();
        let first = match *last {
            // A repeated tick, or a small correction of the clock: keep the counts for the next
            // second.
            Some(last) if last >= over && last - over <= MAX_GAP_SECONDS => return,
            Some(last) if last >= over => {
                self.history.lock().rewind(over);
                over
            }
            Some(last) if over - last <= MAX_GAP_SECONDS => last + 1,
            Some(_) | None => over,
        };
        *last = Some(over);
        let (second, working) = self.observer.take_second();
        let servers = second.iter().filter_map(|(label, (figures, _))| {
            let is_server = matches!(**label, Label::Server(_));
            is_server.then(|| (Arc::clone(label), figures.clone()))
        });
        let beat = Period {
            length: Duration::from_secs(1),
            series: servers.collect(),
        };
        let mut history = self.history.lock();
        for missed in first..over {
            history.add(missed, BTreeMap::new());
        }
        history.add(over, second);
        let delta = history.take_delta();
        drop(history);
        if let Some(unwritten) = &mut *self.unwritten.lock() {
            unwritten.merge(delta);
        }
        let select = |from, to| self.history.lock().select(from, to, 1);
        let pulse = self.pulse.as_ref();
        self.stalls
            .lock()
            .second(over, &working, &beat, &select, pulse);
        drop(last);
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

    /// Adds and writes the remaining counts, and closes the file. Later data is not written.
    pub fn close(&self) {
        self.tick(self.now() + Duration::from_secs(1));
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
        let spans = against.spans(window, self.now())?;
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
        let stalls = self.stalls.lock();
        stalls.list(self.pulse.as_ref(), self.now(), since)
    }

    /// Cost of sampling the servers; `None` if they are not sampled.
    pub fn pulse(&self) -> Option<Cost> {
        self.pulse.as_ref().map(Pulse::cost)
    }

    /// Sets the servers to sample.
    pub fn set_servers(&self, addresses: &[String]) {
        if let Some(pulse) = &self.pulse {
            pulse.set_servers(addresses);
        }
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

/// Two periods and their differences.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The earlier period.
    pub before: Compared,
    /// The later period.
    pub now: Compared,
    /// The differences, ordered by their cost for the servers.
    pub changes: Vec<Change>,
    /// The reason why the periods could not be compared, if so.
    pub incomparable: Option<Incomparable>,
}

/// One of the two compared periods.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Start, in seconds since the epoch.
    pub from: u64,
    /// End, in seconds since the epoch.
    pub to: u64,
    /// Its sums.
    pub period: Period,
}

/// The reason why two periods cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// Nothing is known of the period: Seawall did not run, or the history begins later.
    #[error("no data for {0}")]
    Unknown(Side),
    /// Too little of the period is known.
    #[error("only {known_seconds} s of {side} have data")]
    TooLittle {
        /// The period that is too short.
        side: Side,
        /// Known seconds of it.
        known_seconds: u64,
    },
    /// No operation ended in the period.
    #[error("no operation ended in {0}")]
    Idle(Side),
}

/// One of the two compared periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The earlier one.
    Baseline,
    /// The later one.
    Now,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "the baseline",
            Self::Now => "the current period",
        })
    }
}

/// Returns the reason if two periods cannot be compared. `length` is the intended length of each,
/// in seconds.
pub fn incomparable(before: &Period, now: &Period, length: u64) -> Option<Incomparable> {
    let least = MIN_KNOWN_SECONDS.min(length / 2);
    let sides = [(Side::Baseline, before), (Side::Now, now)];
    sides.into_iter().find_map(|(side, period)| {
        let known_seconds = period.length.as_secs();
        match known_seconds {
            0 => Some(Incomparable::Unknown(side)),
            known if known < least => Some(Incomparable::TooLittle {
                side,
                known_seconds,
            }),
            _ if period.series.values().all(|figures| figures.count == 0) => {
                Some(Incomparable::Idle(side))
            }
            _ => None,
        }
    })
}

/// The figures of all operations in a period.
pub fn whole(period: &Period) -> Figures {
    let whole = period.series.get(&Label::Whole);
    whole.cloned().unwrap_or_default()
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}
