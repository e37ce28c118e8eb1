//! Accepts clients within limits, and passes each client to the module `client`.
//!
//! This module reads only two things from clients: the header of the PROXY protocol and the TLS
//! handshake. Each has its own time limit.

mod connected_certificate;
mod first_bytes;
mod handshake_log;
mod proxy_protocol;
mod redirect;
mod tls;

use std::{
    collections::HashSet,
    future::poll_fn,
    io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use futures_util::future::{BoxFuture, FutureExt as _, OptionFuture};
use rustix::net::sockopt::{set_ipv6_v6only, set_tcp_nodelay};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host},
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsStream, rustls::pki_types::UnixTime};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    client::{Newcomer, Peer, Shared, serve},
    limits::{ClientLimit, Eviction, EvictionReason, Heavy, ListenerPermits},
    observe::close,
    runtime::OccasionalLog,
};
use seawall_transport::{Sharer, Stream, keep_clients_alive, peer_has_left};
use seawall_wire::Compressor;

use self::{
    connected_certificate::{ConnectedCertificate, until_refused},
    proxy_protocol::{WaitingPlace, read_header},
    redirect::original_destination,
    tls::begins_with_tls,
};
pub(crate) use self::{
    handshake_log::HandshakeLog,
    proxy_protocol::{MAX_WAITING, WaitingPlaces},
    tls::{ClientCertificates, ClientTls, FailedHandshake, TlsSettings},
};
pub use self::{
    proxy_protocol::{ProxyProtocol, parse as parse_proxy_header},
    tls::ServerTlsError,
};

/// Time limit for a TLS handshake. It is the longest default `connectTimeoutMS` of drivers. While
/// operations use all cores, handshakes may wait for many seconds in a storm.
pub(crate) const TLS_LIMIT: Duration = Duration::from_secs(30);

/// Pause after a failed accept. An accept fails, for example, when file descriptors or memory run
/// out.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A host and a port, separated by a colon.
    Tcp(String),
    /// The path of a unix domain socket. The socket's file is created when Seawall starts and
    /// removed when Seawall ends.
    Unix(PathBuf),
}

/// A socket that is ready to accept clients.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A unix domain socket and its file.
    Unix(UnixListener, SocketFile),
    /// A unix domain socket whose file belongs to another process.
    InheritedUnix(UnixListener),
}

/// A socket that another process, usually the service manager, has bound and passed to Seawall.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The name of the socket; empty if it has none.
    pub name: String,
    /// The bound socket.
    pub socket: InheritedSocket,
}

/// A socket that another process has bound.
#[derive(Debug)]
pub(crate) enum InheritedSocket {
    /// A TCP socket.
    Tcp(std::net::TcpListener),
    /// A unix domain socket. Its file is not removed when Seawall ends.
    Unix(std::os::unix::net::UnixListener),
}

/// The file of a unix domain socket. Dropping this value removes the file, unless another process
/// has replaced the file.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The file's device and inode; `None` if they could not be read.
    id: Option<(u64, u64)>,
}

impl SocketFile {
    fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            id: file_id(path),
        }
    }
}

