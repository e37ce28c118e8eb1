//! The PROXY protocol, versions 1 and 2: a load balancer sends the address of the client before the
//! client's bytes.
//!
//! Source: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.

use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use proxy_header::{Error, ParseConfig, Protocol, ProxyHeader};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

use super::first_bytes::peek_until;
use seawall_locks::Mutex;

/// Time limit for the header. The specification recommends at least 3 s.
const HEADER_LIMIT: Duration = Duration::from_secs(3);

/// Maximum size of a header. A header of version 2 may carry further fields after the addresses.
const MAX_HEADER_BYTES: usize = 2_048;

/// Maximum number of connections that wait for their header. These connections do not count towards
/// the limits of clients yet. The limit applies to all listeners together.
pub(crate) const MAX_WAITING: usize = 2_048;

/// Maximum number of connections that wait for their header and come from one address. Without this
/// limit, one host in a configured network could reach [`MAX_WAITING`] alone.
const MAX_WAITING_PER_ADDRESS: usize = 512;

/// Accepts the PROXY protocol from load balancers in the configured networks.
#[derive(Clone, Debug)]
pub struct ProxyProtocol {
    networks: Arc<[IpNet]>,
    waiting: WaitingPlaces,
}

/// Counts the connections whose header has not arrived. All listeners share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct WaitingPlaces(Arc<Mutex<WaitingConnections>>);

#[derive(Debug, Default)]
struct WaitingConnections {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// The reason why Seawall refuses a connection before it waits for the connection's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionRefusal {
    /// No configured network contains the address of the connection.
    OtherNetwork,
    /// Too many connections wait for their header.
    TooMany,
}

impl ConnectionRefusal {
    /// The value of the label `reason` in the metric that counts refused clients.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::OtherNetwork => "proxy_network",
            Self::TooMany => "proxy_waiting",
        }
    }
}

/// Counts one connection that waits for its header. Dropping this value reduces the count.
#[derive(Debug)]
pub(super) struct WaitingPlace {
    waiting: WaitingPlaces,
    address: IpAddr,
}

impl ProxyProtocol {
    /// Accepts headers from load balancers in these networks. `waiting` counts the connections that
    /// wait for their header.
    pub(crate) fn new(networks: &[IpNet], waiting: &WaitingPlaces) -> Self {
        Self {
            networks: networks.into(),
            waiting: waiting.clone(),
        }
    }

