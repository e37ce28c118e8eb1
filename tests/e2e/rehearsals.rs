//! Rehearsals of server upgrades: a running Seawall captures traffic, the captures are replayed on
//! other servers, and the results are compared.

use std::{collections::BTreeMap, path::Path, time::Duration};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use seawall_api::Captures;
use seawall_redact::{Mode, Redactor};
use seawall_tests::{
    administration::{FailTimes, fail_command},
    eventually::eventually,
    mongod::{Options, Standalone},
    process::{self, Process},
    scratch::Scratch,
    seawall::Seawall,
};
use seawall_wire::OpMsg;
use tokio::{task::JoinSet, time::interval};

use super::{
    capture::{Read, process_at, section},
    redacted_copies::copy_between,
    replay::{Prepared, assert_verdicts, client, mixed, reads, things},
    scene,
};

const KEY: &str = "a key with more than sixteen bytes";

/// The documentation page that contains the steps of a rehearsal.
const PAGE: &str = include_str!("../../docs/replay.md");

/// The heading above the steps of a rehearsal in [`PAGE`].
const STEPS: &str = "\n## Rehearse an upgrade\n";

#[tokio::test]
async fn redaction_of_traffic_and_data_does_not_change_the_differences_that_a_replay_finds() {
    let (source, target) = tokio::join!(Prepared::start(), Prepared::empty());
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let [from, to] = [&source, &target].map(|server| format!("mongodb://{}/", server.address));
    let keys = format!("redact = \"ordered\"\nredact_key_file = {key:?}");
    let seawall = scene::seawall_at(&source.set.uri(), &section(&scratch, &keys)).await;
    let id = seawall.start_capture("").await;
    let uri = format!("mongodb://{}/", seawall.address());
    reads(Client::with_uri_str(uri).await.unwrap()).await;
    let capture = seawall.stop_capture(&id).await;
    assert!(capture.omitted.is_empty(), "{capture:?}");

    let copied = copy_between([&from, &to], &key, &["--namespace", "shop"]).await;
    assert!(copied.status.success(), "{copied:?}");
    let redactor = Redactor::new(KEY.as_bytes(), Mode::Ordered);
    let changed = doc! { "_id": 63 }.to_vec().unwrap();
    let changed = redactor.document(&changed).unwrap();
    let changed = Document::from_reader(changed.as_slice()).unwrap();
    assert_ne!(changed, doc! { "_id": 63 });
    assert_verdicts(&target, &scratch.join("captures").join(&id), changed).await;
}

/// The `seawall` commands in the documented steps of a rehearsal, in the order of the page.
fn documented() -> Vec<String> {
    let steps = PAGE.split(STEPS).nth(1).unwrap();
    let steps = steps.split("\n## ").next().unwrap();
    let lines = steps.lines().map(str::trim);
    let commands = lines.filter(|line| line.starts_with("seawall "));
    commands.map(str::to_owned).collect()
}

/// Runs a documented command in a folder. Returns its exit status and its output.
async fn follow(command: &str, folder: &Path, admin: &str) -> (Option<i32>, String) {
    let arguments: Vec<_> = command.split_whitespace().skip(1).collect();
    let variables = [("SEAWALL_ADMIN_URL", admin)];
    let output = process::run_in(folder, &variables, &arguments).await;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout) + &text(output.stderr),
    )
}

/// Runs three clients at the same time: two that read and write, and one that only reads. Returns
/// when all three have ended.
async fn traffic(process: &Process) {
    let address = process.address().parse().unwrap();
    let mut applications = JoinSet::new();
    for number in 1..=2 {
        applications.spawn(mixed(client(address).await, 10_000 * number));
    }
    applications.spawn(reads(client(address).await));
    while let Some(ended) = applications.join_next().await {
        ended.unwrap();
    }
}

/// The id of the running capture.
async fn running_capture(folder: &Path, admin: &str) -> Option<String> {
    let (_, listed) = follow("seawall capture list --json", folder, admin).await;
    let captures: Captures = serde_json::from_str(&listed).ok()?;
    let mut captures = captures.captures.into_iter();
    Some(captures.find(|capture| capture.running)?.id)
}

#[tokio::test]
async fn the_documented_upgrade_rehearsal_finds_an_operation_that_is_slower_on_the_new_server() {
    let [capture, dry_run, on_present, on_new, compare, page] = &documented()[..] else {
        panic!("{:?}", documented())
    };
    let (source, present, new) =
        tokio::join!(Prepared::start(), Prepared::start(), Prepared::start());
    let scratch = Scratch::create().unwrap();
    let folder = scratch.path();
    let process = process_at(&source.set.uri(), &scratch, "").await;
    let admin = format!("http://{}", process.admin());
    let follow = async |command: &str| follow(command, folder, &admin).await;
    let captured = follow(capture);
    let worked = async {
        let running = || async { running_capture(folder, &admin).await.ok_or("none") };
        let id = eventually(Duration::from_secs(20), running).await.unwrap();
        traffic(&process).await;
        // The documented capture would run for ten minutes, so the test stops it.
        let stopped = follow(&format!("seawall capture stop {id}")).await;
        assert_eq!(stopped.0, Some(0), "{stopped:?}");
        id
    };
    let (captured, id) = tokio::join!(captured, worked);
    assert_eq!(captured.0, Some(0), "{captured:?}");
    let (code, text) = follow(dry_run).await;
    assert_eq!(code, Some(0), "{text}");
    let expected = format!("capture {id}: would send ");
    assert!(text.starts_with(&expected), "{text}");

    // The delay is so long that the comparison reports it even on a busy machine.
    let delay = doc! { "failCommands": ["find"], "blockConnection": true, "blockTimeMS": 50 };
    let administrator = new.set.administrator().await.unwrap();
    fail_command(&administrator, FailTimes::Always, delay)
        .await
        .unwrap();
    for (command, documented, server) in [
        (on_present, "127.0.0.1:27101", &present),
        (on_new, "127.0.0.1:27102", &new),
    ] {
        let command = command.replace(documented, &server.address.to_string());
        let (code, text) = follow(&command).await;
        assert_eq!(code, Some(0), "{text}");
    }
    let (code, verdict) = follow(compare).await;
    assert_eq!(code, Some(1), "{verdict}");
    // A busy machine can delay other operations too, so this line can list more than the `find`.
    let missed = verdict
        .lines()
        .find(|line| line.contains("objectives missed: "));
    let missed = missed.unwrap_or_else(|| panic!("{verdict}"));
    assert!(missed.contains("find shop.things"), "{verdict}");
    assert!(
        !verdict.contains("Different") && !verdict.contains("Failed"),
        "{verdict}"
    );
    let (code, text) = follow(page).await;
    assert_eq!(code, Some(0), "{text}");
    let page = std::fs::read_to_string(scratch.join("upgrade.html")).unwrap();
    assert!(page.starts_with("<!doctype html>"), "{page}");
}

