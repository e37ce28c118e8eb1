//! TLS for clients: chooses Seawall's certificate by host name, verifies the clients' certificates,
//! and resumes TLS sessions.
//!
//! rustls verifies a client's certificate in a full handshake, but not when a client resumes a TLS
//! session. So tickets, with which clients resume sessions, belong to a *generation*: all TLS
//! configurations that verify clients in the same way. A ticket of another generation leads to a
//! full handshake, and so does a ticket whose client certificate has expired. When a session is
//! resumed, Seawall verifies the client's certificate again: the revocation list of its issuer may
//! have expired since the full handshake, and then the client must be refused. See
//! `docs/decisions/0017-tls-tickets.md`.

mod certificates;
mod failure;
mod resumption;
mod sniff;
mod verifier;

use std::{io, sync::Arc};

use seawall_transport::{AuthorityWithoutList, CertificateExpiry, Pem, peer_has_left};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::watch};
use tokio_rustls::{
    LazyConfigAcceptor, StartHandshake, TlsAcceptor,
    rustls::{
        self, ConfigBuilder, HandshakeKind, ServerConfig, ServerConnection, WantsVerifier,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, UnixTime},
        server::{Acceptor, NoClientAuth, danger::ClientCertVerifier},
    },
    server::TlsStream,
};

pub use self::certificates::ServerTlsError;
use self::{
    certificates::Certificates,
    resumption::{ExpiringSessions, Resumption},
    verifier::{ChainVerifier, ConnectedVerifier, Verifier},
};
pub(crate) use self::{
    failure::{FailedHandshake, NotTls},
    sniff::begins_with_tls,
    verifier::ClientCertificates,
};
use crate::limits::{HandshakeLine, Heavy};

/// The settings of TLS for clients, with the contents of the files that the settings name.
#[derive(Debug)]
pub(crate) struct TlsSettings<'a> {
    /// Seawall's certificate chains, each with its private key.
    pub(crate) certificates: Vec<(Pem<'a>, Pem<'a>)>,
    /// True if clients may connect without TLS.
    pub(crate) allows_plain: bool,
    /// How clients' certificates are verified; `None` if they are not requested.
    pub(crate) client_certificates: Option<ClientCertificates<'a>>,
    /// True if this configuration closes connected clients whose certificate is revoked or comes
    /// from an authority that is not trusted.
    pub(crate) closes_revoked: bool,
}

/// TLS for clients, set up from one [`TlsSettings`].
pub(crate) struct ClientTls {
    config: HandshakeConfig,
    verifier: Option<Arc<Verifier>>,
    resumption: Resumption,
    allows_plain: bool,
    /// Finds connected clients that this configuration closes; `None` if it closes none.
    connected: Option<ConnectedVerifier>,
    expiries: Vec<CertificateExpiry>,
}

/// The configuration of handshakes.
enum HandshakeConfig {
    /// Certificates of clients are not requested, so all handshakes use one configuration.
    Shared(Arc<ServerConfig>),
    /// Each handshake needs a configuration of its own, which remembers when the client's
    /// certificate expires.
    PerHandshake {
        builder: ConfigBuilder<ServerConfig, WantsVerifier>,
        certificates: Arc<Certificates>,
        verifier: Arc<ChainVerifier>,
    },
}

/// The library for cryptography. See `docs/decisions/0009-tls-provider.md`.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The current time, in seconds since the Unix epoch.
fn now() -> i64 {
    i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX)
}

