//! One operation, from its message to its reply. Only this file knows the order of the steps.
//!
//! ```text
//! operate ─► run ─┬─ awaits data: slices, each with a permit of the server's lane
//!                 ├─ killCursors on several servers: one part for each server
//!                 └─ else: one attempt, and a second one if that is safe
//!                          └─► send_once = routing (a checkout, or a failure)
//!                                          and exchange (the reply)
//! ```
//!
//! A server's lane limits how many connections to the server are used by operations that wait for
//! data (see [`slices`]). `context` has the values that all steps use. `admission` has the steps
//! before the operation runs. `delivery` sends whole replies, `refusal` ends an operation without a
//! server, and `failure` maps a failure to its error reply.

mod admission;
mod capture;
mod context;
mod delivery;
mod exchange;
mod failure;
mod kill_cursors;
mod notes;
mod refusal;
mod routing;
mod slices;

use std::{pin::pin, sync::Arc};

use bson::RawDocument;
use tokio::time::Instant;

use self::{
    capture::{arrived, record_command},
    context::{Attempt, AttemptEnd, Operation},
    failure::NO_WRITES_PERFORMED,
    routing::CheckOutFailure,
    slices::DataWait,
};
pub(super) use self::{
    context::{cursor_ids, input, sequences},
    notes::{note_retry, reports_lost_cursor},
};
use super::{Client, End, client_end::ClientEnd, own_reply::ReplyTo, reply::HeldReply};
use crate::{limits::Heavy, observe::Observation};
use seawall_auth::Identity;
use seawall_command::{Class, Command, ErrorReply};
use seawall_stats::{Outcome, Phase};
use seawall_transport::Message;
use seawall_wire::OpMsg;

impl Client {
    /// Serves an operation that needs a server.
    pub(super) async fn operate(
        &mut self,
        message: &Message,
        identity: Arc<Identity>,
        parsed: &OpMsg<'_>,
        command: &Command<'_>,
        reply_to: ReplyTo,
        now: Instant,
    ) -> Result<(), End> {
        let sequences = sequences(parsed);
        let input = input(parsed, &sequences);
        let (shared, connected, captured) = (&self.shared, &self.connected, &mut self.captured);
        let (size, bytes) = (message.header.message_length, message.bytes.len());
        let user = (identity.name(), identity.source());
        // The recording and the observation each need a pass over the whole command. For a long
        // command, the passes wait for a turn (`Heavy::walk`).
        let mut begin = || {
            let arrived = arrived(message, command, &input, now);
            let recording = record_command(&shared.captures, captured, connected, &arrived);
            let observation = shared.recorder.begin_for(user, &input, size, now);
            (recording, observation)
        };
        let (recording, mut observation) = match Heavy::is_long_walk(bytes) {
            false => begin(),
            true => Box::pin(shared.limits.heavy(self.sharer).walk(bytes, begin)).await,
        };
        observation.set_sender(connected, identity.id().as_u64(), Some(input));
        if message.is_head() {
            observation.mark_streamed();
        }
        let operation = Operation {
            shared,
            identity: &identity,
            message,
            parsed,
            command,
            client_element: self.client_element.as_deref(),
            announces_backpressure: self.announces_backpressure,
            peer: self.peer.ip,
            sharer: self.sharer,
            reply_to,
            recording: recording.as_ref(),
        };
        let mut end = ClientEnd {
            stream: &mut self.stream,
            reader: &mut self.reader,
            write_idle: shared.settings().client_write_idle_timeout,
            is_awaiting: !reply_to.is_unwanted(),
            ends_if_gone: !reply_to.is_unwanted() || command.only_reads(),
            gave_up: false,
        };
        let mut ended = operation.run(&mut end, &mut observation).await;
        operation.record_end(&mut ended);
        let (sent, outcome) = match ended {
            AttemptEnd::Gone => (Err(end.end()), Outcome::ClientGone),
            AttemptEnd::Close(outcome) => {
                observation.finish_closed(outcome, Instant::now());
                return Err(End::Closed);
            }
            AttemptEnd::Forwarded(forwarded, outcome) => {
                let sending = forwarded.backlog.send(&mut end, operation.forwarding());
                (sending.await.map_err(|_| end.end()), outcome)
            }
            AttemptEnd::Reply(reply, outcome, documents) => {
                let sent = operation.send(reply, documents, &mut end, &mut observation);
                (sent.await, outcome)
            }
            AttemptEnd::Error(error, outcome) => {
                observation.set_error_code(error.code);
                let bytes = reply_to.encode(0, &error.to_document());
                let reply = HeldReply { bytes, share: None };
                let sent = operation.send(reply, 0, &mut end, &mut observation);
                (sent.await, outcome)
            }
        };
        finish(observation, outcome, &sent);
        sent
    }
}

