//! TCP keep-alive: detects that a peer is gone although the peer has not closed the connection. For
//! example, its machine has lost power, or a firewall has dropped the connection's state.
//!
//! Keep-alive does not detect a hanging process, because the kernel of its machine still replies.
//! The connection to a hanging server ends only if the server's receive buffer is full and the
//! server reads no byte for 30 s ([`limit_silence`]).

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};

use super::Stream;

/// Idle time on a server connection after which the kernel sends the first keep-alive probe.
const SERVER_IDLE: Duration = Duration::from_secs(10);

/// Time between two keep-alive probes that the kernel sends to a server.
const SERVER_INTERVAL: Duration = Duration::from_secs(5);

/// Number of keep-alive probes without a reply after which a server connection ends.
const SERVER_COUNT: u32 = 4;

/// Maximum time that sent bytes may stay unacknowledged, or wait in the kernel of Seawall's host
/// because the server's receive buffer is full.
const SERVER_LIMIT: Duration = Duration::from_secs(30);

/// Idle time on a client connection after which the kernel sends the first keep-alive probe. This
/// time is longer than for servers: clients may have worse networks, and a dead client connection
/// blocks no other client.
const CLIENT_IDLE: Duration = Duration::from_secs(60);

/// Time between two keep-alive probes that the kernel sends to a client.
const CLIENT_INTERVAL: Duration = Duration::from_secs(10);

/// Number of keep-alive probes without a reply after which a client connection ends.
const CLIENT_COUNT: u32 = 6;

/// Sets keep-alive on a connection to a server.
///
/// # Errors
/// If the system refuses an option.
pub(crate) fn keep_server_alive(socket: &impl AsFd) -> io::Result<()> {
    set_tcp_keepidle(socket, SERVER_IDLE)?;
    set_tcp_keepintvl(socket, SERVER_INTERVAL)?;
    set_tcp_keepcnt(socket, SERVER_COUNT)?;
    Ok(set_socket_keepalive(socket, true)?)
}

/// Makes the kernel end a connection in two cases: sent bytes stay unacknowledged for 30 s, or
/// bytes wait for 30 s because the server's receive buffer is full. Must not be called if Seawall
/// relays all bytes of one client to the server. Such a client may send bytes while a long
/// operation runs. The server reads these bytes only when the operation ends. So they may fill the
/// receive buffer of a healthy server for more than 30 s.
///
/// # Errors
/// If the system refuses the option.
pub(crate) fn limit_silence(stream: &Stream) -> io::Result<()> {
    let socket = match stream {
        Stream::Tcp(socket) => socket,
        Stream::Tls { stream, .. } => stream.get_ref().0.tcp(),
        Stream::Unix(_) => return Ok(()),
    };
    let limit = u32::try_from(SERVER_LIMIT.as_millis()).unwrap_or(u32::MAX);
    Ok(set_tcp_user_timeout(socket, limit)?)
}

/// Sets keep-alive on a listening socket. Accepted connections inherit the options.
///
/// # Errors
/// If the system refuses an option.
pub fn keep_clients_alive(socket: &impl AsFd) -> io::Result<()> {
    set_tcp_keepidle(socket, CLIENT_IDLE)?;
    set_tcp_keepintvl(socket, CLIENT_INTERVAL)?;
    set_tcp_keepcnt(socket, CLIENT_COUNT)?;
    Ok(set_socket_keepalive(socket, true)?)
}

#[cfg(test)]
mod tests {
    use rustix::net::sockopt::{
        socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl, tcp_user_timeout,
    };
    use tokio::net::{TcpListener, TcpStream, UnixStream};

    use super::*;

    #[tokio::test]
    async fn keep_alive_is_set_on_client_and_server_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        keep_clients_alive(&listener).unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (server, client) = tokio::join!(connecting, listener.accept());
        let (server, client) = (server.unwrap(), client.unwrap().0);
        keep_server_alive(&server).unwrap();
        for (socket, idle, interval, count) in [
            (&server, SERVER_IDLE, SERVER_INTERVAL, SERVER_COUNT),
            (&client, CLIENT_IDLE, CLIENT_INTERVAL, CLIENT_COUNT),
        ] {
            assert!(socket_keepalive(socket).unwrap());
            assert_eq!(tcp_keepidle(socket).unwrap(), idle);
            assert_eq!(tcp_keepintvl(socket).unwrap(), interval);
            assert_eq!(tcp_keepcnt(socket).unwrap(), count);
        }
        let server = Stream::Tcp(server);
        limit_silence(&server).unwrap();
        let Stream::Tcp(server) = server else {
            unreachable!()
        };
        assert_eq!(tcp_user_timeout(&server).unwrap(), 30_000);
        let (near, _far) = UnixStream::pair().unwrap();
        limit_silence(&Stream::Unix(near)).unwrap();
    }
}
