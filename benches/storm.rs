//! Reproduces an incident, a reconnect storm: `cargo bench --bench storm`.
//!
//! In the parts `calls`, `idle`, `memory` and `restart`, clients connect only through Seawall. In
//! each run of the other parts, clients connect first directly to the servers, and then through
//! Seawall. `--only NAME` runs one part:
//!
//! - `incident`: clients with timeouts of 40 to 500 ms that reconnect at once, and a primary that
//!   stalls for five seconds.
//! - `persistent`: clients that keep their connections, and a primary that stalls.
//! - `short`, `php`: one connection for each find.
//! - `calls`: system calls of Seawall during logins.
//! - `idle`: memory and server connections of Seawall while many clients are idle.
//! - `memory`: memory of Seawall before, during and after several storms.
//! - `restart`: Seawall is killed under load and started again.
//!
//! `--runs N` sets the number of runs of each part except `calls`, `idle` and `memory`, which run
//! once. `--clients N` sets the number of clients in the part `incident`. `--quick` makes a short
//! run for CI. The bench asserts counts but no times.
//!
//! `--binary PATH` measures this binary instead of the binary of this build. `--pool-size N` sets
//! Seawall's `max_pool_size` in each part except `idle`. Without this option, the size is 32. With
//! `--pool-size 0`, Seawall has its default configuration.

use std::{io, time::Duration};

use seawall_benches::{
    extras::{self, LoginCalls},
    insight::float,
    options::option,
    output::say,
    process::{cpu_split, peak_resident_bytes, resident_bytes},
    setup::Instance,
    storm_testbed::{Counts, LoadProcess, LoadReport, Stall, StormTestbed},
};
use tokio::{
    runtime::Builder,
    time::{sleep, timeout},
};

/// Seawall's `max_pool_size` if the bench runs without the option `--pool-size`. For each pair of a
/// user and a server, Seawall opens at most this many connections. The load has one user, so this
/// value limits all connections to the primary except the few on which Seawall itself checks the
/// server.
const POOL_SIZE: usize = 32;

/// `max_pool_size` in Seawall's default configuration.
const DEFAULT_POOL_SIZE: usize = 100;

/// Seawall's `max_pool_size` in the bench's part `idle`. With this value, Seawall has at most ten
/// server connections in total. This includes the connections on which Seawall checks the servers.
const IDLE_POOL_SIZE: usize = 4;

/// Number of storms in the part `memory`.
const MEMORY_STORMS: usize = 3;

/// Time after a storm until the memory is measured. In this time, all clients disconnect.
const MEMORY_PAUSE: Duration = Duration::from_secs(5);

/// Operations per second of the clients that keep their connections during the storm.
const BESIDE: f64 = 500.0;

struct StormPlan {
    sizes: Vec<usize>,
    short_sizes: Vec<usize>,
    persistent: usize,
    /// Number of clients in the bench's part `restart`. They are connected when Seawall is killed.
    surge: usize,
    /// Numbers of clients of the part `idle`, which runs once with each number.
    idle: Vec<usize>,
    /// Length of each run of the part `idle`, in seconds. It includes the time in which the clients
    /// connect.
    idle_seconds: u64,
    /// Number of runs of a PHP script in the bench's part `php`. Each run of the script connects
    /// and reads one document, as a request for a web page does.
    pages: usize,
    /// Number of seconds for which strace counts system calls.
    traced_seconds: u64,
    runs: usize,
    /// Seawall's `max_pool_size` in each part except `idle`; `None` for the default configuration.
    pool_size: Option<usize>,
    /// Number of seconds before the stall.
    calm_seconds: u64,
    /// Length of the stall in seconds.
    stall_seconds: u64,
    /// Number of seconds after the stall.
    after_seconds: u64,
    is_quick: bool,
}

impl StormPlan {
    /// Creates the plan that the options on the command line describe.
    fn of_command_line() -> Self {
        let is_quick = std::env::args().any(|argument| argument == "--quick");
        let mut plan = if is_quick {
            Self::quick()
        } else {
            Self::full()
        };
        if let Some(runs) = number("--runs") {
            plan.runs = runs;
        }
        if let Some(clients) = number("--clients") {
            plan.sizes = vec![clients];
        }
        if let Some(size) = number("--pool-size") {
            plan.pool_size = (size > 0).then_some(size);
        }
        plan
    }

