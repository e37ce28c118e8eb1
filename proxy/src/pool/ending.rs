//! Ends abandoned reads: reads whose client has disconnected.
//!
//! A server runs an operation to its end as long as the server connection is open. Seawall keeps
//! this connection open although the client has left. Every user may list and kill its own
//! operations. So an extra connection of the same user finds the abandoned reads by the ids of
//! their connections, and ends them with `killOp`. The extra connection is in no pool and does not
//! count towards a pool's limits, because the pool may be full of such reads. Each server has at
//! most one extra connection at a time. Seawall keeps the extra connection for some seconds.
//! Otherwise a slow server, whose clients often disconnect, would get one login for each of these
//! clients.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};

use super::ServerPool;
use crate::runtime::OccasionalLog;
use seawall_auth::{Identity, IdentityId};
use seawall_locks::Mutex;
use seawall_transport::connection::{
    Connection, ControlError, EstablishError, Generation, ServerAddress, reply_is_ok,
};

/// How long the extra connection (the connection on which Seawall sends `killOp`) is kept after its
/// last use.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Maximum time from the login of the extra connection (the connection on which Seawall sends
/// `killOp`) until it is closed, even if it is used.
const KEPT_AT_MOST: Duration = Duration::from_secs(60);

/// Minimum time between two logins of extra connections (the connections on which Seawall sends
/// `killOp`). An extra connection can end only the reads of its own user. So the reads of another
/// user need a new login. Seawall collects the requests to end these reads until a login is
/// allowed.
const LOGIN_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time to wait for the reply to a command on the extra connection, for example the reply
/// to `killOp`.
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// A request to end a read whose client has disconnected. Dropping it withdraws the request.
#[derive(Debug)]
#[must_use]
pub(crate) struct EndRequest(Arc<Notify>);

impl EndRequest {
    /// Waits until Seawall refuses the request, because it cannot end the read with `killOp`. There
    /// are two possible reasons:
    ///
    /// - The pool is closed.
    /// - The pool was cleared after the read's connection was established. A new connection may
    ///   have the same id, so `killOp` could end another operation.
    ///
    /// The caller can close the read's connection instead. This ends the read if the server process
    /// still exists.
    pub(crate) async fn refused(&self) {
        self.0.notified().await;
    }
}

