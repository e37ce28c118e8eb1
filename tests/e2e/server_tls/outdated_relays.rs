//! Relayed clients after a change of Seawall's client certificate.

use bson::doc;
use seawall_tests::{
    authority::YEAR,
    eventually::eventually,
    raw::{OpMsg, RawClient},
    seawall::Seawall,
};
use tokio::time::timeout;

use super::{FILES, LIMIT, ServerTlsScene, find, logged_in};
use crate::server_log;

const RELAY: &str = "deployment.mode = \"relay\"\n";
const CLOSES: &str = "deployment.relay_close_outdated = true\n";

/// The number of clients that Seawall has closed because their server connection was outdated.
async fn closed(seawall: &Seawall) -> f64 {
    let name = "seawall_unobserved_total";
    seawall
        .metric(name, &["reason=\"relay_tls_changed\""])
        .await
}

/// Waits until Seawall has counted this many closed clients. It counts a client after the close.
async fn expect_count(seawall: &Seawall, count: f64) {
    let is_counted = async || closed(seawall).await >= count;
    eventually(LIMIT, is_counted).await.unwrap();
    assert_eq!(closed(seawall).await, count);
}

/// Waits until Seawall closes this client. Fails if the client gets any bytes before.
async fn expect_close(client: &mut RawClient) {
    let read = timeout(LIMIT, client.read_to_close()).await.unwrap();
    assert_eq!(read.unwrap(), b"");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_close_outdated_closes_idle_relayed_clients_after_a_change_of_tls_files() {
    let scene = ServerTlsScene::with(server_log::detailed()).await;
    let without_key = scene.toml(&format!("{RELAY}{FILES}"));
    let with_key = scene.toml(&format!("{CLOSES}{RELAY}{FILES}"));
    let keeping = scene.start("127.0.0.1", &without_key).await;
    let closing = scene.start("127.0.0.1", &with_key).await;
    let mut kept = logged_in(&keeping).await.unwrap();
    let mut idle = logged_in(&closing).await.unwrap();
    let mut sending = logged_in(&closing).await.unwrap();
    for (client, comment) in [(&mut kept, "kept"), (&mut idle, "idle")] {
        let subject = server_log::presented_subject(&scene.server, client, comment).await;
        assert_eq!(subject, "CN=seawall", "{comment}");
    }
    let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }], "$db": "tls" };
    let insert = OpMsg::new(insert).to_bytes();
    let (first, rest) = insert.split_at(insert.len() / 2);
    sending.send_bytes(first).await.unwrap();
    let renewed = scene.authority().client("renewed", YEAR).unwrap();
    scene.write("client.pem", &renewed.pem());
    keeping.reload(&without_key).await.unwrap();
    closing.reload(&with_key).await.unwrap();
    let mut newer = logged_in(&closing).await.unwrap();
    let subject = server_log::presented_subject(&scene.server, &mut newer, "newer").await;
    assert_eq!(subject, "CN=renewed");

    // An idle client is closed. A client that sends a command gets the reply first.
    expect_close(&mut idle).await;
    sending.send_bytes(rest).await.unwrap();
    let reply = sending.read_reply().await.unwrap();
    assert!(reply.is_ok(), "{}", reply.body);
    expect_close(&mut sending).await;
    expect_count(&closing, 2.0).await;
    // The other clients are not closed: one uses the new certificate, and one connects through a
    // Seawall without the key.
    assert!(find(&mut newer).await);
    assert!(find(&mut kept).await);
    assert_eq!(closed(&keeping).await, 0.0);

    // The key also has an effect on clients that became outdated before it was set.
    keeping.reload(&with_key).await.unwrap();
    expect_close(&mut kept).await;
    expect_count(&keeping, 1.0).await;
}
