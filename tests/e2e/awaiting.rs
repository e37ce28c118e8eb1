//! Operations that wait for an event. Seawall splits each wait into slices: `getMore` commands that
//! each wait at most one second. Seawall also limits the number of connections that waiting
//! operations use.

use std::{sync::Arc, time::Duration};

use mongodb::bson::{Bson, Document, doc};
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, Options, ReplicaSet, create_user},
    raw::{OpMsg, RawClient, RawReply, message::MORE_TO_COME},
    recorder::{Cut, Recorder},
    seawall::Seawall,
};
use tokio::{task::JoinSet, time::timeout};

const LIMIT: Duration = Duration::from_secs(60);
const DB: &str = "awaiting";

struct AwaitingScene {
    set: ReplicaSet,
    recorder: Recorder,
    seawall: Seawall,
}

impl AwaitingScene {
    async fn start(max_pool_size: usize) -> Self {
        let toml = format!("pool.max_pool_size = {max_pool_size}\n");
        Self::start_with(Options::default(), toml).await
    }

    /// Starts a server with these options, and Seawall with this configuration.
    async fn start_with(options: Options, toml: String) -> Self {
        let set = ReplicaSet::start(1, options).await.unwrap();
        let client = set.client().await.unwrap();
        client
            .database(DB)
            .create_collection("things")
            .await
            .unwrap();
        let recorder = Recorder::start(set.members()[0].address()).await.unwrap();
        let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
        let seawall = Seawall::start_configured(&uri, &toml).await;
        Self {
            set,
            recorder,
            seawall,
        }
    }

    async fn client(&self) -> RawClient {
        let address = self.seawall.address().parse().unwrap();
        RawClient::connect(address).await.unwrap()
    }

    async fn insert(&self, document: Document) {
        let client = self.set.client().await.unwrap();
        let things = client.database(DB).collection::<Document>("things");
        things.insert_one(document).await.unwrap();
    }

    /// The `maxTimeMS` of each `getMore` that reached the server.
    fn slices(&self) -> Vec<i64> {
        let connections = self.recorder.connections();
        let commands = connections
            .iter()
            .flat_map(|connection| connection.commands());
        let more = commands.filter(|command| command.contains_key("getMore"));
        let slices = more.map(|command| {
            let value = command.get("maxTimeMS").unwrap();
            value.as_i64().or(value.as_i32().map(i64::from)).unwrap()
        });
        slices.collect()
    }
}

async fn open(client: &mut RawClient, command: Document) -> i64 {
    let reply = client.expect_ok(DB, command).await;
    reply.cursor_id().filter(|id| *id != 0).unwrap()
}

async fn watch(client: &mut RawClient, filter: Document) -> i64 {
    let pipeline = vec![doc! {"$changeStream": {}}, doc! {"$match": filter}];
    open(
        client,
        doc! {"aggregate": "things", "pipeline": pipeline, "cursor": {}},
    )
    .await
}

fn more(cursor: i64, wait_ms: Option<i64>) -> Document {
    let mut more = doc! {"getMore": cursor, "collection": "things"};
    if let Some(wait_ms) = wait_ms {
        more.insert("maxTimeMS", wait_ms);
    }
    more
}

fn batch(reply: &RawReply) -> Vec<Document> {
    assert!(reply.is_ok(), "{reply:?}");
    let cursor = reply.body.get_document("cursor").unwrap();
    let batch = cursor.get_array("nextBatch").unwrap().iter();
    batch
        .map(|event| event.as_document().unwrap().clone())
        .collect()
}

#[tokio::test]
async fn a_get_more_with_an_invalid_max_time_ms_gets_the_same_error_as_on_a_server() {
    let scene = AwaitingScene::start(8).await;
    let direct = scene.set.raw_client(&scene.set.members()[0]);
    let mut errors = Vec::new();
    for mut client in [scene.client().await, direct.await.unwrap()] {
        let cursor = watch(&mut client, doc! {}).await;
        let mut of_client = Vec::new();
        for max_time in [
            Bson::Int32(-1),
            Bson::Int64(1 << 40),
            Bson::Double(50.5),
            Bson::Boolean(true),
            Bson::from("text"),
        ] {
            let mut command = more(cursor, None);
            command.insert("maxTimeMS", max_time);
            let reply = client.command(DB, command).await.unwrap();
            let text = reply.body.get_str("errmsg").unwrap().to_owned();
            of_client.push((reply.code(), text));
        }
        errors.push(of_client);
    }
    assert_eq!(errors[0], errors[1]);
}

