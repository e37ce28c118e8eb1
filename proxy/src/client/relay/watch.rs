//! Observes the requests and replies of a relay while they are forwarded.

use std::collections::VecDeque;

use bson::{RawDocument, RawDocumentBuf};
use tokio::time::Instant;

use super::{
    admission::Admission,
    guard,
    replies::{Expected, Passed, ReplyBody},
};
use crate::{
    client::{
        Shared,
        credentials::{MAX_SOURCE_BYTES, UserName},
        hello::Hello,
        operation::{cursor_ids, input, note_retry, reports_lost_cursor, sequences},
        own_reply::{Form, ReplyTo},
    },
    observe::{ConnectedClient, Observation, Recorder, ServerIndex, outcome_of},
    pins::{CursorPin, Pins},
};
use seawall_auth::{ClientFirst, Mechanism};
use seawall_command::CommandBytes;
use seawall_command::{Class, Command, ErrorReply, Handshake, ReplyFacts, ReplyForm};
use seawall_stats::{Outcome, Phase, Stage};
use seawall_transport::Message;
use seawall_wire::{Elements, Header, OpCode, OpMsg, OpQuery};

/// Mechanisms other than SCRAM that have their own metric label. All remaining mechanisms share the
/// label `other`.
const MECHANISMS: [&str; 4] = ["PLAIN", "GSSAPI", "MONGODB-AWS", "MONGODB-OIDC"];

/// The user number under which [`crate::pins`] stores the sessions and cursors of all relayed
/// clients. Seawall does not see every login, so it does not know the users of all these clients.
/// Drivers create random session ids, so different users have different ids.
const ANY_USER: u64 = 0;

/// Maximum number of cursors of one `killCursors` whose pins are removed. The pins of further
/// cursors expire. The limit bounds the memory of a request in progress.
const MAX_KILLED_CURSORS: usize = 100;

/// The decision about a request.
pub(super) enum RequestVerdict {
    /// The request may be forwarded.
    Pass,
    /// Seawall refuses the request with this reply; `None` if the client wants no reply.
    Refuse(Option<Vec<u8>>),
    /// Seawall closes the client connection. The text is the reason in the log.
    Close(&'static str),
}

impl RequestVerdict {
    /// Counts `reason` and decides to close the client connection.
    pub(super) fn close(recorder: &Recorder, reason: &'static str) -> Self {
        recorder.count_unobserved(reason);
        Self::Close(reason)
    }
}

/// A request in progress: it is being forwarded, or its reply is awaited.
struct Pending<'a> {
    request_id: i32,
    observation: Observation<'a>,
    kind: RequestKind,
    form: ReplyForm,
    /// The cursor of a `getMore`, else `None`.
    cursor: Option<i64>,
    /// The first cursors of a `killCursors`, at most [`MAX_KILLED_CURSORS`].
    killed: Vec<i64>,
    /// The login that the request begins, else `None`. The login of an unacknowledged request is
    /// dropped with the request, because Seawall never sees its result.
    login: Option<RelayedLogin>,
    /// True if the request opens a cursor whose `getMore`s wait for data.
    opens_awaiting_cursor: bool,
    /// True if the server sends no reply.
    is_unacknowledged: bool,
}

/// The kind of a request, which determines the effect of its reply on the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// A command outside the handshake.
    Operation,
    /// `hello` or one of its legacy forms.
    Greeting,
    /// `saslStart` or `saslContinue`.
    Login,
    /// `logout`.
    Logout,
    /// Another command of the handshake.
    Other,
}

/// A client's login in progress.
struct RelayedLogin {
    mechanism: &'static str,
    /// The database that the user is defined in. Empty if its name is too long.
    source: String,
    /// The user as `source.name`. `None` if the mechanism is not SCRAM, or if a name is too long.
    user: Option<String>,
    since: Instant,
    /// True if the client sent a `logout` after the login began. The server may run the `logout`
    /// after the login, so the client does not count as logged in.
    is_logged_out: bool,
}

