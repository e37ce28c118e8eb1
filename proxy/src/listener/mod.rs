//! The door: accepts clients, within bounds, and hands each to `client`.
//!
//! Does not look at a byte of theirs but for the TLS handshake, which has a deadline of its own.

mod tls;

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream, lookup_host},
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    client::{Newcomer, Peer, Shared, serve, serve_relayed},
    limits::Eviction,
    wire::{Sharer, Stream, keep_clients_alive, peer_has_left},
};

pub use self::tls::{ServerTlsError, server_config};

/// How long a TLS handshake may take.
const TLS_LIMIT: Duration = Duration::from_secs(10);

/// Pause after an accept that failed for want of descriptors or memory.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(50);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Host and port.
    Tcp(String),
    /// A unix domain socket, made anew and removed at the end.
    Unix(PathBuf),
}

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix domain socket and its path.
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // Nothing else can be done about a socket file that is gone already.
            drop(std::fs::remove_file(path));
        }
    }
}

impl Listener {
    /// Binds every address that a name stands for, or one unix socket.
    ///
    /// # Errors
    /// If the name is unknown, or the address in use or not ours.
    pub async fn bind(address: &Address, backlog: u32) -> io::Result<Vec<Self>> {
        match address {
            Address::Unix(path) => {
                remove_stale_socket(path).await?;
                Ok(vec![Self::Unix(UnixListener::bind(path)?, path.clone())])
            }
            Address::Tcp(text) => {
                let mut listeners = Vec::new();
                for address in lookup_host(text).await? {
                    let socket = match address {
                        SocketAddr::V4(_) => TcpSocket::new_v4()?,
                        SocketAddr::V6(_) => TcpSocket::new_v6()?,
                    };
                    socket.set_reuseaddr(true)?;
                    // What is accepted has it too.
                    keep_clients_alive(&socket)?;
                    socket.set_nodelay(true)?;
                    socket.bind(address)?;
                    listeners.push(Self::Tcp(socket.listen(backlog)?));
                }
                Ok(listeners)
            }
        }
    }

    /// Where it listens, as a connection string names it.
    pub fn local_address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| String::new(), |address| address.to_string()),
            Self::Unix(_, path) => path.display().to_string(),
        }
    }

    async fn accept(&self) -> io::Result<(Accepted, Peer)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let peer = Peer {
                    ip: Some(address.ip().to_canonical()),
                    text: address.to_string(),
                };
                Ok((Accepted::Tcp(stream), peer))
            }
            Self::Unix(listener, path) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer {
                    ip: None,
                    text: format!("anonymous unix socket:{}", path.display()),
                };
                Ok((Accepted::Plain(Stream::Unix(stream)), peer))
            }
        }
    }
}

