//! The arguments for the admin address of a running proxy, and the messages and exit statuses for
//! failed requests to this address.

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::Args;
use thiserror::Error;
use tokio_rustls::rustls::ClientConfig;

use crate::exit::Exit;
use seawall_api::{AdminClient, ClientError};
use seawall_transport::{
    Pem,
    connection::{Authorities, ServerTls, TlsError, TlsSettings, Verification},
};

/// The admin address of a running proxy, and its token.
#[derive(Clone, Debug, Args)]
pub(super) struct Endpoint {
    /// The admin address of a running proxy.
    #[arg(
        long = "admin",
        value_name = "URL",
        env = "SEAWALL_ADMIN_URL",
        default_value = Endpoint::DEFAULT_URL
    )]
    url: String,
    /// The file that contains the token of the admin address.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsFiles,
}

/// The TLS files for connections to the admin address.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct TlsFiles {
    /// For an https URL: the file with the certificate authorities of the admin address. By
    /// default, the authorities of the operating system are trusted.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// For an https URL: the file with your certificate and its private key, if the admin address
    /// requires a certificate.
    #[arg(long, value_name = "FILE")]
    certificate_key_file: Option<PathBuf>,
}

impl TlsFiles {
    /// The TLS configuration for an https URL; `None` for other URLs. It is an error if files are
    /// given for other URLs.
    fn config(&self, url: &str) -> Result<Option<ClientConfig>, EndpointError> {
        if !url.starts_with("https://") {
            return match (&self.ca_file, &self.certificate_key_file) {
                (None, None) => Ok(None),
                (Some(_), _) => Err(EndpointError::NotHttps("--ca-file")),
                (None, Some(_)) => Err(EndpointError::NotHttps("--certificate-key-file")),
            };
        }
        let read = |path: &PathBuf| {
            let content = std::fs::read_to_string(path);
            let content = content.map_err(|source| EndpointError::TlsFile {
                file: path.clone(),
                source,
            });
            content.map(|content| (path.clone(), content))
        };
        let own = self.ca_file.as_ref().map(read).transpose()?;
        let system = match own {
            Some(_) => None,
            None => openssl_probe::probe()
                .cert_file
                .as_ref()
                .map(read)
                .transpose()?,
        };
        let identity = self.certificate_key_file.as_ref().map(read).transpose()?;
        let tls = ServerTls::new(&TlsSettings {
            authorities: Authorities::of(own.as_ref().map(pem), system.as_ref().map(pem)),
            identity: identity.as_ref().map(pem),
            revocation_lists: Vec::new(),
            verification: Verification::Full,
        })?;
        Ok(Some(tls.config_for_http()))
    }
}

fn pem((path, content): &(PathBuf, String)) -> Pem<'_> {
    Pem {
        path: Path::new(path),
        content,
    }
}

impl Endpoint {
    /// The URL of the default admin address.
    pub(super) const DEFAULT_URL: &str = "http://127.0.0.1:9909";

    pub(super) fn new(url: &str, token_file: Option<PathBuf>, tls: TlsFiles) -> Self {
        Self {
            url: url.to_owned(),
            token_file,
            tls,
        }
    }

    /// Creates a client for this address and token.
    pub(super) fn client(&self) -> Result<AdminClient, EndpointError> {
        let token = self.token_file.as_ref().map(|file| {
            let text = std::fs::read_to_string(file);
            text.map_err(|source| EndpointError::TokenFile {
                file: file.clone(),
                source,
            })
        });
        let token = token.transpose()?.map(|text| text.trim().to_owned());
        let tls = self.tls.config(&self.url)?;
        Ok(AdminClient::new(&self.url, token, tls)?)
    }
}

