//! Tells a TLS handshake from a MongoDB message by the first bytes of a connection.

use std::{io, time::Duration};

use tokio::{net::TcpStream, time::sleep};

/// Number of bytes that decide.
const DECISIVE_BYTES: usize = 12;

/// Time between two looks at a connection whose first bytes have not all arrived.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// Waits for the first bytes of a connection, and returns true if they begin a TLS handshake. Reads
/// nothing.
///
/// # Errors
/// If the connection fails, or ends before its first bytes.
pub(crate) async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut bytes = [0; DECISIVE_BYTES];
    loop {
        let seen = stream.peek(&mut bytes).await?;
        let (seen, _) = bytes.split_at(seen);
        if seen.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match is_tls(seen) {
            Some(is_tls) => return Ok(is_tls),
            // `peek` returns at once while some bytes are there, so it cannot wait for the rest.
            None => sleep(LOOK_INTERVAL).await,
        }
    }
}

/// True for the beginning of a TLS record with a `ClientHello` (RFC 8446, sections 4 and 5.1):
/// content type 22, major version 3, handshake type 1, and the major version of the hello. In a
/// MongoDB message, a `responseTo` of 0 has the place of the last three bytes. `None` if more bytes
/// are needed.
fn is_tls(seen: &[u8]) -> Option<bool> {
    let expected = [(0, 22), (1, 3), (5, 1), (9, 3)];
    let mut known = expected
        .iter()
        .map(|(place, byte)| seen.get(*place).map(|seen| seen == byte));
    if known.clone().flatten().any(|is_equal| !is_equal) {
        return Some(false);
    }
    known.all(|is_known| is_known.is_some()).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_hello_is_told_from_messages_of_any_length() {
        let hello = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 7];
        assert_eq!(is_tls(&hello), Some(true));
        for known in 1..10 {
            assert_eq!(is_tls(&hello[..known]), None, "{known}");
        }
        assert_eq!(is_tls(&hello[..10]), Some(true));
        // A message of 0x10316 bytes, whose request id looks like the rest of a handshake.
        let message = [0x16, 3, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(is_tls(&message), Some(false));
        assert_eq!(is_tls(&[0x16, 0]), Some(false));
        assert_eq!(is_tls(&[58]), Some(false));
    }
}
