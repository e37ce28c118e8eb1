//! Measures TLS handshakes: `cargo bench --bench handshakes`.
//!
//! - `counts`: how many full and resumed handshakes Seawall and HAProxy complete per second of CPU
//!   time, with ECDSA and RSA keys, without and with certificates of clients.
//! - `storms`: the latency of clients without TLS during a storm of full handshakes.
//! - `busy`: how long single handshakes take while other threads use all cores.
//! - `idle`: Seawall's memory for an idle client that has logged in, with and without TLS.
//! - `rotations`: the time until replaced certificates, authorities and revocation lists have an
//!   effect, while 500 clients run operations. The last time, the files for TLS to the server are
//!   replaced too.
//!
//! In each round of the parts `counts`, `storms` and `busy`, Seawall and HAProxy are measured one
//! after the other.
//!
//! - `--rounds N` sets the number of rounds.
//! - `--seawall NAME=BINARY` also measures another binary of Seawall in the parts `counts`,
//!   `storms` and `busy`, and shows it as NAME.
//! - `--only PART` runs only one part: `idle`, `counts`, `rotations`, `storms` or `busy`.
//! - `--quick` runs one short round, for CI.
//!
//! The bench checks the numbers of handshakes and operations, and that no operation fails. Without
//! `--quick`, it also fails at its end if new handshakes did not use replaced TLS files within two
//! seconds. It does not check other times, speed or memory.

use std::{num::NonZero, path::Path, thread, time::Duration};

use seawall_benches::{
    busy::BusyThreads,
    handshakes::{
        ClientCertificates, Handshakes, Key, TlsTarget, address, haproxy, seawall,
        write_certificates,
    },
    load::{Load, SMALL, Work, run as run_load},
    options::{option, options},
    output::say,
    process::{cpu_time, resident_bytes},
    rotation::{GOAL, RATE as ROTATION_RATE, RotationTestbed, RotationTimes},
    run::Run,
    setup::{Clients, server},
    spread::Spread,
};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ReplicaSet},
    process::binary,
    scratch::Scratch,
};
use seawall_transport::connection::Connection;
use tokio::{
    runtime::Builder,
    time::{Instant, sleep},
};

const PARTS: [&str; 5] = ["idle", "counts", "rotations", "storms", "busy"];

/// Number of clients whose handshakes are counted in the part `counts`. These clients keep one
/// CPU core of the measured process (Seawall or HAProxy) busy.
const CLIENTS: usize = 8;

/// Number of clients that make TLS handshakes at the same time in the part `storms`.
const STORM_CLIENTS: usize = 200;

/// Total finds per second in the part `storms`. Clients without TLS run these finds.
const RATE: f64 = 400.0;

/// Total number of connections without TLS that send `find` commands in the part `storms`.
const CONNECTIONS: usize = 16;

/// Number of busy threads per core in the part `busy`.
const BUSY_THREADS_PER_CORE: usize = 2;

/// Time between two handshakes in the part `busy`.
const PAUSE: Duration = Duration::from_millis(50);

const START_LIMIT: Duration = Duration::from_secs(30);

/// The numbers of rounds, clients and rotations, and the duration of each measurement.
#[derive(Clone, Copy)]
struct HandshakePlan {
    rounds: usize,
    counted: Duration,
    calm: Duration,
    storm: Duration,
    /// Number of handshakes per round in the part `busy`.
    singles: usize,
    /// Number of idle clients.
    idle: usize,
    /// Number of clients that run operations while TLS files (such as certificates) are replaced.
    rotation_clients: usize,
    /// Number of times that the TLS files are replaced.
    rotations: usize,
    /// True if the bench fails when new TLS files are used too late.
    has_goal: bool,
}

struct Bench {
    plan: HandshakePlan,
    targets: Vec<TlsTarget>,
    /// Another Seawall process. In the control measurement, the handshakes of the storm go to this
    /// process, and the finds go to the measured Seawall.
    other: TlsTarget,
    clients: Clients,
}

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let rounds = option("--rounds").map(|rounds| rounds.parse().expect("--rounds takes a number"));
    let plan = match is_quick {
        true => HandshakePlan {
            rounds: 1,
            counted: Duration::from_millis(200),
            calm: Duration::from_millis(500),
            storm: Duration::from_millis(500),
            singles: 5,
            idle: 50,
            rotation_clients: 20,
            rotations: 1,
            has_goal: false,
        },
        false => HandshakePlan {
            rounds: rounds.unwrap_or(5),
            counted: Duration::from_secs(2),
            calm: Duration::from_secs(4),
            storm: Duration::from_secs(6),
            singles: 100,
            idle: 4_000,
            rotation_clients: 500,
            rotations: 20,
            has_goal: true,
        },
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("the runtime starts").block_on(run(plan));
}

