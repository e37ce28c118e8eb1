//! `OP_COMPRESSED`: a message that contains another message, compressed in one of three formats.
//!
//! ```text
//! OP_COMPRESSED = header(16) originalOpcode(4) uncompressedSize(4) compressorId(1) bytes
//! ```
//!
//! Each length is checked against a limit before memory is allocated. The inflated content must
//! have exactly the declared size. If the content is shorter, some servers read memory beyond its
//! end (CVE-2025-14847). So a compressed message is never forwarded without this check.
//!
//! Source:
//! <https://github.com/mongodb/specifications/blob/master/source/compression/OP_COMPRESSED.md>.

use std::io::{self, Read, Write};

use super::{
    MAX_MESSAGE_BYTES,
    header::{HEADER_BYTES, Header, OpCode},
};

/// Offset of the compressed content in an `OP_COMPRESSED` message, in bytes. The header, the
/// original opcode, the uncompressed size and the compressor's id precede the content.
pub const COMPRESSED_HEAD_BYTES: usize = HEADER_BYTES + 4 + 4 + 1;

/// The compression level for Zstandard, the same that servers use.
const ZSTD_LEVEL: i32 = 3;

/// A compression algorithm of the wire protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// Raw Snappy blocks.
    Snappy,
    /// zlib, RFC 1950.
    Zlib,
    /// Zstandard, RFC 8878.
    Zstd,
}

impl Compressor {
    /// All compressors, in the order in which servers prefer them.
    pub const ALL: [Self; 3] = [Self::Snappy, Self::Zstd, Self::Zlib];

    /// The compressor's name in `hello` and in connection strings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snappy => "snappy",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// The compressor with this name; `None` if the name is unknown.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.name() == name)
    }

    fn id(self) -> u8 {
        match self {
            Self::Snappy => 1,
            Self::Zlib => 2,
            Self::Zstd => 3,
        }
    }

    fn of_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.id() == id)
    }
}

/// The reason why a compressed message cannot be read. Like a server, the caller closes the
/// connection.
#[derive(Debug, thiserror::Error)]
pub enum InflateError {
    /// The message ends before its compressed content begins, or its header is invalid.
    #[error("compressed message too short")]
    TooShort,
    /// The inner message is not an `OP_MSG`, `OP_QUERY` or `OP_REPLY`.
    #[error("opcode {0} must not be compressed")]
    OpCode(i32),
    /// The compressor's id is unknown, or 0 (uncompressed).
    #[error("unknown compressor {0}")]
    Compressor(u8),
    /// The declared size is negative, or the inner message would exceed `max_message_bytes`.
    #[error("uncompressed size {0} out of range")]
    Size(i32),
    /// The bytes cannot be inflated, or their inflated size differs from the declared size.
    #[error("compressed content does not inflate to its declared size: {0}")]
    Bytes(#[from] io::Error),
}

/// The parsed head of a compressed message (its bytes before the compressed content): the
/// compressor, and the header that the inner message gets.
#[derive(Clone, Copy, Debug)]
pub struct CompressedHead {
    /// The compressor of the message.
    pub compressor: Compressor,
    /// The header of the inner message.
    pub inner: Header,
}

impl CompressedHead {
    /// Parses the head of a compressed message. `max_message_bytes` limits the inner message.
    ///
    /// # Errors
    /// Every [`InflateError`] except `Bytes`.
    pub fn parse(message: &[u8], max_message_bytes: usize) -> Result<Self, InflateError> {
        let head = message.first_chunk::<COMPRESSED_HEAD_BYTES>();
        let head = head.ok_or(InflateError::TooShort)?;
        let [outer @ .., o0, o1, o2, o3, s0, s1, s2, s3, id] = *head;
        let outer = Header::parse(&outer, MAX_MESSAGE_BYTES).map_err(|_| InflateError::TooShort)?;
        let op_code = i32::from_le_bytes([o0, o1, o2, o3]);
        let inner_code = OpCode::from(op_code);
        if !matches!(inner_code, OpCode::Msg | OpCode::Query | OpCode::Reply) {
            return Err(InflateError::OpCode(op_code));
        }
        let size = i32::from_le_bytes([s0, s1, s2, s3]);
        let message_length = usize::try_from(size)
            .ok()
            .and_then(|size| size.checked_add(HEADER_BYTES))
            .filter(|length| *length <= max_message_bytes)
            .ok_or(InflateError::Size(size))?;
        let compressor = Compressor::of_id(id).ok_or(InflateError::Compressor(id))?;
        Ok(Self {
            compressor,
            inner: Header {
                message_length,
                op_code: inner_code,
                ..outer
            },
        })
    }

