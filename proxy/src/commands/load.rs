//! `seawall load`: the load harness on the command line.

use std::{ops::RangeInclusive, time::Duration};

use clap::{Args, Subcommand, ValueEnum};

use super::{Exit, complain, say};
use crate::{
    limits::raise_descriptor_limit,
    load::{self, Behaviour, Mix, Objectives, Plan, Report, Target, Work},
};

/// Descriptors of the harness itself.
const OTHER_DESCRIPTORS: u64 = 50;

#[derive(Debug, Subcommand)]
pub(super) enum Load {
    /// Clients that lose patience, close, and come again at once.
    Storm(Storm),
    /// Clients that keep their connections and are patient.
    Steady(Steady),
}

/// What every load is told.
#[derive(Debug, Args)]
struct Common {
    /// The endpoint's connection string, with the user to log in as; clients take its hosts in turn.
    uri: String,
    /// How long, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = positive)]
    duration_s: f64,
    /// The database.
    #[arg(long, default_value = "load")]
    database: String,
    /// The collection.
    #[arg(long, default_value = "things")]
    collection: String,
    /// Documents in it, made where they are missing.
    #[arg(long, default_value_t = 1000)]
    documents: u32,
    /// Bytes of text in each document.
    #[arg(long, default_value_t = 100)]
    payload_bytes: usize,
    /// Shares of find, insert and update.
    #[arg(long, default_value = "find=1")]
    mix: Mix,
    /// What is printed at the end.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// No progress on standard error.
    #[arg(long)]
    quiet: bool,
    /// Fail if fewer operations a second are answered.
    #[arg(long, value_name = "PER_SECOND")]
    expect_goodput: Option<f64>,
    /// Fail if one operation in a hundred takes longer from when it was due.
    #[arg(long, value_name = "MS")]
    expect_p99_ms: Option<f64>,
    /// Let it go to an endpoint that is not on this machine.
    #[arg(long)]
    yes_i_own_this: bool,
}

#[derive(Debug, Args)]
pub(super) struct Storm {
    #[command(flatten)]
    common: Common,
    /// How many clients.
    #[arg(long, default_value_t = 500)]
    clients: usize,
    /// Patience with each step of the least and the most patient client, in milliseconds.
    #[arg(long, default_value = "40-500", value_parser = span)]
    timeouts_ms: RangeInclusive<u64>,
    /// Connections begun a second, whatever becomes of those before; without it a client comes again when it is done.
    #[arg(long, value_parser = positive, conflicts_with = "keep")]
    arrivals: Option<f64>,
    /// Clients keep their connections, and ask operations at a rate a second over all of them.
    #[arg(long, value_name = "RATE", value_parser = positive)]
    keep: Option<f64>,
}

#[derive(Debug, Args)]
pub(super) struct Steady {
    #[command(flatten)]
    common: Common,
    /// How many connections.
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// Operations a second over all of them; without it each asks again as soon as it has an answer.
    #[arg(long, value_parser = positive)]
    rate: Option<f64>,
    /// Patience with each step, in milliseconds.
    #[arg(long, default_value_t = 10_000)]
    timeout_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("a number above 0".to_owned()),
    }
}

fn span(text: &str) -> Result<RangeInclusive<u64>, String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.trim().parse(), most.trim().parse()) {
        (Ok(least), Ok(most)) if 0 < least && least <= most => Ok(least..=most),
        _ => Err("two numbers of milliseconds, such as 40-500".to_owned()),
    }
}

pub(super) async fn run(load: Load) -> Exit {
    let (common, clients, behaviour, patience) = match load {
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
        let message =
            "the endpoint is not on this machine; --yes-i-own-this lets the load go there";
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
        report = load::run(plan, progress) => match report {
            Ok(report) => tell(&report, &common),
            Err(error) => complain(&error.to_string(), Exit::Unavailable),
        },
        _ = tokio::signal::ctrl_c() => Exit::Interrupted,
    }
}

fn check_descriptors(clients: usize) -> Result<(), String> {
    let needed = u64::try_from(clients)
        .unwrap_or(u64::MAX)
        .saturating_add(OTHER_DESCRIPTORS);
    match raise_descriptor_limit() {
        Some(allowed) if allowed < needed => Err(format!(
            "{clients} clients need {needed} descriptors, and {allowed} are allowed (ulimit -n)"
        )),
        _ => Ok(()),
    }
}

fn tell(report: &Report, common: &Common) -> Exit {
    match common.format {
        Format::Text => say(&report.to_string()),
        Format::Json => match serde_json::to_string(report) {
            Ok(text) => say(&text),
            Err(error) => return complain(&error.to_string(), Exit::Internal),
        },
    }
    let missed = report.missed(Objectives {
        goodput: common.expect_goodput,
        p99_ms: common.expect_p99_ms,
    });
    match missed.is_empty() {
        true => Exit::Success,
        false => complain(
            &format!("objectives missed: {}", missed.join("; ")),
            Exit::Missed,
        ),
    }
}
