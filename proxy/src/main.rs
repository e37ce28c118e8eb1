//! The `seawall` binary: parses the arguments, runs the subcommand, returns its exit code.

use std::{io, process::ExitCode};

use clap::Parser;
use seawall::cli::Cli;
use seawall_console::{Exit, complain};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = match error.print() {
                _ if error.use_stderr() => Exit::Usage,
                // Ignore a closed pipe, because its reader needs no more output.
                Err(failed) if failed.kind() != io::ErrorKind::BrokenPipe => complain(
                    &format!("cannot write to standard output: {failed}"),
                    Exit::Unavailable,
                ),
                _ => Exit::Success,
            };
            return exit.into();
        }
    };
    seawall::cli::run(cli).into()
}
