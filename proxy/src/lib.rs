//! Seawall, a transparent MongoDB wire-protocol proxy.
//!
//! Seawall terminates client connections (TLS, SCRAM) and runs their operations over pooled server
//! connections that are authenticated as the same user. It measures the duration of every operation
//! and groups operations by fingerprints. `docs/ARCHITECTURE.md` follows one operation step by step
//! and lists which module may use which. This table lists the modules of this crate, from the
//! composition root down. The parts that need no other module are crates under `proxy/crates/`.
//!
//! | module | purpose |
//! |---|---|
//! | [`cli`] | the subcommands, for example serve, check, load and report |
//! | [`app`] | the composition root: builds and connects all parts, runs, drains |
//! | [`listener`] | accepts client connections: TCP, Unix sockets, TLS |
//! | [`admin`] | metrics, health checks, the JSON API and the dashboard over HTTP |
//! | [`client`] | one client connection: handshake, login, operations |
//! | [`topology`] | the deployment's description; server selection |
//! | [`pool`] | the connections to one server, with one pool per user |
//! | [`limits`], [`pins`] | admission limits; cursors and transactions pinned to a server |
//! | [`captures`] | recordings of the operations of selected clients |
//! | [`observe`] | metrics, tables of counts, the observation of one operation |
//! | [`pulse`] | samples of each server's `serverStatus` |
//! | `service_account` | the user in the connection string: its login and its commands |
//! | [`runtime`] | the threads: two runtimes, periodic tasks, the limit of file descriptors |

pub mod admin;
pub mod app;
pub mod captures;
pub mod cli;
pub mod client;
pub mod limits;
pub mod listener;
pub mod observe;
pub mod pins;
pub mod pool;
pub mod pulse;
pub mod runtime;
#[cfg(test)]
mod scripted;
mod service_account;
pub mod topology;
