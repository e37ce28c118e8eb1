//! `seawall top`: a live view of a running proxy. If standard output is not a terminal, it prints
//! one table.

mod choice;
mod detail;
mod histogram;
mod keys;
mod model;
pub(super) mod panes;
mod plain;
mod rows;
mod view;

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use clap::Args;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use ratatui::DefaultTerminal;
use serde::de::DeserializeOwned;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use self::{
    choice::{Choice, Since, Sort},
    keys::Outcome,
    model::{Answers, Model, Wanted},
};
use crate::{
    admin_client::{self, Endpoint},
    exit::{Exit, complain, say},
};
use seawall_api::{AdminClient, ClientError};

/// The refresh interval.
const REFRESH: Duration = Duration::from_secs(1);

/// The arguments of `seawall top`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    admin: Endpoint,
    /// Initial period of the figures, counted back from now.
    #[arg(long, value_enum, default_value_t)]
    since: Since,
    /// Initial sort key of the shapes.
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Print one table and exit; the default if standard output is not a terminal.
    #[arg(long)]
    once: bool,
}

/// Shows the figures of a running proxy until the user quits.
pub async fn run(arguments: Arguments) -> Exit {
    let client = match arguments.admin.client() {
        Ok(client) => client,
        Err(error) => return complain(&error.to_string(), Exit::Usage),
    };
    let choice = Choice {
        since: arguments.since,
        sort: arguments.sort,
        ..Choice::default()
    };
    let mut model = Model::new(client.address(), choice);
    let started = Instant::now();
    // If the proxy cannot be reached, this error is reported before the view covers the terminal.
    match client.ask("/api/v1/status").await {
        Ok(status) => model.status = Some(status),
        Err(error) => {
            return complain(&admin_client::message(&error), admin_client::exit(&error));
        }
    }
    model.take(ask_all(&client, model.wanted()).await, started.elapsed());
    if arguments.once || !io::stdout().is_terminal() {
        return print_once(&model);
    }
    match watch(&client, &mut model, started).await {
        Ok(exit) => exit,
        Err(error) => complain(&format!("the terminal: {error}"), Exit::Unavailable),
    }
}

fn print_once(model: &Model) -> Exit {
    if let Some(error) = &model.error {
        return complain(error, Exit::Unavailable);
    }
    plain::lines(model).iter().for_each(|line| say(line));
    Exit::Success
}

/// Restores the terminal when dropped. A panic also restores the terminal, before the panic message
/// is printed.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // An error means that the terminal is closed; then nothing needs to be restored.
        drop(ratatui::try_restore());
    }
}

async fn watch(client: &AdminClient, model: &mut Model, started: Instant) -> io::Result<Exit> {
    let mut signals = StopSignals::new()?;
    let guard = TerminalGuard;
    let mut terminal = ratatui::try_init()?;
    let outcome = show(client, model, started, &mut terminal, &mut signals).await;
    drop(guard);
    outcome
}

/// Draws the view, sends requests and handles keys until the user quits or a signal arrives.
async fn show(
    client: &AdminClient,
    model: &mut Model,
    started: Instant,
    terminal: &mut DefaultTerminal,
    signals: &mut StopSignals,
) -> io::Result<Exit> {
    let mut keys = EventStream::new();
    let mut ticks = ticks();
    let mut asked = JoinSet::new();
    loop {
        terminal.draw(|frame| view::draw(frame, model))?;
        tokio::select! {
            key = keys.next() => match key {
                Some(Ok(Event::Key(key))) => match keys::press(model, key) {
                    Outcome::Shown => {}
                    Outcome::Ask => {
                        // The pending requests belong to the previous choice of the user.
                        asked.abort_all();
                        begin(&mut asked, client, model);
                    }
                    Outcome::Quit => return Ok(Exit::Success),
                    Outcome::Interrupted => return Ok(Exit::Interrupted),
                },
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(Exit::Success),
            },
            Some(answers) = asked.join_next() => match answers {
                Ok((wanted, answers)) if wanted == model.wanted() => {
                    model.take(answers, started.elapsed());
                }
                Err(error) if error.is_panic() => return Err(io::Error::other(error)),
                Ok(_) | Err(_) => {}
            },
            _ = ticks.tick(), if !model.choice.is_paused && asked.is_empty() => {
                begin(&mut asked, client, model);
            }
            () = signals.received() => return Ok(Exit::Interrupted),
        }
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(REFRESH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn begin(asked: &mut JoinSet<(Wanted, Answers)>, client: &AdminClient, model: &Model) {
    let (client, wanted) = (client.clone(), model.wanted());
    asked.spawn(async move {
        let answers = ask_all(&client, wanted.clone()).await;
        (wanted, answers)
    });
}

/// Requests everything that is shown, one after another over one connection.
async fn ask_all(client: &AdminClient, wanted: Wanted) -> Answers {
    let mut answers = Answers::default();
    let error = &mut answers.error;
    answers.status = ask(client, "/api/v1/status", error).await;
    // If the request for the status fails, the proxy cannot be reached, and the other requests
    // would fail too.
    if answers.status.is_none() {
        return answers;
    }
    answers.shapes = ask(client, &wanted.shapes, error).await;
    answers.storms = ask(client, "/api/v1/storms", error).await;
    if wanted.stalls {
        answers.stalls = ask(client, "/api/v1/stalls", error).await;
    }
    if let Some(path) = &wanted.shape {
        answers.shape = ask(client, path, error).await;
    }
    if let Some(path) = &wanted.changes {
        answers.changes = ask(client, path, error).await;
    }
    if wanted.pools {
        answers.pools = ask(client, "/api/v1/pools", error).await;
    }
    answers
}

/// Sends one request. `first_error` keeps the first error of all requests.
async fn ask<T: DeserializeOwned>(
    client: &AdminClient,
    path: &str,
    first_error: &mut Option<String>,
) -> Option<T> {
    let answer: Result<T, ClientError> = client.ask(path).await;
    answer
        .map_err(|error| first_error.get_or_insert(admin_client::message(&error)))
        .ok()
}

/// The signals that stop the program: SIGTERM and SIGHUP.
struct StopSignals([Signal; 2]);

impl StopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the first signal. Cancel safe.
    async fn received(&mut self) {
        let Self([terminate, hangup]) = self;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
