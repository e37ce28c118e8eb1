//! Tests of the limit of concurrent operations (`pool.concurrency`) in front of a real server. An
//! operation can wait at the server until another client sends a commit or `fsyncUnlock`. So
//! Seawall must run these two commands even if the waiting operations have reached all limits.

use std::time::Duration;

use bson::{Document, doc};
use seawall_api::{Pool, Pools};
use seawall_tests::{
    eventually::eventually,
    mongod::{FailTimes, Options, ROOT, ROOT_PASSWORD, ReplicaSet, fail_command},
    raw::{KeyCache, Login, OpMsg, RawClient},
    seawall::Seawall,
};

/// Time limit of each wait.
const LIMIT: Duration = Duration::from_secs(20);

const MAX_TIME_MS_EXPIRED: i32 = 50;

/// A replica set of one server, and a Seawall in front of it.
struct ConcurrencyScene {
    set: ReplicaSet,
    seawall: Seawall,
    /// The login of all clients; `None` without authentication.
    login: Option<Login>,
}

impl ConcurrencyScene {
    async fn start(limit: u32) -> Self {
        Self::start_with(&format!("pool.concurrency = {limit}")).await
    }

    async fn start_with(toml: &str) -> Self {
        Self::start_on(Options::default(), toml).await
    }

    /// Like [`Self::start_with`], on a server with these options.
    async fn start_on(options: Options, toml: &str) -> Self {
        let login = options
            .auth
            .then(|| Login::new("admin", ROOT, ROOT_PASSWORD).keys(&KeyCache::default()));
        let set = ReplicaSet::start(1, options).await.unwrap();
        let seawall = Seawall::start_configured(&set.uri(), toml).await;
        let scene = Self {
            set,
            seawall,
            login,
        };
        let insert = doc! {"insert": "c", "documents": [{"_id": 1, "n": 0}]};
        scene.run(insert).await;
        scene
    }

    async fn client(&self) -> RawClient {
        let address = self.seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        client.set_limit(LIMIT);
        if let Some(login) = &self.login {
            let outcome = client.login(login).await.unwrap();
            assert!(outcome.is_authenticated(), "{outcome:?}");
        }
        client
    }

    /// Runs a command on a new connection.
    async fn run(&self, command: Document) {
        let mut client = self.client().await;
        client.expect_ok("d", command).await;
    }

    /// A client that has sent a command and has not read the reply.
    async fn running(&self, command: Document) -> RawClient {
        let mut client = self.client().await;
        let mut command = command;
        command.insert("$db", "d");
        client.send(&OpMsg::new(command)).await.unwrap();
        client
    }

    async fn pool(&self) -> Pool {
        let pools: Pools = self.seawall.api("/api/v1/pools").await;
        pools.pools.into_iter().next().unwrap()
    }

    async fn concurrency(&self) -> seawall_api::Concurrency {
        self.pool().await.concurrency
    }

    /// The number of operations in this state, as text. The number is read from the metrics.
    async fn gauge(&self, state: &str) -> String {
        let label = format!("state=\"{state}\"");
        let name = "seawall_concurrency_operations";
        self.seawall.metric(name, &[&label]).await.to_string()
    }
}

/// A read that takes 60 s. No test waits for its end.
fn long_read() -> Document {
    doc! {"find": "c", "filter": {"$where": "sleep(60000) || true"}}
}

#[tokio::test]
async fn a_commit_runs_although_operations_that_wait_for_it_have_reached_the_concurrency_limit() {
    let hold_all = async |scene: &ConcurrencyScene| scene.concurrency().await.in_progress == 1;
    commit_among_blocked_updates("pool.concurrency = 1", hold_all).await;
}

