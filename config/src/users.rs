//! The configured users, `[[auth.users]]`.
//!
//! A user has a password, a file with the password, or SCRAM keys. `section!` cannot express that
//! exactly one of the three is required, so this module reads the tables of users itself.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::PathBuf;

use toml::Value;

use crate::declare::keys;
use crate::kinds::{ITERATIONS, SALT};
use crate::problem::shown_text;
use crate::read::{Part, secret_from};
use crate::schema::{KeyKind, Section};
use crate::secret::{Secret, SecretBytes};

/// A user whose credentials are configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The login name.
    pub name: String,
    /// The database in which the user is defined.
    pub source: String,
    /// The credential with which Seawall verifies the user's logins.
    pub credential: UserCredential,
}

/// The credential of a configured user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserCredential {
    /// The password. The user can log in by every SCRAM mechanism.
    Password(Secret),
    /// Keys that were derived from the password, separately for each SCRAM mechanism.
    Keys(UserKeys),
}

/// The SCRAM keys of a user, for at least one mechanism.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserKeys {
    /// The keys for SCRAM-SHA-1.
    pub scram_sha_1: Option<ScramKeys<20>>,
    /// The keys for SCRAM-SHA-256.
    pub scram_sha_256: Option<ScramKeys<32>>,
}

/// The values that a server stores for one SCRAM mechanism of a user. The mechanism's hash has `N`
/// bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScramKeys<const N: usize> {
    /// The decoded salt, 1 to 64 bytes.
    pub salt: Vec<u8>,
    /// Number of rounds of PBKDF2, at least 4096.
    pub iterations: NonZeroU32,
    /// The StoredKey, which verifies a client's proof.
    pub stored_key: SecretBytes<N>,
    /// The ServerKey, which signs the server's last message.
    pub server_key: SecretBytes<N>,
}

pub(crate) const USER: Section = Section {
    path: "auth.users[]",
    about: "Users for credentials = \"users\", each with exactly one of password, password_file and \
            SCRAM keys.",
    is_optional: true,
    keys: keys! {
        /// The user's name; required in `[[auth.users]]`.
        key("auth.users[].name",
            KeyKind::Text, Live, example "app");
        /// The database in which the user is defined.
        key("auth.users[].source",
            KeyKind::Text, Live, default "admin");
        /// The user's password; a user needs exactly one of `password`, `password_file` and SCRAM
        /// keys.
        key("auth.users[].password",
            KeyKind::Secret, Live, example "…");
        /// File with the user's password.
        key("auth.users[].password_file",
            KeyKind::Path, Live, example "/run/secrets/app");
    },
};

pub(crate) const SCRAM_SHA_1: Section = Section {
    path: "auth.users[].scram_sha_1",
    about: "SCRAM keys instead of a password, as a server stores them (usersInfo with \
            showCredentials), in base64.",
    is_optional: true,
    keys: keys! {
        /// Salt of the user's SHA-1 keys.
        key("auth.users[].scram_sha_1.salt",
            SALT, Live, example "…");
        /// Rounds of PBKDF2 of the user's SHA-1 keys.
        key("auth.users[].scram_sha_1.iterations",
            ITERATIONS, Live, example 10000, unit "rounds");
        /// StoredKey of the user for SCRAM-SHA-1.
        key("auth.users[].scram_sha_1.stored_key",
            KeyKind::Base64 { min: 20, max: 20 }, Live, example "…");
        /// ServerKey of the user for SCRAM-SHA-1.
        key("auth.users[].scram_sha_1.server_key",
            KeyKind::Base64 { min: 20, max: 20 }, Live, example "…");
    },
};

pub(crate) const SCRAM_SHA_256: Section = Section {
    path: "auth.users[].scram_sha_256",
    about: "As `scram_sha_1`, for SCRAM-SHA-256. A user may have one of the two tables, or both.",
    is_optional: true,
    keys: keys! {
        /// Salt of the user's SHA-256 keys.
        key("auth.users[].scram_sha_256.salt",
            SALT, Live, example "…");
        /// Rounds of PBKDF2 of the user's SHA-256 keys.
        key("auth.users[].scram_sha_256.iterations",
            ITERATIONS, Live, example 15000, unit "rounds");
        /// StoredKey of the user for SCRAM-SHA-256.
        key("auth.users[].scram_sha_256.stored_key",
            KeyKind::Base64 { min: 32, max: 32 }, Live, example "…");
        /// ServerKey of the user for SCRAM-SHA-256.
        key("auth.users[].scram_sha_256.server_key",
            KeyKind::Base64 { min: 32, max: 32 }, Live, example "…");
    },
};

