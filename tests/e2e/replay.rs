//! Replays captured traffic against real servers, and compares the replays.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use mongodb::{
    Client, Collection, IndexModel,
    bson::{Document, doc},
    options::ClientOptions,
};
use seawall_capture::{
    Writer,
    record::{Command, Content, End, EndReason, Facts, Header, Outcome, Reply, Server},
};
use seawall_command::{ReplyFacts, ReplyForm};
use seawall_load::Target;
use seawall_locks::Mutex;
use seawall_replay::{
    ChangeKind, Choice, Comparison, Pace, Replay, Report, Source, captured_results, run,
};
use seawall_tests::{
    mongod::{Options, ReplicaSet},
    process,
    scratch::Scratch,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

/// Number of documents in the collection before a capture.
const DOCUMENTS: i32 = 5_000;

/// The pace of the replays: 240 commands per second. The pauses between the commands are so long
/// that a slow command does not affect the next one.
const PACE: Pace = Pace::Rate(240.0);

/// A proxy that records the traffic between clients and a server as a capture.
struct CapturingProxy {
    address: SocketAddr,
    recording: Arc<Mutex<WrittenCapture>>,
    server: JoinHandle<()>,
}

struct WrittenCapture {
    writer: Writer<Vec<u8>>,
    began: Instant,
    operations: u64,
    clients: u64,
}

impl Drop for CapturingProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl CapturingProxy {
    async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let now = std::time::SystemTime::now();
        let since_1970 = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        let header = Header {
            capture: Bytes::from_static(b"e2e"),
            began_at_us: u64::try_from(since_1970.as_micros()).unwrap(),
            servers: vec![Server {
                address: server.to_string(),
                process_id: Bytes::new(),
            }],
            ..Header::default()
        };
        let recording = Arc::new(Mutex::new(WrittenCapture {
            writer: Writer::new(Vec::new(), header).unwrap(),
            began: Instant::now(),
            operations: 0,
            clients: 0,
        }));
        let shared = Arc::clone(&recording);
        let server = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let server = TcpStream::connect(server).await.unwrap();
                connections.spawn(relay(client, server, Arc::clone(&shared)));
            }
        });
        Self {
            address,
            recording,
            server,
        }
    }

    async fn client(&self) -> Client {
        client(self.address).await
    }

    /// Ends the recording and writes it to a file.
    fn finish(self, file: &Path) {
        self.server.abort();
        let mut recording = self.recording.lock();
        let header = Header::default();
        let writer = std::mem::replace(
            &mut recording.writer,
            Writer::new(Vec::new(), header).unwrap(),
        );
        let mut end = End::default();
        end.set_reason(EndReason::Stopped);
        std::fs::write(file, writer.finish(end).unwrap()).unwrap();
    }
}

impl WrittenCapture {
    fn at_us(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap()
    }

    fn command(&mut self, client: u64, message: Vec<u8>) -> u64 {
        self.operations += 1;
        let command = Command {
            client,
            operation: self.operations,
            at_us: self.at_us(),
            message: message.into(),
        };
        self.writer.push(&Content::Command(command).into()).unwrap();
        self.operations
    }

    fn reply(&mut self, operation: u64, began: Instant, message: Vec<u8>) {
        let body = message.get(21..).unwrap_or_default();
        let facts = ReplyFacts::of(ReplyForm::Plain, body);
        let mut reply = Reply {
            operation,
            at_us: self.at_us(),
            duration_us: u64::try_from(began.elapsed().as_micros()).unwrap(),
            bytes: u64::try_from(message.len()).unwrap(),
            facts: Some(Facts::from(&facts)),
            message: message.into(),
            ..Reply::default()
        };
        reply.set_outcome(Outcome::Replied);
        self.writer.push(&Content::Reply(reply).into()).unwrap();
    }
}

