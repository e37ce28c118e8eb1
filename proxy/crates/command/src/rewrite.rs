//! Conceals state-change errors in replies, as a mongos does.
//!
//! A member's "not primary" error is about that member, not about Seawall. A driver that received
//! this error from Seawall would mark Seawall as unavailable and clear its pool of connections to
//! Seawall. So Seawall replaces a state-change code by 6 `HostUnreachable`: at the root, in
//! `writeErrors` and in `writeConcernError`. Error labels are kept, and `topologyVersion` is
//! removed. Old drivers search the error text for words such as "not master", so a neutral text
//! replaces it.

use super::error_reply::{HOST_UNREACHABLE, is_state_change};
use seawall_wire::kind::{ARRAY, DOCUMENT, INT32, STRING};
use seawall_wire::{Elements, RawElement, document_at, reserve_length, set_length, string_value};

const NEUTRAL_TEXT: &str =
    "the server changed its state (for example, stepped down); retry the operation if that is safe";

/// The reply with its state-change errors concealed; `None` if the reply has no such errors or is
/// not BSON. All other fields except `topologyVersion` are copied unchanged, even if a text is not
/// UTF-8 or a field name occurs twice.
pub fn conceal_state_change(reply: &[u8]) -> Option<Vec<u8>> {
    let mut concealed = Concealed {
        bytes: Vec::with_capacity(reply.len()),
        is_changed: false,
    };
    concealed.write_reply(reply)?;
    concealed.is_changed.then_some(concealed.bytes)
}

/// A copy of a reply without state-change errors. Its methods return `None` if the reply is not
/// BSON.
struct Concealed {
    bytes: Vec<u8>,
    /// True if the reply has a state-change error.
    is_changed: bool,
}

impl Concealed {
    fn write_reply(&mut self, reply: &[u8]) -> Option<()> {
        self.write_error(reply, |copy, element| match (element.name, element.kind) {
            (b"topologyVersion", _) => Some(()),
            (b"writeConcernError", DOCUMENT) => {
                element.write_name(&mut copy.bytes);
                copy.write_error(element.value, Self::write)
            }
            (b"writeErrors", ARRAY) => {
                element.write_name(&mut copy.bytes);
                copy.write_document(element.value, |copy, error| match error.kind {
                    DOCUMENT => {
                        error.write_name(&mut copy.bytes);
                        copy.write_error(error.value, Self::write)
                    }
                    _ => copy.write(error),
                })
            }
            _ => copy.write(element),
        })
    }

