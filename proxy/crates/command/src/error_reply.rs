//! Error replies that Seawall creates itself, with the field order of a server's error replies.

use bson::{RawArrayBuf, RawDocumentBuf};

/// Code 2, `BadValue`.
pub const BAD_VALUE: i32 = 2;
/// Code 4, `NoSuchKey`.
pub const NO_SUCH_KEY: i32 = 4;
/// Code 6, `HostUnreachable`: a mongos replies with this code when a member failed.
pub const HOST_UNREACHABLE: i32 = 6;
/// Code 13, `Unauthorized`.
pub const UNAUTHORIZED: i32 = 13;
/// Code 14, `TypeMismatch`.
pub const TYPE_MISMATCH: i32 = 14;
/// Code 17, `ProtocolError`.
pub const PROTOCOL_ERROR: i32 = 17;
/// Code 18, `AuthenticationFailed`.
pub const AUTHENTICATION_FAILED: i32 = 18;
/// Code 22, `InvalidBSON`.
pub const INVALID_BSON: i32 = 22;
/// Code 43, `CursorNotFound`.
pub const CURSOR_NOT_FOUND: i32 = 43;
/// Code 50, `MaxTimeMSExpired`.
pub const MAX_TIME_MS_EXPIRED: i32 = 50;
/// Code 59, `CommandNotFound`.
pub const COMMAND_NOT_FOUND: i32 = 59;
/// Code 91, `ShutdownInProgress`: after a `hello` reply with this code, drivers use another router.
pub const SHUTDOWN_IN_PROGRESS: i32 = 91;
/// Code 133, `FailedToSatisfyReadPreference`.
pub const FAILED_TO_SATISFY_READ_PREFERENCE: i32 = 133;
/// Code 183, `ClientMetadataMissingField`.
pub const CLIENT_METADATA_MISSING_FIELD: i32 = 183;
/// Code 184, `ClientMetadataAppNameTooLarge`.
pub const CLIENT_METADATA_APP_NAME_TOO_LARGE: i32 = 184;
/// Code 185, `ClientMetadataDocumentTooLarge`.
pub const CLIENT_METADATA_DOCUMENT_TOO_LARGE: i32 = 185;
/// Code 186, `ClientMetadataCannotBeMutated`.
pub const CLIENT_METADATA_CANNOT_BE_MUTATED: i32 = 186;
/// Code 202, `NetworkInterfaceExceededTimeLimit`: a mongos replies with this code when its pool
/// could not provide a connection in time. Drivers do not retry a command after this error.
pub const NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT: i32 = 202;
/// Code 262, `ExceededTimeLimit`. Drivers reopen a change stream after this error, even if its
/// servers are older than 4.4 and know no error labels.
pub const EXCEEDED_TIME_LIMIT: i32 = 262;
/// Code 322, `APIVersionError`.
pub const API_VERSION_ERROR: i32 = 322;
/// Code 323, `APIStrictError`.
pub const API_STRICT_ERROR: i32 = 323;
/// Code 334, `MechanismUnavailable`.
pub const MECHANISM_UNAVAILABLE: i32 = 334;
/// Code 352, `UnsupportedOpQueryCommand`.
pub const UNSUPPORTED_OP_QUERY_COMMAND: i32 = 352;
/// Code 462, `IngressRequestRateLimitExceeded`: Seawall replies with this code if an operation got
/// no permit or connection, but only to clients that announced `backpressure` in `hello`.
pub const INGRESS_RATE_LIMIT_EXCEEDED: i32 = 462;
/// Code 11600, `InterruptedAtShutdown`.
pub const INTERRUPTED_AT_SHUTDOWN: i32 = 11_600;
/// Code 11602, `InterruptedDueToReplStateChange`.
pub const INTERRUPTED_DUE_TO_REPL_STATE_CHANGE: i32 = 11_602;
/// Code 13436, `NotPrimaryOrSecondary`.
pub const NOT_PRIMARY_OR_SECONDARY: i32 = 13_436;
/// Code 31368, without a name: a `hello` has only one of `topologyVersion` and `maxAwaitTimeMS`.
pub const INCOMPLETE_AWAITABLE_HELLO: i32 = 31_368;
/// Code 40415, `IDLUnknownField`. Only newer servers have this name for the code. Seawall sends the
/// name of older servers, `Location40415`.
pub const IDL_UNKNOWN_FIELD: i32 = 40_415;
/// Code 51756, without a name: a `hello` with `exhaustAllowed` has no `maxAwaitTimeMS`.
pub const EXHAUST_HELLO_WITHOUT_MAX_AWAIT_TIME: i32 = 51_756;
/// Code 51769, without a name: the command in `speculativeAuthenticate` does not begin a login.
pub const UNKNOWN_SPECULATIVE_COMMAND: i32 = 51_769;
/// Code 5626701, without a name: a client that has logged in as a user of one database logs in as a
/// user of another database.
pub const SECOND_USER_OF_ANOTHER_DATABASE: i32 = 5_626_701;
/// Code 5626702, without a name: a client that has logged in as a user of a database logs in as
/// another user of this database.
pub const SECOND_USER_OF_SAME_DATABASE: i32 = 5_626_702;
/// Code 5739000, without a name: the server does not support `getLastError`.
pub const GET_LAST_ERROR_NOT_SUPPORTED: i32 = 5_739_000;
/// Code 5739101, without a name: a client sent a read with an opcode that servers no longer
/// support.
pub const LEGACY_READ_NOT_SUPPORTED: i32 = 5_739_101;

