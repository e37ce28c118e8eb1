//! The command that reads a user's keys and restrictions from a server, and the parser of its
//! reply.
//!
//! ```text
//!  { usersInfo: { user, db }, showCredentials: true, showAuthenticationRestrictions: true }
//! ```
//!
//! Every user may run this command for itself, on any database and without any role. Only this form
//! of the command returns all fields that Seawall needs: the user's keys, the user's own
//! restrictions, and the restrictions of the user's roles (mongod 6.0.5).
//!
//! ```text
//!  { users: [ { _id: "<db>.<user>", userId: UUID, user, db, mechanisms: [ "SCRAM-SHA-1", … ],
//!      credentials: { "SCRAM-SHA-1": { iterationCount, salt, storedKey, serverKey }, … },
//!      roles: [ … ], authenticationRestrictions: [ { clientSource: [ … ] }, … ],
//!      inheritedRoles: [ … ], inheritedPrivileges: [ … ],
//!      inheritedAuthenticationRestrictions: [ [ { clientSource: [ … ] }, … ], … ] } ], ok: 1 }
//! ```
//!
//! The salt and the keys are base64 text. For a user that does not exist, `users` is empty.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bson::raw::{RawBsonRef, cstr};
use bson::spec::BinarySubtype;
use bson::{RawArray, RawDocument, RawDocumentBuf, rawdoc};
use zeroize::Zeroizing;

use super::restrictions::{INHERITED, OWN};
use super::{Key, Mechanism, Restrictions, RestrictionsError, ScramKeys, mechanism_names};

/// A server's record of a user. With this record, Seawall can verify logins of the user and refuse
/// logins from a forbidden address. To authenticate as the user, Seawall also needs a
/// [`ClientKey`](super::ClientKey).
///
/// A comparison with `==` takes constant time for the keys, so its duration does not reveal them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The `userId`. A user that was dropped and created again has another `userId`. `None` for
    /// some users that a server of version 3.4 or earlier created.
    pub user_id: Option<[u8; 16]>,
    /// The database that the user is defined in. Connection strings call it `authSource`.
    pub source: String,
    /// The user's name, unique within its source.
    pub name: String,
    /// The keys for SCRAM-SHA-1; `None` if the user does not have this mechanism.
    pub sha1: Option<ScramKeys>,
    /// The keys for SCRAM-SHA-256; `None` if the user does not have this mechanism.
    pub sha256: Option<ScramKeys>,
    /// The addresses from which the user's clients may log in.
    pub restrictions: Restrictions,
    /// The names of the user's mechanisms in the server's order, as in `saslSupportedMechs`
    /// ([`mechanism_names`]). The list can contain mechanisms that Seawall does not support.
    pub mechanisms: Vec<String>,
}

impl Credentials {
    /// The keys for one mechanism; `None` if the user has no keys for this mechanism.
    pub fn keys(&self, mechanism: Mechanism) -> Option<&ScramKeys> {
        match mechanism {
            Mechanism::ScramSha1 => self.sha1.as_ref(),
            Mechanism::ScramSha256 => self.sha256.as_ref(),
        }
    }
}

/// The reason why a `usersInfo` reply has no usable credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsersInfoError {
    /// The server replied with an error, for example 13 (Unauthorized) if the user that runs the
    /// command may not read the record of another user.
    #[error("the server replied with error code {code}")]
    CommandFailed {
        /// The error code in the reply; 0 if there is none.
        code: i32,
    },
    /// The user does not exist.
    #[error("the user does not exist")]
    NoSuchUser,
    /// The reply is about another user or about several users.
    #[error("the reply is not about the requested user")]
    OtherUser,
    /// A field is missing, has the wrong type, or has an invalid value.
    #[error("the field {field} is missing or malformed")]
    Malformed {
        /// The name of the field.
        field: &'static str,
    },
    /// The restrictions are missing or cannot be parsed. The user's logins must then be refused.
    #[error("the restrictions cannot be parsed")]
    RestrictionsUnreadable(#[from] RestrictionsError),
}

/// Builds the command that reads a user's keys and restrictions. A user may run the command for
/// itself. To run the command for another user, a user needs a role with the action `viewUser`. The
/// caller appends `$db`, which may be any database.
pub fn users_info_command(name: &str, source: &str) -> RawDocumentBuf {
    let mut user = RawDocumentBuf::new();
    user.append(cstr!("user"), name);
    user.append(cstr!("db"), source);
    rawdoc! {
        "usersInfo": user,
        "showCredentials": true,
        "showAuthenticationRestrictions": true,
    }
}

