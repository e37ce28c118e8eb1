//! The output of a bench.

use std::io::{Write, stdout};

/// Prints a line of the report.
///
/// # Panics
/// If standard output is closed.
pub fn say(line: &str) {
    writeln!(stdout().lock(), "{line}").expect("standard output is open");
}
