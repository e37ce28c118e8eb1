//! The validated settings, from which the parts of the proxy are built. This module declares most
//! keys (see [`crate::declare`]). [`crate::listeners`], [`crate::users`] and
//! [`crate::connection_string`] declare the others.
//!
//! Every value is within its bounds and consistent with the others. The setting of a key is `None`
//! only if the key is absent and has no default, or if its value is 0.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use ipnet::IpNet;

use crate::address::{AdminAddress, PeerAddress};
use crate::connection_string;
use crate::declare::{keys, section};
use crate::file::ReadFile;
use crate::kinds::{
    CONNECTIONS, ENTRIES, LARGEST_MESSAGE_BYTES, MAX_COMMAND_BYTES, MAX_CONNECTIONS,
    MAX_DURATION_MS, MAX_MEMORY_BYTES, MAX_PULSE_MS, MIN_CAPTURE_BYTES, MIN_CAPTURE_QUEUE_BYTES,
    MIN_EXPORT_INTERVAL_MS, MIN_HEARTBEAT_FREQUENCY_MS, MIN_HISTORY_BYTES,
    MIN_MESSAGE_MEMORY_BYTES, MIN_PULSE_INTERVAL_MS, TIME_OR_0, TIMEOUT,
};
use crate::listeners::{self, Listen, Listener, Tls, tls};
use crate::read::Part;
use crate::schema::{KeyKind, Section};
use crate::secret::{Secret, SecretFile};
use crate::telemetry::{Attributes, Headers};
use crate::users::{self, User};
use crate::words::{
    CaptureEvent, CaptureRedaction, Compression, Concurrency, Credentials, LogFormat, LogLevel,
    Mode, OtherMechanisms,
};

/// A complete, valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of client connections of all listeners together. If `listeners` is empty,
    /// this section also describes the only listener.
    pub listen: Listen,
    /// The listeners of `[[listeners]]`; empty if `listen` describes the only listener.
    pub listeners: Vec<Listener>,
    /// The servers behind Seawall.
    pub deployment: Deployment,
    /// The authentication of clients.
    pub auth: Auth,
    /// The connections to servers.
    pub pool: Pool,
    /// Limits for memory, client connections, logins and operations.
    pub limits: Limits,
    /// The statistics by shape. A shape is a command without its values.
    pub shapes: Shapes,
    /// The history of Seawall's statistics: its maximum memory, and its directory on the disk.
    pub history: History,
    /// The regular samples of each server's `serverStatus`.
    pub pulse: Pulse,
    /// The slow log; `None` if it is off.
    pub slow_log: Option<SlowLog>,
    /// The captures: recordings of clients' operations.
    pub capture: Capture,
    /// The injected fault, for experiments; `None` if it is off.
    pub fault: Option<Fault>,
    /// The graceful stop: how long clients may continue their operations.
    pub shutdown: Shutdown,
    /// The number of threads, and the permission for core dumps.
    pub runtime: Runtime,
    /// The HTTP addresses for metrics, health checks and the API.
    pub admin: Admin,
    /// The export of metrics to an OpenTelemetry collector.
    pub telemetry: Telemetry,
    /// The level and the format of Seawall's log.
    pub log: Log,
    /// The reload after a change of the configuration file.
    pub reload: Reload,
}

impl Settings {
    /// Returns the listeners of `[[listeners]]`. If there are none, returns the only listener,
    /// which `[listen]` describes.
    pub fn listeners(&self) -> Cow<'_, [Listener]> {
        match self.listeners.is_empty() {
            true => Cow::Owned(vec![Listener::only(&self.listen)]),
            false => Cow::Borrowed(&self.listeners),
        }
    }

    /// Reads all sections, and adds their problems to the problems of `file`. After problems, the
    /// result is not a valid configuration, but the caller can still check the relations between
    /// the settings. `None` only if a value does not have its key's type, which is a bug in
    /// Seawall.
    pub(crate) fn read(file: &mut Part<'_>) -> Option<Self> {
        Some(Self {
            listen: file.section("listen")?,
            listeners: listeners::read(file),
            deployment: file.section("deployment")?,
            auth: file.section("auth")?,
            pool: file.section("pool")?,
            limits: file.section("limits")?,
            shapes: file.section("shapes")?,
            history: file.section("history")?,
            pulse: file.section("pulse")?,
            slow_log: file.optional_section("slow_log"),
            capture: file.section("capture")?,
            fault: file.section("fault").filter(Fault::has_effect),
            shutdown: file.section("shutdown")?,
            runtime: file.section("runtime")?,
            admin: file.section("admin")?,
            telemetry: file.section("telemetry")?,
            log: file.section("log")?,
            reload: file.section("reload")?,
        })
    }
}

/// Every section, in the order in which `docs/configuration.md` describes the sections.
pub static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    vec![
        Listen::SECTION,
        Tls::SECTION,
        Listener::SECTION,
        listeners::tls_section(),
        connection_string::SECTION,
        Deployment::SECTION,
        ServerTls::SECTION,
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
        Capture::SECTION,
        Fault::SECTION,
        Shutdown::SECTION,
        Runtime::SECTION,
        Admin::SECTION,
        admin_tls_section(),
        Telemetry::SECTION,
        Log::SECTION,
        Reload::SECTION,
    ]
});

