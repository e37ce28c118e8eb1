//! Checks that no byte of an unauthenticated client reaches a pooled connection.

use std::{collections::HashSet, sync::Arc, time::Duration};

use bson::{Document, doc};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use seawall_tests::{
    mongod::{NewUser, RunCommand, unique_name},
    raw::{OpMsg, OpQuery, RawClient},
    recorder::{Recorder, Recording},
    seawall::Seawall,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Semaphore,
    task::JoinSet,
};

use crate::scene::{binary, connect, find, insert, logged_in, recorded, root, server, writer};

/// A text that occurs only in messages of these tests.
const MARKER: &str = "planted-by-the-test";

/// The indexes of the connections over which Seawall sent any command other than those of a
/// handshake or a probe. These connections belong to a pool.
fn pooled(recorder: &Recorder) -> Vec<usize> {
    let is_pooled = |recording: &Recording| {
        let mut names = recording.commands().into_iter();
        names.any(|command| {
            let name = command.keys().next().unwrap();
            !["hello", "isMaster", "ismaster", "saslStart", "buildInfo"].contains(&name.as_str())
        })
    };
    let connections = recorder.connections().into_iter().enumerate();
    let pooled = connections.filter(|(_, recording)| is_pooled(recording));
    pooled.map(|(index, _)| index).collect()
}

/// Starts Seawall with a client that has completed an operation. Also returns the indexes of the
/// pooled connections, which the operation used.
async fn seawall_with_client() -> (Seawall, Recorder, NewUser, RawClient, Vec<usize>) {
    let (seawall, recorder) = recorded("").await;
    let user = writer().await;
    let mut client = logged_in(&seawall, &user.login()).await;
    assert!(insert(&mut client, &user.name).await.is_ok());
    let pooled = pooled(&recorder);
    assert!(!pooled.is_empty());
    recorder.forget();
    (seawall, recorder, user, client, pooled)
}

fn contains(bytes: &[u8], part: &str) -> bool {
    let mut windows = bytes.windows(part.len());
    windows.any(|window| window == part.as_bytes())
}

/// All commands of the server, with some of the fields that they need.
async fn all_commands() -> Vec<Document> {
    let listed = doc! { "listCommands": 1 };
    let listed = root().await.run("admin", listed).await.unwrap();
    let names = listed.get_document("commands").unwrap().keys();
    let mut commands = Vec::new();
    for name in names {
        let fields = doc! {
            "documents": [{ "text": MARKER }], "pipeline": [], "cursor": {}, "comment": MARKER,
        };
        for fields in [doc! { "comment": MARKER }, fields] {
            let mut command = doc! { name: MARKER };
            command.extend(fields);
            commands.push(command);
        }
    }
    commands
}

#[tokio::test]
async fn no_command_of_an_unauthenticated_client_reaches_a_server() {
    let (seawall, recorder, user, mut good, pooled) = seawall_with_client().await;
    let commands = all_commands().await;
    assert!(
        commands.len() > 300,
        "expected more than 300 commands, got {}",
        commands.len()
    );
    let mut client = connect(&seawall).await;
    for command in commands {
        let name = command.keys().next().unwrap().clone();
        for db in ["admin", &user.name] {
            let reply = client.command(db, command.clone()).await.unwrap();
            let replied = ["hello", "isMaster", "ismaster", "ping", "connectionStatus"];
            let informs = ["buildInfo", "buildinfo", "whatsmyuri", "getnonce"];
            let is_served = replied.contains(&name.as_str()) || informs.contains(&name.as_str());
            assert_eq!(reply.is_ok(), is_served, "{name}: {reply:?}");
        }
        client.send_query(&OpQuery::new(command)).await.unwrap();
        client.read_reply().await.unwrap();
    }
    // Seawall must also refuse unacknowledged messages, document sequences and messages with a
    // checksum.
    let command = doc! { "insert": "c", "$db": &user.name };
    let message = OpMsg::new(command).sequence("documents", vec![doc! { "text": MARKER }]);
    let unacknowledged = message
        .clone()
        .flags(seawall_tests::raw::message::MORE_TO_COME);
    client.send(&unacknowledged).await.unwrap();
    for message in [message.clone(), message.checksum()] {
        assert_eq!(client.exchange(&message).await.unwrap().code(), Some(13));
    }
    for (index, recording) in recorder.connections().iter().enumerate() {
        assert!(!contains(&recording.from_client, MARKER), "{index}");
        if pooled.contains(&index) {
            assert!(
                recording.from_client.is_empty(),
                "{:?}",
                recording.commands()
            );
        }
    }
    assert!(find(&mut good, &user.name).await.is_ok());
    logged_in(&seawall, &user.login()).await;
}

