//! Redacts the records of a capture.

use std::collections::BTreeMap;

use bytes::Bytes;
use seawall_capture::record::{
    Command, Content, End, Header, OmissionReason, Omitted, Redaction, Reply,
};
use seawall_command::{Command as Inspected, ReplyForm};
use seawall_wire::OpMsg;

use crate::{Mode, Redactor};

/// Maximum number of operations whose command has been read, but whose reply has not. Their reply
/// forms (the fields in which a reply contains the results) are kept in memory. A recording may
/// lack replies. So if one more command is read, the operation with the lowest number is forgotten,
/// and its reply gives no record.
const MAX_PENDING: usize = 100_000;

/// Redacts the records of one capture, in their order. A command that cannot be redacted is
/// omitted, together with its reply. If the message of a reply cannot be redacted, only the message
/// is omitted; the record of the reply stays.
#[derive(Debug)]
pub struct Records {
    redactor: Redactor,
    /// For each operation whose reply has not been read: the fields in which this reply contains
    /// the results.
    forms: BTreeMap<u64, ReplyForm>,
    /// Number of operations that this redaction omitted.
    operations: u64,
    /// Number of operations, and of messages of replies, that this redaction omitted.
    omitted: u64,
}

impl Records {
    /// Creates the state for one capture. The caller passes the records in order, from the first
    /// record after the header.
    pub fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            forms: BTreeMap::new(),
            operations: 0,
            omitted: 0,
        }
    }

    /// Sets the field of the header that says how values are replaced.
    pub fn mark(&self, header: &mut Header) {
        header.set_redaction(match self.redactor.mode {
            Mode::Equality => Redaction::Equality,
            Mode::Ordered => Redaction::Ordered,
        });
    }

    /// Redacts the next record. If a command, or the message of a reply, cannot be redacted, the
    /// result has a record with the reason [`OmissionReason::NotRedactable`]. The reply to an
    /// omitted or forgotten command gives no record.
    pub fn redact(&mut self, record: Content) -> impl Iterator<Item = Content> + use<> {
        let (record, omitted) = match record {
            Content::Command(command) => self.command(command),
            Content::Reply(reply) => self.reply(reply),
            Content::End(end) => (Some(Content::End(self.end(end))), None),
            Content::Header(_)
            | Content::ClientBegan(_)
            | Content::ClientEnded(_)
            | Content::Omitted(_)
            | Content::Event(_) => (Some(record), None),
        };
        record.into_iter().chain(omitted.map(Content::Omitted))
    }

    /// Corrects the counts of the `End` record. Operations that the redaction omitted no longer
    /// count as recorded: they count as omitted. Omitted messages of replies also count as omitted.
    pub fn end(&self, end: End) -> End {
        End {
            operations: end.operations.saturating_sub(self.operations),
            omitted: end.omitted.saturating_add(self.omitted),
            ..end
        }
    }

    fn command(&mut self, command: Command) -> (Option<Content>, Option<Omitted>) {
        let Some((form, message)) = self.redacted(&command.message) else {
            let bytes = command.message.len();
            let omitted = self.omit(command.client, command.at_us, 1, bytes);
            return (None, Some(omitted));
        };
        if self.forms.len() >= MAX_PENDING {
            self.forms.pop_first();
        }
        self.forms.insert(command.operation, form);
        let message = message.into();
        (Some(Content::Command(Command { message, ..command })), None)
    }

    /// Returns the form of the command's reply (the fields in which the reply contains the
    /// results), and the redacted command. `None` if the command cannot be redacted.
    fn redacted(&self, message: &[u8]) -> Option<(ReplyForm, Vec<u8>)> {
        let form = reply_form(message)?;
        Some((form, self.redactor.command(message).ok()?))
    }

    fn reply(&mut self, reply: Reply) -> (Option<Content>, Option<Omitted>) {
        let Some(form) = self.forms.remove(&reply.operation) else {
            return (None, None);
        };
        if reply.message.is_empty() {
            return (Some(Content::Reply(reply)), None);
        }
        // If the message cannot be redacted, `facts` stay, because they have no values of users.
        let (message, omitted) = match self.redactor.reply(form, &reply.message) {
            Ok(message) => (message.into(), None),
            Err(_) => {
                let omitted = self.omit(0, reply.at_us, 0, reply.message.len());
                (Bytes::new(), Some(omitted))
            }
        };
        (Some(Content::Reply(Reply { message, ..reply })), omitted)
    }

    fn omit(&mut self, client: u64, at_us: u64, operations: u64, bytes: usize) -> Omitted {
        self.operations += operations;
        self.omitted += 1;
        Omitted {
            client,
            at_us,
            operations,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            reason: OmissionReason::NotRedactable.into(),
        }
    }
}

fn reply_form(message: &[u8]) -> Option<ReplyForm> {
    let message = OpMsg::parse(message).ok()?;
    let command = Inspected::inspect(message.body).ok()?;
    Some(command.spec.reply_form)
}
