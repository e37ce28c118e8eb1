//! One client connection: serves its handshake, its login and its operations, one after another.
//!
//! ```text
//!  accepted ──► greeted ──► logging in ──► authenticated ──► operations … ──► closed
//!               hello       saslStart …    (at once, without access control)
//! ```
//!
//! `operation/` owns the order of an operation's steps. This module reads messages, replies to
//! them or passes them to `operation/`, and closes connections.
//!
//! Invariants: no byte from a client that still has to log in reaches a pooled connection. A client
//! uses only its own user's connections. A malformed message gets the reply that a server would
//! send, or Seawall closes the connection. Both cases are counted.

mod abandoned;
mod backlog;
mod client_end;
mod credentials;
mod fallback;
mod fault;
mod forward;
mod handshake;
mod hello;
mod login;
mod operation;
mod own_command;
mod own_reply;
mod peer;
mod refusal_time;
mod refusals;
mod relay;
mod reply;
mod request;
mod shared;
mod streaming;

use std::{
    future::poll_fn,
    net::SocketAddr,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bson::{RawDocument, rawdoc};
use futures_util::future::{BoxFuture, ready};
use ipnet::IpNet;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    captures::CapturedClient,
    limits::{ClientPermit, Eviction, HandshakePermit, Heavy, MonitorPermit, Origin, RelayPermit},
    observe::ConnectedClient,
};
use seawall_auth::{Identity, IdentityStatus};
use seawall_command::CommandBytes;
use seawall_command::{
    Class, Command, ErrorReply, Handshake, LEGACY_READ_NOT_SUPPORTED, ReplyFacts, ReplyForm,
    UNSUPPORTED_OP_QUERY_COMMAND, table::ReplyBeforeLogin,
};
use seawall_stats::{Departure, Stage};
use seawall_transport::{
    LARGE_MESSAGE_BYTES, Message, MessageReader, Polled, ReadError, Sharer, Stream,
};
use seawall_wire::{CompressedHead, Compressor, MAX_MESSAGE_BYTES, OpCode, OpMsg, OpQuery};

pub(crate) use self::credentials::{ConfiguredUser, CredentialSettings, UserSecret};
pub use self::credentials::{CredentialMode, Credentials};
pub use self::fault::{Fault, FaultEnd};
pub use self::own_command::Reporter;
pub use self::peer::Peer;
pub use self::shared::{Arrivals, Logins, MessageMemory, Routing, Shared};
use self::{
    client_end::ClientEnd,
    hello::Compressors,
    login::SaslConversation,
    own_reply::{Form, ReplyTo},
    relay::{Target, serve_relayed},
    streaming::can_be_streamed,
};

/// Settings that apply to all clients.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Largest message of a client that has not logged in, in bytes.
    pub pre_auth_message_bytes: usize,
    /// Maximum time from the moment when a client must log in until it has logged in.
    pub authentication_timeout: Duration,
    /// Maximum time for which an operation waits for a suitable server.
    pub server_selection_timeout: Duration,
    /// Maximum time that an operation waits for its permit (`limits.max_in_flight_operations`), and
    /// maximum time that it then waits for a pooled connection to the selected server.
    pub wait_queue_timeout: Duration,
    /// Maximum time for which a client may read nothing while Seawall sends a reply to it.
    pub client_write_idle_timeout: Duration,
    /// True if Seawall adds `$client` to commands, so that servers' logs name the applications.
    pub name_applications: bool,
    /// True if Seawall sends a failed operation again where this is safe, and hides a server's
    /// state-change errors (such as `NotWritablePrimary`) from clients. A client gets another error
    /// instead of a state-change error.
    pub repeats: bool,
    /// True if every client is relayed (has a server connection of its own), so no pool is used.
    pub is_relay: bool,
    /// True if a relay connects to the address to which the client connected before the kernel
    /// redirected it to Seawall.
    pub original_destination: bool,
    /// True if relays accept clients that begin TLS with the server. Seawall then forwards
    /// encrypted bytes.
    pub relays_encrypted: bool,
    /// The port on which servers expect a header of the PROXY protocol. Relays connect to this port
    /// and send the header. `None` if relays connect to the usual port and send no header.
    pub relay_proxy_port: Option<u16>,
    /// Networks in which many clients share one address. Seawall divides limited resources among
    /// addresses. After its login, a client from one of these networks counts towards the share of
    /// its user instead of its address.
    pub shared_addresses: Vec<IpNet>,
    /// True if a pooled client becomes a relayed client when it begins a login with a mechanism
    /// other than SCRAM and X.509.
    pub relays_other_mechanisms: bool,
    /// True if Seawall serves the command `seawall`.
    pub serves_own_commands: bool,
    /// Seawall's own name, as servers see it in `$client`.
    pub host: String,
}

