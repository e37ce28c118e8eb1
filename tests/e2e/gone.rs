//! Tests of clients that disconnect during an operation: Seawall ends their reads at the server,
//! and keeps the server connections in the pool.

use std::time::Duration;

use mongodb::{
    Client,
    bson::{Document, doc},
    options::WriteConcern,
};
use seawall_api::Pools;
use seawall_tests::{
    eventually::eventually,
    mongod::{NewUser, Options, ReplicaSet, Standalone, create_user},
    raw::{KeyCache, Login, OpMsg, RawClient, message::MORE_TO_COME},
    seawall::{self, Seawall},
};

/// Time limit of each wait. A read takes longer than this limit, so a read that ends within the
/// limit was killed.
const LIMIT: Duration = Duration::from_secs(25);

/// Number of clients that disconnect in a test. A full run sets `TEST_GONE_CLIENTS=500`.
const CLIENTS: usize = 50;

fn clients() -> usize {
    let count = std::env::var("TEST_GONE_CLIENTS").ok();
    count.map_or(CLIENTS, |count| count.parse().unwrap())
}

struct DisconnectScene {
    root: Client,
    server: Standalone,
    seawall: Seawall,
    login: Login,
}

impl DisconnectScene {
    async fn start(max_pool_size: usize) -> Self {
        let server = Standalone::start(Options::with_auth()).await.unwrap();
        let root = server.client().unwrap();
        let login = prepare(&root, 1).await;
        let options = seawall::Options {
            toml: format!(
                "[pool]\nmax_pool_size = {max_pool_size}\nmax_connecting = 20\nwait_queue_timeout_ms = 60000"
            ),
            ..seawall::Options::default()
        };
        let seawall = Seawall::start_with(&server.uri(), options).await;
        Self {
            root,
            server,
            seawall,
            login,
        }
    }

    async fn client(&self) -> RawClient {
        let address = self.seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        assert!(client.login(&self.login).await.unwrap().is_authenticated());
        client
    }

    /// Clients that have sent a long read and have not received a reply.
    async fn reading(&self, count: usize) -> Vec<RawClient> {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut client = self.client().await;
            client.send(&long_read()).await.unwrap();
            clients.push(client);
        }
        clients
    }

    async fn running(&self) -> usize {
        running(&self.root).await
    }

    /// Begins a read, disconnects the client, and waits until the read has ended at the server.
    async fn read_and_leave(&self) {
        let reading = self.reading(1).await;
        eventually(LIMIT, async || self.running().await == 1)
            .await
            .unwrap();
        drop(reading);
        eventually(LIMIT, async || self.running().await == 0)
            .await
            .unwrap();
    }

    async fn metric(&self, name: &str) -> f64 {
        self.seawall.metric(name, &[]).await
    }
}

/// Creates the user, and the documents that the reads scan. Returns the login of the user when all
/// members have the documents. `members` is the number of members.
async fn prepare(root: &Client, members: u32) -> Login {
    let user = NewUser::new("admin", "reader", "secret").role("readWrite", "gone");
    create_user(root, &user).await.unwrap();
    let things = root.database("gone").collection("things");
    // A read takes 30 s for each document, so no read reaches its end during a test.
    let documents = (0..20).map(|id| doc! {"_id": id});
    things
        .insert_many(documents)
        .write_concern(WriteConcern::builder().w(Some(members.into())).build())
        .await
        .unwrap();
    user.login().keys(&KeyCache::default())
}

/// Number of long reads that run at this moment on the server of `root`.
async fn running(root: &Client) -> usize {
    let pipeline = [
        doc! {"$currentOp": {"allUsers": true}},
        doc! {"$match": {"active": true, "command.find": "things"}},
        doc! {"$count": "n"},
    ];
    let mut found = root.database("admin").aggregate(pipeline).await.unwrap();
    match found.advance().await.unwrap() {
        true => usize::try_from(found.current().get_i32("n").unwrap()).unwrap(),
        false => 0,
    }
}

/// A read that takes 30 s for each document.
fn long_read() -> OpMsg {
    OpMsg::new(long_find())
}

fn long_find() -> Document {
    let filter = doc! {"$where": "sleep(30000) || true"};
    doc! {"find": "things", "filter": filter, "$db": "gone"}
}

