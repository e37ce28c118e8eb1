//! The arguments for the admin address of a running proxy, and the messages and exit statuses for
//! its errors.

use std::{io, path::PathBuf};

use clap::Args;
use thiserror::Error;

use crate::exit::Exit;
use seawall_api::{AdminClient, ClientError};

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
}

impl Endpoint {
    /// The URL of the default admin address.
    pub(super) const DEFAULT_URL: &str = "http://127.0.0.1:9909";

    pub(super) fn new(url: &str, token_file: Option<PathBuf>) -> Self {
        Self {
            url: url.to_owned(),
            token_file,
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
        Ok(AdminClient::new(&self.url, token)?)
    }
}

/// The reason why the arguments are not usable.
#[derive(Debug, Error)]
pub(super) enum EndpointError {
    #[error("--admin {0}")]
    Url(#[from] ClientError),
    #[error("--token-file {}: {source}", file.display())]
    TokenFile { file: PathBuf, source: io::Error },
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
        ClientError::Url { .. } | ClientError::Request(_) | ClientError::Unauthorized => {
            Exit::Usage
        }
        ClientError::Unreachable { .. }
        | ClientError::TimedOut { .. }
        | ClientError::Broken(_)
        | ClientError::Refused { .. }
        | ClientError::NotJson(_) => Exit::Unavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(url: &str, token_file: Option<&str>) -> EndpointError {
        let endpoint = Endpoint {
            url: url.to_owned(),
            token_file: token_file.map(PathBuf::from),
        };
        endpoint.client().unwrap_err()
    }

    #[test]
    fn errors_name_the_command_line_argument_at_fault() {
        let error = error_of("https://a:1", None);
        assert!(error.to_string().starts_with("--admin https://a:1: "));
        let error = error_of("http://127.0.0.1:1", Some("/nowhere/token"));
        assert!(error.to_string().contains("/nowhere/token"));
        let error = message(&ClientError::Unauthorized);
        assert!(error.ends_with(": use --token-file"), "{error}");
    }

    #[test]
    fn unauthorized_is_a_usage_error_and_other_errors_mean_unavailable() {
        let broken = ClientError::Broken(String::new());
        assert_eq!(exit(&broken), Exit::Unavailable);
        let refused = ClientError::Refused {
            path: "/".to_owned(),
            status: 400,
            said: "no!".to_owned(),
        };
        assert_eq!(exit(&refused), Exit::Unavailable);
        assert_eq!(exit(&ClientError::Unauthorized), Exit::Usage);
    }
}
