//! Tests of relay mode: each client has its own server connection, Seawall forwards the bytes
//! unchanged, and it counts the operations.

mod plain;

use std::time::Duration;

use self::plain::{Plain, binary, plain};
use crate::{
    protocol::compression::{SNAPPY, compressed},
    scene::{connect, logged_in},
};
use mongodb::{
    Client,
    bson::{Document, doc},
    options::ClientOptions,
};
use seawall_api::{Clients, Shapes};
use seawall_tests::{
    eventually::eventually,
    mongod::{
        NewUser, Options, ROOT, ROOT_PASSWORD, ReplicaSet, Standalone, create_user,
        shared_replica_set, unique_name,
    },
    raw::message::{EXHAUST_ALLOWED, MORE_TO_COME, OP_REPLY},
    raw::{Login, OpMsg, OpQuery, RawClient, RawError, RawReply, Section},
    recorder::Recorder,
    seawall::Seawall,
};

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

pub(crate) const UNAUTHORIZED: i32 = 13;
const MECHANISM_UNAVAILABLE: i32 = 334;

pub(crate) async fn relaying(uri: &str, toml: &str) -> Seawall {
    Seawall::start_configured(uri, &format!("deployment.mode = \"relay\"\n{toml}")).await
}

/// The opcode, flags and body of a server's reply. The body has no fields that depend on the time
/// or the connection, and the text `db` replaces the database's name.
fn comparable(reply: &RawReply, db: &str) -> (i32, u32, String) {
    const CLOCK: [&str; 8] = [
        "opTime",
        "electionId",
        "connectionId",
        "localTime",
        "lastWrite",
        "$clusterTime",
        "operationTime",
        "topologyVersion",
    ];
    let mut body = reply.body.clone();
    for name in CLOCK {
        drop(body.remove(name));
    }
    (
        reply.header.op_code,
        reply.flags,
        body.to_string().replace(db, "db"),
    )
}

#[tokio::test]
async fn relayed_client_gets_the_same_replies_as_a_direct_client() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let seawall = relaying(&set.uri(), "").await;
    let member = set.members().first().unwrap();
    let mut direct = set.raw_client(member).await.unwrap();
    let mut through = connect(&seawall).await;
    let of = |db: &str| {
        [
            doc! {"hello": 1, "$db": "admin"},
            doc! {"isMaster": 1, "$db": "admin"},
            doc! {"insert": "c", "documents": [{"_id": 1}], "$db": db},
            doc! {"insert": "c", "documents": [{"_id": 1}], "$db": db},
            doc! {"find": "c", "$db": db},
            doc! {"unheardOf": 1, "$db": db},
            doc! {"drop": "c", "$db": db},
        ]
        .map(OpMsg::new)
    };
    for has_checksum in [false, true] {
        let (one, other) = (unique_name("relay"), unique_name("relay"));
        for (mut asked, mut asked_through) in of(&one).into_iter().zip(of(&other)) {
            asked.has_checksum = has_checksum;
            asked_through.has_checksum = has_checksum;
            let expected = comparable(&direct.exchange(&asked).await.unwrap(), &one);
            let reply = through.exchange(&asked_through).await.unwrap();
            assert_eq!(comparable(&reply, &other), expected, "{asked:?}");
        }
    }
    // Each client sends the `hello` with which drivers begin, and then the `hello` of a monitor.
    for client in [&mut direct, &mut through] {
        client
            .send_query(&OpQuery::new(doc! {"isMaster": 1}))
            .await
            .unwrap();
        let reply = client.read_reply().await.unwrap();
        assert_eq!(reply.body.get_str("setName").unwrap(), ReplicaSet::NAME);
        let version = reply.body.get_document("topologyVersion").unwrap();
        let watch =
            doc! {"hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 50, "$db": "admin"};
        client
            .send(&OpMsg::new(watch).flags(EXHAUST_ALLOWED))
            .await
            .unwrap();
        for _ in 0..3 {
            let reply = client.read_reply().await.unwrap();
            assert!(reply.is_ok() && reply.has_more_to_come(), "{}", reply.body);
        }
    }
}

