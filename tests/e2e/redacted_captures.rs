//! Tests of captures with redaction: no value of a client reaches the disk.

use std::{collections::HashMap, time::Duration};

use bson::{
    Binary, Bson, DateTime, Decimal128, Document, JavaScriptCodeWithScope, Regex, doc,
    oid::ObjectId, raw::CString, spec::BinarySubtype,
};
use futures_util::TryStreamExt as _;
use mongodb::{Client, Database, bson::Uuid};
use prost::Message as _;
use seawall_capture::record::{Record, Redaction};
use seawall_tests::{
    eventually::eventually,
    mongod::{ROOT, ROOT_PASSWORD, shared_replica_set, unique_name},
    process,
    scratch::Scratch,
};

use super::{
    capture::{Read, fs_entries, insert_through, process_with, section, try_start},
    scene,
};

const KEY: &str = "a key with more than sixteen bytes";

/// The description and the bytes of a value.
type Value = (String, Vec<u8>);

/// Values that no capture with redaction may contain.
#[derive(Default)]
struct Secrets {
    /// Values that the test sends in commands.
    values: Vec<Value>,
    /// The values as text. A server may write such a text into error messages and the output of
    /// `explain`.
    texts: Vec<Value>,
}

impl Secrets {
    /// Adds a random text to the secrets and returns it. `at` says in which part of a command the
    /// test sends this text.
    fn text(&mut self, at: &str) -> String {
        let text = format!("hunter2{:016x}", rand::random::<u64>());
        self.values
            .push((format!("text in {at}"), text.clone().into_bytes()));
        text
    }

    /// Adds a random number, and its decimal digits as a text, to the secrets. Returns the number.
    fn long(&mut self, at: &str) -> i64 {
        let number = i64::from(rand::random::<u32>()) * 1_000_003 + (1 << 40);
        self.values
            .push((format!("number in {at}"), number.to_le_bytes().to_vec()));
        self.texts
            .push((format!("digits in {at}"), number.to_string().into_bytes()));
        number
    }

    fn double(&mut self, at: &str) -> f64 {
        let number = f64::from(rand::random::<u32>()) / 4_294_967_291.0 * 90.0;
        self.values
            .push((format!("double in {at}"), number.to_le_bytes().to_vec()));
        number
    }

    /// A document with random values: one for each BSON type that redaction replaces by pseudonyms.
    /// Adds these values to the secrets.
    fn document(&mut self, at: &str) -> Document {
        let small: i32 = rand::random::<i32>() | 1;
        let small_bytes = [&b"small\0"[..], &small.to_le_bytes()].concat();
        let decimal: Decimal128 = format!("{}.25", self.long(at)).parse().unwrap();
        // `long` has added the integer's eight bytes to `values`. The decimal does not contain
        // these bytes, so this line removes them again.
        self.values.pop();
        let date = DateTime::from_millis(1_700_000_000_000 + i64::from(rand::random::<u32>()));
        let (id, uuid) = (ObjectId::new(), Uuid::new());
        let [bytes, pattern, code, scope, symbol] = ["bytes", "pattern", "code", "scope", "symbol"]
            .map(|kind| self.text(&format!("{at}, {kind}")));
        for (kind, value) in [
            ("int32", small_bytes),
            ("decimal", decimal.bytes().to_vec()),
            ("date", date.timestamp_millis().to_le_bytes().to_vec()),
            ("id", id.bytes().to_vec()),
            ("uuid", uuid.bytes().to_vec()),
        ] {
            self.values.push((format!("{kind} in {at}"), value));
        }
        let texts = [id.to_hex(), uuid.to_string()];
        let texts = texts.map(|text| (format!("id in {at}"), text.into_bytes()));
        self.texts.extend(texts);
        let binary = |subtype, bytes: &[u8]| {
            let bytes = bytes.to_vec();
            Bson::Binary(Binary { subtype, bytes })
        };
        let regex = Regex {
            pattern: CString::try_from(format!("^{pattern}.*")).unwrap(),
            options: CString::try_from("i").unwrap(),
        };
        let scoped = JavaScriptCodeWithScope {
            code: format!("return '{code}'"),
            scope: doc! { "inner": scope },
        };
        doc! {
            "text": self.text(at), "small": small, "long": self.long(at), "double": self.double(at),
            "decimal": decimal, "date": date, "id": id, "uuid": binary(BinarySubtype::Uuid, &uuid.bytes()),
            "binary": binary(BinarySubtype::Generic, bytes.as_bytes()), "regex": regex, "code": scoped,
            "symbol": Bson::Symbol(symbol), "flag": true, "nothing": null,
            "nested": { "list": [self.text(at), { "deep": self.long(at) }] },
        }
    }
}

