//! A server's reply: the facts that [`ReplyScanner`] finds in it, and the rewriting of errors that
//! report a state change of the server (such as `NotWritablePrimary`).
//!
//! Input, in this order:
//!
//! - one byte for the form of the reply;
//! - one byte for the sizes of the pieces in which the scanner receives the document;
//! - one length byte, then that many bytes, which select changes to the document;
//! - the document.

use bson::{Bson, Document};
use seawall_command::{ErrorReply, ReplyFacts, ReplyForm, ReplyScanner, conceal_state_change};

use crate::{
    choices::{Choices, Pieces},
    documents,
};

/// Maximum length of the beginning of an element (type, name, fixed-size value) that
/// [`ReplyScanner`] keeps until the next piece arrives.
const MAX_HEAD_BYTES: usize = 96;

/// Checks that the scanner finds the same facts (such as `ok` and the error code) in the whole
/// document and in its pieces. Checks that the `bson` crate decodes the same values. Checks that
/// [`conceal_state_change`] leaves no error that reports a state change of the server, such as
/// `NotWritablePrimary`.
pub fn reply(data: &[u8]) {
    let mut choices = Choices::new(data);
    let form = match choices.byte() % 4 {
        0 => ReplyForm::Plain,
        1 => ReplyForm::Distinct,
        2 => ReplyForm::FindAndModify,
        _ => ReplyForm::BulkWrite,
    };
    let pieces = choices.byte();
    let mut alterations = Choices::new(choices.short());
    let document = choices.rest();
    check(form, document, pieces);
    let document = documents::repaired(document);
    check(form, &document, pieces);
    if let Some(document) = documents::altered(&document, &mut alterations) {
        check(form, &document, pieces);
    }
    check_own_error(&document, pieces);
}

fn check(form: ReplyForm, document: &[u8], pieces: u8) {
    let facts = ReplyFacts::of(form, document);
    check_pieces(form, document, &facts, pieces);
    check_against_bson(document, &facts);
    check_concealed(document);
}

fn check_pieces(form: ReplyForm, document: &[u8], facts: &ReplyFacts, pieces: u8) {
    let mut scanner = ReplyScanner::new(form);
    let pieces = Pieces::new(pieces).split(document);
    pieces.for_each(|piece| scanner.feed(piece));
    let split = scanner.facts();
    // A name over the scanner's limit can be read only if it arrives in one piece. If it arrives in
    // several pieces, the scanner gives up and sets `is_opaque`.
    let mut runs = document.split(|byte| *byte == 0);
    let is_long = runs.any(|run| run.len() > MAX_HEAD_BYTES - 16);
    assert!(
        split == facts || is_long && split.is_opaque,
        "in pieces: {split:?}, whole: {facts:?}"
    );
    assert!(facts.error_code().is_none() || facts.ok == Some(false));
    let errors = facts.write_error_codes.iter().map(|(_, count)| count);
    assert!(errors.sum::<u64>() <= u64::try_from(document.len()).unwrap_or(u64::MAX));
}

/// Compares the values that Seawall's scanner found in the reply (`facts`) with the top-level
/// fields that the `bson` crate decodes. Does nothing if a field name occurs twice.
fn check_against_bson(document: &[u8], facts: &ReplyFacts) {
    if !documents::check_walk(document) {
        return;
    }
    let Ok(decoded) = Document::from_reader(document) else {
        return;
    };
    let fields = seawall_wire::Elements::of(document).count();
    if fields != decoded.len() {
        return;
    }
    assert!(!facts.is_opaque, "{decoded}");
    let code = match decoded.get("code") {
        Some(Bson::Int32(code)) => Some(*code),
        Some(Bson::Int64(_) | Bson::Double(_) | Bson::Boolean(_)) => facts.code,
        _ => None,
    };
    assert_eq!(facts.code, code, "{decoded}");
    let ok = match decoded.get("ok") {
        Some(Bson::Int32(ok)) => Some(*ok != 0),
        Some(Bson::Int64(ok)) => Some(*ok != 0),
        Some(Bson::Double(ok)) => Some(*ok != 0.0),
        Some(Bson::Boolean(ok)) => Some(*ok),
        _ => None,
    };
    assert_eq!(facts.ok, ok, "{decoded}");
    assert_eq!(
        facts.write_concern_error,
        is_container(&decoded, "writeConcernError")
    );
}

fn is_container(document: &Document, name: &str) -> bool {
    matches!(document.get(name), Some(Bson::Document(_) | Bson::Array(_)))
}

fn check_concealed(document: &[u8]) {
    let Some(concealed) = conceal_state_change(document) else {
        return;
    };
    // All bytes except those of the errors are copied, also invalid ones.
    assert!(documents::check_walk(&concealed) || !documents::check_walk(document));
    let is_opaque = |reply| ReplyFacts::of(ReplyForm::Plain, reply).is_opaque;
    assert!(!is_opaque(&concealed) || is_opaque(document));
    assert!(
        conceal_state_change(&concealed).is_none(),
        "no state change remains"
    );
}

/// Checks that an error reply that Seawall builds is valid, and that [`ReplyFacts`] finds its error
/// code.
fn check_own_error(document: &[u8], code: u8) {
    let text = String::from_utf8_lossy(document);
    let labels = ["RetryableWriteError", "SystemOverloadedError"];
    let labels = labels.get(..usize::from(code % 3)).unwrap_or_default();
    let error = ErrorReply::new(i32::from(code), text).with_labels(labels);
    let built = error.to_document();
    let facts = ReplyFacts::of(ReplyForm::Plain, built.as_bytes());
    assert_eq!(facts.error_code(), Some(i32::from(code)));
    assert!(documents::check_walk(built.as_bytes()));
}
