//! TLS handshakes: the targets that accept them, and clients that make them.

use std::{
    fs,
    future::poll_fn,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::{Pin, pin},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::thread::gettid;
use seawall_tests::{
    authority::{Authority, YEAR},
    scratch::Scratch,
};
use seawall_transport::connection::ServerAddress;
use tokio::{
    io::{AsyncRead as _, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, DigitallySignedStruct, HandshakeKind, SignatureScheme,
        client::{
            Resumption,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    },
};

use crate::process::{Process, free_port, haproxy_with, serve};

/// Time limit for one handshake.
const LIMIT: Duration = Duration::from_secs(10);

/// The algorithm of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// ECDSA with P-256.
    Ecdsa,
    /// RSA with 2,048 bits.
    Rsa,
}

impl Key {
    /// All algorithms, in the order in which the tables of results list them.
    pub const ALL: [Self; 2] = [Self::Ecdsa, Self::Rsa];

    /// The name of the algorithm in the tables of results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ecdsa => "ECDSA P-256",
            Self::Rsa => "RSA 2048",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Ecdsa => "ecdsa",
            Self::Rsa => "rsa",
        }
    }

    fn algorithm(self) -> &'static [&'static str] {
        match self {
            Self::Ecdsa => &["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
            Self::Rsa => &["rsa:2048"],
        }
    }

    fn scheme(self) -> SignatureScheme {
        match self {
            Self::Ecdsa => SignatureScheme::ECDSA_NISTP256_SHA256,
            Self::Rsa => SignatureScheme::RSA_PSS_SHA256,
        }
    }
}

/// A process that accepts TLS handshakes, and also clients without TLS.
#[derive(Debug)]
pub struct TlsTarget {
    /// The name of the target in the tables of results.
    pub name: String,
    /// The address for clients without TLS.
    pub plain: SocketAddr,
    /// The addresses for clients with TLS: one for each algorithm, in the order of [`Key::ALL`].
    tls: [SocketAddr; Key::ALL.len()],
    /// True if the client ends the connection after the handshake, false if the target ends it.
    closes_first: bool,
    /// The certificate that clients send; `None` if the target requests none.
    client: Option<Arc<ClientIdentity>>,
    process: Process,
}

/// A certificate chain of a client and its private key.
#[derive(Debug)]
struct ClientIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The authority of the clients' certificates, and a client's certificate.
#[derive(Debug)]
pub struct ClientCertificates {
    /// The file with the authority's certificate.
    authority: PathBuf,
    identity: Arc<ClientIdentity>,
}

impl ClientCertificates {
    /// Creates an authority and a certificate with ECDSA keys.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn create(scratch: &Scratch) -> Self {
        let authority = Authority::generate("clients").expect("the authority is created");
        let client = authority.client("client", YEAR);
        let client = client.expect("the certificate is created");
        let file = scratch.write("clients.pem", authority.pem());
        let chain = CertificateDer::pem_slice_iter(client.certificate.as_bytes());
        let chain: Result<_, _> = chain.collect();
        let key = PrivateKeyDer::from_pem_slice(client.key.as_bytes());
        Self {
            authority: file.expect("the file can be written"),
            identity: Arc::new(ClientIdentity {
                chain: chain.expect("the certificate is in PEM format"),
                key: key.expect("the key is in PEM format"),
            }),
        }
    }
}

impl TlsTarget {
    /// The process id of the target.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM to the target, and waits until the target has ended.
    ///
    /// # Panics
    /// If the target reports a failure, or does not end within a minute.
    pub async fn stop(self) {
        self.process.stop().await;
    }

    /// The address for clients with TLS. At this address, Seawall has a certificate for each
    /// algorithm, and HAProxy has only the certificate for [`Key::Ecdsa`].
    pub fn tls(&self) -> SocketAddr {
        let [address, ..] = self.tls;
        address
    }
}

