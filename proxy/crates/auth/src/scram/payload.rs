//! The grammar that the four messages share: `name=value` attributes between commas.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::keys::check_iterations;
use super::{Key, Mechanism, ScramError, ScramMessage};

/// The attributes of one message, read from the front.
#[derive(Debug, Clone)]
pub(super) struct Attributes<'a> {
    message: ScramMessage,
    /// `None` once the last attribute has been read.
    rest: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(message: ScramMessage, text: &'a str) -> Self {
        Self {
            message,
            rest: Some(text),
        }
    }

    /// The value of the next attribute, which must be called `name` (as in `"r="`).
    pub(super) fn expect(&mut self, name: &'static str) -> Result<&'a str, ScramError> {
        let malformed = ScramError::Malformed {
            message: self.message,
            expected: name,
        };
        let Some(rest) = self.rest else {
            return Err(malformed);
        };
        let (attribute, rest) = match rest.split_once(',') {
            Some((attribute, rest)) => (attribute, Some(rest)),
            None => (rest, None),
        };
        if attribute.starts_with("m=") {
            return Err(ScramError::MandatoryExtension {
                message: self.message,
            });
        }
        let value = attribute.strip_prefix(name).ok_or(malformed)?;
        self.rest = rest;
        Ok(value)
    }
}

/// A server's first message, parsed.
#[derive(Debug, Clone)]
pub(super) struct ServerFirst {
    /// The whole payload; both sides sign it.
    pub(super) text: String,
    pub(super) combined_nonce: String,
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
}

impl ServerFirst {
    /// Refuses a nonce that does not begin with the client's nonce: the reply belongs to another
    /// conversation.
    pub(super) fn parse(payload: &[u8], client_nonce: &str) -> Result<Self, ScramError> {
        let message = ScramMessage::ServerFirst;
        let text = text(message, payload)?;
        if text.starts_with("e=") {
            return Err(ScramError::ServerReportedError);
        }
        let mut attributes = Attributes::new(message, text);
        let combined_nonce = attributes.expect("r=")?;
        let server_nonce = combined_nonce
            .strip_prefix(client_nonce)
            .ok_or(ScramError::NonceMismatch { message })?;
        if !is_nonce(server_nonce) {
            return Err(ScramError::NonceMismatch { message });
        }
        let salt = attributes.expect("s=")?;
        let salt = decode(message, "a base64 salt", salt)?;
        if salt.is_empty() {
            return Err(ScramError::Malformed {
                message,
                expected: "a salt",
            });
        }
        let iterations = attributes.expect("i=")?;
        let iterations = iterations.parse().map_err(|_| ScramError::Malformed {
            message,
            expected: "an iteration count",
        })?;
        check_iterations(iterations)?;
        Ok(Self {
            text: text.to_owned(),
            combined_nonce: combined_nonce.to_owned(),
            salt,
            iterations,
        })
    }
}

/// A client's last message, whose proof is not checked yet.
#[derive(Debug, Clone)]
pub(super) struct ClientFinal<'a> {
    pub(super) without_proof: &'a str,
    pub(super) proof: Key,
}

impl<'a> ClientFinal<'a> {
    /// Refuses a channel binding or a nonce of another conversation.
    pub(super) fn parse(
        payload: &'a [u8],
        mechanism: Mechanism,
        gs2_header: &str,
        combined_nonce: &str,
    ) -> Result<Self, ScramError> {
        let message = ScramMessage::ClientFinal;
        let text = text(message, payload)?;
        // The proof is the last attribute, after extensions that may hold anything but a comma.
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramError::Malformed {
            message,
            expected: "p=",
        })?;
        let mut attributes = Attributes::new(message, without_proof);
        let channel_binding = decode(
            message,
            "a base64 channel binding",
            attributes.expect("c=")?,
        )?;
        if channel_binding != gs2_header.as_bytes() {
            return Err(ScramError::ChannelBindingMismatch);
        }
        if attributes.expect("r=")? != combined_nonce {
            return Err(ScramError::NonceMismatch { message });
        }
        let proof = decode_key(message, "a base64 proof", mechanism, proof)?;
        Ok(Self {
            without_proof,
            proof,
        })
    }
}

/// The signature in a server's last message.
pub(super) fn parse_server_final(payload: &[u8], mechanism: Mechanism) -> Result<Key, ScramError> {
    let message = ScramMessage::ServerFinal;
    let text = text(message, payload)?;
    if text.starts_with("e=") {
        return Err(ScramError::ServerReportedError);
    }
    let signature = Attributes::new(message, text).expect("v=")?;
    decode_key(message, "a base64 signature", mechanism, signature)
}

/// The three parts that client and server sign.
pub(super) fn auth_message(
    client_first_bare: &str,
    server_first: &str,
    client_final_without_proof: &str,
) -> String {
    format!("{client_first_bare},{server_first},{client_final_without_proof}")
}

