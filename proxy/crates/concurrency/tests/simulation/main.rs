//! Compares the controller with the best fixed limit in simulated scenarios.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "this crate contains only tests and their helpers"
)]

mod sim;

use sim::{
    Policy, all,
    outcome::Outcome,
    run,
    scenarios::{Goal, Scenario},
};

const FIXED: [u32; 7] = [4, 8, 16, 32, 64, 128, 256];

/// The result of a scenario.
struct Row {
    name: &'static str,
    best: (u32, f64),
    auto: f64,
    ratio: f64,
    settling_s: f64,
    swing: f64,
    limit: String,
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

/// Runs a scenario with all policies. The ratio is 1 or more if the controller is at least as good
/// as the best fixed limit.
fn compare(scenario: &Scenario, seed: u64) -> Row {
    let (from, to) = (scenario.steady_at + 10.0, scenario.steady_at + 20.0);
    let fixed = FIXED.iter().map(|limit| {
        let (from, to) = match scenario.steady_at {
            // Without changes, a fixed limit is steady at once.
            0.0 if scenario.goal == Goal::Throughput => (1.0, 3.0),
            _ => (from, to),
        };
        let outcome = run(scenario, Policy::Fixed(*limit), from, to, seed);
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
    let outcome = run(scenario, Policy::Auto(512), from, to, seed);
    let auto = score(scenario, &outcome);
    let (settling_s, swing) = outcome.settling(scenario.steady_at, from, to);
    Row {
        name: scenario.name,
        best,
        auto,
        ratio: match is_more_better {
            true => auto / best.1,
            // Recovery times are measured in steps of 0.1 s, so this much is added to both of them.
            false if scenario.goal != Goal::P99 => (best.1 + 0.1) / (auto + 0.1),
            false => best.1 / auto,
        },
        settling_s,
        swing,
        limit: format!("{:?}", &outcome.limits[..outcome.limits.len().min(6)]),
    }
}

impl Row {
    fn print(&self) {
        println!(
            "{:24} best {:>4} {:>9.1}  auto {:>9.1}  ratio {:.3}  settled {:>4.1} s  swing {:>3.0} %  {}",
            self.name,
            self.best.0,
            self.best.1,
            self.auto,
            self.ratio,
            self.settling_s,
            self.swing * 100.0,
            self.limit
        );
    }
}

/// The seed of the simulation and of the controllers. `SEAWALL_SEED` sets another one.
fn seed() -> u64 {
    let seed = std::env::var("SEAWALL_SEED").ok();
    seed.map_or(1, |seed| seed.parse().unwrap())
}

/// Compares the scenarios of a group, and reports all that miss their goals.
fn check(group: usize) {
    let mut misses = Vec::new();
    for scenario in &all()[group] {
        let row = compare(scenario, seed());
        row.print();
        let least = scenario.least;
        if row.ratio < least.ratio || row.swing > least.swing || row.settling_s > least.settling_s {
            misses.push(row.name);
        }
    }
    assert!(misses.is_empty(), "missed: {misses:?}");
}

#[test]
fn one_server_under_closed_loop_load_performs_as_well_as_with_the_best_fixed_limit() {
    check(0);
}

#[test]
fn operations_with_delays_on_the_server_perform_as_well_as_with_the_best_fixed_limit() {
    check(1);
}

#[test]
fn limit_follows_changed_conditions() {
    check(2);
}

#[test]
fn controllers_reach_the_best_fixed_limit_with_several_servers_or_users_or_proxies() {
    check(3);
}

#[test]
fn two_users_complete_equally_many_operations() {
    let group = &all()[3];
    let scenario = group.iter().find(|s| s.users == 2).unwrap();
    let outcome = run(scenario, Policy::Auto(512), 5.0, 10.0, 1);
    let [first, second] = outcome.by_user[..] else {
        panic!("expected two users");
    };
    assert!(first.abs_diff(second) * 20 < first, "{first} {second}");
}

#[test]
fn operations_of_an_open_loop_load_are_not_slowed_down() {
    check(4);
}
