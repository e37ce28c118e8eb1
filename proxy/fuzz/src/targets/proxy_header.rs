//! The header of the PROXY protocol, in front of a client's first bytes.
//!
//! Input: the first bytes of a connection.

use seawall::listener::parse_proxy_header;

/// Checks that a header is parsed as soon as all of its bytes have arrived, and not before. Checks
/// that the bytes after the header do not change the result.
pub fn proxy_header(data: &[u8]) {
    let Some(Ok((address, length))) = parse_proxy_header(data) else {
        return;
    };
    let header = data.get(..length);
    let header = header.expect("the header is within the bytes that have arrived");
    let again = parse_proxy_header(header).expect("the header is complete");
    let again = again.expect("the header is valid without the bytes after it");
    assert_eq!(again, (address, length));
    for known in 0..length {
        let beginning = header.get(..known).unwrap_or_default();
        let parsed = parse_proxy_header(beginning);
        assert!(
            !matches!(parsed, Some(Ok(_))),
            "{known} of {length} bytes are parsed as a whole header"
        );
    }
}
