//! A forwarder between a client and a server. It records the bytes and can disturb connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bson::Document;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::raw::RawReply;
use crate::raw::message::split_messages;
use seawall_locks::Mutex;

/// Accepts connections on loopback and forwards all of them to the same target.
///
/// Dropping the recorder closes all forwarded connections.
#[derive(Debug)]
#[must_use = "dropping it closes its connections"]
pub struct Recorder {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Recorder {
    /// Starts a forwarder to `target`.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let behaviour = Behaviour {
            delay: Duration::ZERO,
            is_frozen: false,
            holds_replies: false,
            is_refusing: false,
        };
        let shared = Arc::new(Shared {
            target,
            behaviour: watch::Sender::new(behaviour),
            connections: Mutex::new(Vec::new()),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            accepting,
        })
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All connections since the start, in the order in which they were accepted: also closed ones,
    /// but not those that [`Recorder::refuse`] closed at once.
    pub fn connections(&self) -> Vec<Recording> {
        let connections = self.shared.connections.lock();
        connections
            .iter()
            .map(|connection| connection.recording.clone())
            .collect()
    }

    /// Number of connections that are open.
    pub fn open_count(&self) -> usize {
        let connections = self.shared.connections.lock();
        connections
            .iter()
            .filter(|connection| connection.recording.is_open)
            .count()
    }

    /// Discards the recorded bytes, so that assertions see only later bytes.
    pub fn forget(&self) {
        for connection in self.shared.connections.lock().iter_mut() {
            connection.recording.from_client.clear();
            connection.recording.from_server.clear();
            connection.recording.is_truncated = false;
        }
    }

    /// Ends the connection with this index in [`Recorder::connections`].
    pub fn cut(&self, index: usize, how: Cut) {
        if let Some(connection) = self.shared.connections.lock().get_mut(index) {
            connection.cut(how);
        }
    }

    /// Ends all connections. The recorder still accepts new ones.
    pub fn cut_all(&self, how: Cut) {
        for connection in self.shared.connections.lock().iter_mut() {
            connection.cut(how);
        }
    }

    /// Sets a delay before each chunk (the bytes of one read) is forwarded, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.shared
            .behaviour
            .send_modify(|behaviour| behaviour.delay = delay);
    }

    /// Stops forwarding and keeps all connections open.
    pub fn freeze(&self) {
        self.shared
            .behaviour
            .send_modify(|behaviour| behaviour.is_frozen = true);
    }

    /// Forwards again, beginning with the bytes that arrived while forwarding was stopped.
    pub fn thaw(&self) {
        self.shared
            .behaviour
            .send_modify(|behaviour| behaviour.is_frozen = false);
    }

    /// While `holds` is true, bytes from servers are not forwarded. If a connection is cut at this
    /// time, its held bytes are lost.
    pub fn hold_replies(&self, holds: bool) {
        self.shared
            .behaviour
            .send_modify(|behaviour| behaviour.holds_replies = holds);
    }

    /// While `is_refusing` is true, new connections are closed as soon as they are accepted.
    pub fn refuse(&self, is_refusing: bool) {
        self.shared
            .behaviour
            .send_modify(|behaviour| behaviour.is_refusing = is_refusing);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// How the recorder ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The recorder sends a FIN, like the kernel of a process that exits.
    Close,
    /// The recorder sends a reset, like a machine that no longer knows the connection.
    Reset,
}

/// The bytes that were forwarded over one connection.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Bytes from the client to the server. A byte is added just before it is forwarded, so bytes
    /// that the recorder delays or holds are missing.
    pub from_client: Vec<u8>,
    /// Bytes from the server to the client. A byte is added just before it is forwarded, so bytes
    /// that the recorder delays or holds are missing.
    pub from_server: Vec<u8>,
    /// True if one direction had more bytes than the recorder keeps.
    pub is_truncated: bool,
    /// True while the connection is open.
    pub is_open: bool,
}

impl Recording {
    /// The complete messages from the client to the server.
    pub fn messages_from_client(&self) -> Vec<&[u8]> {
        split_messages(&self.from_client)
    }

    /// The complete messages from the server to the client.
    pub fn messages_from_server(&self) -> Vec<&[u8]> {
        split_messages(&self.from_server)
    }

    /// The bodies of all OP_MSG messages to the server.
    pub fn commands(&self) -> Vec<Document> {
        let messages = self.messages_from_client().into_iter();
        let messages = messages.filter_map(|message| RawReply::parse(message.to_vec()));
        messages.map(|message| message.body).collect()
    }
}

