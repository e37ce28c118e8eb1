//! A certificate authority for one test, and certificates that it signed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use seawall_mongod::Tls;
use tokio_rustls::rustls::ClientConfig;

use crate::{
    authority::{Authority, AuthorityError, Identity, YEAR},
    scratch::Scratch,
};

/// Certificates in files. Dropping this value removes the files.
#[derive(Debug)]
pub struct Certificates {
    scratch: Scratch,
    authority: Box<Authority>,
    server: Box<Identity>,
}

impl Certificates {
    /// Generates an authority, a server certificate (for `localhost`, `127.0.0.1` and `::1`), and a
    /// client certificate.
    pub fn generate() -> Result<Self, Error> {
        let scratch = Scratch::create()?;
        let authority = Authority::generate("Seawall test authority")?;
        scratch.write(AUTHORITY, authority.pem())?;
        let server = authority.member("server", &["localhost", "127.0.0.1", "::1"])?;
        scratch.write(SERVER_CERTIFICATE, &server.certificate)?;
        scratch.write(SERVER_KEY, &server.key)?;
        scratch.write(SERVER, server.pem())?;
        let client = authority.client("client", YEAR)?;
        scratch.write(CLIENT, client.pem())?;
        Ok(Self {
            scratch,
            authority: Box::new(authority),
            server: Box::new(server),
        })
    }

    /// The authority of all certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The server's certificate and key.
    pub fn server(&self) -> &Identity {
        &self.server
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

    /// TLS options of a mongod that presents the server's certificate and requires none from
    /// clients.
    pub fn tls(&self) -> Tls {
        Tls {
            certificate_key_file: self.server_file(),
            ca_file: self.ca_file(),
            client_file: None,
        }
    }

    /// The TLS configuration of a client that trusts only this authority.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        Ok(self.authority.client_config(None)?)
    }
}

/// The reason why certificates could not be generated, used or written to files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be generated or used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// A file could not be written.
    #[error("could not write the file of a certificate")]
    File(#[from] io::Error),
}

const AUTHORITY: &str = "ca.pem";
const SERVER: &str = "server.pem";
const SERVER_CERTIFICATE: &str = "server-certificate.pem";
const SERVER_KEY: &str = "server-key.pem";
const CLIENT: &str = "client.pem";
