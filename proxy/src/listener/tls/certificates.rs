//! Reads Seawall's certificates, and chooses one of them for each client.

use std::sync::Arc;

use seawall_transport::{CertificateExpiry, Pem, PemError};
use tokio_rustls::rustls::{
    self,
    client::verify_server_name,
    pki_types::ServerName,
    server::{ClientHello, ParsedCertificate, ResolvesServerCert, VerifierBuilderError},
    sign::CertifiedKey,
};

/// The reason why TLS for clients cannot be set up. For example, a certificate, a key or a
/// revocation list is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A file is unusable.
    #[error(transparent)]
    File(#[from] PemError),
    /// The authorities or revocation lists are unusable.
    #[error("cannot set up the verification of clients' certificates: {0}")]
    Verifier(#[from] VerifierBuilderError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Setup(rustls::Error),
}

/// Loads Seawall's certificates from pairs of files: a certificate chain and its private key. Also
/// returns when each certificate expires.
pub(super) fn load(
    files: &[(Pem<'_>, Pem<'_>)],
) -> Result<(Certificates, Vec<CertificateExpiry>), PemError> {
    let mut certificates = Vec::new();
    let mut expiries = Vec::new();
    for (certificate, key) in files {
        let (chain, of_chain) = certificate.certificates()?;
        expiries.extend(of_chain);
        let certified = CertifiedKey::from_der(chain, key.private_key()?, &super::provider());
        let certified = certified.map_err(|source| certificate.refused(source))?;
        certificates.push(Arc::new(certified));
    }
    Ok((Certificates(certificates), expiries))
}

/// Chooses the certificate for a client: the first one that is valid for the requested host name
/// and whose key the client supports. If there is none, or the client requests no host name, the
/// first one whose key the client supports is chosen. If the client supports none of the keys, the
/// first certificate is chosen: rustls then refuses the client with the alert `handshake_failure`.
/// If Seawall chose no certificate, rustls would send the alert `access_denied`.
#[derive(Debug)]
pub(super) struct Certificates(Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let schemes = hello.signature_schemes();
        let is_supported = |certified: &&Arc<CertifiedKey>| {
            let key = &certified.key;
            key.choose_scheme(schemes).is_some()
        };
        let supported = || self.0.iter().filter(is_supported);
        let name = hello.server_name();
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let named = name.and_then(|name| supported().find(|of| is_valid_for(of, &name)));
        let chosen = named.or_else(|| supported().next());
        chosen.or_else(|| self.0.first()).cloned()
    }
}

fn is_valid_for(certified: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = certified.end_entity_cert();
    let parsed = parsed.and_then(ParsedCertificate::try_from);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}