fn file_id(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.id.is_some() && self.id == file_id(&self.path) {
            // The error is ignored: a file that stays does no harm, because the next start removes
            // a socket that has no listener.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

impl Listener {
    /// Binds every address that a host name resolves to, or one unix socket. With `only_ipv6`, IPv6
    /// sockets do not accept IPv4 connections. Otherwise the system decides whether the address for
    /// all hosts, `[::]`, also includes IPv4.
    ///
    /// # Errors
    /// The name is unknown, the address is in use, the address is not local, or the path of the
    /// unix socket belongs to a file that is not a socket.
    pub(crate) async fn bind(
        address: &Address,
        backlog: u32,
        only_ipv6: bool,
    ) -> io::Result<Vec<Self>> {
        match address {
            Address::Unix(path) => {
                remove_stale_socket(path).await?;
                let listener = UnixListener::bind(path)?;
                Ok(vec![Self::Unix(listener, SocketFile::at(path))])
            }
            Address::Tcp(text) => {
                let (mut listeners, mut bound) = (Vec::new(), HashSet::new());
                for address in lookup_host(text).await? {
                    // A name may resolve to the same address twice.
                    if !bound.insert(address) {
                        continue;
                    }
                    let socket = match address {
                        SocketAddr::V4(_) => TcpSocket::new_v4()?,
                        SocketAddr::V6(_) => TcpSocket::new_v6()?,
                    };
                    if only_ipv6 && address.is_ipv6() {
                        set_ipv6_v6only(&socket, true)?;
                    }
                    socket.set_reuseaddr(true)?;
                    // Accepted connections inherit the keepalive options and `TCP_NODELAY`.
                    keep_clients_alive(&socket)?;
                    socket.set_nodelay(true)?;
                    socket.bind(address)?;
                    listeners.push(Self::Tcp(socket.listen(backlog)?));
                }
                Ok(listeners)
            }
        }
    }

    /// Takes over a socket that another process has bound. Must be called on the runtime of the
    /// data plane, because the socket belongs to the runtime on which it is created.
    ///
    /// # Errors
    /// The system refuses a socket option.
    pub(crate) fn adopt(inherited: InheritedSocket) -> io::Result<Self> {
        match inherited {
            InheritedSocket::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                keep_clients_alive(&listener)?;
                set_tcp_nodelay(&listener, true)?;
                TcpListener::from_std(listener).map(Self::Tcp)
            }
            InheritedSocket::Unix(listener) => {
                listener.set_nonblocking(true)?;
                UnixListener::from_std(listener).map(Self::InheritedUnix)
            }
        }
    }

    /// The address of the listener: IP address and port, or the path of a unix socket. Empty if
    /// the address is unknown.
    pub(crate) fn local_address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| String::new(), |address| address.to_string()),
            Self::Unix(_, file) => file.path.display().to_string(),
            Self::InheritedUnix(listener) => path_of(listener),
        }
    }

    async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Accepted::Tcp(stream), Peer::at(address)))
            }
            Self::Unix(listener, _) | Self::InheritedUnix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer {
                    ip: None,
                    text: format!("anonymous unix socket:{}", self.local_address()).into(),
                };
                Ok((Accepted::Plain(Stream::Unix(stream)), peer))
            }
        }
    }
}

/// The path of a unix socket; empty if it has none.
fn path_of(listener: &UnixListener) -> String {
    let address = listener.local_addr().ok();
    let path = address.as_ref().and_then(|address| address.as_pathname());
    path.map_or_else(String::new, |path| path.display().to_string())
}

