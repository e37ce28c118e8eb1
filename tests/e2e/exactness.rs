//! Checks that Seawall counts each operation exactly as often as the server's profiler does.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test helpers may panic, as tests do"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::{
    Database,
    bson::{Document, doc},
};
use seawall_api::{Shape, Shapes};
use seawall_command::CommandBytes;
use seawall_shape::fingerprint;
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, Options, Standalone, create_user},
    raw::{KeyCache, RawClient},
    seawall::Seawall,
};
use tokio::{task::JoinSet, time::Instant};

const CLIENTS: i32 = 8;
const ROUNDS: i32 = 65;
const DB: &str = "exactness";
const LIMIT: Duration = Duration::from_secs(30);

/// A collection and a command. The counts of the profiler and of Seawall are compared for each such
/// pair.
type RowKey = (String, String);

#[derive(Clone, Copy, Debug, Default)]
struct ProfiledTotals {
    count: u64,
    milliseconds: i64,
}

#[tokio::test]
async fn seawall_counts_as_many_operations_as_the_profiler_and_reports_times_at_least_as_long() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWrite", DB);
    let db = prepare(&server, &user).await;
    let seawall = Seawall::start(&server.uri()).await;
    let keys = KeyCache::default();
    let login = user.login().keys(&keys);
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let address = seawall.address().parse().unwrap();
        let login = login.clone();
        clients.spawn(async move {
            let mut client = RawClient::connect(address).await.unwrap();
            assert!(client.login(&login).await.unwrap().is_authenticated());
            work(&mut client, number).await
        });
    }
    let mut sent: BTreeMap<RowKey, u64> = BTreeMap::new();
    let mut waited = Duration::ZERO;
    while let Some(done) = clients.join_next().await {
        let (counts, time) = done.unwrap();
        waited += time;
        for (key, count) in counts {
            *sent.entry(key).or_default() += count;
        }
    }
    let total: u64 = sent.values().sum();
    assert!(
        total >= 5000,
        "expected at least 5000 operations, got {total}"
    );

    // Seawall counts an operation after it has written the reply, so the client may get the reply
    // before the count changes.
    let is_counted = async || seawall_counts(&seawall).values().sum::<u64>() == total;
    eventually(LIMIT, is_counted).await.unwrap();
    let counted = seawall_counts(&seawall);
    assert_eq!(counted, sent);
    let is_profiled = || async { count_of(&profiled(&db).await) == total };
    eventually(LIMIT, is_profiled).await.unwrap();
    profile(&db, 0).await;
    let profiled = profiled(&db).await;
    let of_profiler: BTreeMap<_, _> = profiled
        .iter()
        .map(|(p, sums)| (p.clone(), sums.count))
        .collect();
    assert_eq!(of_profiler, counted);
    for ((collection, command), count) in &counted {
        let labels = [
            format!("db=\"{DB}\""),
            format!("collection=\"{collection}\""),
            format!("command=\"{command}\""),
        ];
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let metric = seawall.metric("seawall_operations_total", &labels).await;
        assert_eq!(
            metric.to_string(),
            count.to_string(),
            "{collection} {command}"
        );
    }
    let mut shapes: Shapes = seawall.api("/api/v1/shapes?limit=10000").await;
    shapes.shapes.retain(|shape| shape.db == DB);
    check_server_times(&shapes.shapes, &profiled_shapes(&db).await);
    check_times(&shapes.shapes, &profiled, waited);
    check_labels(&seawall).await;
}

/// Checks that metrics still have the labels that they had in an earlier version of Seawall.
/// `metrics.txt` lists the metrics and the labels of that version.
async fn check_labels(seawall: &Seawall) {
    let earlier = include_str!("../metrics.txt").lines().map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let labels = words.get(2).map_or("", |labels| *labels);
        (
            words[0],
            labels.split(',').filter(|label| !label.is_empty()),
        )
    });
    let earlier: BTreeMap<_, BTreeSet<_>> = earlier
        .map(|(name, labels)| (name, labels.collect()))
        .collect();
    let (_, text) = seawall.get("/metrics").await;
    let mut compared = 0;
    for line in text.lines().filter(|line| line.starts_with("seawall_")) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let families = ["", "_bucket", "_sum", "_count"].iter();
        let mut families = families.filter_map(|suffix| name.strip_suffix(suffix));
        let Some(expected) = families.find_map(|family| earlier.get(family)) else {
            continue;
        };
        // Label values are quoted. After a split at the quotes, every second part, beginning with
        // the first, contains a label's name.
        let parts = rest.split('"').step_by(2);
        let labels: BTreeSet<_> = parts
            .filter_map(|part| part.trim_start_matches(['{', ',']).strip_suffix('='))
            .filter(|label| *label != "le")
            .collect();
        assert_eq!(labels, *expected, "{line}");
        compared += 1;
    }
    assert!(
        compared > 100,
        "expected more than 100 compared series, got {compared}"
    );
}

