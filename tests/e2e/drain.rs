//! Tests of how Seawall stops: drains (Seawall waits until its clients have left, and no operation
//! may fail), signals, and exit codes.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::{
    Client,
    bson::{Document, doc},
    options::ClientOptions,
};
use rustix::process::Signal;
use seawall_tests::{
    eventually::eventually,
    mongod::{
        self, ROOT, ROOT_PASSWORD, Standalone, shared_replica_set, shared_standalone, unique_name,
    },
    process::{Process, run},
    raw::{Login, OpMsg, RawClient, RawError},
    recorder::Recorder,
    scratch::Scratch,
    seawall::{Seawall, http, sum_of},
};
use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, timeout},
};

const LIMIT: Duration = Duration::from_secs(30);
const SHUTDOWN_IN_PROGRESS: i32 = 91;

/// Writes a configuration file for a Seawall process in front of the shared replica set.
async fn configuration(scratch: &Scratch, listen: &str, drain_ms: u32) -> std::path::PathBuf {
    let uri = shared_replica_set().await.unwrap().uri();
    let toml = format!(
        "listen.address = {listen:?}\ndeployment.uri = {uri:?}\nadmin.address = \"127.0.0.1:0\"\n\
         shutdown.drain_ms = {drain_ms}\n"
    );
    let name = unique_name("seawall.toml");
    scratch.write(&name, toml).unwrap()
}

async fn is_ready(process: &Process) -> bool {
    let mut client = match process.address().parse() {
        Ok(address) => RawClient::connect(address).await.unwrap(),
        Err(error) => panic!("{error}"),
    };
    client.hello(doc! {}).await.is_ok_and(|reply| reply.is_ok())
}

/// Eight tasks that run retryable reads and writes through one client of the official driver until
/// [`RetryableLoad::end`] is called.
struct RetryableLoad {
    client: Client,
    done: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
    workers: JoinSet<Vec<String>>,
}

impl RetryableLoad {
    async fn begin(addresses: &[&str]) -> Self {
        let uri = format!(
            "mongodb://{ROOT}:{ROOT_PASSWORD}@{}/?heartbeatFrequencyMS=500",
            addresses.join(",")
        );
        let options = ClientOptions::parse(uri).await.unwrap();
        let client = Client::with_options(options).unwrap();
        let mut load = Self {
            client,
            done: Arc::default(),
            is_over: Arc::default(),
            workers: JoinSet::new(),
        };
        let db = unique_name("drain");
        for worker in 0..8 {
            let things = load.client.database(&db).collection::<Document>("things");
            let (done, is_over) = (Arc::clone(&load.done), Arc::clone(&load.is_over));
            load.workers.spawn(async move {
                let mut errors = Vec::new();
                for n in 0.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let id = format!("{worker} {n}");
                    let outcome = async {
                        things.insert_one(doc! {"_id": &id, "n": 0}).await?;
                        let found = things.find_one(doc! {"_id": &id}).await?;
                        let change = doc! {"$inc": {"n": 1}};
                        let updated = things.update_one(doc! {"_id": &id}, change).await?;
                        let once = things.find_one_and_delete(doc! {"_id": &id}).await?;
                        Ok::<_, mongodb::error::Error>((found, updated.modified_count, once))
                    };
                    match outcome.await {
                        Ok((Some(_), 1, Some(last))) if last.get_i32("n").ok() == Some(1) => {}
                        Ok(other) => errors.push(format!("expected one run per write: {other:?}")),
                        Err(error) => errors.push(error.to_string()),
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                errors
            });
        }
        load
    }

    /// Waits until the workers have written, changed and deleted 200 more documents.
    async fn wait_for_progress(&self) {
        let target = self.done.load(Ordering::Relaxed) + 200;
        let has_progress = async || self.done.load(Ordering::Relaxed) >= target;
        eventually(LIMIT, has_progress).await.unwrap();
    }

    async fn end(self) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        let errors = timeout(LIMIT, self.workers.join_all()).await.unwrap();
        errors.into_iter().flatten().collect()
    }
}

