//! Applies a new configuration to the running parts.
//!
//! Before its first change, a reload builds everything whose construction can fail. If a
//! construction fails, nothing changes. The caller reads and checks the configuration.

#[cfg(test)]
mod live_keys;

use std::{sync::Arc, time::Duration};

use seawall_api as api;
use seawall_config as config;
use tokio::task::block_in_place;

use super::{
    App, StartError, captures, convert, insight,
    limited_thread::{LimitedThread, NoResult},
    peers::{self, Peers, PeersError},
    reload_problems::ReloadProblems,
    server_tls::NewAccess,
    telemetry::{ExportDestination, TelemetryError},
    tls::{NewTls, tls_problems},
};
use crate::{
    admin::Switches,
    client::{self, CredentialSettings},
    limits::LimitNumbers,
    observe::{LeftOutLines, SlowLog},
    pins::PinLimits,
    pulse,
    topology::{self, DriverTls},
};
use config::{Change, Changed, EffectiveValue, Loaded};
use seawall_transport::connection::ServerTls;

/// Values that a reload has built from the new configuration, for example TLS configurations.
/// Building such a value can fail. The values are not yet in use.
struct Prepared {
    /// One entry for each listener: its new TLS configuration, or `None` if TLS does not change.
    tls: Vec<Option<NewTls>>,
    admin_tls: Option<NewTls>,
    outgoing: HttpClients,
    credentials: CredentialSettings,
}

/// The new HTTP clients for other Seawall instances and for the collector of metrics.
#[derive(Default)]
struct HttpClients {
    /// The new peers; `None` if they do not change.
    peers: Option<Peers>,
    /// The new destination of metrics. `None` if the destination stays as it is, and `Some(None)`
    /// if the export is switched off.
    telemetry: Option<Option<Arc<ExportDestination>>>,
}

/// The new HTTP clients, or the reasons why they cannot be set up.
type BuiltOutgoing = (
    Result<Option<Peers>, PeersError>,
    Result<Option<Option<Arc<ExportDestination>>>, TelemetryError>,
);

/// The threads on which a reload opens and reads files, because a file system may hang. The slow
/// log and the authorities of the operating system have separate threads: a slow log that hangs
/// must not delay a reload that does not change the slow log.
#[derive(Debug, Default)]
pub(super) struct ReloadThreads {
    slow_log: LimitedThread,
    /// Builds the HTTP clients, and reads the authorities of the operating system for them.
    outgoing: LimitedThread,
}

/// A reload that is ready to be carried out. Only opening a new slow log can still fail.
struct ReloadPlan {
    /// The settings after the reload.
    settings: config::Settings,
    /// The values of all configuration keys after the reload, as text.
    values: Vec<EffectiveValue>,
    described: api::Configuration,
    changes: Vec<api::ConfigurationChange>,
    prepared: Prepared,
}

/// The values that each reload hands to running parts. Each part ignores values that have not
/// changed.
#[derive(Debug)]
struct LiveSettings {
    clients: client::ClientSettings,
    limits: LimitNumbers,
    message_memory_bytes: usize,
    pins: PinLimits,
    topology: topology::TopologySettings,
    connect_timeout: Duration,
    pulse: pulse::PulseSettings,
}

impl LiveSettings {
    fn of(settings: &config::Settings) -> Self {
        Self {
            clients: convert::client_settings(settings),
            limits: convert::limit_numbers(settings),
            message_memory_bytes: settings.limits.message_memory_bytes,
            pins: convert::pin_limits(&settings.limits),
            topology: convert::topology_settings(settings),
            connect_timeout: settings.deployment.connect_timeout,
            pulse: insight::pulse_settings(&settings.pulse),
        }
    }
}

