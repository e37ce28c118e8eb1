//! Cancellation: a test drops the future that serves a client. In the first run, it drops the
//! future after one poll, in the second run after two polls, and so on. After each drop, all
//! permits and connections must be released. No other client may get a reply that was meant for the
//! client of the dropped future.

use std::{
    cell::Cell,
    future::{poll_fn, ready},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use bson::{Document, doc};
use seawall::{client::Peer, pool::PoolSnapshot};
use seawall_tests::{
    eventually::eventually,
    mongod::{self, NewUser, Standalone, shared_replica_set, unique_name},
    raw::{RawClient, RawError},
    recorder::Recorder,
    seawall::Seawall,
};
use seawall_transport::Stream;
use tokio::{net::UnixStream, sync::Mutex};

use crate::scene::{commands_named, connect, logged_in, seawall, seawall_at, writer};

const LIMIT: Duration = Duration::from_secs(20);

/// Maximum number of polls of the future that serves a client. A test fails if its script does not
/// end within this number of polls.
const MAX_POLLS: usize = 400;

/// Low limits. If dropped futures kept their permits, the later clients of a test would get none,
/// and the test would fail.
const LOW_LIMITS: &str = "listen.max_client_connections = 8
limits.unauthenticated_connections = 8
limits.max_in_flight_operations = 8
";

/// The moment at which a test drops a future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Right after the last poll of the future.
    AfterPoll,
    /// When the future is woken, before it is polled again. For example, the pool has then assigned
    /// a connection to the future, but the future is dropped before a poll returns the connection.
    WhenWoken,
}

/// Polls a future at most `times` times. Returns at the moment at which the future must be dropped,
/// or when the future has completed.
async fn poll_times(mut future: Pin<&mut impl Future<Output = ()>>, times: usize, moment: Moment) {
    let mut left = times;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Pending if left == 0 && moment == Moment::AfterPoll => Poll::Ready(()),
            polled => polled,
        }
    })
    .await;
}

/// Runs a script as a client until a run completes. In the first run, drops the future that serves
/// the client after one poll, in the second run after two polls, and so on. Calls `check` after
/// each run. Returns the number of runs that did not complete.
async fn cancel_everywhere(
    seawall: &Seawall,
    moment: Moment,
    script: impl AsyncFn(RawClient) -> Result<(), RawError>,
    check: impl AsyncFn(usize),
) -> usize {
    for polls in 1..MAX_POLLS {
        let (near, far) = UnixStream::pair().unwrap();
        let peer = Peer {
            ip: None,
            text: "cancelled".into(),
        };
        let served = seawall.app.serve(Stream::Unix(near), peer);
        let mut served = Box::pin(served.expect("all permits are released"));
        let serving = async move {
            poll_times(served.as_mut(), polls, moment).await;
            drop(served);
        };
        let serving = async {
            match moment {
                Moment::AfterPoll => serving.await,
                // `join!` polls both of its futures even if only the script is woken. So the
                // serving future runs in a separate task, which is polled only when it is woken
                // itself.
                Moment::WhenWoken => tokio::spawn(serving).await.unwrap(),
            }
        };
        let (ran, ()) = tokio::join!(script(RawClient::new(far)), serving);
        check(polls).await;
        if ran.is_ok() {
            return polls - 1;
        }
    }
    panic!("the script did not end within {MAX_POLLS} polls");
}

/// Waits until Seawall has no operation in flight, no server connection in use and no operation
/// that waits for a connection.
async fn wait_until_nothing_is_held(seawall: &Seawall) {
    let is_free = async || {
        let snapshot = seawall.app.topology().snapshot();
        let is_idle = snapshot.pools.iter().all(|pool| {
            let pool = pool.snapshot();
            pool.in_use == 0 && pool.wait_queue == 0
        });
        is_idle && seawall.app.operations_in_flight() == 0
    };
    eventually(LIMIT, is_free)
        .await
        .expect("all permits and connections are released");
}

