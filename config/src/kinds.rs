//! Kinds that several keys are of.

use crate::schema::Kind;

/// Any time that is waited for something: never 0, which would be mistaken for "no limit".
pub(crate) const TIMEOUT: Kind = Kind::Integer {
    min: 1,
    max: MAX_DURATION_MS,
};

/// A time, where 0 has a meaning of its own.
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

/// Servers make salts of 16 and 28 bytes; other makers of keys may differ.
pub(crate) const SALT: Kind = Kind::Base64 { min: 1, max: 64 };

/// Drivers refuse fewer than 4096 rounds, and many more would keep a client busy for seconds.
pub(crate) const ITERATIONS: Kind = Kind::Integer {
    min: 4_096,
    max: 10_000_000,
};

/// A week: longer times are mistakes of the unit.
pub(crate) const MAX_DURATION_MS: i64 = 7 * 24 * 60 * 60 * 1_000;

/// More descriptors than one process can have on common systems.
pub(crate) const MAX_CONNECTIONS: i64 = 1_000_000;

/// Keeps the tables of one Seawall within a few GiB.
const MAX_ENTRIES: i64 = 10_000_000;

/// The server monitoring specification's `minHeartbeatFrequencyMS`.
pub(crate) const MIN_HEARTBEAT_FREQUENCY_MS: i64 = 500;

/// `maxMessageSizeBytes` of every MongoDB server.
pub(crate) const LARGEST_MESSAGE_BYTES: i64 = 48_000_000;

/// The smallest budget for large messages.
pub(crate) const MIN_MESSAGE_MEMORY_BYTES: i64 = 128 * 1024 * 1024;

/// A TiB: more than that is a mistake of the unit.
pub(crate) const MAX_MEMORY_BYTES: i64 = 1024 * 1024 * 1024 * 1024;

/// The smallest history: some minutes of a few shapes.
pub(crate) const MIN_HISTORY_BYTES: i64 = 1024 * 1024;

/// More often than this a sample would be a load of its own.
pub(crate) const MIN_PULSE_INTERVAL_MS: i64 = 100;

/// A minute: what repeats at checkpoints could not be seen in samples further apart.
pub(crate) const MAX_PULSE_MS: i64 = 60_000;

/// Lines wait in a queue, so their length bounds its memory.
pub(crate) const MAX_COMMAND_BYTES: i64 = 64 * 1024;

// The largest message must fit into the budget's half, be it a request or a reply.
const _: () = assert!(LARGEST_MESSAGE_BYTES <= MIN_MESSAGE_MEMORY_BYTES / 2);
