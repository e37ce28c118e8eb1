//! TLS towards servers: authorities, revocation lists, Seawall's own certificate.

use std::{
    cell::Cell,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::{net::TcpStream, task_local};
use tokio_rustls::{
    TlsConnector, TlsStream,
    rustls::{
        self, CertificateError, ClientConfig, DigitallySignedStruct, HandshakeKind, RootCertStore,
        SignatureScheme,
        client::{
            ClientSessionMemoryCache, ClientSessionStore, ResolvesClientCert, Resumption,
            WebPkiServerVerifier,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
        pki_types::{CertificateDer, ServerName, UnixTime},
        server::VerifierBuilderError,
        sign::CertifiedKey,
    },
};

use crate::{
    CertificateExpiry, Pem, PemError, SetVerifier, Stream, TlsSocket, authorities, not_after,
    revocation_lists, rustls_error, sets_by_key, verify_chain,
};

/// Maximum number of stored TLS sessions, as in the default of rustls. rustls keeps up to eight
/// sessions for each server name, so it keeps the sessions of 32 names.
const MAX_SESSIONS: usize = 256;

/// The reason why TLS towards servers cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is unusable.
    #[error(transparent)]
    File(#[from] PemError),
    /// The authorities or revocation lists are unusable.
    #[error("cannot set up the verification of servers' certificates: {0}")]
    Verifier(#[from] VerifierBuilderError),
    /// rustls refuses the TLS configuration for another reason.
    #[error(transparent)]
    Setup(#[from] rustls::Error),
}

/// The server's certificate in a resumed TLS session is no longer valid. The stored sessions of the
/// server have been removed, so the next handshake is a full one.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct RefusedSession(rustls::Error);

/// True if a handshake has failed because the server's certificate in a resumed TLS session is no
/// longer valid. The server may have a new certificate by now, which a full handshake shows.
pub(super) fn is_refused_session(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|cause| cause.is::<RefusedSession>())
}

/// The certificate authorities that may sign servers' certificates.
#[derive(Clone, Copy, Debug)]
pub enum Authorities<'a> {
    /// The authorities of Mozilla, which are compiled into Seawall.
    Mozilla,
    /// The authorities of the operating system. Unusable certificates are skipped.
    System(Pem<'a>),
    /// The authorities in a file.
    File(Pem<'a>),
}

impl<'a> Authorities<'a> {
    /// Trusts the authorities in `file`. Without this file, trusts the authorities of the operating
    /// system. If the operating system has no authorities, trusts Mozilla's authorities.
    pub fn of(file: Option<Pem<'a>>, system: Option<Pem<'a>>) -> Self {
        match (file, system) {
            (Some(file), _) => Self::File(file),
            (None, Some(system)) => Self::System(system),
            (None, None) => Self::Mozilla,
        }
    }
}

/// How servers' certificates are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The certificate must come from an authority and be valid for the server's host name.
    Full,
    /// The certificate must come from an authority, but may be for any host name.
    AnyHostName,
    /// Any certificate is accepted. The files must nevertheless be usable, and their expiries are
    /// reported.
    Off,
}

/// The settings of TLS towards servers. They contain the contents of the files, not only the paths.
#[derive(Debug)]
pub struct TlsSettings<'a> {
    /// The certificate authorities whose server certificates are accepted.
    pub authorities: Authorities<'a>,
    /// A file with Seawall's own certificate chain and its key; `None` if Seawall has no
    /// certificate.
    pub identity: Option<Pem<'a>>,
    /// Files with revocation lists. With at least one file, a server's certificate is accepted only
    /// if a file contains a list of the certificate's issuer, except with [`Verification::Off`].
    pub revocation_lists: Vec<Pem<'a>>,
    /// How certificates are verified.
    pub verification: Verification,
}

/// TLS towards servers, with one configuration. It resumes only TLS sessions that began with this
/// configuration.
pub struct ServerTls {
    config: Arc<ClientConfig>,
    /// The stored TLS sessions of `config`.
    sessions: Arc<ClientSessionMemoryCache>,
    verifier: Arc<dyn ServerCertVerifier>,
    certificate: Arc<ClientCertificate>,
    expiries: Vec<CertificateExpiry>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls")
            .field("expiries", &self.expiries)
            .finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Creates the TLS configuration.
    ///
    /// # Errors
    /// See [`TlsError`].
    pub fn new(settings: &TlsSettings<'_>) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let mut expiries = Vec::new();
        let verifier = verifier(settings, &provider, &mut expiries)?;
        let verifier: Arc<dyn ServerCertVerifier> = Arc::new(verifier);
        let own = match &settings.identity {
            None => None,
            Some(identity) => {
                let (chain, of_identity) = identity.certificates()?;
                expiries.extend(of_identity);
                let own = CertifiedKey::from_der(chain, identity.private_key()?, &provider);
                Some(Arc::new(own.map_err(|source| identity.refused(source))?))
            }
        };
        let certificate = Arc::new(ClientCertificate::new(own));
        let resolver = Arc::clone(&certificate);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(Arc::clone(&verifier))
            .with_client_cert_resolver(resolver);
        let sessions = Arc::new(ClientSessionMemoryCache::new(MAX_SESSIONS));
        config.resumption = Resumption::store(Arc::<ClientSessionMemoryCache>::clone(&sessions));
        Ok(Self {
            config: Arc::new(config),
            sessions,
            verifier,
            certificate,
            expiries,
        })
    }

    /// The rustls configuration for HTTP clients, which open their own connections. It resumes no
    /// TLS session: rustls verifies certificates only in full handshakes, and only
    /// [`Self::connect`] also checks the certificate of a resumed session.
    pub fn config_for_http(&self) -> ClientConfig {
        let mut config = ClientConfig::clone(&self.config);
        config.resumption = Resumption::disabled();
        config
    }

    /// The expiries of the certificates and of the revocation lists in the files of this
    /// configuration. If a file has many of them, only the earliest expiries are included. The
    /// authorities of the operating system are not included.
    pub fn expiries(&self) -> &[CertificateExpiry] {
        &self.expiries
    }

    /// Performs the handshake with a server. `host` is the server's name, or the server's IP
    /// address without brackets.
    ///
    /// # Errors
    /// If `host` is not valid, if the handshake fails, or if the server's certificate in a resumed
    /// TLS session is no longer valid. This function checks that certificate itself, because rustls
    /// verifies certificates only in full handshakes.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> io::Result<Stream> {
        self.connect_noting(host, stream).await.map(|(s, _)| s)
    }

    /// Like [`Self::connect`], but also returns a [`CertificateRequest`]. The caller passes the
    /// result of the connection's first command to this value, because the command fails if the
    /// server refuses Seawall's certificate, or requires one that Seawall does not have.
    pub(super) async fn connect_noting(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<(Stream, CertificateRequest)> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let handshake = async {
            let handshake = self.handshake(&name, stream).await;
            (handshake, WAS_ASKED.with(Cell::get))
        };
        let (handshake, was_asked) = WAS_ASKED.scope(Cell::new(false), handshake).await;
        let request = CertificateRequest {
            certificate: Arc::clone(&self.certificate),
            was_asked,
            is_resumed: matches!(&handshake, Ok((_, true))),
        };
        match handshake {
            Ok((stream, _)) => Ok((stream, request)),
            Err(error) => Err(request.explain(error)),
        }
    }

    /// The returned flag is true if the handshake has resumed a TLS session.
    async fn handshake(
        &self,
        name: &ServerName<'static>,
        stream: TcpStream,
    ) -> io::Result<(Stream, bool)> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector
            .connect(name.clone(), TlsSocket::from(stream))
            .await?;
        let (_, session) = stream.get_ref();
        let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
        if is_resumed {
            let chain = session.peer_certificates().unwrap_or_default();
            self.verify(chain, name).map_err(|error| {
                self.remove_sessions(name);
                io::Error::other(RefusedSession(error))
            })?;
        }
        let stream = Stream::from(TlsStream::Client(stream));
        Ok((stream, is_resumed))
    }

    /// Removes the stored TLS sessions of this server name, so that the next handshake is a full
    /// one. Otherwise, each connection would resume such a session and be refused, even if the
    /// server has a new certificate by now.
    fn remove_sessions(&self, name: &ServerName<'static>) {
        self.sessions.remove_tls12_session(name);
        while self.sessions.take_tls13_ticket(name).is_some() {}
    }

    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
    ) -> Result<(), rustls::Error> {
        let Some((certificate, intermediates)) = chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let verified = self.verifier.verify_server_cert(
            certificate,
            intermediates,
            name,
            &[],
            UnixTime::now(),
        );
        verified.map(drop)
    }
}

