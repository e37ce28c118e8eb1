//! Which commands a capture must not contain.

use seawall_command::{Command, table::CommandSpec};

/// True if a command, or its reply, has or may have a secret, so that neither may be written:
/// credentials, commands that the table of commands marks as secret, unknown commands, and commands
/// that name the collection with the stored keys of users.
pub fn is_secret(command: &Command<'_>) -> bool {
    is_secret_by_name(command.spec) || names_stored_keys(command.body)
}

/// True if the name alone says that a command, or its reply, has or may have a secret.
fn is_secret_by_name(spec: &CommandSpec) -> bool {
    // The reply to `usersInfo` may have the keys of users (`showCredentials`).
    spec.is_secret || spec.name == "usersInfo"
}

/// True if the body has the name of the collection anywhere: a stage such as `$lookup` may read the
/// collection too. A value with this text makes a command secret without need, which is harmless.
fn names_stored_keys(body: &[u8]) -> bool {
    body.windows(STORED_KEYS.len())
        .any(|window| window == STORED_KEYS)
}

/// The collection in which servers store the keys of users.
const STORED_KEYS: &[u8] = b"system.users";

#[cfg(test)]
mod tests {
    use super::*;
    use bson::{Document, doc};

    fn is_secret_document(command: &Document) -> bool {
        let body = command.to_vec().unwrap();
        is_secret(&Command::inspect(&body).unwrap())
    }

    #[test]
    fn commands_with_credentials_and_unknown_commands_are_secret() {
        for name in [
            "saslStart",
            "saslContinue",
            "authenticate",
            "createUser",
            "updateUser",
            "usersInfo",
            "setParameter",
            "applyOps",
            "no such command",
        ] {
            assert!(is_secret_document(&doc! { name: 1, "$db": "d" }), "{name}");
        }
        for name in ["find", "insert", "aggregate", "serverStatus", "ping"] {
            let command = doc! { name: "c", "$db": "admin" };
            assert!(!is_secret_document(&command), "{name}");
        }
    }

    #[test]
    fn reads_of_the_stored_keys_of_users_are_secret() {
        let lookup = doc! { "$lookup": { "from": "system.users", "as": "u", "pipeline": [] } };
        for command in [
            doc! { "find": "system.users", "$db": "admin" },
            doc! { "getMore": 7_i64, "collection": "system.users", "$db": "admin" },
            doc! { "aggregate": "c", "pipeline": [lookup], "$db": "admin" },
            doc! { "explain": { "find": "system.users" }, "$db": "admin" },
        ] {
            assert!(is_secret_document(&command), "{command}");
        }
    }
}
