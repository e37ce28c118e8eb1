//! The file format of captured traffic: its records, a writer and a reader. The module [`recorder`]
//! reads and writes the files of mongod's own traffic recorder.
//!
//! A capture holds the commands of the captured clients. For each operation that ended, it holds
//! the outcome, the duration, the size of the reply, and the facts of the reply, such as its error
//! code. If the capture records whole replies, it also holds the message of the reply. An
//! [`Omitted`](record::Omitted) record counts what was not recorded. A capture is a sequence of
//! files, called *parts*. This crate reads and writes bytes through `std::io`. It opens no files
//! and does not depend on the proxy.
//!
//! ```text
//! part   = magic(8) version(4) block*
//! block  = compressedBytes(4) plainBytes(4) CRC-32C(4) frame    ; frame is compressed with zstd
//! frame  = (length record)*                                     ; each length is a varint
//! record = Header | ClientBegan | ClientEnded | Command | Reply | Omitted | Event | End
//! ```
//!
//! Integers are little-endian.
//!
//! Records are protocol buffers ([`record`]). The first record of each part is a
//! [`Header`](record::Header), and the last record is an [`End`](record::End). A part without an
//! `End` was cut off. The checksum is computed over the compressed bytes. A reader refuses an
//! unknown version and an unknown record.

mod block;
mod facts;
mod reader;
pub mod record;
pub mod recorder;
mod writer;

#[cfg(test)]
mod tests;

pub use self::{
    block::MAX_BLOCK_BYTES,
    reader::{ReadError, Reader, is_capture},
    writer::{WriteError, Writer},
};
