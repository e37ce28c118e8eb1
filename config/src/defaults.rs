//! The defaults, each with what it protects.
//!
//! The relations between them are checked at compile time.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::settings::{Credentials, LogFormat, LogLevel, Mode, OtherMechanisms};

/// Where clients connect: on this machine only, on the port after that of a mongod.
pub const LISTEN_ADDRESS: &str = "127.0.0.1:27018";

/// Client connections in total. Protects the file descriptors (20,000 and more are common limits);
/// servers, files and the admin address need some too.
pub const MAX_CLIENT_CONNECTIONS: NonZeroUsize = count(18_000);

/// Connections that the kernel completes before Seawall accepts them. A reconnect storm waits here
/// instead of getting resets. The kernel may limit it (`net.core.somaxconn`).
pub const BACKLOG: NonZeroU32 = NonZeroU32::new(4096).expect("a constant above 0");

/// Compressors offered to clients: all that a server accepts by default, in its order.
pub const COMPRESSORS: &str = "snappy,zstd,zlib";

/// How clients are served.
pub const MODE: Mode = Mode::Pooled;

/// Relays connect to the deployment.
pub const ORIGINAL_DESTINATION: bool = false;

/// TLS that Seawall cannot read is not relayed by default, because it is neither observed nor
/// limited.
pub const RELAY_ENCRYPTED: bool = false;

/// Logins with other mechanisms are refused: each relayed client costs a server connection.
pub const OTHER_MECHANISMS: OtherMechanisms = OtherMechanisms::Refuse;

/// Clients relayed at a time because of their mechanism: the same number as the default of pooled
/// connections to one server.
pub const RELAYED_CONNECTIONS: NonZeroUsize = count(500);

/// How long an operation may wait for a suitable server. An election takes 10 s or more.
pub const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Servers see the application's name on each operation, so their logs stay useful.
pub const NAME_APPLICATIONS: bool = true;

/// A failure behind Seawall looks to a client as it does behind a mongos.
pub const REPEAT: bool = true;

/// Width of the latency window, as in the drivers: servers this much slower than the fastest
/// suitable one still share its work.
pub const LOCAL_THRESHOLD: Duration = Duration::from_millis(15);

/// Time between two checks of a server, as in the drivers. Bounds Seawall's own control traffic.
pub const HEARTBEAT_FREQUENCY: Duration = Duration::from_secs(10);

/// Deadline for establishing a connection to a server. A server that does not reply must not block
/// a pool.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Source of the clients' credentials.
pub const CREDENTIALS: Credentials = Credentials::Auto;

/// Age at which credentials that no server could confirm are dropped. Bounds how long a removed
/// user can still log in while the deployment is unreachable.
pub const MAX_STALE: Duration = Duration::from_secs(5 * 60);

/// Deadline from accept until the client is authenticated. Idle clients must not hold connections.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The database of a configured user without `source`.
pub const USER_SOURCE: &str = "admin";

/// Connections of one user to one server. Protects the server from one user's threads.
pub const MAX_POOL_SIZE: NonZeroUsize = count(100);

/// Faults apply to all matching operations.
pub(crate) const FAULT_SHARE_PERCENT: u64 = 100;

/// Connections of all users to one server. Each costs the server a thread and about 1 MiB.
pub const MAX_SERVER_CONNECTIONS: NonZeroUsize = count(500);

/// Connections of one user to one server that are kept while idle.
pub const MIN_POOL_SIZE: usize = 0;

/// Connections per second that are begun to one server, over all users. Protects a server that just
/// came back from a burst of logins.
pub const CONNECTIONS_PER_SECOND: u32 = 200;

/// Connections that one pool establishes at a time. Protects the server from a storm of handshakes,
/// whose cryptography is its most expensive work.
pub const MAX_CONNECTING: NonZeroUsize = count(2);

/// Idle time after which a connection is closed. Returns the server resources of a peak.
pub const MAX_IDLE_TIME: Duration = Duration::from_secs(10 * 60);

/// Age at which an idle connection is closed. Lets the load move to new servers and addresses.
pub const MAX_LIFE_TIME: Duration = Duration::from_secs(30 * 60);

/// How long an operation may wait for a connection before it is shed.
pub const WAIT_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Operations that wait for connections to one server. Enough to hold an operation of every client:
/// a client runs one operation at a time.
pub const WAIT_QUEUE_SIZE: NonZeroUsize = count(20_000);

/// The largest message of a client that has not authenticated. Unknown clients get little memory.
pub const PRE_AUTH_MESSAGE_BYTES: usize = 16 * 1024;

/// Memory for the large messages of all clients together.
pub const MESSAGE_MEMORY_BYTES: usize = 512 * 1024 * 1024;

/// How long a client may stall while reading a reply. A slow reader must not hold buffers forever.
pub const CLIENT_WRITE_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Open cursors that are pinned to their servers. Bounds the table of pins.
pub const MAX_CURSORS: NonZeroUsize = count(100_000);

/// Open transactions that are pinned to their servers. Bounds the table of pins.
pub const MAX_TRANSACTIONS: NonZeroUsize = count(100_000);

/// The time that a server keeps an unused cursor (`cursorTimeoutMillis`).
pub const CURSOR_IDLE: Duration = Duration::from_secs(600);

/// Twice the maximum length of a transaction (`transactionLifetimeLimitSeconds`): the rest is for a
/// retried commit.
pub const TRANSACTION_IDLE: Duration = Duration::from_secs(120);

