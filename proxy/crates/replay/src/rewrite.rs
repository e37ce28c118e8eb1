//! Replaces the parts of a command that are valid only in the captured deployment.
//!
//! | part | becomes |
//! |---|---|
//! | `requestID` | a request id of the replay |
//! | `lsid` | a session of this replay; the same captured session always becomes the same session |
//! | `txnNumber` | unchanged; removed from a write if the target has no retryable writes |
//! | id in `getMore` and `killCursors` | the id that the target returned |
//! | `$clusterTime`, `afterClusterTime`, `atClusterTime`, `recoveryToken` | removed |
//! | `resumeAfter`, `startAfter`, `startAtOperationTime` | removed: the change stream begins now |
//! | checksum, `exhaustAllowed`, `moreToCome` | removed |
//!
//! All other bytes are copied.

use seawall_command::Command;
use seawall_wire::kind::{ARRAY, BINARY, DOCUMENT, INT64};
use seawall_wire::{
    CHECKSUM_PRESENT, EXHAUST_ALLOWED, HEADER_BYTES, Header, MORE_TO_COME, MessageError, OpCode,
    OpMsg, RawElement, reserve_length, set_length,
};

use crate::{CursorUse, plan::op_msg};

/// Random bytes of one replay, from which the ids of its sessions are derived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionKey([u8; 16]);

impl SessionKey {
    /// Creates a key from 16 random bytes.
    pub(crate) fn new(random: [u8; 16]) -> Self {
        Self(random)
    }

    /// The id of a session in the replay, from its id in the capture. Different captured ids become
    /// different ids, because each step of this computation can be reversed.
    pub(crate) fn session(&self, captured: [u8; 16]) -> [u8; 16] {
        let mixed = u128::from_le_bytes(captured) ^ u128::from_le_bytes(self.0);
        // The multiplication can be reversed, because an odd multiplier is invertible modulo 2^128.
        let mixed = mixed.wrapping_mul(ODD);
        (mixed ^ (mixed >> 64)).to_le_bytes()
    }
}

/// An odd number with which a multiplication mixes the bits well. It is the multiplier of the
/// random number generator PCG with 128 bits of state.
const ODD: u128 = 0x2360_ED05_1FC6_5DA4_4385_DF64_9FCC_F645;

/// Rewrites commands for one target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rewriter {
    /// The key from which the session ids of the replay are derived.
    pub sessions: SessionKey,
    /// True if the target supports retryable writes. A standalone server does not.
    pub has_retryable_writes: bool,
}

impl Rewriter {
    /// Returns the rewritten command. `find_cursor` returns the target's id of a captured cursor.
    /// If it returns `None`, the cursor keeps its captured id in a `getMore`, and is removed from a
    /// `killCursors`.
    ///
    /// # Errors
    /// If the message is not a valid command. The planner does not send such messages.
    pub(crate) fn rewrite(
        &self,
        message: &[u8],
        request_id: i32,
        cursors: &CursorUse,
        mut find_cursor: impl FnMut(i64) -> Option<i64>,
    ) -> Result<Vec<u8>, MessageError> {
        let parsed = op_msg(message).ok_or(MessageError::Empty)?;
        let mut output = Vec::with_capacity(message.len());
        output.extend_from_slice(&[0; HEADER_BYTES]);
        let flags = parsed.flags & !(CHECKSUM_PRESENT | EXHAUST_ALLOWED | MORE_TO_COME);
        output.extend_from_slice(&flags.to_le_bytes());
        output.push(0);
        self.body(&parsed, cursors, &mut find_cursor, &mut output)?;
        for sequence in parsed.sequences() {
            output.push(1);
            let start = reserve_length(&mut output);
            output.extend_from_slice(sequence.identifier);
            output.push(0);
            output.extend_from_slice(sequence.documents);
            set_length(&mut output, start);
        }
        let header = Header {
            message_length: output.len(),
            request_id,
            response_to: 0,
            op_code: OpCode::Msg,
        };
        put(&mut output, 0, &header.to_bytes());
        Ok(output)
    }

