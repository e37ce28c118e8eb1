//! A listener for HTTP with a maximum number of connections. If a caller connects while the maximum
//! is reached, [`accept`] evicts (closes) a connection of the address with the most connections. If
//! no address has at least two connections more than the caller's address, `accept` closes the new
//! connection instead. So one address cannot lock out others, for example health checks. An evicted
//! connection is closed even while the handler of its request still runs, because eviction wakes
//! the connection's task. A connection is also evicted if the replies that callers have not read
//! yet are too large together. A connection on which nothing is read or written for some time is
//! closed too. While a caller does not read its replies, Seawall reads nothing from it. While a
//! caller performs its TLS handshake, the listener accepts further connections.

use std::{
    fmt,
    future::poll_fn,
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
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{Instant, Sleep, sleep},
};

use super::sockets::Sockets;
use crate::limits::{EvictablePermit, EvictablePermits, Eviction};
use seawall_transport::{Sharer, Stream};

/// Maximum number of connections to one HTTP listener. At its start, Seawall reserves file
/// descriptors for the [`MAX_SOCKETS`] sockets of two listeners.
const MAX_CONNECTIONS: usize = 64;

/// Maximum number of sockets of one HTTP listener. It leaves room for [`MAX_CONNECTIONS`], and for
/// eight evicted connections that are not closed yet. Further connections wait in the kernel.
const MAX_SOCKETS: usize = MAX_CONNECTIONS + 8;

/// A connection on which nothing is read or written for this time is closed. Writes count too,
/// because a caller of an event stream sends nothing. The time is longer than the usual interval of
/// scrapes, so that scrapers can keep their connections. It is also longer than a reload, including
/// the wait for earlier reloads, so that the caller gets the reply.
const MAX_IDLE: Duration = Duration::from_secs(120);

/// Maximum bytes of replies that wait until their callers read them, for all connections of one
/// HTTP listener together. A scrape has up to 6 MB, and a list of shapes has more.
const MAX_UNREAD_BYTES: usize = 64 << 20;

/// Performs the TLS handshake of a caller within a time limit. Without TLS, there is no handshake.
pub(crate) type Handshake = Arc<dyn Fn(TcpStream, SocketAddr) -> Handshaking + Send + Sync>;

/// A handshake in progress. If the handshake fails, this future logs the failure and returns
/// `None`.
type Handshaking = Pin<Box<dyn Future<Output = Option<Admitted>> + Send>>;

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) struct Admitted {
    /// The connection's byte stream, after decryption if the caller uses TLS.
    pub(crate) stream: Stream,
    /// The caller's certificate; `None` if the caller sent none.
    pub(crate) certificate: Option<Certificate>,
}

/// The certificate of a caller. It was valid at the time of the handshake.
pub(crate) struct Certificate {
    /// The subject, which identifies the caller in the log.
    pub(crate) subject: String,
    /// True if a new handshake with the certificate would succeed now.
    pub(crate) is_valid: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Certificate").field(&self.subject).finish()
    }
}

/// A listener with a maximum number of connections, which all sockets of an HTTP address share.
pub(super) struct BoundedListener {
    listener: Sockets,
    permits: Arc<EvictablePermits>,
    sockets: Arc<Semaphore>,
    unread: Arc<Semaphore>,
    handshake: Option<Handshake>,
    handshakes: JoinSet<Option<(Connection, SocketAddr)>>,
}

impl BoundedListener {
    /// Creates the listener. Without a `handshake`, callers connect without TLS.
    pub(super) fn new(listener: Sockets, handshake: Option<Handshake>) -> Self {
        Self {
            listener,
            permits: EvictablePermits::new(MAX_CONNECTIONS),
            sockets: Arc::new(Semaphore::new(MAX_SOCKETS)),
            unread: Arc::new(Semaphore::new(MAX_UNREAD_BYTES)),
            handshake,
            handshakes: JoinSet::new(),
        }
    }
}

