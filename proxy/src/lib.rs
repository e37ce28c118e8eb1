//! Seawall.
pub mod command;
pub mod wire;
