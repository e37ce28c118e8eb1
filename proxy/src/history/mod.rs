//! What is remembered, and what it tells: distributions of durations, the past in four resolutions, storms.
//!
//! Pure values: no clock, and nothing of where they come from. Only `store` touches a file.

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
    store::{Found, Store, StoreError},
    storm::{Second, StormDetector, Turn},
    tiers::{Frame, History, Selection, TIERS, Turnover},
};
