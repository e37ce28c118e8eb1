//! Tests of TLS towards servers: authorities, resumption, the host name that a server receives, and
//! servers that ask for a client certificate.

use std::{path::Path, sync::atomic::Ordering, time::Duration};

use bson::rawdoc;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, SerialNumber, date_time_ymd,
};
use seawall_auth::NonceSource;
use seawall_wire::encode_op_msg_like;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::oneshot,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        AlertDescription, ServerConfig, SupportedProtocolVersion,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
        server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
        version::{TLS12, TLS13},
    },
};

use super::*;
use crate::connection::{Connector, EstablishError, ServerAddress};

const HOST: &str = "localhost";
const ADDRESS: &str = "127.0.0.1";
const LIMIT: Duration = Duration::from_secs(20);

/// The texts of [`CertificateRefusal`].
const MISSING: &str = "the server asked for a client certificate, and Seawall has none";
const EXPIRED: &str = "the server asked for a client certificate, and Seawall's has expired";
const POSSIBLE: &str = "the server asked for a client certificate, and may have refused Seawall's";

/// A certificate authority, and its certificate in PEM.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn generate(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// An empty revocation list.
    fn revocation_list(&self) -> String {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2025, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn file(&self) -> Authorities<'_> {
        Authorities::File(Pem {
            path: Path::new("ca.pem"),
            content: &self.pem,
        })
    }

    /// A [`ServerTls`] that trusts only this authority.
    fn tls(&self) -> ServerTls {
        trusting(self.file(), None).unwrap()
    }

    /// Like [`Self::tls`], but with a client certificate of this authority. The certificate is
    /// valid until the end of the given year.
    fn tls_with_certificate_until(&self, year: i32) -> ServerTls {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 12, 31);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let identity = Pem {
            path: Path::new("client.pem"),
            content: &format!("{}{}", certificate.pem(), key.serialize_pem()),
        };
        trusting(self.file(), Some(identity)).unwrap()
    }

    /// A server that has a certificate of this authority and supports only this version of TLS. It
    /// lets clients resume TLS sessions.
    fn server(&self, version: &'static SupportedProtocolVersion) -> TlsAcceptor {
        self.server_with(version, Arc::new(NoClientAuth))
    }

    /// Like [`Self::server`], but the server asks clients for a certificate. It also accepts
    /// clients without one.
    fn asking_server(&self, version: &'static SupportedProtocolVersion) -> TlsAcceptor {
        let roots = Arc::new(roots(self.file(), &mut Vec::new()).unwrap());
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
            .allow_unauthenticated()
            .build();
        self.server_with(version, verifier.unwrap())
    }

    fn server_with(
        &self,
        version: &'static SupportedProtocolVersion,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let names = [HOST, ADDRESS].map(str::to_owned);
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// A [`ServerTls`] that trusts these authorities and has this client certificate.
fn trusting(
    authorities: Authorities<'_>,
    identity: Option<Pem<'_>>,
) -> Result<ServerTls, TlsError> {
    ServerTls::new(&TlsSettings {
        authorities,
        identity,
        revocation_lists: Vec::new(),
        verification: Verification::Full,
    })
}

/// Connects to [`HOST`] once. Returns the result of the client, and the kind of handshake and the
/// host name that the server saw.
async fn connect(
    tls: &ServerTls,
    server: &TlsAcceptor,
) -> (io::Result<()>, Option<HandshakeKind>, Option<String>) {
    connect_to(HOST, tls, server).await
}

/// Like [`connect`], for any name of the server.
async fn connect_to(
    name: &str,
    tls: &ServerTls,
    server: &TlsAcceptor,
) -> (io::Result<()>, Option<HandshakeKind>, Option<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = server.accept(stream).await.unwrap();
        // A client that refuses the certificate closes the connection, so the write may fail.
        drop(stream.write_all(b"x").await);
        drop(stream.flush().await);
        let (_, session) = stream.get_ref();
        let host = session.server_name().map(str::to_owned);
        (session.handshake_kind(), host)
    };
    let connecting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = tls.connect(name, stream).await?;
        // With TLS 1.3, the server sends its session tickets after the handshake and before this
        // byte. The client needs a ticket to resume the session.
        stream.read_u8().await.map(drop)
    };
    let ((kind, host), result) = tokio::join!(accepting, connecting);
    (result, kind, host)
}