/// Code 189, `PrimarySteppedDown`.
const PRIMARY_STEPPED_DOWN: i32 = 189;
/// Code 10058, `LegacyNotPrimary`.
const LEGACY_NOT_PRIMARY: i32 = 10_058;
/// Code 10107, `NotWritablePrimary`.
const NOT_WRITABLE_PRIMARY: i32 = 10_107;
/// Code 13435, `NotPrimaryNoSecondaryOk`.
const NOT_PRIMARY_NO_SECONDARY_OK: i32 = 13_435;

/// Label: the driver may send the write again.
pub const RETRYABLE_WRITE_ERROR: &str = "RetryableWriteError";
/// Label: the driver may resume the change stream at its last position.
pub const RESUMABLE_CHANGE_STREAM_ERROR: &str = "ResumableChangeStreamError";
/// Label: the application may run the whole transaction again.
pub const TRANSIENT_TRANSACTION_ERROR: &str = "TransientTransactionError";
/// Label: the server is overloaded, and the driver should back off.
pub const SYSTEM_OVERLOADED_ERROR: &str = "SystemOverloadedError";
/// Label: the driver may send the command again after a backoff, even if the command is not a read
/// or a retryable write.
pub const RETRYABLE_ERROR: &str = "RetryableError";

/// True for codes that report a change of a member's state: "node is recovering" and "not writable
/// primary" errors (server discovery and monitoring specification).
pub fn is_state_change(code: i32) -> bool {
    matches!(
        code,
        SHUTDOWN_IN_PROGRESS
            | PRIMARY_STEPPED_DOWN
            | LEGACY_NOT_PRIMARY
            | NOT_WRITABLE_PRIMARY
            | INTERRUPTED_AT_SHUTDOWN
            | INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | NOT_PRIMARY_NO_SECONDARY_OK
            | NOT_PRIMARY_OR_SECONDARY
    )
}

/// True for codes that report a failed server, a failed network, an exceeded time limit or an
/// overload. Such an error says nothing about the user or the command.
pub fn reports_server_failure(code: i32) -> bool {
    is_state_change(code) || SERVER_FAILURES.contains(&code)
}

/// True for state-change codes after which Seawall may send the command to another member, because
/// the server has certainly not executed the command.
pub fn nothing_was_done(code: i32) -> bool {
    matches!(code, NOT_WRITABLE_PRIMARY | NOT_PRIMARY_NO_SECONDARY_OK)
}

/// The contents of an error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReply {
    /// The error code, for drivers.
    pub code: i32,
    /// The error message (`errmsg`), for people.
    pub message: String,
    /// Labels, which tell drivers whether they may send the command again.
    pub labels: Vec<&'static str>,
}

