//! Each language's driver runs the same steps on a deployment, directly and through Seawall. The
//! results must be equal. For some languages an old version of the driver runs too.
//!
//! `drivers/scenarios.md` lists the steps. `drivers/masked.txt` lists the differences that are
//! allowed.
//!
//! | module | does |
//! |---|---|
//! | [`case`] | the cases of a program: mechanism, TLS, compressor, Stable API |
//! | [`pair`] | a deployment and Seawall in front of it |
//! | [`language`] | installs and builds a language's program |
//! | [`program`] | runs a language's program |
//! | [`mask`] | masks values that may differ |
//! | [`comparison`] | lists the differences between two runs |
//! | [`refusal`] | the error of a driver for a server that is too old for the driver |
//! | [`writing`] | programs that write with the drivers of four languages |
//! | [`failover`] | four drivers that write while primaries are killed |
//! | [`rehearsal`] | four drivers whose traffic is captured and replayed |
//! | [`reload`] | four drivers that write while the configuration is reloaded |
//! | [`tls`] | TLS of clients and servers, with valid and invalid certificates |
//! | [`mongosh`] | Seawall's own command `seawall`, sent by mongosh |
//! | [`standalone`] | a driver with default options, and a standalone behind Seawall |
//! | [`rust`] | the program of the Rust driver, in this process |

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this crate contains only tests and their helpers"
)]

mod case;
mod comparison;
mod failover;
mod language;
mod mask;
mod mongosh;
mod pair;
mod program;
mod refusal;
mod rehearsal;
mod reload;
mod rust;
mod standalone;
mod tls;
mod writing;

use std::{iter, ptr, time::Duration};

use futures_util::{StreamExt, stream};
use seawall_tests::mongod::{server_version, unique_name};
use tokio::time::Instant;

use crate::{
    case::{APIS, CASES, Case},
    comparison::differences,
    language::Language,
    mask::Masks,
    pair::{SharedPair, Target},
    program::Program,
    refusal::compare_refusals,
};

#[tokio::test]
async fn python_driver_gets_the_same_results_with_and_without_seawall() {
    compare(Language::Python).await;
}

#[tokio::test]
#[ignore = "needs Node: cargo test --test matrix -- --include-ignored"]
async fn node_driver_gets_the_same_results_with_and_without_seawall() {
    compare(Language::Node).await;
}

