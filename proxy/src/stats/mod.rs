//! The basic types of statistics: distributions of durations, phases, outcomes, and the sums of
//! series with their labels.
//!
//! Pure values: no clock, no I/O, and no knowledge of where they come from.

mod distribution;
mod figures;
mod label;
mod outcome;
mod phase;

pub use self::{
    distribution::{Distribution, FineDistribution, OCTAVES, octave_bound_seconds},
    figures::{Figures, Period, WeighedSeries},
    label::{Label, Level},
    outcome::{OUTCOMES, Outcome},
    phase::{PerPhase, Phase, PhaseTimes},
};

/// A count as a floating-point number.
#[expect(
    clippy::as_conversions,
    reason = "counts and seconds are far under 2^53"
)]
pub fn float(number: u64) -> f64 {
    number as f64
}
