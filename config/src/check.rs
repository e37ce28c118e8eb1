//! The check of each value by itself, against the schema.
//!
//! A table goes in and comes out without what was wrong with it, so that one mistake hides no
//! other, and so that what is left fits the types of [`crate::file`]. Relations between values
//! are not looked at here.

use toml::{Table, Value};

use crate::address::{AddressError, AdminAddress, ListenAddress};
use crate::base64;
use crate::problem::{HIDDEN, Problem, Problems, shown, shown_text, shown_type};
use crate::schema::{self, Key, Kind, LIST};

/// Which source a value stands in; said in a problem, because that is where to mend it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    File,
    Environment,
    CommandLine,
}

/// What remains of `table` when every unknown key and every wrong value has become a problem.
pub(crate) fn table(table: Table, origin: Origin, problems: &mut Problems) -> Table {
    Check { origin, problems }.table(table, &Place::default())
}

struct Check<'a> {
    origin: Origin,
    problems: &'a mut Problems,
}

impl Check<'_> {
    fn table(&mut self, table: Table, place: &Place) -> Table {
        table
            .into_iter()
            .filter_map(|(name, value)| {
                let value = self.value(value, place, &place.child(&name))?;
                Some((name, value))
            })
            .collect()
    }

    fn value(&mut self, value: Value, parent: &Place, place: &Place) -> Option<Value> {
        if let Some(key) = schema::key(&place.schema) {
            return self.leaf(value, key, place);
        }
        if !schema::names_in(&place.list().schema).is_empty() {
            return self.list_of_tables(value, place);
        }
        if schema::names_in(&place.schema).is_empty() {
            // The key may be a misspelt secret, so its value is not shown.
            self.add(place, shown_type(&value), &unknown(parent));
            return None;
        }
        match value {
            Value::Table(table) => Some(Value::Table(self.table(table, place))),
            other => {
                let allowed = format!("must be a table, [{}]", place.shown);
                self.add(place, shown_type(&other), &allowed);
                None
            }
        }
    }

    fn list_of_tables(&mut self, value: Value, place: &Place) -> Option<Value> {
        let elements = match value {
            Value::Array(elements) if elements.iter().all(Value::is_table) => elements,
            other => {
                let allowed = format!("must be a list of tables, [[{}]]", place.shown);
                self.add(place, shown_type(&other), &allowed);
                return None;
            }
        };
        let elements = elements.into_iter().enumerate();
        let checked = elements.map(|(index, element)| match element {
            Value::Table(element) => Value::Table(self.table(element, &place.element(index))),
            other => other,
        });
        Some(Value::Array(checked.collect()))
    }

    fn leaf(&mut self, value: Value, key: &Key, place: &Place) -> Option<Value> {
        let reason = match (key.kind, &value) {
            (Kind::Addresses, Value::Array(_)) => return self.addresses(value, key, place),
            (Kind::ShapeThresholds { max_ms }, Value::Table(_)) => {
                return self.shape_thresholds(value, max_ms, key, place);
            }
            (Kind::Addresses, Value::String(text)) => {
                address_problem(text.parse::<ListenAddress>().err(), key)
            }
            (Kind::AdminAddress, Value::String(text)) => {
                address_problem(text.parse::<AdminAddress>().err(), key)
            }
            (Kind::Base64 { .. }, Value::String(text)) => base64_problem(text, key),
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
        self.add(place, &self.with_origin(given, key), &reason);
        None
    }

    fn addresses(&mut self, value: Value, key: &Key, place: &Place) -> Option<Value> {
        let elements = value.as_array().filter(|elements| !elements.is_empty());
        let Some(elements) = elements else {
            let given = self.with_origin("[]".to_owned(), key);
            self.add(place, &given, &must_be(key));
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
                self.add(&place.element(index), &given, &reason);
            }
        }
        all_fit.then_some(value)
    }

    fn shape_thresholds(
        &mut self,
        value: Value,
        max_ms: i64,
        key: &Key,
        place: &Place,
    ) -> Option<Value> {
        let mut all_fit = true;
        for (id, threshold) in value.as_table().into_iter().flatten() {
            let ms = threshold.as_integer();
            if shape_id(id).is_some() && ms.is_some_and(|ms| (0..=max_ms).contains(&ms)) {
                continue;
            }
            all_fit = false;
            let given = self.with_origin(shown(threshold), key);
            self.add(&place.child(id), &given, &must_be(key));
        }
        all_fit.then_some(value)
    }

    fn with_origin(&self, given: String, key: &Key) -> String {
        match self.origin {
            Origin::File => given,
            Origin::Environment => {
                let variable = key.variable().unwrap_or_default();
                format!("{given} from {variable}")
            }
            Origin::CommandLine => format!("{given} from the command line"),
        }
    }

    fn add(&mut self, place: &Place, given: &str, allowed: &str) {
        self.problems
            .add(Problem::new(&place.shown, given, allowed));
    }
}

