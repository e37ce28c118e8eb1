//! Tests of TLS for clients: several certificates, certificates of clients, revocation, resumption,
//! and reloads.

use std::{io, sync::Arc, time::Duration};

use bson::doc;
use rustix::process::Signal;
use seawall_api::Status;
use seawall_tests::{
    authority::{Authority, ECDSA, ED25519, Identity, YEAR},
    eventually::eventually,
    mongod::shared_standalone,
    process::Process,
    process::run,
    raw::{OpMsg, RawClient},
    scratch::Scratch,
    seawall::{Seawall, http, sum_of},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, Interest},
    net::TcpStream,
    task::yield_now,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, AlertDescription, ClientConfig, HandshakeKind, SignatureScheme, pki_types::ServerName,
    },
};

use crate::served::Served;

const LIMIT: Duration = Duration::from_secs(20);

/// The log message of a failed handshake.
pub(crate) const HANDSHAKE_FAILED: &str = "TLS handshake with a client failed";

/// A Seawall whose TLS files the test changes.
pub(crate) struct ClientTlsScene {
    pub(crate) scratch: Scratch,
    /// Signs the certificates of Seawall.
    pub(crate) servers: Authority,
    /// Signs the certificates of clients.
    pub(crate) clients: Authority,
    pub(crate) seawall: Option<Seawall>,
}

impl ClientTlsScene {
    /// Starts Seawall with one server certificate. `toml` has further settings of `[listen.tls]`.
    pub(crate) async fn start(toml: &str) -> Self {
        let mut scene = Self::new();
        scene.write_list(&[]);
        let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
        scene.write_server("server", &server);
        scene.seawall = Some(scene.launch(toml).await);
        scene
    }

    pub(crate) fn new() -> Self {
        let scene = Self {
            scratch: Scratch::create().unwrap(),
            servers: Authority::generate("servers").unwrap(),
            clients: Authority::generate("clients").unwrap(),
            seawall: None,
        };
        scene.scratch.write("ca.pem", scene.clients.pem()).unwrap();
        scene
    }

    async fn launch(&self, toml: &str) -> Seawall {
        let server = shared_standalone().await.unwrap();
        Seawall::start_configured(&server.uri(), &self.toml(toml)).await
    }

    /// The settings of `[listen.tls]`. Each `DIR` in `toml` is replaced by the path of the scratch
    /// directory.
    pub(crate) fn toml(&self, toml: &str) -> String {
        let toml = format!(
            "listen.tls.certificate_file = \"DIR/server.pem\"\n\
             listen.tls.key_file = \"DIR/server-key.pem\"\n{toml}"
        );
        toml.replace("DIR", self.scratch.path().to_str().unwrap())
    }

    pub(crate) fn write_server(&self, name: &str, identity: &Identity) {
        let file = format!("{name}.pem");
        self.scratch.write(&file, &identity.certificate).unwrap();
        let file = format!("{name}-key.pem");
        self.scratch.write(&file, &identity.key).unwrap();
    }

    /// Writes a revocation list of the clients' authority.
    pub(crate) fn write_list(&self, revoked: &[&Identity]) {
        let list = self.clients.revocation_list(revoked).unwrap();
        self.scratch.write("crl.pem", list).unwrap();
    }

    /// Replaces a file by a rename, so no read sees a part of the file.
    fn replace(&self, file: &str, content: &str) {
        let next = self.scratch.write("next", content).unwrap();
        std::fs::rename(next, self.scratch.join(file)).unwrap();
    }

    pub(crate) fn seawall(&self) -> &Seawall {
        self.seawall.as_ref().unwrap()
    }

    pub(crate) fn client(&self, name: &str) -> Identity {
        self.clients.client(name, YEAR).unwrap()
    }

    /// The configuration of a client that presents the certificate of `identity`, or no certificate
    /// if `identity` is `None`. The client resumes TLS sessions.
    pub(crate) fn config(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        self.servers.client_config(identity).unwrap()
    }

    async fn handshake(&self, config: &Arc<ClientConfig>, name: &str) -> io::Result<Tls> {
        handshake(self.seawall().address(), config, name).await
    }

