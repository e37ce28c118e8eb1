//! A process that a bench measures: its CPU time and memory.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    future::ready,
    io::{self, BufRead, BufReader},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use seawall_tests::eventually::eventually;

use crate::output::say;

/// The number of milliseconds in a clock tick. `/proc/PID/stat` gives CPU times in clock ticks, and
/// Linux counts 100 clock ticks per second (USER_HZ).
const CPU_TICK_MS: u64 = 10;

/// The resolution of the CPU times in this module, except those of [`ThreadTimes`].
pub const CPU_TICK: Duration = Duration::from_millis(CPU_TICK_MS);

/// A child process. Dropping the value kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // `kill` fails if the child has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Process {
    /// Starts a program and discards its output.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self {
            child: child.spawn()?,
        })
    }

    /// Starts a program whose standard input stays open until the value is dropped. Returns the
    /// process and the first line of its output.
    ///
    /// # Errors
    /// If the program cannot be started, or ends before it writes a line.
    pub fn start_and_read_line(command: &mut Command) -> io::Result<(Self, String)> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Self {
            child: command.spawn()?,
        };
        let output = process.child.stdout.take().expect("the output is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.strip_suffix('\n') {
            Some(line) => Ok((process, line.to_owned())),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM to the process, and waits until the process has ended.
    ///
    /// # Panics
    /// If the exit status is not zero, or the process does not end within a minute.
    pub async fn stop(mut self) {
        let id = Pid::from_child(&self.child);
        kill_process(id, Signal::TERM).expect("the process can be asked to end");
        let ended = || ready(self.child.try_wait().expect("the process can be awaited"));
        let status = eventually(Duration::from_secs(60), ended).await;
        let status = status.expect("the process ends");
        assert!(status.success(), "the process ended with {status}");
    }
}

/// The command `seawall serve` with the setting `runtime.core_dumps`, which also permits profilers
/// and strace to attach to the process.
pub fn serve(seawall: &Path) -> Command {
    let mut command = Command::new(seawall);
    command
        .args(["serve", "--allow-root"])
        .env("SEAWALL_RUNTIME__CORE_DUMPS", "true");
    command
}

/// The CPU time of a process since its start, user and system time together.
///
/// # Errors
/// If the process has ended, or the machine has no Linux `/proc`.
pub fn cpu_time(pid: u32) -> io::Result<Duration> {
    read_cpu(pid).map(|(user, system)| user + system)
}

/// User and system CPU time of a process since its start. Zero if the process has ended.
pub fn cpu_split(pid: u32) -> (Duration, Duration) {
    read_cpu(pid).unwrap_or_default()
}

/// The CPU time of the calling thread since its start.
///
/// # Errors
/// If the machine has no Linux `/proc`.
pub fn thread_cpu_time() -> io::Result<Duration> {
    let stat = fs::read_to_string("/proc/thread-self/stat")?;
    let (user, system) = parse_cpu(&stat);
    Ok(user + system)
}

fn read_cpu(pid: u32) -> io::Result<(Duration, Duration)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    Ok(parse_cpu(&stat))
}

fn parse_cpu(stat: &str) -> (Duration, Duration) {
    // The second field is the process name in parentheses. The name may contain spaces, so the
    // fields are counted from the closing parenthesis.
    let fields: Vec<&str> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .collect();
    let ticks = |index: usize| {
        fields
            .get(index)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    // Counted from the closing parenthesis, `utime` and `stime` have the indexes 11 and 12.
    let time = |ticks: u64| Duration::from_millis(ticks * CPU_TICK_MS);
    (time(ticks(11)), time(ticks(12)))
}

/// The CPU times of all threads of a process, in nanoseconds. They are exact enough for a process
/// that uses only a few clock ticks ([`CPU_TICK`]) of CPU time.
#[derive(Clone, Debug)]
pub struct ThreadTimes {
    pid: u32,
    /// The CPU time of each thread since its start, by thread id. The times of threads that have
    /// ended stay in this map.
    by_thread: BTreeMap<OsString, Duration>,
}

impl ThreadTimes {
    /// Reads the times of a process.
    ///
    /// # Errors
    /// If the process has ended, or the kernel does not count these times.
    pub fn of(pid: u32) -> io::Result<Self> {
        let by_thread = read_thread_times(pid)?;
        if by_thread.is_empty() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { pid, by_thread })
    }

    /// Reads the CPU times again. If a thread has ended since the times were last read, the CPU
    /// time that it used after that reading is not counted.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn update(&mut self) -> io::Result<()> {
        self.by_thread.extend(read_thread_times(self.pid)?);
        Ok(())
    }

    /// The sum of the times that were read.
    pub fn total(&self) -> Duration {
        self.by_thread.values().sum()
    }
}

