//! Compares direct connections, a bare relay, HAProxy and Seawall in alternating runs: `cargo bench
//! --bench compare`. The bare relay only copies bytes, so its cost is the minimum cost of a relay.
//!
//! Parts; `--only NAME` runs one of them:
//!
//! - `small`, `large`: finds by `_id` in a closed loop. Each find returns one document, of 100
//!   bytes in `small` and of 16 KiB in `large`.
//! - `huge`: finds by `_id` in a closed loop over 8 connections. Each find returns 1 MiB.
//! - `mixed`: finds, inserts, updates and aggregations over 64 connections.
//! - `paced`: latencies at 100 and 1,000 operations per second over 16 connections.
//! - `idle`: memory of idle connections, its peak, and CPU time without connections.
//! - `calls`: the number of Seawall's system calls for each operation, counted with strace.
//!
//! The targets and the load generator share the machine, so only ratios within a round are
//! meaningful. The bench prints the medians of the rounds and checks every reply. A full run writes
//! its results to `benches/results/compare.json`: the commit, date and machine of the run, and each
//! value with its median, worst and best round. In the part `idle`, the CPU time is measured in
//! windows instead of rounds, and the memory is measured once. The values of the part `calls` are
//! measured once too. Before it replaces the file, the bench compares the values with those of the
//! previous run in the file. It prints each value that is worse by more than 5 % and by more than
//! the noise of both runs. A run with `--only` or an option below, except `--with`, is not a full
//! run.
//!
//! `--quick` runs one short round for CI. The bench checks the replies and the numbers of system
//! calls, but no times. Without `--quick`, `--rounds N` sets the number of rounds, and
//! `--seconds S` sets the time for each target in a round. `--connections N,N` sets the numbers of
//! connections for the parts `small` and `large`. Each option `--with NAME=BINARY,VARIABLE=VALUE`
//! adds a Seawall with another binary or configuration, for example `--with image=BINARY` with the
//! binary of the image. The variable is a configuration variable without its prefix `SEAWALL_`.
//!
//! `--binary BINARY` measures this binary instead of the binary of this build.

use std::time::Duration;

use seawall_benches::{
    comparison::{Case, Idle, Medians, OperationCalls, Row},
    insight::{count, float},
    load::{self, HUGE, LARGE, Load, SMALL, Work},
    options::{list, option, options},
    output::say,
    process::{Process, ThreadTimes, cpu_split, peak_resident_bytes, resident_bytes},
    relay,
    run::Run,
    setup::{HAPROXY, Instance, Setup},
    strace::{Calls, Traced},
};
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};

struct ComparisonPlan {
    connections: Vec<usize>,
    rounds: usize,
    time: Duration,
    /// Number of idle connections.
    idle: usize,
    /// Number of clients that log in at the same time while the idle connections are open. So the
    /// peak of the proxy's memory includes the memory of concurrent logins. The sum of `idle` and
    /// this number must be less than 9,950, because HAProxy accepts no more connections.
    concurrent_logins: usize,
    /// Length of each window in which the CPU time of idle processes is measured.
    idle_window: Duration,
    is_quick: bool,
}

