//! One operation, from its message to its reply. Only this file knows the order of the steps.
//!
//! ```text
//! operate ─► run ─┬─ awaits data: slices, each with a permit of the server's lane ┐
//!                 ├─ killCursors on several servers: one part for each server     │
//!                 └─ else: one attempt, and a second one if that is safe          │
//!                          │                                                      │
//!                          └─► send_once = routing (a checkout, or a failure) ◄───┘
//!                                          and exchange (the reply)
//! ```
//!
//! A server's lane limits how many connections to the server are used by operations that wait for
//! data ([`LanePermit`]). `context` has the values that all steps use, and `failure` maps a failure
//! to its error reply.

mod capture;
mod context;
mod exchange;
mod failure;
mod kill_cursors;
mod notes;
mod routing;
mod slices;

use std::{pin::pin, sync::Arc};

use tokio::time::{Instant, sleep, sleep_until, timeout_at};

pub(super) use self::notes::note_retry;
use self::{
    context::{Attempt, AttemptEnd, Operation},
    failure::Failure,
    routing::CheckOutFailure,
    slices::{Slice, Wait},
};
use super::{
    Client, End, backlog::Backlog, client_end::ClientEnd, fault::FaultEnd, own_reply::ReplyTo,
    reply::HeldReply,
};
use crate::{
    limits::{Heavy, OperationPermit, Operator},
    observe::Observation,
    pool::{LanePermit, Overload},
    topology::TopologyType,
};
use seawall_auth::{Identity, IdentityStatus};
use seawall_command::CommandBytes;
use seawall_command::{Command, ErrorReply};
use seawall_stats::{Outcome, Phase};
use seawall_transport::Message;
use seawall_wire::OpMsg;
use seawall_wire::Sequence;

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
        let recording = self.record(message, command, &input, now);
        let shared = &self.shared;
        let request_bytes = message.header.message_length;
        let bytes = message.bytes.len();
        let begun = || shared.recorder.begin(&input, request_bytes, now);
        let mut observation = match Heavy::is_long_walk(bytes) {
            false => begun(),
            true => Box::pin(shared.limits.heavy(self.sharer).walk(bytes, begun)).await,
        };
        observation.set_sender(&self.connected, identity.id().as_u64(), Some(input));
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
            sharer: self.sharer,
            reply_to,
            recording: recording.as_ref(),
        };
        let mut end = ClientEnd {
            stream: &mut self.stream,
            reader: &mut self.reader,
            write_idle: shared.settings().client_write_idle_timeout,
            is_awaiting: !reply_to.is_unwanted(),
        };
        let mut ended = operation.run(&mut end, &mut observation).await;
        operation.record_end(&mut ended);
        let outcome = match ended {
            AttemptEnd::Gone => return Err(End::Gone),
            AttemptEnd::Close(outcome) => {
                observation.finish(outcome, Instant::now());
                return Err(End::Closed);
            }
            AttemptEnd::Forwarded(forwarded, outcome) => {
                forwarded
                    .backlog
                    .send(&mut end, operation.forwarding())
                    .await
                    .map_err(|_| End::Gone)?;
                outcome
            }
            AttemptEnd::Reply(reply, outcome, documents) => {
                let sent = operation.send(reply, documents, &mut end, &mut observation);
                sent.await?;
                outcome
            }
            AttemptEnd::Error(error, outcome) => {
                observation.set_error_code(error.code);
                let bytes = reply_to.encode(0, &error.to_document());
                let reply = HeldReply { bytes, share: None };
                let sent = operation.send(reply, 0, &mut end, &mut observation);
                sent.await?;
                outcome
            }
        };
        observation.finish(outcome, Instant::now());
        Ok(())
    }
}

