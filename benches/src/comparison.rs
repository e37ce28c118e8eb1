//! The results of the bench `compare`: medians of the rounds, and the comparison with the previous
//! run.

use std::{collections::BTreeMap, fs, io, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    load::{Outcome, Work},
    process::CPU_TICK,
    run::Run,
    setup::{HAPROXY, RELAY},
    spread::Spread,
};

/// Differences between two runs are reported only if they are at least this share of the earlier
/// median.
const LEAST_CHANGE: f64 = 0.05;

/// The noise of a value that is measured once and depends on the timing, as a share of the value.
/// Such a value has no rounds from which its noise can be computed.
const TIMING_NOISE: f64 = 0.05;

/// One load, which runs at each target in each round.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The part of the bench, for `--only`.
    pub part: &'static str,
    /// The operations that the load runs.
    pub work: Work,
    /// Number of connections of the load.
    pub connections: usize,
    /// Operations per second of all connections together. `None` for a closed loop: each connection
    /// sends an operation as soon as the previous one has ended.
    pub rate: Option<f64>,
}

/// The result of one target in one round.
#[derive(Clone, Debug)]
pub struct Row {
    /// The target's name.
    pub target: String,
    /// The number of operations, and their latencies.
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

    /// User and system time of the proxy.
    fn cpu(&self) -> Duration {
        self.user + self.system
    }
}

/// The direction in which values improve: larger or smaller.
#[derive(Clone, Copy, Debug)]
enum Better {
    More,
    Less,
}

/// One measured figure of one target in one case: its median, worst and best value of all rounds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Value {
    median: f64,
    worst: f64,
    best: f64,
    /// Half of the difference between the quartiles of the rounds. If the value is a CPU time, its
    /// noise is at least one tick ([`CPU_TICK`]), because the kernel counts CPU time in ticks.
    noise: f64,
}

/// The values of one target in one case. Each ratio to another target is computed from two values
/// of the same round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Values {
    /// Operations per second.
    rate: Value,
    /// Operations per second relative to direct connections.
    throughput: Value,
    /// Time that the target adds to the median latency, in microseconds.
    added_p50: Value,
    /// Time that the target adds to the 99th percentile of the latency, in microseconds.
    added_p99: Value,
    /// CPU time of the proxy per operation, in microseconds.
    cpu: Value,
    /// User time of the proxy per operation, in microseconds.
    user: Value,
    /// CPU time of the server per operation, in microseconds.
    server: Value,
    /// CPU time of the proxy per operation relative to HAProxy. `None` without HAProxy.
    cpu_to_haproxy: Option<Value>,
    /// CPU time of the proxy per operation relative to the relay, a process that only copies bytes
    /// between client and server. `None` without the relay.
    cpu_to_relay: Option<Value>,
}

/// CPU time and memory of a proxy that runs no operations. The memory is measured once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Idle {
    /// CPU time without clients in each window of the measurement, in percent of a core.
    pub cpu_percents: Vec<f64>,
    /// Resident memory before the idle clients connect, in bytes.
    pub start_bytes: f64,
    /// Growth of the resident memory per idle client, in bytes.
    pub bytes_per_client: f64,
    /// Growth of the resident memory from `start_bytes` to its peak, divided by the number of
    /// clients at the peak, in bytes. The peak includes the memory that many concurrent logins
    /// need.
    pub peak_bytes_per_client: f64,
}

/// Numbers of system calls per operation. Each value is measured once.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct OperationCalls {
    /// Number of calls that read from a socket.
    pub reads: f64,
    /// Number of calls that write to a socket.
    pub writes: f64,
    /// Number of calls that wait for sockets.
    pub waits: f64,
    /// Number of calls that let a thread wait, or wake a thread.
    pub wake_ups: f64,
    /// Number of all system calls.
    pub all: f64,
}

/// The medians of all cases, and the values that are not measured in rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Medians {
    /// The conditions of the run.
    run: Run,
    /// The values of each case and target. A key of the map has three parts, separated by spaces:
    /// the part of the bench, the number of connections or the rate, and the target's name.
    cases: BTreeMap<String, Values>,
    /// The values of each idle proxy. A key of the map is the target's name.
    #[serde(default)]
    idle: BTreeMap<String, Idle>,
    /// The numbers of system calls per operation. A key of the map consists of the number of
    /// connections and the target's name, separated by a space.
    #[serde(default)]
    calls: BTreeMap<String, OperationCalls>,
}