/// Removes a socket that a process has left behind: one on which no process listens any more. Anything else at that
/// path stays, and is an error.
async fn remove_stale_socket(path: &Path) -> io::Result<()> {
    // Not of what a symbolic link points to.
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

enum Accepted {
    Tcp(TcpStream),
    Plain(Stream),
}

/// Where a client connected to before it was redirected here, or `None` if it was not (`SO_ORIGINAL_DST`).
#[cfg(target_os = "linux")]
fn original_destination(stream: &TcpStream) -> Option<SocketAddr> {
    use rustix::net::sockopt::{ip_original_dst, ipv6_original_dst};
    let here = stream.local_addr().ok()?;
    // Without the kernel's connection tracking there is no such option, and nothing was redirected.
    let here = SocketAddr::new(here.ip().to_canonical(), here.port());
    let original = match here {
        SocketAddr::V4(_) => ip_original_dst(stream).map(SocketAddr::V4),
        SocketAddr::V6(_) => ipv6_original_dst(stream).map(SocketAddr::V6),
    };
    original.ok().filter(|original| *original != here)
}

#[cfg(not(target_os = "linux"))]
fn original_destination(_: &TcpStream) -> Option<SocketAddr> {
    None
}

/// What the door needs to know.
#[derive(Clone)]
pub struct Door {
    /// What clients share.
    pub shared: Arc<Shared>,
    /// TLS towards clients, if they have to use it.
    pub tls: Option<TlsAcceptor>,
    /// Ends the accepting.
    pub stop: CancellationToken,
    /// The share of clients to be closed, in percent; rises when draining is over.
    pub closing: watch::Receiver<u32>,
    /// The clients' tasks.
    pub tracker: TaskTracker,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door")
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}

/// Accepts until stopped.
pub async fn accept(listener: Listener, door: Door) {
    let mut number: u32 = 0;
    loop {
        let accepted = door.stop.run_until_cancelled(listener.accept()).await;
        let Some(accepted) = accepted else { return };
        match accepted {
            Ok((stream, peer)) => {
                number = number.wrapping_add(1);
                admit(&door, stream, peer, number);
            }
            Err(error) => {
                tracing::warn!(%error, "client not accepted");
                sleep(PAUSE_AFTER_FAILURE).await;
            }
        }
    }
}

/// The places of a client that has just connected; `None` if it is refused.
pub fn newcomer(shared: &Shared, peer: &Peer) -> Option<Newcomer> {
    let Shared {
        limits, observer, ..
    } = shared;
    if let Some(ip) = peer.ip
        && !limits.admits_arrival(ip, Instant::now())
    {
        observer.client_refused("address_rate");
        return None;
    }
    let (sharer, eviction) = (Sharer::at(peer.ip), Eviction::default());
    let Some(client) = limits.admit_client(sharer, &eviction) else {
        observer.client_refused("max_client_connections");
        return None;
    };
    let Some(handshake) = limits.admit_handshake(sharer, &eviction) else {
        observer.client_refused("unauthenticated_connections");
        return None;
    };
    Some(Newcomer {
        client,
        handshake,
        eviction,
    })
}

/// Begins to serve a client, or closes its connection before its first byte, as a server without free places does.
fn admit(door: &Door, stream: Accepted, peer: Peer, number: u32) {
    let Some(newcomer) = newcomer(&door.shared, &peer) else {
        return;
    };
    let eviction = newcomer.eviction.clone();
    let mut closing = door.closing.clone();
    // Pinned outside the task: moved into it, it would take its place twice for the connection's whole life.
    let mut served = Box::pin(serve_accepted(door.clone(), stream, peer, newcomer));
    let observer = Arc::clone(&door.shared.observer);
    door.tracker.spawn(async move {
        tokio::select! {
            () = &mut served => {}
            () = eviction.wait() => observer.client_refused("gave_way"),
            // Spread out: each has its place among a hundred.
            _ = closing.wait_for(|percent| *percent > number % 100) => {}
        }
    });
}

async fn serve_accepted(door: Door, stream: Accepted, peer: Peer, newcomer: Newcomer) {
    let asks = door.shared.settings.original_destination;
    let original = match &stream {
        Accepted::Tcp(stream) if asks => original_destination(stream),
        Accepted::Tcp(_) | Accepted::Plain(_) => None,
    };
    let stream = match (stream, &door.tls) {
        (Accepted::Plain(stream), _) => stream,
        (Accepted::Tcp(stream), None) => Stream::Tcp(stream),
        (Accepted::Tcp(stream), Some(acceptor)) => {
            if peer_has_left(&stream) {
                door.shared.observer.client_not_served("tls");
                return;
            }
            match timeout(TLS_LIMIT, Box::pin(acceptor.accept(stream))).await {
                Ok(Ok(stream)) => Stream::Tls(Box::new(TlsStream::Server(stream))),
                Ok(Err(error)) => {
                    tracing::debug!(%error, peer = %peer.text, "TLS handshake");
                    door.shared.observer.client_refused("tls");
                    return;
                }
                Err(_) => {
                    door.shared.observer.client_refused("tls_timeout");
                    return;
                }
            }
        }
    };
    let Door { shared, .. } = door;
    if shared.settings.is_relay {
        // The server decides whether the client has to log in. A relayed client may be silent for long.
        let Newcomer {
            client: _client,
            handshake,
            eviction,
        } = newcomer;
        drop(handshake);
        eviction.set_exempt(true);
        Box::pin(serve_relayed(shared, stream, peer, original)).await;
    } else {
        serve(shared, stream, peer, newcomer).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of its own in the system's folder for such files; what is there is removed at the end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("seawall-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        async fn bind(&self) -> io::Result<Vec<Listener>> {
            Listener::bind(&Address::Unix(self.0.clone()), 16).await
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            drop(std::fs::remove_file(&self.0));
        }
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced() {
        let place = Place::new("stale");
        drop(std::os::unix::net::UnixListener::bind(&place.0).unwrap());
        assert!(place.0.exists());
        assert_eq!(place.bind().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_stays_and_the_error_names_it() {
        let place = Place::new("file");
        std::fs::write(&place.0, "precious").unwrap();
        let error = place.bind().await.unwrap_err();
        assert!(
            error.to_string().contains(place.0.to_str().unwrap()),
            "{error}"
        );
        assert_eq!(std::fs::read_to_string(&place.0).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_symbolic_link_stays() {
        let (place, target) = (Place::new("link"), Place::new("target"));
        drop(std::os::unix::net::UnixListener::bind(&target.0).unwrap());
        std::os::unix::fs::symlink(&target.0, &place.0).unwrap();
        assert!(place.bind().await.is_err());
        assert!(target.0.exists() && place.0.is_symlink());
    }

    #[tokio::test]
    async fn a_socket_in_use_stays_and_the_error_names_it() {
        let place = Place::new("used");
        let _first = place.bind().await.unwrap();
        let error = place.bind().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(
            error.to_string().contains(place.0.to_str().unwrap()),
            "{error}"
        );
        assert!(UnixStream::connect(&place.0).await.is_ok());
    }
}
