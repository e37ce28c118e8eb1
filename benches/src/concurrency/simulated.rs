//! Traces of the concurrency controller, recorded in the simulation that its tests use.

use super::trace::{Sample, Trace};
use crate::insight::float;

#[allow(
    dead_code,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "the simulation belongs to the tests of the controller, which use all of it"
)]
#[path = "../../../proxy/crates/concurrency/tests/simulation/sim/mod.rs"]
mod sim;

use self::sim::{Policy, outcome::Outcome, scenarios::Scenario};

/// The seed of the simulation. It is fixed, so two runs draw equal traces.
const SEED: u64 = 1;

/// Number of tenths of a second between two samples.
const TENTHS: usize = 5;

/// The names of the scenarios that are drawn. The example `trace` of the crate
/// `seawall-concurrency` prints the controller's decisions in any scenario.
const DRAWN: [&str; 8] = [
    "2 cores, 64 clients",
    "64 cores",
    "5 ms of network",
    "lock convoys",
    "3 s stall",
    "more clients",
    "neighbour takes half",
    "50 proxies",
];

/// The time between two samples in seconds.
const INTERVAL_SECONDS: f64 = 0.5;

/// How long a scenario runs after its conditions have become steady, in seconds.
const STEADY_SECONDS: f64 = 20.0;

/// Simulates the scenarios in `DRAWN`. Returns the name and the trace of each scenario. A quick
/// run simulates two seconds of one scenario.
pub fn traces(is_quick: bool) -> impl Iterator<Item = (&'static str, Trace)> {
    let count = if is_quick { 1 } else { DRAWN.len() };
    let drawn = |scenario: &Scenario| DRAWN.contains(&scenario.name);
    let scenarios = sim::all().concat().into_iter().filter(drawn).take(count);
    scenarios.map(move |scenario| {
        let to = match is_quick {
            true => 2.0,
            false => scenario.steady_at + STEADY_SECONDS,
        };
        (scenario.name, trace(&scenario, to))
    })
}

fn trace(scenario: &Scenario, to: f64) -> Trace {
    let outcome = sim::run(scenario, Policy::Auto, 0.0, to, SEED);
    let limiters = scenario.proxies * scenario.servers;
    let of = match limiters {
        1 => String::new(),
        _ => format!(" (limit of one of {limiters} controllers)"),
    };
    let changes = scenario.changes.iter().map(|(at, _)| *at);
    Trace {
        title: format!("Simulation: {}{of}", scenario.name),
        changes: changes.filter(|at| *at > 0.0).collect(),
        samples: samples(&outcome),
    }
}

/// The samples of a simulation. Each simulated proxy has one controller for each server. The limits
/// in the samples come from the first proxy's controller for the first server. The throughput is
/// the sum over all proxies.
fn samples(outcome: &Outcome) -> Vec<Sample> {
    let mut decisions = outcome
        .decisions
        .iter()
        .filter(|(_, limiter, _)| *limiter == 0)
        .peekable();
    let mut decision = None;
    let mut at_seconds = 0.0;
    let mut samples = Vec::new();
    for completed in outcome.completed.chunks_exact(TENTHS) {
        at_seconds += INTERVAL_SECONDS;
        while let Some((_, _, next)) = decisions.next_if(|(at, ..)| *at <= at_seconds) {
            decision = Some(next);
        }
        let completed = float(completed.iter().sum());
        samples.extend(decision.map(|decision| Sample {
            at_seconds,
            limit: f64::from(decision.limit),
            settled: f64::from(decision.settled),
            throughput: completed / INTERVAL_SECONDS,
        }));
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulation_has_every_scenario_that_the_bench_draws_as_a_picture() {
        let all = sim::all().concat();
        let exists = |name: &&str| all.iter().any(|scenario| scenario.name == *name);
        assert!(DRAWN.iter().all(exists));
    }

    /// A quick run (`true`) simulates two seconds, so its trace has four samples.
    #[test]
    fn trace_of_a_simulated_scenario_has_one_sample_per_half_second() {
        let (name, trace) = traces(true).next().unwrap();
        assert!(trace.title.ends_with(name));
        assert_eq!(trace.samples.len(), 4);
        assert!(
            trace
                .samples
                .iter()
                .all(|s| s.limit >= 1.0 && s.throughput > 0.0)
        );
    }
}
