//! Topologies for unit tests. Nothing monitors their servers.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::Instant};

use super::{
    ServerDescription, ServerType, Snapshot, Topology, TopologyDescription, TopologySettings,
    TopologyType,
};
use crate::{
    observe::Recorder,
    pool::{PoolLimits, ServerPool},
};
use seawall_transport::connection::{Connector, ServerAddress};

impl Topology {
    /// Creates a topology for tests: it has one standalone server, and nothing monitors it.
    pub(crate) fn of_standalone(
        address: ServerAddress,
        limits: PoolLimits,
        connector: Connector,
        recorder: Arc<Recorder>,
    ) -> Arc<Self> {
        let types = (TopologyType::Single, ServerType::Standalone);
        Self::unmonitored(types, [address], limits, connector, recorder)
    }

    /// Creates a topology for tests: all its servers are usable routers, and nothing monitors them.
    pub(crate) fn of_usable_routers<const COUNT: usize>(
        addresses: [ServerAddress; COUNT],
        limits: PoolLimits,
        connector: Connector,
        recorder: Arc<Recorder>,
    ) -> Arc<Self> {
        let types = (TopologyType::Sharded, ServerType::Router);
        Self::unmonitored(types, addresses, limits, connector, recorder)
    }

    /// Creates a topology for tests: it has two routers, and nothing monitors them. The router at
    /// `address` is usable, and the other router has just failed.
    pub(crate) fn of_routers(
        address: ServerAddress,
        limits: PoolLimits,
        connector: Connector,
        recorder: Arc<Recorder>,
    ) -> Arc<Self> {
        let failed = ServerAddress::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 1,
        };
        let topology = Self::of_usable_routers([address, failed], limits, connector, recorder);
        let mut snapshot = Snapshot::clone(&topology.snapshot());
        for server in snapshot.description.servers.iter_mut().skip(1) {
            server.failed_since = Some(Instant::now());
        }
        topology.published.replace(snapshot);
        topology
    }

    /// Makes the failed servers usable again. Only for tests, in which nothing monitors the
    /// servers.
    pub(crate) fn recover_all(&self) {
        let mut snapshot = Snapshot::clone(&self.snapshot());
        for server in &mut snapshot.description.servers {
            server.failed_since = None;
        }
        self.published.replace(snapshot);
    }

    /// Creates a topology for tests: nothing monitors its servers. `types` are the type of the
    /// topology and the type of each server. Each server has a pool that is ready.
    fn unmonitored<const COUNT: usize>(
        types: (TopologyType, ServerType),
        addresses: [ServerAddress; COUNT],
        limits: PoolLimits,
        connector: Connector,
        recorder: Arc<Recorder>,
    ) -> Arc<Self> {
        let (topology_type, server_type) = types;
        let servers = addresses.map(|address| ServerDescription {
            server_type,
            ..ServerDescription::unknown(address)
        });
        let description = TopologyDescription {
            topology_type,
            servers: servers.into(),
            ..TopologyDescription::default()
        };
        let runtime = Handle::current();
        let servers = description.servers.iter();
        let pools = servers.map(|server| {
            let pool = ServerPool::new(
                server.address.clone(),
                limits.clone(),
                connector.clone(),
                recorder.server(&server.address.to_string()),
                runtime.clone(),
            );
            pool.ready();
            pool
        });
        let pools = pools.collect();
        let settings = TopologySettings {
            local_threshold: Duration::ZERO,
            heartbeat_frequency: Duration::from_secs(10),
            pool: limits,
            closes_outdated_relays: false,
        };
        let topology = Self::unwatched(settings, connector, recorder, runtime.clone(), runtime);
        topology.published.replace(Snapshot { description, pools });
        Arc::new(topology)
    }
}
