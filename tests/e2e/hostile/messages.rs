//! Messages with which a client tries to overload servers, to make Seawall clear a pool, or to use
//! up a memory budget.

use std::time::Duration;

use mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};
use seawall_api::Pools;
use seawall_tests::{
    certificates::Certificates,
    eventually::eventually,
    mongod::{FailTimes, Options, Standalone, fail_command},
    raw::{Header, OpMsg, RawClient, RawError, message::OP_MSG},
    seawall::Seawall,
};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use crate::{
    protocol::compression::{OP_COMPRESSED, SNAPPY, compressed},
    scene::{connect, connect_from, connection_from, logged_in, seawall, seawall_at, writer},
};

/// The size of the largest message that servers accept (`maxMessageSizeBytes`).
const MAX_MESSAGE_BYTES: usize = 48_000_000;
const LIMIT: Duration = Duration::from_secs(60);

fn metadata() -> Document {
    doc! {"client": {"driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}}}
}

/// An insert with the largest possible size.
fn largest_insert() -> OpMsg {
    let insert = |pad: usize| {
        let document = |id: i32, bytes: usize| doc! {"_id": id, "pad": "x".repeat(bytes)};
        let documents = vec![
            document(1, 15 << 20),
            document(2, 15 << 20),
            document(3, pad),
        ];
        OpMsg::new(doc! {"insert": "c", "$db": "test"}).sequence("documents", documents)
    };
    let without_pad = insert(0).to_bytes().len();
    let message = insert(MAX_MESSAGE_BYTES - without_pad);
    assert_eq!(message.to_bytes().len(), MAX_MESSAGE_BYTES);
    message
}

/// Number of server connections that were closed because their pool was cleared.
async fn pools_cleared(seawall: &Seawall) -> f64 {
    let reason = [r#"reason="stale""#];
    seawall
        .metric("seawall_server_connections_closed_total", &reason)
        .await
}

/// The client's metadata (`$client`) would make this message longer than a server accepts.
#[tokio::test]
async fn the_largest_message_is_forwarded_without_the_client_metadata_that_seawall_usually_adds() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = seawall_at(&server.uri(), "").await;
    let mut client = connect(&seawall).await;
    client.set_limit(LIMIT);
    assert!(client.hello(metadata()).await.unwrap().is_ok());
    let reply = client.exchange(&largest_insert()).await.unwrap();
    assert_eq!(reply.body.get_i32("n").ok(), Some(3), "{}", reply.body);
    let omitted = [r#"reason="client_name_omitted""#];
    assert_eq!(
        seawall.metric("seawall_unobserved_total", &omitted).await,
        1.0
    );
    assert_eq!(pools_cleared(&seawall).await, 0.0);
}

/// Compression makes these bytes longer, so the compressed message would be longer than a server
/// accepts. The message has a checksum, so that Seawall does not stream it: Seawall never
/// compresses streamed messages.
#[tokio::test]
async fn the_largest_message_reaches_the_server_uncompressed_if_compression_makes_it_longer() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let separator = if server.uri().contains('?') { '&' } else { '?' };
    let uri = format!("{}{separator}compressors=snappy", server.uri());
    let seawall = seawall_at(&uri, "").await;
    let mut client = connect(&seawall).await;
    client.set_limit(LIMIT);
    let insert = |pad: usize| {
        let document = |id: i32, bytes: usize| {
            let mut pad = vec![0; bytes];
            rand::fill(&mut pad[..]);
            let pad = Binary {
                subtype: BinarySubtype::Generic,
                bytes: pad,
            };
            doc! {"_id": id, "pad": pad}
        };
        let documents = vec![
            document(1, 15 << 20),
            document(2, 15 << 20),
            document(3, pad),
        ];
        OpMsg::new(doc! {"insert": "c", "$db": "test"})
            .sequence("documents", documents)
            .checksum()
    };
    let without_pad = insert(0).to_bytes().len();
    let largest = insert(MAX_MESSAGE_BYTES - without_pad);
    assert_eq!(largest.to_bytes().len(), MAX_MESSAGE_BYTES);
    let reply = client.exchange(&largest).await.unwrap();
    assert_eq!(reply.body.get_i32("n").ok(), Some(3), "{}", reply.body);
    let closed = "seawall_server_connections_closed_total";
    assert_eq!(seawall.metric(closed, &[]).await, 0.0);
}

#[tokio::test]
async fn a_large_command_to_which_seawall_itself_replies_closes_the_connection() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = seawall_at(&server.uri(), "").await;
    let mut client = connect(&seawall).await;
    let large = |bytes: usize| doc! {"whatsmyuri": 1, "comment": "x".repeat(bytes)};
    client.expect_ok("admin", large(60_000)).await;
    let ended = client.command("admin", large(70_000)).await.unwrap_err();
    assert!(matches!(ended, RawError::Closed), "{ended:?}");
}

#[tokio::test]
async fn one_closed_server_connection_does_not_clear_the_pool() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = seawall_at(&server.uri(), "").await;
    let mut other = connect(&seawall).await;
    let mut client = connect(&seawall).await;
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    let pool = async || {
        let pools: Pools = seawall.api("/api/v1/pools").await;
        pools.pools.into_iter().next().unwrap()
    };
    let driver = server.client().unwrap();
    let hold_finds = async |mode: &str| {
        let hold = doc! {"configureFailPoint": "waitInFindBeforeMakingBatch", "mode": mode};
        driver.database("admin").run_command(hold).await.unwrap();
    };
    other.expect_ok("test", insert(1)).await;
    // While this find uses the first server connection, the insert of `client` opens a second one,
    // which must stay in the pool.
    hold_finds("alwaysOn").await;
    let find = doc! {"find": "c", "$db": "test"};
    other.send(&OpMsg::new(find)).await.unwrap();
    eventually(LIMIT, async || pool().await.in_use == 1)
        .await
        .unwrap();
    client.expect_ok("test", insert(2)).await;
    hold_finds("off").await;
    assert!(other.read_reply().await.unwrap().is_ok());
    let both = pool().await;
    assert_eq!(both.available + both.in_use, 2, "{both:?}");
    let close = doc! {"failCommands": ["insert"], "closeConnection": true};
    fail_command(&driver, FailTimes::Count(1), close)
        .await
        .unwrap();
    let lost = client.command("test", insert(3)).await.unwrap();
    assert_eq!(lost.code(), Some(6), "{lost:?}");
    for n in 0..10 {
        for client in [&mut client, &mut other] {
            let reply = client.command("test", doc! {"find": "c"}).await.unwrap();
            assert!(reply.is_ok(), "{n}: {reply:?}");
        }
    }
    assert_eq!(pools_cleared(&seawall).await, 0.0);
    let pool = pool().await;
    assert_eq!(pool.state, "ready", "{pool:?}");
}