fn read_thread_times(pid: u32) -> io::Result<BTreeMap<OsString, Duration>> {
    let mut times = BTreeMap::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?;
        let schedule = fs::read_to_string(thread.path().join("schedstat"));
        // The file is missing if the thread has just ended.
        if let Some(time) = schedule.ok().as_deref().and_then(parse_schedule) {
            times.insert(thread.file_name(), time);
        }
    }
    Ok(times)
}

/// The CPU time in `/proc/PID/task/TID/schedstat`. Its first field is the time on a CPU in
/// nanoseconds (proc(5)).
fn parse_schedule(schedule: &str) -> Option<Duration> {
    let nanoseconds = schedule.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// The resident memory of a process in bytes.
///
/// # Errors
/// If the process has ended.
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    memory_bytes(pid, "VmRSS:")
}

/// The peak resident memory of a process in bytes.
///
/// # Errors
/// If the process has ended.
pub fn peak_resident_bytes(pid: u32) -> io::Result<u64> {
    memory_bytes(pid, "VmHWM:")
}

fn memory_bytes(pid: u32, name: &str) -> io::Result<u64> {
    let status = BufReader::new(fs::File::open(format!("/proc/{pid}/status"))?);
    for line in status.lines() {
        if let Some(rest) = line?.strip_prefix(name) {
            let kibibytes = rest
                .trim()
                .trim_end_matches(" kB")
                .parse::<u64>()
                .unwrap_or(0);
            return Ok(kibibytes * 1024);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

/// Finds a loopback port that is free at this moment.
///
/// # Errors
/// If no port is free.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Starts HAProxy on the loopback port `port` in front of `server`, in TCP mode with two threads.
/// Writes the configuration file into `directory`. `None` if HAProxy is not installed.
///
/// # Errors
/// If HAProxy is installed and does not start.
pub fn haproxy(directory: &Path, server: &str, port: u16) -> io::Result<Option<Process>> {
    let text = format!(
        "global\n  nbthread 2\n  maxconn 9950\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
         timeout client 600s\n  timeout server 600s\nlisten mongo\n  bind 127.0.0.1:{port}\n  \
         server s {server}\n"
    );
    haproxy_with(directory, &text)
}

/// Starts HAProxy with the configuration `text`, which is written to a file in `directory`. If
/// HAProxy is not installed, returns `None` and prints a line that says so.
///
/// # Errors
/// If HAProxy is installed and does not start.
pub fn haproxy_with(directory: &Path, text: &str) -> io::Result<Option<Process>> {
    let program = [
        "/usr/sbin/haproxy",
        "/usr/local/sbin/haproxy",
        "/usr/bin/haproxy",
    ];
    let Some(program) = program.iter().map(PathBuf::from).find(|path| path.exists()) else {
        say("HAProxy is not installed, so this report has no rows of HAProxy.");
        return Ok(None);
    };
    let path = directory.join("haproxy.cfg");
    fs::write(&path, text)?;
    Process::start(Command::new(program).arg("-db").arg("-f").arg(path)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_a_thread_is_exact_to_the_nanosecond() {
        let time = parse_schedule("1234567 89 10\n");
        assert_eq!(time, Some(Duration::from_nanos(1_234_567)));
        assert_eq!(parse_schedule(""), None);
    }

    #[test]
    fn cpu_time_of_an_ended_thread_is_kept() {
        let mut times = ThreadTimes::of(std::process::id()).unwrap();
        let ended = Duration::from_secs(1_000_000);
        times.by_thread.insert("ended".into(), ended);
        times.update().unwrap();
        assert!(times.total() > ended);
    }
}
