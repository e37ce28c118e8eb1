//! Replaces all TLS files of Seawall, for its clients and for its servers, while many clients run
//! operations.

use std::{
    fs,
    os::unix::fs::symlink,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bson::doc;
use futures_util::{StreamExt as _, stream};
use mongodb::Client;
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    eventually::eventually,
    mongod::{NewUser, Options, RunCommand as _, Standalone, create_user},
    process::Process,
    raw::{Login, Mechanism, RawClient},
    scratch::Scratch,
    seawall::{http, sum_of},
};
use tokio::{net::TcpStream, sync::watch, task::JoinSet};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use crate::client_tls::HANDSHAKE_FAILED;

/// Time limit for new files to have an effect. It is longer than 30 seconds: if no server replies
/// to Seawall in time on a busy machine, Seawall tries the files again after 30 seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Number of clients that run operations while the TLS files are replaced.
const CLIENTS: usize = 500;

/// Number of clients that connect at the same time. Fewer would take longer. With more, the time
/// limit of a TLS handshake could be too short on a busy machine.
const CONNECTING: usize = 50;

/// The host name in Seawall's certificate.
const NAME: &str = "localhost";

/// The database that the clients read.
const DATABASE: &str = "rotation";

/// The configuration. All files are in the same directory as the configuration file.
const CONFIGURATION: &str = r#"
listen.address = "127.0.0.1:0"
listen.tls.certificate_file = "DIR/server.pem"
listen.tls.key_file = "DIR/server-key.pem"
listen.tls.client_certificate = "required"
listen.tls.client_ca_file = "DIR/clients-ca.pem"
listen.tls.client_crl_file = "DIR/clients-crl.pem"
listen.tls.close_revoked = CLOSE_REVOKED
admin.address = "127.0.0.1:0"
deployment.uri = "mongodb://SERVER/?tls=true"
deployment.tls.ca_file = "DIR/servers-ca.pem"
deployment.tls.crl_file = "DIR/servers-crl.pem"
deployment.tls.certificate_key_file = "DIR/client.pem"
reload.watch = true
"#;

/// A mongod that requires TLS, certificates of its clients, and logins. Also the authorities and
/// the files of a Seawall process in front of this mongod.
struct RotationScene {
    scratch: Scratch,
    /// Number of times that the files were written.
    written: AtomicUsize,
    server: Standalone,
    /// The root user of the server.
    root: Client,
    /// Signs the certificates that Seawall presents to its clients.
    seawall: Authority,
    /// A user for each SCRAM mechanism.
    logins: [Login; 2],
}

/// The authorities and revocation lists that Seawall gets. Each time, Seawall also gets two new
/// certificates: it presents one to its clients, and the other to its servers.
struct Trust<'a> {
    /// The value of `listen.tls.close_revoked`.
    close_revoked: bool,
    /// The authorities of clients, with the revoked certificates of each.
    clients: Vec<(&'a Authority, Vec<&'a Identity>)>,
    /// The authorities of servers. The first one signs the certificate that Seawall presents to
    /// servers.
    servers: Vec<&'a Authority>,
}

impl RotationScene {
    async fn new() -> Self {
        // With few iterations, logins are fast.
        let names = ["scramIterationCount", "scramSHA256IterationCount"];
        let server = Standalone::start(Options {
            tls: true,
            requires_client_certificates: true,
            parameters: names
                .map(|name| (name.to_owned(), "5000".to_owned()))
                .into(),
            ..Options::with_auth()
        });
        let server = server.await.unwrap();
        let root = server.client().unwrap();
        let users = Mechanism::ALL.map(|mechanism| {
            let user = NewUser::new("admin", mechanism.name(), "secret").role("read", DATABASE);
            user.mechanisms(&[mechanism])
        });
        for user in &users {
            create_user(&root, user).await.unwrap();
        }
        Self {
            scratch: Scratch::create().unwrap(),
            written: AtomicUsize::new(0),
            server,
            root,
            seawall: Authority::generate("Seawall").unwrap(),
            logins: users.map(|user| user.login()),
        }
    }

