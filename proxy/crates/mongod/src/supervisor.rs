//! Supervises one run of a mongod, with a shell that outlives this process and cleans up.
//!
//! The kernel can kill a child process together with its parent, but that needs unsafe code. A pipe
//! has the same effect: the shell reads from the pipe, and only this process has its writing end.
//! When this process ends for any reason, the kernel closes the pipe.
//!
//! ```text
//!  this process ──stdin──► shell ──► mongod          waits for it, reports its pid and status
//!               ◄─stdout──   └─────► watcher         reads stdin; at its end kills mongod
//! ```
//!
//! While mongod runs, the watcher reads the shell's input. When mongod has ended, the shell itself
//! reads one line. If there is a line, the directory is still needed; if the input has ended, the
//! shell removes the directory. The shell kills the watcher as soon as mongod has ended. So the
//! watcher cannot kill another process that later gets mongod's pid.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;

use rustix::process::Pid;
use tokio::sync::watch;

use super::error::Error;

/// The state of a supervised mongod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    Starting,
    Running(Pid),
    /// The mongod has ended, with the status that its parent process, a shell, reported; `None` if
    /// the shell was killed.
    Ended(Option<i32>),
}

/// A mongod and its parent process, a shell. The shell cleans up even if the process that started
/// the shell is killed. Dropping the supervisor kills mongod, removes mongod's directory and waits
/// until mongod and the shell have ended.
#[derive(Debug)]
pub(super) struct Supervisor {
    shell: Child,
    /// The writing end of the pipe to the shell. When it is closed (`None`), the shell kills
    /// mongod, if mongod still runs, and then ends.
    input: Option<ChildStdin>,
    /// The state of the run. Tests with different runtimes may share a mongod, and this kind of
    /// channel depends on no runtime.
    run: watch::Receiver<Run>,
}

impl Supervisor {
    /// Starts `program`. Its standard output and error go to the file `output` in `directory`.
    pub(super) fn spawn<I, S>(directory: &Path, program: &Path, arguments: I) -> Result<Self, Error>
    where
        I: IntoIterator<Item = S>,
        S: AsRef<OsStr>,
    {
        let missing = |source| Error::ProgramMissing {
            program: SHELL,
            source,
        };
        let mut shell = Command::new(SHELL)
            .args(["-c", SCRIPT, "mongod-supervisor"])
            .arg(directory)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // The shell and mongod get their own process group. So Ctrl-C in the terminal
            // interrupts only the process that calls `spawn`, which then decides when mongod ends.
            .process_group(0)
            .spawn()
            .map_err(missing)?;
        let input = shell.stdin.take();
        let output = shell.stdout.take().expect("standard output is piped");
        let (sender, run) = watch::channel(Run::Starting);
        let supervisor = Self { shell, input, run };
        thread::Builder::new()
            .name("mongod-supervisor".to_owned())
            .spawn(move || follow(output, &sender))
            .map_err(missing)?;
        Ok(supervisor)
    }

    pub(super) fn run(&self) -> Run {
        *self.run.borrow()
    }

    /// Waits until mongod has ended, and returns its status; `None` if the status is unknown.
    /// Cancel safe.
    pub(super) async fn ended(&self) -> Option<i32> {
        let mut run = self.run.clone();
        match run
            .wait_for(|run| matches!(run, Run::Ended(_)))
            .await
            .as_deref()
        {
            Ok(Run::Ended(status)) => *status,
            Ok(Run::Starting | Run::Running(_)) | Err(_) => None,
        }
    }

    /// Ends the shell, and keeps the directory for the next run of mongod. The caller must wait for
    /// the end of mongod first: see [`Self::ended`].
    pub(super) fn leave_directory(&mut self) {
        if let Some(mut input) = self.input.take() {
            // Ignore an error: it means that the shell has ended, so it can no longer remove the
            // directory.
            drop(input.write_all(b"leave\n"));
        }
        drop(self.shell.wait());
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.input.take());
        // The end of the input makes the shell kill mongod and end, which takes milliseconds.
        drop(self.shell.wait());
    }
}

/// Reads the two lines that the shell writes (pid and status), and publishes the state after each
/// line. If the output ends early, the state is `Ended(None)`.
fn follow(output: impl Read, run: &watch::Sender<Run>) {
    let mut lines = BufReader::new(output.take(MAX_OUTPUT_BYTES)).lines();
    let mut number = || lines.next()?.ok()?.trim().parse().ok();
    if let Some(pid) = number().and_then(Pid::from_raw) {
        run.send_replace(Run::Running(pid));
        run.send_replace(Run::Ended(number()));
    } else {
        run.send_replace(Run::Ended(None));
    }
}

