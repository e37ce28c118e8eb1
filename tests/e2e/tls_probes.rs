//! Tests of TLS with `openssl s_client` as the client: TLS versions, cipher suites, renegotiation
//! and resumption. The tests fail if `openssl` is not installed.

use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};

use bson::doc;
use futures_util::future::join_all;
use seawall_tests::{
    authority::{Authority, ECDSA, Identity},
    eventually::eventually,
    mongod::shared_standalone,
    raw::OpMsg,
    seawall::Seawall,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    process::Command,
    time::{Instant, timeout},
};

use crate::client_tls::{ClientTlsScene, REQUIRED};

const LIMIT: Duration = Duration::from_secs(20);

/// The alert `handshake_failure`, as `openssl` prints it.
const HANDSHAKE_FAILURE: &str = "SSL alert number 40";

/// Makes `openssl` offer every TLS version and cipher suite that it knows.
const ALL_SUITES: &str = "ALL:COMPLEMENTOFALL:@SECLEVEL=0";

fn openssl() -> Command {
    let mut command = Command::new("openssl");
    // The configuration of the system may forbid old versions and suites, so it is not used.
    command.env("OPENSSL_CONF", "/dev/null").kill_on_drop(true);
    command
}

async fn run_openssl(arguments: &[&str]) -> String {
    let output = openssl().args(arguments).output().await;
    let output = output.expect("openssl is installed");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The output of one run of `openssl s_client`.
struct Probe(String);

impl Probe {
    /// Connects to this address with `openssl s_client` and sends a `hello`. Ends when the reply
    /// has arrived or the connection is closed.
    async fn run(address: &str, arguments: &[&str]) -> Self {
        let hello = OpMsg::new(doc! { "hello": 1, "$db": "admin" }).to_bytes();
        let arguments = [&["-nocommands"], arguments].concat();
        Self::run_with(address, &arguments, &hello).await
    }

    /// Connects and sends `input`, which may contain `openssl`'s own commands.
    async fn run_with(address: &str, arguments: &[&str], input: &[u8]) -> Self {
        let mut child = openssl()
            .args(["s_client", "-connect", address])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("openssl is installed");
        let mut stdin = child.stdin.take();
        let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let exchange = async {
            if let Some(stdin) = &mut stdin {
                // If Seawall refuses the connection, `openssl` may end before it reads its input.
                drop(stdin.write_all(input).await);
            }
            let mut printed = Vec::new();
            while stdout.read_buf(&mut printed).await.unwrap() > 0 {
                if Self::of(&printed).is_served() {
                    // `openssl` ends when its input is closed.
                    stdin = None;
                }
            }
            printed
        };
        let errors = async {
            let mut errors = Vec::new();
            stderr.read_to_end(&mut errors).await.unwrap();
            errors
        };
        let ended = timeout(LIMIT, async { tokio::join!(exchange, errors) }).await;
        let (printed, errors) = ended.unwrap_or_else(|_| panic!("{arguments:?}: still running"));
        Self::of(&[printed, errors].concat())
    }

    fn of(printed: &[u8]) -> Self {
        Self(String::from_utf8_lossy(printed).into_owned())
    }

    fn has(&self, text: &str) -> bool {
        self.0.contains(text)
    }

    /// True if Seawall has replied to the `hello`.
    fn is_served(&self) -> bool {
        self.has("isWritablePrimary")
    }

    /// True if the TLS session was resumed.
    fn is_resumed(&self) -> bool {
        self.has("\nReused, ")
    }

    /// The negotiated cipher suite; `None` if the handshake failed.
    fn suite(&self) -> Option<&str> {
        let (_, rest) = self.0.split_once("Cipher is ")?;
        let name = rest.lines().next()?;
        (name != "(NONE)").then_some(name)
    }
}

/// Starts Seawall with an ECDSA and an RSA certificate.
async fn with_both_keys() -> ClientTlsScene {
    let mut scene = ClientTlsScene::new();
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let file = |name: &str| scene.scratch.join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (file("rsa.pem"), file("rsa-key.pem"));
    let generate = ["req", "-x509", "-newkey", "rsa:2048", "-nodes"];
    let subject = ["-config", "/dev/null", "-subj", "/CN=localhost"];
    // With an extension, the certificate has version 3. rustls refuses older versions.
    let extension = ["-addext", "subjectAltName=DNS:localhost"];
    let files = ["-keyout", &key, "-out", &certificate];
    run_openssl(&[&generate[..], &subject, &extension, &files].concat()).await;
    let toml = format!(
        "[listen.tls]\ncertificate_file = \"{}, {certificate}\"\nkey_file = \"{}, {key}\"\n",
        file("server.pem"),
        file("server-key.pem"),
    );
    let server = shared_standalone().await.unwrap();
    scene.seawall = Some(Seawall::start_configured(&server.uri(), &toml).await);
    scene
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_below_1_2_is_refused() {
    let scene = with_both_keys().await;
    for (version, is_accepted) in [
        ("-tls1", false),
        ("-tls1_1", false),
        ("-tls1_2", true),
        ("-tls1_3", true),
    ] {
        let probe = Probe::run(scene.seawall().address(), &[version, "-cipher", ALL_SUITES]).await;
        assert_eq!(probe.is_served(), is_accepted, "{version}: {}", probe.0);
        // In TLS versions before 1.2, a client does not send the signature schemes that it
        // supports. So rustls sends the alert `handshake_failure` before it compares versions.
        let is_refused = probe.has(HANDSHAKE_FAILURE);
        assert_eq!(is_refused, !is_accepted, "{version}: {}", probe.0);
    }
}

/// A ClientHello of SSL 3.0 with one cipher suite. The test builds these bytes itself, because
/// `openssl` no longer supports SSL 3.0.
fn ssl_3_hello() -> Vec<u8> {
    let mut hello = vec![0x16, 3, 0, 0, 45, 1, 0, 0, 41, 3, 0];
    // These bytes are the client's random value and an empty session id.
    hello.extend([0; 33]);
    // These bytes are the suite TLS_RSA_WITH_AES_128_CBC_SHA, and no compression.
    hello.extend([0, 2, 0, 0x2f, 1, 0]);
    hello
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ssl_3_is_refused() {
    let scene = with_both_keys().await;
    let mut stream = TcpStream::connect(scene.seawall().address()).await.unwrap();
    stream.write_all(&ssl_3_hello()).await.unwrap();
    let mut reply = Vec::new();
    let read = timeout(LIMIT, stream.read_to_end(&mut reply)).await;
    read.unwrap().unwrap();
    // The reply must be the fatal alert `handshake_failure`.
    assert_eq!(reply.first(), Some(&0x15), "{reply:?}");
    assert_eq!(reply.get(5..), Some(&[2, 40][..]), "{reply:?}");
}

/// The suites of `offered` that Seawall accepts. Offers all suites, then all suites except the
/// accepted ones, until Seawall refuses the handshake.
async fn accepted_suites(
    scene: &ClientTlsScene,
    mut offered: BTreeSet<String>,
    arguments: impl Fn(String) -> Vec<String>,
) -> BTreeSet<String> {
    let mut accepted = BTreeSet::new();
    loop {
        let list: Vec<_> = offered.iter().map(String::as_str).collect();
        let arguments = arguments(list.join(":"));
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let probe = Probe::run(scene.seawall().address(), &arguments).await;
        let Some(suite) = probe.suite() else {
            assert!(probe.has(HANDSHAKE_FAILURE), "{}", probe.0);
            return accepted;
        };
        assert!(probe.has("Compression: NONE") && probe.is_served());
        assert!(offered.remove(suite), "{suite} was not offered");
        accepted.insert(suite.to_owned());
    }
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_suites_with_forward_secrecy_and_authenticated_encryption_are_accepted() {
    let scene = with_both_keys().await;
    let known = run_openssl(&["ciphers", "-s", "-tls1_2", ALL_SUITES]).await;
    let known: BTreeSet<_> = known.trim().split(':').map(str::to_owned).collect();
    for weak in [
        "AES128-SHA",
        "AES256-GCM-SHA384",
        "NULL-SHA256",
        "AECDH-NULL-SHA",
    ] {
        assert!(known.contains(weak), "openssl does not offer {weak}");
    }
    let offer = |list| {
        ["-tls1_2", "-cipher"]
            .map(str::to_owned)
            .into_iter()
            .chain([format!("{list}:@SECLEVEL=0")])
            .collect()
    };
    let accepted = accepted_suites(&scene, known, offer).await;
    let expected = names(&[
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-RSA-CHACHA20-POLY1305",
    ]);
    assert_eq!(accepted, expected);
    let known = names(&[
        "TLS_AES_128_CCM_8_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
    ]);
    let offer = |list| ["-tls1_3".to_owned(), "-ciphersuites".to_owned(), list].to_vec();
    let accepted = accepted_suites(&scene, known, offer).await;
    let expected = names(&[
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
    ]);
    assert_eq!(accepted, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_share_no_suite_or_signature_scheme_with_seawall_get_handshake_failure() {
    let scene = ClientTlsScene::start("").await;
    // This Seawall has only an ECDSA key.
    for arguments in [
        ["-cipher", "AES128-SHA:@SECLEVEL=0"],
        ["-cipher", "ECDHE-RSA-AES128-GCM-SHA256"],
        ["-sigalgs", "RSA+SHA256"],
        ["-sigalgs", "ECDSA+SHA1"],
    ] {
        let arguments = [&["-tls1_2", "-cipher", "ALL:@SECLEVEL=0"], &arguments[..]].concat();
        let probe = Probe::run(scene.seawall().address(), &arguments).await;
        assert!(!probe.is_served(), "{arguments:?}");
        assert!(probe.has(HANDSHAKE_FAILURE), "{arguments:?}: {}", probe.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renegotiation_is_refused_at_once() {
    let scene = ClientTlsScene::start("").await;
    // `R` makes the client begin a renegotiation. The client ends when the renegotiation is
    // refused.
    let probe = Probe::run_with(scene.seawall().address(), &["-tls1_2"], b"R\n").await;
    assert!(probe.has("RENEGOTIATING"), "{}", probe.0);
    assert!(probe.has("no renegotiation"), "{}", probe.0);
}

/// A client that keeps its TLS session in a file.
struct Sessions<'a> {
    scene: &'a ClientTlsScene,
    /// The options that select the TLS version and the way to resume a session.
    options: &'a [&'a str],
    /// The `openssl` option for the file with the client's certificate and key. Empty if the client
    /// has no certificate.
    identity: Vec<String>,
    file: String,
}

impl<'a> Sessions<'a> {
    fn new(scene: &'a ClientTlsScene, options: &'a [&'a str], identity: Option<&Identity>) -> Self {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let identity = identity.map(|identity| {
            let file = scene.scratch.write("probe.pem", identity.pem()).unwrap();
            vec!["-cert".to_owned(), path(&file)]
        });
        Self {
            scene,
            options,
            identity: identity.unwrap_or_default(),
            file: path(&scene.scratch.join("session.pem")),
        }
    }

    /// Connects to the first listener with a new session, and writes the session to the file. Then
    /// resumes the session twice.
    ///
    /// # Errors
    /// The output of the first unexpected probe.
    async fn begin(&self) -> Result<(), String> {
        // The second resumption shows that a session can be resumed more than once. So if a later
        // probe does not resume the session, the reason is not that it was already resumed.
        for (session, is_resumed) in [("-sess_out", false), (OFFER, true), (OFFER, true)] {
            let probe = self.connect(session, 0).await;
            if !probe.is_served() || probe.is_resumed() != is_resumed {
                return Err(probe.0);
            }
        }
        Ok(())
    }

    /// Offers the session in the file to the listener at this index.
    async fn offer(&self, listener: usize) -> Probe {
        self.connect(OFFER, listener).await
    }

    async fn connect(&self, session: &str, listener: usize) -> Probe {
        let mut arguments = self.options.to_vec();
        arguments.extend([session, &self.file]);
        arguments.extend(self.identity.iter().map(String::as_str));
        let address = &self.scene.seawall().addresses()[listener];
        Probe::run(address, &arguments).await
    }
}

/// The option of `openssl` that offers the session in a file.
const OFFER: &str = "-sess_in";

/// The ways to resume a session: by a ticket, or in TLS 1.2 by the id of a session that Seawall has
/// stored.
const RESUMPTIONS: [&[&str]; 3] = [&["-tls1_2"], &["-tls1_2", "-no_ticket"], &["-tls1_3"]];

/// Starts Seawall with two listeners.
async fn with_two_listeners() -> ClientTlsScene {
    let mut scene = ClientTlsScene::new();
    scene.write_list(&[]);
    let server = scene.servers.server(&["localhost"], &ECDSA).unwrap();
    scene.write_server("server", &server);
    let server = shared_standalone().await.unwrap();
    let toml = two_listeners(&scene, ["", ""]);
    scene.seawall = Some(Seawall::start_configured(&server.uri(), &toml).await);
    scene
}

/// The configuration of two listeners. `settings` has further keys of each listener, with the
/// prefix `listen.tls.`.
fn two_listeners(scene: &ClientTlsScene, settings: [&str; 2]) -> String {
    let listener = |(number, settings): (u8, &str)| {
        format!(
            "[[listeners]]\naddress = \"127.0.0.{number}:0\"\n[listeners.tls]\n{}",
            scene.toml(settings).replace("listen.tls.", "")
        )
    };
    (1..).zip(settings).map(listener).collect()
}

/// A session that begins at the first listener. It is offered to the first listener after a reload,
/// or to the second listener, and must not be resumed.
struct ResumptionCase<'a> {
    name: &'static str,
    /// The client's certificate; `None` if the client has none.
    identity: Option<&'a Identity>,
    /// How the first listener verifies clients when the session begins.
    before: &'a str,
    /// How clients are verified when the session is offered.
    after: &'a str,
    /// The files that change before a reload, with their new contents.
    files: Vec<(&'static str, String)>,
    /// True if Seawall serves the client after a full handshake.
    is_served: bool,
}

impl ResumptionCase<'_> {
    /// Offers a session to the first listener after a reload, once for each of [`RESUMPTIONS`].
    async fn check_reload(&self, scene: &ClientTlsScene) {
        for options in RESUMPTIONS {
            let sessions = self.begin(scene, options).await;
            for (file, content) in &self.files {
                scene.scratch.write(file, content).unwrap();
            }
            let toml = two_listeners(scene, [self.after; 2]);
            scene.seawall().reload(&toml).await.unwrap();
            self.check(&sessions, 0).await;
        }
    }

    /// Offers a session to the second listener, once for each of [`RESUMPTIONS`].
    async fn check_other_listener(&self, scene: &ClientTlsScene) {
        for options in RESUMPTIONS {
            let sessions = self.begin(scene, options).await;
            self.check(&sessions, 1).await;
        }
    }

    async fn begin<'a>(&self, scene: &'a ClientTlsScene, options: &'a [&'a str]) -> Sessions<'a> {
        scene.scratch.write("ca.pem", scene.clients.pem()).unwrap();
        scene.write_list(&[]);
        let toml = two_listeners(scene, [self.before, self.after]);
        scene.seawall().reload(&toml).await.unwrap();
        let sessions = Sessions::new(scene, options, self.identity);
        let begun = sessions.begin().await;
        begun.unwrap_or_else(|printed| panic!("{} {options:?}: {printed}", self.name));
        sessions
    }

    async fn check(&self, sessions: &Sessions<'_>, listener: usize) {
        let probe = sessions.offer(listener).await;
        let (name, options, printed) = (self.name, sessions.options, &probe.0);
        assert!(!probe.is_resumed(), "{name} {options:?}: {printed}");
        let is_served = probe.is_served();
        assert_eq!(is_served, self.is_served, "{name} {options:?}: {printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_session_is_not_resumed_after_a_reload_has_changed_how_clients_are_verified() {
    let scene = with_two_listeners().await;
    let optional = REQUIRED.replace("required", "optional");
    let identity = scene.client("client");
    let revoking = |revoked: &Identity| scene.clients.revocation_list(&[revoked]).unwrap();
    let lists = [revoking(&identity), revoking(&scene.client("other"))];
    let [list, list_of_others] = lists.map(|list| vec![("crl.pem", list)]);
    let other = Authority::generate("other").unwrap();
    let other_list = other.revocation_list(&[]).unwrap();
    let other = vec![("ca.pem", other.pem()), ("crl.pem", other_list)];
    let client = Some(&identity);
    for (name, identity, before, files, is_served) in [
        ("none to required", None, "", vec![], false),
        ("optional to required", None, &*optional, vec![], false),
        ("another authority", client, REQUIRED, other, false),
        ("the client is revoked", client, REQUIRED, list, false),
        ("others are revoked", client, REQUIRED, list_of_others, true),
    ] {
        let case = ResumptionCase {
            name,
            identity,
            before,
            after: REQUIRED,
            files,
            is_served,
        };
        case.check_reload(&scene).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_session_is_not_resumed_at_another_listener() {
    let scene = with_two_listeners().await;
    let optional = REQUIRED.replace("required", "optional");
    let identity = scene.client("client");
    let list = scene.clients.revocation_list(&[&identity]).unwrap();
    scene.scratch.write("revoking.pem", list).unwrap();
    let revoking = REQUIRED.replace("crl.pem", "revoking.pem");
    let client = Some(&identity);
    for (name, identity, before, after, is_served) in [
        ("none, required", None, "", REQUIRED, false),
        ("optional, required", None, &*optional, REQUIRED, false),
        ("another list", client, REQUIRED, &*revoking, false),
        ("the same files", client, REQUIRED, REQUIRED, true),
    ] {
        let case = ResumptionCase {
            name,
            identity,
            before,
            after,
            files: Vec::new(),
            is_served,
        };
        case.check_other_listener(&scene).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_session_is_resumed_only_until_its_client_certificate_expires() {
    // All certificates expire at the same time, so that the test does not wait for each of them.
    let clients = RESUMPTIONS.map(async |options| {
        let scene = ClientTlsScene::start(REQUIRED).await;
        let renewed = scene.client("brief");
        let mut valid_for = Duration::from_secs(10);
        let (sessions, expires_at) = loop {
            let expires_at = Instant::now() + valid_for;
            let identity = scene.clients.client("brief", valid_for).unwrap();
            let sessions = Sessions::new(&scene, options, Some(&identity));
            let begun = sessions.begin().await;
            if Instant::now() < expires_at {
                begun.unwrap();
                break (sessions, expires_at);
            }
            // The machine is so busy that the certificate may have expired during the probes. So
            // the next certificate is valid for longer.
            valid_for *= 2;
        };
        let has_expired = async || Instant::now() >= expires_at;
        eventually(valid_for + LIMIT, has_expired).await.unwrap();
        let is_refused = async || {
            let probe = sessions.offer(0).await;
            match probe.is_resumed() || probe.is_served() {
                true => Err(probe.0),
                false => Ok(()),
            }
        };
        eventually(LIMIT, is_refused).await.unwrap();
        // The client offers the same session, and presents a renewed certificate.
        let sessions = Sessions::new(&scene, options, Some(&renewed));
        let probe = sessions.offer(0).await;
        assert!(probe.is_served() && !probe.is_resumed(), "{}", probe.0);
    });
    join_all(clients).await;
}
