//! Topology and server descriptions: the facts about the deployment at one moment, as plain data.

use std::time::Duration;

use bson::{RawDocumentBuf, oid::ObjectId};
use tokio::time::Instant;

use super::ClusterTime;
#[cfg(doc)]
use seawall_transport::connection::EstablishError;
use seawall_transport::connection::ServerAddress;

/// The topology type (Server Discovery and Monitoring specification).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyType {
    /// The driver has not discovered a server yet.
    #[default]
    Unknown,
    /// One server of any type.
    Single,
    /// A replica set whose primary is not known.
    ReplicaSetNoPrimary,
    /// A replica set with a known primary.
    ReplicaSetWithPrimary,
    /// One or more mongos.
    Sharded,
}

impl TopologyType {
    /// The name of the type in the specification.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Single => "Single",
            Self::ReplicaSetNoPrimary => "ReplicaSetNoPrimary",
            Self::ReplicaSetWithPrimary => "ReplicaSetWithPrimary",
            Self::Sharded => "Sharded",
        }
    }
}

/// The server type (Server Discovery and Monitoring specification).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerType {
    /// No heartbeat of the official driver has succeeded yet, or the last heartbeat has failed.
    #[default]
    Unknown,
    /// A mongod that is not a member of a replica set.
    Standalone,
    /// The primary of a replica set.
    Primary,
    /// A secondary of a replica set.
    Secondary,
    /// A replica set member without data.
    Arbiter,
    /// A member of a replica set in any other state.
    Other,
    /// A mongos, which routes operations to the shards.
    Router,
}

impl ServerType {
    /// The name of the type in the specification.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "Unknown",
            Self::Standalone => "Standalone",
            Self::Primary => "RSPrimary",
            Self::Secondary => "RSSecondary",
            Self::Arbiter => "RSArbiter",
            Self::Other => "RSOther",
            Self::Router => "Mongos",
        }
    }

    /// True if operations can be sent to this type of server.
    pub(crate) fn holds_data(self) -> bool {
        match self {
            Self::Standalone | Self::Primary | Self::Secondary | Self::Router => true,
            Self::Unknown | Self::Arbiter | Self::Other => false,
        }
    }
}

/// Results of Seawall's own probes of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probe {
    /// Average round-trip time of `hello`, an exponentially weighted moving average; `None` before
    /// the first reply.
    pub round_trip: Option<Duration>,
    /// Time of the server's last write (`lastWriteDate`), in milliseconds since the Unix epoch, by
    /// the server's clock; `None` if the server has not reported it.
    pub last_write_ms: Option<i64>,
    /// When the last reply to `hello` arrived; `None` before the first reply. This time does not
    /// depend on the system clock, which may be set.
    pub last_update: Option<Instant>,
    /// The highest wire version that the server supports; 0 if it is unknown.
    pub max_wire_version: i32,
    /// True if the server does not support the command name `hello`.
    pub lacks_hello: bool,
    /// True if the server's replies to `hello` or `isMaster` have no field `helloOk`.
    pub lacks_hello_ok: bool,
    /// Number of minutes after which an unused session expires; `None` if the server does not
    /// report it.
    pub session_timeout_minutes: Option<i32>,
    /// The id of the server's process (`topologyVersion.processId`); `None` if the server does not
    /// report it.
    pub process_id: Option<ObjectId>,
    /// The server's last successful reply to `buildInfo`; `None` if there is none yet. Seawall does
    /// not ask every server.
    pub build_info: Option<RawDocumentBuf>,
}

/// A server description: the facts about one server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerDescription {
    /// The server's address.
    pub address: ServerAddress,
    /// The server type, as the official driver's monitoring reports it.
    pub server_type: ServerType,
    /// The replica set tags of the server.
    pub tags: Vec<(String, String)>,
    /// Results of Seawall's own probes.
    pub probe: Probe,
    /// The time of the first failure of an operation or a probe at this server since its last
    /// successful probe. `None` if there was no failure since that probe.
    pub failed_since: Option<Instant>,
    /// Why the last attempt of a probe to connect to this server failed
    /// ([`EstablishError::summary`]). `None` if there was no such failure since the last successful
    /// probe.
    pub connect_failure: Option<&'static str>,
    /// The time at which the server first replied that it is no longer the primary or a secondary.
    /// `None` if there was no such reply, if the driver's monitoring has noticed the change, or if
    /// a later probe has shown that the server is still of its type.
    pub demoted_since: Option<Instant>,
}

