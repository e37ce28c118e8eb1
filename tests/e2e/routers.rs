//! Seawall in front of several routers. Cursors and transactions stay on their router. A slow
//! router gets few operations, and a router that stops gets none.

use std::{ops::Range, sync::Arc, time::Duration};

use mongodb::{
    Client,
    bson::{Document, Uuid, doc},
};
use seawall_api::{Pool, Pools, Topology};
use seawall_tests::{
    crowd,
    eventually::eventually,
    mongod::{NewUser, Options, ReplicaSet, create_user},
    raw::{OpMsg, RawClient, RawReply},
    recorder::{Cut, Recorder, Recording},
    seawall::Seawall,
};
use tokio::{
    sync::{Mutex, Notify, mpsc},
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::scene::{insert, log_in, seawall_at};

const LIMIT: Duration = Duration::from_secs(60);

async fn connect(seawall: &Seawall) -> RawClient {
    let address = seawall.address().parse().unwrap();
    RawClient::connect(address).await.unwrap()
}

/// Two Seawalls, each in front of its own replica set, act as the routers of a third Seawall.
struct Sharded {
    sets: [ReplicaSet; 2],
    routers: [Seawall; 2],
    recorders: [Recorder; 2],
    seawall: Seawall,
}

const DOCUMENTS: usize = 30;

/// The default time after which a server closes an idle cursor.
const CURSOR_IDLE_MS: u32 = 600_000;

/// A latency window so large that both routers are always suitable. Their latencies do not matter.
pub(crate) const BOTH_ROUTERS: &str = "deployment.local_threshold_ms = 60000";

impl Sharded {
    async fn start(toml: &str) -> Self {
        Self::start_with(toml, CURSOR_IDLE_MS).await
    }

    /// Like `start`, but the servers close a cursor after this idle time.
    async fn start_with(toml: &str, cursor_idle_ms: u32) -> Self {
        let set = async |number: i32| {
            let parameters = ["cursorTimeoutMillis", "clientCursorMonitorFrequencySecs"];
            let values = [cursor_idle_ms.to_string(), "1".to_owned()];
            let parameters = parameters.map(str::to_owned).into_iter().zip(values);
            let options = Options {
                parameters: parameters.collect(),
                ..Options::default()
            };
            let set = ReplicaSet::start(1, options).await.unwrap();
            let things = set
                .client()
                .await
                .unwrap()
                .database("sharded")
                .collection::<Document>("things");
            things
                .insert_many((0..30).map(|n| doc! {"_id": n, "set": number}))
                .await
                .unwrap();
            set
        };
        let sets = [set(0).await, set(1).await];
        let routers = [
            Seawall::start(&sets[0].uri()).await,
            Seawall::start(&sets[1].uri()).await,
        ];
        let recorder = async |router: &Seawall| {
            Recorder::start(router.address().parse().unwrap())
                .await
                .unwrap()
        };
        let recorders = [recorder(&routers[0]).await, recorder(&routers[1]).await];
        let uri = format!(
            "mongodb://{},{}/",
            recorders[0].address(),
            recorders[1].address()
        );
        let seawall = Seawall::start_configured(&uri, toml).await;
        wait_for_routers(&seawall).await;
        Self {
            sets,
            routers,
            recorders,
            seawall,
        }
    }

    /// Waits until the servers have this number of open cursors.
    async fn wait_for_open_cursors(&self, expected: i64) {
        let are_open = async || {
            let mut open = 0;
            for set in &self.sets {
                let admin = set.client().await.unwrap().database("admin");
                let status = admin.run_command(doc! {"serverStatus": 1}).await.unwrap();
                let metrics = status.get_document("metrics").unwrap();
                let cursors = metrics.get_document("cursor").unwrap();
                let cursors = cursors.get_document("open").unwrap();
                open += cursors.get_i64("total").unwrap();
            }
            match open == expected {
                true => Ok(()),
                false => Err(open.to_string()),
            }
        };
        eventually(LIMIT, are_open).await.unwrap();
    }

    async fn served(&self, router: usize) -> f64 {
        let command = &["command=\"find\""];
        self.routers[router]
            .metric("seawall_operations_total", command)
            .await
    }
}

/// Waits until Seawall knows that all servers are routers.
pub(crate) async fn wait_for_routers(seawall: &Seawall) {
    let are_known = async || {
        let topology: Topology = seawall.api("/api/v1/topology").await;
        let mut servers = topology.servers.iter();
        topology.topology_type == "Sharded" && servers.all(|s| s.server_type == "Mongos")
    };
    eventually(LIMIT, are_known).await.unwrap();
}

#[tokio::test]
async fn each_cursor_stays_on_its_router() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    let hello = connect(&sharded.seawall)
        .await
        .hello(doc! {})
        .await
        .unwrap();
    assert_eq!(hello.body.get_str("msg").unwrap(), "isdbgrid");
    let mut clients = [
        connect(&sharded.seawall).await,
        connect(&sharded.seawall).await,
    ];
    let mut cursors = Vec::new();
    // After one slow reply, a router gets no reads for a while. So the test opens cursors until
    // both routers have enough cursors.
    let both_have_some = async {
        let mut opened_at = [0; 2];
        while cursors.len() < 300 || opened_at.iter().any(|count| *count < 50) {
            let opened = open(&mut clients[cursors.len() % 2]).await;
            opened_at[usize::try_from(opened.set).unwrap()] += 1;
            cursors.push(opened.cursor);
        }
    };
    timeout(LIMIT, both_have_some).await.unwrap();
    for (n, cursor) in cursors.into_iter().enumerate() {
        let mut seen = 10;
        let mut next = cursor;
        while next != 0 {
            let more = doc! {"getMore": next, "collection": "things", "batchSize": 10};
            let reply = clients[(n + 1) % 2].command("sharded", more).await.unwrap();
            assert!(reply.is_ok(), "{reply:?}");
            let cursor = reply.body.get_document("cursor").unwrap();
            seen += cursor.get_array("nextBatch").unwrap().len();
            next = reply.cursor_id().unwrap();
        }
        assert_eq!(seen, DOCUMENTS);
    }
}

