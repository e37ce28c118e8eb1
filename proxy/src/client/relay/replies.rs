//! Splits a server's bytes into replies and parses them while they are forwarded. No piece of a
//! reply is held back until the rest of the reply arrives.

use bson::{RawDocument, RawDocumentBuf};

use seawall_command::{ReplyFacts, ReplyForm, ReplyScanner};
use seawall_transport::{MemoryBudget, MemoryShare, Sharer};
use seawall_wire::{
    COMPRESSED_HEAD_BYTES, CompressedHead, HEADER_BYTES, Header, MAX_MESSAGE_BYTES, MORE_TO_COME,
    OpCode,
};

/// Largest reply that is copied, in bytes. Compressed replies and replies to commands of the
/// handshake are copied, because they must be parsed whole.
const KEPT_BYTES: usize = 1024 * 1024;

/// Largest reply whose copy is not charged to the memory budget, in bytes.
const FREE_BYTES: usize = 64 * 1024;

/// Largest uncompressed size of a compressed reply that is parsed, in bytes. It bounds memory.
const INFLATED_BYTES: usize = 4 * 1024 * 1024;

/// Number of bytes between the header and the document of an `OP_MSG`: its flags, and the kind of
/// its first section.
const MSG_HEAD_BYTES: usize = 5;

/// Number of bytes between the header and the document of an `OP_REPLY`: its fixed fields.
const REPLY_HEAD_BYTES: usize = 20;

/// A reply that has arrived completely.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) header: Header,
    pub(super) facts: ReplyFacts,
    /// True if another reply to the same request follows.
    pub(super) more_to_come: bool,
    /// The reply's document; `None` if the reply was not copied or cannot be parsed.
    pub(super) document: Option<RawDocumentBuf>,
}

/// The way to parse a reply. It is known as soon as the header of the reply has arrived.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// The copy to which the reply is added; `None` if the reply is not copied.
    pub(super) copy: Option<ReplyBody>,
    pub(super) form: ReplyForm,
}

/// A copy of the bytes after the header of a reply. A large copy holds a share of the memory for
/// replies.
#[derive(Debug)]
pub(super) struct ReplyBody {
    bytes: Vec<u8>,
    _share: Option<MemoryShare>,
}

impl ReplyBody {
    /// An empty copy for a reply with this header; `None` if the reply is too large or the budget
    /// has no memory for it.
    pub(super) fn of(header: Header, budget: &MemoryBudget, sharer: Sharer) -> Option<Self> {
        let bytes = header.message_length - HEADER_BYTES;
        if bytes > KEPT_BYTES {
            return None;
        }
        let share = match bytes > FREE_BYTES {
            true => Some(budget.try_reserve(sharer, bytes)?),
            false => None,
        };
        Some(Self {
            bytes: Vec::new(),
            _share: share,
        })
    }
}

/// An event in the bytes from a server.
#[derive(Debug)]
pub(super) enum ReplyEvent {
    /// A reply begins: its header has arrived.
    Begins(Header),
    /// A reply is complete.
    Ends(Box<Passed>),
}

/// Splits the bytes from a server into replies.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// The first bytes of an incomplete header.
    head: Vec<u8>,
    /// The reply in progress; `None` until its header is complete.
    current: Option<Current>,
}

#[derive(Debug)]
struct Current {
    header: Header,
    /// Number of bytes of the reply that have not arrived yet.
    left: usize,
    /// Number of bytes to skip before the document.
    before: usize,
    /// The first bytes after the header of an `OP_MSG` or `OP_REPLY`, at most 5; empty for other
    /// opcodes. In an `OP_MSG`, they are the 4 bytes of the flags and the kind of the first
    /// section.
    flags: Vec<u8>,
    form: ReplyForm,
    scanner: Option<ReplyScanner>,
    /// The copy of the reply; `None` if the reply is not copied.
    copy: Option<ReplyBody>,
}

/// Error: a server's bytes cannot be split into messages.
#[derive(Debug, thiserror::Error)]
#[error("the server sent bytes that are not messages")]
pub(super) struct NotMessages;

impl Replies {
    /// True between two replies of the server. Seawall may insert its own reply only then.
    pub(super) fn is_between_replies(&self) -> bool {
        self.head.is_empty() && self.current.is_none()
    }

