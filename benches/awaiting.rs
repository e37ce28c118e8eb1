//! Measures how much change streams slow down other clients: `cargo bench --bench awaiting`.
//!
//! The load is finds by `_id` in a closed loop through Seawall, whose pool has eight connections.
//! Each round measures the load twice: alone, and together with fifty change streams that wait for
//! events. The ratio of a round is the p99 latency of the finds with change streams, divided by
//! their p99 latency without change streams. The bench prints the median of the ratios. `--quick`
//! runs one short round for CI. The bench fails if an operation fails, but not because of high
//! latencies.

use std::time::Duration;

use bson::{RawDocument, rawdoc};
use seawall_benches::{
    load::{self, Load, SMALL, Work},
    output::say,
    setup::{Instance, Setup},
};
use seawall_transport::connection::Connection;
use tokio::{runtime::Builder, sync::mpsc, task::JoinSet};

/// Seawall's `max_pool_size`.
const POOL_SIZE: usize = 8;

/// Number of clients with a change stream.
const STREAMS: usize = 50;

/// Number of clients that run finds.
const CLIENTS: usize = 8;

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let (rounds, time) = match is_quick {
        true => (1, Duration::from_millis(300)),
        false => (5, Duration::from_secs(3)),
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the runtime starts");
    runtime.block_on(compare(rounds, time));
}

async fn compare(rounds: usize, time: Duration) {
    let instance = Instance::parse(&format!("Seawall=,POOL__MAX_POOL_SIZE={POOL_SIZE}"));
    let instance = instance.expect("the text has the form NAME=BINARY,VARIABLE=VALUE");
    let setup = Setup::start(&[instance]).await;
    say("| round | p50 alone | p50 with streams | p99 alone | p99 with streams | p99 ratio |");
    say("|---|---|---|---|---|---|");
    let mut ratios = Vec::new();
    for round in 1..=rounds {
        let alone = finds(&setup, time).await;
        let streams = Streams::open(&setup).await;
        let beside = finds(&setup, time).await;
        streams.close();
        let micros = |outcome: &load::Outcome, percent: usize| {
            outcome.percentile(percent).as_secs_f64() * 1e6
        };
        let ratio = micros(&beside, 99) / micros(&alone, 99);
        say(&format!(
            "| {round} | {:.0} µs | {:.0} µs | {:.0} µs | {:.0} µs | {ratio:.2} |",
            micros(&alone, 50),
            micros(&beside, 50),
            micros(&alone, 99),
            micros(&beside, 99),
        ));
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN);
    say(&format!("\nmedian p99 ratio: {median:.2}"));
}

async fn connect(setup: &Setup) -> Connection {
    let seawall = setup.targets.last().expect("Seawall is the last target");
    let connection = setup.connect(&seawall.address).await;
    connection.expect("the target accepts connections")
}

async fn finds(setup: &Setup, time: Duration) -> load::Outcome {
    let mut open = Vec::new();
    for _ in 0..CLIENTS {
        open.push(connect(setup).await);
    }
    let finds = |time| Load {
        work: Work::Finds(SMALL),
        rate: None,
        time,
    };
    let (_, open) = load::run(open, finds(time / 5)).await;
    let (outcome, _) = load::run(open, finds(time)).await;
    assert!(outcome.operations > 0, "no operation got a reply");
    outcome
}

/// Clients whose change streams wait for an event. No event happens.
struct Streams(JoinSet<()>);

impl Streams {
    /// Opens the change streams. Returns when each client has got an empty reply to one `getMore`.
    async fn open(setup: &Setup) -> Self {
        let (waited, mut waits) = mpsc::channel(STREAMS);
        let mut streams = JoinSet::new();
        for _ in 0..STREAMS {
            let connection = connect(setup).await;
            streams.spawn(follow(connection, waited.clone()));
        }
        for _ in 0..STREAMS {
            waits.recv().await.expect("every stream gets a reply");
        }
        Self(streams)
    }

    fn close(mut self) {
        assert_eq!(self.0.len(), STREAMS, "no change stream may end");
        assert!(self.0.try_join_next().is_none(), "no change stream may end");
    }
}

async fn follow(mut connection: Connection, waited: mpsc::Sender<()>) {
    let open = rawdoc! {
        "aggregate": "small", "pipeline": [{ "$changeStream": {} }], "cursor": {}, "$db": "bench",
    };
    let mut cursor = cursor_of(&connection.run(&open).await.expect("a change stream opens"));
    let mut waited = Some(waited);
    loop {
        let more = rawdoc! {
            "getMore": cursor, "collection": "small", "maxTimeMS": 1000_i64, "$db": "bench",
        };
        cursor = cursor_of(&connection.run(&more).await.expect("getMore succeeds"));
        if let Some(waited) = waited.take() {
            waited.send(()).await.expect("the receiver is open");
        }
    }
}

fn cursor_of(reply: &RawDocument) -> i64 {
    let cursor = reply
        .get_document("cursor")
        .expect("the reply has a cursor");
    cursor.get_i64("id").expect("the cursor has an id")
}