#[tokio::test]
async fn no_operation_fails_in_a_rolling_restart_under_load() {
    let scratch = Scratch::create().unwrap();
    let any = configuration(&scratch, "127.0.0.1:0", 20_000).await;
    let mut processes = [Process::serve(&any).await, Process::serve(&any).await];
    for process in &processes {
        eventually(LIMIT, || is_ready(process)).await.unwrap();
    }
    let addresses = processes
        .each_ref()
        .map(|process| process.address().to_owned());
    let load = RetryableLoad::begin(&addresses.each_ref().map(String::as_str)).await;
    load.wait_for_progress().await;
    for process in &mut processes {
        let address = process.address().to_owned();
        process.signal(Signal::TERM);
        let status = process.ended().await;
        assert_eq!(status.code(), Some(0), "{}", process.log());
        // All clients left before the end of the drain time.
        let drained = process.said("drained").unwrap();
        assert_eq!(drained["fields"]["closed_clients"], 0, "{}", process.log());
        load.wait_for_progress().await;
        let same = configuration(&scratch, &address, 20_000).await;
        *process = Process::serve(&same).await;
        eventually(LIMIT, || is_ready(process)).await.unwrap();
        load.wait_for_progress().await;
    }
    assert_eq!(load.end().await, Vec::<String>::new());
}

#[tokio::test]
async fn a_second_sigterm_ends_the_drain_and_the_log_has_the_number_of_closed_clients() {
    let scratch = Scratch::create().unwrap();
    let patient = configuration(&scratch, "127.0.0.1:0", 600_000).await;
    let mut process = Process::serve(&patient).await;
    eventually(LIMIT, || is_ready(&process)).await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..3 {
        let mut client = RawClient::connect(process.address().parse().unwrap())
            .await
            .unwrap();
        assert!(client.hello(doc! {}).await.unwrap().is_ok());
        idle.push(client);
    }
    process.signal(Signal::TERM);
    for client in &mut idle {
        let drains =
            async || client.hello(doc! {}).await.unwrap().code() == Some(SHUTDOWN_IN_PROGRESS);
        wait_until(drains).await;
    }
    process.signal(Signal::TERM);
    assert_eq!(process.ended().await.code(), Some(0), "{}", process.log());
    for client in &mut idle {
        assert_eq!(client.read_to_close().await.unwrap(), b"");
    }
    let drained = async || process.said("drained");
    let drained = eventually(LIMIT, drained).await.unwrap();
    assert_eq!(drained["fields"]["closed_clients"], 3, "{}", process.log());
}

/// If the reader of standard error hangs, the pipe becomes full, and each write to it blocks.
#[tokio::test]
async fn a_process_whose_log_is_not_read_serves_clients_and_ends_after_sigterm() {
    let scratch = Scratch::create().unwrap();
    let server = shared_standalone().await.unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\nadmin.address = \"127.0.0.1:0\"\n\
         shutdown.drain_ms = 0\n\
         [slow_log]\nthreshold_ms = 0\nmax_lines_per_second = 1000000\n",
        server.uri()
    );
    let toml = scratch.write("seawall.toml", toml).unwrap();
    let mut process = Process::serve(&toml).await;
    eventually(LIMIT, || is_ready(&process)).await.unwrap();
    process.stop_reading_log();
    let mut client = RawClient::connect(process.address().parse().unwrap())
        .await
        .unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(client.login(&login).await.unwrap().is_authenticated());
    // The slow log writes to standard error too. It drops lines as soon as the pipe and its own
    // queue are full.
    let drops_lines = async || {
        for _ in 0..500 {
            client.expect_ok("admin", doc! { "ping": 1 }).await;
        }
        let (_, text) = http(process.admin(), "GET", "/metrics", "").await;
        sum_of(&text, "seawall_slow_log_left_out_total", &[]) > 0.0
    };
    wait_until(drops_lines).await;
    let (status, _) = http(process.admin(), "GET", "/health/live", "").await;
    assert_eq!(status, 200);
    // Seawall logs the start of the drain. The write of this line blocks, but must not delay the
    // drain.
    process.signal(Signal::TERM);
    assert_eq!(process.ended().await.code(), Some(0));
}

/// Repeats `attempt` until it returns true, for at most [`LIMIT`]. An attempt may borrow variables
/// mutably, which [`eventually`] does not allow.
async fn wait_until(mut attempt: impl AsyncFnMut() -> bool) {
    let soon = async { while !attempt().await {} };
    timeout(LIMIT, soon).await.unwrap();
}

#[tokio::test]
async fn an_interrupt_ends_the_process_at_once_with_code_130() {
    let scratch = Scratch::create().unwrap();
    let patient = configuration(&scratch, "127.0.0.1:0", 600_000).await;
    let mut process = Process::serve(&patient).await;
    eventually(LIMIT, || is_ready(&process)).await.unwrap();
    let mut idle = RawClient::connect(process.address().parse().unwrap())
        .await
        .unwrap();
    assert!(idle.hello(doc! {}).await.unwrap().is_ok());
    process.signal(Signal::INT);
    assert_eq!(process.ended().await.code(), Some(130), "{}", process.log());
}

