//! A bare relay: a proxy that only copies bytes. Each client connection gets its own server
//! connection. The relay copies the bytes between the two connections and does not parse them. So
//! its CPU time is the least CPU time that a proxy on tokio needs.
//!
//! The relay is a separate process, so that its CPU time can be measured like that of HAProxy. The
//! process runs the bench's own binary with the arguments `relay LISTEN SERVER`. It prints the
//! address it listens on, and ends when its standard input is closed.

use std::{
    io::{self, Write},
    net::SocketAddr,
    process::Command,
};

use seawall::runtime::raise_descriptor_limit;
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Builder,
};

use crate::process::Process;

/// The first argument with which a bench's program runs as the relay process.
const ARGUMENT: &str = "relay";

/// Number of the relay's threads that copy bytes. The benches start HAProxy with the same number of
/// threads.
const THREADS: usize = 2;

/// Starts the relay in front of `server`, an IP address and a port. Returns the process and the
/// address that the relay listens on.
///
/// The new process runs the same program as the caller, with other arguments. So the program must
/// begin with [`run_if_requested`].
///
/// # Errors
/// If the process cannot be started, or cannot listen.
pub fn start(server: &str) -> io::Result<(Process, String)> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([ARGUMENT, "127.0.0.1:0", server]);
    Process::start_and_read_line(&mut command)
}

/// Runs the relay if the program's arguments request it. Returns true when the relay has ended, and
/// false if it was not requested.
///
/// # Panics
/// If an address is missing or invalid, or the relay cannot listen.
pub fn run_if_requested() -> bool {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some(ARGUMENT) {
        return false;
    }
    let mut address = || -> SocketAddr {
        let text = arguments.next().expect("the arguments have two addresses");
        text.parse().expect("an IP address and a port")
    };
    let (listen, server) = (address(), address());
    serve(listen, server).expect("the relay can listen");
    true
}

fn serve(listen: SocketAddr, server: SocketAddr) -> io::Result<()> {
    // Each client uses two descriptors: one for its connection, and one for the connection to the
    // server.
    raise_descriptor_limit();
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .enable_all()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind(listen))?;
    let address = listener.local_addr()?;
    runtime.spawn(accept(listener, server));
    writeln!(io::stdout(), "{address}")?;
    // The standard input is a pipe, to which the bench writes nothing. The pipe closes when the
    // bench exits or is killed, so this copy and the relay end too.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

async fn accept(listener: TcpListener, server: SocketAddr) {
    loop {
        let accepted = listener.accept().await;
        let Ok((client, _)) = accepted else {
            // If the relay continued without accepting connections, new clients would wait forever.
            // After the exit, the load fails at once.
            std::process::exit(1);
        };
        // An error closes both connections. The load then fails, because it gets no reply.
        tokio::spawn(relay(client, server));
    }
}

async fn relay(mut client: TcpStream, server: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn relay_forwards_bytes_and_the_close_of_a_connection() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(accept(listener, server.local_addr().unwrap()));

        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut buffer = [0; 4];
        client.write_all(b"ping").await.unwrap();
        accepted.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"ping");
        accepted.write_all(b"pong").await.unwrap();
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"pong");

        drop(accepted);
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
    }
}