/// A value that is compared with the previous run.
struct Compared {
    case: String,
    name: &'static str,
    better: Better,
    value: Value,
}

impl Medians {
    /// The header of the tables whose rows [`Self::add`] returns.
    pub const HEADER: &str = "| load | target | operations/s | ratio to direct (worst) | added p50 | added p99 | CPU (user) per operation | ratio to HAProxy | ratio to relay | server CPU |\n|---|---|---|---|---|---|---|---|---|---|";

    /// Creates the results of a run. They have no cases until [`Self::add`] is called.
    pub fn of(run: Run) -> Self {
        Self {
            run,
            cases: BTreeMap::new(),
            idle: BTreeMap::new(),
            calls: BTreeMap::new(),
        }
    }

    /// True if no case of this part was added.
    pub fn is_first_of(&self, part: &str) -> bool {
        let prefix = format!("{part} ");
        !self.cases.keys().any(|key| key.starts_with(&prefix))
    }

    /// Adds the rounds of a case. The first row of each round is the row of direct connections.
    /// Returns one line for each target, for a table with the header [`Self::HEADER`].
    pub fn add(&mut self, case: &Case, rounds: &[Vec<Row>]) -> Vec<String> {
        let load = match case.rate {
            Some(rate) => format!("{rate:.0}/s"),
            None => case.connections.to_string(),
        };
        let mut lines = Vec::new();
        let targets = rounds.first().into_iter().flatten();
        for (index, Row { target, .. }) in targets.enumerate() {
            let values = Values::of(rounds, index);
            lines.push(values.line(&load, target));
            if index > 0 {
                self.cases
                    .insert(format!("{} {load} {target}", case.part), values);
            }
        }
        lines
    }

    /// Adds the values of an idle proxy. Returns the line of a table with the header
    /// [`Idle::HEADER`].
    pub fn add_idle(&mut self, target: &str, idle: Idle) -> String {
        let line = idle.line(target);
        self.idle.insert(target.to_owned(), idle);
        line
    }

    /// Adds the system calls per operation that were counted while the load had `connections`
    /// connections.
    pub fn add_calls(&mut self, connections: usize, target: &str, calls: OperationCalls) {
        self.calls.insert(format!("{connections} {target}"), calls);
    }

    /// Replaces the file of results with these medians. Returns lines to print: they name the
    /// values that are worse than in the previous results, or say why nothing can be compared.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn replace_previous(&self) -> io::Result<Vec<String>> {
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/results/compare.json"));
        let lines = match fs::read(&path) {
            // If another version of the bench wrote the previous results, it may be impossible to
            // read them. The new results replace them even then.
            Ok(text) => serde_json::from_slice::<Self>(&text).map_or_else(
                |error| vec![format!("\nThe previous results cannot be read: {error}")],
                |previous| self.compare_with(&previous),
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                vec!["\nThere are no previous results.".to_owned()]
            }
            Err(error) => return Err(error),
        };
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n")?;
        Ok(lines)
    }

    fn compare_with(&self, previous: &Self) -> Vec<String> {
        let (now, before) = (&self.run, &previous.run);
        let mut lines = vec![format!(
            "\nCompared with the run of {} at {}, {} rounds of {} s:\n",
            before.date, before.commit, before.rounds, before.seconds
        )];
        if now.machine != before.machine {
            lines.push(format!(
                "The machine has changed from {} to {}.",
                before.machine, now.machine
            ));
        }
        let worse = self.worse_than(previous);
        if worse.is_empty() {
            lines.push("No value is worse.".to_owned());
        }
        lines.extend(worse);
        lines
    }

    /// A line for each value of Seawall that is worse than in the previous run.
    fn worse_than(&self, previous: &Self) -> Vec<String> {
        let previous = previous.compared();
        let mut lines = Vec::new();
        for now in self.compared() {
            let is_same = |before: &&Compared| before.case == now.case && before.name == now.name;
            let Some(before) = previous.iter().find(is_same) else {
                continue;
            };
            if now.value.is_worse_than(before.value, now.better) {
                let noise = now.value.noise_with(before.value);
                let (before, value) = (before.value.median, now.value.median);
                lines.push(format!(
                    "WORSE: {}: {} {before:.2} -> {value:.2} (noise {noise:.2})",
                    now.case, now.name
                ));
            }
        }
        lines
    }

    /// All values of Seawall that are compared with the previous run.
    fn compared(&self) -> Vec<Compared> {
        let mut compared = Vec::new();
        for (case, values) in &self.cases {
            for (name, better, value) in values.compared() {
                compared.extend(value.map(|value| Compared {
                    case: case.clone(),
                    name,
                    better,
                    value,
                }));
            }
        }
        let once = |case: String, name, value| Compared {
            case,
            name,
            better: Better::Less,
            value,
        };
        for (target, idle) in &self.idle {
            let values = idle.compared().into_iter();
            compared
                .extend(values.map(|(name, value)| once(format!("idle {target}"), name, value)));
        }
        for (case, calls) in &self.calls {
            let values = calls.compared().into_iter();
            compared.extend(values.map(|(name, value)| once(format!("calls {case}"), name, value)));
        }
        let is_reference = |case: &str| {
            let target = case.rsplit(' ').next();
            target == Some(HAPROXY) || target == Some(RELAY)
        };
        compared.retain(|compared| !is_reference(&compared.case));
        compared
    }
}

