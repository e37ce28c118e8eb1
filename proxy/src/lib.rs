//! Seawall, a transparent MongoDB wire-protocol proxy.
//!
//! It terminates client connections (TLS, SCRAM), reuses pooled server connections that are authenticated as
//! the same user, times every operation, and tells every kind of operation apart by its fingerprint.
//! `docs/ARCHITECTURE.md` tells one operation step by step and says which module may use which; this is the
//! map, from the composition root down.
//!
//! | module | what it is |
//! |---|---|
//! | [`commands`] | one file a subcommand: serve, demo, check, load |
//! | [`app`] | the composition root: builds every part from its settings, wires, runs, drains |
//! | [`listener`] | the door: accept, TLS |
//! | [`admin`] | the window: metrics, health, JSON API over HTTP |
//! | [`client`] | one client connection: handshake, login, operations |
//! | [`topology`] | many servers: the deployment's description, selection |
//! | [`pool`] | one server's connections, a pool a user |
//! | [`connection`] | one connection to a server: establish, control commands |
//! | [`limits`], [`pins`] | what is refused; what must stay put |
//! | [`sight`], [`pulse`] | what can be told of the past; what servers say of themselves |
//! | [`observe`] | what is counted: metrics, tables, the observation of an operation |
//! | [`command`], [`history`] | what a message asks and a reply says; distributions |
//! | [`wire`], [`shape`], [`auth`] | bytes and messages; fingerprints; SCRAM: they know nothing else of ours |
//! | [`load`] | the load harness: storms and steady loads, for any endpoint |
//! | [`mongod`] | a private mongod, for the demo and for tests |

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
pub mod load;
pub mod mongod;
pub mod observe;
pub mod pins;
pub mod pool;
pub mod pulse;
pub mod shape;
pub mod sight;
pub mod topology;
pub mod wire;