/// The requests and replies of one relay.
pub(super) struct Watch<'a> {
    shared: &'a Shared,
    connected: &'a ConnectedClient,
    server: ServerIndex,
    pending: VecDeque<Pending<'a>>,
    /// The observations of requests whose replies are complete. They end when the replies have been
    /// forwarded.
    sending: Vec<(Observation<'a>, Outcome)>,
    /// The login in progress at the server; `None` if there is none. A login that waits for its
    /// first reply is in [`Pending::login`].
    login: Option<RelayedLogin>,
    is_authenticated: bool,
    /// The database of the last login that succeeded; `None` if no login has succeeded.
    source: Option<String>,
    /// True if the server has replied to a request.
    has_replied: bool,
    /// The activity of the client (for example, a login) when one side ended the relay; `None`
    /// while the relay continues.
    last_stage: Option<Stage>,
    admission: Admission<'a>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        shared: &'a Shared,
        connected: &'a ConnectedClient,
        server: ServerIndex,
        admission: Admission<'a>,
    ) -> Self {
        Self {
            shared,
            connected,
            server,
            pending: VecDeque::new(),
            sending: Vec::new(),
            login: None,
            is_authenticated: false,
            source: None,
            has_replied: false,
            last_stage: None,
            admission,
        }
    }

    /// True if the server requires a login and the client has not logged in.
    pub(super) fn has_to_log_in(&self) -> bool {
        self.admission.requires_login() && !self.is_authenticated
    }

    /// The client's current activity (for example, a login). After [`Self::keep_stage`] was called:
    /// the activity at that time.
    pub(super) fn stage(&self) -> Stage {
        let waits_for = |kinds: &[RequestKind]| {
            let mut pending = self.pending.iter();
            pending.any(|pending| kinds.contains(&pending.kind))
        };
        if let Some(last) = self.last_stage {
            last
        } else if waits_for(&[RequestKind::Operation, RequestKind::Other]) {
            Stage::Operation
        } else if self.begun_logins().next().is_some() || waits_for(&[RequestKind::Login]) {
            Stage::LoggingIn
        } else if self.has_replied && (!self.has_to_log_in() || self.admission.is_monitor()) {
            Stage::Ready
        } else if self.has_replied {
            Stage::Greeted
        } else {
            Stage::Connected
        }
    }

    /// Keeps the current stage, because one side has ended the relay. Later replies, and failures
    /// of the requests in progress, do not change the stage.
    pub(super) fn keep_stage(&mut self) {
        self.last_stage = Some(self.stage());
    }

    /// Records activity of the client. Called before the relay passes a request, and after it has
    /// passed or refused the request.
    pub(super) fn mark_activity(&self) {
        self.admission.mark_activity();
    }

    /// Resolves when the client's login is overdue.
    pub(super) fn login_overdue(&self) -> impl Future<Output = ()> + use<> {
        self.admission.overdue()
    }

    /// Finishes the observations of requests whose replies have been forwarded.
    pub(super) fn finish_sent(&mut self, now: Instant) {
        for (observation, outcome) in self.sending.drain(..) {
            observation.finish(outcome, now);
        }
    }

    /// Number of requests in progress.
    pub(super) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// True if a reply is being sent to the client, or if a request is in progress. A `hello` in
    /// progress does not count.
    pub(super) fn awaits_or_sends(&self) -> bool {
        let mut kinds = self.pending.iter().map(|pending| pending.kind);
        !self.sending.is_empty() || kinds.any(|kind| kind != RequestKind::Greeting)
    }

    /// Inspects a request before it is forwarded. The caller has inflated a compressed request.
    pub(super) fn request(&mut self, message: &Message, now: Instant) -> RequestVerdict {
        match message.header.op_code {
            OpCode::Msg => self.msg(message, now),
            OpCode::Query => self.query(message, now),
            OpCode::Reply | OpCode::Compressed | OpCode::Other(_) => self.legacy(),
        }
    }

    /// Records the number of statements in a streamed request (its bytes are forwarded as they
    /// arrive), after all its bytes have been forwarded.
    pub(super) fn set_statements(&mut self, request_id: i32, statements: u64) {
        let mut pending = self.pending.iter_mut().rev();
        // The request is missing if the server replied before it received the whole request.
        let pending = pending.find(|pending| pending.request_id == request_id);
        if let Some(pending) = pending {
            pending.observation.set_statements(statements);
        }
    }

    /// Closes the connection of a client whose request Seawall cannot parse, because a server might
    /// be able to parse the request and would run it.
    fn close_unparsed(&self, reason: &'static str) -> RequestVerdict {
        RequestVerdict::close(&self.shared.recorder, reason)
    }

    /// Decides about a message with a legacy or unknown opcode, in which Seawall finds no command.
    /// Forwards the message only if the server requires no login or the client has logged in.
    fn legacy(&self) -> RequestVerdict {
        match self.has_to_log_in() {
            true => self.close_unparsed("relay_opcode"),
            false => {
                self.shared.recorder.count_unobserved("relay_opcode");
                RequestVerdict::Pass
            }
        }
    }

    fn msg(&mut self, message: &Message, now: Instant) -> RequestVerdict {
        let parsed = match message.is_head() {
            false => OpMsg::parse(&message.bytes),
            true => OpMsg::parse_head(&message.bytes),
        };
        let Ok(parsed) = parsed else {
            return self.close_unparsed("relay_malformed");
        };
        let Ok(command) = Command::inspect(parsed.body) else {
            return self.close_unparsed("relay_malformed");
        };
        if command.may_log_in() {
            message.mark_secret();
        }
        let flags = parsed.flags;
        let sequences = sequences(&parsed);
        let input = input(&parsed, &sequences);
        match self.refusal(&command) {
            Ok(None) => {}
            Ok(Some(error)) => {
                return self.refuse(message, Form::Msg { flags }, &input, &error, now);
            }
            Err(reason) => return self.close_unparsed(reason),
        }
        self.begin(message, &input, &command, parsed.more_to_come(), now);
        RequestVerdict::Pass
    }

    fn query(&mut self, message: &Message, now: Instant) -> RequestVerdict {
        let Some(query) = OpQuery::parse(&message.bytes) else {
            return self.close_unparsed("relay_malformed");
        };
        let Some(db) = query.command_database() else {
            return self.legacy();
        };
        // The client connection is closed, because a server accepts any bytes as a database name
        // and would run the command.
        let Ok(db) = std::str::from_utf8(db) else {
            return self.close_unparsed("relay_malformed");
        };
        if guard::is_ambiguous(query.query) {
            return self.close_unparsed("relay_malformed");
        }
        let Ok(command) = Command::inspect_legacy(query.query, db) else {
            return self.close_unparsed("relay_malformed");
        };
        if command.may_log_in() {
            message.mark_secret();
        }
        let input = CommandBytes::of_body(command.body);
        match self.refusal(&command) {
            Ok(None) => {}
            Ok(Some(error)) => return self.refuse(message, Form::Query, &input, &error, now),
            Err(reason) => return self.close_unparsed(reason),
        }
        self.begin(message, &input, &command, false, now);
        RequestVerdict::Pass
    }

    /// Returns the error reply for a command that must not reach the server; `None` if the command
    /// may pass.
    ///
    /// # Errors
    /// Seawall must close the client connection. The error is the reason.
    fn refusal(&mut self, command: &Command<'_>) -> Result<Option<ErrorReply>, &'static str> {
        let has_to_log_in = self.has_to_log_in();
        let refusal = guard::refusal(command, has_to_log_in, self.admission.relayed());
        if refusal.is_some() || !has_to_log_in {
            return Ok(refusal);
        }
        match command.class {
            Class::Handshake(Handshake::Hello | Handshake::LegacyHello) => {
                let is_monitor = RawDocument::from_bytes(command.body).is_ok_and(is_from_monitor);
                self.admission.note_hello(is_monitor);
            }
            Class::Handshake(Handshake::SaslStart) if !self.admission.note_login() => {
                return Err("unauthenticated_connections");
            }
            _ => {}
        }
        Ok(None)
    }

    fn refuse(
        &self,
        message: &Message,
        form: Form,
        input: &CommandBytes<'_>,
        error: &ErrorReply,
        now: Instant,
    ) -> RequestVerdict {
        let reply_to = ReplyTo::of(message, form);
        let reply = reply_to.encode(0, &error.to_document());
        let reply = Some(reply).filter(|_| !reply_to.is_unwanted());
        let request_bytes = message.header.message_length;
        let reply_bytes = reply.as_ref().map_or(0, Vec::len);
        let code = Some(error.code);
        self.shared
            .recorder
            .local(input, request_bytes, reply_bytes, code, now);
        RequestVerdict::Refuse(reply)
    }

    fn begin(
        &mut self,
        message: &Message,
        input: &CommandBytes<'_>,
        command: &Command<'_>,
        is_unacknowledged: bool,
        now: Instant,
    ) {
        let kind = match request_kind(command) {
            RequestKind::Logout if self.is_logout_elsewhere(command.db) => RequestKind::Other,
            kind => kind,
        };
        let mut observation = self.observe(message, input, command, now);
        if kind == RequestKind::Operation && !is_unacknowledged {
            observation.set_server(self.server);
        }
        let cursor = match (command.class, command.target) {
            (Class::GetMore, seawall_command::Target::Number(id)) => Some(id),
            _ => None,
        };
        let killed: Vec<_> = match command.class {
            Class::KillCursors => cursor_ids(command).take(MAX_KILLED_CURSORS).collect(),
            _ => Vec::new(),
        };
        let pin = cursor.and_then(|id| self.shared.routing.relay_pins.cursor(id, now));
        if let Some(pin) = pin {
            if pin.is_awaiting {
                observation.mark_awaiting();
            }
            if let Some(origin) = pin.origin {
                observation.attribute_to(origin);
            }
        }
        if kind == RequestKind::Logout {
            // The logout takes effect before its reply, because the next request may arrive
            // earlier than the reply.
            if self.is_authenticated {
                self.admission.require_login();
            }
            self.is_authenticated = false;
            let pending = self.pending.iter_mut().filter_map(|of| of.login.as_mut());
            (pending.chain(&mut self.login)).for_each(|login| login.is_logged_out = true);
        }
        let login = self.begun_login(kind, command, now);
        observation.enter(Phase::Forward, now);
        self.pending.push_back(Pending {
            request_id: message.header.request_id,
            observation,
            kind,
            form: command.spec.reply_form,
            cursor,
            killed,
            login,
            opens_awaiting_cursor: command.opens_awaiting_cursor(),
            is_unacknowledged,
        });
    }

    /// True if the client has logged in or has begun a login, but not on the database `db`. Then a
    /// server ignores a `logout` on `db`.
    fn is_logout_elsewhere(&self, db: &str) -> bool {
        let begun = self.begun_logins().map(|login| login.source.as_str());
        let mut sources = self.source.as_deref().into_iter().chain(begun).peekable();
        sources.peek().is_some() && sources.all(|source| source != db)
    }

    /// The logins that have begun and have not ended.
    fn begun_logins(&self) -> impl Iterator<Item = &RelayedLogin> {
        let pending = self.pending.iter().filter_map(|of| of.login.as_ref());
        pending.chain(&self.login)
    }

    fn observe(
        &self,
        message: &Message,
        input: &CommandBytes<'_>,
        command: &Command<'_>,
        now: Instant,
    ) -> Observation<'a> {
        let recorder = &self.shared.recorder;
        let relay_pins = &self.shared.routing.relay_pins;
        let bytes = message.header.message_length;
        let mut observation = match request_kind(command) {
            RequestKind::Operation => {
                let mut observation = recorder.begin(input, bytes, now);
                note_retry(command, ANY_USER, relay_pins, recorder, &mut observation);
                observation
            }
            RequestKind::Greeting
            | RequestKind::Login
            | RequestKind::Logout
            | RequestKind::Other => recorder.begin_unshaped(input, bytes, now),
        };
        let client = self.connected;
        let user = client.id().unsigned_abs().into();
        // The user is unknown, so each client counts as a user. The command is not stored (`None`),
        // because the message may be dropped before the reply arrives.
        observation.set_sender(client, user, None);
        if message.is_head() {
            observation.mark_streamed();
        }
        let is_greeting = request_kind(command) == RequestKind::Greeting;
        if is_greeting && Elements::find(command.body, "maxAwaitTimeMS").is_some() {
            // This is the hello of a driver's monitor. The server delays its reply until the
            // topology changes or `maxAwaitTimeMS` is over.
            observation.mark_awaiting();
        }
        observation
    }

    /// Returns the login that a request begins; `None` for other requests. Also records the
    /// metadata of a `hello`.
    fn begun_login(
        &self,
        kind: RequestKind,
        command: &Command<'_>,
        now: Instant,
    ) -> Option<RelayedLogin> {
        let body = RawDocument::from_bytes(command.body).ok()?;
        match kind {
            RequestKind::Greeting => {
                if let Ok(metadata) = body.get_document("client") {
                    self.note_metadata(metadata);
                }
                let start = body.get_document("speculativeAuthenticate").ok()?;
                let source = start.get_str("db").unwrap_or("admin");
                Some(RelayedLogin::of(start, source, now))
            }
            RequestKind::Login if command.class == Class::Handshake(Handshake::SaslStart) => {
                Some(RelayedLogin::of(body, command.db, now))
            }
            RequestKind::Operation
            | RequestKind::Login
            | RequestKind::Logout
            | RequestKind::Other => None,
        }
    }

    fn note_metadata(&self, metadata: &RawDocument) {
        if let Ok(application) = metadata.get_document("application") {
            self.connected
                .set_application(application.get_str("name").ok());
        }
        if let Ok(driver) = metadata.get_document("driver") {
            let part = |field| driver.get_str(field).unwrap_or_default();
            self.connected.set_driver(part("name"), part("version"));
        }
    }

    /// Records that the last byte of the current request has been written to the server.
    pub(super) fn record_forwarded_request(&mut self, now: Instant) {
        let mut asked = self.pending.iter();
        let Some(index) = asked.position(|p| p.observation.phase() == Phase::Forward) else {
            return;
        };
        if self
            .pending
            .get(index)
            .is_some_and(|sent| sent.is_unacknowledged)
        {
            if let Some(sent) = self.pending.remove(index) {
                sent.observation.finish(Outcome::Ok, now);
            }
        } else if let Some(sent) = self.pending.get_mut(index) {
            sent.observation.enter(Phase::Server, now);
        }
    }

    /// Returns how the reply with this header must be parsed. The result depends on the request.
    /// Replies to commands of the handshake and compressed replies are copied.
    pub(super) fn expected(&self, header: Header) -> Expected {
        let mut asked = self.pending.iter();
        let asked = asked.find(|p| p.request_id == header.response_to);
        let is_handshake = asked.is_some_and(|asked| asked.kind != RequestKind::Operation);
        let budget = &self.shared.memory.replies;
        let copy = || ReplyBody::of(header, budget, self.admission.sharer());
        let is_copied = is_handshake || header.op_code == OpCode::Compressed;
        Expected {
            copy: is_copied.then(copy).flatten(),
            form: asked.map(|asked| asked.form).unwrap_or_default(),
        }
    }

    /// Records that a reply has begun to arrive.
    pub(super) fn record_reply_begin(&mut self, header: Header, now: Instant) {
        let mut asked = self.pending.iter_mut();
        if let Some(pending) = asked.find(|p| p.request_id == header.response_to) {
            pending.observation.enter(Phase::Receive, now);
        }
    }

    /// Records a complete reply that is about to be forwarded.
    pub(super) fn record_reply_end(&mut self, reply: &Passed, now: Instant) {
        let id = reply.header.response_to;
        let index = self.pending.iter().position(|p| p.request_id == id);
        let Some(mut pending) = index.and_then(|index| self.pending.remove(index)) else {
            self.shared.recorder.count_unobserved("relay_reply_unasked");
            return;
        };
        if reply.facts.is_opaque {
            self.shared.recorder.count_unobserved("reply_not_followed");
        }
        self.has_replied = true;
        self.note_reply(&mut pending, reply);
        let mut observation = pending.observation;
        let again = reply
            .more_to_come
            .then(|| observation.begin_next_reply(now));
        let documents = reply.facts.documents();
        observation.add_reply(reply.header.message_length, documents);
        observation.enter(Phase::Send, now);
        self.sending.push((observation, outcome_of(&reply.facts)));
        if let Some(mut again) = again {
            again.enter(Phase::Server, now);
            pending.observation = again;
            pending.request_id = reply.header.request_id;
            self.pending.push_back(pending);
        }
    }

    fn note_reply(&mut self, pending: &mut Pending<'a>, reply: &Passed) {
        let now = Instant::now();
        pending.observation.record_reply(&reply.facts, now);
        match pending.kind {
            RequestKind::Operation => {
                let pins = &self.shared.routing.relay_pins;
                unpin_ended(pins, &reply.facts, pending.cursor, &pending.killed);
                if let (Some(id), None) = (reply.facts.cursor_id, pending.cursor)
                    && id != 0
                {
                    let pin = CursorPin {
                        server: (),
                        origin: pending.observation.origin(),
                        is_awaiting: pending.opens_awaiting_cursor,
                        is_resumable: false,
                    };
                    if !pins.pin_cursor(id, ANY_USER, pin, now) {
                        self.shared.recorder.count_unobserved("cursor_pins_full");
                    }
                }
            }
            RequestKind::Greeting => {
                self.admission.note_hello_reply();
                self.login = pending.login.take();
                let document = reply.document.as_ref();
                let spoken = document.and_then(|d| d.get_document("speculativeAuthenticate").ok());
                match spoken {
                    Some(spoken) => self.note_conversation(spoken, true),
                    // The server did not begin the login of `speculativeAuthenticate`. The driver
                    // then sends a `saslStart`.
                    None => self.login = None,
                }
            }
            RequestKind::Login => {
                // `pending` has a login only for a `saslStart`. The login is kept there until this
                // reply, because an earlier login may still be in progress before it.
                self.login = pending.login.take().or(self.login.take());
                let is_ok = reply.facts.ok == Some(true);
                let empty = RawDocumentBuf::new();
                self.note_conversation(reply.document.as_deref().unwrap_or(&empty), is_ok);
            }
            RequestKind::Logout => self.connected.set_user(None),
            RequestKind::Other => {}
        }
    }

    /// Records the end of a login, if the reply ends it.
    fn note_conversation(&mut self, reply: &RawDocument, is_ok: bool) {
        let is_done = reply.get_bool("done").unwrap_or(false);
        if is_ok && !is_done {
            return;
        }
        let Some(login) = self.login.take() else {
            return;
        };
        let result = if is_ok { "ok" } else { "refused" };
        let time = login.since.elapsed();
        let recorder = &self.shared.recorder;
        recorder.count_relayed_client_login(login.mechanism, result, time);
        if is_ok && !login.is_logged_out {
            self.is_authenticated = true;
            self.admission.admit();
            self.connected.set_user(login.user.as_deref());
            self.source = Some(login.source);
        }
    }

    /// Records a failure for all requests in progress, because the server connection or the relay
    /// has ended, so no more replies will arrive.
    pub(super) fn fail_pending(&mut self, now: Instant) {
        self.keep_stage();
        for pending in self.pending.drain(..) {
            pending.observation.finish(Outcome::ServerFailed, now);
        }
    }
}

