//! The schema: every key there is, in the order of the documentation.
//!
//! One list for four readers: the check of each value, the environment, `docs/configuration.md`
//! and the tests that hold the defaults and the examples against it.

use crate::schema::{Change, Key, Kind};

/// Every key of the configuration.
pub const KEYS: &[Key] = &[
    Key {
        path: "listen.address",
        kind: Kind::Addresses,
        default: Some("127.0.0.1:27018"),
        unit: "",
        change: Change::Restart,
        meaning: "where clients connect, one address or a list",
    },
    Key {
        path: "listen.max_client_connections",
        kind: CONNECTIONS,
        default: Some("18000"),
        unit: "connections",
        change: Change::Restart,
        meaning: "client connections in all; more are refused",
    },
    Key {
        path: "listen.backlog",
        kind: Kind::Integer {
            min: 1,
            max: 65_535,
        },
        default: Some("4096"),
        unit: "connections",
        change: Change::Restart,
        meaning: "connections the kernel holds until they are accepted",
    },
    Key {
        path: "listen.compressors",
        kind: Kind::Text,
        default: Some("snappy,zstd,zlib"),
        unit: "",
        change: Change::Restart,
        meaning: "what clients may compress with, joined by commas, or disabled; towards servers the connection string's compressors count",
    },
    Key {
        path: "listen.tls.certificate_file",
        kind: Kind::Path,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "PEM file of the certificate chain; required in [listen.tls]",
    },
    Key {
        path: "listen.tls.key_file",
        kind: Kind::Path,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "PEM file of the certificate's private key; required in [listen.tls]",
    },
    Key {
        path: "deployment.uri",
        kind: Kind::ConnectionString,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "connection string of the deployment; this or uri_file is required",
    },
    Key {
        path: "deployment.uri_file",
        kind: Kind::Path,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "file that holds the connection string",
    },
    Key {
        path: "deployment.mode",
        kind: Kind::Choice {
            accepted: &["pooled", "relay"],
        },
        default: Some("pooled"),
        unit: "",
        change: Change::Restart,
        meaning: "how clients are served",
    },
    Key {
        path: "deployment.original_destination",
        kind: Kind::Boolean,
        default: Some("false"),
        unit: "",
        change: Change::Restart,
        meaning: "relays lead where clients connected to before they were redirected here (Linux, SO_ORIGINAL_DST)",
    },
    Key {
        path: "deployment.relay_encrypted",
        kind: Kind::Boolean,
        default: Some("false"),
        unit: "",
        change: Change::Restart,
        meaning: "relays pass TLS between client and server, unseen and unguarded",
    },
    Key {
        path: "deployment.server_selection_timeout_ms",
        kind: TIMEOUT,
        default: Some("30000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long an operation waits for a suitable server",
    },
    Key {
        path: "deployment.name_applications",
        kind: Kind::Boolean,
        default: Some("true"),
        unit: "",
        change: Change::Restart,
        meaning: "servers see the application's name on each operation, not the proxy's",
    },
    Key {
        path: "deployment.local_threshold_ms",
        kind: TIME_OR_0,
        default: Some("15"),
        unit: "ms",
        change: Change::Restart,
        meaning: "width of the latency window of server selection",
    },
    Key {
        path: "deployment.heartbeat_frequency_ms",
        kind: Kind::Integer {
            min: MIN_HEARTBEAT_FREQUENCY_MS,
            max: MAX_DURATION_MS,
        },
        default: Some("10000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "time between two checks of a server",
    },
    Key {
        path: "deployment.connect_timeout_ms",
        kind: TIMEOUT,
        default: Some("10000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "deadline for making a connection to a server ready, and for its answers to probes",
    },
    Key {
        path: "auth.credentials",
        kind: Kind::Choice {
            accepted: &["auto", "self", "lookup", "users", "none"],
        },
        default: Some("auto"),
        unit: "",
        change: Change::Restart,
        meaning: "where the credentials of clients come from",
    },
    Key {
        path: "auth.max_stale_ms",
        kind: TIMEOUT,
        default: Some("300000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "age at which credentials that no server confirmed are dropped",
    },
    Key {
        path: "auth.authentication_timeout_ms",
        kind: TIMEOUT,
        default: Some("30000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "deadline of a client from accept until it is authenticated",
    },
    Key {
        path: "auth.other_mechanisms",
        kind: Kind::Choice {
            accepted: &["refuse", "relay"],
        },
        default: Some("refuse"),
        unit: "",
        change: Change::Restart,
        meaning: "clients that log in by another mechanism than SCRAM are refused, or relayed over a connection of their own; X.509 always refused",
    },
    Key {
        path: "auth.users[].name",
        kind: Kind::Text,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "the user's name; required in [[auth.users]]",
    },
    Key {
        path: "auth.users[].source",
        kind: Kind::Text,
        default: Some("admin"),
        unit: "",
        change: Change::Restart,
        meaning: "the database that the user is defined in",
    },
    Key {
        path: "auth.users[].password",
        kind: Kind::Secret,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "the user's password; this, password_file or SCRAM keys are required",
    },
    Key {
        path: "auth.users[].password_file",
        kind: Kind::Path,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "file that holds the user's password",
    },
    Key {
        path: "auth.users[].scram_sha_1.salt",
        kind: SALT,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "salt of the user's SHA-1 keys",
    },
    Key {
        path: "auth.users[].scram_sha_1.iterations",
        kind: ITERATIONS,
        default: None,
        unit: "rounds",
        change: Change::Restart,
        meaning: "rounds of PBKDF2 of the user's SHA-1 keys",
    },
    Key {
        path: "auth.users[].scram_sha_1.stored_key",
        kind: Kind::Base64 { min: 20, max: 20 },
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "StoredKey of the user for SCRAM-SHA-1",
    },
    Key {
        path: "auth.users[].scram_sha_1.server_key",
        kind: Kind::Base64 { min: 20, max: 20 },
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "ServerKey of the user for SCRAM-SHA-1",
    },
    Key {
        path: "auth.users[].scram_sha_256.salt",
        kind: SALT,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "salt of the user's SHA-256 keys",
    },
    Key {
        path: "auth.users[].scram_sha_256.iterations",
        kind: ITERATIONS,
        default: None,
        unit: "rounds",
        change: Change::Restart,
        meaning: "rounds of PBKDF2 of the user's SHA-256 keys",
    },
    Key {
        path: "auth.users[].scram_sha_256.stored_key",
        kind: Kind::Base64 { min: 32, max: 32 },
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "StoredKey of the user for SCRAM-SHA-256",
    },
    Key {
        path: "auth.users[].scram_sha_256.server_key",
        kind: Kind::Base64 { min: 32, max: 32 },
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "ServerKey of the user for SCRAM-SHA-256",
    },
    Key {
        path: "pool.max_pool_size",
        kind: CONNECTIONS,
        default: Some("100"),
        unit: "connections",
        change: Change::Restart,
        meaning: "connections of one user to one server",
    },
    Key {
        path: "pool.max_server_connections",
        kind: CONNECTIONS,
        default: Some("500"),
        unit: "connections",
        change: Change::Restart,
        meaning: "connections of all users to one server",
    },
    Key {
        path: "pool.min_pool_size",
        kind: Kind::Integer {
            min: 0,
            max: MAX_CONNECTIONS,
        },
        default: Some("0"),
        unit: "connections",
        change: Change::Restart,
        meaning: "connections of one user to one server that are kept while idle",
    },
    Key {
        path: "pool.max_connecting",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("2"),
        unit: "connections",
        change: Change::Restart,
        meaning: "connections that one pool establishes at a time",
    },
    Key {
        path: "pool.connections_per_second",
        kind: Kind::Integer {
            min: 0,
            max: 100_000,
        },
        default: Some("200"),
        unit: "connections a second",
        change: Change::Restart,
        meaning: "connections begun to one server, of all users; after a pause 8 go at once; 0 for no limit",
    },
    Key {
        path: "pool.max_idle_time_ms",
        kind: TIME_OR_0,
        default: Some("600000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "idle time after which a server connection is closed; 0 is never",
    },
    Key {
        path: "pool.max_life_time_ms",
        kind: TIME_OR_0,
        default: Some("1800000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "age at which an idle server connection is closed; 0 is never",
    },
    Key {
        path: "pool.wait_queue_timeout_ms",
        kind: TIMEOUT,
        default: Some("10000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long an operation waits for a connection",
    },
    Key {
        path: "pool.wait_queue_size",
        kind: ENTRIES,
        default: Some("20000"),
        unit: "operations",
        change: Change::Restart,
        meaning: "operations that wait for connections to one server",
    },
    Key {
        path: "limits.pre_auth_message_bytes",
        kind: Kind::Integer {
            min: 4_096,
            max: LARGEST_MESSAGE_BYTES,
        },
        default: Some("16384"),
        unit: "bytes",
        change: Change::Restart,
        meaning: "largest message of a client that has not authenticated",
    },
    Key {
        path: "limits.message_memory_bytes",
        kind: Kind::Integer {
            min: MIN_MESSAGE_MEMORY_BYTES,
            max: MAX_MEMORY_BYTES,
        },
        default: Some("536870912"),
        unit: "bytes",
        change: Change::Restart,
        meaning: "memory for the large messages of all clients together",
    },
    Key {
        path: "limits.relayed_connections",
        kind: CONNECTIONS,
        default: Some("500"),
        unit: "connections",
        change: Change::Restart,
        meaning: "clients relayed at a time because of auth.other_mechanisms",
    },
    Key {
        path: "limits.client_write_idle_timeout_ms",
        kind: TIMEOUT,
        default: Some("30000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long a client may take no byte of its reply",
    },
    Key {
        path: "limits.max_cursors",
        kind: ENTRIES,
        default: Some("100000"),
        unit: "cursors",
        change: Change::Restart,
        meaning: "open cursors that are pinned to their servers",
    },
    Key {
        path: "limits.max_transactions",
        kind: ENTRIES,
        default: Some("100000"),
        unit: "transactions",
        change: Change::Restart,
        meaning: "open transactions that are pinned to their servers",
    },
    Key {
        path: "limits.cursor_idle_ms",
        kind: TIMEOUT,
        default: Some("600000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long the place of an unused cursor is remembered; not less than the servers' cursorTimeoutMillis",
    },
    Key {
        path: "limits.transaction_idle_ms",
        kind: TIMEOUT,
        default: Some("120000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long the place of an unused transaction is remembered; twice the servers' transactionLifetimeLimitSeconds",
    },
    Key {
        path: "limits.max_users",
        kind: ENTRIES,
        default: Some("10000"),
        unit: "users",
        change: Change::Restart,
        meaning: "users whose credentials are remembered",
    },
    Key {
        path: "limits.introductions",
        kind: Kind::Integer { min: 1, max: 1_000 },
        default: Some("8"),
        unit: "logins",
        change: Change::Restart,
        meaning: "first logins of unknown users that are carried to servers at a time",
    },
    Key {
        path: "limits.unauthenticated_connections",
        kind: CONNECTIONS,
        default: Some("4096"),
        unit: "connections",
        change: Change::Restart,
        meaning: "client connections between accept and authenticated at a time",
    },
    Key {
        path: "limits.max_in_flight_operations",
        kind: ENTRIES,
        default: Some("20000"),
        unit: "operations",
        change: Change::Restart,
        meaning: "operations that are admitted at a time",
    },
    Key {
        path: "limits.connections_per_second_per_address",
        kind: Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        default: Some("0"),
        unit: "per second",
        change: Change::Restart,
        meaning: "how often clients may connect from one address (IPv6: /64); more are closed before their first byte; 0 is no limit",
    },
    Key {
        path: "limits.logins_per_second_per_user",
        kind: Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        default: Some("0"),
        unit: "per second",
        change: Change::Restart,
        meaning: "how often one user may log in; more are delayed, by 10 s at most; 0 is no limit",
    },
    Key {
        path: "shapes.enabled",
        kind: Kind::Boolean,
        default: Some("true"),
        unit: "",
        change: Change::Restart,
        meaning: "commands are fingerprinted and counted by shape",
    },
    Key {
        path: "shapes.max_shapes",
        kind: ENTRIES,
        default: Some("10000"),
        unit: "shapes",
        change: Change::Restart,
        meaning: "shapes that are counted one by one, the rest as other",
    },
    Key {
        path: "shapes.max_namespaces",
        kind: ENTRIES,
        default: Some("2000"),
        unit: "namespaces",
        change: Change::Restart,
        meaning: "namespaces that appear as labels, the rest as other",
    },
    Key {
        path: "history.enabled",
        kind: Kind::Boolean,
        default: Some("true"),
        unit: "",
        change: Change::Restart,
        meaning: "what was counted is remembered, by the second and by longer steps",
    },
    Key {
        path: "history.directory",
        kind: Kind::Directory,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "where it is kept across restarts; in memory only without it",
    },
    Key {
        path: "history.memory_bytes",
        kind: Kind::Integer {
            min: MIN_HISTORY_BYTES,
            max: MAX_MEMORY_BYTES,
        },
        default: Some("134217728"),
        unit: "bytes",
        change: Change::Restart,
        meaning: "memory for all that is remembered; the oldest gives way",
    },
    Key {
        path: "history.max_series_shapes",
        kind: ENTRIES,
        default: Some("200"),
        unit: "shapes",
        change: Change::Restart,
        meaning: "shapes that are remembered one by one, the heaviest of each step, the rest as other",
    },
    Key {
        path: "pulse.enabled",
        kind: Kind::Boolean,
        default: Some("true"),
        unit: "",
        change: Change::Restart,
        meaning: "the serverStatus of each server is sampled; never without a service account",
    },
    Key {
        path: "pulse.interval_ms",
        kind: Kind::Integer {
            min: MIN_PULSE_INTERVAL_MS,
            max: MAX_PULSE_MS,
        },
        default: Some("1000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "time between two samples of a server",
    },
    Key {
        path: "pulse.timeout_ms",
        kind: Kind::Integer {
            min: 1,
            max: MAX_PULSE_MS,
        },
        default: Some("1000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long a sample may take; one that takes longer counts as no answer",
    },
    Key {
        path: "slow_log.threshold_ms",
        kind: TIME_OR_0,
        default: Some("100"),
        unit: "ms",
        change: Change::Restart,
        meaning: "operations that take so long are logged; 0 is every operation",
    },
    Key {
        path: "slow_log.shape_thresholds_ms",
        kind: Kind::ShapeThresholds {
            max_ms: MAX_DURATION_MS,
        },
        default: None,
        unit: "ms",
        change: Change::Restart,
        meaning: "the threshold of single shapes, instead of threshold_ms",
    },
    Key {
        path: "slow_log.sample_percent",
        kind: Kind::Percent,
        default: Some("100"),
        unit: "percent",
        change: Change::Restart,
        meaning: "how many of the operations over their threshold are logged",
    },
    Key {
        path: "slow_log.file",
        kind: Kind::Path,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "where the lines are appended; to standard error without it",
    },
    Key {
        path: "slow_log.max_lines_per_second",
        kind: Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        default: Some("100"),
        unit: "per second",
        change: Change::Restart,
        meaning: "lines at most; the next line says how many were left out; 0 is no limit",
    },
    Key {
        path: "slow_log.redact",
        kind: Kind::Boolean,
        default: Some("true"),
        unit: "",
        change: Change::Restart,
        meaning: "lines show shapes only; false adds the values of commands",
    },
    Key {
        path: "slow_log.max_command_bytes",
        kind: Kind::Integer {
            min: 1,
            max: MAX_COMMAND_BYTES,
        },
        default: Some("4096"),
        unit: "bytes",
        change: Change::Restart,
        meaning: "where the values of a command are cut",
    },
    Key {
        path: "fault.command",
        kind: Kind::Text,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "the operations that are concerned, by the command's name; every operation without it",
    },
    Key {
        path: "fault.namespace",
        kind: Kind::Text,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "the database, or database.collection, that is concerned; every one without it",
    },
    Key {
        path: "fault.share_percent",
        kind: Kind::Integer { min: 0, max: 100 },
        default: Some("100"),
        unit: "percent",
        change: Change::Restart,
        meaning: "how many of these operations are concerned",
    },
    Key {
        path: "fault.delay_ms",
        kind: TIME_OR_0,
        default: Some("0"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long such an operation is held before it goes on; 0 is not",
    },
    Key {
        path: "fault.error_code",
        kind: Kind::Integer {
            min: 0,
            max: 1_000_000,
        },
        default: Some("0"),
        unit: "code",
        change: Change::Restart,
        meaning: "what such an operation is answered instead of reaching a server; 0 is nothing",
    },
    Key {
        path: "fault.close",
        kind: Kind::Boolean,
        default: Some("false"),
        unit: "",
        change: Change::Restart,
        meaning: "the client of such an operation is closed",
    },
    Key {
        path: "shutdown.drain_ms",
        kind: TIME_OR_0,
        default: Some("10000"),
        unit: "ms",
        change: Change::Restart,
        meaning: "how long running operations may go on after a request to stop",
    },
    Key {
        path: "runtime.worker_threads",
        kind: Kind::Integer { min: 0, max: 1_024 },
        default: Some("0"),
        unit: "threads",
        change: Change::Restart,
        meaning: "threads that serve clients; 0 is one a core",
    },
    Key {
        path: "admin.address",
        kind: Kind::AdminAddress,
        default: Some("127.0.0.1:9909"),
        unit: "",
        change: Change::Restart,
        meaning: "where metrics, health and the API are served",
    },
    Key {
        path: "admin.token_file",
        kind: Kind::Path,
        default: None,
        unit: "",
        change: Change::Restart,
        meaning: "file with the token of the admin address; required unless that is loopback",
    },
    Key {
        path: "log.level",
        kind: Kind::Choice {
            accepted: &["error", "warn", "info", "debug", "trace"],
        },
        default: Some("info"),
        unit: "",
        change: Change::Restart,
        meaning: "the least important events that are logged",
    },
    Key {
        path: "log.format",
        kind: Kind::Choice {
            accepted: &["text", "json"],
        },
        default: Some("text"),
        unit: "",
        change: Change::Restart,
        meaning: "how events are written",
    },
];

/// Any time that is waited for something: never 0, which would be mistaken for "no limit".
const TIMEOUT: Kind = Kind::Integer {
    min: 1,
    max: MAX_DURATION_MS,
};

/// A time, where 0 has a meaning of its own.
const TIME_OR_0: Kind = Kind::Integer {
    min: 0,
    max: MAX_DURATION_MS,
};

/// A number of sockets.
const CONNECTIONS: Kind = Kind::Integer {
    min: 1,
    max: MAX_CONNECTIONS,
};

/// The size of a table or a queue.
const ENTRIES: Kind = Kind::Integer {
    min: 1,
    max: MAX_ENTRIES,
};

/// Servers make salts of 16 and 28 bytes; other makers of keys may differ.
const SALT: Kind = Kind::Base64 { min: 1, max: 64 };

/// Drivers refuse fewer than 4096 rounds, and many more would keep a client busy for seconds.
const ITERATIONS: Kind = Kind::Integer {
    min: 4_096,
    max: 10_000_000,
};

/// A week: longer times are mistakes of the unit.
const MAX_DURATION_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// More descriptors than one process can have on common systems.
const MAX_CONNECTIONS: i64 = 1_000_000;

/// Keeps the tables of one Seawall within a few GiB.
const MAX_ENTRIES: i64 = 10_000_000;

/// The server monitoring specification's `minHeartbeatFrequencyMS`.
const MIN_HEARTBEAT_FREQUENCY_MS: i64 = 500;

/// `maxMessageSizeBytes` of every MongoDB server.
const LARGEST_MESSAGE_BYTES: i64 = 48_000_000;

/// The smallest budget for large messages.
const MIN_MESSAGE_MEMORY_BYTES: i64 = 128 * 1024 * 1024;

/// A TiB: more than that is a mistake of the unit.
const MAX_MEMORY_BYTES: i64 = 1024 * 1024 * 1024 * 1024;

/// The smallest history: some minutes of a few shapes.
const MIN_HISTORY_BYTES: i64 = 1024 * 1024;

/// More often than this a sample would be a load of its own.
const MIN_PULSE_INTERVAL_MS: i64 = 100;

/// A minute: what repeats at checkpoints could not be seen in samples further apart.
const MAX_PULSE_MS: i64 = 60_000;

/// Lines wait in a queue, so their length bounds its memory.
const MAX_COMMAND_BYTES: i64 = 64 * 1024;

// The largest message must fit into the budget's half, be it a request or a reply.
const _: () = assert!(LARGEST_MESSAGE_BYTES <= MIN_MESSAGE_MEMORY_BYTES / 2);
