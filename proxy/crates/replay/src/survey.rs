//! Makes reports from a capture without sending anything: the report of a dry run, and the report
//! on the replies that the capture contains.

use std::{collections::HashMap, time::Duration};

use foldhash::fast::RandomState;
use seawall_capture::record::{Command, Content, Outcome, Reply};
use seawall_command::ReplyFacts;
use seawall_wire::OpMsg;

use crate::{
    Choice, Decision, Planned, Planner, ReplaySettings, Report, ResultKind, Source,
    digest::digest,
    results::{Descriptions, Ended, Results, RowId},
    run::{captured, is_redacted},
};

/// Maximum number of operations whose captured reply has not been read yet. Replies to further
/// operations are not counted.
const MAX_OPEN: usize = 1_000_000;

/// Counts the commands that a replay would send, and the commands that it would skip.
pub fn dry_run(source: Source, choice: &Choice) -> Report {
    survey(source, choice, ResultKind::DryRun, false)
}

/// The results that a capture contains, for the operations that a replay with this choice would
/// send. If `digest` is true, the results have digests of the replies that the capture contains in
/// full. A digest is a hash of the returned documents; a comparison of digests shows if two results
/// have the same documents.
pub fn captured_results(source: Source, choice: &Choice, digest: bool) -> Report {
    survey(source, choice, ResultKind::Capture, digest)
}

/// An operation whose captured reply has not been read yet.
struct Open {
    planned: Planned,
    row: RowId,
    request_bytes: usize,
}

struct Survey {
    kind: ResultKind,
    planner: Planner,
    descriptions: Descriptions,
    results: Results,
    open: HashMap<u64, Open, RandomState>,
    /// The time at which the capture began, in seconds since 1970. Digests exclude ObjectIds, dates
    /// and timestamps of this time or later, because a replay creates different ones. `None` if no
    /// digests are requested.
    recent_s: Option<u64>,
    first_us: Option<u64>,
    last_us: u64,
}

fn survey(mut source: Source, choice: &Choice, kind: ResultKind, with_digest: bool) -> Report {
    let header = source.header().clone();
    let is_redacted = is_redacted(&header);
    let mut survey = Survey {
        kind,
        planner: Planner::new(choice.clone(), is_redacted),
        descriptions: Descriptions::default(),
        results: Results::default(),
        open: HashMap::default(),
        recent_s: with_digest.then_some(header.began_at_us / 1_000_000),
        first_us: None,
        last_us: 0,
    };
    let error = loop {
        match source.next_record() {
            Ok(Some(content)) => survey.accept(content),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    survey.fail_open();
    let Survey {
        results,
        first_us,
        last_us,
        ..
    } = survey;
    let seconds = Duration::from_micros(last_us.saturating_sub(first_us.unwrap_or(last_us)));
    results.finish(Report {
        kind,
        settings: ReplaySettings {
            with_writes: choice.with_writes,
            only: choice.only.iter().map(ToString::to_string).collect(),
            digest: with_digest,
            redacted: is_redacted,
            ..ReplaySettings::default()
        },
        seconds: seconds.as_secs_f64(),
        incomplete: error.map(|error| error.to_string()),
        ..captured(&header)
    })
}

impl Survey {
    fn accept(&mut self, content: Content) {
        match content {
            Content::Command(command) => self.accept_command(&command),
            Content::Reply(reply) => self.accept_reply(&reply),
            Content::Omitted(omitted) => self.results.omitted += omitted.operations,
            Content::Header(_)
            | Content::ClientBegan(_)
            | Content::ClientEnded(_)
            | Content::Event(_)
            | Content::End(_) => {}
        }
    }

    fn accept_command(&mut self, command: &Command) {
        self.first_us.get_or_insert(command.at_us);
        self.last_us = self.last_us.max(command.at_us);
        let planned = match self.planner.decide(&command.message) {
            Decision::Send(planned) => planned,
            Decision::Skip(reason) => return self.results.skip(reason.as_str()),
        };
        self.results.sent += 1;
        let description = self.descriptions.of_new(&planned, &command.message);
        let row = self.results.row(&planned, description);
        let request_bytes = command.message.len();
        if self.kind == ResultKind::DryRun && !planned.is_await() {
            self.results.count(row, request_bytes);
        }
        if self.open.len() < MAX_OPEN {
            let entry = Open {
                planned,
                row,
                request_bytes,
            };
            self.open.insert(command.operation, entry);
        }
    }

    fn accept_reply(&mut self, reply: &Reply) {
        self.last_us = self.last_us.max(reply.at_us);
        let Some(entry) = self.open.remove(&reply.operation) else {
            return;
        };
        let cursor_id = reply.facts.as_ref().map_or(0, |facts| facts.cursor_id);
        self.planner.note_cursor(cursor_id, entry.planned.origin);
        if self.kind == ResultKind::Capture {
            self.add(&entry, reply);
        }
    }

    /// Counts the operations that still ran when the capture ended. Their results are unknown, but
    /// a replay sends them. A `getMore` on an awaiting cursor does not count, because it usually
    /// waits for events at that time.
    fn fail_open(&mut self) {
        if self.kind != ResultKind::Capture {
            return;
        }
        let entries = self.open.values();
        for entry in entries.filter(|entry| !entry.planned.is_await()) {
            self.results.fail(entry.row, entry.request_bytes);
        }
    }

    fn add(&mut self, entry: &Open, reply: &Reply) {
        match reply.outcome() {
            Outcome::Replied | Outcome::Unacknowledged => {}
            Outcome::Refused | Outcome::ServerFailed | Outcome::ClientGone => {
                return match entry.planned.is_await() {
                    true => self.results.fail_await(entry.row),
                    false => self.results.fail(entry.row, entry.request_bytes),
                };
            }
        }
        // The client of an unacknowledged write got no reply, so the captured reply is not counted.
        // A replay does not count the replies to unacknowledged writes either.
        let is_wanted = reply.outcome() != Outcome::Unacknowledged;
        let whole = OpMsg::parse(&reply.message).ok().filter(|_| is_wanted);
        // A digest covers all replies of a row, so the row gets no digest if the capture lacks a
        // part of a reply.
        if self.recent_s.is_some() && whole.is_none() && is_wanted && reply.bytes > 0 {
            self.results.note_missing_digest(entry.row);
        }
        let form = entry.planned.reply_form;
        let ended = Ended {
            tally: match &whole {
                Some(whole) => Some((&ReplyFacts::of(form, whole.body)).into()),
                None => reply.facts.as_ref().filter(|_| is_wanted).map(Into::into),
            },
            duration: Duration::from_micros(reply.duration_us),
            request_bytes: entry.request_bytes,
            reply_bytes: match is_wanted {
                true => usize::try_from(reply.bytes).unwrap_or(usize::MAX),
                false => 0,
            },
            digest: match (self.recent_s, &whole) {
                (Some(recent_s), Some(whole)) => digest(whole.body, recent_s),
                _ => 0,
            },
        };
        match entry.planned.is_await() {
            true => self.results.end_await(entry.row, &ended),
            false => self.results.end(entry.row, &ended),
        }
    }
}
