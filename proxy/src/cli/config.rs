//! `seawall config`: shows the configuration of a running proxy, or describes the format of the
//! configuration file.

use clap::{Args, Subcommand};
use seawall_config::json_schema;

use seawall_console::{Exit, control, print_line};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Option<ConfigCommand>,
    #[command(flatten)]
    show: control::Show,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the JSON schema of the configuration file, for editors.
    Schema,
}

pub(super) async fn run(arguments: Arguments) -> Exit {
    match arguments.command {
        Some(ConfigCommand::Schema) => print_line(&format!("{:#}", json_schema())),
        None => control::config(arguments.show).await,
    }
}
