//! Reconnect storms: many clients time out, and each of them reconnects immediately. The tests
//! check how much of a storm reaches the servers, and how Seawall reports the storm.

use std::time::Duration;

use bson::{Document, doc};
use futures_util::future::join_all;
use rustix::process::Signal;
use seawall_api::{Captures, Named, Pools, Storms};
use seawall_capture::{Reader, record::Content};
use seawall_load::{Behaviour, Mix, Objectives, Plan, Report, Target, Work};
use seawall_tests::{
    eventually::eventually,
    mongod::{
        FailTimes, NewUser, Options, ROOT, ROOT_PASSWORD, ReplicaSet, Standalone,
        clear_fail_command, create_user, fail_command,
    },
    process::Process,
    raw::{KeyCache, Login, OpMsg, RawClient, message::MORE_TO_COME},
    scratch::Scratch,
    seawall::{self as proxy, Seawall},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
    time::interval,
};

const LIMIT: Duration = Duration::from_secs(60);
const POOL: u32 = 8;

struct StormScene {
    server: Standalone,
    seawall: Seawall,
}

impl StormScene {
    async fn start() -> Self {
        Self::start_with("").await
    }

    async fn start_with(toml: &str) -> Self {
        let server = Standalone::start(Options::with_auth()).await.unwrap();
        let user = NewUser::new("admin", "shop", "secret").role("readWrite", "load");
        create_user(&server.client().unwrap(), &user).await.unwrap();
        let options = proxy::Options {
            // The timeout also applies to Seawall's regular checks of the server. It is long, so
            // that no check fails on a slow machine.
            toml: format!(
                "pool.max_pool_size = {POOL}\ndeployment.connect_timeout_ms = 60000\n{toml}"
            ),
            ..proxy::Options::default()
        };
        let seawall = Seawall::start_with(&server.uri(), options).await;
        Self { server, seawall }
    }

    /// Starts clients that time out and reconnect. They stop after four minutes.
    async fn storm(&self, clients: usize) -> JoinHandle<Report> {
        let uri = format!("mongodb://shop:secret@{}/", self.seawall.address());
        let plan = Plan {
            target: Target::parse(&uri).await.unwrap(),
            clients,
            behaviour: Behaviour::Short,
            duration: LIMIT * 4,
            patience: (Duration::from_millis(40), Duration::from_millis(500)),
            work: Work {
                database: "load".to_owned(),
                collection: "things".to_owned(),
                documents: 100,
                payload_bytes: 100,
                mix: Mix::FINDS,
            },
        };
        tokio::spawn(async move { seawall_load::run(plan, |_| {}).await.unwrap() })
    }

    async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        self.seawall.metric(name, labels).await
    }

    /// Waits until the metric has risen by this amount.
    async fn wait_for_rise(&self, name: &str, labels: &[&str], by: f64) {
        let before = self.metric(name, labels).await;
        let rose = async || self.metric(name, labels).await >= before + by;
        eventually(LIMIT, rose).await.unwrap();
    }

    async fn is_in_a_storm(&self) -> bool {
        self.storms().await.active
    }

    async fn storms(&self) -> Storms {
        self.seawall.api("/api/v1/storms").await
    }

    async fn wait_until_served(&self) {
        let finds = ["command=\"find\"", "outcome=\"ok\""];
        self.wait_for_rise("seawall_operations_total", &finds, 200.0)
            .await;
    }
}

#[tokio::test]
async fn reconnecting_clients_of_a_suspended_server_cause_few_server_connections_and_logins() {
    let scene = StormScene::start().await;
    let storm = scene.storm(100).await;
    scene.wait_until_served().await;
    scene.server.mongod().stop_process().unwrap();
    scene.wait_for_give_ups(300.0).await;
    scene.server.mongod().continue_process().unwrap();
    scene.assert_withstood(storm).await;
}

