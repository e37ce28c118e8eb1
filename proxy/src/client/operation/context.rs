//! The values that all steps of an operation use: its command, its client, and the ways in which it
//! can end.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::failure::{FailedCommand, Failure, error_reply};
use crate::{
    captures::RecordedCommand,
    client::{Shared, backlog::Forwarded, own_reply::ReplyTo, reply::HeldReply},
    limits::{Heavy, StepwiseTurn},
    observe::Observation,
    pins::SessionKey,
};
use seawall_auth::Identity;
use seawall_command::{Class, Command, CommandBytes, ErrorReply, ReadPreference, Target};
use seawall_stats::Outcome;
use seawall_transport::{Message, Sharer};
use seawall_wire::{Elements, OpMsg, Sequence};

/// Maximum number of cursors of one `killCursors` that Seawall looks up in the pins (the records of
/// their servers). Drivers name far fewer. A message has room for millions of cursors, and their
/// lookups would keep a thread from serving other clients.
pub(super) const MAX_INSPECTED_CURSORS: usize = 10_000;

/// One operation: its command, its client and its user, borrowed by all functions that serve it.
pub(super) struct Operation<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) identity: &'a Arc<Identity>,
    pub(super) message: &'a Message,
    pub(super) parsed: &'a OpMsg<'a>,
    pub(super) command: &'a Command<'a>,
    /// The element `$client` with the client's metadata, which Seawall adds to the command if
    /// `name_applications` is true. `None` if the client has sent no metadata, or if the element
    /// would be too large.
    pub(super) client_element: Option<&'a [u8]>,
    pub(super) announces_backpressure: bool,
    /// The IP address of the client; `None` over a unix socket.
    pub(super) peer: Option<IpAddr>,
    /// The address or user towards which the client counts when Seawall divides limited resources.
    pub(super) sharer: Sharer,
    pub(super) reply_to: ReplyTo,
    /// Set if the operation is recorded in a capture (a recording of some clients' messages).
    pub(super) recording: Option<&'a RecordedCommand>,
}

/// The way in which an operation ends for its client.
pub(super) enum AttemptEnd {
    /// The client gets this complete reply. The `u64` is the number of documents in the reply.
    Reply(HeldReply, Outcome, u64),
    /// The client gets this error from Seawall.
    Error(ErrorReply, Outcome),
    /// The reply was forwarded as it arrived. Only the bytes that the client has not read yet (the
    /// backlog) must still be sent.
    Forwarded(Box<Forwarded>, Outcome),
    /// The client has left.
    Gone,
    /// The client connection has to be closed.
    Close(Outcome),
}

/// Result of one attempt to run the operation at a server.
pub(super) enum Attempt {
    /// The operation has ended.
    Ended(AttemptEnd),
    /// The attempt failed. The caller decides whether it sends the operation again. If it does not,
    /// the client gets this error.
    Again {
        error: ErrorReply,
        /// True if the server may have run the operation.
        may_have_run: bool,
    },
}