/// Sends a command. The command may fail. In this case, the capture contains the error.
async fn send(database: &Database, command: Document) {
    drop(database.run_command(command).await);
}

/// Sends secrets in many commands that applications use.
async fn write(client: &Client, secrets: &mut Secrets) {
    let database = client.database(&unique_name("redacted"));
    writes(&database, secrets).await;
    queries(&database, secrets).await;
    aggregations(&database, secrets).await;
    administration(client, &database, secrets).await;
    sequences_and_streams(client, &database, secrets).await;
}

async fn writes(database: &Database, secrets: &mut Secrets) {
    let mut value = |at: &str| secrets.document(at);
    let upsert = doc! { "_id": value("_id of an upsert"), "q": value("query of an update") };
    for command in [
        doc! { "insert": "c", "documents": [value("insert"), value("insert")], "comment": value("comment") },
        doc! { "update": "c", "updates": [
            { "q": upsert, "u": { "$set": value("$set"), "$push": { "list": { "$each": [value("$each")] } },
              "$setOnInsert": { "new": value("$setOnInsert") } }, "upsert": true },
            { "q": {}, "u": { "$set": { "list.$[element]": value("element") } },
              "arrayFilters": [{ "element": value("arrayFilters") }] },
            { "q": { "nothing": 1 }, "u": value("replacement"), "upsert": true },
            { "q": {}, "u": [{ "$set": { "x": value("pipeline") } }], "c": { "v": value("constants") } },
        ], "let": { "v": value("let of an update") } },
        doc! { "findAndModify": "c", "query": { "x": value("query of findAndModify") }, "upsert": true, "new": true,
        "update": { "$set": value("update of findAndModify") }, "fields": { "y": { "$literal": value("fields") } } },
        doc! { "delete": "c", "deletes": [{ "q": { "x": value("query of a delete") }, "limit": 1 }] },
    ] {
        send(database, command).await;
    }
    let same = value("duplicate key");
    for _ in 0..2 {
        let unique = doc! { "insert": "c", "documents": [{ "_id": same.clone() }] };
        send(database, unique).await;
    }
}

async fn queries(database: &Database, secrets: &mut Secrets) {
    let point = [secrets.double("coordinates"), secrets.double("coordinates")];
    let code = format!("this.a == '{}'", secrets.text("$where"));
    let words = secrets.text("$text");
    let prefix = secrets.text("$regex");
    let mut value = |at: &str| secrets.document(at);
    let filter = doc! {
        "a": value("equality"), "b": { "$in": [value("$in")], "$ne": value("$ne") },
        "c": { "$gt": value("$gt"), "$not": { "$lte": value("$not") } }, "e.f": { "$elemMatch": { "g": value("$elemMatch") } },
        "$or": [{ "h": value("$or") }, { "$and": [{ "i": { "$all": [value("$all")] } }] }],
        "$expr": { "$eq": ["$j", { "$concat": [value("$expr")] }] }, "$comment": value("$comment"),
        "$jsonSchema": { "properties": { "k": { "enum": [value("$jsonSchema")] } } },
    };
    let any = doc! { "$gt": 0, "flag": true };
    for command in [
        doc! { "find": "c", "filter": filter.clone(), "projection": { "x": { "$literal": value("projection") } },
        "let": { "v": value("let") }, "sort": { "a": 1 } },
        doc! { "find": "c", "filter": {}, "min": { "a": value("min") }, "max": { "a": value("max") }, "hint": { "a": 1 } },
        doc! { "find": "c", "filter": { "p": { "$regex": format!("^{prefix}"), "$options": "i" } } },
        doc! { "find": "c", "filter": { "$where": code } },
        doc! { "find": "c", "filter": { "$text": { "$search": words } } },
        doc! { "find": "c", "filter": { "p": { "$near": {
        "$geometry": { "type": "Point", "coordinates": point.to_vec() }, "$maxDistance": 10 } } } },
        doc! { "find": "c", "filter": any, "comment": value("comment of a find") },
        doc! { "count": "c", "query": { "a": value("count") } },
        doc! { "distinct": "c", "key": "nested.list", "query": {} },
        doc! { "distinct": "c", "key": "a", "query": { "a": value("distinct") } },
        doc! { "explain": { "find": "c", "filter": { "a": value("explain") } }, "verbosity": "executionStats" },
        doc! { "explain": { "find": "c", "filter": filter } },
        doc! { "explain": { "aggregate": "c", "pipeline": [{ "$match": { "_id": value("explain") } }], "cursor": {} } },
        doc! { "getMore": 1_i64, "collection": "c", "comment": value("comment of a getMore") },
        doc! { "ping": 1, "comment": value("comment of a ping") },
    ] {
        send(database, command).await;
    }
}

