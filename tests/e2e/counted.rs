//! Tests of what Seawall counts about operations: error codes, failed writes, documents, retries by
//! clients, and repeats by Seawall. Many tests run in pooled mode and in relay mode.

use std::{collections::BTreeMap, time::Duration};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use seawall_api::{Namespace, Namespaces, Servers, Shapes};
use seawall_tests::{
    eventually::eventually,
    mongod::{FailTimes, Options, ROOT, ROOT_PASSWORD, ReplicaSet, fail_command, unique_name},
    raw::{Login, OpMsg, RawClient, RawReply, message::MORE_TO_COME},
    scratch::Scratch,
    seawall::Seawall,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);

/// Maximum size of a reply that Seawall reads completely before it forwards the reply. Seawall
/// forwards a larger reply while it arrives.
const HELD_REPLY_BYTES: i32 = 64 * 1024;

const RELAYED: &str = "deployment.mode = \"relay\"\n";

/// A replica set of one member, with Seawall in front of it.
struct CountedScene {
    set: ReplicaSet,
    seawall: Seawall,
    db: String,
}

impl CountedScene {
    async fn start(toml: &str) -> Self {
        Self::start_with(toml, Options::default()).await
    }

    async fn start_with(toml: &str, options: Options) -> Self {
        let set = ReplicaSet::start(1, options).await.unwrap();
        let seawall = Seawall::start_configured(&set.uri(), toml).await;
        let db = unique_name("counted");
        Self { set, seawall, db }
    }

    async fn client(&self) -> RawClient {
        let address = self.seawall.address().parse().unwrap();
        RawClient::connect(address).await.unwrap()
    }

    async fn direct(&self) -> RawClient {
        self.set.raw_client(&self.set.members()[0]).await.unwrap()
    }

    /// Makes the next `times` commands with this name fail on the server.
    async fn fail(&self, times: i32, command: &str, mut how: Document) {
        how.insert("failCommands", [command]);
        let client = self.set.direct_client(&self.set.members()[0]).unwrap();
        fail_command(&client, FailTimes::Count(times), how)
            .await
            .unwrap();
    }

    /// The row of a command in the API. Waits until the row's count is `count`, because a client
    /// may get a reply before Seawall counts the operation.
    async fn row(&self, command: &str, count: u64) -> Namespace {
        let row = async || {
            let reply: Namespaces = self.seawall.api("/api/v1/namespaces").await;
            let rows = reply.namespaces.into_iter();
            // Seawall counts operations before a login under the database `admin` or `other`.
            let own = rows.filter(|row| [&*self.db, "admin", "other"].contains(&&*row.db));
            match own.filter(|row| row.command == command).last() {
                Some(row) if row.count == count => Ok(row),
                other => Err(format!("{command}: {other:?}")),
            }
        };
        eventually(LIMIT, row).await.unwrap()
    }

    /// The sum of the values of a metric over the series that have all of `labels` and the database
    /// of this scene.
    async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let db = format!("db=\"{}\"", self.db);
        let labels: Vec<_> = labels.iter().copied().chain([&*db]).collect();
        self.seawall.metric(name, &labels).await
    }
}

async fn ask(client: &mut RawClient, db: &str, command: Document) -> RawReply {
    client.command(db, command).await.unwrap()
}

/// Converts pairs of a name and a count to the type that the rows of the API have.
fn counts(counts: &[(&str, u64)]) -> Option<BTreeMap<String, u64>> {
    let counts = counts.iter();
    let named = counts.map(|(name, count)| ((*name).to_owned(), *count));
    Some(named.collect())
}

fn session() -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } }
}

