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
    connection::{Connection, Generation},
};

/// How long the connection is kept without use, and in all.
const KEPT_FOR: Duration = Duration::from_secs(10);
const KEPT_AT_MOST: Duration = Duration::from_secs(60);

/// From one login to the next, where the reads of several users are to be ended; they are gathered meanwhile.
const LOGIN_INTERVAL: Duration = Duration::from_secs(1);

/// How long an answer is waited for.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Asks for a read to be ended; withdrawn when dropped.
#[derive(Debug)]
#[must_use]
pub struct EndRequest(Arc<Notify>);

impl EndRequest {
    /// Ready if it cannot be done: its connection is stale, and who may have its number now is unknown. Closing it tells
    /// its server, if that is there still.
    pub async fn is_refused(&self) {
        self.0.notified().await;
    }
}

/// Why reads were not ended: no login, no answer in time, or a broken stream.
type EndError = Box<dyn std::error::Error + Send + Sync>;

/// A read to be ended, by the server's number of its connection.
#[derive(Debug)]
struct Read {
    connection: i64,
    /// Numbers are given anew by another process, at the same address too.
    generation: Generation,
    request: Weak<Notify>,
}

impl Read {
    fn to_end(connection: i64, generation: Generation) -> (Self, EndRequest) {
        let request = Arc::default();
        let read = Self {
            connection,
            generation,
            request: Arc::downgrade(&request),
        };
        (read, EndRequest(request))
    }

    fn is_wanted(&self) -> bool {
        self.request.strong_count() > 0
    }

    fn refuse(&self) {
        if let Some(request) = self.request.upgrade() {
            request.notify_one();
        }
    }
}

/// One user's reads to be ended.
#[derive(Debug)]
struct Batch {
    identity: Arc<Identity>,
    since: Instant,
    reads: Vec<Read>,
}

impl Batch {
    /// Lets go of what has ended by itself; whether something is left.
    fn is_wanted(&mut self) -> bool {
        self.reads.retain(Read::is_wanted);
        !self.reads.is_empty()
    }

    /// Lets go of what was begun in another generation than this one, and says so.
    fn refuse_others(&mut self, generation: Generation) {
        let is_other = |read: &mut Read| read.generation != generation;
        let others = self.reads.extract_if(.., is_other);
        others.for_each(|read| read.refuse());
    }
}

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
    fn ask(&self, identity: &Arc<Identity>, read: Read) -> bool {
        let mut queue = self.queue.lock();
        if queue.is_closed {
            read.refuse();
            return false;
        }
        let batch = queue.batches.entry(identity.id());
        let batch = batch.or_insert_with(|| Batch {
            identity: Arc::clone(identity),
            since: Instant::now(),
            reads: Vec::new(),
        });
        if batch.reads.len() == batch.reads.capacity() {
            batch.reads.retain(Read::is_wanted);
        }
        batch.reads.push(read);
        self.asked.notify_one();
        !std::mem::replace(&mut queue.is_running, true)
    }

    /// The next reads: of this user if there are any, else those that have waited longest.
    fn next(&self, first: Option<IdentityId>) -> Option<Batch> {
        let batches = &mut self.queue.lock().batches;
        let oldest = batches.iter().min_by_key(|(_, batch)| batch.since);
        let oldest = oldest.map(|(user, _)| *user)?;
        let first = first.filter(|user| batches.contains_key(user));
        batches.remove(&first.unwrap_or(oldest))
    }

    /// Whether more may be asked for soon; otherwise whoever asks next has to begin anew.
    async fn is_asked_again(&self) -> bool {
        let is_closed = self.queue.lock().is_closed;
        let is_asked = !is_closed && timeout(KEPT_FOR, self.asked.notified()).await.is_ok();
        let mut queue = self.queue.lock();
        queue.is_running = is_asked || !queue.batches.is_empty();
        queue.is_running
    }

    /// Nothing is ended any more: what is in use is closed when it is given back, and that ends it too.
    pub(super) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.is_closed = true;
        let reads = queue.batches.drain().flat_map(|(_, batch)| batch.reads);
        reads.for_each(|read| read.refuse());
        self.asked.notify_one();
    }
}

