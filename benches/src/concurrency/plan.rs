//! The settings of a run of the bench `concurrency`, and the situations in which the bench compares
//! concurrency limits.
//!
//! A fixed limit of at least the number of clients has the same effect as `off`: no operation waits
//! for a slot. So of these limits, only the lowest is measured. The full run then has 382
//! measurements:
//!
//! - Each of the first three situations has 39 combinations of a limit and a number of clients, in
//!   3 rounds. Their loads last 52 minutes.
//! - The last situation has 9 limits, in 3 rounds. Their loads last 20 minutes.
//! - The loads of the 4 traces last 4 minutes.
//!
//! For each measurement, Seawall also starts, the clients log in, and the last operations end. If
//! this takes three seconds, the run takes 95 minutes.

use std::time::Duration;

use crate::{
    load::{SMALL, Work},
    options::{list, option},
};

/// The value of `pool.concurrency` with which Seawall itself chooses the concurrency limit.
pub const AUTO: &str = "auto";

/// The value of `--only` for the part of the bench that draws simulated traces of the concurrency
/// controller.
pub const SIMULATION: &str = "simulation";

/// Options that make a run partial, so that its results are not saved.
const PARTIAL: [&str; 5] = [
    "--only",
    "--limits",
    "--connections",
    "--rounds",
    "--seconds",
];

/// The conditions under which the values of `pool.concurrency` are compared: a load and the
/// behavior of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Situation {
    /// The clients run small finds.
    Plain,
    /// The clients run small finds, which reach the server 5 ms after Seawall has sent them.
    Delay,
    /// The clients run small finds. A tenth of the finds take 200 ms at the server.
    Slow,
    /// The clients run small finds. The number of clients changes.
    Change,
}

impl Situation {
    /// All situations.
    pub const ALL: [Self; 4] = [Self::Plain, Self::Delay, Self::Slow, Self::Change];

    /// The name for `--only`, files and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Delay => "delay",
            Self::Slow => "slow",
            Self::Change => "change",
        }
    }

    /// The heading of the situation's results.
    pub fn title(self) -> &'static str {
        match self {
            Self::Plain => "Small finds",
            Self::Delay => "5 ms before the server",
            Self::Slow => "A tenth of the operations takes 200 ms",
            Self::Change => "A change of load",
        }
    }

    /// The operations that the clients run in this situation.
    pub fn work(self) -> Work {
        match self {
            Self::Plain | Self::Delay | Self::Change => Work::Finds(SMALL),
            Self::Slow => Work::TenthSlow,
        }
    }
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct ConcurrencyPlan {
    /// The values of `pool.concurrency` to compare, see [`Self::limits_for`].
    pub limits: Vec<String>,
    /// The numbers of clients with which each limit is measured.
    pub connections: Vec<usize>,
    /// Number of measurements of each cell. A cell is one limit with one number of clients.
    pub rounds: usize,
    /// How long each part of a measurement lasts.
    pub times: MeasurementTimes,
    /// Number of clients in each phase of the situation [`Situation::Change`].
    pub phases: [usize; 3],
    /// Number of clients while a trace is recorded, in the situations in which this number does not
    /// change.
    pub traced_connections: usize,
    /// True for a run that only checks that all operations succeed.
    pub is_quick: bool,
    /// True if the results must not replace the saved results.
    pub is_partial: bool,
    only: Option<String>,
}

/// How long each part of a measurement lasts.
#[derive(Clone, Copy, Debug)]
pub struct MeasurementTimes {
    /// How long the load runs before a measurement with a fixed limit or without a limit. In this
    /// time, Seawall establishes its server connections.
    pub warm_up: Duration,
    /// How long the load runs before a measurement with `auto`, so that Seawall finds the limit
    /// before the measurement.
    pub auto_warm_up: Duration,
    /// How long a cell (one limit with one number of clients) is measured.
    pub cell: Duration,
    /// How long each phase of the situation [`Situation::Change`] lasts.
    pub phase: Duration,
    /// How long a trace is recorded, in the situations in which the load does not change.
    pub trace: Duration,
}