impl App {
    /// Applies the live values of a new configuration: the values that need no restart. `access`
    /// contains the changed TLS files and the changed password for connections to servers; both
    /// have already been tried at the available servers. `found` contains the problems so far.
    pub(super) async fn reload_with(
        &self,
        new: &Loaded,
        access: NewAccess,
        mut found: ReloadProblems,
        threads: &mut ReloadThreads,
        is_dry_run: bool,
    ) -> Result<api::Reload, Vec<String>> {
        let has_other_log = new.settings.slow_log != self.running.lock().settings.slow_log;
        if has_other_log {
            let settings = new.settings.clone();
            let check = move || insight::check_slow_log(&settings);
            found.unless_failed(slow_log_result(threads.slow_log.run(check).await));
        }
        let outgoing = self.outgoing(&new.settings, &mut threads.outgoing, &mut found);
        let outgoing = outgoing.await;
        let plan = block_in_place(|| self.plan(new, &access, outgoing, found))?;
        let reload = api::Reload {
            applied: !is_dry_run,
            changes: plan.changes.clone(),
            problems: Vec::new(),
        };
        if !is_dry_run {
            // Opening a new slow log creates its file, so the log is opened only if nothing else
            // has failed.
            let mut slow_log = None;
            if has_other_log {
                let settings = new.settings.clone();
                let open = move || insight::slow_log(&settings);
                let opened = slow_log_result(threads.slow_log.run(open).await);
                slow_log = Some(opened.map_err(|problem| vec![problem])?);
            }
            block_in_place(|| self.carry_out(plan, access, slow_log));
        }
        Ok(reload)
    }

    /// Builds the new HTTP clients. Adds the problems to `found`.
    async fn outgoing(
        &self,
        new: &config::Settings,
        thread: &mut LimitedThread,
        found: &mut ReloadProblems,
    ) -> HttpClients {
        let Some(build) = self.outgoing_builder(new) else {
            return HttpClients::default();
        };
        match thread.run(build).await {
            Ok((peers, telemetry)) => HttpClients {
                peers: found.unless_failed(peers).flatten(),
                telemetry: found.unless_failed(telemetry).flatten(),
            },
            Err(error) => {
                found.add(format!(
                    "cannot read the authorities of the operating system: {error}"
                ));
                HttpClients::default()
            }
        }
    }

    /// Returns a function that builds the new HTTP clients; `None` if their settings have not
    /// changed. The function may block while it reads the authorities of the operating system.
    fn outgoing_builder(
        &self,
        new: &config::Settings,
    ) -> Option<impl FnOnce() -> BuiltOutgoing + Send + use<>> {
        let running = self.settings();
        let settings = running.with_live_values_of(new);
        let has_other_peers = peers::settings(&settings.admin) != peers::settings(&running.admin);
        let has_other_telemetry = settings.telemetry != running.telemetry;
        if !has_other_peers && !has_other_telemetry {
            return None;
        }
        let admin = has_other_peers.then_some(settings.admin);
        let telemetry = has_other_telemetry.then(|| self.telemetry.builder(settings.telemetry));
        Some(move || {
            let peers = admin.map(|admin| peers::peers(&admin));
            let telemetry = telemetry.map(|build| build());
            (peers.transpose(), telemetry.transpose())
        })
    }

    /// Prepares everything that a reload changes, except the slow log. Changes nothing.
    fn plan(
        &self,
        new: &Loaded,
        access: &NewAccess,
        outgoing: HttpClients,
        mut found: ReloadProblems,
    ) -> Result<ReloadPlan, Vec<String>> {
        let running = self.running.lock();
        let changed = new.settings.changes_since(&running.settings);
        let settings = running.settings.with_live_values_of(&new.settings);
        for problem in settings.problems().iter() {
            found.add(format!(
                "{problem} (conflicts with running values that only a restart can change)"
            ));
        }
        if let Some(problem) = convert::descriptor_problem(&settings) {
            found.add(problem);
        }
        self.check_next_start(&new.settings, &running.settings, &mut found);
        let prepared = self.prepare(&settings, &running.settings, outgoing, found)?;
        let mut changes = changes(&changed, &running.values, &new.values);
        if access.tls.is_some() && !changes_access(&changed) {
            changes.push(changed_files(&running.values));
        }
        let values = values_in_effect(&changed, &running.values, &new.values);
        Ok(ReloadPlan {
            described: described(&values, &pending(&changed, &values, &new.values)),
            settings,
            values,
            changes,
            prepared,
        })
    }

    /// Checks the values that the next start would use. Some of them need a restart, so the reload
    /// does not use them: for example TLS of an added listener. Checks `auth.credentials` only if
    /// the connection string has not changed, because `has_service_account` describes the running
    /// string. If the string has changed, `seawall serve` has already checked `auth.credentials`.
    fn check_next_start(
        &self,
        new: &config::Settings,
        running: &config::Settings,
        found: &mut ReloadProblems,
    ) {
        for problem in tls_problems(new) {
            found.add(problem);
        }
        if let Some(problem) = convert::descriptor_problem(new) {
            found.add(problem);
        }
        if new.deployment.uri == running.deployment.uri {
            let has_account = self.has_service_account;
            let credentials = convert::credential_settings(&new.auth, &new.limits, has_account);
            found.unless_failed(credentials);
        }
    }

