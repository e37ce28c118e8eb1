//! The commands for a running proxy, with the real binary.

use std::process::Output;

use seawall_api::{Configuration, Status};
use seawall_tests::{
    process::{Process, run},
    scratch::Scratch,
    seawall::{Options, Seawall, http},
};

use crate::served::Served;

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn complaint(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that must succeed, and returns its output.
async fn show(served: &Served, arguments: &[&str]) -> String {
    let admin = ["--admin", served.process.admin()];
    let output = run(&[arguments, &admin].concat()).await;
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        complaint(&output)
    );
    text(&output)
}

#[tokio::test]
async fn commands_show_the_state_and_the_configuration() {
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
    assert!(show(&served, &["clients"]).await.starts_with("id"));
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
    assert!(complaint(&refused).contains("pool.max_pool_size = 0"));
}

#[tokio::test]
async fn shutdown_command_returns_when_the_process_has_ended() {
    let mut served = Served::start("").await;
    show(&served, &["shutdown"]).await;
    assert!(served.process.ended().await.success());
    for command in ["health", "drain", "status"] {
        let output = run(&[command, "--admin", served.process.admin()]).await;
        assert_eq!(output.status.code(), Some(69), "{command}");
    }
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
    let reason = complaint(&waited);
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
