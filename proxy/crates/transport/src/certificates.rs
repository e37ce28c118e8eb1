//! Reads certificates, keys and revocation lists from PEM files, and finds when the certificates
//! and the lists expire.

use std::{
    collections::HashSet,
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use tokio_rustls::rustls::{
    self, RootCertStore,
    pki_types::{
        CertificateDer, CertificateRevocationListDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};
use x509_parser::{parse_x509_certificate, parse_x509_crl};

/// Maximum number of expiries that are reported for the certificates in one file, or for the
/// revocation lists in one file. The list of authorities of an operating system is several times
/// shorter. The number is limited, because each reported expiry is a series of a metric and a line
/// of the log.
const MAX_EXPIRIES: usize = 1_024;

/// The reason why the content of a PEM file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// A file is not PEM.
    #[error("{path}: {source}")]
    Pem {
        /// The path of the file.
        path: PathBuf,
        /// The error of the PEM parser.
        source: pem::Error,
    },
    /// A private key cannot be decrypted, for example because the password is wrong.
    #[error("{path}: cannot decrypt the private key: {source}")]
    NotDecrypted {
        /// The path of the file.
        path: PathBuf,
        /// The error of the decryption.
        source: pkcs8::Error,
    },
    /// A private key is encrypted, and there is no password for it, or its format is not supported.
    #[error(
        "{path}: the private key is encrypted. Only the key of a connection string may be \
         encrypted, as PKCS#8, with tlsCertificateKeyFilePassword"
    )]
    EncryptedKey {
        /// The path of the file.
        path: PathBuf,
    },
    /// A file has none of the expected items.
    #[error("{path}: no {item} in the file")]
    Missing {
        /// The path of the file.
        path: PathBuf,
        /// The kind of item that was expected, such as `certificate`.
        item: &'static str,
    },
    /// The private key in one file does not belong to the certificate in the other file.
    #[error("{certificate}: the private key in {key} does not belong to this certificate")]
    OtherKey {
        /// The path of the file with the certificate.
        certificate: PathBuf,
        /// The path of the file with the private key.
        key: PathBuf,
    },
    /// rustls refuses the content of a file.
    #[error("{path}: {source}")]
    Refused {
        /// The path of the file.
        path: PathBuf,
        /// The error of rustls.
        source: rustls::Error,
    },
    /// A certificate or revocation list is malformed.
    #[error("{path}: malformed certificate or revocation list")]
    Malformed {
        /// The path of the file.
        path: PathBuf,
    },
}

/// A PEM file that has been read.
#[derive(Clone, Copy)]
pub struct Pem<'a> {
    /// The path of the file. It appears in [`PemError`].
    pub path: &'a Path,
    /// The content of the file. It may contain a private key, so it must not appear in a log.
    pub content: &'a str,
}

impl fmt::Debug for Pem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pem").field(&self.path).finish()
    }
}

