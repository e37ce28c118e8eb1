//! Reads certificates, keys and revocation lists from PEM files, and finds when the certificates
//! and the lists expire.

use std::{
    fmt,
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
    /// A file has none of the expected items.
    #[error("{path}: no {item} in the file")]
    Missing {
        /// The path of the file.
        path: PathBuf,
        /// The kind of item that was expected, such as `certificate`.
        item: &'static str,
    },
    /// rustls refuses the content of a file, for example because the key does not match the
    /// certificate.
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
    /// The content. It may be a private key, so it must not appear in a log.
    pub content: &'a str,
}

impl fmt::Debug for Pem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pem").field(&self.path).finish()
    }
}

impl Pem<'_> {
    /// Returns all certificates in the file (at least one), and the time of the earliest expiry.
    ///
    /// # Errors
    /// If the file has no certificate, or a certificate is malformed.
    pub fn certificates(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, CertificateExpiry), PemError> {
        let certificates: Vec<CertificateDer<'static>> = self.items("certificate")?;
        let expiry = self.first(certificates.iter().map(not_after).collect())?;
        Ok((certificates, expiry))
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

    /// Returns all revocation lists in the file (at least one), and the earliest time at which a
    /// list must be replaced (`nextUpdate`). A list without `nextUpdate` is valid forever.
    ///
    /// # Errors
    /// If the file has no revocation list, or a list is malformed.
    fn revocation_lists(
        &self,
    ) -> Result<
        (
            Vec<CertificateRevocationListDer<'static>>,
            CertificateExpiry,
        ),
        PemError,
    > {
        let lists: Vec<CertificateRevocationListDer<'static>> =
            self.items("certificate revocation list")?;
        let next_updates = lists.iter().map(|list| {
            let (_, list) = parse_x509_crl(list).ok()?;
            Some(list.next_update().map_or(i64::MAX, |time| time.timestamp()))
        });
        let expiry = self.first(next_updates.collect())?;
        Ok((lists, expiry))
    }

    /// Returns the first private key in the file.
    ///
    /// # Errors
    /// If the file has no private key, or the key is malformed.
    pub fn private_key(&self) -> Result<PrivateKeyDer<'static>, PemError> {
        PrivateKeyDer::from_pem_slice(self.content.as_bytes())
            .map_err(|source| self.malformed(source))
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

    /// Returns the earliest of `times`. Fails if `times` is `None`, because then an item of the
    /// file is malformed.
    fn first(&self, times: Option<Vec<i64>>) -> Result<CertificateExpiry, PemError> {
        let first = times.and_then(|times| times.into_iter().min());
        Ok(CertificateExpiry {
            file: self.path.display().to_string(),
            not_after: first.ok_or_else(|| PemError::Malformed {
                path: self.path.to_owned(),
            })?,
        })
    }
}

