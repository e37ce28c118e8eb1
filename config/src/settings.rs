//! The validated settings, from which the parts of the proxy are built. Each key is declared here,
//! once (see [`crate::declare`]).
//!
//! Every value is present, within its bounds and consistent with the others. An `Option` means that
//! the setting itself may be absent: the key has no default and was not given, or its number is 0.
//! Each section is passed by value to the part that it configures.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use crate::address::{AdminAddress, ListenAddress};
use crate::declare::{keys, section};
use crate::kinds::{
    CONNECTIONS, ENTRIES, LARGEST_MESSAGE_BYTES, MAX_COMMAND_BYTES, MAX_CONNECTIONS,
    MAX_DURATION_MS, MAX_MEMORY_BYTES, MAX_PULSE_MS, MIN_HEARTBEAT_FREQUENCY_MS, MIN_HISTORY_BYTES,
    MIN_MESSAGE_MEMORY_BYTES, MIN_PULSE_INTERVAL_MS, TIME_OR_0, TIMEOUT,
};
use crate::read::{Part, connection_string};
use crate::schema::{Kind, Section};
use crate::secret::Secret;
use crate::users::{self, User};
use crate::words::{Compressor, Credentials, LogFormat, LogLevel, Mode, OtherMechanisms};

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

impl Settings {
    /// Reads all sections. `None` if that is impossible; the problems say why. The result is valid
    /// only if there are no problems.
    pub(crate) fn read(file: &mut Part<'_>) -> Option<Self> {
        Some(Self {
            listen: file.section("listen")?,
            deployment: file.section("deployment")?,
            auth: file.section("auth")?,
            pool: file.section("pool")?,
            limits: file.section("limits")?,
            shapes: file.section("shapes")?,
            history: file.section("history")?,
            pulse: file.section("pulse")?,
            slow_log: file.optional_section("slow_log"),
            fault: file.section("fault").filter(Fault::does_something),
            shutdown: file.section("shutdown")?,
            runtime: file.section("runtime")?,
            admin: file.section("admin")?,
            log: file.section("log")?,
        })
    }
}

/// Every section, in the order of the documentation.
pub const SECTIONS: &[Section] = &[
    Listen::SECTION,
    Tls::SECTION,
    CONNECTION_STRING,
    Deployment::SECTION,
    Auth::SECTION,
    users::USER,
    users::SCRAM_SHA_1,
    users::SCRAM_SHA_256,
    Pool::SECTION,
    Limits::SECTION,
    Shapes::SECTION,
    History::SECTION,
    Pulse::SECTION,
    SlowLog::SECTION,
    Fault::SECTION,
    Shutdown::SECTION,
    Runtime::SECTION,
    Admin::SECTION,
    Log::SECTION,
];

section! {
    /// The addresses that clients connect to.
    "listen" => Listen;

    /// Where clients connect: one address or a list.
    addresses: Vec<ListenAddress> = key("listen.address",
        Kind::Addresses, Restart, default "127.0.0.1:27018");
    // 20,000 descriptors and more are common limits; servers, files and the admin address need some
    // too.
    /// Client connections in total; further ones are refused. Each needs a file descriptor.
    max_client_connections: NonZeroUsize = key("listen.max_client_connections",
        CONNECTIONS, Restart, default 18000, unit "connections");
    // A reconnect storm waits here instead of getting resets. The kernel may limit it
    // (`net.core.somaxconn`).
    /// Connections that the kernel holds per address until they are accepted.
    backlog: NonZeroU32 = key("listen.backlog",
        Kind::Integer { min: 1, max: 65_535 }, Restart, default 4096, unit "connections");
    // All that a server accepts by default, in its order.
    /// Compressors offered to clients, separated by commas, or disabled; for servers, the
    /// connection string's compressors apply.
    compressors: Vec<Compressor> = key("listen.compressors",
        Kind::Text, Restart, default "snappy,zstd,zlib");
    {
        /// The certificate that clients see; `None` is plain TCP.
        tls: Option<Tls> = tls;
    }
}

