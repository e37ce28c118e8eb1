//! Captures of traffic: `/api/v1/captures`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All captures in the directory of captures.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Captures {
    /// Size of the files of all captures in bytes.
    pub bytes: u64,
    /// The captures, the latest first.
    pub captures: Vec<Capture>,
    /// The reason why no capture can start; `None` if a capture can start.
    pub unavailable: Option<String>,
}

/// A capture that runs or has ended. Times are in seconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Capture {
    /// Application names: only clients with one of these names are captured. Empty if clients of
    /// all applications are captured.
    pub applications: Vec<String>,
    /// When the capture began; 0 if the time is not known.
    pub began_at: f64,
    /// Size of the capture's files in bytes.
    pub bytes: u64,
    /// Number of captured clients.
    pub clients: u64,
    /// Why the capture ended: `duration`, `stopped`, `disk_limit`, `write_failed`, `shutdown` or
    /// `incomplete`. `incomplete` means that the process ended while the capture ran. `None` while
    /// the capture runs.
    pub end: Option<String>,
    /// When the capture ended; `None` while it runs, or if the time is not known.
    pub ended_at: Option<f64>,
    /// The id, which is also the name of the capture's directory.
    pub id: String,
    /// Namespaces: a client is captured from its first operation on one of them. Empty if clients
    /// are captured regardless of the namespaces that they use.
    pub namespaces: Vec<String>,
    /// For each reason, the number of operations that were not recorded. If `replies` is `whole`,
    /// the number includes operations that were recorded, but whose reply message was not recorded.
    pub omitted: BTreeMap<String, u64>,
    /// Number of recorded operations.
    pub operations: u64,
    /// Number of the capture's files.
    pub parts: u64,
    /// How values in commands and replies are recorded: unchanged (`none`), as pseudonyms that keep
    /// the equality of values (`equality`), or as pseudonyms that also keep the order of numbers
    /// and dates, and equal prefixes of strings (`ordered`). `None` if not known.
    pub redact: Option<String>,
    /// The recorded part of each reply. `facts`: only the errors, the counts and the cursor of the
    /// reply. `whole`: the whole reply.
    pub replies: String,
    /// True while the capture runs.
    pub running: bool,
    /// Share of the clients that are captured, from 0 to 1.
    pub sample: f64,
    /// Why the capture began: `operator`, `storm`, `stall` or `change`.
    pub trigger: String,
    /// Users, as `database.user`: only clients of one of these users are captured. Empty if clients
    /// of all users are captured.
    pub users: Vec<String>,
}

/// A capture to start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewCapture {
    /// Application names: only clients with one of these names are captured. Empty for all clients.
    pub applications: Vec<String>,
    /// Duration of the capture, in milliseconds.
    pub duration_ms: u64,
    /// Namespaces, each as `database.collection`, or as `database` for all its collections. A
    /// client is captured from its first operation on one of them. Empty for all clients.
    pub namespaces: Vec<String>,
    /// How values in commands and replies are recorded: unchanged (`none`), as pseudonyms that keep
    /// the equality of values (`equality`), or as pseudonyms that also keep the order of numbers
    /// and dates, and equal prefixes of strings (`ordered`). The default is the value of the config
    /// key `capture.redact`. A request cannot choose less protection than that value.
    pub redact: Option<String>,
    /// The recorded part of each reply. `facts`: only the errors, the counts and the cursor of the
    /// reply. `whole`: the whole reply. The default is `facts`.
    pub replies: Option<String>,
    /// Share of the clients that are captured, above 0 and at most 1. The default is 1.
    pub sample: Option<f64>,
    /// Users, as `database.user`: only clients of one of these users are captured. Empty for all
    /// clients.
    pub users: Vec<String>,
}
