//! Records operations in the running capture: a recording of the messages of some clients (see
//! [`crate::captures`]).

use tokio::time::Instant;

use super::context::{AttemptEnd, Operation};
use crate::{
    captures::{
        Arrived, CapturedClient, Captures, Described, OperationEnd, RecordedCommand, ReplyMessage,
    },
    client::reply::REPLY_HEAD_BYTES,
    observe::ConnectedClient,
};
use seawall_capture::record;
use seawall_command::{Command, CommandBytes, ReplyFacts};
use seawall_stats::Outcome;
use seawall_transport::Message;

/// Records the command of an operation, if the running capture includes the client. A command that
/// may contain secrets is not recorded. To find secrets, this function may read the whole command.
pub(super) fn record_command(
    captures: &Captures,
    captured: &mut CapturedClient,
    client: &ConnectedClient,
    arrived: &Arrived<'_>,
) -> Option<RecordedCommand> {
    captures.record(captured, arrived, || described(client))
}

/// A command that arrived at `at`.
pub(super) fn arrived<'a>(
    message: &'a Message,
    command: &'a Command<'a>,
    input: &'a CommandBytes<'a>,
    at: Instant,
) -> Arrived<'a> {
    Arrived {
        message: &message.bytes,
        is_whole: !message.is_head(),
        command,
        input,
        at,
    }
}

impl Operation<'_> {
    /// Records the end of the operation, before the client gets the last byte of its reply.
    pub(super) fn record_end(&self, ended: &mut AttemptEnd) {
        let Some(recording) = self.recording else {
            return;
        };
        let now = Instant::now();
        match ended {
            AttemptEnd::Reply(reply, _, _) => {
                self.record_reply(recording, &reply.bytes, self.outcome_of_reply(), now);
            }
            AttemptEnd::Error(error, outcome) => {
                let reply = self.reply_to.encode(0, &error.to_document());
                self.record_reply(recording, &reply, outcome_without_server(*outcome), now);
            }
            AttemptEnd::Forwarded(forwarded, _) => {
                let ended = OperationEnd {
                    outcome: self.outcome_of_reply(),
                    facts: Some(&forwarded.facts),
                    bytes: forwarded.bytes,
                    message: match forwarded.copy.take() {
                        Some(copy) => ReplyMessage::Copied(copy),
                        None => ReplyMessage::Absent,
                    },
                };
                recording.end(ended, now);
            }
            AttemptEnd::Close(outcome) => {
                let ended = OperationEnd::without_reply(outcome_without_server(*outcome));
                recording.end(ended, now);
            }
            // The drop of `recording` records that the client has left.
            AttemptEnd::Gone => {}
        }
    }

    /// Records the end of an operation whose whole reply is in memory. Scans the reply a second
    /// time for its facts (values such as `ok` and the cursor id). If `AttemptEnd` contained the
    /// facts (about 170 bytes), every operation would store and move them, even without a capture.
    fn record_reply(
        &self,
        recording: &RecordedCommand,
        reply: &[u8],
        outcome: record::Outcome,
        now: Instant,
    ) {
        let document = reply.get(REPLY_HEAD_BYTES..).unwrap_or_default();
        let facts = ReplyFacts::of(self.command.spec.reply_form, document);
        let ended = OperationEnd {
            outcome,
            facts: Some(&facts),
            bytes: reply.len(),
            message: ReplyMessage::Held(reply),
        };
        recording.end(ended, now);
    }

    /// The outcome that a capture records for an operation that ended with a server's reply, or
    /// with a reply to `killCursors` that Seawall built.
    fn outcome_of_reply(&self) -> record::Outcome {
        match self.reply_to.is_unwanted() {
            true => record::Outcome::Unacknowledged,
            false => record::Outcome::Replied,
        }
    }
}

/// The outcome that a capture records for an operation that ended without a server's reply.
/// `outcome` is the outcome in the statistics.
fn outcome_without_server(outcome: Outcome) -> record::Outcome {
    match outcome {
        Outcome::Refused | Outcome::Local => record::Outcome::Refused,
        Outcome::ClientGone => record::Outcome::ClientGone,
        Outcome::ServerFailed | Outcome::Ok | Outcome::WriteError | Outcome::Error => {
            record::Outcome::ServerFailed
        }
    }
}

/// The client's number, and its description for a capture.
fn described(client: &ConnectedClient) -> (u64, Described) {
    let row = client.row();
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let described = Described {
        application: text(row.as_ref().and_then(|row| row.application.as_deref())),
        driver: text(row.as_ref().and_then(|row| row.driver.as_deref())),
        user: text(row.as_ref().and_then(|row| row.user.as_deref())),
    };
    (u64::from(client.id().unsigned_abs()), described)
}
