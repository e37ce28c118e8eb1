//! The threads of Seawall: two runtimes, the sleep of their workers, their ticks and their
//! lateness. Also the limit of descriptors, and the limit on how often frequent events are logged.

mod activity;
mod descriptors;
mod heartbeat;
mod lateness;
mod occasional;
mod parking;
mod planes;

pub use self::{
    activity::Activity,
    descriptors::raise_descriptor_limit,
    heartbeat::Heartbeat,
    lateness::Lateness,
    planes::{Plane, Planes},
};
pub(crate) use self::{activity::TICK, lateness::measure_lateness, occasional::OccasionalLog};