/// Where in the configuration the check is.
#[derive(Debug, Clone, Default)]
struct Place {
    /// As the schema writes it: `auth.users[].name`.
    schema: String,
    /// As a person finds it: `auth.users[0].name`.
    shown: String,
}

impl Place {
    fn child(&self, name: &str) -> Self {
        let is_bare = name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        // A name with a dot in it must not pass for two names, nor one with a line break for two
        // lines; in quotes it is in no schema and on one line.
        let name = if is_bare && !name.is_empty() {
            name.to_owned()
        } else {
            shown_text(name)
        };
        Self {
            schema: join(&self.schema, &name),
            shown: join(&self.shown, &name),
        }
    }

    fn list(&self) -> Self {
        Self {
            schema: format!("{}{LIST}", self.schema),
            shown: self.shown.clone(),
        }
    }

    fn element(&self, index: usize) -> Self {
        Self {
            schema: format!("{}{LIST}", self.schema),
            shown: format!("{}[{index}]", self.shown),
        }
    }
}

fn join(section: &str, name: &str) -> String {
    if section.is_empty() {
        name.to_owned()
    } else {
        format!("{section}.{name}")
    }
}

fn unknown(parent: &Place) -> String {
    let names = schema::names_in(&parent.schema).join(", ");
    if parent.shown.is_empty() {
        format!("is no section; there are {names}")
    } else {
        format!("is no key; [{}] has {names}", parent.shown)
    }
}

fn must_be(key: &Key) -> String {
    format!("must be {}", key.kind)
}

/// Whether the value has the kind's type and is in its bounds, for the kinds without a reason of
/// their own.
fn fits(kind: Kind, value: &Value) -> bool {
    match (kind, value) {
        (Kind::Text | Kind::Secret | Kind::Path | Kind::Directory, Value::String(text)) => {
            !text.is_empty()
        }
        (Kind::ConnectionString, Value::String(text)) => is_connection_string(text),
        (Kind::Integer { min, max }, Value::Integer(number)) => (min..=max).contains(number),
        (Kind::Percent, Value::Integer(number)) => (0..=100).contains(number),
        (Kind::Percent, Value::Float(number)) => (0.0..=100.0).contains(number),
        (Kind::Boolean, Value::Boolean(_)) => true,
        (Kind::Choice { accepted }, Value::String(text)) => accepted.contains(&text.as_str()),
        _ => false,
    }
}

/// The shape that an id names, as metrics and the API write it.
pub(crate) fn shape_id(text: &str) -> Option<u64> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_id = text.len() == 16 && text.bytes().all(is_digit);
    is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

/// Whether the scheme is MongoDB's and something follows it; the driver crate knows the rest.
pub(crate) fn is_connection_string(text: &str) -> bool {
    ["mongodb://", "mongodb+srv://"]
        .iter()
        .filter_map(|scheme| text.strip_prefix(scheme))
        .any(|rest| !rest.is_empty())
}

fn address_problem(error: Option<AddressError>, key: &Key) -> Option<String> {
    error.map(|error| format!("{}: {error}", must_be(key)))
}

fn base64_problem(text: &str, key: &Key) -> Option<String> {
    let Kind::Base64 { min, max } = key.kind else {
        return None;
    };
    match base64::decode(text) {
        Ok(bytes) if (min..=max).contains(&bytes.len()) => None,
        Ok(bytes) => Some(format!("{}, not of {}", must_be(key), bytes.len())),
        Err(error) => Some(format!("{}: {error}", must_be(key))),
    }
}