/// Each reply takes 600 ms. The clients have timeouts from 40 to 500 ms, so they give up before the
/// reply arrives.
#[tokio::test]
async fn reconnecting_clients_of_a_slow_server_cause_few_server_connections_and_logins() {
    let scene = StormScene::start().await;
    let control = scene.server.client().unwrap();
    let storm = scene.storm(100).await;
    scene.wait_until_served().await;
    let slow = doc! { "failCommands": ["find"], "blockConnection": true, "blockTimeMS": 600 };
    fail_command(&control, FailTimes::Always, slow)
        .await
        .unwrap();
    scene.wait_for_give_ups(300.0).await;
    clear_fail_command(&control).await.unwrap();
    scene.assert_withstood(storm).await;
}

/// In a reconnect storm, many clients time out, and each of them reconnects immediately.
#[tokio::test]
async fn a_reconnect_storm_starts_a_capture_that_contains_the_operations_before_the_storm() {
    let scratch = Scratch::create().unwrap();
    let folder = scratch.join("captures");
    let toml = format!("capture.directory = {folder:?}\ncapture.on = \"storm\"\n");
    let scene = StormScene::start_with(&toml).await;
    let has_learned = async || !scene.storms().await.learning;
    eventually(LIMIT, has_learned).await.unwrap();
    let storm = scene.storm(20).await;
    let begun = async || {
        let captures: Captures = scene.seawall.api("/api/v1/captures").await;
        let mut captures = captures.captures.into_iter();
        captures.find(|capture| capture.trigger == "storm" && capture.bytes > 0)
    };
    let capture = eventually(LIMIT, begun).await.unwrap();
    scene.seawall.stop_capture(&capture.id).await;
    storm.abort();
    let part = std::fs::File::open(folder.join(&capture.id).join("part-00000.swc")).unwrap();
    let mut reader = Reader::new(part).unwrap();
    let Some(Content::Event(event)) = reader.next_record().unwrap() else {
        panic!("expected the first record to be an event");
    };
    assert_eq!(event.kind, "storm");
    let mut before = 0;
    while let Some(record) = reader.next_record().unwrap() {
        if let Content::Command(command) = record {
            before += usize::from(command.at_us < event.at_us);
        }
    }
    assert!(before > 0, "expected commands from before the storm");
}

impl StormScene {
    /// Waits until `times` further clients have disconnected before they got their reply.
    async fn wait_for_give_ups(&self, times: f64) {
        let gave_up = ["how=\"gave_up\""];
        self.wait_for_rise("seawall_client_departures_total", &gave_up, times)
            .await;
    }

    /// Checks that clients are served again, and that the storm caused few connections and logins
    /// at the servers.
    async fn assert_withstood(&self, storm: JoinHandle<Report>) {
        self.wait_until_served().await;
        storm.abort();
        let arrived = self.metric("seawall_client_connections_total", &[]).await;
        assert!(
            arrived > 700.0,
            "expected more than 700 client connections, got {arrived}"
        );
        let created = self
            .metric("seawall_server_connections_created_total", &[])
            .await;
        let logins = self
            .metric("seawall_server_authentications_total", &[])
            .await;
        // While all connections are busy, Seawall may establish one additional connection to read
        // the SCRAM keys of users.
        let pool = f64::from(POOL + 1);
        assert!(
            created <= pool && logins <= 2.0 * pool,
            "expected at most {pool} server connections and twice as many logins, got {created} and {logins}"
        );
    }
}