fn count(n: usize) -> f64 {
    f64::from(u32::try_from(n).unwrap())
}

#[tokio::test]
async fn reads_of_disconnected_clients_end_and_their_server_connections_are_kept() {
    let clients = clients();
    let scene = DisconnectScene::start(clients).await;
    let reading = scene.reading(clients).await;
    let all_run = async || scene.running().await == clients;
    eventually(LIMIT, all_run).await.unwrap();
    let created = scene
        .metric("seawall_server_connections_created_total")
        .await;
    drop(reading);
    eventually(LIMIT, async || scene.running().await == 0)
        .await
        .unwrap();
    let kept = async || {
        let kept = ["result=\"kept\""];
        let kept = scene
            .seawall
            .metric("seawall_abandoned_replies_total", &kept);
        kept.await >= count(clients)
    };
    eventually(LIMIT, kept).await.unwrap();
    let ended = async || scene.metric("seawall_server_operations_ended_total").await;
    eventually(LIMIT, async || ended().await == count(clients))
        .await
        .unwrap();
    assert_eq!(
        scene.metric("seawall_clients_gone_total").await,
        count(clients)
    );
    // At most 5 % of the server connections were closed. Seawall kept the others for later
    // operations: for the finds of the client below, it opens at most as many connections as it
    // closed.
    let closed = scene
        .metric("seawall_server_connections_closed_total")
        .await;
    assert!(
        closed * 20.0 <= count(clients),
        "expected at most 5 % of {clients} server connections to be closed, got {closed}"
    );
    let mut client = scene.client().await;
    for _ in 0..clients {
        client.expect_ok("gone", doc! {"find": "things"}).await;
    }
    let now = scene
        .metric("seawall_server_connections_created_total")
        .await;
    assert!(
        now - created <= closed,
        "expected at most {closed} new connections: {created} created before, {now} now"
    );
}

/// Seawall finds the read with `$currentOp`, which a secondary refuses without a read preference.
#[tokio::test]
async fn the_read_of_a_disconnected_client_ends_on_a_secondary_too() {
    let set = ReplicaSet::start(2, Options::with_auth()).await.unwrap();
    let login = prepare(&set.client().await.unwrap(), 2).await;
    let seawall = Seawall::start(&set.uri()).await;
    let address = seawall.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    assert!(client.login(&login).await.unwrap().is_authenticated());
    let mut find = long_find();
    find.insert("$readPreference", doc! {"mode": "secondary"});
    client.send(&OpMsg::new(find)).await.unwrap();
    let secondary = set.direct_client(set.secondaries().await[0]).unwrap();
    eventually(LIMIT, async || running(&secondary).await == 1)
        .await
        .unwrap();
    drop(client);
    eventually(LIMIT, async || running(&secondary).await == 0)
        .await
        .unwrap();
    let ended = async || {
        let ended = seawall.metric("seawall_server_operations_ended_total", &[]);
        ended.await == 1.0
    };
    eventually(LIMIT, ended).await.unwrap();
}

/// Seawall sends `killOp` on an extra server connection. It keeps this connection, and sends later
/// `killOp` commands on it too.
#[tokio::test]
async fn seawall_kills_several_reads_of_disconnected_clients_with_one_extra_server_login() {
    let scene = DisconnectScene::start(1).await;
    for _ in 0..4 {
        scene.read_and_leave().await;
    }
    let logins = scene.metric("seawall_server_authentications_total").await;
    let created = scene.metric("seawall_server_connections_created_total");
    assert_eq!(logins, created.await + 1.0);
}

#[tokio::test]
async fn reads_of_disconnected_clients_still_end_after_a_server_restart() {
    let mut scene = DisconnectScene::start(1).await;
    for _ in 0..2 {
        scene.read_and_leave().await;
        scene.server.mongod_mut().restart().await.unwrap();
    }
    scene.read_and_leave().await;
}

/// The flag `moreToCome` says that the client wants no reply.
#[tokio::test]
async fn a_read_with_the_flag_more_to_come_ends_when_its_client_disconnects() {
    let scene = DisconnectScene::start(1).await;
    let mut client = scene.client().await;
    let read = long_read().flags(MORE_TO_COME);
    client.send(&read).await.unwrap();
    eventually(LIMIT, async || scene.running().await == 1)
        .await
        .unwrap();
    drop(client);
    eventually(LIMIT, async || scene.running().await == 0)
        .await
        .unwrap();
}

