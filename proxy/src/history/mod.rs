//! What is remembered of durations, and what a series of seconds tells: mergeable distributions, storms.
//!
//! Pure values: no clock, no table of who they belong to.

mod distribution;
mod storm;

pub use self::{
    distribution::{BUCKETS, Distribution, OCTAVES, octave_bound_seconds},
    storm::{Second, StormDetector, Turn},
};