#[tokio::test]
async fn compressed_messages_are_refused_before_a_login_and_with_a_disabled_compressor() {
    let ping = compressed(
        &OpMsg::new(doc! {"ping": 1, "$db": "admin"}).to_bytes(),
        SNAPPY,
    );
    let refused = async |client: &mut RawClient| {
        client.send_bytes(&ping).await.unwrap();
        let ended = client.read_reply().await.unwrap_err();
        assert!(matches!(ended, RawError::Closed), "{ended:?}");
    };
    let seawall = seawall("").await;
    refused(&mut connect(&seawall).await).await;
    let user = writer().await;
    let mut client = logged_in(&seawall, &user.login()).await;
    client.send_bytes(&ping).await.unwrap();
    assert!(client.read_message().await.is_ok());
    for disabled in ["disabled", "zlib"] {
        let toml = format!("listen.compressors = {disabled:?}\n");
        let seawall = crate::scene::seawall(&toml).await;
        refused(&mut logged_in(&seawall, &user.login()).await).await;
        let reason = [r#"reason="compressed_refused""#];
        let is_counted = async || seawall.metric("seawall_unobserved_total", &reason).await == 1.0;
        eventually(LIMIT, is_counted).await.unwrap();
    }
}

/// Message lengths that clients announce: the maximum length, and the length of a message that
/// Seawall reads as a whole.
const ANNOUNCED: [usize; 2] = [MAX_MESSAGE_BYTES, 1_000_000];

/// The first `sent` bytes of a message with this opcode. Its header announces a length of `bytes`.
fn announcing(bytes: usize, op_code: i32, sent: usize) -> Vec<u8> {
    let header = Header {
        message_length: i32::try_from(bytes).unwrap(),
        request_id: 1,
        response_to: 0,
        op_code,
    };
    let mut message = header.to_bytes().to_vec();
    // The header of a compressed message also has the uncompressed length and the compressor.
    message.extend(2013_i32.to_le_bytes());
    message.extend(i32::try_from(bytes - 100).unwrap().to_le_bytes());
    message.push(SNAPPY);
    message.resize(sent, 0);
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_senders_do_not_block_large_commands_of_other_clients() {
    const SENDERS: u8 = 60;
    let server = Standalone::start(Options::default()).await.unwrap();
    for (mode, op_code) in [
        ("pooled", OP_COMPRESSED),
        ("pooled", OP_MSG),
        ("relay", OP_COMPRESSED),
    ] {
        let uri = format!("{}?directConnection=true", server.uri());
        let toml = format!("deployment.mode = {mode:?}\nlimits.message_memory_bytes = 134217728\n");
        let seawall = seawall_at(&uri, &toml).await;
        let mut slow = Vec::new();
        for announced in ANNOUNCED {
            // Together, the messages announce more bytes than `limits.message_memory_bytes`. The
            // bytes that are really sent take up most of this memory budget.
            for (n, sent) in (0..SENDERS).flat_map(|n| [(n, 25), (n, 900_000)]) {
                let mut sender = connect_from(&seawall, [127, 0, 1, n % 3 + 1]).await;
                let message = announcing(announced, op_code, sent);
                // The send may fail, because Seawall may stop reading or close the connection.
                sender.set_limit(Duration::from_millis(20));
                drop(sender.send_bytes(&message).await);
                slow.push(sender);
            }
        }
        let mut client = connect_from(&seawall, [127, 0, 0, 7]).await;
        for bytes in [100_000, 2_000_000] {
            let pad = "x".repeat(bytes);
            let insert = doc! {"insert": "c", "documents": [{"pad": pad}]};
            let reply = client.command("test", insert).await.unwrap();
            assert!(reply.is_ok(), "{mode} {op_code}: {reply:?}");
        }
        drop(slow);
    }
}

/// Ten clients request a large document and do not read it. Another client must still get its
/// replies.
async fn check_slow_readers(
    seawall: &Seawall,
    connect: impl AsyncFn(&Seawall, [u8; 4]) -> RawClient,
) {
    const READERS: usize = 10;
    let mut client = connect(seawall, [127, 0, 0, 7]).await;
    for (id, bytes) in [(1, 15 << 20), (2, 100 << 10)] {
        let document = doc! {"_id": id, "pad": "x".repeat(bytes)};
        let update = doc! {"q": {"_id": id}, "u": document, "upsert": true};
        let command = doc! {"update": "c", "updates": [update]};
        client.expect_ok("test", command).await;
    }
    let find = |id: i32| OpMsg::new(doc! {"find": "c", "filter": {"_id": id}, "$db": "test"});
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut reader = connect(seawall, [127, 0, 0, 9]).await;
        reader.send_bytes(&find(1).to_bytes()).await.unwrap();
        readers.push(reader);
    }
    // These exchanges give Seawall time to buffer as many of the readers' replies as its memory
    // budget allows.
    for _ in 0..READERS {
        let reply = timeout(REPLY_LIMIT, client.exchange(&find(2))).await;
        let reply = reply.unwrap().unwrap();
        assert!(reply.is_ok(), "{reply:?}");
    }
    drop(readers);
}

/// Ten clients request a large document, and read a few bytes of it after each reply to another
/// client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_read_a_few_bytes_at_a_time_do_not_block_replies_to_other_clients() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = seawall_at(&server.uri(), SLOW_READERS_TOML).await;
    let mut client = connect_from(&seawall, [127, 0, 0, 7]).await;
    let insert = doc! {"insert": "c", "documents": [{"pad": "x".repeat(15 << 20)}]};
    client.expect_ok("test", insert).await;
    let find = OpMsg::new(doc! {"find": "c", "$db": "test"}).to_bytes();
    let mut readers = Vec::new();
    for _ in 0..10 {
        let mut reader = connection_from(&seawall, [127, 0, 0, 9]).await;
        reader.write_all(&find).await.unwrap();
        readers.push(reader);
    }
    let mut read_bytes = 0;
    let mut chunk = vec![0; 16 << 10];
    for _ in 0..100 {
        let find = client.command("test", doc! {"find": "none"});
        let reply = timeout(REPLY_LIMIT, find).await.unwrap().unwrap();
        assert!(reply.is_ok(), "{reply:?}");
        for reader in &readers {
            read_bytes += reader.try_read(&mut chunk).unwrap_or(0);
        }
    }
    assert!(
        read_bytes > 0,
        "expected the slow readers to read some bytes"
    );
}

