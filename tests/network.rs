//! Tests in a private network: firewall rules redirect clients to Seawall, or drop the packets of
//! connections. One test gives Seawall a private mount: a disk that becomes full.
//!
//! The tests need `nft`, `ip`, and the right to create namespaces. So they run only if
//! they are requested, as in `.ci/run`: `cargo test --test network -- --ignored`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this file contains only tests"
)]

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};

use bson::{Binary, doc, spec::BinarySubtype};
use seawall_api::{AdminClient, Capture, Captures};
use seawall_capture::{Reader, record::Content};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ROOT, ROOT_PASSWORD, ReplicaSet, Standalone},
    process::Process,
    raw::{Login, RawClient},
    scratch::Scratch,
    seawall::{Seawall, http, sum_of},
};
use tokio::{net::TcpSocket, time::Instant};

/// Each test starts a second process of this program inside a new network namespace. This
/// environment variable is set only in that second process.
const INSIDE: &str = "NETWORK_INSIDE";

/// The source address of the clients that the firewall rules redirect to Seawall.
const INTERCEPTED: &str = "127.0.0.9:0";

/// Time limit of each wait: twice the time after which the kernel closes a connection to a server
/// that no longer replies.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
#[ignore = "needs nft, ip and a network namespace; run by .ci/run"]
fn redirected_clients_reach_their_original_destination() {
    let name = "redirected_clients_reach_their_original_destination";
    in_a_namespace(name, intercept());
}

/// A connection is silent if the network drops all its packets without notifying either end.
#[test]
#[ignore = "needs nft, ip and a network namespace; run by .ci/run"]
fn silent_connections_are_detected_and_replaced() {
    in_a_namespace(
        "silent_connections_are_detected_and_replaced",
        fall_silent(),
    );
}

#[test]
#[ignore = "needs nft, ip and a network namespace; run by .ci/run"]
fn encrypted_bytes_are_relayed_to_a_server_on_another_host() {
    in_a_namespace(
        "encrypted_bytes_are_relayed_to_a_server_on_another_host",
        pass_encrypted(),
    );
}

/// An address that does not belong to this host. Packets to it are routed to a server on this host.
const ELSEWHERE: &str = "192.0.2.1";

