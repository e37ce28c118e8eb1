//! `seawall load replay`: replays a capture on the command line.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::values::{check_descriptors, connection_string, positive, rate};
use seawall_console::{Exit, complain, print_line, replays, write_whole};
use seawall_load::Target;
use seawall_replay::{Choice, Pace, Replay, Report, ShapeId, Source, dry_run};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Directory or file of a capture, or a file of mongod's traffic recorder; - is standard input.
    source: PathBuf,
    /// Connection string of the target, with the user to log in as, or @FILE for a file that
    /// contains it. It has exactly one host: a server, a router or a Seawall. The captured
    /// deployment is refused as a target: its servers are recognized by their addresses and process
    /// ids.
    #[arg(
        long, value_name = "URI", required_unless_present = "dry_run",
        value_parser = connection_string
    )]
    target: Option<String>,
    /// Send commands this many times as fast as they were captured.
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    speed: f64,
    /// Send this many commands per second, at equal intervals.
    #[arg(long, value_name = "PER_SECOND", value_parser = rate, conflicts_with = "speed")]
    rate: Option<f64>,
    /// Send commands as fast as the target replies.
    #[arg(long, conflicts_with_all = ["speed", "rate"])]
    max: bool,
    /// Maximum number of connections; each captured client has its own connection until this limit.
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// Time limit of a reply in milliseconds; the maxTimeMS of its command is added to this limit.
    #[arg(long, default_value_t = 600_000)]
    timeout_ms: u64,
    /// Send only reads; this is the default.
    #[arg(long, conflicts_with = "with_writes")]
    read_only: bool,
    /// Send writes, too. They change the data of the target.
    #[arg(long)]
    with_writes: bool,
    /// Send only commands of this shape, given by its id; may be repeated.
    #[arg(long, value_name = "SHAPE", num_args = 1.., value_parser = shape)]
    only: Vec<ShapeId>,
    /// Start a command only after all operations that had ended before it in the capture have also
    /// ended in the replay.
    #[arg(long)]
    strict_order: bool,
    /// Compute digests of the returned documents, so that a comparison finds changed documents.
    #[arg(long)]
    digest: bool,
    /// Send nothing; count the commands that would be sent and the commands that would be skipped.
    #[arg(long)]
    dry_run: bool,
    /// Stop if more than this share of the operations fails. An operation that also failed in the
    /// capture does not count.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    max_error_share: f64,
    /// Write the results to this file, for `seawall report compare`.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Do not print progress on standard error.
    #[arg(long)]
    quiet: bool,
    /// Allow a target that is not on this machine. Also allow writes to a target that reports no
    /// process id (for example a proxy). Without this id, the replay cannot check that the target
    /// is not the captured deployment.
    #[arg(long)]
    yes_i_own_this: bool,
}

fn shape(text: &str) -> Result<ShapeId, String> {
    ShapeId::from_hex(text)
        .ok_or_else(|| "expected the id of a shape: 16 hexadecimal digits".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a number from 0 to 1".to_owned()),
    }
}

pub(super) async fn run(arguments: Arguments) -> Exit {
    let source = match Source::open(&arguments.source) {
        Ok(source) => source,
        Err(error) => return complain(&error.to_string(), Exit::Usage),
    };
    if arguments.dry_run {
        return match arguments.output() {
            Ok(output) => finish(&dry_run(source, &arguments.choice()), output),
            Err(message) => complain(&message, Exit::Unavailable),
        };
    }
    let target = match Target::parse(arguments.target.as_deref().unwrap_or_default()).await {
        Ok(target) => target,
        Err(error) => return complain(&error.to_string(), Exit::Usage),
    };
    if !arguments.yes_i_own_this && !target.is_loopback().await {
        let message = "the target is not on this machine; use --yes-i-own-this to allow it";
        return complain(message, Exit::Usage);
    }
    if let Err(message) = check_descriptors(arguments.connections) {
        return complain(&message, Exit::Unavailable);
    }
    let output = match arguments.output() {
        Ok(output) => output,
        Err(message) => return complain(&message, Exit::Unavailable),
    };
    let replay = Replay {
        target,
        choice: arguments.choice(),
        pace: arguments.pace(),
        strict_order: arguments.strict_order,
        connections: arguments.connections,
        reply_limit: Duration::from_millis(arguments.timeout_ms.max(1)),
        digest: arguments.digest,
        max_error_share: arguments.max_error_share,
        writes_to_unidentified: arguments.yes_i_own_this,
    };
    let is_quiet = arguments.quiet;
    let progress = move |line: &str| {
        if !is_quiet {
            complain(line, Exit::Success);
        }
    };
    let interrupted = async {
        // If Ctrl-C cannot be handled, this future never ends, and Ctrl-C ends the process.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        INTERRUPTED
    };
    let replaying = Box::pin(seawall_replay::run(replay, source, progress, interrupted));
    match replaying.await {
        Ok(report) => finish(&report, output),
        Err(error) => {
            if let Some(output) = output {
                output.discard();
            }
            complain(&error.to_string(), Exit::Unavailable)
        }
    }
}