/// Checks that `witness`, another client of the same user, still gets the replies to its own
/// commands. Each call needs another `n`, because `n` is the `_id` of an inserted document.
async fn assert_own_replies(witness: &mut RawClient, db: &str, n: usize) {
    let id = i64::try_from(n).unwrap();
    let insert = doc! { "insert": "witness", "documents": [{ "_id": id }] };
    witness.expect_ok(db, insert).await;
    let find = doc! { "find": "witness", "filter": { "_id": id } };
    let reply = witness.command(db, find).await.unwrap();
    let cursor = reply.body.get_document("cursor").unwrap();
    let batch = cursor.get_array("firstBatch").unwrap();
    assert_eq!(batch, &[doc! { "_id": id }.into()]);
}

/// Runs [`cancel_everywhere`]. After each drop, checks that all permits and connections are
/// released, and that another client gets its own replies.
async fn cancel_beside_witness(
    seawall: &Seawall,
    user: &NewUser,
    script: impl AsyncFn(RawClient) -> Result<(), RawError>,
) -> usize {
    let witness = Mutex::new(logged_in(seawall, &user.login()).await);
    let check = async |n| {
        assert_own_replies(&mut *witness.lock().await, &user.name, n).await;
        wait_until_nothing_is_held(seawall).await;
    };
    cancel_everywhere(seawall, Moment::AfterPoll, script, check).await
}

/// Finds all documents of a collection, and checks that the reply is for this collection.
async fn find_own(client: &mut RawClient, db: &str, collection: &str) -> Result<(), RawError> {
    let reply = client.command(db, doc! { "find": collection }).await?;
    assert!(reply.is_ok(), "{}", reply.body);
    let cursor = reply.body.get_document("cursor").unwrap();
    assert_eq!(cursor.get_str("ns").unwrap(), format!("{db}.{collection}"));
    Ok(())
}

/// Seawall with at most one connection to its server, and a witness: a client whose operations are
/// not cancelled. Clients need no login, so the connection is used only by their operations.
struct OneConnection {
    seawall: Seawall,
    recorder: Recorder,
    db: String,
    witness: Mutex<RawClient>,
    /// The server, which runs until the test ends.
    _server: Standalone,
}

impl OneConnection {
    async fn start() -> Self {
        let options = mongod::Options::default();
        let server = Standalone::start(options).await.unwrap();
        let recorder = Recorder::start(server.address()).await.unwrap();
        let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
        let toml = format!("{LOW_LIMITS}pool.max_pool_size = 1\n");
        let seawall = seawall_at(&uri, &toml).await;
        Self {
            witness: Mutex::new(connect(&seawall).await),
            seawall,
            recorder,
            db: unique_name("cancelled"),
            _server: server,
        }
    }

    fn pool(&self) -> PoolSnapshot {
        self.seawall.app.topology().snapshot().pools[0].snapshot()
    }

    async fn closed_connections(&self) -> f64 {
        let name = "seawall_server_connections_closed_total";
        self.seawall.metric(name, &[]).await
    }

    /// Runs a find on the collection `held`, and then a find on `waits`. The first find gets the
    /// connection. The server's reply to the first find is held until the second find is in the
    /// wait queue. If one of the finds is cancelled earlier, the function releases the reply at
    /// once.
    async fn find_in_turn(
        &self,
        holder: &mut RawClient,
        waiter: &mut RawClient,
    ) -> (Result<(), RawError>, Result<(), RawError>) {
        let has_ended = Cell::new(false);
        let until = async |is_reached: fn(&PoolSnapshot) -> bool| {
            let attempt = || ready(has_ended.get() || is_reached(&self.pool()));
            let reached = eventually(LIMIT, attempt).await;
            reached.expect("one find gets the connection, and the other one waits");
        };
        self.recorder.hold_replies(true);
        let holds = async {
            let held = find_own(holder, &self.db, "held").await;
            has_ended.set(true);
            held
        };
        let waits = async {
            until(|pool| pool.in_use == 1).await;
            let waited = find_own(waiter, &self.db, "waits").await;
            has_ended.set(true);
            waited
        };
        let release = async {
            until(|pool| pool.wait_queue == 1).await;
            self.recorder.hold_replies(false);
        };
        let (held, waited, ()) = tokio::join!(holds, waits, release);
        (held, waited)
    }

