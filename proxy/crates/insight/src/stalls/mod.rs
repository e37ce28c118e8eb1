//! Stalls of servers: which operations waited, at which interval stalls recur, and which server
//! counters had unusual values during a stall.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::tiers::Selection;
use seawall_stats::{Figures, Label, Period, ServerSample};

mod detector;
mod moved;
mod recurrence;
mod samples;

pub use self::{detector::Episode, moved::Moved, recurrence::Recurrence};
use self::{
    detector::{EndedOperations, StallDetector},
    moved::{Sample, moved, without_reply},
    recurrence::{Ends, recurrence},
    samples::Samples,
};

/// Maximum number of stalls kept per server. At this limit, a new stall replaces the oldest.
const REMEMBERED: usize = 200;

/// Maximum number of shapes listed per stall.
const SHAPES: usize = 5;

/// Maximum number of servers that are watched or have kept stalls. At this limit, a new server
/// replaces the server that has been out of use for the longest time (see [`UNUSED_AFTER`]).
const WATCHED: usize = 100;

/// A shape whose operations waited during a stall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingShape {
    /// The label of the shape.
    pub label: Arc<Label>,
    /// Number of the shape's operations that took more than twice the usual time.
    pub operations: u64,
}

/// One stall of a server, or of the whole deployment.
#[derive(Clone, Debug)]
pub struct Stall {
    /// The stalled server. `None` in two cases: the stall affected the whole deployment, or it
    /// delayed operations for which no server had been selected yet.
    pub server: Option<Box<str>>,
    /// Start, length and severity of the stall.
    pub episode: Episode,
    /// The shapes with the most waiting operations, in descending order.
    pub shapes: Vec<WaitingShape>,
    /// Counters of the server that changed significantly during the stall.
    pub moved: Vec<Moved>,
    /// Number of requests for the server's counters that got no reply during the stall.
    pub without_reply: usize,
}

/// Stalls that recur at a regular interval.
#[derive(Clone, Debug)]
pub struct RecurringStall {
    /// The stalled server; `None` in the same cases as for [`Stall::server`].
    pub server: Option<Box<str>>,
    /// The interval and the length of the stalls.
    pub recurrence: Recurrence,
    /// The counter that changes most during these stalls; `None` if no counter changes
    /// significantly, or if `lacks_replies` is true.
    pub counter: Option<Moved>,
    /// True if in most of the server's stalls at least one request for a sample of its counters got
    /// no reply.
    pub lacks_replies: bool,
}

/// A server is out of use after this many seconds in which none of its operations ended. Its usual
/// values are then forgotten. Its stalls are kept.
const UNUSED_AFTER: u64 = 3_600;

/// A period includes the present if it ended at most this long ago. Time passes between a request
/// for a period that ends now and the search for its stalls.
const PRESENT_SECONDS: f64 = 60.0;

/// The stalls of one server, or of all operations together.
#[derive(Default)]
struct Watched {
    detector: StallDetector,
    /// The kept stalls, the earliest first.
    stalls: VecDeque<Stall>,
    /// Start of the last second in which an operation on the server ended, in seconds since the
    /// epoch.
    seen_at: u64,
}

/// A function that selects the history between two times.
type Select<'a> = &'a dyn Fn(u64, u64) -> Selection;

/// A stall that has ended: its server (`None` for the deployment), its start and its end.
type EndedStall = (Option<Box<str>>, SystemTime, SystemTime);

/// The detectors of stalls: one per server, and one for all operations together.
#[derive(Default)]
pub(super) struct Stalls {
    all: Watched,
    servers: HashMap<Box<str>, Watched>,
    samples: Samples,
}

