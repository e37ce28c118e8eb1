//! The wire protocol, byte by byte: where a server's reaction exists, a direct connection is the reference.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::too_many_lines,
    reason = "helpers of tests fail as tests do, and a table is as long as its cases"
)]

use std::time::Duration;

use mongodb::bson::{Binary, Bson, Document, doc, oid::ObjectId, spec::BinarySubtype};
use seawall_tests::{
    eventually::eventually,
    mongod::{FailTimes, Options, ReplicaSet, fail_command, shared_standalone, unique_name},
    raw::message::{EXHAUST_ALLOWED, MORE_TO_COME, OP_MSG, OP_REPLY},
    raw::{Header, OpMsg, OpQuery, RawClient, RawError, RawReply, Section},
    recorder::{Cut, Recorder},
    scratch::Scratch,
    seawall::{self, Seawall},
};
use tokio::{sync::OnceCell, time::Instant};

const LIMIT: Duration = Duration::from_secs(30);
const PING_ID: i32 = 4711;
const REQUEST_ID: i32 = 815;

/// A set of one without authentication, and Seawall in front of it.
struct Rig {
    set: ReplicaSet,
    seawall: Seawall,
}

impl Rig {
    async fn start(toml: &str) -> Self {
        let set = ReplicaSet::start(1, Options::default()).await.unwrap();
        let options = seawall::Options {
            toml: toml.to_owned(),
            ..seawall::Options::default()
        };
        let seawall = Seawall::start_with(&set.uri(), options).await;
        Self { set, seawall }
    }

    /// For tests that leave no trace but their own databases.
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Rig> = OnceCell::const_new();
        SHARED.get_or_init(|| Self::start("")).await
    }

    async fn direct(&self) -> RawClient {
        self.set.raw_client(&self.set.members()[0]).await.unwrap()
    }

    async fn through(&self) -> RawClient {
        connect(&self.seawall).await
    }

    /// Makes the server's next commands fail.
    async fn fail(&self, times: i32, data: Document) {
        let client = self.set.direct_client(&self.set.members()[0]).unwrap();
        fail_command(&client, FailTimes::Count(times), data)
            .await
            .unwrap();
    }
}

async fn connect(seawall: &Seawall) -> RawClient {
    RawClient::connect(seawall.address().parse().unwrap())
        .await
        .unwrap()
}

/// What became of a message, and of a `ping` sent right after it.
#[derive(Debug, PartialEq, Eq)]
struct Reaction {
    answers: Vec<Answer>,
    is_usable: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    op_code: i32,
    flags: u32,
    response_to: i32,
    code: Option<i32>,
    code_name: Option<String>,
    checksum_fits: Option<bool>,
}

impl Answer {
    fn of(reply: &RawReply) -> Self {
        Self {
            op_code: reply.header.op_code,
            flags: reply.flags,
            response_to: reply.header.response_to,
            code: reply.code(),
            code_name: reply.body.get_str("codeName").ok().map(str::to_owned),
            checksum_fits: reply.checksum_fits(),
        }
    }
}

async fn reaction(client: &mut RawClient, message: &[u8]) -> Reaction {
    let ping = OpMsg {
        request_id: PING_ID,
        ..OpMsg::new(doc! {"ping": 1, "$db": "admin"})
    };
    // A server that closes at once may do so before all is written.
    let sent = client
        .send_bytes(&[message, &ping.to_bytes()].concat())
        .await;
    let mut answers = Vec::new();
    loop {
        match client.read_reply().await {
            Ok(reply) if reply.header.response_to == PING_ID => {
                let is_usable = sent.is_ok() && reply.is_ok();
                return Reaction { answers, is_usable };
            }
            Ok(reply) => answers.push(Answer::of(&reply)),
            Err(RawError::Closed | RawError::Truncated) => {
                return Reaction {
                    answers,
                    is_usable: false,
                };
            }
            Err(error) => panic!("{error:?} after {answers:?}"),
        }
    }
}

/// What the notes say that a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Closes,
    Ignores,
    Answers(i32),
}

impl Expected {
    fn fits(self, reaction: &Reaction) -> bool {
        let codes: Vec<_> = reaction.answers.iter().map(|answer| answer.code).collect();
        match self {
            Self::Closes => codes.is_empty() && !reaction.is_usable,
            Self::Ignores => codes.is_empty() && reaction.is_usable,
            Self::Answers(code) => codes == [Some(code)] && reaction.is_usable,
        }
    }
}

fn op_msg(sections: Vec<Section>) -> OpMsg {
    OpMsg {
        request_id: REQUEST_ID,
        sections,
        ..OpMsg::new(doc! {})
    }
}

fn body(document: Document) -> Section {
    Section::Body(document)
}

fn ping() -> Document {
    doc! {"ping": 1, "$db": "admin"}
}

fn sequence(identifier: &str) -> Section {
    Section::Sequence {
        identifier: identifier.to_owned(),
        documents: vec![doc! {"a": 1}],
    }
}

fn framed(length: i32, op_code: i32, content: &[u8]) -> Vec<u8> {
    let header = Header {
        message_length: length,
        request_id: REQUEST_ID,
        response_to: 0,
        op_code,
    };
    [header.to_bytes().as_slice(), content].concat()
}

