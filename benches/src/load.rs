//! A load generator: runs operations on many connections and checks each reply.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bson::{RawDocumentBuf, oid::ObjectId, rawdoc};
use seawall_transport::connection::Connection;
use seawall_wire::{
    ElementKind, Elements, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, encode_request,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

/// The database that contains all collections of the loads in this module.
pub const DATABASE: &str = "bench";

/// A collection whose documents have the same size and the `_id`s 0, 1, 2 and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection {
    /// The collection's name.
    pub name: &'static str,
    /// Number of documents.
    pub documents: i32,
    /// Size of the field `text` of each document, in bytes.
    pub bytes: usize,
}

/// Documents of 100 bytes.
pub const SMALL: Collection = Collection {
    name: "small",
    documents: 1_000,
    bytes: 100,
};

/// Documents of 16 KiB.
pub const LARGE: Collection = Collection {
    name: "large",
    documents: 1_000,
    bytes: 16 * 1024,
};

/// Documents of 1 MiB.
pub const HUGE: Collection = Collection {
    name: "huge",
    documents: 16,
    bytes: 1024 * 1024,
};

/// Documents of 100 bytes for [`Work::TenthSlow`]. The bench makes the finds in this collection
/// slow.
pub const SLOW: Collection = Collection {
    name: "slow",
    documents: 1_000,
    bytes: 100,
};

/// The operations of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Finds by `_id`.
    Finds(Collection),
    /// Finds by `_id`: one in ten in [`SLOW`], the others in [`SMALL`].
    TenthSlow,
    /// 60 % finds by `_id`, 20 % inserts, 15 % updates by `_id` and 5 % aggregations. Each
    /// aggregation reads ten documents. All documents are small.
    Mixed,
}

/// The expected reply to a command.
enum Expected {
    /// A cursor whose first document has this `_id`.
    Id(i32),
    /// The reply to a write: the server wrote one document (`n: 1`).
    OneWritten,
    /// A cursor whose first document has `n: 10`, because the aggregation counted ten documents.
    GroupOfTen,
}

impl Work {
    fn command(self, number: i32) -> (RawDocumentBuf, Expected) {
        let (collection, step) = match self {
            Self::Finds(collection) => (collection, 0),
            Self::TenthSlow if number.rem_euclid(10) == 0 => (SLOW, 0),
            Self::TenthSlow => (SMALL, 0),
            Self::Mixed => (SMALL, number.rem_euclid(20)),
        };
        // With the factor 37, consecutive numbers do not give adjacent `_id`s. 37 and the number of
        // documents have no common divisor, so consecutive numbers reach every `_id`.
        let id = number.wrapping_mul(37).rem_euclid(collection.documents);
        match step {
            12..16 => {
                let document = rawdoc! {"_id": ObjectId::new(), "n": number};
                let command =
                    rawdoc! {"insert": "inserted", "documents": [document], "$db": DATABASE};
                (command, Expected::OneWritten)
            }
            16..19 => {
                let update = rawdoc! {"q": {"_id": id}, "u": {"$inc": {"n": 1}}};
                let command =
                    rawdoc! {"update": collection.name, "updates": [update], "$db": DATABASE};
                (command, Expected::OneWritten)
            }
            19 => {
                let first = id.min(collection.documents - 10);
                let range = rawdoc! {"_id": {"$gte": first, "$lt": first + 10}};
                let group = rawdoc! {"_id": 0, "n": {"$sum": 1}};
                let command = rawdoc! {
                    "aggregate": collection.name,
                    "pipeline": [{"$match": range}, {"$group": group}],
                    "cursor": {}, "$db": DATABASE,
                };
                (command, Expected::GroupOfTen)
            }
            _ => {
                let command = rawdoc! {
                    "find": collection.name, "filter": {"_id": id}, "limit": 1,
                    "singleBatch": true, "$db": DATABASE,
                };
                (command, Expected::Id(id))
            }
        }
    }
}

impl Expected {
    fn matches(&self, reply: &[u8]) -> bool {
        let Some(body) = reply.get(HEADER_BYTES + 5..) else {
            return false;
        };
        match self {
            Self::Id(id) => first(body, "_id") == Some(i64::from(*id)),
            Self::GroupOfTen => first(body, "n") == Some(10),
            Self::OneWritten => Elements::find(body, "n").and_then(|n| n.value.as_i64()) == Some(1),
        }
    }
}

