//! Ending reads that nobody waits for any more.
//!
//! A server goes on with an operation whose client has left for as long as the connection is there, and ours
//! stays. Any user may see and end its own operations, so that a connection of the same user, which is in no
//! pool and has no place in its bounds (the pool may be full of just such reads), finds them by their
//! connections' numbers and ends them. One such connection a server at a time.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

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

/// What is to be ended at one server.
#[derive(Debug, Default)]
pub(super) struct Ending {
    batches: HashMap<IdentityId, Batch>,
    is_running: bool,
}

impl ServerPool {
    /// Ends the read that runs on a checked-out connection of `identity`, unless the request is dropped before.
    pub fn end_read(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        server_connection_id: i64,
    ) -> EndRequest {
        let request = Arc::new(());
        let mut ending = self.ending.lock();
        let batch = ending
            .batches
            .entry(identity.id())
            .or_insert_with(|| Batch {
                identity: Arc::clone(identity),
                reads: Vec::new(),
            });
        batch
            .reads
            .push((server_connection_id, Arc::downgrade(&request)));
        let has_to_start = !std::mem::replace(&mut ending.is_running, true);
        drop(ending);
        if has_to_start {
            let me = Arc::clone(self);
            self.runtime.spawn(async move {
                while let Some(batch) = me.next_batch() {
                    if let Err(error) = me.end_all(&batch).await {
                        tracing::warn!(server = %me.address, %error, "abandoned reads not ended");
                    }
                }
            });
        }
        EndRequest(request)
    }

    fn next_batch(&self) -> Option<Batch> {
        let mut ending = self.ending.lock();
        let next = ending.batches.keys().next().copied();
        let batch = next.and_then(|user| ending.batches.remove(&user));
        ending.is_running = batch.is_some();
        batch
    }

    async fn end_all(&self, batch: &Batch) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if batch
            .reads
            .iter()
            .all(|(_, request)| request.strong_count() == 0)
        {
            return Ok(());
        }
        let mut connection = self
            .connector
            .establish(&self.address, &batch.identity, &self.metrics)
            .await?;
        for (read, operation) in running(&mut connection, batch).await? {
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
