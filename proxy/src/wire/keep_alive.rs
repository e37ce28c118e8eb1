//! Finding out that the other end is silently gone: the machine without power, the path that forgot the connection.
//!
//! A process that hangs is not found so: its kernel answers. Only bytes that it leaves untaken for long, its buffers full,
//! end its connection too.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};

use super::Stream;

/// Silence on a connection after which its server is asked for a sign of life.
const SERVER_IDLE: Duration = Duration::from_secs(10);

const SERVER_INTERVAL: Duration = Duration::from_secs(5);

const SERVER_COUNT: u32 = 4;

/// How long bytes may wait for a server's kernel to acknowledge them, or to take them.
const SERVER_LIMIT: Duration = Duration::from_secs(30);

/// Silence on a client's connection: clients may be behind worse networks, and hold up nobody else.
const CLIENT_IDLE: Duration = Duration::from_secs(60);

const CLIENT_INTERVAL: Duration = Duration::from_secs(10);

const CLIENT_COUNT: u32 = 6;

/// For a connection to a server.
///
/// # Errors
/// If the system refuses an option.
pub fn keep_server_alive(socket: &impl AsFd) -> io::Result<()> {
    set_tcp_keepidle(socket, SERVER_IDLE)?;
    set_tcp_keepintvl(socket, SERVER_INTERVAL)?;
    set_tcp_keepcnt(socket, SERVER_COUNT)?;
    Ok(set_socket_keepalive(socket, true)?)
}

/// The same for bytes on their way, where a server has nothing else to do than to take them: a relayed client may send
/// more behind an operation that takes long.
///
/// # Errors
/// If the system refuses the option.
pub fn limit_silence(stream: &Stream) -> io::Result<()> {
    let socket = match stream {
        Stream::Tcp(socket) => socket,
        Stream::Tls(tls) => tls.get_ref().0,
        Stream::Unix(_) => return Ok(()),
    };
    let limit = u32::try_from(SERVER_LIMIT.as_millis()).unwrap_or(u32::MAX);
    Ok(set_tcp_user_timeout(socket, limit)?)
}

/// For a listening socket, and with it for every connection that is accepted there.
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
    async fn the_kernel_looks_for_peers_that_are_gone() {
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