task_local! {
    /// True if the server has asked for a client certificate in the handshake that the current task
    /// performs. This flag is not a field of [`ClientCertificate`], because all handshakes share
    /// one [`ClientCertificate`]: rustls resumes a TLS session only with the same resolver object
    /// as in the first handshake.
    static WAS_ASKED: Cell<bool>;
}

/// Seawall's own certificate, if it has one, and what is known about servers that ask for it.
/// Presents the certificate in handshakes, and notes that the server has asked.
#[derive(Debug)]
struct ClientCertificate {
    own: Option<Arc<CertifiedKey>>,
    /// True if a server has asked for a certificate.
    was_requested: AtomicBool,
    /// True if Seawall has no certificate, and a server has asked for one and has nevertheless
    /// replied to a command. Servers can ask for a certificate that they do not require.
    is_optional: AtomicBool,
}

impl ClientCertificate {
    fn new(own: Option<Arc<CertifiedKey>>) -> Self {
        Self {
            own,
            was_requested: AtomicBool::new(false),
            is_optional: AtomicBool::new(false),
        }
    }
}

impl ResolvesClientCert for ClientCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.was_requested.store(true, Ordering::Relaxed);
        // A caller of `ServerTls::config_for_http` performs its own handshakes, without this
        // variable.
        let noted = WAS_ASKED.try_with(|was_asked| was_asked.set(true));
        noted.unwrap_or_default();
        self.own.clone()
    }

    fn has_certs(&self) -> bool {
        self.own.is_some()
    }
}

