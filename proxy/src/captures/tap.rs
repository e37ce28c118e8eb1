//! The part of a capture that the tasks of clients use to record operations: the selection of
//! clients, the part of each reply that is recorded, and the queue of records.

use std::{sync::Arc, time::Duration};

use seawall_capture::record::{Redaction, ReplyDetail};
use tokio::time::Instant;

use super::{
    queue::{AllCounts, Queue, microseconds},
    selection::Selection,
};

/// The parameters of a capture.
#[derive(Clone, Debug)]
pub struct CapturePlan {
    /// The clients that are captured.
    pub selection: Selection,
    /// The part of each reply that is recorded.
    pub replies: ReplyDetail,
    /// The mode of redaction; `None` for the configured mode.
    pub redaction: Option<Redaction>,
    /// Duration of the capture.
    pub duration: Duration,
    /// The reason for the start of the capture: `operator` if an operator requested it, otherwise
    /// the kind of the event that began the capture.
    pub trigger: &'static str,
}

/// Records the operations of clients, either for a capture that is being written, or in memory
/// until an event begins a capture.
#[derive(Debug)]
pub(super) struct Tap {
    /// Differs between all taps of the process. Never 0, because 0 means that there is no tap.
    pub(super) number: u64,
    pub(super) selection: Selection,
    pub(super) replies: ReplyDetail,
    /// Decides, with the number of a client, whether the client is in the sample. The seed is
    /// random, so the samples of two captures are independent.
    pub(super) seed: u64,
    pub(super) began: Instant,
    pub(super) queue: Queue,
    pub(super) totals: Arc<AllCounts>,
}

impl Tap {
    /// Microseconds since the tap began.
    pub(super) fn at_us(&self, now: Instant) -> u64 {
        microseconds(now.saturating_duration_since(self.began))
    }
}