    /// Carries out a plan. `slow_log` is the new slow log: `None` if it stays as it is, and
    /// `Some(None)` if it is switched off.
    fn carry_out(&self, plan: ReloadPlan, access: NewAccess, slow_log: Option<Option<SlowLog>>) {
        let ReloadPlan {
            settings,
            values,
            mut described,
            changes,
            prepared,
        } = plan;
        let mut running = self.running.lock();
        self.apply(&settings, &running.settings, prepared, access);
        if let Some(log) = slow_log {
            self.shared.recorder.set_slow_log(log);
        }
        self.add_values_in_effect(&settings, &mut described);
        // `set_info` fails only if the exporter refuses its histogram buckets, but the exporter
        // accepted the same buckets at the start.
        drop(self.export_info(&described.hash));
        self.configuration.send_replace(Arc::new(described));
        let applied = changes.iter().filter(|change| !change.needs_restart);
        let keys = applied.map(|change| change.key.as_str());
        insight::annotate_reload(&self.feed.insight, keys);
        **running = Loaded { settings, values };
    }

    fn prepare(
        &self,
        settings: &config::Settings,
        running: &config::Settings,
        outgoing: HttpClients,
        mut found: ReloadProblems,
    ) -> Result<Prepared, Vec<String>> {
        let tls = self.prepare_tls(settings, running, &mut found);
        let (new, earlier) = (&settings.admin.tls, &running.admin.tls);
        let admin_tls = self.admin_tls.prepare(new.as_ref(), earlier.as_ref());
        let admin_tls = found.unless_failed(admin_tls).flatten();
        let credentials = found.unless_failed(convert::credential_settings(
            &settings.auth,
            &settings.limits,
            self.has_service_account,
        ));
        match credentials {
            Some(credentials) if found.is_empty() => Ok(Prepared {
                tls,
                admin_tls,
                outgoing,
                credentials,
            }),
            _ => Err(found.into_list()),
        }
    }

    /// Returns one entry for each listener: its new TLS configuration, or `None` if TLS does not
    /// change. A reload cannot change the number of listeners, so the new and the running listeners
    /// are compared by position.
    fn prepare_tls(
        &self,
        settings: &config::Settings,
        running: &config::Settings,
        found: &mut ReloadProblems,
    ) -> Vec<Option<NewTls>> {
        let (settings, running) = (settings.listeners(), running.listeners());
        let listeners = self.listeners.iter().zip(&*settings).zip(&*running);
        let prepared = listeners.map(|((listener, new), running)| {
            let prepared = listener.tls.prepare(new.tls.as_ref(), running.tls.as_ref());
            found.unless_failed(prepared).flatten()
        });
        prepared.collect()
    }

    /// Hands the new settings, and the values that were built from them, to the running parts.
    fn apply(
        &self,
        settings: &config::Settings,
        running: &config::Settings,
        prepared: Prepared,
        access: NewAccess,
    ) {
        let shared = &self.shared;
        for (listener, new) in self.listeners.iter().zip(prepared.tls) {
            new.into_iter().for_each(|new| listener.tls.replace(new));
        }
        if let Some(new) = prepared.admin_tls {
            self.admin_tls.replace(new);
        }
        for (listener, settings) in self.listeners.iter().zip(&*settings.listeners()) {
            listener.configure(settings);
        }
        if settings.fault != running.fault {
            let fault = settings.fault.as_ref().map(convert::fault);
            shared.routing.fault.store(fault.map(Arc::new));
        }
        shared.logins.credentials.configure(prepared.credentials);
        if let Some(destination) = prepared.outgoing.telemetry {
            self.telemetry.replace(destination);
        }
        if let Some(password) = access.password {
            self.use_password(password);
        }
        let server_tls = access.tls.map(|new| self.use_server_tls(new));
        self.hand_over(LiveSettings::of(settings), server_tls);
        let shapes = &settings.shapes;
        if *shapes != running.shapes {
            shared.recorder.set_shapes(
                shapes.enabled,
                shapes.max_shapes.get(),
                shapes.max_namespaces.get(),
            );
        }
        if settings.capture != running.capture {
            shared.captures.configure(captures::settings(settings));
        }
        if let Some(state) = &self.state {
            let switches = Switches {
                profiles: settings.admin.profile,
                dashboard: settings.admin.dashboard,
                injects_faults: settings.fault.is_some(),
            };
            state.configure(switches, convert::guard(&settings.admin));
        }
        if let Some(peers) = prepared.outgoing.peers {
            self.use_peers(peers);
        }
    }

