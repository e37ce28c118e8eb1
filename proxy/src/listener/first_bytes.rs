//! Peeks at the first bytes of a connection: the bytes stay in the socket and can be read later.

use std::{io, time::Duration};

use tokio::{net::TcpStream, time::sleep};

use seawall_transport::peer_has_left;

/// Pause after the first peek. Each later pause is twice as long as the pause before it, so that a
/// client that sends single bytes costs little CPU time.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// Maximum pause between two peeks.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// Peeks at the first bytes until `decide` returns a result. `decide` gets the bytes that have
/// arrived, at most as many as fit into `buffer`, and returns `None` if it needs more bytes.
///
/// # Errors
/// Returns the error of `decide`. Also fails if the connection fails or ends before `decide`
/// returns a result, or if `buffer` is full and `decide` needs more bytes.
pub(super) async fn peek_until<T>(
    stream: &TcpStream,
    buffer: &mut [u8],
    decide: impl Fn(&[u8]) -> Option<io::Result<T>>,
) -> io::Result<T> {
    let mut pause = FIRST_PAUSE;
    loop {
        // This check comes before the peek. So if the client has left, the peek returns all bytes
        // that the client has sent.
        let has_left = peer_has_left(stream);
        let count = stream.peek(buffer).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let is_full = count == buffer.len();
        let (seen, _) = buffer.split_at(count);
        if let Some(decided) = decide(seen) {
            return decided;
        }
        if is_full {
            let message = format!("the first {count} bytes contain no complete header");
            return Err(io::Error::other(message));
        }
        if has_left {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // `peek` returns at once while some bytes are available, so it cannot wait for more bytes.
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
