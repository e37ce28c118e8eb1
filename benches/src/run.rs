//! The conditions of a run, which are saved with its results: commit, date, machine and length.

use std::{fmt, fs, num::NonZero, process::Command, thread, time::Duration};

use bson::DateTime;
use serde::{Deserialize, Serialize};

/// The text that is recorded if a fact, such as the kernel's version, cannot be read.
const UNKNOWN: &str = "unknown";

/// The conditions of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The commit of the sources, with `-dirty` if a file differs from the commit.
    pub commit: String,
    /// The date in UTC, as `YYYY-MM-DD`.
    pub date: String,
    /// The machine on which the bench ran.
    pub machine: MachineFacts,
    /// Number of rounds: how many times each target is measured with the same load.
    pub rounds: usize,
    /// How long each target is measured in a round, in seconds.
    pub seconds: f64,
}

impl Run {
    /// The conditions of a run that begins now and has `rounds` rounds. In each round, each target
    /// is measured for `time`. A fact that cannot be read is `unknown` or zero.
    pub fn begin(rounds: usize, time: Duration) -> Self {
        let now = DateTime::now().try_to_rfc3339_string().ok();
        let date = now
            .as_deref()
            .and_then(|now| Some(now.split_once('T')?.0.to_owned()));
        Self {
            commit: commit().unwrap_or_else(|| UNKNOWN.to_owned()),
            date: date.unwrap_or_else(|| UNKNOWN.to_owned()),
            machine: MachineFacts::read(),
            rounds,
            seconds: time.as_secs_f64(),
        }
    }
}

/// The commit of the sources, as `git describe` prints it. `None` if Git is not installed, or if
/// the sources are not in a Git repository.
fn commit() -> Option<String> {
    let folder = env!("CARGO_MANIFEST_DIR");
    let mut command = Command::new("git");
    command.args(["-C", folder, "describe", "--always", "--dirty"]);
    // With `--exclude *`, Git ignores all tags and prints the commit's hash.
    let output = command.args(["--exclude", "*"]).output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| name.trim().to_owned())
}

/// The machine of a run. Results of different machines cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineFacts {
    /// The model of the processor.
    pub processor: String,
    /// Number of threads that can run at the same time.
    pub cores: usize,
    /// Memory in GiB, rounded.
    pub memory_gib: u64,
    /// The version of the kernel.
    pub kernel: String,
}

impl MachineFacts {
    fn read() -> Self {
        let memory = field("/proc/meminfo", "MemTotal");
        let kibibytes = memory
            .as_deref()
            .and_then(|text| text.strip_suffix(" kB")?.parse::<u64>().ok());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| UNKNOWN.to_owned()),
            cores: thread::available_parallelism().map_or(0, NonZero::get),
            memory_gib: kibibytes.map_or(0, |kibibytes| (kibibytes + (1 << 19)) >> 20),
            kernel: kernel.map_or_else(|| UNKNOWN.to_owned(), |text| text.trim().to_owned()),
        }
    }
}

impl fmt::Display for MachineFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            processor,
            cores,
            memory_gib,
            kernel,
        } = self;
        write!(
            f,
            "{processor}, {cores} cores, {memory_gib} GiB, kernel {kernel}"
        )
    }
}

/// The first value with this name in a file of lines `name: value`.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(key, _)| key.trim() == name)?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_and_machine_of_a_benchmark_run_are_recorded() {
        let run = Run::begin(10, Duration::from_secs(3));
        assert_eq!(run.date.split('-').count(), 3, "{}", run.date);
        assert!(run.machine.cores > 0 && run.machine.memory_gib > 0);
        assert_ne!(run.machine.kernel, UNKNOWN);
        assert_eq!((run.rounds, run.seconds), (10, 3.0));
    }
}
