//! Kinds that several keys share.

use crate::schema::Kind;

/// A timeout. Never 0, which could be mistaken for "no limit".
pub(crate) const TIMEOUT: Kind = Kind::Integer {
    min: 1,
    max: MAX_DURATION_MS,
};

/// A time. 0 has a special meaning.
pub(crate) const TIME_OR_0: Kind = Kind::Integer {
    min: 0,
    max: MAX_DURATION_MS,
};

/// A number of sockets.
pub(crate) const CONNECTIONS: Kind = Kind::Integer {
    min: 1,
    max: MAX_CONNECTIONS,
};

/// The size of a table or a queue.
pub(crate) const ENTRIES: Kind = Kind::Integer {
    min: 1,
    max: MAX_ENTRIES,
};

/// Servers create salts of 16 and 28 bytes; other tools may use other lengths.
pub(crate) const SALT: Kind = Kind::Base64 { min: 1, max: 64 };

/// Drivers refuse fewer than 4096 rounds. Many more would keep a client busy for seconds.
pub(crate) const ITERATIONS: Kind = Kind::Integer {
    min: 4_096,
    max: 10_000_000,
};

/// A week. Longer times are mistakes of the unit.
pub(crate) const MAX_DURATION_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// More file descriptors than a process can have on common systems.
pub(crate) const MAX_CONNECTIONS: i64 = 1_000_000;

/// Keeps the tables of one Seawall within a few GiB.
const MAX_ENTRIES: i64 = 10_000_000;

/// The server monitoring specification's `minHeartbeatFrequencyMS`.
pub(crate) const MIN_HEARTBEAT_FREQUENCY_MS: i64 = 500;

/// `maxMessageSizeBytes` of every MongoDB server.
pub(crate) const LARGEST_MESSAGE_BYTES: i64 = 48_000_000;

/// The smallest budget for large messages.
pub(crate) const MIN_MESSAGE_MEMORY_BYTES: i64 = 128 * 1024 * 1024;

/// 1 TiB. More is a mistake of the unit.
pub(crate) const MAX_MEMORY_BYTES: i64 = 1024 * 1024 * 1024 * 1024;

/// The smallest history holds some minutes of a few shapes.
pub(crate) const MIN_HISTORY_BYTES: i64 = 1024 * 1024;

/// More frequent samples would be a load of their own.
pub(crate) const MIN_PULSE_INTERVAL_MS: i64 = 100;

/// One minute. With a longer interval, effects that repeat at checkpoints would be invisible.
pub(crate) const MAX_PULSE_MS: i64 = 60_000;

/// Lines wait in a queue, so their length bounds the queue's memory.
pub(crate) const MAX_COMMAND_BYTES: i64 = 64 * 1024;

// The largest message, a command or a reply, must fit into half of the budget.
const _: () = assert!(LARGEST_MESSAGE_BYTES <= MIN_MESSAGE_MEMORY_BYTES / 2);