section! {
    /// With this section clients must use TLS; without it, plain TCP.
    optional "listen.tls" => Tls;

    /// PEM file of the certificate chain, this host's first; required in `[listen.tls]`.
    certificate_file: PathBuf = key("listen.tls.certificate_file",
        Kind::ReadableFile, Restart, example "/etc/seawall/certificate.pem");
    /// PEM file of the certificate's private key; required in `[listen.tls]`.
    key_file: PathBuf = key("listen.tls.key_file",
        Kind::ReadableFile, Restart, example "/etc/seawall/key.pem");
}

fn tls(listen: &mut Part<'_>) -> Option<Option<Tls>> {
    Some(listen.optional_section("tls"))
}

/// The two keys of [`Deployment::uri`].
const CONNECTION_STRING: Section = Section {
    path: "deployment",
    about: "The servers behind Seawall.",
    is_optional: false,
    keys: keys! {
        /// Connection string of the deployment; this or `uri_file` is required. Credentials in it
        /// are those of the service account.
        key("deployment.uri",
            Kind::ConnectionString, Restart, example "mongodb://127.0.0.1:27017/");
        /// File with the connection string.
        key("deployment.uri_file",
            Kind::Path, Restart, example "/run/secrets/uri");
    },
};

section! {
    /// The servers behind Seawall.
    "deployment" => Deployment;

    /// How clients are served.
    mode: Mode = key("deployment.mode",
        Mode::KIND, Restart, default "pooled");
    /// Relays connect to the address that clients connected to before they were redirected here
    /// (Linux, SO_ORIGINAL_DST).
    original_destination: bool = key("deployment.original_destination",
        Kind::Boolean, Restart, default false);
    // Off, because that traffic is neither observed nor limited.
    /// Relays pass TLS between client and server; Seawall cannot observe or limit that traffic.
    relay_encrypted: bool = key("deployment.relay_encrypted",
        Kind::Boolean, Restart, default false);
    /// How long an operation waits for a suitable server. Elections take 10 s or more.
    server_selection_timeout: Duration = key("deployment.server_selection_timeout_ms",
        TIMEOUT, Restart, default 30000, unit "ms");
    /// Servers see the application's name on each operation, not the proxy's.
    name_applications: bool = key("deployment.name_applications",
        Kind::Boolean, Restart, default true);
    /// Repeat an operation once where that is safe, as a mongos does; with false, errors reach
    /// clients unchanged, and when a server closes its connection during an operation, Seawall
    /// closes that client's connection.
    repeat: bool = key("deployment.repeat",
        Kind::Boolean, Restart, default true);
    /// Width of the latency window of server selection: servers this much slower than the fastest
    /// suitable one still share its work.
    local_threshold: Duration = key("deployment.local_threshold_ms",
        TIME_OR_0, Restart, default 15, unit "ms");
    /// Time between two checks of a server.
    heartbeat_frequency: Duration = key("deployment.heartbeat_frequency_ms",
        Kind::Integer { min: MIN_HEARTBEAT_FREQUENCY_MS, max: MAX_DURATION_MS }, Restart,
        default 10000, unit "ms");
    /// Deadline for establishing a connection to a server, and for the server's replies to probes.
    connect_timeout: Duration = key("deployment.connect_timeout_ms",
        TIMEOUT, Restart, default 10000, unit "ms");
    {
        /// The connection string. Only its scheme has been checked.
        uri: Secret = connection_string;
    }
}

