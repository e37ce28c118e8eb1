//! One connection to a server: made ready, used for one exchange at a time, or for a control command.
//!
//! Knows how to establish (connect, TLS, `hello`, authenticate) and what makes a connection unfit. Does not
//! know pools: who keeps it, and for how long, is decided above.

mod address;
mod control;
mod establish;
#[cfg(test)]
pub(crate) mod scripted;
mod tls;

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::wire::{Compressor, Stream};

pub use self::{
    address::{AddressError, ServerAddress},
    control::{ControlError, reply_is_ok, requires_authentication},
    establish::{Connector, EstablishError, Step, empty_exchange},
    tls::{TlsError, client_config, read_certificates},
};

/// Tells a connection from every other of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

/// Which state of its server's pool a connection belongs to; a clear begins the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

impl Generation {
    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A connection to a server, ready for use.
#[derive(Debug)]
pub struct Connection {
    id: ConnectionId,
    /// The bytes' way. Whoever writes to it must read the whole reply, or close the connection.
    pub stream: Stream,
    /// The server's own number for it, by which its operations can be found.
    pub server_connection_id: Option<i64>,
    /// The highest wire version the server speaks.
    pub max_wire_version: i32,
    /// Whether the server is known not to know `hello` by that name.
    pub lacks_hello: bool,
    /// What its requests may be compressed with.
    pub compressor: Option<Compressor>,
    /// The generation that it was made in.
    pub generation: Generation,
    /// When it was made.
    pub created_at: Instant,
    /// When it was last given back.
    pub last_used_at: Instant,
    next_request_id: i32,
}

impl Connection {
    /// Over a stream that has been greeted.
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
            created_at: now,
            last_used_at: now,
            next_request_id: 1,
        }
    }

    /// Its id.
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
    /// The share (0.8 to 1) of the longest life that this connection gets: spread over connections, so that
    /// those made together do not end together.
    pub fn life_share(self) -> f64 {
        // Fibonacci hashing spreads consecutive numbers evenly.
        let spread = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        1.0 - 0.2 * f64::from(u16::try_from(spread).unwrap_or(u16::MAX)) / f64::from(u16::MAX)
    }
}
