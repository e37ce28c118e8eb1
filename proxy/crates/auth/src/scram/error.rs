//! Errors of a SCRAM conversation, and who caused each error: the client, the server or Seawall.

use std::fmt;

/// The reason why a SCRAM conversation failed. No variant contains a secret, or text that a peer
/// sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// A payload is longer than `MAX_PAYLOAD_BYTES`.
    #[error("the {message} message has {length} bytes, more than the maximum of {max}")]
    PayloadTooLong {
        /// The message that was expected.
        message: ScramMessage,
        /// Length of the payload in bytes.
        length: usize,
        /// The maximum length in bytes.
        max: usize,
    },
    /// A payload does not follow the grammar of SCRAM messages.
    #[error("the {message} message is malformed: expected {expected}")]
    Malformed {
        /// The message that was expected.
        message: ScramMessage,
        /// The part that is missing, misplaced or invalid.
        expected: &'static str,
    },
    /// The client requests channel binding (`p=`), which MongoDB does not support.
    #[error("the client requests channel binding")]
    ChannelBindingRequested,
    /// A message has a mandatory extension (`m=`), which must be refused (RFC 5802).
    #[error("the {message} message has a mandatory extension")]
    MandatoryExtension {
        /// The message with the extension.
        message: ScramMessage,
    },
    /// The client authenticates as one user and requests to act as another user (`a=`).
    #[error("the authorization identity names another user")]
    ForeignAuthorizationIdentity,
    /// A `=` in the user name is not part of `=2C` or `=3D`.
    #[error("the user name has an invalid escape")]
    UserNameEscape,
    /// The client's nonce is so short that it can be guessed.
    #[error("the client nonce has {length} characters, fewer than the minimum of {min}")]
    NonceTooShort {
        /// Number of characters of the nonce.
        length: usize,
        /// The minimum number of characters that servers accept.
        min: usize,
    },
    /// The value of `c=` is not the GS2 header that the client has sent, so one of the two values
    /// was changed in transit.
    #[error("the channel binding differs from the GS2 header")]
    ChannelBindingMismatch,
    /// The nonce (`r=`) belongs to another conversation. The message may be a replay.
    #[error("the nonce of the {message} message does not belong to this conversation")]
    NonceMismatch {
        /// The message with the nonce.
        message: ScramMessage,
    },
    /// The iteration count is too low to protect the password, or so high that it costs too much
    /// CPU time.
    #[error("the iteration count {iterations} is outside the range {min} to {max}")]
    IterationsOutOfRange {
        /// The iteration count in the message or in the keys.
        iterations: u32,
        /// The minimum, [`MIN_ITERATIONS`](super::MIN_ITERATIONS).
        min: u32,
        /// The maximum, [`MAX_ITERATIONS`](super::MAX_ITERATIONS).
        max: u32,
    },
    /// The client's proof does not match the stored key. The client has a wrong password, or the
    /// stored key is outdated.
    #[error("the proof does not match the stored key")]
    ProofMismatch,
    /// A proof that a server has accepted does not match the keys that were read from this server.
    /// The keys belong to another user than the user that logged in.
    #[error("the accepted proof does not match the keys read from the server")]
    KeysDisagree,
    /// The signature (`v=`) does not match the server key, so the server does not know the user's
    /// keys.
    #[error("the server signature does not match the server key")]
    ServerSignatureMismatch,
    /// The server ended the conversation with `e=`.
    #[error("the server ended the conversation with an error")]
    ServerReportedError,
    /// Seawall has other keys than the server, because the password was changed. The keys must be
    /// read again.
    #[error("the keys are outdated: the server has other keys")]
    KeysOutdated,
    /// The keys and the conversation belong to different mechanisms, or two keys that must match
    /// belong to different mechanisms.
    #[error("the keys belong to different mechanisms, or the conversation has another mechanism")]
    MechanismMismatch,
    /// SASLprep (RFC 4013) forbids a character of the password.
    #[error("the password has a character that SASLprep forbids")]
    PasswordNotPreparable,
}

impl ScramError {
    /// The side that caused the error. After an error of the client, the client gets
    /// `AuthenticationFailed`. After an error of the server, Seawall must send no further proofs on
    /// this connection.
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
    /// The client caused the error, for example with a wrong password.
    Client,
    /// The server caused the error, for example with a wrong signature.
    Server,
    /// Seawall caused the error: its keys, its configuration or its code are wrong.
    Us,
}

/// The four messages of a conversation, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScramMessage {
    /// The message with the user's name and the client's nonce.
    ClientFirst,
    /// The message with the combined nonce, the salt and the iteration count.
    ServerFirst,
    /// The message with the client's proof.
    ClientFinal,
    /// The message with the server's signature.
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
    fn every_scram_error_has_the_client_the_server_or_seawall_as_its_cause() {
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