#[tokio::test]
async fn waiting_operations_of_disconnected_clients_leave_the_queue() {
    let (pooled, more) = (clients() / 5, clients() * 4 / 5);
    let scene = DisconnectScene::start(pooled).await;
    let reading = scene.reading(pooled).await;
    let all_run = async || scene.running().await == pooled;
    eventually(LIMIT, all_run).await.unwrap();
    let waiting = scene.reading(more).await;
    let in_queue = async || scene.metric("seawall_wait_queue_length").await;
    // The queue may also contain a command with which Seawall reads the user's SCRAM keys.
    let all_wait = async || in_queue().await >= count(more);
    eventually(LIMIT, all_wait).await.unwrap();
    drop(waiting);
    let gone = async || scene.metric("seawall_clients_gone_total").await;
    let all_left = async || gone().await == count(more) && in_queue().await == 0.0;
    eventually(LIMIT, all_left).await.unwrap();
    // The queued reads never reached the server. The other reads run until their clients
    // disconnect.
    assert_eq!(scene.running().await, pooled);
    drop(reading);
    eventually(LIMIT, async || scene.running().await == 0)
        .await
        .unwrap();
    let ended = async || scene.metric("seawall_server_operations_ended_total").await;
    eventually(LIMIT, async || ended().await == count(pooled))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_write_of_a_disconnected_client_completes() {
    let scene = DisconnectScene::start(5).await;
    let mut client = scene.client().await;
    let slow = doc! {"q": {"$where": "sleep(5000) || true"}, "u": {"$set": {"done": true}}};
    let update = doc! {"update": "things", "updates": [slow], "$db": "gone"};
    client.send(&OpMsg::new(update)).await.unwrap();
    let begun = async || {
        let pools: Pools = scene.seawall.api("/api/v1/pools").await;
        pools.pools.iter().any(|pool| pool.in_use == 1)
    };
    eventually(LIMIT, begun).await.unwrap();
    drop(client);
    let things = scene.root.database("gone").collection::<Document>("things");
    let done = async || {
        let found = things.find_one(doc! {"done": true}).await.unwrap();
        found.is_some()
    };
    eventually(LIMIT, done).await.unwrap();
    assert_eq!(
        scene.metric("seawall_server_operations_ended_total").await,
        0.0
    );
}

/// While the insert waits for a connection, the rest of its long message is still unread. So
/// Seawall does not notice during this wait that the client disconnects.
#[tokio::test]
async fn a_long_insert_that_waits_when_its_client_disconnects_closes_no_server_connection() {
    let scene = DisconnectScene::start(1).await;
    let reading = scene.reading(1).await;
    eventually(LIMIT, async || scene.running().await == 1)
        .await
        .unwrap();
    let mut client = scene.client().await;
    let documents = (100..120).map(|id| doc! {"_id": id, "pad": "x".repeat(1 << 20)});
    let insert = OpMsg::new(doc! {"insert": "things", "$db": "gone"})
        .sequence("documents", documents.collect());
    let insert = insert.to_bytes();
    client.send_bytes(&insert[..128 << 10]).await.unwrap();
    let waits = async || {
        let pools: Pools = scene.seawall.api("/api/v1/pools").await;
        pools.pools[0].wait_queue == 1
    };
    eventually(LIMIT, waits).await.unwrap();
    drop(client);
    drop(reading);
    let has_ended = async || {
        let pools: Pools = scene.seawall.api("/api/v1/pools").await;
        pools.pools[0].wait_queue == 0 && pools.pools[0].in_use == 0
    };
    eventually(LIMIT, has_ended).await.unwrap();
    // Seawall may return the connection to the pool before it counts the disconnected client.
    let is_counted = async || {
        let in_queue = [r#"stage="checkout""#];
        let gone = scene
            .seawall
            .metric("seawall_clients_gone_total", &in_queue);
        gone.await == 1.0
    };
    eventually(LIMIT, is_counted).await.unwrap();
    let closed = scene.metric("seawall_server_connections_closed_total");
    assert_eq!(closed.await, 0.0);
}
