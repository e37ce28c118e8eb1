//! Runs a load with many writes at a server that makes a checkpoint every 15 seconds. Prints when
//! the server made checkpoints, according to its own counters, and then the stalls that Seawall
//! reports.

use std::{sync::Arc, time::Duration};

use bson::{Binary, Bson, Document, doc, rawdoc, spec::BinarySubtype};
use mongodb::Client;
use seawall_api::Stalls;
use seawall_tests::mongod::{Options, ReplicaSet};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    LIGHT, epoch_seconds, epoch_seconds_of, fill, finds, first_reported, say_stalls, target,
};
use crate::{
    insight::{
        DATABASE, Machine, Plan, count, float,
        link::message,
        pace::{CompletedOperation, Paced, Rate},
        random::Random,
        seawall::Seawall,
    },
    output::say,
};

/// Seconds from the end of one checkpoint to the start of the next.
const SYNC_DELAY: &str = "15";

/// How long the load runs. The time suffices for Seawall to learn the usual latencies, and then for
/// three checkpoint periods and some more seconds.
const TIME: Duration = Duration::from_secs(90);

/// The rate of the writes, which have about 10 KiB each. The server writes each document to the
/// collection and to the oplog, and writes both to the journal. The default write concern is
/// majority, so each write waits for the journal.
const WRITES: Rate = Rate {
    connections: 64,
    per_second: 2_000.0,
};

/// Minimum and maximum size of a document in bytes.
const LEAST_BYTES: usize = 4 * 1024;
const MOST_BYTES: usize = 16 * 1024;

/// Size of the buffer of random bytes. The bodies of documents are slices of this buffer. Random
/// bytes cannot be compressed, so the server writes the bodies in their full size.
const STOCK_BYTES: usize = 1024 * 1024;

/// Number of documents that exist before the load, so that each update finds a document.
const OLD: usize = 10_000;

/// Number of documents per insert.
const BATCH: usize = 500;

/// Time between two reads of the server's counters.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Start and end of a checkpoint, in seconds since the epoch.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    began: f64,
    ended: f64,
}

pub(super) async fn run(plan: &Plan) {
    let mut options = Options::with_auth();
    options.arguments = vec!["--syncdelay".to_owned(), SYNC_DELAY.to_owned()];
    let set = ReplicaSet::start(1, options).await;
    let set = set.expect("a mongod starts");
    let client = set.client().await.expect("the server accepts connections");
    fill(&client).await;
    let stock = Arc::new(Random::of(0).bytes(STOCK_BYTES));
    fill_heavy(&client, &stock).await;
    let seawall = Seawall::start(plan, &set.root_uri(), "").await;
    let target = target(&seawall);
    let source = |number| writes(number, Arc::clone(&stock));
    let written = Paced::start(&target, WRITES, source).await;
    let read = Paced::start(&target, LIGHT, finds).await;
    let (began, machine) = (read.began(), Machine::now());
    let watching = tokio::spawn(watch(client.clone(), began + TIME));
    let reported_at = first_reported(&seawall, began + TIME).await;
    sleep_until(began + TIME).await;
    let reported: Stalls = seawall.api("/api/v1/stalls").await;
    let checkpoints = watching.await.expect("the watching task does not panic");
    let load_began = epoch_seconds_of(written.began());
    let loads = [
        ("finds", epoch_seconds_of(began), read.end().await),
        ("writes", load_began, written.end().await),
    ];
    say(&format!(
        "\n## Checkpoints: {:.0} writes of {} to {} KiB and {:.0} finds per second, --syncdelay {SYNC_DELAY}, a cache of 0.25 GB\n",
        WRITES.per_second,
        LEAST_BYTES / 1024,
        MOST_BYTES / 1024,
        LIGHT.per_second
    ));
    Machine::say_since(machine);
    report(&checkpoints, &loads, epoch_seconds_of(began));
    say("\nReported by Seawall:\n");
    say_stalls(&reported, epoch_seconds_of(began));
    match reported_at {
        Some(at) => say(&format!(
            "\nA recurring stall was reported {:.0} s after the load began.",
            at.duration_since(began).as_secs_f64()
        )),
        None => say("\nNo recurring stall was reported."),
    }
}

async fn fill_heavy(client: &Client, stock: &[u8]) {
    let collection = client.database(DATABASE).collection::<Document>("heavy");
    let mut random = Random::of(1);
    for first in (0..OLD).step_by(BATCH) {
        let documents = (first..first + BATCH).map(|n| {
            let id = i32::try_from(n).unwrap_or(0);
            doc! { "_id": id, "body": body(&mut random, stock) }
        });
        let inserted = collection.insert_many(documents).await;
        inserted.expect("documents can be inserted");
    }
}

