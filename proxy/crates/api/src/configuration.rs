//! The configuration in effect and its reload: `/api/v1/config` and `/api/v1/reload`.

use serde::{Deserialize, Serialize};

/// The configuration in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// A hash of all values, without secrets and contents of files. Instances with the same values
    /// have the same hash.
    pub hash: String,
    /// The values of all keys.
    pub values: Vec<ConfigurationValue>,
}

/// The value of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigurationValue {
    /// The value in effect, if it differs from the configured value. Possible causes are sockets
    /// from the service manager, the variable `SEAWALL_LOG`, and a limit of file descriptors that
    /// is too low.
    pub in_effect: Option<String>,
    /// The admin address of the instance that reported this entry. Present only if the replies of
    /// several instances were merged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// The key's path, for example `pool.max_pool_size`.
    pub key: String,
    /// The source of the value: `flag`, `environment`, `file` or `default`.
    pub origin: String,
    /// The value that takes effect at the next start; empty if the key then has no value. `None` if
    /// the value stays the same.
    pub pending: Option<String>,
    /// The value, as in a TOML file; empty if the key has no value. Secrets are hidden.
    pub value: String,
}

/// The result of a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reload {
    /// True if the changes that need no restart are in effect now.
    pub applied: bool,
    /// The keys whose values change in the reload.
    pub changes: Vec<ConfigurationChange>,
    /// The problems of the new configuration. If there are problems, nothing changes.
    pub problems: Vec<String>,
}

/// A key whose value changes in a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigurationChange {
    /// The value before the reload.
    pub from: String,
    /// The key's path.
    pub key: String,
    /// True if the change takes effect only at the next start.
    pub needs_restart: bool,
    /// The new value. It equals `from` if only the content of a file or a secret differs.
    pub to: String,
}
