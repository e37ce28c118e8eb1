//! Interception without a new connection string: in a network namespace of its own, whose rules lead clients here.
//!
//! Needs `nft` and `ip`, and the right to make a namespace; so it is run by its name, as `.ci/run` does:
//! `cargo test --test interception -- --ignored`.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "all of this is tests"
)]

use std::{
    net::SocketAddr,
    process::{Command, Stdio},
};

use bson::doc;
use seawall_tests::{
    mongod::{Options, ReplicaSet},
    raw::RawClient,
    seawall::{self, Seawall},
};
use tokio::net::TcpSocket;

/// Set in the process that runs inside the namespace.
const INSIDE: &str = "INTERCEPTION_INSIDE";

/// Where clients come from that the rules lead to Seawall.
const INTERCEPTED: &str = "127.0.0.9:0";

#[test]
#[ignore = "needs nft, ip and a network namespace; run by .ci/run"]
fn redirected_clients_reach_the_members_that_they_asked_for() {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(inside());
    }
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net"]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture"]);
    command.arg("redirected_clients_reach_the_members_that_they_asked_for");
    let status = command.env(INSIDE, "1").stdin(Stdio::null()).status();
    assert!(status.unwrap().success());
}

fn run(program: &str, arguments: &[&str]) {
    let ended = Command::new(program).args(arguments).output();
    let ended = ended.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{program} {arguments:?}: {said}");
}

async fn connect(from: &str, to: SocketAddr) -> RawClient {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(from.parse().unwrap()).unwrap();
    RawClient::new(socket.connect(to).await.unwrap())
}

async fn me(client: &mut RawClient) -> String {
    let hello = client.hello(doc! {}).await.unwrap();
    hello.body.get_str("me").unwrap().to_owned()
}

async fn inside() {
    run("ip", &["link", "set", "lo", "up"]);
    let set = ReplicaSet::start(3, Options::default()).await.unwrap();
    let options = seawall::Options {
        toml: "deployment.mode = \"relay\"\ndeployment.original_destination = true\n".to_owned(),
        ..seawall::Options::default()
    };
    let seawall = Seawall::start_with(&set.uri(), options).await;
    let here: SocketAddr = seawall.address().parse().unwrap();
    let ports: Vec<_> = set
        .members()
        .iter()
        .map(|m| m.address().port().to_string())
        .collect();
    let rules = format!(
        "add table ip nat\n\
         add chain ip nat output {{ type nat hook output priority -100; }}\n\
         add rule ip nat output ip saddr 127.0.0.9 tcp dport {{ {} }} redirect to :{}\n",
        ports.join(","),
        here.port()
    );
    run("nft", &[&rules]);

    // Each member answers for itself, the secondaries too, though the client knows nothing of Seawall.
    let mut relayed = Vec::new();
    for member in set.members() {
        let mut client = connect(INTERCEPTED, member.address()).await;
        assert_eq!(me(&mut client).await, member.address().to_string());
        assert!(
            client
                .command("admin", doc! {"ping": 1})
                .await
                .unwrap()
                .is_ok()
        );
        let label = format!("server=\"{}\"", member.address());
        let count = seawall
            .metric("seawall_relayed_connections", &[&label])
            .await;
        assert!((count - 1.0).abs() < f64::EPSILON, "{count}");
        relayed.push(client);
    }
    // One that was not redirected goes where relays go, and one that comes from elsewhere does not come here.
    let primary = set.primary().await.unwrap().address();
    assert_eq!(
        me(&mut connect(INTERCEPTED, here).await).await,
        primary.to_string()
    );
    let before = seawall
        .metric("seawall_client_connections_total", &[])
        .await;
    assert_eq!(
        me(&mut connect("127.0.0.1:0", primary).await).await,
        primary.to_string()
    );
    let after = seawall
        .metric("seawall_client_connections_total", &[])
        .await;
    assert!((after - before).abs() < f64::EPSILON);
    // The changes of a step down do not concern them.
    set.step_down().await.unwrap();
    for client in &mut relayed {
        assert!(
            client
                .command("admin", doc! {"ping": 1})
                .await
                .unwrap()
                .is_ok()
        );
    }
}