async fn pass_encrypted() {
    let options = Options {
        tls: true,
        ..Options::default()
    };
    let server = Standalone::start(options).await.unwrap();
    let port = server.address().port();
    // The prefix length is 32, because all addresses of a larger network would be local.
    run("ip", &["address", "add", "192.0.2.2/32", "dev", "lo"]);
    run(
        "ip",
        &["route", "add", ELSEWHERE, "dev", "lo", "src", "192.0.2.2"],
    );
    let rules = format!(
        "add table ip nat\n\
         add chain ip nat output {{ type nat hook output priority -100; }}\n\
         add rule ip nat output ip daddr {ELSEWHERE} tcp dport {port} dnat to 127.0.0.1:{port}\n"
    );
    run("nft", &[&rules]);
    run("sysctl", &["-w", "net.ipv4.conf.all.route_localnet=1"]);
    let uri = format!(
        "mongodb://{ELSEWHERE}:{port}/?tls=true&tlsAllowInvalidCertificates=true&directConnection=true"
    );
    let toml = "deployment.mode = \"relay\"\ndeployment.relay_encrypted = true\n\
                auth.authentication_timeout_ms = 3000\n";
    let seawall = Seawall::start_configured(&uri, toml).await;
    let tls = server.certificates().unwrap().client_config().unwrap();
    let address = seawall.address().parse().unwrap();
    let mut client = RawClient::connect_tls(address, "localhost", tls)
        .await
        .unwrap();
    client.expect_ok("admin", doc! {"ping": 1}).await;
    let reason = [r#"reason="relay_encrypted""#];
    let passed = seawall.metric("seawall_unobserved_total", &reason).await;
    assert!((passed - 1.0).abs() < f64::EPSILON, "{passed}");
    leave_within_a_record(&seawall).await;
}

/// Two clients send a part of a TLS record. The first client then leaves. The second client stays,
/// so Seawall closes it at the deadline for its login.
async fn leave_within_a_record(seawall: &Seawall) {
    let address = seawall.address().parse().unwrap();
    let part = [&[0x16, 3, 1, 0, 100][..], &[0; 50]].concat();
    let [left, closed] = [&["clean", "gave_up"][..], &["closed"]];
    let departures = async |ways: &[&str]| {
        let mut count = 0.0;
        for way in ways {
            let label = format!("how=\"{way}\"");
            count += seawall
                .metric("seawall_client_departures_total", &[&label])
                .await;
        }
        count
    };
    let mut leaving = RawClient::connect(address).await.unwrap();
    leaving.send_bytes(&part).await.unwrap();
    drop(leaving);
    eventually(LIMIT, async || departures(left).await >= 1.0)
        .await
        .unwrap();
    assert!(departures(closed).await < 1.0);
    let mut silent = RawClient::connect(address).await.unwrap();
    silent.send_bytes(&part).await.unwrap();
    assert!(silent.read_to_close().await.unwrap().is_empty());
    eventually(LIMIT, async || departures(closed).await >= 1.0)
        .await
        .unwrap();
    let reason = [r#"reason="authentication_timeout""#];
    let overdue = seawall.metric("seawall_unobserved_total", &reason).await;
    assert!((overdue - 1.0).abs() < f64::EPSILON, "{overdue}");
}

/// Starts this program again, in a new network namespace and with only the test `name`. That
/// process calls this function again, which then runs `test`.
fn in_a_namespace(name: &str, test: impl Future<Output = ()>) {
    if std::env::var_os(INSIDE).is_some() {
        run("ip", &["link", "set", "lo", "up"]);
        return tokio::runtime::Runtime::new().unwrap().block_on(test);
    }
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", name]);
    let status = command.env(INSIDE, "1").stdin(Stdio::null()).status();
    assert!(status.unwrap().success());
}

fn run(program: &str, arguments: &[&str]) {
    let ended = Command::new(program).args(arguments).output();
    let ended = ended.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{program} {arguments:?}: {said}");
}

async fn connect(from: &str, to: SocketAddr) -> RawClient {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(from.parse().unwrap()).unwrap();
    RawClient::new(socket.connect(to).await.unwrap())
}

async fn me(client: &mut RawClient) -> String {
    let hello = client.hello(doc! {}).await.unwrap();
    hello.body.get_str("me").unwrap().to_owned()
}

async fn intercept() {
    let set = ReplicaSet::start(3, Options::default()).await.unwrap();
    let toml = "deployment.mode = \"relay\"\ndeployment.original_destination = true\n";
    let seawall = Seawall::start_configured(&set.uri(), toml).await;
    let here: SocketAddr = seawall.address().parse().unwrap();
    let ports: Vec<_> = set
        .members()
        .iter()
        .map(|m| m.address().port().to_string())
        .collect();
    let rules = format!(
        "add table ip nat\n\
         add chain ip nat output {{ type nat hook output priority -100; }}\n\
         add rule ip nat output ip saddr 127.0.0.9 tcp dport {{ {} }} redirect to :{}\n",
        ports.join(","),
        here.port()
    );
    run("nft", &[&rules]);

    // The rules redirect the clients, which do not know about Seawall. Each client gets the replies
    // of the member that it addressed, even of a secondary.
    let mut relayed = Vec::new();
    for member in set.members() {
        let mut client = connect(INTERCEPTED, member.address()).await;
        assert_eq!(me(&mut client).await, member.address().to_string());
        client.expect_ok("admin", doc! {"ping": 1}).await;
        let label = format!("server=\"{}\"", member.address());
        let count = seawall
            .metric("seawall_relayed_connections", &[&label])
            .await;
        assert!((count - 1.0).abs() < f64::EPSILON, "{count}");
        relayed.push(client);
    }
    // A client that connects directly to Seawall is relayed to the primary. A client with another
    // source address is not redirected.
    let primary = set.primary().await.unwrap().address();
    assert_eq!(
        me(&mut connect(INTERCEPTED, here).await).await,
        primary.to_string()
    );
    let before = seawall
        .metric("seawall_client_connections_total", &[])
        .await;
    assert_eq!(
        me(&mut connect("127.0.0.1:0", primary).await).await,
        primary.to_string()
    );
    let after = seawall
        .metric("seawall_client_connections_total", &[])
        .await;
    assert!((after - before).abs() < f64::EPSILON);
    // A step-down does not affect redirected clients.
    set.step_down().await.unwrap();
    for client in &mut relayed {
        client.expect_ok("admin", doc! {"ping": 1}).await;
    }
}

/// The local ports of all established connections to `port`.
fn connected_to(port: u16) -> BTreeSet<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let established = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
        Some((port(fields[1])?, port(fields[2])?, fields[3]))
    });
    let ours = established.filter(|(_, to, state)| *to == port && *state == "01");
    ours.map(|(from, _, _)| from).collect()
}

