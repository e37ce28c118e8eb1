//! The incident, reproduced: `cargo bench --bench storm`.
//!
//! Clients with time-outs of 40 to 500 ms that reconnect at once, before a primary that stalls for five seconds; clients
//! that keep their connections; connections for one find each; and Seawall killed under load. Directly and through
//! Seawall in turn. With `--quick`, a tenth of it, for CI: that asserts counts only. `--only incident|persistent|short|php|calls|idle|restart`
//! picks a part, `--runs N` says how often each is run, `--clients N` of which size incidents are.

use std::{io::Write, time::Duration};

use seawall_benches::{
    extras,
    process::cpu_split,
    weather::{Counts, Load, Stall, Told, Weather},
};
use tokio::{
    runtime::Builder,
    time::{sleep, timeout},
};

/// Seawall's `max_pool_size`: of one user, so of all connections to the primary but its own probes'.
const POOL_SIZE: usize = 32;

/// The same while clients are idle: ten connections or fewer in all.
const IDLE_POOL_SIZE: usize = 4;

/// Operations a second that are offered beside the storm.
const BESIDE: f64 = 500.0;

struct Plan {
    sizes: Vec<usize>,
    short_sizes: Vec<usize>,
    persistent: usize,
    surge: usize,
    idle: Vec<usize>,
    /// Runs of a PHP script.
    pages: usize,
    /// Seconds under strace.
    traced: u64,
    runs: usize,
    /// Before a stall, the stall, and after it.
    calm: u64,
    stall: u64,
    after: u64,
}

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let runs = option("--runs").and_then(|runs| runs.parse().ok());
    let mut plan = if is_quick {
        Plan {
            sizes: vec![100],
            short_sizes: vec![50],
            persistent: 200,
            surge: 100,
            idle: vec![500],
            pages: 5,
            traced: 2,
            runs: 1,
            calm: 2,
            stall: 2,
            after: 4,
        }
    } else {
        Plan {
            sizes: vec![500, 2_000, 6_000],
            short_sizes: vec![200, 1_000, 2_000, 6_000],
            persistent: 6_000,
            surge: 5_000,
            idle: vec![9_800, 18_000],
            pages: 200,
            traced: 15,
            runs: runs.unwrap_or(4),
            calm: 5,
            stall: 5,
            after: 8,
        }
    };
    if let Some(size) = option("--clients").and_then(|size| size.parse().ok()) {
        plan.sizes = vec![size];
    }
    let only = option("--only");
    let wanted = |part: &str| only.as_ref().is_none_or(|only| only == part);
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let mut weather = Weather::start(POOL_SIZE).await;
        if wanted("short") {
            short(&weather, &plan).await;
        }
        if wanted("php") {
            pages(&weather, &plan);
        }
        if wanted("calls") {
            calls(&weather, &plan).await;
        }
        if wanted("idle") {
            idle(&mut weather, &plan).await;
        }
        if wanted("incident") {
            incident(&weather, &plan).await;
        }
        if wanted("persistent") {
            persistent(&weather, &plan).await;
        }
        if wanted("restart") {
            restart(&mut weather, &plan).await;
        }
    });
}

/// The word after an option on the command line.
fn option(name: &str) -> Option<String> {
    std::env::args()
        .skip_while(|argument| argument != name)
        .nth(1)
}

fn say(line: &str) {
    writeln!(std::io::stdout().lock(), "{line}").expect("somebody reads");
}

fn endpoint(weather: &Weather, is_through: bool) -> String {
    match is_through {
        true => weather.through(),
        false => weather.primary(),
    }
}

fn name_of(is_through: bool) -> &'static str {
    if is_through { "Seawall" } else { "direct" }
}

/// A load of the harness with its options, `database` apart from the others.
fn load(
    weather: &Weather,
    kind: &str,
    uri: &str,
    seconds: u64,
    options: &[(&str, String)],
) -> Load {
    let mut arguments = vec![kind.to_owned(), uri.to_owned()];
    let duration = ("--duration-s", seconds.to_string());
    for (option, value) in [duration].iter().chain(options) {
        arguments.extend([(*option).to_owned(), value.clone()]);
    }
    weather.load(&arguments)
}