impl Stalls {
    /// Adds the second that began at `start`. The history must already contain this second. `all`
    /// has the figures of all operations together, and `second` has the figures of each server.
    /// `samples` has the servers' samples since the last call, by address. Returns the stalls that
    /// ended in this second: the server (`None` for the deployment), the start and the end.
    pub(super) fn second(
        &mut self,
        start: u64,
        all: &Figures,
        second: &Period,
        samples: Vec<(Box<str>, Vec<ServerSample>)>,
        select: Select<'_>,
    ) -> Vec<EndedStall> {
        let none = Figures::default();
        let now = UNIX_EPOCH + Duration::from_secs(start + 1);
        self.samples.add(samples, now);
        let mut ended = Vec::new();
        ended.extend(self.all.second(start, all, None, &Vec::new, select));
        self.servers.retain(|_, watched| {
            let is_in_use = watched.is_in_use(start);
            if !is_in_use {
                watched.detector = StallDetector::default();
            }
            is_in_use || !watched.stalls.is_empty()
        });
        for label in second.series.keys() {
            let Label::Server(address) = &**label else {
                continue;
            };
            self.mark_seen(address, start);
        }
        for (address, watched) in &mut self.servers {
            let figures = second.series.get(&Label::Server(address.clone()));
            let server = Some(&**address);
            let samples = || self.samples.of(address, now);
            ended.extend(watched.second(start, figures.unwrap_or(&none), server, &samples, select));
        }
        ended
    }

    /// Marks a server as in use. A new server is watched only if the limit [`WATCHED`] allows it.
    fn mark_seen(&mut self, address: &str, start: u64) {
        if let Some(watched) = self.servers.get_mut(address) {
            watched.seen_at = start;
            return;
        }
        if self.servers.len() >= WATCHED {
            self.drop_longest_unused(start);
        }
        if self.servers.len() < WATCHED {
            let watched = self.servers.entry(address.into());
            watched.or_default().seen_at = start;
        }
    }

    /// Drops the server that has been out of use for the longest time, if there is one.
    fn drop_longest_unused(&mut self, start: u64) {
        let servers = self.servers.iter();
        let unused = servers.filter(|(_, watched)| !watched.is_in_use(start));
        let longest = unused.min_by_key(|(_, watched)| watched.seen_at);
        if let Some(address) = longest.map(|(address, _)| address.clone()) {
            self.servers.remove(&address);
        }
    }

    /// Drops the stalls that ended after `start`, because the clock was set back to this second.
    /// The detectors learn the usual values again.
    pub(super) fn rewind(&mut self, start: u64) {
        let now = float_seconds(UNIX_EPOCH + Duration::from_secs(start));
        for watched in self.servers.values_mut().chain([&mut self.all]) {
            watched.stalls.retain(|stall| span(&stall.episode).1 <= now);
            watched.detector = StallDetector::default();
            watched.seen_at = watched.seen_at.min(start);
        }
        self.samples = Samples::default();
    }

    /// The kept stalls that overlap with `period` (its start and its end), the latest first;
    /// without a period, all kept stalls. Also returns the best series of recurring stalls of each
    /// server. If no server has a series that still recurs, the series of the whole deployment can
    /// be added. Only series with a stall in the period are returned, and series that still recur
    /// if the period includes the present. Stalls that began after the period are ignored.
    pub(super) fn list(
        &self,
        now: SystemTime,
        period: Option<(SystemTime, SystemTime)>,
    ) -> (Vec<Stall>, Vec<RecurringStall>) {
        let period = period.map(|(from, to)| (float_seconds(from), float_seconds(to)));
        let (from, to) = period.unwrap_or((0.0, f64::INFINITY));
        let (mut stalls, mut recurring) = (Vec::new(), Vec::new());
        for (address, watched) in &self.servers {
            stalls.extend(watched.stalls.iter().cloned());
            let samples = || self.samples.of(address, now);
            recurring.extend(watched.recurring(Some(address), &samples, (from, to), now));
        }
        let everywhere: Vec<_> = (self.all.stalls.iter())
            .filter(|stall| stall.episode.started_at < to)
            .filter(|stall| is_deployment_wide(stall, stalls.iter()))
            .cloned()
            .collect();
        if !everywhere.is_empty() && recurring.iter().all(|of| !of.recurrence.is_current) {
            let is_only = recurring.is_empty();
            let all = self.all.recurring(None, &Vec::new, (from, to), now);
            recurring.extend(all.filter(|all| all.recurrence.is_current || is_only));
        }
        stalls.extend(everywhere);
        stalls.retain(|stall| {
            let (start, end) = span(&stall.episode);
            start < to && end >= from
        });
        stalls.sort_by(|a, b| b.episode.started_at.total_cmp(&a.episode.started_at));
        recurring.sort_by(|a, b| {
            let key = |of: &RecurringStall| (of.recurrence.is_current, of.recurrence.last_at);
            let ((a_current, a_last), (b_current, b_last)) = (key(a), key(b));
            (b_current.cmp(&a_current)).then(b_last.total_cmp(&a_last))
        });
        (stalls, recurring)
    }

