//! Runs the real binary as a separate process: signals, exit codes and log.

use std::{
    future::pending,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Output, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Resource, Rlimit, Signal, geteuid, getrlimit, kill_process, prlimit};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use crate::eventually::eventually;
use seawall_locks::Mutex;

/// Time limit for a process to start serving, or to end.
const LIMIT: Duration = Duration::from_secs(60);

/// The path of the binary `seawall`. Cargo builds it together with the tests and benches of the
/// package `seawall`, in the same profile.
///
/// # Panics
/// If the binary does not exist. This happens if the caller is not a test or bench of the package
/// `seawall`.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let own = std::env::current_exe().expect("the path of this program is known");
        // Tests and benches are in the folder `deps`, binaries in the folder above it.
        let folder = own.parent().and_then(Path::parent);
        let binary = folder.expect("two parent folders").join("seawall");
        assert!(binary.is_file(), "{} is missing", binary.display());
        binary
    })
}

/// Runs `seawall` with these arguments until it ends, and returns its output and exit status.
///
/// # Panics
/// If the process does not end within a minute.
pub async fn run(arguments: &[&str]) -> Output {
    end_of(Command::new(binary()).args(arguments)).await
}

/// Like [`run`], in a folder and with additional variables in the environment.
///
/// # Panics
/// In the same cases as [`run`].
pub async fn run_in(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).current_dir(folder);
    end_of(command.envs(variables.iter().copied())).await
}

async fn end_of(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(LIMIT, command.output()).await;
    ended
        .expect("the process ends in time")
        .expect("the binary can be run")
}

/// A running `seawall serve`. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// The lines of the process's log: JSON objects, or strings if a line is not JSON.
    lines: Arc<Mutex<Vec<Value>>>,
    reading: Option<JoinHandle<()>>,
    /// True if this fixture no longer reads the standard error of the process.
    hangs: Arc<AtomicBool>,
    address: String,
    admin: String,
}

impl Process {
    /// Starts `seawall serve` with a configuration file. Returns when the log reports that Seawall
    /// serves clients.
    ///
    /// # Panics
    /// If the process does not serve within a minute. The panic message contains the log.
    pub async fn serve(toml: &Path) -> Self {
        Self::start(&mut serve_command(toml)).await
    }

    /// Like [`Self::serve`], with additional variables in the environment of the process.
    ///
    /// # Panics
    /// In the same cases as [`Self::serve`].
    pub async fn serve_with(toml: &Path, variables: &[(&str, &str)]) -> Self {
        let mut command = serve_command(toml);
        command.envs(variables.iter().copied());
        Self::start(&mut command).await
    }

    /// Like [`Self::serve`], but starts the program `launcher`. The program gets Seawall's command
    /// line as its last arguments, and must replace itself with Seawall.
    ///
    /// # Panics
    /// In the same cases as [`Self::serve`].
    pub async fn launch(launcher: &[&str], toml: &Path) -> Self {
        let (program, arguments) = launcher.split_first().expect("the launcher has a program");
        let mut command = Command::new(program);
        command.args(arguments).arg(binary());
        configure(&mut command, toml);
        Self::start(&mut command).await
    }

    /// Like [`Self::serve`], but if the test runs as root, the process does not get root's group.
    /// Otherwise [`Self::forbids_tracing`] would always return true, because all files of the
    /// process in `/proc` would belong to root's user and group.
    ///
    /// # Panics
    /// In the same cases as [`Self::serve`].
    pub async fn serve_outside_roots_group(toml: &Path) -> Self {
        let mut command = serve_command(toml);
        if geteuid().is_root() {
            command.gid(1);
        }
        Self::start(&mut command).await
    }

