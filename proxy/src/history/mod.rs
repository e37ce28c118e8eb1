//! The history of the statistics: time series in four resolutions, and the detectors of storms,
//! stalls and changes.
//!
//! Pure values: no clock and no knowledge of the data's source. Only `store` uses a file.

mod changes;
mod packed;
mod stalls;
mod store;
mod storm;
mod tiers;

pub use self::{
    changes::{Change, ChangeKind, compare},
    packed::Damaged,
    stalls::{
        Beat, Episode, Moved, Recurrence, Sample, StallDetector, moved, recurrence, unanswered,
    },
    store::{Store, StoreError, StoredHistory},
    storm::{Second, StormDetector, Turn},
    tiers::{Delta, Frame, History, Selection, TIERS},
};
