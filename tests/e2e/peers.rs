//! Tests of `admin.peers`: one instance merges the replies of all instances.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bson::doc;
use seawall_api::{
    Annotations, Clients, Configuration, DashboardSession, GaugeTimeline, Heatmap, HeatmapShapes,
    InstanceState, Latency, Merged, Namespaces, Pools, Report, Servers, Shape, Shapes,
    SlowOperations, Sparklines, Stalls, Status, Storms, Tick, Timeline, Topology, distribution,
};
use seawall_tests::{
    certificates::Certificates,
    eventually::eventually,
    mongod::{NewUser, Standalone, create_user, shared_standalone, unique_name},
    raw::{Login, RawClient},
    scratch::Scratch,
    seawall::{Options, Seawall},
};
use serde::de::DeserializeOwned;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Starts instances in front of the same server.
async fn instances(server: &Standalone, number: usize) -> Vec<Seawall> {
    let mut instances = Vec::new();
    for _ in 0..number {
        instances.push(Seawall::start(&server.uri()).await);
    }
    instances
}

fn address(seawall: &Seawall) -> String {
    seawall.app.admin_address().unwrap().to_owned()
}

/// Sets the peers of an instance.
async fn set_peers(seawall: &Seawall, peers: &[String]) {
    let toml = format!("admin.peers = {:?}\n", peers.join(","));
    seawall.reload(&toml).await.unwrap();
}

/// Runs finds through an instance. Returns the client, which stays connected.
async fn finds(seawall: &Seawall, user: &str, field: &str, count: usize) -> RawClient {
    let address = seawall.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    let login = Login::new("admin", user, "secret");
    client.login(&login).await.unwrap();
    for _ in 0..count {
        let command = doc! { "find": "things", "filter": { field: 1 } };
        assert!(client.command(user, command).await.unwrap().is_ok());
    }
    client
}

/// Adds the parameter `instances=all` to a path.
fn all(path: &str) -> String {
    let separator = if path.contains('?') { '&' } else { '?' };
    format!("{path}{separator}instances=all")
}

/// The merged reply of all instances. Panics if an instance has an error.
async fn merged<T: DeserializeOwned>(seawall: &Seawall, path: &str, instances: usize) -> T {
    let reply: Merged<T> = seawall.api(&all(path)).await;
    let errors = reply.instances.iter().filter(|of| of.error.is_some());
    assert_eq!(errors.count(), 0, "{path}: {:?}", reply.instances);
    assert_eq!(reply.instances.len(), instances, "{path}");
    reply.reply
}

fn text(field: &str) -> String {
    format!("{{filter:{{{field}:?}}}}")
}

/// The latency of the shape with this id over all instances, computed from the distribution of each
/// instance.
async fn combined(instances: &[Seawall], id: &str) -> Latency {
    let mut sum = seawall_stats::Distribution::<8>::default();
    for seawall in instances {
        let path = format!("/api/v1/shapes/{id}?since=10m&distributions=true");
        let shape: Shape = seawall.api(&path).await;
        let of = distribution(shape.buckets(), shape.total_time_ms, shape.latency_ms.max);
        sum.merge(&of);
    }
    (&sum).into()
}