async fn aggregations(database: &Database, secrets: &mut Secrets) {
    let map = format!("function() {{ emit('{}', 1) }}", secrets.text("map"));
    let mut value = |at: &str| secrets.document(at);
    let stages = [
        doc! { "$addFields": { "x": value("$addFields") } },
        doc! { "$set": { "x": { "$cond": [{ "$eq": ["$a", value("$cond")] }, value("$cond"), 1] } } },
        doc! { "$project": { "x": { "$switch": { "branches": [{ "case": true, "then": value("$switch") }], "default": value("default") } } } },
        doc! { "$group": { "_id": value("$group"), "n": { "$push": value("$push") } } },
        doc! { "$bucket": { "groupBy": "$a", "boundaries": [value("$bucket"), value("$bucket")], "default": value("$bucket") } },
        doc! { "$facet": { "one": [{ "$match": { "a": value("$facet") } }] } },
        doc! { "$lookup": { "from": "c", "as": "x", "let": { "v": value("$lookup") }, "pipeline": [{ "$match": { "a": value("$lookup") } }] } },
        doc! { "$graphLookup": { "from": "c", "as": "x", "connectFromField": "a", "connectToField": "b",
        "startWith": value("$graphLookup"), "restrictSearchWithMatch": { "a": value("$graphLookup") } } },
        doc! { "$replaceRoot": { "newRoot": value("$replaceRoot") } },
        doc! { "$redact": { "$cond": [value("$redact"), "$$KEEP", "$$PRUNE"] } },
        doc! { "$unionWith": { "coll": "c", "pipeline": [{ "$match": { "a": value("$unionWith") } }] } },
        doc! { "$documents": [value("$documents")] },
        doc! { "$fill": { "output": { "a": { "value": value("$fill") } } } },
        doc! { "$setWindowFields": { "sortBy": { "a": 1 }, "output": { "x": { "$push": value("$setWindowFields") } } } },
        doc! { "$unknown": { "option": value("an unknown stage") } },
        doc! { "$merge": { "into": "other", "let": { "v": value("$merge") }, "whenMatched": [{ "$set": { "x": value("whenMatched") } }] } },
    ];
    for stage in stages {
        let pipeline = [
            doc! { "$match": { "text": { "$ne": value("$match") } } },
            stage,
        ];
        let aggregate = doc! { "aggregate": "c", "pipeline": pipeline.to_vec(), "cursor": {}, "let": { "v": value("let") } };
        send(database, aggregate).await;
    }
    let reduce = doc! { "mapReduce": "c", "map": map, "reduce": "function(k, v) { return 1 }", "out": { "inline": 1 },
    "query": { "a": value("mapReduce") }, "scope": { "v": value("scope of mapReduce") } };
    send(database, reduce).await;
}

