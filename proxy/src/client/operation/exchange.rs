//! One exchange of an operation with a server: sends the command, and passes the reply to the
//! client.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    context::{Attempt, AttemptEnd, Operation},
    failure::Failure,
    slices::Slice,
};
use crate::{
    client::{
        abandoned::Abandoned,
        backlog::Forwarded,
        client_end::ClientEnd,
        forward::{Reply, relay_reply},
        own_reply::Form,
        reply::{Awaited, HeldReply, RelayError, Unread},
        request::{Edits, Outgoing},
        streaming::{StreamError, forward_rest},
    },
    limits::Heavy,
    observe::Observation,
    pool::{Checkout, ServerPool},
};
use seawall_command::{ErrorReply, ReplyFacts, conceal_state_change, nothing_was_done};
use seawall_stats::{Outcome, Phase};
use seawall_transport::connection::Interrupt;
use seawall_wire::encode_op_msg_like;

/// Shortest wait that Seawall subtracts from the `maxTimeMS` that the server gets. After a shorter
/// wait, `maxTimeMS` does not change. The wait is the time from the arrival of an operation until
/// the operation has a server connection.
const LEAST_WAIT: Duration = Duration::from_millis(1);

impl Operation<'_> {
    /// Sends the command over a server connection and waits for the reply. Forwards a large reply
    /// to the client as it arrives.
    pub(super) async fn attempt(
        &self,
        end: &mut ClientEnd<'_>,
        mut checkout: Checkout,
        observation: &mut Observation<'_>,
        slice: Option<Slice>,
    ) -> Attempt {
        if self.has_left_in_queue(end, &checkout, observation) {
            return Attempt::Ended(AttemptEnd::Gone);
        }
        let checked_out_at = checkout.checked_out_at();
        observation.enter(Phase::Forward, checked_out_at);
        let max_time_ms = match slice {
            Some(slice) => Some(slice.milliseconds()),
            None => self.remaining_time(observation.began(), checked_out_at),
        };
        observation.set_server(checkout.pool().metrics().index());
        let connection = checkout.begin();
        let interrupt = Arc::clone(&connection.interrupt);
        interrupt.reset();
        let sent = unless_interrupted(
            pin!(self.send_request(end, &mut checkout, max_time_ms)),
            &interrupt,
        )
        .await;
        let sent = sent.unwrap_or_else(|| Err(StreamError::Server(io::ErrorKind::TimedOut.into())));
        match sent {
            Ok(statements) => observation.set_statements(statements),
            Err(error) => return self.not_sent(error, &checkout),
        }
        let sent_at = Instant::now();
        observation.enter(Phase::Server, sent_at);
        let (connection, pool, permit) = checkout.exchange();
        let awaited = Awaited {
            request_id: self.message.header.request_id,
            form: self.command.spec.reply_form,
            must_compress: self.reply_to.compressor.is_some(),
            budget: &self.shared.memory.replies,
            limits: &self.shared.limits,
            sharer: self.sharer,
            interrupt: &interrupt,
            is_wanted: &|| self.is_wanted(pool, slice),
            recording: self.recording,
        };
        // Seawall waits for the reply even if the client wants none, so that the client's next
        // operation runs after this operation.
        let server = &mut connection.stream;
        let relayed = relay_reply(end, server, permit, awaited, observation).await;
        match relayed {
            Ok(Reply::Held(reply, facts, now)) => {
                checkout.finish_at(now);
                if slice.is_none() {
                    checkout.set_latency(now - sent_at);
                    observation.enter(Phase::Send, now);
                }
                self.settle(checkout, reply, facts, observation, now)
            }
            Ok(Reply::Forwarded(forwarded)) => {
                checkout.finish_streamed();
                let outcome = self.note_forwarded(&checkout, &forwarded, observation);
                Attempt::Ended(AttemptEnd::Forwarded(Box::new(forwarded), outcome))
            }
            Err(RelayError::ClientGone { unread }) => {
                if unread == Unread::Whole && slice.is_none() {
                    checkout
                        .pool()
                        .observe_latency_of_at_least(sent_at.elapsed());
                }
                self.abandon(checkout, unread, slice.is_some());
                Attempt::Ended(AttemptEnd::Gone)
            }
            Err(RelayError::Server(error)) => self.server_failed(&error, &checkout),
            Err(error @ (RelayError::MidReply(_) | RelayError::Foreign(_))) => {
                self.reply_not_forwarded(&error, &checkout)
            }
        }
    }

    /// True if other operations wait for a connection to the server. Also true for a slice if other
    /// operations of its user wait for a permit of the lane: the slice's permit becomes free for
    /// its user when the slice returns its connection.
    fn is_wanted(&self, pool: &ServerPool, slice: Option<Slice>) -> bool {
        let user = self.identity.id().as_u64();
        pool.has_waiting() || (slice.is_some() && pool.lane().has_waiting_of(user))
    }

    /// True if the client of a streamed command has left while the operation waited for its
    /// connection. Then Seawall does not send the command: the rest of the command has probably not
    /// arrived, so the server connection would have to be closed.
    fn has_left_in_queue(
        &self,
        end: &ClientEnd<'_>,
        checkout: &Checkout,
        observation: &Observation<'_>,
    ) -> bool {
        let may_be_cut = self.message.is_head() && !self.reply_to.is_unwanted();
        let has_waited = || checkout.checked_out_at() - observation.began() >= LEAST_WAIT;
        may_be_cut && has_waited() && end.stream.peer_has_left()
    }

    /// Reads and drops the reply of an operation whose client has left.
    fn abandon(&self, mut checkout: Checkout, unread: Unread, is_slice: bool) {
        if unread != Unread::Whole {
            checkout.mark_streamed();
        }
        let abandoned = Abandoned {
            checkout,
            request_id: self.message.header.request_id,
            unread,
            may_be_ended: !is_slice && self.command.only_reads(),
        };
        abandoned.settle();
    }

    /// The rest of the operation's time limit ([`Self::time_limit`]) after a wait from `began` to
    /// `now`, in milliseconds. `None` if the operation has no time limit or the wait was shorter
    /// than [`LEAST_WAIT`].
    pub(super) fn remaining_time(&self, began: Instant, now: Instant) -> Option<u64> {
        let limit = self.time_limit()?;
        let waited = now - began;
        let left = limit.saturating_sub(waited).as_millis().max(1);
        (waited >= LEAST_WAIT).then(|| u64::try_from(left).unwrap_or(u64::MAX))
    }

    /// Updates the pins, the topology and the statistics from a reply that was forwarded as it
    /// arrived.
    fn note_forwarded(
        &self,
        checkout: &Checkout,
        forwarded: &Forwarded,
        observation: &mut Observation<'_>,
    ) -> Outcome {
        let now = Instant::now();
        let (outcome, documents) = self.note_reply(checkout, &forwarded.facts, observation, now);
        observation.enter(Phase::Send, now);
        let is_unwanted = self.reply_to.is_unwanted();
        let bytes = if is_unwanted { 0 } else { forwarded.bytes };
        observation.add_reply(bytes, documents);
        outcome
    }

    /// Handles a reply that Seawall cannot forward completely: the server connection ended within
    /// the reply, the server counted as hung within the reply, or the server sent something other
    /// than the awaited reply.
    fn reply_not_forwarded(&self, error: &RelayError, checkout: &Checkout) -> Attempt {
        let routing = &self.shared.routing;
        if let Some(replies) = routing.unforwarded_replies.count(Instant::now()) {
            let server = checkout.pool().address();
            tracing::warn!(%server, %error, replies, "could not forward a reply");
        }
        if matches!(error, RelayError::MidReply(_)) {
            let topology = &routing.topology;
            topology.report_connection_ended(checkout);
        }
        Attempt::Ended(AttemptEnd::Close(Outcome::ServerFailed))
    }

    /// Handles a server connection that ended, or a server that failed, before Seawall forwarded a
    /// byte of the reply.
    fn server_failed(&self, error: &io::Error, checkout: &Checkout) -> Attempt {
        let topology = &self.shared.routing.topology;
        topology.report_io_error(checkout, error);
        tracing::debug!(
            %error,
            command = self.command.name_str(),
            "server connection failed during an operation"
        );
        let has_ended = error.kind() != io::ErrorKind::TimedOut;
        if has_ended && !self.shared.settings().repeats {
            // Without Seawall, the client's connection to the server would end here, so Seawall
            // closes the client connection.
            return Attempt::Ended(AttemptEnd::Close(Outcome::ServerFailed));
        }
        let failure = Failure::ServerFailed("the server failed while it ran the operation");
        Attempt::Again {
            error: self.error(&failure),
            may_have_run: true,
        }
    }

    /// Sends the request. If the request is streamed (its bytes are forwarded as they arrive),
    /// returns the number of its statements. Returns 0 for a request that was read whole, because
    /// its statements were counted before it was sent.
    async fn send_request(
        &self,
        end: &mut ClientEnd<'_>,
        checkout: &mut Checkout,
        max_time_ms: Option<u64>,
    ) -> Result<u64, StreamError> {
        let is_named = self.shared.settings().name_applications;
        let edits = Edits {
            client: self.client_element.filter(|_| is_named),
            max_time_ms,
            adds_read_preference: self.needs_read_preference(),
        };
        let build = || Outgoing::new(self.message, self.parsed, self.command, edits);
        // If the request has a checksum, `Outgoing::new` reads all bytes to recompute the checksum.
        // For a long request, this would delay the other clients of the thread. So `Heavy::walk`
        // runs `build`.
        let bytes = self.message.bytes.len();
        let mut outgoing = match self.parsed.has_checksum() && Heavy::is_long_walk(bytes) {
            false => build(),
            true => Box::pin(self.heavy().walk(bytes, build)).await,
        };
        if outgoing.omits_client() {
            self.shared.recorder.count_unobserved("client_name_omitted");
        }
        let connection = checkout.connection();
        // Compression needs further copies of the request. Without memory for them, the request is
        // sent uncompressed.
        let copied_bytes = outgoing.copied_bytes(connection);
        let memory = &self.shared.memory.requests;
        let copies = (copied_bytes > 0).then(|| memory.try_reserve(self.sharer, copied_bytes));
        if let Some(None) = copies {
            outgoing.forbid_compression();
        }
        let written = outgoing.write(connection, self.heavy()).await;
        drop(copies);
        written.map_err(StreamError::Server)?;
        if self.message.is_head() {
            checkout.mark_streamed();
            let (connection, pool) = checkout.connection_and_pool();
            let server = &mut connection.stream;
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
            return Box::pin(rest).await;
        }
        Ok(0)
    }

    /// Handles a request that was not sent completely. The server connection is closed, because the
    /// server may have received a part of the request.
    fn not_sent(&self, error: StreamError, checkout: &Checkout) -> Attempt {
        let recorder = &self.shared.recorder;
        let ended = match error {
            StreamError::Server(error) => {
                return self.server_failed(&error, checkout);
            }
            StreamError::Client(error) => match error.refusal() {
                Some(reason) => {
                    recorder.count_unobserved(reason);
                    AttemptEnd::Close(Outcome::ClientGone)
                }
                None => AttemptEnd::Gone,
            },
            StreamError::Malformed(error) => {
                recorder.count_unobserved(error.reason());
                match error.code() {
                    Some(code) => {
                        let error = ErrorReply::new(code, error.to_string());
                        AttemptEnd::Error(error, Outcome::Refused)
                    }
                    None => AttemptEnd::Close(Outcome::Refused),
                }
            }
        };
        Attempt::Ended(ended)
    }

    /// Handles a complete reply. Updates the pins, the topology, the credentials and the statistics
    /// from the reply. Then decides what follows: the client gets this reply or an edited reply,
    /// the client connection is closed, or Seawall may send the operation again.
    fn settle(
        &self,
        mut checkout: Checkout,
        mut reply: HeldReply,
        facts: ReplyFacts,
        observation: &mut Observation<'_>,
        now: Instant,
    ) -> Attempt {
        let body = reply.bytes.get(seawall_wire::HEADER_BYTES + 5..);
        let body = body.unwrap_or_default();
        self.note_error(&mut checkout, &facts, body);
        let (outcome, documents) = self.note_reply(&checkout, &facts, observation, now);
        let Some(code) = facts.state_change else {
            return Attempt::Ended(AttemptEnd::Reply(reply, outcome, documents));
        };
        if self.reply_to.is_unwanted() {
            observation.add_reply(0, documents);
            return Attempt::Ended(AttemptEnd::Close(outcome));
        }
        let is_refusal = facts.ok == Some(false) && nothing_was_done(code);
        if is_refusal && self.may_be_repeated() {
            return Attempt::Again {
                error: self.error(&Failure::ServerFailed("the primary changed")),
                may_have_run: false,
            };
        }
        let repeats = self.shared.settings().repeats;
        let concealed = match repeats {
            true => conceal_state_change(body),
            false => None,
        };
        if let Some(body) = concealed {
            // Statistics count the reply that the client sees.
            let concealed_facts = ReplyFacts::of(self.command.spec.reply_form, &body);
            observation.record_reply(&concealed_facts, now);
            let flags = match self.reply_to.form {
                Form::Msg { flags } => flags,
                Form::Query | Form::LegacyRead => 0,
            };
            reply.bytes = encode_op_msg_like(flags, 0, self.reply_to.request_id, &body);
        }
        Attempt::Ended(AttemptEnd::Reply(reply, outcome, documents))
    }
}

/// Waits for an exchange with a server, or for a part of it. `None` if the server counts as hung
/// before the exchange has ended.
pub(super) async fn unless_interrupted<T>(
    mut exchange: Pin<&mut impl Future<Output = T>>,
    interrupt: &Interrupt,
) -> Option<T> {
    poll_fn(|cx| match exchange.as_mut().poll(cx) {
        Poll::Ready(ended) => Poll::Ready(Some(ended)),
        Poll::Pending => interrupt.poll_raised(cx).map(|()| None),
    })
    .await
}
