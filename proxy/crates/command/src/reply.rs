//! Scans a server's reply while its bytes are forwarded.
//!
//! The values that Seawall needs are not always in the first bytes of a reply. In a cursor reply,
//! the batch precedes `cursor.id` and `ok`. In an error reply, `ok` may follow `errorLabels`. So
//! the scanner gets each chunk as it arrives, skips values by their length, and enters only the few
//! documents that it needs. It stores no bytes, except the beginning of an element that is split
//! between two chunks.

use super::{codes::CodeCounts, error_reply::is_state_change};
use crate::table::ReplyForm;
use seawall_wire::{MAX_MESSAGE_BYTES, double_to_i64, kind, name_length};

/// The values that Seawall reads from a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyFacts {
    /// `ok`; `None` until the scanner has read it.
    pub ok: Option<bool>,
    /// `code` at the root of the reply.
    pub code: Option<i32>,
    /// `cursor.id`; 0 means that the cursor is exhausted.
    pub cursor_id: Option<i64>,
    /// Number of documents in `firstBatch` or `nextBatch`.
    pub batch_documents: u64,
    /// `n`: the number of documents matched, inserted, deleted or counted.
    pub n: Option<i64>,
    /// Number of elements of `values`, in the reply to a `distinct`.
    pub values: Option<u64>,
    /// Number of documents that a `bulkWrite` inserted, matched, upserted and deleted.
    pub bulk_written: Option<u64>,
    /// Number of failed writes: the elements of `writeErrors`, or `nErrors` of a `bulkWrite`.
    pub write_errors: u64,
    /// The error codes of the failed writes. [`CodeCounts`] limits the number of different codes.
    pub write_error_codes: CodeCounts,
    /// True if the reply has a `writeConcernError`.
    pub write_concern_error: bool,
    /// The code of the `writeConcernError`.
    pub write_concern_code: Option<i32>,
    /// The last code of a state-change error (for example, 10107 `NotWritablePrimary`) at the root,
    /// in `writeErrors` or in `writeConcernError`.
    pub state_change: Option<i32>,
    /// True if the scanner found bytes that it cannot parse. The scanner ignores these bytes and
    /// the rest of the reply, so later values are missing here.
    pub is_opaque: bool,
}

impl ReplyFacts {
    /// Scans a complete reply document.
    pub fn of(form: ReplyForm, document: &[u8]) -> Self {
        let mut scanner = ReplyScanner::new(form);
        scanner.feed(document);
        scanner.facts
    }

    /// Number of documents that the operation returned, wrote or counted.
    pub fn documents(&self) -> u64 {
        let in_batch = self.cursor_id.map(|_| self.batch_documents);
        let counted = self.n.and_then(|n| u64::try_from(n).ok());
        let documents = self.bulk_written.or(in_batch).or(self.values).or(counted);
        documents.unwrap_or(0)
    }

    /// The code of a reply with `ok: 0`; `None` for other replies.
    pub fn error_code(&self) -> Option<i32> {
        self.code.filter(|_| self.ok == Some(false))
    }
}

/// The document or array that the scanner is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    Top,
    Cursor,
    Batch,
    /// The result of one write, in the batch of a `bulkWrite`.
    BulkResult,
    Values,
    LastError,
    WriteErrors,
    WriteError,
    WriteConcernError,
}

/// Maximum depth of the documents that the scanner enters: the root, `cursor`, the batch, and one
/// result of a `bulkWrite`.
const MAX_DEPTH: usize = 4;

/// Maximum length of an element's beginning (type, name, fixed-size value) that is kept between
/// chunks. In replies of servers, top-level names and array indexes are far shorter.
const MAX_HEAD_BYTES: usize = 96;

/// Minimum size of a code-with-scope value: its length, an empty string, an empty document.
const MIN_SCOPED_CODE_BYTES: usize = 4 + 5 + 5;

