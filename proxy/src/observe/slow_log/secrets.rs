//! Finds commands whose values may be secrets. The log never contains these values, whatever the
//! configuration says.

use bson::raw::{RawBsonRef, RawDocument};

use seawall_command::CommandBytes;
use seawall_command::table::{self, CommandSpec, Syntax};

/// The database in which servers store users with their keys, and into which restore tools write
/// them.
const USERS_DATABASE: &str = "admin";

/// The field that lists the namespaces of a `bulkWrite`.
const NAMESPACES: &str = "nsInfo";

/// True if the log may contain the command's values. Values of unknown commands are hidden: a
/// server may know the command, or the client may have misspelled `createUser`.
pub(super) fn may_be_shown(command: &CommandBytes<'_>) -> bool {
    let Some((mut spec, mut target)) = named(command.body) else {
        return false;
    };
    if let (Syntax::Explain, RawBsonRef::Document(inner)) = (spec.syntax, target) {
        // The value is the explained command. An explained `bulkWrite` has its namespaces at a
        // depth that the check below does not reach, so its values are hidden.
        match named(inner.as_bytes()) {
            Some(inner) if inner.0.syntax != Syntax::BulkWrite => (spec, target) = inner,
            _ => return false,
        }
    }
    let is_harmless = spec.syntax != Syntax::Explain && !spec.is_secret;
    is_harmless && !may_be_of_users(command, spec.syntax, target)
}

/// The row of a command in the table of commands, and the value of the command's first field.
fn named(command: &[u8]) -> Option<(&'static CommandSpec, RawBsonRef<'_>)> {
    let (name, value) = RawDocument::from_bytes(command).ok()?.iter().next()?.ok()?;
    Some((table::find(name.as_str().as_bytes()), value))
}

/// True if the command may read or write users' keys.
fn may_be_of_users(command: &CommandBytes<'_>, syntax: Syntax, target: RawBsonRef<'_>) -> bool {
    let Ok(body) = RawDocument::from_bytes(command.body) else {
        return true;
    };
    // An unreadable `$db` may name any database.
    let is_there = match body.get("$db") {
        Ok(Some(RawBsonRef::String(db))) => db == USERS_DATABASE,
        Ok(None) => false,
        Ok(Some(_)) | Err(_) => true,
    };
    match syntax {
        Syntax::BulkWrite => {
            // Each write of a `bulkWrite` may go to any of its namespaces.
            let sequences = command.sequences.iter();
            let named = sequences.filter(|sequence| sequence.identifier == NAMESPACES.as_bytes());
            let mut in_sequences = named.map(|sequence| sequence.documents);
            let prefix = format!("{USERS_DATABASE}.");
            in_sequences.any(|documents| contains(documents, &prefix))
                || field_contains(body, NAMESPACES, &prefix)
        }
        // `$merge` and `$out` may write to any database.
        Syntax::Aggregate => {
            let has = |text| field_contains(body, "pipeline", text);
            is_there || ((has("$merge") || has("$out")) && has(USERS_DATABASE))
        }
        _ => is_there && matches!(target, RawBsonRef::String(_)),
    }
}

/// True if the array contains the text at any depth, or cannot be read.
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
