//! The threads: two runtimes, the sleep of their workers, their ticks and lateness, and the
//! limit of descriptors.

mod activity;
mod descriptors;
mod heartbeat;
mod lateness;
mod parking;
mod planes;

pub use self::{
    activity::Activity,
    descriptors::raise_descriptor_limit,
    heartbeat::Heartbeat,
    lateness::Lateness,
    planes::{Plane, Planes},
};
pub(crate) use self::{activity::TICK, lateness::measure_lateness};