    /// The number of recurring stalls that [`Self::list`] marks as current: one for each server
    /// with such stalls. If no server has such stalls, but the stalls of all servers together
    /// recur, the number is 1. Takes some milliseconds for each server with many stalls.
    pub(super) fn count_recurring(&self, now: SystemTime) -> usize {
        let now = float_seconds(now);
        let servers = self.servers.values();
        let recurring = servers.clone().filter(|of| of.is_recurring(now)).count();
        if recurring > 0 {
            return recurring;
        }
        let of_servers = servers.flat_map(|of| &of.stalls);
        let mut everywhere = self.all.stalls.iter();
        let is_everywhere = everywhere.any(|stall| is_deployment_wide(stall, of_servers.clone()));
        usize::from(is_everywhere && self.all.is_recurring(now))
    }
}

/// True if `stall`, which was detected in the figures of all operations together, is more than the
/// stall of one server. False if exactly one server stalled at the same time. If no server stalled,
/// the result is true: the cause affects all servers, or delays operations for which no server has
/// been selected yet.
fn is_deployment_wide<'a>(stall: &Stall, of_servers: impl Iterator<Item = &'a Stall>) -> bool {
    let others = of_servers.filter(|other| overlap(other, stall));
    let servers: HashSet<_> = others.map(|other| other.server.as_deref()).collect();
    servers.len() != 1
}

fn overlap(a: &Stall, b: &Stall) -> bool {
    let ((a_start, a_end), (b_start, b_end)) = (span(&a.episode), span(&b.episode));
    a_start < b_end && b_start < a_end
}

fn span(episode: &Episode) -> (f64, f64) {
    let start = episode.started_at;
    (start, start + episode.length.as_secs_f64())
}

fn float_seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

impl Watched {
    fn is_in_use(&self, start: u64) -> bool {
        self.seen_at + UNUSED_AFTER > start
    }

    fn second(
        &mut self,
        start: u64,
        figures: &Figures,
        server: Option<&str>,
        samples: &dyn Fn() -> Vec<Sample>,
        select: Select<'_>,
    ) -> Option<EndedStall> {
        let beat = EndedOperations {
            durations: figures.durations.clone(),
            phases: figures.phases,
            at: start + 1,
        };
        let episode = self.detector.second(&beat)?;
        // The samples of the stall are dropped ten minutes later, so the counters are compared as
        // soon as the stall has ended.
        let samples = samples();
        let span = span(&episode);
        self.stalls.push_back(Stall {
            server: server.map(Into::into),
            moved: moved(&samples, &[span]),
            without_reply: without_reply(&samples, &[span]),
            shapes: waiting(&episode, start + 1, select),
            episode,
        });
        if self.stalls.len() > REMEMBERED {
            self.stalls.pop_front();
        }
        let time = |seconds| UNIX_EPOCH + Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Some((server.map(Into::into), time(span.0), time(span.1)))
    }

    /// True if stalls recur at `now` (in seconds since the epoch).
    fn is_recurring(&self, now: f64) -> bool {
        let episodes: Vec<_> = self.stalls.iter().map(|s| s.episode.clone()).collect();
        recurrence(&episodes, Ends::ANY, now).is_some_and(|of| of.is_current)
    }