/// One connection for one find, as PHP has it.
async fn short(weather: &Weather, plan: &Plan) {
    say("\n## Short connections: connect, hello, SCRAM-SHA-256, find, close; 500 ms a step\n");
    say(
        "| clients | run | direct, a second | Seawall, a second | ratio | server logins | server connections | Seawall's cores user + system | the server's through Seawall | the server's direct |",
    );
    say("|---|---|---|---|---|---|---|---|---|---|");
    for clients in &plan.short_sizes {
        for run in 1..=plan.runs {
            let direct = short_run(weather, plan, *clients, false).await;
            let through = short_run(weather, plan, *clients, true).await;
            let cores = |(user, system): (f64, f64)| format!("{user:.2} + {system:.2}");
            say(&format!(
                "| {clients} | {run} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} | {} | {} | {} |",
                direct.goodput,
                through.goodput,
                through.goodput / direct.goodput.max(1.0),
                through.logins,
                through.created,
                cores(through.seawall),
                cores(through.server),
                cores(direct.server),
            ));
        }
    }
}

/// What a run of short connections came to; cores are used ones, user and system.
struct Short {
    goodput: f64,
    logins: f64,
    created: f64,
    seawall: (f64, f64),
    server: (f64, f64),
}

async fn short_run(weather: &Weather, plan: &Plan, clients: usize, is_through: bool) -> Short {
    let uri = endpoint(weather, is_through);
    let cpu = || {
        [weather.seawall_id(), weather.primary_id()].map(|process| cpu_split(process.unwrap_or(0)))
    };
    let (before, [seawall, server]) = (weather.counts().await, cpu());
    let options = [
        ("--clients", clients.to_string()),
        ("--timeouts-ms", "500".to_owned()),
    ];
    let told = load(weather, "storm", &uri, plan.calm, &options)
        .report()
        .await;
    let (after, [seawall_then, server_then]) = (weather.counts().await, cpu());
    calm_down().await;
    if is_through {
        assert!(after.created <= limit(), "{} connections", after.created);
    }
    Short {
        goodput: told.number("/goodput"),
        logins: after.authentications - before.authentications,
        created: after.created,
        seawall: share(seawall, seawall_then, plan.calm),
        server: share(server, server_then, plan.calm),
    }
}

/// System calls of logins: what would grow with them is a reading of random numbers from the system.
async fn calls(weather: &Weather, plan: &Plan) {
    say(
        "\n## System calls of Seawall while clients connect, log in, ask and leave (strace -f -c)\n",
    );
    let Some(calls) = extras::calls(weather, 50, plan.traced).await else {
        say("strace is missing: not counted");
        return;
    };
    say("| call | in all | a login |");
    say("|---|---|---|");
    let random = calls.count("getrandom");
    for (name, count) in calls.by_name.iter().take(12) {
        say(&format!(
            "| {name} | {count:.0} | {:.2} |",
            count / calls.logins
        ));
    }
    say(&format!(
        "| getrandom | {random:.0} | {:.4} |",
        random / calls.logins
    ));
    say(&format!("\n{:.0} logins", calls.logins));
    assert!(calls.logins > 0.0, "nobody logged in");
    assert!(random * 100.0 <= calls.logins, "{random} readings");
}

async fn idle(weather: &mut Weather, plan: &Plan) {
    say("\n## Clients that have logged in and are idle\n");
    say("| clients | connected | bytes each | server connections |");
    say("|---|---|---|---|");
    weather.set_pool_size(IDLE_POOL_SIZE);
    for clients in &plan.idle {
        weather.restart_seawall().await;
        let idle = extras::idle(weather, *clients).await;
        say(&format!(
            "| {clients} | {:.0} | {:.0} | {:.0} |",
            idle.connected, idle.bytes_each, idle.server_connections
        ));
        calm_down().await;
    }
    weather.set_pool_size(POOL_SIZE);
    weather.restart_seawall().await;
}

fn pages(weather: &Weather, plan: &Plan) {
    say("\n## PHP scripts, one connection each\n");
    say("| runs | direct | Seawall | ratio of times |");
    say("|---|---|---|---|");
    for _ in 0..plan.runs {
        let took = [false, true].map(|is_through| {
            let time = extras::pages(&endpoint(weather, is_through), plan.pages);
            time.map(|time| time.as_secs_f64())
        });
        match took {
            [Some(direct), Some(through)] => say(&format!(
                "| {} | {direct:.2} s | {through:.2} s | {:.2} |",
                plan.pages,
                through / direct
            )),
            _ => say("| php or its driver is missing | | | |"),
        }
    }
}