section! {
    /// The servers behind Seawall.
    "deployment" => Deployment;

    /// Pooled clients share server connections; each relayed client has its own.
    mode: Mode = key("deployment.mode",
        Mode::KIND, Restart, default "pooled");
    /// In relay mode, connect each client to the address that it used before the kernel redirected
    /// it to Seawall (Linux, SO_ORIGINAL_DST).
    original_destination: bool = key("deployment.original_destination",
        KeyKind::Boolean, Restart, default false);
    // Off by default, because Seawall cannot observe or limit encrypted traffic.
    /// In relay mode, also relay connections that clients encrypt with TLS; Seawall cannot observe
    /// or limit their traffic.
    relay_encrypted: bool = key("deployment.relay_encrypted",
        KeyKind::Boolean, Restart, default false);
    // Relays need a separate port of the server: at this port, the server requires the header from
    // every connection. Seawall's monitoring connections send no header, so they use the usual
    // port. The key is allowed in pooled mode, because `auth.other_mechanisms` causes relays there.
    /// Connect relays to this port of a server, and begin with a header of the PROXY protocol,
    /// version 2, which contains the client's address; 0 for the server's usual port and no header.
    relay_proxy_port: Option<u16> = key("deployment.relay_proxy_port",
        KeyKind::Integer { min: 0, max: 65535 }, Restart, default 0);
    /// How long an operation waits for a suitable server; elections take 10 s or more.
    server_selection_timeout: Duration = key("deployment.server_selection_timeout_ms",
        TIMEOUT, Live, default 30000, unit "ms");
    /// Add the client's metadata to each operation, so that servers' logs name the application and
    /// not the proxy.
    name_applications: bool = key("deployment.name_applications",
        KeyKind::Boolean, Live, default true);
    /// Repeat a failed operation once if that is safe, as a mongos does. If this is false, errors
    /// reach clients unchanged; if a server closes a connection during an operation, Seawall also
    /// closes the client's connection.
    repeat: bool = key("deployment.repeat",
        KeyKind::Boolean, Live, default true);
    /// Width of the latency window of server selection: how much longer the round-trip time of a
    /// selected server may be than the round-trip time of the fastest suitable server.
    local_threshold: Duration = key("deployment.local_threshold_ms",
        TIME_OR_0, Live, default 15, unit "ms");
    /// Time between two checks of a server.
    heartbeat_frequency: Duration = key("deployment.heartbeat_frequency_ms",
        KeyKind::Integer { min: MIN_HEARTBEAT_FREQUENCY_MS, max: MAX_DURATION_MS }, Restart,
        default 10000, unit "ms");
    /// Maximum time to establish a connection to a server, and maximum time until a server replies
    /// to a probe.
    connect_timeout: Duration = key("deployment.connect_timeout_ms",
        TIMEOUT, Live, default 10000, unit "ms");
    {
        /// The connection string. Only its scheme has been checked.
        uri: Secret = connection_string::read;
        /// The options of `[deployment.tls]`; `None` if all of them have their defaults.
        tls: Option<ServerTls> = server_tls;
    }
}

section! {
    /// Further options of TLS to servers. The connection string switches TLS on (`tls=true`). Files
    /// in this section replace the files in the connection string.
    optional "deployment.tls" => ServerTls;

    /// PEM file with the certificate authorities of servers, instead of `tlsCAFile`. Without both,
    /// Seawall trusts the authorities of the operating system.
    ca_file: Option<ReadFile> = key("deployment.tls.ca_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/server-ca.pem");
    /// PEM file with Seawall's own certificate and its private key, for servers that require
    /// certificates. It replaces the option `tlsCertificateKeyFile` of the connection string.
    certificate_key_file: Option<ReadFile> = key("deployment.tls.certificate_key_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/client.pem");
    /// PEM files with the certificate revocation lists of the servers' authorities, separated by
    /// commas. The official driver, which only monitors servers, does not check these lists.
    crl_files: Option<Vec<ReadFile>> = key("deployment.tls.crl_file",
        KeyKind::ReadableFiles, Live, example "/etc/seawall/server-crl.pem");
    /// Insecure: accept a server's certificate for any host name. Its authority is still verified
    /// before an operation or a login. The official driver, which only monitors servers, then
    /// accepts any certificate. Not possible if the connection string has `authMechanism=PLAIN`.
    allow_invalid_hostnames: bool = key("deployment.tls.allow_invalid_hostnames",
        KeyKind::Boolean, Live, default false);
}

fn server_tls(deployment: &mut Part<'_>) -> Option<Option<ServerTls>> {
    Some(deployment.section("tls").filter(ServerTls::has_effect))
}

