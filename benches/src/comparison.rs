//! The results of the bench `compare`: medians of the rounds, and the comparison with the previous
//! run.

use std::{collections::BTreeMap, fs, io, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::load::{Outcome, Work};

/// One load that all targets run in each round.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The part of the bench, for `--only`.
    pub part: &'static str,
    /// The operations.
    pub work: Work,
    /// Number of connections.
    pub connections: usize,
    /// Operations per second; `None` for a closed loop.
    pub rate: Option<f64>,
}

/// The result of one target in one round.
#[derive(Clone, Debug)]
pub struct Row {
    /// The target's name.
    pub target: String,
    /// The operations and their latencies.
    pub outcome: Outcome,
    /// User time of the proxy; zero for direct connections.
    pub user: Duration,
    /// System time of the proxy; zero for direct connections.
    pub system: Duration,
    /// User and system time of the server.
    pub server: Duration,
}

impl Row {
    fn micros(&self, time: Duration) -> f64 {
        let operations = u32::try_from(self.outcome.operations).unwrap_or(u32::MAX);
        time.as_secs_f64() * 1e6 / f64::from(operations)
    }
}

/// A value of one target and case in all rounds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Value {
    median: f64,
    worst: f64,
    best: f64,
}

/// The values of one target in one case. Ratios are to the direct connections of the same round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Values {
    /// Operations per second relative to direct connections.
    throughput: Value,
    /// Time that the target adds to the median latency, in microseconds.
    added_p50: Value,
    /// Time that the target adds to the p99, in microseconds.
    added_p99: Value,
    /// CPU time of the proxy per operation, in microseconds.
    cpu: Value,
    /// User time of the proxy per operation, in microseconds.
    user: Value,
    /// CPU time of the server per operation, in microseconds.
    server: Value,
}

/// The medians of all cases.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Medians {
    /// By part, connections or rate, and target.
    cases: BTreeMap<String, Values>,
}

impl Medians {
    /// The head of the tables that [`Self::add`] writes.
    pub const HEADER: &str = "| load | target | operations/s | ratio to direct (worst) | added p50 | added p99 | CPU (user) per operation | ratio to HAProxy | server CPU |\n|---|---|---|---|---|---|---|---|---|";

    /// True if no case of this part was added.
    pub fn is_first_of(&self, part: &str) -> bool {
        let prefix = format!("{part} ");
        !self.cases.keys().any(|key| key.starts_with(&prefix))
    }

    /// Adds the rounds of a case. The first row of each round is that of direct connections.
    /// Returns the lines of a table.
    pub fn add(&mut self, case: &Case, rounds: &[Vec<Row>]) -> Vec<String> {
        let load = match case.rate {
            Some(rate) => format!("{rate:.0}/s"),
            None => case.connections.to_string(),
        };
        let mut lines = Vec::new();
        for index in 0..rounds.first().map_or(0, Vec::len) {
            let each = |value: &dyn Fn(&Row, &Row) -> f64, is_better: fn(f64, f64) -> bool| {
                let rows = rounds
                    .iter()
                    .filter_map(|round| Some((round.get(index)?, round.first()?)));
                Value::of(
                    rows.map(|(row, direct)| value(row, direct)).collect(),
                    is_better,
                )
            };
            let less: fn(f64, f64) -> bool = |a, b| a < b;
            let added = |percent: usize| {
                move |row: &Row, direct: &Row| {
                    let micros = |row: &Row| row.outcome.percentile(percent).as_secs_f64() * 1e6;
                    micros(row) - micros(direct)
                }
            };
            let rate = |row: &Row, _: &Row| row.outcome.rate();
            let values = Values {
                throughput: each(
                    &|r, direct| r.outcome.rate() / direct.outcome.rate(),
                    |a, b| a > b,
                ),
                added_p50: each(&added(50), less),
                added_p99: each(&added(99), less),
                cpu: each(&|row, _| row.micros(row.user + row.system), less),
                user: each(&|row, _| row.micros(row.user), less),
                server: each(&|row, _| row.micros(row.server), less),
            };
            let target = rounds.first().and_then(|round| round.get(index));
            let target = target.map_or("", |row| &row.target);
            lines.push(format!(
                "| {load} | {target} | {:.0} | {:.2} ({:.2}) | {:.0} µs | {:.0} µs | {:.1} ({:.1}) µs | {:.2} | {:.1} µs |",
                each(&rate, |a, b| a > b).median,
                values.throughput.median,
                values.throughput.worst,
                values.added_p50.median,
                values.added_p99.median,
                values.cpu.median,
                values.user.median,
                to_haproxy(rounds, index),
                values.server.median,
            ));
            if index > 0 {
                self.cases
                    .insert(format!("{} {load} {target}", case.part), values);
            }
        }
        lines
    }

