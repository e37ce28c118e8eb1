//! Seawall's configuration: converts the file, the environment and the command line to validated
//! [`Settings`].
//!
//! ```text
//!  file ────────┐                                  every value alone, against KEYS
//!  environment ─┼─► tables ─► check ─► merged ─► read ─► relations ─► Settings
//!  command line ┘      │        │                 │          │
//!                      └────────┴─ all problems ──┴──────────┴──────► Problems
//! ```
//!
//! Each key is declared once: in a file of `settings/`, or in `listeners.rs`, `users.rs` or
//! `connection_string.rs`. The check, the settings, the environment's variables, the documentation,
//! the full example and the JSON schema are derived from this declaration.
//!
//! The command line overrides the environment, the environment overrides the file, and the file
//! overrides the standard variables of OpenTelemetry and the defaults. All problems are reported at
//! once, and no problem shows a secret.
//!
//! This crate does not depend on the proxy. It resolves no host and opens no socket. The driver
//! crate parses the connection string. This crate reads only the configuration file, and the files
//! with secrets, certificates and keys that the configuration names.

mod address;
mod change;
mod check;
mod connection_string;
mod declare;
mod environment;
mod file;
mod json_schema;
mod keys;
mod kinds;
mod listeners;
mod overrides;
mod path;
mod problem;
mod read;
mod relations;
mod reloadable;
mod schema;
mod secret;
mod settings;
mod standard_variables;
mod suggestion;
mod telemetry;
mod users;
mod values;
mod words;

use std::path::{Path, PathBuf};

use toml::Table;

pub use address::{AddressError, AdminAddress, ListenAddress, PeerAddress};
pub use change::Changed;
pub use check::Origin;
pub use file::ReadFile;
pub use json_schema::json_schema;
pub use keys::KEYS;
pub use kinds::MIN_REDACTION_KEY_BYTES;
pub use listeners::{Listen, Listener, Tls};
pub use overrides::Overrides;
pub use problem::{Problem, Problems};
pub use schema::{Change, Key, KeyKind, Section};
pub use secret::{Secret, SecretBytes, SecretFile};
pub use settings::{
    Admin, Auth, Capture, Deployment, Fault, History, Limits, Log, Pool, Pulse, Reload, Runtime,
    SECTIONS, ServerTls, Settings, Shapes, Shutdown, SlowLog, Telemetry,
};
pub use telemetry::{Attributes, Headers};
pub use users::{ScramKeys, User, UserCredential, UserKeys};
pub use values::{EffectiveValue, configuration_hash};
pub use words::{
    CaptureEvent, CaptureRedaction, ClientCertificate, Compression, Compressor, Concurrency,
    Credentials, LogFormat, LogLevel, Mode, OtherMechanisms, ProxyProtocol, TlsMode,
};

use file::{MAX_FILE_BYTES, read_bounded};
use read::Part;
use values::Layers;

/// The sources of the configuration. The caller provides all of them, because this crate does not
/// read the environment.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The TOML file; `None` if there is no file.
    pub file: Option<PathBuf>,
    /// The process's environment. Variables with the prefix `SEAWALL_` set keys. Some variables of
    /// OpenTelemetry have an effect on `[telemetry]`; all others are ignored.
    pub environment: Vec<(String, String)>,
    /// Values from the command line.
    pub overrides: Overrides,
}

/// A valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// The value and the origin of each key.
    pub values: Vec<EffectiveValue>,
}

/// Reads, merges and validates all sources.
///
/// # Errors
/// All problems of the configuration.
pub fn load(sources: &Sources) -> Result<Settings, Problems> {
    load_with_values(sources).map(|loaded| loaded.settings)
}

/// Like [`load`], and also returns the value and the origin of each key.
///
/// # Errors
/// All problems of the configuration.
pub fn load_with_values(sources: &Sources) -> Result<Loaded, Problems> {
    let mut problems = Problems::default();
    let file = match &sources.file {
        Some(path) => read_table(path, &mut problems),
        None => Some(Table::new()),
    };
    merge_and_convert(file, sources, problems)
}

impl Loaded {
    /// Loads the text of a configuration file, without the environment and the command line.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn from_toml(text: &str) -> Result<Self, Problems> {
        let mut problems = Problems::default();
        let file = parse_table("configuration", text, &mut problems);
        merge_and_convert(file, &Sources::default(), problems)
    }
}

impl Settings {
    /// Loads the text of a configuration file, without the environment and the command line.
    ///
    /// # Errors
    /// All problems of the text.
    pub fn from_toml(text: &str) -> Result<Self, Problems> {
        Loaded::from_toml(text).map(|loaded| loaded.settings)
    }

    /// Returns the settings with all defaults, for the deployment with the connection string `uri`.
    ///
    /// # Errors
    /// The problem of `uri`.
    pub fn default_for(uri: &str) -> Result<Self, Problems> {
        load(&Sources {
            overrides: Overrides {
                deployment: Some(Secret::new(uri.to_owned())),
                ..Overrides::default()
            },
            ..Sources::default()
        })
    }
}

/// Checks each source alone, then reads the merged result. `file` is `None` if the file could not
/// be read. In this case the other sources are still checked, but no key is reported as missing.
fn merge_and_convert(
    file: Option<Table>,
    sources: &Sources,
    mut problems: Problems,
) -> Result<Loaded, Problems> {
    let file = file.map(|table| check::table(table, Origin::File, &mut problems));
    let environment = environment::table(&sources.environment, &mut problems);
    let mut environment = check::table(environment, Origin::Environment, &mut problems);
    let flags = check::table(
        sources.overrides.table(),
        Origin::CommandLine,
        &mut problems,
    );
    let Some(mut merged) = file else {
        return Err(problems);
    };
    overrides::override_with(&mut merged, environment.clone());
    overrides::override_with(&mut merged, flags.clone());
    let standard = standard_variables::table(&sources.environment, &merged, &mut problems);
    overrides::override_with(&mut merged, standard.clone());
    overrides::override_with(&mut environment, standard);

    let mut part = Part::file(&merged, &mut problems);
    let settings = Settings::read(&mut part);
    let user_count = part.below("auth").tables("users").len();
    if let Some(settings) = &settings {
        relations::check(settings, user_count, &mut problems);
    }
    match settings {
        Some(settings) if problems.is_empty() => Ok(Loaded {
            settings,
            values: Layers {
                merged: &merged,
                environment: &environment,
                command_line: &flags,
            }
            .values(),
        }),
        _ => Err(problems),
    }
}

fn read_table(path: &Path, problems: &mut Problems) -> Option<Table> {
    match read_bounded(path, MAX_FILE_BYTES) {
        Ok(text) => parse_table(&path.display().to_string(), &text, problems),
        Err(error) => {
            problems.add(Problem::without_value(
                &path.display().to_string(),
                &format!("must be a readable configuration file: {error}"),
            ));
            None
        }
    }
}

fn parse_table(name: &str, text: &str, problems: &mut Problems) -> Option<Table> {
    match text.parse() {
        Ok(table) => Some(table),
        Err(error) => {
            problems.add(Problem::syntax(name, text, &error));
            None
        }
    }
}