impl ServerTls {
    /// True if an option differs from its default.
    fn has_effect(&self) -> bool {
        let has_file = self.ca_file.is_some() || self.certificate_key_file.is_some();
        has_file || self.crl_files.is_some() || self.allow_invalid_hostnames
    }
}

section! {
    /// How clients authenticate.
    "auth" => Auth;

    /// Source of the clients' credentials.
    credentials: Credentials = key("auth.credentials",
        Credentials::KIND, Restart, default "auto");
    // The limit determines how long a dropped user can still log in while the deployment is
    // unavailable.
    /// How long cached credentials are used after a server has last confirmed them.
    max_stale: Duration = key("auth.max_stale_ms",
        TIMEOUT, Live, default 300000, unit "ms");
    /// How long a client may take from connecting to the end of its login. Waits at the gates for
    /// arrivals and logins do not count.
    authentication_timeout: Duration = key("auth.authentication_timeout_ms",
        TIMEOUT, Live, default 30000, unit "ms");
    // By default, clients with other mechanisms are refused, because each relayed client costs a
    // server connection.
    /// Handling of clients that log in by a mechanism other than SCRAM: refuse them, or relay each
    /// over its own server connection. X.509 is always refused.
    other_mechanisms: OtherMechanisms = key("auth.other_mechanisms",
        OtherMechanisms::KIND, Live, default "refuse");
    {
        /// The configured users, without duplicates; empty unless `credentials` is
        /// [`Credentials::Users`] or [`Credentials::Auto`].
        users: Vec<User> = users::read;
    }
}

section! {
    /// Connections to servers.
    "pool" => Pool;

    /// Maximum number of connections of one user to one server. There are also reserved
    /// connections: an eighth of this number, at least 1 and at most 8. They are for commits and
    /// other commands that operations may wait for, and for commands of Seawall itself.
    max_pool_size: NonZeroUsize = key("pool.max_pool_size",
        CONNECTIONS, Live, default 100, unit "connections");
    // The limit protects the server, which needs a thread and about 1 MiB for each connection.
    /// Maximum number of connections of all users to one server. An eighth of them, at most 8, are
    /// reserved for commits and other commands that operations may wait for. If the maximum is
    /// below 8, no connections are reserved.
    max_server_connections: NonZeroUsize = key("pool.max_server_connections",
        CONNECTIONS, Live, default 500, unit "connections");
    /// Number of connections of one user to one server that are kept even if they are idle.
    min_pool_size: usize = key("pool.min_pool_size",
        KeyKind::Integer { min: 0, max: MAX_CONNECTIONS }, Live, default 0, unit "connections");
    // The limit protects the server from a storm of logins, whose cryptography is expensive.
    /// Maximum number of connections of one user to one server that are being established at a
    /// time.
    max_connecting: NonZeroUsize = key("pool.max_connecting",
        KeyKind::Integer { min: 1, max: 1_000 }, Live, default 2, unit "connections");
    // The limit prevents a burst of logins, which could overload a server that has just recovered.
    /// Maximum number of new connections per second to one server, for all users together; after a
    /// pause, 8 can start at once; 0 for no limit.
    connections_per_second: Option<NonZeroU32> = key("pool.connections_per_second",
        KeyKind::Integer { min: 0, max: 100_000 }, Live,
        default 200, unit "connections a second");
    // If a server runs too many operations at a time, each operation uses more CPU time, so the
    // server completes fewer operations per second.
    /// Maximum number of operations that run on one server at a time; further ones wait. `"auto"`
    /// finds the number by measuring the server's throughput, `"off"` sets no limit.
    concurrency: Concurrency = key("pool.concurrency",
        Concurrency::KIND, Live, default "auto", unit "operations");
    /// Maximum number of operations on one server that do not count toward `pool.concurrency`,
    /// because they run much longer than others. With 0, the maximum is the current limit of
    /// `pool.concurrency`. While no operation completes, one more operation is excluded from
    /// the count every 250 ms, even above this maximum.
    max_exempt_operations: Option<NonZeroU32> = key("pool.max_exempt_operations",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 0, unit "operations");
    // After a peak, closing idle connections frees resources of the servers.
    /// Idle time after which a server connection is closed; 0 for never. In the credential modes
    /// `self` and `users`, Seawall reads the keys of each user with connected clients again after
    /// half of `auth.max_stale_ms`. It reads them over a server connection of this user. So this
    /// connection usually stays open if `pool.max_idle_time_ms` is longer.
    max_idle_time: Option<Duration> = key("pool.max_idle_time_ms",
        TIME_OR_0, Live, default 600000, unit "ms");
    // The connection that replaces an old one can reach a server or an address that is new.
    /// Age at which a server connection is closed, as soon as no operation uses it; 0 for never.
    /// Connections are closed up to a fifth earlier, at different ages, so that they are not all
    /// replaced at the same time.
    max_life_time: Option<Duration> = key("pool.max_life_time_ms",
        TIME_OR_0, Live, default 1800000, unit "ms");
    /// How long an operation may wait until Seawall refuses it with an error. An operation can
    /// wait twice: while `limits.max_in_flight_operations` is reached, and then for a connection.
    /// The two waits add up.
    wait_queue_timeout: Duration = key("pool.wait_queue_timeout_ms",
        TIMEOUT, Live, default 10000, unit "ms");
    // The default is above the default of `listen.max_client_connections`. A client has at most one
    // operation at a time, so the operations of all clients can wait.
    /// Maximum number of operations that wait for connections to one server.
    wait_queue_size: NonZeroUsize = key("pool.wait_queue_size",
        ENTRIES, Live, default 20000, unit "operations");
}

