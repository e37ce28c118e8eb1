//! The options of commands that replace values by pseudonyms.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use seawall_config::MIN_REDACTION_KEY_BYTES;
use seawall_redact::{Mode, Redactor};

/// The options for the replacement of values by pseudonyms.
#[derive(Debug, Args)]
pub(super) struct Redact {
    /// Replace all values by pseudonyms, which keep the equality and length of values, or also
    /// their order.
    #[arg(
        long = "redact", value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true,
        default_missing_value = "equality"
    )]
    mode: Option<Keeps>,
    /// File with the key of the pseudonyms, at least 16 bytes; without this option, each run uses a
    /// new random key, so a later run cannot produce the same pseudonyms.
    #[arg(long = "redact-key", value_name = "FILE", requires = "mode")]
    key: Option<PathBuf>,
}

/// The properties of values that pseudonyms keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Keeps {
    /// Type, length and equality; for captures that are shared.
    Equality,
    /// Also the order of numbers and dates, and equal prefixes of strings; for captures that are
    /// replayed.
    Ordered,
}

/// The reason why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The reason why the file could not be read.
        source: io::Error,
    },
    /// The key is too short.
    #[error("{0}: the key must have at least {MIN_REDACTION_KEY_BYTES} bytes")]
    TooShort(PathBuf),
}

impl Redact {
    /// The redactor; `None` if values are not replaced.
    pub(super) fn redactor(&self) -> Result<Option<Redactor>, KeyError> {
        let mode = match self.mode {
            None => return Ok(None),
            Some(Keeps::Equality) => Mode::Equality,
            Some(Keeps::Ordered) => Mode::Ordered,
        };
        let key = match &self.key {
            Some(path) => read_key(path)?,
            None => rand::random::<[u8; 32]>().to_vec(),
        };
        Ok(Some(Redactor::new(&key, mode)))
    }
}

/// Reads a key from a file. A line break at the end of the file is not part of the key. Seawall
/// reads the key file that the configuration names in the same way.
pub(super) fn read_key(path: &Path) -> Result<Vec<u8>, KeyError> {
    let key = fs::read(path).map_err(|source| KeyError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let line = key.strip_suffix(b"\n").unwrap_or(&key);
    let key = line.strip_suffix(b"\r").unwrap_or(line);
    match key.len() < MIN_REDACTION_KEY_BYTES {
        true => Err(KeyError::TooShort(path.to_owned())),
        false => Ok(key.to_owned()),
    }
}
