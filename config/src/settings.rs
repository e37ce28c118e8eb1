//! The validated settings: what the parts of the proxy are built from.
//!
//! Every value is present, within its bounds and in agreement with the others. An `Option` means
//! that the thing itself may be absent, never that a default is still to be found. Each section
//! goes by value to the part that it configures.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use crate::address::{AdminAddress, ListenAddress};
use crate::secret::{Secret, SecretBytes};

/// A whole configuration that Seawall can run with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The door: where clients come in.
    pub listen: Listen,
    /// The servers behind Seawall.
    pub deployment: Deployment,
    /// How clients prove who they are.
    pub auth: Auth,
    /// Connections to servers.
    pub pool: Pool,
    /// What is admitted, remembered and buffered at most.
    pub limits: Limits,
    /// The table of shapes.
    pub shapes: Shapes,
    /// What is remembered of what was counted.
    pub history: History,
    /// The sampling of servers.
    pub pulse: Pulse,
    /// Slow operations, one by one; `None` logs none.
    pub slow_log: Option<SlowLog>,
    /// What is made to go wrong, for experiments.
    pub fault: Option<Fault>,
    /// How Seawall ends.
    pub shutdown: Shutdown,
    /// Threads.
    pub runtime: Runtime,
    /// Metrics, health and the API.
    pub admin: Admin,
    /// What is logged, and how.
    pub log: Log,
}

/// The door: where clients come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// The addresses to bind, at least one and none twice.
    pub addresses: Vec<ListenAddress>,
    /// Client connections at a time over all addresses; more are refused.
    pub max_client_connections: NonZeroUsize,
    /// Connections that the kernel holds for each address until they are accepted.
    pub backlog: NonZeroU32,
    /// What clients may compress with, none twice.
    pub compressors: Vec<Compressor>,
    /// With which certificate clients are met; `None` is plain TCP.
    pub tls: Option<Tls>,
}

/// A way to compress messages that MongoDB knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// Fast, and the least of the three.
    Snappy,
    /// The smallest for the work.
    Zstd,
    /// Known to the oldest clients.
    Zlib,
}

impl Compressor {
    /// All there are.
    pub const ALL: [Self; 3] = [Self::Snappy, Self::Zstd, Self::Zlib];

    /// Its name, here and in connection strings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snappy => "snappy",
            Self::Zstd => "zstd",
            Self::Zlib => "zlib",
        }
    }
}

/// The certificate that clients see. Both files could be opened when the settings were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// PEM, the certificate of this host first, then its chain.
    pub certificate_file: PathBuf,
    /// PEM, the private key of the first certificate.
    pub key_file: PathBuf,
}

/// The servers behind Seawall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// The connection string; only its scheme has been checked.
    pub uri: Secret,
    /// How clients are served.
    pub mode: Mode,
    /// Whether a relay leads where its client connected to before it was redirected here (Linux).
    pub original_destination: bool,
    /// Whether a relay passes TLS that the client speaks with the server, of which nothing can be seen.
    pub relay_encrypted: bool,
    /// How long an operation waits for a suitable server.
    pub server_selection_timeout: Duration,
    /// Whether operations carry the application's name to the servers.
    pub name_applications: bool,
    /// Whether an operation is sent once more where that is safe, and state-change errors are
    /// concealed. If not, errors and their labels reach clients unchanged.
    pub repeat: bool,
    /// Width of the latency window: 0 leaves only the fastest suitable server.
    pub local_threshold: Duration,
    /// Time between two checks of a server, at least 500 ms.
    pub heartbeat_frequency: Duration,
    /// Deadline for TCP and TLS to a server.
    pub connect_timeout: Duration,
}

/// How clients are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Seawall authenticates clients and runs each operation on a pooled connection of its user.
    Pooled,
    /// One server connection a client connection; all bytes pass unchanged and are only watched.
    Relay,
}

