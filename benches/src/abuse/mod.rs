//! Attacks on Seawall beside the load of other users: the parts of the bench `abuse`.
//!
//! Every attack is bounded in number, pace and time. Attackers connect from 127.0.0.2, the victims
//! from 127.0.0.1 and 127.0.0.3. Attackers and victims each have their own thread. An attack counts
//! how its attempts ended. `victims` records the latencies and failures of the victims.

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
    /// What the attack does, at which rate and over how many connections, in a full run.
    pub description: &'static str,
    /// Seawall's configuration in TOML, in addition to the defaults.
    pub toml: &'static str,
    /// At least one of these endings must occur, or the bench fails. Empty if any ending is
    /// allowed.
    pub expected: &'static [Ending],
    /// The function that runs the attack.
    pub run: fn(Arena) -> Pin<Box<dyn Future<Output = ()>>>,
}
