//! `authenticationRestrictions`: the addresses from which a user may authenticate.
//!
//! A server sees Seawall's address instead of the client's, so Seawall must enforce the
//! `clientSource` clauses of a user. The server itself enforces `serverAddress` clauses, against
//! the address to which Seawall has connected. So this module treats `serverAddress` clauses as
//! met.
//!
//! The rules are the server's, tested with mongod 6.0.5:
//!
//! - A user has its own set of restrictions. In addition, it has one set for each restricted role
//!   that it has directly or through other roles. **Every** set must be met.
//! - A set is met if **any** of its restrictions is met. An empty set is always met.
//! - A restriction is met if **all** of its clauses are met. A `clientSource` clause is met if the
//!   address is in **any** of its ranges. An empty clause is never met.
//! - IPv4 and IPv6 addresses never match each other: neither `::/0` nor `::ffff:10.0.0.1` contains
//!   an IPv4 client. A client that Seawall's listener reports with an IPv4-mapped IPv6 address
//!   counts as an IPv4 client.
//! - A client on a Unix domain socket meets no restriction.
//!
//! A restriction that cannot be parsed is an error. It never means "unrestricted".

use std::net::IpAddr;

use bson::raw::RawBsonRef;
use bson::{RawArray, RawDocument};

/// All restrictions that apply to a user: the user's own restrictions and the restrictions of the
/// user's roles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restrictions {
    /// The user's own set of restrictions, and the sets of the user's roles, except empty sets. A
    /// client must meet at least one restriction of each set. A user without sets is unrestricted.
    sets: Vec<Vec<Restriction>>,
}

impl Restrictions {
    /// Parses two arrays of a `usersInfo` reply. `own` is `authenticationRestrictions`: one set of
    /// restrictions. `inherited` is `inheritedAuthenticationRestrictions`: an array with one set
    /// for each restricted role.
    ///
    /// # Errors
    /// See [`RestrictionsError`]. The caller must then refuse the user's logins.
    pub(crate) fn parse(own: &RawArray, inherited: &RawArray) -> Result<Self, RestrictionsError> {
        let mut sets = vec![parse_set(own, OWN)?];
        for set in inherited {
            sets.push(parse_set(array(set, INHERITED)?, INHERITED)?);
        }
        sets.retain(|set| !set.is_empty());
        Ok(Self { sets })
    }

    /// True if clients may authenticate as this user from any address.
    pub fn is_unrestricted(&self) -> bool {
        self.sets.is_empty()
    }

    /// True if a client at this address may authenticate. `None` is a client on a Unix domain
    /// socket, which may authenticate only as an unrestricted user.
    pub fn permits(&self, client: Option<IpAddr>) -> bool {
        let Some(client) = client else {
            return self.is_unrestricted();
        };
        let client = client.to_canonical();
        self.sets
            .iter()
            .all(|set| set.iter().any(|restriction| restriction.is_met_by(client)))
    }
}

/// The reason why a user's restrictions could not be parsed. Seawall then refuses the user's
/// logins, because a restriction that cannot be parsed may exclude the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestrictionsError {
    /// The reply lacks the field, because the command did not request it or the server is too old.
    #[error("the reply to usersInfo has no field {field}")]
    Missing {
        /// The field of the reply.
        field: &'static str,
    },
    /// A value does not have the documented type, or is not valid BSON.
    #[error("the value of {field} is not of the expected type")]
    WrongType {
        /// The field with the value.
        field: &'static str,
    },
    /// A restriction has a clause that Seawall does not know.
    #[error("a restriction has the unknown clause {clause:?}")]
    UnknownClause {
        /// The name of the clause.
        clause: String,
    },
    /// A restriction has no clause. Servers refuse to store such a restriction.
    #[error("a restriction has no clause")]
    EmptyRestriction,
    /// An entry of `clientSource` is neither an address nor a CIDR range.
    #[error("{range:?} is neither an address nor a CIDR range")]
    InvalidRange {
        /// The entry in the reply.
        range: String,
    },
}