    /// Checks that the witness gets its own replies, that all permits are released, and that the
    /// pool has exactly one connection. `n` differs in each call.
    async fn check(&self, n: usize) {
        assert_own_replies(&mut *self.witness.lock().await, &self.db, n).await;
        wait_until_nothing_is_held(&self.seawall).await;
        let has_one = async || {
            let name = "seawall_server_connections_created_total";
            let created = self.seawall.metric(name, &[]).await;
            let open = created - self.closed_connections().await;
            let pool = self.pool();
            (pool.pending, pool.available) == (0, 1) && (open - 1.0).abs() < f64::EPSILON
        };
        eventually(LIMIT, has_one)
            .await
            .expect("the pool has exactly one connection");
    }

    /// Runs [`cancel_everywhere`] for both values of [`Moment`]. The script's client sends one find
    /// to `collection`. No other client sends a find to this collection.
    async fn cancel_finds(
        &self,
        collection: &str,
        script: impl AsyncFn(RawClient) -> Result<(), RawError>,
    ) {
        self.check(0).await;
        let moments = [(Moment::AfterPoll, 0), (Moment::WhenWoken, MAX_POLLS)];
        for (moment, earlier) in moments {
            let check = async |polls: usize| self.check(earlier + polls).await;
            let cancelled = cancel_everywhere(&self.seawall, moment, &script, check).await;
            assert!(
                cancelled > 2,
                "{moment:?}: expected more than 2 cancelled finds, got {cancelled}"
            );
        }
        // Seawall closes the connection of a cancelled find only if it has already sent the find to
        // the server. For each value of `Moment`, the find of the last run is not cancelled and
        // gets its reply.
        let finds = commands_named(&self.recorder, "find").into_iter();
        let is_own = |find: &Document| find.get_str("find").is_ok_and(|name| name == collection);
        let sent = finds.filter(|(_, find)| is_own(find)).count();
        let without_reply = u32::try_from(sent - moments.len()).unwrap();
        let closed = self.closed_connections().await;
        assert!(
            closed <= f64::from(without_reply),
            "expected at most {without_reply} closed connections, one for each find without a reply, got {closed}"
        );
    }
}

async fn run(client: &mut RawClient, db: &str, commands: &[Document]) -> Result<(), RawError> {
    for command in commands {
        client.command(db, command.clone()).await?;
    }
    Ok(())
}

/// The test drops the future that serves a client. A permit counts towards a limit, for example one
/// of [`LOW_LIMITS`].
#[tokio::test]
async fn dropping_a_clients_future_during_a_login_or_operation_releases_permits_and_connections() {
    let seawall = seawall(LOW_LIMITS).await;
    let user = writer().await;
    let script = async |mut client: RawClient| {
        client.hello(doc! {}).await?;
        let outcome = client.login(&user.login()).await?;
        assert!(outcome.is_authenticated());
        let commands = [
            doc! { "insert": "c", "documents": [{ "a": 1 }] },
            doc! { "find": "c", "filter": { "a": 1 }, "batchSize": 1 },
            doc! { "update": "c", "updates": [{ "q": {}, "u": { "$inc": { "b": 1 } } }] },
        ];
        run(&mut client, &user.name, &commands).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 8,
        "expected more dropped futures than permits, got {cancelled}"
    );
}

/// The test drops the future that serves a client. A permit counts towards a limit, for example one
/// of [`LOW_LIMITS`].
#[tokio::test]
async fn dropping_a_clients_future_during_a_large_message_releases_permits_and_connections() {
    let seawall = seawall(LOW_LIMITS).await;
    let user = writer().await;
    let text = "x".repeat(1_500_000);
    let script = async |mut client: RawClient| {
        client.login(&user.login()).await?;
        let commands = [
            doc! { "insert": "large", "documents": [{ "text": &text }] },
            doc! { "find": "large", "batchSize": 1 },
        ];
        run(&mut client, &user.name, &commands).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 8,
        "expected more dropped futures than permits, got {cancelled}"
    );
}

