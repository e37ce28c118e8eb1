//! Storms: `/api/v1/storms`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::as_integer;

/// The storms, the latest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Storms {
    pub(crate) active: bool,
    /// True while too little was seen since the start to detect a storm.
    pub(crate) learning: bool,
    pub(crate) storms: Vec<Storm>,
}

/// One storm. Times are in seconds since the epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Storm {
    pub(crate) applications: Vec<Named>,
    pub(crate) arrivals: u64,
    pub(crate) client_authentications: u64,
    /// Number of short-lived connections by the way in which they ended.
    pub(crate) departures: BTreeMap<String, u64>,
    pub(crate) drivers: Vec<Named>,
    /// `None` if it lasts.
    pub(crate) ended_at: Option<f64>,
    /// Number of short-lived connections that gave up, by stage.
    pub(crate) gave_up_in: BTreeMap<String, u64>,
    pub(crate) networks: Vec<Named>,
    #[serde(serialize_with = "as_integer")]
    pub(crate) peak_arrivals_per_second: f64,
    pub(crate) server_authentications: u64,
    pub(crate) server_authentications_absorbed: u64,
    pub(crate) server_connections_absorbed: u64,
    pub(crate) server_connections_created: u64,
    pub(crate) started_at: f64,
    pub(crate) users: Vec<Named>,
    pub(crate) usual_short_lived_per_second: f64,
}

/// The number of connections of a name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(crate) count: u64,
    pub(crate) name: String,
}
