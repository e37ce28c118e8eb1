//! `seawall capture`: starts, watches, stops, lists and deletes captures of a running proxy.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, sleep},
};

use crate::{
    admin_client::{self, Endpoint},
    control::Show,
    exit::{Exit, complain, print_line},
    figures,
};
use seawall_api::{AdminClient, Capture, Captures, ClientError, NewCapture};

/// The path of the captures in the admin API.
const CAPTURES: &str = "/api/v1/captures";

/// The value of `--output` that means standard output.
const STANDARD_OUTPUT: &str = "-";

/// Mode of an output file: only its owner may read it, because captures contain data of the
/// applications.
const FILE_MODE: u32 = 0o600;

/// Time between two checks of a running capture.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum time to wait until a stopped capture has ended.
const END_LIMIT: Duration = Duration::from_secs(10);

/// The arguments of `seawall capture`. Without a subcommand, it starts a capture.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    start: Start,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a capture: the same as without a subcommand.
    Start(Start),
    /// List the running capture and the captures on disk.
    List(Show),
    /// Stop a running capture.
    Stop(OfOne),
    /// Delete a capture that has ended.
    Delete(OfOne),
}

#[derive(Debug, Args)]
struct Start {
    #[command(flatten)]
    admin: Endpoint,
    /// Length of the capture, such as 30s, 10m or 1h.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    duration: Duration,
    /// Share of the clients to capture, above 0 and at most 1.
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    sample: f64,
    /// Capture only clients that use this database or database.collection, from their first
    /// operation on it; may be repeated.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Capture only clients of this user, as database.user; may be repeated.
    #[arg(long, value_name = "USER")]
    user: Vec<String>,
    /// Capture only clients of this application; may be repeated.
    #[arg(long, value_name = "NAME")]
    application: Vec<String>,
    /// The part of each reply to record.
    #[arg(long, value_enum, default_value_t = Replies::Facts)]
    replies: Replies,
    /// Replace all values by pseudonyms, which keep the equality and length of values, or also
    /// their order. Without this option, the configuration decides.
    #[arg(
        long, value_enum, value_name = "MODE", num_args = 0..=1, require_equals = true,
        default_missing_value = "equality"
    )]
    redact: Option<Redact>,
    /// Copy the capture to this file while it runs; "-" for standard output. Ctrl-C stops the
    /// capture, and a second Ctrl-C also ends this command.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Wait until the capture has ended. Ctrl-C stops the capture, and a second Ctrl-C also ends
    /// this command.
    #[arg(long)]
    wait: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Replies {
    /// Only the facts that a comparison needs: errors, counts and the cursor.
    Facts,
    /// Also the whole reply.
    Whole,
}

/// The properties of values that pseudonyms keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Redact {
    /// Type, length and equality.
    Equality,
    /// Also the order of numbers and dates, and equal prefixes of strings; needs
    /// `capture.redact_key_file`.
    Ordered,
}

#[derive(Debug, Args)]
struct OfOne {
    #[command(flatten)]
    admin: Endpoint,
    /// The id of the capture, as `seawall capture list` shows it.
    id: String,
}

/// Runs `seawall capture`.
pub async fn run(arguments: Arguments) -> Exit {
    let ended = match arguments.action {
        None => start(arguments.start).await,
        Some(Action::Start(arguments)) => start(arguments).await,
        Some(Action::List(show)) => Ok(list(&show).await),
        Some(Action::Stop(of)) => stop(&of).await,
        Some(Action::Delete(of)) => delete(&of).await,
    };
    match ended {
        Ok(exit) => exit,
        Err(Failure::Arguments(why)) => complain(&why, Exit::Usage),
        Err(Failure::Io(error)) => complain(&error.to_string(), Exit::Unavailable),
        Err(Failure::Interrupted) => Exit::Interrupted,
        Err(Failure::Client(error)) => {
            complain(&admin_client::message(&error), admin_client::exit(&error))
        }
    }
}

