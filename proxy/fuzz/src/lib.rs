//! Fuzz targets of everything that reads bytes from a client, a server, an operator or a file.
//!
//! A target is a function from bytes to nothing. It panics when a property does not hold: the module of each target
//! says which bytes it takes and which properties it checks. cargo-fuzz runs them guided by coverage (`fuzz_targets/`),
//! `main.rs` runs them on a stable toolchain with mutations of the corpus.

mod choices;
mod documents;
pub mod mutation;
pub mod seeds;
pub mod targets;

pub use targets::{TARGETS, Target};
