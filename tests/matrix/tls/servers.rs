//! Servers whose certificates Seawall must refuse, and a server that refuses Seawall. The driver of
//! each language gets a clear error, Seawall's log has the cause, and no document reaches a server.

use std::{sync::Arc, time::Duration};

use bson::doc;
use futures_util::{StreamExt as _, future::join_all, stream};
use seawall_mongod::{Mongod, Tls, create_first_user};
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    eventually::eventually,
    mongod::{Error, ROOT, ROOT_PASSWORD, mongod_path},
    process::Process,
    raw::{Login, RawClient},
    scratch::Scratch,
};
use tokio_rustls::rustls::ClientConfig;

use super::{
    DRIVERS_AT_A_TIME, Invalid, LOG_LIMIT, NEW_DRIVERS, OTHER_DRIVERS, must_fail_clearly, uri,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs the languages' tool chains: cargo test --test matrix -- --include-ignored"]
async fn drivers_get_a_clear_error_if_seawall_and_the_server_refuse_each_other() {
    let scratch = Scratch::create().unwrap();
    // The future is boxed, because it is larger than the lint `large_futures` allows.
    let mut servers = Box::pin(Servers::start(&scratch)).await;
    let faults = servers.faults();
    let starting = faults.iter().map(|fault| fault.serve(&scratch));
    let processes = join_all(starting).await;
    let invalid = |(fault, process): (&Fault, &Process)| Invalid {
        name: fault.name,
        uri: uri(process.address(), ""),
        words: fault.words,
    };
    let uris: Vec<_> = faults.iter().zip(&processes).map(invalid).collect();
    let languages = NEW_DRIVERS.iter().chain(&OTHER_DRIVERS);
    let checks = languages.map(async |language| {
        let program = language.prepare_tls().await;
        must_fail_clearly(*language, &program, uris.clone()).await;
    });
    let checks = stream::iter(checks).buffer_unordered(DRIVERS_AT_A_TIME);
    checks.collect::<Vec<()>>().await;
    for (fault, process) in faults.iter().zip(&processes) {
        fault.check_log(process).await;
    }
    for server in servers.all() {
        let count = doc! { "count": "things" };
        let count = server.administrator.command("tls", count).await.unwrap();
        assert_eq!(count.body.get_i32("n").unwrap(), 0);
    }
}

/// The host name in the certificates of the servers.
const HOST: &str = "127.0.0.1";

/// `inet_aton` converts this text to 127.0.0.1, but the certificates do not have this name.
const OTHER_HOST: &str = "127.0.0.0x1";

/// The error of each driver if Seawall refuses the certificate of the server.
const REFUSED_SERVER: &[&str] = &["seawall refuses its certificate"];

/// The error of each driver if the server requires a certificate from Seawall.
const REFUSED_SEAWALL: &[&str] = &["it asked for a certificate, and seawall has none"];

/// A reason for which Seawall must refuse a server, or a server must refuse Seawall.
struct Fault {
    name: &'static str,
    /// The port of the server, and the host by which Seawall knows it.
    port: u16,
    host: &'static str,
    /// TOML of the files in `deployment.tls`. `DIR` is replaced by the path of the certificates.
    files: &'static str,
    /// A part of the error in Seawall's log.
    cause: &'static str,
    /// Each driver's error must contain one of these texts of Seawall.
    words: &'static [&'static str],
}

const FILES: &str = "deployment.tls.ca_file = \"DIR/ca.pem\"\n";
const FOREIGN_FILES: &str = "deployment.tls.ca_file = \"DIR/foreign.pem\"\n";
const FILES_WITH_LIST: &str = "deployment.tls.ca_file = \"DIR/ca.pem\"\n\
                               deployment.tls.crl_file = \"DIR/crl.pem\"\n";

impl Fault {
    /// Starts Seawall in front of the server.
    async fn serve(&self, scratch: &Scratch) -> Process {
        let toml = format!(
            "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n\
             deployment.uri = \"mongodb://{}:{}/?tls=true\"\n{}",
            self.host,
            self.port,
            self.files.replace("DIR", scratch.path().to_str().unwrap())
        );
        let file = format!("{}.toml", self.name);
        Process::serve(&scratch.write(&file, toml).unwrap()).await
    }

    /// Waits until the log of Seawall names the cause.
    async fn check_log(&self, process: &Process) {
        let is_logged = async || {
            let lines = process.all_said("could not connect to a server");
            let mut errors = lines.iter().map(|line| line["fields"]["error"].to_string());
            errors.any(|error| error.contains(self.cause))
        };
        let logged = eventually(LOG_LIMIT, is_logged).await;
        logged.unwrap_or_else(|_| panic!("{}: {}", self.name, process.log()));
    }
}

/// Servers that require TLS. Several faults use the server `valid`, because these faults depend on
/// the configuration of Seawall.
struct Servers {
    valid: TlsServer,
    self_signed: TlsServer,
    expired: TlsServer,
    /// It requires a certificate from each client.
    demanding: TlsServer,
}