    /// Maximum number of server connections that Seawall may establish in total after its start. It
    /// is twice the pool size: besides the connections of the pool, Seawall needs connections on
    /// which it checks the two members of the replica set. A small pool size does not reduce the
    /// number of these connections. So for a pool size below [`POOL_SIZE`], the function returns
    /// twice [`POOL_SIZE`].
    fn max_server_connections(&self) -> f64 {
        let pool_size = self.pool_size.unwrap_or(DEFAULT_POOL_SIZE).max(POOL_SIZE);
        u32::try_from(pool_size * 2).map_or(f64::NAN, f64::from)
    }

    fn quick() -> Self {
        Self {
            sizes: vec![100],
            short_sizes: vec![50],
            persistent: 200,
            surge: 100,
            idle: vec![500],
            idle_seconds: 21,
            pages: 5,
            traced_seconds: 1,
            runs: 1,
            pool_size: Some(POOL_SIZE),
            calm_seconds: 1,
            stall_seconds: 1,
            after_seconds: 2,
            is_quick: true,
        }
    }

    fn full() -> Self {
        Self {
            sizes: vec![500, 2_000, 6_000],
            short_sizes: vec![200, 1_000, 2_000, 6_000],
            persistent: 6_000,
            surge: 5_000,
            idle: vec![9_800, 18_000],
            idle_seconds: 40,
            pages: 200,
            traced_seconds: 15,
            runs: 4,
            pool_size: Some(POOL_SIZE),
            calm_seconds: 5,
            stall_seconds: 5,
            after_seconds: 8,
            is_quick: false,
        }
    }
}

/// The value of the option `name`, which is a number; `None` if the option is absent.
fn number(name: &str) -> Option<usize> {
    let word = option(name)?;
    let number = word.parse();
    Some(number.unwrap_or_else(|_| panic!("{name} takes a number, not {word}")))
}

fn main() {
    let plan = StormPlan::of_command_line();
    let only = option("--only");
    let wanted = |part: &str| only.as_ref().is_none_or(|only| only == part);
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("the runtime starts").block_on(async {
        let mut testbed = StormTestbed::start(Instance::measured().binary, plan.pool_size).await;
        if wanted("short") {
            short(&testbed, &plan).await;
        }
        if wanted("php") {
            pages(&testbed, &plan);
        }
        if wanted("calls") {
            calls(&testbed, &plan).await;
        }
        if wanted("idle") {
            idle(&mut testbed, &plan).await;
        }
        if wanted("memory") {
            memory(&mut testbed, &plan).await;
        }
        if wanted("incident") {
            incident(&testbed, &plan).await;
        }
        if wanted("persistent") {
            persistent(&testbed, &plan).await;
        }
        if wanted("restart") {
            restart(&mut testbed, &plan).await;
        }
    });
}

fn endpoint(testbed: &StormTestbed, is_through: bool) -> String {
    match is_through {
        true => testbed.through(),
        false => testbed.primary(),
    }
}

fn name_of(is_through: bool) -> &'static str {
    if is_through { "Seawall" } else { "direct" }
}

/// Starts a load (`seawall load`) with these options.
fn load(kind: &str, uri: &str, seconds: u64, options: &[(&str, String)]) -> LoadProcess {
    let mut arguments = vec![kind.to_owned(), uri.to_owned()];
    let duration = ("--duration-s", seconds.to_string());
    for (option, value) in [duration].iter().chain(options) {
        arguments.extend([(*option).to_owned(), value.clone()]);
    }
    LoadProcess::start(&arguments)
}

/// Starts clients that open one connection for each find. Each step (such as connecting, the login
/// or the find) has a time limit of 500 ms.
fn short_load(uri: &str, clients: usize, seconds: u64) -> LoadProcess {
    let options = [
        ("--clients", clients.to_string()),
        ("--timeouts-ms", "500".to_owned()),
    ];
    load("storm", uri, seconds, &options)
}

