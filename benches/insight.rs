//! Measures Seawall's statistics: `cargo bench --bench insight`.
//!
//! - `exactness`: a million operations, and every figure compared with the single operations.
//! - `cost`: what the statistics cost.
//! - `stalls`, `steady`: stalls that recur, and a load that never stalls.
//! - `changes`: an index that is dropped.
//! - `history`: the memory that the history takes.
//!
//! `--only` with the name of a part runs that part only. `--runs N` runs each part N times. With
//! `--quick`, a tenth of it runs, for CI: that asserts counts only.

use seawall_benches::insight::{Plan, changes, cost, exactness, history, stalls};
use seawall_tests::process::binary;
use tokio::runtime::Builder;

const PARTS: [&str; 6] = [
    "exactness",
    "cost",
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
    // Two threads: one for each core of the machine that this bench is made for. Seawall has as
    // many.
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
        "stalls" => stalls::run(plan).await,
        "steady" => stalls::steady(plan).await,
        "history" => history::run(plan),
        _ => changes::run(plan).await,
    }
}

/// The word after an option on the command line.
fn option(name: &str) -> Option<String> {
    std::env::args()
        .skip_while(|argument| argument != name)
        .nth(1)
}
