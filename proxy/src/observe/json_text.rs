//! Control characters in JSON text.

use std::fmt;

/// Writes JSON text with escaped control characters. JSON does not escape U+007F to U+009F, and a
/// terminal would run some of them. They occur only in strings, where the escapes are valid. Line
/// breaks are kept: strings in JSON contain no line breaks, because JSON escapes them there.
pub(crate) fn write_escaped(out: &mut impl fmt::Write, json: &str) -> fmt::Result {
    for character in json.chars() {
        match character.is_control() && character != '\n' {
            true => write!(out, "\\u{:04x}", u32::from(character))?,
            false => out.write_char(character)?,
        }
    }
    Ok(())
}
