//! Parts of the end-to-end benches: load generators, the compared targets, and measurements of
//! their cost.

pub mod abuse;
pub mod extras;
pub mod insight;
pub mod load;
pub mod process;
pub mod setup;
pub mod weather;
