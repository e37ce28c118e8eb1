//! The threads: two runtimes, the sleep of their workers, their lateness, and the limit of
//! descriptors.

mod descriptors;
mod lateness;
mod parking;
mod planes;

pub(crate) use self::lateness::measure_lateness;
pub use self::{
    descriptors::raise_descriptor_limit,
    lateness::Lateness,
    planes::{Plane, Planes},
};
