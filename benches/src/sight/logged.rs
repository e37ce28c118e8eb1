//! Every single operation as the slow log tells it: what sums and distributions are held against.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    time::Duration,
};

use serde_json::Value;
use tokio::time::sleep;

use super::{
    count, float,
    seawall::{number, text},
};

/// Time between two looks at a log that is still written.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// So many looks without another line are enough: five seconds.
const QUIET_LOOKS: u32 = 50;

/// The phases of an operation, which add up to its time.
const PHASES: [&str; 6] = [
    "/phases_ms/permit",
    "/phases_ms/checkout",
    "/phases_ms/forward",
    "/phases_ms/server",
    "/phases_ms/receive",
    "/phases_ms/send",
];

/// Command and collection.
pub type Namespace = (String, String);

/// All lines of a log.
#[derive(Debug, Default)]
pub struct Logged {
    /// Lines of operations.
    pub lines: u64,
    /// Lines that were left out, as others tell.
    pub left_out: u64,
    /// Lines of operations that did not end well.
    pub not_ok: u64,
    /// Lines whose total is not the sum of their phases.
    pub not_added_up: u64,
    /// Whole operations, by the id of their shape.
    pub shapes: HashMap<String, Durations>,
    /// Whole operations by namespace.
    pub namespaces: HashMap<Namespace, Durations>,
    /// The `server` phase, by server.
    pub servers: HashMap<String, Durations>,
}

impl Logged {
    /// Reads so many lines, as they come, and sorts what is in them.
    ///
    /// # Panics
    /// If the file cannot be read.
    pub async fn read(path: &Path, expected: u64) -> Self {
        let mut logged = Self::default();
        let mut file = BufReader::new(File::open(path).expect("there is a log"));
        let (mut line, mut quiet) = (Vec::new(), 0);
        while logged.lines + logged.left_out < expected && quiet < QUIET_LOOKS {
            let read = file.read_until(b'\n', &mut line);
            if read.expect("the log can be read") == 0 || !line.ends_with(b"\n") {
                quiet += 1;
                sleep(LOOK_AGAIN_AFTER).await;
                continue;
            }
            quiet = 0;
            logged.add(&line);
            line.clear();
        }
        let all = logged.shapes.values_mut();
        let all = all.chain(logged.namespaces.values_mut());
        all.chain(logged.servers.values_mut())
            .for_each(Durations::sort);
        logged
    }

    fn add(&mut self, line: &[u8]) {
        let line: Value = serde_json::from_slice(line).expect("a line is JSON");
        self.left_out += line.get("left_out").and_then(Value::as_u64).unwrap_or(0);
        if line.get("shape").is_none() {
            return;
        }
        let phases = PHASES.map(|phase| nanoseconds(&line, phase));
        let total_ns: u64 = phases.iter().sum();
        let [_, _, _, server_ns, ..] = phases;
        self.lines += 1;
        self.not_ok += u64::from(text(&line, "/outcome") != "ok");
        self.not_added_up += u64::from(nanoseconds(&line, "/total_ms") != total_ns);
        let owned = |pointer| text(&line, pointer).to_owned();
        let namespace = (owned("/command"), owned("/collection"));
        // What counts in the row of several has an id of its own all the same.
        let is_folded = line.get("fine_shape").is_some();
        let shape = owned(if is_folded { "/fine_shape" } else { "/shape" });
        add(&mut self.shapes, shape, total_ns);
        add(&mut self.namespaces, namespace, total_ns);
        add(&mut self.servers, owned("/server"), server_ns);
    }
}

fn add<K: std::hash::Hash + Eq>(all: &mut HashMap<K, Durations>, key: K, ns: u64) {
    all.entry(key).or_default().0.push(ns);
}

/// Milliseconds with six decimals are whole nanoseconds.
#[expect(
    clippy::as_conversions,
    reason = "rounded, not negative, and far under 2^53"
)]
fn nanoseconds(line: &Value, pointer: &str) -> u64 {
    let ms = number(line, pointer);
    assert!(ms >= 0.0, "{pointer}: {line}");
    (ms * 1e6).round() as u64
}

/// Every one of some durations, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Durations(Vec<u64>);

impl Durations {
    fn sort(&mut self) {
        self.0.sort_unstable();
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        count(self.0.len())
    }

    /// What they come to, in milliseconds.
    pub fn sum_ms(&self) -> f64 {
        float(self.0.iter().sum()) / 1e6
    }

    /// The longest, in milliseconds.
    pub fn max_ms(&self) -> f64 {
        float(self.0.last().copied().unwrap_or(0)) / 1e6
    }

    /// What so many in a thousand do not exceed (nearest rank), in milliseconds.
    pub fn quantile_ms(&self, per_mille: usize) -> f64 {
        let rank = (self.0.len() * per_mille).div_ceil(1_000).max(1);
        float(self.0.get(rank - 1).copied().unwrap_or(0)) / 1e6
    }
}
