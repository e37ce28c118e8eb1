//! One operation, from its message to its reply. Only this file knows the order of the steps.

use std::{io, pin::pin, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Client, End, Settings, Shared,
    abandoned::Abandoned,
    answer::{ReplyTo, requires_authentication},
    awaiting::Slice,
    backlog::{Backlog, Forwarded},
    checkout::CheckOutFailure,
    fault::FaultEnd,
    forward::{Awaited, ClientEnd, HeldReply, Outgoing, RelayError, Reply, relay_reply},
    streaming::{StreamError, forward_rest},
};
use crate::{
    auth::{Identity, Standing},
    command::{
        CURSOR_NOT_FOUND, Class, Command, ErrorReply, HOST_UNREACHABLE,
        INGRESS_RATE_LIMIT_EXCEEDED, MAX_TIME_MS_EXPIRED, Mode,
        NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT, RESUMABLE_CHANGE_STREAM_ERROR, RETRYABLE_ERROR,
        RETRYABLE_WRITE_ERROR, ReplyFacts, ReplyForm, SYSTEM_OVERLOADED_ERROR,
        TRANSIENT_TRANSACTION_ERROR, UNAUTHORIZED, conceal_state_change, nothing_was_done,
    },
    connection::Generation,
    limits::{Heavy, OperationPlace, Operator, StepwiseTurn},
    observe::Observation,
    pool::Checkout,
    shape::{Input, Sequence},
    stats::{Outcome, Phase},
    topology::TopologyType,
    wire::{Message, OpMsg, ReadError, Sharer, encode_op_msg_like},
};

/// A wait shorter than this is not subtracted from `maxTimeMS`.
const LEAST_WAIT: Duration = Duration::from_millis(1);

/// An operation's context, borrowed by its steps.
pub(super) struct Operation<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) identity: &'a Arc<Identity>,
    message: &'a Message,
    parsed: &'a OpMsg<'a>,
    pub(super) command: &'a Command<'a>,
    client_element: Option<&'a [u8]>,
    announces_backpressure: bool,
    /// The address or user whose share of resources the client uses.
    pub(super) sharer: Sharer,
    pub(super) reply_to: ReplyTo,
}

/// How an operation ends for its client.
pub(super) enum Ended {
    /// A complete reply, with the number of its documents.
    Reply(HeldReply, Outcome, u64),
    /// Seawall replies with this error.
    Error(ErrorReply, Outcome),
    /// The reply was forwarded as it arrived, except the backlog.
    Forwarded(Backlog, Outcome),
    /// The client has left.
    Gone,
    /// The client connection has to be closed.
    Close(Outcome),
}