/// Checks Seawall's counts after two inserts (one with a write error), a `find` with two
/// `getMore`s, and a `count`.
async fn counts_agree(seawall: &Seawall, db: &str) {
    let labels = [format!("db=\"{db}\"")];
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    // Seawall counts an operation after it has forwarded the reply.
    let is_counted = async || match seawall.metric("seawall_operations_total", &labels).await {
        6.0 => Ok(()),
        operations => Err(operations.to_string()),
    };
    eventually(LIMIT, is_counted).await.unwrap();
    let counted = [labels[0], "count"];
    let counted = seawall
        .metric("seawall_operation_documents_total", &counted)
        .await;
    assert_eq!(counted, 7.0);
    let failed = [labels[0], r#"outcome="write_error""#];
    assert_eq!(
        seawall.metric("seawall_operations_total", &failed).await,
        1.0
    );
    let shapes: Shapes = seawall.api("/api/v1/shapes?limit=500").await;
    let mut shapes = shapes.shapes.iter();
    let find = shapes.find(|shape| shape.db == db && shape.command == "find");
    let find = find.unwrap();
    assert_eq!((find.count, find.documents), (1, 250));
    assert_eq!((find.more.count, find.more.documents), (2, Some(150)));
}

#[tokio::test]
async fn operations_and_logins_of_relayed_clients_are_counted() {
    let set = shared_replica_set().await.unwrap();
    let seawall = relaying(&set.uri(), "").await;
    let db = unique_name("relay");
    let uri = format!(
        "mongodb://{ROOT}:{ROOT_PASSWORD}@{}/?directConnection=true",
        seawall.address()
    );
    let options = ClientOptions::parse(uri).await.unwrap();
    let client = Client::with_options(options).unwrap();
    let things = client.database(&db).collection::<Document>("things");
    things
        .insert_many((0..250).map(|n| doc! {"_id": n}))
        .await
        .unwrap();
    let mut cursor = things
        .find(doc! {"_id": {"$gte": 0}})
        .batch_size(100)
        .await
        .unwrap();
    let mut found = 0;
    while cursor.advance().await.unwrap() {
        found += 1;
    }
    assert_eq!(found, 250);
    let again = things.insert_one(doc! {"_id": 1}).await;
    assert!(again.is_err());
    // Seawall reads a compressed message to count it, and forwards it unchanged.
    let mut raw = connect(&seawall).await;
    raw.hello(doc! {"compression": ["snappy"]}).await.unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(raw.login(&login).await.unwrap().is_authenticated());
    let count = OpMsg::new(doc! {"count": "things", "query": {"_id": {"$lt": 7}}, "$db": &db});
    raw.send_bytes(&compressed(&count.to_bytes(), SNAPPY))
        .await
        .unwrap();
    let reply = raw.read_message().await.unwrap();
    assert_eq!(reply[12..16], 2012_i32.to_le_bytes());

    counts_agree(&seawall, &db).await;
    let logins = seawall
        .metric(
            "seawall_client_authentications_total",
            &[r#"result="ok""#, "SCRAM-SHA-256"],
        )
        .await;
    assert!(logins >= 1.0, "{logins} logins");
    let clients: Clients = seawall.api("/api/v1/clients").await;
    let mut users = clients.clients.iter().filter_map(|row| row.user.as_ref());
    assert!(users.any(|user| user.contains("admin.")), "{clients:?}");
    assert!(seawall.metric("seawall_relayed_connections", &[]).await >= 1.0);
    drop(raw);
    client.shutdown().immediate(true).await;
    let are_gone = async || match seawall.metric("seawall_relayed_connections", &[]).await {
        0.0 => Ok(()),
        left => Err(left.to_string()),
    };
    eventually(LIMIT, are_gone).await.unwrap();
}

#[tokio::test]
async fn a_relayed_client_that_begins_another_login_is_still_listed_with_its_own_user() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", server.address());
    let seawall = relaying(&uri, "").await;
    let mut client = connect(&seawall).await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let begun = client.begin_login(&login).await.unwrap();
    let other = doc! {
        "saslStart": 1,
        "mechanism": "SCRAM-SHA-256",
        "payload": binary(b"n,,n=mallory,r=x"),
        "$db": "test",
    };
    // The client sends both messages before the reply to the first one arrives.
    let proof = OpMsg::new(begun.last_command());
    let both = [proof.to_bytes(), OpMsg::new(other).to_bytes()].concat();
    client.send_bytes(&both).await.unwrap();
    let proven = client.read_reply().await.unwrap();
    assert!(proven.body.get_bool("done").unwrap(), "{proven:?}");
    client.read_reply().await.unwrap();
    let clients: Clients = seawall.api("/api/v1/clients").await;
    let rows = clients.clients.iter();
    let users: Vec<_> = rows.filter_map(|row| row.user.as_deref()).collect();
    assert_eq!(users, ["admin.root"]);
}

#[tokio::test]
async fn a_relayed_message_reaches_the_server_although_its_client_disconnects_at_once() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let seawall = relaying(&set.uri(), "").await;
    let db = unique_name("relay");
    for id in 0..50 {
        let pad = "x".repeat(100_000);
        let body = doc! {"insert": "c", "writeConcern": {"w": 0}, "$db": &db};
        let documents = (0..20)
            .map(|n| doc! {"_id": id * 20 + n, "pad": &pad})
            .collect();
        let message = OpMsg::new(body).sequence("documents", documents);
        connect(&seawall)
            .await
            .send(&message.flags(MORE_TO_COME))
            .await
            .unwrap();
    }
    let database = set.client().await.unwrap().database(&db);
    let collection = database.collection::<Document>("c");
    let is_complete = async || collection.count_documents(doc! {}).await.unwrap() == 1000;
    eventually(LIMIT, is_complete).await.unwrap();
}

