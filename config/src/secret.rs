//! Secret values, which must not be printed by accident.
//!
//! Their `Debug` does not print them, and they have no `Display`. Code that needs the value calls
//! `expose`. They are not zeroed on drop.

use std::fmt;
use std::path::PathBuf;

use base64::{DecodeError, Engine as _, prelude::BASE64_STANDARD};

/// A password, a token, or a connection string that may contain a password.
///
/// `==` is only for tests, and for the comparison of two configurations at a reload. Do not use
/// `==` to verify a secret that a client has sent: the comparison takes longer if the secrets begin
/// with the same bytes, so a client could guess the secret byte by byte.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps `text`.
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// The text of the secret. It must not appear in a log or an error.
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
/// `==` is only for tests, and for the comparison of two configurations at a reload. Do not use
/// `==` to verify a key that a client has sent: the duration of the comparison depends on the bytes
/// of both keys, so a client could learn the key from it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes<const N: usize>([u8; N]);

impl<const N: usize> SecretBytes<N> {
    /// Decodes a key. `None` if `text` is not base64 of `N` bytes.
    pub(crate) fn decoded(text: &str) -> Option<Self> {
        decode(text).ok()?.try_into().ok().map(Self)
    }

    /// The bytes of the secret. They must not appear in a log or an error.
    pub fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> fmt::Debug for SecretBytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(hidden)")
    }
}

/// Decodes base64 of the standard alphabet with padding.
///
/// # Errors
/// The reason why the text is not valid. It shows no character of the text.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(text).map_err(|error| match error {
        // The character is not shown, because it may be part of the secret.
        DecodeError::InvalidByte(index, character) if character != b'=' => {
            format!("not base64: invalid character at index {index}")
        }
        DecodeError::InvalidByte(..)
        | DecodeError::InvalidLength(_)
        | DecodeError::InvalidLastSymbol { .. }
        | DecodeError::InvalidPadding => "not base64: incomplete or wrongly padded".to_owned(),
    })
}

/// A secret that was read from a separate file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretFile {
    /// The path of the file. It identifies the secret in logs.
    pub path: PathBuf,
    /// The secret.
    pub secret: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_print_a_secret() {
        let secret = Secret::new("hunter2".to_owned());
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn secret_bytes_have_a_fixed_length_and_debug_does_not_print_them() {
        let key = SecretBytes::<3>::decoded("AQID").unwrap();
        assert_eq!(key.expose(), &[1, 2, 3]);
        assert_eq!(format!("{key:?}"), "SecretBytes(hidden)");
        assert_eq!(SecretBytes::<4>::decoded("AQID"), None);
    }

    #[test]
    fn the_reason_for_invalid_base64_contains_no_character_of_the_value() {
        for (text, reason) in [
            ("Zg", "incomplete or wrongly padded"),
            ("Zh==", "incomplete or wrongly padded"),
            ("Zm9v=", "incomplete or wrongly padded"),
            ("Zm9-", "invalid character at index 3"),
            ("Zm 9v", "invalid character at index 2"),
        ] {
            let reason = format!("not base64: {reason}");
            assert_eq!(decode(text).unwrap_err(), reason, "{text}");
        }
    }
}
