//! Addresses on which Seawall listens: `host:port`, `[address]:port`, `unix:/path`.
//!
//! Only the syntax of an address is checked. A host is resolved later, when the socket is bound.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// An address to which clients connect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ListenAddress {
    /// `host:port`. The host is a name or an address. With port 0 the system chooses a port.
    Tcp(String),
    /// The absolute path of a unix socket.
    Unix(PathBuf),
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(path) = text.strip_prefix(UNIX_PREFIX) else {
            check_host_and_port(text)?;
            return Ok(Self::Tcp(text.to_owned()));
        };
        if !path.starts_with('/') || path.contains('\0') {
            return Err(AddressError::PathNotAbsolute);
        }
        if path.len() > MAX_SOCKET_PATH_BYTES {
            return Err(AddressError::PathTooLong {
                length: path.len(),
                max: MAX_SOCKET_PATH_BYTES,
            });
        }
        Ok(Self::Unix(PathBuf::from(path)))
    }
}

impl ListenAddress {
    /// True if the system cannot bind both addresses: they are equal, or they have the same port
    /// and one of them includes the other. `0.0.0.0` includes all IPv4 addresses, and `[::]` all
    /// IPv6 addresses. Host names are not resolved.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.socket(), other.socket()) else {
            return self == other;
        };
        // With port 0, the system chooses a different port for each address.
        let is_same_port = one.port() == two.port() && one.port() != 0;
        let is_same_family = one.is_ipv4() == two.is_ipv4();
        let has_all = one.ip().is_unspecified() || two.ip().is_unspecified();
        self == other || (is_same_port && is_same_family && (has_all || one.ip() == two.ip()))
    }

    /// As [`Self::overlaps`], but `[::]` also includes all IPv4 addresses, as on most systems.
    pub(crate) fn may_overlap(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.socket(), other.socket()) else {
            return self == other;
        };
        let is_for_all = |of: SocketAddr| of.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        let is_any_for_all = is_for_all(one) || is_for_all(two);
        self.overlaps(other) || (one.port() == two.port() && is_any_for_all)
    }

    /// The IP address and the port; `None` for a host name or a unix socket.
    fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(text) => text.parse().ok(),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

/// The address at which Seawall serves metrics, health and the API.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AdminAddress {
    /// Metrics, health and the API are not served.
    Off,
    /// `host:port`. The host is a name or an address. With port 0 the system chooses a port.
    Tcp(String),
}

/// Maximum number of other Seawall instances (`admin.peers`). To reply to an API request with
/// `instances=all`, Seawall sends a request to each of these instances.
pub(crate) const MAX_PEERS: usize = 32;

/// The admin address of another instance, as a URL without a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerAddress(String);

impl PeerAddress {
    /// The URL, such as `http://seawall-2:9909`.
    pub fn url(&self) -> &str {
        &self.0
    }

    /// True if the peer's admin address uses TLS.
    pub fn uses_tls(&self) -> bool {
        self.0.starts_with("https://")
    }
}

impl FromStr for PeerAddress {
    type Err = AddressError;

    /// Parses `host:port`, `http://host:port` or `https://host:port`. A URL with a user or a path
    /// is refused. The token that Seawall sends to the other instance is not part of the URL. It is
    /// in a file that `admin.peer_token_file` names.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let address = rest.strip_suffix('/').unwrap_or(rest);
        if !["http", "https"].contains(&scheme) || address.contains(['/', '@', '?', '#']) {
            return Err(AddressError::NotAUrl);
        }
        check_host_and_port(address)?;
        Ok(Self(format!("{scheme}://{address}")))
    }
}

impl AdminAddress {
    /// True if no other machine can reach the address, or if there is no address ([`Self::Off`]).
    /// Names other than `localhost` count as public, because they may resolve to another address
    /// after the start.
    pub fn is_private(&self) -> bool {
        match self {
            Self::Off => true,
            Self::Tcp(address) => is_loopback(address),
        }
    }

