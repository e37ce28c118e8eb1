//! Records operations and replies in pins, credentials and statistics.

use std::sync::Arc;

use tokio::time::Instant;

use super::context::Operation;
use crate::{
    command::{Class, Command, ReplyFacts},
    observe::{CloseReason, Observation, Recorder, outcome_of},
    pins::{CursorPin, Pins, SessionKey},
    pool::Checkout,
    stats::Outcome,
    wire::Elements,
};

impl Operation<'_> {
    pub(super) fn note_retry(&self, observation: &mut Observation<'_>) {
        let user = self.identity.id().as_u64();
        note_retry(
            self.command,
            user,
            &self.shared.pins,
            &self.shared.recorder,
            observation,
        );
    }

    /// Attributes a `getMore` to the operation that opened its cursor, whatever its outcome.
    pub(super) fn note_origin(&self, observation: &mut Observation<'_>) {
        if self.command.class == Class::GetMore
            && let Some(id) = self.cursor_id()
            && let Some(pin) = self.shared.pins.cursor(id, observation.began())
            && let Some(origin) = pin.origin
        {
            observation.attribute_to(origin);
        }
    }

    pub(super) fn note_reply(
        &self,
        checkout: &Checkout,
        facts: &ReplyFacts,
        observation: &mut Observation<'_>,
    ) -> (Outcome, u64) {
        observation.record_reply(facts, Instant::now());
        if facts.is_opaque {
            self.shared.recorder.unobserved("reply_not_followed");
        }
        self.note_cursor(checkout, facts, observation);
        (outcome_of(facts), facts.documents())
    }

    fn note_cursor(&self, checkout: &Checkout, facts: &ReplyFacts, observation: &Observation<'_>) {
        if self.command.class == Class::KillCursors && facts.ok == Some(true) {
            self.cursor_ids()
                .for_each(|id| self.shared.pins.unpin_cursor(id));
        }
        match (facts.cursor_id, self.cursor_id()) {
            (Some(0), Some(exhausted)) => self.shared.pins.unpin_cursor(exhausted),
            (Some(id), None) if id != 0 => {
                let server = Arc::clone(checkout.pool());
                let pin = CursorPin {
                    server,
                    origin: observation.origin(),
                    is_awaiting: self.command.opens_awaiting_cursor(),
                    is_resumable: self.command.opens_change_stream(),
                };
                let user = self.identity.id().as_u64();
                if !self.shared.pins.pin_cursor(id, user, pin, Instant::now()) {
                    self.shared.recorder.unobserved("cursor_pins_full");
                }
            }
            _ => {}
        }
    }

    /// Handles an Unauthorized error. A missing right concerns only the user. If the user no longer
    /// exists, the connection is useless and is discarded.
    pub(super) fn note_unauthorized(&self, checkout: &mut Checkout, reply: &[u8]) {
        if !lost_its_user(reply) {
            return;
        }
        checkout.discard(CloseReason::Unauthorized);
        // For an anonymous client, the next connection finds out whether the server requires a
        // login.
        if !self.identity.is_anonymous() {
            let credentials = &self.shared.credentials;
            credentials.user_unknown_on_connection(self.identity);
        }
    }
}

/// Marks a retry. Drivers number their writes and transactions: the same number again means the
/// same write, or the same end of a transaction.
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
        None => recorder.unobserved("retries_not_told"),
    }
}

/// True if an error 13 says that the connection's user no longer exists. The text for a missing
/// right differs, and quotes the client's command, which may contain anything.
fn lost_its_user(reply: &[u8]) -> bool {
    let body = reply.get(crate::wire::HEADER_BYTES + 5..);
    let elements = body
        .into_iter()
        .flat_map(Elements::of)
        .filter_map(Result::ok);
    let mut errmsg = elements.filter(|element| element.name == b"errmsg");
    let text = errmsg.next().and_then(|element| element.value.as_str());
    text.is_some_and(|text| {
        text.starts_with("command ") && text.ends_with(" requires authentication")
    })
}
