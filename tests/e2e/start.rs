//! Tests that start and run Seawall while the deployment is up, down or changing. They also cover
//! listeners, TLS, limits and failures.

use std::{
    collections::BTreeSet, io::ErrorKind, net::SocketAddr, path::Path, process::Output, sync::Arc,
    time::Duration,
};

use mongodb::{
    Client,
    bson::{Document, doc},
    options::{ClientOptions, Credential},
};
use seawall_api::Topology;
use seawall_tests::{
    certificates::Certificates,
    eventually::eventually,
    mongod::{
        NewUser, Options, ROOT, ROOT_PASSWORD, ReplicaSet, Standalone, create_user,
        shared_replica_set, shared_standalone, unique_name,
    },
    process::{Process, binary, run},
    raw::{Login, RawClient, RawError},
    recorder::Recorder,
    scratch::Scratch,
    seawall::{self, Seawall},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpSocket, TcpStream, lookup_host},
    process::Command,
    sync::Notify,
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::scene::{self, connect};

const LIMIT: Duration = Duration::from_secs(60);
const SHUTDOWN_IN_PROGRESS: i32 = 91;

fn with(toml: &str) -> seawall::Options {
    seawall::Options {
        toml: toml.to_owned(),
        ..seawall::Options::default()
    }
}

async fn logged_in(seawall: &Seawall) -> RawClient {
    scene::logged_in(seawall, &Login::new("admin", ROOT, ROOT_PASSWORD)).await
}

/// A client of the official driver that logs in as the root user.
async fn driver(uri: &str) -> Client {
    let mut options = ClientOptions::parse(uri).await.unwrap();
    let credential = Credential::builder().username(ROOT.to_owned());
    options.credential = Some(credential.password(ROOT_PASSWORD.to_owned()).build());
    Client::with_options(options).unwrap()
}

async fn is_served(client: &Client) -> mongodb::error::Result<()> {
    let things = client
        .database(&unique_name("start"))
        .collection::<Document>("things");
    things.insert_one(doc! {"_id": 1}).await?;
    let found = things.find_one(doc! {"_id": 1}).await?;
    assert!(found.is_some());
    things.drop().await
}

#[tokio::test]
async fn seawall_starts_while_the_deployment_is_down_and_becomes_ready_when_it_is_up() {
    let mut server = Standalone::start(Options::with_auth()).await.unwrap();
    server.mongod().kill().await.unwrap();
    let toml = "deployment.heartbeat_frequency_ms = 500";
    let seawall = Seawall::launch(&server.uri(), with(toml)).await.unwrap();
    let (status, reason) = seawall.get("/health/ready").await;
    assert_eq!(status, 503, "{reason}");
    assert_eq!(seawall.get("/health/live").await.0, 200);
    let mut early = connect(&seawall).await;
    let hello = early.hello(doc! {}).await.unwrap();
    assert_eq!(hello.code(), Some(SHUTDOWN_IN_PROGRESS), "{hello:?}");
    // A driver that connects too early waits until it is served.
    let client = driver(&seawall.uri()).await;
    let waiting = async { is_served(&client).await };
    let appearing = async { server.mongod_mut().restart().await.unwrap() };
    let (served, ()) = tokio::join!(waiting, appearing);
    served.unwrap();
    assert_eq!(seawall.get("/health/ready").await.0, 200);
    let hello = early.hello(doc! {}).await.unwrap();
    assert!(hello.is_ok(), "{hello:?}");
}

/// A hello reply without the server's time.
async fn greeting(client: &mut RawClient) -> Document {
    let mut hello = client.hello(doc! {}).await.unwrap().body;
    hello.remove("localTime");
    hello
}

#[tokio::test]
async fn a_hello_reply_stays_the_same_while_no_server_is_up() {
    let set = ReplicaSet::start(1, Options::default()).await.unwrap();
    let standalone = Standalone::start(Options::default()).await.unwrap();
    let deployments = [
        (set.uri(), set.members().first().unwrap()),
        (standalone.uri(), standalone.mongod()),
    ];
    for (uri, mongod) in deployments {
        let seawall = Seawall::start_with(&uri, with("deployment.heartbeat_frequency_ms = 500"));
        let seawall = seawall.await;
        let mut client = connect(&seawall).await;
        let before = greeting(&mut client).await;
        mongod.kill().await.unwrap();
        let is_down = async || {
            let topology: Topology = seawall.api("/api/v1/topology").await;
            let mut servers = topology.servers.iter();
            servers.all(|server| server.server_type == "Unknown")
        };
        eventually(LIMIT, is_down).await.unwrap();
        assert_eq!(greeting(&mut client).await, before, "{uri}");
    }
}

