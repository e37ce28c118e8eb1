//! Tests of TLS and client certificates on the admin address, with commands such as
//! `seawall status` and with HTTP requests. Also tests the rotation and revocation of certificates.

use std::{process::Output, sync::Arc, time::Duration};

use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    eventually::eventually,
    mongod::shared_standalone,
    process::{Process, run},
    scratch::Scratch,
    seawall::http,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

use crate::client_tls::assert_warned_of_handshake;

const LIMIT: Duration = Duration::from_secs(20);

/// A Seawall whose admin address uses TLS and is reachable from other machines.
struct AdminTlsScene {
    scratch: Scratch,
    authority: Authority,
    process: Process,
}

/// Keys of `[admin.tls]` that make a client certificate required.
const REQUIRED: &str = "admin.tls.client_certificate = \"required\"\n\
                        admin.tls.client_ca_file = \"DIR/ca.pem\"\n\
                        admin.tls.client_crl_file = \"DIR/crl.pem\"\n";

impl AdminTlsScene {
    /// Starts Seawall. Each `DIR` in `toml` is replaced by the path of the scratch directory.
    async fn start(toml: &str) -> Self {
        let scratch = Scratch::create().unwrap();
        let authority = Authority::generate("authority").unwrap();
        scratch.write("ca.pem", authority.pem()).unwrap();
        let list = authority.revocation_list(&[]).unwrap();
        scratch.write("crl.pem", list).unwrap();
        let server = authority.server(&["localhost"], &ECDSA).unwrap();
        scratch.write("server.pem", server.pem()).unwrap();
        scratch.write("token", "secret").unwrap();
        let file = scratch.write("seawall.toml", config(&scratch, toml).await);
        let process = Process::serve(&file.unwrap()).await;
        Self {
            scratch,
            authority,
            process,
        }
    }

    fn client(&self, name: &str) -> Identity {
        let identity = self.authority.client(name, YEAR).unwrap();
        let file = format!("{name}.pem");
        self.scratch.write(&file, identity.pem()).unwrap();
        identity
    }

    fn file(&self, name: &str) -> String {
        self.scratch.join(name).to_str().unwrap().to_owned()
    }

    fn port(&self) -> &str {
        self.process.admin().rsplit(':').next().unwrap()
    }

    /// Runs a command such as `seawall status`. If `identity` is given, the command presents the
    /// certificate in this file.
    async fn run(&self, command: &[&str], identity: Option<&str>) -> Output {
        let url = format!("https://localhost:{}", self.port());
        let ca_file = self.file("ca.pem");
        let mut arguments = command.to_vec();
        arguments.extend(["--admin", &url, "--ca-file", &ca_file]);
        let identity = identity.map(|name| self.file(name));
        if let Some(identity) = &identity {
            arguments.extend(["--certificate-key-file", identity]);
        }
        run(&arguments).await
    }

    /// Opens a TLS connection to the admin address. The connection stays open between requests.
    async fn connect(&self, identity: &Identity) -> TlsStream<TcpStream> {
        let config = self.authority.client_config(Some(identity)).unwrap();
        connect(self.port(), &config).await.unwrap()
    }

    async fn reload(&self, identity: &str) {
        let reloaded = self.run(&["reload"], Some(identity)).await;
        assert!(reloaded.status.success(), "{reloaded:?}");
    }
}

async fn config(scratch: &Scratch, toml: &str) -> String {
    let server = shared_standalone().await.unwrap();
    let toml = format!(
        "listen.address = \"127.0.0.1:0\"\nadmin.address = \"0.0.0.0:0\"\n\
         admin.metrics_address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\n\
         admin.tls.certificate_file = \"DIR/server.pem\"\n\
         admin.tls.key_file = \"DIR/server.pem\"\n{toml}",
        server.uri()
    );
    toml.replace("DIR", scratch.path().to_str().unwrap())
}

async fn connect(port: &str, config: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(Arc::clone(config));
    connector.connect(name, stream).await
}

