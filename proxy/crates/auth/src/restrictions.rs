//! `authenticationRestrictions`: the addresses a user may authenticate from.
//!
//! Behind Seawall a server sees Seawall's address instead of the client's, so the `clientSource`
//! clauses of a user must be enforced here. The server itself enforces `serverAddress` clauses,
//! against the address that Seawall's connection reached, so here they count as met.
//!
//! The semantics are the server's, tested on mongod 6.0.5:
//!
//! - a user has its own set and one more set for each role (held directly or through other roles)
//!   that is restricted; **every** set must be met;
//! - a set is met if **any** of its restrictions is; an empty set restricts nothing;
//! - a restriction is met if **all** of its clauses are; a `clientSource` clause is met if the
//!   address lies in **any** of its ranges; no client meets an empty clause;
//! - IPv4 and IPv6 never match each other: `::/0` contains no IPv4 client, and neither does
//!   `::ffff:10.0.0.1`. A client that Seawall's dual-stack listener reports as v4-mapped is an IPv4
//!   client and is compared as one;
//! - a client on a Unix domain socket meets no restriction at all.
//!
//! Anything that cannot be parsed is an error, never "unrestricted".

use std::net::IpAddr;

use bson::raw::RawBsonRef;
use bson::{RawArray, RawDocument};

/// All restrictions that apply to a user: its own and those inherited from its roles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Restrictions {
    /// Only non-empty sets: no sets means unrestricted.
    sets: Vec<Vec<Restriction>>,
}

impl Restrictions {
    /// Reads the two arrays of a `usersInfo` reply: `authenticationRestrictions`, a set, and
    /// `inheritedAuthenticationRestrictions`, an array of sets.
    pub fn parse(own: &RawArray, inherited: &RawArray) -> Result<Self, RestrictionsError> {
        let mut sets = vec![parse_set(own, OWN)?];
        for set in inherited {
            sets.push(parse_set(array(set, INHERITED)?, INHERITED)?);
        }
        sets.retain(|set| !set.is_empty());
        Ok(Self { sets })
    }

    /// True if clients may use this user from any address.
    pub fn is_unrestricted(&self) -> bool {
        self.sets.is_empty()
    }

    /// True if a client at this address may authenticate. `None` is a client without an IP address
    /// (a Unix domain socket), which only an unrestricted user permits.
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

/// Why a user's restrictions could not be parsed. The user is then refused: a restriction that
/// cannot be parsed might exclude the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestrictionsError {
    /// The reply lacks the field: the command did not ask for it, or the server is too old to
    /// return it.
    #[error("{field} is missing")]
    Missing {
        /// The field of the reply.
        field: &'static str,
    },
    /// A value is not of the type that the server documents, or is not valid BSON.
    #[error("{field} is not of the expected type")]
    WrongType {
        /// The field that holds the value.
        field: &'static str,
    },
    /// A clause that this version of Seawall does not know.
    #[error("unknown clause {clause:?}")]
    UnknownClause {
        /// The name of the clause.
        clause: String,
    },
    /// A restriction without any clause, which servers refuse to store.
    #[error("a restriction has no clause")]
    EmptyRestriction,
    /// An entry of `clientSource` is neither an address nor a CIDR range.
    #[error("{range:?} is not an address or a CIDR range")]
    InvalidRange {
        /// The entry as the server gave it.
        range: String,
    },
}

/// One restriction document: clauses that must all be met.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Restriction {
    /// `None` if there is no such clause. The restriction then has only `serverAddress`, which the
    /// server enforces.
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
    /// May have host bits set: servers accept `127.0.0.1/8`.
    network: IpAddr,
    /// At most 32 for IPv4 and 128 for IPv6.
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
        // A prefix of 0 shifts by the full width: `checked_shr` returns `None` and every address
        // matches.
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

/// The field of a `usersInfo` reply that holds a user's own set.
pub(super) const OWN: &str = "authenticationRestrictions";
/// The field of a `usersInfo` reply that holds the sets of all roles.
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

    /// Checks one case: own set, inherited sets, permitted clients, refused clients.
    fn check(own: Bson, inherited: Bson, permitted: &[&str], refused: &[&str]) {
        let restrictions = parse(own.clone(), inherited.clone()).unwrap();
        for address in permitted {
            assert!(
                restrictions.permits(client(address)),
                "{address} by {own} {inherited}"
            );
        }
        for address in refused {
            assert!(
                !restrictions.permits(client(address)),
                "{address} by {own} {inherited}"
            );
        }
    }

    #[test]
    fn no_restriction_permits_everyone() {
        for inherited in [bson!([]), bson!([[]])] {
            let restrictions = parse(bson!([]), inherited).unwrap();
            assert!(restrictions.is_unrestricted());
            assert!(restrictions.permits(client("203.0.113.9")));
            assert!(restrictions.permits(None));
        }
        assert!(Restrictions::default().is_unrestricted());
    }

    #[test]
    fn any_restriction_of_a_set_is_enough() {
        check(
            bson!([{ "clientSource": ["127.0.0.1"] }, { "clientSource": ["::1", "10.0.0.0/8"] }]),
            bson!([]),
            &["127.0.0.1", "::1", "10.255.0.1"],
            &["127.0.0.2", "::2", "11.0.0.1"],
        );
    }

    #[test]
    fn every_set_must_be_met() {
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

    #[test]
    fn server_address_is_left_to_the_server() {
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

    #[test]
    fn client_without_an_ip_address_meets_no_restriction() {
        for own in [
            bson!([{ "clientSource": ["0.0.0.0/0", "::/0"] }]),
            bson!([{ "serverAddress": ["127.0.0.1"] }]),
        ] {
            assert!(!parse(own, bson!([])).unwrap().permits(None));
        }
    }

    #[test]
    fn ranges_match_as_on_a_server() {
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
    fn no_client_meets_an_empty_clause() {
        check(
            bson!([{ "clientSource": [] }]),
            bson!([]),
            &[],
            &["127.0.0.1", "::1"],
        );
    }

    #[test]
    fn invalid_ranges_are_errors() {
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
        fn a_range_contains_its_own_network(bits: u32, prefix_bits in 0_u8..=32) {
            let range = AddressRange { network: IpAddr::V4(bits.into()), prefix_bits };
            prop_assert!(range.contains(range.network));
            let text = format!("{}/{prefix_bits}", range.network);
            prop_assert_eq!(AddressRange::parse(&text), Some(range));
        }

        #[test]
        fn range_text_never_panics(text in ".{0,40}") {
            let _: Option<AddressRange> = AddressRange::parse(&text);
        }
    }
}