/// The reason why a command failed.
#[derive(Debug)]
enum Failure {
    Arguments(String),
    /// The output cannot be opened or written, or Ctrl-C cannot be handled.
    Io(io::Error),
    Client(ClientError),
    /// Ctrl-C ended the command before its work was complete.
    Interrupted,
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

async fn start(arguments: Start) -> Result<Exit, Failure> {
    let client = client_of(&arguments.admin)?;
    let new = NewCapture {
        applications: arguments.application,
        duration_ms: u64::try_from(arguments.duration.as_millis()).unwrap_or(u64::MAX),
        namespaces: arguments.namespace,
        redact: arguments.redact.map(|mode| match mode {
            Redact::Equality => "equality".to_owned(),
            Redact::Ordered => "ordered".to_owned(),
        }),
        replies: Some(match arguments.replies {
            Replies::Facts => "facts".to_owned(),
            Replies::Whole => "whole".to_owned(),
        }),
        sample: Some(arguments.sample),
        users: arguments.user,
    };
    if arguments.output.is_none() && !arguments.wait {
        let started: Capture = client.post_json(CAPTURES, &new).await?;
        return Ok(print_line(&started.id));
    }
    let mut interrupts = signal(SignalKind::interrupt()).map_err(Failure::Io)?;
    // Open the file first, so that no capture starts if the file cannot be opened.
    let output = arguments.output.as_deref().map(open).transpose();
    let output = output.map_err(Failure::Io)?;
    let is_on_standard_output = arguments.output.as_deref() == Some(Path::new(STANDARD_OUTPUT));
    let started = begin(&client, &new, &mut interrupts).await;
    if started.is_err()
        && !is_on_standard_output
        && let Some(file) = &arguments.output
    {
        // Remove the empty file. Otherwise the same command would be refused, because the file
        // exists already.
        drop(fs::remove_file(file));
    }
    let id = started?.id;
    // Print the id now. If this command fails later, the capture may still run, and the user needs
    // the id to stop it.
    complain(&format!("capture {id} started"), Exit::Success);
    match output {
        Some(mut output) => copy(&client, &id, &mut *output, &mut interrupts).await?,
        None => wait(&client, &id, &mut interrupts).await?,
    }
    let ended = until_interrupted(&mut interrupts, Box::pin(ended(&client, &id))).await?;
    let summary = summary(&ended).join("\n");
    let printed = match is_on_standard_output {
        // The capture was written to standard output, so the summary goes to standard error.
        true => {
            drop(writeln!(io::stderr().lock(), "{summary}"));
            Exit::Success
        }
        false => print_line(&summary),
    };
    Ok(match ended.end.as_deref() {
        Some("duration" | "stopped") => printed,
        _ => Exit::Unavailable,
    })
}

/// Starts a capture. Ctrl-C stops the capture as soon as Seawall has replied that it runs. A second
/// Ctrl-C ends the wait for the reply.
async fn begin(
    client: &AdminClient,
    new: &NewCapture,
    interrupts: &mut Signal,
) -> Result<Capture, Failure> {
    let mut starting = Box::pin(client.post_json::<Capture>(CAPTURES, new));
    tokio::select! {
        started = &mut starting => started.map_err(Failure::Client),
        _ = interrupts.recv() => {
            let stopped = Box::pin(async {
                let started = starting.await?;
                stop_if_running(client, &started.id).await?;
                Ok::<_, ClientError>(started)
            });
            until_interrupted(interrupts, stopped).await
        }
    }
}

/// Copies a running capture to `output` until the capture has ended. Ctrl-C stops the capture; its
/// last bytes are copied too. A second Ctrl-C ends the copy. If the copy fails, the capture is
/// stopped.
async fn copy(
    client: &AdminClient,
    id: &str,
    output: &mut (dyn Write + Send),
    interrupts: &mut Signal,
) -> Result<(), Failure> {
    let path = format!("{CAPTURES}/{id}/content");
    let mut failed = None;
    let mut write = |bytes: &[u8]| match output.write_all(bytes) {
        Ok(()) => true,
        Err(error) => {
            failed = Some(error);
            false
        }
    };
    let copied = {
        let mut copying = Box::pin(client.download(&path, &mut write));
        tokio::select! {
            copied = &mut copying => copied.map_err(Failure::Client),
            _ = interrupts.recv() => {
                let rest = Box::pin(async {
                    stop_if_running(client, id).await?;
                    copying.await
                });
                until_interrupted(interrupts, rest).await
            }
        }
    };
    let flushed = output.flush().err();
    let copied = failed
        .or(flushed)
        .map_or(copied, |error| Err(Failure::Io(error)));
    if let Err(Failure::Io(_) | Failure::Client(_)) = copied {
        // Stop the capture, because nothing reads the rest of the capture.
        let stopping = Box::pin(stop_if_running(client, id));
        drop(until_interrupted(interrupts, stopping).await);
    }
    copied
}

/// Waits until a capture has ended. Ctrl-C stops the capture. A second Ctrl-C ends the wait.
async fn wait(client: &AdminClient, id: &str, interrupts: &mut Signal) -> Result<(), Failure> {
    while find(client, id).await?.running {
        tokio::select! {
            () = sleep(CHECK_INTERVAL) => {}
            _ = interrupts.recv() => {
                let stopping = Box::pin(stop_if_running(client, id));
                return until_interrupted(interrupts, stopping).await;
            }
        }
    }
    Ok(())
}

/// Stops a capture. It is no error if the capture has already ended.
async fn stop_if_running(client: &AdminClient, id: &str) -> Result<(), ClientError> {
    match client.act(&format!("{CAPTURES}/{id}/stop")).await {
        Err(ClientError::Refused { status: 404, .. }) => Ok(()),
        stopped => stopped,
    }
}

/// Runs `work` until it ends or Ctrl-C is pressed. With Ctrl-C, the result is
/// [`Failure::Interrupted`].
async fn until_interrupted<T, E: Into<Failure>>(
    interrupts: &mut Signal,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    tokio::select! {
        done = work => done.map_err(Into::into),
        _ = interrupts.recv() => Err(Failure::Interrupted),
    }
}

/// Waits until a capture has ended, but not longer than `END_LIMIT`. Returns the description of the
/// capture, even if the capture still runs after this time.
async fn ended(client: &AdminClient, id: &str) -> Result<Capture, Failure> {
    let until = Instant::now() + END_LIMIT;
    loop {
        let capture = find(client, id).await?;
        if !capture.running || Instant::now() >= until {
            return Ok(capture);
        }
        sleep(CHECK_INTERVAL).await;
    }
}

async fn find(client: &AdminClient, id: &str) -> Result<Capture, Failure> {
    let captures: Captures = client.ask(CAPTURES).await?;
    let mut captures = captures.captures.into_iter();
    let found = captures.find(|capture| capture.id == id);
    found.ok_or_else(|| Failure::Arguments(format!("capture {id} was deleted")))
}

async fn list(show: &Show) -> Exit {
    let lines = |captures: &Captures| {
        let mut lines = rows(captures);
        if let Some(why) = &captures.unavailable {
            lines.push(format!("no capture can start: {}", figures::printable(why)));
        }
        lines
    };
    show.run(CAPTURES, lines).await
}

async fn stop(of: &OfOne) -> Result<Exit, Failure> {
    let client = client_of(&of.admin)?;
    client.act(&format!("{}/stop", path_of(&of.id))).await?;
    let capture = find(&client, &of.id).await?;
    Ok(print_line(&summary(&capture).join("\n")))
}

async fn delete(of: &OfOne) -> Result<Exit, Failure> {
    client_of(&of.admin)?.delete(&path_of(&of.id)).await?;
    Ok(Exit::Success)
}

fn path_of(id: &str) -> String {
    format!("{CAPTURES}/{}", seawall_api::percent_encode(id))
}

fn client_of(admin: &Endpoint) -> Result<AdminClient, Failure> {
    let client = admin.client();
    client.map_err(|error| Failure::Arguments(error.to_string()))
}

/// Opens the output. Returns an error if the file exists already, because it must not be
/// overwritten.
fn open(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    if path == Path::new(STANDARD_OUTPUT) {
        return Ok(Box::new(io::stdout()));
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(FILE_MODE);
    let file: File = options
        .open(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    Ok(Box::new(file))
}

fn rows(captures: &Captures) -> Vec<String> {
    let rows = captures.captures.iter().map(|capture| {
        vec![
            figures::printable(&capture.id),
            state(capture),
            figures::exact(capture.clients),
            figures::exact(capture.operations),
            figures::exact(omitted(capture)),
            figures::printable(capture.redact.as_deref().unwrap_or("–")),
            figures::bytes(seawall_stats::float(capture.bytes)),
        ]
    });
    let headings = [
        "<id",
        "<state",
        "clients",
        "operations",
        "omitted",
        "<redacted",
        "size",
    ];
    figures::table(&headings, &rows.collect::<Vec<_>>())
}

fn summary(capture: &Capture) -> Vec<String> {
    let mut lines = vec![format!(
        "capture {}: {}, {} of {}, {}",
        capture.id,
        state(capture),
        figures::counted(capture.operations, "operation"),
        figures::counted(capture.clients, "client"),
        figures::bytes(seawall_stats::float(capture.bytes)),
    )];
    for (reason, count) in &capture.omitted {
        let reason = figures::printable(reason);
        lines.push(format!("omitted ({reason}): {}", figures::exact(*count)));
    }
    lines
}

fn state(capture: &Capture) -> String {
    match (&capture.end, capture.running) {
        (_, true) => "running".to_owned(),
        (Some(end), false) => format!("ended ({})", figures::printable(end)),
        (None, false) => "ended".to_owned(),
    }
}

fn omitted(capture: &Capture) -> u64 {
    capture.omitted.values().sum()
}

/// Parses a duration: a whole number with one of the units ms, s, m and h.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text}: expected a time such as 30s, 10m or 1h");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default();
    let milliseconds: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    let milliseconds = number.checked_mul(milliseconds).filter(|ms| *ms > 0);
    milliseconds.map(Duration::from_millis).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        time::timeout,
    };

    use super::*;

    #[derive(Debug, Parser)]
    struct CaptureCommand {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parsed(arguments: &[&str]) -> Result<Arguments, clap::Error> {
        let all = ["capture"].iter().chain(arguments);
        CaptureCommand::try_parse_from(all).map(|command| command.arguments)
    }

    #[test]
    fn the_capture_command_without_a_subcommand_starts_a_capture() {
        let arguments = parsed(&[
            "--duration",
            "30s",
            "--namespace",
            "shop",
            "--namespace",
            "crm",
        ]);
        let arguments = arguments.unwrap();
        assert!(arguments.action.is_none());
        assert_eq!(arguments.start.duration, Duration::from_secs(30));
        assert_eq!(arguments.start.namespace, ["shop", "crm"]);
        let started = parsed(&["start", "--duration", "1h", "--replies", "whole"]).unwrap();
        let Some(Action::Start(start)) = started.action else {
            panic!("expected the action `start`");
        };
        assert_eq!(
            (start.duration.as_secs(), start.replies),
            (3_600, Replies::Whole)
        );
        assert!(matches!(
            parsed(&["list"]).unwrap().action,
            Some(Action::List(_))
        ));
        assert!(parsed(&["--duration", "1h", "list"]).is_err());
        assert!(parsed(&["stop"]).is_err());
    }

    /// In the mode `equality`, equal values are still equal after redaction.
    #[test]
    fn the_option_redact_without_a_value_selects_the_mode_equality() {
        for (argument, expected) in [
            ("--wait", None),
            ("--redact", Some(Redact::Equality)),
            ("--redact=ordered", Some(Redact::Ordered)),
        ] {
            assert_eq!(parsed(&[argument]).unwrap().start.redact, expected);
        }
        assert!(parsed(&["--redact=none"]).is_err());
    }

    #[tokio::test]
    async fn a_capture_is_stopped_if_copying_it_fails() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let mut requests = Vec::new();
            for response in [
                "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi",
                "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            ] {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                requests.push(String::from_utf8(request).unwrap());
                stream.write_all(response.as_bytes()).await.unwrap();
            }
            requests
        });
        let client = AdminClient::new(&address, None, None).unwrap();
        let mut interrupts = signal(SignalKind::interrupt()).unwrap();
        let copied = copy(&client, "a", &mut io::sink(), &mut interrupts).await;
        assert!(matches!(copied, Err(Failure::Client(_))), "{copied:?}");
        let requests = timeout(END_LIMIT, server).await.unwrap().unwrap();
        assert!(requests[0].starts_with("GET /api/v1/captures/a/content "));
        assert!(requests[1].starts_with("POST /api/v1/captures/a/stop "));
    }

    #[test]
    fn a_valid_duration_is_a_positive_whole_number_with_a_unit() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("10m"), Ok(Duration::from_secs(600)));
        for wrong in [
            "",
            "10",
            "m",
            "0s",
            "-1s",
            "1.5h",
            "1d",
            "99999999999999999h",
        ] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn omitted_operations_are_listed_by_reason() {
        let capture = Capture {
            id: "a".to_owned(),
            end: Some("duration".to_owned()),
            omitted: [("secret".to_owned(), 2), ("queue_full".to_owned(), 3)].into(),
            ..Capture::default()
        };
        let lines = summary(&capture);
        assert!(lines[0].contains("ended (duration)"), "{lines:?}");
        assert_eq!(
            lines[1..],
            ["omitted (queue_full): 3", "omitted (secret): 2"]
        );
        let captures = Captures {
            captures: vec![capture],
            ..Captures::default()
        };
        assert_eq!(rows(&captures).len(), 2);
    }
}