    /// Counts a connection from this address as waiting for its header. Refuses the connection if
    /// no configured network contains the address, or if too many connections already wait.
    pub(super) fn admit(&self, address: IpAddr) -> Result<WaitingPlace, ConnectionRefusal> {
        if !self.networks.iter().any(|of| of.contains(&address)) {
            return Err(ConnectionRefusal::OtherNetwork);
        }
        let mut waiting = self.waiting.0.lock();
        let of_address = waiting.by_address.get(&address).copied().unwrap_or(0);
        if waiting.all >= MAX_WAITING || of_address >= MAX_WAITING_PER_ADDRESS {
            return Err(ConnectionRefusal::TooMany);
        }
        waiting.all += 1;
        waiting.by_address.insert(address, of_address + 1);
        Ok(WaitingPlace {
            waiting: self.waiting.clone(),
            address,
        })
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        let mut waiting = self.waiting.0.lock();
        waiting.all -= 1;
        if let Entry::Occupied(mut count) = waiting.by_address.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// Reads the header, and returns the address of the client. `None` if the load balancer itself is
/// the client, as in its health checks, or does not know the client's address.
///
/// # Errors
/// If the header is missing, malformed or too long, or does not arrive in time.
pub(super) async fn read_header(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let read = async {
        let mut buffer = [0; MAX_HEADER_BYTES];
        let (client, header_bytes) = peek_until(stream, &mut buffer, parse).await?;
        let (header, _) = buffer.split_at_mut(header_bytes);
        stream.read_exact(header).await?;
        Ok(client)
    };
    timeout(HEADER_LIMIT, Box::pin(read)).await?
}

/// The first bytes of a header of version 2.
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The value of the byte after the signature in a header with the command LOCAL. The next byte has
/// the address family.
const LOCAL: u8 = 0x20;

/// Removes the address family from a header with the command LOCAL: the receiver must ignore the
/// family, but the library refuses a family without addresses. `None` if the header has another
/// command.
fn without_family(seen: &[u8]) -> Option<Vec<u8>> {
    let rest = seen.strip_prefix(SIGNATURE)?;
    if rest.first() != Some(&LOCAL) {
        return None;
    }
    let mut header = seen.to_vec();
    if let Some(family) = header.get_mut(SIGNATURE.len() + 1) {
        *family = 0;
    }
    Some(header)
}

/// True if all bytes of a header of version 2 have arrived, according to its length field. If its
/// addresses need more bytes, the library waits for further bytes, but these are not part of the
/// header.
fn is_complete(seen: &[u8]) -> bool {
    let rest = seen.strip_prefix(SIGNATURE);
    let Some([_command, _family, high, low, fields @ ..]) = rest else {
        return false;
    };
    fields.len() >= usize::from(u16::from_be_bytes([*high, *low]))
}

/// Parses a header. Returns the client's address (`None` if the header contains none) and the
/// length of the header in bytes. Returns `None` if more bytes are needed. Refuses the address of a
/// datagram protocol, because it cannot be the address of a client of this TCP connection.
pub fn parse(seen: &[u8]) -> Option<io::Result<(Option<SocketAddr>, usize)>> {
    let config = ParseConfig {
        include_tlvs: false,
        allow_v1: true,
        allow_v2: true,
    };
    let local = without_family(seen);
    match ProxyHeader::parse(local.as_deref().unwrap_or(seen), config) {
        Ok((header, bytes)) => match header.proxied_address() {
            Some(address) if address.protocol == Protocol::Datagram => {
                let message = "the header is for a datagram protocol";
                Some(Err(io::Error::new(io::ErrorKind::InvalidData, message)))
            }
            address => Some(Ok((address.map(|address| address.source), bytes))),
        },
        Err(Error::BufferTooShort) if is_complete(seen) => {
            let message = "the length of the header is too small for its address family";
            Some(Err(io::Error::new(io::ErrorKind::InvalidData, message)))
        }
        Err(Error::BufferTooShort) => None,
        Err(error) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Peer;

    fn client(header: &[u8]) -> Option<SocketAddr> {
        let (client, bytes) = parse(header).unwrap().unwrap();
        assert_eq!(bytes, header.len());
        client
    }

    /// A header of version 2 with this command, family and addresses.
    fn version_2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[0x20 | command, family], &length, addresses].concat()
    }

    const ADDRESSES: [u8; 12] = [192, 0, 2, 7, 192, 0, 2, 1, 0x30, 0x39, 0x69, 0x89];

    #[test]
    fn one_address_may_have_only_512_connections_that_wait_for_their_header() {
        let places = WaitingPlaces::default();
        let proxies = ProxyProtocol::new(&["10.0.0.0/8".parse().unwrap()], &places);
        let address = |host: u8| IpAddr::from([10, 0, 0, host]);
        let mut taken = Vec::new();
        for _ in 0..MAX_WAITING_PER_ADDRESS {
            taken.push(proxies.admit(address(1)).unwrap());
        }
        assert_eq!(
            proxies.admit(address(1)).unwrap_err(),
            ConnectionRefusal::TooMany
        );
        assert!(proxies.admit(address(2)).is_ok());
        let elsewhere = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(
            proxies.admit(elsewhere).unwrap_err(),
            ConnectionRefusal::OtherNetwork
        );
        taken.pop();
        assert!(proxies.admit(address(1)).is_ok());
        drop(taken);
        assert_eq!(places.0.lock().all, 0);
        assert!(places.0.lock().by_address.is_empty());
    }

    /// A listener for IPv6 and IPv4 gets IPv4 addresses in IPv6 form.
    #[test]
    fn an_ipv4_address_in_ipv6_form_is_shown_as_ipv4_and_belongs_to_its_ipv4_network() {
        let networks =
            ["10.0.0.0/8", "2001:db8::/32"].map(|network| network.parse::<IpNet>().unwrap());
        let proxies = ProxyProtocol::new(&networks, &WaitingPlaces::default());
        for (address, text, is_admitted) in [
            ("[::ffff:10.0.0.1]:4711", "10.0.0.1:4711", true),
            ("[::ffff:192.0.2.1]:4711", "192.0.2.1:4711", false),
            ("10.0.0.1:4711", "10.0.0.1:4711", true),
            ("[2001:db8::7]:4711", "[2001:db8::7]:4711", true),
        ] {
            let peer = Peer::at(address.parse().unwrap());
            assert_eq!(&*peer.text, text);
            let admitted = peer.ip.map(|ip| proxies.admit(ip).is_ok());
            assert_eq!(admitted, Some(is_admitted), "{address}");
        }
    }

    #[test]
    fn the_client_address_is_read_from_proxy_headers_of_versions_1_and_2() {
        let expected = "192.0.2.7:12345".parse().ok();
        let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 27017\r\n";
        assert_eq!(client(header), expected);
        assert_eq!(client(&version_2(1, 0x11, &ADDRESSES)), expected);
        let header = b"PROXY TCP6 2001:db8::7 2001:db8::1 12345 27017\r\n";
        assert_eq!(client(header), "[2001:db8::7]:12345".parse().ok());
    }

    #[test]
    fn proxy_headers_of_health_checks_and_unknown_clients_have_no_address() {
        assert_eq!(client(&version_2(0, 0, &[])), None);
        assert_eq!(client(&version_2(0, 0x12, &ADDRESSES)), None);
        // With the command LOCAL, the family is ignored, even if it is unknown or has no addresses.
        for family in [0x11, 0x21, 0x31, 0xff] {
            assert_eq!(client(&version_2(0, family, &[])), None, "{family:#x}");
        }
        assert_eq!(client(&version_2(1, 0, &[])), None);
        assert_eq!(client(&version_2(1, 0x31, &[0; 216])), None);
        assert_eq!(client(b"PROXY UNKNOWN\r\n"), None);
    }

    #[test]
    fn proxy_headers_with_the_address_of_a_datagram_protocol_are_refused() {
        for (family, addresses) in [(0x12, &ADDRESSES[..]), (0x22, &[0; 36][..])] {
            let header = version_2(1, family, addresses);
            assert!(parse(&header).unwrap().is_err(), "{family:#x}");
        }
    }

    #[test]
    fn a_partial_proxy_header_needs_more_bytes() {
        let headers = [
            b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 27017\r\n".to_vec(),
            version_2(1, 0x11, &ADDRESSES),
            version_2(0, 0x11, &ADDRESSES),
        ];
        for header in headers {
            for known in 1..header.len() {
                assert!(parse(&header[..known]).is_none(), "{known}");
            }
        }
    }

    #[test]
    fn a_proxy_header_whose_length_is_too_small_for_its_family_is_refused_at_once() {
        for (family, needed_bytes) in [(0x11, 12), (0x12, 12), (0x21, 36), (0x31, 216)] {
            for length in [0, needed_bytes - 1] {
                let header = version_2(1, family, &vec![0; length]);
                let parsed = parse(&header);
                assert!(parsed.is_some_and(|parsed| parsed.is_err()), "{family:#x}");
            }
        }
    }

    #[test]
    fn bytes_without_a_valid_proxy_header_are_refused() {
        let hello = [60, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xdd, 7, 0, 0];
        let wrong: [&[u8]; 4] = [
            &hello,
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x07\x07\x07\x07\x07",
            b"PROXY TCP4 192.0.2.300 192.0.2.1 1 2\r\n",
            b"PROXY TCP4 192.0.2.7 192.0.2.1 70000 2\r\n",
        ];
        for bytes in wrong {
            assert!(parse(bytes).unwrap().is_err(), "{bytes:?}");
        }
    }
}