/// rustls closes a TLS 1.2 connection with AES-GCM after 2^24 records.
#[tokio::test]
async fn a_tls_1_2_connection_is_worn_out_before_its_keys_have_encrypted_2_pow_24_records() {
    let authority = Authority::generate("ca");
    for (version, wears_out) in [(&TLS12, true), (&TLS13, false)] {
        let server = authority.server(version);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (far, _) = listener.accept().await.unwrap();
        let tls = authority.tls();
        let (near, far) = tokio::join!(tls.connect(HOST, near.unwrap()), server.accept(far));
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        let message = vec![7; 40_000];
        near.write_all(&message).await.unwrap();
        near.flush().await.unwrap();
        far.read_exact(&mut message.clone()).await.unwrap();
        // The relay of a client keeps this count after it has split the stream.
        let wear = near.wear();
        assert!(!near.is_worn_out());
        assert_eq!(wear.records.is_some(), wears_out);
        if let Some(records) = &wear.records {
            // A record has at most 16 KiB.
            let counted = records.swap((1 << 24) - (1 << 17), Ordering::Relaxed);
            assert!((3..10).contains(&counted), "{counted}");
            assert!(!near.is_worn_out());
            records.store((1 << 24) - 1_000, Ordering::Relaxed);
        }
        assert_eq!(near.is_worn_out(), wears_out);
        assert_eq!(wear.is_worn_out(), wears_out);
    }
}

/// This test also checks that the server receives the host name (SNI), both in full handshakes and
/// in resumed handshakes.
#[tokio::test]
async fn a_tls_configuration_towards_servers_resumes_only_its_own_tls_sessions() {
    let authority = Authority::generate("authority");
    for version in [&TLS12, &TLS13] {
        let server = authority.server(version);
        let (first, new) = (authority.tls(), authority.tls());
        for (tls, expected) in [
            (&first, HandshakeKind::Full),
            (&first, HandshakeKind::Resumed),
            (&new, HandshakeKind::Full),
            (&new, HandshakeKind::Resumed),
        ] {
            let (result, kind, host) = connect(tls, &server).await;
            result.unwrap();
            assert_eq!(kind, Some(expected), "{version:?}");
            assert_eq!(host.as_deref(), Some(HOST), "{version:?}");
        }
    }
}

#[tokio::test]
async fn http_clients_resume_no_tls_session() {
    let authority = Authority::generate("authority");
    for version in [&TLS12, &TLS13] {
        let server = authority.server(version);
        let tls = authority.tls();
        let of_http_client = ServerTls {
            config: Arc::new(tls.config_for_http()),
            ..tls
        };
        for _ in 0..2 {
            let (result, kind, _) = connect(&of_http_client, &server).await;
            result.unwrap();
            assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
        }
    }
}

/// The same [`ServerTls`], at a time when the certificates of its stored sessions are no longer
/// valid. In full handshakes, servers have valid certificates.
fn when_resumed_invalid(tls: ServerTls) -> ServerTls {
    ServerTls {
        // Full handshakes use the verifier in `config`.
        verifier: Authority::generate("foreign").tls().verifier,
        ..tls
    }
}

#[tokio::test]
async fn a_resumed_tls_session_is_refused_if_the_server_certificate_is_no_longer_valid() {
    let authority = Authority::generate("authority");
    for version in [&TLS12, &TLS13] {
        let server = authority.server(version);
        let tls = authority.tls();
        let (result, _, _) = connect(&tls, &server).await;
        result.unwrap();
        let (result, kind, _) = connect(&when_resumed_invalid(tls), &server).await;
        assert_eq!(kind, Some(HandshakeKind::Resumed), "{version:?}");
        let error = result.unwrap_err().to_string();
        assert!(error.contains("UnknownIssuer"), "{version:?}: {error}");
    }
}

