//! Attacks on Seawall while other users run operations: the parts of the bench `abuse`.
//!
//! Every attack has a limit for the number of its attempts, for their rate, and for its duration.
//! Attackers connect from 127.0.0.2; the other users, called victims, connect from 127.0.0.1 and
//! 127.0.0.3. Attackers and victims have separate threads. An attack counts how its attempts ended.
//! The module `victims` records the victims' latencies and failures.

pub mod arena;
mod attacks;
pub mod report;
pub mod testbed;
pub mod victims;

use std::pin::Pin;

use self::arena::{Arena, Ending};
pub use self::attacks::ATTACKS;

/// An attack: its load, its Seawall configuration and its expected outcome.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// The name of the attack, for `--only` and in the table.
    pub name: &'static str,
    /// A description of the attack, with its rate or its number of connections in a full run.
    pub description: &'static str,
    /// Seawall's configuration in TOML, in addition to the defaults.
    pub toml: &'static str,
    /// At least one attempt must end in one of these ways, or the bench fails. Empty if any ending
    /// is allowed.
    pub expected: &'static [Ending],
    /// The function that runs the attack.
    pub run: fn(Arena) -> Pin<Box<dyn Future<Output = ()>>>,
}