    /// Returns the inner message with its own header.
    ///
    /// # Errors
    /// [`InflateError::Bytes`] if the content does not inflate to exactly the declared size.
    pub fn inflate(&self, message: &[u8]) -> Result<Vec<u8>, InflateError> {
        let compressed = message.get(COMPRESSED_HEAD_BYTES..).unwrap_or_default();
        let mut inflated = Vec::with_capacity(self.inner.message_length);
        inflated.extend_from_slice(&self.inner.to_bytes());
        inflated.resize(self.inner.message_length, 0);
        let content = inflated.get_mut(HEADER_BYTES..).unwrap_or_default();
        match self.compressor {
            Compressor::Snappy => inflate_snappy(compressed, content),
            Compressor::Zlib => fill_exactly(flate2::read::ZlibDecoder::new(compressed), content),
            Compressor::Zstd => inflate_zstd(compressed, content),
        }?;
        Ok(inflated)
    }
}

fn inflate_snappy(compressed: &[u8], content: &mut [u8]) -> io::Result<()> {
    // The block begins with the size of its inflated content, so a wrong size is refused before the
    // block is inflated. The decoder does not write beyond the end of `content`.
    if snap::raw::decompress_len(compressed)? != content.len() {
        return Err(wrong_size());
    }
    snap::raw::Decoder::new().decompress(compressed, content)?;
    Ok(())
}

/// Inflates directly into `content`. A streaming decoder would allocate a window of up to 128 MiB,
/// whose size the sender chooses.
fn inflate_zstd(compressed: &[u8], content: &mut [u8]) -> io::Result<()> {
    match zstd::bulk::decompress_to_buffer(compressed, content)? == content.len() {
        true => Ok(()),
        false => Err(wrong_size()),
    }
}

/// Fills `content` from a decoder. The decoder must end exactly at the end of `content`.
fn fill_exactly(mut decoder: impl Read, content: &mut [u8]) -> io::Result<()> {
    decoder.read_exact(content)?;
    match decoder.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(wrong_size()),
    }
}

fn wrong_size() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "size differs from the declared size",
    )
}

