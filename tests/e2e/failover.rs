//! The primary is killed repeatedly under load. No acknowledged write may be lost, and no
//! application may see an error. In another test, the primary hangs.

use std::collections::BTreeSet;

use mongodb::{
    Client,
    bson::{Document, doc},
    change_stream::{
        ChangeStream,
        event::{ChangeStreamEvent, OperationType},
    },
    options::{ClientOptions, Credential, WriteConcern},
};
use seawall_tests::{
    eventually::eventually,
    failover::{LIMIT, assert_stored, fail_over, kills, write},
    mongod::{Options, ROOT, ROOT_PASSWORD, ReplicaSet},
    raw::RawClient,
    seawall::{self, Seawall},
};
use tokio::{sync::watch, task::JoinSet, time::timeout};

const CLIENTS: usize = 4;
const HOST_UNREACHABLE: i32 = 6;
const DATABASE: &str = "failover";

async fn driver(uri: &str) -> Client {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    let credential = Credential::builder().username(ROOT.to_owned());
    options.credential = Some(credential.password(ROOT_PASSWORD.to_owned()).build());
    options.write_concern = Some(WriteConcern::majority());
    Client::with_options(options).unwrap()
}

/// Reads a change stream until it has reported the inserts of all ids in `wanted`, in any order.
/// Returns an error if the stream fails or reports an id twice.
async fn follow(
    mut stream: ChangeStream<ChangeStreamEvent<Document>>,
    mut wanted: watch::Receiver<Option<BTreeSet<String>>>,
) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    loop {
        let all = wanted.borrow_and_update().clone();
        if all.is_some_and(|all| all.is_subset(&seen)) {
            return Ok(());
        }
        let event = stream.next_if_any().await;
        let event = event.map_err(|error| format!("change stream: {error}"))?;
        let Some(event) = event.filter(|event| event.operation_type == OperationType::Insert)
        else {
            continue;
        };
        let id = event
            .document_key
            .as_ref()
            .and_then(|key| key.get_str("_id").ok());
        let id = id.unwrap_or_default().to_owned();
        if !seen.insert(id.clone()) {
            return Err(format!("change stream: insert of {id} reported twice"));
        }
    }
}

#[tokio::test]
async fn no_write_is_lost_and_no_operation_fails_when_a_primary_is_killed() {
    let mut set = ReplicaSet::start(3, Options::with_auth()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let follower = driver(&seawall.uri()).await;
    let things = follower.database(DATABASE).collection("things");
    let (expect_inserts, wanted) = watch::channel(None);
    let following = tokio::spawn(follow(things.watch().await.unwrap(), wanted));
    let (stop, over) = watch::channel(false);
    let mut writing = JoinSet::new();
    // The test checks at its end that no client connection was closed. So it keeps all drivers,
    // because a dropped driver closes its connections.
    let mut drivers = vec![follower];
    for number in 0..CLIENTS {
        let (client, over) = (driver(&seawall.uri()).await, over.clone());
        drivers.push(client.clone());
        let name = number.to_string();
        writing.spawn(async move { write(&client, DATABASE, &name, over).await });
    }
    let inserts = async || {
        let command = ["command=\"insert\"", "outcome=\"ok\""];
        seawall.metric("seawall_operations_total", &command).await
    };
    let is_under_way = async || inserts().await > 100.0;
    eventually(LIMIT, is_under_way).await.unwrap();
    for _ in 0..kills() {
        fail_over(&mut set, &inserts).await;
    }
    stop.send_replace(true);
    let mut acknowledged = BTreeSet::new();
    for written in timeout(LIMIT, writing.join_all()).await.unwrap() {
        assert!(written.failed.is_empty(), "{:?}", written.failed);
        acknowledged.extend(written.acknowledged);
    }
    expect_inserts.send_replace(Some(acknowledged.clone()));
    let followed = timeout(LIMIT, following).await.unwrap();
    followed.unwrap().unwrap();
    assert_stored(&set, DATABASE, &acknowledged).await;
    seawall.assert_all_connected().await;
}

/// A hung primary keeps its connections open, and its kernel still acknowledges packets. So no
/// connection reports an error.
#[tokio::test]
async fn a_read_sent_to_a_hung_primary_is_repeated_and_a_write_fails_with_code_6() {
    let set = ReplicaSet::start(3, Options::default()).await.unwrap();
    let options = seawall::Options {
        toml: "deployment.connect_timeout_ms = 1000\ndeployment.heartbeat_frequency_ms = 500"
            .to_owned(),
        ..seawall::Options::default()
    };
    let seawall = Seawall::start_with(&set.uri(), options).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let address = seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        client.set_limit(LIMIT);
        clients.push(client);
    }
    let [reader, writer] = clients.as_mut_slice() else {
        panic!("expected two clients");
    };
    let insert = |id: i32| doc! {"insert": "things", "documents": [{"_id": id}]};
    writer.expect_ok(DATABASE, insert(1)).await;
    // Two concurrent operations open two server connections, so each of the next two operations
    // finds an available connection.
    let slow = doc! {"find": "things", "filter": {"$where": "sleep(300) || true"}};
    let (one, other) = tokio::join!(
        reader.command(DATABASE, slow.clone()),
        writer.command(DATABASE, slow)
    );
    assert!(one.unwrap().is_ok() && other.unwrap().is_ok());
    seawall.wait_for_two_available(LIMIT).await;
    let hung = set.primary().await.unwrap();
    hung.stop_process().unwrap();
    let find = doc! {"find": "things"};
    let (read, written) = tokio::join!(
        reader.command(DATABASE, find.clone()),
        writer.command(DATABASE, insert(2))
    );
    hung.continue_process().unwrap();
    // Seawall repeats the read. Only the driver may retry the write.
    let read = read.unwrap();
    assert!(read.is_ok(), "{read:?}");
    assert_eq!(written.unwrap().code(), Some(HOST_UNREACHABLE));
    for client in [reader, writer] {
        client.expect_ok(DATABASE, find.clone()).await;
    }
}