impl Servers {
    async fn start(scratch: &Scratch) -> Self {
        let authority = Authority::generate("authority").unwrap();
        let foreign = Authority::generate("foreign").unwrap();
        scratch.write("ca.pem", authority.pem()).unwrap();
        scratch.write("foreign.pem", foreign.pem()).unwrap();
        let identity = authority.server(&[HOST], &ECDSA).unwrap();
        let list = authority.revocation_list(&[&identity]).unwrap();
        scratch.write("crl.pem", list).unwrap();
        let trusting = authority.client_config(None).unwrap();
        let own = Identity::self_signed_server(&[HOST]).unwrap();
        let trusting_own = own.client_config().unwrap();
        scratch.write("own.pem", &own.certificate).unwrap();
        let administrator = authority.client("administrator", YEAR).unwrap();
        let presenting = authority.client_config(Some(&administrator)).unwrap();
        let start = |name, identity, ca, trusting| {
            TlsServer::start(scratch, name, identity, ca, None, trusting)
        };
        let (valid, self_signed, expired, demanding) = tokio::join!(
            start("valid", &identity, "ca.pem", &trusting),
            start("self-signed", &own, "own.pem", &trusting_own),
            TlsServer::start_and_expire(scratch, &authority),
            TlsServer::start(
                scratch,
                "demanding",
                &identity,
                "ca.pem",
                Some(&administrator),
                &presenting
            ),
        );
        Self {
            valid: valid.unwrap(),
            self_signed: self_signed.unwrap(),
            expired,
            demanding: demanding.unwrap(),
        }
    }

    fn faults(&self) -> [Fault; 6] {
        let fault = |name, server: &TlsServer, files, cause| Fault {
            name,
            port: server.mongod.port(),
            host: HOST,
            files,
            cause,
            words: REFUSED_SERVER,
        };
        [
            fault("foreign", &self.valid, FOREIGN_FILES, "UnknownIssuer"),
            fault("revoked", &self.valid, FILES_WITH_LIST, "Revoked"),
            Fault {
                host: OTHER_HOST,
                ..fault("other-host", &self.valid, FILES, "not valid for name")
            },
            fault("self-signed", &self.self_signed, FILES, "UnknownIssuer"),
            fault("expired", &self.expired, FILES, "certificate expired"),
            Fault {
                words: REFUSED_SEAWALL,
                ..fault("no-certificate", &self.demanding, FILES, "Seawall has none")
            },
        ]
    }

    fn all(&mut self) -> [&mut TlsServer; 4] {
        [
            &mut self.valid,
            &mut self.self_signed,
            &mut self.expired,
            &mut self.demanding,
        ]
    }
}

/// A mongod that requires TLS, and a connection of its administrator.
struct TlsServer {
    mongod: Mongod,
    administrator: RawClient,
}

impl TlsServer {
    /// Starts a mongod that presents the certificate of `identity`. The file `ca` has the
    /// certificate that `trusting` trusts. If there is a `client`, mongod requires a certificate
    /// from each client, and `client` is the one that the setup presents.
    async fn start(
        scratch: &Scratch,
        name: &str,
        identity: &Identity,
        ca: &str,
        client: Option<&Identity>,
        trusting: &Arc<ClientConfig>,
    ) -> Result<Self, Error> {
        let file = scratch.write(&format!("{name}.pem"), identity.pem());
        let client = client.map(|client| {
            let file = format!("client-of-{name}.pem");
            scratch.write(&file, client.pem()).unwrap()
        });
        let options = seawall_mongod::Options {
            auth: true,
            tls: Some(Tls {
                certificate_key_file: file.unwrap(),
                ca_file: scratch.join(ca),
                client_file: client,
            }),
            ..seawall_mongod::Options::default()
        };
        let mongod = Mongod::start(mongod_path().await?, options).await?;
        create_first_user(&mongod, ROOT, ROOT_PASSWORD).await?;
        let connecting = RawClient::connect_tls(mongod.address(), HOST, Arc::clone(trusting));
        let mut administrator = connecting.await?;
        let login = Login::new("admin", ROOT, ROOT_PASSWORD);
        assert!(administrator.login(&login).await?.is_authenticated());
        Ok(Self {
            mongod,
            administrator,
        })
    }

    /// Starts a mongod and waits until its certificate has expired. A mongod does not start with an
    /// expired certificate. The connection of the administrator stays open.
    async fn start_and_expire(scratch: &Scratch, authority: &Authority) -> Self {
        let trusting = authority.client_config(None).unwrap();
        for limit in EXPIRY_LIMITS {
            let identity = authority.short_lived_server(&[HOST], limit).unwrap();
            let starting = Self::start(scratch, "expired", &identity, "ca.pem", None, &trusting);
            let Ok(server) = starting.await else {
                continue;
            };
            let has_expired = async || {
                // In a resumed handshake, the server sends no certificate. So each attempt uses a
                // new configuration, which has no TLS session to resume.
                let new = authority.client_config(None).unwrap();
                let address = server.mongod.address();
                RawClient::connect_tls(address, HOST, new).await.is_err()
            };
            eventually(limit + LOG_LIMIT, has_expired).await.unwrap();
            return server;
        }
        panic!("each certificate had expired before its mongod was ready");
    }
}

/// Validity of the certificate that expires while its mongod runs. If the machine is so busy that
/// mongod is not ready within the first time, the next time is used.
const EXPIRY_LIMITS: [Duration; 3] = [
    Duration::from_secs(8),
    Duration::from_secs(40),
    Duration::from_secs(200),
];
