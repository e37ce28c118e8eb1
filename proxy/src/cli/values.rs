//! Parsers and checks of values that several commands use.

use std::fs;

use crate::runtime::raise_descriptor_limit;

/// Number of file descriptors that a load or a replay needs in addition to its connections.
const OTHER_DESCRIPTORS: u64 = 50;

/// Maximum duration of a load in seconds: a week. The harness keeps the results of each second, so
/// this maximum limits its memory.
const MAX_DURATION_S: f64 = 604_800.0;

/// Maximum number of operations or connections per second. One machine cannot send more.
const MAX_RATE: f64 = 1_000_000.0;

/// Maximum size of the text in a document, in bytes. A server refuses documents over 16 MiB.
const MAX_PAYLOAD_BYTES: usize = 15 << 20;

/// Parses a connection string, or `@FILE` with a file that contains the connection string. All
/// users of the machine can read the arguments of a process, so a password should be in a file.
pub(super) fn connection_string(text: &str) -> Result<String, String> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text.to_owned());
    };
    let content = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(content.trim().to_owned())
}

/// Parses a number above 0.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

/// Parses a duration in seconds.
pub(super) fn duration_s(text: &str) -> Result<f64, String> {
    positive_up_to(MAX_DURATION_S, text)
}

/// Parses a number of operations or connections per second.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    positive_up_to(MAX_RATE, text)
}

fn positive_up_to(max: f64, text: &str) -> Result<f64, String> {
    match positive(text) {
        Ok(number) if number <= max => Ok(number),
        _ => Err(format!("expected a number above 0 and at most {max}")),
    }
}

/// Parses a number of bytes of text in a document.
pub(super) fn payload_bytes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(bytes) if bytes <= MAX_PAYLOAD_BYTES => Ok(bytes),
        _ => Err(format!(
            "expected a whole number of at most {MAX_PAYLOAD_BYTES}"
        )),
    }
}

/// Raises the limit of file descriptors. Fails if it stays too low for `clients` connections.
pub(super) fn check_descriptors(clients: usize) -> Result<(), String> {
    let needed = u64::try_from(clients)
        .unwrap_or(u64::MAX)
        .saturating_add(OTHER_DESCRIPTORS);
    match raise_descriptor_limit() {
        Some(allowed) if allowed < needed => Err(format!(
            "{clients} connections need {needed} file descriptors, but only {allowed} are allowed (ulimit -n)"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_can_be_read_from_a_file() {
        let uri = "mongodb://user:word@server/";
        assert_eq!(connection_string(uri).as_deref(), Ok(uri));
        let path = std::env::temp_dir().join(format!("seawall-uri-{}", std::process::id()));
        fs::write(&path, format!("{uri}\n")).unwrap();
        let read = connection_string(&format!("@{}", path.display()));
        fs::remove_file(&path).unwrap();
        assert_eq!(read.as_deref(), Ok(uri));
        let missing = connection_string("@/nowhere/uri").unwrap_err();
        assert!(missing.starts_with("/nowhere/uri: "), "{missing}");
    }

    #[test]
    fn durations_rates_and_sizes_that_are_too_large_are_refused() {
        assert_eq!(duration_s("0.5"), Ok(0.5));
        assert_eq!(rate("1000000"), Ok(1e6));
        assert_eq!(payload_bytes("0"), Ok(0));
        for text in ["0", "-1", "inf", "NaN", "1e20", "x"] {
            assert!(duration_s(text).is_err() && rate(text).is_err(), "{text}");
        }
        let expected = "expected a number above 0 and at most 604800";
        assert_eq!(duration_s("604801"), Err(expected.to_owned()));
        let expected = "expected a whole number of at most 15728640";
        assert_eq!(payload_bytes("15728641"), Err(expected.to_owned()));
    }
}
