//! What is known of the deployment at a moment: plain data.

use std::time::Duration;

use bson::RawDocumentBuf;

use super::ClusterTime;
use crate::connection::ServerAddress;

/// What kind of deployment it is (server discovery and monitoring specification).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing seen yet.
    #[default]
    Unknown,
    /// One server, whatever it is.
    Single,
    /// A replica set whose primary is not known.
    ReplicaSetNoPrimary,
    /// A replica set with its primary.
    ReplicaSetWithPrimary,
    /// Routers.
    Sharded,
}

impl Kind {
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

/// What a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerKind {
    /// Not reached, or not understood.
    #[default]
    Unknown,
    /// A mongod by itself.
    Standalone,
    /// A replica set's primary.
    Primary,
    /// A secondary.
    Secondary,
    /// A member without data.
    Arbiter,
    /// A member in another state.
    Other,
    /// A mongos.
    Router,
}

impl ServerKind {
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

    /// Whether operations can be sent to it.
    pub fn holds_data(self) -> bool {
        match self {
            Self::Standalone | Self::Primary | Self::Secondary | Self::Router => true,
            Self::Unknown | Self::Arbiter | Self::Other => false,
        }
    }
}

/// What our own probes of a server learned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Probe {
    /// Round trip of `hello`, as an exponentially weighted moving average.
    pub round_trip: Option<Duration>,
    /// When a write was last applied, as milliseconds since the epoch of the server's clock.
    pub last_write_ms: Option<i64>,
    /// When that was read, as milliseconds since the epoch of our clock.
    pub last_update_ms: i64,
    /// The highest wire version it speaks.
    pub max_wire_version: i32,
    /// Whether it does not know `hello` by that name.
    pub lacks_hello: bool,
    /// Whether it does not answer `helloOk`.
    pub lacks_hello_ok: bool,
    /// Minutes that a session lives unused.
    pub session_timeout_minutes: Option<i32>,
    /// Its answer to `buildInfo`.
    pub build_info: Option<RawDocumentBuf>,
}

/// One server.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Where it is.
    pub address: ServerAddress,
    /// What it is, as the deployment's monitor has it.
    pub kind: ServerKind,
    /// Its tags.
    pub tags: Vec<(String, String)>,
    /// What the last probe learned.
    pub probe: Probe,
    /// An operation failed with it, and no probe has found it well since.
    pub is_suspect: bool,
    /// It said of itself that it is no primary (any more), and the monitor has not heard of it yet.
    pub is_demoted: bool,
}

impl Server {
    /// A server of which nothing is known yet.
    pub(super) fn unknown(address: ServerAddress) -> Self {
        Self {
            address,
            kind: ServerKind::Unknown,
            tags: Vec::new(),
            probe: Probe::default(),
            is_suspect: false,
            is_demoted: false,
        }
    }

    /// Whether operations can be sent to it now.
    pub fn is_usable(&self) -> bool {
        self.kind.holds_data() && !self.is_suspect
    }
}

/// `maxWireVersion` of 5.0, the first that knows the Stable API.
const STABLE_API_WIRE_VERSION: i32 = 13;

/// The deployment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Description {
    /// What kind it is.
    pub kind: Kind,
    /// The replica set's name.
    pub set_name: Option<String>,
    /// Its servers, sorted by address.
    pub servers: Vec<Server>,
    /// How often each server is looked at; part of the staleness formula.
    pub heartbeat_frequency: Duration,
    /// Whether any server was ever seen.
    pub was_seen: bool,
    /// Whether a server does not know `hello` by that name: those before 4.4.2 know `isMaster` only.
    pub lacks_hello: bool,
    /// Whether a server does not answer `helloOk`, as 4.4.2 and those before it.
    pub lacks_hello_ok: bool,
    /// The latest cluster time that a server sent; none in front of a standalone.
    pub cluster_time: Option<ClusterTime>,
    /// Whether it is one mongod without a replica set, when last seen: it refuses `txnNumber`, so clients must know.
    pub is_standalone: bool,
    /// The highest wire version that all servers spoke when last seen. While none is up clients are told what they
    /// were told before: a lower one would have drivers give the deployment up as incompatible.
    pub max_wire_version: i32,
}

impl Description {
    /// Whether all servers know `apiVersion`: from 5.0 on. Those before it ignore it in a hello.
    pub fn knows_stable_api(&self) -> bool {
        self.max_wire_version >= STABLE_API_WIRE_VERSION
    }

    /// Whether some server can be used now.
    pub fn is_available(&self) -> bool {
        self.servers.iter().any(Server::is_usable)
    }

    /// An answer to `buildInfo`.
    pub fn build_info(&self) -> Option<&RawDocumentBuf> {
        self.servers
            .iter()
            .find_map(|server| server.probe.build_info.as_ref())
    }
}