async fn relay(client: TcpStream, server: TcpStream, recording: Arc<Mutex<WrittenCapture>>) {
    let number = {
        let mut recording = recording.lock();
        recording.clients += 1;
        recording.clients
    };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let open: Mutex<BTreeMap<i32, (u64, Instant)>> = Mutex::default();
    let requests = async {
        while let Some(message) = read(&mut from_client).await {
            if field(&message, 12) == OP_MSG {
                let operation = recording.lock().command(number, message.clone());
                open.lock()
                    .insert(field(&message, 4), (operation, Instant::now()));
            }
            if to_server.write_all(&message).await.is_err() {
                return;
            }
        }
    };
    let replies = async {
        while let Some(message) = read(&mut from_server).await {
            let known = open.lock().remove(&field(&message, 8));
            if let Some((operation, began)) = known {
                recording.lock().reply(operation, began, message.clone());
            }
            if to_client.write_all(&message).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = replies => {}
    }
}

const OP_MSG: i32 = 2013;

fn field(message: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(*message[at..].first_chunk().unwrap())
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut message = vec![0; 16];
    stream.read_exact(&mut message).await.ok()?;
    let length = usize::try_from(field(&message, 0)).unwrap();
    message.resize(length, 0);
    stream.read_exact(&mut message[16..]).await.ok()?;
    Some(message)
}

pub(super) async fn client(address: SocketAddr) -> Client {
    let uri = format!("mongodb://{address}/?directConnection=true");
    Client::with_options(ClientOptions::parse(uri).await.unwrap()).unwrap()
}

/// A server with the data that exist at the start of a capture.
pub(super) struct Prepared {
    pub(super) set: ReplicaSet,
    pub(super) address: SocketAddr,
}

impl Prepared {
    /// A server without data.
    pub(super) async fn empty() -> Self {
        let set = ReplicaSet::start(1, Options::default()).await.unwrap();
        let address = set.primary().await.unwrap().address();
        Self { set, address }
    }

    pub(super) async fn start() -> Self {
        let server = Self::empty().await;
        let things = things(&client(server.address).await);
        let documents = (0..DOCUMENTS).map(|number| {
            doc! {"_id": number, "a": number, "b": number % 10, "text": "x".repeat(200)}
        });
        things.insert_many(documents).await.unwrap();
        for field in ["a", "b"] {
            let index = IndexModel::builder().keys(doc! {field: 1}).build();
            things.create_index(index).await.unwrap();
        }
        server
    }

    async fn replay(&self, capture: &Path, with_writes: bool, pace: Pace) -> Report {
        let target = format!("mongodb://{}/", self.address);
        let replay = Replay {
            target: Target::parse(&target).await.unwrap(),
            choice: choice(with_writes),
            pace,
            strict_order: true,
            connections: 100,
            reply_limit: Duration::from_secs(60),
            digest: true,
            max_error_share: 0.05,
            writes_to_unidentified: false,
        };
        let source = Source::open(capture).unwrap();
        let never = std::future::pending();
        run(replay, source, |_| {}, never).await.unwrap()
    }
}

fn choice(with_writes: bool) -> Choice {
    Choice {
        with_writes,
        only: Vec::new(),
    }
}

pub(super) fn things(client: &Client) -> Collection<Document> {
    client.database("shop").collection("things")
}

/// Runs the reads and writes of one application: cursors, transactions, bulk writes, an expected
/// error. `base` is the first `_id` that the application writes.
pub(super) async fn mixed(client: Client, base: i32) {
    let things = things(&client);
    for number in base..base + 20 {
        let written = doc! {"_id": number, "a": number, "n": 0};
        things.insert_one(written).await.unwrap();
        let cursor = things
            .find(doc! {"b": number % 10})
            .batch_size(60)
            .limit(150);
        let found: Vec<Document> = cursor
            .sort(doc! {"_id": 1})
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        assert_eq!(found.len(), 150);
        let changed = doc! {"$inc": {"n": 1}};
        things
            .update_many(
                doc! {"_id": {"$gte": base, "$lt": base + 20}},
                changed.clone(),
            )
            .await
            .unwrap();
        let after = things.find_one_and_update(doc! {"_id": number}, changed);
        assert!(after.await.unwrap().is_some());
    }
    // A document with this `_id` exists, so the insert fails.
    assert!(things.insert_one(doc! {"_id": base}).await.is_err());
    let count = things.count_documents(doc! {"b": 3}).await.unwrap();
    assert_eq!(count, u64::try_from(DOCUMENTS / 10).unwrap());
    let many = (0..50).map(|number| doc! {"_id": base + 100 + number, "a": -1});
    things.insert_many(many).await.unwrap();
    transaction(&client, base).await;
    things
        .delete_many(doc! {"_id": {"$gte": base + 100, "$lt": base + 120}})
        .await
        .unwrap();
    let groups = vec![
        doc! {"$match": {"b": 4}},
        doc! {"$group": {"_id": "$b", "n": {"$sum": 1}}},
    ];
    let groups = things.aggregate(groups).await.unwrap();
    assert_eq!(groups.try_collect::<Vec<_>>().await.unwrap().len(), 1);
}

async fn transaction(client: &Client, base: i32) {
    let things = things(client);
    let mut session = client.start_session().await.unwrap();
    for commits in [true, false] {
        session.start_transaction().await.unwrap();
        let change = doc! {"$inc": {"n": 100}};
        things
            .update_one(doc! {"_id": base}, change)
            .session(&mut session)
            .await
            .unwrap();
        let found = things.find_one(doc! {"_id": base}).session(&mut session);
        assert!(found.await.unwrap().is_some());
        match commits {
            true => session.commit_transaction().await.unwrap(),
            false => session.abort_transaction().await.unwrap(),
        }
    }
}

type ResultsPerShape = BTreeMap<String, (u64, u64, u64, Option<String>)>;

/// For each shape: the number of its commands, documents and errors, and the digest of its results.
fn per_shape(report: &Report) -> ResultsPerShape {
    let shapes = report.shapes.iter().map(|shape| {
        let name = format!(
            "{} {}.{} {}",
            shape.command, shape.db, shape.collection, shape.text
        );
        let errors = shape.error_count();
        (
            name,
            (shape.count, shape.documents, errors, shape.digest.clone()),
        )
    });
    shapes.collect()
}

/// All documents of the collection.
async fn documents(server: &Prepared) -> Vec<Document> {
    let things = things(&client(server.address).await);
    let found = things.find(doc! {}).sort(doc! {"_id": 1});
    found.await.unwrap().try_collect().await.unwrap()
}

#[tokio::test]
async fn a_replay_in_strict_order_and_the_captured_traffic_give_the_same_results_and_data() {
    let (source, target) = tokio::join!(Prepared::start(), Prepared::start());
    let scratch = Scratch::create().unwrap();
    let file = scratch.join("capture");
    let recorder = CapturingProxy::start(source.address).await;
    let mut applications = JoinSet::new();
    for number in 0..3 {
        applications.spawn(mixed(recorder.client().await, 10_000 * (number + 1)));
    }
    while let Some(ended) = applications.join_next().await {
        ended.unwrap();
    }
    recorder.finish(&file);
    let captured = captured_results(Source::open(&file).unwrap(), &choice(true), true);
    let replayed = target.replay(&file, true, Pace::Max).await;
    assert_eq!(replayed.incomplete.as_deref(), None);
    assert_eq!(replayed.unexpected_errors, 0, "{replayed:#?}");
    assert!(
        replayed.sent > 200 && replayed.shapes.len() > 10,
        "{replayed:#?}"
    );
    assert_eq!(per_shape(&replayed), per_shape(&captured));
    assert_eq!(replayed.skipped, captured.skipped);
    assert_eq!(documents(&target).await, documents(&source).await);
    let comparison = Comparison::new(captured, replayed, None);
    let different: Vec<_> = comparison
        .changes
        .iter()
        .filter(|change| matches!(change.kind, ChangeKind::Failed | ChangeKind::Different))
        .collect();
    assert!(different.is_empty(), "{different:#?}");
    drop((source.set, target.set));
}

/// Watches a change stream until it has returned the events of 30 inserts by another client.
async fn watched(recorder: &CapturingProxy) {
    let (watcher, writer) = (recorder.client().await, recorder.client().await);
    let mut events = things(&watcher).watch().await.unwrap();
    let inserts = async {
        for number in 0..30 {
            let written = doc! {"_id": 90_000 + number};
            things(&writer).insert_one(written).await.unwrap();
        }
    };
    let received = async {
        for _ in 0..30 {
            assert!(events.try_next().await.unwrap().is_some());
        }
    };
    tokio::join!(inserts, received);
}

#[tokio::test]
async fn change_streams_are_compared_by_their_events() {
    let (source, target) = tokio::join!(Prepared::start(), Prepared::start());
    let scratch = Scratch::create().unwrap();
    let file = scratch.join("capture");
    let recorder = CapturingProxy::start(source.address).await;
    watched(&recorder).await;
    recorder.finish(&file);
    let captured = captured_results(Source::open(&file).unwrap(), &choice(true), true);
    let replayed = target.replay(&file, true, Pace::Speed(1.0)).await;
    for report in [&captured, &replayed] {
        let mut shapes = report.shapes.iter();
        let stream = shapes.find(|shape| shape.is_awaiting).unwrap();
        assert_eq!((stream.count, stream.events), (1, 30), "{stream:?}");
    }
    let comparison = Comparison::new(captured, replayed, None);
    let mut changes = comparison.changes.iter();
    assert!(
        !changes.any(|change| change.kind <= ChangeKind::Different),
        "{:#?}",
        comparison.changes
    );
}

/// Runs reads of six shapes, 60 of each. The shapes alternate, so that a busy moment of the machine
/// affects all of them.
pub(super) async fn reads(client: Client) {
    let things = things(&client);
    let filters: [fn(i32) -> Document; 6] = [
        |number| doc! {"_id": number},
        |number| doc! {"a": number},
        |number| doc! {"a": number, "b": number % 10},
        |number| doc! {"a": {"$gte": number, "$lt": number + 5}},
        |number| doc! {"a": {"$in": [number, number + 1]}},
        // Without the index on `b`, the server examines nearly all documents.
        |_| doc! {"a": {"$gt": 0}, "b": {"$in": [11, 12]}},
    ];
    for number in 0..60 {
        for filter in filters {
            let cursor = things.find(filter(number)).await.unwrap();
            cursor.try_collect::<Vec<_>>().await.unwrap();
        }
    }
}

async fn captured_reads(source: &Prepared, file: PathBuf) -> PathBuf {
    let recorder = CapturingProxy::start(source.address).await;
    reads(recorder.client().await).await;
    recorder.finish(&file);
    file
}

/// The kind of a change, and the text of the shape that changed.
type Shown = (ChangeKind, String);

/// The shapes that changed. A change of all shapes at once is ignored, because the machine may be
/// busier during one of the replays.
fn changes(before: &Report, now: &Report) -> Vec<Shown> {
    let comparison = Comparison::new(before.clone(), now.clone(), None);
    let changes = comparison.changes.into_iter();
    let shapes = changes.filter(|change| !change.shape.id.is_empty());
    shapes
        .map(|change| (change.kind, change.shape.text))
        .collect()
}

/// Replays the capture on `target` once for each report in `before`, and compares each replay with
/// its report. Returns the changes that all comparisons have in common. A busy machine can slow a
/// shape in one replay, but a change of the data is visible in all replays.
async fn lasting_changes(before: &[Report], target: &Prepared, file: &Path) -> Vec<Shown> {
    let mut lasting: Option<Vec<Shown>> = None;
    for report in before {
        let shown = changes(report, &target.replay(file, false, PACE).await);
        match &mut lasting {
            None => lasting = Some(shown),
            Some(lasting) => lasting.retain(|change| shown.contains(change)),
        }
    }
    lasting.unwrap_or_default()
}

#[tokio::test]
async fn a_dropped_index_is_reported_as_slower_and_a_changed_document_as_different() {
    let (source, target) = tokio::join!(Prepared::start(), Prepared::start());
    let scratch = Scratch::create().unwrap();
    let file = captured_reads(&source, scratch.join("capture")).await;
    assert_verdicts(&target, &file, doc! {"_id": 63}).await;
}

/// Replays the capture of [`reads`] several times on each of three states of the data: as captured;
/// without an index; with the index, but with one changed document. The filter `changed` finds this
/// document. Checks that the reports show exactly these changes.
pub(super) async fn assert_verdicts(target: &Prepared, file: &Path, changed: Document) {
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(target.replay(file, false, PACE).await);
    }
    assert_eq!(lasting_changes(&runs, target, file).await, []);
    let things = things(&client(target.address).await);
    things.drop_index("b_1").await.unwrap();
    let slower = lasting_changes(&runs, target, file).await;
    let [(ChangeKind::Slower, shape)] = &slower[..] else {
        panic!("{slower:?}")
    };
    assert!(shape.contains("$gt:"), "{shape}");
    let index = IndexModel::builder().keys(doc! {"b": 1}).build();
    things.create_index(index).await.unwrap();
    // Only the range query of the capture returns this document.
    let change = doc! {"$set": {"text": "y"}};
    let updated = things.update_one(changed, change).await.unwrap();
    assert_eq!(updated.modified_count, 1);
    let different = lasting_changes(&runs, target, file).await;
    let [(ChangeKind::Different, shape)] = &different[..] else {
        panic!("{different:?}")
    };
    assert!(shape.contains("$lt"), "{shape}");
}

