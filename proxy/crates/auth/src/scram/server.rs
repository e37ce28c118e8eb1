//! Seawall as a SCRAM server, towards a client.

use super::payload::{ClientFinal, auth_message, encode, is_nonce};
use super::{ClientFirst, ClientKey, Mechanism, ScramError, ScramKeys};

/// A conversation whose first two messages have been exchanged. The next message has the client's
/// proof.
#[derive(Debug)]
pub struct ServerConversation {
    client_first: ClientFirst,
    server_first: String,
    combined_nonce: String,
    keys: ScramKeys,
}

impl ServerConversation {
    /// Begins a conversation with a client's first message and the user's stored keys, which
    /// determine the mechanism. Returns the payload to send. `server_nonce` comes from a
    /// [`NonceSource`](crate::NonceSource).
    pub fn start(
        client_first: ClientFirst,
        keys: &ScramKeys,
        server_nonce: &str,
    ) -> (Self, Vec<u8>) {
        assert!(
            is_nonce(server_nonce),
            "Seawall's nonces are printable and have no comma"
        );
        let combined_nonce = format!("{}{server_nonce}", client_first.nonce());
        // The client gets the stored salt and iteration count, because the stored keys were derived
        // with them.
        let salt = encode(keys.salt());
        let server_first = format!("r={combined_nonce},s={salt},i={}", keys.iterations());
        let payload = server_first.clone().into_bytes();
        let keys = keys.clone();
        (
            Self {
                client_first,
                server_first,
                combined_nonce,
                keys,
            },
            payload,
        )
    }

    /// The mechanism of the conversation.
    pub fn mechanism(&self) -> Mechanism {
        self.keys.mechanism()
    }

    /// Verifies the client's proof. The proof is valid if the hash of the ClientKey in the proof
    /// equals the stored key. Returns the ClientKey and the server's last payload.
    ///
    /// # Errors
    /// [`ScramError::ProofMismatch`] if the proof is not valid. Any other error means that the
    /// payload is malformed or does not belong to this conversation.
    pub fn verify(self, client_final: &[u8]) -> Result<Verified, ScramError> {
        let client_final = ClientFinal::parse(
            client_final,
            self.keys.mechanism(),
            self.client_first.gs2_header(),
            &self.combined_nonce,
        )?;
        let auth_message = auth_message(
            self.client_first.bare_text(),
            &self.server_first,
            client_final.without_proof,
        );
        let client_key = self
            .keys
            .recover(&client_final.proof, &auth_message)
            .ok_or(ScramError::ProofMismatch)?;
        let signature = self.keys.server_signature(&auth_message);
        let server_final = format!("v={}", encode(signature.as_bytes())).into_bytes();
        Ok(Verified {
            client_key,
            server_final,
        })
    }
}

/// The result of a conversation in which the client has proved that it knows the password.
#[derive(Debug)]
pub struct Verified {
    /// The key with which Seawall authenticates as the same user at servers.
    pub client_key: ClientKey,
    /// The last payload (`v=…`), which proves to the client that Seawall knows the user's keys.
    pub server_final: Vec<u8>,
}
