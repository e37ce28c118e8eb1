//! Every language's driver does the same work on a deployment directly and through Seawall, and sees the same. Some languages
//! run an old version of their driver too.
//!
//! What the programs do is said in `drivers/scenarios.md`, what may differ in `drivers/masked.txt`.
//!
//! | module | does |
//! |---|---|
//! | [`case`] | what a program is run with: mechanism, TLS, compressor, Stable API |
//! | [`pair`] | a deployment and Seawall in front of it |
//! | [`language`] | makes a language's program ready |
//! | [`program`] | runs it |
//! | [`mask`] | leaves out what may differ |
//! | [`comparison`] | tells what differs |
//! | [`refusal`] | a server that is too old for a driver |
//! | [`failover`] | four drivers that write while primaries are killed |
//! | [`rust`] | the program of the Rust driver, in this process |

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "all of this is tests, functions that tests share included"
)]

mod case;
mod comparison;
mod failover;
mod language;
mod mask;
mod pair;
mod program;
mod refusal;
mod rust;
mod standalone;

use std::time::Duration;

use futures_util::{StreamExt, stream};
use seawall_tests::mongod::{server_version, unique_name};
use tokio::time::Instant;

use crate::{
    case::{CASES, Case},
    comparison::differences,
    language::Language,
    mask::Masks,
    pair::Pair,
    program::Program,
    refusal::compare_refusals,
};

#[tokio::test]
async fn python_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::Python).await;
}

#[tokio::test]
async fn node_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::Node).await;
}

#[tokio::test]
async fn rust_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::Rust).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn java_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::Java).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn go_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::Go).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn php_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::Php).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn c_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::C).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn mongosh_sees_the_same_directly_and_through_the_proxy() {
    compare(Language::Mongosh).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn python_pymongo_3_13_0_is_transparent() {
    compare(Language::PythonWith("3.13.0")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn python_pymongo_4_15_5_is_transparent() {
    compare(Language::PythonWith("4.15.5")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn node_mongodb_3_7_4_is_transparent() {
    compare(Language::NodeWith("3.7.4")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn node_mongodb_4_17_2_is_transparent() {
    compare(Language::NodeWith("4.17.2")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn java_mongodb_4_0_6_is_transparent() {
    compare(Language::JavaWith("4.0.6")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn go_mongodb_1_13_4_is_transparent() {
    compare(Language::GoWith("1.13.4")).await;
}

/// Runs a language's program in every case that its driver supports, and tells all differences together.
async fn compare(language: Language) {
    let version = server_version().await.unwrap();
    if version < language.oldest_server() {
        return compare_refusals(language).await;
    }
    let program = language.prepare().await;
    let masks = Masks::of_the_drivers();
    let mut found = Vec::new();
    let runs = |case: &&Case| case.is_known_to(version) && language.runs(case);
    let cases: Vec<_> = CASES.iter().filter(runs).take(max_cases()).collect();
    for is_tls in [false, true] {
        let cases = cases.iter().filter(|case| case.is_tls == is_tls);
        let cases: Vec<_> = cases.copied().collect();
        if cases.is_empty() {
            continue;
        }
        let pair = Pair::start(is_tls).await;
        let comparisons = cases
            .into_iter()
            .map(|case| compare_case(language, &program, &pair, case, &masks));
        // Boxed, since two at a time are larger than a future should be.
        let compared = stream::iter(comparisons).buffered(CASES_AT_A_TIME).concat();
        found.extend(Box::pin(compared).await);
        let served = pair.seawall.metric("seawall_operations_total", &[]).await;
        assert!(served > 100.0, "it went through Seawall: {served}");
    }
    let count = found.len();
    assert!(
        found.is_empty(),
        "{language:?}: {count} differences\n{}",
        found.join("\n")
    );
}

/// How many of its cases a language runs, the plain one first; all of them, unless `SEAWALL_MATRIX_CASES` limits them.
fn max_cases() -> usize {
    std::env::var("SEAWALL_MATRIX_CASES").map_or(usize::MAX, |limit| limit.parse().unwrap())
}

async fn compare_case(
    language: Language,
    program: &Program,
    pair: &Pair,
    case: &Case,
    masks: &Masks,
) -> Vec<String> {
    let began = Instant::now();
    let name = unique_name("matrix");
    pair.create_user(&name, case.mechanism).await;
    let mut direct = program
        .run(&pair.direct(&name, case), &name, case.api)
        .await;
    let mut through = program
        .run(&pair.through(&name, case), &name, case.api)
        .await;
    assert!(
        direct.len() >= MIN_STEPS,
        "{case}: only {} steps",
        direct.len()
    );
    for step in direct.iter_mut().chain(&mut through) {
        masks.apply(step);
    }
    report(language, case, began.elapsed());
    let told = differences(&direct, &through).into_iter();
    told.map(|difference| format!("{case}: {difference}"))
        .collect()
}

/// Seen with `--nocapture`: where a language's time goes.
#[expect(clippy::print_stdout, reason = "the test's own report")]
fn report(language: Language, case: &Case, took: Duration) {
    println!("{language:?}: {case}: {took:.1?}");
}

/// Far fewer than any program has: one that stopped early must not pass.
const MIN_STEPS: usize = 60;

/// A program spends half of its time waiting for the servers.
const CASES_AT_A_TIME: usize = 2;
