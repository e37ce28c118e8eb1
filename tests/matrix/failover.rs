//! Drivers of four languages write while the primary is killed repeatedly. No acknowledged write
//! may be lost, and no application may see an error.

use std::collections::BTreeSet;

use seawall_tests::failover::{assert_stored, fail_over, kills};
use tokio::time::Instant;

use crate::{
    case::Case,
    pair::{Pair, Target},
    writing::{all_write, begin_all, end_all, report},
};

const NAME: &str = "failover";

#[tokio::test]
#[ignore = "needs Go: cargo test --test matrix -- --include-ignored"]
async fn four_drivers_survive_killed_primaries_without_errors_or_lost_writes() {
    let mut pair = Pair::start(false).await;
    pair.create_user(NAME, None).await;
    let uri = format!(
        "{}&w=majority",
        pair.uri(NAME, &Case::PLAIN, Target::Seawall)
    );
    let mut writing = begin_all(|_| uri.clone(), NAME).await;
    all_write(&pair.set, NAME).await;
    let began = Instant::now();
    let Pair { set, seawall, .. } = &mut pair;
    let inserts = async || {
        let command = ["command=\"insert\"", "outcome=\"ok\""];
        seawall.metric("seawall_operations_total", &command).await
    };
    for _ in 0..kills() {
        fail_over(set, &inserts).await;
    }
    let acknowledged: BTreeSet<_> = end_all(&mut writing).await;
    let took = began.elapsed().as_secs();
    report(&format!(
        "{} kills in {took} s: {} documents inserted, changed and read back",
        kills(),
        acknowledged.len()
    ));
    assert_stored(set, NAME, &acknowledged).await;
    seawall.assert_all_connected().await;
}
