//! Reads the durations of all operations from the slow log. They are the true values with which the
//! bench compares the statistics that Seawall reports.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    time::Duration,
};

use seawall_api::Phases;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::sleep;

use super::{count, float};

/// Time between two reads at the end of a log that Seawall is still writing.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The log counts as complete when this many consecutive reads have found no further line. At
/// [`POLL_INTERVAL`], this takes five seconds.
const MAX_EMPTY_READS: u32 = 50;

/// The fields that the bench reads from a line of the slow log about one operation.
#[derive(Debug, Deserialize)]
struct Operation {
    collection: String,
    command: String,
    /// The id of the operation's shape, if the operation is counted in a row of the shape table
    /// that several shapes share. `None` if the shape has its own row: then `shape` is the shape's
    /// id.
    fine_shape: Option<String>,
    outcome: String,
    /// The durations of the phases in milliseconds. They add up to the total time.
    phases_ms: Phases,
    server: String,
    /// The id of the row that counts the operation in the shape table.
    shape: String,
    total_ms: f64,
}

/// The names of a command and of a collection.
pub type Namespace = (String, String);

/// The contents of a slow log.
#[derive(Debug, Default)]
pub struct Logged {
    /// Number of lines about operations.
    pub lines: u64,
    /// Number of lines that Seawall dropped. The other lines report it in their field `left_out`.
    pub dropped: u64,
    /// Number of operations whose outcome is not `ok`.
    pub not_ok: u64,
    /// Number of lines in which the total time differs from the sum of the phases.
    pub unequal_totals: u64,
    /// Durations of operations, by the id of their shape.
    pub shapes: HashMap<String, LoggedDurations>,
    /// Durations of operations, by namespace.
    pub namespaces: HashMap<Namespace, LoggedDurations>,
    /// Durations of the `server` phase, by server.
    pub servers: HashMap<String, LoggedDurations>,
}

impl Logged {
    /// Reads lines while Seawall writes them, until `expected` operations are logged or counted as
    /// dropped, or until no line is added for five seconds. Then sorts the durations.
    ///
    /// # Panics
    /// If the file cannot be read.
    pub async fn read(path: &Path, expected: u64) -> Self {
        let mut logged = Self::default();
        let mut file = BufReader::new(File::open(path).expect("the log can be opened"));
        let (mut line, mut empty_reads) = (Vec::new(), 0);
        while logged.lines + logged.dropped < expected && empty_reads < MAX_EMPTY_READS {
            let read = file.read_until(b'\n', &mut line);
            if read.expect("the log can be read") == 0 || !line.ends_with(b"\n") {
                empty_reads += 1;
                sleep(POLL_INTERVAL).await;
                continue;
            }
            empty_reads = 0;
            logged.add(&line);
            line.clear();
        }
        let all = logged.shapes.values_mut();
        let all = all.chain(logged.namespaces.values_mut());
        all.chain(logged.servers.values_mut())
            .for_each(LoggedDurations::sort);
        logged
    }

    fn add(&mut self, line: &[u8]) {
        let line: Value = serde_json::from_slice(line).expect("the line is JSON");
        self.dropped += line.get("left_out").and_then(Value::as_u64).unwrap_or(0);
        if line.get("shape").is_none() {
            return;
        }
        let operation: Operation = serde_json::from_value(line).expect("the line has all fields");
        let phases = operation.phases_ms.named();
        let total_ns: u64 = phases.iter().map(|(_, ms)| nanoseconds(*ms)).sum();
        let server_ns = nanoseconds(operation.phases_ms.server);
        self.lines += 1;
        self.not_ok += u64::from(operation.outcome != "ok");
        self.unequal_totals += u64::from(nanoseconds(operation.total_ms) != total_ns);
        let namespace = (operation.command, operation.collection);
        // If `shape` is a row that counts several shapes together, `fine_shape` has the id of the
        // operation's own shape.
        let shape = operation.fine_shape.unwrap_or(operation.shape);
        add(&mut self.shapes, shape, total_ns);
        add(&mut self.namespaces, namespace, total_ns);
        add(&mut self.servers, operation.server, server_ns);
    }
}

fn add<K: std::hash::Hash + Eq>(all: &mut HashMap<K, LoggedDurations>, key: K, ns: u64) {
    all.entry(key).or_default().0.push(ns);
}

/// Converts milliseconds to nanoseconds. Times in the log have six decimals of a millisecond, so
/// they are whole nanoseconds.
#[expect(
    clippy::as_conversions,
    reason = "the value is rounded, not negative, and far under 2^53"
)]
fn nanoseconds(ms: f64) -> u64 {
    assert!(ms >= 0.0, "{ms}");
    (ms * 1e6).round() as u64
}

/// Durations in nanoseconds. [`Logged::read`] returns them in ascending order.
#[derive(Clone, Debug, Default)]
pub struct LoggedDurations(Vec<u64>);

impl LoggedDurations {
    fn sort(&mut self) {
        self.0.sort_unstable();
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        count(self.0.len())
    }

    /// The sum of the durations in milliseconds.
    pub fn sum_ms(&self) -> f64 {
        float(self.0.iter().sum()) / 1e6
    }

    /// The longest duration in milliseconds.
    pub fn max_ms(&self) -> f64 {
        float(self.0.last().copied().unwrap_or(0)) / 1e6
    }

    /// The nearest-rank quantile of the durations, in milliseconds. For example, `per_mille` is 990
    /// for the 99th percentile.
    pub fn quantile_ms(&self, per_mille: usize) -> f64 {
        let rank = (self.0.len() * per_mille).div_ceil(1_000).max(1);
        float(self.0.get(rank - 1).copied().unwrap_or(0)) / 1e6
    }
}