/// Shows if the server of a TLS connection has asked for a client certificate.
pub(super) struct CertificateRequest {
    certificate: Arc<ClientCertificate>,
    /// True if the server has asked for a certificate in this connection's handshake.
    was_asked: bool,
    /// True if the handshake has resumed a TLS session. Servers ask for certificates only in full
    /// handshakes, so the server may have asked in the first handshake of the session.
    is_resumed: bool,
}

impl CertificateRequest {
    /// Notes that the first command has succeeded. So if the server has asked for a certificate
    /// and has received none, the server does not require a certificate.
    pub(super) fn note_success(&self) {
        if self.was_asked && self.certificate.own.is_none() {
            self.certificate.is_optional.store(true, Ordering::Relaxed);
        }
    }

    /// `error` is an error of the handshake or of the first command. If a refused or missing
    /// certificate can be its cause, the returned error also says so. The first command can fail
    /// for this reason: with TLS 1.3, a server refuses a certificate only after the client has
    /// completed the handshake. With every version of TLS, a mongod refuses a certificate after the
    /// handshake, and sends no alert.
    pub(super) fn explain(self, error: io::Error) -> io::Error {
        let certificate = &self.certificate;
        let was_requested = certificate.was_requested.load(Ordering::Relaxed);
        let may_have_asked = self.was_asked || (self.is_resumed && was_requested);
        if !may_have_asked || !may_be_refusal(&error) {
            return error;
        }
        let kind = error.kind();
        let refusal = match &certificate.own {
            None if certificate.is_optional.load(Ordering::Relaxed) => return error,
            None => CertificateRefusal::Missing(error),
            Some(own) if has_expired(own) => CertificateRefusal::Expired(error),
            Some(_) => CertificateRefusal::Possible(error),
        };
        io::Error::new(kind, refusal)
    }
}

/// True if the first certificate of this chain has expired.
fn has_expired(own: &CertifiedKey) -> bool {
    let expiry = own.cert.first().and_then(not_after);
    let now = i64::try_from(UnixTime::now().as_secs());
    now.is_ok_and(|now| expiry.is_some_and(|expiry| expiry < now))
}

