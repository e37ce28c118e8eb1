//! Replaces the TLS files of Seawall while clients run operations, and measures how long each new
//! file takes to have an effect.

use std::{fs, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use bson::doc;
use seawall_tests::{
    authority::{Authority, ECDSA, Identity, YEAR},
    eventually::eventually,
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

/// Maximum time from the replacement of the TLS files until all of them have an effect: the new
/// certificate, the new certificate authority and the new revocation list.
const LIMIT: Duration = Duration::from_secs(30);

const NAME: &str = "localhost";

/// A Seawall process that requires client certificates and reads its TLS files again when they
/// change (`reload.watch`).
#[derive(Debug)]
pub struct RotationTestbed {
    scratch: Scratch,
    /// The certificate authority that issues Seawall's certificates.
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

impl RotationTestbed {
    /// Starts Seawall in front of `server`.
    ///
    /// # Panics
    /// If a certificate cannot be issued, or Seawall cannot be started.
    pub fn start(server: &str) -> Self {
        let port = free_port().expect("a port is free");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let scratch = Scratch::create().expect("the directory can be created");
        let authority = |name| Authority::generate(name).expect("an authority can be generated");
        let (servers, clients) = (authority("servers"), authority("clients"));
        let first = server_identity(&servers);
        write_server(&scratch, &first);
        replace(&scratch, "ca.pem", &clients.pem());
        replace(&scratch, "crl.pem", &list(&clients, &[]));
        let file = |name: &str| scratch.join(name).into_os_string();
        let mut command = serve(binary());
        command
            .args(["--listen", &address.to_string(), "--admin", "off"])
            .args(["--deployment", &format!("mongodb://{server}/")])
            .env("SEAWALL_RELOAD__WATCH", "true")
            .env("SEAWALL_LISTEN__TLS__CERTIFICATE_FILE", file("server.pem"))
            .env("SEAWALL_LISTEN__TLS__KEY_FILE", file("server-key.pem"))
            .env("SEAWALL_LISTEN__TLS__CLIENT_CERTIFICATE", "required")
            .env("SEAWALL_LISTEN__TLS__CLIENT_CA_FILE", file("ca.pem"))
            .env("SEAWALL_LISTEN__TLS__CLIENT_CRL_FILE", file("crl.pem"))
            .env("SEAWALL_LISTEN__TLS__CLOSE_REVOKED", "true");
        let process = Process::start(&mut command).expect("Seawall starts");
        Self {
            scratch,
            servers,
            clients,
            revoked: Vec::new(),
            address,
            _process: process,
        }
    }

    /// Connects `count` clients and runs finds on all connections. Replaces all files `rotations`
    /// times, and measures how long each replacement takes to have its effects.
    ///
    /// # Panics
    /// If an operation fails, or a rotation has no effect within 30 seconds.
    pub async fn measure(
        &mut self,
        clients: &Clients,
        count: usize,
        rotations: usize,
    ) -> Vec<RotationTimes> {
        let clients = clients.with(self.client_tls());
        let at = address(self.address);
        clients.wait_for_login(&at).await;
        let mut connections = clients.connect_all(&at, count).await;
        let mut times = Vec::new();
        for rotation in 0..u32::try_from(rotations).unwrap_or(u32::MAX) {
            // Seawall checks every 500 ms whether a file has changed. With varying delays, the
            // files are replaced at different times between two checks.
            let delay = Duration::from_millis(137 * u64::from(rotation % 4));
            let (during, after) = self.rotate_under_load(connections, delay).await;
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
    ) -> (RotationTimes, Vec<Connection>) {
        let count = connections.len();
        let load = Load {
            work: Work::Finds(SMALL),
            rate: Some(RATE),
            time: Duration::from_secs(3),
        };
        let (times, (outcome, connections)) =
            tokio::join!(self.rotate(delay), run_load(connections, load));
        assert!(
            outcome.operations >= u64::try_from(count).unwrap_or(u64::MAX),
            "expected at least one operation for each of {count} clients, got {}",
            outcome.operations
        );
        (times, connections)
    }

    /// Replaces all files, and waits until each change has an effect.
    async fn rotate(&mut self, delay: Duration) -> RotationTimes {
        let bad = client_identity(&self.clients);
        let mut closed = self.connect(&bad).await.expect("the client is served");
        self.revoked.push(bad);
        let other = Authority::generate("other clients").expect("an authority can be generated");
        let server = server_identity(&self.servers);
        let revoked: Vec<_> = self.revoked.iter().collect();
        let lists = list(&self.clients, &revoked) + &list(&other, &[]);
        sleep(delay).await;
        write_server(&self.scratch, &server);
        let authorities = self.clients.pem() + &other.pem();
        replace(&self.scratch, "ca.pem", &authorities);
        replace(&self.scratch, "crl.pem", &lists);
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

fn write_server(scratch: &Scratch, identity: &Identity) {
    replace(scratch, "server.pem", &identity.certificate);
    replace(scratch, "server-key.pem", &identity.key);
}

/// Replaces a file by a rename, so that no reader sees a partly written file.
fn replace(scratch: &Scratch, name: &str, content: &str) {
    let written = scratch.write("next", content);
    let written = written.expect("the file can be written");
    fs::rename(written, scratch.join(name)).expect("the file can be renamed");
}
