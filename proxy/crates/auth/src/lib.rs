//! Authentication: SCRAM towards clients and servers, SCRAM keys, and the addresses from which a
//! user may log in.
//!
//! The types of this crate are state machines and values. A step of a conversation gets a payload
//! and returns a payload or a result. The crate reads no socket, clock or configuration. Its only
//! system call seeds [`NonceSource`].
//!
//! Seawall needs no password to serve a user. A server stores `StoredKey = H(ClientKey)` and
//! `ServerKey`. Every SCRAM proof is `ClientKey XOR HMAC(StoredKey, AuthMessage)`. So a party that
//! knows the stored keys and sees one valid proof learns `ClientKey`, and can then authenticate as
//! the user:
//!
//! ```text
//!  first login of a user     CarriedConversation   a server verifies the forwarded payloads
//!                            users_info_command    Seawall reads the user's keys and restrictions
//!                            prove(keys)           the forwarded proof reveals the ClientKey
//!
//!  every later login         ServerConversation    Seawall verifies the proof, gets the ClientKey
//!  connection to a server    ClientConversation    Seawall logs in with the keys, without PBKDF2
//! ```
//!
//! Invariants: a [`Key`] is zeroed on drop, not printed by `Debug`, and compared in constant time.
//! A conversation returns a [`ClientKey`] only if the hash of this key equals the stored key. No
//! bytes from the network can cause a panic.

mod identity;
mod mechanism_list;
mod nonce;
mod restrictions;
mod scram;
mod users_info;

pub use identity::{Identity, IdentityId, IdentityStatus, Login};
pub use mechanism_list::mechanism_names;
pub use nonce::{NonceSource, SeedError};
pub use restrictions::{Restrictions, RestrictionsError};
pub use scram::{
    CarriedChallenge, CarriedConversation, CarriedOutcome, CarriedProof, ClientConversation,
    ClientFirst, ClientKey, ClientProofSent, DerivedKeys, Fault, Key, MAX_ITERATIONS,
    MIN_ITERATIONS, Mechanism, ScramError, ScramKeys, ScramMessage, ServerConversation, Verified,
    derive_from_password,
};
pub use users_info::{Credentials, UsersInfoError, parse_users_info, users_info_command};