#[derive(Debug)]
struct Shared {
    target: SocketAddr,
    behaviour: watch::Sender<Behaviour>,
    connections: Mutex<Vec<Connection>>,
}

impl Shared {
    fn with_recording(&self, index: usize, change: impl FnOnce(&mut Recording)) {
        if let Some(connection) = self.connections.lock().get_mut(index) {
            change(&mut connection.recording);
        }
    }

    fn record(&self, index: usize, direction: Direction, bytes: &[u8]) {
        self.with_recording(index, |recording| {
            let recorded = match direction {
                Direction::ToServer => &mut recording.from_client,
                Direction::ToClient => &mut recording.from_server,
            };
            let room = MAX_RECORDED_BYTES
                .saturating_sub(recorded.len())
                .min(bytes.len());
            let (kept, lost) = bytes.split_at(room);
            recorded.extend(kept);
            recording.is_truncated |= !lost.is_empty();
        });
    }
}

#[derive(Clone, Copy, Debug)]
struct Behaviour {
    delay: Duration,
    is_frozen: bool,
    holds_replies: bool,
    is_refusing: bool,
}

impl Behaviour {
    fn passes(&self, direction: Direction) -> bool {
        let is_held = self.holds_replies && direction == Direction::ToClient;
        !self.is_frozen && !is_held
    }
}

#[derive(Debug)]
struct Connection {
    recording: Recording,
    how: Option<Cut>,
    ended: Arc<Notify>,
}

impl Connection {
    fn cut(&mut self, how: Cut) {
        self.how = Some(how);
        self.ended.notify_one();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Each connection is a task of this set. So aborting this function's task ends all connections.
    let mut forwarding = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else {
                    // `accept` fails if no file descriptor is free. The test then fails because the
                    // connection is missing.
                    return;
                };
                if !shared.behaviour.borrow().is_refusing {
                    forwarding.spawn(forward(Arc::clone(&shared), client));
                }
            }
            Some(_) = forwarding.join_next() => {}
        }
    }
}

async fn forward(shared: Arc<Shared>, mut client: TcpStream) {
    let ended = Arc::new(Notify::new());
    let index = {
        let mut connections = shared.connections.lock();
        let recording = Recording {
            from_client: Vec::new(),
            from_server: Vec::new(),
            is_truncated: false,
            is_open: true,
        };
        connections.push(Connection {
            recording,
            how: None,
            ended: Arc::clone(&ended),
        });
        connections.len() - 1
    };
    if let Ok(mut server) = TcpStream::connect(shared.target).await {
        // Without this option, a small message would wait for the acknowledgement of earlier ones.
        drop((client.set_nodelay(true), server.set_nodelay(true)));
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        let both = async {
            tokio::join!(
                pump(&shared, index, Direction::ToServer, from_client, to_server),
                pump(&shared, index, Direction::ToClient, from_server, to_client),
            )
        };
        tokio::select! {
            // With `biased`, `select!` checks for a cut first. So bytes that were held back (see
            // `hold_replies`) and are released after the cut are not forwarded.
            biased;
            () = ended.notified() => {}
            _ = both => {}
        }
        let how = shared
            .connections
            .lock()
            .get(index)
            .and_then(|connection| connection.how);
        if how == Some(Cut::Reset) {
            drop((client.set_zero_linger(), server.set_zero_linger()));
        }
    }
    shared.with_recording(index, |recording| recording.is_open = false);
}

/// Forwards the bytes of one direction until the source ends, and then shuts down the target.
async fn pump(
    shared: &Shared,
    index: usize,
    direction: Direction,
    mut source: impl AsyncRead + Unpin,
    mut target: impl AsyncWrite + Unpin,
) {
    let mut behaviour = shared.behaviour.subscribe();
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(length) = source.read(&mut buffer).await {
        let (chunk, _) = buffer.split_at(length);
        let delay = behaviour.borrow().delay;
        if !delay.is_zero() {
            sleep(delay).await;
        }
        let passes = behaviour.wait_for(|behaviour| behaviour.passes(direction));
        if passes.await.is_err() {
            return;
        }
        if chunk.is_empty() {
            break;
        }
        // The bytes are recorded before they are sent. So a test that sees an effect of the bytes
        // also finds them in the recording.
        shared.record(index, direction, chunk);
        if target.write_all(chunk).await.is_err() {
            break;
        }
    }
    // The shutdown fails if the target is already closed.
    drop(target.shutdown().await);
}

const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum number of recorded bytes per direction. It exceeds the size of all messages that tests
/// inspect.
const MAX_RECORDED_BYTES: usize = 64 * 1024 * 1024;