/// The permits of a connection. `eviction` signals that the connection was evicted: `permit` was
/// given to another connection, or too many bytes of replies wait until their callers read them.
#[derive(Debug)]
struct ConnectionPermits {
    permit: EvictablePermit,
    /// One of [`MAX_SOCKETS`] permits. An evicted connection keeps this permit until its socket is
    /// closed. `None` only if the semaphore is closed, which does not happen.
    _socket: Option<OwnedSemaphorePermit>,
    /// One permit for each byte that may wait (see [`MAX_UNREAD_BYTES`]).
    unread: Arc<Semaphore>,
    eviction: Eviction,
}

/// Accepts a connection. At the maximum number of connections, closes the oldest connection of the
/// address with the most connections. If no address has at least two connections more than the
/// address of the new connection, closes the new connection instead.
async fn accept(
    listener: &mut Sockets,
    permits: &Arc<EvictablePermits>,
    sockets: &Arc<Semaphore>,
    unread: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, ConnectionPermits) {
    loop {
        let socket = Arc::clone(sockets).acquire_owned().await;
        let (stream, address) = Listener::accept(listener).await;
        let eviction = Eviction::default();
        let sharer = Sharer::at(Some(address.ip()));
        if let Some(permit) = permits.admit_evicting_oldest(sharer, &eviction) {
            let place = ConnectionPermits {
                permit,
                _socket: socket.ok(),
                unread: Arc::clone(unread),
                eviction,
            };
            return (stream, address, place);
        }
    }
}

impl Listener for BoundedListener {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let (stream, address, place) = tokio::select! {
                Some(ended) = self.handshakes.join_next() => match ended {
                    Ok(Some(accepted)) => return accepted,
                    Ok(None) => continue,
                    Err(error) => {
                        tracing::debug!(%error, "task of a TLS handshake failed");
                        continue;
                    }
                },
                accepted = accept(
                    &mut self.listener,
                    &self.permits,
                    &self.sockets,
                    &self.unread,
                ) => accepted,
            };
            let Some(handshake) = &self.handshake else {
                let connection = Connection::new(Stream::Tcp(stream), None, place);
                return (connection, address);
            };
            let handshake = handshake(stream, address);
            self.handshakes.spawn(async move {
                let evicted = poll_fn(|cx| place.eviction.poll(cx));
                let Admitted {
                    stream,
                    certificate,
                } = tokio::select! {
                    admitted = handshake => admitted?,
                    _ = evicted => return None,
                };
                Some((Connection::new(stream, certificate, place), address))
            });
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// The caller at the other end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    /// True if the connection uses TLS.
    pub(super) is_encrypted: bool,
    /// The caller's certificate; `None` if the caller sent none.
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl Connected<IncomingStream<'_, BoundedListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, BoundedListener>) -> Self {
        Self {
            address: *stream.remote_addr(),
            is_encrypted: stream.io().is_encrypted(),
            certificate: stream.io().certificate.clone(),
        }
    }
}

/// One connection, with the timer that closes it after [`MAX_IDLE`].
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    certificate: Option<Arc<Certificate>>,
    idle: Pin<Box<Sleep>>,
    place: ConnectionPermits,
    /// True if the last write must wait until the caller reads.
    is_write_blocked: bool,
    /// Size in bytes of the reply that is being written; 0 if no reply is being written.
    reply_bytes: usize,
    /// True if the reply that is being written had to wait until the caller reads.
    is_held: bool,
    /// The permits for the bytes of the held reply. `None` if no reply is held, or if there were
    /// too few permits and another connection was closed instead.
    unread: Option<OwnedSemaphorePermit>,
}

impl Connection {
    fn new(stream: Stream, certificate: Option<Certificate>, place: ConnectionPermits) -> Self {
        Self {
            stream,
            certificate: certificate.map(Arc::new),
            idle: Box::pin(sleep(MAX_IDLE)),
            place,
            is_write_blocked: false,
            reply_bytes: 0,
            is_held: false,
            unread: None,
        }
    }

