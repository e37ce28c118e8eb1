//! The effective value of each key, as text, with its origin.

use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

use crate::check::Origin;
use crate::keys::KEYS;
use crate::listeners::{self, LISTENERS};
use crate::problem::{HIDDEN, shown};
use crate::schema::{Key, LIST};
use crate::settings::SECTIONS;

/// A key with the value that is in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectiveValue {
    /// The key's path, for example `pool.max_pool_size` or `auth.users[0].name`.
    pub path: String,
    /// The value, as in a TOML file; empty if the key has no value. Secrets are hidden. A file is
    /// shown by its path.
    pub value: String,
    /// The source of the value, for example the configuration file or an environment variable.
    pub origin: Origin,
}

/// The sources of the configuration. `merged` is the table into which all sources were merged. The
/// other two tables are the sources that override the configuration file: the environment and the
/// command line. `environment` also has the values from the variables of OpenTelemetry.
pub(crate) struct Layers<'a> {
    pub(crate) merged: &'a Table,
    pub(crate) environment: &'a Table,
    pub(crate) command_line: &'a Table,
}

impl Layers<'_> {
    /// The values of all keys, in the order in which `docs/configuration.md` describes the keys.
    /// Keys without effect are omitted. These are the keys of absent optional sections. If there
    /// are `[[listeners]]`, most keys of `[listen]` also have no effect (see
    /// `is_of_only_listener`).
    pub(crate) fn values(&self) -> Vec<EffectiveValue> {
        let mut values = Vec::new();
        for key in KEYS.iter() {
            match key.path.split_once(LIST) {
                None if self.is_replaced(key) => {}
                None => values.extend(self.value(key)),
                Some((list, rest)) => self.elements(key, list, rest, &mut values),
            }
        }
        values
    }

    fn value(&self, key: &Key) -> Option<EffectiveValue> {
        let given = find(self.merged, key.path);
        let section = key.path.rsplit_once('.').map_or("", |(section, _)| section);
        if given.is_none() && is_optional(section) && find(self.merged, section).is_none() {
            return None;
        }
        let origin = if find(self.command_line, key.path).is_some() {
            Origin::CommandLine
        } else if find(self.environment, key.path).is_some() {
            Origin::Environment
        } else if given.is_some() {
            Origin::File
        } else {
            Origin::Default
        };
        Some(EffectiveValue {
            path: key.path.to_owned(),
            value: text_or_default(key, given),
            origin,
        })
    }

    /// True for a key of `[listen]` that has no effect because there are `[[listeners]]`.
    fn is_replaced(&self, key: &Key) -> bool {
        let has_several = !tables(self.merged, LISTENERS).is_empty();
        has_several && listeners::is_of_only_listener(key)
    }

    /// Adds the value that `key` has in each table of the list at the path `list`: for example, the
    /// name of each user in `[[auth.users]]`. Only the file can contain lists of tables.
    fn elements(&self, key: &Key, list: &str, rest: &str, values: &mut Vec<EffectiveValue>) {
        let name = rest.trim_start_matches('.');
        let section = name.rsplit_once('.').map(|(section, _)| section);
        for (index, element) in tables(self.merged, list).iter().enumerate() {
            let in_element = |path| element.as_table().and_then(|table| find(table, path));
            if section.is_some_and(|section| in_element(section).is_none()) {
                continue;
            }
            let given = in_element(name);
            // Some keys exclude each other, so a key without a value or default is omitted.
            if given.is_none() && key.default.is_none() {
                continue;
            }
            values.push(EffectiveValue {
                path: format!("{list}[{index}]{rest}"),
                value: text_or_default(key, given),
                origin: given.map_or(Origin::Default, |_| Origin::File),
            });
        }
    }
}

fn is_optional(section: &str) -> bool {
    SECTIONS
        .iter()
        .any(|of| of.path == section && of.is_optional)
}

/// The list of tables at `path`; empty if there is none.
fn tables<'a>(table: &'a Table, path: &str) -> &'a [Value] {
    let list = find(table, path).and_then(Value::as_array);
    list.map(Vec::as_slice).unwrap_or_default()
}

/// The text of the value, or of the key's default; empty if there is neither.
fn text_or_default(key: &Key, given: Option<&Value>) -> String {
    let default = || key.default.map(|default| key.kind.parse(default));
    let value = given.cloned().or_else(default);
    value.map_or_else(String::new, |value| text(key, &value))
}

/// Keys that usually have a different value in each instance.
const OF_INSTANCE: [&str; 8] = [
    "admin.address",
    "admin.metrics_address",
    "capture.directory",
    "history.directory",
    "listen.address",
    "listeners[].address",
    "slow_log.file",
    "telemetry.resource_attributes",
];

/// True if the value at `path` usually differs between instances. In a list, `path` contains the
/// index of the element, as in `listeners[0].address`.
fn is_of_instance(path: &str) -> bool {
    OF_INSTANCE.iter().any(|key| match key.split_once(LIST) {
        None => path == *key,
        Some((list, rest)) => {
            let index = path
                .strip_prefix(list)
                .and_then(|end| end.strip_suffix(rest));
            index.is_some_and(|index| index.starts_with('[') && index.ends_with(']'))
        }
    })
}

/// A short hash of the values, in hexadecimal: instances with the same configuration have the same
/// hash, regardless of the sources of the values. Secrets have no influence, so the hash does not
/// help to guess them. Values that usually differ between instances, such as addresses, have no
/// influence either.
pub fn configuration_hash(values: &[EffectiveValue]) -> String {
    let common = values.iter().filter(|value| !is_of_instance(&value.path));
    let lines = common.map(|value| format!("{}={}\n", value.path, value.value));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    let mut hash = Sha256::new();
    lines.iter().for_each(|line| hash.update(line));
    let bytes = hash.finalize();
    bytes
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The text of a value. One address and a list of one address have the same meaning, so they have
/// the same text.
fn text(key: &Key, value: &Value) -> String {
    match value {
        _ if key.kind.is_secret() => HIDDEN.to_owned(),
        Value::Array(elements) => match elements.as_slice() {
            [only] => text(key, only),
            _ => value.to_string(),
        },
        Value::Table(_) => value.to_string(),
        _ => shown(value),
    }
}

fn find<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => table.get(path),
        Some((section, rest)) => find(table.get(section)?.as_table()?, rest),
    }
}
