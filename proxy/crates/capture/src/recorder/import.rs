//! Converts the packets of a file of mongod's traffic recorder to the records of a capture.
//!
//! A packet does not say whether its message is a command or a reply. Only replies have the field
//! `ok`, so this field decides. `responseTo` of a reply is the `requestID` of its command in the
//! same session (a client's connection). For an exhaust cursor, the server sends several replies to
//! one `getMore`. mongod 6.0 records a separate `getMore` before each of these replies. If a
//! recording lacks the later `getMore`s, the capture repeats the first one, so that each reply has
//! a command.

use std::collections::BTreeMap;

use bytes::Bytes;
use seawall_command::{
    Class, Command as Inspected, CommandBytes, Handshake, ReplyFacts, ReplyForm,
    exchange_may_be_shown,
};
use seawall_wire::{
    CompressedHead, Elements, HEADER_BYTES, Header as MessageHeader, MAX_MESSAGE_BYTES, OpCode,
    OpMsg, OpQuery, document_at,
};

use super::{Layout, Packet, PacketEvent};
use crate::record::{
    ClientBegan, ClientEnded, Command, Content, End, EndReason, Facts, Header, OmissionReason,
    Omitted, Outcome, Reply, ReplyDetail, Server,
};

/// Maximum number of sessions (clients' connections in the recording) that are remembered at a
/// time. If one more session begins, the session with the lowest number is forgotten: the capture
/// gets a `ClientEnded` record for its client, and later messages of this session belong to a new
/// client.
const MAX_SESSIONS: usize = 50_000;

/// Maximum number of commands that are remembered until their reply is read. Replies to further
/// commands count as unmatched.
const MAX_PENDING: usize = 100_000;

/// Maximum length in bytes of the name of an application, or of a driver with its version. The
/// limit bounds memory: these names are kept for each session, and a client can choose them before
/// it has logged in.
const MAX_NAME_BYTES: usize = 512;

/// Maximum size in bytes of a `getMore` that is kept. If the cursor is an exhaust cursor and the
/// recording lacks its later `getMore`s, the capture repeats the kept `getMore`.
const MAX_EXHAUST_BYTES: usize = 4096;

/// Counts of the imported commands, and of the messages that were not imported, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImportCounts {
    /// Commands that are in the capture.
    pub operations: u64,
    /// Commands that may contain a secret, or whose reply may contain one. The capture has an
    /// `Omitted` record in place of each of these commands.
    pub secret: u64,
    /// Handshakes and logins (`hello`, `saslStart` and the like), of any opcode.
    pub handshakes: u64,
    /// Messages of old opcodes that are not part of a handshake.
    pub legacy: u64,
    /// Messages that are damaged.
    pub damaged: u64,
    /// Replies whose command is not in the file, or was forgotten because of the limit
    /// `MAX_SESSIONS` or `MAX_PENDING`.
    pub unmatched_replies: u64,
}

/// A conversion from the packets of a file of mongod's traffic recorder to the records of a
/// capture.
#[derive(Debug)]
pub struct Import {
    layout: Layout,
    /// The time of the first packet, in microseconds since 1970 or since the recording began (see
    /// [`Layout::has_dates`]).
    began_at_us: u64,
    sessions: BTreeMap<u64, RecorderSession>,
    /// The highest number of a session so far.
    last_session: u64,
    pending: usize,
    clients: u64,
    last_at_us: u64,
    counts: ImportCounts,
}

/// A session: one client connection in the recording.
#[derive(Debug, Default)]
struct RecorderSession {
    /// The client's number in the capture; `None` before its first operation.
    client: Option<u64>,
    /// True if the recording contains the beginning of the session.
    has_begun: bool,
    application: String,
    driver: String,
    /// The commands whose reply has not been read yet, by `requestID`.
    pending: BTreeMap<i32, Pending>,
    exhaust: Option<Exhaust>,
}