async fn run(plan: HandshakePlan) {
    let facts = Run::begin(plan.rounds, plan.counted);
    say(&format!(
        "{}, commit {}, {}; {} rounds",
        facts.date, facts.commit, facts.machine, plan.rounds
    ));
    let set = ReplicaSet::start(1, Options::with_auth()).await;
    let set = set.expect("a mongod starts");
    let root = set.client().await.expect("the set accepts connections");
    let clients = Clients::prepare(&root, &[SMALL]).await;
    let server = server(&set).await;
    let scratch = Scratch::create().expect("the directory can be created");
    write_certificates(&scratch);
    let only = option("--only");
    let is_known = |only: &String| PARTS.contains(&only.as_str());
    assert!(
        only.as_ref().is_none_or(is_known),
        "--only takes one of {PARTS:?}"
    );
    let is_wanted = |part: &str| only.as_ref().is_none_or(|only| only == part);
    if is_wanted("idle") {
        idle(&clients, plan.idle, &scratch, &server).await;
    }
    let mut longest = Duration::ZERO;
    if is_wanted("rotations") {
        longest = rotations(plan).await;
    }
    let bench = Bench {
        plan,
        targets: targets(&scratch, &server),
        other: seawall("other", binary(), &scratch, &server, None),
        clients,
    };
    for target in bench.targets.iter().chain([&bench.other]) {
        bench.clients.wait_for_login(&address(target.plain)).await;
    }
    if is_wanted("counts") {
        bench.count_handshakes().await;
    }
    if is_wanted("storms") {
        bench.measure_storms().await;
    }
    if is_wanted("busy") {
        bench.measure_on_busy_cores().await;
    }
    assert!(
        !plan.has_goal || longest <= GOAL,
        "new handshakes used new TLS files only after {longest:?}; the goal is {GOAL:?}"
    );
}

/// Starts Seawall and HAProxy, without and with the verification of clients' certificates. Seawall
/// is the first target.
fn targets(scratch: &Scratch, server: &str) -> Vec<TlsTarget> {
    let mut targets = vec![seawall("Seawall", binary(), scratch, server, None)];
    for other in options("--seawall") {
        let (name, path) = other.split_once('=').expect("--seawall takes NAME=BINARY");
        targets.push(seawall(name, Path::new(path), scratch, server, None));
    }
    targets.extend(haproxy("HAProxy", scratch, server, None));
    let certificates = Some(&ClientCertificates::create(scratch));
    let name = "Seawall, client certificates";
    targets.push(seawall(name, binary(), scratch, server, certificates));
    let name = "HAProxy, client certificates";
    targets.extend(haproxy(name, scratch, server, certificates));
    targets
}

/// Measures the memory per idle client without TLS and with TLS. Each measurement uses a new
/// process, because a process keeps memory that it has used.
async fn idle(clients: &Clients, count: usize, scratch: &Scratch, server: &str) {
    say(&format!("\n## {count} idle clients that have logged in\n"));
    say("| clients | memory before | bytes per client |\n|---|---|---|");
    for (name, is_tls) in [("without TLS", false), ("with TLS 1.3", true)] {
        let target = seawall(name, binary(), scratch, server, None);
        let (clients, at) = match is_tls {
            true => (&clients.with_tls(), address(target.tls())),
            false => (clients, address(target.plain)),
        };
        clients.wait_for_login(&at).await;
        // The first connections fill caches that all connections share. These caches must not count
        // as memory of the clients.
        drop(clients.connect_all(&at, 200).await);
        let resident = || resident_bytes(target.id()).expect("Seawall runs");
        let before = resident();
        let open = clients.connect_all(&at, count).await;
        let each = resident().saturating_sub(before) / u64::try_from(count).unwrap_or(1);
        say(&format!("| {name} | {} KiB | {each} |", before / 1024));
        drop(open);
    }
}

