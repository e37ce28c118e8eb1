//! Runs loads on an instrumented Seawall: `cargo bench --bench training -- --binary BINARY`.
//! The compiler uses the result for profile-guided optimization, which makes Seawall faster under
//! these loads. `docker/train` starts the bench.
//!
//! An instrumented binary counts how often each part of its code runs. When it ends, it writes the
//! counts to the file that `LLVM_PROFILE_FILE` names. The loads cover what production uses often:
//! small and large documents, few and many connections, logins, TLS handshakes, cursors,
//! transactions, compression and the relay mode.
//!
//! The bench measures nothing. It fails if an operation fails, or if a load gets a wrong reply.
//! Some TLS handshakes may fail.
//!
//! `--seconds N` sets the duration of each load except the logins (default 5). `--quick` is a short
//! run for CI, in which `--seconds` has no effect. Without `--binary`, the bench uses the binary of
//! this build.

use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt as _;
use mongodb::Client;
use seawall_benches::{
    handshakes::{Handshakes, Key, TlsTarget, address, seawall, write_certificates},
    load::{self, DATABASE, HUGE, LARGE, Load, SMALL, Work},
    options::option,
    output::say,
    setup::{Clients, Instance, connection_string, server},
};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ReplicaSet},
    scratch::Scratch,
};
use seawall_transport::connection::ServerAddress;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep},
};

/// Number of clients that make TLS handshakes in a loop.
const HANDSHAKING: usize = 50;

/// If no handshake has completed within [`Plan::time`], the bench waits up to this time for the
/// first one. A build without optimization needs long for a handshake with RSA, and other programs
/// may use the cores.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(30);

/// Options that are appended to a connection string. The bench creates one client for each element:
/// one without compression, and one for each compressor.
const COMPRESSORS: [&str; 4] = [
    "",
    "&compressors=snappy",
    "&compressors=zlib",
    "&compressors=zstd",
];

struct TrainingPlan {
    /// Duration of each load.
    time: Duration,
    /// Numbers of connections. A load with finds of small documents runs with each number.
    connections: Vec<usize>,
    /// Number of logins, which run one after another.
    logins: usize,
}

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let seconds = option("--seconds").map(|text| text.parse().expect("--seconds takes a number"));
    let plan = match is_quick {
        true => TrainingPlan {
            time: Duration::from_secs(1),
            connections: vec![1, 64],
            logins: 50,
        },
        false => TrainingPlan {
            time: Duration::from_secs(seconds.unwrap_or(5)),
            connections: vec![1, 64, 1_000],
            logins: 2_000,
        },
    };
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime
        .expect("the runtime starts")
        .block_on(train(&Instance::measured(), &plan));
}

async fn train(trained: &Instance, plan: &TrainingPlan) {
    let time = plan.time;
    let set = ReplicaSet::start(1, Options::with_auth()).await;
    let set = set.expect("a mongod starts");
    let root = set.client().await.expect("the set accepts connections");
    let clients = Clients::prepare(&root, &[SMALL, LARGE, HUGE]).await;
    let server = server(&set).await;
    let scratch = Scratch::create().expect("the directory can be created");
    write_certificates(&scratch);

    let pooled = seawall("pooled", &trained.binary, &scratch, &server, None);
    let at = address(pooled.plain);
    clients.wait_for_login(&at).await;
    train_path(&clients, &at, plan).await;
    train_logins(&clients, &at, plan.logins).await;
    train_commands(&at, time).await;
    train_tls(&clients, &pooled, time).await;
    pooled.stop().await;

    let mode = ("SEAWALL_DEPLOYMENT__MODE".to_owned(), "relay".to_owned());
    let relay = Instance {
        environment: vec![mode],
        ..trained.clone()
    };
    let relay = relay.start(&server);
    clients.wait_for_login(&relay.address).await;
    run(&clients, &relay.address, Work::Mixed, 16, time).await;
    run(&clients, &relay.address, Work::Finds(HUGE), 8, time).await;
    relay.process.expect("a process runs").stop().await;
}

/// Runs finds and writes over few and many connections.
async fn train_path(clients: &Clients, address: &ServerAddress, plan: &TrainingPlan) {
    let time = plan.time;
    for connections in &plan.connections {
        run(clients, address, Work::Finds(SMALL), *connections, time).await;
    }
    run(clients, address, Work::Mixed, 64, time).await;
    run(clients, address, Work::Finds(LARGE), 16, time).await;
    run(clients, address, Work::Finds(HUGE), 8, time).await;
}

async fn run(
    clients: &Clients,
    address: &ServerAddress,
    work: Work,
    connections: usize,
    time: Duration,
) {
    let open = clients.connect_all(address, connections).await;
    let load = Load {
        work,
        rate: None,
        time,
    };
    let (outcome, _) = load::run(open, load).await;
    assert!(outcome.operations > 0, "no operation completed");
    let operations = outcome.operations;
    say(&format!(
        "{work:?}, {connections} connections: {operations} operations"
    ));
}