#[tokio::test]
async fn a_full_tls_handshake_follows_after_a_resumed_tls_session_was_refused() {
    let authority = Authority::generate("authority");
    for version in [&TLS12, &TLS13] {
        let server = authority.server(version);
        let tls = authority.tls();
        let (result, _, _) = connect(&tls, &server).await;
        result.unwrap();
        let later = when_resumed_invalid(tls);
        let (result, kind, _) = connect(&later, &server).await;
        assert_eq!(kind, Some(HandshakeKind::Resumed), "{version:?}");
        assert!(result.is_err(), "{version:?}");
        let (result, kind, _) = connect(&later, &server).await;
        assert_eq!(kind, Some(HandshakeKind::Full), "{version:?}");
        result.unwrap();
    }
}

/// Connects to a server that closes the connection after the first bytes that follow the TLS
/// handshake. Returns the kind of handshake that the server saw (`None` if it failed), and the
/// error.
async fn failed(connector: &Connector, server: &TlsAcceptor) -> (Option<HandshakeKind>, String) {
    let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let address: ServerAddress = address.parse().unwrap();
    let accepting = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = server.accept(stream).await.ok()?;
        stream.read_u8().await.unwrap();
        stream.get_ref().1.handshake_kind()
    };
    let (kind, connected) = tokio::join!(accepting, connector.connect(&address));
    (kind, connected.err().unwrap().to_string())
}

/// Connects to a server that replies to the first command.
async fn check_served(connector: &Connector, server: &TlsAcceptor) {
    let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let address: ServerAddress = address.parse().unwrap();
    let accepting = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = server.accept(stream).await.unwrap();
        stream.read_u8().await.unwrap();
        // The first command of a connection has the request id 1.
        let reply = encode_op_msg_like(0, 1, 1, rawdoc! { "ok": 1 }.as_bytes());
        stream.write_all(&reply).await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    let (stream, connected) = tokio::join!(accepting, connector.connect(&address));
    connected.unwrap();
    drop(stream);
}

/// Connects to a server that replies to the first command. Returns the kinds of the handshakes that
/// the server saw (`None` for each that failed), and the result of the client.
async fn kinds_of_handshakes(
    connector: &Connector,
    server: &TlsAcceptor,
) -> (Vec<Option<HandshakeKind>>, Result<(), EstablishError>) {
    let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let address: ServerAddress = address.parse().unwrap();
    let (done, mut is_done) = oneshot::channel::<()>();
    let serving = async {
        let mut kinds = Vec::new();
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => accepted.unwrap().0,
                _ = &mut is_done => return kinds,
            };
            let Ok(mut stream) = server.accept(stream).await else {
                kinds.push(None);
                continue;
            };
            kinds.push(stream.get_ref().1.handshake_kind());
            if stream.read_u8().await.is_ok() {
                // The first command of a connection has the request id 1.
                let reply = encode_op_msg_like(0, 1, 1, rawdoc! { "ok": 1 }.as_bytes());
                stream.write_all(&reply).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
    };
    let connecting = async {
        let result = connector.connect(&address).await.map(drop);
        drop(done);
        result
    };
    tokio::join!(serving, connecting)
}

fn connector(tls: ServerTls) -> Connector {
    let nonces = Arc::new(NonceSource::new().unwrap());
    Connector::new(Some(Arc::new(tls)), Vec::new(), LIMIT, nonces)
}

/// A server with the stored TLS sessions of `server`, but with the certificate of `other`.
fn with_certificate_of(server: &TlsAcceptor, other: &TlsAcceptor) -> TlsAcceptor {
    let mut config = ServerConfig::clone(server.config());
    config.cert_resolver = Arc::clone(&other.config().cert_resolver);
    TlsAcceptor::from(Arc::new(config))
}

