//! Carried conversations: SCRAM conversations that Seawall forwards between a client and a server,
//! and observes. A user's first login is a carried conversation, because Seawall does not know the
//! user's keys yet.
//!
//! The server verifies the proof. Seawall parses each payload and forwards it unchanged. When the
//! server has accepted the proof, Seawall reads the user's keys on the same connection.
//! [`CarriedOutcome::prove`] then checks that the keys, the proof and the signature belong
//! together.

use super::payload::{ClientFinal, ServerFirst, auth_message, parse_server_final};
use super::{ClientFirst, ClientKey, Key, Mechanism, ScramError, ScramKeys};

/// A conversation whose client-first message has been forwarded. The next message is the
/// server-first message.
#[derive(Debug)]
pub struct CarriedConversation {
    mechanism: Mechanism,
    client_first: ClientFirst,
}

impl CarriedConversation {
    /// Starts a conversation with the client's first message. The caller forwards the payload of
    /// this message to the server.
    pub fn new(mechanism: Mechanism, client_first: ClientFirst) -> Self {
        Self {
            mechanism,
            client_first,
        }
    }

    /// Parses the server's first message. Its nonce must begin with the client's nonce.
    ///
    /// # Errors
    /// If the payload is malformed, reports an error of the server, or does not belong to this
    /// conversation. Also if the iteration count is outside the accepted range.
    pub fn server_first(self, payload: &[u8]) -> Result<CarriedChallenge, ScramError> {
        let server_first = ServerFirst::parse(payload, self.client_first.nonce())?;
        let Self {
            mechanism,
            client_first,
        } = self;
        Ok(CarriedChallenge {
            mechanism,
            client_first,
            server_first,
        })
    }
}

/// A conversation whose server-first message has been forwarded. The next message has the client's
/// proof.
#[derive(Debug)]
pub struct CarriedChallenge {
    mechanism: Mechanism,
    client_first: ClientFirst,
    server_first: ServerFirst,
}

impl CarriedChallenge {
    /// Parses the client-final message, which contains the proof. The nonce of the message must
    /// belong to this conversation. The proof can be checked only when the keys are known.
    ///
    /// # Errors
    /// If the payload is malformed or does not belong to this conversation.
    pub fn client_final(self, payload: &[u8]) -> Result<CarriedProof, ScramError> {
        let client_final = ClientFinal::parse(
            payload,
            self.mechanism,
            self.client_first.gs2_header(),
            &self.server_first.combined_nonce,
        )?;
        let auth_message = auth_message(
            self.client_first.bare_text(),
            &self.server_first.text,
            client_final.without_proof,
        );
        Ok(CarriedProof {
            auth_message,
            proof: client_final.proof,
            salt: self.server_first.salt,
            iterations: self.server_first.iterations,
        })
    }
}

/// A conversation whose proof has been forwarded. The next message has the server's signature.
#[derive(Debug)]
pub struct CarriedProof {
    auth_message: String,
    proof: Key,
    salt: Vec<u8>,
    iterations: u32,
}

impl CarriedProof {
    /// Parses the server-final message. If it contains a signature, the server has accepted the
    /// proof.
    ///
    /// # Errors
    /// [`ScramError::ServerReportedError`] if the server refuses the proof with `e=`. Any other
    /// error means that the payload is malformed.
    pub fn server_final(self, payload: &[u8]) -> Result<CarriedOutcome, ScramError> {
        let signature = parse_server_final(payload, self.proof.mechanism())?;
        Ok(CarriedOutcome {
            proof: self,
            signature,
        })
    }
}

/// A conversation in which the server has accepted the proof. The client counts as authenticated
/// only after [`prove`](Self::prove) has succeeded.
#[derive(Debug)]
pub struct CarriedOutcome {
    proof: CarriedProof,
    signature: Key,
}

impl CarriedOutcome {
    /// Recovers the user's ClientKey from the forwarded proof, if `keys` belong to this
    /// conversation.
    ///
    /// # Errors
    /// [`ScramError::KeysOutdated`] means that `keys` have another salt or iteration count than the
    /// conversation. The usual cause is that the password was changed after the login, but before
    /// the keys were read. [`ScramError::MechanismMismatch`] means that the keys belong to another
    /// mechanism than the proof. Any other error means that the keys do not belong to the user that
    /// logged in.
    pub fn prove(&self, keys: &ScramKeys) -> Result<ClientKey, ScramError> {
        let CarriedProof {
            auth_message,
            proof,
            salt,
            iterations,
        } = &self.proof;
        if proof.mechanism() != keys.mechanism() {
            return Err(ScramError::MechanismMismatch);
        }
        if !keys.are_for(salt, *iterations) {
            return Err(ScramError::KeysOutdated);
        }
        let client_key = keys
            .recover(proof, auth_message)
            .ok_or(ScramError::KeysDisagree)?;
        if self.signature != keys.server_signature(auth_message) {
            return Err(ScramError::ServerSignatureMismatch);
        }
        Ok(client_key)
    }
}
