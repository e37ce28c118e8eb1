//! Who a client is: SCRAM towards clients and towards servers, the keys behind it, and the
//! addresses a user may come from.
//!
//! Everything here is a state machine or a value. Payloads go in, payloads or verdicts come out; no
//! part of it reads a socket, a clock or a configuration, and the only system call is the one that
//! seeds [`NonceSource`].
//!
//! No password is needed to serve a user. A server stores `StoredKey = H(ClientKey)` and
//! `ServerKey`; every SCRAM proof is `ClientKey XOR HMAC(StoredKey, AuthMessage)`. Whoever knows
//! the stored keys and sees one good proof therefore learns `ClientKey`, and with it can
//! authenticate as that user again:
//!
//! ```text
//!  first login of a user     CarriedConversation   payloads pass to a server, which decides
//!                            users_info_command    the user reads its own keys and restrictions
//!                            prove(keys)           the carried proof gives up the ClientKey
//!
//!  every later login         ServerConversation    verified here; renews the ClientKey
//!  our server connections    ClientConversation    ClientKey and ScramKeys, no PBKDF2
//! ```
//!
//! Invariants: a [`Key`] is zeroed when dropped, hides itself from `Debug` and is compared in
//! constant time; a [`ClientKey`] comes out of a conversation only if its hash equals the stored
//! key; nothing from the network can cause a panic.

mod identity;
mod nonce;
mod restrictions;
mod scram;
mod users_info;

pub use identity::{Identity, IdentityId, Login, Standing};
pub use nonce::{NonceSource, SeedError};
pub use restrictions::{Restrictions, RestrictionsError};
pub use scram::{
    CarriedChallenge, CarriedConversation, CarriedOutcome, CarriedProof, ClientConversation,
    ClientFirst, ClientKey, ClientProofSent, DerivedKeys, Fault, Key, MAX_ITERATIONS,
    MAX_PAYLOAD_BYTES, MIN_ITERATIONS, Mechanism, ScramError, ScramKeys, ScramMessage,
    ServerConversation, Verified, derive_from_password,
};
pub use users_info::{Credentials, UsersInfoError, parse_users_info, users_info_command};