#[tokio::test]
async fn cursors_of_several_routers_are_killed_in_one_command() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    let mut client = connect(&sharded.seawall).await;
    let (mut cursors, _) = cursors_of_both_routers(&mut client).await;
    let opened = cursors.len();
    cursors.insert(0, 4711);
    let kill = doc! {"killCursors": "things", "cursors": cursors.clone()};
    let killed = client.expect_ok("sharded", kill.clone()).await;
    let list = |reply: &RawReply, name: &str| reply.body.get_array(name).unwrap().len();
    assert_eq!(list(&killed, "cursorsKilled"), opened, "{killed:?}");
    assert_eq!(list(&killed, "cursorsNotFound"), 1, "{killed:?}");
    let again = client.command("sharded", kill).await.unwrap();
    assert_eq!(list(&again, "cursorsNotFound"), opened + 1, "{again:?}");
    let more = doc! {"getMore": cursors[1], "collection": "things"};
    let gone = client.command("sharded", more).await.unwrap();
    assert_eq!(gone.code(), Some(43), "{gone:?}");
}

/// Opens at least 40 cursors, and at least one at each router. Returns the cursors, and how many of
/// them each router has opened.
async fn cursors_of_both_routers(client: &mut RawClient) -> (Vec<i64>, [usize; 2]) {
    let mut cursors = Vec::new();
    let mut opened_at = [0; 2];
    // After one slow reply, a router gets no reads for a while. So 40 cursors may not be enough.
    let both_have_some = async {
        while cursors.len() < 40 || opened_at.contains(&0) {
            let opened = open(client).await;
            opened_at[usize::try_from(opened.set).unwrap()] += 1;
            cursors.push(opened.cursor);
        }
    };
    timeout(LIMIT, both_have_some).await.unwrap();
    (cursors, opened_at)
}

fn has_kill(connection: &Recording) -> bool {
    let commands = connection.commands();
    commands.iter().any(|of| of.contains_key("killCursors"))
}

