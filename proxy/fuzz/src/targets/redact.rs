//! Redaction of commands, replies and documents. Some bodies consist of arbitrary bytes, others are
//! commands that the grammar in [`documents`] generates.
//!
//! Input, in this order:
//!
//! - one byte that selects the redaction mode, and whether the grammar generates the body;
//! - one length byte, then that many bytes, which select changes to the body;
//! - the body of a message, or bytes that select a command from the grammar.

use bson::{Bson, Document};
use seawall_command::{CommandBytes, ReplyForm};
use seawall_redact::{Mode, Redactor};
use seawall_shape::describe;
use seawall_wire::{OpMsg, encode_request};

use crate::{choices::Choices, documents};

/// Checks that a redacted command is valid, and keeps its field names, its embedded documents and
/// arrays, and its shape (the command without its values). Checks that no string value of a command
/// from the grammar remains. Checks that a redacted reply or document is valid.
pub fn redact(data: &[u8]) {
    let mut choices = Choices::new(data);
    let kind = choices.byte();
    let mode = match kind % 2 {
        0 => Mode::Equality,
        _ => Mode::Ordered,
    };
    let redactor = Redactor::new(b"0123456789abcdef0123456789abcdef", mode);
    let mut alterations = Choices::new(choices.short());
    let rest = choices.rest();
    if kind & 2 == 0 {
        let body = documents::encode(&documents::command(rest, 0, false));
        let redacted = check_command(&redactor, &body).expect("the command is valid");
        check_planted(&redacted);
        return;
    }
    check_any(&redactor, mode, rest);
    let repaired = documents::repaired(rest);
    check_any(&redactor, mode, &repaired);
    if let Some(altered) = documents::altered(&repaired, &mut alterations) {
        check_any(&redactor, mode, &altered);
    }
}

fn check_any(redactor: &Redactor, mode: Mode, body: &[u8]) {
    check_command(redactor, body);
    for form in [ReplyForm::Plain, ReplyForm::BulkWrite] {
        if let Ok(redacted) = redactor.reply(form, &encode_request(1, body)) {
            let redacted = OpMsg::parse(&redacted).expect("a redacted reply is valid");
            assert!(redacted.body.len() <= body.len() || mode == Mode::Ordered);
        }
    }
    if let Ok(redacted) = redactor.document(body) {
        assert!(redacted.len() == body.len() || mode == Mode::Ordered);
        check_structure(body, &redacted);
        assert_eq!(redactor.document(body).as_ref(), Ok(&redacted));
    }
}

/// Redacts a command and checks the result. `None` if the redactor refuses the command.
fn check_command(redactor: &Redactor, body: &[u8]) -> Option<Vec<u8>> {
    let message = redactor.command(&encode_request(1, body)).ok()?;
    let redacted = OpMsg::parse(&message).expect("a redacted command is valid");
    check_structure(body, redacted.body);
    let shape = |body| describe(&CommandBytes::of_body(body));
    let (before, after) = (shape(body), shape(redacted.body));
    assert_eq!(before, after, "{}", readable(redacted.body));
    Some(redacted.body.to_vec())
}

/// Checks that the redacted document is valid if the original document is valid. Checks that both
/// have the same field names. Checks that each document in a top-level field keeps its field names,
/// and each array in a top-level field its length.
fn check_structure(original: &[u8], redacted: &[u8]) {
    let (Ok(one), Ok(other)) = (
        Document::from_reader(original),
        Document::from_reader(redacted),
    ) else {
        assert!(
            Document::from_reader(original).is_err(),
            "the original document is valid, but the redacted document is not"
        );
        return;
    };
    assert!(one.keys().eq(other.keys()), "{one} {other}");
    for (one, other) in one.values().zip(other.values()) {
        let is_same = match (one, other) {
            (Bson::Document(one), Bson::Document(other)) => one.keys().eq(other.keys()),
            (Bson::Array(one), Bson::Array(other)) => one.len() == other.len(),
            (Bson::Document(_) | Bson::Array(_), _) => false,
            (_, Bson::Document(_) | Bson::Array(_)) => false,
            _ => true,
        };
        assert!(is_same, "{one} {other}");
    }
}

/// Checks that no value contains [`documents::planted`], the text in each string value before the
/// redaction. Paths such as `$field` are not redacted, so they may contain the text.
fn check_planted(body: &[u8]) {
    let document = Document::from_reader(body).expect("the redacted command is valid");
    document.values().for_each(check_value);
}

fn check_value(value: &Bson) {
    let planted = documents::planted();
    let text = match value {
        Bson::Document(document) => return document.values().for_each(check_value),
        Bson::Array(items) => return items.iter().for_each(check_value),
        Bson::String(text) | Bson::Symbol(text) | Bson::JavaScriptCode(text) => text,
        Bson::RegularExpression(regex) => regex.pattern.as_str(),
        Bson::Binary(binary) => {
            let bytes = planted.as_bytes();
            assert!(!binary.bytes.windows(bytes.len()).any(|part| part == bytes));
            return;
        }
        _ => return,
    };
    // A string that begins with `$` is a path in an expression. Paths count as names and are not
    // redacted, so the string may contain `planted`.
    assert!(text.starts_with('$') || !text.contains(planted), "{text}");
}

fn readable(body: &[u8]) -> String {
    Document::from_reader(body).map_or_else(|_| String::new(), |document| document.to_string())
}
