//! Reads the command-line options of a bench.

use std::str::FromStr;

/// The values of the option `name`, which may occur more than once on the command line.
pub fn options(name: &str) -> impl Iterator<Item = String> {
    let words = std::env::args().zip(std::env::args().skip(1));
    words.filter_map(move |(option, word)| (option == name).then_some(word))
}

/// The value of the option `name`; `None` if the option is absent.
pub fn option(name: &str) -> Option<String> {
    options(name).next()
}

/// The comma-separated values of the option `name`; `None` if the option is absent.
///
/// # Panics
/// If a value cannot be parsed.
pub fn list<T: FromStr>(name: &str) -> Option<Vec<T>> {
    let word = option(name)?;
    let values: Option<Vec<T>> = word.split(',').map(|value| value.parse().ok()).collect();
    Some(values.unwrap_or_else(|| panic!("{name} takes comma-separated values, not {word}")))
}
