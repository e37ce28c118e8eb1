//! The byte stream under a connection, to a client or to a server.

use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncBufRead as _, AsyncRead, AsyncWrite, Interest, ReadBuf, Ready},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::{
    TlsStream,
    rustls::{ProtocolVersion, pki_types::CertificateDer},
};

use crate::TlsSocket;

/// A connection's byte stream. It is an enum and not a trait object, because direct calls make each
/// read and write faster.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Tcp(TcpStream),
    /// A unix domain socket.
    Unix(UnixStream),
    /// TLS over TCP, to a client or to a server.
    Tls {
        /// The TLS stream. It is boxed, so that plain connections need less memory.
        stream: Box<TlsStream<TlsSocket>>,
        /// Counts the written records.
        wear: Wear,
    },
}

/// Counts the records that a TLS 1.2 connection has written, because TLS 1.2 allows only a limited
/// number of records with the same keys. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Wear {
    /// At least the number of written records: a count that may be too high, but is never too low.
    /// `None` for connections without a limit: TLS 1.3 changes the keys, and plain connections have
    /// none.
    pub(crate) records: Option<Arc<AtomicU64>>,
}

impl Wear {
    fn of(stream: &TlsStream<TlsSocket>) -> Self {
        let version = stream.get_ref().1.protocol_version();
        let is_limited = version == Some(ProtocolVersion::TLSv1_2);
        Self {
            records: is_limited.then(Arc::default),
        }
    }

    /// Counts the records of a write.
    fn add(&self, written: &Poll<io::Result<usize>>) {
        if let (Some(records), Poll::Ready(Ok(bytes))) = (&self.records, written) {
            let bytes = u64::try_from(*bytes).unwrap_or(u64::MAX);
            let added = bytes.div_ceil(TLS_RECORD_BYTES).max(1);
            records.fetch_add(added, Ordering::Relaxed);
        }
    }

    /// True if the connection must not be used for another message, because it has written almost
    /// as many records as its keys allow.
    pub fn is_worn_out(&self) -> bool {
        let records = self.records.as_ref();
        records.is_some_and(|records| records.load(Ordering::Relaxed) >= MAX_TLS_1_2_RECORDS)
    }
}

/// Number of records after which a TLS 1.2 connection is replaced. With AES-GCM, rustls closes the
/// connection and drops further data after 2^24 records. This limit is lower than 2^24 by more than
/// the number of records of one message.
const MAX_TLS_1_2_RECORDS: u64 = (1 << 24) - (1 << 16);

/// Maximum number of bytes of one TLS record (RFC 8446, section 5.1).
const TLS_RECORD_BYTES: u64 = 1 << 14;

impl From<TlsStream<TlsSocket>> for Stream {
    /// Uses a TLS stream whose handshake has ended.
    fn from(mut stream: TlsStream<TlsSocket>) -> Self {
        stream.get_mut().0.note_data();
        Self::Tls {
            wear: Wear::of(&stream),
            stream: Box::new(stream),
        }
    }
}

