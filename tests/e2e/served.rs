//! A running `seawall serve` with a configuration file that tests can replace.

use std::{fs, path::PathBuf, time::Duration};

use seawall_api::{AdminClient, Configuration, ConfigurationValue};
use seawall_tests::{
    eventually::eventually, mongod::shared_standalone, process::Process, scratch::Scratch,
};

const LIMIT: Duration = Duration::from_secs(60);

/// A running process with a configuration file that tests can replace.
pub(crate) struct Served {
    pub(crate) process: Process,
    pub(crate) scratch: Scratch,
    pub(crate) file: PathBuf,
    /// The part of the configuration that this fixture sets.
    pub(crate) base: String,
}

impl Served {
    /// Starts Seawall with the base configuration and `toml`.
    pub(crate) async fn start(toml: &str) -> Self {
        Self::launch(&[], toml).await
    }

    /// Like [`Self::start`], but the program and the arguments in `launcher` start Seawall.
    pub(crate) async fn launch(launcher: &[&str], toml: &str) -> Self {
        let server = shared_standalone().await.unwrap();
        let base = format!(
            "listen.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\ndeployment.uri = {:?}\n",
            server.uri()
        );
        let scratch = Scratch::create().unwrap();
        let file = scratch
            .write("seawall.toml", format!("{base}{toml}"))
            .unwrap();
        let process = match launcher {
            [] => Process::serve(&file).await,
            launcher => Process::launch(launcher, &file).await,
        };
        Self {
            process,
            scratch,
            file,
            base,
        }
    }

    /// Overwrites the configuration file with the base configuration and `toml`.
    pub(crate) fn write(&self, toml: &str) {
        fs::write(&self.file, format!("{}{toml}", self.base)).unwrap();
    }

    pub(crate) fn admin(&self) -> AdminClient {
        AdminClient::new(self.process.admin(), None, None).unwrap()
    }

    pub(crate) async fn value(&self, key: &str) -> String {
        described_value(self.process.admin(), key).await.value
    }

    /// Waits until the process reports this value for the key.
    pub(crate) async fn has(&self, key: &str, value: &str) {
        let is_set = async || self.value(key).await == value;
        eventually(LIMIT, is_set).await.unwrap();
    }
}

/// The value of a key, as the process with this admin address reports it.
pub(crate) async fn described_value(admin: &str, key: &str) -> ConfigurationValue {
    let admin = AdminClient::new(admin, None, None).unwrap();
    let configuration: Configuration = admin.ask("/api/v1/config").await.unwrap();
    let mut values = configuration.values.into_iter();
    values.find(|value| value.key == key).unwrap()
}
