//! The PROXY protocol, versions 1 and 2: a load balancer sends the address of the client in front
//! of the client's bytes.
//!
//! Source: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use proxy_header::{Error, ParseConfig, ProxyHeader};
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::first_bytes::look;

/// Time limit for the header. The specification recommends at least 3 s.
const HEADER_LIMIT: Duration = Duration::from_secs(3);

/// Maximum size of a header. A header of version 2 may carry further fields.
const MAX_HEADER_BYTES: usize = 2_048;

/// Maximum number of connections whose header has not arrived.
const MAX_WAITING: usize = 4_096;

/// Accepts the PROXY protocol from load balancers in some networks.
#[derive(Clone, Debug)]
pub struct ProxyProtocol {
    networks: Arc<[IpNet]>,
    waiting: Arc<Semaphore>,
}

impl ProxyProtocol {
    /// Accepts headers from these networks.
    pub(crate) fn new(networks: &[IpNet]) -> Self {
        Self {
            networks: networks.into(),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
        }
    }

    /// Returns a permit to wait for the header of a connection. `None` if the address is not in a
    /// listed network, or too many connections wait.
    pub(super) fn admit(&self, address: IpAddr) -> Option<OwnedSemaphorePermit> {
        let is_listed = self.networks.iter().any(|of| of.contains(&address));
        let permit = || Arc::clone(&self.waiting).try_acquire_owned().ok();
        is_listed.then(permit).flatten()
    }
}

/// Reads the header, and returns the address of the client. `None` if the load balancer itself is
/// the client, as in its health checks, or does not know the address.
///
/// # Errors
/// If the header is missing, malformed or too long, or does not arrive in time.
pub(super) async fn read_header(stream: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let read = async {
        let mut buffer = [0; MAX_HEADER_BYTES];
        let (client, header_bytes) = look(stream, &mut buffer, parse).await?;
        let (header, _) = buffer.split_at_mut(header_bytes);
        stream.read_exact(header).await?;
        Ok(client)
    };
    timeout(HEADER_LIMIT, Box::pin(read)).await?
}

/// The address in the header, and the length of the header. `None` if more bytes are needed.
pub fn parse(seen: &[u8]) -> Option<io::Result<(Option<SocketAddr>, usize)>> {
    let config = ParseConfig {
        include_tlvs: false,
        allow_v1: true,
        allow_v2: true,
    };
    match ProxyHeader::parse(seen, config) {
        Ok((header, bytes)) => {
            let client = header.proxied_address().map(|address| address.source);
            Some(Ok((client, bytes)))
        }
        Err(Error::BufferTooShort) => None,
        Err(error) => Some(Err(io::Error::new(io::ErrorKind::InvalidData, error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(header: &[u8]) -> Option<SocketAddr> {
        let (client, bytes) = parse(header).unwrap().unwrap();
        assert_eq!(bytes, header.len());
        client
    }

    /// A header of version 2 with this command, family and addresses.
    fn version_2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        let signature = b"\r\n\r\n\0\r\nQUIT\n";
        [
            &signature[..],
            &[0x20 | command, family],
            &length,
            addresses,
        ]
        .concat()
    }

    const ADDRESSES: [u8; 12] = [192, 0, 2, 7, 192, 0, 2, 1, 0x30, 0x39, 0x69, 0x89];

    #[test]
    fn both_versions_carry_the_address_of_the_client() {
        let expected = "192.0.2.7:12345".parse().ok();
        let header = b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 27017\r\n";
        assert_eq!(client(header), expected);
        assert_eq!(client(&version_2(1, 0x11, &ADDRESSES)), expected);
        let header = b"PROXY TCP6 2001:db8::7 2001:db8::1 12345 27017\r\n";
        assert_eq!(client(header), "[2001:db8::7]:12345".parse().ok());
    }

    #[test]
    fn health_checks_and_unknown_clients_have_no_address() {
        assert_eq!(client(&version_2(0, 0, &[])), None);
        assert_eq!(client(b"PROXY UNKNOWN\r\n"), None);
    }

    #[test]
    fn beginning_of_a_header_needs_more_bytes() {
        let headers = [
            b"PROXY TCP4 192.0.2.7 192.0.2.1 12345 27017\r\n".to_vec(),
            version_2(1, 0x11, &ADDRESSES),
        ];
        for header in headers {
            for known in 1..header.len() {
                assert!(parse(&header[..known]).is_none(), "{known}");
            }
        }
    }

    #[test]
    fn bytes_without_a_valid_header_are_refused() {
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