/// Converts a socket address to the type that [`crate::setup::Clients`] need to connect.
///
/// # Panics
/// Never: each socket address is also a valid server address.
pub fn address(address: SocketAddr) -> ServerAddress {
    address.to_string().parse().expect("the address is valid")
}

/// Creates a certificate and its key for each algorithm: once in two files, and once in a single
/// file for HAProxy.
///
/// # Panics
///
/// If `openssl` is not installed.
pub fn write_certificates(scratch: &Scratch) {
    for key in Key::ALL {
        let [certificate, secret] =
            [".pem", "-key.pem"].map(|end| scratch.join(&(key.file().to_owned() + end)));
        let mut command = Command::new("openssl");
        command
            .args(["req", "-x509", "-nodes", "-config", "/dev/null"])
            // With an extension, the certificate has version 3. rustls refuses older versions.
            .args(["-addext", "subjectAltName=DNS:localhost"])
            .args(["-subj", "/CN=localhost", "-newkey"])
            .args(key.algorithm())
            .arg("-keyout")
            .arg(&secret)
            .arg("-out")
            .arg(&certificate);
        let output = command.output().expect("openssl is installed");
        assert!(output.status.success(), "{output:?}");
        let read = |path: &Path| fs::read_to_string(path).expect("openssl wrote the file");
        let both = read(&certificate) + &read(&secret);
        let written = scratch.write(&format!("{}-both.pem", key.file()), both);
        written.expect("the file can be written");
    }
}

/// Starts a Seawall process. It accepts clients with TLS and clients without TLS at the same
/// address. With `certificates`, it requests a certificate from clients with TLS and verifies it.
///
/// # Panics
/// If Seawall cannot be started.
pub fn seawall(
    name: &str,
    binary: &Path,
    scratch: &Scratch,
    server: &str,
    certificates: Option<&ClientCertificates>,
) -> TlsTarget {
    let port = free_port().expect("a port is free");
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let files = |end: &str| {
        let path = |key: Key| {
            scratch
                .join(&(key.file().to_owned() + end))
                .display()
                .to_string()
        };
        Key::ALL.map(path).join(", ")
    };
    let mut command = serve(binary);
    command
        .args(["--listen", &address.to_string(), "--admin", "off"])
        .args(["--deployment", &format!("mongodb://{server}/")])
        .env("SEAWALL_LISTEN__TLS__CERTIFICATE_FILE", files(".pem"))
        .env("SEAWALL_LISTEN__TLS__KEY_FILE", files("-key.pem"))
        .env("SEAWALL_LISTEN__TLS__MODE", "prefer");
    if let Some(ClientCertificates { authority, .. }) = certificates {
        // Clients without TLS have no certificate, so certificates cannot be required.
        command
            .env("SEAWALL_LISTEN__TLS__CLIENT_CERTIFICATE", "optional")
            .env("SEAWALL_LISTEN__TLS__CLIENT_CA_FILE", authority);
    }
    TlsTarget {
        name: name.to_owned(),
        plain: address,
        tls: [address; Key::ALL.len()],
        closes_first: true,
        client: certificates.map(|of| Arc::clone(&of.identity)),
        process: Process::start(&mut command).expect("Seawall starts"),
    }
}

