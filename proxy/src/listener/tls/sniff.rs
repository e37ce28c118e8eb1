//! Distinguishes a TLS handshake from a MongoDB message by the first bytes of a connection.

use std::io;

use tokio::net::TcpStream;

use crate::listener::first_bytes::peek_until;

/// Number of bytes that are enough to distinguish TLS from MongoDB.
const DECISIVE_BYTES: usize = 12;

/// Waits for the first bytes of a connection, and returns true if they begin a TLS handshake. The
/// bytes stay in the socket.
///
/// # Errors
/// If the connection fails, or ends before enough bytes have arrived.
pub(crate) async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut buffer = [0; DECISIVE_BYTES];
    peek_until(stream, &mut buffer, |seen| is_tls(seen).map(Ok)).await
}

/// True if the bytes are the beginning of a TLS record with a `ClientHello` (RFC 8446, sections 4
/// and 5.1). Such a record has content type 22, major version 3 and handshake type 1. Its
/// `ClientHello` begins with a second version, whose major version is 3, too. In a MongoDB message,
/// the byte at this position belongs to `responseTo`, which is 0 in a client's message.
/// `None` if more bytes are needed.
fn is_tls(seen: &[u8]) -> Option<bool> {
    let expected = [(0, 22), (1, 3), (5, 1), (9, 3)];
    let mut known = expected
        .iter()
        .map(|(index, byte)| seen.get(*index).map(|seen| seen == byte));
    if known.clone().flatten().any(|is_equal| !is_equal) {
        return Some(false);
    }
    known.all(|is_known| is_known.is_some()).then_some(true)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{io::AsyncWriteExt as _, net::TcpListener, time::timeout};

    use super::*;

    #[tokio::test]
    async fn a_client_that_leaves_after_the_first_bytes_of_a_handshake_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(&[22, 3, 1]).await.unwrap();
        drop(client);
        let sniffed = timeout(Duration::from_secs(10), begins_with_tls(&server)).await;
        let error = sniffed.expect("the wait ends").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_tls_client_hello_is_distinguished_from_mongodb_messages_of_any_length() {
        let hello = [22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3, 7];
        assert_eq!(is_tls(&hello), Some(true));
        for known in 1..10 {
            assert_eq!(is_tls(&hello[..known]), None, "{known}");
        }
        assert_eq!(is_tls(&hello[..10]), Some(true));
        // A message of 0x10316 bytes, whose request id looks like the next bytes of a handshake.
        let message = [0x16, 3, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(is_tls(&message), Some(false));
        assert_eq!(is_tls(&[0x16, 0]), Some(false));
        assert_eq!(is_tls(&[58]), Some(false));
    }
}