    /// The address; `None` if there is none ([`Self::Off`]), or if the system chooses its port.
    pub(crate) fn with_fixed_port(&self) -> Option<ListenAddress> {
        let Self::Tcp(address) = self else {
            return None;
        };
        let (_, port) = address.rsplit_once(':')?;
        (port.parse::<u16>() != Ok(0)).then(|| ListenAddress::Tcp(address.clone()))
    }
}

impl FromStr for AdminAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == OFF {
            return Ok(Self::Off);
        }
        check_host_and_port(text)?;
        Ok(Self::Tcp(text.to_owned()))
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str(OFF),
            Self::Tcp(address) => f.write_str(address),
        }
    }
}

/// The reason why a text is not an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text has no colon, so it has no port.
    #[error("the port is missing")]
    PortMissing,
    /// The text after the last colon is not a 16-bit number.
    #[error("the port is not a number from 0 to 65535")]
    PortInvalid,
    /// The text before the port is empty. The host for all interfaces is `0.0.0.0` or `[::]`.
    #[error("the host is missing; use 0.0.0.0 or [::] for all interfaces")]
    HostMissing,
    /// The host is neither a name nor an address. An IPv6 address needs brackets.
    #[error("the host is neither a name nor an IP address (IPv6 addresses need brackets)")]
    HostInvalid,
    /// The text must be `host:port`, or an HTTP URL that has no user and no path.
    #[error("expected host:port, or a URL without a user or a path")]
    NotAUrl,
    /// The path of a unix socket is not absolute, or contains a zero byte.
    #[error("the path of a unix socket must be absolute and must not contain a zero byte")]
    PathNotAbsolute,
    /// The path is too long for the kernel's socket address.
    #[error("the path of a unix socket has {length} bytes, the maximum is {max}")]
    PathTooLong {
        /// Length of the path in bytes.
        length: usize,
        /// Maximum length in bytes.
        max: usize,
    },
}

fn check_host_and_port(text: &str) -> Result<(), AddressError> {
    let (host, port) = text.rsplit_once(':').ok_or(AddressError::PortMissing)?;
    // Each character must be a digit, because parsing a `u16` also accepts a sign.
    if !port.bytes().all(|byte| byte.is_ascii_digit()) || port.parse::<u16>().is_err() {
        return Err(AddressError::PortInvalid);
    }
    if host.is_empty() {
        return Err(AddressError::HostMissing);
    }
    let is_name = host
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
    if is_name || text.parse::<SocketAddr>().is_ok() {
        Ok(())
    } else {
        Err(AddressError::HostInvalid)
    }
}

fn is_loopback(address: &str) -> bool {
    if let Ok(address) = address.parse::<SocketAddr>() {
        // `is_loopback` is false for an IPv4 address that is written as an IPv6 address, such as
        // `[::ffff:127.0.0.1]`. So such an address is converted to IPv4 first.
        let ip: IpAddr = address.ip().to_canonical();
        return ip.is_loopback();
    }
    address
        .rsplit_once(':')
        .is_some_and(|(host, _)| host.eq_ignore_ascii_case("localhost"))
}

const UNIX_PREFIX: &str = "unix:";

const OFF: &str = "off";

