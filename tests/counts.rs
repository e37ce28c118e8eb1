//! Counts how many locks whole operations take, how often they allocate memory, and how many
//! instructions they execute. Only the locks and allocations of the test's thread are counted. On
//! this thread, Seawall serves the clients. The servers run on other threads.
//!
//! Locks inside of other crates, such as tokio, are not counted. A background task can add to the
//! count of an operation, for example when the task collects the statistics. So each test takes the
//! lowest of several counts.
//!
//! `docs/performance.md` ("Many cores") has the same numbers.

// Only builds with debug assertions count locks.
#![cfg(debug_assertions)]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this file contains only tests"
)]

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use allocation_counter::measure;
use bson::{Document, RawDocument, doc};
use seawall::client::Peer;
use seawall_locks::{LockCounts, count};
use seawall_tests::{eventually::eventually, seawall::Seawall};
use seawall_transport::{MemoryBudget, MessageReader, Stream};
use seawall_wire::{
    HEADER_BYTES, MAX_MESSAGE_BYTES, OpCode, OpMsg, OpQuery, encode_op_msg_like, encode_op_reply,
    encode_request,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    runtime::{Builder, Runtime},
    sync::Semaphore,
};

const LIMIT: Duration = Duration::from_secs(20);

/// Number of times that an operation, or a pair of operations, is repeated. The test uses only the
/// repetition with the fewest locks (or the fewest allocations).
const RUNS: usize = 20;

/// The server delays its reply to a find with this `_id` until the test calls [`Server::release`].
const HELD_ID: i32 = -1;

/// The pool has one connection, so a second operation waits until the first one ends.
/// `pool.concurrency = 1` alone would not suffice, because a long operation becomes exempt from
/// this limit. With the large `local_threshold_ms`, all servers are suitable even if their
/// round-trip times differ.
const CONFIGURATION: &str = "auth.credentials = \"none\"
deployment.local_threshold_ms = 60000
pool.max_pool_size = 1
pool.concurrency = 1
runtime.worker_threads = 1
";

/// The number of locks that a find takes if a connection is available, by source file.
const LOCKS_OF_FIND: [(&str, u64); 3] = [
    // One lock to find the statistics rows of the command, one to count the finished operation.
    ("proxy/src/observe/recorder.rs", 2),
    // One lock to record how long the checkout took.
    ("proxy/src/observe/servers.rs", 1),
    // One lock for the checkout, one for the check-in.
    ("proxy/src/pool/mod.rs", 2),
];

#[test]
fn a_find_takes_five_locks() {
    let scene = Scene::start(&[ServerKind::Standalone]);
    let mut client = scene.connect();
    let find = find_by_id(1);
    let locks = scene.lowest(async || client.exchange(&find).await);
    assert_locks(&locks, &LOCKS_OF_FIND);
}

#[test]
fn selection_between_two_servers_takes_two_additional_locks() {
    let scene = Scene::start(&[ServerKind::Router, ServerKind::Router]);
    let mut client = scene.connect();
    let find = find_by_id(1);
    let locks = scene.lowest(async || client.exchange(&find).await);
    // Server selection compares the loads of the two pools, and takes one lock to read each load.
    let [recorder, servers, (pool, of_pool)] = LOCKS_OF_FIND;
    assert_locks(&locks, &[recorder, servers, (pool, of_pool + 2)]);
}

#[test]
fn a_find_that_waits_for_a_connection_takes_as_many_locks_as_any_other_find() {
    let scene = Scene::start(&[ServerKind::Standalone]);
    let [mut first, mut second] = [scene.connect(), scene.connect()];
    let [held, find] = [HELD_ID, 1].map(find_by_id);
    let locks = scene.lowest(async || {
        first.send(&held).await;
        scene.eventually(|| scene.servers[0].held() == 1).await;
        second.send(&find).await;
        scene.eventually(|| scene.wait_queue() == 1).await;
        scene.servers[0].release();
        first.read_reply().await;
        second.read_reply().await;
    });
    let of_two_finds = LOCKS_OF_FIND.map(|(file, taken)| (file, 2 * taken));
    assert_locks(&locks, &of_two_finds);
}

#[test]
fn a_find_allocates_three_times() {
    let scene = Scene::start(&[ServerKind::Standalone]);
    let mut client = scene.connect();
    let find = find_by_id(1);
    let allocations = (0..RUNS).map(|_| {
        let work = || scene.runtime.block_on(client.exchange(&find));
        measure(work).count_total
    });
    // One allocation each for the message, the future that serves it, and the reply.
    assert_eq!(allocations.min(), Some(3));
}

