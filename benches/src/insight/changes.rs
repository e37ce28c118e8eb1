//! Checks Seawall's report of changes under a load of many query shapes. When an index is dropped,
//! Seawall must report which shape became slower. If nothing changes, Seawall must report nothing.

use std::time::Duration;

use bson::{Document, RawDocumentBuf, doc, rawdoc};
use mongodb::{Client, IndexModel};
use seawall_api::{Changes, SeriesName};
use seawall_tests::mongod::{Options, Standalone};
use tokio::time::sleep;

use super::{
    DATABASE, Machine, Plan, letters,
    link::{LinkTarget, message},
    pace::{Paced, Rate},
    random::Random,
    seawall::Seawall,
};
use crate::output::say;

const COLLECTION: &str = "items";

/// Number of indexed fields. Each shape filters by one of these fields, so this is also the number
/// of shapes.
const FIELDS: usize = 30;

const DOCUMENTS: i32 = 20_000;

/// Number of documents per insert.
const BATCH: i32 = 1_000;

/// The rate of the load. There are 30 shapes, so the load runs each shape 20 times per second.
const RATE: Rate = Rate {
    connections: 16,
    per_second: 600.0,
};

/// The number of the field whose index is dropped.
const DROPPED: usize = 17;

/// Time before the first of the two compared periods. During this time, Seawall establishes server
/// connections, and the server caches query plans.
const WARM_UP: Duration = Duration::from_secs(3);

/// Runs the load three times without a change, and once with a change: an index is dropped. A quick
/// run omits the runs without a change.
pub async fn run(plan: &Plan) {
    let window = plan.either(Duration::from_secs(60), Duration::from_secs(10));
    let quiet_runs = plan.either(3, 0);
    let server = Standalone::start(Options::default()).await;
    let server = server.expect("a mongod starts");
    let client = server.client().expect("the server accepts connections");
    fill(&client).await;
    say(&format!(
        "\n## Changes: {FIELDS} shapes at {:.0} operations/s in total, {} s compared with {} s\n",
        RATE.per_second,
        window.as_secs(),
        window.as_secs()
    ));
    say(
        "| run | operations before, now | change | kind | shape | p50 before, now | ratio | effect | cost per second |",
    );
    say("|---|---|---|---|---|---|---|---|---|");
    let machine = Machine::now();
    let mut quiet = Vec::new();
    for number in 1..=quiet_runs {
        let reported = watch(plan, &server, window, async || {}).await;
        table(&format!("nothing dropped, {number}"), &reported);
        quiet.push(reported);
    }
    let dropped = watch(plan, &server, window, async || drop_index(&client).await).await;
    table("an index dropped", &dropped);
    say("");
    Machine::say_since(machine);
    for reported in &quiet {
        let changes = &reported.changes;
        assert!(
            changes.is_empty(),
            "nothing changed, but Seawall reports {changes:?}"
        );
    }
    let first = dropped.changes.first();
    let first = first.expect("a change is reported");
    assert_eq!(first.kind, "slower", "{first:?}");
    let expected = SeriesName {
        address: None,
        collection: Some(COLLECTION.to_owned()),
        command: Some("find".to_owned()),
        db: Some(DATABASE.to_owned()),
        text: Some(format!("{{filter:{{{}:?}}}}", field(DROPPED))),
        ..first.shape.clone()
    };
    assert_eq!(first.shape, expected);
}

fn field(number: usize) -> String {
    format!("field_{}", letters(number))
}

async fn fill(client: &Client) {
    let collection = client.database(DATABASE).collection::<Document>(COLLECTION);
    let mut random = Random::of(1);
    for first in (0..DOCUMENTS).step_by(usize::try_from(BATCH).unwrap_or(1)) {
        let documents = (first..first + BATCH).map(|n| {
            let mut document = doc! { "_id": n };
            for number in 0..FIELDS {
                let value = i32::try_from(random.below(10_000)).unwrap_or(0);
                document.insert(field(number), value);
            }
            document
        });
        let inserted = collection.insert_many(documents).await;
        inserted.expect("documents can be inserted");
    }
    let indexes = (0..FIELDS).map(|number| {
        let mut keys = Document::new();
        keys.insert(field(number), 1);
        IndexModel::builder().keys(keys).build()
    });
    let created = collection.create_indexes(indexes).await;
    created.expect("indexes can be created");
}

async fn drop_index(client: &Client) {
    let command = doc! { "dropIndexes": COLLECTION, "index": format!("{}_1", field(DROPPED)) };
    let dropped = client.database(DATABASE).run_command(command).await;
    dropped.expect("an index can be dropped");
}

/// Runs the load for two periods of length `window`, and runs `between` after the first period.
/// Returns Seawall's report of the changes from the first period to the second.
async fn watch(
    plan: &Plan,
    server: &Standalone,
    window: Duration,
    between: impl AsyncFnOnce(),
) -> Changes {
    let toml = "auth.credentials = \"none\"\n";
    let seawall = Seawall::start(plan, &server.uri(), toml).await;
    let target = LinkTarget {
        address: seawall.address(),
        login: None,
    };
    let load = Paced::start(&target, RATE, source).await;
    sleep(WARM_UP + window).await;
    between().await;
    // The wait is one second longer, because the API reports a second only after it has ended.
    sleep(window + Duration::from_secs(1)).await;
    let seconds = window.as_secs();
    let path = format!("/api/v1/changes?against={seconds}s&window={seconds}s");
    let reported = seawall.api(&path).await;
    load.end().await;
    reported
}

/// Returns a generator of messages. It generates one message of each shape in random order, and
/// then begins again with a new order.
fn source(connection: u32) -> impl FnMut() -> Vec<u8> {
    let mut random = Random::of(connection.into());
    let mut left: Vec<usize> = Vec::new();
    move || {
        if left.is_empty() {
            left.extend(0..FIELDS);
            random.shuffle(&mut left);
        }
        let number = left.pop().unwrap_or(0);
        let mut filter = Document::new();
        let value = i32::try_from(random.below(10_000)).unwrap_or(0);
        filter.insert(field(number), value);
        let filter = RawDocumentBuf::try_from(&filter).expect("the filter can be encoded");
        message(&rawdoc! {
            "find": COLLECTION, "filter": filter, "singleBatch": true, "$db": DATABASE,
        })
    }
}

fn table(run: &str, reported: &Changes) {
    let [before, now] =
        [&reported.baseline, &reported.now].map(|span| span.clone().unwrap_or_default());
    let operations = format!("{}, {}", before.count, now.count);
    let changes = &reported.changes;
    if changes.is_empty() {
        say(&format!("| {run} | {operations} | none | | | | | | |"));
    }
    for (rank, change) in (1..).zip(changes) {
        say(&format!(
            "| {run} | {operations} | {rank} | {} | `{}` | {:.2} ms, {:.2} ms | {:.2} | {:.3} | {:.1} ms |",
            change.kind,
            change.shape.text(),
            change.before.p50_ms,
            change.now.p50_ms,
            change.ratio.unwrap_or(f64::NAN),
            change.effect,
            change.cost_ms_per_second,
        ));
    }
}
