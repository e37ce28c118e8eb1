//! One operation under observation: a guard, counted however it ends.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    command::ReplyFacts,
    shape::{Input, ShapeId},
};

use super::{
    Observer,
    slow::Sender,
    sums::{Place, Record, ServerIndex, ShapeIndex},
};

/// Number of phases.
pub const PHASES: usize = 6;

/// Where an operation's time goes; in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting to be admitted.
    Permit,
    /// Selecting a server and getting a connection to it.
    Checkout,
    /// From then to the last request byte written.
    Forward,
    /// To the reply's first byte.
    Server,
    /// To the reply's last byte.
    Receive,
    /// Writing to the client what was then left.
    Send,
}

impl Phase {
    /// All phases, in order.
    pub const ALL: [Self; PHASES] = [
        Self::Permit,
        Self::Checkout,
        Self::Forward,
        Self::Server,
        Self::Receive,
        Self::Send,
    ];

    /// The name in metrics and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Checkout => "checkout",
            Self::Forward => "forward",
            Self::Server => "server",
            Self::Receive => "receive",
            Self::Send => "send",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Permit => 0,
            Self::Checkout => 1,
            Self::Forward => 2,
            Self::Server => 3,
            Self::Receive => 4,
            Self::Send => 5,
        }
    }
}

/// Number of outcomes.
pub const OUTCOMES: usize = 7;

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered `ok: 1`, and no write in it failed.
    Ok,
    /// The server answered `ok: 1` with write errors or a write concern error.
    WriteError,
    /// The server answered `ok: 0`.
    Error,
    /// Seawall refused it, or gave up getting a connection.
    Refused,
    /// A server, or the connection to it, failed and the operation with it.
    ServerFailed,
    /// The client left before the end.
    ClientGone,
    /// Seawall answered it itself.
    Local,
}

impl Outcome {
    /// All outcomes.
    pub const ALL: [Self; OUTCOMES] = [
        Self::Ok,
        Self::WriteError,
        Self::Error,
        Self::Refused,
        Self::ServerFailed,
        Self::ClientGone,
        Self::Local,
    ];

    /// The label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::WriteError => "write_error",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::ServerFailed => "server_failed",
            Self::ClientGone => "client_gone",
            Self::Local => "local",
        }
    }

    /// How an operation ended that a server answered.
    pub fn of(reply: &ReplyFacts) -> Self {
        match reply.ok {
            Some(true) if reply.write_errors > 0 || reply.write_concern_error => Self::WriteError,
            Some(true) | None => Self::Ok,
            Some(false) => Self::Error,
        }
    }

    /// Whether the client did not get what it asked for.
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Ok | Self::Local)
    }

    pub(super) fn index(self) -> usize {
        Self::ALL
            .iter()
            .position(|o| *o == self)
            .unwrap_or_default()
    }
}

/// The operation that opened a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    shape: ShapeIndex,
    id: ShapeId,
    folded: Option<(ShapeId, ShapeId)>,
    opened_at: Instant,
}

/// Counts one operation when dropped: a cancelled one too, as its client's leaving.
#[derive(Debug)]
#[must_use]
pub struct Observation<'a> {
    observer: &'a Observer,
    record: Record,
    phase: Phase,
    since: Instant,
    began: Instant,
    cursor_opened_at: Option<Instant>,
    sender: Sender<'a>,
}

impl<'a> Observation<'a> {
    pub(super) fn begin(
        observer: &'a Observer,
        place: Place,
        request_bytes: usize,
        now: Instant,
    ) -> Self {
        let record = Record {
            place,
            origin: None,
            origin_id: None,
            origin_folded: None,
            server: None,
            outcome: Outcome::ClientGone,
            code: None,
            write_errors: 0,
            phases: [Duration::ZERO; PHASES],
            request_bytes: u64::try_from(request_bytes).unwrap_or(u64::MAX),
            reply_bytes: 0,
            documents: 0,
            is_streamed: false,
            is_awaiting: false,
            is_retry: false,
            cursor_time: None,
        };
        Self {
            observer,
            record,
            phase: Phase::Permit,
            since: now,
            began: now,
            cursor_opened_at: None,
            sender: Sender::default(),
        }
    }

