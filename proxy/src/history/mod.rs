//! The history of the statistics: distributions of durations, time series in four resolutions, and
//! the detectors of storms, stalls and changes.
//!
//! Pure values: no clock and no knowledge of the data's source. Only `store` uses a file.

mod changes;
mod distribution;
mod figures;
mod packed;
mod stalls;
mod store;
mod storm;
mod tiers;

pub use self::{
    changes::{Change, ChangeKind, compare},
    distribution::{Distribution, FineDistribution, OCTAVES, octave_bound_seconds},
    figures::{Figures, Label, Level, PHASES, Period},
    packed::Damaged,
    stalls::{
        Beat, Episode, Moved, Recurrence, Sample, StallDetector, moved, recurrence, unanswered,
    },
    store::{Store, StoreError, StoredHistory},
    storm::{Second, StormDetector, Turn},
    tiers::{Delta, Frame, History, Selection, TIERS},
};
