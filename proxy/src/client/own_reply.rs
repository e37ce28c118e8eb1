//! Encodes Seawall's own replies: a document becomes a message that fits its request. The message
//! has the opcode with which servers reply to such a request. It is compressed only if the request
//! is compressed, and it has a checksum only if the request has a checksum.

use bson::RawDocument;

use super::request::pack;
use crate::limits::Heavy;
use seawall_command::ErrorReply;
use seawall_transport::Message;
use seawall_wire::{CHECKSUM_PRESENT, Compressor, EXHAUST_ALLOWED, MORE_TO_COME};

/// The properties of a request that its reply must match.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyTo {
    pub(super) request_id: i32,
    pub(super) form: Form,
    /// Compressor of the request; `None` if the request was not compressed. Like a server, Seawall
    /// compresses a reply only if its request was compressed, and with the same compressor.
    pub(super) compressor: Option<Compressor>,
}

/// Opcode of the request, which determines the opcode of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// An `OP_MSG` with these flags.
    Msg { flags: u32 },
    /// A command in a legacy `OP_QUERY`.
    Query,
    /// A read by a legacy opcode, which is always refused.
    LegacyRead,
}

/// Flag bit `AwaitCapable` of an `OP_REPLY`. Servers set it in replies to commands.
const AWAIT_CAPABLE: u32 = 8;
/// Flag bit `QueryFailure` of an `OP_REPLY`: the document of the reply is `{$err, code}`.
const QUERY_FAILURE: u32 = 2;

impl ReplyTo {
    /// Reads the properties from the request `message`.
    pub(super) fn of(message: &Message, form: Form) -> Self {
        Self {
            request_id: message.header.request_id,
            form,
            compressor: message.compressor,
        }
    }

    /// Compresses the encoded reply `plain` if its request was compressed.
    pub(super) async fn pack(self, plain: Vec<u8>, heavy: Heavy<'_>) -> Vec<u8> {
        match self.compressor {
            None => plain,
            Some(compressor) => pack(plain, compressor, heavy).await,
        }
    }

    /// True if the client wants no reply (`moreToCome`), not even an error.
    pub(super) fn is_unwanted(self) -> bool {
        matches!(self.form, Form::Msg { flags } if flags & MORE_TO_COME != 0)
    }

    /// True if the client accepts several replies (`exhaustAllowed`).
    pub(super) fn allows_exhaust(self) -> bool {
        matches!(self.form, Form::Msg { flags } if flags & EXHAUST_ALLOWED != 0)
    }

    /// Encodes a reply whose `requestID` is `own_id`, with the opcode that fits the request, and
    /// with a checksum if the request had one.
    pub(super) fn encode(self, own_id: i32, document: &RawDocument) -> Vec<u8> {
        let bytes = document.as_bytes();
        let legacy = |flags| seawall_wire::encode_op_reply(flags, own_id, self.request_id, bytes);
        match self.form {
            Form::Query => legacy(AWAIT_CAPABLE),
            Form::LegacyRead => legacy(QUERY_FAILURE),
            Form::Msg { flags } => {
                let like = flags & CHECKSUM_PRESENT;
                seawall_wire::encode_op_msg_like(like, own_id, self.request_id, bytes)
            }
        }
    }
}

/// The error with which a mongod refuses `command` on a connection that is not authenticated.
pub(super) fn requires_authentication(command: &str) -> ErrorReply {
    let message = format!("command {command} requires authentication");
    ErrorReply::new(seawall_command::UNAUTHORIZED, message)
}