#[tokio::test]
async fn a_relay_refuses_commands_that_servers_allow_only_from_their_own_host() {
    // A server with authentication and without users lets a client from its host create the first
    // user.
    let options = Options {
        arguments: vec!["--auth".to_owned()],
        ..Options::default()
    };
    let server = Standalone::start(options).await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = relaying(&uri, "").await;
    let user = doc! {"createUser": "mallory", "pwd": "x", "roles": ["root"]};
    let role = doc! {"createRole": "all", "privileges": [], "roles": ["root"]};
    let set = doc! {"replSetInitiate": {"_id": "rs", "members": []}};
    for command in [user.clone(), role, set, doc! {"shutdown": 1}] {
        let mut client = connect(&seawall).await;
        let reply = client.command("admin", command.clone()).await.unwrap();
        assert_eq!(reply.code(), Some(UNAUTHORIZED), "{}", reply.body);
        // The connection stays usable after the refusal.
        assert!(client.hello(doc! {}).await.unwrap().is_ok());
        client
            .send_query(&OpQuery::new(command.clone()))
            .await
            .unwrap();
        let reply = client.read_reply().await.unwrap();
        assert_eq!(reply.code(), Some(UNAUTHORIZED), "{}", reply.body);
        // Seawall refuses compressed messages before a login.
        let mut packed = command;
        packed.insert("$db", "admin");
        let packed = compressed(&OpMsg::new(packed).to_bytes(), SNAPPY);
        client.send_bytes(&packed).await.unwrap();
        assert!(matches!(client.read_reply().await, Err(RawError::Closed)));
    }
    // A server might understand a message that Seawall cannot parse, so the relay must not forward
    // it.
    let mut client = connect(&seawall).await;
    let mut twice = OpMsg::new(doc! {"ping": 1, "$db": "admin"});
    twice.sections.push(Section::Body(user));
    client.send(&twice).await.unwrap();
    assert!(matches!(client.read_reply().await, Err(RawError::Closed)));
    let sent = recorder.connections();
    let sent = sent
        .iter()
        .map(|r| String::from_utf8_lossy(&r.from_client).into_owned());
    let sent = sent.collect::<String>();
    let forbidden = ["create", "replSet", "shutdown"];
    assert!(!forbidden.iter().any(|name| sent.contains(name)));
}

