//! The proxy and its connections now: `/api/v1/status`, `pools`, `topology` and `clients`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::as_integer;

/// The state of the proxy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Status {
    /// The number of connected clients.
    pub(crate) clients: u64,
    /// The name of the credential source.
    pub(crate) credentials: String,
    /// The topology type.
    pub(crate) deployment: String,
    pub(crate) draining: bool,
    pub(crate) history: HistoryStatus,
    pub(crate) injects_faults: bool,
    pub(crate) mode: String,
    /// The number of operations since the start.
    pub(crate) operations: u64,
    pub(crate) server_connections: Connections,
    #[serde(serialize_with = "as_integer")]
    pub(crate) uptime_seconds: f64,
    pub(crate) version: String,
    /// The number of operations that wait for a connection.
    pub(crate) wait_queue: u64,
}

/// The state of the history.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HistoryStatus {
    /// Its size in memory.
    pub(crate) bytes: u64,
    /// `None` if the proxy does not report it.
    pub(crate) on: Option<bool>,
}

/// The numbers of server connections by state.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Connections {
    pub(crate) available: u64,
    pub(crate) in_use: u64,
    pub(crate) pending: u64,
}

impl Connections {
    pub(crate) fn total(self) -> u64 {
        self.pending + self.available + self.in_use
    }
}

/// The pools of all servers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pools {
    pub(crate) pools: Vec<Pool>,
}

/// The connections to one server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Pool {
    pub(crate) available: u64,
    pub(crate) in_use: u64,
    pub(crate) pending: u64,
    pub(crate) server: String,
    pub(crate) state: String,
    pub(crate) users: Vec<PoolUser>,
    pub(crate) wait_queue: u64,
}

/// The connections to one server that belong to one user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PoolUser {
    pub(crate) available: u64,
    pub(crate) in_use: u64,
    pub(crate) name: String,
    pub(crate) pending: u64,
    pub(crate) source: String,
    pub(crate) wait_queue: u64,
}

/// The description of the deployment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Topology {
    pub(crate) servers: Vec<TopologyServer>,
    pub(crate) set_name: Option<String>,
    #[serde(rename = "type")]
    pub(crate) topology_type: String,
}

/// The description of one server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TopologyServer {
    pub(crate) address: String,
    pub(crate) max_wire_version: i32,
    /// `None` until it was measured.
    pub(crate) round_trip_ms: Option<f64>,
    pub(crate) suspect: bool,
    pub(crate) tags: BTreeMap<String, String>,
    #[serde(rename = "type")]
    pub(crate) server_type: String,
}

/// The connected clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Clients {
    /// The oldest connections first, up to the limit of the request.
    pub(crate) clients: Vec<Client>,
    /// The number of all clients.
    pub(crate) count: u64,
}

/// One connected client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Client {
    pub(crate) application: Option<String>,
    /// In seconds since the epoch.
    pub(crate) connected_at: f64,
    pub(crate) id: i32,
    /// Address and port.
    pub(crate) peer: String,
    /// `None` before its login.
    pub(crate) user: Option<String>,
}
