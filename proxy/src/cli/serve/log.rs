//! The log on standard error. A reload can change its level and its format.
//!
//! A separate thread writes the lines. So if the reader of standard error hangs, only this thread
//! waits: clients are served, servers are monitored, and signals work.

mod fields;

use std::{
    io::{self, IsTerminal as _},
    sync::mpsc::sync_channel,
    thread,
    time::Duration,
};

use seawall_config::{Log, LogFormat};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt,
    layer::{Layered, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

use self::fields::{EscapedFields, EscapedJson};
use crate::runtime::AUDIT_TARGET;

/// Maximum number of lines that wait to be written. Further lines are dropped and counted, so that
/// the lines use little memory if the reader of standard error hangs.
const MAX_WAITING_LINES: usize = 8_192;

/// Maximum time for which Seawall waits at its exit until the queued lines are written. The reader
/// of standard error may hang.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

type Filtered = Layered<reload::Layer<EnvFilter, Registry>, Registry>;
type FormatLayer = Box<dyn Layer<Filtered> + Send + Sync>;

/// Changes the log's level and format.
pub(super) struct LogControl {
    /// The filter in the environment variable, which overrides the configured level.
    variable: Option<String>,
    filter: reload::Handle<EnvFilter, Registry>,
    format: reload::Handle<FormatLayer, Filtered>,
    writer: NonBlocking,
}

impl LogControl {
    /// Begins to log. `variable` is the filter in the environment variable, if any. When the
    /// returned value is dropped, the queued lines are written.
    pub(super) fn init(log: &Log, variable: Option<String>) -> (Self, FlushAtExit) {
        let (writer, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(MAX_WAITING_LINES)
            .thread_name("seawall-log")
            .finish(io::stderr());
        let (filter, filter_handle) = reload::Layer::new(filter(log, variable.as_deref()));
        let (format, format_handle) = reload::Layer::new(format(log, &writer));
        tracing_subscriber::registry()
            .with(filter)
            .with(format)
            .init();
        let control = Self {
            variable,
            filter: filter_handle,
            format: format_handle,
            writer,
        };
        (control, FlushAtExit(Some(guard)))
    }

    /// Returns the counter of the lines that were dropped.
    pub(super) fn left_out(&self) -> ErrorCounter {
        self.writer.error_counter()
    }

    /// Applies changed settings. The environment variable `SEAWALL_LOG` still overrides the level.
    pub(super) fn configure(&self, log: &Log) {
        // Both calls fail only if the log no longer exists, so their results are ignored.
        drop(self.filter.reload(filter(log, self.variable.as_deref())));
        drop(self.format.reload(format(log, &self.writer)));
    }
}

/// Dropping this value writes the queued lines. The drop takes at most [`FLUSH_LIMIT`].
#[must_use]
pub(super) struct FlushAtExit(Option<WorkerGuard>);

impl Drop for FlushAtExit {
    fn drop(&mut self) {
        let guard = self.0.take();
        let (done, is_done) = sync_channel(1);
        // If the queue is full, the guard prints a message to standard output. This can block or
        // panic, so it happens on a separate thread.
        let flushing = thread::Builder::new().spawn(move || {
            drop(guard);
            done.send(())
        });
        if flushing.is_ok() {
            is_done.recv_timeout(FLUSH_LIMIT).ok();
        }
    }
}

/// The filter in the environment variable (`variable`), or else the configured level. The audit log
/// stays on, unless the variable names the target of the audit log.
fn filter(log: &Log, variable: Option<&str>) -> EnvFilter {
    let filter = variable.unwrap_or_else(|| log.level.name());
    let mut targets = filter.split(',').map(|directive| {
        let end = directive.find(['=', '[']).unwrap_or(directive.len());
        directive.get(..end).unwrap_or_default().trim()
    });
    match targets.any(|target| target == AUDIT_TARGET) {
        true => EnvFilter::new(filter),
        false => EnvFilter::new(format!("{filter},{AUDIT_TARGET}=info")),
    }
}

fn format(log: &Log, writer: &NonBlocking) -> FormatLayer {
    let layer = fmt::layer().with_writer(writer.clone());
    match log.format {
        LogFormat::Json => layer.json().map_event_format(EscapedJson).boxed(),
        LogFormat::Text => {
            let layer = layer.with_target(false).fmt_fields(EscapedFields);
            // The log library obeys `NO_COLOR`. But if standard error is a file, the library would
            // write color codes, too.
            match io::stderr().is_terminal() {
                true => layer.boxed(),
                false => layer.with_ansi(false).boxed(),
            }
        }
    }
}