/// The reason why the arguments are not usable.
#[derive(Debug, Error)]
pub(super) enum EndpointError {
    #[error("--admin {0}")]
    Url(#[from] ClientError),
    #[error("--token-file {}: {source}", file.display())]
    TokenFile { file: PathBuf, source: io::Error },
    #[error("{0}: the address in --admin must begin with https://")]
    NotHttps(&'static str),
    #[error("{}: {source}", file.display())]
    TlsFile { file: PathBuf, source: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(
        "--token-file: {files} files for {addresses} addresses; give one file, or one for each address"
    )]
    TokenFiles { files: usize, addresses: usize },
    #[error("--admin: {address} is given twice")]
    Repeated { address: String },
}

/// The text of an error. If another command-line option would help, the text names that option.
pub(super) fn message(error: &ClientError) -> String {
    match error {
        ClientError::Unauthorized => format!("{error}: use --token-file"),
        _ => error.to_string(),
    }
}

/// The exit status for an error.
pub(super) fn exit(error: &ClientError) -> Exit {
    match error {
        ClientError::Url { .. }
        | ClientError::Request(_)
        | ClientError::Tls(_)
        | ClientError::Unauthorized
        // 400: a value in the request is wrong, and it comes from an argument of the command. 403:
        // the token, the certificate or the host name in the arguments does not allow the request,
        // or the configuration of the proxy does not.
        | ClientError::Refused {
            status: 400 | 403, ..
        } => Exit::Usage,
        ClientError::Unreachable { .. }
        | ClientError::TimedOut { .. }
        | ClientError::Broken(_)
        | ClientError::TooLarge
        | ClientError::Refused { .. }
        | ClientError::NotJson(_) => Exit::Unavailable,
    }
}

/// A failed request to one of several instances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstanceFailure {
    /// The text of the error.
    pub(super) message: String,
    /// The exit status of a command that fails for this reason.
    pub(super) exit: Exit,
}

impl InstanceFailure {
    /// The failure of an instance whose reply cannot be used.
    pub(super) fn of_reply(message: String) -> Self {
        Self {
            message,
            exit: Exit::Unavailable,
        }
    }
}

impl From<ClientError> for InstanceFailure {
    fn from(error: ClientError) -> Self {
        Self {
            message: message(&error),
            exit: exit(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(url: &str, token_file: Option<&str>) -> EndpointError {
        let endpoint = Endpoint {
            url: url.to_owned(),
            token_file: token_file.map(PathBuf::from),
            tls: TlsFiles::default(),
        };
        endpoint.client().unwrap_err()
    }

    #[test]
    fn errors_name_the_command_line_argument_that_is_wrong_or_missing() {
        let error = error_of("https://a:1/x", None);
        assert!(error.to_string().starts_with("--admin https://a:1/x: "));
        let error = error_of("http://127.0.0.1:1", Some("/nowhere/token"));
        assert!(error.to_string().contains("/nowhere/token"));
        let error = message(&ClientError::Unauthorized);
        assert!(error.ends_with(": use --token-file"), "{error}");
    }

    #[test]
    fn tls_files_need_an_https_address_and_must_be_readable() {
        let error_of = |url: &str, ca_file: Option<&str>, certificate: Option<&str>| {
            let tls = TlsFiles {
                ca_file: ca_file.map(PathBuf::from),
                certificate_key_file: certificate.map(PathBuf::from),
            };
            tls.config(url).unwrap_err().to_string()
        };
        for (ca_file, certificate, flag) in [
            (Some("ca"), None, "--ca-file: "),
            (None, Some("c"), "--certificate-key-file: "),
        ] {
            let error = error_of("a:1", ca_file, certificate);
            assert!(error.starts_with(flag), "{error}");
        }
        let error = error_of("https://a:1", Some("/nowhere/ca"), None);
        assert!(error.starts_with("/nowhere/ca: "), "{error}");
        let this_file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let error = error_of("https://a:1", Some(this_file), None);
        assert!(error.ends_with("no certificate in the file"), "{error}");
        assert!(TlsFiles::default().config("http://a:1").unwrap().is_none());
    }

    #[test]
    fn exit_status_is_usage_for_a_refused_token_or_value_and_unavailable_for_other_errors() {
        let broken = ClientError::Broken(String::new());
        assert_eq!(exit(&broken), Exit::Unavailable);
        let refused = |status| ClientError::Refused {
            path: "/".to_owned(),
            status,
            said: "no!".to_owned(),
        };
        assert_eq!(exit(&refused(400)), Exit::Usage);
        // The token may only read, or the configuration of the proxy does not allow the request.
        assert_eq!(exit(&refused(403)), Exit::Usage);
        assert_eq!(exit(&refused(503)), Exit::Unavailable);
        assert_eq!(exit(&ClientError::Unauthorized), Exit::Usage);
    }
}
