//! What the command line says, and how one source is laid over another.

use toml::{Table, Value};

/// The settings that the command line can give; what is absent is left to the other sources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// `--listen`, as often as given: these addresses and no others.
    pub listen: Vec<String>,
    /// `--deployment`: the connection string.
    pub deployment: Option<crate::Secret>,
    /// `--admin`.
    pub admin: Option<String>,
}

impl Overrides {
    pub(crate) fn table(&self) -> Table {
        let mut table = Table::new();
        if !self.listen.is_empty() {
            let addresses = self.listen.iter().map(|address| address.as_str().into());
            insert(
                &mut table,
                "listen.address",
                Value::Array(addresses.collect()),
            );
        }
        if let Some(uri) = &self.deployment {
            insert(&mut table, "deployment.uri", uri.expose().into());
        }
        if let Some(address) = &self.admin {
            insert(&mut table, "admin.address", address.as_str().into());
        }
        table
    }
}

/// Puts `value` at `path`, making the sections that lead there.
pub(crate) fn insert(table: &mut Table, path: &str, value: Value) {
    let Some((section, rest)) = path.split_once('.') else {
        table.insert(path.to_owned(), value);
        return;
    };
    let section = table
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    // Paths come from the schema, where no section is a key as well.
    if let Value::Table(section) = section {
        insert(section, rest, value);
    }
}

/// Lays a stronger source over a weaker one: key by key, but a list counts as a whole.
pub(crate) fn lay_over(weaker: &mut Table, stronger: Table) {
    // The stronger source's connection string replaces the weaker one's in either form; left in
    // place, the two would contradict each other.
    if let Some(Value::Table(above)) = stronger.get("deployment")
        && CONNECTION_STRING_KEYS
            .iter()
            .any(|key| above.contains_key(*key))
        && let Some(Value::Table(below)) = weaker.get_mut("deployment")
    {
        for key in CONNECTION_STRING_KEYS {
            below.remove(key);
        }
    }
    merge(weaker, stronger);
}

fn merge(weaker: &mut Table, stronger: Table) {
    for (name, value) in stronger {
        match (weaker.get_mut(&name), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => {
                weaker.insert(name, value);
            }
        }
    }
}

/// Two keys for one thing, of which a source gives one.
const CONNECTION_STRING_KEYS: [&str; 2] = ["uri", "uri_file"];
