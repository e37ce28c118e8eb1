//! Counts of logins, of established server connections, and of refused clients and operations.

use std::sync::atomic::{AtomicU64, Ordering};

use seawall_stats::Traffic;

/// Counts since the last [`Logins::add_to`]. Many tasks add to them without a lock.
#[derive(Debug, Default)]
pub(super) struct Logins {
    /// Ended logins of clients, with any result.
    pub(super) of_clients: AtomicU64,
    /// Ended logins of Seawall and of relayed clients at servers, with any result.
    pub(super) at_servers: AtomicU64,
    /// Server connections established.
    pub(super) server_connections: AtomicU64,
    /// Client connections refused.
    pub(super) refusals: AtomicU64,
    /// Operations refused.
    pub(super) shed_operations: AtomicU64,
}

impl Logins {
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
