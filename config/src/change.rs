//! Compares new settings with the settings in effect, for a reload: finds the keys that differ, and
//! adopts the values that need no restart.

use std::path::Path;

use crate::connection_string::{user_password, without_passwords};
use crate::file::ReadFile;
use crate::keys::KEYS;
use crate::listeners::{LISTENERS, Listener, Tls};
use crate::problem::Problems;
use crate::relations;
use crate::reloadable::Reloadable;
use crate::schema::{Change, LIST};
use crate::settings::{Deployment, ServerTls, Settings};
use crate::words::Credentials;

/// A key or section that has a new value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The path of a key, a list or a section. Some lists and sections are compared as a whole, so
    /// their keys are not listed one by one: for example `auth.users` and `listeners[1].tls`.
    pub path: String,
    /// The time at which the change takes effect.
    pub change: Change,
}

impl Changed {
    /// True if the key or list element at `path` is part of this change.
    pub fn includes(&self, path: &str) -> bool {
        let rest = path.strip_prefix(&self.path);
        let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        // The two keys `uri` and `uri_file` set the same value, the connection string.
        is_below || (self.path == URI && path == "deployment.uri_file")
    }
}

impl Deployment {
    /// True if this connection string and the connection string of `other` differ only in
    /// passwords: the password of the service account, and the password that decrypts the key of
    /// Seawall's certificate.
    fn changes_only_passwords(&self, other: &Self) -> bool {
        let (own, other) = (self.uri.expose(), other.uri.expose());
        own != other && without_passwords(own) == without_passwords(other)
    }

    /// True if the password of the service account differs from the password in `other`, and no
    /// other part of the connection string differs. An exception is the password that decrypts the
    /// key of Seawall's certificate: it may also differ.
    pub fn changes_account_password(&self, other: &Self) -> bool {
        let [own_password, other_password] =
            [self, other].map(|deployment| user_password(deployment.uri.expose()));
        self.changes_only_passwords(other) && own_password != other_password
    }

    /// True if a change of `[deployment.tls]` takes effect only at the next start, because the
    /// connection string changes too. Until then, Seawall uses the earlier servers, for which the
    /// new section may be wrong. New contents of the same files take effect at once.
    fn delays_tls(&self, running: &Self) -> bool {
        self.uri != running.uri
            && !self.changes_only_passwords(running)
            && self.tls.as_ref().map(tls_keys) != running.tls.as_ref().map(tls_keys)
    }
}

/// The values of `[deployment.tls]`, with the paths of files instead of their contents.
fn tls_keys(tls: &ServerTls) -> (Vec<&Path>, Vec<&Path>, Vec<&Path>, bool) {
    let ServerTls {
        ca_file,
        certificate_key_file,
        crl_files,
        allow_invalid_hostnames,
    } = tls;
    (
        ca_file.iter().map(ReadFile::path).collect(),
        certificate_key_file.iter().map(ReadFile::path).collect(),
        crl_files.iter().flatten().map(ReadFile::path).collect(),
        *allow_invalid_hostnames,
    )
}

/// Replaces the contents of the files in `kept` by the contents that `newer` has for the same
/// paths.
fn renew_contents(kept: &mut ServerTls, newer: &ServerTls) {
    let ServerTls {
        ca_file,
        certificate_key_file,
        crl_files,
        allow_invalid_hostnames: _,
    } = newer;
    let read = ca_file.iter().chain(certificate_key_file);
    let read: Vec<&ReadFile> = read.chain(crl_files.iter().flatten()).collect();
    let ServerTls {
        ca_file,
        certificate_key_file,
        crl_files,
        allow_invalid_hostnames: _,
    } = kept;
    let files = ca_file.iter_mut().chain(certificate_key_file);
    for file in files.chain(crl_files.iter_mut().flatten()) {
        renew(file, &read);
    }
}