/// A client that has just connected.
#[derive(Debug)]
pub struct Newcomer {
    /// Counts the client towards the limit of all clients.
    pub client: ClientPermit,
    /// Counts the client towards the limit of clients that have not logged in.
    pub handshake: HandshakePermit,
    /// Signals that the client must be closed, for example because another client needs its permit.
    pub eviction: Eviction,
    /// Compressors that the client may use.
    pub compressors: Arc<[Compressor]>,
}

/// For a client that must log in: its deadline, and the permit that it holds until its login.
struct LoginDue {
    /// Counts the client towards the limit of clients that have not logged in. `None` if no permit
    /// was left when an already connected client had to log in, for example after a `logout`.
    permit: Option<HandshakePermit>,
    deadline: Instant,
}

/// The reason why Seawall no longer serves a client over pooled connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client has disconnected.
    Gone,
    /// Seawall closed the connection.
    Closed,
    /// The client continues as a relayed client.
    Relayed,
}

struct Client {
    shared: Arc<Shared>,
    stream: Stream,
    reader: MessageReader,
    peer: Peer,
    connected: ConnectedClient,
    /// The `requestID` of the next reply that Seawall builds itself.
    next_reply_id: i32,
    /// True after the first hello.
    has_greeted: bool,
    /// True if the client's driver has announced that it can handle overload errors (field
    /// `backpressure` of its hello).
    announces_backpressure: bool,
    /// Compressors that the client may use.
    allowed_compressors: Arc<[Compressor]>,
    /// Compressors negotiated in a hello, in the client's order.
    compressors: Compressors,
    /// The element `$client` with the client's metadata. Seawall adds it to the client's commands
    /// if [`ClientSettings::name_applications`] is true. `None` if the client has sent no metadata,
    /// or if the element would be too large.
    client_element: Option<Box<[u8]>>,
    identity: Option<Arc<Identity>>,
    /// The login in progress; `None` if there is none.
    login: Option<Box<SaslConversation>>,
    /// The deadline for the login; `None` if the client has logged in or need not log in. A
    /// driver's monitor, for example, never logs in. The box saves memory after the login.
    handshake: Option<Box<LoginDue>>,
    /// Set while the client is a driver's monitor that has not logged in.
    monitor: Option<Box<MonitorPermit>>,
    eviction: Eviction,
    /// The address or user towards which the client counts when Seawall divides limited resources.
    sharer: Sharer,
    /// The client's state in the running capture, which records the messages of some clients.
    captured: CapturedClient,
    /// Counts the client towards the limit of all clients.
    client_permit: ClientPermit,
    /// Set when the client becomes a relayed client: the first message for the relay, the server
    /// connection, and the permit for the relay.
    relayed: Option<Box<(Message, Target, RelayPermit)>>,
}

/// The future that serves one message of a client.
type Serving<'a> = BoxFuture<'a, Result<(), End>>;

/// Returns the future that serves a client until the client leaves or Seawall closes the
/// connection. `original` is the address to which the client connected before the kernel redirected
/// it to Seawall; `None` if the client was not redirected. Only relays use `original`.
pub fn serve(
    shared: Arc<Shared>,
    stream: Stream,
    peer: Peer,
    newcomer: Newcomer,
    original: Option<SocketAddr>,
) -> BoxFuture<'static, ()> {
    if shared.settings().is_relay {
        return Box::pin(serve_relayed(shared, stream, peer, newcomer, original));
    }
    Box::pin(Box::new(Client::new(shared, stream, peer, newcomer)).run())
}

