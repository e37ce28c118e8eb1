//! The state of a client in a capture, and the [`RecordedCommand`] of an operation.

use std::{
    iter, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use seawall_capture::record::{
    ClientBegan, ClientEnded, Facts, OmissionReason, Outcome, Reply, ReplyDetail,
};
use tokio::time::Instant;

use super::{
    Captures,
    queue::microseconds,
    selection::{Described, Selection, SelectionVerdict},
    tap::Tap,
};
use seawall_command::{
    Command, CommandBytes, ReplyFacts, Target, exchange_may_be_shown, table::Syntax,
};
use seawall_wire::{ElementKind, Elements, document_at};

/// The state of a client with regard to captures: each client connection has one such value. If the
/// client is captured, dropping the value records that the client has disconnected.
#[derive(Debug, Default)]
pub struct CapturedClient {
    /// True after the client's first operation.
    has_operated: bool,
    /// Says if the client is captured by the [`Tap`] (the recorder of operations) that was in use
    /// at the client's latest operation. `None` if no tap was in use at that time.
    membership: Option<Box<Membership>>,
}

/// Says if one [`Tap`] captures one client. A tap records the operations of clients: for the
/// running capture, or in memory until an event begins a capture.
#[derive(Debug)]
struct Membership {
    tap: Arc<Tap>,
    state: MemberState,
    /// The client's description; empty as soon as the client is captured.
    described: Described,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemberState {
    /// The client is not captured.
    Outside,
    /// The client is not captured yet. Its first operation on a selected namespace adds the client
    /// to the capture.
    AwaitsNamespace,
    /// The client matches the selection. Its next operation adds the client to the capture.
    Selected,
    /// The client has this number in the capture.
    Captured(u64),
}

/// A command that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// The message, not compressed; only its head if `is_whole` is false.
    pub message: &'a [u8],
    /// False if only the head of the message was read.
    pub is_whole: bool,
    /// The inspected command.
    pub command: &'a Command<'a>,
    /// The bytes of the command.
    pub input: &'a CommandBytes<'a>,
    /// When the command's last byte arrived. If only the head was read: when the message began to
    /// arrive.
    pub at: Instant,
}

impl Captures {
    /// True if the next message of the client must be read whole, because the running capture may
    /// record it.
    pub(crate) fn needs_whole_message(&self, client: &CapturedClient) -> bool {
        match self.running.number.load(Ordering::Relaxed) {
            0 => false,
            // Large messages are read whole only for a running capture. A [`Tap`] that waits for an
            // event, and keeps operations in memory until then, omits large messages.
            _ if self.running.is_armed.load(Ordering::Relaxed) => false,
            number => client.membership.as_ref().is_none_or(|membership| {
                membership.tap.number != number || membership.state != MemberState::Outside
            }),
        }
    }

    /// Records the command of an operation, if its client is captured. Returns `None` if the
    /// command is not recorded. `describe` returns the number and the description of the client; it
    /// is called when a `Tap` (recorder of operations) sees the client for the first time.
    pub fn record(
        &self,
        client: &mut CapturedClient,
        arrived: &Arrived<'_>,
        describe: impl FnOnce() -> (u64, Described),
    ) -> Option<RecordedCommand> {
        let number = self.running.number.load(Ordering::Relaxed);
        if number == 0 {
            client.membership = None;
            client.has_operated = true;
            return None;
        }
        let is_current = |of: &Membership| of.tap.number == number;
        if !client.membership.as_deref().is_some_and(is_current) {
            client.membership = None;
            let tap = self.running.tap.load_full()?;
            client.membership = Some(Box::new(Membership::new(tap, describe())));
        }
        let was_active = mem::replace(&mut client.has_operated, true);
        let membership = client.membership.as_mut()?;
        membership.record(arrived, was_active)
    }
}

impl Membership {
    fn new(tap: Arc<Tap>, (number, described): (u64, Described)) -> Self {
        let selection = &tap.selection;
        let state = match selection.verdict(tap.seed, number, &described) {
            SelectionVerdict::Outside => MemberState::Outside,
            SelectionVerdict::AwaitsNamespace => MemberState::AwaitsNamespace,
            SelectionVerdict::Inside => MemberState::Selected,
        };
        Self {
            tap,
            state,
            described,
        }
    }

    fn record(&mut self, arrived: &Arrived<'_>, was_active: bool) -> Option<RecordedCommand> {
        let client = self.captured(arrived, was_active)?;
        let Tap { queue, totals, .. } = &*self.tap;
        let at_us = self.tap.at_us(arrived.at);
        let bytes = arrived.message.len();
        if !exchange_may_be_shown(arrived.input) {
            queue.omit_command(client, OmissionReason::Secret, bytes, at_us, totals);
            return None;
        }
        if !arrived.is_whole {
            queue.omit_command(client, OmissionReason::TooLarge, bytes, at_us, totals);
            return None;
        }
        let operation = queue.command(client, at_us, arrived.message, arrived.at, totals)?;
        Some(RecordedCommand {
            tap: Arc::clone(&self.tap),
            operation,
            began: arrived.at,
            has_ended: AtomicBool::new(false),
        })
    }

    /// Returns the client's number in the capture; `None` if the client is not captured. Adds the
    /// client to the capture at its first operation that matches the selection.
    fn captured(&mut self, arrived: &Arrived<'_>, was_active: bool) -> Option<u64> {
        match self.state {
            MemberState::Captured(client) => return Some(client),
            MemberState::Outside => return None,
            MemberState::AwaitsNamespace => {
                if !is_selected(&self.tap.selection, arrived) {
                    return None;
                }
                self.state = MemberState::Selected;
            }
            MemberState::Selected => {}
        }
        let Described {
            application,
            driver,
            user,
        } = self.described.clone();
        let began = ClientBegan {
            client: 0,
            at_us: self.tap.at_us(arrived.at),
            application,
            driver,
            user,
            was_active,
        };
        let Tap { queue, totals, .. } = &*self.tap;
        let client = queue.begin_client(began, arrived.message.len(), totals)?;
        self.state = MemberState::Captured(client);
        self.described = Described::default();
        Some(client)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let MemberState::Captured(client) = self.state {
            let at_us = self.tap.at_us(Instant::now());
            self.tap.queue.end_client(ClientEnded { client, at_us });
        }
    }
}

/// True if the command uses a selected namespace. A `bulkWrite` runs on the database `admin`, and
/// its `nsInfo` lists the namespaces that it uses.
fn is_selected(selection: &Selection, arrived: &Arrived<'_>) -> bool {
    let Arrived { command, input, .. } = *arrived;
    if command.spec.syntax != Syntax::BulkWrite {
        return selection.contains(command.db, collection_of(command));
    }
    let names_selected = |entry: &[u8]| {
        let namespace = Elements::find(entry, "ns").and_then(|ns| ns.value.as_str());
        let names = namespace.and_then(|namespace| namespace.split_once('.'));
        names.is_some_and(|(db, collection)| selection.contains(db, Some(collection)))
    };
    let listed = Elements::find(input.body, "nsInfo").map(|listed| listed.value);
    let in_body = match listed {
        Some(ElementKind::Array(entries)) => Elements::of(entries)
            .filter_map(|entry| entry.ok()?.value.as_document())
            .any(names_selected),
        _ => false,
    };
    let sequences = input.sequences.iter();
    let mut listed = sequences.filter(|sequence| sequence.identifier == b"nsInfo");
    in_body
        || listed.any(|sequence| {
            let mut rest = sequence.documents;
            let mut entries = iter::from_fn(|| {
                let entry = document_at(rest).ok()?;
                rest = rest.get(entry.len()..)?;
                Some(entry)
            });
            entries.any(names_selected)
        })
}

/// The collection of a command or of an explained command; `None` if it has none.
fn collection_of<'a>(command: &Command<'a>) -> Option<&'a str> {
    match command.target {
        Target::Text(collection) => Some(collection),
        Target::Other if command.spec.syntax == Syntax::Explain => {
            let explained = first_value(command.body)?.as_document()?;
            first_value(explained)?.as_str()
        }
        Target::Number(_) | Target::Other => command.collection,
    }
}