    /// The best series of recurring stalls with a stall in the period from `from` until `to`, both
    /// in seconds since the epoch. If the period includes the present, a series that still recurs
    /// needs no stall in the period. Only stalls that began before `to` are examined.
    fn recurring(
        &self,
        server: Option<&str>,
        samples: &dyn Fn() -> Vec<Sample>,
        (from, to): (f64, f64),
        now: SystemTime,
    ) -> Option<RecurringStall> {
        let stalls = self.stalls.iter();
        let stalls: Vec<_> = stalls.filter(|s| s.episode.started_at < to).collect();
        let episodes: Vec<_> = stalls.iter().map(|s| s.episode.clone()).collect();
        let now = float_seconds(now);
        let ends = Ends {
            from,
            or_is_current: to > now - PRESENT_SECONDS,
        };
        let recurrence = recurrence(&episodes, ends, now)?;
        let silent = stalls.iter().filter(|stall| stall.without_reply > 0);
        let lacks_replies = silent.count() * 2 > stalls.len();
        // The counters are compared over all stalls that still have samples, because several stalls
        // give a clearer result than one. If this comparison finds no counter, `last` takes the
        // counter of the latest stall that has one.
        let samples = samples();
        let known = samples.first().map_or(f64::INFINITY, |first| first.at);
        let spans = episodes.iter().map(span);
        let spans: Vec<_> = spans.filter(|(start, _)| *start >= known).collect();
        let together = moved(&samples, &spans).into_iter().next();
        let last = || {
            let mut latest_first = stalls.iter().rev();
            latest_first.find_map(|stall| stall.moved.first().cloned())
        };
        Some(RecurringStall {
            server: server.map(Into::into),
            recurrence,
            counter: together.or_else(last).filter(|_| !lacks_replies),
            lacks_replies,
        })
    }
}

