//! A load of finds by `_id` in a closed loop over many connections. It checks each reply.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bson::rawdoc;
use seawall_transport::connection::Connection;
use seawall_wire::{Elements, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, encode_request};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::setup::DOCUMENTS;

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Operations whose reply had the right document.
    pub operations: u64,
    /// Time from the start of the first operation to the end of the last.
    pub elapsed: Duration,
    /// Latencies, sorted.
    pub latencies: Vec<Duration>,
}

impl Outcome {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        f64::from(u32::try_from(self.operations).unwrap_or(u32::MAX)) / self.elapsed.as_secs_f64()
    }

    /// The latency that `percent` percent of the operations do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.latencies.len() * percent).div_ceil(100).max(1);
        self.latencies.get(rank - 1).copied().unwrap_or_default()
    }
}

/// Runs the load over `connections` for `time`. Returns the result and the connections.
pub async fn run(
    connections: Vec<Connection>,
    collection: &'static str,
    time: Duration,
) -> (Outcome, Vec<Connection>) {
    let stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, connection) in connections.into_iter().enumerate() {
        let first = i32::try_from(number).unwrap_or(0) * 37;
        tasks.spawn(one(connection, collection, first, Arc::clone(&stop)));
    }
    sleep(time).await;
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
    collection: &'static str,
    first: i32,
    stop: Arc<AtomicBool>,
) -> (Connection, Vec<Duration>) {
    let mut latencies = Vec::new();
    let mut buffer = Vec::new();
    let mut number = first;
    while !stop.load(Ordering::Relaxed) {
        number = number.wrapping_add(1);
        let id = number.rem_euclid(DOCUMENTS);
        let command = rawdoc! {
            "find": collection, "filter": { "_id": id }, "limit": 1, "singleBatch": true,
            "$db": "bench",
        };
        let request = encode_request(number, command.as_bytes());
        let began = Instant::now();
        connection
            .stream
            .write_all(&request)
            .await
            .expect("the request can be written");
        read_reply(&mut connection, &mut buffer, number).await;
        latencies.push(began.elapsed());
        assert_eq!(
            found_id(&buffer),
            Some(i64::from(id)),
            "the reply has another document"
        );
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
        }
        let read = connection
            .stream
            .read_buf(buffer)
            .await
            .expect("the reply can be read");
        assert_ne!(read, 0, "the connection was closed");
    }
}

fn found_id(reply: &[u8]) -> Option<i64> {
    let body = reply.get(HEADER_BYTES + 5..)?;
    let cursor = Elements::find(body, "cursor")?.value.as_document()?;
    let batch = Elements::find(cursor, "firstBatch")?;
    let seawall_wire::ElementKind::Array(batch) = batch.value else {
        return None;
    };
    let first = Elements::of(batch).next()?.ok()?.value.as_document()?;
    Elements::find(first, "_id")?.value.as_i64()
}