/// Waits until the router behind one of these recorders gets a `killCursors`.
async fn wait_for_kill_cursors(recorders: &[Recorder]) {
    let has_arrived = async || {
        let mut connections = recorders.iter().flat_map(Recorder::connections);
        connections.any(|connection| has_kill(&connection))
    };
    eventually(LIMIT, has_arrived).await.unwrap();
}

/// Sends a command that kills cursors of both routers, while the second router does not reply.
/// Waits until this router gets the command. Returns how many cursors each router has.
async fn kill_while_the_second_is_silent(sharded: &Sharded, client: &mut RawClient) -> [usize; 2] {
    let (cursors, opened_at) = cursors_of_both_routers(client).await;
    sharded.recorders[1].hold_replies(true);
    let kill = doc! {"killCursors": "things", "cursors": cursors, "$db": "sharded"};
    client.send(&OpMsg::new(kill)).await.unwrap();
    wait_for_kill_cursors(&sharded.recorders[1..]).await;
    opened_at
}

/// Kills cursors of both routers, while the second router does not reply. If `is_cut` is true, the
/// connections of the second router end; otherwise this router hangs. The reply must list the
/// cursors of the second router as alive.
async fn check_cursors_of_a_silent_router(toml: &str, is_cut: bool) {
    let sharded = Sharded::start(toml).await;
    let mut client = connect(&sharded.seawall).await;
    let opened_at = kill_while_the_second_is_silent(&sharded, &mut client).await;
    if is_cut {
        let recorder = &sharded.recorders[1];
        // The connections are cut first, so that the held replies are never forwarded.
        recorder.cut_all(Cut::Reset);
        recorder.hold_replies(false);
    }
    let killed = client.read_reply().await.unwrap();
    assert!(killed.is_ok(), "{killed:?}");
    let list = |name: &str| killed.body.get_array(name).unwrap().len();
    assert_eq!(list("cursorsKilled"), opened_at[0], "{killed:?}");
    assert_eq!(list("cursorsAlive"), opened_at[1], "{killed:?}");
}

#[tokio::test]
async fn cursors_are_reported_alive_if_the_connection_ends_before_the_reply_to_kill_cursors() {
    check_cursors_of_a_silent_router(BOTH_ROUTERS, true).await;
}

#[tokio::test]
async fn cursors_are_reported_alive_if_their_router_hangs() {
    let toml = format!(
        "{BOTH_ROUTERS}\ndeployment.connect_timeout_ms = 1000\n\
         deployment.heartbeat_frequency_ms = 500\n"
    );
    check_cursors_of_a_silent_router(&toml, false).await;
}

/// A *probe* is a `hello` with which Seawall checks a server.
#[tokio::test]
async fn seawall_probes_a_router_whose_connection_ends_before_the_reply_to_kill_cursors() {
    let times = "connect_timeout_ms = 1000\ndeployment.heartbeat_frequency_ms = 600000\n";
    let sharded = Sharded::start(&format!("{BOTH_ROUTERS}\ndeployment.{times}")).await;
    let mut client = connect(&sharded.seawall).await;
    kill_while_the_second_is_silent(&sharded, &mut client).await;
    // Only this connection ends. The router does not reply to the probe, so the probe fails.
    let recorder = &sharded.recorders[1];
    let connection = recorder.connections().iter().position(has_kill).unwrap();
    recorder.cut(connection, Cut::Reset);
    assert!(client.read_reply().await.unwrap().is_ok());
    let is_suspect = async || {
        let topology: Topology = sharded.seawall.api("/api/v1/topology").await;
        topology.servers.iter().any(|server| server.suspect)
    };
    eventually(LIMIT, is_suspect).await.unwrap();
}

