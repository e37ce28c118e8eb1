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
    original.ok().filter(|original| *original != here)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn original_destination(_: &TcpStream) -> Option<SocketAddr> {
    None
}