fn first_value(document: &[u8]) -> Option<ElementKind<'_>> {
    Some(Elements::of(document).next()?.ok()?.value)
}

/// A recorded command. If this value is dropped before [`Self::end`] is called, the capture records
/// [`Outcome::ClientGone`] as the outcome of the operation.
#[derive(Debug)]
#[must_use]
pub struct RecordedCommand {
    tap: Arc<Tap>,
    operation: u64,
    began: Instant,
    has_ended: AtomicBool,
}

/// The end of an operation.
#[derive(Debug)]
pub struct OperationEnd<'a> {
    /// How the operation ended.
    pub outcome: Outcome,
    /// The values that Seawall has read from the reply, for example `ok` and the cursor id; `None`
    /// if there is no reply.
    pub facts: Option<&'a ReplyFacts>,
    /// The size of the reply's message in bytes, not compressed; 0 if there is no reply.
    pub bytes: usize,
    /// The reply's message, not compressed.
    pub message: ReplyMessage<'a>,
}

/// The message of a reply.
#[derive(Debug)]
pub enum ReplyMessage<'a> {
    /// There was no reply, or the capture does not record the reply's message.
    Absent,
    /// The whole reply is in memory.
    Held(&'a [u8]),
    /// The copy of a reply that was forwarded while it arrived.
    Copied(ReplyCopy),
}

/// A copy of a large reply, which grows while the reply is forwarded.
#[derive(Debug)]
pub struct ReplyCopy {
    tap: Arc<Tap>,
    /// Number of bytes of the queue that are reserved for the copy.
    reserved: usize,
    bytes: Vec<u8>,
}

