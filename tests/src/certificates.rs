//! A certificate authority for one test, and certificates that it signed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use seawall_mongod::Tls;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::scratch::Scratch;

/// Certificates in files. Dropping this value removes the files.
#[derive(Debug)]
pub struct Certificates {
    scratch: Scratch,
    authority: CertificateDer<'static>,
}

impl Certificates {
    /// Generates an authority, a server certificate (for `localhost`, `127.0.0.1` and `::1`), and a
    /// client certificate.
    pub fn generate() -> Result<Self, Error> {
        let scratch = Scratch::create()?;
        let (authority, issuer) = authority()?;
        scratch.write(AUTHORITY, authority.pem())?;
        // A member of a replica set also uses its certificate as a client, when it connects to
        // another member.
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

    /// The file with the authority's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.scratch.join(AUTHORITY)
    }

    /// The file with the server's certificate and key, in the format that mongod expects.
    pub fn server_file(&self) -> PathBuf {
        self.scratch.join(SERVER)
    }

    /// The file with only the server's certificate.
    pub fn server_certificate_file(&self) -> PathBuf {
        self.scratch.join(SERVER_CERTIFICATE)
    }

    /// The file with only the server's key.
    pub fn server_key_file(&self) -> PathBuf {
        self.scratch.join(SERVER_KEY)
    }

    /// TOML that configures Seawall to present the server's certificate to its clients.
    pub fn listen_toml(&self) -> String {
        format!(
            "listen.tls.certificate_file = {:?}\nlisten.tls.key_file = {:?}\n",
            self.server_certificate_file(),
            self.server_key_file()
        )
    }

    /// The file with a client's certificate and key, in the format that drivers expect.
    pub fn client_file(&self) -> PathBuf {
        self.scratch.join(CLIENT)
    }

    /// TLS options of a mongod that presents the server's certificate.
    pub fn tls(&self) -> Tls {
        Tls {
            certificate_key_file: self.server_file(),
            ca_file: self.ca_file(),
        }
    }

    /// The TLS configuration of a client that trusts only this authority.
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

/// The reason why certificates could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be generated.
    #[error("could not generate a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The TLS library refused the certificates.
    #[error("TLS settings")]
    Tls(#[from] rustls::Error),
    /// A file could not be written.
    #[error("file of a certificate")]
    File(#[from] io::Error),
}

/// A certificate and its key in PEM.
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