/// Compresses a whole message.
///
/// # Errors
/// If `message` has no valid header, or if the compressor fails. The compressor fails only if
/// memory runs out.
pub fn deflate(message: &[u8], compressor: Compressor) -> io::Result<Vec<u8>> {
    let Some((head, content)) = message.split_first_chunk::<HEADER_BYTES>() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let [.., o0, o1, o2, o3] = *head;
    let mut compressed = Vec::with_capacity(COMPRESSED_HEAD_BYTES + content.len() / 2);
    compressed.extend_from_slice(head);
    compressed.extend_from_slice(&[o0, o1, o2, o3]);
    let size = i32::try_from(content.len()).map_err(|_| wrong_size())?;
    compressed.extend_from_slice(&size.to_le_bytes());
    compressed.push(compressor.id());
    match compressor {
        Compressor::Snappy => {
            compressed.extend_from_slice(&snap::raw::Encoder::new().compress_vec(content)?);
        }
        Compressor::Zlib => {
            let level = flate2::Compression::default();
            let mut encoder = flate2::write::ZlibEncoder::new(&mut compressed, level);
            encoder.write_all(content)?;
            encoder.finish()?;
        }
        Compressor::Zstd => {
            // Some clients need the content size in the frame. Only an encoder that gets the whole
            // content in one call writes this size.
            let content = zstd::bulk::compress(content, ZSTD_LEVEL)?;
            compressed.extend_from_slice(&content);
        }
    }
    let outer = Header::parse(head, MAX_MESSAGE_BYTES).map_err(|_| wrong_size())?;
    let outer = Header {
        message_length: compressed.len(),
        op_code: OpCode::Compressed,
        ..outer
    };
    let (front, _) = compressed.split_at_mut(HEADER_BYTES);
    front.copy_from_slice(&outer.to_bytes());
    Ok(compressed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encode_request;

    fn message() -> Vec<u8> {
        encode_request(77, &b"0123456789".repeat(100))
    }

    fn inflated(message: &[u8]) -> Result<Vec<u8>, InflateError> {
        CompressedHead::parse(message, MAX_MESSAGE_BYTES)?.inflate(message)
    }

    fn with_size(mut message: Vec<u8>, change: i32) -> Vec<u8> {
        let size = i32::from_le_bytes(message[20..24].try_into().unwrap());
        message[20..24].copy_from_slice(&(size + change).to_le_bytes());
        message
    }

    #[test]
    fn compressors_have_the_names_that_drivers_know() {
        for (name, compressor) in [
            ("snappy", Compressor::Snappy),
            ("zlib", Compressor::Zlib),
            ("zstd", Compressor::Zstd),
        ] {
            assert_eq!(compressor.name(), name);
            assert_eq!(Compressor::parse(name), Some(compressor));
        }
        assert_eq!(Compressor::parse("lz4"), None);
    }

    #[test]
    fn inflate_restores_the_message_that_was_compressed() {
        for compressor in Compressor::ALL {
            let compressed = deflate(&message(), compressor).unwrap();
            assert!(compressed.len() < message().len());
            let head = CompressedHead::parse(&compressed, MAX_MESSAGE_BYTES).unwrap();
            assert_eq!(head.compressor, compressor);
            assert_eq!(head.inner.request_id, 77);
            assert_eq!(inflated(&compressed).unwrap(), message());
        }
    }

    #[test]
    fn zstd_frames_contain_their_content_size() {
        let compressed = deflate(&message(), Compressor::Zstd).unwrap();
        let size = zstd::zstd_safe::get_frame_content_size(&compressed[COMPRESSED_HEAD_BYTES..]);
        let expected = u64::try_from(message().len() - HEADER_BYTES).unwrap();
        assert_eq!(size.unwrap(), Some(expected));
    }

    /// Servers inflate such a frame too, because they do not allocate its window.
    #[test]
    fn a_zstd_frame_that_declares_a_window_of_2_gib_is_inflated() {
        let content = &message()[HEADER_BYTES..];
        let mut compressed = deflate(&message(), Compressor::Zstd).unwrap();
        compressed.truncate(COMPRESSED_HEAD_BYTES);
        // RFC 8878, section 3.1.1: the magic number, a frame header with a window of 2 GiB, and a
        // last block of the type "raw".
        compressed.extend([0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3]);
        let block = u32::try_from(content.len() << 3 | 1).unwrap();
        compressed.extend(&block.to_le_bytes()[..3]);
        compressed.extend(content);
        let length = i32::try_from(compressed.len()).unwrap();
        compressed[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(inflated(&compressed).unwrap(), message());
    }

    #[test]
    fn a_compressed_message_with_a_wrong_declared_size_is_refused() {
        for compressor in Compressor::ALL {
            for change in [-1, 1, 100] {
                let wrong = with_size(deflate(&message(), compressor).unwrap(), change);
                let error = inflated(&wrong).unwrap_err();
                assert!(matches!(error, InflateError::Bytes(_)), "{error}");
            }
        }
    }

    #[test]
    fn invalid_compression_headers_are_refused_as_on_a_server() {
        let valid = deflate(&message(), Compressor::Snappy).unwrap();
        let with = |at: usize, bytes: &[u8]| {
            let mut message = valid.clone();
            message[at..at + bytes.len()].copy_from_slice(bytes);
            inflated(&message).unwrap_err()
        };
        assert!(matches!(
            with(16, &2012_i32.to_le_bytes()),
            InflateError::OpCode(2012)
        ));
        assert!(matches!(
            with(20, &(-1_i32).to_le_bytes()),
            InflateError::Size(-1)
        ));
        assert!(matches!(
            with(20, &48_000_000_i32.to_le_bytes()),
            InflateError::Size(_)
        ));
        for id in [0, 4, 255] {
            assert!(matches!(with(24, &[id]), InflateError::Compressor(_)));
        }
        assert!(matches!(
            inflated(&valid[..24]).unwrap_err(),
            InflateError::TooShort
        ));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_inflate_to_the_declared_size(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            size in 0_i32..5000,
            id in 1_u8..4,
        ) {
            let mut message = deflate(&message(), Compressor::Zlib).unwrap();
            message.truncate(COMPRESSED_HEAD_BYTES);
            message[20..24].copy_from_slice(&size.to_le_bytes());
            message[24] = id;
            message.extend_from_slice(&bytes);
            if let Ok(inflated) = inflated(&message) {
                prop_assert_eq!(inflated.len(), 16 + usize::try_from(size).unwrap());
            }
        }
    }
}
