//! Measures the CPU time that captures cost. A capture is a recording of the clients' operations.
//!
//! In each round, three Seawall processes in front of one mongod get the same load, one after
//! another: one without a capture, one that captures only facts about replies (errors, counts and
//! cursors), and one that captures whole replies.
//!
//! The CPU time includes the CPU time of the thread that writes the capture.

use std::time::Duration;

use seawall_api::{AdminClient, Capture, Captures, NewCapture};
use seawall_tests::scratch::Scratch;

use super::{
    Machine, Plan,
    cost::{Rival, Round, messages, server},
};
use crate::{output::say, spread::Spread};

/// The path of the captures in Seawall's API.
const CAPTURES: &str = "/api/v1/captures";

/// Compares the CPU time of three Seawall processes: one records no capture of its clients'
/// operations, and two record a capture.
///
/// # Panics
///
/// If an operation is neither recorded in a capture nor counted as omitted.
pub async fn run(plan: &Plan) {
    let rounds = plan.either(20, 1);
    let time = plan.either(Duration::from_secs(2), Duration::from_secs(1));
    let scratch = Scratch::create().expect("the directory can be created");
    let server = server().await;
    let mut rivals = Vec::new();
    for name in ["none", "facts", "whole"] {
        let directory = scratch.join(name);
        let toml = format!("capture.directory = {directory:?}\n");
        rivals.push(Rival::start(plan, &server, name, &toml).await);
    }
    let messages = messages();
    // The first round is not counted: it establishes connections and fills caches.
    for rival in &mut rivals {
        rival.run(&messages, time).await;
        rival.rounds.clear();
        rival.operations = 0;
    }
    for (rival, replies) in rivals.iter().skip(1).zip(["facts", "whole"]) {
        start(rival, replies).await;
    }
    let machine = Machine::now();
    for _ in 0..rounds {
        for rival in &mut rivals {
            rival.run(&messages, time).await;
        }
        // The order rotates, so that each of the three Seawalls is the first one in every third
        // round.
        rivals.rotate_left(1);
    }
    rivals.sort_by_key(|rival| {
        ["none", "facts", "whole"]
            .iter()
            .position(|of| *of == rival.name)
    });
    report(&rivals);
    Machine::say_since(machine);
    for rival in rivals.iter().skip(1) {
        check(rival).await;
    }
}

fn client_of(rival: &Rival) -> AdminClient {
    let url = format!("http://{}", rival.seawall.admin());
    AdminClient::new(&url, None, None).expect("the URL is valid")
}

async fn start(rival: &Rival, replies: &str) {
    let new = NewCapture {
        duration_ms: 3_600_000,
        replies: Some(replies.to_owned()),
        ..NewCapture::default()
    };
    let started: Result<Capture, _> = client_of(rival).post_json(CAPTURES, &new).await;
    started.expect("the capture starts");
}

fn report(rivals: &[Rival]) {
    say("\n## Cost of captures: finds by `_id`\n");
    say("| capture | operations per round | CPU per operation, µs | user | system |");
    say("|---|---|---|---|---|");
    rivals.iter().for_each(|rival| say(&rival.row()));
    let Some((none, others)) = rivals.split_first() else {
        return;
    };
    for other in others {
        let pairs = other.rounds.iter().zip(&none.rounds);
        let ratio = |(with, without): (&Round, &Round)| with.cpu_us() / without.cpu_us();
        let spread = Spread::of(pairs.map(ratio));
        say(&format!(
            "\nCPU time with capture `{}` divided by the CPU time without: median {:.3} of {} \
             rounds (from {:.3} to {:.3}).",
            other.name, spread.median, spread.count, spread.least, spread.most
        ));
    }
}

/// Asserts that the capture has recorded each operation, or has counted it as omitted.
async fn check(rival: &Rival) {
    let captures: Captures = rival.seawall.api(CAPTURES).await;
    let [capture] = &*captures.captures else {
        panic!("there must be exactly one capture: {captures:?}");
    };
    let omitted: u64 = capture.omitted.values().sum();
    say(&format!(
        "\nThe capture {} has {} operations and {} bytes; {omitted} omitted.",
        rival.name, capture.operations, capture.bytes
    ));
    let counted = capture.operations + omitted;
    assert!(
        counted >= rival.operations,
        "{capture:?}: {}",
        rival.operations
    );
}
