//! One connection to a server. After it is established, it serves one command at a time: an
//! operation of a client, or a command of Seawall itself.
//!
//! This module establishes connections (connect, TLS, `hello`, authenticate) and knows when a
//! connection is unusable. It does not know pools: its callers decide how long a connection is
//! kept.

mod account;
mod address;
mod control;
mod establish;
mod establish_error;
mod interrupt;
mod lookups;
mod sasl;
mod socket;
mod tls;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::time::Instant;

use crate::Stream;
use seawall_wire::Compressor;

pub use self::{
    account::{Account, LoginMethod, Password},
    address::{AddressError, ServerAddress},
    control::{ControlError, reply_is_ok},
    establish::Connector,
    establish_error::{EstablishError, EstablishStep},
    interrupt::{Interrupt, Interrupts},
    sasl::{
        SecretDocument, conversation_id, empty_exchange, payload, refuses_login, sasl_continue,
        sasl_start,
    },
    tls::{Authorities, ServerTls, TlsError, TlsSettings, Verification},
};

/// Identifies a connection within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// A generation of a server's pool, as the connection monitoring and pooling specification (CMAP)
/// defines it. Clearing the pool starts the next generation, and connections of earlier generations
/// are stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

impl Generation {
    /// The generation that follows this generation.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Identifies a TLS configuration of a [`Connector`]. Each new configuration has a higher version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TlsVersion(u64);

impl TlsVersion {
    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A connection to a server, ready for use.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    /// The byte stream. A caller that writes a command must read the whole reply or close the
    /// connection.
    pub stream: Stream,
    /// The server's number for the connection. It identifies the connection's operation in
    /// `$currentOp`. `None` if the server sent no number.
    pub server_connection_id: Option<i64>,
    /// The highest wire version that the server supports.
    pub max_wire_version: i32,
    /// True if the server is known not to support the command name `hello`.
    pub lacks_hello: bool,
    /// The compressor for commands; `None` if none was negotiated with the server.
    pub compressor: Option<Compressor>,
    /// The pool's generation when the connection was established.
    pub generation: Generation,
    /// The TLS configuration that the connection was established with.
    pub tls_version: TlsVersion,
    /// When the stream to the server was connected. For a connection of a pool: when the pool added
    /// the connection, after the login.
    pub created_at: Instant,
    /// When the connection was last checked in.
    pub last_used_at: Instant,
    /// When the connection becomes too old to be used; `None` if it has no maximum lifetime.
    pub expires_at: Option<Instant>,
    /// Lets another task end the wait for a reply.
    pub interrupt: Arc<Interrupt>,
    next_request_id: i32,
}

impl Connection {
    /// Creates a connection over a stream on which no reply is expected.
    pub fn new(stream: Stream, now: Instant) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: ConnectionId(NEXT.fetch_add(1, Ordering::Relaxed)),
            stream,
            server_connection_id: None,
            max_wire_version: 0,
            lacks_hello: false,
            compressor: None,
            generation: Generation::default(),
            tls_version: TlsVersion::default(),
            created_at: now,
            last_used_at: now,
            expires_at: None,
            interrupt: Arc::default(),
            next_request_id: 1,
        }
    }

    /// The number that identifies the connection in this process.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    fn request_id(&mut self) -> i32 {
        let id = self.next_request_id;
        self.next_request_id = self.next_request_id.wrapping_add(1);
        id
    }
}

impl ConnectionId {
    /// The fraction of the maximum lifetime after which this connection expires, from 0.8 to 1. The
    /// fraction differs between connections, so connections that were established together do not
    /// expire together.
    pub fn life_share(self) -> f64 {
        1.0 - 0.2 * self.spread()
    }

    /// A number from 0 to 1, computed from the id. The numbers of connections that were established
    /// one after another are spread evenly over this range.
    pub fn spread(self) -> f64 {
        // This is Fibonacci hashing, which spreads consecutive numbers evenly.
        let hash = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        f64::from(u16::try_from(hash).unwrap_or(u16::MAX)) / f64::from(u16::MAX)
    }
}
