//! Checks each value of a source (file, environment or command line) against the schema.
//!
//! The check reports each wrong value, removes it from the table and continues. So all wrong values
//! are reported at once, and the remaining values fit the types of the settings. This check does
//! not find values that contradict each other.

use toml::{Table, Value};

use crate::address::{AddressError, AdminAddress, ListenAddress};
use crate::keys;
use crate::path::KeyPath;
use crate::problem::{HIDDEN, Problem, Problems, shown, shown_type};
use crate::schema::{Key, KeyKind, is_connection_string, is_http_url, shape_id};
use crate::secret;
use crate::suggestion::{did_you_mean, most_similar};

/// The source of a value. A problem names the source, because the value must be corrected there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// No source sets the key, so the default applies.
    Default,
    /// The configuration file.
    File,
    /// A variable of the environment.
    Environment,
    /// A flag of the command line.
    CommandLine,
}

impl Origin {
    /// The name of the source in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File => "file",
            Self::Environment => "environment",
            Self::CommandLine => "flag",
        }
    }
}

/// Returns `table` without unknown keys and wrong values. Each of these is added to `problems`.
pub(crate) fn table(table: Table, origin: Origin, problems: &mut Problems) -> Table {
    Check { origin, problems }.table(table, &KeyPath::default())
}

struct Check<'a> {
    origin: Origin,
    problems: &'a mut Problems,
}

impl Check<'_> {
    fn table(&mut self, table: Table, path: &KeyPath) -> Table {
        table
            .into_iter()
            .filter_map(|(name, value)| {
                let value = self.value(value, path, &path.child(&name))?;
                Some((name, value))
            })
            .collect()
    }

    fn value(&mut self, value: Value, parent: &KeyPath, path: &KeyPath) -> Option<Value> {
        if let Some(key) = keys::key(&path.schema) {
            return self.leaf(value, key, path);
        }
        if !keys::names_in(&path.list().schema).is_empty() {
            return self.list_of_tables(value, path);
        }
        if keys::names_in(&path.schema).is_empty() {
            // The value is not shown, because the key may be the misspelled key of a secret.
            self.add(path, shown_type(&value), &unknown(parent, path));
            return None;
        }
        match value {
            Value::Table(table) => Some(Value::Table(self.table(table, path))),
            other => {
                let allowed = format!("must be a table, written as [{}]", path.shown);
                self.add(path, shown_type(&other), &allowed);
                None
            }
        }
    }

    fn list_of_tables(&mut self, value: Value, path: &KeyPath) -> Option<Value> {
        let elements = match value {
            Value::Array(elements) if elements.iter().all(Value::is_table) => elements,
            other => {
                let allowed = format!("must be a list of tables, written as [[{}]]", path.shown);
                self.add(path, shown_type(&other), &allowed);
                return None;
            }
        };
        let elements = elements.into_iter().enumerate();
        let checked = elements.map(|(index, element)| match element {
            Value::Table(element) => Value::Table(self.table(element, &path.element(index))),
            other => other,
        });
        Some(Value::Array(checked.collect()))
    }

    fn leaf(&mut self, value: Value, key: &Key, path: &KeyPath) -> Option<Value> {
        let reason = match (key.kind, &value) {
            (KeyKind::Addresses, Value::Array(_)) => return self.addresses(value, key, path),
            (KeyKind::ShapeThresholds { max_ms }, Value::Table(_)) => {
                return self.shape_thresholds(value, max_ms, key, path);
            }
            (KeyKind::Addresses, Value::String(text)) => {
                address_problem(text.parse::<ListenAddress>().err(), key)
            }
            (KeyKind::AdminAddress, Value::String(text)) => {
                address_problem(text.parse::<AdminAddress>().err(), key)
            }
            (KeyKind::Base64 { .. }, Value::String(text)) => base64_problem(text, key),
            _ if fits(key.kind, &value) => None,
            _ => Some(must_be(key)),
        };
        let Some(reason) = reason else {
            return Some(value);
        };
        let given = if key.kind.is_secret() {
            HIDDEN.to_owned()
        } else {
            shown(&value)
        };
        self.add(path, &self.with_origin(given, key), &reason);
        None
    }

    fn addresses(&mut self, value: Value, key: &Key, path: &KeyPath) -> Option<Value> {
        let elements = value.as_array().filter(|elements| !elements.is_empty());
        let Some(elements) = elements else {
            let given = self.with_origin("[]".to_owned(), key);
            self.add(path, &given, &must_be(key));
            return None;
        };
        let mut all_fit = true;
        for (index, element) in elements.iter().enumerate() {
            let reason = match element {
                Value::String(text) => address_problem(text.parse::<ListenAddress>().err(), key),
                _ => Some(must_be(key)),
            };
            if let Some(reason) = reason {
                all_fit = false;
                let given = self.with_origin(shown(element), key);
                self.add(&path.element(index), &given, &reason);
            }
        }
        all_fit.then_some(value)
    }

    fn shape_thresholds(
        &mut self,
        value: Value,
        max_ms: i64,
        key: &Key,
        path: &KeyPath,
    ) -> Option<Value> {
        let mut all_fit = true;
        for (id, threshold) in value.as_table().into_iter().flatten() {
            let ms = threshold.as_integer();
            if shape_id(id).is_some() && ms.is_some_and(|ms| (0..=max_ms).contains(&ms)) {
                continue;
            }
            all_fit = false;
            let given = self.with_origin(shown(threshold), key);
            self.add(&path.child(id), &given, &must_be(key));
        }
        all_fit.then_some(value)
    }

    fn with_origin(&self, given: String, key: &Key) -> String {
        match self.origin {
            Origin::Default | Origin::File => given,
            Origin::Environment => {
                let variable = key.variable().unwrap_or_default();
                format!("{given} from {variable}")
            }
            Origin::CommandLine => format!("{given} from the command line"),
        }
    }

    fn add(&mut self, path: &KeyPath, given: &str, allowed: &str) {
        self.problems.add(Problem::new(&path.shown, given, allowed));
    }
}

