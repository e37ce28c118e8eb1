//! The reasons why a connection to a server could not be established.

use std::{fmt, io, time::Duration};

use super::{
    ControlError, ServerAddress, refuses_login,
    socket::is_local_failure,
    tls::{CertificateRefusal, CertificateRequest, refuses_certificate},
};
use seawall_auth::ScramError;

/// A step of establishing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstablishStep {
    /// Resolving the host name.
    Resolve,
    /// Connecting the TCP or unix socket.
    Connect,
    /// The TLS handshake.
    Tls,
    /// Sending `hello` and reading its reply.
    Hello,
    /// Logging in.
    Authenticate,
    /// Asking if the server requires a login.
    AccessControl,
}

impl fmt::Display for EstablishStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resolve => "name resolution",
            Self::Connect => "connection",
            Self::Tls => "TLS handshake",
            Self::Hello => "hello",
            Self::Authenticate => "authentication",
            Self::AccessControl => "check of access control",
        })
    }
}

/// The reason why a connection could not be established.
#[derive(Debug, thiserror::Error)]
pub enum EstablishError {
    /// A step without a command failed: the name resolution, the attempt to connect, the TLS
    /// handshake, or the derivation of keys for a login.
    #[error("{step} to {address} failed: {source}")]
    Io {
        /// The step that failed.
        step: EstablishStep,
        /// The address of the server.
        address: ServerAddress,
        /// The error of the resolver, of the socket, of TLS, or of the task that derives keys.
        source: io::Error,
    },
    /// The steps took longer than the limit.
    #[error("the connection to {address} was not ready within {} ms", limit.as_millis())]
    TimedOut {
        /// The address of the server.
        address: ServerAddress,
        /// The time limit for all steps together.
        limit: Duration,
    },
    /// A command got no valid reply.
    #[error("{step} at {address} failed: {source}")]
    Exchange {
        /// The step that failed.
        step: EstablishStep,
        /// The address of the server.
        address: ServerAddress,
        /// Why the command got no valid reply.
        source: ControlError,
    },
    /// The server replied with an error.
    #[error("{step} refused by {address}: {message} ({code})")]
    Refused {
        /// The step that failed.
        step: EstablishStep,
        /// The address of the server.
        address: ServerAddress,
        /// The error code in the server's reply.
        code: i32,
        /// The error message in the server's reply.
        message: String,
    },
    /// Seawall ended the SCRAM conversation, for example because the server's signature was wrong.
    #[error("authentication at {address} failed: {source}")]
    Scram {
        /// The address of the server.
        address: ServerAddress,
        /// The error of the conversation.
        source: ScramError,
    },
    /// The identity has no SCRAM keys, so Seawall cannot log in as this user.
    #[error("Seawall has no keys to log in as this user")]
    NoLogin,
    /// The server requires a login, but the connection is for anonymous clients.
    #[error("{address} requires authentication")]
    RequiresAuthentication {
        /// The address of the server.
        address: ServerAddress,
    },
}

impl EstablishError {
    /// True in three cases: Seawall has no SCRAM keys of the user, the server refuses the keys, or
    /// the server has other keys of the user now. The client must then log in again.
    pub fn refuses_keys(&self) -> bool {
        match self {
            Self::Refused {
                step: EstablishStep::Authenticate,
                code,
                ..
            } => refuses_login(*code),
            Self::Scram { source, .. } => *source == ScramError::KeysOutdated,
            Self::NoLogin => true,
            Self::RequiresAuthentication { .. }
            | Self::Refused { .. }
            | Self::Io { .. }
            | Self::TimedOut { .. }
            | Self::Exchange { .. } => false,
        }
    }

    /// True in three cases: Seawall has no SCRAM keys of the user, the server refuses the login, or
    /// Seawall ended the SCRAM conversation. A new attempt with the same keys would fail too.
    pub fn is_refused_login(&self) -> bool {
        self.refuses_keys() || matches!(self, Self::Scram { .. })
    }