/// Scans one reply, and keeps its position between chunks.
#[derive(Clone, Debug)]
pub struct ReplyScanner {
    form: ReplyForm,
    facts: ReplyFacts,
    /// The open documents, outermost first. Each entry has the scope of the document, and the
    /// number of bytes in the document after the current element, including the final NUL.
    open: [(Scope, usize); MAX_DEPTH],
    depth: usize,
    /// Number of bytes that the scanner still has to skip.
    skip: usize,
    /// Number of C strings of a regular expression that the scanner still has to skip.
    cstrings_left: u8,
    has_begun: bool,
    /// The incomplete beginning of an element, from earlier chunks. Its length is `carried`.
    carry: [u8; MAX_HEAD_BYTES],
    carried: usize,
}

/// The role of the next bytes of the reply: the beginning of an element or of the root document, or
/// the end of a document. `Incomplete` if more bytes are needed to find the role, and `Opaque` if
/// the scanner cannot parse the bytes.
enum Head {
    Incomplete,
    Opaque,
    End,
    /// A regular expression. Its length is known only after both of its C strings are skipped.
    Regex {
        length: usize,
    },
    Element {
        length: usize,
        skip: usize,
        enter: Option<(Scope, usize)>,
    },
}

impl Default for ReplyScanner {
    fn default() -> Self {
        Self::new(ReplyForm::Plain)
    }
}

impl ReplyScanner {
    /// Creates a scanner for a reply. `form` says which fields of the reply contain the results of
    /// the command.
    pub fn new(form: ReplyForm) -> Self {
        Self {
            form,
            facts: ReplyFacts::default(),
            open: [(Scope::Top, 0); MAX_DEPTH],
            depth: 0,
            skip: 0,
            cstrings_left: 0,
            has_begun: false,
            carry: [0; MAX_HEAD_BYTES],
            carried: 0,
        }
    }

    /// The facts found so far.
    pub fn facts(&self) -> &ReplyFacts {
        &self.facts
    }

    /// Scans the next bytes of the reply document.
    pub fn feed(&mut self, mut chunk: &[u8]) {
        while !chunk.is_empty() && !self.is_finished() {
            if self.skip > 0 {
                let step = self.skip.min(chunk.len());
                self.skip -= step;
                chunk = chunk.get(step..).unwrap_or_default();
            } else if self.cstrings_left > 0 {
                chunk = self.skip_cstring(chunk);
            } else if self.carried == 0 {
                chunk = self.feed_fresh(chunk);
            } else {
                chunk = self.feed_carried(chunk);
            }
        }
    }

    fn is_finished(&self) -> bool {
        self.facts.is_opaque || (self.has_begun && self.depth == 0)
    }

