//! Shows which stalls Seawall reports in three situations: with real checkpoints, with a server
//! process that is stopped every 15 seconds, and under a steady load without stalls.

mod checkpoints;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bson::{Document, doc, rawdoc};
use mongodb::Client;
use seawall_api::Stalls;
use seawall_tests::{
    mongod::{Options, ROOT, ROOT_PASSWORD, Standalone},
    raw::Login,
};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    DATABASE, Machine, Plan,
    link::{LinkTarget, message},
    pace::{Paced, Rate},
    random::Random,
    seawall::Seawall,
};
use crate::output::say;

/// Time from the start of one stall to the start of the next.
const PERIOD: Duration = Duration::from_secs(15);

/// Time for which the server process is stopped.
const STOPPED: Duration = Duration::from_secs(2);

/// Number of times that the server process is stopped.
const TIMES: u32 = 4;

/// Seawall must report a recurring stall after this many stalls.
const REPORTED_AFTER: u32 = 3;

/// Time in which Seawall learns the usual latencies.
const LEARNING_TIME: Duration = Duration::from_secs(25);

/// Maximum error of a stall's period and of its length in Seawall's report, in seconds.
const ERROR_SECONDS: f64 = 1.0;

/// Time that the bench waits after the last stall before it reads Seawall's report. For Seawall, a
/// stall has ended five seconds after the last slow operation. Three more seconds are a reserve.
const QUIET: Duration = Duration::from_secs(8);

/// Time between two checks whether Seawall reports a recurring stall.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Number of documents in the collection that the load reads.
const DOCUMENTS: usize = 1_000;

/// The rate of a light load.
const LIGHT: Rate = Rate {
    connections: 16,
    per_second: 200.0,
};

/// Measures stalls with real checkpoints, and then with a server process that is stopped. A quick
/// run (`--quick`) skips both measurements, because they take too long.
pub async fn run(plan: &Plan) {
    if plan.is_quick {
        say("\n## Stalls: not part of a quick run\n");
        return;
    }
    checkpoints::run(plan).await;
    stopped(plan).await;
}

/// Runs a steady load and asserts that Seawall reports no stall.
pub async fn steady(plan: &Plan) {
    let time = plan.either(Duration::from_mins(5), Duration::from_secs(10));
    let server = start().await;
    let seawall = Seawall::start(plan, &server.root_uri(), "").await;
    let load = Paced::start(&target(&seawall), LIGHT, finds).await;
    let machine = Machine::now();
    sleep(time).await;
    let began = epoch_seconds_of(load.began());
    let reported: Stalls = seawall.api("/api/v1/stalls").await;
    let completed = load.end().await;
    let worst = completed.iter().map(|one| one.took).max();
    say(&format!(
        "\n## Steady: {:.0} finds per second for {} s\n\n{} operations; the longest took {:.1} ms.",
        LIGHT.per_second,
        time.as_secs(),
        completed.len(),
        worst.unwrap_or_default().as_secs_f64() * 1e3
    ));
    Machine::say_since(machine);
    say_stalls(&reported, began);
    let Stalls {
        episodes,
        recurring,
        ..
    } = reported;
    assert!(
        episodes.is_empty() && recurring.is_empty(),
        "nothing stalled, but Seawall reports {episodes:?} {recurring:?}"
    );
}

/// Stops the server process four times. Each stop lasts two seconds, and a stop begins every 15
/// seconds. Asserts that Seawall reports a recurring stall.
async fn stopped(plan: &Plan) {
    let server = start().await;
    let seawall = Seawall::start(plan, &server.root_uri(), "").await;
    let load = Paced::start(&target(&seawall), LIGHT, finds).await;
    let machine = Machine::now();
    let began = epoch_seconds_of(load.began());
    let first = load.began() + LEARNING_TIME;
    let mut reported_at = None;
    for number in 0..TIMES {
        let due = first + PERIOD * number;
        sleep_until(due).await;
        server
            .mongod()
            .stop_process()
            .expect("the process can be stopped");
        sleep_until(due + STOPPED).await;
        server
            .mongod()
            .continue_process()
            .expect("the process can be continued");
        if number + 1 == REPORTED_AFTER {
            reported_at = first_reported(&seawall, due + PERIOD).await;
        }
    }
    sleep(QUIET).await;
    let reported: Stalls = seawall.api("/api/v1/stalls").await;
    let completed = load.end().await;
    say(&format!(
        "\n## Stopped: {:.0} finds per second, the process stopped for {} s every {} s, {TIMES} times\n\n{} operations.",
        LIGHT.per_second,
        STOPPED.as_secs(),
        PERIOD.as_secs(),
        completed.len()
    ));
    Machine::say_since(machine);
    say_stalls(&reported, began);
    match reported_at {
        Some(at) => say(&format!(
            "\nThe recurring stall was reported {:.1} s after stall {REPORTED_AFTER} began.",
            at.duration_since(first + PERIOD * (REPORTED_AFTER - 1))
                .as_secs_f64()
        )),
        None => say("\nThe recurring stall was not reported before the last stall began."),
    }
    check_stopped(&reported, &server);
    assert!(
        reported_at.is_some(),
        "the recurring stall must be reported within {REPORTED_AFTER} periods"
    );
}

