//! Finds the number of operations that a server should run at a time (the concurrency limit).
//!
//! There is one [`Controller`] per server. About every 100 ms its owner (the code that enforces the
//! limit) passes a [`Sample`] of measurements, and gets a [`Decision`]: the limit, and the reason
//! for it.
//!
//! The controller compares; it has no model of the server. In a trial, it alternates between the
//! limit in use and another limit. It keeps the other limit only if the server completed more work
//! with this limit, and the difference exceeds the measured noise.
//!
//! ```text
//!             both directions tried at each step size
//!   ┌─────────┐ ────────────────────────────────────► ┌─────────┐
//!   │ Search  │    ×2, then ×√2, then ×1.19           │ Settled │  small trials, rare
//!   └─────────┘ ◄──────────────────────────────────── └─────────┘
//!        ▲          the server's rate changed              │
//!        │                                                 │ operations take much longer than
//!        │  low enough, or throughput was lost             ▼ on the unloaded server
//!        └─────────────────────────────────────────── ┌─────────┐
//!                                                     │ Yield   │  lowers step by step
//!                                                     └─────────┘
//! ```
//!
//! The search tries a higher limit first. If load has already slowed down the server, the search
//! tries a lower limit first.
//!
//! A sample covers a window of 100 ms. This is long enough for even a slow server to complete some
//! operations, and short enough for the limit to settle within 10 s. The controller keeps the tried
//! limit only if the gain is at least 1 % (3.5 % for a doubling of the limit). The gain must also
//! be at least 2.5 standard errors of the noise measured at this server (`trial.rs`). If a search
//! takes longer than 8 s, it ends, and one standard error is enough for its last trial. If
//! operations wait only for a part of the time, the rate of arriving operations limits the
//! throughput. Then only a higher limit is tried. The higher limit is kept if it shortens the sum
//! of wait and server time.
//!
//! The ideas come from other controllers. MongoDB's throughput probing compares completed work.
//! Netflix's Gradient2 and Envoy's adaptive concurrency filter compare with the unloaded server,
//! and add jitter to the trials. Other ideas come from Vector's controller.
//!
//! This crate reads no clock, does no I/O and locks nothing. Times are durations since a moment
//! that the owner chooses once. The controller does not know users, connections or queues. The
//! owner decides which operation runs next.

mod controller;
mod crowd;
mod decision;
mod exemption;
mod groups;
mod like;
mod random;
mod sample;
mod search;
mod slice;
mod trial;

pub use self::{
    controller::{Controller, Kept},
    decision::{Decision, Inputs, Load, Reason},
    exemption::{Exemption, ServerTimes},
    groups::ShapeGroups,
    sample::{Epoch, GROUPS, GroupSample, Sample},
};

/// Converts a count to a floating-point number.
#[expect(clippy::as_conversions, reason = "counts are far under 2^53")]
fn float(number: u64) -> f64 {
    number as f64
}

/// Rounds a limit to a whole number of operations.
#[expect(
    clippy::as_conversions,
    reason = "the conversion of a float to an integer saturates"
)]
fn rounded(limit: f64) -> u32 {
    limit.round() as u32
}
