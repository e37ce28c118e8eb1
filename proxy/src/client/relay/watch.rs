//! What a relay sees: requests as they are sent on, and what their replies say.

use std::collections::VecDeque;

use bson::{RawDocument, RawDocumentBuf};
use tokio::time::Instant;

use super::replies::Passed;
use crate::{
    auth::{ClientFirst, Mechanism},
    client::{
        Shared,
        answer::{Form, ReplyTo, requires_authentication},
        operation::sequences,
    },
    command::{Class, Command, ErrorReply, Handshake, MECHANISM_UNAVAILABLE},
    observe::{ConnectedClient, Observation, Outcome, Phase},
    pins::CursorPin,
    shape::Input,
    wire::{Header, Message, OpCode, OpMsg, OpQuery},
};

/// The mechanism whose proof is the certificate of the connection: a server would see Seawall's.
const X509: &str = "MONGODB-X509";

/// Mechanisms as metrics name them; others are `other`.
const MECHANISMS: [&str; 4] = ["PLAIN", "GSSAPI", "MONGODB-AWS", "MONGODB-OIDC"];

/// What becomes of a request.
pub(super) enum Verdict {
    Pass,
    /// It is answered here instead.
    Refuse(Vec<u8>),
    /// Its client has to be closed.
    Close(&'static str),
}

/// A request whose reply is awaited.
struct Pending<'a> {
    request_id: i32,
    observation: Observation<'a>,
    step: Step,
    /// The cursor that it goes on with.
    cursor: Option<i64>,
    /// No reply to it will come.
    is_unanswered: bool,
}

/// What a reply may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Operation,
    Greeting,
    Login,
    Logout,
    /// Some other command of the handshake.
    Other,
}

/// A login under way.
struct Login {
    mechanism: &'static str,
    user: Option<String>,
    since: Instant,
}

/// One relay's exchanges.
pub(super) struct Watch<'a> {
    shared: &'a Shared,
    connected: &'a ConnectedClient,
    pending: VecDeque<Pending<'a>>,
    /// Those whose replies are complete, and about to be sent on.
    sending: Vec<(Observation<'a>, Outcome)>,
    login: Option<Login>,
    is_authenticated: bool,
}

impl<'a> Watch<'a> {
    pub(super) fn new(shared: &'a Shared, connected: &'a ConnectedClient) -> Self {
        Self {
            shared,
            connected,
            pending: VecDeque::new(),
            sending: Vec::new(),
            login: None,
            is_authenticated: false,
        }
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.is_authenticated
    }

    /// What was complete has been sent on.
    pub(super) fn sent(&mut self, now: Instant) {
        for (observation, outcome) in self.sending.drain(..) {
            observation.finish(outcome, now);
        }
    }

    /// Requests whose replies are awaited.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// A request, before it is sent on. `inflated` is what a compressed one holds.
    pub(super) fn request(&mut self, message: &Message, now: Instant) -> Verdict {
        match message.header.op_code {
            OpCode::Msg => self.msg(message, now),
            OpCode::Query => self.query(message, now),
            OpCode::Reply | OpCode::Compressed | OpCode::Other(_) => {
                self.not_followed("relay_opcode")
            }
        }
    }

    /// What cannot be understood passes, but not before a login: it might be understood otherwise behind.
    fn not_followed(&self, reason: &'static str) -> Verdict {
        self.shared.observer.unobserved(reason);
        match self.is_authenticated {
            true => Verdict::Pass,
            false => Verdict::Close(reason),
        }
    }

    fn msg(&mut self, message: &Message, now: Instant) -> Verdict {
        let parsed = match message.is_head() {
            false => OpMsg::parse(&message.bytes),
            true => OpMsg::parse_head(&message.bytes),
        };
        let Ok(parsed) = parsed else {
            return self.not_followed("relay_malformed");
        };
        let Ok(command) = Command::inspect(parsed.body) else {
            return self.not_followed("relay_malformed");
        };
        let flags = parsed.flags;
        if let Some(error) = self.refusal(&command) {
            let reply_to = ReplyTo::of(message, Form::Msg { flags });
            return Verdict::Refuse(reply_to.encode(0, &error.to_document()));
        }
        let sequences = sequences(&parsed);
        let count = parsed.sequences().count();
        let input = Input {
            body: parsed.body,
            sequences: sequences.get(..count).unwrap_or_default(),
        };
        self.begin(message, &input, &command, parsed.more_to_come(), now);
        Verdict::Pass
    }

