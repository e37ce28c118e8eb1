//! TLS towards servers, configured by the options of the connection string.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
};

/// The reason why TLS options are unusable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not PEM.
    #[error("{path}: {source}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// rustls refuses the certificates or keys.
    #[error(transparent)]
    Rustls(#[from] rustls::Error),
}

/// Creates the TLS configuration for connections to servers. The root certificates come from
/// `ca_file`; without it, they are Mozilla's. Seawall's own certificate and key come from
/// `identity_file`, a PEM file with both, as `tlsCertificateKeyFile` requires. `trusts_anyone`
/// disables the verification of servers.
///
/// # Errors
/// See [`TlsError`].
pub fn client_config(
    ca_file: Option<&Path>,
    identity_file: Option<&Path>,
    trusts_anyone: bool,
) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = if trusts_anyone {
        let verifier = Arc::new(TrustsAnyone { provider });
        builder
            .dangerous()
            .with_custom_certificate_verifier(verifier)
    } else {
        builder.with_root_certificates(roots(ca_file)?)
    };
    let Some(path) = identity_file else {
        return Ok(builder.with_no_client_auth());
    };
    let wrong = |source| TlsError::Pem {
        path: path.to_owned(),
        source,
    };
    let certificates = read_certificates(path)?;
    let key = PrivateKeyDer::from_pem_file(path).map_err(wrong)?;
    Ok(builder.with_client_auth_cert(certificates, key)?)
}

/// Reads all certificates of a PEM file.
///
/// # Errors
/// [`TlsError::Pem`] if the file cannot be read.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |source| TlsError::Pem {
        path: path.to_owned(),
        source,
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(wrong)?;
    certificates.collect::<Result<_, _>>().map_err(wrong)
}

fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let Some(path) = ca_file else {
        return Ok(RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        });
    };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

/// Accepts any certificate, for `tlsAllowInvalidCertificates`, which users set in tests.
#[derive(Debug)]
struct TrustsAnyone {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for TrustsAnyone {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
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
