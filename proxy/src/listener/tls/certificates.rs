//! Reads Seawall's certificates, and chooses one of them for each client.

use std::{iter, ops::RangeInclusive, sync::Arc};

use seawall_transport::{CertificateExpiry, Pem, PemError, validity};
use tokio_rustls::rustls::{
    self, SignatureScheme,
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
    /// With the new files, an authority has no current revocation list, but with the files in use,
    /// it has one. So the new files would refuse all clients of this authority.
    #[error(
        "the revocation list of the authority {authority} is {list}, but the list in use is \
         current; the previous files stay in use"
    )]
    ListLost {
        /// The subject of the authority.
        authority: String,
        /// The state of the new list: `missing` or `outdated`.
        list: &'static str,
    },
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
        let validity = chain.first().and_then(validity);
        let validity = validity.ok_or_else(|| PemError::Malformed {
            path: certificate.path.to_owned(),
        })?;
        let certified = CertifiedKey::from_der(chain, key.private_key()?, &super::provider());
        let certified = certified.map_err(|source| certificate.refused_with(key, source))?;
        certificates.push(OwnCertificate {
            certified: Arc::new(certified),
            validity,
        });
    }
    Ok((Certificates(certificates), expiries))
}

/// Seawall's certificates. The certificate for a client is chosen in this order:
///
/// - A certificate for the host name that the client requests, whose key the client supports.
/// - Any certificate whose key the client supports.
/// - The first certificate, if the client supports none of the keys. rustls then refuses the client
///   with the alert `handshake_failure`. If Seawall chose no certificate, rustls would send the
///   alert `access_denied`.
///
/// If several certificates match, the client gets the first of them whose validity period includes
/// the current time. If there is none, it gets the first one that matches.
#[derive(Debug)]
pub(super) struct Certificates(Vec<OwnCertificate>);

/// One of Seawall's certificates, with its chain and its key.
#[derive(Debug)]
struct OwnCertificate {
    certified: Arc<CertifiedKey>,
    /// The first and the last second in which the certificate is valid, in seconds since the Unix
    /// epoch. The chain is not included: many clients accept a chain although it contains an
    /// expired certificate of an authority, because they know a newer one.
    validity: RangeInclusive<i64>,
}

impl Certificates {
    /// Chooses the certificate for a client. `schemes` are the signatures that the client supports,
    /// and `name` is the host name that it requests. `now` is in seconds since the Unix epoch.
    fn choose(
        &self,
        schemes: &[SignatureScheme],
        name: Option<&str>,
        now: i64,
    ) -> Option<&OwnCertificate> {
        let is_supported = |own: &&OwnCertificate| {
            let key = &own.certified.key;
            key.choose_scheme(schemes).is_some()
        };
        let supported = || self.0.iter().filter(is_supported);
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let named = name.and_then(|name| {
            let named = supported().filter(|own| is_valid_for(&own.certified, &name));
            first_valid_or_first(named, now)
        });
        let chosen = named.or_else(|| first_valid_or_first(supported(), now));
        chosen.or_else(|| self.0.first())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chosen = self.choose(hello.signature_schemes(), hello.server_name(), super::now());
        chosen.map(|own| Arc::clone(&own.certified))
    }
}

/// The first certificate that is valid at the time `now`. If there is none, the first certificate.
fn first_valid_or_first<'a>(
    mut certificates: impl Iterator<Item = &'a OwnCertificate>,
    now: i64,
) -> Option<&'a OwnCertificate> {
    let first = certificates.next()?;
    let mut all = iter::once(first).chain(certificates);
    all.find(|own| own.validity.contains(&now)).or(Some(first))
}

fn is_valid_for(certified: &CertifiedKey, name: &ServerName<'_>) -> bool {
    let parsed = certified.end_entity_cert();
    let parsed = parsed.and_then(ParsedCertificate::try_from);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
}

#[cfg(test)]
mod tests {
    use std::{path::Path, ptr};

    use rcgen::{
        CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm,
        date_time_ymd,
    };
    use tokio_rustls::rustls::SignatureScheme::{ECDSA_NISTP256_SHA256, ED25519, RSA_PKCS1_SHA256};

    use super::*;

    /// The contents of the files of a certificate and its key. The certificate is valid from the
    /// beginning of the first year to the beginning of the second year.
    fn issue(
        name: &str,
        algorithm: &'static SignatureAlgorithm,
        years: [i32; 2],
    ) -> (String, String) {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let [not_before, not_after] = years.map(|year| date_time_ymd(year, 1, 1));
        params.not_before = not_before;
        params.not_after = not_after;
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_missing_key_and_the_key_of_another_certificate_are_named_with_their_files() {
        let [(certificate, _), (_, key)] =
            ["a", "b"].map(|name| issue(name, &PKCS_ECDSA_P256_SHA256, [2_020, 2_040]));
        let path = Path::new("certificate.pem");
        let error = |key: &str| {
            let key = Pem {
                path: Path::new("key.pem"),
                content: key,
            };
            let content = &certificate;
            load(&[(Pem { path, content }, key)])
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            error(&key),
            "certificate.pem: the private key in key.pem does not belong to this certificate"
        );
        assert_eq!(error(&certificate), "key.pem: no private key in the file");
    }

    #[test]
    fn a_certificate_that_is_not_valid_now_is_chosen_only_if_no_other_one_fits() {
        let files = [
            issue("a.example", &PKCS_ECDSA_P256_SHA256, [2_020, 2_024]),
            issue("a.example", &PKCS_ED25519, [2_020, 2_030]),
            issue("a.example", &PKCS_ECDSA_P256_SHA256, [2_020, 2_030]),
            issue("a.example", &PKCS_ECDSA_P256_SHA256, [2_028, 2_040]),
            issue("b.example", &PKCS_ECDSA_P256_SHA256, [2_020, 2_040]),
        ];
        let path = Path::new("file");
        let pems = files.each_ref().map(|(certificate, key)| {
            let [certificate, key] = [certificate, key].map(|content| Pem { path, content });
            (certificate, key)
        });
        let (certificates, _) = load(&pems).unwrap();
        let both = [ED25519, ECDSA_NISTP256_SHA256];
        let ecdsa = [ECDSA_NISTP256_SHA256];
        let (a, b) = (Some("a.example"), Some("b.example"));
        for (name, schemes, year, expected) in [
            (a, &ecdsa[..], 2_022, 0),
            (a, &ecdsa[..], 2_026, 2),
            (a, &both[..], 2_026, 1),
            (a, &ecdsa[..], 2_032, 3),
            (a, &both[..], 2_050, 0),
            (b, &ecdsa[..], 2_050, 4),
            (None, &ecdsa[..], 2_026, 2),
            (Some("c.example"), &ecdsa[..], 2_032, 3),
            (None, &ecdsa[..], 2_050, 0),
            (a, &[RSA_PKCS1_SHA256][..], 2_026, 0),
        ] {
            let now = date_time_ymd(year, 6, 1).unix_timestamp();
            let chosen = certificates.choose(schemes, name, now).unwrap();
            let place = certificates.0.iter().position(|own| ptr::eq(own, chosen));
            assert_eq!(place, Some(expected), "{name:?}, {schemes:?}, {year}");
        }
    }
}
