//! Connection strings that cannot be used, and the reasons.

use mongodb::options::ClientOptions;
use zeroize::Zeroizing;

use super::without_dns;

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
    #[error("the official driver rejects {0} in the connection string: check its name and value")]
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

/// Options whose names may appear in an error.
///
/// Source: <https://www.mongodb.com/docs/manual/reference/connection-string-options/>.
const KNOWN_OPTIONS: [&str; 33] = [
    "appName",
    "authMechanism",
    "authMechanismProperties",
    "authSource",
    "compressors",
    "connectTimeoutMS",
    "directConnection",
    "heartbeatFrequencyMS",
    "journal",
    "loadBalanced",
    "localThresholdMS",
    "maxConnecting",
    "maxIdleTimeMS",
    "maxPoolSize",
    "maxStalenessSeconds",
    "minPoolSize",
    "readConcernLevel",
    "readPreference",
    "readPreferenceTags",
    "replicaSet",
    "retryReads",
    "retryWrites",
    "serverMonitoringMode",
    "serverSelectionTimeoutMS",
    "socketTimeoutMS",
    "ssl",
    "tls",
    "tlsAllowInvalidCertificates",
    "tlsCAFile",
    "tlsCertificateKeyFile",
    "tlsInsecure",
    "w",
    "wTimeoutMS",
];

/// Maximum number of options among which a rejected option is searched. Each of them is left out
/// once.
const MAX_SEARCHED_OPTIONS: usize = 40;

impl DeploymentError {
    /// The error for a connection string that the official driver rejects.
    pub(super) async fn of_rejected(uri: &str, error: mongodb::error::Error) -> Self {
        let (_, written) = uri.rsplit_once('?').unwrap_or_default();
        let mut names = written.split('&').filter_map(|pair| pair.split('=').next());
        let found = names.find_map(|name| {
            let mut rejected = REJECTED_OPTIONS.into_iter();
            rejected.find(|(option, _)| option.eq_ignore_ascii_case(name))
        });
        match found {
            Some((option, instead)) => Self::RejectedOption { option, instead },
            None => match rejected_option(uri).await {
                Some(option) => Self::InvalidOption(option),
                None => Self::Uri(Box::new(error)),
            },
        }
    }
}

/// Finds the option without which the official driver accepts the connection string, and describes
/// it: by its name if the name is known, otherwise by its position. The text after a `?` or a `&`
/// may be a part of a password, so no other name is returned. `None` if there is no such option.
async fn rejected_option(uri: &str) -> Option<String> {
    let plain = Zeroizing::new(without_dns(uri));
    let (start, options) = plain.split_once('?')?;
    // With an `@`, the text after the first `?` is probably the rest of a password.
    if options.contains('@') || ClientOptions::parse(&*plain).await.is_ok() {
        return None;
    }
    let options: Vec<&str> = options.split('&').collect();
    if options.len() > MAX_SEARCHED_OPTIONS {
        return None;
    }
    for (index, option) in options.iter().enumerate() {
        let others = options.iter().enumerate().filter(|(of, _)| *of != index);
        let others: Vec<&str> = others.map(|(_, option)| *option).collect();
        let without = Zeroizing::new(format!("{start}?{}", others.join("&")));
        if ClientOptions::parse(&*without).await.is_err() {
            continue;
        }
        let (name, _) = option.split_once('=').unwrap_or((option, ""));
        let known = KNOWN_OPTIONS.iter();
        let mut known = known.filter(|known| known.eq_ignore_ascii_case(name));
        return Some(match known.next() {
            Some(known) => format!("the option {known}"),
            None => format!("option {} of {}", index + 1, options.len()),
        });
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_rejected_option_is_named_but_no_part_of_a_password_is() {
        for (uri, option) in [
            ("mongodb://h/?foo=1", Some("option 1 of 1")),
            (
                "mongodb://h/?w=1&maxpoolsize=abc",
                Some("the option maxPoolSize"),
            ),
            (
                "mongodb://u:p@h/?w=1&readPreference=bogus",
                Some("the option readPreference"),
            ),
            (
                "mongodb://h/?replicaSet=rs&maxPoolSize=0",
                Some("the option maxPoolSize"),
            ),
            (
                "mongodb+srv://h.example/?w=1&maxPoolSize=0",
                Some("the option maxPoolSize"),
            ),
            (
                "mongodb://a,b/?w=1&directConnection=true",
                Some("the option directConnection"),
            ),
            ("mongodb://u:1?secret=2@h/?maxPoolSize=abc", None),
            ("mongodb://u:99?secret=1", Some("option 1 of 1")),
            (
                "mongodb://h/?tls=true&tlsCertificateKeyFilePassword=pa&ss=word",
                Some("option 3 of 3"),
            ),
            ("mongodb://h:99999/?w=1", None),
        ] {
            assert_eq!(rejected_option(uri).await.as_deref(), option, "{uri}");
        }
    }
}
