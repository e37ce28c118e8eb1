//! `seawall load`: runs the load harness, and passes the other subcommands to their modules.

use std::{ops::RangeInclusive, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::{
    convert::{self, Convert},
    copy::{self, Copy},
    replay,
    values::{check_descriptors, connection_string, duration_s, payload_bytes, positive, rate},
};
use seawall_console::{Exit, complain, print_line};
use seawall_load::{Behaviour, Mix, Objectives, Plan, Report, Target, Work};

#[derive(Debug, Subcommand)]
pub(super) enum Load {
    /// Run clients that time out, close their connection and reconnect immediately.
    Storm(Storm),
    /// Run clients that keep their connections and use long timeouts.
    Steady(Steady),
    /// Convert a file of mongod's traffic recorder to a capture, or a capture to such a file.
    Convert(Convert),
    /// Copy collections and replace every value by its pseudonym, so that a redacted capture can be
    /// replayed against the copy.
    Copy(Copy),
    /// Replay captured traffic against another deployment.
    Replay(replay::Arguments),
}

/// The options that all loads share.
#[derive(Debug, Args)]
struct Common {
    /// Connection string of the endpoint, with the user to log in as, or @FILE for a file that
    /// contains it; clients are spread over its hosts.
    #[arg(value_parser = connection_string)]
    uri: String,
    /// Duration of the load in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = duration_s)]
    duration_s: f64,
    /// Database to use.
    #[arg(long, default_value = "load")]
    database: String,
    /// Collection to use.
    #[arg(long, default_value = "things")]
    collection: String,
    /// Number of documents in the collection; missing documents are inserted first.
    #[arg(long, default_value_t = 1000)]
    documents: u32,
    /// Bytes of text in each document.
    #[arg(long, default_value_t = 100, value_parser = payload_bytes)]
    payload_bytes: usize,
    /// Shares of find, insert and update, such as find=90,insert=5,update=5.
    #[arg(long, default_value = "find=1")]
    mix: Mix,
    /// Format of the final report.
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// Do not print progress on standard error.
    #[arg(long)]
    quiet: bool,
    /// Exit with status 1 if fewer operations than this succeed per second.
    #[arg(long, value_name = "PER_SECOND", value_parser = positive)]
    expect_goodput: Option<f64>,
    /// Exit with status 1 if the 99th percentile of latency is higher than this; latency is counted
    /// from the time at which an operation was due. Operations that failed or were not sent count
    /// as slower than this limit.
    #[arg(long, value_name = "MS", value_parser = positive)]
    expect_p99_ms: Option<f64>,
    /// Allow an endpoint that is not on this machine.
    #[arg(long)]
    yes_i_own_this: bool,
}

#[derive(Debug, Args)]
pub(super) struct Storm {
    #[command(flatten)]
    common: Common,
    /// Number of clients.
    #[arg(long, default_value_t = 500)]
    clients: usize,
    /// Timeout of each step in milliseconds, as a range; the timeouts of the clients are spread
    /// evenly over it.
    #[arg(long, default_value = "40-500", value_parser = span)]
    timeouts_ms: RangeInclusive<u64>,
    /// Number of connections to start per second, even if earlier connections have not ended;
    /// without this option, a client reconnects as soon as its connection has ended.
    #[arg(long, value_parser = rate, conflicts_with = "keep")]
    arrivals: Option<f64>,
    /// Keep the connections and send this many operations per second over all clients.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    keep: Option<f64>,
}

#[derive(Debug, Args)]
pub(super) struct Steady {
    #[command(flatten)]
    common: Common,
    /// Number of connections.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Operations per second over all connections; without this option, each connection sends its
    /// next operation as soon as it has a reply.
    #[arg(long, value_parser = rate)]
    rate: Option<f64>,
    /// Timeout of each step in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    timeout_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    Text,
    Json,
}

fn span(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.trim().parse(), most.trim().parse()) {
        (Ok(least), Ok(most)) if 0 < least && least <= most => Ok(least..=most),
        _ => Err("expected a range of milliseconds, such as 40-500".to_owned()),
    }
}

pub(super) async fn run(load: Load) -> Exit {
    let (common, clients, behaviour, patience) = match load {
        Load::Convert(arguments) => return convert::run(&arguments),
        Load::Copy(arguments) => return copy::run(&arguments).await,
        Load::Replay(arguments) => return replay::run(arguments).await,
        Load::Storm(storm) => {
            let behaviour = match (storm.keep, storm.arrivals) {
                (Some(rate), _) => Behaviour::KeptAt(rate),
                (None, Some(rate)) => Behaviour::ShortAt(rate),
                (None, None) => Behaviour::Short,
            };
            (storm.common, storm.clients, behaviour, storm.timeouts_ms)
        }
        Load::Steady(steady) => {
            let behaviour = steady.rate.map_or(Behaviour::Closed, Behaviour::KeptAt);
            let patience = steady.timeout_ms.max(1);
            (
                steady.common,
                steady.connections,
                behaviour,
                patience..=patience,
            )
        }
    };
    let target = match Target::parse(&common.uri).await {
        Ok(target) => target,
        Err(error) => return complain(&error.to_string(), Exit::Usage),
    };
    if !common.yes_i_own_this && !target.is_loopback().await {
        let message = "the endpoint is not on this machine; use --yes-i-own-this to allow it";
        return complain(message, Exit::Usage);
    }
    if let Err(message) = check_descriptors(clients) {
        return complain(&message, Exit::Unavailable);
    }
    let plan = Plan {
        target,
        clients: clients.max(1),
        behaviour,
        duration: Duration::from_secs_f64(common.duration_s),
        patience: (
            Duration::from_millis(*patience.start()),
            Duration::from_millis(*patience.end()),
        ),
        work: Work {
            database: common.database.clone(),
            collection: common.collection.clone(),
            documents: common.documents.max(1),
            payload_bytes: common.payload_bytes,
            mix: common.mix,
        },
    };
    let progress = |line: &str| {
        if !common.quiet {
            complain(line, Exit::Success);
        }
    };
    tokio::select! {
        report = seawall_load::run(plan, progress) => match report {
            Ok(report) => print_report(&report, &common),
            Err(error) => complain(&error.to_string(), Exit::Unavailable),
        },
        _ = tokio::signal::ctrl_c() => Exit::Interrupted,
    }
}

fn print_report(report: &Report, common: &Common) -> Exit {
    let printed = match common.format {
        ReportFormat::Text => print_line(&report.to_string()),
        ReportFormat::Json => match serde_json::to_string(report) {
            Ok(text) => print_line(&text),
            Err(error) => return complain(&error.to_string(), Exit::Internal),
        },
    };
    let missed = report.missed(Objectives {
        goodput: common.expect_goodput,
        p99_ms: common.expect_p99_ms,
    });
    match missed.is_empty() {
        true => printed,
        false => complain(
            &format!("objectives missed: {}", missed.join("; ")),
            Exit::Missed,
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct CommonArguments {
        #[command(flatten)]
        common: Common,
    }

    #[test]
    fn objectives_that_are_not_positive_numbers_are_refused() {
        for option in ["--expect-goodput", "--expect-p99-ms"] {
            for (value, is_accepted) in [("50", true), ("NaN", false), ("-1", false), ("x", false)]
            {
                let objective = format!("{option}={value}");
                let line = ["load", "mongodb://localhost/", &objective];
                assert_eq!(
                    CommonArguments::try_parse_from(line).is_ok(),
                    is_accepted,
                    "{objective}"
                );
            }
        }
    }
}
