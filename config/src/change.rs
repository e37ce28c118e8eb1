//! The changes of a reload: which settings differ from the running ones, and which changes take
//! effect without a restart.

use crate::keys::KEYS;
use crate::problem::Problems;
use crate::relations;
use crate::schema::{Change, LIST};
use crate::settings::Settings;
use crate::words::Credentials;

/// A part of the settings that a reload compares with the running settings.
pub(crate) trait Reloadable {
    /// Adds the path of each key or section whose value differs from the running one.
    fn changed(&self, running: &Self, changed: &mut Vec<&'static str>);

    /// Takes the values of all keys with [`Change::Live`] from `newer`.
    fn adopt_live(&mut self, newer: &Self);
}

/// A key or section whose value differs from the running one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// The path of the key, or of a section that is read as a whole: `auth.users`, `listen.tls`.
    pub path: &'static str,
    /// When the change takes effect.
    pub change: Change,
}

impl Changed {
    /// True if the key or element at `path` belongs to this change.
    pub fn includes(&self, path: &str) -> bool {
        let rest = path.strip_prefix(self.path);
        let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        // The two keys of the connection string give one value.
        is_below || (self.path == "deployment.uri" && path == "deployment.uri_file")
    }
}

impl Settings {
    /// The keys and sections whose values differ from those of `running`. Contents of files and
    /// secrets are compared too.
    pub fn changes_since(&self, running: &Self) -> Vec<Changed> {
        let mut paths = Vec::new();
        let Self {
            listen,
            deployment,
            auth,
            pool,
            limits,
            shapes,
            history,
            pulse,
            slow_log,
            fault,
            shutdown,
            runtime,
            admin,
            log,
            reload,
        } = self;
        listen.changed(&running.listen, &mut paths);
        deployment.changed(&running.deployment, &mut paths);
        auth.changed(&running.auth, &mut paths);
        pool.changed(&running.pool, &mut paths);
        limits.changed(&running.limits, &mut paths);
        shapes.changed(&running.shapes, &mut paths);
        history.changed(&running.history, &mut paths);
        pulse.changed(&running.pulse, &mut paths);
        optional("slow_log", slow_log, &running.slow_log, &mut paths);
        optional("fault", fault, &running.fault, &mut paths);
        shutdown.changed(&running.shutdown, &mut paths);
        runtime.changed(&running.runtime, &mut paths);
        admin.changed(&running.admin, &mut paths);
        log.changed(&running.log, &mut paths);
        reload.changed(&running.reload, &mut paths);
        let changed = paths.into_iter().map(|path| Changed {
            path,
            change: match path {
                USERS if self.changes_credential_source(running) => Change::Restart,
                _ => of_path(path),
            },
        });
        changed.collect()
    }

    /// True if the source of credentials changes: `auth.credentials` differs, or it is `auto` and
    /// users appear or disappear. The source is determined at the start.
    fn changes_credential_source(&self, running: &Self) -> bool {
        let is_auto = running.auth.credentials == Credentials::Auto;
        self.auth.credentials != running.auth.credentials
            || (is_auto && self.auth.users.is_empty() != running.auth.users.is_empty())
    }

    /// Returns these running settings with the live values of `newer`. All other values take effect
    /// at the next start.
    #[must_use]
    pub fn with_live_values_of(&self, newer: &Self) -> Self {
        let mut settings = self.clone();
        let Self {
            listen,
            deployment,
            auth,
            pool,
            limits,
            shapes,
            history,
            pulse,
            slow_log,
            fault,
            shutdown,
            runtime,
            admin,
            log,
            reload,
        } = &mut settings;
        listen.adopt_live(&newer.listen);
        deployment.adopt_live(&newer.deployment);
        auth.adopt_live(&newer.auth);
        pool.adopt_live(&newer.pool);
        limits.adopt_live(&newer.limits);
        shapes.adopt_live(&newer.shapes);
        history.adopt_live(&newer.history);
        pulse.adopt_live(&newer.pulse);
        adopt_optional("slow_log", slow_log, &newer.slow_log);
        adopt_optional("fault", fault, &newer.fault);
        shutdown.adopt_live(&newer.shutdown);
        runtime.adopt_live(&newer.runtime);
        admin.adopt_live(&newer.admin);
        log.adopt_live(&newer.log);
        reload.adopt_live(&newer.reload);
        if newer.changes_credential_source(self) {
            settings.auth.users.clone_from(&self.auth.users);
        }
        settings
    }

    /// The violated relations between these settings. The new live values can conflict with running
    /// values that only a restart changes.
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        relations::check(self, self.auth.users.len(), &mut problems);
        problems
    }
}

const USERS: &str = "auth.users";

/// When a change of the key or section at `path` takes effect. A section is live only if all its
/// keys are.
pub(crate) fn of_path(path: &str) -> Change {
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
        (Some(section), Some(newer)) => section.adopt_live(newer),
        _ if of_path(path) == Change::Live => section.clone_from(newer),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: &str = "[[auth.users]]\nname = \"a\"\npassword = \"b\"\n";

    fn settings(toml: &str) -> Settings {
        Settings::from_toml(&format!("deployment.uri = \"mongodb://server/\"\n{toml}")).unwrap()
    }

    /// The changes, and the running settings after the reload.
    fn reload(running: &str, newer: &str) -> (Vec<(&'static str, Change)>, Settings) {
        let (running, newer) = (settings(running), settings(newer));
        let changes = newer.changes_since(&running).into_iter();
        let changes = changes.map(|changed| (changed.path, changed.change));
        (changes.collect(), running.with_live_values_of(&newer))
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
        assert_eq!(changes, expected);
        assert_eq!(running.listen.backlog.get(), 4096);
        assert_eq!(running.pool.max_pool_size.get(), 9);
        assert!(running.slow_log.is_some() && running.fault.is_some());
        let (changes, running) = reload(newer, newer);
        assert!(changes.is_empty());
        assert_eq!(running, settings(newer));
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
                changes.contains(&("auth.users", Change::Restart)),
                "{changes:?}"
            );
            assert_eq!(settings.auth.users.is_empty(), running.is_empty());
            assert!(settings.problems().is_empty());
        }
        let two = format!("{USER}{}", USER.replace("\"a\"", "\"c\""));
        let (changes, settings) = reload(USER, &two);
        assert_eq!(changes, [("auth.users", Change::Live)]);
        assert_eq!(settings.auth.users.len(), 2);
    }

    #[test]
    fn a_live_change_that_contradicts_a_running_value_is_a_problem() {
        // The running admin address is public, so the token must stay.
        let running = settings(&format!(
            "admin.address = \"0.0.0.0:1\"\nadmin.token_file = {:?}\n",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")
        ));
        let newer = settings("");
        assert!(!running.with_live_values_of(&newer).problems().is_empty());
    }
}
