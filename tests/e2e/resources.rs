//! Tests of exhausted resources: addresses in use, no free file descriptors, a disk that refuses
//! writes. Seawall still serves clients, and its log names the problem.

use std::{path::PathBuf, time::Duration};

use bson::doc;
use rustix::process::{Resource, Signal};
use seawall_api::Shapes;
use seawall_tests::{
    eventually::eventually,
    mongod::{ROOT, ROOT_PASSWORD, shared_standalone, unique_name},
    process::{Process, binary},
    raw::{Login, RawClient},
    scratch::Scratch,
    seawall::{http, sum_of},
};
use tokio::{net::TcpListener, process::Command};

/// Time limit of each wait. It is long, because Seawall writes the history of its statistics to the
/// disk only every ten seconds.
const LIMIT: Duration = Duration::from_secs(40);

/// Writes the configuration of a Seawall in front of the shared server.
async fn configuration(scratch: &Scratch, toml: &str) -> PathBuf {
    let uri = shared_standalone().await.unwrap().uri();
    let toml = format!("listen.address = \"127.0.0.1:0\"\ndeployment.uri = {uri:?}\n{toml}");
    scratch.write("seawall.toml", toml).unwrap()
}

async fn logged_in(seawall: &Process) -> RawClient {
    let address = seawall.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    client.login(&login).await.unwrap();
    client
}

async fn find(client: &mut RawClient, db: &str) {
    client.expect_ok(db, doc! { "find": "things" }).await;
}

/// The body of the response to a request to an admin address. The request must succeed.
async fn get(admin: &str, path: &str) -> String {
    let (status, body) = http(admin, "GET", path, &format!("Host: {admin}\r\n")).await;
    assert_eq!(status, 200, "{body}");
    body
}

async fn metric(seawall: &Process, name: &str) -> f64 {
    let page = get(seawall.admin(), "/metrics").await;
    sum_of(&page, name, &[])
}

#[tokio::test]
async fn clients_are_served_while_the_admin_address_is_in_use() {
    let scratch = Scratch::create().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let admin = taken.local_addr().unwrap().to_string();
    let toml = configuration(&scratch, &format!("admin.address = {admin:?}\n")).await;
    let seawall = Process::serve(&toml).await;
    assert_eq!(seawall.admin(), "not bound");
    let message = "could not bind the HTTP address; clients are served, and binding is tried \
                   again every second";
    let line = seawall.said(message).unwrap().to_string();
    assert!(
        line.contains(&admin) && line.contains("admin.address"),
        "{line}"
    );
    find(&mut logged_in(&seawall).await, "test").await;
    drop(taken);
    let is_bound = async || seawall.said("HTTP address bound").is_some();
    eventually(LIMIT, is_bound).await.unwrap();
    let page = get(&admin, "/metrics").await;
    assert!(page.contains("seawall_client_connections"), "{page}");
}

/// The address is one of those that are reserved for documentation, so no host has it.
#[tokio::test]
async fn clients_are_served_if_the_host_does_not_have_the_metrics_address() {
    let scratch = Scratch::create().unwrap();
    let toml = "admin.address = \"127.0.0.1:0\"\nadmin.metrics_address = \"192.0.2.1:9909\"\n";
    let seawall = Process::serve(&configuration(&scratch, toml).await).await;
    let line = seawall.said("serving").unwrap();
    assert_eq!(line["fields"]["metrics"], "not bound", "{line}");
    find(&mut logged_in(&seawall).await, "test").await;
}

#[tokio::test]
async fn clients_are_served_while_the_metrics_address_is_in_use() {
    let scratch = Scratch::create().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = taken.local_addr().unwrap().to_string();
    let toml = format!("admin.address = \"127.0.0.1:0\"\nadmin.metrics_address = {metrics:?}\n");
    let seawall = Process::serve(&configuration(&scratch, &toml).await).await;
    let is_reported = async || seawall.log().contains("admin.metrics_address");
    eventually(LIMIT, is_reported).await.unwrap();
    find(&mut logged_in(&seawall).await, "test").await;
    get(seawall.admin(), "/metrics").await;
    drop(taken);
    let is_bound = async || seawall.said("HTTP address bound").is_some();
    eventually(LIMIT, is_bound).await.unwrap();
    get(&metrics, "/health/live").await;
}