/// Users whose credentials are cached. Bounds the cache against invented names.
pub const MAX_USERS: NonZeroUsize = count(10_000);

/// First logins of unknown users that servers verify at a time.
pub const INTRODUCTIONS: NonZeroUsize = count(8);

/// First logins that wait for the client's proof at a time. Each holds a server connection, and a
/// client that never sends its proof must not block others.
pub const INTRODUCTION_CONVERSATIONS: NonZeroUsize = count(64);

/// Connections between accept and authentication at a time. Bounds handshake memory and
/// cryptography in a storm; other connections wait in the backlog.
pub const UNAUTHENTICATED_CONNECTIONS: NonZeroUsize = count(4096);

/// Connections of driver monitors, which never log in. Unknown clients can open these too, so they
/// must leave room for others.
pub const MONITOR_CONNECTIONS: NonZeroUsize = count(8192);

/// Operations admitted at a time, over all clients and servers.
pub const MAX_IN_FLIGHT_OPERATIONS: NonZeroUsize = count(20_000);

/// Commands are fingerprinted and counted by shape.
pub const SHAPES_ENABLED: bool = true;

/// Rows of the shape table. Bounds it against applications that create a new shape with each
/// operation.
pub const MAX_SHAPES: NonZeroUsize = count(10_000);

/// Namespaces with rows of their own; the others are counted as `other`.
pub const MAX_NAMESPACES: NonZeroUsize = count(2_000);

/// The history is kept.
pub const HISTORY_ENABLED: bool = true;

/// Memory of the history. Bounds what a deployment with many servers and shapes takes.
pub const HISTORY_MEMORY_BYTES: usize = 128 * 1024 * 1024;

/// Shapes with time series of their own: as many as the metrics show.
pub const MAX_SERIES_SHAPES: NonZeroUsize = count(200);

/// Servers are sampled if there is a service account.
pub const PULSE_ENABLED: bool = true;

/// Time between two samples of a server. Stalls of a few seconds must be visible.
pub const PULSE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a sample may take: until the next one is due.
pub const PULSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Threshold of the slow log, as in the server's own profiler.
pub const SLOW_LOG_THRESHOLD: Duration = Duration::from_millis(100);

/// All operations over their threshold are logged.
pub const SLOW_LOG_SAMPLE_PERCENT: f64 = 100.0;

/// Lines per second. Keeps a stall, in which every operation is slow, from filling the disk.
pub const SLOW_LOG_MAX_LINES_PER_SECOND: u32 = 100;

/// The slow log shows shapes only: values are the applications' data.
pub const SLOW_LOG_REDACT: bool = true;

/// Maximum bytes of a command's values in a line.
pub const SLOW_LOG_MAX_COMMAND_BYTES: usize = 4096;

/// How long running operations, cursors and transactions may continue after a request to stop.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Threads that serve clients; 0 means one per core.
pub const WORKER_THREADS: usize = 0;

/// Address of metrics, health and the API: on this machine only.
pub const ADMIN_ADDRESS: &str = "127.0.0.1:9909";

/// CPU profiles are off by default: they show the names of Seawall's functions and cost CPU time.
pub const ADMIN_PROFILE: bool = false;

/// Core dumps are off by default: the process memory holds keys that allow logging in as its users.
pub const CORE_DUMPS: bool = false;

/// The least severe events that are logged.
pub const LOG_LEVEL: LogLevel = LogLevel::Info;

/// How events are written.
pub const LOG_FORMAT: LogFormat = LogFormat::Text;

const fn count(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("a constant above 0")
}

const _: () = {
    assert!(MAX_POOL_SIZE.get() <= MAX_SERVER_CONNECTIONS.get());
    assert!(MAX_CONNECTING.get() <= MAX_POOL_SIZE.get());
    assert!(MAX_IDLE_TIME.as_millis() < MAX_LIFE_TIME.as_millis());
    assert!(MAX_NAMESPACES.get() <= MAX_SHAPES.get());
    assert!(MAX_SERIES_SHAPES.get() <= MAX_SHAPES.get());
    assert!(PULSE_TIMEOUT.as_millis() <= PULSE_INTERVAL.as_millis());
};

// With the maximum number of clients and one operation each, all operations are admitted and held,
// not shed.
const _: () = {
    assert!(MAX_CLIENT_CONNECTIONS.get() <= MAX_IN_FLIGHT_OPERATIONS.get());
    assert!(MAX_CLIENT_CONNECTIONS.get() <= WAIT_QUEUE_SIZE.get());
    let strangers = UNAUTHENTICATED_CONNECTIONS.get() + MONITOR_CONNECTIONS.get();
    assert!(strangers <= MAX_CLIENT_CONNECTIONS.get());
};

// All unauthenticated clients, each with a message of the maximum size, take less memory than the
// budget of all clients.
const _: () = {
    let strangers_bytes = PRE_AUTH_MESSAGE_BYTES * UNAUTHENTICATED_CONNECTIONS.get();
    assert!(strangers_bytes < MESSAGE_MEMORY_BYTES);
};

// Several connection attempts, and a check of the server, fit into the wait for a server.
const _: () = {
    assert!(CONNECT_TIMEOUT.as_millis() < SERVER_SELECTION_TIMEOUT.as_millis());
    assert!(HEARTBEAT_FREQUENCY.as_millis() < SERVER_SELECTION_TIMEOUT.as_millis());
    assert!(WAIT_QUEUE_TIMEOUT.as_millis() <= SERVER_SELECTION_TIMEOUT.as_millis());
};
