//! Tests of `seawall load copy`, and of redacted commands on copied data.

use std::{path::Path, process::Output};

use mongodb::{
    IndexModel,
    bson::{DateTime, Document, doc, oid::ObjectId},
    options::IndexOptions,
};
use seawall_redact::{Mode, Redactor};
use seawall_tests::{
    mongod::{Options, ReplicaSet, RunCommand as _, Standalone},
    process::run,
    scratch::Scratch,
};
use seawall_wire::{OpMsg, encode_request};

const KEY: &str = "a key with more than sixteen bytes";

/// Redaction replaces values by pseudonyms, in the copied data and in the query.
#[tokio::test]
async fn a_redacted_query_on_redacted_data_returns_the_redacted_results_of_the_original_query() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let from = Standalone::start(Options::default()).await.unwrap();
    let to = Standalone::start(Options::default()).await.unwrap();
    fill(&from).await;
    let output = copy(&from, &to, &key, &["--namespace", "shop"]).await;
    assert!(output.0, "{}", output.1);
    let redactor = Redactor::new(KEY.as_bytes(), Mode::Ordered);
    for command in [
        doc! { "find": "orders", "filter": { "customer": "customer 7" }, "sort": { "number": 1 } },
        doc! { "find": "orders", "filter": { "total": { "$gte": 40, "$lt": 90.5 } }, "sort": { "total": -1, "number": 1 } },
        doc! { "find": "orders", "filter": { "when": { "$gt": DateTime::from_millis(1_700_000_150_000) } }, "sort": { "when": 1 } },
        doc! { "find": "orders", "filter": { "customer": { "$regex": "^customer 1" } }, "sort": { "number": 1 } },
        doc! { "find": "orders", "filter": { "lines.sku": { "$in": ["sku 3", "sku 5"] }, "paid": true }, "sort": { "number": -1 } },
        doc! { "aggregate": "orders", "cursor": {}, "pipeline": [
        { "$match": { "customer": "customer 3" } }, { "$sort": { "when": 1 } }, { "$limit": 3 } ] },
    ] {
        let mut command = command;
        command.insert("batchSize", 1000);
        if command.contains_key("aggregate") {
            command.remove("batchSize");
        }
        let original = batch(&from, command.clone()).await;
        assert!(!original.is_empty(), "{command}");
        let expected: Vec<_> = original.iter().map(|d| document(&redactor, d)).collect();
        let found = batch(&to, self::command(&redactor, &command)).await;
        assert_eq!(found, expected, "{command}");
    }
}

#[tokio::test]
async fn seawall_load_copy_creates_the_indexes_of_the_source_and_refuses_a_target_with_documents() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let from = Standalone::start(Options::default()).await.unwrap();
    let to = Standalone::start(Options::default()).await.unwrap();
    fill(&from).await;
    let output = copy(&from, &to, &key, &["--namespace", "shop.orders"]).await;
    assert!(output.0, "{}", output.1);
    let names = async |server: &Standalone| {
        let orders = server
            .client()
            .unwrap()
            .database("shop")
            .collection::<Document>("orders");
        let mut names = orders.list_index_names().await.unwrap();
        names.sort();
        names
    };
    assert_eq!(names(&to).await, names(&from).await);
    let indexes = doc! { "listIndexes": "orders" };
    let partial = batch(&to, indexes).await;
    let partial = partial
        .iter()
        .find(|index| index.get_str("name").is_ok_and(|name| name == "big"))
        .unwrap();
    let redactor = Redactor::new(KEY.as_bytes(), Mode::Ordered);
    let limit = document(&redactor, &doc! { "v": 100 });
    let filter = partial.get_document("partialFilterExpression").unwrap();
    assert_eq!(
        filter,
        &doc! { "total": { "$gt": limit.get("v").unwrap().clone() } }
    );

    let (is_success, message) = copy(&from, &to, &key, &[]).await;
    assert!(
        !is_success && message.contains("has documents in the target"),
        "{message}"
    );
    for missing in ["shop.none", "none"] {
        let (is_success, message) = copy(&from, &to, &key, &["--namespace", missing]).await;
        assert!(
            !is_success && message.contains("does not exist"),
            "{message}"
        );
    }
    let short = scratch.write("short", "short").unwrap();
    let (_, message) = copy(&from, &to, &short, &[]).await;
    assert!(message.contains("at least 16 bytes"), "{message}");
}

#[tokio::test]
async fn seawall_load_copy_uses_tls_and_logs_in_to_the_source_server_and_the_target_server() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let secured = || Options {
        tls: true,
        ..Options::with_auth()
    };
    let from = Standalone::start(secured()).await.unwrap();
    let to = Standalone::start(secured()).await.unwrap();
    fill(&from).await;
    let output = copy(&from, &to, &key, &["--namespace", "shop"]).await;
    assert!(output.0, "{}", output.1);
    let all = doc! { "find": "orders", "batchSize": 1000 };
    let (original, copied) = (batch(&from, all.clone()).await, batch(&to, all).await);
    assert_eq!(copied.len(), original.len());
}

