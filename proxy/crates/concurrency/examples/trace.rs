//! Writes the limit and the throughput of a scenario over time, as JSON lines.
//!
//! ```sh
//! cargo run -p seawall-concurrency --example trace -- "2 cores, as measured" > trace.jsonl
//! cargo run -p seawall-concurrency --example trace -- "cold cache" 2  # seed 2 instead of 1
//! cargo run -p seawall-concurrency --example trace             # lists the scenarios
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "this tool prints the data of a diagram; its simulation comes from the tests"
)]

#[allow(dead_code, reason = "the simulation has items that only the tests use")]
#[path = "../tests/simulation/sim/mod.rs"]
mod sim;

use sim::{Policy, all, run};

fn main() {
    let name = std::env::args().nth(1);
    let seed = std::env::args()
        .nth(2)
        .map_or(1, |seed| seed.parse().unwrap());
    let scenarios = all().concat();
    let scenario = scenarios.iter().find(|s| Some(s.name) == name.as_deref());
    let Some(scenario) = scenario else {
        scenarios.iter().for_each(|s| println!("{}", s.name));
        return;
    };
    let to = scenario.steady_at + 20.0;
    let outcome = run(scenario, Policy::Auto, 0.0, to, seed);
    for (at, limiter, decision) in &outcome.decisions {
        println!(
            concat!(
                "{{\"at_seconds\":{:.3},\"limiter\":{},\"limit\":{},\"settled\":{},",
                "\"completed_per_second\":{:.1},\"late\":{},\"mean_server_time_seconds\":{:.6},",
                "\"crowding\":{:.2},\"gain\":{:.4},\"noise\":{:.4},\"in_progress\":{:.1},",
                "\"waiting\":{},\"exempt\":{},\"reason\":\"{}\"}}"
            ),
            at,
            limiter,
            decision.limit,
            decision.settled,
            decision.inputs.completed_per_second,
            decision.inputs.late,
            decision.inputs.mean_server_time.as_secs_f64(),
            decision.inputs.crowding,
            decision.inputs.gain,
            decision.inputs.noise,
            decision.inputs.mean_in_progress,
            decision.inputs.waiting,
            decision.inputs.exempt,
            decision.reason
        );
    }
}
