//! What is remembered of durations: mergeable distributions.
//!
//! Pure values: no clock, no table of who they belong to.

mod distribution;

pub use distribution::{BUCKETS, Distribution, OCTAVES, octave_bound_seconds};