#[tokio::test]
async fn write_errors_are_counted_by_code_for_replies_of_any_size() {
    for (toml, count) in [("", 3), ("", 2000), (RELAYED, 3), (RELAYED, 2000)] {
        let scene = CountedScene::start(toml).await;
        let mut client = scene.client().await;
        let create = doc! { "create": "c", "validator": { "n": { "$lt": 9 } } };
        assert!(ask(&mut client, &scene.db, create).await.is_ok());
        // Only the first document is written. The last document violates the validator, and all
        // other documents have the same `_id` as the first one.
        let mut documents = vec![doc! { "_id": 1, "n": 1 }; count + 1];
        documents.push(doc! { "_id": 2, "n": 9 });
        let insert = doc! { "insert": "c", "documents": documents, "ordered": false };
        let reply = ask(&mut client, &scene.db, insert).await;
        let is_large = reply.header.message_length > HELD_REPLY_BYTES;
        assert!(reply.is_ok() && is_large == (count > 3), "{reply:?}");
        let row = scene.row("insert", 1).await;
        let duplicates = u64::try_from(count).unwrap();
        assert_eq!(row.write_errors, Some(duplicates + 1), "{row:?}");
        let codes = counts(&[("11000", duplicates), ("121", 1)]);
        assert_eq!(row.write_error_codes, codes);
        assert_eq!(row.outcomes, counts(&[("write_error", 1)]));
        assert_eq!((row.error_codes, row.documents), (counts(&[]), 1));
        let of_code = [r#"code="11000""#];
        let counted = scene.metric("seawall_write_errors_total", &of_code).await;
        assert_eq!(counted.to_string(), count.to_string());
        let counted = scene.metric("seawall_operation_errors_total", &[]).await;
        assert_eq!(counted, 0.0);
    }
}

#[tokio::test]
async fn write_concern_errors_are_counted_by_the_code_in_the_reply_to_the_client() {
    // In pooled mode, Seawall replaces the server's code 91 by 6. In relay mode, Seawall forwards
    // replies unchanged, so clients get code 91.
    for (toml, reported) in [("", 6), (RELAYED, 91)] {
        let scene = CountedScene::start(toml).await;
        let mut client = scene.client().await;
        for (id, code) in [(1, 64), (2, 64), (3, 91)] {
            let error = doc! { "writeConcernError": { "code": code, "errmsg": "no" } };
            scene.fail(1, "insert", error).await;
            let insert = doc! { "insert": "c", "documents": [{ "_id": id }] };
            let reply = ask(&mut client, &scene.db, insert).await;
            let error = reply.body.get_document("writeConcernError").unwrap();
            let expected = if code == 91 { reported } else { code };
            assert_eq!(error.get_i32("code").unwrap(), expected, "{error}");
        }
        let row = scene.row("insert", 3).await;
        let codes = counts(&[("64", 2), (&reported.to_string(), 1)]);
        assert_eq!(row.write_concern_error_codes, codes, "{row:?}");
        assert_eq!((row.write_errors, row.documents), (Some(0), 3));
        assert_eq!(row.outcomes, counts(&[("write_error", 3)]));
        let of_code = [r#"code="64""#];
        let counted = scene
            .metric("seawall_write_concern_errors_total", &of_code)
            .await;
        assert_eq!(counted, 2.0);
    }
}

#[tokio::test]
async fn errors_that_seawall_creates_or_rewrites_are_counted_by_the_code_that_the_client_gets() {
    let fault = "fault = {command = \"count\", share_percent = 100, error_code = 189}";
    let scene = CountedScene::start(fault).await;
    let mut client = scene.client().await;
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
    let find = doc! { "find": "c" };
    let close = doc! { "closeConnection": true };
    assert!(ask(&mut client, &scene.db, insert.clone()).await.is_ok());
    scene.fail(2, "find", close.clone()).await;
    assert_eq!(
        ask(&mut client, &scene.db, find.clone()).await.code(),
        Some(6)
    );
    scene.fail(1, "insert", doc! { "errorCode": 10107 }).await;
    assert_eq!(ask(&mut client, &scene.db, insert).await.code(), Some(6));
    let count = doc! { "count": "c" };
    assert_eq!(ask(&mut client, &scene.db, count).await.code(), Some(189));
    for (command, count, code) in [("find", 1, "6"), ("insert", 2, "6"), ("count", 1, "189")] {
        let row = scene.row(command, count).await;
        assert_eq!(row.error_codes, counts(&[(code, 1)]), "{row:?}");
    }
    let of_code = [r#"code="6""#];
    let counted = scene
        .metric("seawall_operation_errors_total", &of_code)
        .await;
    assert_eq!(counted, 2.0);
    // Seawall sent the find above twice, and both attempts failed, so its error was counted. The
    // next two finds succeed at their second attempt, so they have no error code.
    scene.fail(1, "find", close).await;
    assert!(ask(&mut client, &scene.db, find.clone()).await.is_ok());
    scene.fail(1, "find", doc! { "errorCode": 10107 }).await;
    assert!(ask(&mut client, &scene.db, find).await.is_ok());
    let row = scene.row("find", 3).await;
    assert_eq!(row.error_codes, counts(&[("6", 1)]), "{row:?}");
    let server = scene.set.members()[0].address().to_string();
    let server = format!("server=\"{server}\"");
    let name = "seawall_operations_repeated_total";
    let repeated = scene.seawall.metric(name, &[&server]).await;
    assert_eq!(repeated, 3.0);
}

#[tokio::test]
async fn operations_that_seawall_refuses_are_counted_by_error_code() {
    let scene = CountedScene::start("deployment.server_selection_timeout_ms = 300").await;
    let mut client = scene.client().await;
    let find = doc! { "find": "c", "$readPreference": { "mode": "secondary" } };
    assert_eq!(ask(&mut client, &scene.db, find).await.code(), Some(133));
    let row = scene.row("find", 1).await;
    assert_eq!(row.error_codes, counts(&[("133", 1)]), "{row:?}");
    for toml in ["", RELAYED] {
        let scene = CountedScene::start_with(toml, Options::with_auth()).await;
        let mut client = scene.client().await;
        let user = doc! { "createUser": "mallory", "pwd": "x", "roles": [] };
        assert_eq!(ask(&mut client, &scene.db, user).await.code(), Some(13));
        let row = scene.row("createUser", 1).await;
        assert_eq!(row.error_codes, counts(&[("13", 1)]), "{row:?}");
        assert_eq!(row.outcomes, counts(&[("local", 1)]));
    }
}

/// Commands, each with the number of documents that it returns, writes or counts.
fn commands() -> Vec<(Document, u64)> {
    let modify = |id: i32, more: Document| {
        let mut command = doc! { "findAndModify": "things", "query": { "_id": id } };
        command.extend(more);
        command
    };
    let update = doc! { "$set": { "changed": true } };
    vec![
        (doc! { "distinct": "things", "key": "kind" }, 4),
        (doc! { "distinct": "things", "key": "nothing" }, 0),
        (doc! { "distinct": "things", "key": "large" }, 2),
        (modify(0, doc! { "update": &update }), 1),
        (modify(98, doc! { "update": &update }), 0),
        (modify(99, doc! { "update": &update, "upsert": true }), 1),
        (modify(1, doc! { "remove": true }), 1),
        (modify(98, doc! { "remove": true }), 0),
        // The reply contains a document of 100,000 bytes, so Seawall forwards the reply while it
        // arrives.
        (modify(2, doc! { "update": &update, "new": true }), 1),
        (doc! { "count": "things" }, 5),
        (doc! { "find": "things", "projection": { "large": 0 } }, 5),
        (
            doc! { "find": "things", "filter": { "_id": { "$gte": 2 } } },
            4,
        ),
        (
            doc! { "delete": "things", "deletes": [{ "q": {}, "limit": 0 }] },
            5,
        ),
    ]
}

#[tokio::test]
async fn documents_are_counted_for_several_commands_and_for_small_and_large_replies() {
    for toml in ["", RELAYED] {
        let scene = CountedScene::start(toml).await;
        let pattern = bson::Regex {
            pattern: bson::raw::CString::try_from("^a").unwrap(),
            options: bson::raw::CString::try_from("i").unwrap(),
        };
        let large = |first: &str| first.repeat(100_000);
        let documents = vec![
            doc! { "_id": 0, "kind": 1 },
            doc! { "_id": 1, "kind": pattern },
            doc! { "_id": 2, "kind": "a", "large": large("a") },
            doc! { "_id": 3, "kind": { "deep": [1, 2] }, "large": large("b") },
            doc! { "_id": 4, "kind": 1 },
        ];
        let insert = doc! { "insert": "things", "documents": documents };
        assert!(
            ask(&mut scene.direct().await, &scene.db, insert)
                .await
                .is_ok()
        );
        let mut client = scene.client().await;
        let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for (command, documents) in commands() {
            let name = command.keys().next().unwrap().clone();
            let reply = ask(&mut client, &scene.db, command.clone()).await;
            assert!(reply.is_ok(), "{command}: {}", reply.body);
            let (count, sum) = sums.entry(name.clone()).or_default();
            *count += 1;
            *sum += documents;
            let row = scene.row(&name, *count).await;
            assert_eq!(row.documents, *sum, "{command}: {row:?}");
        }
        let opaque = scene
            .seawall
            .metric("seawall_unobserved_total", &["reply_not_followed"]);
        assert_eq!(opaque.await, 0.0);
    }
}

#[tokio::test]
async fn write_statements_in_bodies_and_document_sequences_are_counted_by_query_shape() {
    for toml in ["", RELAYED] {
        let scene = CountedScene::start(toml).await;
        let mut client = scene.client().await;
        let pad = "y".repeat(500);
        let statement = |name: &str, n: usize| match name {
            "insert" => doc! { "_id": i64::try_from(n).unwrap(), "pad": &pad },
            "update" => {
                doc! { "q": { "_id": n.to_string(), "pad": &pad }, "u": { "$set": { "a": 1 } } }
            }
            _ => doc! { "q": { "_id": n.to_string(), "pad": &pad }, "limit": 1 },
        };
        // The messages with 5,000 statements are over 1 MiB, so Seawall streams them.
        let mut first = 0;
        for count in [3, 4, 5_000] {
            for (name, field) in [
                ("insert", "documents"),
                ("update", "updates"),
                ("delete", "deletes"),
            ] {
                let statements: Vec<_> =
                    (first..first + count).map(|n| statement(name, n)).collect();
                let mut command = doc! { name: "c", "$db": &scene.db };
                let message = match count {
                    3 => {
                        command.insert(field, statements);
                        OpMsg::new(command)
                    }
                    _ => OpMsg::new(command).sequence(field, statements),
                };
                let reply = client.exchange(&message).await.unwrap();
                assert!(reply.is_ok(), "{}", reply.body);
            }
            first += count;
        }
        let modify = doc! { "findAndModify": "c", "query": { "_id": 1i64 }, "remove": true };
        ask(&mut client, &scene.db, modify).await;
        ask(&mut client, &scene.db, doc! { "find": "c", "limit": 1 }).await;
        client.wait_until_counted().await.unwrap();
        let shapes: Shapes = scene.seawall.api("/api/v1/shapes").await;
        let own = shapes.shapes.iter().filter(|row| row.db == scene.db);
        let own: BTreeMap<_, _> = own
            .map(|row| {
                (
                    &*row.command,
                    [Some(row.count), row.statements, row.streamed],
                )
            })
            .collect();
        let writes = [3, 5_007, 1].map(Some);
        let expected = BTreeMap::from([
            ("delete", writes),
            ("find", [1, 0, 0].map(Some)),
            ("findAndModify", [1, 1, 0].map(Some)),
            ("insert", writes),
            ("update", writes),
        ]);
        assert_eq!(own, expected, "{toml}");
    }
}

/// Seawall lets the server reply to an unacknowledged write, and does not forward the reply.
#[tokio::test]
async fn documents_and_errors_of_unacknowledged_writes_are_counted_from_a_discarded_reply() {
    let scene = CountedScene::start("").await;
    let mut client = scene.client().await;
    let unacknowledged = |command: Document| OpMsg::new(command).flags(MORE_TO_COME);
    let db = &scene.db;
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }], "$db": db };
    client.send(&unacknowledged(insert)).await.unwrap();
    let row = scene.row("insert", 1).await;
    assert_eq!((row.documents, row.reply_bytes), (2, 0));
    let modify = doc! {
        "findAndModify": "c", "query": { "_id": 1 }, "remove": true, "writeConcern": { "w": 0 }, "$db": db,
    };
    client.send(&unacknowledged(modify)).await.unwrap();
    assert_eq!(scene.row("findAndModify", 1).await.documents, 1);
    // The server's reply is larger than `HELD_REPLY_BYTES`. Seawall discards the reply, because
    // the client expects none.
    let documents = vec![doc! { "_id": 2 }; 2000];
    let insert = doc! { "insert": "c", "documents": documents, "ordered": false, "$db": db };
    client.send(&unacknowledged(insert)).await.unwrap();
    let row = scene.row("insert", 2).await;
    assert_eq!(row.write_error_codes, counts(&[("11000", 2000)]));
    assert_eq!((row.documents, row.reply_bytes), (2, 0));
}

