//! `seawall report`: writes a report for a time range, or compares two saved reports.

mod changes;
mod compare;
mod html;
mod merged;
mod page;
mod text;

use std::{
    io::Write as _,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use self::{compare::Comparison, merged::Merged};
use crate::{
    admin_client,
    exit::{Exit, complain, print},
    fleet::{Endpoints, Fleet},
    output::write_whole,
    replays,
};
use seawall_api::{AdminClient, Report, ReportError, percent_encode};
use seawall_stats::{Against, TimeError};

/// Maximum number of shapes (commands without their values) in the text format. The other formats
/// contain all shapes of the report.
const SHOWN_SHAPES: usize = 50;

/// The arguments of `seawall report`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    admin: Endpoints,
    /// Start of the time range, counted back from now: a number and s, m, h or d.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = since)]
    since: String,
    /// Baseline with which the figures are compared: yesterday, last_week, a time before now such
    /// as 2h, or a moment (RFC 3339 or seconds since the epoch).
    #[arg(long, value_name = "BASELINE", default_value = "yesterday", value_parser = against)]
    against: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List what changed between two saved JSON reports, two replays, or a capture and its replay.
    Compare(Compare),
}

#[derive(Debug, Args)]
struct Compare {
    /// The earlier report. If B is a report on a replay, A may also be a capture.
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The later report, which is compared with the earlier one.
    #[arg(value_name = "B")]
    now: PathBuf,
    /// Exit with status 1 if the median duration of a shape increased by more than this percentage.
    /// The increase must be at least 100 µs and statistically significant. Shapes with fewer than
    /// 30 operations in a report, and cursors that wait for events, do not count. Only for reports
    /// on replays.
    #[arg(long, value_name = "PERCENT", value_parser = slowdown)]
    fail_if_slower: Option<f64>,
    #[command(flatten)]
    output: Output,
}

/// The format and the destination of the output.
#[derive(Debug, Args)]
struct Output {
    /// Output format: text for a terminal, JSON to save and compare, or one HTML page.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// File to write; standard output if omitted.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Html,
}

/// Checks the start of the time range. Returns the text unchanged, because the admin API accepts
/// the same syntax.
fn since(text: &str) -> Result<String, String> {
    let number = text.strip_suffix(['s', 'm', 'h', 'd']);
    match number.map(str::parse::<u32>) {
        Some(Ok(1..)) => Ok(text.to_owned()),
        _ => Err("expected a number and s, m, h or d, such as 10m".to_owned()),
    }
}

/// Parses a percentage above 0, such as `20%`.
fn slowdown(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim_end();
    match number.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent > 0.0 => Ok(percent / 100.0),
        _ => Err("expected a percentage above 0, such as 20%".to_owned()),
    }
}

/// Checks the value of `--against`. Returns the value unchanged, because the admin API accepts the
/// same syntax.
fn against(text: &str) -> Result<String, TimeError> {
    text.parse::<Against>().map(|_| text.to_owned())
}

/// Writes a report, or compares two saved reports.
pub async fn run(arguments: Arguments) -> Exit {
    match arguments.command {
        Some(Command::Compare(compare)) => compare_files(&compare),
        None => tokio::select! {
            exit = fetch(arguments) => exit,
            _ = tokio::signal::ctrl_c() => Exit::Interrupted,
        },
    }
}

impl Arguments {
    fn path(&self) -> String {
        let against = percent_encode(&self.against);
        format!("/api/v1/report?since={}&against={against}", self.since)
    }
}

async fn fetch(arguments: Arguments) -> Exit {
    let fleet = match arguments.admin.fleet() {
        Ok(fleet) => fleet,
        Err(error) => return complain(&error.to_string(), Exit::Usage),
    };
    match fleet.clients() {
        [client] => fetch_one(client, &arguments).await,
        _ => fetch_all(&fleet, &arguments).await,
    }
}

