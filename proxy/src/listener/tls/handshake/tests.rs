use std::{
    net::SocketAddr,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use rcgen::{CertificateParams, KeyPair};
use seawall_transport::{Sharer, rustls_error};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::yield_now,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        AlertDescription, ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion,
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
        let cause = rustls_error(failed.error());
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

/// A part of the records of a TLS handshake message of 65,535 bytes. `kind` is the type of the
/// message (RFC 8446, section 4).
fn part_of_large_message(kind: u8, bytes: usize) -> Vec<u8> {
    let mut message = vec![0; bytes];
    message[..4].copy_from_slice(&[kind, 0, 0xff, 0xff]);
    let records = message.chunks(16 * 1024).map(|content| {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[22, 3, 3], &length[..], content].concat()
    });
    records.collect::<Vec<_>>().concat()
}

fn is_too_large(error: &io::Error) -> bool {
    rustls_error(error) == Some(&InvalidMessage::HandshakePayloadTooLarge.into())
}

/// rustls would keep up to 64 KiB of each message.
#[tokio::test]
async fn a_client_whose_first_tls_message_is_not_complete_after_16_kib_is_refused() {
    for (bytes, is_refused) in [(16 * 1024 - 100, false), (20 * 1024, true)] {
        let (listener, address) = listen().await;
        let (config, _) = configurations(&TLS13);
        let sending = async {
            let mut client = TcpStream::connect(address).await.unwrap();
            let message = part_of_large_message(1, bytes);
            client.write_all(&message).await.unwrap();
            client.shutdown().await.unwrap();
            client.read_to_end(&mut Vec::new()).await.unwrap();
        };
        let (error, ()) = tokio::join!(refusal(&listener, config, None), sending);
        let error = error.unwrap();
        assert_eq!(is_too_large(&error), is_refused, "{bytes}: {error}");
    }
}

/// With TLS 1.2, the client's certificates are not encrypted.
#[tokio::test]
async fn a_client_whose_tls_handshake_is_not_complete_after_32_further_kib_is_refused() {
    for (bytes, is_refused) in [(31 * 1024, false), (36 * 1024, true)] {
        let (listener, address) = listen().await;
        let (config, client_config) = configurations(&TLS12);
        let name = ServerName::try_from("localhost").unwrap();
        let mut session = ClientConnection::new(client_config, name).unwrap();
        let sending = async {
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(&next_bytes(&mut session)).await.unwrap();
            // Seawall has read the first message when it replies.
            client.read_u8().await.unwrap();
            let message = part_of_large_message(16, bytes);
            client.write_all(&message).await.unwrap();
            if !is_refused {
                client.shutdown().await.unwrap();
            }
            // Seawall may reset the connection of a client that leaves.
            drop(client.read_to_end(&mut Vec::new()).await);
        };
        let (error, ()) = tokio::join!(refusal(&listener, config, None), sending);
        let is_too_large = error.as_ref().is_some_and(is_too_large);
        assert_eq!(is_too_large, is_refused, "{bytes}: {error:?}");
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
    let expected = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);
    assert_eq!(rustls_error(&error), Some(&expected), "{error}");
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
