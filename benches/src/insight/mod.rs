//! The parts of the bench `insight`. They measure how exact Seawall's statistics are, how much CPU
//! time and memory the statistics need, and whether Seawall detects stalls and changes.
//!
//! Every part starts the servers and the Seawall processes that it needs. It prints its results
//! before it checks them with assertions. The loads use raw connections, because a driver would
//! retry operations, and let them wait for a connection of its pool.

pub mod captures;
pub mod changes;
pub mod cost;
pub mod exactness;
pub mod history;
pub mod link;
pub mod logged;
pub mod pace;
pub mod random;
pub mod seawall;
pub mod stalls;
pub mod table;

use std::{fs, path::PathBuf};

use crate::output::say;

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Path of the Seawall binary.
    pub binary: PathBuf,
    /// True for a quick run, which is short and asserts nothing that depends on timing.
    pub is_quick: bool,
}

impl Plan {
    /// Returns `whole` in a full run, and `quick` in a quick run.
    pub fn either<T>(&self, whole: T, quick: T) -> T {
        if self.is_quick { quick } else { whole }
    }
}

/// Counters of the machine's CPU time since its start. They show how much CPU time all processes
/// used during a part of the bench. Latencies are reliable only if processes that do not belong to
/// the bench used little CPU time.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// Reads the current counters from `/proc/stat`.
    ///
    /// # Panics
    /// If the machine has no Linux `/proc`.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("/proc is readable");
        let fields = stat.lines().next().unwrap_or_default().split_whitespace();
        // The first eight fields are user, nice, system, idle, iowait, irq, softirq and steal. The
        // guest times after them are already part of user and nice.
        let ticks: Vec<u64> = fields.skip(1).take(8).flat_map(str::parse).collect();
        let all = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Self {
            busy: all - idle,
            all,
        }
    }

    /// Prints the CPU use of the whole machine since `before`.
    pub fn say_since(before: Self) {
        let now = Self::now();
        let (busy, all) = (now.busy - before.busy, now.all - before.all);
        let percent = 100.0 * float(busy) / float(all.max(1));
        say(&format!(
            "All processes of the machine together used {percent:.0} % of its CPU time."
        ));
    }
}

/// The database of all loads.
pub const DATABASE: &str = "insight";

/// Converts a count to a float, for a ratio.
#[expect(clippy::as_conversions, reason = "counts are far under 2^53")]
pub fn float(count: u64) -> f64 {
    count as f64
}

/// Converts a length to a count, for a ratio or a sum.
pub fn count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits into 64 bits")
}

/// Converts a number to a name that has only letters. A field name with digits can be an id or a
/// date, so Seawall may write `*` for such a name in a query shape.
pub fn letters(number: usize) -> String {
    let digits = number.to_string();
    digits
        .bytes()
        .map(|digit| char::from(digit - b'0' + b'a'))
        .collect()
}
