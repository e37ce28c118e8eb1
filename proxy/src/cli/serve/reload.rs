//! Reads the configuration again: on SIGHUP, on a request of the API, and if a file has changed.

use seawall_api as api;
use seawall_config::{Loaded, Problems, Sources, load_with_values};
use tokio::task::block_in_place;

use super::log::LogControl;
use crate::{app::App, cli::check};

/// Reloads the configuration of a running proxy.
pub(super) struct Reloader {
    sources: Sources,
    log: LogControl,
    /// What the last reload or the start has read.
    attempted: Result<Loaded, Problems>,
    /// What the last look at the files has read.
    seen: Result<Loaded, Problems>,
}

impl Reloader {
    /// `loaded` is the configuration of the start.
    pub(super) fn new(sources: Sources, loaded: Loaded, log: LogControl) -> Self {
        Self {
            sources,
            log,
            attempted: Ok(loaded.clone()),
            seen: Ok(loaded),
        }
    }

    /// Reads the configuration and applies it, unless it is a dry run. If there are problems, they
    /// are logged, and nothing changes.
    pub(super) async fn reload(&mut self, app: &App, is_dry_run: bool) -> api::Reload {
        let read = load_with_values(&self.sources);
        if !is_dry_run {
            self.attempted.clone_from(&read);
        }
        let result = match read {
            Ok(loaded) => self.apply(app, &loaded, is_dry_run).await,
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
        };
        let reload = result.unwrap_or_else(|problems| api::Reload {
            problems,
            ..api::Reload::default()
        });
        if !is_dry_run {
            record(app, &reload);
        }
        reload
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
            let problems = check::deployment_problems(&loaded.settings).await;
            if !problems.is_empty() {
                return Err(problems);
            }
        }
        let reload = block_in_place(|| app.reload(loaded, is_dry_run))?;
        if !is_dry_run {
            self.log.configure(&app.settings().log);
        }
        Ok(reload)
    }

    /// Compares the contents of all files with those of the last reload, and reloads if they
    /// differ. A change counts only if two looks in a row read the same, because a file may be
    /// written at this moment.
    pub(super) async fn look(&mut self, app: &App) {
        let read = load_with_values(&self.sources);
        let is_settled = read == self.seen;
        if is_settled && read != self.attempted {
            self.reload(app, false).await;
        }
        self.seen = read;
    }
}

/// Logs and counts a reload.
fn record(app: &App, reload: &api::Reload) {
    if !reload.problems.is_empty() {
        app.count_reload("failed");
        let problems = reload.problems.join("; ");
        tracing::warn!(problems, "configuration not reloaded");
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