/// Measures the time until replaced TLS files have an effect, while clients run operations. Returns
/// the longest time until new handshakes used the new files.
async fn rotations(plan: HandshakePlan) -> Duration {
    let (count, rotations) = (plan.rotation_clients, plan.rotations);
    say(&format!(
        "\n## {rotations} rotations of all TLS files with `reload.watch`, while {count} clients \
         run {ROTATION_RATE} finds/s\n"
    ));
    let mut testbed = RotationTestbed::start().await;
    let times = testbed.measure(count, rotations).await;
    say("| time from the replacement of the files | median, s | most, s |\n|---|---|---|");
    let row = |name: &str, of: fn(&RotationTimes) -> Duration| {
        let spread = Spread::of(times.iter().map(|times| of(times).as_secs_f64()));
        say(&format!(
            "| {name} | {:.2} | {:.2} |",
            spread.median, spread.most
        ));
    };
    row("until a handshake gets the new certificate", |times| {
        times.certificate
    });
    row("until a client of the new authority is served", |times| {
        times.authority
    });
    row("until a revoked client's connection is closed", |times| {
        times.revocation
    });
    let handshakes = || times.iter().map(RotationTimes::handshakes);
    let longest = handshakes().max().expect("there is a rotation");
    let last = handshakes().next_back().expect("there is a rotation");
    say(&format!(
        "\nLongest time until new handshakes used the new files: {:.2} s; the goal is at most {} s. \
         In the last rotation, which also replaced the files for TLS to the server: {:.2} s.",
        longest.as_secs_f64(),
        GOAL.as_secs(),
        last.as_secs_f64()
    ));
    longest
}

/// The rate of handshakes at a target: per second of the target's CPU time, and per second of
/// elapsed time.
#[derive(Clone, Copy)]
struct Speed {
    per_core: f64,
    per_second: f64,
}

impl Bench {
    async fn count_handshakes(&self) {
        say("\n## Handshakes of TLS 1.3\n");
        say(
            "\"Per core\" means per second of the target's CPU time. Median (least to most) of the rounds.\n",
        );
        say(
            "| key | handshake | target | handshakes per core | µs of CPU time each | handshakes/s |",
        );
        say("|---|---|---|---|---|---|");
        for key in Key::ALL {
            for is_resumed in [false, true] {
                let mut speeds = vec![Vec::new(); self.targets.len()];
                for _ in 0..self.plan.rounds {
                    for (target, speeds) in self.targets.iter().zip(&mut speeds) {
                        let handshakes = Handshakes::at(target, key, is_resumed, CLIENTS);
                        speeds.push(self.count(target, handshakes, is_resumed).await);
                    }
                }
                let kind = if is_resumed { "resumed" } else { "full" };
                for (target, speeds) in self.targets.iter().zip(&speeds) {
                    let per_core = Spread::of(speeds.iter().map(|speed| speed.per_core));
                    let rate = Spread::of(speeds.iter().map(|speed| speed.per_second));
                    say(&format!(
                        "| {} | {kind} | {} | {:.0} ({:.0} to {:.0}) | {:.0} | {:.0} |",
                        key.name(),
                        target.name,
                        per_core.median,
                        per_core.least,
                        per_core.most,
                        1e6 / per_core.median,
                        rate.median,
                    ));
                }
            }
        }
    }

    async fn count(&self, target: &TlsTarget, handshakes: Handshakes, is_resumed: bool) -> Speed {
        let running = handshakes.start();
        // The count begins after about ten handshakes per client, because a client's first
        // handshakes are full even if its later handshakes are resumed.
        let enough = 10 * u64::try_from(CLIENTS).unwrap_or(u64::MAX);
        let has_begun = || async {
            let counts = running.counts();
            counts.full + counts.resumed >= enough
        };
        let has_begun = eventually(START_LIMIT, has_begun).await;
        has_begun.expect("each target completes handshakes");
        let cpu = || cpu_time(target.id()).expect("the target runs");
        let (began, cpu_before, before) = (Instant::now(), cpu(), running.counts());
        sleep(self.plan.counted).await;
        // On a busy machine, a short time may be over before the first handshake.
        let has_one = || async {
            let counts = running.counts();
            counts.full + counts.resumed > before.full + before.resumed
        };
        let has_one = eventually(START_LIMIT, has_one).await;
        has_one.expect("each target completes handshakes");
        let (elapsed, used, after) = (began.elapsed(), cpu() - cpu_before, running.counts());
        drop(running);
        let (full, resumed) = (after.full - before.full, after.resumed - before.resumed);
        let (wanted, others) = if is_resumed {
            (resumed, full)
        } else {
            (full, resumed)
        };
        let failed = after.failed - before.failed;
        let name = &target.name;
        assert!(wanted > 0, "{name}: no handshake completed");
        assert!(
            others * 20 <= wanted,
            "{name}: {others} handshakes of the wrong kind (full or resumed) in addition to {wanted}"
        );
        assert!(
            failed * 100 <= wanted,
            "{name}: {failed} failed handshakes in addition to {wanted}"
        );
        let count = number(full + resumed);
        Speed {
            per_core: count / used.as_secs_f64(),
            per_second: count / elapsed.as_secs_f64(),
        }
    }

