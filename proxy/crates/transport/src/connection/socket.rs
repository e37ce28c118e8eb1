//! Opens TCP connections to servers.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use rustix::io::Errno;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};

use super::lookups::Lookups;

/// The reason why no connection was opened.
pub(super) enum OpenError {
    /// The host name could not be resolved.
    Resolve(io::Error),
    /// No address accepted a connection. The value is the last error that is not a local failure
    /// ([`is_local_failure`]), or the first error if all are local failures.
    Connect(io::Error),
}

/// Time after which Seawall also tries the next address of a host that has several addresses. RFC
/// 8305 recommends this value.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);

/// Connects to a host, which may have several addresses: they are tried in the order of the
/// operating system's resolver, each at most [`NEXT_ADDRESS_AFTER`] after the address before it. So
/// Seawall can connect even if the first addresses do not reply.
///
/// # Errors
/// See [`OpenError`]. If the name is not resolved within `resolve_limit`, the error is
/// [`OpenError::Resolve`].
pub(super) async fn connect_tcp(
    lookups: &Arc<Lookups>,
    host: &str,
    port: u16,
    resolve_limit: Duration,
) -> Result<TcpStream, OpenError> {
    let addresses = timeout(resolve_limit, lookups.resolve(host, port)).await;
    let addresses = addresses.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    let addresses = addresses.map_err(OpenError::Resolve)?;
    let connected = connect_first(addresses).await;
    connected.map_err(OpenError::Connect)
}

async fn connect_first(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut untried = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure: Option<io::Error> = None;
    loop {
        match untried.next() {
            Some(address) => attempts.push(TcpStream::connect(address)),
            None if attempts.is_empty() => {
                let no_address =
                    || io::Error::new(io::ErrorKind::NotFound, "the host has no address");
                return Err(failure.unwrap_or_else(no_address));
            }
            None => {}
        }
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => return Ok(stream),
                // An error of the server says more than a local error, such as the error for an
                // IPv6 address on a host without IPv6.
                Err(error) if is_local_failure(&error) && failure.is_some() => {}
                Err(error) => failure = Some(error),
            },
            () = sleep(NEXT_ADDRESS_AFTER), if untried.len() > 0 => {}
        }
    }
}

/// True if Seawall's host could not open the connection, for example because no file descriptor or
/// no port was left. Such an error says nothing about the server.
pub(super) fn is_local_failure(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::ADDRNOTAVAIL)
    )
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[tokio::test]
    async fn connect_first_uses_the_next_address_if_an_address_refuses_or_does_not_reply() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let open = listener.local_addr().unwrap();
        let refusing = SocketAddr::from(([127, 0, 0, 1], 1));
        // A listener whose queue is full does not reply to further connections.
        let full = TcpSocket::new_v4().unwrap();
        full.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let full = full.listen(0).unwrap();
        let silent = full.local_addr().unwrap();
        let _first = TcpStream::connect(silent).await.unwrap();
        for addresses in [
            vec![open],
            vec![refusing, open],
            vec![silent, open],
            vec![silent, refusing, open],
        ] {
            let stream = connect_first(addresses).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), open);
        }
        let refused = connect_first(vec![refusing, refusing]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let none = connect_first(Vec::new()).await.unwrap_err();
        assert_eq!(none.to_string(), "the host has no address");
    }

    #[test]
    fn only_errors_of_seawalls_own_host_are_local_failures() {
        let of = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL] {
            assert!(is_local_failure(&of(errno)), "{errno}");
        }
        for errno in [Errno::CONNREFUSED, Errno::HOSTUNREACH, Errno::TIMEDOUT] {
            assert!(!is_local_failure(&of(errno)), "{errno}");
        }
        assert!(!is_local_failure(&io::ErrorKind::UnexpectedEof.into()));
    }
}
