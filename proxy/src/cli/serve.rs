//! `seawall serve`: runs the proxy until a signal or a drain request.

use std::io::{self, IsTerminal as _};

use rustix::process::{Resource, Rlimit, setrlimit};
use seawall_config::{LogFormat, Problem, Problems, Settings};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{ConfigArguments, check};
use crate::app::{App, StartError};
use seawall_console::{Exit, complain};

/// Environment variable that overrides the log level, with the syntax of `tracing`'s filters.
const LOG_VARIABLE: &str = "SEAWALL_LOG";

pub(super) async fn run(arguments: ConfigArguments) -> Exit {
    let settings = match arguments.load() {
        Ok(settings) => settings,
        Err(problems) => return complain(&with_hint(&problems), Exit::Usage),
    };
    // `App::start` would report only the first problem.
    let problems = check::problems(&settings).await;
    if !problems.is_empty() {
        return complain(&problems.join("\n"), Exit::Usage);
    }
    init_log(&settings);
    if !settings.runtime.core_dumps
        && let Err(error) = forbid_core_dumps()
    {
        return complain(&format!("runtime.core_dumps: {error}"), Exit::Internal);
    }
    let (terminate, interrupt) = match (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => {
            return complain(&format!("signals: {error}"), Exit::Internal);
        }
    };
    let app = match App::start(settings).await {
        Ok(app) => app,
        Err(error) => return complain(&error.to_string(), exit_of(&error)),
    };
    tracing::info!(
        clients = app.client_addresses().join(", "),
        admin = app.admin_address().unwrap_or("off"),
        "serving"
    );
    serve_until_signal(&app, terminate, interrupt).await
}

/// The problems, and how to try Seawall if the deployment is missing.
fn with_hint(problems: &Problems) -> String {
    let is_missing =
        |problem: &Problem| problem.key == "deployment.uri" && problem.value.is_empty();
    let hint = if problems.iter().any(is_missing) {
        "\nto try Seawall with a mongod of its own, run: seawall demo"
    } else {
        ""
    };
    format!("{problems}{hint}")
}

/// Disables core dumps and debugger access. The memory of the process holds keys of users; other
/// processes of the same operating-system user must not read them.
fn forbid_core_dumps() -> io::Result<()> {
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Core, none)?;
    #[cfg(target_os = "linux")]
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    Ok(())
}

async fn serve_until_signal(app: &App, mut terminate: Signal, mut interrupt: Signal) -> Exit {
    let exit = tokio::select! {
        _ = terminate.recv() => Exit::Success,
        _ = interrupt.recv() => Exit::Interrupted,
        () = app.drain_requested() => Exit::Success,
    };
    tracing::info!("draining");
    let drained = app
        .drain(async {
            // An interrupt comes from a person at a terminal, who does not want to wait for a
            // drain.
            if exit != Exit::Interrupted {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
            }
        })
        .await;
    tracing::info!(closed_clients = drained.closed_clients, "drained");
    exit
}

pub(super) fn exit_of(error: &StartError) -> Exit {
    match error {
        error if error.blames_configuration() => Exit::Usage,
        StartError::Bind { .. } => Exit::Unavailable,
        _ => Exit::Internal,
    }
}

fn init_log(settings: &Settings) {
    let filter = EnvFilter::builder()
        .with_env_var(LOG_VARIABLE)
        .try_from_env()
        .unwrap_or_else(|_| EnvFilter::new(settings.log.level.name()));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match settings.log.format {
        // The log library obeys `NO_COLOR`, but it would write colours to files too.
        LogFormat::Text if io::stderr().is_terminal() => log.with_target(false).init(),
        LogFormat::Text => log.with_target(false).with_ansi(false).init(),
        LogFormat::Json => log.json().init(),
    }
}