fn with_op_code(op_code: i32) -> Vec<u8> {
    framed(16 + 32, op_code, &[0; 32])
}

/// A `ping` whose body has one byte changed.
fn damaged_ping(at: usize, value: u8) -> Vec<u8> {
    let mut message = op_msg(vec![body(ping())]).to_bytes();
    message[16 + 4 + 1 + at] = value;
    message
}

fn duplicate_db() -> Vec<u8> {
    let mut message =
        op_msg(vec![body(doc! {"ping": 1, "$db": "admin", "$dc": "admin"})]).to_bytes();
    let at = message
        .windows(3)
        .position(|window| window == b"$dc")
        .unwrap();
    message[at + 2] = b'b';
    message
}

fn sequence_of_size(size: i32) -> Vec<u8> {
    let bytes = [&[1], size.to_le_bytes().as_slice(), b"documents\0"].concat();
    op_msg(vec![body(ping()), Section::Bytes(bytes)]).to_bytes()
}

fn malformed() -> Vec<(&'static str, Vec<u8>, Expected)> {
    use Expected::{Answers, Closes, Ignores};
    let message = |sections| op_msg(sections).to_bytes();
    let on_db = |db: Bson| message(vec![body(doc! {"ping": 1, "$db": db})]);
    let mut bad_checksum = op_msg(vec![body(ping())]).checksum().to_bytes();
    *bad_checksum.last_mut().unwrap() ^= 1;
    let three = ["a", "b", "c"].map(sequence);
    let insert = doc! {"insert": "c", "documents": [{"a": 1}], "$db": "malformed"};
    vec![
        ("length 15", framed(15, OP_MSG, &[0; 32]), Closes),
        ("length 0", framed(0, OP_MSG, &[0; 32]), Closes),
        ("length -1", framed(-1, OP_MSG, &[0; 32]), Closes),
        (
            "length 48,000,001",
            framed(48_000_001, OP_MSG, &[0; 32]),
            Closes,
        ),
        ("length 2^31-1", framed(i32::MAX, OP_MSG, &[0; 32]), Closes),
        ("bad checksum", bad_checksum, Closes),
        (
            "required flag",
            op_msg(vec![body(ping())]).flags(1 << 2).to_bytes(),
            Closes,
        ),
        (
            "last required flag",
            op_msg(vec![body(ping())]).flags(1 << 15).to_bytes(),
            Closes,
        ),
        (
            "three sequences",
            message([vec![body(ping())], three.into()].concat()),
            Closes,
        ),
        ("empty message", framed(16, OP_MSG, &[]), Closes),
        ("opcode 9999", with_op_code(9999), Closes),
        ("OP_COMMAND", with_op_code(2010), Closes),
        ("OP_REPLY", with_op_code(OP_REPLY), Closes),
        ("OP_UPDATE", with_op_code(2001), Closes),
        ("OP_INSERT", with_op_code(2002), Closes),
        ("OP_DELETE", with_op_code(2006), Closes),
        ("OP_KILL_CURSORS", with_op_code(2007), Closes),
        ("opcode 0", with_op_code(0), Ignores),
        (
            "two bodies",
            message(vec![body(ping()), body(ping())]),
            Answers(40430),
        ),
        (
            "only a sequence",
            message(vec![sequence("a")]),
            Answers(40587),
        ),
        (
            "section kind 2",
            message(vec![body(ping()), Section::Bytes(vec![2])]),
            Answers(13),
        ),
        (
            "section kind 9",
            message(vec![body(ping()), Section::Bytes(vec![9])]),
            Answers(40432),
        ),
        (
            "no $db",
            message(vec![body(doc! {"ping": 1})]),
            Answers(40571),
        ),
        ("$db a number", on_db(Bson::Int32(1)), Answers(13111)),
        ("$db empty", on_db("".into()), Answers(73)),
        ("$db with a blank", on_db("a b".into()), Answers(73)),
        ("$db twice", duplicate_db(), Answers(40413)),
        (
            "sequence also in the body",
            message(vec![body(insert), sequence("documents")]),
            Answers(40433),
        ),
        (
            "same sequence twice",
            message(vec![body(ping()), sequence("a"), sequence("a")]),
            Answers(40431),
        ),
        ("BSON too long", damaged_ping(1, 1), Answers(22)),
        ("BSON type", damaged_ping(4, 0x55), Answers(22)),
        ("sequence past the end", sequence_of_size(1000), Answers(15)),
        ("sequence of size 4", sequence_of_size(4), Answers(15)),
        (
            "unknown command",
            message(vec![body(doc! {"x": 1, "$db": "admin"})]),
            Answers(59),
        ),
    ]
}

#[tokio::test]
async fn malformed_input_meets_the_servers_own_reaction() {
    let rig = Rig::shared().await;
    for (name, message, expected) in malformed() {
        let direct = reaction(&mut rig.direct().await, &message).await;
        assert!(expected.fits(&direct), "{name}: the server: {direct:?}");
        let through = reaction(&mut rig.through().await, &message).await;
        assert_eq!(through, direct, "{name}");
    }
}