/// The file in `read` with the path of `file`; `None` if `read` has no such file.
fn same_file<'a>(file: &ReadFile, read: &[&'a ReadFile]) -> Option<&'a ReadFile> {
    let mut read = read.iter().copied();
    read.find(|other| other.path() == file.path())
}

/// Replaces the content of `file` by the content that `read` has for the same path.
fn renew(file: &mut ReadFile, read: &[&ReadFile]) {
    if let Some(same) = same_file(file, read) {
        file.clone_from(same);
    }
}

/// The files of TLS for clients, or for callers of the admin address.
fn client_files(tls: &Option<Tls>) -> impl Iterator<Item = &ReadFile> {
    tls.iter().flat_map(|tls| {
        let own = tls.certificate_files.iter().chain(&tls.key_files);
        let of_clients = tls.client_ca_files.iter().chain(&tls.client_crl_files);
        own.chain(of_clients.flatten())
    })
}

/// Replaces the contents of the files in `kept` by the contents that `read` has for the same paths.
/// A certificate and its key are replaced only together, because they must match.
fn renew_client_files(kept: &mut Option<Tls>, read: &[&ReadFile]) {
    let Some(Tls {
        certificate_files,
        key_files,
        mode: _,
        client_certificate: _,
        client_ca_files,
        client_crl_files,
        close_revoked: _,
    }) = kept
    else {
        return;
    };
    for (certificate, key) in certificate_files.iter_mut().zip(key_files) {
        let same = (same_file(certificate, read), same_file(key, read));
        if let (Some(same_certificate), Some(same_key)) = same {
            certificate.clone_from(same_certificate);
            key.clone_from(same_key);
        }
    }
    for file in client_ca_files.iter_mut().chain(client_crl_files).flatten() {
        renew(file, read);
    }
}

/// True if the section `newer` differs from the section `running` at most in the contents of its
/// files.
fn renews_only_contents(newer: &Option<Tls>, running: &Option<Tls>) -> bool {
    let mut renewed = running.clone();
    let read: Vec<&ReadFile> = client_files(newer).collect();
    renew_client_files(&mut renewed, &read);
    renewed == *newer
}

impl Settings {
    /// The keys and sections whose values are not the same as in `running`. Secrets are compared
    /// too. Files that were read with the settings, such as certificates, are compared with their
    /// contents.
    pub fn changes_since(&self, running: &Self) -> Vec<Changed> {
        let mut paths = Vec::new();
        let Self {
            listen,
            listeners,
            deployment,
            auth,
            pool,
            limits,
            shapes,
            history,
            pulse,
            slow_log,
            capture,
            fault,
            shutdown,
            runtime,
            admin,
            telemetry,
            log,
            reload,
        } = self;
        // Listeners are bound at the start. So a change from `[listen]` to `[[listeners]]`, or
        // back, needs a restart, and the running listeners keep all their settings until then.
        match self.has_form_of(running) {
            true => listen.changed(&running.listen, &mut paths),
            false => paths.extend(["listen", LISTENERS]),
        }
        deployment.changed(&running.deployment, &mut paths);
        auth.changed(&running.auth, &mut paths);
        pool.changed(&running.pool, &mut paths);
        limits.changed(&running.limits, &mut paths);
        shapes.changed(&running.shapes, &mut paths);
        history.changed(&running.history, &mut paths);
        pulse.changed(&running.pulse, &mut paths);
        optional("slow_log", slow_log, &running.slow_log, &mut paths);
        capture.changed(&running.capture, &mut paths);
        optional("fault", fault, &running.fault, &mut paths);
        shutdown.changed(&running.shutdown, &mut paths);
        runtime.changed(&running.runtime, &mut paths);
        admin.changed(&running.admin, &mut paths);
        telemetry.changed(&running.telemetry, &mut paths);
        log.changed(&running.log, &mut paths);
        reload.changed(&running.reload, &mut paths);
        let changed = paths.into_iter().map(|path| Changed {
            path: path.to_owned(),
            change: match path {
                USERS if self.changes_credential_source(running) => Change::Restart,
                URI if self.deployment.changes_only_passwords(&running.deployment) => Change::Live,
                SERVER_TLS if self.deployment.delays_tls(&running.deployment) => Change::Restart,
                LISTEN_TLS if self.delays_listen_tls(running) => Change::Restart,
                ADMIN_TLS if self.delays_admin_tls(running) => Change::Restart,
                _ => of_path(path),
            },
        });
        let of_listeners = match self.has_form_of(running) {
            true => changed_listeners(listeners, &running.listeners),
            false => Vec::new(),
        };
        changed.chain(of_listeners).collect()
    }