    /// Replaces the file of results with these medians. Returns a line for each value that has
    /// become worse than in the file, by more than the differences between the rounds.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn replace_previous(&self) -> io::Result<Vec<String>> {
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/results/compare.json"));
        let previous: Self = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error),
        };
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n")?;
        Ok(self.worse_than(&previous))
    }

    fn worse_than(&self, previous: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (case, now) in self
            .cases
            .iter()
            .filter(|(case, _)| !case.ends_with("HAProxy"))
        {
            let Some(before) = previous.cases.get(case) else {
                continue;
            };
            let pairs = [
                ("throughput", before.throughput, now.throughput, true),
                ("added p50", before.added_p50, now.added_p50, false),
                ("CPU", before.cpu, now.cpu, false),
                ("user time", before.user, now.user, false),
            ];
            for (name, before, now, more_is_better) in pairs {
                if now.is_worse_than(before, more_is_better) {
                    let (before, now) = (before.median, now.median);
                    lines.push(format!("WORSE: {case}: {name} {before:.2} -> {now:.2}"));
                }
            }
        }
        lines
    }
}

impl Value {
    fn of(mut values: Vec<f64>, is_better: fn(f64, f64) -> bool) -> Self {
        values.sort_by(f64::total_cmp);
        let end = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        let (least, most) = (end(0), end(values.len().saturating_sub(1)));
        let (worst, best) = match is_better(most, least) {
            true => (least, most),
            false => (most, least),
        };
        Self {
            median: end(values.len() / 2),
            worst,
            best,
        }
    }

    /// True if even the best round is worse than the previous median, and the worst previous round
    /// is better than the median.
    fn is_worse_than(self, before: Self, more_is_better: bool) -> bool {
        match more_is_better {
            true => self.best < before.median && self.median < before.worst,
            false => self.best > before.median && self.median > before.worst,
        }
    }
}

/// Median of the ratio of the proxy's CPU time per operation to that of HAProxy.
fn to_haproxy(rounds: &[Vec<Row>], index: usize) -> f64 {
    let cpu = |row: &Row| row.micros(row.user + row.system);
    let ratios = rounds.iter().filter_map(|round| {
        let other = round.iter().find(|row| row.target == "HAProxy")?;
        Some(cpu(round.get(index)?) / cpu(other))
    });
    Value::of(ratios.collect(), |a, b| a < b).median
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_worse_only_beyond_the_differences_between_rounds() {
        let value = |rounds: [f64; 3]| Value::of(rounds.to_vec(), |a, b| a < b);
        let before = value([10.0, 11.0, 12.0]);
        assert!(!value([10.5, 11.5, 13.0]).is_worse_than(before, false));
        assert!(!value([11.5, 11.9, 20.0]).is_worse_than(before, false));
        assert!(value([11.5, 12.5, 13.0]).is_worse_than(before, false));
        let rate = |rounds: [f64; 3]| Value::of(rounds.to_vec(), |a, b| a > b);
        assert!(rate([0.5, 0.6, 0.7]).is_worse_than(rate([0.8, 0.9, 1.0]), true));
        assert!(!rate([0.5, 0.6, 0.95]).is_worse_than(rate([0.8, 0.9, 1.0]), true));
    }
}
