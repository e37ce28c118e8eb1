//! Tests of TLS connections to servers: verification of certificates, revocation lists, and
//! replacement of TLS files.

mod outdated_relays;
mod own_certificate;
mod refused_servers;

use std::{fs, time::Duration};

use bson::doc;
use seawall_api::{AdminClient, Reload, Stalls, Status};
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    certificates::Certificates,
    eventually::eventually,
    mongod::{self, NewUser, ROOT, ROOT_PASSWORD, RunCommand, Standalone, create_user},
    process::Process,
    raw::{Login, RawClient},
    scratch::Scratch,
    seawall::{self, Options, Seawall, sum_of},
};
use tokio::{
    process::Command,
    time::{interval, timeout},
};

use crate::server_log;

const LIMIT: Duration = Duration::from_secs(30);
const SHUTDOWN_IN_PROGRESS: i32 = 91;

/// The message that Seawall logs if it could not connect to a server.
const NOT_CONNECTED: &str = "could not connect to a server";

/// The log message of a reload that failed.
const NOT_RELOADED: &str = "could not reload the configuration";

/// A mongod that requires TLS, and a directory with Seawall's TLS files. Tests change these files.
struct ServerTlsScene {
    scratch: Scratch,
    server: Standalone,
}

impl ServerTlsScene {
    async fn new() -> Self {
        Self::with(mongod::Options::with_auth()).await
    }

    async fn with(options: mongod::Options) -> Self {
        let options = mongod::Options {
            tls: true,
            ..options
        };
        let scene = Self {
            scratch: Scratch::create().unwrap(),
            server: Standalone::start(options).await.unwrap(),
        };
        scene.write("ca.pem", &scene.authority().pem());
        scene.write_list(&[]);
        scene.write_identity(scene.authority());
        scene
    }

    fn certificates(&self) -> &Certificates {
        self.server.certificates().unwrap()
    }

    fn authority(&self) -> &Authority {
        self.certificates().authority()
    }

    fn write(&self, name: &str, content: &str) {
        self.scratch.write(name, content).unwrap();
    }

    /// Replaces a file by a rename, so no read sees a part of the file.
    fn replace(&self, name: &str, content: &str) {
        let next = self.scratch.write("next", content).unwrap();
        fs::rename(next, self.scratch.join(name)).unwrap();
    }

    /// Writes a new client certificate for Seawall, signed by this authority, to `client.pem`.
    fn write_identity(&self, authority: &Authority) {
        let identity = authority.client("seawall", YEAR).unwrap();
        self.write("client.pem", &identity.pem());
    }

    /// Writes a revocation list with these certificates to `crl.pem`. The servers' authority signs
    /// the list.
    fn write_list(&self, revoked: &[&Identity]) {
        let list = self.authority().revocation_list(revoked).unwrap();
        self.write("crl.pem", &list);
    }

    /// Replaces `DIR` in a configuration by the directory of Seawall's TLS files.
    fn toml(&self, toml: &str) -> String {
        toml.replace("DIR", self.scratch.path().to_str().unwrap())
    }

    /// Starts `seawall serve` in front of the server.
    async fn serve(&self, toml: &str) -> Process {
        self.serve_with(TLS, toml).await
    }

    /// Like [`Self::serve`], with these options in the connection string.
    async fn serve_with(&self, options: &str, toml: &str) -> Process {
        let port = self.server.address().port();
        serve(&self.scratch, port, options, toml).await
    }

    /// Starts Seawall without a TLS file in the connection string. `host` is the server's host.
    async fn start(&self, host: &str, toml: &str) -> Seawall {
        let uri = format!(
            "mongodb://{host}:{}/?tls=true",
            self.server.address().port()
        );
        let toml = format!("deployment.server_selection_timeout_ms = 3000\n{toml}");
        let options = Options {
            toml: self.toml(&toml),
            ..Options::default()
        };
        // A deployment whose certificates are refused never becomes ready. `launch` does not wait
        // until the deployment is ready.
        Seawall::launch(&uri, options).await.unwrap()
    }
}

const FILES: &str = "deployment.tls.ca_file = \"DIR/ca.pem\"\n\
                     deployment.tls.certificate_key_file = \"DIR/client.pem\"\n\
                     deployment.tls.crl_file = \"DIR/crl.pem\"\n";

