//! The handshake of one client.
//!
//! The data plane reads from the socket and writes to it. The cryptography runs in *steps*, on
//! threads of low priority, which do not use the socket: the runtime of the data plane has locks
//! for its sockets, and a thread of low priority may get no core for a long time while it holds a
//! lock. The delivery of a step's result also uses a lock of this runtime, but only for a moment.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use seawall_transport::peer_has_left;
use tokio::{net::TcpStream, time::sleep};
use tokio_rustls::{
    LazyConfigAcceptor, StartHandshake, TlsAcceptor,
    rustls::{
        self, HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection,
        server::{Accepted, AcceptedAlert, Acceptor},
    },
    server::TlsStream,
};

use super::{
    failure::{FailedHandshake, NotTls},
    verifier::Verifier,
};
use crate::limits::{HandshakeStep, Heavy};

/// Time between two checks whether a client with unread bytes has left.
const DEPARTURE_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of bytes that are read before a step. If the socket has fewer bytes, the step
/// follows when all of them have been read.
const MAX_READ_BYTES: usize = 16 * 1024;

/// Maximum number of bytes that a client sends to refuse Seawall's certificate. A TLS 1.3 alert
/// after the message `change_cipher_spec` has 30 bytes (RFC 8446, sections 5.2, 6 and D.4). The TLS
/// library of Java adds 16 bytes of padding. The messages that need much cryptography are longer.
const MAX_ALERT_BYTES: usize = 64;

/// Waits until the client has sent something, or has left. [`TcpStream::readable`] does not wait
/// after the header of the PROXY protocol: the header was read exactly to its end, and after such a
/// read, tokio still considers the socket readable.
pub(super) async fn until_heard(stream: &TcpStream) -> io::Result<()> {
    stream.peek(&mut [0]).await.map(drop)
}

/// Waits until the client has left.
async fn until_left(stream: &TcpStream) {
    let peeked = stream.peek(&mut [0]).await;
    if peeked.is_ok_and(|count| count > 0) {
        // Unread bytes hide the end of the stream from `peek`, but not from `peer_has_left`.
        while !peer_has_left(stream) {
            sleep(DEPARTURE_INTERVAL).await;
        }
    }
}

