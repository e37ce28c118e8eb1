//! What is remembered, and what it tells: distributions of durations, the past in four resolutions, storms.
//!
//! Pure values: no clock, and nothing of where they come from. Only `store` touches a file.

mod distribution;
mod figures;
mod packed;
mod storm;
mod tiers;

pub use self::{
    distribution::{Distribution, FineDistribution, OCTAVES, octave_bound_seconds},
    figures::{Figures, Label, PHASES, Period},
    packed::Damaged,
    storm::{Second, StormDetector, Turn},
    tiers::{Frame, History, TIERS, Turnover},
};
