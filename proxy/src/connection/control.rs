//! Commands of our own on a connection: few, small, and decoded.

use std::io;

use bson::{RawDocument, RawDocumentBuf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Connection;
use crate::wire::{
    FrameError, HEADER_BYTES, Header, MAX_WIRE_DOCUMENT_BYTES, MessageError, OpCode, OpMsg,
    encode_request,
};

/// Why a command of our own had no reply. The connection must not be used again.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The stream broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The reply's framing is wrong.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The reply is no sound `OP_MSG`.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The reply's document is not BSON.
    #[error("reply is not BSON")]
    Bson,
    /// The reply answers another request.
    #[error("reply to request {response_to} instead of {request_id}")]
    ForeignReply {
        /// What was sent.
        request_id: i32,
        /// What was answered.
        response_to: i32,
    },
}

impl Connection {
    /// Sends a command (`$db` included) and returns the reply, `ok: 0` or not.
    ///
    /// Not cancel safe: a connection on which this was dropped half-way must be closed.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub async fn run(&mut self, command: &RawDocument) -> Result<RawDocumentBuf, ControlError> {
        let request_id = self.request_id();
        let request = encode_request(request_id, command.as_bytes());
        self.stream.write_all(&request).await?;
        self.stream.flush().await?;
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).await?;
        let header = Header::parse(&head, MAX_WIRE_DOCUMENT_BYTES)?;
        let mut message = vec![0; header.message_length];
        let (front, rest) = message.split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&head);
        self.stream.read_exact(rest).await?;
        if header.op_code != OpCode::Msg || header.response_to != request_id {
            return Err(ControlError::ForeignReply {
                request_id,
                response_to: header.response_to,
            });
        }
        let reply = OpMsg::parse(&message)?;
        RawDocumentBuf::from_bytes(reply.body.to_vec()).map_err(|_| ControlError::Bson)
    }
}

/// Whether a reply says `ok: 1`; else its code and text.
///
/// # Errors
/// The server's code (0 if it gave none) and message.
pub fn reply_is_ok(reply: &RawDocument) -> Result<(), (i32, String)> {
    let ok = reply.get("ok").ok().flatten();
    let is_ok = ok.is_some_and(|ok| match ok {
        bson::RawBsonRef::Double(n) => n != 0.0,
        bson::RawBsonRef::Int32(n) => n != 0,
        bson::RawBsonRef::Int64(n) => n != 0,
        bson::RawBsonRef::Boolean(b) => b,
        _ => false,
    });
    if is_ok {
        return Ok(());
    }
    let message = reply.get_str("errmsg").unwrap_or_default();
    Err((reply.get_i32("code").unwrap_or(0), message.to_owned()))
}
