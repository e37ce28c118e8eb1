//! Replays captured traffic as load.
//!
//! A capture holds the commands of the captured clients, with their times. A replay sends these
//! commands again to another deployment (the target), for example with another server version,
//! other indexes or other machines. The replay is an open loop: each command starts when it is due,
//! even if earlier commands have not ended, unless the command must follow one of them.
//!
//! ```text
//! source ─► plan ─► rewrite ─► schedule ─► connection ─► results
//! records   send    ids of     when due,   one reply
//!           or skip this run   after what  each
//! ╰──── a thread of its own ──╯╰──────── the thread that sends ───────╯
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `source` | reads the parts of a capture in their order |
//! | `prepare` | plans the commands, and rewrites those that need no ids that the target assigns |
//! | `plan` | decides which commands are sent |
//! | `schedule` | decides when a command starts, and what it waits for |
//! | `rewrite` | replaces ids and times that are valid only in the captured deployment |
//! | `endpoint` | the target, and the check that it is not the captured deployment |
//! | `records` | reads records ahead, within a limit of bytes |
//! | `slots` | assigns clients to connections |
//! | `connection` | one connection: sends a command, receives its reply |
//! | `timing` | the lag of commands, and the precision of the intervals between them |
//! | `streams` | counts the events of change streams and tailable cursors |
//! | `run` | runs a replay |
//! | `survey` | a dry run, and the results that a capture contains |
//! | `digest` | digests of results; they do not depend on the order of documents |
//! | `results` | the results per shape, and the report |
//! | `compare` | the comparison of two reports |
//! | `recent` | a map that forgets the entries that were used least recently |
//!
//! `prepare`, `plan`, `schedule`, `rewrite`, `digest`, `results` and `compare` do no I/O and read
//! no clock.

mod compare;
mod connection;
mod digest;
mod endpoint;
mod plan;
mod prepare;
mod recent;
mod records;
mod results;
mod rewrite;
mod run;
mod schedule;
mod slots;
mod source;
mod streams;
mod survey;
#[cfg(test)]
mod tests;
mod timing;

pub use self::{
    compare::{Change, ChangeKind, Comparison, Missed, Names},
    digest::Exclusion,
    endpoint::EndpointError,
    plan::Choice,
    results::{Durations, ReplaySettings, Report, ReportError, ResultKind, ShapeResult},
    run::{Replay, run},
    schedule::Pace,
    source::{Source, SourceError},
    survey::{captured_results, dry_run},
};

pub use seawall_shape::ShapeId;

use self::{
    plan::{CursorUse, Decision, Planned, Planner, SkipReason},
    recent::Recent,
    rewrite::{Rewriter, SessionKey},
    schedule::{Lane, OperationId, Schedule},
};
