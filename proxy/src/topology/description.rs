//! Topology and server descriptions: what is known of the deployment at one moment, as plain data.

use std::time::Duration;

use bson::RawDocumentBuf;

use super::ClusterTime;
use seawall_transport::connection::ServerAddress;

/// The topology type (Server Discovery and Monitoring specification).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyType {
    /// No server discovered yet.
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
    /// The specification's name.
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
    /// Not reached, or its reply was not understood.
    #[default]
    Unknown,
    /// A mongod without a replica set.
    Standalone,
    /// The primary of a replica set.
    Primary,
    /// A secondary of a replica set.
    Secondary,
    /// A member that holds no data.
    Arbiter,
    /// A member in any other state.
    Other,
    /// A mongos.
    Router,
}

impl ServerType {
    /// The specification's name.
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
    pub fn holds_data(self) -> bool {
        match self {
            Self::Standalone | Self::Primary | Self::Secondary | Self::Router => true,
            Self::Unknown | Self::Arbiter | Self::Other => false,
        }
    }
}

/// Results of Seawall's own probes of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probe {
    /// Average round-trip time of `hello`: an exponentially weighted moving average.
    pub round_trip: Option<Duration>,
    /// Time of the server's last write (`lastWriteDate`), in milliseconds since the epoch, by the
    /// server's clock.
    pub last_write_ms: Option<i64>,
    /// When `last_write_ms` was read, in milliseconds since the epoch, by Seawall's clock.
    pub last_update_ms: i64,
    /// The highest wire version that the server supports.
    pub max_wire_version: i32,
    /// True if the server does not support the command name `hello`.
    pub lacks_hello: bool,
    /// True if the server does not return `helloOk`.
    pub lacks_hello_ok: bool,
    /// Minutes after which an unused session expires.
    pub session_timeout_minutes: Option<i32>,
    /// Its reply to `buildInfo`.
    pub build_info: Option<RawDocumentBuf>,
}

/// A server description: what is known of one server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerDescription {
    /// The server's address.
    pub address: ServerAddress,
    /// The server type, as the official driver's monitoring reports it.
    pub server_type: ServerType,
    /// Its tags.
    pub tags: Vec<(String, String)>,
    /// Results of the last probe.
    pub probe: Probe,
    /// An operation or a probe failed on this server, and no probe has succeeded since.
    pub is_suspect: bool,
    /// The server replied that it is not the primary (any more), and the driver's monitoring does
    /// not know it yet.
    pub is_demoted: bool,
}

impl ServerDescription {
    /// A server description without any knowledge yet.
    pub(super) fn unknown(address: ServerAddress) -> Self {
        Self {
            address,
            server_type: ServerType::Unknown,
            tags: Vec::new(),
            probe: Probe::default(),
            is_suspect: false,
            is_demoted: false,
        }
    }

    /// True if operations can be sent to it now.
    pub fn is_usable(&self) -> bool {
        self.server_type.holds_data() && !self.is_suspect
    }
}

/// `maxWireVersion` of 5.0, the first version that supports the Stable API.
const STABLE_API_WIRE_VERSION: i32 = 13;

/// A topology description: what is known of the deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopologyDescription {
    /// The topology type.
    pub topology_type: TopologyType,
    /// The replica set's name.
    pub set_name: Option<String>,
    /// The server descriptions, sorted by address.
    pub servers: Vec<ServerDescription>,
    /// Time between heartbeats; part of the staleness formula.
    pub heartbeat_frequency: Duration,
    /// True if any server was ever discovered.
    pub was_seen: bool,
    /// True if a server does not support the command name `hello`: servers before 4.4.2 support
    /// only `isMaster`.
    pub lacks_hello: bool,
    /// True if a server does not return `helloOk`: 4.4.2 and earlier.
    pub lacks_hello_ok: bool,
    /// The latest cluster time that a server sent; a standalone sends none.
    pub cluster_time: Option<ClusterTime>,
    /// True if the deployment was a standalone when last seen. A standalone refuses `txnNumber`, so
    /// clients must know.
    pub is_standalone: bool,
    /// The highest wire version that all servers supported when last seen. While no server is up,
    /// clients get the last value: with a lower one, drivers would reject the deployment as
    /// incompatible.
    pub max_wire_version: i32,
}

impl TopologyDescription {
    /// True if all servers support `apiVersion` (5.0 and later). Older servers ignore it in
    /// `hello`.
    pub fn knows_stable_api(&self) -> bool {
        self.max_wire_version >= STABLE_API_WIRE_VERSION
    }

    /// True if at least one server is usable now.
    pub fn is_available(&self) -> bool {
        self.servers.iter().any(ServerDescription::is_usable)
    }

    /// The `buildInfo` reply of any server.
    pub fn build_info(&self) -> Option<&RawDocumentBuf> {
        self.servers
            .iter()
            .find_map(|server| server.probe.build_info.as_ref())
    }
}
