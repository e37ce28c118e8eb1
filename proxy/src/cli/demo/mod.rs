//! `seawall demo`: demonstrates Seawall on a machine without any server installed.
//!
//! ```text
//!  find or fetch a mongod ─► start it, two users ─► Seawall in front of it, with defaults
//!         ─► traffic of the official driver ─► a burst of short connections ─► report
//!         ─► light traffic until Ctrl-C
//! ```
//!
//! Invariant: everything that is started belongs to the one future that [`run`] polls. If that
//! future completes or fails, or if Ctrl-C interrupts it, the mongod is stopped and its data is
//! removed before the process exits. A downloaded mongod stays in the cache for the next run.

mod burst;
mod deployment;
mod report;
mod traffic;

use std::{error::Error, fmt::Write as _, path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use mongodb::options::ClientOptions;
use seawall_config::{Loaded, Problems};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep, timeout},
};

use self::{deployment::Deployment, report::Figures, traffic::SentCommands};
use super::serve::exit_of;
use crate::app::{App, StartError};
use seawall_console::{Exit, complain, print_line, say};
use seawall_mongod::{Progress, find_or_fetch};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Exit after the report instead of serving until Ctrl-C.
    #[arg(long)]
    once: bool,
}

/// The reason why the demonstration failed.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("could not start the mongod of the demonstration")]
    Mongod(#[from] seawall_mongod::Error),
    #[error("the demonstration's settings are invalid: {0}")]
    Settings(Problems),
    #[error("could not start Seawall: {0}")]
    Start(StartError),
    #[error("Seawall did not discover the mongod within {} s", .0.as_secs())]
    NotSeen(Duration),
    #[error("the driver failed")]
    Driver(#[from] mongodb::error::Error),
    #[error("a cursor returned {found} documents instead of {expected}")]
    CursorCutShort { expected: usize, found: usize },
    #[error("a task of the burst failed")]
    Task(#[from] tokio::task::JoinError),
}

impl DemoError {
    fn exit(&self) -> Exit {
        match self {
            Self::Mongod(_) => Exit::Unavailable,
            Self::Start(error) => exit_of(error),
            Self::Settings(_)
            | Self::NotSeen(_)
            | Self::Driver(_)
            | Self::CursorCutShort { .. }
            | Self::Task(_) => Exit::Internal,
        }
    }
}

pub(super) async fn run(arguments: Arguments) -> Exit {
    let (mut interrupt, mut terminate) = match (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) {
        (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
        (Err(error), _) | (_, Err(error)) => {
            return complain(&format!("cannot handle signals: {error}"), Exit::Internal);
        }
    };
    let result = tokio::select! {
        result = Box::pin(demonstrate(arguments.once)) => result,
        _ = interrupt.recv() => Ok(Exit::Interrupted),
        _ = terminate.recv() => Ok(Exit::Interrupted),
    };
    // The future has been dropped, so the mongod is stopped and its data is removed.
    match result {
        Ok(exit) => {
            say("\nStopped. The mongod of this demonstration has ended, and its data is removed.");
            exit
        }
        Err(failure) => complain(&with_causes(&failure), failure.exit()),
    }
}

async fn demonstrate(once: bool) -> Result<Exit, DemoError> {
    let program = find_mongod().await?;
    // Variables are dropped in the reverse order of their declaration, so Seawall stops before the
    // mongod.
    let deployment = Deployment::start(&program).await?;
    let app = start_seawall(&deployment).await?;

    say("\nSending traffic of the official Rust driver through Seawall ...");
    let sent = Arc::new(SentCommands::default());
    let options = client_options(&app, &deployment).await?;
    traffic::drive(traffic::counted(&options, &sent)).await?;
    let straight = burst::measure(&deployment, &deployment.user_options().await?).await?;
    say(&report::burst_line("directly to mongod", &straight));
    let through = traffic::counted(&options, &sent);
    let through = burst::measure(&deployment, &through).await?;
    say(&report::burst_line("through Seawall", &through));

    let figures = settled_figures(&app, &sent).await;
    let tables = [
        report::shapes(&figures),
        report::connections(&figures, &straight, &through),
        report::comparison(&figures),
    ];
    let printed = print_line(&tables.concat().join("\n"));
    if printed != Exit::Success {
        return Ok(printed);
    }
    if !figures.agree() {
        return Ok(complain(
            "the counts of driver and Seawall differ",
            Exit::Internal,
        ));
    }
    if !once {
        say(&report::where_to_look(&app, &deployment).join("\n"));
        tokio::select! {
            () = app.drain_requested() => {}
            ended = traffic::keep_going(&options) => ended?,
        }
    }
    Ok(Exit::Success)
}

async fn find_mongod() -> Result<PathBuf, DemoError> {
    let mut reported_bytes = None;
    let path = find_or_fetch(|progress| match progress {
        Progress::Found { path } => say(&format!("Using {}.", path.display())),
        Progress::Downloading { received_bytes } => {
            let is_due =
                reported_bytes.is_none_or(|reported| received_bytes >= reported + PROGRESS_BYTES);
            if is_due {
                reported_bytes = Some(received_bytes);
                let megabytes = received_bytes / 1_000_000;
                say(&format!(
                    "No mongod is installed; downloading one, about 55 MB: {megabytes} MB so far"
                ));
            }
        }
        Progress::Unpacking => say("Unpacking ..."),
        Progress::Ready { path } => say(&format!(
            "The mongod is kept for the next run: {}",
            path.display()
        )),
    });
    Ok(path.await?)
}

async fn start_seawall(deployment: &Deployment) -> Result<App, DemoError> {
    let toml = format!(
        "deployment.uri = {:?}\nlisten.address = \"127.0.0.1:0\"\nadmin.address = \"127.0.0.1:0\"\n",
        deployment.uri()
    );
    let loaded = Loaded::from_toml(&toml).map_err(DemoError::Settings)?;
    let app = App::start(loaded).await.map_err(DemoError::Start)?;
    let mut topology = app.topology().subscribe();
    let is_seen = topology.wait_for(|snapshot| snapshot.description.is_available());
    if !matches!(timeout(SEEN_LIMIT, is_seen).await, Ok(Ok(_))) {
        return Err(DemoError::NotSeen(SEEN_LIMIT));
    }
    say(&format!(
        "Seawall listens on {}; all its settings except addresses have their default values.",
        address_of(&app)
    ));
    Ok(app)
}

/// The address for clients. The demonstration has only one such address, on a free loopback port.
fn address_of(app: &App) -> &str {
    app.client_addresses()
        .first()
        .map_or("nowhere", String::as_str)
}

async fn client_options(app: &App, deployment: &Deployment) -> Result<ClientOptions, DemoError> {
    let mut options = ClientOptions::parse(format!("mongodb://{}/", address_of(app))).await?;
    options.credential = Some(deployment.user());
    options.app_name = Some("seawall-demo".to_owned());
    Ok(options)
}

/// Returns the counts of driver and Seawall as soon as they agree, or after [`SETTLE_LIMIT`]. They
/// may differ for a moment, because a client receives its reply shortly before Seawall counts the
/// operation.
async fn settled_figures(app: &App, sent: &SentCommands) -> Figures {
    let deadline = Instant::now() + SETTLE_LIMIT;
    loop {
        let figures = Figures::take(app.totals(), sent.counts());
        if figures.agree() || Instant::now() >= deadline {
            return figures;
        }
        sleep(SETTLE_INTERVAL).await;
    }
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        write!(text, ": {error}").expect("writing to a String cannot fail");
        cause = error.source();
    }
    text
}

/// Number of downloaded bytes after which the demonstration prints the progress of the download
/// again.
const PROGRESS_BYTES: u64 = 10_000_000;
/// Time limit for Seawall to discover the mongod. The mongod is already up, so one probe is enough.
const SEEN_LIMIT: Duration = Duration::from_secs(20);
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);