/// A command whose reply has not been read yet.
#[derive(Clone, Debug)]
struct Pending {
    /// The operation's number; `None` if the command is not in the capture.
    operation: Option<u64>,
    at_us: u64,
    form: ReplyForm,
    /// The message, if the command is in the capture and is a `getMore` of at most
    /// [`MAX_EXHAUST_BYTES`]. If the cursor is an exhaust cursor, the capture may have to repeat
    /// this message.
    exhaust: Option<Bytes>,
}

/// An exhaust cursor whose last reply announced another reply.
#[derive(Debug)]
struct Exhaust {
    /// `requestID` of the last reply. The next reply has this number as its `responseTo`.
    last_reply: i32,
    /// The message of the `getMore`.
    message: Bytes,
}

/// A message with its parsed header. A compressed message has been inflated.
struct Parsed {
    header: MessageHeader,
    message: Bytes,
}

impl Import {
    /// Begins a conversion at the first packet.
    pub fn new(layout: Layout, first: &Packet) -> Self {
        Self {
            layout,
            began_at_us: first.at_us,
            sessions: BTreeMap::new(),
            last_session: 0,
            pending: 0,
            clients: 0,
            last_at_us: 0,
            counts: ImportCounts::default(),
        }
    }

    /// The header of the capture. `capture` identifies the capture. `program` names the program
    /// that writes the capture. `first` is the first packet.
    pub fn header(&self, capture: Bytes, program: String, first: &Packet) -> Header {
        let server = match self.layout {
            Layout::Addresses => Some(first.local.as_str()),
            Layout::Sessions | Layout::Events => quoted_local(&first.local),
        };
        let servers = server.map(|address| Server {
            address: address.to_owned(),
            process_id: Bytes::new(),
        });
        Header {
            capture,
            began_at_us: match self.layout.has_dates() {
                true => self.began_at_us,
                false => 0,
            },
            program,
            servers: servers.into_iter().collect(),
            reply_detail: ReplyDetail::Whole.into(),
            ..Header::default()
        }
    }

    /// Converts the next packet. Returns its records, at most five.
    pub fn convert(&mut self, packet: Packet) -> Vec<Content> {
        let mut records = Vec::new();
        let at_us = packet.at_us.saturating_sub(self.began_at_us);
        // The times of records must not decrease. But several threads of the server write packets,
        // so a packet may have an earlier time than the packet before it.
        let at_us = at_us.max(self.last_at_us);
        self.last_at_us = at_us;
        match packet.event {
            PacketEvent::Message => {
                self.message(packet.session, packet.message, at_us, &mut records)
            }
            PacketEvent::SessionBegan if self.begins(packet.session) => {
                self.make_room(packet.session, at_us, &mut records);
                self.session(packet.session).has_begun = true;
            }
            PacketEvent::SessionBegan | PacketEvent::SessionEnded => {
                self.end_session(packet.session, at_us, &mut records);
            }
        }
        records
    }

    /// The `End` record, with the totals so far.
    pub fn end(&self) -> End {
        End {
            at_us: self.last_at_us,
            clients: self.clients,
            operations: self.counts.operations,
            omitted: self.counts.secret,
            reason: EndReason::Stopped.into(),
        }
    }

    /// The counts of all packets converted so far.
    pub fn counts(&self) -> ImportCounts {
        self.counts
    }

