//! Suggests a known name for an unknown name, which is probably misspelled.

use std::fmt::Display;

/// Minimum Jaro-Winkler similarity of the unknown name and a suggested name. Equal names have a
/// similarity of 1.
const MIN_SIMILARITY: f64 = 0.85;

/// Returns the candidate that is most similar to `given`. `None` if no candidate is similar enough.
/// Upper and lower case count as equal.
///
/// Source: Winkler, "String Comparator Metrics and Enhanced Decision Rules in the Fellegi-Sunter
/// Model of Record Linkage", 1990.
pub(crate) fn most_similar<T: AsRef<str>>(
    given: &str,
    candidates: impl IntoIterator<Item = T>,
) -> Option<T> {
    let given = given.to_lowercase();
    let similarity = |name: &T| strsim::jaro_winkler(&given, &name.as_ref().to_lowercase());
    candidates
        .into_iter()
        .map(|name| (similarity(&name), name))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, name)| name)
}

/// Returns the text "did you mean …? " for the start of a message; empty if `name` is `None`.
pub(crate) fn did_you_mean(name: Option<impl Display>) -> String {
    name.map_or_else(String::new, |name| format!("did you mean {name}? "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_name_is_suggested_if_it_is_similar_enough() {
        let names = ["max_pool_size", "min_pool_size", "max_connecting"];
        for (given, suggestion) in [
            ("max_pol_size", Some("max_pool_size")),
            ("maxPoolSize", Some("max_pool_size")),
            ("max_conecting", Some("max_connecting")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(most_similar(given, names), suggestion, "{given}");
        }
    }
}
