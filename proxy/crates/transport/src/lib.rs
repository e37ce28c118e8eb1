//! Byte streams to clients and servers, and the messages that are read from them.
//!
//! [`MessageReader`] reads messages from a [`Stream`]. Large and incomplete messages are charged to
//! the [`MemoryBudget`] that all clients share. [`connection`] makes a connection to a server ready
//! for use. This crate does not know what a message means, and keeps no pools.

pub mod connection;

mod budget;
mod certificates;
mod encrypted_key;
mod keep_alive;
mod progress;
mod reader;
mod revocation;
mod sharer;
mod stream;
mod tls_socket;
mod verification;

pub use self::{
    budget::{Evicted, MemoryBudget, MemoryShare},
    certificates::{
        CertificateExpiry, ExpiryKind, Pem, PemError, authorities, not_after, subject, validity,
        without_repetitions,
    },
    encrypted_key::KeyPassword,
    keep_alive::keep_clients_alive,
    progress::{MESSAGE_LIMIT, Progress},
    reader::{
        Inflating, LARGE_MESSAGE_BYTES, Message, MessageReader, Polled, ReadError, RestOfMessage,
        STREAMED_MESSAGE_BYTES, with_scratch,
    },
    revocation::{
        AuthorityWithoutList, ListSet, authorities_without_list, revocation_lists, sets_by_key,
    },
    sharer::{Sharer, is_within_share},
    stream::{Stream, Wear, peer_has_left},
    tls_socket::{TlsSocket, rustls_error},
    verification::{SetVerifier, verify_chain},
};
