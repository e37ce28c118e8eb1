//! Finds commands that may contain secrets, or whose replies may contain secrets. With any
//! configuration, the slow log and captures never contain the values of such a command or reply.
//! The slow log also never contains the values of commands of Queryable Encryption. The replies to
//! these commands contain only encrypted values, so they are not secret. Captures contain the
//! commands, because a replay needs them.

use bson::raw::{RawBsonRef, RawDocument};
use memchr::memmem;

use crate::{
    CommandBytes,
    table::{self, CommandSpec, Syntax},
};

/// The database in which servers store users with their keys, and into which restore tools write
/// users.
const USERS_DATABASE: &str = "admin";

/// The database of the oplog. Servers record every change to a user in the oplog.
const OPLOG_DATABASE: &str = "local";

/// The collection of the oplog.
const OPLOG: &str = "oplog.rs";

/// The collection in which the profiler of a database records commands. With some versions of
/// servers, these commands contain the passwords of new users.
const PROFILE: &str = "system.profile";

/// The field that lists the namespaces of a `bulkWrite`.
const NAMESPACES: &str = "nsInfo";

/// The field that drivers add to each command of Queryable Encryption. In a `bulkWrite`, it is in
/// the elements of [`NAMESPACES`].
const ENCRYPTION_INFORMATION: &str = "encryptionInformation";

/// True if the values of the command and of its reply cannot be secrets. Servers store users in the
/// database `admin`, and record changes to users in the oplog, in the database `local`. So replies
/// from these databases may contain keys of users. For these databases, the result is false for
/// `getMore`, `aggregate` and `explain`, and for each command whose first field may name a
/// collection. On any database, the result is also false for a command on the collection of the
/// profiler, and for an `aggregate` or `explain` that contains the name of the oplog or of the
/// profiler's collection, for example in a `$lookup`. A `getMore` on the cursor of such a `$lookup`
/// is not recognized: the result for it may be true.
pub fn exchange_may_be_shown(command: &CommandBytes<'_>) -> bool {
    let Some((spec, target)) = named(command.body) else {
        return false;
    };
    let reads_documents = match spec.syntax {
        Syntax::Explain | Syntax::BulkWrite | Syntax::Aggregate if !lacks_secrets(command) => {
            return false;
        }
        Syntax::Explain | Syntax::Aggregate | Syntax::GetMore
            if [OPLOG, PROFILE]
                .iter()
                .any(|name| contains(command.body, name)) =>
        {
            return false;
        }
        _ if names_collection(target, PROFILE) => return false,
        // A `getMore` names its collection in another field: its first field is the cursor's id.
        Syntax::GetMore | Syntax::Aggregate | Syntax::Explain => true,
        _ if spec.is_secret => return false,
        // The other commands need no call of `lacks_secrets`. It returns false only if `is_secret`
        // is true, or if the command is on `admin` and may name a collection. In both cases, the
        // result here is also false.
        _ => may_name_collection(target),
    };
    !reads_documents || !is_on(command.body, &[USERS_DATABASE, OPLOG_DATABASE])
}

/// True if a log may contain the command's values: they cannot be secrets, and the command is not
/// one of Queryable Encryption.
pub fn command_may_be_shown(command: &CommandBytes<'_>) -> bool {
    lacks_secrets(command) && !is_of_queryable_encryption(command)
}

/// True if the command is one of Queryable Encryption. The values in its documents and filters
/// contain tokens: keys with which a server finds encrypted values and removes the outer layer of
/// their encryption. For this reason, servers omit such commands from their logs. Also true if the
/// command cannot be read.
fn is_of_queryable_encryption(command: &CommandBytes<'_>) -> bool {
    let body = RawDocument::from_bytes(command.body);
    let (Ok(body), Some((spec, target))) = (body, named(command.body)) else {
        return true;
    };
    let has_field = |body: &RawDocument| !matches!(body.get(ENCRYPTION_INFORMATION), Ok(None));
    match (spec.syntax, target) {
        (Syntax::BulkWrite, _) => namespaces_contain(command, body, ENCRYPTION_INFORMATION),
        (Syntax::Explain, RawBsonRef::Document(explained)) => {
            has_field(explained) || has_field(body)
        }
        _ => has_field(body),
    }
}