/// Reads the certificates of authorities in several files. Returns a certificate store that trusts
/// these authorities, and the list of their certificates. Adds the expiry of each file to
/// `expiries`.
///
/// # Errors
/// If a file is malformed, or rustls refuses one of its certificates.
pub fn authorities(
    files: &[Pem<'_>],
    expiries: &mut Vec<CertificateExpiry>,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), PemError> {
    let (mut roots, mut all) = (RootCertStore::empty(), Vec::new());
    for file in files {
        let (certificates, expiry) = file.certificates()?;
        expiries.push(expiry);
        for certificate in certificates {
            let added = roots.add(certificate.clone());
            added.map_err(|source| file.refused(source))?;
            all.push(certificate);
        }
    }
    Ok((roots, all))
}

/// Reads the revocation lists in several files. For each file, adds to `expiries` the earliest time
/// at which one of its lists must be replaced.
///
/// # Errors
/// If a file has no revocation list, or a list is malformed.
pub fn revocation_lists(
    files: &[Pem<'_>],
    expiries: &mut Vec<CertificateExpiry>,
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    let mut all = Vec::new();
    for file in files {
        let (lists, expiry) = file.revocation_lists()?;
        expiries.push(expiry);
        all.extend(lists);
    }
    Ok(all)
}

/// An authority without a current revocation list. Seawall refuses the certificates that this
/// authority has issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityWithoutList {
    /// The subject of the authority, such as `CN=clients, O=Example`.
    pub authority: String,
    /// The state of the authority's list: `missing` or `outdated`.
    pub list: &'static str,
}

/// Finds the authorities without a current revocation list at the time `now`, in seconds since the
/// Unix epoch. Without any list, revocation is not checked, so no authority needs a list.
///
/// Only the issuers of the peers' own certificates need a list. So an authority that has issued the
/// certificate of another authority in `authorities` is skipped.
pub fn authorities_without_list(
    authorities: &[CertificateDer<'_>],
    lists: &[CertificateRevocationListDer<'_>],
    now: i64,
) -> Vec<AuthorityWithoutList> {
    if lists.is_empty() {
        return Vec::new();
    }
    let parsed = authorities.iter().filter_map(|certificate| {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        Some(certificate)
    });
    let authorities: Vec<_> = parsed.collect();
    let parsed = lists.iter().filter_map(|list| {
        let (_, list) = parse_x509_crl(list).ok()?;
        Some(list)
    });
    let lists: Vec<_> = parsed.collect();
    let mut found = Vec::new();
    for authority in &authorities {
        let subject = authority.subject().as_raw();
        let has_issued_another = authorities
            .iter()
            .any(|other| other.issuer().as_raw() == subject && other.subject().as_raw() != subject);
        if has_issued_another {
            continue;
        }
        let list = lists.iter().find(|list| list.issuer().as_raw() == subject);
        let next_update = list.map(|list| list.next_update().map_or(i64::MAX, |of| of.timestamp()));
        let list = match next_update {
            None => "missing",
            Some(time) if time <= now => "outdated",
            Some(_) => continue,
        };
        found.push(AuthorityWithoutList {
            authority: authority.subject().to_string(),
            list,
        });
    }
    found
}

/// Returns the end of the validity of a certificate, in seconds since the Unix epoch; `None` if the
/// certificate is malformed.
pub fn not_after(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    Some(certificate.validity().not_after.timestamp())
}

/// Returns the subject of a certificate, such as `CN=monitoring, O=Example`; `None` if the
/// certificate is malformed.
pub fn subject(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    Some(certificate.subject().to_string())
}

/// When the certificates or revocation lists of a file expire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateExpiry {
    /// The path of the file.
    pub file: String,
    /// The end of the validity in seconds since the Unix epoch. If the file has several
    /// certificates or lists, the earliest end. [`i64::MAX`] for revocation lists without an end.
    pub not_after: i64,
}

#[cfg(test)]
mod tests {
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType, IsCa, Issuer,
        KeyIdMethod, KeyPair, KeyUsagePurpose, SerialNumber, date_time_ymd,
    };

    use super::*;

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    fn authority(name: &str) -> (Issuer<'static, KeyPair>, CertificateDer<'static>) {
        let (params, key) = (params(name), KeyPair::generate().unwrap());
        let certificate = params.self_signed(&key).unwrap().der().clone();
        (Issuer::new(params, key), certificate)
    }

    /// A revocation list that must be replaced at the beginning of the year `next_update_year`.
    fn list(
        issuer: &Issuer<'static, KeyPair>,
        next_update_year: i32,
    ) -> CertificateRevocationListDer<'static> {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(next_update_year - 1, 1, 1),
            next_update: date_time_ymd(next_update_year, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: Vec::new(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(issuer).unwrap().der().clone()
    }

    fn found(
        authorities: &[CertificateDer<'_>],
        lists: &[CertificateRevocationListDer<'_>],
    ) -> Vec<(String, &'static str)> {
        let now = date_time_ymd(2_030, 1, 1).unix_timestamp();
        let found = authorities_without_list(authorities, lists, now).into_iter();
        found.map(|of| (of.authority, of.list)).collect()
    }

    #[test]
    fn authorities_with_a_missing_or_outdated_revocation_list_are_found() {
        let [first, second, third] = ["first", "second", "third"].map(authority);
        let authorities = [first.1, second.1, third.1];
        let lists = [list(&first.0, 2_031), list(&second.0, 2_030)];
        let expected = [
            ("CN=second".to_owned(), "outdated"),
            ("CN=third".to_owned(), "missing"),
        ];
        assert_eq!(found(&authorities, &lists), expected);
        assert!(found(&authorities, &[]).is_empty());
    }

    #[test]
    fn an_authority_that_issued_the_certificate_of_another_authority_needs_no_revocation_list() {
        let (root, certificate) = authority("root");
        let (params, key) = (params("intermediate"), KeyPair::generate().unwrap());
        let issued = params.signed_by(&key, &root).unwrap().der().clone();
        let intermediate = Issuer::new(params, key);
        let lists = [list(&intermediate, 2_031)];
        assert!(found(&[certificate, issued], &lists).is_empty());
    }
}