impl ConcurrencyPlan {
    /// The plan that the options on the command line request.
    ///
    /// # Panics
    /// If an option has a wrong value.
    pub fn from_options() -> Self {
        let is_quick = std::env::args().any(|argument| argument == "--quick");
        let mut plan = match is_quick {
            true => Self::quick(),
            false => Self::full(),
        };
        let number = |name: &str| {
            let parse = |word: String| word.parse::<u64>().ok();
            option(name).map(|word| parse(word).unwrap_or_else(|| panic!("{name} takes a number")))
        };
        if let Some(limits) = list("--limits") {
            plan.limits = limits;
        }
        if let Some(connections) = list("--connections") {
            plan.connections = connections;
        }
        if let Some(rounds) = number("--rounds") {
            plan.rounds = usize::try_from(rounds).expect("the number of rounds is small");
        }
        if let Some(seconds) = number("--seconds") {
            plan.times.cell = Duration::from_secs(seconds);
        }
        plan.only = option("--only");
        plan.is_partial = is_quick || PARTIAL.iter().any(|name| option(name).is_some());
        let is_known = |only: &String| {
            let names = Situation::ALL.map(Situation::name);
            only == SIMULATION || names.contains(&only.as_str())
        };
        let only = plan.only.as_ref();
        assert!(only.is_none_or(is_known), "unknown part: {only:?}");
        plan
    }

    fn full() -> Self {
        let limits = ["off", AUTO, "4", "8", "16", "32", "64", "128", "256"];
        Self {
            limits: limits.map(str::to_owned).to_vec(),
            connections: vec![16, 64, 256, 1_000, 4_000],
            rounds: 3,
            times: MeasurementTimes {
                warm_up: Duration::from_secs(3),
                auto_warm_up: Duration::from_secs(10),
                cell: Duration::from_secs(5),
                phase: Duration::from_secs(15),
                trace: Duration::from_secs(60),
            },
            phases: [64, 1_000, 64],
            traced_connections: 1_000,
            is_quick: false,
            is_partial: false,
            only: None,
        }
    }

    fn quick() -> Self {
        let second = Duration::from_secs(1);
        let short = Duration::from_millis(200);
        Self {
            limits: [AUTO, "8"].map(str::to_owned).to_vec(),
            connections: vec![16],
            rounds: 1,
            times: MeasurementTimes {
                warm_up: short,
                auto_warm_up: short,
                cell: second,
                phase: second,
                trace: second * 2,
            },
            phases: [16, 64, 16],
            traced_connections: 64,
            is_quick: true,
            ..Self::full()
        }
    }

    /// The limits to compare if at most this number of clients run operations at a time. If several
    /// fixed limits have no effect, because they are not lower than this number, only the lowest of
    /// them is compared.
    pub fn limits_for(&self, clients: usize) -> Vec<&str> {
        let fixed = |limit: &str| limit.parse::<usize>().ok();
        let without_effect = self.limits.iter().filter_map(|limit| fixed(limit));
        let lowest = without_effect.filter(|limit| *limit >= clients).min();
        let is_compared = |limit: &&str| {
            fixed(limit).is_none_or(|number| number < clients || Some(number) == lowest)
        };
        let limits = self.limits.iter().map(String::as_str);
        limits.filter(is_compared).collect()
    }

    /// True if the run includes this part of the bench.
    pub fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lowest_of_the_fixed_limits_without_effect_is_compared() {
        let plan = ConcurrencyPlan::full();
        let all = ["off", AUTO, "4", "8", "16", "32", "64", "128", "256"];
        for (clients, expected) in [
            (3, 3),
            (4, 3),
            (16, 5),
            (17, 6),
            (64, 7),
            (256, 9),
            (257, 9),
        ] {
            assert_eq!(
                plan.limits_for(clients),
                all[..expected],
                "{clients} clients"
            );
        }
    }
}
