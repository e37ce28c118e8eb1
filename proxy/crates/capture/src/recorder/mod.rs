//! The files of mongod's own traffic recorder (`startRecordingTraffic`): a reader, a writer, and
//! the conversion to captures and back.
//!
//! A file is a sequence of packets, and does not contain the version of its layout. Three layouts
//! are known. The reader finds the layout of a file from its first packet.
//!
//! ```text
//! packet    = size(4) head message           integers little-endian; size of the whole packet
//! addresses : head = session(8) local\0 remote\0 milliseconds(8) order(8)       MongoDB 6.0
//! sessions  : head = session(8) text\0 microseconds(8) order(8)                 MongoDB 8.0
//! events    : head = event(1) session(8) text\0 microseconds(8) order(8)        newer servers
//! ```
//!
//! Milliseconds count from 1970, microseconds from the beginning of the recording. `order`
//! increases by one with each packet. In the layouts `sessions` and `events` a packet without a
//! message says that a session began or ended.
//!
//! This description is based on files of mongod 6.0.5 and, for the newer layouts, on public
//! descriptions of programs that read such files.

mod export;
mod import;
mod reader;
mod recording;
mod writer;

#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use self::{
    export::{Export, ExportCounts, ExportError},
    import::{Import, ImportCounts},
    reader::{RecorderError, RecorderReader},
    recording::Recording,
    writer::RecorderWriter,
};

/// The layout of the packets in a file of mongod's traffic recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The head has two addresses, and the time in milliseconds since 1970.
    Addresses,
    /// The head has one text with both addresses, and the time in microseconds since the recording
    /// began.
    Sessions,
    /// Like `Sessions`, but the head begins with the number of the packet's event.
    Events,
}

impl Layout {
    /// All layouts, in the order in which a reader tries them.
    pub const ALL: [Self; 3] = [Self::Addresses, Self::Sessions, Self::Events];

    /// True if times count from 1970, false if they count from the beginning of the recording.
    pub fn has_dates(self) -> bool {
        self == Self::Addresses
    }
}

/// The event that a packet records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketEvent {
    /// The server received or sent a message.
    Message,
    /// A session (a client's connection) began.
    SessionBegan,
    /// A session ended.
    SessionEnded,
}

/// One packet of a file of mongod's traffic recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The event that the packet records.
    pub event: PacketEvent,
    /// The server's number for the client's connection; below 2^56.
    pub session: u64,
    /// The server's address; in the layouts `Sessions` and `Events`, a text with both addresses. It
    /// has no NUL.
    pub local: String,
    /// The client's address; empty in the layouts `Sessions` and `Events`. It has no NUL.
    pub remote: String,
    /// The time in microseconds: since 1970 or since the recording began, see
    /// [`Layout::has_dates`]. The layout `Addresses` keeps only milliseconds.
    pub at_us: u64,
    /// The position of the packet in the recording.
    pub order: u64,
    /// The whole message with its header; empty if the event is not [`PacketEvent::Message`].
    pub message: Bytes,
}

/// Maximum size in bytes of the head of a packet: all fields before the message. A packet with a
/// smaller message may have a larger head. Each address or text in a head must be shorter than this
/// size.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Largest packet in bytes: the largest message with its head.
const MAX_PACKET_BYTES: usize = seawall_wire::MAX_MESSAGE_BYTES + MAX_HEAD_BYTES;

/// Every session number is below this limit: servers count sessions from 1 and never reach the
/// limit. If a reader finds a larger number, it has read the file with a wrong layout.
const MAX_SESSION: u64 = 1 << 56;
