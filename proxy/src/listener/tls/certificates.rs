//! Seawall's certificates: reads them, chooses one for a client, and knows when they expire.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio_rustls::rustls::{
    self,
    client::verify_server_name,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName,
        pem::{self, PemObject},
    },
    server::{ClientHello, ParsedCertificate, ResolvesServerCert, VerifierBuilderError},
    sign::CertifiedKey,
};
use x509_parser::{parse_x509_certificate, parse_x509_crl};

/// The reason why certificates, keys or revocation lists are unusable.
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
    /// A file has none of the expected items.
    #[error("{path}: no {item} in the file")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The expected item.
        item: &'static str,
    },
    /// rustls refuses the content of a file, for example because key and certificate differ.
    #[error("{path}: {source}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// A certificate or revocation list is malformed.
    #[error("{path}: malformed certificate or revocation list")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// The authorities or revocation lists are unusable.
    #[error("certificates of clients: {0}")]
    Verifier(#[from] VerifierBuilderError),
    /// TLS cannot be set up.
    #[error("cannot set up TLS: {0}")]
    Setup(rustls::Error),
}

/// A PEM file that has been read.
#[derive(Clone, Copy)]
pub(crate) struct Pem<'a> {
    /// The path, for errors.
    pub(crate) path: &'a Path,
    /// The content. It may be a private key, so it must not appear in a log.
    pub(crate) content: &'a str,
}

impl std::fmt::Debug for Pem<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pem").field(&self.path).finish()
    }
}

impl Pem<'_> {
    /// All items of one kind in the file, at least one.
    pub(super) fn items<T: PemObject>(&self, item: &'static str) -> Result<Vec<T>, ServerTlsError> {
        let items = T::pem_slice_iter(self.content.as_bytes());
        let items = items.collect::<Result<Vec<_>, _>>();
        let items = items.map_err(|source| ServerTlsError::Pem {
            path: self.path.to_owned(),
            source,
        })?;
        match items.is_empty() {
            true => Err(ServerTlsError::Missing {
                path: self.path.to_owned(),
                item,
            }),
            false => Ok(items),
        }
    }

    /// When the first of these certificates expires.
    pub(super) fn expiry(
        &self,
        certificates: &[CertificateDer<'_>],
    ) -> Result<CertificateExpiry, ServerTlsError> {
        let not_after = certificates.iter().map(|certificate| {
            let (_, certificate) = parse_x509_certificate(certificate).ok()?;
            Some(certificate.validity().not_after.timestamp())
        });
        let not_after = not_after.collect::<Option<Vec<_>>>();
        self.first(not_after)
    }

    /// When the first of these revocation lists must be replaced. A list without such a time is
    /// valid for ever.
    pub(super) fn list_expiry(
        &self,
        lists: &[CertificateRevocationListDer<'_>],
    ) -> Result<CertificateExpiry, ServerTlsError> {
        let next_updates = lists.iter().map(|list| {
            let (_, list) = parse_x509_crl(list).ok()?;
            Some(list.next_update().map_or(i64::MAX, |time| time.timestamp()))
        });
        self.first(next_updates.collect())
    }

    /// The first of these times; `None` if an item of the file is malformed.
    fn first(&self, times: Option<Vec<i64>>) -> Result<CertificateExpiry, ServerTlsError> {
        let first = times.and_then(|times| times.into_iter().min());
        Ok(CertificateExpiry {
            file: self.path.display().to_string(),
            not_after: first.ok_or_else(|| ServerTlsError::Malformed {
                path: self.path.to_owned(),
            })?,
        })
    }
}

/// When the certificates or revocation lists of a file expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateExpiry {
    /// The path of the file.
    pub(crate) file: String,
    /// The end of the validity in seconds since the epoch. For several certificates, the first end.
    pub(crate) not_after: i64,
}

/// Reads certificate chains and their keys. Returns them with the times at which they expire.
pub(super) fn load(
    files: &[(Pem<'_>, Pem<'_>)],
) -> Result<(Certificates, Vec<CertificateExpiry>), ServerTlsError> {
    let mut certificates = Vec::new();
    let mut expiries = Vec::new();
    for (certificate, key) in files {
        let chain: Vec<CertificateDer<'static>> = certificate.items("certificate")?;
        expiries.push(certificate.expiry(&chain)?);
        let pem = |source| ServerTlsError::Pem {
            path: key.path.to_owned(),
            source,
        };
        let key = PrivateKeyDer::from_pem_slice(key.content.as_bytes()).map_err(pem)?;
        let certified = CertifiedKey::from_der(chain, key, &super::provider());
        let certified = certified.map_err(|source| ServerTlsError::Refused {
            path: certificate.path.to_owned(),
            source,
        })?;
        certificates.push(Arc::new(certified));
    }
    Ok((Certificates(certificates), expiries))
}

/// Chooses the certificate for a client: the first one that is valid for the host name that the
/// client requests, with a key that the client supports. If none is valid for the name, or the
/// client requests none, the first one whose key the client supports.
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
        named.or_else(|| supported().next()).cloned()
    }
}

fn is_valid_for(certified: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = certified.end_entity_cert();
    let parsed = parsed.and_then(ParsedCertificate::try_from);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}