impl Operation<'_> {
    pub(super) fn heavy(&self) -> Heavy<'_> {
        self.shared.limits.heavy(self.sharer)
    }

    pub(super) fn forwarding(&self) -> StepwiseTurn<'_> {
        self.shared.limits.forwarding().stepwise(self.sharer)
    }

    /// True if Seawall may send the operation a second time. False for a streamed request, because
    /// its bytes are forwarded as they arrive and are not kept.
    pub(super) fn may_be_repeated(&self) -> bool {
        self.shared.settings().repeats && self.command.may_be_repeated() && !self.message.is_head()
    }

    /// Returns `until`, or the end of the operation's own time limit if that is earlier.
    pub(super) fn within_time_limit(
        &self,
        observation: &Observation<'_>,
        until: Instant,
    ) -> Instant {
        match self.time_limit() {
            Some(limit) => until.min(observation.began() + limit),
            None => until,
        }
    }

    /// The client's time limit for the whole operation, from `maxTimeMS`. `None` if the command
    /// sets no limit. Also `None` for every `getMore`: its `maxTimeMS` says how long the server
    /// waits for data.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        let is_limit = self.command.class != Class::GetMore;
        self.max_time().filter(|_| is_limit)
    }

    /// The command's `maxTimeMS`; `None` if the field is missing, its value is 0, or servers refuse
    /// the value. Seawall does not change a value that servers refuse.
    pub(super) fn max_time(&self) -> Option<Duration> {
        let valid = self.command.max_time;
        let valid = valid.filter(|_| !self.command.has_invalid_max_time);
        let milliseconds = valid?.milliseconds;
        u64::try_from(milliseconds)
            .ok()
            .filter(|ms| *ms > 0)
            .map(Duration::from_millis)
    }

    /// True if the command's `maxTimeMS` is 0.
    pub(super) fn has_zero_max_time(&self) -> bool {
        let max_time = self.command.max_time;
        max_time.is_some_and(|max_time| max_time.milliseconds == 0)
    }

    /// The read preference for server selection. All writes, and all commands of a transaction, go
    /// to the primary.
    pub(super) fn read_preference(&self) -> ReadPreference {
        match self.command.read_preference {
            Some(document) if self.transaction().is_none() && !self.command.writes() => {
                // A command with a malformed read preference goes to the primary, which replies
                // with the correct error.
                ReadPreference::parse(document).unwrap_or(ReadPreference::PRIMARY)
            }
            // Drivers send such commands to the server that they have selected, without a read
            // preference. So these commands must not wait for a primary.
            None if self.command.spec.runs_on_any_member && self.transaction().is_none() => {
                ReadPreference::PRIMARY_PREFERRED
            }
            None if self.needs_read_preference() => ReadPreference::PRIMARY_PREFERRED,
            _ => ReadPreference::PRIMARY,
        }
    }

    /// True if Seawall must add the read preference `primaryPreferred` to the command. Drivers add
    /// it if they are directly connected to a member of a replica set, which may be a secondary.
    /// They do not add it for a router, and to them, Seawall is a router. With this read
    /// preference, Seawall also sends reads to a member that has just stepped down, as drivers do.
    ///
    /// Source: the Server Selection specification, "Topology type: Single",
    /// <https://github.com/mongodb/specifications/tree/master/source/server-selection>.
    pub(super) fn needs_read_preference(&self) -> bool {
        self.shared.routing.topology.is_direct_to_member()
            && !self.command.has_read_preference
            && !self.command.writes()
            && self.transaction().is_none()
    }

    /// The session and `txnNumber` of the operation's transaction; `None` outside transactions.
    pub(super) fn transaction(&self) -> Option<(SessionKey, i64)> {
        let is_part = self.command.in_transaction || self.command.class.ends_transaction();
        let (lsid, number) = self
            .command
            .lsid
            .zip(self.command.txn_number)
            .filter(|_| is_part)?;
        Some((
            SessionKey {
                user: self.identity.id().as_u64(),
                lsid,
            },
            number,
        ))
    }

    /// The cursor of a `getMore`, or the first cursor of a `killCursors`; else `None`.
    pub(super) fn cursor_id(&self) -> Option<i64> {
        match (self.command.class, self.command.target) {
            (Class::GetMore, Target::Number(id)) => Some(id),
            (Class::KillCursors, _) => self.cursor_ids().next(),
            _ => None,
        }
    }

    /// The first cursors that a `killCursors` names, at most [`MAX_INSPECTED_CURSORS`].
    pub(super) fn cursor_ids(&self) -> impl Iterator<Item = i64> {
        cursor_ids(self.command).take(MAX_INSPECTED_CURSORS)
    }

    /// True if the operation uses a cursor that its driver can reopen on another server.
    pub(super) fn is_resumable(&self) -> bool {
        let pins = &self.shared.routing.pins;
        let pin = self
            .cursor_id()
            .and_then(|id| pins.cursor(id, Instant::now()));
        pin.is_some_and(|pin| pin.is_resumable)
    }

    /// Builds the error reply for a failure of this operation.
    pub(super) fn error(&self, failure: &Failure) -> ErrorReply {
        let command = FailedCommand {
            name: self.command.name_str(),
            class: self.command.class,
            in_transaction: self.command.in_transaction,
            may_be_repeated: self.command.may_be_repeated(),
            cursor: self.cursor_id(),
            is_resumable: self.is_resumable(),
            announces_backpressure: self.announces_backpressure,
        };
        error_reply(&command, failure)
    }
}

/// The cursors that a `killCursors` names.
pub(in crate::client) fn cursor_ids(command: &Command<'_>) -> impl Iterator<Item = i64> {
    let cursors = command.cursors.unwrap_or_default();
    let ids = Elements::of(cursors).map_while(Result::ok);
    ids.filter_map(|id| id.value.as_i64())
}

/// Returns the document sequences of a message. Unused entries at the end of the array are empty.
pub(in crate::client) fn sequences<'a>(
    parsed: &OpMsg<'a>,
) -> [Sequence<'a>; seawall_wire::MAX_SEQUENCES] {
    const NONE: Sequence<'_> = Sequence {
        identifier: &[],
        documents: &[],
    };
    let mut sequences = [NONE; seawall_wire::MAX_SEQUENCES];
    for (entry, sequence) in sequences.iter_mut().zip(parsed.sequences()) {
        *entry = Sequence {
            identifier: sequence.identifier,
            documents: sequence.documents,
        };
    }
    sequences
}

/// Returns the bytes of the command in a message: its body and its document sequences. `all` are
/// the [`sequences`] of the message.
pub(in crate::client) fn input<'a>(
    parsed: &OpMsg<'a>,
    all: &'a [Sequence<'a>; seawall_wire::MAX_SEQUENCES],
) -> CommandBytes<'a> {
    let count = parsed.sequences().count();
    CommandBytes {
        body: parsed.body,
        sequences: all.get(..count).unwrap_or_default(),
    }
}