/// Reads the list of users. The result does not contain users that cannot be read. It contains
/// users with the same name and source, although their names are reported as problems.
pub(crate) fn read(auth: &mut Part<'_>) -> Option<Vec<User>> {
    no_user_twice(auth);
    let indexes = 0..auth.tables("users").len();
    Some(
        indexes
            .filter_map(|index| user(auth.element("users", index)))
            .collect(),
    )
}

fn no_user_twice(auth: &mut Part<'_>) {
    let source = USER.key("source").and_then(|key| key.default);
    let mut seen = HashMap::new();
    for (index, user) in auth.tables("users").iter().enumerate() {
        let text = |name: &str| user.get(name).and_then(Value::as_str);
        let Some(name) = text("name") else {
            continue;
        };
        let first = *seen
            .entry((name, text("source").or(source)))
            .or_insert(index);
        if first != index {
            auth.add(
                &format!("auth.users[{index}].name"),
                &shown_text(name),
                &format!("must be unique within its source; auth.users[{first}] has the same name"),
            );
        }
    }
}

fn user(mut part: Part<'_>) -> Option<User> {
    let name = part.named(&USER, "name");
    let source = part.named(&USER, "source");
    let credential = credential(&mut part);
    Some(User {
        name: name?,
        source: source?,
        credential: credential?,
    })
}

fn credential(user: &mut Part<'_>) -> Option<UserCredential> {
    let path = user.path.shown.clone();
    let is_given = |name| user.given(name).is_some();
    let forms = [
        ("password", is_given("password")),
        ("password_file", is_given("password_file")),
        (
            "SCRAM keys",
            is_given("scram_sha_1") || is_given("scram_sha_256"),
        ),
    ];
    let given: Vec<&str> = forms
        .into_iter()
        .filter_map(|(form, is_given)| is_given.then_some(form))
        .collect();
    match given.as_slice() {
        [] => {
            let keys = ["password", "password_file", "scram_sha_1", "scram_sha_256"];
            let has = |key: &&str| user.problems.has(&format!("{path}.{key}"));
            if !keys.iter().any(has) {
                user.add(&path, "", ONE_CREDENTIAL);
            }
            None
        }
        ["password"] => user.named(&USER, "password").map(UserCredential::Password),
        ["password_file"] => {
            let file: PathBuf = user.named(&USER, "password_file")?;
            let key = format!("{path}.password_file");
            secret_from(&key, &file, user.problems).map(UserCredential::Password)
        }
        [_] => Some(UserCredential::Keys(UserKeys {
            scram_sha_1: keys(user, &SCRAM_SHA_1, "scram_sha_1"),
            scram_sha_256: keys(user, &SCRAM_SHA_256, "scram_sha_256"),
        })),
        [_, _, ..] => {
            user.add(&path, &format!("({})", given.join(" and ")), ONE_CREDENTIAL);
            None
        }
    }
}

/// Reads the keys of one mechanism. They are in a table with the name `mechanism`, which is inside
/// the user's table. `None` if the table `mechanism` is absent or has a problem.
fn keys<const N: usize>(
    user: &mut Part<'_>,
    section: &Section,
    mechanism: &str,
) -> Option<ScramKeys<N>> {
    user.given(mechanism)?;
    let mut part = user.below(mechanism);
    let salt = part.named(section, "salt");
    let iterations = part.named(section, "iterations");
    let stored_key = part.named(section, "stored_key");
    let server_key = part.named(section, "server_key");
    Some(ScramKeys {
        salt: salt?,
        iterations: iterations?,
        stored_key: stored_key?,
        server_key: server_key?,
    })
}

const ONE_CREDENTIAL: &str =
    "must have exactly one of password, password_file and SCRAM keys (scram_sha_1, scram_sha_256)";
