//! SCRAM (RFC 5802, RFC 7677) as MongoDB implements it. Seawall does not need to know the users'
//! passwords.
//!
//! ```text
//!  client-first   n,,n=<user>,r=<client nonce>
//!  server-first   r=<client nonce><server nonce>,s=<base64 salt>,i=<iterations>
//!  client-final   c=biws,r=<combined nonce>,p=<base64 ClientProof>
//!  server-final   v=<base64 ServerSignature>
//!
//!  ClientKey   = HMAC(SaltedPassword, "Client Key")     StoredKey = H(ClientKey)
//!  ServerKey   = HMAC(SaltedPassword, "Server Key")
//!  AuthMessage = client-first without its GS2 header , server-first , client-final without p=
//!  ClientProof = ClientKey XOR HMAC(StoredKey, AuthMessage)
//!  ServerSignature = HMAC(ServerKey, AuthMessage)
//! ```
//!
//! There are three kinds of conversation. In a carried conversation, Seawall forwards the payloads
//! between a client and a server. Each kind is a chain of types: a step consumes a value of one
//! type and returns a value of the next type. So a step can be neither skipped nor repeated, and an
//! error ends the conversation.
//!
//! ```text
//!  towards a client      ServerConversation ─ verify ─► Verified
//!  towards a server      ClientConversation ─ respond ─► ClientProofSent ─ finish ─►
//!  carried               CarriedConversation ─ server_first ─► CarriedChallenge
//!                          ─ client_final ─► CarriedProof ─ server_final ─► CarriedOutcome
//!                          ─ prove ─► ClientKey
//! ```
//!
//! This module handles only payloads. Its callers handle the commands around the payloads
//! (`saslStart`, `saslContinue`, `speculativeAuthenticate`, the empty exchange at the end). Like
//! MongoDB, it does not support channel binding.

mod carried;
mod client;
mod client_first;
mod error;
mod keys;
mod payload;
mod server;
#[cfg(test)]
mod tests;

pub use carried::{CarriedChallenge, CarriedConversation, CarriedOutcome, CarriedProof};
pub use client::{ClientConversation, ClientProofSent};
pub use client_first::ClientFirst;
pub use error::{Fault, ScramError, ScramMessage};
pub use keys::{
    ClientKey, DerivedKeys, Key, MAX_ITERATIONS, MIN_ITERATIONS, Mechanism, ScramKeys,
    derive_from_password,
};
pub use server::{ServerConversation, Verified};
