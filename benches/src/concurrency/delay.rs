//! A relay on loopback that delays what its clients send, as a slow network between Seawall and the
//! server would.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener},
    thread::{self, JoinHandle},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime::Builder,
    select,
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep_until},
};

/// Maximum number of chunks of one connection that wait to be forwarded. At this limit, the relay
/// stops reading from that connection.
const MAX_CHUNKS: usize = 256;

/// Maximum number of bytes that the relay reads at once and forwards as one chunk.
const CHUNK_BYTES: usize = 16 * 1024;

/// Bytes, and the time at which they are forwarded.
type Chunk = (Instant, Vec<u8>);

/// A relay that runs on its own thread. Dropping the value ends the thread and closes all
/// connections.
#[derive(Debug)]
pub struct DelayingRelay {
    address: SocketAddr,
    /// The thread ends when this sender is dropped.
    running: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DelayingRelay {
    /// Starts a relay in front of `server`. It forwards each chunk of bytes to the server when
    /// `delay` has passed since the chunk arrived. Replies are not delayed.
    ///
    /// # Errors
    /// If no port or no thread is available.
    pub fn start(server: SocketAddr, delay: Duration) -> io::Result<Self> {
        let listener = StdTcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (running, stopped) = oneshot::channel();
        let serve = async move {
            let listener = TcpListener::from_std(listener).expect("the runtime has I/O");
            select! {
                _ = stopped => {}
                () = accept(listener, server, delay) => {}
            }
        };
        let thread = thread::Builder::new().name("delaying relay".to_owned());
        Ok(Self {
            address,
            running: Some(running),
            thread: Some(thread.spawn(move || runtime.block_on(serve))?),
        })
    }

    /// The address on which the relay listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for DelayingRelay {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(thread) = self.thread.take() {
            // If the relay's thread has panicked, the operations of its clients have already
            // failed.
            drop(thread.join());
        }
    }
}

/// Accepts connections until accepting fails.
async fn accept(listener: TcpListener, server: SocketAddr, delay: Duration) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        // If copying fails in one direction, the connections to the client and to the server are
        // closed. The load then reports an error.
        connections.spawn(relay(client, server, delay));
        while connections.try_join_next().is_some() {}
    }
}

async fn relay(client: TcpStream, server: SocketAddr, delay: Duration) -> io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let (sender, queue) = mpsc::channel(MAX_CHUNKS);
    select! {
        read = enqueue(from_client, sender, delay) => read,
        written = forward(queue, to_server) => written,
        copied = copy(&mut from_server, &mut to_client) => copied.map(drop),
    }
}

/// Puts the client's chunks into `queue` until the client closes its connection.
async fn enqueue(
    mut client: OwnedReadHalf,
    queue: mpsc::Sender<Chunk>,
    delay: Duration,
) -> io::Result<()> {
    loop {
        let mut bytes = Vec::with_capacity(CHUNK_BYTES);
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
        if queue.send((Instant::now() + delay, bytes)).await.is_err() {
            return Ok(());
        }
    }
}

/// Writes each chunk to the server when its delay has passed.
async fn forward(mut queue: mpsc::Receiver<Chunk>, mut server: OwnedWriteHalf) -> io::Result<()> {
    while let Some((due, bytes)) = queue.recv().await {
        sleep_until(due).await;
        server.write_all(&bytes).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_delayed_and_all_bytes_arrive() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let delay = Duration::from_millis(20);
        let relay = DelayingRelay::start(server.local_addr().unwrap(), delay).unwrap();
        let began = Instant::now();
        let mut client = TcpStream::connect(relay.address()).await.unwrap();
        client.write_all(b"ping").await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        let mut buffer = [0; 4];
        accepted.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"ping");
        assert!(began.elapsed() >= delay);
        accepted.write_all(b"pong").await.unwrap();
        client.read_exact(&mut buffer).await.unwrap();
        assert_eq!(&buffer, b"pong");
        drop(relay);
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
    }
}