    /// Connects and sends a `hello`. Returns the kind of the TLS handshake (full or resumed; `None`
    /// if the handshake failed), and the client (`None` if it was not served). The `hello` is
    /// needed, because with TLS 1.3 the handshake of a client succeeds before the client learns
    /// that Seawall has refused its certificate.
    pub(crate) async fn connect(
        &self,
        config: &Arc<ClientConfig>,
    ) -> (Option<HandshakeKind>, Option<RawClient>) {
        let Ok(stream) = self.handshake(config, "localhost").await else {
            return (None, None);
        };
        let kind = stream.get_ref().1.handshake_kind();
        let mut client = RawClient::new(stream);
        let is_served = is_served(&mut client).await;
        (kind, is_served.then_some(client))
    }

    pub(crate) async fn is_served(&self, identity: Option<&Identity>) -> bool {
        self.connect(&self.config(identity)).await.1.is_some()
    }
}

type Tls = TlsStream<TcpStream>;

async fn handshake(address: &str, config: &Arc<ClientConfig>, name: &str) -> io::Result<Tls> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = TlsConnector::from(Arc::clone(config));
    connector.connect(name, stream).await
}

pub(crate) async fn is_served(client: &mut RawClient) -> bool {
    client.hello(doc! {}).await.is_ok_and(|reply| reply.is_ok())
}

/// Waits until the process logs `message` about a failed handshake. The line must be a warning with
/// this cause and a loopback address.
pub(crate) async fn assert_warned_of_handshake(process: &Process, message: &str, cause: &str) {
    let logged = async || process.said(message);
    let line = eventually(LIMIT, logged).await.unwrap();
    let fields = &line["fields"];
    assert_eq!(line["level"], "WARN", "{line}");
    assert_eq!(fields["cause"], cause, "{line}");
    let peer = fields["peer"].as_str().unwrap();
    assert!(peer.starts_with("127.0.0.1:"), "{line}");
}

/// Keys of `[listen.tls]` that make a client certificate required.
pub(crate) const REQUIRED: &str = "listen.tls.client_certificate = \"required\"\n\
                        listen.tls.client_ca_file = \"DIR/ca.pem\"\n\
                        listen.tls.client_crl_file = \"DIR/crl.pem\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seawall_presents_the_certificate_for_the_requested_host_name_and_a_supported_key_type() {
    let mut scene = ClientTlsScene::new();
    let issue = |names: &[&str], algorithm| scene.servers.server(names, algorithm).unwrap();
    let first = issue(&["a.example", "localhost"], &ED25519);
    let second = issue(&["*.b.example"], &ECDSA);
    let third = issue(&["a.example"], &ECDSA);
    scene.write_server("first", &first);
    scene.write_server("second", &second);
    scene.write_server("third", &third);
    let files = |end: &str| {
        ["first", "second", "third"]
            .map(|of| format!("DIR/{of}{end}"))
            .join(", ")
    };
    let toml = format!(
        "[listen.tls]\ncertificate_file = {:?}\nkey_file = {:?}\n",
        files(".pem"),
        files("-key.pem")
    );
    let server = shared_standalone().await.unwrap();
    let toml = toml.replace("DIR", scene.scratch.path().to_str().unwrap());
    scene.seawall = Some(Seawall::start_configured(&server.uri(), &toml).await);
    let config = scene.config(None);
    for (name, expected) in [
        ("a.example", &first),
        ("localhost", &first),
        ("x.b.example", &second),
    ] {
        let stream = scene.handshake(&config, name).await.unwrap();
        let presented = stream.get_ref().1.peer_certificates().unwrap();
        assert!(expected.is_presented_by(presented), "{name}");
    }
    // The certificate `first` is for the same name, but this client does not support its Ed25519
    // key. So the client gets `third`.
    let ecdsa = scene
        .servers
        .client_config_for(SignatureScheme::ECDSA_NISTP256_SHA256);
    let stream = scene.handshake(&ecdsa.unwrap(), "a.example").await.unwrap();
    let presented = stream.get_ref().1.peer_certificates().unwrap();
    assert!(third.is_presented_by(presented));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_clients_with_a_valid_certificate_are_served_if_a_certificate_is_required() {
    let scene = ClientTlsScene::start(REQUIRED).await;
    let good = scene.client("good");
    let revoked = scene.client("revoked");
    assert!(scene.is_served(Some(&good)).await);
    assert!(scene.is_served(Some(&revoked)).await);
    scene.write_list(&[&revoked]);
    scene.seawall().reload(&scene.toml(REQUIRED)).await.unwrap();
    let other = Authority::generate("other").unwrap();
    let foreign = other.client("foreign", YEAR).unwrap();
    let expired = scene.clients.expired_client("expired").unwrap();
    let before = operations(scene.seawall()).await;
    for (name, identity) in [
        ("none", None),
        ("foreign", Some(&foreign)),
        ("expired", Some(&expired)),
        ("revoked", Some(&revoked)),
    ] {
        assert!(!scene.is_served(identity).await, "{name}");
    }
    // A client without TLS is not served either.
    let mut plain = RawClient::connect(scene.seawall().address().parse().unwrap())
        .await
        .unwrap();
    assert!(!is_served(&mut plain).await);
    assert_eq!(operations(scene.seawall()).await, before);
    assert!(scene.is_served(Some(&good)).await);
}