/// The reason why reads were not ended.
#[derive(Debug, thiserror::Error)]
enum EndError {
    /// The extra connection, on which Seawall sends `killOp`, could not be established.
    #[error(transparent)]
    Establish(#[from] EstablishError),
    /// A command got no valid reply.
    #[error(transparent)]
    Exchange(#[from] ControlError),
    /// A command got no reply within [`REPLY_LIMIT`].
    #[error("no reply arrived within {} s", REPLY_LIMIT.as_secs())]
    TimedOut,
    /// The server refused to list the running operations.
    #[error("the server refused to list the running operations, with code {code}")]
    Refused {
        /// The error code; 0 if the reply has none.
        code: i32,
    },
    /// The reply to `$currentOp` has no list of operations.
    #[error("the reply to $currentOp has no list of operations")]
    NoList,
}

/// A read to be ended, identified by the id that the server gave to the read's connection.
#[derive(Debug)]
struct AbandonedRead {
    connection: i64,
    /// The pool's generation when the connection was established. A new server process at the same
    /// address assigns the same ids again, so an id is valid only together with its generation.
    generation: Generation,
    request: Weak<Notify>,
}

impl AbandonedRead {
    fn with_request(connection: i64, generation: Generation) -> (Self, EndRequest) {
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

/// The reads of one user that are to be ended at one server.
#[derive(Debug)]
struct KillOpBatch {
    identity: Arc<Identity>,
    since: Instant,
    reads: Vec<AbandonedRead>,
}

impl KillOpBatch {
    /// Drops withdrawn requests. Returns true if any request is left.
    fn retain_wanted(&mut self) -> bool {
        self.reads.retain(AbandonedRead::is_wanted);
        !self.reads.is_empty()
    }

    /// Removes and refuses the reads whose generation is not `generation`.
    fn refuse_others(&mut self, generation: Generation) {
        let is_other = |read: &mut AbandonedRead| read.generation != generation;
        let others = self.reads.extract_if(.., is_other);
        others.for_each(|read| read.refuse());
    }
}

/// The queue of reads to be ended at one server.
#[derive(Debug, Default)]
pub(super) struct EndQueue {
    state: Mutex<EndQueueState>,
    pushed: Notify,
    /// Counts failed attempts to end reads. At most one a minute is logged.
    pub(super) failures: OccasionalLog,
}

#[derive(Debug, Default)]
struct EndQueueState {
    batches: HashMap<IdentityId, KillOpBatch>,
    is_running: bool,
    is_closed: bool,
}

impl EndQueue {
    /// Queues a read, or refuses it if the queue is closed. Returns true if the caller must start
    /// the worker that ends the queued reads.
    fn push(&self, identity: &Arc<Identity>, read: AbandonedRead) -> bool {
        let mut state = self.state.lock();
        if state.is_closed {
            read.refuse();
            return false;
        }
        let batch = state.batches.entry(identity.id());
        let batch = batch.or_insert_with(|| KillOpBatch {
            identity: Arc::clone(identity),
            since: Instant::now(),
            reads: Vec::new(),
        });
        if batch.reads.len() == batch.reads.capacity() {
            batch.reads.retain(AbandonedRead::is_wanted);
        }
        batch.reads.push(read);
        self.pushed.notify_one();
        !std::mem::replace(&mut state.is_running, true)
    }

    /// Removes and returns the next batch: the batch of user `first` if there is one, otherwise the
    /// oldest batch. `None` if there is no batch.
    fn next(&self, first: Option<IdentityId>) -> Option<KillOpBatch> {
        let batches = &mut self.state.lock().batches;
        let oldest = batches.iter().min_by_key(|(_, batch)| batch.since);
        let oldest = oldest.map(|(user, _)| *user)?;
        let first = first.filter(|user| batches.contains_key(user));
        batches.remove(&first.unwrap_or(oldest))
    }

    /// Waits up to `limit` until another read is queued. Returns false if no read was queued, or if
    /// the queue is closed. The worker then ends. If a read is queued later, [`Self::push`]
    /// requests a new worker.
    async fn wait_for_more(&self, limit: Duration) -> bool {
        let is_closed = self.state.lock().is_closed;
        let is_pushed = !is_closed && timeout(limit, self.pushed.notified()).await.is_ok();
        let mut state = self.state.lock();
        state.is_running = is_pushed || !state.batches.is_empty();
        state.is_running
    }

    /// Counts a failed attempt to end reads at `server`, and logs at most one a minute.
    fn log_failure(&self, server: &ServerAddress, error: &EndError) {
        if let Some(attempts) = self.failures.count(Instant::now()) {
            tracing::warn!(%server, %error, attempts, "could not kill the reads of disconnected clients");
        }
    }

    /// Refuses all queued and future reads. These reads need no `killOp`: after the refusal, the
    /// callers check the connections in, and a closed pool closes each connection at check-in. This
    /// ends the reads.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let reads = state.batches.drain().flat_map(|(_, batch)| batch.reads);
        reads.for_each(|read| read.refuse());
        self.pushed.notify_one();
    }
}

/// The extra connection (the connection on which Seawall sends `killOp`) while it is unused.
/// Seawall keeps it for the next batch of the same user.
struct ExtraConnection {
    user: IdentityId,
    connection: Connection,
}

/// The worker that ends reads at one server. The worker runs while there are reads to end, and at
/// most [`KEPT_FOR`] longer.
struct KillOpWorker<'a> {
    pool: &'a ServerPool,
    kept: Option<ExtraConnection>,
    next_login: Instant,
}

impl ServerPool {
    /// Ends the read that runs on a checked-out connection of `identity` and `generation`, unless
    /// the returned request is dropped first.
    pub(crate) fn end_read(
        self: &Arc<Self>,
        identity: &Arc<Identity>,
        generation: Generation,
        server_connection_id: i64,
    ) -> EndRequest {
        let (read, request) = AbandonedRead::with_request(server_connection_id, generation);
        if self.end_queue.push(identity, read) {
            self.runtime.spawn(Arc::clone(self).end_reads());
        }
        request
    }

    async fn end_reads(self: Arc<Self>) {
        let mut worker = KillOpWorker {
            pool: &self,
            kept: None,
            next_login: Instant::now(),
        };
        loop {
            worker.close_unfit();
            if let Some(batch) = self.end_queue.next(worker.first()) {
                if let Err(error) = worker.end(batch).await {
                    self.end_queue.log_failure(&self.address, &error);
                }
            } else if !self.end_queue.wait_for_more(worker.wait_limit()).await {
                return;
            }
        }
    }
}

impl KillOpWorker<'_> {
    /// The user whose reads are ended first: the user of the extra connection, while no new login
    /// is allowed. `None` if a login is allowed, or if there is no extra connection.
    fn first(&self) -> Option<IdentityId> {
        let has_to_wait = Instant::now() < self.next_login;
        self.kept
            .as_ref()
            .filter(|_| has_to_wait)
            .map(|kept| kept.user)
    }

    async fn end(&mut self, mut batch: KillOpBatch) -> Result<(), EndError> {
        if !batch.retain_wanted() {
            return Ok(());
        }
        let user = batch.identity.id();
        if let Some(mut kept) = self.kept.take_if(|kept| kept.user == user) {
            match self.end_on(&mut kept.connection, &mut batch).await {
                Ok(()) => {
                    self.kept = Some(kept);
                    return Ok(());
                }
                Err(error) => {
                    tracing::debug!(server = %self.pool.address, %error, "idle connection for killOp failed");
                }
            }
        }
        let turn = self.pool.pace.lock().turn(Instant::now());
        sleep_until(turn.max(self.next_login)).await;
        if !batch.retain_wanted() {
            return Ok(());
        }
        let mut connection = self.log_in(&batch.identity).await?;
        self.end_on(&mut connection, &mut batch).await?;
        self.kept = Some(ExtraConnection { user, connection });
        Ok(())
    }

    /// Closes the extra connection if it must not be used again.
    fn close_unfit(&mut self) {
        let pool = self.pool;
        let unfit = self.kept.take_if(|kept| {
            let connection = &mut kept.connection;
            connection.generation != pool.generation()
                || connection.tls_version != pool.connector.tls_version()
                || connection.created_at.elapsed() >= KEPT_AT_MOST
                || connection.stream.has_ended()
        });
        drop(unfit);
    }

    /// Maximum time to wait for the next read that must be ended: [`KEPT_FOR`], or less if the
    /// extra connection reaches its maximum age ([`KEPT_AT_MOST`]) earlier.
    fn wait_limit(&self) -> Duration {
        let kept = self.kept.as_ref();
        let age = kept.map(|kept| kept.connection.created_at.elapsed());
        age.map_or(KEPT_FOR, |age| {
            KEPT_FOR.min(KEPT_AT_MOST.saturating_sub(age))
        })
    }

    async fn log_in(&mut self, identity: &Arc<Identity>) -> Result<Connection, EndError> {
        self.kept = None;
        self.next_login = Instant::now() + LOGIN_INTERVAL;
        // The generation is read before the login, so that the connection counts as stale if the
        // pool is cleared during the login.
        let generation = self.pool.generation();
        let mut connection = self.pool.establish_outside(identity).await?;
        connection.generation = generation;
        Ok(connection)
    }

    async fn end_on(
        &self,
        connection: &mut Connection,
        batch: &mut KillOpBatch,
    ) -> Result<(), EndError> {
        batch.refuse_others(connection.generation);
        if batch.reads.is_empty() {
            return Ok(());
        }
        for (read, operation) in running(connection, batch).await? {
            let mut reads = batch.reads.iter().filter(|r| r.connection == read);
            // The operation is killed only while the request to end it exists. As long as the
            // request exists, the connection runs the abandoned read and no later operation.
            if reads.any(AbandonedRead::is_wanted) {
                let kill = rawdoc! { "killOp": 1, "op": operation, "$db": "admin" };
                let reply = run(connection, &kill).await?;
                // A server refuses the `killOp` of an ordinary user if the operation has ended.
                if reply_is_ok(&reply).is_ok() {
                    self.pool.metrics.count_ended_operation();
                }
            }
        }
        Ok(())
    }
}

/// Runs a command on the extra connection, and waits for its reply up to [`REPLY_LIMIT`].
async fn run(
    connection: &mut Connection,
    command: &RawDocument,
) -> Result<RawDocumentBuf, EndError> {
    let reply = timeout(REPLY_LIMIT, connection.run(command)).await;
    Ok(reply.map_err(|_| EndError::TimedOut)??)
}

/// Returns the operations that run on a batch's connections, each with the id of its connection.
async fn running(
    connection: &mut Connection,
    batch: &KillOpBatch,
) -> Result<Vec<(i64, RawBson)>, EndError> {
    let mut ids = RawArrayBuf::new();
    batch
        .reads
        .iter()
        .for_each(|read| ids.push(read.connection));
    let command = rawdoc! {
        "aggregate": 1,
        "pipeline": [
            // Without `localOps`, a router lists the operations of its shards.
            { "$currentOp": { "allUsers": false, "localOps": true } },
            { "$match": { "connectionId": { "$in": ids }, "active": true } },
            { "$project": { "opid": 1, "connectionId": 1 } },
        ],
        "cursor": { "batchSize": i32::MAX },
        "$db": "admin",
        // Without this element, a secondary refuses the command.
        "$readPreference": { "mode": "primaryPreferred" },
    };
    let reply = run(connection, &command).await?;
    reply_is_ok(&reply).map_err(|(code, _)| EndError::Refused { code })?;
    operations(&reply).ok_or(EndError::NoList)
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
        end_queue: &EndQueue,
        identity: &Arc<Identity>,
        generation: Generation,
    ) -> (EndRequest, bool) {
        let (read, request) = AbandonedRead::with_request(1, generation);
        let must_start = end_queue.push(identity, read);
        (request, must_start)
    }

