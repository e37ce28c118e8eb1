//! The two directions of a relay: the client's requests to the server, and the server's replies to
//! the client.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf, split},
    sync::{Mutex as AsyncMutex, Notify},
    time::{Instant, timeout},
};

use super::{
    admission::Admission,
    replies::{Replies, ReplyEvent},
    watch::{RequestVerdict, Watch},
};
use crate::{
    client::{
        Shared,
        streaming::{StreamError, can_be_streamed, forward_rest},
    },
    observe::{ConnectedClient, ServerIndex},
};
use seawall_locks::Mutex;
use seawall_stats::{Departure, Stage};
use seawall_transport::{MESSAGE_LIMIT, Message, MessageReader, ReadError, Sharer, Stream, Wear};
use seawall_wire::{MAX_MESSAGE_BYTES, OpCode, OpMsg};

/// Largest number of requests that wait for replies. At this number, Seawall stops reading from the
/// client, so that the requests in progress use little memory.
const MAX_PENDING: usize = 256;

/// Maximum number of bytes that one read from a server returns.
const CHUNK_BYTES: usize = 16 * 1024;

/// How long Seawall waits for the server to end the connection after the client has left. If the
/// client has begun TLS with the server, also how long Seawall waits for the client after the
/// server has ended the connection. A side that hangs would never end its connection.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// The two directions of a relay, and their shared state.
pub(super) struct Relay<'a> {
    shared: &'a Arc<Shared>,
    watch: Mutex<Watch<'a>>,
    /// Notified when a reply is complete, so that another request may be sent.
    has_room: Notify,
    /// Number of requests that the client has sent so far.
    requests: AtomicU64,
    /// True from the first byte of a request until Seawall has forwarded or refused the request.
    has_request: AtomicBool,
}

/// Reads the client's bytes. When bytes arrive, [`Relay::has_request`] becomes true, so that a
/// client that sends a request slowly does not count as idle.
struct FromClient<'a> {
    stream: ReadHalf<Stream>,
    has_request: &'a AtomicBool,
}

impl AsyncRead for FromClient<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, room);
        if room.filled().len() > before {
            self.has_request.store(true, Ordering::Relaxed);
        }
        read
    }
}

/// The reason why one direction of a relay ended.
enum DirectionEnd {
    /// The side that Seawall reads from has closed its connection. A failed read from the server
    /// counts too.
    Peer,
    /// The server accepts no more bytes, but may still reply to earlier requests.
    Server,
    /// Seawall could not read from the client, or could not write to the client.
    Broken,
    /// The client has reset its connection.
    Reset,
    /// Seawall closes the relay: a message is malformed or not allowed, the client is too slow, or
    /// a TLS 1.2 connection is [worn out](Wear). A worn-out connection has used its keys for almost
    /// as many records as TLS allows.
    Closed,
}

impl DirectionEnd {
    /// How the client's connection ends; `None` if the client left, or after [`Self::Broken`].
    /// `is_of_server` is true if the direction from the server to the client ended.
    fn departure(self, is_of_server: bool) -> Option<Departure> {
        match self {
            Self::Peer if is_of_server => Some(Departure::Closed),
            Self::Server | Self::Closed => Some(Departure::Closed),
            Self::Reset => Some(Departure::Reset),
            Self::Peer | Self::Broken => None,
        }
    }
}

type ClientWriter = AsyncMutex<WriteHalf<Stream>>;

impl<'a> Relay<'a> {
    /// Creates a relay. `admission` limits the client until it has logged in.
    pub(super) fn new(
        shared: &'a Arc<Shared>,
        connected: &'a ConnectedClient,
        server: ServerIndex,
        admission: Admission<'a>,
    ) -> Self {
        let watch = Watch::new(shared, connected, server, admission);
        Self {
            shared,
            watch: Mutex::new(watch),
            has_room: Notify::new(),
            requests: AtomicU64::new(0),
            has_request: AtomicBool::new(false),
        }
    }

    /// The number of requests so far; `None` while the relay is busy. The relay is busy while the
    /// client sends a request, while Seawall forwards a request or a reply, and while a reply is
    /// awaited. The reply to a `hello` does not count as awaited: a monitor always waits for the
    /// reply that reports the server's next change.
    pub(super) fn activity(&self) -> Option<u64> {
        let has_request = self.has_request.load(Ordering::Relaxed);
        let is_idle = !has_request && !self.watch.lock().awaits_or_sends();
        is_idle.then(|| self.requests.load(Ordering::Relaxed))
    }