#[tokio::test]
async fn hello_fails_with_code_91_in_a_drain_and_operations_are_served_until_the_drain_ends() {
    let set = shared_replica_set().await.unwrap();
    let seawall = Seawall::start_configured(&set.uri(), "shutdown.drain_ms = 5000").await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let connect = async || RawClient::connect(seawall.address().parse().unwrap()).await;
    let mut busy = connect().await.unwrap();
    assert!(busy.login(&login).await.unwrap().is_authenticated());
    let mut idle = connect().await.unwrap();
    assert!(idle.hello(doc! {}).await.unwrap().is_ok());
    assert_eq!(seawall.metric("seawall_draining", &[]).await, 0.0);
    let (end_early, ended_early) = oneshot::channel::<()>();
    let began = Instant::now();
    let draining = seawall.app.drain(async {
        // Seawall would end the drain early if this future ended. But the future ends only when the
        // test drops `end_early`, after Seawall has closed its clients. So only
        // `shutdown.drain_ms` ends the drain.
        drop(ended_early.await);
    });
    let watching = async {
        wait_until(async || seawall.get("/health/ready").await.0 == 503).await;
        assert_eq!(seawall.get("/health/live").await.0, 200);
        assert_eq!(seawall.metric("seawall_draining", &[]).await, 1.0);
        let hello = busy.hello(doc! {}).await.unwrap();
        assert_eq!(hello.code(), Some(SHUTDOWN_IN_PROGRESS), "{hello:?}");
        let remaining = hello.body.get_i64("remainingQuiesceTimeMillis").unwrap();
        assert!((1..=5_000).contains(&remaining), "{hello:?}");
        assert_eq!(hello.body.get("topologyVersion"), None);
        // A new client gets the same `hello` reply, and its operations are still served.
        let mut late = connect().await.unwrap();
        let hello = late.hello(doc! {}).await.unwrap();
        assert_eq!(hello.code(), Some(SHUTDOWN_IN_PROGRESS), "{hello:?}");
        assert!(late.login(&login).await.unwrap().is_authenticated());
        let mut served = 0;
        let closed = loop {
            let (one, other) = (doc! {"find": "c"}, doc! {"find": "c"});
            match (
                busy.command("drain", one).await,
                late.command("drain", other).await,
            ) {
                (Ok(one), Ok(other)) => assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}"),
                (Err(error), _) | (_, Err(error)) => break error,
            }
            served += 1;
        };
        assert!(matches!(closed, RawError::Closed), "{closed:?}");
        assert!(
            served > 10,
            "expected more than 10 served operations, got {served}"
        );
        assert!(began.elapsed() >= Duration::from_secs(5));
        assert_eq!(idle.read_to_close().await.unwrap(), b"");
        drop(end_early);
    };
    let (drained, ()) = timeout(LIMIT, async { tokio::join!(draining, watching) })
        .await
        .unwrap();
    assert_eq!(drained.closed_clients, 3);
    assert!(
        connect().await.is_err(),
        "expected the listener to be closed"
    );
}

/// Some clients do not notice a drain, because they do not send `hello` again. At the end of the
/// drain, Seawall closes them between two operations.
#[tokio::test]
async fn each_write_that_is_executed_before_the_end_of_a_drain_is_acknowledged() {
    const CLIENTS: i32 = 5;
    let server = Standalone::start(mongod::Options::default()).await.unwrap();
    let seawall = Seawall::start_configured(&server.uri(), "shutdown.drain_ms = 1000").await;
    let address = seawall.address().parse().unwrap();
    let writing = Arc::new(AtomicI32::new(0));
    let mut clients = JoinSet::new();
    for id in 0..CLIENTS {
        let mut client = RawClient::connect(address).await.unwrap();
        let insert = doc! {"insert": "c", "documents": [{"_id": id, "n": 0}]};
        client.expect_ok("drain", insert).await;
        let writing = Arc::clone(&writing);
        clients.spawn(async move {
            let mut acknowledged = 0;
            let slow = doc! {"_id": id, "$where": "sleep(20) || true"};
            let update = doc! {"q": slow, "u": {"$inc": {"n": 1}}};
            let command = doc! {"update": "c", "updates": [update]};
            while let Ok(reply) = client.command("drain", command.clone()).await {
                assert!(reply.is_ok(), "{reply:?}");
                acknowledged += 1;
                if acknowledged == 1 {
                    writing.fetch_add(1, Ordering::Relaxed);
                }
            }
            (id, acknowledged)
        });
    }
    // On a slow machine, the first JavaScript of a client can take longer than the drain. So the
    // drain begins when each client has written once.
    let all_write = async || writing.load(Ordering::Relaxed) == CLIENTS;
    eventually(LIMIT, all_write).await.unwrap();
    seawall.app.drain(std::future::pending()).await;
    let things = server
        .client()
        .unwrap()
        .database("drain")
        .collection::<Document>("c");
    while let Some(ended) = clients.join_next().await {
        let (id, acknowledged) = ended.unwrap();
        let thing = things.find_one(doc! {"_id": id}).await.unwrap().unwrap();
        assert_eq!(thing.get_i32("n").unwrap(), acknowledged, "client {id}");
    }
}