/// The reason that the report gives for the end of a replay that Ctrl-C has stopped.
const INTERRUPTED: &str = "interrupted";

impl Arguments {
    /// Opens the file for the results. Called before the replay, so that no results are lost if the
    /// file cannot be opened.
    fn output(&self) -> Result<Option<ResultsFile<'_>>, String> {
        self.output.as_deref().map(ResultsFile::open).transpose()
    }

    fn choice(&self) -> Choice {
        Choice {
            with_writes: self.with_writes,
            only: self.only.clone(),
        }
    }

    fn pace(&self) -> Pace {
        match (self.rate, self.max) {
            (Some(rate), _) => Pace::Rate(rate),
            (None, true) => Pace::Max,
            (None, false) => Pace::Speed(self.speed),
        }
    }
}

/// Writes and prints the results. The exit status is 0 only if the replay ended normally and the
/// capture was read to its end.
fn finish(report: &Report, output: Option<ResultsFile<'_>>) -> Exit {
    let written = output.map_or(Ok(()), |output| output.write(report));
    let printed = print_line(replays::summary(report).trim_end());
    if let Err(message) = written {
        return complain(&message, Exit::Unavailable);
    }
    match (report.stopped.as_deref(), report.incomplete.as_deref()) {
        (Some(INTERRUPTED), _) => Exit::Interrupted,
        (Some(reason), _) => complain(&format!("the replay was stopped: {reason}"), Exit::Missed),
        (None, Some(error)) => complain(
            &format!("the capture was not read to its end: {error}"),
            Exit::Unavailable,
        ),
        (None, None) => printed,
    }
}

/// The file for the results.
struct ResultsFile<'a> {
    path: &'a Path,
    file: File,
    /// True if the file did not exist before.
    is_new: bool,
}

impl<'a> ResultsFile<'a> {
    /// Opens the file. The file keeps its content until there are results.
    fn open(path: &'a Path) -> Result<Self, String> {
        let mut options = File::options();
        options.write(true);
        let created = options.clone().create_new(true).open(path);
        let is_new = created.is_ok();
        let opened = match created {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                options.create(true).truncate(false).open(path)
            }
            created => created,
        };
        match opened {
            Ok(file) => Ok(Self { path, file, is_new }),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Removes the file, because it has no complete results. A file that existed before is kept.
    fn discard(self) {
        if self.is_new {
            drop(fs::remove_file(self.path));
        }
    }

    /// Replaces the content of the file by the results.
    fn write(mut self, report: &Report) -> Result<(), String> {
        let path = self.path;
        let written = replays::json(report)
            .map_err(io::Error::from)
            .and_then(|json| self.replace(&json));
        written.map_err(|error| {
            self.discard();
            format!("{}: {error}", path.display())
        })
    }

    fn replace(&mut self, content: &str) -> io::Result<()> {
        match self.file.metadata()?.is_file() {
            true => write_whole(self.path, |mut file| file.write_all(content.as_bytes())),
            // For example a pipe. Its reader has waited since the start of the replay, so write to
            // the pipe that is already open.
            false => self.file.write_all(content.as_bytes()),
        }
    }
}