    fn body(
        &self,
        parsed: &OpMsg<'_>,
        cursors: &CursorUse,
        find_cursor: &mut impl FnMut(i64) -> Option<i64>,
        output: &mut Vec<u8>,
    ) -> Result<(), MessageError> {
        let invalid = MessageError::NoBody;
        let command = Command::inspect(parsed.body).map_err(|_| invalid)?;
        let keeps_number = self.has_retryable_writes || command.in_transaction;
        let is_change_stream = command.opens_change_stream();
        document(parsed.body, output, |element, output| {
            match (element.name, element.kind) {
                (b"$clusterTime" | b"recoveryToken", _) => {}
                (b"txnNumber", _) if !keeps_number => {}
                (b"lsid", DOCUMENT) => self.lsid(element, output),
                (b"readConcern", DOCUMENT) => nested(element, output, |inner, output| {
                    if !matches!(inner.name, b"afterClusterTime" | b"atClusterTime") {
                        inner.write(output);
                    }
                }),
                (b"pipeline", ARRAY) if is_change_stream => change_stream(element, output),
                (b"getMore", INT64) => match cursors {
                    CursorUse::More(id) => {
                        let id = find_cursor(*id).unwrap_or(*id);
                        RawElement::new(INT64, element.name, &id.to_le_bytes()).write(output);
                    }
                    CursorUse::Open | CursorUse::Kill(_) => element.write(output),
                },
                (b"cursors", ARRAY) => match cursors {
                    CursorUse::Kill(ids) => {
                        let ids = ids.iter().filter_map(|id| find_cursor(*id));
                        killed(element, ids, output);
                    }
                    CursorUse::Open | CursorUse::More(_) => element.write(output),
                },
                _ => element.write(output),
            }
        })
        .ok_or(invalid)
    }

    /// Writes `lsid` with the id that the session has in the replay. Other fields of `lsid` are
    /// omitted, because only servers send such fields to each other.
    fn lsid(&self, lsid: RawElement<'_>, output: &mut Vec<u8>) {
        nested(lsid, output, |inner, output| {
            // The value of a binary is its length, its subtype and its bytes.
            if let (b"id", BINARY, [head @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _]) =
                (inner.name, inner.kind, inner.value)
                && let Some(id) = inner.value.last_chunk::<16>()
            {
                let value = [head, &self.sessions.session(*id)].concat();
                RawElement::new(BINARY, inner.name, &value).write(output);
            }
        });
    }
}

/// Replaces the request id of a message.
pub(crate) fn set_request_id(message: &mut [u8], request_id: i32) {
    put(message, 4, &request_id.to_le_bytes());
}

