//! Seawall, a transparent MongoDB wire-protocol proxy.
//!
//! It terminates client connections (TLS, SCRAM), reuses pooled server connections that are
//! authenticated as the same user, times every operation, and distinguishes kinds of operations by
//! their fingerprints. `docs/ARCHITECTURE.md` follows one operation step by step and lists which
//! module may use which. This table is the map, from the composition root down.
//!
//! | module | purpose |
//! |---|---|
//! | [`commands`] | the subcommands: serve, demo, check, config, load, top, report, completions |
//! | [`app`] | the composition root: builds and connects all parts, runs, drains |
//! | [`listener`] | accepts client connections: TCP, Unix sockets, TLS |
//! | [`admin`] | metrics, health checks and the JSON API over HTTP |
//! | [`client`] | one client connection: handshake, login, operations |
//! | [`topology`] | the deployment's description; server selection |
//! | [`pool`] | the connections to one server, with one pool per user |
//! | [`connection`] | one connection to a server: establishing it, control commands |
//! | [`runtime`] | the threads: two runtimes, their lateness, the limit of descriptors |
//! | [`limits`], [`pins`] | admission limits; cursors and transactions pinned to a server |
//! | [`insight`] | the history; storms, stalls and changes |
//! | [`pulse`] | samples of each server's `serverStatus` |
//! | [`api`] | the JSON replies of the admin API, as they are written and read, and its client |
//! | [`observe`] | metrics, tables of counts, the observation of one operation |
//! | [`command`], [`command_table`] | commands and replies; everything that a name says |
//! | [`shape`] | fingerprints |
//! | [`stats`] | the basic types of statistics: distributions, phases, outcomes, labels |
//! | [`wire`], [`auth`] | messages; SCRAM. They use no other module |
//! | [`load`] | the load harness: storms and steady loads against any endpoint |
//! | [`mongod`] | a private mongod, for the demo and for tests |

pub mod admin;
pub mod api;
pub mod app;
pub mod auth;
pub mod client;
pub mod command;
pub mod command_table;
pub mod commands;
pub mod connection;
pub mod insight;
pub mod limits;
pub mod listener;
pub mod load;
pub mod mongod;
pub mod observe;
pub mod pins;
pub mod pool;
pub mod pulse;
pub mod runtime;
pub mod shape;
pub mod stats;
pub mod topology;
pub mod wire;