section! {
    /// How clients authenticate.
    "auth" => Auth;

    /// Source of the clients' credentials.
    credentials: Credentials = key("auth.credentials",
        Credentials::KIND, Restart, default "auto");
    // Bounds how long a removed user can still log in while the deployment is unreachable.
    /// Age at which credentials that no server confirmed are dropped.
    max_stale: Duration = key("auth.max_stale_ms",
        TIMEOUT, Restart, default 300000, unit "ms");
    /// Deadline from accept until the client is authenticated.
    authentication_timeout: Duration = key("auth.authentication_timeout_ms",
        TIMEOUT, Restart, default 30000, unit "ms");
    // Refused, because each relayed client costs a server connection.
    /// Clients that log in by a mechanism other than SCRAM are refused, or relayed over a server
    /// connection of their own; X.509 is always refused.
    other_mechanisms: OtherMechanisms = key("auth.other_mechanisms",
        OtherMechanisms::KIND, Restart, default "refuse");
    {
        /// Configured users, without duplicates; only with [`Credentials::Users`] and
        /// [`Credentials::Auto`].
        users: Vec<User> = users::read;
    }
}

section! {
    /// Connections to servers.
    "pool" => Pool;

    /// Connections of one user to one server.
    max_pool_size: NonZeroUsize = key("pool.max_pool_size",
        CONNECTIONS, Restart, default 100, unit "connections");
    // Each costs the server a thread and about 1 MiB.
    /// Connections of all users to one server.
    max_server_connections: NonZeroUsize = key("pool.max_server_connections",
        CONNECTIONS, Restart, default 500, unit "connections");
    /// Connections of one user to one server that are kept while idle.
    min_pool_size: usize = key("pool.min_pool_size",
        Kind::Integer { min: 0, max: MAX_CONNECTIONS }, Restart, default 0, unit "connections");
    // Protects the server from a storm of handshakes, whose cryptography is its most expensive
    // work.
    /// Connections that one pool establishes at a time.
    max_connecting: NonZeroUsize = key("pool.max_connecting",
        Kind::Integer { min: 1, max: 1_000 }, Restart, default 2, unit "connections");
    // Protects a server that just came back from a burst of logins.
    /// Connections per second that are begun to one server, over all users; after a pause 8 are
    /// begun at once; 0 for no limit.
    connections_per_second: Option<NonZeroU32> = key("pool.connections_per_second",
        Kind::Integer { min: 0, max: 100_000 }, Restart,
        default 200, unit "connections a second");
    // Returns the server resources of a peak.
    /// Idle time after which a server connection is closed; 0 for never.
    max_idle_time: Option<Duration> = key("pool.max_idle_time_ms",
        TIME_OR_0, Restart, default 600000, unit "ms");
    // Lets the load move to new servers and addresses.
    /// Age at which an idle server connection is closed; 0 for never.
    max_life_time: Option<Duration> = key("pool.max_life_time_ms",
        TIME_OR_0, Restart, default 1800000, unit "ms");
    /// How long an operation waits for a connection before it is shed.
    wait_queue_timeout: Duration = key("pool.wait_queue_timeout_ms",
        TIMEOUT, Restart, default 10000, unit "ms");
    // Enough to hold an operation of every client: a client runs one operation at a time.
    /// Operations that wait for connections to one server.
    wait_queue_size: NonZeroUsize = key("pool.wait_queue_size",
        ENTRIES, Restart, default 20000, unit "operations");
}

