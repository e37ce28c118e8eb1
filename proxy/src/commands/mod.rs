//! The command line: one file a subcommand, and what their outcomes mean to a shell.

mod admin_client;
mod answers;
mod check;
mod demo;
mod figures;
mod load;
mod report;
mod serve;
mod top;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use seawall_config::{Overrides, Problems, Secret, Settings, Sources};
use tokio::runtime::Builder;

/// A transparent MongoDB wire-protocol proxy.
#[derive(Debug, Parser)]
#[command(name = "seawall", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy.
    Serve(ConfigArguments),
    /// Show Seawall at work in front of a private mongod, with nothing installed before.
    Demo(demo::Arguments),
    /// Validate a configuration and print every problem in it.
    Check(check::Arguments),
    /// Put an endpoint under load, in a storm or steadily.
    #[command(subcommand)]
    Load(load::Load),
    /// Watch a running proxy in the terminal.
    Top(top::Arguments),
    /// Tell a period as a document, or what changed between two.
    Report(report::Arguments),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Where settings come from; what is given here overrides the environment, and that the file.
#[derive(Clone, Debug, Args)]
struct ConfigArguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where clients connect to: HOST:PORT or unix:PATH; may be repeated.
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// The deployment's connection string.
    #[arg(long, value_name = "URI")]
    deployment: Option<String>,
    /// Where metrics and the API are served, or "off".
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

impl ConfigArguments {
    fn load(self) -> Result<Settings, Problems> {
        seawall_config::load(&Sources {
            file: self.config,
            environment: std::env::vars().collect(),
            overrides: Overrides {
                listen: self.listen,
                deployment: self.deployment.map(Secret::new),
                admin: self.admin,
            },
        })
    }
}

/// What the shell is told; numbers of `sysexits.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All went well.
    Success,
    /// Usage or configuration.
    Usage,
    /// Something needed is unavailable.
    Unavailable,
    /// Our own fault.
    Internal,
    /// A load's objectives were missed.
    Missed,
    /// Interrupted.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Success => 0,
            Exit::Usage => 64,
            Exit::Unavailable => 69,
            Exit::Internal => 70,
            Exit::Missed => 1,
            Exit::Interrupted => 130,
        })
    }
}

/// Runs a parsed command line.
pub fn run(cli: Cli) -> Exit {
    let runtime = match Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("starting: {error}"), Exit::Internal),
    };
    match cli.command {
        Command::Serve(arguments) => runtime.block_on(serve::run(arguments)),
        Command::Demo(arguments) => runtime.block_on(demo::run(arguments)),
        Command::Check(arguments) => runtime.block_on(check::run(arguments)),
        Command::Load(load) => runtime.block_on(load::run(load)),
        Command::Top(arguments) => runtime.block_on(top::run(arguments)),
        Command::Report(arguments) => runtime.block_on(report::run(arguments)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "seawall", &mut io::stdout());
            Exit::Success
        }
    }
}

/// Says what went wrong on standard error.
fn complain(message: &str, exit: Exit) -> Exit {
    // With standard error gone there is nobody left to tell.
    drop(writeln!(io::stderr().lock(), "seawall: {message}"));
    exit
}

/// Prints a line on standard output.
fn say(line: &str) {
    // A reader that closed the pipe has seen what it wanted.
    drop(writeln!(io::stdout().lock(), "{line}"));
}
