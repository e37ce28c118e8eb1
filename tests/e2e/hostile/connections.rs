//! Clients that open many connections without using them, to block other clients.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use seawall_tests::{
    eventually::eventually,
    raw::{Login, OpMsg, RawClient},
    seawall::Seawall,
};
use tokio::{
    io::{AsyncWriteExt as _, copy, sink},
    time::timeout,
};

use crate::scene::{
    binary, connect, connect_from, connection_from, find, logged_in, seawall, writer,
};

const LIMIT: Duration = Duration::from_secs(60);
const HOSTILE: [u8; 4] = [127, 0, 0, 9];

fn monitors_hello() -> Document {
    doc! {"client": {"driver": {"name": "d", "version": "1"}, "os": {"type": "Linux"}}}
}

pub(super) async fn refused(seawall: &Seawall, reason: &str) -> f64 {
    let label = format!("reason={reason:?}");
    let name = "seawall_client_connections_refused_total";
    seawall.metric(name, &[&label]).await
}

#[tokio::test]
async fn silent_connections_of_one_address_do_not_block_other_addresses() {
    silent_connections_block_no_other_address("pooled").await;
}

#[tokio::test]
async fn silent_connections_of_one_address_do_not_block_other_addresses_in_relay_mode() {
    silent_connections_block_no_other_address("relay").await;
}

async fn silent_connections_block_no_other_address(mode: &str) {
    let toml = format!("deployment.mode = {mode:?}\nlimits.unauthenticated_connections = 40\n");
    let seawall = seawall(&toml).await;
    let user = writer().await;
    let mut silent = Vec::new();
    for _ in 0..60 {
        silent.push(connect_from(&seawall, HOSTILE).await);
    }
    let too_many = async || refused(&seawall, "unauthenticated_connections").await == 20.0;
    eventually(LIMIT, too_many).await.unwrap();
    for _ in 0..5 {
        let mut client = logged_in(&seawall, &user.login()).await;
        assert!(find(&mut client, &user.name).await.is_ok());
    }
    // The clients above could log in because Seawall closed the oldest silent connections.
    assert!(silent.remove(0).read_to_close().await.unwrap().is_empty());
    assert!(refused(&seawall, "gave_way").await >= 1.0);
    // A client at the address `HOSTILE` can log in after the silent connections have ended.
    drop(silent);
    let mut client = connect_from(&seawall, HOSTILE).await;
    assert!(
        client
            .login(&user.login())
            .await
            .unwrap()
            .is_authenticated()
    );
}

#[tokio::test]
async fn a_client_that_sends_without_a_pause_is_closed_if_it_does_not_log_in() {
    let seawall = seawall("auth.authentication_timeout_ms = 500\n").await;
    let (mut replies, mut requests) = connection_from(&seawall, HOSTILE).await.into_split();
    let pings = OpMsg::new(doc! {"ping": 1, "$db": "admin"})
        .to_bytes()
        .repeat(1_000);
    let sending = async { while requests.write_all(&pings).await.is_ok() {} };
    let reading = async { drop(copy(&mut replies, &mut sink()).await) };
    let both = async { tokio::join!(sending, reading) };
    timeout(LIMIT, both).await.unwrap();
}

#[tokio::test]
async fn connections_of_driver_monitors_have_a_separate_limit_and_no_login_deadline() {
    monitors_are_limited_and_not_closed("pooled").await;
}

#[tokio::test]
async fn relayed_connections_of_driver_monitors_have_a_separate_limit_and_no_login_deadline() {
    monitors_are_limited_and_not_closed("relay").await;
}

async fn monitors_are_limited_and_not_closed(mode: &str) {
    let toml = format!(
        "deployment.mode = {mode:?}\nlimits.monitor_connections = 10\n\
         auth.authentication_timeout_ms = 1000\n"
    );
    let seawall = seawall(&toml).await;
    let user = writer().await;
    let mut monitors: Vec<RawClient> = Vec::new();
    for n in 0..15 {
        let mut monitor = connect_from(&seawall, HOSTILE).await;
        let hello = monitor.hello(monitors_hello()).await.unwrap();
        // One address may have nine of the ten monitor connections. A relay must accept a monitor
        // over the limit, because the client may be about to log in.
        let is_accepted = n < 9 || mode == "relay";
        assert_eq!(hello.is_ok(), is_accepted, "{n}: {hello:?}");
        monitors.push(monitor);
    }
    if mode == "relay" {
        let mut client = connect(&seawall).await;
        assert!(client.hello(monitors_hello()).await.unwrap().is_ok());
        let outcome = client.login(&user.login()).await.unwrap();
        assert!(outcome.is_authenticated(), "{outcome:?}");
    } else {
        assert_eq!(refused(&seawall, "monitor_connections").await, 6.0);
    }
    let (served, refused) = monitors.split_at_mut(9);
    for monitor in refused {
        // A monitor over the limit keeps its login deadline, like a client that is not a monitor.
        // It is closed at this deadline.
        assert!(monitor.read_to_close().await.unwrap().is_empty());
    }
    for monitor in served {
        assert!(monitor.hello(doc! {}).await.unwrap().is_ok());
    }
    let mut client = logged_in(&seawall, &user.login()).await;
    assert!(find(&mut client, &user.name).await.is_ok());
    // A client that logs in no longer counts as a monitor, even if its first message looked like
    // that of a monitor.
    monitors.truncate(9);
    let mut clients = Vec::new();
    for _ in 0..3 {
        let is_greeted = async || {
            let mut client = connect(&seawall).await;
            let hello = client.hello(monitors_hello()).await.unwrap();
            match hello.is_ok() {
                true => Ok(client),
                false => Err(format!("{hello:?}")),
            }
        };
        let mut client = eventually(LIMIT, is_greeted).await.unwrap();
        assert!(
            client
                .login(&user.login())
                .await
                .unwrap()
                .is_authenticated()
        );
        clients.push(client);
    }
}