#[tokio::test]
async fn a_drain_ends_when_the_last_client_has_left() {
    let set = shared_replica_set().await.unwrap();
    let seawall = Seawall::start_configured(&set.uri(), "shutdown.drain_ms = 600000").await;
    let mut client = RawClient::connect(seawall.address().parse().unwrap())
        .await
        .unwrap();
    assert!(client.hello(doc! {}).await.unwrap().is_ok());
    let leaving = async {
        wait_until(async || {
            client.hello(doc! {}).await.unwrap().code() == Some(SHUTDOWN_IN_PROGRESS)
        })
        .await;
        drop(client);
    };
    let draining = seawall.app.drain(std::future::pending());
    let (drained, ()) = timeout(LIMIT, async { tokio::join!(draining, leaving) })
        .await
        .unwrap();
    assert_eq!(drained.closed_clients, 0);
}

#[tokio::test]
async fn idle_relayed_clients_are_closed_at_the_beginning_of_a_drain() {
    let set = shared_replica_set().await.unwrap();
    let toml = "shutdown.drain_ms = 600000\ndeployment.mode = \"relay\"";
    let seawall = Seawall::start_configured(&set.uri(), toml).await;
    let mut idle = RawClient::connect(seawall.address().parse().unwrap())
        .await
        .unwrap();
    assert!(idle.hello(doc! {}).await.unwrap().is_ok());
    let draining = seawall.app.drain(std::future::pending());
    let drained = timeout(LIMIT, draining).await.unwrap();
    assert_eq!(drained.closed_clients, 0);
    assert!(idle.hello(doc! {}).await.is_err());
}

/// Drains `seawall` while `work` runs. `work` must end the connections of all clients, or let them
/// become idle. Otherwise the drain lasts longer than `LIMIT`, and the test fails.
async fn drain_beside(seawall: &Seawall, work: impl Future<Output = ()>) {
    let draining = seawall.app.drain(std::future::pending());
    let (drained, ()) = timeout(LIMIT, async { tokio::join!(draining, work) })
        .await
        .unwrap();
    assert_eq!(drained.closed_clients, 0);
}

/// Starts Seawall in relay mode, and connects two clients to it. Both clients are logged in.
async fn relay_with_two_clients(uri: &str) -> (Seawall, [RawClient; 2]) {
    let toml = "shutdown.drain_ms = 600000\ndeployment.mode = \"relay\"";
    let seawall = Seawall::start_configured(uri, toml).await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let connect = async || {
        let address = seawall.address().parse().unwrap();
        let mut client = RawClient::connect(address).await.unwrap();
        assert!(client.login(&login).await.unwrap().is_authenticated());
        client
    };
    let clients = [connect().await, connect().await];
    (seawall, clients)
}

/// Waits until a drain has begun, sends a `hello` from a relayed client, and waits until the drain
/// has closed this client. Returns the bytes that the client got after the `hello`. Seawall closes
/// this client later than clients that have been idle since the beginning of the drain.
async fn read_until_closed_in_drain(seawall: &Seawall, client: &mut RawClient) -> Vec<u8> {
    wait_until(async || seawall.get("/health/ready").await.0 == 503).await;
    let hello = OpMsg::new(doc! {"hello": 1, "$db": "admin"});
    client.send(&hello).await.unwrap();
    client.read_to_close().await.unwrap()
}