/// The exit status and the output of a command.
async fn output(arguments: &[&str]) -> (Option<i32>, String) {
    let output = process::run(arguments).await;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout) + &text(output.stderr),
    )
}

#[tokio::test]
async fn seawall_refuses_a_replay_on_the_captured_deployment_and_reports_slower_operations() {
    let (source, target) = tokio::join!(Prepared::start(), Prepared::start());
    let scratch = Scratch::create().unwrap();
    let file = captured_reads(&source, scratch.join("capture")).await;
    let path = |name: &str| scratch.join(name).display().to_string();
    let capture = file.display().to_string();
    let uri = |server: &Prepared| format!("mongodb://{}/", server.address);
    let load = async |more: &[&str]| {
        output(&[&["load", "replay", &capture, "--quiet"], more].concat()).await
    };
    let (code, text) = load(&["--dry-run"]).await;
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("would send 360 commands"), "{text}");
    let (code, text) = load(&["--target", &uri(&source)]).await;
    assert_eq!(code, Some(69), "{text}");
    assert!(
        text.contains("belongs to the captured deployment"),
        "{text}"
    );
    let (code, _) = load(&["--target", "mongodb://192.0.2.1/"]).await;
    assert_eq!(code, Some(64));
    for name in ["a.json", "b.json"] {
        let arguments = [
            "--target",
            &uri(&target),
            "--max",
            "--digest",
            "--output",
            &path(name),
        ];
        let (code, text) = load(&arguments).await;
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("sent 360 commands"), "{text}");
    }
    let compare = async |more: &[&str]| output(&[&["report", "compare"], more].concat()).await;
    let (a, b) = (path("a.json"), path("b.json"));
    for before in [&capture, &a] {
        let (code, text) = compare(&[before, &b]).await;
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("Seawall comparison of replays"), "{text}");
        assert!(!text.contains("Different"), "{text}");
    }
    for (format, expected) in [
        ("json", "seawall_replay_comparison"),
        ("html", "<!doctype html>"),
    ] {
        let (code, text) = compare(&[&a, &b, "--format", format]).await;
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(expected), "{text}");
    }
    things(&client(target.address).await)
        .drop_indexes()
        .await
        .unwrap();
    let arguments = ["--target", &uri(&target), "--max", "--output", &b];
    assert_eq!(load(&arguments).await.0, Some(0));
    let (code, text) = compare(&[&a, &b, "--fail-if-slower", "20%"]).await;
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("objectives missed: find shop.things"),
        "{text}"
    );
}

