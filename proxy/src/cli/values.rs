//! Parsers and checks of values that several commands use.

use crate::runtime::raise_descriptor_limit;

/// Number of file descriptors that a load or a replay needs in addition to its connections.
const OTHER_DESCRIPTORS: u64 = 50;

/// Parses a number above 0.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// Raises the limit of file descriptors. Fails if it stays too low for `clients` connections.
pub(super) fn check_descriptors(clients: usize) -> Result<(), String> {
    let needed = u64::try_from(clients)
        .unwrap_or(u64::MAX)
        .saturating_add(OTHER_DESCRIPTORS);
    match raise_descriptor_limit() {
        Some(allowed) if allowed < needed => Err(format!(
            "{clients} clients need {needed} file descriptors, but only {allowed} are allowed (ulimit -n)"
        )),
        _ => Ok(()),
    }
}