    /// The authority that has signed the server's first certificate.
    fn servers(&self) -> &Authority {
        self.server.certificates().unwrap().authority()
    }

    /// Writes the configuration and all TLS files to a new directory. Then one rename replaces the
    /// directory of the previous files, as Kubernetes does with the files of a secret. Returns the
    /// new certificate that Seawall presents to its clients.
    fn write(&self, trust: &Trust<'_>) -> Identity {
        let presented = self.seawall.server(&[NAME], &ECDSA).unwrap();
        let own = trust.servers.first().unwrap().client("seawall", YEAR);
        let (mut authorities, mut lists) = (String::new(), String::new());
        for (authority, revoked) in &trust.clients {
            authorities += &authority.pem();
            lists += &authority.revocation_list(revoked).unwrap();
        }
        let list = |authority: &&Authority| authority.revocation_list(&[]).unwrap();
        let current = self.scratch.join("current");
        let configuration = CONFIGURATION
            .replace("DIR", current.to_str().unwrap())
            .replace("SERVER", &self.server.address().to_string())
            .replace("CLOSE_REVOKED", &trust.close_revoked.to_string());
        let directory = self.written.fetch_add(1, Ordering::Relaxed).to_string();
        fs::create_dir(self.scratch.join(&directory)).unwrap();
        for (file, content) in [
            ("seawall.toml", configuration),
            ("server.pem", presented.certificate.clone()),
            ("server-key.pem", presented.key.clone()),
            ("clients-ca.pem", authorities),
            ("clients-crl.pem", lists),
            (
                "servers-ca.pem",
                trust.servers.iter().map(|of| of.pem()).collect(),
            ),
            ("servers-crl.pem", trust.servers.iter().map(list).collect()),
            ("client.pem", own.unwrap().pem()),
        ] {
            let file = format!("{directory}/{file}");
            self.scratch.write(&file, content).unwrap();
        }
        let link = self.scratch.join("link");
        symlink(directory, &link).unwrap();
        fs::rename(link, current).unwrap();
        presented
    }

    /// Replaces the server's certificate by one that the first authority has signed. The server
    /// then accepts clients of all these authorities.
    async fn replace_files_of_server(&self, authorities: &[&Authority]) {
        let files = self.server.certificates().unwrap();
        let identity = authorities[0].member("server", &["127.0.0.1"]).unwrap();
        fs::write(files.server_file(), identity.pem()).unwrap();
        let authorities: String = authorities.iter().map(|of| of.pem()).collect();
        fs::write(files.ca_file(), authorities).unwrap();
        let command = doc! { "rotateCertificates": 1 };
        self.root.run("admin", command).await.unwrap();
    }

    /// Creates a user that has never logged in.
    async fn new_user(&self) -> Login {
        let user = NewUser::new("admin", "new user", "secret").role("read", DATABASE);
        create_user(&self.root, &user).await.unwrap();
        user.login()
    }

    /// The TLS configuration of a client. It has no TLS session that it could resume.
    fn config(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        self.seawall.client_config(identity).unwrap()
    }
}

/// A Seawall process that reads its files again when they change.
struct Rotated<'a> {
    scene: &'a RotationScene,
    process: Process,
}

impl<'a> Rotated<'a> {
    async fn start(scene: &'a RotationScene, trust: &Trust<'_>) -> Self {
        scene.write(trust);
        let file = scene.scratch.join("current/seawall.toml");
        let process = Process::serve(&file).await;
        Self { scene, process }
    }

    /// Replaces all files, and waits until a new handshake gets the new certificate.
    async fn replace_files(&self, trust: &Trust<'_>) {
        let presented = self.scene.write(trust);
        let is_presented = async || self.presents(&presented).await;
        eventually(LIMIT, is_presented).await.unwrap();
    }

