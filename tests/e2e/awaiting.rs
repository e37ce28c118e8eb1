//! Operations that wait for an event. Seawall splits each wait into slices (a `getMore` of at most
//! one second each), and limits the number of connections that waiting operations use.

use std::{sync::Arc, time::Duration};

use mongodb::bson::{Document, doc};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ReplicaSet},
    raw::{OpMsg, RawClient, RawReply},
    recorder::Recorder,
    seawall::{self, Seawall},
};
use tokio::{task::JoinSet, time::timeout};

const LIMIT: Duration = Duration::from_secs(60);
const DB: &str = "awaiting";

struct Scene {
    set: ReplicaSet,
    recorder: Recorder,
    seawall: Seawall,
}

impl Scene {
    async fn start(max_pool_size: usize) -> Self {
        let set = ReplicaSet::start(1, Options::default()).await.unwrap();
        let client = set.client().await.unwrap();
        client
            .database(DB)
            .create_collection("things")
            .await
            .unwrap();
        let recorder = Recorder::start(set.members()[0].address()).await.unwrap();
        let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
        let options = seawall::Options {
            toml: format!("pool.max_pool_size = {max_pool_size}"),
            ..seawall::Options::default()
        };
        let seawall = Seawall::start_with(&uri, options).await;
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
    let reply = client.command(DB, command).await.unwrap();
    assert!(reply.is_ok(), "{reply:?}");
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
async fn a_get_more_with_a_long_max_time_ms_is_sent_as_several_short_ones_and_gets_one_reply() {
    let scene = Scene::start(8).await;
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

#[tokio::test]
async fn get_mores_on_a_tailable_cursor_wait_for_new_documents_until_the_cursor_ends() {
    let scene = Scene::start(8).await;
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
    let scene = Arc::new(Scene::start(8).await);
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
    // At most two of the eight pooled connections run waiting operations. The finds use the other
    // six connections.
    let mut client = scene.client().await;
    for n in 0..300 {
        let find = doc! {"find": "things", "filter": {"_id": n}};
        assert!(client.command(DB, find).await.unwrap().is_ok());
        let running = scene.seawall.metric(awaiting, &["state=\"running\""]).await;
        assert!(running <= 2.0, "{running} awaiting operations run");
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
