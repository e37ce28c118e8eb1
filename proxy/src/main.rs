//! The `seawall` binary: parses the arguments, runs the subcommand, returns its exit code.

use std::process::ExitCode;

use clap::Parser;
use seawall::cli::Cli;
use seawall_console::Exit;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Success
            };
            return match error.print() {
                Ok(()) => exit.into(),
                Err(_) => Exit::Internal.into(),
            };
        }
    };
    seawall::cli::run(cli).into()
}
