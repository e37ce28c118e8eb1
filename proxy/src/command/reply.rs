//! An incremental look at a server's reply while its bytes are forwarded.
//!
//! In a cursor reply the batch comes before `cursor.id` and `ok`, and in an error reply `ok` may come after
//! `errorLabels`, so neither can be had from the first bytes. The scanner takes chunks as they come, skips
//! values by their length, descends only into the few documents that matter, and keeps no bytes but the head
//! of an element that a chunk's end cut in two.

use super::error_reply::is_state_change;

/// What a reply said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyFacts {
    /// `ok`, once seen.
    pub ok: Option<bool>,
    /// The root's `code`.
    pub code: Option<i32>,
    /// `cursor.id`: 0 once the cursor is exhausted.
    pub cursor_id: Option<i64>,
    /// Documents in `firstBatch` or `nextBatch`.
    pub batch_documents: u64,
    /// `n`: documents matched, inserted, deleted or counted.
    pub n: Option<i64>,
    /// Entries of `writeErrors`.
    pub write_errors: u64,
    /// Whether there is a `writeConcernError`.
    pub write_concern_error: bool,
    /// A state-change code anywhere in it.
    pub state_change: Option<i32>,
    /// Something stood there that the scanner does not follow; what comes after it is unknown.
    pub is_opaque: bool,
}

impl ReplyFacts {
    /// Documents that the operation returned, wrote or counted.
    pub fn documents(&self) -> u64 {
        match self.cursor_id {
            Some(_) => self.batch_documents,
            None => self.n.and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Top,
    Cursor,
    Batch,
    WriteErrors,
    WriteError,
    WriteConcernError,
}

/// How deep the scanner descends: root, `writeErrors`, one error.
const MAX_DEPTH: usize = 3;

/// Longest element head (type, name, fixed value) that is kept across chunks. Servers' top-level names and
/// array indexes are far shorter.
const MAX_HEAD_BYTES: usize = 96;

/// The scanner's state between chunks.
#[derive(Clone, Debug)]
pub struct ReplyScanner {
    facts: ReplyFacts,
    /// Open documents, outermost first, and the bytes left in each, its closing NUL included.
    open: [(Scope, usize); MAX_DEPTH],
    depth: usize,
    skip: usize,
    begun: bool,
    carry: [u8; MAX_HEAD_BYTES],
    carried: usize,
}

enum Head {
    Incomplete,
    Opaque,
    End,
    Element {
        length: usize,
        skip: usize,
        enter: Option<(Scope, usize)>,
    },
}

impl Default for ReplyScanner {
    fn default() -> Self {
        Self {
            facts: ReplyFacts::default(),
            open: [(Scope::Top, 0); MAX_DEPTH],
            depth: 0,
            skip: 0,
            begun: false,
            carry: [0; MAX_HEAD_BYTES],
            carried: 0,
        }
    }
}

impl ReplyScanner {
    /// What was seen so far.
    pub fn facts(&self) -> &ReplyFacts {
        &self.facts
    }

    /// Looks at the next bytes of the reply's document.
    pub fn feed(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() && !self.is_finished() {
            if self.skip > 0 {
                let step = self.skip.min(chunk.len());
                self.skip -= step;
                chunk = chunk.get(step..).unwrap_or_default();
            } else if self.carried == 0 {
                chunk = self.feed_fresh(chunk);
            } else {
                chunk = self.feed_carried(chunk);
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.facts.is_opaque || (self.begun && self.depth == 0)
    }

    /// The usual case: an element's head lies whole in the chunk.
    fn feed_fresh<'c>(&mut self, chunk: &'c [u8]) -> &'c [u8] {
        let head = self.read_head(chunk);
        match self.apply(head) {
            Some(used) => chunk.get(used..).unwrap_or_default(),
            None => {
                match self.carry.get_mut(..chunk.len()) {
                    Some(room) => {
                        room.copy_from_slice(chunk);
                        self.carried = chunk.len();
                    }
                    None => self.facts.is_opaque = true,
                }
                &[]
            }
        }
    }

    /// A head that a chunk's end cut: completed byte by byte.
    fn feed_carried<'c>(&mut self, chunk: &'c [u8]) -> &'c [u8] {
        let Some((&byte, rest)) = chunk.split_first() else {
            return chunk;
        };
        let Some(place) = self.carry.get_mut(self.carried) else {
            self.facts.is_opaque = true;
            return rest;
        };
        *place = byte;
        self.carried += 1;
        let carry = self.carry;
        let head = self.read_head(carry.get(..self.carried).unwrap_or_default());
        if let Some(used) = self.apply(head) {
            // A length that was needed to know the head's end is part of the value that is skipped.
            self.skip = self.skip.saturating_sub(self.carried.saturating_sub(used));
            self.carried = 0;
        }
        rest
    }