impl ReplyCopy {
    /// Adds the next bytes of the reply.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the bytes of the copy. Sets `reserved` to 0, so that dropping this value does not
    /// release the memory of these bytes: the queue keeps it reserved.
    fn into_bytes(mut self) -> Bytes {
        self.reserved = 0;
        Bytes::from(mem::take(&mut self.bytes))
    }
}

impl Drop for ReplyCopy {
    fn drop(&mut self) {
        self.tap.queue.release(self.reserved);
    }
}

impl OperationEnd<'_> {
    /// The end of an operation without a reply.
    pub(crate) fn without_reply(outcome: Outcome) -> Self {
        Self {
            outcome,
            facts: None,
            bytes: 0,
            message: ReplyMessage::Absent,
        }
    }
}

impl RecordedCommand {
    /// Begins a copy of a reply of `length` bytes. `None` if the capture does not record the
    /// messages of replies. Also `None` if the queue is full or the limit of bytes per second is
    /// reached; the queue then counts an omission.
    pub(crate) fn copy_of_reply(&self, length: usize) -> Option<ReplyCopy> {
        let tap = &self.tap;
        let is_wanted = tap.replies == ReplyDetail::Whole;
        (is_wanted && self.has_room(length, Instant::now())).then(|| ReplyCopy {
            tap: Arc::clone(tap),
            reserved: length,
            bytes: Vec::with_capacity(length),
        })
    }

    /// Records the end of the operation. Call it before the client gets the last byte of its reply,
    /// so that the client's next operation comes later in the capture.
    pub fn end(&self, ended: OperationEnd<'_>, now: Instant) {
        self.has_ended.store(true, Ordering::Relaxed);
        let tap = &self.tap;
        let message = match ended.message {
            ReplyMessage::Copied(copy) => copy.into_bytes(),
            ReplyMessage::Held(message)
                if tap.replies == ReplyDetail::Whole && self.has_room(message.len(), now) =>
            {
                Bytes::copy_from_slice(message)
            }
            ReplyMessage::Held(_) | ReplyMessage::Absent => Bytes::new(),
        };
        tap.queue.reply(Reply {
            operation: self.operation,
            at_us: tap.at_us(now),
            outcome: ended.outcome.into(),
            duration_us: microseconds(now.saturating_duration_since(self.began)),
            bytes: u64::try_from(ended.bytes).unwrap_or(u64::MAX),
            facts: ended.facts.map(Facts::from),
            message,
        });
    }

    /// Reserves memory in the queue for the message of the reply. False if the queue is full or the
    /// limit of bytes per second is reached.
    fn has_room(&self, bytes: usize, now: Instant) -> bool {
        let Tap { queue, totals, .. } = &*self.tap;
        queue.reserve_message(bytes, self.tap.at_us(now), now, totals)
    }
}

impl Drop for RecordedCommand {
    fn drop(&mut self) {
        if !*self.has_ended.get_mut() {
            self.end(
                OperationEnd::without_reply(Outcome::ClientGone),
                Instant::now(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use seawall_wire::Sequence;

    use super::*;

    #[test]
    fn an_explain_uses_the_collection_of_the_explained_command() {
        for (mut command, expected) in [
            (doc! { "explain": { "find": "orders" } }, Some("orders")),
            (doc! { "explain": { "aggregate": 1 } }, None),
            (doc! { "find": "orders" }, Some("orders")),
            (doc! { "ping": 1 }, None),
        ] {
            command.insert("$db", "shop");
            let body = command.to_vec().unwrap();
            let inspected = Command::inspect(&body).unwrap();
            assert_eq!(collection_of(&inspected), expected, "{command}");
        }
    }

    /// Drivers list the namespaces in a document sequence.
    #[test]
    fn a_bulk_write_uses_each_namespace_that_it_lists() {
        let selection = Selection {
            namespaces: vec!["shop.orders".to_owned()],
            ..Selection::default()
        };
        for (namespaces, expected) in [
            (["shop.orders", "shop.other"], true),
            (["shop.other", "shop.orders"], true),
            (["shop.other", "my.shop.orders"], false),
        ] {
            let listed = namespaces.map(|namespace| doc! { "ns": namespace });
            let documents: Vec<u8> = listed.iter().flat_map(|ns| ns.to_vec().unwrap()).collect();
            let sequences = [Sequence {
                identifier: b"nsInfo",
                documents: &documents,
            }];
            let short = doc! { "bulkWrite": 1, "$db": "admin" };
            let long = doc! { "bulkWrite": 1, "nsInfo": listed.to_vec(), "$db": "admin" };
            for (body, sequences) in [(short, &sequences[..]), (long, &sequences[..0])] {
                let body = body.to_vec().unwrap();
                let command = Command::inspect(&body).unwrap();
                let input = CommandBytes {
                    body: &body,
                    sequences,
                };
                let arrived = Arrived {
                    message: &[],
                    is_whole: true,
                    command: &command,
                    input: &input,
                    at: Instant::now(),
                };
                let is_selected = is_selected(&selection, &arrived);
                assert_eq!(is_selected, expected, "{namespaces:?}");
            }
        }
    }
}
