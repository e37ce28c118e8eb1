//! Parts of the bench `storm` that measure without a reconnect storm: the system calls of a login,
//! the memory of an idle client, and the run time of scripts that each establish one connection.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
    time::Duration,
};

use seawall_tests::scratch::Scratch;
use tokio::time::Instant;

use crate::{
    process::resident_bytes,
    storm_testbed::{LoadProcess, StormTestbed},
    strace::{Calls, Traced},
};

/// Seawall's system calls while clients repeatedly connect, log in, run a find and disconnect.
#[derive(Debug)]
pub struct LoginCalls {
    /// Number of client logins while the calls were counted.
    pub logins: f64,
    /// Number of system calls in the same time, by name.
    pub calls: Calls,
}

/// Counts Seawall's system calls for `seconds` seconds, while `clients` clients repeatedly connect,
/// log in, run a find and disconnect. `None` if Seawall does not run or strace is not installed.
pub async fn calls(testbed: &StormTestbed, clients: usize, seconds: u64) -> Option<LoginCalls> {
    let traced = Traced::attach(testbed.seawall_id()?).await?;
    let before = testbed.counts().await.client_logins;
    let arguments = [
        "storm".to_owned(),
        testbed.through(),
        "--clients".to_owned(),
        clients.to_string(),
        "--duration-s".to_owned(),
        seconds.to_string(),
        "--timeouts-ms".to_owned(),
        "5000".to_owned(),
    ];
    LoadProcess::start(&arguments).report().await;
    let logins = testbed.counts().await.client_logins - before;
    let calls = traced.finish();
    Some(LoginCalls { logins, calls })
}

/// Seawall's memory and connections while clients that have logged in are idle.
#[derive(Clone, Copy, Debug)]
pub struct IdleClients {
    /// Number of connected clients at the time of the measurement.
    pub connected: f64,
    /// Growth of Seawall's resident memory per client, in bytes.
    pub bytes_each: f64,
    /// Number of open server connections while the clients are idle.
    pub server_connections: f64,
}

/// Runs a load of `clients` clients for `seconds`. Each client connects at its first operation,
/// which is due within about 15 seconds. Then it stays connected, and runs an operation about every
/// 15 seconds. The measurement is five seconds before the end. So `seconds` must be more than 20:
/// otherwise some clients may not be connected yet.
pub async fn idle(testbed: &StormTestbed, clients: usize, seconds: u64) -> IdleClients {
    let process = testbed.seawall_id().expect("Seawall runs");
    let before = resident_bytes(process).expect("Seawall runs");
    let arguments = [
        "storm".to_owned(),
        testbed.through(),
        "--keep".to_owned(),
        (clients / 15).to_string(),
        "--clients".to_owned(),
        clients.to_string(),
        "--timeouts-ms".to_owned(),
        "60000".to_owned(),
        "--duration-s".to_owned(),
        seconds.to_string(),
    ];
    let began = Instant::now();
    let load = LoadProcess::start(&arguments);
    // The measurement is late, because Seawall frees buffers while clients are idle. It is not
    // later than five seconds before the end of the load, because all clients must still be
    // connected.
    let until = Duration::from_secs(seconds.saturating_sub(5));
    tokio::time::sleep(until.saturating_sub(began.elapsed())).await;
    let (connected, open) = (testbed.clients().await, testbed.counts().await.open);
    let after = resident_bytes(process).expect("Seawall runs");
    load.report().await;
    let grown = u32::try_from(after.saturating_sub(before)).map_or(f64::NAN, f64::from);
    IdleClients {
        connected,
        bytes_each: grown / connected,
        server_connections: open,
    }
}

/// A PHP script like a page of a web application: it establishes one connection and runs one find.
const PAGE: &str = r#"<?php
$manager = new MongoDB\Driver\Manager($argv[1]);
$query = new MongoDB\Driver\Query(['_id' => 1], ['limit' => 1]);
foreach ($manager->executeQuery('bench.pages', $query) as $document) { }
"#;

/// Runs a PHP script `runs` times, one run after another. Each run establishes one connection.
/// Returns the elapsed time of all runs; `None` if PHP or its MongoDB driver is not installed.
pub fn pages(uri: &str, runs: usize) -> Option<Duration> {
    let scratch = Scratch::create().expect("the directory can be created");
    let page = scratch.path().join("page.php");
    std::fs::write(&page, PAGE).expect("the file can be written");
    let mut has_driver = Command::new("php");
    has_driver.args(["-r", "exit(extension_loaded('mongodb') ? 0 : 1);"]);
    if !has_driver.status().is_ok_and(|status| status.success()) {
        return None;
    }
    let began = Instant::now();
    for _ in 0..runs {
        let output = run(&page, uri);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.is_empty(), "{printed}");
    }
    Some(began.elapsed())
}

fn run(page: &Path, uri: &str) -> Output {
    let mut php = Command::new("php");
    php.arg(page).arg(uri).stdin(Stdio::null());
    php.output().expect("php runs")
}