fn unknown(parent: &KeyPath, path: &KeyPath) -> String {
    let names = keys::names_in(&parent.schema);
    let name = path.shown.rsplit('.').next().unwrap_or_default();
    // The message suggests a key with the same name in another section, or else a similar name in
    // this section.
    let elsewhere = keys::path_of_name(name);
    let meant = elsewhere.or_else(|| most_similar(name, names.iter().copied()));
    let suggestion = did_you_mean(meant);
    let listed = names.join(", ");
    if parent.shown.is_empty() {
        format!("unknown section; {suggestion}the sections are {listed}")
    } else {
        format!("unknown key; {suggestion}[{}] has {listed}", parent.shown)
    }
}

pub(crate) fn must_be(key: &Key) -> String {
    format!("must be {}", key.kind)
}

/// True if `value` has the type that `kind` requires, and is within the bounds of `kind`. Kinds
/// that are not listed here have separate checks, which give more specific reasons.
pub(crate) fn fits(kind: KeyKind, value: &Value) -> bool {
    match (kind, value) {
        (
            KeyKind::Text
            | KeyKind::Secret
            | KeyKind::Path
            | KeyKind::ReadableFile
            | KeyKind::ReadableFiles
            | KeyKind::SecretFile
            | KeyKind::SecretFiles
            | KeyKind::Directory,
            Value::String(text),
        ) => !text.is_empty(),
        (KeyKind::ConnectionString, Value::String(text)) => is_connection_string(text),
        (KeyKind::HttpUrl, Value::String(text)) => is_http_url(text),
        (
            KeyKind::Integer { min, max } | KeyKind::IntegerOr { min, max, .. },
            Value::Integer(number),
        ) => (min..=max).contains(number),
        (KeyKind::Percent, Value::Integer(number)) => (0..=100).contains(number),
        (KeyKind::Percent, Value::Float(number)) => (0.0..=100.0).contains(number),
        (KeyKind::Boolean, Value::Boolean(_)) => true,
        (
            KeyKind::Choice { accepted } | KeyKind::IntegerOr { accepted, .. },
            Value::String(text),
        ) => accepted.contains(&text.as_str()),
        _ => false,
    }
}

fn address_problem(error: Option<AddressError>, key: &Key) -> Option<String> {
    error.map(|error| format!("{}: {error}", must_be(key)))
}

fn base64_problem(text: &str, key: &Key) -> Option<String> {
    let KeyKind::Base64 { min, max } = key.kind else {
        return None;
    };
    match secret::decode(text) {
        Ok(bytes) if (min..=max).contains(&bytes.len()) => None,
        Ok(bytes) => Some(format!("{}, but has {} bytes", must_be(key), bytes.len())),
        Err(error) => Some(format!("{}: {error}", must_be(key))),
    }
}
