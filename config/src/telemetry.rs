//! Lists of names and values: the HTTP headers of the requests that export metrics, and the
//! attributes of the exported metrics.
//!
//! Both lists are written as in the variables of OpenTelemetry: `name=value`, separated by commas,
//! with percent-encoded values (W3C Baggage without properties).
//!
//! Source: <https://opentelemetry.io/docs/specs/otel/protocol/exporter/> and
//! <https://opentelemetry.io/docs/specs/otel/resource/sdk/>.

use std::fmt;

use toml::Value;

use crate::read::{Given, Setting};
use crate::secret::Secret;

/// Headers of HTTP requests, in the order of the configuration. Their values are secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Headers(Vec<(String, Secret)>);

impl Headers {
    /// Names in lower case, with their values. Names contain only the characters that RFC 9110
    /// allows. Values contain only spaces and visible ASCII characters.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Secret)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|(name, _)| name);
        f.debug_list().entries(names).finish()
    }
}

/// The attributes that describe this instance in exported metrics (in OpenTelemetry, the attributes
/// of the resource), in the order of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes(Vec<(String, String)>);

impl Attributes {
    /// Names and values. Names are not empty.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let pairs = self.0.iter();
        pairs.map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl Setting for Headers {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let text = Secret::read(value, given)?;
        let pairs = pairs(text.expose()).and_then(|pairs| {
            let headers = pairs.into_iter().map(|(name, value)| {
                let name = name.to_ascii_lowercase();
                let is_valid = is_token(&name) && is_header_value(&value);
                (is_valid && !RESERVED.contains(&name.as_str())).then(|| (name, Secret::new(value)))
            });
            headers.collect()
        });
        if pairs.is_none() {
            given.add_hidden(
                "must be headers such as name=value, with percent-encoded values, separated by \
                 commas; must not be headers that Seawall itself sets",
            );
        }
        pairs.map(Self)
    }
}

impl Setting for Attributes {
    fn read(value: &Value, given: &mut Given<'_>) -> Option<Self> {
        let text = given.text(value)?;
        let pairs = pairs(text);
        if pairs.is_none() {
            given.add(
                text,
                "must be attributes such as name=value, with percent-encoded values, separated by \
                 commas",
            );
        }
        Some(Self(pairs.unwrap_or_default()))
    }

    fn absent() -> Option<Self> {
        Some(Self::default())
    }
}

/// Headers that Seawall's export sets itself, so the configuration must not contain them.
const RESERVED: [&str; 6] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "te",
    "transfer-encoding",
];

/// Parses pairs `name=value` that are separated by commas or line breaks; spaces around names and
/// values have no meaning. `None` if a pair has no name, has no `=`, or is not correctly
/// percent-encoded.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split([',', '\n']).map(str::trim);
    let parts = parts.filter(|part| !part.is_empty());
    let pairs = parts.map(|part| {
        let (name, value) = part.split_once('=')?;
        let (name, value) = (
            percent_decoded(name.trim())?,
            percent_decoded(value.trim())?,
        );
        (!name.is_empty()).then_some((name, value))
    });
    pairs.collect()
}

/// Decodes a percent-encoded text. `None` if a `%` is not followed by two hexadecimal digits, or
/// the result is not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        bytes.push(
            is_hex
                .then(|| u8::from_str_radix(digits, 16).ok())
                .flatten()?,
        );
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// True if the text is a valid name of a header: a `token` as defined in RFC 9110, section 5.6.2.
fn is_token(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_part)
}

fn is_header_value(value: &str) -> bool {
    value
        .bytes()
        .all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_attribute_lists_are_percent_decoded_and_trimmed() {
        let decoded = pairs("a = 1%2C2 ,, b=x%3Dy=z\nc=").unwrap();
        let decoded: Vec<_> = decoded.iter().map(|(n, v)| (&**n, &**v)).collect();
        assert_eq!(decoded, [("a", "1,2"), ("b", "x=y=z"), ("c", "")]);
        assert_eq!(pairs(" , ").unwrap(), []);
        for wrong in ["a", "=1", "a=%", "a=%4", "a=%zz", "a=%+1", "a=%ff", "a=%é"] {
            assert_eq!(pairs(wrong), None, "{wrong}");
        }
    }
}
