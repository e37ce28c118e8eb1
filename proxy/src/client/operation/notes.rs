//! Records facts about operations and replies in the pins (which server has a cursor or
//! transaction), the topology, the credentials and the statistics.

use std::sync::Arc;

use tokio::time::Instant;

use super::context::Operation;
use crate::{
    observe::{CloseReason, Observation, Recorder, outcome_of},
    pins::{CursorPin, Pins, SessionKey},
    pool::Checkout,
};
use seawall_command::{Class, Command, MAX_TIME_MS_EXPIRED, ReplyFacts, UNAUTHORIZED};
use seawall_stats::Outcome;
use seawall_wire::Elements;

/// Errors of a `getMore` after which its cursor no longer exists: 43 `CursorNotFound`, 175
/// `QueryPlanKilled` and 237 `CursorKilled`.
const CURSOR_ENDED: [i32; 3] = [43, 175, 237];

/// The kind of an object that an operation names but this instance of Seawall does not know.
#[derive(Clone, Copy, Debug)]
enum Foreign {
    Cursor,
    Transaction,
}

impl Foreign {
    /// The value of the metric label `kind`.
    fn as_str(self) -> &'static str {
        match self {
            Self::Cursor => "cursor",
            Self::Transaction => "transaction",
        }
    }
}

impl Operation<'_> {
    pub(super) fn note_retry(&self, observation: &mut Observation<'_>) {
        let user = self.identity.id().as_u64();
        note_retry(
            self.command,
            user,
            &self.shared.routing.pins,
            &self.shared.recorder,
            observation,
        );
    }

    /// Called at the end of a commit or abort. Restarts the time for which Seawall remembers the
    /// command, so that it recognises a retry. A driver sends a retry only after the end of the
    /// command. If the command waited long for its router, this time may already be over.
    pub(super) fn note_end_of_transaction(&self) {
        if self.command.class.ends_transaction()
            && let Some((key, number)) = self.transaction()
        {
            let pins = &self.shared.routing.pins;
            pins.renew_write(key, number, Instant::now());
        }
    }

    /// In the statistics, counts a `getMore` under the shape (the command without its values) of
    /// the operation that opened its cursor. If the cursor is unknown, counts and logs the
    /// `getMore` as an operation on an unknown cursor.
    pub(super) fn note_origin(&self, observation: &mut Observation<'_>) {
        if self.command.class != Class::GetMore {
            return;
        }
        let Some(id) = self.cursor_id() else { return };
        let now = observation.began();
        match self.shared.routing.pins.cursor(id, now) {
            Some(pin) => {
                if let Some(origin) = pin.origin {
                    observation.attribute_to(origin);
                }
            }
            None => self.note_foreign(Foreign::Cursor, now),
        }
    }

    /// Counts and logs the statement if its transaction needs a pin (the record of its router) but
    /// has none. Ignores the first statement of a transaction, because the pin is created when a
    /// router has been selected for this statement.
    pub(super) fn note_unknown_transaction(&self, now: Instant) {
        if self.command.starts_transaction {
            return;
        }
        let Some((key, number)) = self.pinned_transaction() else {
            return;
        };
        let pins = &self.shared.routing.pins;
        if pins.transaction(key, number, now).is_none() {
            self.note_foreign(Foreign::Transaction, now);
        }
    }

    /// Counts an operation on a cursor or transaction that this instance does not know, and logs at
    /// most one of each kind a minute. This happens, for example, if a load balancer spreads the
    /// connections of one client over several instances, which do not share their pins. Such an
    /// operation may reach a server that does not have the cursor or transaction.
    fn note_foreign(&self, kind: Foreign, now: Instant) {
        let routing = &self.shared.routing;
        self.shared.recorder.count_foreign_operation(kind.as_str());
        let log = match kind {
            Foreign::Cursor => &routing.foreign_cursors,
            Foreign::Transaction => &routing.foreign_transactions,
        };
        if let Some(operations) = log.count(now) {
            tracing::warn!(
                kind = kind.as_str(),
                operations,
                "operation on a cursor or transaction that this instance does not know; if several instances of Seawall share one address, clients must set loadBalanced=true"
            );
        }
    }

    /// Updates the pins, the topology and the statistics from the facts of a reply (the values that
    /// Seawall has read from it). Returns the operation's outcome, and the number of documents in
    /// the reply.
    pub(super) fn note_reply(
        &self,
        checkout: &Checkout,
        facts: &ReplyFacts,
        observation: &mut Observation<'_>,
        now: Instant,
    ) -> (Outcome, u64) {
        observation.record_reply(facts, now);
        if facts.is_opaque {
            self.shared.recorder.count_unobserved("reply_not_followed");
        }
        self.note_cursor(checkout, facts, observation, now);
        if let Some(code) = facts.state_change {
            let topology = &self.shared.routing.topology;
            topology.report_state_change(checkout.pool(), checkout.generation(), code);
        }
        (outcome_of(facts), facts.documents())
    }

    /// Pins the cursor that the reply opened (records its server), and unpins cursors that are
    /// exhausted, killed or not found.
    fn note_cursor(
        &self,
        checkout: &Checkout,
        facts: &ReplyFacts,
        observation: &Observation<'_>,
        now: Instant,
    ) {
        let (pins, user) = (&self.shared.routing.pins, self.identity.id().as_u64());
        if self.command.class == Class::KillCursors && facts.ok == Some(true) {
            for id in self.cursor_ids() {
                pins.unpin_cursor(id, user);
            }
        }
        let has_lost_its_cursor =
            self.command.class == Class::GetMore && reports_lost_cursor(facts);
        match (facts.cursor_id, self.cursor_id()) {
            (None, Some(ended)) if has_lost_its_cursor => pins.unpin_cursor(ended, user),
            (Some(0), Some(exhausted)) => pins.unpin_cursor(exhausted, user),
            (Some(id), None) if id != 0 => {
                let server = Arc::clone(checkout.pool());
                let pin = CursorPin {
                    server,
                    origin: observation.origin(),
                    is_awaiting: self.command.opens_awaiting_cursor(),
                    is_resumable: self.command.opens_change_stream(),
                };
                if !pins.pin_cursor(id, user, pin, now) {
                    self.shared.recorder.count_unobserved("cursor_pins_full");
                }
            }
            _ => {}
        }
    }

    /// Updates the checkout and the credentials from the error code in a complete reply. `body` is
    /// the document of the reply.
    ///
    /// - Unauthorized (13): if the connection's user no longer exists, discards the connection and
    ///   ends the user's identity. If the user lacks a privilege, nothing changes.
    /// - `MaxTimeMSExpired` (50): marks the operation as expired.
    pub(super) fn note_error(&self, checkout: &mut Checkout, facts: &ReplyFacts, body: &[u8]) {
        match facts.code {
            Some(MAX_TIME_MS_EXPIRED) => checkout.mark_expired(),
            Some(UNAUTHORIZED) if lost_its_user(body) => self.note_dropped_user(checkout),
            _ => {}
        }
    }

    fn note_dropped_user(&self, checkout: &mut Checkout) {
        checkout.discard(CloseReason::Unauthorized);
        // An anonymous client has no user, so nothing is recorded. When the next connection for
        // anonymous clients is established, Seawall finds out if the server requires a login.
        if !self.identity.is_anonymous() {
            let credentials = &self.shared.logins.credentials;
            credentials.record_dropped_user(self.identity);
        }
    }
}