impl ServerDescription {
    /// Creates the description of a server that has not replied yet.
    pub(super) fn unknown(address: ServerAddress) -> Self {
        Self {
            address,
            server_type: ServerType::Unknown,
            tags: Vec::new(),
            probe: Probe::default(),
            failed_since: None,
            connect_failure: None,
            demoted_since: None,
        }
    }

    /// True if an operation or a probe failed at this server, and no later probe has succeeded.
    pub(crate) fn is_suspect(&self) -> bool {
        self.failed_since.is_some()
    }

    /// True if the server replied that it is no longer the primary or a secondary. False again as
    /// soon as the driver's monitoring notices this change, or a later probe shows that the server
    /// is still of its type.
    pub(super) fn is_demoted(&self) -> bool {
        self.demoted_since.is_some()
    }

    /// Records that an operation or a probe failed at this server.
    pub(super) fn suspect(&mut self, now: Instant) {
        self.failed_since.get_or_insert(now);
    }

    /// Records that Seawall's own host could not open a connection to this server, for example
    /// because DNS does not know its name. Such a failure says nothing about a server that the
    /// driver reaches. A server of unknown type counts as failed, because nothing shows that it is
    /// available.
    pub(super) fn note_local_failure(&mut self, now: Instant) {
        if self.server_type == ServerType::Unknown {
            self.suspect(now);
        }
    }

    /// True if operations can be sent to the server now.
    pub fn is_usable(&self) -> bool {
        self.server_type.holds_data() && !self.is_suspect()
    }

    /// True if the server replies to probes, but the driver's monitoring has not noticed yet that
    /// the server is available or that it was demoted.
    pub(super) fn is_unnoticed(&self) -> bool {
        let is_outdated = self.server_type == ServerType::Unknown || self.is_demoted();
        is_outdated && !self.is_suspect()
    }
}

/// The `maxWireVersion` of MongoDB 5.0, the first version that supports the Stable API.
const STABLE_API_WIRE_VERSION: i32 = 13;

/// The `maxWireVersion` of MongoDB 5.0. Earlier servers ignore a `maxTimeMS` of 0 in a `getMore`.
const ZERO_AWAIT_WIRE_VERSION: i32 = 13;

/// The `maxWireVersion` of MongoDB 5.1, which replies to `getLastError` with an error.
const NO_GET_LAST_ERROR_WIRE_VERSION: i32 = 14;

/// For this time after a router's first failure, Seawall expects the router to become usable again.
/// During this time, a user's SCRAM keys do not count as refused by all routers. The time must be
/// longer than 30 s, because a router caches users for up to 30 s (see
/// [`TopologyDescription::may_lag`]). So for up to 30 s after a user's password has changed, all
/// usable routers may refuse the user's new keys. The failed router may be the only one that
/// accepts them.
const ROUTER_EXPECTED_FOR: Duration = Duration::from_secs(60);

/// A topology description: the facts about the whole deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopologyDescription {
    /// The type of the deployment, in the terms of the specification.
    pub topology_type: TopologyType,
    /// The replica set's name; `None` for other deployments.
    pub set_name: Option<String>,
    /// The server descriptions, sorted by address.
    pub servers: Vec<ServerDescription>,
    /// Time between heartbeats. The formula for the staleness of secondaries uses this time.
    pub heartbeat_frequency: Duration,
    /// True if any server has replied since the start of Seawall.
    pub was_seen: bool,
    /// True if at least one server does not support the command name `hello`. For example, MongoDB
    /// 4.4.1 supports only `isMaster`.
    pub lacks_hello: bool,
    /// True if at least one server does not return the field `helloOk` in its replies to `hello` or
    /// `isMaster`. For example, MongoDB 4.4.2 does not return it.
    pub lacks_hello_ok: bool,
    /// The latest cluster time that a server has sent; `None` if no server has sent one. A
    /// standalone never sends one.
    pub cluster_time: Option<ClusterTime>,
    /// True if the deployment is a standalone, or was one before its server failed. Seawall's
    /// replies to `hello` then look like those of a standalone, so that clients send no
    /// `txnNumber`. A standalone would refuse it.
    pub is_standalone: bool,
    /// The highest wire version that all servers support. While no server has a known wire version,
    /// this field keeps its last value. If it became 0 instead, drivers would reject the deployment
    /// as incompatible.
    pub max_wire_version: i32,
}