/// Ends the observation of an operation. `sent` is the result of sending its reply.
fn finish(observation: Observation<'_>, outcome: Outcome, sent: &Result<(), End>) {
    match sent {
        Ok(()) => observation.finish(outcome, Instant::now()),
        Err(End::Closed) => observation.finish_closed(Outcome::ClientGone, Instant::now()),
        // The drop of the observation counts the client as gone.
        Err(End::Gone | End::Relayed) => {}
    }
}

impl Operation<'_> {
    async fn run(&self, end: &mut ClientEnd<'_>, observation: &mut Observation<'_>) -> AttemptEnd {
        self.note_retry(observation);
        self.note_origin(observation);
        let cursor = self
            .cursor_id()
            .filter(|_| self.command.class == Class::GetMore);
        let pins = &self.shared.routing.pins;
        let _use = cursor.and_then(|id| pins.begin_use(id, observation.began()));
        self.note_unknown_transaction(observation.began());
        if let Some(ended) = self.check_identity(end).await {
            return ended;
        }
        if let Some(ended) = self.inject_fault(end).await {
            return ended;
        }
        if let Some(wait) = self.wait(observation.began()) {
            observation.mark_awaiting();
            return Box::pin(self.run_in_slices(&wait, end, observation)).await;
        }
        let permit = match self.admit(end, observation).await {
            Some(Ok(permit)) => permit,
            // The future is boxed, so that the future of every operation stays small.
            Some(Err(failure)) => return Box::pin(self.refuse(end, failure, observation)).await,
            None => return AttemptEnd::Gone,
        };
        if let Some(parts) = self.parts(observation.began()) {
            return Box::pin(self.kill_in_parts(parts, end, observation)).await;
        }
        let (error, may_have_run) = match self.send_once(end, observation).await {
            Ok(Attempt::Again {
                error,
                may_have_run,
            }) if self.may_be_repeated() => (error, may_have_run),
            Ok(ended) => {
                self.note_end_of_transaction();
                return end_of_attempt(ended);
            }
            Err(failure) => {
                // The error may be delayed for seconds, and the operation needs no permit during
                // this time.
                drop(permit);
                let refused = Box::pin(self.refuse(end, failure, observation)).await;
                self.note_end_of_transaction();
                return refused;
            }
        };
        observation.mark_repeated(Instant::now());
        let second = match self.send_once(end, observation).await {
            Ok(ended) => end_of_attempt(ended),
            Err(failure) => {
                drop(permit);
                Box::pin(self.refuse(end, failure, observation)).await
            }
        };
        match self.command.only_reads() {
            true => second,
            false => end_of_both_attempts(error, may_have_run, second),
        }
    }

    /// Splits the operation's wait for data into slices (see [`slices`]), and sends the command
    /// once for each slice. Ends when the client has left, or when [`Self::should_continue`] is
    /// false, for example when data arrives or the wait is over. If no further slice can begin in
    /// time, the client gets the empty reply of the last slice, as at the end of a wait.
    async fn run_in_slices(
        &self,
        wait: &DataWait,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
    ) -> AttemptEnd {
        let mut empty = None;
        loop {
            // The client may lose its login during a slice.
            if empty.is_some()
                && let Some(ended) = self.check_identity(end).await
            {
                return ended;
            }
            let next = {
                let next = pin!(self.next_slice(wait, empty.is_some(), observation));
                end.unless_gone(next).await
            };
            let (slice, checkout) = match next {
                Some(Ok(next)) => next,
                Some(Err(failure)) => {
                    return match empty.filter(|_| failure.may_be_temporary()) {
                        Some(empty) => empty,
                        None => self.refuse(end, failure, observation).await,
                    };
                }
                None => return AttemptEnd::Gone,
            };
            let attempt = self.attempt(end, checkout, observation, Some(slice));
            let ended = end_of_attempt(attempt.await);
            // During a slice, Seawall does not notice that the client has left if the client has
            // sent more bytes than the reader may read ahead.
            if end.stream.peer_has_left() || !self.should_continue(wait, slice, &ended) {
                return ended;
            }
            empty = Some(ended);
        }
    }

    /// Checks out a connection and sends the command over it.
    ///
    /// # Errors
    /// If the operation gets no connection.
    async fn send_once(
        &self,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
    ) -> Result<Attempt, CheckOutFailure> {
        let began = Instant::now();
        observation.enter(Phase::Checkout, began);
        let checked_out = {
            let checkout = pin!(self.check_out(observation, began, false));
            end.unless_gone(checkout).await
        };
        match checked_out {
            Some(Ok(checkout)) => Ok(self.attempt(end, checkout, observation, None).await),
            Some(Err(failure)) => Err(failure),
            None => Ok(Attempt::Ended(AttemptEnd::Gone)),
        }
    }
}

