//! Byte streams to clients and servers, and the messages that are read from them.
//!
//! [`MessageReader`] reads messages from a [`Stream`]. The memory for these messages comes from the
//! [`MemoryBudget`] that all clients share. [`connection`] makes a connection to a server ready for
//! use. This crate does not know what a message means, and keeps no pools.

pub mod connection;

mod budget;
mod certificates;
mod keep_alive;
mod progress;
mod reader;
mod sharer;
mod stream;

pub use self::{
    budget::{Evicted, MemoryBudget, MemoryShare},
    certificates::{
        AuthorityWithoutList, CertificateExpiry, ExpiryKind, Pem, PemError, authorities,
        authorities_without_list, not_after, revocation_lists, subject, without_repetitions,
    },
    keep_alive::keep_clients_alive,
    progress::{MESSAGE_LIMIT, Progress},
    reader::{
        Inflating, LARGE_MESSAGE_BYTES, Message, MessageReader, Polled, ReadError, RestOfMessage,
        STREAMED_MESSAGE_BYTES, with_scratch,
    },
    sharer::{Sharer, is_within_share},
    stream::{Stream, peer_has_left},
};