/// Opens one connection for each find, as PHP applications do.
async fn short(testbed: &StormTestbed, plan: &StormPlan) {
    say(
        "\n## Short connections: connect, hello, SCRAM-SHA-256, find, close; time limit of 500 ms for each step\n",
    );
    say(
        "| clients | run | direct, per second | Seawall, per second | ratio | server logins | server connections | Seawall's user time per client login | Seawall's cores, user + system | server's cores through Seawall | server's cores direct |",
    );
    say("|---|---|---|---|---|---|---|---|---|---|---|");
    // Each run measures all numbers of clients. So if another process disturbs the machine for some
    // time, not all measurements with the same number of clients are affected. Every second run
    // begins with the largest number, so storms of one size follow smaller and larger storms
    // equally often.
    for run in 1..=plan.runs {
        let mut sizes = plan.short_sizes.clone();
        if run % 2 == 0 {
            sizes.reverse();
        }
        for clients in sizes {
            let direct = short_run(testbed, plan, clients, false).await;
            let through = short_run(testbed, plan, clients, true).await;
            let cores = |(user, system): (f64, f64)| format!("{user:.2} + {system:.2}");
            say(&format!(
                "| {clients} | {run} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} | {:.1} µs | {} | {} | {} |",
                direct.goodput,
                through.goodput,
                through.goodput / direct.goodput.max(1.0),
                through.logins,
                through.created,
                through.user_micros(),
                cores(through.seawall),
                cores(through.server),
                cores(direct.server),
            ));
        }
    }
}

/// The result of a run with short connections. `seawall` and `server` are the numbers of CPU cores
/// that the two processes use, in user mode and in system mode.
struct Short {
    goodput: f64,
    /// Number of Seawall's logins at servers.
    logins: f64,
    /// Number of successful client logins per second at Seawall; 0 for direct connections.
    client_logins: f64,
    /// Number of server connections that Seawall established during the run.
    created: f64,
    seawall: (f64, f64),
    server: (f64, f64),
}

impl Short {
    /// User time of Seawall in microseconds, per successful client login. This time includes the
    /// work for the connection and for the find.
    fn user_micros(&self) -> f64 {
        let (user, _) = self.seawall;
        user * 1e6 / self.client_logins.max(1.0)
    }
}

async fn short_run(
    testbed: &StormTestbed,
    plan: &StormPlan,
    clients: usize,
    is_through: bool,
) -> Short {
    let uri = endpoint(testbed, is_through);
    let cpu = || {
        [testbed.seawall_id(), testbed.primary_id()].map(|process| cpu_split(process.unwrap_or(0)))
    };
    let (before, [seawall, server]) = (testbed.counts().await, cpu());
    let report = short_load(&uri, clients, plan.calm_seconds).report().await;
    let (after, [seawall_then, server_then]) = (testbed.counts().await, cpu());
    pause_between_runs().await;
    if is_through {
        assert!(
            after.created <= plan.max_server_connections(),
            "{} connections",
            after.created
        );
    }
    let seconds = Duration::from_secs(plan.calm_seconds).as_secs_f64();
    Short {
        goodput: report.number("/goodput"),
        logins: after.authentications - before.authentications,
        client_logins: (after.client_logins - before.client_logins) / seconds,
        created: after.created - before.created,
        seawall: share(seawall, seawall_then, plan.calm_seconds),
        server: share(server, server_then, plan.calm_seconds),
    }
}

/// Counts Seawall's system calls during client logins. At most one call of `getrandom` is allowed
/// per hundred logins.
async fn calls(testbed: &StormTestbed, plan: &StormPlan) {
    say(
        "\n## System calls of Seawall while clients connect, log in, run a find and disconnect (strace -f -c)\n",
    );
    let counted = extras::calls(testbed, 50, plan.traced_seconds).await;
    let Some(LoginCalls { logins, calls }) = counted else {
        assert!(!plan.is_quick, "CI needs strace");
        say("strace is not installed: calls are not counted");
        return;
    };
    say("| call | total | per login |");
    say("|---|---|---|");
    let random = calls.count("getrandom");
    for (name, count) in calls.0.iter().take(12) {
        say(&format!("| {name} | {count:.0} | {:.2} |", count / logins));
    }
    say(&format!(
        "| getrandom | {random:.0} | {:.4} |",
        random / logins
    ));
    say(&format!("\n{:.0} logins", logins));
    assert!(logins > 0.0, "no client logged in");
    assert!(random * 100.0 <= logins, "{random} calls of getrandom");
}

