//! Compares the controller, which adapts the limit for operations in progress at a server, with the
//! best fixed limit in simulated scenarios.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    reason = "this crate contains only tests and their helpers"
)]

mod sim;

use std::ops::Range;

use sim::{
    Policy, all,
    comparison::{Row, compare},
    outcome::{during_text, median, settling_text},
    run,
    scenarios::{Least, Scenario},
};

impl Row {
    fn print(&self) {
        println!(
            "{:28} best {:>4} {:>9.1}  auto {:>9.1}  ratio {:.3}  during {}  settled {:>6}  swing {:>3.0} %  {}",
            self.name,
            self.best.0,
            self.best.1,
            self.auto,
            self.ratio,
            during_text(self.during),
            settling_text(self.settling_s),
            self.swing * 100.0,
            self.limit
        );
    }
}

/// Number of seeds with which each scenario runs.
const SEEDS: u64 = 3;

/// The seeds of the simulation and of the controllers. `SEAWALL_SEED` sets the first one.
fn seeds() -> Range<u64> {
    let first = std::env::var("SEAWALL_SEED").ok();
    let first: u64 = first.map_or(1, |seed| seed.parse().unwrap());
    first..first + SEEDS
}

/// In each scenario of a group, compares the controller with the best fixed limit, once for each
/// seed. Fails if the results of a scenario miss its goals, and names all such scenarios.
fn check(group: usize) {
    let mut misses = Vec::new();
    for scenario in &all()[group] {
        let rows: Vec<_> = seeds().map(|seed| compare(scenario, seed)).collect();
        rows.iter().for_each(Row::print);
        if !reaches_goals(scenario, &rows) {
            misses.push(scenario.name);
        }
    }
    assert!(misses.is_empty(), "missed their goals: {misses:?}");
}

/// True if the rows (one for each seed) reach the goals of the scenario. The medians of all rows
/// must reach the goals in `scenario.median`, and each row must reach the goals in `scenario.each`.
fn reaches_goals(scenario: &Scenario, rows: &[Row]) -> bool {
    let reaches = |goals: &Least, value: &dyn Fn(fn(&Row) -> f64) -> f64| {
        value(|row| row.ratio) >= goals.ratio
            && value(|row| row.during.unwrap_or(f64::INFINITY)) >= goals.during
            && value(|row| row.swing) <= goals.swing
            && value(|row| row.settling_s) <= goals.settling_s
    };
    reaches(&scenario.median, &|of| median(rows.iter().map(of)))
        && rows
            .iter()
            .all(|row| reaches(&scenario.each, &|of| of(row)))
}

#[test]
fn goals_for_the_medians_of_the_results_and_goals_for_each_result_are_checked_separately() {
    let all = all();
    let scenario = all[0].iter().find(|s| s.name == "all late at 32").unwrap();
    let row = |settling_s: f64| Row {
        name: scenario.name,
        best: (4, 70.0),
        auto: 70.0,
        ratio: 1.0,
        during: None,
        settling_s,
        swing: 0.0,
        limit: String::new(),
    };
    for (settling_s, expected) in [
        ([9.0, 9.0, 13.0], true),
        ([9.0, 13.0, 13.0], false),
        ([9.0, 9.0, 15.0], false),
    ] {
        let rows = settling_s.map(row);
        assert_eq!(reaches_goals(scenario, &rows), expected, "{settling_s:?}");
    }
    for (during, expected) in [(0.95, true), (0.94, false)] {
        let during = Some(during);
        let rows = [9.0; 3].map(|settling_s| Row {
            during,
            ..row(settling_s)
        });
        assert_eq!(reaches_goals(scenario, &rows), expected, "{during:?}");
    }
}

/// In a closed loop, each client waits for a reply before it sends its next operation.
#[test]
fn controller_is_nearly_as_good_as_the_best_fixed_limit_for_one_server_in_a_closed_loop() {
    check(0);
}

#[test]
fn controller_is_nearly_as_good_as_the_best_fixed_limit_if_network_or_server_delays_replies() {
    check(1);
}

#[test]
fn limit_adapts_when_the_load_or_the_server_changes() {
    check(2);
}

#[test]
fn controllers_are_nearly_as_good_as_the_best_fixed_limit_for_several_servers_users_or_proxies() {
    check(3);
}

/// The operations of one user take five times as long as those of the other user. The server gives
/// each operation in progress the same share of its cores.
#[test]
fn two_users_of_one_server_get_equal_shares_of_its_time() {
    let group = &all()[3];
    let scenario = group.iter().find(|s| s.users == 2).unwrap();
    let outcome = run(scenario, Policy::Auto, 5.0, 10.0, 1);
    let [short, long] = outcome.by_user[..] else {
        panic!("expected two users");
    };
    assert!(short.abs_diff(long * 5) * 10 < short, "{short} {long}");
}

/// In an open loop, operations arrive at a given rate, even if earlier replies are late.
#[test]
fn controller_is_nearly_as_good_as_the_best_fixed_limit_for_an_open_loop_load() {
    check(4);
}
