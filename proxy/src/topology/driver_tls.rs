//! The TLS options of the official driver, which monitors the servers.

use std::path::PathBuf;

use mongodb::options::{ClientOptions, ConnectionString, Tls, TlsOptions};

use seawall_transport::KeyPassword;

/// The TLS options for the official driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverTls {
    /// The file with the authorities that sign servers' certificates; `None` for the authorities
    /// that are built into the driver.
    pub ca_file: Option<PathBuf>,
    /// The file with Seawall's certificate and its key; `None` if Seawall presents no certificate.
    pub identity_file: Option<PathBuf>,
    /// The password that decrypts the key in the identity file. The driver fails if there is a
    /// password and the key is not encrypted.
    pub key_password: Option<KeyPassword>,
    /// True if Seawall accepts every server certificate without verification.
    pub trusts_anyone: bool,
}

impl From<TlsOptions> for DriverTls {
    fn from(options: TlsOptions) -> Self {
        let password = options.tls_certificate_key_file_password;
        Self {
            ca_file: options.ca_file_path,
            identity_file: options.cert_key_file_path,
            key_password: password.map(KeyPassword::new),
            trusts_anyone: options.allow_invalid_certificates == Some(true),
        }
    }
}

impl DriverTls {
    /// The password in a connection string that decrypts the key of Seawall's certificate. `None`
    /// if there is none, or the driver rejects the string.
    pub(crate) fn key_password_in(uri: &str) -> Option<KeyPassword> {
        match ConnectionString::parse(uri).ok()?.tls? {
            Tls::Enabled(tls) => Self::from(tls).key_password,
            Tls::Disabled => None,
        }
    }

    /// Replaces the TLS options in `options`, if TLS is on.
    pub(super) fn apply(&self, options: &mut ClientOptions) {
        if let Some(Tls::Enabled(tls)) = &mut options.tls {
            let password = self.key_password.as_ref();
            tls.ca_file_path.clone_from(&self.ca_file);
            tls.cert_key_file_path.clone_from(&self.identity_file);
            tls.tls_certificate_key_file_password = password.map(|of| of.expose().to_vec());
            tls.allow_invalid_certificates = Some(self.trusts_anyone);
        }
    }
}
