//! Merges replies that are lists. Each element names the instance that reports it.

use super::{Merge, merge_text};
use crate::{Annotations, Clients, Configuration, Pools, Servers, SlowOperations, Topology};

/// A reply with one element per server, for example the pool of each server. A merge lists the
/// elements of both instances: it does not sum the figures that they report for the same server.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Listed<T>(pub T);

/// Sets the member `instance` of each element of a list to the instance's address.
macro_rules! name_instance {
    ($list:expr, $address:ident) => {
        for element in &mut $list {
            element.instance = Some($address.to_owned());
        }
    };
}

impl Merge for Listed<Pools> {
    fn set_instance(&mut self, address: &str) {
        name_instance!(self.0.pools, address);
    }

    fn merge(&mut self, other: Self) {
        self.0.pools.extend(other.0.pools);
    }
}

impl Merge for Listed<Servers> {
    fn set_instance(&mut self, address: &str) {
        name_instance!(self.0.servers, address);
    }

    fn merge(&mut self, other: Self) {
        self.0.servers.extend(other.0.servers);
    }
}

impl Merge for Topology {
    fn set_instance(&mut self, address: &str) {
        name_instance!(self.servers, address);
    }

    /// Lists the servers of both instances, because the instances may see a server in different
    /// states.
    fn merge(&mut self, other: Self) {
        self.servers.extend(other.servers);
        merge_text(&mut self.topology_type, other.topology_type);
        let mut name = self.set_name.take().unwrap_or_default();
        merge_text(&mut name, other.set_name.unwrap_or_default());
        self.set_name = Some(name).filter(|name| !name.is_empty());
    }
}

impl Merge for Clients {
    fn set_instance(&mut self, address: &str) {
        name_instance!(self.clients, address);
    }

    fn merge(&mut self, other: Self) {
        self.count += other.count;
        self.clients.extend(other.clients);
        self.clients
            .sort_by(|a, b| a.connected_at.total_cmp(&b.connected_at));
    }
}

impl Merge for Configuration {
    fn set_instance(&mut self, address: &str) {
        name_instance!(self.values, address);
    }

    /// Lists the values of both instances. The merged hash is `mixed` if the hashes of the
    /// instances differ.
    fn merge(&mut self, other: Self) {
        merge_text(&mut self.hash, other.hash);
        self.values.extend(other.values);
    }
}

impl Merge for Annotations {
    fn set_instance(&mut self, address: &str) {
        name_instance!(self.annotations, address);
    }

    fn merge(&mut self, other: Self) {
        self.annotations.extend(other.annotations);
        self.annotations.sort_by(|a, b| a.at.total_cmp(&b.at));
    }
}

impl Merge for SlowOperations {
    fn set_instance(&mut self, address: &str) {
        name_instance!(self.operations, address);
    }

    /// Merges the slow operations of two instances. The merged threshold is the lower threshold.
    fn merge(&mut self, other: Self) {
        self.left_out += other.left_out;
        self.threshold_ms = self.threshold_ms.min(other.threshold_ms);
        self.operations.extend(other.operations);
        self.operations.sort_by(|a, b| b.at.total_cmp(&a.at));
    }
}