/// Drivers' monitors do not log in. They have a limit of their own, `limits.monitor_connections`.
#[tokio::test]
async fn relayed_driver_monitors_that_begin_a_login_count_as_unauthenticated_connections() {
    let toml = "deployment.mode = \"relay\"\nlimits.unauthenticated_connections = 2\n";
    let seawall = seawall(toml).await;
    let mut monitors = Vec::new();
    for _ in 0..4 {
        let is_greeted = async || {
            let mut client = connect_from(&seawall, HOSTILE).await;
            let hello = client.hello(monitors_hello()).await;
            hello.map(|_| client).map_err(|error| format!("{error:?}"))
        };
        monitors.push(eventually(LIMIT, is_greeted).await.unwrap());
    }
    let start = sasl_start();
    let mut are_served = Vec::new();
    for monitor in &mut monitors {
        are_served.push(monitor.command("admin", start.clone()).await.is_ok());
    }
    assert_eq!(are_served, [true, true, false, false]);
}

#[tokio::test]
async fn monitors_that_begin_a_login_count_as_monitors_if_the_unauthenticated_limit_is_reached() {
    let toml = "limits.monitor_connections = 10\nlimits.unauthenticated_connections = 12\n";
    let seawall = seawall(toml).await;
    let mut monitors = Vec::new();
    // One address may have nine of the ten monitor connections.
    for _ in 0..9 {
        let mut monitor = connect_from(&seawall, HOSTILE).await;
        assert!(monitor.hello(monitors_hello()).await.unwrap().is_ok());
        monitors.push(monitor);
    }
    let mut silent = Vec::new();
    for _ in 0..13 {
        silent.push(connect_from(&seawall, HOSTILE).await);
    }
    let is_full = async || refused(&seawall, "unauthenticated_connections").await == 1.0;
    eventually(LIMIT, is_full).await.unwrap();
    for monitor in &mut monitors {
        let reply = monitor.command("admin", sasl_start()).await.unwrap();
        assert!(!reply.is_ok(), "{reply:?}");
    }
    let hello = silent[0].hello(monitors_hello()).await.unwrap();
    assert!(!hello.is_ok(), "{hello:?}");
    assert_eq!(refused(&seawall, "monitor_connections").await, 1.0);
}

/// The first message of a login of an unknown user.
fn sasl_start() -> Document {
    let payload = binary("n,,n=nobody,r=nonce");
    doc! {"saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload}
}

#[tokio::test]
async fn a_relayed_client_that_is_not_logged_in_is_closed_at_its_deadline() {
    let toml = "deployment.mode = \"relay\"\nauth.authentication_timeout_ms = 1000\n";
    let seawall = seawall(toml).await;
    let user = writer().await;
    let mut works = logged_in(&seawall, &user.login()).await;
    let mut greeted = connect(&seawall).await;
    let [mut logged_out, mut fell_silent] = [
        logged_in(&seawall, &user.login()).await,
        connect(&seawall).await,
    ];
    assert!(greeted.hello(doc! {}).await.unwrap().is_ok());
    let logout = logged_out.command("admin", doc! { "logout": 1 }).await;
    assert!(logout.unwrap().is_ok());
    for client in [&mut greeted, &mut logged_out, &mut fell_silent] {
        assert!(client.read_to_close().await.unwrap().is_empty());
    }
    assert!(find(&mut works, &user.name).await.is_ok());
    let metric = "seawall_unobserved_total";
    let overdue = seawall.metric(metric, &[r#"reason="authentication_timeout""#]);
    assert_eq!(overdue.await, 3.0);
}

async fn crowd(seawall: &Seawall, login: &Login, size: usize) -> Vec<RawClient> {
    let mut clients = Vec::new();
    for _ in 0..size {
        let mut client = connect_from(seawall, HOSTILE).await;
        assert!(client.login(login).await.unwrap().is_authenticated());
        clients.push(client);
    }
    clients
}

#[tokio::test]
async fn idle_clients_of_one_address_do_not_block_other_addresses() {
    let seawall = seawall("listen.max_client_connections = 10\n").await;
    let [user, other] = [writer().await, writer().await];
    let mut idle = crowd(&seawall, &user.login(), 10).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = logged_in(&seawall, &other.login()).await;
        assert!(find(&mut client, &other.name).await.is_ok());
        clients.push(client);
        // This find makes `idle[1]` an active client, so Seawall closes only other idle clients.
        assert!(find(&mut idle[1], &user.name).await.is_ok());
    }
    assert_eq!(refused(&seawall, "gave_way").await, 3.0);
    for closed in [0, 2, 3] {
        assert!(idle[closed].read_to_close().await.unwrap().is_empty());
    }
    // The address `HOSTILE` still has most of the connections, so Seawall refuses a further one.
    let mut more = connect_from(&seawall, HOSTILE).await;
    assert!(more.read_to_close().await.unwrap().is_empty());
    assert_eq!(refused(&seawall, "max_client_connections").await, 1.0);
}

#[tokio::test]
async fn users_behind_a_shared_address_do_not_block_each_other() {
    let toml = "listen.max_client_connections = 10\nlimits.shared_addresses = \"127.0.0.9\"\n";
    let seawall = seawall(toml).await;
    let [user, other] = [writer().await, writer().await];
    let _idle = crowd(&seawall, &user.login(), 10).await;
    for client in &mut crowd(&seawall, &other.login(), 3).await {
        assert!(find(client, &other.name).await.is_ok());
    }
    assert_eq!(refused(&seawall, "gave_way").await, 3.0);
}
