//! Reads and prepares the records of a capture in a thread of its own, before the replay needs
//! them. The memory for these records is limited.

use std::sync::Arc;

use seawall_capture::record::Content;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
};

use crate::{
    Source, SourceError,
    prepare::{Prepared, Preparer},
};

/// The window: the maximum total size, in KiB, of the messages of all commands that were read ahead
/// and have not ended. It is larger than the largest message of a capture.
const WINDOW_KIB: u32 = 64 * 1024;

/// Memory that each command reserves in the window in addition to its message, in KiB. It limits
/// the number of small commands in the window.
const EACH_KIB: usize = 4;

/// Reserved memory is returned to the window in portions of at least this size, in KiB. If each
/// command returned its memory separately, each command would wake the thread that reads.
const RETURNED_KIB: usize = 2 * 1024;

/// Maximum number of records in the channel through which the replay gets its records.
const MAX_QUEUED: usize = 4096;

const _: () =
    assert!(seawall_capture::MAX_BLOCK_BYTES / 1024 + EACH_KIB + RETURNED_KIB < 64 * 1024);

/// A record, with the memory that it reserves in the window ([`WINDOW_KIB`]).
#[derive(Debug)]
pub(crate) struct Read {
    pub record: Prepared,
    /// The memory that a command reserves; `None` for other records.
    pub permit: Option<OwnedSemaphorePermit>,
}

/// Collects the permits of commands that have ended. Returns them to the window when they add up to
/// [`RETURNED_KIB`] or more.
#[derive(Debug, Default)]
pub(crate) struct Shares(Option<OwnedSemaphorePermit>);

impl Shares {
    pub(crate) fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.0 {
            Some(collected) => collected.merge(permit),
            None => self.0 = Some(permit),
        }
        let is_enough = |collected: &OwnedSemaphorePermit| collected.num_permits() >= RETURNED_KIB;
        drop(self.0.take_if(|collected| is_enough(collected)));
    }
}

/// The last [`Item`] of the channel. It says if the capture was read to its end.
#[derive(Debug)]
pub(crate) struct Last {
    /// The error that prevented reading the rest of the capture; `None` if the capture was read to
    /// its end.
    pub error: Option<SourceError>,
}

/// An item of the channel.
#[derive(Debug)]
pub(crate) enum Item {
    Record(Read),
    Last(Last),
}

/// Starts a thread that reads and prepares the records, and returns the receiver of the channel.
/// The thread ends at the end of the capture, or when the receiver is dropped.
pub(crate) fn read_ahead(mut source: Source, mut preparer: Preparer) -> mpsc::Receiver<Item> {
    let (sender, receiver) = mpsc::channel(MAX_QUEUED);
    let window = Arc::new(Semaphore::new(usize::try_from(WINDOW_KIB).unwrap_or(0)));
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let error = loop {
            match source.next_record() {
                Ok(Some(content)) => {
                    let sent = runtime.block_on(send(&sender, &window, &mut preparer, content));
                    if sent.is_none() {
                        return;
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        // The last item is not needed if the receiver was dropped.
        drop(sender.blocking_send(Item::Last(Last { error })));
    });
    receiver
}

/// Waits until the window has enough unused memory for the record, prepares the record, and sends
/// it. `None` if the receiver was dropped.
async fn send(
    sender: &mpsc::Sender<Item>,
    window: &Arc<Semaphore>,
    preparer: &mut Preparer,
    content: Content,
) -> Option<()> {
    let permit = match &content {
        Content::Command(command) => {
            let kib = u32::try_from(command.message.len() / 1024 + EACH_KIB);
            let kib = kib.unwrap_or(WINDOW_KIB);
            tokio::select! {
                permit = Arc::clone(window).acquire_many_owned(kib.min(WINDOW_KIB)) => permit.ok(),
                () = sender.closed() => return None,
            }
        }
        _ => None,
    };
    let Some(record) = preparer.prepare(content) else {
        return Some(());
    };
    let permit = permit.filter(|_| matches!(record, Prepared::Command(_)));
    sender
        .send(Item::Record(Read { record, permit }))
        .await
        .ok()
}
