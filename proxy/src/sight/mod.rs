//! What can be told of the past: keeps the history, and finds in it what stalled and what changed.
//!
//! One tick a second takes what has been counted out of [`observe`](crate::observe), adds it to the
//! [`history`](crate::history) and shows it to the stall detectors. Nothing here stands in an operation's way: it runs in the
//! control plane, and what is asked for over HTTP is worked out where blocking is allowed.

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
    history::{
        Change, Figures, History, Label, Period, Selection, Store, StoreError, Turnover, compare,
    },
    observe::Observer,
    pulse::{Cost, Pulse},
};

use self::stalls::Stalls;
pub use self::{
    against::{Against, SpanError, TimeError, Window, parse_time},
    stalls::{RecurringStall, Stall, WaitingShape},
};

/// How often the file is written.
const WRITTEN_EVERY: u64 = 10;

/// Seconds without a tick that become steps without operations; a machine that slept longer knows nothing of them.
const LONGEST_GAP: u64 = 60;

/// Seconds of a period that have to be known for it to be compared; of a shorter one, half of it.
const LEAST_KNOWN: u64 = 30;

/// What tells the time.
pub struct Clock(Box<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    /// One that tells what a function does.
    pub fn new(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        Self(Box::new(now))
    }
}

impl Default for Clock {
    /// The machine's.
    fn default() -> Self {
        Self::new(SystemTime::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").finish_non_exhaustive()
    }
}

/// Keeps the past.
pub struct Sight {
    clock: Clock,
    observer: Arc<Observer>,
    history: Mutex<History>,
    /// Where the history is kept; locked while it is written, which may take long.
    store: Mutex<Option<Store>>,
    /// What the store has not been told yet; `None` without a store.
    untold: Mutex<Option<Turnover>>,
    stalls: Mutex<Stalls>,
    pulse: Option<Pulse>,
    /// The last second that was taken in; locked over the whole of a tick.
    last_second: Mutex<Option<u64>>,
    is_on: bool,
}

impl fmt::Debug for Sight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sight").finish_non_exhaustive()
    }
}

/// What is kept.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// Whether anything is.
    pub is_on: bool,
    /// Where across restarts; in memory only without.
    pub directory: Option<&'a Path>,
    /// Memory of the history.
    pub max_bytes: usize,
    /// Shapes with a series of their own in a second.
    pub max_shapes: usize,
}

/// What the history takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Bytes in memory.
    pub bytes: usize,
    /// Steps dropped before their time, for want of room.
    pub dropped_early: u64,
}

