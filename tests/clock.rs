//! Sets the system clock back while Seawall runs. Checks that clients can still connect, log in and
//! run operations, and that the history still counts these operations.
//!
//! The test needs `faketime` (libfaketime), so it runs only if it is requested, as in `.ci/run`:
//! `cargo test --test clock -- --ignored`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this file contains only tests"
)]

use std::{path::PathBuf, time::Duration};

use bson::doc;
use seawall_api::{Shapes, Status};
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, ROOT, ROOT_PASSWORD, Standalone},
    process::Process,
    raw::{Login, RawClient},
    scratch::Scratch,
    seawall::http,
};
use serde::de::DeserializeOwned;

const LIMIT: Duration = Duration::from_secs(30);

const SET_BACK: &str =
    "the clock was set back: steps of the history after the new time are dropped";

/// The path of the library that replaces the clock of a process (libfaketime).
fn library() -> PathBuf {
    let installed = std::fs::read_dir("/usr/lib").unwrap();
    let mut paths =
        installed.map(|entry| entry.unwrap().path().join("faketime/libfaketimeMT.so.1"));
    let library = paths.find(|path| path.exists());
    library.expect("libfaketime is installed (Debian package faketime)")
}

async fn get<T: DeserializeOwned>(seawall: &Process, path: &str) -> T {
    let admin = seawall.admin();
    let (status, body) = http(admin, "GET", path, &format!("Host: {admin}\r\n")).await;
    assert_eq!(status, 200, "{body}");
    seawall_api::read(serde_json::from_str(&body).unwrap()).unwrap()
}

async fn logged_in(seawall: &Process) -> RawClient {
    let address = seawall.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let outcome = client.login(&login).await.unwrap();
    assert!(outcome.is_authenticated());
    client
}

async fn finds(client: &mut RawClient, field: &str, count: usize) {
    for _ in 0..count {
        let find = doc! { "find": "things", "filter": { field: 1 } };
        assert!(client.command("test", find).await.unwrap().is_ok());
    }
}

/// The number of finds with a filter on `field` in the last ten minutes of the history.
async fn counted(seawall: &Process, field: &str) -> u64 {
    let shapes: Shapes = get(seawall, "/api/v1/shapes?since=10m").await;
    let text = format!("{{filter:{{{field}:?}}}}");
    let mut shapes = shapes.shapes.iter();
    shapes
        .find(|shape| shape.shape == text)
        .map_or(0, |shape| shape.count)
}

#[tokio::test]
#[ignore = "needs faketime; run by .ci/run"]
async fn clients_and_statistics_continue_after_the_clock_was_set_back_an_hour() {
    let options = Options {
        auth: true,
        ..Options::default()
    };
    let server = Standalone::start(options).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let time = scratch.write("time", "+0").unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri = {:?}\nhistory.directory = {:?}\nslow_log.threshold_ms = 0\n",
        server.uri(),
        scratch.join("history"),
    );
    let toml = scratch.write("seawall.toml", toml).unwrap();
    let variables = [
        ("LD_PRELOAD", library().to_str().unwrap().to_owned()),
        ("FAKETIME_TIMESTAMP_FILE", time.to_str().unwrap().to_owned()),
        ("FAKETIME_NO_CACHE", "1".to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
    ];
    let variables = variables
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let seawall = Process::serve_with(&toml, &variables).await;
    let mut client = logged_in(&seawall).await;
    finds(&mut client, "before", 5).await;
    let is_reported = async || counted(&seawall, "before").await == 5;
    eventually(LIMIT, is_reported).await.unwrap();

    scratch.write("time", "-3600").unwrap();
    let is_noticed = async || seawall.said(SET_BACK);
    let line = eventually(LIMIT, is_noticed).await.unwrap().to_string();
    assert!(line.contains("\"seconds\":3"), "{line}");
    // The client stays connected, new clients can log in, and the history counts new operations.
    finds(&mut client, "after", 7).await;
    finds(&mut logged_in(&seawall).await, "after", 4).await;
    let is_reported = async || counted(&seawall, "after").await == 11;
    eventually(LIMIT, is_reported).await.unwrap();
    assert_eq!(seawall.said_times(SET_BACK), 1);
    let status: Status = get(&seawall, "/api/v1/status").await;
    assert!(status.operations >= 16 && status.uptime_seconds >= 1.0);
}
