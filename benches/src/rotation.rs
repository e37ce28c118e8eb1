//! Replaces the TLS files of Seawall while clients run operations, and measures how long each new
//! file takes to have an effect. The last time, it also replaces the files for TLS to the server.

use std::{fs, iter, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use bson::doc;
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    certificates::Certificates,
    eventually::eventually,
    mongod::{Options, Standalone},
    process::binary,
    raw::RawClient,
    scratch::Scratch,
};
use seawall_transport::{
    Pem,
    connection::{Authorities, Connection, ServerTls, TlsSettings, Verification},
};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, pki_types::ServerName},
};

use crate::{
    handshakes::address,
    load::{Load, SMALL, Work, run as run_load},
    process::{Process, free_port, serve},
    setup::Clients,
};

/// Operations per second of all clients together.
pub const RATE: f64 = 1_000.0;

/// The goal: the maximum time from the replacement of the TLS files until new handshakes use them.
pub const GOAL: Duration = Duration::from_secs(2);

/// Time limit for new files to have an effect. It is far above the goal, so that a time above the
/// goal is measured too.
const LIMIT: Duration = Duration::from_secs(30);

const NAME: &str = "localhost";

/// A Seawall process that requires client certificates and reads its TLS files again when they
/// change (`reload.watch`). The server requires TLS and a certificate of Seawall.
#[derive(Debug)]
pub struct RotationTestbed {
    scratch: Scratch,
    server: Standalone,
    /// The clients that run operations. They have no TLS configuration yet.
    load: Clients,
    /// The certificate authority that issues Seawall's certificates for its clients.
    servers: Authority,
    /// The certificate authority that issues the clients' certificates.
    clients: Authority,
    /// The revoked certificates of clients.
    revoked: Vec<Identity>,
    address: SocketAddr,
    _process: Process,
}

/// The times from the replacement of the files until each change has an effect.
#[derive(Clone, Copy, Debug)]
pub struct RotationTimes {
    /// Time until a new handshake gets the new certificate.
    pub certificate: Duration,
    /// Time until Seawall serves a client that has a certificate of a new authority.
    pub authority: Duration,
    /// Time until Seawall closes the connection of a client whose certificate is on the new
    /// revocation list.
    pub revocation: Duration,
}

impl RotationTimes {
    /// Time until new handshakes use all new files.
    pub fn handshakes(&self) -> Duration {
        self.certificate.max(self.authority)
    }
}

impl RotationTestbed {
    /// Starts a server, and Seawall in front of it.
    ///
    /// # Panics
    /// If a certificate cannot be issued, or a process cannot be started.
    pub async fn start() -> Self {
        let server = Standalone::start(Options {
            tls: true,
            requires_client_certificates: true,
            ..Options::with_auth()
        });
        let server = server.await.expect("a mongod starts");
        let root = server.client().expect("the driver accepts the options");
        let load = Clients::prepare(&root, &[SMALL]).await;
        let port = free_port().expect("a port is free");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let scratch = Scratch::create().expect("the directory can be created");
        let (servers, clients) = (authority("servers"), authority("clients"));
        write_identity(&scratch, &server_identity(&servers));
        replace(&scratch, "ca.pem", &clients.pem());
        replace(&scratch, "crl.pem", &list(&clients, &[]));
        write_server_files(&scratch, certificates(&server), None);
        let file = |name: &str| scratch.join(name).into_os_string();
        let mut command = serve(binary());
        command
            .args(["--listen", &address.to_string(), "--admin", "off"])
            .arg("--deployment")
            .arg(format!("mongodb://{}/?tls=true", server.address()))
            .env("SEAWALL_RELOAD__WATCH", "true")
            .env("SEAWALL_LISTEN__TLS__CERTIFICATE_FILE", file("server.pem"))
            .env("SEAWALL_LISTEN__TLS__KEY_FILE", file("server-key.pem"))
            .env("SEAWALL_LISTEN__TLS__CLIENT_CERTIFICATE", "required")
            .env("SEAWALL_LISTEN__TLS__CLIENT_CA_FILE", file("ca.pem"))
            .env("SEAWALL_LISTEN__TLS__CLIENT_CRL_FILE", file("crl.pem"))
            .env("SEAWALL_LISTEN__TLS__CLOSE_REVOKED", "true")
            .env("SEAWALL_DEPLOYMENT__TLS__CA_FILE", file("own-ca.pem"))
            .env("SEAWALL_DEPLOYMENT__TLS__CRL_FILE", file("own-crl.pem"))
            .env(
                "SEAWALL_DEPLOYMENT__TLS__CERTIFICATE_KEY_FILE",
                file("own.pem"),
            );
        let process = Process::start(&mut command).expect("Seawall starts");
        Self {
            scratch,
            server,
            load,
            servers,
            clients,
            revoked: Vec::new(),
            address,
            _process: process,
        }
    }