impl Idle {
    /// The header of a table whose rows [`Medians::add_idle`] returns.
    pub const HEADER: &str = "| target | CPU of a core without connections | memory | bytes per connection | bytes per connection at the peak |\n|---|---|---|---|---|";

    fn line(&self, target: &str) -> String {
        format!(
            "| {target} | {:.3} % | {:.0} KiB | {:.0} | {:.0} |",
            self.cpu_percent().median,
            self.start_bytes / 1024.0,
            self.bytes_per_client,
            self.peak_bytes_per_client
        )
    }

    fn cpu_percent(&self) -> Value {
        Value::of(self.cpu_percents.iter().copied(), Better::Less)
    }

    fn compared(&self) -> [(&'static str, Value); 4] {
        let start_mib = self.start_bytes / f64::from(1 << 20);
        [
            ("CPU in %", self.cpu_percent()),
            ("memory in MiB", Value::once(start_mib, 0.0)),
            ("bytes per client", Value::once(self.bytes_per_client, 0.0)),
            (
                "bytes per client at the peak",
                Value::once(self.peak_bytes_per_client, 0.0),
            ),
        ]
    }
}

impl OperationCalls {
    /// The values that are compared with the previous run. Waits and wake-ups are not compared
    /// separately, because they depend on the timing.
    fn compared(&self) -> [(&'static str, Value); 3] {
        [
            ("reads", Value::once(self.reads, TIMING_NOISE)),
            ("writes", Value::once(self.writes, TIMING_NOISE)),
            ("system calls", Value::once(self.all, TIMING_NOISE)),
        ]
    }
}

impl Values {
    /// The values of the target that has this index in each round.
    fn of(rounds: &[Vec<Row>], index: usize) -> Self {
        let each = |better: Better, value: &dyn Fn(&Row, &Row) -> f64| {
            let rows = rounds
                .iter()
                .filter_map(|round| Some((round.get(index)?, round.first()?)));
            Value::of(rows.map(|(row, direct)| value(row, direct)), better)
        };
        let added = |percent: usize| {
            let micros = |row: &Row| row.outcome.percentile(percent).as_secs_f64() * 1e6;
            each(Better::Less, &|row, direct| micros(row) - micros(direct))
        };
        let tick = each(Better::Less, &|row, _| row.micros(CPU_TICK)).median;
        let cpu = |time: &dyn Fn(&Row) -> Duration| {
            each(Better::Less, &|row, _| row.micros(time(row))).with_noise_of_at_least(tick)
        };
        Self {
            rate: each(Better::More, &|row, _| row.outcome.rate()),
            throughput: each(Better::More, &|row, direct| {
                row.outcome.rate() / direct.outcome.rate()
            }),
            added_p50: added(50),
            added_p99: added(99),
            cpu: cpu(&|row| row.cpu()),
            user: cpu(&|row| row.user),
            server: cpu(&|row| row.server),
            cpu_to_haproxy: cpu_ratio(rounds, index, HAPROXY),
            cpu_to_relay: cpu_ratio(rounds, index, RELAY),
        }
    }

