//! Counts of captures.

/// The counts of all captures (recordings of clients' operations) since Seawall started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureCounts {
    /// True while a capture runs.
    pub is_running: bool,
    /// Operations that captures recorded.
    pub operations: u64,
    /// Operations that captures did not record, and replies that captures recorded without their
    /// message, by reason.
    pub omitted: Vec<(&'static str, u64)>,
    /// Captures that have ended, by reason.
    pub ended: Vec<(&'static str, u64)>,
    /// Number of bytes written to captures, after compression.
    pub written_bytes: u64,
    /// Total size of all captures on disk, in bytes.
    pub kept_bytes: u64,
}
