//! Measures how attacks on Seawall affect other users: `cargo bench --bench abuse`.
//!
//! Each attack runs against a new Seawall process, while two users run small finds, large finds and
//! logins. The bench prints the two users' latencies before and during the attack, failed
//! operations, and Seawall's CPU time and memory. The bench fails if an operation of the two users
//! fails, or if the attack does not end as expected. It does not fail because of high latencies.
//!
//! - `--quick`: a short run for CI.
//! - `--only NAME`: runs one attack.
//! - `--runs N`: runs each attack N times.
//! - `--seconds N`: the length of the phase before each attack, and of the phase during it. It has
//!   no effect with `--quick`.
//! - `--direct`: attackers connect to the server, not to Seawall. The results then show only the
//!   slowdown that the shared server and machine cause, and no result makes the bench fail.

use std::time::Duration;

use seawall::runtime::raise_descriptor_limit;
use seawall_benches::{
    abuse::{
        ATTACKS, Attack,
        report::{AttackTimes, measure, say_head},
        testbed::AbuseTestbed,
    },
    insight::{Machine, Plan},
    options::option,
    output::say,
};
use seawall_tests::process::binary;
use tokio::runtime::Builder;

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let attacks_server = std::env::args().any(|argument| argument == "--direct");
    let number = |name: &str| {
        let parse = |text: String| text.parse::<u64>().ok();
        option(name).map(|text| parse(text).unwrap_or_else(|| panic!("{name} takes a number")))
    };
    let runs: u64 = number("--runs").unwrap_or(1);
    let times = match is_quick {
        true => AttackTimes {
            warm_up: Duration::from_millis(200),
            phase: Duration::from_millis(500),
            attacks_server,
        },
        false => AttackTimes {
            warm_up: Duration::from_secs(1),
            phase: Duration::from_secs(number("--seconds").unwrap_or(5)),
            attacks_server,
        },
    };
    let only = option("--only");
    let wanted = |attack: &&Attack| only.as_ref().is_none_or(|only| only == attack.name);
    let attacks: Vec<&Attack> = ATTACKS.iter().filter(wanted).collect();
    let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
    assert!(!attacks.is_empty(), "--only takes one of {names:?}");
    let limit = raise_descriptor_limit();
    say(&format!("limit of file descriptors: {limit:?}"));
    let plan = Plan {
        binary: binary().to_owned(),
        is_quick,
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime
        .expect("the runtime starts")
        .block_on(run(plan, &attacks, times, runs));
}

async fn run(plan: Plan, attacks: &[&Attack], times: AttackTimes, runs: u64) {
    let is_quick = plan.is_quick;
    let testbed = AbuseTestbed::start(plan).await;
    say("\n## Attacks\n");
    for attack in attacks {
        say(&format!("- {}: {}", attack.name, attack.description));
    }
    say("\n## Results\n");
    let machine = Machine::now();
    say_head();
    let mut faults = Vec::new();
    let mut over = Vec::new();
    for attack in attacks {
        for _ in 0..runs {
            let row = measure(&testbed, attack, times, is_quick).await;
            row.say();
            if !times.attacks_server {
                faults.extend(row.faults(attack));
            }
            if row.ratio() > GOAL {
                over.push(format!("{} {:.2}", attack.name, row.ratio()));
            }
        }
    }
    say("");
    Machine::say_since(machine);
    say(&format!(
        "attacks during which the p99 of small finds exceeds {GOAL} times the p99 before: {}",
        over.join(", ")
    ));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The goal: the p99 of the users' small finds during an attack is at most this factor times the
/// p99 of their small finds before the attack.
const GOAL: f64 = 1.5;
