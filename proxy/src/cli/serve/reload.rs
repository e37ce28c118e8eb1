//! Reads the configuration again: on SIGHUP, when a caller of the API requests it, and when the
//! configuration file or a file that it names has changed.

use std::{mem, sync::Arc, time::Duration};

use seawall_api as api;
use seawall_config::{Loaded, Problems, Settings, Sources, load_with_values};
use tokio::{
    signal::unix::Signal,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    log::LogControl,
    service_manager::{notify_reloaded, notify_reloading},
};
use crate::{
    app::{App, LimitedThread, ServerTlsFiles},
    cli::check,
    runtime::Action,
};

/// Time between two checks for changed configuration files (`reload.watch`). Seawall loads a change
/// when two checks in a row have read it. So new certificates are normally in use within two
/// seconds.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Time after which Seawall loads a refused configuration again (`reload.watch`). It does this only
/// if the parser accepts the configuration, because only then can the cause of the refusal be
/// temporary: for example, servers did not reply in time.
const RETRY_AFTER: Duration = Duration::from_secs(30);

/// Reloads the configuration of a running proxy.
pub(super) struct Reloader {
    app: Arc<App>,
    log: LogControl,
    files: ConfigurationReader,
    watch: FileWatch<ReadConfiguration>,
}

/// Decides if the contents of the configuration files, which a check has just read, must be loaded
/// now.
struct FileWatch<T> {
    /// The contents that the last reload read. Before the first reload: the contents that Seawall
    /// read when it started.
    attempted: T,
    /// The contents that the last check for changes read.
    seen: T,
    /// When the contents in `attempted` must be loaded again, because they were refused and may be
    /// accepted later; `None` if they need no second attempt.
    retry_at: Option<Instant>,
    /// True if the last check for changes could not read the contents.
    has_failed: bool,
}

impl<T: Clone + PartialEq> FileWatch<T> {
    fn new(read: T) -> Self {
        Self {
            attempted: read.clone(),
            seen: read,
            retry_at: None,
            has_failed: false,
        }
    }

    /// Records the contents that a check has read. Returns true if they must be loaded now: two
    /// checks in a row read the same contents, and these are new or must be tried again. Another
    /// process may be writing a file at this moment, so the contents of a single check may be
    /// incomplete.
    fn record_read(&mut self, read: &T, now: Instant) -> bool {
        self.has_failed = false;
        let is_settled = *read == self.seen;
        self.seen.clone_from(read);
        let is_retry = self.retry_at.is_some_and(|at| at <= now);
        is_settled && (is_retry || *read != self.attempted)
    }

    /// Records that a check could not read the contents. Returns true if the previous check could
    /// read them, so that only the first of several failures in a row is reported.
    fn record_failure(&mut self) -> bool {
        !mem::replace(&mut self.has_failed, true)
    }
}

/// The configuration with the contents of all files that it names, including the files that the
/// connection string names.
#[derive(Clone, PartialEq)]
struct ReadConfiguration {
    loaded: Result<Loaded, Problems>,
    /// The TLS files for connections to servers. `None` if TLS is off, or if `loaded` is an error.
    server_tls: Result<Option<ServerTlsFiles>, String>,
}

/// Reads the files of the configuration in a thread of its own, so that a file system that hangs
/// delays only reloads.
struct ConfigurationReader {
    sources: Sources,
    thread: LimitedThread,
}

impl ConfigurationReader {
    /// Reads the configuration and the files that it names.
    ///
    /// # Errors
    /// A text that describes the problem.
    async fn read(&mut self, app: &Arc<App>) -> Result<ReadConfiguration, String> {
        let (app, sources) = (Arc::clone(app), self.sources.clone());
        let read = self.thread.run(move || {
            let loaded = load_with_values(&sources);
            let server_tls = loaded
                .as_ref()
                .map(|loaded| server_tls(&app, &loaded.settings));
            let server_tls = server_tls.unwrap_or(Ok(None));
            ReadConfiguration { loaded, server_tls }
        });
        let read = read.await;
        read.map_err(|error| format!("cannot read the configuration: {error}"))
    }