    /// True if Seawall presents this certificate in a new handshake.
    async fn presents(&self, identity: &Identity) -> bool {
        let stream = TcpStream::connect(self.process.address()).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        // The client has no certificate. With TLS 1.3, it learns only after its handshake that it
        // is refused.
        let connector = TlsConnector::from(self.scene.config(None));
        let stream = connector.connect(name, stream).await;
        stream.is_ok_and(|stream| {
            let presented = stream.get_ref().1.peer_certificates();
            identity.is_presented_by(presented.unwrap_or_default())
        })
    }

    /// True if Seawall has closed a connection to the server because it was established with former
    /// files.
    async fn has_replaced_connection(&self) -> bool {
        let name = "seawall_server_connections_closed_total";
        self.metric(name, "reason=\"expired\"").await > 0.0
    }

    /// Number of clients that reloads have closed because of `close_revoked`.
    async fn closed_by_reloads(&self) -> f64 {
        let name = "seawall_client_connections_refused_total";
        self.metric(name, "reason=\"certificate_refused\"").await
    }

    async fn metric(&self, name: &str, label: &str) -> f64 {
        let (_, metrics) = http(self.process.admin(), "GET", "/metrics", "").await;
        sum_of(&metrics, name, &[label])
    }

    /// Connects and logs in. `None` if Seawall refuses the client.
    async fn connect(&self, config: &Arc<ClientConfig>, login: &Login) -> Option<RawClient> {
        let address = self.process.address().parse().unwrap();
        let client = RawClient::connect_tls(address, NAME, Arc::clone(config)).await;
        let mut client = client.ok()?;
        let outcome = client.login(login).await.ok()?;
        outcome.is_authenticated().then_some(client)
    }

    /// Connects with this certificate and logs in. `None` if Seawall refuses the client.
    async fn connect_with(&self, identity: &Identity) -> Option<RawClient> {
        let config = self.scene.config(Some(identity));
        self.connect(&config, &self.scene.logins[0]).await
    }

    /// Checks that Seawall refuses a new handshake with this certificate, and logs this cause.
    async fn assert_refused(&self, identity: &Identity, cause: &str) {
        assert!(self.connect_with(identity).await.is_none(), "{cause}");
        let is_logged = async || {
            let lines = self.process.all_said(HANDSHAKE_FAILED);
            lines.iter().any(|line| line["fields"]["cause"] == cause)
        };
        eventually(LIMIT, is_logged).await.unwrap();
    }
}

/// Clients that have logged in and run finds in a loop.
struct FindLoad {
    stop: watch::Sender<bool>,
    /// The number of finds of each client.
    counts: Arc<[AtomicU64]>,
    clients: JoinSet<()>,
}

impl FindLoad {
    /// Connects clients that all have this certificate.
    async fn start(rotated: &Rotated<'_>, identity: &Identity) -> Self {
        let config = rotated.scene.config(Some(identity));
        let logins = rotated.scene.logins.iter().cycle();
        let connecting = logins
            .take(CLIENTS)
            .map(|login| rotated.connect(&config, login));
        let connected: Vec<_> = stream::iter(connecting)
            .buffer_unordered(CONNECTING)
            .collect()
            .await;
        let (stop, stopped) = watch::channel(false);
        let counts: Arc<[AtomicU64]> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
        let mut clients = JoinSet::new();
        for (number, client) in connected.into_iter().enumerate() {
            let counts = Arc::clone(&counts);
            clients.spawn(run_finds(client.unwrap(), number, counts, stopped.clone()));
        }
        Self {
            stop,
            counts,
            clients,
        }
    }

    /// Waits until each client has run a find that began after the call.
    async fn wait_for_finds(&self) {
        let counts = || self.counts.iter().map(|of| of.load(Ordering::Relaxed));
        let before: Vec<_> = counts().collect();
        // The first find that a client completes may have begun before the call.
        let have_run = async || counts().zip(&before).all(|(now, before)| now >= before + 2);
        eventually(LIMIT, have_run).await.unwrap();
    }