#[tokio::test]
async fn clients_that_connect_before_the_server_is_up_are_served_later_if_no_login_is_required() {
    let mut server = Standalone::start(Options::default()).await.unwrap();
    server.mongod().kill().await.unwrap();
    let toml = "deployment.heartbeat_frequency_ms = 500";
    let seawall = Seawall::launch(&server.uri(), with(toml)).await.unwrap();
    let mut early = connect(&seawall).await;
    let refused = early.command("c", doc! {"find": "c"}).await.unwrap();
    assert_eq!(refused.code(), Some(13), "{refused:?}");
    server.mongod_mut().restart().await.unwrap();
    seawall.ready().await;
    early.expect_ok("c", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn seawall_logs_why_the_dns_name_of_its_connection_string_is_not_resolved() {
    let scratch = Scratch::create().unwrap();
    // No name ends in `invalid` (RFC 6761).
    let toml = "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
                deployment.uri = \"mongodb+srv://account:secret@db.seawall.invalid/?tls=false\"\n";
    let file = scratch.write("seawall.toml", toml).unwrap();
    let process = Process::serve(&file).await;
    let logged = async || process.said("could not resolve the deployment's connection string");
    let line = eventually(LIMIT, logged).await.unwrap();
    assert_eq!(line["level"], "WARN", "{line}");
    let error = line["fields"]["error"].as_str().unwrap();
    assert!(error.contains("DNS"), "{error}");
    assert!(!process.log().contains("secret"), "{}", process.log());
}

#[tokio::test]
async fn seawall_check_connects_to_the_deployment_only_with_the_option_connect() {
    let server = shared_standalone().await.unwrap();
    let (up, down) = (server.uri(), "mongodb://127.0.0.1:1/".to_owned());
    let plain = run(&["check", "--deployment", &down]).await;
    assert_eq!(plain.status.code(), Some(0), "{plain:?}");
    assert!(String::from_utf8_lossy(&plain.stdout).contains("the configuration is valid"));
    let reached = run(&["check", "--connect", "--deployment", &up]).await;
    assert_eq!(reached.status.code(), Some(0), "{reached:?}");
    assert!(String::from_utf8_lossy(&reached.stdout).contains("the deployment is reachable"));
    let silent = run(&["check", "--connect", "--deployment", &down]).await;
    assert_eq!(silent.status.code(), Some(69), "{silent:?}");
    assert!(String::from_utf8_lossy(&silent.stderr).contains("deployment.uri"));
}

/// With a service account, Seawall reads the keys of clients through it by default.
#[tokio::test]
async fn seawall_check_reports_a_service_account_that_must_not_read_the_keys_of_users() {
    let server = Standalone::start(Options::with_auth()).await.unwrap();
    for (role, credentials, code) in [
        ("clusterMonitor", "auto", 69),
        ("clusterMonitor", "self", 0),
        ("userAdminAnyDatabase", "auto", 0),
    ] {
        let user = NewUser::new("admin", &unique_name("account"), "p").role(role, "admin");
        create_user(&server.client().unwrap(), &user).await.unwrap();
        let uri = format!("mongodb://{}:p@{}/", user.login().user, server.address());
        let mut command = Command::new(binary());
        command.args(["check", "--connect", "--deployment", &uri]);
        command.env("SEAWALL_AUTH__CREDENTIALS", credentials);
        let checked = command.output().await.unwrap();
        assert_eq!(checked.status.code(), Some(code), "{role}: {checked:?}");
        let names_the_right = String::from_utf8_lossy(&checked.stderr).contains("viewUser");
        assert_eq!(names_the_right, code != 0, "{role}: {checked:?}");
    }
}

/// `SSL_CERT_FILE` names a file with authorities that are trusted instead of those of the operating
/// system.
#[tokio::test]
async fn the_command_seawall_check_trusts_the_authorities_that_a_running_seawall_trusts() {
    let options = Options {
        tls: true,
        ..Options::with_auth()
    };
    let server = Standalone::start(options).await.unwrap();
    let uri = format!("mongodb://{}/?tls=true", server.address());
    let check = async |trusted: &Certificates| {
        let mut command = Command::new(binary());
        command.args(["check", "--connect", "--deployment", &uri]);
        command.env("SSL_CERT_FILE", trusted.ca_file());
        command.output().await.unwrap().status.code()
    };
    assert_eq!(check(server.certificates().unwrap()).await, Some(0));
    let other = Certificates::generate().unwrap();
    assert_eq!(check(&other).await, Some(69));
}

#[tokio::test]
async fn the_command_seawall_check_warns_if_only_ssl_cert_dir_names_trusted_authorities() {
    let certificates = Certificates::generate().unwrap();
    let file = certificates.ca_file();
    let uri = "mongodb://127.0.0.1:1/?tls=true";
    let warns = async |uri: &str, has_variable: bool| {
        let mut command = Command::new(binary());
        command.args(["check", "--deployment", uri]);
        command.env("SSL_CERT_DIR", "/one:/two");
        match has_variable {
            true => command.env("SSL_CERT_FILE", &file),
            false => command.env_remove("SSL_CERT_FILE"),
        };
        let output = command.output().await.unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let warning = "does not read the directory /one:/two";
        String::from_utf8_lossy(&output.stderr).contains(warning)
    };
    assert!(warns(uri, false).await);
    assert!(!warns(uri, true).await);
    let named = format!("{uri}&tlsCAFile={}", file.display());
    assert!(!warns(&named, false).await);
}

/// The path of the authorities is a folder: it exists, but cannot be read like a file.
#[tokio::test]
async fn seawall_check_fails_if_the_file_of_system_authorities_cannot_be_read() {
    let scratch = Scratch::create().unwrap();
    let folder = scratch.path();
    let collector = [
        ("SEAWALL_TELEMETRY__ENABLED", "true"),
        ("SEAWALL_TELEMETRY__ENDPOINT", "https://127.0.0.1:1"),
    ];
    let peers = [("SEAWALL_ADMIN__PEERS", "https://127.0.0.1:1")];
    for (variables, key) in [
        (collector.as_slice(), "telemetry"),
        (peers.as_slice(), "admin.peers"),
    ] {
        let mut command = Command::new(binary());
        command.args(["check", "--deployment", "mongodb://127.0.0.1:1/"]);
        command.env("SSL_CERT_FILE", folder);
        command.envs(variables.iter().copied());
        let output = command.output().await.unwrap();
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let problem = format!("{key}: {}: ", folder.display());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(&problem), "{said}");
    }
}

#[tokio::test]
async fn without_a_ca_file_seawall_trusts_the_authorities_of_the_operating_system() {
    let options = Options {
        tls: true,
        ..Options::with_auth()
    };
    let server = Standalone::start(options).await.unwrap();
    let scratch = Scratch::create().unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri = \"mongodb://{}/?tls=true\"\n",
        server.address()
    );
    let file = scratch.write("seawall.toml", toml).unwrap();
    let authorities = server.certificates().unwrap().ca_file();
    let variables = [("SSL_CERT_FILE", authorities.to_str().unwrap())];
    let process = Process::serve_with(&file, &variables).await;
    let client = driver(&format!("mongodb://{}/", process.address())).await;
    is_served(&client).await.unwrap();
}

