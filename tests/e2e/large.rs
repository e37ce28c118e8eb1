//! Commands that are too large to be held in memory as a whole. Seawall forwards them while they
//! arrive, in bounded memory. A message that ends early must have no effect on the server or on
//! other clients.

use std::{sync::Arc, time::Duration};

use mongodb::bson::{Document, Uuid, doc};
use rustix::process::Signal;
use seawall_api::Shapes;
use seawall_tests::{
    crowd,
    eventually::eventually,
    mongod::{FailTimes, Options, ReplicaSet, Standalone, fail_command, unique_name},
    process::Process,
    raw::message::MORE_TO_COME,
    raw::{OpMsg, RawClient, RawError, Section},
    scratch::Scratch,
    seawall::Seawall,
};
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);
const INVALID_NAMESPACE: i32 = 73;
const MIB: u64 = 1 << 20;

/// Number of clients that send a message of the largest size at the same time.
const CLIENTS: usize = 200;

/// The configured memory limit of all large messages together, in MiB. This is the smallest allowed
/// value.
const BUDGET_MIB: u64 = 128;

/// Maximum memory in MiB that Seawall may use in addition to the limit: code, connections, read
/// buffers, and memory that the allocator does not return to the operating system.
const UNCHARGED_MIB: u64 = 24;

async fn connect(seawall: &Seawall) -> RawClient {
    let mut client = RawClient::connect(seawall.address().parse().unwrap())
        .await
        .unwrap();
    client.set_limit(LIMIT);
    client
}

fn documents(count: i32, bytes: usize) -> Vec<Document> {
    let document = |n| doc! {"_id": n, "pad": "x".repeat(bytes)};
    (0..count).map(document).collect()
}

fn insert(db: &str, documents: Vec<Document>) -> OpMsg {
    OpMsg::new(doc! {"insert": "c", "$db": db}).sequence("documents", documents)
}

/// Waits until Seawall has counted `expected` streamed operations (operations whose large messages
/// Seawall forwards while they arrive). Seawall counts an operation after it has sent the reply.
async fn wait_until_streamed(seawall: &Seawall, expected: f64) {
    let streamed = "seawall_operations_streamed_total";
    let is_counted = async || match seawall.metric(streamed, &[]).await {
        count if (count - expected).abs() < 0.5 => Ok(()),
        count => Err(count.to_string()),
    };
    eventually(LIMIT, is_counted).await.unwrap();
}

#[tokio::test]
async fn large_writes_have_the_same_replies_directly_and_through_the_proxy() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let mut direct = set.raw_client(&set.members()[0]).await.unwrap();
    let mut through = connect(&seawall).await;
    let pad = "y".repeat(3000);
    let updates = (0..1000)
        .map(|n| doc! {"q": {"_id": n}, "u": {"$set": {"pad": &pad}}})
        .collect();
    let not = "z".repeat(600);
    let deletes = (0..4000)
        .map(|n| doc! {"q": {"_id": n, "pad": {"$ne": &not}}, "limit": 1})
        .collect();
    let (direct_db, through_db) = (unique_name("large"), unique_name("large"));
    let of = |db: &str| {
        [
            insert(db, documents(1000, 2000)),
            insert(db, documents(2, 1_000_000)),
            OpMsg::new(doc! {"update": "c", "$db": db}).sequence("updates", Vec::clone(&updates)),
            OpMsg::new(doc! {"delete": "c", "$db": db}).sequence("deletes", Vec::clone(&deletes)),
        ]
    };
    for (one, other) in of(&direct_db).iter().zip(of(&through_db)) {
        let [one, other] = [
            direct.exchange(one).await.unwrap(),
            through.exchange(&other).await.unwrap(),
        ];
        let without_clock = |mut body: Document, db: &str| {
            ["opTime", "electionId", "$clusterTime", "operationTime"]
                .iter()
                .for_each(|name| drop(body.remove(name)));
            body.to_string().replace(db, "db")
        };
        let one = without_clock(one.body, &direct_db);
        assert_eq!(one, without_clock(other.body, &through_db));
    }
    wait_until_streamed(&seawall, 4.0).await;
    let shapes: Shapes = seawall.api("/api/v1/shapes").await;
    let mut shapes = shapes.shapes.iter();
    let of_updates = shapes.find(|shape| shape.command == "update").unwrap();
    assert_eq!((of_updates.streamed, of_updates.count), (Some(1), 1));
}

