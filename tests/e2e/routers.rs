//! Several routers: what has begun on one stays there, and one that is slow or leaves is left in peace.

use std::{sync::Arc, time::Duration};

use mongodb::{
    Client,
    bson::{Document, doc},
};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ReplicaSet},
    raw::{RawClient, RawReply},
    recorder::Recorder,
    seawall::{self, Seawall},
};
use tokio::{sync::Notify, task::JoinSet, time::timeout};

const LIMIT: Duration = Duration::from_secs(60);

async fn connect(seawall: &Seawall) -> RawClient {
    let address = seawall.address().parse().unwrap();
    RawClient::connect(address).await.unwrap()
}

/// Two Seawalls, each in front of a set of its own, are the routers of a third.
struct Sharded {
    sets: [ReplicaSet; 2],
    routers: [Seawall; 2],
    recorders: [Recorder; 2],
    seawall: Seawall,
}

const DOCUMENTS: usize = 30;

/// Whichever answers faster, both are within the window.
const BOTH_ROUTERS: &str = "deployment.local_threshold_ms = 60000";

impl Sharded {
    async fn start(toml: &str) -> Self {
        let set = async || {
            let set = ReplicaSet::start(1, Options::default()).await.unwrap();
            let things = set
                .client()
                .await
                .unwrap()
                .database("sharded")
                .collection::<Document>("things");
            things
                .insert_many((0..30).map(|n| doc! {"_id": n}))
                .await
                .unwrap();
            set
        };
        let sets = [set().await, set().await];
        let routers = [
            Seawall::start(&sets[0].uri()).await,
            Seawall::start(&sets[1].uri()).await,
        ];
        let recorder = async |router: &Seawall| {
            Recorder::start(router.address().parse().unwrap())
                .await
                .unwrap()
        };
        let recorders = [recorder(&routers[0]).await, recorder(&routers[1]).await];
        let uri = format!(
            "mongodb://{},{}/",
            recorders[0].address(),
            recorders[1].address()
        );
        let options = seawall::Options {
            toml: toml.to_owned(),
            ..seawall::Options::default()
        };
        let seawall = Seawall::start_with(&uri, options).await;
        let both = async || {
            let topology = seawall.api("/api/v1/topology").await;
            let servers = topology["servers"].as_array().unwrap().clone();
            topology["type"] == "Sharded" && servers.iter().all(|s| s["type"] == "Mongos")
        };
        eventually(LIMIT, both).await.unwrap();
        Self {
            sets,
            routers,
            recorders,
            seawall,
        }
    }

    async fn served(&self, router: usize) -> f64 {
        let command = &["command=\"find\""];
        self.routers[router]
            .metric("seawall_operations_total", command)
            .await
    }
}

#[tokio::test]
async fn cursors_stay_with_their_router() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    let hello = connect(&sharded.seawall)
        .await
        .hello(doc! {})
        .await
        .unwrap();
    assert_eq!(hello.body.get_str("msg").unwrap(), "isdbgrid");
    let mut clients = [
        connect(&sharded.seawall).await,
        connect(&sharded.seawall).await,
    ];
    let mut cursors = Vec::new();
    for n in 0..300 {
        let find = doc! {"find": "things", "batchSize": 10};
        let reply = clients[n % 2].command("sharded", find).await.unwrap();
        cursors.push(reply.cursor_id().filter(|id| *id != 0).unwrap());
    }
    for (n, cursor) in cursors.into_iter().enumerate() {
        let mut seen = 10;
        let mut next = cursor;
        while next != 0 {
            let more = doc! {"getMore": next, "collection": "things", "batchSize": 10};
            let reply = clients[(n + 1) % 2].command("sharded", more).await.unwrap();
            assert!(reply.is_ok(), "{reply:?}");
            let cursor = reply.body.get_document("cursor").unwrap();
            seen += cursor.get_array("nextBatch").unwrap().len();
            next = reply.cursor_id().unwrap();
        }
        assert_eq!(seen, DOCUMENTS);
    }
    for router in 0..2 {
        assert!(
            sharded.served(router).await >= 50.0,
            "router {router} had its share"
        );
    }
}

#[tokio::test]
async fn cursors_of_several_routers_are_killed_in_one_command() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    let mut client = connect(&sharded.seawall).await;
    let mut cursors = vec![4711];
    for _ in 0..40 {
        let find = doc! {"find": "things", "batchSize": 10};
        let reply = client.command("sharded", find).await.unwrap();
        cursors.push(reply.cursor_id().filter(|id| *id != 0).unwrap());
    }
    for router in 0..2 {
        let share = sharded.served(router).await;
        assert!(share > 0.0, "router {router} had its share");
    }
    let kill = doc! {"killCursors": "things", "cursors": cursors.clone()};
    let killed = client.command("sharded", kill.clone()).await.unwrap();
    assert!(killed.is_ok(), "{killed:?}");
    let list = |reply: &RawReply, name: &str| reply.body.get_array(name).unwrap().len();
    assert_eq!(list(&killed, "cursorsKilled"), 40, "{killed:?}");
    assert_eq!(list(&killed, "cursorsNotFound"), 1, "{killed:?}");
    let again = client.command("sharded", kill).await.unwrap();
    assert_eq!(list(&again, "cursorsNotFound"), 41, "{again:?}");
    let more = doc! {"getMore": cursors[1], "collection": "things"};
    let gone = client.command("sharded", more).await.unwrap();
    assert_eq!(gone.code(), Some(43), "{gone:?}");
}