impl Operation<'_> {
    async fn run(&self, end: &mut ClientEnd<'_>, observation: &mut Observation<'_>) -> AttemptEnd {
        self.note_retry(observation);
        self.note_origin(observation);
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
        let _permit = match self.admit(end, observation).await {
            Some(Ok(permit)) => permit,
            // The future is boxed, so that the future of every operation stays small.
            Some(Err(failure)) => return Box::pin(self.refuse(end, failure, observation)).await,
            None => return AttemptEnd::Gone,
        };
        if let Some(parts) = self.parts(observation.began()) {
            return Box::pin(self.kill_in_parts(parts, end, observation)).await;
        }
        let mut is_repeated = false;
        loop {
            match self.send_once(end, observation, None).await {
                Attempt::Ended(ended) => return ended,
                Attempt::Again(error) if is_repeated || !self.may_be_repeated() => {
                    return AttemptEnd::Error(error, Outcome::ServerFailed);
                }
                Attempt::Again(_) => {
                    observation.mark_repeated();
                    is_repeated = true;
                }
            }
        }
    }

    /// Splits the operation's wait for data into slices (see [`slices`]) and sends the command once
    /// for each slice, until data arrives or the wait is over.
    async fn run_in_slices(
        &self,
        wait: &Wait,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
    ) -> AttemptEnd {
        loop {
            observation.enter(Phase::Permit, Instant::now());
            let next = end.unless_gone(pin!(self.next_slice(wait))).await;
            let Some((slice, permit)) = next else {
                return AttemptEnd::Gone;
            };
            let ended = match self
                .send_once(end, observation, Some((slice, permit)))
                .await
            {
                Attempt::Ended(ended) => ended,
                Attempt::Again(error) => AttemptEnd::Error(error, Outcome::ServerFailed),
            };
            if !self.should_continue(wait, slice, &ended) {
                return ended;
            }
        }
    }

    /// Checks out a connection and sends the command over it. `slice` is set if this attempt is one
    /// slice of a wait for data (see [`slices`]). The permit of the slice is held as long as the
    /// connection is in use.
    async fn send_once(
        &self,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
        slice: Option<(Slice, LanePermit)>,
    ) -> Attempt {
        observation.enter(Phase::Checkout, Instant::now());
        let checked_out = {
            let checkout = pin!(self.check_out(observation, slice.is_some()));
            end.unless_gone(checkout).await
        };
        match checked_out {
            Some(Ok(mut checkout)) => {
                let slice = slice.map(|(slice, permit)| {
                    checkout.keep_permit(permit);
                    slice
                });
                self.attempt(end, checkout, observation, slice).await
            }
            Some(Err(error)) => Attempt::Ended(self.refuse(end, error, observation).await),
            None => Attempt::Ended(AttemptEnd::Gone),
        }
    }

    /// Waits for a permit to run the operation (`limits.max_in_flight_operations`). Returns an
    /// error at the operation's own time limit or after `wait_queue_timeout`, as does the wait for
    /// a connection. `None` if the client has left.
    async fn admit(
        &self,
        end: &mut ClientEnd<'_>,
        observation: &Observation<'_>,
    ) -> Option<Result<OperationPermit, CheckOutFailure>> {
        let permits = self.shared.limits.operations();
        let operator = Operator {
            user: self.identity.id().as_u64(),
            sharer: self.sharer,
            in_flight: self.identity.in_flight(),
            may_unblock_others: self.command.may_unblock_others(),
        };
        if let Some(permit) = permits.try_admit(operator) {
            return Some(Ok(permit));
        }
        let held_until = observation.began() + self.shared.settings().wait_queue_timeout;
        let until = self.within_time_limit(observation, held_until);
        // The future is boxed, so that the future of every operation stays small.
        let mut waiting = Box::pin(timeout_at(until, permits.admit(operator)));
        let admitted = end.unless_gone(waiting.as_mut()).await?;
        Some(admitted.map_err(|_| CheckOutFailure::Overload(Overload::TimedOut)))
    }

    /// Ends the operation if the client's user no longer exists. Closes the client connection if a
    /// server refused the user's keys, because the client has to log in again. `None` if the
    /// operation may continue.
    async fn check_identity(&self, end: &mut ClientEnd<'_>) -> Option<AttemptEnd> {
        match self.identity.status() {
            IdentityStatus::Good => None,
            IdentityStatus::Gone => {
                let error = self.error(&Failure::Unauthenticated);
                Some(AttemptEnd::Error(error, Outcome::Refused))
            }
            IdentityStatus::Refused => Some(self.close_in_turn(end).await),
        }
    }

    /// Applies the injected fault if it selects this operation. Returns how the operation ends;
    /// `None` if the operation continues.
    async fn inject_fault(&self, end: &mut ClientEnd<'_>) -> Option<AttemptEnd> {
        let fault = self.shared.routing.fault.load_full()?;
        if !fault.selects(self.command) {
            return None;
        }
        self.shared.recorder.fault_injected(fault.kind());
        if end.unless_gone(pin!(sleep(fault.delay))).await.is_none() {
            return Some(AttemptEnd::Gone);
        }
        match fault.end {
            FaultEnd::Continue => None,
            FaultEnd::Close => Some(AttemptEnd::Close(Outcome::Refused)),
            FaultEnd::Error(code) => {
                let error = ErrorReply::new(code, "injected by Seawall's [fault] section");
                Some(AttemptEnd::Error(error, Outcome::Refused))
            }
        }
    }

    /// Ends an operation that got no permit or no connection. Does not send an overload error
    /// before `wait_queue_timeout` is over.
    async fn refuse(
        &self,
        end: &mut ClientEnd<'_>,
        failure: CheckOutFailure,
        observation: &Observation<'_>,
    ) -> AttemptEnd {
        let recorder = &self.shared.recorder;
        if self
            .time_limit()
            .is_some_and(|limit| observation.began().elapsed() >= limit)
        {
            recorder.shed("max_time_ms");
            return AttemptEnd::Error(self.error(&Failure::TimeLimit), Outcome::Refused);
        }
        let failure = match failure {
            CheckOutFailure::KeysRefused => return self.close_in_turn(end).await,
            CheckOutFailure::LoginRefused => Failure::LoginRefused,
            CheckOutFailure::Unauthenticated => Failure::Unauthenticated,
            CheckOutFailure::NoServer => {
                recorder.shed("no_server");
                self.no_server()
            }
            CheckOutFailure::Overload(overload) => {
                // The error is delayed even if the pool refused at once, because some drivers retry
                // without a pause.
                let held_until = observation.began() + self.shared.settings().wait_queue_timeout;
                let until = self.within_time_limit(observation, held_until);
                if end.unless_gone(pin!(sleep_until(until))).await.is_none() {
                    return AttemptEnd::Gone;
                }
                recorder.shed(overload.as_str());
                Failure::Overload
            }
        };
        AttemptEnd::Error(self.error(&failure), Outcome::Refused)
    }

    fn no_server(&self) -> Failure {
        let snapshot = self.shared.routing.topology.snapshot();
        let description = &snapshot.description;
        Failure::NoServer {
            mode: self.read_preference().mode,
            set_name: description.set_name.clone(),
            has_primary: description.topology_type == TopologyType::ReplicaSetWithPrimary,
        }
    }

    /// Waits until Seawall may close the client connection. Closes are spread over time, so that
    /// they cause no reconnect storm.
    async fn close_in_turn(&self, end: &mut ClientEnd<'_>) -> AttemptEnd {
        let turn = self.shared.limits.closing_turn(Instant::now());
        match end.unless_gone(pin!(sleep_until(turn))).await {
            Some(()) => AttemptEnd::Close(Outcome::Refused),
            None => AttemptEnd::Gone,
        }
    }

    /// Sends a whole reply, unless the client wants none.
    async fn send(
        &self,
        reply: HeldReply,
        documents: u64,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
    ) -> Result<(), End> {
        if observation.phase() != Phase::Send {
            observation.enter(Phase::Send, Instant::now());
        }
        if self.reply_to.is_unwanted() {
            // The server has run the operation although the client wants no reply, so its documents
            // count.
            observation.add_reply(0, documents);
            return Ok(());
        }
        let plain_bytes = reply.bytes.len();
        let packed = self.reply_to.pack(reply.bytes, self.heavy()).await;
        let sent = match reply.share {
            None => end.send(&packed).await,
            share => {
                Backlog::of(packed, share)
                    .send(end, self.forwarding())
                    .await
            }
        };
        sent.map_err(|_| End::Gone)?;
        observation.add_reply(plain_bytes, documents);
        Ok(())
    }
}

/// Returns the document sequences of a message. Unused entries at the end of the array are empty.
pub(super) fn sequences<'a>(parsed: &OpMsg<'a>) -> [Sequence<'a>; seawall_wire::MAX_SEQUENCES] {
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
pub(super) fn input<'a>(
    parsed: &OpMsg<'a>,
    all: &'a [Sequence<'a>; seawall_wire::MAX_SEQUENCES],
) -> CommandBytes<'a> {
    let count = parsed.sequences().count();
    CommandBytes {
        body: parsed.body,
        sequences: all.get(..count).unwrap_or_default(),
    }
}