    /// Passes the values to the running parts. These parts also accept unchanged values.
    fn hand_over(&self, values: LiveSettings, server_tls: Option<(Arc<ServerTls>, DriverTls)>) {
        let LiveSettings {
            clients,
            limits,
            message_memory_bytes,
            pins,
            topology,
            connect_timeout,
            pulse,
        } = values;
        let shared = &self.shared;
        shared.current_settings.store(Arc::new(clients));
        shared.limits.set(limits);
        shared.memory.set_bytes(message_memory_bytes);
        shared.routing.pins.set_limits(pins);
        shared.routing.relay_pins.set_limits(pins);
        let deployment = &shared.routing.topology;
        deployment.configure(topology, connect_timeout, server_tls);
        if let Ok(running) = &self.feed.pulse {
            running.configure(pulse);
        }
    }

    /// Updates the API's description of the running configuration. Called after the start and by
    /// [`Self::set_log_filter`].
    pub(super) fn describe_configuration(&self) {
        let running = self.running.lock();
        let mut described = described(&running.values, &[]);
        self.add_values_in_effect(&running.settings, &mut described);
        self.configuration.send_replace(Arc::new(described));
    }

    /// Adds to the description the values in effect that differ from the configured values.
    fn add_values_in_effect(
        &self,
        settings: &config::Settings,
        described: &mut api::Configuration,
    ) {
        let clients = convert::clients_in_effect(settings);
        let is_reduced = clients < settings.listen.max_client_connections.get();
        let sockets = self.uses_inherited_sockets;
        for (key, other) in [
            (
                "listen.address",
                sockets.then(|| self.client_addresses.join(", ")),
            ),
            (
                "listen.max_client_connections",
                is_reduced.then(|| clients.to_string()),
            ),
            ("log.level", self.log_filter.get().cloned()),
        ] {
            let mut values = described.values.iter_mut();
            if let Some(value) = values.find(|value| value.key == key) {
                value.in_effect = other;
            }
        }
    }

    /// Records that this log filter replaces `log.level`.
    pub(crate) fn set_log_filter(&self, filter: String) {
        if self.log_filter.set(filter).is_ok() {
            self.describe_configuration();
        }
    }

    /// Exports the number of log lines that were not written. `left_out` returns this number.
    pub(crate) fn count_log_left_out(&self, left_out: LeftOutLines) {
        self.feed.exporter.count_log_left_out(left_out);
    }

    /// Waits until a caller of the API requests a reload, and returns the request. `None` after
    /// `end_reloads`. Cancel safe.
    pub(crate) async fn reload_requested(&self) -> Option<crate::admin::ReloadRequest> {
        self.reload_requests.lock().await.recv().await
    }

    /// True if Seawall reloads the configuration when the configuration file, or a file that it
    /// names, changes.
    pub(crate) fn watches_files(&self) -> bool {
        self.running.lock().settings.reload.watch
    }

    /// Refuses all requests for a reload: the waiting ones and all later ones.
    pub(super) async fn end_reloads(&self) {
        let mut requests = self.reload_requests.lock().await;
        requests.close();
        while requests.try_recv().is_ok() {}
    }

    /// Counts a reload in the metrics.
    pub(crate) fn count_reload(&self, is_ok: bool) {
        self.shared.recorder.count_reload(is_ok);
    }

    /// The settings in effect.
    pub(crate) fn settings(&self) -> config::Settings {
        self.running.lock().settings.clone()
    }
}

/// The result of the attempt to open the slow log. The error is the problem as text.
fn slow_log_result<T>(opened: Result<Result<T, StartError>, NoResult>) -> Result<T, String> {
    let opened = opened.map_err(|error| format!("slow_log.file: {error}"))?;
    opened.map_err(|error| error.to_string())
}

