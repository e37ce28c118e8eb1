//! Checks that each reply reaches the client that sent the command, even when clients disconnect
//! during operations. Also checks that all connections of the pool can be used afterwards.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test helpers may panic, as tests do"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use mongodb::bson::{Document, doc};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use seawall_api::Pools;
use seawall_tests::{
    crowd,
    eventually::eventually,
    mongod::{NewUser, Options, Standalone, create_user},
    raw::{KeyCache, Login, OpMsg, RawClient, RawError, RawReply},
    seawall::Seawall,
    turbulence::Turbulence,
};
use tokio::task::JoinSet;

const CLIENTS: u64 = 200;
const OPERATIONS_EACH: u64 = 100;

/// Number of operations in the test that disturbs server connections. A full run sets
/// `TEST_CHAOS_OPERATIONS=200000`.
const CHAOS_OPERATIONS: u64 = 20_000;
const POOL_SIZE: u64 = 20;
/// Maximum number of server connections: the size of the pool, plus a reserve of an eighth of this
/// size. Seawall's own commands may use the reserve if they have waited too long.
const MAX_CONNECTIONS: u64 = POOL_SIZE + POOL_SIZE / 8;
const SEED: u64 = 0x5ea_4a11;
const LIMIT: Duration = Duration::from_secs(90);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_reply_reaches_another_client_and_the_whole_pool_can_be_used_afterwards() {
    let _turn = crowd::turn().await;
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let root = server.client().unwrap();
    let user = prepare(&root).await;
    let toml = format!("[pool]\nmax_pool_size = {POOL_SIZE}\nwait_queue_timeout_ms = 60000\n");
    let seawall = Arc::new(Seawall::start_configured(&server.uri(), &toml).await);
    let keys = KeyCache::default();
    let login = user.login().keys(&keys);

    let is_over = Arc::new(AtomicBool::new(false));
    let watch = tokio::spawn(watch(Arc::clone(&seawall), Arc::clone(&is_over)));
    let disconnects = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let chaos = Chaos {
            address: seawall.address().parse().unwrap(),
            login: login.clone(),
            rng: StdRng::seed_from_u64(SEED + number),
            disconnects: Arc::clone(&disconnects),
            failures: None,
        };
        clients.spawn(chaos.run(number, OPERATIONS_EACH));
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    let most = watch.await.unwrap();
    assert!(
        most <= MAX_CONNECTIONS,
        "expected at most {MAX_CONNECTIONS} server connections at the same time, got {most}"
    );
    let disconnects = disconnects.load(Ordering::Relaxed);
    assert!(
        disconnects >= 1000,
        "expected at least 1000 disconnects during an operation, got {disconnects}"
    );

    let is_idle = || async {
        let [pending, available, in_use, waiting] = pool(&seawall).await;
        match (pending, available <= MAX_CONNECTIONS, in_use, waiting) {
            (0, true, 0, 0) => Ok(()),
            _ => Err(format!(
                "{pending} pending, {available} available, {in_use} in use, {waiting} waiting"
            )),
        }
    };
    eventually(LIMIT, is_idle).await.unwrap();
    // All connections of the pool can be used again, at the same time.
    let mut clients = JoinSet::new();
    for number in 0..i32::try_from(POOL_SIZE).unwrap() {
        let address = seawall.address().parse().unwrap();
        let login = login.clone();
        clients.spawn(async move {
            let mut client = RawClient::connect(address).await.unwrap();
            assert!(client.login(&login).await.unwrap().is_authenticated());
            let find = doc! {"find": "pads", "filter": {"$where": "sleep(20) || true"}, "projection": {"v": {"$literal": number}}};
            let reply = client.command("echo", find).await.unwrap();
            assert!(reply.is_ok() && reply.body.to_string().contains(&format!("\"v\": {number}")));
        });
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    eventually(LIMIT, is_idle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_gets_a_wrong_reply_while_server_connections_stall_or_break_at_random() {
    let _turn = crowd::turn().await;
    let operations = std::env::var("TEST_CHAOS_OPERATIONS").ok();
    let operations = operations.map_or(CHAOS_OPERATIONS, |count| count.parse().unwrap());
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let root = server.client().unwrap();
    let user = prepare(&root).await;
    let turbulence = Turbulence::start(server.address(), SEED).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", turbulence.address());
    let toml = format!(
        "pool.max_pool_size = {POOL_SIZE}\npool.wait_queue_timeout_ms = 60000\n\
         deployment.heartbeat_frequency_ms = 500\n"
    );
    let seawall = Arc::new(Seawall::start_configured(&uri, &toml).await);
    let keys = KeyCache::default();
    let failures = Arc::new(AtomicUsize::new(0));
    let disconnects = Arc::new(AtomicUsize::new(0));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let chaos = Chaos {
            address: seawall.address().parse().unwrap(),
            login: user.login().keys(&keys),
            rng: StdRng::seed_from_u64(SEED + number),
            disconnects: Arc::clone(&disconnects),
            failures: Some(Arc::clone(&failures)),
        };
        clients.spawn(chaos.run(number, operations / CLIENTS));
    }
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    let (cuts, failures) = (turbulence.cuts(), failures.load(Ordering::Relaxed));
    assert!(
        cuts > 100,
        "expected more than 100 cut connections, got {cuts}"
    );
    assert!(
        failures > 0 && u64::try_from(failures).unwrap() < operations / 4,
        "expected some failed operations, but fewer than a quarter, got {failures} of {operations}"
    );
    // Everything is released: no client and no operation is left, and the pool has at most its
    // maximum number of connections.
    let is_idle = || async {
        let [pending, available, in_use, waiting] = pool(&seawall).await;
        let clients = seawall.metric("seawall_client_connections", &[]).await;
        let tasks = seawall.app.client_tasks();
        match (
            pending,
            available <= MAX_CONNECTIONS,
            in_use,
            waiting,
            tasks,
        ) {
            (0, true, 0, 0, 0) if clients == 0.0 => Ok(()),
            _ => Err(format!(
                "{pending} pending, {available} available, {in_use} in use, {waiting} waiting, \
                 {clients} clients, {tasks} tasks"
            )),
        }
    };
    eventually(LIMIT, is_idle).await.unwrap();
}

/// Creates a user, and the documents that the clients read.
async fn prepare(root: &mongodb::Client) -> NewUser {
    let user = NewUser::new("admin", "app", "secret").role("readWriteAnyDatabase", "admin");
    create_user(root, &user).await.unwrap();
    let pads = (0..10)
        .map(|n| doc! {"_id": n, "pad": if n == 0 { "x".repeat(200_000) } else { String::new() }});
    let collection = root.database("echo").collection::<Document>("pads");
    collection.insert_many(pads).await.unwrap();
    user
}

/// Watches the number of server connections until the test is over. Returns the largest number
/// seen.
async fn watch(seawall: Arc<Seawall>, is_over: Arc<AtomicBool>) -> u64 {
    let mut most = 0;
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    while !is_over.load(Ordering::Relaxed) {
        ticks.tick().await;
        let [pending, available, in_use, _] = pool(&seawall).await;
        most = most.max(pending + available + in_use);
    }
    most
}

/// Four counts: the pending, available and in-use connections, and the waiting operations.
async fn pool(seawall: &Seawall) -> [u64; 4] {
    let pools: Pools = seawall.api("/api/v1/pools").await;
    let pool = &pools.pools[0];
    [pool.pending, pool.available, pool.in_use, pool.wait_queue]
}

/// A client that sometimes disconnects during an operation, and then reconnects.
struct Chaos {
    address: std::net::SocketAddr,
    login: Login,
    rng: StdRng,
    disconnects: Arc<AtomicUsize>,
    /// Number of failed operations; `None` in tests in which every operation must succeed.
    failures: Option<Arc<AtomicUsize>>,
}

/// The moment at which a client disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    Never,
    DuringTheCommand,
    AfterTheCommand,
    DuringTheReply,
}

impl Chaos {
    async fn run(mut self, number: u64, operations: u64) {
        let mut client = self.connect().await;
        for operation in 0..operations {
            let unique = i64::try_from(number * operations + operation + 1).unwrap() * 1_000_003;
            let leave = match self.rng.random_range(0..100) {
                0..4 => Leave::DuringTheCommand,
                4..8 => Leave::AfterTheCommand,
                8..12 => Leave::DuringTheReply,
                _ => Leave::Never,
            };
            if leave == Leave::Never {
                if !self.echo(&mut client, unique).await {
                    client = self.connect().await;
                }
                continue;
            }
            self.leave(client, leave, unique).await;
            self.disconnects.fetch_add(1, Ordering::Relaxed);
            client = self.connect().await;
        }
    }

    async fn connect(&self) -> RawClient {
        loop {
            let mut client = RawClient::connect(self.address).await.unwrap();
            client.set_limit(LIMIT);
            let outcome = client.login(&self.login).await.unwrap();
            // A login may fail while the server is unreachable, but never with the code for a wrong
            // password.
            assert_ne!(outcome.code(), Some(18), "{outcome:?}");
            if outcome.is_authenticated() {
                return client;
            }
            self.failed(&format!("{outcome:?}"));
        }
    }

    fn failed(&self, what: &str) {
        let failures = self.failures.as_ref();
        let failures = failures.unwrap_or_else(|| panic!("{what}"));
        failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs an operation and checks its replies. Returns false if the connection was closed.
    async fn echo(&mut self, client: &mut RawClient, unique: i64) -> bool {
        let command = self.command(unique);
        let reply = match self.exchange(client, &command, unique).await {
            Exchanged::Reply(reply) => reply,
            Exchanged::Failed { is_open } => return is_open,
        };
        check(&reply, unique);
        let cursor = reply.cursor_id().unwrap_or(0);
        if cursor == 0 {
            return true;
        }
        let more = doc! {"getMore": cursor, "collection": "pads", "$db": "echo"};
        match self.exchange(client, &OpMsg::new(more), unique).await {
            Exchanged::Failed { is_open } => is_open,
            Exchanged::Reply(reply) => {
                check(&reply, unique);
                assert_eq!(reply.cursor_id(), Some(0));
                true
            }
        }
    }

    /// Sends a command and reads its reply. [`RawClient::exchange`] checks that the reply belongs
    /// to the command.
    async fn exchange(&self, client: &mut RawClient, message: &OpMsg, unique: i64) -> Exchanged {
        match client.exchange(message).await {
            Ok(reply) if self.failures.is_some() && reply.code().is_some_and(is_failure) => {
                self.failed("");
                Exchanged::Failed { is_open: true }
            }
            Ok(reply) => Exchanged::Reply(reply),
            Err(error @ (RawError::Closed | RawError::Truncated)) => {
                self.failed(&format!("{unique}: {error:?}"));
                Exchanged::Failed { is_open: false }
            }
            Err(error) => panic!("{unique}: {error:?}"),
        }
    }

    /// A command with a unique value, which its reply must contain.
    fn command(&mut self, unique: i64) -> OpMsg {
        let projection = doc! {"pad": 1, "v": {"$literal": unique}};
        let body = match self.rng.random_range(0..8) {
            0 => doc! {"find": "pads", "filter": {format!("$echo{unique}"): 1}},
            1 => doc! {"find": "pads", "filter": {"_id": 0}, "projection": projection},
            2 => {
                doc! {"find": "pads", "filter": {"_id": {"$gt": 0}}, "projection": projection, "batchSize": 4}
            }
            3 => {
                doc! {"find": "pads", "filter": {"_id": 1, "$where": "sleep(1) || true"}, "projection": projection}
            }
            4 | 5 => doc! {"find": "pads", "filter": {"_id": 1}, "projection": projection},
            _ => doc! {"aggregate": 1, "pipeline": [{"$documents": [{"v": unique}]}], "cursor": {}},
        };
        let mut body = body;
        body.insert("$db", "echo");
        let message = OpMsg::new(body);
        if self.rng.random_bool(0.2) {
            message.checksum()
        } else {
            message
        }
    }

    async fn leave(&mut self, mut client: RawClient, leave: Leave, unique: i64) {
        let message = self.command(unique).to_bytes();
        let sent = match leave {
            Leave::DuringTheCommand => self.rng.random_range(1..message.len()),
            _ => message.len(),
        };
        let (sent, _) = message.split_at(sent);
        client.send_bytes(sent).await.unwrap();
        if leave == Leave::DuringTheReply {
            let count = self.rng.random_range(1..30);
            match client.read_bytes(count).await {
                Ok(_) => {}
                Err(error @ (RawError::Closed | RawError::Truncated)) => {
                    self.failed(&format!("{unique}: {error:?}"));
                }
                Err(error) => panic!("{unique}: {error:?}"),
            }
        }
    }
}

/// The result of [`Chaos::exchange`]. `Failed` is a failure that the test allows.
enum Exchanged {
    Reply(RawReply),
    Failed { is_open: bool },
}

/// True for the codes that a test with disturbed server connections allows. Each code has one of
/// two causes: no server or server connection was available in time, or a cursor was lost with its
/// server connection.
fn is_failure(code: i32) -> bool {
    const HOST_UNREACHABLE: i32 = 6;
    const CURSOR_NOT_FOUND: i32 = 43;
    const FAILED_TO_SATISFY_READ_PREFERENCE: i32 = 133;
    const NO_CONNECTION_IN_TIME: i32 = 202;
    let codes = [
        HOST_UNREACHABLE,
        CURSOR_NOT_FOUND,
        FAILED_TO_SATISFY_READ_PREFERENCE,
        NO_CONNECTION_IN_TIME,
    ];
    codes.contains(&code)
}

fn check(reply: &RawReply, unique: i64) {
    let body = &reply.body;
    let Ok(cursor) = body.get_document("cursor") else {
        let text = body.get_str("errmsg").unwrap_or_else(|_| panic!("{body}"));
        assert!(
            text.contains(&format!("$echo{unique}.")),
            "{unique}: {body}"
        );
        return;
    };
    let batch = cursor
        .get_array("firstBatch")
        .or_else(|_| cursor.get_array("nextBatch"))
        .unwrap();
    assert!(!batch.is_empty(), "{unique}: {body}");
    for document in batch {
        let value = document
            .as_document()
            .and_then(|document| document.get_i64("v").ok());
        assert_eq!(value, Some(unique));
    }
}