/// Time limit for another client's reply while the slow readers are connected.
const REPLY_LIMIT: Duration = Duration::from_secs(5);

const SLOW_READERS_TOML: &str = "limits.message_memory_bytes = 134217728\npool.max_pool_size = 2\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_do_not_block_replies_to_other_clients() {
    let server = Standalone::start(Options::default()).await.unwrap();
    for compressors in ["", "&compressors=snappy"] {
        let uri = format!("{}?directConnection=true{compressors}", server.uri());
        let seawall = seawall_at(&uri, SLOW_READERS_TOML).await;
        check_slow_readers(&seawall, connect_from).await;
    }
}

/// The client requests a large document and does not read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_seawall_closes_because_it_reads_too_slowly_is_counted_as_closed() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = seawall_at(&server.uri(), "limits.client_write_idle_timeout_ms = 100\n").await;
    let mut client = connect_from(&seawall, [127, 0, 0, 7]).await;
    let insert = doc! {"insert": "c", "documents": [{"pad": "x".repeat(15 << 20)}]};
    client.expect_ok("test", insert).await;
    let find = OpMsg::new(doc! {"find": "c", "$db": "test"});
    client.send_bytes(&find.to_bytes()).await.unwrap();
    let departures = "seawall_client_departures_total";
    let is_closed = async || seawall.metric(departures, &["how=\"closed\""]).await > 0.0;
    eventually(Duration::from_secs(60), is_closed)
        .await
        .unwrap();
    assert_eq!(seawall.metric(departures, &["how=\"gave_up\""]).await, 0.0);
    assert_eq!(seawall.metric("seawall_clients_gone_total", &[]).await, 0.0);
}