impl RelayedLogin {
    /// A login that `start` begins. Names that are too long for a database or a user are not
    /// stored, because a client may have many such requests in progress.
    fn of(start: &RawDocument, source: &str, since: Instant) -> Self {
        let named = start.get_str("mechanism").unwrap_or_default();
        let scram = Mechanism::ALL.into_iter().map(Mechanism::name);
        let mechanism = scram.chain(MECHANISMS).find(|known| *known == named);
        let payload = start.get_binary("payload").ok();
        let first = payload.and_then(|payload| ClientFirst::parse(payload.bytes).ok());
        let user = first.and_then(|first| UserName::new(first.user(), source));
        let source = match source.len() > MAX_SOURCE_BYTES {
            true => "",
            false => source,
        };
        Self {
            mechanism: mechanism.unwrap_or("other"),
            source: source.to_owned(),
            user: user.map(|user| format!("{}.{}", user.source, user.name)),
            since,
            is_logged_out: false,
        }
    }
}

/// Removes the pins of the cursors that no longer exist after this reply. `cursor` is the cursor of
/// a `getMore`, and `killed` are the cursors of a `killCursors`.
fn unpin_ended(pins: &Pins<()>, facts: &ReplyFacts, cursor: Option<i64>, killed: &[i64]) {
    if facts.ok == Some(true) {
        for id in killed {
            pins.unpin_cursor(*id, ANY_USER);
        }
    }
    let has_ended = facts.cursor_id == Some(0) || reports_lost_cursor(facts);
    if let Some(ended) = cursor.filter(|_| has_ended) {
        pins.unpin_cursor(ended, ANY_USER);
    }
}