fn share(before: (Duration, Duration), after: (Duration, Duration), seconds: u64) -> (f64, f64) {
    let seconds = Duration::from_secs(seconds).as_secs_f64();
    let part =
        |after: Duration, before: Duration| after.saturating_sub(before).as_secs_f64() / seconds;
    (part(after.0, before.0), part(after.1, before.1))
}

/// The pool's limit and what probes and monitors need on both members.
fn limit() -> f64 {
    u32::try_from(POOL_SIZE * 2).map_or(f64::NAN, f64::from)
}

/// Ports and backlogs of one run are no part of the next.
async fn calm_down() {
    sleep(Duration::from_secs(2)).await;
}

/// What a stalled run came to.
struct Stalled {
    storm: Told,
    beside: Told,
    /// Readers of the member that does not stall.
    aside: Told,
    before: Counts,
    after: Counts,
    most_open: f64,
    primary_logins: f64,
}

async fn incident(weather: &Weather, plan: &Plan) {
    say("\n## Storms before a stalled primary\n");
    say(
        "| clients | stall | target | run | hello p99 less lateness | of 500 operations a second beside, from 3 s after the stall on | nine tenths in each second after | server connections | server logins | readers aside, p99 to before | given up |",
    );
    say("|---|---|---|---|---|---|---|---|---|---|---|");
    for clients in &plan.sizes {
        for how in [Stall::Stopped, Stall::Delayed] {
            for run in 1..=plan.runs {
                for is_through in [false, true] {
                    let stalled = stalled(weather, plan, *clients, how, is_through).await;
                    row(plan, *clients, how, run, is_through, &stalled);
                    calm_down().await;
                }
            }
        }
    }
}

