//! The captures of traffic.

use std::path::PathBuf;
use std::time::Duration;

use crate::declare::{keys, section};
use crate::kinds::{
    MAX_MEMORY_BYTES, MIN_CAPTURE_BYTES, MIN_CAPTURE_QUEUE_BYTES, TIME_OR_0, TIMEOUT,
};
use crate::schema::KeyKind;
use crate::secret::SecretFile;
use crate::words::{CaptureEvent, CaptureRedaction};

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
    /// How the applications' values are replaced in every capture. With `none`, they stay
    /// unchanged. With `equality`, equal values get equal pseudonyms. With `ordered`, pseudonyms
    /// also keep the order of numbers and dates, and equal prefixes of strings; this mode needs
    /// `redact_key_file`. A request that begins a capture may choose a stronger mode; from weak to
    /// strong, the modes are `none`, `ordered` and `equality`.
    redaction: CaptureRedaction = key("capture.redact",
        CaptureRedaction::KIND, Live, default "none");
    /// File with the key of the pseudonyms, at least 16 bytes; without it, each capture with
    /// `equality` has a random key, which is never written.
    redaction_key: Option<SecretFile> = key("capture.redact_key_file",
        KeyKind::SecretFile, Live, example "/run/secrets/redact-key");
}
