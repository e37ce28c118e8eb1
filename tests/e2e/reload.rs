//! Tests of reloads of the configuration: which changes connected clients notice, and which they do
//! not notice.

use std::{
    cell::Cell,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use mongodb::bson::{Document, doc};
use rustix::process::Signal;
use seawall_api::{ClientError, Configuration, Pools, Reload};
use seawall_tests::{
    certificates::Certificates,
    eventually::eventually,
    mongod::{
        NewUser, Options as MongodOptions, ROOT, ROOT_PASSWORD, Standalone, create_user,
        shared_standalone, unique_name,
    },
    process::Process,
    raw::{Login, Outcome, RawClient},
    scratch::Scratch,
    seawall::{Seawall, http},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use crate::{capture::section, served::Served};

const LIMIT: Duration = Duration::from_secs(60);

/// The log message of a reload that failed.
const NOT_RELOADED: &str = "could not reload the configuration";

async fn start(toml: &str) -> Seawall {
    let server = shared_standalone().await.unwrap();
    Seawall::start_configured(&server.uri(), toml).await
}

async fn connect(address: &str) -> RawClient {
    RawClient::connect(address.parse().unwrap()).await.unwrap()
}

async fn log_in(client: &mut RawClient, user: &str, password: &str) -> Outcome {
    let login = Login::new("admin", user, password);
    client.login(&login).await.unwrap()
}

async fn logged_in(address: &str) -> RawClient {
    let mut client = connect(address).await;
    let outcome = log_in(&mut client, ROOT, ROOT_PASSWORD).await;
    assert!(outcome.is_authenticated(), "{outcome:?}");
    client
}

/// The error code of a find; `None` if it succeeds.
async fn find(client: &mut RawClient) -> Option<i32> {
    let reply = client.command("reload", doc! { "find": "c" }).await;
    reply.unwrap().code()
}

fn keys(reload: &Reload, needs_restart: bool) -> Vec<&str> {
    let changes = reload.changes.iter();
    let changes = changes.filter(|change| change.needs_restart == needs_restart);
    changes.map(|change| &*change.key).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_switches_an_injected_error_on_and_off_for_connected_clients() {
    let seawall = start("").await;
    let mut client = logged_in(seawall.address()).await;
    assert_eq!(find(&mut client).await, None);
    let reload = seawall.reload("fault.error_code = 8000\n").await.unwrap();
    assert_eq!(keys(&reload, false), ["fault.error_code"]);
    assert_eq!(find(&mut client).await, Some(8000));
    seawall.reload("").await.unwrap();
    assert_eq!(find(&mut client).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reload_servers_receive_the_application_names_of_connected_clients() {
    let seawall = start("deployment.name_applications = false\n").await;
    let mut client = connect(seawall.address()).await;
    let metadata = doc! {
        "application": { "name": "named by a reload" },
        "driver": { "name": "d", "version": "1" },
        "os": { "type": "x" },
    };
    let hello = client.greet(doc! { "client": metadata }).await.unwrap();
    assert!(hello.is_ok(), "{}", hello.body);
    let outcome = log_in(&mut client, ROOT, ROOT_PASSWORD).await;
    assert!(outcome.is_authenticated(), "{outcome:?}");
    // The reply lists the operation itself, with the name of its application.
    let running =
        doc! { "aggregate": 1, "pipeline": [{ "$currentOp": { "localOps": true } }], "cursor": {} };
    let mut is_named = async || {
        let reply = client.expect_ok("admin", running.clone()).await;
        reply.body.to_string().contains("named by a reload")
    };
    assert!(!is_named().await);
    seawall.reload("").await.unwrap();
    assert!(is_named().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_can_shrink_or_enlarge_a_pool_and_the_larger_pool_serves_waiting_operations() {
    // `pool.min_pool_size` makes the larger pool open its connections before operations need them.
    let limits = |size: usize, min: usize| {
        format!(
            "pool.max_pool_size = {size}\npool.min_pool_size = {min}\npool.concurrency = \"off\"\n"
        )
    };
    let seawall = start(&limits(8, 8)).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(logged_in(seawall.address()).await);
    }
    let insert = doc! { "insert": "sleeps", "documents": [{}] };
    let database = unique_name("reload");
    assert!(clients[0].command(&database, insert).await.unwrap().is_ok());
    let connections = async || {
        let pools: Pools = seawall.api("/api/v1/pools").await;
        let pools = pools.pools.iter();
        pools.map(|pool| pool.available + pool.in_use).sum::<u64>()
    };
    let is_large = async || connections().await == 8;
    eventually(LIMIT, is_large).await.unwrap();
    let reload = seawall.reload(&limits(2, 0)).await.unwrap();
    assert_eq!(
        keys(&reload, false),
        ["pool.max_pool_size", "pool.min_pool_size"]
    );
    let is_small = async || connections().await <= 2;
    eventually(LIMIT, is_small).await.unwrap();
    // With a pool of two connections, operations wait. A larger pool serves the waiting operations.
    let mut sleeps = JoinSet::new();
    for mut client in clients {
        let slow = doc! { "find": "sleeps", "filter": { "$where": "sleep(2000) || true" } };
        let database = database.clone();
        sleeps.spawn(async move { client.command(&database, slow).await.unwrap().code() });
    }
    let waits = async || seawall.metric("seawall_wait_queue_length", &[]).await > 0.0;
    eventually(LIMIT, waits).await.unwrap();
    assert!(connections().await <= 2);
    seawall.reload(&limits(8, 8)).await.unwrap();
    assert_eq!(sleeps.join_all().await, [None; 8]);
    eventually(LIMIT, is_large).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_can_add_change_and_remove_configured_users() {
    let server = shared_standalone().await.unwrap();
    let [kept, removed, added] = ["kept", "removed", "added"].map(unique_name);
    for name in [&kept, &removed, &added] {
        let user = NewUser::new("admin", name, "right").role("readWriteAnyDatabase", "admin");
        create_user(&server.client().unwrap(), &user).await.unwrap();
    }
    let users = |users: &[(&str, &str)]| {
        let user = |(name, password): &(&str, &str)| {
            format!("[[auth.users]]\nname = {name:?}\npassword = {password:?}\n")
        };
        users.iter().map(user).collect::<String>()
    };
    let before = users(&[(&kept, "wrong"), (&removed, "right")]);
    let seawall = Seawall::start_configured(&server.uri(), &before).await;
    let mut client = connect(seawall.address()).await;
    assert!(!log_in(&mut client, &kept, "right").await.is_authenticated());
    assert!(
        !log_in(&mut client, &added, "right")
            .await
            .is_authenticated()
    );
    let mut leaver = connect(seawall.address()).await;
    assert!(
        log_in(&mut leaver, &removed, "right")
            .await
            .is_authenticated()
    );
    assert_eq!(find(&mut leaver).await, None);

    let after = users(&[(&kept, "right"), (&added, "right")]);
    let reload = seawall.reload(&after).await.unwrap();
    assert!(keys(&reload, true).is_empty());
    for name in [&kept, &added] {
        let mut client = connect(seawall.address()).await;
        assert!(log_in(&mut client, name, "right").await.is_authenticated());
        assert_eq!(find(&mut client).await, None);
    }
    // A changed password applies to later logins only. Connected clients stay logged in.
    let mut early = connect(seawall.address()).await;
    assert!(log_in(&mut early, &kept, "right").await.is_authenticated());
    assert_eq!(find(&mut early).await, None);
    let change = doc! { "updateUser": &kept, "pwd": "new" };
    let admin = server.client().unwrap().database("admin");
    admin.run_command(change).await.unwrap();
    seawall
        .reload(&users(&[(&kept, "new"), (&added, "right")]))
        .await
        .unwrap();
    assert_eq!(find(&mut early).await, None);
    // Seawall may use SCRAM keys of a user for one second after it has read them from the server.
    // So it may refuse the new password at first.
    let is_known = async || {
        let mut client = connect(seawall.address()).await;
        log_in(&mut client, &kept, "new").await.is_authenticated()
    };
    eventually(LIMIT, is_known).await.unwrap();
    let mut late = connect(seawall.address()).await;
    assert!(!log_in(&mut late, &kept, "right").await.is_authenticated());
    assert_eq!(find(&mut early).await, None);
    // The client of the removed user stays connected. Its operations are refused, and it cannot log
    // in again.
    assert_eq!(find(&mut leaver).await, Some(13));
    assert!(
        !log_in(&mut leaver, &removed, "right")
            .await
            .is_authenticated()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slow_log_can_be_switched_on_and_off() {
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("slow.jsonl");
    let seawall = start("").await;
    let mut client = logged_in(seawall.address()).await;
    let to = |path: &Path| format!("slow_log.threshold_ms = 0\nslow_log.file = {path:?}\n");
    let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().count();
    let later = scratch.join("later.jsonl");
    seawall.reload(&to(&path)).await.unwrap();
    assert_eq!(find(&mut client).await, None);
    eventually(LIMIT, async || lines(&path) > 0).await.unwrap();
    // Seawall writes an operation to the log after it has sent the reply. So the test waits until
    // the second find is counted, and then switches the log on again. Otherwise the log might also
    // contain the second find.
    seawall.reload("").await.unwrap();
    assert_eq!(find(&mut client).await, None);
    let finds = async || {
        let labels = [r#"command="find""#, r#"db="reload""#];
        seawall.metric("seawall_operations_total", &labels).await
    };
    eventually(LIMIT, async || finds().await >= 2.0)
        .await
        .unwrap();
    seawall.reload(&to(&later)).await.unwrap();
    assert_eq!(find(&mut client).await, None);
    eventually(LIMIT, async || lines(&later) > 0).await.unwrap();
    assert_eq!((lines(&path), lines(&later)), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_operations_succeed_and_the_lost_slow_log_lines_are_counted() {
    let to = |file: &str| format!("slow_log.threshold_ms = 0\nslow_log.file = {file:?}\n");
    let seawall = start(&to("/dev/full")).await;
    let mut client = logged_in(seawall.address()).await;
    for _ in 0..10 {
        assert_eq!(find(&mut client).await, None);
    }
    let are_counted = async || {
        let lost = seawall.metric("seawall_slow_log_left_out_total", &[]);
        lost.await >= 10.0
    };
    eventually(LIMIT, are_counted).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("slow.jsonl");
    seawall.reload(&to(path.to_str().unwrap())).await.unwrap();
    assert_eq!(find(&mut client).await, None);
    let is_written = async || fs::read_to_string(&path).is_ok_and(|text| text.contains("find"));
    eventually(LIMIT, is_written).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_api_requires_a_token_as_soon_as_one_is_configured() {
    let scratch = Scratch::create().unwrap();
    let token = scratch.write("token", "first\n").unwrap();
    let seawall = start("").await;
    assert_eq!(seawall.get("/api/v1/status").await.0, 200);
    let toml = format!("admin.token_file = {token:?}\n");
    seawall.reload(&toml).await.unwrap();
    assert_eq!(seawall.get("/api/v1/status").await.0, 401);
    scratch.write("token", "second\n").unwrap();
    let reload = seawall.reload(&toml).await.unwrap();
    assert_eq!(keys(&reload, false), ["admin.token_file"]);
    let status = async |token: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        seawall.request("GET", "/api/v1/status", &header).await.0
    };
    assert_eq!(status("first").await, 401);
    assert_eq!(status("second").await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_token_allows_only_what_its_role_allows() {
    let scratch = Scratch::create().unwrap();
    for name in ["old", "new", "monitoring"] {
        scratch.write(name, format!("{name} token\n")).unwrap();
    }
    let file = |name: &str| scratch.join(name).display().to_string();
    let toml = format!(
        "admin.token_file = \"{},{}\"\nadmin.read_token_file = {:?}\n",
        file("old"),
        file("new"),
        file("monitoring")
    );
    let seawall = start("").await;
    seawall.reload(&toml).await.unwrap();
    let status = async |method: &str, path: &str, name: &str| {
        let header = format!("Authorization: Bearer {name} token\r\n");
        seawall.request(method, path, &header).await.0
    };
    for name in ["old", "new", "monitoring"] {
        assert_eq!(status("GET", "/api/v1/status", name).await, 200, "{name}");
    }
    let actions = [
        ("GET", "/api/v1/profile"),
        ("POST", "/api/v1/reload"),
        ("POST", "/api/v1/drain"),
    ];
    for (method, path) in actions {
        assert_eq!(status(method, path, "monitoring").await, 403, "{path}");
        assert_eq!(status(method, path, "unknown").await, 401, "{path}");
    }
    // The configuration now lists only the file of the new token, so Seawall refuses all other
    // tokens.
    let toml = format!("admin.token_file = {:?}\n", file("new"));
    seawall.reload(&toml).await.unwrap();
    assert_eq!(status("GET", "/api/v1/status", "old").await, 401);
    assert_eq!(status("GET", "/api/v1/status", "monitoring").await, 401);
    assert_eq!(status("POST", "/api/v1/drain", "new").await, 202);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_admin_action_is_logged_with_its_token_file_even_if_the_action_removes_the_token() {
    let scratch = Scratch::create().unwrap();
    let [old, new, monitoring] = ["old", "new", "monitoring"].map(|name| {
        let file = scratch.write(name, format!("{name} token\n")).unwrap();
        file.display().to_string()
    });
    let tokens =
        |act: &str| format!("admin.token_file = {act:?}\nadmin.read_token_file = {monitoring:?}\n");
    let served = Served::start(&tokens(&old)).await;
    let reload = async |name: &str| {
        let header = format!("Authorization: Bearer {name} token\r\n");
        let (status, _) = http(served.process.admin(), "POST", "/api/v1/reload", &header).await;
        status
    };
    assert_eq!(reload("monitoring").await, 403);
    // Refused actions are logged at most once a minute, so this refusal is not logged.
    assert_eq!(reload("monitoring").await, 403);
    served.write(&tokens(&new));
    assert_eq!(reload("old").await, 200);
    assert_eq!(reload("old").await, 401);
    assert_eq!(reload("new").await, 200);
    let expected = [(&monitoring, 403), (&old, 200), (&new, 200)];
    let are_logged = async || served.process.said_times("admin action") >= expected.len();
    eventually(LIMIT, are_logged).await.unwrap();
    let lines = served.process.all_said("admin action");
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, (caller, status)) in lines.iter().zip(expected) {
        let fields = &line["fields"];
        assert_eq!(fields["action"], "POST /api/v1/reload", "{line}");
        assert_eq!(fields["caller"], *caller, "{line}");
        assert_eq!(fields["status"], status, "{line}");
    }
    assert_eq!(lines[0]["fields"]["refused"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_of_a_capture_ends_when_a_reload_removes_the_token_of_the_download() {
    let scratch = Scratch::create().unwrap();
    let [old, new] = ["old", "new"].map(|name| {
        let file = scratch.write(name, format!("{name} token\n")).unwrap();
        file.display().to_string()
    });
    let capture = section(&scratch, "");
    let with_tokens = |files: &str| format!("admin.token_file = {files:?}\n{capture}");
    let seawall = start(&capture).await;
    let id = seawall.start_capture("").await;
    let both = with_tokens(&format!("{old},{new}"));
    seawall.reload(&both).await.unwrap();
    let address = seawall.app.admin_address().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /api/v1/captures/{id}/content HTTP/1.1\r\nHost: {address}\r\n\
         Authorization: Bearer old token\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    seawall.reload(&with_tokens(&new)).await.unwrap();
    // The stream may end with an error, because the capture still runs. So the test checks only
    // that the stream ends.
    let ended = timeout(LIMIT, stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "expected the stream to end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reload_new_clients_get_the_new_certificate_and_other_clients_stay_connected() {
    let [first, second] = [(); 2].map(|()| Certificates::generate().unwrap());
    let seawall = start(&first.listen_toml()).await;
    let connect = async |trusted: &Certificates| {
        let address = seawall.address().parse().unwrap();
        RawClient::connect_tls(address, "localhost", trusted.client_config().unwrap()).await
    };
    let mut early = connect(&first).await.unwrap();
    assert!(early.hello(doc! {}).await.unwrap().is_ok());
    let reload = seawall.reload(&second.listen_toml()).await.unwrap();
    assert_eq!(
        keys(&reload, false),
        ["listen.tls.certificate_file", "listen.tls.key_file"]
    );
    let mut late = connect(&second).await.unwrap();
    assert!(late.hello(doc! {}).await.unwrap().is_ok());
    assert!(connect(&first).await.is_err());
    assert!(early.hello(doc! {}).await.unwrap().is_ok());
}

#[tokio::test]
async fn the_format_of_the_log_changes_at_a_reload() {
    let server = shared_standalone().await.unwrap();
    let scratch = Scratch::create().unwrap();
    let write = |format: &str| {
        let toml = format!(
            "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
             deployment.uri = {:?}\nlog.format = {format:?}\n",
            server.uri()
        );
        scratch.write("seawall.toml", toml).unwrap()
    };
    // The fixture sets the format by an environment variable, which would override the file.
    let launcher = ["env", "--unset", "SEAWALL_LOG__FORMAT"];
    let process = Process::launch(&launcher, &write("json")).await;
    let lines_with = |text: &str, is_json: bool| {
        let log = process.log();
        let lines = log.lines().filter(|line| line.contains(text));
        // The fixture stores a line that is not a JSON object as a JSON string.
        lines
            .filter(|line| line.starts_with('{') == is_json)
            .count()
    };
    for (format, is_json) in [("text", false), ("json", true)] {
        write(format);
        process.signal(Signal::HUP);
        let is_logged = async || lines_with("configuration reloaded", is_json) == 1;
        eventually(LIMIT, is_logged).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_can_shorten_the_authentication_timeout_of_the_next_client() {
    let seawall = start("auth.authentication_timeout_ms = 3600000\n").await;
    seawall
        .reload("auth.authentication_timeout_ms = 50\n")
        .await
        .unwrap();
    let mut silent = TcpStream::connect(seawall.address()).await.unwrap();
    let closed = timeout(LIMIT, silent.read_u8()).await.unwrap();
    assert!(closed.is_err(), "expected Seawall to close the connection");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_can_shorten_the_time_between_two_server_status_commands_to_a_server() {
    let server = Standalone::start(MongodOptions::with_auth()).await.unwrap();
    let pulse = |ms: u32| format!("pulse.interval_ms = {ms}\n");
    let seawall = Seawall::start_configured(&server.root_uri(), &pulse(60_000)).await;
    let admin = server.client().unwrap().database("admin");
    let samples = async || {
        let status = admin.run_command(doc! { "serverStatus": 1 }).await.unwrap();
        let commands = status.get_document("metrics").unwrap();
        let commands = commands.get_document("commands").unwrap();
        let command = commands.get_document("serverStatus").unwrap();
        command.get_i64("total").unwrap()
    };
    let reload = seawall.reload(&pulse(100)).await.unwrap();
    assert_eq!(keys(&reload, false), ["pulse.interval_ms"]);
    // Each reading of the counter is itself a `serverStatus`. So the counter must rise by more than
    // the number of readings.
    let (before, readings) = (samples().await, Cell::new(0));
    let are_taken = async || {
        readings.set(readings.get() + 1);
        samples().await - before - readings.get() > 10
    };
    eventually(LIMIT, are_taken).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_values_that_need_a_restart_are_pending_and_the_old_values_stay_in_effect() {
    let seawall = start("").await;
    let reload = seawall
        .reload("listen.backlog = 9\npool.max_connecting = 3\n")
        .await
        .unwrap();
    assert_eq!(keys(&reload, true), ["listen.backlog"]);
    assert_eq!(keys(&reload, false), ["pool.max_connecting"]);
    let configuration: Configuration = seawall.api("/api/v1/config").await;
    let value = |key: &str| {
        let value = configuration.values.iter().find(|value| value.key == key);
        let value = value.unwrap();
        (&*value.value, value.pending.as_deref(), &*value.origin)
    };
    assert_eq!(value("listen.backlog"), ("4096", Some("9"), "default"));
    assert_eq!(value("pool.max_connecting"), ("3", None, "file"));
    assert_eq!(value("deployment.uri"), ("(hidden)", None, "file"));
    let hash = format!("config_hash=\"{}\"", configuration.hash);
    assert!((seawall.metric("seawall_info", &[&hash]).await - 1.0).abs() < f64::EPSILON);
    assert!((seawall.metric("seawall_info", &[]).await - 1.0).abs() < f64::EPSILON);
    // Seawall started without configured users, so users that a reload adds need a restart.
    let users = "[[auth.users]]\nname = \"a\"\npassword = \"b\"\n";
    let reload = seawall.reload(users).await.unwrap();
    assert!(
        keys(&reload, true)
            .iter()
            .all(|key| key.starts_with("auth.users"))
    );
    assert!(!keys(&reload, true).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_refuses_credentials_lookup_if_the_connection_string_has_no_user() {
    let seawall = start("").await;
    let lookup = "auth.credentials = \"lookup\"\n";
    let problems = seawall.reload(lookup).await.unwrap_err();
    let expected = "auth.credentials: \"lookup\" needs a user in deployment.uri";
    assert_eq!(problems, [expected]);
    let configuration: Configuration = seawall.api("/api/v1/config").await;
    let mut values = configuration.values.iter();
    assert!(values.all(|value| value.pending.is_none()));
}

#[tokio::test]
async fn sighup_and_the_api_reload_the_configuration() {
    let mut served = Served::start("").await;
    let mut client = logged_in(served.process.address()).await;
    served.write("pool.max_pool_size = 7\n");
    served.process.signal(Signal::HUP);
    served.has("pool.max_pool_size", "7").await;
    served.write("pool.max_pool_size = 8\nlog.level = \"error\"\n");
    let admin = served.admin();
    let dry: Reload = admin.post("/api/v1/reload?dry_run=true").await.unwrap();
    assert!(!dry.applied);
    assert_eq!(keys(&dry, false), ["pool.max_pool_size", "log.level"]);
    // A misspelt parameter must not turn a dry run into a reload.
    let misspelt = admin.post::<Reload>("/api/v1/reload?dryrun=true").await;
    assert!(matches!(
        misspelt,
        Err(ClientError::Refused { status: 400, .. })
    ));
    assert_eq!(served.value("pool.max_pool_size").await, "7");
    let reload: Reload = admin.post("/api/v1/reload").await.unwrap();
    assert_eq!(
        Reload {
            applied: false,
            ..reload.clone()
        },
        dry
    );
    assert!(reload.applied);
    assert_eq!(served.value("pool.max_pool_size").await, "8");
    assert_eq!(find(&mut client).await, None);
    served.write("pool.max_pool_size = 8\n");
    let reload: Reload = admin.post("/api/v1/reload").await.unwrap();
    assert_eq!(keys(&reload, false), ["log.level"]);
    served.process.signal(Signal::TERM);
    assert!(served.process.ended().await.success());
    // The second of three reloads set the level to `error`, so the message of that reload is not in
    // the log.
    assert_eq!(served.process.said_times("configuration reloaded"), 2);
}

#[tokio::test]
async fn neither_the_log_level_nor_the_variable_seawall_log_turns_the_audit_log_off() {
    for launcher in [
        &[][..],
        &["env", "SEAWALL_LOG="],
        &["env", "SEAWALL_LOG=seawall=info"],
    ] {
        let mut served = Served::launch(launcher, "").await;
        let admin = served.admin();
        served.write("log.level = \"error\"\n");
        let requests = ["/api/v1/reload", "/api/v1/reload?dry_run=true"];
        for request in requests {
            let _: Reload = admin.post(request).await.unwrap();
        }
        served.process.signal(Signal::TERM);
        assert!(served.process.ended().await.success());
        let lines = served.process.all_said("admin action");
        let actions = lines.iter().map(|line| line["fields"]["action"].clone());
        let [reload, dry_run] = requests.map(|request| Value::from(format!("POST {request}")));
        let expected = [reload, dry_run, "drain".into()];
        assert_eq!(Vec::from_iter(actions), expected, "{launcher:?}");
        assert!(
            lines.iter().all(|line| line["target"] == "audit"),
            "{lines:?}"
        );
    }
}

/// The fields `action`, `caller` and `outcome` of each line of the audit log.
fn audited(process: &Process) -> Vec<[String; 3]> {
    let lines = process.all_said("admin action");
    let fields = lines.iter().map(|line| {
        ["action", "caller", "outcome"].map(|name| {
            let value = line["fields"][name].as_str();
            value.unwrap_or_default().to_owned()
        })
    });
    fields.collect()
}

#[tokio::test]
async fn reloads_by_signals_and_of_changed_files_are_in_the_audit_log() {
    let served = Served::start("").await;
    let hang_up = async |toml: &str, count: usize| {
        served.write(toml);
        served.process.signal(Signal::HUP);
        let are_logged = async || audited(&served.process).len() == count;
        eventually(LIMIT, are_logged).await.unwrap();
    };
    hang_up("pool.max_pool_size = 0\n", 1).await;
    hang_up("reload.watch = true\n", 2).await;
    served.write("reload.watch = true\npool.max_pool_size = 7\n");
    let are_logged = async || audited(&served.process).len() == 3;
    eventually(LIMIT, are_logged).await.unwrap();
    let lines = audited(&served.process);
    let problem = &lines[0][2];
    assert!(problem.contains("pool.max_pool_size"), "{problem}");
    let expected = [
        ["reload", "signal SIGHUP", problem],
        ["reload", "signal SIGHUP", "done"],
        ["reload", "reload.watch", "done"],
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn stops_by_signals_are_in_the_audit_log() {
    let drain = ["drain", "signal SIGTERM", "begun"];
    let stop = |signal: &'static str| ["stop", signal, "begun"];
    for (signals, expected) in [
        (&[Signal::TERM][..], &[drain][..]),
        (
            &[Signal::TERM, Signal::INT],
            &[drain, stop("signal SIGINT")],
        ),
        (&[Signal::INT], &[stop("signal SIGINT")]),
    ] {
        // A client that stays connected lets a drain last until the second signal, or until the
        // end of its time.
        let ms = if signals.len() > 1 { 3_600_000 } else { 1 };
        let mut served = Served::start(&format!("shutdown.drain_ms = {ms}\n")).await;
        let _client = logged_in(served.process.address()).await;
        for (number, signal) in signals.iter().enumerate() {
            served.process.signal(*signal);
            let is_logged = async || audited(&served.process).len() > number;
            eventually(LIMIT, is_logged).await.unwrap();
        }
        served.process.ended().await;
        assert_eq!(audited(&served.process), expected);
    }
}

/// A text that the reported problems must contain, and a function that breaks the configuration.
type BreakingChange = (&'static str, fn(&Served));

#[tokio::test]
async fn a_reload_of_a_broken_configuration_changes_nothing_and_reports_every_problem() {
    let served = Served::start("pool.max_pool_size = 7\n").await;
    let mut client = logged_in(served.process.address()).await;
    let cases: [BreakingChange; 4] = [
        ("pool.max_connecting", |served| {
            served.write("pool.max_pool_size = 0\npool.max_connecting = 0\n");
        }),
        ("seawall.toml, line", |served| {
            served.write("pool.max_pool_size = \n")
        }),
        ("listen.tls.key_file", |served| {
            served.write(
                "listen.tls.certificate_file = \"/nowhere\"\nlisten.tls.key_file = \"/nowhere\"\n",
            );
        }),
        ("must be a readable configuration file", |served| {
            fs::remove_file(&served.file).unwrap();
            fs::create_dir(&served.file).unwrap();
        }),
    ];
    for (count, (expected, break_it)) in cases.into_iter().enumerate() {
        break_it(&served);
        let refused: Reload = served.admin().post("/api/v1/reload").await.unwrap();
        assert!(!refused.applied && refused.changes.is_empty());
        let problems = refused.problems.join("\n");
        assert!(problems.contains(expected), "{problems}");
        let is_logged = async || served.process.said_times(NOT_RELOADED) > count;
        eventually(LIMIT, is_logged).await.unwrap();
        assert_eq!(served.value("pool.max_pool_size").await, "7");
        assert_eq!(find(&mut client).await, None);
    }
    let first = served.process.said(NOT_RELOADED).unwrap();
    let first = first.to_string();
    for key in ["pool.max_pool_size", "pool.max_connecting"] {
        assert!(first.contains(key), "{first}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_drop_no_client_and_lose_no_reply() {
    let seawall = start("").await;
    let client = seawall.client(ROOT, ROOT_PASSWORD, "admin").await;
    let things = client
        .database(&unique_name("reload"))
        .collection::<Document>("things");
    let is_over = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let (things, is_over) = (things.clone(), Arc::clone(&is_over));
        writers.spawn(async move {
            let mut number = 0_u64;
            while number < 50 || !is_over.load(Ordering::Relaxed) {
                let id = format!("{writer}-{number}");
                things.insert_one(doc! { "_id": &id }).await.unwrap();
                let found = things.find_one(doc! { "_id": &id }).await.unwrap();
                assert_eq!(found.unwrap().get_str("_id").unwrap(), id);
                number += 1;
            }
            number
        });
    }
    let (mut reloads, mut written) = (0_usize, 0);
    while !writers.is_empty() {
        let size = [1, 100, 3][reloads % 3];
        let mode = ["\"auto\"", "2", "\"off\""][reloads % 3];
        let toml = format!(
            "pool.max_pool_size = {size}\npool.concurrency = {mode}\nlimits.max_in_flight_operations = {size}\nshapes.max_shapes = {size}\n"
        );
        seawall.reload(&toml).await.unwrap();
        reloads += 1;
        // The writers run during at least 12 reloads, even if a reload takes long.
        is_over.store(reloads >= 12, Ordering::Relaxed);
        while let Some(done) = writers.try_join_next() {
            written += done.unwrap();
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(things.count_documents(doc! {}).await.unwrap(), written);
    seawall.assert_all_connected().await;
}