    /// True if one of the connections is worn out ([`Wear::is_worn_out`]), and the relay is idle.
    fn has_to_end(&self, wear: &[Wear]) -> bool {
        let has_to_end = wear.iter().any(Wear::is_worn_out) && self.activity().is_some();
        if has_to_end {
            tracing::debug!(
                "closing the connection of a relayed client: a TLS 1.2 connection has almost \
                 reached its maximum number of records"
            );
        }
        has_to_end
    }

    /// Resolves when the client's login is overdue.
    pub(super) fn login_overdue(&self) -> impl Future<Output = ()> + use<> {
        self.watch.lock().login_overdue()
    }

    /// The activity of the client at the end of the relay, for example a login, or the wait for the
    /// reply to an operation.
    pub(super) fn stage(&self) -> Stage {
        self.watch.lock().stage()
    }

    /// Relays until the client or the server ends its connection, or until Seawall closes the relay
    /// ([`DirectionEnd::Closed`]). Returns how Seawall ends the client's connection. Returns `None`
    /// if the client has ended it, or if the connection is broken.
    pub(super) async fn run(
        &self,
        client: Stream,
        reader: MessageReader,
        first: Option<Message>,
        server: Stream,
    ) -> Option<Departure> {
        let wear = [client.wear(), server.wear()];
        let (stream, to_client) = split(client);
        let mut from_client = FromClient {
            stream,
            has_request: &self.has_request,
        };
        let (from_server, mut to_server) = split(server);
        let to_client = AsyncMutex::new(to_client);
        let mut replies = std::pin::pin!(self.replies(from_server, &to_client, &wear));
        let requests = self.requests(
            &mut from_client,
            reader,
            first,
            &mut to_server,
            &to_client,
            &wear,
        );
        let ended = tokio::select! {
            ended = requests => ended,
            ended = &mut replies => return ended.departure(true),
        };
        self.watch.lock().keep_stage();
        let leave = async {
            if matches!(ended, DirectionEnd::Peer) {
                // The client's bytes have been forwarded. After the shutdown, the server replies to
                // the last requests and ends the connection.
                drop(to_server.shutdown().await);
            }
        };
        if matches!(ended, DirectionEnd::Peer | DirectionEnd::Server) {
            drop(timeout(LEAVE_LIMIT, async { tokio::join!(leave, replies) }).await);
        }
        ended.departure(false)
    }

    /// Records a failure for all requests in progress, because the relay ends before their replies
    /// arrive.
    pub(super) fn abandon(&self) {
        self.watch.lock().fail_pending(Instant::now());
    }

    /// Forwards the client's requests to the server. Returns the reason why no more requests can be
    /// forwarded.
    async fn requests(
        &self,
        client: &mut FromClient<'_>,
        mut reader: MessageReader,
        first: Option<Message>,
        server: &mut WriteHalf<Stream>,
        to_client: &ClientWriter,
        wear: &[Wear],
    ) -> DirectionEnd {
        let mut next = first;
        loop {
            // The reader may already hold a part of the next request.
            let has_request = next.is_some() || !reader.buffered().is_empty();
            self.has_request.store(has_request, Ordering::Relaxed);
            // The wear is also checked after each reply. This check is for clients that send only
            // unacknowledged writes, which get no replies.
            if self.has_to_end(wear) {
                return DirectionEnd::Closed;
            }
            let message = match next.take() {
                Some(message) => message,
                None => match self.next(&mut reader, client).await {
                    Ok(Some(message)) => message,
                    Ok(None) => return DirectionEnd::Peer,
                    Err(error) => return self.not_read(&error),
                },
            };
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.watch.lock().mark_activity();
            let passing = self.pass(&message, &mut reader, client, server, to_client);
            if let Err(ended) = within_limit(passing).await {
                return ended;
            }
            self.watch.lock().mark_activity();
        }
    }