    /// Parses bytes up to the next event. Returns the number of parsed bytes, and the event, if
    /// there was one. The caller then calls this function again with the remaining bytes.
    /// `expected` gets the header of a reply, and returns how the reply must be parsed.
    pub(super) fn feed(
        &mut self,
        bytes: &[u8],
        expected: impl Fn(Header) -> Expected,
    ) -> Result<(usize, Option<ReplyEvent>), NotMessages> {
        let Some(current) = &mut self.current else {
            let taken = (HEADER_BYTES - self.head.len()).min(bytes.len());
            self.head.extend(bytes.iter().take(taken));
            let Some(head) = self.head.first_chunk::<HEADER_BYTES>() else {
                return Ok((taken, None));
            };
            let header = Header::parse(head, MAX_MESSAGE_BYTES).map_err(|_| NotMessages)?;
            let current = Current::new(header, expected(header));
            self.current = Some(current);
            self.head.clear();
            return Ok((taken, Some(ReplyEvent::Begins(header))));
        };
        let taken = current.left.min(bytes.len());
        current.take(bytes.get(..taken).unwrap_or_default());
        if current.left > 0 {
            return Ok((taken, None));
        }
        let ended = self.current.take().map(Current::end);
        Ok((
            taken,
            ended.map(|passed| ReplyEvent::Ends(Box::new(passed))),
        ))
    }
}

