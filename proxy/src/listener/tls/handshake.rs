//! The handshake of one client.
//!
//! The data plane reads from the socket and writes to it. The cryptography runs in *steps*, on
//! threads of low priority, which do not use the socket: the runtime of the data plane has locks
//! for its sockets, and a thread of low priority may get no core for a long time while it holds a
//! lock. The delivery of a step's result also uses a lock of this runtime, but only for a moment.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt as _;
use seawall_transport::{TlsSocket, peer_has_left};
use tokio::{net::TcpStream, time::sleep};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, HandshakeKind, InvalidMessage, ProtocolVersion, ServerConfig, ServerConnection,
        server::{Accepted, AcceptedAlert, Acceptor},
    },
    server::TlsStream,
};

use super::{
    failure::{FailedHandshake, NotTls},
    verifier::Verifier,
};
use crate::limits::{HandshakeStep, Heavy};

/// Time between two checks whether a client with unread bytes has left.
const DEPARTURE_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of bytes that are read before a step. If the socket has fewer bytes, the step
/// follows when all of them have been read.
const MAX_READ_BYTES: usize = 16 * 1024;

/// Maximum number of bytes that a client may send until its first message is complete. The first
/// messages of usual clients have 200 to 2,000 bytes, and a session ticket adds up to 8 KiB
/// ([`MAX_TICKET_BYTES`](super::resumption::MAX_TICKET_BYTES)). rustls itself would keep up to
/// 64 KiB.
const MAX_FIRST_BYTES: usize = 16 * 1024;

/// Maximum number of bytes that a client may send after its first message until the handshake is
/// complete. Most of them are the certificates of the client. Seawall verifies at most seven.
const MAX_FURTHER_BYTES: usize = 32 * 1024;

/// Maximum number of bytes that a client sends to refuse Seawall's certificate. A TLS 1.3 alert
/// after the message `change_cipher_spec` has 30 bytes (RFC 8446, sections 5.2, 6 and D.4). The TLS
/// library of Java adds 16 bytes of padding. The messages that need much cryptography are longer.
const MAX_ALERT_BYTES: usize = 64;

/// Waits until the client has sent something, or has left. [`TcpStream::readable`] does not wait
/// after the header of the PROXY protocol: the header was read exactly to its end, and after such a
/// read, tokio still considers the socket readable.
pub(super) async fn until_heard(stream: &TcpStream) -> io::Result<()> {
    stream.peek(&mut [0]).await.map(drop)
}

/// Waits until the client has left.
async fn until_left(stream: &TcpStream) {
    let peeked = stream.peek(&mut [0]).await;
    if peeked.is_ok_and(|count| count > 0) {
        // Unread bytes hide the end of the stream from `peek`, but not from `peer_has_left`.
        while !peer_has_left(stream) {
            sleep(DEPARTURE_INTERVAL).await;
        }
    }
}

/// Performs a handshake. `choose` returns the configuration of the handshake, and the verifier with
/// which the certificate of a resumed session is verified again. This function calls `choose` when
/// the first message has arrived. Returns `None` if the client left before a step ended.
pub(super) async fn accept(
    stream: TcpStream,
    heavy: Heavy<'_>,
    choose: impl FnOnce() -> (Arc<ServerConfig>, Option<Arc<Verifier>>),
) -> Result<Option<TlsStream<TlsSocket>>, FailedHandshake> {
    let accepted = match first_message(&stream).await {
        Ok(accepted) => accepted,
        Err(error) => return Err(FailedHandshake::new(error, Some(stream))),
    };
    let (config, verifier) = choose();
    let begun = tokio::select! {
        biased;
        () = until_left(&stream) => return Ok(None),
        begun = begin(accepted, Arc::clone(&config), heavy) => begun,
    };
    let session = match begun {
        Ok(session) => session,
        Err((error, alert)) => {
            send_alert(alert, &stream);
            return Err(FailedHandshake::new(invalid(error), Some(stream)));
        }
    };
    let finished = finish(session, &stream, verifier, heavy).await;
    let session = match finished {
        Ok(Some(session)) => session,
        Ok(None) => return Ok(None),
        Err(error) => return Err(FailedHandshake::new(error, Some(stream))),
    };
    // `tokio-rustls` cannot wrap a TLS session whose handshake is finished. So a new session is
    // created and then replaced by the finished one.
    let acceptor = TlsAcceptor::from(config);
    let socket = TlsSocket::from(stream);
    let stream = acceptor.accept_with(socket, |new| *new = session).await?;
    Ok(Some(stream))
}

/// Reads the first message of a handshake.
async fn first_message(stream: &TcpStream) -> io::Result<Accepted> {
    let mut acceptor = Acceptor::default();
    let mut first_bytes = 0;
    while first_bytes <= MAX_FIRST_BYTES {
        match acceptor.read_tls(&mut NonBlocking(stream)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => first_bytes += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                stream.readable().await?;
                continue;
            }
            Err(error) => return Err(error),
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, alert)) => {
                send_alert(alert, stream);
                return Err(NotTls::of_first_message(invalid(error)));
            }
        }
    }
    Err(too_large())
}