    /// Takes a head into the state; the bytes it used, or `None` if it needs more.
    fn apply(&mut self, head: Head) -> Option<usize> {
        match head {
            Head::Incomplete => None,
            Head::Opaque => {
                self.facts.is_opaque = true;
                Some(0)
            }
            Head::End => {
                self.consume(1);
                self.depth = self.depth.saturating_sub(1);
                Some(1)
            }
            Head::Element {
                length,
                skip,
                enter,
            } => {
                let inside = enter.map_or(0, |(_, bytes)| bytes);
                self.consume(length + skip + inside);
                self.skip = skip;
                if let Some(scope) = enter {
                    self.enter(scope);
                }
                Some(length)
            }
        }
    }

    fn consume(&mut self, bytes: usize) {
        if !self.begun {
            return;
        }
        let left = self
            .depth
            .checked_sub(1)
            .and_then(|top| self.open.get_mut(top));
        match left.and_then(|(_, left)| left.checked_sub(bytes).map(|rest| *left = rest)) {
            Some(()) => {}
            None => self.facts.is_opaque = true,
        }
    }

    fn enter(&mut self, scope: (Scope, usize)) {
        self.begun = true;
        match self.open.get_mut(self.depth) {
            Some(place) => {
                *place = scope;
                self.depth += 1;
            }
            None => self.facts.is_opaque = true,
        }
    }

    fn read_head(&mut self, bytes: &[u8]) -> Head {
        if !self.begun {
            return match read_length(bytes) {
                None => Head::Incomplete,
                Some(length) if length >= 5 => Head::Element {
                    length: 4,
                    skip: 0,
                    enter: Some((Scope::Top, length - 4)),
                },
                Some(_) => Head::Opaque,
            };
        }
        let Some((&kind, rest)) = bytes.split_first() else {
            return Head::Incomplete;
        };
        if kind == 0 {
            return Head::End;
        }
        let Some(name_length) = rest.iter().position(|&b| b == 0) else {
            return Head::Incomplete;
        };
        let (name, value) = rest.split_at_checked(name_length).unwrap_or((rest, &[]));
        let value = value.get(1..).unwrap_or_default();
        self.read_value(kind, name, value, name_length + 2)
    }

    fn read_value(&mut self, kind: u8, name: &[u8], value: &[u8], length: usize) -> Head {
        let skip = match kind {
            0x03 | 0x04 => return self.read_document(name, value, length),
            0x01 | 0x08 | 0x10 | 0x12 => return self.read_scalar(kind, name, value, length),
            0x02 | 0x0d | 0x0e => read_length(value).map(|n| 4 + n),
            0x05 => read_length(value).map(|n| 5 + n),
            0x06 | 0x0a | 0x7f | 0xff => Some(0),
            0x07 => Some(12),
            0x09 | 0x11 => Some(8),
            0x13 => Some(16),
            // Regular expressions and the like do not stand at these levels of a server's reply.
            _ => return Head::Opaque,
        };
        let Some(skip) = skip else {
            return Head::Incomplete;
        };
        self.count_batch_entry();
        Head::Element {
            length,
            skip,
            enter: None,
        }
    }

    fn read_document(&mut self, name: &[u8], value: &[u8], length: usize) -> Head {
        let Some(size) = read_length(value) else {
            return Head::Incomplete;
        };
        if size < 5 {
            return Head::Opaque;
        }
        let enter = match (self.scope(), name) {
            (Scope::Top, b"cursor") => Some(Scope::Cursor),
            (Scope::Cursor, b"firstBatch" | b"nextBatch") => Some(Scope::Batch),
            (Scope::Top, b"writeErrors") => Some(Scope::WriteErrors),
            (Scope::WriteErrors, _) => {
                self.facts.write_errors += 1;
                Some(Scope::WriteError)
            }
            (Scope::Top, b"writeConcernError") => {
                self.facts.write_concern_error = true;
                Some(Scope::WriteConcernError)
            }
            _ => None,
        };
        self.count_batch_entry();
        match enter {
            Some(scope) => Head::Element {
                length: length + 4,
                skip: 0,
                enter: Some((scope, size - 4)),
            },
            None => Head::Element {
                length,
                skip: size,
                enter: None,
            },
        }
    }