#[tokio::test]
async fn large_messages_are_relayed_after_a_login() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let seawall = relaying(&server.uri(), "").await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let large = doc! {"insert": "c", "documents": [{"pad": "x".repeat(100_000)}]};
    let mut client = connect(&seawall).await;
    assert!(client.login(&login).await.unwrap().is_authenticated());
    for _ in 0..2 {
        client.expect_ok("test", large.clone()).await;
    }
}

#[tokio::test]
async fn relay_forwards_no_command_after_a_logout() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = relaying(&uri, "").await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    for flags in [0, MORE_TO_COME] {
        let mut client = connect(&seawall).await;
        assert!(client.login(&login).await.unwrap().is_authenticated());
        // The client sends both messages before the first reply arrives.
        let logout = OpMsg::new(doc! {"logout": 1, "$db": "admin"}).flags(flags);
        let user = doc! {"createUser": "mallory", "pwd": "x", "roles": ["root"], "$db": "admin"};
        let both = [logout.to_bytes(), OpMsg::new(user).to_bytes()].concat();
        client.send_bytes(&both).await.unwrap();
        let mut codes = Vec::new();
        for _ in 0..2 - i32::from(flags != 0) {
            codes.push(client.read_reply().await.unwrap().code());
        }
        assert!(codes.contains(&Some(UNAUTHORIZED)), "{codes:?}");
    }
    let sent = recorder.connections();
    let sent = sent
        .iter()
        .map(|r| String::from_utf8_lossy(&r.from_client).into_owned());
    assert!(!sent.collect::<String>().contains("mallory"));
}

#[tokio::test]
async fn a_relayed_client_stays_logged_in_after_a_logout_on_another_database() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", server.address());
    let seawall = relaying(&uri, "").await;
    let mut client = connect(&seawall).await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(client.login(&login).await.unwrap().is_authenticated());
    for (db, code) in [("test", None), ("admin", Some(UNAUTHORIZED))] {
        client.expect_ok(db, doc! {"logout": 1}).await;
        let found = client.command("test", doc! {"find": "c"}).await.unwrap();
        assert_eq!(found.code(), code, "{db}: {found:?}");
    }
}

/// If Seawall relayed a message that the server parses differently than Seawall, the server could
/// run a command that Seawall must not relay.
#[tokio::test]
async fn forbidden_commands_in_malformed_messages_are_not_relayed() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", server.address());
    let seawall = relaying(&uri, "").await;
    // The value of the first field is not valid UTF-8. Seawall must still find `mechanism`, which
    // follows this field, and refuse X.509.
    let start =
        doc! {"saslStart": "AA", "mechanism": "MONGODB-X509", "payload": "", "$db": "$external"};
    let mut bytes = OpMsg::new(start).to_bytes();
    let odd = bytes.windows(2).position(|two| two == b"AA").unwrap();
    bytes[odd..odd + 2].fill(0xff);
    let mut client = connect(&seawall).await;
    client.send_bytes(&bytes).await.unwrap();
    let reply = client.read_reply().await.unwrap();
    assert_eq!(reply.code(), Some(MECHANISM_UNAVAILABLE), "{}", reply.body);
    // The command is inside an array. A server wrongly unwraps the array and runs the command.
    let inner = doc! {"0": {"createUser": "mallory"}};
    let inner: Vec<_> = inner.into_iter().map(|(_, value)| value).collect();
    client
        .send_query(&OpQuery::new(doc! {"$query": inner}))
        .await
        .unwrap();
    assert!(matches!(client.read_reply().await, Err(RawError::Closed)));
}

#[tokio::test]
async fn unencrypted_bytes_after_a_tls_record_are_not_relayed() {
    let options = Options {
        arguments: vec!["--auth".to_owned()],
        ..Options::default()
    };
    let server = Standalone::start(options).await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let toml = "deployment.relay_encrypted = true\nauth.authentication_timeout_ms = 1000\n";
    let seawall = relaying(&uri, toml).await;
    // These bytes are a complete TLS record. They are also the start of a message with opcode 0,
    // and servers ignore such messages.
    let record = [&[0x16, 3, 1, 0, 100][..], &[0; 100]].concat();
    let user = doc! {"createUser": "mallory", "pwd": "x", "roles": ["root"], "$db": "admin"};
    let mut client = connect(&seawall).await;
    let bytes = [record, OpMsg::new(user).to_bytes()].concat();
    client.send_bytes(&bytes).await.unwrap();
    assert!(client.read_to_close().await.unwrap().is_empty());
    let sent = recorder.connections();
    let sent = sent
        .iter()
        .map(|r| String::from_utf8_lossy(&r.from_client).into_owned());
    assert!(!sent.collect::<String>().contains("mallory"));
}

