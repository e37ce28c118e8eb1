//! `seawall top`: a live view of one or several running proxies. With `--once`, or if standard
//! output is not a terminal, it prints one table and exits.

mod choice;
mod detail;
mod heat;
mod heat_choice;
mod heat_model;
mod heat_view;
mod histogram;
mod keys;
mod merge;
mod model;
pub(super) mod panes;
mod plain;
mod rows;
mod view;

use std::{
    io::{self, IsTerminal},
    time::Duration,
};

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use crossterm::event::{Event, EventStream};
use futures_util::{StreamExt, future::join_all};
use ratatui::DefaultTerminal;
use serde::de::DeserializeOwned;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use self::{
    choice::{Choice, Since},
    heat_choice::Colours,
    keys::Outcome,
    model::{Counted, HeatResponse, Model, Responses, Wanted},
};
use crate::{
    admin_client::{self, InstanceFailure},
    exit::{Exit, complain, print_line},
    fleet::{Endpoints, Fleet},
};
use seawall_api::{
    AdminClient, Annotations, ClientError, Heatmap, Sort, Status, with_distributions,
};

/// Interval at which the view requests new figures, if the previous replies have arrived.
const REFRESH: Duration = Duration::from_secs(1);

/// The arguments of `seawall top`.
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    admin: Endpoints,
    /// Initial period of the figures, counted back from now.
    #[arg(long, value_enum, default_value_t)]
    since: Since,
    /// Initial sort key of the shapes.
    #[arg(long, value_parser = sort_parser(), default_value_t)]
    sort: Sort,
    /// Print one table and exit; the default if standard output is not a terminal.
    #[arg(long)]
    once: bool,
}

fn sort_parser() -> impl TypedValueParser<Value = Sort> {
    PossibleValuesParser::new(Sort::ALL.map(Sort::as_str)).try_map(|sort| sort.parse::<Sort>())
}

/// Shows the figures of running proxies until the user quits, or prints them once.
pub async fn run(arguments: Arguments) -> Exit {
    let fleet = match arguments.admin.fleet() {
        Ok(fleet) => fleet,
        Err(error) => return complain(&error.to_string(), Exit::Usage),
    };
    let choice = Choice {
        since: arguments.since,
        sort: arguments.sort,
        colours: Colours::from_variables(|name| std::env::var(name).ok()),
        ..Choice::default()
    };
    let mut model = Model::new(&fleet.name(), choice);
    let started = Instant::now();
    // The status is requested before the view covers the terminal, so that the user can read the
    // error if no proxy can be reached.
    match first_status(&fleet).await {
        Ok(status) => model.status = Some(status),
        Err(error) => {
            return complain(&admin_client::message(&error), admin_client::exit(&error));
        }
    }
    model.take(ask_all(&fleet, model.wanted(), started).await);
    if arguments.once || !io::stdout().is_terminal() {
        return print_once(&model);
    }
    match watch(&fleet, &mut model, started).await {
        Ok(exit) => exit,
        Err(error) => complain(
            &format!("cannot use the terminal: {error}"),
            Exit::Unavailable,
        ),
    }
}

fn print_once(model: &Model) -> Exit {
    // If the requests to only some of the instances failed, print the figures of the other
    // instances.
    let printed = match model.failure.is_none() || model.has_figures {
        true => print_line(&plain::lines(model).join("\n")),
        false => Exit::Success,
    };
    match &model.failure {
        Some(failure) => complain(&failure.message, failure.exit),
        None => printed,
    }
}

/// Restores the terminal when dropped. If the program panics, `ratatui` restores the terminal
/// before the panic message is printed.
struct TerminalGuard;

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        // Ignore an error: it means that the terminal is closed, so nothing needs to be restored.
        drop(ratatui::try_restore());
    }
}

async fn watch(fleet: &Fleet, model: &mut Model, started: Instant) -> io::Result<Exit> {
    let mut signals = StopSignals::new()?;
    let guard = TerminalGuard;
    let mut terminal = ratatui::try_init()?;
    let outcome = show(fleet, model, started, &mut terminal, &mut signals).await;
    drop(guard);
    outcome
}

/// Draws the view, sends requests and handles keys until the user quits or a signal arrives.
async fn show(
    fleet: &Fleet,
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
                        // Abort the pending requests, because they belong to the previous choice of
                        // the user.
                        asked.abort_all();
                        begin(&mut asked, fleet, model, started);
                    }
                    Outcome::Quit => return Ok(Exit::Success),
                    Outcome::Interrupted => return Ok(Exit::Interrupted),
                },
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(Exit::Success),
            },
            Some(responses) = asked.join_next() => match responses {
                Ok((wanted, responses)) if wanted == model.wanted() => {
                    model.take(responses);
                }
                Err(error) if error.is_panic() => return Err(io::Error::other(error)),
                Ok(_) | Err(_) => {}
            },
            _ = ticks.tick(), if !model.choice.is_paused => match asked.is_empty() {
                true => begin(&mut asked, fleet, model, started),
                false => model.ticks_without_reply += 1,
            },
            () = signals.received() => return Ok(Exit::Interrupted),
        }
    }
}