#[tokio::test]
async fn an_unacknowledged_large_write_of_a_disconnected_client_completes() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let db = unique_name("large");
    let body = doc! {"insert": "c", "writeConcern": {"w": 0}, "$db": &db};
    let message = OpMsg::new(body)
        .sequence("documents", documents(20, 1_000_000))
        .flags(MORE_TO_COME);
    connect(&seawall).await.send(&message).await.unwrap();
    let is_complete = async || {
        let mut direct = set.raw_client(&set.members()[0]).await.unwrap();
        let reply = direct.command(&db, doc! {"count": "c"}).await.unwrap();
        reply.body.get_i32("n").unwrap() == 20
    };
    eventually(LIMIT, is_complete).await.unwrap();
    wait_until_streamed(&seawall, 1.0).await;
}

#[tokio::test]
async fn seawall_handles_malformed_large_commands_as_a_server_does_and_keeps_server_connections() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let large = || Section::Sequence {
        identifier: "documents".to_owned(),
        documents: documents(30, 100_000),
    };
    let small = |name: &str| Section::Sequence {
        identifier: name.to_owned(),
        documents: vec![doc! {"a": 1}],
    };
    let body = |db: &str| Section::Body(doc! {"insert": "c", "$db": db});
    let db = unique_name("large");
    let cases = [
        vec![body(&db), large(), small("documents")],
        vec![body(&db), large(), small("b"), small("c")],
        vec![body(&db), large(), body(&db)],
        vec![body(&db), small("documents"), large()],
        vec![body(&db), large(), small("unknown")],
    ];
    for (number, sections) in cases.into_iter().enumerate() {
        let message = OpMsg {
            sections,
            ..OpMsg::new(doc! {})
        };
        let mut reactions = Vec::new();
        for mut client in [
            set.raw_client(&set.members()[0]).await.unwrap(),
            connect(&seawall).await,
        ] {
            let reply = client.exchange(&message).await;
            let code = match reply {
                Ok(reply) => Some((reply.code(), reply.is_ok())),
                Err(RawError::Closed | RawError::Truncated | RawError::Io(_)) => None,
                Err(error) => panic!("{number}: {error:?}"),
            };
            let is_open = client.command("admin", doc! {"ping": 1}).await.is_ok();
            reactions.push((code, is_open));
        }
        assert_eq!(reactions[0], reactions[1], "{number}");
    }
    // Seawall refuses some of these messages before they have arrived completely, for example a
    // message with a second body. Such a refusal must not close a server connection.
    let reason = [r#"reason="error""#];
    let failed = seawall
        .metric("seawall_operations_total", &[r#"outcome="server_failed""#])
        .await;
    assert_eq!(failed, 0.0);
    let cleared = seawall
        .metric("seawall_server_connections_closed_total", &reason)
        .await;
    assert_eq!(cleared, 0.0);
}

#[tokio::test]
async fn a_truncated_large_command_has_no_effect() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let db = unique_name("large");
    let bytes = insert(&db, documents(30, 100_000)).to_bytes();
    for divisor in [2, 3, 10] {
        let mut client = connect(&seawall).await;
        let (sent, _) = bytes.split_at(bytes.len() - bytes.len() / divisor);
        client.send_bytes(sent).await.unwrap();
        drop(client);
    }
    let gone = async || match seawall.metric("seawall_clients_gone_total", &[]).await {
        3.0 => Ok(()),
        gone => Err(gone.to_string()),
    };
    eventually(LIMIT, gone).await.unwrap();
    let count = connect(&seawall)
        .await
        .command(&db, doc! {"count": "c"})
        .await;
    assert_eq!(count.unwrap().body.get_i32("n").unwrap(), 0);
}

#[tokio::test]
async fn a_large_write_that_loses_its_server_connection_fails_and_its_client_stays_connected() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let db = unique_name("large");
    let mut client = connect(&seawall).await;
    let failing = set.administrator().await.unwrap();
    let fault = doc! {"failCommands": ["insert"], "closeConnection": true};
    fail_command(&failing, FailTimes::Count(1), fault)
        .await
        .unwrap();
    let lsid = doc! {"id": Uuid::new()};
    let body = doc! {"insert": "c", "lsid": lsid, "txnNumber": 1i64, "$db": &db};
    let message = OpMsg::new(body).sequence("documents", documents(20, 100_000));
    // Seawall streamed the command and did not keep it, so only the driver can send it again.
    let reply = client.exchange(&message).await.unwrap();
    assert_eq!(reply.code(), Some(6), "{}", reply.body);
    assert_eq!(reply.error_labels(), ["RetryableWriteError"]);
    let reply = client.exchange(&message).await.unwrap();
    assert_eq!(reply.body.get_i32("n").ok(), Some(20), "{}", reply.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_stay_within_their_memory_budget() {
    let _turn = crowd::turn().await;
    let server = Standalone::start(Options::default()).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri = \"mongodb://{}/\"\npool.max_pool_size = 20\n\
         pool.wait_queue_timeout_ms = 300000\n\
         limits.message_memory_bytes = {}\n",
        server.address(),
        BUDGET_MIB * MIB
    );
    let process = Process::serve(&scratch.write("seawall.toml", toml).unwrap()).await;
    let is_served = async || match connect_to(&process).await.greet(doc! {}).await {
        Ok(reply) if reply.is_ok() => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually(LIMIT, is_served).await.unwrap();
    let db = unique_name("large");
    let mut client = connect_to(&process).await;
    client.send_bytes(&largest(&db, "c", 1)).await.unwrap();
    assert!(client.read_reply().await.unwrap().is_ok());
    // The collection's name is invalid, so the server reads the whole message but inserts nothing.
    // This keeps the server's part of the work small.
    let message: Arc<[u8]> = largest(&db, "not a name: $", 3).into();
    assert!(message.len() > 47_900_000, "{} bytes", message.len());
    let read: Arc<[u8]> = OpMsg::new(doc! {"find": "c", "$db": &db}).to_bytes().into();

    let idle = process.reset_peak_memory();
    exchange(&mut client, &message).await;
    fetch(&mut client, &read).await;
    let used = process.peak_memory_bytes().saturating_sub(idle);
    assert!(
        used <= 4 * MIB,
        "expected at most 4 MiB for one command and one reply of the largest size, got {used} bytes"
    );

    let idle = process.reset_peak_memory();
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let mut client = connect_to(&process).await;
        let (message, read) = (Arc::clone(&message), Arc::clone(&read));
        clients.spawn(async move {
            exchange(&mut client, &message).await;
            fetch(&mut client, &read).await;
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    let used = process.peak_memory_bytes().saturating_sub(idle);
    assert!(
        used <= (BUDGET_MIB + UNCHARGED_MIB) * MIB,
        "expected at most {BUDGET_MIB} + {UNCHARGED_MIB} MiB for {CLIENTS} clients, got {used} bytes"
    );
    process.signal(Signal::TERM);
}

/// An insert of `count` documents of nearly the maximum document size. The message is built byte by
/// byte, because the bson crate would take a minute.
fn largest(db: &str, collection: &str, count: u8) -> Vec<u8> {
    const PAD_BYTES: usize = 15_990_000;
    let length = |bytes: usize| i32::try_from(bytes).unwrap().to_le_bytes();
    let pad = [&length(PAD_BYTES + 1)[..], &vec![b'x'; PAD_BYTES], &[0]].concat();
    let document = |id: u8| {
        let fields = [b"\x10_id\0", &[id, 0, 0, 0][..], b"\x02pad\0", &pad, &[0]].concat();
        [&length(4 + fields.len())[..], &fields].concat()
    };
    let documents: Vec<u8> = (0..count).flat_map(document).collect();
    let sequence = [b"documents\0", &documents[..]].concat();
    let rest = [&[1][..], &length(4 + sequence.len()), &sequence].concat();
    let mut message = OpMsg::new(doc! {"insert": collection, "$db": db}).to_bytes();
    let whole = length(message.len() + rest.len());
    message.splice(..4, whole);
    [message, rest].concat()
}

async fn connect_to(process: &Process) -> RawClient {
    let mut client = RawClient::connect(process.address().parse().unwrap())
        .await
        .unwrap();
    client.set_limit(LIMIT * 5);
    client
}

async fn exchange(client: &mut RawClient, message: &[u8]) {
    client.send_bytes(message).await.unwrap();
    let reply = client.read_reply().await.unwrap();
    assert_eq!(reply.code(), Some(INVALID_NAMESPACE), "{}", reply.body);
}

/// Reads a reply without parsing it, because parsing would take longer than the rest of the test.
async fn fetch(client: &mut RawClient, request: &[u8]) {
    client.send_bytes(request).await.unwrap();
    let reply = client.read_message().await.unwrap();
    assert!(reply.len() > 15_990_000, "{} bytes", reply.len());
}
