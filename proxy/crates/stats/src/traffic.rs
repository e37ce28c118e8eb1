//! Counts of client connections and logins, and the names of short-lived clients.

use std::{cmp::Reverse, collections::HashMap, net::IpAddr, time::Duration};

/// A client connection is short-lived if it ended within this time after Seawall accepted it.
const SHORT_LIFE: Duration = Duration::from_secs(10);

/// Maximum number of different names counted in one [`Names`]. All further names are counted as
/// [`OTHERS`].
const NAMES: usize = 64;

/// The name under which names beyond the limit are counted.
const OTHERS: &str = "other";

/// Counts of connections and logins in a period. Clients connect and log in to Seawall, and Seawall
/// connects and logs in to servers.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    /// Number of accepted client connections.
    pub arrivals: u64,
    /// Short-lived client connections by how they ended, in the order of [`Departure::ALL`].
    pub departures: [u64; Departure::ALL.len()],
    /// Short-lived connections that ended as [`Departure::GaveUp`], by [`Stage`].
    pub gave_up_in: HashMap<&'static str, u64>,
    /// Source networks of short-lived client connections: /24 for IPv4, /64 for IPv6.
    pub networks: Names,
    /// Application names in the client metadata of short-lived client connections.
    pub applications: Names,
    /// Driver names and versions in the client metadata of short-lived client connections.
    pub drivers: Names,
    /// Users that logged in on short-lived client connections, as `source.name`. `source` is the
    /// authentication database.
    pub users: Names,
    /// Number of logins of clients. The logins of relayed clients at servers are included.
    pub client_authentications: u64,
    /// Number of server connections established.
    pub server_connections: u64,
    /// Number of logins of Seawall and of relayed clients at servers.
    pub server_authentications: u64,
    /// Number of client connections that Seawall refused.
    pub refusals: u64,
    /// Number of operations that Seawall refused.
    pub shed_operations: u64,
}

impl Traffic {
    /// Counts a client connection that ended, if it was short-lived.
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

    /// Number of short-lived client connections.
    pub fn short_lived(&self) -> u64 {
        self.departures.iter().sum()
    }

    /// Adds the counts of a later period.
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
        self.refusals += later.refusals;
        self.shed_operations += later.shed_operations;
    }
}

/// The progress of a client at the moment when its connection ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The client had received no reply.
    #[default]
    Connected,
    /// The client had received the reply to its `hello`.
    Greeted,
    /// The client was logging in.
    LoggingIn,
    /// The client had logged in and was not waiting for a reply.
    Ready,
    /// The client was waiting for the reply to an operation.
    Operation,
}

impl Stage {
    /// The label value in metrics and in the API.
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
    /// The client closed the connection while it was ready for operations, and none was in
    /// progress.
    Clean,
    /// The client closed the connection before it was ready for operations, or during an operation,
    /// for example after its own timeout.
    GaveUp,
    /// The client, or the network, reset the connection.
    Reset,
    /// Seawall closed the connection.
    Closed,
}

impl Departure {
    /// All ways in which a client connection can end.
    pub const ALL: [Self; 4] = [Self::Clean, Self::GaveUp, Self::Reset, Self::Closed];

    /// The label value in metrics and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::GaveUp => "gave_up",
            Self::Reset => "reset",
            Self::Closed => "closed",
        }
    }
}

/// A client connection that has just ended.
#[derive(Clone, Copy, Debug)]
pub struct Leaving<'a> {
    /// The time for which the connection was open: from `accept` to its end.
    pub age: Duration,
    /// The client's address; `None` on a Unix socket.
    pub ip: Option<IpAddr>,
    /// The application name in the client metadata.
    pub application: Option<&'a str>,
    /// The driver's name and version in the client metadata.
    pub driver: Option<&'a str>,
    /// The user as `source.name`, if the client had logged in.
    pub user: Option<&'a str>,
    /// The client's progress when the connection ended.
    pub stage: Stage,
    /// How the connection ended.
    pub how: Departure,
}

/// Counts by name. At most 64 names are counted separately. All further names are counted together
/// as `other`.
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

    /// Adds the counts of a later period. Frequent names are added first. Once the limit is
    /// reached, a new name replaces the name with the lowest count, but only if the count of the
    /// new name is higher. A large number of rare names therefore does not hide a later, frequent
    /// name in `other`.
    fn merge(&mut self, later: &Self) {
        let ranked = later.ranked();
        // `add` counts a new name separately only while there are fewer than `NAMES` entries. So
        // the count of `other` is added last: if it were added earlier, its entry would take the
        // place of a name.
        let (others, named): (Vec<_>, Vec<_>) = ranked.into_iter().partition(|of| of.0 == OTHERS);
        for (name, count) in named {
            let is_full = self.0.len() >= NAMES && !self.0.contains_key(name);
            let lightest = is_full.then(|| self.lightest()).flatten();
            match lightest.filter(|(_, least)| *least < count) {
                Some((lightest, least)) => {
                    self.0.remove(&lightest);
                    self.0.insert(name.into(), count);
                    self.add(OTHERS, least);
                }
                None => self.add(name, count),
            }
        }
        for (name, count) in others {
            self.add(name, count);
        }
    }

    /// The name with the lowest count, except `other`, and its count. If several names have the
    /// lowest count, returns the last of them in alphabetical order.
    fn lightest(&self) -> Option<(Box<str>, u64)> {
        let named = self.0.iter().filter(|(name, _)| &***name != OTHERS);
        let lightest = named.min_by_key(|(name, count)| (**count, Reverse(*name)));
        lightest.map(|(name, count)| (name.clone(), *count))
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

/// The source network of an address as text; `unix` if there is no address.
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
    fn names_beyond_the_limit_are_counted_as_other() {
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
    fn merge_keeps_the_most_frequent_names_when_the_limit_is_reached() {
        let mut all = Names::default();
        (1..NAMES).for_each(|n| all.add(&n.to_string(), 1));
        let mut later = Names::default();
        later.add("a", 1);
        later.add("b", 9);
        later.add("c", 2);
        all.merge(&later);
        assert_eq!(all.ranked()[..3], [("b", 9), ("c", 2), (OTHERS, 2)]);
        assert_eq!(all.ranked().len(), NAMES + 1);
        // `merge` adds `other` last, so that its entry does not take the place of a name.
        let mut again = Names::default();
        again.merge(&all);
        assert_eq!(again.ranked(), all.ranked());
    }

    /// Clients choose the names of their applications. So a client can send many names before
    /// another application connects.
    #[test]
    fn a_frequent_name_is_counted_separately_even_if_many_rare_names_came_first() {
        let mut all = Names::default();
        for second in 0..3 {
            let mut later = Names::default();
            if second > 0 {
                later.add("shop", 50);
            }
            (0..NAMES).for_each(|n| later.add(&format!("invented {second} {n}"), 1));
            all.merge(&later);
        }
        let ranked = all.ranked();
        assert!(ranked.contains(&("shop", 100)), "{ranked:?}");
        assert_eq!(ranked.len(), NAMES + 1);
        let sum: u64 = ranked.iter().map(|(_, count)| count).sum();
        assert_eq!(sum, 3 * u64::try_from(NAMES).unwrap() + 100);
    }

    #[test]
    fn only_connections_that_end_within_10_s_count_as_short_lived() {
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