/// The number of instructions that the task that serves a client executes for one find, in a build
/// for tests. Recorded with Rust 1.95 on x86-64.
const INSTRUCTIONS_OF_FIND: u64 = 97_000;

#[test]
#[ignore = "valgrind needs several seconds; .ci/run runs this test"]
fn the_instructions_of_a_find_are_near_the_recorded_number() {
    let Some(counted) = instructions("a_find_allocates_three_times") else {
        return;
    };
    let finds = u64::try_from(RUNS).unwrap() + 1;
    let (of_find, recorded) = (counted / finds, INSTRUCTIONS_OF_FIND);
    assert!(
        of_find.abs_diff(recorded) <= recorded / 10,
        "{of_find} instructions, recorded {recorded}; `callgrind_annotate --inclusive=yes {CALLS}` \
         lists the functions"
    );
}

/// The file into which valgrind writes the number of instructions of each function.
const CALLS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/find.callgrind");

/// Runs a test of this file under valgrind, and counts the instructions of the task that serves the
/// test's client. `None` if the machine is not x86-64.
#[expect(
    clippy::print_stdout,
    reason = "prints that no instructions are counted"
)]
fn instructions(test: &str) -> Option<u64> {
    if !cfg!(target_arch = "x86_64") {
        println!("instructions are not counted: the recorded number is for x86-64");
        return None;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "--tool=callgrind",
        "--toggle-collect=seawall*::client::Client::run::*",
    ]);
    valgrind.arg(format!("--callgrind-out-file={CALLS}"));
    valgrind.arg(std::env::current_exe().unwrap());
    let output = valgrind.args(["--exact", test]).output();
    let output = output.expect("valgrind is installed (tests/drivers/install benches)");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let counted = text.split("Collected : ").nth(1).unwrap();
    Some(counted.lines().next().unwrap().trim().parse().unwrap())
}

/// Asserts how many locks the code in each source file took.
#[track_caller]
fn assert_locks(counted: &LockCounts, expected: &[(&str, u64)]) {
    let expected: BTreeMap<_, _> = expected.iter().copied().collect();
    assert_eq!(counted.by_file(), expected, "all locks:\n{counted}");
}

/// Seawall in front of one or several servers.
struct Scene {
    /// Runs the clients, and Seawall's tasks that serve them, on the test's thread.
    runtime: Runtime,
    seawall: Seawall,
    servers: Vec<Server>,
}

impl Scene {
    fn start(kinds: &[ServerKind]) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let servers: Vec<_> = kinds.iter().map(|kind| Server::start(*kind)).collect();
        let addresses = servers.iter().map(|server| server.address.to_string());
        let uri = format!("mongodb://{}/", addresses.collect::<Vec<_>>().join(","));
        let seawall = runtime.block_on(Seawall::start_configured(&uri, CONFIGURATION));
        let scene = Self {
            runtime,
            seawall,
            servers,
        };
        let all_are_known = scene.eventually(|| scene.usable_servers() == kinds.len());
        scene.runtime.block_on(all_are_known);
        scene
    }

    fn usable_servers(&self) -> usize {
        let snapshot = self.seawall.app.topology().snapshot();
        let servers = snapshot.description.servers.iter();
        servers.filter(|server| server.is_usable()).count()
    }

    /// Connects a client, starts the task that serves it, and waits for the reply to a first find.
    fn connect(&self) -> Client {
        let _in_runtime = self.runtime.enter();
        let (near, far) = UnixStream::pair().unwrap();
        let peer = Peer {
            ip: None,
            text: "counted".into(),
        };
        let served = self.seawall.app.serve(Stream::Unix(near), peer);
        self.runtime.spawn(served.expect("a permit is free"));
        let mut client = Client(far);
        self.runtime.block_on(client.exchange(&find_by_id(1)));
        client
    }

    /// Runs `work` several times, and returns the lowest count of locks.
    fn lowest(&self, mut work: impl AsyncFnMut()) -> LockCounts {
        let counts = (0..RUNS).map(|_| count(|| self.runtime.block_on(work())).1);
        counts.min_by_key(LockCounts::total).unwrap()
    }

    async fn eventually(&self, is_true: impl Fn() -> bool) {
        // The condition belongs to no operation. So this `count` hides the condition's locks from
        // the outer `count` in `lowest`.
        let attempt = async || count(&is_true).0;
        eventually(LIMIT, attempt).await.unwrap();
    }

    fn wait_queue(&self) -> usize {
        let snapshot = self.seawall.app.topology().snapshot();
        let pools = snapshot.pools.iter();
        pools.map(|pool| pool.snapshot().wait_queue).sum()
    }
}

