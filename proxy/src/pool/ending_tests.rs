//! Tests of how Seawall ends reads. A scripted server runs one read on each connection. The server
//! is a secondary.
//!
//! The clock is paused. Without calls of `advance`, the clock advances only when all tasks are
//! idle. So the time does not change while a test polls the list of ended operations.

use std::{sync::Arc, time::Duration};

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use futures_util::FutureExt as _;
use tokio::{
    runtime::Handle,
    task::yield_now,
    time::{Instant, advance},
};

use super::{
    ServerPool,
    ending::EndRequest,
    tests::{identity, limits},
};
use crate::{
    observe::Observer,
    scripted::{Response, ScriptedServer},
};
use seawall_auth::{Identity, NonceSource};
use seawall_locks::Mutex;
use seawall_transport::connection::{Authorities, Connector, ServerTls, TlsSettings, Verification};

/// Maximum number of polls of the server's log. Usually a few are enough.
const MAX_POLLS: u32 = 1_000_000;

/// Minimum time between two logins.
const LOGIN_INTERVAL: Duration = Duration::from_secs(1);

/// A connection id that does not fit into a BSON `int`, so it is written as a `long`.
const LONG: i64 = 1 << 40;

/// The id of a connection whose read ends before `killOp` arrives.
const ENDED: i64 = 100;

/// The id of a connection without an operation.
const IDLE: i64 = 101;

/// The id of a connection whose operations the server refuses to list.
const REFUSED: i64 = 102;

/// Error codes of servers.
const UNAUTHORIZED: i32 = 13;
const NOT_PRIMARY_NO_SECONDARY_OK: i32 = 13435;

/// The events that the scripted server has recorded, and its behaviour.
#[derive(Debug, Default)]
struct Log {
    /// True if the server closes a connection when a command arrives on it, and sends no reply.
    closes_connections: bool,
    /// The connections of each request to list operations.
    listed: Vec<Vec<i64>>,
    /// Number of connections accepted so far. Their ids begin at 1.
    connections: usize,
    /// The ids of the connections that have been closed.
    closed: Vec<usize>,
    /// Ended operations, each with the id of the connection on which `killOp` arrived.
    ended: Vec<(usize, String)>,
}

/// The id of the operation that runs on a connection.
fn operation_of(connection: i64) -> String {
    format!("shard:{connection}")
}

/// The ids of the connections whose operations a `$currentOp` command asks for.
fn requested_connections(command: &RawDocument) -> Option<Vec<i64>> {
    let stages = command.get_array("pipeline").ok()?;
    let matched = stages.into_iter().find_map(|stage| {
        let stage = stage.ok()?.as_document()?;
        stage.get_document("$match").ok()
    })?;
    let connections = matched.get_document("connectionId").ok()?;
    let connections = connections.get_array("$in").ok()?.into_iter();
    Some(connections.filter_map(|id| id.ok()?.as_i64()).collect())
}

/// The document of one operation in a `$currentOp` reply. As in a server's reply, a number that
/// fits into an `int` is an `int`.
fn row(connection: i64) -> RawDocumentBuf {
    let operation = operation_of(connection);
    match i32::try_from(connection) {
        Ok(connection) => rawdoc! { "opid": operation, "connectionId": connection },
        Err(_) => rawdoc! { "opid": operation, "connectionId": connection },
    }
}

fn respond(log: &mut Log, id: usize, command: &RawDocument) -> RawDocumentBuf {
    if let Some(connections) = requested_connections(command) {
        log.listed.push(connections.clone());
        if command.get_document("$readPreference").is_err() {
            return error(NOT_PRIMARY_NO_SECONDARY_OK);
        }
        if connections.contains(&REFUSED) {
            return error(UNAUTHORIZED);
        }
        let connections = connections.into_iter().filter(|id| *id != IDLE);
        let rows: RawArrayBuf = connections.map(row).collect();
        return rawdoc! { "cursor": { "firstBatch": rows }, "ok": 1 };
    }
    if command.get_i32("killOp").is_ok()
        && let Ok(operation) = command.get_str("op")
    {
        if operation == operation_of(ENDED) {
            return error(UNAUTHORIZED);
        }
        log.ended.push((id, operation.to_owned()));
    }
    rawdoc! { "ok": 1, "maxWireVersion": 17 }
}

fn error(code: i32) -> RawDocumentBuf {
    rawdoc! { "ok": 0, "code": code, "errmsg": "refused" }
}

/// One connection at the server. Dropping it records that the connection was closed.
struct LoggedConnection {
    id: usize,
    log: Arc<Mutex<Log>>,
}

impl LoggedConnection {
    fn new(log: Arc<Mutex<Log>>) -> Self {
        log.lock().connections += 1;
        let id = log.lock().connections;
        Self { id, log }
    }

    fn respond(&self, command: &RawDocument) -> Response {
        let mut log = self.log.lock();
        match log.closes_connections {
            true => Response::Close,
            false => Response::Reply(respond(&mut log, self.id, command)),
        }
    }
}