section! {
    /// Limits of admission, memory and buffers.
    "limits" => Limits;

    // Clients that have not logged in may use only little memory.
    /// Largest message of a client that has not logged in.
    pre_auth_message_bytes: usize = key("limits.pre_auth_message_bytes",
        KeyKind::Integer { min: 4_096, max: LARGEST_MESSAGE_BYTES }, Live,
        default 16384, unit "bytes");
    /// Maximum memory for the large messages of all clients together.
    message_memory_bytes: usize = key("limits.message_memory_bytes",
        KeyKind::Integer { min: MIN_MESSAGE_MEMORY_BYTES, max: MAX_MEMORY_BYTES }, Live,
        default 536870912, unit "bytes");
    // The default is the same as that of `pool.max_server_connections`.
    /// Maximum number of clients that are relayed because of `auth.other_mechanisms`.
    relayed_connections: NonZeroUsize = key("limits.relayed_connections",
        CONNECTIONS, Live, default 500, unit "connections");
    // A client that does not read its reply must not use memory forever.
    /// How long a client may stall while reading a reply.
    client_write_idle_timeout: Duration = key("limits.client_write_idle_timeout_ms",
        TIMEOUT, Live, default 30000, unit "ms");
    /// Maximum number of open cursors that are pinned to their servers.
    max_cursors: NonZeroUsize = key("limits.max_cursors",
        ENTRIES, Live, default 100000, unit "cursors");
    /// Maximum number of open transactions that are pinned to their servers.
    max_transactions: NonZeroUsize = key("limits.max_transactions",
        ENTRIES, Live, default 100000, unit "transactions");
    // On current servers, a cursor of a session does not end after cursorTimeoutMillis, but with
    // its session. All drivers use sessions. The default is 5 min more than the default lifetime of
    // a session.
    /// How long the server of an unused cursor is remembered; must not be less than the servers'
    /// localLogicalSessionTimeoutMinutes and cursorTimeoutMillis.
    cursor_idle: Duration = key("limits.cursor_idle_ms",
        TIMEOUT, Live, default 2100000, unit "ms");
    // By default, servers end a transaction after 60 s. The default here is twice as long, so that
    // a commit can be retried even if the transaction has taken the full 60 s.
    /// How long the server of an unused transaction is remembered; should be twice the servers'
    /// transactionLifetimeLimitSeconds.
    transaction_idle: Duration = key("limits.transaction_idle_ms",
        TIMEOUT, Live, default 120000, unit "ms");
    // The limit protects the memory from clients that log in with invented user names.
    /// Maximum number of users whose credentials are cached.
    max_users: NonZeroUsize = key("limits.max_users",
        ENTRIES, Live, default 10000, unit "users");
    /// Maximum number of first logins, and of lookups of new users by the service account, that
    /// exchange messages with servers at the same time. Queries about users' mechanisms have a
    /// separate limit of the same size.
    introductions: NonZeroUsize = key("limits.introductions",
        KeyKind::Integer { min: 1, max: 1_000 }, Live, default 8, unit "logins");
    // Clients that never send their proofs must not block the first logins of other clients.
    /// Maximum number of first logins that wait for the client's proof, each on its own server
    /// connection; at the limit, further logins wait. If an address has at least two of these
    /// logins more than the address of a waiting login, Seawall ends a login. It ends the oldest
    /// login of the address with the most, but not before this login is 500 ms old.
    introduction_conversations: NonZeroUsize = key("limits.introduction_conversations",
        CONNECTIONS, Live, default 64, unit "connections");
    // If very many clients connect at once, the limit bounds the memory and the CPU time of their
    // logins. Further connections wait in the kernel (`listen.backlog`).
    /// Maximum number of client connections that have not logged in.
    unauthenticated_connections: NonZeroUsize = key("limits.unauthenticated_connections",
        CONNECTIONS, Live, default 4096, unit "connections");
    // Any client can pretend to be a monitor, so monitors must not use up all connections.
    /// Maximum number of connections of drivers' monitors, which never log in. One address gets at
    /// most eight ninths of this number. At the limit, Seawall closes a monitor of the address with
    /// the most monitors if it has sent no hello for ten minutes. Otherwise, it refuses the new
    /// monitor.
    monitor_connections: NonZeroUsize = key("limits.monitor_connections",
        CONNECTIONS, Live, default 8192, unit "connections");
    /// Maximum number of operations in flight, for all clients and servers together. Further
    /// operations wait. Commits and other commands that operations may wait for have a reserve: 8
    /// of them need not wait.
    max_in_flight_operations: NonZeroUsize = key("limits.max_in_flight_operations",
        ENTRIES, Live, default 20000, unit "operations");
    /// Maximum number of connections per second from one address (IPv6: /64); further ones are
    /// closed before their first byte is read; 0 for no limit.
    connections_per_second_per_address: Option<u32> = key(
        "limits.connections_per_second_per_address",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 0, unit "per second");
    /// Maximum number of logins per second of one user from one address (IPv6: /64), for successful
    /// and refused logins separately; further ones are delayed by at most 10 s; 0 for no limit.
    logins_per_second_per_user: Option<u32> = key("limits.logins_per_second_per_user",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 0, unit "per second");
    /// IP addresses or ranges (such as 10.0.0.0/8) of load balancers, separated by commas; after
    /// login, Seawall counts the clients behind them by user instead of by address.
    shared_addresses: Vec<IpNet> = key("limits.shared_addresses",
        KeyKind::Text, Live, example "10.0.0.0/8,192.0.2.7");
}