const SHELL: &str = "sh";
/// Maximum size of the shell's output. Two numbers are expected; the limit protects against a
/// program that only looks like a shell.
const MAX_OUTPUT_BYTES: u64 = 256;

/// The shell's script. It starts mongod and a watcher, which is a command in the background. The
/// watcher waits in `read` until the shell's input ends. It then kills mongod. A shell without job
/// control gives commands in the background no input. So the watcher reads from descriptor 3, which
/// is a copy of the shell's input.
///
/// After mongod has ended, the shell reads from its input with the last `read`. If the input has
/// ended, this `read` fails, and the shell removes the directory. If the process that started the
/// shell is dead, no process reads the shell's output, so `echo` causes `SIGPIPE`. The shell
/// ignores this signal, so that it can still remove the directory.
const SCRIPT: &str = r#"
directory=$1
shift
trap : PIPE
exec 3<&0 </dev/null
"$@" 3<&- >>"$directory/output" 2>&1 &
mongod=$!
{ read -r line <&3; kill -9 "$mongod"; } >/dev/null &
watcher=$!
echo "$mongod"
wait "$mongod"
status=$?
kill -9 "$watcher"
wait "$watcher"
echo "$status"
read -r line <&3 || rm -rf "$directory"
"#;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::time::Duration;

    use rustix::process::{Signal, kill_process, test_kill_process};

    use super::super::process::random_name;
    use super::*;

    fn directory() -> PathBuf {
        let path = std::env::temp_dir().join(random_name("supervisor-").unwrap());
        fs::create_dir(&path).unwrap();
        path
    }

    fn spawn(directory: &Path, script: &str) -> Supervisor {
        Supervisor::spawn(directory, Path::new("/bin/sh"), ["-c", script]).unwrap()
    }

    async fn running(supervisor: &Supervisor) -> Pid {
        let mut run = supervisor.run.clone();
        let run = *run.wait_for(|run| *run != Run::Starting).await.unwrap();
        let Run::Running(pid) = run else {
            panic!("{run:?}");
        };
        pid
    }

    #[tokio::test]
    async fn dropping_the_supervisor_kills_the_process_and_removes_the_directory() {
        let directory = directory();
        let supervisor = spawn(&directory, "exec sleep 1000");
        let pid = running(&supervisor).await;
        // A suspended process must be killed too.
        kill_process(pid, Signal::STOP).unwrap();
        drop(supervisor);
        assert!(test_kill_process(pid).is_err());
        assert!(!directory.exists());
    }

    #[tokio::test]
    async fn status_and_output_are_kept_after_the_process_has_exited() {
        let directory = directory();
        let supervisor = spawn(&directory, "echo a last word; exit 48");
        assert_eq!(supervisor.ended().await, Some(48));
        assert_eq!(
            fs::read_to_string(directory.join("output")).unwrap(),
            "a last word\n"
        );
        drop(supervisor);
        assert!(!directory.exists());
    }

    #[tokio::test]
    async fn status_of_a_killed_process_is_128_plus_the_signal() {
        let directory = directory();
        let supervisor = spawn(&directory, "exec sleep 1000");
        kill_process(running(&supervisor).await, Signal::KILL).unwrap();
        assert_eq!(supervisor.ended().await, Some(128 + 9));
    }

    #[tokio::test]
    async fn leave_directory_keeps_the_directory_for_the_next_run() {
        let directory = directory();
        let mut first = spawn(&directory, "exit 0");
        assert_eq!(first.ended().await, Some(0));
        first.leave_directory();
        drop(first);
        assert!(directory.exists());
        drop(spawn(&directory, "exec sleep 1000"));
        assert!(!directory.exists());
    }

    #[tokio::test]
    async fn dropping_the_supervisor_kills_the_process_even_if_its_parent_shell_was_killed() {
        let directory = directory();
        let supervisor = spawn(
            &directory,
            "trap 'exit 3' TERM; while :; do read -r _ < fifo; done",
        );
        let pid = running(&supervisor).await;
        let shell = i32::try_from(supervisor.shell.id())
            .ok()
            .and_then(Pid::from_raw)
            .unwrap();
        kill_process(shell, Signal::KILL).unwrap();
        assert_eq!(supervisor.ended().await, None);
        drop(supervisor);
        // The killed shell cannot report the end of its mongod, so the test polls the process. The
        // watcher needs a moment to notice the end of its input and to kill the process.
        let gone = async {
            while test_kill_process(pid).is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone)
            .await
            .unwrap();
        fs::remove_dir_all(directory).unwrap();
    }
}