impl ClientTls {
    /// Creates the TLS configuration. Clients can resume TLS sessions of `earlier` if `earlier`
    /// verifies clients in the same way.
    ///
    /// # Errors
    /// See [`ServerTlsError`].
    pub(crate) fn new(
        settings: &TlsSettings<'_>,
        earlier: Option<&Self>,
    ) -> Result<Self, ServerTlsError> {
        let (certificates, mut expiries) = certificates::load(&settings.certificates)?;
        let certificates = Arc::new(certificates);
        let verifier = settings.client_certificates.as_ref();
        let verifier = verifier.map(Verifier::new).transpose()?.map(Arc::new);
        if let Some(verifier) = &verifier {
            expiries.extend_from_slice(verifier.expiries());
        }
        let closing = verifier.as_ref().filter(|_| settings.closes_revoked);
        let connected = closing.map(|verifier| verifier.for_connected());
        let same = earlier.filter(|earlier| earlier.verifier == verifier);
        let resumption = match same {
            Some(earlier) => earlier.resumption.clone(),
            None => Resumption::new().map_err(ServerTlsError::Setup)?,
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(ServerTlsError::Setup)?;
        let config = match &verifier {
            None => HandshakeConfig::Shared(server_config(
                builder,
                Arc::new(NoClientAuth),
                certificates,
                resumption.clone(),
            )),
            Some(verifier) => HandshakeConfig::PerHandshake {
                builder,
                certificates,
                verifier: verifier.for_handshakes(),
            },
        };
        Ok(Self {
            config,
            verifier,
            resumption,
            allows_plain: settings.allows_plain,
            connected: connected.transpose()?,
            expiries,
        })
    }

    /// The configuration of one handshake.
    fn handshake_config(&self) -> Arc<ServerConfig> {
        let (builder, certificates, verifier) = match &self.config {
            HandshakeConfig::Shared(config) => return Arc::clone(config),
            HandshakeConfig::PerHandshake {
                builder,
                certificates,
                verifier,
            } => (builder, certificates, verifier),
        };
        let sessions = ExpiringSessions::new(Arc::clone(verifier), self.resumption.clone());
        let sessions = Arc::new(sessions);
        server_config(
            builder.clone(),
            sessions.clone(),
            Arc::clone(certificates),
            Resumption {
                tickets: sessions.clone(),
                sessions,
            },
        )
    }

    /// When each certificate and each revocation list expires: Seawall's own certificates, and the
    /// certificates and revocation lists with which Seawall verifies clients.
    pub(crate) fn expiries(&self) -> &[CertificateExpiry] {
        &self.expiries
    }

    /// The certificate authorities that have no current revocation list. Seawall refuses clients
    /// with certificates of these authorities. Empty if no revocation list is configured, because
    /// revocation is then not checked.
    pub(crate) fn authorities_without_list(&self) -> Vec<AuthorityWithoutList> {
        let verifier = self.verifier.as_ref();
        let found = verifier.map(|verifier| verifier.authorities_without_list());
        found.unwrap_or_default()
    }

    /// True if clients may connect without TLS.
    pub(super) fn allows_plain(&self) -> bool {
        self.allows_plain
    }

    /// Performs the handshake of a client on threads of low priority. Returns `None` if the client
    /// disconnected while its handshake waited.
    ///
    /// A client may wait with its first message, and a reload may replace this configuration in the
    /// meantime. So the handshake uses the configuration that `current` has when the message
    /// arrives. If TLS has been switched off by then, the handshake uses `self`.
    ///
    /// # Errors
    /// If the handshake fails, or the certificate of a resumed session is no longer valid.
    pub(crate) async fn accept(
        self: Arc<Self>,
        current: watch::Receiver<Option<Arc<Self>>>,
        stream: TcpStream,
        heavy: Heavy<'_>,
    ) -> Result<Option<TlsStream<TcpStream>>, FailedHandshake> {
        // A handshake that has begun stays on its thread, which may not get a core for a long time.
        // So a handshake begins only when its client has sent something.
        until_heard(&stream).await?;
        // A socket belongs to the runtime that waits for its events. So the socket moves to the
        // runtime of the handshakes and back.
        let socket = stream.into_std()?;
        let choose = move || {
            let tls = current.borrow().clone().unwrap_or(self);
            (tls.handshake_config(), tls.verifier.clone())
        };
        let accepting = heavy.handshake(|line| accept(socket, line, choose));
        let Some(accepted) = accepting.await? else {
            return Ok(None);
        };
        // `tokio-rustls` cannot wrap a TLS session whose handshake is finished. So a new session is
        // created and then replaced by the finished one.
        let stream = TcpStream::from_std(accepted.socket)?;
        let session = accepted.session;
        let acceptor = TlsAcceptor::from(accepted.config);
        let stream = acceptor.accept_with(stream, |new| *new = session).await?;
        Ok(Some(stream))
    }

    /// True if this configuration closes connected clients whose certificate is revoked or comes
    /// from an authority that is not trusted.
    pub(super) fn closes_revoked(&self) -> bool {
        self.connected.is_some()
    }

    /// True if this configuration closes a connected client with this certificate chain. `since` is
    /// the time of the client's handshake.
    pub(super) fn closes(&self, certificates: &[CertificateDer<'_>], since: UnixTime) -> bool {
        let connected = self.connected.as_ref();
        connected.is_some_and(|verifier| verifier.refuses(certificates, since))
    }

    /// True if this configuration refuses a certificate chain in a handshake.
    pub(crate) fn refuses(&self, certificates: &[CertificateDer<'_>]) -> bool {
        let verifier = self.verifier.as_ref();
        verifier.is_some_and(|verifier| verifier.verify(certificates).is_err())
    }
}

/// Creates a configuration for handshakes.
fn server_config(
    builder: ConfigBuilder<ServerConfig, WantsVerifier>,
    verifier: Arc<dyn ClientCertVerifier>,
    certificates: Arc<Certificates>,
    resumption: Resumption,
) -> Arc<ServerConfig> {
    let builder = builder.with_client_cert_verifier(verifier);
    let mut config = builder.with_cert_resolver(certificates);
    config.ticketer = resumption.tickets;
    config.session_storage = resumption.sessions;
    Arc::new(config)
}

/// Waits until the client has sent something, or has left. [`TcpStream::readable`] does not wait
/// after the header of the PROXY protocol: the header was read exactly to its end, and after such a
/// read, tokio still considers the socket readable.
async fn until_heard(stream: &TcpStream) -> io::Result<()> {
    stream.peek(&mut [0]).await.map(drop)
}

/// A client whose handshake has succeeded.
struct AcceptedSession {
    socket: std::net::TcpStream,
    session: ServerConnection,
    config: Arc<ServerConfig>,
}

/// Performs a handshake on the runtime of handshakes. `None` if the client has disconnected.
/// `choose` returns the configuration of the handshake, and the verifier with which the certificate
/// of a resumed session is verified again.
async fn accept(
    socket: std::net::TcpStream,
    line: HandshakeLine,
    choose: impl FnOnce() -> (Arc<ServerConfig>, Option<Arc<Verifier>>),
) -> Result<Option<AcceptedSession>, FailedHandshake> {
    let hello = first_message(TcpStream::from_std(socket)?).await?;
    line.run(Box::pin(finish(hello, choose))).await
}

/// Performs a handshake after its first message. Each poll may compute keys and signatures, because
/// a client may have to send further messages: a second `ClientHello`, or a certificate.
async fn finish(
    hello: StartHandshake<TcpStream>,
    choose: impl FnOnce() -> (Arc<ServerConfig>, Option<Arc<Verifier>>),
) -> Result<Option<AcceptedSession>, FailedHandshake> {
    if peer_has_left(&hello.io) {
        return Ok(None);
    }
    let (config, verifier) = choose();
    let accepting = hello.into_stream(Arc::clone(&config)).into_fallible();
    let accepted = accepting.await;
    let mut stream =
        accepted.map_err(|(error, stream)| FailedHandshake::new(error, Some(stream)))?;
    let verified = verify_resumed(verifier.as_deref(), stream.get_ref().1);
    if let Err(error) = verified {
        // After a handshake, rustls lets its callers send no other alert than `close_notify`. The
        // connection is closed in any case, so the result is not needed.
        drop(stream.shutdown().await);
        let (stream, _) = stream.into_inner();
        return Err(FailedHandshake::new(io::Error::other(error), Some(stream)));
    }
    let (stream, session) = stream.into_inner();
    Ok(Some(AcceptedSession {
        socket: stream.into_std()?,
        session,
        config,
    }))
}

/// Reads the first message of a handshake.
async fn first_message(stream: TcpStream) -> Result<StartHandshake<TcpStream>, FailedHandshake> {
    let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), stream);
    let hello = (&mut acceptor).await;
    hello.map_err(|error| {
        let error = NotTls::of_first_message(error);
        FailedHandshake::new(error, acceptor.take_io())
    })
}

/// Verifies the client's certificate again if the session was resumed.
fn verify_resumed(
    verifier: Option<&Verifier>,
    session: &ServerConnection,
) -> Result<(), rustls::Error> {
    match verifier {
        Some(verifier) if session.handshake_kind() == Some(HandshakeKind::Resumed) => {
            verifier.verify(session.peer_certificates().unwrap_or_default())
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use futures_util::FutureExt as _;
    use rcgen::{CertificateParams, KeyPair};
    use seawall_transport::Sharer;
    use tokio::{io::AsyncReadExt as _, net::TcpListener, task::yield_now, time::timeout};
    use tokio_rustls::{
        TlsConnector,
        rustls::{
            ClientConfig, ClientConnection, InvalidMessage, RootCertStore,
            SupportedProtocolVersion,
            pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
            server::{ClientHello, ResolvesServerCert},
            sign::CertifiedKey,
            version::{TLS12, TLS13},
        },
    };

    use super::*;
    use crate::limits::StepTurns;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Counts how often rustls asks for Seawall's certificate. Without a certificate, the handshake
    /// fails.
    #[derive(Debug, Default)]
    struct CountingResolver {
        count: AtomicUsize,
        certificate: Option<Arc<CertifiedKey>>,
    }

    impl ResolvesServerCert for CountingResolver {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.certificate.clone()
        }
    }

    /// The client's side of a TLS handshake, which has not sent anything yet.
    fn client_session() -> ClientConnection {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        ClientConnection::new(Arc::new(config), name).unwrap()
    }

    /// The bytes that this side of a TLS handshake sends next.
    fn next_bytes(session: &mut ClientConnection) -> Vec<u8> {
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// The first message of a TLS handshake.
    fn client_hello() -> Vec<u8> {
        next_bytes(&mut client_session())
    }

    /// Lets other tasks run until the condition is true.
    async fn until(is_true: impl Fn() -> bool) {
        let waiting = async {
            while !is_true() {
                yield_now().await;
            }
        };
        timeout(LIMIT, waiting).await.unwrap();
    }

    #[tokio::test]
    async fn no_cryptography_runs_for_a_client_that_left_while_its_tls_handshake_waited() {
        for (leaves, computed) in [(false, 1), (true, 0)] {
            let turns = StepTurns::new(1);
            let held = turns.first.take(Sharer::Local).await;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&client_hello()).await.unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            let socket = socket.into_std().unwrap();
            // The events of this copy show when the runtime knows that the client has left.
            let copy = TcpStream::from_std(socket.try_clone().unwrap()).unwrap();
            let resolver = Arc::new(CountingResolver::default());
            let shared = Arc::clone(&resolver);
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(shared);
            let line = HandshakeLine::new(turns.clone(), Sharer::Local);
            let accepting = tokio::spawn(accept(socket, line, || (Arc::new(config), None)));
            until(|| turns.first.waiting() == 1).await;
            let client = (!leaves).then_some(client);
            until(|| peer_has_left(&copy) == leaves).await;
            drop(held);
            let accepted = accepting.await.unwrap();
            assert_eq!(matches!(accepted, Ok(None)), leaves);
            assert_eq!(resolver.count.load(Ordering::Relaxed), computed);
            drop(client);
        }
    }

    /// The client offers only a key of a group that Seawall does not support, so Seawall requests a
    /// second `ClientHello`. Seawall computes its signature after the second `ClientHello`. Here,
    /// only one step of a handshake may run at a time, and the test occupies the only turn.
    #[tokio::test]
    async fn the_signature_after_a_second_client_hello_waits_while_another_handshake_step_runs() {
        let turns = StepTurns::new(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut session = client_session();
        client.write_all(&next_bytes(&mut session)).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let mut provider = ring::default_provider();
        provider.kx_groups = vec![ring::kx_group::SECP384R1];
        let (chain, key) = self_signed();
        let certificate = CertifiedKey::from_der(vec![chain], key, &provider).unwrap();
        let resolver = Arc::new(CountingResolver {
            certificate: Some(Arc::new(certificate)),
            ..CountingResolver::default()
        });
        let shared = Arc::clone(&resolver);
        let config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(shared);
        let line = HandshakeLine::new(turns.clone(), Sharer::Local);
        let choose = || (Arc::new(config), None);
        let accepting = tokio::spawn(accept(socket.into_std().unwrap(), line, choose));
        let mut reply = [0; 4096];
        let length = client.read(&mut reply).await.unwrap();
        let held = turns.later.take(Sharer::Local).await;
        let asked = resolver.count.load(Ordering::Relaxed);
        session.read_tls(&mut &reply[..length]).unwrap();
        session.process_new_packets().unwrap();
        client.write_all(&next_bytes(&mut session)).await.unwrap();
        until(|| turns.later.waiting() == 1).await;
        assert_eq!(resolver.count.load(Ordering::Relaxed), asked);
        drop(held);
        until(|| resolver.count.load(Ordering::Relaxed) > asked).await;
        drop(accepting);
    }

    /// Some load balancers send the header of the PROXY protocol before their client sends a byte.
    #[tokio::test]
    async fn a_tls_handshake_begins_at_the_first_byte_of_the_client_not_at_the_proxy_header() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut header = *b"PROXY UNKNOWN\r\n";
        client.write_all(&header).await.unwrap();
        socket.read_exact(&mut header).await.unwrap();
        let mut heard = pin!(until_heard(&socket));
        assert!(heard.as_mut().now_or_never().is_none());
        client.write_all(&client_hello()).await.unwrap();
        timeout(LIMIT, heard).await.unwrap().unwrap();
    }

    /// Performs a handshake with the next client of the listener, and closes the connection.
    /// Returns the error of the handshake.
    async fn refusal(
        listener: &TcpListener,
        config: Arc<ServerConfig>,
        verifier: Option<Arc<Verifier>>,
    ) -> Option<io::Error> {
        let (socket, _) = listener.accept().await.unwrap();
        let line = HandshakeLine::new(StepTurns::new(1), Sharer::Local);
        let socket = socket.into_std().unwrap();
        match Box::pin(accept(socket, line, || (config, verifier))).await {
            Ok(_) => None,
            Err(failed) => Some(failed.close().await),
        }
    }

    #[tokio::test]
    async fn a_client_with_an_invalid_first_tls_message_reads_an_alert_and_the_end_of_the_stream() {
        let resumption = Resumption::new().unwrap();
        let (config, _) = configurations(&resumption, &TLS13);
        // Messages of the protocol of MongoDB: the second one has the length 0x116, whose lowest
        // byte is also the content type of a TLS handshake. The other elements are TLS records with
        // an invalid length.
        for (header, is_tls) in [
            ([0x3a, 0, 0, 0, 1], false),
            ([0x16, 1, 0, 0, 1], false),
            ([0x16, 3, 1, 0, 0], true),
            ([0x16, 3, 1, 0xff, 0xff], true),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(address).await.unwrap();
            // Seawall has not read all these bytes when it refuses the client.
            let sent = [&header[..], &[0; 16 * 1024]].concat();
            client.write_all(&sent).await.unwrap();
            let reading = async {
                let mut read = Vec::new();
                client.read_to_end(&mut read).await.unwrap();
                drop(client);
                read
            };
            let refused = refusal(&listener, Arc::clone(&config), None);
            let (error, read) = tokio::join!(refused, reading);
            let error = error.unwrap();
            let has_no_tls = error.get_ref().is_some_and(|of| of.is::<NotTls>());
            assert_eq!(has_no_tls, !is_tls, "{header:?}: {error}");
            // An alert has content type 21.
            assert_eq!(read.first(), Some(&21), "{header:?}: {read:?}");
        }
    }

    #[tokio::test]
    async fn bytes_after_a_valid_tls_message_that_are_no_tls_record_are_a_protocol_error() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let resumption = Resumption::new().unwrap();
        let (config, _) = configurations(&resumption, &TLS13);
        let violating = async {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&client_hello()).await.unwrap();
            // Seawall has read the first message when it replies.
            client.read_u8().await.unwrap();
            client.write_all(&[0; 64]).await.unwrap();
            client.read_to_end(&mut Vec::new()).await.unwrap();
        };
        let (error, ()) = tokio::join!(refusal(&listener, config, None), violating);
        let error = error.unwrap();
        let cause = error.get_ref();
        let cause = cause.and_then(|cause| cause.downcast_ref::<rustls::Error>());
        let expected = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(cause, Some(&expected), "{error}");
    }