#[tokio::test]
async fn the_log_reports_once_that_the_disk_of_the_slow_log_is_full() {
    let scratch = Scratch::create().unwrap();
    let toml = "admin.address = \"127.0.0.1:0\"\nslow_log.threshold_ms = 0\n\
                slow_log.file = \"/dev/full\"\n";
    let seawall = Process::serve(&configuration(&scratch, toml).await).await;
    let mut client = logged_in(&seawall).await;
    for lost in [1.0, 10.0, 20.0] {
        let are_lost = async || {
            find(&mut logged_in(&seawall).await, "test").await;
            metric(&seawall, "seawall_slow_log_left_out_total").await >= lost
        };
        eventually(LIMIT, are_lost).await.unwrap();
        find(&mut client, "test").await;
    }
    assert_eq!(seawall.said_times("could not write to the slow log"), 1);
}

#[tokio::test]
async fn connected_clients_are_served_while_no_file_descriptors_are_left() {
    let scratch = Scratch::create().unwrap();
    let toml = configuration(&scratch, "admin.address = \"127.0.0.1:0\"\n").await;
    let seawall = Process::serve(&toml).await;
    let mut connected = logged_in(&seawall).await;
    find(&mut connected, "test").await;
    let before = seawall.set_limit(Resource::Nofile, Some(seawall.open_files()));
    // The limit applies to the value of a new descriptor, not to the number of open descriptors. A
    // few lower values may be free, so a few more clients may be accepted.
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let address = seawall.address().parse().unwrap();
        waiting.push(RawClient::connect(address).await.unwrap());
    }
    let is_reported = async || seawall.said("could not accept clients").is_some();
    eventually(LIMIT, is_reported).await.unwrap();
    for _ in 0..20 {
        find(&mut connected, "test").await;
    }
    assert_eq!(seawall.said_times("could not accept clients"), 1);
    seawall.set_limit(Resource::Nofile, before);
    let mut last = waiting.pop().unwrap();
    drop(waiting);
    last.login(&Login::new("admin", ROOT, ROOT_PASSWORD))
        .await
        .unwrap();
    find(&mut last, "test").await;
}

/// Otherwise, Seawall would refuse all clients.
#[tokio::test]
async fn server_connections_that_may_need_all_file_descriptors_are_a_problem_of_the_configuration()
{
    let scratch = Scratch::create().unwrap();
    let few = configuration(&scratch, "pool.max_server_connections = 100\n").await;
    let limited = ["prlimit", "--nofile=1000:1000"];
    let seawall = Process::launch(&limited, &few).await;
    let problem = "pool.max_server_connections: 600 leaves no file descriptors for clients";
    let many = configuration(&scratch, "pool.max_server_connections = 600\n").await;
    assert_eq!(few, many);
    seawall.signal(Signal::HUP);
    let is_refused = async || seawall.log().contains(problem);
    eventually(LIMIT, is_refused).await.unwrap();
    let mut client = logged_in(&seawall).await;
    find(&mut client, "test").await;
    let mut check = Command::new(limited[0]);
    check.arg(limited[1]).arg(binary());
    check.args(["check", "--config"]).arg(&many);
    let checked = check.output().await.unwrap();
    assert_eq!(checked.status.code(), Some(64), "{checked:?}");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(said.contains(problem), "{said}");
}

#[tokio::test]
async fn history_that_cannot_be_written_is_kept_and_written_later() {
    let scratch = Scratch::create().unwrap();
    let directory = scratch.join("history");
    let toml = format!("admin.address = \"127.0.0.1:0\"\nhistory.directory = {directory:?}\n");
    let toml = configuration(&scratch, &toml).await;
    // Without this `trap`, the kernel would end the process at the first write over the file size
    // limit.
    let launcher = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];
    let mut seawall = Process::launch(&launcher, &toml).await;
    let db = unique_name("full");
    let before = seawall.set_limit(Resource::Fsize, Some(0));
    let mut client = logged_in(&seawall).await;
    let message = "could not write the history; it stays in memory until it can be written";
    for _ in 0..10 {
        find(&mut client, &db).await;
    }
    let failures = async || metric(&seawall, "seawall_history_write_failures_total").await >= 2.0;
    eventually(LIMIT, failures).await.unwrap();
    assert_eq!(seawall.said_times(message), 1);
    let finds = async |seawall: &Process| {
        let page = get(seawall.admin(), "/api/v1/shapes?since=10m&limit=1000").await;
        let shapes: Shapes = serde_json::from_str(&page).unwrap();
        let ours = shapes.shapes.iter().filter(|shape| shape.db == db);
        ours.map(|shape| shape.count).sum::<u64>()
    };
    assert_eq!(finds(&seawall).await, 10);
    find(&mut client, &db).await;
    seawall.set_limit(Resource::Fsize, before);
    let is_written = async || seawall.said("history written again").is_some();
    eventually(LIMIT, is_written).await.unwrap();
    drop(client);
    seawall.signal(Signal::TERM);
    assert!(seawall.ended().await.success());
    let again = Process::serve(&toml).await;
    assert_eq!(finds(&again).await, 11);
}