/// Finds the first document that a reply with a cursor contains. Returns the number in the field
/// `name` of this document.
fn first(body: &[u8], name: &str) -> Option<i64> {
    let cursor = Elements::find(body, "cursor")?.value.as_document()?;
    let batch = Elements::find(cursor, "firstBatch")?;
    let ElementKind::Array(batch) = batch.value else {
        return None;
    };
    let first = Elements::of(batch).next()?.ok()?.value.as_document()?;
    Elements::find(first, name)?.value.as_i64()
}

/// The result of a load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Number of operations whose reply was right.
    pub operations: u64,
    /// Time from the start of the first operation to the end of the last.
    pub elapsed: Duration,
    /// The latency of each operation, in ascending order.
    pub latencies: Vec<Duration>,
}

impl Outcome {
    /// The average number of operations per second.
    pub fn rate(&self) -> f64 {
        f64::from(u32::try_from(self.operations).unwrap_or(u32::MAX)) / self.elapsed.as_secs_f64()
    }

    /// The latency that `percent` percent of the operations do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.latencies.len() * percent).div_ceil(100).max(1);
        self.latencies.get(rank - 1).copied().unwrap_or_default()
    }
}

/// A load: its operations, its rate and its duration.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The operations that the load runs.
    pub work: Work,
    /// Operations per second of all connections together. `None` for a closed loop: each connection
    /// sends an operation as soon as the previous one has ended.
    pub rate: Option<f64>,
    /// The time for which the load sends operations.
    pub time: Duration,
}

/// Runs a load over `connections`. Returns the result and the connections.
pub async fn run(connections: Vec<Connection>, load: Load) -> (Outcome, Vec<Connection>) {
    let stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let count = u32::try_from(connections.len()).unwrap_or(u32::MAX);
    let interval = load
        .rate
        .map(|rate| Duration::from_secs_f64(f64::from(count) / rate));
    let mut tasks = JoinSet::new();
    for (number, connection) in (0..).zip(connections) {
        let due = interval.map(|interval| (began + interval * number / count, interval));
        let stop = Arc::clone(&stop);
        tasks.spawn(one(connection, load.work, number, due, stop));
    }
    sleep(load.time).await;
    stop.store(true, Ordering::Relaxed);
    let mut outcome = Outcome {
        operations: 0,
        elapsed: Duration::ZERO,
        latencies: Vec::new(),
    };
    let mut back = Vec::new();
    while let Some(done) = tasks.join_next().await {
        let (connection, latencies) = done.expect("every reply was right");
        outcome.operations += u64::try_from(latencies.len()).unwrap_or(0);
        outcome.latencies.extend(latencies);
        back.push(connection);
    }
    outcome.elapsed = began.elapsed();
    outcome.latencies.sort_unstable();
    (outcome, back)
}

async fn one(
    mut connection: Connection,
    work: Work,
    first: u32,
    mut due: Option<(Instant, Duration)>,
    stop: Arc<AtomicBool>,
) -> (Connection, Vec<Duration>) {
    let mut latencies = Vec::new();
    let mut buffer = Vec::new();
    let mut number = i32::try_from(first).unwrap_or(0);
    while !stop.load(Ordering::Relaxed) {
        // If the previous operation ended too late, the latency of this operation includes the
        // delay.
        let mut overdue_since = None;
        if let Some((at, interval)) = &mut due {
            match Instant::now() < *at {
                true => sleep_until(*at).await,
                false => overdue_since = Some(*at),
            }
            *at += *interval;
        }
        number = number.wrapping_add(1);
        let (command, expected) = work.command(number);
        let request = encode_request(number, command.as_bytes());
        let began = overdue_since.unwrap_or_else(Instant::now);
        connection
            .stream
            .write_all(&request)
            .await
            .expect("the request can be written");
        read_reply(&mut connection, &mut buffer, number).await;
        latencies.push(began.elapsed());
        assert!(expected.matches(&buffer), "wrong reply to {command:?}");
    }
    (connection, latencies)
}

async fn read_reply(connection: &mut Connection, buffer: &mut Vec<u8>, request_id: i32) {
    buffer.clear();
    loop {
        if let Some(head) = buffer.first_chunk::<HEADER_BYTES>() {
            let header = Header::parse(head, MAX_MESSAGE_BYTES).expect("the header is valid");
            assert_eq!(header.response_to, request_id, "a reply to another request");
            if buffer.len() >= header.message_length {
                return;
            }
            buffer.reserve(header.message_length - buffer.len());
        }
        let read = connection
            .stream
            .read_buf(buffer)
            .await
            .expect("the reply can be read");
        assert_ne!(read, 0, "the connection was closed");
    }
}
