//! Seawall.
pub mod admin;
pub mod app;
pub mod auth;
pub mod client;
pub mod command;
pub mod commands;
pub mod connection;
pub mod history;
pub mod limits;
pub mod listener;
pub mod mongod;
pub mod observe;
pub mod pins;
pub mod pool;
pub mod shape;
pub mod topology;
pub mod wire;
