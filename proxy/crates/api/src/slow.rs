//! The latest slow operations: `/api/v1/slow`.

use serde::{Deserialize, Serialize};

use super::figures::Phases;

/// The latest slow operations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowOperations {
    /// Number of slow operations since Seawall started that were not added to the list. The list
    /// takes a limited number of operations per second, in total and from each user.
    pub left_out: u64,
    /// The operations, the latest first.
    pub operations: Vec<SlowOperation>,
    /// The minimum duration of a slow operation. The configuration of the slow log may contain
    /// another minimum for a shape.
    pub threshold_ms: f64,
}

/// A slow operation, without the values in its command.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SlowOperation {
    /// The client's application.
    pub application: Option<String>,
    /// When the operation ended, in seconds since the epoch.
    pub at: f64,
    /// The client's address.
    pub client: Option<String>,
    /// The collection; empty if there is none.
    pub collection: String,
    /// The command's name.
    pub command: String,
    /// The database.
    pub db: String,
    /// How long the operation took.
    pub duration_ms: f64,
    /// The error code, from the server or from Seawall.
    pub error_code: Option<i32>,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// How the operation ended, as [`Outcome::as_str`](seawall_stats::Outcome::as_str) writes it.
    pub outcome: String,
    /// The time in each phase.
    pub phases_ms: Phases,
    /// Total size of the replies in bytes.
    pub reply_bytes: u64,
    /// The server to which the operation was sent last. `None` if it was sent to no server.
    pub server: Option<String>,
    /// The shape's text, without values. Empty if Seawall has already removed the shape's counters,
    /// and the text with them.
    pub shape: String,
    /// The id of the shape, or of the group of shapes, that `shape` describes.
    pub shape_id: String,
    /// The client's user, as `source.name`. `source` is the user's authentication database.
    pub user: Option<String>,
}