#[tokio::test]
async fn the_command_config_schema_prints_a_json_schema_with_the_default_value_of_max_pool_size() {
    let printed = run(&["config", "schema"]).await;
    assert_eq!(printed.status.code(), Some(0), "{printed:?}");
    let schema: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    let default = "/properties/pool/properties/max_pool_size/default";
    assert_eq!(schema.pointer(default), Some(&serde_json::json!(100)));
}

#[tokio::test]
async fn the_official_driver_works_over_a_unix_socket() {
    let server = shared_standalone().await.unwrap();
    let scratch = Scratch::create().unwrap();
    let path = scratch.join("seawall.sock");
    let options = || seawall::Options {
        listen: Some(format!("unix:{}", path.display())),
        ..seawall::Options::default()
    };
    let seawall = Seawall::start_with(&server.uri(), options()).await;
    let encoded = path.display().to_string().replace('/', "%2F");
    let client = driver(&format!("mongodb://{encoded}/")).await;
    is_served(&client).await.unwrap();
    // A second Seawall must not take over the socket of a running one.
    assert!(Seawall::launch(&server.uri(), options()).await.is_err());
    is_served(&client).await.unwrap();
    drop(seawall);
    let gone = async || !Path::new(&path).exists();
    eventually(LIMIT, gone).await.unwrap();
}