    /// The target's line in the table with the header [`Medians::HEADER`].
    fn line(&self, load: &str, target: &str) -> String {
        let ratio = |ratio: Option<Value>| ratio.map_or(f64::NAN, |ratio| ratio.median);
        format!(
            "| {load} | {target} | {:.0} | {:.2} ({:.2}) | {:.0} µs | {:.0} µs | {:.1} ({:.1}) µs | {:.2} | {:.2} | {:.1} µs |",
            self.rate.median,
            self.throughput.median,
            self.throughput.worst,
            self.added_p50.median,
            self.added_p99.median,
            self.cpu.median,
            self.user.median,
            ratio(self.cpu_to_haproxy),
            ratio(self.cpu_to_relay),
            self.server.median,
        )
    }

    /// The values that are compared with the previous run. Operations per second are not compared,
    /// because they depend on the machine's load.
    fn compared(&self) -> impl Iterator<Item = (&'static str, Better, Option<Value>)> {
        [
            ("throughput", Better::More, Some(self.throughput)),
            ("added p50", Better::Less, Some(self.added_p50)),
            ("added p99", Better::Less, Some(self.added_p99)),
            ("CPU", Better::Less, Some(self.cpu)),
            ("user time", Better::Less, Some(self.user)),
            ("server CPU", Better::Less, Some(self.server)),
            ("CPU to HAProxy", Better::Less, self.cpu_to_haproxy),
            ("CPU to relay", Better::Less, self.cpu_to_relay),
        ]
        .into_iter()
    }
}

impl Value {
    /// Summarizes the values of the rounds. Values that are not finite are ignored.
    fn of(values: impl Iterator<Item = f64>, better: Better) -> Self {
        let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let median = Spread::of(values.iter().copied()).median;
        // JSON has no value for "not a number". A case without operations has the value 0.
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let last = values.len().saturating_sub(1);
        let (worst, best) = match better {
            Better::More => (at(0), at(last)),
            Better::Less => (at(last), at(0)),
        };
        let quarter = values.len() / 4;
        Self {
            median: if median.is_finite() { median } else { 0.0 },
            worst,
            best,
            noise: (at(last.saturating_sub(quarter)) - at(quarter)) / 2.0,
        }
    }

    /// A value that is measured once. `noise` is a share of the value.
    fn once(value: f64, noise: f64) -> Self {
        Self {
            median: value,
            worst: value,
            best: value,
            noise: value * noise,
        }
    }

    fn with_noise_of_at_least(self, least: f64) -> Self {
        Self {
            noise: self.noise.max(least),
            ..self
        }
    }

    /// The threshold for the difference between this value and the value `before` of the previous
    /// run. Only a larger difference is reported. The threshold is the sum of the noise of both
    /// values, but at least [`LEAST_CHANGE`] of the earlier median.
    fn noise_with(self, before: Self) -> f64 {
        let least = before.median.abs() * LEAST_CHANGE;
        least.max(self.noise + before.noise)
    }

