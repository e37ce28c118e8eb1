//! One connection of a load. It sends prepared messages and checks that each reply has `ok: 1`.

use std::net::SocketAddr;

use bson::{RawBsonRef, RawDocument, doc};
use seawall_tests::raw::{Login, RawClient, message::HEADER_BYTES};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The address to which a load connects, and the login with which its connections authenticate.
#[derive(Clone, Debug)]
pub struct LinkTarget {
    /// Address of Seawall, or of a server itself.
    pub address: SocketAddr,
    /// The login; `None` if authentication is off.
    pub login: Option<Login>,
}

/// A connection that is ready for operations.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    request_id: i32,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Link {
    /// Connects, sends `hello` and logs in.
    ///
    /// # Panics
    /// If the connection or the login is refused.
    pub async fn connect(target: &LinkTarget) -> Self {
        let stream = TcpStream::connect(target.address).await;
        let stream = stream.expect("the target accepts connections");
        stream.set_nodelay(true).expect("the option can be set");
        let stream = stream.into_std().expect("the stream can be deregistered");
        // `RawClient` uses a second handle of the connection for `hello` and the login. It reads no
        // bytes after these replies, so the first handle gets all later replies.
        let twin = stream.try_clone().expect("a descriptor is free");
        let twin = TcpStream::from_std(twin).expect("the stream can be registered");
        let mut client = RawClient::new(twin);
        client.hello(doc! {}).await.expect("hello succeeds");
        if let Some(login) = &target.login {
            let outcome = client.login(login).await.expect("the target replies");
            assert!(outcome.is_authenticated(), "{:?}", outcome.verdict);
        }
        Self {
            stream: TcpStream::from_std(stream).expect("the stream can be registered"),
            request_id: 0,
            request: Vec::new(),
            reply: Vec::new(),
        }
    }

    /// Establishes `count` connections, one after another.
    pub async fn connect_all(target: &LinkTarget, count: usize) -> Vec<Self> {
        let mut links = Vec::with_capacity(count);
        for _ in 0..count {
            links.push(Self::connect(target).await);
        }
        links
    }

    /// Sends a message with a new request id, and reads its reply.
    ///
    /// # Panics
    /// If the reply belongs to another message or has no `ok: 1`, or if the connection is closed.
    pub async fn run(&mut self, message: &[u8]) {
        self.request_id = self.request_id.wrapping_add(1);
        self.request.clear();
        self.request.extend_from_slice(message);
        let number = self.request.get_mut(4..8).expect("a message has a header");
        number.copy_from_slice(&self.request_id.to_le_bytes());
        let written = self.stream.write_all(&self.request).await;
        written.expect("the request can be written");
        self.read_reply().await;
        let body = self.reply.get(HEADER_BYTES + 5..).unwrap_or_default();
        let body = RawDocument::from_bytes(body).expect("a reply has a body");
        let is_ok = matches!(
            body.get("ok"),
            Ok(Some(RawBsonRef::Double(1.0) | RawBsonRef::Int32(1)))
        );
        assert!(is_ok, "{body:?}");
    }

    async fn read_reply(&mut self) {
        self.reply.clear();
        while !self.is_whole() {
            let read = self.stream.read_buf(&mut self.reply).await;
            let read = read.expect("the reply can be read");
            assert_ne!(read, 0, "the connection was closed");
        }
    }

    /// True if the reply is complete. Panics if the reply belongs to another message.
    fn is_whole(&self) -> bool {
        let field = |at: usize| {
            let bytes = self.reply.get(at..at + 4)?;
            bytes.try_into().ok().map(i32::from_le_bytes)
        };
        let (Some(length), Some(response_to)) = (field(0), field(8)) else {
            return false;
        };
        assert_eq!(response_to, self.request_id, "a reply to another request");
        usize::try_from(length).is_ok_and(|length| self.reply.len() >= length)
    }
}

/// Encodes a command as an OP_MSG. [`Link::run`] replaces its request id.
pub fn message(command: &RawDocument) -> Vec<u8> {
    seawall_wire::encode_request(0, command.as_bytes())
}
