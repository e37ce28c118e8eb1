//! Seawall as a SCRAM client, towards a server.

use super::client_first::escape_user_name;
use super::payload::{ServerFirst, auth_message, encode, is_nonce, parse_server_final};
use super::{ClientKey, DerivedKeys, Mechanism, ScramError, ScramKeys, derive_from_password};

/// A conversation that Seawall has begun. The next message has the server's nonce, salt and
/// iteration count.
#[derive(Debug, Clone)]
pub struct ClientConversation {
    mechanism: Mechanism,
    user: String,
    nonce: String,
    bare: String,
}

impl ClientConversation {
    /// Begins a conversation as `user`. Returns the first payload to send. `nonce` comes from a
    /// [`NonceSource`](crate::NonceSource).
    pub fn start(mechanism: Mechanism, user: &str, nonce: &str) -> (Self, Vec<u8>) {
        assert!(
            is_nonce(nonce),
            "Seawall's nonces are printable and have no comma"
        );
        let bare = format!("n={},r={nonce}", escape_user_name(user));
        let payload = format!("{GS2_HEADER}{bare}").into_bytes();
        (
            Self {
                mechanism,
                user: user.to_owned(),
                nonce: nonce.to_owned(),
                bare,
            },
            payload,
        )
    }

    /// Computes a proof from keys, without the password. Returns the payload to send.
    ///
    /// # Errors
    /// [`ScramError::KeysOutdated`] if `server_first` has another salt or iteration count than
    /// `keys`, or if `client_key` does not match `keys`. [`ScramError::MechanismMismatch`] if the
    /// keys belong to another mechanism than the conversation. Any other error means that
    /// `server_first` is malformed, reports an error, or does not belong to this conversation. It
    /// can also mean that the iteration count is outside the accepted range.
    pub fn respond(
        self,
        server_first: &[u8],
        client_key: &ClientKey,
        keys: &ScramKeys,
    ) -> Result<(ClientProofSent, Vec<u8>), ScramError> {
        let server_first = ServerFirst::parse(server_first, &self.nonce)?;
        if client_key.mechanism() != self.mechanism || keys.mechanism() != self.mechanism {
            return Err(ScramError::MechanismMismatch);
        }
        if !keys.are_for(&server_first.salt, server_first.iterations)
            || client_key.stored_key() != *keys.stored_key()
        {
            return Err(ScramError::KeysOutdated);
        }
        Ok(self.prove(&server_first, client_key, keys))
    }

    /// Computes a proof from the password, with PBKDF2. Returns the payload to send and the derived
    /// keys. With these keys, the next conversation does not need PBKDF2.
    ///
    /// # Errors
    /// [`ScramError::PasswordNotPreparable`] if SASLprep forbids a character of the password. Any
    /// other error means that `server_first` is malformed, reports an error, or does not belong to
    /// this conversation. It can also mean that the iteration count is outside the accepted range.
    pub fn respond_with_password(
        self,
        server_first: &[u8],
        password: &str,
    ) -> Result<(ClientProofSent, Vec<u8>, DerivedKeys), ScramError> {
        let server_first = ServerFirst::parse(server_first, &self.nonce)?;
        let derived = derive_from_password(
            self.mechanism,
            &self.user,
            password,
            &server_first.salt,
            server_first.iterations,
        )?;
        let (proof_sent, payload) = self.prove(&server_first, &derived.client_key, &derived.keys);
        Ok((proof_sent, payload, derived))
    }

    fn prove(
        self,
        server_first: &ServerFirst,
        client_key: &ClientKey,
        keys: &ScramKeys,
    ) -> (ClientProofSent, Vec<u8>) {
        let channel_binding = encode(GS2_HEADER.as_bytes());
        let without_proof = format!("c={channel_binding},r={}", server_first.combined_nonce);
        let auth_message = auth_message(&self.bare, &server_first.text, &without_proof);
        let proof = client_key.proof(keys.stored_key(), &auth_message);
        let payload = format!("{without_proof},p={}", encode(proof.as_bytes())).into_bytes();
        (
            ClientProofSent {
                auth_message,
                keys: keys.clone(),
            },
            payload,
        )
    }
}

/// A conversation in which Seawall has sent its proof. The next message has the server's signature.
#[derive(Debug)]
pub struct ClientProofSent {
    auth_message: String,
    keys: ScramKeys,
}

impl ClientProofSent {
    /// Checks the server's signature, which proves that the server knows the user's keys. Without
    /// this check, any process could act as the server and receive the user's commands.
    ///
    /// # Errors
    /// [`ScramError::ServerSignatureMismatch`] if the signature is wrong, and
    /// [`ScramError::ServerReportedError`] if the server refuses the proof with `e=`. Any other
    /// error means that the payload is malformed.
    pub fn finish(self, server_final: &[u8]) -> Result<(), ScramError> {
        let signature = parse_server_final(server_final, self.keys.mechanism())?;
        if signature != self.keys.server_signature(&self.auth_message) {
            return Err(ScramError::ServerSignatureMismatch);
        }
        Ok(())
    }
}

/// The GS2 header of Seawall's conversations: no channel binding, no authorization identity.
const GS2_HEADER: &str = "n,,";