    async fn measure_storms(&self) {
        say(&format!(
            "\n## {RATE} finds/s of {CONNECTIONS} clients without TLS, during full handshakes of \
             {STORM_CLIENTS} clients in a loop\n"
        ));
        say(
            "| key | target | p99 before, ms | p99 during the storm, ms | ratio: median (least to most) | handshakes/s |",
        );
        say("|---|---|---|---|---|---|");
        let seawall = self.targets.first().expect("Seawall is a target");
        for key in Key::ALL {
            let mut rows = vec![Vec::new(); self.targets.len()];
            let mut control = Vec::new();
            for _ in 0..self.plan.rounds {
                control.push(self.measure_storm(seawall, &self.other, key).await);
                for (target, rows) in self.targets.iter().zip(&mut rows) {
                    rows.push(self.measure_storm(target, target, key).await);
                }
            }
            let name = "Seawall, handshakes at another process";
            StormLatency::print(key.name(), name, &control);
            for (target, rows) in self.targets.iter().zip(&rows) {
                StormLatency::print(key.name(), &target.name, rows);
            }
        }
    }

    async fn measure_on_busy_cores(&self) {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let count = BUSY_THREADS_PER_CORE * cores;
        say(&format!(
            "\n## Single full handshakes, while {count} threads use all cores\n"
        ));
        say("| key | target | median, ms | most, ms |\n|---|---|---|---|");
        for key in Key::ALL {
            let mut times = vec![Vec::new(); self.targets.len()];
            for _ in 0..self.plan.rounds {
                for (target, times) in self.targets.iter().zip(&mut times) {
                    let _busy = BusyThreads::start(count);
                    let handshakes = Handshakes::at(target, key, false, 1);
                    for _ in 0..self.plan.singles {
                        times.push(handshakes.time_one().await.as_secs_f64() * 1e3);
                        sleep(PAUSE).await;
                    }
                }
            }
            for (target, times) in self.targets.iter().zip(times) {
                let Spread { median, most, .. } = Spread::of(times.into_iter());
                let (key, name) = (key.name(), &target.name);
                say(&format!("| {key} | {name} | {median:.1} | {most:.1} |"));
            }
        }
    }

    /// Measures the latency of finds at `target` before and during a storm of TLS handshakes at
    /// `stormed`. If `target` and `stormed` are two processes, the measurement is a control: the
    /// storm can delay the finds only because both processes use the same CPU cores. The
    /// measurement shows how long this delay is.
    async fn measure_storm(
        &self,
        target: &TlsTarget,
        stormed: &TlsTarget,
        key: Key,
    ) -> StormLatency {
        let connections = self
            .clients
            .connect_all(&address(target.plain), CONNECTIONS)
            .await;
        let (before, connections) = finds(connections, self.plan.calm).await;
        let running = Handshakes::at(stormed, key, false, STORM_CLIENTS).start();
        let full = || running.counts().full;
        let has_begun = eventually(START_LIMIT, async || full() > 0).await;
        assert!(
            has_begun.is_ok(),
            "{}: no handshake completed",
            stormed.name
        );
        sleep(self.plan.storm / 6).await;
        let (began, earlier) = (Instant::now(), full());
        let (during, _) = finds(connections, self.plan.storm).await;
        let has_progress = eventually(START_LIMIT, async || full() > earlier).await;
        assert!(
            has_progress.is_ok(),
            "{}: the storm has stopped",
            stormed.name
        );
        let made = full() - earlier;
        StormLatency {
            before,
            during,
            per_second: number(made) / began.elapsed().as_secs_f64(),
        }
    }
}

/// The p99 of finds in milliseconds before and during a storm, and the storm's handshakes per
/// second.
#[derive(Clone, Copy)]
struct StormLatency {
    before: f64,
    during: f64,
    per_second: f64,
}

impl StormLatency {
    /// Prints the table row of a target. It shows the medians of the measurements in `rows`.
    fn print(key: &str, target: &str, rows: &[Self]) {
        let spread = |of: fn(&Self) -> f64| Spread::of(rows.iter().map(of));
        let ratio = spread(|row| row.during / row.before);
        say(&format!(
            "| {key} | {target} | {:.2} | {:.2} | {:.2} ({:.2} to {:.2}) | {:.0} |",
            spread(|row| row.before).median,
            spread(|row| row.during).median,
            ratio.median,
            ratio.least,
            ratio.most,
            spread(|row| row.per_second).median,
        ));
    }
}

/// Runs finds for `time`. Returns their p99 in milliseconds, and the connections.
async fn finds(connections: Vec<Connection>, time: Duration) -> (f64, Vec<Connection>) {
    let load = Load {
        work: Work::Finds(SMALL),
        rate: Some(RATE),
        time,
    };
    let (outcome, connections) = run_load(connections, load).await;
    assert!(outcome.operations > 0, "no find got a reply");
    (outcome.percentile(99).as_secs_f64() * 1e3, connections)
}

fn number(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::NAN, f64::from)
}