fn main() {
    if relay::run_if_requested() {
        return;
    }
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let mut plan = if is_quick {
        ComparisonPlan {
            connections: vec![1, 16, 64],
            rounds: 1,
            time: Duration::from_millis(300),
            idle: 100,
            concurrent_logins: 50,
            idle_window: Duration::from_millis(200),
            is_quick,
        }
    } else {
        ComparisonPlan {
            connections: vec![1, 16, 64, 256, 1000],
            rounds: option("--rounds").map_or(10, |n| n.parse().expect("--rounds takes a number")),
            time: Duration::from_secs(
                option("--seconds").map_or(3, |n| n.parse().expect("--seconds takes a number")),
            ),
            idle: 9_300,
            concurrent_logins: 500,
            idle_window: Duration::from_secs(10),
            is_quick,
        }
    };
    if let Some(connections) = list("--connections") {
        plan.connections = connections;
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    runtime.block_on(compare(&plan));
}

async fn compare(plan: &ComparisonPlan) {
    let mut instances = vec![Instance::measured()];
    instances.extend(options("--with").map(|text| {
        Instance::parse(&text)
            .unwrap_or_else(|| panic!("--with takes NAME=BINARY,VARIABLE=VALUE: {text}"))
    }));
    let mut medians = Medians::of(Run::begin(plan.rounds, plan.time));
    let mut setup = Setup::start(&instances).await;
    setup.add_relay().await;
    if !setup.targets.iter().any(|target| target.name == HAPROXY) {
        say("HAProxy is not installed. To compare with it, install the Debian package haproxy.");
    }
    let only = option("--only");
    let wanted = |part: &str| only.as_ref().is_none_or(|only| only == part);
    // The part `idle` runs first, because a process keeps memory that a load has used.
    if wanted("idle") {
        idle(&setup, plan, &mut medians).await;
    }
    for case in cases(plan).iter().filter(|case| wanted(case.part)) {
        if medians.is_first_of(case.part) {
            say(&format!("\n### {}\n\n{}", case.part, Medians::HEADER));
        }
        let mut rounds = Vec::new();
        for _ in 0..plan.rounds {
            rounds.push(round(&setup, case, plan.time).await);
        }
        for line in medians.add(case, &rounds) {
            say(&line);
        }
    }
    if wanted("calls") {
        calls(&setup, plan, &mut medians).await;
    }
    let is_partial = [
        "--only",
        "--connections",
        "--rounds",
        "--seconds",
        "--binary",
    ]
    .iter()
    .any(|name| option(name).is_some());
    if !plan.is_quick && !is_partial {
        for line in medians
            .replace_previous()
            .expect("the results can be written")
        {
            say(&line);
        }
    }
}

fn cases(plan: &ComparisonPlan) -> Vec<Case> {
    let closed = |part, work, connections| Case {
        part,
        work,
        connections,
        rate: None,
    };
    let paced = |rate| Case {
        part: "paced",
        work: Work::Finds(SMALL),
        connections: 16,
        rate: Some(rate),
    };
    let each = |part, work| plan.connections.iter().map(move |n| closed(part, work, *n));
    let mut cases: Vec<Case> = each("small", Work::Finds(SMALL)).collect();
    cases.extend(each("large", Work::Finds(LARGE)));
    cases.push(closed("huge", Work::Finds(HUGE), 8));
    cases.push(closed("mixed", Work::Mixed, 64));
    cases.extend([paced(100.0), paced(1_000.0)]);
    cases
}

async fn round(setup: &Setup, case: &Case, time: Duration) -> Vec<Row> {
    let load = |time| Load {
        work: case.work,
        rate: case.rate,
        time,
    };
    let server = setup.server_process().await;
    let mut rows = Vec::new();
    for target in &setup.targets {
        let open = setup
            .clients
            .connect_all(&target.address, case.connections)
            .await;
        let (_, open) = load::run(open, load(time / 5)).await;
        let proxy = target.process.as_ref().map(Process::id);
        let cpu = || {
            (
                proxy.map_or_else(Default::default, cpu_split),
                cpu_split(server),
            )
        };
        let ((user, system), (server_user, server_system)) = cpu();
        let (outcome, _) = load::run(open, load(time)).await;
        let ((user_after, system_after), (server_user_after, server_system_after)) = cpu();
        assert!(
            outcome.operations > 0,
            "{} completed no operation",
            target.name
        );
        rows.push(Row {
            target: target.name.clone(),
            outcome,
            user: user_after - user,
            system: system_after - system,
            server: server_user_after + server_system_after - server_user - server_system,
        });
    }
    rows
}

/// Measures each proxy's CPU time without connections, and its memory for each idle connection that
/// has logged in.
async fn idle(setup: &Setup, plan: &ComparisonPlan, medians: &mut Medians) {
    say(&format!(
        "\n### idle: {} authenticated connections, and {} concurrent logins at the peak\n",
        plan.idle, plan.concurrent_logins
    ));
    say(Idle::HEADER);
    let targets = setup.targets.iter();
    let proxies: Vec<_> = targets
        .filter_map(|target| Some((target, target.process.as_ref()?.id())))
        .collect();
    let pids = proxies.iter().map(|(_, pid)| *pid);
    let percents = cpu_percents(pids, plan.idle_window).await;
    for ((target, pid), cpu_percents) in proxies.into_iter().zip(percents) {
        drop(setup.clients.connect_all(&target.address, 200).await);
        let start = resident_bytes(pid).expect("the proxy runs");
        let open = setup.clients.connect_all(&target.address, plan.idle).await;
        let resident = resident_bytes(pid).expect("the proxy runs");
        let more = setup
            .clients
            .connect_at_once(&target.address, plan.concurrent_logins)
            .await;
        let peak = peak_resident_bytes(pid).expect("the proxy runs");
        let growth = |to: u64, clients: usize| {
            let bytes = to.saturating_sub(start);
            float(bytes) / float(count(clients))
        };
        let idle = Idle {
            cpu_percents,
            start_bytes: float(start),
            bytes_per_client: growth(resident, plan.idle),
            peak_bytes_per_client: growth(peak, plan.idle + plan.concurrent_logins),
        };
        say(&medians.add_idle(&target.name, idle));
        drop((open, more));
    }
}

/// The CPU time of each of these processes in each window, in percent of a core. All processes are
/// measured at the same time.
async fn cpu_percents(pids: impl Iterator<Item = u32>, window: Duration) -> Vec<Vec<f64>> {
    let read = |pid| ThreadTimes::of(pid).expect("the CPU times can be read");
    let mut times: Vec<ThreadTimes> = pids.map(read).collect();
    let mut percents = vec![Vec::new(); times.len()];
    for _ in 0..IDLE_WINDOWS {
        let before: Vec<Duration> = times.iter().map(ThreadTimes::total).collect();
        let began = Instant::now();
        while began.elapsed() < window {
            sleep(window.min(UPDATE_INTERVAL)).await;
            for times in &mut times {
                times.update().expect("the proxy runs");
            }
        }
        let elapsed = began.elapsed();
        let used = times.iter().zip(before);
        let used = used.map(|(after, before)| after.total().saturating_sub(before));
        for (used, percents) in used.zip(&mut percents) {
            percents.push(used.as_secs_f64() / elapsed.as_secs_f64() * 100.0);
        }
    }
    percents
}

/// Number of windows in which the CPU time of idle processes is measured. The noise of this CPU
/// time is computed from the differences between the windows.
const IDLE_WINDOWS: usize = 6;

/// The interval at which the CPU times of idle processes are read. The CPU time of a thread between
/// the last reading and the thread's end is not counted, so the interval is short.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// Counts Seawall's system calls for each operation. The minimum is two reads and two writes.
async fn calls(setup: &Setup, plan: &ComparisonPlan, medians: &mut Medians) {
    say("\n### calls: system calls for each operation\n");
    say(
        "| connections | operations | read | written | waits | wake-ups | all |\n|---|---|---|---|---|---|---|",
    );
    let own = Instance::measured().name;
    let target = setup.targets.iter().find(|target| target.name == own);
    let target = target.expect("Seawall is a target");
    let process = target.process.as_ref().map(Process::id);
    for connections in CALLS_CONNECTIONS {
        let open = setup
            .clients
            .connect_all(&target.address, connections)
            .await;
        let load = Load {
            work: Work::Finds(SMALL),
            rate: None,
            time: plan.time,
        };
        let (_, open) = load::run(open, load).await;
        let Some(traced) = Traced::attach(process.expect("Seawall has a process")).await else {
            assert!(!plan.is_quick, "CI needs strace");
            say("strace is not installed: calls are not counted");
            return;
        };
        let (outcome, _) = load::run(open, load).await;
        let calls = per_operation(&traced.finish(), outcome.operations);
        say(&format!(
            "| {connections} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            outcome.operations, calls.reads, calls.writes, calls.waits, calls.wake_ups, calls.all,
        ));
        // For each operation, Seawall reads one request and one reply, and writes both. The
        // numbers of other calls are not checked, because they depend on the timing.
        for (names, each) in [(READS, calls.reads), (WRITES, calls.writes)] {
            let is_minimum = (2.0 - MAX_DIFFERENCE..2.0 + MAX_DIFFERENCE).contains(&each);
            assert!(
                is_minimum,
                "{names:?}: {each:.2} calls for each operation, not 2"
            );
        }
        medians.add_calls(connections, &target.name, calls);
    }
}

fn per_operation(calls: &Calls, operations: u64) -> OperationCalls {
    let operations = float(operations);
    let each = |name: &str| calls.count(name) / operations;
    OperationCalls {
        reads: READS.into_iter().map(each).sum(),
        writes: WRITES.into_iter().map(each).sum(),
        waits: each("epoll_wait"),
        wake_ups: each("futex"),
        all: calls.total() / operations,
    }
}

/// The numbers of connections for which system calls are counted.
const CALLS_CONNECTIONS: [usize; 2] = [1, 64];

/// The system calls that read from a socket.
const READS: [&str; 3] = ["recvfrom", "recvmsg", "readv"];

/// The system calls that write to a socket. `write` is not in the list, because Tokio uses it to
/// wake a thread.
const WRITES: [&str; 3] = ["sendto", "sendmsg", "writev"];

/// The largest allowed difference between the reads per operation and the minimum of two. The same
/// limit applies to the writes. A difference has two causes: heartbeats need some calls, and the
/// calls of an operation at the beginning or at the end of the count are counted only in part.
const MAX_DIFFERENCE: f64 = 0.2;