/// Starts HAProxy, which closes a TLS connection after its handshake. With `certificates`, it
/// requires and verifies a certificate of each client with TLS. `None` if HAProxy is not installed.
///
/// # Panics
/// If HAProxy cannot be started.
pub fn haproxy(
    name: &str,
    scratch: &Scratch,
    server: &str,
    certificates: Option<&ClientCertificates>,
) -> Option<TlsTarget> {
    let address = || SocketAddr::from(([127, 0, 0, 1], free_port().expect("a port is free")));
    let (plain, tls) = (address(), Key::ALL.map(|_| address()));
    let mut text = format!(
        "global\n  nbthread 2\n  maxconn 9950\n  ssl-default-bind-options ssl-min-ver TLSv1.3\n\
         defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 600s\n  \
         timeout server 600s\nlisten mongo\n  bind {plain}\n  server s {server}\n"
    );
    let verify =
        certificates.map(|of| format!(" verify required ca-file {}", of.authority.display()));
    let verify = verify.unwrap_or_default();
    for (key, address) in Key::ALL.into_iter().zip(tls) {
        let (name, file) = (
            key.file(),
            scratch.join(&format!("{}-both.pem", key.file())),
        );
        text += &format!(
            "frontend {name}\n  bind {address} ssl crt {}{verify}\n  tcp-request session reject\n",
            file.display()
        );
    }
    // Each process has a directory of its own for its configuration file.
    let directory = scratch.join(name);
    fs::create_dir(&directory).expect("the directory can be created");
    let process = haproxy_with(&directory, &text).expect("HAProxy starts")?;
    Some(TlsTarget {
        name: name.to_owned(),
        plain,
        tls,
        closes_first: false,
        client: certificates.map(|of| Arc::clone(&of.identity)),
        process,
    })
}

/// A load of TLS 1.3 handshakes in a closed loop: each client begins its next handshake when its
/// previous handshake has ended.
#[derive(Clone, Debug)]
pub struct Handshakes {
    address: SocketAddr,
    key: Key,
    is_resumed: bool,
    closes_first: bool,
    /// The certificate that the clients send; `None` if they send none.
    identity: Option<Arc<ClientIdentity>>,
    /// Number of clients; each makes one handshake after another.
    clients: usize,
}

impl Handshakes {
    /// Describes handshakes of `clients` clients with a target. If `is_resumed` is true, each
    /// client resumes the TLS session of an earlier handshake if it can. [`Self::start`] begins the
    /// handshakes.
    ///
    /// # Panics
    /// If `key` is not one of [`Key::ALL`].
    pub fn at(target: &TlsTarget, key: Key, is_resumed: bool, clients: usize) -> Self {
        let index = Key::ALL.iter().position(|of| *of == key);
        let address = index.and_then(|index| target.tls.get(index));
        Self {
            address: *address.expect("each algorithm has an address"),
            key,
            is_resumed,
            closes_first: target.closes_first,
            identity: target.client.clone(),
            clients,
        }
    }

    /// Starts the handshakes on a thread of their own.
    ///
    /// # Panics
    /// If the thread cannot be started.
    pub fn start(self) -> Running {
        let state = Arc::new(HandshakesState::default());
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name("handshakes".to_owned());
        let thread = thread.spawn(move || {
            yield_to_others();
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.expect("the runtime starts").block_on(async {
                let mut clients = JoinSet::new();
                for _ in 0..self.clients {
                    clients.spawn(yielding(self.clone().repeat(Arc::clone(&shared))));
                }
                clients.join_all().await;
            });
        });
        Running {
            state,
            thread: Some(thread.expect("the thread starts")),
        }
    }

