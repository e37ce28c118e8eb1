//! Connection strings that cannot be used, and the reasons.

use mongodb::options::ConnectionString;

/// The reason why a connection string is unusable.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DeploymentError {
    /// The official driver rejects the connection string. The text of this error does not contain
    /// the driver's message. If a password contains an unescaped character, that message may
    /// contain the password.
    #[error(
        "the official driver rejects the connection string: check its hosts and options, and \
         percent-encode special characters in the user and the password"
    )]
    Uri(Box<mongodb::error::Error>),
    /// The official driver rejects this option or its value.
    #[error("the official driver rejects the option {0} in the connection string")]
    InvalidOption(String),
    /// The official driver rejects this TLS option.
    #[error("the official driver rejects {option} in the connection string: {instead}")]
    RejectedOption {
        /// The name of the option.
        option: &'static str,
        /// The alternative that Seawall supports.
        instead: &'static str,
    },
    /// Seawall does not support this option.
    #[error("{0} is not supported in the deployment's connection string")]
    Unsupported(&'static str),
}

/// TLS options that the official driver rejects, and the alternatives that Seawall supports.
const REJECTED_OPTIONS: [(&str, &str); 2] = [
    ("tlsCRLFile", "use deployment.tls.crl_file"),
    (
        "tlsAllowInvalidHostnames",
        "use deployment.tls.allow_invalid_hostnames",
    ),
];

impl DeploymentError {
    /// The error for a connection string that the official driver rejects.
    pub(super) fn of_rejected(uri: &str, error: mongodb::error::Error) -> Self {
        let (_, written) = uri.rsplit_once('?').unwrap_or_default();
        let mut names = written.split('&').filter_map(|pair| pair.split('=').next());
        let found = names.find_map(|name| {
            let mut rejected = REJECTED_OPTIONS.into_iter();
            rejected.find(|(option, _)| option.eq_ignore_ascii_case(name))
        });
        match found {
            Some((option, instead)) => Self::RejectedOption { option, instead },
            None => match rejected_option(uri) {
                Some(option) => Self::InvalidOption(option),
                None => Self::Uri(Box::new(error)),
            },
        }
    }
}

/// Finds the option without which the official driver accepts the connection string. `None` if
/// there is no such option, or if the text after the `?` may be a part of a password.
fn rejected_option(uri: &str) -> Option<String> {
    let (start, options) = uri.split_once('?')?;
    if options.contains('@') {
        return None;
    }
    let options: Vec<&str> = options.split('&').collect();
    options.iter().enumerate().find_map(|(index, option)| {
        let (name, _) = option.split_once('=')?;
        let others = options.iter().enumerate().filter(|(of, _)| *of != index);
        let others: Vec<&str> = others.map(|(_, option)| *option).collect();
        ConnectionString::parse(format!("{start}?{}", others.join("&"))).ok()?;
        Some(name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rejected_option_is_named_but_no_part_of_a_password_is() {
        for (uri, option) in [
            ("mongodb://h/?foo=1", Some("foo")),
            ("mongodb://h/?maxPoolSize=abc&w=1", Some("maxPoolSize")),
            (
                "mongodb://u:p@h/?w=1&readPreference=bogus",
                Some("readPreference"),
            ),
            ("mongodb://u:1?secret=2@h/?maxPoolSize=abc", None),
            ("mongodb://h:99999/?w=1", None),
        ] {
            assert_eq!(rejected_option(uri).as_deref(), option, "{uri}");
        }
    }
}
