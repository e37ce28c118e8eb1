//! Reads one part of a capture.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use prost::Message;

use crate::{
    block::{HEAD_BYTES, Head, MAGIC, MAX_BLOCK_BYTES, VERSION},
    record::{Content, Header, Record},
};

/// The maximum size of a record with a header. This maximum limits memory: a decoded header with
/// many short entries takes many times as much memory as the bytes of the record.
const MAX_HEADER_BYTES: usize = 1 << 20;

/// The maximum number of servers, namespaces, users and applications in a header, all together. A
/// program that reads the capture may look up the address of each server, so this maximum also
/// limits the number of these lookups.
const MAX_HEADER_ENTRIES: usize = 10_000;

/// The reason why a part cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The source of the bytes returned an I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file does not begin with the magic bytes of a capture file.
    #[error("not a Seawall capture")]
    NotACapture,
    /// The file has a format version that this program does not know.
    #[error("format version {0} is not known; this program reads version {VERSION}")]
    UnknownVersion(u32),
    /// The file ends within its format version (the four bytes after the magic bytes) or within a
    /// block, or it has no `End` record.
    #[error("the file was cut off at byte {at_byte}")]
    Truncated {
        /// Offset of the end of the last complete block, in bytes from the start of the part; 12
        /// if there is no complete block; 0 if the file ends within the format version.
        at_byte: u64,
    },
    /// A block is damaged.
    #[error("damaged block at byte {at_byte}: {problem}")]
    Damaged {
        /// Offset of the block, in bytes from the start of the part.
        at_byte: u64,
        /// The reason why the bytes are invalid.
        problem: &'static str,
    },
}

