//! Tests of the command `seawall`, with which clients ask Seawall about itself. The rights of a
//! client's user decide which of these requests Seawall executes.

use std::time::Duration;

use mongodb::bson::{Document, doc};
use rustix::process::Signal;
use seawall_api::Topic;
use seawall_tests::{
    authority::ECDSA,
    eventually::eventually,
    mongod::{
        FailTimes, NewUser, Options, ROOT, ROOT_PASSWORD, Standalone, create_user, fail_command,
        shared_standalone, unique_name,
    },
    process::Process,
    raw::{Login, OpMsg, RawClient, RawReply},
    scratch::Scratch,
    seawall::{self, Seawall},
};

use crate::{
    client_tls::{ClientTlsScene, REQUIRED},
    served::Served,
};

const UNAUTHORIZED: i32 = 13;
const MAX_TIME_MS_EXPIRED: i32 = 50;
const COMMAND_NOT_FOUND: i32 = 59;
const API_STRICT_ERROR: i32 = 323;
const LIMIT: Duration = Duration::from_secs(60);

async fn logged_in(address: &str, user: &str, password: &str) -> RawClient {
    let mut client = RawClient::connect(address.parse().unwrap()).await.unwrap();
    let outcome = client
        .login(&Login::new("admin", user, password))
        .await
        .unwrap();
    assert!(outcome.is_authenticated(), "{outcome:?}");
    client
}

async fn ask(client: &mut RawClient, command: Document) -> RawReply {
    client.command("admin", command).await.unwrap()
}

#[tokio::test]
async fn every_topic_of_the_seawall_command_is_shown_to_an_authorized_user() {
    let served = Served::start("").await;
    let mut root = logged_in(served.process.address(), ROOT, ROOT_PASSWORD).await;
    for topic in Topic::ALL {
        let reply = ask(&mut root, doc! { "seawall": topic.name() }).await;
        assert!(reply.is_ok(), "{topic:?}: {reply:?}");
        assert!(reply.body.len() > 1, "{topic:?}: {reply:?}");
    }
    let status = ask(&mut root, doc! { "seawall": "status" }).await.body;
    assert_eq!(status.get_str("deployment").unwrap(), "Single");
    assert_eq!(status.get_i64("clients").unwrap(), 1);
    let clients = ask(&mut root, doc! { "seawall": "clients", "limit": 1 })
        .await
        .body;
    let clients = clients.get_array("clients").unwrap();
    let user = clients[0].as_document().unwrap().get_str("user").unwrap();
    assert_eq!(user, format!("admin.{ROOT}"));

    served.write("pool.max_pool_size = 7\n");
    let dry = ask(&mut root, doc! { "seawall": "reload", "dryRun": true })
        .await
        .body;
    assert!(!dry.get_bool("applied").unwrap());
    assert_eq!(served.value("pool.max_pool_size").await, "100");
    let reload = ask(&mut root, doc! { "seawall": "reload" }).await.body;
    assert!(reload.get_bool("applied").unwrap(), "{reload:?}");
    assert_eq!(served.value("pool.max_pool_size").await, "7");
    // A server does not know the command `seawall`, so the same command fails on a direct
    // connection.
    let server = shared_standalone().await.unwrap().client().unwrap();
    let direct = server
        .database("admin")
        .run_command(doc! { "seawall": "status" })
        .await;
    assert!(direct.unwrap_err().to_string().contains("no such command"));
}