    fn query(&mut self, message: &Message, now: Instant) -> Verdict {
        let query = OpQuery::parse(&message.bytes);
        let db = query.as_ref().and_then(OpQuery::command_database);
        let db = db.and_then(|db| std::str::from_utf8(db).ok());
        let (Some(query), Some(db)) = (&query, db) else {
            return self.not_followed("relay_opcode");
        };
        let Ok(command) = Command::inspect_legacy(query.query, db) else {
            return self.not_followed("relay_malformed");
        };
        if let Some(error) = self.refusal(&command) {
            let reply_to = ReplyTo::of(message, Form::Query);
            return Verdict::Refuse(reply_to.encode(0, &error.to_document()));
        }
        let input = Input {
            body: command.body,
            sequences: &[],
        };
        self.begin(message, &input, &command, false, now);
        Verdict::Pass
    }

    /// Why a request must not reach the server, if it must not.
    fn refusal(&self, command: &Command<'_>) -> Option<ErrorReply> {
        let makes_users = matches!(command.name, b"createUser" | b"createRole");
        if makes_users && !self.is_authenticated {
            return Some(requires_authentication(command.name_str()));
        }
        let body = RawDocument::from_bytes(command.body).ok()?;
        let speculative = || body.get_document("speculativeAuthenticate").ok();
        let is_x509 = match command.class {
            Class::Handshake(Handshake::Authenticate) => true,
            Class::Handshake(Handshake::SaslStart) => is_x509(body),
            Class::Handshake(Handshake::Hello | Handshake::LegacyHello) => speculative()
                .is_some_and(|start| {
                    is_x509(start) || start.get("authenticate").is_ok_and(|first| first.is_some())
                }),
            _ => false,
        };
        let message = "MONGODB-X509 is not available through a relay";
        is_x509.then(|| ErrorReply::new(MECHANISM_UNAVAILABLE, message))
    }

    fn begin(
        &mut self,
        message: &Message,
        input: &Input<'_>,
        command: &Command<'_>,
        is_unanswered: bool,
        now: Instant,
    ) {
        let bytes = message.header.message_length;
        let observer = &self.shared.observer;
        let step = step(command);
        let mut observation = match step {
            Step::Operation => observer.begin(input, bytes, now),
            Step::Greeting | Step::Login | Step::Logout | Step::Other => {
                observer.begin_unshaped(input, bytes, now)
            }
        };
        if message.is_head() {
            observation.is_streamed();
        }
        let cursor = match (command.class, command.target) {
            (Class::GetMore, crate::command::Target::Number(id)) => Some(id),
            _ => None,
        };
        let pin = cursor.and_then(|id| self.shared.relay_pins.cursor(id, now));
        if let Some(origin) = pin.and_then(|pin| pin.origin) {
            observation.attribute_to(origin);
        }
        self.note_login(step, command, now);
        observation.enter(Phase::Forward, now);
        self.pending.push_back(Pending {
            request_id: message.header.request_id,
            observation,
            step,
            cursor,
            is_unanswered,
        });
    }

    fn note_login(&mut self, step: Step, command: &Command<'_>, now: Instant) {
        let Ok(body) = RawDocument::from_bytes(command.body) else {
            return;
        };
        match step {
            Step::Greeting => {
                let metadata = body.get_document("client");
                let application = metadata.and_then(|client| client.get_document("application"));
                if let Ok(application) = application {
                    self.connected
                        .is_application(application.get_str("name").ok());
                }
                if let Ok(start) = body.get_document("speculativeAuthenticate") {
                    let source = start.get_str("db").unwrap_or("admin");
                    self.login = Some(Login::of(start, source, now));
                }
            }
            Step::Login if command.class == Class::Handshake(Handshake::SaslStart) => {
                self.login = Some(Login::of(body, command.db, now));
            }
            Step::Operation | Step::Login | Step::Logout | Step::Other => {}
        }
    }

    /// The last byte of the request that came last has been written.
    pub(super) fn forwarded(&mut self, now: Instant) {
        let Some(mut last) = self.pending.pop_back() else {
            return;
        };
        if last.is_unanswered {
            last.observation.finish(Outcome::Ok, now);
            return;
        }
        if last.observation.phase() == Phase::Forward {
            last.observation.enter(Phase::Server, now);
        }
        self.pending.push_back(last);
    }

    /// Whether the reply to a request has to be seen whole.
    pub(super) fn keeps(&self, request_id: i32) -> bool {
        let mut asked = self.pending.iter();
        asked.any(|p| p.request_id == request_id && p.step != Step::Operation)
    }

    /// The first byte of a reply has come.
    pub(super) fn reply_begins(&mut self, header: Header, now: Instant) {
        let mut asked = self.pending.iter_mut();
        if let Some(pending) = asked.find(|p| p.request_id == header.response_to) {
            pending.observation.enter(Phase::Receive, now);
        }
    }

