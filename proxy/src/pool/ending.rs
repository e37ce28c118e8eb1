//! Ending reads that nobody waits for any more.
//!
//! A server goes on with an operation whose client has left for as long as the connection is there, and ours
//! stays. Any user may see and end its own operations, so that a connection of the same user, which is in no
//! pool and has no place in its bounds (the pool may be full of just such reads), finds them by their
//! connections' numbers and ends them. One such connection a server at a time, kept for a while: a server slow enough
//! for clients to leave must not be asked for a login whenever one does.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::ServerPool;
use crate::{
    auth::{Identity, IdentityId},
    connection::{Connection, ControlError},
};

/// Asks for a read to be ended; withdrawn when dropped.
#[derive(Debug)]
#[must_use]
pub struct EndRequest(#[expect(dead_code, reason = "held for its drop")] Arc<()>);

/// One user's reads to be ended, by the server's numbers of their connections.
#[derive(Debug)]
struct Batch {
    identity: Arc<Identity>,
    reads: Vec<(i64, Weak<()>)>,
}

impl Batch {
    /// Whether any of them still runs, as far as is known here.
    fn is_wanted(&self) -> bool {
        let mut requests = self.reads.iter().map(|(_, request)| request);
        requests.any(|request| request.strong_count() > 0)
    }
}

/// How long the connection is kept without use.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// From one login to the next, where the reads of several users are to be ended; they are gathered meanwhile.
const LOGIN_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be ended at one server.
#[derive(Debug, Default)]
pub(super) struct Ending {
    queue: Mutex<Queue>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    batches: HashMap<IdentityId, Batch>,
    is_running: bool,
    is_closed: bool,
}

impl Ending {
    /// Whether somebody has to begin with it.
    fn ask(&self, identity: &Arc<Identity>, read: (i64, Weak<()>)) -> bool {
        let mut queue = self.queue.lock();
        let batch = queue.batches.entry(identity.id());
        let batch = batch.or_insert_with(|| Batch {
            identity: Arc::clone(identity),
            reads: Vec::new(),
        });
        batch.reads.push(read);
        self.asked.notify_one();
        !std::mem::replace(&mut queue.is_running, true)
    }

    /// The next reads, of this user first.
    fn next(&self, first: Option<IdentityId>) -> Option<Batch> {
        let batches = &mut self.queue.lock().batches;
        let first = first.filter(|user| batches.contains_key(user));
        let next = first.or_else(|| batches.keys().next().copied())?;
        batches.remove(&next)
    }

    /// Whether more may be asked for soon; otherwise whoever asks next has to begin anew.
    async fn is_asked_again(&self) -> bool {
        let is_closed = self.queue.lock().is_closed;
        let is_asked = !is_closed && timeout(KEPT_FOR, self.asked.notified()).await.is_ok();
        let mut queue = self.queue.lock();
        queue.is_running = is_asked || !queue.batches.is_empty();
        queue.is_running
    }

    /// No connection is kept from now on.
    pub(super) fn close(&self) {
        self.queue.lock().is_closed = true;
        self.asked.notify_one();
    }
}

/// The connection, and when another login may be begun.
struct Kept {
    connection: Option<(IdentityId, Connection)>,
    next_login: Instant,
}

impl ServerPool {
    /// Ends the read that runs on a checked-out connection of `identity`, unless the request is dropped before.
    pub fn end_read(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        server_connection_id: i64,
    ) -> EndRequest {
        let request = Arc::new(());
        let read = (server_connection_id, Arc::downgrade(&request));
        if self.ending.ask(identity, read) {
            self.runtime.spawn(Arc::clone(self).end_reads());
        }
        EndRequest(request)
    }

    async fn end_reads(self: Arc<Self>) {
        let mut kept = Kept {
            connection: None,
            next_login: Instant::now(),
        };
        loop {
            let user = kept.connection.as_ref().map(|(user, _)| *user);
            if let Some(batch) = self.ending.next(user) {
                if let Err(error) = self.end_all(&batch, &mut kept).await {
                    tracing::warn!(server = %self.address, %error, "abandoned reads not ended");
                }
            } else if !self.ending.is_asked_again().await {
                return;
            }
        }
    }

    async fn end_all(
        &self,
        batch: &Batch,
        kept: &mut Kept,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let user = batch.identity.id();
        let own = kept.connection.take().filter(|(owner, _)| *owner == user);
        let usable = own.and_then(|(_, mut own)| (!own.stream.has_ended()).then_some(own));
        let mut connection = match usable {
            Some(connection) => connection,
            None => {
                let turn = self.pace.lock().turn(Instant::now());
                sleep_until(turn.max(kept.next_login)).await;
                if !batch.is_wanted() {
                    return Ok(());
                }
                kept.next_login = Instant::now() + LOGIN_INTERVAL;
                self.connector
                    .establish(&self.address, &batch.identity, &self.metrics)
                    .await?
            }
        };
        self.end_on(&mut connection, batch).await?;
        kept.connection = Some((user, connection));
        Ok(())
    }

    async fn end_on(&self, connection: &mut Connection, batch: &Batch) -> Result<(), ControlError> {
        if !batch.is_wanted() {
            return Ok(());
        }
        for (read, operation) in running(connection, batch).await? {
            let mut requests = batch.reads.iter().filter(|(id, _)| *id == read);
            // Its connection has been in use all the time since it was asked for, so that what was seen to run
            // there is the read itself and not another client's operation after it.
            if requests.any(|(_, request)| request.strong_count() > 0) {
                let kill = rawdoc! { "killOp": 1, "op": operation, "$db": "admin" };
                connection.run(&kill).await?;
                self.metrics.operation_ended();
            }
        }
        Ok(())
    }
}

/// The operations that run on a batch's connections, with their connections.
async fn running(
    connection: &mut Connection,
    batch: &Batch,
) -> Result<Vec<(i64, RawBson)>, ControlError> {
    let mut ids = RawArrayBuf::new();
    batch.reads.iter().for_each(|(id, _)| ids.push(*id));
    let command = rawdoc! {
        "aggregate": 1,
        "pipeline": [
            // A router would otherwise name the operations of its shards.
            { "$currentOp": { "allUsers": false, "localOps": true } },
            { "$match": { "connectionId": { "$in": ids }, "active": true } },
            { "$project": { "opid": 1, "connectionId": 1 } },
        ],
        "cursor": { "batchSize": i32::MAX },
        "$db": "admin",
    };
    let reply = connection.run(&command).await?;
    Ok(operations(&reply).unwrap_or_default())
}

fn operations(reply: &RawDocumentBuf) -> Option<Vec<(i64, RawBson)>> {
    let cursor = reply.get_document("cursor").ok()?;
    let rows = cursor.get_array("firstBatch").ok()?.into_iter();
    let operation = |row: RawBsonRef<'_>| {
        let row: &RawDocument = row.as_document()?;
        let connection = match row.get("connectionId").ok()?? {
            RawBsonRef::Int32(id) => i64::from(id),
            RawBsonRef::Int64(id) => id,
            _ => return None,
        };
        Some((connection, RawBson::from(row.get("opid").ok()??)))
    };
    Some(rows.filter_map(|row| operation(row.ok()?)).collect())
}
