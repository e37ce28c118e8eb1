//! Stalls of servers: what was waited for, how often it comes, and what moved at the server meanwhile.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    history::{
        Beat, Episode, Figures, History, Label, Moved, Period, Recurrence, Sample, StallDetector,
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

#[derive(Default)]
struct Watched {
    detector: StallDetector,
    episodes: VecDeque<(Episode, Vec<WaitingShape>)>,
}

/// The detectors, one a server and one for all operations.
#[derive(Default)]
pub(super) struct Stalls {
    all: Watched,
    servers: HashMap<Box<str>, Watched>,
}

impl Stalls {
    /// Takes in the second that began at `start`, which is in the history already.
    pub(super) fn second(&mut self, start: u64, second: &Period, history: &History) {
        let none = Figures::default();
        let whole = second.series.get(&Label::Whole).unwrap_or(&none);
        self.all.second(start, whole, history);
        for label in second.series.keys() {
            if let Label::Server(address) = &**label
                && !self.servers.contains_key(address)
                && self.servers.len() < WATCHED
            {
                self.servers.insert(address.clone(), Watched::default());
            }
        }
        for (address, watched) in &mut self.servers {
            let figures = second.series.get(&Label::Server(address.clone()));
            watched.second(start, figures.unwrap_or(&none), history);
        }
    }

    /// All stalls, the latest first, and what recurs.
    pub(super) fn list(&self, pulse: Option<&Pulse>) -> (Vec<Stall>, Vec<RecurringStall>) {
        let (mut stalls, mut recurring) = (Vec::new(), Vec::new());
        for (address, watched) in &self.servers {
            let samples = pulse.map_or_else(Vec::new, |pulse| samples(pulse, address));
            stalls.extend(watched.stalls(Some(address), &samples));
            recurring.extend(watched.recurring(Some(address), &samples));
        }
        // What one server alone stalled is told of it; what is told of none concerns all, or none was reached.
        let servers = |stall: &Stall| {
            let others = stalls.iter().filter(|other| overlap(other, stall));
            others.count()
        };
        let everywhere = self.all.stalls(None, &[]);
        let everywhere: Vec<_> = everywhere
            .into_iter()
            .filter(|stall| servers(stall) != 1)
            .collect();
        if !everywhere.is_empty() && recurring.is_empty() {
            recurring.extend(self.all.recurring(None, &[]));
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
    fn second(&mut self, start: u64, figures: &Figures, history: &History) {
        let beat = Beat {
            durations: figures.durations.clone(),
            phases: figures.phases,
            at: start + 1,
        };
        if let Some(episode) = self.detector.second(&beat) {
            let shapes = waiting(&episode, start + 1, history);
            self.episodes.push_back((episode, shapes));
            if self.episodes.len() > REMEMBERED {
                self.episodes.pop_front();
            }
        }
    }

    fn stalls(&self, server: Option<&str>, samples: &[Sample]) -> Vec<Stall> {
        let known = samples.first().map_or(f64::INFINITY, |first| first.at);
        let stalls = self.episodes.iter().map(|(episode, shapes)| {
            let span = span(episode);
            // Of what was before the first sample nothing can be said.
            let of_it = if span.0 >= known { samples } else { &[] };
            Stall {
                server: server.map(Into::into),
                moved: moved(of_it, &[span]),
                unanswered: unanswered(of_it, &[span]),
                episode: episode.clone(),
                shapes: shapes.clone(),
            }
        });
        stalls.collect()
    }

    fn recurring(&self, server: Option<&str>, samples: &[Sample]) -> Option<RecurringStall> {
        let episodes: Vec<_> = self.episodes.iter().map(|(e, _)| e.clone()).collect();
        let recurrence = recurrence(&episodes)?;
        let known = samples.first().map_or(f64::INFINITY, |first| first.at);
        let spans: Vec<_> = episodes
            .iter()
            .map(span)
            .filter(|(start, _)| *start >= known)
            .collect();
        let silent = |span: &&(f64, f64)| unanswered(samples, &[**span]) > 0;
        let silent = spans.iter().filter(silent).count();
        Some(RecurringStall {
            server: server.map(Into::into),
            recurrence,
            counter: moved(samples, &spans).into_iter().next(),
            is_unanswered: silent * 2 > spans.len(),
        })
    }
}

/// The shapes of which operations took longer than is usual during an episode, by their number.
fn waiting(episode: &Episode, now: u64, history: &History) -> Vec<WaitingShape> {
    let begins = Duration::try_from_secs_f64(episode.started_at).unwrap_or_default();
    let period = history.period(begins.as_secs(), now);
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