impl Sight {
    /// Begins with what a file has of the time before.
    ///
    /// # Errors
    /// If the file cannot be opened or made.
    pub fn open(
        observer: Arc<Observer>,
        settings: Settings<'_>,
        pulse: Option<Pulse>,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let now = (clock.0)();
        let mut history = History::new(settings.max_bytes, settings.max_shapes);
        let (mut store, mut untold) = (None, None);
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
            untold = Some(history.take_turnover());
        }
        Ok(Self {
            clock,
            observer,
            history: Mutex::new(history),
            store: Mutex::new(store),
            untold: Mutex::new(untold),
            stalls: Mutex::default(),
            pulse,
            last_second: Mutex::new(None),
            is_on: settings.is_on,
        })
    }

    /// What time it is.
    pub fn now(&self) -> SystemTime {
        (self.clock.0)()
    }

    /// Takes in the second that is over. Called soon after the beginning of each second of the clock.
    pub fn tick(&self, now: SystemTime) {
        if !self.is_on {
            return;
        }
        let over = seconds(now).saturating_sub(1);
        let mut last = self.last_second.lock();
        let first = match *last {
            // It ticked twice, or the clock was corrected a little: what there is waits for its second.
            Some(last) if last >= over && last - over <= LONGEST_GAP => return,
            Some(last) if last >= over => {
                self.history.lock().rewind(over);
                over
            }
            Some(last) if over - last <= LONGEST_GAP => last + 1,
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
        let turnover = history.take_turnover();
        drop(history);
        if let Some(untold) = &mut *self.untold.lock() {
            untold.merge(turnover);
        }
        let select = |from, to| self.history.lock().select(from, to, 1);
        let pulse = self.pulse.as_ref();
        self.stalls
            .lock()
            .second(over, &working, &beat, &select, pulse);
        drop(last);
    }

    /// Whether the file is to be written now.
    pub fn is_due(&self, now: SystemTime) -> bool {
        self.untold.lock().is_some() && seconds(now).is_multiple_of(WRITTEN_EVERY)
    }

    /// Writes what the file does not have yet, unless that is being done. It waits for the disk.
    pub fn write(&self) {
        if let Some(mut store) = self.store.try_lock() {
            self.write_to(store.as_mut());
        }
    }

    fn write_to(&self, store: Option<&mut Store>) {
        let telling = self.untold.lock().as_mut().map(std::mem::take);
        let (Some(store), Some(mut telling)) = (store, telling) else {
            return;
        };
        if let Err(error) = store.write(&telling) {
            tracing::error!(%error, "history not written");
            // It is written with the next.
            if let Some(untold) = &mut *self.untold.lock() {
                telling.merge(std::mem::take(untold));
                *untold = telling;
            }
        }
    }

    /// Takes in and writes what is left, and closes the file; what comes later is not kept.
    pub fn close(&self) {
        self.tick(self.now() + Duration::from_secs(1));
        let mut store = self.store.lock();
        self.write_to(store.as_mut());
        *store = None;
        *self.untold.lock() = None;
    }

    /// What is known between two times, to be unpacked by whoever wants it.
    pub fn select(&self, from: SystemTime, to: SystemTime) -> Selection {
        let (from, to) = (seconds(from), seconds(to));
        self.history.lock().select(from, to, 1)
    }

    /// What all series came to between two times.
    pub fn period(&self, from: SystemTime, to: SystemTime) -> Period {
        self.select(from, to).period()
    }

    /// What the series that are wanted came to, in steps.
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

    /// What is different now.
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

    /// What stalled, the latest first, and what of it recurs; since then, or since the start.
    pub fn stalls(&self, since: Option<SystemTime>) -> (Vec<Stall>, Vec<RecurringStall>) {
        let stalls = self.stalls.lock();
        stalls.list(self.pulse.as_ref(), self.now(), since)
    }

    /// What asking servers for their state has cost; `None` where they are not asked.
    pub fn pulse(&self) -> Option<Cost> {
        self.pulse.as_ref().map(Pulse::cost)
    }

    /// Tells which servers there are.
    pub fn set_servers(&self, addresses: &[String]) {
        if let Some(pulse) = &self.pulse {
            pulse.set_servers(addresses);
        }
    }

    /// Whether the past is kept.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// What it takes.
    pub fn size(&self) -> Size {
        let history = self.history.lock();
        Size {
            bytes: history.bytes(),
            dropped_early: history.dropped_early(),
        }
    }
}

/// Two periods and what is different in the later one.
#[derive(Clone, Debug)]
pub struct Changes {
    /// The earlier.
    pub before: Compared,
    /// The later.
    pub now: Compared,
    /// The differences, by what they cost the servers.
    pub changes: Vec<Change>,
    /// Why nothing is said of differences, where that is so.
    pub incomparable: Option<Incomparable>,
}

/// One of two periods that are compared.
#[derive(Clone, Debug)]
pub struct Compared {
    /// When it began, in seconds since the epoch.
    pub from: u64,
    /// When it ended.
    pub to: u64,
    /// What is known of it.
    pub period: Period,
}

/// Why two periods say nothing about each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incomparable {
    /// Seawall did not run, or the history begins later.
    #[error("nothing is known of {0}")]
    Unknown(Side),
    /// It is known in part, and that is too little.
    #[error("only {known_seconds} s of {side} are known")]
    TooLittle {
        /// Which of the two.
        side: Side,
        /// How much of it is known.
        known_seconds: u64,
    },
    /// It is known, and nothing happened.
    #[error("no operation ended in {0}")]
    Idle(Side),
}

/// One of two periods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The earlier.
    Baseline,
    /// The later.
    Now,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "the baseline",
            Self::Now => "the period that is held against it",
        })
    }
}

/// Whether two periods say nothing about each other; each should be so many seconds long.
pub fn incomparable(before: &Period, now: &Period, length: u64) -> Option<Incomparable> {
    let least = LEAST_KNOWN.min(length / 2);
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
