//! Sharers: groups of clients. Seawall divides a bounded resource, such as memory, between these
//! groups, and limits how much of the resource one group gets.

use std::net::{IpAddr, Ipv6Addr};

/// A group of clients that count as one when Seawall divides a bounded resource between clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharer {
    /// All clients that connect over a unix socket.
    #[default]
    Local,
    /// All clients of one IPv4 address, or of one IPv6 /64 network, because one host may own a
    /// whole /64.
    Address(IpAddr),
    /// The logged-in clients of one user. Only clients at an address that many clients share, such
    /// as the address of a NAT gateway, belong to such a group. The number is the id of the user's
    /// identity (`IdentityId`).
    User(u64),
}

impl Sharer {
    /// The group of a client at this address. `None` means a unix socket.
    pub fn at(ip: Option<IpAddr>) -> Self {
        match ip.map(|ip| ip.to_canonical()) {
            None => Self::Local,
            Some(IpAddr::V4(ip)) => Self::Address(ip.into()),
            Some(IpAddr::V6(ip)) => {
                let [a, b, c, d, ..] = ip.segments();
                Self::Address(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        }
    }
}

/// A [`Sharer`] may get more of a resource only if it holds less than the free amount multiplied by
/// this factor. So if sharers request one unit at a time, one sharer gets at most eight ninths of
/// the resource, and at least one ninth stays free for other sharers. A request for several units,
/// such as many bytes of memory, may exceed this share.
///
/// Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
/// switches", 1998.
const SHARE_FACTOR: usize = 8;

/// True if a sharer that holds `held` units of a resource may get another unit while `free` units
/// are left.
pub fn is_within_share(held: usize, free: usize) -> bool {
    held < free.saturating_mul(SHARE_FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4-mapped IPv6 address counts as the IPv4 address.
    #[test]
    fn clients_are_grouped_by_ipv4_address_or_ipv6_64_network_or_unix_socket() {
        let sharer = |ip: &str| Sharer::at(ip.parse().ok());
        let address = |ip: &str| Sharer::Address(ip.parse().unwrap());
        assert_eq!(sharer("2001:db8:1:2:3::4"), address("2001:db8:1:2::"));
        assert_eq!(sharer("::ffff:192.0.2.1"), address("192.0.2.1"));
        assert_eq!(Sharer::at(None), Sharer::Local);
    }
}
