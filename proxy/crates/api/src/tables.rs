//! The operations by namespace and by server: `/api/v1/namespaces` and `/api/v1/servers`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    as_integer_if_some,
    figures::{Bucket, Latency, Phases},
};

/// The namespaces, by total time in descending order. In the figures since Seawall started, the
/// time of operations that waited for an event does not count for this order. In the figures of a
/// requested period, it does count.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespaces {
    /// One row per command and collection, up to the limit of the request.
    pub namespaces: Vec<Namespace>,
    /// Number of seconds in the period that have data. Absent if the figures cover the time since
    /// Seawall started.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "as_integer_if_some"
    )]
    pub since_seconds: Option<f64>,
}

/// The figures of one command on one collection. A `getMore` counts as a separate operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// The total time of operations that waited for an event, such as the `getMore`s on change
    /// streams. This time is a part of `total_time_ms`. Present only in the figures since Seawall
    /// started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaited_time_ms: Option<f64>,
    /// The collection; empty if there is none.
    pub collection: String,
    /// The command's name.
    pub command: String,
    /// Operations that ended.
    pub count: u64,
    /// The database.
    pub db: String,
    /// The distribution of the operations' durations. Present if the request has
    /// `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Documents that the operations returned, wrote or counted.
    pub documents: u64,
    /// Error replies by code. Present only in the figures since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_codes: Option<BTreeMap<String, u64>>,
    /// Operations that failed. Present only in the figures of a requested period. For the figures
    /// since Seawall started, see `outcomes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<u64>,
    /// The operations' durations.
    pub latency_ms: Latency,
    /// Operations by outcome. Present only in the figures since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcomes: Option<BTreeMap<String, u64>>,
    /// The operations' time by phase.
    pub phases_ms: Phases,
    /// Total size of the replies in bytes.
    pub reply_bytes: u64,
    /// Total size of the commands in bytes.
    pub request_bytes: u64,
    /// Retries: writes that the driver had already sent before. Present only in the figures since
    /// Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Operations whose command Seawall forwarded before all of its bytes had arrived. Present only
    /// in the figures since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streamed: Option<u64>,
    /// The operations' total time.
    pub total_time_ms: f64,
    /// Write concern errors by code. Present only in the figures since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_concern_error_codes: Option<BTreeMap<String, u64>>,
    /// The failed writes that `write_errors` counts, by code. Present only in the figures since
    /// Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_error_codes: Option<BTreeMap<String, u64>>,
    /// Single writes that failed although the reply has `ok: 1`, for example one insert of a batch.
    /// Present only in the figures since Seawall started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_errors: Option<u64>,
}

/// The servers that handled operations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Servers {
    /// One row per server.
    pub servers: Vec<Server>,
}

/// The operations that one server handled, except operations that waited for an event, for example
/// the `getMore`s on change streams. Any other `getMore` counts as a separate operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Server {
    /// Host and port.
    pub address: String,
    /// The time from the command's last byte to the reply's first byte. Absent in a report on a
    /// period (`/api/v1/report`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_ms: Option<Latency>,
    /// Operations that ended.
    pub count: u64,
    /// The distribution of the durations of whole operations. Present only in a report on a period
    /// (`/api/v1/report`), and only if the request has `distributions=true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Vec<Bucket>>,
    /// Documents that the operations returned, wrote or counted.
    pub documents: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The durations of whole operations.
    pub latency_ms: Latency,
    /// The operations' time by phase.
    pub phases_ms: Phases,
    /// Total size of the replies in bytes.
    pub reply_bytes: u64,
    /// Total size of the commands in bytes.
    pub request_bytes: u64,
    /// The operations' total time.
    pub total_time_ms: f64,
}