#[tokio::test]
async fn no_client_can_log_in_with_the_certificate_of_seawall() {
    let set = shared_replica_set().await.unwrap();
    let seawall = relaying(&set.uri(), "").await;
    let start = doc! {"mechanism": "MONGODB-X509", "payload": "", "db": "$external"};
    let mut sasl = doc! {"saslStart": 1};
    sasl.extend(start.clone());
    let attempts = [
        doc! {"authenticate": 1, "mechanism": "MONGODB-X509"},
        sasl,
        doc! {"hello": 1, "speculativeAuthenticate": {"authenticate": 1, "mechanism": "MONGODB-X509"}},
        doc! {"hello": 1, "speculativeAuthenticate": start},
    ];
    for attempt in attempts {
        let reply = connect(&seawall)
            .await
            .command("$external", attempt)
            .await
            .unwrap();
        assert_eq!(reply.code(), Some(MECHANISM_UNAVAILABLE), "{}", reply.body);
    }
}

#[tokio::test]
async fn client_connections_that_are_relayed_to_a_former_primary_are_closed() {
    let set = ReplicaSet::start(3, Options::default()).await.unwrap();
    let seawall = relaying(&set.uri(), "deployment.heartbeat_frequency_ms = 500\n").await;
    let mut client = connect(&seawall).await;
    let primary = async |client: &mut RawClient| {
        let hello = client.hello(doc! {}).await.unwrap();
        hello.body.get_str("me").unwrap().to_owned()
    };
    let first = primary(&mut client).await;
    set.step_down().await.unwrap();
    assert!(client.read_to_close().await.is_ok());
    let mut client = connect(&seawall).await;
    assert_ne!(primary(&mut client).await, first);
    let write = doc! {"insert": "c", "documents": [{}]};
    client.expect_ok("relay", write).await;
}

/// With `deployment.relay_encrypted`, Seawall may relay TLS between a client and a server without
/// decrypting it.
#[tokio::test]
async fn tls_between_client_and_server_is_not_relayed_if_the_server_is_on_the_host_of_seawall() {
    let options = Options {
        tls: true,
        ..Options::default()
    };
    let server = Standalone::start(options).await.unwrap();
    let certificates = server.certificates().unwrap();
    let uri = format!(
        "mongodb://{}/?tls=true&tlsCAFile={}&directConnection=true",
        server.address(),
        certificates.ca_file().display()
    );
    for is_set in [false, true] {
        let seawall = relaying(&uri, &format!("deployment.relay_encrypted = {is_set}\n")).await;
        let address = seawall.address().parse().unwrap();
        let tls = certificates.client_config().unwrap();
        let client = RawClient::connect_tls(address, "localhost", tls).await;
        assert!(client.is_err());
        let reason = match is_set {
            true => r#"reason="relay_encrypted_same_host""#,
            false => r#"reason="relay_encrypted_refused""#,
        };
        assert_eq!(
            seawall.metric("seawall_unobserved_total", &[reason]).await,
            1.0
        );
        // Seawall uses TLS to the server, although this client does not use TLS to Seawall.
        let mut plain = connect(&seawall).await;
        plain.expect_ok("admin", doc! {"ping": 1}).await;
    }
}

/// A command on `$external`, sent as OP_QUERY.
fn external(query: Document) -> OpQuery {
    OpQuery {
        collection: "$external.$cmd".to_owned(),
        ..OpQuery::new(query)
    }
}

