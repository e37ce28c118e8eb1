//! Tests of several listeners (`[[listeners]]`), each with its own settings of TLS, the PROXY
//! protocol, the maximum number of clients, and compressors.

use std::{sync::Arc, time::Duration};

use bson::doc;
use seawall_api::{Clients, Configuration, Reload, Status};
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    eventually::eventually,
    mongod::shared_standalone,
    process::run,
    raw::RawClient,
    scratch::Scratch,
    seawall::Seawall,
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, HandshakeKind, pki_types::ServerName},
};

const LIMIT: Duration = Duration::from_secs(20);

async fn start(toml: &str) -> Seawall {
    let server = shared_standalone().await.unwrap();
    Seawall::start_configured(&server.uri(), toml).await
}

/// The configuration of a listener on a free port of the loopback address 127.0.0.`number`,
/// followed by the lines `more`.
fn listener(number: usize, more: &str) -> String {
    format!("[[listeners]]\naddress = \"127.0.0.{number}:0\"\n{more}\n")
}

async fn connect(seawall: &Seawall, index: usize) -> RawClient {
    let address = seawall.addresses()[index].parse().unwrap();
    RawClient::connect(address).await.unwrap()
}

async fn is_served(client: &mut RawClient) -> bool {
    client.hello(doc! {}).await.is_ok_and(|reply| reply.is_ok())
}

async fn refused(seawall: &Seawall, reason: &str) -> f64 {
    let name = "seawall_client_connections_refused_total";
    let reason = format!("reason=\"{reason}\"");
    seawall.metric(name, &[&reason]).await
}

fn keys(reload: &Reload, needs_restart: bool) -> Vec<&str> {
    let changes = reload.changes.iter();
    let changes = changes.filter(|change| change.needs_restart == needs_restart);
    changes.map(|change| change.key.as_str()).collect()
}

/// TLS files. The authority signs certificates of Seawall and of clients.
struct Files {
    scratch: Scratch,
    authority: Authority,
}

impl Files {
    fn new() -> Self {
        let files = Self {
            scratch: Scratch::create().unwrap(),
            authority: Authority::generate("authority").unwrap(),
        };
        files
            .scratch
            .write("ca.pem", files.authority.pem())
            .unwrap();
        files
    }

    /// Writes a new certificate of Seawall to the file of this name, and returns the certificate.
    fn issue(&self, name: &str) -> Identity {
        let identity = self.authority.server(&["localhost"], &ECDSA).unwrap();
        let file = format!("{name}.pem");
        self.scratch.write(&file, identity.pem()).unwrap();
        identity
    }

    /// The TLS section of a listener with the certificate file of this name, followed by the lines
    /// `more`. `DIR` in `more` is replaced by the directory of the files.
    fn tls(&self, name: &str, more: &str) -> String {
        let toml = format!(
            "[listeners.tls]\ncertificate_file = \"DIR/{name}.pem\"\nkey_file = \"DIR/{name}.pem\"\n{more}"
        );
        toml.replace("DIR", self.scratch.path().to_str().unwrap())
    }
}

