//! The validated settings, from which the parts of the proxy are built.
//!
//! Every value is present, within its bounds and consistent with the others. An `Option` means that
//! the setting itself may be absent; defaults are already filled in. Each section is passed by
//! value to the part that it configures.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;

use crate::address::{AdminAddress, ListenAddress};
use crate::secret::{Secret, SecretBytes};

/// A complete, valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The addresses that clients connect to.
    pub listen: Listen,
    /// The servers behind Seawall.
    pub deployment: Deployment,
    /// How clients authenticate.
    pub auth: Auth,
    /// Connections to servers.
    pub pool: Pool,
    /// Limits of admission, memory and buffers.
    pub limits: Limits,
    /// The shape table.
    pub shapes: Shapes,
    /// The history of the statistics.
    pub history: History,
    /// Sampling of the servers.
    pub pulse: Pulse,
    /// The slow log; `None` if it is off.
    pub slow_log: Option<SlowLog>,
    /// Fault injection, for experiments.
    pub fault: Option<Fault>,
    /// The graceful stop.
    pub shutdown: Shutdown,
    /// Threads and process.
    pub runtime: Runtime,
    /// Metrics, health and the API.
    pub admin: Admin,
    /// Logging.
    pub log: Log,
}

/// The addresses that clients connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    /// Addresses to bind: at least one, without duplicates.
    pub addresses: Vec<ListenAddress>,
    /// Client connections over all addresses; further ones are refused.
    pub max_client_connections: NonZeroUsize,
    /// Connections that the kernel holds per address until they are accepted.
    pub backlog: NonZeroU32,
    /// Compressors offered to clients, without duplicates.
    pub compressors: Vec<Compressor>,
    /// Certificate shown to clients; `None` is plain TCP.
    pub tls: Option<Tls>,
}

/// A compressor of the MongoDB protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// Fast, with the least compression of the three.
    Snappy,
    /// The best compression for its CPU time.
    Zstd,
    /// Supported by the oldest clients.
    Zlib,
}

impl Compressor {
    /// All compressors.
    pub const ALL: [Self; 3] = [Self::Snappy, Self::Zstd, Self::Zlib];

    /// The name in the configuration and in connection strings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snappy => "snappy",
            Self::Zstd => "zstd",
            Self::Zlib => "zlib",
        }
    }
}

/// The certificate that clients see. Both files could be opened when the settings were loaded.
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
    /// The connection string. Only its scheme has been checked.
    pub uri: Secret,
    /// How clients are served.
    pub mode: Mode,
    /// True if a relay connects to the address that its client connected to before it was
    /// redirected here (Linux).
    pub original_destination: bool,
    /// True if a relay passes TLS between client and server. Seawall cannot read that traffic.
    pub relay_encrypted: bool,
    /// How long an operation waits for a suitable server.
    pub server_selection_timeout: Duration,
    /// True if operations carry the application's name to the servers.
    pub name_applications: bool,
    /// True if an operation is repeated once where that is safe, and state-change errors are
    /// concealed. Otherwise errors and their labels reach clients unchanged.
    pub repeat: bool,
    /// Width of the latency window. With 0, only the fastest suitable server is used.
    pub local_threshold: Duration,
    /// Time between two checks of a server, at least 500 ms.
    pub heartbeat_frequency: Duration,
    /// Deadline for establishing a connection to a server.
    pub connect_timeout: Duration,
}

/// How clients are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Seawall authenticates clients and runs each operation on a pooled connection of its user.
    Pooled,
    /// One server connection per client connection. All bytes pass unchanged; Seawall only observes
    /// them.
    Relay,
}

/// How clients authenticate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Auth {
    /// Source of credentials. The proxy resolves [`Credentials::Auto`].
    pub credentials: Credentials,
    /// Age at which credentials that no server could confirm are dropped.
    pub max_stale: Duration,
    /// Deadline from accept until the client is authenticated.
    pub authentication_timeout: Duration,
    /// Handling of clients that log in by a mechanism that Seawall cannot terminate.
    pub other_mechanisms: OtherMechanisms,
    /// Configured users, without duplicates; only with [`Credentials::Users`] and
    /// [`Credentials::Auto`].
    pub users: Vec<User>,
}

