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
mod handshake;
mod resumption;
mod sniff;
mod verifier;

use std::sync::Arc;

use seawall_transport::{AuthorityWithoutList, CertificateExpiry, Pem, TlsSocket};
use tokio::{net::TcpStream, sync::watch};
use tokio_rustls::{
    rustls::{
        ConfigBuilder, ServerConfig, WantsVerifier,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, UnixTime},
        server::{NoClientAuth, danger::ClientCertVerifier},
    },
    server::TlsStream,
};

pub use self::certificates::ServerTlsError;
use self::{
    certificates::Certificates,
    handshake::{accept, until_heard},
    resumption::{ExpiringSessions, Resumption},
    verifier::{ChainVerifier, Verifier},
};
pub(crate) use self::{
    failure::{FailedHandshake, NotTls},
    sniff::begins_with_tls,
    verifier::{ClientCertificates, ConnectedVerifier},
};
use crate::limits::Heavy;

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
    connected: Option<Arc<ConnectedVerifier>>,
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
    /// Creates the TLS configuration. `earlier` is the configuration in use. Clients can resume its
    /// TLS sessions if it verifies clients in the same way.
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
        let verifiers = earlier.and_then(|earlier| earlier.verifier.as_ref());
        if let Some((earlier, new)) = verifiers.zip(verifier.as_ref()) {
            new.check_lists(earlier)?;
        }
        let same = earlier.filter(|earlier| earlier.verifier == verifier);
        let same_connected = same.and_then(|earlier| earlier.connected.clone());
        let closing = verifier.as_ref().filter(|_| settings.closes_revoked);
        let connected = match (closing, same_connected) {
            (Some(_), Some(earlier)) => Some(earlier),
            (Some(verifier), None) => Some(Arc::new(verifier.for_connected()?)),
            (None, _) => None,
        };
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
            connected,
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

    /// Performs the handshake of a client. Its cryptography runs on threads of low priority.
    /// Returns `None` if the client disconnected while its handshake waited.
    ///
    /// A client may send its first message late, and a reload may replace this configuration before
    /// the message arrives. So the handshake uses the configuration that `current` has when the
    /// message arrives. If TLS has been switched off by then, the handshake uses `self`.
    ///
    /// # Errors
    /// If the handshake fails, or the certificate of a resumed session is no longer valid.
    pub(crate) async fn accept(
        self: Arc<Self>,
        current: watch::Receiver<Option<Arc<Self>>>,
        stream: TcpStream,
        heavy: Heavy<'_>,
    ) -> Result<Option<TlsStream<TlsSocket>>, FailedHandshake> {
        // A silent client needs no memory for a TLS session.
        until_heard(&stream).await?;
        let choose = move || {
            let tls = current.borrow().clone().unwrap_or(self);
            (tls.handshake_config(), tls.verifier.clone())
        };
        accept(stream, heavy, choose).await
    }

    /// Finds connected clients that this configuration closes: those whose certificate is revoked
    /// or comes from an authority that is not trusted. `None` if it closes no client. Consecutive
    /// configurations that verify clients in the same way have the same value.
    pub(super) fn connected(&self) -> Option<&Arc<ConnectedVerifier>> {
        self.connected.as_ref()
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
