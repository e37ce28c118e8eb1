//! The client connection while Seawall prepares or sends a reply: sends bytes to the client, and
//! notices when the client leaves.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::AsyncWrite as _,
    time::{Instant, timeout, timeout_at},
};

use super::End;
use seawall_transport::{MESSAGE_LIMIT, MessageReader, Stream};

/// A client connection, borrowed for one operation or one step of a login.
pub(super) struct ClientEnd<'c> {
    pub(super) stream: &'c mut Stream,
    pub(super) reader: &'c mut MessageReader,
    /// Maximum time for which the client may read nothing while Seawall sends a reply.
    pub(super) write_idle: Duration,
    /// True if the client waits for a reply. False for a command with `moreToCome`: Seawall sends
    /// no reply.
    pub(super) is_awaiting: bool,
    /// True if the operation ends when the client leaves. False for a command with `moreToCome`,
    /// unless the command only reads. Many clients leave right after an unacknowledged write.
    /// Without Seawall, the server would run this write, so Seawall still forwards the write.
    pub(super) ends_if_gone: bool,
    /// True if Seawall has given up on the client, for example because the client reads too slowly.
    /// If this is false and bytes could not be sent, the client has left.
    pub(super) gave_up: bool,
}

impl ClientEnd<'_> {
    /// Returns how the client connection ends after bytes could not be sent.
    pub(super) fn end(&self) -> End {
        match self.gave_up {
            true => End::Closed,
            false => End::Gone,
        }
    }

    /// Gives up on the client. Returns the error with which sending to the client fails.
    pub(super) fn give_up(&mut self) -> io::Error {
        self.gave_up = true;
        io::ErrorKind::TimedOut.into()
    }

    /// Runs `work` to its end, or until the client leaves. Returns `None` if the client has left.
    /// The caller pins `work`: a future that is passed by value would be copied and use twice the
    /// memory.
    pub(super) async fn unless_gone<T>(
        &mut self,
        mut work: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(done));
            }
            self.poll_gone(cx).map(|()| None)
        })
        .await
    }

    /// Ready when the client has left. Never ready if the operation continues without its client.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.ends_if_gone {
            self.reader.poll_gone(cx, self.stream)
        } else {
            Poll::Pending
        }
    }

    /// Sends bytes to the client. Sends nothing if the client does not wait for a reply.
    ///
    /// # Errors
    /// Fails in any of these cases:
    ///
    /// - The client has left.
    /// - The client reads no byte for `write_idle`.
    /// - The client needs longer than [`MESSAGE_LIMIT`] for all bytes.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_awaiting {
            return Ok(());
        }
        let mut rest = bytes;
        let mut overdue_at = None;
        while !rest.is_empty() {
            let write = poll_fn(|cx| Pin::new(&mut *self.stream).poll_write(cx, rest));
            // Most writes complete at once, so a timer is created only for a write that has to
            // wait.
            let step = match poll_once(write).await {
                Ok(step) => step?,
                Err(write) => {
                    let now = Instant::now();
                    let overdue_at = *overdue_at.get_or_insert(now + MESSAGE_LIMIT);
                    match timeout_at(overdue_at.min(now + self.write_idle), write).await {
                        Ok(step) => step?,
                        Err(_) => return Err(self.give_up()),
                    }
                }
            };
            if step == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            rest = rest.get(step..).unwrap_or_default();
        }
        self.flush().await
    }

    /// Flushes TLS. The client has to accept the bytes within `write_idle`.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if !self.stream.is_encrypted() {
            return Ok(());
        }
        let flush = poll_fn(|cx| Pin::new(&mut *self.stream).poll_flush(cx));
        match poll_once(flush).await {
            Ok(flushed) => flushed,
            Err(flush) => match timeout(self.write_idle, flush).await {
                Ok(flushed) => flushed,
                Err(_) => Err(self.give_up()),
            },
        }
    }
}

/// Polls `future` once. Returns its output, or `future` itself if it is not ready.
async fn poll_once<F: Future + Unpin>(mut future: F) -> Result<F::Output, F> {
    match poll_fn(|cx| Poll::Ready(Pin::new(&mut future).poll(cx))).await {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => Err(future),
    }
}