/// One restriction document. All its clauses must be met.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Restriction {
    /// The ranges of the `clientSource` clause. `None` if the restriction has only a
    /// `serverAddress` clause, which the server enforces.
    client_source: Option<Vec<AddressRange>>,
}

impl Restriction {
    fn parse(document: &RawDocument, field: &'static str) -> Result<Self, RestrictionsError> {
        if document.is_empty() {
            return Err(RestrictionsError::EmptyRestriction);
        }
        let mut client_source = None;
        for clause in document {
            let (name, value) = clause.map_err(|_| RestrictionsError::WrongType { field })?;
            match name.as_str() {
                CLIENT_SOURCE => {
                    client_source = Some(parse_ranges(array(Ok(value), CLIENT_SOURCE)?)?)
                }
                SERVER_ADDRESS => {}
                other => {
                    return Err(RestrictionsError::UnknownClause {
                        clause: other.to_owned(),
                    });
                }
            }
        }
        Ok(Self { client_source })
    }

    fn is_met_by(&self, client: IpAddr) -> bool {
        match &self.client_source {
            Some(ranges) => ranges.iter().any(|range| range.contains(client)),
            None => true,
        }
    }
}

/// A single address or a CIDR range, as in `192.168.0.0/16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AddressRange {
    /// The address before the `/`. Its host bits may be set, because servers accept `127.0.0.1/8`.
    network: IpAddr,
    /// Number of leading bits that all addresses in the range have in common with `network`: at
    /// most 32 for IPv4 and 128 for IPv6.
    prefix_bits: u8,
}

impl AddressRange {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().ok()?;
        let all_bits = if network.is_ipv4() {
            u32::BITS
        } else {
            u128::BITS
        };
        let prefix_bits = match prefix {
            Some(prefix) => prefix.parse().ok()?,
            None => u8::try_from(all_bits).ok()?,
        };
        (u32::from(prefix_bits) <= all_bits).then_some(Self {
            network,
            prefix_bits,
        })
    }

    fn contains(self, address: IpAddr) -> bool {
        let prefix_bits = u32::from(self.prefix_bits);
        // For a prefix of 0 bits, the shift is as long as the address, so `checked_shr` returns
        // `None` and every address matches.
        match (self.network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing
                    .checked_shr(u32::BITS.saturating_sub(prefix_bits))
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing
                    .checked_shr(u128::BITS.saturating_sub(prefix_bits))
                    .unwrap_or(0)
                    == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

fn parse_set(set: &RawArray, field: &'static str) -> Result<Vec<Restriction>, RestrictionsError> {
    set.into_iter()
        .map(|value| {
            let document = value
                .ok()
                .and_then(RawBsonRef::as_document)
                .ok_or(RestrictionsError::WrongType { field })?;
            Restriction::parse(document, field)
        })
        .collect()
}

fn parse_ranges(ranges: &RawArray) -> Result<Vec<AddressRange>, RestrictionsError> {
    ranges
        .into_iter()
        .map(|value| {
            let text =
                value
                    .ok()
                    .and_then(RawBsonRef::as_str)
                    .ok_or(RestrictionsError::WrongType {
                        field: CLIENT_SOURCE,
                    })?;
            AddressRange::parse(text).ok_or_else(|| RestrictionsError::InvalidRange {
                range: text.to_owned(),
            })
        })
        .collect()
}

fn array<'a>(
    value: Result<RawBsonRef<'a>, bson::error::Error>,
    field: &'static str,
) -> Result<&'a RawArray, RestrictionsError> {
    value
        .ok()
        .and_then(RawBsonRef::as_array)
        .ok_or(RestrictionsError::WrongType { field })
}