    /// True if the server, or the network path to it, failed before a login began. So the login
    /// cannot be the cause of the failure.
    pub fn blames_server_before_login(&self) -> bool {
        let may_be_login = self.failed_authentication() || matches!(self, Self::TimedOut { .. });
        self.blames_server() && !may_be_login
    }

    /// True if a login at the server began and did not succeed. False after a timeout, because
    /// [`Self::TimedOut`] does not show which step took too long.
    pub fn failed_authentication(&self) -> bool {
        match self {
            Self::Scram { .. } => true,
            Self::Refused { step, .. } | Self::Exchange { step, .. } => {
                *step == EstablishStep::Authenticate
            }
            Self::Io { .. }
            | Self::TimedOut { .. }
            | Self::NoLogin
            | Self::RequiresAuthentication { .. } => false,
        }
    }

    /// True if the host name could not be resolved, or if Seawall's host could not open the
    /// connection. For example, no file descriptor was left. Such a failure says nothing about the
    /// server.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Io { step, source, .. } => match step {
                EstablishStep::Resolve => true,
                EstablishStep::Connect => is_local_failure(source),
                EstablishStep::Tls
                | EstablishStep::Hello
                | EstablishStep::Authenticate
                | EstablishStep::AccessControl => false,
            },
            Self::TimedOut { .. }
            | Self::Exchange { .. }
            | Self::Refused { .. }
            | Self::Scram { .. }
            | Self::NoLogin
            | Self::RequiresAuthentication { .. } => false,
        }
    }

    /// True if the server, or the network path to it, failed.
    pub fn blames_server(&self) -> bool {
        match self {
            Self::Io { .. } => !self.is_local(),
            Self::TimedOut { .. } | Self::Exchange { .. } => true,
            Self::Refused { step, .. } => match step {
                EstablishStep::Hello | EstablishStep::AccessControl => true,
                EstablishStep::Resolve
                | EstablishStep::Connect
                | EstablishStep::Tls
                | EstablishStep::Authenticate => false,
            },
            Self::Scram { .. } | Self::NoLogin | Self::RequiresAuthentication { .. } => false,
        }
    }

    /// True if the server requires a login, but the connection is for anonymous clients.
    pub fn requires_authentication(&self) -> bool {
        matches!(self, Self::RequiresAuthentication { .. })
    }

    /// What failed, as a clause without addresses and details. So this text can be sent to clients
    /// that have not logged in.
    pub fn summary(&self) -> &'static str {
        match self {
            Self::Io { step, source, .. } => match step {
                EstablishStep::Resolve => "its host name could not be resolved",
                EstablishStep::Connect => "it could not be reached",
                EstablishStep::Tls if refuses_certificate(source) => {
                    "Seawall refuses its certificate"
                }
                EstablishStep::Tls => {
                    CertificateRefusal::summary_of(source).unwrap_or("the TLS handshake failed")
                }
                EstablishStep::Hello
                | EstablishStep::Authenticate
                | EstablishStep::AccessControl => "the login failed",
            },
            Self::TimedOut { .. } => "it did not respond in time",
            Self::Exchange { source, .. } => match source {
                ControlError::Io(source) => {
                    CertificateRefusal::summary_of(source).unwrap_or("it closed the connection")
                }
                ControlError::Frame(_)
                | ControlError::Message(_)
                | ControlError::Bson
                | ControlError::ForeignReply { .. }
                | ControlError::OtherOpCode { .. }
                | ControlError::MoreToCome => "its reply was not valid",
            },
            Self::Refused { .. } => "it replied with an error",
            Self::Scram { .. } | Self::NoLogin => "the login failed",
            Self::RequiresAuthentication { .. } => "it requires authentication",
        }
    }

    /// Returns the error of a connection's first command. If reading or writing failed after the
    /// server had asked for a client certificate, the returned error also says so.
    pub(super) fn explained_by(self, request: CertificateRequest) -> Self {
        match self {
            Self::Exchange {
                step,
                address,
                source: ControlError::Io(source),
            } => Self::Exchange {
                step,
                address,
                source: ControlError::Io(request.explain(source)),
            },
            error => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use tokio_rustls::rustls::{self, AlertDescription, CertificateError};

    use super::*;

    fn address() -> ServerAddress {
        "h:1".parse().unwrap()
    }

    fn refused(step: EstablishStep, code: i32) -> EstablishError {
        EstablishError::Refused {
            step,
            address: address(),
            code,
            message: String::new(),
        }
    }

    fn io(step: EstablishStep, errno: Errno) -> EstablishError {
        EstablishError::Io {
            step,
            address: address(),
            source: errno.into(),
        }
    }

    fn scram(source: ScramError) -> EstablishError {
        EstablishError::Scram {
            address: address(),
            source,
        }
    }

    /// If a server refuses the SCRAM keys of a user, the client must log in again. If the server
    /// failed, Seawall clears the pool of this server.
    #[test]
    fn each_connection_error_blames_the_scram_keys_or_the_server_or_neither() {
        let exchange = EstablishError::Exchange {
            step: EstablishStep::Authenticate,
            address: address(),
            source: ControlError::Bson,
        };
        let open = EstablishError::RequiresAuthentication { address: address() };
        for (error, refuses_keys, blames_server) in [
            (refused(EstablishStep::Authenticate, 18), true, false),
            (refused(EstablishStep::Authenticate, 334), true, false),
            (refused(EstablishStep::Authenticate, 8000), true, false),
            (refused(EstablishStep::Authenticate, 11_600), false, false),
            (refused(EstablishStep::Authenticate, 463), false, false),
            (refused(EstablishStep::Hello, 18), false, true),
            (refused(EstablishStep::AccessControl, 91), false, true),
            (scram(ScramError::KeysOutdated), true, false),
            (scram(ScramError::ServerSignatureMismatch), false, false),
            (EstablishError::NoLogin, true, false),
            (io(EstablishStep::Resolve, Errno::NOENT), false, false),
            (io(EstablishStep::Connect, Errno::MFILE), false, false),
            (io(EstablishStep::Connect, Errno::CONNREFUSED), false, true),
            (io(EstablishStep::Tls, Errno::CONNRESET), false, true),
            (exchange, false, true),
            (open, false, false),
        ] {
            let blamed = (error.refuses_keys(), error.blames_server());
            assert_eq!(blamed, (refuses_keys, blames_server), "{error}");
        }
    }

    /// Clients that have not logged in may see these texts.
    #[test]
    fn the_summary_of_a_connection_error_names_the_problem_but_no_address() {
        let tls = |source| EstablishError::Io {
            step: EstablishStep::Tls,
            address: address(),
            source,
        };
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let refused_server = rustls::Error::InvalidCertificate(CertificateError::Expired);
        let alert = rustls::Error::AlertReceived(AlertDescription::HandshakeFailure);
        let missing = || CertificateRefusal::Missing(io::ErrorKind::UnexpectedEof.into());
        let first_command = |source| EstablishError::Exchange {
            step: EstablishStep::Hello,
            address: address(),
            source: ControlError::Io(source),
        };
        let needs_certificate = "it asked for a certificate, and Seawall has none";
        for (error, summary) in [
            (
                io(EstablishStep::Resolve, Errno::NOENT),
                "its host name could not be resolved",
            ),
            (
                io(EstablishStep::Connect, Errno::CONNREFUSED),
                "it could not be reached",
            ),
            (
                tls(invalid(refused_server)),
                "Seawall refuses its certificate",
            ),
            (tls(invalid(alert)), "the TLS handshake failed"),
            (tls(io::Error::other(missing())), needs_certificate),
            (
                first_command(io::Error::other(missing())),
                needs_certificate,
            ),
            (
                first_command(io::ErrorKind::UnexpectedEof.into()),
                "it closed the connection",
            ),
            (
                refused(EstablishStep::Hello, 13),
                "it replied with an error",
            ),
        ] {
            assert_eq!(error.summary(), summary, "{error}");
        }
    }

    #[test]
    fn the_message_of_a_timeout_shows_the_limit_in_milliseconds() {
        let error = EstablishError::TimedOut {
            address: address(),
            limit: Duration::from_secs(10),
        };
        let message = "the connection to h:1 was not ready within 10000 ms";
        assert_eq!(error.to_string(), message);
    }
}
