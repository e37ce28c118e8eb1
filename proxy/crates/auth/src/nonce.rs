//! Random bytes for SCRAM nonces, generated without system calls.
//!
//! Many logins at the same time must not cause many system calls. So the operating system seeds the
//! generator only once, at the start. `ThreadRng` is not used, because it makes further system
//! calls to reseed itself.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rand::rngs::{StdRng, SysError, SysRng};
use rand::{Rng as _, SeedableRng as _};

use seawall_locks::Mutex;

/// The operating system returned no entropy to seed a [`NonceSource`].
#[derive(Debug, thiserror::Error)]
#[error("the operating system returned no entropy")]
pub struct SeedError(#[from] SysError);

/// A cryptographically secure random number generator (ChaCha), which all SCRAM conversations
/// share.
///
/// The lock of the generator is held only while bytes are generated, which takes some nanoseconds.
pub struct NonceSource {
    generator: Mutex<StdRng>,
}

impl NonceSource {
    /// Creates a generator and seeds it from the operating system.
    ///
    /// # Errors
    /// The operating system returned no entropy.
    pub fn new() -> Result<Self, SeedError> {
        let generator = StdRng::try_from_rng(&mut SysRng)?;
        Ok(Self {
            generator: Mutex::new(generator),
        })
    }

    /// Returns 24 random bytes as 32 base64 characters. These characters are printable, and none of
    /// them is a comma, as SCRAM requires.
    pub fn nonce(&self) -> String {
        let mut bytes = [0; NONCE_BYTES];
        self.fill(&mut bytes);
        STANDARD.encode(bytes)
    }

    /// Fills `bytes` with random bytes, for example for an identifier that must be impossible to
    /// guess.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.generator.lock().fill_bytes(bytes);
    }
}

impl fmt::Debug for NonceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The state is not printed, because it reveals all future nonces.
        f.debug_struct("NonceSource").finish_non_exhaustive()
    }
}

/// Number of random bytes in a nonce. A mongod uses the same number. A multiple of three needs no
/// base64 padding.
const NONCE_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn nonces_are_printable_and_never_repeat() {
        let source = NonceSource::new().unwrap();
        let nonces: HashSet<String> = (0..1_000).map(|_| source.nonce()).collect();
        assert_eq!(nonces.len(), 1_000);
        for nonce in &nonces {
            assert_eq!(nonce.len(), 32);
            assert!(
                nonce
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && byte != b','),
                "{nonce}"
            );
        }
    }

    #[test]
    fn two_sources_return_different_nonces() {
        let (a, b) = (NonceSource::new().unwrap(), NonceSource::new().unwrap());
        assert_ne!(a.nonce(), b.nonce());
    }

    #[test]
    fn fill_writes_random_data_to_every_byte_of_the_buffer() {
        let source = NonceSource::new().unwrap();
        let mut seen = [0_u8; 40];
        for _ in 0..64 {
            let mut bytes = [0; 40];
            source.fill(&mut bytes);
            for (all, byte) in seen.iter_mut().zip(bytes) {
                *all |= byte;
            }
        }
        assert!(seen.iter().all(|byte| *byte != 0));
    }

    #[test]
    fn debug_output_hides_the_state_of_a_nonce_source() {
        let source = NonceSource::new().unwrap();
        assert_eq!(format!("{source:?}"), "NonceSource { .. }");
    }
}
