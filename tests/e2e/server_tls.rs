//! TLS towards servers: verification, revocation, rotation of files.

use std::{fs, time::Duration};

use bson::doc;
use seawall_api::{AdminClient, Reload};
use seawall_tests::{
    authority::{Authority, Identity, YEAR},
    certificates::Certificates,
    eventually::eventually,
    mongod::{self, ROOT, ROOT_PASSWORD, Standalone},
    process::Process,
    raw::{Login, RawClient},
    scratch::Scratch,
    seawall::{Options, Seawall},
};

const LIMIT: Duration = Duration::from_secs(30);

/// A mongod that requires TLS, and the files of Seawall, which the test changes.
struct Scene {
    scratch: Scratch,
    server: Standalone,
}

impl Scene {
    async fn new() -> Self {
        let options = mongod::Options {
            tls: true,
            ..mongod::Options::with_auth()
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

    /// Writes a certificate of Seawall that this authority has signed.
    fn write_identity(&self, authority: &Authority) {
        let identity = authority.client("seawall", YEAR).unwrap();
        self.write("client.pem", &identity.pem());
    }

    /// Writes a revocation list of the servers' authority.
    fn write_list(&self, revoked: &[&Identity]) {
        let list = self.authority().revocation_list(revoked).unwrap();
        self.write("crl.pem", &list);
    }

    /// The configuration. In `toml`, `DIR` means the directory of the files.
    fn toml(&self, toml: &str) -> String {
        toml.replace("DIR", self.scratch.path().to_str().unwrap())
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

/// Connects and logs in. `None` if the login fails. The first login of a user needs a server.
async fn logged_in(seawall: &Seawall) -> Option<RawClient> {
    // Without a suitable server, the login waits for `deployment.server_selection_timeout_ms`.
    let address = seawall.address().parse().unwrap();
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
async fn connections_are_replaced_after_a_new_certificate_and_no_operation_fails() {
    let scene = Scene::new().await;
    let seawall = scene.start("127.0.0.1", FILES).await;
    let mut client = logged_in(&seawall).await.unwrap();
    assert!(find(&mut client).await);
    let before = clears(&seawall).await;
    scene.write_identity(scene.authority());
    let toml = scene.toml(FILES);
    let reload = seawall.reload(&toml).await.unwrap();
    let keys: Vec<_> = reload.changes.iter().map(|change| &*change.key).collect();
    assert!(keys.contains(&"deployment.tls"), "{keys:?}");
    // Operations run all the time, so a connection is in use or available when it is replaced.
    let mut count = 0;
    while expired(&seawall).await < 1.0 {
        assert!(find(&mut client).await);
        count += 1;
        assert!(count < 100_000, "expected the connection to be replaced");
    }
    assert!(find(&mut client).await);
    let after = clears(&seawall).await;
    assert!(
        (after - before).abs() < f64::EPSILON,
        "pool clears: {before} before, {after} after"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_no_server_accepts_are_refused_and_the_previous_files_stay_in_use() {
    let scene = Scene::new().await;
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
    let scene = Scene::new().await;
    scene.write_list(&[scene.certificates().server()]);
    let seawall = scene.start("127.0.0.1", FILES).await;
    assert!(logged_in(&seawall).await.is_none());
    scene.write_list(&[]);
    seawall.reload(&scene.toml(FILES)).await.unwrap();
    let is_served = async || logged_in(&seawall).await.is_some();
    eventually(LIMIT, is_served).await.unwrap();
}

/// `inet_aton` converts this text to 127.0.0.1, but the certificate has no name with this text.
const OTHER_NAME: &str = "127.0.0.0x1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_names_of_servers_are_verified_unless_allow_invalid_hostnames_is_true() {
    let scene = Scene::new().await;
    let seawall = scene.start(OTHER_NAME, FILES).await;
    assert!(logged_in(&seawall).await.is_none());
    let any_name = "deployment.tls.allow_invalid_hostnames = true\n";
    let seawall = scene.start(OTHER_NAME, &format!("{FILES}{any_name}")).await;
    assert!(find(&mut logged_in(&seawall).await.unwrap()).await);
    // Seawall still verifies the authority of the server's certificate.
    let foreign = Authority::generate("foreign").unwrap();
    scene.write("ca.pem", &foreign.pem());
    let seawall = scene.start(OTHER_NAME, &format!("{FILES}{any_name}")).await;
    assert!(logged_in(&seawall).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_files_of_the_connection_string_are_used_after_a_reload() {
    let scene = Scene::new().await;
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
async fn a_reload_that_switches_tls_to_servers_on_applies_its_other_keys() {
    let scene = Scene::new().await;
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
}