section! {
    /// Statistics by shape. A shape is a command without its values.
    "shapes" => Shapes;

    /// Compute the fingerprint of each operation, and count operations by shape.
    enabled: bool = key("shapes.enabled",
        KeyKind::Boolean, Live, default true);
    // The limit protects the memory from applications that create a new shape with each operation.
    /// Maximum number of rows of the shape table; at most a tenth of them are rows for groups of
    /// similar shapes. A shape without a row of its own is counted in the row of its group, or in
    /// the row `rest` of its namespace. The `rest` rows do not count towards the maximum.
    max_shapes: NonZeroUsize = key("shapes.max_shapes",
        ENTRIES, Live, default 10000, unit "shapes");
    /// Maximum number of combinations of a command and a namespace that appear in the labels of
    /// metrics; the others are counted as `other`.
    max_namespaces: NonZeroUsize = key("shapes.max_namespaces",
        ENTRIES, Live, default 2000, unit "namespaces");
    /// File with a secret; with it, shapes contain keyed hashes (HMAC-SHA-256) instead of the names
    /// of fields and indexes. A history file from before the key was set still contains these
    /// names: in shapes for up to eight days, and in annotations for longer. During the eight days,
    /// a shape whose text changed has two series. To remove the names at once, stop Seawall and
    /// delete the files `history.redb*` in `history.directory`.
    name_key: Option<Secret> = key("shapes.name_key_file",
        KeyKind::SecretFile, Restart, example "/run/secrets/name-key");
}

section! {
    /// The history of the statistics.
    "history" => History;

    /// Keep a history of the statistics, in steps of a second or more.
    enabled: bool = key("history.enabled",
        KeyKind::Boolean, Restart, default true);
    /// Directory in which the history is kept across restarts; without it, the history is only in
    /// memory.
    directory: Option<PathBuf> = key("history.directory",
        KeyKind::Directory, Restart, example "/var/lib/seawall");
    /// Maximum memory of the history. The oldest data is dropped first, but the steps in progress
    /// are kept. If these take more than half of the maximum, the history can exceed the maximum.
    memory_bytes: usize = key("history.memory_bytes",
        KeyKind::Integer { min: MIN_HISTORY_BYTES, max: MAX_MEMORY_BYTES }, Restart,
        default 134217728, unit "bytes");
    // The default equals the maximum number of shapes for which Seawall exports metrics.
    /// Maximum number of shapes with their own values in each second of the history; a longer step
    /// can have four times as many. The heaviest shapes are kept, and the others are counted as
    /// `other`.
    max_series_shapes: NonZeroUsize = key("history.max_series_shapes",
        ENTRIES, Restart, default 200, unit "shapes");
}

section! {
    /// Regular samples of each server's serverStatus.
    "pulse" => Pulse;

    /// Sample the serverStatus of each server; requires a service account.
    enabled: bool = key("pulse.enabled",
        KeyKind::Boolean, Restart, default true);
    // The interval is short, so that stalls of a few seconds are visible.
    /// Time between two samples of a server.
    interval: Duration = key("pulse.interval_ms",
        KeyKind::Integer { min: MIN_PULSE_INTERVAL_MS, max: MAX_PULSE_MS }, Live,
        default 1000, unit "ms");
    // The default equals that of `pulse.interval_ms`: a sample may take until the next one is due.
    /// How long a sample may take; after that it counts as a sample without a reply.
    timeout: Duration = key("pulse.timeout_ms",
        KeyKind::Integer { min: 1, max: MAX_PULSE_MS }, Live, default 1000, unit "ms");
}

