//! The possible outcomes of an operation.

/// Number of different outcomes: the length of [`Outcome::ALL`].
pub const OUTCOMES: usize = 7;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server replied `ok: 1`, and no write failed.
    Ok,
    /// The server replied `ok: 1` with write errors or a write concern error.
    WriteError,
    /// The server replied `ok: 0`.
    Error,
    /// Seawall refused the operation, or found no server or connection in time.
    Refused,
    /// The server, or the connection to the server, failed during the operation.
    ServerFailed,
    /// The client disconnected before the operation ended.
    ClientGone,
    /// Seawall replied itself; no server was involved.
    Local,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; OUTCOMES] = [
        Self::Ok,
        Self::WriteError,
        Self::Error,
        Self::Refused,
        Self::ServerFailed,
        Self::ClientGone,
        Self::Local,
    ];

    /// The label value in metrics and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::WriteError => "write_error",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::ServerFailed => "server_failed",
            Self::ClientGone => "client_gone",
            Self::Local => "local",
        }
    }

    /// True if the client got an error, or disconnected before the operation ended.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Ok | Self::Local)
    }

    /// The position in [`Outcome::ALL`].
    pub fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|o| *o == self)
            .unwrap_or_default()
    }
}
