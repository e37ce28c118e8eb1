//! Fuzz targets for all code that reads bytes from a client, a server, an operator or a file.
//!
//! A target is a function that takes bytes and returns nothing. It panics when a property does not
//! hold. The module of each target states its input and the properties that it checks. cargo-fuzz
//! runs the targets with coverage feedback (`fuzz_targets/`). `main.rs` runs them on a stable
//! toolchain with mutations of the corpus.

mod choices;
mod documents;
pub mod mutation;
pub mod seeds;
pub mod targets;

pub use targets::{TARGETS, Target};