    /// Number of commands that are remembered because their reply has not been read yet.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        let sessions = self.sessions.values();
        sessions.map(|session| session.pending.len()).sum()
    }

    /// True if a packet without a message begins its session; false if it ends its session. In the
    /// layout [`Layout::Sessions`], the packet itself does not contain this information, so the
    /// session's number decides. Servers give sessions ascending numbers. So a number above all
    /// earlier numbers belongs to a new session. For any other number, the packet ends a session:
    /// one that this import remembers or has forgotten, or one that began before the recording.
    fn begins(&self, session: u64) -> bool {
        let is_explicit = self.layout != Layout::Sessions;
        !self.sessions.contains_key(&session) && (is_explicit || session > self.last_session)
    }

    /// The session with this number; added if it is not remembered yet. The caller must have called
    /// [`Self::make_room`] with this number.
    fn session(&mut self, number: u64) -> &mut RecorderSession {
        self.last_session = self.last_session.max(number);
        self.sessions.entry(number).or_default()
    }

    /// If the session with this number is new and [`MAX_SESSIONS`] sessions are remembered, ends
    /// the session with the lowest number.
    fn make_room(&mut self, number: u64, at_us: u64, records: &mut Vec<Content>) {
        if self.sessions.len() >= MAX_SESSIONS
            && !self.sessions.contains_key(&number)
            && let Some(lowest) = self.sessions.keys().next().copied()
        {
            self.end_session(lowest, at_us, records);
        }
    }

    /// Forgets a session. Adds a `ClientEnded` record if the session had operations.
    fn end_session(&mut self, number: u64, at_us: u64, records: &mut Vec<Content>) {
        let Some(session) = self.sessions.remove(&number) else {
            return;
        };
        self.pending = self.pending.saturating_sub(session.pending.len());
        let ended = |client| Content::ClientEnded(ClientEnded { client, at_us });
        records.extend(session.client.map(ended));
    }

    fn message(&mut self, session: u64, message: Bytes, at_us: u64, records: &mut Vec<Content>) {
        let Some(parsed) = Parsed::of(message) else {
            self.counts.damaged += 1;
            return;
        };
        self.make_room(session, at_us, records);
        if !parsed.is_reply() {
            return self.command(session, &parsed, at_us, records);
        }
        let state = self.session(session);
        let response_to = parsed.header.response_to;
        if let Some(pending) = state.pending.remove(&response_to) {
            self.pending -= 1;
            return self.reply(session, &pending, &parsed, at_us, records);
        }
        let exhausted = state
            .exhaust
            .take_if(|exhaust| exhaust.last_reply == response_to);
        match exhausted {
            Some(exhaust) => self.exhaust_reply(session, exhaust.message, &parsed, at_us, records),
            None => self.counts.unmatched_replies += 1,
        }
    }

    /// Records a reply of an exhaust cursor. `command` is an earlier `getMore` of the cursor. The
    /// recording has no `getMore` for this reply, so a copy of `command` is recorded before the
    /// reply.
    fn exhaust_reply(
        &mut self,
        session: u64,
        command: Bytes,
        reply: &Parsed,
        at_us: u64,
        records: &mut Vec<Content>,
    ) {
        let header = MessageHeader {
            request_id: reply.header.response_to,
            message_length: command.len(),
            response_to: 0,
            op_code: OpCode::Msg,
        };
        let content = command.get(HEADER_BYTES..).unwrap_or_default();
        let message = Bytes::from([&header.to_bytes()[..], content].concat());
        self.command(session, &Parsed { header, message }, at_us, records);
        let pending = self.session(session).pending.remove(&header.request_id);
        if let Some(pending) = pending {
            self.pending -= 1;
            self.reply(session, &pending, reply, at_us, records);
        }
    }

    fn command(&mut self, session: u64, parsed: &Parsed, at_us: u64, records: &mut Vec<Content>) {
        let mut pending = Pending {
            operation: None,
            at_us,
            form: ReplyForm::Plain,
            exhaust: None,
        };
        if parsed.header.op_code != OpCode::Msg {
            self.legacy(session, parsed);
            return self.await_reply(session, parsed.header.request_id, pending);
        }
        let Ok(op_msg) = OpMsg::parse(&parsed.message) else {
            self.counts.damaged += 1;
            return;
        };
        let Ok(command) = Inspected::inspect(op_msg.body) else {
            self.counts.damaged += 1;
            return;
        };
        let wants_reply = !op_msg.more_to_come();
        if let Class::Handshake(handshake) = command.class {
            self.handshake(session, handshake, op_msg.body);
        } else if !may_be_shown(&op_msg) {
            self.counts.secret += 1;
            let client = self.client(session, at_us, records);
            records.push(Content::Omitted(Omitted {
                client,
                at_us,
                operations: 1,
                bytes: u64::try_from(parsed.message.len()).unwrap_or(u64::MAX),
                reason: OmissionReason::Secret.into(),
            }));
        } else {
            let client = self.client(session, at_us, records);
            self.counts.operations += 1;
            let operation = self.counts.operations;
            records.push(Content::Command(Command {
                client,
                operation,
                at_us,
                message: parsed.message.clone(),
            }));
            pending.operation = Some(operation);
            pending.form = command.spec.reply_form;
            let is_kept =
                command.class == Class::GetMore && parsed.message.len() <= MAX_EXHAUST_BYTES;
            pending.exhaust = is_kept.then(|| Bytes::copy_from_slice(&parsed.message));
            if !wants_reply {
                records.push(unacknowledged(operation, at_us));
            }
        }
        if wants_reply {
            self.await_reply(session, parsed.header.request_id, pending);
        }
    }

    fn await_reply(&mut self, session: u64, request_id: i32, pending: Pending) {
        // If an earlier command has the same id, the next reply with this id belongs to the new
        // command. So the earlier command is forgotten.
        let earlier = self.session(session).pending.remove(&request_id);
        self.pending -= usize::from(earlier.is_some());
        if self.pending < MAX_PENDING {
            self.session(session).pending.insert(request_id, pending);
            self.pending += 1;
        }
    }

    /// Reads the client's metadata from a handshake.
    fn handshake(&mut self, session: u64, handshake: Handshake, body: &[u8]) {
        self.counts.handshakes += 1;
        if !matches!(handshake, Handshake::Hello | Handshake::LegacyHello) {
            return;
        }
        let state = self.session(session);
        let client = Elements::find(body, "client").and_then(|client| client.value.as_document());
        let Some(client) = client.filter(|_| state.client.is_none()) else {
            return;
        };
        state.has_begun = true;
        let text = |document: &str, field: &str| {
            let document = Elements::find(client, document)?.value.as_document()?;
            Elements::find(document, field)?.value.as_str()
        };
        let application = text("application", "name").unwrap_or_default();
        state.application = shortened(application).to_owned();
        let driver = [text("driver", "name"), text("driver", "version")];
        let driver = driver.into_iter().flatten();
        let driver: Vec<_> = driver.filter(|text| !text.is_empty()).collect();
        state.driver = shortened(&driver.join(" ")).to_owned();
    }

    fn legacy(&mut self, session: u64, parsed: &Parsed) {
        let query = match parsed.header.op_code {
            OpCode::Query => OpQuery::parse(&parsed.message),
            OpCode::Reply | OpCode::Compressed | OpCode::Msg | OpCode::Other(_) => None,
        };
        let db = query.and_then(|query| std::str::from_utf8(query.command_database()?).ok());
        let command = query
            .zip(db)
            .and_then(|(query, db)| Inspected::inspect_legacy(query.query, db).ok());
        match command.map(|command| (command.class, command.body)) {
            Some((Class::Handshake(handshake), body)) => self.handshake(session, handshake, body),
            _ => self.counts.legacy += 1,
        }
    }

    /// The client of a session. At the first operation of the session, adds a `ClientBegan` record.
    fn client(&mut self, session: u64, at_us: u64, records: &mut Vec<Content>) -> u64 {
        let next = self.clients + 1;
        let state = self.session(session);
        if let Some(client) = state.client {
            return client;
        }
        state.client = Some(next);
        records.push(Content::ClientBegan(ClientBegan {
            client: next,
            at_us,
            application: state.application.clone(),
            driver: state.driver.clone(),
            user: String::new(),
            was_active: !state.has_begun,
        }));
        self.clients = next;
        next
    }

    fn reply(
        &mut self,
        session: u64,
        pending: &Pending,
        parsed: &Parsed,
        at_us: u64,
        records: &mut Vec<Content>,
    ) {
        let Some(operation) = pending.operation else {
            return;
        };
        let Ok(op_msg) = OpMsg::parse(&parsed.message) else {
            self.counts.damaged += 1;
            return;
        };
        let exhaust = pending.exhaust.clone().filter(|_| op_msg.more_to_come());
        self.session(session).exhaust = exhaust.map(|message| Exhaust {
            last_reply: parsed.header.request_id,
            message,
        });
        let facts = ReplyFacts::of(pending.form, op_msg.body);
        records.push(Content::Reply(Reply {
            operation,
            at_us,
            outcome: Outcome::Replied.into(),
            duration_us: at_us.saturating_sub(pending.at_us),
            bytes: u64::try_from(parsed.message.len()).unwrap_or(u64::MAX),
            facts: Some(Facts::from(&facts)),
            message: parsed.message.clone(),
        }));
    }
}

