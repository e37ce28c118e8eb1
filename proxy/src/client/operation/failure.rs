//! Builds an error reply for the client of an operation if no server reply can be passed to this
//! client.

use crate::client::own_reply::requires_authentication;
use seawall_command::{
    AUTHENTICATION_FAILED, CURSOR_NOT_FOUND, Class, EXCEEDED_TIME_LIMIT, ErrorReply,
    FAILED_TO_SATISFY_READ_PREFERENCE, HOST_UNREACHABLE, INGRESS_RATE_LIMIT_EXCEEDED,
    MAX_TIME_MS_EXPIRED, Mode, NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT,
    RESUMABLE_CHANGE_STREAM_ERROR, RETRYABLE_ERROR, RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR,
    TRANSIENT_TRANSACTION_ERROR,
};

/// Error label: the operation wrote nothing.
pub(super) const NO_WRITES_PERFORMED: &str = "NoWritesPerformed";

/// The message of errors 202 and 262 of servers.
const NO_CONNECTION: &str = "Couldn't get a connection within the time limit";

/// Facts about a failed command and its client, which determine the error reply.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedCommand<'a> {
    pub(super) name: &'a str,
    pub(super) class: Class,
    pub(super) in_transaction: bool,
    pub(super) may_be_repeated: bool,
    /// The cursor of a `getMore`, or the first cursor of a `killCursors`; else `None`.
    pub(super) cursor: Option<i64>,
    /// True if the driver can reopen the cursor on another server.
    pub(super) is_resumable: bool,
    /// True if the client's driver has announced that it can handle overload errors.
    pub(super) announces_backpressure: bool,
}

/// The reason why Seawall has no server reply for the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The operation's own time limit is over.
    TimeLimit,
    /// The client has to log in, its user no longer exists, or the user's
    /// `authenticationRestrictions` no longer permit the client.
    Unauthenticated,
    /// A server whose data about users may be outdated (a secondary or a router) refused the user's
    /// login.
    LoginRefused,
    /// No suitable server appeared in time.
    NoServer {
        /// Mode of the read preference.
        mode: Mode,
        set_name: Option<String>,
        has_primary: bool,
    },
    /// No connection or permit became available in time, or too many operations already waited.
    Overload,
    /// The server failed, or it is no longer the primary. The text is the message of the error
    /// reply.
    ServerFailed(&'static str),
}

/// The error reply for a command that failed. Its labels let the driver retry where that is safe.
///
/// Sources: the specifications of retryable reads and writes, transactions and change streams
/// (<https://github.com/mongodb/specifications>).
pub(super) fn error_reply(command: &FailedCommand<'_>, failure: &Failure) -> ErrorReply {
    match failure {
        Failure::TimeLimit => ErrorReply::new(MAX_TIME_MS_EXPIRED, "operation exceeded time limit"),
        Failure::Unauthenticated => requires_authentication(command.name),
        Failure::LoginRefused => ErrorReply::new(AUTHENTICATION_FAILED, "Authentication failed."),
        Failure::NoServer {
            mode,
            set_name,
            has_primary,
        } => no_server(command, *mode, set_name.as_deref(), *has_primary),
        // An earlier attempt may have committed the transaction. With this error, the driver does
        // not tell the application that the transaction has failed.
        Failure::Overload if command.class.ends_transaction() => {
            host_unreachable(command, "no connection became available in time")
        }
        Failure::Overload => overloaded(command),
        Failure::ServerFailed(message) => host_unreachable(command, message),
    }
}

/// The error for an operation that got no permit or connection in time. The operation has not run.
fn overloaded(command: &FailedCommand<'_>) -> ErrorReply {
    let is_resumable = command.is_resumable && command.class == Class::GetMore;
    let (code, message) = match (command.announces_backpressure, is_resumable) {
        (true, _) => (
            INGRESS_RATE_LIMIT_EXCEEDED,
            "no connection became available in time",
        ),
        (false, true) => (EXCEEDED_TIME_LIMIT, NO_CONNECTION),
        (false, false) => (NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT, NO_CONNECTION),
    };
    let mut error = ErrorReply::new(code, message);
    if command.announces_backpressure {
        error.labels = vec![SYSTEM_OVERLOADED_ERROR, RETRYABLE_ERROR];
    }
    // An earlier attempt may have written. With this label, the driver reports the error of that
    // attempt.
    let may_have_written = command.class == Class::Write && !command.in_transaction;
    if command.announces_backpressure || may_have_written {
        error.labels.push(NO_WRITES_PERFORMED);
    }
    if command.in_transaction {
        error.labels.push(TRANSIENT_TRANSACTION_ERROR);
    }
    if is_resumable {
        // Without this label, the driver would end the change stream.
        error.labels.push(RESUMABLE_CHANGE_STREAM_ERROR);
    }
    error
}