#[tokio::test]
async fn transactions_stay_with_their_router() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    // The collection has to be on both sets: a transaction here is no place to make it.
    for set in &sharded.sets {
        let db = set.client().await.unwrap().database("sharded");
        db.create_collection("moved").await.unwrap();
    }
    let client = Client::with_uri_str(sharded.seawall.uri()).await.unwrap();
    let moved = client.database("sharded").collection::<Document>("moved");
    let mut sessions = Vec::new();
    for n in 0..100 {
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let insert = moved.insert_one(doc! {"_id": n, "part": 0});
        insert.session(&mut session).await.unwrap();
        sessions.push((n, session));
    }
    // All are open at once.
    for (n, session) in &mut sessions {
        let update = moved.update_one(doc! {"_id": *n}, doc! {"$inc": {"part": 1}});
        let updated = update.session(&mut *session).await.unwrap();
        assert_eq!(updated.modified_count, 1);
        session.commit_transaction().await.unwrap();
    }
    let mut counts = Vec::new();
    for set in &sharded.sets {
        let db = set.client().await.unwrap().database("sharded");
        let moved = db.collection::<Document>("moved");
        let whole = moved.count_documents(doc! {"part": 1});
        counts.push(whole.await.unwrap());
    }
    assert_eq!(counts.iter().sum::<u64>(), 100, "{counts:?}");
    assert!(counts.iter().all(|count| *count > 10), "{counts:?}");
}

#[tokio::test]
async fn only_routers_within_the_latency_window_are_used() {
    let sharded = Sharded::start("deployment.heartbeat_frequency_ms = 500").await;
    sharded.recorders[1].delay(Duration::from_millis(150));
    let is_far = async || {
        let topology = sharded.seawall.api("/api/v1/topology").await;
        let far = sharded.recorders[1].address().to_string();
        let servers = topology["servers"].as_array().unwrap().clone();
        let far = servers
            .into_iter()
            .find(|server| server["address"] == *far)
            .unwrap();
        far["round_trip_ms"]
            .as_f64()
            .is_some_and(|time| time > 100.0)
    };
    eventually(LIMIT, is_far).await.unwrap();
    let before = sharded.served(1).await;
    let mut client = connect(&sharded.seawall).await;
    for _ in 0..50 {
        let found = client
            .command("sharded", doc! {"find": "things"})
            .await
            .unwrap();
        assert!(found.is_ok(), "{found:?}");
    }
    assert!((sharded.served(1).await - before).abs() < f64::EPSILON);
    assert!(sharded.served(0).await >= 50.0);
}

#[tokio::test]
async fn a_slow_router_gets_little_of_the_reads() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    sharded.recorders[1].delay(Duration::from_millis(20));
    let before = [sharded.served(0).await, sharded.served(1).await];
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let mut client = connect(&sharded.seawall).await;
        clients.spawn(async move {
            for n in 0..250 {
                let find = doc! {"find": "things", "filter": {"_id": n % 30}};
                let found = client.command("sharded", find).await.unwrap();
                assert!(found.is_ok(), "{found:?}");
            }
        });
    }
    clients.join_all().await;
    let fast = sharded.served(0).await - before[0];
    let slow = sharded.served(1).await - before[1];
    assert!((fast + slow - 2000.0).abs() < f64::EPSILON, "{fast} {slow}");
    assert!(slow * 5.0 < fast + slow, "{fast} {slow}");
    // It is not forgotten either.
    assert!(slow > 0.0, "{fast} {slow}");
}

#[tokio::test]
async fn a_router_that_drains_is_left_without_an_error() {
    let sharded = Sharded::start("deployment.heartbeat_frequency_ms = 500").await;
    let mut client = connect(&sharded.seawall).await;
    let find = doc! {"find": "things"};
    let drained = Arc::new(Notify::new());
    let leaving = async {
        sharded.routers[0].app.drain(drained.notified()).await;
    };
    let working = async {
        let left = async || {
            let topology = sharded.seawall.api("/api/v1/topology").await;
            let servers = topology["servers"].as_array().unwrap().clone();
            servers.iter().any(|server| server["type"] == "Unknown")
        };
        let mut served = 0;
        while !left().await || served < 100 {
            let found = client.command("sharded", find.clone()).await.unwrap();
            assert!(found.is_ok(), "{found:?}");
            served += 1;
        }
        drained.notify_one();
        for _ in 0..100 {
            let found = client.command("sharded", find.clone()).await.unwrap();
            assert!(found.is_ok(), "{found:?}");
        }
    };
    timeout(LIMIT, async { tokio::join!(leaving, working) })
        .await
        .unwrap();
}