impl Parsed {
    /// Inflates and parses a message; `None` if it is damaged.
    fn of(message: Bytes) -> Option<Self> {
        let header = header_of(&message)?;
        if header.op_code != OpCode::Compressed {
            return Some(Self { header, message });
        }
        let head = CompressedHead::parse(&message, MAX_MESSAGE_BYTES).ok()?;
        let message = Bytes::from(head.inflate(&message).ok()?);
        let header = header_of(&message)?;
        Some(Self { header, message })
    }

    /// True for an `OP_REPLY`, and for an `OP_MSG` whose body has the field `ok`, which no command
    /// has. The field `responseTo` is not used: it is 0 in most commands and not 0 in most replies,
    /// but there are two exceptions. A reply to a command with the `requestID` 0 has the
    /// `responseTo` 0. For an exhaust cursor, servers record additional `getMore`s, whose
    /// `responseTo` is the `requestID` of the cursor's first `getMore`.
    fn is_reply(&self) -> bool {
        match self.header.op_code {
            OpCode::Reply => true,
            OpCode::Msg => {
                // The body is the first section of every reply.
                let body = self.message.get(HEADER_BYTES + 5..).unwrap_or_default();
                document_at(body).is_ok_and(|body| Elements::find(body, "ok").is_some())
            }
            OpCode::Query | OpCode::Compressed | OpCode::Other(_) => false,
        }
    }
}