/// A TLS handshake with the listener at this index. If `presented` is given, Seawall must present
/// this certificate. Returns the kind of the handshake (full or resumed; `None` if the handshake
/// failed), and true if Seawall then replies to a `hello`.
async fn handshake(
    seawall: &Seawall,
    index: usize,
    config: &Arc<ClientConfig>,
    presented: Option<&Identity>,
) -> (Option<HandshakeKind>, bool) {
    let stream = TcpStream::connect(&seawall.addresses()[index])
        .await
        .unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::clone(config));
    let Ok(stream) = connector.connect(name, stream).await else {
        return (None, false);
    };
    let (_, session) = stream.get_ref();
    if let Some(presented) = presented {
        assert!(presented.is_presented_by(session.peer_certificates().unwrap()));
    }
    let kind = session.handshake_kind();
    let mut client = RawClient::new(stream);
    (kind, is_served(&mut client).await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_listener_has_its_own_certificates_and_reloads_them() {
    let files = Files::new();
    let (second, third) = (files.issue("second"), files.issue("third"));
    let toml = listener(1, "")
        + &listener(2, &files.tls("second", ""))
        + &listener(3, &files.tls("third", ""));
    let seawall = start(&toml).await;
    assert_eq!(seawall.addresses().len(), 3);
    let config = files.authority.client_config(None).unwrap();
    assert!(is_served(&mut connect(&seawall, 0).await).await);
    assert!(!is_served(&mut connect(&seawall, 1).await).await);
    assert!(handshake(&seawall, 1, &config, Some(&second)).await.1);
    assert!(handshake(&seawall, 2, &config, Some(&third)).await.1);
    let status: Status = seawall.api("/api/v1/status").await;
    assert_eq!(status.certificates.len(), 2);
    let other = files.issue("second");
    let reload = seawall.reload(&toml).await.unwrap();
    assert_eq!(keys(&reload, true), [""; 0]);
    assert_eq!(keys(&reload, false), ["listeners[1].tls"]);
    let fresh = files.authority.client_config(None).unwrap();
    assert!(handshake(&seawall, 1, &fresh, Some(&other)).await.1);
    assert!(handshake(&seawall, 2, &fresh, Some(&third)).await.1);
    // A reload removes TLS from the second listener. The third listener keeps TLS.
    let toml = listener(1, "") + &listener(2, "") + &listener(3, &files.tls("third", ""));
    seawall.reload(&toml).await.unwrap();
    assert!(is_served(&mut connect(&seawall, 1).await).await);
    assert!(!is_served(&mut connect(&seawall, 2).await).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_session_of_one_listener_is_not_resumed_at_another() {
    let files = Files::new();
    files.issue("server");
    let required = "client_certificate = \"required\"\nclient_ca_file = \"DIR/ca.pem\"\n";
    let toml = listener(1, &files.tls("server", ""))
        + &listener(2, &files.tls("server", required))
        + &listener(3, &files.tls("server", required));
    let seawall = start(&toml).await;
    // The client uses the same host name for all listeners, so it offers its TLS sessions to all of
    // them.
    let anonymous = files.authority.client_config(None).unwrap();
    assert!(handshake(&seawall, 0, &anonymous, None).await.1);
    let resumed = Some(HandshakeKind::Resumed);
    assert_eq!(
        handshake(&seawall, 0, &anonymous, None).await,
        (resumed, true)
    );
    assert!(!handshake(&seawall, 1, &anonymous, None).await.1);
    let client = files.authority.client("client", YEAR).unwrap();
    let config = files.authority.client_config(Some(&client)).unwrap();
    assert!(handshake(&seawall, 1, &config, None).await.1);
    let (kind, is_served) = handshake(&seawall, 2, &config, None).await;
    assert!(is_served && kind != resumed, "{kind:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_listener_refuses_clients_while_other_listeners_serve_up_to_the_common_limit() {
    let toml = |max: usize| {
        let limit = format!("max_client_connections = {max}");
        "listen.max_client_connections = 4\n".to_owned() + &listener(1, &limit) + &listener(2, "")
    };
    let seawall = start(&toml(1)).await;
    let mut first = connect(&seawall, 0).await;
    assert!(is_served(&mut first).await);
    let mut extra = connect(&seawall, 0).await;
    assert_eq!(extra.read_to_close().await.unwrap(), b"");
    assert_eq!(
        refused(&seawall, "listener_max_client_connections").await,
        1.0
    );
    let mut second = connect(&seawall, 1).await;
    assert!(is_served(&mut second).await);
    let reload = seawall.reload(&toml(3)).await.unwrap();
    assert_eq!(
        keys(&reload, false),
        ["listeners[0].max_client_connections"]
    );
    let mut third = connect(&seawall, 0).await;
    let mut fourth = connect(&seawall, 1).await;
    assert!(is_served(&mut third).await && is_served(&mut fourth).await);
    let mut extra = connect(&seawall, 0).await;
    assert_eq!(extra.read_to_close().await.unwrap(), b"");
    assert_eq!(refused(&seawall, "max_client_connections").await, 1.0);
    for client in [&mut first, &mut second, &mut third, &mut fourth] {
        assert!(is_served(client).await);
    }
    // A disconnected client no longer counts towards its listener's limit and the common limit, so
    // another client is accepted.
    drop(first);
    let admitted = async || is_served(&mut connect(&seawall, 0).await).await;
    eventually(LIMIT, admitted).await.unwrap();
}

#[tokio::test]
async fn only_the_listener_with_proxy_protocol_requires_a_proxy_header() {
    let accept = "proxy_protocol = \"accept\"\nproxy_networks = \"127.0.0.0/8\"";
    let seawall = start(&(listener(1, "") + &listener(2, accept))).await;
    assert!(is_served(&mut connect(&seawall, 0).await).await);
    assert!(!is_served(&mut connect(&seawall, 1).await).await);
    let mut stream = TcpStream::connect(&seawall.addresses()[1]).await.unwrap();
    let header = b"PROXY TCP4 192.0.2.9 192.0.2.1 4711 27017\r\n";
    stream.write_all(header).await.unwrap();
    let mut client = RawClient::new(stream);
    assert!(is_served(&mut client).await);
    let clients: Clients = seawall.api("/api/v1/clients").await;
    let mut peers = clients.clients.iter().map(|client| &client.peer);
    assert!(peers.any(|peer| peer == "192.0.2.9:4711"));
}

#[tokio::test]
async fn each_listener_accepts_only_its_own_compressors() {
    let toml = listener(1, "compressors = \"zlib\"") + &listener(2, "compressors = \"disabled\"");
    let seawall = start(&toml).await;
    let offered = || doc! { "compression": ["snappy", "zlib"] };
    let first = connect(&seawall, 0).await.hello(offered()).await.unwrap();
    assert_eq!(
        first.body.get_array("compression").unwrap(),
        &["zlib".into()]
    );
    let second = connect(&seawall, 1).await.hello(offered()).await.unwrap();
    assert!(!second.body.contains_key("compression"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn until_a_restart_a_changed_listener_requires_tls_as_before_and_its_changes_are_pending() {
    let files = Files::new();
    files.issue("server");
    let toml = listener(1, "") + &listener(2, &files.tls("server", ""));
    let seawall = start(&toml).await;
    // The new configuration has only the second listener. A reload cannot change the number of
    // listeners, so the running listeners stay as they are until a restart.
    let moved = listener(2, "backlog = 7");
    let reload = seawall.reload(&moved).await.unwrap();
    assert!(!reload.changes.is_empty());
    assert_eq!(keys(&reload, false), [""; 0]);
    let config = files.authority.client_config(None).unwrap();
    assert!(handshake(&seawall, 1, &config, None).await.1);
    assert!(!is_served(&mut connect(&seawall, 1).await).await);
    let configuration: Configuration = seawall.api("/api/v1/config").await;
    let value = |key: &str| {
        let value = configuration.values.iter().find(|value| value.key == key);
        let value = value.unwrap();
        (&*value.value, value.pending.as_deref(), &*value.origin)
    };
    let backlog = value("listeners[0].backlog");
    assert_eq!(backlog, ("4096", Some("7"), "default"));
    let mode = value("listeners[1].tls.mode");
    assert_eq!(mode, ("\"require\"", Some(""), "default"));
    let listen_keys = configuration.values.iter().map(|value| value.key.as_str());
    let listen_keys = listen_keys.filter(|key| key.starts_with("listen."));
    let listen_keys: Vec<&str> = listen_keys.collect();
    assert_eq!(listen_keys, ["listen.max_client_connections"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_refuses_unusable_tls_files_of_a_new_listener_that_needs_a_restart() {
    let files = Files::new();
    files.scratch.write("added.pem", "nothing").unwrap();
    let first = listener(1, "");
    let seawall = start(&first).await;
    let toml = first + &listener(2, &files.tls("added", ""));
    let problems = seawall.reload(&toml).await.unwrap_err();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("listeners[1].tls: "),
        "{problems:?}"
    );
    let configuration: Configuration = seawall.api("/api/v1/config").await;
    let mut values = configuration.values.iter();
    assert!(values.all(|value| value.pending.is_none()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_tls_files_are_reported_with_the_configuration_key_of_their_listener() {
    let files = Files::new();
    files.issue("server");
    let toml = listener(1, "") + &listener(2, &files.tls("server", ""));
    let seawall = start(&toml).await;
    files.scratch.write("server.pem", "nothing").unwrap();
    let problems = seawall.reload(&toml).await.unwrap_err();
    let start = "listeners[1].tls: ";
    assert!(problems[0].starts_with(start), "{problems:?}");
    let config = files.authority.client_config(None).unwrap();
    assert!(handshake(&seawall, 1, &config, None).await.1);
    // Two listeners and the admin address use the damaged file, so `seawall check` reports the file
    // for each of them.
    let more = "[admin.tls]\n".to_owned()
        + files
            .tls("server", "")
            .trim_start_matches("[listeners.tls]\n");
    let toml = format!(
        "deployment.uri = \"mongodb://127.0.0.1:1/\"\n{}{toml}{more}",
        listener(3, &files.tls("server", ""))
    );
    let file = files.scratch.write("seawall.toml", toml).unwrap();
    let checked = run(&["check", "--config", file.to_str().unwrap()]).await;
    assert_eq!(checked.status.code(), Some(64));
    let said = String::from_utf8(checked.stderr).unwrap();
    for section in ["listeners[0].tls: ", "listeners[2].tls: ", "admin.tls: "] {
        assert!(said.contains(section), "{said}");
    }
}