fn send_alert(mut alert: AcceptedAlert, stream: &TcpStream) {
    // The connection is closed in any case, so the result is not needed.
    drop(alert.write_all(&mut NonBlocking(stream)));
}

/// Processes the first message: computes keys and a signature.
async fn begin(
    accepted: Accepted,
    config: Arc<ServerConfig>,
    heavy: Heavy<'_>,
) -> Result<ServerConnection, (rustls::Error, AcceptedAlert)> {
    let step = heavy.handshake_step(HandshakeStep::First, move || {
        accepted.into_connection(config)
    });
    step.await
}

/// Exchanges messages until the handshake is finished. A step processes the bytes of a read if they
/// may need much cryptography, for example for a certificate of the client, or after a second
/// `ClientHello`. Otherwise, this task processes them. Returns `None` if the client left before a
/// step ended.
async fn finish(
    mut session: ServerConnection,
    stream: &TcpStream,
    verifier: Option<Arc<Verifier>>,
    heavy: Heavy<'_>,
) -> io::Result<Option<ServerConnection>> {
    let mut further_bytes = 0;
    write(&mut session, stream).await?;
    while session.is_handshaking() {
        if further_bytes > MAX_FURTHER_BYTES {
            return Err(too_large());
        }
        let max = MAX_READ_BYTES.min(MAX_FURTHER_BYTES + 1 - further_bytes);
        let read_bytes = read(&mut session, stream, max).await?;
        further_bytes += read_bytes;
        let processed;
        if expects_only_finished(&session, verifier.as_deref()) {
            processed = process(&mut session, None);
        } else {
            let verifier = verifier.clone();
            let step = heavy.handshake_step(HandshakeStep::Later, move || {
                let processed = process(&mut session, verifier.as_deref());
                (session, processed)
            });
            (session, processed) = tokio::select! {
                biased;
                // A client may leave after an alert. The alert is processed, because it says why
                // the client has left.
                () = until_left(stream), if read_bytes > MAX_ALERT_BYTES => return Ok(None),
                done = step => done,
            };
        }
        if let Err(error) = processed {
            // Sends the alert. The connection is closed in any case, so the result is not needed.
            drop(write(&mut session, stream).now_or_never());
            return Err(invalid(error));
        }
        write(&mut session, stream).await?;
    }
    Ok(Some(session))
}

/// True if only the message `Finished` of TLS 1.3 is missing (RFC 8446, section 4.4.4). Its
/// processing takes some ten microseconds, hardly more than it takes to send a step to another
/// thread.
fn expects_only_finished(session: &ServerConnection, verifier: Option<&Verifier>) -> bool {
    let has_certificate_request = verifier.is_some();
    let is_retried = session.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest);
    let is_tls13 = session.protocol_version() == Some(ProtocolVersion::TLSv1_3);
    is_tls13 && !has_certificate_request && !is_retried
}

/// Processes the messages that have arrived. When the handshake is finished, verifies the client's
/// certificate again if the session was resumed.
fn process(
    session: &mut ServerConnection,
    verifier: Option<&Verifier>,
) -> Result<(), rustls::Error> {
    session.process_new_packets()?;
    let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    match verifier {
        Some(verifier) if is_resumed && !session.is_handshaking() => {
            let verified = verifier.verify(session.peer_certificates().unwrap_or_default());
            if verified.is_err() {
                // After a handshake, rustls lets its callers send no other alert.
                session.send_close_notify();
            }
            verified
        }
        Some(_) | None => Ok(()),
    }
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// The error of a client that sends more bytes than a handshake needs.
fn too_large() -> io::Error {
    invalid(InvalidMessage::HandshakePayloadTooLarge.into())
}

/// Reads the bytes that the client has sent, at least one, into the session, which does not process
/// them yet. Ends when at least `max` bytes have been read. Returns the number of bytes.
async fn read(session: &mut ServerConnection, stream: &TcpStream, max: usize) -> io::Result<usize> {
    let mut read_bytes = 0;
    while read_bytes < max {
        match session.read_tls(&mut NonBlocking(stream)) {
            Ok(count @ 1..) => read_bytes += count,
            // The session first processes the bytes that have been read. If the error is not
            // `WouldBlock`, it occurs again in the next read.
            Ok(0) | Err(_) if read_bytes > 0 => break,
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(read_bytes)
}

/// Writes all bytes that the session has for the client.
async fn write(session: &mut ServerConnection, stream: &TcpStream) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(&mut NonBlocking(stream)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads from a socket and writes to it without waiting.
struct NonBlocking<'a>(&'a TcpStream);

impl Read for NonBlocking<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

impl Write for NonBlocking<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