async fn idle(testbed: &mut StormTestbed, plan: &StormPlan) {
    say("\n## Clients that have logged in and are idle\n");
    say("| clients | connected | bytes per client | server connections |");
    say("|---|---|---|---|");
    testbed.set_pool_size(Some(IDLE_POOL_SIZE));
    for clients in &plan.idle {
        testbed.restart_seawall().await;
        let idle = extras::idle(testbed, *clients, plan.idle_seconds).await;
        say(&format!(
            "| {clients} | {:.0} | {:.0} | {:.0} |",
            idle.connected, idle.bytes_each, idle.server_connections
        ));
        pause_between_runs().await;
    }
    testbed.set_pool_size(plan.pool_size);
    testbed.restart_seawall().await;
}

/// Measures the memory that Seawall keeps after storms, which shows how much memory the allocator
/// loses to fragmentation.
async fn memory(testbed: &mut StormTestbed, plan: &StormPlan) {
    say("\n## Memory of Seawall after storms of short connections\n");
    say("| clients | storm | before, MiB | peak since the start, MiB | 5 s after the storm, MiB |");
    say("|---|---|---|---|---|");
    testbed.restart_seawall().await;
    let mebibytes = |bytes: io::Result<u64>| {
        float(bytes.expect("Seawall runs during the storm")) / f64::from(1 << 20)
    };
    for storm in 1..=MEMORY_STORMS {
        let id = testbed.seawall_id().expect("Seawall runs");
        let before = mebibytes(resident_bytes(id));
        let load = short_load(&testbed.through(), plan.persistent, plan.calm_seconds);
        let report = load.report();
        assert!(
            report.await.number("/goodput") > 0.0,
            "no operation succeeded"
        );
        sleep(MEMORY_PAUSE).await;
        assert!(testbed.clients().await < 1.0, "clients are still connected");
        say(&format!(
            "| {} | {storm} | {before:.1} | {:.1} | {:.1} |",
            plan.persistent,
            mebibytes(peak_resident_bytes(id)),
            mebibytes(resident_bytes(id)),
        ));
    }
}

fn pages(testbed: &StormTestbed, plan: &StormPlan) {
    say("\n## PHP scripts with one connection each\n");
    say("| runs | direct | Seawall | time ratio |");
    say("|---|---|---|---|");
    for _ in 0..plan.runs {
        let took = [false, true].map(|is_through| {
            let time = extras::pages(&endpoint(testbed, is_through), plan.pages);
            time.map(|time| time.as_secs_f64())
        });
        match took {
            [Some(direct), Some(through)] => say(&format!(
                "| {} | {direct:.2} s | {through:.2} s | {:.2} |",
                plan.pages,
                through / direct
            )),
            _ => say("| PHP or its MongoDB driver is not installed | | | |"),
        }
    }
}

fn share(before: (Duration, Duration), after: (Duration, Duration), seconds: u64) -> (f64, f64) {
    let seconds = Duration::from_secs(seconds).as_secs_f64();
    let part =
        |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() / seconds;
    (part(after.0, before.0), part(after.1, before.1))
}

/// Waits, so that ports in use and queued connections of this run do not affect the next run.
async fn pause_between_runs() {
    sleep(Duration::from_secs(2)).await;
}

/// The result of a run with a stall.
struct Stalled {
    /// The report of the clients that reconnect.
    storm: LoadReport,
    /// The report of the clients that keep their connections.
    beside: LoadReport,
    /// The report of clients that read from the secondary. The secondary does not stall.
    aside: LoadReport,
    before: Counts,
    after: Counts,
    /// The largest number of server connections that were open after the stall.
    most_open: f64,
    primary_logins: f64,
}

async fn incident(testbed: &StormTestbed, plan: &StormPlan) {
    say("\n## Storms while the primary stalls\n");
    say(
        "| clients | stall | target | run | hello p99 minus the load generator's lateness p99 | operations/s of clients that keep their connections (500 offered), from 3 s after the stall | time until 90 % of these operations are served again | server connections | server logins | p99 of reads from the secondary during the stall, divided by the p99 before | storm clients timed out |",
    );
    say("|---|---|---|---|---|---|---|---|---|---|---|");
    for clients in &plan.sizes {
        for how in [Stall::Stopped, Stall::Delayed] {
            for run in 1..=plan.runs {
                for is_through in [false, true] {
                    let stalled = stalled(testbed, plan, *clients, how, is_through).await;
                    row(plan, *clients, how, run, is_through, &stalled);
                    pause_between_runs().await;
                }
            }
        }
    }
}