    /// A reply is complete, and about to be sent on.
    pub(super) fn reply_ends(&mut self, reply: &Passed, now: Instant) {
        let id = reply.header.response_to;
        let place = self.pending.iter().position(|p| p.request_id == id);
        let Some(mut pending) = place.and_then(|place| self.pending.remove(place)) else {
            self.shared.observer.unobserved("relay_reply_unasked");
            return;
        };
        if reply.facts.is_opaque {
            self.shared.observer.unobserved("reply_not_followed");
        }
        self.note_reply(&pending, reply);
        let mut observation = pending.observation;
        let again = reply.more_to_come.then(|| observation.again(now));
        let documents = reply.facts.documents();
        observation.add_reply(reply.header.message_length, documents);
        observation.enter(Phase::Send, now);
        self.sending.push((observation, Outcome::of(&reply.facts)));
        if let Some(mut again) = again {
            again.enter(Phase::Server, now);
            pending.observation = again;
            pending.request_id = reply.header.request_id;
            self.pending.push_back(pending);
        }
    }

    fn note_reply(&mut self, pending: &Pending<'a>, reply: &Passed) {
        let now = Instant::now();
        match pending.step {
            Step::Operation => {
                let pins = &self.shared.relay_pins;
                match (reply.facts.cursor_id, pending.cursor) {
                    (Some(0), Some(exhausted)) => pins.unpin_cursor(exhausted),
                    (Some(id), None) if id != 0 => {
                        let pin = CursorPin {
                            server: (),
                            origin: pending.observation.shape(),
                            is_awaiting: false,
                            is_resumable: false,
                        };
                        if !pins.pin_cursor(id, pin, now) {
                            self.shared.observer.unobserved("cursor_pins_full");
                        }
                    }
                    _ => {}
                }
            }
            Step::Greeting => {
                let document = reply.document.as_ref();
                let spoken = document.and_then(|d| d.get_document("speculativeAuthenticate").ok());
                match spoken {
                    Some(spoken) => self.note_conversation(spoken, true),
                    // The driver will begin again.
                    None => self.login = None,
                }
            }
            Step::Login => {
                let is_ok = reply.facts.ok == Some(true);
                let empty = RawDocumentBuf::new();
                self.note_conversation(reply.document.as_deref().unwrap_or(&empty), is_ok);
            }
            Step::Logout => {
                self.is_authenticated = false;
                self.connected.is_user(None);
            }
            Step::Other => {}
        }
    }

    fn note_conversation(&mut self, reply: &RawDocument, is_ok: bool) {
        let is_done = reply.get_bool("done").unwrap_or(false);
        if is_ok && !is_done {
            return;
        }
        let Some(login) = self.login.take() else {
            return;
        };
        let result = if is_ok { "ok" } else { "failed" };
        let time = login.since.elapsed();
        let observer = &self.shared.observer;
        observer.client_authenticated(login.mechanism, result, time);
        if is_ok {
            self.is_authenticated = true;
            self.connected.is_user(login.user);
        }
    }

    /// The server has ended: what is under way has no reply.
    pub(super) fn server_ended(&mut self, now: Instant) {
        for pending in self.pending.drain(..) {
            pending.observation.finish(Outcome::ServerFailed, now);
        }
    }
}

impl Login {
    fn of(start: &RawDocument, source: &str, since: Instant) -> Self {
        let named = start.get_str("mechanism").unwrap_or_default();
        let scram = Mechanism::ALL.into_iter().map(Mechanism::name);
        let mechanism = scram.chain(MECHANISMS).find(|known| *known == named);
        let payload = start.get_binary("payload").ok();
        let first = payload.and_then(|payload| ClientFirst::parse(payload.bytes).ok());
        Self {
            mechanism: mechanism.unwrap_or("other"),
            user: first.map(|first| format!("{source}.{}", first.user())),
            since,
        }
    }
}

fn is_x509(start: &RawDocument) -> bool {
    start.get_str("mechanism").is_ok_and(|name| name == X509)
}

fn step(command: &Command<'_>) -> Step {
    let Class::Handshake(handshake) = command.class else {
        return Step::Operation;
    };
    match handshake {
        Handshake::Hello | Handshake::LegacyHello => Step::Greeting,
        Handshake::SaslStart | Handshake::SaslContinue => Step::Login,
        Handshake::Logout => Step::Logout,
        Handshake::Authenticate | Handshake::Getnonce | Handshake::WhatsMyUri => Step::Other,
    }
}
