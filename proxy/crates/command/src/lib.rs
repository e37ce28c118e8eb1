//! Inspection of commands and replies, in one pass over borrowed bytes.
//!
//! This crate reads the few fields that decide how an operation is served, and decodes no other
//! fields of a message. All properties that follow from a command's name are in [`table`]. This
//! crate knows neither servers nor clients. It builds a whole document only in two rare cases:
//! Seawall's own error replies, and the replies of servers in which "not primary" and "node is
//! recovering" errors are replaced.

mod codes;
mod error_reply;
mod inspect;
mod read_preference;
mod reply;
mod rewrite;
mod secrets;
mod statements;
pub mod table;

pub use self::{
    codes::CodeCounts,
    error_reply::{
        API_STRICT_ERROR, API_VERSION_ERROR, AUTHENTICATION_FAILED, BAD_VALUE,
        CLIENT_METADATA_APP_NAME_TOO_LARGE, CLIENT_METADATA_CANNOT_BE_MUTATED,
        CLIENT_METADATA_DOCUMENT_TOO_LARGE, CLIENT_METADATA_MISSING_FIELD, COMMAND_NOT_FOUND,
        CURSOR_NOT_FOUND, EXCEEDED_TIME_LIMIT, EXHAUST_HELLO_WITHOUT_MAX_AWAIT_TIME, ErrorReply,
        FAILED_TO_SATISFY_READ_PREFERENCE, GET_LAST_ERROR_NOT_SUPPORTED, HOST_UNREACHABLE,
        IDL_UNKNOWN_FIELD, INCOMPLETE_AWAITABLE_HELLO, INGRESS_RATE_LIMIT_EXCEEDED,
        INTERRUPTED_AT_SHUTDOWN, INTERRUPTED_DUE_TO_REPL_STATE_CHANGE, INVALID_BSON,
        LEGACY_READ_NOT_SUPPORTED, MAX_TIME_MS_EXPIRED, MECHANISM_UNAVAILABLE,
        NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT, NO_SUCH_KEY, NOT_PRIMARY_OR_SECONDARY,
        PROTOCOL_ERROR, RESUMABLE_CHANGE_STREAM_ERROR, RETRYABLE_ERROR, RETRYABLE_WRITE_ERROR,
        SECOND_USER_OF_ANOTHER_DATABASE, SECOND_USER_OF_SAME_DATABASE, SHUTDOWN_IN_PROGRESS,
        SYSTEM_OVERLOADED_ERROR, TRANSIENT_TRANSACTION_ERROR, TYPE_MISMATCH, UNAUTHORIZED,
        UNKNOWN_SPECULATIVE_COMMAND, UNSUPPORTED_OP_QUERY_COMMAND, is_state_change,
        nothing_was_done, reports_server_failure,
    },
    inspect::{Command, InspectError, MaxTime, Target},
    read_preference::{Mode, ReadPreference, ReadPreferenceError},
    reply::{ReplyFacts, ReplyScanner},
    rewrite::conceal_state_change,
    secrets::{command_may_be_shown, exchange_may_be_shown},
    statements::statements,
    table::{Class, Handshake, ReplyForm},
};

use seawall_wire::Sequence;

/// The bytes of one command in an OP_MSG.
#[derive(Copy, Clone, Debug)]
pub struct CommandBytes<'a> {
    /// The body section: one BSON document.
    pub body: &'a [u8],
    /// The document sequences, in any order.
    pub sequences: &'a [Sequence<'a>],
}

impl<'a> CommandBytes<'a> {
    /// A command without document sequences.
    pub const fn of_body(body: &'a [u8]) -> Self {
        Self {
            body,
            sequences: &[],
        }
    }

    /// Number of bytes of the body and of the documents in the sequences.
    pub fn bytes(&self) -> usize {
        let sequences = self.sequences.iter();
        self.body.len() + sequences.map(|s| s.documents.len()).sum::<usize>()
    }
}
