//! Pseudonyms for the values of users in commands, replies and stored documents.
//!
//! A value becomes a pseudonym that depends on a key. Field names, operators, options and limits
//! stay unchanged, so a redacted command has the same fingerprint, with the exception in
//! `docs/capture-format.md`. [`seawall_shape::Place`] decides which elements are values: every
//! element that it does not know counts as a value. This crate does no I/O.
//!
//! | module | purpose |
//! |---|---|
//! | `keyed` | the keyed function, and permutations of bytes |
//! | `number` | numbers of all types, dates, and times of ObjectIds |
//! | `ordered` | maps that keep the order of numbers, used by `number` |
//! | `text` | strings and regular expressions |
//! | `rewrite` | messages and documents |
//! | `records` | the records of a capture |
//!
//! Pseudonyms are not encryption. Equal values stay equal, so frequencies stay visible. With
//! [`Mode::Ordered`], the order of numbers and dates and the equal prefixes of strings stay visible
//! too. Booleans, null, infinity and NaN stay unchanged in both modes. In the ordered mode, zero
//! and timestamps stay unchanged too.

mod keyed;
mod number;
mod ordered;
mod records;
mod rewrite;
mod text;

#[cfg(test)]
mod tests;

use seawall_command::ReplyForm;

use self::keyed::Keyed;

pub use self::records::Records;

/// Selects which properties of the original values are also properties of their pseudonyms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Pseudonyms keep the type and the length of a value, and equal values of one type have equal
    /// pseudonyms. This mode is for captures that are shared but not replayed.
    Equality,
    /// Pseudonyms keep the same properties as in [`Mode::Equality`]. They also keep the order of
    /// numbers (across all numeric types), the order of dates, and the order of the times in
    /// ObjectIds. Strings that begin with the same prefix get pseudonyms that begin with the same
    /// prefix. If the pseudonym of an integer does not fit the integer's type, the pseudonym has
    /// the next larger type.
    Ordered,
}

/// The reason why a message or document cannot be redacted. The caller must not write this message
/// or document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedactError {
    /// The bytes are not a valid message or document.
    #[error("not a valid message or document")]
    Malformed,
    /// Documents are nested deeper than servers allow.
    #[error("documents are nested too deep")]
    TooDeep,
    /// The redacted message is larger than a server accepts.
    #[error("the redacted message is too large")]
    TooLarge,
}

/// Replaces values by pseudonyms. The same key and mode always give the same pseudonyms.
#[derive(Clone, Debug)]
pub struct Redactor {
    keyed: Keyed,
    mode: Mode,
}

impl Redactor {
    /// A redactor with a key of any length. The key decides how hard it is to find values by
    /// guessing, so it should have at least 32 random bytes.
    pub fn new(key: &[u8], mode: Mode) -> Self {
        let keyed = Keyed::new(key, mode);
        Self { keyed, mode }
    }

    /// Redacts a command: a whole `OP_MSG` with its header.
    ///
    /// # Errors
    /// See [`RedactError`].
    pub fn command(&self, message: &[u8]) -> Result<Vec<u8>, RedactError> {
        rewrite::command(self, message)
    }

    /// Redacts a reply: a whole `OP_MSG` with its header. Texts of errors are removed.
    ///
    /// # Errors
    /// See [`RedactError`].
    pub fn reply(&self, form: ReplyForm, message: &[u8]) -> Result<Vec<u8>, RedactError> {
        rewrite::reply(self, form, message)
    }

    /// Redacts a stored document.
    ///
    /// # Errors
    /// See [`RedactError`].
    pub fn document(&self, document: &[u8]) -> Result<Vec<u8>, RedactError> {
        rewrite::document(self, document)
    }
}