    fn is_worse_than(self, before: Self, better: Better) -> bool {
        let loss = match better {
            Better::More => before.median - self.median,
            Better::Less => self.median - before.median,
        };
        loss > self.noise_with(before)
    }
}

/// The CPU time of the proxy per operation, divided by the CPU time of another target per
/// operation. Ignores rounds in which the other target's CPU time was too short to be measured.
/// `None` if the other target is missing, or if all rounds are ignored.
fn cpu_ratio(rounds: &[Vec<Row>], index: usize, other: &str) -> Option<Value> {
    let mut pairs = Vec::new();
    for round in rounds {
        let other = round.iter().find(|row| row.target == other)?;
        pairs.push((round.get(index)?, other));
    }
    let cpu = |row: &Row| row.micros(row.cpu());
    // If a round counted no tick for the other target, its ratio is not finite and is ignored.
    let ratios = pairs.iter().map(|&(row, other)| cpu(row) / cpu(other));
    if !ratios.clone().any(f64::is_finite) {
        return None;
    }
    let ratio = Value::of(ratios, Better::Less);
    // If a round has few operations, it takes only a few ticks of CPU time. One tick more or less
    // then changes the ratio much.
    let tick = |row: &Row| CPU_TICK.as_secs_f64() / row.cpu().as_secs_f64();
    let ticks = pairs.iter().map(|&(row, other)| tick(row) + tick(other));
    let resolution = ratio.median * Value::of(ticks, Better::Less).median;
    Some(ratio.with_noise_of_at_least(resolution))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{load::SMALL, run::MachineFacts};

    const CASE: Case = Case {
        part: "small",
        work: Work::Finds(SMALL),
        connections: 1,
        rate: None,
    };

    fn value(rounds: [f64; 5], better: Better) -> Value {
        Value::of(rounds.into_iter(), better)
    }

    fn row(target: &str, cpu_ms: u64) -> Row {
        Row {
            target: target.to_owned(),
            outcome: Outcome {
                operations: 1_000,
                elapsed: Duration::from_secs(1),
                latencies: vec![Duration::from_millis(1)],
            },
            user: Duration::from_millis(cpu_ms),
            system: Duration::ZERO,
            server: Duration::from_millis(100),
        }
    }

    /// The results of one case in which the relay (a process that only copies bytes) and Seawall
    /// used these CPU times.
    fn medians(relay_ms: u64, seawall_ms: u64) -> Medians {
        let mut medians = Medians::of(Run {
            commit: "1234567".to_owned(),
            date: "2026-11-21".to_owned(),
            machine: MachineFacts {
                processor: "EPYC".to_owned(),
                cores: 2,
                memory_gib: 8,
                kernel: "6.18".to_owned(),
            },
            rounds: 3,
            seconds: 1.0,
        });
        let round = vec![
            row("direct", 0),
            row(RELAY, relay_ms),
            row("Seawall", seawall_ms),
        ];
        let lines = medians.add(&CASE, &[round.clone(), round.clone(), round]);
        assert_eq!(lines.len(), 3);
        medians
    }

    #[test]
    fn noise_of_a_value_is_half_of_the_difference_between_the_quartiles() {
        let value = value([5.0, 1.0, 4.0, 2.0, 3.0], Better::More);
        let Value {
            median,
            worst,
            best,
            noise,
        } = value;
        assert_eq!([median, worst, best, noise], [3.0, 1.0, 5.0, 1.0]);
    }

    #[test]
    fn value_is_worse_only_if_the_change_exceeds_the_sum_of_the_noise_of_both_runs() {
        // The noise of each run is 1.
        let before = value([9.0, 9.0, 10.0, 11.0, 11.0], Better::Less);
        let later = |median: f64| {
            let rounds = [-1.0, -1.0, 0.0, 1.0, 1.0].map(|distance| median + distance);
            value(rounds, Better::Less)
        };
        assert!(later(12.1).is_worse_than(before, Better::Less));
        assert!(!later(11.9).is_worse_than(before, Better::Less));
        assert!(!later(5.0).is_worse_than(before, Better::Less));
        assert!(later(7.9).is_worse_than(before, Better::More));
        assert!(!later(8.1).is_worse_than(before, Better::More));
        assert!(!later(15.0).is_worse_than(before, Better::More));
    }

    #[test]
    fn value_is_worse_only_if_the_change_exceeds_5_percent() {
        for median in [100.0, -100.0] {
            let before = value([median; 5], Better::Less);
            assert!(!value([median + 4.9; 5], Better::Less).is_worse_than(before, Better::Less));
            assert!(value([median + 5.1; 5], Better::Less).is_worse_than(before, Better::Less));
        }
    }

    /// The relay is a process that only copies bytes. The kernel counts CPU time in ticks of 10 ms,
    /// so a CPU time may be wrong by one tick.
    #[test]
    fn noise_of_a_ratio_of_two_cpu_times_includes_an_error_of_one_tick_in_each_of_them() {
        let medians = medians(200, 400);
        let values = medians.cases.get("small 1 Seawall").unwrap();
        let ratio = values.cpu_to_relay.unwrap();
        assert_eq!(ratio.median, 2.0);
        // One tick of 10 ms is 5 % of the relay's time and 2.5 % of Seawall's time. So the noise is
        // 7.5 % of the ratio 2.0, which is 0.15.
        assert!((ratio.noise - 0.15).abs() < 1e-9, "{}", ratio.noise);
        assert_eq!(values.cpu.noise, 10.0);
        assert!(values.cpu_to_haproxy.is_none());
        assert!(medians.cases.contains_key("small 1 relay"));
        assert!(!medians.cases.contains_key("small 1 direct"));
    }

    /// The relay is a process that only copies bytes. The kernel counts CPU time in ticks of 10 ms,
    /// so a shorter CPU time counts as zero.
    #[test]
    fn ratio_of_cpu_times_is_unknown_if_the_relay_used_less_than_one_tick_of_cpu_time() {
        let medians = medians(0, 400);
        let values = medians.cases.get("small 1 Seawall").unwrap();
        assert!(values.cpu_to_relay.is_none());
    }

    #[test]
    fn values_of_seawall_that_became_worse_are_reported() {
        // All CPU times rise by the same factor, so the ratio to the relay does not change.
        let worse = medians(300, 600).worse_than(&medians(200, 400));
        let expected = [
            "WORSE: small 1 Seawall: CPU 400.00 -> 600.00 (noise 20.00)",
            "WORSE: small 1 Seawall: user time 400.00 -> 600.00 (noise 20.00)",
        ];
        assert_eq!(worse, expected);
        assert!(medians(200, 400).worse_than(&medians(300, 600)).is_empty());
        let worse = medians(200, 600).worse_than(&medians(200, 400));
        assert_eq!(worse.len(), 3, "{worse:?}");
    }

    #[test]
    fn comparison_shows_date_and_commit_of_the_previous_run_and_reports_a_changed_machine() {
        let before = medians(200, 400);
        let mut now = before.clone();
        let lines = now.compare_with(&before);
        assert!(lines[0].contains("2026-11-21 at 1234567"), "{lines:?}");
        assert_eq!(lines[1..], ["No value is worse."]);
        now.run.machine.cores = 4;
        let lines = now.compare_with(&before);
        assert!(lines[1].starts_with("The machine has changed"), "{lines:?}");
    }

    #[test]
    fn more_cpu_time_or_memory_of_an_idle_process_and_more_system_calls_are_reported() {
        let with = |cpu_percent: f64, bytes_per_client: f64, all: f64| {
            let mut medians = medians(200, 400);
            let windows = [-0.02, -0.01, 0.0, 0.0, 0.01, 0.02];
            let idle = Idle {
                cpu_percents: windows.map(|distance| cpu_percent + distance).to_vec(),
                start_bytes: f64::from(15 << 20),
                bytes_per_client,
                peak_bytes_per_client: bytes_per_client + 500.0,
            };
            let calls = OperationCalls {
                reads: 2.0,
                writes: 2.0,
                waits: all - 4.0,
                wake_ups: 0.0,
                all,
            };
            for target in [HAPROXY, RELAY, "Seawall"] {
                medians.add_idle(target, idle.clone());
                medians.add_calls(64, target, calls);
            }
            medians
        };
        let before = with(0.20, 2_000.0, 4.0);
        let worse = with(0.30, 2_110.0, 5.0).worse_than(&before);
        let expected = [
            "WORSE: idle Seawall: CPU in % 0.20 -> 0.30 (noise 0.02)",
            "WORSE: idle Seawall: bytes per client 2000.00 -> 2110.00 (noise 100.00)",
            "WORSE: calls 64 Seawall: system calls 4.00 -> 5.00 (noise 0.45)",
        ];
        assert_eq!(worse, expected);
        // The CPU time and the number of calls change by less than the noise, and the memory by
        // less than 5 %.
        let noisy = with(0.218, 2_090.0, 4.3);
        assert_eq!(noisy.worse_than(&before), Vec::<String>::new());
        assert_eq!(before.worse_than(&noisy), Vec::<String>::new());
    }

    /// Earlier versions of the bench did not measure an idle proxy (`idle`) and system calls
    /// (`calls`).
    #[test]
    fn result_file_of_an_earlier_version_can_be_read_without_the_fields_idle_and_calls() {
        let text = serde_json::to_string(&medians(200, 400)).unwrap();
        let mut results: serde_json::Value = serde_json::from_str(&text).unwrap();
        let fields = results.as_object_mut().unwrap();
        assert!(fields.remove("idle").is_some() && fields.remove("calls").is_some());
        let read: Medians = serde_json::from_value(results).unwrap();
        assert!(medians(200, 400).worse_than(&read).is_empty());
        assert_eq!(medians(200, 600).worse_than(&read).len(), 3);
    }

    #[test]
    fn written_results_can_be_read() {
        let now = medians(200, 600);
        let text = serde_json::to_string(&medians(200, 400)).unwrap();
        let read: Medians = serde_json::from_str(&text).unwrap();
        assert_eq!(
            now.compare_with(&read),
            now.compare_with(&medians(200, 400))
        );
    }
}
