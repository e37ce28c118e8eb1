//! The process: its threads, its log, its stop, its reload, and injected faults.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::declare::{keys, section};
use crate::kinds::TIME_OR_0;
use crate::schema::KeyKind;
use crate::words::{LogFormat, LogLevel};

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
    pub(super) fn has_effect(&self) -> bool {
        let acts = !self.delay.is_zero() || self.error_code.is_some() || self.close;
        acts && self.share_percent > 0
    }
}

section! {
    /// The graceful stop.
    "shutdown" => Shutdown;

    /// How long operations, cursors and transactions may continue after Seawall was asked to stop.
    drain: Duration = key("shutdown.drain_ms",
        TIME_OR_0, Live, default 15000, unit "ms");
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