/// Source of the clients' credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Credentials {
    /// The service account if the connection string names one, else the configured users if there
    /// are any, else each user's own first login.
    Auto,
    /// Each user's own first login (`"self"`).
    #[serde(rename = "self")]
    Own,
    /// Looked up by the service account of the connection string.
    Lookup,
    /// The configured users.
    Users,
    /// Clients do not authenticate: the deployment has no access control.
    None,
}

/// Handling of clients that log in by a mechanism other than SCRAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtherMechanisms {
    /// They get an error that the mechanism is not enabled.
    Refuse,
    /// Each gets a server connection of its own. Its login and all other messages pass unchanged.
    Relay,
}

/// A user whose credentials are configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The login name.
    pub name: String,
    /// The database in which the user is defined.
    pub source: String,
    /// The credential that verifies the user.
    pub credential: UserCredential,
}

/// Credential of a configured user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserCredential {
    /// The password, for every mechanism.
    Password(Secret),
    /// Keys derived from the password, for the mechanisms that they were made for.
    Keys(UserKeys),
}

/// The SCRAM keys of a user, for at least one mechanism.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserKeys {
    /// For SCRAM-SHA-1.
    pub scram_sha_1: Option<ScramKeys<20>>,
    /// For SCRAM-SHA-256.
    pub scram_sha_256: Option<ScramKeys<32>>,
}

/// The data that a server stores of a user for one SCRAM mechanism, whose hash has `N` bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScramKeys<const N: usize> {
    /// Decoded salt, 1 to 64 bytes.
    pub salt: Vec<u8>,
    /// Rounds of PBKDF2, at least 4096.
    pub iterations: NonZeroU32,
    /// Verifies the client's proof.
    pub stored_key: SecretBytes<N>,
    /// Signs the server's reply.
    pub server_key: SecretBytes<N>,
}

/// Connections to servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// Connections of one user to one server.
    pub max_pool_size: NonZeroUsize,
    /// Connections of all users to one server. The lower of this and `max_pool_size` applies.
    pub max_server_connections: NonZeroUsize,
    /// Connections of one user to one server that are kept while idle, at most `max_pool_size`.
    pub min_pool_size: usize,
    /// Connections that one pool establishes at a time.
    pub max_connecting: NonZeroUsize,
    /// Connections per second that are begun to one server, over all users; `None` for no limit.
    pub connections_per_second: Option<NonZeroU32>,
    /// Idle time after which a connection is closed; `None` for never.
    pub max_idle_time: Option<Duration>,
    /// Age at which an idle connection is closed; `None` for never.
    pub max_life_time: Option<Duration>,
    /// How long an operation waits for a connection.
    pub wait_queue_timeout: Duration,
    /// Operations that wait for connections to one server.
    pub wait_queue_size: NonZeroUsize,
}

/// Limits of admission, memory and buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest message of a client that has not authenticated.
    pub pre_auth_message_bytes: usize,
    /// Memory for the large messages of all clients together, at least 128 MiB.
    pub message_memory_bytes: usize,
    /// Clients in pooled mode that are relayed at a time because of their mechanism.
    pub relayed_connections: NonZeroUsize,
    /// How long a client may stall while reading a reply.
    pub client_write_idle_timeout: Duration,
    /// Open cursors that are pinned to their servers.
    pub max_cursors: NonZeroUsize,
    /// Open transactions that are pinned to their servers.
    pub max_transactions: NonZeroUsize,
    /// How long the server of an unused cursor is remembered.
    pub cursor_idle: Duration,
    /// How long the server of an unused transaction is remembered.
    pub transaction_idle: Duration,
    /// Users whose credentials are cached.
    pub max_users: NonZeroUsize,
    /// First logins of unknown users that servers verify at a time.
    pub introductions: NonZeroUsize,
    /// First logins that wait for the client's proof at a time. Each uses a server connection.
    pub introduction_conversations: NonZeroUsize,
    /// Client connections between accept and authentication at a time.
    pub unauthenticated_connections: NonZeroUsize,
    /// Connections of driver monitors, if clients must log in.
    pub monitor_connections: NonZeroUsize,
    /// Operations admitted at a time.
    pub max_in_flight_operations: NonZeroUsize,
    /// Connections per second from one address; `None` for no limit.
    pub connections_per_second_per_address: Option<u32>,
    /// Logins per second of one user; `None` for no limit.
    pub logins_per_second_per_user: Option<u32>,
    /// Networks of load balancers. Clients behind them share limits per user after login, not per
    /// address.
    pub shared_addresses: Vec<IpNet>,
}