#[tokio::test]
async fn reply_has_a_checksum_exactly_when_its_request_had() {
    let rig = Rig::shared().await;
    let db = unique_name("checksum");
    let mut through = rig.through().await;
    let metadata = doc! {"application": {"name": "sum"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    through.hello(doc! {"client": metadata}).await.unwrap();
    let insert = doc! {"insert": "c", "documents": [{"_id": 1, "pad": "x".repeat(300_000)}]};
    assert!(through.command(&db, insert).await.unwrap().is_ok());
    let commands = [
        doc! {"ping": 1},
        doc! {"hello": 1},
        doc! {"nonsense": 1},
        doc! {"find": "c", "filter": {"_id": 2}, "maxTimeMS": 10_000},
        doc! {"find": "c"},
    ];
    for mut command in commands {
        command.insert("$db", &db);
        let plain = OpMsg::new(command.clone());
        for (message, expected) in [(plain.clone(), None), (plain.checksum(), Some(true))] {
            // 6.0.5 gives none to a reply over TLS and to no other: the server is asked as well.
            let direct = rig.direct().await.exchange(&message).await.unwrap();
            let reply = through.exchange(&message).await.unwrap();
            assert_eq!(direct.checksum_fits(), expected, "{command}: the server");
            assert_eq!(reply.checksum_fits(), expected, "{command}");
            assert_eq!(reply.code(), direct.code(), "{command}");
        }
    }
}

#[tokio::test]
async fn sections_come_in_any_order_and_number() {
    let rig = Rig::shared().await;
    let db = unique_name("sections");
    let mut through = rig.through().await;
    let documents = |ids: [i32; 2]| Section::Sequence {
        identifier: "documents".to_owned(),
        documents: ids.iter().map(|id| doc! {"_id": id}).collect(),
    };
    let insert = || body(doc! {"insert": "c", "$db": &db});
    let in_body = body(doc! {"insert": "c", "documents": [{"_id": 5}, {"_id": 6}], "$db": &db});
    for sections in [
        vec![insert(), documents([1, 2])],
        vec![documents([3, 4]), insert()],
        vec![in_body],
    ] {
        let reply = through.exchange(&op_msg(sections)).await.unwrap();
        assert_eq!(reply.body.get_i32("n").ok(), Some(2), "{}", reply.body);
    }
    let updates = Section::Sequence {
        identifier: "updates".to_owned(),
        documents: vec![doc! {"q": {}, "u": {"$set": {"seen": true}}, "multi": true}],
    };
    let update = op_msg(vec![updates, body(doc! {"update": "c", "$db": &db})]);
    let reply = through.exchange(&update).await.unwrap();
    assert_eq!(
        reply.body.get_i32("nModified").ok(),
        Some(6),
        "{}",
        reply.body
    );
    for sections in [
        vec![sequence("a"), sequence("b"), body(ping())],
        vec![sequence("a"), body(ping()), sequence("b")],
    ] {
        let message = op_msg(sections).to_bytes();
        let direct = reaction(&mut rig.direct().await, &message).await;
        assert_eq!(direct.answers.len(), 1);
        assert_eq!(reaction(&mut through, &message).await, direct);
    }
}

#[tokio::test]
async fn unacknowledged_write_is_seen_by_the_clients_next_read() {
    let rig = Rig::shared().await;
    let db = unique_name("unacknowledged");
    let mut through = rig.through().await;
    // Others keep several server connections in use, so that the read may take another one.
    let mut others = Vec::new();
    for _ in 0..4 {
        let mut other = rig.through().await;
        let db = db.clone();
        others.push(tokio::spawn(async move {
            loop {
                let find = doc! {"find": "other", "filter": {"$where": "true"}};
                assert!(other.command(&db, find).await.unwrap().is_ok());
            }
        }));
    }
    for id in 0..300 {
        let insert =
            doc! {"insert": "c", "documents": [{"_id": id}], "writeConcern": {"w": 0}, "$db": &db};
        let insert = OpMsg::new(insert).flags(MORE_TO_COME);
        let find = OpMsg::new(doc! {"find": "c", "filter": {"_id": id}, "$db": &db});
        through.send(&insert).await.unwrap();
        let reply = through.exchange(&find).await.unwrap();
        let cursor = reply.body.get_document("cursor").unwrap();
        assert_eq!(cursor.get_array("firstBatch").unwrap().len(), 1, "{id}");
    }
    others.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn unacknowledged_write_of_a_client_that_leaves_at_once_is_carried_out() {
    let rig = Rig::shared().await;
    let db = unique_name("leaving");
    // Its own, so that the first writes meet an empty pool and have to wait.
    let seawall = Seawall::start(&rig.set.uri()).await;
    for id in 0..100 {
        let insert =
            doc! {"insert": "c", "documents": [{"_id": id}], "writeConcern": {"w": 0}, "$db": &db};
        let insert = OpMsg::new(insert).flags(MORE_TO_COME);
        connect(&seawall).await.send(&insert).await.unwrap();
    }
    let are_there = async || {
        let mut direct = rig.direct().await;
        let count = direct.command(&db, doc! {"count": "c"}).await.unwrap();
        match count.body.get_i32("n").unwrap() {
            100 => Ok(()),
            count => Err(format!("{count} of 100 writes")),
        }
    };
    eventually(LIMIT, are_there).await.unwrap();
    let gone = seawall.metric("seawall_clients_gone_total", &[]).await;
    assert!(gone < 1.0, "{gone}");
}

#[tokio::test]
async fn message_that_wants_no_reply_gets_none() {
    let rig = Rig::shared().await;
    let db = unique_name("silent");
    let mut through = rig.through().await;
    let insert = doc! {"insert": "c", "documents": [{"_id": 1, "pad": "x".repeat(500_000)}]};
    assert!(through.command(&db, insert).await.unwrap().is_ok());
    let commands = [
        doc! {"ping": 1},
        doc! {"hello": 1},
        doc! {"nonsense": 1},
        doc! {"insert": "c", "documents": [{"_id": 1}]},
        doc! {"find": "c", "filter": {"$bad": 1}},
        // Larger than what is held before it is sent on.
        doc! {"find": "c"},
    ];
    for mut command in commands {
        command.insert("$db", &db);
        let message = op_msg(vec![body(command.clone())])
            .flags(MORE_TO_COME)
            .to_bytes();
        let direct = reaction(&mut rig.direct().await, &message).await;
        assert_eq!(
            direct,
            Reaction {
                answers: vec![],
                is_usable: true
            },
            "{command}: the server"
        );
        assert_eq!(reaction(&mut through, &message).await, direct, "{command}");
    }
}

/// The parts of an OP_REPLY before its document: flags, cursor, start, count.
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
async fn legacy_queries_are_answered_as_a_server_answers_them() {
    let rig = Rig::shared().await;
    let cases = [
        ("admin.$cmd", doc! {"isMaster": 1}, None),
        ("admin.$cmd", doc! {"ismaster": true}, None),
        ("elsewhere.$cmd", doc! {"hello": 1.0}, None),
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
        let mut clients = [rig.direct().await, rig.through().await];
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
        assert_eq!(heads[0], heads[1], "{command}");
    }
    let with_db = doc! {"isMaster": 1, "$db": "admin"};
    for client in &mut [rig.direct().await, rig.through().await] {
        assert!(!query(client, "admin.$cmd", with_db.clone()).await.is_ok());
    }
}

#[tokio::test]
async fn legacy_get_more_meets_the_servers_own_reaction() {
    let rig = Rig::shared().await;
    let content = [&[0; 4], b"test.c\0".as_slice(), &[0; 4], &[1; 8]].concat();
    let message = framed(16 + i32::try_from(content.len()).unwrap(), 2005, &content);
    let direct = reaction(&mut rig.direct().await, &message).await;
    assert_eq!(
        direct.answers[0].code,
        Some(5_739_101),
        "the server: {direct:?}"
    );
    assert_eq!(reaction(&mut rig.through().await, &message).await, direct);
}

fn names(document: &Document) -> Vec<&str> {
    document.keys().map(String::as_str).collect()
}

#[tokio::test]
async fn hello_presents_a_router_in_front_of_a_set() {
    let rig = Rig::shared().await;
    let mut through = rig.through().await;
    let server = rig.direct().await.hello(doc! {}).await.unwrap();
    let hello = through.hello(doc! {"helloOk": true}).await.unwrap();
    let expected = [
        "isWritablePrimary",
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
    ];
    assert_eq!(names(&hello.body), expected);
    assert_eq!(hello.body.get_str("msg").ok(), Some("isdbgrid"));
    let same = [
        "isWritablePrimary",
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

#[tokio::test]
async fn hello_presents_a_standalone_in_front_of_one() {
    let server = shared_standalone().await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let hello = connect(&seawall)
        .await
        .hello(doc! {"helloOk": true})
        .await
        .unwrap();
    let mut direct = server.raw_client().await.unwrap();
    let mut direct = direct.hello(doc! {"helloOk": true}).await.unwrap().body;
    direct.remove("topologyVersion");
    let mut direct = names(&direct);
    let mut through = names(&hello.body);
    direct.sort_unstable();
    through.sort_unstable();
    assert_eq!(through, direct);
}

#[tokio::test]
async fn hello_is_refused_as_a_server_refuses_it() {
    let rig = Rig::shared().await;
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
    let cases = [
        (doc! {"hello": 1, "client": metadata()}, None),
        (client("driver", None), Some(183)),
        (client("os", None), Some(183)),
        (client("application", name(128)), None),
        (client("application", name(129)), Some(184)),
        (client("pad", Some("x".repeat(1100).into())), Some(185)),
        (doc! {"hello": 1, "apiVersion": "1"}, None),
        (
            doc! {"hello": 1, "apiVersion": "1", "apiStrict": true},
            None,
        ),
        (doc! {"hello": 1, "apiVersion": "2"}, Some(322)),
        (
            doc! {"isMaster": 1, "apiVersion": "1", "apiStrict": true},
            Some(323),
        ),
        (
            doc! {"hello": 1, "topologyVersion": version(), "maxAwaitTimeMS": 10_000},
            None,
        ),
        (doc! {"hello": 1, "maxAwaitTimeMS": 10_000}, Some(31368)),
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
        let began = Instant::now();
        for (mut connection, whose) in [
            (rig.direct().await, "server"),
            (rig.through().await, "seawall"),
        ] {
            let reply = connection.command("admin", command.clone()).await.unwrap();
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
        assert!(
            began.elapsed() < Duration::from_secs(9),
            "answered at once: {command}"
        );
    }
    let exhaust = OpMsg::new(doc! {"hello": 1, "$db": "admin"}).flags(EXHAUST_ALLOWED);
    for mut connection in [rig.direct().await, rig.through().await] {
        assert_eq!(
            connection.exchange(&exhaust).await.unwrap().code(),
            Some(51756)
        );
    }
}

#[tokio::test]
async fn metadata_is_taken_in_the_first_hello_only() {
    let rig = Rig::shared().await;
    let metadata = || doc! {"driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    for (mut connection, whose) in [
        (rig.direct().await, "server"),
        (rig.through().await, "seawall"),
    ] {
        // A command before it does not make a hello the second one.
        assert!(
            connection
                .command("admin", doc! {"ping": 1})
                .await
                .unwrap()
                .is_ok()
        );
        assert!(
            connection
                .hello(doc! {"client": metadata()})
                .await
                .unwrap()
                .is_ok(),
            "{whose}"
        );
        let again = connection.hello(doc! {"client": metadata()}).await.unwrap();
        assert_eq!(again.code(), Some(186), "{whose}");
        assert!(connection.hello(doc! {}).await.unwrap().is_ok(), "{whose}");
    }
    for (mut connection, whose) in [
        (rig.direct().await, "server"),
        (rig.through().await, "seawall"),
    ] {
        assert!(connection.hello(doc! {}).await.unwrap().is_ok());
        let late = connection.hello(doc! {"client": metadata()}).await.unwrap();
        assert_eq!(late.code(), Some(186), "{whose}");
    }
}

#[tokio::test]
async fn message_over_16_kib_before_authentication_closes() {
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
    assert_eq!((fitting.answers.len(), fitting.is_usable), (1, true));
    let larger = reaction(&mut connect(&seawall).await, &ping_of(16 * 1024 + 1)).await;
    assert!(Expected::Closes.fits(&larger), "{larger:?}");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let rig = Rig::shared().await;
    let db = unique_name("pipelined");
    let mut through = rig.through().await;
    let mut bytes = Vec::new();
    for id in 1..=100 {
        let command = match id % 3 {
            0 => doc! {"hello": 1},
            1 => doc! {"insert": "c", "documents": [{"_id": id}]},
            _ => doc! {"find": "c", "filter": {"_id": id - 1}},
        };
        let mut command = command;
        command.insert("$db", &db);
        let message = OpMsg {
            request_id: id,
            ..OpMsg::new(command)
        };
        bytes.extend(message.to_bytes());
    }
    through.send_bytes(&bytes).await.unwrap();
    for id in 1..=100 {
        let reply = through.read_reply().await.unwrap();
        assert_eq!(reply.header.response_to, id);
        assert!(reply.is_ok(), "{}", reply.body);
        if id % 3 == 2 {
            let batch = reply
                .body
                .get_document("cursor")
                .unwrap()
                .get_array("firstBatch")
                .unwrap();
            assert_eq!(batch.len(), 1, "{id}");
        }
    }
}

#[tokio::test]
async fn largest_documents_and_messages_pass_intact() {
    let rig = Rig::shared().await;
    let db = unique_name("large");
    let mut through = rig.through().await;
    let mut direct = rig.direct().await;
    let metadata = doc! {"application": {"name": "large"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    through.hello(doc! {"client": metadata}).await.unwrap();
    let overhead = doc! {"_id": 1, "pad": ""}.to_vec().unwrap().len();
    let largest = doc! {"_id": 1, "pad": "x".repeat((16 << 20) - overhead)};
    let insert = doc! {"insert": "largest", "documents": [largest.clone()]};
    let reply = through.command(&db, insert).await.unwrap();
    assert_eq!(reply.body.get_i32("n").ok(), Some(1), "{}", reply.body);
    let find = doc! {"find": "largest"};
    let reply = through.command(&db, find).await.unwrap();
    let found = reply
        .body
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap();
    assert!(found == &vec![Bson::Document(largest)]);

    let documents = (0..40)
        .map(|n| doc! {"_id": n, "pad": "y".repeat(1_000_000)})
        .collect();
    let insert = OpMsg::new(doc! {"insert": "many", "$db": &db}).sequence("documents", documents);
    let reply = through.exchange(&insert).await.unwrap();
    assert_eq!(reply.body.get_i32("n").ok(), Some(40), "{}", reply.body);
    let find = || doc! {"find": "many", "batchSize": 12, "singleBatch": true};
    let through_cursor = through
        .command(&db, find())
        .await
        .unwrap()
        .body
        .get_document("cursor")
        .cloned();
    let direct_cursor = direct
        .command(&db, find())
        .await
        .unwrap()
        .body
        .get_document("cursor")
        .cloned();
    assert!(through_cursor.unwrap() == direct_cursor.unwrap());

    let too_large = doc! {"insert": "c", "documents": [{"a": "x".repeat(16_793_600)}]};
    for client in [&mut direct, &mut through] {
        let reply = client.command(&db, too_large.clone()).await.unwrap();
        assert_eq!(reply.code(), Some(10334), "{}", reply.body);
        assert!(client.command(&db, doc! {"ping": 1}).await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn unix_socket_is_served() {
    let set = &Rig::shared().await.set;
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("seawall.sock");
    let options = seawall::Options {
        listen: Some(format!("unix:{}", path.display())),
        ..seawall::Options::default()
    };
    let _seawall = Seawall::start_with(&set.uri(), options).await;
    let mut client = RawClient::connect_unix(&path).await.unwrap();
    assert!(client.hello(doc! {}).await.unwrap().is_ok());
    let find = client.command("test", doc! {"find": "c"}).await.unwrap();
    assert!(find.is_ok(), "{}", find.body);
}

#[tokio::test]
async fn servers_see_the_applications_name() {
    let rig = Rig::shared().await;
    let db = unique_name("named");
    let mut direct = rig.direct().await;
    assert!(
        direct
            .command(&db, doc! {"profile": 2})
            .await
            .unwrap()
            .is_ok()
    );
    let mut through = rig.through().await;
    let metadata = doc! {"application": {"name": "billing"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    assert!(
        through
            .hello(doc! {"client": metadata})
            .await
            .unwrap()
            .is_ok()
    );
    assert!(
        through
            .command(&db, doc! {"find": "c"})
            .await
            .unwrap()
            .is_ok()
    );
    let mut nameless = rig.through().await;
    assert!(
        nameless
            .command(&db, doc! {"count": "c"})
            .await
            .unwrap()
            .is_ok()
    );
    let application = async |direct: &mut RawClient, command: &str| {
        let find = doc! {"find": "system.profile", "filter": {format!("command.{command}"): "c"}};
        let reply = direct.command(&db, find).await.unwrap();
        let entries = reply
            .body
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap();
        let [Bson::Document(entry)] = entries.as_slice() else {
            panic!("{command}: {entries:?}")
        };
        entry.get_str("appName").ok().map(str::to_owned)
    };
    assert_eq!(
        application(&mut direct, "find").await.as_deref(),
        Some("billing")
    );
    assert_ne!(
        application(&mut direct, "count").await.as_deref(),
        Some("billing")
    );
    assert!(
        direct
            .command(&db, doc! {"profile": 0})
            .await
            .unwrap()
            .is_ok()
    );
}

#[tokio::test]
async fn current_op_names_the_application_and_the_router() {
    let rig = Rig::shared().await;
    let db = unique_name("running");
    let mut direct = rig.direct().await;
    let mut through = rig.through().await;
    let metadata = doc! {"application": {"name": "billing"}, "driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    assert!(
        through
            .hello(doc! {"client": metadata})
            .await
            .unwrap()
            .is_ok()
    );
    let slow = doc! {"insert": "slow", "documents": [{"_id": 1}]};
    assert!(direct.command(&db, slow).await.unwrap().is_ok());
    let find =
        OpMsg::new(doc! {"find": "slow", "filter": {"$where": "sleep(1000) || true"}, "$db": &db});
    through.send(&find).await.unwrap();
    let look = async || {
        let mut direct = rig.direct().await;
        let pipeline = vec![
            doc! {"$currentOp": {}},
            doc! {"$match": {"ns": format!("{db}.slow")}},
        ];
        let command = doc! {"aggregate": 1, "pipeline": pipeline, "cursor": {}};
        let reply = direct.command("admin", command).await.unwrap();
        let seen = reply
            .body
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch")
            .unwrap()
            .clone();
        let operation = seen.first()?.as_document()?.clone();
        Some((
            operation.get_str("appName").ok()?.to_owned(),
            operation.get_document("clientMetadata").ok()?.clone(),
        ))
    };
    let (name, metadata) = eventually(LIMIT, look).await.unwrap();
    assert_eq!(name, "billing");
    assert!(
        metadata
            .get_document("mongos")
            .unwrap()
            .get_str("version")
            .unwrap()
            .contains("seawall")
    );
    assert!(through.read_reply().await.unwrap().is_ok());
}

#[tokio::test]
async fn cursors_go_on_and_end_on_any_client_connection() {
    let rig = Rig::shared().await;
    let db = unique_name("cursors");
    let mut first = rig.through().await;
    let mut second = rig.through().await;
    let documents: Vec<_> = (0..30).map(|n| doc! {"_id": n}).collect();
    let insert = doc! {"insert": "c", "documents": documents};
    assert!(first.command(&db, insert).await.unwrap().is_ok());
    let find = doc! {"find": "c", "batchSize": 10};
    let id = first
        .command(&db, find.clone())
        .await
        .unwrap()
        .cursor_id()
        .unwrap();
    let more = |id: i64| doc! {"getMore": id, "collection": "c", "batchSize": 10};
    for client in [&mut second, &mut first] {
        let reply = client.command(&db, more(id)).await.unwrap();
        let batch = reply
            .body
            .get_document("cursor")
            .unwrap()
            .get_array("nextBatch")
            .unwrap();
        assert_eq!(batch.len(), 10);
    }
    let id = first.command(&db, find).await.unwrap().cursor_id().unwrap();
    let kill = doc! {"killCursors": "c", "cursors": [id]};
    let killed = second.command(&db, kill).await.unwrap();
    assert_eq!(
        killed.body.get_array("cursorsKilled").unwrap(),
        &vec![Bson::Int64(id)]
    );
    assert_eq!(first.command(&db, more(id)).await.unwrap().code(), Some(43));
    // One reply, although the client takes several: the driver then asks again.
    let find = doc! {"find": "c", "batchSize": 0};
    let id = first.command(&db, find).await.unwrap().cursor_id().unwrap();
    let mut more = more(id);
    more.insert("$db", &db);
    let exhaust = OpMsg::new(more).flags(EXHAUST_ALLOWED);
    let reply = first.exchange(&exhaust).await.unwrap();
    assert!(reply.is_ok() && !reply.has_more_to_come() && reply.cursor_id() == Some(id));
    assert!(first.command(&db, doc! {"ping": 1}).await.unwrap().is_ok());
}

fn session() -> Document {
    let bytes = rand::random::<[u8; 16]>().to_vec();
    doc! {"id": Binary { subtype: BinarySubtype::Uuid, bytes }}
}

fn retryable(mut command: Document) -> Document {
    command.insert("lsid", session());
    command.insert("txnNumber", 1i64);
    command
}

#[tokio::test]
async fn not_primary_is_repeated_where_safe_and_concealed_elsewhere() {
    let rig = Rig::start("").await;
    let mut direct = rig.direct().await;
    let mut through = rig.through().await;
    let fail = |command: &str| {
        doc! {"failCommands": [command], "errorCode": 10107, "errorLabels": ["SomeLabel"]}
    };
    rig.fail(2, fail("insert")).await;
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    let own = direct.command("test", insert(1)).await.unwrap();
    assert!(
        own.code() == Some(10107) && own.body.contains_key("topologyVersion"),
        "{}",
        own.body
    );
    let concealed = through.command("test", insert(1)).await.unwrap();
    assert_eq!(
        (concealed.code(), concealed.error_labels()),
        (Some(6), vec!["SomeLabel"])
    );
    assert_eq!(
        concealed.body.get_str("codeName").ok(),
        Some("HostUnreachable")
    );
    assert!(
        !concealed.body.contains_key("topologyVersion"),
        "{}",
        concealed.body
    );
    let text = concealed.body.get_str("errmsg").unwrap();
    for word in ["not master", "not primary", "node is recovering"] {
        assert!(!text.contains(word), "{text}");
    }
    assert!(through.command("test", insert(1)).await.unwrap().is_ok());

    for command in [doc! {"find": "c"}, retryable(insert(2))] {
        let name = command.keys().next().unwrap().clone();
        rig.fail(1, fail(&name)).await;
        let reply = through.command("test", command).await.unwrap();
        assert!(reply.is_ok(), "{name}: {}", reply.body);
    }
    let count = direct.command("test", doc! {"count": "c"}).await.unwrap();
    assert_eq!(count.body.get_i32("n").ok(), Some(2));

    let write_concern =
        doc! {"failCommands": ["insert"], "writeConcernError": {"code": 91, "errmsg": "going"}};
    rig.fail(1, write_concern).await;
    let reply = through.command("test", insert(3)).await.unwrap();
    let error = reply.body.get_document("writeConcernError").unwrap();
    assert_eq!(
        (reply.is_ok(), error.get_i32("code").ok()),
        (true, Some(6)),
        "{}",
        reply.body
    );
}

#[tokio::test]
async fn server_that_closes_under_an_operation_closes_no_client() {
    let rig = Rig::start("").await;
    let mut through = rig.through().await;
    let close = |command: &str| doc! {"failCommands": [command], "closeConnection": true};
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    assert!(through.command("test", insert(0)).await.unwrap().is_ok());

    for command in [doc! {"find": "c"}, retryable(insert(1))] {
        let name = command.keys().next().unwrap().clone();
        rig.fail(1, close(&name)).await;
        let reply = through.command("test", command).await.unwrap();
        assert!(reply.is_ok(), "{name}: {}", reply.body);
    }
    rig.fail(1, close("insert")).await;
    let reply = through.command("test", insert(2)).await.unwrap();
    assert_eq!(
        (reply.code(), reply.error_labels()),
        (Some(6), vec![]),
        "{}",
        reply.body
    );

    // Repeated once, not more: what still fails is the driver's to repeat, if its label says so.
    for (command, labels) in [
        (doc! {"find": "c"}, vec![]),
        (retryable(insert(3)), vec!["RetryableWriteError"]),
    ] {
        let name = command.keys().next().unwrap().clone();
        rig.fail(2, close(&name)).await;
        let reply = through.command("test", command.clone()).await.unwrap();
        assert_eq!(
            (reply.code(), reply.error_labels()),
            (Some(6), labels),
            "{name}: {}",
            reply.body
        );
        let reply = through.command("test", command).await.unwrap();
        assert!(reply.is_ok(), "{name}: {}", reply.body);
    }
    let in_transaction = |mut command: Document| {
        command.insert("txnNumber", 1i64);
        command.insert("autocommit", false);
        command
    };
    let lsid = session();
    let mut first = in_transaction(insert(4));
    first.extend(doc! {"lsid": &lsid, "startTransaction": true});
    assert!(through.command("test", first).await.unwrap().is_ok());
    for (mut command, db, label) in [
        (
            in_transaction(doc! {"find": "c"}),
            "test",
            "TransientTransactionError",
        ),
        (
            in_transaction(doc! {"commitTransaction": 1}),
            "admin",
            "RetryableWriteError",
        ),
    ] {
        command.insert("lsid", &lsid);
        let name = command.keys().next().unwrap().clone();
        rig.fail(1, close(&name)).await;
        let reply = through.command(db, command).await.unwrap();
        assert_eq!(
            (reply.code(), reply.error_labels()),
            (Some(6), vec![label]),
            "{name}: {}",
            reply.body
        );
    }
    let count = through
        .command("test", doc! {"find": "c", "sort": {"_id": 1}})
        .await
        .unwrap();
    let batch = count
        .body
        .get_document("cursor")
        .unwrap()
        .get_array("firstBatch")
        .unwrap();
    let ids: Vec<_> = batch
        .iter()
        .map(|d| d.as_document().unwrap().get_i32("_id").unwrap())
        .collect();
    assert_eq!(ids, [0, 1, 3]);
}

#[tokio::test]
async fn retryable_write_whose_reply_is_lost_is_applied_once() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let member = &set.members()[0];
    let recorder = Recorder::start(member.address()).await.unwrap();
    let uri = format!("mongodb://{}/?directConnection=true", recorder.address());
    let seawall = Seawall::start(&uri).await;
    let mut through = connect(&seawall).await;
    let insert = |id: i32| doc! {"insert": "c", "documents": [{"_id": id}]};
    for (id, command) in [(1, retryable(insert(1))), (2, insert(2))] {
        assert!(
            through
                .command("test", doc! {"ping": 1})
                .await
                .unwrap()
                .is_ok()
        );
        // Long enough for the cut to come between the write and its reply.
        recorder.delay(Duration::from_secs(2));
        let mut command = command;
        command.insert("$db", "test");
        through.send(&OpMsg::new(command)).await.unwrap();
        let is_applied = async || {
            let mut direct = set.raw_client(member).await.unwrap();
            let count = doc! {"count": "c", "query": {"_id": id}};
            let count = direct.command("test", count).await.unwrap();
            count.body.get_i32("n").unwrap() == 1
        };
        eventually(LIMIT, is_applied).await.unwrap();
        recorder.delay(Duration::ZERO);
        recorder.cut_all(Cut::Reset);
        let reply = through.read_reply().await.unwrap();
        if id == 1 {
            // The server's history answered the second time.
            assert_eq!(reply.body.get_i32("n").ok(), Some(1), "{}", reply.body);
            assert!(reply.body.contains_key("retriedStmtIds"), "{}", reply.body);
        } else {
            // Nobody can know: it must not look as if it could be sent again.
            assert_eq!(
                (reply.code(), reply.error_labels()),
                (Some(6), vec![]),
                "{}",
                reply.body
            );
        }
    }
}

#[tokio::test]
async fn operation_without_a_connection_is_held_and_then_told_so() {
    const WAIT: Duration = Duration::from_millis(600);
    let rig = Rig::start("[pool]\nmax_pool_size = 1\nwait_queue_timeout_ms = 600\n").await;
    let mut holder = rig.through().await;
    let insert = doc! {"insert": "c", "documents": [{"_id": 1}]};
    assert!(holder.command("test", insert).await.unwrap().is_ok());
    let slow = doc! {"find": "c", "filter": {"$where": "sleep(4000) || true"}, "$db": "test"};
    let request_id = holder.send(&OpMsg::new(slow)).await.unwrap();
    let is_held = async || {
        let pools = rig.seawall.api("/api/v1/pools").await;
        pools["pools"][0]["in_use"] == 1
    };
    eventually(LIMIT, is_held).await.unwrap();

    let mut plain = rig.through().await;
    let began = Instant::now();
    let hurried = plain
        .command("test", doc! {"find": "c", "maxTimeMS": 100})
        .await
        .unwrap();
    assert_eq!(
        (hurried.code(), hurried.error_labels()),
        (Some(50), vec![]),
        "{}",
        hurried.body
    );
    assert!(
        (Duration::from_millis(100)..WAIT).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );

    let began = Instant::now();
    let held = plain.command("test", doc! {"find": "c"}).await.unwrap();
    assert_eq!(
        (held.code(), held.error_labels()),
        (Some(202), vec![]),
        "{}",
        held.body
    );
    assert!(began.elapsed() >= WAIT, "{:?}", began.elapsed());

    let mut aware = rig.through().await;
    assert!(
        aware
            .hello(doc! {"backpressure": "2"})
            .await
            .unwrap()
            .is_ok()
    );
    let began = Instant::now();
    let shed = aware.command("test", doc! {"find": "c"}).await.unwrap();
    let labels = vec![
        "SystemOverloadedError",
        "RetryableError",
        "NoWritesPerformed",
    ];
    assert_eq!(
        (shed.code(), shed.error_labels()),
        (Some(462), labels),
        "{}",
        shed.body
    );
    assert!(began.elapsed() >= WAIT, "{:?}", began.elapsed());

    let reply = holder.read_reply().await.unwrap();
    assert!(reply.is_ok() && reply.header.response_to == request_id);
    for client in [&mut plain, &mut aware] {
        assert!(
            client
                .command("test", doc! {"find": "c"})
                .await
                .unwrap()
                .is_ok()
        );
    }
    let shed = rig
        .seawall
        .metric("seawall_operations_shed_total", &["wait_queue_timeout"])
        .await;
    assert_eq!(shed.to_string(), "2");
}
