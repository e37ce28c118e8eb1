//! Sends a server the address of a relayed client, in a header of the PROXY protocol, version 2.
//!
//! Source: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.

use std::net::{IpAddr, SocketAddr};

use proxy_header::{ProxiedAddress, ProxyHeader};

use crate::client::{ClientSettings, Peer};
use seawall_transport::{Stream, connection::ServerAddress};

/// The header for one client, and the port on which servers expect this header.
#[derive(Debug)]
pub(in crate::client) struct Proxied {
    port: u16,
    header: Vec<u8>,
}

impl Proxied {
    /// Builds the header for a client; `None` if servers expect no header. `stream` is the client's
    /// connection to Seawall.
    pub(in crate::client) fn of(
        settings: &ClientSettings,
        peer: &Peer,
        stream: &Stream,
    ) -> Option<Self> {
        let port = settings.relay_proxy_port?;
        let client = peer.text.parse().ok();
        let header = encode(client.zip(stream.local_address()));
        Some(Self { port, header })
    }

    /// The bytes of the header.
    pub(super) fn header(&self) -> &[u8] {
        &self.header
    }

    /// The address of a server, with the port on which the server expects the header.
    pub(super) fn port_of(&self, address: &ServerAddress) -> ServerAddress {
        match address {
            ServerAddress::Tcp { host, .. } => ServerAddress::Tcp {
                host: host.clone(),
                port: self.port,
            },
            ServerAddress::Unix(_) => address.clone(),
        }
    }
}

/// Encodes a header with the addresses of the client and of Seawall. If the addresses are unknown,
/// or if the client's address is a loopback address, the header says that Seawall itself is the
/// client. A client with a loopback address is on Seawall's host. If the header contained this
/// address, the server would treat the client as a client on the server's own host, and such
/// clients can have more rights.
fn encode(addresses: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let header = match addresses.map(same_family) {
        Some((client, here)) if !client.ip().to_canonical().is_loopback() => {
            ProxyHeader::with_address(ProxiedAddress::stream(client, here))
        }
        Some(_) | None => ProxyHeader::with_local(),
    };
    let mut bytes = Vec::new();
    header
        .encode_v2(&mut bytes)
        .expect("both addresses have the same family and no field is too long");
    bytes
}

/// Converts both addresses to IPv4, or to IPv6 if one of them has no IPv4 equivalent.
fn same_family((client, here): (SocketAddr, SocketAddr)) -> (SocketAddr, SocketAddr) {
    let canonical = |of: SocketAddr| SocketAddr::new(of.ip().to_canonical(), of.port());
    let (client, here) = (canonical(client), canonical(here));
    if client.is_ipv4() == here.is_ipv4() {
        return (client, here);
    }
    let mapped = |of: SocketAddr| match of.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), of.port()),
        IpAddr::V6(_) => of,
    };
    (mapped(client), mapped(here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_header_has_the_address_of_a_client_unless_it_is_a_loopback_address() {
        let signature = b"\r\n\r\n\0\r\nQUIT\n";
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let of = |client, here| encode(Some((address(client), address(here))));
        let header = of("192.0.2.7:4711", "192.0.2.1:27017");
        let rest = b"\x21\x11\0\x0c\xc0\0\x02\x07\xc0\0\x02\x01\x12\x67\x69\x89";
        assert_eq!(header, [&signature[..], rest].concat());
        let mixed = of("[2001:db8::7]:4711", "192.0.2.1:27017");
        assert_eq!(mixed[12..16], *b"\x21\x21\0\x24");
        assert_eq!(mixed[16..20], *b"\x20\x01\x0d\xb8");
        assert_eq!(mixed[42..48], *b"\xff\xff\xc0\0\x02\x01");
        let local = [&signature[..], b"\x20\0\0\0"].concat();
        assert_eq!(encode(None), local);
        for client in ["127.0.0.1:4711", "[::1]:4711", "[::ffff:127.0.0.1]:4711"] {
            assert_eq!(of(client, "127.0.0.1:27017"), local, "{client}");
        }
    }

    #[test]
    fn the_relay_proxy_port_replaces_only_the_port_of_a_tcp_address() {
        let proxied = Proxied {
            port: 27_117,
            header: encode(None),
        };
        for (address, expected) in [
            ("db.example:27017", "db.example:27117"),
            ("/tmp/mongodb-27017.sock", "/tmp/mongodb-27017.sock"),
        ] {
            let address: ServerAddress = address.parse().unwrap();
            assert_eq!(proxied.port_of(&address).to_string(), expected);
        }
    }
}
