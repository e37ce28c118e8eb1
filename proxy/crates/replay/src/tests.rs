//! Tests of replays against a stub server.

mod failures;

use std::{collections::BTreeMap, future::pending, io::Cursor, sync::Arc, time::Duration};

use bson::{Binary, Bson, Document, doc, oid::ObjectId, spec::BinarySubtype};
use bytes::Bytes;
use seawall_capture::{
    Writer,
    record::{
        ClientBegan, ClientEnded, Command, Content, End, EndReason, Facts, Header, Redaction,
        Reply, Server,
    },
};
use seawall_load::Target;
use seawall_locks::Mutex;
use seawall_wire::{
    HEADER_BYTES, MAX_MESSAGE_BYTES, MORE_TO_COME, OpMsg, encode_op_msg_like, encode_request,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::JoinHandle,
};

use crate::{
    Choice, EndpointError, Exclusion, Pace, Replay, Report, ResultKind, Source, captured_results,
    dry_run, run,
};

/// The reaction of a stub server to the commands of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Conduct {
    /// Replies to all commands.
    Serve,
    /// Replies to this number of commands in total. Then closes each connection on which a further
    /// command arrives.
    FailAfter(usize),
    /// Replies to this number of commands in total, and then to none.
    HangAfter(usize),
    /// Replies to a find only after a `ping` has arrived.
    HoldFinds,
    /// Replies to all commands. Like a proxy, the stub sends no process id (`topologyVersion`).
    Conceal,
}

/// The commands that a stub received, and the number of its connections.
#[derive(Debug, Default)]
struct ReceivedCommands {
    /// The received commands, each with the number of its connection.
    commands: Vec<(usize, Document)>,
    connections: usize,
}

struct Stub {
    address: String,
    received: Arc<Mutex<ReceivedCommands>>,
    server: JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Stub {
    async fn start(conduct: Conduct) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let received = Arc::new(Mutex::new(ReceivedCommands::default()));
        let pinged = Arc::new(Notify::new());
        let of_server = Arc::clone(&received);
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                of_server.lock().connections = number + 1;
                let state = (Arc::clone(&of_server), Arc::clone(&pinged));
                connections.spawn(serve(stream, number, conduct, state));
            }
        });
        Self {
            address,
            received,
            server,
        }
    }

    /// The captured commands that the stub received, without the replay's own commands such as
    /// `buildInfo`.
    fn commands(&self) -> Vec<(usize, Document)> {
        self.received.lock().commands.clone()
    }

    fn names(&self) -> Vec<String> {
        let commands = self.commands();
        let name = |command: &Document| command.keys().next().unwrap().clone();
        commands.iter().map(|(_, command)| name(command)).collect()
    }
}

async fn read(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = vec![0; HEADER_BYTES];
    stream.read_exact(&mut message).await.ok()?;
    let length = i32::from_le_bytes(*message.first_chunk().unwrap());
    message.resize(usize::try_from(length).unwrap(), 0);
    stream.read_exact(&mut message[HEADER_BYTES..]).await.ok()?;
    Some(message)
}