#[tokio::test]
async fn a_commit_runs_although_operations_that_wait_for_it_hold_all_connections() {
    let hold_all = async |scene: &ConcurrencyScene| {
        let pool = scene.pool().await;
        pool.pending == 0 && pool.in_use + pool.wait_queue == 3
    };
    let toml = "pool.concurrency = \"off\"\npool.max_pool_size = 3\n";
    commit_among_blocked_updates(toml, hold_all).await;
}

#[tokio::test]
async fn a_commit_runs_although_operations_that_wait_for_it_have_reached_the_in_flight_limit() {
    let hold_all = async |scene: &ConcurrencyScene| scene.seawall.app.operations_in_flight() == 3;
    let toml = "limits.max_in_flight_operations = 3\n";
    commit_among_blocked_updates(toml, hold_all).await;
}

/// Begins a transaction. Three other clients then send updates, which wait until the transaction is
/// committed. Commits the transaction as soon as `hold_all` returns true, which means that the
/// waiting updates have reached the limit that this test checks.
async fn commit_among_blocked_updates(
    toml: &str,
    hold_all: impl AsyncFn(&ConcurrencyScene) -> bool,
) {
    let scene = ConcurrencyScene::start_with(toml).await;
    let mut writer = scene.client().await;
    let lsid = doc! {"id": bson::Uuid::new()};
    let update = doc! {"update": "c", "updates": [{"q": {"_id": 1}, "u": {"$inc": {"n": 1}}}]};
    let first = first_statement(update.clone(), &lsid);
    writer.expect_ok("d", first).await;
    // These updates conflict with the transaction, so the server does not reply before the
    // transaction ends.
    let mut blocked = Vec::new();
    for _ in 0..3 {
        blocked.push(scene.running(update.clone()).await);
    }
    eventually(LIMIT, async || hold_all(&scene).await)
        .await
        .unwrap();
    let commit = in_transaction(doc! {"commitTransaction": 1}, &lsid);
    writer.expect_ok("admin", commit).await;
    must_succeed(blocked).await;
}

/// A command that belongs to the first transaction of a session.
fn in_transaction(mut command: Document, lsid: &Document) -> Document {
    command.extend(doc! {"lsid": lsid, "txnNumber": 1_i64, "autocommit": false});
    command
}

/// A command that begins the first transaction of a session.
fn first_statement(command: Document, lsid: &Document) -> Document {
    let mut command = in_transaction(command, lsid);
    command.insert("startTransaction", true);
    command
}

#[tokio::test]
async fn commits_and_kill_cursors_overtake_finds_that_wait_at_a_fixed_concurrency_limit() {
    pass_waiting_finds("pool.concurrency = 1\n", 1).await;
}

#[tokio::test]
async fn commits_and_kill_cursors_overtake_finds_that_wait_at_an_auto_concurrency_limit() {
    let toml = "pool.concurrency = \"auto\"\npool.max_exempt_operations = 1\n";
    pass_waiting_finds(toml, 32).await;
}

/// Sends 60 finds more than the concurrency limit `limit` allows. No find ends, so the additional
/// finds wait. Then runs the commands of [`urgent_clients`], and checks that they succeed while
/// some finds still wait.
///
/// While no operation completes, Seawall lets one more find run every 250 ms. So the last find
/// waits for at least 14 s. A command that waited behind the finds would fail the check.
async fn pass_waiting_finds(toml: &str, limit: u64) {
    const WAITING: u64 = 60;
    let scene = ConcurrencyScene::start_on(Options::with_auth(), toml).await;
    let mut urgent = urgent_clients(&scene).await;
    let mut finders = Vec::new();
    for _ in 0..limit + WAITING {
        finders.push(scene.client().await);
    }
    let blocks = doc! {"failCommands": ["find"], "blockConnection": true, "blockTimeMS": 60_000};
    let administrator = scene.set.administrator().await.unwrap();
    fail_command(&administrator, FailTimes::Always, blocks)
        .await
        .unwrap();
    for finder in &mut finders {
        let find = OpMsg::new(doc! {"find": "c", "$db": "d"});
        finder.send(&find).await.unwrap();
    }
    let is_reached = async || {
        let now = scene.concurrency().await;
        now.limit == Some(limit) && now.in_progress == limit && now.waiting > 0
    };
    eventually(LIMIT, is_reached).await.unwrap();
    for (client, commands) in &mut urgent {
        for (database, command) in commands {
            let reply = client.command(database, command.clone()).await.unwrap();
            assert!(reply.is_ok(), "{command}: {reply:?}");
            assert!(scene.concurrency().await.waiting > 0, "{command}");
        }
    }
}