/// Number of clients that run [`paced`] at the same time.
const PACED_CLIENTS: i32 = 8;

/// Number of reads of each client in [`paced`].
const PACED_READS: i32 = 60;

/// Runs a client that reads every eight milliseconds, so that a read rarely delays the next one.
async fn paced(client: Client, number: i32) {
    let things = things(&client);
    let mut ticks = interval(Duration::from_millis(8));
    for read in 0..PACED_READS {
        ticks.tick().await;
        let id = number * PACED_READS + read;
        things.find_one(doc! { "_id": id }).await.unwrap();
    }
}

/// The time at which each read of [`paced`] arrived at Seawall, in microseconds since the start of
/// the capture. The key is the `_id` that the read searched for.
fn arrivals(capture: &Read) -> BTreeMap<i32, u64> {
    let arrived = capture.commands().into_iter().filter_map(|command| {
        let body = OpMsg::parse(&command.message).unwrap().body;
        let body = Document::from_reader(body).unwrap();
        let filter = body.get_document("filter").ok()?;
        Some((filter.get_i32("_id").ok()?, command.at_us))
    });
    arrived.collect()
}

/// The times between consecutive reads of each client, in microseconds.
fn intervals(arrivals: &BTreeMap<i32, u64>) -> Vec<u64> {
    let follows = |number: &i32| number % PACED_READS > 0;
    let later = arrivals.iter().filter(|(number, _)| follows(number));
    let between = later.map(|(number, at)| at - arrivals[&(number - 1)]);
    between.collect()
}

/// Checks that the replay sends the captured reads. Also prints how much the intervals between
/// reads in the replay differ from those in the capture (visible with `--nocapture`).
#[tokio::test]
#[expect(clippy::print_stdout, reason = "the test's own report")]
async fn a_replay_at_the_captured_speed_sends_the_captured_reads() {
    let (source, target) = tokio::join!(Prepared::start(), Prepared::start());
    let scratches = [Scratch::create().unwrap(), Scratch::create().unwrap()];
    let in_front = async |server: &Prepared, scratch: &Scratch| {
        Seawall::start_configured(&server.set.uri(), &section(scratch, "")).await
    };
    let captured = in_front(&source, &scratches[0]).await;
    let replayed = in_front(&target, &scratches[1]).await;

    let id = captured.start_capture("").await;
    let mut clients = JoinSet::new();
    for number in 0..PACED_CLIENTS {
        let client = client(captured.address().parse().unwrap()).await;
        clients.spawn(paced(client, number));
    }
    clients.join_all().await;
    captured.stop_capture(&id).await;
    let again = replayed.start_capture("").await;
    let folder = scratches[0].join("captures").join(&id);
    let target = format!("mongodb://{}/", replayed.address());
    let folder = folder.to_str().unwrap();
    let output = process::run(&["load", "replay", folder, "--quiet", "--target", &target]).await;
    assert!(output.status.success(), "{output:?}");
    replayed.stop_capture(&again).await;

    let [before, now] =
        [(0, &id), (1, &again)].map(|(of, id)| arrivals(&Read::from(&scratches[of], id)));
    let count = usize::try_from(PACED_CLIENTS * PACED_READS).unwrap();
    assert_eq!(before.len(), count);
    assert!(
        before.keys().eq(now.keys()),
        "expected the same reads at the target"
    );
    let pairs = intervals(&before).into_iter().zip(intervals(&now));
    let mut errors: Vec<_> = pairs.map(|(before, now)| before.abs_diff(now)).collect();
    errors.sort_unstable();
    let [median, p99] = [50, 99].map(|percent| errors[errors.len() * percent / 100]);
    println!("intervals at the target: median error {median} µs, p99 {p99} µs");
}

#[tokio::test]
async fn a_replay_with_writes_is_refused_if_its_target_is_a_proxy_of_the_captured_server() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let seawall = Seawall::start_configured(&server.uri(), &section(&scratch, "")).await;
    let id = seawall.start_capture("").await;
    let things = things(&client(seawall.address().parse().unwrap()).await);
    things.insert_one(doc! {"a": 1}).await.unwrap();
    seawall.stop_capture(&id).await;
    let capture = scratch.join("captures").join(&id);
    let target = seawall.uri();
    let capture = capture.to_str().unwrap();
    let options = ["load", "replay", capture, "--target", &target, "--max"];
    let output = process::run(&[&options[..], &["--with-writes", "--quiet"]].concat()).await;
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{error}");
    assert!(error.contains("has no process id"), "{error}");
    assert_eq!(things.count_documents(doc! {}).await.unwrap(), 1);
}
