//! Drivers of four languages execute operations, while Seawall or mongod's own recorder captures
//! their traffic. A replay of this traffic on a new deployment must give the results that the
//! drivers got.

use std::{collections::BTreeMap, path::Path, time::Duration};

use futures_util::future::join_all;
use mongodb::bson::doc;
use seawall_load::Target as Endpoint;
use seawall_replay::{Choice, Pace, Replay, Report, Source, captured_results, run};
use seawall_tests::{
    mongod::{NewUser, Options, ReplicaSet, RunCommand as _, create_user, unique_name},
    process,
    scratch::Scratch,
};

use crate::{
    case::Case,
    language::Language,
    pair::{Pair, Target},
    program::Program,
};

/// The drivers. Each has the parameter of the connection string that selects its compressor, or an
/// empty text for no compression.
const DRIVERS: [(Language, &str); 4] = [
    (Language::Python, "&compressors=zlib"),
    (Language::Node, "&compressors=snappy"),
    (Language::Java, "&compressors=zlib"),
    (Language::Go, ""),
];

/// Minimum number of operations that the four drivers together must execute.
const MIN_OPERATIONS: u64 = 1_000;

/// Minimum number of different query shapes in these operations.
const MIN_SHAPES: usize = 100;

/// The error code of an operation for which the driver's user has no right. In the replay, such an
/// operation succeeds, because the account of the replay has all rights.
const UNAUTHORIZED: i32 = 13;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and Java: cargo test --test matrix -- --include-ignored"]
async fn a_replay_of_captured_traffic_gives_the_results_that_four_drivers_got() {
    let scratch = Scratch::create().unwrap();
    let directory = scratch.join("captures");
    let pair = Pair::start_with(true, &format!("capture.directory = {directory:?}\n")).await;
    let programs = prepare().await;
    let id = pair.seawall.start_capture(r#", "replies": "whole""#).await;
    let uri = async |name: &str, parameters| {
        pair.create_user(name, None).await;
        let case = Case {
            is_tls: true,
            parameters,
            ..Case::PLAIN
        };
        pair.uri(name, &case, Target::Seawall)
    };
    run_all(&programs, uri).await;
    let capture = pair.seawall.stop_capture(&id).await;
    assert!(capture.operations > MIN_OPERATIONS, "{capture:?}");

    let folder = directory.join(&id);
    let captured = assert_same_results(&folder).await;
    // The capture is converted to a file of mongod's recorder. A replay of that file must give the
    // same results.
    let recording = scratch.join("recording");
    let paths = [&folder, &recording].map(|path| path.to_str().unwrap());
    let output = process::run(&[&["load", "convert"], &paths[..]].concat()).await;
    assert!(output.status.success(), "{output:?}");
    let recorded = assert_same_results(&recording).await;
    assert_eq!(per_shape(&recorded), per_shape(&captured));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and Java: cargo test --test matrix -- --include-ignored"]
async fn a_replay_of_traffic_that_a_server_recorded_gives_the_results_that_four_drivers_got() {
    let scratch = Scratch::create().unwrap();
    let directory = scratch.path().to_str().unwrap().to_owned();
    let options = Options {
        parameters: vec![("trafficRecordingDirectory".to_owned(), directory)],
        ..Options::with_auth()
    };
    let set = ReplicaSet::start(1, options).await.unwrap();
    let administrator = set.administrator().await.unwrap();
    let programs = prepare().await;
    let start = doc! {
        "startRecordingTraffic": 1, "filename": "recording",
        "bufferSize": 256_i64 << 20, "maxFileSize": 1_i64 << 30,
    };
    administrator.run("admin", start).await.unwrap();
    let primary = set.primary().await.unwrap().address();
    let uri = async |name: &str, parameters: &str| {
        let user = NewUser::new("admin", name, "password")
            .role("readWrite", name)
            .role("dbAdmin", name);
        create_user(&administrator, &user).await.unwrap();
        // The programs also read with the read preference `secondary`, but this set has no
        // secondary. With a direct connection, drivers send these reads to the primary.
        format!(
            "mongodb://{name}:password@{primary}/?authSource=admin&directConnection=true{parameters}"
        )
    };
    run_all(&programs, uri).await;
    let stop = doc! { "stopRecordingTraffic": 1 };
    administrator.run("admin", stop).await.unwrap();
    let recorded = assert_same_results(&scratch.join("recording")).await;
    let operations: u64 = recorded.shapes.iter().map(|shape| shape.count).sum();
    assert!(operations > MIN_OPERATIONS, "{operations} operations");
}

async fn prepare() -> Vec<Program> {
    join_all(DRIVERS.map(async |(language, _)| language.prepare().await)).await
}

/// Runs the programs at the same time. `uri` creates a user with the given name, and returns the
/// user's connection string with the given parameters.
async fn run_all(programs: &[Program], uri: impl AsyncFn(&str, &'static str) -> String) {
    let runs = DRIVERS
        .iter()
        .zip(programs)
        .map(async |((_, parameters), program)| {
            let name = unique_name("rehearsal");
            let uri = uri(&name, parameters).await;
            program.run(&uri, &name, Case::PLAIN.api).await.len()
        });
    let steps = join_all(runs).await;
    assert!(steps.iter().all(|count| *count > 60), "{steps:?}");
}

/// Replays captured traffic on a new deployment, in strict order: each command waits for all
/// operations that had ended in the capture before this command began. Checks that each query shape
/// has the same counts and results as in the capture. Returns the results in the capture.
async fn assert_same_results(path: &Path) -> Report {
    let fresh = ReplicaSet::start(1, Options::with_auth()).await.unwrap();
    let choice = Choice {
        with_writes: true,
        only: Vec::new(),
    };
    let captured = captured_results(Source::open(path).unwrap(), &choice, true);
    let replay = Replay {
        target: Endpoint::parse(&fresh.root_uri()).await.unwrap(),
        choice,
        pace: Pace::Max,
        strict_order: true,
        connections: 1_000,
        reply_limit: Duration::from_secs(60),
        digest: true,
        max_error_share: 1.0,
        writes_to_unidentified: false,
    };
    let source = Source::open(path).unwrap();
    let replaying = Box::pin(run(replay, source, |_| {}, std::future::pending()));
    let replayed = replaying.await.unwrap();
    assert_eq!(replayed.incomplete.as_deref(), None);
    assert_eq!(replayed.skipped, captured.skipped);
    let (before, now) = (per_shape(&captured), per_shape(&replayed));
    assert!(before.len() >= MIN_SHAPES, "{} shapes", before.len());
    let differences: Vec<_> = before
        .iter()
        .filter(|(shape, results)| now.get(*shape) != Some(*results))
        .map(|(shape, results)| format!("{shape}: {results:?}, then {:?}", now.get(shape)))
        .collect();
    assert!(
        differences.is_empty(),
        "{} of {} shapes differ\n{}",
        differences.len(),
        before.len(),
        differences.join("\n")
    );
    captured
}

/// For each query shape that the driver's user may run: the number of operations, the number of
/// errors of each code, and the number of returned documents with their digest. The documents and
/// the digest are absent if the results of the shape are not compared.
type PerShape = BTreeMap<String, (u64, BTreeMap<i32, u64>, Option<(u64, Option<String>)>)>;

fn per_shape(report: &Report) -> PerShape {
    let shapes = report.shapes.iter();
    let allowed = shapes.filter(|shape| !shape.errors.contains_key(&UNAUTHORIZED));
    let rows = allowed.map(|shape| {
        let name = format!(
            "{} {}.{} {}",
            shape.command, shape.db, shape.collection, shape.text
        );
        let documents = (shape.documents, shape.digest.clone());
        let documents = shape.excluded.is_none().then_some(documents);
        (name, (shape.count, shape.errors.clone(), documents))
    });
    rows.collect()
}
