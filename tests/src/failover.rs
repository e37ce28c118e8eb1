//! Failing over under load: writers that remember what was acknowledged, killed primaries, and what must be there in the
//! end.

use std::{collections::BTreeSet, time::Duration};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::{Client, Collection, options::ReadPreference};
use serde::Deserialize;
use tokio::{sync::watch, task::JoinSet};

use crate::{eventually::eventually, mongod::ReplicaSet};

/// How long anything may take to go on.
pub const LIMIT: Duration = Duration::from_secs(90);

/// Writers in each client.
pub const WRITERS: usize = 3;

/// Operations that have to succeed after each kill before the next one.
const PROGRESS: f64 = 50.0;

/// Kills, unless `SEAWALL_FAILOVERS` says how many.
const KILLS: usize = 2;

/// How often the primary is killed.
pub fn kills() -> usize {
    let count = std::env::var("SEAWALL_FAILOVERS").ok();
    count.map_or(KILLS, |count| count.parse().expect("it is a number"))
}

/// What a client's writers came to.
#[derive(Debug, Default, Deserialize)]
pub struct Written {
    /// Identifiers of the documents that were inserted, changed and read back.
    pub acknowledged: Vec<String>,
    /// Errors that an application would have seen.
    pub failed: Vec<String>,
}

/// The Rust driver's writers, until told to stop.
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

/// Inserts, changes and reads back.
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
    let told = |error: mongodb::error::Error| error.to_string();
    let itself = doc! {"_id": id};
    things
        .insert_one(doc! {"_id": id, "n": 0})
        .await
        .map_err(told)?;
    let change = doc! {"$inc": {"n": 1}};
    let update = things
        .update_one(itself.clone(), change)
        .await
        .map_err(told)?;
    if update.matched_count != 1 {
        return Err(format!("{update:?}"));
    }
    let read = things.find_one(itself).await.map_err(told)?;
    match read.as_ref().and_then(|read| read.get_i32("n").ok()) {
        Some(1) => Ok(()),
        _ => Err(format!("read {read:?}")),
    }
}

/// Kills the primary, waits until `progress`, which counts operations, has gone on under another, and brings the old one
/// back.
pub async fn fail_over(set: &mut ReplicaSet, progress: impl AsyncFn() -> f64) {
    let primary = set.primary().await.expect("there is a primary");
    let killed = primary.address();
    primary.kill().await.expect("it can be killed");
    let before = progress().await;
    let goes_on = async || progress().await > before + PROGRESS;
    eventually(LIMIT, goes_on).await.expect("writes go on");
    let killed = set.member_at_mut(killed).expect("it is a member");
    killed.restart().await.expect("it starts again");
    let is_back = async || set.secondaries().await.len() == 2;
    eventually(LIMIT, is_back).await.expect("it is a secondary");
}

/// Whether all that was acknowledged is there, once, changed once, and nothing else.
///
/// # Panics
/// If it is not.
pub async fn assert_stored(set: &ReplicaSet, database: &str, acknowledged: &BTreeSet<String>) {
    let direct = set.client().await.expect("the set is well");
    let things = direct.database(database).collection::<Document>("things");
    let primary = ReadPreference::Primary;
    let stored = things.find(doc! {}).selection_criteria(primary.into());
    let stored: Vec<_> = stored
        .await
        .expect("it is read")
        .try_collect()
        .await
        .expect("to the end");
    let mut found = BTreeSet::new();
    for document in &stored {
        assert_eq!(document.get_i32("n").ok(), Some(1), "{document}");
        let id = document.get_str("_id").expect("it is text");
        assert!(found.insert(id.to_owned()), "{id} twice");
    }
    let lost: Vec<_> = acknowledged.difference(&found).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    let more: Vec<_> = found.difference(acknowledged).collect();
    assert!(more.is_empty(), "never acknowledged, and there: {more:?}");
}