#[tokio::test]
async fn each_seawall_command_needs_the_current_rights_of_its_user() {
    let server = shared_standalone().await.unwrap();
    let admin = server.client().unwrap();
    let (reader, writer) = (unique_name("reader"), unique_name("writer"));
    let user = NewUser::new("admin", &reader, "secret").role("clusterMonitor", "admin");
    create_user(&admin, &user).await.unwrap();
    let user = NewUser::new("admin", &writer, "secret").role("readWriteAnyDatabase", "admin");
    create_user(&admin, &user).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;

    let mut client = logged_in(seawall.address(), &writer, "secret").await;
    for topic in Topic::ALL {
        let reply = ask(&mut client, doc! { "seawall": topic.name() }).await;
        assert_eq!(reply.code(), Some(UNAUTHORIZED), "{topic:?}: {reply:?}");
    }
    let mut client = logged_in(seawall.address(), &reader, "secret").await;
    assert!(ask(&mut client, doc! { "seawall": "status" }).await.is_ok());
    let act = ask(&mut client, doc! { "seawall": "reload" }).await;
    assert_eq!(act.code(), Some(UNAUTHORIZED), "{act:?}");
    // A revoked role no longer applies to the next command of a connected client.
    let revoke = doc! { "revokeRolesFromUser": &reader, "roles": ["clusterMonitor"] };
    admin.database("admin").run_command(revoke).await.unwrap();
    let refused = ask(&mut client, doc! { "seawall": "status" }).await;
    assert_eq!(refused.code(), Some(UNAUTHORIZED));
    let elsewhere = client
        .command("shop", doc! { "seawall": "status" })
        .await
        .unwrap();
    assert_eq!(elsewhere.code(), Some(UNAUTHORIZED));
    let mut anonymous = RawClient::connect(seawall.address().parse().unwrap())
        .await
        .unwrap();
    let refused = ask(&mut anonymous, doc! { "seawall": "status" }).await;
    assert_eq!(refused.code(), Some(UNAUTHORIZED));
}