fn check_stopped(reported: &Stalls, server: &Standalone) {
    let address = Some(server.address().to_string());
    let is_near = |seconds: f64, expected: Duration| {
        (seconds - expected.as_secs_f64()).abs() <= ERROR_SECONDS
    };
    let mut recurring = reported.recurring.iter();
    let found = recurring.any(|row| {
        is_near(row.period_seconds, PERIOD)
            && is_near(row.length_seconds, STOPPED)
            && row.unanswered
            && row.counter.is_none()
            && row.server == address
            && !row.phase.is_empty()
    });
    assert!(found, "{reported:#?}");
    let episodes = reported.episodes.iter();
    let episodes: Vec<_> = episodes.filter(|row| row.server == address).collect();
    assert!(!episodes.is_empty(), "{reported:#?}");
    for episode in episodes {
        assert!(episode.operations > 0, "{episode:#?}");
        assert!(!episode.phase.is_empty(), "{episode:#?}");
        assert!(!episode.shapes.is_empty(), "{episode:#?}");
    }
}

/// The time at which Seawall first reports a recurring stall; `None` if it reports none before
/// `deadline`.
async fn first_reported(seawall: &Seawall, deadline: Instant) -> Option<Instant> {
    loop {
        let reported: Stalls = seawall.api("/api/v1/stalls").await;
        if !reported.recurring.is_empty() {
            return Some(Instant::now());
        }
        let next = Instant::now() + POLL_INTERVAL;
        if next >= deadline {
            return None;
        }
        sleep_until(next).await;
    }
}

/// Starts a standalone server with some documents.
async fn start() -> Standalone {
    let server = Standalone::start(Options::with_auth()).await;
    let server = server.expect("a mongod starts");
    fill(&server.client().expect("the server accepts connections")).await;
    server
}

async fn fill(client: &Client) {
    let documents = (0..DOCUMENTS).map(|n| {
        let id = i32::try_from(n).unwrap_or(0);
        doc! { "_id": id, "text": "x".repeat(100) }
    });
    let collection = client.database(DATABASE).collection::<Document>("small");
    let inserted = collection.insert_many(documents).await;
    inserted.expect("documents can be inserted");
}

fn target(seawall: &Seawall) -> LinkTarget {
    LinkTarget {
        address: seawall.address(),
        login: Some(Login::new("admin", ROOT, ROOT_PASSWORD)),
    }
}

/// Messages with finds and counts in random order. The commands have three query shapes and read
/// few documents.
fn finds(connection: u32) -> impl FnMut() -> Vec<u8> {
    let mut random = Random::of(connection.into());
    move || {
        let id = i32::try_from(random.below(DOCUMENTS)).unwrap_or(0);
        let command = match random.below(3) {
            0 => rawdoc! { "find": "small", "filter": { "_id": id }, "$db": DATABASE },
            1 => rawdoc! {
                "find": "small", "filter": { "_id": { "$gte": id } }, "limit": 5, "singleBatch": true,
                "$db": DATABASE,
            },
            _ => rawdoc! { "count": "small", "query": { "_id": id }, "$db": DATABASE },
        };
        message(&command)
    }
}

/// Prints the stalls that Seawall reported. Times are relative to the start of the load.
fn say_stalls(reported: &Stalls, began: f64) {
    let pulse = &reported.pulse;
    say(&format!(
        "Samples of servers: {}; {} got a reply, after {:.1} ms on average; {} got no reply.\n",
        pulse.state,
        pulse.answered.unwrap_or_default(),
        pulse.mean_ms.unwrap_or(f64::NAN),
        pulse.unanswered.unwrap_or_default(),
    ));
    say(
        "| stalled server | starts after | length | operations | phase | usual p99 | longest | shapes | counters that changed most | samples without a reply |",
    );
    say("|---|---|---|---|---|---|---|---|---|---|");
    for episode in reported.episodes.iter().rev() {
        let shapes = episode.shapes.iter();
        let shapes: Vec<_> = shapes.map(|shape| &*shape.command).collect();
        let moved = episode.moved.iter().take(3).map(|moved| {
            format!(
                "{} {:.0} instead of {:.0}",
                moved.counter, moved.during, moved.otherwise
            )
        });
        say(&format!(
            "| {} | {:.1} s | {:.1} s | {} | {} | {:.1} ms | {:.0} ms | {} | {} | {} |",
            episode.server.as_deref().unwrap_or("all"),
            episode.started_at - began,
            episode.seconds,
            episode.operations,
            episode.phase,
            episode.usual_p99_ms,
            episode.worst_ms,
            shapes.join(", "),
            moved.collect::<Vec<_>>().join("; "),
            episode.unanswered_pulses,
        ));
    }
    say("\n| server | period | length | times | phase | counter | samples got no reply |");
    say("|---|---|---|---|---|---|---|");
    for row in &reported.recurring {
        say(&format!(
            "| {} | {:.2} s | {:.2} s | {} | {} | {} | {} |",
            row.server.as_deref().unwrap_or("all"),
            row.period_seconds,
            row.length_seconds,
            row.times,
            row.phase,
            row.counter.as_deref().unwrap_or("–"),
            row.unanswered,
        ));
    }
}

/// Returns the current time in seconds since the epoch.
fn epoch_seconds() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// A moment in the past, in seconds since the epoch.
fn epoch_seconds_of(moment: Instant) -> f64 {
    epoch_seconds() - moment.elapsed().as_secs_f64()
}
