//! Replays captured traffic as load.
//!
//! A capture holds the commands of whole clients, with their times. A replay sends them again to
//! another deployment: another version, other indexes, another machine. It is an open loop: each
//! command starts when it is due, even if earlier ones have not ended, unless it must follow one of
//! them.
//!
//! ```text
//! source ─► plan ─► schedule ─► rewrite ─► connection ─► results
//! records   send    when due,   ids of     one reply
//!           or skip after what  this run   each
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `source` | reads the parts of a capture in their order |
//! | `plan` | decides which commands are sent |
//! | `schedule` | decides when a command starts, and what it waits for |
//! | `rewrite` | replaces ids and times that are valid only in the captured deployment |
//! | `recent` | a map with a limit |
//!
//! `plan`, `schedule` and `rewrite` do no I/O and read no clock.

mod plan;
mod recent;
mod rewrite;
mod schedule;
mod source;

pub use self::{
    plan::{Choice, CursorUse, Decision, Origin, Planned, Planner, SkipReason},
    recent::Recent,
    rewrite::{Rewriter, SessionKey},
    schedule::{Lane, OperationId, Pace, Schedule},
    source::{Source, SourceError},
};
