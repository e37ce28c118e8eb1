//! A server's reply to `usersInfo`: the SCRAM keys and the authentication restrictions of a user.
//!
//! Input, in this order:
//!
//! - one length byte, then that many bytes, which select changes to the document;
//! - the document of the reply.

use std::net::{IpAddr, Ipv4Addr};

use bson::RawDocument;
use seawall_auth::{MAX_ITERATIONS, MIN_ITERATIONS, Mechanism, parse_users_info};

use crate::{choices::Choices, documents};

/// The name and the database of the user whose credentials the corpus contains.
const USER: (&str, &str) = ("user", "admin");

/// Checks that accepted credentials are those of the requested user and have keys of the right
/// length. Checks that restrictions treat an IPv4-mapped IPv6 address like the IPv4 address.
pub fn users_info(data: &[u8]) {
    let mut choices = Choices::new(data);
    let mut alterations = Choices::new(choices.short());
    let reply = documents::repaired(choices.rest());
    check(choices.rest());
    check(&reply);
    if let Some(reply) = documents::altered(&reply, &mut alterations) {
        check(&reply);
    }
}

fn check(reply: &[u8]) {
    let Ok(reply) = RawDocument::from_bytes(reply) else {
        return;
    };
    let (name, source) = USER;
    let credentials = match parse_users_info(reply, name, source) {
        Ok(credentials) => credentials,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    assert_eq!((&*credentials.name, &*credentials.source), USER);
    for mechanism in Mechanism::ALL {
        let Some(keys) = credentials.keys(mechanism) else {
            continue;
        };
        assert_eq!(keys.mechanism(), mechanism);
        assert!((MIN_ITERATIONS..=MAX_ITERATIONS).contains(&keys.iterations()));
        assert!(!keys.salt().is_empty());
        assert_eq!(keys.stored_key().as_bytes().len(), mechanism.key_length());
        assert_eq!(keys.server_key().as_bytes().len(), mechanism.key_length());
    }
    let restrictions = &credentials.restrictions;
    assert_eq!(restrictions.permits(None), restrictions.is_unrestricted());
    let local = restrictions.permits(Some(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    let mapped = restrictions.permits(Some(IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped())));
    assert_eq!(local, mapped);
}
