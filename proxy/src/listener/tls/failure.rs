//! Failed handshakes: keeps the connection open until the client has read the alert.
//!
//! With TLS 1.3, a client may send commands before Seawall refuses the client's certificate. A
//! client without TLS sends a whole command immediately. If Seawall closed the connection without
//! reading these bytes, the kernel would reset the connection, and the client might lose the alert.
//! So Seawall first closes only its sending direction, and still reads the bytes of the client.

use std::{io, time::Duration};

use seawall_transport::rustls_error;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, time::timeout};
use tokio_rustls::rustls::{self, InvalidMessage};

/// Maximum time for which a connection stays open after its handshake has failed. The limit is for
/// clients that never close their side of the connection.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// If a refused client still sends more than this number of bytes, its connection is closed at
/// once. Seawall accepts commands of a MongoDB handshake, such as `hello`, up to the same size.
const MAX_DROPPED_BYTES: usize = 64 * 1024;

/// A handshake that has failed.
#[derive(Debug)]
pub(crate) struct FailedHandshake {
    error: io::Error,
    /// The connection; `None` if it can be closed at once.
    stream: Option<TcpStream>,
}

impl FailedHandshake {
    /// Creates the failure of a handshake. `stream` is the connection, from which [`Self::close`]
    /// reads the bytes that the client still sends. `stream` is `None` if the connection can be
    /// closed at once.
    pub(super) fn new(error: io::Error, stream: Option<TcpStream>) -> Self {
        Self { error, stream }
    }

    /// The cause of the failure.
    pub(crate) fn error(&self) -> &io::Error {
        &self.error
    }

    /// Closes the connection when the client has closed its side, at the latest after a second.
    /// Drops the bytes that the client still sends. Returns the cause of the failure.
    pub(crate) async fn close(self) -> io::Error {
        if let Some(stream) = self.stream {
            // The connection is closed in any case, so the result is not needed.
            drop(timeout(CLOSE_LIMIT, close(stream)).await);
        }
        self.error
    }
}

/// The error of a handshake whose first bytes are not a TLS record.
#[derive(Debug, thiserror::Error)]
#[error("the first bytes are not a TLS record: {0}")]
pub(crate) struct NotTls(rustls::Error);

impl NotTls {
    /// Gets the error that rustls returned for a client's first message. Replaces this error with a
    /// [`NotTls`] if the message does not begin like a TLS record: with its content type and major
    /// version (RFC 8446, section 5.1). For later messages, the same error of rustls means that the
    /// client violates the TLS protocol, so it must not be replaced.
    pub(crate) fn of_first_message(error: io::Error) -> io::Error {
        match rustls_error(&error).cloned() {
            Some(
                cause @ rustls::Error::InvalidMessage(
                    InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
                ),
            ) => io::Error::new(error.kind(), Self(cause)),
            Some(_) | None => error,
        }
    }
}

impl From<io::Error> for FailedHandshake {
    fn from(error: io::Error) -> Self {
        Self::new(error, None)
    }
}

async fn close(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut dropped_bytes = 0;
    while dropped_bytes <= MAX_DROPPED_BYTES {
        stream.readable().await?;
        match stream.try_read(&mut [0; 4_096]) {
            Ok(0) => break,
            Ok(count) => dropped_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