/// Writes the report of one instance. JSON is written exactly as the instance sent it.
async fn fetch_one(client: &AdminClient, arguments: &Arguments) -> Exit {
    let response = match client.ask_for_json(&arguments.path()).await {
        Ok(response) => response,
        Err(error) => {
            return complain(&admin_client::message(&error), admin_client::exit(&error));
        }
    };
    let document = match arguments.output.format {
        Format::Json => pretty(&response).map_err(ReportError::from),
        Format::Text => Report::read(response).map(|report| text::report(&report)),
        Format::Html => Report::read(response).and_then(|report| Ok(html::report(&report)?)),
    };
    match document {
        Ok(document) => arguments.output.write(&document),
        Err(error) => {
            let message = format!("{}: {error}", client.address());
            complain(&message, Exit::Unavailable)
        }
    }
}

/// Writes the merged report of several instances. If some instances fail, the report contains
/// the other instances and the errors, and the exit status is that of [`Merged::exit`].
async fn fetch_all(fleet: &Fleet, arguments: &Arguments) -> Exit {
    let Merged {
        report,
        instances,
        exit,
    } = merged::fetch(fleet, &arguments.path()).await;
    for error in instances.iter().filter_map(|i| i.error.as_deref()) {
        complain(error, exit);
    }
    let Some(report) = report else {
        return exit;
    };
    let report = Report {
        instances,
        ..report
    };
    let document = match arguments.output.format {
        Format::Json => pretty(&report),
        Format::Text => Ok(text::report(&report)),
        Format::Html => html::report(&report),
    };
    match document {
        Ok(document) => match arguments.output.write(&document) {
            Exit::Success => exit,
            failed => failed,
        },
        Err(error) => complain(&error.to_string(), Exit::Internal),
    }
}

fn compare_files(arguments: &Compare) -> Exit {
    match replayed(&arguments.now) {
        Ok(Some(now)) => return compare_replays(arguments, now),
        Ok(None) if arguments.fail_if_slower.is_some() => {
            let message = "--fail-if-slower is only for reports on replays";
            return complain(message, Exit::Usage);
        }
        Ok(None) => {}
        Err(message) => return complain(&message, Exit::Usage),
    }
    let sides = load(&arguments.before).and_then(|before| Ok((before, load(&arguments.now)?)));
    let comparison = match sides {
        Ok((before, now)) => Comparison::new(
            (arguments.before.display().to_string(), before),
            (arguments.now.display().to_string(), now),
        ),
        Err(message) => return complain(&message, Exit::Usage),
    };
    let document = match arguments.output.format {
        Format::Text => Ok(changes::text(&comparison)),
        Format::Json => changes::json(&comparison),
        Format::Html => html::comparison(&comparison),
    };
    match document {
        Ok(document) => arguments.output.write(&document),
        Err(error) => complain(&error.to_string(), Exit::Internal),
    }
}