#[tokio::test]
async fn kill_cursors_to_which_no_router_replies_counts_as_failed() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    let mut client = connect(&sharded.seawall).await;
    let (cursors, _) = cursors_of_both_routers(&mut client).await;
    let opened = cursors.len();
    for recorder in &sharded.recorders {
        recorder.hold_replies(true);
    }
    let kill = doc! {"killCursors": "things", "cursors": cursors, "$db": "sharded"};
    client.send(&OpMsg::new(kill)).await.unwrap();
    wait_for_kill_cursors(&sharded.recorders).await;
    for recorder in &sharded.recorders {
        recorder.refuse(true);
        recorder.cut_all(Cut::Reset);
    }
    let killed = client.read_reply().await.unwrap();
    let alive = killed.body.get_array("cursorsAlive").unwrap().len();
    assert_eq!(alive, opened);
    let is_counted = async || {
        let labels = [r#"command="killCursors""#, r#"outcome="server_failed""#];
        let counted = sharded.seawall.metric("seawall_operations_total", &labels);
        counted.await == 1.0
    };
    eventually(LIMIT, is_counted).await.unwrap();
}

#[tokio::test]
async fn the_server_connection_is_kept_if_a_client_leaves_during_a_kill_cursors_over_two_routers() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    let mut client = connect(&sharded.seawall).await;
    kill_while_the_second_is_silent(&sharded, &mut client).await;
    drop(client);
    let counts_one = async |metric: &str, labels: &[&str]| {
        let is_one = async || sharded.seawall.metric(metric, labels).await == 1.0;
        eventually(LIMIT, is_one).await.unwrap();
    };
    let labels = [r#"command="killCursors""#, r#"outcome="client_gone""#];
    counts_one("seawall_operations_total", &labels).await;
    sharded.recorders[1].hold_replies(false);
    counts_one("seawall_abandoned_replies_total", &[r#"result="kept""#]).await;
}

/// The injected delay is a wait in Seawall, which counts towards the time limit.
#[tokio::test]
async fn a_kill_cursors_over_several_routers_has_one_time_limit() {
    let fault = "fault = {command = \"killCursors\", delay_ms = 200}";
    let sharded = Sharded::start(&format!("{BOTH_ROUTERS}\n{fault}\n")).await;
    let mut client = connect(&sharded.seawall).await;
    let (cursors, _) = cursors_of_both_routers(&mut client).await;
    let mut kill = doc! {"killCursors": "things", "cursors": cursors, "maxTimeMS": 100};
    let late = client.command("sharded", kill.clone()).await.unwrap();
    assert_eq!(late.code(), Some(50), "{late:?}");
    kill.insert("maxTimeMS", 600_000);
    client.expect_ok("sharded", kill).await;
    for recorder in &sharded.recorders {
        let connections = recorder.connections().into_iter();
        let commands = connections.flat_map(|of| of.commands());
        let mut parts = commands.filter(|command| command.contains_key("killCursors"));
        let max_time_ms = parts.next().unwrap().get_i32("maxTimeMS").unwrap();
        assert!(max_time_ms <= 600_000 - 200, "{max_time_ms}");
        assert!(parts.next().is_none());
    }
}

#[tokio::test]
async fn each_transaction_stays_on_its_router() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    // The transactions cannot create the collection, so it must exist on both sets.
    for set in &sharded.sets {
        let db = set.client().await.unwrap().database("sharded");
        db.create_collection("moved").await.unwrap();
    }
    let client = Client::with_uri_str(sharded.seawall.uri()).await.unwrap();
    // After one slow reply, a router gets no reads for a while. So the test runs transactions until
    // both routers have some.
    let both_have_some = async {
        let mut opened = 0;
        loop {
            transactions(&client, opened..opened + 100).await;
            opened += 100;
            let mut counts = Vec::new();
            for set in &sharded.sets {
                let db = set.client().await.unwrap().database("sharded");
                let moved = db.collection::<Document>("moved");
                let whole = moved.count_documents(doc! {"part": 1});
                counts.push(whole.await.unwrap());
            }
            assert_eq!(counts.iter().sum::<u64>(), u64::from(opened), "{counts:?}");
            if counts.iter().all(|count| *count > 10) {
                return;
            }
        }
    };
    timeout(LIMIT, both_have_some).await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_waits_for_a_connection_to_a_stopped_router_begins_on_another_router() {
    let sharded = Sharded::start(&format!("{BOTH_ROUTERS}\npool.max_pool_size = 1")).await;
    let pools = async |is_there: fn(&Pool) -> bool| {
        let both = async || {
            let pools: Pools = sharded.seawall.api("/api/v1/pools").await;
            pools.pools.iter().all(is_there)
        };
        eventually(LIMIT, both).await.unwrap();
    };
    let mut tasks = JoinSet::new();
    // These reads use the only connection to each router for some seconds.
    for _ in 0..2 {
        let mut client = connect(&sharded.seawall).await;
        let wait = doc! {"$where": "sleep(100) || true"};
        let find = doc! {"find": "things", "filter": wait};
        tasks.spawn(async move { drop(client.command("sharded", find).await) });
    }
    pools(|pool| pool.in_use == 1).await;
    let mut begun = JoinSet::new();
    for number in 0..4 {
        let mut client = connect(&sharded.seawall).await;
        let insert = doc! {
            "insert": "things", "documents": [{"_id": 100 + number}], "lsid": {"id": Uuid::new()},
            "txnNumber": 1_i64, "startTransaction": true, "autocommit": false,
        };
        begun.spawn(async move { client.command("sharded", insert).await.unwrap() });
    }
    pools(|pool| pool.wait_queue > 0).await;
    sharded.recorders[1].refuse(true);
    sharded.recorders[1].cut_all(Cut::Reset);
    for reply in begun.join_all().await {
        assert!(reply.is_ok(), "{reply:?}");
    }
}

/// Runs transactions that are all open at the same time.
async fn transactions(client: &Client, ids: Range<u32>) {
    let moved = client.database("sharded").collection::<Document>("moved");
    let mut sessions = Vec::new();
    for n in ids {
        let mut session = client.start_session().await.unwrap();
        session.start_transaction().await.unwrap();
        let insert = moved.insert_one(doc! {"_id": n, "part": 0});
        insert.session(&mut session).await.unwrap();
        sessions.push((n, session));
    }
    for (n, session) in &mut sessions {
        let update = moved.update_one(doc! {"_id": *n}, doc! {"$inc": {"part": 1}});
        let updated = update.session(&mut *session).await.unwrap();
        assert_eq!(updated.modified_count, 1);
        session.commit_transaction().await.unwrap();
    }
}

#[tokio::test]
async fn only_routers_within_the_latency_window_are_used() {
    let sharded = Sharded::start("deployment.heartbeat_frequency_ms = 500").await;
    sharded.recorders[1].delay(Duration::from_millis(500));
    let is_far = async || {
        let topology: Topology = sharded.seawall.api("/api/v1/topology").await;
        let far = sharded.recorders[1].address().to_string();
        let mut servers = topology.servers.iter();
        let far = servers.find(|server| server.address == far).unwrap();
        far.round_trip_ms.is_some_and(|time| time > 400.0)
    };
    eventually(LIMIT, is_far).await.unwrap();
    let before = sharded.served(1).await;
    let mut client = connect(&sharded.seawall).await;
    for _ in 0..50 {
        client.expect_ok("sharded", doc! {"find": "things"}).await;
    }
    assert!((sharded.served(1).await - before).abs() < f64::EPSILON);
    eventually(LIMIT, async || sharded.served(0).await >= 50.0)
        .await
        .unwrap();
}

const READERS: u32 = 8;
const READS: u32 = 250;

/// Runs the reads of several clients concurrently. Returns the average duration of a read.
async fn reads(sharded: &Sharded) -> Duration {
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..READERS {
        let mut client = connect(&sharded.seawall).await;
        clients.spawn(async move {
            for n in 0..READS {
                let find = doc! {"find": "things", "filter": {"_id": n % 30}};
                client.expect_ok("sharded", find).await;
            }
        });
    }
    clients.join_all().await;
    began.elapsed() / READS
}

#[tokio::test]
async fn a_slow_router_gets_few_of_the_reads() {
    let sharded = Sharded::start(BOTH_ROUTERS).await;
    let all = f64::from(READERS * READS);
    // Number of reads that each router has served. Waits until both routers together have counted
    // `all` reads, because Seawall counts an operation after it has sent the reply.
    let counts = async |all: f64| {
        let counts = async || {
            let counts = (sharded.served(0).await, sharded.served(1).await);
            (counts.0 + counts.1 >= all).then_some(counts)
        };
        eventually(LIMIT, counts).await.unwrap()
    };
    // Delays the bytes of one router in both directions, so that its latency is about ten times the
    // usual latency.
    let usual = reads(&sharded).await;
    sharded.recorders[1].delay((usual * 9 / 2).max(Duration::from_millis(20)));
    let before = counts(all).await;
    reads(&sharded).await;
    let after = counts(2.0 * all).await;
    let (fast, slow) = (after.0 - before.0, after.1 - before.1);
    assert!(
        slow * 5.0 < fast + slow,
        "expected under a fifth of the reads at the slow router, got {slow}, and {fast} at the other"
    );
    // The slow router must still get some reads.
    assert!(
        slow > 0.0,
        "expected some reads at the slow router, got none, and {fast} at the other"
    );
}

#[tokio::test]
async fn a_client_gets_no_error_while_a_router_shuts_down_gracefully() {
    let sharded = Sharded::start("deployment.heartbeat_frequency_ms = 500").await;
    let mut client = connect(&sharded.seawall).await;
    let find = doc! {"find": "things"};
    let drained = Arc::new(Notify::new());
    let leaving = async {
        sharded.routers[0].app.drain(drained.notified()).await;
    };
    let working = async {
        let left = async || {
            let topology: Topology = sharded.seawall.api("/api/v1/topology").await;
            let mut servers = topology.servers.iter();
            servers.any(|server| server.server_type == "Unknown")
        };
        let mut served = 0;
        while !left().await || served < 100 {
            client.expect_ok("sharded", find.clone()).await;
            served += 1;
        }
        drained.notify_one();
        for _ in 0..100 {
            client.expect_ok("sharded", find.clone()).await;
        }
    };
    timeout(LIMIT, async { tokio::join!(leaving, working) })
        .await
        .unwrap();
}

const CONNECTIONS: usize = 50;
const CURSORS: usize = 8_000;
const TRANSACTIONS: usize = 2_000;

/// A cursor that has returned its first batch. `set` is the number of the replica set that returned
/// the batch.
#[derive(Clone, Copy)]
struct Opened {
    cursor: i64,
    set: i32,
}

fn set_of(document: &Document, batch: &str) -> i32 {
    let batch = document.get_document("cursor").unwrap().get_array(batch);
    let sets = batch.unwrap().iter();
    let sets: Vec<_> = sets
        .map(|d| d.as_document().unwrap().get_i32("set").unwrap())
        .collect();
    assert!(sets.iter().all(|set| set == &sets[0]), "{sets:?}");
    sets[0]
}

async fn open(client: &mut RawClient) -> Opened {
    let find = doc! {"find": "things", "batchSize": 10};
    let reply = client.command("sharded", find).await.unwrap();
    Opened {
        cursor: reply.cursor_id().filter(|id| *id != 0).unwrap(),
        set: set_of(&reply.body, "firstBatch"),
    }
}

async fn get_more(client: &mut RawClient, opened: Opened) -> RawReply {
    let more = doc! {"getMore": opened.cursor, "collection": "things", "batchSize": 10};
    client.command("sharded", more).await.unwrap()
}

/// Reads the next batch of a cursor, and checks that it comes from the same set as the first
/// batch. Returns false if the server did not find the cursor.
async fn continues(client: &mut RawClient, opened: Opened) -> bool {
    let reply = get_more(client, opened).await;
    if reply.code() == Some(43) {
        return false;
    }
    assert!(reply.is_ok(), "{reply:?}");
    assert_eq!(set_of(&reply.body, "nextBatch"), opened.set);
    true
}

/// Opens cursors on every connection. A channel passes each cursor to a connection that continues
/// the cursor, usually a different connection from the one that opened it.
async fn many_cursors(sharded: &Sharded, count: usize) {
    let (opened, waiting) = mpsc::channel(count);
    let waiting = Arc::new(Mutex::new(waiting));
    let mut workers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let mut client = connect(&sharded.seawall).await;
        let (opened, waiting) = (opened.clone(), Arc::clone(&waiting));
        workers.spawn(async move {
            for _ in 0..count / CONNECTIONS {
                opened.send(open(&mut client).await).await.unwrap();
                let other = waiting.lock().await.recv().await.unwrap();
                assert!(continues(&mut client, other).await);
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
}

/// Runs transactions that consist of an insert, an update and a commit. Each of the three commands
/// uses a different client connection.
async fn many_transactions(sharded: &Sharded, count: usize) {
    let mut workers = JoinSet::new();
    for worker in 0..CONNECTIONS {
        let mut clients = [
            connect(&sharded.seawall).await,
            connect(&sharded.seawall).await,
            connect(&sharded.seawall).await,
        ];
        workers.spawn(async move {
            for n in 0..count / CONNECTIONS {
                let lsid = doc! {"id": Uuid::new()};
                let id = format!("{worker} {n}");
                let commands = [
                    ("sharded", doc! {"insert": "moved", "documents": [{"_id": &id, "part": 0}], "startTransaction": true}),
                    ("sharded", doc! {"update": "moved", "updates": [{"q": {"_id": &id}, "u": {"$inc": {"part": 1}}}]}),
                    ("admin", doc! {"commitTransaction": 1}),
                ];
                for (client, (db, mut command)) in clients.iter_mut().zip(commands) {
                    let part = doc! {"lsid": lsid.clone(), "txnNumber": 1_i64, "autocommit": false};
                    command.extend(part);
                    let reply = client.expect_ok(db, command).await;
                    assert_eq!(reply.body.get_i32("n").unwrap_or(1), 1, "{reply:?}");
                }
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_10_000_cursors_and_transactions_stays_on_one_router_for_all_client_connections() {
    let _turn = crowd::turn().await;
    let toml = format!(
        "{BOTH_ROUTERS}\ndeployment.heartbeat_frequency_ms = 500\n\
         deployment.server_selection_timeout_ms = 2000\npool.max_pool_size = 20\n"
    );
    let sharded = Sharded::start(&toml).await;
    for set in &sharded.sets {
        let db = set.client().await.unwrap().database("sharded");
        db.create_collection("moved").await.unwrap();
    }
    many_cursors(&sharded, CURSORS).await;
    many_transactions(&sharded, TRANSACTIONS).await;
    let mut parts = Vec::new();
    for set in &sharded.sets {
        let db = set.client().await.unwrap().database("sharded");
        let moved = db.collection::<Document>("moved");
        parts.push(moved.count_documents(doc! {"part": 1}).await.unwrap());
    }
    let committed = usize::try_from(parts.iter().sum::<u64>()).unwrap();
    assert_eq!(committed, TRANSACTIONS);
    assert!(parts.iter().all(|part| *part > 100), "{parts:?}");

    // One router becomes unreachable. The cursors of the other router continue, and new cursors
    // open only on that router.
    let mut client = connect(&sharded.seawall).await;
    let mut opened: Vec<Opened> = Vec::new();
    let both_have_some = async {
        let at = |opened: &[Opened], set| opened.iter().filter(|o| o.set == set).count();
        while at(&opened, 0) < 50 || at(&opened, 1) < 50 {
            opened.push(open(&mut client).await);
        }
    };
    timeout(LIMIT, both_have_some).await.unwrap();
    sharded.recorders[1].refuse(true);
    sharded.recorders[1].cut_all(Cut::Reset);
    for _ in 0..50 {
        assert_eq!(open(&mut client).await.set, 0);
    }
    let (there, lost): (Vec<_>, Vec<_>) = opened.into_iter().partition(|o| o.set == 0);
    for opened in there {
        assert!(continues(&mut client, opened).await);
    }
    assert!(!continues(&mut client, lost[0]).await);
    // When the router accepts connections again, its cursors continue.
    sharded.recorders[1].refuse(false);
    let is_back = async || {
        let topology: Topology = sharded.seawall.api("/api/v1/topology").await;
        let mut servers = topology.servers.iter();
        servers.all(|server| server.server_type == "Mongos")
    };
    eventually(LIMIT, is_back).await.unwrap();
    for opened in lost {
        assert!(continues(&mut client, opened).await);
    }
}

#[tokio::test]
async fn a_timed_out_cursor_is_not_found_on_any_router() {
    let toml = format!("{BOTH_ROUTERS}\nlimits.cursor_idle_ms = 4000\n");
    let sharded = Sharded::start_with(&toml, 4000).await;
    let mut client = connect(&sharded.seawall).await;
    let mut opened = Vec::new();
    for _ in 0..100 {
        opened.push(open(&mut client).await);
    }
    sharded.wait_for_open_cursors(0).await;
    for opened in opened {
        assert!(!continues(&mut client, opened).await);
    }
    // Seawall still finds a cursor that is opened after the timeout.
    let opened = open(&mut client).await;
    assert!(continues(&mut client, opened).await);
}

/// `cursorTimeoutMillis` does not apply to a cursor of a session. All drivers use sessions.
#[tokio::test]
async fn a_cursor_of_a_session_is_found_after_the_server_has_closed_idle_cursors_without_session() {
    let sharded = Sharded::start_with(BOTH_ROUTERS, 1000).await;
    let mut client = connect(&sharded.seawall).await;
    let lsid = doc! {"id": Uuid::new()};
    let mut of_session = Vec::new();
    for _ in 0..20 {
        let find = doc! {"find": "things", "batchSize": 1, "lsid": &lsid};
        let reply = client.command("sharded", find).await.unwrap();
        of_session.push(reply.cursor_id().unwrap());
        open(&mut client).await;
    }
    sharded.wait_for_open_cursors(20).await;
    for cursor in of_session {
        let more = doc! {"getMore": cursor, "collection": "things", "lsid": &lsid};
        client.expect_ok("sharded", more).await;
    }
}

/// A router caches the SCRAM keys of users. So after a change of a password, it may refuse logins
/// that another router already accepts.
#[tokio::test]
async fn operations_of_clients_succeed_although_one_of_two_routers_refuses_every_login() {
    let set = ReplicaSet::start(1, Options::with_auth()).await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWrite", "app");
    create_user(&set.administrator().await.unwrap(), &user)
        .await
        .unwrap();
    let router = Seawall::start(&set.uri()).await;
    // This router serves only another user, so it refuses every login of `app`.
    let toml = "[[auth.users]]\nname = \"other\"\nsource = \"admin\"\npassword = \"secret\"\n";
    let refusing = Seawall::start_configured(&set.uri(), toml).await;
    let uri = format!("mongodb://{},{}/", router.address(), refusing.address());
    let seawall = seawall_at(&uri, BOTH_ROUTERS).await;
    wait_for_routers(&seawall).await;
    let mut clients = Vec::new();
    // The user's first login fails if Seawall forwards it to the refusing router, so the test
    // repeats the login.
    let logins = async {
        while clients.len() < 3 {
            let (client, outcome) = log_in(&seawall, &user.login()).await;
            if outcome.is_authenticated() {
                clients.push(client);
            }
        }
    };
    timeout(LIMIT, logins).await.unwrap();
    let refusals = async || {
        let refused = &["result=\"refused\""];
        refusing
            .metric("seawall_client_authentications_total", refused)
            .await
    };
    let before = refusals().await;
    let operations = async {
        while refusals().await <= before {
            for client in &mut clients {
                let reply = insert(client, "app").await;
                assert!(reply.is_ok(), "{reply:?}");
            }
        }
    };
    timeout(LIMIT, operations).await.unwrap();
    for client in &mut clients {
        assert!(insert(client, "app").await.is_ok());
    }
}
