//! Merges the replies of several instances about their state and their connections.

use super::{Merge, add, add_limit, combine, merge_by, merge_text};
use crate::{Certificate, Concurrency, Connections, Pool, PoolUser, Pools, Status};

impl Merge for Status {
    fn set_instance(&mut self, address: &str) {
        if let Some(reason) = &mut self.not_ready {
            *reason = format!("{address}: {reason}");
        }
    }

    /// Merges the states of two instances. The merged uptime is the longer uptime.
    fn merge(&mut self, other: Self) {
        add!(self, other: clients, local_operations, operations, wait_queue);
        // Equal entries are the same certificate, so there is nothing to add.
        merge_by(
            &mut self.certificates,
            other.certificates,
            Certificate::clone,
            |_, _| {},
        );
        merge_text(&mut self.credentials, other.credentials);
        merge_text(&mut self.deployment, other.deployment);
        merge_text(&mut self.mode, other.mode);
        merge_versions(&mut self.version, &other.version);
        self.draining |= other.draining;
        self.injects_faults |= other.injects_faults;
        combine(&mut self.not_ready, other.not_ready, |reasons, other| {
            format!("{reasons}; {other}")
        });
        self.history.bytes += other.history.bytes;
        combine(&mut self.history.on, other.history.on, |on, other| {
            on || other
        });
        self.server_connections.merge(other.server_connections);
        self.uptime_seconds = self.uptime_seconds.max(other.uptime_seconds);
    }
}

/// Appends the versions in `others` that `versions` does not contain. `versions` and `others` are
/// lists with the separator `, `.
fn merge_versions(versions: &mut String, others: &str) {
    for version in others.split(", ").filter(|version| !version.is_empty()) {
        if versions.is_empty() {
            version.clone_into(versions);
        } else if !versions.split(", ").any(|known| known == version) {
            versions.push_str(", ");
            versions.push_str(version);
        }
    }
}

impl Merge for Connections {
    fn merge(&mut self, other: Self) {
        add!(self, other: available, in_use, pending);
    }
}

impl Merge for Pools {
    fn merge(&mut self, other: Self) {
        merge_pools(&mut self.pools, other.pools);
    }
}

/// Merges two lists of pools. Pools with the same server address become one pool.
pub(super) fn merge_pools(pools: &mut Vec<Pool>, others: Vec<Pool>) {
    merge_by(pools, others, |pool| pool.server.clone(), Merge::merge);
}

impl Merge for Pool {
    fn merge(&mut self, other: Self) {
        add!(self, other: available, in_use, pending, wait_queue);
        merge_text(&mut self.state, other.state);
        self.concurrency.merge(other.concurrency);
        let user = |user: &PoolUser| (user.source.clone(), user.name.clone());
        merge_by(&mut self.users, other.users, user, Merge::merge);
    }
}

impl Merge for PoolUser {
    fn merge(&mut self, other: Self) {
        add!(self, other: available, in_use, pending, wait_queue);
    }
}

impl Merge for Concurrency {
    /// Adds the limits, because each instance applies its own limit. Removes the reason for the
    /// limit, because each instance has its own reason.
    fn merge(&mut self, other: Self) {
        add!(self, other: exempt, in_progress, reserved, waiting);
        add_limit(&mut self.limit, other.limit);
        add_limit(&mut self.settled, other.settled);
        merge_text(&mut self.mode, other.mode);
        self.reason = None;
    }
}
