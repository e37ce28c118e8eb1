//! Tests of messages before the first operation: legacy queries, `hello` and client metadata.

use super::*;

/// The fields of an OP_REPLY between its header and its document: `responseFlags`, `cursorID`,
/// `startingFrom` and `numberReturned`.
fn reply_head(reply: &RawReply) -> &[u8] {
    assert_eq!(reply.header.op_code, OP_REPLY);
    reply.raw.get(16..36).unwrap()
}

async fn query(client: &mut RawClient, collection: &str, query: Document) -> RawReply {
    let message = OpQuery {
        request_id: REQUEST_ID,
        collection: collection.to_owned(),
        ..OpQuery::new(query)
    };
    client.send_query(&message).await.unwrap();
    client.read_reply().await.unwrap()
}

#[tokio::test]
async fn seawall_replies_to_legacy_queries_as_a_server_does() {
    let rig = Rig::shared().await;
    let unknown_hello = is_before(HELLO).await.then_some(59);
    let is_old = is_before(NO_LEGACY_OPCODES).await;
    let cases = [
        ("admin.$cmd", doc! {"isMaster": 1}, None),
        ("admin.$cmd", doc! {"ismaster": true}, None),
        ("elsewhere.$cmd", doc! {"hello": 1.0}, unknown_hello),
        ("admin.$cmd", doc! {"buildInfo": 1}, None),
        (
            "admin.$cmd",
            doc! {"$query": {"isMaster": 1}, "$readPreference": {"mode": "nearest"}},
            None,
        ),
        ("admin.$cmd", doc! {"ping": 1}, Some(352)),
        ("admin.$cmd", doc! {"find": "c"}, Some(352)),
        ("admin.$cmd", doc! {"nonsense": 1}, Some(352)),
        ("test.c", doc! {"_id": 1}, Some(5_739_101)),
    ];
    for (collection, command, code) in cases {
        let mut clients = vec![rig.through().await];
        // Older servers run some of these commands. Seawall refuses them, as newer servers do.
        if code.is_none() || code == unknown_hello || !is_old {
            clients.push(rig.direct().await);
        }
        let mut heads = Vec::new();
        for client in &mut clients {
            let reply = query(client, collection, command.clone()).await;
            assert_eq!(reply.code(), code, "{command}: {}", reply.body);
            assert_eq!(reply.is_ok(), code.is_none(), "{command}: {}", reply.body);
            assert_eq!(reply.header.response_to, REQUEST_ID, "{command}");
            heads.push(reply_head(&reply).to_vec());
            assert!(
                client
                    .command("admin", doc! {"ping": 1})
                    .await
                    .unwrap()
                    .is_ok(),
                "{command}"
            );
        }
        assert!(heads.iter().all(|head| *head == heads[0]), "{command}");
    }
    let with_db = doc! {"isMaster": 1, "$db": "admin"};
    for client in &mut [rig.direct().await, rig.through().await] {
        assert!(!query(client, "admin.$cmd", with_db.clone()).await.is_ok());
    }
}

#[tokio::test]
async fn seawall_reacts_to_a_legacy_get_more_as_a_server_does() {
    let rig = Rig::shared().await;
    let content = [&[0; 4], b"test.c\0".as_slice(), &[0; 4], &[1; 8]].concat();
    let message = framed(16 + i32::try_from(content.len()).unwrap(), 2005, &content);
    let through = reaction(&mut rig.through().await, &message).await;
    assert_eq!(through.replies[0].code, Some(5_739_101), "{through:?}");
    // Older servers still run a legacy getMore. Seawall replies as newer servers do.
    if !is_before(NO_LEGACY_OPCODES).await {
        let direct = reaction(&mut rig.direct().await, &message).await;
        assert_eq!(through, direct);
    }
}

fn names(document: &Document) -> Vec<&str> {
    document.keys().map(String::as_str).collect()
}

/// The cluster time in Seawall's `hello` reply. Repeats `hello` until the reply has a cluster time,
/// because Seawall must first receive one from a server.
async fn cluster_time(seawall: &Seawall) -> Document {
    let has_it = async || {
        let hello = connect(seawall).await.greet(doc! {}).await.unwrap();
        let time = hello.body.get_document("$clusterTime").cloned();
        time.map_err(|error| error.to_string())
    };
    eventually(LIMIT, has_it).await.unwrap()
}

fn key_id(cluster_time: &Document) -> i64 {
    let signature = cluster_time.get_document("signature").unwrap();
    signature.get_i64("keyId").unwrap()
}

