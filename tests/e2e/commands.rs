//! The commands for a running proxy (for example `seawall status`), with the real binary.

use std::{
    fs::File,
    io,
    process::{Command, Output, Stdio},
    time::Duration,
};

use seawall_api::{Clients, Configuration, Pools, Status};
use seawall_tests::{
    eventually::eventually,
    process::{Process, binary, run, run_in},
    raw::RawClient,
    scratch::Scratch,
    seawall::{Options, Seawall, http},
};

use crate::served::{Served, described_value};

const LIMIT: Duration = Duration::from_secs(60);

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that must succeed, and returns its output.
async fn show(served: &Served, arguments: &[&str]) -> String {
    let admin = ["--admin", served.process.admin()];
    let output = run(&[arguments, &admin].concat()).await;
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        stderr(&output)
    );
    text(&output)
}

#[tokio::test]
async fn seawall_commands_show_the_state_and_the_configuration() {
    let served = Served::start("pool.max_pool_size = 7\n").await;
    show(&served, &["wait"]).await;
    show(&served, &["health"]).await;
    show(&served, &["health", "--ready"]).await;
    let status = show(&served, &["status"]).await;
    assert!(
        status.contains("serving") && status.contains("Single"),
        "{status}"
    );
    let status: Status = serde_json::from_str(&show(&served, &["status", "--json"]).await).unwrap();
    assert_eq!(status.mode, "pooled");
    assert!(show(&served, &["pools"]).await.contains("ready"));
    let pools: Pools = serde_json::from_str(&show(&served, &["pools", "--json"]).await).unwrap();
    assert_eq!(pools.pools.len(), 1);
    let address = served.process.address().parse().unwrap();
    let _clients = [
        RawClient::connect(address).await.unwrap(),
        RawClient::connect(address).await.unwrap(),
    ];
    let both = async || show(&served, &["clients"]).await.lines().count() == 3;
    eventually(LIMIT, both).await.unwrap();
    assert!(show(&served, &["clients"]).await.starts_with("id"));
    let one = show(&served, &["clients", "--json", "--limit", "1"]).await;
    let one: Clients = serde_json::from_str(&one).unwrap();
    assert_eq!((one.clients.len(), one.count), (1, 2));
    let configuration = show(&served, &["config"]).await;
    let line = configuration
        .lines()
        .find(|line| line.starts_with("pool.max_pool_size"));
    let words: Vec<_> = line.unwrap().split_whitespace().collect();
    assert_eq!(words, ["pool.max_pool_size", "7", "file"]);
    let json = show(&served, &["config", "--json"]).await;
    let json: Configuration = serde_json::from_str(&json).unwrap();
    assert!(configuration.contains(&json.hash));
}

#[tokio::test]
async fn a_report_on_more_than_a_week_is_refused_with_exit_code_64() {
    let served = Served::start("").await;
    let report = ["report", "--since", "8d", "--admin", served.process.admin()];
    let output = run(&report).await;
    assert_eq!(output.status.code(), Some(64));
    assert!(
        stderr(&output).contains("expected a time from 1s to 7d"),
        "{}",
        stderr(&output)
    );
}