fn no_server(
    command: &FailedCommand<'_>,
    mode: Mode,
    set_name: Option<&str>,
    has_primary: bool,
) -> ErrorReply {
    if let (Class::GetMore, Some(cursor)) = (command.class, command.cursor) {
        return cursor_lost(cursor, command);
    }
    // An earlier attempt may have committed the transaction. With the label of a transient error,
    // the driver would run the whole transaction again.
    if command.class.ends_transaction() {
        return host_unreachable(command, "no suitable server");
    }
    // If the set has no primary, a retry may find a new one. If the set has a primary but no member
    // that suits a read preference such as `secondary`, a retry would probably fail too. Then the
    // driver gets an error that it does not retry.
    let suits_primary = matches!(mode, Mode::Primary | Mode::PrimaryPreferred);
    let is_hopeless = !suits_primary && has_primary;
    if command.may_be_repeated && !is_hopeless {
        return host_unreachable(command, "no suitable server");
    }
    let message = format!(
        "Could not find host matching read preference {{ mode: \"{}\" }} for set {}",
        mode.as_str(),
        set_name.unwrap_or_default()
    );
    let labels: &[_] = match command.in_transaction {
        true => &[TRANSIENT_TRANSACTION_ERROR],
        false => &[],
    };
    ErrorReply::new(FAILED_TO_SATISFY_READ_PREFERENCE, message).with_labels(labels)
}

/// Error 6 (HostUnreachable), with the labels that let the driver retry where that is safe.
fn host_unreachable(command: &FailedCommand<'_>, message: &str) -> ErrorReply {
    let labels: &[_] = match command.class {
        Class::CommitTransaction | Class::AbortTransaction => &[RETRYABLE_WRITE_ERROR],
        _ if command.in_transaction => &[TRANSIENT_TRANSACTION_ERROR],
        Class::Write if command.may_be_repeated => &[RETRYABLE_WRITE_ERROR],
        Class::GetMore if command.is_resumable => &[RESUMABLE_CHANGE_STREAM_ERROR],
        _ => &[],
    };
    ErrorReply::new(HOST_UNREACHABLE, message).with_labels(labels)
}

