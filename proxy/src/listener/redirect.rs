//! Clients that the kernel redirects to Seawall, for example because of a firewall rule.

use std::net::SocketAddr;

use tokio::net::TcpStream;

/// The address to which a client connected before the kernel redirected it to Seawall
/// (`SO_ORIGINAL_DST`); `None` if the client was not redirected.
#[cfg(target_os = "linux")]
pub(super) fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst};
    let here = stream.local_addr().ok()?;
    let here = SocketAddr::new(here.ip().to_canonical(), here.port());
    let original = match here {
        SocketAddr::V4(_) => ip_original_dst(stream).map(SocketAddr::V4),
        SocketAddr::V6(_) => ipv6_original_dst(stream).map(SocketAddr::V6),
    };
    // The socket option fails if the kernel has no connection tracking. In this case, the client
    // was not redirected.
    original.ok().filter(|original| is_other(*original, here))
}

/// True if the addresses differ in their IP address or port. Scope ids and flow labels are not
/// compared: for a link-local address, only `original` has a scope id.
#[cfg(target_os = "linux")]
fn is_other(original: SocketAddr, here: SocketAddr) -> bool {
    (original.ip(), original.port()) != (here.ip(), here.port())
}

#[cfg(not(target_os = "linux"))]
pub(super) fn original_destination(_: &TcpStream) -> Option<SocketAddr> {
    None
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_client_was_redirected_if_its_ip_address_or_port_differs_from_that_of_seawall() {
        for (original, here, expected) in [
            ("10.0.0.1:27017", "10.0.0.1:27017", false),
            ("10.0.0.1:27017", "10.0.0.1:27018", true),
            ("10.0.0.2:27017", "10.0.0.1:27017", true),
            ("[fe80::1%2]:27017", "[fe80::1]:27017", false),
            ("[fe80::2%2]:27017", "[fe80::1]:27017", true),
        ] {
            let is_other = is_other(original.parse().unwrap(), here.parse().unwrap());
            assert_eq!(is_other, expected, "{original} {here}");
        }
    }
}