    /// True if `self` and `other` both have `[[listeners]]`, or if both have only `[listen]`.
    fn has_form_of(&self, other: &Self) -> bool {
        self.listeners.is_empty() == other.listeners.is_empty()
    }

    /// True if the source of credentials changes: `auth.credentials` differs, or it is `auto` and
    /// only one of `self` and `running` has users. Seawall determines the source only at its start.
    fn changes_credential_source(&self, running: &Self) -> bool {
        let is_auto = running.auth.credentials == Credentials::Auto;
        self.auth.credentials != running.auth.credentials
            || (is_auto && self.auth.users.is_empty() != running.auth.users.is_empty())
    }

    /// Returns a copy of the settings in effect (`self`), but with the values of `newer` that need
    /// no restart ([`Change::Live`]). The other values of `newer` take effect at the next start.
    #[must_use]
    pub fn with_live_values_of(&self, newer: &Self) -> Self {
        let mut settings = self.clone();
        let Self {
            listen,
            listeners,
            deployment,
            auth,
            pool,
            limits,
            shapes,
            history,
            pulse,
            slow_log,
            capture,
            fault,
            shutdown,
            runtime,
            admin,
            telemetry,
            log,
            reload,
        } = &mut settings;
        if self.has_form_of(newer) {
            listen.adopt_live(&newer.listen, of_path);
            adopt_live(listeners, &newer.listeners);
        }
        // Until a restart, Seawall listens on the earlier address, which keeps its TLS settings.
        if newer.listen.addresses != self.listen.addresses {
            listen.tls.clone_from(&self.listen.tls);
        }
        if newer.deployment.changes_only_passwords(deployment) {
            deployment.uri = newer.deployment.uri.clone();
        }
        deployment.adopt_live(&newer.deployment, of_path);
        if newer.deployment.delays_tls(&self.deployment) {
            deployment.tls.clone_from(&self.deployment.tls);
            if let (Some(kept), Some(newer)) = (&mut deployment.tls, &newer.deployment.tls) {
                renew_contents(kept, newer);
            }
        }
        auth.adopt_live(&newer.auth, of_path);
        pool.adopt_live(&newer.pool, of_path);
        limits.adopt_live(&newer.limits, of_path);
        shapes.adopt_live(&newer.shapes, of_path);
        history.adopt_live(&newer.history, of_path);
        pulse.adopt_live(&newer.pulse, of_path);
        adopt_optional("slow_log", slow_log, &newer.slow_log);
        capture.adopt_live(&newer.capture, of_path);
        adopt_optional("fault", fault, &newer.fault);
        shutdown.adopt_live(&newer.shutdown, of_path);
        runtime.adopt_live(&newer.runtime, of_path);
        admin.adopt_live(&newer.admin, of_path);
        if newer.admin.address != self.admin.address {
            admin.tls.clone_from(&self.admin.tls);
        }
        telemetry.adopt_live(&newer.telemetry, of_path);
        log.adopt_live(&newer.log, of_path);
        reload.adopt_live(&newer.reload, of_path);
        if newer.changes_credential_source(self) {
            settings.auth.users.clone_from(&self.auth.users);
        }
        settings.renew_kept_tls(self, newer);
        settings
    }

    /// True if a change of `[listen.tls]` takes effect only at the next start, because the address
    /// changes too. New contents of the same files take effect at once.
    fn delays_listen_tls(&self, running: &Self) -> bool {
        self.listen.addresses != running.listen.addresses
            && !renews_only_contents(&self.listen.tls, &running.listen.tls)
    }

