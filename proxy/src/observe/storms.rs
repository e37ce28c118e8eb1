//! Client storms: when they happened, which clients came, how they left, and what the servers did
//! not see of it.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use crate::history::{Second, StormDetector, Turn};

/// A connection that ended within this time was short-lived.
const SHORT_LIFE: Duration = Duration::from_secs(10);

/// Maximum number of past storms that are remembered.
const REMEMBERED: usize = 100;

/// Maximum number of names of each kind that are distinguished in a storm; the rest are counted
/// together.
const NAMES: usize = 64;

/// The name that counts all names beyond the limit.
const OTHERS: &str = "other";

/// How far a client had come when it left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It had received no reply.
    #[default]
    Connected,
    /// It had received the reply to its `hello`.
    Greeted,
    /// It was logging in.
    LoggingIn,
    /// It had logged in, and waited for no reply.
    Ready,
    /// It waited for the reply to an operation.
    Operation,
}

impl Stage {
    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Greeted => "greeted",
            Self::LoggingIn => "logging_in",
            Self::Ready => "ready",
            Self::Operation => "operation",
        }
    }
}

/// How a client connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The client closed it while it waited for nothing.
    Clean,
    /// The client closed it while it waited for a reply, for example after its own timeout.
    GaveUp,
    /// The client's side reset the connection.
    Reset,
    /// Seawall closed it.
    Closed,
}

impl Departure {
    /// All departures.
    pub const ALL: [Self; 4] = [Self::Clean, Self::GaveUp, Self::Reset, Self::Closed];

    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::GaveUp => "gave_up",
            Self::Reset => "reset",
            Self::Closed => "closed",
        }
    }
}

/// A client that left, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving<'a> {
    pub(super) age: Duration,
    pub(super) ip: Option<IpAddr>,
    pub(super) application: Option<&'a str>,
    pub(super) driver: Option<&'a str>,
    pub(super) user: Option<&'a str>,
    pub(super) stage: Stage,
    pub(super) how: Departure,
}

/// Counts that only rise; a storm's part is the difference of two readings.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) server_connections: AtomicU64,
    pub(super) server_authentications: AtomicU64,
    pub(super) client_authentications: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    server_connections: u64,
    server_authentications: u64,
    client_authentications: u64,
}

impl Totals {
    fn read(&self) -> Reading {
        let read = |total: &AtomicU64| total.load(Ordering::Relaxed);
        Reading {
            server_connections: read(&self.server_connections),
            server_authentications: read(&self.server_authentications),
            client_authentications: read(&self.client_authentications),
        }
    }
}

/// Counts by name: the first 64 names that came, and all others together.
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<Box<str>, u64>);

impl Names {
    fn add(&mut self, name: &str) {
        if let Some(count) = self.0.get_mut(name) {
            *count += 1;
            return;
        }
        let name = if self.0.len() < NAMES { name } else { OTHERS };
        *self.0.entry(name.into()).or_default() += 1;
    }

    /// The names and their counts, the most frequent first.
    pub fn ranked(&self) -> Vec<(&str, u64)> {
        let mut ranked: Vec<_> = self
            .0
            .iter()
            .map(|(name, count)| (&**name, *count))
            .collect();
        ranked.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        ranked
    }
}

/// The connections of a storm: where they came from, and how they ended.
#[derive(Clone, Debug, Default)]
pub struct Crowd {
    /// Connections accepted.
    pub arrivals: u64,
    /// Number of short-lived connections by departure, in the order of [`Departure::ALL`].
    pub departures: [u64; Departure::ALL.len()],
    /// Number of short-lived connections that gave up, by stage.
    pub gave_up_in: HashMap<&'static str, u64>,
    /// Source networks: /24 and /64.
    pub networks: Names,
    /// Application names of the client metadata.
    pub applications: Names,
    /// Driver names and versions of the client metadata.
    pub drivers: Names,
    /// Users as `source.name`, of those that had logged in.
    pub users: Names,
}