#[tokio::test]
async fn client_connections_and_server_connections_are_encrypted_with_tls() {
    let options = Options {
        tls: true,
        ..Options::with_auth()
    };
    let server = Standalone::start(options).await.unwrap();
    let to_server = Recorder::start(server.address()).await.unwrap();
    let ours = Certificates::generate().unwrap();
    let toml = ours.listen_toml();
    let uri = |ca: &Certificates, address: &str| {
        format!(
            "mongodb://{address}/?tls=true&tlsCAFile={}",
            ca.ca_file().display()
        )
    };
    let servers = server.certificates().unwrap();
    let behind = to_server.address().to_string();
    let seawall = Seawall::start_with(&uri(servers, &behind), with(&toml)).await;
    let to_client = Recorder::start(seawall.address().parse().unwrap())
        .await
        .unwrap();
    let front = to_client.address().to_string();
    is_served(&driver(&uri(&ours, &front)).await).await.unwrap();
    for recorder in [&to_server, &to_client] {
        let connections = recorder.connections();
        assert!(!connections.is_empty());
        for recording in connections {
            // Each connection begins with a TLS handshake record, and never contains the name of a
            // command.
            assert_eq!(recording.from_client.first(), Some(&0x16));
            let names_a_command = recording.from_client.windows(6).any(|w| w == b"insert");
            assert!(!names_a_command);
        }
    }
    // A client that trusts only another authority is not served. A client without TLS is not served
    // either.
    let mut stranger = ClientOptions::parse(uri(servers, &front)).await.unwrap();
    stranger.server_selection_timeout = Some(Duration::from_secs(2));
    let stranger = Client::with_options(stranger).unwrap();
    let refused = stranger
        .database("admin")
        .run_command(doc! {"ping": 1})
        .await;
    assert!(refused.unwrap_err().to_string().contains("ertificate"));
    let mut plain = connect(&seawall).await;
    assert!(plain.hello(doc! {}).await.is_err());
    let refused = "seawall_client_connections_refused_total";
    let counted = async || seawall.metric(refused, &["reason=\"tls\""]).await >= 2.0;
    eventually(LIMIT, counted).await.unwrap();
}

#[tokio::test]
async fn a_server_whose_certificate_is_not_trusted_is_never_used() {
    let options = Options {
        tls: true,
        ..Options::with_auth()
    };
    let server = Standalone::start(options).await.unwrap();
    let to_server = Recorder::start(server.address()).await.unwrap();
    let other = Certificates::generate().unwrap();
    let uri = format!(
        "mongodb://{}/?tls=true&tlsCAFile={}",
        to_server.address(),
        other.ca_file().display()
    );
    let toml = "deployment.heartbeat_frequency_ms = 500";
    let seawall = Seawall::launch(&uri, with(toml)).await.unwrap();
    // The monitor of Seawall's driver, and Seawall's own probe (a regular check of the server over
    // another connection), connect again after each refused certificate.
    let tried = async || to_server.connections().len() >= 6;
    eventually(LIMIT, tried).await.unwrap();
    assert_eq!(seawall.get("/health/ready").await.0, 503);
    let hello = connect(&seawall).await.hello(doc! {}).await.unwrap();
    assert_eq!(hello.code(), Some(SHUTDOWN_IN_PROGRESS), "{hello:?}");
}

#[tokio::test]
async fn a_client_connection_over_the_limit_is_closed_without_a_reply_and_is_counted() {
    let server = shared_standalone().await.unwrap();
    let seawall =
        Seawall::start_with(&server.uri(), with("listen.max_client_connections = 2")).await;
    let mut clients = [logged_in(&seawall).await, logged_in(&seawall).await];
    let mut extra = connect(&seawall).await;
    assert_eq!(extra.read_to_close().await.unwrap(), b"");
    let refused = "seawall_client_connections_refused_total";
    assert_eq!(
        seawall.metric(refused, &["max_client_connections"]).await,
        1.0
    );
    for client in &mut clients {
        client.expect_ok("c", doc! {"find": "c"}).await;
    }
    drop(clients);
    let admitted = async || connect(&seawall).await.hello(doc! {}).await.is_ok();
    eventually(LIMIT, admitted).await.unwrap();
}