/// The first instance has its own address among its peers, as if all instances used the same
/// configuration file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_and_latencies_merged_from_all_instances_include_each_operation_once() {
    let server = shared_standalone().await.unwrap();
    let name = unique_name("peers");
    let user = NewUser::new("admin", &name, "secret").role("readWrite", &name);
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let instances = instances(server, 3).await;
    let peers: Vec<_> = instances.iter().map(address).collect();
    set_peers(&instances[0], &peers).await;
    let mut clients = Vec::new();
    for (seawall, count) in instances.iter().zip([30, 12, 7]) {
        clients.push(finds(seawall, &name, "both", count).await);
    }
    clients.push(finds(&instances[2], &name, "only", 5).await);
    let asked = &instances[0];
    let find = async |field: &str, limit: usize| {
        let path = format!("/api/v1/shapes?since=10m&limit={limit}");
        let shapes: Shapes = merged(asked, &path, 3).await;
        let mut found = shapes.shapes.into_iter();
        found.find(|shape| shape.db == name && shape.shape == text(field))
    };
    let counted = async || {
        let both = find("both", 100).await.unwrap_or_default().count;
        let only = find("only", 100).await.unwrap_or_default().count;
        (both, only) == (49, 5)
    };
    eventually(LIMIT, counted).await.unwrap();

    let both = find("both", 100).await.unwrap();
    assert!(
        both.distribution.is_none(),
        "expected no distribution, because the request asks for none"
    );
    let expected = combined(&instances, &both.id).await;
    let parts = |of: Latency| [of.max, of.p50, of.p90, of.p99, of.p999];
    for (ms, expected) in parts(both.latency_ms).into_iter().zip(parts(expected)) {
        assert!((ms - expected).abs() < 1e-6, "{:?}", both.latency_ms);
    }
    let path = format!("/api/v1/shapes/{}?since=10m", both.id);
    let one: Shape = merged(asked, &path, 3).await;
    assert_eq!((one.count, one.latency_ms), (49, both.latency_ms));
    // Only one peer has this shape. For the two other instances, the missing shape is not an error.
    let only = find("only", 100).await.unwrap();
    for since in ["", "?since=10m"] {
        let path = format!("/api/v1/shapes/{}{since}", only.id);
        let one: Shape = merged(asked, &path, 3).await;
        assert_eq!(one.count, 5, "{path}");
    }
    let (status, why) = asked.get(&all("/api/v1/shapes/00")).await;
    assert_eq!((status, why.trim()), (404, "no such shape"));

    let timeline: Timeline = merged(asked, "/api/v1/timeline?since=10m", 3).await;
    let count: u64 = timeline.steps.iter().map(|step| step.count).sum();
    let heatmap: Heatmap = merged(asked, "/api/v1/heatmap?since=10m", 3).await;
    let counts = heatmap.columns.iter().flat_map(|of| &of.counts);
    assert_eq!(counts.map(|(_, count)| count).sum::<u64>(), count);
    let area: HeatmapShapes = merged(asked, "/api/v1/heatmap/shapes?since=10m", 3).await;
    assert_eq!(area.count, count);
    let found = area.shapes.iter().find(|shape| shape.id == both.id);
    assert_eq!(found.unwrap().count, 49);
    let one_row: Shapes = merged(asked, "/api/v1/shapes?since=10m&limit=1", 3).await;
    assert_eq!(one_row.shapes.len(), 1);
    let shapes: Shapes = merged(asked, "/api/v1/shapes?since=10m&limit=1000", 3).await;
    let listed: u64 = shapes.shapes.iter().map(|shape| shape.count).sum();
    let sum = one_row.shapes[0].count + one_row.other.count;
    assert_eq!(sum, listed + shapes.other.count);
    lists_name_the_instances(asked, &peers, &name).await;
    namespaces_and_the_report_are_merged(&instances, &name, &both).await;
    further_paths_are_merged(asked, &both.id).await;
    let tick = live(asked).await;
    assert_eq!(tick.instances.len(), 3);
    assert!(tick.reply.clients >= 4, "{tick:?}");
}

async fn lists_name_the_instances(asked: &Seawall, peers: &[String], user: &str) {
    let clients: Clients = merged(asked, "/api/v1/clients?limit=1000", 3).await;
    let of_user = format!("admin.{user}");
    let own = clients.clients.iter();
    let own = own.filter(|of| of.user.as_deref() == Some(&of_user));
    let mut names: Vec<_> = own.map(|of| of.instance.clone().unwrap()).collect();
    names.sort();
    let url = |at: usize| format!("http://{}", peers[at]);
    let mut expected = vec!["this instance".to_owned(), url(1), url(2), url(2)];
    expected.sort();
    assert_eq!(names, expected);
    let pools: Pools = merged(asked, "/api/v1/pools", 3).await;
    assert!(pools.pools.iter().all(|pool| pool.instance.is_some()));
    assert_eq!(pools.pools.len(), 3);
    let topology: Topology = merged(asked, "/api/v1/topology", 3).await;
    assert_eq!(topology.servers.len(), 3);
    let servers: Servers = merged(asked, "/api/v1/servers", 3).await;
    assert_eq!(servers.servers.len(), 3);
    let configuration: Configuration = merged(asked, "/api/v1/config", 3).await;
    let values = configuration.values.iter();
    assert_eq!(
        values.filter(|of| of.key == "pool.max_pool_size").count(),
        3
    );
    assert_eq!(configuration.hash, "mixed");
    let session: DashboardSession = asked.api("/api/v1/session").await;
    assert_eq!(session.peers, [url(1), url(2)]);
}