section! {
    /// Limits of admission, memory and buffers.
    "limits" => Limits;

    // Unknown clients get little memory.
    /// Largest message of a client that has not authenticated.
    pre_auth_message_bytes: usize = key("limits.pre_auth_message_bytes",
        Kind::Integer { min: 4_096, max: LARGEST_MESSAGE_BYTES }, Restart,
        default 16384, unit "bytes");
    /// Memory for the large messages of all clients together.
    message_memory_bytes: usize = key("limits.message_memory_bytes",
        Kind::Integer { min: MIN_MESSAGE_MEMORY_BYTES, max: MAX_MEMORY_BYTES }, Restart,
        default 536870912, unit "bytes");
    // The same number as the default of pooled connections to one server.
    /// Clients that are relayed at a time because of `auth.other_mechanisms`.
    relayed_connections: NonZeroUsize = key("limits.relayed_connections",
        CONNECTIONS, Restart, default 500, unit "connections");
    // A slow reader must not hold buffers forever.
    /// How long a client may stall while reading a reply.
    client_write_idle_timeout: Duration = key("limits.client_write_idle_timeout_ms",
        TIMEOUT, Restart, default 30000, unit "ms");
    /// Open cursors that are pinned to their servers.
    max_cursors: NonZeroUsize = key("limits.max_cursors",
        ENTRIES, Restart, default 100000, unit "cursors");
    /// Open transactions that are pinned to their servers.
    max_transactions: NonZeroUsize = key("limits.max_transactions",
        ENTRIES, Restart, default 100000, unit "transactions");
    /// How long the server of an unused cursor is remembered; not less than the servers'
    /// cursorTimeoutMillis.
    cursor_idle: Duration = key("limits.cursor_idle_ms",
        TIMEOUT, Restart, default 600000, unit "ms");
    // Twice the maximum length of a transaction: the rest is for a retried commit.
    /// How long the server of an unused transaction is remembered; twice the servers'
    /// transactionLifetimeLimitSeconds.
    transaction_idle: Duration = key("limits.transaction_idle_ms",
        TIMEOUT, Restart, default 120000, unit "ms");
    // Bounds the cache against invented names.
    /// Users whose credentials are cached.
    max_users: NonZeroUsize = key("limits.max_users",
        ENTRIES, Restart, default 10000, unit "users");
    /// First logins of unknown users that servers verify at a time.
    introductions: NonZeroUsize = key("limits.introductions",
        Kind::Integer { min: 1, max: 1_000 }, Restart, default 8, unit "logins");
    // A client that never sends its proof must not block others.
    /// First logins that wait for the client's proof at a time, each on a server connection of its
    /// own; at the limit, the oldest one of the address with the most of them is ended.
    introduction_conversations: NonZeroUsize = key("limits.introduction_conversations",
        CONNECTIONS, Restart, default 64, unit "connections");
    // Bounds handshake memory and cryptography in a storm; other connections wait in the backlog.
    /// Client connections between accept and authentication at a time.
    unauthenticated_connections: NonZeroUsize = key("limits.unauthenticated_connections",
        CONNECTIONS, Restart, default 4096, unit "connections");
    // Unknown clients can open these too, so they must leave room for others.
    /// Connections of driver monitors, which never log in, if clients must log in; at the limit,
    /// one without a hello for ten minutes is closed, otherwise new ones are refused.
    monitor_connections: NonZeroUsize = key("limits.monitor_connections",
        CONNECTIONS, Restart, default 8192, unit "connections");
    /// Operations admitted at a time, over all clients and servers.
    max_in_flight_operations: NonZeroUsize = key("limits.max_in_flight_operations",
        ENTRIES, Restart, default 20000, unit "operations");
    /// Connections per second from one address (IPv6: /64); further ones are closed before their
    /// first byte; 0 for no limit.
    connections_per_second_per_address: Option<u32> = key(
        "limits.connections_per_second_per_address",
        Kind::Integer { min: 0, max: 1_000_000 }, Restart, default 0, unit "per second");
    /// Logins per second of one user; further ones are delayed, by at most 10 s; 0 for no limit.
    logins_per_second_per_user: Option<u32> = key("limits.logins_per_second_per_user",
        Kind::Integer { min: 0, max: 1_000_000 }, Restart, default 0, unit "per second");
    /// IP addresses or ranges (10.0.0.0/8) of load balancers, separated by commas; clients behind
    /// them share limits per user after login, not per address.
    shared_addresses: Vec<IpNet> = key("limits.shared_addresses",
        Kind::Text, Restart, example "10.0.0.0/8,192.0.2.7");
}

