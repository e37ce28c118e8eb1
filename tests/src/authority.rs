//! A certificate authority for one test. It issues revocation lists, and certificates for servers
//! and clients. The certificates can be valid or expired.

use std::{sync::Arc, time::Duration};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber, SignatureAlgorithm,
};
use time::OffsetDateTime;
use tokio_rustls::rustls::{
    self, ClientConfig, RootCertStore, ServerConfig, SignatureScheme,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
};

/// Algorithms for the keys of certificates.
pub use rcgen::{PKCS_ECDSA_P256_SHA256 as ECDSA, PKCS_ED25519 as ED25519};

/// The reason why a certificate or a revocation list could not be created or used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A certificate or list could not be generated.
    #[error("could not generate a certificate or a revocation list")]
    Generate(#[from] rcgen::Error),
    /// The TLS library refused a certificate or a signature scheme.
    #[error("could not set up TLS")]
    Tls(#[from] rustls::Error),
}

/// The usual validity of a client's certificate: one year.
pub const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A certificate authority of one test, with its key.
#[derive(Debug)]
pub struct Authority {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate in PEM.
    pub certificate: String,
    /// The key in PEM.
    pub key: String,
    serial: SerialNumber,
    certificate_der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Authority {
    /// Generates an authority.
    ///
    /// # Errors
    /// If the key or the certificate cannot be generated.
    pub fn generate(name: &str) -> Result<Self, AuthorityError> {
        Self::generate_with(name, |_| {})
    }

    /// Generates an authority whose own certificate expired a minute ago.
    ///
    /// # Errors
    /// If the key or the certificate cannot be generated.
    pub fn expired(name: &str) -> Result<Self, AuthorityError> {
        Self::generate_with(name, |params| {
            let now = OffsetDateTime::now_utc();
            params.not_before = now - Duration::from_secs(3_600);
            params.not_after = now - Duration::from_secs(60);
        })
    }

    fn generate_with(
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate,
            issuer: Issuer::new(params, key),
        })
    }

    /// The authority's certificate in PEM.
    pub fn pem(&self) -> String {
        self.certificate.pem()
    }

    /// Issues a certificate for a server with these host names.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn server(
        &self,
        names: &[&str],
        algorithm: &'static SignatureAlgorithm,
    ) -> Result<Identity, AuthorityError> {
        let mut params = CertificateParams::new(owned(names))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, algorithm)
    }

    /// Issues a certificate for a server with these host names. It expired a minute ago.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn expired_server(&self, names: &[&str]) -> Result<Identity, AuthorityError> {
        self.server_until(names, OffsetDateTime::now_utc() - Duration::from_secs(60))
    }

    /// Issues a certificate for a server with these host names. It is valid for the given time.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn short_lived_server(
        &self,
        names: &[&str],
        valid_for: Duration,
    ) -> Result<Identity, AuthorityError> {
        self.server_until(names, OffsetDateTime::now_utc() + valid_for)
    }

    fn server_until(
        &self,
        names: &[&str],
        not_after: OffsetDateTime,
    ) -> Result<Identity, AuthorityError> {
        let mut params = CertificateParams::new(owned(names))?;
        params.not_before = OffsetDateTime::now_utc() - Duration::from_secs(3_600);
        params.not_after = not_after;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(params, &ECDSA)
    }

    /// Issues a certificate for a member of a replica set. The member also uses this certificate as
    /// a client of the other members.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn member(&self, name: &str, hosts: &[&str]) -> Result<Identity, AuthorityError> {
        let mut params = CertificateParams::new(owned(hosts))?;
        let subject = &mut params.distinguished_name;
        subject.push(DnType::CommonName, name);
        subject.push(DnType::OrganizationalUnitName, name);
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        self.issue(params, &ECDSA)
    }

    /// Issues a certificate for a client. It is valid for the given time.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn client(&self, name: &str, valid_for: Duration) -> Result<Identity, AuthorityError> {
        self.client_until(name, OffsetDateTime::now_utc() + valid_for)
    }

    /// Issues a certificate for a client. It expired a minute ago.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn expired_client(&self, name: &str) -> Result<Identity, AuthorityError> {
        self.client_until(name, OffsetDateTime::now_utc() - Duration::from_secs(60))
    }

    fn client_until(
        &self,
        name: &str,
        not_after: OffsetDateTime,
    ) -> Result<Identity, AuthorityError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = OffsetDateTime::now_utc() - Duration::from_secs(3_600);
        params.not_after = not_after;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.issue(params, &ECDSA)
    }

    fn issue(
        &self,
        mut params: CertificateParams,
        algorithm: &'static SignatureAlgorithm,
    ) -> Result<Identity, AuthorityError> {
        let key = KeyPair::generate_for(algorithm)?;
        let serial = key.public_key_raw().iter().skip(1).take(16).copied();
        let serial = SerialNumber::from(serial.collect::<Vec<_>>());
        params.serial_number = Some(serial.clone());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Identity::new(&certificate, &key, serial))
    }

    /// Issues a revocation list with these certificates, in PEM.
    ///
    /// # Errors
    /// If the list cannot be generated.
    pub fn revocation_list(&self, revoked: &[&Identity]) -> Result<String, AuthorityError> {
        self.revocation_list_of(OffsetDateTime::now_utc(), revoked)
    }

    /// Issues an empty revocation list that should have been replaced a day ago, in PEM.
    ///
    /// # Errors
    /// If the list cannot be generated.
    pub fn outdated_revocation_list(&self) -> Result<String, AuthorityError> {
        let issued = OffsetDateTime::now_utc() - Duration::from_secs(2 * 24 * 3_600);
        self.revocation_list_of(issued, &[])
    }

    fn revocation_list_of(
        &self,
        now: OffsetDateTime,
        revoked: &[&Identity],
    ) -> Result<String, AuthorityError> {
        let revoked = revoked.iter().map(|identity| RevokedCertParams {
            serial_number: identity.serial.clone(),
            revocation_time: now,
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: now,
            next_update: now + Duration::from_secs(24 * 3_600),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(params.signed_by(&self.issuer)?.pem()?)
    }

    /// The TLS configuration of a client that trusts only this authority, sends no certificate, and
    /// supports only signatures of one scheme.
    ///
    /// # Errors
    /// If the TLS library refuses the scheme.
    pub fn client_config_for(
        &self,
        scheme: SignatureScheme,
    ) -> Result<Arc<ClientConfig>, AuthorityError> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.der().clone())?;
        let mut provider = ring::default_provider();
        let all = provider.signature_verification_algorithms.mapping;
        let supported = all.iter().filter(|(of, _)| *of == scheme).copied();
        // The field needs a static list, so the list is leaked. It is small, and a test's
        // process ends soon.
        provider.signature_verification_algorithms.mapping =
            Vec::leak(supported.collect::<Vec<_>>());
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }

    /// The TLS configuration of a client that trusts only this authority, and sends the certificate
    /// of `identity`, if any. It stores TLS sessions and resumes them.
    ///
    /// # Errors
    /// If the TLS library refuses a certificate.
    pub fn client_config(
        &self,
        identity: Option<&Identity>,
    ) -> Result<Arc<ClientConfig>, AuthorityError> {
        client_config(self.certificate.der(), identity)
    }
}