/// The field of a `usersInfo` reply that contains the user's own set of restrictions.
pub(super) const OWN: &str = "authenticationRestrictions";
/// The field of a `usersInfo` reply that contains the sets of restrictions of the user's roles.
pub(super) const INHERITED: &str = "inheritedAuthenticationRestrictions";
const CLIENT_SOURCE: &str = "clientSource";
const SERVER_ADDRESS: &str = "serverAddress";

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, RawDocumentBuf, bson, doc};
    use proptest::prelude::*;

    use super::*;

    fn parse(own: Bson, inherited: Bson) -> Result<Restrictions, RestrictionsError> {
        let document = raw(&doc! { "own": own, "inherited": inherited });
        let own = document.get_array("own").unwrap();
        Restrictions::parse(own, document.get_array("inherited").unwrap())
    }

    fn raw(document: &Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(document).unwrap()
    }

    fn client(address: &str) -> Option<IpAddr> {
        Some(address.parse().unwrap())
    }

    /// Checks that these sets of restrictions permit a client at each address in `permitted`, and
    /// refuse a client at each address in `refused`.
    fn check(own: Bson, inherited: Bson, permitted: &[&str], refused: &[&str]) {
        let restrictions = parse(own.clone(), inherited.clone()).unwrap();
        for address in permitted {
            assert!(
                restrictions.permits(client(address)),
                "{address} is refused under the restrictions {own} {inherited}"
            );
        }
        for address in refused {
            assert!(
                !restrictions.permits(client(address)),
                "{address} is permitted under the restrictions {own} {inherited}"
            );
        }
    }

    #[test]
    fn any_client_may_log_in_as_a_user_without_restrictions() {
        for inherited in [bson!([]), bson!([[]])] {
            let restrictions = parse(bson!([]), inherited).unwrap();
            assert!(restrictions.is_unrestricted());
            assert!(restrictions.permits(client("203.0.113.9")));
            assert!(restrictions.permits(None));
        }
        assert!(Restrictions::default().is_unrestricted());
    }

    #[test]
    fn a_restriction_set_is_met_if_any_restriction_in_it_is_met() {
        check(
            bson!([{ "clientSource": ["127.0.0.1"] }, { "clientSource": ["::1", "10.0.0.0/8"] }]),
            bson!([]),
            &["127.0.0.1", "::1", "10.255.0.1"],
            &["127.0.0.2", "::2", "11.0.0.1"],
        );
    }

    #[test]
    fn a_client_is_refused_unless_all_restriction_sets_are_met() {
        let role = bson!([[{ "clientSource": ["127.0.0.1/32", "10.0.0.0/8"] }]]);
        check(
            bson!([{ "clientSource": ["::1"] }]),
            role,
            &[],
            &["127.0.0.1", "::1", "10.0.0.1"],
        );

        let roles = bson!([
            [{ "clientSource": ["::1/128"] }, { "clientSource": ["127.0.0.1/32"] }],
            [{ "clientSource": ["127.0.0.1/32", "10.0.0.0/8"] }],
        ]);
        check(bson!([]), roles, &["127.0.0.1"], &["::1", "10.0.0.1"]);
    }

    /// The server itself enforces `serverAddress` clauses, so Seawall does not check them.
    #[test]
    fn server_address_clauses_count_as_met_for_every_client_with_an_ip_address() {
        check(
            bson!([{ "serverAddress": ["192.0.2.1"] }]),
            bson!([]),
            &["203.0.113.9"],
            &[],
        );
        check(
            bson!([{ "clientSource": ["10.0.0.1"], "serverAddress": ["192.0.2.1"] }]),
            bson!([]),
            &["10.0.0.1"],
            &["203.0.113.9"],
        );
    }

    /// A client on a Unix socket does not even meet a restriction with only a `serverAddress`
    /// clause. Every client with an IP address meets such a restriction.
    #[test]
    fn no_restriction_permits_a_client_on_a_unix_socket() {
        for own in [
            bson!([{ "clientSource": ["0.0.0.0/0", "::/0"] }]),
            bson!([{ "serverAddress": ["127.0.0.1"] }]),
        ] {
            assert!(!parse(own, bson!([])).unwrap().permits(None));
        }
    }

    #[test]
    fn address_ranges_contain_the_same_addresses_as_on_a_server() {
        let cases: [(&str, &[&str], &[&str]); 9] = [
            (
                "127.0.0.1",
                &["127.0.0.1", "::ffff:127.0.0.1"],
                &["127.0.0.2", "::1"],
            ),
            ("127.0.0.1/8", &["127.255.0.9"], &["128.0.0.1"]),
            ("127.0.0.1/08", &["127.255.0.9"], &["128.0.0.1"]),
            ("127.0.0.1/+8", &["127.255.0.9"], &["128.0.0.1"]),
            ("10.1.2.3/31", &["10.1.2.2", "10.1.2.3"], &["10.1.2.4"]),
            ("0.0.0.0/0", &["255.1.2.3"], &["::1"]),
            ("::/0", &["2001:db8::1"], &["127.0.0.1", "::ffff:127.0.0.1"]),
            (
                "2001:db8::/33",
                &["2001:db8:7fff::1"],
                &["2001:db8:8000::1"],
            ),
            ("::ffff:127.0.0.1", &[], &["127.0.0.1", "::ffff:127.0.0.1"]),
        ];
        for (range, permitted, refused) in cases {
            check(
                bson!([{ "clientSource": [range] }]),
                bson!([]),
                permitted,
                refused,
            );
        }
    }

    #[test]
    fn no_client_meets_a_client_source_restriction_with_an_empty_list() {
        check(
            bson!([{ "clientSource": [] }]),
            bson!([]),
            &[],
            &["127.0.0.1", "::1"],
        );
    }

    #[test]
    fn invalid_address_ranges_are_errors() {
        for range in [
            "",
            "localhost",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/8 ",
            "127.1",
            "fe80::1%eth0",
        ] {
            let error = parse(bson!([{ "clientSource": [range] }]), bson!([])).unwrap_err();
            assert_eq!(
                error,
                RestrictionsError::InvalidRange {
                    range: range.to_owned()
                }
            );
        }
    }

    #[test]
    fn unparsable_restrictions_are_errors() {
        let cases = [
            (bson!([{}]), bson!([]), RestrictionsError::EmptyRestriction),
            (
                bson!([{ "clientSource": ["::1"], "hour": 5 }]),
                bson!([]),
                RestrictionsError::UnknownClause {
                    clause: "hour".into(),
                },
            ),
            (
                bson!(["::1"]),
                bson!([]),
                RestrictionsError::WrongType { field: OWN },
            ),
            (
                bson!([]),
                bson!([[5]]),
                RestrictionsError::WrongType { field: INHERITED },
            ),
            (
                bson!([]),
                bson!([{}]),
                RestrictionsError::WrongType { field: INHERITED },
            ),
            (
                bson!([{ "clientSource": "::1" }]),
                bson!([]),
                RestrictionsError::WrongType {
                    field: CLIENT_SOURCE,
                },
            ),
            (
                bson!([{ "clientSource": [5] }]),
                bson!([]),
                RestrictionsError::WrongType {
                    field: CLIENT_SOURCE,
                },
            ),
        ];
        for (own, inherited, expected) in cases {
            assert_eq!(parse(own, inherited).unwrap_err(), expected);
        }
    }

    proptest! {
        #[test]
        fn an_address_range_contains_its_own_network_address(bits: u32, prefix_bits in 0_u8..=32) {
            let range = AddressRange { network: IpAddr::V4(bits.into()), prefix_bits };
            prop_assert!(range.contains(range.network));
            let text = format!("{}/{prefix_bits}", range.network);
            prop_assert_eq!(AddressRange::parse(&text), Some(range));
        }

        #[test]
        fn parsing_an_address_range_never_panics(text in ".{0,40}") {
            let _: Option<AddressRange> = AddressRange::parse(&text);
        }
    }
}