#[tokio::test]
async fn a_get_more_with_a_long_max_time_ms_is_sent_as_several_short_ones_and_gets_one_reply() {
    let scene = AwaitingScene::start(8).await;
    let mut client = scene.client().await;
    let cursor = watch(&mut client, doc! {}).await;
    let nothing = client.command(DB, more(cursor, Some(4500))).await.unwrap();
    assert!(batch(&nothing).is_empty());
    // No event happened, but the reply has the token with which a driver resumes the stream.
    let resume = nothing.body.get_document("cursor").unwrap();
    assert!(resume.contains_key("postBatchResumeToken"), "{resume}");
    let slices = scene.slices();
    assert!(slices.len() >= 3, "{slices:?}");
    assert!(
        slices.iter().all(|slice| (1..=1000).contains(slice)),
        "{slices:?}"
    );
    // Seawall also sets `maxTimeMS` (at most 1 s) if the `getMore` of the client has none.
    let nothing = client.command(DB, more(cursor, None)).await.unwrap();
    assert!(batch(&nothing).is_empty());
    let slices = scene.slices();
    assert!(
        slices.iter().all(|slice| (1..=1000).contains(slice)),
        "{slices:?}"
    );
    // An event ends the wait early, even if `maxTimeMS` is long.
    client.set_limit(LIMIT);
    let mut long = more(cursor, Some(600_000));
    long.insert("$db", DB);
    let id = client.send(&OpMsg::new(long)).await.unwrap();
    let before = scene.slices().len();
    eventually(LIMIT, async || scene.slices().len() > before + 1)
        .await
        .unwrap();
    scene.insert(doc! {"_id": "seen"}).await;
    let reply = client.read_reply().await.unwrap();
    assert_eq!(reply.header.response_to, id);
    let events = batch(&reply);
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].get_str("operationType").unwrap(), "insert");
}

/// Since version 5.0, servers reply at once to a `getMore` with `maxTimeMS: 0`. Drivers send it if
/// the application does not want to wait for events.
#[tokio::test]
async fn a_get_more_with_a_max_time_ms_of_0_is_sent_unchanged_and_does_not_wait_in_slices() {
    let scene = AwaitingScene::start(8).await;
    let mut client = scene.client().await;
    let cursor = watch(&mut client, doc! {}).await;
    let nothing = client.command(DB, more(cursor, Some(0))).await.unwrap();
    assert!(batch(&nothing).is_empty());
    assert_eq!(scene.slices(), [0]);
}

/// After its `getMore`, the client sends more bytes than Seawall reads ahead. So Seawall does not
/// reach the end of the client's stream while the `getMore` runs.
#[tokio::test]
async fn a_wait_for_data_ends_if_its_client_sends_another_message_and_disconnects() {
    let scene = AwaitingScene::start(8).await;
    let mut client = scene.client().await;
    let cursor = watch(&mut client, doc! {}).await;
    let mut long = more(cursor, Some(600_000));
    long.insert("$db", DB);
    let documents = vec![doc! {"_id": "last", "pad": "x".repeat(5000)}];
    let insert = OpMsg::new(doc! {"insert": "things", "documents": documents, "$db": DB});
    let insert = insert.flags(MORE_TO_COME);
    let bytes = [OpMsg::new(long).to_bytes(), insert.to_bytes()].concat();
    client.send_bytes(&bytes).await.unwrap();
    drop(client);
    // Seawall serves the insert only after the `getMore` has ended.
    let client = scene.set.client().await.unwrap();
    let things = client.database(DB).collection::<Document>("things");
    let is_inserted = async || {
        let found = things.find_one(doc! {"_id": "last"}).await.unwrap();
        found.is_some()
    };
    eventually(LIMIT, is_inserted).await.unwrap();
}