#[tokio::test]
async fn rust_driver_gets_the_same_results_with_and_without_seawall() {
    compare(Language::Rust).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn java_driver_gets_the_same_results_with_and_without_seawall() {
    compare(Language::Java).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn go_driver_gets_the_same_results_with_and_without_seawall() {
    compare(Language::Go).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn php_driver_gets_the_same_results_with_and_without_seawall() {
    compare(Language::Php).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn c_driver_gets_the_same_results_with_and_without_seawall() {
    compare(Language::C).await;
}

#[tokio::test]
#[ignore = "needs the language's tool chain: cargo test --test matrix -- --include-ignored"]
async fn mongosh_gets_the_same_results_with_and_without_seawall() {
    compare(Language::Mongosh).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn python_pymongo_3_13_0_gets_the_same_results_with_and_without_seawall() {
    compare(Language::PythonWith("3.13.0")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn python_pymongo_4_15_5_gets_the_same_results_with_and_without_seawall() {
    compare(Language::PythonWith("4.15.5")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn node_mongodb_3_7_4_gets_the_same_results_with_and_without_seawall() {
    compare(Language::NodeWith("3.7.4")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn node_mongodb_4_17_2_gets_the_same_results_with_and_without_seawall() {
    compare(Language::NodeWith("4.17.2")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn java_mongodb_4_0_6_gets_the_same_results_with_and_without_seawall() {
    compare(Language::JavaWith("4.0.6")).await;
}

#[tokio::test]
#[ignore = "an old driver: cargo test --test matrix -- --include-ignored"]
async fn go_mongodb_1_13_4_gets_the_same_results_with_and_without_seawall() {
    compare(Language::GoWith("1.13.4")).await;
}

/// Runs a language's program in the cases that the driver and the server support. Reports all
/// differences at once. If the driver is too new for the server, compares only the errors with
/// which the driver refuses the server.
async fn compare(language: Language) {
    // The future is boxed, because a future that starts several instances is larger than the lint
    // `large_futures` allows.
    Box::pin(compare_all_cases(language)).await;
}

async fn compare_all_cases(language: Language) {
    let version = server_version().await.unwrap();
    if version < language.oldest_server() {
        return Box::pin(compare_refusals(language)).await;
    }
    let program = language.prepare().await;
    let masks = Masks::of_the_drivers();
    let mut found = Vec::new();
    let runs = |case: &&Case| case.is_known_to(version) && language.runs(case);
    let cases = selected(language, CASES.iter().filter(runs).collect());
    for is_tls in [false, true] {
        let cases = cases.iter().filter(|case| case.is_tls == is_tls);
        let cases: Vec<_> = cases.copied().collect();
        if cases.is_empty() {
            continue;
        }
        let pair = SharedPair::start_shared(is_tls).await;
        let is_known = |case: &&Case| APIS.contains(&case.api);
        assert!(
            cases.iter().all(is_known),
            "a case has an API outside of APIS, so it would not run"
        );
        for api in APIS {
            let cases = cases.iter().filter(|case| case.api == api);
            let cases: Vec<_> = cases.copied().collect();
            // The future is boxed, because it is larger than the lint `large_futures` allows.
            found.extend(Box::pin(compare_cases(language, &program, &pair, &cases, &masks)).await);
        }
        let served = pair.seawall.metric("seawall_operations_total", &[]).await;
        assert!(
            served > 100.0,
            "expected more than 100 operations through Seawall, got {served}"
        );
        if cases.iter().any(|case| case.is_load_balanced()) {
            pair.assert_balanced(language.has_pool()).await;
        }
    }
    let count = found.len();
    assert!(
        found.is_empty(),
        "{language:?}: {count} differences\n{}",
        found.join("\n")
    );
}

/// The cases in which a language's program runs. `TEST_MATRIX_CASES` selects them. The name of this
/// variable does not begin with `SEAWALL_`, because `seawall` refuses unknown variables with this
/// prefix.
///
/// - `all`: all of `cases`.
/// - `plain`: only [`Case::PLAIN`], in which the driver has its default options.
/// - Not set: only one of the cases that differ from [`Case::PLAIN`] in the mechanism or in the
///   compressor, and all other cases. Each of these cases runs with at least one language.
fn selected(language: Language, mut cases: Vec<&'static Case>) -> Vec<&'static Case> {
    match std::env::var("TEST_MATRIX_CASES").as_deref() {
        Ok("all") => {}
        Ok("plain") => cases.truncate(1),
        Ok(other) => panic!("TEST_MATRIX_CASES is all or plain, not {other:?}"),
        Err(_) => {
            let variants: Vec<_> = cases.iter().copied().filter(|of| of.is_variant()).collect();
            let index = language.number().checked_rem(variants.len());
            let selected = index.map(|index| variants[index]);
            let is_selected = |case: &Case| selected.is_some_and(|of| ptr::eq(of, case));
            cases.retain(|case| !case.is_variant() || is_selected(case));
        }
    }
    cases
}

/// Compares the runs through Seawall in all given cases with one direct run. The results do not
/// depend on the mechanism, the compressor, `loadBalanced` or `useUnifiedTopology`, so a direct run
/// of each case would show nothing more.
async fn compare_cases(
    language: Language,
    program: &Program,
    pair: &SharedPair,
    cases: &[&Case],
    masks: &Masks,
) -> Vec<String> {
    let Some(first) = cases.first() else {
        return Vec::new();
    };
    let run = async |case: &Case, target: Target| {
        let began = Instant::now();
        let name = unique_name("matrix");
        pair.create_user(&name, case.mechanism).await;
        let uri = pair.uri(&name, case, target);
        let mut steps = program.run(&uri, &name, case.api).await;
        steps.iter_mut().for_each(|step| masks.apply(step));
        report(language, case, target, began.elapsed());
        steps
    };
    let runs = iter::once((*first, Target::Servers))
        .chain(cases.iter().map(|case| (*case, Target::Seawall)))
        .map(async |(case, target)| (case, run(case, target).await));
    let runs: Vec<_> = stream::iter(runs).buffered(RUNS_AT_A_TIME).collect().await;
    let ((_, direct), through) = runs.split_first().unwrap();
    let count = direct.len();
    assert!(
        count >= MIN_STEPS,
        "{first}: expected at least {MIN_STEPS} steps, got {count}"
    );
    let found = through.iter().flat_map(|(case, through)| {
        let differences = differences(direct, through).into_iter();
        differences.map(move |difference| format!("{case}: {difference}"))
    });
    found.collect()
}

/// Prints the duration of a run. Visible with `--nocapture`.
#[expect(clippy::print_stdout, reason = "the test's own report")]
fn report(language: Language, case: &Case, target: Target, took: Duration) {
    println!("{language:?}: {case}: {target:?}: {took:.1?}");
}

/// Minimum number of steps of a run. Every program has far more; the limit detects a program that
/// stopped early.
const MIN_STEPS: usize = 60;

/// Number of runs at the same time. It is two, because a program spends half of its time waiting
/// for servers.
const RUNS_AT_A_TIME: usize = 2;
