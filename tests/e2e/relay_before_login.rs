//! Tests of relay mode with clients that have not logged in.

use bson::doc;
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ROOT, ROOT_PASSWORD, Standalone},
    raw::{Login, OpMsg, OpQuery, RawError},
    recorder::Recorder,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    protocol::compression::{SNAPPY, compressed},
    relay::{LIMIT, UNAUTHORIZED, relaying},
    scene::connect,
};

#[tokio::test]
async fn a_relayed_client_that_sends_a_large_or_a_compressed_message_before_its_login_is_closed() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let seawall = relaying(&server.uri(), "").await;
    let insert = doc! {"insert": "c", "documents": [{"pad": "x".repeat(100_000)}], "$db": "d"};
    let large = OpMsg::new(insert).to_bytes();
    let ping = OpMsg::new(doc! {"ping": 1, "$db": "admin"}).to_bytes();
    let refused = [
        (large, "message_length"),
        (compressed(&ping, SNAPPY), "compressed_refused"),
    ];
    for (number, (message, reason)) in (1_u32..).zip(refused) {
        let mut client = connect(&seawall).await;
        // Seawall can close the connection before it has read all of the message.
        drop(client.send_bytes(&message).await);
        let ended = client.read_reply().await.unwrap_err();
        assert!(matches!(ended, RawError::Closed), "{reason}: {ended:?}");
        let reason = format!("reason=\"{reason}\"");
        let is_counted = async || {
            let count = async |metric, label: &str| seawall.metric(metric, &[label]).await;
            let refused = count("seawall_unobserved_total", &reason).await;
            let closed = count("seawall_client_departures_total", "how=\"closed\"").await;
            (refused, closed) == (1.0, f64::from(number))
        };
        eventually(LIMIT, is_counted).await.unwrap();
    }
}

#[tokio::test]
async fn a_relayed_client_that_resets_its_connection_is_counted_as_reset() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let seawall = relaying(&server.uri(), "").await;
    let ping = OpMsg::new(doc! {"ping": 1, "$db": "admin"}).to_bytes();
    let mut client = TcpStream::connect(seawall.address()).await.unwrap();
    client.write_all(&ping).await.unwrap();
    client.read_u8().await.unwrap();
    client.set_zero_linger().unwrap();
    drop(client);
    let is_counted = async || {
        let how = ["how=\"reset\""];
        let reset = seawall
            .metric("seawall_client_departures_total", &how)
            .await;
        reset == 1.0
    };
    eventually(LIMIT, is_counted).await.unwrap();
}

#[tokio::test]
async fn before_a_login_only_the_handshake_and_harmless_commands_are_relayed() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = relaying(&uri, "").await;
    let mut client = connect(&seawall).await;
    for name in ["addshard", "listCommands", "find", "planted"] {
        let reply = client
            .command("admin", doc! {name: 1, "planted": 1})
            .await
            .unwrap();
        assert_eq!(reply.code(), Some(UNAUTHORIZED), "{}", reply.body);
        let query = OpQuery::new(doc! {name: 1, "planted": 1});
        client.send_query(&query).await.unwrap();
        let reply = client.read_reply().await.unwrap();
        assert_eq!(reply.code(), Some(UNAUTHORIZED), "{}", reply.body);
    }
    client.expect_ok("admin", doc! {"ping": 1}).await;
    // The client has begun a login, but sends a command before it sends its SCRAM proof.
    let begun = client
        .begin_login(&Login::new("admin", ROOT, ROOT_PASSWORD))
        .await
        .unwrap();
    let too_early = OpMsg::new(doc! {"planted": 1, "$db": "admin"});
    client.send(&too_early).await.unwrap();
    assert_eq!(
        client.read_reply().await.unwrap().code(),
        Some(UNAUTHORIZED)
    );
    let outcome = client.finish_login(&begun).await.unwrap();
    assert!(outcome.is_authenticated(), "{outcome:?}");
    let sent = recorder.connections();
    let mut sent = sent.iter().map(|r| String::from_utf8_lossy(&r.from_client));
    assert!(!sent.any(|bytes| bytes.contains("planted")));
    // If the server requires no login, a relay forwards other commands too, but never a command
    // whose name begins with `$`.
    let open = Standalone::start(Options::default()).await.unwrap();
    let seawall = relaying(&open.uri(), "").await;
    let mut client = connect(&seawall).await;
    let insert = doc! {"insert": "c", "documents": [{}]};
    client.expect_ok("test", insert).await;
    let reply = client.command("test", doc! {"$find": "c"}).await.unwrap();
    assert_eq!(reply.code(), Some(UNAUTHORIZED), "{}", reply.body);
}
