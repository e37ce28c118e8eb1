//! Compares direct connections, HAProxy and Seawall in alternating runs: `cargo bench --bench
//! compare`.
//!
//! The load is finds by `_id` in a closed loop over 1 to 1,000 connections, with small documents
//! and with documents of 16 KiB. The bench also measures the memory of idle connections, and checks
//! every reply. The targets and the load generator share the machine, so only ratios within a round
//! are meaningful. The bench prints the medians of the rounds. `--quick` runs a tenth of the load
//! for CI, and asserts counts only. `--rounds N` and `--seconds S` set the length of a full run.

use std::{io::Write, time::Duration};

use seawall_benches::{
    load::{self, Outcome},
    process::{cpu_time, resident_bytes},
    setup::{Setup, Target},
};
use tokio::runtime::Builder;

/// Seawall's `max_pool_size`.
const POOL_SIZE: usize = 32;

/// Number of connections that are established at the same time before a run.
const CONNECTING: usize = 16;

struct Plan {
    connections: Vec<usize>,
    rounds: usize,
    time: Duration,
    idle: usize,
}

/// The result of one target in one round.
struct Row {
    name: &'static str,
    outcome: Outcome,
    proxy_cpu: Duration,
}

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let plan = if is_quick {
        Plan {
            connections: vec![1, 16, 64],
            rounds: 1,
            time: Duration::from_millis(300),
            idle: 100,
        }
    } else {
        Plan {
            connections: vec![1, 16, 64, 256, 1000],
            rounds: option("--rounds").unwrap_or(5),
            time: Duration::from_secs(option("--seconds").unwrap_or(3)),
            idle: 9_800,
        }
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    runtime.block_on(compare(&plan));
}

/// The number that follows an option on the command line.
fn option<T: std::str::FromStr>(name: &str) -> Option<T> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)?.parse().ok()
}

async fn compare(plan: &Plan) {
    let setup = Setup::start(POOL_SIZE).await;
    if setup.targets.len() < 3 {
        say("HAProxy is not installed. To compare with it, install the Debian package haproxy.");
    }
    for collection in ["small", "large"] {
        say(&format!("\n### finds by _id, {collection} documents\n"));
        say(
            "| connections | target | operations/s | ratio to direct | p50 | p99 | proxy CPU per operation | ratio to HAProxy |",
        );
        say("|---|---|---|---|---|---|---|---|");
        for connections in &plan.connections {
            let mut rounds = Vec::new();
            for _ in 0..plan.rounds {
                rounds.push(round(&setup, *connections, collection, plan.time).await);
            }
            report(*connections, &rounds);
        }
    }
    idle(&setup, plan.idle).await;
}

async fn round(
    setup: &Setup,
    connections: usize,
    collection: &'static str,
    time: Duration,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for target in &setup.targets {
        let open = connect(setup, target, connections).await;
        let (_, open) = load::run(open, collection, time / 5).await;
        let cpu = || {
            target
                .process
                .as_ref()
                .map_or(Ok(Duration::ZERO), |p| cpu_time(p.id()))
        };
        let before = cpu().expect("the proxy runs");
        let (outcome, _) = load::run(open, collection, time).await;
        let proxy_cpu = cpu().expect("the proxy runs") - before;
        assert!(
            outcome.operations > 0,
            "{} completed no operation",
            target.name
        );
        rows.push(Row {
            name: target.name,
            outcome,
            proxy_cpu,
        });
    }
    rows
}

async fn connect(
    setup: &Setup,
    target: &Target,
    count: usize,
) -> Vec<seawall_transport::connection::Connection> {
    let mut open = Vec::new();
    while open.len() < count {
        let batch = (count - open.len()).min(CONNECTING);
        let connecting = (0..batch).map(|_| setup.connect(&target.address));
        for connection in join_all(connecting).await {
            open.push(connection.expect("the target accepts connections"));
        }
    }
    open
}

async fn join_all<T>(futures: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut done = Vec::new();
    for future in futures {
        done.push(future.await);
    }
    done
}

fn report(connections: usize, rounds: &[Vec<Row>]) {
    let targets = rounds.first().map_or(0, Vec::len);
    for index in 0..targets {
        let rows: Vec<&Row> = rounds.iter().filter_map(|round| round.get(index)).collect();
        let name = rows.first().map_or("", |row| row.name);
        let relative = |value: fn(&Row) -> f64, to: &str| {
            let ratios = rounds.iter().filter_map(|round| {
                let other = round.iter().find(|row| row.name == to)?;
                Some(value(round.get(index)?) / value(other))
            });
            median(ratios.collect())
        };
        let rate = median(rows.iter().map(|row| row.outcome.rate()).collect());
        let micros = |percent: usize| {
            let values = rows
                .iter()
                .map(|r| r.outcome.percentile(percent).as_secs_f64() * 1e6);
            median(values.collect())
        };
        let cpu = median(rows.iter().map(|row| cpu_micros(row)).collect());
        say(&format!(
            "| {connections} | {name} | {rate:.0} | {:.2} | {:.0} µs | {:.0} µs | {cpu:.1} µs | {:.2} |",
            relative(|row| row.outcome.rate(), "direct"),
            micros(50),
            micros(99),
            relative(cpu_micros, "HAProxy"),
        ));
    }
}

fn cpu_micros(row: &Row) -> f64 {
    let operations = u32::try_from(row.outcome.operations).unwrap_or(u32::MAX);
    row.proxy_cpu.as_secs_f64() * 1e6 / f64::from(operations)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures the memory of idle connections that have logged in.
async fn idle(setup: &Setup, count: usize) {
    say(&format!("\n### {count} idle authenticated connections\n"));
    for target in setup
        .targets
        .iter()
        .filter(|target| target.process.is_some())
    {
        let pid = target
            .process
            .as_ref()
            .map_or(0, seawall_benches::process::Process::id);
        let resident = || resident_bytes(pid).expect("the proxy runs");
        drop(connect(setup, target, 200).await);
        let before = resident();
        let open = connect(setup, target, count).await;
        let each = resident().saturating_sub(before) / u64::try_from(count).unwrap_or(1);
        say(&format!(
            "{}: {each} bytes per connection (process before: {} KiB)",
            target.name,
            before / 1024
        ));
        drop(open);
    }
}

fn say(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").expect("standard output is open");
}
