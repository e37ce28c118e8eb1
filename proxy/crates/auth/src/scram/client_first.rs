//! The client-first message of a conversation, with the user's name and the client's nonce.

use super::payload::{Attributes, is_nonce, text};
use super::{ScramError, ScramMessage};

/// A parsed client-first message. It requests no channel binding, and its nonce has at least the
/// length that servers require.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFirst {
    gs2_header: String,
    bare: String,
    user: String,
    nonce: String,
}

impl ClientFirst {
    /// Parses the payload of `saslStart`.
    ///
    /// Accepts the GS2 headers `n,,` and `y,,`, an authorization identity that equals the user's
    /// name (after its escapes are decoded), and extensions after the nonce.
    ///
    /// # Errors
    /// Fails if the payload is malformed, requests channel binding (`p=`) or has a mandatory
    /// extension (`m=`). Also fails if the authorization identity belongs to another user, if the
    /// user's name has an escape other than `=2C` and `=3D`, or if the nonce is shorter than
    /// servers accept.
    pub fn parse(payload: &[u8]) -> Result<Self, ScramError> {
        let message = ScramMessage::ClientFirst;
        let text = text(message, payload)?;
        let malformed = ScramError::Malformed {
            message,
            expected: "a GS2 header",
        };
        let (flag, rest) = text.split_once(',').ok_or(malformed.clone())?;
        if flag.starts_with("p=") {
            return Err(ScramError::ChannelBindingRequested);
        }
        if flag != "n" && flag != "y" {
            return Err(malformed);
        }
        let (authorization_identity, bare) = rest.split_once(',').ok_or(malformed)?;
        let mut attributes = Attributes::new(message, bare);
        let escaped_user = attributes.expect("n=")?;
        let user = parse_user_name(escaped_user)?;
        check_authorization_identity(authorization_identity, &user)?;
        let nonce = attributes.expect("r=")?;
        if !is_nonce(nonce) {
            return Err(ScramError::Malformed {
                message,
                expected: "a printable nonce",
            });
        }
        if nonce.len() < MIN_NONCE_LENGTH {
            let length = nonce.len();
            return Err(ScramError::NonceTooShort {
                length,
                min: MIN_NONCE_LENGTH,
            });
        }
        Ok(Self {
            gs2_header: format!("{flag},{authorization_identity},"),
            bare: bare.to_owned(),
            user,
            nonce: nonce.to_owned(),
        })
    }

    /// The user's name without escapes. Seawall does not apply SASLprep to the name, because
    /// servers compare names byte by byte.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The client's part of the combined nonce.
    pub fn nonce(&self) -> &str {
        &self.nonce
    }

    /// The payload without its GS2 header, exactly as the client sent it.
    pub fn bare(&self) -> &[u8] {
        self.bare.as_bytes()
    }

    pub(super) fn bare_text(&self) -> &str {
        &self.bare
    }

    /// The GS2 header. Encoded in base64, it must be the value of `c=` in the client-final message.
    pub(super) fn gs2_header(&self) -> &str {
        &self.gs2_header
    }
}

/// Escapes `,` and `=` in a user name for a payload.
pub(super) fn escape_user_name(user: &str) -> String {
    user.replace('=', "=3D").replace(',', "=2C")
}

fn parse_user_name(escaped: &str) -> Result<String, ScramError> {
    if escaped.is_empty() || escaped.contains('\0') {
        let message = ScramMessage::ClientFirst;
        return Err(ScramError::Malformed {
            message,
            expected: "a user name",
        });
    }
    unescape_user_name(escaped).ok_or(ScramError::UserNameEscape)
}

/// Decodes the escapes in a user name. `None` if it contains a `=` outside `=2C` and `=3D`.
fn unescape_user_name(escaped: &str) -> Option<String> {
    let mut parts = escaped.split('=');
    let mut user = String::with_capacity(escaped.len());
    user.extend(parts.next());
    for part in parts {
        let (character, rest) = match part.strip_prefix("2C") {
            Some(rest) => (',', rest),
            None => ('=', part.strip_prefix("3D")?),
        };
        user.push(character);
        user.push_str(rest);
    }
    Some(user)
}

/// Checks that the authorization identity is empty or is the user itself. RFC 5802 requires escapes
/// in the identity, but servers do not decode them, so servers refuse an identity with escapes.
/// Seawall must refuse it itself. If Seawall forwarded the message and the server refused it,
/// Seawall would remember the user as unknown.
fn check_authorization_identity(identity: &str, user: &str) -> Result<(), ScramError> {
    if identity.is_empty() {
        return Ok(());
    }
    let Some(identity) = identity.strip_prefix("a=") else {
        let message = ScramMessage::ClientFirst;
        return Err(ScramError::Malformed {
            message,
            expected: "a=",
        });
    };
    match identity == user {
        true => Ok(()),
        false => Err(ScramError::ForeignAuthorizationIdentity),
    }
}