async fn stalled(
    testbed: &StormTestbed,
    plan: &StormPlan,
    clients: usize,
    how: Stall,
    is_through: bool,
) -> Stalled {
    let uri = endpoint(testbed, is_through);
    let aside_uri = match is_through {
        true => format!("{}?readPreference=secondary", testbed.through()),
        false => testbed.secondary(),
    };
    let seconds = plan.calm_seconds + plan.stall_seconds + plan.after_seconds;
    let kept = |rate: f64, clients: usize| {
        [
            ("--keep", rate.to_string()),
            ("--clients", clients.to_string()),
            ("--timeouts-ms", "500".to_owned()),
        ]
    };
    let beside = load("storm", &uri, seconds, &kept(BESIDE, 50));
    let aside = load("storm", &aside_uri, seconds, &kept(200.0, 10));
    let storm = load(
        "storm",
        &uri,
        seconds,
        &[("--clients", clients.to_string())],
    );
    sleep(Duration::from_secs(plan.calm_seconds)).await;
    let before = testbed.counts().await;
    // The primary's count of logins is read before the stall, because a stalled primary does not
    // reply.
    let logins_before = testbed.primary_logins().await;
    testbed
        .stall(how, Duration::from_secs(plan.stall_seconds))
        .await;
    let mut most_open = 0.0_f64;
    for _ in 0..plan.after_seconds {
        most_open = most_open.max(testbed.counts().await.open);
        sleep(Duration::from_secs(1)).await;
    }
    let (storm, beside, aside) = (
        storm.report().await,
        beside.report().await,
        aside.report().await,
    );
    let after = testbed.counts().await;
    let logins = timeout(Duration::from_secs(60), testbed.primary_logins()).await;
    if is_through {
        assert!(
            after.created <= plan.max_server_connections(),
            "{} server connections",
            after.created
        );
        assert!(
            beside.number("/steps/3/ok") > 0.0,
            "no operation got a reply"
        );
    }
    Stalled {
        storm,
        beside,
        aside,
        before,
        after,
        most_open,
        primary_logins: logins.unwrap_or(f64::NAN) - logins_before,
    }
}

fn row(
    plan: &StormPlan,
    clients: usize,
    how: Stall,
    run: usize,
    is_through: bool,
    stalled: &Stalled,
) {
    let stall_begins = usize::try_from(plan.calm_seconds).unwrap_or(0);
    let stall_ends = usize::try_from(plan.calm_seconds + plan.stall_seconds).unwrap_or(0);
    let hello = stalled.storm.seconds("hello_p99_ms");
    let late = stalled.storm.seconds("lateness_p99_ms");
    let net = hello
        .iter()
        .zip(&late)
        .map(|(hello, late)| (hello - late).max(0.0));
    let during: Vec<_> = net.take(stall_ends).skip(stall_begins).collect();
    let hello = during.iter().copied().fold(0.0, f64::max);
    let beside = stalled.beside.seconds("operations");
    let goodput = recovered(&beside, stall_ends, BESIDE);
    let p99 = stalled.aside.seconds("operation_p99_ms");
    // With `--quick`, the stall begins after one second, so `1..stall_begins` selects no seconds.
    let mean = |seconds: Option<&[f64]>| {
        let seconds = seconds.filter(|seconds| !seconds.is_empty())?;
        let length = f64::from(u32::try_from(seconds.len()).unwrap_or(1));
        Some(seconds.iter().sum::<f64>() / length)
    };
    let none = || "–".to_owned();
    let calm = mean(p99.get(1..stall_begins));
    let aside = mean(p99.get(stall_begins..stall_ends)).zip(calm);
    let aside = aside.map_or_else(none, |(aside, calm)| format!("{:.2}", aside / calm));
    let given_up: f64 = stalled.storm.seconds("timed_out").iter().sum();
    let (connections, logins) = match is_through {
        true => (
            format!(
                "{:.0} open at most, {:.0} established",
                stalled.most_open,
                stalled.after.created - stalled.before.created
            ),
            stalled.after.authentications - stalled.before.authentications,
        ),
        false => (none(), stalled.primary_logins),
    };
    let served = mean(beside.get(stall_ends + 3..));
    let served = served.map_or_else(none, |served| format!("{served:.0}"));
    say(&format!(
        "| {clients} | {how:?} | {} | {run} | {hello:.1} ms | {served} | {goodput} | {connections} | {logins:.0} | {aside} | {given_up:.0} |",
        name_of(is_through)
    ));
}

