//! The names of mechanisms that a server lists for a user.

use bson::RawArray;
use bson::raw::RawBsonRef;

/// The names of all mechanisms that a MongoDB server may list for a user.
const NAMES: [&str; 7] = [
    "SCRAM-SHA-1",
    "SCRAM-SHA-256",
    "MONGODB-X509",
    "PLAIN",
    "GSSAPI",
    "MONGODB-AWS",
    "MONGODB-OIDC",
];

/// Returns the names of known mechanisms in `listed`, a list from a server. Keeps the order of the
/// list, and returns each name once. Ignores all other elements, so that the result stays small if
/// a hostile server returns a long list.
pub fn mechanism_names(listed: &RawArray) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let texts = listed.into_iter().filter_map(Result::ok);
    for name in texts.filter_map(RawBsonRef::as_str) {
        if NAMES.contains(&name) && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use bson::RawArrayBuf;

    use super::*;

    fn listed(names: &[&str]) -> Vec<String> {
        let mut array = RawArrayBuf::new();
        names.iter().for_each(|name| array.push(*name));
        mechanism_names(&array)
    }

    #[test]
    fn all_mechanisms_that_a_server_lists_are_kept_in_its_order() {
        let mut reversed = NAMES;
        reversed.reverse();
        assert_eq!(listed(&NAMES), NAMES);
        assert_eq!(listed(&reversed), reversed);
    }

    #[test]
    fn repeated_and_unknown_names_in_a_list_of_mechanisms_are_ignored() {
        let long = "x".repeat(1_000_000);
        let names = ["PLAIN", long.as_str(), "SCRAM-SHA-256", "external", "PLAIN"].repeat(3);
        assert_eq!(listed(&names), ["PLAIN", "SCRAM-SHA-256"]);
    }

    #[test]
    fn elements_of_a_list_of_mechanisms_that_are_not_text_are_ignored() {
        let mut array = RawArrayBuf::new();
        array.push(7);
        array.push("SCRAM-SHA-1");
        assert_eq!(mechanism_names(&array), ["SCRAM-SHA-1"]);
    }
}