/// True if a file that begins with the bytes `start` is a capture. `start` must contain at least
/// the first eight bytes of the file.
pub fn is_capture(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

/// Reads the records of one part. The reader holds only one block in memory at a time.
#[derive(Debug)]
pub struct Reader<R> {
    source: R,
    header: Header,
    /// The records of the current block that have not been returned.
    block: Bytes,
    /// Offset of the current block, in bytes from the start of the part.
    block_at: u64,
    /// Offset of the next block, in bytes from the start of the part.
    at: u64,
    has_ended: bool,
}

impl<R: Read> Reader<R> {
    /// Opens a part and reads its header.
    ///
    /// # Errors
    /// Fails in each of these cases: the source returns an error; it is not a capture; it has an
    /// unknown version; its header is missing, damaged or incomplete.
    pub fn new(mut source: R) -> Result<Self, ReadError> {
        let mut head = [0; 12];
        let read = fill(&mut source, &mut head)?;
        if !head.starts_with(MAGIC) {
            return Err(ReadError::NotACapture);
        }
        if read < head.len() {
            return Err(ReadError::Truncated { at_byte: 0 });
        }
        let [.., a, b, c, d] = head;
        let version = u32::from_le_bytes([a, b, c, d]);
        if version != VERSION {
            return Err(ReadError::UnknownVersion(version));
        }
        let mut reader = Self {
            source,
            header: Header::default(),
            block: Bytes::new(),
            block_at: 12,
            at: 12,
            has_ended: false,
        };
        match reader.read_content()? {
            Some(Content::Header(header)) => reader.header = header,
            Some(_) => return Err(reader.damaged("the first record is not a header")),
            None => return Err(ReadError::Truncated { at_byte: 12 }),
        }
        Ok(reader)
    }

    /// The part's header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Reads the next record; `None` after the `End` record.
    ///
    /// # Errors
    /// Fails if the source returns an error, or if the part is damaged or was cut off. The records
    /// that were returned before the error are valid.
    pub fn next_record(&mut self) -> Result<Option<Content>, ReadError> {
        if self.has_ended {
            return Ok(None);
        }
        match self.read_content()? {
            Some(Content::Header(_)) => Err(self.damaged("the part has a second header")),
            Some(Content::End(_)) if self.block.has_remaining() => {
                Err(self.damaged("records follow the end record"))
            }
            Some(content) => {
                self.has_ended = matches!(content, Content::End(_));
                Ok(Some(content))
            }
            None => Err(ReadError::Truncated { at_byte: self.at }),
        }
    }

    /// Returns the source. If [`Reader::next_record`] has returned the `End` record, the next byte
    /// that is read from the source is the first byte after the part.
    pub fn into_source(self) -> R {
        self.source
    }

    /// Reads the next record; `None` at the end of the file.
    fn read_content(&mut self) -> Result<Option<Content>, ReadError> {
        while !self.block.has_remaining() {
            if !self.read_block()? {
                return Ok(None);
            }
        }
        let length = prost::decode_length_delimiter(&mut self.block).ok();
        let Some(length) = length.filter(|length| *length <= self.block.len()) else {
            return Err(self.damaged(NOT_A_RECORD));
        };
        let record = self.block.split_to(length);
        if record.len() > MAX_HEADER_BYTES && self.has_header(&record)? {
            return Err(self.damaged("a header is larger than 1 MiB"));
        }
        let record = Record::decode(record).map_err(|_| self.damaged(NOT_A_RECORD))?;
        match record.content {
            Some(Content::Header(header)) if entries(&header) > MAX_HEADER_ENTRIES => {
                Err(self.damaged("a header has more than 10,000 servers and names"))
            }
            None => Err(self.damaged("it contains a record of an unknown type")),
            content => Ok(content),
        }
    }

    /// True if the record has a header. This function does not decode the header.
    fn has_header(&self, record: &Bytes) -> Result<bool, ReadError> {
        let skipped = Skipped::decode(record.clone());
        let skipped = skipped.map_err(|_| self.damaged(NOT_A_RECORD))?;
        Ok(skipped.header.is_some())
    }

    /// Reads the next block; false at the end of the file.
    fn read_block(&mut self) -> Result<bool, ReadError> {
        self.block_at = self.at;
        let mut head = [0; HEAD_BYTES];
        match fill(&mut self.source, &mut head)? {
            0 => return Ok(false),
            HEAD_BYTES => {}
            _ => return Err(self.truncated()),
        }
        let head = Head::parse(head);
        let compressed_bytes = usize::try_from(head.compressed_bytes).unwrap_or(usize::MAX);
        let plain_bytes = usize::try_from(head.plain_bytes).unwrap_or(usize::MAX);
        if plain_bytes > MAX_BLOCK_BYTES
            || compressed_bytes > zstd::zstd_safe::compress_bound(MAX_BLOCK_BYTES)
        {
            return Err(self.damaged("the block exceeds the size limit"));
        }
        let mut compressed = Vec::new();
        let limit = u64::from(head.compressed_bytes);
        self.source
            .by_ref()
            .take(limit)
            .read_to_end(&mut compressed)?;
        if compressed.len() < compressed_bytes {
            return Err(self.truncated());
        }
        if crc32c::crc32c(&compressed) != head.checksum {
            return Err(self.damaged("the checksum does not match"));
        }
        let plain = zstd::bulk::decompress(&compressed, plain_bytes)
            .map_err(|_| self.damaged("its content is not a zstd frame of the declared size"))?;
        if plain.len() != plain_bytes || plain.is_empty() {
            return Err(self.damaged("its content is not a zstd frame of the declared size"));
        }
        self.block = Bytes::from(plain);
        self.at += u64::try_from(HEAD_BYTES).unwrap_or(u64::MAX) + limit;
        Ok(true)
    }

    fn truncated(&self) -> ReadError {
        ReadError::Truncated {
            at_byte: self.block_at,
        }
    }

    fn damaged(&self, problem: &'static str) -> ReadError {
        ReadError::Damaged {
            at_byte: self.block_at,
            problem,
        }
    }
}

/// The reason for an error if a record cannot be decoded.
const NOT_A_RECORD: &str = "its content is not a record";

/// A record whose contents are skipped, so that its decoding needs no memory.
#[derive(Clone, PartialEq, Message)]
struct Skipped {
    /// `Some` if the record has a header.
    #[prost(message, optional, tag = "1")]
    header: Option<()>,
}

/// The number of servers and names in a header.
fn entries(header: &Header) -> usize {
    let names = header.selection.as_ref().map_or(0, |selection| {
        selection.namespaces.len() + selection.users.len() + selection.applications.len()
    });
    header.servers.len() + names
}

/// Reads until `buffer` is full or the source ends. Returns the number of bytes read.
pub(crate) fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
