//! Measures how exact Seawall's statistics are and what they cost: `cargo bench --bench insight`.
//!
//! - `exactness`: runs a million operations, and compares every reported figure with the slow log.
//! - `cost`: measures the CPU time of the statistics.
//! - `captures`: measures the CPU time of captures.
//! - `stalls`, `steady`: run a load with recurring server stalls, and a load without stalls, and
//!   check which stalls Seawall reports.
//! - `changes`: drops an index under load, and checks that Seawall reports the effect.
//! - `history`: measures the memory that the history of the statistics uses.
//!
//! `--only PART` runs one part. `--runs N` runs each part N times. `--quick` is a short run for CI
//! without the part `stalls`. It asserts nothing that depends on timing.

use seawall_benches::{
    insight::{Plan, captures, changes, cost, exactness, history, stalls},
    options::option,
};
use seawall_tests::process::binary;
use tokio::runtime::Builder;

const PARTS: [&str; 7] = [
    "exactness",
    "cost",
    "captures",
    "stalls",
    "steady",
    "changes",
    "history",
];

fn main() {
    let plan = Plan {
        binary: binary().to_owned(),
        is_quick: std::env::args().any(|argument| argument == "--quick"),
    };
    let runs = option("--runs").map_or(1, |runs| runs.parse().expect("--runs takes a number"));
    let only = option("--only");
    let is_known = |only: &String| PARTS.contains(&only.as_str());
    assert!(
        only.as_ref().is_none_or(is_known),
        "--only takes one of {PARTS:?}"
    );
    // Two threads, as many as Seawall has: the bench is made for a machine with two cores.
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("the runtime starts");
    let wanted = |part: &&str| only.as_ref().is_none_or(|only| only == part);
    for part in PARTS.iter().filter(|part| wanted(part)) {
        for _ in 0..runs {
            runtime.block_on(run(part, &plan));
        }
    }
}

async fn run(part: &str, plan: &Plan) {
    match part {
        "exactness" => exactness::run(plan).await,
        "cost" => cost::run(plan).await,
        "captures" => captures::run(plan).await,
        "stalls" => stalls::run(plan).await,
        "steady" => stalls::steady(plan).await,
        "history" => history::run(plan),
        _ => changes::run(plan).await,
    }
}