    fn is_encrypted(&self) -> bool {
        matches!(self.stream, Stream::Tls { .. })
    }

    /// Fails if this connection was evicted (see [`ConnectionPermits`]).
    fn check_permit(&self, cx: &Context<'_>) -> io::Result<()> {
        match self.place.eviction.poll(cx) {
            Poll::Ready(_) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }

    /// Passes on the result of a read or a write. Fails if this connection was evicted, or if
    /// nothing has been read or written for [`MAX_IDLE`].
    fn progress<T>(
        &mut self,
        result: Poll<io::Result<T>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        self.check_permit(cx)?;
        if result.is_ready() {
            self.idle.as_mut().reset(Instant::now() + MAX_IDLE);
            return result;
        }
        let is_idle = self.idle.as_mut().poll(cx);
        is_idle.map(|()| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Passes on the result of a write. The write tried to write `bytes` bytes: the part of the
    /// reply that earlier writes have not written. While the write waits until the caller reads,
    /// nothing is read from the connection.
    fn note_write(
        &mut self,
        bytes: usize,
        written: Poll<io::Result<usize>>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.reply_bytes = self.reply_bytes.max(bytes);
        match &written {
            Poll::Ready(Ok(count)) if *count == bytes => {
                self.reply_bytes = 0;
                self.is_held = false;
                self.unread = None;
            }
            Poll::Pending if !self.is_held => self.hold_reply()?,
            _ => {}
        }
        if self.is_write_blocked && written.is_ready() {
            // A read may wait for the end of this write, so the task is woken.
            cx.waker().wake_by_ref();
        }
        self.is_write_blocked = written.is_pending();
        self.progress(written, cx)
    }

    /// Counts the bytes of a reply that waits until its caller reads. If too many bytes of all
    /// replies wait, closes the oldest connection of the address with the most connections. Fails
    /// instead if no address has at least two connections more than the caller's address.
    fn hold_reply(&mut self) -> io::Result<()> {
        self.is_held = true;
        let bytes = self.reply_bytes.min(MAX_UNREAD_BYTES);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.unread = Arc::clone(&self.place.unread)
            .try_acquire_many_owned(bytes)
            .ok();
        match self.unread.is_some() || self.place.permit.evict_other() {
            true => Ok(()),
            false => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A handler may not read the body of its request. The HTTP server (hyper) then reads the
        // next request, even if the earlier reply is not written yet. So without this check, a
        // caller that reads nothing could fill the memory with replies.
        if self.is_write_blocked {
            return self.progress(Poll::Pending, cx);
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.progress(read, cx)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.note_write(bytes.len(), written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.note_write(bytes, written, cx)
    }

    /// If this were false, the HTTP server (hyper) would copy each reply to a buffer. The buffer
    /// would keep the size of the largest reply until the connection is closed.
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Eviction wakes the connection's task. While the task waits for a handler, it neither
        // reads nor writes, but it flushes each time it runs. So this check ends the connection.
        self.check_permit(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::future::join;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, split},
        net::TcpSocket,
        time::{advance, timeout},
    };

    use super::*;
    use crate::admin::RELOAD_WAIT_LIMIT;

    async fn listener() -> (BoundedListener, SocketAddr) {
        let bound = Sockets::bind("127.0.0.1:0", "admin.address").await;
        let listener = bound.unwrap();
        let address = listener.local_addr().unwrap();
        (BoundedListener::new(listener, None), address)
    }

    /// Connects from the loopback address 127.0.0.`last`.
    async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, last], 0).into()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// A listener that admits at most two connections and has two from the address 127.0.0.2. Also
    /// returns both ends of these connections.
    async fn full_listener() -> (BoundedListener, SocketAddr, [Connection; 2], [TcpStream; 2]) {
        let (mut listener, address) = listener().await;
        listener.permits = EvictablePermits::new(2);
        let callers = [
            connect_from(2, address).await,
            connect_from(2, address).await,
        ];
        let accepted = [listener.accept().await.0, listener.accept().await.0];
        (listener, address, accepted, callers)
    }

    #[tokio::test]
    async fn an_address_that_holds_all_connections_loses_one_to_another_address() {
        let (mut listener, address, [mut first, mut second], _greedy) = full_listener().await;
        // The address 127.0.0.2 has all connections, so its third connection is closed.
        let mut third = connect_from(2, address).await;
        let _other = connect_from(1, address).await;
        let (_, from) = listener.accept().await;
        assert_eq!(from.ip(), Ipv4Addr::new(127, 0, 0, 1));
        assert_eq!(third.read(&mut [0]).await.unwrap(), 0);
        let evicted = first.read_u8().await.unwrap_err();
        assert_eq!(evicted.kind(), io::ErrorKind::ConnectionAborted);
        assert!(timeout(Duration::ZERO, second.read_u8()).await.is_err());
    }

    #[tokio::test]
    async fn an_evicted_connection_fails_at_its_next_flush() {
        let (mut listener, address, [mut first, mut second], _greedy) = full_listener().await;
        let _other = connect_from(1, address).await;
        let _accepted = listener.accept().await;
        let evicted = first.flush().await.unwrap_err();
        assert_eq!(evicted.kind(), io::ErrorKind::ConnectionAborted);
        second.flush().await.unwrap();
    }

    #[tokio::test]
    async fn a_slow_handshake_does_not_delay_other_callers() {
        let (mut listener, address) = listener().await;
        let slow = Arc::new(Semaphore::new(0));
        let held = Arc::clone(&slow);
        listener.handshake = Some(Arc::new(move |stream, address: SocketAddr| {
            let held = Arc::clone(&held);
            Box::pin(async move {
                // The first byte from the caller selects a slow, a failing or a normal handshake.
                let mut first = [0];
                stream.peek(&mut first).await.unwrap();
                match first {
                    [b's'] => drop(held.acquire().await),
                    [b'f'] => return None,
                    _ => {}
                }
                let subject = address.port().to_string();
                Some(Admitted {
                    stream: Stream::Tcp(stream),
                    certificate: Some(Certificate {
                        subject,
                        is_valid: Box::new(|| true),
                    }),
                })
            })
        }));
        let mut callers = Vec::new();
        for first in [b"s", b"f", b"q"] {
            let mut caller = TcpStream::connect(address).await.unwrap();
            caller.write_all(first).await.unwrap();
            callers.push(caller);
        }
        let quick = listener.accept().await;
        let [slow_caller, _, quick_caller] = callers.as_slice() else {
            panic!("expected three callers");
        };
        let subject = |(connection, _): &(Connection, SocketAddr)| {
            connection.certificate.as_ref().unwrap().subject.clone()
        };
        let port = |caller: &TcpStream| caller.local_addr().unwrap().port().to_string();
        assert_eq!(subject(&quick), port(quick_caller));
        slow.add_permits(1);
        assert_eq!(subject(&listener.accept().await), port(slow_caller));
    }

    #[tokio::test]
    async fn a_connection_is_closed_after_the_maximum_idle_time() {
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

    #[tokio::test]
    async fn a_connection_stays_open_while_its_caller_waits_for_a_long_reload() {
        let (mut listener, address) = listener().await;
        let _caller = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        tokio::time::pause();
        // A reload waits for earlier reloads, and then takes about a minute.
        advance(RELOAD_WAIT_LIMIT + Duration::from_secs(65)).await;
        assert!(timeout(Duration::ZERO, connection.read_u8()).await.is_err());
    }

    #[tokio::test]
    async fn a_connection_whose_caller_reads_nothing_is_closed_after_the_maximum_idle_time() {
        let (mut listener, address) = listener().await;
        let _caller = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        tokio::time::pause();
        let bytes = vec![0; 1 << 20];
        let closed = loop {
            if let Err(error) = connection.write_all(&bytes).await {
                break error;
            }
        };
        assert_eq!(closed.kind(), io::ErrorKind::TimedOut);
    }

    /// Writes until a write waits for the caller or fails. Returns the error.
    async fn fill(connection: &mut Connection) -> Option<io::ErrorKind> {
        let bytes = vec![0; 1 << 20];
        loop {
            match timeout(Duration::from_millis(50), connection.write(&bytes)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Some(error.kind()),
                Err(_) => return None,
            }
        }
    }

    #[tokio::test]
    async fn too_many_unread_bytes_close_a_connection_of_the_address_with_the_most_connections() {
        let (mut listener, address) = listener().await;
        listener.unread = Arc::new(Semaphore::new(0));
        let (mut callers, mut greedy) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            callers.push(connect_from(2, address).await);
            greedy.push(listener.accept().await.0);
        }
        callers.push(connect_from(1, address).await);
        let (mut other, _) = listener.accept().await;
        assert_eq!(fill(&mut other).await, None);
        let evicted = greedy[0].read_u8().await.unwrap_err();
        assert_eq!(evicted.kind(), io::ErrorKind::ConnectionAborted);
        // Now 127.0.0.2 itself has the most connections, so its connection that writes is closed.
        let refused = fill(&mut greedy[1]).await;
        assert_eq!(refused, Some(io::ErrorKind::ConnectionAborted));
        assert!(timeout(Duration::ZERO, greedy[2].read_u8()).await.is_err());
    }

    #[tokio::test]
    async fn a_reply_counts_as_unread_until_its_caller_has_read_it() {
        let (mut listener, address) = listener().await;
        let mut caller = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        assert_eq!(fill(&mut connection).await, None);
        let unread = Arc::clone(&listener.unread);
        assert_eq!(unread.available_permits(), MAX_UNREAD_BYTES - (1 << 20));
        let mut bytes = vec![0; 1 << 20];
        while let Ok(read) = timeout(Duration::from_millis(50), caller.read(&mut bytes)).await {
            assert!(read.unwrap() > 0);
        }
        connection.write_all(b"a").await.unwrap();
        assert_eq!(unread.available_permits(), MAX_UNREAD_BYTES);
    }

    #[tokio::test]
    async fn the_pieces_of_a_reply_are_written_with_one_call() {
        let (mut listener, address) = listener().await;
        let mut caller = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        assert!(connection.is_write_vectored());
        let pieces = [io::IoSlice::new(b"head "), io::IoSlice::new(b"body")];
        assert_eq!(connection.write_vectored(&pieces).await.unwrap(), 9);
        let mut read = [0; 9];
        caller.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"head body");
    }

    #[tokio::test]
    async fn a_connection_reads_nothing_while_a_write_waits_for_its_caller() {
        const QUIET: Duration = Duration::from_millis(50);
        let (mut listener, address) = listener().await;
        let mut caller = TcpStream::connect(address).await.unwrap();
        let (mut connection, _) = listener.accept().await;
        caller.write_all(b"a").await.unwrap();
        let mut bytes = vec![0; 1 << 20];
        while let Ok(written) = timeout(QUIET, connection.write(&bytes)).await {
            assert!(written.unwrap() > 0);
        }
        assert!(timeout(QUIET, connection.read_u8()).await.is_err());
        while let Ok(read) = timeout(QUIET, caller.read(&mut bytes)).await {
            assert!(read.unwrap() > 0);
        }
        // The read waits for the write, which can end now.
        let (mut reader, mut writer) = split(connection);
        let both = join(reader.read_u8(), writer.write_all(b"b"));
        let (read, written) = timeout(Duration::from_secs(10), both).await.unwrap();
        written.unwrap();
        assert_eq!(read.unwrap(), b'a');
    }
}
