//! What counts where nothing is written, each with what it protects.
//!
//! The relations between these limits are checked when this file is compiled.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use crate::settings::{Credentials, LogFormat, LogLevel, Mode, OtherMechanisms};

/// Where clients connect: this machine only, beside the port of a mongod.
pub const LISTEN_ADDRESS: &str = "127.0.0.1:27018";

/// Client connections in all: protects the descriptors (20,000 and more are common limits), of
/// which servers, files and the admin address need some too.
pub const MAX_CLIENT_CONNECTIONS: NonZeroUsize = count(18_000);

/// Connections that the kernel completes before Seawall takes them: a reconnect storm waits here
/// instead of meeting resets. The kernel may cap it (`net.core.somaxconn`).
pub const BACKLOG: NonZeroU32 = NonZeroU32::new(4096).expect("a constant above 0");

/// What clients may compress with: all that a server takes by default, in its order.
pub const COMPRESSORS: &str = "snappy,zstd,zlib";

/// How clients are served.
pub const MODE: Mode = Mode::Pooled;

/// Relays go to the deployment.
pub const ORIGINAL_DESTINATION: bool = false;

/// What cannot be seen does not pass: neither observed nor guarded, it has to be asked for.
pub const RELAY_ENCRYPTED: bool = false;

/// Logins that cannot be terminated are refused: a relayed client costs a server connection.
pub const OTHER_MECHANISMS: OtherMechanisms = OtherMechanisms::Refuse;

/// Clients relayed at a time for their mechanisms' sake: as many as pools may have connections.
pub const RELAYED_CONNECTIONS: NonZeroUsize = count(500);

/// How long an operation may wait for a suitable server: an election takes 10 s and more.
pub const SERVER_SELECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Servers see the application's name on each operation, so that their logs stay useful.
pub const NAME_APPLICATIONS: bool = true;

/// A failure behind Seawall should look to a client as it does behind a mongos.
pub const REPEAT: bool = true;

/// Width of the latency window, as in the drivers: servers this much slower than the fastest
/// suitable one still share its work.
pub const LOCAL_THRESHOLD: Duration = Duration::from_millis(15);

/// Time between two checks of a server, as in the drivers: bounds our own control traffic.
pub const HEARTBEAT_FREQUENCY: Duration = Duration::from_secs(10);

/// Deadline for TCP and TLS to a server: keeps one that answers nothing from holding up a pool.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How the credentials of clients come to Seawall.
pub const CREDENTIALS: Credentials = Credentials::Auto;

/// Age at which credentials that no server could confirm are dropped: bounds how long a user that
/// was removed can still log in while the deployment is out of reach.
pub const MAX_STALE: Duration = Duration::from_secs(5 * 60);

/// From accept to authenticated: keeps clients that say nothing from holding connections.
pub const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// The database of a configured user that names none.
pub const USER_SOURCE: &str = "admin";

/// Connections of one user to one server: protects the server from one user's threads.
pub const MAX_POOL_SIZE: NonZeroUsize = count(100);

/// Every operation that a fault is about.
pub(crate) const FAULT_SHARE_PERCENT: u64 = 100;

/// Connections of all users to one server: each costs it a thread and about 1 MiB.
pub const MAX_SERVER_CONNECTIONS: NonZeroUsize = count(500);

/// Connections of one user to one server that are kept although nobody uses them.
pub const MIN_POOL_SIZE: usize = 0;

/// Connections begun to one server in a second, of all users: a server that has come back is not logged in to by
/// everybody at once.
pub const CONNECTIONS_PER_SECOND: u32 = 200;

/// Connections that one pool establishes at a time: protects the server from a storm of
/// handshakes, whose cryptography is its most expensive work.
pub const MAX_CONNECTING: NonZeroUsize = count(2);

/// Idle time after which a connection is closed: gives servers back what a peak took.
pub const MAX_IDLE_TIME: Duration = Duration::from_secs(10 * 60);

/// Age at which a connection is closed once it is idle: lets load find new servers and addresses.
pub const MAX_LIFE_TIME: Duration = Duration::from_secs(30 * 60);

/// How long an operation may wait for a connection before it is shed.
pub const WAIT_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

/// Operations that wait for connections to one server: enough for every client to be held rather
/// than refused, since a client runs one operation at a time.
pub const WAIT_QUEUE_SIZE: NonZeroUsize = count(20_000);

/// The largest message of a client that has not authenticated: strangers get little memory.
pub const PRE_AUTH_MESSAGE_BYTES: usize = 16 * 1024;

/// Memory for the large messages of all clients together.
pub const MESSAGE_MEMORY_BYTES: usize = 512 * 1024 * 1024;

/// How long a client may take no byte of its reply before it is closed: a slow reader must not
/// hold buffers for ever.
pub const CLIENT_WRITE_IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Open cursors that are pinned to their servers: bounds the table of pins.
pub const MAX_CURSORS: NonZeroUsize = count(100_000);

/// Open transactions that are pinned to their servers: bounds the table of pins.
pub const MAX_TRANSACTIONS: NonZeroUsize = count(100_000);

/// As long as a server keeps an unused cursor (`cursorTimeoutMillis`).
pub const CURSOR_IDLE: Duration = Duration::from_secs(600);