impl Identity {
    /// A self-signed certificate of a client: no authority has signed the certificate.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn self_signed(name: &str) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.self_signed(&key)?;
        Ok(Self::new(&certificate, &key, SerialNumber::from(1_u64)))
    }

    /// A self-signed certificate for a server with these host names: no authority has signed the
    /// certificate.
    ///
    /// # Errors
    /// If the certificate cannot be generated.
    pub fn self_signed_server(names: &[&str]) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(owned(names))?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key)?;
        Ok(Self::new(&certificate, &key, SerialNumber::from(1_u64)))
    }

    /// The TLS configuration of a server that presents this certificate and requires none from
    /// clients.
    ///
    /// # Errors
    /// If the TLS library refuses the certificate.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, AuthorityError> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key_der.clone()));
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate_der.clone()], key)?;
        Ok(Arc::new(config))
    }

    /// The TLS configuration of a client that trusts only this certificate, which is self-signed,
    /// and sends no certificate.
    ///
    /// # Errors
    /// If the TLS library refuses the certificate.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, AuthorityError> {
        client_config(&self.certificate_der, None)
    }

    fn new(certificate: &rcgen::Certificate, key: &KeyPair, serial: SerialNumber) -> Self {
        Self {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            serial,
            certificate_der: certificate.der().clone(),
            key_der: key.serialize_der(),
        }
    }

    /// The certificate and the key in one text, in the format that drivers and mongod expect.
    pub fn pem(&self) -> String {
        format!("{}{}", self.certificate, self.key)
    }

    /// True if this is the certificate that a peer presented.
    pub fn is_presented_by(&self, peer: &[CertificateDer<'_>]) -> bool {
        peer.first() == Some(&self.certificate_der)
    }
}

fn client_config(
    trusted: &CertificateDer<'static>,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, AuthorityError> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone())?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.key_der.clone()));
            builder.with_client_auth_cert(vec![identity.certificate_der.clone()], key)?
        }
    };
    Ok(Arc::new(config))
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