#[tokio::test]
async fn get_mores_on_a_tailable_cursor_return_new_documents_and_fail_after_a_drop() {
    let scene = AwaitingScene::start(8).await;
    let client = scene.set.client().await.unwrap();
    let create = doc! {"create": "log", "capped": true, "size": 1 << 20};
    client.database(DB).run_command(create).await.unwrap();
    let log = client.database(DB).collection::<Document>("log");
    log.insert_one(doc! {"_id": 1}).await.unwrap();
    let mut reader = scene.client().await;
    let find = doc! {"find": "log", "tailable": true, "awaitData": true};
    let cursor = open(&mut reader, find).await;
    let more = doc! {"getMore": cursor, "collection": "log", "maxTimeMS": 1500};
    assert!(batch(&reader.command(DB, more.clone()).await.unwrap()).is_empty());
    log.insert_one(doc! {"_id": 2}).await.unwrap();
    assert_eq!(
        batch(&reader.command(DB, more.clone()).await.unwrap()),
        [doc! {"_id": 2}]
    );
    log.drop().await.unwrap();
    let ended = reader.command(DB, more).await.unwrap();
    assert!(!ended.is_ok(), "{ended:?}");
}

#[tokio::test]
async fn many_change_streams_do_not_block_other_operations() {
    const STREAMS: i32 = 50;
    let scene = Arc::new(AwaitingScene::start(8).await);
    let mut streams = JoinSet::new();
    for number in 0..STREAMS {
        let scene = Arc::clone(&scene);
        streams.spawn(async move {
            let mut client = scene.client().await;
            client.set_limit(LIMIT);
            let cursor = watch(&mut client, doc! {"fullDocument._id": number}).await;
            loop {
                let reply = client.command(DB, more(cursor, Some(5000))).await.unwrap();
                if let [event] = batch(&reply).as_slice() {
                    let document = event.get_document("fullDocument").unwrap();
                    return document.get_i32("_id").unwrap() == number;
                }
            }
        });
    }
    let awaiting = "seawall_awaiting_operations";
    let queued = ["state=\"queued\""];
    let all_wait = async || scene.seawall.metric(awaiting, &queued).await >= 40.0;
    eventually(LIMIT, all_wait).await.unwrap();
    // At most two of the eight pooled connections run waiting operations, so the finds can use the
    // other six.
    let mut client = scene.client().await;
    for n in 0..300 {
        let find = doc! {"find": "things", "filter": {"_id": n}};
        client.expect_ok(DB, find).await;
        let running = scene.seawall.metric(awaiting, &["state=\"running\""]).await;
        assert!(
            running <= 2.0,
            "expected at most 2 running awaiting operations, got {running}"
        );
    }
    for number in 0..STREAMS {
        scene.insert(doc! {"_id": number}).await;
    }
    let seen = timeout(LIMIT, streams.join_all()).await.unwrap();
    assert!(seen.into_iter().all(|own| own));
    assert_eq!(
        scene
            .seawall
            .metric("seawall_operations_shed_total", &[])
            .await,
        0.0
    );
}

/// A pool of four connections allows one operation at a time to wait for data. If the server fails,
/// an operation on a tailable cursor waits for `server_selection_timeout_ms`, and an operation on a
/// change stream waits for a second. The first operation must not delay the second one.
#[tokio::test]
async fn operations_that_wait_for_a_failed_server_do_not_keep_change_streams_waiting() {
    let toml = "pool.max_pool_size = 4\ndeployment.server_selection_timeout_ms = 600000\n";
    let scene = AwaitingScene::start_with(Options::default(), toml.to_owned()).await;
    let database = scene.set.client().await.unwrap().database(DB);
    let create = doc! {"create": "log", "capped": true, "size": 1 << 20};
    database.run_command(create).await.unwrap();
    let log = database.collection::<Document>("log");
    log.insert_one(doc! {"_id": 1}).await.unwrap();
    let (mut reader, mut watcher) = (scene.client().await, scene.client().await);
    let find = doc! {"find": "log", "tailable": true, "awaitData": true};
    let tail = open(&mut reader, find).await;
    let stream = watch(&mut watcher, doc! {}).await;
    scene.recorder.refuse(true);
    scene.recorder.cut_all(Cut::Reset);
    let is_cleared = async || scene.seawall.metric("seawall_pool_clears_total", &[]).await > 0.0;
    eventually(LIMIT, is_cleared).await.unwrap();
    let wait = doc! {"getMore": tail, "collection": "log", "maxTimeMS": 600_000, "$db": DB};
    reader.send(&OpMsg::new(wait)).await.unwrap();
    watcher.set_limit(LIMIT);
    let lost = watcher.command(DB, more(stream, None)).await.unwrap();
    assert_eq!(lost.code(), Some(43), "{lost:?}");
}

