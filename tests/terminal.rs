//! Tests `seawall top` and `seawall report` in a real terminal: their output, their keys, and the
//! terminal's state afterwards. Also tests the colors of the log.
//!
//! The tests need `tmux`. So they run only if they are requested, as in `.ci/run`: `cargo test
//! --test terminal -- --ignored`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "this file contains only tests"
)]

use std::{
    process::{Command, Output, Stdio},
    time::Duration,
};

use bson::doc;
use rustix::process::{Pid, Signal, kill_process};
use seawall_api::Shapes;
use seawall_tests::{
    eventually::eventually,
    mongod::{Options, Standalone, unique_name},
    process::binary,
    raw::RawClient,
    scratch::Scratch,
    seawall::Seawall,
};

const LIMIT: Duration = Duration::from_secs(30);

/// A terminal that runs a program. Dropping it ends the program.
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
        // `cat` keeps the terminal open, so the last output of the program stays on the screen.
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
            .expect("tmux is installed")
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

    /// The whole output, including the lines above the screen. Wrapped lines are joined.
    fn printed(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p", "-J", "-S", "-"]);
        String::from_utf8(output.stdout).unwrap()
    }

    async fn shows(&self, text: &str) {
        let attempt = async || match self.screen() {
            screen if screen.contains(text) => Ok(()),
            screen => Err(format!("expected {text:?} on the screen:\n{screen}")),
        };
        if let Err(error) = eventually(LIMIT, attempt).await {
            panic!("{error}");
        }
    }

    async fn shows_no(&self, text: &str) {
        let attempt = async || match self.screen() {
            screen if screen.contains(text) => {
                Err(format!("expected no {text:?} on the screen:\n{screen}"))
            }
            _ => Ok(()),
        };
        if let Err(error) = eventually(LIMIT, attempt).await {
            panic!("{error}");
        }
    }
}