impl TopologyDescription {
    /// True if all servers support `apiVersion` (5.0 and later). Older servers ignore `apiVersion`
    /// in `hello`.
    pub(crate) fn knows_stable_api(&self) -> bool {
        self.max_wire_version >= STABLE_API_WIRE_VERSION
    }

    /// True if all servers reply at once to a `getMore` with `maxTimeMS: 0` on a cursor that awaits
    /// data (5.0 and later). Older servers wait for a second, as without the field.
    pub(crate) fn knows_zero_await(&self) -> bool {
        self.max_wire_version >= ZERO_AWAIT_WIRE_VERSION
    }

    /// Maximum size of the document `$client` in a command. A router accepts 512 bytes, as in a
    /// `hello`, and other servers accept 1,024. While no server has a known type, the smaller
    /// maximum applies.
    pub(crate) fn max_client_bytes(&self) -> usize {
        let has_room = |server: &ServerDescription| match server.server_type {
            ServerType::Unknown | ServerType::Router => false,
            ServerType::Standalone
            | ServerType::Primary
            | ServerType::Secondary
            | ServerType::Arbiter
            | ServerType::Other => true,
        };
        match self.servers.iter().any(has_room) {
            true => 1024,
            false => 512,
        }
    }

    /// True if at least one server supports `getLastError`. Only servers before 5.1 support it.
    pub(crate) fn knows_get_last_error(&self) -> bool {
        self.max_wire_version < NO_GET_LAST_ERROR_WIRE_VERSION
    }

    /// True if at least one server is usable now.
    pub(crate) fn is_available(&self) -> bool {
        self.servers.iter().any(ServerDescription::is_usable)
    }

