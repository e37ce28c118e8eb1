//! The log on standard error. A reload can change its level and its format.
//!
//! A separate thread writes the lines. So if the reader of standard error hangs, only this thread
//! waits: clients are served, servers are monitored, and signals work.

use std::{
    env,
    io::{self, IsTerminal as _},
};

use seawall_config::{Log, LogFormat};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt,
    layer::{Layered, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

use crate::runtime::AUDIT_TARGET;

/// Environment variable that overrides the log level, with the syntax of `tracing`'s filters.
const LOG_VARIABLE: &str = "SEAWALL_LOG";

/// Maximum number of lines that wait to be written. Further lines are dropped and counted.
const MAX_WAITING_LINES: usize = 8_192;

type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type Format = Box<dyn Layer<Filtered> + Send + Sync>;

/// Changes the log's level and format.
pub(super) struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
    format: reload::Handle<Format, Filtered>,
    writer: NonBlocking,
}

impl LogControl {
    /// Begins to log. When the returned guard is dropped, it waits until the waiting lines are
    /// written, but for at most about a second.
    pub(super) fn init(log: &Log) -> (Self, WorkerGuard) {
        let (writer, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(MAX_WAITING_LINES)
            .thread_name("seawall-log")
            .finish(io::stderr());
        let (filter, filter_handle) = reload::Layer::new(filter(log));
        let (format, format_handle) = reload::Layer::new(format(log, &writer));
        tracing_subscriber::registry()
            .with(filter)
            .with(format)
            .init();
        let control = Self {
            filter: filter_handle,
            format: format_handle,
            writer,
        };
        (control, guard)
    }

    /// Counts the lines that were not written.
    pub(super) fn left_out(&self) -> ErrorCounter {
        self.writer.error_counter()
    }

    /// The filter in the environment variable `SEAWALL_LOG`. `None` if the variable is not set, is
    /// empty or is invalid: it then does not override the level.
    pub(super) fn variable() -> Option<String> {
        let text = env::var(LOG_VARIABLE).ok()?;
        let filter = EnvFilter::try_new(&text).ok()?;
        (!text.is_empty()).then(|| filter.to_string())
    }

    /// Applies changed settings. The environment variable `SEAWALL_LOG` still overrides the level.
    pub(super) fn configure(&self, log: &Log) {
        // Both calls fail only if the log no longer exists.
        drop(self.filter.reload(filter(log)));
        drop(self.format.reload(format(log, &self.writer)));
    }
}

/// The filter in the environment variable, or else the configured level. Neither of them switches
/// the audit log off, unless the variable names its target.
fn filter(log: &Log) -> EnvFilter {
    let filter = LogControl::variable().unwrap_or_else(|| log.level.name().to_owned());
    let mut targets = filter.split(',').map(|directive| {
        let end = directive.find(['=', '[']).unwrap_or(directive.len());
        directive.get(..end).unwrap_or_default().trim()
    });
    match targets.any(|target| target == AUDIT_TARGET) {
        true => EnvFilter::new(filter),
        false => EnvFilter::new(format!("{filter},{AUDIT_TARGET}=info")),
    }
}

fn format(log: &Log, writer: &NonBlocking) -> Format {
    let layer = fmt::layer().with_writer(writer.clone());
    match log.format {
        // The log library obeys `NO_COLOR`. But if standard error is a file, the library would
        // write color codes, too.
        LogFormat::Text if io::stderr().is_terminal() => layer.with_target(false).boxed(),
        LogFormat::Text => layer.with_target(false).with_ansi(false).boxed(),
        LogFormat::Json => layer.json().boxed(),
    }
}
