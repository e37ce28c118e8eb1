//! The types of the file: exactly what was written, without defaults.
//!
//! Before serde reads the values, the check has removed and reported every unknown key and every
//! invalid value. `deny_unknown_fields` keeps these types and the schema in agreement.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use serde::Deserialize;

use crate::address::{AdminAddress, ListenAddress};
use crate::secret::{Secret, SecretBytes};
use crate::settings::{Credentials, LogFormat, LogLevel, Mode, OtherMechanisms};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    pub(crate) listen: Listen,
    pub(crate) deployment: Deployment,
    pub(crate) auth: Auth,
    pub(crate) pool: Pool,
    pub(crate) limits: Limits,
    pub(crate) shapes: Shapes,
    pub(crate) history: History,
    pub(crate) pulse: Pulse,
    pub(crate) slow_log: Option<SlowLog>,
    pub(crate) fault: Fault,
    pub(crate) shutdown: Shutdown,
    pub(crate) runtime: Runtime,
    pub(crate) admin: Admin,
    pub(crate) log: Log,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Listen {
    pub(crate) address: Option<OneOrMore<ListenAddress>>,
    pub(crate) max_client_connections: Option<NonZeroUsize>,
    pub(crate) backlog: Option<NonZeroU32>,
    pub(crate) compressors: Option<String>,
    pub(crate) tls: Option<Tls>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tls {
    pub(crate) certificate_file: Option<PathBuf>,
    pub(crate) key_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Deployment {
    pub(crate) uri: Option<Secret>,
    pub(crate) uri_file: Option<PathBuf>,
    pub(crate) mode: Option<Mode>,
    pub(crate) original_destination: Option<bool>,
    pub(crate) relay_encrypted: Option<bool>,
    pub(crate) server_selection_timeout_ms: Option<u64>,
    pub(crate) name_applications: Option<bool>,
    pub(crate) repeat: Option<bool>,
    pub(crate) local_threshold_ms: Option<u64>,
    pub(crate) heartbeat_frequency_ms: Option<u64>,
    pub(crate) connect_timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) max_stale_ms: Option<u64>,
    pub(crate) authentication_timeout_ms: Option<u64>,
    pub(crate) other_mechanisms: Option<OtherMechanisms>,
    pub(crate) users: Vec<User>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct User {
    pub(crate) name: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) password: Option<Secret>,
    pub(crate) password_file: Option<PathBuf>,
    pub(crate) scram_sha_1: Option<ScramKeys<20>>,
    pub(crate) scram_sha_256: Option<ScramKeys<32>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScramKeys<const N: usize> {
    /// Base64. The check has verified that it can be decoded.
    pub(crate) salt: Option<String>,
    pub(crate) iterations: Option<NonZeroU32>,
    pub(crate) stored_key: Option<SecretBytes<N>>,
    pub(crate) server_key: Option<SecretBytes<N>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pool {
    pub(crate) max_pool_size: Option<NonZeroUsize>,
    pub(crate) max_server_connections: Option<NonZeroUsize>,
    pub(crate) min_pool_size: Option<usize>,
    pub(crate) max_connecting: Option<NonZeroUsize>,
    pub(crate) connections_per_second: Option<u32>,
    pub(crate) max_idle_time_ms: Option<u64>,
    pub(crate) max_life_time_ms: Option<u64>,
    pub(crate) wait_queue_timeout_ms: Option<u64>,
    pub(crate) wait_queue_size: Option<NonZeroUsize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    pub(crate) pre_auth_message_bytes: Option<usize>,
    pub(crate) message_memory_bytes: Option<usize>,
    pub(crate) relayed_connections: Option<NonZeroUsize>,
    pub(crate) client_write_idle_timeout_ms: Option<u64>,
    pub(crate) max_cursors: Option<NonZeroUsize>,
    pub(crate) max_transactions: Option<NonZeroUsize>,
    pub(crate) cursor_idle_ms: Option<u64>,
    pub(crate) transaction_idle_ms: Option<u64>,
    pub(crate) max_users: Option<NonZeroUsize>,
    pub(crate) introductions: Option<NonZeroUsize>,
    pub(crate) introduction_conversations: Option<NonZeroUsize>,
    pub(crate) unauthenticated_connections: Option<NonZeroUsize>,
    pub(crate) monitor_connections: Option<NonZeroUsize>,
    pub(crate) max_in_flight_operations: Option<NonZeroUsize>,
    pub(crate) connections_per_second_per_address: Option<u32>,
    pub(crate) logins_per_second_per_user: Option<u32>,
    pub(crate) shared_addresses: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shapes {
    pub(crate) enabled: Option<bool>,
    pub(crate) max_shapes: Option<NonZeroUsize>,
    pub(crate) max_namespaces: Option<NonZeroUsize>,
    pub(crate) name_key_file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct History {
    pub(crate) enabled: Option<bool>,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) memory_bytes: Option<usize>,
    pub(crate) max_series_shapes: Option<NonZeroUsize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Pulse {
    pub(crate) enabled: Option<bool>,
    pub(crate) interval_ms: Option<u64>,
    pub(crate) timeout_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct SlowLog {
    pub(crate) threshold_ms: Option<u64>,
    /// By shape id in hex. The check has verified the ids.
    pub(crate) shape_thresholds_ms: BTreeMap<String, u64>,
    pub(crate) sample_percent: Option<f64>,
    pub(crate) file: Option<PathBuf>,
    pub(crate) max_lines_per_second: Option<u32>,
    pub(crate) redact: Option<bool>,
    pub(crate) max_command_bytes: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Fault {
    pub(crate) command: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) share_percent: Option<u64>,
    pub(crate) delay_ms: Option<u64>,
    pub(crate) error_code: Option<i32>,
    pub(crate) close: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Shutdown {
    pub(crate) drain_ms: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Runtime {
    pub(crate) worker_threads: Option<usize>,
    pub(crate) core_dumps: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Admin {
    pub(crate) address: Option<AdminAddress>,
    pub(crate) token_file: Option<PathBuf>,
    pub(crate) allowed_hosts: Option<String>,
    pub(crate) profile: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Log {
    pub(crate) level: Option<LogLevel>,
    pub(crate) format: Option<LogFormat>,
}