/// Without the second connection, Seawall would clear the pool of a server that has renewed its
/// certificate.
#[tokio::test]
async fn after_a_resumed_tls_session_was_refused_seawall_connects_once_more() {
    let authority = Authority::generate("authority");
    let foreign = Authority::generate("foreign");
    for version in [&TLS12, &TLS13] {
        let server = authority.server(version);
        // Seawall also refuses the full handshake of this server, and does not connect again.
        let invalid = with_certificate_of(&server, &foreign.server(version));
        for (next, second) in [(&server, Some(HandshakeKind::Full)), (&invalid, None)] {
            let tls = authority.tls();
            let (result, _, _) = connect_to(ADDRESS, &tls, &server).await;
            result.unwrap();
            let connector = connector(when_resumed_invalid(tls));
            let (kinds, result) = kinds_of_handshakes(&connector, next).await;
            let expected = [Some(HandshakeKind::Resumed), second];
            assert_eq!(kinds, expected, "{version:?}: {result:?}");
            assert_eq!(result.is_ok(), second.is_some(), "{version:?}: {result:?}");
        }
    }
}

#[tokio::test]
async fn errors_mention_the_missing_client_certificate_if_and_only_if_it_is_the_cause() {
    let authority = Authority::generate("authority");
    let foreign = Authority::generate("foreign");
    for version in [&TLS12, &TLS13] {
        let asking = authority.asking_server(version);
        let server = authority.server(version);
        for (tls, server, step, is_named) in [
            (authority.tls(), &asking, "hello at", true),
            (authority.tls(), &server, "hello at", false),
            // Seawall refuses the certificate of the server.
            (foreign.tls(), &asking, "TLS handshake to", false),
        ] {
            let connector = connector(tls);
            // In the second handshake, the server does not ask again.
            for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
                let (seen, error) = failed(&connector, server).await;
                let expected = step.starts_with("hello").then_some(kind);
                assert_eq!(seen, expected, "{version:?}: {error}");
                assert!(error.starts_with(step), "{version:?}: {error}");
                assert_eq!(error.contains(MISSING), is_named, "{version:?}: {error}");
            }
        }
    }
}

/// The servers close the connection after the first command, or refuse the certificate in the
/// handshake. Seawall cannot know if the certificate is the reason.
#[tokio::test]
async fn errors_mention_seawalls_client_certificate_if_the_server_asked_for_it() {
    let authority = Authority::generate("authority");
    for version in [&TLS12, &TLS13] {
        let asking = authority.asking_server(version);
        let server = authority.server(version);
        for (year, server, expected) in [
            (2200, &asking, Some(POSSIBLE)),
            (2001, &asking, Some(EXPIRED)),
            (2200, &server, None),
            (2001, &server, None),
        ] {
            let connector = connector(authority.tls_with_certificate_until(year));
            // In the second handshake with a valid certificate, the server does not ask again.
            for _ in 0..2 {
                let (_, error) = failed(&connector, server).await;
                let mut texts = [MISSING, EXPIRED, POSSIBLE].into_iter();
                let found = texts.find(|text| error.contains(text));
                assert_eq!(found, expected, "{version:?} {year}: {error}");
            }
        }
    }
}

/// A server may ask for a client certificate without requiring it. Later errors of such a server do
/// not mention the missing certificate.
#[tokio::test]
async fn later_errors_do_not_mention_the_client_certificate_if_the_server_replied_without_it() {
    let authority = Authority::generate("authority");
    for version in [&TLS12, &TLS13] {
        let connector = connector(authority.tls());
        let first = authority.asking_server(version);
        check_served(&connector, &first).await;
        // The second server has no TLS session of Seawall, so it asks again.
        let second = authority.asking_server(version);
        for (server, kind) in [
            (&first, HandshakeKind::Resumed),
            (&second, HandshakeKind::Full),
        ] {
            let (seen, error) = failed(&connector, server).await;
            assert_eq!(seen, Some(kind), "{version:?}: {error}");
            assert!(!error.contains(MISSING), "{version:?}: {error}");
        }
    }
}