#[tokio::test]
async fn a_relayed_client_that_sends_a_command_slowly_is_not_closed_in_a_drain() {
    let set = shared_replica_set().await.unwrap();
    let (seawall, [mut slow, mut idle]) = relay_with_two_clients(&set.uri()).await;
    let db = unique_name("drain");
    let insert = doc! {"insert": "c", "documents": [{"_id": 1}], "$db": &db};
    let insert = OpMsg::new(insert).to_bytes();
    let (first, rest) = insert.split_at(insert.len() / 2);
    slow.send_bytes(first).await.unwrap();
    let sending = async {
        read_until_closed_in_drain(&seawall, &mut idle).await;
        slow.send_bytes(rest).await.unwrap();
        let reply = slow.read_reply().await.unwrap();
        assert!(reply.is_ok(), "{}", reply.body);
    };
    drain_beside(&seawall, sending).await;
}

#[tokio::test]
async fn a_drain_waits_for_relayed_operations_but_not_for_replies_to_hellos() {
    let server = shared_standalone().await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let (seawall, [mut busy, mut monitor]) = relay_with_two_clients(&uri).await;
    recorder.hold_replies(true);
    let count = doc! {"count": "c", "$db": unique_name("drain")};
    busy.send(&OpMsg::new(count)).await.unwrap();
    let is_forwarded = async || {
        let mut connections = recorder.connections().into_iter();
        connections.any(|connection| {
            let mut commands = connection.commands().into_iter();
            commands.any(|command| command.contains_key("count"))
        })
    };
    eventually(LIMIT, is_forwarded).await.unwrap();
    let replying = async {
        let read = read_until_closed_in_drain(&seawall, &mut monitor).await;
        assert_eq!(read, b"", "expected no reply to the hello");
        recorder.hold_replies(false);
        let reply = busy.read_reply().await.unwrap();
        assert!(reply.is_ok(), "{}", reply.body);
    };
    drain_beside(&seawall, replying).await;
}

#[tokio::test]
async fn a_relayed_client_that_a_drain_closes_during_a_hello_is_counted_as_closed() {
    let server = shared_standalone().await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let (seawall, [mut monitor, mut busy]) = relay_with_two_clients(&uri).await;
    // The client `busy` sends only half of a command. The drain does not end while a client is
    // sending a command.
    let ping = OpMsg::new(doc! {"ping": 1, "$db": "admin"}).to_bytes();
    let (begun, _) = ping.split_at(ping.len() / 2);
    busy.send_bytes(begun).await.unwrap();
    recorder.hold_replies(true);
    let closing = async {
        let read = read_until_closed_in_drain(&seawall, &mut monitor).await;
        assert_eq!(read, b"", "expected no reply to the hello");
        let departures = "seawall_client_departures_total";
        let is_counted = async || seawall.metric(departures, &["how=\"closed\""]).await > 0.0;
        eventually(LIMIT, is_counted).await.unwrap();
        assert_eq!(seawall.metric("seawall_clients_gone_total", &[]).await, 0.0);
        recorder.hold_replies(false);
        drop(busy);
    };
    drain_beside(&seawall, closing).await;
}

#[tokio::test]
async fn all_configuration_errors_are_reported_together_before_a_port_is_bound() {
    let scratch = Scratch::create().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let empty = scratch.write("empty.pem", "").unwrap();
    let cases = [
        (
            "deployment.uri = \"http://127.0.0.1/\"\npool.max_pool_size = 0\nlisten.colour = 1\n"
                .to_owned(),
            vec!["deployment.uri", "pool.max_pool_size", "listen.colour"],
        ),
        (
            format!(
                "deployment.uri = \"mongodb://127.0.0.1/?loadBalanced=true\"\n\
                 listen.tls.certificate_file = {empty:?}\n\
                 listen.tls.key_file = {empty:?}\n",
            ),
            vec!["deployment.uri", "listen.tls"],
        ),
    ];
    for (toml, keys) in cases {
        let toml = format!("listen.address = \"{address}\"\n{toml}");
        let path = scratch.write("bad.toml", toml).unwrap();
        for command in ["serve", "check"] {
            let output = run(&[command, "--config", path.to_str().unwrap()]).await;
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{command}: {said}");
            for key in &keys {
                assert!(said.contains(key), "{command}: {key} is not in {said}");
            }
        }
    }
    let usage = run(&["serve", "--no-such-argument"]).await;
    assert_eq!(usage.status.code(), Some(64));
}

#[tokio::test]
async fn the_process_ends_with_code_69_if_the_address_in_listen_address_is_in_use() {
    let scratch = Scratch::create().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let path = configuration(&scratch, &address, 0).await;
    let path = path.to_str().unwrap();
    let output = run(&["serve", "--allow-root", "--config", path, "--admin", "off"]).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(69), "{said}");
    assert!(said.contains(&address), "{said}");
}
