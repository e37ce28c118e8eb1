//! A client without a driver: it sends exactly what the test requests, and never retries.
//!
//! If a server returns an error, the client returns it as a reply. A [`RawError`] is a failure of
//! the connection: the connection was closed or failed, a time limit was exceeded, or the received
//! bytes are not the expected reply.

pub mod message;
pub mod scram;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use self::message::HEADER_BYTES;
pub use self::message::{Header, OpMsg, OpQuery, RawReply, Section};
pub use self::scram::{Begun, KeyCache, Login, Mechanism, Outcome, Start, Verdict};

/// One connection to a server or proxy.
pub struct RawClient {
    stream: Box<dyn Stream>,
    next_request_id: i32,
    limit: Duration,
}

impl RawClient {
    /// Connects to a server or proxy over TCP, without TLS.
    pub async fn connect(address: SocketAddr) -> Result<Self, RawError> {
        let stream = within(CONNECT_LIMIT, TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }

    /// Connects to a Unix domain socket.
    pub async fn connect_unix(path: &Path) -> Result<Self, RawError> {
        Ok(Self::new(
            within(CONNECT_LIMIT, UnixStream::connect(path)).await?,
        ))
    }

    /// Connects over TLS. The certificate of the server or proxy must be valid for `name`.
    pub async fn connect_tls(
        address: SocketAddr,
        name: &str,
        config: Arc<ClientConfig>,
    ) -> Result<Self, RawError> {
        let stream = within(CONNECT_LIMIT, TcpStream::connect(address)).await?;
        stream.set_nodelay(true)?;
        Self::begin_tls(stream, name, config).await
    }

    /// Begins TLS on a connection. The certificate of the server or proxy must be valid for `name`.
    pub async fn begin_tls(
        stream: TcpStream,
        name: &str,
        config: Arc<ClientConfig>,
    ) -> Result<Self, RawError> {
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(config).connect(name, stream);
        Ok(Self::new(within(CONNECT_LIMIT, stream).await?))
    }

    /// A client on a connection that the test has opened.
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            next_request_id: 1,
            limit: DEFAULT_LIMIT,
        }
    }

    /// Sets the time limit to send or receive one message. The default is 30 seconds.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Sends bytes unchanged, whether or not they are a valid message.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), RawError> {
        let stream = &mut self.stream;
        within(self.limit, async move {
            stream.write_all(bytes).await?;
            stream.flush().await
        })
        .await
    }

    /// Sends a message and returns its `requestID`. The client replaces the `requestID` 0 by the
    /// next number of a counter.
    pub async fn send(&mut self, message: &OpMsg) -> Result<i32, RawError> {
        let mut message = message.clone();
        message.request_id = self.request_id_for(message.request_id);
        self.send_bytes(&message.to_bytes()).await?;
        Ok(message.request_id)
    }

    /// Sends a legacy message and returns its `requestID`. The client replaces the `requestID` 0 by
    /// the next number of a counter.
    pub async fn send_query(&mut self, message: &OpQuery) -> Result<i32, RawError> {
        let mut message = message.clone();
        message.request_id = self.request_id_for(message.request_id);
        self.send_bytes(&message.to_bytes()).await?;
        Ok(message.request_id)
    }

    /// Reads exactly `byte_count` bytes. They may end inside a message.
    pub async fn read_bytes(&mut self, byte_count: usize) -> Result<Vec<u8>, RawError> {
        let stream = &mut self.stream;
        within(self.limit, async move {
            let mut bytes = vec![0; byte_count];
            stream.read_exact(&mut bytes).await?;
            Ok::<_, io::Error>(bytes)
        })
        .await
    }

    /// Reads one message with any opcode.
    pub async fn read_message(&mut self) -> Result<Vec<u8>, RawError> {
        let stream = &mut self.stream;
        within(self.limit, read_message(stream)).await
    }

    /// Reads one OP_MSG or OP_REPLY.
    pub async fn read_reply(&mut self) -> Result<RawReply, RawError> {
        let message = self.read_message().await?;
        RawReply::parse(message).ok_or(RawError::Malformed)
    }

    /// Sends a message and reads its reply. The reply's `responseTo` must be the `requestID` of the
    /// message.
    pub async fn exchange(&mut self, message: &OpMsg) -> Result<RawReply, RawError> {
        let request_id = self.send(message).await?;
        self.read_reply_to(request_id).await
    }

    /// Runs a command on a database, as an OP_MSG with one section.
    pub async fn command(&mut self, db: &str, mut command: Document) -> Result<RawReply, RawError> {
        command.insert("$db", db);
        self.exchange(&OpMsg::new(command)).await
    }

    /// Like [`Self::command`], for a command that must succeed.
    ///
    /// # Panics
    /// If there is no reply, or if its `ok` is not 1.
    pub async fn expect_ok(&mut self, db: &str, command: Document) -> RawReply {
        let reply = self.command(db, command).await.expect("a reply");
        assert!(reply.is_ok(), "{reply:?}");
        reply
    }

    /// Waits until Seawall has counted this client's earlier operations. Seawall counts an
    /// operation after it has sent the reply, but before it reads the client's next message.
    pub async fn wait_until_counted(&mut self) -> Result<(), RawError> {
        self.command("admin", doc! { "ping": 1 }).await.map(drop)
    }

    /// Sends `hello` in an OP_MSG. `fields` follow the command's name.
    pub async fn hello(&mut self, fields: Document) -> Result<RawReply, RawError> {
        let mut command = doc! { "hello": 1 };
        command.extend(fields);
        self.command("admin", command).await
    }

    /// Sends `isMaster` in an OP_MSG. Servers before 4.4.2 know this command, but not `hello`.
    /// `fields` follow the command's name.
    pub async fn greet(&mut self, fields: Document) -> Result<RawReply, RawError> {
        let mut command = doc! { "isMaster": 1, "helloOk": true };
        command.extend(fields);
        self.command("admin", command).await
    }

    /// Sends `isMaster` in an OP_QUERY, as most drivers do on a new connection. `fields` follow the
    /// command's name.
    pub async fn legacy_hello(&mut self, fields: Document) -> Result<RawReply, RawError> {
        let mut command = doc! { "isMaster": 1, "helloOk": true };
        command.extend(fields);
        let request_id = self.send_query(&OpQuery::new(command)).await?;
        self.read_reply_to(request_id).await
    }

    /// Authenticates. A refusal by the server is an [`Outcome`], not an error.
    pub async fn login(&mut self, login: &Login) -> Result<Outcome, RawError> {
        scram::run(self, login).await
    }

    /// Begins an authentication, and stops after the server's challenge.
    pub async fn begin_login(&mut self, login: &Login) -> Result<Begun, RawError> {
        scram::begin_login(self, login).await
    }

    /// Sends the proof of an authentication that [`Self::begin_login`] has begun.
    pub async fn finish_login(&mut self, begun: &Begun) -> Result<Outcome, RawError> {
        scram::finish_login(self, begun).await
    }

    /// Reads until the server or proxy closes or resets the connection. Returns the bytes received
    /// until then.
    pub async fn read_to_close(&mut self) -> Result<Vec<u8>, RawError> {
        let stream = &mut self.stream;
        within(self.limit, async move {
            let mut bytes = Vec::new();
            match stream.take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes).await {
                Ok(_) => Ok(bytes),
                Err(error) if is_close(&error) => Ok(bytes),
                Err(error) => Err(error),
            }
        })
        .await
    }

    async fn read_reply_to(&mut self, request_id: i32) -> Result<RawReply, RawError> {
        let reply = self.read_reply().await?;
        if reply.header.response_to != request_id {
            return Err(RawError::OtherReply {
                request_id,
                response_to: reply.header.response_to,
            });
        }
        Ok(reply)
    }

    fn request_id_for(&mut self, requested: i32) -> i32 {
        if requested != 0 {
            return requested;
        }
        let request_id = self.next_request_id;
        self.next_request_id = request_id.wrapping_add(1);
        request_id
    }
}

