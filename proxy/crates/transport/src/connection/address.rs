//! Server addresses.

use std::{fmt, path::PathBuf, str::FromStr};

/// A server's address, as it appears in the connection string or in the replies of servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ServerAddress {
    /// A host and a port.
    Tcp {
        /// The host's name or IP address. IPv6 addresses have no brackets here.
        host: String,
        /// The port number.
        port: u16,
    },
    /// A unix domain socket.
    Unix(PathBuf),
}

/// Error for a text that is not a server address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid server address: {0:?}; expected host:port or the path of a unix socket")]
pub struct AddressError(String);

/// The port to use if a server address contains no port.
const DEFAULT_PORT: u16 = 27017;

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if text.starts_with('/') {
            return Ok(Self::Unix(text.into()));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or_else(wrong)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().map_err(|_| wrong())?,
            None if port.is_empty() => DEFAULT_PORT,
            None => return Err(wrong()),
        };
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self::Tcp {
            host: host.to_ascii_lowercase(),
            port,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_printed_in_their_normal_form() {
        for text in [
            "db1:27018",
            "[::1]:27017",
            "/tmp/mongodb-27017.sock",
            "10.0.0.1:1",
        ] {
            assert_eq!(text.parse::<ServerAddress>().unwrap().to_string(), text);
        }
        assert_eq!(
            "DB1".parse::<ServerAddress>().unwrap().to_string(),
            "db1:27017"
        );
        for text in ["", ":1", "a:b", "[::1", "a:70000"] {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }
}
