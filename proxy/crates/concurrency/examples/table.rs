//! Simulates each scenario with several seeds: once with the controller, which adapts the
//! concurrency limit, and once with each of several fixed limits. Prints a Markdown table that
//! compares the controller with the best fixed limit. Each cell has the median of the results of
//! all seeds and, in brackets, the worst value.
//!
//! ```sh
//! cargo run -p seawall-concurrency --example table               # seeds 1 to 8
//! cargo run -p seawall-concurrency --example table -- 16         # seeds 1 to 16
//! cargo run -p seawall-concurrency --example table -- 8 proxies  # some scenarios, by name
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "this tool prints a table for the documentation; its simulation comes from the tests"
)]

#[allow(dead_code, reason = "the simulation has items that only the tests use")]
#[path = "../tests/simulation/sim/mod.rs"]
mod sim;

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use sim::{
    all,
    comparison::{Row, compare},
    outcome::{during_text, median, settling_text},
    scenarios::Scenario,
};

/// Number of simulations that run at a time. More threads would not help on a machine with two
/// cores.
const THREADS: usize = 2;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seeds = arguments.first().map_or(8, |seeds| seeds.parse().unwrap());
    let part = arguments.get(1).map_or("", String::as_str);
    let scenarios = all().concat();
    let scenarios: Vec<_> = scenarios
        .iter()
        .filter(|scenario| scenario.name.contains(part))
        .collect();
    let rows = run_all(&scenarios, seeds);
    println!(
        "| scenario | best fixed limit | `auto`: median (worst) | during the event: median (worst) | settled after: median (worst) | swing, %: median (worst) |"
    );
    println!("|---|---|---|---|---|---|");
    for (scenario, rows) in scenarios.iter().zip(rows) {
        let ratios = rows.iter().map(|row| row.ratio);
        let (ratio, worst) = (median(ratios.clone()), ratios.fold(f64::INFINITY, f64::min));
        let during = rows.iter().filter_map(|row| row.during);
        let during = during.clone().next().map(|_| {
            let worst = during.clone().fold(f64::INFINITY, f64::min);
            format!(
                "{} ({})",
                during_text(Some(median(during))),
                during_text(Some(worst))
            )
        });
        let during = during.unwrap_or_else(|| during_text(None));
        let best = median_limit(rows.iter().map(|row| row.best.0));
        let (settling, last) = median_and_most(rows.iter().map(|row| row.settling_s));
        let (settling, last) = (settling_text(settling), settling_text(last));
        let (swing, most) = median_and_most(rows.iter().map(|row| 100.0 * row.swing));
        println!(
            "| {} | {best} | {ratio:.2} ({worst:.2}) | {during} | {settling} ({last}) | {swing:.0} % ({most:.0} %) |",
            scenario.name
        );
    }
}

/// Runs each scenario with each seed. Returns the rows of each scenario.
fn run_all(scenarios: &[&Scenario], seeds: usize) -> Vec<Vec<Row>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            let (scenario, seed) = (run / seeds, run % seeds + 1);
            match scenarios.get(scenario) {
                Some(of) => rows.push((scenario, compare(of, seed as u64))),
                None => return rows,
            }
        }
    };
    let mut by_scenario: Vec<_> = scenarios.iter().map(|_| Vec::new()).collect();
    thread::scope(|scope| {
        let threads = [(); THREADS].map(|()| scope.spawn(work));
        for (scenario, row) in threads.into_iter().flat_map(|t| t.join().unwrap()) {
            by_scenario[scenario].push(row);
        }
    });
    by_scenario
}

/// The median of the limits. With an even number of limits, it is the lower of the two middle
/// limits, because no limit between them was simulated.
fn median_limit(limits: impl Iterator<Item = u32>) -> u32 {
    let mut limits: Vec<_> = limits.collect();
    limits.sort_unstable();
    limits[(limits.len() - 1) / 2]
}

fn median_and_most(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    (median(values.clone()), values.fold(0.0, f64::max))
}