/// The option of the connection string that enables TLS.
const TLS: &str = "tls=true";

/// Options of the connection string that enable TLS and name the files.
const TLS_WITH_FILES: &str = "tls=true&tlsCAFile=DIR/ca.pem&tlsCertificateKeyFile=DIR/client.pem";

/// Starts `seawall serve` in front of the server at this port, with these options in the connection
/// string. In `options` and `toml`, `DIR` means the path of `scratch`.
async fn serve(scratch: &Scratch, port: u16, options: &str, toml: &str) -> Process {
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
         deployment.uri = \"mongodb://127.0.0.1:{port}/?{options}\"\n{toml}"
    );
    let toml = toml.replace("DIR", scratch.path().to_str().unwrap());
    // Several processes of one test share the directory, so each needs its own file name.
    let name = format!("seawall-{port}.toml");
    Process::serve(&scratch.write(&name, toml).unwrap()).await
}

/// Connects and logs in. `None` if the login fails. Seawall forwards the first login of a user to a
/// server. Therefore the first login also fails if Seawall cannot connect to a server.
async fn logged_in(seawall: &Seawall) -> Option<RawClient> {
    logged_in_at(seawall.address()).await
}

async fn logged_in_at(address: &str) -> Option<RawClient> {
    // Without a suitable server, the login waits for `deployment.server_selection_timeout_ms`.
    let address = address.parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let outcome = client.login(&login).await.ok()?;
    outcome.is_authenticated().then_some(client)
}

async fn find(client: &mut RawClient) -> bool {
    let reply = client.command("tls", doc! { "find": "things" }).await;
    reply.is_ok_and(|reply| reply.is_ok())
}

async fn expired(seawall: &Seawall) -> f64 {
    let name = "seawall_server_connections_closed_total";
    seawall.metric(name, &["reason=\"expired\""]).await
}