/// In a reconnect storm, many clients time out, and each of them reconnects immediately.
#[tokio::test]
async fn a_storm_report_lists_clients_and_counts_the_logins_that_reached_no_server() {
    let scene = StormScene::start().await;
    let has_learned = async || !scene.storms().await.learning;
    eventually(LIMIT, has_learned).await.unwrap();
    assert!(!scene.is_in_a_storm().await);
    let storm = scene.storm(20).await;
    let is_active = async || scene.is_in_a_storm().await;
    eventually(LIMIT, is_active).await.unwrap();
    // The metric changes shortly after the API.
    let gauge_is = async |value| scene.metric("seawall_storm_active", &[]).await == value;
    eventually(LIMIT, async || gauge_is(1.0).await)
        .await
        .unwrap();
    scene.wait_until_served().await;
    storm.abort();
    let is_over = async || !scene.is_in_a_storm().await;
    eventually(LIMIT, is_over).await.unwrap();
    let report = &scene.storms().await.storms[0];
    let first = |names: &[Named]| names[0].name.clone();
    assert!(report.ended_at.is_some(), "{report:?}");
    assert!(
        report.arrivals > 100 && report.peak_arrivals_per_second > 20.0,
        "{report:?}"
    );
    assert_eq!(first(&report.networks), "127.0.0.0/24");
    assert_eq!(first(&report.applications), "seawall load");
    assert!(
        first(&report.drivers).starts_with("seawall-load "),
        "{report:?}"
    );
    assert_eq!(first(&report.users), "admin.shop");
    assert!(report.departures["clean"] > 100, "{report:?}");
    assert_eq!(
        report.server_connections_absorbed,
        report.arrivals - report.server_connections_created
    );
    assert!(report.server_authentications_absorbed > 100, "{report:?}");
    assert_eq!(scene.metric("seawall_storms_total", &[]).await, 1.0);
    eventually(LIMIT, async || gauge_is(0.0).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn the_load_generator_reports_missed_objectives_and_agrees_with_the_counts_of_seawall() {
    let scene = StormScene::start().await;
    let uri = format!("mongodb://shop:secret@{}/", scene.seawall.address());
    let plan = |behaviour, clients| {
        let uri = uri.clone();
        async move {
            Plan {
                target: Target::parse(&uri).await.unwrap(),
                clients,
                behaviour,
                duration: Duration::from_secs(2),
                patience: (Duration::from_secs(5), Duration::from_secs(5)),
                work: Work {
                    database: "load".to_owned(),
                    collection: "things".to_owned(),
                    documents: 50,
                    payload_bytes: 10,
                    mix: "find=8,insert=1,update=1".parse().unwrap(),
                },
            }
        }
    };
    for behaviour in [
        Behaviour::Closed,
        Behaviour::KeptAt(100.0),
        Behaviour::ShortAt(50.0),
    ] {
        let before = scene
            .metric("seawall_operations_total", &["db=\"load\""])
            .await;
        let report = seawall_load::run(plan(behaviour, 4).await, |_| {})
            .await
            .unwrap();
        let report = serde_json::to_value(&report).unwrap();
        let operation = report["steps"].as_array().unwrap().last().unwrap();
        let asked = ["ok", "timed_out", "closed", "refused", "wrong"]
            .map(|how| operation[how].as_f64().unwrap());
        assert!(asked[0] > 10.0 && asked[1..] == [0.0; 4], "{report}");
        // The counts of the load generator and of Seawall differ only by two kinds of operations: a
        // few at the end of the run, and those with which the load generator checks the documents.
        let counted = async || {
            scene
                .metric("seawall_operations_total", &["db=\"load\""])
                .await
                - before
        };
        let fits = async || (counted().await - asked[0]).abs() <= 6.0;
        eventually(LIMIT, fits).await.unwrap();
    }
    let report = seawall_load::run(plan(Behaviour::KeptAt(50.0), 2).await, |_| {})
        .await
        .unwrap();
    assert!(report.missed(Objectives::default()).is_empty());
    let impossible = Objectives {
        goodput: Some(1e6),
        p99_ms: Some(0.000_1),
    };
    assert_eq!(report.missed(impossible).len(), 2);
}

#[tokio::test]
async fn rate_limits_close_excess_client_connections_and_delay_logins() {
    let rates =
        "limits = {connections_per_second_per_address = 20, logins_per_second_per_user = 1}";
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let options = proxy::Options {
        toml: rates.to_owned(),
        ..proxy::Options::default()
    };
    let seawall = Seawall::start_with(&server.uri(), options).await;
    let address = seawall.address().parse().unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD).keys(&KeyCache::default());
    // A login is delayed only if less than a second has passed since the previous one. On a slow
    // machine, this may not be true for the first logins.
    let is_delayed = async || {
        let mut client = RawClient::connect(address).await.unwrap();
        let outcome = client.login(&login).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
        seawall.metric("seawall_logins_delayed_total", &[]).await >= 1.0
    };
    eventually(LIMIT, is_delayed).await.unwrap();
    let clients = (0..100).map(async |_| {
        let mut client = RawClient::connect(address).await.unwrap();
        client.hello(doc! {}).await
    });
    let replies = join_all(clients).await;
    let served: Vec<_> = replies.iter().flatten().collect();
    assert!(!served.is_empty() && served.iter().all(|hello| hello.is_ok()));
    let closed = u32::try_from(replies.len() - served.len()).unwrap();
    let refused = ["reason=\"address_rate\""];
    let refused = seawall
        .metric("seawall_client_connections_refused_total", &refused)
        .await;
    assert!(
        closed > 0 && refused >= f64::from(closed),
        "expected closed clients, all counted as refused: {closed} closed, {refused} counted"
    );
}

/// While operations wait for connections, the login gate lowers the rate of logins, but not below
/// 50 per second. The time limit for a login does not include the wait at the gate.
#[tokio::test]
async fn no_client_is_closed_because_its_login_waited_at_the_gate() {
    const CLIENTS: usize = 150;
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let options = proxy::Options {
        toml: "auth.authentication_timeout_ms = 2000\n\
               [pool]\nmax_pool_size = 1\nwait_queue_timeout_ms = 60000\n"
            .to_owned(),
        ..proxy::Options::default()
    };
    let seawall = Seawall::start_with(&server.uri(), options).await;
    let address = seawall.address().parse().unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD).keys(&KeyCache::default());
    let log_in = async || {
        let mut client = RawClient::connect(address).await.unwrap();
        let outcome = client.login(&login).await;
        outcome.map(|outcome| (client, outcome.is_authenticated()))
    };
    let (mut holder, _) = log_in().await.unwrap();
    let (mut waiter, _) = log_in().await.unwrap();
    let insert = doc! {"insert": "c", "documents": [{"_id": 1}]};
    assert!(holder.command("test", insert).await.unwrap().is_ok());
    let slow = doc! {"find": "c", "filter": {"$where": "sleep(30000) || true"}, "$db": "test"};
    holder.send(&OpMsg::new(slow.clone())).await.unwrap();
    waiter.send(&OpMsg::new(slow)).await.unwrap();
    // The gate is closed as soon as it delays a login. It delays no login as long as fewer than 50
    // logins arrive in a second, so several clients log in at the same time.
    let is_closed = async || {
        let logins = join_all((0..16).map(|_| log_in())).await;
        assert!(logins.iter().all(Result::is_ok));
        seawall.metric("seawall_logins_delayed_total", &[]).await > 0.0
    };
    eventually(LIMIT, is_closed).await.unwrap();
    let logins = join_all((0..CLIENTS).map(|_| log_in())).await;
    let succeeded = logins.iter().flatten().filter(|(_, has)| *has).count();
    assert_eq!(succeeded, CLIENTS);
}

