//! Seawall's two tokio runtimes: their threads, when these threads sleep, periodic tasks, and how
//! late each runtime runs its tasks. The module also raises the limit on file descriptors, and
//! limits how often frequent events are logged.

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
