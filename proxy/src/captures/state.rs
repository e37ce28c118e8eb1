//! Descriptions of captures for the API.

use std::collections::BTreeMap;

use super::{
    directory::StoredCapture,
    selection::Selection,
    written::{Written, by_reason},
};

/// A capture that runs or has ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaptureState {
    /// The id, which is also the name of the capture's directory.
    pub id: String,
    /// True while the capture runs.
    pub is_running: bool,
    /// When the capture began, in microseconds since 1970; 0 if the time is not known.
    pub began_at_us: u64,
    /// When the capture ended, in microseconds since 1970; `None` while it runs or if the time is
    /// not known.
    pub ended_at_us: Option<u64>,
    /// The reason for the end of the capture; `None` while the capture runs. `incomplete` if the
    /// process ended before the capture could end.
    pub end: Option<String>,
    /// The reason for the start of the capture: `operator` if an operator requested it, otherwise
    /// the kind of the event that began the capture.
    pub trigger: String,
    /// Size of all parts (the files with records) together, in bytes.
    pub bytes: u64,
    /// Number of parts.
    pub parts: u64,
    /// Number of captured clients; 0 if `end` is `incomplete`.
    pub clients: u64,
    /// Number of recorded operations; 0 if `end` is `incomplete`.
    pub operations: u64,
    /// Number of omitted operations and omitted messages of replies, by the reason for the
    /// omission; empty if `end` is `incomplete`.
    pub omitted: BTreeMap<String, u64>,
    /// True if replies are recorded whole; false if only facts about them are recorded.
    pub has_whole_replies: bool,
    /// The mode of redaction; `None` if it is not known.
    pub redaction: Option<String>,
    /// Selects the clients that are captured.
    pub selection: Selection,
}

impl CaptureState {
    /// The state of the running capture.
    pub(super) fn of_running(capture: &Written) -> Self {
        let tap = &capture.tap;
        let (counts, progress) = (tap.queue.counts(), capture.progress());
        let summary = capture.summary(counts, None);
        Self {
            id: capture.id.as_str().to_owned(),
            is_running: true,
            began_at_us: summary.began_at_us,
            ended_at_us: None,
            end: None,
            trigger: summary.trigger,
            bytes: progress.bytes,
            parts: progress.parts.into(),
            clients: counts.clients,
            operations: counts.operations,
            omitted: by_reason(&counts),
            has_whole_replies: summary.whole_replies,
            redaction: summary.redaction,
            selection: tap.selection.clone(),
        }
    }

    /// The state of a capture that has ended.
    pub(super) fn of_kept(kept: StoredCapture) -> Self {
        let summary = kept.summary.unwrap_or_default();
        let is_complete = !summary.end.is_empty();
        Self {
            id: kept.id.as_str().to_owned(),
            is_running: false,
            began_at_us: summary.began_at_us,
            ended_at_us: is_complete.then_some(summary.ended_at_us),
            end: Some(match is_complete {
                true => summary.end,
                false => "incomplete".to_owned(),
            }),
            trigger: summary.trigger,
            bytes: kept.bytes,
            parts: kept.parts,
            clients: summary.clients,
            operations: summary.operations,
            omitted: summary.omitted,
            has_whole_replies: summary.whole_replies,
            redaction: summary.redaction,
            selection: Selection {
                sample: summary.sample,
                namespaces: summary.namespaces,
                users: summary.users,
                applications: summary.applications,
            },
        }
    }
}
