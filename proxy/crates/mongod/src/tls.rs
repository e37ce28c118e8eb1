//! The files that a mongod and its clients need for TLS.

use std::path::PathBuf;

/// The TLS files of a mongod and of its clients.
#[derive(Clone, Debug)]
pub struct Tls {
    /// A PEM file with the server's certificate and private key.
    pub certificate_key_file: PathBuf,
    /// A PEM file with the certificate of the authority that signed the certificates of the server
    /// and of the client.
    pub ca_file: PathBuf,
    /// A PEM file with a client's certificate and private key. If it is set, mongod requires a
    /// certificate from each client. If it is `None`, clients need no certificate.
    pub client_file: Option<PathBuf>,
}
