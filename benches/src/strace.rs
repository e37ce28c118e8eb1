//! Counts the system calls of a process with strace.

use std::{
    io,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use seawall_tests::{eventually::eventually, scratch::Scratch};

/// A process whose system calls are counted. The counting makes the process several times slower.
#[derive(Debug)]
pub struct Traced {
    strace: Child,
    scratch: Scratch,
}

/// The name of each system call, and the number of times that the process made the call. The most
/// frequent call is first.
#[derive(Clone, Debug, Default)]
pub struct Calls(pub Vec<(String, f64)>);

impl Traced {
    /// Begins to count the system calls of all threads of a process. `None` if strace is not
    /// installed.
    ///
    /// # Panics
    /// If strace cannot attach to the process.
    pub async fn attach(process: u32) -> Option<Self> {
        let scratch = Scratch::create().expect("the directory can be created");
        let mut command = Command::new("strace");
        command.args(["-f", "-c", "-o"]).arg(table(&scratch));
        command.args(["-p", &process.to_string()]);
        let command = command.stdin(Stdio::null()).stderr(Stdio::null());
        let strace = match command.spawn() {
            Ok(strace) => strace,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => panic!("strace: {error}"),
        };
        let traced = Self { strace, scratch };
        let is_traced = || async { all_threads_are_traced(process).then_some(()) };
        eventually(Duration::from_secs(10), is_traced)
            .await
            .expect("strace is attached");
        Some(traced)
    }

    /// Stops strace, and returns the system calls that it has counted.
    ///
    /// # Panics
    /// If strace has failed.
    pub fn finish(mut self) -> Calls {
        let id = i32::try_from(self.strace.id()).ok().and_then(Pid::from_raw);
        kill_process(id.expect("strace runs"), Signal::INT).expect("strace can be interrupted");
        self.strace.wait().expect("strace ends");
        let text = std::fs::read_to_string(table(&self.scratch)).expect("strace wrote its table");
        let mut by_name: Vec<_> = text.lines().filter_map(row).collect();
        by_name.sort_by(|a, b| b.1.total_cmp(&a.1));
        Calls(by_name)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // `kill` fails if strace has already ended.
        drop(self.strace.kill());
        drop(self.strace.wait());
    }
}

impl Calls {
    /// How often the system call `name` was made.
    pub fn count(&self, name: &str) -> f64 {
        let found = self.0.iter().find(|(other, _)| other == name);
        found.map_or(0.0, |(_, count)| *count)
    }

    /// The total number of system calls that were made.
    pub fn total(&self) -> f64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

fn table(scratch: &Scratch) -> std::path::PathBuf {
    scratch.path().join("calls")
}

/// True if strace (or another tracer) is attached to every thread of the process. strace attaches
/// to the threads one after another.
fn all_threads_are_traced(process: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return false;
    };
    let is_traced = |status: String| {
        let tracer = status.lines().find_map(|l| l.strip_prefix("TracerPid:"));
        tracer.is_some_and(|tracer| tracer.trim() != "0")
    };
    threads.flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status"));
        status.is_ok_and(is_traced)
    })
}

/// Parses one line of strace's table: `% time, seconds, usecs/call, calls, [errors,] name`. `None`
/// for other lines and for the line of the total.
fn row(line: &str) -> Option<(String, f64)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let [_, _, _, calls, .., name] = *words else {
        return None;
    };
    let calls = calls.parse().ok()?;
    (name != "total").then(|| (name.to_owned(), calls))
}
