//! Redacts the records of a capture.

use std::collections::BTreeMap;

use bytes::Bytes;
use seawall_capture::record::{
    Command, Content, End, Header, OmissionReason, Omitted, Redaction, Reply,
};
use seawall_command::{Command as Inspected, ReplyForm};
use seawall_wire::OpMsg;

use crate::{Mode, Redactor};

/// Most operations without a reply whose reply form is remembered. The replies to further
/// operations are not written.
const MAX_PENDING: usize = 100_000;

/// Redacts the records of one capture, in their order. A command that cannot be redacted is
/// omitted, together with its reply.
#[derive(Debug)]
pub struct Records {
    redactor: Redactor,
    /// The reply forms of operations without a reply.
    forms: BTreeMap<u64, ReplyForm>,
    omitted: u64,
}

impl Records {
    /// Begins with the first record after the header.
    pub fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            forms: BTreeMap::new(),
            omitted: 0,
        }
    }

    /// Says in the header how values are replaced.
    pub fn mark(&self, header: &mut Header) {
        header.set_redaction(match self.redactor.mode {
            Mode::Equality => Redaction::Equality,
            Mode::Ordered => Redaction::Ordered,
        });
    }

    /// Redacts the next record; `None` if it must not be written.
    pub fn record(&mut self, record: Content) -> Option<Content> {
        match record {
            Content::Command(command) => Some(self.command(command)),
            Content::Reply(reply) => self.reply(reply).map(Content::Reply),
            Content::End(end) => Some(Content::End(self.end(end))),
            Content::Header(_)
            | Content::ClientBegan(_)
            | Content::ClientEnded(_)
            | Content::Omitted(_)
            | Content::Event(_) => Some(record),
        }
    }

    /// Counts the omitted commands in the last record.
    pub fn end(&self, end: End) -> End {
        End {
            operations: end.operations.saturating_sub(self.omitted),
            omitted: end.omitted.saturating_add(self.omitted),
            ..end
        }
    }

    fn command(&mut self, command: Command) -> Content {
        let form = reply_form(&command.message);
        let redacted =
            form.and_then(|form| Some((form, self.redactor.command(&command.message).ok()?)));
        let Some((form, message)) = redacted else {
            self.omitted += 1;
            return Content::Omitted(Omitted {
                client: command.client,
                at_us: command.at_us,
                operations: 1,
                bytes: u64::try_from(command.message.len()).unwrap_or(u64::MAX),
                reason: OmissionReason::Secret.into(),
            });
        };
        if self.forms.len() < MAX_PENDING {
            self.forms.insert(command.operation, form);
        }
        Content::Command(Command {
            message: message.into(),
            ..command
        })
    }

    fn reply(&mut self, reply: Reply) -> Option<Reply> {
        let form = self.forms.remove(&reply.operation)?;
        if reply.message.is_empty() {
            return Some(reply);
        }
        // The facts of a reply have no values, so they stay if the message cannot be redacted.
        let message = self.redactor.reply(form, &reply.message);
        Some(Reply {
            message: message.map_or_else(|_| Bytes::new(), Bytes::from),
            ..reply
        })
    }
}

fn reply_form(message: &[u8]) -> Option<ReplyForm> {
    let message = OpMsg::parse(message).ok()?;
    let command = Inspected::inspect(message.body).ok()?;
    Some(command.spec.reply_form)
}