    /// Forwards a request to the server, or refuses it. First waits while too many requests wait
    /// for replies.
    async fn pass(
        &self,
        message: &Message,
        reader: &mut MessageReader,
        client: &mut FromClient<'_>,
        server: &mut WriteHalf<Stream>,
        to_client: &ClientWriter,
    ) -> Result<(), DirectionEnd> {
        while self.watch.lock().pending() >= MAX_PENDING {
            self.has_room.notified().await;
        }
        match self.verdict(message, reader.sharer()).await {
            RequestVerdict::Pass => {}
            RequestVerdict::Refuse(reply) => {
                let reply = reply.unwrap_or_default();
                return self.send_reply(&reply, to_client).await;
            }
            RequestVerdict::Close(reason) => {
                tracing::debug!(reason, "closing the connection of a relayed client");
                return Err(DirectionEnd::Closed);
            }
        }
        self.forward(message, reader, client, server).await?;
        self.watch.lock().record_forwarded_request(Instant::now());
        Ok(())
    }

    /// Reads the next request; `None` if the client has closed its connection.
    async fn next(
        &self,
        reader: &mut MessageReader,
        client: &mut FromClient<'_>,
    ) -> Result<Option<Message>, ReadError> {
        let budget = &self.shared.memory.requests;
        let message = loop {
            let max_message_bytes = self.max_message_bytes();
            match reader.next(client, max_message_bytes, budget).await {
                Ok(Some(message)) => break message,
                Ok(None) => return Ok(None),
                // The server accepted the login after this read began. The next iteration reads the
                // same message with the higher limit.
                Err(ReadError::Frame(_)) if self.max_message_bytes() > max_message_bytes => {}
                Err(error) => return Err(error),
            }
        };
        if !message.is_head() || can_be_streamed(&message) {
            return Ok(Some(message));
        }
        reader.complete(message, client, budget).await.map(Some)
    }

    /// Ends the direction from the client to the server after a read error.
    fn not_read(&self, error: &ReadError) -> DirectionEnd {
        tracing::debug!(%error, "could not read from a relayed client");
        match error.refusal() {
            Some(reason) => {
                self.shared.recorder.count_unobserved(reason);
                DirectionEnd::Closed
            }
            None if error.is_reset() => DirectionEnd::Reset,
            None => DirectionEnd::Broken,
        }
    }

    /// Largest size of the next message, in bytes. The limit is low for a client that has not
    /// logged in, so that it cannot use much memory.
    fn max_message_bytes(&self) -> usize {
        match self.watch.lock().has_to_log_in() {
            true => self.shared.settings().pre_auth_message_bytes,
            false => MAX_MESSAGE_BYTES,
        }
    }

    /// Decides if a request may pass. Inflates a compressed request first.
    async fn verdict(&self, message: &Message, sharer: Sharer) -> RequestVerdict {
        let now = message.head_since.unwrap_or_else(Instant::now);
        let heavy = self.shared.limits.heavy(sharer);
        if message.header.op_code != OpCode::Compressed {
            let inspecting = || self.watch.lock().request(message, now);
            return heavy.walk(message.bytes.len(), inspecting).await;
        }
        if self.watch.lock().has_to_log_in() {
            return RequestVerdict::close(&self.shared.recorder, "compressed_refused");
        }
        let reserved =
            message.reserve_for_inspection(MAX_MESSAGE_BYTES, &self.shared.memory.requests, sharer);
        let inflated = match reserved.await {
            Ok(inflating) => {
                let bytes = inflating.work_bytes();
                heavy.run(bytes, || inflating.inflate()).await
            }
            Err(error) => Err(error),
        };
        match inflated {
            Ok(inflated) => {
                let inspecting = || self.watch.lock().request(&inflated, now);
                heavy.walk(inflated.bytes.len(), inspecting).await
            }
            Err(_) => RequestVerdict::close(&self.shared.recorder, "relay_compressed"),
        }
    }

    /// Forwards a request to the server, in pieces if only its head has been read.
    async fn forward(
        &self,
        message: &Message,
        reader: &mut MessageReader,
        client: &mut FromClient<'_>,
        server: &mut WriteHalf<Stream>,
    ) -> Result<(), DirectionEnd> {
        let gone = |_: io::Error| DirectionEnd::Server;
        server.write_all(&message.bytes).await.map_err(gone)?;
        if message.is_head() {
            let parsed = OpMsg::parse_head(&message.bytes).map_err(|_| DirectionEnd::Closed)?;
            let rest = forward_rest(reader, client, server, message, &parsed, &|| false).await;
            let statements = rest.map_err(|error| self.not_forwarded(&error))?;
            let request_id = message.header.request_id;
            self.watch.lock().set_statements(request_id, statements);
        }
        server.flush().await.map_err(gone)
    }