    fn read_scalar(&mut self, kind: u8, name: &[u8], value: &[u8], length: usize) -> Head {
        let number = match kind {
            0x08 => value.first().map(|&b| (i64::from(b), 1)),
            0x10 => value
                .first_chunk()
                .map(|b| (i64::from(i32::from_le_bytes(*b)), 4)),
            0x12 => value.first_chunk().map(|b| (i64::from_le_bytes(*b), 8)),
            _ => value
                .first_chunk()
                .map(|b| (i64::from(f64::from_le_bytes(*b) != 0.0), 8)),
        };
        let Some((number, size)) = number else {
            return Head::Incomplete;
        };
        match (self.scope(), name) {
            (Scope::Top, b"ok") => self.facts.ok = Some(number != 0),
            (Scope::Top, b"n") if kind != 0x01 => self.facts.n = Some(number),
            (Scope::Cursor, b"id") => self.facts.cursor_id = Some(number),
            (Scope::Top | Scope::WriteError | Scope::WriteConcernError, b"code") => {
                self.note_code(i32::try_from(number).unwrap_or(i32::MAX));
            }
            _ => {}
        }
        self.count_batch_entry();
        Head::Element {
            length: length + size,
            skip: 0,
            enter: None,
        }
    }

    fn note_code(&mut self, code: i32) {
        if self.scope() == Scope::Top {
            self.facts.code = Some(code);
        }
        if is_state_change(code) {
            self.facts.state_change = Some(code);
        }
    }

    fn count_batch_entry(&mut self) {
        if self.scope() == Scope::Batch {
            self.facts.batch_documents += 1;
        }
    }

    fn scope(&self) -> Scope {
        let top = self.depth.checked_sub(1).and_then(|top| self.open.get(top));
        top.map_or(Scope::Top, |(scope, _)| *scope)
    }
}

fn read_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<4>()?;
    // A negative length becomes one that fits no document, and so an opaque reply.
    Some(usize::try_from(i32::from_le_bytes(*head)).unwrap_or(usize::MAX >> 1))
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, doc};

    use super::*;

    fn scan(bytes: &[u8], piece: usize) -> ReplyFacts {
        let mut scanner = ReplyScanner::default();
        bytes.chunks(piece).for_each(|chunk| scanner.feed(chunk));
        *scanner.facts()
    }

    fn replies() -> Vec<(Document, ReplyFacts)> {
        let rows: Vec<Bson> = (0..12)
            .map(|i| doc! {"_id": i, "cursor": {"id": 9i64}}.into())
            .collect();
        vec![
            (
                doc! {"cursor": {"firstBatch": rows, "id": 77i64, "ns": "d.c"}, "ok": 1.0},
                ReplyFacts {
                    ok: Some(true),
                    cursor_id: Some(77),
                    batch_documents: 12,
                    ..ReplyFacts::default()
                },
            ),
            (
                doc! {"errorLabels": ["x"], "ok": 0.0, "errmsg": "n", "code": 10107, "codeName": "c"},
                ReplyFacts {
                    ok: Some(false),
                    code: Some(10107),
                    state_change: Some(10107),
                    ..ReplyFacts::default()
                },
            ),
            (
                doc! {"n": 3, "writeErrors": [{"index": 1, "code": 11000}, {"code": 91}], "ok": 1},
                ReplyFacts {
                    ok: Some(true),
                    n: Some(3),
                    write_errors: 2,
                    state_change: Some(91),
                    ..ReplyFacts::default()
                },
            ),
            (
                doc! {"n": 1i64, "writeConcernError": {"code": 64, "errInfo": {"code": 91}}, "ok": true},
                ReplyFacts {
                    ok: Some(true),
                    n: Some(1),
                    write_concern_error: true,
                    ..ReplyFacts::default()
                },
            ),
        ]
    }

    #[test]
    fn any_split_of_the_bytes_gives_the_same_facts() {
        for (reply, facts) in replies() {
            let bytes = reply.to_vec().unwrap();
            for piece in 1..=bytes.len() {
                assert_eq!(scan(&bytes, piece), facts, "{reply} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn lying_lengths_end_in_an_opaque_reply_and_never_panic() {
        for (reply, _) in replies() {
            let bytes = reply.to_vec().unwrap();
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut altered = bytes.clone();
                    altered[at] = value;
                    scan(&altered, 7);
                }
            }
        }
        assert!(scan(&[1, 0, 0, 0, 0], 5).is_opaque);
        assert!(
            scan(
                &doc! {"r": bson::Regex {
                    pattern: bson::raw::CString::try_from("a").unwrap(),
                    options: bson::raw::CString::try_from("").unwrap(),
                }}
                .to_vec()
                .unwrap(),
                100
            )
            .is_opaque
        );
    }
}