/// Number of characters of the shortest client nonce that servers accept.
const MIN_NONCE_LENGTH: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(payload: &str) -> Result<ClientFirst, ScramError> {
        ClientFirst::parse(payload.as_bytes())
    }

    fn malformed(expected: &'static str) -> ScramError {
        ScramError::Malformed {
            message: ScramMessage::ClientFirst,
            expected,
        }
    }

    #[test]
    fn all_parts_of_a_client_first_message_are_parsed() {
        let client_first = parse("n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL").unwrap();
        assert_eq!(client_first.user(), "user");
        assert_eq!(client_first.nonce(), "fyko+d2lbbFgONRv9qkxdawL");
        assert_eq!(client_first.bare(), b"n=user,r=fyko+d2lbbFgONRv9qkxdawL");
        assert_eq!(client_first.gs2_header(), "n,,");
    }

    #[test]
    fn seawall_accepts_the_same_client_first_messages_as_servers() {
        let cases = [
            ("y,,n=user,r=abcd", "y,,", "user", "abcd"),
            ("n,a=user,n=user,r=abcd", "n,a=user,", "user", "abcd"),
            ("n,a=a=b,n=a=3Db,r=abcd", "n,a=a=b,", "a=b", "abcd"),
            ("n,,n=user,r=abcd,x=1", "n,,", "user", "abcd"),
            ("n,,n=user,r=abcd,,", "n,,", "user", "abcd"),
            ("n,,n=user,r=ab=cd==", "n,,", "user", "ab=cd=="),
            ("n,,n==3D=2C=3D,r=abcd", "n,,", "=,=", "abcd"),
            ("n,,n=a=2C=3D3D,r=abcd", "n,,", "a,=3D", "abcd"),
            ("n,,n=Ⅸ ü.$x,r=abcd", "n,,", "Ⅸ ü.$x", "abcd"),
        ];
        for (payload, gs2_header, user, nonce) in cases {
            let client_first = parse(payload).unwrap();
            assert_eq!(client_first.gs2_header(), gs2_header, "{payload}");
            assert_eq!(client_first.user(), user, "{payload}");
            assert_eq!(client_first.nonce(), nonce, "{payload}");
        }
    }

    #[test]
    fn invalid_client_first_message_is_refused_with_a_reason() {
        let message = ScramMessage::ClientFirst;
        let cases = [
            ("", malformed("a GS2 header")),
            ("n", malformed("a GS2 header")),
            ("n,", malformed("a GS2 header")),
            ("x,,n=user,r=abcd", malformed("a GS2 header")),
            (",,n=user,r=abcd", malformed("a GS2 header")),
            ("n=user,r=abcd", malformed("a GS2 header")),
            ("n,user,n=user,r=abcd", malformed("a=")),
            ("n,,", malformed("n=")),
            ("n,,r=abcd,n=user", malformed("n=")),
            ("n,,n=user", malformed("r=")),
            ("n,,n=user,x=1,r=abcd", malformed("r=")),
            ("n,,n=,r=abcd", malformed("a user name")),
            ("n,,n=us\0er,r=abcd", malformed("a user name")),
            ("n,,n=user,r=", malformed("a printable nonce")),
            ("n,,n=user,r=ab cd", malformed("a printable nonce")),
            ("n,,n=user,r=äbcd", malformed("a printable nonce")),
            (
                "n,,n=user,r=abc",
                ScramError::NonceTooShort { length: 3, min: 4 },
            ),
            (
                "p=tls-unique,,n=user,r=abcd",
                ScramError::ChannelBindingRequested,
            ),
            (
                "n,,m=x,n=user,r=abcd",
                ScramError::MandatoryExtension { message },
            ),
            (
                "n,,n=user,m=x,r=abcd",
                ScramError::MandatoryExtension { message },
            ),
            (
                "n,a=other,n=user,r=abcd",
                ScramError::ForeignAuthorizationIdentity,
            ),
            (
                "n,a=,n=user,r=abcd",
                ScramError::ForeignAuthorizationIdentity,
            ),
            (
                "n,a=a=3Db,n=a=3Db,r=abcd",
                ScramError::ForeignAuthorizationIdentity,
            ),
            ("n,,n=a=b,r=abcd", ScramError::UserNameEscape),
            ("n,,n=a=2c,r=abcd", ScramError::UserNameEscape),
            ("n,,n=a=3d,r=abcd", ScramError::UserNameEscape),
            ("n,,n=a=,r=abcd", ScramError::UserNameEscape),
            ("n,,n=a=2,r=abcd", ScramError::UserNameEscape),
            ("n,,n=a==2C,r=abcd", ScramError::UserNameEscape),
        ];
        for (payload, error) in cases {
            assert_eq!(parse(payload).unwrap_err(), error, "{payload}");
        }
    }

    #[test]
    fn a_client_first_payload_that_is_not_utf_8_is_refused() {
        assert_eq!(
            ClientFirst::parse(b"n,,n=\xff,r=abcd").unwrap_err(),
            malformed("UTF-8")
        );
    }

    #[test]
    fn a_client_first_payload_above_the_length_limit_is_refused() {
        let payload = format!("n,,n=user,r={}", "a".repeat(20_000));
        let message = ScramMessage::ClientFirst;
        let error = ScramError::PayloadTooLong {
            message,
            length: payload.len(),
            max: 16_384,
        };
        assert_eq!(parse(&payload).unwrap_err(), error);
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_as_client_first_never_panics(
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            drop(ClientFirst::parse(&payload));
        }

        #[test]
        fn parsing_an_almost_valid_client_first_message_never_panics(
            payload in "[nypma],?(a=)?[a=,]{0,3},?[nmr]?=?[=23CDx,]{0,12},?r?=?.{0,8}",
        ) {
            drop(ClientFirst::parse(payload.as_bytes()));
        }

        #[test]
        fn escaped_user_names_are_decoded(user in "[^\0]{1,20}", nonce in "[!-+\\--~]{4,30}") {
            let payload = format!("n,,n={},r={nonce}", escape_user_name(&user));
            let client_first = parse(&payload).unwrap();
            prop_assert_eq!(client_first.user(), user);
            prop_assert_eq!(client_first.nonce(), nonce);
        }
    }
}