/// True if the reply to a `getMore` says that its cursor no longer exists.
pub(in crate::client) fn reports_lost_cursor(facts: &ReplyFacts) -> bool {
    let code = facts.error_code();
    code.is_some_and(|code| CURSOR_ENDED.contains(&code))
}

/// Marks an operation as a retry if its driver has sent the same operation before. Drivers number
/// the writes and transactions of each session: a number that arrives twice in a session means the
/// same write, commit or abort.
pub(in crate::client) fn note_retry<S: Clone>(
    command: &Command<'_>,
    user: u64,
    pins: &Pins<S>,
    recorder: &Recorder,
    observation: &mut Observation<'_>,
) {
    let Some((lsid, number)) = command.numbered() else {
        return;
    };
    match pins.record_write(SessionKey { user, lsid }, number, observation.began()) {
        Some(true) => observation.mark_retry(),
        Some(false) => {}
        None => recorder.count_unobserved("retries_not_told"),
    }
}

/// True if an error 13 says that the connection's user no longer exists. The error for a missing
/// privilege has the same code but another text, which quotes the client's command and so may
/// contain anything. Therefore the check compares the start and the end of the text.
fn lost_its_user(body: &[u8]) -> bool {
    let elements = Elements::of(body).filter_map(Result::ok);
    let mut errmsg = elements.filter(|element| element.name == b"errmsg");
    let text = errmsg.next().and_then(|element| element.value.as_str());
    text.is_some_and(|text| {
        // Newer servers begin the text with a capital letter.
        let names_command = text.starts_with("command ") || text.starts_with("Command ");
        names_command && text.ends_with(" requires authentication")
    })
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    /// The error for a missing privilege has the code 13, too. It quotes the client's command. This
    /// command may contain the words of the error for a dropped user.
    #[test]
    fn an_error_13_shows_by_its_text_if_the_user_of_the_connection_was_dropped() {
        for (text, is_lost) in [
            ("command find requires authentication", true),
            ("Command find requires authentication", true),
            ("not authorized to run { x requires authentication", false),
            ("Command find requires authentication\" }", false),
        ] {
            let body = rawdoc! { "ok": 0.0, "errmsg": text, "code": 13 };
            assert_eq!(lost_its_user(body.as_bytes()), is_lost, "{text}");
        }
    }
}
