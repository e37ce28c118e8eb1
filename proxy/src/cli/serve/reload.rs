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
    /// The configuration and files that the last reload read, or the start if there was no reload.
    attempted: Read,
    /// The configuration and files that the last check for changes read.
    seen: Read,
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
            attempted: read.clone(),
            seen: read,
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
        self.attempted = read;
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
        // The check of a connection string may need DNS, which may be unavailable now.
        if loaded.settings.deployment != running.deployment {
            let checked = timeout(DNS_LIMIT, check::deployment_problems(&loaded.settings)).await;
            let problems = checked
                .unwrap_or_else(|_| vec!["deployment.uri: DNS did not reply in time".to_owned()]);
            if !problems.is_empty() {
                return Err(problems);
            }
        }
        let reload = app.reload_after_trial(loaded, is_dry_run).await?;
        if !is_dry_run {
            self.log.configure(&app.settings().log);
        }
        Ok(reload)
    }

    /// Reads the configuration and the files that it names, such as the certificate. Reloads if a
    /// setting or the content of such a file has changed since the last reload. A change counts
    /// only if two checks in a row read the same content, because another process may be writing a
    /// file at this moment.
    pub(super) async fn look(&mut self, app: &App) {
        let read = Read::new(app, load_with_values(&self.sources));
        let is_settled = read == self.seen;
        self.seen.clone_from(&read);
        if is_settled && read != self.attempted {
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