async fn clears(seawall: &Seawall) -> f64 {
    seawall.metric("seawall_pool_clears_total", &[]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_with_a_new_client_certificate_replaces_server_connections_without_errors() {
    let scene = ServerTlsScene::with(server_log::detailed()).await;
    let seawall = scene.start("127.0.0.1", FILES).await;
    let mut client = logged_in(&seawall).await.unwrap();
    let subject = server_log::presented_subject(&scene.server, &mut client, "before").await;
    assert_eq!(subject, "CN=seawall");
    let before = clears(&seawall).await;
    let renewed = scene.authority().client("renewed", YEAR).unwrap();
    scene.write("client.pem", &renewed.pem());
    let toml = scene.toml(FILES);
    let reload = seawall.reload(&toml).await.unwrap();
    let keys: Vec<_> = reload.changes.iter().map(|change| &*change.key).collect();
    assert!(keys.contains(&"deployment.tls"), "{keys:?}");
    // Operations run all the time, so a connection may be in use when Seawall replaces it.
    let mut count = 0;
    while expired(&seawall).await < 1.0 {
        assert!(find(&mut client).await);
        count += 1;
        assert!(count < 100_000, "expected the connection to be replaced");
    }
    let subject = server_log::presented_subject(&scene.server, &mut client, "after").await;
    assert_eq!(subject, "CN=renewed");
    let after = clears(&seawall).await;
    assert!(
        (after - before).abs() < f64::EPSILON,
        "expected no pool clear: {before} before the reload, {after} after it"
    );
}

/// Replaces a TLS file while a client runs finds all the time. So a connection may be in use when
/// Seawall replaces the connection. Either the connection string (with `options`) or the
/// configuration (`toml`) names the file.
async fn replace_under_load(scene: &ServerTlsScene, options: &str, toml: &str, file: &str) {
    let identity = scene.authority().client("seawall", YEAR).unwrap();
    let foreign = Authority::generate("foreign").unwrap();
    let content = match file {
        "client.pem" => identity.pem(),
        // This list revokes a certificate that is not in use.
        "crl.pem" => scene.authority().revocation_list(&[&identity]).unwrap(),
        _ => format!("{}{}", scene.authority().pem(), foreign.pem()),
    };
    let toml = format!("reload.watch = true\n{toml}");
    let process = scene.serve_with(options, &toml).await;
    let name = format!("{options} {file}");
    let expired = async || {
        let name = "seawall_server_connections_closed_total";
        metric(&process, name, "reason=\"expired\"").await
    };
    let connected = async || logged_in_at(process.address()).await;
    let mut client = eventually(LIMIT, connected).await.unwrap();
    assert!(find(&mut client).await, "{name}");
    assert_eq!(expired().await, 0.0, "{name}");
    scene.replace(file, &content);
    let replaced = async {
        let mut turns = interval(Duration::from_millis(5));
        while expired().await < 1.0 {
            assert!(find(&mut client).await, "{name}");
            turns.tick().await;
        }
    };
    let replaced = timeout(LIMIT, replaced).await;
    replaced.unwrap_or_else(|_| panic!("{name}: no connection was replaced"));
    assert!(find(&mut client).await, "{name}");
    let clears = metric(&process, "seawall_pool_clears_total", "").await;
    assert_eq!(clears, 0.0, "{name}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_reload_watch_a_changed_tls_file_causes_new_server_connections_but_no_failed_find() {
    for file in ["client.pem", "ca.pem"] {
        let scenes = [ServerTlsScene::new().await, ServerTlsScene::new().await];
        tokio::join!(
            replace_under_load(&scenes[0], TLS, FILES, file),
            // Here the connection string names the files, so the settings contain only the paths.
            // Seawall must notice new contents although the settings do not change.
            replace_under_load(&scenes[1], TLS_WITH_FILES, "", file),
        );
    }
    // A connection string cannot name a revocation list.
    replace_under_load(&ServerTlsScene::new().await, TLS, FILES, "crl.pem").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_refuses_tls_files_that_no_server_accepts_and_keeps_the_previous_files() {
    let scene = ServerTlsScene::new().await;
    let seawall = scene.start("127.0.0.1", FILES).await;
    let mut client = logged_in(&seawall).await.unwrap();
    let toml = scene.toml(FILES);
    let foreign = Authority::generate("foreign").unwrap();
    let refused = async || {
        let problems = seawall.reload(&toml).await.unwrap_err();
        let is_named = problems.iter().any(|of| of.contains("no server accepts"));
        assert!(is_named, "{problems:?}");
    };
    // The server refuses a certificate of an authority that it does not know.
    scene.write_identity(&foreign);
    refused().await;
    scene.write_identity(scene.authority());
    // Seawall refuses a server whose authority it does not know.
    scene.write("ca.pem", &foreign.pem());
    refused().await;
    scene.write("ca.pem", &scene.authority().pem());
    // Seawall refuses a server whose certificate was revoked.
    scene.write_list(&[scene.certificates().server()]);
    refused().await;
    assert!(find(&mut client).await);
    assert!(logged_in(&seawall).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_a_revoked_certificate_is_not_used() {
    for mode in ["pooled", "relay"] {
        let scene = ServerTlsScene::new().await;
        let toml = format!("deployment.mode = {mode:?}\n{FILES}");
        scene.write_list(&[scene.certificates().server()]);
        let seawall = scene.start("127.0.0.1", &toml).await;
        assert!(logged_in(&seawall).await.is_none(), "{mode}");
        scene.write_list(&[]);
        seawall.reload(&scene.toml(&toml)).await.unwrap();
        let is_served = async || logged_in(&seawall).await.is_some();
        eventually(LIMIT, is_served).await.unwrap();
    }
}

/// Number of SCRAM-SHA-256 logins that a server has received.
async fn received_logins(administrator: &impl RunCommand) -> i64 {
    let status = administrator.run("admin", doc! { "serverStatus": 1 });
    let status = status.await.unwrap();
    let mut found = &status;
    for name in [
        "security",
        "authentication",
        "mechanisms",
        "SCRAM-SHA-256",
        "authenticate",
    ] {
        found = found.get_document(name).unwrap();
    }
    found.get_i64("received").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_service_account_does_not_log_in_at_a_server_with_a_revoked_certificate() {
    let scene = ServerTlsScene::new().await;
    let administrator = scene.server.administrator().await.unwrap();
    let account = NewUser::new("admin", "service", "secret").role("root", "admin");
    create_user(&administrator, &account).await.unwrap();
    let before = received_logins(&administrator).await;
    scene.write_list(&[scene.certificates().server()]);
    let seawall = scene.start("service:secret@127.0.0.1", FILES).await;
    // The pulse (the task that samples `serverStatus` once a second) tries to log in as the service
    // account.
    let has_tried = async || {
        let stalls: Stalls = seawall.api("/api/v1/stalls").await;
        stalls.pulse.unanswered.unwrap_or(0) > 1
    };
    eventually(LIMIT, has_tried).await.unwrap();
    assert!(logged_in(&seawall).await.is_none());
    assert_eq!(received_logins(&administrator).await, before);
    scene.write_list(&[]);
    seawall.reload(&scene.toml(FILES)).await.unwrap();
    let connected = async || logged_in(&seawall).await;
    let mut client = eventually(LIMIT, connected).await.unwrap();
    assert!(find(&mut client).await);
    assert!(received_logins(&administrator).await > before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_can_log_in_with_its_certificate() {
    let scene = ServerTlsScene::new().await;
    let administrator = scene.server.administrator().await.unwrap();
    let command = doc! {
        "createUser": "CN=seawall", "roles": [{ "role": "root", "db": "admin" }],
    };
    administrator.run("$external", command).await.unwrap();
    let options = "tls=true&authMechanism=MONGODB-X509";
    // With `lookup`, a client can log in only if the service account can read the keys of the
    // client's user.
    let toml = format!("{FILES}auth.credentials = \"lookup\"\n");
    let process = scene.serve_with(options, &toml).await;
    let connected = async || logged_in_at(process.address()).await;
    let mut client = eventually(LIMIT, connected).await.unwrap();
    assert!(find(&mut client).await);
}

/// Checks that the log has the reason for which Seawall did not connect to its server, and that
/// clients get errors.
async fn check_refusal(process: &Process, cause: &str) {
    let logged = async || process.said(NOT_CONNECTED);
    let line = eventually(LIMIT, logged).await.unwrap();
    assert_eq!(line["level"], "WARN", "{line}");
    let error = line["fields"]["error"].as_str().unwrap();
    assert!(error.contains(cause), "{cause}: {error}");
    let address = process.address().parse().unwrap();
    let mut client = RawClient::connect(address).await.unwrap();
    let hello = client.hello(doc! {}).await.unwrap();
    assert_eq!(hello.code(), Some(SHUTDOWN_IN_PROGRESS), "{hello:?}");
    let login = Login::new("admin", ROOT, ROOT_PASSWORD);
    let outcome = client.login(&login).await.unwrap();
    let message = outcome.replies.last().unwrap().body.get_str("errmsg");
    let message = message.unwrap();
    assert!(message.contains("no server available"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_requires_a_client_certificate_is_used_only_if_seawall_has_one() {
    let options = mongod::Options {
        requires_client_certificates: true,
        ..mongod::Options::with_auth()
    };
    let scene = ServerTlsScene::with(options).await;
    let process = scene
        .serve("deployment.tls.ca_file = \"DIR/ca.pem\"\n")
        .await;
    // The server closes the connection after the TLS handshake, without an alert.
    let cause = "the server asked for a client certificate, and Seawall has none";
    check_refusal(&process, cause).await;
    let log = server_log::read(&scene.server);
    let refusal = "No SSL certificate provided by peer; connection rejected";
    assert!(log.contains(refusal), "{log}");
    let seawall = scene.start("127.0.0.1", FILES).await;
    let connected = async || logged_in(&seawall).await;
    let mut client = eventually(LIMIT, connected).await.unwrap();
    assert!(find(&mut client).await);
}

/// The client certificate in `client.pem`, with its key encrypted by OpenSSL with this password.
async fn encrypt_identity(scene: &ServerTlsScene, password: &str) -> String {
    let path = scene.scratch.join("client.pem");
    let mut command = Command::new("openssl");
    command.args(["pkcs8", "-topk8", "-in"]).arg(&path);
    command.args(["-passout", &format!("pass:{password}")]);
    let output = command.output().await.expect("openssl is installed");
    assert!(output.status.success(), "{output:?}");
    let key = String::from_utf8(output.stdout).unwrap();
    let identity = fs::read_to_string(&path).unwrap();
    let (certificate, _) = identity.split_once("-----BEGIN PRIVATE KEY").unwrap();
    format!("{certificate}{key}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_key_is_decrypted_with_the_password_of_the_connection_string() {
    let options = mongod::Options {
        requires_client_certificates: true,
        ..mongod::Options::with_auth()
    };
    let scene = ServerTlsScene::with(options).await;
    let replace_identity = async |password: &str| {
        scene.write_identity(scene.authority());
        let identity = encrypt_identity(&scene, password).await;
        scene.replace("client.pem", &identity);
    };
    replace_identity("p@ss word").await;
    let uri_options = format!("{TLS_WITH_FILES}&tlsCertificateKeyFilePassword=p%40ss%20word");
    let process = scene.serve_with(&uri_options, "").await;
    let connected = async || logged_in_at(process.address()).await;
    let mut client = eventually(LIMIT, connected).await.unwrap();
    assert!(find(&mut client).await);
    let admin = AdminClient::new(process.admin(), None, None).unwrap();
    let reload = async || admin.post::<Reload>("/api/v1/reload").await.unwrap();
    replace_identity("another").await;
    let refused = reload().await;
    assert!(!refused.applied, "{refused:?}");
    let cause = "cannot decrypt the private key";
    assert!(
        refused.problems.iter().any(|of| of.contains(cause)),
        "{refused:?}"
    );
    assert!(find(&mut client).await);
    // The connection string has the password too, so a reload can use a key with a new password.
    let configuration = format!("seawall-{}.toml", scene.server.address().port());
    let toml = fs::read_to_string(scene.scratch.join(&configuration)).unwrap();
    let toml = toml.replace("p%40ss%20word", "another");
    scene.write(&configuration, &toml);
    let applied = reload().await;
    assert!(applied.applied, "{applied:?}");
    let mut changes = applied.changes.iter();
    assert!(changes.all(|change| !change.needs_restart), "{applied:?}");
    // A key that is not encrypted needs no password.
    scene.write_identity(scene.authority());
    let applied = reload().await;
    assert!(applied.applied, "{applied:?}");
    assert!(find(&mut client).await);
    assert!(!process.log().contains("word"), "{}", process.log());
}

/// `inet_aton` converts this text to 127.0.0.1, but the certificate has no name with this text.
const OTHER_NAME: &str = "127.0.0.0x1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_names_of_servers_are_verified_unless_allow_invalid_hostnames_is_true() {
    let scene = ServerTlsScene::new().await;
    let seawall = scene.start(OTHER_NAME, FILES).await;
    assert!(logged_in(&seawall).await.is_none());
    let any_name = "deployment.tls.allow_invalid_hostnames = true\n";
    let seawall = scene.start(OTHER_NAME, &format!("{FILES}{any_name}")).await;
    assert!(find(&mut logged_in(&seawall).await.unwrap()).await);
    // With this option, a service account can also use a server with another host name.
    let account = format!("{ROOT}:{ROOT_PASSWORD}@{OTHER_NAME}");
    let seawall = scene.start(&account, &format!("{FILES}{any_name}")).await;
    assert!(find(&mut logged_in(&seawall).await.unwrap()).await);
    // Seawall still verifies the authority of the server's certificate.
    let foreign = Authority::generate("foreign").unwrap();
    scene.write("ca.pem", &foreign.pem());
    let seawall = scene.start(OTHER_NAME, &format!("{FILES}{any_name}")).await;
    assert!(logged_in(&seawall).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_uses_the_new_content_of_tls_files_that_the_connection_string_names() {
    let scene = ServerTlsScene::new().await;
    let file = scene.scratch.path().join("client.pem");
    let ca = scene.scratch.path().join("ca.pem");
    let uri = format!(
        "mongodb://127.0.0.1:{}/?tls=true&tlsCAFile={}&tlsCertificateKeyFile={}",
        scene.server.address().port(),
        ca.display(),
        file.display()
    );
    let seawall = Seawall::start(&uri).await;
    let before = fs::read_to_string(&file).unwrap();
    let mut client = logged_in(&seawall).await.unwrap();
    scene.write_identity(&Authority::generate("foreign").unwrap());
    assert!(seawall.reload("").await.is_err());
    scene.write_identity(scene.authority());
    assert_ne!(before, fs::read_to_string(&file).unwrap());
    let reload = seawall.reload("").await.unwrap();
    let keys: Vec<_> = reload.changes.iter().map(|change| &*change.key).collect();
    assert_eq!(keys, ["deployment.uri"]);
    assert!(find(&mut client).await);
    assert!(seawall.reload("").await.unwrap().changes.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_applies_other_settings_at_once_although_a_switch_to_tls_needs_a_restart() {
    let scene = ServerTlsScene::new().await;
    let scratch = &scene.scratch;
    let configuration = |uri: &str, toml: &str| {
        format!(
            "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
             deployment.uri = \"mongodb://{uri}\"\n{}",
            scene.toml(toml),
        )
    };
    let (server, port) = (scene.server.address(), scene.server.address().port());
    let plain = configuration(&format!("127.0.0.1:{port}/"), "");
    let file = scratch.write("seawall.toml", plain).unwrap();
    let process = Process::serve(&file).await;
    let admin = AdminClient::new(process.admin(), None, None).unwrap();
    let toml = format!("{FILES}limits.max_cursors = 7\n");
    let with_tls = configuration(&format!("{server}/?tls=true"), &toml);
    scratch.write("seawall.toml", with_tls).unwrap();
    let reload: Reload = admin.post("/api/v1/reload").await.unwrap();
    assert!(reload.applied, "{reload:?}");
    let needs_restart = |key: &str| {
        let change = reload.changes.iter().find(|change| change.key == key);
        change.map(|change| change.needs_restart)
    };
    assert_eq!(needs_restart("limits.max_cursors"), Some(false));
    assert_eq!(needs_restart("deployment.uri"), Some(true));
    assert_eq!(needs_restart("deployment.tls.ca_file"), Some(true));
}

/// The value of a metric of a process: the sum of the series whose lines contain `label`.
async fn metric(process: &Process, name: &str, label: &str) -> f64 {
    let (status, text) = seawall::http(process.admin(), "GET", "/metrics", "").await;
    assert_eq!(status, 200, "{text}");
    sum_of(&text, name, &[label])
}

/// Settings of a listener that accepts clients with and without TLS.
const LISTENER: &str = "listen.tls.mode = \"prefer\"\n\
                        listen.tls.certificate_file = \"DIR/listener.pem\"\n\
                        listen.tls.key_file = \"DIR/listener-key.pem\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_with_unusable_tls_files_is_counted_as_failed_and_the_previous_files_are_used() {
    let scene = ServerTlsScene::new().await;
    let listener = scene.authority().server(&["localhost"], &ECDSA).unwrap();
    scene.write("listener.pem", &listener.certificate);
    scene.write("listener-key.pem", &listener.key);
    let process = scene.serve(&format!("{FILES}{LISTENER}")).await;
    let admin = AdminClient::new(process.admin(), None, None).unwrap();
    let connected = async || logged_in_at(process.address()).await;
    let mut client = eventually(LIMIT, connected).await.unwrap();
    let own = scene.authority().client("seawall", YEAR).unwrap();
    let other = scene.authority().client("other", YEAR).unwrap();
    let mismatched = format!("{}{}", own.certificate, other.key);
    let cases = [
        ("client.pem", "nothing", "client.pem"),
        ("client.pem", mismatched.as_str(), "client.pem"),
        ("ca.pem", "nothing", "ca.pem"),
        ("crl.pem", "nothing", "crl.pem"),
        ("listener.pem", "nothing", "listener.pem"),
        ("listener-key.pem", other.key.as_str(), "listener.pem"),
    ];
    for (failures, (file, content, problem)) in (1..).zip(cases) {
        let original = fs::read_to_string(scene.scratch.join(file)).unwrap();
        scene.write(file, content);
        let reload: Reload = admin.post("/api/v1/reload").await.unwrap();
        assert!(!reload.applied, "{file}: {reload:?}");
        let problems = reload.problems.join("\n");
        assert!(problems.contains(problem), "{file}: {problems}");
        let is_reported = async || {
            let name = "seawall_reloads_total";
            let failed = metric(&process, name, "result=\"failed\"").await;
            let successful = metric(&process, "seawall_last_reload_successful", "").await;
            let logged = process.said_times(NOT_RELOADED);
            format!("{failed} {successful} {logged}") == format!("{failures} 0 {failures}")
        };
        eventually(LIMIT, is_reported).await.unwrap();
        scene.write(file, &original);
        assert!(find(&mut client).await, "{file}");
        assert!(logged_in_at(process.address()).await.is_some(), "{file}");
    }
}

/// Settings for TLS connections to a peer instance and to a telemetry collector. Nothing listens at
/// their addresses.
const PEERS_AND_COLLECTOR: &str = "admin.peers = \"https://127.0.0.1:1\"\n\
                                   admin.peer_ca_file = \"DIR/peer-ca.pem\"\n\
                                   admin.peer_certificate_key_file = \"DIR/peer.pem\"\n\
                                   telemetry.enabled = true\n\
                                   telemetry.endpoint = \"https://127.0.0.1:1\"\n\
                                   telemetry.ca_file = \"DIR/collector-ca.pem\"\n\
                                   telemetry.certificate_file = \"DIR/collector.pem\"\n\
                                   telemetry.key_file = \"DIR/collector-key.pem\"\n";

/// Writes the client certificates for the peers and for the collector.
fn write_other_identities(scene: &ServerTlsScene, valid_for: Duration) {
    let peer = scene.authority().client("peer", valid_for).unwrap();
    scene.write("peer.pem", &peer.pem());
    let collector = scene.authority().client("collector", valid_for).unwrap();
    scene.write("collector.pem", &collector.certificate);
    scene.write("collector-key.pem", &collector.key);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_and_the_metrics_and_the_status_show_the_expiry_of_each_tls_file() {
    let scene = ServerTlsScene::new().await;
    scene.write("peer-ca.pem", &scene.authority().pem());
    scene.write("collector-ca.pem", &scene.authority().pem());
    write_other_identities(&scene, Duration::from_secs(10 * 24 * 3_600));
    let toml = format!("{FILES}{PEERS_AND_COLLECTOR}");
    let process = scene.serve(&toml).await;
    let path = |file: &str| scene.scratch.join(file).display().to_string();
    let is_logged = |message: &str, file: &str| {
        let log = process.log();
        let (message, file) = (format!("{message:?}"), format!("{:?}", path(file)));
        let mut lines = log.lines();
        lines.any(|line| line.contains(&message) && line.contains(&file))
    };
    for (file, is_soon) in [
        ("ca.pem", false),
        ("crl.pem", false),
        ("client.pem", false),
        ("peer-ca.pem", false),
        ("peer.pem", true),
        ("collector-ca.pem", false),
        ("collector.pem", true),
    ] {
        let is_loaded = is_logged("certificate or revocation list loaded", file);
        let expires_soon = is_logged("certificate or revocation list expires soon", file);
        assert_eq!((is_loaded, expires_soon), (!is_soon, is_soon), "{file}");
    }
    let admin = AdminClient::new(process.admin(), None, None).unwrap();
    let before: Status = admin.ask("/api/v1/status").await.unwrap();
    let expected = [
        "ca.pem",
        "crl.pem",
        "client.pem",
        "peer-ca.pem",
        "peer.pem",
        "collector-ca.pem",
        "collector.pem",
    ];
    let files: Vec<_> = before.certificates.iter().map(|of| &*of.file).collect();
    assert_eq!(files, expected.map(path));
    for certificate in &before.certificates {
        let name = "seawall_certificate_expiry_timestamp_seconds";
        let label = format!("file={:?}", certificate.file);
        let expiry = metric(&process, name, &label).await;
        assert_eq!(format!("{expiry}"), certificate.not_after.to_string());
    }
    // After a reload, Seawall reports a later expiry only for the files with a new certificate.
    write_other_identities(&scene, YEAR);
    let reload: Reload = admin.post("/api/v1/reload").await.unwrap();
    assert!(reload.applied, "{reload:?}");
    let after: Status = admin.ask("/api/v1/status").await.unwrap();
    let later = before.certificates.iter().zip(&after.certificates);
    let later = later.filter(|(before, after)| after.not_after > before.not_after);
    let later: Vec<_> = later.map(|(_, after)| &*after.file).collect();
    assert_eq!(later, ["peer.pem", "collector.pem"].map(path));
    // The log lines may reach the test after the HTTP response.
    let are_logged = async || {
        let mut files = ["peer.pem", "collector.pem"].into_iter();
        files.all(|file| is_logged("certificate or revocation list loaded", file))
    };
    eventually(LIMIT, are_logged).await.unwrap();
}