/// Parses the reply to a command that [`users_info_command`] built from the same `name` and
/// `source`.
///
/// # Errors
/// See [`UsersInfoError`].
pub fn parse_users_info(
    reply: &RawDocument,
    name: &str,
    source: &str,
) -> Result<Credentials, UsersInfoError> {
    check_ok(reply)?;
    let user = only_user(reply.get_array("users").map_err(|_| malformed("users"))?)?;
    if text(user, "user")? != name || text(user, "db")? != source {
        return Err(UsersInfoError::OtherUser);
    }
    let credentials = user
        .get_document("credentials")
        .map_err(|_| malformed("credentials"))?;
    let sha1 = parse_keys(credentials, Mechanism::ScramSha1)?;
    let sha256 = parse_keys(credentials, Mechanism::ScramSha256)?;
    Ok(Credentials {
        user_id: parse_user_id(user)?,
        source: source.to_owned(),
        name: name.to_owned(),
        sha1,
        sha256,
        restrictions: parse_restrictions(user)?,
        mechanisms: parse_mechanisms(user)?,
    })
}

fn check_ok(reply: &RawDocument) -> Result<(), UsersInfoError> {
    // Servers send `ok` as a double. Integers and booleans are accepted too, because the protocol
    // does not require a double.
    let is_ok = match value(reply, "ok")? {
        Some(RawBsonRef::Double(ok)) => ok == 1.0,
        Some(RawBsonRef::Int32(ok)) => ok == 1,
        Some(RawBsonRef::Int64(ok)) => ok == 1,
        Some(RawBsonRef::Boolean(ok)) => ok,
        Some(_) | None => return Err(malformed("ok")),
    };
    if is_ok {
        return Ok(());
    }
    Err(UsersInfoError::CommandFailed {
        code: reply.get_i32("code").unwrap_or(0),
    })
}

fn only_user(users: &RawArray) -> Result<&RawDocument, UsersInfoError> {
    let mut users = users.into_iter();
    let user = users.next().ok_or(UsersInfoError::NoSuchUser)?;
    if users.next().is_some() {
        return Err(UsersInfoError::OtherUser);
    }
    user.ok()
        .and_then(RawBsonRef::as_document)
        .ok_or(malformed("users"))
}

fn parse_user_id(user: &RawDocument) -> Result<Option<[u8; 16]>, UsersInfoError> {
    let Some(user_id) = value(user, "userId")? else {
        return Ok(None);
    };
    let user_id = user_id
        .as_binary()
        .filter(|binary| binary.subtype == BinarySubtype::Uuid)
        .and_then(|binary| binary.bytes.try_into().ok())
        .ok_or(malformed("userId"))?;
    Ok(Some(user_id))
}

/// Parses the keys of one mechanism; `None` if the user has no keys for this mechanism.
fn parse_keys(
    credentials: &RawDocument,
    mechanism: Mechanism,
) -> Result<Option<ScramKeys>, UsersInfoError> {
    let name = mechanism.name();
    let Some(document) = value(credentials, name)? else {
        return Ok(None);
    };
    let document = document.as_document().ok_or(malformed(name))?;
    let key = |field| {
        let bytes = base64_bytes(document, field)?;
        Key::new(mechanism, &bytes).ok_or(malformed(field))
    };
    let salt = base64_bytes(document, "salt")?.to_vec();
    if salt.is_empty() {
        return Err(malformed("salt"));
    }
    let iterations = match value(document, "iterationCount")? {
        Some(RawBsonRef::Int32(count)) => u32::try_from(count).ok(),
        Some(RawBsonRef::Int64(count)) => u32::try_from(count).ok(),
        Some(_) | None => None,
    };
    let iterations = iterations.ok_or(malformed("iterationCount"))?;
    ScramKeys::new(salt, iterations, key("storedKey")?, key("serverKey")?)
        .map(Some)
        .map_err(|_| malformed("iterationCount"))
}

fn parse_restrictions(user: &RawDocument) -> Result<Restrictions, RestrictionsError> {
    let set = |field| match user.get(field) {
        Ok(Some(RawBsonRef::Array(set))) => Ok(set),
        // A server always returns the field if the command requests it, even if the array is empty.
        // So a missing field does not mean "unrestricted".
        Ok(None) => Err(RestrictionsError::Missing { field }),
        Ok(Some(_)) | Err(_) => Err(RestrictionsError::WrongType { field }),
    };
    Restrictions::parse(set(OWN)?, set(INHERITED)?)
}

