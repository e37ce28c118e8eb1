//! Tests of TLS towards servers: authorities, resumption, the host name that a server receives, and
//! servers that ask for a client certificate.

use std::{path::Path, time::Duration};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use seawall_auth::NonceSource;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig, SupportedProtocolVersion,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
        server::{NoClientAuth, WebPkiClientVerifier, danger::ClientCertVerifier},
        version::{TLS12, TLS13},
    },
};

use super::*;
use crate::connection::{Connector, ServerAddress};

const HOST: &str = "localhost";
const ADDRESS: &str = "127.0.0.1";
const LIMIT: Duration = Duration::from_secs(20);

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

    fn file(&self) -> Authorities<'_> {
        Authorities::File(Pem {
            path: Path::new("ca.pem"),
            content: &self.pem,
        })
    }

    /// TLS towards servers that trusts only this authority.
    fn tls(&self) -> ServerTls {
        trusting(self.file()).unwrap()
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

/// TLS towards servers that trusts these authorities.
fn trusting(authorities: Authorities<'_>) -> Result<ServerTls, TlsError> {
    ServerTls::new(&TlsSettings {
        authorities,
        identity: None,
        revocation_lists: Vec::new(),
        verification: Verification::Full,
    })
}

/// Connects to a server once. Returns the result of the client, and the kind of handshake and the
/// host name that the server saw.
async fn connect(
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
        let mut stream = tls.connect(HOST, stream).await?;
        // With TLS 1.3, the server sends its session tickets after the handshake and before this
        // byte. The client needs a ticket to resume the session.
        stream.read_u8().await.map(drop)
    };
    let ((kind, host), result) = tokio::join!(accepting, connecting);
    (result, kind, host)
}

#[tokio::test]
async fn tls_sessions_resume_only_within_one_configuration_and_servers_receive_the_host_name() {
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
async fn a_resumed_session_is_refused_if_its_certificate_is_no_longer_valid() {
    let authority = Authority::generate("authority");
    let foreign = Authority::generate("foreign");
    for version in [&TLS12, &TLS13] {
        let server = authority.server(version);
        let tls = authority.tls();
        let (result, _, _) = connect(&tls, &server).await;
        result.unwrap();
        // `later` has the stored sessions of `tls`, but its verifier refuses the server's
        // certificate, as the verifier of `tls` would do after the certificate has expired.
        let later = ServerTls {
            config: Arc::clone(&tls.config),
            verifier: foreign.tls().verifier,
            sessions_without_certificate: None,
            expiries: Vec::new(),
        };
        let (result, kind, _) = connect(&later, &server).await;
        assert_eq!(kind, Some(HandshakeKind::Resumed), "{version:?}");
        let error = result.unwrap_err().to_string();
        assert!(error.contains("UnknownIssuer"), "{version:?}: {error}");
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

#[tokio::test]
async fn each_failed_attempt_names_the_missing_certificate_if_the_server_asked_for_one() {
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
            let nonces = Arc::new(NonceSource::new().unwrap());
            let connector = Connector::new(Some(Arc::new(tls)), Vec::new(), LIMIT, nonces);
            // The server asks again in the second attempt only if that is a full handshake too.
            for _ in 0..2 {
                let (kind, error) = failed(&connector, server).await;
                assert_ne!(kind, Some(HandshakeKind::Resumed), "{version:?}: {error}");
                assert!(error.starts_with(step), "{version:?}: {error}");
                let missing = "the server asked for a client certificate, and Seawall has none";
                assert_eq!(error.contains(missing), is_named, "{version:?}: {error}");
            }
        }
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
        trusting(Authorities::System(Pem {
            path: Path::new("system.pem"),
            content,
        }))
    };
    let tls = trusting_system(&format!("{unusable}{}", authority.pem)).unwrap();
    let (result, _, _) = connect(&tls, &authority.server(&TLS13)).await;
    result.unwrap();
    let error = trusting_system(&unusable).unwrap_err().to_string();
    assert_eq!(error, "system.pem: no usable certificate in the file");
}
