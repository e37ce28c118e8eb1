//! Seawall.
pub mod auth;
pub mod command;
pub mod connection;
pub mod history;
pub mod observe;
pub mod pool;
pub mod shape;
pub mod topology;
pub mod wire;