/// The end of an operation after its last attempt.
fn end_of_attempt(last: Attempt) -> AttemptEnd {
    match last {
        Attempt::Ended(ended) => ended,
        Attempt::Again { error, .. } => AttemptEnd::Error(error, Outcome::ServerFailed),
    }
}

/// The end of an operation that may write, after its second attempt. `first` is the error of the
/// first attempt, and `may_have_run` is true if the first server may have run the write. The client
/// gets `first` in two cases:
///
/// - Seawall refused the second attempt, so no server received this attempt.
/// - The second server says that it wrote nothing, but the first server may have written.
fn end_of_both_attempts(first: ErrorReply, may_have_run: bool, second: AttemptEnd) -> AttemptEnd {
    match second {
        AttemptEnd::Error(_, Outcome::Refused) => AttemptEnd::Error(first, Outcome::ServerFailed),
        AttemptEnd::Reply(reply, Outcome::Error, _)
            if may_have_run && has_written_nothing(&reply.bytes) =>
        {
            AttemptEnd::Error(first, Outcome::ServerFailed)
        }
        ended => ended,
    }
}

/// True if an `OP_MSG` reply has the label [`NO_WRITES_PERFORMED`].
fn has_written_nothing(reply: &[u8]) -> bool {
    let document = OpMsg::parse(reply).ok().map(|reply| reply.body);
    let document = document.and_then(|body| RawDocument::from_bytes(body).ok());
    let labels = document.and_then(|document| document.get_array("errorLabels").ok());
    let mut labels = labels.into_iter().flatten().filter_map(Result::ok);
    labels.any(|label| label.as_str() == Some(NO_WRITES_PERFORMED))
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use seawall_command::{HOST_UNREACHABLE, INGRESS_RATE_LIMIT_EXCEEDED, RETRYABLE_WRITE_ERROR};
    use seawall_wire::encode_op_msg_like;

    use super::*;

    #[test]
    fn the_client_gets_the_first_error_if_only_the_first_attempt_of_a_write_may_have_written() {
        for (may_have_run, label, is_first) in [
            (true, NO_WRITES_PERFORMED, true),
            (true, RETRYABLE_WRITE_ERROR, false),
            (false, NO_WRITES_PERFORMED, false),
        ] {
            let reply = rawdoc! { "ok": 0, "code": 91, "errorLabels": [label] };
            let bytes = encode_op_msg_like(0, 1, 7, reply.as_bytes());
            let reply = HeldReply { bytes, share: None };
            let second = AttemptEnd::Reply(reply, Outcome::Error, 0);
            let first = ErrorReply::new(6, "first");
            let ended = end_of_both_attempts(first, may_have_run, second);
            assert_eq!(matches!(ended, AttemptEnd::Error(..)), is_first, "{label}");
        }
    }

    #[test]
    fn the_client_gets_the_first_error_if_the_second_attempt_of_a_write_reaches_no_server() {
        let first = || {
            let error = ErrorReply::new(HOST_UNREACHABLE, "first");
            error.with_labels(&[RETRYABLE_WRITE_ERROR])
        };
        let second = || ErrorReply::new(INGRESS_RATE_LIMIT_EXCEEDED, "second");
        let error = AttemptEnd::Error;
        let again = |error| Attempt::Again {
            error,
            may_have_run: true,
        };
        for (attempt, message, outcome) in [
            (
                error(second(), Outcome::Refused),
                "first",
                Outcome::ServerFailed,
            ),
            (error(second(), Outcome::Error), "second", Outcome::Error),
            (
                end_of_attempt(again(second())),
                "second",
                Outcome::ServerFailed,
            ),
        ] {
            let AttemptEnd::Error(reply, found) = end_of_both_attempts(first(), true, attempt)
            else {
                panic!("both attempts end with an error");
            };
            assert_eq!((&*reply.message, found), (message, outcome));
            let may_be_retried = reply.labels == [RETRYABLE_WRITE_ERROR];
            assert_eq!(may_be_retried, message == "first");
        }
    }
}
