//! Describes the keys and their sections.
//!
//! The names in a path are joined by dots. `[]` after a name marks a list of tables:
//! `auth.users[].name` is the `name` of each `[[auth.users]]`.

use std::fmt;

use toml::{Table, Value};

/// A section of the configuration: a table, or a list of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// The section's path, for example `pool`, `listen.tls` or `auth.users[]`.
    pub path: &'static str,
    /// A description of the section, for the example file `examples/full.toml` and the JSON schema.
    pub about: &'static str,
    /// True if the section has an effect as soon as it is present, even without keys.
    pub is_optional: bool,
    /// The keys of the section.
    pub keys: &'static [Key],
}

impl Section {
    /// Creates the optional section at `path` with some of this section's keys. Call this function
    /// only once for each path, because the memory of the new paths is never freed.
    pub(crate) fn at(
        &self,
        path: &'static str,
        about: &'static str,
        is_wanted: impl Fn(&Key) -> bool,
    ) -> Self {
        let keys = self.keys.iter().filter(|key| is_wanted(key));
        let keys = keys.map(|key| Key {
            path: format!("{path}.{}", key.name()).leak(),
            ..*key
        });
        Self {
            path,
            about,
            is_optional: true,
            keys: keys.collect::<Vec<_>>().leak(),
        }
    }

    /// The section's key with this name; `None` if there is none.
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name() == name)
    }
}

/// One key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The key's path, for example `pool.max_pool_size` or `auth.users[].name`.
    pub path: &'static str,
    /// The allowed values.
    pub kind: KeyKind,
    /// The default, as text; `None` if the key is required or has no default.
    pub default: Option<&'static str>,
    /// A value for the example file `examples/full.toml`; `None` if the key has a default.
    pub example: Option<&'static str>,
    /// The unit of the numbers in the value. Empty if the value contains no number, or a number
    /// without a unit (for example, a port).
    pub unit: &'static str,
    /// The time at which a change of the key's value takes effect.
    pub change: Change,
    /// A description of the key, without line breaks. It is used in `docs/configuration.md`, in
    /// `examples/full.toml` and in the JSON schema.
    pub meaning: &'static str,
}

impl Key {
    /// The last name of the key's path.
    pub fn name(&self) -> &'static str {
        self.path
            .rsplit_once('.')
            .map_or(self.path, |(_, name)| name)
    }

    /// The environment variable of the key. `None` for a key in a list of tables.
    pub fn variable(&self) -> Option<String> {
        let is_in_list = self.path.contains(LIST);
        (!is_in_list).then(|| {
            let name = self.path.replace('.', "__").to_uppercase();
            format!("SEAWALL_{name}")
        })
    }
}

/// The allowed values of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// A string that is not empty.
    Text,
    /// A string that is not empty and never shown.
    Secret,
    /// The path of a file. The check of this kind does not access the file. For
    /// `deployment.uri_file` and `auth.users[].password_file`, this crate reads the file later.
    Path,
    /// The path of a file that is read together with the configuration.
    ReadableFile,
    /// The paths of files, separated by commas. The files are read together with the configuration.
    ReadableFiles,
    /// The path of a file. The content of this file is the key's value, which is secret. The file
    /// is read together with the configuration.
    SecretFile,
    /// The paths of files with secrets, separated by commas. The files are read together with the
    /// configuration.
    SecretFiles,
    /// The path of a directory. This crate does not access the directory.
    Directory,
    /// A MongoDB connection string, which is never shown. Only its scheme is checked.
    ConnectionString,
    /// An absolute HTTP or HTTPS URL that contains no user. Only the scheme and the characters of
    /// the URL are checked.
    HttpUrl,
    /// Secret bytes, written in base64. The number of bytes has limits. The value is never shown.
    Base64 {
        /// Minimum number of bytes.
        min: usize,
        /// Maximum number of bytes.
        max: usize,
    },
    /// A [`crate::ListenAddress`], or a list of listen addresses.
    Addresses,
    /// A [`crate::AdminAddress`].
    AdminAddress,
    /// One of a few allowed words.
    Choice {
        /// The allowed words.
        accepted: &'static [&'static str],
    },
    /// A whole number.
    Integer {
        /// The smallest allowed number.
        min: i64,
        /// The largest allowed number.
        max: i64,
    },
    /// One of a few allowed words, or a whole number.
    IntegerOr {
        /// The allowed words.
        accepted: &'static [&'static str],
        /// The smallest allowed number.
        min: i64,
        /// The largest allowed number.
        max: i64,
    },
    /// A number from 0 to 100, with or without decimals.
    Percent,
    /// A table of thresholds for the slow log. Its keys are the ids of query shapes. Its values are
    /// the thresholds of these shapes, in milliseconds.
    ShapeThresholds {
        /// The largest allowed threshold.
        max_ms: i64,
    },
    /// True or false.
    Boolean,
}

impl KeyKind {
    /// True if values of this kind never appear in messages.
    pub fn is_secret(self) -> bool {
        match self {
            Self::Secret | Self::ConnectionString | Self::Base64 { .. } => true,
            Self::Text
            | Self::Path
            | Self::ReadableFile
            | Self::ReadableFiles
            | Self::SecretFile
            | Self::SecretFiles
            | Self::Directory
            | Self::HttpUrl
            | Self::Addresses
            | Self::AdminAddress
            | Self::Choice { .. }
            | Self::Integer { .. }
            | Self::IntegerOr { .. }
            | Self::Percent
            | Self::ShapeThresholds { .. }
            | Self::Boolean => false,
        }
    }

