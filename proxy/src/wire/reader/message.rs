//! One message, and its share of the memory budget.

use std::io;

use tokio::time::Instant;

use super::{
    super::{
        budget::{Evicted, MemoryBudget, MemoryShare},
        compressed::{CompressedHead, Compressor, InflateError},
        header::Header,
        sharer::Sharer,
    },
    LARGE_MESSAGE_BYTES,
};

/// One message in its wire format, header included.
#[derive(Debug)]
pub struct Message {
    /// Its header.
    pub header: Header,
    /// All its bytes, or the bytes of its head.
    pub bytes: Vec<u8>,
    /// Arrival time of its first bytes, if this is only a head.
    pub head_since: Option<Instant>,
    /// The compressor, if the message was compressed.
    pub compressor: Option<Compressor>,
    /// Its share of the budget, released when the message is dropped.
    pub(super) share: Option<MemoryShare>,
}

impl Message {
    /// True if this is only a head. The reader then still has to read the rest.
    pub fn is_head(&self) -> bool {
        self.bytes.len() < self.header.message_length
    }

    /// Reserves memory for the message inside a compressed one, charged to `sharer`.
    ///
    /// # Errors
    /// See [`InflateError`]; the stream must be closed.
    pub async fn reserve_inflated(
        self,
        max_message_bytes: usize,
        budget: &MemoryBudget,
        sharer: Sharer,
    ) -> Result<Inflating, InflateError> {
        let share = self.share.unwrap_or_else(|| budget.open(sharer));
        Inflating::reserve(self.bytes, share, max_message_bytes).await
    }

    /// Reserves memory for inspecting the message inside a compressed one. The compressed message
    /// stays unchanged.
    ///
    /// # Errors
    /// See [`InflateError`].
    pub async fn reserve_for_inspection(
        &self,
        max_message_bytes: usize,
        budget: &MemoryBudget,
        sharer: Sharer,
    ) -> Result<Inflating, InflateError> {
        let share = budget.open(sharer);
        Inflating::reserve(self.bytes.clone(), share, max_message_bytes).await
    }
}

/// A compressed message, with memory reserved for the message inside.
#[derive(Debug)]
pub struct Inflating {
    head: CompressedHead,
    bytes: Vec<u8>,
    share: MemoryShare,
}

impl Inflating {
    async fn reserve(
        bytes: Vec<u8>,
        mut share: MemoryShare,
        max_message_bytes: usize,
    ) -> Result<Self, InflateError> {
        let head = CompressedHead::parse(&bytes, max_message_bytes)?;
        let length = head.inner.message_length;
        if length > LARGE_MESSAGE_BYTES {
            let grown = share.grow(share.bytes() + length, length).await;
            grown.map_err(|Evicted| io::Error::from(io::ErrorKind::OutOfMemory))?;
        }
        Ok(Self { head, bytes, share })
    }

    /// Bytes of the message inside.
    pub fn inflated_bytes(&self) -> usize {
        self.head.inner.message_length
    }

    /// The message inside. Inflating a large message takes too long for a thread that serves
    /// clients.
    ///
    /// # Errors
    /// [`InflateError::Bytes`]; the stream must be closed.
    pub fn inflate(self) -> Result<Message, InflateError> {
        Ok(Message {
            bytes: self.head.inflate(&self.bytes)?,
            header: self.head.inner,
            head_since: None,
            compressor: Some(self.head.compressor),
            share: Some(self.share),
        })
    }
}