    /// Why Seawall could not connect to a server; `None` if there was no failure, or if the server
    /// has replied since then.
    pub(crate) fn connect_failure(&self) -> Option<&'static str> {
        self.servers
            .iter()
            .find_map(|server| server.connect_failure)
    }

    /// The `buildInfo` reply of any server; `None` if no server has replied to `buildInfo` yet.
    pub(crate) fn build_info(&self) -> Option<&RawDocumentBuf> {
        self.servers
            .iter()
            .find_map(|server| server.probe.build_info.as_ref())
    }

    /// True if this server may refuse a user's keys although they are valid. There are two cases:
    ///
    /// - The server is a member of a replica set but not its primary, so its data about users may
    ///   be older.
    /// - The server is a router, which caches users for up to 30 s
    ///   (`userCacheInvalidationIntervalSecs`). If a router cannot read a user from the config
    ///   servers, it refuses the user's logins, with the same code as after a change of the
    ///   password.
    pub(super) fn may_lag(&self, address: &ServerAddress) -> bool {
        let is_primary = |server: &ServerDescription| {
            server.address == *address && server.server_type == ServerType::Primary
        };
        match self.topology_type {
            TopologyType::ReplicaSetNoPrimary | TopologyType::ReplicaSetWithPrimary => {
                !self.servers.iter().any(is_primary)
            }
            TopologyType::Sharded => true,
            TopologyType::Single => self.is_router(address),
            TopologyType::Unknown => false,
        }
    }

    /// True if the topology is a single server that is a member of a replica set.
    pub(super) fn is_one_member(&self) -> bool {
        let is_member = |server: &ServerDescription| match server.server_type {
            ServerType::Primary
            | ServerType::Secondary
            | ServerType::Arbiter
            | ServerType::Other => true,
            ServerType::Unknown | ServerType::Standalone | ServerType::Router => false,
        };
        self.topology_type == TopologyType::Single && self.servers.iter().any(is_member)
    }

    /// True if the server at this address is a router.
    pub(super) fn is_router(&self, address: &ServerAddress) -> bool {
        let is_this_router = |server: &ServerDescription| {
            server.address == *address && server.server_type == ServerType::Router
        };
        // In a sharded cluster, a router that has just failed has no known type.
        self.topology_type == TopologyType::Sharded || self.servers.iter().any(is_this_router)
    }

    /// Returns the index of the nearest usable router that is not one of `refusing`, the routers
    /// that have refused a user's SCRAM keys. `None` if there is no such router, or if the topology
    /// type is not [`TopologyType::Sharded`].
    pub(super) fn router_except(&self, refusing: &[ServerAddress]) -> Option<usize> {
        if self.topology_type != TopologyType::Sharded {
            return None;
        }
        let routers = self.servers.iter().enumerate();
        let others =
            routers.filter(|(_, server)| server.is_usable() && !refusing.contains(&server.address));
        let nearest =
            others.min_by_key(|(_, server)| server.probe.round_trip.unwrap_or(Duration::MAX));
        nearest.map(|(index, _)| index)
    }

    /// True if at least one router is usable at `now` or may become usable soon. The routers in
    /// `refusing`, which have refused a user's SCRAM keys, do not count. A router may become usable
    /// soon if it failed less than [`ROUTER_EXPECTED_FOR`] ago. The same is true for a router that
    /// has not failed but that the official driver does not yet report as available.
    pub(super) fn expects_router_except(&self, refusing: &[ServerAddress], now: Instant) -> bool {
        let is_expected = |server: &ServerDescription| match server.failed_since {
            Some(since) => now.saturating_duration_since(since) < ROUTER_EXPECTED_FOR,
            None => true,
        };
        let mut others = self.servers.iter();
        self.topology_type == TopologyType::Sharded
            && others.any(|server| !refusing.contains(&server.address) && is_expected(server))
    }

    /// True if the server at this address must be asked for its `buildInfo`. There are two cases:
    ///
    /// - No server has replied to `buildInfo` yet.
    /// - This server has replied, but the probe's connection is new (`is_new`). The server may have
    ///   been upgraded since its reply, because an upgrade ends all connections.
    pub(super) fn needs_build_info(&self, address: &ServerAddress, is_new: bool) -> bool {
        let has_replied = |server: &ServerDescription| {
            server.address == *address && server.probe.build_info.is_some()
        };
        self.build_info().is_none() || (is_new && self.servers.iter().any(has_replied))
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    fn server(n: u16, server_type: ServerType, round_trip_ms: u64) -> ServerDescription {
        let address = format!("h:{n}").parse().unwrap();
        let mut server = ServerDescription::unknown(address);
        server.server_type = server_type;
        server.probe.round_trip = Some(Duration::from_millis(round_trip_ms));
        server
    }

    fn deployment(
        topology_type: TopologyType,
        servers: impl IntoIterator<Item = ServerDescription>,
    ) -> TopologyDescription {
        TopologyDescription {
            topology_type,
            servers: servers.into_iter().collect(),
            ..TopologyDescription::default()
        }
    }

    fn routers(count: u16) -> TopologyDescription {
        let routers = (0..count).map(|n| server(n, ServerType::Router, 10 - u64::from(n)));
        deployment(TopologyType::Sharded, routers)
    }

    #[test]
    fn a_topology_is_one_member_if_its_only_server_belongs_to_a_replica_set() {
        let address: ServerAddress = "a:1".parse().unwrap();
        for (server_type, is_member) in [
            (ServerType::Unknown, false),
            (ServerType::Standalone, false),
            (ServerType::Router, false),
            (ServerType::Primary, true),
            (ServerType::Secondary, true),
            (ServerType::Arbiter, true),
            (ServerType::Other, true),
        ] {
            let server = ServerDescription {
                server_type,
                ..ServerDescription::unknown(address.clone())
            };
            for topology_type in [TopologyType::Single, TopologyType::ReplicaSetWithPrimary] {
                let is_single = topology_type == TopologyType::Single;
                let description = deployment(topology_type, [server.clone()]);
                assert_eq!(
                    description.is_one_member(),
                    is_member && is_single,
                    "{topology_type:?} {server_type:?}"
                );
            }
        }
    }

    #[test]
    fn routers_and_unknown_servers_get_at_most_512_bytes_of_client_metadata() {
        for (server_type, bytes) in [
            (ServerType::Router, 512),
            (ServerType::Unknown, 512),
            (ServerType::Standalone, 1024),
            (ServerType::Primary, 1024),
            (ServerType::Secondary, 1024),
        ] {
            let servers = [server(1, server_type, 1), server(2, ServerType::Unknown, 1)];
            let deployment = deployment(TopologyType::Unknown, servers);
            assert_eq!(deployment.max_client_bytes(), bytes, "{server_type:?}");
        }
    }

    #[test]
    fn secondaries_and_routers_may_refuse_valid_keys_but_primaries_and_standalones_do_not() {
        let lagging = |description: &TopologyDescription| {
            let servers = description.servers.iter();
            let lagging = servers.map(|server| description.may_lag(&server.address));
            lagging.collect::<Vec<_>>()
        };
        let members = [
            server(1, ServerType::Primary, 1),
            server(2, ServerType::Secondary, 1),
        ];
        let set = deployment(TopologyType::ReplicaSetWithPrimary, members);
        assert_eq!(lagging(&set), [false, true]);
        let standalone = server(1, ServerType::Standalone, 1);
        let standalone = deployment(TopologyType::Single, [standalone]);
        assert_eq!(lagging(&standalone), [false]);
        assert_eq!(lagging(&routers(1)), [true]);
        assert_eq!(lagging(&routers(2)), [true, true]);
        let direct = deployment(TopologyType::Single, routers(1).servers);
        assert_eq!(lagging(&direct), [true]);
    }

    /// The list contains the routers that have refused a user's SCRAM keys.
    #[test]
    fn the_nearest_usable_router_that_is_not_in_the_given_list_is_returned() {
        let mut description = routers(3);
        let addresses: Vec<_> = (description.servers.iter())
            .map(|server| server.address.clone())
            .collect();
        assert_eq!(description.router_except(&addresses[2..]), Some(1));
        assert_eq!(description.router_except(&addresses[1..]), Some(0));
        assert_eq!(description.router_except(&addresses), None);
        description.servers[1].failed_since = Some(Instant::now());
        assert_eq!(description.router_except(&addresses[2..]), Some(0));
        description.topology_type = TopologyType::ReplicaSetWithPrimary;
        assert_eq!(description.router_except(&[]), None);
    }

    #[test]
    fn a_failure_of_seawall_s_own_host_affects_only_servers_of_unknown_type() {
        let now = Instant::now();
        let mut known = server(1, ServerType::Router, 1);
        known.note_local_failure(now);
        assert!(known.is_usable());
        let mut unknown = server(2, ServerType::Unknown, 1);
        assert!(unknown.is_unnoticed());
        unknown.note_local_failure(now);
        assert!(!unknown.is_unnoticed());
        let mut description = routers(1);
        description.servers = vec![unknown];
        assert!(description.expects_router_except(&[], now));
        assert!(!description.expects_router_except(&[], now + ROUTER_EXPECTED_FOR));
    }

    #[test]
    fn a_minute_after_its_first_failure_a_router_is_no_longer_expected_to_recover() {
        let mut description = routers(2);
        let refusing = [description.servers[0].address.clone()];
        let failed_at = Instant::now();
        let later = failed_at + ROUTER_EXPECTED_FOR;
        assert!(description.expects_router_except(&refusing, later));
        // The age of the last probe does not matter: here the router has never replied to a probe.
        assert_eq!(description.servers[1].probe.last_update, None);
        description.servers[1].suspect(failed_at);
        // A second failure does not replace the time of the first failure.
        description.servers[1].suspect(later);
        let before = later - Duration::from_nanos(1);
        assert!(description.expects_router_except(&refusing, before));
        assert!(!description.expects_router_except(&refusing, later));
        description.topology_type = TopologyType::ReplicaSetNoPrimary;
        assert!(!description.expects_router_except(&refusing, before));
    }

    #[test]
    fn the_build_info_of_a_server_is_read_again_over_each_new_connection() {
        let [asked, other] = ["a:1", "b:1"].map(|address| address.parse().unwrap());
        let servers = [&asked, &other].map(|address: &ServerAddress| {
            let mut server = ServerDescription::unknown(address.clone());
            server.server_type = ServerType::Secondary;
            server
        });
        let mut description = TopologyDescription {
            servers: servers.into(),
            ..TopologyDescription::default()
        };
        assert!(description.needs_build_info(&asked, false));
        description.servers[0].probe.build_info = Some(rawdoc! { "version": "8.0.0" });
        assert!(!description.needs_build_info(&asked, false));
        assert!(description.needs_build_info(&asked, true));
        assert!(!description.needs_build_info(&other, true));
    }

    /// *Unnoticed*: the server replies to probes, but the driver does not know its new state yet.
    #[test]
    fn a_server_is_unnoticed_until_the_driver_reports_its_recovery_or_demotion() {
        let server = |server_type, is_demoted: bool, is_suspect: bool| ServerDescription {
            server_type,
            demoted_since: is_demoted.then(Instant::now),
            failed_since: is_suspect.then(Instant::now),
            ..ServerDescription::unknown("h:1".parse().unwrap())
        };
        for (server, is_unnoticed) in [
            (server(ServerType::Unknown, false, false), true),
            (server(ServerType::Unknown, false, true), false),
            (server(ServerType::Primary, false, false), false),
            (server(ServerType::Primary, true, false), true),
            (server(ServerType::Primary, true, true), false),
        ] {
            assert_eq!(server.is_unnoticed(), is_unnoticed, "{server:?}");
        }
    }
}