/// Removes the file of a unix socket if no process listens on the socket.
///
/// # Errors
/// Another process listens on the socket, or the file is not a socket. The file is kept.
async fn remove_stale_socket(path: &Path) -> io::Result<()> {
    // A symbolic link is not followed, so the link counts as a file that is not a socket.
    let file_type = match tokio::fs::symlink_metadata(path).await {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !file_type.is_socket() {
        let message = format!("{} exists and is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
    }
    match UnixStream::connect(path).await {
        Ok(_) => {
            let message = format!("another process listens on {}", path.display());
            Err(io::Error::new(io::ErrorKind::AddrInUse, message))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tokio::fs::remove_file(path).await
        }
        Err(error) => Err(error),
    }
}

/// An accepted connection, before TLS.
enum Accepted {
    /// A TCP connection, on which TLS may follow.
    Tcp(TcpStream),
    /// A connection over a unix socket, which never uses TLS.
    Plain(Stream),
}

/// Everything that is needed to accept the clients of one listener.
#[derive(Clone)]
pub struct Acceptor {
    /// State that all clients share.
    pub shared: Arc<Shared>,
    /// TLS for clients; `None` if clients connect without TLS.
    pub(crate) tls: watch::Receiver<Option<Arc<ClientTls>>>,
    /// Logs failed TLS handshakes of the listener's clients.
    pub(crate) handshake_log: Arc<HandshakeLog>,
    /// Reads the client's address from load balancers; `None` if clients connect directly.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// Limits the clients of the listener; `None` if only the limit of all clients applies.
    pub permits: Option<ListenerPermits>,
    /// The compressors that the clients of the listener may use.
    pub compressors: Arc<[Compressor]>,
    /// Cancelling this token stops the accept loops.
    pub stop: CancellationToken,
    /// Tracks the tasks that serve clients.
    pub tracker: TaskTracker,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Acceptor")
            .field("tls", &self.tls.borrow().is_some())
            .finish_non_exhaustive()
    }
}

/// Accepts clients until [`Acceptor::stop`] is cancelled. After an error, pauses for a
/// short time and tries again.
pub async fn accept(listener: Listener, acceptor: Acceptor) {
    let failures = OccasionalLog::default();
    loop {
        let accepted = acceptor.stop.run_until_cancelled(listener.accept()).await;
        let Some(accepted) = accepted else { return };
        match accepted {
            Ok((stream, peer)) => {
                admit(&acceptor, stream, peer);
            }
            Err(error) => {
                if let Some(failures) = failures.count(Instant::now()) {
                    tracing::warn!(%error, failures, "could not accept clients");
                }
                sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
}

/// Counts the arrival of a client that has just connected to a listener, and returns the client's
/// permits. `None` if a limit refuses the client; the refusal is counted too.
pub fn newcomer(
    shared: &Shared,
    peer: &Peer,
    permits: Option<&ListenerPermits>,
    compressors: &Arc<[Compressor]>,
) -> Option<Newcomer> {
    let Shared {
        limits, recorder, ..
    } = shared;
    let now = Instant::now();
    shared.arrivals.lateness.expect_soon(now);
    shared.arrivals.activity.record_arrival();
    if let Some(ip) = peer.ip
        && !limits.admits_arrival(ip, now)
    {
        recorder.count_refused_client("address_rate");
        return None;
    }
    let (sharer, eviction) = (Sharer::at(peer.ip), Eviction::default());
    let (client, handshake) = match limits.admit_newcomer(permits, sharer, &eviction) {
        Ok(admitted) => admitted,
        Err(limit) => {
            recorder.count_refused_client(match limit {
                ClientLimit::Listener => "listener_max_client_connections",
                ClientLimit::All => "max_client_connections",
                ClientLimit::Unauthenticated => "unauthenticated_connections",
            });
            return None;
        }
    };
    Some(Newcomer {
        client,
        handshake,
        eviction,
        compressors: Arc::clone(compressors),
    })
}

/// Starts to serve a client. If a load balancer sends the client's address, waits for the address
/// first.
fn admit(acceptor: &Acceptor, stream: Accepted, peer: Peer) {
    let Some(proxies) = &acceptor.proxy_protocol else {
        return admit_client(acceptor, stream, peer);
    };
    // The configuration allows no unix socket on such a listener.
    let (Accepted::Tcp(stream), Some(ip)) = (stream, peer.ip) else {
        return;
    };
    match proxies.admit(ip) {
        Ok(place) => {
            let admitting = admit_proxied(acceptor.clone(), stream, peer, place);
            acceptor.tracker.spawn(admitting);
        }
        Err(refusal) => {
            let reason = refusal.as_str();
            tracing::debug!(peer = %peer.text, reason, "connection refused");
            acceptor.shared.recorder.count_refused_client(reason);
        }
    }
}

/// Reads the client's address from the header of the PROXY protocol, and starts to serve the
/// client.
async fn admit_proxied(acceptor: Acceptor, mut stream: TcpStream, peer: Peer, place: WaitingPlace) {
    let header = read_header(&mut stream);
    // When `stop` is cancelled, Seawall no longer waits for the header.
    let Some(header) = acceptor.stop.run_until_cancelled(header).await else {
        return;
    };
    drop(place);
    let peer = match header {
        Ok(Some(address)) => Peer::at(address),
        Ok(None) => peer,
        // Some load balancers check the health of Seawall with a connection that they close at
        // once. So such an end is not logged, and not counted as a refusal.
        Err(error) if is_departure(&error) => {
            return acceptor.shared.recorder.count_gone_client("connected");
        }
        Err(error) => {
            tracing::debug!(%error, peer = %peer.text, "could not read a header of the PROXY protocol");
            return acceptor
                .shared
                .recorder
                .count_refused_client("proxy_header");
        }
    };
    admit_client(&acceptor, Accepted::Tcp(stream), peer);
}

/// Starts to serve a client. If a limit refuses the client, closes the connection without reading a
/// byte, as a server at its connection limit does.
fn admit_client(acceptor: &Acceptor, stream: Accepted, peer: Peer) {
    let permits = acceptor.permits.as_ref();
    let Some(newcomer) = newcomer(&acceptor.shared, &peer, permits, &acceptor.compressors) else {
        return;
    };
    let eviction = newcomer.eviction.clone();
    let recorder = Arc::clone(&acceptor.shared.recorder);
    // The task holds only a pointer to the future of the handshake, and later to the future that
    // serves the client. So the memory of the TLS handshake is freed as soon as the handshake has
    // ended.
    let prepared = Box::pin(prepare(acceptor.clone(), stream, peer, newcomer));
    let mut served = prepared.then(OptionFuture::from);
    acceptor.tracker.spawn(async move {
        let evicted = poll_fn(|cx| match served.poll_unpin(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => eviction.poll(cx).map(Some),
        });
        let Some(reason) = evicted.await else { return };
        close(served);
        if reason == EvictionReason::GaveWay {
            recorder.count_refused_client("gave_way");
        }
    });
}

/// Performs the TLS handshake with a client, if the listener uses TLS. Returns the future that
/// serves the client, or `None` if the connection has ended.
async fn prepare(
    mut acceptor: Acceptor,
    stream: Accepted,
    peer: Peer,
    newcomer: Newcomer,
) -> Option<BoxFuture<'static, ()>> {
    let asks = acceptor.shared.settings().original_destination;
    let original = match &stream {
        Accepted::Tcp(stream) if asks => original_destination(stream),
        Accepted::Tcp(_) | Accepted::Plain(_) => None,
    };
    // The TLS configuration is marked as seen, so that the client's certificate is verified again
    // only by later configurations.
    let tls = acceptor.tls.borrow_and_update().clone();
    let verified = tls.as_ref().and_then(|tls| tls.connected().cloned());
    let stream = match (stream, tls) {
        (Accepted::Plain(stream), _) => stream,
        (Accepted::Tcp(stream), None) => Stream::Tcp(stream),
        (Accepted::Tcp(stream), Some(tls)) => secure(&acceptor, tls, stream, &peer).await?,
    };
    let chain = stream.peer_certificates();
    let certificate = (!chain.is_empty()).then(|| ConnectedCertificate {
        chain: chain.into(),
        since: UnixTime::now(),
        verified,
    });
    let Acceptor { shared, tls, .. } = acceptor;
    let sharer = Sharer::at(peer.ip);
    let common = Arc::clone(&shared);
    let served = serve(shared, stream, peer, newcomer, original);
    let Some(certificate) = certificate else {
        return Some(served);
    };
    Some(Box::pin(async move {
        let mut served = served;
        tokio::select! {
            () = &mut served => {}
            () = until_refused(&common.limits, sharer, tls, certificate) => {
                close(served);
                common.recorder.count_refused_client("certificate_refused");
            }
        }
    }))
}

/// Performs the TLS handshake with a client within its time limit. `None` if the handshake has
/// failed. Each failure is counted. It is also logged, unless the client has disconnected or the
/// time limit has passed.
async fn secure(
    acceptor: &Acceptor,
    tls: Arc<ClientTls>,
    stream: TcpStream,
    peer: &Peer,
) -> Option<Stream> {
    let (shared, log) = (&acceptor.shared, &acceptor.handshake_log);
    let heavy = shared.limits.heavy(Sharer::at(peer.ip));
    let beginning = begin_tls(tls, acceptor.tls.clone(), stream, heavy);
    match timeout(TLS_LIMIT, Box::pin(beginning)).await {
        Ok(Ok(Some(stream))) => return Some(stream),
        Ok(Ok(None)) => shared.recorder.count_gone_client("tls"),
        Ok(Err(failed)) if is_departure(failed.error()) => {
            shared.recorder.count_gone_client("tls");
        }
        Ok(Err(failed)) => {
            log.record(failed.error(), peer);
            shared.recorder.count_refused_client("tls");
            failed.close().await;
        }
        Err(_) => shared.recorder.count_refused_client("tls_timeout"),
    }
    None
}

/// True if a handshake, or the read of a header, failed because the client has disconnected.
fn is_departure(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let kind = error.kind();
    matches!(
        kind,
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
    )
}

/// Performs the TLS handshake. A client that begins without TLS is served without it, if the
/// configuration allows this. `None` if the client has disconnected. `current` has the
/// configuration in use, which a reload may change while the client is silent.
async fn begin_tls(
    tls: Arc<ClientTls>,
    current: watch::Receiver<Option<Arc<ClientTls>>>,
    stream: TcpStream,
    heavy: Heavy<'_>,
) -> Result<Option<Stream>, FailedHandshake> {
    if peer_has_left(&stream) {
        return Ok(None);
    }
    if tls.allows_plain() && !begins_with_tls(&stream).await? {
        let now = current.borrow().clone();
        if now.is_none_or(|now| now.allows_plain()) {
            return Ok(Some(Stream::Tcp(stream)));
        }
    }
    let stream = tls.accept(current, stream, heavy).await?;
    Ok(stream.map(|stream| TlsStream::Server(stream).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unique path in the system's temporary folder. Dropping it removes the file.
    struct TempPath(PathBuf);

    impl TempPath {
        fn new(name: &str) -> Self {
            let name = format!("seawall-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        async fn bind(&self) -> io::Result<Vec<Listener>> {
            Listener::bind(&Address::Unix(self.0.clone()), 16, false).await
        }
    }

    impl Drop for TempPath {
        fn drop(&mut self) {
            drop(std::fs::remove_file(&self.0));
        }
    }

    #[tokio::test]
    async fn bind_replaces_a_stale_socket() {
        let path = TempPath::new("stale");
        drop(std::os::unix::net::UnixListener::bind(&path.0).unwrap());
        assert!(path.0.exists());
        assert_eq!(path.bind().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_dropped_listener_removes_only_its_own_socket_file() {
        let path = TempPath::new("ended");
        let listeners = path.bind().await.unwrap();
        drop(listeners);
        assert!(!path.0.exists());
        let listeners = path.bind().await.unwrap();
        // Another process replaces the socket.
        std::fs::remove_file(&path.0).unwrap();
        let _next = std::os::unix::net::UnixListener::bind(&path.0).unwrap();
        drop(listeners);
        assert!(path.0.exists());
    }

    #[tokio::test]
    async fn bind_keeps_a_regular_file_and_names_it_in_the_error() {
        let path = TempPath::new("file");
        std::fs::write(&path.0, "precious").unwrap();
        let error = path.bind().await.unwrap_err();
        assert!(
            error.to_string().contains(path.0.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&path.0).unwrap(), "precious");
    }

    #[tokio::test]
    async fn bind_keeps_a_symbolic_link() {
        let (path, target) = (TempPath::new("link"), TempPath::new("target"));
        drop(std::os::unix::net::UnixListener::bind(&target.0).unwrap());
        std::os::unix::fs::symlink(&target.0, &path.0).unwrap();
        assert!(path.bind().await.is_err());
        assert!(target.0.exists() && path.0.is_symlink());
    }

    #[tokio::test]
    async fn bind_keeps_a_socket_in_use_and_names_it_in_the_error() {
        let path = TempPath::new("used");
        let _first = path.bind().await.unwrap();
        let error = path.bind().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(
            error.to_string().contains(path.0.to_str().unwrap()),
            "{error}"
        );
        assert!(UnixStream::connect(&path.0).await.is_ok());
    }
}