/// Connects, logs in and disconnects, many times.
async fn train_logins(clients: &Clients, address: &ServerAddress, logins: usize) {
    for _ in 0..logins {
        let login = clients.connect(address).await;
        drop(login.expect("each login succeeds"));
    }
    say(&format!("logins: {logins}"));
}

/// Runs commands of the Rust driver, with and without compression.
async fn train_commands(address: &ServerAddress, time: Duration) {
    let mut tasks = JoinSet::new();
    for (number, compressors) in (0..).zip(COMPRESSORS) {
        let uri = connection_string(address) + compressors;
        let client = Client::with_uri_str(uri).await;
        let client = client.expect("the connection string is valid");
        for task in 0..4 {
            let client = client.clone();
            let first = (number * 4 + task) * 1_000_000;
            tasks.spawn(async move { repeat_commands(&client, first, time).await });
        }
    }
    let rounds: i32 = tasks.join_all().await.into_iter().sum();
    say(&format!("rounds of the driver's commands: {rounds}"));
}

/// Repeats the commands of `one_round` until `time` has passed. Returns the number of rounds. Each
/// round uses the next 100 `_id`s. The first round begins with the `_id` `first`. No other task
/// uses these `_id`s.
async fn repeat_commands(client: &Client, first: i32, time: Duration) -> i32 {
    let until = Instant::now() + time;
    let mut rounds = 0;
    while Instant::now() < until {
        let round = one_round(client, first + rounds * 100).await;
        round.expect("each command succeeds");
        rounds += 1;
    }
    rounds
}

async fn one_round(client: &Client, first: i32) -> mongodb::error::Result<()> {
    let own = client.database(DATABASE).collection::<Document>("own");
    let document = |id: i32| doc! {"_id": id, "kind": id % 7, "tags": ["a", "b"], "n": {"m": id}};
    own.insert_many((first..first + 30).map(document)).await?;
    let range = doc! {"_id": {"$gte": first, "$lt": first + 30}};
    let batches = own.find(range.clone()).batch_size(8).await?;
    let found: Vec<Document> = batches.try_collect().await?;
    assert_eq!(found.len(), 30, "a cursor returns each document once");
    let complex = doc! {
        "$or": [{"kind": {"$in": [1, 2, 3]}}, {"n.m": {"$gt": first}, "tags": "a"}],
        "_id": {"$gte": first, "$lt": first + 30},
    };
    let sorted = own.find(complex).sort(doc! {"kind": 1}).limit(5);
    let _: Vec<Document> = sorted.await?.try_collect().await?;
    own.find_one_and_update(doc! {"_id": first}, doc! {"$set": {"kind": 1}})
        .await?;
    own.update_many(range.clone(), doc! {"$inc": {"kind": 1}})
        .await?;
    own.count_documents(range.clone()).await?;
    own.distinct("kind", range.clone()).await?;
    let group = doc! {"_id": "$kind", "sum": {"$sum": "$n.m"}};
    let stages = [doc! {"$match": range.clone()}, doc! {"$group": group}];
    let _: Vec<Document> = own.aggregate(stages).await?.try_collect().await?;
    let mut session = client.start_session().await?;
    session.start_transaction().await?;
    let changed = own.update_one(doc! {"_id": first}, doc! {"$inc": {"n.m": 1}});
    changed.session(&mut session).await?;
    let added = own.insert_one(document(first + 50));
    added.session(&mut session).await?;
    session.commit_transaction().await?;
    own.delete_many(doc! {"_id": {"$gte": first, "$lt": first + 100}})
        .await?;
    Ok(())
}

/// Runs operations over TLS. Then runs full and resumed handshakes with an ECDSA and an RSA
/// certificate.
async fn train_tls(clients: &Clients, target: &TlsTarget, time: Duration) {
    let encrypted = clients.with_tls();
    run(&encrypted, &address(target.tls()), Work::Mixed, 16, time).await;
    for key in Key::ALL {
        for is_resumed in [false, true] {
            let running = Handshakes::at(target, key, is_resumed, HANDSHAKING).start();
            sleep(time).await;
            let has_completed = async || match is_resumed {
                true => running.counts().resumed > 0,
                false => running.counts().full > 0,
            };
            let completed = eventually(HANDSHAKE_LIMIT, has_completed).await;
            let counts = running.counts();
            assert!(completed.is_ok(), "no handshake completed: {counts:?}");
            let kind = if is_resumed { "resumed" } else { "full" };
            say(&format!("{}, {kind} handshakes: {counts:?}", key.name()));
        }
    }
}