/// True if the command's values cannot be secrets. The values of an unknown command may be secrets:
/// a server may know the command, or the client may have misspelled `createUser`.
fn lacks_secrets(command: &CommandBytes<'_>) -> bool {
    let Some((mut spec, mut target)) = named(command.body) else {
        return false;
    };
    let mut body = command.body;
    if let (Syntax::Explain, RawBsonRef::Document(inner)) = (spec.syntax, target) {
        // `target` is the explained command. The namespaces of an explained `bulkWrite` are not
        // checked, so its values are hidden.
        body = inner.as_bytes();
        match named(body) {
            Some(inner) if inner.0.syntax != Syntax::BulkWrite => (spec, target) = inner,
            _ => return false,
        }
    }
    let is_harmless = spec.syntax != Syntax::Explain && !spec.is_secret;
    is_harmless && !may_be_of_users(command, body, spec.syntax, target)
}

/// The row of a command in the table of commands, and the value of the command's first field.
fn named(command: &[u8]) -> Option<(&'static CommandSpec, RawBsonRef<'_>)> {
    let (name, value) = RawDocument::from_bytes(command).ok()?.iter().next()?.ok()?;
    Some((table::find(name.as_str().as_bytes()), value))
}

/// True if the command may read or write the SCRAM keys of users. `body` is the body of the command
/// or, if the command is an `explain`, the explained command. `syntax` and `target` belong to
/// `body`.
fn may_be_of_users(
    command: &CommandBytes<'_>,
    body: &[u8],
    syntax: Syntax,
    target: RawBsonRef<'_>,
) -> bool {
    let Ok(body) = RawDocument::from_bytes(body) else {
        return true;
    };
    let is_on_users = is_on(command.body, &[USERS_DATABASE]);
    match syntax {
        Syntax::BulkWrite => {
            // Each write of a `bulkWrite` may go to any of its namespaces.
            namespaces_contain(command, body, &format!("{USERS_DATABASE}."))
        }
        // `$merge` and `$out` may write to any database.
        Syntax::Aggregate => {
            let has = |text| field_contains(body, "pipeline", text);
            is_on_users || ((has("$merge") || has("$out")) && has(USERS_DATABASE))
        }
        _ => is_on_users && may_name_collection(target),
    }
}

/// True if the value of a command's first field may name a collection: by its name, which may also
/// be a BSON symbol, or by its UUID. Other values, such as numbers, name no collection.
fn may_name_collection(target: RawBsonRef<'_>) -> bool {
    !matches!(
        target,
        RawBsonRef::Double(_)
            | RawBsonRef::Int32(_)
            | RawBsonRef::Int64(_)
            | RawBsonRef::Decimal128(_)
            | RawBsonRef::Boolean(_)
            | RawBsonRef::Null
            | RawBsonRef::Document(_)
            | RawBsonRef::Array(_)
    )
}

/// True if the value of a command's first field is the name `collection`.
fn names_collection(target: RawBsonRef<'_>, collection: &str) -> bool {
    match target {
        RawBsonRef::String(name) | RawBsonRef::Symbol(name) => name == collection,
        _ => false,
    }
}

/// True if the command's `$db` is one of these databases. Also true if `$db` cannot be read,
/// because it may name any database.
fn is_on(body: &[u8], databases: &[&str]) -> bool {
    match RawDocument::from_bytes(body).map(|body| body.get("$db")) {
        Ok(Ok(Some(RawBsonRef::String(db)))) => databases.contains(&db),
        Ok(Ok(None)) => false,
        Ok(Ok(Some(_)) | Err(_)) | Err(_) => true,
    }
}

/// True if the list of namespaces of a `bulkWrite` contains `text` at any depth. `body` is the body
/// of the command.
fn namespaces_contain(command: &CommandBytes<'_>, body: &RawDocument, text: &str) -> bool {
    let sequences = command.sequences.iter();
    let mut lists = sequences.filter(|sequence| sequence.identifier == NAMESPACES.as_bytes());
    lists.any(|list| contains(list.documents, text)) || field_contains(body, NAMESPACES, text)
}

