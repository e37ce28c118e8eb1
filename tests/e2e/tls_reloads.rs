//! Clients that connect before a reload of the TLS settings and send their first byte after it.

use seawall_tests::raw::RawClient;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

use crate::client_tls::{REQUIRED, Scene, is_served};

/// Connects without sending a byte. Then connects a second client, and waits until Seawall has
/// replied to it. Seawall accepts connections in order, so it has then accepted the silent one too.
async fn connect_silently(scene: &Scene) -> TcpStream {
    let stream = TcpStream::connect(scene.seawall().address()).await;
    assert!(scene.is_served(None).await);
    stream.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_was_silent_during_a_reload_needs_the_certificate_that_is_now_required() {
    for (toml, is_accepted) in [("", true), (REQUIRED, false)] {
        let scene = Scene::start("").await;
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
        let scene = Scene::start(&toml("prefer")).await;
        let stream = connect_silently(&scene).await;
        let reloaded = scene.seawall().reload(&scene.toml(&toml(mode))).await;
        reloaded.unwrap();
        let served = is_served(&mut RawClient::new(stream)).await;
        assert_eq!(served, is_accepted, "{mode}");
    }
}