async fn administration(client: &Client, database: &Database, secrets: &mut Secrets) {
    let mut value = |at: &str| secrets.document(at);
    let valid =
        doc! { "flag": { "$ne": value("validator") }, "must": { "$eq": value("validator") } };
    let other = doc! { "other": value("collMod") };
    for command in [
        doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "partial",
        "partialFilterExpression": { "text": secrets.text("partialFilterExpression") } }] },
        doc! { "listIndexes": "c" },
        doc! { "create": "valid", "validator": valid },
        doc! { "insert": "valid", "documents": [secrets.document("not valid")] },
        doc! { "collMod": "valid", "validator": other },
        doc! { "listCollections": 1 },
        doc! { "create": "view", "viewOn": "c", "pipeline": [{ "$match": { "a": secrets.document("view") } }] },
        doc! { "listCollections": 1, "filter": { "options.viewOn": secrets.text("listCollections") } },
    ] {
        send(database, command).await;
    }
    let namespace = format!("{}.c", database.name());
    let ops = [
        doc! { "insert": 0, "document": secrets.document("bulkWrite") },
        doc! { "update": 0, "filter": { "a": secrets.document("bulkWrite") }, "updateMods": { "$set": secrets.document("bulkWrite") } },
        doc! { "delete": 0, "filter": { "a": secrets.document("bulkWrite") } },
    ];
    let bulk = doc! { "bulkWrite": 1, "ops": ops.to_vec(), "nsInfo": [{ "ns": namespace }] };
    send(&client.database("admin"), bulk).await;
}

/// Sends an insert with a document sequence in a transaction, and an unacknowledged write. Also
/// reads the events of a change stream, and a cursor with several batches.
async fn sequences_and_streams(client: &Client, database: &Database, secrets: &mut Secrets) {
    let collection = database.collection::<Document>("stream");
    database.create_collection("stream").await.unwrap();
    let mut changes = collection.watch().await.unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let mut documents = || {
        (0..3)
            .map(|_| secrets.document("sequence"))
            .collect::<Vec<_>>()
    };
    let insert = collection.insert_many(documents()).session(&mut session);
    insert.await.unwrap();
    session.commit_transaction().await.unwrap();
    for _ in 0..3 {
        assert!(changes.try_next().await.unwrap().is_some());
    }
    let unacknowledged =
        doc! { "insert": "stream", "documents": documents(), "writeConcern": { "w": 0 } };
    send(database, unacknowledged).await;
    let found = collection.find(doc! {}).batch_size(1).await.unwrap();
    assert!(found.try_collect::<Vec<_>>().await.unwrap().len() >= 3);
}

/// The bytes of all records of a capture, without compression.
fn bytes_of(read: &Read) -> Vec<u8> {
    let records = read.records.iter();
    let encoded = records.flat_map(|content| Record::from(content.clone()).encode_to_vec());
    encoded.collect()
}

/// [`found_and_missing`] first compares this number of bytes at the start of each value. Every
/// value has at least this number of bytes.
const START: usize = 8;