#[tokio::test]
async fn hello_returns_the_cluster_time_that_servers_signed() {
    let set = shared_replica_set().await.unwrap();
    let seawall = Seawall::start(&set.uri()).await;
    let cluster_time = cluster_time(&seawall).await;
    assert_ne!(key_id(&cluster_time), 0);
    // A server verifies the signature of each cluster time, also if the client has not logged in.
    let mut direct = set.raw_client(&set.members()[0]).await.unwrap();
    let fields = doc! {"$clusterTime": &cluster_time};
    assert!(direct.greet(fields).await.unwrap().is_ok());
    // A client has invented this cluster time, so Seawall must not return it in a `hello` reply.
    let mut forged = cluster_time.clone();
    let late = bson::Timestamp {
        time: u32::MAX,
        increment: 1,
    };
    forged.insert("clusterTime", late);
    let mut client = connect(&seawall).await;
    let fields = doc! {"$clusterTime": &forged};
    let hello = client.greet(fields).await.unwrap();
    assert_ne!(hello.body.get_document("$clusterTime").ok(), Some(&forged));
}

#[tokio::test]
async fn without_access_control_the_cluster_time_in_a_hello_reply_has_the_key_id_0() {
    let rig = Rig::shared().await;
    assert_eq!(key_id(&cluster_time(&rig.seawall).await), 0);
}

#[tokio::test]
async fn hello_through_seawall_to_a_replica_set_gets_the_reply_of_a_mongos() {
    let rig = Rig::shared().await;
    let mut through = rig.through().await;
    cluster_time(&rig.seawall).await;
    let [server, hello] = [
        newest_hello(&mut rig.direct().await).await,
        newest_hello(&mut through).await,
    ];
    let writable = match is_before(HELLO).await {
        true => "ismaster",
        false => "isWritablePrimary",
    };
    let expected = [
        writable,
        "msg",
        "helloOk",
        "maxBsonObjectSize",
        "maxMessageSizeBytes",
        "maxWriteBatchSize",
        "localTime",
        "logicalSessionTimeoutMinutes",
        "connectionId",
        "minWireVersion",
        "maxWireVersion",
        "ok",
        "$clusterTime",
    ];
    let expected = expected.into_iter();
    let knows = |name: &&str| *name != "helloOk" || server.body.contains_key("helloOk");
    assert_eq!(
        names(&hello.body),
        expected.filter(knows).collect::<Vec<_>>()
    );
    assert_eq!(hello.body.get_str("msg").ok(), Some("isdbgrid"));
    let same = [
        writable,
        "maxBsonObjectSize",
        "maxMessageSizeBytes",
        "maxWriteBatchSize",
        "logicalSessionTimeoutMinutes",
        "minWireVersion",
        "maxWireVersion",
        "ok",
    ];
    for name in same {
        assert_eq!(hello.body.get(name), server.body.get(name), "{name}");
    }
    for name in ["isMaster", "ismaster"] {
        let legacy = through
            .command("anywhere", doc! {name: {"a": 1}})
            .await
            .unwrap();
        assert!(
            legacy.body.get_bool("ismaster").unwrap()
                && !legacy.body.contains_key("isWritablePrimary")
        );
        assert!(!legacy.body.contains_key("helloOk"));
    }
}

/// Sends `hello`, or `isMaster` if the server does not know `hello`. Returns the reply.
async fn newest_hello(client: &mut RawClient) -> RawReply {
    let fields = doc! {"helloOk": true};
    let reply = match is_before(HELLO).await {
        true => client.greet(fields).await.unwrap(),
        false => client.hello(fields).await.unwrap(),
    };
    assert!(reply.is_ok(), "{}", reply.body);
    reply
}

#[tokio::test]
async fn hello_fails_with_command_not_found_if_the_server_does_not_know_hello() {
    let rig = Rig::shared().await;
    let metadata =
        || doc! {"client": {"driver": {"name": "d", "version": "1"}, "os": {"type": "x"}}};
    let code = is_before(HELLO).await.then_some(59);
    for mut client in [rig.direct().await, rig.through().await] {
        let hello = client.hello(metadata()).await.unwrap();
        assert_eq!(hello.code(), code, "{}", hello.body);
        // A server that knows `hello` has stored the metadata, so it refuses metadata in the next
        // handshake (code 186). An older server has not read the metadata, so it accepts them now.
        let greeting = client.greet(metadata()).await.unwrap();
        let refused = code.is_none().then_some(186);
        assert_eq!(greeting.code(), refused, "{}", greeting.body);
    }
}

