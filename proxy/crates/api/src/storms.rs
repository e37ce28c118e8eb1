//! Storms: `/api/v1/storms`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::as_integer;

/// The storms, the latest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Storms {
    /// True while a storm lasts.
    pub active: bool,
    /// True while too little was seen since the start to detect a storm.
    pub learning: bool,
    /// The storms that are known.
    pub storms: Vec<Storm>,
}

/// One storm. Times are in seconds since the epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Storm {
    /// The most frequent applications.
    pub applications: Vec<Named>,
    /// Number of clients that connected.
    pub arrivals: u64,
    /// Number of logins of clients.
    pub client_authentications: u64,
    /// Number of short-lived connections by the way in which they ended.
    pub departures: BTreeMap<String, u64>,
    /// The most frequent drivers.
    pub drivers: Vec<Named>,
    /// `None` if it lasts.
    pub ended_at: Option<f64>,
    /// Number of short-lived connections that gave up, by stage.
    pub gave_up_in: BTreeMap<String, u64>,
    /// The most frequent networks of clients.
    pub networks: Vec<Named>,
    /// The most clients that connected within one second.
    #[serde(serialize_with = "as_integer")]
    pub peak_arrivals_per_second: f64,
    /// Number of Seawall's logins at servers.
    pub server_authentications: u64,
    /// Number of client logins that did not reach the servers.
    pub server_authentications_absorbed: u64,
    /// Number of client connections that did not reach the servers.
    pub server_connections_absorbed: u64,
    /// Number of connections that Seawall established to servers.
    pub server_connections_created: u64,
    /// Its start.
    pub started_at: f64,
    /// The most frequent users.
    pub users: Vec<Named>,
    /// The usual number of short-lived connections per second.
    pub usual_short_lived_per_second: f64,
}

/// The number of connections of a name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Named {
    /// Number of its connections.
    pub count: u64,
    /// The name.
    pub name: String,
}
