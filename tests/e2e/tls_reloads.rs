//! Clients that connect before a reload of the TLS settings.

use std::time::Duration;

use seawall_tests::raw::RawClient;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{
    TlsConnector,
    rustls::{HandshakeKind, pki_types::ServerName},
};

use crate::client_tls::{ClientTlsScene, REQUIRED, is_served};

const LIMIT: Duration = Duration::from_secs(20);

/// Connects without sending a byte. Then connects a second client, and waits until Seawall has
/// replied to it. Seawall accepts connections in order, so it has then accepted the silent one too.
async fn connect_silently(scene: &ClientTlsScene) -> TcpStream {
    let stream = TcpStream::connect(scene.seawall().address()).await;
    assert!(scene.is_served(None).await);
    stream.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_silent_during_a_reload_needs_the_certificate_that_is_now_required() {
    for (toml, is_accepted) in [("", true), (REQUIRED, false)] {
        let scene = ClientTlsScene::start("").await;
        let stream = connect_silently(&scene).await;
        let reloaded = scene.seawall().reload(&scene.toml(toml)).await;
        reloaded.unwrap();
        let connector = TlsConnector::from(scene.config(None));
        let name = ServerName::try_from("localhost").unwrap();
        // With TLS 1.3, a client learns only after its handshake that it is refused.
        let served = match connector.connect(name, stream).await {
            Ok(stream) => is_served(&mut RawClient::new(stream)).await,
            Err(_) => false,
        };
        assert_eq!(served, is_accepted, "{toml}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_silent_during_a_reload_needs_tls_if_it_is_now_required() {
    for (mode, is_accepted) in [("prefer", true), ("require", false)] {
        let toml = |mode: &str| format!("listen.tls.mode = {mode:?}\n");
        let scene = ClientTlsScene::start(&toml("prefer")).await;
        let stream = connect_silently(&scene).await;
        let reloaded = scene.seawall().reload(&scene.toml(&toml(mode))).await;
        reloaded.unwrap();
        let served = is_served(&mut RawClient::new(stream)).await;
        assert_eq!(served, is_accepted, "{mode}");
    }
}

/// In a resumed handshake, the client sends no certificate: Seawall knows it from the TLS session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_has_resumed_a_tls_session_is_closed_if_its_certificate_is_revoked() {
    let toml = format!("{REQUIRED}listen.tls.close_revoked = true\n");
    let scene = ClientTlsScene::start(&toml).await;
    let bad = scene.client("bad");
    let config = scene.config(Some(&bad));
    assert!(scene.connect(&config).await.1.is_some());
    let (kind, client) = scene.connect(&config).await;
    assert_eq!(kind, Some(HandshakeKind::Resumed));
    let mut client = client.unwrap();
    scene.write_list(&[&bad]);
    scene.seawall().reload(&scene.toml(&toml)).await.unwrap();
    // The reload closes the connection, so a command of the client fails soon.
    let is_closed = async { while is_served(&mut client).await {} };
    timeout(LIMIT, is_closed).await.unwrap();
}
