//! Whether Seawall's sight is exact, what it costs, and what it finds: the parts of the bench of that name.
//!
//! Every part starts its own servers, and Seawall in front of them as a process; it prints what came out before it
//! asserts what must. Loads are of raw connections: no driver retries, pools or waits between them and Seawall.

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

use std::{fs, io::Write, path::PathBuf};

/// What is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seawall.
    pub binary: PathBuf,
    /// A tenth of it, of which nothing is asserted that hangs on the clock.
    pub is_quick: bool,
}

impl Plan {
    /// One of two values: of a whole run, and of a quick one.
    pub fn either<T>(&self, whole: T, quick: T) -> T {
        if self.is_quick { quick } else { whole }
    }
}

/// Prints a line of the report.
pub fn say(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").expect("somebody reads");
}

/// How busy the machine is, whoever makes it so: what is told of latencies is worth as much as the machine was quiet.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    busy: u64,
    all: u64,
}

impl Machine {
    /// As it is now.
    ///
    /// # Panics
    /// If `/proc` is not Linux'.
    pub fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").expect("Linux tells");
        let fields = stat.lines().next().unwrap_or_default().split_whitespace();
        // User, nice, system, idle, waiting for disks, interrupts, soft interrupts, taken by other machines.
        let ticks: Vec<u64> = fields.skip(1).take(8).flat_map(str::parse).collect();
        let all = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Self {
            busy: all - idle,
            all,
        }
    }

    /// Prints it, from that moment on.
    pub fn say_since(before: Self) {
        let now = Self::now();
        let (busy, all) = (now.busy - before.busy, now.all - before.all);
        let percent = 100.0 * float(busy) / float(all.max(1));
        say(&format!(
            "The machine was busy for {percent:.0} % of the time, all of its programs together."
        ));
    }
}

/// The database that all loads are on.
pub const DATABASE: &str = "sight";

/// A count, for a ratio.
#[expect(clippy::as_conversions, reason = "counts are far under 2^53")]
pub fn float(count: u64) -> f64 {
    count as f64
}

/// A length, for a ratio or a sum.
pub fn count(length: usize) -> u64 {
    u64::try_from(length).expect("a length fits into 64 bits")
}

/// A name of letters only: digits in one could be taken for data.
pub fn letters(number: usize) -> String {
    let digits = number.to_string();
    digits
        .bytes()
        .map(|digit| char::from(digit - b'0' + b'a'))
        .collect()
}
