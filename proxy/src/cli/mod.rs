//! The command line. Subcommands that only call the API of a running proxy, and `seawall report`,
//! are in the crate `seawall-console`. All others are in this folder.

mod check;
mod config;
mod convert;
mod copy;
mod demo;
mod load;
mod log_filter;
mod redaction;
mod replay;
mod serve;
mod values;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use seawall_config::{Overrides, Problems, Secret, Settings, Sources};
use seawall_console::{Exit, capture, complain, control, print, report, top};
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
    Serve(serve::Arguments),
    /// Run a demonstration of Seawall with a private mongod. No installed server is needed.
    Demo(demo::Arguments),
    /// Validate a configuration and print every problem in it.
    Check(check::Arguments),
    /// Show the configuration of a running proxy, or describe the configuration file.
    Config(config::Arguments),
    /// Show the state of a running proxy.
    Status(control::Show),
    /// Show a running proxy's connections to each server.
    Pools(control::Show),
    /// List the clients of a running proxy.
    Clients(control::ShowClients),
    /// Make a running proxy read its configuration again.
    Reload(control::ReloadArguments),
    /// Start a drain of a running proxy, and return at once.
    Drain(control::Drain),
    /// Start a drain of a running proxy, and wait until the drain has ended and the admin address
    /// is closed. The process ends shortly afterwards.
    Shutdown(control::Wait),
    /// Wait until a proxy can serve operations.
    Wait(control::Wait),
    /// Check that a proxy runs, or that it can serve operations.
    Health(control::Health),
    /// Capture the traffic of clients of a running proxy, to replay it later.
    Capture(capture::Arguments),
    /// Put an endpoint under load: a storm, a steady load or a replay of captured traffic. Also
    /// convert captures, and copy collections with pseudonyms instead of values.
    #[command(subcommand)]
    Load(load::Load),
    /// Watch a running proxy in the terminal.
    Top(top::Arguments),
    /// Write a report for a time range, or compare two reports.
    Report(report::Arguments),
    /// Print the completion script for a shell.
    Completions {
        /// The shell to print completions for.
        shell: Shell,
    },
}

/// The sources of settings. Arguments override the environment, and the environment overrides the
/// file.
#[derive(Clone, Debug, Args)]
struct ConfigArguments {
    /// The configuration file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address for clients: HOST:PORT or unix:PATH; may be repeated.
    #[arg(long, value_name = "ADDR")]
    listen: Vec<String>,
    /// The deployment's connection string.
    #[arg(long, value_name = "URI")]
    deployment: Option<String>,
    /// The address for metrics and the API: HOST:PORT or "off".
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
}

impl ConfigArguments {
    fn sources(self) -> Sources {
        Sources {
            file: self.config,
            environment: environment(),
            overrides: Overrides {
                listen: self.listen,
                deployment: self.deployment.map(Secret::new),
                admin: self.admin,
            },
        }
    }

    fn load(self) -> Result<Settings, Problems> {
        seawall_config::load(&self.sources())
    }
}

/// The environment variables. Bytes that are not UTF-8 become the replacement character U+FFFD. If
/// the value of a variable of Seawall contains this character, the configuration is invalid.
fn environment() -> Vec<(String, String)> {
    let lossy = |text: OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os();
    variables
        .map(|(name, value)| (lossy(name), lossy(value)))
        .collect()
}

/// Runs a parsed command line.
pub fn run(cli: Cli) -> Exit {
    let runtime = match Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start: {error}"), Exit::Internal),
    };
    let exit = match cli.command {
        Command::Serve(arguments) => runtime.block_on(serve::run(arguments)),
        Command::Demo(arguments) => runtime.block_on(demo::run(arguments)),
        Command::Check(arguments) => runtime.block_on(check::run(arguments)),
        Command::Config(arguments) => runtime.block_on(config::run(arguments)),
        Command::Status(arguments) => runtime.block_on(control::status(arguments)),
        Command::Pools(arguments) => runtime.block_on(control::pools(arguments)),
        Command::Clients(arguments) => runtime.block_on(control::clients(arguments)),
        Command::Reload(arguments) => runtime.block_on(control::reload(arguments)),
        Command::Drain(arguments) => runtime.block_on(control::drain(arguments)),
        Command::Shutdown(arguments) => runtime.block_on(control::shutdown(arguments)),
        Command::Wait(arguments) => runtime.block_on(control::wait(arguments)),
        Command::Health(arguments) => runtime.block_on(control::health(arguments)),
        Command::Capture(arguments) => runtime.block_on(capture::run(arguments)),
        Command::Load(load) => runtime.block_on(load::run(load)),
        Command::Top(arguments) => runtime.block_on(top::run(arguments)),
        Command::Report(arguments) => runtime.block_on(report::run(arguments)),
        Command::Completions { shell } => completions(shell),
    };
    // Limit the wait, because a thread that reads a file may hang.
    runtime.shutdown_timeout(EXIT_LIMIT);
    exit
}

fn completions(shell: Shell) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "seawall", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Maximum time for which an exit waits for threads that read or write files. Such a thread may
/// hang.
const EXIT_LIMIT: Duration = Duration::from_secs(1);