/// The shape table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shapes {
    /// True if commands are fingerprinted and counted by shape.
    pub enabled: bool,
    /// Rows of the shape table. Further shapes are counted in the rows of groups.
    pub max_shapes: NonZeroUsize,
    /// Namespaces with rows of their own; the others are counted as `other`.
    pub max_namespaces: NonZeroUsize,
    /// Secret for keyed hashes that replace field names in shapes; `None` shows the names.
    pub name_key: Option<Secret>,
}

/// The history of the statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct History {
    /// True if the history is kept.
    pub enabled: bool,
    /// Directory for the history across restarts; `None` keeps it in memory only. Not accessed yet.
    pub directory: Option<PathBuf>,
    /// Memory of the history, at least 1 MiB.
    pub memory_bytes: usize,
    /// Shapes with time series of their own; the others are counted as `other`.
    pub max_series_shapes: NonZeroUsize,
}

/// Sampling of the servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulse {
    /// True if servers are sampled. Needs a service account.
    pub enabled: bool,
    /// Time between two samples of a server, 100 ms to a minute.
    pub interval: Duration,
    /// How long a sample may take, 1 ms to a minute.
    pub timeout: Duration,
}

/// The slow log.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowLog {
    /// Operations of at least this duration are logged; 0 logs every operation.
    pub threshold: Duration,
    /// Shapes with a threshold of their own, by ascending id, without duplicates.
    pub shape_thresholds: Vec<(u64, Duration)>,
    /// The share of the operations over their threshold that is logged, 0 to 100.
    pub sample_percent: f64,
    /// File to append to; `None` is standard error. Not opened yet.
    pub file: Option<PathBuf>,
    /// Maximum lines per second; `None` for no limit.
    pub max_lines_per_second: Option<NonZeroU32>,
    /// True if lines contain no values.
    pub redact: bool,
    /// Maximum bytes of a command's values in a line.
    pub max_command_bytes: usize,
}

// `sample_percent` is from 0 to 100, never NaN, so it equals itself.
impl Eq for SlowLog {}

/// Fault injection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The command's name; `None` for every command.
    pub command: Option<String>,
    /// `database` or `database.collection`; `None` for every namespace.
    pub namespace: Option<String>,
    /// The share of the matching operations that get the fault.
    pub share_percent: u64,
    /// How long each is delayed.
    pub delay: Duration,
    /// The error code that is returned instead of running the operation.
    pub error_code: Option<i32>,
    /// True if the client's connection is closed instead.
    pub close: bool,
}

/// The graceful stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// How long running operations, cursors and transactions may continue; 0 ends them at once.
    pub drain: Duration,
}

/// Threads and process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// Threads that serve clients; `None` for one per core.
    pub worker_threads: Option<NonZeroUsize>,
    /// True if the process may write core dumps and be traced.
    pub core_dumps: bool,
}

/// Metrics, health and the API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    /// The address where they are served.
    pub address: AdminAddress,
    /// The token that callers must present. Always present unless the address is loopback or off.
    pub token: Option<Secret>,
    /// Host names, in lower case, that requests without a token may use besides IP addresses and
    /// `localhost`.
    pub allowed_hosts: Vec<String>,
    /// True if CPU profiles are served.
    pub profile: bool,
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The least severe events that are logged.
    pub level: LogLevel,
    /// The format of the log.
    pub format: LogFormat,
}

/// Severity of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Something is broken.
    Error,
    /// Something may break, or broke and recovered.
    Warn,
    /// Changes: starts, topology, drains.
    Info,
    /// Events of single connections and operations.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The name in the configuration and in log filters.
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

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// One JSON object per line.
    Json,
}