/// Number of refused clients that send commands.
const REFUSED: usize = 20;

/// If Seawall closed the socket before it had read the commands, the kernel would reset the
/// connection, and the client could not read the alert.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_refused_certificate_can_read_the_tls_alert_although_it_sends_commands() {
    let scene = ClientTlsScene::start(REQUIRED).await;
    let other = Authority::generate("other").unwrap();
    let config = scene.config(Some(&other.client("foreign", YEAR).unwrap()));
    let hello = OpMsg::new(doc! { "hello": 1, "$db": "admin" }).to_bytes();
    for _ in 0..REFUSED {
        let mut stream = scene.handshake(&config, "localhost").await.unwrap();
        let refused = async {
            let socket = stream.get_ref().0;
            // The alert arrives before the end of the stream.
            while !socket.ready(Interest::READABLE).await?.is_read_closed() {
                yield_now().await;
            }
            // If the first write reset the connection, the second write fails.
            for _ in 0..2 {
                stream.write_all(&hello).await?;
                stream.flush().await?;
            }
            stream.read_u8().await
        };
        let error = timeout(LIMIT, refused).await.unwrap().unwrap_err();
        let cause = error
            .get_ref()
            .and_then(|of| of.downcast_ref::<rustls::Error>());
        let expected = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
        assert_eq!(cause, Some(&expected), "{error}");
    }
}

async fn operations(seawall: &Seawall) -> u64 {
    seawall.api::<Status>("/api/v1/status").await.operations
}