/// The connection that is kept.
struct Kept {
    user: IdentityId,
    connection: Connection,
}

/// Who ends reads at one server, as long as there are any.
struct Ender<'a> {
    pool: &'a ServerPool,
    kept: Option<Kept>,
    next_login: Instant,
}

impl ServerPool {
    /// Ends the read that runs on a checked-out connection of `identity`, made in `generation`, unless the request is
    /// dropped before.
    pub fn end_read(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        generation: Generation,
        server_connection_id: i64,
    ) -> EndRequest {
        let (read, request) = Read::to_end(server_connection_id, generation);
        if self.ending.ask(identity, read) {
            self.runtime.spawn(Arc::clone(self).end_reads());
        }
        request
    }

    async fn end_reads(self: Arc<Self>) {
        let mut ender = Ender {
            pool: &self,
            kept: None,
            next_login: Instant::now(),
        };
        loop {
            if let Some(batch) = self.ending.next(ender.first()) {
                if let Err(error) = ender.end(batch).await {
                    tracing::warn!(server = %self.address, %error, "abandoned reads not ended");
                }
            } else if !self.ending.is_asked_again().await {
                return;
            }
        }
    }
}

impl Ender<'_> {
    /// Whose reads need no login, while there may be none.
    fn first(&self) -> Option<IdentityId> {
        let has_to_wait = Instant::now() < self.next_login;
        self.kept
            .as_ref()
            .filter(|_| has_to_wait)
            .map(|kept| kept.user)
    }

    async fn end(&mut self, mut batch: Batch) -> Result<(), EndError> {
        if !batch.is_wanted() {
            return Ok(());
        }
        if let Some(mut kept) = self.usable(batch.identity.id()) {
            match self.end_on(&mut kept.connection, &mut batch).await {
                Ok(()) => {
                    self.kept = Some(kept);
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(server = %self.pool.address, %error, "kept connection ended");
                }
            }
        }
        let turn = self.pool.pace.lock().turn(Instant::now());
        sleep_until(turn.max(self.next_login)).await;
        if !batch.is_wanted() {
            return Ok(());
        }
        let mut connection = self.log_in(&batch.identity).await?;
        self.end_on(&mut connection, &mut batch).await?;
        self.kept = Some(Kept {
            user: batch.identity.id(),
            connection,
        });
        Ok(())
    }

    /// The connection, if it is this user's. What is not fit for use any more is closed.
    fn usable(&mut self, user: IdentityId) -> Option<Kept> {
        let mut kept = self.kept.take_if(|kept| kept.user == user)?;
        let is_fit = kept.connection.generation == self.pool.generation()
            && kept.connection.created_at.elapsed() < KEPT_AT_MOST
            && !kept.connection.stream.has_ended();
        is_fit.then_some(kept)
    }

    async fn log_in(&mut self, identity: &Arc<Identity>) -> Result<Connection, EndError> {
        self.kept = None;
        self.next_login = Instant::now() + LOGIN_INTERVAL;
        // What fails from now on is of a generation to come.
        let generation = self.pool.generation();
        let ServerPool {
            connector,
            address,
            metrics,
            ..
        } = self.pool;
        let mut connection = connector.establish(address, identity, metrics).await?;
        connection.generation = generation;
        Ok(connection)
    }

    async fn end_on(&self, connection: &mut Connection, batch: &mut Batch) -> Result<(), EndError> {
        batch.refuse_others(connection.generation);
        if batch.reads.is_empty() {
            return Ok(());
        }
        for (read, operation) in running(connection, batch).await? {
            let mut reads = batch.reads.iter().filter(|r| r.connection == read);
            // Its connection has been in use all the time since it was asked for, so that what was seen to run
            // there is the read itself and not another client's operation after it.
            if reads.any(Read::is_wanted) {
                let kill = rawdoc! { "killOp": 1, "op": operation, "$db": "admin" };
                timeout(ANSWER_LIMIT, connection.run(&kill)).await??;
                self.pool.metrics.operation_ended();
            }
        }
        Ok(())
    }
}

