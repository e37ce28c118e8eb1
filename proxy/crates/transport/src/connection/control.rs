//! Seawall's own commands on a connection: few, small, and decoded.

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

/// Why Seawall's own command got no reply. The connection must not be used again.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The stream broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The reply's framing is wrong.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The reply is not a valid `OP_MSG`.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The reply's document is not BSON.
    #[error("reply is not BSON")]
    Bson,
    /// The reply belongs to another request.
    #[error("reply to request {response_to} instead of {request_id}")]
    ForeignReply {
        /// The request that was sent.
        request_id: i32,
        /// The request that the reply names.
        response_to: i32,
    },
}

impl Connection {
    /// Sends a command (`$db` included) and returns the reply, also if it says `ok: 0`.
    ///
    /// Not cancel safe: if this future is dropped before it ends, close the connection.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub async fn run(&mut self, command: &RawDocument) -> Result<RawDocumentBuf, ControlError> {
        let request_id = self.request_id();
        // Seawall's own commands can carry logins, and the replies can carry keys.
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

/// True if the server requires clients to log in. The check runs on this connection, because the
/// server process behind a connection cannot change. It uses a command that any server runs in any
/// state, but never for a client that has not logged in, not even for one on the server's own host.
///
/// # Errors
/// See [`ControlError`].
pub async fn requires_authentication(connection: &mut Connection) -> Result<bool, ControlError> {
    let command = rawdoc! { "getParameter": 1, "logLevel": 1, "$db": "admin" };
    let reply = connection.run(&command).await?;
    // The server checks privileges before it runs the command. An error other than UNAUTHORIZED
    // does not show that access was granted.
    Ok(reply_is_ok(&reply).is_err())
}

/// `Ok` if the reply says `ok: 1`; otherwise its code and message.
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
