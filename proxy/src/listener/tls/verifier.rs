//! Verifies clients' certificates: their authority, their revocation and their validity period.

use std::{fmt, sync::Arc};

use tokio_rustls::rustls::{
    self,
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

use seawall_transport::{
    AuthorityWithoutList, CertificateExpiry, Pem, authorities, authorities_without_list,
    revocation_lists,
};

use super::certificates::ServerTlsError;

/// How clients' certificates are verified.
#[derive(Debug)]
pub(crate) struct ClientCertificates<'a> {
    /// True if clients without a certificate are refused.
    pub(crate) is_required: bool,
    /// Files with the certificates of authorities.
    pub(crate) authorities: Vec<Pem<'a>>,
    /// Files with revocation lists. If the list of files is not empty, a client's certificate is
    /// accepted only if its issuer has a revocation list.
    pub(crate) revocation_lists: Vec<Pem<'a>>,
}

/// Verifies clients' certificates. Two verifiers are equal if they accept the same clients.
pub(super) struct Verifier {
    is_required: bool,
    authorities: Vec<CertificateDer<'static>>,
    revocation_lists: Vec<CertificateRevocationListDer<'static>>,
    verifier: Arc<dyn ClientCertVerifier>,
    expiries: Vec<CertificateExpiry>,
}

impl PartialEq for Verifier {
    fn eq(&self, other: &Self) -> bool {
        self.is_required == other.is_required
            && self.authorities == other.authorities
            && self.revocation_lists == other.revocation_lists
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("is_required", &self.is_required)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Verifier {
    /// A verifier that requires certificates of this authority. It has no revocation lists.
    pub(super) fn requiring(authority: &str) -> Self {
        let authority = Pem {
            path: std::path::Path::new("ca.pem"),
            content: authority,
        };
        let settings = ClientCertificates {
            is_required: true,
            authorities: vec![authority],
            revocation_lists: Vec::new(),
        };
        Self::new(&settings).unwrap()
    }
}

impl Verifier {
    /// Creates a verifier from the contents of the files in `settings`.
    ///
    /// # Errors
    /// If a file has no usable certificate or revocation list.
    pub(super) fn new(settings: &ClientCertificates<'_>) -> Result<Self, ServerTlsError> {
        let mut expiries = Vec::new();
        let (roots, authorities) = authorities(&settings.authorities, &mut expiries)?;
        let revocation_lists = revocation_lists(&settings.revocation_lists, &mut expiries)?;
        let builder =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), super::provider())
                .with_crls(revocation_lists.clone())
                // As in a mongod, only the issuer of the client's own certificate needs a
                // revocation list, and this list must not be outdated.
                .only_check_end_entity_revocation()
                .enforce_revocation_expiration();
        let builder = match settings.is_required {
            true => builder,
            false => builder.allow_unauthenticated(),
        };
        Ok(Self {
            is_required: settings.is_required,
            authorities,
            revocation_lists,
            verifier: builder.build()?,
            expiries,
        })
    }

    /// The verifier for full handshakes.
    pub(super) fn for_handshakes(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::clone(&self.verifier)
    }

    /// When each certificate of an authority, and each revocation list, expires.
    pub(super) fn expiries(&self) -> &[CertificateExpiry] {
        &self.expiries
    }

    /// The authorities that have no current revocation list. The verifier refuses certificates of
    /// these authorities. Empty if no revocation list is configured, because revocation is then not
    /// checked.
    pub(super) fn authorities_without_list(&self) -> Vec<AuthorityWithoutList> {
        let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
        authorities_without_list(&self.authorities, &self.revocation_lists, now)
    }

    /// Verifies a certificate chain at the current time. An empty chain is valid if certificates
    /// are optional.
    pub(super) fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        match chain.split_first() {
            None if self.is_required => Err(rustls::Error::NoCertificatesPresented),
            None => Ok(()),
            Some((certificate, intermediates)) => {
                let now = UnixTime::now();
                let verified = self
                    .verifier
                    .verify_client_cert(certificate, intermediates, now);
                verified.map(drop)
            }
        }
    }
}