async fn namespaces_and_the_report_are_merged(instances: &[Seawall], name: &str, both: &Shape) {
    let asked = &instances[0];
    for path in ["/api/v1/namespaces", "/api/v1/namespaces?since=10m"] {
        let namespaces: Namespaces = merged(asked, path, 3).await;
        let rows = namespaces.namespaces.iter();
        let rows: Vec<_> = rows
            .filter(|of| of.db == name && of.command == "find")
            .collect();
        let [row] = rows[..] else {
            panic!("{path}: {namespaces:?}")
        };
        assert_eq!((&*row.collection, row.count), ("things", 54), "{path}");
        assert!(row.distribution.is_none() && row.latency_ms.p99 > 0.0);
        assert_eq!(row.errors.is_some(), path.contains("since"), "{row:?}");
        let mut sum = seawall_stats::Distribution::<8>::default();
        let separator = if path.contains('?') { '&' } else { '?' };
        for seawall in instances {
            let path = format!("{path}{separator}distributions=true");
            let own: Namespaces = seawall.api(&path).await;
            let mut rows = own.namespaces.into_iter();
            let own = rows.find(|of| of.db == name && of.command == "find");
            let own = own.unwrap();
            let buckets = own.distribution.unwrap();
            let of = distribution(&buckets, own.total_time_ms, own.latency_ms.max);
            sum.merge(&of);
        }
        let expected: Latency = (&sum).into();
        assert!((row.latency_ms.p50 - expected.p50).abs() < 1e-6, "{path}");
        let one: Namespaces = merged(asked, &format!("{path}{separator}limit=1"), 3).await;
        assert_eq!(one.namespaces.len(), 1);
    }
    let report: Report = merged(asked, "/api/v1/report?since=10m", 3).await;
    assert_eq!(report.seawall_report, Report::VERSION);
    let found = report.shapes.iter().find(|shape| shape.id == both.id);
    assert_eq!(found.unwrap().latency_ms, both.latency_ms);
    let count: u64 = report.timeline.steps.iter().map(|step| step.count).sum();
    assert_eq!(count, report.operations());
    // All instances use the same server, so the report has one row with the sums.
    let [server] = &report.servers[..] else {
        panic!("{:?}", report.servers)
    };
    assert!(server.count >= 54 && server.distribution.is_none());
    assert_eq!(report.status.clients, 4);
}

async fn further_paths_are_merged(asked: &Seawall, id: &str) {
    let status: Status = merged(asked, "/api/v1/status", 3).await;
    assert!(status.operations >= 54);
    let gauges: GaugeTimeline = merged(asked, "/api/v1/gauges?since=10m", 3).await;
    assert!(!gauges.steps.is_empty());
    let lines: Sparklines = merged(asked, "/api/v1/sparklines?since=10m", 3).await;
    assert!(lines.shapes.contains_key(id));
    let _: SlowOperations = merged(asked, "/api/v1/slow", 3).await;
    let _: Storms = merged(asked, "/api/v1/storms", 3).await;
    let _: Stalls = merged(asked, "/api/v1/stalls", 3).await;
    let _: Annotations = merged(asked, "/api/v1/annotations", 3).await;
    let (status, body) = asked
        .get("/api/v1/changes?against=5s&window=5s&instances=all")
        .await;
    assert_eq!(status, 200, "{body}");
    for (method, path, expected) in [
        (
            "GET",
            "/api/v1/status?instances=two",
            "instances must be all",
        ),
        (
            "GET",
            "/api/v1/profile?instances=all",
            "does not support instances=all",
        ),
        (
            "POST",
            "/api/v1/drain?instances=all",
            "applies to one instance",
        ),
        (
            "POST",
            "/api/v1/reload?instances=all",
            "applies to one instance",
        ),
    ] {
        let (status, body) = asked.request(method, path, "").await;
        assert_eq!(status, 400, "{path}: {body}");
        assert!(body.contains(expected), "{path}: {body}");
    }
    let (status, body) = asked.get("/api/v1/shapes?sort=name&instances=all").await;
    assert_eq!(status, 400, "{body}");
    // Without `instances=all`, the reply names no instance.
    let (_, plain) = asked.get("/api/v1/pools").await;
    assert!(!plain.contains("instance"), "{plain}");
}