/// As long as a transaction may last (`transactionLifetimeLimitSeconds`), and as much again for a commit
/// that is retried.
pub const TRANSACTION_IDLE: Duration = Duration::from_secs(120);

/// Users whose credentials are remembered: bounds the cache against invented names.
pub const MAX_USERS: NonZeroUsize = count(10_000);

/// First logins of users not yet known that are carried to servers at a time.
pub const INTRODUCTIONS: NonZeroUsize = count(8);

/// First logins that wait for their client at a time: each holds a connection to a server, which a
/// client that never sends its proof must not keep from others.
pub const INTRODUCTION_CONVERSATIONS: NonZeroUsize = count(64);

/// Connections that are between accept and authenticated at a time: bounds handshake memory and
/// cryptography in a storm, the others wait in the backlog.
pub const UNAUTHENTICATED_CONNECTIONS: NonZeroUsize = count(4096);

/// Connections of drivers' monitors, which never log in: strangers can open such too, and must
/// leave room for clients.
pub const MONITOR_CONNECTIONS: NonZeroUsize = count(8192);

/// Operations that are admitted at a time over all clients and servers.
pub const MAX_IN_FLIGHT_OPERATIONS: NonZeroUsize = count(20_000);

/// Commands are fingerprinted and counted by shape.
pub const SHAPES_ENABLED: bool = true;

/// Shapes that are counted one by one, the rest as `other`: bounds the table against
/// applications that make a new shape with each operation.
pub const MAX_SHAPES: NonZeroUsize = count(10_000);

/// Namespaces that appear as labels, the rest as `other`.
pub const MAX_NAMESPACES: NonZeroUsize = count(2_000);

/// What was counted is remembered.
pub const HISTORY_ENABLED: bool = true;

/// Memory for all that is remembered: bounds what a deployment with many servers and shapes takes.
pub const HISTORY_MEMORY_BYTES: usize = 128 * 1024 * 1024;

/// Shapes that are remembered one by one, as many as are shown in metrics.
pub const MAX_SERIES_SHAPES: NonZeroUsize = count(200);

/// Servers are sampled wherever there is a service account.
pub const PULSE_ENABLED: bool = true;

/// Time between two samples of a server: stalls of a few seconds have to show.
pub const PULSE_INTERVAL: Duration = Duration::from_secs(1);

/// How long a sample may take: as long as until the next is due.
pub const PULSE_TIMEOUT: Duration = Duration::from_secs(1);

/// What counts as slow, as with the server's own profiler.
pub const SLOW_LOG_THRESHOLD: Duration = Duration::from_millis(100);

/// Every operation that is over its threshold.
pub const SLOW_LOG_SAMPLE_PERCENT: f64 = 100.0;

/// Lines a second: keeps a stall, in which everything is slow, from filling the disk.
pub const SLOW_LOG_MAX_LINES_PER_SECOND: u32 = 100;

/// Shapes only: values are the applications' data.
pub const SLOW_LOG_REDACT: bool = true;

/// Where the values of a command are cut.
pub const SLOW_LOG_MAX_COMMAND_BYTES: usize = 4096;

/// How long running operations, cursors and transactions may go on after a request to stop.
pub const DRAIN: Duration = Duration::from_secs(10);

/// Threads that serve clients; 0 is one a core.
pub const WORKER_THREADS: usize = 0;

/// Where metrics, health and the API are served: this machine only.
pub const ADMIN_ADDRESS: &str = "127.0.0.1:9909";

/// A profile shows the names of Seawall's functions and costs CPU time: it has to be asked for.
pub const ADMIN_PROFILE: bool = false;

/// The memory of the process holds keys that let others log in as its users.
pub const CORE_DUMPS: bool = false;

/// The least important events that are logged.
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

// A full house of clients, each with its one operation, is admitted and held, not shed.
const _: () = {
    assert!(MAX_CLIENT_CONNECTIONS.get() <= MAX_IN_FLIGHT_OPERATIONS.get());
    assert!(MAX_CLIENT_CONNECTIONS.get() <= WAIT_QUEUE_SIZE.get());
    let strangers = UNAUTHENTICATED_CONNECTIONS.get() + MONITOR_CONNECTIONS.get();
    assert!(strangers <= MAX_CLIENT_CONNECTIONS.get());
};

// All clients that have not authenticated, with the largest messages they may send, take less
// than the clients that have.
const _: () = {
    let strangers_bytes = PRE_AUTH_MESSAGE_BYTES * UNAUTHENTICATED_CONNECTIONS.get();
    assert!(strangers_bytes < MESSAGE_MEMORY_BYTES);
};

// Several attempts to connect fit into the wait for a server, and a server is checked in it.
const _: () = {
    assert!(CONNECT_TIMEOUT.as_millis() < SERVER_SELECTION_TIMEOUT.as_millis());
    assert!(HEARTBEAT_FREQUENCY.as_millis() < SERVER_SELECTION_TIMEOUT.as_millis());
    assert!(WAIT_QUEUE_TIMEOUT.as_millis() <= SERVER_SELECTION_TIMEOUT.as_millis());
};