/// How clients prove who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// Where credentials come from; [`Credentials::Auto`] is left for the proxy to decide.
    pub credentials: Credentials,
    /// Age at which credentials that no server could confirm are dropped.
    pub max_stale: Duration,
    /// Deadline of a client from accept until it is authenticated.
    pub authentication_timeout: Duration,
    /// What becomes of clients that log in by a mechanism that cannot be terminated.
    pub other_mechanisms: OtherMechanisms,
    /// Configured users, none twice; only with [`Credentials::Users`] and [`Credentials::Auto`].
    pub users: Vec<User>,
}

/// Where the credentials of clients come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Credentials {
    /// From the service account if the connection string names one, else from the configured
    /// users if there are any, else from each user's own first login.
    Auto,
    /// From each user's own first login (`"self"`).
    #[serde(rename = "self")]
    Own,
    /// Looked up by the service account that the connection string names.
    Lookup,
    /// From the configuration.
    Users,
    /// Nobody authenticates: a deployment without access control.
    None,
}

/// What becomes of clients that log in by a mechanism other than SCRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtherMechanisms {
    /// They are told that it is not enabled.
    Refuse,
    /// They get a server connection each, over which their login and all else passes unchanged.
    Relay,
}

/// A user whose credentials are configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name it logs in with.
    pub name: String,
    /// The database it is defined in.
    pub source: String,
    /// What proves it.
    pub credential: UserCredential,
}

/// What proves a configured user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserCredential {
    /// The password, for every mechanism.
    Password(Secret),
    /// Keys made from the password, for the mechanisms they were made for.
    Keys(UserKeys),
}

/// The SCRAM keys of a user, of at least one mechanism.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserKeys {
    /// For SCRAM-SHA-1.
    pub scram_sha_1: Option<ScramKeys<20>>,
    /// For SCRAM-SHA-256.
    pub scram_sha_256: Option<ScramKeys<32>>,
}

/// What a server keeps of a user for one SCRAM mechanism, whose hash has `N` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScramKeys<const N: usize> {
    /// Decoded, 1 to 64 bytes.
    pub salt: Vec<u8>,
    /// Rounds of PBKDF2, at least 4096.
    pub iterations: NonZeroU32,
    /// Verifies the client's proof.
    pub stored_key: SecretBytes<N>,
    /// Signs the server's answer.
    pub server_key: SecretBytes<N>,
}

/// Connections to servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Connections of one user to one server.
    pub max_pool_size: NonZeroUsize,
    /// Connections of all users to one server; whichever of the two is reached first holds.
    pub max_server_connections: NonZeroUsize,
    /// Connections of one user to one server that are kept while idle, at most `max_pool_size`.
    pub min_pool_size: usize,
    /// Connections that one pool establishes at a time.
    pub max_connecting: NonZeroUsize,
    /// Connections begun to one server in a second, of all users; `None` for no limit.
    pub connections_per_second: Option<NonZeroU32>,
    /// Idle time after which a connection is closed; `None` is never.
    pub max_idle_time: Option<Duration>,
    /// Age at which an idle connection is closed; `None` is never.
    pub max_life_time: Option<Duration>,
    /// How long an operation waits for a connection.
    pub wait_queue_timeout: Duration,
    /// Operations that wait for connections to one server.
    pub wait_queue_size: NonZeroUsize,
}

/// What is admitted, remembered and buffered at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest message of a client that has not authenticated.
    pub pre_auth_message_bytes: usize,
    /// Memory for the large messages of all clients together, at least 64 MiB.
    pub message_memory_bytes: usize,
    /// Clients in pooled mode that are relayed at a time, for their mechanisms' sake.
    pub relayed_connections: NonZeroUsize,
    /// How long a client may take no byte of its reply.
    pub client_write_idle_timeout: Duration,
    /// Open cursors that are pinned to their servers.
    pub max_cursors: NonZeroUsize,
    /// Open transactions that are pinned to their servers.
    pub max_transactions: NonZeroUsize,
    /// How long the place of an unused cursor is remembered.
    pub cursor_idle: Duration,
    /// How long the place of an unused transaction is remembered.
    pub transaction_idle: Duration,
    /// Users whose credentials are remembered.
    pub max_users: NonZeroUsize,
    /// First logins of unknown users that are carried to servers at a time.
    pub introductions: NonZeroUsize,
    /// First logins that wait for their client's proof at a time, each on a server connection.
    pub introduction_conversations: NonZeroUsize,
    /// Client connections between accept and authenticated at a time.
    pub unauthenticated_connections: NonZeroUsize,
    /// Connections of drivers' monitors, where clients have to log in.
    pub monitor_connections: NonZeroUsize,
    /// Operations that are admitted at a time.
    pub max_in_flight_operations: NonZeroUsize,
    /// How often clients may connect from one address, a second.
    pub connections_per_second_per_address: Option<u32>,
    /// How often one user may log in, a second.
    pub logins_per_second_per_user: Option<u32>,
    /// Networks of load balancers: clients behind them share resources by user after login.
    pub shared_addresses: Vec<IpNet>,
}

