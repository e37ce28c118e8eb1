//! A forwarder that disturbs connections: after random numbers of bytes it delays, stops, closes or
//! resets them.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use seawall_locks::Mutex;

/// Maximum number of bytes that one direction of a connection forwards between two disturbances.
const MAX_CALM_BYTES: usize = 400_000;

/// Maximum number of bytes that are forwarded at once, so that messages arrive in pieces.
const MAX_CHUNK_BYTES: usize = 8 * 1024;

/// A disturbance of a connection.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// Forwarding pauses for less than 50 ms in one direction.
    Delay,
    /// Half of the bytes of one read are forwarded, then the connection is closed.
    Close,
    /// Half of the bytes of one read are forwarded, then the connection is reset.
    Reset,
    /// Nothing is forwarded in one direction for less than one second, and neither the client nor
    /// the server is notified. Then the connection is reset.
    HalfOpen,
}

/// Forwards connections to one server, and disturbs them. Dropping this value closes the
/// connections.
#[derive(Debug)]
pub struct Turbulence {
    address: SocketAddr,
    cuts: Arc<Mutex<usize>>,
    accepting: JoinHandle<()>,
}

impl Drop for Turbulence {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Turbulence {
    /// Starts the forwarder on a free port. With equal seeds, the first connections of two runs get
    /// equal random numbers, and so do the second connections and so on. The disturbances can still
    /// differ, because they also depend on the sizes of the pieces in which bytes arrive.
    ///
    /// # Errors
    /// If no port is available.
    pub async fn start(target: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let cuts = Arc::new(Mutex::new(0));
        let counted = Arc::clone(&cuts);
        let accepting = tokio::spawn(async move {
            let mut forwarding = JoinSet::new();
            let mut seeds = StdRng::seed_from_u64(seed);
            while let Ok((client, _)) = listener.accept().await {
                let rng = StdRng::seed_from_u64(seeds.random());
                forwarding.spawn(forward(client, target, rng, Arc::clone(&counted)));
                while forwarding.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            cuts,
            accepting,
        })
    }

    /// The address to which clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Number of connections that were closed or reset.
    pub fn cuts(&self) -> usize {
        *self.cuts.lock()
    }
}

async fn forward(
    mut client: TcpStream,
    target: SocketAddr,
    mut rng: StdRng,
    cuts: Arc<Mutex<usize>>,
) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    // An error is ignored: without this option, the connection is only slower.
    drop((client.set_nodelay(true), server.set_nodelay(true)));
    let other = StdRng::seed_from_u64(rng.random());
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let event = tokio::select! {
        event = pump(from_client, to_server, rng) => event,
        event = pump(from_server, to_client, other) => event,
    };
    if let Some(event) = event {
        *cuts.lock() += 1;
        if matches!(event, Event::Reset | Event::HalfOpen) {
            // An error is ignored: the connection is then closed instead of reset. A close disturbs
            // the proxy too.
            drop((client.set_zero_linger(), server.set_zero_linger()));
        }
    }
}

/// Forwards one direction. Returns the event that must end the connection; `None` if the client or
/// the server ended the connection.
async fn pump(
    mut source: ReadHalf<'_>,
    mut target: WriteHalf<'_>,
    mut rng: StdRng,
) -> Option<Event> {
    let mut calm = rng.random_range(1..MAX_CALM_BYTES);
    let mut buffer = vec![0; MAX_CHUNK_BYTES];
    loop {
        let room = rng.random_range(1..=MAX_CHUNK_BYTES);
        let (room, _) = buffer.split_at_mut(room);
        let length = source.read(room).await.ok().filter(|length| *length > 0)?;
        let (mut chunk, _) = room.split_at(length);
        let mut event = None;
        if calm <= length {
            let next = next_event(&mut rng);
            match next {
                Event::Delay => sleep(Duration::from_millis(rng.random_range(1..50))).await,
                Event::HalfOpen => {
                    sleep(Duration::from_millis(rng.random_range(100..1000))).await;
                    return Some(next);
                }
                Event::Close | Event::Reset => {
                    (chunk, _) = chunk.split_at(length / 2);
                    event = Some(next);
                }
            }
            calm = rng.random_range(1..MAX_CALM_BYTES);
        } else {
            calm -= length;
        }
        target.write_all(chunk).await.ok()?;
        if event.is_some() {
            return event;
        }
    }
}

fn next_event(rng: &mut StdRng) -> Event {
    match rng.random_range(0..10) {
        0..4 => Event::Delay,
        4..6 => Event::Close,
        6..9 => Event::Reset,
        _ => Event::HalfOpen,
    }
}
