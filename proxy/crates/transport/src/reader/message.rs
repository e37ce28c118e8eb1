//! One message, and its share of the memory budget.

use std::{
    io,
    sync::atomic::{AtomicBool, Ordering},
};

use tokio::time::Instant;
use zeroize::Zeroize as _;

use seawall_wire::{CompressedHead, Compressor, Header, InflateError};

use super::LARGE_MESSAGE_BYTES;
use crate::{
    budget::{Evicted, MemoryBudget, MemoryShare},
    sharer::Sharer,
};

/// A whole message, or only its head (the first part of a large message). The bytes are in the wire
/// format and include the header.
#[derive(Debug)]
pub struct Message {
    /// The parsed header of the message.
    pub header: Header,
    /// All bytes of the message, or only the bytes of its head (the first part of a large message).
    pub bytes: Vec<u8>,
    /// When the first bytes of this head arrived; `None` if this is a whole message.
    pub head_since: Option<Instant>,
    /// The compressor of the `OP_COMPRESSED` message that contained this message; `None` if this
    /// message did not arrive inside an `OP_COMPRESSED`.
    pub compressor: Option<Compressor>,
    /// The message's share of the memory budget; `None` if no bytes of the message are charged.
    /// Dropping the message releases the share.
    pub(super) share: Option<MemoryShare>,
    /// True if the bytes must be zeroed when the message is dropped. The flag is atomic, so that it
    /// can be set while the bytes are borrowed.
    is_secret: AtomicBool,
}

impl Message {
    pub(super) fn new(header: Header, bytes: Vec<u8>, share: Option<MemoryShare>) -> Self {
        Self {
            header,
            bytes,
            head_since: None,
            compressor: None,
            share,
            is_secret: AtomicBool::new(false),
        }
    }

    /// Makes sure that the bytes are zeroed when the message is dropped. Callers use this for
    /// messages that may contain the payload of a login.
    pub fn mark_secret(&self) {
        self.is_secret.store(true, Ordering::Relaxed);
    }

    fn wipe_secret(&mut self) {
        if *self.is_secret.get_mut() {
            self.bytes.zeroize();
        }
    }

    /// True if this is only the head (the first part) of a large message. The reader must then
    /// still read the rest of the message.
    pub fn is_head(&self) -> bool {
        self.bytes.len() < self.header.message_length
    }

    /// Reserves memory for the inner message of a compressed message, if the inner message is
    /// large. The memory is added to this message's share. A message without a share first gets a
    /// share, which is charged to `sharer`.
    ///
    /// # Errors
    /// See [`InflateError`]. This function inflates nothing, so [`InflateError::Bytes`] means that
    /// the message was evicted: other messages needed its memory. The caller must close the stream.
    pub async fn reserve_inflated(
        mut self,
        max_message_bytes: usize,
        budget: &MemoryBudget,
        sharer: Sharer,
    ) -> Result<Inflating, InflateError> {
        let share = self.share.take();
        let mut share = share.unwrap_or_else(|| budget.open(sharer));
        let bytes = std::mem::take(&mut self.bytes);
        let head = reserve(&bytes, 0, &mut share, max_message_bytes).await?;
        Ok(Inflating { head, bytes, share })
    }

    /// Reserves memory for inspecting the inner message of a compressed message, if the inner
    /// message is large. The compressed message stays unchanged.
    ///
    /// # Errors
    /// See [`InflateError`]. This function inflates nothing, so [`InflateError::Bytes`] means that
    /// the reservation was evicted: other messages needed the memory.
    pub async fn reserve_for_inspection(
        &self,
        max_message_bytes: usize,
        budget: &MemoryBudget,
        sharer: Sharer,
    ) -> Result<Inflating, InflateError> {
        let mut share = budget.open(sharer);
        let head = reserve(&self.bytes, self.bytes.len(), &mut share, max_message_bytes).await?;
        let bytes = self.bytes.clone();
        Ok(Inflating { head, bytes, share })
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.wipe_secret();
    }
}

/// A compressed message, with memory reserved for its inner message.
#[derive(Debug)]
pub struct Inflating {
    head: CompressedHead,
    bytes: Vec<u8>,
    share: MemoryShare,
}

/// Reads the head of a compressed message. If the inner message or a copy of the compressed message
/// is large, reserves memory for both. `copied_bytes` is the size of this copy, or 0 if no copy is
/// made.
async fn reserve(
    compressed: &[u8],
    copied_bytes: usize,
    share: &mut MemoryShare,
    max_message_bytes: usize,
) -> Result<CompressedHead, InflateError> {
    let head = CompressedHead::parse(compressed, max_message_bytes)?;
    let length = head.inner.message_length;
    if length.max(copied_bytes) > LARGE_MESSAGE_BYTES {
        let more = length + copied_bytes;
        let grown = share.grow(share.bytes() + more, more).await;
        grown.map_err(|Evicted| io::Error::from(io::ErrorKind::OutOfMemory))?;
    }
    Ok(head)
}

impl Inflating {
    /// The size that determines how long [`Self::inflate`] takes, in bytes: the larger of the sizes
    /// of the inner message and of the compressed message. A large compressed message can contain
    /// millions of blocks that are empty.
    pub fn work_bytes(&self) -> usize {
        self.head.inner.message_length.max(self.bytes.len())
    }

    /// Inflates the message and returns its inner message. For a large message this takes long, so
    /// the caller should not do this on a thread that serves clients.
    ///
    /// # Errors
    /// [`InflateError::Bytes`] if the content does not inflate to exactly the declared size. The
    /// caller must close the stream.
    pub fn inflate(self) -> Result<Message, InflateError> {
        let bytes = self.head.inflate(&self.bytes)?;
        let mut message = Message::new(self.head.inner, bytes, Some(self.share));
        message.compressor = Some(self.head.compressor);
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use seawall_wire::{MAX_MESSAGE_BYTES, encode_request};

    #[test]
    fn wipe_secret_zeroes_only_messages_that_are_marked_secret() {
        for is_secret in [false, true] {
            let bytes = encode_request(1, b"saslStart");
            let header = Header::parse(bytes.first_chunk().unwrap(), MAX_MESSAGE_BYTES);
            let mut message = Message::new(header.unwrap(), bytes, None);
            if is_secret {
                message.mark_secret();
            }
            message.wipe_secret();
            assert_eq!(message.bytes.is_empty(), is_secret);
        }
    }
}
