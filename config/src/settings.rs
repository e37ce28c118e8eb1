//! The validated settings, from which the parts of the proxy are built. The files of this module
//! declare most keys (see [`crate::declare`]). [`crate::listeners`], [`crate::users`] and
//! [`crate::connection_string`] declare the others.
//!
//! Every value is within its bounds and consistent with the others. The setting of a key is `None`
//! only if the key is absent and has no default, or if its value is 0.

mod admin;
mod capture;
mod clients;
mod deployment;
mod process;
mod statistics;

use std::borrow::Cow;
use std::sync::LazyLock;

use crate::connection_string;
use crate::listeners::{self, Listen, Listener, Tls};
use crate::read::Part;
use crate::schema::Section;
use crate::users;

pub use admin::{Admin, Telemetry};
pub use capture::Capture;
pub use clients::{Auth, Limits};
pub use deployment::{Deployment, Pool, ServerTls};
pub use process::{Fault, Log, Reload, Runtime, Shutdown};
pub use statistics::{History, Pulse, Shapes, SlowLog};

use admin::admin_tls_section;

/// A complete, valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The maximum number of client connections of all listeners together. If `listeners` is empty,
    /// this section also describes the only listener.
    pub listen: Listen,
    /// The listeners of `[[listeners]]`; empty if `listen` describes the only listener.
    pub listeners: Vec<Listener>,
    /// The servers behind Seawall.
    pub deployment: Deployment,
    /// The authentication of clients.
    pub auth: Auth,
    /// The connections to servers.
    pub pool: Pool,
    /// Limits for memory, client connections, logins and operations.
    pub limits: Limits,
    /// The statistics by shape. A shape is a command without its values.
    pub shapes: Shapes,
    /// The history of Seawall's statistics: its maximum memory, and its directory on the disk.
    pub history: History,
    /// The regular samples of each server's `serverStatus`.
    pub pulse: Pulse,
    /// The slow log; `None` if it is off.
    pub slow_log: Option<SlowLog>,
    /// The captures: recordings of clients' operations.
    pub capture: Capture,
    /// The injected fault, for experiments; `None` if it is off.
    pub fault: Option<Fault>,
    /// The graceful stop: how long clients may continue their operations.
    pub shutdown: Shutdown,
    /// The number of threads, and the permission for core dumps.
    pub runtime: Runtime,
    /// The HTTP addresses for metrics, health checks and the API.
    pub admin: Admin,
    /// The export of metrics to an OpenTelemetry collector.
    pub telemetry: Telemetry,
    /// The level and the format of Seawall's log.
    pub log: Log,
    /// The reload after a change of the configuration file.
    pub reload: Reload,
}

impl Settings {
    /// Returns the listeners of `[[listeners]]`. If there are none, returns the only listener,
    /// which `[listen]` describes.
    pub fn listeners(&self) -> Cow<'_, [Listener]> {
        match self.listeners.is_empty() {
            true => Cow::Owned(vec![Listener::only(&self.listen)]),
            false => Cow::Borrowed(&self.listeners),
        }
    }

    /// Reads all sections, and adds their problems to the problems of `file`. After problems, the
    /// result is not a valid configuration, but the caller can still check the relations between
    /// the settings. `None` only if a value does not have its key's type, which is a bug in
    /// Seawall.
    pub(crate) fn read(file: &mut Part<'_>) -> Option<Self> {
        Some(Self {
            listen: file.section("listen")?,
            listeners: listeners::read(file),
            deployment: file.section("deployment")?,
            auth: file.section("auth")?,
            pool: file.section("pool")?,
            limits: file.section("limits")?,
            shapes: file.section("shapes")?,
            history: file.section("history")?,
            pulse: file.section("pulse")?,
            slow_log: file.optional_section("slow_log"),
            capture: file.section("capture")?,
            fault: file.section("fault").filter(Fault::has_effect),
            shutdown: file.section("shutdown")?,
            runtime: file.section("runtime")?,
            admin: file.section("admin")?,
            telemetry: file.section("telemetry")?,
            log: file.section("log")?,
            reload: file.section("reload")?,
        })
    }
}

/// Every section, in the order in which `docs/configuration.md` describes the sections.
pub static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    vec![
        Listen::SECTION,
        Tls::SECTION,
        Listener::SECTION,
        listeners::tls_section(),
        connection_string::SECTION,
        Deployment::SECTION,
        ServerTls::SECTION,
        Auth::SECTION,
        users::USER,
        users::SCRAM_SHA_1,
        users::SCRAM_SHA_256,
        Pool::SECTION,
        Limits::SECTION,
        Shapes::SECTION,
        History::SECTION,
        Pulse::SECTION,
        SlowLog::SECTION,
        Capture::SECTION,
        Fault::SECTION,
        Shutdown::SECTION,
        Runtime::SECTION,
        Admin::SECTION,
        admin_tls_section(),
        Telemetry::SECTION,
        Log::SECTION,
        Reload::SECTION,
    ]
});
