//! Prints names of fields and indexes as keyed hashes, for users whose field names may contain
//! personal data.
//!
//! While the key is the same, a name always has the same hash. So shapes stay distinguishable, and
//! a user who knows the key can match the hashes with the names of a schema. MongoDB does the same
//! in `$queryStats` (`transformIdentifiers`, HMAC-SHA-256).

use std::fmt::{self, Write as _};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Number of printed bytes of a hash: enough to distinguish some thousands of names.
const SHOWN_BYTES: usize = 6;

/// The key with which names of fields and indexes are hashed.
#[derive(Clone)]
pub struct NameKey(Hmac<Sha256>);

impl fmt::Debug for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameKey(hidden)")
    }
}

impl NameKey {
    /// Creates a key from bytes of any length.
    pub fn new(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("HMAC accepts keys of any length"))
    }

    /// Replaces a component of a path by its hash. Operators (such as `$size`) and the placeholder
    /// `*` are not replaced. `sigils` is the number of `$` with which an expression marks a path:
    /// one for a field path, two for a variable. These `$` are not hashed.
    pub(super) fn hide(&self, component: &[u8], sigils: usize) -> Vec<u8> {
        let (sigils, name) = component.split_at_checked(sigils).unwrap_or_default();
        if name.is_empty() || name == b"*" || name.first() == Some(&b'$') {
            return component.to_vec();
        }
        let mut hidden = sigils.to_vec();
        hidden.extend_from_slice(self.hash(name).as_bytes());
        hidden
    }

    /// The hash of a whole name, in hexadecimal digits. The name may have any characters.
    pub(super) fn hash(&self, name: &[u8]) -> String {
        let mac = self.0.clone().chain_update(name).finalize().into_bytes();
        let mut hash = String::new();
        for byte in mac.iter().take(SHOWN_BYTES) {
            // Writing to a string never fails.
            write!(hash, "{byte:02x}").unwrap_or_default();
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::{LearnedNames, describe};
    use seawall_command::CommandBytes;

    #[test]
    fn names_of_fields_and_variables_are_hashed_and_other_parts_of_a_shape_are_unchanged() {
        let key = NameKey::new(b"secret");
        let hide = |name: &str| String::from_utf8(key.hide(name.as_bytes(), 0)).unwrap();
        let (a, b, status) = (hide("a"), hide("b c"), hide("status"));
        assert_eq!(a.len(), 12);
        assert_ne!(
            a,
            String::from_utf8(NameKey::new(b"other").hide(b"a", 0)).unwrap()
        );
        let command = doc! {
            "aggregate": "orders", "pipeline": [
                {"$match": {"a.17.status": {"$in": [1, 2]}, "b c": null}},
                {"$group": {"_id": "$status", "status": {"$sum": "$$ROOT.a"}}},
            ], "$db": "shop",
        };
        let body = command.to_vec().unwrap();
        let input = CommandBytes::of_body(&body);
        let described = LearnedNames::default().describe(&input, Some(&key));
        let (id, root) = (hide("_id"), hide("ROOT"));
        let mut conjuncts = [
            format!("{a}.*.{status}:{{$in:[?]}}"),
            format!("\"{b}\":null"),
        ];
        conjuncts.sort();
        let mut group = [
            format!("{id}:\"${status}\""),
            format!("{status}:{{$sum:\"$${root}.{a}\"}}"),
        ];
        group.sort();
        let expected = format!(
            "{{pipeline:[{{$match:{{{}}}}},{{$group:{{{}}}}}]}}",
            conjuncts.join(","),
            group.join(",")
        );
        let unquoted = |text: &str| text.replace('"', "");
        assert_eq!(unquoted(&described.shape), unquoted(&expected));
        let plain = LearnedNames::default().describe(&input, None);
        assert_eq!(plain, describe(&input));
        assert_eq!(
            (described.op, described.collection),
            (plain.op, plain.collection)
        );
    }

    #[test]
    fn the_name_of_an_index_is_hashed_as_a_whole() {
        let key = NameKey::new(b"secret");
        for index in ["email_1", "contact.email_1", "$email_1"] {
            let command = doc! { "find": "users", "hint": index, "$db": "shop" };
            let body = command.to_vec().unwrap();
            let input = CommandBytes::of_body(&body);
            let described = LearnedNames::default().describe(&input, Some(&key));
            let hash = key.hash(index.as_bytes());
            assert_eq!(described.shape, format!("{{hint:{hash}}}"));
            let plain = LearnedNames::default().describe(&input, None);
            assert_eq!(plain.shape, format!("{{hint:{index}}}"));
        }
    }
}
