//! Tests of the PROXY protocol, with which load balancers send the addresses of clients to Seawall
//! in a header before the first message.

use std::{net::SocketAddr, time::Duration};

use bson::doc;
use seawall_api::{Clients, SlowOperations, Storms};
use seawall_tests::{
    certificates::Certificates,
    eventually::eventually,
    mongod::{NewUser, ROOT, ROOT_PASSWORD, create_user, shared_standalone, unique_name},
    raw::{Login, RawClient},
    seawall::Seawall,
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{client_tls::HANDSHAKE_FAILED, served::Served};

const LIMIT: Duration = Duration::from_secs(20);

/// Time limit until Seawall reports a reconnect storm. Before that, Seawall learns the normal
/// traffic for ten seconds.
const STORM_LIMIT: Duration = Duration::from_secs(60);

const ACCEPT: &str =
    "listen.proxy_protocol = \"accept\"\nlisten.proxy_networks = \"127.0.0.0/8\"\n";

async fn start(toml: &str) -> Seawall {
    let server = shared_standalone().await.unwrap();
    Seawall::start_configured(&server.uri(), toml).await
}

/// Opens a connection as a load balancer, and sends this header.
async fn connect(seawall: &Seawall, header: &[u8]) -> TcpStream {
    let address: SocketAddr = seawall.address().parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream.write_all(header).await.unwrap();
    stream
}

/// A PROXY header of version 1 for a client at this address.
fn version_1(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 192.0.2.1 4711 27017\r\n").into_bytes()
}

/// A PROXY header of version 2 for a client at 192.0.2.7, port 12345.
const VERSION_2: &[u8] =
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\xc0\0\x02\x01\x30\x39\x69\x89";

/// A PROXY header of version 2 (`LOCAL`) for a connection of the load balancer itself, such as a
/// health check.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

async fn is_served(stream: TcpStream) -> Option<RawClient> {
    let mut client = RawClient::new(stream);
    let reply = client.hello(doc! {}).await;
    reply.is_ok_and(|reply| reply.is_ok()).then_some(client)
}

async fn peers(seawall: &Seawall) -> Vec<String> {
    let clients: Clients = seawall.api("/api/v1/clients").await;
    clients
        .clients
        .into_iter()
        .map(|client| client.peer)
        .collect()
}

async fn refused(seawall: &Seawall, reason: &str) -> f64 {
    let reason = format!("reason=\"{reason}\"");
    let name = "seawall_client_connections_refused_total";
    seawall.metric(name, &[&reason]).await
}

#[tokio::test]
async fn the_address_in_the_proxy_header_is_used_as_the_address_of_the_client() {
    let seawall = start(ACCEPT).await;
    let mut clients = Vec::new();
    for header in [&version_1("192.0.2.9")[..], VERSION_2] {
        let client = is_served(connect(&seawall, header).await).await;
        clients.push(client.unwrap());
    }
    // A `LOCAL` header contains no client's address, so Seawall shows the load balancer's address.
    clients.push(is_served(connect(&seawall, LOCAL).await).await.unwrap());
    let peers = peers(&seawall).await;
    assert_eq!(peers.len(), 3);
    assert!(peers.contains(&"192.0.2.9:4711".to_owned()), "{peers:?}");
    assert!(peers.contains(&"192.0.2.7:12345".to_owned()), "{peers:?}");
    assert!(peers.iter().any(|peer| peer.starts_with("127.0.0.1:")));
    let reply = clients[0].command("admin", doc! { "whatsmyuri": 1 }).await;
    assert_eq!(
        reply.unwrap().body.get_str("you").unwrap(),
        "192.0.2.9:4711"
    );
}

#[tokio::test]
async fn client_source_restrictions_of_users_apply_to_the_address_in_the_proxy_header() {
    let server = shared_standalone().await.unwrap();
    let name = unique_name("proxied");
    // The server sees Seawall's address, 127.0.0.1, so the restriction also allows that address.
    let user = NewUser::new("admin", &name, "secret")
        .role("readWrite", &name)
        .restriction(doc! { "clientSource": ["192.0.2.9", "127.0.0.1"] });
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let seawall = start(ACCEPT).await;
    let login = async |client: &str| {
        let mut client = is_served(connect(&seawall, &version_1(client)).await)
            .await
            .unwrap();
        let outcome = client.login(&Login::new("admin", &name, "secret")).await;
        outcome.is_ok_and(|outcome| outcome.is_authenticated())
    };
    assert!(login("192.0.2.9").await);
    assert!(!login("192.0.2.10").await);
    assert!(login("192.0.2.9").await);
}

#[tokio::test]
async fn slow_operations_are_listed_with_the_client_address_in_the_proxy_header() {
    let seawall = start(&format!(
        "{ACCEPT}slow_log.threshold_ms = 0\nslow_log.file = \"/dev/null\"\n"
    ))
    .await;
    let client = is_served(connect(&seawall, VERSION_2).await).await;
    let mut client = client.unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(client.login(&login).await.unwrap().is_authenticated());
    let find = client.command("proxied", doc! { "find": "things" }).await;
    assert!(find.unwrap().is_ok());
    client.wait_until_counted().await.unwrap();
    let listed = async || {
        let slow: SlowOperations = seawall.api("/api/v1/slow").await;
        slow.operations.into_iter().find(|of| of.db == "proxied")
    };
    let operation = eventually(LIMIT, listed).await.unwrap();
    assert_eq!(operation.client.as_deref(), Some("192.0.2.7:12345"));
}

#[tokio::test]
async fn the_report_of_a_reconnect_storm_has_the_networks_of_the_addresses_in_the_proxy_headers() {
    let seawall = start(ACCEPT).await;
    let storms = async || seawall.api::<Storms>("/api/v1/storms").await;
    let has_learned = async || !storms().await.learning;
    eventually(STORM_LIMIT, has_learned).await.unwrap();
    let has_begun = async || {
        for host in 1..=5 {
            let header = version_1(&format!("192.0.2.{host}"));
            drop(is_served(connect(&seawall, &header).await).await);
        }
        storms().await.storms.into_iter().next()
    };
    let storm = eventually(STORM_LIMIT, has_begun).await.unwrap();
    let networks: Vec<_> = storm.networks.iter().map(|of| &*of.name).collect();
    assert_eq!(networks, ["192.0.2.0/24"]);
}

#[tokio::test]
async fn the_proxy_header_comes_before_tls_and_may_arrive_in_pieces() {
    let certificates = Certificates::generate().unwrap();
    let seawall = start(&format!("{ACCEPT}{}", certificates.listen_toml())).await;
    let mut stream = connect(&seawall, &VERSION_2[..5]).await;
    stream.write_all(&VERSION_2[5..20]).await.unwrap();
    stream.write_all(&VERSION_2[20..]).await.unwrap();
    let config = certificates.client_config().unwrap();
    let mut client = RawClient::begin_tls(stream, "localhost", config)
        .await
        .unwrap();
    assert!(client.hello(doc! {}).await.unwrap().is_ok());
    assert_eq!(peers(&seawall).await, ["192.0.2.7:12345"]);
}

#[tokio::test]
async fn failed_handshakes_are_logged_with_the_address_in_the_proxy_header() {
    let certificates = Certificates::generate().unwrap();
    let toml = format!(
        "{ACCEPT}{}listen.tls.client_certificate = \"required\"\nlisten.tls.client_ca_file = {:?}\n",
        certificates.listen_toml(),
        certificates.ca_file()
    );
    let served = Served::start(&toml).await;
    let mut stream = TcpStream::connect(served.process.address()).await.unwrap();
    stream.write_all(VERSION_2).await.unwrap();
    let config = certificates.client_config().unwrap();
    if let Ok(mut client) = RawClient::begin_tls(stream, "localhost", config).await {
        assert!(client.hello(doc! {}).await.is_err());
    }
    let logged = async || served.process.said(HANDSHAKE_FAILED);
    let line = eventually(LIMIT, logged).await.unwrap();
    let fields = &line["fields"];
    assert_eq!(fields["cause"], "no certificate", "{line}");
    assert_eq!(fields["peer"], "192.0.2.7:12345", "{line}");
}

#[tokio::test]
async fn connections_without_a_valid_proxy_header_or_from_outside_proxy_networks_are_closed() {
    let seawall = start(ACCEPT).await;
    let too_long = [&VERSION_2[..14], &[0xff, 0xff], &[0; 4_000]].concat();
    for header in [
        &b""[..],
        b"PROXY TCP4 no\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        // These bytes begin a TLS handshake.
        b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
        &too_long,
    ] {
        assert!(is_served(connect(&seawall, header).await).await.is_none());
    }
    let is_counted = async || refused(&seawall, "proxy_header").await >= 5.0;
    eventually(LIMIT, is_counted).await.unwrap();
    let elsewhere = ACCEPT.replace("127.0.0.0/8", "192.0.2.0/24");
    let seawall = start(&elsewhere).await;
    assert!(
        is_served(connect(&seawall, VERSION_2).await)
            .await
            .is_none()
    );
    let is_counted = async || refused(&seawall, "proxy_network").await >= 1.0;
    eventually(LIMIT, is_counted).await.unwrap();
    assert!(peers(&seawall).await.is_empty());
}

#[tokio::test]
async fn a_client_whose_proxy_header_never_arrives_is_closed_after_the_time_limit() {
    let seawall = start(ACCEPT).await;
    let _silent = connect(&seawall, &VERSION_2[..8]).await;
    let is_counted = async || refused(&seawall, "proxy_header").await >= 1.0;
    eventually(LIMIT, is_counted).await.unwrap();
    assert!(peers(&seawall).await.is_empty());
}

#[tokio::test]
async fn a_load_balancer_that_disconnects_without_a_byte_is_not_counted_as_a_refused_client() {
    let seawall = start(ACCEPT).await;
    drop(connect(&seawall, b"").await);
    let is_counted = async || {
        let stage = ["stage=\"connected\""];
        seawall.metric("seawall_clients_gone_total", &stage).await >= 1.0
    };
    eventually(LIMIT, is_counted).await.unwrap();
    assert_eq!(refused(&seawall, "proxy_header").await, 0.0);
}

#[tokio::test]
async fn limits_by_address_apply_separately_to_the_clients_behind_a_load_balancer() {
    let seawall = start(&format!(
        "{ACCEPT}limits.connections_per_second_per_address = 1\n"
    ))
    .await;
    let mut served = Vec::new();
    for host in 1..=5 {
        let header = version_1(&format!("192.0.2.{host}"));
        served.push(is_served(connect(&seawall, &header).await).await);
    }
    assert!(served.iter().all(Option::is_some));
    let again = connect(&seawall, &version_1("192.0.2.5")).await;
    assert!(is_served(again).await.is_none());
    assert!(refused(&seawall, "address_rate").await >= 1.0);
}