    #[cold]
    fn skip_cstring<'c>(&mut self, chunk: &'c [u8]) -> &'c [u8] {
        let end = chunk.iter().position(|&b| b == 0);
        let step = end.map_or(chunk.len(), |end| end + 1);
        self.cstrings_left -= u8::from(end.is_some());
        self.consume(step);
        chunk.get(step..).unwrap_or_default()
    }

    /// Reads the next element. Usually the chunk contains the whole beginning of the element. If
    /// not, stores the incomplete beginning in `carry`.
    #[inline(always)]
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

    /// Adds one byte to the beginning of an element that is split between chunks. Reads the element
    /// when its beginning is complete.
    #[cold]
    fn feed_carried<'c>(&mut self, chunk: &'c [u8]) -> &'c [u8] {
        let Some((&byte, rest)) = chunk.split_first() else {
            return chunk;
        };
        let Some(slot) = self.carry.get_mut(self.carried) else {
            self.facts.is_opaque = true;
            return rest;
        };
        *slot = byte;
        self.carried += 1;
        let carry = self.carry;
        let head = self.read_head(carry.get(..self.carried).unwrap_or_default());
        if let Some(used) = self.apply(head) {
            // The completed beginning may already include bytes of the value. These bytes count as
            // skipped.
            self.skip = self.skip.saturating_sub(self.carried.saturating_sub(used));
            self.carried = 0;
        }
        rest
    }

    /// Moves the scanner past `head`. Returns the number of bytes that `head` occupies; `None` if
    /// it is incomplete.
    #[inline(always)]
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
            Head::Regex { length } => {
                self.consume(length);
                self.cstrings_left = 2;
                Some(length)
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

    #[inline(always)]
    fn consume(&mut self, bytes: usize) {
        if !self.has_begun {
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

    #[inline(always)]
    fn enter(&mut self, scope: (Scope, usize)) {
        self.has_begun = true;
        match self.open.get_mut(self.depth) {
            Some(slot) => {
                *slot = scope;
                self.depth += 1;
            }
            None => self.facts.is_opaque = true,
        }
    }

    #[inline(always)]
    fn read_head(&mut self, bytes: &[u8]) -> Head {
        if !self.has_begun {
            return match read_length(bytes) {
                None => Head::Incomplete,
                Some(length) if (5..=MAX_MESSAGE_BYTES).contains(&length) => Head::Element {
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
        let Some(name_length) = name_length(rest) else {
            return Head::Incomplete;
        };
        let (name, value) = rest.split_at_checked(name_length).unwrap_or((rest, &[]));
        let value = value.get(1..).unwrap_or_default();
        self.read_value(kind, name, value, name_length + 2)
    }

    #[inline(always)]
    fn read_value(&mut self, kind: u8, name: &[u8], value: &[u8], length: usize) -> Head {
        let skip = match kind {
            kind::DOCUMENT | kind::ARRAY => return self.read_document(name, value, length),
            kind::DOUBLE | kind::BOOL | kind::INT32 | kind::INT64 => {
                return self.read_scalar(kind, name, value, length);
            }
            kind::STRING | kind::CODE | kind::SYMBOL => read_length(value).map(|n| 4 + n),
            kind::BINARY => read_length(value).map(|n| 5 + n),
            kind::UNDEFINED | kind::NULL | kind::MAX_KEY | kind::MIN_KEY => Some(0),
            kind::OBJECT_ID => Some(12),
            kind::DATE | kind::TIMESTAMP => Some(8),
            kind::REGEX => {
                self.count_entry();
                return Head::Regex { length };
            }
            kind::DB_POINTER => read_length(value).map(|n| 16 + n),
            // A length below the minimum is invalid. If the scanner accepted it, the result would
            // depend on how the bytes are split into chunks.
            kind::CODE_WITH_SCOPE
                if read_length(value).is_some_and(|n| n < MIN_SCOPED_CODE_BYTES) =>
            {
                return Head::Opaque;
            }
            kind::CODE_WITH_SCOPE => read_length(value),
            kind::DECIMAL => Some(16),
            _ => return Head::Opaque,
        };
        let Some(skip) = skip else {
            return Head::Incomplete;
        };
        self.count_entry();
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
            (Scope::Batch, _) if self.form == ReplyForm::BulkWrite => Some(Scope::BulkResult),
            (Scope::Top, b"values") if self.form == ReplyForm::Distinct => {
                self.facts.values = Some(0);
                Some(Scope::Values)
            }
            (Scope::Top, b"lastErrorObject") if self.form == ReplyForm::FindAndModify => {
                Some(Scope::LastError)
            }
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
        self.count_entry();
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

    #[inline(always)]
    fn read_scalar(&mut self, kind: u8, name: &[u8], value: &[u8], length: usize) -> Head {
        let number = match kind {
            kind::BOOL => value.first().map(|&b| (i64::from(b), 1)),
            kind::INT32 => value
                .first_chunk()
                .map(|b| (i64::from(i32::from_le_bytes(*b)), 4)),
            kind::INT64 => value.first_chunk().map(|b| (i64::from_le_bytes(*b), 8)),
            _ => value.first_chunk().map(|b| {
                let value = f64::from_le_bytes(*b);
                // Codes and counts have no fraction. `ok` is true if the number is not zero, so a
                // number with a fraction is read as 1.
                let number = double_to_i64(value).unwrap_or_else(|| i64::from(value != 0.0));
                (number, 8)
            }),
        };
        let Some((number, size)) = number else {
            return Head::Incomplete;
        };
        match (self.scope(), name) {
            (Scope::Top, b"ok") => self.facts.ok = Some(number != 0),
            (Scope::Top | Scope::LastError, b"n") if kind != kind::DOUBLE => {
                self.facts.n = Some(number);
            }
            (Scope::Cursor, b"id") => self.facts.cursor_id = Some(number),
            (_, b"code") => self.record_code(i32::try_from(number).unwrap_or(i32::MAX)),
            (Scope::Top, name) if self.form == ReplyForm::BulkWrite => {
                self.add_bulk_count(name, u64::try_from(number).unwrap_or(0));
            }
            _ => {}
        }
        self.count_entry();
        Head::Element {
            length: length + size,
            skip: 0,
            enter: None,
        }
    }

    fn record_code(&mut self, code: i32) {
        let scope = self.scope();
        let facts = &mut self.facts;
        match scope {
            Scope::Top => facts.code = Some(code),
            Scope::WriteError => facts.write_error_codes.add(code),
            Scope::WriteConcernError => facts.write_concern_code = Some(code),
            // `conceal_state_change` does not change the batch of a `bulkWrite`, so a state-change
            // code in the batch is not recorded as `state_change`.
            Scope::BulkResult => return facts.write_error_codes.add(code),
            Scope::Cursor
            | Scope::Batch
            | Scope::Values
            | Scope::LastError
            | Scope::WriteErrors => return,
        }
        if is_state_change(code) {
            self.facts.state_change = Some(code);
        }
    }

    fn add_bulk_count(&mut self, name: &[u8], number: u64) {
        match name {
            b"nErrors" => self.facts.write_errors = number,
            b"nInserted" | b"nMatched" | b"nUpserted" | b"nDeleted" => {
                let written = self.facts.bulk_written.get_or_insert(0);
                *written = written.saturating_add(number);
            }
            _ => {}
        }
    }

    #[inline(always)]
    fn count_entry(&mut self) {
        match self.scope() {
            Scope::Batch => self.facts.batch_documents += 1,
            Scope::Values => *self.facts.values.get_or_insert(0) += 1,
            Scope::Top
            | Scope::Cursor
            | Scope::BulkResult
            | Scope::LastError
            | Scope::WriteErrors
            | Scope::WriteError
            | Scope::WriteConcernError => {}
        }
    }

    #[inline(always)]
    fn scope(&self) -> Scope {
        let top = self.depth.checked_sub(1).and_then(|top| self.open.get(top));
        top.map_or(Scope::Top, |(scope, _)| *scope)
    }
}

fn read_length(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<4>()?;
    // A negative length becomes a length that is larger than any document, so the reply becomes
    // opaque.
    Some(usize::try_from(i32::from_le_bytes(*head)).unwrap_or(usize::MAX >> 1))
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, JavaScriptCodeWithScope, Regex, doc, raw::CString};

    use super::*;

    fn scan(form: ReplyForm, bytes: &[u8], piece: usize) -> ReplyFacts {
        let mut scanner = ReplyScanner::new(form);
        bytes.chunks(piece).for_each(|chunk| scanner.feed(chunk));
        *scanner.facts()
    }

    fn codes(codes: &[i32]) -> CodeCounts {
        let mut counts = CodeCounts::default();
        codes.iter().for_each(|code| counts.add(*code));
        counts
    }

    fn regex() -> Regex {
        let text = |text| CString::try_from(text).unwrap();
        Regex {
            pattern: text("^a.*b$"),
            options: text("i"),
        }
    }

    fn replies() -> Vec<(ReplyForm, Document, ReplyFacts)> {
        let rows: Vec<Bson> = (0..12)
            .map(|i| doc! {"_id": i, "code": 7, "cursor": {"id": 9i64}}.into())
            .collect();
        vec![
            (
                ReplyForm::Plain,
                doc! {"cursor": {"firstBatch": rows, "id": 77i64, "ns": "d.c"}, "ok": 1.0},
                ReplyFacts {
                    ok: Some(true),
                    cursor_id: Some(77),
                    batch_documents: 12,
                    ..ReplyFacts::default()
                },
            ),
            (
                ReplyForm::Plain,
                doc! {"errorLabels": ["x"], "ok": 0.0, "errmsg": "n", "code": 10107, "codeName": "c"},
                ReplyFacts {
                    ok: Some(false),
                    code: Some(10107),
                    state_change: Some(10107),
                    ..ReplyFacts::default()
                },
            ),
            (
                ReplyForm::Plain,
                doc! {"ok": 0.0, "code": 91.0, "writeErrors": [{"code": 11000i64}]},
                ReplyFacts {
                    ok: Some(false),
                    code: Some(91),
                    write_errors: 1,
                    write_error_codes: codes(&[11000]),
                    state_change: Some(91),
                    ..ReplyFacts::default()
                },
            ),
        ]
        .into_iter()
        .chain(replies_to_writes())
        .chain(replies_without_a_cursor())
        .collect()
    }

    fn replies_to_writes() -> Vec<(ReplyForm, Document, ReplyFacts)> {
        let one_of_two = doc! {"cursor": {"id": 0i64, "firstBatch": [
            {"ok": 1.0, "idx": 0, "n": 1},
            {"ok": 0.0, "idx": 1, "code": 11000, "errmsg": "E11000", "n": 0},
            {"ok": 0.0, "idx": 2, "code": 91, "n": 0},
        ], "ns": "admin.$cmd.bulkWrite"}, "nErrors": 2, "nInserted": 1, "nMatched": 5,
        "nModified": 4, "nUpserted": 1, "nDeleted": 2, "ok": 1.0};
        vec![
            (
                ReplyForm::Plain,
                doc! {"n": 3, "writeErrors": [{"index": 1, "code": 11000}, {"code": 91}], "ok": 1},
                ReplyFacts {
                    ok: Some(true),
                    n: Some(3),
                    write_errors: 2,
                    write_error_codes: codes(&[11000, 91]),
                    state_change: Some(91),
                    ..ReplyFacts::default()
                },
            ),
            (
                ReplyForm::Plain,
                doc! {"n": 1i64, "writeConcernError": {"code": 64, "errInfo": {"code": 91}}, "ok": true},
                ReplyFacts {
                    ok: Some(true),
                    n: Some(1),
                    write_concern_error: true,
                    write_concern_code: Some(64),
                    ..ReplyFacts::default()
                },
            ),
            (
                ReplyForm::BulkWrite,
                one_of_two,
                ReplyFacts {
                    ok: Some(true),
                    cursor_id: Some(0),
                    batch_documents: 3,
                    bulk_written: Some(9),
                    write_errors: 2,
                    write_error_codes: codes(&[11000, 91]),
                    ..ReplyFacts::default()
                },
            ),
            (
                ReplyForm::FindAndModify,
                doc! {"lastErrorObject": {"n": 1, "updatedExisting": true}, "value": {"n": 7}, "ok": 1.0},
                ReplyFacts {
                    ok: Some(true),
                    n: Some(1),
                    ..ReplyFacts::default()
                },
            ),
            (
                ReplyForm::FindAndModify,
                doc! {"lastErrorObject": {"n": 0}, "value": null, "ok": 1.0},
                ReplyFacts {
                    ok: Some(true),
                    n: Some(0),
                    ..ReplyFacts::default()
                },
            ),
        ]
    }

    fn replies_without_a_cursor() -> Vec<(ReplyForm, Document, ReplyFacts)> {
        let pointer =
            r#"{"$dbPointer": {"$ref": "d.c", "$id": {"$oid": "507f1f77bcf86cd799439011"}}}"#;
        let script = JavaScriptCodeWithScope {
            code: "f()".to_owned(),
            scope: doc! {"a": 1},
        };
        // The reply to `distinct` may contain values of every BSON type.
        let values: Vec<Bson> = vec![
            Bson::RegularExpression(regex()),
            "a".into(),
            1.5.into(),
            doc! {"code": 91, "values": [1, 2]}.into(),
            serde_json::from_str(pointer).unwrap(),
            Bson::JavaScriptCodeWithScope(script),
            Bson::Null,
            true.into(),
            vec![Bson::from(1)].into(),
        ];
        let counted = |values| ReplyFacts {
            ok: Some(true),
            values,
            ..ReplyFacts::default()
        };
        vec![
            (
                ReplyForm::Distinct,
                doc! {"values": values, "ok": 1.0},
                counted(Some(9)),
            ),
            (
                ReplyForm::Distinct,
                doc! {"values": [], "ok": 1.0},
                counted(Some(0)),
            ),
            (
                ReplyForm::Plain,
                doc! {"r": Bson::RegularExpression(regex()), "values": [1], "lastErrorObject": {"n": 1}, "ok": 1.0},
                counted(None),
            ),
        ]
    }

    #[test]
    fn scanning_a_reply_finds_the_same_facts_for_any_split_of_the_bytes() {
        for (form, reply, facts) in replies() {
            let bytes = reply.to_vec().unwrap();
            for piece in 1..=bytes.len() {
                assert_eq!(
                    scan(form, &bytes, piece),
                    facts,
                    "{reply} in pieces of {piece} bytes"
                );
            }
        }
    }

    #[test]
    fn the_scanner_counts_documents_in_replies_to_all_kinds_of_commands() {
        let documents: Vec<_> = replies()
            .iter()
            .map(|(_, _, facts)| facts.documents())
            .collect();
        assert_eq!(documents, [12, 0, 0, 3, 1, 9, 1, 0, 9, 0, 0]);
    }

    /// A reply is opaque if it has bytes that the scanner cannot parse.
    #[test]
    fn a_reply_is_opaque_if_its_code_with_scope_value_is_too_short() {
        let script = JavaScriptCodeWithScope {
            code: String::new(),
            scope: doc! {},
        };
        let reply = doc! {"r": script, "ok": 1.0}.to_vec().unwrap();
        assert!(!scan(ReplyForm::Plain, &reply, reply.len()).is_opaque);
        // The value of `r` begins with its length, at offset 7 of the reply.
        for length in [0_u8, 3, 13] {
            let mut altered = reply.clone();
            altered[7] = length;
            for piece in 1..=altered.len() {
                let facts = scan(ReplyForm::Plain, &altered, piece);
                assert!(facts.is_opaque && facts.ok.is_none(), "{length} {piece}");
            }
        }
    }

    /// A reply is opaque if it has bytes that the scanner cannot parse.
    #[test]
    fn a_reply_is_opaque_if_its_document_length_is_impossible() {
        for length in [-1, i32::MIN, i32::MAX] {
            let mut reply = doc! {"ok": 1.0}.to_vec().unwrap();
            reply[..4].copy_from_slice(&length.to_le_bytes());
            let facts = scan(ReplyForm::Plain, &reply, reply.len());
            assert!(facts.is_opaque && facts.ok.is_none(), "{length}");
        }
    }

    /// A reply is opaque if it has bytes that the scanner cannot parse.
    #[test]
    fn a_corrupt_reply_causes_no_panic_and_is_opaque_if_it_has_an_unknown_bson_type() {
        for (form, reply, _) in replies() {
            let bytes = reply.to_vec().unwrap();
            for at in 0..bytes.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut altered = bytes.clone();
                    altered[at] = value;
                    scan(form, &altered, 7);
                }
            }
        }
        let is_opaque = |bytes: &[u8]| scan(ReplyForm::Plain, bytes, 5).is_opaque;
        assert!(is_opaque(&[1, 0, 0, 0, 0]));
        // 0x20 is not a BSON type.
        let mut unknown = doc! {"r": 1}.to_vec().unwrap();
        unknown[4] = 0x20;
        assert!(is_opaque(&unknown));
    }
}