section! {
    /// With this section, each slow operation is logged as a line of JSON; without it, slow
    /// operations are not logged.
    optional "slow_log" => SlowLog;

    // The default is the same as in the servers' profiler.
    /// Operations of at least this duration are logged; 0 for every operation.
    threshold: Duration = key("slow_log.threshold_ms",
        TIME_OR_0, Live, default 100, unit "ms");
    /// Thresholds of individual shapes, by shape id; they replace `threshold_ms`.
    shape_thresholds: Vec<(u64, Duration)> = key("slow_log.shape_thresholds_ms",
        KeyKind::ShapeThresholds { max_ms: MAX_DURATION_MS }, Live,
        example "{ 0123456789abcdef = 5 }", unit "ms");
    /// Percentage of the slow operations that are logged.
    sample_percent: f64 = key("slow_log.sample_percent",
        KeyKind::Percent, Live, default 100, unit "percent");
    /// File to which the lines are appended; without it, they are written to standard error.
    file: Option<PathBuf> = key("slow_log.file",
        KeyKind::Path, Live, example "/var/log/seawall/slow.jsonl");
    // In a stall, every operation is slow. Without a limit, the log could then fill the disk.
    /// Maximum number of lines per second; further lines are dropped, and the next line contains
    /// their number; 0 for no limit.
    max_lines_per_second: Option<NonZeroU32> = key("slow_log.max_lines_per_second",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 100, unit "per second");
    // The default is true, because values are the applications' data and may be confidential.
    /// Log only shapes; with false, lines also contain the values of commands.
    redact: bool = key("slow_log.redact",
        KeyKind::Boolean, Live, default true);
    /// Maximum length of a command's values in a line; longer values are cut.
    max_command_bytes: usize = key("slow_log.max_command_bytes",
        KeyKind::Integer { min: 1, max: MAX_COMMAND_BYTES }, Live, default 4096, unit "bytes");
}

section! {
    /// Captures of traffic: all operations of the captured clients. They contain data of the
    /// applications. Off unless `directory` is set.
    "capture" => Capture;

    /// Directory in which captures are kept; only its owner may read them.
    directory: Option<PathBuf> = key("capture.directory",
        KeyKind::Directory, Restart, example "/var/lib/seawall/captures");
    /// Maximum size of all captures in the directory together; at this size, the current capture
    /// ends.
    max_bytes: u64 = key("capture.max_bytes",
        KeyKind::Integer { min: MIN_CAPTURE_BYTES, max: MAX_MEMORY_BYTES }, Live,
        default 10737418240, unit "bytes");
    /// Size at which a capture continues in a new file.
    max_part_bytes: u64 = key("capture.max_part_bytes",
        KeyKind::Integer { min: MIN_CAPTURE_BYTES, max: MAX_MEMORY_BYTES }, Live,
        default 268435456, unit "bytes");
    /// Maximum bytes of commands and replies that are recorded per second, before compression;
    /// further ones are omitted and counted; 0 for no limit.
    max_bytes_per_second: u64 = key("capture.max_bytes_per_second",
        KeyKind::Integer { min: 0, max: MAX_MEMORY_BYTES }, Live,
        default 100000000, unit "bytes per second");
    // The minimum is enough for the largest message.
    /// Maximum memory of commands and replies that wait for the disk; further ones are omitted and
    /// counted.
    queue_bytes: usize = key("capture.queue_bytes",
        KeyKind::Integer { min: MIN_CAPTURE_QUEUE_BYTES, max: MAX_MEMORY_BYTES }, Live,
        default 67108864, unit "bytes");
    /// Age at which a capture is deleted; 0 to keep captures.
    retention_hours: u32 = key("capture.retention_hours",
        KeyKind::Integer { min: 0, max: 87_600 }, Live, default 168, unit "hours");
    /// Maximum duration of a capture.
    max_duration: Duration = key("capture.max_duration_ms",
        TIMEOUT, Live, default 3600000, unit "ms");
    // Without events by default, because events have a cost: Seawall must always keep a copy of the
    // latest operations (see `lead`).
    /// Events that begin a capture of all clients: `storm`, `stall` and `change`, separated by
    /// commas; without events, only operators begin captures.
    on: Vec<CaptureEvent> = key("capture.on",
        KeyKind::Text, Live, example "storm,stall");
    /// Length of the period before an event in `capture.on`. A capture that begins at the event
    /// also contains the operations of this period.
    lead: Duration = key("capture.lead_ms",
        TIME_OR_0, Live, default 10000, unit "ms");
    /// Maximum memory of the operations before an event; the oldest are dropped first.
    lead_bytes: usize = key("capture.lead_bytes",
        KeyKind::Integer { min: 0, max: MAX_MEMORY_BYTES }, Live, default 33554432, unit "bytes");
    /// How values of users are replaced in every capture. With `none`, they stay unchanged. With
    /// `equality`, equal values get equal pseudonyms. With `ordered`, pseudonyms also keep the
    /// order of numbers and dates, and equal prefixes of strings; this mode needs
    /// `redact_key_file`. A request that begins a capture may choose a stronger mode; from weak to
    /// strong, the modes are `none`, `ordered` and `equality`.
    redaction: CaptureRedaction = key("capture.redact",
        CaptureRedaction::KIND, Live, default "none");
    /// File with the key of the pseudonyms, at least 16 bytes; without it, each capture with
    /// `equality` has a random key, which is never written.
    redaction_key: Option<SecretFile> = key("capture.redact_key_file",
        KeyKind::SecretFile, Live, example "/run/secrets/redact-key");
}