section! {
    /// The shape table.
    "shapes" => Shapes;

    /// Commands are fingerprinted and counted by shape.
    enabled: bool = key("shapes.enabled",
        Kind::Boolean, Restart, default true);
    // Bounded against applications that create a new shape with each operation.
    /// Rows of the shape table; further shapes are counted in group rows, which are at most a tenth
    /// of all rows.
    max_shapes: NonZeroUsize = key("shapes.max_shapes",
        ENTRIES, Restart, default 10000, unit "shapes");
    /// Namespaces that appear as labels; the others are counted as `other`.
    max_namespaces: NonZeroUsize = key("shapes.max_namespaces",
        ENTRIES, Restart, default 2000, unit "namespaces");
    /// File with a secret; with it, shapes contain keyed hashes (HMAC-SHA-256) instead of field
    /// names.
    name_key: Option<Secret> = key("shapes.name_key_file",
        Kind::SecretFile, Restart, example "/run/secrets/name-key");
}

section! {
    /// The history of the statistics.
    "history" => History;

    /// Keep a history of the statistics, in steps of a second and longer.
    enabled: bool = key("history.enabled",
        Kind::Boolean, Restart, default true);
    /// Directory for the history across restarts; without it, the history is in memory only.
    directory: Option<PathBuf> = key("history.directory",
        Kind::Directory, Restart, example "/var/lib/seawall");
    /// Memory of the history; the oldest data is dropped first.
    memory_bytes: usize = key("history.memory_bytes",
        Kind::Integer { min: MIN_HISTORY_BYTES, max: MAX_MEMORY_BYTES }, Restart,
        default 134217728, unit "bytes");
    // As many as the metrics show.
    /// Shapes with time series of their own, the heaviest of each step; the others are counted as
    /// `other`.
    max_series_shapes: NonZeroUsize = key("history.max_series_shapes",
        ENTRIES, Restart, default 200, unit "shapes");
}

section! {
    /// Sampling of the servers.
    "pulse" => Pulse;

    /// Sample the serverStatus of each server; needs a service account.
    enabled: bool = key("pulse.enabled",
        Kind::Boolean, Restart, default true);
    // Stalls of a few seconds must be visible.
    /// Time between two samples of a server.
    interval: Duration = key("pulse.interval_ms",
        Kind::Integer { min: MIN_PULSE_INTERVAL_MS, max: MAX_PULSE_MS }, Restart,
        default 1000, unit "ms");
    // Until the next sample is due.
    /// How long a sample may take; after this time it counts as not answered.
    timeout: Duration = key("pulse.timeout_ms",
        Kind::Integer { min: 1, max: MAX_PULSE_MS }, Restart, default 1000, unit "ms");
}

section! {
    /// With this section each slow operation is logged as a JSON line; without it, none.
    optional "slow_log" => SlowLog;

    // As in the server's own profiler.
    /// Operations of at least this duration are logged; 0 for every operation.
    threshold: Duration = key("slow_log.threshold_ms",
        TIME_OR_0, Restart, default 100, unit "ms");
    /// Thresholds of single shapes, instead of `threshold_ms`.
    shape_thresholds: Vec<(u64, Duration)> = key("slow_log.shape_thresholds_ms",
        Kind::ShapeThresholds { max_ms: MAX_DURATION_MS }, Restart,
        example "{ 0123456789abcdef = 5 }", unit "ms");
    /// Share of the operations over their threshold that is logged.
    sample_percent: f64 = key("slow_log.sample_percent",
        Kind::Percent, Restart, default 100, unit "percent");
    /// File to append the lines to; without it, standard error.
    file: Option<PathBuf> = key("slow_log.file",
        Kind::Path, Restart, example "/var/log/seawall/slow.jsonl");
    // Keeps a stall, in which every operation is slow, from filling the disk.
    /// Maximum lines per second; the next line has the number of dropped lines; 0 for no limit.
    max_lines_per_second: Option<NonZeroU32> = key("slow_log.max_lines_per_second",
        Kind::Integer { min: 0, max: 1_000_000 }, Restart, default 100, unit "per second");
    // Values are the applications' data.
    /// Lines contain shapes only; false adds the values of commands.
    redact: bool = key("slow_log.redact",
        Kind::Boolean, Restart, default true);
    /// Maximum bytes of a command's values in a line; longer ones are cut.
    max_command_bytes: usize = key("slow_log.max_command_bytes",
        Kind::Integer { min: 1, max: MAX_COMMAND_BYTES }, Restart, default 4096, unit "bytes");
}

