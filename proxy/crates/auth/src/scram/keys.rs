//! SCRAM mechanisms, their keys, and the derivation of keys from a password.
//!
//! Secrets are stored in [`Key`]s and in [`Zeroizing`] buffers, which are zeroed on drop. The block
//! buffers inside a running HMAC or hash are not zeroed.

use std::fmt;

use hmac::{Hmac, KeyInit as _, Mac as _};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest as _, Sha256};
use subtle::{ConstantTimeEq as _, CtOption};
use zeroize::{Zeroize as _, Zeroizing};

use super::ScramError;

/// A SCRAM mechanism of MongoDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mechanism {
    /// `SCRAM-SHA-1`. It hashes the hex MD5 of `user:mongo:password` instead of the password.
    ScramSha1,
    /// `SCRAM-SHA-256`. It prepares the password with SASLprep (RFC 4013), and hashes the result.
    ScramSha256,
}

impl Mechanism {
    /// Both mechanisms. SCRAM-SHA-256 is the first, because drivers prefer it.
    pub const ALL: [Self; 2] = [Self::ScramSha256, Self::ScramSha1];

    /// Parses the name of a mechanism; `None` for any other name. As on servers, upper and lower
    /// case are different.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|mechanism| mechanism.name() == name)
    }

    /// The mechanism's name in commands and replies.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ScramSha1 => "SCRAM-SHA-1",
            Self::ScramSha256 => "SCRAM-SHA-256",
        }
    }

    /// Length of each of the mechanism's keys, proofs and signatures, in bytes.
    pub const fn key_length(self) -> usize {
        match self {
            Self::ScramSha1 => SHA1_BYTES,
            Self::ScramSha256 => SHA256_BYTES,
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A secret: a key, a proof or a signature of one mechanism. It is zeroed on drop, not printed by
/// `Debug`, and compared in constant time.
#[derive(Clone)]
pub struct Key(Bytes);

#[derive(Clone)]
enum Bytes {
    Sha1([u8; SHA1_BYTES]),
    Sha256([u8; SHA256_BYTES]),
}

impl Key {
    /// Creates a key; `None` if `bytes` does not have [`Mechanism::key_length`] bytes.
    pub fn new(mechanism: Mechanism, bytes: &[u8]) -> Option<Self> {
        match mechanism {
            Mechanism::ScramSha1 => bytes.try_into().ok().map(Bytes::Sha1),
            Mechanism::ScramSha256 => bytes.try_into().ok().map(Bytes::Sha256),
        }
        .map(Self)
    }

    /// The mechanism that the key belongs to.
    pub fn mechanism(&self) -> Mechanism {
        match &self.0 {
            Bytes::Sha1(_) => Mechanism::ScramSha1,
            Bytes::Sha256(_) => Mechanism::ScramSha256,
        }
    }

    /// The bytes of the secret. Callers must not log them, and must not compare them with `==`.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Sha1(bytes) => bytes,
            Bytes::Sha256(bytes) => bytes,
        }
    }

    /// Computes the HMAC of `message` with this key. The result is a key of the same mechanism.
    pub(super) fn hmac(&self, message: &[u8]) -> Self {
        match &self.0 {
            Bytes::Sha1(key) => {
                let mac = Hmac::<Sha1>::new_from_slice(key).expect(ANY_LENGTH);
                Self(Bytes::Sha1(
                    mac.chain_update(message).finalize().into_bytes().into(),
                ))
            }
            Bytes::Sha256(key) => {
                let mac = Hmac::<Sha256>::new_from_slice(key).expect(ANY_LENGTH);
                Self(Bytes::Sha256(
                    mac.chain_update(message).finalize().into_bytes().into(),
                ))
            }
        }
    }

    /// Computes the hash of this key with the mechanism's hash function.
    fn hash(&self) -> Self {
        match &self.0 {
            Bytes::Sha1(bytes) => Self(Bytes::Sha1(Sha1::digest(bytes).into())),
            Bytes::Sha256(bytes) => Self(Bytes::Sha256(Sha256::digest(bytes).into())),
        }
    }

    /// Computes the bitwise XOR of this key and `other`, which is a key of the same mechanism.
    fn xor(&self, other: &Self) -> Self {
        debug_assert_eq!(self.mechanism(), other.mechanism());
        let mut result = self.clone();
        let bytes: &mut [u8] = match &mut result.0 {
            Bytes::Sha1(bytes) => bytes,
            Bytes::Sha256(bytes) => bytes,
        };
        for (byte, other) in bytes.iter_mut().zip(other.as_bytes()) {
            *byte ^= other;
        }
        result
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes().ct_eq(other.as_bytes()).into()
    }
}

