//! Decides from the bytes of a request if the request may pass a relay.

use crate::client::own_reply::requires_authentication;
use seawall_auth::Mechanism;
use seawall_command::{
    Class, Command, ErrorReply, Handshake, MECHANISM_UNAVAILABLE, UNAUTHORIZED, table,
};
use seawall_wire::Elements;

/// The mechanism that authenticates by the certificate of the TLS connection. Through a relay, a
/// server would check Seawall's certificate instead of the client's.
const X509: &str = "MONGODB-X509";

/// The mechanism that sends the password itself (RFC 4616). Servers can use it to check the users
/// of a directory (LDAP), and also their own users.
const PLAIN: &str = "PLAIN";

/// The database of the users that a server does not store itself, such as the users of a directory.
const EXTERNAL: &str = "$external";

/// True if Seawall cannot be sure which command a server would run for a legacy query.
///
/// Usually, the first field of the query names the command. If the first field is `$query` or
/// `query`, a server uses the value of this field as the command, even if the value is not a
/// document. Then the first field of the value names the command. The query is ambiguous in these
/// cases:
///
/// - The first field is `$query` or `query`, and its value is not a document.
/// - The field that should name the command is missing.
/// - The name of this field cannot be the name of a command: it begins with `$`, or it is `query`.
///   For example, if the first field is `$queryOptions`, a server removes this field, and the next
///   field names the command.
pub(super) fn is_ambiguous(query: &[u8]) -> bool {
    let Some(Ok(first)) = Elements::of(query).next() else {
        return true;
    };
    if !matches!(first.name, b"$query" | b"query") {
        return first.name.starts_with(b"$");
    }
    let inner = first.value.as_document();
    let inner = inner.and_then(|inner| Elements::of(inner).next()?.ok());
    inner.is_none_or(|inner| inner.name.starts_with(b"$") || inner.name == b"query")
}

/// The clients that a relay serves. They determine the mechanisms that the relay refuses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Relayed {
    /// All clients (`deployment.mode = "relay"`). X.509 is refused.
    All,
    /// Clients that are relayed because of their mechanism (`auth.other_mechanisms`). SCRAM is also
    /// refused, and so is PLAIN for a user that is not in `$external`: such a user can log in with
    /// SCRAM, and Seawall itself checks SCRAM logins. It checks the limits for logins, the
    /// configured users, and the addresses that the user's `authenticationRestrictions` allow. The
    /// server usually sees only Seawall's address.
    OtherMechanisms,
}

impl Relayed {
    /// `is_external` is true if the user is certainly in the database `$external`.
    fn refuses(self, mechanism: &str, is_external: bool) -> bool {
        let is_scram = || Mechanism::ALL.iter().any(|scram| scram.name() == mechanism);
        let is_checked_here = || is_scram() || (mechanism == PLAIN && !is_external);
        match self {
            Self::All => mechanism == X509,
            Self::OtherMechanisms => mechanism == X509 || is_checked_here(),
        }
    }
}

/// Returns the error reply for a command that must not reach the server; `None` if the command may
/// pass.
pub(super) fn refusal(
    command: &Command<'_>,
    has_to_log_in: bool,
    relayed: Relayed,
) -> Option<ErrorReply> {
    let is_refused = match command.class {
        Class::Handshake(Handshake::Authenticate) => true,
        Class::Handshake(Handshake::SaslStart) => {
            may_be_refused(command.body, command.db == EXTERNAL, relayed)
        }
        Class::Handshake(Handshake::Hello | Handshake::LegacyHello) => {
            speculates_refused(command.body, relayed)
        }
        _ => false,
    };
    if is_refused {
        let message = "this mechanism is not available through a relay";
        return Some(ErrorReply::new(MECHANISM_UNAVAILABLE, message));
    }
    if has_to_log_in && !command.spec.passes_relay_before_login {
        return Some(requires_authentication(command.name_str()));
    }
    if command.name.starts_with(b"$") {
        let message = "a relay does not pass commands that begin with $";
        return Some(ErrorReply::new(UNAUTHORIZED, message));
    }
    None
}