/// Reads a report on a replay; `None` if the file does not declare itself as such a report.
fn replayed(file: &Path) -> Result<Option<seawall_replay::Report>, String> {
    let (text, value) = read(file)?;
    if !seawall_replay::Report::is_declared_by(&value) {
        return Ok(None);
    }
    let report = seawall_replay::Report::read(&text);
    report
        .map(Some)
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// Compares a replay with an earlier replay or with its capture.
fn compare_replays(arguments: &Compare, now: seawall_replay::Report) -> Exit {
    let before = match replays::is_capture(&arguments.before) {
        true => replays::capture(&arguments.before, &now),
        false => replayed(&arguments.before).and_then(|report| {
            let name = arguments.before.display();
            report.ok_or_else(|| format!("{name}: not a report on a replay"))
        }),
    };
    let before = match before {
        Ok(before) => before,
        Err(message) => return complain(&message, Exit::Usage),
    };
    let slowdown = arguments.fail_if_slower;
    let comparison = seawall_replay::Comparison::new(before, now, slowdown);
    let document = match arguments.output.format {
        Format::Text => Ok(replays::text(&comparison)),
        Format::Json => replays::json(&comparison),
        Format::Html => Ok(replays::html(&comparison)),
    };
    let written = match document {
        Ok(document) => arguments.output.write(&document),
        Err(error) => return complain(&error.to_string(), Exit::Internal),
    };
    match (written, replays::missed(&comparison)) {
        (Exit::Success, Some(missed)) => complain(&missed, Exit::Missed),
        (written, _) => written,
    }
}

fn load(file: &Path) -> Result<Report, String> {
    let (_, value) = read(file)?;
    Report::read(value).map_err(|error| format!("{}: {error}", file.display()))
}

/// Reads a file. Returns its content as bytes and as parsed JSON.
fn read(file: &Path) -> Result<(Vec<u8>, Value), String> {
    let named = |error: String| format!("{}: {error}", file.display());
    let text = std::fs::read(file).map_err(|error| named(error.to_string()))?;
    let value = serde_json::from_slice(&text);
    let value = value.map_err(|error| named(format!("not valid JSON: {error}")))?;
    Ok((text, value))
}

/// Formats a document as indented JSON, with a line break at its end.
fn pretty(document: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(document).map(|text| text + "\n")
}

impl Output {
    fn write(&self, document: &str) -> Exit {
        let Some(file) = &self.output else {
            return print(document);
        };
        match write_whole(file, |mut file| file.write_all(document.as_bytes())) {
            Ok(()) => Exit::Success,
            Err(error) => complain(&format!("{}: {error}", file.display()), Exit::Unavailable),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::{FromArgMatches, error::ErrorKind};

    use super::*;

    /// The example report as JSON, as the API returns it.
    pub(super) fn example() -> Value {
        serde_json::from_str(include_str!("example.json")).unwrap()
    }

    /// The example report.
    pub(crate) fn report() -> Report {
        Report::read(example()).unwrap()
    }

    fn parsed(arguments: &[&str]) -> Result<Arguments, clap::Error> {
        let command = Arguments::augment_args(clap::Command::new("report"));
        let matches = command.try_get_matches_from([&["report"], arguments].concat())?;
        Arguments::from_arg_matches(&matches)
    }

    #[test]
    fn arguments_select_a_report_or_a_comparison() {
        let report = parsed(&["--since", "1h", "--format", "html"]).unwrap();
        assert_eq!(
            (report.since.as_str(), report.output.format),
            ("1h", Format::Html)
        );
        let compare = parsed(&["compare", "a.json", "b.json", "--format", "json"]).unwrap();
        let Some(Command::Compare(compare)) = compare.command else {
            panic!("no comparison")
        };
        assert_eq!(
            (compare.now, compare.output.format),
            ("b.json".into(), Format::Json)
        );
        for wrong in ["10", "m", "0s", "-1m", "1w", "10 m"] {
            let since = format!("--since={wrong}");
            let kind = parsed(&[since.as_str()]).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::ValueValidation, "{wrong}");
        }
    }

    #[test]
    fn baseline_is_given_by_a_name_a_duration_or_a_timestamp() {
        let path = |arguments: &[&str]| parsed(arguments).unwrap().path();
        assert_eq!(path(&[]), "/api/v1/report?since=10m&against=yesterday");
        assert!(path(&["--against", "2h"]).ends_with("&against=2h"));
        let moment = path(&["--against", "2026-11-21T10:00:00+01:00"]);
        assert!(moment.ends_with("&against=2026-11-21T10%3A00%3A00%2B01%3A00"));
        let kind = parsed(&["--against", "tomorrow"]).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::ValueValidation);
    }

    #[test]
    fn formatted_json_has_the_same_content_as_the_original() {
        let again: Value = serde_json::from_str(&pretty(&example()).unwrap()).unwrap();
        assert_eq!(again, example());
    }

    #[test]
    fn error_names_the_file_that_cannot_be_read() {
        let error = load(Path::new("/nowhere/a.json")).unwrap_err();
        assert!(error.starts_with("/nowhere/a.json: "));
    }
}