    /// Connects `count` clients and runs finds on all connections. Replaces the files for TLS with
    /// clients `rotations` times, and measures how long each replacement takes to have its effects.
    /// The last time, also replaces the files for TLS to the server, in the same moment.
    ///
    /// # Panics
    /// If an operation fails, a rotation has no effect within 30 seconds, or a client can connect
    /// with a revoked certificate.
    pub async fn measure(&mut self, count: usize, rotations: usize) -> Vec<RotationTimes> {
        let clients = self.load.with(self.client_tls());
        let at = address(self.address);
        clients.wait_for_login(&at).await;
        let mut connections = clients.connect_all(&at, count).await;
        let mut times = Vec::new();
        for rotation in 0..u32::try_from(rotations).unwrap_or(u32::MAX) {
            // Seawall checks every 500 ms whether a file has changed. With varying delays, the
            // files are replaced at different times between two checks.
            let delay = Duration::from_millis(137 * u64::from(rotation % 4));
            let is_last = times.len() + 1 == rotations;
            let (during, after) = self.rotate_under_load(connections, delay, is_last).await;
            times.push(during);
            connections = after;
        }
        times
    }

    /// Replaces the files while finds run on all connections. [`run_load`] panics if a find fails.
    async fn rotate_under_load(
        &mut self,
        connections: Vec<Connection>,
        delay: Duration,
        has_server_files: bool,
    ) -> (RotationTimes, Vec<Connection>) {
        let count = connections.len();
        let load = Load {
            work: Work::Finds(SMALL),
            rate: Some(RATE),
            time: Duration::from_secs(3),
        };
        let (times, (outcome, connections)) = tokio::join!(
            self.rotate(delay, has_server_files),
            run_load(connections, load)
        );
        assert!(
            outcome.operations >= u64::try_from(count).unwrap_or(u64::MAX),
            "expected at least one operation for each of {count} clients, got {}",
            outcome.operations
        );
        (times, connections)
    }

    /// Replaces the files, and waits until each change has an effect. `has_server_files` is true if
    /// the files for TLS to the server are replaced too.
    async fn rotate(&mut self, delay: Duration, has_server_files: bool) -> RotationTimes {
        let bad = client_identity(&self.clients);
        let mut closed = self.connect(&bad).await.expect("the client is served");
        self.revoked.push(bad.clone());
        let other = authority("other clients");
        let server = server_identity(&self.servers);
        let revoked: Vec<_> = self.revoked.iter().collect();
        let lists = list(&self.clients, &revoked) + &list(&other, &[]);
        let authorities = self.clients.pem() + &other.pem();
        let other_servers = has_server_files.then(|| authority("other servers"));
        sleep(delay).await;
        write_identity(&self.scratch, &server);
        replace(&self.scratch, "ca.pem", &authorities);
        replace(&self.scratch, "crl.pem", &lists);
        if let Some(other) = &other_servers {
            write_server_files(&self.scratch, certificates(&self.server), Some(other));
        }
        let began = Instant::now();
        let other = client_identity(&other);
        let certificate = async {
            let is_new = async || self.presents(&server).await;
            let is_new = eventually(LIMIT, is_new).await;
            is_new.expect("new handshakes get the new certificate");
            began.elapsed()
        };
        let authority = async {
            let is_served = async || self.connect(&other).await;
            let is_served = eventually(LIMIT, is_served).await;
            drop(is_served.expect("a client of the new authority is served"));
            began.elapsed()
        };
        let revocation = async {
            let end = timeout(LIMIT, closed.read_reply()).await;
            let end = end.expect("the connection of the revoked client is closed");
            assert!(end.is_err(), "a reply without a request: {end:?}");
            began.elapsed()
        };
        let (certificate, authority, revocation) = tokio::join!(certificate, authority, revocation);
        let refused = self.connect(&bad).await;
        assert!(
            refused.is_none(),
            "a client with a revoked certificate connected"
        );
        RotationTimes {
            certificate,
            authority,
            revocation,
        }
    }

