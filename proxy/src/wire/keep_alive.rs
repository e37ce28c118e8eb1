//! Finding out that the other end is silently gone: the machine without power, the path that forgot the connection.
//!
//! Nothing of it concerns a process that hangs: its kernel answers.

use std::{io, os::fd::AsFd, time::Duration};

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};

/// Silence on a connection after which its server is asked for a sign of life.
const SERVER_IDLE: Duration = Duration::from_secs(10);

const SERVER_INTERVAL: Duration = Duration::from_secs(5);

/// How long a server's kernel may leave bytes or questions unacknowledged before the connection is given up.
const SERVER_LIMIT: Duration = Duration::from_secs(30);

/// The same for clients, which may be behind worse networks, and hold up nobody else.
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
    let limit = u32::try_from(SERVER_LIMIT.as_millis()).unwrap_or(u32::MAX);
    set_tcp_user_timeout(socket, limit)?;
    Ok(set_socket_keepalive(socket, true)?)
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
