//! Drivers connect to Seawall with and without TLS, and with valid and invalid certificates. One
//! server uses TLS, and another server does not. [`servers`] has servers with invalid certificates.

mod servers;

use std::{process::Stdio, time::Duration};

use bson::doc;
use futures_util::{StreamExt as _, stream};
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    eventually::eventually,
    mongod::{self, ROOT, ROOT_PASSWORD, RunCommand as _, Standalone},
    process::Process,
    scratch::Scratch,
    seawall::{Seawall, http, sum_of},
};
use serde_json::Value;
use tokio::process::Command;

use crate::{
    language::Language,
    program::{Program, output},
};

const MECHANISMS: [&str; 2] = ["SCRAM-SHA-1", "SCRAM-SHA-256"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Node: cargo test --test matrix -- --include-ignored"]
async fn python_and_node_connect_only_with_valid_certificates() {
    let scene = TlsScene::start().await;
    scene.check_all(&NEW_DRIVERS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the languages' tool chains: cargo test --test matrix -- --include-ignored"]
async fn java_drivers_and_go_drivers_and_old_drivers_connect_only_with_valid_certificates() {
    let scene = TlsScene::start().await;
    scene.check_all(&OTHER_DRIVERS).await;
}

/// The drivers that need no tool chain except Node.
const NEW_DRIVERS: [Language; 2] = [Language::Python, Language::Node];

/// The other drivers: those that need a tool chain, and old versions.
const OTHER_DRIVERS: [Language; 8] = [
    Language::PythonWith("3.13.0"),
    Language::PythonWith("4.15.5"),
    Language::NodeWith("3.7.4"),
    Language::NodeWith("4.17.2"),
    Language::Java,
    Language::JavaWith("4.0.6"),
    Language::Go,
    Language::GoWith("1.13.4"),
];

/// Four instances of Seawall: one for each combination of clients with or without TLS, and servers
/// with or without TLS. The directory `scratch` has the certificates.
struct TlsScene {
    scratch: Scratch,
    /// The two servers, each with two instances of Seawall in front of it. The second instance
    /// requires TLS from clients.
    deployments: Vec<(Standalone, [Seawall; 2])>,
}

impl TlsScene {
    async fn start() -> Self {
        let scratch = Scratch::create().unwrap();
        write_certificates(&scratch);
        let mut deployments = Vec::new();
        for is_tls in [true, false] {
            let options = mongod::Options {
                tls: is_tls,
                ..mongod::Options::with_auth()
            };
            let server = Standalone::start(options).await.unwrap();
            let uri = deployment(&server);
            let plain = Seawall::start(&uri).await;
            let toml = listener(&scratch, CERTIFICATES[0]);
            let secure = Seawall::start_configured(&uri, &toml).await;
            deployments.push((server, [plain, secure]));
        }
        let (server, _) = &deployments[0];
        let toml = format!(
            "admin.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\n{}",
            deployment(server),
            CERTIFICATES.map(|of| listener(&scratch, of)).concat()
        );
        scratch.write(REFUSING, toml).unwrap();
        Self {
            scratch,
            deployments,
        }
    }

    /// Checks these drivers, some of them at the same time, because a driver mostly waits for its
    /// time limits. Then asks both servers how many documents they have. So this function also
    /// notices documents that Seawall has forwarded but not counted.
    async fn check_all(&self, languages: &[Language]) {
        let checks = languages.iter().map(|language| self.check(*language));
        let checks = stream::iter(checks).buffer_unordered(DRIVERS_AT_A_TIME);
        checks.collect::<Vec<()>>().await;
        let expected = languages.len() * self.valid().len() / self.deployments.len();
        for (server, _) in &self.deployments {
            let administrator = server.administrator().await.unwrap();
            let count = administrator.run("tls", doc! { "count": "things" }).await;
            let found = count.unwrap().get_i32("n").unwrap();
            assert_eq!(usize::try_from(found).unwrap(), expected, "{languages:?}");
        }
    }

    /// Runs a driver with all connection strings. Checks that the driver connects with each valid
    /// one, and with no invalid one.
    async fn check(&self, language: Language) {
        let program = language.prepare_tls().await;
        let valid = self.valid();
        for (uri, outcome) in valid.iter().zip(run(&program, &valid).await) {
            assert_eq!(outcome["value"], 1, "{language:?} {uri}: {outcome}");
        }
        self.check_refusals(language, &program).await;
    }

    /// Runs a driver with connection strings that must fail. Checks that the log of Seawall has the
    /// causes of the failures, and that Seawall forwards no insert to the server. Each driver gets
    /// a new process of Seawall, because each listener logs each cause at most once a minute.
    async fn check_refusals(&self, language: Language, program: &Program) {
        let process = Process::serve(&self.scratch.join(REFUSING)).await;
        let uris = self.invalid(language, process.address());
        let expected = f64::from(u32::try_from(uris.len()).unwrap());
        must_fail_clearly(language, program, uris).await;
        for (cause, listeners) in causes(language) {
            let is_logged = async || {
                let lines = process.all_said("TLS handshake with a client failed");
                let of_cause = lines.iter().filter(|line| line["fields"]["cause"] == cause);
                of_cause.count() >= listeners
            };
            let logged = eventually(LOG_LIMIT, is_logged).await;
            logged.unwrap_or_else(|_| panic!("{language:?}: no {cause:?}: {}", process.log()));
        }
        let (_, metrics) = http(process.admin(), "GET", "/metrics", "").await;
        let count = |name: &str, label: &str| sum_of(&metrics, name, &[label]);
        let refused = count("seawall_client_connections_refused_total", "reason=\"tls\"");
        let gone = count("seawall_clients_gone_total", "stage=\"tls\"");
        assert!(
            refused + gone >= expected,
            "{language:?}: {refused} + {gone}"
        );
        let inserts = count("seawall_operations_total", "command=\"insert\"");
        assert_eq!(inserts, 0.0, "{language:?}");
    }

    /// The connection strings with which every driver must be able to connect.
    fn valid(&self) -> Vec<String> {
        let mut uris = Vec::new();
        for (_, [plain, secure]) in &self.deployments {
            for mechanism in MECHANISMS {
                let options = format!("&authMechanism={mechanism}{LONG}");
                uris.push(uri(plain.address(), &options));
                uris.push(self.uri(secure.address(), "127.0.0.1", "ca", Some("valid"), &options));
            }
        }
        uris
    }

    /// Connection strings with which the driver must fail to connect to these addresses of Seawall,
    /// one for each of [`CERTIFICATES`].
    fn invalid(&self, language: Language, addresses: &str) -> Vec<Invalid> {
        let addresses: Vec<_> = addresses.split(", ").collect();
        let [address, expired, self_signed] = addresses[..] else {
            panic!("expected three addresses: {addresses:?}");
        };
        let with = |identity| self.uri(address, "127.0.0.1", "ca", identity, "");
        let valid =
            |address, options: &str| self.uri(address, "127.0.0.1", "ca", Some("valid"), options);
        let mut uris = vec![
            ("no certificate", with(None)),
            ("expired", with(Some("expired"))),
            ("revoked", with(Some("revoked"))),
            ("self-signed", with(Some("self-signed"))),
            ("foreign", with(Some("foreign-client"))),
            ("forged", with(Some("forged"))),
            (
                "Seawall: foreign authority",
                self.uri(address, "127.0.0.1", "foreign", Some("valid"), ""),
            ),
            (
                "Seawall: other host",
                self.uri(address, "localhost", "ca", Some("valid"), ""),
            ),
            ("Seawall: expired", valid(expired, "")),
            ("Seawall: self-signed", valid(self_signed, "")),
            ("no TLS", uri(address, "")),
        ];
        if checks_revocation(language) {
            let list = self.scratch.join("crl-of-seawall.pem");
            let option = format!("&tlsCRLFile={}", list.display());
            uris.push(("Seawall: revoked", valid(address, &option)));
        }
        let invalid = |(name, uri)| Invalid {
            name,
            uri,
            words: clear_words(language, name),
        };
        uris.into_iter().map(invalid).collect()
    }

    fn uri(
        &self,
        address: &str,
        host: &str,
        authority: &str,
        identity: Option<&str>,
        options: &str,
    ) -> String {
        let file = |name: &str| self.scratch.join(&format!("{name}.pem"));
        let mut tls = format!("&tls=true&tlsCAFile={}", file(authority).display());
        if let Some(identity) = identity {
            let file = file(identity);
            tls.push_str(&format!("&tlsCertificateKeyFile={}", file.display()));
        }
        let address = address.replace("127.0.0.1", host);
        uri(&address, &format!("{tls}{options}"))
    }
}

/// A connection string with which a driver must fail to connect.
#[derive(Clone)]
struct Invalid {
    /// The reason of the failure.
    name: &'static str,
    uri: String,
    /// The driver's error must contain at least one of these texts. Before the comparison, the
    /// error is converted to lower case, and each underscore is replaced by a space. `…` matches
    /// any text. If the list is empty, the driver's error need not name the problem.
    words: &'static [&'static str],
}

impl Invalid {
    /// True if this error of a driver names the problem.
    fn is_clear(&self, error: &str) -> bool {
        let error = error.to_lowercase().replace('_', " ");
        let has = |word: &&str| word.split('…').all(|part| error.contains(part));
        self.words.is_empty() || self.words.iter().any(has)
    }
}

/// The causes that the log of Seawall must have after a driver was refused, and the number of
/// listeners that must log them.
fn causes(language: Language) -> Vec<(&'static str, usize)> {
    let mut causes = vec![
        ("no certificate", 1),
        ("certificate has expired", 1),
        ("certificate is revoked", 1),
        // The cause for a forged certificate: it names the authority as its issuer, but the
        // authority has not signed it.
        ("certificate cannot be used", 1),
        ("no TLS", 1),
    ];
    if !withholds_untrusted_certificates(language) {
        causes.push(("certificate of an unknown authority", 1));
    }
    // The drivers for Node verify Seawall's certificate after the handshake.
    if !matches!(language, Language::Node | Language::NodeWith(_)) {
        causes.push(("client refuses Seawall's certificate", CERTIFICATES.len()));
    }
    causes
}

/// The value of [`Invalid::words`] for the connection string with this name.
fn clear_words(language: Language, name: &str) -> &'static [&'static str] {
    match name {
        "no certificate" | "expired" | "revoked" | "self-signed" | "foreign" | "forged"
            if matches!(language, Language::NodeWith(_)) =>
        {
            // The old drivers for Node report every alert after the handshake like this, also with
            // a mongod.
            &["connection <monitor> to … closed"]
        }
        "no certificate" => &["certificate required"],
        "expired" => &["certificate expired", "expired certificate"],
        "revoked" => &["certificate revoked", "revoked certificate"],
        "self-signed" | "foreign" if withholds_untrusted_certificates(language) => {
            &["certificate required"]
        }
        "self-signed" | "foreign" => &["unknown ca"],
        "forged" => &["decrypt error", "error decrypting message"],
        "Seawall: foreign authority" | "Seawall: self-signed" if is_java(language) => {
            &["pkix path building failed", "valid certification path"]
        }
        "Seawall: self-signed" => &["self-signed", "self signed", "unknown authority"],
        "Seawall: expired" => &["certificate has expired", "certificateexpired"],
        "Seawall: revoked" => &["certificate revoked"],
        "Seawall: other host" if is_java(language) => {
            &["no subject alternative", "no name matching"]
        }
        "Seawall: foreign authority" | "Seawall: other host" => &["certif"],
        // A driver that does not use TLS only sees that Seawall closes the connection. The log of
        // Seawall has the cause.
        "no TLS" => &[],
        other => panic!("no words for {other}"),
    }
}

/// True if the driver sends its client certificate only when Seawall trusts an authority with the
/// name of the certificate's issuer. This is true for the drivers for Java and Go.
fn withholds_untrusted_certificates(language: Language) -> bool {
    is_java(language) || matches!(language, Language::Go | Language::GoWith(_))
}

/// True if the driver can check revocation lists with an option of its connection string. The other
/// drivers check none, so they accept a revoked certificate of Seawall.
fn checks_revocation(language: Language) -> bool {
    let is_python = matches!(language, Language::Python | Language::PythonWith(_));
    is_python || matches!(language, Language::Node)
}

fn is_java(language: Language) -> bool {
    matches!(language, Language::Java | Language::JavaWith(_))
}

/// The file with the configuration of a Seawall to which no invalid connection string can connect.
/// It has a listener for each of [`CERTIFICATES`].
const REFUSING: &str = "refusing.toml";

/// Number of drivers that a test checks at the same time.
const DRIVERS_AT_A_TIME: usize = 2;

/// Time limit for a line to reach the log.
const LOG_LIMIT: Duration = Duration::from_secs(20);

/// The addresses of Seawall, and the certificates that it presents there. Each certificate is for
/// its address only. The first one is valid.
const CERTIFICATES: [(&str, &str); 3] = [
    ("127.0.0.1", "server"),
    ("127.0.0.2", "server-expired"),
    ("127.0.0.3", "server-self-signed"),
];

/// Configuration of a listener with this address, which presents this certificate in `scratch`. It
/// requires TLS and a certificate from clients.
fn listener(scratch: &Scratch, (address, certificate): (&str, &str)) -> String {
    let file = |name: &str| scratch.join(&format!("{name}.pem"));
    format!(
        "[[listeners]]\n\
         address = \"{address}:0\"\n\
         tls.certificate_file = {0:?}\n\
         tls.key_file = {0:?}\n\
         tls.client_certificate = \"required\"\n\
         tls.client_ca_file = {1:?}\n\
         tls.client_crl_file = {2:?}\n",
        file(certificate),
        file("ca"),
        file("crl")
    )
}

/// Options of the connection string for connections that must succeed, even on a busy machine.
const LONG: &str = "&serverSelectionTimeoutMS=30000";

/// Time limits in milliseconds for connections that must fail. A driver keeps trying until the end
/// of the limit, so the first limit is short.
const FAILING_LIMITS_MS: [u32; 3] = [1_000, 5_000, 30_000];

fn uri(address: &str, options: &str) -> String {
    format!(
        "mongodb://{ROOT}:{ROOT_PASSWORD}@{address}/?authSource=admin&directConnection=true{options}"
    )
}

fn write_certificates(scratch: &Scratch) {
    let write = |name: &str, content: &str| scratch.write(&format!("{name}.pem"), content).unwrap();
    let authority = Authority::generate("authority").unwrap();
    let foreign = Authority::generate("foreign").unwrap();
    write("ca", &authority.pem());
    write("foreign", &foreign.pem());
    let identity = |identity: Identity, name: &str| {
        write(name, &identity.pem());
        identity
    };
    let hosts = CERTIFICATES.map(|(host, _)| [host]);
    let server = identity(authority.server(&hosts[0], &ECDSA).unwrap(), "server");
    let list = authority.revocation_list(&[&server]).unwrap();
    write("crl-of-seawall", &list);
    let expired = authority.expired_server(&hosts[1]).unwrap();
    identity(expired, "server-expired");
    let self_signed = Identity::self_signed_server(&hosts[2]).unwrap();
    identity(self_signed, "server-self-signed");
    identity(authority.client("valid", YEAR).unwrap(), "valid");
    identity(authority.expired_client("expired").unwrap(), "expired");
    identity(Identity::self_signed("self-signed").unwrap(), "self-signed");
    let client = foreign.client("foreign-client", YEAR).unwrap();
    identity(client, "foreign-client");
    // This authority has the name of the trusted one, but another key. So the drivers that compare
    // names (see [`withholds_untrusted_certificates`]) present its certificates too.
    let namesake = Authority::generate("authority").unwrap();
    identity(namesake.client("forged", YEAR).unwrap(), "forged");
    let revoked = identity(authority.client("revoked", YEAR).unwrap(), "revoked");
    write("crl", &authority.revocation_list(&[&revoked]).unwrap());
}

/// The connection string with which Seawall connects to this server. If the server has TLS, Seawall
/// presents a certificate to it.
fn deployment(server: &Standalone) -> String {
    let Some(certificates) = server.certificates() else {
        return server.uri();
    };
    format!(
        "mongodb://{}/?tls=true&tlsCAFile={}&tlsCertificateKeyFile={}",
        server.address(),
        certificates.ca_file().display(),
        certificates.client_file().display()
    )
}

/// Runs a driver with these connection strings. Checks that the driver connects with none of them,
/// and that its error names the problem.
///
/// On a busy machine, a driver can reach its time limit while its first connection attempt still
/// runs. The driver's error then says only that no server was found. So this function runs the
/// driver again with such a connection string and a longer limit.
async fn must_fail_clearly(language: Language, program: &Program, mut uris: Vec<Invalid>) {
    for (number, limit) in FAILING_LIMITS_MS.into_iter().enumerate() {
        let with_limit: Vec<String> = uris
            .iter()
            .map(|invalid| format!("{}&serverSelectionTimeoutMS={limit}", invalid.uri))
            .collect();
        let mut unclear = Vec::new();
        for (invalid, outcome) in uris.into_iter().zip(run(program, &with_limit).await) {
            let name = invalid.name;
            let error = outcome["error"].as_str().unwrap_or_default();
            assert!(!error.is_empty(), "{language:?} {name}: {outcome}");
            let is_last = number + 1 == FAILING_LIMITS_MS.len();
            if !invalid.is_clear(error) {
                assert!(!is_last, "{language:?} {name}: {error}");
                unclear.push(invalid);
            }
        }
        uris = unclear;
        if uris.is_empty() {
            return;
        }
    }
}

/// Runs the program with these connection strings. Returns one outcome for each.
async fn run(program: &Program, uris: &[String]) -> Vec<Value> {
    let Program::Command {
        command,
        environment,
    } = program
    else {
        panic!("expected an external program");
    };
    let (first, rest) = command.split_first().unwrap();
    let mut command = Command::new(first);
    command
        .args(rest)
        .args(uris)
        .envs(environment.iter().cloned());
    command.stdin(Stdio::null());
    let lines = output(&mut command).await;
    let outcomes: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(outcomes.len(), uris.len(), "{lines}");
    outcomes
}