    /// Connects, and returns the client if Seawall replies to its first command. With TLS 1.3, the
    /// handshake alone can succeed for a client although Seawall refuses the client's certificate.
    async fn connect(&self, identity: &Identity) -> Option<RawClient> {
        let config = self.config(Some(identity));
        let client = RawClient::connect_tls(self.address, NAME, config).await;
        let mut client = client.ok()?;
        let reply = client.hello(doc! {}).await;
        reply.is_ok_and(|reply| reply.is_ok()).then_some(client)
    }

    /// True if Seawall presents the certificate of `server` in a new handshake.
    async fn presents(&self, server: &Identity) -> bool {
        let stream = TcpStream::connect(self.address).await;
        let stream = stream.expect("Seawall accepts connections");
        let name = ServerName::try_from(NAME).expect("the name is valid");
        let connector = TlsConnector::from(self.config(None));
        let stream = connector.connect(name, stream).await;
        stream.is_ok_and(|stream| {
            let presented = stream.get_ref().1.peer_certificates();
            server.is_presented_by(presented.unwrap_or_default())
        })
    }

    fn config(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        let config = self.servers.client_config(identity);
        config.expect("the TLS library accepts the certificates")
    }

    /// The TLS configuration of the clients that run operations.
    fn client_tls(&self) -> ServerTls {
        let (authority, client) = (self.servers.pem(), client_identity(&self.clients).pem());
        let pem = |content| Pem {
            path: Path::new("generated"),
            content,
        };
        let tls = ServerTls::new(&TlsSettings {
            authorities: Authorities::File(pem(&authority)),
            identity: Some(pem(&client)),
            revocation_lists: Vec::new(),
            verification: Verification::AnyHostName,
        });
        tls.expect("TLS can be set up")
    }
}

fn authority(name: &str) -> Authority {
    Authority::generate(name).expect("an authority can be generated")
}

fn server_identity(authority: &Authority) -> Identity {
    let identity = authority.server(&[NAME], &ECDSA);
    identity.expect("a certificate can be issued")
}

fn client_identity(authority: &Authority) -> Identity {
    let identity = authority.client("client", YEAR);
    identity.expect("a certificate can be issued")
}

fn list(authority: &Authority, revoked: &[&Identity]) -> String {
    let list = authority.revocation_list(revoked);
    list.expect("a revocation list can be issued")
}

/// The certificates of the server.
fn certificates(server: &Standalone) -> &Certificates {
    server.certificates().expect("the server requires TLS")
}

/// Replaces Seawall's certificate for clients.
fn write_identity(scratch: &Scratch, identity: &Identity) {
    replace(scratch, "server.pem", &identity.certificate);
    replace(scratch, "server-key.pem", &identity.key);
}

/// Replaces the files for TLS to the server. The files contain a new certificate of Seawall, the
/// server's authority, the authority `other`, and a revocation list of each authority.
fn write_server_files(scratch: &Scratch, server: &Certificates, other: Option<&Authority>) {
    let authorities = || iter::once(server.authority()).chain(other);
    let pem: String = authorities().map(Authority::pem).collect();
    let lists: String = authorities().map(|of| list(of, &[])).collect();
    replace(scratch, "own-ca.pem", &pem);
    replace(scratch, "own-crl.pem", &lists);
    let identity = client_identity(server.authority());
    replace(scratch, "own.pem", &identity.pem());
}

/// Replaces a file by a rename, so that no reader sees a partly written file.
fn replace(scratch: &Scratch, name: &str, content: &str) {
    let written = scratch.write("next", content);
    let written = written.expect("the file can be written");
    fs::rename(written, scratch.join(name)).expect("the file can be renamed");
}
