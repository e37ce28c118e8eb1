//! The current state of the proxy and of its connections: `/api/v1/status`, `pools`, `topology` and
//! `clients`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::as_integer;

/// The state of the proxy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The certificates and revocation lists in the configured TLS files, and when they expire.
    /// Seawall uses these files for connections with clients, with servers, with callers of the
    /// admin address, with other instances, and with the collector of metrics. Empty if Seawall
    /// uses no TLS file.
    pub certificates: Vec<Certificate>,
    /// The number of connected clients.
    pub clients: u64,
    /// The name of the source of the users' credentials, such as `lookup`; `auto` until Seawall has
    /// determined the source.
    pub credentials: String,
    /// The topology type.
    pub deployment: String,
    /// True if a drain has started.
    pub draining: bool,
    /// The state of the history of the statistics.
    pub history: HistoryStatus,
    /// True if faults are injected for an experiment.
    pub injects_faults: bool,
    /// The number of operations (see [`Self::operations`]) to which Seawall itself replied, for
    /// example handshake commands.
    pub local_operations: u64,
    /// How client operations reach the servers: `pooled` (clients share server connections) or
    /// `relay` (each client has its own server connection).
    pub mode: String,
    /// The reason why the proxy cannot serve operations now, as `/health/ready` reports it; `None`
    /// if the proxy is ready. In a merged reply: the reasons of all instances that are not ready,
    /// with their addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_ready: Option<String>,
    /// The number of operations since Seawall started. Includes [`Self::local_operations`].
    pub operations: u64,
    /// The connections to all servers.
    pub server_connections: Connections,
    /// The time since Seawall started.
    #[serde(serialize_with = "as_integer")]
    pub uptime_seconds: f64,
    /// The version of Seawall.
    pub version: String,
    /// The number of operations that wait because no server connection is free for them, or because
    /// the concurrency limit is reached.
    pub wait_queue: u64,
}

/// A certificate or revocation list in a file, and when it expires.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Certificate {
    /// The path of the file.
    pub file: String,
    /// The kind of the item: `certificate` or `revocation_list`.
    pub kind: String,
    /// The end of the validity in seconds since the epoch.
    pub not_after: i64,
    /// The hexadecimal serial number of the certificate, or the CRL number of the revocation list.
    /// Empty if the list has no number.
    pub serial: String,
    /// The subject of the certificate, or the issuer of the revocation list, such as `CN=clients`.
    pub subject: String,
}

/// The state of the history, which keeps the statistics of past periods in memory.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HistoryStatus {
    /// The size of the history in memory, in bytes.
    pub bytes: u64,
    /// True if a history is kept. `None` if the proxy does not report this member.
    pub on: Option<bool>,
}

/// The numbers of server connections by state.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// Established connections that no operation uses.
    pub available: u64,
    /// Connections that an operation uses.
    pub in_use: u64,
    /// Connections that are being established.
    pub pending: u64,
}

impl Connections {
    /// The number of connections in all states.
    pub fn total(self) -> u64 {
        self.pending + self.available + self.in_use
    }
}

/// The pools of all servers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pools {
    /// One pool per server.
    pub pools: Vec<Pool>,
}

/// The connections to one server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Established connections that no operation uses.
    pub available: u64,
    /// The limit of operations in progress on the server.
    pub concurrency: Concurrency,
    /// Connections that an operation uses.
    pub in_use: u64,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Connections that are being established.
    pub pending: u64,
    /// The server's address.
    pub server: String,
    /// The state of the pool: `ready`; `paused` if the server is not available; `suspect` if a
    /// connection ended during an operation and Seawall checks whether the server has failed; or
    /// `closed`.
    pub state: String,
    /// The users with connections or waiting operations.
    pub users: Vec<PoolUser>,
    /// Operations that wait because no connection is free for them, or because the concurrency
    /// limit is reached.
    pub wait_queue: u64,
}

/// The concurrency limit of one server, and the number of operations in each state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Concurrency {
    /// Number of operations that have run for so long that they no longer count toward the limit.
    pub exempt: u64,
    /// Number of operations that run and count toward the limit.
    pub in_progress: u64,
    /// The maximum number of operations in progress; `None` if there is no limit.
    pub limit: Option<u64>,
    /// How the limit is set: `auto`, `fixed` or `off`. Empty if the proxy does not report this
    /// member.
    pub mode: String,
    /// Why Seawall last decided to change or to keep the limit, as a sentence. `None` if the mode
    /// is not `auto`, if Seawall has not made a decision yet, or if the replies of several
    /// instances were merged. If Seawall discards its measurements of the server and the limit
    /// stays the same, this is `None` until the next decision.
    pub reason: Option<String>,
    /// Number of operations that run although the limit is reached. They are statements of
    /// transactions after the first statement, and commands that end transactions, sessions,
    /// cursors or operations.
    pub reserved: u64,
    /// The limit without short trials: after Seawall has tried another limit for a short time, it
    /// returns to this limit. Equal to `limit` while no trial runs. `None` if there is no limit.
    pub settled: Option<u64>,
    /// Number of waiting operations that will count toward the limit when they run. Some of them
    /// wait because the limit is reached, others only because no connection is free.
    pub waiting: u64,
}

/// The connections to one server that belong to one user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolUser {
    /// Established connections that no operation uses.
    pub available: u64,
    /// Connections that an operation uses.
    pub in_use: u64,
    /// The user's name.
    pub name: String,
    /// Connections that are being established.
    pub pending: u64,
    /// The database in which the user was created (the authentication database).
    pub source: String,
    /// Operations that wait because no connection is free for them, or because the concurrency
    /// limit is reached.
    pub wait_queue: u64,
}

/// The description of the deployment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Topology {
    /// The known servers.
    pub servers: Vec<TopologyServer>,
    /// The name of the replica set; `None` if the deployment is not a replica set.
    pub set_name: Option<String>,
    /// The topology type (server discovery and monitoring specification), such as `Sharded`.
    #[serde(rename = "type")]
    pub topology_type: String,
}

/// The description of one server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TopologyServer {
    /// Host and port.
    pub address: String,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The highest wire version that the server supports.
    pub max_wire_version: i32,
    /// The round-trip time; `None` until it is measured.
    pub round_trip_ms: Option<f64>,
    /// True if an operation or a probe (a regular check by Seawall) failed on the server, and no
    /// probe has succeeded since.
    pub suspect: bool,
    /// The tags of a replica set member.
    pub tags: BTreeMap<String, String>,
    /// The server type (server discovery and monitoring specification), such as `RSPrimary`.
    #[serde(rename = "type")]
    pub server_type: String,
}

/// The connected clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Clients {
    /// The clients, the oldest connection first, up to the limit in the request.
    pub clients: Vec<Client>,
    /// The number of all connected clients, including clients beyond the limit.
    pub count: u64,
}

/// One connected client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Client {
    /// The application's name in the client metadata, if any.
    pub application: Option<String>,
    /// When the client connected, in seconds since the epoch.
    pub connected_at: f64,
    /// The number of the client's connection, which is also the `connectionId` in the reply to
    /// `hello`.
    pub id: i32,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The client's address and port.
    pub peer: String,
    /// The user as `source.name`; `None` before the client has logged in.
    pub user: Option<String>,
}