    fn is_refused(request: &EndRequest) -> bool {
        request.refused().now_or_never().is_some()
    }

    /// The worker ends abandoned reads (reads whose client has left), one user after another. A
    /// caller can name the user that comes first.
    #[tokio::test(start_paused = true)]
    async fn the_first_request_to_end_a_read_starts_the_worker_and_a_given_user_is_served_first() {
        let end_queue = EndQueue::default();
        let users = ["a", "b", "c", "d"].map(identity);
        let mut requests = Vec::new();
        for (n, user) in users.iter().enumerate() {
            let (request, must_start) = asked(&end_queue, user, Generation::default());
            assert_eq!(must_start, n == 0);
            requests.push(request);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        let next = |first: Option<&Arc<Identity>>| {
            let batch = end_queue.next(first.map(|user| user.id()));
            batch.map(|batch| batch.identity.name().to_owned())
        };
        assert_eq!(next(None).unwrap(), "a");
        assert_eq!(next(Some(&users[2])).unwrap(), "c");
        // A user with a new request comes after the other users.
        let again = asked(&end_queue, &users[0], Generation::default());
        assert_eq!(next(Some(&users[2])).unwrap(), "b");
        assert_eq!(next(None).unwrap(), "d");
        assert_eq!(next(None).unwrap(), "a");
        assert_eq!(next(None), None);
        // The first wait ends at once, because of the earlier requests. The second wait times out,
        // because no other request arrives.
        assert!(end_queue.wait_for_more(KEPT_FOR).await);
        assert!(!end_queue.wait_for_more(KEPT_FOR).await);
        assert!(asked(&end_queue, &users[0], Generation::default()).1);
        drop((requests, again));
    }

    #[tokio::test]
    async fn withdrawn_requests_to_end_abandoned_reads_do_not_grow_the_queue() {
        let end_queue = EndQueue::default();
        let user = identity("a");
        for _ in 0..10_000 {
            drop(asked(&end_queue, &user, Generation::default()));
        }
        let kept = asked(&end_queue, &user, Generation::default());
        let mut batch = end_queue.next(None).unwrap();
        assert!(batch.reads.capacity() < 100, "{}", batch.reads.capacity());
        assert!(batch.retain_wanted());
        assert_eq!(batch.reads.len(), 1);
        drop(kept);
        assert!(!batch.retain_wanted());
    }

    #[tokio::test]
    async fn a_new_request_to_end_a_read_reuses_the_queue_space_of_withdrawn_requests() {
        let (end_queue, user) = (EndQueue::default(), identity("a"));
        let ask = || asked(&end_queue, &user, Generation::default()).0;
        let len_and_capacity = || {
            let state = end_queue.state.lock();
            let reads = &state.batches[&user.id()].reads;
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

    /// A clear of the pool begins a new *generation*. After the clear, the server may assign the
    /// same connection ids again.
    #[tokio::test]
    async fn requests_to_end_reads_on_connections_of_another_pool_generation_are_refused() {
        let end_queue = EndQueue::default();
        let user = identity("a");
        let (old, _) = asked(&end_queue, &user, Generation::default());
        let (new, _) = asked(&end_queue, &user, Generation::default().next());
        let mut batch = end_queue.next(None).unwrap();
        batch.refuse_others(Generation::default().next());
        assert!(is_refused(&old) && !is_refused(&new));
        assert_eq!(batch.reads.len(), 1);
    }

    #[tokio::test]
    async fn a_closed_queue_refuses_all_requests_to_end_abandoned_reads() {
        let end_queue = EndQueue::default();
        let user = identity("a");
        let (before, _) = asked(&end_queue, &user, Generation::default());
        end_queue.close();
        let (after, must_start) = asked(&end_queue, &user, Generation::default());
        assert!(is_refused(&before) && is_refused(&after) && !must_start);
        assert!(!end_queue.wait_for_more(KEPT_FOR).await);
    }
}
