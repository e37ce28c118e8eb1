//! The threads: two runtimes, how their workers sleep, how late they wake tasks, and the limit of
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
