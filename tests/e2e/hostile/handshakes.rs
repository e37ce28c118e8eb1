//! Clients that begin TLS handshakes without completing them, to block the handshakes of others.

use std::{sync::Arc, time::Duration};

use mongodb::bson::doc;
use seawall_tests::{
    certificates::Certificates, eventually::eventually, raw::RawClient, seawall::Seawall,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, pki_types::ServerName};

use super::connections::refused;
use crate::scene::{connection_from, seawall};

const LIMIT: Duration = Duration::from_secs(60);
const HOSTILE: [u8; 4] = [127, 0, 0, 9];
const OTHER: [u8; 4] = [127, 0, 0, 1];

/// The first message of a TLS handshake.
fn client_hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    hello
}

/// The first half of a message.
fn half(message: &[u8]) -> &[u8] {
    &message[..message.len() / 2]
}

/// Opens a connection from the address `HOSTILE`, and sends these bytes.
async fn begin(seawall: &Seawall, bytes: &[u8]) -> TcpStream {
    let mut stream = connection_from(seawall, HOSTILE).await;
    stream.write_all(bytes).await.unwrap();
    stream
}

/// True if a client with this source address completes its handshake and gets a reply.
async fn is_served(seawall: &Seawall, source: [u8; 4], config: &Arc<ClientConfig>) -> bool {
    let stream = connection_from(seawall, source).await;
    let client = RawClient::begin_tls(stream, "localhost", Arc::clone(config)).await;
    let Ok(mut client) = client else {
        return false;
    };
    client.hello(doc! {}).await.is_ok_and(|reply| reply.is_ok())
}

#[tokio::test]
async fn incomplete_handshakes_do_not_delay_other_handshakes() {
    let certificates = Certificates::generate().unwrap();
    let seawall = seawall(&certificates.listen_toml()).await;
    let config = certificates.client_config().unwrap();
    let hello = client_hello(&config);
    // An incomplete handshake ends at its time limit. Complete handshakes that were delayed by
    // incomplete ones would then succeed. So an attempt in which a handshake reaches the limit
    // proves nothing, and the test repeats it.
    let served = async || {
        let before = refused(&seawall, "tls_timeout").await;
        let mut incomplete = Vec::new();
        for _ in 0..100 {
            incomplete.push(begin(&seawall, b"").await);
            incomplete.push(begin(&seawall, half(&hello)).await);
        }
        for source in [HOSTILE, OTHER] {
            if !is_served(&seawall, source, &config).await {
                return Err(format!("a client at {source:?} was not served"));
            }
        }
        let late = refused(&seawall, "tls_timeout").await - before;
        match late > 0.0 {
            true => Err(format!("{late} handshakes reached the time limit")),
            false => Ok(()),
        }
    };
    eventually(LIMIT, served).await.unwrap();
}

#[tokio::test]
async fn clients_that_leave_during_their_handshake_are_not_counted_as_refused() {
    let certificates = Certificates::generate().unwrap();
    let seawall = seawall(&certificates.listen_toml()).await;
    let hello = client_hello(&certificates.client_config().unwrap());
    for _ in 0..10 {
        for bytes in [&b""[..], half(&hello), &hello] {
            drop(begin(&seawall, bytes).await);
        }
    }
    let name = "seawall_clients_gone_total";
    let have_left = async || seawall.metric(name, &["stage=\"tls\""]).await == 30.0;
    eventually(LIMIT, have_left).await.unwrap();
    assert_eq!(refused(&seawall, "tls").await, 0.0);
}

#[tokio::test]
async fn clients_with_an_incomplete_handshake_are_closed_after_the_time_limit() {
    let certificates = Certificates::generate().unwrap();
    let seawall = seawall(&certificates.listen_toml()).await;
    let hello = client_hello(&certificates.client_config().unwrap());
    let mut incomplete = [
        begin(&seawall, b"").await,
        begin(&seawall, half(&hello)).await,
    ];
    for stream in &mut incomplete {
        let mut received = Vec::new();
        let closed = timeout(LIMIT, stream.read_to_end(&mut received)).await;
        closed.unwrap().unwrap();
        assert!(received.is_empty(), "{received:?}");
    }
    let are_counted = async || refused(&seawall, "tls_timeout").await == 2.0;
    eventually(LIMIT, are_counted).await.unwrap();
}
