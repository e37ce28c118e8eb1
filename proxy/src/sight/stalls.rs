//! Stalls of servers: what was waited for, how often it comes, and what moved at the server meanwhile.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    history::{
        Beat, Episode, Figures, Label, Moved, Period, Recurrence, Sample, Selection, StallDetector,
        moved, recurrence, unanswered,
    },
    pulse::Pulse,
};

/// Episodes that are remembered, of each server.
const REMEMBERED: usize = 200;

/// Shapes named for each.
const SHAPES: usize = 5;

/// Servers that are watched: those of a deployment, and some that were.
const WATCHED: usize = 100;

/// How far back counters are looked at, to know what is usual.
const CALM: Duration = Duration::from_secs(600);

/// A shape that waited in a stall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingShape {
    /// Its series.
    pub label: Arc<Label>,
    /// Its operations that took longer than usual.
    pub operations: u64,
}

/// One stall.
#[derive(Clone, Debug)]
pub struct Stall {
    /// Where; `None` if it was everywhere, or before any server was chosen.
    pub server: Option<Box<str>>,
    /// When, how long, how bad.
    pub episode: Episode,
    /// Which operations waited, the most first.
    pub shapes: Vec<WaitingShape>,
    /// What moved at the server.
    pub moved: Vec<Moved>,
    /// How often the server was asked for its state meanwhile and did not answer.
    pub unanswered: usize,
}

/// Stalls that come again and again.
#[derive(Clone, Debug)]
pub struct RecurringStall {
    /// Where.
    pub server: Option<Box<str>>,
    /// How often and how long.
    pub recurrence: Recurrence,
    /// What moves with it most.
    pub counter: Option<Moved>,
    /// Whether the server did not answer during most of them.
    pub is_unanswered: bool,
}

/// How long a server that answers nothing is still watched, in seconds.
const FORGOTTEN_AFTER: u64 = 3_600;

#[derive(Default)]
struct Watched {
    detector: StallDetector,
    stalls: VecDeque<Stall>,
    /// When it last answered something.
    seen_at: u64,
}

/// The history between two times.
type Select<'a> = &'a dyn Fn(u64, u64) -> Selection;

/// The detectors, one a server and one for all operations.
#[derive(Default)]
pub(super) struct Stalls {
    all: Watched,
    servers: HashMap<Box<str>, Watched>,
}

impl Stalls {
    /// Takes in the second that began at `start`, which is in the history already: all operations, and those of servers.
    pub(super) fn second(
        &mut self,
        start: u64,
        all: &Figures,
        second: &Period,
        select: Select<'_>,
        pulse: Option<&Pulse>,
    ) {
        let none = Figures::default();
        self.all.second(start, all, None, select, None);
        self.servers
            .retain(|_, watched| watched.seen_at + FORGOTTEN_AFTER > start);
        for label in second.series.keys() {
            if let Label::Server(address) = &**label
                && self.servers.len() < WATCHED
            {
                let watched = self.servers.entry(address.clone());
                watched.or_default().seen_at = start;
            }
        }
        for (address, watched) in &mut self.servers {
            let figures = second.series.get(&Label::Server(address.clone()));
            let server = Some(&**address);
            watched.second(start, figures.unwrap_or(&none), server, select, pulse);
        }
    }

    /// All stalls, the latest first, and what recurs.
    pub(super) fn list(&self, pulse: Option<&Pulse>) -> (Vec<Stall>, Vec<RecurringStall>) {
        let (mut stalls, mut recurring) = (Vec::new(), Vec::new());
        for (address, watched) in &self.servers {
            stalls.extend(watched.stalls.iter().cloned());
            recurring.extend(watched.recurring(Some(address), pulse));
        }
        // What one server alone stalled is told of it; what is told of none concerns all, or none was reached.
        let of_servers = |stall: &&Stall| {
            let others = stalls.iter().filter(|other| overlap(other, stall));
            others.count() != 1
        };
        let everywhere: Vec<_> = self.all.stalls.iter().filter(of_servers).cloned().collect();
        if !everywhere.is_empty() && recurring.is_empty() {
            recurring.extend(self.all.recurring(None, None));
        }
        stalls.extend(everywhere);
        stalls.sort_by(|a, b| b.episode.started_at.total_cmp(&a.episode.started_at));
        recurring.sort_by(|a, b| b.recurrence.last_at.total_cmp(&a.recurrence.last_at));
        (stalls, recurring)
    }
}