    async fn repeat(self, state: Arc<HandshakesState>) {
        let config = self.config();
        while !state.stop.load(Ordering::Relaxed) {
            match timeout(LIMIT, self.one(&config)).await {
                Ok(Ok(kind)) => {
                    let is_resumed = kind == Some(HandshakeKind::Resumed);
                    let counter = match is_resumed {
                        true => &state.resumed,
                        false => &state.full,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Err(_)) | Err(_) => {
                    state.failed.fetch_add(1, Ordering::Relaxed);
                    // While the target starts, attempts may fail at once. The pause limits their
                    // number.
                    sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    /// Makes one handshake, and returns how long it took.
    ///
    /// # Panics
    /// If the handshake fails, or takes more than 10 seconds. Many drivers give up after this time.
    pub async fn time_one(&self) -> Duration {
        let config = self.config();
        let began = Instant::now();
        let done = timeout(LIMIT, self.one(&config)).await;
        let done = done.expect("the handshake ends within its time limit");
        done.expect("the handshake succeeds");
        began.elapsed()
    }

    async fn one(&self, config: &Arc<ClientConfig>) -> io::Result<Option<HandshakeKind>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::clone(config));
        let mut stream = connector.connect(name, stream).await?;
        if self.closes_first {
            // Seawall sends tickets after it has verified the client's certificate. So the count of
            // handshakes contains only those that Seawall has completed.
            first_ticket(&mut stream).await?;
            stream.shutdown().await?;
        }
        // To resume the TLS session later, the client needs the session tickets, which arrive
        // before the end of the connection. It does not matter how the target closes the
        // connection.
        drop(stream.read_to_end(&mut Vec::new()).await);
        Ok(stream.get_ref().1.handshake_kind())
    }

    /// The configuration of a client. It accepts every certificate, so the client uses little CPU
    /// time.
    fn config(&self) -> Arc<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider supports TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AcceptAll(self.key.scheme())));
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let (chain, key) = (identity.chain.clone(), identity.key.clone_key());
                let config = builder.with_client_auth_cert(chain, key);
                config.expect("the key belongs to the certificate")
            }
        };
        if !self.is_resumed {
            config.resumption = Resumption::disabled();
        }
        Arc::new(config)
    }
}

/// Waits until the client has got a session ticket. The target sends it after the handshake.
async fn first_ticket(stream: &mut TlsStream<TcpStream>) -> io::Result<()> {
    let mut byte = [0];
    poll_fn(|cx| {
        let mut buffer = ReadBuf::new(&mut byte);
        let read = Pin::new(&mut *stream).poll_read(cx, &mut buffer);
        if stream.get_ref().1.tls13_tickets_received() > 0 {
            return Poll::Ready(Ok(()));
        }
        // Tickets are no data, so `poll_read` returns only when the target closes the connection.
        read.map(|_| Err(io::ErrorKind::UnexpectedEof.into()))
    })
    .await
}

/// Gives this thread the scheduling policy `SCHED_IDLE`. The clients of a real storm run on other
/// machines, so the clients of this bench must not take CPU time from the measured processes. A
/// high niceness does not suffice, because the kernel lets such a thread finish its time slice of
/// some milliseconds.
fn yield_to_others() {
    let thread = gettid().as_raw_nonzero().to_string();
    let mut command = Command::new("chrt");
    let output = command.args(["--idle", "--pid", "0", &thread]).output();
    let output = output.expect("chrt (package util-linux) is installed");
    assert!(output.status.success(), "{output:?}");
}

/// Runs a task, and calls `yield_now` after each poll. Without this call, a thread of a measured
/// process sometimes waits for the CPU for some milliseconds after it has been woken. It probably
/// waits until the next tick of the scheduler.
async fn yielding<F: Future>(task: F) -> F::Output {
    let mut task = pin!(task);
    poll_fn(|cx| {
        let polled = task.as_mut().poll(cx);
        thread::yield_now();
        polled
    })
    .await
}

#[derive(Debug, Default)]
struct HandshakesState {
    stop: AtomicBool,
    full: AtomicU64,
    resumed: AtomicU64,
    failed: AtomicU64,
}

/// Numbers of handshakes since [`Handshakes::start`], by result.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandshakeCounts {
    /// Number of handshakes that succeeded without the resumption of a TLS session.
    pub full: u64,
    /// Number of handshakes that resumed a TLS session.
    pub resumed: u64,
    /// Number of handshakes that failed.
    pub failed: u64,
}

/// Running handshakes. Dropping the value ends them.
#[derive(Debug)]
pub struct Running {
    state: Arc<HandshakesState>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// The counts so far.
    pub fn counts(&self) -> HandshakeCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        HandshakeCounts {
            full: load(&self.state.full),
            resumed: load(&self.state.resumed),
            failed: load(&self.state.failed),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, its panic message has already been printed.
            drop(thread.join());
        }
    }
}

#[derive(Debug)]
struct AcceptAll(SignatureScheme);

impl ServerCertVerifier for AcceptAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![self.0]
    }
}
