//! An authority of its own for each test, and the certificates it signed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use seawall::mongod::Tls;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::scratch::Scratch;

/// Certificates in files that live as long as this value does.
#[derive(Debug)]
pub struct Certificates {
    scratch: Scratch,
    authority: CertificateDer<'static>,
}

impl Certificates {
    /// An authority, a certificate for `localhost`, `127.0.0.1` and `::1`, and one for a client.
    pub fn generate() -> Result<Self, Error> {
        let scratch = Scratch::create()?;
        let (authority, issuer) = authority()?;
        scratch.write(AUTHORITY, authority.pem())?;
        // Members of a replica set use the same certificate as clients of each other.
        let both_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let server_names = ["localhost", "127.0.0.1", "::1"]
            .map(str::to_owned)
            .to_vec();
        let server = signed("server", server_names, both_usages, &issuer)?;
        scratch.write(SERVER_CERTIFICATE, &server.certificate)?;
        scratch.write(SERVER_KEY, &server.key)?;
        scratch.write(SERVER, format!("{}{}", server.certificate, server.key))?;
        let client_usage = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client = signed("client", Vec::new(), client_usage, &issuer)?;
        scratch.write(CLIENT, format!("{}{}", client.certificate, client.key))?;
        Ok(Self {
            scratch,
            authority: authority.der().clone(),
        })
    }

    /// The authority's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.scratch.join(AUTHORITY)
    }

    /// The server's certificate and key in one file, as mongod takes them.
    pub fn server_file(&self) -> PathBuf {
        self.scratch.join(SERVER)
    }

    /// The server's certificate alone.
    pub fn server_certificate_file(&self) -> PathBuf {
        self.scratch.join(SERVER_CERTIFICATE)
    }

    /// The server's key alone.
    pub fn server_key_file(&self) -> PathBuf {
        self.scratch.join(SERVER_KEY)
    }

    /// Configuration of a Seawall that shows the server's certificate to its clients.
    pub fn listen_toml(&self) -> String {
        format!(
            "listen.tls.certificate_file = {:?}\nlisten.tls.key_file = {:?}\n",
            self.server_certificate_file(),
            self.server_key_file()
        )
    }

    /// A client's certificate and key in one file, as drivers take them.
    pub fn client_file(&self) -> PathBuf {
        self.scratch.join(CLIENT)
    }

    /// What a mongod needs to use the server's certificate.
    pub fn tls(&self) -> Tls {
        Tls {
            certificate_key_file: self.server_file(),
            ca_file: self.ca_file(),
        }
    }

    /// How a client connects that trusts this authority and no other.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone())?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Arc::new(config))
    }
}

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be made.
    #[error("certificate")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refused what was made.
    #[error("TLS settings")]
    Tls(#[from] rustls::Error),
    /// A file could not be written.
    #[error("file of a certificate")]
    File(#[from] io::Error),
}

/// A certificate and its key, as PEM.
struct Signed {
    certificate: String,
    key: String,
}

fn authority() -> Result<(rcgen::Certificate, Issuer<'static, KeyPair>), rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "Seawall test authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key)?;
    Ok((certificate, Issuer::new(params, key)))
}

fn signed(
    name: &str,
    subject_alt_names: Vec<String>,
    usages: Vec<ExtendedKeyUsagePurpose>,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<Signed, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(subject_alt_names)?;
    params.distinguished_name.push(DnType::CommonName, name);
    params
        .distinguished_name
        .push(DnType::OrganizationalUnitName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = usages;
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(&key, issuer)?.pem();
    Ok(Signed {
        certificate,
        key: key.serialize_pem(),
    })
}

const AUTHORITY: &str = "ca.pem";
const SERVER: &str = "server.pem";
const SERVER_CERTIFICATE: &str = "server-certificate.pem";
const SERVER_KEY: &str = "server-key.pem";
const CLIENT: &str = "client.pem";
