//! The keyed function (HMAC-SHA-256) that all pseudonyms depend on. This file also contains a
//! permutation of bytes, which is built from the keyed function.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::Mode;

/// Output of the keyed function (HMAC-SHA-256).
pub(crate) type Block = [u8; 32];

/// Number of rounds of the permutation of bytes. Four rounds of a Feistel network with a random
/// function give a permutation that cannot be distinguished from a random one.
const ROUNDS: u8 = 4;

/// The use of a [`Block`]. The purpose is part of the input of the keyed function, so blocks for
/// different purposes always come from different inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    Text,
    Pattern,
    Permutation,
    Tree,
    Leaf,
    Fraction,
    Decimal,
    Expansion,
}

/// HMAC-SHA-256 with a key that is derived from the user's key and the mode.
#[derive(Clone)]
pub(crate) struct Keyed(Hmac<Sha256>);

impl fmt::Debug for Keyed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyed(hidden)")
    }
}

impl Keyed {
    pub(crate) fn new(key: &[u8], mode: Mode) -> Self {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
        mac.update(match mode {
            Mode::Equality => b"seawall redact equality 2",
            Mode::Ordered => b"seawall redact ordered 2.",
        });
        // Each mode has its own derived key, so the pseudonyms of the two modes are unrelated.
        let derived = mac.finalize().into_bytes();
        let mac = Hmac::new_from_slice(&derived).expect("HMAC accepts keys of any length");
        Self(mac)
    }

    /// The output of the keyed function for the concatenated `parts`. Different keys, purposes or
    /// domains (such as numbers and dates) give unrelated outputs.
    pub(crate) fn block(&self, purpose: Purpose, domain: u8, parts: &[&[u8]]) -> Block {
        let mut mac = self.0.clone();
        let purpose = match purpose {
            Purpose::Text => 1,
            Purpose::Pattern => 2,
            Purpose::Permutation => 3,
            Purpose::Tree => 4,
            Purpose::Leaf => 5,
            Purpose::Fraction => 6,
            Purpose::Decimal => 7,
            Purpose::Expansion => 8,
        };
        mac.update(&[purpose, domain]);
        for part in parts {
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }

    /// Replaces `bytes` by other bytes of the same length. `domain` and `tweak` select one of many
    /// permutations. Within one permutation, different inputs of the same length always have
    /// different results.
    pub(crate) fn permute(&self, domain: u8, tweak: &[u8], bytes: &mut [u8]) {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes();
        if let [byte] = bytes {
            let block = self.block(Purpose::Permutation, domain, &[&length, tweak]);
            let [shift, ..] = block;
            *byte = byte.wrapping_add(shift);
            return;
        }
        let (left, right) = bytes.split_at_mut(bytes.len() / 2);
        for round in 0..ROUNDS {
            let (from, to) = match round % 2 {
                0 => (&*right, &mut *left),
                _ => (&*left, &mut *right),
            };
            let parts = [&length[..], &[round], tweak, from];
            let masks = self.bytes(Purpose::Permutation, domain, &parts, to.len());
            for (byte, mask) in to.iter_mut().zip(masks) {
                *byte ^= mask;
            }
        }
    }

    /// Like [`Self::block`], but returns `count` bytes. The parts are read once, so the time is
    /// linear in their length and in `count`.
    pub(crate) fn bytes(
        &self,
        purpose: Purpose,
        domain: u8,
        parts: &[&[u8]],
        count: usize,
    ) -> Vec<u8> {
        let seed = self.block(purpose, domain, parts);
        if let Some(bytes) = seed.get(..count) {
            return bytes.to_vec();
        }
        let block =
            |number: u64| self.block(Purpose::Expansion, domain, &[&seed, &number.to_le_bytes()]);
        (0..).flat_map(block).take(count).collect()
    }
}

/// The first eight bytes of a block as a number.
pub(crate) fn number_of(block: &Block) -> u64 {
    block
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