#[tokio::test]
async fn an_output_file_that_cannot_be_opened_ends_a_replay_before_it_starts() {
    let scratch = Scratch::create().unwrap();
    let capture = empty_capture(&scratch);
    // If the replay started, it would fail, because no server listens at this address.
    let target = ["--target", "mongodb://127.0.0.1:1/"];
    let file = ["--output", "/nowhere/results.json"];
    let arguments = ["load", "replay", &capture];
    let (code, text) = output(&[&arguments[..], &target, &file].concat()).await;
    assert_eq!(code, Some(69), "{text}");
    assert!(
        text.starts_with("seawall: /nowhere/results.json: "),
        "{text}"
    );
}

#[tokio::test]
async fn a_replay_that_does_not_start_creates_no_output_file_and_keeps_an_existing_one() {
    let scratch = Scratch::create().unwrap();
    let capture = empty_capture(&scratch);
    let old = scratch.write("old.json", "old").unwrap();
    // The first target is on another machine, and no server listens at the second.
    for (target, status) in [("mongodb://192.0.2.1/", 64), ("mongodb://127.0.0.1:1/", 69)] {
        for file in [&scratch.join("new.json"), &old] {
            let file = file.to_str().unwrap();
            let arguments = ["load", "replay", &capture, "--target", target, "--output"];
            let (code, text) = output(&[&arguments[..], &[file]].concat()).await;
            assert_eq!(code, Some(status), "{text}");
        }
        assert!(!scratch.join("new.json").exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "old");
    }
}

#[tokio::test]
async fn the_summary_of_a_replay_is_printed_even_if_its_results_cannot_be_written() {
    let scratch = Scratch::create().unwrap();
    let capture = empty_capture(&scratch);
    // A write to this file fails like a write to a full disk.
    let arguments = [
        "load",
        "replay",
        &capture,
        "--dry-run",
        "--output",
        "/dev/full",
    ];
    let (code, text) = output(&arguments).await;
    assert_eq!(code, Some(69), "{text}");
    assert!(text.contains("would send 0 commands"), "{text}");
    assert!(text.contains("seawall: /dev/full: "), "{text}");
}

/// The path of a capture without commands.
fn empty_capture(scratch: &Scratch) -> String {
    let writer = Writer::new(Vec::new(), Header::default()).unwrap();
    let mut end = End::default();
    end.set_reason(EndReason::Stopped);
    let part = writer.finish(end).unwrap();
    let file = scratch.write("empty.swc", part).unwrap();
    file.display().to_string()
}
