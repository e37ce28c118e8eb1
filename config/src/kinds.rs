//! The kinds of values that several keys share, and the limits of these values.

use crate::schema::KeyKind;

/// A timeout. It cannot be 0, which could be mistaken for "no limit".
pub(crate) const TIMEOUT: KeyKind = KeyKind::Integer {
    min: 1,
    max: MAX_DURATION_MS,
};

/// A time for which 0 has a special meaning.
pub(crate) const TIME_OR_0: KeyKind = KeyKind::Integer {
    min: 0,
    max: MAX_DURATION_MS,
};

/// A number of connections.
pub(crate) const CONNECTIONS: KeyKind = KeyKind::Integer {
    min: 1,
    max: MAX_CONNECTIONS,
};

/// The maximum number of entries of a table or a queue.
pub(crate) const ENTRIES: KeyKind = KeyKind::Integer {
    min: 1,
    max: MAX_ENTRIES,
};

/// The minimum time between two exports of metrics. More frequent exports would cost much CPU time,
/// because each export collects all metrics.
pub(crate) const MIN_EXPORT_INTERVAL_MS: i64 = 100;

/// A SCRAM salt. Servers create salts of 16 and 28 bytes; other tools may use other lengths.
pub(crate) const SALT: KeyKind = KeyKind::Base64 { min: 1, max: 64 };

/// A number of PBKDF2 rounds. Drivers refuse fewer than 4096. The maximum keeps a login from taking
/// many seconds.
pub(crate) const ITERATIONS: KeyKind = KeyKind::Integer {
    min: 4_096,
    max: 10_000_000,
};

/// Maximum value of keys for a time in milliseconds: a week. A longer time is probably given in a
/// wrong unit. Some keys have their own maximum instead.
pub(crate) const MAX_DURATION_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// Maximum value of every key for a number of connections. Each connection needs a file descriptor,
/// and by default, Linux limits a process to about this number (`fs.nr_open`).
pub(crate) const MAX_CONNECTIONS: i64 = 1_000_000;

/// Maximum value of every key for a number of entries. It keeps the tables of one Seawall process
/// within a few GiB.
const MAX_ENTRIES: i64 = 10_000_000;

/// Minimum time between heartbeats: `minHeartbeatFrequencyMS` of the server monitoring
/// specification.
pub(crate) const MIN_HEARTBEAT_FREQUENCY_MS: i64 = 500;

/// The largest message of any MongoDB server (`maxMessageSizeBytes`).
pub(crate) const LARGEST_MESSAGE_BYTES: i64 = 48_000_000;

/// Minimum of the memory budget for messages. The largest message must fit into half of it (see the
/// assertion below).
pub(crate) const MIN_MESSAGE_MEMORY_BYTES: i64 = 128 * 1024 * 1024;

/// Maximum value of every key for a memory size: 1 TiB. A larger size is probably given in a wrong
/// unit.
pub(crate) const MAX_MEMORY_BYTES: i64 = 1024 * 1024 * 1024 * 1024;

/// Minimum memory of the history of statistics. It is enough for a few query shapes over some
/// minutes.
pub(crate) const MIN_HISTORY_BYTES: i64 = 1024 * 1024;

/// Minimum time between two samples of a server's `serverStatus`. More frequent samples would slow
/// down the server.
pub(crate) const MIN_PULSE_INTERVAL_MS: i64 = 100;

/// Maximum time between two samples of a server's `serverStatus`: a minute. A longer interval would
/// hide effects of checkpoints, which servers write once a minute.
pub(crate) const MAX_PULSE_MS: i64 = 60_000;

/// Maximum length of a command in a line of the slow log. It limits the memory of the queue in
/// which lines wait.
pub(crate) const MAX_COMMAND_BYTES: i64 = 64 * 1024;

/// Minimum for the size limits of captures (recordings of client traffic) and of their files. A
/// smaller file would contain mostly headers.
pub(crate) const MIN_CAPTURE_BYTES: i64 = 1024 * 1024;

/// Minimum memory of the queue in which the commands and replies of a capture (a recording of
/// client traffic) wait for the disk. The largest message must fit into the queue.
pub(crate) const MIN_CAPTURE_QUEUE_BYTES: i64 = 64 * 1024 * 1024;

/// Minimum length in bytes of the secret key that is used to compute pseudonyms. In captures,
/// pseudonyms replace the applications' data. An attacker could find a shorter key by trying all
/// keys.
pub const MIN_REDACTION_KEY_BYTES: usize = 16;

const _: () = assert!(MIN_CAPTURE_QUEUE_BYTES > LARGEST_MESSAGE_BYTES);

// A part of the memory budget is reserved, so that one message at a time can always be received
// completely. The reserve is at most half of the budget, and the largest message must fit into it.
const _: () = assert!(LARGEST_MESSAGE_BYTES <= MIN_MESSAGE_MEMORY_BYTES / 2);
