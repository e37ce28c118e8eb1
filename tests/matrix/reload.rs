//! Drivers of four languages use 1000 connections to write documents while the configuration is
//! reloaded. They do not retry, so each failed operation and each closed connection is an error of
//! the test.

use std::collections::BTreeSet;

use seawall_tests::{
    eventually::eventually,
    failover::{LIMIT, assert_stored},
};

use crate::{
    case::Case,
    language::Language,
    pair::{Pair, Target},
    writing::{all_write, begin_all, end_all, report},
};

const NAME: &str = "reload";

/// Number of connections of all drivers together.
const CONNECTIONS: u32 = 1_000;

/// Number of connections that the Go driver opens. It is low, because this driver opens at most ten
/// connections in ten seconds.
const GO_CONNECTIONS: u32 = 10;

/// Number of connections that each driver except the Go driver opens.
const OTHER_CONNECTIONS: u32 = 330;

/// Number of times that the test reloads the configuration.
const RELOADS: usize = 20;

/// Minimum number of inserts between two reloads.
const PROGRESS: f64 = 20.0;

/// The reloads apply these configurations one after the other, and begin again after the last one.
/// The configurations change limits, timeouts and statistics.
const CONFIGURATIONS: [&str; 3] = [
    "pool.max_pool_size = 3\npool.concurrency = 2\nlimits.max_in_flight_operations = 4\n\
     shapes.max_shapes = 1\nslow_log.threshold_ms = 1000\n",
    "pool.max_pool_size = 200\npool.concurrency = \"off\"\npool.max_idle_time_ms = 1\n\
     deployment.connect_timeout_ms = 500\nlimits.cursor_idle_ms = 1000\n",
    "",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go: cargo test --test matrix -- --include-ignored"]
async fn reloads_cause_no_error_for_four_drivers_with_a_thousand_connections() {
    let pair = Pair::start(false).await;
    pair.create_user(NAME, None).await;
    let uri = pair.uri(NAME, &Case::PLAIN, Target::Seawall);
    let uri_of = |language| {
        let count = match language {
            Language::Go => GO_CONNECTIONS,
            _ => OTHER_CONNECTIONS,
        };
        format!("{uri}&retryWrites=false&retryReads=false&minPoolSize={count}&maxPoolSize={count}")
    };
    let mut writing = begin_all(uri_of, NAME).await;
    all_write(&pair.set, NAME).await;
    let seawall = &pair.seawall;
    let clients = async || seawall.metric("seawall_client_connections", &[]).await;
    let are_connected = async || clients().await >= f64::from(CONNECTIONS);
    // The drivers need much CPU time to open all connections, and other tests run at the same time.
    eventually(3 * LIMIT, are_connected).await.unwrap();
    let inserts = async || {
        let command = ["command=\"insert\"", "outcome=\"ok\""];
        seawall.metric("seawall_operations_total", &command).await
    };
    for configuration in CONFIGURATIONS.iter().cycle().take(RELOADS) {
        seawall.reload(configuration).await.unwrap();
        let before = inserts().await;
        let has_progress = async || inserts().await > before + PROGRESS;
        eventually(LIMIT, has_progress).await.unwrap();
    }
    assert!(clients().await >= f64::from(CONNECTIONS));
    let acknowledged: BTreeSet<_> = end_all(&mut writing).await;
    report(&format!(
        "{RELOADS} reloads, {} connections: {} documents inserted, changed and read back",
        clients().await,
        acknowledged.len()
    ));
    assert_stored(&pair.set, NAME, &acknowledged).await;
    seawall.assert_all_connected().await;
}