    /// Writes a document that may report an error. If the error is a state change, this function
    /// replaces `code`, `codeName` and `errmsg`. `write` writes all other elements.
    fn write_error(
        &mut self,
        error: &[u8],
        mut write: impl FnMut(&mut Self, RawElement<'_>) -> Option<()>,
    ) -> Option<()> {
        if !code(error).is_some_and(is_state_change) {
            return self.write_document(error, write);
        }
        self.is_changed = true;
        let code = HOST_UNREACHABLE.to_le_bytes();
        let name = string_value(b"HostUnreachable");
        let text = string_value(NEUTRAL_TEXT.as_bytes());
        self.write_document(error, |copy, element| {
            let (kind, value) = match element.name {
                b"code" => (INT32, code.as_slice()),
                b"codeName" => (STRING, name.as_slice()),
                b"errmsg" => (STRING, text.as_slice()),
                _ => return write(copy, element),
            };
            copy.write(RawElement::new(kind, element.name, value))
        })
    }

    /// Writes a document; `write` writes each element.
    fn write_document(
        &mut self,
        document: &[u8],
        mut write: impl FnMut(&mut Self, RawElement<'_>) -> Option<()>,
    ) -> Option<()> {
        let start = reserve_length(&mut self.bytes);
        for element in RawElement::all(document_at(document).ok()?) {
            write(self, element.ok()?)?;
        }
        self.bytes.push(0);
        set_length(&mut self.bytes, start);
        Some(())
    }

    fn write(&mut self, element: RawElement<'_>) -> Option<()> {
        element.write(&mut self.bytes);
        Some(())
    }
}

/// Reads a code of any numeric type: servers send an int32, but the protocol does not guarantee
/// this.
fn code(error: &[u8]) -> Option<i32> {
    let code = Elements::find(error, "code")?.value.as_i64()?;
    i32::try_from(code).ok()
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, doc};

    use super::*;

    fn rewritten(reply: &Document) -> Option<Document> {
        let bytes = conceal_state_change(&reply.to_vec().unwrap())?;
        Some(Document::from_reader(&bytes[..]).unwrap())
    }

    /// A state-change code, such as 10107 `NotWritablePrimary`, is about one server. A driver that
    /// received this code would clear its connection pool to Seawall, so Seawall replaces the code.
    #[test]
    fn a_state_change_code_at_the_root_becomes_host_unreachable_and_error_labels_are_kept() {
        let reply = doc! {
            "errorLabels": ["RetryableWriteError"], "topologyVersion": {"counter": 6i64}, "ok": 0.0,
            "errmsg": "not primary", "code": 10107, "codeName": "NotWritablePrimary",
        };
        let rewritten = rewritten(&reply).unwrap();
        assert_eq!(rewritten.get_i32("code").unwrap(), 6);
        assert_eq!(rewritten.get_str("codeName").unwrap(), "HostUnreachable");
        assert!(!rewritten.contains_key("topologyVersion"));
        assert!(rewritten.contains_key("errorLabels"));
        let text = rewritten.get_str("errmsg").unwrap();
        assert!(!text.contains("not primary") && !text.contains("not master"));
        assert!(!text.contains("node is recovering"));
    }

    /// A state-change code, such as 91 `ShutdownInProgress`, says that a server changed its state.
    #[test]
    fn a_state_change_code_of_any_numeric_type_becomes_host_unreachable() {
        for code in [Bson::Int32(91), Bson::Int64(91), Bson::Double(91.0)] {
            let rewritten = rewritten(&doc! {"ok": 0.0, "code": code}).unwrap();
            assert_eq!(rewritten.get_i32("code").unwrap(), 6);
        }
        let other = doc! {"ok": 0.0, "code": i64::MAX}.to_vec().unwrap();
        assert_eq!(conceal_state_change(&other), None);
    }

    /// Seawall replaces state-change codes, such as 91 `ShutdownInProgress`, and keeps other codes.
    #[test]
    fn state_change_codes_in_write_errors_and_write_concern_errors_become_host_unreachable() {
        let reply = doc! {
            "n": 1, "ok": 1.0, "writeErrors": [{"index": 0, "code": 11602, "errmsg": "x"}, {"code": 11000}],
            "writeConcernError": {"code": 91, "errmsg": "y"},
        };
        let rewritten = rewritten(&reply).unwrap();
        let errors = rewritten.get_array("writeErrors").unwrap();
        assert_eq!(errors[0].as_document().unwrap().get_i32("code").unwrap(), 6);
        assert_eq!(
            errors[1].as_document().unwrap().get_i32("code").unwrap(),
            11000
        );
        assert_eq!(
            rewritten
                .get_document("writeConcernError")
                .unwrap()
                .get_i32("code")
                .unwrap(),
            6
        );
        assert_eq!(
            conceal_state_change(&doc! {"ok": 0.0, "code": 26}.to_vec().unwrap()),
            None
        );
        assert_eq!(conceal_state_change(b"not bson"), None);
    }

    /// Servers do not check if strings are UTF-8 or names are unique. So the document that a
    /// `findAndModify` returns beside a `writeConcernError` may have strings that are not UTF-8,
    /// and repeated names.
    #[test]
    fn concealing_a_state_change_code_keeps_the_document_beside_it_as_the_server_sent_it() {
        let reply = doc! {
            "value": {"name": "ab", "nam_": 1}, "writeConcernError": {"code": 91, "errmsg": "x"},
        };
        let mut reply = reply.to_vec().unwrap();
        for (from, to) in [(b"ab\0", b"\xff\xff\0"), (b"am_", b"ame")] {
            let at = reply.windows(3).position(|bytes| bytes == from).unwrap();
            reply[at..at + 3].copy_from_slice(to);
        }
        let concealed = conceal_state_change(&reply).unwrap();
        let field = |reply, name| Elements::find(reply, name).unwrap().value;
        assert_eq!(field(&concealed, "value"), field(&reply, "value"));
        let error = field(&concealed, "writeConcernError");
        assert_eq!(code(error.as_document().unwrap()), Some(6));
    }
}
