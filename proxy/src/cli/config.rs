//! `seawall config`: describes the format of the configuration file.

use clap::Subcommand;
use seawall_config::json_schema;

use seawall_console::{Exit, say};

#[derive(Debug, Subcommand)]
pub(super) enum Config {
    /// Print the JSON schema of the configuration file, for editors.
    Schema,
}

pub(super) fn run(config: &Config) -> Exit {
    match config {
        Config::Schema => say(&format!("{:#}", json_schema())),
    }
    Exit::Success
}