#[test]
fn only_errors_that_a_refusing_server_can_cause_mention_the_missing_client_certificate() {
    use io::ErrorKind;
    let of_rustls = |error: rustls::Error| io::Error::new(ErrorKind::InvalidData, error);
    let alert = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
    let refused_by_seawall = rustls::Error::InvalidCertificate(CertificateError::Expired);
    for (error, is_named) in [
        (ErrorKind::UnexpectedEof.into(), true),
        (ErrorKind::ConnectionReset.into(), true),
        (ErrorKind::ConnectionAborted.into(), true),
        (ErrorKind::BrokenPipe.into(), true),
        (of_rustls(alert), true),
        (ErrorKind::TimedOut.into(), false),
        (ErrorKind::HostUnreachable.into(), false),
        (ErrorKind::ConnectionRefused.into(), false),
        (of_rustls(refused_by_seawall), false),
    ] {
        let asked = CertificateRequest {
            certificate: Arc::new(ClientCertificate::new(None)),
            was_asked: true,
            is_resumed: false,
        };
        let error = asked.explain(error).to_string();
        assert_eq!(error.contains(MISSING), is_named, "{error}");
    }
}

#[tokio::test]
async fn unusable_certificates_of_the_operating_system_are_skipped() {
    let authority = Authority::generate("authority");
    let certificate = |base64: &str| {
        format!("-----BEGIN CERTIFICATE-----\n{base64}\n-----END CERTIFICATE-----\n")
    };
    let unusable = [certificate("AAAA"), certificate("?")].concat();
    let trusting_system = |content: &str| {
        let file = Pem {
            path: Path::new("system.pem"),
            content,
        };
        trusting(Authorities::System(file), None)
    };
    let tls = trusting_system(&format!("{unusable}{}", authority.pem)).unwrap();
    let (result, _, _) = connect(&tls, &authority.server(&TLS13)).await;
    result.unwrap();
    let error = trusting_system(&unusable).unwrap_err().to_string();
    assert_eq!(error, "system.pem: no usable certificate in the file");
}

/// A reload must refuse unusable files also if servers are not verified, because the files may be
/// needed later.
#[test]
fn authorities_and_revocation_lists_are_read_and_expire_also_if_servers_are_not_verified() {
    let authority = Authority::generate("authority");
    let list = authority.revocation_list();
    let malformed = |label: &str| format!("-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n");
    let [no_authority, no_list] = ["CERTIFICATE", "X509 CRL"].map(malformed);
    for verification in [
        Verification::Full,
        Verification::AnyHostName,
        Verification::Off,
    ] {
        let build = |ca: &str, crl: &str| {
            let [authorities, lists] = [("ca.pem", ca), ("crl.pem", crl)].map(|(path, content)| {
                let path = Path::new(path);
                Pem { path, content }
            });
            let tls = ServerTls::new(&TlsSettings {
                authorities: Authorities::File(authorities),
                identity: None,
                revocation_lists: vec![lists],
                verification,
            });
            let files = tls.map(|tls| tls.expiries.into_iter().map(|of| of.file).collect());
            files.map_err(|error| error.to_string())
        };
        let expected = Ok(vec!["ca.pem".to_owned(), "crl.pem".to_owned()]);
        assert_eq!(build(&authority.pem, &list), expected, "{verification:?}");
        for (ca, crl, file) in [
            (&no_authority, &list, "ca.pem"),
            (&authority.pem, &no_list, "crl.pem"),
        ] {
            let error = build(ca, crl).unwrap_err();
            let expected = format!("{file}: malformed certificate or revocation list");
            assert_eq!(error, expected, "{verification:?}");
        }
    }
}
