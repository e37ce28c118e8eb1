//! Decides whether and how a capture replaces the values in commands and replies (redaction).

use std::{fmt, sync::Arc};

use seawall_capture::record::Redaction;
use seawall_redact::{Mode, Redactor};

use super::{CaptureError, CaptureSettings};

/// Length of the random key of a capture, in bytes.
const RANDOM_KEY_BYTES: usize = 32;

/// The secret key from which redaction computes the pseudonyms that replace values. `Debug` does
/// not print the key.
#[derive(Clone, PartialEq, Eq)]
pub struct RedactionKey(Arc<[u8]>);

impl RedactionKey {
    /// Wraps a key.
    pub(crate) fn new(key: &[u8]) -> Self {
        Self(key.into())
    }
}

impl fmt::Debug for RedactionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedactionKey(hidden)")
    }
}

/// The redaction of one capture.
#[derive(Clone, Debug)]
pub(super) struct Redacting {
    /// The mode of redaction, which the header of the capture contains.
    pub(super) mode: Redaction,
    /// Replaces the values; `None` if values are recorded as they are.
    pub(super) redactor: Option<Redactor>,
}

impl Redacting {
    /// The redaction of a new capture. `wanted` is the requested mode. If it is `None`, the
    /// configured mode applies.
    ///
    /// # Errors
    /// If the requested mode is weaker than the configured mode, or needs a key and there is none.
    pub(super) fn choose(
        settings: &CaptureSettings,
        wanted: Option<Redaction>,
    ) -> Result<Self, CaptureError> {
        let configured = settings.redaction;
        let mode = wanted.unwrap_or(configured);
        if strength(mode) < strength(configured) {
            let (wanted, configured) = (mode, configured);
            return Err(CaptureError::WeakerRedaction { wanted, configured });
        }
        let key = settings.redaction_key.as_ref().map(|key| &*key.0);
        let redactor = match (mode, key) {
            (Redaction::None, _) => None,
            (Redaction::Ordered, None) => return Err(CaptureError::NoRedactionKey),
            (Redaction::Ordered, Some(key)) => Some(Redactor::new(key, Mode::Ordered)),
            (Redaction::Equality, Some(key)) => Some(Redactor::new(key, Mode::Equality)),
            (Redaction::Equality, None) => {
                let key: [u8; RANDOM_KEY_BYTES] = rand::random();
                Some(Redactor::new(&key, Mode::Equality))
            }
        };
        Ok(Self { mode, redactor })
    }
}

/// The strength of a mode: with a higher number, a reader of the capture learns less about values.
fn strength(mode: Redaction) -> u8 {
    match mode {
        Redaction::None => 0,
        Redaction::Ordered => 1,
        Redaction::Equality => 2,
    }
}

/// The name of a mode in the API.
pub(crate) fn redaction_name(mode: Redaction) -> &'static str {
    match mode {
        Redaction::None => "none",
        Redaction::Equality => "equality",
        Redaction::Ordered => "ordered",
    }
}

/// The mode with this name; `None` if no mode has this name.
pub(crate) fn redaction_named(name: &str) -> Option<Redaction> {
    let modes = [Redaction::None, Redaction::Equality, Redaction::Ordered];
    modes.into_iter().find(|mode| redaction_name(*mode) == name)
}