/// Copies a document element by element. `write` writes the new form of an element. If `write`
/// writes nothing, the copy lacks the element. `None` if the document is not valid.
fn document(
    bytes: &[u8],
    output: &mut Vec<u8>,
    mut write: impl FnMut(RawElement<'_>, &mut Vec<u8>),
) -> Option<()> {
    let start = reserve_length(output);
    for element in RawElement::all(bytes) {
        write(element.ok()?, output);
    }
    output.push(0);
    set_length(output, start);
    Some(())
}

/// Copies an element whose value is a document. Copies this document with [`document`] and `write`.
/// If the value is not a valid document, the element is copied without changes.
fn nested(
    element: RawElement<'_>,
    output: &mut Vec<u8>,
    write: impl FnMut(RawElement<'_>, &mut Vec<u8>),
) {
    let start = output.len();
    element.write_name(output);
    if document(element.value, output, write).is_none() {
        output.truncate(start);
        element.write(output);
    }
}

fn change_stream(pipeline: RawElement<'_>, output: &mut Vec<u8>) {
    nested(pipeline, output, |stage, output| {
        nested(stage, output, |operator, output| {
            if operator.name != b"$changeStream" || operator.kind != DOCUMENT {
                return operator.write(output);
            }
            nested(operator, output, |option, output| {
                let is_start = matches!(
                    option.name,
                    b"resumeAfter" | b"startAfter" | b"startAtOperationTime"
                );
                if !is_start {
                    option.write(output);
                }
            });
        });
    });
}

/// Writes the array `cursors` of a `killCursors` with these `ids` in place of the captured ids.
fn killed(element: RawElement<'_>, ids: impl Iterator<Item = i64>, output: &mut Vec<u8>) {
    element.write_name(output);
    let start = reserve_length(output);
    for (index, id) in ids.enumerate() {
        let index = index.to_string();
        RawElement::new(INT64, index.as_bytes(), &id.to_le_bytes()).write(output);
    }
    output.push(0);
    set_length(output, start);
}

fn put(output: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = output.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Bson, Document, Timestamp, doc, spec::BinarySubtype};
    use proptest::prelude::*;
    use seawall_wire::{checksum, encode_request};

    use super::*;

    const REWRITER: Rewriter = Rewriter {
        sessions: SessionKey([9; 16]),
        has_retryable_writes: true,
    };

    fn lsid(bytes: [u8; 16]) -> Document {
        let subtype = BinarySubtype::Uuid;
        let bytes = bytes.to_vec();
        doc! {"id": Binary { subtype, bytes }}
    }

    fn rewritten_by(rewriter: Rewriter, message: &[u8], cursors: &CursorUse) -> Vec<u8> {
        let find = |id| (id < 1000).then_some(id + 1_000_000);
        let mut output = rewriter.rewrite(message, 0, cursors, find).unwrap();
        set_request_id(&mut output, 42);
        output
    }

    fn body_of(message: &[u8]) -> Document {
        let parsed = op_msg(message).expect("a valid message");
        Document::from_reader(parsed.body).unwrap()
    }

    fn rewritten(command: &Document, cursors: &CursorUse) -> Document {
        let message = encode_request(7, &command.to_vec().unwrap());
        body_of(&rewritten_by(REWRITER, &message, cursors))
    }

    /// Session ids and cursor ids are replaced. Cluster times, resume tokens and recovery tokens
    /// are removed.
    #[test]
    fn values_that_are_valid_only_in_the_captured_deployment_are_replaced_or_removed() {
        let now = Timestamp {
            time: 5,
            increment: 1,
        };
        let session = lsid(REWRITER.sessions.session([1; 16]));
        let cases = [
            (
                doc! {"find": "c", "lsid": lsid([1; 16]), "$clusterTime": {"clusterTime": now},
                "readConcern": {"level": "majority", "afterClusterTime": now, "atClusterTime": now},
                "filter": {"$clusterTime": 1, "lsid": 2}, "$db": "d"},
                CursorUse::Open,
                doc! {"find": "c", "lsid": &session, "readConcern": {"level": "majority"},
                "filter": {"$clusterTime": 1, "lsid": 2}, "$db": "d"},
            ),
            (
                doc! {"commitTransaction": 1, "recoveryToken": {"shardId": "s"}, "txnNumber": 3_i64,
                "autocommit": false, "$db": "admin"},
                CursorUse::Open,
                doc! {"commitTransaction": 1, "txnNumber": 3_i64, "autocommit": false, "$db": "admin"},
            ),
            (
                doc! {"getMore": 77_i64, "collection": "c", "$db": "d"},
                CursorUse::More(77),
                doc! {"getMore": 1_000_077_i64, "collection": "c", "$db": "d"},
            ),
            (
                doc! {"getMore": 7700_i64, "collection": "c", "$db": "d"},
                CursorUse::More(7700),
                doc! {"getMore": 7700_i64, "collection": "c", "$db": "d"},
            ),
            (
                doc! {"killCursors": "c", "cursors": [5_i64, 6_i64, 7700_i64], "$db": "d"},
                CursorUse::Kill(vec![6, 7700]),
                doc! {"killCursors": "c", "cursors": [1_000_006_i64], "$db": "d"},
            ),
            (
                doc! {"aggregate": "c", "pipeline": [{"$changeStream": {"fullDocument": "updateLookup",
                "resumeAfter": {"_data": "x"}, "startAfter": {"_data": "y"}, "startAtOperationTime": now}},
                {"$match": {"resumeAfter": 1}}], "cursor": {}, "$db": "d"},
                CursorUse::Open,
                doc! {"aggregate": "c", "pipeline": [{"$changeStream": {"fullDocument": "updateLookup"}},
                {"$match": {"resumeAfter": 1}}], "cursor": {}, "$db": "d"},
            ),
        ];
        for (captured, cursors, expected) in cases {
            assert_eq!(rewritten(&captured, &cursors), expected);
        }
    }

    #[test]
    fn transaction_numbers_of_writes_are_removed_for_a_target_without_retryable_writes() {
        let standalone = Rewriter {
            has_retryable_writes: false,
            ..REWRITER
        };
        let insert = doc! {"insert": "c", "txnNumber": 3_i64, "$db": "d"};
        let message = encode_request(7, &insert.to_vec().unwrap());
        let body = body_of(&rewritten_by(standalone, &message, &CursorUse::Open));
        assert_eq!(body, doc! {"insert": "c", "$db": "d"});
        assert_eq!(rewritten(&insert, &CursorUse::Open), insert);
    }

    /// A new lsid has only the field `id`. The field `uid`, which identifies the user, is omitted.
    #[test]
    fn equal_captured_lsids_are_replaced_by_equal_new_lsids() {
        let mut find = doc! {"find": "c", "lsid": lsid([4; 16]), "$db": "d"};
        let once = rewritten(&find, &CursorUse::Open);
        assert_eq!(once, rewritten(&find, &CursorUse::Open));
        assert_ne!(once, find);
        let with_user = find.get_document_mut("lsid").unwrap();
        with_user.insert("uid", Bson::Null);
        assert_eq!(rewritten(&find, &CursorUse::Open), once);
    }

    #[test]
    fn checksums_and_exhaust_flags_are_removed_and_document_sequences_are_kept() {
        let one = doc! {"_id": 1}.to_vec().unwrap();
        let mut message = encode_request(7, &doc! {"insert": "c", "$db": "d"}.to_vec().unwrap());
        message.push(1);
        let size = 4 + 10 + 2 * one.len();
        message.extend(i32::try_from(size).unwrap().to_le_bytes());
        message.extend(b"documents\0");
        message.extend(one.repeat(2));
        let flags = CHECKSUM_PRESENT | EXHAUST_ALLOWED;
        message[16..20].copy_from_slice(&flags.to_le_bytes());
        let length = i32::try_from(message.len() + 4).unwrap();
        message[..4].copy_from_slice(&length.to_le_bytes());
        message.extend(checksum([&message[..]]).to_le_bytes());
        let output = rewritten_by(REWRITER, &message, &CursorUse::Open);
        let parsed = op_msg(&output).unwrap();
        assert_eq!(parsed.flags, 0);
        let sequences: Vec<_> = parsed.sequences().collect();
        assert_eq!(sequences.len(), 1);
        assert_eq!(sequences[0].identifier, b"documents");
        assert_eq!(sequences[0].documents, one.repeat(2));
        let header = Header::parse(output.first_chunk().unwrap(), 1000).unwrap();
        assert_eq!((header.request_id, header.response_to), (42, 0));
    }

    proptest! {
        #[test]
        fn different_captured_sessions_become_different_sessions(a: [u8; 16], b: [u8; 16], key: [u8; 16]) {
            let key = SessionKey::new(key);
            prop_assert_eq!(a == b, key.session(a) == key.session(b));
        }

        /// Damaged messages give an error or a valid message, never a panic.
        #[test]
        fn rewriting_a_damaged_message_gives_an_error_or_a_valid_message(at in 16_usize..400, value: u8, cursor: bool) {
            let command = doc! {"getMore": 77_i64, "lsid": lsid([1; 16]), "readConcern": {"level": "local"},
                "pipeline": [{"$changeStream": {"resumeAfter": {"_data": "x"}}}], "cursors": [1_i64, 2_i64], "$db": "d"};
            let mut message = encode_request(7, &command.to_vec().unwrap());
            let at = 16 + at % (message.len() - 16);
            message[at] = value;
            let cursors = if cursor { CursorUse::More(77) } else { CursorUse::Kill(vec![1]) };
            if let Ok(output) = REWRITER.rewrite(&message, 1, &cursors, Some) {
                let parsed = op_msg(&output).expect("a valid message");
                prop_assert!(Command::inspect(parsed.body).is_ok());
                prop_assert!(output.len() <= message.len());
            }
        }

        /// A message needs no change if it has no session id, no cursor id, and nothing that must
        /// be removed.
        #[test]
        fn commands_that_need_no_change_are_copied(values in proptest::collection::vec(any::<i64>(), 0..20), text: String) {
            let command = doc! {"find": "c", "filter": {"a": {"$in": values}, "b": text}, "$db": "d"};
            let message = encode_request(42, &command.to_vec().unwrap());
            prop_assert_eq!(rewritten_by(REWRITER, &message, &CursorUse::Open), message);
        }
    }
}