    /// The problems of a changed section `[deployment]`, for example of its connection string.
    async fn deployment_problems(&mut self, settings: &Settings) -> Vec<String> {
        let deployment = match check::parse_deployment(settings).await {
            Ok(deployment) => deployment,
            Err(problem) => return vec![problem],
        };
        let settings = settings.clone();
        let problems = self
            .thread
            .run(move || check::deployment_problems(&deployment, &settings));
        let problems = problems.await;
        problems.unwrap_or_else(|error| vec![format!("deployment.uri: {error}")])
    }
}

fn server_tls(app: &App, settings: &Settings) -> Result<Option<ServerTlsFiles>, String> {
    let read = app.read_server_tls(settings);
    read.map_err(|error| error.to_string())
}

impl Reloader {
    /// `loaded` is the configuration with which Seawall has started.
    pub(super) fn new(app: Arc<App>, sources: Sources, loaded: Loaded, log: LogControl) -> Self {
        let read = ReadConfiguration {
            loaded: Ok(loaded),
            server_tls: Ok(app.server_tls_in_use()),
        };
        Self {
            app,
            log,
            files: ConfigurationReader {
                sources,
                thread: LimitedThread::default(),
            },
            watch: FileWatch::new(read),
        }
    }

    /// Reloads on SIGHUP, when a caller of the API requests it, and when the configuration file or
    /// a file that it names has changed. Never ends.
    pub(super) async fn serve(mut self, mut hang_up: Signal) {
        let app = Arc::clone(&self.app);
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = hang_up.recv() => {
                    let running = action("signal SIGHUP").begin();
                    running.end(&outcome(&self.reload(false).await));
                }
                Some(request) = app.reload_requested() => {
                    let is_dry_run = request.is_dry_run;
                    if let Some(reply) = request.take() {
                        let result = self.reload(is_dry_run).await;
                        drop(reply.send(result));
                    }
                }
                _ = checks.tick() => {
                    if app.watches_files() {
                        self.check_files().await;
                    }
                }
            }
        }
    }

    /// Reads the configuration and applies it. If there are problems, nothing changes. A dry run
    /// applies and logs nothing.
    async fn reload(&mut self, is_dry_run: bool) -> api::Reload {
        match self.files.read(&self.app).await {
            Ok(read) if is_dry_run => self.evaluate(&read, true).await,
            Ok(read) => self.reload_from(read).await,
            Err(problem) => {
                let reload = refused(vec![problem]);
                if !is_dry_run {
                    record(&self.app, &reload);
                    // If the service manager requested the reload, it waits for these messages.
                    notify_reloading();
                    notify_reloaded(false);
                }
                reload
            }
        }
    }

    async fn reload_from(&mut self, read: ReadConfiguration) -> api::Reload {
        notify_reloading();
        let reload = self.evaluate(&read, false).await;
        let may_work_later = read.loaded.is_ok() && !reload.problems.is_empty();
        self.watch.retry_at = may_work_later.then(|| Instant::now() + RETRY_AFTER);
        self.watch.attempted = read;
        record(&self.app, &reload);
        notify_reloaded(reload.applied);
        reload
    }

    async fn evaluate(&mut self, read: &ReadConfiguration, is_dry_run: bool) -> api::Reload {
        let result = match &read.loaded {
            Ok(loaded) => {
                let applied = self.apply(loaded, read.server_tls.clone(), is_dry_run);
                Box::pin(applied).await
            }
            Err(problems) => Err(problems.iter().map(ToString::to_string).collect()),
        };
        result.unwrap_or_else(refused)
    }

    async fn apply(
        &mut self,
        loaded: &Loaded,
        server_tls: Result<Option<ServerTlsFiles>, String>,
        is_dry_run: bool,
    ) -> Result<api::Reload, Vec<String>> {
        let app = Arc::clone(&self.app);
        let running = app.settings();
        let mut found = Vec::new();
        // Check `[deployment]` only if it has changed, because the check may need DNS, and DNS may
        // be unavailable now.
        if loaded.settings.deployment != running.deployment {
            found = self.files.deployment_problems(&loaded.settings).await;
        }
        let reload = app
            .reload_read(loaded, server_tls, found, is_dry_run)
            .await?;
        if !is_dry_run {
            self.log.configure(&app.settings().log);
        }
        Ok(reload)
    }

    /// Reads the configuration and the files that it names, such as the certificate. Reloads if
    /// `FileWatch::record_read` returns true: two checks in a row have read the same contents, and
    /// these have changed since the last reload or must be tried again.
    async fn check_files(&mut self) {
        // If an earlier read still hangs, skip this check. The call that started the read has
        // already reported the problem.
        if self.files.thread.is_hanging() {
            return;
        }
        match self.files.read(&self.app).await {
            Ok(read) if self.watch.record_read(&read, Instant::now()) => {
                let running = action("reload.watch").begin();
                running.end(&outcome(&self.reload_from(read).await));
            }
            Ok(_) => {}
            Err(problem) => {
                if self.watch.record_failure() {
                    record(&self.app, &refused(vec![problem]));
                }
            }
        }
    }
}