impl Eq for Key {}

impl Drop for Key {
    fn drop(&mut self) {
        match &mut self.0 {
            Bytes::Sha1(bytes) => bytes.zeroize(),
            Bytes::Sha256(bytes) => bytes.zeroize(),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.mechanism())
    }
}

/// The key with which a client authenticates as a user. It grants the same access as the password,
/// so it is kept only in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientKey(Key);

impl ClientKey {
    /// The mechanism that the key authenticates with.
    pub fn mechanism(&self) -> Mechanism {
        self.0.mechanism()
    }

    /// The hash of the key. A server stores this hash, not the key.
    pub fn stored_key(&self) -> Key {
        self.0.hash()
    }

    /// Computes the proof: `ClientKey XOR HMAC(StoredKey, AuthMessage)`.
    pub(super) fn proof(&self, stored_key: &Key, auth_message: &str) -> Key {
        self.0.xor(&stored_key.hmac(auth_message.as_bytes()))
    }
}

/// The values that a server stores for one mechanism of a user.
///
/// A comparison with `==` compares the keys in constant time, so its duration does not reveal them.
#[derive(Debug, Clone)]
pub struct ScramKeys {
    salt: Vec<u8>,
    iterations: u32,
    stored_key: Key,
    server_key: Key,
}

impl ScramKeys {
    /// Creates the values of one mechanism.
    ///
    /// # Errors
    /// The two keys belong to different mechanisms, or the iteration count is below
    /// [`MIN_ITERATIONS`] or above [`MAX_ITERATIONS`].
    pub fn new(
        salt: Vec<u8>,
        iterations: u32,
        stored_key: Key,
        server_key: Key,
    ) -> Result<Self, ScramError> {
        if stored_key.mechanism() != server_key.mechanism() {
            return Err(ScramError::MechanismMismatch);
        }
        check_iterations(iterations)?;
        Ok(Self {
            salt,
            iterations,
            stored_key,
            server_key,
        })
    }

    /// The mechanism that the keys belong to.
    pub fn mechanism(&self) -> Mechanism {
        self.stored_key.mechanism()
    }

    /// The salt with which clients hash the user's password.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// Number of rounds of PBKDF2 with which clients hash the user's password.
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// The hash of the user's [`ClientKey`].
    pub fn stored_key(&self) -> &Key {
        &self.stored_key
    }

    /// The key with which a server proves its identity.
    pub fn server_key(&self) -> &Key {
        &self.server_key
    }

    /// True if these keys have this salt and iteration count. A server chooses a new salt whenever
    /// the password is set, even if the new password equals the old one. So if the salts differ,
    /// these keys are outdated.
    pub(super) fn are_for(&self, salt: &[u8], iterations: u32) -> bool {
        self.salt == salt && self.iterations == iterations
    }

    /// Recovers the [`ClientKey`] from a proof. `None` if the proof was computed from other keys or
    /// from another `auth_message`.
    pub(super) fn recover(&self, proof: &Key, auth_message: &str) -> Option<ClientKey> {
        if proof.mechanism() != self.mechanism() {
            return None;
        }
        let client_key = ClientKey(proof.xor(&self.stored_key.hmac(auth_message.as_bytes())));
        let fits = client_key
            .stored_key()
            .as_bytes()
            .ct_eq(self.stored_key.as_bytes());
        CtOption::new(client_key, fits).into()
    }