fn overlap(a: &Stall, b: &Stall) -> bool {
    let ((a_start, a_end), (b_start, b_end)) = (span(&a.episode), span(&b.episode));
    a_start < b_end && b_start < a_end
}

fn span(episode: &Episode) -> (f64, f64) {
    let start = episode.started_at;
    (start, start + episode.length.as_secs_f64())
}

fn samples(pulse: &Pulse, address: &str) -> Vec<Sample> {
    let since = SystemTime::now().checked_sub(CALM);
    pulse.samples(address, since.unwrap_or(SystemTime::UNIX_EPOCH))
}

impl Watched {
    fn second(
        &mut self,
        start: u64,
        figures: &Figures,
        server: Option<&str>,
        select: Select<'_>,
        pulse: Option<&Pulse>,
    ) {
        let beat = Beat {
            durations: figures.durations.clone(),
            phases: figures.phases,
            at: start + 1,
        };
        let Some(episode) = self.detector.second(&beat) else {
            return;
        };
        // What servers said is forgotten after some minutes, so it is looked at now.
        let samples = pulse.zip(server).map(|(pulse, of)| samples(pulse, of));
        let samples = samples.unwrap_or_default();
        let span = span(&episode);
        self.stalls.push_back(Stall {
            server: server.map(Into::into),
            moved: moved(&samples, &[span]),
            unanswered: unanswered(&samples, &[span]),
            shapes: waiting(&episode, start + 1, select),
            episode,
        });
        if self.stalls.len() > REMEMBERED {
            self.stalls.pop_front();
        }
    }

    fn recurring(&self, server: Option<&str>, pulse: Option<&Pulse>) -> Option<RecurringStall> {
        let episodes: Vec<_> = self.stalls.iter().map(|s| s.episode.clone()).collect();
        let recurrence = recurrence(&episodes)?;
        let silent = self.stalls.iter().filter(|stall| stall.unanswered > 0);
        let is_unanswered = silent.count() * 2 > self.stalls.len();
        // Of all stalls together more is to be learned than of each.
        let samples = pulse.zip(server).map(|(pulse, of)| samples(pulse, of));
        let samples = samples.unwrap_or_default();
        let known = samples.first().map_or(f64::INFINITY, |first| first.at);
        let spans = episodes.iter().map(span);
        let spans: Vec<_> = spans.filter(|(start, _)| *start >= known).collect();
        let together = moved(&samples, &spans).into_iter().next();
        let last = || {
            self.stalls
                .iter()
                .rev()
                .find_map(|s| s.moved.first().cloned())
        };
        Some(RecurringStall {
            server: server.map(Into::into),
            recurrence,
            counter: together.or_else(last).filter(|_| !is_unanswered),
            is_unanswered,
        })
    }
}

/// The shapes of which operations took longer than is usual during an episode, by their number.
fn waiting(episode: &Episode, now: u64, select: Select<'_>) -> Vec<WaitingShape> {
    let begins = Duration::try_from_secs_f64(episode.started_at).unwrap_or_default();
    let period = select(begins.as_secs(), now).period();
    let mut shapes: Vec<_> = period
        .series
        .iter()
        .filter(|(label, _)| matches!(***label, Label::Shape { .. }))
        .map(|(label, figures)| WaitingShape {
            label: Arc::clone(label),
            operations: figures.durations.longer_than(episode.usual * 2),
        })
        .filter(|shape| shape.operations > 0)
        .collect();
    shapes.sort_by(|a, b| b.operations.cmp(&a.operations).then(a.label.cmp(&b.label)));
    shapes.truncate(SHAPES);
    shapes
}
