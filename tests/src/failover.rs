//! Failover under load. Writers (concurrent tasks) write documents and remember the acknowledged
//! writes, while a test kills primaries. Then the test checks the stored documents.

use std::{collections::BTreeSet, time::Duration};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::{Client, Collection, options::ReadPreference};
use serde::Deserialize;
use tokio::{sync::watch, task::JoinSet};

use crate::{eventually::eventually, mongod::ReplicaSet};

/// Time limit for writes to succeed again after a kill, and for the killed member to become a
/// secondary.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Number of concurrent tasks per client that write documents.
pub const WRITERS: usize = 3;

/// Number of operations that must succeed after a kill, before the killed member is restarted.
const PROGRESS: f64 = 50.0;

/// Default number of kills. `TEST_FAILOVERS` overrides it.
const KILLS: usize = 2;

/// Number of times that a test kills the primary.
pub fn kills() -> usize {
    let count = std::env::var("TEST_FAILOVERS").ok();
    count.map_or(KILLS, |count| {
        count.parse().expect("TEST_FAILOVERS is a number")
    })
}

/// The results of one client: the writes of all its concurrent tasks.
#[derive(Debug, Default, Deserialize)]
pub struct Written {
    /// Ids of the documents that were inserted, updated and read back.
    pub acknowledged: Vec<String>,
    /// Errors that an application would have seen.
    pub failed: Vec<String>,
}

/// Writes documents with the Rust driver, in [`WRITERS`] concurrent tasks, until `over` is true.
pub async fn write(
    client: &Client,
    database: &str,
    name: &str,
    over: watch::Receiver<bool>,
) -> Written {
    let things = client.database(database).collection("things");
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        writers.spawn(writer(
            things.clone(),
            format!("{name} {number}"),
            over.clone(),
        ));
    }
    let mut written = Written::default();
    for (acknowledged, outcome) in writers.join_all().await {
        written.acknowledged.extend(acknowledged);
        written.failed.extend(outcome.err());
    }
    written
}

/// Writes documents one after another: each is inserted, updated and read back.
async fn writer(
    things: Collection<Document>,
    name: String,
    mut over: watch::Receiver<bool>,
) -> (Vec<String>, Result<(), String>) {
    let mut acknowledged = Vec::new();
    while !*over.borrow_and_update() {
        let id = format!("{name} {}", acknowledged.len());
        if let Err(error) = write_one(&things, &id).await {
            return (acknowledged, Err(format!("{id}: {error}")));
        }
        acknowledged.push(id);
    }
    (acknowledged, Ok(()))
}

async fn write_one(things: &Collection<Document>, id: &str) -> Result<(), String> {
    let text_of = |error: mongodb::error::Error| error.to_string();
    let itself = doc! {"_id": id};
    things
        .insert_one(doc! {"_id": id, "n": 0})
        .await
        .map_err(text_of)?;
    let change = doc! {"$inc": {"n": 1}};
    let update = things
        .update_one(itself.clone(), change)
        .await
        .map_err(text_of)?;
    if update.matched_count != 1 {
        return Err(format!("expected one matched document: {update:?}"));
    }
    let read = things.find_one(itself).await.map_err(text_of)?;
    match read.as_ref().and_then(|read| read.get_i32("n").ok()) {
        Some(1) => Ok(()),
        _ => Err(format!("read {read:?}")),
    }
}

/// Kills the primary, waits until operations succeed on another primary, and restarts the killed
/// member. Returns when that member is a secondary. `progress` returns the number of operations
/// that have succeeded so far.
pub async fn fail_over(set: &mut ReplicaSet, progress: impl AsyncFn() -> f64) {
    let primary = set.primary().await.expect("there is a primary");
    let killed = primary.address();
    primary.kill().await.expect("the primary can be killed");
    let before = progress().await;
    let has_progress = async || progress().await > before + PROGRESS;
    eventually(LIMIT, has_progress)
        .await
        .expect("writes resume");
    let killed = set
        .member_at_mut(killed)
        .expect("the killed server is a member");
    killed.restart().await.expect("the killed member restarts");
    let is_back = async || set.secondaries().await.len() == 2;
    eventually(LIMIT, is_back)
        .await
        .expect("the killed member becomes a secondary");
}

/// Checks that the collection has exactly the acknowledged documents, and that each was updated
/// once.
///
/// # Panics
/// If a document is missing, superfluous or updated a wrong number of times.
pub async fn assert_stored(set: &ReplicaSet, database: &str, acknowledged: &BTreeSet<String>) {
    let direct = set.client().await.expect("the set accepts clients");
    let things = direct.database(database).collection::<Document>("things");
    let primary = ReadPreference::Primary;
    let stored = things.find(doc! {}).selection_criteria(primary.into());
    let stored: Vec<_> = stored
        .await
        .expect("the collection can be read")
        .try_collect()
        .await
        .expect("the cursor can be read to its end");
    let mut found = BTreeSet::new();
    for document in &stored {
        assert_eq!(document.get_i32("n").ok(), Some(1), "{document}");
        let id = document.get_str("_id").expect("the id is a string");
        assert!(found.insert(id.to_owned()), "{id} is stored twice");
    }
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let more: Vec<_> = found.difference(acknowledged).collect();
    assert!(more.is_empty(), "stored, but never acknowledged: {more:?}");
}