#[tokio::test]
async fn the_command_load_copy_needs_the_option_yes_i_own_this_if_the_target_is_another_machine() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let key = key.to_str().unwrap();
    let arguments = [
        "load",
        "copy",
        "--from",
        "mongodb://127.0.0.1:1/",
        "--to",
        "mongodb://192.0.2.1:27017/",
        "--redact-key",
        key,
    ];
    let output = run(&arguments).await;
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("--yes-i-own-this"), "{message}");
}

/// The driver discovers the members of the set. All members are on this machine.
#[tokio::test]
async fn seawall_load_copy_writes_to_a_replica_set_on_this_machine_without_further_options() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let from = Standalone::start(Options::default()).await.unwrap();
    fill(&from).await;
    let to = ReplicaSet::start(2, Options::default()).await.unwrap();
    for member in to.members() {
        let uri = format!("mongodb://{}/", member.address());
        let output = copy_between([&from.root_uri(), &uri], &key, &["--namespace", "shop"]).await;
        assert!(output.status.success(), "{output:?}");
        let orders = to.client().await.unwrap().database("shop");
        let orders = orders.collection::<Document>("orders");
        assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 200);
        orders.drop().await.unwrap();
    }
}

/// The pseudonyms of the numbers need more bytes than the numbers. So a copy of the same size would
/// not have room for all documents.
#[tokio::test]
async fn seawall_load_copy_copies_all_documents_of_a_full_capped_collection() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let from = Standalone::start(Options::default()).await.unwrap();
    let to = Standalone::start(Options::default()).await.unwrap();
    let shop = from.client().unwrap().database("shop");
    let created = shop.create_collection("events").capped(true).size(65_536);
    created.await.unwrap();
    let events = shop.collection::<Document>("events");
    let first = 1_000_000_000_i32;
    let documents = (first..first + 5000).map(|number| doc! { "_id": number, "n": number });
    events.insert_many(documents).await.unwrap();
    let expected = events.count_documents(doc! {}).await.unwrap();
    assert!((1..5000).contains(&expected), "{expected}");
    let output = copy(&from, &to, &key, &["--namespace", "shop.events"]).await;
    assert!(output.0, "{}", output.1);
    let copied = to.client().unwrap().database("shop");
    let copied = copied.collection::<Document>("events");
    assert_eq!(copied.count_documents(doc! {}).await.unwrap(), expected);
}

/// Inserts orders, and creates a unique and a partial index.
async fn fill(server: &Standalone) {
    let orders = server
        .client()
        .unwrap()
        .database("shop")
        .collection::<Document>("orders");
    let documents = (0..200_i32).map(|number| {
        doc! {
            "_id": ObjectId::new(), "number": number, "customer": format!("customer {}", number % 20),
            "total": f64::from(number) * 0.75, "when": DateTime::from_millis(1_700_000_000_000 + i64::from(number) * 1000),
            "paid": number % 3 == 0, "note": null, "lines": [{ "sku": format!("sku {}", number % 9), "n": number }],
        }
    });
    orders.insert_many(documents).await.unwrap();
    let unique = IndexOptions::builder().unique(true).build();
    let unique = IndexModel::builder()
        .keys(doc! { "number": 1 })
        .options(unique)
        .build();
    let partial = IndexOptions::builder()
        .name("big".to_owned())
        .partial_filter_expression(doc! { "total": { "$gt": 100 } })
        .build();
    let partial = IndexModel::builder()
        .keys(doc! { "total": 1 })
        .options(partial)
        .build();
    orders.create_indexes([unique, partial]).await.unwrap();
}

/// Runs `seawall load copy`. Returns true if the command succeeded, and its output on standard
/// error.
async fn copy(from: &Standalone, to: &Standalone, key: &Path, more: &[&str]) -> (bool, String) {
    let output = copy_between([&from.root_uri(), &to.root_uri()], key, more).await;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), message)
}

/// Runs `seawall load copy` from the server of the first URI to the server of the second URI.
pub(crate) async fn copy_between([from, to]: [&str; 2], key: &Path, more: &[&str]) -> Output {
    let key = key.to_str().unwrap();
    let arguments = [
        "load",
        "copy",
        "--from",
        from,
        "--to",
        to,
        "--redact-key",
        key,
    ];
    run(&[&arguments[..], more].concat()).await
}

/// Runs a command and returns the documents of its first batch.
async fn batch(server: &Standalone, command: Document) -> Vec<Document> {
    let client = server.client().unwrap();
    let reply = client.run("shop", command).await.unwrap();
    let cursor = reply.get_document("cursor").unwrap();
    assert_eq!(cursor.get_i64("id").unwrap(), 0);
    let batch = cursor.get_array("firstBatch").unwrap();
    batch
        .iter()
        .map(|row| row.as_document().unwrap().clone())
        .collect()
}

fn document(redactor: &Redactor, document: &Document) -> Document {
    let redacted = redactor.document(&document.to_vec().unwrap()).unwrap();
    Document::from_reader(redacted.as_slice()).unwrap()
}

fn command(redactor: &Redactor, command: &Document) -> Document {
    let message = encode_request(1, &command.to_vec().unwrap());
    let redacted = redactor.command(&message).unwrap();
    let body = OpMsg::parse(&redacted).unwrap().body.to_vec();
    Document::from_reader(body.as_slice()).unwrap()
}