/// The operations that run on a batch's connections, with their connections.
async fn running(
    connection: &mut Connection,
    batch: &Batch,
) -> Result<Vec<(i64, RawBson)>, EndError> {
    let mut ids = RawArrayBuf::new();
    batch
        .reads
        .iter()
        .for_each(|read| ids.push(read.connection));
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
    let reply = timeout(ANSWER_LIMIT, connection.run(&command)).await??;
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::pool::tests::identity;

    fn asked(
        ending: &Ending,
        identity: &Arc<Identity>,
        generation: Generation,
    ) -> (EndRequest, bool) {
        let (read, request) = Read::to_end(1, generation);
        let has_to_begin = ending.ask(identity, read);
        (request, has_to_begin)
    }

    fn is_refused(request: &EndRequest) -> bool {
        request.is_refused().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn one_begins_and_whoever_has_waited_longest_is_next() {
        let ending = Ending::default();
        let users = ["a", "b", "c", "d"].map(identity);
        let mut requests = Vec::new();
        for (n, user) in users.iter().enumerate() {
            let (request, has_to_begin) = asked(&ending, user, Generation::default());
            assert_eq!(has_to_begin, n == 0);
            requests.push(request);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let next = |first: Option<&Arc<Identity>>| {
            let batch = ending.next(first.map(|user| user.id()));
            batch.map(|batch| batch.identity.name().to_owned())
        };
        assert_eq!(next(None).unwrap(), "a");
        assert_eq!(next(Some(&users[2])).unwrap(), "c");
        // Who asks anew has waited for the shortest time.
        let again = asked(&ending, &users[0], Generation::default());
        assert_eq!(next(Some(&users[2])).unwrap(), "b");
        assert_eq!(next(None).unwrap(), "d");
        assert_eq!(next(None).unwrap(), "a");
        assert_eq!(next(None), None);
        // What was asked meanwhile is looked at again, and after a while without anything it is over.
        assert!(ending.is_asked_again().await);
        assert!(!ending.is_asked_again().await);
        assert!(asked(&ending, &users[0], Generation::default()).1);
        drop((requests, again));
    }

    #[tokio::test]
    async fn what_is_not_wanted_any_more_is_forgotten() {
        let ending = Ending::default();
        let user = identity("a");
        for _ in 0..10_000 {
            drop(asked(&ending, &user, Generation::default()));
        }
        let kept = asked(&ending, &user, Generation::default());
        let mut batch = ending.next(None).unwrap();
        assert!(batch.reads.capacity() < 100, "{}", batch.reads.capacity());
        assert!(batch.is_wanted());
        assert_eq!(batch.reads.len(), 1);
        drop(kept);
        assert!(!batch.is_wanted());
    }

    #[tokio::test]
    async fn what_is_not_wanted_any_more_gives_its_place_to_another() {
        let (ending, user) = (Ending::default(), identity("a"));
        let ask = || asked(&ending, &user, Generation::default()).0;
        let len_and_capacity = || {
            let queue = ending.queue.lock();
            let reads = &queue.batches[&user.id()].reads;
            (reads.len(), reads.capacity())
        };
        let mut requests = vec![ask()];
        while len_and_capacity().0 < len_and_capacity().1 {
            requests.push(ask());
        }
        let (_, capacity) = len_and_capacity();
        drop(requests);
        let _wanted = ask();
        assert_eq!(len_and_capacity(), (1, capacity));
    }

    #[tokio::test]
    async fn reads_of_another_generation_are_refused() {
        let ending = Ending::default();
        let user = identity("a");
        let (old, _) = asked(&ending, &user, Generation::default());
        let (new, _) = asked(&ending, &user, Generation::default().next());
        let mut batch = ending.next(None).unwrap();
        batch.refuse_others(Generation::default().next());
        assert!(is_refused(&old) && !is_refused(&new));
        assert_eq!(batch.reads.len(), 1);
    }

    #[tokio::test]
    async fn all_is_refused_once_the_pool_is_closed() {
        let ending = Ending::default();
        let user = identity("a");
        let (before, _) = asked(&ending, &user, Generation::default());
        ending.close();
        let (after, has_to_begin) = asked(&ending, &user, Generation::default());
        assert!(is_refused(&before) && is_refused(&after) && !has_to_begin);
        assert!(!ending.is_asked_again().await);
    }
}
