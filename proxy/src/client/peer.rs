//! The address of a client.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// A client's address, as a value and as text.
#[derive(Clone, Debug)]
pub struct Peer {
    /// IP address; `None` over a unix socket.
    pub ip: Option<IpAddr>,
    /// Address and port as text, for `whatsmyuri` and for servers' logs.
    pub text: Arc<str>,
}

impl Peer {
    /// The client at this address. If this is an IPv6 address that contains an IPv4 address
    /// (`::ffff:0:0/96` of RFC 4291), uses the IPv4 address. A socket for both protocols returns
    /// such IPv6 addresses for IPv4 clients.
    pub(crate) fn at(address: SocketAddr) -> Self {
        let ip = address.ip().to_canonical();
        let text = match ip {
            IpAddr::V4(_) => SocketAddr::new(ip, address.port()).to_string(),
            IpAddr::V6(_) => address.to_string(),
        };
        Self {
            ip: Some(ip),
            text: text.into(),
        }
    }
}
