//! A load balancer for TCP: it forwards each new connection to the next of several addresses.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// A running load balancer. Dropping it closes all connections.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Balancer {
    /// Starts a load balancer on a free port of the loopback interface.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start(targets: Vec<SocketAddr>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let connections = Arc::new(AtomicUsize::new(0));
        let accepted = Arc::clone(&connections);
        let serving = tokio::spawn(async move {
            let mut forwarded = JoinSet::new();
            for target in targets.into_iter().cycle() {
                // `accept` can fail if the client has already closed the connection. The balancer
                // then waits for the next client.
                let Ok((mut client, _)) = listener.accept().await else {
                    continue;
                };
                accepted.fetch_add(1, Ordering::Relaxed);
                forwarded.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(target).await {
                        // An error is ignored: both connections are then closed.
                        drop(copy_bidirectional(&mut client, &mut server).await);
                    }
                });
                while forwarded.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            connections,
            serving,
        })
    }

    /// Number of connections that clients have opened.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