/// The shapes with operations that took more than twice the usual time (see [`Episode::usual`])
/// during an episode. The shape with the most such operations is first.
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

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_stats::Phase;

    fn stall(server: Option<&str>, started_at: f64, length: u64) -> Stall {
        let length = Duration::from_secs(length);
        Stall {
            server: server.map(Into::into),
            episode: Episode {
                started_at,
                length,
                operations: 100,
                waited: Duration::from_secs(100),
                phase: Phase::Server,
                usual: Duration::from_millis(5),
                worst: length,
            },
            shapes: Vec::new(),
            moved: Vec::new(),
            without_reply: 0,
        }
    }

    fn watched(server: Option<&str>, spans: &[(f64, u64)]) -> Watched {
        let stalls = spans.iter().map(|(at, length)| stall(server, *at, *length));
        Watched {
            stalls: stalls.collect(),
            ..Watched::default()
        }
    }

    /// The detectors with given stalls of each server, and of all operations together.
    fn stalls(servers: &[(&str, &[(f64, u64)])], all: &[(f64, u64)]) -> Stalls {
        let servers = servers
            .iter()
            .map(|(name, spans)| ((*name).into(), watched(Some(name), spans)));
        Stalls {
            all: watched(None, all),
            servers: servers.collect(),
            samples: Samples::default(),
        }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn listed(
        stalls: &Stalls,
        now: u64,
        period: Option<(u64, u64)>,
    ) -> Vec<(Option<Box<str>>, f64)> {
        let (listed, _) = stalls.list(at(now), period.map(|(from, to)| (at(from), at(to))));
        let listed = listed.into_iter();
        listed
            .map(|stall| (stall.server, stall.episode.started_at))
            .collect()
    }

    #[test]
    fn when_the_clock_is_set_back_the_stalls_after_the_new_time_are_dropped() {
        let mut stalls = Stalls::default();
        stalls.all.stalls = [10.0, 100.0, 190.0].map(|at| stall(None, at, 5)).into();
        stalls.rewind(150);
        let starts = stalls.all.stalls.iter().map(|of| of.episode.started_at);
        assert_eq!(starts.collect::<Vec<_>>(), [10.0, 100.0]);
    }

    #[test]
    fn stalls_of_a_single_server_are_not_deployment_wide() {
        let one = stalls(&[("a", &[(100.0, 3), (105.0, 3)])], &[(100.0, 8)]);
        let of_a = [(Some("a".into()), 105.0), (Some("a".into()), 100.0)];
        assert_eq!(listed(&one, 200, None), of_a);
        let both = stalls(&[("a", &[(100.0, 3)]), ("b", &[(101.0, 3)])], &[(100.0, 4)]);
        assert!(listed(&both, 200, None).contains(&(None, 100.0)));
        let none = stalls(&[("a", &[])], &[(100.0, 4)]);
        assert_eq!(listed(&none, 200, None), [(None, 100.0)]);
    }

    #[test]
    fn all_stalls_that_overlap_with_a_period_are_listed_for_this_period() {
        let all = stalls(&[("a", &[(100.0, 3), (200.0, 3), (300.0, 3)])], &[]);
        assert_eq!(listed(&all, 310, None).len(), 3);
        for (period, starts, recurring) in [
            ((202, 310), &[300.0, 200.0][..], 1),
            ((102, 301), &[300.0, 200.0, 100.0], 1),
            ((102, 201), &[200.0, 100.0], 0),
            ((104, 200), &[], 0),
            // The stalls still recur, and the period includes the present.
            ((304, 310), &[], 1),
            ((304, 305), &[], 1),
            ((0, 100), &[], 0),
        ] {
            let found = listed(&all, 310, Some(period)).into_iter();
            let found: Vec<_> = found.map(|(_, start)| start).collect();
            assert_eq!(found, starts, "{period:?}");
            let (from, to) = period;
            let (_, found) = all.list(at(310), Some((at(from), at(to))));
            assert_eq!(found.len(), recurring, "{period:?}");
        }
        assert_eq!(all.list(at(310), None).1.len(), 1);
    }

    #[test]
    fn recurring_stalls_of_a_past_period_are_found_even_if_the_stalls_recur_again_now() {
        let both: &[(f64, u64)] = &[
            (100.0, 3),
            (160.0, 3),
            (220.0, 3),
            (90_000.0, 3),
            (90_060.0, 3),
            (90_120.0, 3),
            (90_180.0, 3),
        ];
        let of_a_server = stalls(&[("a", both)], &[]);
        let everywhere = stalls(&[("a", &[])], both);
        for stalls in [of_a_server, everywhere] {
            for (from, to, expected) in [
                (0, 1_000, Some((220.0, false))),
                (1_000, 80_000, None),
                (80_000, 90_190, Some((90_180.0, true))),
                // The latest stall of the series is in the period; the others are before it.
                (90_150, 90_190, Some((90_180.0, true))),
            ] {
                let (_, found) = stalls.list(at(90_190), Some((at(from), at(to))));
                let found = found.iter().map(|of| &of.recurrence);
                let found: Vec<_> = found.map(|of| (of.last_at, of.is_current)).collect();
                assert_eq!(found, Vec::from_iter(expected), "from {from} until {to}");
            }
        }
    }

    #[test]
    fn a_stall_that_has_stopped_recurring_is_not_marked_as_current() {
        let all = stalls(&[("a", &[(100.0, 3), (160.0, 3), (220.0, 3)])], &[]);
        let is_current = |now| {
            let (_, recurring) = all.list(at(now), None);
            recurring[0].recurrence.is_current
        };
        assert_eq!(
            [225, 400, 410, 4_000].map(is_current),
            [true, true, false, false]
        );
    }

    #[test]
    fn the_count_of_recurring_stalls_equals_the_number_of_stalls_that_are_listed_as_current() {
        let three: &[(f64, u64)] = &[(100.0, 3), (160.0, 3), (220.0, 3)];
        let later: &[(f64, u64)] = &[(1_110.0, 3), (1_170.0, 3), (1_230.0, 3)];
        let single: &[(f64, u64)] = &[(160.0, 3)];
        let none = stalls(&[("a", &[])], &[]);
        let one = stalls(&[("a", three), ("b", single)], three);
        let both = stalls(&[("a", three), ("b", three)], three);
        let everywhere = stalls(&[("a", &[])], three);
        let after = stalls(&[("a", three), ("b", &[])], later);
        for (stalls, now, expected) in [
            (&none, 225, 0),
            (&one, 225, 1),
            (&one, 400, 1),
            (&one, 410, 0),
            (&both, 225, 2),
            (&everywhere, 225, 1),
            (&everywhere, 410, 0),
            (&after, 1_235, 1),
        ] {
            let (_, listed) = stalls.list(at(now), None);
            let listed = listed.iter().filter(|of| of.recurrence.is_current).count();
            assert_eq!(stalls.count_recurring(at(now)), listed, "at {now}");
            assert_eq!(listed, expected, "at {now}");
        }
    }

    /// Adds a second in which one operation ended on each of the servers.
    fn add_second(stalls: &mut Stalls, start: u64, servers: &[String]) {
        let mut figures = Figures {
            count: 1,
            ..Figures::default()
        };
        figures.durations.record(Duration::from_millis(3));
        let series = servers.iter().map(|address| {
            let label = Label::Server(address.as_str().into());
            (Arc::new(label), figures.clone())
        });
        let second = Period {
            length: Duration::from_secs(1),
            series: series.collect(),
        };
        let select = |_: u64, _: u64| Selection::default();
        stalls.second(start, &Figures::default(), &second, Vec::new(), &select);
    }

    fn add_a_stall_of_each_server(stalls: &mut Stalls) {
        for (address, watched) in &mut stalls.servers {
            watched.stalls.push_back(stall(Some(address), 900.0, 3));
        }
    }

    #[test]
    fn servers_in_use_keep_their_stalls_even_if_the_maximum_number_of_servers_is_watched() {
        let servers: Vec<_> = (0..WATCHED).map(|n| format!("server{n}")).collect();
        let mut stalls = Stalls::default();
        add_second(&mut stalls, 1_000, &servers);
        add_a_stall_of_each_server(&mut stalls);
        for start in [4_000, 7_000, 10_000] {
            add_second(&mut stalls, start, &servers);
        }
        assert_eq!(listed(&stalls, 10_000, None).len(), WATCHED);
    }

    /// The server also seems to have no operations for an hour if the clock jumps forward by more
    /// than an hour. Its stalls must still be kept when the clock is set back later.
    #[test]
    fn a_server_without_operations_for_an_hour_keeps_its_stalls_but_not_its_usual_values() {
        let mut stalls = Stalls::default();
        for start in 1_000..1_030 {
            add_second(&mut stalls, start, &["a".to_owned()]);
        }
        add_a_stall_of_each_server(&mut stalls);
        assert!(!stalls.servers["a"].detector.is_learning());
        add_second(&mut stalls, 1_029 + UNUSED_AFTER, &[]);
        assert_eq!(listed(&stalls, 5_000, None), [(Some("a".into()), 900.0)]);
        assert!(stalls.servers["a"].detector.is_learning());
        stalls.rewind(1_030);
        assert_eq!(listed(&stalls, 1_030, None).len(), 1);
    }

    #[test]
    fn at_the_maximum_number_of_servers_a_new_server_replaces_the_longest_unused_server() {
        let mut stalls = Stalls::default();
        for start in 1_000..1_100 {
            add_second(&mut stalls, start, &[format!("server{start}")]);
        }
        add_a_stall_of_each_server(&mut stalls);
        let new = ["new".to_owned()];
        add_second(&mut stalls, 1_100, &new);
        assert!(!stalls.servers.contains_key("new"));
        add_second(&mut stalls, 5_000, &new);
        assert!(stalls.servers.contains_key("new"));
        assert!(!stalls.servers.contains_key("server1000"));
        assert_eq!(stalls.servers.len(), WATCHED);
    }
}
