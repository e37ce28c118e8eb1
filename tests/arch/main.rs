//! Checks the structure of the sources: dependencies, visibility, cycles, names and sizes.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this crate contains only tests and their helpers"
)]

mod cycles;
mod dependencies;
mod files;
mod names;
mod paths;
mod sources;
mod visibility;
