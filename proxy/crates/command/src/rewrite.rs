//! Conceals state-change errors in replies, as a mongos does.
//!
//! A member's "not primary" error is about that member, not about Seawall. A driver that received
//! this error from Seawall would mark Seawall as unavailable and clear its pool of connections to
//! Seawall. So Seawall replaces a state-change code by 6 `HostUnreachable`: at the root, in
//! `writeErrors` and in `writeConcernError`. Error labels are kept, and `topologyVersion` is
//! removed. Old drivers search the error text for words such as "not master", so a neutral text
//! replaces it.

use bson::{Bson, Document};

use super::error_reply::{HOST_UNREACHABLE, is_state_change};
use seawall_wire::double_to_i64;

const NEUTRAL_TEXT: &str =
    "the server changed its state (for example, stepped down); retry the operation if that is safe";

/// The reply with its state-change errors concealed; `None` if the reply has no such errors or is
/// not BSON.
pub fn conceal_state_change(reply: &[u8]) -> Option<Vec<u8>> {
    let mut document = Document::from_reader(reply).ok()?;
    let mut is_changed = conceal(&mut document);
    if let Ok(error) = document.get_document_mut("writeConcernError") {
        is_changed |= conceal(error);
    }
    if let Ok(errors) = document.get_array_mut("writeErrors") {
        for error in errors.iter_mut().filter_map(Bson::as_document_mut) {
            is_changed |= conceal(error);
        }
    }
    if !is_changed {
        return None;
    }
    document.remove("topologyVersion");
    document.to_vec().ok()
}

fn conceal(error: &mut Document) -> bool {
    if !error
        .get("code")
        .and_then(integer)
        .is_some_and(is_state_change)
    {
        return false;
    }
    error.insert("code", HOST_UNREACHABLE);
    if error.contains_key("codeName") {
        error.insert("codeName", "HostUnreachable");
    }
    if error.contains_key("errmsg") {
        error.insert("errmsg", NEUTRAL_TEXT);
    }
    true
}

/// Reads a code of any numeric type: servers send an int32, but the protocol does not guarantee
/// this.
fn integer(code: &Bson) -> Option<i32> {
    match code {
        Bson::Int32(code) => Some(*code),
        Bson::Int64(code) => i32::try_from(*code).ok(),
        Bson::Double(code) => double_to_i64(*code).and_then(|code| i32::try_from(code).ok()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

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
}