fn header_of(message: &[u8]) -> Option<MessageHeader> {
    let header = message.first_chunk::<HEADER_BYTES>()?;
    let header = MessageHeader::parse(header, MAX_MESSAGE_BYTES).ok()?;
    (header.message_length == message.len()).then_some(header)
}

/// True if neither the command nor its reply can contain a secret.
fn may_be_shown(command: &OpMsg<'_>) -> bool {
    let sequences: Vec<_> = command.sequences().collect();
    exchange_may_be_shown(&CommandBytes {
        body: command.body,
        sequences: &sequences,
    })
}

/// The first bytes of a name, at most [`MAX_NAME_BYTES`].
fn shortened(name: &str) -> &str {
    let end = name.floor_char_boundary(MAX_NAME_BYTES.min(name.len()));
    name.get(..end).unwrap_or_default()
}

fn unacknowledged(operation: u64, at_us: u64) -> Content {
    Content::Reply(Reply {
        operation,
        at_us,
        outcome: Outcome::Unacknowledged.into(),
        ..Reply::default()
    })
}

/// The address after `local:` in the text of a session, such as
/// `{ remote: "127.0.0.1:51807", local: "127.0.0.1:27017" }`.
fn quoted_local(text: &str) -> Option<&str> {
    let (_, after) = text.rsplit_once("local:")?;
    let address = after
        .split('"')
        .find(|part| part.contains(':') && part.len() > 2)?;
    (!address.trim().is_empty()).then_some(address)
}
