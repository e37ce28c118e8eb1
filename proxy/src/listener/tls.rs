//! TLS for clients.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    self, ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

/// The reason why a certificate or key is unusable.
#[derive(Debug, thiserror::Error)]
pub enum ServerTlsError {
    /// A file cannot be read or is not PEM.
    #[error("{path}: {source}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: pem::Error,
    },
    /// rustls refuses the certificate and key.
    #[error("{path}: {source}")]
    Refused {
        /// The certificate's file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
}

/// Creates the TLS configuration for connections from clients, from a certificate chain and its
/// key. Each is in a PEM file.
///
/// # Errors
/// See [`ServerTlsError`].
pub(crate) fn server_config(
    certificate: &Path,
    key: &Path,
) -> Result<ServerConfig, ServerTlsError> {
    let wrong = |path: &Path| {
        let path = path.to_owned();
        move |source| ServerTlsError::Pem { path, source }
    };
    let chain = CertificateDer::pem_file_iter(certificate).map_err(wrong(certificate))?;
    let chain = chain
        .collect::<Result<Vec<_>, _>>()
        .map_err(wrong(certificate))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(wrong(key))?;
    let refused = |source| ServerTlsError::Refused {
        path: certificate.to_owned(),
        source,
    };
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(refused)
}