#[tokio::test]
async fn most_commands_before_a_login_get_the_same_error_code_from_seawall_as_from_a_server() {
    let (seawall, _recorder) = recorded("").await;
    let mut client = connect(&seawall).await;
    let mut direct = server().await.raw_client().await.unwrap();
    let mut different = HashSet::new();
    let mut names: Vec<String> = Vec::new();
    for command in all_commands().await {
        names.extend(command.keys().next().cloned());
    }
    names.dedup();
    names.push("noSuchCommand".to_owned());
    for name in names {
        let command = doc! { &name: 1 };
        // Other tests cover the commands of logins.
        if name == "authenticate" || name.starts_with("sasl") {
            continue;
        }
        let expected = direct.command("admin", command.clone()).await.unwrap();
        let reply = client.command("admin", command).await.unwrap();
        let is_same_text = reply.body.get("errmsg") == expected.body.get("errmsg");
        if reply.code() != expected.code() || (reply.code() == Some(13) && !is_same_text) {
            assert_eq!(reply.code(), Some(13), "{name}: {reply:?} {expected:?}");
            different.insert(name);
        }
    }
    // The server does not know the first command of this list, and refuses it with another code
    // than Seawall. The server runs the other commands before a login, but Seawall refuses them. Of
    // these, drivers need at most `listCommands` and `_isSelf`. Most of the rest exist only on test
    // servers.
    let known = HashSet::from([
        "noSuchCommand",
        "listCommands",
        "_isSelf",
        "configureFailPoint",
        "echo",
        "pinHistoryReplicated",
        "refreshLogicalSessionCacheNow",
        "testDeprecation",
        "waitForFailPoint",
        "waitForOngoingChunkSplits",
    ]);
    different.retain(|name| !known.contains(name.as_str()));
    assert_eq!(different, HashSet::new());
}

#[tokio::test]
async fn replies_before_a_login_have_the_same_fields_as_server_replies() {
    let (seawall, _recorder) = recorded("").await;
    let mut client = connect(&seawall).await;
    let mut direct = server().await.raw_client().await.unwrap();
    for command in [
        doc! { "ping": 1 },
        doc! { "buildInfo": 1 },
        doc! { "connectionStatus": 1 },
        doc! { "connectionStatus": 1, "showPrivileges": false },
        doc! { "connectionStatus": 1, "showPrivileges": true },
        doc! { "whatsmyuri": 1 },
        doc! { "getnonce": 1 },
    ] {
        let expected = direct.command("admin", command.clone()).await.unwrap();
        let reply = client.command("admin", command.clone()).await.unwrap();
        let keys = |body: &Document| -> Vec<String> {
            let mut keys: Vec<_> = body.keys().cloned().collect();
            keys.retain(|key| !["$clusterTime", "operationTime"].contains(&key.as_str()));
            keys
        };
        assert_eq!(keys(&reply.body), keys(&expected.body), "{command}");
        if command.contains_key("connectionStatus") || command.contains_key("buildInfo") {
            assert_eq!(reply.body, expected.body, "{command}");
        }
    }
}

/// Messages with which a login can begin. The last item also contains a proof, which is invalid.
fn handshakes(user: &str) -> Vec<Vec<u8>> {
    let payload = binary(&format!("n,,n={user},r=0123456789abcdefghij"));
    let start = doc! {
        "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload, "autoAuthorize": 1,
        "options": { "skipEmptyExchange": true },
    };
    let mut speculative = start.clone();
    speculative.insert("db", "admin");
    let hello = doc! {
        "isMaster": 1, "helloOk": true, "saslSupportedMechs": format!("admin.{user}"),
        "speculativeAuthenticate": speculative, "compression": ["zlib"],
        "client": { "driver": { "name": "d", "version": "1" }, "os": { "type": "Linux" } },
    };
    let proof = binary(
        "c=biws,r=0123456789abcdefghijklmnop,p=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    );
    let proof = doc! { "saslContinue": 1, "conversationId": 1, "payload": proof };
    let message = |mut body: Document| {
        body.insert("$db", "admin");
        OpMsg::new(body).to_bytes()
    };
    vec![
        OpQuery::new(hello.clone()).to_bytes(),
        message(hello),
        message(start.clone()),
        [message(start), message(proof)].concat(),
    ]
}

/// Changes, removes or inserts a few bytes, or truncates the bytes. In half of the cases, sets the
/// first message's length to the number of bytes.
fn mutate(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..=4) {
        let index = rng.random_range(0..bytes.len().max(1));
        if bytes.len() <= index {
            return;
        }
        match rng.random_range(0..6) {
            0 => bytes[index] = rng.random(),
            1 => bytes[index] ^= 1 << rng.random_range(0..8),
            2 => bytes[index] = [0, 1, 0x7f, 0x80, 0xff][rng.random_range(0..5)],
            3 => drop(bytes.remove(index)),
            4 => bytes.insert(index, rng.random()),
            _ => bytes.truncate(index.max(1)),
        }
    }
    if rng.random() && bytes.len() >= 16 {
        let length = i32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_le_bytes());
    }
}

