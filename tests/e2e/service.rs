//! Tests of Seawall as a service: notifications to the service manager, the watchdog of the service
//! manager, and the sockets that the service manager passes to Seawall.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use mongodb::bson::doc;
use rustix::process::{Signal, geteuid};
use seawall_tests::{
    mongod::shared_standalone,
    process::{Process, binary, run},
    raw::RawClient,
    scratch::Scratch,
};
use tokio::{net::UnixDatagram, process::Command, task::JoinSet, time::timeout};

use crate::served::described_value;

const LIMIT: Duration = Duration::from_secs(60);

async fn toml() -> String {
    let server = shared_standalone().await.unwrap();
    format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\n",
        server.uri()
    )
}

/// A substitute for the service manager: the socket to which Seawall sends notifications.
struct ServiceManager(UnixDatagram);

impl ServiceManager {
    async fn next(&self) -> String {
        let mut buffer = [0; 1024];
        let length = timeout(LIMIT, self.0.recv(&mut buffer))
            .await
            .unwrap()
            .unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    }

    /// Waits for a notification that contains the line `state`, and returns it. Until then, only
    /// notifications for the watchdog may arrive.
    async fn expect(&self, state: &str) -> String {
        loop {
            let notification = self.next().await;
            if notification.lines().any(|line| line == state) {
                return notification;
            }
            assert_eq!(notification.trim(), "WATCHDOG=1");
        }
    }
}

#[tokio::test]
async fn the_service_manager_is_notified_of_start_reload_and_stop() {
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("notify");
    let manager = ServiceManager(UnixDatagram::bind(&path).unwrap());
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "3000000"),
    ];
    let base = toml().await;
    let file = scratch.write("seawall.toml", &base).unwrap();
    let mut process = Process::serve_with(&file, &variables).await;
    manager.expect("READY=1").await;
    manager.expect("WATCHDOG=1").await;
    manager.expect("WATCHDOG=1").await;
    process.signal(Signal::HUP);
    let reloading = manager.expect("RELOADING=1").await;
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    manager.expect("READY=1").await;
    scratch.write("seawall.toml", "broken").unwrap();
    process.signal(Signal::HUP);
    manager.expect("RELOADING=1").await;
    let failed = manager.expect("READY=1").await;
    assert!(failed.contains("the last reload failed"), "{failed}");
    process.signal(Signal::TERM);
    manager.expect("STOPPING=1").await;
    assert!(process.ended().await.success());
}