    async fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the binary can be run");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().expect("standard error is piped");
        let reading = Arc::clone(&lines);
        let hangs = Arc::new(AtomicBool::new(false));
        let has_to_hang = Arc::clone(&hangs);
        let reading = tokio::spawn(async move {
            let mut said = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = said.next_line().await {
                if has_to_hang.load(Ordering::Relaxed) {
                    pending::<()>().await;
                }
                let line = serde_json::from_str(&line).unwrap_or(Value::String(line));
                reading.lock().push(line);
            }
        });
        let mut process = Self {
            child,
            lines,
            reading: Some(reading),
            hangs,
            address: String::new(),
            admin: String::new(),
        };
        let serving = async || process.said("serving").ok_or_else(|| process.log());
        let serving = eventually(LIMIT, serving).await.expect("Seawall serves");
        let field = |name: &str| field(&serving, name)?.as_str().map(str::to_owned);
        let clients = field("clients").expect("the log has the addresses for clients");
        process.address = clients;
        process.admin = field("admin").expect("the log names the admin address");
        process
    }

    /// The address for clients. If there are several, `, ` separates them.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The address of the admin API, as the log shows it. If there are several, `, ` separates
    /// them. The text is `off` if none is configured, and `not bound` if none is bound.
    pub fn admin(&self) -> &str {
        &self.admin
    }

    /// The first line of the log with this message.
    pub fn said(&self, message: &str) -> Option<Value> {
        let lines = self.lines.lock();
        let line = lines
            .iter()
            .find(|line| field(line, "message").is_some_and(|said| said == message));
        line.cloned()
    }

    /// All lines of the log with this message.
    pub fn all_said(&self, message: &str) -> Vec<Value> {
        let lines = self.lines.lock();
        let said = |line: &&Value| field(line, "message").is_some_and(|said| said == message);
        lines.iter().filter(said).cloned().collect()
    }

    /// Number of lines of the log with this message.
    pub fn said_times(&self, message: &str) -> usize {
        self.all_said(message).len()
    }

    /// Reads no further line of the log, but keeps the pipe open. [`Self::ended`] then does not
    /// wait for the end of the log.
    pub fn stop_reading_log(&mut self) {
        self.hangs.store(true, Ordering::Relaxed);
        self.reading = None;
    }

    /// The whole log as text.
    pub fn log(&self) -> String {
        let lines = self.lines.lock();
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The soft limit for core dumps as the kernel prints it: `0`, `unlimited` or a number of
    /// bytes.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn core_dump_limit(&self) -> String {
        let path = format!("/proc/{}/limits", self.pid().as_raw_nonzero());
        let limits = std::fs::read_to_string(path).expect("the process runs");
        let row = limits
            .lines()
            .find(|row| row.starts_with("Max core file size"));
        let soft = row.and_then(|row| row.split_whitespace().nth(4));
        soft.expect("the kernel lists this limit").to_owned()
    }

    /// True if other processes of the same user cannot read the process's memory. The files of
    /// the process in `/proc` then belong to root's user and group.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn forbids_tracing(&self) -> bool {
        let path = format!("/proc/{}/environ", self.pid().as_raw_nonzero());
        let file = std::fs::metadata(path).expect("the process runs");
        (file.uid(), file.gid()) == (0, 0)
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our own child can be signaled");
    }

    /// Sets the soft limit of a resource; `None` means no limit. Returns the previous soft limit.
    ///
    /// # Panics
    /// If the process has ended, or the limit is above the hard limit.
    pub fn set_limit(&self, resource: Resource, soft: Option<u64>) -> Option<u64> {
        // The child inherited this process's hard limit, so both have the same hard limit.
        let maximum = getrlimit(resource).maximum;
        let new = Rlimit {
            current: soft,
            maximum,
        };
        let before = prlimit(Some(self.pid()), resource, new);
        before.expect("a child's limit can be set").current
    }

    /// Number of open descriptors of the process.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn open_files(&self) -> u64 {
        let path = format!("/proc/{}/fd", self.pid().as_raw_nonzero());
        let files = std::fs::read_dir(path).expect("the process runs");
        u64::try_from(files.count()).expect("the number is small")
    }

    fn pid(&self) -> Pid {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        pid.and_then(Pid::from_raw).expect("the process runs")
    }

    /// Resets the peak of the resident memory, and returns the current resident memory in bytes.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn reset_peak_memory(&self) -> u64 {
        let file = format!("/proc/{}/clear_refs", self.pid().as_raw_nonzero());
        std::fs::write(file, "5").expect("a child's peak can be reset");
        self.memory("VmRSS:")
    }

    /// The peak of the resident memory since [`Self::reset_peak_memory`], in bytes.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn peak_memory_bytes(&self) -> u64 {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> u64 {
        let file = format!("/proc/{}/status", self.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(file).expect("a child's status can be read");
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kibibytes.expect("the kernel reports the value in kB") * 1024
    }

    /// Waits until the process has ended and its whole log was read.
    ///
    /// # Panics
    /// If the process does not end within a minute.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = timeout(LIMIT, self.child.wait()).await;
        if let Some(reading) = self.reading.take() {
            reading.await.expect("the log is read to its end");
        }
        ended
            .expect("the process ends in time")
            .expect("a child can be waited for")
    }
}

fn serve_command(toml: &Path) -> Command {
    let mut command = Command::new(binary());
    configure(&mut command, toml);
    command
}

fn configure(command: &mut Command, toml: &Path) {
    command
        .args(["serve", "--allow-root", "--config"])
        .arg(toml)
        .env("SEAWALL_LOG__FORMAT", "json")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
}

/// A field of one line of the log.
fn field<'a>(line: &'a Value, name: &str) -> Option<&'a Value> {
    line.get("fields")?.get(name)
}