/// Clients, each with the commands that it must send, and the database of each command. Seawall
/// runs these commands without waiting for a slot: later statements, the commit and the abort of a
/// transaction, `killCursors` and `endSessions`. For the last command, `seawall`, Seawall itself
/// asks the server for the rights of the user.
async fn urgent_clients(
    scene: &ConcurrencyScene,
) -> Vec<(RawClient, Vec<(&'static str, Document)>)> {
    let insert = doc! {"insert": "c", "documents": [{}]};
    let mut clients = Vec::new();
    for end in ["commitTransaction", "abortTransaction"] {
        let lsid = doc! {"id": bson::Uuid::new()};
        let mut client = scene.client().await;
        let first = first_statement(insert.clone(), &lsid);
        client.expect_ok("d", first).await;
        let later = in_transaction(insert.clone(), &lsid);
        let end = in_transaction(doc! {end: 1}, &lsid);
        clients.push((client, vec![("d", later), ("admin", end)]));
    }
    let mut client = scene.client().await;
    client.expect_ok("d", insert).await;
    let lsid = doc! {"id": bson::Uuid::new()};
    let find = doc! {"find": "c", "batchSize": 1, "lsid": &lsid};
    let cursor = client.expect_ok("d", find).await.cursor_id().unwrap();
    let kill = doc! {"killCursors": "c", "cursors": [cursor], "lsid": &lsid};
    let end = doc! {"endSessions": [lsid]};
    let own = doc! {"seawall": "status"};
    clients.push((client, vec![("d", kill), ("admin", end), ("admin", own)]));
    clients
}

/// Reads one reply from each client. Checks that no reply is an error.
async fn must_succeed(clients: Vec<RawClient>) {
    for mut client in clients {
        let reply = client.read_reply().await.unwrap();
        assert!(reply.is_ok(), "{reply:?}");
    }
}

/// After `fsync` with `lock`, all writes wait until a client sends `fsyncUnlock`.
#[tokio::test]
async fn fsync_unlock_runs_although_writes_that_wait_for_it_hold_all_connections() {
    let scene =
        ConcurrencyScene::start_with("pool.concurrency = \"off\"\npool.max_pool_size = 3\n").await;
    let mut operator = scene.client().await;
    operator
        .expect_ok("admin", doc! {"fsync": 1, "lock": true})
        .await;
    let mut blocked = Vec::new();
    for n in 0..4 {
        let insert = doc! {"insert": "c", "documents": [{"n": n}]};
        blocked.push(scene.running(insert).await);
    }
    eventually(LIMIT, async || {
        let pool = scene.pool().await;
        (pool.pending, pool.in_use, pool.wait_queue) == (0, 3, 1)
    })
    .await
    .unwrap();
    operator.expect_ok("admin", doc! {"fsyncUnlock": 1}).await;
    must_succeed(blocked).await;
}

#[tokio::test]
async fn a_long_operation_does_not_block_other_operations() {
    // The long read becomes exempt from the limit when it has taken eight times as long as other
    // operations. On a busy machine, the insert at the start of the scene can take a second. The
    // find below then waits for several seconds.
    let toml = "pool.concurrency = 1\npool.wait_queue_timeout_ms = 60000\n";
    let scene = ConcurrencyScene::start_with(toml).await;
    let _long = scene.running(long_read()).await;
    eventually(LIMIT, async || scene.concurrency().await.in_progress == 1)
        .await
        .unwrap();
    scene.run(doc! {"find": "c"}).await;
    assert_eq!(scene.concurrency().await.exempt, 1);
}

#[tokio::test]
async fn long_operations_become_exempt_from_the_concurrency_limit_so_that_others_can_begin() {
    let scene = ConcurrencyScene::start(2).await;
    let mut reads = Vec::new();
    for _ in 0..6 {
        reads.push(scene.running(long_read()).await);
    }
    // While no operation completes, Seawall makes running reads exempt from the limit, one after
    // another. Each time, one of the waiting reads can begin, so in the end no read waits.
    eventually(LIMIT, async || {
        let now = scene.concurrency().await;
        (now.in_progress, now.exempt, now.waiting) == (2, 4, 0)
    })
    .await
    .unwrap();
    let limit = scene.concurrency().await;
    assert_eq!((&*limit.mode, limit.limit), ("fixed", Some(2)));
    let gauges = [
        scene.gauge("in_progress").await,
        scene.gauge("exempt").await,
        scene.gauge("waiting").await,
    ];
    assert_eq!(gauges, ["2", "4", "0"]);
    drop(reads);
}

#[tokio::test]
async fn operations_that_wait_for_a_connection_are_counted_as_waiting() {
    // Two reads use both pooled connections. Even if these two reads become exempt from the
    // concurrency limit, the other four reads still wait for a connection.
    let scene =
        ConcurrencyScene::start_with("pool.concurrency = 2\npool.max_pool_size = 2\n").await;
    let mut reads = Vec::new();
    for _ in 0..6 {
        reads.push(scene.running(long_read()).await);
    }
    // The second connection may be established after all six reads have arrived.
    eventually(LIMIT, async || {
        let pool = scene.pool().await;
        (pool.in_use, pool.concurrency.waiting) == (2, 4)
    })
    .await
    .unwrap();
    assert_eq!(scene.gauge("waiting").await, "4");
    drop(reads);
}

/// An election changes the types of servers. The limit that was found for a secondary says nothing
/// about the same server as the primary, because it then serves other operations.
#[tokio::test]
async fn the_concurrency_limit_of_a_server_begins_again_at_32_when_the_server_becomes_primary() {
    let set = ReplicaSet::start(2, Options::default()).await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let secondaries = set.secondaries().await;
    let [secondary] = secondaries.as_slice() else {
        panic!("expected one secondary");
    };
    let address = secondary.address().to_string();
    let settled = async || {
        let pools: Pools = seawall.api("/api/v1/pools").await;
        let mut pools = pools.pools.into_iter();
        let pool = pools.find(|pool| pool.server == address).unwrap();
        pool.concurrency.settled.unwrap()
    };
    assert_eq!(settled().await, 32);
    let expires = doc! {"failCommands": ["find"], "errorCode": MAX_TIME_MS_EXPIRED};
    let administrator = set.administrator_of(secondary).await.unwrap();
    fail_command(&administrator, FailTimes::Always, expires)
        .await
        .unwrap();
    // Seawall lowers the limit, because all operations exceed their time limit.
    let is_lowered = async || {
        let mut client = RawClient::connect(seawall.address().parse().unwrap())
            .await
            .unwrap();
        for _ in 0..8 {
            let find = doc! {"find": "c", "$readPreference": {"mode": "secondary"}};
            let reply = client.command("d", find).await.unwrap();
            assert_eq!(reply.code(), Some(MAX_TIME_MS_EXPIRED), "{reply:?}");
        }
        settled().await < 32
    };
    eventually(LIMIT, is_lowered).await.unwrap();
    let primary = set.step_down().await.unwrap();
    assert_eq!(primary.address(), secondary.address());
    eventually(LIMIT, async || settled().await == 32)
        .await
        .unwrap();
}