/// True if a hello looks like that of a driver's monitor and a server would accept this hello.
fn is_from_monitor(hello: &RawDocument) -> bool {
    Hello::parse(hello, false, true).is_ok_and(|hello| hello.is_from_monitor())
}

fn request_kind(command: &Command<'_>) -> RequestKind {
    let Class::Handshake(handshake) = command.class else {
        return RequestKind::Operation;
    };
    match handshake {
        Handshake::Hello | Handshake::LegacyHello => RequestKind::Greeting,
        Handshake::SaslStart | Handshake::SaslContinue => RequestKind::Login,
        Handshake::Logout => RequestKind::Logout,
        Handshake::Authenticate | Handshake::Getnonce | Handshake::WhatsMyUri => RequestKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bson::{Binary, rawdoc, spec::BinarySubtype};

    use super::*;
    use crate::pins::PinLimits;

    /// Pins the cursors 7, 8 and 9. Returns those that are still pinned after this reply to a
    /// `getMore` of 7, or to a `killCursors` of 7 and 8. A *pin* is Seawall's record of a cursor.
    fn pinned_after(reply: &RawDocument, is_kill: bool) -> Vec<i64> {
        let pins = Pins::new(PinLimits {
            max_cursors: 100,
            max_transactions: 100,
            cursor_idle: Duration::from_secs(600),
            transaction_idle: Duration::from_secs(60),
        });
        let (ids, now) = ([7, 8, 9], Instant::now());
        for id in ids {
            let pin = CursorPin {
                server: (),
                origin: None,
                is_awaiting: false,
                is_resumable: false,
            };
            assert!(pins.pin_cursor(id, ANY_USER, pin, now));
        }
        let facts = ReplyFacts::of(ReplyForm::Plain, reply.as_bytes());
        match is_kill {
            true => unpin_ended(&pins, &facts, None, &[7, 8]),
            false => unpin_ended(&pins, &facts, Some(7), &[]),
        }
        let is_pinned = |id: &i64| pins.cursor(*id, now).is_some();
        ids.into_iter().filter(is_pinned).collect()
    }

    #[test]
    fn pins_of_cursors_that_a_relayed_client_has_killed_or_lost_are_removed() {
        let failed = |code: i32| rawdoc! { "ok": 0.0, "code": code };
        let batch = |id: i64| rawdoc! { "cursor": { "id": id }, "ok": 1.0 };
        let killed = rawdoc! { "cursorsKilled": [7_i64, 8_i64], "ok": 1.0 };
        assert_eq!(pinned_after(&killed, true), [9]);
        assert_eq!(pinned_after(&failed(13), true), [7, 8, 9]);
        for code in [43, 175, 237] {
            assert_eq!(pinned_after(&failed(code), false), [8, 9], "{code}");
        }
        assert_eq!(pinned_after(&failed(50), false), [7, 8, 9]);
        assert_eq!(pinned_after(&batch(0), false), [8, 9]);
        assert_eq!(pinned_after(&batch(7), false), [7, 8, 9]);
    }

    /// A relayed client may have 256 requests in progress, and each may begin a login.
    #[test]
    fn names_that_are_too_long_for_a_user_or_a_database_are_not_stored_with_a_login() {
        let names = |name: &str, source: &str| {
            let payload = Binary {
                subtype: BinarySubtype::Generic,
                bytes: format!("n,,n={name},r=abcd").into_bytes(),
            };
            let start = rawdoc! { "mechanism": "SCRAM-SHA-256", "payload": payload };
            let login = RelayedLogin::of(&start, source, Instant::now());
            (login.source, login.user.unwrap_or_default())
        };
        let stored = |source: &str, user: &str| (source.to_owned(), user.to_owned());
        let long = "x".repeat(2000);
        assert_eq!(names("app", "admin"), stored("admin", "admin.app"));
        assert_eq!(names(&long, "admin"), stored("admin", ""));
        assert_eq!(names("app", &long), stored("", ""));
    }
}