#[tokio::test]
async fn legacy_queries_that_a_server_parses_differently_than_seawall_are_not_relayed() {
    let set = shared_replica_set().await.unwrap();
    let recorder = Recorder::start(set.primary().await.unwrap().address())
        .await
        .unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let x509 = doc! {"authenticate": 1, "mechanism": "MONGODB-X509"};
    let hello = doc! {"isMaster": 1, "speculativeAuthenticate": &x509};
    let seawall = relaying(&uri, "").await;
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    for command in [
        x509,
        hello,
        doc! {"createUser": "mallory", "pwd": "x", "roles": []},
    ] {
        let mut behind_options = doc! {"$queryOptions": {}};
        behind_options.extend(command);
        for query in [behind_options.clone(), doc! {"$query": behind_options}] {
            for logs_in in [false, true] {
                let mut client = connect(&seawall).await;
                if logs_in {
                    assert!(client.login(&login).await.unwrap().is_authenticated());
                }
                client.send_query(&external(query.clone())).await.unwrap();
                let ended = client.read_reply().await;
                assert!(matches!(ended, Err(RawError::Closed)), "{query} {ended:?}");
            }
        }
    }
    let sent = recorder.connections();
    let is_sent = |part: &str| {
        let mut sent = sent.iter().map(|r| String::from_utf8_lossy(&r.from_client));
        sent.any(|bytes| bytes.contains(part))
    };
    assert!(is_sent("saslStart"));
    for part in ["MONGODB-X509", "mallory", "$queryOptions"] {
        assert!(!is_sent(part), "{part}");
    }
}

#[tokio::test]
async fn a_legacy_command_is_not_relayed_if_the_name_of_its_database_is_not_utf8() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let recorder = Recorder::start(server.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = relaying(&uri, "").await;
    let x509 = doc! {"authenticate": 1, "mechanism": "MONGODB-X509", "db": "$external"};
    let query = OpQuery {
        collection: "?.$cmd".to_owned(),
        ..OpQuery::new(doc! {"isMaster": 1, "speculativeAuthenticate": x509})
    };
    // The database's name contains a byte that is not UTF-8. Servers accept a name with this byte.
    let mut message = query.to_bytes();
    let at = message.iter().position(|byte| *byte == b'?').unwrap();
    message[at] = 0xff;
    let mut direct = server.raw_client().await.unwrap();
    direct.send_bytes(&message).await.unwrap();
    assert!(direct.read_reply().await.unwrap().is_ok());
    let mut client = connect(&seawall).await;
    client.send_bytes(&message).await.unwrap();
    let ended = client.read_reply().await;
    assert!(matches!(ended, Err(RawError::Closed)), "{ended:?}");
    for recording in recorder.connections() {
        let sent = String::from_utf8_lossy(&recording.from_client);
        assert!(!sent.contains("MONGODB-X509"), "{sent}");
    }
}