    /// Like [`Self::delays_listen_tls`], for `[admin.tls]`.
    fn delays_admin_tls(&self, running: &Self) -> bool {
        self.admin.address != running.admin.address
            && !renews_only_contents(&self.admin.tls, &running.admin.tls)
    }

    /// Until a restart, Seawall uses the addresses in `running`. An address that `newer` changes
    /// keeps its TLS settings until then, but this function replaces the contents of its TLS files
    /// by the contents in `newer`. With the earlier contents, certificates could expire, and
    /// revoked clients could still connect.
    fn renew_kept_tls(&mut self, running: &Self, newer: &Self) {
        let of_listeners = newer.listeners.iter().map(|listener| &listener.tls);
        let sections = of_listeners.chain([&newer.listen.tls, &newer.admin.tls]);
        let read: Vec<&ReadFile> = sections.flat_map(client_files).collect();
        let has_other_form = !running.has_form_of(newer);
        if has_other_form || newer.listen.addresses != running.listen.addresses {
            renew_client_files(&mut self.listen.tls, &read);
        }
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let newer = newer.listeners.get(index);
            if newer.is_none_or(|newer| newer.addresses != listener.addresses) {
                renew_client_files(&mut listener.tls, &read);
            }
        }
        if newer.admin.address != running.admin.address {
            renew_client_files(&mut self.admin.tls, &read);
        }
    }

    /// The contradictions between values of these settings. A value that a reload has changed can
    /// contradict a value that only a restart can change.
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        relations::check(self, self.auth.users.len(), &mut problems);
        problems
    }
}

const USERS: &str = "auth.users";

const URI: &str = "deployment.uri";

const SERVER_TLS: &str = "deployment.tls";

const LISTEN_TLS: &str = "listen.tls";

const ADMIN_TLS: &str = "admin.tls";