#[tokio::test]
async fn hello_through_seawall_to_a_standalone_gets_a_reply_with_the_fields_of_a_standalone() {
    let server = shared_standalone().await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let hello = newest_hello(&mut connect(&seawall).await).await;
    let mut direct = server.raw_client().await.unwrap();
    let mut direct = newest_hello(&mut direct).await.body;
    direct.remove("topologyVersion");
    let mut direct = names(&direct);
    let mut through = names(&hello.body);
    direct.sort_unstable();
    through.sort_unstable();
    assert_eq!(through, direct);
}

/// Replaces the command's name `hello` by `isMaster`, if the server does not know `hello`.
fn with_supported_name(command: Document, knows_hello: bool) -> Document {
    let fields = command.into_iter().map(|(name, value)| match &*name {
        "hello" if !knows_hello => ("isMaster".to_owned(), value),
        _ => (name, value),
    });
    fields.collect()
}

#[tokio::test]
async fn an_invalid_hello_gets_the_same_error_code_as_on_a_server() {
    let rig = Rig::shared().await;
    let is_before_5_0 = is_before(STABLE_API).await;
    let knows_hello = !is_before(HELLO).await;
    let metadata = || doc! {"application": {"name": "a"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    let client = |name: &str, value: Option<Bson>| {
        let mut metadata = metadata();
        match value {
            Some(value) => drop(metadata.insert(name, value)),
            None => drop(metadata.remove(name)),
        }
        doc! {"hello": 1, "client": metadata}
    };
    let version = || doc! {"processId": ObjectId::from_bytes([7; 12]), "counter": 1i64};
    let name = |length: usize| Some(Bson::from(doc! {"name": "n".repeat(length)}));
    // With every version of the server, Seawall refuses the fields that newer versions refuse. The
    // exception is `apiVersion`: in the cases below, servers before 5.0 accept all values of this
    // field, and so does Seawall in front of such a server.
    let of_5_0 = |code: i32| (!is_before_5_0).then_some(code);
    let cases = [
        (doc! {"hello": 1, "client": metadata()}, None),
        (client("driver", None), Some(183)),
        (client("os", None), Some(183)),
        (client("application", name(128)), None),
        (client("application", name(129)), Some(184)),
        (client("application", Some(true.into())), Some(14)),
        (
            client("application", Some(doc! {"name": true}.into())),
            Some(14),
        ),
        (client("application", Some(Bson::Array(Vec::new()))), None),
        (client("driver", Some(Bson::Array(Vec::new()))), Some(183)),
        (client("driver", Some(true.into())), Some(14)),
        (client("driver", Some(doc! {"name": "d"}.into())), Some(183)),
        (client("os", Some(doc! {"type": true}.into())), Some(14)),
        (doc! {"hello": 1, "client": true}, Some(14)),
        (client("pad", Some("x".repeat(1100).into())), Some(185)),
        (doc! {"hello": 1, "apiVersion": "1"}, None),
        (
            doc! {"hello": 1, "apiVersion": "1", "apiStrict": true},
            None,
        ),
        (doc! {"hello": 1, "apiVersion": "2"}, of_5_0(322)),
        (
            doc! {"isMaster": 1, "apiVersion": "1", "apiStrict": true},
            of_5_0(323),
        ),
        // No server has this `topologyVersion`, so the reply comes at once. If the reply came only
        // after `maxAwaitTimeMS`, the test client would reach its own time limit first.
        (
            doc! {"hello": 1, "topologyVersion": version(), "maxAwaitTimeMS": 600_000},
            None,
        ),
        (doc! {"hello": 1, "maxAwaitTimeMS": 600_000}, Some(31368)),
        (doc! {"hello": 1, "topologyVersion": version()}, Some(31368)),
        (doc! {"hello": 1, "saslSupportedMechs": "nodot"}, Some(2)),
        (doc! {"hello": 1, "saslSupportedMechs": 1}, Some(14)),
        (doc! {"hello": 1, "speculativeAuthenticate": {}}, Some(2)),
        (
            doc! {"hello": 1, "speculativeAuthenticate": {"ping": 1}},
            Some(51769),
        ),
        (
            doc! {"hello": 1, "foo": 1, "backpressure": "2", "loadBalanced": true},
            None,
        ),
        (doc! {"Hello": 1}, Some(59)),
        (doc! {"ISMASTER": 1}, Some(59)),
    ];
    for (command, code) in cases {
        let command = with_supported_name(command, knows_hello);
        for (mut connection, whose) in [
            (rig.direct().await, "server"),
            (rig.through().await, "seawall"),
        ] {
            let reply = connection.command("admin", command.clone()).await.unwrap();
            let is_lenient = match code {
                Some(31368 | 51769 | 2) => {
                    !knows_hello && !command.contains_key("saslSupportedMechs")
                }
                Some(14) => is_before_5_0 && command.contains_key("saslSupportedMechs"),
                _ => false,
            };
            let code = code.filter(|_| !(is_lenient && whose == "server"));
            assert_eq!(reply.code(), code, "{whose}: {command}: {}", reply.body);
            assert_eq!(
                reply.is_ok(),
                code.is_none(),
                "{whose}: {command}: {}",
                reply.body
            );
            let ping = connection.command("admin", doc! {"ping": 1}).await.unwrap();
            assert!(ping.is_ok(), "{whose}: {command}");
        }
    }
    let exhaust = with_supported_name(doc! {"hello": 1, "$db": "admin"}, knows_hello);
    let exhaust = OpMsg::new(exhaust).flags(EXHAUST_ALLOWED);
    for (mut connection, code) in [
        (rig.direct().await, knows_hello.then_some(51756)),
        (rig.through().await, Some(51756)),
    ] {
        assert_eq!(connection.exchange(&exhaust).await.unwrap().code(), code);
    }
}

#[tokio::test]
async fn load_balanced_clients_all_get_the_same_service_id() {
    let rig = Rig::shared().await;
    let mut services = Vec::new();
    for _ in 0..2 {
        let mut client = rig.through().await;
        let hello = client.greet(doc! {"loadBalanced": true}).await.unwrap();
        services.push(hello.body.get_object_id("serviceId").unwrap());
        let plain = client.greet(doc! {}).await.unwrap();
        assert_eq!(plain.body.get("serviceId"), None);
    }
    assert_eq!(services[0], services[1]);
    // Load-balanced clients expect retryable writes, which a standalone does not support. So
    // Seawall returns no `serviceId` in front of a standalone.
    let standalone = Seawall::start(&shared_standalone().await.unwrap().uri()).await;
    let mut client = connect(&standalone).await;
    let hello = client.greet(doc! {"loadBalanced": true}).await.unwrap();
    assert!(hello.is_ok() && hello.body.get("serviceId").is_none());
}

#[tokio::test]
async fn client_metadata_is_accepted_only_in_the_first_hello() {
    let rig = Rig::shared().await;
    let metadata = || doc! {"driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    for (mut connection, whose) in [
        (rig.direct().await, "server"),
        (rig.through().await, "seawall"),
    ] {
        // The first `hello` may contain metadata even if it is not the first command.
        connection.expect_ok("admin", doc! {"ping": 1}).await;
        assert!(
            connection
                .greet(doc! {"client": metadata()})
                .await
                .unwrap()
                .is_ok(),
            "{whose}"
        );
        let again = connection.greet(doc! {"client": metadata()}).await.unwrap();
        assert_eq!(again.code(), Some(186), "{whose}");
        assert!(connection.greet(doc! {}).await.unwrap().is_ok(), "{whose}");
    }
    for (mut connection, whose) in [
        (rig.direct().await, "server"),
        (rig.through().await, "seawall"),
    ] {
        assert!(connection.greet(doc! {}).await.unwrap().is_ok());
        let late = connection.greet(doc! {"client": metadata()}).await.unwrap();
        assert_eq!(late.code(), Some(186), "{whose}");
    }
}

#[tokio::test]
async fn a_message_over_16_kib_before_authentication_closes_the_connection() {
    let server = shared_standalone().await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let ping_of = |length: usize| {
        let empty = op_msg(vec![body(doc! {"ping": "", "$db": "admin"})])
            .to_bytes()
            .len();
        op_msg(vec![body(
            doc! {"ping": "x".repeat(length - empty), "$db": "admin"},
        )])
        .to_bytes()
    };
    let fitting = reaction(&mut connect(&seawall).await, &ping_of(16 * 1024)).await;
    assert_eq!((fitting.replies.len(), fitting.is_usable), (1, true));
    let larger = reaction(&mut connect(&seawall).await, &ping_of(16 * 1024 + 1)).await;
    assert!(Expected::Closes.fits(&larger), "{larger:?}");
}