/// The concurrency limit is reached, so operations wait for a slot although server connections are
/// available. While no operation completes, Seawall lets one more operation run every 250 ms. So
/// the last of these operations waits for 15 s, unless its client disconnects.
#[tokio::test]
async fn the_login_gate_delays_logins_while_operations_wait_for_a_slot_and_opens_when_none_waits() {
    const OPERATIONS: usize = 60;
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let toml = "pool.concurrency = 1\npool.min_pool_size = 20\n";
    let seawall = Seawall::start_configured(&server.uri(), toml).await;
    let address = seawall.address().parse().unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD).keys(&KeyCache::default());
    let log_in = async || {
        let mut client = RawClient::connect(address).await.unwrap();
        let outcome = client.login(&login).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
        client
    };
    let pool = async || {
        let pools: Pools = seawall.api("/api/v1/pools").await;
        pools.pools.into_iter().next().unwrap()
    };
    let delayed = async || seawall.metric("seawall_logins_delayed_total", &[]).await;
    // If the gate limits the rate to a few hundred logins per second, it delays some of these
    // concurrent logins.
    let are_delayed = async || {
        let before = delayed().await;
        join_all((0..64).map(|_| log_in())).await;
        delayed().await > before
    };
    let mut clients = join_all((0..OPERATIONS).map(|_| log_in())).await;
    let insert = doc! {"insert": "c", "documents": [{"_id": 1}]};
    clients[0].expect_ok("test", insert).await;
    let is_filled = async || pool().await.available >= 20;
    eventually(LIMIT, is_filled).await.unwrap();
    // The first operation waited for a connection, so the gate can still limit the rate. The test
    // waits until the gate delays no login.
    let pass_at_once = async || !are_delayed().await;
    eventually(LIMIT, &pass_at_once).await.unwrap();
    let slow = doc! {"find": "c", "filter": {"$where": "sleep(60000) || true"}, "$db": "test"};
    for client in &mut clients {
        client.send(&OpMsg::new(slow.clone())).await.unwrap();
    }
    let wait_for_a_slot = async || {
        let pool = pool().await;
        pool.available > 0 && pool.concurrency.waiting > 0
    };
    eventually(LIMIT, wait_for_a_slot).await.unwrap();
    eventually(LIMIT, &are_delayed).await.unwrap();
    assert!(pool().await.concurrency.waiting > 0);
    drop(clients);
    eventually(LIMIT, &pass_at_once).await.unwrap();
}

