//! Events that can explain why latencies or numbers of operations changed, such as reloads and
//! failovers: `/api/v1/annotations`.

use serde::{Deserialize, Serialize};

/// The annotations of a period.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// The annotations, the earliest first.
    pub annotations: Vec<Annotation>,
}

/// One event. Times are in seconds since the epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotation {
    /// When the event began.
    pub at: f64,
    /// When the event ended; `None` for an event at one moment, and for an event that has not
    /// ended.
    pub end: Option<f64>,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The kind: `reload`, `failover`, `storm`, `stall`, `change` or `deploy`.
    pub kind: String,
    /// A description of the event.
    pub text: String,
}

/// An annotation that a caller adds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewAnnotation {
    /// When the event happened, in seconds since the epoch; the current time if missing.
    pub at: Option<f64>,
    /// The kind. Callers can add only `deploy`, which is also the default.
    pub kind: Option<String>,
    /// A description of the event, 1 to 200 bytes.
    pub text: String,
}