    /// Computes the server's signature: `HMAC(ServerKey, AuthMessage)`.
    pub(super) fn server_signature(&self, auth_message: &str) -> Key {
        self.server_key.hmac(auth_message.as_bytes())
    }
}

impl PartialEq for ScramKeys {
    fn eq(&self, other: &Self) -> bool {
        let stored = self
            .stored_key
            .as_bytes()
            .ct_eq(other.stored_key.as_bytes());
        let server = self
            .server_key
            .as_bytes()
            .ct_eq(other.server_key.as_bytes());
        let keys_are_equal = bool::from(stored & server);
        keys_are_equal && self.are_for(&other.salt, other.iterations)
    }
}

impl Eq for ScramKeys {}

/// All keys of a user for one mechanism, derived from the user's password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DerivedKeys {
    /// The key with which a client authenticates as the user.
    pub client_key: ClientKey,
    /// The values that a server stores for the user. They include the salt and the iteration count.
    pub keys: ScramKeys,
}

impl DerivedKeys {
    /// Derives the keys. The caller has already prepared `password` as the mechanism requires (see
    /// the variants of [`Mechanism`]).
    pub(super) fn from_prepared(
        mechanism: Mechanism,
        password: &[u8],
        salt: &[u8],
        iterations: u32,
    ) -> Result<Self, ScramError> {
        check_iterations(iterations)?;
        let salted_password = match mechanism {
            Mechanism::ScramSha1 => Bytes::Sha1(pbkdf2::pbkdf2_hmac_array::<Sha1, _>(
                password, salt, iterations,
            )),
            Mechanism::ScramSha256 => Bytes::Sha256(pbkdf2::pbkdf2_hmac_array::<Sha256, _>(
                password, salt, iterations,
            )),
        };
        let salted_password = Key(salted_password);
        let client_key = ClientKey(salted_password.hmac(b"Client Key"));
        let server_key = salted_password.hmac(b"Server Key");
        let stored_key = client_key.stored_key();
        let keys = ScramKeys::new(salt.to_vec(), iterations, stored_key, server_key)?;
        Ok(Self { client_key, keys })
    }
}

/// Derives all keys of a user from the password, the salt and the iteration count.
///
/// The function runs PBKDF2, which takes milliseconds with the usual iteration counts. So it must
/// not run on a thread that serves clients.
///
/// # Errors
/// [`ScramError::PasswordNotPreparable`] if SASLprep forbids a character of the password, and
/// [`ScramError::IterationsOutOfRange`] if the iteration count is below [`MIN_ITERATIONS`] or above
/// [`MAX_ITERATIONS`].
pub fn derive_from_password(
    mechanism: Mechanism,
    user: &str,
    password: &str,
    salt: &[u8],
    iterations: u32,
) -> Result<DerivedKeys, ScramError> {
    let prepared = match mechanism {
        Mechanism::ScramSha1 => Zeroizing::new(mongo_hash(user, password)),
        Mechanism::ScramSha256 => {
            let prepared =
                stringprep::saslprep(password).map_err(|_| ScramError::PasswordNotPreparable)?;
            Zeroizing::new(prepared.into_owned())
        }
    };
    DerivedKeys::from_prepared(mechanism, prepared.as_bytes(), salt, iterations)
}

/// Computes the form of a password that SCRAM-SHA-1 hashes: the hex MD5 of `user:mongo:password`,
/// which MongoDB stored before it had SCRAM.
fn mongo_hash(user: &str, password: &str) -> String {
    let hash = Md5::new()
        .chain_update(user)
        .chain_update(":mongo:")
        .chain_update(password)
        .finalize();
    // The whole capacity is reserved first, so that growth leaves no copy of the secret in freed
    // memory.
    let mut hex = String::with_capacity(hash.len().saturating_mul(2));
    for byte in hash {
        for nibble in [byte >> 4, byte & 0xf] {
            hex.extend(char::from_digit(nibble.into(), 16));
        }
    }
    hex
}