section! {
    /// For experiments only: makes operations slow or makes them fail. Off unless one of the last
    /// three keys is set.
    "fault" => Fault;

    /// Name of the command that gets the fault; without it, every command.
    command: Option<String> = key("fault.command",
        Kind::Text, Restart, example "find");
    /// Database or database.collection that gets the fault; without it, every one.
    namespace: Option<String> = key("fault.namespace",
        Kind::Text, Restart, example "shop.orders");
    /// Share of the matching operations that get the fault.
    share_percent: u64 = key("fault.share_percent",
        Kind::Integer { min: 0, max: 100 }, Restart, default 100, unit "percent");
    /// How long such an operation is delayed; 0 for no delay.
    delay: Duration = key("fault.delay_ms",
        TIME_OR_0, Restart, default 0, unit "ms");
    /// Error code that is returned without running the operation; 0 for none.
    error_code: Option<i32> = key("fault.error_code",
        Kind::Integer { min: 0, max: 1_000_000 }, Restart, default 0, unit "code");
    /// Close the connection of such an operation's client.
    close: bool = key("fault.close",
        Kind::Boolean, Restart, default false);
}

impl Fault {
    fn does_something(&self) -> bool {
        let acts = !self.delay.is_zero() || self.error_code.is_some() || self.close;
        acts && self.share_percent > 0
    }
}

section! {
    /// The graceful stop.
    "shutdown" => Shutdown;

    /// How long running operations, cursors and transactions may continue after a request to stop.
    drain: Duration = key("shutdown.drain_ms",
        TIME_OR_0, Restart, default 10000, unit "ms");
}

section! {
    /// Threads and process.
    "runtime" => Runtime;

    /// Threads that serve clients; 0 for one per core.
    worker_threads: Option<NonZeroUsize> = key("runtime.worker_threads",
        Kind::Integer { min: 0, max: 1_024 }, Restart, default 0, unit "threads");
    /// Let the process write core dumps and be traced; its memory contains users' keys.
    core_dumps: bool = key("runtime.core_dumps",
        Kind::Boolean, Restart, default false);
}

section! {
    /// Metrics, health and the API.
    "admin" => Admin;

    /// Address of metrics, health and the API.
    address: AdminAddress = key("admin.address",
        Kind::AdminAddress, Restart, default "127.0.0.1:9909");
    /// File with the token that callers must present; required unless the address is loopback.
    token: Option<Secret> = key("admin.token_file",
        Kind::SecretFile, Restart, example "/run/secrets/admin-token");
    /// Host names, separated by commas, that requests without a token may use besides IP addresses
    /// and localhost.
    allowed_hosts: Vec<String> = key("admin.allowed_hosts",
        Kind::Text, Restart, example "seawall.internal");
    // Off, because profiles show the names of Seawall's functions and cost CPU time.
    /// Serve CPU profiles of Seawall at /api/v1/profile.
    profile: bool = key("admin.profile",
        Kind::Boolean, Restart, default false);
}

section! {
    /// Logging.
    "log" => Log;

    /// The least severe events that are logged.
    level: LogLevel = key("log.level",
        LogLevel::KIND, Restart, default "info");
    /// Format of the log: text for people, json for collectors.
    format: LogFormat = key("log.format",
        LogFormat::KIND, Restart, default "text");
}
