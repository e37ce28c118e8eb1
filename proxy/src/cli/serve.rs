//! `seawall serve`: runs the proxy until a signal or a drain request.

mod log;
mod reload;
mod service_manager;

use std::{io, sync::Arc};

use clap::Args;
use rustix::process::{Resource, Rlimit, geteuid, setrlimit};
use seawall_config::{AdminAddress, Problem, Problems, load_with_values};
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    log::LogControl,
    reload::Reloader,
    service_manager::{feed_watchdog, inherited_sockets, notify_ready, notify_stopping},
};
use super::{ConfigArguments, check, log_filter};
use crate::{
    app::{App, StartError},
    runtime::Action,
};
use seawall_console::{Exit, complain};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    config: ConfigArguments,
    /// Allow Seawall to run as root. An error in Seawall could then harm the whole machine.
    #[arg(long)]
    allow_root: bool,
}

pub(super) async fn run(arguments: Arguments) -> Exit {
    let sources = arguments.config.sources();
    let loaded = match load_with_values(&sources) {
        Ok(loaded) => loaded,
        Err(problems) => return complain(&with_hint(&problems), Exit::Usage),
    };
    // If the first process of a container does not handle SIGTERM, the kernel ignores the signal.
    // So Seawall handles signals before it waits for DNS.
    let mut signals = match Signals::new() {
        Ok(signals) => signals,
        Err(error) => {
            return complain(&format!("cannot handle signals: {error}"), Exit::Internal);
        }
    };
    // Report all problems here, because `App::start_on` would report only the first problem.
    let checked = tokio::select! {
        checked = check::valid_deployment(&loaded.settings) => checked,
        signal = signals.stop.received() => return signal.exit(),
    };
    let deployment = match checked {
        Ok(deployment) => deployment,
        Err(problems) => return complain(&problems.join("\n"), Exit::Usage),
    };
    if geteuid().is_root() && !arguments.allow_root {
        let refusal = "refusing to run as root: start Seawall as another user, or use --allow-root";
        return complain(refusal, Exit::Usage);
    }
    let filter = match log_filter::variable() {
        Ok(filter) => filter,
        Err(problem) => return complain(&problem, Exit::Usage),
    };
    let (log, _flush_at_exit) = LogControl::init(&loaded.settings.log, filter.clone());
    if !loaded.settings.runtime.core_dumps
        && let Err(error) = forbid_core_dumps()
    {
        let message = format!("runtime.core_dumps: cannot disable core dumps: {error}");
        return complain(&message, Exit::Internal);
    }
    let inherited = match inherited_sockets() {
        Ok(inherited) => inherited,
        Err(error) => {
            let message = format!("cannot use the sockets of the service manager: {error}");
            return complain(&message, Exit::Unavailable);
        }
    };
    let app = match App::start_on(loaded.clone(), deployment, inherited).await {
        Ok(app) => app,
        Err(error) => return complain(&error.to_string(), exit_of(&error)),
    };
    if let Err(error) = feed_watchdog(&app) {
        return complain(
            &format!("cannot start the watchdog: {error}"),
            Exit::Internal,
        );
    }
    let left_out = log.left_out();
    let left_out = move || u64::try_from(left_out.dropped_lines()).unwrap_or(u64::MAX);
    app.count_log_left_out(Box::new(left_out));
    if let Some(filter) = filter {
        app.set_log_filter(filter);
    }
    let settings = &loaded.settings.admin;
    tracing::info!(
        clients = app.client_addresses().join(", "),
        admin = bound(app.admin_addresses(), &settings.address),
        metrics = bound(app.metrics_addresses(), &settings.metrics_address),
        "serving"
    );
    notify_ready();
    let app = Arc::new(app);
    let reloader = Reloader::new(Arc::clone(&app), sources, loaded, log);
    Box::pin(serve_until_signal(&app, signals, reloader)).await
}

/// The bound addresses of a configured HTTP address as text; `off` if none is configured. If none
/// of them is bound, the text is `not bound`. An earlier log line has the reason: another process
/// uses the address, or this host does not have it.
fn bound(bound: &[String], configured: &AdminAddress) -> String {
    match configured {
        AdminAddress::Off => "off".to_owned(),
        AdminAddress::Tcp(_) if bound.is_empty() => "not bound".to_owned(),
        AdminAddress::Tcp(_) => bound.join(", "),
    }
}

/// The signals to which Seawall reacts.
struct Signals {
    stop: StopSignals,
    hang_up: Signal,
}

/// The signals that stop Seawall.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// A signal that stops Seawall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopSignal {
    Terminate,
    Interrupt,
}

impl StopSignal {
    fn exit(self) -> Exit {
        match self {
            Self::Terminate => Exit::Success,
            Self::Interrupt => Exit::Interrupted,
        }
    }

    /// Writes a line to the audit log. It is written before the action ends, because Seawall may be
    /// killed during a drain.
    fn audit(self, action: &str) {
        let caller = match self {
            Self::Terminate => "signal SIGTERM",
            Self::Interrupt => "signal SIGINT",
        };
        Action::without_peer(action, caller).begin().end("begun");
    }
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            stop: StopSignals {
                terminate: signal(SignalKind::terminate())?,
                interrupt: signal(SignalKind::interrupt())?,
            },
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

impl StopSignals {
    /// Waits for a signal. Cancel safe.
    async fn received(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.terminate.recv() => StopSignal::Terminate,
            _ = self.interrupt.recv() => StopSignal::Interrupt,
        }
    }
}

/// Formats the problems. If `deployment.uri` is missing, adds a hint on how to try Seawall.
fn with_hint(problems: &Problems) -> String {
    let is_missing =
        |problem: &Problem| problem.key == "deployment.uri" && problem.value.is_empty();
    let hint = if problems.iter().any(is_missing) {
        "\nto try Seawall with a temporary mongod, run: seawall demo"
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

async fn serve_until_signal(app: &App, signals: Signals, reloader: Reloader) -> Exit {
    let Signals { mut stop, hang_up } = signals;
    // Reloads run in a separate task, so that they do not delay the other signals.
    let reloads = tokio::spawn(reloader.serve(hang_up));
    let signal = tokio::select! {
        signal = stop.received() => Some(signal),
        () = app.drain_requested() => None,
    };
    match signal {
        Some(StopSignal::Terminate) => StopSignal::Terminate.audit("drain"),
        Some(StopSignal::Interrupt) => StopSignal::Interrupt.audit("stop"),
        // The request to the API has a line of its own.
        None => {}
    }
    reloads.abort();
    notify_stopping();
    tracing::info!("draining");
    let drained = app
        .drain(async {
            // An interrupt comes from a person at a terminal, who does not want to wait for a
            // drain.
            if signal != Some(StopSignal::Interrupt) {
                stop.received().await.audit("stop");
            }
        })
        .await;
    tracing::info!(closed_clients = drained.closed_clients, "drained");
    signal.map_or(Exit::Success, StopSignal::exit)
}

pub(super) fn exit_of(error: &StartError) -> Exit {
    match error {
        error if error.blames_configuration() => Exit::Usage,
        StartError::Bind { .. } | StartError::History(_) | StartError::SlowLog { .. } => {
            Exit::Unavailable
        }
        _ => Exit::Internal,
    }
}