fn find_by_id(id: i32) -> Vec<u8> {
    let find = doc! { "find": "users", "filter": { "_id": id }, "$db": "shop" };
    encode_request(1, &find.to_vec().unwrap())
}

/// A client that adds nothing to the counts while it waits for a reply: it allocates no memory, and
/// takes only locks that are not counted.
struct Client(UnixStream);

impl Client {
    async fn exchange(&mut self, message: &[u8]) {
        self.send(message).await;
        self.read_reply().await;
    }

    async fn send(&mut self, message: &[u8]) {
        self.0.write_all(message).await.unwrap();
    }

    async fn read_reply(&mut self) {
        let mut reply = [0; 200];
        self.0.read_exact(&mut reply[..HEADER_BYTES]).await.unwrap();
        let length = u32::from_le_bytes(reply[..4].try_into().unwrap());
        let body = &mut reply[HEADER_BYTES..usize::try_from(length).unwrap()];
        self.0.read_exact(body).await.unwrap();
        let body = RawDocument::from_bytes(&body[5..]).unwrap();
        assert_eq!(body.get_f64("ok").unwrap(), 1.0, "{body:?}");
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerKind {
    Standalone,
    Router,
}

/// A server on a thread of its own. Dropping it ends the thread.
struct Server {
    address: SocketAddr,
    held: Arc<HeldReplies>,
    _runtime: Runtime,
}

/// The state of the replies that the server delays.
struct HeldReplies {
    count: AtomicUsize,
    released: Semaphore,
}

impl Server {
    fn start(kind: ServerKind) -> Self {
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let held = Arc::new(HeldReplies {
            count: AtomicUsize::new(0),
            released: Semaphore::new(0),
        });
        let delays = Arc::clone(&held);
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(reply_to_all(stream, kind, Arc::clone(&delays)));
            }
        });
        Self {
            address,
            held,
            _runtime: runtime,
        }
    }

    /// Number of replies that the server delays now.
    fn held(&self) -> usize {
        self.held.count.load(Ordering::SeqCst)
    }

    /// Allows the server to send one delayed reply.
    fn release(&self) {
        self.held.released.add_permits(1);
    }
}

/// Replies to the commands on a connection until the connection ends.
async fn reply_to_all(mut stream: TcpStream, kind: ServerKind, held: Arc<HeldReplies>) {
    let budget = MemoryBudget::of_bytes(1 << 20);
    let mut reader = MessageReader::default();
    while let Ok(Some(message)) = reader.next(&mut stream, MAX_MESSAGE_BYTES, &budget).await {
        let id = message.header.request_id;
        let reply = match message.header.op_code {
            OpCode::Msg => {
                let command = OpMsg::parse(&message.bytes).unwrap().body;
                let command = RawDocument::from_bytes(command).unwrap();
                let filter = command.get_document("filter");
                if filter.and_then(|filter| filter.get_i32("_id")).ok() == Some(HELD_ID) {
                    held.count.fetch_add(1, Ordering::SeqCst);
                    held.released.acquire().await.unwrap().forget();
                    held.count.fetch_sub(1, Ordering::SeqCst);
                }
                encode_op_msg_like(0, 1, id, &reply_to(command, kind).to_vec().unwrap())
            }
            // The driver's monitor sends its first hello as an OP_QUERY.
            _ => {
                let hello = OpQuery::parse(&message.bytes).unwrap().query;
                let reply = reply_to(RawDocument::from_bytes(hello).unwrap(), kind);
                encode_op_reply(0, 1, id, &reply.to_vec().unwrap())
            }
        };
        if stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}

fn reply_to(command: &RawDocument, kind: ServerKind) -> Document {
    let (name, _) = command.iter().next().unwrap().unwrap();
    if name.as_str() == "find" {
        let cursor = doc! { "id": 0_i64, "ns": "shop.users", "firstBatch": [{ "_id": 1 }] };
        return doc! { "cursor": cursor, "ok": 1.0 };
    }
    // The reply to `hello`. Other commands get it too, because their replies need no other fields.
    let mut hello = doc! {
        "isWritablePrimary": true, "ismaster": true, "helloOk": true,
        "minWireVersion": 0, "maxWireVersion": 17, "maxBsonObjectSize": 16_777_216,
        "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000, "ok": 1.0,
    };
    if kind == ServerKind::Router {
        hello.insert("msg", "isdbgrid");
    }
    hello
}