section! {
    /// For experiments only: delays operations or makes them fail. Off unless `delay_ms`,
    /// `error_code` or `close` is set.
    "fault" => Fault;

    /// Name of the command that gets the fault; without a name, the fault is not limited to a
    /// command.
    command: Option<String> = key("fault.command",
        KeyKind::Text, Live, example "find");
    /// Database or database.collection whose operations get the fault; without a namespace, the
    /// fault is not limited to a namespace.
    namespace: Option<String> = key("fault.namespace",
        KeyKind::Text, Live, example "shop.orders");
    /// Percentage of the matching operations that get the fault.
    share_percent: u64 = key("fault.share_percent",
        KeyKind::Integer { min: 0, max: 100 }, Live, default 100, unit "percent");
    /// How long an operation with the fault is delayed; 0 for no delay.
    delay: Duration = key("fault.delay_ms",
        TIME_OR_0, Live, default 0, unit "ms");
    /// Error code that the client gets instead of the operation's reply; 0 for none.
    error_code: Option<i32> = key("fault.error_code",
        KeyKind::Integer { min: 0, max: 1_000_000 }, Live, default 0, unit "code");
    /// Close the client connection of an operation with the fault.
    close: bool = key("fault.close",
        KeyKind::Boolean, Live, default false);
}

impl Fault {
    fn has_effect(&self) -> bool {
        let acts = !self.delay.is_zero() || self.error_code.is_some() || self.close;
        acts && self.share_percent > 0
    }
}

section! {
    /// The graceful stop.
    "shutdown" => Shutdown;

    /// How long operations, cursors and transactions may continue after Seawall was asked to stop.
    drain: Duration = key("shutdown.drain_ms",
        TIME_OR_0, Live, default 10000, unit "ms");
}

section! {
    /// The threads and the process.
    "runtime" => Runtime;

    /// Number of threads that serve clients; 0 for one per core.
    worker_threads: Option<NonZeroUsize> = key("runtime.worker_threads",
        KeyKind::Integer { min: 0, max: 1_024 }, Restart, default 0, unit "threads");
    /// Allow core dumps and debuggers; the memory of the process contains users' keys.
    core_dumps: bool = key("runtime.core_dumps",
        KeyKind::Boolean, Restart, default false);
}

section! {
    /// Metrics, health and the API.
    "admin" => Admin;

    /// Address of metrics, health and the API.
    address: AdminAddress = key("admin.address",
        KeyKind::AdminAddress, Restart, default "127.0.0.1:9909");
    // The address is for Prometheus and the kubelet, which connect from other hosts without a
    // token.
    /// Further address that serves only /metrics and the health checks, without a token; `"off"`
    /// for none.
    metrics_address: AdminAddress = key("admin.metrics_address",
        KeyKind::AdminAddress, Restart, default "off");
    /// File with the token that requests must contain; unless the address is loopback or requires
    /// client certificates, this key or `read_token_file` is required. Several files, separated by
    /// commas, give several tokens.
    tokens: Vec<SecretFile> = key("admin.token_file",
        KeyKind::SecretFiles, Live, example "/run/secrets/admin-token");
    /// Files with further tokens, separated by commas. Requests with these tokens may only read:
    /// they cannot reload, drain, profile or annotate. They can list captures, but not start, stop,
    /// download or delete them.
    read_tokens: Vec<SecretFile> = key("admin.read_token_file",
        KeyKind::SecretFiles, Live, example "/run/secrets/monitoring-token");
    /// Host names, separated by commas, under which requests without a token are accepted; IP
    /// addresses and localhost are always accepted.
    allowed_hosts: Vec<String> = key("admin.allowed_hosts",
        KeyKind::Text, Live, example "seawall.internal");
    /// Serve the command `seawall` to clients whose users have the rights for it; with false, the
    /// command is forwarded to a server, which does not know it.
    commands: bool = key("admin.commands",
        KeyKind::Boolean, Live, default true);
    /// Serve the dashboard, a page for browsers, at `/`, and the endpoints `/api/v1/live` and
    /// `/api/v1/session`.
    dashboard: bool = key("admin.dashboard",
        KeyKind::Boolean, Live, default true);
    // Off by default, because profiles show the names of Seawall's functions and cost CPU time.
    /// Serve CPU profiles of Seawall at /api/v1/profile.
    profile: bool = key("admin.profile",
        KeyKind::Boolean, Live, default false);
    /// Admin addresses of the other instances, separated by commas: the dashboard and requests with
    /// `instances=all` show the figures of this instance and of the other instances together.
    peers: Vec<PeerAddress> = key("admin.peers",
        KeyKind::Text, Live, example "seawall-2:9909,https://seawall-3:9909");
    /// File with the token for all peers, or one file for each peer, in the order of `admin.peers`
    /// and separated by commas. A token of `admin.read_token_file` of the peer is enough.
    peer_tokens: Vec<SecretFile> = key("admin.peer_token_file",
        KeyKind::SecretFiles, Live, example "/run/secrets/peer-token");
    /// PEM file with the certificate authorities of peers with `https://`. Without it, Seawall
    /// trusts the authorities of the operating system.
    peer_ca_file: Option<ReadFile> = key("admin.peer_ca_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/admin-ca.pem");
    /// PEM file with Seawall's own certificate and its private key, for peers that require
    /// certificates.
    peer_certificate_key_file: Option<ReadFile> = key("admin.peer_certificate_key_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/client.pem");
    {
        /// TLS of `address`; `None` if callers connect without TLS. If this is set, all callers
        /// must use TLS. A reload closes no connection of a caller.
        tls: Option<Tls> = tls;
    }
}