/// True if a server might read a refused mechanism in a `saslStart`. Also true if the mechanism is
/// not a string, or if only one of several `mechanism` fields is a refused one. A server might
/// accept such a command. `is_external` is true if the user is certainly in the database
/// `$external`.
fn may_be_refused(start: &[u8], is_external: bool, relayed: Relayed) -> bool {
    let elements = Elements::of(start).map_while(Result::ok);
    let mut named = elements.filter(|element| element.name == b"mechanism");
    named.any(|element| {
        let name = element.value.as_str();
        name.is_none_or(|name| relayed.refuses(name, is_external))
    })
}

/// True if the `speculativeAuthenticate` of a hello might be a login with a refused mechanism.
fn speculates_refused(hello: &[u8], relayed: Relayed) -> bool {
    let elements = Elements::of(hello).map_while(Result::ok);
    let mut starts = elements.filter(|element| element.name == b"speculativeAuthenticate");
    starts.any(|start| {
        let Some(start) = start.value.as_document() else {
            return true;
        };
        let mut fields = Elements::of(start).map_while(Result::ok);
        may_be_refused(start, speculates_external(start), relayed)
            || fields.any(|field| {
                table::find(field.name).class == Class::Handshake(Handshake::Authenticate)
            })
    })
}

/// True if the user of a `speculativeAuthenticate` is certainly in the database `$external`. The
/// field `db` names the user's database.
fn speculates_external(start: &[u8]) -> bool {
    let elements = Elements::of(start).map_while(Result::ok);
    let mut databases = elements.filter(|element| element.name == b"db");
    let first = databases.next();
    let is_external = first.is_some_and(|first| first.value.as_str() == Some(EXTERNAL));
    is_external && databases.next().is_none()
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc, rawdoc};

    use super::*;

    fn refused(body: Document, has_to_log_in: bool) -> Option<i32> {
        let bytes = body.to_vec().unwrap();
        let command = Command::inspect_legacy(&bytes, "admin").unwrap();
        refusal(&command, has_to_log_in, Relayed::All).map(|error| error.code)
    }

    /// Seawall itself checks SCRAM logins, also whether the user may log in from the client's
    /// address.
    #[test]
    fn a_client_that_is_relayed_because_of_its_mechanism_cannot_log_in_with_scram() {
        for name in ["SCRAM-SHA-1", "SCRAM-SHA-256", "GSSAPI"] {
            let start = doc! {"saslStart": 1, "mechanism": name};
            for login in [
                start.clone(),
                doc! {"hello": 1, "speculativeAuthenticate": start.clone()},
            ] {
                let bytes = login.to_vec().unwrap();
                let command = Command::inspect_legacy(&bytes, "admin").unwrap();
                let is_refused = |relayed| refusal(&command, true, relayed).is_some();
                assert!(!is_refused(Relayed::All), "{login}");
                assert_eq!(
                    is_refused(Relayed::OtherMechanisms),
                    name != "GSSAPI",
                    "{login}"
                );
            }
        }
        let twice = rawdoc! {"saslStart": 1, "mechanism": PLAIN, "mechanism": "SCRAM-SHA-1"};
        let command = Command::inspect_legacy(twice.as_bytes(), EXTERNAL).unwrap();
        assert!(refusal(&command, true, Relayed::OtherMechanisms).is_some());
    }

    /// A server can check its own users with PLAIN. These users can also log in with SCRAM, and
    /// then Seawall checks whether the user may log in from the client's address.
    #[test]
    fn a_client_that_is_relayed_because_of_its_mechanism_needs_external_for_plain() {
        let start = doc! {"saslStart": 1, "mechanism": PLAIN};
        let is_refused = |login: &[u8], db, relayed| {
            let command = Command::inspect_legacy(login, db).unwrap();
            refusal(&command, true, relayed).is_some()
        };
        let login = start.to_vec().unwrap();
        for (db, refused) in [(EXTERNAL, false), ("admin", true), ("external", true)] {
            assert_eq!(is_refused(&login, db, Relayed::OtherMechanisms), refused);
            assert!(!is_refused(&login, db, Relayed::All), "{db}");
        }
        let speculative = |start| rawdoc! {"hello": 1, "speculativeAuthenticate": start};
        for (start, refused) in [
            (rawdoc! {"mechanism": PLAIN, "db": EXTERNAL}, false),
            (rawdoc! {"mechanism": PLAIN}, true),
            (rawdoc! {"mechanism": PLAIN, "db": "admin"}, true),
            (rawdoc! {"mechanism": PLAIN, "db": 1}, true),
            (
                rawdoc! {"mechanism": PLAIN, "db": EXTERNAL, "db": "admin"},
                true,
            ),
        ] {
            let hello = speculative(start);
            let login = hello.as_bytes();
            let is_refused = is_refused(login, EXTERNAL, Relayed::OtherMechanisms);
            assert_eq!(is_refused, refused, "{hello:?}");
        }
    }

    /// A relayed client has a server connection of its own, to which Seawall passes its bytes.
    #[test]
    fn before_its_login_a_relayed_client_may_run_only_commands_that_need_no_login() {
        for name in ["hello", "isMaster", "saslStart", "ping", "buildInfo"] {
            assert_eq!(refused(doc! {name: 1}, true), None, "{name}");
        }
        for name in [
            "createUser",
            "createRole",
            "addShard",
            "addshard",
            "replSetInitiate",
            "shutdown",
            "find",
            "_isSelf",
            "Hello",
            "nothing",
        ] {
            assert_eq!(refused(doc! {name: 1}, true), Some(UNAUTHORIZED), "{name}");
            assert_eq!(refused(doc! {name: 1}, false), None, "{name}");
        }
    }

    /// A relayed client has a server connection of its own, to which Seawall passes its bytes.
    #[test]
    fn a_relayed_client_cannot_log_in_with_x509() {
        let start = doc! {"saslStart": 1, "mechanism": X509};
        let logins = [
            doc! {"authenticate": 1, "mechanism": X509},
            start.clone(),
            doc! {"hello": 1, "speculativeAuthenticate": start},
            doc! {"isMaster": 1, "speculativeAuthenticate": {"authenticate": 1}},
            doc! {"isMaster": 1, "speculativeAuthenticate": 1},
            doc! {"$query": {"authenticate": 1, "mechanism": X509}},
        ];
        for login in logins {
            let codes = [false, true].map(|has_to_log_in| refused(login.clone(), has_to_log_in));
            assert_eq!(codes, [Some(MECHANISM_UNAVAILABLE); 2], "{login}");
        }
    }

    #[test]
    fn a_relay_refuses_commands_whose_name_begins_with_a_dollar_sign_even_after_a_login() {
        for name in ["$", "$eval", "$find", "$query"] {
            let body = doc! {name: 1, "$db": "admin"}.to_vec().unwrap();
            let command = Command::inspect(&body).unwrap();
            for has_to_log_in in [false, true] {
                let refused = refusal(&command, has_to_log_in, Relayed::All);
                let refused = refused.map(|error| error.code);
                assert_eq!(refused, Some(UNAUTHORIZED), "{name} {has_to_log_in}");
            }
        }
        // Only the name of the command counts.
        let body = doc! {"find": "$c", "$readPreference": {"mode": "primary"}, "$db": "admin"};
        let bytes = body.to_vec().unwrap();
        let command = Command::inspect(&bytes).unwrap();
        assert!(refusal(&command, false, Relayed::All).is_none());
    }

    #[test]
    fn a_legacy_query_is_ambiguous_if_it_is_unclear_which_of_its_fields_names_the_command() {
        let authenticate = doc! {"authenticate": 1, "mechanism": X509};
        let mut with_options = doc! {"$queryOptions": {}};
        with_options.extend(authenticate.clone());
        let wrapped = |inner: Document| doc! {"$query": inner};
        for query in [
            with_options.clone(),
            wrapped(with_options),
            wrapped(wrapped(authenticate.clone())),
            doc! {"$query": {"query": authenticate.clone()}},
            doc! {"$query": [authenticate]},
            doc! {"$query": {}},
            doc! {"$readPreference": {}, "isMaster": 1},
            doc! {},
        ] {
            assert!(is_ambiguous(&query.to_vec().unwrap()), "{query}");
        }
        for query in [
            doc! {"isMaster": 1, "$queryOptions": {}},
            wrapped(doc! {"isMaster": 1}),
            doc! {"query": {"isMaster": 1}},
        ] {
            assert!(!is_ambiguous(&query.to_vec().unwrap()), "{query}");
        }
    }
}