/// True if the field `name` is an array that contains `text` at any depth. Also true if the field
/// has another type or cannot be read. False if there is no such field.
fn field_contains(body: &RawDocument, name: &str, text: &str) -> bool {
    match body.get(name) {
        Ok(Some(RawBsonRef::Array(array))) => contains(array.as_bytes(), text),
        Ok(Some(_)) | Err(_) => true,
        Ok(None) => false,
    }
}

fn contains(bytes: &[u8], text: &str) -> bool {
    memmem::find(bytes, text.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, Uuid, doc};
    use seawall_wire::Sequence;

    use super::*;

    /// The results of `command_may_be_shown` and `exchange_may_be_shown`.
    fn is_shown(command: &Document) -> (bool, bool) {
        let body = command.to_vec().unwrap();
        let command = CommandBytes::of_body(&body);
        (
            command_may_be_shown(&command),
            exchange_may_be_shown(&command),
        )
    }

    /// A command on the database `admin` may name its collection by a UUID, which may be the UUID
    /// of `admin.system.users`. The oplog records changes to users. So the slow log and captures
    /// hide the values.
    #[test]
    fn values_are_hidden_in_admin_commands_with_a_collection_uuid_and_in_replies_from_the_oplog() {
        for (command, expected) in [
            (
                doc! {"find": Uuid::from_bytes([7; 16]), "$db": "admin"},
                (false, false),
            ),
            (
                doc! {"distinct": Uuid::from_bytes([7; 16]), "key": "credentials", "$db": "admin"},
                (false, false),
            ),
            (
                doc! {
                    "aggregate": "orders", "$db": "shop",
                    "pipeline": [{"$lookup": {
                        "from": {"db": "local", "coll": "oplog.rs"}, "pipeline": [], "as": "x",
                    }}],
                },
                (true, false),
            ),
        ] {
            assert_eq!(is_shown(&command), expected, "{command}");
        }
    }

    /// The profiler records commands, and `currentOp` shows those in progress. These commands may
    /// contain passwords.
    #[test]
    fn replies_with_commands_of_other_clients_are_secret() {
        let lookup = doc! {"$lookup": {"from": "system.profile", "pipeline": [], "as": "x"}};
        for (command, expected) in [
            (doc! {"currentOp": 1, "$db": "admin"}, (false, false)),
            (doc! {"find": "system.profile"}, (true, false)),
            (
                doc! {"find": Bson::Symbol("system.profile".to_owned())},
                (true, false),
            ),
            (
                doc! {"distinct": "system.profile", "key": "command"},
                (true, false),
            ),
            (
                doc! {"getMore": 7_i64, "collection": "system.profile"},
                (true, false),
            ),
            (
                doc! {"aggregate": "system.profile", "pipeline": []},
                (true, false),
            ),
            (
                doc! {"aggregate": "orders", "pipeline": [lookup]},
                (true, false),
            ),
            (doc! {"explain": {"find": "system.profile"}}, (true, false)),
            (doc! {"find": "system.profiles"}, (true, true)),
        ] {
            let mut command = command;
            if !command.contains_key("$db") {
                command.insert("$db", "shop");
            }
            assert_eq!(is_shown(&command), expected, "{command}");
        }
    }

    /// Servers accept a symbol as the name of a collection.
    #[test]
    fn a_collection_of_the_users_database_may_be_named_by_a_symbol() {
        let symbol = || Bson::Symbol("tempusers".to_owned());
        for command in [
            doc! {"find": symbol(), "$db": "admin"},
            doc! {"insert": symbol(), "documents": [], "$db": "admin"},
        ] {
            assert_eq!(is_shown(&command), (false, false), "{command}");
        }
        let oplog = doc! {"find": Bson::Symbol("oplog.rs".to_owned()), "$db": "local"};
        assert_eq!(is_shown(&oplog), (true, false));
    }

    /// A replay of a capture needs the commands of Queryable Encryption.
    #[test]
    fn commands_of_queryable_encryption_are_shown_in_captures_but_not_in_logs() {
        let of = |mut command: Document| {
            command.insert("encryptionInformation", doc! {"type": 1, "schema": {}});
            command
        };
        let find = || of(doc! {"find": "people", "filter": {"ssn": "token"}});
        let bulk = |namespace: Document| doc! {"bulkWrite": 1, "ops": [], "nsInfo": [namespace]};
        for (mut command, expected) in [
            (find(), (false, true)),
            (
                of(doc! {"insert": "people", "documents": []}),
                (false, true),
            ),
            (
                of(doc! {"aggregate": "people", "pipeline": []}),
                (false, true),
            ),
            (doc! {"explain": find()}, (false, true)),
            (of(doc! {"explain": {"find": "people"}}), (false, true)),
            (bulk(of(doc! {"ns": "shop.people"})), (false, true)),
            (bulk(doc! {"ns": "shop.people"}), (true, true)),
            (doc! {"find": "encryptionInformation"}, (true, true)),
        ] {
            command.insert("$db", "shop");
            assert_eq!(is_shown(&command), expected, "{command}");
        }
        // Drivers send the list of namespaces as a document sequence.
        let body = doc! {"bulkWrite": 1, "$db": "admin"}.to_vec().unwrap();
        let list = of(doc! {"ns": "shop.people"}).to_vec().unwrap();
        let sequences = [Sequence {
            identifier: NAMESPACES.as_bytes(),
            documents: &list,
        }];
        let command = CommandBytes {
            body: &body,
            sequences: &sequences,
        };
        assert!(!command_may_be_shown(&command) && exchange_may_be_shown(&command));
    }

    #[test]
    fn an_explained_pipeline_that_writes_to_the_database_of_users_is_secret() {
        for (db, expected) in [("admin", (false, false)), ("shop", (true, true))] {
            let copy = doc! {"$merge": {"into": {"db": db, "coll": "tempusers"}}};
            let explained = doc! {"aggregate": "copies", "pipeline": [copy]};
            let command = doc! {"explain": explained, "$db": "shop"};
            assert_eq!(is_shown(&command), expected, "{command}");
        }
    }

    /// An exchange is a command and its reply.
    #[test]
    fn an_exchange_is_secret_if_its_command_or_its_reply_may_have_keys_or_passwords() {
        for (command, expected) in [
            (doc! {"find": "orders", "$db": "shop"}, (true, true)),
            (
                doc! {"getMore": 7_i64, "collection": "orders", "$db": "shop"},
                (true, true),
            ),
            (doc! {"ping": 1, "$db": "admin"}, (true, true)),
            (doc! {"listDatabases": 1, "$db": "admin"}, (true, true)),
            (
                doc! {"killCursors": "orders", "cursors": [7_i64], "$db": "shop"},
                (true, true),
            ),
            (doc! {"commitTransaction": 1, "$db": "admin"}, (true, true)),
            (doc! {"endSessions": [], "$db": "admin"}, (true, true)),
            // The replies may contain keys of users.
            (doc! {"usersInfo": 1, "$db": "shop"}, (false, false)),
            (
                doc! {"find": "system.users", "$db": "admin"},
                (false, false),
            ),
            (
                doc! {"getMore": 7_i64, "collection": "system.users", "$db": "admin"},
                (true, false),
            ),
            (doc! {"find": "oplog.rs", "$db": "local"}, (true, false)),
            (
                doc! {"getMore": 7_i64, "collection": "oplog.rs", "$db": "local"},
                (true, false),
            ),
            (
                doc! {"explain": {"find": "oplog.rs"}, "verbosity": "queryPlanner", "$db": "local"},
                (true, false),
            ),
            // Passwords are in the commands.
            (
                doc! {"createUser": "u", "pwd": "p", "roles": [], "$db": "shop"},
                (false, false),
            ),
            (
                doc! {"updateUser": "u", "pwd": "p", "$db": "shop"},
                (false, false),
            ),
            (
                doc! {"createuser": "u", "pwd": "p", "$db": "shop"},
                (false, false),
            ),
            (
                doc! {"saslStart": 1, "payload": "p", "$db": "admin"},
                (false, false),
            ),
        ] {
            assert_eq!(is_shown(&command), expected, "{command}");
        }
    }
}