/// True if a server that refuses Seawall can cause this error: the server sends an alert or closes
/// the connection.
fn may_be_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match rustls_error(error) {
        // The other errors of rustls have another cause: for example, Seawall has refused the
        // server's certificate.
        Some(cause) => matches!(cause, rustls::Error::AlertReceived(_)),
        None => matches!(
            error.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
        ),
    }
}

/// True if a handshake has failed because Seawall refuses the server's certificate.
pub(super) fn refuses_certificate(error: &io::Error) -> bool {
    let is_invalid = matches!(
        rustls_error(error),
        Some(rustls::Error::InvalidCertificate(_))
    );
    is_invalid || is_refused_session(error)
}

/// The error of a connection whose server has asked for a client certificate, and has perhaps
/// refused Seawall for this reason.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateRefusal {
    /// Seawall has no certificate.
    #[error("the server asked for a client certificate, and Seawall has none ({0})")]
    Missing(io::Error),
    /// Seawall's certificate has expired.
    #[error("the server asked for a client certificate, and Seawall's has expired ({0})")]
    Expired(io::Error),
    /// Seawall's certificate has not expired. Only the server knows why it refuses a certificate,
    /// for example because the certificate was revoked.
    #[error("the server asked for a client certificate, and may have refused Seawall's ({0})")]
    Possible(io::Error),
}

impl CertificateRefusal {
    /// The refusal as a clause without details. `None` if the error is not a
    /// [`CertificateRefusal`].
    pub(super) fn summary_of(error: &io::Error) -> Option<&'static str> {
        match error.get_ref()?.downcast_ref()? {
            Self::Missing(_) => Some("it asked for a certificate, and Seawall has none"),
            Self::Expired(_) => Some("it asked for a certificate, and Seawall's has expired"),
            Self::Possible(_) => Some("it may have refused Seawall's certificate"),
        }
    }
}

fn verifier(
    settings: &TlsSettings<'_>,
    provider: &Arc<CryptoProvider>,
    expiries: &mut Vec<CertificateExpiry>,
) -> Result<Verifier, TlsError> {
    let roots = Arc::new(roots(settings.authorities, expiries)?);
    let lists = revocation_lists(&settings.revocation_lists, expiries)?;
    let verifiers = sets_by_key(&lists).into_iter().map(|set| {
        let (roots, provider) = (Arc::clone(&roots), Arc::clone(provider));
        SetVerifier::of_set(set, |lists| {
            WebPkiServerVerifier::builder_with_provider(roots, provider)
                .with_crls(lists)
                // Servers check in the same way: only the issuer of the peer's own certificate
                // needs a list, and the list must not be outdated.
                .only_check_end_entity_revocation()
                .enforce_revocation_expiration()
                .build()
        })
    });
    Ok(Verifier {
        verifiers: verifiers.collect::<Result<_, _>>()?,
        verification: settings.verification,
        provider: Arc::clone(provider),
    })
}

fn roots(
    from: Authorities<'_>,
    expiries: &mut Vec<CertificateExpiry>,
) -> Result<RootCertStore, TlsError> {
    match from {
        Authorities::Mozilla => Ok(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        }),
        Authorities::System(file) => Ok(file.parsable_authorities()?),
        Authorities::File(file) => Ok(authorities(&[file], expiries)?.0),
    }
}

/// Verifies servers' certificates.
#[derive(Debug)]
struct Verifier {
    /// One verifier for each set of revocation lists. Unused with [`Verification::Off`]: Seawall
    /// then accepts any certificate. Users request this with `tlsAllowInvalidCertificates`, usually
    /// for tests.
    verifiers: Vec<SetVerifier<Arc<WebPkiServerVerifier>>>,
    verification: Verification,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if self.verification == Verification::Off {
            return Ok(ServerCertVerified::assertion());
        }
        verify_chain(None, &self.verifiers, intermediates, |verifier| {
            let verified = verifier.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            );
            match verified {
                // rustls verifies the name last, so everything else in the certificate is valid.
                Err(rustls::Error::InvalidCertificate(
                    CertificateError::NotValidForName
                    | CertificateError::NotValidForNameContext { .. },
                )) if self.verification == Verification::AnyHostName => {
                    Ok(ServerCertVerified::assertion())
                }
                other => other,
            }
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[cfg(test)]
mod tests;
