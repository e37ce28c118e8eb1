//! The threads of Seawall: two runtimes, when their workers sleep, periodic ticks, and how late the
//! runtimes run their tasks. The module also raises the limit of descriptors, and limits how often
//! frequent events are logged.

mod activity;
mod descriptors;
mod heartbeat;
mod lateness;
mod occasional;
mod parking;
mod planes;

pub use self::occasional::OccasionalLog;
pub use self::{
    activity::Activity,
    descriptors::raise_descriptor_limit,
    heartbeat::Heartbeat,
    lateness::Lateness,
    planes::{Plane, Planes},
};
pub(crate) use self::{activity::TICK, lateness::measure_lateness};