/// Drops all further packets of the connections from the ports `from` to the port `to`, in both
/// directions, without notifying either end.
fn silence(from: &BTreeSet<u16>, to: u16) {
    assert!(!from.is_empty());
    let from: Vec<_> = from.iter().map(u16::to_string).collect();
    let from = from.join(",");
    let rules = format!(
        "add table ip filter\n\
         add chain ip filter output {{ type filter hook output priority 0; }}\n\
         add rule ip filter output tcp sport {{ {from} }} tcp dport {to} drop\n\
         add rule ip filter output tcp sport {to} tcp dport {{ {from} }} drop\n"
    );
    run("nft", &[&rules]);
}

async fn logged_in(seawall: &Seawall) -> RawClient {
    let mut client = connect("127.0.0.1:0", seawall.address().parse().unwrap()).await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(client.login(&login).await.unwrap().is_authenticated());
    client
}

async fn fall_silent() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let port = server.address().port();
    let seawall = Seawall::start(&server.uri()).await;
    let watching = connected_to(port);
    let mut client = logged_in(&seawall).await;
    client.set_limit(LIMIT);
    let mut waiting = logged_in(&seawall).await;
    waiting.set_limit(LIMIT);
    let insert = |id: i32| doc! {"insert": "things", "documents": [{"_id": id}]};
    client.expect_ok("silent", insert(1)).await;
    // Two concurrent operations open two connections.
    let slow = || doc! {"find": "things", "filter": {"$where": "sleep(500) || true"}};
    let (one, other) = tokio::join!(
        client.command("silent", slow()),
        waiting.command("silent", slow())
    );
    assert!(one.unwrap().is_ok() && other.unwrap().is_ok());
    seawall.wait_for_two_available(LIMIT).await;
    let pooled: BTreeSet<_> = connected_to(port).difference(&watching).copied().collect();
    assert!(pooled.len() >= 2, "{pooled:?}");
    // Seawall checks the server regularly over another connection. That connection still works, so
    // the checks do not notice that the pooled connections are silent.
    silence(&pooled, port);
    let unused = async || {
        let closed = "seawall_server_connections_closed_total";
        let ended = seawall.metric(closed, &["reason=\"ended\""]).await;
        ended + seawall.metric(closed, &["reason=\"stale\""]).await > 0.0
    };
    let read = waiting.command("silent", doc! {"find": "things"});
    let write = async {
        eventually(LIMIT, unused).await.unwrap();
        // The write is not retryable, so its first attempt must succeed.
        client.command("silent", insert(2)).await
    };
    let (read, write) = tokio::join!(read, write);
    let read = read.unwrap();
    assert!(read.is_ok(), "{read:?}");
    assert!(write.unwrap().is_ok());
}

/// A shell command that mounts a disk of one MiB, which only Seawall sees, and starts Seawall.
const SMALL_DISK: &str = "mount -t tmpfs -o size=1m,mode=700 seawall-test \"$0\" && exec \"$@\"";

