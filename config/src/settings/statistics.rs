//! The statistics of operations and servers, their history, and the slow log.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use crate::declare::{keys, section};
use crate::kinds::{
    ENTRIES, MAX_COMMAND_BYTES, MAX_DURATION_MS, MAX_MEMORY_BYTES, MAX_PULSE_MS, MIN_HISTORY_BYTES,
    MIN_PULSE_INTERVAL_MS, TIME_OR_0,
};
use crate::schema::KeyKind;
use crate::secret::Secret;

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
    // The default equals the number of heaviest shapes that always have their own metric series.
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