/// The time that the load needs to recover after the end of the stall: `at once`, a number of
/// seconds, or `never`. `operations` has the number of served operations of each second, and
/// `offered` is the number of operations that the load sends per second. The load has recovered
/// when at least 90 % of `offered` operations are served in each second from then until the end of
/// the load.
fn recovered(operations: &[f64], stall_ends: usize, offered: f64) -> String {
    let after = operations.get(stall_ends..).unwrap_or_default();
    let bad = after.iter().rposition(|served| *served < offered * 0.9);
    match bad {
        None => "at once".to_owned(),
        Some(last) if last + 1 == after.len() => "never".to_owned(),
        Some(last) => format!("{} s", last + 1),
    }
}

async fn persistent(testbed: &StormTestbed, plan: &StormPlan) {
    let (clients, offered) = (plan.persistent, 2_000.0);
    say(&format!(
        "\n## {clients} clients that keep their connections, {offered:.0} operations/s with timeouts of 500 ms, the primary stopped for 3 s\n"
    ));
    say(
        "| target | run | recovered after | operations/s before | operations/s in the last second | client logins |",
    );
    say("|---|---|---|---|---|---|");
    for run in 1..=plan.runs {
        for is_through in [false, true] {
            let uri = endpoint(testbed, is_through);
            // The stall begins only after twice the calm time, when all clients have connected.
            let settle = plan.calm_seconds * 2;
            let seconds = settle + 3 + plan.after_seconds + 4;
            let options = [
                ("--keep", offered.to_string()),
                ("--clients", clients.to_string()),
                ("--timeouts-ms", "500".to_owned()),
            ];
            let running = load("storm", &uri, seconds, &options);
            sleep(Duration::from_secs(settle)).await;
            testbed.stall(Stall::Stopped, Duration::from_secs(3)).await;
            let report = running.report().await;
            let operations = report.seconds("operations");
            let stall_ends = usize::try_from(settle + 3).unwrap_or(0);
            let at = |second: usize| operations.get(second).copied().unwrap_or(f64::NAN);
            say(&format!(
                "| {} | {run} | {} | {:.0} | {:.0} | {:.0} |",
                name_of(is_through),
                recovered(&operations, stall_ends, offered),
                at(stall_ends - 5),
                at(operations.len() - 1),
                report.seconds("logged_in").iter().sum::<f64>(),
            ));
            pause_between_runs().await;
        }
    }
}

async fn restart(testbed: &mut StormTestbed, plan: &StormPlan) {
    let (clients, offered) = (plan.surge, 1_000.0);
    say(&format!(
        "\n## Seawall killed with {clients} connected clients, and started one second later\n"
    ));
    say(&format!(
        "| run | 90 % of {offered:.0} operations/s served again after | server connections | server logins |"
    ));
    say("|---|---|---|---|");
    for run in 1..=plan.runs {
        let uri = testbed.through();
        let settle = plan.calm_seconds * 2;
        let options = [
            ("--keep", offered.to_string()),
            ("--clients", clients.to_string()),
            ("--timeouts-ms", "500".to_owned()),
        ];
        let running = load("storm", &uri, settle + 1 + plan.after_seconds + 4, &options);
        sleep(Duration::from_secs(settle)).await;
        testbed.kill_seawall();
        sleep(Duration::from_secs(1)).await;
        testbed.start_seawall();
        let report = running.report().await;
        let counts = testbed.counts().await;
        assert!(
            counts.created <= plan.max_server_connections(),
            "{} server connections",
            counts.created
        );
        let started = usize::try_from(settle + 1).unwrap_or(0);
        say(&format!(
            "| {run} | {} | {:.0} | {:.0} |",
            recovered(&report.seconds("operations"), started, offered),
            counts.created,
            counts.authentications
        ));
        pause_between_runs().await;
    }
}