fn ticks() -> Interval {
    let mut ticks = interval(REFRESH);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

fn begin(asked: &mut JoinSet<(Wanted, Responses)>, fleet: &Fleet, model: &Model, started: Instant) {
    let (fleet, wanted) = (fleet.clone(), model.wanted());
    asked.spawn(async move {
        let responses = ask_all(&fleet, wanted.clone(), started).await;
        (wanted, responses)
    });
}

/// Requests the status of all instances. Returns the status of the first instance in the list that
/// replied. If no instance replied, returns the last error that other arguments can prevent; if
/// there is no such error, the error of the first instance in the list.
async fn first_status(fleet: &Fleet) -> Result<Status, ClientError> {
    let statuses = fleet.clients().iter();
    let statuses = statuses.map(|client| client.ask("/api/v1/status"));
    let mut failed = None;
    for status in join_all(statuses).await {
        match status {
            Ok(status) => return Ok(status),
            Err(error) if admin_client::exit(&error) == Exit::Usage => failed = Some(error),
            Err(error) => drop(failed.get_or_insert(error)),
        }
    }
    Err(failed.expect("there is at least one instance"))
}

/// Requests the data of the current view from all instances at the same time, and merges the
/// replies.
async fn ask_all(fleet: &Fleet, wanted: Wanted, started: Instant) -> Responses {
    match fleet.clients() {
        [client] => ask_one(client, wanted, started, false).await,
        clients => {
            let wanted = Wanted {
                shapes: with_distributions(&wanted.shapes),
                shape: wanted.shape.as_deref().map(with_distributions),
                changes: wanted.changes.as_deref().map(with_distributions),
                ..wanted
            };
            let asked = clients.iter().map(async |client| {
                let responses = ask_one(client, wanted.clone(), started, true).await;
                (client.address(), responses)
            });
            merge::merged(join_all(asked).await)
        }
    }
}

/// Sends the requests of the current view one after another over one connection. If
/// `is_one_of_several` is true, a response with status 404 for the opened shape is not an error,
/// because another instance may know this shape.
async fn ask_one(
    client: &AdminClient,
    wanted: Wanted,
    started: Instant,
    is_one_of_several: bool,
) -> Responses {
    let mut responses = Responses::default();
    let failure = &mut responses.failure;
    responses.status = ask::<Status>(client, "/api/v1/status", failure).await;
    // If the request for the status fails, the proxy cannot be reached, and the other requests
    // would fail too.
    if responses.status.is_none() {
        return responses;
    }
    let at = started.elapsed();
    let counted = responses.status.iter().map(|status| Counted {
        at,
        operations: status.operations.saturating_sub(status.local_operations),
        uptime_seconds: status.uptime_seconds,
    });
    responses.operations = counted
        .map(|counted| (client.address().to_owned(), counted))
        .collect();
    responses.shapes = ask(client, &wanted.shapes, failure).await;
    responses.storms = ask(client, "/api/v1/storms", failure).await;
    if wanted.stalls {
        responses.stalls = ask(client, "/api/v1/stalls", failure).await;
    }
    if let Some(path) = &wanted.shape {
        let shape = client.ask(path).await;
        responses.shape = match shape {
            Err(ClientError::Refused { status: 404, .. }) if is_one_of_several => None,
            shape => known_or(shape, failure),
        };
    }
    if let Some(path) = &wanted.changes {
        responses.changes = ask(client, path, failure).await;
    }
    if wanted.pools {
        responses.pools = ask(client, "/api/v1/pools", failure).await;
    }
    if let Some(path) = wanted.heatmap {
        responses.heatmap = ask_heatmap(client, path, wanted.annotations, failure).await;
    }
    responses
}

/// Requests a heat map and the annotations of its period. A shape or a namespace without operations
/// in the period has no heat map. Then the result is an empty heat map, not an error.
async fn ask_heatmap(
    client: &AdminClient,
    path: String,
    annotations: Option<String>,
    failure: &mut Option<InstanceFailure>,
) -> Option<HeatResponse> {
    let heatmap = client.ask::<Heatmap>(&path).await;
    let heatmap = match heatmap {
        Err(ClientError::Refused { status: 404, .. }) => Heatmap::default(),
        heatmap => known_or(heatmap, failure)?,
    };
    let annotations = match annotations {
        Some(path) => ask::<Annotations>(client, &path, failure).await,
        None => None,
    };
    Some(HeatResponse {
        path,
        heatmap,
        annotations: annotations.unwrap_or_default().annotations,
    })
}

/// Sends one request. If the request fails and `first_failure` is `None`, stores the failure in
/// `first_failure`.
async fn ask<T: DeserializeOwned>(
    client: &AdminClient,
    path: &str,
    first_failure: &mut Option<InstanceFailure>,
) -> Option<T> {
    known_or(client.ask(path).await, first_failure)
}

fn known_or<T>(
    response: Result<T, ClientError>,
    first_failure: &mut Option<InstanceFailure>,
) -> Option<T> {
    response
        .map_err(|error| first_failure.get_or_insert(error.into()))
        .ok()
}

/// The signals that stop the program: SIGINT, SIGTERM and SIGHUP. In the view, Ctrl-C is a key and
/// causes no SIGINT. But another program may send SIGINT.
struct StopSignals([Signal; 3]);

impl StopSignals {
    fn new() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the first signal. Cancel safe.
    async fn received(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;
    use tokio::net::TcpListener;

    use super::*;
    use crate::control::tests::respond;

    #[tokio::test]
    async fn exit_status_is_usage_if_no_instance_replied_and_the_last_one_refused_the_token() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let unreachable = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = [&unreachable, &listener].map(|it| it.local_addr().unwrap().to_string());
        drop(unreachable);
        let command = Arguments::augment_args(clap::Command::new("top"));
        let matches = command.get_matches_from(["top", "--once", "--admin", &addresses.join(",")]);
        let arguments = Arguments::from_arg_matches(&matches).unwrap();
        let response = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n";
        let (exit, ()) = tokio::join!(run(arguments), respond(&listener, response));
        assert_eq!(exit, Exit::Usage);
    }
}
