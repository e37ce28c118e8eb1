//! Reconnect storms, sudden rises in the number of short-lived client connections:
//! `/api/v1/storms`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::as_integer;

/// The storms, the latest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Storms {
    /// True while a storm lasts.
    pub active: bool,
    /// True while the proxy still learns the normal traffic. It cannot detect a storm yet.
    pub learning: bool,
    /// The storms that the proxy keeps.
    pub storms: Vec<Storm>,
}

/// One reconnect storm: a sudden rise in the number of short-lived client connections, which end
/// within 10 s. Times are in seconds since the epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Storm {
    /// The applications with the most short-lived connections.
    pub applications: Vec<Named>,
    /// Number of clients that connected.
    pub arrivals: u64,
    /// Number of logins of clients.
    pub client_authentications: u64,
    /// Number of short-lived connections, grouped by how they ended.
    pub departures: BTreeMap<String, u64>,
    /// The drivers with the most short-lived connections.
    pub drivers: Vec<Named>,
    /// The end of the storm; `None` while it lasts.
    pub ended_at: Option<f64>,
    /// For each stage of a connection except `ready`, for example `logging_in`: the number of
    /// short-lived connections that the client closed in this stage.
    pub gave_up_in: BTreeMap<String, u64>,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The networks from which clients opened the most short-lived connections.
    pub networks: Vec<Named>,
    /// The highest number of clients that connected within one second.
    #[serde(serialize_with = "as_integer")]
    pub peak_arrivals_per_second: f64,
    /// Number of logins of Seawall and of relayed clients at servers.
    pub server_authentications: u64,
    /// Number of client logins that caused no login at a server: `client_authentications` minus
    /// `server_authentications`.
    pub server_authentications_absorbed: u64,
    /// Number of client connections that caused no server connection: `arrivals` minus
    /// `server_connections_created`.
    pub server_connections_absorbed: u64,
    /// Number of connections that Seawall established to servers.
    pub server_connections_created: u64,
    /// The start of the storm.
    pub started_at: f64,
    /// The users with the most short-lived connections.
    pub users: Vec<Named>,
    /// The number of short-lived connections per second that was usual before the storm.
    pub usual_short_lived_per_second: f64,
}

/// A name, for example of an application, and the number of its connections or operations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Number of connections or operations with this name.
    pub count: u64,
    /// The name of the application, driver, network or user.
    pub name: String,
}