/// Checks that an iteration count is at least [`MIN_ITERATIONS`] and at most [`MAX_ITERATIONS`].
pub(super) fn check_iterations(iterations: u32) -> Result<(), ScramError> {
    if (MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
        return Ok(());
    }
    Err(ScramError::IterationsOutOfRange {
        iterations,
        min: MIN_ITERATIONS,
        max: MAX_ITERATIONS,
    })
}

/// The lowest accepted iteration count. Drivers have the same minimum. With fewer iterations, an
/// attacker could guess the password from a proof.
pub const MIN_ITERATIONS: u32 = 4_096;
/// The highest accepted iteration count. This number of iterations takes some seconds; without this
/// limit, a peer could occupy a core for much longer. By default, servers use 10,000 iterations for
/// SCRAM-SHA-1 and 15,000 for SCRAM-SHA-256.
pub const MAX_ITERATIONS: u32 = 10_000_000;

const _: () = assert!(MIN_ITERATIONS < MAX_ITERATIONS);

const SHA1_BYTES: usize = 20;
const SHA256_BYTES: usize = 32;

const ANY_LENGTH: &str = "HMAC accepts keys of any length";

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Mechanism; 2] = [Mechanism::ScramSha1, Mechanism::ScramSha256];

    fn key(mechanism: Mechanism, byte: u8) -> Key {
        Key::new(mechanism, &vec![byte; mechanism.key_length()]).unwrap()
    }

    #[test]
    fn mechanism_names_are_parsed_only_with_exact_case() {
        for mechanism in BOTH {
            assert_eq!(Mechanism::parse(mechanism.name()), Some(mechanism));
            assert_eq!(mechanism.to_string(), mechanism.name());
        }
        for name in [
            "",
            "SCRAM-SHA-512",
            "scram-sha-1",
            "SCRAM-SHA-1 ",
            "PLAIN",
            "external",
        ] {
            assert_eq!(Mechanism::parse(name), None, "{name}");
        }
    }

    #[test]
    fn a_key_is_created_only_with_the_key_length_of_its_mechanism() {
        for mechanism in BOTH {
            for length in 0..64 {
                let key = Key::new(mechanism, &vec![7; length]);
                assert_eq!(key.is_some(), length == mechanism.key_length());
                assert!(key.is_none_or(|key| key.mechanism() == mechanism));
            }
        }
    }

    #[test]
    fn two_keys_differ_if_any_byte_differs() {
        for mechanism in BOTH {
            let zeros = key(mechanism, 0);
            assert_eq!(zeros, zeros.clone());
            for index in 0..mechanism.key_length() {
                let mut bytes = vec![0; mechanism.key_length()];
                bytes[index] = 1;
                assert_ne!(zeros, Key::new(mechanism, &bytes).unwrap());
            }
        }
        assert_ne!(key(Mechanism::ScramSha1, 0), key(Mechanism::ScramSha256, 0));
    }

    #[test]
    fn debug_output_hides_every_secret_of_derived_keys() {
        let derived =
            derive_from_password(Mechanism::ScramSha1, "user", "pencil", b"salt", 4_096).unwrap();
        let text = format!("{derived:?}");
        assert_eq!(
            text,
            "DerivedKeys { client_key: ClientKey(Key(SCRAM-SHA-1)), keys: ScramKeys { \
             salt: [115, 97, 108, 116], iterations: 4096, stored_key: Key(SCRAM-SHA-1), \
             server_key: Key(SCRAM-SHA-1) } }"
        );
    }

    #[test]
    fn scram_keys_differ_if_any_part_differs() {
        let [a, b] = [1, 2].map(|byte| key(Mechanism::ScramSha256, byte));
        let keys = |salt: &[u8], iterations, stored: &Key, server: &Key| {
            ScramKeys::new(salt.to_vec(), iterations, stored.clone(), server.clone()).unwrap()
        };
        let original = keys(b"salt", 5_000, &a, &b);
        assert_eq!(original, original.clone());
        assert_ne!(original, keys(b"tlas", 5_000, &a, &b));
        assert_ne!(original, keys(b"salt", 5_001, &a, &b));
        assert_ne!(original, keys(b"salt", 5_000, &b, &b));
        assert_ne!(original, keys(b"salt", 5_000, &a, &a));
    }

    #[test]
    fn invalid_scram_keys_are_refused() {
        let [sha1, sha256] = BOTH.map(|mechanism| key(mechanism, 1));
        let mixed = ScramKeys::new(vec![1], 5_000, sha1.clone(), sha256);
        assert_eq!(mixed.unwrap_err(), ScramError::MechanismMismatch);
        for (iterations, is_accepted) in [
            (0, false),
            (4_095, false),
            (4_096, true),
            (10_000_000, true),
            (10_000_001, false),
        ] {
            let keys = ScramKeys::new(vec![1], iterations, sha1.clone(), sha1.clone());
            let (min, max) = (MIN_ITERATIONS, MAX_ITERATIONS);
            let expected = ScramError::IterationsOutOfRange {
                iterations,
                min,
                max,
            };
            assert_eq!(keys.err(), (!is_accepted).then_some(expected));
        }
    }

    #[test]
    fn passwords_are_prepared_as_their_mechanism_requires() {
        let derive = |mechanism, user: &str, password: &str| {
            derive_from_password(mechanism, user, password, b"salt", 4_096)
        };
        let sha256 = |password: &str| derive(Mechanism::ScramSha256, "user", password);
        let sha1 = |password: &str| derive(Mechanism::ScramSha1, "user", password);

        // Examples of RFC 4013: soft hyphens are removed, compatibility characters are replaced.
        assert_eq!(sha256("I\u{ad}X"), sha256("IX"));
        assert_eq!(sha256("\u{2168}"), sha256("IX"));
        assert_eq!(sha256("\u{aa}"), sha256("a"));
        assert_ne!(sha256("USER"), sha256("user"));
        for forbidden in ["\u{7}", "\u{627}1", "a\u{627}"] {
            assert_eq!(
                sha256(forbidden).unwrap_err(),
                ScramError::PasswordNotPreparable
            );
        }

        assert_ne!(sha1("I\u{ad}X"), sha1("IX"));
        assert!(sha1("\u{7}").is_ok());

        // The keys depend on the user's name only for SCRAM-SHA-1.
        assert_ne!(
            sha1("pencil"),
            derive(Mechanism::ScramSha1, "other", "pencil")
        );
        assert_eq!(
            sha256("pencil"),
            derive(Mechanism::ScramSha256, "other", "pencil")
        );
    }

    #[test]
    fn mongo_hash_is_the_hex_md5_of_user_and_password() {
        assert_eq!(
            mongo_hash("user", "pencil"),
            "1c33006ec1ffd90f9cadcbcc0e118200"
        );
    }

    #[test]
    fn too_high_iteration_count_is_refused_before_pbkdf2_runs() {
        for mechanism in BOTH {
            let error =
                derive_from_password(mechanism, "user", "pencil", b"salt", u32::MAX).unwrap_err();
            assert!(matches!(error, ScramError::IterationsOutOfRange { .. }));
        }
    }

    #[test]
    fn client_key_is_recovered_from_a_proof_only_with_the_keys_and_auth_message_of_this_proof() {
        for mechanism in BOTH {
            let derived =
                derive_from_password(mechanism, "user", "pencil", b"salt", 4_096).unwrap();
            let DerivedKeys { client_key, keys } = &derived;
            let proof = client_key.proof(keys.stored_key(), "message");
            assert_eq!(keys.recover(&proof, "message").as_ref(), Some(client_key));
            assert_eq!(keys.recover(&proof, "massage"), None);
            assert_eq!(keys.recover(&key(mechanism, 9), "message"), None);

            let other = derive_from_password(mechanism, "user", "pencil", b"tlas", 4_096).unwrap();
            assert_eq!(other.keys.recover(&proof, "message"), None);
        }
    }

    #[test]
    fn proof_of_another_mechanism_recovers_no_key() {
        let derived =
            derive_from_password(Mechanism::ScramSha256, "user", "pencil", b"salt", 4_096).unwrap();
        assert_eq!(
            derived
                .keys
                .recover(&key(Mechanism::ScramSha1, 1), "message"),
            None
        );
    }
}