/// Seawall logs each cause at most once a minute, and two cases have the same cause. So each case
/// has a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_certificate_is_logged_with_its_cause_and_counts_as_no_operation_or_login() {
    let scene = ClientTlsScene::new();
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let revoked = scene.client("revoked");
    scene.write_list(&[&revoked]);
    let other = Authority::generate("other").unwrap();
    let foreign = other.client("foreign", YEAR).unwrap();
    let expired = scene.clients.expired_client("expired").unwrap();
    let self_signed = Identity::self_signed("self-signed").unwrap();
    for (name, identity, cause) in [
        ("none", None, "no certificate"),
        (
            "foreign",
            Some(&foreign),
            "certificate of an unknown authority",
        ),
        (
            "self-signed",
            Some(&self_signed),
            "certificate of an unknown authority",
        ),
        ("expired", Some(&expired), "certificate has expired"),
        ("revoked", Some(&revoked), "certificate is revoked"),
    ] {
        let served = Served::start(&scene.toml(REQUIRED)).await;
        let process = &served.process;
        let config = scene.config(identity);
        if let Ok(stream) = handshake(process.address(), &config, "localhost").await {
            assert!(!is_served(&mut RawClient::new(stream)).await, "{name}");
        }
        assert_warned_of_handshake(process, HANDSHAKE_FAILED, cause).await;
        let status: Status = served.admin().ask("/api/v1/status").await.unwrap();
        assert_eq!(status.operations, 0, "{name}");
        let (_, metrics) = http(process.admin(), "GET", "/metrics", "").await;
        let logins = sum_of(&metrics, "seawall_client_authentications_total", &[]);
        assert_eq!(logins, 0.0, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_has_the_address_of_a_client_that_connects_without_tls() {
    let scene = ClientTlsScene::new();
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let served = Served::start(&scene.toml("")).await;
    let address = served.process.address().parse().unwrap();
    let mut plain = RawClient::connect(address).await.unwrap();
    assert!(!is_served(&mut plain).await);
    assert_warned_of_handshake(&served.process, HANDSHAKE_FAILED, "no TLS").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_authority_is_still_trusted_and_its_expiry_is_in_the_status() {
    let mut scene = ClientTlsScene::new();
    scene.clients = Authority::expired("clients").unwrap();
    scene.scratch.write("ca.pem", scene.clients.pem()).unwrap();
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let toml = REQUIRED.lines().take(2).collect::<Vec<_>>().join("\n");
    scene.seawall = Some(scene.launch(&toml).await);
    assert!(scene.is_served(Some(&scene.client("good"))).await);
    let status: Status = scene.seawall().api("/api/v1/status").await;
    let authority = status
        .certificates
        .iter()
        .find(|of| of.file.ends_with("/ca.pem"));
    let now = bson::DateTime::now().timestamp_millis() / 1_000;
    assert!(authority.unwrap().not_after < now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_says_when_the_content_of_each_file_in_listen_tls_expires() {
    let scene = ClientTlsScene::new();
    let server = scene.servers.expired_server(&["localhost"]).unwrap();
    scene.write_server("server", &server);
    scene.write_list(&[]);
    let served = Served::start(&scene.toml(REQUIRED)).await;
    for (message, level, file) in [
        (
            "certificate or revocation list has expired",
            "ERROR",
            "server.pem",
        ),
        // The list expires in a day. Seawall warns only if a list expires within six hours.
        ("certificate or revocation list loaded", "INFO", "crl.pem"),
        ("certificate or revocation list loaded", "INFO", "ca.pem"),
    ] {
        let path = scene.scratch.join(file).display().to_string();
        let logged = async || {
            let mut lines = served.process.all_said(message).into_iter();
            lines.find(|line| line["fields"]["file"] == path.as_str())
        };
        let line = eventually(LIMIT, logged).await.unwrap();
        assert_eq!(line["level"], level, "{file}: {line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_optional_certificate_may_be_missing_but_not_invalid() {
    let scene = ClientTlsScene::start(&REQUIRED.replace("required", "optional")).await;
    let foreign = Authority::generate("other").unwrap();
    let foreign = foreign.client("foreign", YEAR).unwrap();
    assert!(scene.is_served(None).await);
    assert!(scene.is_served(Some(&scene.client("good"))).await);
    assert!(!scene.is_served(Some(&foreign)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tls_mode_prefer_accepts_clients_with_and_without_tls() {
    let scene = ClientTlsScene::start("listen.tls.mode = \"prefer\"\n").await;
    assert!(scene.is_served(None).await);
    let mut plain = RawClient::connect(scene.seawall().address().parse().unwrap())
        .await
        .unwrap();
    assert!(is_served(&mut plain).await);
    scene.seawall().reload(&scene.toml("")).await.unwrap();
    let mut plain = RawClient::connect(scene.seawall().address().parse().unwrap())
        .await
        .unwrap();
    assert!(!is_served(&mut plain).await);
    assert!(scene.is_served(None).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_sessions_are_resumed_unless_a_reload_changed_how_client_certificates_are_verified() {
    let scene = ClientTlsScene::start(REQUIRED).await;
    let config = scene.config(Some(&scene.client("client")));
    let kind = async || {
        let (kind, client) = scene.connect(&config).await;
        assert!(client.is_some());
        kind.unwrap()
    };
    let is_resumed = |kind| kind == HandshakeKind::Resumed;
    assert!(!is_resumed(kind().await));
    assert!(is_resumed(kind().await));
    // If only Seawall's own certificate changes, TLS sessions can still be resumed.
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    scene.seawall().reload(&scene.toml(REQUIRED)).await.unwrap();
    assert!(is_resumed(kind().await));
    // If the revocation list changes, the certificate of the client must be verified again. So the
    // TLS session is not resumed.
    let other = scene.client("other");
    scene.write_list(&[&other]);
    scene.seawall().reload(&scene.toml(REQUIRED)).await.unwrap();
    assert!(!is_resumed(kind().await));
    assert!(is_resumed(kind().await));
    // A TLS session that began without a client certificate must not be resumed when a certificate
    // has become required.
    let optional = REQUIRED.replace("required", "optional");
    scene
        .seawall()
        .reload(&scene.toml(&optional))
        .await
        .unwrap();
    let anonymous = scene.config(None);
    for _ in 0..2 {
        assert!(scene.connect(&anonymous).await.1.is_some());
    }
    scene.seawall().reload(&scene.toml(REQUIRED)).await.unwrap();
    assert!(scene.connect(&anonymous).await.1.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_sessions_are_not_resumed_after_the_client_certificate_has_expired() {
    let scene = ClientTlsScene::start(REQUIRED).await;
    // A busy machine may need seconds for the first connection.
    let valid_for = Duration::from_secs(10);
    let identity = scene.clients.client("brief", valid_for).unwrap();
    let config = scene.config(Some(&identity));
    assert!(scene.connect(&config).await.1.is_some());
    // In TLS 1.3, the client completes its part of the handshake before Seawall verifies the
    // client's certificate. So the client knows the kind of the refused handshake.
    let refused = async || match scene.connect(&config).await {
        (Some(HandshakeKind::Full), None) => Ok(()),
        (kind, client) => Err(format!("{kind:?}, served: {}", client.is_some())),
    };
    eventually(LIMIT, refused).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_with_a_revoked_certificate_are_closed_only_if_close_revoked_is_true() {
    let scene = ClientTlsScene::start(REQUIRED).await;
    let (good, bad) = (scene.client("good"), scene.client("bad"));
    let connect = async |identity| {
        scene
            .connect(&scene.config(Some(identity)))
            .await
            .1
            .unwrap()
    };
    let (mut first, mut second) = (connect(&good).await, connect(&bad).await);
    scene.write_list(&[&bad]);
    scene.seawall().reload(&scene.toml(REQUIRED)).await.unwrap();
    assert!(is_served(&mut first).await && is_served(&mut second).await);
    let closing = format!("{REQUIRED}listen.tls.close_revoked = true\n");
    scene.seawall().reload(&scene.toml(&closing)).await.unwrap();
    let reason = [r#"reason="certificate_refused""#];
    let refused = "seawall_client_connections_refused_total";
    let is_closed = async || scene.seawall().metric(refused, &reason).await >= 1.0;
    eventually(LIMIT, is_closed).await.unwrap();
    assert!(!is_served(&mut second).await);
    assert!(is_served(&mut first).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_client_certificate_is_accepted_while_the_revocation_list_is_outdated() {
    let mut scene = ClientTlsScene::new();
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let outdated = scene.clients.outdated_revocation_list().unwrap();
    scene.scratch.write("crl.pem", outdated).unwrap();
    scene.seawall = Some(scene.launch(REQUIRED).await);
    let good = scene.client("good");
    assert!(!scene.is_served(Some(&good)).await);
    // The client is refused only because of the list.
    scene.write_list(&[]);
    scene.seawall().reload(&scene.toml(REQUIRED)).await.unwrap();
    assert!(scene.is_served(Some(&good)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_and_seawall_check_warn_of_each_authority_that_has_no_current_revocation_list() {
    let scene = ClientTlsScene::new();
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let other = Authority::generate("other").unwrap();
    let foreign = other.revocation_list(&[]).unwrap();
    let outdated = scene.clients.outdated_revocation_list().unwrap();
    let lists = [("missing", foreign), ("outdated", outdated)];
    scene.scratch.write("crl.pem", &lists[0].1).unwrap();
    let served = Served::start(&scene.toml(REQUIRED)).await;
    for (number, (state, list)) in lists.iter().enumerate() {
        scene.scratch.write("crl.pem", list).unwrap();
        if number > 0 {
            served.process.signal(Signal::HUP);
        }
        let message = "authority has no current revocation list";
        let logged = async || served.process.all_said(message).get(number).cloned();
        let line = eventually(LIMIT, logged).await.unwrap();
        let fields = &line["fields"];
        assert_eq!(line["level"], "WARN", "{line}");
        assert_eq!(fields["authority"], "CN=clients", "{line}");
        assert_eq!(fields["section"], "listen.tls", "{line}");
        assert_eq!(fields["list"], *state, "{line}");
        let checked = run(&["check", "--config", served.file.to_str().unwrap()]).await;
        assert_eq!(checked.status.code(), Some(0), "{checked:?}");
        let printed = String::from_utf8(checked.stderr).unwrap();
        let warning = format!(
            "warning: listen.tls: certificates of the authority CN=clients are refused, because \
             its revocation list is {state}"
        );
        assert!(printed.contains(&warning), "{printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_reports_unusable_tls_files_and_keeps_the_previous_certificates_in_use() {
    let scene = ClientTlsScene::start(REQUIRED).await;
    let good = scene.client("good");
    let other = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    let files = ["ca.pem", "crl.pem", "server.pem", "server-key.pem"];
    let originals = files.map(|file| std::fs::read_to_string(scene.scratch.join(file)).unwrap());
    let outdated = scene.clients.outdated_revocation_list().unwrap();
    let foreign = Authority::generate("foreign").unwrap();
    let foreign = foreign.revocation_list(&[]).unwrap();
    for (file, content, problem) in [
        ("ca.pem", "nothing", "no certificate in the file"),
        (
            "crl.pem",
            "nothing",
            "no certificate revocation list in the file",
        ),
        (
            "crl.pem",
            &outdated,
            "the revocation list of the authority CN=clients is outdated",
        ),
        (
            "crl.pem",
            &foreign,
            "the revocation list of the authority CN=clients is missing",
        ),
        ("server.pem", "nothing", "no certificate in the file"),
        ("server-key.pem", other.key.as_str(), "server.pem"),
        ("server-key.pem", "nothing", "server-key.pem"),
    ] {
        scene.scratch.write(file, content).unwrap();
        let problems = scene
            .seawall()
            .reload(&scene.toml(REQUIRED))
            .await
            .unwrap_err();
        assert!(
            problems.join("\n").contains(problem),
            "{file}: {problems:?}"
        );
        for (file, original) in files.iter().zip(&originals) {
            scene.scratch.write(file, original).unwrap();
        }
        assert!(scene.is_served(Some(&good)).await, "{file}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_expiry_of_each_certificate_is_in_the_metrics_and_in_the_status() {
    let scene = ClientTlsScene::start(REQUIRED).await;
    let status: Status = scene.seawall().api("/api/v1/status").await;
    let names: Vec<_> = status
        .certificates
        .iter()
        .map(|of| of.file.rsplit('/').next().unwrap())
        .collect();
    assert_eq!(names, ["server.pem", "ca.pem", "crl.pem"]);
    for certificate in &status.certificates {
        let file = format!("file=\"{}\"", certificate.file);
        let name = "seawall_certificate_expiry_timestamp_seconds";
        let metric = scene.seawall().metric(name, &[&file]).await;
        assert!(metric > 1_795_000_000.0, "{file}: {metric}");
        assert_eq!(format!("{metric}"), certificate.not_after.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_authority_and_revocation_list_in_one_file_has_its_own_expiry() {
    let mut scene = ClientTlsScene::new();
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    // The two authorities have the same name and different serial numbers.
    let former = Authority::expired("clients").unwrap();
    let list = scene.clients.revocation_list(&[]).unwrap();
    let content = format!("{}{}{list}", former.pem(), scene.clients.pem());
    scene.scratch.write("ca.pem", content).unwrap();
    let toml = REQUIRED.replace("crl.pem", "ca.pem");
    scene.seawall = Some(scene.launch(&toml).await);
    let status: Status = scene.seawall().api("/api/v1/status").await;
    let certificates = status.certificates.iter();
    let of_file: Vec<_> = certificates
        .filter(|of| of.file.ends_with("/ca.pem"))
        .collect();
    let names: Vec<_> = of_file.iter().map(|of| (&*of.kind, &*of.subject)).collect();
    let authority = ("certificate", "CN=clients");
    let list = ("revocation_list", "CN=clients");
    assert_eq!(names, [authority, authority, list], "{of_file:?}");
    assert_ne!(of_file[0].serial, of_file[1].serial);
    assert_eq!(of_file[2].serial, "1");
    for certificate in of_file {
        // The metric does not have the number of a revocation list: its label `serial` is empty.
        let serial = match &*certificate.kind {
            "certificate" => &*certificate.serial,
            _ => "",
        };
        let labels = [
            format!("file=\"{}\"", certificate.file),
            format!("kind=\"{}\"", certificate.kind),
            format!("subject=\"{}\"", certificate.subject),
            format!("serial=\"{serial}\""),
        ];
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        let name = "seawall_certificate_expiry_timestamp_seconds";
        let metric = scene.seawall().metric(name, &labels).await;
        assert_eq!(format!("{metric}"), certificate.not_after.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_use_the_new_certificate_after_its_file_is_replaced_if_reload_watch_is_true() {
    let scene = ClientTlsScene::new();
    let [first, second] = [(); 2].map(|()| scene.servers.server(&["localhost"], &ECDSA).unwrap());
    scene.write_server("server", &first);
    let toml = format!("reload.watch = true\n{}", scene.toml(""));
    let served = Served::start(&toml).await;
    let gets = async |expected: &Identity| {
        // Each handshake uses a new TLS configuration of the client, because a resumed session has
        // the certificate of the first handshake.
        let config = scene.config(None);
        let stream = handshake(served.process.address(), &config, "localhost").await;
        stream.is_ok_and(|stream| {
            let presented = stream.get_ref().1.peer_certificates();
            expected.is_presented_by(presented.unwrap_or_default())
        })
    };
    assert!(gets(&first).await);
    // Each file is replaced by a rename, so no read sees a part of a file.
    scene.write_server("next", &second);
    for end in [".pem", "-key.pem"] {
        let file = |name: &str| scene.scratch.join(&format!("{name}{end}"));
        std::fs::rename(file("next"), file("server")).unwrap();
    }
    eventually(LIMIT, async || gets(&second).await)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_use_new_authorities_and_revocation_lists_if_reload_watch_is_true() {
    let scene = ClientTlsScene::new();
    scene.write_list(&[]);
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let toml = format!("reload.watch = true\n{}", scene.toml(REQUIRED));
    let served = Served::start(&toml).await;
    let serves = async |identity: &Identity| {
        // The client's TLS configuration is new, so it has no TLS session to resume.
        let config = scene.config(Some(identity));
        match handshake(served.process.address(), &config, "localhost").await {
            Ok(stream) => is_served(&mut RawClient::new(stream)).await,
            Err(_) => false,
        }
    };
    let other = Authority::generate("other clients").unwrap();
    let (good, bad) = (scene.client("good"), scene.client("bad"));
    let of_other = other.client("of other", YEAR).unwrap();
    // Until the process has seen a server, it replies to `hello` with an error.
    eventually(LIMIT, async || serves(&good).await)
        .await
        .unwrap();
    assert!(serves(&bad).await && !serves(&of_other).await);
    let authorities = format!("{}{}", scene.clients.pem(), other.pem());
    scene.replace("ca.pem", &authorities);
    let own = scene.clients.revocation_list(&[&bad]).unwrap();
    let lists = own + &other.revocation_list(&[]).unwrap();
    scene.replace("crl.pem", &lists);
    eventually(LIMIT, async || serves(&of_other).await)
        .await
        .unwrap();
    eventually(LIMIT, async || !serves(&bad).await)
        .await
        .unwrap();
    assert!(serves(&good).await);
}