/// Interval at which Seawall checks if a client that waits for admission has left.
const ADMISSION_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Client {
    fn new(shared: Arc<Shared>, stream: Stream, peer: Peer, newcomer: Newcomer) -> Self {
        let connected = shared.clients.connected(Arc::clone(&peer.text), peer.ip);
        let deadline = Instant::now() + shared.settings().authentication_timeout;
        let identity = shared.logins.credentials.anonymous();
        let sharer = Sharer::at(peer.ip);
        let permit = Some(newcomer.handshake);
        Self {
            stream,
            reader: MessageReader::new(sharer),
            sharer,
            client_permit: newcomer.client,
            peer,
            connected,
            next_reply_id: 1,
            has_greeted: false,
            announces_backpressure: false,
            allowed_compressors: newcomer.compressors,
            compressors: Compressors::default(),
            client_element: None,
            handshake: identity
                .is_none()
                .then(|| Box::new(LoginDue { permit, deadline })),
            identity,
            login: None,
            monitor: None,
            eviction: newcomer.eviction,
            captured: CapturedClient::default(),
            relayed: None,
            shared,
        }
    }

    /// Serves the client until its connection ends. `self` is boxed, because the future of an
    /// `async fn` has room for two copies of each argument.
    async fn run(mut self: Box<Self>) {
        // Most clients need not wait, so the future of the wait is boxed: it uses memory only
        // during a wait.
        let admitted = match self.shared.arrivals.gate.try_pass() {
            true => Ok(()),
            false => {
                let began = Instant::now();
                let admitted = Box::pin(self.wait_for_admission()).await;
                self.extend_login_deadline(began);
                admitted
            }
        };
        let end = match admitted {
            Ok(()) => loop {
                if let Err(end) = self.serve_next().await {
                    break end;
                }
            },
            Err(end) => end,
        };
        if end == End::Closed {
            self.connected.set_departure(Departure::Closed);
        }
        if self.relayed.is_some() {
            Box::pin(self.continue_relayed()).await;
        }
    }

    /// Waits until the arrivals gate lets the client pass. While the data plane (the threads that
    /// serve clients) runs its tasks late, new clients wait here, before Seawall reads their first
    /// byte.
    async fn wait_for_admission(&self) -> Result<(), End> {
        self.shared.recorder.count_delayed_arrival();
        let arrivals = &self.shared.arrivals.gate;
        let from = Origin {
            sharer: self.sharer,
            user: None,
        };
        let mut pass = pin!(arrivals.pass(from));
        while timeout(ADMISSION_CHECK_INTERVAL, &mut pass).await.is_err() {
            // A client that needs no login is served even if it has left, because it may have sent
            // an unacknowledged write before it left.
            if self.identity.is_none() && self.stream.peer_has_left() {
                self.connected.record_left_unserved();
                return Err(End::Gone);
            }
        }
        Ok(())
    }

    async fn serve_next(&mut self) -> Result<(), End> {
        let Some(message) = self.read().await? else {
            return Err(End::Gone);
        };
        self.eviction.mark_activity();
        let served = match self.begin_message(message) {
            Ok(serving) => serving.await,
            Err(end) => Err(end),
        };
        self.eviction.mark_activity();
        match self.eviction.is_closing() || self.stream.is_worn_out() {
            true => served.and(Err(End::Closed)),
            false => served,
        }
    }

    /// Returns the future that serves a message. The future is boxed, so that it uses memory only
    /// while a message is served. Most of the time, most clients are idle.
    fn begin_message(&mut self, message: Message) -> Result<Serving<'_>, End> {
        // In a reconnect storm, many clients have left when Seawall reads their first message.
        // Before a login, Seawall does not serve such a message, because its client would not get
        // the reply.
        if self.identity.is_none() && self.stream.peer_has_left() {
            self.connected.record_left_unserved();
            return Err(End::Gone);
        }
        let now = message.head_since.unwrap_or_else(Instant::now);
        // A capture contains only whole messages, so a recorded message is read whole.
        let is_recorded = || self.shared.captures.needs_whole_message(&self.captured);
        if message.is_head() && (!can_be_streamed(&message) || is_recorded()) {
            return Ok(Box::pin(self.serve_completed(message)));
        }
        self.begin_whole(message, now)
    }

    /// Reads the rest of a large message, and serves it.
    async fn serve_completed(&mut self, head: Message) -> Result<(), End> {
        let message = self.complete(head).await?;
        self.begin_whole(message, Instant::now())?.await
    }

    /// Decompresses a message, and serves it.
    async fn serve_inflated(&mut self, message: Message, now: Instant) -> Result<(), End> {
        let message = self.inflate(message).await?;
        if message.header.op_code == OpCode::Compressed {
            return self.close("unknown_opcode");
        }
        self.begin_whole(message, now)?.await
    }

    /// Returns the future that serves a message. If only the head of the message has been read, the
    /// future forwards the rest to the server as it arrives.
    fn begin_whole(&mut self, message: Message, now: Instant) -> Result<Serving<'_>, End> {
        Ok(match message.header.op_code {
            OpCode::Compressed => Box::pin(self.serve_inflated(message, now)),
            OpCode::Msg => {
                // `Box::pin` would create this large future on the stack and then copy it to the
                // box. `Box::write` lets the compiler avoid the copy.
                let served = Box::write(Box::new_uninit(), self.serve_msg(message, now));
                Box::into_pin(served)
            }
            OpCode::Query => Box::pin(self.serve_query(message, now)),
            // A server ignores opcode 0 and keeps the connection open.
            OpCode::Other(0) => {
                self.shared.recorder.count_unobserved("opcode_0");
                Box::pin(ready(Ok(())))
            }
            OpCode::Other(OP_GET_MORE) => {
                Box::pin(async move { self.refuse_legacy_read(&message, "OP_GET_MORE").await })
            }
            OpCode::Reply | OpCode::Other(_) => return self.close("unknown_opcode"),
        })
    }

    /// Reads the next message; `None` at the end of the connection. Most clients are idle most of
    /// the time, so this future must be small. It contains only the state that an idle client
    /// needs. The futures of rare cases are boxed.
    async fn read(&mut self) -> Result<Option<Message>, End> {
        // `update_identity` may require a login. The login has a deadline, which is read below.
        self.update_identity();
        if let Some(until) = self.read_deadline() {
            return Box::pin(self.read_until(until)).await;
        }
        match poll_fn(|cx| self.poll_small(cx)).await {
            Ok(Polled::Message(message)) => Ok(Some(message)),
            Ok(Polled::End) => Ok(None),
            Ok(Polled::Unfinished) => Box::pin(self.read_unfinished()).await,
            Err(error) => self.unreadable(&error),
        }
    }

    fn poll_small(&mut self, cx: &mut Context<'_>) -> Poll<Result<Polled, ReadError>> {
        let max = self.max_message_bytes();
        let budget = &self.shared.memory.requests;
        self.reader.poll_small(cx, &mut self.stream, max, budget)
    }

    /// Reads the next message, including messages that [`Self::poll_small`] cannot read. If
    /// `poll_small` has read a part of the message, continues after this part. May return only the
    /// head of a large `OP_MSG`. `None` at the end of the connection.
    async fn read_unfinished(&mut self) -> Result<Option<Message>, End> {
        let max = self.max_message_bytes();
        let budget = &self.shared.memory.requests;
        let read = self.reader.next(&mut self.stream, max, budget).await;
        read.or_else(|error| self.unreadable(&error))
    }

    /// The earlier of two deadlines: for the client's login, and for the client's proof if a server
    /// verifies this proof ([`SaslConversation::deadline`]). `None` if the client has neither
    /// deadline.
    fn read_deadline(&self) -> Option<Instant> {
        let handshake = self.handshake.as_ref().map(|due| due.deadline);
        let first_login = self.login.as_ref().and_then(|login| login.deadline());
        handshake.into_iter().chain(first_login).min()
    }

    /// Adds the time since `began` to the client's deadline for its login, because a gate made the
    /// client wait for this time.
    fn extend_login_deadline(&mut self, began: Instant) {
        if let Some(due) = &mut self.handshake {
            due.deadline += began.elapsed();
        }
    }

    /// Reads the next message of a client that has the deadline `until`. Closes the connection at
    /// the deadline for the login. At the deadline for the client's proof, ends the login in
    /// progress and keeps the connection.
    async fn read_until(&mut self, until: Instant) -> Result<Option<Message>, End> {
        // `timeout_at` polls the read first. Without this check, a client that sends messages
        // without a pause would never time out.
        if Instant::now() < until
            && let Ok(read) = timeout_at(until, self.read_unfinished()).await
        {
            return read;
        }
        let handshake = self.handshake.as_ref().map(|due| due.deadline);
        if handshake.is_some_and(|deadline| deadline <= until) {
            return self.close("authentication_timeout");
        }
        // Only the time for the proof is over. The client stays connected and may log in again.
        self.login = None;
        Box::pin(self.read()).await
    }

    /// Reads the rest of a message after its head has been read, and returns the whole message.
    async fn complete(&mut self, head: Message) -> Result<Message, End> {
        let shared = Arc::clone(&self.shared);
        let whole = self
            .reader
            .complete(head, &mut self.stream, &shared.memory.requests);
        whole.await.or_else(|error| self.unreadable(&error))
    }

    /// Ends the connection after a read error.
    fn unreadable<T>(&mut self, error: &ReadError) -> Result<T, End> {
        if let Some(reason) = error.refusal() {
            return self.close(reason);
        }
        if error.is_reset() {
            self.connected.set_departure(Departure::Reset);
        }
        Err(End::Gone)
    }

    /// Decompresses a message. Closes the connection if the message is malformed (as a server
    /// does), if the client has not logged in, or if the configuration does not allow the
    /// compressor.
    async fn inflate(&mut self, message: Message) -> Result<Message, End> {
        let shared = Arc::clone(&self.shared);
        let allowed = Arc::clone(&self.allowed_compressors);
        let is_configured = |head: CompressedHead| allowed.contains(&head.compressor);
        let head = CompressedHead::parse(&message.bytes, MAX_MESSAGE_BYTES);
        if self.current_identity().is_none() || !head.is_ok_and(is_configured) {
            return self.close("compressed_refused");
        }
        let reserved = message.reserve_inflated(
            self.max_message_bytes(),
            &shared.memory.requests,
            self.sharer,
        );
        let inflated = match reserved.await {
            Ok(inflating) => {
                let heavy = shared.limits.heavy(self.sharer);
                let bytes = inflating.work_bytes();
                heavy.run(bytes, || inflating.inflate()).await
            }
            Err(error) => Err(error),
        };
        inflated.or_else(|error| {
            tracing::debug!(%error, peer = %self.peer.text, "malformed compressed message from a client");
            self.close("compressed")
        })
    }

    fn max_message_bytes(&self) -> usize {
        match &self.identity {
            Some(_) => MAX_MESSAGE_BYTES,
            None => self.shared.settings().pre_auth_message_bytes,
        }
    }

    /// Counts `reason` and closes the connection.
    fn close<T>(&self, reason: &'static str) -> Result<T, End> {
        self.shared.recorder.count_unobserved(reason);
        Err(End::Closed)
    }

    async fn serve_msg(&mut self, message: Message, now: Instant) -> Result<(), End> {
        let bytes = message.bytes.len();
        let parse = || match message.is_head() {
            false => OpMsg::parse(&message.bytes),
            true => OpMsg::parse_head(&message.bytes),
        };
        let parsing = match Heavy::is_long_walk(bytes) {
            false => parse(),
            true => Box::pin(self.heavy().walk(bytes, parse)).await,
        };
        let parsed = match parsing {
            Ok(parsed) => parsed,
            Err(error) => {
                self.shared.recorder.count_unobserved(error.reason());
                let Some(code) = error.code() else {
                    return Err(End::Closed);
                };
                let flags = flags_of(&message.bytes);
                let reply_to = ReplyTo::of(&message, Form::Msg { flags });
                return self
                    .refuse(reply_to, &ErrorReply::new(code, error.to_string()))
                    .await;
            }
        };
        let flags = parsed.flags;
        let reply_to = ReplyTo::of(&message, Form::Msg { flags });
        let inspect = || Command::inspect(parsed.body);
        let inspecting = match Heavy::is_long_walk(bytes) {
            false => inspect(),
            true => Box::pin(self.heavy().walk(bytes, inspect)).await,
        };
        let command = match inspecting {
            Ok(command) => command,
            Err(error) => {
                self.shared.recorder.count_unobserved("invalid_command");
                return self
                    .refuse(reply_to, &ErrorReply::new(error.code(), error.to_string()))
                    .await;
            }
        };
        if command.may_log_in() {
            message.mark_secret();
            self.check_handshake_size(&message)?;
        }
        if command.class == Class::Handshake(Handshake::SaslStart) {
            self.pass_login_gates(&command).await?;
        }
        if command.class == Class::Handshake(Handshake::SaslStart) && self.falls_back(command.body)
        {
            return Box::pin(self.fall_back(message, reply_to)).await;
        }
        if let Class::Handshake(handshake) = command.class {
            return Box::pin(self.serve_handshake(handshake, &command, reply_to, now)).await;
        }
        match self.operator(&command) {
            Some(identity) => {
                // Ends a first login that waits for the client's proof. Otherwise, while the
                // operation runs, the first login would keep a server connection and count towards
                // the limit of first logins.
                self.login.take_if(|login| login.deadline().is_some());
                self.connected.set_stage(Stage::Operation);
                if command.spec.is_about_seawall && self.shared.settings().serves_own_commands {
                    Box::pin(self.serve_own(&identity, &command, reply_to, now)).await?;
                } else {
                    self.operate(&message, identity, &parsed, &command, reply_to, now)
                        .await?;
                }
                self.connected.set_stage(Stage::Ready);
                Ok(())
            }
            None => Box::pin(self.serve_unauthenticated(&command, reply_to, now)).await,
        }
    }

    fn heavy(&self) -> Heavy<'_> {
        self.shared.limits.heavy(self.sharer)
    }

    /// Closes the connection if a command of the handshake is much larger than the commands that
    /// drivers send. Such a command would cost too much time, because Seawall searches the whole
    /// command once for each field.
    fn check_handshake_size(&self, message: &Message) -> Result<(), End> {
        let before_login = self.shared.settings().pre_auth_message_bytes;
        match message.header.message_length > LARGE_MESSAGE_BYTES.max(before_login) {
            true => self.close("message_length"),
            false => Ok(()),
        }
    }

    async fn serve_query(&mut self, message: Message, now: Instant) -> Result<(), End> {
        let reply_to = ReplyTo::of(&message, Form::Query);
        let Some(query) = OpQuery::parse(&message.bytes) else {
            return self.close("op_query");
        };
        let db = query
            .command_database()
            .and_then(|db| std::str::from_utf8(db).ok());
        let Some(db) = db else {
            return self.refuse_legacy_read(&message, "OP_QUERY").await;
        };
        // Only commands of the handshake and `buildInfo` are served as `OP_QUERY`, so the size
        // limit of the handshake applies.
        self.check_handshake_size(&message)?;
        let command = match Command::inspect_legacy(query.query, db) {
            Ok(command) => command,
            Err(error) => {
                self.shared.recorder.count_unobserved("invalid_command");
                return self
                    .refuse(reply_to, &ErrorReply::new(error.code(), error.to_string()))
                    .await;
            }
        };
        if command.may_log_in() {
            message.mark_secret();
        }
        if command.class == Class::Handshake(Handshake::SaslStart) {
            Box::pin(self.pass_login_gates(&command)).await?;
            if self.falls_back(command.body) {
                return Box::pin(self.fall_back(message, reply_to)).await;
            }
        }
        match command.class {
            Class::Handshake(
                handshake @ (Handshake::Hello
                | Handshake::LegacyHello
                | Handshake::SaslStart
                | Handshake::SaslContinue
                | Handshake::Authenticate),
            ) => {
                self.serve_handshake(handshake, &command, reply_to, now)
                    .await
            }
            _ if command.spec.reply_before_login == ReplyBeforeLogin::BuildInfo => {
                self.serve_unauthenticated(&command, reply_to, now).await
            }
            _ => {
                let message = format!(
                    "Unsupported OP_QUERY command: {}. The client driver may require an upgrade",
                    command.name_str()
                );
                let error = ErrorReply::new(UNSUPPORTED_OP_QUERY_COMMAND, message).to_document();
                self.reply_locally(&command, reply_to, &error, now).await
            }
        }
    }

    /// Refuses reads by opcodes that servers no longer support.
    async fn refuse_legacy_read(&mut self, message: &Message, op_code: &str) -> Result<(), End> {
        self.shared.recorder.count_unobserved("legacy_read");
        let reply_to = ReplyTo::of(message, Form::LegacyRead);
        let message =
            format!("{op_code} is no longer supported. The client driver may require an upgrade");
        let reply = rawdoc! { "$err": message, "code": LEGACY_READ_NOT_SUPPORTED, "ok": 0.0 };
        self.send(reply_to, &reply).await
    }

    /// The identity of the client's user, or the anonymous identity while the deployment has no
    /// access control. `None` if a login is required and the client has not logged in.
    fn current_identity(&mut self) -> Option<Arc<Identity>> {
        self.update_identity();
        self.identity.clone()
    }

    /// Removes or sets the anonymous identity, if the deployment's access control has changed.
    fn update_identity(&mut self) {
        let is_over = |i: &Arc<Identity>| i.is_anonymous() && i.status() != IdentityStatus::Good;
        if self
            .identity
            .take_if(|identity| is_over(identity))
            .is_some()
        {
            self.require_login();
        }
        if self.identity.is_none() && self.login.is_none() {
            self.identity = self.shared.logins.credentials.anonymous();
            if self.identity.is_some() {
                self.handshake = None;
            }
        }
    }

    async fn reply_locally(
        &mut self,
        command: &Command<'_>,
        reply_to: ReplyTo,
        reply: &RawDocument,
        began: Instant,
    ) -> Result<(), End> {
        let sent = self.send(reply_to, reply).await;
        let error_code = ReplyFacts::of(ReplyForm::Plain, reply.as_bytes()).error_code();
        self.count_local(command, reply.as_bytes().len(), error_code, began);
        sent
    }

    /// Counts a command that Seawall itself has served, even if its reply could not be sent.
    fn count_local(
        &self,
        command: &Command<'_>,
        reply_bytes: usize,
        error_code: Option<i32>,
        began: Instant,
    ) {
        let input = CommandBytes::of_body(command.body);
        self.shared
            .recorder
            .local(&input, command.body.len(), reply_bytes, error_code, began);
    }

    async fn refuse(&mut self, reply_to: ReplyTo, error: &ErrorReply) -> Result<(), End> {
        self.send(reply_to, &error.to_document()).await
    }

    async fn send(&mut self, reply_to: ReplyTo, reply: &RawDocument) -> Result<(), End> {
        if reply_to.is_unwanted() {
            return Ok(());
        }
        let bytes = reply_to.pack(self.encode(reply_to, reply), self.heavy());
        let bytes = bytes.await;
        let mut end = self.end();
        let sent = end.send(&bytes).await;
        sent.map_err(|_| end.end())
    }

    /// Encodes a reply, with the next `requestID`.
    fn encode(&mut self, reply_to: ReplyTo, reply: &RawDocument) -> Vec<u8> {
        let id = self.next_reply_id;
        self.next_reply_id = self.next_reply_id.wrapping_add(1);
        reply_to.encode(id, reply)
    }

    /// The client connection, for a reply for which the client waits.
    fn end(&mut self) -> ClientEnd<'_> {
        ClientEnd {
            stream: &mut self.stream,
            reader: &mut self.reader,
            write_idle: self.shared.settings().client_write_idle_timeout,
            is_awaiting: true,
            ends_if_gone: true,
            gave_up: false,
        }
    }
}

/// Legacy opcode for reading from cursors.
const OP_GET_MORE: i32 = 2005;

/// Reads the flags of a message, even if its sections are malformed; 0 if the message has no flags.
fn flags_of(message: &[u8]) -> u32 {
    let flags = message
        .get(seawall_wire::HEADER_BYTES..)
        .and_then(|rest| rest.first_chunk::<4>());
    flags
        .map(|bytes| u32::from_le_bytes(*bytes))
        .unwrap_or_default()
}
