//! Tests that run `seawall demo` with the real binary, as a new user runs it.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use seawall_api::Status;
use seawall_tests::{
    crowd, eventually::eventually, process::binary, scratch::Scratch, seawall::http,
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

/// Time limit of a demonstration. It is long, because a mongod may have to be downloaded on a busy
/// machine.
const DEMO_LIMIT: Duration = Duration::from_secs(300);

#[tokio::test]
async fn a_demonstration_with_the_option_once_ends_and_its_counts_equal_those_of_the_driver() {
    let _turn = crowd::turn().await;
    let directory = Scratch::create().unwrap();
    let output = demo(&directory, &["--once"]).output();
    let output: Output = timeout(DEMO_LIMIT, output).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{text}\n{errors}");

    let mut commands = 0;
    for line in text.lines() {
        let Some((sent, served)) = counts(line) else {
            continue;
        };
        assert_eq!(sent, served, "{line}");
        commands += 1;
    }
    assert!(commands >= 10, "{text}");
    for command in ["find", "getMore", "insert", "commitTransaction"] {
        let start = format!("{command}: driver ");
        assert!(text.lines().any(|line| line.starts_with(&start)), "{text}");
    }
    assert_nothing_is_left(directory.path());
}

#[tokio::test]
async fn a_demonstration_whose_report_cannot_be_written_exits_with_69() {
    let _turn = crowd::turn().await;
    let directory = Scratch::create().unwrap();
    // A write to this file fails like a write to a full disk.
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let child = demo(&directory, &["--once"]).stdout(full).spawn().unwrap();
    let output = timeout(DEMO_LIMIT, child.wait_with_output()).await;
    let output = output.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr);
    let expected = "seawall: cannot write to standard output: ";
    assert!(message.contains(expected), "{message}");
    assert_nothing_is_left(directory.path());
}

#[tokio::test]
async fn an_interrupted_demonstration_leaves_no_process_and_no_file() {
    let _turn = crowd::turn().await;
    let directory = Scratch::create().unwrap();
    let mut child = demo(&directory, &[]).spawn().unwrap();
    let stdout = child.stdout.take().unwrap();
    let mut lines = BufReader::new(stdout).lines();
    let report = async {
        let mut admin = None;
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once("dashboard   http://") {
                admin = Some(address.trim_end_matches('/').to_owned());
            }
            if line.starts_with("Ctrl-C ends") {
                break;
            }
        }
        admin
    };
    let admin = timeout(DEMO_LIMIT, report).await.unwrap().unwrap();
    let operations = async || {
        let host = format!("Host: {admin}\r\n");
        let (_, body) = http(&admin, "GET", "/api/v1/status", &host).await;
        let status: Status = serde_json::from_str(&body).unwrap();
        status.operations
    };
    let before = operations().await;
    let has_progress = async || operations().await > before + 20;
    eventually(DEMO_LIMIT, has_progress).await.unwrap();
    assert!(!processes_of(directory.path()).is_empty());
    interrupt(&child);
    let status = timeout(DEMO_LIMIT, child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_nothing_is_left(directory.path());
}

#[tokio::test]
async fn a_demonstration_interrupted_during_its_start_leaves_no_process_and_no_file() {
    let directory = Scratch::create().unwrap();
    let mut child = demo(&directory, &[]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let starts = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.starts_with("Starting") {
                return true;
            }
        }
        false
    };
    assert!(timeout(DEMO_LIMIT, starts).await.unwrap());
    interrupt(&child);
    let status = timeout(DEMO_LIMIT, child.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(130));
    assert_nothing_is_left(directory.path());
}

/// Parses a line such as `find: driver 201, Seawall 201`, which may end with `  DIFFERENT`. Returns
/// the two counts.
fn counts(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.split_once(": driver ")?;
    let (sent, served) = counts.split_once(", Seawall ")?;
    let served = served.split(' ').next()?;
    Some((sent.parse().ok()?, served.parse().ok()?))
}

fn demo(directory: &Scratch, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .arg("demo")
        .args(arguments)
        // The demonstration creates the directory of its mongod in `TMPDIR`, so the test can check
        // that no file is left.
        .env("TMPDIR", directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

fn interrupt(child: &tokio::process::Child) {
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
}

fn assert_nothing_is_left(directory: &Path) {
    let files: Vec<_> = fs::read_dir(directory).unwrap().collect();
    assert!(files.is_empty(), "{files:?}");
    let processes = processes_of(directory);
    assert!(processes.is_empty(), "{processes:?}");
}

/// The command line of each process whose command line contains the path of this directory.
fn processes_of(directory: &Path) -> Vec<String> {
    let wanted = directory.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| {
        let line = fs::read(process.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(wanted)).collect()
}