/// Returns when a change of the key or section at `path` takes effect. If every key of a section
/// can change at a reload, the whole section can change at a reload. Otherwise, a change of the
/// section needs a restart.
fn of_path(path: &str) -> Change {
    let list = format!("{path}{LIST}");
    let is_in = |of: &str, section: &str| {
        let rest = of.strip_prefix(section);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut keys = KEYS
        .iter()
        .filter(|key| is_in(key.path, path) || is_in(key.path, &list));
    match keys.all(|key| key.change == Change::Live) {
        true => Change::Live,
        false => Change::Restart,
    }
}

fn optional<T: Reloadable>(
    path: &'static str,
    section: &Option<T>,
    running: &Option<T>,
    changed: &mut Vec<&'static str>,
) {
    match (section, running) {
        (Some(section), Some(running)) => section.changed(running, changed),
        (None, None) => {}
        (Some(_), None) | (None, Some(_)) => changed.push(path),
    }
}

fn adopt_optional<T: Reloadable + Clone>(path: &str, section: &mut Option<T>, newer: &Option<T>) {
    match (section.as_mut(), newer) {
        (Some(section), Some(newer)) => section.adopt_live(newer, of_path),
        _ if of_path(path) == Change::Live => section.clone_from(newer),
        _ => {}
    }
}

/// The changes between two lists of listeners. Two listeners are compared if they have the same
/// position and the same addresses. If the addresses differ, the new listener takes effect at the
/// next start. Until then, the running listener at this position keeps all its settings.
fn changed_listeners(newer: &[Listener], running: &[Listener]) -> Vec<Changed> {
    let mut changes = Vec::new();
    for index in 0..newer.len().max(running.len()) {
        match (newer.get(index), running.get(index)) {
            (Some(newer), Some(running)) if newer.addresses == running.addresses => {
                let mut paths = Vec::new();
                newer.changed(running, &mut paths);
                changes.extend(paths.into_iter().map(|path| Changed {
                    path: path.replacen(Listener::SECTION.path, &running.path, 1),
                    change: of_path(path),
                }));
            }
            _ => changes.push(Changed {
                path: format!("{LISTENERS}[{index}]"),
                change: Change::Restart,
            }),
        }
    }
    changes
}

/// Compares each listener with the listener that has the same position in `newer`. If both have the
/// same addresses, copies the newer listener's values that need no restart.
fn adopt_live(listeners: &mut [Listener], newer: &[Listener]) {
    for (listener, newer) in listeners.iter_mut().zip(newer) {
        if listener.addresses == newer.addresses {
            listener.adopt_live(newer, of_path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "[[auth.users]]\nname = \"a\"\npassword = \"b\"\n";

    fn settings(toml: &str) -> Settings {
        Settings::from_toml(&format!("deployment.uri = \"mongodb://server/\"\n{toml}")).unwrap()
    }

    /// Returns the changes of a reload from `running` to `newer`, and the settings after the
    /// reload.
    fn reload(running: &str, newer: &str) -> (Vec<(String, Change)>, Settings) {
        let (running, newer) = (settings(running), settings(newer));
        let changes = newer.changes_since(&running).into_iter();
        let changes = changes.map(|changed| (changed.path, changed.change));
        (changes.collect(), running.with_live_values_of(&newer))
    }

    fn owned(changes: &[(&str, Change)]) -> Vec<(String, Change)> {
        let changes = changes.iter();
        changes
            .map(|(path, of)| ((*path).to_owned(), *of))
            .collect()
    }

    #[test]
    fn a_reload_adopts_only_values_that_need_no_restart() {
        let newer =
            "listen.backlog = 9\npool.max_pool_size = 9\n[slow_log]\n[fault]\nclose = true\n";
        let (changes, running) = reload("", newer);
        let expected = [
            ("listen.backlog", Change::Restart),
            ("pool.max_pool_size", Change::Live),
            ("slow_log", Change::Live),
            ("fault", Change::Live),
        ];
        assert_eq!(changes, owned(&expected));
        assert_eq!(running.listen.backlog.get(), 4096);
        assert_eq!(running.pool.max_pool_size.get(), 9);
        assert!(running.slow_log.is_some() && running.fault.is_some());
        let (changes, running) = reload(newer, newer);
        assert!(changes.is_empty());
        assert_eq!(running, settings(newer));
    }

    #[test]
    fn changed_hosts_need_a_restart_even_if_the_options_contain_an_at_sign() {
        let settings = |uri: &str| Settings::default_for(uri).unwrap();
        let running = settings("mongodb://user:old@one?appName=a@b");
        for (newer, expected) in [
            ("mongodb://user:new@one?appName=a@b", Change::Live),
            ("mongodb://user:old@two?appName=a@b", Change::Restart),
        ] {
            let newer = settings(newer);
            let [changed]: [Changed; 1] = newer.changes_since(&running).try_into().unwrap();
            assert_eq!(changed.change, expected);
            let uri = running.with_live_values_of(&newer).deployment.uri;
            let is_new = uri == newer.deployment.uri;
            assert_eq!(is_new, expected == Change::Live);
        }
    }

    /// A renewed certificate may come with a key that has another password.
    #[test]
    fn a_changed_password_of_the_key_or_of_the_service_account_needs_no_restart() {
        let settings = |(user, password): (&str, &str)| {
            let options = format!("tlsCertificateKeyFilePassword={password}");
            Settings::default_for(&format!("mongodb://{user}one/?{options}")).unwrap()
        };
        for (before, after, is_of_account) in [
            (("", "old"), ("", "new"), false),
            (("a:b@", "old"), ("a:b@", "new"), false),
            (("a:b@", "old"), ("a:c@", "new"), true),
            (("a:b@", "old"), ("a:c@", "old"), true),
        ] {
            let (before, after) = (settings(before), settings(after));
            let [changed]: [Changed; 1] = after.changes_since(&before).try_into().unwrap();
            assert_eq!(changed.change, Change::Live);
            let running = before.with_live_values_of(&after).deployment;
            assert_eq!(running, after.deployment);
            let is_changed = running.changes_account_password(&before.deployment);
            assert_eq!(is_changed, is_of_account);
        }
    }

    #[test]
    fn users_stay_the_same_until_a_restart_if_the_credential_source_changes() {
        let other = |word: &str| format!("auth.credentials = \"{word}\"\n");
        for (running, newer) in [
            (USER.to_owned(), other("self")),
            (USER.to_owned(), String::new()),
            (String::new(), USER.to_owned()),
            (String::new(), other("users") + USER),
        ] {
            let (changes, settings) = reload(&running, &newer);
            assert!(
                changes.contains(&("auth.users".to_owned(), Change::Restart)),
                "{changes:?}"
            );
            assert_eq!(settings.auth.users.is_empty(), running.is_empty());
            assert!(settings.problems().is_empty());
        }
        let two = format!("{USER}{}", USER.replace("\"a\"", "\"c\""));
        let (changes, settings) = reload(USER, &two);
        assert_eq!(changes, owned(&[("auth.users", Change::Live)]));
        assert_eq!(settings.auth.users.len(), 2);
    }

    #[test]
    fn a_reload_has_a_problem_if_a_new_value_contradicts_a_value_that_changes_only_at_a_restart() {
        // `admin.address` changes only at a restart. So the running address stays public and needs
        // the token, which `newer` does not have.
        let running = settings(&format!(
            "admin.address = \"0.0.0.0:1\"\nadmin.token_file = {:?}\n",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")
        ));
        let newer = settings("");
        assert!(!running.with_live_values_of(&newer).problems().is_empty());
    }

    fn listener(address: &str, more: &str) -> String {
        format!("[[listeners]]\naddress = \"{address}\"\n{more}\n")
    }

    /// TOML text of the section `section`, with TLS files that exist. In TOML, `[listeners.tls]`
    /// belongs to the last `[[listeners]]` before it.
    fn with_tls(section: &str) -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        format!("[{section}]\ncertificate_file = {file:?}\nkey_file = {file:?}\n")
    }

    #[test]
    fn for_each_listener_a_reload_applies_only_the_values_that_need_no_restart() {
        let running =
            listener("a:1", "backlog = 1") + &listener("b:2", "max_client_connections = 3");
        let newer = listener("a:1", "backlog = 2") + &listener("b:2", &with_tls("listeners.tls"));
        let (changes, settings) = reload(&running, &newer);
        let expected = [
            ("listeners[0].backlog", Change::Restart),
            ("listeners[1].max_client_connections", Change::Live),
            ("listeners[1].tls", Change::Live),
        ];
        assert_eq!(changes, expected.map(|(path, of)| (path.to_owned(), of)));
        assert_eq!(settings.listeners[0].backlog.get(), 1);
        assert_eq!(settings.listeners[1].max_client_connections, None);
        assert!(settings.listeners[1].tls.is_some());
    }

    #[test]
    fn listeners_with_changed_addresses_take_effect_at_the_next_start() {
        let tls = with_tls("listeners.tls");
        let running = listener("a:1", &tls) + &listener("b:2", "");
        // The listener `b:2` moves to the first position. The running listener at this position,
        // `a:1`, must not lose TLS.
        let (changes, settings) = reload(&running, &listener("b:2", ""));
        let expected = ["listeners[0]", "listeners[1]"];
        assert_eq!(
            changes,
            expected.map(|path| (path.to_owned(), Change::Restart))
        );
        assert!(settings.listeners[0].tls.is_some());
        let (changes, _) = reload(&running, &(running.clone() + &listener("c:3", "")));
        assert_eq!(changes, [("listeners[2]".to_owned(), Change::Restart)]);
    }

    /// Seawall applies the new section only at the next start. Until then, the running listener
    /// must not lose its TLS settings.
    #[test]
    fn a_listener_keeps_tls_if_a_reload_replaces_the_section_listen_by_listeners_without_tls() {
        let running = with_tls("listen.tls");
        let (changes, settings) = reload(&running, &listener("127.0.0.1:27018", ""));
        let expected = ["listen", "listeners"].map(|path| (path.to_owned(), Change::Restart));
        assert_eq!(changes, expected);
        assert!(settings.listen.tls.is_some() && settings.listeners.is_empty());
    }

    /// The contents of the TLS files for clients and for callers of the admin address.
    fn client_file_contents(settings: &Settings) -> Vec<&str> {
        let of_listeners = settings.listeners.iter().map(|listener| &listener.tls);
        let sections = of_listeners.chain([&settings.listen.tls, &settings.admin.tls]);
        let files = sections.flat_map(client_files);
        files.map(ReadFile::expose).collect()
    }

    /// Certificates expire, and revoked clients must be refused, even before the restart.
    #[test]
    fn renewed_tls_files_of_clients_need_no_restart_even_if_a_reload_changes_the_addresses() {
        let name = format!("seawall-renewed-for-clients-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let tls = format!(
            "certificate_file = {file:?}\nkey_file = {file:?}\nclient_certificate = \"required\"\n\
             client_ca_file = {file:?}\nclient_crl_file = {file:?}\n"
        );
        let section = |name: &str, port: u16| {
            format!("[{name}]\naddress = \"127.0.0.1:{port}\"\n[{name}.tls]\n{tls}")
        };
        let single = |port: u16| section("listen", port) + &section("admin", port + 1);
        let several = |port: u16| {
            let tls = format!("[listeners.tls]\n{tls}");
            listener(&format!("a:{port}"), &tls)
        };
        for (before, after) in [
            (single(1), single(3)),
            (several(1), several(2)),
            (single(1), several(1)),
            (several(1), single(1)),
        ] {
            let read = |toml: &str, content: &str| {
                std::fs::write(&file, content).unwrap();
                settings(toml)
            };
            let (before, after) = (read(&before, "old"), read(&after, "new"));
            let running = before.with_live_values_of(&after);
            let contents = client_file_contents(&running);
            assert_eq!(contents.len(), client_file_contents(&before).len());
            assert!(contents.iter().all(|of| *of == "new"), "{contents:?}");
            if after.has_form_of(&before) {
                let changes = after.changes_since(&before);
                let mut of_tls = changes.iter().filter(|of| of.path.ends_with(".tls"));
                assert!(of_tls.all(|of| of.change == Change::Live), "{changes:?}");
            }
        }
        std::fs::remove_file(&file).unwrap();
    }

    /// Because of the changed address, the new path of the key takes effect only at a restart. The
    /// new certificate might not match the earlier key.
    #[test]
    fn a_certificate_of_a_running_address_is_renewed_only_together_with_its_key() {
        let name = format!("seawall-renewed-pair-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let read = |port: u16, key: &str, content: &str| {
            std::fs::write(&file, content).unwrap();
            let tls = format!("[listen.tls]\ncertificate_file = {file:?}\nkey_file = {key:?}\n");
            settings(&format!("[listen]\naddress = \"127.0.0.1:{port}\"\n{tls}"))
        };
        let before_key = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let other_key = concat!(env!("CARGO_MANIFEST_DIR"), "/src/lib.rs");
        let before = read(1, before_key, "old");
        let after = read(2, other_key, "new");
        std::fs::remove_file(&file).unwrap();
        let running = before.with_live_values_of(&after);
        assert_eq!(
            client_file_contents(&running),
            client_file_contents(&before)
        );
    }

    /// Until a restart, Seawall still listens on the earlier addresses.
    #[test]
    fn a_running_address_keeps_its_tls_settings_if_a_reload_changes_the_address_and_tls() {
        let tls = with_tls("listen.tls") + &with_tls("admin.tls");
        let newer = "listen.address = \"127.0.0.1:1\"\nadmin.address = \"127.0.0.1:2\"\n";
        let (changes, settings) = reload(&tls, newer);
        let expected = ["listen.address", "listen.tls", "admin.address", "admin.tls"];
        let expected = expected.map(|path| (path.to_owned(), Change::Restart));
        assert_eq!(changes, expected);
        assert!(settings.listen.tls.is_some() && settings.admin.tls.is_some());
        // If the addresses do not change, a change of TLS needs no restart.
        let (_, settings) = reload(&tls, "");
        assert!(settings.listen.tls.is_none() && settings.admin.tls.is_none());
    }

    /// The change of `deployment.tls` at a reload from `running` to `newer`. Checks that the reload
    /// adopts the new section only if the change needs no restart.
    fn change_of_server_tls(running: &Settings, newer: &Settings) -> Change {
        let changes = newer.changes_since(running);
        let tls = changes.iter().find(|of| of.path == SERVER_TLS).unwrap();
        let adopted = running.with_live_values_of(newer).deployment.tls;
        let expected = match tls.change {
            Change::Live => &newer.deployment.tls,
            Change::Restart => &running.deployment.tls,
        };
        assert_eq!(&adopted, expected);
        tls.change
    }

    /// Until a restart, Seawall uses the earlier servers, for which the new section may be wrong.
    #[test]
    fn changed_tls_settings_need_a_restart_if_a_reload_changes_more_of_the_uri_than_the_password() {
        let settings = |uri: &str, keys: &str| {
            let toml = format!("deployment.uri = \"mongodb://{uri}/?tls=true\"\n{keys}");
            Settings::from_toml(&toml).unwrap()
        };
        let running = settings("a:old@one", "");
        let any_name = "deployment.tls.allow_invalid_hostnames = true\n";
        for (uri, expected) in [
            ("a:old@one", Change::Live),
            ("a:new@one", Change::Live),
            ("a:old@two", Change::Restart),
        ] {
            let change = change_of_server_tls(&running, &settings(uri, any_name));
            assert_eq!(change, expected, "{uri}");
        }
    }

    /// Until a restart, Seawall uses the earlier servers, and certificates may expire in this time.
    #[test]
    fn a_renewed_tls_file_needs_no_restart_even_if_a_reload_changes_the_servers() {
        let name = format!("seawall-renewed-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let settings = |host: &str, content: &str| {
            std::fs::write(&file, content).unwrap();
            let uri = format!("deployment.uri = \"mongodb://{host}/?tls=true\"\n");
            let toml = format!("{uri}deployment.tls.ca_file = {file:?}\n");
            Settings::from_toml(&toml).unwrap()
        };
        let (running, newer) = (settings("one", "old"), settings("two", "new"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(change_of_server_tls(&running, &newer), Change::Live);
    }

    /// Until the restart, Seawall uses the files of the running settings, and these may expire.
    #[test]
    fn a_renewed_tls_file_needs_no_restart_even_if_another_tls_setting_waits_for_a_restart() {
        let name = format!("seawall-renewed-beside-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        let settings = |host: &str, content: &str, more: &str| {
            std::fs::write(&file, content).unwrap();
            let toml = format!(
                "deployment.uri = \"mongodb://{host}/?tls=true\"\n\
                 deployment.tls.certificate_key_file = {file:?}\n\
                 deployment.tls.crl_file = {file:?}\n{more}"
            );
            Settings::from_toml(&toml).unwrap()
        };
        let any_name = "deployment.tls.allow_invalid_hostnames = true\n";
        let (running, newer) = (settings("one", "old", ""), settings("two", "new", any_name));
        std::fs::remove_file(&file).unwrap();
        let tls = running.with_live_values_of(&newer).deployment.tls.unwrap();
        assert!(!tls.allow_invalid_hostnames);
        let files = tls.certificate_key_file.into_iter();
        let files = files.chain(tls.crl_files.into_iter().flatten());
        let contents: Vec<_> = files.map(|file| file.expose().to_owned()).collect();
        assert_eq!(contents, ["new", "new"]);
    }
}