impl Drop for LoggedConnection {
    fn drop(&mut self) {
        self.log.lock().closed.push(self.id);
    }
}

/// A server, and a pool of connections to it.
struct EndingScene {
    connector: Connector,
    observer: Observer,
    pool: Arc<ServerPool>,
    log: Arc<Mutex<Log>>,
    _server: ScriptedServer,
}

impl EndingScene {
    async fn new() -> Self {
        let log = Arc::<Mutex<Log>>::default();
        let shared = Arc::clone(&log);
        let server = ScriptedServer::start(move || {
            let accepted = LoggedConnection::new(Arc::clone(&shared));
            move |command: &RawDocument| accepted.respond(command)
        });
        let server = server.await;
        let nonces = Arc::new(NonceSource::new().unwrap());
        let connector = Connector::new(None, Vec::new(), Duration::from_secs(10), nonces);
        let observer = Observer::without_shapes();
        let metrics = observer.recorder.server("test");
        let (address, runtime) = (server.address().clone(), Handle::current());
        Self {
            pool: ServerPool::new(address, limits(), connector.clone(), metrics, runtime),
            observer,
            connector,
            log,
            _server: server,
        }
    }

    fn end_read(&self, user: &Arc<Identity>, connection: i64) -> EndRequest {
        let generation = self.pool.generation();
        self.pool.end_read(user, generation, connection)
    }

    /// Waits until the server has ended at least `count` operations, and returns them.
    async fn ended(&self, count: usize) -> Vec<(usize, String)> {
        self.eventually(|log| log.ended.len() >= count).await;
        self.log.lock().ended.clone()
    }