/// Sends a GET request over an open connection. Returns the HTTP status of the response.
async fn status(stream: &mut TlsStream<TcpStream>, host: &str) -> u16 {
    let request = format!("GET /api/v1/config HTTP/1.1\r\nhost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[tokio::test]
async fn seawall_commands_need_a_certificate_that_the_admin_address_accepts() {
    let scene = AdminTlsScene::start(REQUIRED).await;
    scene.client("operator");
    let ready = scene.run(&["wait"], Some("operator.pem")).await;
    assert!(ready.status.success(), "{ready:?}");
    for command in [
        &["status"][..],
        &["pools"],
        &["health"],
        &["report", "--since", "1m"],
        &["top", "--once"],
    ] {
        let output = scene.run(command, Some("operator.pem")).await;
        assert!(output.status.success(), "{command:?}: {output:?}");
    }
    let foreign = Authority::generate("other").unwrap();
    let foreign = foreign.client("foreign", YEAR).unwrap();
    scene.scratch.write("foreign.pem", foreign.pem()).unwrap();
    for identity in [None, Some("foreign.pem")] {
        let output = scene.run(&["status"], identity).await;
        assert_eq!(output.status.code(), Some(69), "{identity:?}: {output:?}");
        assert!(
            stderr(&output).contains("cannot reach Seawall"),
            "{output:?}"
        );
    }
    // Without `--ca-file`, the command does not trust the certificate of the admin address.
    let url = format!("https://localhost:{}", scene.port());
    let output = run(&["status", "--admin", &url]).await;
    assert_eq!(output.status.code(), Some(69));
    assert!(stderr(&output).contains("UnknownIssuer"), "{output:?}");
    let plain = format!("localhost:{}", scene.port());
    let output = run(&["health", "--admin", &plain]).await;
    assert_eq!(output.status.code(), Some(69));
}

#[tokio::test]
async fn admin_actions_are_logged_with_the_subject_of_the_callers_certificate() {
    let scene = AdminTlsScene::start(REQUIRED).await;
    scene.client("operator");
    scene.reload("operator.pem").await;
    let is_logged = async || scene.process.said("admin action").is_some();
    eventually(LIMIT, is_logged).await.unwrap();
    let line = scene.process.said("admin action").unwrap();
    let fields = &line["fields"];
    let subject = fields["certificate"].as_str().unwrap();
    assert!(subject.contains("CN=operator"), "{line}");
    assert_eq!(fields["caller"], "no token", "{line}");
    assert_eq!(fields["status"], 200, "{line}");
}

#[tokio::test]
async fn a_failed_handshake_is_logged_with_its_cause_and_the_address_of_the_caller() {
    let scene = AdminTlsScene::start(REQUIRED).await;
    let refused = scene.run(&["status"], None).await;
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    let message = "TLS handshake with a caller of the admin API failed";
    assert_warned_of_handshake(&scene.process, message, "no certificate").await;
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_on_new_and_on_open_connections() {
    let scene = AdminTlsScene::start(REQUIRED).await;
    let (_, revoked) = (scene.client("operator"), scene.client("revoked"));
    let mut open = scene.connect(&revoked).await;
    assert_eq!(status(&mut open, "any.example").await, 200);
    let list = scene.authority.revocation_list(&[&revoked]).unwrap();
    scene.scratch.write("crl.pem", list).unwrap();
    // The reload below replaces the revocation list and the certificate of the admin address.
    let server = scene.authority.server(&["localhost"], &ECDSA).unwrap();
    scene.scratch.write("server.pem", server.pem()).unwrap();
    scene.reload("operator.pem").await;
    assert_eq!(status(&mut open, "localhost").await, 403);
    let refused = scene.run(&["status"], Some("revoked.pem")).await;
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    let fresh = scene.connect(&scene.client("fresh")).await;
    let presented = fresh.get_ref().1.peer_certificates().unwrap();
    assert!(server.is_presented_by(presented));
}

#[tokio::test]
async fn open_connections_without_certificate_get_403_after_a_reload_that_requires_certificates() {
    let token = "admin.token_file = \"DIR/token\"\n";
    let scene = AdminTlsScene::start(token).await;
    let anonymous = scene.authority.client_config(None).unwrap();
    let mut open = connect(scene.port(), &anonymous).await.unwrap();
    assert_eq!(status(&mut open, "127.0.0.1").await, 401);
    let toml = config(&scene.scratch, REQUIRED).await;
    scene.scratch.write("seawall.toml", toml).unwrap();
    let token_file = scene.file("token");
    let reload = ["reload", "--token-file", &token_file];
    let reloaded = scene.run(&reload, None).await;
    assert!(reloaded.status.success(), "{reloaded:?}");
    // The new configuration has no token file, and it requires a client certificate.
    assert_eq!(status(&mut open, "127.0.0.1").await, 403);
    scene.client("operator");
    let output = scene.run(&["status"], Some("operator.pem")).await;
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_token_and_a_certificate_are_both_required_if_both_are_configured() {
    let scene =
        AdminTlsScene::start(&format!("{REQUIRED}admin.token_file = \"DIR/token\"\n")).await;
    scene.client("operator");
    let output = scene.run(&["status"], Some("operator.pem")).await;
    assert_eq!(output.status.code(), Some(64), "{output:?}");
    let token_file = scene.file("token");
    let with_token = ["status", "--token-file", &token_file];
    let output = scene.run(&with_token, Some("operator.pem")).await;
    assert!(output.status.success(), "{output:?}");
    let output = scene.run(&with_token, None).await;
    assert_eq!(output.status.code(), Some(69), "{output:?}");
}

#[tokio::test]
async fn the_metrics_address_serves_metrics_and_certificate_expiry_without_tls() {
    let scene = AdminTlsScene::start(REQUIRED).await;
    let serving = scene.process.said("serving").unwrap();
    let metrics = serving["fields"]["metrics"].as_str().unwrap();
    let (status, body) = http(metrics, "GET", "/metrics", "").await;
    assert_eq!(status, 200);
    let name = "seawall_certificate_expiry_timestamp_seconds";
    for file in ["server.pem", "ca.pem", "crl.pem"] {
        let is_named = |line: &&str| line.starts_with(name) && line.contains(file);
        assert!(body.lines().any(|line| is_named(&line)), "{file}: {body}");
    }
}
