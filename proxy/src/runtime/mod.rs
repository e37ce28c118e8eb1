//! The threads: two runtimes, the sleep of their workers, their lateness, and the limit of
//! descriptors.

mod descriptors;
mod lateness;
mod parking;
mod planes;

pub use self::{
    descriptors::raise_descriptor_limit,
    lateness::{Lateness, measure_lateness},
    planes::{Plane, Planes},
};
