//! Values that must not be printed by accident.
//!
//! They are hidden from `Debug` and have no `Display`; code that needs the value calls `expose`.
//! They are not wiped from memory when dropped.

use std::fmt;

use serde::Deserialize;

use crate::base64;

/// A password, a token, or a connection string that may contain a password.
///
/// Equality is for tests only: its time depends on the contents.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text itself. Never put it into a log or an error.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// A key of exactly `N` bytes, written in base64.
///
/// Equality is for tests only: its time depends on the contents.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SecretBytes<const N: usize>([u8; N]);

impl<const N: usize> SecretBytes<N> {
    /// The bytes themselves. Never put them into a log or an error.
    pub fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> TryFrom<String> for SecretBytes<N> {
    type Error = base64::Base64Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let bytes = base64::decode(&text)?;
        let found = bytes.len();
        match <[u8; N]>::try_from(bytes) {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err(base64::Base64Error::WrongLength { found, wanted: N }),
        }
    }
}

impl<const N: usize> fmt::Debug for SecretBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_hides_from_debug() {
        let secret = Secret::new("hunter2".to_owned());
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn secret_bytes_hide_from_debug_and_have_their_length() {
        let key = SecretBytes::<3>::try_from("AQID".to_owned()).unwrap();
        assert_eq!(key.expose(), &[1, 2, 3]);
        assert_eq!(format!("{key:?}"), "SecretBytes(hidden)");
        assert_eq!(
            SecretBytes::<4>::try_from("AQID".to_owned()).unwrap_err(),
            base64::Base64Error::WrongLength {
                found: 3,
                wanted: 4
            },
        );
    }
}