fn parse_mechanisms(user: &RawDocument) -> Result<Vec<String>, UsersInfoError> {
    let listed = user.get_array("mechanisms");
    let listed = listed.map_err(|_| malformed("mechanisms"))?;
    let mut elements = listed.into_iter();
    if !elements.all(|name| name.is_ok_and(|name| name.as_str().is_some())) {
        return Err(malformed("mechanisms"));
    }
    Ok(mechanism_names(listed))
}

/// Returns the value of a field; `None` if the field is absent. Fails if the document is malformed.
fn value<'a>(
    document: &'a RawDocument,
    field: &'static str,
) -> Result<Option<RawBsonRef<'a>>, UsersInfoError> {
    document.get(field).map_err(|_| malformed(field))
}

fn text<'a>(document: &'a RawDocument, field: &'static str) -> Result<&'a str, UsersInfoError> {
    document.get_str(field).map_err(|_| malformed(field))
}

fn base64_bytes(
    document: &RawDocument,
    field: &'static str,
) -> Result<Zeroizing<Vec<u8>>, UsersInfoError> {
    let bytes = STANDARD
        .decode(text(document, field)?)
        .map_err(|_| malformed(field))?;
    Ok(Zeroizing::new(bytes))
}

fn malformed(field: &'static str) -> UsersInfoError {
    UsersInfoError::Malformed { field }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use bson::{Binary, Bson, Document, bson, doc};
    use proptest::prelude::*;

    use super::super::derive_from_password;
    use super::*;

    const USER_ID: [u8; 16] = [7; 16];

    /// The record of a user with password `pw` in a reply of mongod 6.0.5.
    fn user() -> Document {
        doc! {
            "_id": "admin.own",
            "userId": Binary { subtype: BinarySubtype::Uuid, bytes: USER_ID.to_vec() },
            "user": "own",
            "db": "admin",
            "mechanisms": ["SCRAM-SHA-1", "SCRAM-SHA-256"],
            "credentials": {
                "SCRAM-SHA-1": {
                    "iterationCount": 10_000,
                    "salt": "13oLAmruKAfWrnvAqCzyRA==",
                    "storedKey": "JqXOO0TnCLQVo7Q/oInBisrQvto=",
                    "serverKey": "zGRa1NLBOqR6qeMUA0dJD+lbL5g=",
                },
                "SCRAM-SHA-256": {
                    "iterationCount": 15_000,
                    "salt": "8IbCZW2LWMXirFR1MIU3QPJMBfSzP6Rt7yTYaQ==",
                    "storedKey": "Qbt0aSuFLavyJ2aXJbeet+2GqQmtp/s8QimYQ3RYDMo=",
                    "serverKey": "s0CFWpjzoNLa4w646R1XakW+yisVOaVa+wCtZkn9qlc=",
                },
            },
            "authenticationRestrictions": [
                { "clientSource": ["127.0.0.1", "192.168.0.0/16"] },
                { "clientSource": ["127.0.0.1"], "serverAddress": ["127.0.0.1"] },
            ],
            "roles": [{ "role": "rA", "db": "admin" }],
            "inheritedRoles": [{ "role": "rA", "db": "admin" }],
            "inheritedPrivileges": [],
            "inheritedAuthenticationRestrictions": [
                [{ "clientSource": ["127.0.0.1/32", "10.0.0.0/8"] }],
                [{ "clientSource": ["127.0.0.0/8"] }, { "serverAddress": ["127.0.0.1/32"] }],
            ],
        }
    }

    fn raw(document: &Document) -> RawDocumentBuf {
        RawDocumentBuf::try_from(document).unwrap()
    }

    fn parse_reply(reply: &Document) -> Result<Credentials, UsersInfoError> {
        parse_users_info(&raw(reply), "own", "admin")
    }

    fn parse_user(user: Document) -> Result<Credentials, UsersInfoError> {
        parse_reply(&doc! { "users": [user], "ok": 1.0 })
    }

    /// Returns the document that contains the last field of a path such as
    /// `credentials.SCRAM-SHA-1.salt`, and the name of this field.
    fn entry<'a>(user: &'a mut Document, path: &str) -> (&'a mut Document, String) {
        let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
        let mut document = user;
        for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
            document = document.get_document_mut(parent).unwrap();
        }
        (document, last.to_owned())
    }

    fn with(path: &str, value: impl Into<Bson>) -> Document {
        let mut user = user();
        let (document, field) = entry(&mut user, path);
        document.insert(field, value);
        user
    }

    fn without(path: &str) -> Document {
        let mut user = user();
        let (document, field) = entry(&mut user, path);
        document.remove(field).unwrap();
        user
    }

    #[test]
    fn users_info_command_requests_keys_and_restrictions() {
        let command = users_info_command("a.b", "$external");
        assert_eq!(
            Document::try_from(&*command).unwrap(),
            doc! {
                "usersInfo": { "user": "a.b", "db": "$external" },
                "showCredentials": true,
                "showAuthenticationRestrictions": true,
            }
        );
    }

    #[test]
    fn all_fields_of_a_users_info_reply_are_parsed() {
        let credentials = parse_user(user()).unwrap();
        assert_eq!(credentials.user_id, Some(USER_ID));
        assert_eq!(credentials.name, "own");
        assert_eq!(credentials.source, "admin");
        assert_eq!(credentials.mechanisms, ["SCRAM-SHA-1", "SCRAM-SHA-256"]);
        for mechanism in Mechanism::ALL {
            let keys = credentials.keys(mechanism).unwrap();
            let derived =
                derive_from_password(mechanism, "own", "pw", keys.salt(), keys.iterations());
            assert_eq!(*keys, derived.unwrap().keys);
        }
        let is_permitted = |client: &str| {
            credentials
                .restrictions
                .permits(Some(client.parse::<IpAddr>().unwrap()))
        };
        assert!(is_permitted("127.0.0.1"));
        assert!(!is_permitted("192.168.0.1"));
    }

    #[test]
    fn the_keys_of_a_mechanism_and_the_user_id_are_optional_in_a_users_info_reply() {
        let credentials = parse_user(without("credentials.SCRAM-SHA-1")).unwrap();
        assert!(credentials.keys(Mechanism::ScramSha1).is_none());
        assert!(credentials.keys(Mechanism::ScramSha256).is_some());
        assert_eq!(parse_user(without("userId")).unwrap().user_id, None);

        let external = with("credentials", bson!({ "external": true }));
        let credentials = parse_user(external).unwrap();
        assert!(
            Mechanism::ALL
                .iter()
                .all(|mechanism| credentials.keys(*mechanism).is_none())
        );
    }

    #[test]
    fn a_users_info_reply_with_repeated_and_unknown_mechanisms_gives_each_known_mechanism_once() {
        let listed = bson!(["SCRAM-SHA-256", "x", "SCRAM-SHA-1", "SCRAM-SHA-256"]);
        let credentials = parse_user(with("mechanisms", listed)).unwrap();
        assert_eq!(credentials.mechanisms, ["SCRAM-SHA-256", "SCRAM-SHA-1"]);
    }

    #[test]
    fn iteration_count_may_be_an_int64() {
        let long = with("credentials.SCRAM-SHA-1.iterationCount", 10_000_i64);
        assert_eq!(parse_user(long).unwrap(), parse_user(user()).unwrap());
    }

    #[test]
    fn equal_users_info_replies_give_equal_credentials() {
        assert_eq!(parse_user(user()).unwrap(), parse_user(user()).unwrap());
        for other in [
            with(
                "credentials.SCRAM-SHA-1.storedKey",
                "zGRa1NLBOqR6qeMUA0dJD+lbL5g=",
            ),
            with("authenticationRestrictions", bson!([])),
            without("userId"),
        ] {
            assert_ne!(parse_user(user()).unwrap(), parse_user(other).unwrap());
        }
    }

    #[test]
    fn debug_output_hides_the_keys_of_credentials() {
        let text = format!("{:?}", parse_user(user()).unwrap());
        assert!(text.contains("stored_key: Key(SCRAM-SHA-1), server_key: Key(SCRAM-SHA-1)"));
    }

    #[test]
    fn a_missing_user_and_a_failed_command_are_different_errors() {
        let no_user = parse_reply(&doc! { "users": [], "ok": 1.0 });
        assert_eq!(no_user.unwrap_err(), UsersInfoError::NoSuchUser);
        let refused = parse_reply(&doc! { "ok": 0.0, "errmsg": "not authorized", "code": 13 });
        assert_eq!(
            refused.unwrap_err(),
            UsersInfoError::CommandFailed { code: 13 }
        );
        for ok in [Bson::Int32(1), Bson::Int64(1), Bson::Boolean(true)] {
            let no_user = parse_reply(&doc! { "users": [], "ok": ok });
            assert_eq!(no_user.unwrap_err(), UsersInfoError::NoSuchUser);
        }
        for ok in [Bson::Int64(0), Bson::Boolean(false)] {
            let refused = parse_reply(&doc! { "users": [], "ok": ok });
            assert_eq!(
                refused.unwrap_err(),
                UsersInfoError::CommandFailed { code: 0 }
            );
        }
        let silent = parse_reply(&doc! { "ok": 0 });
        assert_eq!(
            silent.unwrap_err(),
            UsersInfoError::CommandFailed { code: 0 }
        );
    }

    #[test]
    fn a_users_info_reply_about_another_user_is_an_error() {
        let other = UsersInfoError::OtherUser;
        assert_eq!(parse_user(with("user", "Own")).unwrap_err(), other);
        assert_eq!(parse_user(with("db", "test")).unwrap_err(), other);
        let two = parse_reply(&doc! { "users": [user(), user()], "ok": 1.0 });
        assert_eq!(two.unwrap_err(), other);
    }

    #[test]
    fn malformed_fields_of_a_user_are_named_in_the_error() {
        let cases = [
            (without("user"), "user"),
            (without("db"), "db"),
            (with("user", 5), "user"),
            (with("userId", "text"), "userId"),
            (
                with(
                    "userId",
                    Binary {
                        subtype: BinarySubtype::Uuid,
                        bytes: vec![1; 15],
                    },
                ),
                "userId",
            ),
            (
                with(
                    "userId",
                    Binary {
                        subtype: BinarySubtype::Generic,
                        bytes: vec![1; 16],
                    },
                ),
                "userId",
            ),
            (without("credentials"), "credentials"),
            (with("credentials", 5), "credentials"),
            (with("credentials.SCRAM-SHA-1", 5), "SCRAM-SHA-1"),
            (with("credentials.SCRAM-SHA-256", bson!({})), "salt"),
            (with("credentials.SCRAM-SHA-1.salt", ""), "salt"),
            (with("credentials.SCRAM-SHA-1.salt", "???"), "salt"),
            (
                with("credentials.SCRAM-SHA-1.storedKey", "AAAA"),
                "storedKey",
            ),
            (without("credentials.SCRAM-SHA-1.storedKey"), "storedKey"),
            (with("credentials.SCRAM-SHA-1.serverKey", 5), "serverKey"),
            (
                without("credentials.SCRAM-SHA-1.iterationCount"),
                "iterationCount",
            ),
            (
                with("credentials.SCRAM-SHA-1.iterationCount", "10000"),
                "iterationCount",
            ),
            (
                with("credentials.SCRAM-SHA-1.iterationCount", -10_000),
                "iterationCount",
            ),
            (
                with("credentials.SCRAM-SHA-1.iterationCount", 1),
                "iterationCount",
            ),
            (without("mechanisms"), "mechanisms"),
            (with("mechanisms", bson!([5])), "mechanisms"),
        ];
        for (user, field) in cases {
            assert_eq!(
                parse_user(user).unwrap_err(),
                UsersInfoError::Malformed { field }
            );
        }
    }

    #[test]
    fn malformed_fields_of_a_users_info_reply_are_named_in_the_error() {
        for (reply, field) in [
            (doc! { "users": [user()] }, "ok"),
            (doc! { "users": [user()], "ok": "1" }, "ok"),
            (doc! { "ok": 1.0 }, "users"),
            (doc! { "users": [5], "ok": 1.0 }, "users"),
        ] {
            assert_eq!(
                parse_reply(&reply).unwrap_err(),
                UsersInfoError::Malformed { field }
            );
        }
    }

    #[test]
    fn a_users_info_reply_without_valid_restrictions_is_an_error() {
        for field in [OWN, INHERITED] {
            let error = parse_user(without(field)).unwrap_err();
            assert_eq!(error, RestrictionsError::Missing { field }.into());
            let error = parse_user(with(field, bson!({}))).unwrap_err();
            assert_eq!(error, RestrictionsError::WrongType { field }.into());
        }
        let error = parse_user(with(OWN, bson!([{}]))).unwrap_err();
        assert_eq!(
            error,
            UsersInfoError::from(RestrictionsError::EmptyRestriction)
        );
    }

    proptest! {
        #[test]
        fn parsing_a_damaged_users_info_reply_never_panics(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let mut bytes = raw(&doc! { "users": [user()], "ok": 1.0 }).into_bytes();
            for (index, byte) in changes {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            if let Ok(reply) = RawDocument::from_bytes(&bytes) {
                drop(parse_users_info(reply, "own", "admin"));
            }
        }
    }
}