/// A reload that has changed nothing because of `problems`.
fn refused(problems: Vec<String>) -> api::Reload {
    api::Reload {
        problems,
        ..api::Reload::default()
    }
}

/// The line of the audit log for a reload that no connection requested.
fn action(caller: &str) -> Action {
    Action::without_peer("reload", caller)
}

/// The outcome of a reload in the audit log.
fn outcome(reload: &api::Reload) -> String {
    match reload.problems.is_empty() {
        true => "done".to_owned(),
        false => {
            let problems = reload.problems.join("; ");
            format!("could not reload the configuration: {problems}")
        }
    }
}

/// Logs and counts a reload.
fn record(app: &App, reload: &api::Reload) {
    if !reload.problems.is_empty() {
        app.count_reload(false);
        let problems = reload.problems.join("; ");
        tracing::warn!(problems, "could not reload the configuration");
        return;
    }
    app.count_reload(true);
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
    use crate::observe::MemoryLog;

    /// Runs one check for each element of `checks`: the check reads this element as the content of
    /// the files. Returns the contents that must be reloaded, and treats each of them as reloaded
    /// before the next check.
    fn due(checks: &[&'static str]) -> Vec<&'static str> {
        let mut watch = FileWatch::new("start");
        let mut due = Vec::new();
        for &read in checks {
            if watch.record_read(&read, Instant::now()) {
                watch.attempted = read;
                due.push(read);
            }
        }
        due
    }

    #[test]
    fn only_the_final_content_of_a_file_written_in_pieces_is_reloaded() {
        let pieces = ["", "half", "half, wrong", "whole", "whole", "whole"];
        assert_eq!(due(&pieces), ["whole"]);
    }

    #[test]
    fn file_contents_that_the_last_reload_read_are_not_reloaded_again() {
        // The content `a` may be invalid. It is attempted only once, so its problems are reported
        // only once.
        let checks = ["start", "a", "a", "a", "b", "start", "start", "start"];
        assert_eq!(due(&checks), ["a", "start"]);
    }

    #[test]
    fn file_contents_that_a_reload_refused_are_tried_again_when_retry_at_is_reached() {
        let (mut watch, now) = (FileWatch::new("start"), Instant::now());
        watch.attempted = "a";
        watch.retry_at = Some(now + RETRY_AFTER);
        let late = now + RETRY_AFTER;
        let due = [
            ("a", now),
            ("a", now),
            ("a", late),
            ("b", late),
            ("b", late),
        ];
        let due = due.map(|(read, at)| watch.record_read(&read, at));
        assert_eq!(due, [false, false, true, false, true]);
    }

    #[test]
    fn consecutive_failed_checks_are_reported_once() {
        let mut watch = FileWatch::new("start");
        assert!(watch.record_failure());
        assert!(!watch.record_failure());
        watch.record_read(&"start", Instant::now());
        assert!(watch.record_failure());
    }

    /// A drain ends a reload that runs.
    #[test]
    fn a_reload_by_a_signal_that_does_not_end_is_in_the_audit_log() {
        let log = MemoryLog::default();
        let collecting = log.collect();
        drop(action("signal SIGHUP").begin());
        drop(collecting);
        let lines = log.lines_with("admin action");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("signal SIGHUP"), "{lines:?}");
        assert!(lines[0].contains("Seawall stopped"), "{lines:?}");
    }

    #[test]
    fn contents_that_change_back_before_the_next_check_are_not_reloaded() {
        assert!(due(&["start", "a", "start", "start", "b", "start"]).is_empty());
    }
}
