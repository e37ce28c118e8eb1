//! Converts the records of a capture to the packets of a file of mongod's traffic recorder.
//!
//! The application and the driver of a client are exported as a `hello` before the client's first
//! command, unless the client ran operations before its capture began. Users, events and omitted
//! operations are not exported.

use std::collections::BTreeMap;

use bson::{RawDocumentBuf, rawdoc};
use bytes::Bytes;
use seawall_wire::{encode_op_msg_like, encode_request};

use super::{Layout, Packet, PacketEvent};
use crate::record::{ClientBegan, Content, Header, Outcome, Reply, ReplyDetail};

/// Maximum number of operations that are remembered until their reply is read. Replies to further
/// operations are not exported.
const MAX_PENDING: usize = 100_000;

/// The reason why a capture cannot be converted to a file of mongod's traffic recorder.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ExportError {
    /// The capture has only some values of each reply ([`ReplyDetail::Facts`]), not the whole
    /// reply.
    #[error("the capture has no whole replies, but a file of mongod's traffic recorder needs them")]
    NoReplies,
}

/// Counts of the exported operations, of the operations without an exported reply, and of the
/// operations that were missing in the capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Operations whose command is in the file.
    pub operations: u64,
    /// Operations whose reply is not in the file: the client got no reply from a server, the
    /// capture lacks the reply or its message, or the operation exceeded the limit `MAX_PENDING`.
    /// Operations whose client requested no reply (`moreToCome`) do not count.
    pub without_reply: u64,
    /// Operations that are already missing from the capture (see
    /// [`Omitted`](crate::record::Omitted)).
    pub omitted: u64,
}

/// A conversion from the records of a capture to the packets of a file of mongod's traffic
/// recorder.
#[derive(Debug)]
pub struct Export {
    layout: Layout,
    began_at_us: u64,
    server: String,
    /// The client of each operation whose reply has not been read yet, by operation number.
    pending: BTreeMap<u64, u64>,
    order: u64,
    counts: ExportCounts,
}

impl Export {
    /// Begins the conversion of the capture that has this header.
    ///
    /// # Errors
    /// If the capture does not contain whole replies.
    pub fn new(layout: Layout, header: &Header) -> Result<Self, ExportError> {
        if header.reply_detail() != ReplyDetail::Whole {
            return Err(ExportError::NoReplies);
        }
        let server = header.servers.first().map(|server| server.address.clone());
        Ok(Self {
            layout,
            began_at_us: header.began_at_us,
            server: server.unwrap_or_else(|| "unknown:27017".to_owned()),
            pending: BTreeMap::new(),
            order: 0,
            counts: ExportCounts::default(),
        })
    }

    /// Converts the next record. Returns its packets, at most three.
    pub fn convert(&mut self, record: Content) -> Vec<Packet> {
        match record {
            Content::ClientBegan(began) => self.began(&began),
            Content::ClientEnded(ended) => {
                let event = PacketEvent::SessionEnded;
                vec![self.packet(event, ended.client, ended.at_us, Bytes::new())]
            }
            Content::Command(command) => {
                self.counts.operations += 1;
                if self.pending.len() < MAX_PENDING {
                    self.pending.insert(command.operation, command.client);
                }
                vec![self.message(command.client, command.at_us, command.message)]
            }
            Content::Reply(reply) => self.reply(reply).into_iter().collect(),
            Content::Omitted(omitted) => {
                self.counts.omitted = self.counts.omitted.saturating_add(omitted.operations);
                Vec::new()
            }
            Content::Header(_) | Content::Event(_) | Content::End(_) => Vec::new(),
        }
    }

    /// The counts of all records converted so far.
    pub fn counts(&self) -> ExportCounts {
        let waiting = u64::try_from(self.pending.len()).unwrap_or(u64::MAX);
        ExportCounts {
            without_reply: self.counts.without_reply.saturating_add(waiting),
            ..self.counts
        }
    }

    fn began(&mut self, began: &ClientBegan) -> Vec<Packet> {
        let (client, at_us) = (began.client, began.at_us);
        if began.was_active {
            return Vec::new();
        }
        let hello = encode_request(HELLO_ID, hello(began).as_bytes());
        let reply = rawdoc! { "isWritablePrimary": true, "ok": 1.0 };
        let reply = encode_op_msg_like(0, HELLO_ID, HELLO_ID, reply.as_bytes());
        vec![
            self.packet(PacketEvent::SessionBegan, client, at_us, Bytes::new()),
            self.message(client, at_us, hello.into()),
            self.message(client, at_us, reply.into()),
        ]
    }

    fn reply(&mut self, reply: Reply) -> Option<Packet> {
        let client = self.pending.remove(&reply.operation);
        // The client requested no reply. The capture may still have one, because Seawall sends an
        // unacknowledged write to the server as a write with a reply.
        if reply.outcome() == Outcome::Unacknowledged {
            return None;
        }
        match client.filter(|_| !reply.message.is_empty()) {
            Some(client) => Some(self.message(client, reply.at_us, reply.message)),
            None => {
                self.counts.without_reply += 1;
                None
            }
        }
    }

    fn message(&mut self, client: u64, at_us: u64, message: Bytes) -> Packet {
        self.packet(PacketEvent::Message, client, at_us, message)
    }

    fn packet(&mut self, event: PacketEvent, client: u64, at_us: u64, message: Bytes) -> Packet {
        let is_written = event == PacketEvent::Message || !self.layout.has_dates();
        self.order += u64::from(is_written);
        let remote = format!("client-{client}:0");
        let (local, remote, began_at_us) = match self.layout.has_dates() {
            true => (self.server.clone(), remote, self.began_at_us),
            false => {
                let text = format!("{{ remote: \"{remote}\", local: \"{}\" }}", self.server);
                (text, String::new(), 0)
            }
        };
        Packet {
            event,
            session: client,
            local,
            remote,
            at_us: began_at_us.saturating_add(at_us),
            order: self.order,
            message,
        }
    }
}

/// Builds a `hello` from the captured application and driver of a client.
fn hello(began: &ClientBegan) -> RawDocumentBuf {
    let parts = began.driver.rsplit_once(' ');
    let parts = parts.filter(|(name, version)| !name.is_empty() && !version.is_empty());
    let (name, version) = parts.unwrap_or((&began.driver, ""));
    rawdoc! {
        "hello": 1,
        "client": {
            "application": { "name": began.application.as_str() },
            "driver": { "name": name, "version": version },
        },
        "$db": "admin",
    }
}

/// `requestID` of the `hello`, and of its reply. The reply follows its `hello` directly, so a later
/// command may have the same `requestID`.
const HELLO_ID: i32 = 1;
