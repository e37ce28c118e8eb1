//! A listener for HTTP with a maximum number of connections. A connection on which nothing arrives
//! for some time is closed, so that idle callers use up neither connections nor descriptors.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// Maximum number of connections to one address. Further ones wait in the kernel. The descriptors
/// that are reserved at the start are enough for two addresses.
const MAX_CONNECTIONS: usize = 64;

/// A connection on which nothing arrives for this time is closed. It is longer than the usual
/// interval of scrapes, so that scrapers can keep their connections.
const MAX_IDLE: Duration = Duration::from_secs(90);

/// A listener with a maximum number of connections.
#[derive(Debug)]
pub(super) struct Bounded {
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

impl Bounded {
    pub(super) fn new(listener: TcpListener) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }
}

impl Listener for Bounded {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        // `axum` retries after errors, for example because descriptors ran out.
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let connection = Connection {
            stream,
            idle: Box::pin(sleep(MAX_IDLE)),
            _permit: permit.ok(),
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The address of a caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) SocketAddr);

impl Connected<IncomingStream<'_, Bounded>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// One connection, with the time after which it is closed.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    /// Releases the permit when the connection is dropped. Never `None`, because the semaphore is
    /// never closed.
    _permit: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_ready() {
            self.idle.as_mut().reset(Instant::now() + MAX_IDLE);
            return read;
        }
        let is_idle = self.idle.as_mut().poll(cx);
        is_idle.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::{advance, timeout},
    };

    use super::*;

    async fn listener() -> (Bounded, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Bounded::new(listener), address)
    }

    #[tokio::test]
    async fn connections_over_the_limit_wait_until_another_connection_ends() {
        let (mut listener, address) = listener().await;
        listener.permits = Arc::new(Semaphore::new(1));
        let _callers = [
            TcpStream::connect(address).await.unwrap(),
            TcpStream::connect(address).await.unwrap(),
        ];
        let (first, _) = listener.accept().await;
        assert!(timeout(Duration::ZERO, listener.accept()).await.is_err());
        drop(first);
        drop(listener.accept().await);
    }

    #[tokio::test]
    async fn a_connection_is_closed_when_nothing_has_arrived_for_the_maximum_time() {
        let (mut listener, address) = listener().await;
        let mut caller = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        tokio::time::pause();
        advance(MAX_IDLE - Duration::from_secs(1)).await;
        caller.write_all(b"a").await.unwrap();
        assert_eq!(connection.read_u8().await.unwrap(), b'a');
        advance(MAX_IDLE - Duration::from_secs(1)).await;
        assert!(timeout(Duration::ZERO, connection.read_u8()).await.is_err());
        advance(Duration::from_secs(2)).await;
        let closed = connection.read_u8().await.unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::TimedOut);
    }
}