/// Creates a user and some documents, and starts the server's profiler with enough space to keep
/// every entry.
async fn prepare(server: &Standalone, user: &NewUser) -> Database {
    let root = server.client().unwrap();
    create_user(&root, user).await.unwrap();
    let db = root.database(DB);
    let numbers = (0..400).map(|n| doc! {"_id": n, "n": n, "even": n % 2 == 0});
    for name in ["read", "changed", "slow"] {
        let collection = db.collection::<Document>(name);
        let documents = numbers.clone().take(if name == "slow" { 3 } else { 400 });
        collection.insert_many(documents).await.unwrap();
    }
    profile(&db, 0).await;
    db.collection::<Document>("system.profile")
        .drop()
        .await
        .unwrap();
    let create = doc! {"create": "system.profile", "capped": true, "size": 64 << 20};
    db.run_command(create).await.unwrap();
    profile(&db, 2).await;
    db
}

async fn profile(db: &Database, level: i32) {
    db.run_command(doc! {"profile": level}).await.unwrap();
}

/// Runs all commands of all rounds, with the `getMore` commands that they need. Returns the number
/// of sent commands by collection and command name, and the total time for which the client waited
/// for replies.
async fn work(client: &mut RawClient, number: i32) -> (BTreeMap<RowKey, u64>, Duration) {
    let mut sent = BTreeMap::new();
    let mut waited = Duration::ZERO;
    for round in 0..ROUNDS {
        let id = number * ROUNDS + round;
        for command in commands(id) {
            let mut next = Some(command);
            while let Some(command) = next.take() {
                *sent.entry(row_key(&command)).or_default() += 1;
                let began = Instant::now();
                let reply = client.command(DB, command.clone()).await.unwrap();
                waited += began.elapsed();
                assert!(reply.is_ok(), "{command}: {}", reply.body);
                next = more(&command, reply.cursor_id().unwrap_or(0));
            }
        }
    }
    (sent, waited)
}

fn more(command: &Document, cursor: i64) -> Option<Document> {
    let collection = row_key(command).0;
    let more = doc! {"getMore": cursor, "collection": collection, "batchSize": 100};
    (cursor != 0).then_some(more)
}

fn commands(id: i32) -> Vec<Document> {
    let mut commands = vec![
        doc! {"insert": "written", "documents": [{"_id": id}]},
        // The reply has `ok: 1` and a write error (a duplicate `_id`). The insert counts too.
        doc! {"insert": "changed", "documents": [{"_id": 0}]},
        doc! {"find": "read", "filter": {"_id": id % 400}},
        doc! {"find": "read", "filter": {"even": true, "n": {"$lt": id}}, "batchSize": 1000},
        doc! {"update": "changed", "updates": [{"q": {"_id": id % 400}, "u": {"$inc": {"n": 1}}}]},
        doc! {"delete": "written", "deletes": [{"q": {"_id": id}, "limit": 1}]},
        doc! {"aggregate": "read", "cursor": {},
        "pipeline": [{"$match": {"n": {"$gte": id % 400}}}, {"$group": {"_id": "$even"}}]},
        doc! {"count": "read", "query": {"even": false}},
        doc! {"distinct": "read", "key": "even"},
        doc! {"findAndModify": "changed", "query": {"_id": id % 400}, "update": {"$set": {"last": id}}},
    ];
    if id % 10 == 0 {
        // A find whose result needs several `getMore` commands.
        commands.push(doc! {"find": "read", "filter": {}, "batchSize": 100, "comment": "batches"});
        // The following command takes some milliseconds per document, so that the profiler's times
        // are not all zero.
        commands.push(doc! {"find": "slow", "filter": {"$where": "sleep(4) || true"}});
        commands.push(doc! {"aggregate": "read", "pipeline": [], "cursor": {"batchSize": 150}});
    }
    commands
}

fn row_key(command: &Document) -> RowKey {
    let (name, target) = command.iter().next().unwrap();
    let collection = match name.as_str() {
        "getMore" => command.get_str("collection").unwrap(),
        _ => target.as_str().unwrap(),
    };
    (collection.to_owned(), name.clone())
}

fn seawall_counts(seawall: &Seawall) -> BTreeMap<RowKey, u64> {
    let rows = seawall.app.totals().namespaces().into_iter();
    let rows = rows.filter(|(namespace, _)| &*namespace.db == DB);
    rows.map(|(namespace, sums)| {
        let key = (
            namespace.collection.to_string(),
            namespace.command.to_owned(),
        );
        (key, sums.outcomes.iter().sum())
    })
    .collect()
}

