//! `seawall top` in a real terminal: what it shows, what its keys do, and what it leaves behind.
//!
//! Needs `tmux`; so it is run by its name, as `.ci/run` does: `cargo test --test terminal -- --ignored`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use bson::doc;
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, Standalone, unique_name},
    process::binary,
    raw::RawClient,
    seawall::Seawall,
};

const LIMIT: Duration = Duration::from_secs(30);

/// A terminal with a program in it; ended with the value.
struct Terminal(String);

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.tmux(&["kill-server"]));
    }
}

impl Terminal {
    fn start(program: &str) -> Self {
        let terminal = Self(unique_name("terminal"));
        let size = ["-x", "130", "-y", "40"];
        let mut arguments = vec!["new-session", "-d"];
        arguments.extend(size);
        // What it says at its end stays to be read.
        let kept = format!("{program}; echo \"ended with $?\"; exec cat");
        arguments.push(&kept);
        assert!(terminal.tmux(&arguments).status.success());
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command
            .args(["-L", &self.0, "-f", "/dev/null"])
            .args(arguments);
        command
            .stdin(Stdio::null())
            .output()
            .expect("tmux is there")
    }

    fn press(&self, keys: &[&str]) {
        let mut arguments = vec!["send-keys"];
        arguments.extend(keys);
        assert!(self.tmux(&arguments).status.success());
    }

    fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]);
        String::from_utf8(output.stdout).unwrap()
    }

    async fn shows(&self, text: &str) {
        let attempt = async || match self.screen() {
            screen if screen.contains(text) => Ok(()),
            screen => Err(format!("no {text:?} in\n{screen}")),
        };
        if let Err(error) = eventually(LIMIT, attempt).await {
            panic!("{error}");
        }
    }

    async fn shows_no(&self, text: &str) {
        let attempt = async || match self.screen() {
            screen if screen.contains(text) => Err(format!("{text:?} in\n{screen}")),
            _ => Ok(()),
        };
        if let Err(error) = eventually(LIMIT, attempt).await {
            panic!("{error}");
        }
    }
}

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn top_shows_shapes_sorts_filters_opens_and_leaves_the_terminal_as_it_was() {
    let program = binary().await.display().to_string();
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let address = seawall.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    for (collection, count) in [("orders", 40), ("customers", 10)] {
        for value in 0..count {
            let command = doc! { "find": collection, "filter": { "value": value } };
            client.command("shop", command).await.unwrap();
        }
    }
    let admin = seawall.app.admin_address().unwrap();
    let terminal = Terminal::start(&format!("{program} top --admin http://{admin}"));
    terminal.shows("shop.orders").await;
    terminal.shows("shop.customers").await;
    // A filter leaves one of them.
    terminal.press(&["/", "c", "u", "s", "t", "Enter"]);
    terminal.shows_no("shop.orders").await;
    terminal.shows("shop.customers").await;
    terminal.press(&["Escape"]);
    terminal.shows("shop.orders").await;
    // By count the busier one is the first, and opens.
    terminal.press(&["c", "Home", "Enter"]);
    terminal.shows_no("shop.customers").await;
    terminal.shows("{filter:{value:?}}").await;
    terminal.press(&["Escape"]);
    terminal.shows("shop.customers").await;
    for (key, pane) in [
        ("2", "storm"),
        ("3", "stall"),
        ("4", "change"),
        ("5", "pool"),
    ] {
        terminal.press(&[key]);
        terminal.shows(pane).await;
    }
    terminal.press(&["q"]);
    terminal.shows("ended with 0").await;
    terminal.shows_no("shop.orders").await;
}

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn top_goes_on_when_the_proxy_does_not_answer_and_ends_when_interrupted() {
    let program = binary().await.display().to_string();
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let admin = seawall.app.admin_address().unwrap().to_owned();
    let terminal = Terminal::start(&format!("{program} top --admin http://{admin}"));
    terminal.shows("up ").await;
    drop(seawall);
    terminal.shows("refused").await;
    terminal.press(&["C-c"]);
    terminal.shows("ended with 130").await;
}
