//! Blocks of a capture file. Each block is compressed separately and has its own checksum.

/// The first bytes of each part. A part is one file of a capture.
pub(crate) const MAGIC: &[u8; 8] = b"SWCAPT\r\n";

/// The version of the file format that this crate reads and writes.
pub(crate) const VERSION: u32 = 1;

/// Size of a block's head in bytes. The head consists of two sizes and a checksum.
pub(crate) const HEAD_BYTES: usize = 12;

/// The maximum size of a block in bytes, before compression. A block of this size has space for a
/// record that contains the largest possible message.
pub const MAX_BLOCK_BYTES: usize = 50_000_000;

/// If the next record would make a block larger than this size (in bytes, before compression), the
/// writer closes the block first.
pub(crate) const BLOCK_BYTES: usize = 256 * 1024;

const _: () = assert!(MAX_BLOCK_BYTES > seawall_wire::MAX_MESSAGE_BYTES + 64 * 1024);

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Number of compressed bytes that follow the head.
    pub compressed_bytes: u32,
    /// Size of the records after decompression, in bytes.
    pub plain_bytes: u32,
    /// CRC-32C of the compressed bytes.
    pub checksum: u32,
}

impl Head {
    pub(crate) fn parse(bytes: [u8; HEAD_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        Self {
            compressed_bytes: u32::from_le_bytes([a, b, c, d]),
            plain_bytes: u32::from_le_bytes([e, f, g, h]),
            checksum: u32::from_le_bytes([i, j, k, l]),
        }
    }

    pub(crate) fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let values = [self.compressed_bytes, self.plain_bytes, self.checksum];
        for (chunk, value) in bytes.chunks_exact_mut(4).zip(values) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}
