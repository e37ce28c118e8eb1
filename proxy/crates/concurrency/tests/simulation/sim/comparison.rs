//! Compares the controller, which adapts the limit for operations in progress at a server, with the
//! best fixed limit.

use super::{
    Policy,
    outcome::Outcome,
    run,
    scenarios::{Goal, Scenario},
};

const FIXED: [u32; 7] = [4, 8, 16, 32, 64, 128, 256];

/// The result of the comparison in one scenario.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// The best fixed limit, and its result.
    pub(crate) best: (u32, f64),
    /// The result of the controller.
    pub(crate) auto: f64,
    /// The quality of the controller compared with the best fixed limit (see [`compare`]).
    pub(crate) ratio: f64,
    /// The throughput of the controller during [`Scenario::event`], as a share of the highest
    /// throughput of a fixed limit in this time; `None` if the scenario has no event.
    pub(crate) during: Option<f64>,
    /// The longest settling time of all limiters, in seconds; infinite if a limit never settled.
    /// The settling time of a limiter is the time after which its limit stays near its median. Each
    /// proxy has one limiter for each server.
    pub(crate) settling_s: f64,
    /// The largest swing of all limiters. The swing of a limiter is the largest relative difference
    /// between its limit and the median of its limits. The time that the limiter gets to settle
    /// does not count.
    pub(crate) swing: f64,
    /// The controller's last limits, of at most six limiters.
    pub(crate) limit: String,
}

fn score(scenario: &Scenario, outcome: &Outcome) -> f64 {
    match scenario.goal {
        Goal::Throughput => outcome.throughput,
        Goal::P99 => outcome.p99_ms,
        Goal::Recovery(at) => {
            let before = &outcome.completed[100..140];
            let usual = before.iter().sum::<u64>() as f64 / 4.0;
            outcome.recovery(at, usual)
        }
    }
}

/// Runs a scenario with the controller, and with each fixed limit. The `ratio` of the result is 1
/// or more if the controller is at least as good as the best fixed limit.
pub(crate) fn compare(scenario: &Scenario, seed: u64) -> Row {
    let from = scenario.steady_at + 10.0;
    let to = from + scenario.auto_s;
    let during = |outcome: &Outcome| {
        let event = scenario.event;
        event.map(|(from, to)| outcome.throughput_during(from, to))
    };
    let mut best_during = 0.0f64;
    let fixed = FIXED.iter().map(|limit| {
        let (from, to) = match scenario.steady_at {
            // If conditions do not change, a fixed limit needs no time to settle.
            0.0 => (1.0, 1.0 + scenario.fixed_s),
            _ => (from, to),
        };
        let outcome = run(scenario, Policy::Fixed(*limit), from, to, seed);
        best_during = best_during.max(during(&outcome).unwrap_or(0.0));
        (*limit, score(scenario, &outcome))
    });
    let is_more_better = scenario.goal == Goal::Throughput;
    let better = |a: f64, b: f64| {
        if is_more_better {
            a.total_cmp(&b)
        } else {
            b.total_cmp(&a)
        }
    };
    let best = fixed.max_by(|a, b| better(a.1, b.1)).unwrap();
    let outcome = run(scenario, Policy::Auto, from, to, seed);
    let auto = score(scenario, &outcome);
    let (settling_s, swing) = outcome.worst_settling(scenario.steady_at, from, to);
    Row {
        name: scenario.name,
        best,
        auto,
        ratio: match is_more_better {
            true => auto / best.1,
            // Recovery times are multiples of 0.1 s and may be 0. So 0.1 s is added to both times,
            // to avoid a division by 0.
            false if scenario.goal != Goal::P99 => (best.1 + 0.1) / (auto + 0.1),
            false => best.1 / auto,
        },
        during: during(&outcome).map(|auto| auto / best_during),
        settling_s,
        swing,
        limit: format!("{:?}", &outcome.limits[..outcome.limits.len().min(6)]),
    }
}