#[tokio::test]
async fn reloads_by_the_seawall_command_and_refused_attempts_are_in_the_audit_log() {
    let server = shared_standalone().await.unwrap();
    let writer = unique_name("writer");
    let user = NewUser::new("admin", &writer, "secret").role("readWriteAnyDatabase", "admin");
    create_user(&server.client().unwrap(), &user).await.unwrap();
    let mut served = Served::start("").await;
    let mut client = logged_in(served.process.address(), &writer, "secret").await;
    let mut root = logged_in(served.process.address(), ROOT, ROOT_PASSWORD).await;
    let reload = doc! { "seawall": "reload" };
    // Refused actions are logged at most once a minute. Requests that only read are not logged.
    let status = doc! { "seawall": "status" };
    for command in [&status, &reload, &reload] {
        let refused = ask(&mut client, command.clone()).await;
        assert_eq!(refused.code(), Some(UNAUTHORIZED), "{refused:?}");
    }
    let dry_run = doc! { "seawall": "reload", "dryRun": true };
    assert!(ask(&mut root, dry_run).await.is_ok());
    served.write("pool.max_pool_size = 0\n");
    assert!(!ask(&mut root, reload).await.is_ok());
    assert!(ask(&mut root, doc! { "seawall": "status" }).await.is_ok());
    served.process.signal(Signal::TERM);
    assert!(served.process.ended().await.success());
    let lines = served.process.all_said("admin action");
    let fields: Vec<_> = lines.iter().map(|line| &line["fields"]).collect();
    let (writer, root) = (format!("admin.{writer}"), format!("admin.{ROOT}"));
    for (line, (action, caller, outcome)) in fields.iter().zip([
        (
            r#"{seawall: "reload"}"#,
            &writer,
            "needs the action shutdown",
        ),
        (r#"{seawall: "reload", dryRun: true}"#, &root, "done"),
        (r#"{seawall: "reload"}"#, &root, "pool.max_pool_size"),
    ]) {
        assert_eq!(line["action"], action, "{line}");
        assert_eq!(line["caller"], **caller, "{line}");
        assert!(
            line["outcome"].as_str().unwrap().contains(outcome),
            "{line}"
        );
        assert!(
            line["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
            "{line}"
        );
    }
    // The last line is about the signal.
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert_eq!(fields[0]["refused"], 1);
}

#[tokio::test]
async fn reloads_by_the_seawall_command_are_logged_with_the_subject_of_the_clients_certificate() {
    let scene = ClientTlsScene::new();
    scene.write_list(&[]);
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let mut served = Served::start(&scene.toml(REQUIRED)).await;
    let config = scene.config(Some(&scene.client("operator")));
    let address = served.process.address().parse().unwrap();
    let mut root = RawClient::connect_tls(address, "localhost", config)
        .await
        .unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(root.login(&login).await.unwrap().is_authenticated());
    let reload = ask(&mut root, doc! { "seawall": "reload" }).await;
    assert!(reload.is_ok(), "{reload:?}");
    served.process.signal(Signal::TERM);
    assert!(served.process.ended().await.success());
    let line = served.process.said("admin action").unwrap();
    assert_eq!(line["fields"]["certificate"], "CN=operator", "{line}");
}

/// The server does not list the rights of the user, so the reload does not begin.
#[tokio::test]
async fn a_reload_that_fails_because_the_rights_of_its_user_are_unknown_is_in_the_audit_log() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri = {:?}\n",
        server.uri()
    );
    let file = scratch.write("seawall.toml", toml).unwrap();
    let mut process = Process::serve(&file).await;
    let mut root = logged_in(process.address(), ROOT, ROOT_PASSWORD).await;
    let failure = doc! { "failCommands": ["connectionStatus"], "errorCode": MAX_TIME_MS_EXPIRED };
    let administrator = server.administrator().await.unwrap();
    fail_command(&administrator, FailTimes::Always, failure)
        .await
        .unwrap();
    // Requests that only read are not logged.
    let status = ask(&mut root, doc! { "seawall": "status" }).await;
    assert_eq!(status.code(), Some(MAX_TIME_MS_EXPIRED), "{status:?}");
    let reload = ask(&mut root, doc! { "seawall": "reload" }).await;
    assert_eq!(reload.code(), Some(MAX_TIME_MS_EXPIRED), "{reload:?}");
    process.signal(Signal::TERM);
    assert!(process.ended().await.success());
    let lines = process.all_said("admin action");
    // The second line is about the signal.
    assert_eq!(lines.len(), 2, "{lines:?}");
    let fields = &lines[0]["fields"];
    assert_eq!(fields["action"], r#"{seawall: "reload"}"#);
    assert_eq!(fields["caller"], format!("admin.{ROOT}"));
    assert_eq!(
        fields["outcome"],
        reload.body.get_str("errmsg").unwrap(),
        "{fields}"
    );
    assert_eq!(fields["refused"], 1);
}

#[tokio::test]
async fn host_manager_may_reload_but_not_read_the_status_and_cluster_admin_may_do_both() {
    let server = shared_standalone().await.unwrap();
    let admin = server.client().unwrap();
    let served = Served::start("").await;
    for (role, may_read) in [("hostManager", false), ("clusterAdmin", true)] {
        let name = unique_name(role);
        let user = NewUser::new("admin", &name, "secret").role(role, "admin");
        create_user(&admin, &user).await.unwrap();
        let mut client = logged_in(served.process.address(), &name, "secret").await;
        let read = ask(&mut client, doc! { "seawall": "status" }).await;
        let expected = (!may_read).then_some(UNAUTHORIZED);
        assert_eq!(read.code(), expected, "{role}: {read:?}");
        let reloaded = ask(&mut client, doc! { "seawall": "reload" }).await;
        assert!(
            reloaded.body.get_bool("applied").unwrap(),
            "{role}: {reloaded:?}"
        );
    }
}

#[tokio::test]
async fn the_command_seawall_is_refused_if_api_strict_is_true() {
    let served = Served::start("").await;
    let mut root = logged_in(served.process.address(), ROOT, ROOT_PASSWORD).await;
    let strict = |is_strict: bool| {
        doc! { "seawall": "status", "apiVersion": "1", "apiStrict": is_strict }
    };
    assert!(ask(&mut root, strict(false)).await.is_ok());
    let refused = ask(&mut root, strict(true)).await;
    assert_eq!(refused.code(), Some(API_STRICT_ERROR), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_seawall_is_forwarded_if_the_key_admin_commands_is_false() {
    let server = shared_standalone().await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let mut root = logged_in(seawall.address(), ROOT, ROOT_PASSWORD).await;
    assert!(ask(&mut root, doc! { "seawall": "status" }).await.is_ok());
    seawall.reload("admin.commands = false\n").await.unwrap();
    let unknown = ask(&mut root, doc! { "seawall": "status" }).await;
    assert_eq!(unknown.code(), Some(COMMAND_NOT_FOUND));
}

/// After code 11600 (InterruptedAtShutdown), a driver would treat Seawall like a member that shuts
/// down.
#[tokio::test]
async fn the_command_seawall_replaces_a_state_change_error_of_a_server_by_code_6() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let mut root = logged_in(seawall.address(), ROOT, ROOT_PASSWORD).await;
    let failure = doc! { "failCommands": ["connectionStatus"], "errorCode": 11600 };
    let administrator = server.administrator().await.unwrap();
    fail_command(&administrator, FailTimes::Count(1), failure)
        .await
        .unwrap();
    let reply = ask(&mut root, doc! { "seawall": "status" }).await;
    assert_eq!(reply.code(), Some(6), "{reply:?}");
}

#[tokio::test]
async fn without_access_control_the_command_seawall_shows_topics_and_refuses_actions() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let mut client = RawClient::connect(seawall.address().parse().unwrap())
        .await
        .unwrap();
    let shown = ask(&mut client, doc! { "seawall": "status" }).await;
    assert!(shown.is_ok(), "{shown:?}");
    let refused = ask(&mut client, doc! { "seawall": "reload" }).await;
    assert_eq!(refused.code(), Some(UNAUTHORIZED));
}

/// The client does not read its reply of about a megabyte. The buffer of a Unix socket is much
/// smaller, so Seawall keeps the rest of the reply in memory.
#[tokio::test]
async fn a_large_reply_to_the_seawall_command_counts_towards_the_memory_for_messages() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("seawall.sock");
    let options = seawall::Options {
        listen: Some(format!("unix:{}", path.display())),
        ..seawall::Options::default()
    };
    let seawall = Seawall::start_with(&server.uri(), options).await;
    let mut client = RawClient::connect_unix(&path).await.unwrap();
    for number in 0..1000 {
        let find = doc! { "find": format!("collection{number}") };
        client.expect_ok("test", find).await;
    }
    let shapes = doc! { "seawall": "shapes", "limit": 1000, "$db": "admin" };
    client.send(&OpMsg::new(shapes)).await.unwrap();
    let owner = ["owner=\"messages\""];
    let is_charged = async || seawall.metric("seawall_memory_bytes", &owner).await >= 100_000.0;
    eventually(LIMIT, is_charged).await.unwrap();
}

#[tokio::test]
async fn a_seawall_command_that_waits_for_its_turn_ends_when_its_client_disconnects() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let seawall = Seawall::start(&server.uri()).await;
    let address = seawall.address().parse().unwrap();
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(RawClient::connect(address).await.unwrap());
    }
    let connected = async || seawall.metric("seawall_client_connections", &[]).await;
    let are_connected = async || connected().await >= 200.0;
    eventually(LIMIT, are_connected).await.unwrap();
    // The server hangs. Seawall executes at most four of the commands at a time, and each of them
    // waits 5 s for the server's reply about the rights of its user.
    server.mongod().stop_process().unwrap();
    let status = OpMsg::new(doc! { "seawall": "status", "$db": "admin" });
    for client in &mut clients {
        client.send(&status).await.unwrap();
    }
    drop(clients);
    let have_left = async || connected().await <= 4.0;
    eventually(LIMIT, have_left).await.unwrap();
    let waiting = ["stage=\"permit\""];
    let are_gone = async || seawall.metric("seawall_clients_gone_total", &waiting).await >= 1.0;
    eventually(LIMIT, are_gone).await.unwrap();
}
