//! The grammar of all messages of a conversation: `name=value` attributes, separated by commas.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::keys::check_iterations;
use super::{Key, Mechanism, ScramError, ScramMessage};

/// The attributes of one message. They are read in order.
#[derive(Debug, Clone)]
pub(super) struct Attributes<'a> {
    message: ScramMessage,
    /// The text that has not been read; `None` after the last attribute.
    rest: Option<&'a str>,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(message: ScramMessage, text: &'a str) -> Self {
        Self {
            message,
            rest: Some(text),
        }
    }

    /// Reads the next attribute and returns its value. `name` is the required name with `=`, for
    /// example `"r="`.
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

/// A parsed server-first message.
#[derive(Debug, Clone)]
pub(super) struct ServerFirst {
    /// The whole payload, which is a part of the `AuthMessage`.
    pub(super) text: String,
    pub(super) combined_nonce: String,
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
}

impl ServerFirst {
    /// Parses the payload.
    ///
    /// # Errors
    /// Fails in each of these cases: the payload is too long or malformed; it reports an error of
    /// the server (`e=`); its iteration count is too low or too high; its nonce does not begin with
    /// the client's nonce, so the payload belongs to another conversation; the server's part of the
    /// nonce is empty or not printable.
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

/// A parsed client-final message. Its proof has not been verified.
#[derive(Debug, Clone)]
pub(super) struct ClientFinal<'a> {
    pub(super) without_proof: &'a str,
    pub(super) proof: Key,
}

impl<'a> ClientFinal<'a> {
    /// Parses the payload.
    ///
    /// # Errors
    /// Fails in each of these cases: the payload is too long or malformed; its channel binding
    /// (`c=`) is not the GS2 header; its nonce is not the combined nonce of this conversation.
    pub(super) fn parse(
        payload: &'a [u8],
        mechanism: Mechanism,
        gs2_header: &str,
        combined_nonce: &str,
    ) -> Result<Self, ScramError> {
        let message = ScramMessage::ClientFinal;
        let text = text(message, payload)?;
        // The proof is the last attribute. There may be extensions before it.
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

/// Parses a server-final message and returns its signature.
pub(super) fn parse_server_final(payload: &[u8], mechanism: Mechanism) -> Result<Key, ScramError> {
    let message = ScramMessage::ServerFinal;
    let text = text(message, payload)?;
    if text.starts_with("e=") {
        return Err(ScramError::ServerReportedError);
    }
    let signature = Attributes::new(message, text).expect("v=")?;
    decode_key(message, "a base64 signature", mechanism, signature)
}

/// Builds the `AuthMessage`, which both sides sign, from its three parts.
pub(super) fn auth_message(
    client_first_bare: &str,
    server_first: &str,
    client_final_without_proof: &str,
) -> String {
    format!("{client_first_bare},{server_first},{client_final_without_proof}")
}

/// Returns the payload as text. Fails if the payload is too long or not UTF-8.
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

/// True if `text` can be a nonce or a part of a nonce: it is not empty, and it contains only
/// printable ASCII characters other than the comma.
pub(super) fn is_nonce(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b',')
}

/// Encodes `bytes` as base64, the form of binary values in payloads.
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

/// The maximum length of a payload that is parsed, in bytes. Payloads of drivers have fewer than
/// 300 bytes. Servers refuse a message of more than 16,384 bytes from a client that has not
/// authenticated, so no login needs a longer payload.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 16_384;

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
    fn fields_of_a_server_first_message_are_parsed() {
        let parsed = server_first(SERVER_FIRST).unwrap();
        assert_eq!(parsed.text, SERVER_FIRST);
        assert_eq!(parsed.combined_nonce, "abcdWXYZ");
        assert_eq!(parsed.salt.len(), 16);
        assert_eq!(parsed.iterations, 4_096);
        assert!(server_first(&format!("{SERVER_FIRST},x=1")).is_ok());
    }

    #[test]
    fn invalid_server_first_message_is_refused_with_a_reason() {
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
    fn fields_of_a_client_final_message_are_parsed() {
        let proof = "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=";
        for without_proof in ["c=biws,r=abcdWXYZ", "c=biws,r=abcdWXYZ,x=1,p=2"] {
            let text = format!("{without_proof},p={proof}");
            let parsed = client_final(&text).unwrap();
            assert_eq!(parsed.without_proof, without_proof);
            assert_eq!(encode(parsed.proof.as_bytes()), proof);
        }
    }

    #[test]
    fn invalid_client_final_message_is_refused_with_a_reason() {
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
    fn invalid_server_final_message_is_refused_with_a_reason() {
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
    fn every_scram_payload_has_the_same_length_limit() {
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
        fn parsing_arbitrary_scram_payloads_never_panics(
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for mechanism in Mechanism::ALL {
                drop(ServerFirst::parse(&payload, "abcd"));
                drop(ClientFinal::parse(&payload, mechanism, "n,,", "abcdWXYZ"));
                drop(parse_server_final(&payload, mechanism));
            }
        }

        #[test]
        fn parsing_almost_valid_scram_payloads_never_panics(
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
