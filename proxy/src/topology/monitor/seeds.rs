//! The hosts and the replica set name with which a client of the driver begins.

use mongodb::options::{ClientOptions, ServerAddress as DriverAddress};

use super::TopologyType;

/// The hosts of the connection string at the start.
pub(super) struct Seeds {
    pub(super) hosts: Vec<DriverAddress>,
    /// True if the hosts are from DNS (`mongodb+srv`).
    pub(super) from_dns: bool,
    /// The name of the replica set in the connection string; `None` if it contains none.
    pub(super) set_name: Option<String>,
}

/// The facts about the deployment that the earlier client has found. Before the first client, there
/// are no servers, and the type is [`TopologyType::Unknown`].
#[derive(Default)]
pub(super) struct KnownDeployment {
    pub(super) topology_type: TopologyType,
    pub(super) set_name: Option<String>,
    /// The current servers of the deployment.
    pub(super) servers: Vec<DriverAddress>,
}

impl Seeds {
    /// Sets the replica set name and the hosts with which a new client begins. The hosts are the
    /// current servers and the seeds. The driver needs the seeds if the current servers do not
    /// reply. But a seed may have left the deployment since the start:
    ///
    /// - A seed may now belong to another replica set. The name of the current set makes the driver
    ///   ignore this seed. If the current set has no known members any more, its name is not used,
    ///   because the set may have a new name.
    /// - If the servers are routers from DNS, the driver has removed routers that DNS no longer
    ///   lists. Such a router may still run, so the seeds are used only if no current server is
    ///   known.
    pub(super) fn begin_with(&self, found: KnownDeployment, options: &mut ClientOptions) {
        let topology_type = found.topology_type;
        let is_replica_set = matches!(
            topology_type,
            TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary
        );
        let has_members = !found.servers.is_empty();
        let found_name = found.set_name.filter(|_| is_replica_set && has_members);
        options.repl_set_name = self.set_name.clone().or(found_name);
        let mut hosts = found.servers;
        let follows_dns = self.from_dns && topology_type == TopologyType::Sharded;
        if hosts.is_empty() || !follows_dns {
            let missing = self.hosts.iter().filter(|seed| !hosts.contains(seed));
            let missing: Vec<_> = missing.cloned().collect();
            hosts.extend(missing);
        }
        options.hosts = hosts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(names: &str) -> Vec<DriverAddress> {
        let names = names.split_whitespace();
        names
            .map(|name| DriverAddress::parse(name).unwrap())
            .collect()
    }

    /// The options of a client that begins with the seeds `a` and `b`. An earlier client has found
    /// a deployment of this type, with the set name `rs` and these servers.
    async fn options(
        uri: &str,
        from_dns: bool,
        topology_type: TopologyType,
        servers: &str,
    ) -> ClientOptions {
        let mut options = ClientOptions::parse(uri).await.unwrap();
        let seeds = Seeds {
            hosts: addresses("a b"),
            from_dns,
            set_name: options.repl_set_name.clone(),
        };
        let found = KnownDeployment {
            topology_type,
            set_name: Some("rs".to_owned()),
            servers: addresses(servers),
        };
        seeds.begin_with(found, &mut options);
        options
    }

    #[tokio::test]
    async fn a_new_monitoring_client_drops_seeds_that_dns_no_longer_lists_if_it_knows_a_router() {
        use TopologyType::{ReplicaSetNoPrimary, Sharded, Unknown};
        for (from_dns, topology_type, servers, hosts) in [
            (true, Sharded, "a c", "a c"),
            (true, Sharded, "", "a b"),
            (true, Unknown, "c", "c a b"),
            (true, ReplicaSetNoPrimary, "c", "c a b"),
            (false, Sharded, "a c", "a c b"),
        ] {
            let options = options("mongodb://a,b/", from_dns, topology_type, servers).await;
            assert_eq!(options.hosts, addresses(hosts), "{topology_type:?}");
        }
    }

    #[tokio::test]
    async fn a_later_monitoring_client_accepts_only_members_of_the_found_replica_set() {
        use TopologyType::{ReplicaSetNoPrimary, ReplicaSetWithPrimary, Sharded, Unknown};
        for (query, topology_type, set_name) in [
            ("", ReplicaSetWithPrimary, Some("rs")),
            ("", ReplicaSetNoPrimary, Some("rs")),
            ("?replicaSet=mine", ReplicaSetNoPrimary, Some("mine")),
            ("", Unknown, None),
            ("", Sharded, None),
        ] {
            let uri = format!("mongodb://a,b/{query}");
            let options = options(&uri, false, topology_type, "a").await;
            let name = options.repl_set_name.as_deref();
            assert_eq!(name, set_name, "{topology_type:?}");
        }
    }

    #[tokio::test]
    async fn a_replica_set_without_members_may_have_a_new_name() {
        let mut options = ClientOptions::parse("mongodb://a,b/").await.unwrap();
        let seeds = Seeds {
            hosts: addresses("a b"),
            from_dns: false,
            set_name: None,
        };
        for (servers, set_name) in [("a", Some("rs")), ("", None)] {
            let found = KnownDeployment {
                topology_type: TopologyType::ReplicaSetNoPrimary,
                set_name: Some("rs".to_owned()),
                servers: addresses(servers),
            };
            seeds.begin_with(found, &mut options);
            assert_eq!(options.repl_set_name.as_deref(), set_name);
        }
    }
}