impl Crowd {
    fn add(&mut self, leaving: &Leaving<'_>) {
        for (count, how) in self.departures.iter_mut().zip(Departure::ALL) {
            *count += u64::from(how == leaving.how);
        }
        if leaving.how == Departure::GaveUp {
            *self.gave_up_in.entry(leaving.stage.as_str()).or_default() += 1;
        }
        self.networks.add(&network(leaving.ip));
        let names = [
            (&mut self.applications, leaving.application),
            (&mut self.drivers, leaving.driver),
            (&mut self.users, leaving.user),
        ];
        for (names, name) in names {
            if let Some(name) = name {
                names.add(name);
            }
        }
    }
}

/// The network of an address, as text.
fn network(ip: Option<IpAddr>) -> String {
    match ip {
        Some(IpAddr::V4(ip)) => {
            let [a, b, c, _] = ip.octets();
            format!("{a}.{b}.{c}.0/24")
        }
        Some(IpAddr::V6(ip)) => {
            let [a, b, c, d, ..] = ip.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
        None => "unix".to_owned(),
    }
}

/// A storm, current or past.
#[derive(Clone, Debug)]
pub struct Storm {
    /// When it began.
    pub started_at: SystemTime,
    /// When it ended, if it has.
    pub ended_at: Option<SystemTime>,
    /// Most connections accepted in a second.
    pub peak_arrivals: u64,
    /// Usual number of short-lived connections per second before the storm.
    pub usual: f64,
    /// The connections of the storm.
    pub crowd: Crowd,
    /// Logins of clients during the storm.
    pub client_authentications: u64,
    /// Server connections established during the storm.
    pub server_connections: u64,
    /// Logins of Seawall at servers during the storm.
    pub server_authentications: u64,
    at_its_beginning: Reading,
}

impl Storm {
    fn read(&mut self, now: Reading) {
        let then = self.at_its_beginning;
        self.client_authentications = now.client_authentications - then.client_authentications;
        self.server_connections = now.server_connections - then.server_connections;
        self.server_authentications = now.server_authentications - then.server_authentications;
    }

    /// Number of client connections that did not reach the servers.
    pub fn connections_absorbed(&self) -> u64 {
        self.crowd.arrivals.saturating_sub(self.server_connections)
    }

    /// Number of client logins that did not reach the servers.
    pub fn authentications_absorbed(&self) -> u64 {
        self.client_authentications
            .saturating_sub(self.server_authentications)
    }
}

/// Detects storms and remembers them.
#[derive(Debug, Default)]
pub(super) struct Storms {
    detector: StormDetector,
    this_second: Second,
    /// Connections since the first suspicious second; during a storm, the storm has them.
    crowd: Crowd,
    peak_arrivals: u64,
    began: Reading,
    current: Option<Storm>,
    past: VecDeque<Storm>,
}

impl Storms {
    pub(super) fn arrived(&mut self) {
        self.this_second.arrivals += 1;
        self.crowd().arrivals += 1;
    }

    pub(super) fn left(&mut self, leaving: &Leaving<'_>) {
        if leaving.age <= SHORT_LIFE {
            self.this_second.short_lived += 1;
            self.crowd().add(leaving);
        }
    }

    fn crowd(&mut self) -> &mut Crowd {
        match &mut self.current {
            Some(storm) => &mut storm.crowd,
            None => &mut self.crowd,
        }
    }

    /// Ends a second. Returns the storm that began or ended with it, if any.
    pub(super) fn tick(&mut self, totals: &Totals) -> Option<(Turn, Storm)> {
        let second = std::mem::take(&mut self.this_second);
        let (now, usual) = (totals.read(), self.detector.normal());
        let turn = self.detector.second(second);
        self.peak_arrivals = self.peak_arrivals.max(second.arrivals);
        if let Some(storm) = &mut self.current {
            storm.peak_arrivals = storm.peak_arrivals.max(second.arrivals);
            storm.read(now);
        }
        match turn {
            Some(Turn::Began) => {
                let lasted = Duration::from_secs(StormDetector::BEGINS_AFTER.into());
                let mut storm = Storm {
                    started_at: SystemTime::now() - lasted,
                    ended_at: None,
                    peak_arrivals: self.peak_arrivals,
                    usual,
                    crowd: std::mem::take(&mut self.crowd),
                    client_authentications: 0,
                    server_connections: 0,
                    server_authentications: 0,
                    at_its_beginning: self.began,
                };
                storm.read(now);
                self.current = Some(storm.clone());
                Some((Turn::Began, storm))
            }
            Some(Turn::Ended) => {
                let mut storm = self.current.take()?;
                storm.ended_at = Some(SystemTime::now());
                self.past.truncate(REMEMBERED - 1);
                self.past.push_front(storm.clone());
                self.forget_crowd(now);
                Some((Turn::Ended, storm))
            }
            None => {
                // Connections before the first suspicious second do not belong to a storm.
                if self.detector.suspicion() == 0 {
                    self.forget_crowd(now);
                }
                None
            }
        }
    }

    fn forget_crowd(&mut self, now: Reading) {
        self.crowd = Crowd::default();
        self.peak_arrivals = 0;
        self.began = now;
    }

    /// True while too little was seen to detect a storm.
    pub(super) fn is_learning(&self) -> bool {
        self.detector.is_learning()
    }

    /// The current storm, if any, then past storms, the latest first.
    pub(super) fn list(&self) -> Vec<Storm> {
        self.current.iter().chain(&self.past).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving(how: Departure) -> Leaving<'static> {
        Leaving {
            age: Duration::from_millis(100),
            ip: Some([10, 1, 2, 3].into()),
            application: Some("shop"),
            driver: Some("nodejs 6.8"),
            user: None,
            stage: Stage::LoggingIn,
            how,
        }
    }

    #[test]
    fn a_storm_is_reported_with_its_clients_and_what_was_absorbed() {
        let (mut storms, totals) = (Storms::default(), Totals::default());
        for _ in 0..30 {
            assert!(storms.tick(&totals).is_none());
        }
        let mut began = None;
        for second in 0..5 {
            for _ in 0..100 {
                storms.arrived();
                storms.left(&leaving(Departure::GaveUp));
                totals
                    .client_authentications
                    .fetch_add(1, Ordering::Relaxed);
            }
            totals.server_connections.fetch_add(1, Ordering::Relaxed);
            if let Some((Turn::Began, storm)) = storms.tick(&totals) {
                began = Some((second, storm));
            }
        }
        let (second, storm) = began.unwrap();
        assert_eq!(
            (second, storm.peak_arrivals, storm.crowd.arrivals),
            (2, 100, 300)
        );
        let mut ended = None;
        for _ in 0..StormDetector::ENDS_AFTER {
            ended = ended.or(storms.tick(&totals));
        }
        let (turn, storm) = ended.unwrap();
        assert_eq!((turn, storm.ended_at.is_some()), (Turn::Ended, true));
        assert_eq!(storm.crowd.networks.ranked(), [("10.1.2.0/24", 500)]);
        assert_eq!(storm.crowd.applications.ranked(), [("shop", 500)]);
        assert_eq!(storm.crowd.departures, [0, 500, 0, 0]);
        assert_eq!(storm.crowd.gave_up_in.get("logging_in"), Some(&500));
        assert_eq!(
            (
                storm.connections_absorbed(),
                storm.authentications_absorbed()
            ),
            (495, 500)
        );
        assert_eq!(storms.list().len(), 1);
    }

    #[test]
    fn long_lived_connections_are_no_sign_of_a_storm() {
        let (mut storms, totals) = (Storms::default(), Totals::default());
        for _ in 0..60 {
            for _ in 0..1000 {
                storms.arrived();
                storms.left(&Leaving {
                    age: Duration::from_secs(60),
                    ..leaving(Departure::Clean)
                });
            }
            assert!(storms.tick(&totals).is_none());
        }
    }

    #[test]
    fn names_stay_within_their_limit() {
        let mut names = Names::default();
        for n in 0..1000 {
            names.add(&n.to_string());
        }
        let ranked = names.ranked();
        assert_eq!(ranked.len(), NAMES + 1);
        let named = u64::try_from(NAMES).unwrap();
        assert_eq!(ranked.first(), Some(&(OTHERS, 1000 - named)));
    }
}
