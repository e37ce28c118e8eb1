//! The sockets of an HTTP address: one socket for each address that the host name resolves to. An
//! address cannot be bound if it is in use, or if this host does not have it. Such an address is
//! tried again every second, while the other addresses are served.

use std::{collections::HashSet, io, net::SocketAddr, time::Duration};

use axum::serve::Listener;
use futures_util::future::{FutureExt as _, select_all};
use tokio::{
    net::{TcpListener, TcpStream, lookup_host},
    time::{Instant, sleep_until},
};

/// Time between two attempts to bind an address that could not be bound at the start.
const BIND_INTERVAL: Duration = Duration::from_secs(1);

/// The sockets of an HTTP address, at least one.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// The socket that accepted the latest connection is the last one.
    sockets: Vec<Socket>,
}

impl Sockets {
    /// Resolves `address`, a host and a port, and binds every address of the host. With port 0, the
    /// system chooses a port for each address. Logs each address that cannot be bound; `key` is the
    /// configuration key in this log line.
    ///
    /// # Errors
    /// If the host is unknown. Also if no address can be bound, now or later: each attempt has
    /// failed with an error for which [`is_taken`] is false.
    pub(crate) async fn bind(address: &str, key: &str) -> io::Result<Self> {
        let addresses = lookup_host(address).await?.collect();
        Self::bind_all(addresses, key).await
    }

    async fn bind_all(addresses: Vec<SocketAddr>, key: &str) -> io::Result<Self> {
        let (mut attempts, mut tried) = (Vec::new(), HashSet::new());
        for address in addresses {
            // A name may resolve to the same address twice.
            if tried.insert(address) {
                attempts.push((address, TcpListener::bind(address).await));
            }
        }
        let mut errors = attempts.iter().map(|(_, bound)| bound.as_ref().err());
        if !errors.any(|error| error.is_none_or(is_taken)) {
            let error = attempts.into_iter().find_map(|(_, bound)| bound.err());
            return Err(error.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()));
        }
        let sockets = attempts
            .into_iter()
            .map(|(address, bound)| Socket::new(address, bound, key));
        Ok(Self {
            sockets: sockets.collect(),
        })
    }

    /// The addresses that are bound, with the ports that the system has chosen.
    pub(crate) fn local_addresses(&self) -> Vec<String> {
        let addresses = self.bound().filter_map(|of| of.local_addr().ok());
        addresses.map(|address| address.to_string()).collect()
    }

    fn bound(&self) -> impl Iterator<Item = &TcpListener> {
        let sockets = self.sockets.iter();
        sockets.filter_map(|socket| socket.listener.as_ref())
    }
}

impl Listener for Sockets {
    type Io = TcpStream;
    type Addr = SocketAddr;

    /// Accepts a connection. The sockets take turns, so that many connections to one of them do not
    /// lock out the others. Cancel safe.
    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let accepting = self.sockets.iter_mut();
        let accepting = accepting.map(|socket| socket.accept().boxed());
        let (accepted, index, _) = select_all(accepting).await;
        self.sockets.rotate_left(index + 1);
        accepted
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let first = self.bound().next();
        first.ok_or(io::ErrorKind::AddrNotAvailable)?.local_addr()
    }
}

/// The socket of one address.
#[derive(Debug)]
struct Socket {
    address: SocketAddr,
    /// `None` until the address is bound.
    listener: Option<TcpListener>,
    /// The time of the next attempt to bind the address. Not used after the address is bound.
    next_attempt: Instant,
}

impl Socket {
    /// Creates the socket from the result of the first attempt to bind its address.
    fn new(address: SocketAddr, bound: io::Result<TcpListener>, key: &str) -> Self {
        if let Err(error) = &bound {
            tracing::error!(%error, %address, key, "could not bind the HTTP address; clients are served, and binding is tried again every second");
        }
        Self {
            address,
            listener: bound.ok(),
            next_attempt: Instant::now() + BIND_INTERVAL,
        }
    }

    /// Accepts a connection. Binds the address first if it is not bound yet. Cancel safe.
    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            if let Some(listener) = &mut self.listener {
                // `axum` repeats a failed accept, for example when descriptors ran out.
                return Listener::accept(listener).await;
            }
            sleep_until(self.next_attempt).await;
            self.next_attempt = Instant::now() + BIND_INTERVAL;
            // Do not log this failure: the first failure was logged, and further failures usually
            // have the same cause.
            self.listener = TcpListener::bind(self.address).await.ok();
            if self.listener.is_some() {
                tracing::info!(address = %self.address, "HTTP address bound");
            }
        }
    }
}

/// True if the address is in use or this host does not have it, so that it can perhaps be bound
/// later.
fn is_taken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable
    )
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const KEY: &str = "admin.address";

    /// The loopback address 127.0.0.`last`. The system chooses its port.
    fn loopback(last: u8) -> SocketAddr {
        ([127, 0, 0, last], 0).into()
    }

    #[tokio::test]
    async fn all_addresses_of_a_host_are_served_and_their_sockets_take_turns() {
        let addresses = vec![loopback(1), loopback(2)];
        let mut sockets = Sockets::bind_all(addresses, KEY).await.unwrap();
        let mut addresses = sockets.local_addresses();
        assert_eq!(addresses.len(), 2);
        let (mut callers, mut accepted) = (Vec::new(), Vec::new());
        for address in &addresses {
            callers.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in &addresses {
            let (stream, _) = sockets.accept().await;
            let address = stream.local_addr().unwrap().to_string();
            assert_eq!(sockets.local_addresses().last(), Some(&address));
            accepted.push(address);
        }
        addresses.sort_unstable();
        accepted.sort_unstable();
        assert_eq!(accepted, addresses);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_in_use_is_bound_later_while_the_other_addresses_are_served() {
        let taken = TcpListener::bind(loopback(1)).await.unwrap();
        let in_use = taken.local_addr().unwrap();
        let addresses = vec![in_use, loopback(2)];
        let mut sockets = Sockets::bind_all(addresses, KEY).await.unwrap();
        let [free]: [String; 1] = sockets.local_addresses().try_into().unwrap();
        let _first = TcpStream::connect(&free).await.unwrap();
        let (stream, _) = sockets.accept().await;
        assert_eq!(stream.local_addr().unwrap().to_string(), free);
        drop(taken);
        // The clock of the test advances while the call waits, and no caller connects.
        let accepted = timeout(BIND_INTERVAL * 10, sockets.accept()).await;
        assert!(accepted.is_err());
        let _second = TcpStream::connect(in_use).await.unwrap();
        let (stream, _) = sockets.accept().await;
        assert_eq!(stream.local_addr().unwrap(), in_use);
    }

    #[tokio::test]
    async fn an_address_that_a_name_resolves_to_twice_is_bound_once() {
        let addresses = vec![loopback(1); 2];
        let sockets = Sockets::bind_all(addresses, KEY).await.unwrap();
        assert_eq!(sockets.local_addresses().len(), 1);
    }

    #[tokio::test]
    async fn a_host_without_addresses_is_an_error() {
        assert!(Sockets::bind_all(Vec::new(), KEY).await.is_err());
    }
}