/// `warning` is not a level, so the log library would treat it as the name of a target. The log
/// would then contain no message of Seawall.
#[tokio::test]
async fn serve_and_check_refuse_a_log_filter_that_sets_no_level() {
    let scratch = Scratch::create().unwrap();
    let deployment = ["--deployment", "mongodb://127.0.0.1:1/"];
    let addresses = ["--listen", "127.0.0.1:0", "--admin", "off"];
    let serve = [&["serve", "--allow-root"][..], &addresses, &deployment].concat();
    let check = [&["check"][..], &deployment].concat();
    for arguments in [serve, check] {
        let variables = [("SEAWALL_LOG", "warning")];
        let output = run_in(scratch.path(), &variables, &arguments).await;
        assert_eq!(output.status.code(), Some(64));
        let message = stderr(&output);
        assert!(
            message.contains(r#"SEAWALL_LOG = "warning": must be a level"#),
            "{message}"
        );
    }
}

#[tokio::test]
async fn the_configuration_shows_the_source_of_each_value_and_the_value_in_effect() {
    let scratch = Scratch::create().unwrap();
    let server = seawall_tests::mongod::shared_standalone().await.unwrap();
    let toml = format!(
        "deployment.uri = {:?}\nadmin.address = \"127.0.0.1:0\"\npool.max_pool_size = 7\n\
         listen.address = \"192.0.2.1:1\"\nlisten.max_client_connections = 1000000\n",
        server.uri()
    );
    let file = scratch.write("seawall.toml", toml).unwrap();
    let shell = "exec \"$@\" --listen 127.0.0.1:0";
    let launcher = [
        "env",
        "SEAWALL_POOL__MIN_POOL_SIZE=2",
        "SEAWALL_LOG=seawall=info",
        "sh",
        "-c",
        shell,
        "sh",
    ];
    let process = Process::launch(&launcher, &file).await;
    for (key, value, origin, in_effect) in [
        ("listen.address", r#""127.0.0.1:0""#, "flag", None),
        ("pool.min_pool_size", "2", "environment", None),
        ("pool.max_pool_size", "7", "file", None),
        ("pool.max_connecting", "2", "default", None),
        ("log.level", r#""info""#, "default", Some("seawall=info")),
    ] {
        let described = described_value(process.admin(), key).await;
        assert_eq!(
            (&*described.value, &*described.origin),
            (value, origin),
            "{key}"
        );
        assert_eq!(described.in_effect.as_deref(), in_effect, "{key}");
    }
    // A million clients need more file descriptors than any test machine allows. So Seawall uses a
    // lower limit than the configured one.
    let clients = described_value(process.admin(), "listen.max_client_connections").await;
    let in_effect: u64 = clients.in_effect.unwrap().parse().unwrap();
    assert!(
        in_effect < 1_000_000,
        "expected a limit below 1,000,000 clients to be in effect, got {in_effect}"
    );
    let shown = run(&["config", "--admin", process.admin()]).await;
    assert!(text(&shown).contains(r#""info" (in effect: seawall=info)"#));
}

/// Runs a command whose standard output is `output`. The command must print a long text.
fn print_to(output: impl Into<Stdio>, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.args(arguments).stdout(output);
    command.output().unwrap()
}

#[test]
fn a_command_whose_output_cannot_be_written_exits_with_69_unless_the_reader_closed_the_pipe() {
    for arguments in [
        &["completions", "bash"],
        &["config", "schema"],
        &["config", "--help"],
    ] {
        // A write to this file fails like a write to a full disk.
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = print_to(full, arguments);
        assert_eq!(output.status.code(), Some(69), "{arguments:?}");
        let message = stderr(&output);
        let expected = "seawall: cannot write to standard output: No space left on device";
        assert!(message.starts_with(expected), "{message}");
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let output = print_to(writer, arguments);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stderr(&output), "", "{arguments:?}");
    }
}

#[tokio::test]
async fn reload_command_reports_changes_and_problems() {
    let served = Served::start("").await;
    served.write("pool.max_pool_size = 7\nlisten.backlog = 5\n");
    let dry = show(&served, &["reload", "--dry-run"]).await;
    assert!(
        dry.contains("at a reload") && dry.contains("at the next start"),
        "{dry}"
    );
    assert_eq!(served.value("pool.max_pool_size").await, "100");
    let reload = show(&served, &["reload"]).await;
    assert!(reload.contains("now"), "{reload}");
    assert_eq!(served.value("pool.max_pool_size").await, "7");
    served.write("listen.backlog = 5\npool.max_pool_size = 7\n");
    let reload = show(&served, &["reload"]).await;
    assert!(
        !reload.contains("now") && reload.contains("listen.backlog"),
        "{reload}"
    );
    served.write("pool.max_pool_size = 0\n");
    let refused = run(&["reload", "--admin", served.process.admin()]).await;
    assert_eq!(refused.status.code(), Some(64));
    assert!(stderr(&refused).contains("pool.max_pool_size = 0"));
}

#[tokio::test]
async fn seawall_shutdown_ends_the_process_and_later_commands_exit_with_69() {
    let mut served = Served::start("").await;
    show(&served, &["shutdown"]).await;
    assert!(served.process.ended().await.success());
    for command in ["health", "drain", "status"] {
        let output = run(&[command, "--admin", served.process.admin()]).await;
        assert_eq!(output.status.code(), Some(69), "{command}");
    }
}

#[tokio::test]
async fn drain_command_returns_before_the_drain_has_ended() {
    let mut served = Served::start("").await;
    let address = served.process.address().parse().unwrap();
    let client = RawClient::connect(address).await.unwrap();
    let connected = async || show(&served, &["clients"]).await.lines().count() == 2;
    eventually(LIMIT, connected).await.unwrap();
    let drain = show(&served, &["drain", "--json"]).await;
    let drain: serde_json::Value = serde_json::from_str(&drain).unwrap();
    assert_eq!(drain["draining"], true);
    // The process waits until its client disconnects, and serves its API during this time.
    let draining = async || {
        let status: Status = served.admin().ask("/api/v1/status").await.unwrap();
        status.draining
    };
    eventually(LIMIT, draining).await.unwrap();
    assert_eq!(show(&served, &["drain"]).await, "");
    drop(client);
    assert!(served.process.ended().await.success());
}

#[tokio::test]
async fn wait_command_gives_the_reason_why_the_proxy_is_not_ready() {
    let scratch = Scratch::create().unwrap();
    let toml = "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
                deployment.uri = \"mongodb://127.0.0.1:1/\"\n";
    let process = Process::serve(&scratch.write("seawall.toml", toml).unwrap()).await;
    let admin = ["--admin", process.admin()];
    assert!(
        run(&[&["health"][..], &admin].concat())
            .await
            .status
            .success()
    );
    let waited = run(&[&["wait", "--timeout-s", "1"][..], &admin].concat()).await;
    assert_eq!(waited.status.code(), Some(69));
    let reason = stderr(&waited);
    assert!(
        reason.contains("no server of the deployment is available"),
        "{reason}"
    );
}

#[tokio::test]
async fn the_metrics_address_serves_only_metrics_and_health_and_needs_no_token() {
    let scratch = Scratch::create().unwrap();
    let token = scratch.write("token", "secret").unwrap();
    let toml = format!("admin.token_file = {token:?}\nadmin.metrics_address = \"127.0.0.1:0\"\n");
    let server = seawall_tests::mongod::shared_standalone().await.unwrap();
    let options = Options {
        toml,
        ..Options::default()
    };
    let seawall = Seawall::launch(&server.uri(), options).await.unwrap();
    assert_eq!(seawall.get("/metrics").await.0, 401);
    let address = seawall.app.metrics_address().unwrap();
    let get = async |path: &str| http(address, "GET", path, "Host: any\r\n").await.0;
    assert_eq!(get("/metrics").await, 200);
    assert_eq!(get("/health/live").await, 200);
    for path in ["/api/v1/status", "/api/v1/config", "/", "/api/v1/profile"] {
        assert_eq!(get(path).await, 404, "{path}");
    }
    for path in ["/api/v1/drain", "/api/v1/reload"] {
        assert_eq!(http(address, "POST", path, "").await.0, 404, "{path}");
    }
}
