//! Commands whose values are secrets: they are written nowhere, whatever the configuration says.

use bson::raw::{RawBsonRef, RawDocument};

use crate::shape::{Input, canonical_name};

const EXPLAIN: &str = "explain";
const BULK_WRITE: &str = "bulkWrite";

/// Where servers keep users with their keys, and where restoring tools put them back.
const USERS_DATABASE: &str = "admin";

/// What a `bulkWrite` writes to.
const NAMESPACES: &str = "nsInfo";

/// Whether a command's values may be written at all. Those of what is not known may be anything: a server may know it, or
/// the client meant `createUser`.
pub(super) fn may_be_shown(command: &Input<'_>) -> bool {
    let Some((mut name, mut target)) = named(command.body) else {
        return false;
    };
    if let (EXPLAIN, RawBsonRef::Document(inner)) = (name, target) {
        // What is asked about stands in it; where a bulk would write is then further in than is looked.
        match named(inner.as_bytes()) {
            Some(inner) if inner.0 != BULK_WRITE => (name, target) = inner,
            _ => return false,
        }
    }
    let is_harmless = name != EXPLAIN && !SECRET_COMMANDS.contains(&name);
    is_harmless && !may_be_of_users(command, name, target)
}

/// The canonical name of a command, if it is known, and its first value.
fn named(command: &[u8]) -> Option<(&'static str, RawBsonRef<'_>)> {
    let (name, value) = RawDocument::from_bytes(command).ok()?.iter().next()?.ok()?;
    Some((canonical_name(name.as_str().as_bytes())?, value))
}

/// Whether it may write or read users' keys.
fn may_be_of_users(command: &Input<'_>, name: &str, target: RawBsonRef<'_>) -> bool {
    let Ok(body) = RawDocument::from_bytes(command.body) else {
        return true;
    };
    // What cannot be read may be anything.
    let is_there = match body.get("$db") {
        Ok(Some(RawBsonRef::String(db))) => db == USERS_DATABASE,
        Ok(None) => false,
        Ok(Some(_)) | Err(_) => true,
    };
    match name {
        BULK_WRITE => {
            // Any of its writes may be to any of its namespaces.
            let sequences = command.sequences.iter();
            let named = sequences.filter(|sequence| sequence.identifier == NAMESPACES.as_bytes());
            let mut in_sequences = named.map(|sequence| sequence.documents);
            let prefix = format!("{USERS_DATABASE}.");
            in_sequences.any(|documents| contains(documents, &prefix))
                || field_contains(body, NAMESPACES, &prefix)
        }
        // Its result may be written anywhere.
        "aggregate" => {
            let has = |text| field_contains(body, "pipeline", text);
            is_there || ((has("$merge") || has("$out")) && has(USERS_DATABASE))
        }
        _ => is_there && matches!(target, RawBsonRef::String(_)),
    }
}

/// Whether an array has some text somewhere, or is not to be read.
fn field_contains(body: &RawDocument, name: &str, text: &str) -> bool {
    match body.get(name) {
        Ok(Some(RawBsonRef::Array(array))) => contains(array.as_bytes(), text),
        Ok(Some(_)) | Err(_) => true,
        Ok(None) => false,
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    let mut parts = bytes.windows(text.len());
    parts.any(|part| part == text.as_bytes())
}

/// By their canonical names; a server's own log leaves their values out too.
pub(super) const SECRET_COMMANDS: [&str; 12] = [
    "authenticate",
    "copydb",
    "copydbgetnonce",
    "copydbsaslstart",
    "createUser",
    "getnonce",
    "hello",
    "isMaster",
    "saslContinue",
    "saslStart",
    "setParameter",
    "updateUser",
];
