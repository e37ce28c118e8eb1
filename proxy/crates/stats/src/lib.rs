//! The basic types of statistics. For operations: distributions of durations, phases, outcomes, and
//! the sums of a labeled series. For clients and servers: counts of client connections, and samples
//! of the counters of servers. Also gauges, counts of captures, and a parser for the durations and
//! times in requests to the API.
//!
//! The types are plain values. This crate has no clock and no I/O, and does not know the source of
//! the values.

mod captures;
mod distribution;
mod figures;
mod gauges;
mod label;
mod outcome;
mod phase;
mod sample;
mod times;
mod traffic;

pub use self::{
    captures::CaptureCounts,
    distribution::{
        DenseDistribution, Distribution, FineDistribution, Measured, OCTAVES, octave_bound_seconds,
    },
    figures::{Figures, Period, WeighedSeries, add_weighed},
    gauges::{Gauge, GaugeSpan, Gauges},
    label::{Label, Level},
    outcome::{OUTCOMES, Outcome},
    phase::{PerPhase, Phase, PhaseTimes},
    sample::{Counters, ServerSample},
    times::{Against, TimeError, parse_time},
    traffic::{Departure, Leaving, Names, Stage, Traffic},
};

/// Converts a count to a floating-point number.
#[expect(
    clippy::as_conversions,
    reason = "counts and seconds are far under 2^53"
)]
pub fn float(number: u64) -> f64 {
    number as f64
}

/// Converts a number of items to a floating-point number.
pub fn float_usize(number: usize) -> f64 {
    float(u64::try_from(number).unwrap_or(u64::MAX))
}
