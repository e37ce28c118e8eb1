//! Attacks, measured: `cargo bench --bench abuse`.
//!
//! Each attack runs against a Seawall of its own beside two users' load: small and large finds, and logins. Printed are
//! the victims' latencies before and during it, what failed, and what Seawall spent. With `--quick`, less of it for CI:
//! that asserts counts only. `--only NAME` picks an attack, `--runs N` says how often each is run, `--seconds N` how
//! long each phase is. With `--direct`, attackers connect to the server itself: the rows then show what victims lose to
//! the server and the machine alone.

use std::time::Duration;

use seawall::limits::raise_descriptor_limit;
use seawall_benches::{
    abuse::{
        ATTACKS, Attack,
        report::{Times, measure, say_head},
        testbed::Testbed,
    },
    sight::{Machine, Plan, say},
};
use seawall_tests::process::binary;
use tokio::runtime::Builder;

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let attacks_server = std::env::args().any(|argument| argument == "--direct");
    let number = |name: &str| option(name).map(|text| text.parse::<u64>().expect("a number"));
    let runs: u64 = number("--runs").unwrap_or(1);
    let times = match is_quick {
        true => Times {
            warm_up: Duration::from_millis(200),
            phase: Duration::from_millis(500),
            attacks_server,
        },
        false => Times {
            warm_up: Duration::from_secs(1),
            phase: Duration::from_secs(number("--seconds").unwrap_or(5)),
            attacks_server,
        },
    };
    let only = option("--only");
    let wanted = |attack: &&Attack| only.as_ref().is_none_or(|only| only == attack.name);
    let attacks: Vec<&Attack> = ATTACKS.iter().filter(wanted).collect();
    let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
    assert!(!attacks.is_empty(), "--only {names:?}");
    let limit = raise_descriptor_limit();
    say(&format!("descriptors: {limit:?}"));
    let plan = Plan {
        binary: binary().to_owned(),
        is_quick,
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime
        .expect("a runtime")
        .block_on(run(plan, &attacks, times, runs));
}

async fn run(plan: Plan, attacks: &[&Attack], times: Times, runs: u64) {
    let is_quick = plan.is_quick;
    let testbed = Testbed::start(plan).await;
    say("\n## What is attempted\n");
    for attack in attacks {
        say(&format!("- {}: {}", attack.name, attack.pace));
    }
    say("\n## What it came to\n");
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
        "p99 over {GOAL} times that before: {}",
        over.join(", ")
    ));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The victims' p99 during an attack by that before it, at most.
const GOAL: f64 = 1.5;

/// The word after an option on the command line.
fn option(name: &str) -> Option<String> {
    std::env::args()
        .skip_while(|argument| argument != name)
        .nth(1)
}