#[tokio::test]
async fn a_repeated_commit_or_abort_counts_as_a_retry() {
    for toml in ["", RELAYED] {
        let scene = CountedScene::start(toml).await;
        let mut client = scene.client().await;
        let create = doc! { "create": "c" };
        assert!(ask(&mut client, &scene.db, create).await.is_ok());
        let lsid = session();
        let numbered = |mut command: Document, number: i64| {
            command.extend(doc! { "lsid": &lsid, "txnNumber": number });
            command
        };
        for (number, end) in [(1, "commitTransaction"), (2, "abortTransaction")] {
            for id in [1, 2] {
                let insert = doc! { "insert": "c", "documents": [{ "_id": number * 10 + id }] };
                let mut insert = numbered(insert, number);
                insert.insert("autocommit", false);
                if id == 1 {
                    insert.insert("startTransaction", true);
                }
                assert!(ask(&mut client, &scene.db, insert).await.is_ok());
            }
            let end = numbered(doc! { end: 1, "autocommit": false }, number);
            for _ in 0..3 {
                ask(&mut client, "admin", end.clone()).await;
            }
        }
        for end in ["commitTransaction", "abortTransaction"] {
            let row = scene.row(end, 3).await;
            assert_eq!(row.retries, Some(2), "{row:?}");
        }
        // The second insert of a transaction does not count as a retry of the first insert.
        let row = scene.row("insert", 4).await;
        assert_eq!(row.retries, Some(0), "{row:?}");
        for (count, number, retries) in [(5, 3, 0), (6, 3, 1), (7, 4, 1)] {
            let insert = doc! { "insert": "c", "documents": [{ "_id": number * 10 }] };
            assert!(
                ask(&mut client, &scene.db, numbered(insert, number))
                    .await
                    .is_ok()
            );
            let row = scene.row("insert", count).await;
            assert_eq!(row.retries, Some(retries), "{row:?}");
        }
        let retried = scene
            .seawall
            .metric("seawall_operations_retried_total", &["Transaction"]);
        assert_eq!(retried.await, 4.0);
    }
}

