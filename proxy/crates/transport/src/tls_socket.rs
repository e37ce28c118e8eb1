//! The socket under a TLS stream, and the errors of such a stream.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::rustls;

/// Maximum number of bytes that a peer may send without completing a record that contains data. An
/// incomplete record has at most 18,437 bytes (RFC 5246, section 6.2.3). The other bytes are
/// records without data, such as alerts, session tickets and key updates. When the count begins,
/// the TLS library may already have up to 18,437 bytes, so it keeps at most about 40 KiB.
const MAX_BYTES_WITHOUT_DATA: usize = 18_437 + 4_096;

/// The error of the TLS library that is the cause of an I/O error. `None` if the error has another
/// cause.
pub fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// A TCP socket under a TLS stream. It counts the bytes that the TLS library has read and that have
/// not yielded data. The library keeps up to 64 KiB of an incomplete message, and no memory budget
/// counts these bytes.
#[derive(Debug)]
pub struct TlsSocket {
    tcp: TcpStream,
    bytes_without_data: usize,
    error: Option<io::Error>,
}

impl TlsSocket {
    /// The TCP socket.
    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Starts to count again, because the handshake has ended, or because the TLS stream has
    /// returned data.
    pub(crate) fn note_data(&mut self) {
        self.bytes_without_data = 0;
    }

    /// Keeps the error of a read that has returned data, for the next read.
    pub(crate) fn keep_error(&mut self, error: io::Error) {
        self.error = Some(error);
    }

    /// Takes the error that [`Self::keep_error`] has kept.
    pub(crate) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Checks the count when the TLS stream waits for more bytes.
    ///
    /// # Errors
    /// If the peer has sent too many bytes without data. The caller must close the connection.
    pub(crate) fn check_bytes_without_data(&self) -> io::Result<()> {
        match self.bytes_without_data > MAX_BYTES_WITHOUT_DATA {
            true => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer has sent too many bytes without completing a TLS record with data",
            )),
            false => Ok(()),
        }
    }
}

impl From<TcpStream> for TlsSocket {
    fn from(tcp: TcpStream) -> Self {
        Self {
            tcp,
            bytes_without_data: 0,
            error: None,
        }
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.tcp).poll_read(cx, buf);
        let read_bytes = buf.filled().len() - before;
        this.bytes_without_data = this.bytes_without_data.saturating_add(read_bytes);
        read
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().tcp).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }
}
