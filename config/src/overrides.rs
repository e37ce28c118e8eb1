//! Values from the command line, and the function that merges the values of two sources, for
//! example of the configuration file and of the environment.

use toml::{Table, Value};

/// Values that the command line can set. If a value is absent here, it comes from the environment,
/// the configuration file or the defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The values of `--listen`, which may be repeated. They replace all listen addresses from the
    /// environment and the configuration file.
    pub listen: Vec<String>,
    /// The value of `--deployment`: the connection string.
    pub deployment: Option<crate::Secret>,
    /// The value of `--admin`: the address of the metrics, the health checks and the admin API.
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

/// Inserts `value` at `path` and creates missing sections.
pub(crate) fn insert(table: &mut Table, path: &str, value: Value) {
    let Some((section, rest)) = path.split_once('.') else {
        table.insert(path.to_owned(), value);
        return;
    };
    let section = table
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    // `section` is always a table: paths come from the schema, where no name is both a section and
    // a key.
    if let Value::Table(section) = section {
        insert(section, rest, value);
    }
}

/// Merges two sources, key by key: a value in `stronger` replaces the value in `weaker`. A list is
/// replaced as a whole.
pub(crate) fn override_with(weaker: &mut Table, stronger: Table) {
    // The connection string has two keys. If the stronger source has one of them, both keys of the
    // weaker source are removed, because the merged table must not contain both.
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

/// The two keys for the connection string. A source may have at most one of them.
const CONNECTION_STRING_KEYS: [&str; 2] = ["uri", "uri_file"];
