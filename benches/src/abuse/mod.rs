//! Attacks on Seawall beside other users' load: the parts of the bench of that name.
//!
//! Every attack is bounded in number, pace and time. Attackers come from 127.0.0.2, the victims from 127.0.0.1 and
//! 127.0.0.3, each with its own thread. An attack counts how its attempts ended; what the victims met is in `victims`.

pub mod arena;
mod attacks;
pub mod report;
pub mod testbed;
pub mod victims;

use std::pin::Pin;

use self::arena::{Arena, Ending};
pub use self::attacks::ATTACKS;

/// One attack.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// Its name, for `--only` and the table.
    pub name: &'static str,
    /// What is done, how often and by how many connections; for the whole run.
    pub pace: &'static str,
    /// Seawall's configuration beyond the defaults, in TOML.
    pub toml: &'static str,
    /// The attack must reach at least one of these endings; otherwise the bench fails.
    pub expected: &'static [Ending],
    /// The attack itself.
    pub run: fn(Arena) -> Pin<Box<dyn Future<Output = ()>>>,
}
