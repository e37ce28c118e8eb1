//! Reads the configuration again: on SIGHUP, on a request of the API, and if a file has changed.

use std::time::Duration;

use seawall_api as api;
use seawall_config::{Loaded, Problems, Sources, load_with_values};
use tokio::time::timeout;

use super::{
    log::LogControl,
    service_manager::{notify_reloaded, notify_reloading},
};
use crate::{
    app::{App, ServerTlsFiles},
    cli::check,
};

/// Time limit for resolving a changed connection string. Signals are not handled during this time.
const DNS_LIMIT: Duration = Duration::from_secs(5);

/// Reloads the configuration of a running proxy.
pub(super) struct Reloader {
    sources: Sources,
    log: LogControl,
    watch: Watch<Read>,
}

/// Decides when contents that were read are due for a reload.
struct Watch<T> {
    /// The contents that the last reload read, or the start if there was no reload.
    attempted: T,
    /// The contents that the last check for changes read.
    seen: T,
}

impl<T: Clone + PartialEq> Watch<T> {
    fn new(read: T) -> Self {
        Self {
            attempted: read.clone(),
            seen: read,
        }
    }

    /// True if the contents of this check are due: they differ from those of the last reload, and
    /// the last check read the same. Another process may be writing a file at this moment, so the
    /// contents of a single check may be incomplete.
    fn is_due(&mut self, read: &T) -> bool {
        let is_settled = *read == self.seen;
        self.seen.clone_from(read);
        is_settled && *read != self.attempted
    }
}

/// The configuration with the contents of all files that it names, including the files that the
/// connection string names.
#[derive(Clone, PartialEq)]
struct Read {
    loaded: Result<Loaded, Problems>,
    server_tls: Option<ServerTlsFiles>,
}

impl Read {
    fn new(app: &App, loaded: Result<Loaded, Problems>) -> Self {
        let server_tls = loaded.as_ref().ok();
        let server_tls = server_tls.and_then(|loaded| app.read_server_tls(&loaded.settings));
        Self { loaded, server_tls }
    }
}

impl Reloader {
    /// `loaded` is the configuration of the start.
    pub(super) fn new(app: &App, sources: Sources, loaded: Loaded, log: LogControl) -> Self {
        let read = Read {
            loaded: Ok(loaded),
            server_tls: app.server_tls_in_use(),
        };
        Self {
            sources,
            log,
            watch: Watch::new(read),
        }
    }

    /// Reads the configuration and applies it. If there are problems, nothing changes. A dry run
    /// applies and logs nothing.
    pub(super) async fn reload(&mut self, app: &App, is_dry_run: bool) -> api::Reload {
        let loaded = load_with_values(&self.sources);
        if is_dry_run {
            return self.evaluate(app, &loaded, true).await;
        }
        self.reload_from(app, Read::new(app, loaded)).await
    }

    async fn reload_from(&mut self, app: &App, read: Read) -> api::Reload {
        notify_reloading();
        let reload = self.evaluate(app, &read.loaded, false).await;
        self.watch.attempted = read;
        record(app, &reload);
        notify_reloaded(reload.applied);
        reload
    }

    async fn evaluate(
        &self,
        app: &App,
        read: &Result<Loaded, Problems>,
        is_dry_run: bool,
    ) -> api::Reload {
        let result = match read {
            Ok(loaded) => self.apply(app, loaded, is_dry_run).await,
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
        };
        result.unwrap_or_else(|problems| api::Reload {
            problems,
            ..api::Reload::default()
        })
    }

    async fn apply(
        &self,
        app: &App,
        loaded: &Loaded,
        is_dry_run: bool,
    ) -> Result<api::Reload, Vec<String>> {
        let running = app.settings();
        let mut found = Vec::new();
        // The check of a connection string may need DNS, which may be unavailable now.
        if loaded.settings.deployment != running.deployment {
            let checked = timeout(DNS_LIMIT, check::deployment_problems(&loaded.settings)).await;
            found = checked
                .unwrap_or_else(|_| vec!["deployment.uri: DNS did not reply in time".to_owned()]);
        }
        let reload = app.reload_after_trial(loaded, found, is_dry_run).await?;
        if !is_dry_run {
            self.log.configure(&app.settings().log);
        }
        Ok(reload)
    }

    /// Reads the configuration and the files that it names, such as the certificate. Reloads if a
    /// setting or the content of such a file has changed since the last reload, and two checks in a
    /// row have read the same content.
    pub(super) async fn look(&mut self, app: &App) {
        let read = Read::new(app, load_with_values(&self.sources));
        if self.watch.is_due(&read) {
            self.reload_from(app, read).await;
        }
    }
}

/// Logs and counts a reload.
fn record(app: &App, reload: &api::Reload) {
    if !reload.problems.is_empty() {
        app.count_reload("failed");
        let problems = reload.problems.join("; ");
        tracing::warn!(problems, "could not reload the configuration");
        return;
    }
    app.count_reload("ok");
    let keys = |needs_restart| {
        let changes = reload.changes.iter();
        let changes = changes.filter(|change| change.needs_restart == needs_restart);
        changes
            .map(|change| &*change.key)
            .collect::<Vec<_>>()
            .join(", ")
    };
    tracing::info!(
        changed = keys(false),
        needs_restart = keys(true),
        "configuration reloaded"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contents that are due, if a reload attempts all due contents.
    fn due(checks: &[&'static str]) -> Vec<&'static str> {
        let mut watch = Watch::new("start");
        let mut due = Vec::new();
        for &read in checks {
            if watch.is_due(&read) {
                watch.attempted = read;
                due.push(read);
            }
        }
        due
    }

    #[test]
    fn only_the_final_content_of_a_file_that_is_written_in_pieces_is_due() {
        let pieces = ["", "half", "half, wrong", "whole", "whole", "whole"];
        assert_eq!(due(&pieces), ["whole"]);
    }

    #[test]
    fn contents_of_the_last_attempt_are_not_due_again() {
        // The second content may be invalid: it is attempted, and its problems are reported, once.
        let checks = ["start", "a", "a", "a", "b", "start", "start", "start"];
        assert_eq!(due(&checks), ["a", "start"]);
    }

    #[test]
    fn contents_that_change_back_before_the_next_check_are_not_due() {
        assert!(due(&["start", "a", "start", "start", "b", "start"]).is_empty());
    }
}
