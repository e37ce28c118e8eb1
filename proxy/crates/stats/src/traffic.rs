//! Client connections that came and left, and logins, with the names of short-lived clients.

use std::{collections::HashMap, net::IpAddr, time::Duration};

/// A connection that ended within this time was short-lived.
const SHORT_LIFE: Duration = Duration::from_secs(10);

/// Maximum number of names of each kind that are distinguished; the rest are counted together.
const NAMES: usize = 64;

/// The name that counts all names beyond the limit.
const OTHERS: &str = "other";

/// The connections and logins of a period: those of clients, and Seawall's own at the servers.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Client connections accepted.
    pub arrivals: u64,
    /// Number of short-lived client connections by departure, in the order of [`Departure::ALL`].
    pub departures: [u64; Departure::ALL.len()],
    /// Number of short-lived client connections that gave up, by stage.
    pub gave_up_in: HashMap<&'static str, u64>,
    /// Source networks of short-lived client connections: /24 and /64.
    pub networks: Names,
    /// Application names of their client metadata.
    pub applications: Names,
    /// Driver names and versions of their client metadata.
    pub drivers: Names,
    /// Users as `source.name`, of those that had logged in.
    pub users: Names,
    /// Logins of clients.
    pub client_authentications: u64,
    /// Server connections established.
    pub server_connections: u64,
    /// Logins of Seawall at servers.
    pub server_authentications: u64,
}

impl Traffic {
    /// Adds a client that left, if its connection was short-lived.
    pub fn add_departure(&mut self, leaving: &Leaving<'_>) {
        if leaving.age > SHORT_LIFE {
            return;
        }
        for (count, how) in self.departures.iter_mut().zip(Departure::ALL) {
            *count += u64::from(how == leaving.how);
        }
        if leaving.how == Departure::GaveUp {
            *self.gave_up_in.entry(leaving.stage.as_str()).or_default() += 1;
        }
        self.networks.add(&network(leaving.ip), 1);
        let names = [
            (&mut self.applications, leaving.application),
            (&mut self.drivers, leaving.driver),
            (&mut self.users, leaving.user),
        ];
        for (names, name) in names {
            if let Some(name) = name {
                names.add(name, 1);
            }
        }
    }

    /// Number of client connections that ended soon after they were accepted.
    pub fn short_lived(&self) -> u64 {
        self.departures.iter().sum()
    }

    /// Adds the traffic of a later period.
    pub fn merge(&mut self, later: &Self) {
        self.arrivals += later.arrivals;
        let pairs = self.departures.iter_mut().zip(later.departures);
        pairs.for_each(|(mine, theirs)| *mine += theirs);
        for (stage, count) in &later.gave_up_in {
            *self.gave_up_in.entry(stage).or_default() += count;
        }
        self.networks.merge(&later.networks);
        self.applications.merge(&later.applications);
        self.drivers.merge(&later.drivers);
        self.users.merge(&later.users);
        self.client_authentications += later.client_authentications;
        self.server_connections += later.server_connections;
        self.server_authentications += later.server_authentications;
    }
}

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
pub struct Leaving<'a> {
    /// Time since it was accepted.
    pub age: Duration,
    /// Its address; `None` on a Unix socket.
    pub ip: Option<IpAddr>,
    /// Its application's name.
    pub application: Option<&'a str>,
    /// Its driver's name and version.
    pub driver: Option<&'a str>,
    /// Its user as `source.name`, if it had logged in.
    pub user: Option<&'a str>,
    /// How far it had come.
    pub stage: Stage,
    /// How its connection ended.
    pub how: Departure,
}

/// Counts by name: the first 64 names that came, and all others together.
#[derive(Clone, Debug, Default)]
pub struct Names(HashMap<Box<str>, u64>);

impl Names {
    fn add(&mut self, name: &str, more: u64) {
        if let Some(count) = self.0.get_mut(name) {
            *count += more;
            return;
        }
        let name = if self.0.len() < NAMES { name } else { OTHERS };
        *self.0.entry(name.into()).or_default() += more;
    }

    /// Adds the counts of later names. The most frequent ones come first, since there may be no
    /// room for all.
    fn merge(&mut self, later: &Self) {
        let ranked = later.ranked();
        // There are others only if the limit is reached, so they take no name's room.
        let (others, named): (Vec<_>, Vec<_>) = ranked.into_iter().partition(|of| of.0 == OTHERS);
        for (name, count) in named.into_iter().chain(others) {
            self.add(name, count);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_within_their_limit() {
        let mut names = Names::default();
        for n in 0..1000 {
            names.add(&n.to_string(), 1);
        }
        let ranked = names.ranked();
        assert_eq!(ranked.len(), NAMES + 1);
        let named = u64::try_from(NAMES).unwrap();
        assert_eq!(ranked.first(), Some(&(OTHERS, 1000 - named)));
    }

    #[test]
    fn the_most_frequent_names_of_a_merge_get_the_room_that_is_left() {
        let mut all = Names::default();
        (1..NAMES).for_each(|n| all.add(&n.to_string(), 1));
        let mut later = Names::default();
        later.add("a", 1);
        later.add("b", 9);
        later.add("c", 2);
        all.merge(&later);
        assert_eq!(all.ranked()[..2], [("b", 9), (OTHERS, 3)]);
        assert_eq!(all.ranked().len(), NAMES + 1);
        // Others take no name's room.
        let mut again = Names::default();
        again.merge(&all);
        assert_eq!(again.ranked(), all.ranked());
    }

    #[test]
    fn long_lived_connections_are_not_counted_as_departures() {
        let mut traffic = Traffic::default();
        let leaving = Leaving {
            age: SHORT_LIFE,
            ip: None,
            application: None,
            driver: None,
            user: None,
            stage: Stage::Ready,
            how: Departure::Clean,
        };
        traffic.add_departure(&leaving);
        traffic.add_departure(&Leaving {
            age: SHORT_LIFE * 2,
            ..leaving
        });
        assert_eq!(traffic.short_lived(), 1);
    }
}
