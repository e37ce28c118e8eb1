//! Errors of a SCRAM conversation, and which side caused them.

use std::fmt;

/// Why a SCRAM conversation failed. No variant holds a secret or text that a peer sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A payload is longer than any real one.
    #[error("{message} has {length} bytes, more than {max}")]
    PayloadTooLong {
        /// The message that was expected.
        message: ScramMessage,
        /// Bytes in the payload.
        length: usize,
        /// The limit, [`MAX_PAYLOAD_BYTES`](super::MAX_PAYLOAD_BYTES).
        max: usize,
    },
    /// A payload does not follow the grammar.
    #[error("{message} is malformed: expected {expected}")]
    Malformed {
        /// The message that was expected.
        message: ScramMessage,
        /// The part that is missing, misplaced or invalid.
        expected: &'static str,
    },
    /// The client asks for channel binding (`p=`), which MongoDB does not support.
    #[error("the client asks for channel binding")]
    ChannelBindingRequested,
    /// A mandatory extension (`m=`); RFC 5802 requires that it is refused.
    #[error("{message} has a mandatory extension")]
    MandatoryExtension {
        /// The message that holds it.
        message: ScramMessage,
    },
    /// The client wants to act as another user than it authenticates as (`a=`).
    #[error("the authorization identity is another user")]
    ForeignAuthorizationIdentity,
    /// A `=` in the user name is not part of `=2C` or `=3D`.
    #[error("the user name has an invalid escape")]
    UserNameEscape,
    /// The client's nonce is too short to protect anything.
    #[error("the client nonce has {length} characters, fewer than {min}")]
    NonceTooShort {
        /// Characters in the nonce.
        length: usize,
        /// The fewest that servers accept.
        min: usize,
    },
    /// `c=` is not the GS2 header that the client sent: it was changed in transit.
    #[error("the channel binding differs from the one announced")]
    ChannelBindingMismatch,
    /// `r=` does not continue the nonces of this conversation: a replay, or a mix-up.
    #[error("the nonce of {message} does not belong to this conversation")]
    NonceMismatch {
        /// The message that holds the nonce.
        message: ScramMessage,
    },
    /// An iteration count so low that it is no protection, or so high that it is an attack.
    #[error("{iterations} iterations are outside {min} to {max}")]
    IterationsOutOfRange {
        /// The count that was given.
        iterations: u32,
        /// [`MIN_ITERATIONS`](super::MIN_ITERATIONS)
        min: u32,
        /// [`MAX_ITERATIONS`](super::MAX_ITERATIONS)
        max: u32,
    },
    /// The client's proof does not match the stored keys: wrong password, or keys that are no
    /// longer the user's.
    #[error("the proof does not match the stored key")]
    ProofMismatch,
    /// A proof that the server accepted does not match the keys read from that server: they are not
    /// the keys of the user who logged in.
    #[error("the accepted proof does not match the keys read from the server")]
    KeysDisagree,
    /// `v=` does not match the server key: the peer does not know this user's keys.
    #[error("the server signature does not match the server key")]
    ServerSignatureMismatch,
    /// The server ended the conversation with `e=`.
    #[error("the server reported an error")]
    ServerReportedError,
    /// Seawall's keys are not those that the server uses: the password was changed. Read the keys
    /// again.
    #[error("the keys are not those that the server uses")]
    KeysOutdated,
    /// The keys belong to another mechanism than the conversation, or a key has the wrong length.
    #[error("the keys belong to another mechanism")]
    MechanismMismatch,
    /// SASLprep (RFC 4013) forbids a character of the password.
    #[error("the password has a character that SASLprep forbids")]
    PasswordNotPreparable,
}

impl ScramError {
    /// The side that caused the error. A client at fault gets `AuthenticationFailed`; a server at
    /// fault must not get further keys or proofs on this connection.
    pub fn fault(&self) -> Fault {
        match self {
            Self::PayloadTooLong { message, .. }
            | Self::Malformed { message, .. }
            | Self::MandatoryExtension { message }
            | Self::NonceMismatch { message } => message.sender(),
            Self::ChannelBindingRequested
            | Self::ForeignAuthorizationIdentity
            | Self::UserNameEscape
            | Self::NonceTooShort { .. }
            | Self::ChannelBindingMismatch
            | Self::ProofMismatch => Fault::Client,
            Self::IterationsOutOfRange { .. }
            | Self::KeysDisagree
            | Self::ServerSignatureMismatch
            | Self::ServerReportedError => Fault::Server,
            Self::KeysOutdated | Self::MechanismMismatch | Self::PasswordNotPreparable => Fault::Us,
        }
    }
}

/// The side that caused an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The client that authenticates to Seawall, or its credentials.
    Client,
    /// The server that Seawall authenticates to.
    Server,
    /// Seawall itself: its keys, configuration or code.
    Us,
}

/// The four messages of a conversation, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScramMessage {
    /// The user's name and the client's nonce.
    ClientFirst,
    /// The combined nonce, the salt and the iteration count.
    ServerFirst,
    /// The client's proof.
    ClientFinal,
    /// The server's signature.
    ServerFinal,
}

impl ScramMessage {
    fn sender(self) -> Fault {
        match self {
            Self::ClientFirst | Self::ClientFinal => Fault::Client,
            Self::ServerFirst | Self::ServerFinal => Fault::Server,
        }
    }
}

impl fmt::Display for ScramMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClientFirst => "client-first",
            Self::ServerFirst => "server-first",
            Self::ClientFinal => "client-final",
            Self::ServerFinal => "server-final",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_names_the_side_at_fault() {
        let message = ScramMessage::ClientFirst;
        let cases = [
            (
                ScramError::PayloadTooLong {
                    message,
                    length: 2,
                    max: 1,
                },
                Fault::Client,
            ),
            (
                ScramError::Malformed {
                    message,
                    expected: "r=",
                },
                Fault::Client,
            ),
            (
                ScramError::Malformed {
                    message: ScramMessage::ServerFirst,
                    expected: "r=",
                },
                Fault::Server,
            ),
            (ScramError::ChannelBindingRequested, Fault::Client),
            (ScramError::MandatoryExtension { message }, Fault::Client),
            (ScramError::ForeignAuthorizationIdentity, Fault::Client),
            (ScramError::UserNameEscape, Fault::Client),
            (
                ScramError::NonceTooShort { length: 1, min: 4 },
                Fault::Client,
            ),
            (ScramError::ChannelBindingMismatch, Fault::Client),
            (
                ScramError::NonceMismatch {
                    message: ScramMessage::ClientFinal,
                },
                Fault::Client,
            ),
            (
                ScramError::NonceMismatch {
                    message: ScramMessage::ServerFinal,
                },
                Fault::Server,
            ),
            (
                ScramError::IterationsOutOfRange {
                    iterations: 1,
                    min: 2,
                    max: 3,
                },
                Fault::Server,
            ),
            (ScramError::ProofMismatch, Fault::Client),
            (ScramError::KeysDisagree, Fault::Server),
            (ScramError::ServerSignatureMismatch, Fault::Server),
            (ScramError::ServerReportedError, Fault::Server),
            (ScramError::KeysOutdated, Fault::Us),
            (ScramError::MechanismMismatch, Fault::Us),
            (ScramError::PasswordNotPreparable, Fault::Us),
        ];
        for (error, fault) in cases {
            assert_eq!(error.fault(), fault, "{error}");
        }
    }
}