/// Sends bytes, gives Seawall some time to reply, closes the sending direction, and reads until
/// Seawall closes the connection.
async fn send(address: std::net::SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // Seawall may already have closed the connection. The test checks only the bytes that reach the
    // server.
    drop(stream.write_all(bytes).await);
    // Seawall ends the login of a client that has closed its connection, so the test first waits
    // for a reply. The wait is short, because many messages are incomplete and get no reply.
    drop(tokio::time::timeout(REPLY_WAIT, stream.readable()).await);
    drop(stream.shutdown().await);
    let mut reply = Vec::new();
    let read = tokio::time::timeout(LIMIT, stream.read_to_end(&mut reply));
    drop(
        read.await
            .expect("Seawall closes a connection that its client has closed"),
    );
}

/// Checks that the server got no messages except those that Seawall builds. Returns the number of
/// first logins (logins that the server checks) that Seawall forwarded.
fn first_logins_by_seawall(recorder: &Recorder, user: &NewUser, pooled: &[usize]) -> usize {
    // After the login of a user whose SCRAM keys Seawall has, Seawall may read the keys again with
    // this command.
    let reading = doc! {
        "usersInfo": { "user": &user.name, "db": "admin" }, "showCredentials": true,
        "showAuthenticationRestrictions": true, "$db": "admin",
        "$readPreference": { "mode": "primaryPreferred" },
    };
    let handshake = HashSet::from([
        "hello",
        "isMaster",
        "ismaster",
        "saslStart",
        "saslContinue",
        "buildInfo",
        "ping",
    ]);
    let mut first_logins = 0;
    for (index, recording) in recorder.connections().iter().enumerate() {
        if pooled.contains(&index) {
            let message_count = recording.messages_from_client().len();
            assert_eq!(recording.commands().len(), message_count);
        }
        for command in recording.commands() {
            if pooled.contains(&index) {
                assert_eq!(command, reading);
            }
            let keys: Vec<_> = command.keys().map(String::as_str).collect();
            match keys[0] {
                "saslStart" => {
                    let expected = ["saslStart", "mechanism", "options", "$db", "payload"];
                    assert_eq!(keys, expected);
                    first_logins += 1;
                }
                "saslContinue" => {
                    assert_eq!(keys, ["saslContinue", "conversationId", "$db", "payload"])
                }
                name => assert!(command == reading || handshake.contains(name), "{command}"),
            }
        }
    }
    first_logins
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_byte_of_a_mutated_handshake_message_reaches_a_pooled_connection() {
    const MESSAGES: u64 = 10_000;
    let (seawall, recorder, user, mut good, pooled) = seawall_with_client().await;
    let new_user = writer().await;
    let address = seawall.address().parse::<std::net::SocketAddr>().unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], address.port()));
    let originals = [
        handshakes(&user.name),
        handshakes(&new_user.name),
        handshakes("nobody"),
    ];
    let originals = Arc::new(originals.concat());
    let at_a_time = Arc::new(Semaphore::new(32));
    let mut sending = JoinSet::new();
    for seed in 0..MESSAGES {
        let (originals, permit) = (Arc::clone(&originals), Arc::clone(&at_a_time));
        let permit = permit.acquire_owned().await.unwrap();
        sending.spawn(async move {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut bytes = originals[rng.random_range(0..originals.len())].clone();
            mutate(&mut bytes, &mut rng);
            send(address, &bytes).await;
            drop(permit);
        });
    }
    while let Some(sent) = sending.join_next().await {
        sent.unwrap();
    }

    let first_logins = first_logins_by_seawall(&recorder, &user, &pooled);
    // Some logins reached the server, so Seawall did not refuse all messages because of invalid
    // framing.
    assert!(
        first_logins > 10,
        "expected more than 10 first logins, got {first_logins}"
    );
    assert!(find(&mut good, &user.name).await.is_ok());
    for user in [user, new_user] {
        let mut client = logged_in(&seawall, &user.login()).await;
        assert!(insert(&mut client, &user.name).await.is_ok());
    }
    let unknown = unique_name("nobody");
    let mut client = connect(&seawall).await;
    let outcome = client
        .login(&seawall_tests::raw::Login::new("admin", &unknown, "p"))
        .await
        .unwrap();
    assert_eq!(outcome.code(), Some(18), "{outcome:?}");
}

/// Time that Seawall has for a reply before a sender of mutated messages closes its connection.
const REPLY_WAIT: Duration = Duration::from_millis(20);

/// Time limit of each wait. Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(60);