    /// Stops all clients.
    ///
    /// # Panics
    /// If an operation has failed.
    async fn stop(self) {
        self.stop.send_replace(true);
        // If an operation failed, the task of its client has panicked, and `join_all` panics too.
        self.clients.join_all().await;
    }
}

/// Runs finds until `stopped` is true, and counts them.
async fn run_finds(
    mut client: RawClient,
    number: usize,
    counts: Arc<[AtomicU64]>,
    stopped: watch::Receiver<bool>,
) {
    while !*stopped.borrow() {
        client.expect_ok(DATABASE, doc! { "find": "things" }).await;
        counts[number].fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_of_500_clients_fails_while_all_tls_files_are_replaced() {
    let generate = |name| Authority::generate(name).unwrap();
    let (former, new, new_servers) = (generate("former"), generate("new"), generate("new servers"));
    let issue = |authority: &Authority| authority.client("client", YEAR).unwrap();
    let (good, bad, late) = (issue(&former), issue(&former), issue(&former));
    let (new_good, new_bad) = (issue(&new), issue(&new));
    let scene = RotationScene::new().await;
    let mut trust = Trust {
        close_revoked: true,
        clients: vec![(&former, vec![])],
        servers: vec![scene.servers()],
    };
    let rotated = Rotated::start(&scene, &trust).await;
    // Until the process has seen the server, it accepts no login.
    let connected = async || rotated.connect_with(&bad).await;
    let mut bad_client = eventually(LIMIT, connected).await.unwrap();
    let mut late_client = rotated.connect_with(&late).await.unwrap();
    let load = FindLoad::start(&rotated, &good).await;
    load.wait_for_finds().await;

    // Add the new authorities, and revoke the certificate of a client.
    trust.clients = vec![(&former, vec![&bad]), (&new, vec![])];
    trust.servers = vec![scene.servers(), &new_servers];
    rotated.replace_files(&trust).await;
    bad_client.read_to_close().await.unwrap();
    rotated.assert_refused(&bad, "certificate is revoked").await;
    let mut new_bad_client = rotated.connect_with(&new_bad).await.unwrap();
    let has_replaced = async || rotated.has_replaced_connection().await;
    eventually(LIMIT, has_replaced).await.unwrap();
    load.wait_for_finds().await;

    // Remove the former authorities. Without `close_revoked`, connected clients are still served.
    let authorities = [&new_servers, scene.servers()];
    scene.replace_files_of_server(&authorities).await;
    trust.close_revoked = false;
    trust.clients = vec![(&new, vec![])];
    trust.servers = vec![&new_servers];
    rotated.replace_files(&trust).await;
    let unknown = "certificate of an unknown authority";
    rotated.assert_refused(&good, unknown).await;
    load.wait_for_finds().await;
    load.stop().await;
    // For the first login of a user, Seawall needs a new connection to the server, which accepts
    // only Seawall's new certificate.
    scene.replace_files_of_server(&[&new_servers]).await;
    let (config, login) = (scene.config(Some(&new_good)), scene.new_user().await);
    let logged_in = async || rotated.connect(&config, &login).await;
    eventually(LIMIT, logged_in).await.unwrap();

    // Revoke a certificate of the new authority. With `close_revoked`, a client that is still
    // connected with a certificate of the former authority is closed too.
    let load = FindLoad::start(&rotated, &new_good).await;
    load.wait_for_finds().await;
    trust.close_revoked = true;
    trust.clients = vec![(&new, vec![&new_bad])];
    rotated.replace_files(&trust).await;
    new_bad_client.read_to_close().await.unwrap();
    late_client.read_to_close().await.unwrap();
    assert!(rotated.connect_with(&new_bad).await.is_none());
    load.wait_for_finds().await;
    load.stop().await;
    assert_eq!(rotated.closed_by_reloads().await, 3.0);
}