#[tokio::test]
async fn relayed_operations_are_counted_per_server_and_logged_with_their_client_and_application() {
    let scratch = Scratch::create().unwrap();
    let file = scratch.path().join("slow.json");
    let toml =
        format!("{RELAYED}[slow_log]\nthreshold_ms = 0\nmax_lines_per_second = 0\nfile = {file:?}");
    let scene = CountedScene::start_with(&toml, Options::with_auth()).await;
    let mut client = scene.client().await;
    let metadata = doc! {
        "application": { "name": "counter" }, "driver": { "name": "raw", "version": "1" }, "os": { "type": "any" },
    };
    let hello = client.hello(doc! { "client": metadata }).await.unwrap();
    let version = hello.body.get_document("topologyVersion").unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(client.login(&login).await.unwrap().is_authenticated());
    for _ in 0..20 {
        assert!(
            ask(&mut client, &scene.db, doc! { "find": "c" })
                .await
                .is_ok()
        );
    }
    // Like the `hello` of a driver's monitor, this `hello` waits at the server. Seawall counts it
    // in the row of the command `hello`, but not in the row of the server, which contains only the
    // 20 `find`s.
    let watch = doc! { "topologyVersion": version, "maxAwaitTimeMS": 50 };
    assert!(client.hello(watch).await.unwrap().is_ok());
    let row = scene.row("hello", 2).await;
    assert!(row.awaited_time_ms.unwrap() > 0.0, "{row:?}");
    scene.row("find", 20).await;

    let servers: Servers = scene.seawall.api("/api/v1/servers").await;
    let server = scene.set.members()[0].address().to_string();
    let mut rows = servers.servers.iter();
    let row = rows.find(|row| row.address == server).unwrap();
    assert_eq!(row.count, 20, "{row:?}");
    let label = format!("server=\"{server}\"");
    let name = "seawall_server_operation_seconds_count";
    assert_eq!(
        scene.seawall.metric(name, &[&label]).await.to_string(),
        "20"
    );
    let clients = scene.seawall.app.clients().list(10);
    let [known] = &*clients else {
        panic!("{clients:?}")
    };
    assert_eq!(known.driver.as_deref(), Some("raw 1"));

    let lines = || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let finds = lines.filter(|line: &Value| line["command"] == "find");
        finds.collect::<Vec<_>>()
    };
    eventually(LIMIT, async || lines().len() == 20)
        .await
        .unwrap();
    for line in lines() {
        assert_eq!(line["user"], format!("admin.{ROOT}"), "{line}");
        assert_eq!(
            (&line["client"], &line["application"]),
            (&json!(known.id), &json!("counter"))
        );
        assert_eq!(line["server"], server);
    }
}