    /// Another of the same kind, which nobody asked for: the next of several replies to one request.
    pub fn again(&self, now: Instant) -> Self {
        let mut again = Self::begin(self.observer, self.record.place, 0, now);
        again.record.origin = self.record.origin;
        again.record.origin_id = self.record.origin_id;
        again.record.origin_folded = self.record.origin_folded;
        again.record.server = self.record.server;
        again.record.is_awaiting = self.record.is_awaiting;
        again.cursor_opened_at = self.cursor_opened_at;
        again.sender = self.sender;
        again
    }

    /// Ends the current phase and begins `phase`. The phases' sum is the total by construction.
    pub fn enter(&mut self, phase: Phase, now: Instant) {
        if let Some(time) = self.record.phases.get_mut(self.phase.index()) {
            *time += now.saturating_duration_since(self.since);
        }
        self.phase = phase;
        self.since = now;
    }

    /// When the last byte of the request was read; of a streamed one, the first.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// The phase it is in.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Its request is forwarded as it comes: its time began with the first byte, not with the last.
    pub fn is_streamed(&mut self) {
        self.record.is_streamed = true;
    }

    /// It waits for something to happen, as its client wishes: its time says nothing of anybody's load.
    pub fn is_awaiting(&mut self) {
        self.record.is_awaiting = true;
    }

    /// Its client sent the same write before.
    pub fn is_retry(&mut self) {
        self.record.is_retry = true;
    }

    /// Attributes a `getMore` to the operation that opened its cursor.
    pub fn attribute_to(&mut self, origin: Origin) {
        self.record.origin = Some(origin.shape);
        self.record.origin_id = Some(origin.id);
        self.record.origin_folded = origin.folded;
        self.cursor_opened_at = Some(origin.opened_at);
    }

    /// What the `getMore`s of a cursor that this operation opened are attributed to.
    pub fn origin(&self) -> Option<Origin> {
        let place = &self.record.place;
        let own = place.folded.map(|coarse| (place.id, coarse));
        Some(Origin {
            shape: self.record.origin.or(place.shape)?,
            id: self.record.origin_id.unwrap_or(place.id),
            folded: match self.record.origin {
                Some(_) => self.record.origin_folded,
                None => own,
            },
            opened_at: self.began,
        })
    }

    /// This client sent it, by number; the values of its command may appear in the slow log.
    pub fn sent_by(&mut self, client: i32, command: Option<Input<'a>>) {
        self.sender = Sender { client, command };
    }

    /// It is sent to this server.
    pub fn sent_to(&mut self, server: ServerIndex) {
        self.record.server = Some(server);
    }

    /// What a server answered.
    pub fn answered(&mut self, reply: &ReplyFacts, now: Instant) {
        self.record.code = reply.code.filter(|_| reply.ok == Some(false));
        self.record.write_errors = reply.write_errors;
        if reply.cursor_id == Some(0) {
            self.record.cursor_time = self
                .cursor_opened_at
                .map(|opened| now.saturating_duration_since(opened));
        }
    }

    /// Adds to what was sent to the client.
    pub fn add_reply(&mut self, bytes: usize, documents: u64) {
        self.record.reply_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        self.record.documents += documents;
    }

    /// Ends the observation.
    pub fn finish(mut self, outcome: Outcome, now: Instant) {
        self.record.outcome = outcome;
        self.enter(self.phase, now);
    }
}

impl Drop for Observation<'_> {
    fn drop(&mut self) {
        if self.record.outcome == Outcome::ClientGone {
            self.enter(self.phase, Instant::now());
            self.observer.client_gone(self.phase);
        }
        self.observer.record(&self.record);
        self.observer.log_if_slow(&self.record, self.sender);
    }
}