fn body(random: &mut Random, stock: &[u8]) -> Binary {
    let length = LEAST_BYTES + random.below(MOST_BYTES - LEAST_BYTES);
    let start = random.below(stock.len().saturating_sub(length));
    let bytes = stock.get(start..start + length).unwrap_or_default();
    Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    }
}

/// Messages with inserts and updates in random order.
fn writes(connection: u32, stock: Arc<Vec<u8>>) -> impl FnMut() -> Vec<u8> {
    let mut random = Random::of(u64::from(connection) + 1_000);
    move || {
        let body = body(&mut random, &stock);
        let command = match random.below(2) {
            0 => rawdoc! { "insert": "heavy", "documents": [{ "body": body }], "$db": DATABASE },
            _ => {
                let id = i32::try_from(random.below(OLD)).unwrap_or(0);
                rawdoc! {
                    "update": "heavy", "updates": [{ "q": { "_id": id }, "u": { "$set": { "body": body } } }],
                    "$db": DATABASE,
                }
            }
        };
        message(&command)
    }
}

/// Records the checkpoints by polling the server's counters.
async fn watch(client: Client, until: Instant) -> Vec<Checkpoint> {
    let admin = client.database("admin");
    let mut checkpoints = Vec::new();
    let mut known = None;
    while Instant::now() < until {
        let command = doc! {
            "serverStatus": 1, "metrics": 0, "locks": 0, "repl": 0, "opLatencies": 0, "tcmalloc": 0,
            "sharding": 0, "flowControl": 0, "transactions": 0, "security": 0, "mirroredReads": 0,
        };
        let status = admin.run_command(command).await;
        let status = status.expect("serverStatus succeeds");
        let of = |name| transactions(&status, name);
        let number = of("transaction checkpoints");
        if known.is_some_and(|known| number > known) {
            let ended = epoch_seconds();
            let length = of("transaction checkpoint most recent time (msecs)") / 1e3;
            checkpoints.push(Checkpoint {
                began: ended - length,
                ended,
            });
        }
        known = Some(number);
        sleep(POLL_INTERVAL).await;
    }
    checkpoints
}

fn transactions(status: &Document, name: &str) -> f64 {
    let of_engine = status.get_document("wiredTiger");
    let of_it = of_engine.and_then(|engine| engine.get_document("transaction"));
    match of_it.ok().and_then(|counters| counters.get(name)) {
        Some(Bson::Int32(number)) => f64::from(*number),
        Some(Bson::Int64(number)) => u64::try_from(*number).map_or(f64::NAN, float),
        Some(Bson::Double(number)) => *number,
        _ => f64::NAN,
    }
}

/// Prints the server's checkpoints, and the clients' latencies during each one.
fn report(checkpoints: &[Checkpoint], loads: &[(&str, f64, Vec<CompletedOperation>)], began: f64) {
    for (name, _, completed) in loads {
        let rate = float(count(completed.len())) / TIME.as_secs_f64();
        say(&format!(
            "{name}: {} completed, {rate:.0} per second.",
            completed.len()
        ));
    }
    say("\nReported by the server and the clients:\n");
    say("| checkpoint starts after | length | finds p99, longest | writes p99, longest |");
    say("|---|---|---|---|");
    let row = |name: &str, is_in: &dyn Fn(f64, f64) -> bool| {
        let felt = loads.iter().map(|(_, load_began, completed)| {
            let mut took: Vec<_> = completed
                .iter()
                .filter(|one| {
                    let sent = load_began + one.at.as_secs_f64();
                    is_in(sent, sent + one.took.as_secs_f64())
                })
                .map(|one| one.took)
                .collect();
            took.sort_unstable();
            let rank = (took.len() * 99).div_ceil(100).max(1);
            let ms = |took: Option<&Duration>| took.map_or(f64::NAN, |t| t.as_secs_f64() * 1e3);
            format!(
                "{:.1} ms, {:.0} ms",
                ms(took.get(rank - 1)),
                ms(took.last())
            )
        });
        let felt: Vec<_> = felt.collect();
        say(&format!("| {name} | {} |", felt.join(" | ")));
    };
    for Checkpoint { began: from, ended } in checkpoints {
        let name = format!("{:.1} s | {:.2} s", from - began, ended - from);
        row(&name, &|sent, completed| {
            sent <= *ended && completed >= *from
        });
    }
    row("none | – ", &|sent, completed| {
        let is_beside = |c: &Checkpoint| sent > c.ended || completed < c.began;
        checkpoints.iter().all(is_beside)
    });
    if let [first, .., last] = checkpoints {
        let periods = float(count(checkpoints.len() - 1));
        say(&format!(
            "\nMean time from checkpoint to checkpoint: {:.2} s.",
            (last.began - first.began) / periods
        ));
    }
}