impl Pem<'_> {
    /// Returns all certificates in the file (at least one), and the earliest of their expiries (at
    /// most `MAX_EXPIRIES`).
    ///
    /// # Errors
    /// If the file has no certificate, or a certificate is malformed.
    pub fn certificates(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, Vec<CertificateExpiry>), PemError> {
        let certificates: Vec<CertificateDer<'static>> = self.items("certificate")?;
        let expiries = certificates.iter().map(|certificate| {
            let (_, certificate) = parse_x509_certificate(certificate).ok()?;
            Some(CertificateExpiry {
                file: self.path.display().to_string(),
                kind: ExpiryKind::Certificate,
                subject: certificate.subject().to_string(),
                serial: format!("{:x}", certificate.serial),
                not_after: certificate.validity().not_after.timestamp(),
            })
        });
        let expiries = self.earliest(expiries.collect())?;
        Ok((certificates, expiries))
    }

    /// Returns the authorities in the file (at least one). Certificates that cannot be parsed are
    /// skipped.
    ///
    /// # Errors
    /// If the file has no certificate that can be parsed.
    pub(crate) fn parsable_authorities(&self) -> Result<RootCertStore, PemError> {
        let certificates = CertificateDer::pem_slice_iter(self.content.as_bytes());
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certificates.filter_map(Result::ok));
        match added {
            0 => Err(PemError::Missing {
                path: self.path.to_owned(),
                item: "usable certificate",
            }),
            _ => Ok(roots),
        }
    }

    /// Returns all revocation lists in the file (at least one), and the earliest of their expiries
    /// (at most `MAX_EXPIRIES`). The expiry of a list is the time at which it must be replaced
    /// (`nextUpdate`). A list without `nextUpdate` is valid forever.
    ///
    /// # Errors
    /// If the file has no revocation list, or a list is malformed.
    pub(crate) fn revocation_lists(
        &self,
    ) -> Result<
        (
            Vec<CertificateRevocationListDer<'static>>,
            Vec<CertificateExpiry>,
        ),
        PemError,
    > {
        let lists: Vec<CertificateRevocationListDer<'static>> =
            self.items("certificate revocation list")?;
        let expiries = lists.iter().map(|list| {
            let (_, list) = parse_x509_crl(list).ok()?;
            let number = list.crl_number().map(|number| format!("{number:x}"));
            Some(CertificateExpiry {
                file: self.path.display().to_string(),
                kind: ExpiryKind::RevocationList,
                subject: list.issuer().to_string(),
                serial: number.unwrap_or_default(),
                not_after: list.next_update().map_or(i64::MAX, |time| time.timestamp()),
            })
        });
        let expiries = self.earliest(expiries.collect())?;
        Ok((lists, expiries))
    }

    /// Returns the first private key in the file.
    ///
    /// # Errors
    /// If the file has no private key, or the key is malformed or encrypted.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        let key = PrivateKeyDer::from_pem_slice(self.content.as_bytes());
        key.map_err(|source| match source {
            _ if self.has_any_encrypted_key() => PemError::EncryptedKey {
                path: self.path.to_owned(),
            },
            pem::Error::NoItemsFound => PemError::Missing {
                path: self.path.to_owned(),
                item: "private key",
            },
            source => self.malformed(source),
        })
    }

    /// Converts an error of rustls, which refused the certificate in this file together with the
    /// private key in `key`, to a [`PemError`].
    #[must_use]
    pub fn refused_with(&self, key: &Pem<'_>, source: rustls::Error) -> PemError {
        match source {
            rustls::Error::InconsistentKeys(_) => PemError::OtherKey {
                certificate: self.path.to_owned(),
                key: key.path.to_owned(),
            },
            source => self.refused(source),
        }
    }

    /// Converts an error of rustls, which refused the content of this file, to a [`PemError`].
    #[must_use]
    pub fn refused(&self, source: rustls::Error) -> PemError {
        PemError::Refused {
            path: self.path.to_owned(),
            source,
        }
    }

    fn malformed(&self, source: pem::Error) -> PemError {
        PemError::Pem {
            path: self.path.to_owned(),
            source,
        }
    }

    /// Parses all items of one type in the file. Fails if the file has none. `item` is the name of
    /// the type in errors.
    fn items<T: PemObject>(&self, item: &'static str) -> Result<Vec<T>, PemError> {
        let items = T::pem_slice_iter(self.content.as_bytes());
        let items = items.collect::<Result<Vec<_>, _>>();
        let items = items.map_err(|source| self.malformed(source))?;
        match items.is_empty() {
            true => Err(PemError::Missing {
                path: self.path.to_owned(),
                item,
            }),
            false => Ok(items),
        }
    }

    /// Returns the earliest of `expiries`, at most [`MAX_EXPIRIES`], in the order of their times.
    /// Fails if `expiries` is `None`, because then an item of the file is malformed.
    fn earliest(
        &self,
        expiries: Option<Vec<CertificateExpiry>>,
    ) -> Result<Vec<CertificateExpiry>, PemError> {
        let mut expiries = expiries.ok_or_else(|| PemError::Malformed {
            path: self.path.to_owned(),
        })?;
        expiries.sort_by_key(|expiry| expiry.not_after);
        let mut earliest = without_repetitions(expiries);
        earliest.truncate(MAX_EXPIRIES);
        Ok(earliest)
    }
}

/// Reads the certificates of authorities in several files. Returns a certificate store that trusts
/// these authorities, and the list of their certificates. Adds the expiries of the certificates to
/// `expiries`. If a file has many certificates, only the earliest expiries are added.
///
/// # Errors
/// If a file is malformed, or rustls refuses one of its certificates.
pub fn authorities(
    files: &[Pem<'_>],
    expiries: &mut Vec<CertificateExpiry>,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), PemError> {
    let (mut roots, mut all) = (RootCertStore::empty(), Vec::new());
    for file in files {
        let (certificates, of_file) = file.certificates()?;
        expiries.extend(of_file);
        for certificate in certificates {
            let added = roots.add(certificate.clone());
            added.map_err(|source| file.refused(source))?;
            all.push(certificate);
        }
    }
    Ok((roots, all))
}

/// Returns the first and the last second in which a certificate is valid, in seconds since the Unix
/// epoch; `None` if the certificate is malformed.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<RangeInclusive<i64>> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let validity = certificate.validity();
    Some(validity.not_before.timestamp()..=validity.not_after.timestamp())
}

/// Returns the end of the validity of a certificate, in seconds since the Unix epoch; `None` if the
/// certificate is malformed.
pub fn not_after(certificate: &CertificateDer<'_>) -> Option<i64> {
    validity(certificate).map(|validity| *validity.end())
}

/// Returns the subject of a certificate, such as `CN=monitoring, O=Example`; `None` if the
/// certificate is malformed.
pub fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    Some(certificate.subject().to_string())
}