/// Checks that the server knows the application's name, and that Seawall has counted the
/// application's connection, login and operations.
async fn assert_seen_on_both_sides(seawall: &Seawall, client: &mut RawClient, db: &str) {
    let running =
        doc! {"aggregate": 1, "pipeline": [{"$currentOp": {"localOps": true}}], "cursor": {}};
    let own = client.command("admin", running).await.unwrap();
    assert!(
        own.body.to_string().contains("by another way"),
        "{}",
        own.body
    );
    let labels = [format!("db=\"{db}\""), "insert".to_owned()];
    let labels: Vec<_> = labels.iter().map(String::as_str).collect();
    let are_counted = async || match seawall.metric("seawall_operations_total", &labels).await {
        2.0 => Ok(()),
        operations => Err(operations.to_string()),
    };
    eventually(LIMIT, are_counted).await.unwrap();
    assert_eq!(
        seawall.metric("seawall_relayed_connections", &[]).await,
        1.0
    );
    let logins = [r#"mechanism="PLAIN""#, r#"result="ok""#];
    assert_eq!(
        seawall
            .metric("seawall_client_authentications_total", &logins)
            .await,
        1.0
    );
}

#[tokio::test]
async fn settings_can_allow_relayed_logins_with_a_mechanism_that_seawall_does_not_support() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWriteAnyDatabase", "admin");
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let behind = Plain::start(server.address(), user.login()).await;
    let uri = format!("mongodb://{}/?directConnection=true", behind.address);
    // `name_applications` applies only to pooled operations. So even with `false`, the server gets
    // the metadata of a relayed client.
    let toml = "auth.other_mechanisms = \"relay\"\nlimits.relayed_connections = 1\n\
        deployment.name_applications = false\n";
    let seawall = Seawall::start_configured(&uri, toml).await;
    let refusing = Seawall::start(&uri).await;
    let reply = connect(&refusing)
        .await
        .command("$external", plain(b"secret"))
        .await
        .unwrap();
    assert_eq!(reply.code(), Some(MECHANISM_UNAVAILABLE), "{}", reply.body);

    let mut client = connect(&seawall).await;
    let application = doc! {"application": {"name": "by another way"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    let hello = client
        .hello(doc! {"client": application, "compression": ["snappy"]})
        .await
        .unwrap();
    assert!(hello.is_ok());
    let refused = client.command("$external", plain(b"wrong")).await.unwrap();
    assert_eq!(refused.code(), Some(18), "{}", refused.body);
    // Seawall itself checks SCRAM logins, so the relay does not pass them.
    let scram =
        doc! {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": binary(b"n,,n=app,r=nonce")};
    let refused = client.command("admin", scram).await.unwrap();
    assert_eq!(
        refused.code(),
        Some(MECHANISM_UNAVAILABLE),
        "{}",
        refused.body
    );
    // At most one relayed connection is allowed. This client already has it, so the client may try
    // to log in again.
    client.expect_ok("$external", plain(b"secret")).await;
    let mut second = connect(&seawall).await;
    let reply = second.command("$external", plain(b"secret")).await.unwrap();
    assert_eq!(reply.code(), Some(202), "{}", reply.body);
    assert!(
        second
            .login(&user.login())
            .await
            .unwrap()
            .is_authenticated()
    );

    let db = unique_name("relay");
    for client in [&mut client, &mut second] {
        let status = client
            .command("admin", doc! {"connectionStatus": 1})
            .await
            .unwrap();
        assert!(
            status.body.to_string().contains("\"app\""),
            "{}",
            status.body
        );
        let insert = doc! {"insert": "c", "documents": [{"from": "either"}]};
        client.expect_ok(&db, insert).await;
    }
    assert_seen_on_both_sides(&seawall, &mut client, &db).await;
    // X.509 logins are never relayed, even if `auth.other_mechanisms` is `relay`.
    let x509 = doc! {"saslStart": 1, "mechanism": "MONGODB-X509", "payload": binary(b"")};
    let reply = connect(&seawall)
        .await
        .command("$external", x509)
        .await
        .unwrap();
    assert_eq!(reply.code(), Some(MECHANISM_UNAVAILABLE), "{}", reply.body);
}

/// Some drivers, for example those for Java before 4.3, log in by OP_QUERY.
#[tokio::test]
async fn a_login_by_op_query_with_a_mechanism_that_seawall_does_not_support_can_be_relayed() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let user = NewUser::new("admin", "app", "secret").role("readWriteAnyDatabase", "admin");
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let behind = Plain::start(server.address(), user.login()).await;
    let uri = format!("mongodb://{}/?directConnection=true", behind.address);
    let seawall = Seawall::start_configured(&uri, "auth.other_mechanisms = \"relay\"\n").await;
    let mut client = connect(&seawall).await;
    assert!(client.legacy_hello(doc! {}).await.unwrap().is_ok());
    for (password, code) in [(b"wrong!", Some(18)), (b"secret", None)] {
        let start = OpQuery {
            collection: "$external.$cmd".to_owned(),
            ..OpQuery::new(plain(password))
        };
        let request_id = client.send_query(&start).await.unwrap();
        let reply = client.read_reply().await.unwrap();
        assert_eq!(reply.header.op_code, OP_REPLY);
        assert_eq!(reply.header.response_to, request_id);
        assert_eq!(reply.code(), code, "{}", reply.body);
    }
    let insert = doc! {"insert": "c", "documents": [{}]};
    client.expect_ok(&unique_name("relay"), insert).await;
    let logins = [r#"mechanism="PLAIN""#, r#"result="ok""#];
    let logins = seawall
        .metric("seawall_client_authentications_total", &logins)
        .await;
    assert_eq!(logins, 1.0);
}

/// Seawall forwards the first login of a user to a server. Such a login is unfinished until the
/// client has sent its proof. `limits.introduction_conversations` limits the unfinished logins.
#[tokio::test]
async fn an_unfinished_first_login_ends_when_its_client_begins_a_login_that_is_relayed() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let admin = server.client().unwrap();
    let users = ["app", "other"].map(|name| NewUser::new("admin", name, "secret"));
    for user in &users {
        create_user(&admin, user).await.unwrap();
    }
    let [app, other] = users.map(|user| user.login());
    let behind = Plain::start(server.address(), app.clone()).await;
    let uri = format!("mongodb://{}/?directConnection=true", behind.address);
    let toml = "auth.other_mechanisms = \"relay\"\nlimits.introduction_conversations = 1\n";
    let seawall = Seawall::start_configured(&uri, toml).await;
    let mut client = connect(&seawall).await;
    drop(client.begin_login(&other).await.unwrap());
    client.expect_ok("$external", plain(b"secret")).await;
    // The limit allows one unfinished first login, and the next client needs it while the first
    // client is still relayed.
    logged_in(&seawall, &app).await;
    client.expect_ok("admin", doc! {"ping": 1}).await;
}

#[tokio::test]
async fn a_relayed_login_that_waits_for_a_server_ends_when_its_client_disconnects() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    // At most one relayed connection is allowed, and it waits long for a server.
    let toml = "auth.other_mechanisms = \"relay\"\nlimits.relayed_connections = 1\n\
        deployment.server_selection_timeout_ms = 600000\n\
        deployment.heartbeat_frequency_ms = 500\n";
    let seawall = Seawall::start_configured(&server.uri(), toml).await;
    server.mongod().kill().await.unwrap();
    let is_down = async || seawall.get("/health/ready").await.0 == 503;
    eventually(LIMIT, is_down).await.unwrap();
    let (mut first, mut second) = (connect(&seawall).await, connect(&seawall).await);
    let mut start = plain(b"secret");
    start.insert("$db", "$external");
    for client in [&mut first, &mut second] {
        client.send(&OpMsg::new(start.clone())).await.unwrap();
    }
    let (refused, first_waits) = tokio::select! {
        reply = first.read_reply() => (reply.unwrap(), false),
        reply = second.read_reply() => (reply.unwrap(), true),
    };
    assert_eq!(refused.code(), Some(202), "{}", refused.body);
    drop(if first_waits { first } else { second });
    let stage = ["stage=\"logging_in\""];
    let is_gone = async || seawall.metric("seawall_clients_gone_total", &stage).await >= 1.0;
    eventually(LIMIT, is_gone).await.unwrap();
}

#[tokio::test]
async fn the_connection_of_a_relayed_client_that_does_not_log_in_is_closed() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let silent = Plain::start(
        server.address(),
        NewUser::new("admin", "nobody", "x").login(),
    )
    .await;
    let uri = format!("mongodb://{}/?directConnection=true", silent.address);
    let toml = "auth.other_mechanisms = \"relay\"\nauth.authentication_timeout_ms = 5000\n";
    let seawall = Seawall::start_configured(&uri, toml).await;
    let mut client = connect(&seawall).await;
    // The client begins like a driver's monitor, which may stay connected without a login. The
    // client then fails to log in, so Seawall closes its connection after the timeout.
    let application = doc! {"driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    client.hello(doc! {"client": &application}).await.unwrap();
    let reply = client.command("$external", plain(b"wrong")).await.unwrap();
    assert_eq!(reply.code(), Some(18), "{}", reply.body);
    // The server refuses metadata in a second `hello`, so this `hello` changes nothing.
    let again = client.hello(doc! {"client": application}).await.unwrap();
    assert!(!again.is_ok(), "{}", again.body);
    assert!(client.read_to_close().await.is_ok());
}