impl Stream {
    /// True if the stream uses TLS.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls { .. })
    }

    /// The certificate chain that the peer sent in the TLS handshake, with its own certificate
    /// first. Empty without TLS, or if the peer sent no certificate.
    pub fn peer_certificates(&self) -> &[CertificateDer<'static>] {
        let Self::Tls { stream, .. } = self else {
            return &[];
        };
        let (_, session) = stream.get_ref();
        session.peer_certificates().unwrap_or_default()
    }

    /// The local address of the TCP connection. `None` for unix sockets, or if the system returns
    /// an error.
    pub fn local_address(&self) -> Option<SocketAddr> {
        let socket = match self {
            Self::Tcp(stream) => stream,
            Self::Unix(_) => return None,
            Self::Tls { stream, .. } => stream.get_ref().0.tcp(),
        };
        socket.local_addr().ok()
    }

    /// The counter of the records that this stream has written. The counter of a plain stream has
    /// no limit.
    pub fn wear(&self) -> Wear {
        match self {
            Self::Tls { wear, .. } => wear.clone(),
            Self::Tcp(_) | Self::Unix(_) => Wear::default(),
        }
    }

    /// True if the connection must not be used for another message: see [`Wear::is_worn_out`].
    pub fn is_worn_out(&self) -> bool {
        matches!(self, Self::Tls { wear, .. } if wear.is_worn_out())
    }

    /// True if the stream cannot be used for another command: the peer or the kernel has closed it,
    /// or unexpected bytes have arrived. Callers must use this function only while they expect no
    /// bytes. It does not wait, and makes no system call if nothing has arrived.
    pub fn has_ended(&mut self) -> bool {
        let mut byte = [0];
        let read = match self {
            Self::Tcp(stream) => stream.try_read(&mut byte),
            Self::Unix(stream) => stream.try_read(&mut byte),
            Self::Tls { stream, .. } => {
                // No waker is needed, because the next reader registers its own waker. This poll
                // also processes TLS records without application data, such as alerts.
                let mut no_waker = Context::from_waker(Waker::noop());
                let mut room = ReadBuf::new(&mut byte);
                return poll_read_tls(stream, &mut no_waker, &mut room).is_ready();
            }
        };
        !matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl Stream {
    /// True if the peer has closed its side of the connection. Makes no system call.
    pub fn peer_has_left(&self) -> bool {
        match self {
            Self::Tcp(s) => peer_has_left(s),
            Self::Unix(s) => is_closed(s.ready(Interest::READABLE).now_or_never()),
            Self::Tls { stream, .. } => peer_has_left(stream.get_ref().0.tcp()),
        }
    }
}

/// Like [`Stream::peer_has_left`], for a socket that is not a [`Stream`] yet.
pub fn peer_has_left(socket: &TcpStream) -> bool {
    is_closed(socket.ready(Interest::READABLE).now_or_never())
}

fn is_closed(ready: Option<io::Result<Ready>>) -> bool {
    matches!(ready, Some(Ok(ready)) if ready.is_read_closed())
}

/// Reads from a TLS stream. Fails if the peer sends too many bytes without data. The read may make
/// the TLS library queue bytes, such as the refusal of a renegotiation. This function then sends
/// these bytes, because `tokio-rustls` alone would send them only with the next write.
fn poll_read_tls(
    stream: &mut TlsStream<TlsSocket>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    let read = poll_data(stream, cx, buf);
    if stream.get_ref().1.wants_write() {
        // If the kernel has no room for all bytes, the next write sends the remaining bytes. An
        // error needs no handling, because the next write also reports it.
        drop(match stream {
            TlsStream::Server(stream) => {
                let (socket, session) = stream.get_mut();
                session.write_tls(&mut NonBlocking(socket.tcp()))
            }
            TlsStream::Client(stream) => {
                let (socket, session) = stream.get_mut();
                session.write_tls(&mut NonBlocking(socket.tcp()))
            }
        });
    }
    read
}

/// Copies data into `buf` until `buf` is full or no more data has arrived. In contrast to the
/// method `poll_read` of `tokio-rustls`, this function also counts the bytes without data that
/// follow data.
fn poll_data(
    stream: &mut TlsStream<TlsSocket>,
    cx: &mut Context<'_>,
    buf: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    if let Some(error) = stream.get_mut().0.take_error() {
        return Poll::Ready(Err(error));
    }
    let before = buf.filled().len();
    while buf.remaining() > 0 {
        let has_data = buf.filled().len() > before;
        let error = match Pin::new(&mut *stream).poll_fill_buf(cx) {
            Poll::Ready(Ok([])) => break,
            Poll::Ready(Ok(data)) => {
                let data = data.get(..buf.remaining()).unwrap_or(data);
                buf.put_slice(data);
                let count = data.len();
                Pin::new(&mut *stream).consume(count);
                stream.get_mut().0.note_data();
                continue;
            }
            Poll::Ready(Err(error)) => error,
            Poll::Pending => match stream.get_ref().0.check_bytes_without_data() {
                Err(error) => error,
                Ok(()) if has_data => break,
                Ok(()) => return Poll::Pending,
            },
        };
        if !has_data {
            return Poll::Ready(Err(error));
        }
        // The caller first gets the data.
        stream.get_mut().0.keep_error(error);
        break;
    }
    Poll::Ready(Ok(()))
}

/// Writes to a socket without waiting. It registers no waker, so it does not replace the waker of a
/// task that waits to write.
struct NonBlocking<'a>(&'a TcpStream);

impl io::Write for NonBlocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

macro_rules! delegate {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Stream::Tcp($stream) => $call,
            Stream::Unix($stream) => $call,
            Stream::Tls {
                stream: $stream, ..
            } => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls { stream, .. } => poll_read_tls(stream, cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls { stream, wear } => {
                let written = Pin::new(stream).poll_write(cx, buf);
                wear.add(&written);
                written
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, s => Pin::new(s).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Self::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Self::Tls { stream, wear } => {
                let written = Pin::new(stream).poll_write_vectored(cx, bufs);
                wear.add(&written);
                written
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(s) => s.is_write_vectored(),
            Self::Unix(s) => s.is_write_vectored(),
            Self::Tls { stream, .. } => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests;