impl ErrorReply {
    /// An error reply without labels.
    pub fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            labels: Vec::new(),
        }
    }

    /// Sets the labels.
    #[must_use]
    pub fn with_labels(mut self, labels: &[&'static str]) -> Self {
        self.labels = labels.to_vec();
        self
    }

    /// Builds the reply document, with its fields in the order of a server's reply.
    pub fn to_document(&self) -> RawDocumentBuf {
        let mut document = RawDocumentBuf::new();
        if !self.labels.is_empty() {
            let mut labels = RawArrayBuf::new();
            self.labels.iter().for_each(|label| labels.push(*label));
            document.append(bson::cstr!("errorLabels"), labels);
        }
        document.append(bson::cstr!("ok"), 0.0);
        document.append(bson::cstr!("errmsg"), self.message.as_str());
        document.append(bson::cstr!("code"), self.code);
        document.append(bson::cstr!("codeName"), code_name(self.code).as_ref());
        document
    }
}

/// The server's name for a code. Codes without a name get `Location<code>`, as on servers.
fn code_name(code: i32) -> std::borrow::Cow<'static, str> {
    let name = match code {
        2 => "BadValue",
        4 => "NoSuchKey",
        6 => "HostUnreachable",
        9 => "FailedToParse",
        13 => "Unauthorized",
        14 => "TypeMismatch",
        15 => "Overflow",
        17 => "ProtocolError",
        18 => "AuthenticationFailed",
        22 => "InvalidBSON",
        43 => "CursorNotFound",
        50 => "MaxTimeMSExpired",
        59 => "CommandNotFound",
        73 => "InvalidNamespace",
        91 => "ShutdownInProgress",
        133 => "FailedToSatisfyReadPreference",
        183 => "ClientMetadataMissingField",
        184 => "ClientMetadataAppNameTooLarge",
        185 => "ClientMetadataDocumentTooLarge",
        186 => "ClientMetadataCannotBeMutated",
        202 => "NetworkInterfaceExceededTimeLimit",
        262 => "ExceededTimeLimit",
        322 => "APIVersionError",
        323 => "APIStrictError",
        334 => "MechanismUnavailable",
        352 => "UnsupportedOpQueryCommand",
        462 => "IngressRequestRateLimitExceeded",
        _ => return format!("Location{code}").into(),
    };
    name.into()
}

/// The codes for which [`reports_server_failure`] is true, without the state-change codes. The list
/// includes codes of failures between a mongos and its config servers. If a mongos cannot read a
/// user from the config servers, it usually refuses the login with 18 (AuthenticationFailed). The
/// list does not include 18, because servers also send it for a wrong password.
const SERVER_FAILURES: [i32; 29] = [
    1,      // InternalError
    6,      // HostUnreachable
    7,      // HostNotFound
    24,     // LockTimeout
    50,     // MaxTimeMSExpired
    89,     // NetworkTimeout
    90,     // CallbackCanceled
    133,    // FailedToSatisfyReadPreference
    134,    // ReadConcernMajorityNotAvailableYet
    145,    // PooledConnectionsDropped
    149,    // NoConfigPrimary
    202,    // NetworkInterfaceExceededTimeLimit
    262,    // ExceededTimeLimit
    290,    // TransactionExceededLifetimeLimitSeconds
    317,    // ConnectionPoolExpired
    365,    // TemporarilyUnavailable
    384,    // ConnectionError
    402,    // ResourceExhausted
    407,    // PooledConnectionAcquisitionExceededTimeLimit
    433,    // AdmissionQueueOverflow
    449,    // RateLimitExceeded
    450,    // PooledConnectionAcquisitionRejected
    462,    // IngressRequestRateLimitExceeded
    463,    // IngressOperationRateLimitExceeded
    473,    // InterruptedDueToOverload
    9001,   // SocketException
    11_601, // Interrupted
    56_846, // ConfigServerUnreachable
    91_331, // RetriableRemoteCommandFailure
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_an_error_reply_have_the_same_order_as_in_a_server_reply() {
        let reply = ErrorReply::new(HOST_UNREACHABLE, "x").with_labels(&[RETRYABLE_WRITE_ERROR]);
        let document = reply.to_document();
        let names: Vec<_> = document
            .iter()
            .map(|e| e.unwrap().0.as_str().to_owned())
            .collect();
        assert_eq!(names, ["errorLabels", "ok", "errmsg", "code", "codeName"]);
        let named = ErrorReply::new(NO_SUCH_KEY, "").to_document();
        assert_eq!(named.get_str("codeName").unwrap(), "NoSuchKey");
        let nameless = ErrorReply::new(40571, "").to_document();
        assert_eq!(nameless.get_str("codeName").unwrap(), "Location40571");
    }
}