    /// Parses the text of an environment variable or of a default. If parsing fails, the value
    /// stays text, and the check against the schema (module `check`) reports it.
    pub(crate) fn parse(self, text: &str) -> Value {
        let parsed = match self {
            Self::Integer { .. } | Self::IntegerOr { .. } => text.parse().ok().map(Value::Integer),
            Self::Percent => text.parse().ok().map(Value::Float),
            Self::Boolean => text.parse().ok().map(Value::Boolean),
            Self::ShapeThresholds { .. } => shape_thresholds(text).map(Value::Table),
            Self::Addresses if text.contains(',') => {
                let addresses = text.split(',').map(|address| address.trim().into());
                Some(Value::Array(addresses.collect()))
            }
            Self::Text
            | Self::Secret
            | Self::Path
            | Self::ReadableFile
            | Self::ReadableFiles
            | Self::SecretFile
            | Self::SecretFiles
            | Self::Directory
            | Self::ConnectionString
            | Self::HttpUrl
            | Self::Base64 { .. }
            | Self::Addresses
            | Self::AdminAddress
            | Self::Choice { .. } => None,
        };
        parsed.unwrap_or_else(|| text.into())
    }
}

/// Parses `id=ms,id=ms`.
fn shape_thresholds(text: &str) -> Option<Table> {
    let entries = text.split(',').map(|entry| {
        let (id, ms) = entry.split_once('=')?;
        let ms = ms.trim().parse().ok()?;
        Some((id.trim().to_owned(), Value::Integer(ms)))
    });
    entries.collect()
}

impl fmt::Display for KeyKind {
    /// Writes the allowed values as a phrase that follows the words "must be".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text | Self::Secret => f.write_str("a string that is not empty"),
            Self::Path | Self::ReadableFile | Self::SecretFile => f.write_str("the path of a file"),
            Self::ReadableFiles | Self::SecretFiles => {
                f.write_str("the path of a file, or several paths separated by commas")
            }
            Self::Directory => f.write_str("the path of a directory"),
            Self::ConnectionString => {
                f.write_str("a string that begins with mongodb:// or mongodb+srv://")
            }
            Self::HttpUrl => {
                f.write_str("a URL that begins with http:// or https://, without a user")
            }
            Self::Base64 { min, max } if min == max => write!(f, "base64 of {min} bytes"),
            Self::Base64 { min, max } => write!(f, "base64 of {min} to {max} bytes"),
            Self::Addresses => {
                f.write_str(r#""host:port", "[address]:port", "unix:/path", or a list of them"#)
            }
            Self::AdminAddress => f.write_str(r#""host:port", "[address]:port" or "off""#),
            Self::Choice { accepted, .. } => write_choice(f, accepted),
            Self::Integer { min, max } => write!(f, "an integer from {min} to {max}"),
            Self::IntegerOr { accepted, min, max } => {
                for word in *accepted {
                    write!(f, "{word:?}, ")?;
                }
                write!(f, "or an integer from {min} to {max}")
            }
            Self::Percent => f.write_str("a number from 0 to 100"),
            Self::ShapeThresholds { max_ms } => write!(
                f,
                "a table of shape ids (16 hex digits, lower case) and integers from 0 to {max_ms}"
            ),
            Self::Boolean => f.write_str("true or false"),
        }
    }
}

fn write_choice(f: &mut fmt::Formatter<'_>, words: &[&str]) -> fmt::Result {
    for (index, word) in words.iter().enumerate() {
        let separator = match index {
            0 => "",
            _ if index + 1 == words.len() => " or ",
            _ => ", ",
        };
        write!(f, "{separator}{word:?}")?;
    }
    Ok(())
}

/// The time at which a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A change takes effect at the next reload.
    Live,
    /// A change takes effect at the next start.
    Restart,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live => "live",
            Self::Restart => "restart",
        })
    }
}

/// Marks a list of tables in a path.
pub(crate) const LIST: &str = "[]";

/// Parses a shape id in the format of the metrics and the API: 16 lower-case hex digits.
pub(crate) fn shape_id(text: &str) -> Option<u64> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_id = text.len() == 16 && text.bytes().all(is_digit);
    is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// True if the text is a scheme of MongoDB, followed by at least one character. The driver crate
/// checks the text after the scheme.
pub(crate) fn is_connection_string(text: &str) -> bool {
    ["mongodb://", "mongodb+srv://"]
        .iter()
        .filter_map(|scheme| text.strip_prefix(scheme))
        .any(|rest| !rest.is_empty())
}

/// True if the text begins with `http://` or `https://` and the first character of a host, and
/// contains only visible ASCII characters without `@`. So the URL cannot contain a user. The HTTP
/// client checks the other parts of the URL.
pub(crate) fn is_http_url(text: &str) -> bool {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    rest.is_some_and(|rest| {
        let is_host = rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[');
        is_host && rest.chars().all(|c| c.is_ascii_graphic() && c != '@')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_at_commas_but_a_connection_string_is_not() {
        let parse = |text, kind: KeyKind| kind.parse(text);
        let addresses = parse("a:1, b:2", KeyKind::Addresses);
        assert_eq!(addresses.as_array().unwrap().len(), 2);
        assert!(parse("a:1", KeyKind::Addresses).is_str());
        assert!(parse("a,b", KeyKind::ConnectionString).is_str());
    }
}
