//! The framing of the MongoDB wire protocol: converts bytes to messages and back.
//!
//! This crate knows headers, `OP_MSG` with its sections and checksum, the legacy `OP_QUERY` of the
//! handshake, compressed messages and the elements of a document. It does no I/O and does not know
//! the meaning of a command. It parses documents without copying them, and it checks a length
//! against a limit before it allocates memory.
//!
//! ```text
//! message  = header(16) + body      header = messageLength requestID responseTo opCode, int32 each
//! OP_MSG   = flagBits(4) + section+ + [CRC-32C(4)]
//! section  = 0 document | 1 size(4) identifier\0 document*
//! OP_COMPRESSED = another message, compressed
//! OP_QUERY = flags(4) namespace\0 skip(4) nToReturn(4) document [document]
//! ```
//!
//! Source: <https://www.mongodb.com/docs/manual/reference/mongodb-wire-protocol/>.

mod bson;
mod build;
mod compressed;
mod header;
pub mod kind;
mod op_msg;
mod op_query;
mod sections;
mod write;

pub use self::{
    bson::{
        BsonError, Element, ElementKind, Elements, RawElement, document_at, double_to_i64, head_of,
        name_length,
    },
    build::{encode_op_msg_like, encode_op_reply, encode_request},
    compressed::{COMPRESSED_HEAD_BYTES, CompressedHead, Compressor, InflateError, deflate},
    header::{FrameError, HEADER_BYTES, Header, OpCode},
    op_msg::{
        CHECKSUM_PRESENT, EXHAUST_ALLOWED, MAX_SEQUENCES, MORE_TO_COME, MessageError, OpMsg,
        Sequence, checksum,
    },
    op_query::OpQuery,
    sections::{DocumentWalk, SectionWalk},
    write::{reserve_length, set_length, string_value},
};

/// The largest message that a server accepts, in bytes, including the header
/// (`maxMessageSizeBytes`).
pub const MAX_MESSAGE_BYTES: usize = 48_000_000;

/// The largest document that a server stores, in bytes (`maxBsonObjectSize`).
pub const MAX_BSON_OBJECT_BYTES: usize = 16_777_216;

/// By default, servers accept at most this many levels of nesting inside a document
/// (`maxBSONDepth`). The document itself does not count.
pub const MAX_BSON_DEPTH: usize = 200;

/// The largest document that a server accepts on the wire, in bytes: the largest stored document,
/// plus 16 KiB for the command around it.
pub const MAX_WIRE_DOCUMENT_BYTES: usize = MAX_BSON_OBJECT_BYTES + 16 * 1024;

const _: () = assert!(MAX_WIRE_DOCUMENT_BYTES < MAX_MESSAGE_BYTES);