async fn stalled(
    weather: &Weather,
    plan: &Plan,
    clients: usize,
    how: Stall,
    is_through: bool,
) -> Stalled {
    let uri = endpoint(weather, is_through);
    let aside_uri = match is_through {
        true => format!("{}?readPreference=secondary", weather.through()),
        false => weather.secondary(),
    };
    let seconds = plan.calm + plan.stall + plan.after;
    let kept = |rate: f64, clients: usize| {
        [
            ("--keep", rate.to_string()),
            ("--clients", clients.to_string()),
            ("--timeouts-ms", "500".to_owned()),
        ]
    };
    let beside = load(weather, "storm", &uri, seconds, &kept(BESIDE, 50));
    let aside = load(weather, "storm", &aside_uri, seconds, &kept(200.0, 10));
    let storm = load(
        weather,
        "storm",
        &uri,
        seconds,
        &[("--clients", clients.to_string())],
    );
    sleep(Duration::from_secs(plan.calm)).await;
    let before = weather.counts().await;
    // Asked before the stall, since nobody answers in it.
    let logins_before = weather.primary_logins().await;
    weather.stall(how, Duration::from_secs(plan.stall)).await;
    let mut most_open = 0.0_f64;
    for _ in 0..plan.after {
        most_open = most_open.max(weather.counts().await.open);
        sleep(Duration::from_secs(1)).await;
    }
    let (storm, beside, aside) = (
        storm.report().await,
        beside.report().await,
        aside.report().await,
    );
    let after = weather.counts().await;
    let logins = timeout(Duration::from_secs(60), weather.primary_logins()).await;
    if is_through {
        assert!(
            after.created <= limit(),
            "{} server connections",
            after.created
        );
        assert!(beside.number("/steps/3/ok") > 0.0, "nothing was answered");
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

fn row(plan: &Plan, clients: usize, how: Stall, run: usize, is_through: bool, stalled: &Stalled) {
    let stall_begins = usize::try_from(plan.calm).unwrap_or(0);
    let stall_ends = usize::try_from(plan.calm + plan.stall).unwrap_or(0);
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
    let mean = |seconds: &[f64]| {
        seconds.iter().sum::<f64>() / f64::from(u32::try_from(seconds.len()).unwrap_or(1))
    };
    let calm = mean(p99.get(1..stall_begins).unwrap_or_default());
    let aside = mean(p99.get(stall_begins..stall_ends).unwrap_or_default()) / calm;
    let given_up: f64 = stalled.storm.seconds("timed_out").iter().sum();
    let (connections, logins) = match is_through {
        true => (
            format!(
                "{:.0} open at most, {:.0} made",
                stalled.most_open,
                stalled.after.created - stalled.before.created
            ),
            stalled.after.authentications - stalled.before.authentications,
        ),
        false => ("–".to_owned(), stalled.primary_logins),
    };
    let served = mean(beside.get(stall_ends + 3..).unwrap_or_default());
    say(&format!(
        "| {clients} | {how:?} | {} | {run} | {hello:.1} ms | {served:.0} | {goodput} | {connections} | {logins:.0} | {aside:.2} | {given_up:.0} |",
        name_of(is_through)
    ));
}

/// Seconds from the end of the stall until nine tenths of what was offered are served, and stay so.
fn recovered(operations: &[f64], stall_ends: usize, offered: f64) -> String {
    let after = operations.get(stall_ends..).unwrap_or_default();
    let bad = after.iter().rposition(|served| *served < offered * 0.9);
    match bad {
        None => "at once".to_owned(),
        Some(last) if last + 1 == after.len() => "not".to_owned(),
        Some(last) => format!("{} s", last + 1),
    }
}

async fn persistent(weather: &Weather, plan: &Plan) {
    let (clients, offered) = (plan.persistent, 2_000.0);
    say(&format!(
        "\n## {clients} clients that keep their connections, {offered:.0} operations/s with 500 ms time-outs, the primary stopped for 3 s\n"
    ));
    say(
        "| target | run | recovered after | operations a second before | in the last second | logins of clients |",
    );
    say("|---|---|---|---|---|---|");
    for run in 1..=plan.runs {
        for is_through in [false, true] {
            let uri = endpoint(weather, is_through);
            // As many come as there are clients; connecting is no part of it.
            let settle = plan.calm * 2;
            let seconds = settle + 3 + plan.after + 4;
            let options = [
                ("--keep", offered.to_string()),
                ("--clients", clients.to_string()),
                ("--timeouts-ms", "500".to_owned()),
            ];
            let running = load(weather, "storm", &uri, seconds, &options);
            sleep(Duration::from_secs(settle)).await;
            weather.stall(Stall::Stopped, Duration::from_secs(3)).await;
            let told = running.report().await;
            let operations = told.seconds("operations");
            let stall_ends = usize::try_from(settle + 3).unwrap_or(0);
            let at = |second: usize| operations.get(second).copied().unwrap_or(f64::NAN);
            say(&format!(
                "| {} | {run} | {} | {:.0} | {:.0} | {:.0} |",
                name_of(is_through),
                recovered(&operations, stall_ends, offered),
                at(stall_ends - 5),
                at(operations.len() - 1),
                told.seconds("logged_in").iter().sum::<f64>(),
            ));
            calm_down().await;
        }
    }
}

async fn restart(weather: &mut Weather, plan: &Plan) {
    let (clients, offered) = (plan.surge, 1_000.0);
    say(&format!(
        "\n## Seawall killed before {clients} clients, and started a second later\n"
    ));
    say("| run | nine tenths of {offered:.0} operations/s again after | server connections | server logins |".replace("{offered:.0}", &format!("{offered:.0}")).as_str());
    say("|---|---|---|---|");
    for run in 1..=plan.runs {
        let uri = weather.through();
        let settle = plan.calm * 2;
        let options = [
            ("--keep", offered.to_string()),
            ("--clients", clients.to_string()),
            ("--timeouts-ms", "500".to_owned()),
        ];
        let running = load(
            weather,
            "storm",
            &uri,
            settle + 1 + plan.after + 4,
            &options,
        );
        sleep(Duration::from_secs(settle)).await;
        weather.kill_seawall();
        sleep(Duration::from_secs(1)).await;
        weather.start_seawall();
        let told = running.report().await;
        let counts = weather.counts().await;
        assert!(
            counts.created <= limit(),
            "{} server connections",
            counts.created
        );
        let started = usize::try_from(settle + 1).unwrap_or(0);
        say(&format!(
            "| {run} | {} | {:.0} | {:.0} |",
            recovered(&told.seconds("operations"), started, offered),
            counts.created,
            counts.authentications
        ));
        calm_down().await;
    }
}