/// The test drops the future that serves a client. A permit counts towards a limit, for example one
/// of [`LOW_LIMITS`].
#[tokio::test]
async fn dropping_a_clients_future_in_the_wait_queue_of_a_pool_releases_permits_and_connections() {
    let scene = OneConnection::start().await;
    let holder = Mutex::new(connect(&scene.seawall).await);
    let script = async |mut client: RawClient| {
        let mut holder = holder.lock().await;
        let (held, waited) = scene.find_in_turn(&mut holder, &mut client).await;
        held.unwrap();
        waited
    };
    scene.cancel_finds("waits", script).await;
}

/// The next operation must not get the rest of the reply that was meant for the dropped future.
#[tokio::test]
async fn after_a_clients_future_is_dropped_the_next_operation_gets_its_own_reply() {
    let scene = OneConnection::start().await;
    let mut waiter = connect(&scene.seawall).await;
    // The reply is so large that it is forwarded in several pieces.
    let text = "x".repeat(600_000);
    let insert = doc! { "insert": "held", "documents": [{ "text": text }] };
    run(&mut waiter, &scene.db, &[insert]).await.unwrap();
    let waiter = Mutex::new(waiter);
    let script = async |mut client: RawClient| {
        let mut waiter = waiter.lock().await;
        let (held, waited) = scene.find_in_turn(&mut client, &mut waiter).await;
        waited.unwrap();
        held
    };
    scene.cancel_finds("held", script).await;
}

/// The test drops the future that serves a client. A permit counts towards a limit, for example one
/// of [`LOW_LIMITS`].
#[tokio::test]
async fn dropping_a_clients_future_during_server_selection_releases_permits_and_connections() {
    let set = shared_replica_set().await.unwrap();
    let toml = format!("{LOW_LIMITS}deployment.server_selection_timeout_ms = 200\n");
    let seawall = seawall_at(&set.uri(), &toml).await;
    let script = async |mut client: RawClient| {
        let preference = doc! { "mode": "secondary", "tags": [{ "rack": "none" }] };
        let find = doc! { "find": "c", "$readPreference": preference };
        for _ in 0..9 {
            let reply = client.command("db", find.clone()).await?;
            assert!(!reply.is_ok(), "expected no suitable server: {reply:?}");
        }
        Ok(())
    };
    let cancelled = cancel_everywhere(&seawall, Moment::AfterPoll, script, async |_| {
        wait_until_nothing_is_held(&seawall).await
    });
    assert!(cancelled.await > 8);
}

/// Seawall forwards the first login of a user to a server, on a connection outside of the pools.
#[tokio::test]
async fn dropping_a_clients_future_during_a_users_first_login_releases_permits_and_connections() {
    let toml =
        format!("{LOW_LIMITS}limits.introductions = 2\nlimits.introduction_conversations = 2\n");
    let seawall = seawall(&toml).await;
    let user = writer().await;
    let script = async |mut client: RawClient| {
        let newcomer = writer().await;
        client.hello(doc! {}).await?;
        let outcome = client.login(&newcomer.login()).await?;
        assert!(outcome.is_authenticated());
        run(&mut client, &newcomer.name, &[doc! { "find": "c" }]).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 4,
        "expected more dropped futures than permits for first logins, got {cancelled}"
    );
}

/// The test drops the future that serves a client. A permit counts towards a limit, for example one
/// of [`LOW_LIMITS`].
#[tokio::test]
async fn dropping_a_relayed_clients_future_releases_permits_and_connections() {
    let seawall = seawall(&format!("{LOW_LIMITS}deployment.mode = \"relay\"\n")).await;
    let user = writer().await;
    let text = "x".repeat(1_500_000);
    let script = async |mut client: RawClient| {
        client.hello(doc! {}).await?;
        let outcome = client.login(&user.login()).await?;
        assert!(outcome.is_authenticated());
        let commands = [
            doc! { "insert": "large", "documents": [{ "text": &text }] },
            doc! { "find": "large", "batchSize": 1 },
        ];
        run(&mut client, &user.name, &commands).await
    };
    let cancelled = cancel_beside_witness(&seawall, &user, script).await;
    assert!(
        cancelled > 8,
        "expected more dropped futures than permits, got {cancelled}"
    );
}