/// Result of one attempt at a server.
pub(super) enum Attempt {
    Ended(Ended),
    /// The server failed or refused in a way that allows the operation to be sent again. If it is
    /// not sent again, the client gets this error.
    Again(ErrorReply),
}

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
        let shared = Arc::clone(&self.shared);
        let sequences = sequences(parsed);
        let count = parsed.sequences().count();
        let input = Input {
            body: parsed.body,
            sequences: sequences.get(..count).unwrap_or_default(),
        };
        let request_bytes = message.header.message_length;
        let mut observation = shared.observer.begin(&input, request_bytes, now);
        observation.sent_by(self.connected.id(), Some(input));
        if message.is_head() {
            observation.mark_streamed();
        }
        let operation = Operation {
            shared: &shared,
            identity: &identity,
            message,
            parsed,
            command,
            client_element: self.client_element.as_deref(),
            announces_backpressure: self.announces_backpressure,
            sharer: self.sharer,
            reply_to,
        };
        let mut end = ClientEnd {
            stream: &mut self.stream,
            reader: &mut self.reader,
            write_idle: shared.settings.client_write_idle_timeout,
            is_awaiting: !reply_to.is_unwanted(),
        };
        let outcome = match operation.run(&mut end, &mut observation).await {
            Ended::Gone => return Err(End::Gone),
            Ended::Close(outcome) => {
                observation.finish(outcome, Instant::now());
                return Err(End::Closed);
            }
            Ended::Forwarded(backlog, outcome) => {
                backlog
                    .send(&mut end, operation.forwarding())
                    .await
                    .map_err(|_| End::Gone)?;
                outcome
            }
            Ended::Reply(reply, outcome, documents) => {
                let sent = operation.send(reply, documents, &mut end, &mut observation);
                sent.await?;
                outcome
            }
            Ended::Error(error, outcome) => {
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
    async fn run(&self, end: &mut ClientEnd<'_>, observation: &mut Observation<'_>) -> Ended {
        self.note_retry(observation);
        self.note_origin(observation);
        if let Some(ended) = self.check_standing(end).await {
            return ended;
        }
        if let Some(wait) = self.wait(observation.began()) {
            return self.wait_in_slices(wait, end, observation).await;
        }
        if let Some(ended) = self.inject_fault(end).await {
            return ended;
        }
        let Some(_place) = self.admit(end).await else {
            return Ended::Gone;
        };
        if let Some(parts) = self.parts(observation.began()) {
            return self.kill_in_parts(parts, end, observation).await;
        }
        let mut repeats_left = u32::from(self.may_be_repeated());
        loop {
            match self.send_once(end, observation, None).await {
                Attempt::Ended(ended) => return ended,
                Attempt::Again(error) if repeats_left == 0 => {
                    return Ended::Error(error, Outcome::ServerFailed);
                }
                Attempt::Again(_) => {
                    observation.mark_repeated();
                    repeats_left -= 1;
                }
            }
        }
    }

    fn heavy(&self) -> Heavy<'_> {
        self.shared.limits.heavy(self.sharer)
    }

    fn forwarding(&self) -> StepwiseTurn<'_> {
        self.shared.limits.forwarding().stepwise(self.sharer)
    }

    /// Waits for a place among the operations in flight; `None` if the client has left.
    async fn admit(&self, end: &mut ClientEnd<'_>) -> Option<OperationPlace> {
        let places = self.shared.limits.operations();
        let operator = Operator {
            user: self.identity.id().as_u64(),
            sharer: self.sharer,
            in_flight: self.identity.in_flight(),
        };
        match places.try_admit(operator) {
            Some(place) => Some(place),
            None => end.unless_gone(places.admit(operator)).await,
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
        observation.enter(Phase::Send, Instant::now());
        if self.reply_to.is_unwanted() {
            // The operation was done nevertheless, so its documents count.
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

    /// Applies the injected fault. Returns how the operation ends, if the fault ends it.
    async fn inject_fault(&self, end: &mut ClientEnd<'_>) -> Option<Ended> {
        let fault = self.shared.fault.as_ref()?;
        if !fault.selects(self.command) {
            return None;
        }
        self.shared.observer.fault_injected(fault.kind());
        if end.unless_gone(sleep(fault.delay)).await.is_none() {
            return Some(Ended::Gone);
        }
        match fault.end {
            FaultEnd::Continue => None,
            FaultEnd::Close => Some(Ended::Close(Outcome::Refused)),
            FaultEnd::Error(code) => {
                let error = ErrorReply::new(code, "injected by Seawall's [fault] section");
                Some(Ended::Error(error, Outcome::Refused))
            }
        }
    }

    /// True if Seawall may send the operation once more. A streamed request is not kept, so it
    /// cannot be repeated.
    fn may_be_repeated(&self) -> bool {
        let Settings { repeats, .. } = self.shared.settings;
        repeats && self.command.may_be_repeated() && !self.message.is_head()
    }

    /// Checks out a connection and sends the command over it. `slice` is set if the command is one
    /// slice of a longer wait.
    pub(super) async fn send_once(
        &self,
        end: &mut ClientEnd<'_>,
        observation: &mut Observation<'_>,
        slice: Option<Slice>,
    ) -> Attempt {
        observation.enter(Phase::Checkout, Instant::now());
        match end.unless_gone(self.check_out(observation)).await {
            Some(Ok(checkout)) => self.attempt(end, checkout, observation, slice).await,
            Some(Err(error)) => Attempt::Ended(self.refuse(end, error, observation).await),
            None => Attempt::Ended(Ended::Gone),
        }
    }

    /// Refuses operations of a user that no longer exists. Closes a client whose user's keys were
    /// refused: it has to log in again.
    async fn check_standing(&self, end: &mut ClientEnd<'_>) -> Option<Ended> {
        match self.identity.standing() {
            Standing::Good => None,
            Standing::Gone => {
                let error = requires_authentication(self.command.name_str());
                Some(Ended::Error(error, Outcome::Refused))
            }
            Standing::Refused => {
                let turn = self.shared.limits.closing_turn(Instant::now());
                Some(match end.unless_gone(sleep_until(turn)).await {
                    Some(()) => Ended::Close(Outcome::Refused),
                    None => Ended::Gone,
                })
            }
        }
    }

    /// Ends an operation that got no connection. An overload error is sent only after the full
    /// wait.
    async fn refuse(
        &self,
        end: &mut ClientEnd<'_>,
        failure: CheckOutFailure,
        observation: &Observation<'_>,
    ) -> Ended {
        if self
            .time_limit()
            .is_some_and(|limit| observation.began().elapsed() >= limit)
        {
            self.shared.observer.shed("max_time_ms");
            let error = ErrorReply::new(MAX_TIME_MS_EXPIRED, "operation exceeded time limit");
            return Ended::Error(error, Outcome::Refused);
        }
        match failure {
            CheckOutFailure::KeysRefused => {
                let turn = self.shared.limits.closing_turn(Instant::now());
                match end.unless_gone(sleep_until(turn)).await {
                    Some(()) => Ended::Close(Outcome::Refused),
                    None => Ended::Gone,
                }
            }
            CheckOutFailure::Unauthenticated => {
                let error = requires_authentication(self.command.name_str());
                Ended::Error(error, Outcome::Refused)
            }
            CheckOutFailure::NoServer => {
                self.shared.observer.shed("no_server");
                Ended::Error(self.no_server(), Outcome::Refused)
            }
            CheckOutFailure::Overload(reason) => {
                // The error is held back for the full wait, whatever the reason: some drivers would
                // retry without a pause.
                let held_until = observation.began() + self.shared.settings.wait_queue_timeout;
                let until = self.within_time_limit(observation, held_until);
                if end.unless_gone(sleep_until(until)).await.is_none() {
                    return Ended::Gone;
                }
                self.shared.observer.shed(reason);
                Ended::Error(self.overloaded(), Outcome::Refused)
            }
        }
    }

    fn no_server(&self) -> ErrorReply {
        if let (Class::GetMore, Some(cursor)) = (self.command.class, self.cursor_id()) {
            return self.cursor_lost(cursor);
        }
        let snapshot = self.shared.topology.snapshot();
        let preference = self.read_preference();
        let needs_primary = preference.mode == Mode::Primary;
        // A retry by the driver may find a new primary. But in a set with a primary, a member that
        // does not exist will not appear.
        let is_hopeless = !needs_primary
            && snapshot.description.topology_type == TopologyType::ReplicaSetWithPrimary;
        if self.command.may_be_repeated() && !is_hopeless {
            return self.host_unreachable("no suitable server");
        }
        let message = format!(
            "Could not find host matching read preference {{ mode: \"{}\" }} for set {}",
            preference.mode.as_str(),
            snapshot.description.set_name.as_deref().unwrap_or_default()
        );
        let code = crate::command::FAILED_TO_SATISFY_READ_PREFERENCE;
        let labels: &[_] = if self.command.in_transaction {
            &[TRANSIENT_TRANSACTION_ERROR]
        } else {
            &[]
        };
        ErrorReply::new(code, message).with_labels(labels)
    }

    fn overloaded(&self) -> ErrorReply {
        if self.announces_backpressure {
            let labels = [
                SYSTEM_OVERLOADED_ERROR,
                RETRYABLE_ERROR,
                "NoWritesPerformed",
            ];
            return ErrorReply::new(
                INGRESS_RATE_LIMIT_EXCEEDED,
                "no connection came free in time",
            )
            .with_labels(&labels);
        }
        let code = NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT;
        ErrorReply::new(code, "Couldn't get a connection within the time limit")
    }

    /// Error 6 (HostUnreachable), with the labels that let the driver retry where that is safe.
    fn host_unreachable(&self, what: &str) -> ErrorReply {
        let labels: &[_] = match self.command.class {
            Class::EndTransaction => &[RETRYABLE_WRITE_ERROR],
            _ if self.command.in_transaction => &[TRANSIENT_TRANSACTION_ERROR],
            Class::Write if self.command.may_be_repeated() => &[RETRYABLE_WRITE_ERROR],
            Class::GetMore if self.is_resumable() => &[RESUMABLE_CHANGE_STREAM_ERROR],
            _ => &[],
        };
        ErrorReply::new(HOST_UNREACHABLE, what).with_labels(labels)
    }

    /// True if the operation uses a cursor that its driver can reopen on another server.
    pub(super) fn is_resumable(&self) -> bool {
        let pins = &self.shared.pins;
        let pin = self
            .cursor_id()
            .and_then(|id| pins.cursor(id, Instant::now()));
        pin.is_some_and(|pin| pin.is_resumable)
    }

    /// Error for a cursor whose server did not come back in time.
    fn cursor_lost(&self, cursor: i64) -> ErrorReply {
        let labels: &[_] = match self.is_resumable() {
            true => &[RESUMABLE_CHANGE_STREAM_ERROR],
            false => &[],
        };
        ErrorReply::new(CURSOR_NOT_FOUND, format!("cursor id {cursor} not found"))
            .with_labels(labels)
    }

    /// Remainder of `maxTimeMS` after a wait, in milliseconds. `None` if there is no limit or the
    /// wait was shorter than [`LEAST_WAIT`].
    fn remaining_time(&self, waited: Duration) -> Option<u64> {
        let left = self.time_limit()?.saturating_sub(waited).as_millis().max(1);
        (waited >= LEAST_WAIT).then(|| u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// Sends the command over a connection and its reply to the client.
    async fn attempt(
        &self,
        end: &mut ClientEnd<'_>,
        mut checkout: Checkout,
        observation: &mut Observation<'_>,
        slice: Option<Slice>,
    ) -> Attempt {
        observation.enter(Phase::Forward, Instant::now());
        let max_time_ms = match slice {
            Some(slice) => Some(slice.milliseconds()),
            None => self.remaining_time(observation.began().elapsed()),
        };
        let generation = checkout.begin().generation;
        let pool = Arc::clone(checkout.pool());
        observation.sent_to(pool.metrics().index());
        let mut given_up = pin!(pool.given_up());
        let sent = tokio::select! {
            biased;
            sent = self.send_request(end, &mut checkout, max_time_ms) => sent,
            () = given_up.as_mut() => Err(StreamError::Server(io::ErrorKind::TimedOut.into())),
        };
        match sent {
            Ok(statements) => observation.set_statements(statements),
            Err(error) => return self.not_sent(error, &checkout, generation),
        }
        let sent_at = Instant::now();
        observation.enter(Phase::Server, sent_at);
        let request_id = self.message.header.request_id;
        let awaited = Awaited {
            request_id,
            form: ReplyForm::of(self.command.name),
            must_compress: self.reply_to.compressor.is_some(),
            budget: &self.shared.reply_budget,
            limits: &self.shared.limits,
            sharer: self.sharer,
            is_wanted: &|| pool.has_waiting(),
        };
        // A reply that the client does not want is awaited too, so that the client's next operation
        // runs after this one.
        let server = &mut checkout.connection().stream;
        let relayed = relay_reply(end, server, awaited, given_up, observation).await;
        match relayed {
            Ok(Reply::Held(reply, facts)) => {
                checkout.finish();
                if slice.is_none() {
                    let now = Instant::now();
                    checkout.pool().observe_latency(now - sent_at, now);
                }
                self.settle(checkout, reply, facts, observation)
            }
            Ok(Reply::Forwarded(forwarded)) => {
                checkout.finish();
                let outcome = self.note_forwarded(&checkout, &forwarded, observation);
                let backlog = forwarded.backlog;
                Attempt::Ended(Ended::Forwarded(backlog, outcome))
            }
            Err(RelayError::ClientGone { unread }) => {
                let abandoned = Abandoned {
                    checkout,
                    request_id,
                    unread,
                    may_be_ended: slice.is_none() && self.command.only_reads(),
                };
                abandoned.settle();
                Attempt::Ended(Ended::Gone)
            }
            Err(RelayError::Server(error)) => self.server_failed(&error, &checkout, generation),
            Err(error @ (RelayError::MidReply(_) | RelayError::Foreign(_))) => {
                tracing::warn!(server = %checkout.pool().address(), %error, "reply abandoned");
                if matches!(error, RelayError::MidReply(_)) {
                    let topology = &self.shared.topology;
                    topology.report_connection_ended(&checkout, generation);
                }
                Attempt::Ended(Ended::Close(Outcome::ServerFailed))
            }
        }
    }

    fn note_forwarded(
        &self,
        checkout: &Checkout,
        forwarded: &Forwarded,
        observation: &mut Observation<'_>,
    ) -> Outcome {
        let (outcome, documents) = self.note_reply(checkout, &forwarded.facts, observation);
        observation.enter(Phase::Send, Instant::now());
        let is_unwanted = self.reply_to.is_unwanted();
        let bytes = if is_unwanted { 0 } else { forwarded.bytes };
        observation.add_reply(bytes, documents);
        outcome
    }

    fn server_failed(
        &self,
        error: &io::Error,
        checkout: &Checkout,
        generation: Generation,
    ) -> Attempt {
        let topology = &self.shared.topology;
        match error.kind() {
            // Nothing arrives from the server any more, on any of its connections. No request can
            // cause that.
            io::ErrorKind::TimedOut => topology.report_failure(checkout.pool(), generation),
            _ => topology.report_connection_ended(checkout, generation),
        }
        tracing::debug!(%error, command = self.command.name_str(), "connection ended under an operation");
        let has_ended = error.kind() != io::ErrorKind::TimedOut;
        if has_ended && !self.shared.settings.repeats {
            // The client sees what it would see without Seawall.
            return Attempt::Ended(Ended::Close(Outcome::ServerFailed));
        }
        Attempt::Again(self.host_unreachable("the server failed while it ran the operation"))
    }

    /// Sends the request. Returns the number of statements in a streamed request, and 0 for a
    /// request that was read whole: its statements are already counted.
    async fn send_request(
        &self,
        end: &mut ClientEnd<'_>,
        checkout: &mut Checkout,
        max_time_ms: Option<u64>,
    ) -> Result<u64, StreamError> {
        let outgoing = Outgoing::new(
            self.message,
            self.parsed,
            self.command,
            self.client_element,
            max_time_ms,
        );
        if outgoing.omits_client() {
            self.shared.observer.unobserved("client_name_omitted");
        }
        let written = outgoing.write(checkout.connection(), self.heavy()).await;
        written.map_err(StreamError::Server)?;
        if self.message.is_head() {
            let pool = Arc::clone(checkout.pool());
            let server = &mut checkout.connection().stream;
            let ClientEnd { reader, stream, .. } = end;
            let is_wanted = || pool.has_waiting();
            let rest = forward_rest(
                reader,
                *stream,
                server,
                self.message,
                self.parsed,
                &is_wanted,
            );
            return rest.await;
        }
        Ok(0)
    }

    /// Handles a request that was not sent completely. Its server connection is in mid-message and
    /// gets closed.
    fn not_sent(&self, error: StreamError, checkout: &Checkout, generation: Generation) -> Attempt {
        let observer = &self.shared.observer;
        let ended = match error {
            StreamError::Server(error) => {
                return self.server_failed(&error, checkout, generation);
            }
            StreamError::Client(ReadError::Stalled) => {
                observer.unobserved("message_stalled");
                Ended::Close(Outcome::ClientGone)
            }
            StreamError::Client(ReadError::Evicted) => {
                observer.unobserved("message_evicted");
                Ended::Close(Outcome::ClientGone)
            }
            StreamError::Client(_) => Ended::Gone,
            StreamError::Malformed(error) => {
                observer.unobserved(error.reason());
                match error.code() {
                    Some(code) => {
                        let error = ErrorReply::new(code, error.to_string());
                        Ended::Error(error, Outcome::Refused)
                    }
                    None => Ended::Close(Outcome::Refused),
                }
            }
        };
        Attempt::Ended(ended)
    }

    /// Acts on a complete reply and passes it on.
    fn settle(
        &self,
        mut checkout: Checkout,
        mut reply: HeldReply,
        facts: ReplyFacts,
        observation: &mut Observation<'_>,
    ) -> Attempt {
        if facts.code == Some(UNAUTHORIZED) {
            self.note_unauthorized(&mut checkout, &reply.bytes);
        }
        let (outcome, documents) = self.note_reply(&checkout, &facts, observation);
        let Some(code) = facts.state_change else {
            return Attempt::Ended(Ended::Reply(reply, outcome, documents));
        };
        self.shared
            .topology
            .report_state_change(checkout.pool(), code);
        if self.reply_to.is_unwanted() {
            observation.add_reply(0, documents);
            return Attempt::Ended(Ended::Close(outcome));
        }
        let is_refusal = facts.ok == Some(false) && nothing_was_done(code);
        if is_refusal && self.may_be_repeated() {
            return Attempt::Again(self.host_unreachable("the primary changed"));
        }
        let body = reply
            .bytes
            .get(crate::wire::HEADER_BYTES + 5..)
            .unwrap_or_default();
        let concealed = match self.shared.settings.repeats {
            true => conceal_state_change(body),
            false => None,
        };
        if let Some(body) = concealed {
            // Statistics count the reply that the client sees.
            let concealed_facts = ReplyFacts::of(ReplyForm::of(self.command.name), &body);
            observation.answered(&concealed_facts, Instant::now());
            let flags = match self.reply_to.form {
                super::answer::Form::Msg { flags } => flags,
                super::answer::Form::Query | super::answer::Form::LegacyRead => 0,
            };
            reply.bytes = encode_op_msg_like(flags, 0, self.reply_to.request_id, &body);
        }
        Attempt::Ended(Ended::Reply(reply, outcome, documents))
    }
}

pub(super) fn sequences<'a>(parsed: &OpMsg<'a>) -> [Sequence<'a>; crate::wire::MAX_SEQUENCES] {
    const NONE: Sequence<'_> = Sequence {
        identifier: &[],
        documents: &[],
    };
    let mut sequences = [NONE; crate::wire::MAX_SEQUENCES];
    for (place, sequence) in sequences.iter_mut().zip(parsed.sequences()) {
        *place = Sequence {
            identifier: sequence.identifier,
            documents: sequence.documents,
        };
    }
    sequences
}