/// The profiler's entries for the clients' operations.
async fn entries(db: &Database) -> Vec<Document> {
    let entries = db.collection::<Document>("system.profile");
    let other = doc! {"ns": {"$nin": [format!("{DB}.system.profile"), format!("{DB}.$cmd")]}};
    let entries = entries.find(other).await.unwrap();
    entries.try_collect().await.unwrap()
}

fn collection_of(entry: &Document) -> &str {
    let (_, collection) = entry.get_str("ns").unwrap().split_once('.').unwrap();
    collection
}

fn command_of(entry: &Document) -> &str {
    match entry.get_str("op").unwrap() {
        "query" => "find",
        "remove" => "delete",
        "getmore" => "getMore",
        "command" => {
            let command = entry.get_document("command").unwrap();
            command.keys().next().unwrap()
        }
        other => other,
    }
}

fn add(sums: &mut ProfiledTotals, entry: &Document) {
    sums.count += 1;
    sums.milliseconds += i64::from(entry.get_i32("millis").unwrap());
}

async fn profiled(db: &Database) -> BTreeMap<RowKey, ProfiledTotals> {
    let mut sums: BTreeMap<RowKey, ProfiledTotals> = BTreeMap::new();
    for entry in entries(db).await {
        let key = (
            collection_of(&entry).to_owned(),
            command_of(&entry).to_owned(),
        );
        add(sums.entry(key).or_default(), &entry);
    }
    sums
}

/// The profiler's counts and times, summed by shape (the command with each value replaced by `?`).
/// The sums do not include `getMore`, because Seawall counts it with the command that opened the
/// cursor.
async fn profiled_shapes(db: &Database) -> BTreeMap<String, ProfiledTotals> {
    let mut sums: BTreeMap<String, ProfiledTotals> = BTreeMap::new();
    for entry in entries(db).await {
        let statement = entry.get_document("command").unwrap().clone();
        let collection = collection_of(&entry);
        // For an update or delete, the profiler records only the statement, so the command is built
        // from the statement. For an insert, the profiler records no documents, but the shape of an
        // insert does not depend on them.
        let command = match command_of(&entry) {
            "getMore" => continue,
            "update" => doc! {"update": collection, "updates": [statement], "$db": DB},
            "delete" => doc! {"delete": collection, "deletes": [statement], "$db": DB},
            _ => statement,
        };
        let body = command.to_vec().unwrap();
        let input = CommandBytes::of_body(&body);
        let id = fingerprint(&input).shape.to_string();
        add(sums.entry(id).or_default(), &entry);
    }
    sums
}

fn count_of(sums: &BTreeMap<RowKey, ProfiledTotals>) -> u64 {
    sums.values().map(|sums| sums.count).sum()
}

/// Compares Seawall with the profiler for each shape (the command with each value replaced by `?`).
/// Seawall must have the same count as the profiler, and a server time that is at least the
/// profiler's time.
fn check_server_times(own: &[Shape], profiled: &BTreeMap<String, ProfiledTotals>) {
    let own: BTreeMap<_, _> = own.iter().map(|shape| (shape.id.clone(), shape)).collect();
    assert!(own.keys().eq(profiled.keys()), "{own:?} {profiled:?}");
    assert!(
        own.len() > 10,
        "expected more than 10 shapes, got {}",
        own.len()
    );
    let mut compared_ms = 0;
    for (id, sums) in profiled {
        let shape = own[id];
        assert_eq!(shape.count, sums.count, "{shape:?}");
        let server = shape.phases_ms.server;
        let least: f64 = sums.milliseconds.to_string().parse().unwrap();
        assert!(
            server >= least,
            "{shape:?}: the server time is below the {least} ms of the profiler"
        );
        compared_ms += sums.milliseconds;
    }
    assert!(
        compared_ms >= 500,
        "the profiler measured too little time to compare: {compared_ms} ms"
    );
}

/// Checks that the phases of operations (such as waiting for a connection, or for the server) add
/// up to the total time of the operations. Also checks that this total time is at most the time for
/// which clients waited.
fn check_times(own: &[Shape], profiled: &BTreeMap<RowKey, ProfiledTotals>, waited: Duration) {
    let mut all_ms = 0.0;
    for shape in own {
        let total = shape.total_time_ms;
        let sum = shape.phases_ms.total();
        assert!((sum - total).abs() <= total / 100.0, "{shape:?}");
        all_ms += total + shape.more.total_time_ms;
    }
    let waited_ms = waited.as_secs_f64() * 1e3;
    assert!(
        all_ms <= waited_ms,
        "the total time of {all_ms} ms exceeds the {waited_ms} ms for which clients waited"
    );
    let more: u64 = own.iter().map(|shape| shape.more.count).sum();
    let profiled_more = profiled.iter().filter(|(key, _)| key.1 == "getMore");
    assert_eq!(more, profiled_more.map(|(_, sums)| sums.count).sum::<u64>());
}
