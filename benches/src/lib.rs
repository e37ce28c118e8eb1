//! What the end-to-end comparison is made of: a load generator, the things compared, and their costs.

pub mod abuse;
pub mod extras;
pub mod load;
pub mod process;
pub mod setup;
pub mod sight;
pub mod weather;