/// Starts Seawall with a TLS listener in front of `server`.
async fn encrypted(server: &Standalone, certificates: &Certificates) -> Seawall {
    let toml = format!("{SLOW_READERS_TOML}{}", certificates.listen_toml());
    seawall_at(&server.uri(), &toml).await
}

async fn connect_with_tls(
    seawall: &Seawall,
    certificates: &Certificates,
    source: [u8; 4],
) -> RawClient {
    let stream = connection_from(seawall, source).await;
    let config = certificates.client_config().unwrap();
    let client = RawClient::begin_tls(stream, "localhost", config).await;
    client.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_with_tls_do_not_block_replies_to_other_clients() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let certificates = Certificates::generate().unwrap();
    let seawall = encrypted(&server, &certificates).await;
    let connect =
        async |seawall: &Seawall, source| connect_with_tls(seawall, &certificates, source).await;
    check_slow_readers(&seawall, connect).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_with_tls_gets_its_whole_reply() {
    const BYTES: usize = 15 << 20;
    let server = Standalone::start(Options::default()).await.unwrap();
    let certificates = Certificates::generate().unwrap();
    let seawall = encrypted(&server, &certificates).await;
    let mut client = connect_with_tls(&seawall, &certificates, [127, 0, 0, 7]).await;
    let document = doc! {"_id": 1, "pad": "x".repeat(BYTES)};
    let insert = doc! {"insert": "c", "documents": [document]};
    client.expect_ok("test", insert).await;
    let find = OpMsg::new(doc! {"find": "c", "$db": "test"});
    let mut reader = connect_with_tls(&seawall, &certificates, [127, 0, 0, 9]).await;
    reader.send_bytes(&find.to_bytes()).await.unwrap();
    // Seawall serves other clients before the slow client reads the first byte of its reply.
    let served = async || {
        let mut other = connect_with_tls(&seawall, &certificates, [127, 0, 0, 7]).await;
        let reply = other.command("test", doc! {"find": "none"}).await;
        reply.unwrap().is_ok()
    };
    for _ in 0..10 {
        assert!(served().await);
    }
    assert!(reader.read_message().await.unwrap().len() > BYTES);
}