#[tokio::test]
async fn commands_of_disconnected_clients_are_not_served() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let hello = OpMsg::new(doc! {"hello": 1, "$db": "admin"}).to_bytes();
    let left = ["stage=\"connected\""];
    let not_served = async || {
        // Usually Seawall reads the command and the end of the connection together, but sometimes
        // one after the other. The test repeats until Seawall has read both together.
        let mut client = TcpStream::connect(seawall.address()).await.unwrap();
        client.write_all(&hello).await.unwrap();
        client.shutdown().await.unwrap();
        let mut reply = Vec::new();
        // If Seawall closes the connection without reading the command, the client sees a reset.
        drop(client.read_to_end(&mut reply).await);
        seawall.metric("seawall_clients_gone_total", &left).await >= 1.0
    };
    eventually(LIMIT, not_served).await.unwrap();
}

/// While the threads that serve clients are delayed, new clients wait before Seawall reads their
/// first byte. On a deployment without logins, such a client may have sent an unacknowledged write
/// and disconnected. Seawall must still forward this write.
#[tokio::test]
async fn an_unacknowledged_write_completes_if_it_was_sent_while_seawall_was_suspended() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\nadmin.address = \"127.0.0.1:0\"\n",
        set.uri()
    );
    let process = Process::serve(&scratch.write("seawall.toml", toml).unwrap()).await;
    let address = process.address().parse().unwrap();
    let serves = async || {
        let mut client = RawClient::connect(address).await.unwrap();
        let find = client.command("left", doc! {"find": "things"}).await;
        find.is_ok_and(|reply| reply.is_ok())
    };
    eventually(LIMIT, serves).await.unwrap();
    let direct = set.client().await.unwrap();
    let things = direct.database("left").collection::<Document>("things");
    // Seawall is suspended three times for half a second. Clients connect while it is suspended.
    for round in 0..3_u32 {
        process.signal(Signal::STOP);
        let mut arrivals = interval(Duration::from_millis(10));
        for n in 0..50 {
            arrivals.tick().await;
            let insert = doc! {
                "insert": "things", "documents": [{"_id": round * 50 + n}], "writeConcern": {"w": 0}, "$db": "left",
            };
            let insert = OpMsg::new(insert).flags(MORE_TO_COME);
            let mut client = RawClient::connect(address).await.unwrap();
            client.send(&insert).await.unwrap();
        }
        process.signal(Signal::CONT);
        let all = u64::from((round + 1) * 50);
        let all_written = async || things.count_documents(doc! {}).await.unwrap() == all;
        eventually(LIMIT, all_written).await.unwrap();
    }
}