/// The error for a `getMore` for which no suitable server was available in time. The driver then
/// treats the cursor as lost.
fn cursor_lost(cursor: i64, command: &FailedCommand<'_>) -> ErrorReply {
    let labels: &[_] = match (command.in_transaction, command.is_resumable) {
        (true, _) => &[TRANSIENT_TRANSACTION_ERROR],
        (false, true) => &[RESUMABLE_CHANGE_STREAM_ERROR],
        (false, false) => &[],
    };
    let message = format!("cursor id {cursor} not found");
    ErrorReply::new(CURSOR_NOT_FOUND, message).with_labels(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIND: FailedCommand<'_> = FailedCommand {
        name: "find",
        class: Class::Read,
        in_transaction: false,
        may_be_repeated: true,
        cursor: None,
        is_resumable: false,
        announces_backpressure: false,
    };
    const WRITE: FailedCommand<'_> = FailedCommand {
        name: "insert",
        class: Class::Write,
        ..FIND
    };
    const UPDATE_MANY: FailedCommand<'_> = FailedCommand {
        may_be_repeated: false,
        ..WRITE
    };
    const IN_TRANSACTION: FailedCommand<'_> = FailedCommand {
        in_transaction: true,
        may_be_repeated: false,
        ..WRITE
    };
    const COMMIT: FailedCommand<'_> = FailedCommand {
        name: "commitTransaction",
        class: Class::CommitTransaction,
        ..IN_TRANSACTION
    };
    const GET_MORE: FailedCommand<'_> = FailedCommand {
        name: "getMore",
        class: Class::GetMore,
        may_be_repeated: false,
        cursor: Some(7),
        ..FIND
    };
    const GET_MORE_IN_TRANSACTION: FailedCommand<'_> = FailedCommand {
        in_transaction: true,
        ..GET_MORE
    };
    const CHANGE_STREAM: FailedCommand<'_> = FailedCommand {
        is_resumable: true,
        ..GET_MORE
    };
    const MODERN: FailedCommand<'_> = FailedCommand {
        announces_backpressure: true,
        ..FIND
    };
    const MODERN_IN_TRANSACTION: FailedCommand<'_> = FailedCommand {
        announces_backpressure: true,
        ..IN_TRANSACTION
    };
    /// Its first cursor belongs to a change stream.
    const KILL_CURSORS: FailedCommand<'_> = FailedCommand {
        name: "killCursors",
        class: Class::KillCursors,
        ..CHANGE_STREAM
    };

    fn no_server(mode: Mode, has_primary: bool) -> Failure {
        Failure::NoServer {
            mode,
            set_name: Some("rs0".to_owned()),
            has_primary,
        }
    }

    /// Code and labels of the reply.
    fn reply(command: &FailedCommand<'_>, failure: &Failure) -> (i32, Vec<&'static str>) {
        let reply = error_reply(command, failure);
        (reply.code, reply.labels.to_vec())
    }

    #[test]
    fn the_error_reply_has_the_code_and_labels_for_its_failure_and_command() {
        let failed = Failure::ServerFailed("the primary changed");
        let (primary, secondary) = (Mode::Primary, Mode::Secondary);
        let retry = vec![RETRYABLE_WRITE_ERROR];
        let transient = vec![TRANSIENT_TRANSACTION_ERROR];
        let resumable = vec![RESUMABLE_CHANGE_STREAM_ERROR];
        let overloaded = vec![
            SYSTEM_OVERLOADED_ERROR,
            RETRYABLE_ERROR,
            "NoWritesPerformed",
        ];
        let cases = [
            (FIND, Failure::TimeLimit, (50, vec![])),
            (FIND, Failure::Unauthenticated, (13, vec![])),
            (FIND, Failure::LoginRefused, (18, vec![])),
            (FIND, Failure::Overload, (202, vec![])),
            (MODERN, Failure::Overload, (462, overloaded.clone())),
            (CHANGE_STREAM, Failure::Overload, (262, resumable.clone())),
            (WRITE, Failure::Overload, (202, vec![NO_WRITES_PERFORMED])),
            (IN_TRANSACTION, Failure::Overload, (202, transient.clone())),
            (
                MODERN_IN_TRANSACTION,
                Failure::Overload,
                (
                    462,
                    [&overloaded[..], &[TRANSIENT_TRANSACTION_ERROR]].concat(),
                ),
            ),
            (KILL_CURSORS, Failure::Overload, (202, vec![])),
            (COMMIT, Failure::Overload, (6, retry.clone())),
            (FIND, failed.clone(), (6, vec![])),
            (WRITE, failed.clone(), (6, retry.clone())),
            (UPDATE_MANY, failed.clone(), (6, vec![])),
            (IN_TRANSACTION, failed.clone(), (6, transient.clone())),
            (COMMIT, failed.clone(), (6, retry.clone())),
            (GET_MORE, failed.clone(), (6, vec![])),
            (CHANGE_STREAM, failed, (6, resumable.clone())),
            (FIND, no_server(primary, false), (6, vec![])),
            (WRITE, no_server(primary, false), (6, retry.clone())),
            (FIND, no_server(secondary, false), (6, vec![])),
            (FIND, no_server(Mode::PrimaryPreferred, true), (6, vec![])),
            (FIND, no_server(secondary, true), (133, vec![])),
            (UPDATE_MANY, no_server(primary, false), (133, vec![])),
            (
                IN_TRANSACTION,
                no_server(primary, false),
                (133, transient.clone()),
            ),
            (COMMIT, no_server(primary, false), (6, retry.clone())),
            (COMMIT, no_server(primary, true), (6, retry)),
            (GET_MORE, no_server(primary, false), (43, vec![])),
            (
                GET_MORE_IN_TRANSACTION,
                no_server(primary, true),
                (43, transient.clone()),
            ),
            (CHANGE_STREAM, no_server(primary, true), (43, resumable)),
        ];
        for (command, failure, expected) in cases {
            let actual = reply(&command, &failure);
            assert_eq!(actual, expected, "{command:?} {failure:?}");
        }
    }
}