impl fmt::Debug for RawClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawClient")
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The reason why a connection gave no reply.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The server or proxy closed the connection between two messages, or reset it.
    #[error("the connection was closed")]
    Closed,
    /// The server or proxy closed the connection inside a message.
    #[error("the connection was closed inside a message")]
    Truncated,
    /// The connection was not established within the time limit, or one message was not completely
    /// sent or received within the time limit.
    #[error("no connection or no complete message within {limit:?}")]
    TimedOut {
        /// The time limit that was exceeded.
        limit: Duration,
    },
    /// A message is not the expected reply, or its length is invalid.
    #[error("the message is not the expected reply, or its length is invalid")]
    Malformed,
    /// The reply's `responseTo` is not the `requestID` of the message that was sent.
    #[error("the reply is for request {response_to}, not {request_id}")]
    OtherReply {
        /// The `requestID` of the sent message.
        request_id: i32,
        /// The `responseTo` of the reply.
        response_to: i32,
    },
    /// An error of the operating system or of TLS.
    #[error("the connection failed")]
    Io(#[source] io::Error),
}

impl From<io::Error> for RawError {
    fn from(error: io::Error) -> Self {
        if is_close(&error) {
            Self::Closed
        } else {
            Self::Io(error)
        }
    }
}

/// A stream of bytes in both directions.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, RawError> {
    let mut message = vec![0; HEADER_BYTES];
    // The first byte is read alone, to distinguish a close between two messages from a close inside
    // a message.
    let (first, rest) = message.split_at_mut(1);
    if stream.read(first).await? == 0 {
        return Err(RawError::Closed);
    }
    let truncated = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => RawError::Truncated,
        _ => RawError::from(error),
    };
    stream.read_exact(rest).await.map_err(truncated)?;
    let header = Header::parse(&message).ok_or(RawError::Malformed)?;
    let length = u64::try_from(header.message_length).map_err(|_| RawError::Malformed)?;
    let body_bytes = length
        .checked_sub(u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX))
        .filter(|_| length <= MAX_MESSAGE_BYTES)
        .ok_or(RawError::Malformed)?;
    let read = stream.take(body_bytes).read_to_end(&mut message).await?;
    if u64::try_from(read) != Ok(body_bytes) {
        return Err(RawError::Truncated);
    }
    Ok(message)
}

async fn within<T, E: Into<RawError>>(
    limit: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, RawError> {
    match timeout(limit, work).await {
        Ok(result) => result.map_err(Into::into),
        Err(_) => Err(RawError::TimedOut { limit }),
    }
}

fn is_close(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            // A TLS connection that was closed without `close_notify`.
            | io::ErrorKind::UnexpectedEof
    )
}

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
const DEFAULT_LIMIT: Duration = Duration::from_secs(30);
/// Maximum length of a message in bytes. Servers have the same limit. It limits how much a test
/// reads if the length in a header is wrong.
const MAX_MESSAGE_BYTES: u64 = 48_000_000;