/// Maximum length of a socket's path, in bytes. `sun_path` has 108 bytes on Linux and 104 on other
/// systems, and its last byte is a zero.
const MAX_SOCKET_PATH_BYTES: usize = 103;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_ip_addresses_and_unix_paths_are_accepted() {
        for text in [
            "127.0.0.1:27018",
            "0.0.0.0:0",
            "[::1]:27018",
            "localhost:27018",
            "sea-wall.example.org:65535",
            "unix:/run/seawall.sock",
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn an_address_for_all_hosts_overlaps_with_the_other_addresses_of_its_family_and_port() {
        for (one, two, expected) in [
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("[::]:1", "[::1]:1", true),
            ("10.0.0.1:1", "10.0.0.1:1", true),
            ("seawall:1", "seawall:1", true),
            ("unix:/a", "unix:/a", true),
            ("0.0.0.0:1", "127.0.0.1:2", false),
            ("0.0.0.0:1", "[::1]:1", false),
            ("127.0.0.1:1", "127.0.0.2:1", false),
            ("seawall:1", "127.0.0.1:1", false),
            ("unix:/a", "0.0.0.0:1", false),
            ("127.0.0.1:0", "127.0.0.1:0", true),
            ("0.0.0.0:0", "127.0.0.1:0", false),
        ] {
            let [first, second] = [one, two].map(|text| text.parse::<ListenAddress>().unwrap());
            assert_eq!(first.overlaps(&second), expected, "{one} {two}");
            assert_eq!(second.overlaps(&first), expected, "{two} {one}");
        }
    }

    #[test]
    fn the_ipv6_address_for_all_hosts_may_overlap_with_ipv4_addresses_of_its_port() {
        for (one, two, expected) in [
            ("[::]:1", "127.0.0.1:1", true),
            ("[::]:1", "0.0.0.0:1", true),
            ("[::]:1", "[::1]:1", true),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("seawall:1", "seawall:1", true),
            ("[::]:1", "127.0.0.1:2", false),
            ("[::1]:1", "127.0.0.1:1", false),
            ("0.0.0.0:1", "[::1]:1", false),
            ("[::]:1", "seawall:1", false),
        ] {
            let [first, second] = [one, two].map(|text| text.parse::<ListenAddress>().unwrap());
            assert_eq!(first.may_overlap(&second), expected, "{one} {two}");
            assert_eq!(second.may_overlap(&first), expected, "{two} {one}");
        }
    }

    #[test]
    fn peer_address_is_host_and_port_or_an_http_url_without_user_and_path() {
        for (text, url) in [
            ("seawall-2:9909", Some("http://seawall-2:9909")),
            ("http://[::1]:9909/", Some("http://[::1]:9909")),
            ("https://a:1", Some("https://a:1")),
            ("ftp://a:1", None),
            ("https://user:secret@a:1", None),
            ("https://a:1/api", None),
            ("https://a", None),
            ("a:1?b=c", None),
        ] {
            let peer = text.parse::<PeerAddress>();
            assert_eq!(peer.as_ref().ok().map(PeerAddress::url), url, "{text}");
        }
    }

    #[test]
    fn invalid_addresses_are_refused_with_a_reason() {
        let long = format!("unix:/{}", "x".repeat(103));
        for (text, error) in [
            ("", AddressError::PortMissing),
            ("localhost", AddressError::PortMissing),
            ("localhost:", AddressError::PortInvalid),
            ("localhost:+1", AddressError::PortInvalid),
            ("localhost:65536", AddressError::PortInvalid),
            ("localhost:mongodb", AddressError::PortInvalid),
            (":27018", AddressError::HostMissing),
            ("*:27018", AddressError::HostInvalid),
            ("::1:27018", AddressError::HostInvalid),
            ("[sea]:27018", AddressError::HostInvalid),
            ("http://host:80", AddressError::HostInvalid),
            ("unix:seawall.sock", AddressError::PathNotAbsolute),
            ("unix:", AddressError::PathNotAbsolute),
            (
                &long,
                AddressError::PathTooLong {
                    length: 104,
                    max: 103,
                },
            ),
        ] {
            assert_eq!(text.parse::<ListenAddress>().unwrap_err(), error, "{text}");
        }
    }

    /// An admin address is *private* if no other machine can reach it. `off` means that Seawall
    /// does not serve metrics, health and the API.
    #[test]
    fn admin_address_is_private_only_if_it_is_a_loopback_address_or_off() {
        for (text, is_private) in [
            ("off", true),
            ("127.0.0.1:9909", true),
            ("127.8.9.10:9909", true),
            ("[::1]:9909", true),
            ("[::ffff:127.0.0.1]:9909", true),
            ("localhost:9909", true),
            ("LOCALHOST:9909", true),
            ("0.0.0.0:9909", false),
            ("[::]:9909", false),
            ("10.0.0.1:9909", false),
            ("localhost.example.org:9909", false),
            ("seawall:9909", false),
        ] {
            let address: AdminAddress = text.parse().unwrap();
            assert_eq!(address.is_private(), is_private, "{text}");
            assert_eq!(address.to_string(), text);
        }
    }
}
