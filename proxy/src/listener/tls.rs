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

/// A PEM file that has been read.
#[derive(Clone, Copy)]
pub(crate) struct Pem<'a> {
    /// The path, for errors.
    pub(crate) path: &'a Path,
    /// The content.
    pub(crate) content: &'a str,
}

/// Creates the TLS configuration for connections from clients, from a certificate chain and its
/// key.
///
/// # Errors
/// See [`ServerTlsError`].
pub(crate) fn server_config(
    certificate: Pem<'_>,
    key: Pem<'_>,
) -> Result<ServerConfig, ServerTlsError> {
    let wrong = |pem: Pem<'_>| {
        let path = pem.path.to_owned();
        move |source| ServerTlsError::Pem { path, source }
    };
    let chain = CertificateDer::pem_slice_iter(certificate.content.as_bytes());
    let chain = chain
        .collect::<Result<Vec<_>, _>>()
        .map_err(wrong(certificate))?;
    let key = PrivateKeyDer::from_pem_slice(key.content.as_bytes()).map_err(wrong(key))?;
    let refused = |source| ServerTlsError::Refused {
        path: certificate.path.to_owned(),
        source,
    };
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(refused)
}
