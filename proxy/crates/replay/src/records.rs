//! Reads records ahead of the replay, in a thread of its own, within a limit of bytes.

use std::sync::Arc;

use bytes::Bytes;
use seawall_capture::record::{Content, End};
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};

use crate::{Source, SourceError};

/// Bytes of the messages that were read ahead and not sent yet, in KiB. The largest message fits.
const WINDOW_KIB: u32 = 64 * 1024;

/// Maximum number of records in the channel between the threads.
const MAX_QUEUED: usize = 4096;

/// A message over this size keeps the memory of its block. A smaller one is copied, so that it does
/// not keep a whole block in memory.
const COPIED_BYTES: usize = 1024 * 1024;

const _: () = assert!(seawall_capture::MAX_BLOCK_BYTES < 64 * 1024 * 1024);

/// A record, with its share of the window.
#[derive(Debug)]
pub(crate) struct Read {
    pub content: Content,
    /// Returns the record's share when it is dropped.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// The last item: how the capture ended.
#[derive(Debug)]
pub(crate) struct Last {
    pub end: Option<End>,
    pub error: Option<SourceError>,
}

/// An item of the channel.
#[derive(Debug)]
pub(crate) enum Item {
    Record(Read),
    Last(Last),
}

/// Starts reading. The thread ends when the receiver is dropped.
pub(crate) fn read_ahead(mut source: Source) -> mpsc::Receiver<Item> {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED);
    let window = Arc::new(Semaphore::new(usize::try_from(WINDOW_KIB).unwrap_or(0)));
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let error = loop {
            match source.next_record() {
                Ok(Some(content)) => {
                    let sent = runtime.block_on(send(&sender, &window, content));
                    if sent.is_none() {
                        return;
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let end = source.end().cloned();
        // If the receiver is gone, the end is not needed.
        drop(sender.blocking_send(Item::Last(Last { end, error })));
    });
    receiver
}

/// Waits for room in the window, and sends a record. `None` if the receiver is gone.
async fn send(
    sender: &mpsc::Sender<Item>,
    window: &Arc<Semaphore>,
    content: Content,
) -> Option<()> {
    let (content, bytes) = trimmed(content);
    let permit = match bytes {
        Some(bytes) => {
            let kib = u32::try_from(bytes / 1024 + 1).unwrap_or(WINDOW_KIB);
            tokio::select! {
                permit = Arc::clone(window).acquire_many_owned(kib.min(WINDOW_KIB)) => permit.ok(),
                () = sender.closed() => return None,
            }
        }
        None => None,
    };
    let read = Read { content, permit };
    sender.send(Item::Record(read)).await.ok()
}

/// Releases memory that the replay does not need. Also returns the size of a command's message.
fn trimmed(content: Content) -> (Content, Option<usize>) {
    match content {
        Content::Command(mut command) => {
            let bytes = command.message.len();
            if bytes <= COPIED_BYTES {
                command.message = Bytes::copy_from_slice(&command.message);
            }
            (Content::Command(command), Some(bytes))
        }
        Content::Reply(mut reply) => {
            reply.message = Bytes::new();
            (Content::Reply(reply), None)
        }
        other => (other, None),
    }
}