/// Watchdog notifications show only that the threads run, not that clients are served quickly.
/// Seawall must send these notifications even during a flood of connections. Otherwise the service
/// manager would kill a working process.
#[tokio::test]
async fn watchdog_notifications_continue_during_a_flood_and_end_while_the_process_is_suspended() {
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("notify");
    let manager = ServiceManager(UnixDatagram::bind(&path).unwrap());
    let watchdog = Duration::from_secs(3);
    let limit = watchdog.as_micros().to_string();
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", &limit),
    ];
    let file = scratch.write("seawall.toml", toml().await).unwrap();
    let mut process = Process::serve_with(&file, &variables).await;
    manager.expect("READY=1").await;
    let connected = Arc::new(AtomicUsize::new(0));
    let mut flood = JoinSet::new();
    for _ in 0..32 {
        let (address, connected) = (process.address().parse().unwrap(), Arc::clone(&connected));
        flood.spawn(async move {
            // Seawall may refuse some of the connections.
            while connected.load(Ordering::Relaxed) < MAX_FLOOD {
                if let Ok(mut client) = RawClient::connect(address).await {
                    drop(client.hello(doc! {}).await);
                    connected.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    for _ in 0..5 {
        manager.expect("WATCHDOG=1").await;
    }
    flood.shutdown().await;
    assert!(connected.load(Ordering::Relaxed) > 100, "{connected:?}");
    process.signal(Signal::STOP);
    // Notifications that were sent before the signal may still arrive. Then no notification arrives
    // within the limit.
    while timeout(watchdog, manager.next()).await.is_ok() {}
    process.signal(Signal::CONT);
    manager.expect("WATCHDOG=1").await;
    process.signal(Signal::TERM);
    assert!(process.ended().await.success());
}

/// Maximum number of connections that the flood of the watchdog test opens.
const MAX_FLOOD: usize = 20_000;

/// A Python script that opens a TCP socket and a unix socket, and passes them to a program as a
/// service manager does. The first argument of the script is the path of the unix socket. The other
/// arguments are the program and the arguments of the program.
const ACTIVATE: &str = r#"
import os, socket, sys
path = sys.argv[1]
tcp = socket.create_server(("127.0.0.1", 0))
unix = socket.socket(socket.AF_UNIX)
unix.bind(path)
unix.listen()
for number, listener in enumerate((tcp, unix), 3):
    copy = os.dup(listener.fileno())
    listener.close()
    if copy != number:
        os.dup2(copy, number)
    os.set_inheritable(number, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="tcp:unix")
os.execv(sys.argv[2], sys.argv[2:])
"#;

#[tokio::test]
async fn clients_connect_to_the_sockets_of_the_service_manager() {
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("seawall.sock");
    // No process can listen on the configured address, so Seawall must use the sockets instead.
    let toml = toml().await.replace(
        "listen.address = \"127.0.0.1:0\"",
        "listen.address = \"192.0.2.1:1\"",
    );
    let file = scratch.write("seawall.toml", toml).unwrap();
    let launcher = ["python3", "-c", ACTIVATE, path.to_str().unwrap()];
    let mut process = Process::launch(&launcher, &file).await;
    let ready = run(&["wait", "--admin", process.admin()]).await;
    assert!(ready.status.success());
    let value = described_value(process.admin(), "listen.address").await;
    assert_eq!(value.value, r#""192.0.2.1:1""#);
    assert_eq!(value.in_effect.as_deref(), Some(process.address()));
    let (tcp, unix) = process.address().split_once(", ").unwrap();
    assert_eq!(unix, path.to_str().unwrap());
    let mut client = RawClient::connect(tcp.parse().unwrap()).await.unwrap();
    assert!(client.hello(doc! {}).await.unwrap().is_ok());
    let mut client = RawClient::connect_unix(&path).await.unwrap();
    assert!(client.hello(doc! {}).await.unwrap().is_ok());
    process.signal(Signal::TERM);
    drop(client);
    assert!(process.ended().await.success());
    assert!(
        path.exists(),
        "Seawall must keep the socket file of the service manager"
    );
}

#[tokio::test]
async fn each_socket_of_the_service_manager_belongs_to_the_listener_with_its_name() {
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("seawall.sock");
    let own = scratch.join("own.sock");
    let listener = |name: &str, address: &str| {
        format!("[[listeners]]\nname = {name:?}\naddress = {address:?}\n")
    };
    // Seawall cannot listen on the addresses of the listeners `unix` and `tcp`, so it must use the
    // sockets of the service manager instead.
    let unused = "192.0.2.1:1";
    let base = toml()
        .await
        .replace("listen.address = \"127.0.0.1:0\"\n", "");
    let unix = listener("unix", "192.0.2.2:1") + "max_client_connections = 1\n";
    let third = listener("own", &format!("unix:{}", own.display()));
    let text = format!("{base}{unix}{third}{}", listener("tcp", unused));
    let file = scratch.write("seawall.toml", text).unwrap();
    let launcher = ["python3", "-c", ACTIVATE, path.to_str().unwrap()];
    let process = Process::launch(&launcher, &file).await;
    let addresses: Vec<&str> = process.address().split(", ").collect();
    let [first, second, tcp] = addresses.as_slice() else {
        panic!("{addresses:?}");
    };
    assert_eq!(
        (*first, *second),
        (path.to_str().unwrap(), own.to_str().unwrap())
    );
    let ready = run(&["wait", "--admin", process.admin()]).await;
    assert!(ready.status.success());
    let mut client = RawClient::connect(tcp.parse().unwrap()).await.unwrap();
    assert!(client.hello(doc! {}).await.unwrap().is_ok());
    // The settings of the listener `unix` apply to its socket.
    let mut only = RawClient::connect_unix(&path).await.unwrap();
    assert!(only.hello(doc! {}).await.unwrap().is_ok());
    let mut extra = RawClient::connect_unix(&path).await.unwrap();
    assert_eq!(extra.read_to_close().await.unwrap(), b"");
    let mut client = RawClient::connect_unix(&own).await.unwrap();
    assert!(client.hello(doc! {}).await.unwrap().is_ok());
}

/// On a unix socket there is no header of the PROXY protocol, so such a listener cannot serve it.
#[tokio::test]
async fn a_unix_socket_of_the_service_manager_is_refused_if_its_listener_requires_proxy_headers() {
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("seawall.sock");
    let toml = format!(
        "{}listen.proxy_protocol = \"accept\"\nlisten.proxy_networks = \"127.0.0.0/8\"\n",
        toml().await
    );
    let file = scratch.write("seawall.toml", toml).unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", ACTIVATE]).arg(&path).arg(binary());
    command.args(["serve", "--allow-root", "--config"]);
    command.arg(&file).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let refusal = String::from_utf8(output.stderr).unwrap();
    let expected = "listen.proxy_protocol: must be \"off\" for the service manager's unix socket";
    assert!(refusal.contains(expected), "{refusal}");
}

#[tokio::test]
async fn seawall_serve_refuses_to_run_as_root_without_the_option_allow_root() {
    let scratch = Scratch::create().unwrap();
    let file = scratch.write("seawall.toml", toml().await).unwrap();
    if !geteuid().is_root() {
        // Users other than root may run `seawall serve` without `--allow-root`.
        let mut process = Process::serve(&file).await;
        process.signal(Signal::TERM);
        assert!(process.ended().await.success());
        return;
    }
    let refused = run(&["serve", "--config", file.to_str().unwrap()]).await;
    assert_eq!(refused.status.code(), Some(64));
    let refusal = String::from_utf8(refused.stderr).unwrap();
    assert!(refusal.contains("--allow-root"), "{refusal}");
}