    /// Waits until `is_expected` is true for the server's log.
    async fn eventually(&self, is_expected: impl Fn(&Log) -> bool) {
        for _ in 0..MAX_POLLS {
            if is_expected(&self.log.lock()) {
                return;
            }
            yield_now().await;
        }
        panic!("not the expected log: {:?}", self.log.lock());
    }
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Advances the clock before any other task runs.
fn advance_at_once(duration: Duration) {
    advance(duration).now_or_never();
}

/// An *abandoned read* is a read whose client has disconnected. Seawall ends it with `killOp`.
#[tokio::test(start_paused = true)]
async fn abandoned_reads_of_one_user_are_killed_over_one_connection() {
    let (scene, user) = (EndingScene::new().await, identity("u"));
    let _requests = [7, LONG].map(|connection| scene.end_read(&user, connection));
    let ended = [7, LONG].map(|connection| (1, operation_of(connection)));
    assert_eq!(scene.ended(2).await, ended);
}

/// An ordinary user may kill only its own operations. So a server refuses the `killOp` of such a
/// user if the operation has ended.
#[tokio::test(start_paused = true)]
async fn a_read_that_ends_before_kill_op_arrives_is_not_counted_as_killed() {
    let (scene, user) = (EndingScene::new().await, identity("u"));
    let _requests = [7, ENDED].map(|connection| scene.end_read(&user, connection));
    scene.ended(1).await;
    // Seawall sends the next request only after it has received the replies to both `killOp`.
    let _next = scene.end_read(&user, IDLE);
    let is_next = |log: &Log| log.listed.last().is_some_and(|listed| *listed == [IDLE]);
    scene.eventually(is_next).await;
    let text = scene.observer.exporter.render();
    let expected = "seawall_server_operations_ended_total{server=\"test\"} 1\n";
    assert!(text.contains(expected), "{text}");
}

/// Seawall sends `killOp` on an extra connection outside the pool. The server refuses, for example,
/// if this connection is no longer logged in. A new connection logs in again.
#[tokio::test(start_paused = true)]
async fn the_connection_for_kill_op_is_closed_if_the_server_refuses_to_list_the_operations() {
    let (scene, user) = (EndingScene::new().await, identity("u"));
    let _request = scene.end_read(&user, REFUSED);
    scene.eventually(|log| log.closed == [1]).await;
    assert_eq!(scene.log.lock().listed, [[REFUSED]]);
}

/// Seawall sends `killOp` on an extra connection, and keeps this connection for ten seconds after
/// its last use.
#[tokio::test(start_paused = true)]
async fn the_connection_for_kill_op_is_reused_to_end_a_second_read_two_seconds_later() {
    let (scene, user) = (EndingScene::new().await, identity("u"));
    let _first = scene.end_read(&user, 7);
    scene.ended(1).await;
    advance(LOGIN_INTERVAL * 2).await;
    let _second = scene.end_read(&user, 8);
    assert_eq!(scene.ended(2).await[1], (1, operation_of(8)));
}

/// Seawall sends `killOp` on an extra connection outside the pool.
#[tokio::test(start_paused = true)]
async fn the_connection_for_kill_op_is_replaced_after_a_minute() {
    let (scene, user) = (EndingScene::new().await, identity("u"));
    let _first = scene.end_read(&user, 7);
    scene.ended(1).await;
    // Each pause is shorter than the ten seconds after which an unused extra connection is closed.
    // The extra connection reaches the age of a minute only at the last read, and is then replaced.
    let steps = [9_000, 9_000, 9_000, 9_000, 9_000, 9_000, 5_999, 1];
    for (count, step) in (2..).zip(steps) {
        advance(millis(step)).await;
        let _next = scene.end_read(&user, 7);
        scene.ended(count).await;
    }
    let ended = scene.ended(9).await.into_iter();
    let ids: Vec<_> = ended.map(|(id, _)| id).collect();
    assert_eq!(ids, [1, 1, 1, 1, 1, 1, 1, 1, 2]);
}

/// Seawall sends `killOp` on an extra connection outside the pool. After the reload, no login
/// succeeds, because the server does not speak TLS. So the second read is not ended.
#[tokio::test(start_paused = true)]
async fn the_connection_for_kill_op_is_closed_and_not_used_again_after_a_tls_reload() {
    let (scene, user) = (EndingScene::new().await, identity("u"));
    let _first = scene.end_read(&user, 7);
    scene.ended(1).await;
    let tls = ServerTls::new(&TlsSettings {
        authorities: Authorities::Mozilla,
        identity: None,
        revocation_lists: Vec::new(),
        verification: Verification::Full,
    });
    scene.connector.set_tls(Arc::new(tls.unwrap()));
    advance(LOGIN_INTERVAL).await;
    let _second = scene.end_read(&user, 8);
    scene.eventually(|log| log.connections == 2).await;
    scene.eventually(|log| log.closed.contains(&1)).await;
    assert_eq!(scene.ended(1).await, [(1, operation_of(7))]);
}

/// Each withdrawn request restarts the ten seconds for which Seawall keeps an unused connection.
/// But a connection is closed at the latest a minute after its login.
#[tokio::test(start_paused = true)]
async fn the_connection_for_kill_op_is_closed_after_a_minute_if_later_requests_are_withdrawn() {
    let (scene, users) = (EndingScene::new().await, ["own", "other"].map(identity));
    let _first = scene.end_read(&users[0], 1);
    scene.ended(1).await;
    for _ in 0..7 {
        advance(millis(9_000)).await;
        drop(scene.end_read(&users[1], 2));
    }
    scene.eventually(|log| log.closed == [1]).await;
    assert_eq!(scene.log.lock().connections, 1);
}

/// A connection for `killOp` can end only the reads of its own user. For another user, Seawall
/// needs a new login. Seawall logs in at most once a second.
#[tokio::test(start_paused = true)]
async fn kill_op_ends_only_reads_of_the_logged_in_user_until_the_next_login_is_allowed() {
    let (scene, users) = (EndingScene::new().await, ["own", "other"].map(identity));
    let _first = scene.end_read(&users[0], 1);
    scene.ended(1).await;
    let _other = scene.end_read(&users[1], 2);
    advance_at_once(millis(1));
    let _own = scene.end_read(&users[0], 3);
    assert_eq!(scene.ended(2).await[1], (1, operation_of(3)));
    advance(LOGIN_INTERVAL - millis(1)).await;
    assert_eq!(scene.ended(3).await[2], (2, operation_of(2)));
}

/// The connection for `killOp` belongs to the user `own`. For the user `other`, Seawall needs a new
/// login. Seawall logs in at most once a second.
#[tokio::test(start_paused = true)]
async fn the_user_with_the_oldest_request_is_served_first_when_a_login_is_allowed() {
    let (scene, users) = (EndingScene::new().await, ["own", "other"].map(identity));
    let _first = scene.end_read(&users[0], 1);
    scene.ended(1).await;
    advance(LOGIN_INTERVAL - millis(1)).await;
    let _other = scene.end_read(&users[1], 2);
    advance_at_once(millis(1));
    let _own = scene.end_read(&users[0], 3);
    assert_eq!(scene.ended(2).await[1], (2, operation_of(2)));
}

#[tokio::test(start_paused = true)]
async fn failures_to_kill_the_reads_of_disconnected_clients_are_logged_at_most_once_a_minute() {
    let (scene, user) = (EndingScene::new().await, identity("u"));
    scene.log.lock().closes_connections = true;
    let mut requests = Vec::new();
    for failures in 1..=3 {
        requests.push(scene.end_read(&user, 7));
        scene.eventually(|log| log.closed.len() == failures).await;
        advance(LOGIN_INTERVAL).await;
    }
    // The reads of one server are ended one after another. So when this read has been ended, all
    // three failures have been counted.
    scene.log.lock().closes_connections = false;
    requests.push(scene.end_read(&user, 7));
    scene.ended(1).await;
    // The first failure was logged, and the next two were not. A minute later, the log line of a
    // further failure reports all three.
    let later = Instant::now() + Duration::from_secs(60);
    assert_eq!(scene.pool.end_queue.failures.count(later), Some(3));
}