/// When a certificate or revocation list expires.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateExpiry {
    /// The path of the file.
    pub file: String,
    /// The kind of the item in the file.
    pub kind: ExpiryKind,
    /// The subject of a certificate, or the issuer of a revocation list, such as `CN=clients`.
    pub subject: String,
    /// The hexadecimal serial number of a certificate, or the CRL number of a revocation list.
    /// Empty if a list has no number.
    pub serial: String,
    /// The end of the validity in seconds since the Unix epoch. [`i64::MAX`] for a revocation list
    /// without an end.
    pub not_after: i64,
}

/// The kind of an item that is in a PEM file and has an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExpiryKind {
    /// A certificate.
    Certificate,
    /// A certificate revocation list.
    RevocationList,
}

impl ExpiryKind {
    /// The name in logs, metrics and the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::RevocationList => "revocation_list",
        }
    }
}

/// Removes each entry that equals an earlier entry. Two certificates with the same subject and
/// serial number may come from different issuers, so entries with different times are kept.
#[must_use]
pub fn without_repetitions(mut expiries: Vec<CertificateExpiry>) -> Vec<CertificateExpiry> {
    let mut known = HashSet::new();
    expiries.retain(|expiry| known.insert(expiry.clone()));
    expiries
}

#[cfg(test)]
mod tests {
    use rcgen::{Issuer, KeyPair, SerialNumber, date_time_ymd};

    use super::*;
    use crate::{
        revocation::tests::{numbered_list, params},
        revocation_lists,
    };

    /// The expiry of a certificate with the subject `CN=clients` at the beginning of a year.
    fn expiry(serial: &str, year: i32) -> CertificateExpiry {
        CertificateExpiry {
            file: "ca.pem".to_owned(),
            kind: ExpiryKind::Certificate,
            subject: "CN=clients".to_owned(),
            serial: serial.to_owned(),
            not_after: date_time_ymd(year, 1, 1).unix_timestamp(),
        }
    }

    fn pem(content: &str) -> Pem<'_> {
        Pem {
            path: Path::new("ca.pem"),
            content,
        }
    }

    #[test]
    fn both_expiries_are_returned_for_two_authorities_of_the_same_name_in_one_file() {
        let bundle = [(0x1f_u64, 2_032), (0x20, 2_031)].map(|(serial, year)| {
            let mut params = params("clients");
            params.serial_number = Some(SerialNumber::from(serial));
            params.not_after = date_time_ymd(year, 1, 1);
            let key = KeyPair::generate().unwrap();
            params.self_signed(&key).unwrap().pem()
        });
        let (certificates, expiries) = pem(&bundle.concat()).certificates().unwrap();
        assert_eq!(certificates.len(), 2);
        assert_eq!(expiries, [expiry("20", 2_031), expiry("1f", 2_032)]);
    }

    #[test]
    fn expiries_of_a_file_that_two_listeners_use_are_returned_only_once() {
        let mut params = params("clients");
        params.serial_number = Some(SerialNumber::from(0x1f_u64));
        params.not_after = date_time_ymd(2_032, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let list = numbered_list(&Issuer::new(params, key), 1, 2_031);
        let list = list.pem().unwrap();
        let content = format!("{certificate}{list}");
        let mut expiries = Vec::new();
        // Two listeners use the same file.
        for _ in 0..2 {
            authorities(&[pem(&content)], &mut expiries).unwrap();
            revocation_lists(&[pem(&content)], &mut expiries).unwrap();
        }
        let of_list = CertificateExpiry {
            kind: ExpiryKind::RevocationList,
            ..expiry("1", 2_031)
        };
        let expected = [expiry("1f", 2_032), of_list];
        assert_eq!(without_repetitions(expiries), expected);
    }

    #[test]
    fn without_repetitions_keeps_certificates_that_differ_only_in_their_expiry_times() {
        let all = [("1", 2_031), ("1", 2_032), ("1", 2_031)];
        let all = all.map(|(serial, year)| expiry(serial, year));
        let kept = without_repetitions(all.to_vec());
        assert_eq!(kept, [expiry("1", 2_031), expiry("1", 2_032)]);
    }

    /// The bundle of authorities of an operating system has about 150 certificates.
    #[test]
    fn all_expiries_of_a_file_are_returned_or_the_earliest_1_024_if_there_are_more() {
        for (count, expected) in [(150_i32, 150_i32), (1_024, 1_024), (1_025, 1_024)] {
            let expiries = (1..=count).rev().map(|n| expiry(&n.to_string(), 2_000 + n));
            let kept = pem("").earliest(Some(expiries.collect())).unwrap();
            let kept: Vec<_> = kept.into_iter().map(|of| of.serial).collect();
            let expected: Vec<_> = (1..=expected).map(|n| n.to_string()).collect();
            assert_eq!(kept, expected);
        }
    }
}