async fn serve(
    mut stream: TcpStream,
    number: usize,
    conduct: Conduct,
    (received, pinged): (Arc<Mutex<ReceivedCommands>>, Arc<Notify>),
) {
    while let Some(message) = read(&mut stream).await {
        let parsed = OpMsg::parse(&message).unwrap();
        let command = Document::from_reader(parsed.body).unwrap();
        let name = command.keys().next().unwrap().clone();
        let is_own = matches!(&*name, "isMaster" | "buildInfo" | "serverStatus");
        if !is_own {
            let count = {
                let mut received = received.lock();
                received.commands.push((number, command.clone()));
                received.commands.len()
            };
            match conduct {
                Conduct::FailAfter(limit) if count > limit => return,
                Conduct::HangAfter(limit) if count > limit => pending().await,
                _ => {}
            }
        }
        match (&*name, conduct) {
            ("ping", _) => pinged.notify_one(),
            ("find", Conduct::HoldFinds) => pinged.notified().await,
            _ => {}
        }
        if parsed.flags & MORE_TO_COME != 0 {
            continue;
        }
        let mut body = reply(&name, &command);
        if conduct == Conduct::Conceal {
            body.remove("topologyVersion");
        }
        let body = body.to_vec().unwrap();
        let id = i32::from_le_bytes(*message[4..].first_chunk().unwrap());
        let reply = encode_op_msg_like(0, 1, id, &body);
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}

fn reply(name: &str, command: &Document) -> Document {
    let process_id = ObjectId::from_bytes([7; 12]);
    match name {
        "isMaster" => {
            doc! {"topologyVersion": {"processId": process_id}, "setName": "rs", "ok": 1.0}
        }
        "buildInfo" => doc! {"version": "6.0.5", "ok": 1.0},
        // A find on the collection `long` returns two batches; any other find returns one batch.
        "find" => {
            let id: i64 = if matches!(command.get_str("find"), Ok("long")) {
                900
            } else {
                0
            };
            doc! {"cursor": {"firstBatch": [{"a": 1}, {"a": 2}], "id": id, "ns": "d.c"}, "ok": 1.0}
        }
        // An aggregation opens a change stream, whose cursor 700 returns one event for each
        // `getMore` and never ends.
        "aggregate" => doc! {"cursor": {"firstBatch": [], "id": 700_i64, "ns": "d.c"}, "ok": 1.0},
        "getMore" if matches!(command.get_i64("getMore"), Ok(700)) => {
            doc! {"cursor": {"nextBatch": [{"e": 1}], "id": 700_i64, "ns": "d.c"}, "ok": 1.0}
        }
        "getMore" => match command.get_i64("getMore") {
            Ok(900) => {
                doc! {"cursor": {"nextBatch": [{"a": 3}], "id": 0_i64, "ns": "d.c"}, "ok": 1.0}
            }
            _ => doc! {"ok": 0.0, "code": 43, "errmsg": "cursor not found"},
        },
        "count" => doc! {"ok": 0.0, "code": 96, "errmsg": "always fails"},
        "distinct" => doc! {"ok": 0.0, "errmsg": "always fails"},
        "insert" => doc! {"n": 1, "ok": 1.0},
        _ => doc! {"ok": 1.0},
    }
}

/// A capture that is being built.
struct Capture {
    writer: Writer<Vec<u8>>,
    operations: u64,
    at_us: u64,
}

fn header() -> Header {
    Header {
        capture: Bytes::from_static(&[0xab; 4]),
        began_at_us: 1_700_000_000_000_000,
        ..Header::default()
    }
}

impl Capture {
    fn new() -> Self {
        Self::with(header())
    }

    fn with(header: Header) -> Self {
        Self {
            writer: Writer::new(Vec::new(), header).unwrap(),
            operations: 0,
            at_us: 0,
        }
    }

    fn push(&mut self, content: Content) {
        self.writer.push(&content.into()).unwrap();
    }

    fn command(&mut self, client: u64, command: Document) -> u64 {
        self.message(client, encode_request(5, &command_body(command)))
    }

    fn message(&mut self, client: u64, message: Vec<u8>) -> u64 {
        self.operations += 1;
        self.at_us += 100;
        self.push(Content::Command(Command {
            client,
            operation: self.operations,
            at_us: self.at_us,
            message: message.into(),
        }));
        self.operations
    }

    fn reply(&mut self, operation: u64, facts: Facts) {
        self.at_us += 100;
        self.push(Content::Reply(Reply {
            operation,
            at_us: self.at_us,
            duration_us: 100,
            bytes: 50,
            facts: Some(facts),
            ..Reply::default()
        }));
    }

    /// Adds a command, and a successful reply with this number of documents.
    fn operation(&mut self, client: u64, command: Document, documents: u64) {
        let operation = self.command(client, command);
        self.reply(operation, ok(documents, 0));
    }

    fn finish(self) -> Vec<u8> {
        let mut end = End::default();
        end.set_reason(EndReason::Stopped);
        self.writer.finish(end).unwrap()
    }
}

fn command_body(mut command: Document) -> Vec<u8> {
    command.insert("$db", "d");
    command.to_vec().unwrap()
}

fn ok(documents: u64, cursor_id: i64) -> Facts {
    Facts {
        ok: true,
        documents,
        cursor_id,
        ..Facts::default()
    }
}

fn failed(code: i32) -> Facts {
    Facts {
        code,
        ..Facts::default()
    }
}

fn source(bytes: Vec<u8>) -> Source {
    Source::from_stream("test", Box::new(Cursor::new(bytes))).unwrap()
}

async fn plan(stub: &Stub) -> Replay {
    Replay {
        target: Target::parse(&format!("mongodb://{}/", stub.address))
            .await
            .unwrap(),
        choice: Choice {
            with_writes: true,
            only: Vec::new(),
        },
        pace: Pace::Max,
        strict_order: false,
        connections: 100,
        reply_limit: Duration::from_secs(60),
        digest: true,
        max_error_share: 1.0,
        writes_to_unidentified: false,
    }
}

async fn replay(plan: Replay, capture: Vec<u8>) -> Report {
    run(plan, source(capture), |_| {}, pending()).await.unwrap()
}

/// A capture of three clients with the same commands: a find with one batch, a find with a
/// `getMore`, an insert, a count that fails, and a handshake.
fn mixed() -> Vec<u8> {
    let mut capture = Capture::new();
    for client in 1..=3 {
        capture.push(Content::ClientBegan(ClientBegan {
            client,
            ..ClientBegan::default()
        }));
    }
    for client in 1..=3 {
        capture.operation(client, doc! {"find": "c", "filter": {"a": 1}}, 2);
        let opened = capture.command(client, doc! {"find": "long"});
        let cursor = 5000 + i64::try_from(client).unwrap();
        capture.reply(opened, ok(2, cursor));
        let more = doc! {"getMore": cursor, "collection": "long"};
        capture.operation(client, more.clone(), 1);
        capture.operation(client, doc! {"insert": "c", "documents": [{"_id": 1}]}, 1);
        let count = capture.command(client, doc! {"count": "c"});
        capture.reply(count, failed(96));
        capture.operation(client, doc! {"hello": 1}, 0);
    }
    capture.push(Content::ClientEnded(ClientEnded {
        client: 1,
        at_us: 1,
    }));
    capture.finish()
}

type PerShape = BTreeMap<(String, String), (u64, u64, u64)>;

/// Number of operations, number of documents and number of errors per shape.
fn per_shape(report: &Report) -> PerShape {
    let shapes = report.shapes.iter().map(|shape| {
        let key = (shape.command.clone(), shape.collection.clone());
        (key, (shape.count, shape.documents, shape.error_count()))
    });
    shapes.collect()
}

#[tokio::test]
async fn results_per_shape_are_equal_in_the_replay_and_in_the_capture() {
    let stub = Stub::start(Conduct::Serve).await;
    for (strict_order, pace) in [
        (false, Pace::Max),
        (true, Pace::Max),
        (true, Pace::Speed(10.0)),
    ] {
        let mut plan = plan(&stub).await;
        plan.strict_order = strict_order;
        plan.pace = pace;
        let choice = plan.choice.clone();
        let report = replay(plan, mixed()).await;
        let captured = captured_results(source(mixed()), &choice, false);
        assert_eq!(per_shape(&report), per_shape(&captured));
        assert_eq!((report.sent, report.not_sent), (15, 0));
        assert_eq!(
            report.skipped,
            BTreeMap::from([("handshake".to_owned(), 3)])
        );
        assert_eq!(report.unexpected_errors, 0);
        assert_eq!(
            (report.kind, captured.kind),
            (ResultKind::Replay, ResultKind::Capture)
        );
        assert_eq!(report.capture, "abababab");
        assert!(report.target.ends_with("(6.0.5)"), "{}", report.target);
        let lagged = report.lag.distribution().count();
        assert_eq!(lagged, if pace == Pace::Max { 0 } else { 15 });
        // An interval lies between two commands of a client. So the first command of each of the
        // three clients has none.
        let intervals = report.interval_error.distribution().count();
        assert_eq!(intervals, if pace == Pace::Max { 0 } else { 12 });
    }
}

/// Also checks that commands on a cursor are skipped if the cursor has ended on the target or is
/// unknown.
#[tokio::test]
async fn captured_cursor_ids_are_replaced_by_cursor_ids_of_the_target() {
    let stub = Stub::start(Conduct::Serve).await;
    let mut capture = Capture::new();
    let opened = capture.command(1, doc! {"find": "long"});
    capture.reply(opened, ok(2, 77));
    for cursor_id in [77, 77, 0] {
        let more = capture.command(2, doc! {"getMore": 77_i64, "collection": "long"});
        capture.reply(more, ok(1, cursor_id));
    }
    let opened = capture.command(1, doc! {"find": "long"});
    capture.reply(opened, ok(2, 78));
    capture.operation(1, doc! {"killCursors": "long", "cursors": [78_i64]}, 0);
    capture.operation(1, doc! {"getMore": 66_i64, "collection": "long"}, 0);
    let report = replay(plan(&stub).await, capture.finish()).await;
    let cursors: Vec<_> = stub
        .commands()
        .iter()
        .filter_map(|(_, command)| command.get("getMore").or(command.get("cursors")).cloned())
        .collect();
    assert_eq!(
        cursors,
        [Bson::Int64(900), doc! {"x": [900_i64]}["x"].clone()]
    );
    let skipped = [("cursor_ended", 2), ("cursor_unknown", 1)];
    let skipped = skipped.map(|(reason, count)| (reason.to_owned(), count));
    assert_eq!(report.skipped, BTreeMap::from(skipped));
}

#[tokio::test]
async fn all_captured_events_are_fetched_even_if_the_target_returns_fewer_events_per_get_more() {
    for kills in [false, true] {
        let stub = Stub::start(Conduct::Serve).await;
        let mut capture = Capture::new();
        let watch = doc! {"aggregate": "c", "pipeline": [{"$changeStream": {}}]};
        let opened = capture.command(1, watch);
        capture.reply(opened, ok(0, 77));
        for events in [3, 0, 2] {
            let more = capture.command(1, doc! {"getMore": 77_i64, "collection": "c"});
            capture.reply(more, ok(events, 77));
        }
        if kills {
            capture.operation(1, doc! {"killCursors": "c", "cursors": [77_i64]}, 0);
        }
        let report = replay(plan(&stub).await, capture.finish()).await;
        let shapes = &report.shapes;
        let watch = shapes
            .iter()
            .find(|shape| shape.command == "aggregate")
            .unwrap();
        assert_eq!((watch.count, watch.events), (1, 5), "{kills}");
        assert!(watch.digest.is_none() && watch.is_awaiting);
        let mut names = vec!["aggregate"];
        names.extend(["getMore"; 5]);
        names.extend(kills.then_some("killCursors"));
        assert_eq!(stub.names(), names);
    }
}

#[tokio::test]
async fn each_client_has_its_own_connection_and_keeps_the_order_of_its_commands() {
    let stub = Stub::start(Conduct::Serve).await;
    let mut capture = Capture::new();
    for number in 0..50 {
        for client in 1..=4 {
            capture.operation(
                client,
                doc! {"find": "c", "client": i64::try_from(client).unwrap(), "n": number},
                2,
            );
        }
    }
    replay(plan(&stub).await, capture.finish()).await;
    let mut by_connection: BTreeMap<usize, Vec<(i64, i32)>> = BTreeMap::new();
    for (connection, command) in stub.commands() {
        let pair = (
            command.get_i64("client").unwrap(),
            command.get_i32("n").unwrap(),
        );
        by_connection.entry(connection).or_default().push(pair);
    }
    assert_eq!(by_connection.len(), 4);
    for commands in by_connection.into_values() {
        let (client, _) = commands[0];
        let expected: Vec<_> = (0..50).map(|number| (client, number)).collect();
        assert_eq!(commands, expected);
    }
}

#[tokio::test]
async fn clients_over_the_connection_limit_share_connections() {
    let stub = Stub::start(Conduct::Serve).await;
    let mut plan = plan(&stub).await;
    plan.connections = 1;
    let report = replay(plan, mixed()).await;
    assert_eq!((report.sent, report.shared_connections), (15, 2));
    // The replay used one connection to ask for the target's version, and one connection to send
    // the commands of all clients.
    assert_eq!(stub.received.lock().connections, 2);
}

/// For example, a client that only writes has no commands to send in a replay without writes.
#[tokio::test]
async fn clients_without_commands_to_send_get_no_connection() {
    let stub = Stub::start(Conduct::Serve).await;
    let mut capture = Capture::new();
    for client in 1..=20 {
        let at_us = capture.at_us;
        capture.push(Content::ClientBegan(ClientBegan {
            client,
            at_us,
            ..ClientBegan::default()
        }));
        capture.operation(client, doc! {"hello": 1}, 0);
        if client > 1 {
            capture.push(Content::ClientEnded(ClientEnded { client, at_us }));
        }
    }
    capture.operation(21, doc! {"find": "c"}, 2);
    let mut plan = plan(&stub).await;
    plan.connections = 1;
    let report = replay(plan, capture.finish()).await;
    assert_eq!((report.sent, report.shared_connections), (1, 0));
    // One connection asked for the target's version, and one sent the find.
    assert_eq!(stub.received.lock().connections, 2);
}

#[tokio::test]
async fn commands_are_sent_when_due_even_if_the_target_has_not_replied_to_earlier_commands() {
    let stub = Stub::start(Conduct::HoldFinds).await;
    let mut capture = Capture::new();
    capture.operation(1, doc! {"find": "c"}, 2);
    capture.operation(2, doc! {"ping": 1}, 0);
    // The stub replies to the find only after the ping. So the find succeeds only if the replay
    // sends the ping while it still waits for the reply to the find.
    let report = replay(plan(&stub).await, capture.finish()).await;
    assert_eq!(stub.names(), ["find", "ping"]);
    assert_eq!(report.unexpected_errors, 0);
}

#[tokio::test]
async fn session_ids_are_replaced_and_commands_of_a_session_keep_their_order_across_connections() {
    let stub = Stub::start(Conduct::Serve).await;
    let bytes = vec![3; 16];
    let lsid = doc! {"id": Binary { subtype: BinarySubtype::Uuid, bytes }};
    let mut capture = Capture::new();
    for number in 0..30 {
        let command = doc! {"find": "c", "n": number, "lsid": &lsid};
        capture.operation(u64::try_from(number % 3).unwrap(), command, 2);
    }
    replay(plan(&stub).await, capture.finish()).await;
    let commands = stub.commands();
    let numbers = commands
        .iter()
        .map(|(_, command)| command.get_i32("n").unwrap());
    assert_eq!(numbers.collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    let sessions: Vec<_> = commands
        .iter()
        .map(|(_, command)| command.get_document("lsid").unwrap())
        .collect();
    assert!(
        sessions
            .iter()
            .all(|session| *session == sessions[0] && **session != lsid)
    );
}

#[tokio::test]
async fn replies_to_unacknowledged_writes_are_awaited_but_not_counted() {
    let stub = Stub::start(Conduct::Serve).await;
    let mut capture = Capture::new();
    let insert = doc! {"insert": "c", "documents": [{}], "writeConcern": {"w": 0}};
    let mut message = encode_request(5, &command_body(insert));
    message[16..20].copy_from_slice(&MORE_TO_COME.to_le_bytes());
    capture.message(1, message);
    capture.operation(1, doc! {"find": "c"}, 2);
    let report = replay(plan(&stub).await, capture.finish()).await;
    assert_eq!(stub.names(), ["insert", "find"]);
    assert_eq!((report.sent, report.unexpected_errors), (2, 0));
    let insert = report
        .shapes
        .iter()
        .find(|of| of.command == "insert")
        .unwrap();
    assert_eq!((insert.count, insert.documents), (1, 0));
}

#[tokio::test]
async fn a_capture_that_was_cut_off_is_replayed_up_to_the_cut() {
    let stub = Stub::start(Conduct::Serve).await;
    let mut capture = Capture::new();
    capture.operation(1, doc! {"find": "c"}, 2);
    capture.writer.flush().unwrap();
    capture.operation(1, doc! {"find": "c"}, 2);
    let mut bytes = capture.finish();
    bytes.truncate(bytes.len() - 10);
    let report = replay(plan(&stub).await, bytes).await;
    assert_eq!(report.sent, 1);
    assert!(report.incomplete.unwrap().contains("cut off"));
}

/// A capture of one server, without commands.
fn captured(address: &str, process_id: &'static [u8]) -> Vec<u8> {
    Capture::with(Header {
        servers: vec![Server {
            address: address.to_owned(),
            process_id: Bytes::from_static(process_id),
        }],
        ..header()
    })
    .finish()
}

#[tokio::test]
async fn a_replay_against_the_captured_deployment_is_refused() {
    let stub = Stub::start(Conduct::Serve).await;
    for capture in [
        captured(&stub.address, b""),
        captured("192.0.2.1:1", &[7; 12]),
    ] {
        let refused = run(plan(&stub).await, source(capture), |_| {}, pending()).await;
        assert!(
            matches!(refused, Err(EndpointError::CapturedDeployment(_))),
            "{refused:?}"
        );
    }
    assert!(stub.commands().is_empty());
    let other = captured("192.0.2.1:1", &[8; 12]);
    assert_eq!(replay(plan(&stub).await, other).await.sent, 0);
}

/// One client can open a cursor or a transaction, and another client can send the next command on
/// it. The next command would fail on another server or router.
#[tokio::test]
async fn a_target_with_several_addresses_is_refused() {
    let [first, second] = [Conduct::Serve; 2].map(Stub::start);
    let (first, second) = (first.await, second.await);
    let uri = format!("mongodb://{},{}/", first.address, second.address);
    let plan = Replay {
        target: Target::parse(&uri).await.unwrap(),
        ..plan(&first).await
    };
    let refused = run(plan, source(mixed()), |_| {}, pending()).await;
    assert!(
        matches!(refused, Err(EndpointError::SeveralAddresses(2))),
        "{refused:?}"
    );
    for stub in [first, second] {
        assert!(stub.commands().is_empty());
    }
}

#[tokio::test]
async fn a_replay_with_writes_must_be_allowed_explicitly_if_the_server_has_no_process_id() {
    let stub = Stub::start(Conduct::Conceal).await;
    let capture = || captured("192.0.2.1:1", &[8; 12]);
    let refused = run(plan(&stub).await, source(capture()), |_| {}, pending()).await;
    assert!(
        matches!(refused, Err(EndpointError::Unidentified(_))),
        "{refused:?}"
    );
    let allowed = Replay {
        writes_to_unidentified: true,
        ..plan(&stub).await
    };
    let only_reads = Replay {
        choice: Choice::default(),
        ..plan(&stub).await
    };
    for plan in [allowed, only_reads] {
        assert_eq!(replay(plan, capture()).await.sent, 0);
    }
}

#[tokio::test]
async fn a_replay_fails_if_its_target_does_not_run() {
    let stub = Stub::start(Conduct::Serve).await;
    let plan = plan(&stub).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let target = Target::parse(&format!("mongodb://{address}/"))
        .await
        .unwrap();
    let refused = run(
        Replay { target, ..plan },
        source(mixed()),
        |_| {},
        pending(),
    )
    .await;
    assert!(
        matches!(refused, Err(EndpointError::Unreachable { .. })),
        "{refused:?}"
    );
}

#[test]
fn a_dry_run_counts_commands_that_would_be_sent_or_skipped() {
    let report = dry_run(source(mixed()), &Choice::default());
    assert_eq!(report.kind, ResultKind::DryRun);
    assert_eq!(report.sent, 12);
    let skipped = [("handshake", 3), ("write", 3)];
    let skipped = skipped.map(|(reason, count)| (reason.to_owned(), count));
    assert_eq!(report.skipped, BTreeMap::from(skipped));
    let counts: Vec<u64> = report.shapes.iter().map(|shape| shape.count).collect();
    assert_eq!(counts, [3; 4]);
}

/// A capture may lack the replies, and have only facts about them, such as the number of documents.
#[test]
fn results_of_a_capture_have_digests_only_if_the_capture_contains_the_complete_replies() {
    let whole = |documents: Vec<Document>| {
        let mut capture = Capture::new();
        let operation = capture.command(1, doc! {"find": "c"});
        let body = doc! {"cursor": {"firstBatch": documents, "id": 0_i64, "ns": "d.c"}, "ok": 1.0};
        capture.push(Content::Reply(Reply {
            operation,
            bytes: 100,
            facts: Some(ok(2, 0)),
            message: encode_op_msg_like(0, 1, 5, &body.to_vec().unwrap()).into(),
            ..Reply::default()
        }));
        let report = captured_results(source(capture.finish()), &Choice::default(), true);
        report.shapes[0].clone()
    };
    let first = whole(vec![doc! {"a": 1}, doc! {"a": 2}]);
    assert_eq!(first.documents, 2);
    assert!(first.digest.is_some());
    assert_eq!(
        first.digest,
        whole(vec![doc! {"a": 2}, doc! {"a": 1}]).digest
    );
    assert_ne!(
        first.digest,
        whole(vec![doc! {"a": 2}, doc! {"a": 3}]).digest
    );
    let facts = captured_results(source(mixed()), &Choice::default(), true);
    assert!(facts.shapes.iter().all(|shape| shape.digest.is_none()));
}

#[test]
fn results_of_filters_that_compare_strings_by_order_are_excluded_if_the_capture_is_redacted() {
    for (redaction, expected) in [
        (Redaction::None, None),
        (Redaction::Ordered, Some(Exclusion::StringRange)),
    ] {
        let mut header = header();
        header.set_redaction(redaction);
        let mut capture = Capture::with(header);
        capture.operation(1, doc! {"find": "c", "filter": {"a": {"$gt": "m"}}}, 2);
        let report = captured_results(source(capture.finish()), &Choice::default(), false);
        assert_eq!(report.shapes[0].excluded, expected);
    }
}

#[tokio::test]
async fn an_error_without_a_code_is_expected_only_if_the_captured_error_has_no_code_either() {
    for (facts, unexpected) in [(failed(0), 0), (failed(96), 1), (ok(1, 0), 1)] {
        let stub = Stub::start(Conduct::Serve).await;
        let mut capture = Capture::new();
        let distinct = capture.command(1, doc! {"distinct": "c", "key": "a"});
        capture.reply(distinct, facts.clone());
        let report = replay(plan(&stub).await, capture.finish()).await;
        assert_eq!(report.unexpected_errors, unexpected, "{facts:?}");
    }
}

/// Messages of almost the maximum size are sent, although the memory for messages that were read
/// ahead is limited.
#[tokio::test]
async fn messages_of_almost_the_maximum_size_are_sent() {
    let stub = Stub::start(Conduct::Serve).await;
    let mut capture = Capture::new();
    let documents = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![0; 16_000_000],
    };
    let one = doc! {"a": documents}.to_vec().unwrap();
    let mut message = encode_request(5, &command_body(doc! {"insert": "c"}));
    message.push(1);
    let size = 4 + 10 + 2 * one.len() + 15_000_000;
    message.extend(i32::try_from(size).unwrap().to_le_bytes());
    message.extend(b"documents\0");
    message.extend(one.repeat(2));
    let last = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![0; 15_000_000 - 13],
    };
    message.extend(doc! {"a": last}.to_vec().unwrap());
    let length = i32::try_from(message.len()).unwrap();
    assert!(message.len() <= MAX_MESSAGE_BYTES);
    message[..4].copy_from_slice(&length.to_le_bytes());
    for client in 1..=3 {
        let operation = capture.message(client, message.clone());
        capture.reply(operation, ok(1, 0));
    }
    let report = replay(plan(&stub).await, capture.finish()).await;
    assert_eq!((report.sent, report.unexpected_errors), (3, 0));
    let bytes: u64 = report.shapes.iter().map(|shape| shape.request_bytes).sum();
    assert_eq!(bytes, 3 * u64::try_from(message.len()).unwrap());
}