#[tokio::test]
async fn a_monitor_of_a_driver_may_stay_connected_without_a_login() {
    let server = shared_standalone().await.unwrap();
    let toml = "auth.authentication_timeout_ms = 3000\nlimits.unauthenticated_connections = 1";
    let seawall = Seawall::start_with(&server.uri(), with(toml)).await;
    let metadata = doc! {"driver": {"name": "d", "version": "1"}, "os": {"type": "x"}};
    let mut monitor = connect(&seawall).await;
    let hello = monitor.hello(doc! {"client": metadata}).await.unwrap();
    assert!(hello.is_ok(), "{hello:?}");
    // A monitor does not count towards the limit of clients that have not logged in. It may also
    // stay connected longer than such a client.
    let began = Instant::now();
    let mut silent = connect(&seawall).await;
    assert_eq!(silent.read_to_close().await.unwrap(), b"");
    assert!(began.elapsed() >= Duration::from_millis(2900));
    let hello = monitor.hello(doc! {}).await.unwrap();
    assert!(hello.is_ok(), "{hello:?}");
    // A monitor may log in. It is then served like any other client.
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    assert!(monitor.login(&login).await.unwrap().is_authenticated());
    monitor.expect_ok("c", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn clients_stay_connected_through_a_server_restart() {
    let mut server = Standalone::start(Options::with_auth()).await.unwrap();
    // With this long heartbeat interval, Seawall must detect the restart without a heartbeat.
    let toml = "deployment.heartbeat_frequency_ms = 600000";
    let seawall = Seawall::start_with(&server.uri(), with(toml)).await;
    let mut before = logged_in(&seawall).await;
    let mut during = logged_in(&seawall).await;
    for client in [&mut before, &mut during] {
        client.expect_ok("c", doc! {"find": "c"}).await;
    }
    server.mongod().kill().await.unwrap();
    // The operation is sent while no server is up. It gets its reply when the server is up again.
    let held = async { during.command("c", doc! {"find": "c"}).await.unwrap() };
    let restart = async { server.mongod_mut().restart().await.unwrap() };
    let (held, ()) = tokio::join!(held, restart);
    assert!(held.is_ok(), "{held:?}");
    before.expect_ok("c", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn in_a_step_down_under_load_no_retryable_operation_fails_and_no_client_is_disconnected() {
    let set = ReplicaSet::start(3, Options::with_auth()).await.unwrap();
    let seawall =
        Seawall::start_with(&set.uri(), with("deployment.heartbeat_frequency_ms = 500")).await;
    let client = driver(&seawall.uri()).await;
    let mut raw = logged_in(&seawall).await;
    let is_over = Arc::new(Notify::new());
    let things = client.database("stepdown").collection::<Document>("things");
    things.insert_one(doc! {"_id": "warm"}).await.unwrap();
    let mut workers = JoinSet::new();
    for worker in 0..6 {
        let (things, over) = (things.clone(), Arc::clone(&is_over));
        workers.spawn(async move {
            let over = over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            for n in 0.. {
                let id = format!("{worker} {n}");
                let change = doc! {"$inc": {"n": 1}};
                things
                    .insert_one(doc! {"_id": &id, "n": 0})
                    .await
                    .map_err(|e| e.to_string())?;
                things
                    .update_one(doc! {"_id": &id}, change)
                    .await
                    .map_err(|e| e.to_string())?;
                let found = things
                    .find_one(doc! {"_id": &id})
                    .await
                    .map_err(|e| e.to_string())?;
                let count = found.as_ref().and_then(|found| found.get_i32("n").ok());
                if count != Some(1) {
                    return Err(format!("expected a document with n = 1: {found:?}"));
                }
                if futures_util::poll!(over.as_mut()).is_ready() {
                    return Ok(n);
                }
            }
            Ok(0)
        });
    }
    let count = async |wanted: u64| {
        let count = async || {
            things
                .count_documents(doc! {})
                .await
                .is_ok_and(|n| n > wanted)
        };
        eventually(LIMIT, count).await.unwrap();
    };
    count(50).await;
    let opened = "seawall_client_connections_total";
    let before = seawall.metric(opened, &[]).await;
    set.step_down().await.unwrap();
    let already = things.count_documents(doc! {}).await.unwrap();
    count(already + 100).await;
    is_over.notify_waiters();
    let outcomes = timeout(LIMIT, workers.join_all()).await.unwrap();
    for outcome in outcomes {
        outcome.unwrap();
    }
    // The driver's pool may grow while operations wait, but no client may have reconnected.
    let after = seawall.metric(opened, &[]).await;
    assert!(after - before <= 10.0, "{before} connections, then {after}");
    let connected = seawall.metric("seawall_client_connections", &[]).await;
    assert!(
        (after - connected).abs() < f64::EPSILON,
        "a client connection was closed: {after} opened, {connected} still open"
    );
    raw.expect_ok("c", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn a_server_with_an_ipv6_address_is_used() {
    let server = Standalone::start(Options::default()).await.unwrap();
    let target = server.address();
    let listener = TcpListener::bind("[::1]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(target).await.unwrap();
                drop(copy_bidirectional(&mut near, &mut far).await);
            });
        }
    });
    let seawall = Seawall::start(&format!("mongodb://[::1]:{port}/")).await;
    let mut client = connect(&seawall).await;
    client.expect_ok("c", doc! {"find": "c"}).await;
}

#[tokio::test]
async fn clients_that_connect_before_seawall_is_ready_get_no_access_if_a_login_is_required() {
    let set = shared_replica_set().await.unwrap();
    let seawall = Seawall::launch(&set.uri(), with("")).await.unwrap();
    let mut early = connect(&seawall).await;
    seawall.ready().await;
    let refused = early.command("c", doc! {"find": "c"}).await;
    match refused {
        Ok(reply) => assert_eq!(reply.code(), Some(13), "{reply:?}"),
        Err(error) => assert!(matches!(error, RawError::Closed), "{error:?}"),
    }
}

async fn process_with(toml: &str) -> Process {
    let scratch = Scratch::create().unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri = \"mongodb://127.0.0.1:1/?tls=true&tlsAllowInvalidCertificates=true\"\n{toml}"
    );
    Process::serve_outside_roots_group(&scratch.write("seawall.toml", toml).unwrap()).await
}

#[tokio::test]
async fn each_start_warns_about_server_certificates_that_are_not_fully_verified() {
    let scratch = Scratch::create().unwrap();
    let any_name = "deployment.tls.allow_invalid_hostnames = true\n";
    let unverified = "server certificates are not verified";
    let unverified_name = "host names in servers' certificates are not verified";
    for (options, toml, expected) in [
        ("&tlsAllowInvalidCertificates=true", "", unverified),
        ("&tlsInsecure=true", "", unverified),
        ("", any_name, unverified_name),
    ] {
        let toml = format!(
            "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
             deployment.uri = \"mongodb://127.0.0.1:1/?tls=true{options}\"\n{toml}"
        );
        let file = scratch.write("seawall.toml", toml).unwrap();
        let process = Process::serve(&file).await;
        for warning in [unverified, unverified_name] {
            let line = process.said(warning);
            let level = line.as_ref().and_then(|line| line["level"].as_str());
            let expected = (warning == expected).then_some("WARN");
            assert_eq!(level, expected, "{warning}: {}", process.log());
        }
    }
}

#[tokio::test]
async fn the_admin_listener_binds_every_ip_address_of_its_host_name() {
    let scratch = Scratch::create().unwrap();
    let toml = "listen.address = \"127.0.0.1:0\"\nadmin.address = \"localhost:0\"\n\
                deployment.uri = \"mongodb://127.0.0.1:1/\"\n";
    let process = Process::serve(&scratch.write("seawall.toml", toml).unwrap()).await;
    let (mut expected, mut bound) = (BTreeSet::new(), BTreeSet::new());
    for address in lookup_host("localhost:0").await.unwrap() {
        // Without IPv6, the host cannot bind `[::1]`.
        if TcpListener::bind(address).await.is_ok() {
            expected.insert(address.ip());
        }
    }
    for address in process.admin().split(", ") {
        let (status, body) = seawall::http(address, "GET", "/health/live", "").await;
        assert_eq!(status, 200, "{address}: {body}");
        bound.insert(address.parse::<SocketAddr>().unwrap().ip());
    }
    assert_eq!(bound, expected);
}

#[tokio::test]
async fn admin_actions_are_logged_with_their_caller() {
    let process = process_with("").await;
    let (status, _) =
        seawall::http(process.admin(), "POST", "/api/v1/reload?dry_run=true", "").await;
    // The log line may reach the test after the HTTP response.
    let is_logged = async || process.said("admin action").is_some();
    eventually(Duration::from_secs(10), is_logged)
        .await
        .unwrap();
    let line = process.said("admin action").unwrap();
    let fields = &line["fields"];
    assert_eq!(
        fields["action"], "POST /api/v1/reload?dry_run=true",
        "{line}"
    );
    assert_eq!(fields["caller"], "no token", "{line}");
    assert_eq!(fields["status"], status, "{line}");
    assert!(
        fields["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{line}"
    );
}

/// Opens connections from 127.0.0.`last`, and then begins a `POST /api/v1/session` on each, in the
/// reverse order. The body of this request contains the token, so Seawall must wait for the body.
async fn slow_session_requests(process: &Process, last: u8, count: usize) -> Vec<TcpStream> {
    let mut slow = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        let address = process.admin().parse().unwrap();
        slow.push(socket.connect(address).await.unwrap());
    }
    for stream in slow.iter_mut().rev() {
        let head = "POST /api/v1/session HTTP/1.1\r\nhost: localhost\r\n\
                    content-type: application/json\r\ncontent-length: 9\r\n\r\n{";
        stream.write_all(head.as_bytes()).await.unwrap();
    }
    slow
}

/// True if the caller has neither got a reply nor been disconnected.
fn is_waiting(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[tokio::test]
async fn dashboard_login_requests_with_an_incomplete_body_do_not_block_other_requests() {
    let process = process_with("").await;
    let slow = slow_session_requests(&process, 1, 24).await;
    for path in ["/api/v1/session", "/metrics"] {
        let (status, _) = seawall::http(process.admin(), "GET", path, "").await;
        assert_eq!(status, 200, "{path}");
    }
    assert!(slow.iter().all(is_waiting));
    let mut replies = Vec::new();
    for mut stream in slow {
        let mut reply = [0; 12];
        stream.read_exact(&mut reply).await.unwrap();
        replies.push(String::from_utf8_lossy(&reply).into_owned());
    }
    assert!(
        replies.iter().all(|reply| reply == "HTTP/1.1 408"),
        "{replies:?}"
    );
}

/// Seawall closes the oldest connections of the address that sends the incomplete requests. So
/// Seawall can accept connections from another address.
#[tokio::test]
async fn dashboard_login_requests_with_an_incomplete_body_do_not_block_another_address() {
    let process = process_with("").await;
    let slow = slow_session_requests(&process, 2, 60).await;
    let mut others = Vec::new();
    for _ in 0..16 {
        others.push(TcpStream::connect(process.admin()).await.unwrap());
    }
    let (status, _) = seawall::http(process.admin(), "GET", "/health/live", "").await;
    assert_eq!(status, 200);
    assert!(others.iter().all(is_waiting));
    let latest = slow.last().unwrap();
    assert!(is_waiting(latest));
}

#[tokio::test]
async fn core_dumps_and_debugger_attachment_are_off_by_default() {
    let process = process_with("").await;
    assert_eq!(process.core_dump_limit(), "0");
    assert!(process.forbids_tracing());
    let allowed = process_with("runtime.core_dumps = true\n").await;
    assert!(!allowed.forbids_tracing());
    let own = std::fs::read_to_string("/proc/self/limits").unwrap();
    let inherited = format!("Max core file size        {}", allowed.core_dump_limit());
    assert!(own.contains(&inherited), "{inherited}");
}

#[tokio::test]
async fn messages_on_standard_error_are_plain_text() {
    let text = |output: &Output| String::from_utf8(output.stderr.clone()).unwrap();
    let missing = text(&run(&["serve"]).await);
    assert!(
        missing.contains("deployment.uri: must be given"),
        "{missing}"
    );
    assert!(missing.contains("run: seawall demo"), "{missing}");

    let server = shared_standalone().await.unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let uri = server.uri();
    let arguments = [
        "serve",
        "--allow-root",
        "--deployment",
        &uri,
        "--listen",
        &taken,
        "--admin",
        "off",
    ];
    let occupied = text(&run(&arguments).await);
    assert!(
        occupied.contains(&format!("cannot listen on {taken}: ")),
        "{occupied}"
    );
    for output in [missing, occupied] {
        assert!(!output.contains('\u{1b}'), "{output}");
    }
}