/// Lists the changed keys and sections, with the old and the new value of each as text. If only a
/// secret or the content of a file has changed, the old and the new value in the list are equal.
fn changes(
    changed: &[Changed],
    before: &[EffectiveValue],
    after: &[EffectiveValue],
) -> Vec<api::ConfigurationChange> {
    let mut changes = Vec::new();
    for change in changed {
        let count = changes.len();
        let is_included = |value: &&EffectiveValue| change.includes(&value.path);
        let find = |values: &[EffectiveValue], path: &str| {
            let value = values.iter().find(|value| value.path == path);
            value.map_or_else(String::new, |value| value.value.clone())
        };
        let removed = before
            .iter()
            .filter(|value| !after.iter().any(|other| other.path == value.path));
        for value in after.iter().chain(removed).filter(is_included) {
            let (from, to) = (find(before, &value.path), find(after, &value.path));
            if from != to {
                changes.push(described_change(&value.path, from, to, change));
            }
        }
        if changes.len() == count {
            let shown = find(after, &change.path);
            changes.push(described_change(&change.path, shown.clone(), shown, change));
        }
    }
    changes
}

/// The configuration section for TLS to servers.
const SERVER_TLS: &str = "deployment.tls";

/// True if `changed` contains a change of the connection to the servers that takes effect now.
fn changes_access(changed: &[Changed]) -> bool {
    let mut live = changed.iter().filter(|of| of.change == Change::Live);
    live.any(|of| of.path == SERVER_TLS || of.path == "deployment.uri")
}

/// The change that a reload reports if TLS files of the running connection string have new
/// contents. Not reported if another change of the connection to the servers takes effect in the
/// same reload.
fn changed_files(values: &[EffectiveValue]) -> api::ConfigurationChange {
    let is_uri = |value: &&EffectiveValue| value.path.starts_with("deployment.uri");
    let uri = values.iter().find(is_uri);
    let (key, shown) = uri.map_or(("deployment.uri", ""), |uri| (&uri.path, &uri.value));
    api::ConfigurationChange {
        from: shown.to_owned(),
        key: key.to_owned(),
        needs_restart: false,
        to: shown.to_owned(),
    }
}

fn described_change(
    key: &str,
    from: String,
    to: String,
    change: &Changed,
) -> api::ConfigurationChange {
    api::ConfigurationChange {
        from,
        key: key.to_owned(),
        needs_restart: change.change == Change::Restart,
        to,
    }
}

/// The values in effect after a reload. Changed keys that need a restart keep their old values.
fn values_in_effect(
    changed: &[Changed],
    before: &[EffectiveValue],
    after: &[EffectiveValue],
) -> Vec<EffectiveValue> {
    let stays = |value: &&EffectiveValue| needs_restart(changed, &value.path);
    let kept = before.iter().filter(stays);
    let new = after.iter().filter(|value| !stays(value));
    let mut values: Vec<_> = new.chain(kept).cloned().collect();
    let position = |path: &str| {
        let of_after = after.iter().position(|value| value.path == path);
        of_after.unwrap_or(usize::MAX)
    };
    values.sort_by_key(|value| position(&value.path));
    values
}

/// The new values that take effect only after a restart. A key of `in_effect` that does not exist
/// after the restart is included with an empty value.
fn pending(
    changed: &[Changed],
    in_effect: &[EffectiveValue],
    after: &[EffectiveValue],
) -> Vec<EffectiveValue> {
    let waits = |value: &&EffectiveValue| needs_restart(changed, &value.path);
    let is_absent = |value: &&EffectiveValue| !after.iter().any(|of| of.path == value.path);
    let absent = in_effect.iter().filter(waits).filter(is_absent);
    let absent = absent.map(|value| EffectiveValue {
        value: String::new(),
        ..value.clone()
    });
    after.iter().filter(waits).cloned().chain(absent).collect()
}

fn needs_restart(changed: &[Changed], path: &str) -> bool {
    let mut restarts = changed.iter().filter(|c| c.change == Change::Restart);
    restarts.any(|change| change.includes(path))
}

