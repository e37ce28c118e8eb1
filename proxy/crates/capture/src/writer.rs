//! Writes one part of a capture.

use std::io::{self, Write};

use prost::Message as _;

use crate::{
    block::{BLOCK_BYTES, Head, MAGIC, MAX_BLOCK_BYTES, VERSION},
    record::{Content, End, Header, Record},
};

/// Compression level of zstd. Level 1 is the fastest regular level. The writer must use little CPU
/// time, because it shares the machine with the proxy.
const LEVEL: i32 = 1;

/// The reason why a record was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Writing to the destination failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The record does not fit into a block.
    #[error("a record of {bytes} bytes is larger than a block of {MAX_BLOCK_BYTES} bytes")]
    RecordTooLarge {
        /// Size of the record in bytes.
        bytes: usize,
    },
}

/// Writes the records of one part. Records reach the destination in blocks; [`Writer::flush`]
/// writes an incomplete block.
#[derive(Debug)]
pub struct Writer<W> {
    destination: W,
    /// The records of the current block.
    block: Vec<u8>,
    written_bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a new part with this header.
    ///
    /// # Errors
    /// If the destination fails, or if the header does not fit into a block.
    pub fn new(mut destination: W, header: Header) -> Result<Self, WriteError> {
        destination.write_all(MAGIC)?;
        destination.write_all(&VERSION.to_le_bytes())?;
        let mut writer = Self {
            destination,
            block: Vec::new(),
            written_bytes: 12,
        };
        writer.push(&Content::Header(header).into())?;
        Ok(writer)
    }

    /// Adds a record.
    ///
    /// # Errors
    /// If the destination fails, or if the record does not fit into a block. A record that does not
    /// fit is not written; the writer still accepts other records.
    pub fn push(&mut self, record: &Record) -> Result<(), WriteError> {
        let bytes = record.encoded_len() + prost::length_delimiter_len(record.encoded_len());
        if bytes > MAX_BLOCK_BYTES {
            return Err(WriteError::RecordTooLarge { bytes });
        }
        if self.block.len() + bytes > BLOCK_BYTES {
            self.flush()?;
        }
        record
            .encode_length_delimited(&mut self.block)
            .map_err(io::Error::other)?;
        Ok(())
    }

    /// Writes all records added so far to the destination, and flushes it.
    ///
    /// # Errors
    /// If the destination fails.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        if self.block.is_empty() {
            return Ok(());
        }
        let compressed = zstd::bulk::compress(&self.block, LEVEL)?;
        let head = Head {
            compressed_bytes: length(compressed.len())?,
            plain_bytes: length(self.block.len())?,
            checksum: crc32c::crc32c(&compressed),
        };
        self.destination.write_all(&head.to_bytes())?;
        self.destination.write_all(&compressed)?;
        self.destination.flush()?;
        let bytes = head.to_bytes().len() + compressed.len();
        self.written_bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
        self.block.clear();
        self.block.shrink_to(BLOCK_BYTES);
        Ok(())
    }

    /// Number of bytes written to the destination so far. Records of the current block are not
    /// included.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Number of bytes of the current block, before compression.
    pub fn pending_bytes(&self) -> u64 {
        u64::try_from(self.block.len()).unwrap_or(u64::MAX)
    }

    /// Ends the part and returns the destination.
    ///
    /// # Errors
    /// If the destination fails.
    pub fn finish(mut self, end: End) -> Result<W, WriteError> {
        self.push(&Content::End(end).into())?;
        self.flush()?;
        Ok(self.destination)
    }
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(io::Error::other)
}