/// Performs a handshake. `choose` returns the configuration of the handshake, and the verifier with
/// which the certificate of a resumed session is verified again. This function calls `choose` when
/// the first message has arrived. Returns `None` if the client left before a step ended.
pub(super) async fn accept(
    stream: TcpStream,
    heavy: Heavy<'_>,
    choose: impl FnOnce() -> (Arc<ServerConfig>, Option<Arc<Verifier>>),
) -> Result<Option<TlsStream<TcpStream>>, FailedHandshake> {
    let first = first_message(stream).await?;
    let (stream, (config, verifier)) = (first.io, choose());
    let begun = tokio::select! {
        biased;
        () = until_left(&stream) => return Ok(None),
        begun = begin(first.accepted, Arc::clone(&config), heavy) => begun,
    };
    let session = match begun {
        Ok(session) => session,
        Err((error, mut alert)) => {
            // The connection is closed in any case, so the result is not needed.
            drop(alert.write_all(&mut NonBlocking(&stream)));
            return Err(FailedHandshake::new(invalid(error), Some(stream)));
        }
    };
    let finished = finish(session, &stream, verifier, heavy).await;
    let session = match finished {
        Ok(Some(session)) => session,
        Ok(None) => return Ok(None),
        Err(error) => return Err(FailedHandshake::new(error, Some(stream))),
    };
    // `tokio-rustls` cannot wrap a TLS session whose handshake is finished. So a new session is
    // created and then replaced by the finished one.
    let acceptor = TlsAcceptor::from(config);
    let stream = acceptor.accept_with(stream, |new| *new = session).await?;
    Ok(Some(stream))
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

/// Processes the first message: computes keys and a signature.
async fn begin(
    accepted: Accepted,
    config: Arc<ServerConfig>,
    heavy: Heavy<'_>,
) -> Result<ServerConnection, (rustls::Error, AcceptedAlert)> {
    let step = heavy.handshake_step(HandshakeStep::First, move || {
        accepted.into_connection(config)
    });
    step.await
}

/// Exchanges messages until the handshake is finished. A step processes the bytes of a read if they
/// may need much cryptography, for example for a certificate of the client, or after a second
/// `ClientHello`. Otherwise, this task processes them. Returns `None` if the client left before a
/// step ended.
async fn finish(
    mut session: ServerConnection,
    stream: &TcpStream,
    verifier: Option<Arc<Verifier>>,
    heavy: Heavy<'_>,
) -> io::Result<Option<ServerConnection>> {
    write(&mut session, stream).await?;
    while session.is_handshaking() {
        let read_bytes = read(&mut session, stream).await?;
        let processed;
        if expects_only_finished(&session, verifier.as_deref()) {
            processed = process(&mut session, None);
        } else {
            let verifier = verifier.clone();
            let step = heavy.handshake_step(HandshakeStep::Later, move || {
                let processed = process(&mut session, verifier.as_deref());
                (session, processed)
            });
            (session, processed) = tokio::select! {
                biased;
                // A client may leave after an alert. The alert is processed, because it says why
                // the client has left.
                () = until_left(stream), if read_bytes > MAX_ALERT_BYTES => return Ok(None),
                done = step => done,
            };
        }
        if let Err(error) = processed {
            // Sends the alert. The connection is closed in any case, so the result is not needed.
            drop(write(&mut session, stream).now_or_never());
            return Err(invalid(error));
        }
        write(&mut session, stream).await?;
    }
    Ok(Some(session))
}

/// True if only the message `Finished` of TLS 1.3 is missing (RFC 8446, section 4.4.4). Its
/// processing takes some ten microseconds, hardly more than it takes to send a step to another
/// thread.
fn expects_only_finished(session: &ServerConnection, verifier: Option<&Verifier>) -> bool {
    let has_certificate_request = verifier.is_some();
    let is_retried = session.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
    let is_tls13 = session.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    is_tls13 && !has_certificate_request && !is_retried
}

/// Processes the messages that have arrived. When the handshake is finished, verifies the client's
/// certificate again if the session was resumed.
fn process(
    session: &mut ServerConnection,
    verifier: Option<&Verifier>,
) -> Result<(), rustls::Error> {
    session.process_new_packets()?;
    let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    match verifier {
        Some(verifier) if is_resumed && !session.is_handshaking() => {
            let verified = verifier.verify(session.peer_certificates().unwrap_or_default());
            if verified.is_err() {
                // After a handshake, rustls lets its callers send no other alert.
                session.send_close_notify();
            }
            verified
        }
        Some(_) | None => Ok(()),
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads the bytes that the client has sent, at least one, into the session, which does not process
/// them yet. Returns the number of bytes.
async fn read(session: &mut ServerConnection, stream: &TcpStream) -> io::Result<usize> {
    let mut read_bytes = 0;
    while read_bytes < MAX_READ_BYTES {
        match session.read_tls(&mut NonBlocking(stream)) {
            Ok(count @ 1..) => read_bytes += count,
            // The session first processes the bytes that have been read. If the error is not
            // `WouldBlock`, it occurs again in the next read.
            Ok(0) | Err(_) if read_bytes > 0 => break,
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(read_bytes)
}

/// Writes all bytes that the session has for the client.
async fn write(session: &mut ServerConnection, stream: &TcpStream) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(&mut NonBlocking(stream)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads from a socket and writes to it without waiting.
struct NonBlocking<'a>(&'a TcpStream);

impl Read for NonBlocking<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

impl Write for NonBlocking<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use rcgen::{CertificateParams, KeyPair};
    use seawall_transport::Sharer;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        task::yield_now,
        time::timeout,
    };
    use tokio_rustls::{
        TlsConnector,
        rustls::{
            AlertDescription, ClientConfig, ClientConnection, InvalidMessage, RootCertStore,
            SupportedProtocolVersion,
            crypto::ring,
            pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
            server::{ClientHello, ResolvesServerCert},
            sign::CertifiedKey,
            version::{TLS12, TLS13},
        },
    };

    use super::{
        super::{provider, resumption::Resumption},
        *,
    };
    use crate::limits::HeavyWork;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Counts how often rustls asks for Seawall's certificate. Checks that rustls asks on a thread
    /// of low priority. Without a certificate, the handshake fails.
    #[derive(Debug, Default)]
    struct CountingResolver {
        count: AtomicUsize,
        certificate: Option<Arc<CertifiedKey>>,
    }

    impl ResolvesServerCert for CountingResolver {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            assert_eq!(thread::current().name(), Some("seawall-tls"));
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

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        (listener, address)
    }

    /// Accepts a client. Returns the socket twice: the second one shows when the client has left,
    /// also while a handshake owns the first one.
    async fn accept_observed(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let (socket, _) = listener.accept().await.unwrap();
        let socket = socket.into_std().unwrap();
        let observed = socket.try_clone().unwrap();
        let [socket, observed] = [socket, observed].map(TcpStream::from_std);
        (socket.unwrap(), observed.unwrap())
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
    async fn no_cryptography_runs_for_a_client_that_left_before_its_tls_handshake_began() {
        // A client may send an alert before it closes its connection.
        for (more, leaves, computed) in [("", false, 1), ("", true, 0), ("alert", true, 0)] {
            let (listener, address) = listen().await;
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&client_hello()).await.unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            client.write_all(more.as_bytes()).await.unwrap();
            let client = (!leaves).then_some(client);
            until(|| peer_has_left(&socket) == leaves).await;
            let resolver = Arc::new(CountingResolver::default());
            let shared = Arc::clone(&resolver);
            let config = ServerConfig::builder_with_provider(provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(shared);
            let work = HeavyWork::new(1);
            let choose = || (Arc::new(config), None);
            let accepted = accept(socket, work.of(Sharer::Local), choose).await;
            assert_eq!(matches!(accepted, Ok(None)), leaves);
            assert_eq!(resolver.count.load(Ordering::Relaxed), computed);
            drop(client);
        }
    }

    /// A configuration that requests a second `ClientHello`, because the first one has only a key
    /// of a group that the configuration does not support. Seawall computes its signature after the
    /// second `ClientHello`, and then calls the resolver.
    fn retrying() -> (Arc<ServerConfig>, Arc<CountingResolver>) {
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
        (Arc::new(config), resolver)
    }

    #[tokio::test]
    async fn the_signature_after_a_second_client_hello_runs_on_a_thread_of_low_priority() {
        let (listener, address) = listen().await;
        let mut client = TcpStream::connect(address).await.unwrap();
        let mut session = client_session();
        client.write_all(&next_bytes(&mut session)).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let (config, resolver) = retrying();
        let work = HeavyWork::new(1);
        let choose = || (config, None);
        let accepting = accept(socket, work.of(Sharer::Local), choose);
        let greeting = async {
            let mut reply = [0; 4096];
            let length = client.read(&mut reply).await.unwrap();
            let asked = resolver.count.load(Ordering::Relaxed);
            session.read_tls(&mut &reply[..length]).unwrap();
            session.process_new_packets().unwrap();
            client.write_all(&next_bytes(&mut session)).await.unwrap();
            until(|| resolver.count.load(Ordering::Relaxed) > asked).await;
        };
        tokio::select! {
            accepted = accepting => panic!("the client never finishes: {:?}", accepted.map(drop)),
            () = greeting => {}
        }
    }

    /// The other steps of a handshake begin when the client has sent a further message. With
    /// certificates of clients, they are the most expensive steps.
    #[tokio::test]
    async fn no_cryptography_runs_for_a_client_that_left_before_a_later_step_of_its_handshake() {
        for leaves in [false, true] {
            let (listener, address) = listen().await;
            let mut client = TcpStream::connect(address).await.unwrap();
            let mut session = client_session();
            client.write_all(&next_bytes(&mut session)).await.unwrap();
            let (socket, observed) = accept_observed(&listener).await;
            let (config, resolver) = retrying();
            let work = HeavyWork::new(1);
            let choose = || (config, None);
            let mut accepting = Box::pin(accept(socket, work.of(Sharer::Local), choose));
            let mut reply = [0; 4096];
            let length = tokio::select! {
                _ = &mut accepting => panic!("the client has not sent its second message"),
                length = client.read(&mut reply) => length.unwrap(),
            };
            let asked = resolver.count.load(Ordering::Relaxed);
            session.read_tls(&mut &reply[..length]).unwrap();
            session.process_new_packets().unwrap();
            client.write_all(&next_bytes(&mut session)).await.unwrap();
            if leaves {
                drop(client);
                until(|| peer_has_left(&observed)).await;
                assert!(matches!(accepting.await, Ok(None)));
                assert_eq!(resolver.count.load(Ordering::Relaxed), asked);
            } else {
                tokio::select! {
                    _ = &mut accepting => panic!("the client never finishes"),
                    () = until(|| resolver.count.load(Ordering::Relaxed) > asked) => {}
                }
            }
        }
    }

    /// The alert says why the client has left.
    #[tokio::test]
    async fn the_alert_of_a_client_that_left_is_the_error_of_its_handshake() {
        for version in [&TLS12, &TLS13] {
            let (listener, address) = listen().await;
            let (server, _) = configurations(version);
            // This client trusts no authority, so it refuses Seawall's certificate.
            let client = ClientConfig::builder_with_provider(provider())
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
            let name = ServerName::try_from("localhost").unwrap();
            let mut session = ClientConnection::new(Arc::new(client), name).unwrap();
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&next_bytes(&mut session)).await.unwrap();
            let (socket, observed) = accept_observed(&listener).await;
            let work = HeavyWork::new(1);
            let choose = || (server, Some(requiring()));
            let mut accepting = Box::pin(accept(socket, work.of(Sharer::Local), choose));
            let refusing = async {
                let mut reply = [0; 4096];
                let mut is_accepted = true;
                while is_accepted {
                    let length = client.read(&mut reply).await.unwrap();
                    session.read_tls(&mut &reply[..length]).unwrap();
                    is_accepted = session.process_new_packets().is_ok();
                }
            };
            tokio::select! {
                _ = &mut accepting => panic!("the client has not sent its second message"),
                () = refusing => {}
            }
            client.write_all(&next_bytes(&mut session)).await.unwrap();
            drop(client);
            until(|| peer_has_left(&observed)).await;
            let failed = accepting.await.unwrap_err();
            let cause = failed.error().get_ref();
            let cause = cause.and_then(|cause| cause.downcast_ref::<rustls::Error>());
            let expected = rustls::Error::AlertReceived(AlertDescription::UnknownCA);
            assert_eq!(cause, Some(&expected), "{version:?}: {}", failed.error());
        }
    }

    /// Some load balancers send the header of the PROXY protocol before their client sends a byte.
    #[tokio::test]
    async fn a_tls_handshake_begins_at_the_first_byte_of_the_client_not_at_the_proxy_header() {
        let (listener, address) = listen().await;
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
        let work = HeavyWork::new(1);
        let accepting = accept(socket, work.of(Sharer::Local), || (config, verifier));
        match Box::pin(accepting).await {
            Ok(_) => None,
            Err(failed) => Some(failed.close().await),
        }
    }

    #[tokio::test]
    async fn a_client_with_an_invalid_first_tls_message_reads_an_alert_and_the_end_of_the_stream() {
        let (config, _) = configurations(&TLS13);
        // Messages of the protocol of MongoDB: the second one has the length 0x116, whose lowest
        // byte is also the content type of a TLS handshake. The other elements are TLS records with
        // an invalid length.
        for (header, is_tls) in [
            ([0x3a, 0, 0, 0, 1], false),
            ([0x16, 1, 0, 0, 1], false),
            ([0x16, 3, 1, 0, 0], true),
            ([0x16, 3, 1, 0xff, 0xff], true),
        ] {
            let (listener, address) = listen().await;
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
    async fn bytes_that_are_no_tls_record_are_a_protocol_error_after_a_valid_tls_message() {
        let (listener, address) = listen().await;
        let (config, _) = configurations(&TLS13);
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
        server.ticketer = Resumption::new().unwrap().tickets;
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        (Arc::new(server), Arc::new(client))
    }

    /// A client may send a command together with its last message of the handshake.
    #[tokio::test]
    async fn bytes_that_arrive_with_the_end_of_a_handshake_are_the_first_bytes_of_the_stream() {
        for version in [&TLS12, &TLS13] {
            let (listener, address) = listen().await;
            let (server, client) = configurations(version);
            let name = ServerName::try_from("localhost").unwrap();
            let mut session = ClientConnection::new(client, name).unwrap();
            // rustls encrypts these bytes when the client's side of the handshake is finished.
            session.writer().write_all(b"command").unwrap();
            let sending = async {
                let mut client = TcpStream::connect(address).await.unwrap();
                loop {
                    while session.wants_write() {
                        let bytes = next_bytes(&mut session);
                        client.write_all(&bytes).await.unwrap();
                    }
                    let mut reply = [0; 4096];
                    let length = client.read(&mut reply).await.unwrap();
                    if length == 0 {
                        break;
                    }
                    let mut reply = &reply[..length];
                    while !reply.is_empty() {
                        session.read_tls(&mut reply).unwrap();
                        session.process_new_packets().unwrap();
                    }
                }
            };
            let receiving = async {
                let (socket, _) = listener.accept().await.unwrap();
                let work = HeavyWork::new(1);
                let accepting = accept(socket, work.of(Sharer::Local), || (server, None));
                let mut stream = Box::pin(accepting).await.unwrap().unwrap();
                let mut read = [0; 7];
                stream.read_exact(&mut read).await.unwrap();
                read
            };
            let (read, ()) = tokio::join!(receiving, sending);
            assert_eq!(&read, b"command", "{version:?}");
        }
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
            let (listener, address) = listen().await;
            let (server, client) = configurations(version);
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
