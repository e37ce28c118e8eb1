//! Seawall's own commands on a server connection, such as `hello`. Such commands are few and small,
//! so this module reads each reply into memory as a whole.

use std::io;

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use super::Connection;
use seawall_command::COMMAND_NOT_FOUND;
use seawall_wire::{
    FrameError, HEADER_BYTES, Header, MAX_WIRE_DOCUMENT_BYTES, MessageError, OpCode, OpMsg,
    encode_request,
};

/// The reason why a command of Seawall itself got no valid reply. The connection must not be used
/// again.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The reply has an invalid header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The reply is not a valid `OP_MSG`.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The reply's document is not BSON.
    #[error("the reply is not valid BSON")]
    Bson,
    /// The reply belongs to another request.
    #[error("got the reply to request {response_to} instead of the reply to request {request_id}")]
    ForeignReply {
        /// `requestID` of the sent command.
        request_id: i32,
        /// `responseTo` of the reply.
        response_to: i32,
    },
    /// The reply is not an `OP_MSG`.
    #[error("got a reply with opcode {op_code} instead of 2013")]
    OtherOpCode {
        /// `opCode` of the reply.
        op_code: i32,
    },
    /// Another reply follows (`moreToCome`), although the command allows only one.
    #[error("another reply follows the reply")]
    MoreToCome,
}

impl Connection {
    /// Sends a command, which must contain `$db`, and returns the reply. A reply with `ok: 0` is
    /// not an error here.
    ///
    /// Not cancel safe: if the future is dropped before it ends, the caller must close the
    /// connection.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub async fn run(&mut self, command: &RawDocument) -> Result<RawDocumentBuf, ControlError> {
        let request_id = self.request_id();
        // The buffers are zeroed after use, because a command can contain the proof of a login, and
        // a reply can contain keys.
        let request = Zeroizing::new(encode_request(request_id, command.as_bytes()));
        self.stream.write_all(&request).await?;
        self.stream.flush().await?;
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).await?;
        let header = Header::parse(&head, MAX_WIRE_DOCUMENT_BYTES)?;
        let mut message = Zeroizing::new(vec![0; header.message_length]);
        let (front, rest) = message.split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&head);
        self.stream.read_exact(rest).await?;
        if header.response_to != request_id {
            return Err(ControlError::ForeignReply {
                request_id,
                response_to: header.response_to,
            });
        }
        if header.op_code != OpCode::Msg {
            let op_code = header.op_code.as_i32();
            return Err(ControlError::OtherOpCode { op_code });
        }
        let reply = OpMsg::parse(&message)?;
        if reply.more_to_come() {
            return Err(ControlError::MoreToCome);
        }
        RawDocumentBuf::from_bytes(reply.body.to_vec()).map_err(|_| ControlError::Bson)
    }
}

impl Connection {
    /// Sends `hello`, or `isMaster` to a server that does not know `hello` (before 4.4.2).
    ///
    /// # Errors
    /// See [`ControlError`].
    pub async fn hello(&mut self) -> Result<RawDocumentBuf, ControlError> {
        if !self.lacks_hello {
            let hello = rawdoc! { "hello": 1, "helloOk": true, "$db": "admin" };
            let reply = self.run(&hello).await?;
            self.lacks_hello = matches!(reply_is_ok(&reply), Err((COMMAND_NOT_FOUND, _)));
            if !self.lacks_hello {
                return Ok(reply);
            }
        }
        self.run(&rawdoc! { "isMaster": 1, "$db": "admin" }).await
    }
}

/// Returns `Ok` if the field `ok` of the reply is true or a number other than zero.
///
/// # Errors
/// The reply's error code and message. The code is 0 if the reply has none.
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

#[cfg(test)]
mod tests {
    use tokio::{net::UnixStream, time::Instant};

    use super::*;
    use crate::Stream;
    use seawall_wire::{MORE_TO_COME, encode_op_msg_like, encode_op_reply};

    #[tokio::test]
    async fn the_error_for_an_unexpected_reply_says_what_was_not_expected() {
        let body = rawdoc! { "ok": 1 };
        let body = body.as_bytes();
        let mut more = encode_op_msg_like(0, 1, 1, body);
        more[HEADER_BYTES..][..4].copy_from_slice(&MORE_TO_COME.to_le_bytes());
        for (reply, message) in [
            (
                encode_op_msg_like(0, 1, 5, body),
                "got the reply to request 5 instead of the reply to request 1",
            ),
            (
                encode_op_reply(0, 1, 1, body),
                "got a reply with opcode 1 instead of 2013",
            ),
            (more, "another reply follows the reply"),
        ] {
            let (stream, mut server) = UnixStream::pair().unwrap();
            let mut connection = Connection::new(Stream::Unix(stream), Instant::now());
            // The first request has the id 1.
            server.write_all(&reply).await.unwrap();
            let error = connection.run(&rawdoc! { "ping": 1 }).await.unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