    fn not_forwarded(&self, error: &StreamError) -> DirectionEnd {
        match error {
            StreamError::Server(_) => DirectionEnd::Server,
            StreamError::Client(error) => self.not_read(error),
            StreamError::Malformed(_) => {
                self.shared.recorder.count_unobserved("relay_malformed");
                DirectionEnd::Closed
            }
        }
    }

    /// Sends the client a reply that Seawall has built. If only a part of a server's reply has been
    /// forwarded, first waits until the rest of this reply has been forwarded.
    async fn send_reply(&self, reply: &[u8], to_client: &ClientWriter) -> Result<(), DirectionEnd> {
        let limit = self.shared.settings().client_write_idle_timeout;
        let sent = timeout(limit, async {
            let mut client = to_client.lock().await;
            client.write_all(reply).await?;
            client.flush().await
        });
        match sent.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(DirectionEnd::Broken),
            Err(_) => Err(DirectionEnd::Closed),
        }
    }

    /// Forwards the server's bytes as they arrive. While a reply is incomplete, the client's writer
    /// stays locked, so that Seawall's own replies are sent only between two replies. `wear` has
    /// the wear of the connections to the client and to the server.
    async fn replies(
        &self,
        mut server: ReadHalf<Stream>,
        to_client: &ClientWriter,
        wear: &[Wear],
    ) -> DirectionEnd {
        let mut replies = Replies::default();
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut locked_writer = None;
        loop {
            let length = match server.read(&mut chunk).await {
                Ok(length) if length > 0 => length,
                _ => {
                    self.watch.lock().fail_pending(Instant::now());
                    return DirectionEnd::Peer;
                }
            };
            let bytes = chunk.get(..length).unwrap_or_default();
            let mut writer = match locked_writer.take() {
                Some(writer) => writer,
                None => to_client.lock().await,
            };
            if self.inspect(&mut replies, bytes).is_err() {
                self.shared
                    .recorder
                    .count_unobserved("relay_reply_malformed");
                return DirectionEnd::Closed;
            }
            let sent = timeout(self.shared.settings().client_write_idle_timeout, async {
                writer.write_all(bytes).await?;
                writer.flush().await
            });
            match sent.await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return DirectionEnd::Broken,
                Err(_) => return DirectionEnd::Closed,
            }
            self.watch.lock().finish_sent(Instant::now());
            if !replies.is_between_replies() {
                locked_writer = Some(writer);
            } else if self.has_to_end(wear) {
                return DirectionEnd::Closed;
            }
        }
    }

    fn inspect(
        &self,
        replies: &mut Replies,
        bytes: &[u8],
    ) -> Result<(), super::replies::NotMessages> {
        let mut watch = self.watch.lock();
        let now = Instant::now();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (taken, seen) = replies.feed(rest, |header| watch.expected(header))?;
            rest = rest.get(taken..).unwrap_or_default();
            match seen {
                Some(ReplyEvent::Begins(header)) => watch.record_reply_begin(header, now),
                Some(ReplyEvent::Ends(reply)) => {
                    watch.record_reply_end(&reply, now);
                    self.has_room.notify_one();
                }
                None => {}
            }
        }
        Ok(())
    }
}

/// Waits until a request has been passed on, for at most [`MESSAGE_LIMIT`]. While the server reads
/// nothing, Seawall reads nothing from the client. So without this limit, Seawall might never
/// notice that the client has left.
async fn within_limit(
    passing: impl Future<Output = Result<(), DirectionEnd>>,
) -> Result<(), DirectionEnd> {
    let passed = timeout(MESSAGE_LIMIT, passing).await;
    passed.unwrap_or(Err(DirectionEnd::Server))
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_relay_ends_if_its_server_reads_nothing_for_an_hour() {
        let (mut near, _far) = duplex(16);
        let writing = async {
            near.write_all(&[0; 17])
                .await
                .map_err(|_| DirectionEnd::Broken)
        };
        let began = Instant::now();
        let passed = within_limit(writing).await;
        assert!(matches!(passed, Err(DirectionEnd::Server)));
        assert!(began.elapsed() >= MESSAGE_LIMIT);
    }
}
