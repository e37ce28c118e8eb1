//! Seawall's two tokio runtimes. This module starts their threads, decides when these threads
//! sleep, runs periodic tasks, and measures how late each runtime runs its tasks. It also sets the
//! priorities of threads, raises the limit on file descriptors, limits how often frequent events
//! are logged, and writes the audit log.

mod activity;
mod audit;
mod descriptors;
mod lateness;
mod occasional;
mod parking;
mod planes;
mod priority;
mod progress;

#[cfg(all(test, target_os = "linux"))]
pub(crate) use self::priority::NICE;
pub use self::{
    activity::Activity, descriptors::raise_descriptor_limit, lateness::Lateness,
    occasional::OccasionalLog, progress::Liveness,
};
pub(crate) use self::{
    activity::TICK,
    audit::{AUDIT_TARGET, Action, ActionParameters},
    lateness::measure_lateness,
    planes::{Plane, Planes},
    priority::{become_idle, become_nice},
    progress::ProgressCheck,
};
