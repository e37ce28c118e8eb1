//! The log on standard error. A reload can change its level and its format.
//!
//! A separate thread writes the lines. So if the reader of standard error hangs, only this thread
//! waits: clients are served, servers are monitored, and signals work.

mod fields;

use std::{
    env,
    io::{self, IsTerminal as _},
    sync::mpsc::sync_channel,
    thread,
    time::Duration,
};

use seawall_config::{Log, LogFormat};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::LevelFilter,
    fmt,
    layer::{Layered, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

use self::fields::{EscapedFields, EscapedJson};
use crate::runtime::AUDIT_TARGET;

/// Environment variable that overrides the log level, with the syntax of `tracing`'s filters.
const LOG_VARIABLE: &str = "SEAWALL_LOG";

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

/// The filter in the environment variable `SEAWALL_LOG`. `None` if the variable is not set or is
/// empty: the configured level then applies.
///
/// # Errors
/// A message, if the variable has no valid filter.
pub(super) fn variable() -> Result<Option<String>, String> {
    match env::var_os(LOG_VARIABLE) {
        Some(text) if !text.is_empty() => parsed(&text.to_string_lossy()).map(Some),
        Some(_) | None => Ok(None),
    }
}

/// Checks a filter, and returns it as the log library shows it.
///
/// # Errors
/// A message, if the filter is invalid or one of its directives sets no level. The library treats a
/// word that is not a level, such as `warning`, as a target. It then logs only this target.
fn parsed(text: &str) -> Result<String, String> {
    let sets_level = |directive: &str| {
        let after_target = directive.rsplit_once('=').map(|(_, level)| level);
        let level = after_target.unwrap_or(directive);
        !level.is_empty() && level.parse::<LevelFilter>().is_ok()
    };
    match EnvFilter::try_new(text) {
        Ok(filter) if text.split(',').all(sets_level) => Ok(filter.to_string()),
        Ok(_) | Err(_) => Err(format!(
            "{LOG_VARIABLE} = {text:?}: must be a level (error, warn, info, debug or trace), \
             directives target=level, or both, separated by commas"
        )),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_filter_may_have_a_level_and_levels_of_targets() {
        for filter in ["warn", "DEBUG", "seawall=info", "info,seawall::pool=trace"] {
            assert!(parsed(filter).is_ok(), "{filter}");
        }
        assert_eq!(parsed("seawall=info").unwrap(), "seawall=info");
    }

    #[test]
    fn a_log_filter_that_is_invalid_or_sets_no_level_is_refused() {
        for filter in [
            "warning",
            "seawall",
            "seawall=",
            "seawall=warning",
            "warning,seawall::pool=debug",
            ",",
            "[",
            " warn",
        ] {
            let refused = parsed(filter).unwrap_err();
            let expected = format!(
                "SEAWALL_LOG = {filter:?}: must be a level (error, warn, info, debug or trace)"
            );
            assert!(refused.starts_with(&expected), "{refused}");
        }
    }
}