/// Seawall splits a wait for data into slices. Between two slices, other operations of the user
/// take all connections of this user.
#[tokio::test]
async fn a_wait_for_data_that_cannot_be_continued_ends_with_an_empty_reply() {
    let toml = "pool.max_pool_size = 4\npool.wait_queue_timeout_ms = 2000\n";
    let scene = AwaitingScene::start_with(Options::default(), toml.to_owned()).await;
    scene.insert(doc! {"_id": 1}).await;
    let mut watcher = scene.client().await;
    watcher.set_limit(LIMIT);
    let stream = watch(&mut watcher, doc! {}).await;
    let mut wait = more(stream, Some(600_000));
    wait.insert("$db", DB);
    watcher.send(&OpMsg::new(wait)).await.unwrap();
    eventually(LIMIT, async || scene.slices().len() > 1)
        .await
        .unwrap();
    let mut blocked = Vec::new();
    for _ in 0..4 {
        let mut client = scene.client().await;
        let endless = doc! {"$where": "sleep(600000) || true"};
        let find = doc! {"find": "things", "filter": endless, "$db": DB};
        client.send(&OpMsg::new(find)).await.unwrap();
        blocked.push(client);
    }
    let reply = watcher.read_reply().await.unwrap();
    assert!(batch(&reply).is_empty());
}

/// A pool of four connections allows one operation at a time to wait for data. The operation of the
/// first user gets no connection, so it must let the operation of the other user wait for data.
#[tokio::test]
async fn a_user_whose_connections_are_all_in_use_does_not_delay_change_streams_of_others() {
    let toml = "pool.max_pool_size = 4\npool.wait_queue_timeout_ms = 600000\n";
    let scene = AwaitingScene::start_with(Options::with_auth(), toml.to_owned()).await;
    let administrator = scene.set.administrator().await.unwrap();
    let users =
        ["busy", "other"].map(|name| NewUser::new("admin", name, "secret").role("readWrite", DB));
    let logged_in = async |user: &NewUser| {
        let mut client = scene.client().await;
        client.set_limit(LIMIT);
        let outcome = client.login(&user.login()).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
        client
    };
    for user in &users {
        create_user(&administrator, user).await.unwrap();
    }
    scene.insert(doc! {"_id": 1}).await;
    let (mut busy, mut other) = (logged_in(&users[0]).await, logged_in(&users[1]).await);
    let stream_of_busy = watch(&mut busy, doc! {}).await;
    let stream_of_other = watch(&mut other, doc! {}).await;
    let mut blocked = Vec::new();
    for _ in 0..4 {
        let mut client = logged_in(&users[0]).await;
        let endless = doc! {"$where": "sleep(600000) || true"};
        let find = doc! {"find": "things", "filter": endless, "$db": DB};
        client.send(&OpMsg::new(find)).await.unwrap();
        blocked.push(client);
    }
    let connections = "seawall_server_connections";
    let in_use = ["state=\"in_use\""];
    let all_in_use = async || scene.seawall.metric(connections, &in_use).await >= 4.0;
    eventually(LIMIT, all_in_use).await.unwrap();
    let mut wait = more(stream_of_busy, Some(600_000));
    wait.insert("$db", DB);
    busy.send(&OpMsg::new(wait)).await.unwrap();
    let waits = async || scene.seawall.metric("seawall_wait_queue_length", &[]).await >= 1.0;
    eventually(LIMIT, waits).await.unwrap();
    scene.insert(doc! {"_id": 2}).await;
    let reply = other.command(DB, more(stream_of_other, Some(600_000)));
    assert_eq!(batch(&reply.await.unwrap()).len(), 1);
}