/// Reads the first live update that is merged from all instances.
async fn live(seawall: &Seawall) -> Merged<Tick> {
    let mut stream = TcpStream::connect(address(seawall)).await.unwrap();
    let request = format!(
        "GET /api/v1/live?instances=all HTTP/1.0\r\nHost: {}\r\n\r\n",
        address(seawall)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    loop {
        let mut part = [0; 4096];
        let read = stream.read(&mut part).await.unwrap();
        assert!(read > 0, "the stream ended: {text}");
        text.push_str(std::str::from_utf8(&part[..read]).unwrap());
        if let Some((_, data)) = text.split_once("data: ")
            && let Some((data, _)) = data.split_once("\n\n")
        {
            return serde_json::from_str(data).unwrap();
        }
    }
}

/// A peer that is not Seawall. It counts its connections.
struct FakePeer {
    address: String,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// How a [`FakePeer`] replies.
#[derive(Clone)]
enum Replies {
    Never,
    With(String),
    /// The peer sends a body that never ends.
    Endless,
}

impl FakePeer {
    async fn start(replies: Replies) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, replies.clone()));
            }
        });
        Self {
            address,
            connections,
            task,
        }
    }

    fn json(body: &str) -> Replies {
        Replies::With(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        ))
    }
}

async fn serve(mut stream: TcpStream, replies: Replies) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    match replies {
        Replies::Never => {
            // Waits until Seawall closes the connection.
            drop(stream.read_u8().await);
        }
        Replies::With(response) => drop(stream.write_all(response.as_bytes()).await),
        Replies::Endless => {
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"version\":\"";
            let mut written = stream.write_all(head.as_bytes()).await;
            while written.is_ok() {
                written = stream.write_all(&[b'x'; 65_536]).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_failed_peers_are_reported_and_the_replies_of_other_instances_are_merged() {
    let server = shared_standalone().await.unwrap();
    let files = Scratch::create().unwrap();
    let token = files.write("token", "the right token").unwrap();
    let wrong = files.write("wrong", "another token").unwrap();
    let options = Options {
        toml: format!("admin.read_token_file = {token:?}\n"),
        ..Options::default()
    };
    let guarded = Seawall::launch(&server.uri(), options).await.unwrap();
    let hanging = FakePeer::start(Replies::Never).await;
    let endless = FakePeer::start(Replies::Endless).await;
    let garbage = FakePeer::start(FakePeer::json("<html>hello")).await;
    let typed = FakePeer::start(FakePeer::json(r#"{ "clients": "many" }"#)).await;
    let vast = FakePeer::start(FakePeer::json(r#"{ "clients": 18446744073709551615 }"#)).await;
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep = FakePeer::start(FakePeer::json(&deep)).await;
    let dead = "127.0.0.1:1".to_owned();
    let expected = [
        (dead, "cannot reach"),
        (hanging.address.clone(), "timed out"),
        (endless.address.clone(), "too large"),
        (garbage.address.clone(), "not valid"),
        (typed.address.clone(), "not valid"),
        (vast.address.clone(), "a number is too large"),
        (deep.address.clone(), "not valid"),
        (address(&guarded), "does not accept the token"),
    ];
    let asked = Seawall::start(&server.uri()).await;
    let peers: Vec<_> = expected.iter().map(|(of, _)| of.clone()).collect();
    let toml = format!(
        "admin.peers = {:?}\nadmin.peer_token_file = {wrong:?}\n",
        peers.join(",")
    );
    asked.reload(&toml).await.unwrap();
    let own: Status = asked.api("/api/v1/status").await;
    let reply: Merged<Status> = asked.api("/api/v1/status?instances=all").await;
    assert_eq!(reply.reply.version, own.version);
    assert_eq!(reply.instances[0].error, None);
    assert_eq!(reply.instances.len(), peers.len() + 1);
    for ((address, expected), state) in expected.iter().zip(&reply.instances[1..]) {
        assert_eq!(state.address, format!("http://{address}"));
        let error = state.error.as_deref().unwrap_or_default();
        assert!(error.contains(expected), "{state:?}");
    }
    // For some seconds, Seawall does not ask the hanging peer again, so this peer does not delay
    // the next request.
    let connections = hanging.connections.load(Ordering::Relaxed);
    let again: Merged<Status> = asked.api("/api/v1/status?instances=all").await;
    assert_eq!(again.instances[2], reply.instances[2]);
    assert_eq!(hanging.connections.load(Ordering::Relaxed), connections);

    // With the right token, the guarded peer replies. The token gives only the right to read.
    let toml = format!(
        "admin.peers = {:?}\nadmin.peer_token_file = {token:?}\n",
        address(&guarded)
    );
    asked.reload(&toml).await.unwrap();
    let _: Status = merged(&asked, "/api/v1/status", 2).await;
    let (status, _) = guarded.get("/api/v1/status?instances=all").await;
    assert_eq!(
        status, 401,
        "expected a refusal of the request without a token"
    );
    let values: Configuration = asked.api("/api/v1/config").await;
    let values = serde_json::to_string(&values).unwrap();
    assert!(!values.contains("the right token"));
}

/// The names in the reply of the peer also contain HTML, which Seawall does not change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_names_another_instance_in_its_reply_is_listed_under_its_own_address() {
    let server = shared_standalone().await.unwrap();
    let name = "<img src=x onerror=alert(1)>";
    let body = serde_json::json!({
        "clients": [{ "application": name, "user": name, "peer": name, "instance": "forged" }],
        "count": 1,
    });
    let peer = FakePeer::start(FakePeer::json(&body.to_string())).await;
    let asked = Seawall::start(&server.uri()).await;
    set_peers(&asked, std::slice::from_ref(&peer.address)).await;
    let clients: Clients = merged(&asked, "/api/v1/clients", 2).await;
    let of_peer = clients.clients.iter();
    let of_peer: Vec<_> = of_peer
        .filter(|of| of.application.as_deref() == Some(name))
        .collect();
    let [client] = of_peer[..] else {
        panic!("{clients:?}")
    };
    // A peer cannot claim to be another instance: the reply names the peer's own address.
    assert_eq!(client.instance, Some(format!("http://{}", peer.address)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seawall_verifies_the_certificate_of_a_peer_and_presents_its_own_client_certificate() {
    let server = shared_standalone().await.unwrap();
    let certificates = Certificates::generate().unwrap();
    let (ca, own, client) = (
        certificates.ca_file(),
        certificates.server_file(),
        certificates.client_file(),
    );
    let options = Options {
        toml: format!(
            "admin.tls.certificate_file = {own:?}\nadmin.tls.key_file = {own:?}\n\
             admin.tls.client_certificate = \"required\"\nadmin.tls.client_ca_file = {ca:?}\n"
        ),
        ..Options::default()
    };
    let peer = Seawall::launch(&server.uri(), options).await.unwrap();
    let asked = Seawall::start(&server.uri()).await;
    let url = format!("https://{}", address(&peer));
    let state = async |toml: &str| -> InstanceState {
        asked
            .reload(&format!("admin.peers = {url:?}\n{toml}"))
            .await
            .unwrap();
        let reply: Merged<Status> = asked.api("/api/v1/status?instances=all").await;
        reply.instances[1].clone()
    };
    let without = state(&format!("admin.peer_ca_file = {ca:?}\n")).await;
    assert!(without.error.is_some(), "{without:?}");
    let untrusted = state("").await;
    assert!(untrusted.error.is_some(), "{untrusted:?}");
    let complete = state(&format!(
        "admin.peer_ca_file = {ca:?}\nadmin.peer_certificate_key_file = {client:?}\n"
    ))
    .await;
    assert_eq!((complete.address, complete.error), (url.clone(), None));
    let problems = asked
        .reload(&format!(
            "admin.peers = {url:?}\nadmin.peer_ca_file = {:?}\n",
            "/etc/hostname"
        ))
        .await
        .unwrap_err();
    assert!(problems[0].starts_with("admin.peers"), "{problems:?}");
}
