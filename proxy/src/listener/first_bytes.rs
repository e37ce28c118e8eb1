//! Looks at the first bytes of a connection without reading them.

use std::{io, time::Duration};

use tokio::{net::TcpStream, time::sleep};

/// The pause before the second look. The pause doubles with each look, so that clients that send
/// single bytes cost little.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// Looks at the first bytes until `decide` returns a result. `decide` gets the bytes that have
/// arrived, at most as many as fit into `buffer`, and returns `None` if it needs more bytes.
///
/// # Errors
/// Returns the error of `decide`. Also fails if the connection fails or ends before `decide`
/// returns a result, or if `buffer` is full and `decide` needs more bytes.
pub(super) async fn look<T>(
    stream: &TcpStream,
    buffer: &mut [u8],
    decide: impl Fn(&[u8]) -> Option<io::Result<T>>,
) -> io::Result<T> {
    let mut pause = FIRST_PAUSE;
    loop {
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
            return Err(io::Error::other(
                "the beginning of the connection is too long",
            ));
        }
        // `peek` returns at once while some bytes are there, so it cannot wait for further bytes.
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