/// The payload as text; an error if it is too long or not UTF-8.
pub(super) fn text(message: ScramMessage, payload: &[u8]) -> Result<&str, ScramError> {
    let length = payload.len();
    if length > MAX_PAYLOAD_BYTES {
        return Err(ScramError::PayloadTooLong {
            message,
            length,
            max: MAX_PAYLOAD_BYTES,
        });
    }
    str::from_utf8(payload).map_err(|_| ScramError::Malformed {
        message,
        expected: "UTF-8",
    })
}

/// True if `text` can be a nonce or a part of one: at least one character, all printable ASCII, no
/// comma.
pub(super) fn is_nonce(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// Encodes `bytes` as base64, the form that payloads use.
pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

fn decode(
    message: ScramMessage,
    expected: &'static str,
    text: &str,
) -> Result<Vec<u8>, ScramError> {
    STANDARD
        .decode(text)
        .map_err(|_| ScramError::Malformed { message, expected })
}

fn decode_key(
    message: ScramMessage,
    expected: &'static str,
    mechanism: Mechanism,
    text: &str,
) -> Result<Key, ScramError> {
    let bytes = decode(message, expected, text)?;
    Key::new(mechanism, &bytes).ok_or(ScramError::Malformed { message, expected })
}

/// The longest payload that is parsed. Real ones have less than 300 bytes. Servers have the same
/// limit for a whole message before authentication.
pub const MAX_PAYLOAD_BYTES: usize = 16_384;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERVER_FIRST: &str = "r=abcdWXYZ,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    fn malformed(message: ScramMessage, expected: &'static str) -> ScramError {
        ScramError::Malformed { message, expected }
    }

    fn server_first(text: &str) -> Result<ServerFirst, ScramError> {
        ServerFirst::parse(text.as_bytes(), "abcd")
    }

    fn client_final(text: &str) -> Result<ClientFinal<'_>, ScramError> {
        ClientFinal::parse(text.as_bytes(), Mechanism::ScramSha1, "n,,", "abcdWXYZ")
    }

    #[test]
    fn server_first_is_read() {
        let parsed = server_first(SERVER_FIRST).unwrap();
        assert_eq!(parsed.text, SERVER_FIRST);
        assert_eq!(parsed.combined_nonce, "abcdWXYZ");
        assert_eq!(parsed.salt.len(), 16);
        assert_eq!(parsed.iterations, 4_096);
        assert!(server_first(&format!("{SERVER_FIRST},x=1")).is_ok());
    }

    #[test]
    fn bad_server_first_is_refused() {
        let message = ScramMessage::ServerFirst;
        let out_of_range = |iterations| ScramError::IterationsOutOfRange {
            iterations,
            min: 4_096,
            max: 10_000_000,
        };
        let cases = [
            ("", malformed(message, "r=")),
            ("s=AAAA,i=4096", malformed(message, "r=")),
            ("r=abcdWXYZ", malformed(message, "s=")),
            ("r=abcdWXYZ,s=AAAA", malformed(message, "i=")),
            ("r=abcdWXYZ,i=4096,s=AAAA", malformed(message, "s=")),
            (
                "r=abcdWXYZ,s=AAA,i=4096",
                malformed(message, "a base64 salt"),
            ),
            ("r=abcdWXYZ,s=,i=4096", malformed(message, "a salt")),
            (
                "r=abcdWXYZ,s=AAAA,i=",
                malformed(message, "an iteration count"),
            ),
            (
                "r=abcdWXYZ,s=AAAA,i=-5000",
                malformed(message, "an iteration count"),
            ),
            (
                "r=abcdWXYZ,s=AAAA,i=99999999999",
                malformed(message, "an iteration count"),
            ),
            ("r=abcdWXYZ,s=AAAA,i=4095", out_of_range(4_095)),
            ("r=abcdWXYZ,s=AAAA,i=10000001", out_of_range(10_000_001)),
            (
                "m=x,r=abcdWXYZ,s=AAAA,i=4096",
                ScramError::MandatoryExtension { message },
            ),
            (
                "r=abceWXYZ,s=AAAA,i=4096",
                ScramError::NonceMismatch { message },
            ),
            (
                "r=abcd,s=AAAA,i=4096",
                ScramError::NonceMismatch { message },
            ),
            (
                "r=abcdWX YZ,s=AAAA,i=4096",
                ScramError::NonceMismatch { message },
            ),
            ("e=other-error", ScramError::ServerReportedError),
        ];
        for (payload, error) in cases {
            assert_eq!(server_first(payload).unwrap_err(), error, "{payload}");
        }
    }

    #[test]
    fn client_final_is_read() {
        let proof = "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=";
        for without_proof in ["c=biws,r=abcdWXYZ", "c=biws,r=abcdWXYZ,x=1,p=2"] {
            let text = format!("{without_proof},p={proof}");
            let parsed = client_final(&text).unwrap();
            assert_eq!(parsed.without_proof, without_proof);
            assert_eq!(encode(parsed.proof.as_bytes()), proof);
        }
    }

    #[test]
    fn bad_client_final_is_refused() {
        let message = ScramMessage::ClientFinal;
        let cases = [
            ("", malformed(message, "p=")),
            ("c=biws,r=abcdWXYZ", malformed(message, "p=")),
            ("p=AAAA", malformed(message, "p=")),
            ("r=abcdWXYZ,p=AAAA", malformed(message, "c=")),
            ("c=biws,p=AAAA", malformed(message, "r=")),
            (
                "c=bi!s,r=abcdWXYZ,p=AAAA",
                malformed(message, "a base64 channel binding"),
            ),
            ("c=biws,r=abcdWXYZ,p=", malformed(message, "a base64 proof")),
            (
                "c=biws,r=abcdWXYZ,p=AAAA",
                malformed(message, "a base64 proof"),
            ),
            (
                "c=biws,r=abcdWXYZ,p=A",
                malformed(message, "a base64 proof"),
            ),
            (
                "m=x,c=biws,r=abcdWXYZ,p=AAAA",
                ScramError::MandatoryExtension { message },
            ),
            (
                "c=eSws,r=abcdWXYZ,p=AAAA",
                ScramError::ChannelBindingMismatch,
            ),
            ("c=,r=abcdWXYZ,p=AAAA", ScramError::ChannelBindingMismatch),
            (
                "c=biws,r=abcdWXYz,p=AAAA",
                ScramError::NonceMismatch { message },
            ),
            (
                "c=biws,r=abcdWXYZZ,p=AAAA",
                ScramError::NonceMismatch { message },
            ),
            (
                "c=biws,r=abcd,p=AAAA",
                ScramError::NonceMismatch { message },
            ),
        ];
        for (payload, error) in cases {
            assert_eq!(client_final(payload).unwrap_err(), error, "{payload}");
        }
    }

    #[test]
    fn bad_server_final_is_refused() {
        let message = ScramMessage::ServerFinal;
        let cases: [(&[u8], ScramError); 7] = [
            (b"", malformed(message, "v=")),
            (b"x=1", malformed(message, "v=")),
            (b"v=", malformed(message, "a base64 signature")),
            (b"v=AAAA", malformed(message, "a base64 signature")),
            (b"v=\xff", malformed(message, "UTF-8")),
            (b"m=1,v=AAAA", ScramError::MandatoryExtension { message }),
            (b"e=invalid-proof", ScramError::ServerReportedError),
        ];
        for (payload, error) in cases {
            assert_eq!(
                parse_server_final(payload, Mechanism::ScramSha1).unwrap_err(),
                error
            );
        }
    }

    #[test]
    fn every_payload_has_the_same_limit() {
        let longest = vec![b'a'; MAX_PAYLOAD_BYTES];
        assert!(text(ScramMessage::ServerFirst, &longest).is_ok());
        let long = vec![b'a'; MAX_PAYLOAD_BYTES + 1];
        let too_long = |message| ScramError::PayloadTooLong {
            message,
            length: MAX_PAYLOAD_BYTES + 1,
            max: MAX_PAYLOAD_BYTES,
        };
        let sha1 = Mechanism::ScramSha1;
        let error = ServerFirst::parse(&long, "abcd").unwrap_err();
        assert_eq!(error, too_long(ScramMessage::ServerFirst));
        let error = ClientFinal::parse(&long, sha1, "n,,", "abcd").unwrap_err();
        assert_eq!(error, too_long(ScramMessage::ClientFinal));
        let error = parse_server_final(&long, sha1).unwrap_err();
        assert_eq!(error, too_long(ScramMessage::ServerFinal));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            for mechanism in Mechanism::ALL {
                drop(ServerFirst::parse(&payload, "abcd"));
                drop(ClientFinal::parse(&payload, mechanism, "n,,", "abcdWXYZ"));
                drop(parse_server_final(&payload, mechanism));
            }
        }

        #[test]
        fn near_misses_never_panic(
            server_first in "r=(abcd)?.{0,6},(s=[A-Za-z0-9+/=]{0,12})?,?(i=[0-9+-]{0,12})?,?x?",
            client_final in "c=(biws|[A-Za-z=]{0,6}),?r=(abcdWXYZ)?(,p=[A-Za-z0-9+/=]{0,44}){0,2}",
        ) {
            drop(ServerFirst::parse(server_first.as_bytes(), "abcd"));
            for mechanism in Mechanism::ALL {
                drop(ClientFinal::parse(client_final.as_bytes(), mechanism, "n,,", "abcdWXYZ"));
            }
        }
    }
}