/// Runs finds on two collections: more finds on `orders` than on `customers`.
async fn shop(seawall: &Seawall) {
    let address = seawall.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    for (collection, count) in [("orders", 40), ("customers", 10)] {
        for value in 0..count {
            let command = doc! { "find": collection, "filter": { "value": value } };
            client.command("shop", command).await.unwrap();
        }
    }
}

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn seawall_top_sorts_and_filters_and_opens_query_shapes_and_restores_the_terminal() {
    let program = binary().display().to_string();
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    shop(&seawall).await;
    let admin = seawall.app.admin_address().unwrap();
    let terminal = Terminal::start(&format!("{program} top --admin http://{admin}"));
    terminal.shows("shop.orders").await;
    terminal.shows("shop.customers").await;
    // With a filter, only one collection is shown.
    terminal.press(&["/", "c", "u", "s", "t", "Enter"]);
    terminal.shows_no("shop.orders").await;
    terminal.shows("shop.customers").await;
    terminal.press(&["Escape"]);
    terminal.shows("shop.orders").await;
    // `c` sorts by count, so the shape with more operations is the first. Enter opens this shape.
    terminal.press(&["c", "Home", "Enter"]);
    terminal.shows_no("shop.customers").await;
    terminal.shows("{filter:{value:?}}").await;
    terminal.press(&["Escape"]);
    terminal.shows("shop.customers").await;
    for (key, pane) in [
        ("2", "storm"),
        ("3", "stall"),
        ("4", "change"),
        ("5", "server"),
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
async fn seawall_top_shows_heat_maps_even_if_the_variable_no_color_is_set() {
    let program = binary().display().to_string();
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    shop(&seawall).await;
    let admin = seawall.app.admin_address().unwrap();
    let top = format!("NO_COLOR=1 {program} top --since 10m --admin http://{admin}");
    let terminal = Terminal::start(&top);
    terminal.shows("shop.orders").await;
    terminal.press(&["6"]);
    terminal
        .shows("50 operations  latency of all operations")
        .await;
    for part in ["█", "└─", "UTC", "operations in a cell of 10 s"] {
        terminal.shows(part).await;
    }
    terminal.press(&["p"]);
    terminal
        .shows("latency of all operations, phase permit")
        .await;
    // `v` switches the heat map from all operations to one server, and then to one namespace.
    terminal.press(&["0", "v"]);
    terminal
        .shows("50 operations  latency of server 127.0.0.1:")
        .await;
    terminal.press(&["v"]);
    terminal
        .shows("10 operations  latency of namespace shop.customers")
        .await;
    terminal.press(&["Down"]);
    terminal
        .shows("40 operations  latency of namespace shop.orders")
        .await;
    // `h` opens the heat map of the shape that is selected in the table.
    terminal.press(&["1", "c", "Home", "h"]);
    terminal
        .shows("40 operations  latency of shape find shop.orders")
        .await;
    terminal.press(&["q"]);
    terminal.shows("ended with 0").await;
}

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn seawall_top_sorts_by_the_column_of_the_pressed_key_and_shows_a_histogram_of_one_shape() {
    let program = binary().display().to_string();
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    shop(&seawall).await;
    let admin = seawall.app.admin_address().unwrap();
    let terminal = Terminal::start(&format!("{program} top --since 10m --admin http://{admin}"));
    terminal.shows("shop.orders").await;
    for (key, sort) in [
        ("c", "count"),
        ("p", "p99"),
        ("b", "bytes"),
        ("e", "errors"),
        ("d", "documents"),
        ("t", "total_time"),
    ] {
        terminal.press(&[key]);
        terminal.shows(&format!(", by {sort}")).await;
    }
    // A filter also applies to the view of one shape: a shape that does not match is not shown.
    terminal.press(&["/", "o", "r", "d", "e", "r", "s", "Enter"]);
    terminal.shows(", filter: orders").await;
    terminal.shows_no("shop.customers").await;
    terminal.press(&["Enter"]);
    for part in [
        "40 operations, 0 errors",
        "operations, max ",
        " UTC",
        " phases ",
        "distribution, logarithmic",
    ] {
        terminal.shows(part).await;
    }
    terminal.press(&["l"]);
    terminal.shows("distribution, linear, 0 to ").await;
    // `]` raises the lower end of the histogram.
    terminal.press(&["]", "]"]);
    terminal.shows_no("distribution, linear, 0 to ").await;
    terminal.shows("distribution, linear, ").await;
    terminal.press(&["0"]);
    terminal.shows("distribution, linear, 0 to ").await;
    terminal.press(&["}"]);
    terminal.shows("distribution, linear, 0 to ").await;
    terminal.press(&["l"]);
    terminal.shows("distribution, logarithmic").await;
    terminal.press(&["q"]);
    terminal.shows("ended with 0").await;
}

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn reports_can_be_printed_saved_and_compared() {
    let program = binary().display().to_string();
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    shop(&seawall).await;
    let is_reported = async || {
        let now: Shapes = seawall.api("/api/v1/shapes?since=10m").await;
        let of = |collection: &str| {
            let mut shapes = now.shapes.iter();
            shapes.any(|shape| shape.collection == collection)
        };
        of("orders") && of("customers")
    };
    eventually(LIMIT, is_reported).await.unwrap();
    let admin = seawall.app.admin_address().unwrap();
    let scratch = Scratch::create().unwrap();
    let file = |name: &str| scratch.path().join(name);
    let (html, json) = (file("report.html"), file("report.json"));
    let report = format!("{program} report --since 10m --admin http://{admin}");
    let commands = [
        report.clone(),
        format!(
            "{report} --against 2h --format html --output {}",
            html.display()
        ),
        format!("{report} --format json | cat > {}", json.display()),
        format!("{program} report compare {0} {0}", json.display()),
    ];
    let terminal = Terminal::start(&commands.join(" && "));
    terminal.shows("ended with 0").await;
    let printed = terminal.printed();
    let (report, comparison) = printed.split_once("Seawall comparison").unwrap();
    for part in [
        "Seawall report",
        "Timeline",
        "shop.orders",
        "shop.customers",
        "Stalls",
        "now compared with yesterday",
        "not compared: no data for the baseline",
        "Pools",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(comparison.contains("\nChanges\n"), "{comparison}");
    assert!(comparison.contains("count/s") && comparison.contains("nothing changed"));
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("\"collection\":\"orders\"") && page.contains("\"against\":\"2h\""));
    assert!(page.trim_end().ends_with("</html>"));
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    assert_eq!(kept["seawall_report"], 1);
}

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn seawall_top_continues_while_the_proxy_is_unreachable_and_ends_on_interrupt() {
    let program = binary().display().to_string();
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

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn seawall_top_restores_the_terminal_if_another_program_interrupts_it() {
    let program = binary().display().to_string();
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    shop(&seawall).await;
    let admin = seawall.app.admin_address().unwrap();
    let scratch = Scratch::create().unwrap();
    let file = scratch.join("pid");
    let terminal = Terminal::start(&format!(
        "sh -c 'echo $$ > {}; exec {program} top --admin http://{admin}'",
        file.display()
    ));
    terminal.shows("shop.orders").await;
    let pid = std::fs::read_to_string(file).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    terminal.shows("ended with 130").await;
    terminal.shows_no("shop.orders").await;
}

#[tokio::test]
#[ignore = "needs tmux; run by .ci/run"]
async fn the_log_has_no_colors_if_the_variable_no_color_is_set() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\n",
        server.uri()
    );
    let toml = scratch.write("seawall.toml", toml).unwrap();
    let serve = format!(
        "{} serve --allow-root --config {}",
        binary().display(),
        toml.display()
    );
    for (variables, has_colours) in [("-u NO_COLOR", true), ("NO_COLOR=1", false)] {
        // Ctrl-C ends Seawall, because the SIGHUP at the end of the terminal would not end it. With
        // the trap, the shell survives this Ctrl-C and prints the exit code.
        let terminal = Terminal::start(&format!("trap : INT; env {variables} {serve}"));
        terminal.shows("serving").await;
        // With `-e`, the captured text contains the escape sequences of colors.
        let captured = terminal.tmux(&["capture-pane", "-p", "-e"]);
        terminal.press(&["C-c"]);
        terminal.shows("ended with 130").await;
        let log = String::from_utf8(captured.stdout).unwrap();
        assert_eq!(log.contains('\u{1b}'), has_colours, "{variables}: {log}");
    }
}