/// Searches for the values in the bytes. Returns the descriptions of the values that the bytes
/// contain, and of the values that they do not contain.
fn found_and_missing<'v>(bytes: &[u8], values: &'v [Value]) -> (Vec<&'v str>, Vec<&'v str>) {
    let mut by_start: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (number, (_, value)) in values.iter().enumerate() {
        by_start.entry(&value[..START]).or_default().push(number);
    }
    let mut is_found = vec![false; values.len()];
    for (at, start) in bytes.windows(START).enumerate() {
        for number in by_start.get(start).into_iter().flatten() {
            is_found[*number] |= bytes[at..].starts_with(&values[*number].1);
        }
    }
    let described = values.iter().map(|(description, _)| description.as_str());
    let (found, missing): (Vec<_>, Vec<_>) = described.zip(is_found).partition(|(_, is)| *is);
    let descriptions =
        |list: Vec<(&'v str, bool)>| list.into_iter().map(|(text, _)| text).collect();
    (descriptions(found), descriptions(missing))
}

#[tokio::test]
async fn redacted_captures_contain_no_value_of_a_command_or_a_reply() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let keys = format!("redact_key_file = {key:?}");
    let set = shared_replica_set().await.unwrap();
    let seawall = scene::seawall_at(&set.uri(), &section(&scratch, &keys)).await;
    for (mode, redaction) in [
        ("none", Redaction::None),
        ("equality", Redaction::Equality),
        ("ordered", Redaction::Ordered),
    ] {
        let members = format!(r#", "replies": "whole", "redact": "{mode}""#);
        let id = seawall.start_capture(&members).await;
        let client = seawall.client(ROOT, ROOT_PASSWORD, "admin").await;
        let mut secrets = Secrets::default();
        write(&client, &mut secrets).await;
        let ended = seawall.stop_capture(&id).await;
        let read = Read::from(&scratch, &id);
        assert_eq!(ended.redact.as_deref(), Some(mode));
        assert_eq!(read.headers[0].redaction(), redaction);
        assert!(
            read.commands().len() > 50 && ended.omitted.is_empty(),
            "{ended:?}"
        );
        let bytes = bytes_of(&read);
        let (found, missing) = found_and_missing(&bytes, &secrets.values);
        if redaction == Redaction::None {
            // Without redaction, the capture contains all values. This proves that the search
            // works, and that every command was captured.
            assert!(missing.is_empty(), "{missing:?}");
            continue;
        }
        assert!(found.is_empty(), "{mode}: {found:?}");
        let (found, _) = found_and_missing(&bytes, &secrets.texts);
        assert!(found.is_empty(), "{mode}: {found:?}");
    }
}

#[tokio::test]
async fn configured_redaction_applies_to_every_capture_and_a_request_cannot_weaken_it() {
    let scratch = Scratch::create().unwrap();
    let seawall = scene::seawall(&section(&scratch, "redact = \"equality\"")).await;
    for (mode, problem) in [
        (
            "none",
            "redaction cannot be \"none\", because capture.redact is \"equality\"",
        ),
        ("ordered", "redaction cannot be \"ordered\""),
        ("partly", "redact must be none, equality or ordered"),
    ] {
        let (status, said) = try_start(&seawall, &format!(r#", "redact": "{mode}""#)).await;
        assert_eq!(status, 400, "{said}");
        assert!(said.contains(problem), "{said}");
    }
    let id = seawall.start_capture("").await;
    let capture = seawall.stop_capture(&id).await;
    assert_eq!(capture.redact.as_deref(), Some("equality"));
    let plain = scene::seawall(&section(&Scratch::create().unwrap(), "")).await;
    let (status, said) = try_start(&plain, r#", "redact": "ordered""#).await;
    assert_eq!(status, 400, "{said}");
    assert!(said.contains("set capture.redact_key_file"), "{said}");
}

#[tokio::test]
async fn the_capture_command_writes_a_redacted_capture_to_standard_output() {
    let scratch = Scratch::create().unwrap();
    let key = scratch.write("key", KEY).unwrap();
    let process = process_with(&scratch, &format!("redact_key_file = {key:?}")).await;
    let user = scene::writer().await;
    let admin = format!("http://{}", process.admin());
    let capture = [
        "capture",
        "--redact=ordered",
        "--duration",
        "3s",
        "--output",
        "-",
    ];
    let arguments = [&capture[..], &["--admin", &admin]].concat();
    let copied = process::run(&arguments);
    let worked = async {
        let is_running = || async { !fs_entries(&scratch.join("captures")).is_empty() };
        eventually(Duration::from_secs(20), is_running)
            .await
            .unwrap();
        insert_through(&process, &user, doc! { "text": "hunter2" }).await;
    };
    let (copied, ()) = tokio::join!(copied, worked);
    assert!(copied.status.success(), "{copied:?}");
    let read = Read::from_bytes(&copied.stdout);
    assert_eq!(read.headers[0].redaction(), Redaction::Ordered);
    assert!(read.contains("insert") && read.contains("text") && !read.contains("hunter2"));
    let listed = process::run(&["capture", "list", "--admin", &admin]).await;
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("ordered"), "{listed}");
}
