use rcgen::{CertificateParams, KeyPair};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, ConnectionTrafficSecrets, ContentType, RootCertStore, ServerConfig,
        crypto::{
            cipher::{MessageEncrypter, OutboundChunks, OutboundPlainMessage},
            ring::{cipher_suite::TLS13_CHACHA20_POLY1305_SHA256, default_provider},
        },
        pki_types::{PrivatePkcs8KeyDer, ServerName},
    },
};

use super::*;

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (near, accepted) = tokio::join!(connecting, listener.accept());
    (near.unwrap(), accepted.unwrap().0)
}

/// A TCP stream and a unix stream, each with its other end.
async fn pairs() -> [(Stream, Stream); 2] {
    let (tcp, far_tcp) = tcp_pair().await;
    let (unix, far_unix) = UnixStream::pair().unwrap();
    [
        (Stream::Tcp(tcp), Stream::Tcp(far_tcp)),
        (Stream::Unix(unix), Stream::Unix(far_unix)),
    ]
}

#[tokio::test]
async fn a_vectored_write_sends_all_pieces_in_order() {
    for (mut near, mut far) in pairs().await {
        assert!(near.is_write_vectored() && !near.is_encrypted());
        let pieces = [IoSlice::new(b"one "), IoSlice::new(b"message")];
        assert_eq!(near.write_vectored(&pieces).await.unwrap(), 11);
        let mut read = [0; 11];
        far.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"one message");
    }
}

#[tokio::test]
async fn a_peer_that_closes_its_sending_side_counts_as_disconnected() {
    for (near, mut far) in pairs().await {
        assert!(!near.peer_has_left());
        far.shutdown().await.unwrap();
        let readable = match &near {
            Stream::Tcp(near) => near.readable().await,
            Stream::Unix(near) => near.readable().await,
            Stream::Tls { .. } => panic!("the test uses no TLS"),
        };
        readable.unwrap();
        assert!(near.peer_has_left());
    }
}

/// The client's end of a connection with TLS 1.3. It can send any record.
struct TlsClient {
    socket: TcpStream,
    encrypter: Box<dyn MessageEncrypter>,
    /// The sequence number of the next record (RFC 8446, section 5.3).
    next_record: u64,
}

impl TlsClient {
    /// A record with this content.
    fn record(&mut self, content_type: ContentType, content: &[u8]) -> Vec<u8> {
        let message = OutboundPlainMessage {
            typ: content_type,
            version: ProtocolVersion::TLSv1_3,
            payload: OutboundChunks::Single(content),
        };
        let record = self.encrypter.encrypt(message, self.next_record).unwrap();
        self.next_record += 1;
        record.encode()
    }

    /// Records of 16 KiB with the beginning of a message of TLS itself: a "key update" with 65,535
    /// bytes (RFC 8446, section 4).
    fn incomplete_message(&mut self, records: usize) -> Vec<u8> {
        let mut message = vec![0; records << 14];
        message[..4].copy_from_slice(&[24, 0, 0xff, 0xff]);
        let parts = message.chunks(1 << 14);
        let records = parts.map(|part| self.record(ContentType::Handshake, part));
        records.collect::<Vec<_>>().concat()
    }
}

/// Both ends of a connection with TLS 1.3.
async fn tls_pair() -> (Stream, TlsClient) {
    let suite = TLS13_CHACHA20_POLY1305_SHA256;
    let mut provider = default_provider();
    provider.cipher_suites = vec![suite];
    let provider = Arc::new(provider);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.into())
        .unwrap();
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.enable_secret_extraction = true;
    let (near, far) = tcp_pair().await;
    let connector = TlsConnector::from(Arc::new(client));
    let connecting = connector.connect(ServerName::try_from("localhost").unwrap(), far);
    let accepting = TlsAcceptor::from(Arc::new(server)).accept(TlsSocket::from(near));
    let (accepted, connected) = tokio::join!(accepting, connecting);
    let (socket, session) = connected.unwrap().into_inner();
    let secrets = session.dangerous_extract_secrets().unwrap();
    let (next_record, ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets.tx else {
        panic!("the only cipher suite uses ChaCha20-Poly1305");
    };
    let algorithm = suite.tls13().unwrap().aead_alg;
    let client = TlsClient {
        socket,
        encrypter: algorithm.encrypter(key, iv),
        next_record,
    };
    (TlsStream::Server(accepted.unwrap()).into(), client)
}

#[tokio::test]
async fn a_tls_record_of_the_largest_size_may_arrive_in_two_parts() {
    let (mut near, mut far) = tls_pair().await;
    let data = vec![7; 1 << 14];
    let mut read = vec![0; data.len()];
    for _ in 0..3 {
        let record = far.record(ContentType::ApplicationData, &data);
        let (last, first) = record.split_last().unwrap();
        far.socket.write_all(first).await.unwrap();
        let parts = async {
            far.socket.write_u8(*last).await.unwrap();
        };
        let (whole, ()) = tokio::join!(near.read_exact(&mut read), parts);
        whole.unwrap();
        assert_eq!(read, data);
    }
}

/// The TLS library keeps the parts of a message of TLS itself until the message is complete.
#[tokio::test]
async fn a_peer_that_sends_32_kib_of_an_incomplete_tls_message_is_refused() {
    let (mut near, mut far) = tls_pair().await;
    let data = far.record(ContentType::ApplicationData, b"data");
    far.socket.write_all(&data).await.unwrap();
    near.read_exact(&mut [0; 4]).await.unwrap();
    let incomplete = far.incomplete_message(2);
    far.socket.write_all(&incomplete).await.unwrap();
    assert_refused(&mut near).await;
}

/// Checks that the next read fails because the peer has sent too many bytes without data.
async fn assert_refused(near: &mut Stream) {
    let error = near.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    let expected = "the peer has sent too many bytes without completing a TLS record with data";
    assert_eq!(error.to_string(), expected);
}

/// A read returns data and then finds the incomplete message in the bytes that have arrived.
#[tokio::test]
async fn a_peer_that_sends_48_kib_of_an_incomplete_tls_message_after_data_is_refused() {
    let (mut near, mut far) = tls_pair().await;
    let mut sent = far.record(ContentType::ApplicationData, b"data");
    sent.extend(far.incomplete_message(3));
    far.socket.write_all(&sent).await.unwrap();
    let mut read = vec![0; 1 << 16];
    assert_eq!(near.read(&mut read).await.unwrap(), 4);
    assert_refused(&mut near).await;
}
