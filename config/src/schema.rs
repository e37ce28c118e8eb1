//! What is known of a key, and how the keys form sections.
//!
//! A path has its names joined by dots; `[]` after a name is a list of tables, so that
//! `auth.users[].name` is the `name` of each `[[auth.users]]`.

use std::fmt;

use crate::keys::KEYS;

/// One key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Its place: `pool.max_pool_size`, `auth.users[].name`.
    pub path: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// What counts where it is absent, as text; `None` if it is required or absence means "none".
    pub default: Option<&'static str>,
    /// What its number counts; empty if it is no number.
    pub unit: &'static str,
    /// When a change of it takes effect.
    pub change: Change,
    /// What it does, in one line.
    pub meaning: &'static str,
}

impl Key {
    /// The environment variable that sets it; keys in lists of tables have none.
    pub fn variable(&self) -> Option<String> {
        let is_in_list = self.path.contains(LIST);
        (!is_in_list).then(|| {
            let name = self.path.replace('.', "__").to_uppercase();
            format!("SEAWALL_{name}")
        })
    }
}

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string that is not empty.
    Text,
    /// A string that is not empty and is never shown.
    Secret,
    /// The path of a file; what it holds is checked when it is read.
    Path,
    /// The path of a directory; whether it can be used is found out by its user.
    Directory,
    /// A MongoDB connection string, of which only the scheme is checked; never shown.
    ConnectionString,
    /// Base64 of that many bytes; never shown.
    Base64 {
        /// The fewest bytes.
        min: usize,
        /// The most bytes.
        max: usize,
    },
    /// A [`crate::ListenAddress`], or a list of them.
    Addresses,
    /// A [`crate::AdminAddress`].
    AdminAddress,
    /// One of a few words.
    Choice {
        /// Which.
        accepted: &'static [&'static str],
    },
    /// A whole number.
    Integer {
        /// The smallest.
        min: i64,
        /// The largest.
        max: i64,
    },
    /// A number from 0 to 100, with or without decimals.
    Percent,
    /// A table of shapes, by their ids, and a time in milliseconds for each.
    ShapeThresholds {
        /// The longest of these times.
        max_ms: i64,
    },
    /// True or false.
    Boolean,
}

impl Kind {
    /// Whether values of this kind stay out of every message.
    pub fn is_secret(self) -> bool {
        match self {
            Self::Secret | Self::ConnectionString | Self::Base64 { .. } => true,
            Self::Text
            | Self::Path
            | Self::Directory
            | Self::Addresses
            | Self::AdminAddress
            | Self::Choice { .. }
            | Self::Integer { .. }
            | Self::Percent
            | Self::ShapeThresholds { .. }
            | Self::Boolean => false,
        }
    }
}

impl fmt::Display for Kind {
    /// What is allowed, to follow "must be".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text | Self::Secret => f.write_str("a string that is not empty"),
            Self::Path => f.write_str("the path of a file"),
            Self::Directory => f.write_str("the path of a directory"),
            Self::ConnectionString => {
                f.write_str("a string that begins with mongodb:// or mongodb+srv://")
            }
            Self::Base64 { min, max } if min == max => write!(f, "base64 of {min} bytes"),
            Self::Base64 { min, max } => write!(f, "base64 of {min} to {max} bytes"),
            Self::Addresses => {
                f.write_str(r#""host:port", "[address]:port", "unix:/path", or a list of them"#)
            }
            Self::AdminAddress => f.write_str(r#""host:port", "[address]:port" or "off""#),
            Self::Choice { accepted, .. } => write_choice(f, accepted),
            Self::Integer { min, max } => write!(f, "an integer from {min} to {max}"),
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

/// When a change of a key takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// At the next reload.
    Live,
    /// At the next start.
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

/// The key with exactly this path.
pub(crate) fn key(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// The names that may stand directly in this section, or list of tables; none if it is neither.
pub(crate) fn names_in(section: &str) -> Vec<&'static str> {
    let mut names: Vec<&str> = KEYS
        .iter()
        .filter_map(|key| {
            let below = match section {
                "" => key.path,
                _ => key.path.strip_prefix(section)?.strip_prefix('.')?,
            };
            below.split(['.', '[']).next()
        })
        .collect();
    // Keys of one section stand together.
    names.dedup();
    names
}

/// Marks a list of tables in a path.
pub(crate) const LIST: &str = "[]";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_listed_twice() {
        for (index, key) in KEYS.iter().enumerate() {
            assert!(
                !KEYS[..index].iter().any(|other| other.path == key.path),
                "{}",
                key.path
            );
        }
    }

    #[test]
    fn a_variable_has_two_underscores_between_section_and_key() {
        let variable = |path| key(path).unwrap().variable();
        assert_eq!(
            variable("pool.max_pool_size").unwrap(),
            "SEAWALL_POOL__MAX_POOL_SIZE"
        );
        assert_eq!(
            variable("listen.tls.key_file").unwrap(),
            "SEAWALL_LISTEN__TLS__KEY_FILE"
        );
        assert_eq!(variable("auth.users[].name"), None);
    }

    #[test]
    fn sections_know_their_names() {
        assert_eq!(
            names_in("admin"),
            ["address", "token_file", "allowed_hosts", "profile"]
        );
        assert_eq!(names_in("listen.tls"), ["certificate_file", "key_file"]);
        assert_eq!(names_in("auth.users[].scram_sha_1").len(), 4);
        assert!(names_in("").contains(&"deployment"));
        assert!(names_in("auth").contains(&"users"));
        assert!(names_in("pool.max_pool_size").is_empty());
        assert!(names_in("poo").is_empty());
    }

    #[test]
    fn every_number_has_a_unit() {
        for key in KEYS {
            let is_number = matches!(
                key.kind,
                Kind::Integer { .. } | Kind::Percent | Kind::ShapeThresholds { .. }
            );
            assert_eq!(is_number, !key.unit.is_empty(), "{}", key.path);
        }
    }
}
