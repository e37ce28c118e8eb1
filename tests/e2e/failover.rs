//! The primary is killed under load, again and again: nothing acknowledged is lost, and no application notices.

use std::{collections::BTreeSet, time::Duration};

use futures_util::TryStreamExt;
use mongodb::{
    Client, Collection,
    bson::{Document, doc},
    change_stream::{
        ChangeStream,
        event::{ChangeStreamEvent, OperationType},
    },
    options::{ClientOptions, Credential, ReadPreference, WriteConcern},
};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ROOT, ROOT_PASSWORD, ReplicaSet},
    seawall::Seawall,
};
use tokio::{sync::watch, task::JoinSet, time::timeout};

const LIMIT: Duration = Duration::from_secs(90);

/// Kills in `cargo test`; the full count is `SEAWALL_FAILOVERS=10`.
const KILLS: usize = 2;

const DRIVERS: usize = 4;
const WRITERS_A_DRIVER: usize = 3;

fn kills() -> usize {
    let count = std::env::var("SEAWALL_FAILOVERS").ok();
    count.map_or(KILLS, |count| count.parse().unwrap())
}

async fn driver(uri: &str) -> Client {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    let credential = Credential::builder().username(ROOT.to_owned());
    options.credential = Some(credential.password(ROOT_PASSWORD.to_owned()).build());
    options.write_concern = Some(WriteConcern::majority());
    Client::with_options(options).unwrap()
}

/// Inserts, changes and reads back until told to stop, and gives what was acknowledged. Every error is one that
/// an application would have seen.
async fn write(
    things: Collection<Document>,
    name: String,
    mut over: watch::Receiver<bool>,
) -> Result<Vec<String>, String> {
    let mut acknowledged = Vec::new();
    while !*over.borrow_and_update() {
        let id = format!("{name} {}", acknowledged.len());
        let insert = things.insert_one(doc! {"_id": &id, "n": 0}).await;
        insert.map_err(|error| format!("insert {id}: {error}"))?;
        let change = doc! {"$inc": {"n": 1}};
        let update = things.update_one(doc! {"_id": &id}, change).await;
        let update = update.map_err(|error| format!("update {id}: {error}"))?;
        if update.matched_count != 1 {
            return Err(format!("update {id}: {update:?}"));
        }
        let read = things.find_one(doc! {"_id": &id}).await;
        let read = read.map_err(|error| format!("find {id}: {error}"))?;
        if read.as_ref().and_then(|read| read.get_i32("n").ok()) != Some(1) {
            return Err(format!("find {id}: {read:?}"));
        }
        acknowledged.push(id);
    }
    Ok(acknowledged)
}

/// Follows a change stream until it has seen all of these inserts, in whatever order their primaries had them.
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
            return Err(format!("change stream: {id} twice"));
        }
    }
}

/// Kills the primary, waits for another, and brings the old one back.
async fn fail_over(set: &mut ReplicaSet, progress: impl AsyncFn() -> f64) {
    let killed = set.primary().await.unwrap().address();
    set.member_at(killed).unwrap().kill().await.unwrap();
    let before = progress().await;
    let goes_on = async || progress().await > before + 50.0;
    eventually(LIMIT, goes_on).await.unwrap();
    let killed = set.member_at_mut(killed).unwrap();
    killed.restart().await.unwrap();
    let is_back = async || set.secondaries().await.len() == 2;
    eventually(LIMIT, is_back).await.unwrap();
}

#[tokio::test]
async fn a_killed_primary_loses_no_write_and_fails_no_operation() {
    let mut set = ReplicaSet::start(3, Options::with_auth()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let follower = driver(&seawall.uri()).await;
    let things = follower
        .database("failover")
        .collection::<Document>("things");
    let (tell, wanted) = watch::channel(None);
    let following = tokio::spawn(follow(things.watch().await.unwrap(), wanted));
    let (stop, over) = watch::channel(false);
    let mut writers = JoinSet::new();
    // Kept to the end: a driver that is dropped closes its connections itself.
    let mut drivers = vec![follower];
    for number in 0..DRIVERS {
        let client = driver(&seawall.uri()).await;
        let things = client.database("failover").collection::<Document>("things");
        for writer in 0..WRITERS_A_DRIVER {
            let name = format!("{number}-{writer}");
            writers.spawn(write(things.clone(), name, over.clone()));
        }
        drivers.push(client);
    }
    let inserts = async || {
        let command = ["command=\"insert\"", "outcome=\"ok\""];
        seawall.metric("seawall_operations_total", &command).await
    };
    eventually(LIMIT, async || inserts().await > 100.0)
        .await
        .unwrap();
    for _ in 0..kills() {
        fail_over(&mut set, &inserts).await;
    }
    stop.send_replace(true);
    let outcomes = timeout(LIMIT, writers.join_all()).await.unwrap();
    let mut acknowledged = BTreeSet::new();
    for outcome in outcomes {
        acknowledged.extend(outcome.unwrap());
    }
    tell.send_replace(Some(acknowledged.clone()));
    let followed = timeout(LIMIT, following).await.unwrap();
    followed.unwrap().unwrap();
    let direct = set.client().await.unwrap();
    let things = direct.database("failover").collection::<Document>("things");
    let stored = things
        .find(doc! {})
        .selection_criteria(ReadPreference::Primary.into());
    let stored: Vec<_> = stored.await.unwrap().try_collect().await.unwrap();
    let mut once = BTreeSet::new();
    for document in &stored {
        let id = document.get_str("_id").unwrap().to_owned();
        assert_eq!(document.get_i32("n").ok(), Some(1), "{document}");
        once.insert(id);
    }
    let lost: Vec<_> = acknowledged.difference(&once).collect();
    assert!(lost.is_empty(), "{lost:?}");
    assert_eq!(
        once.len(),
        acknowledged.len(),
        "what was not acknowledged is there"
    );
    // Every connection that ever came is there still.
    let opened = seawall
        .metric("seawall_client_connections_total", &[])
        .await;
    let connected = seawall.metric("seawall_client_connections", &[]).await;
    assert!(
        (opened - connected).abs() < f64::EPSILON,
        "{opened} {connected}"
    );
}