impl Current {
    fn new(header: Header, Expected { copy, form }: Expected) -> Self {
        let left = header.message_length - HEADER_BYTES;
        let (before, follows) = match header.op_code {
            OpCode::Msg => (MSG_HEAD_BYTES, true),
            OpCode::Reply => (REPLY_HEAD_BYTES, true),
            OpCode::Query | OpCode::Compressed | OpCode::Other(_) => (0, false),
        };
        Self {
            header,
            left,
            before,
            flags: Vec::new(),
            form,
            scanner: follows.then(|| ReplyScanner::new(form)),
            copy,
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.left -= bytes.len();
        if let Some(copy) = &mut self.copy {
            copy.bytes.extend_from_slice(bytes);
        }
        let (before, document) = bytes.split_at(self.before.min(bytes.len()));
        let missing = MSG_HEAD_BYTES.saturating_sub(self.flags.len());
        self.flags.extend(before.iter().take(missing));
        self.before -= before.len();
        if let Some(scanner) = &mut self.scanner {
            scanner.feed(document);
        }
    }

    fn end(self) -> Passed {
        let unknown = ReplyFacts {
            is_opaque: true,
            ..ReplyFacts::default()
        };
        let passed = Passed {
            header: self.header,
            facts: self.scanner.map_or(unknown, |scanner| *scanner.facts()),
            more_to_come: self.header.op_code == OpCode::Msg && says_more(&self.flags),
            document: None,
        };
        let Some(copy) = self.copy else { return passed };
        let bytes = &copy.bytes;
        match self.header.op_code {
            OpCode::Compressed => inflated(self.header, bytes, self.form).unwrap_or(passed),
            OpCode::Reply => Passed {
                document: document(bytes, REPLY_HEAD_BYTES),
                ..passed
            },
            OpCode::Msg | OpCode::Query | OpCode::Other(_) => Passed {
                document: document(bytes, MSG_HEAD_BYTES),
                ..passed
            },
        }
    }
}

fn says_more(flags: &[u8]) -> bool {
    let flags = flags.first_chunk::<4>().map(|b| u32::from_le_bytes(*b));
    flags.is_some_and(|flags| flags & MORE_TO_COME != 0)
}

fn document(kept: &[u8], offset: usize) -> Option<RawDocumentBuf> {
    let bytes = seawall_wire::document_at(kept.get(offset..)?).ok()?;
    RawDocument::from_bytes(bytes).ok().map(ToOwned::to_owned)
}

/// Inflates and parses a compressed reply; `None` if it is too large or malformed.
fn inflated(header: Header, kept: &[u8], form: ReplyForm) -> Option<Passed> {
    let message = [&header.to_bytes()[..], kept].concat();
    message.get(COMPRESSED_HEAD_BYTES..)?;
    let head = CompressedHead::parse(&message, INFLATED_BYTES).ok()?;
    let plain = head.inflate(&message).ok()?;
    let body = plain.get(HEADER_BYTES..)?;
    let is_legacy = head.inner.op_code == OpCode::Reply;
    let before = match is_legacy {
        true => REPLY_HEAD_BYTES,
        false => MSG_HEAD_BYTES,
    };
    Some(Passed {
        header: head.inner,
        facts: ReplyFacts::of(form, body.get(before..)?),
        more_to_come: !is_legacy && says_more(body),
        document: document(body, before),
    })
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use seawall_wire::{Compressor, deflate, encode_op_msg_like, encode_op_reply};

    fn passed(stream: &[u8], piece: usize) -> Vec<(i32, ReplyFacts, bool, bool)> {
        let mut replies = Replies::default();
        let mut seen = Vec::new();
        let budget = MemoryBudget::of_bytes(1 << 20);
        let expected = |header: Header| {
            let is_copied = header.response_to == 7 || header.op_code == OpCode::Compressed;
            let copy = is_copied.then(|| ReplyBody::of(header, &budget, Sharer::Local));
            Expected {
                copy: copy.flatten(),
                form: ReplyForm::Plain,
            }
        };
        for mut bytes in stream.chunks(piece) {
            while !bytes.is_empty() {
                let (taken, what) = replies.feed(bytes, expected).unwrap();
                bytes = &bytes[taken..];
                if let Some(ReplyEvent::Ends(reply)) = what {
                    let id = reply.header.response_to;
                    seen.push((
                        id,
                        reply.facts,
                        reply.more_to_come,
                        reply.document.is_some(),
                    ));
                }
            }
        }
        assert!(replies.is_between_replies());
        seen
    }

    #[test]
    fn a_copy_of_a_reply_of_more_than_64_kib_is_charged_to_the_memory_budget() {
        let budget = MemoryBudget::of_bytes(1 << 20);
        let copy = |bytes: usize| {
            let header = Header {
                message_length: HEADER_BYTES + bytes,
                request_id: 1,
                response_to: 1,
                op_code: OpCode::Compressed,
            };
            ReplyBody::of(header, &budget, Sharer::Local)
        };
        let small = copy(FREE_BYTES).unwrap();
        assert_eq!(budget.used_bytes(), 0);
        let large = copy(KEPT_BYTES / 2).unwrap();
        assert_eq!(budget.used_bytes(), KEPT_BYTES / 2);
        // The budget has too little memory left for a copy of this size.
        assert!(copy(KEPT_BYTES).is_none());
        drop((small, large));
        assert_eq!(budget.used_bytes(), 0);
        assert!(copy(KEPT_BYTES + 1).is_none());
    }

    #[test]
    fn replies_of_every_opcode_are_parsed_from_pieces_of_any_size() {
        let ok = doc! {"n": 3, "ok": 1.0}.to_vec().unwrap();
        let error = doc! {"ok": 0.0, "code": 11, "errmsg": "x"}
            .to_vec()
            .unwrap();
        let compressed = deflate(&encode_op_msg_like(0, 1, 8, &ok), Compressor::Snappy);
        let legacy = deflate(&encode_op_reply(8, 3, 6, &ok), Compressor::Zstd);
        let mut more = encode_op_msg_like(0, 2, 9, &error);
        more[HEADER_BYTES] = u8::try_from(MORE_TO_COME).unwrap();
        let stream = [
            encode_op_msg_like(0, 1, 7, &ok),
            more,
            encode_op_reply(8, 3, 7, &ok),
            compressed.unwrap(),
            legacy.unwrap(),
        ]
        .concat();
        let whole = passed(&stream, stream.len());
        let ids: Vec<_> = whole
            .iter()
            .map(|(id, _, more, kept)| (*id, *more, *kept))
            .collect();
        assert_eq!(
            ids,
            [
                (7, false, true),
                (9, true, false),
                (7, false, true),
                (8, false, true),
                (6, false, true)
            ]
        );
        let facts: Vec<_> = whole
            .iter()
            .map(|(_, facts, _, _)| (facts.ok, facts.code, facts.n))
            .collect();
        let good = (Some(true), None, Some(3));
        assert_eq!(
            facts,
            [good, (Some(false), Some(11), None), good, good, good]
        );
        for piece in [1, 3, 16, 17, 50] {
            assert_eq!(passed(&stream, piece), whole, "{piece}");
        }
    }

    #[test]
    fn reply_bytes_that_are_not_messages_are_an_error() {
        assert!(
            Replies::default()
                .feed(&[0xff; 20], |_| Expected::default())
                .is_err()
        );
    }
}