/// The configuration that the API shows: the values in effect, and the `pending` values, which take
/// effect at the next start.
pub(super) fn described(
    values: &[EffectiveValue],
    pending: &[EffectiveValue],
) -> api::Configuration {
    let described = values.iter().map(|value| {
        let next = pending.iter().find(|next| next.path == value.path);
        let next = next.filter(|next| next.value != value.value);
        api::ConfigurationValue {
            in_effect: None,
            instance: None,
            key: value.path.clone(),
            origin: value.origin.as_str().to_owned(),
            pending: next.map(|next| next.value.clone()),
            value: value.value.clone(),
        }
    });
    let is_new = |next: &&EffectiveValue| !values.iter().any(|value| value.path == next.path);
    let new = pending.iter().filter(is_new);
    let new = new.map(|next| api::ConfigurationValue {
        in_effect: None,
        instance: None,
        key: next.path.clone(),
        origin: next.origin.as_str().to_owned(),
        pending: Some(next.value.clone()),
        value: String::new(),
    });
    api::Configuration {
        hash: config::configuration_hash(values),
        values: described.chain(new).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Loaded {
        Loaded::from_toml(&format!("deployment.uri = \"mongodb://a:b@c/\"\n{text}")).unwrap()
    }

    fn reload(before: &str, after: &str) -> (Vec<api::ConfigurationChange>, api::Configuration) {
        let (before, after) = (load(before), load(after));
        let changed = after.settings.changes_since(&before.settings);
        let values = values_in_effect(&changed, &before.values, &after.values);
        let pending = pending(&changed, &values, &after.values);
        (
            changes(&changed, &before.values, &after.values),
            described(&values, &pending),
        )
    }

    #[test]
    fn a_new_value_that_needs_a_restart_is_pending_and_the_old_value_stays_in_effect() {
        let (changes, configuration) = reload(
            "pool.max_pool_size = 5\nlisten.backlog = 7\n",
            "pool.max_pool_size = 6\nlisten.backlog = 8\n",
        );
        let change = |key: &str, from: &str, to: &str, needs_restart| api::ConfigurationChange {
            from: from.to_owned(),
            key: key.to_owned(),
            needs_restart,
            to: to.to_owned(),
        };
        let expected = [
            change("listen.backlog", "7", "8", true),
            change("pool.max_pool_size", "5", "6", false),
        ];
        assert_eq!(changes, expected);
        let value = |key: &str| {
            let mut values = configuration.values.iter();
            let value = values.find(|value| value.key == key).unwrap();
            (&*value.value, value.pending.as_deref())
        };
        assert_eq!(value("listen.backlog"), ("7", Some("8")));
        assert_eq!(value("pool.max_pool_size"), ("6", None));
    }

    #[test]
    fn removed_keys_and_listeners_are_listed_as_pending_without_a_value() {
        let listener = |port: u16| format!("[[listeners]]\naddress = \"127.0.0.1:{port}\"\n");
        let before = listener(1) + "name = \"public\"\n" + &listener(2);
        let (_, configuration) = reload(&before, &listener(1));
        let pending = |key: &str| {
            let mut values = configuration.values.iter();
            let value = values.find(|value| value.key == key).unwrap();
            value.pending.as_deref()
        };
        assert_eq!(pending("listeners[0].address"), None);
        assert_eq!(pending("listeners[0].name"), Some(""));
        assert_eq!(pending("listeners[1].address"), Some(""));
        assert_eq!(pending("listeners[1].backlog"), Some(""));
    }

    #[test]
    fn a_changed_secret_is_listed_without_its_value() {
        let user =
            |password: &str| format!("[[auth.users]]\nname = \"app\"\npassword = \"{password}\"\n");
        let (changes, _) = reload(&user("one"), &user("two"));
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].key, "auth.users");
        assert_eq!(changes[0].from, changes[0].to);
    }

    /// The running connection string names TLS files. If these files have new contents, a reload
    /// reports a separate change, unless a change of `deployment.uri` or `[deployment.tls]` takes
    /// effect in the same reload. A change that waits for a restart does not prevent the report.
    #[test]
    fn changed_tls_files_are_part_of_another_change_only_if_that_change_takes_effect_now() {
        let load = |uri: &str, toml: &str| {
            let toml = format!("deployment.uri = \"mongodb://{uri}/?tls=true\"\n{toml}");
            Loaded::from_toml(&toml).unwrap().settings
        };
        let running = load("a:b@c", "");
        let tls = "deployment.tls.allow_invalid_hostnames = true\n";
        for (newer, is_changed) in [
            (load("a:b@c", ""), false),
            (load("a:b@c", tls), true),
            (load("a:changed@c", ""), true),
            (load("a:b@other", ""), false),
            (load("a:b@other", tls), false),
        ] {
            let changed = newer.changes_since(&running);
            assert_eq!(changes_access(&changed), is_changed, "{changed:?}");
        }
    }

    #[test]
    fn a_default_value_that_is_written_out_does_not_change_the_configuration_hash() {
        let of = |text: &str| config::configuration_hash(&load(text).values);
        assert_eq!(of(""), of("pool.max_pool_size = 100\n"));
        assert_ne!(of(""), of("pool.max_pool_size = 101\n"));
    }
}
