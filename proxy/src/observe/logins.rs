//! Counts of connections and logins, and of refused clients and operations.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use seawall_locks::Mutex;
use seawall_stats::Traffic;

/// What Seawall refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RefusalTarget {
    /// A client connection.
    Client,
    /// An operation.
    Operation,
}

/// Numbers of refusals by what was refused and by reason.
pub(crate) type RefusedCounts = BTreeMap<(RefusalTarget, &'static str), u64>;

/// Counts since the last [`LoginCounts::add_to`]. Many tasks add to them. Only the refusals by
/// reason need a lock.
#[derive(Debug, Default)]
pub(super) struct LoginCounts {
    /// Ended logins of clients, with any result.
    pub(super) of_clients: AtomicU64,
    /// Ended logins of Seawall and of relayed clients at servers, with any result.
    pub(super) at_servers: AtomicU64,
    /// Server connections established.
    pub(super) server_connections: AtomicU64,
    /// Client connections refused.
    refusals: AtomicU64,
    /// Operations refused.
    shed_operations: AtomicU64,
    /// All refusals since the last [`Self::take_refusals`].
    by_reason: Mutex<RefusedCounts>,
}

impl LoginCounts {
    /// Counts a refusal.
    pub(super) fn refuse(&self, what: RefusalTarget, reason: &'static str) {
        let count = match what {
            RefusalTarget::Client => &self.refusals,
            RefusalTarget::Operation => &self.shed_operations,
        };
        count.fetch_add(1, Ordering::Relaxed);
        *self.by_reason.lock().entry((what, reason)).or_default() += 1;
    }

    /// Returns the refusals since the last call, by reason.
    pub(super) fn take_refusals(&self) -> RefusedCounts {
        std::mem::take(&mut *self.by_reason.lock())
    }

    /// Moves the counts into `traffic`.
    pub(super) fn add_to(&self, traffic: &mut Traffic) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        traffic.client_authentications += take(&self.of_clients);
        traffic.server_authentications += take(&self.at_servers);
        traffic.server_connections += take(&self.server_connections);
        traffic.refusals += take(&self.refusals);
        traffic.shed_operations += take(&self.shed_operations);
    }
}

/// Numbers of connections and logins since Seawall started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionTotals {
    /// Number of accepted client connections.
    pub(crate) client_connections: u64,
    /// Number of logins of clients, with any result.
    pub(crate) client_authentications: u64,
    /// Number of server connections established.
    pub(crate) server_connections: u64,
    /// Number of logins of Seawall and of relayed clients at servers, with any result.
    pub(crate) server_authentications: u64,
}

impl ConnectionTotals {
    fn add(&mut self, traffic: &Traffic) {
        self.client_connections += traffic.arrivals;
        self.client_authentications += traffic.client_authentications;
        self.server_connections += traffic.server_connections;
        self.server_authentications += traffic.server_authentications;
    }
}

/// The counts of connections and logins that have been collected.
#[derive(Debug, Default)]
pub(super) struct CollectedTraffic {
    totals: ConnectionTotals,
    /// The counts that [`Self::take`] has not returned yet.
    latest: Traffic,
}

impl CollectedTraffic {
    /// Adds the counts since the last call.
    pub(super) fn add(&mut self, fresh: &Traffic) {
        self.totals.add(fresh);
        self.latest.merge(fresh);
    }

    /// Returns the counts that were added since the last call.
    pub(super) fn take(&mut self) -> Traffic {
        std::mem::take(&mut self.latest)
    }

    /// The sums of all counts that were added.
    pub(super) fn totals(&self) -> ConnectionTotals {
        self.totals
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::Observer;

    #[test]
    fn connection_totals_include_counts_that_were_already_taken_for_the_history() {
        let Observer {
            recorder,
            clients,
            totals,
            ..
        } = Observer::without_shapes();
        let server = recorder.server("a:1");
        for second in 1..=2 {
            drop(clients.connected("client".into(), None));
            for result in ["ok", "refused"] {
                recorder.count_client_login("SCRAM-SHA-256", result, Duration::ZERO);
            }
            for is_ok in [true, true, false] {
                server.count_login("SCRAM-SHA-256", is_ok);
            }
            (0..4).for_each(|_| server.count_created_connection());
            let expected = ConnectionTotals {
                client_connections: second,
                client_authentications: second * 2,
                server_authentications: second * 3,
                server_connections: second * 4,
            };
            assert_eq!(totals.connection_totals(), expected);
            let traffic = totals.take_traffic();
            assert_eq!(traffic.arrivals, 1);
            assert_eq!(traffic.client_authentications, 2);
            assert_eq!(traffic.server_authentications, 3);
            assert_eq!(traffic.server_connections, 4);
            assert_eq!(totals.connection_totals(), expected);
        }
    }
}