/// The section `[admin.tls]`, which has only some of the keys of `[listen.tls]`. For the admin
/// address, the other keys of `[listen.tls]` have their defaults.
fn admin_tls_section() -> Section {
    let about = "With this section, callers of `admin.address` must use TLS; without it, they \
                 connect without TLS. `admin.metrics_address` never uses TLS.";
    let keys = [
        "certificate_file",
        "key_file",
        "client_certificate",
        "client_ca_file",
        "client_crl_file",
    ];
    Tls::SECTION.at("admin.tls", about, |key| keys.contains(&key.name()))
}

section! {
    /// The export of metrics to a collector of OpenTelemetry (OTLP over HTTP).
    "telemetry" => Telemetry;

    // Off by default, because the exported metrics contain the names of databases and collections,
    // and the shapes of commands.
    /// Export metrics. The `OTEL_…` variables have an effect only if this is true.
    enabled: bool = key("telemetry.enabled",
        KeyKind::Boolean, Live, default false);
    /// Base URL of the collector, to which `/v1/metrics` is appended.
    endpoint: String = key("telemetry.endpoint",
        KeyKind::HttpUrl, Live, default "http://localhost:4318");
    /// URL to which metrics are sent, instead of `telemetry.endpoint`; nothing is appended to it.
    metrics_endpoint: Option<String> = key("telemetry.metrics_endpoint",
        KeyKind::HttpUrl, Live, example "http://localhost:9090/api/v1/otlp/v1/metrics");
    /// Headers of each request, as `name=value` with percent-encoded values, separated by commas.
    headers: Option<Headers> = key("telemetry.headers",
        KeyKind::Secret, Live, example "authorization=Bearer%20token");
    /// File with headers as in `headers`, separated by commas or line breaks.
    headers_file: Option<Headers> = key("telemetry.headers_file",
        KeyKind::SecretFile, Live, example "/run/secrets/otlp-headers");
    /// Compression of the requests.
    compression: Compression = key("telemetry.compression",
        Compression::KIND, Live, default "none");
    /// Time between two exports.
    interval: Duration = key("telemetry.interval_ms",
        KeyKind::Integer { min: MIN_EXPORT_INTERVAL_MS, max: MAX_DURATION_MS }, Live,
        default 60000, unit "ms");
    /// How long the collector may take to receive a request and to respond.
    timeout: Duration = key("telemetry.timeout_ms",
        TIMEOUT, Live, default 10000, unit "ms");
    /// PEM file with the certificate authorities of the collector; without it, Seawall trusts the
    /// authorities of the operating system.
    ca_file: Option<ReadFile> = key("telemetry.ca_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/collector-ca.pem");
    /// PEM file with Seawall's own certificate, for collectors that require certificates.
    certificate_file: Option<ReadFile> = key("telemetry.certificate_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/telemetry.pem");
    /// PEM file with the private key of Seawall's certificate for collectors.
    key_file: Option<ReadFile> = key("telemetry.key_file",
        KeyKind::ReadableFile, Live, example "/etc/seawall/telemetry-key.pem");
    /// The attribute `service.name`. Without it, Seawall uses the name in
    /// `telemetry.resource_attributes`, or else `seawall`.
    service_name: Option<String> = key("telemetry.service_name",
        KeyKind::Text, Live, example "seawall-orders");
    /// Further attributes of this instance, as `name=value` with percent-encoded values, separated
    /// by commas.
    resource_attributes: Attributes = key("telemetry.resource_attributes",
        KeyKind::Text, Live, example "deployment.environment.name=production");
}

section! {
    /// Logging.
    "log" => Log;

    /// Minimum severity of the events that are logged. The audit log (`admin action`) is always
    /// logged.
    level: LogLevel = key("log.level",
        LogLevel::KIND, Live, default "info");
    /// Format of the log: text for people, json for programs.
    format: LogFormat = key("log.format",
        LogFormat::KIND, Live, default "text");
}

section! {
    /// The reload of the configuration.
    "reload" => Reload;

    // Off by default, because with this key an edit of a file takes effect although no reload was
    // requested.
    /// Twice a second, read the configuration file and all files that it names. Reload the
    /// configuration if a value or the content of a named file has changed.
    watch: bool = key("reload.watch",
        KeyKind::Boolean, Live, default false);
}