    /// A certificate for `localhost` and its key.
    fn self_signed() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        (certificate, PrivateKeyDer::Pkcs8(key))
    }

    /// Returns the configuration of a server and the configuration of a client for this version of
    /// TLS. Their connections can resume TLS sessions. The client has no certificate.
    fn configurations(
        resumption: &Resumption,
        version: &'static SupportedProtocolVersion,
    ) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
        let (certificate, key) = self_signed();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        server.ticketer = Arc::clone(&resumption.tickets);
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    }

    /// A verifier that refuses clients without a certificate.
    fn requiring() -> Arc<Verifier> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(Vec::new()).unwrap();
        let authority = params.self_signed(&key).unwrap().pem();
        Arc::new(Verifier::requiring(&authority))
    }

    /// Seawall refuses the client because the resumed TLS session has no client certificate.
    #[tokio::test]
    async fn a_client_that_is_refused_after_tls_resumption_gets_the_alert_close_notify() {
        for version in [&TLS12, &TLS13] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let resumption = Resumption::new().unwrap();
            let (server, client) = configurations(&resumption, version);
            let connector = TlsConnector::from(client);
            let name = ServerName::try_from("localhost").unwrap();
            let connect = async || {
                let stream = TcpStream::connect(address).await.unwrap();
                connector.connect(name.clone(), stream).await.unwrap()
            };
            // The first connection only gives the client a session to resume.
            let first = async {
                let mut stream = connect().await;
                // This read also reads the tickets, which TLS 1.3 sends after the handshake.
                drop(stream.read(&mut [0]).await);
                stream.get_ref().1.handshake_kind()
            };
            let accepted = refusal(&listener, Arc::clone(&server), None);
            let (error, kind) = tokio::join!(accepted, first);
            assert!(error.is_none(), "{version:?}: {error:?}");
            assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
            let second = async {
                let mut stream = connect().await;
                // Seawall has not read all these bytes when it refuses the client.
                stream.write_all(&[0; 16 * 1024]).await.unwrap();
                stream.flush().await.unwrap();
                // Without the alert `close_notify`, this read fails.
                let read = stream.read_to_end(&mut Vec::new()).await;
                assert_eq!(read.unwrap(), 0, "{version:?}");
                stream.shutdown().await.unwrap();
                stream
            };
            let refused = refusal(&listener, Arc::clone(&server), Some(requiring()));
            let (error, stream) = tokio::join!(refused, second);
            assert!(error.is_some(), "{version:?}");
            let (socket, session) = stream.get_ref();
            let kind = session.handshake_kind();
            assert_eq!(kind, Some(HandshakeKind::Resumed), "{version:?}");
            // A connection that was reset has an error.
            let reset = socket.take_error().unwrap();
            assert!(reset.is_none(), "{version:?}: {reset:?}");
        }
    }
}
