//! Drivers of four languages work through Seawall, which captures their traffic. A replay on a new
//! deployment gives the same results.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use seawall_load::Target as Endpoint;
use seawall_replay::{Choice, Pace, Replay, Report, Source, captured_results, run};
use seawall_tests::{
    mongod::{Options, ReplicaSet, unique_name},
    scratch::Scratch,
};

use crate::{
    case::Case,
    language::Language,
    pair::{Pair, Target},
};

/// The drivers, and the compressor that each uses.
const DRIVERS: [(Language, &str); 4] = [
    (Language::Python, "&compressors=zlib"),
    (Language::Node, "&compressors=snappy"),
    (Language::Java, "&compressors=zlib"),
    (Language::Go, ""),
];

/// Minimum number of operations of the four programs together.
const MIN_OPERATIONS: u64 = 1_000;

/// The code of an operation for which the user has no right. The replay uses one account, which has
/// all rights.
const UNAUTHORIZED: i32 = 13;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go and Java: cargo test --test matrix -- --include-ignored"]
async fn captured_traffic_of_four_drivers_gives_the_same_results_in_a_replay() {
    let scratch = Scratch::create().unwrap();
    let directory = scratch.join("captures");
    let pair = Pair::start_with(true, &format!("capture.directory = {directory:?}\n")).await;
    let programs = join_all(DRIVERS.map(async |(language, _)| language.prepare().await)).await;
    let id = pair.seawall.start_capture(r#", "replies": "whole""#).await;
    let runs = DRIVERS
        .iter()
        .zip(&programs)
        .map(async |(driver, program)| {
            let name = unique_name("rehearsal");
            pair.create_user(&name, None).await;
            let case = Case {
                is_tls: true,
                parameters: driver.1,
                ..Case::PLAIN
            };
            let uri = pair.uri(&name, &case, Target::Seawall);
            program.run(&uri, &name, case.api).await.len()
        });
    let steps = join_all(runs).await;
    assert!(steps.iter().all(|count| *count > 60), "{steps:?}");
    let capture = pair.seawall.stop_capture(&id).await;
    assert!(capture.operations > MIN_OPERATIONS, "{capture:?}");

    let fresh = ReplicaSet::start(1, Options::with_auth()).await.unwrap();
    let folder = directory.join(&id);
    let choice = Choice {
        with_writes: true,
        only: Vec::new(),
    };
    let captured = captured_results(Source::open(&folder).unwrap(), &choice, true);
    let replay = Replay {
        target: Endpoint::parse(&fresh.root_uri()).await.unwrap(),
        choice,
        pace: Pace::Max,
        strict_order: true,
        connections: 1_000,
        digest: true,
        max_error_share: 1.0,
    };
    let source = Source::open(&folder).unwrap();
    let replaying = Box::pin(run(replay, source, |_| {}, std::future::pending()));
    let replayed = replaying.await.unwrap();
    assert_eq!(replayed.incomplete.as_deref(), None);
    assert_eq!(replayed.skipped, captured.skipped);
    let (before, now) = (per_shape(&captured), per_shape(&replayed));
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
}

/// Count, errors by code, documents and digest of each shape that the driver's user may run.
/// Documents and digest are absent if the results of the shape are not compared.
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