/// The table of shapes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shapes {
    /// Whether commands are fingerprinted and counted by shape at all.
    pub enabled: bool,
    /// Shapes that are counted one by one, the rest as `other`.
    pub max_shapes: NonZeroUsize,
    /// Namespaces that appear as labels, the rest as `other`.
    pub max_namespaces: NonZeroUsize,
    /// With it, fields' names are told by keyed hashes.
    pub name_key: Option<Secret>,
}

/// What is remembered of what was counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// Whether anything is remembered at all.
    pub enabled: bool,
    /// Where it is kept across restarts; `None` is in memory only. Not looked at yet.
    pub directory: Option<PathBuf>,
    /// Memory for all that is remembered, at least 1 MiB.
    pub memory_bytes: usize,
    /// Shapes that are remembered one by one, the rest as `other`.
    pub max_series_shapes: NonZeroUsize,
}

/// The sampling of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// Whether servers are sampled where there is a service account.
    pub enabled: bool,
    /// Time between two samples of a server, 100 ms to a minute.
    pub interval: Duration,
    /// How long a sample may take, 1 ms to a minute.
    pub timeout: Duration,
}

/// The log of slow operations.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowLog {
    /// Operations that take so long are logged; 0 is every operation.
    pub threshold: Duration,
    /// Shapes with a threshold of their own, by id in ascending order and none twice.
    pub shape_thresholds: Vec<(u64, Duration)>,
    /// How many of the operations over their threshold are logged, 0 to 100.
    pub sample_percent: f64,
    /// Where lines are appended; `None` is standard error. Not opened yet.
    pub file: Option<PathBuf>,
    /// Lines a second at most; `None` is no limit.
    pub max_lines_per_second: Option<NonZeroU32>,
    /// Whether values stay out of the lines.
    pub redact: bool,
    /// Where the values of a command are cut.
    pub max_command_bytes: usize,
}

// The share is from 0 to 100, so that it equals itself.
impl Eq for SlowLog {}

/// Injected failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The command's name, or every one.
    pub command: Option<String>,
    /// `database` or `database.collection`, or every one.
    pub namespace: Option<String>,
    /// How many of these operations are concerned.
    pub share_percent: u64,
    /// How long each is held.
    pub delay: Duration,
    /// What each is answered instead of going on.
    pub error_code: Option<i32>,
    /// Whether the client is closed instead.
    pub close: bool,
}

/// How Seawall ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// How long running operations, cursors and transactions may go on; 0 ends them at once.
    pub drain: Duration,
}

/// Threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Threads that serve clients; `None` is one a core.
    pub worker_threads: Option<NonZeroUsize>,
    /// Whether the process may write core dumps and be traced.
    pub core_dumps: bool,
}

/// Metrics, health and the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// Where they are served, if anywhere.
    pub address: AdminAddress,
    /// The token that callers must present; always there unless the address is loopback or off.
    pub token: Option<Secret>,
    /// Host names, in lower case, that requests without a token may name beside IP addresses and `localhost`.
    pub allowed_hosts: Vec<String>,
    /// Whether CPU profiles are served.
    pub profile: bool,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The least important events that are logged.
    pub level: LogLevel,
    /// How events are written.
    pub format: LogFormat,
}

/// How important an event must be to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something is broken.
    Error,
    /// Something may break, or did and was mended.
    Warn,
    /// What changed: starts, topology, drains.
    Info,
    /// Single connections and operations.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The word that the configuration and log filters use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// How events are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}