#[tokio::test]
#[ignore = "needs the right to mount in a namespace; run by .ci/run"]
async fn a_full_disk_ends_the_capture_but_operations_continue() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let disk = scratch.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let disk = disk.to_str().unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri = {:?}\ncapture.directory = \"{disk}/captures\"\n",
        server.uri()
    );
    let toml = scratch.write("seawall.toml", toml).unwrap();
    let launcher = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        SMALL_DISK,
        disk,
    ];
    let process = Process::launch(&launcher, &toml).await;
    let admin = process.admin();
    let address = process.address().parse().unwrap();
    // Until Seawall knows that the deployment has no access control, it requires a login.
    let connected = || async {
        let mut client = connect("127.0.0.1:0", address).await;
        client.hello(doc! {}).await.ok()?;
        let count = client.command("full", doc! { "count": "c" }).await.ok()?;
        count.is_ok().then_some(client)
    };
    let mut client = eventually(LIMIT, connected).await.unwrap();
    let first = start_capture(admin).await;
    let until = Instant::now() + LIMIT;
    let ended = loop {
        insert_noise(&mut client).await;
        let capture = find_capture(admin, &first).await;
        if !capture.running {
            break capture;
        }
        assert!(Instant::now() < until, "{capture:?}");
    };
    assert_eq!(ended.end.as_deref(), Some("write_failed"));
    assert!(ended.bytes > 500_000 && ended.operations > 0, "{ended:?}");
    insert_noise(&mut client).await;
    let is_counted = || async {
        let (_, text) = http(admin, "GET", "/metrics", "").await;
        let reason = [r#"reason="write_failed""#];
        let ended = sum_of(&text, "seawall_capture_ended_total", &reason);
        let running = sum_of(&text, "seawall_capture_running", &[]);
        (ended, running) == (1.0, 0.0)
    };
    eventually(LIMIT, is_counted).await.unwrap();
    assert!(process.said("could not write a capture").is_some());
    let (inserts, is_complete) = read_capture(admin, &first).await;
    assert!(inserts > 3 && !is_complete, "{inserts}");

    let path = format!("/api/v1/captures/{first}");
    assert_eq!(http(admin, "DELETE", &path, "").await.0, 200);
    let second = start_capture(admin).await;
    insert_noise(&mut client).await;
    let path = format!("/api/v1/captures/{second}/stop");
    assert_eq!(http(admin, "POST", &path, "").await.0, 200);
    let ended = find_capture(admin, &second).await;
    assert_eq!(ended.end.as_deref(), Some("stopped"));
    assert_eq!(read_capture(admin, &second).await, (1, true));
}

/// Inserts bytes that cannot be compressed.
async fn insert_noise(client: &mut RawClient) {
    let bytes = (0..20_000).map(|_| rand::random()).collect();
    let noise = Binary {
        subtype: BinarySubtype::Generic,
        bytes,
    };
    let insert = doc! { "insert": "c", "documents": [{ "noise": noise }] };
    client.expect_ok("full", insert).await;
}

async fn start_capture(admin: &str) -> String {
    let new = r#"{ "duration_ms": 600000 }"#;
    let length = new.len();
    let headers = format!(
        "Host: {admin}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{new}"
    );
    let (status, body) = http(admin, "POST", "/api/v1/captures", &headers).await;
    assert_eq!(status, 201, "{body}");
    serde_json::from_str::<Capture>(&body).unwrap().id
}

async fn find_capture(admin: &str, id: &str) -> Capture {
    let (_, body) = http(admin, "GET", "/api/v1/captures", "").await;
    let captures: Captures = serde_json::from_str(&body).unwrap();
    let mut captures = captures.captures.into_iter();
    captures.find(|capture| capture.id == id).unwrap()
}

/// The number of commands that can be read from a capture, and true if its `End` record can be
/// read.
async fn read_capture(admin: &str, id: &str) -> (usize, bool) {
    let client = AdminClient::new(&format!("http://{admin}"), None, None).unwrap();
    let mut bytes = Vec::new();
    let mut add = |piece: &[u8]| {
        bytes.extend_from_slice(piece);
        true
    };
    let path = format!("/api/v1/captures/{id}/content");
    client.download(&path, &mut add).await.unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let (mut commands, mut is_complete) = (0, false);
    while let Ok(Some(record)) = reader.next_record() {
        commands += usize::from(matches!(record, Content::Command(_)));
        is_complete |= matches!(record, Content::End(_));
    }
    (commands, is_complete)
}
